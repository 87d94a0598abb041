"""Split long threadblocks into shorter ones that run one after another, for runtimes with a limit on steps.

Threadblocks that communicate are cut at the same points of a run, when no message is in flight between them.
Messages after a cut use new channels, so every queue still has one threadblock at each end. Each piece begins
when the piece before it has ended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from taccl._internal.graph_algorithms import graph_of
from taccl.errors import InputError
from taccl.program.checks import Parcel, match
from taccl.program.execution import running_order
from taccl.program.program import Block, Program, RankProgram, Step, StepAddress


def weight(step: Step) -> int:
    """Number of steps that replace a step if each may have only one dependency.

    These are the step itself, and a step that only waits for each further dependency.
    """
    return max(len(step.depends), 1)


def split_threadblocks(program: Program, *, max_steps: int) -> Program:
    """The program with at most `max_steps` steps per threadblock, by `weight`; unchanged if it fits."""
    weights = {block: sum(map(weight, threadblock.steps)) for block, threadblock in program.threadblocks()}
    if max(weights.values(), default=0) <= max_steps:
        return program
    parcels = match(program)
    groups = _groups(weights, parcels)
    ordered: dict[Block, list[StepAddress]] = defaultdict(list)
    for address in running_order(program, capacity=1):  # a run with as few messages in flight as possible
        ordered[groups[address[:2]]].append(address)
    piece_of: dict[StepAddress, int] = {}
    for group, addresses in ordered.items():
        cuts = [0]
        if any(weights[block] > max_steps for block, own in groups.items() if own == group):
            cuts = _cuts(program, addresses, parcels, max_steps - 1)
        for piece, (begin, end) in enumerate(zip(cuts, [*cuts[1:], len(addresses)], strict=True)):
            piece_of.update(dict.fromkeys(addresses[begin:end], piece))
    channels = program.num_channels
    return replace(
        program, ranks=tuple(_split_rank(r, rank, piece_of, channels) for r, rank in enumerate(program.ranks))
    )


def _groups(blocks: dict[Block, int], parcels: Sequence[Parcel]) -> dict[Block, Block]:
    """{threadblock: representative of its group}.

    Threadblocks of a group exchange messages, directly or through other threadblocks.
    """
    import networkx

    talks = graph_of(((parcel.send[:2], parcel.receive[:2]) for parcel in parcels), blocks)
    return {block: min(group) for group in networkx.connected_components(talks) for block in group}


def _cuts(
    program: Program, addresses: Sequence[StepAddress], parcels: Sequence[Parcel], limit: int
) -> list[int]:
    """Positions at which to cut a group's steps, in their order, so that no threadblock exceeds the limit."""
    inside = set(addresses)
    sends: dict[StepAddress, int] = defaultdict(int)
    receives: dict[StepAddress, int] = defaultdict(int)
    for parcel in parcels:
        if parcel.send in inside:
            sends[parcel.send] += parcel.chunks
            receives[parcel.receive] += parcel.chunks
    cuts, i = [0], 0
    while i < len(addresses):
        taken: dict[Block, int] = defaultdict(int)
        under_way, quiet = 0, cuts[-1]
        for i in range(cuts[-1], len(addresses)):
            r, t, _ = address = addresses[i]
            taken[r, t] += weight(program.step(address))
            if taken[r, t] > limit:
                break
            under_way += sends[address] - receives[address]
            if not under_way:
                quiet = i + 1
        else:
            return cuts
        if quiet == cuts[-1]:
            raise InputError(
                f"threadblock {t} of rank {r} has more than {limit} steps without an idle moment between "
                "them; lower the schedule with threadblocks='per-direction'",
                where="program",
            )
        cuts.append(quiet)
    return cuts


def _split_rank(r: int, rank: RankProgram, piece_of: dict[StepAddress, int], channels: int) -> RankProgram:
    # {(threadblock, step): (piece that contains the step, index of the step in the piece)}.
    # A piece is (threadblock, number of the piece in this threadblock).
    places: dict[tuple[int, int], tuple[tuple[int, int], int]] = {}
    pieces: dict[tuple[int, int], list[tuple[int, Step]]] = defaultdict(list)
    for t, threadblock in enumerate(rank.threadblocks):
        for s, step in enumerate(threadblock.steps):
            piece = (t, piece_of[StepAddress(r, t, s)])
            places[t, s] = (piece, len(pieces[piece]))
            pieces[piece].append((s, step))
        if not threadblock.steps:
            pieces[t, 0] = []
    waits: dict[tuple[int, int], list[tuple[tuple[int, int], int]]] = {}
    before: dict[int, tuple[int, int]] = {}
    for (t, p), steps in sorted(pieces.items()):
        for s, step in steps:
            waits[t, s] = [places[each] for each in step.depends]
        if t in before and steps:
            previous = before[t]
            waits[t, steps[0][0]].insert(0, (previous, len(pieces[previous]) - 1))
        before[t] = (t, p)
    awaited = {piece for mine in waits.values() for piece, _ in mine}
    numbers = {
        piece: n for n, piece in enumerate(sorted(pieces, key=lambda piece: (piece not in awaited, piece)))
    }
    threadblocks = tuple(
        replace(
            rank.threadblocks[t],
            steps=tuple(
                replace(step, depends=tuple((numbers[piece], index) for piece, index in waits[t, s]))
                for s, step in pieces[t, p]
            ),
            channel=rank.threadblocks[t].channel + p * channels,
        )
        for t, p in numbers
    )
    return replace(rank, threadblocks=threadblocks)
