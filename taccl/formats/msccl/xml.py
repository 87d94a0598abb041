"""Programs as MSCCL XML, the file that the MSCCL runtime (a fork of NCCL) and TACCL's runtime load.

What is written follows what that runtime's parser reads and what its kernels do, which is stricter than XML.
Limits of the format are checked before anything is written. What a program's several dependencies of one step
become is a chain of steps that do nothing but wait. What is read is held to the same rules: see
`taccl.formats.msccl.reading`.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import accumulate

from taccl.arguments import Bytes, Natural, checked
from taccl.errors import ExportError
from taccl.formats.msccl import reading
from taccl.formats.msccl.reading import TYPES, load_msccl_xml, parse_msccl_xml
from taccl.formats.program_kind import kind_of, sizes_of, warn_of_split
from taccl.program.checks import parcels_of
from taccl.program.program import Program, RankProgram, Slot, Step, StepAddress, Threadblock
from taccl.program.split import split_threadblocks, weight

__all__ = ["dump_msccl_xml", "load_msccl_xml", "parse_msccl_xml"]

#: Of steps: the slot at the other end of a queue, whose step names one.
Mirrored = dict[StepAddress, Slot | None]

_TYPE_OF = {operation: kind for kind, operation in TYPES.items()}


@checked
def dump_msccl_xml(
    program: Program,
    *,
    min_bytes: Bytes | Natural | None = None,
    max_bytes: Bytes | Natural | None = None,
    split: bool | None = None,
    name: str = "",
) -> str:
    """The text of the file.

    - `min_bytes`, `max_bytes`: The sizes that the runtime uses the program for, from the one up to, but not,
      the other; default: those that it is meant for, which is from half to twice the size of a schedule that
      was lowered, or up to 128 MiB where it does not know them. It allocates ``max_bytes`` times the part
      that scratch has of the buffer.
    - `split`: Whether a threadblock of too many steps becomes several, which take turns: see
      `taccl.program.split`. Each has a channel of its own. Default: where needed, with a warning.
    - `name`: Default: the program's; other characters than letters, digits, ``_``, ``.`` and ``-`` become
      ``-``.
    """
    min_bytes, max_bytes = sizes_of(program, min_bytes, max_bytes, otherwise=2**27)
    kind = kind_of(program, "MSCCL XML")
    if split is not False:
        whole, program = program, split_threadblocks(program, max_steps=reading.MAX_STEPS)
        if split is None and program is not whole:
            warn_of_split(f"MSCCL XML holds at most {reading.MAX_STEPS} steps a threadblock")
    for excess in _excesses(program):
        raise ExportError(f"MSCCL XML {excess}")
    sources, targets = _mirrored(program)
    scratch = program.scratch_chunks
    attributes: dict[str, object] = {
        "name": re.sub(r"[^A-Za-z0-9_.-]+", "-", name or program.name)[: reading.LIMIT_NAME],
        "proto": program.protocol,
        "nchannels": program.num_channels,
        "nchunksperloop": kind.size,
        "ngpus": program.num_ranks,
        "coll": kind.name,
        "inplace": int(program.in_place),
        "outofplace": int(not program.in_place),
        "minBytes": min_bytes,
        "maxBytes": max_bytes,
    }
    if kind.root is not None:
        attributes["root"] = kind.root
    lines = [_tag("algo", attributes)]
    inputs, outputs = kind.buffer_chunks(program.num_ranks)
    for r, rank in enumerate(program.ranks):
        lines.append(
            "  " + _tag("gpu", {"id": r, "i_chunks": inputs, "o_chunks": outputs, "s_chunks": scratch})
        )
        lines += _rank_lines(r, rank, sources, targets)
        lines.append("  </gpu>")
    lines.append("</algo>")
    return "\n".join(lines) + "\n"


def _excesses(program: Program) -> Iterator[str]:
    """What the format cannot hold, and how to lower the schedule within it."""
    if program.num_channels > reading.MAX_CHANNELS:
        yield (
            f"holds at most {reading.MAX_CHANNELS} channels, and the program has {program.num_channels}; "
            "lower the schedule with fewer num_channels or instances"
        )
    for r, rank in enumerate(program.ranks):
        count = len(rank.threadblocks)
        if count > reading.MAX_THREADBLOCKS:
            pairs = {(tb.send_to, tb.channel) for tb in rank.threadblocks}
            pairs |= {(tb.receive_from, tb.channel) for tb in rank.threadblocks}
            remedy = "lower the schedule with threadblocks='per-peer'"
            if len(pairs) > reading.MAX_THREADBLOCKS:
                remedy = (
                    "let a rank talk to fewer others, by a sketch, or use fewer num_channels or instances"
                )
            yield (
                f"holds at most {reading.MAX_THREADBLOCKS} threadblocks a rank, and rank {r} has {count}; "
                f"{remedy}"
            )
        yield from _crowded_channels(r, rank)
        for t, threadblock in enumerate(rank.threadblocks):
            yield from _long_steps(r, t, threadblock)
        total = 1 + program.num_ranks + count
        total += sum(weight(step) for threadblock in rank.threadblocks for step in threadblock.steps)
        if total >= reading.LIMIT_ELEMENTS:
            yield (
                f"holds fewer than {reading.LIMIT_ELEMENTS} elements a rank, and rank {r} makes {total} of "
                "its threadblocks and steps; lower the schedule with fewer instances, or cut the data into "
                "fewer chunks"
            )
        for t, s in sorted({each for tb in rank.threadblocks for step in tb.steps for each in step.depends}):
            if t > reading.MAX_DEPENDED_ID:
                yield (
                    f"lets steps wait for threadblocks 0-{reading.MAX_DEPENDED_ID} only, and one of rank "
                    f"{r} waits for step {s} of threadblock {t}; lower the schedule with "
                    "threadblocks='per-peer', or fewer num_channels or instances"
                )


def _crowded_channels(r: int, rank: RankProgram) -> Iterator[str]:
    for word in ("send_to", "receive_from"):
        peers: dict[int, set[int]] = defaultdict(set)
        for threadblock in rank.threadblocks:
            peer = getattr(threadblock, word)
            if peer is not None:
                peers[threadblock.channel].add(peer)
        for channel, known in sorted(peers.items()):
            if len(known) > reading.MAX_PEERS:
                yield (
                    f"holds at most {reading.MAX_PEERS} peers a channel, and rank {r} has {len(known)} to "
                    f"{word.replace('_', ' ')} over channel {channel}; lower the schedule with "
                    f"channels='by-peer', num_channels={math.ceil(len(known) / reading.MAX_PEERS) + 1}"
                )


def _long_steps(r: int, t: int, threadblock: Threadblock) -> Iterator[str]:
    total = sum(map(weight, threadblock.steps))
    if total > reading.MAX_STEPS:
        yield (
            f"holds at most {reading.MAX_STEPS} steps a threadblock, and threadblock {t} of rank {r} makes "
            f"{total}, with those that only wait; leave split=False out, or lower the schedule with "
            f"channels='round-robin', num_channels={math.ceil(total / reading.MAX_STEPS)} or more, or cut "
            "the data into fewer chunks"
        )
    for s, step in enumerate(threadblock.steps):
        if step.count > reading.LIMIT_COUNT:
            yield (
                f"moves at most {reading.LIMIT_COUNT} chunks in a step, and step {s} of threadblock {t} of "
                f"rank {r} moves {step.count}; lower the schedule with max_count={reading.LIMIT_COUNT}"
            )


def _mirrored(program: Program) -> tuple[Mirrored, Mirrored]:
    """Where what a step receives comes from, and where what one sends is put."""
    sources: Mirrored = {}
    targets: Mirrored = {}
    for parcel in parcels_of(program):
        ours, theirs = program.step(parcel.send), program.step(parcel.receive)
        targets[parcel.send] = theirs.dst or theirs.src
        sources[parcel.receive] = ours.src or ours.dst
    return sources, targets


def _rank_lines(r: int, rank: RankProgram, sources: Mirrored, targets: Mirrored) -> list[str]:
    """The threadblocks of a rank; a step that waits for several others follows steps that do nothing else."""
    # Where each step is once those that only wait are counted.
    places = [[end - 1 for end in accumulate(map(weight, tb.steps))] for tb in rank.threadblocks]
    awaited = {each for tb in rank.threadblocks for step in tb.steps for each in step.depends}
    lines = []
    for t, threadblock in enumerate(rank.threadblocks):
        send = -1 if threadblock.send_to is None else threadblock.send_to
        receive = -1 if threadblock.receive_from is None else threadblock.receive_from
        lines.append(
            "    " + _tag("tb", {"id": t, "send": send, "recv": receive, "chan": threadblock.channel})
        )
        for s, step in enumerate(threadblock.steps):
            *others, last = [(other, places[other][index]) for other, index in step.depends] or [(-1, -1)]
            first = places[t][s] - len(others)
            lines += [_step_line(first + i, Step("nop"), None, None, wait) for i, wait in enumerate(others)]
            address = StepAddress(r, t, s)
            src = step.src or sources.get(address) or step.dst
            dst = step.dst or targets.get(address) or step.src
            lines.append(_step_line(places[t][s], step, src, dst, last, hasdep=(t, s) in awaited))
        lines.append("    </tb>")
    return lines


def _step_line(
    place: int, step: Step, src: Slot | None, dst: Slot | None, wait: tuple[int, int], *, hasdep: bool = False
) -> str:
    values = {
        "s": place, "type": _TYPE_OF[step.operation],
        "srcbuf": src.buffer[0] if src else "i", "srcoff": src.offset if src else -1,
        "dstbuf": dst.buffer[0] if dst else "o", "dstoff": dst.offset if dst else -1,
        "cnt": 0 if step.operation == "nop" else step.count,
        "depid": wait[0], "deps": wait[1], "hasdep": int(hasdep),
    }  # fmt: skip
    values |= {
        name: " ".join(tiles) for name, tiles in (("needs", step.needs), ("gives", step.gives)) if tiles
    }
    return "      " + _tag("step", values)[:-1] + "/>"


def _tag(name: str, attributes: Mapping[str, object]) -> str:
    return f"<{name} " + " ".join(f'{key}="{value}"' for key, value in attributes.items()) + ">"
