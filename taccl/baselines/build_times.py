"""Estimates of the CPU seconds that baselines take to build."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from taccl.baselines.moves import least_transfers
from taccl.baselines.table import BASELINES, row_of

if TYPE_CHECKING:
    from taccl.problem.problem import Problem

#: Estimated max number of forms (variants) that a baseline builds; it keeps the best of them.
_MOST_FORMS = 11


def build_times(problem: Problem, most_transfers: int, *, whole: bool = True) -> dict[str, float]:
    """{name: estimated CPU seconds to build} of baselines with at most `most_transfers` transfers per phase.

    - `whole`: Some baselines build several forms (variants) and keep the best. True for the time of all
      forms, False for that of the first one.
    """
    per_link_s = 2e-5 * len(problem.topology.links)
    starting, ending = ends_of(problem)
    num_phases = phases_of(problem)
    one_shot = max(int(starting @ ending), least_transfers(problem))
    transfers = {
        name: one_shot if name == "one-shot" else num_arrivals(problem) * num_phases
        for name in BASELINES
        if row_of(name).competes
    }
    has_forms = whole and not are_pairs(problem)
    most = {name: row_of(name).forms_transfers if has_forms else 0 for name in transfers}
    return {
        name: per_link_s + row_of(name).build_s * max(count, min(most[name], _MOST_FORMS * count)) / 10_000
        for name, count in transfers.items()
        if count <= most_transfers * (1 if name == "one-shot" else num_phases)
    }


def phases_of(problem: Problem) -> int:
    """Number of phases: 2 if sums are made and then spread, as in an allreduce; else 1."""
    return 1 + (problem.collective.sums_up and not problem.collective.stays_at_roots)


def ends_of(problem: Problem) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Number of origins and number of destinations of each chunk, as two arrays (num_chunks,)."""
    collective = problem.collective
    starting, ending = (
        np.array([len(ranks) for ranks in ends.sets], dtype=np.int64)[ends.of_chunk]
        for ends in (collective.origin_sets, collective.destination_sets)
    )
    return starting, ending


def are_pairs(problem: Problem) -> bool:
    """True if each chunk goes from one rank to one rank, as in an alltoall."""
    starting, ending = ends_of(problem)
    return bool((starting == 1).all() and (ending == 1).all())


def num_arrivals(problem: Problem) -> int:
    """Approximate number of arrivals: sum over all chunks of the number of their destinations.

    A chunk that is a sum counts its contributions instead, if these are more. Relays count, too, if each
    chunk goes from one rank to one rank.
    """
    starting, ending = ends_of(problem)
    arrivals = int(np.maximum(ending, starting * problem.collective.sums_up).sum())
    return max(arrivals, least_transfers(problem))
