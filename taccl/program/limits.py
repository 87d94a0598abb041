"""Limits that runtimes such as MSCCL set for programs, and checks that report what exceeds the limits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import ceil
from typing import NamedTuple

from taccl.program.program import Program, Step
from taccl.program.split import weight
from taccl.runtimes.runtime import Runtime

#: Limits of the parsers and kernels of MSCCL XML.
#: `MAX_DEPENDED_ID`: max number (id) of a threadblock that a step waits for.
#: `MAX_PEERS`: max peers of a rank over one channel. The parsers accept 32, but then read, for each further
#: threadblock, behind the end of the channel's table of peers, and count messages over networks wrongly.
#: `MAX_COUNT`: max chunks per message.
#: `MAX_ELEMENTS`: max XML elements of a rank, such as threadblocks and steps.
MAX_DEPENDED_ID, MAX_PEERS, MAX_COUNT, MAX_ELEMENTS = 127, 31, 71, 4095
#: Limits of the parsers of MSCCL XML that they do not check.
#: `MAX_RANKS`: max elements in the element ``<algo>``.
#: `MAX_CHUNKS`: max chunks of a buffer, as offsets have 16 bits with a sign.
#: `MAX_FUSED`: max sums that are added to a slot in one step.
MAX_RANKS, MAX_CHUNKS, MAX_FUSED = 1024, 2**15, 16
#: Limits of the MSCCL XML parsers on text.
#: `MAX_NAME`: max characters of the name of an algorithm.
#: `MAX_ATTRIBUTES`: max attributes of an element.
#: `MAX_VALUE`: max characters of the value of an attribute.
MAX_NAME, MAX_ATTRIBUTES, MAX_VALUE = 63, 16, 255
#: `USUALLY_IN_PLACE`: collectives that PyTorch calls in place.
#: `IN_BOTH_PLACES`: collectives that PyTorch calls both in place and out of place.
USUALLY_IN_PLACE, IN_BOTH_PLACES = ("allreduce", "reduce", "broadcast"), ("allgather", "reduce-scatter")


class Excess(NamedTuple):
    """Limit of a format that a program exceeds; `where` is (rank, threadblock, step), or a prefix of it."""

    where: tuple[int, ...]
    message: str
    remedy: str


def excesses(program: Program, runtime: Runtime) -> Iterator[Excess]:
    """Yield each limit of a runtime's files that a program exceeds, with advice for another lowering."""
    if program.num_ranks > MAX_RANKS:
        message = f"holds at most {MAX_RANKS} ranks, and the program has {program.num_ranks}"
        yield Excess((), message, "run the schedule in PyTorch or by MPI, which have no such limit")
    for where, found, most, what, remedy in _measured(program, runtime):
        if found > most:
            names = ("rank", "threadblock", "step")
            place = " of ".join(f"{name} {i}" for name, i in reversed([*zip(names, where, strict=False)]))
            message = f"holds at most {most} {what}, and {place or 'the program'} has {found}"
            yield Excess(where, message, f"lower the schedule with {remedy}")


def unfit_fusions(steps: Sequence[Step], announced: Sequence[bool]) -> Iterator[int]:
    """Yield the index of each sum that runtimes of MSCCL XML fuse with the next sum, but must not.

    They fuse successive sums into one slot, from one buffer, if the next one waits for nothing and none waits
    for the one before. All are then as long as the last one, and at most `MAX_FUSED` fit.

    - `steps`: Steps of a threadblock.
    - `announced`: For each step, True if it announces its end (``hasdep``), which prevents the fusion.
    """
    earlier, fused = -1, 0  # index of the step before, if that is a sum; number of sums fused so far
    for index, step in enumerate(steps):
        if step.operation == "nop":
            continue
        if earlier < 0 or announced[earlier] or step.depends or not _add_alike(steps[earlier], step):
            fused = 1
        elif fused == MAX_FUSED or step.count != steps[earlier].count:
            yield earlier
            fused = 1
        else:
            fused += 1
        earlier = index if step.operation == "reduce" else -1


def _add_alike(one: Step, other: Step) -> bool:
    """True if `other` is a sum into the same slot as the sum `one`, from the same buffer."""
    if other.operation != "reduce" or one.src is None or other.src is None:
        return False
    return one.dst == other.dst and one.src.buffer == other.src.buffer


def _measured(program: Program, runtime: Runtime) -> Iterator[tuple[tuple[int, ...], int, int, str, str]]:
    """Yield (place, number found, max number, name of the quantity, remedy) for every limited quantity."""
    fewer = "fewer num_channels or instances"
    joined = f"threadblocks='per-peer', or {fewer}"
    yield (), program.num_channels, runtime.max_channels, "channels", fewer
    for r, rank in enumerate(program.ranks):
        peers: dict[tuple[int, str], set[int]] = defaultdict(set)
        for threadblock in rank.threadblocks:
            for word, peer in (("send to", threadblock.send_to), ("receive from", threadblock.receive_from)):
                if peer is not None:
                    peers[threadblock.channel, word].add(peer)
        pairs = {(peer, channel) for (channel, _), known in peers.items() for peer in known}
        remedy = joined
        if len(pairs) > runtime.max_threadblocks:
            remedy = f"{fewer}, or use a sketch with fewer peers per rank"
        yield (r,), len(rank.threadblocks), runtime.max_threadblocks, "threadblocks per rank", remedy
        for (_, word), known in sorted(peers.items()):
            spread = f"channels='by-peer', num_channels={ceil(len(known) / MAX_PEERS) + 1}"
            yield (r,), len(known), MAX_PEERS, f"peers to {word} over one channel", spread
        weights = [sum(map(weight, threadblock.steps)) for threadblock in rank.threadblocks]
        elements = 1 + program.num_ranks + len(weights) + sum(weights)
        smaller = "fewer instances, or cut the data into fewer chunks"
        longest = max(rank.input_chunks, rank.output_chunks, rank.scratch_chunks)
        yield (r,), longest, MAX_CHUNKS, "chunks per buffer", smaller
        yield (r,), elements, MAX_ELEMENTS, "elements per rank, such as threadblocks and steps", smaller
        for t, total in enumerate(weights):
            spread = (
                f"channels='round-robin', num_channels={ceil(total / runtime.max_steps)} or more, leave "
                "split=False out, or cut the data into fewer chunks"
            )
            yield (r, t), total, runtime.max_steps, "steps per threadblock, with those that only wait", spread
    remedy = f"max_count={MAX_COUNT}"
    for r, rank in enumerate(program.ranks):
        for t, threadblock in enumerate(rank.threadblocks):
            for s, step in enumerate(threadblock.steps):
                if step.count > MAX_COUNT:
                    yield (r, t, s), step.count, MAX_COUNT, "chunks a step", remedy
                if step.depends and (last := max(step.depends)[0]) > MAX_DEPENDED_ID:
                    what = "as number of a threadblock that a step waits for"
                    yield (r, t, s), last, MAX_DEPENDED_ID, what, joined
