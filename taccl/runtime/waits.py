"""Why nothing moves: of all steps that wait, those that wait in vain, or for each other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from taccl.program.checks import queue_ends
from taccl.program.program import Queue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taccl.program.program import Program
    from taccl.runtime.report import Wait

#: (rank, threadblock).
Block = tuple[int, int]


def cause_first(program: Program, waits: Sequence[Wait]) -> tuple[tuple[Wait, ...], int]:
    """The waits, led by their cause, and how many of the first wait for each other.

    A step waits in vain if the threadblock at the other end of its queue has ended.
    """
    partners = _partners(program, waits)
    in_vain = [
        replace(each, reason=f"{each.reason}, but rank {each.peer} has nothing more to do there")
        for each in waits
        if each.peer is not None and _block(each) not in partners
    ]
    if in_vain:
        return (*in_vain, *(each for each in waits if each.peer is None or _block(each) in partners)), 0
    cycle = _cycle(partners)
    first = [each for block in cycle for each in waits if _block(each) == block]
    return (*first, *(each for each in waits if _block(each) not in cycle)), len(cycle)


def _block(wait: Wait) -> Block:
    return wait.address.rank, wait.address.threadblock


def _partners(program: Program, waits: Sequence[Wait]) -> dict[Block, Block]:
    """For each (rank, threadblock) that waits, the one that it waits for, where that waits, too."""
    senders, receivers = queue_ends(program)
    waiting = {_block(each) for each in waits}
    partners = {}
    for each in waits:
        rank, _ = block = _block(each)
        if each.depends_on is not None:
            others = [(rank, each.depends_on.threadblock)]
        else:
            assert each.peer is not None and each.channel is not None
            others = (
                senders.get(Queue(each.peer, rank, each.channel), [])
                if each.receives
                else receivers.get(Queue(rank, each.peer, each.channel), [])
            )
        partners.update({block: other for other in others if other in waiting})
    return partners


def _cycle(partners: dict[Block, Block]) -> list[Block]:
    """Threadblocks each of which waits for the next, and the last for the first; none if there are none."""
    import networkx

    try:
        return [block for block, _ in networkx.find_cycle(networkx.DiGraph(list(partners.items())))]
    except networkx.NetworkXNoCycle:
        return []
