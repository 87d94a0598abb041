"""Collectives cut into pieces, each with its own order of network dimensions, so that loads are balanced.

On a product of dimensions, more pieces help than on other networks: some pieces cross one dimension while
others cross the next. A group of ranks, such as data-parallel ranks, balances loads over its own dimensions.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from taccl._internal.caching import cached
from taccl.baselines.spread import cut_chunks
from taccl.errors import InputError
from taccl.problem.making import make_problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taccl.problem.chunks import Chunk
    from taccl.problem.collective import Collective
    from taccl.schedule.schedule import Schedule
    from taccl.topology.topology import Topology

#: Collectives whose load on each dimension depends on the order of dimensions.
KINDS = ("allreduce", "reduce_scatter", "allgather")
#: Maximum number of transfers for which a collective is balanced.
_MOST_TRANSFERS = 500_000


@cached
def number_of_pieces(topology: Topology, collective: Collective, chunk_bytes: int) -> int:
    """Number of pieces into which to cut a collective for the earliest finish; 1 if it cannot be balanced.

    - `collective`: Collective of all ranks or of several groups, with one chunk per rank.
    - `chunk_bytes`: Size of a chunk of the collective before it is cut.
    """
    from taccl.synthesis.proposers.balanced import (
        collectives_of,
        cut_balanced,
    )  # imported late: ranks that run a step do not need these

    problem = replace(make_problem(topology, collective, chunk_bytes=chunk_bytes), chunks_open=True)
    try:
        if max(len(dims) for *_, dims in collectives_of(problem)) < 2:
            return 1
        cut = cut_balanced(problem, policy="lp", most_transfers=_MOST_TRANSFERS)
        return cut.collective.num_chunks // collective.num_chunks
    except InputError:
        return 1


def sends_along(
    topology: Topology, collective: Collective, chunk_bytes: int, firsts: Sequence[int]
) -> dict[str, np.ndarray[Any, Any]] | None:
    """Sends of all pieces of a collective, as arrays ordered by start; None if balancing does not apply.

    - `chunk_bytes`: Size of the chunks of a piece.
    - `firsts`: For each piece, number that its first chunk has in the step.
    """
    found = _balanced(topology, collective, chunk_bytes, len(firsts))
    if found is None:
        return None
    number_of = {_ends(chunk): number for number, chunk in enumerate(collective.chunks)}
    piece, chunks = Counter[int](), []
    for chunk in found.problem.collective.chunks:
        number = number_of[_ends(chunk)]
        chunks.append(firsts[piece[number]] + number)
        piece[number] += 1
    order = np.argsort(found.start, kind="stable")
    return {
        "chunk": np.array(chunks, np.int64)[found.chunk[order]],
        "link": found.link[order],
        "group": np.arange(len(order)),
        "reduce": found.reduce[order],
    }


def _ends(chunk: Chunk) -> tuple[object, ...]:
    return chunk.origins, chunk.destinations, chunk.root


@cached
def _balanced(topology: Topology, collective: Collective, chunk_bytes: int, pieces: int) -> Schedule | None:
    from taccl.synthesis.proposers.balanced import balanced_schedule

    problem = make_problem(topology, collective, chunk_bytes=chunk_bytes * pieces)
    try:
        whole = cut_chunks(problem, pieces) if pieces > 1 else problem
        return balanced_schedule(whole, most_transfers=_MOST_TRANSFERS)
    except InputError:
        return None
