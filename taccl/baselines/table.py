"""Table of baselines with one row each, from which names, order and estimated build times derive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from taccl.baselines.buckets import bucket
from taccl.baselines.chunking import are_pairs, soonest_cut_us, starts_of
from taccl.baselines.direct import one_shot, pairwise
from taccl.baselines.hierarchical import dimension_balanced, hierarchical
from taccl.baselines.in_network import in_network
from taccl.baselines.moves import least_transfers
from taccl.baselines.multiplying import MOST_TRANSFERS, multiplying
from taccl.baselines.rails import estimated_us
from taccl.baselines.recursive import MOST_SPREAD, bine, recursive, swing
from taccl.baselines.ring import ring
from taccl.baselines.servers import servers
from taccl.baselines.tree import tree
from taccl.schedule.combine import reduce_phase

if TYPE_CHECKING:
    from taccl.problem.problem import Problem
    from taccl.schedule.schedule import Schedule

#: Value of `Baseline.place` for baselines that are seldom the fastest.
_LAST = 100


class Baseline(NamedTuple):
    """Row of the table of baselines: a baseline, and data about it for searches and pictures.

    - `make`: Function from a problem to a schedule.
    - `label`: Name in pictures; empty to use its key in the table.
    - `turn`: Order in which `taccl.baselines.best` builds baselines, ascending; quick ones first.
    - `place`: Position among baselines sorted by how often they are the fastest; 0 is the most often.
    - `grid_place`: `place` on tori and meshes, if it differs there.
    - `small_torus_place`: `place` for small messages on tori of several dimensions, if it differs there.
    - `pairs_place`: `place` for chunks that each go from one rank to one other, if it differs there.
    - `build_s`: Approximate CPU seconds to build and verify 10,000 transfers.
    - `pairs_s`: `build_s` for chunks that each go from one rank to one other, if it differs there.
    - `forms_transfers`: Max transfers of all forms (variants) together, if the baseline builds several and
      keeps the best; 0 if it builds only one. If each chunk goes from one rank to one other, few forms
      differ, so the build time of one form is assumed.
    - `competes`: False if searches do not propose it, or only if servers update sums (`serves`).
    - `serves`: True if its sums are made by servers, which may update them.
    - `names_contributions`: True if its sends name the contributions that they carry, which takes longer to
      build.
    - `finer_chunks`: Collectives for which finer chunks usually help, on tori or several nodes: ``"root"``
      (those with a root), ``"all"`` (the others), ``"both"``, or empty for none.
    - `floods`: Number of forms in which all chunks are first sent to all ranks, and then those left out that
      no destination needs.
    - `spreads`: True if finer chunks of few ranks take links of all ranks of a node, unlike whole chunks.
    """

    make: Callable[..., Schedule]
    label: str = ""
    turn: int = 0
    place: int = _LAST
    grid_place: int | None = None
    small_torus_place: int | None = None
    pairs_place: int | None = None
    build_s: float = 0.3
    pairs_s: float | None = None
    forms_transfers: int = 0
    competes: bool = True
    serves: bool = False
    names_contributions: bool = False
    finer_chunks: Literal["", "root", "all", "both"] = ""
    floods: int = 0
    spreads: bool = False


TABLE: dict[str, Baseline] = {
    "ring": Baseline(ring, place=5, build_s=0.4),
    "tree": Baseline(tree, "double binary tree", turn=-3, place=4, build_s=0.14, finer_chunks="root"),
    "recursive": Baseline(recursive, "halving-doubling", place=1, pairs_place=10, build_s=0.14, floods=2),
    "swing": Baseline(swing, place=8, build_s=0.12, floods=1),
    "bine": Baseline(
        bine, "bine trees", place=7, grid_place=-1, small_torus_place=-4, build_s=0.14, floods=2
    ),
    "bucket": Baseline(bucket, place=6, grid_place=-2, build_s=0.12, finer_chunks="all"),
    "hierarchical": Baseline(
        hierarchical, place=2, build_s=0.45, pairs_s=0.15, finer_chunks="both", spreads=True
    ),
    "dimension-balanced": Baseline(dimension_balanced, pairs_s=0.02, finer_chunks="all"),
    "pairwise": Baseline(pairwise, turn=-1, place=3, pairs_place=1, build_s=0.1, pairs_s=0.03),
    "one-shot": Baseline(one_shot, turn=1, place=9, build_s=0.12, names_contributions=True),
    "multiplying": Baseline(
        multiplying,
        "recursive multiplying",
        turn=-2,
        place=0,
        small_torus_place=-3,
        build_s=0.6,
        pairs_s=0.15,
        forms_transfers=MOST_TRANSFERS,
        names_contributions=True,
    ),  # fmt: skip
    "in-network": Baseline(in_network, "in the network", competes=False),
    "servers": Baseline(servers, "at servers", place=-1, competes=False, serves=True),
}

#: Row for a baseline that was added to `BASELINES` but not to the table; its `make` is not used.
_DEFAULT = Baseline(ring)
#: {name: function from a problem to a schedule}.
BASELINES: dict[str, Callable[..., Schedule]] = {name: each.make for name, each in TABLE.items()}


def row_of(name: str) -> Baseline:
    """Row of a baseline; default values for one that is not in the table."""
    return TABLE.get(name, _DEFAULT)


def competes_in(problem: Problem, name: str) -> bool:
    """True if searches propose the baseline of the given name for the problem.

    Servers update only sums in which no send names the contributions that it carries.
    """
    row = row_of(name)
    if not problem.collective.updates:
        return row.competes
    return row.serves or (row.competes and not row.names_contributions)


def label_of(name: str) -> str:
    """Name of a baseline in pictures."""
    return row_of(name).label or name


def soonest_us(name: str, whole: Schedule) -> float:
    """Estimated earliest finish in us of a baseline in finer chunks, given its schedule in whole chunks."""
    found, problem = soonest_cut_us(whole), whole.problem
    copies = reduce_phase(problem) if problem.collective.sums_up else problem
    if row_of(name).spreads and len(set(starts_of(copies).tolist())) < problem.topology.num_ranks:
        finer_us = estimated_us(replace(problem, chunks_open=True))
        return min(finer_us, found / max(map(len, problem.topology.ranks_of_node)))
    return found


#: `_MOST_FORMS`: estimated max number of forms (variants) that a baseline builds; it keeps the best of them.
#: `_FLOOD_S`: CPU seconds per 10,000 transfers that are left out again (`Baseline.floods`).
_MOST_FORMS, _FLOOD_S = 11, 0.004


def build_times(problem: Problem, most_transfers: int, *, whole: bool = True) -> dict[str, float]:
    """{name: estimated CPU seconds to build} of baselines with at most `most_transfers` transfers per phase.

    - `whole`: Some baselines build several forms (variants) and keep the best. True for the time of all
      forms, False for that of the first one.
    """
    per_link_s = 8e-6 * len(problem.topology.links)
    starting, ending = problem.collective.origin_sets.sizes, problem.collective.destination_sets.sizes
    num_phases = phases_of(problem)
    others = num_arrivals(problem) * num_phases
    transfers = dict.fromkeys((name for name in BASELINES if competes_in(problem, name)), others)
    if "one-shot" in transfers:
        transfers["one-shot"] = max(int(starting @ ending), least_transfers(problem))
    is_pairs = are_pairs(problem)
    has_forms = whole and not is_pairs
    most = {name: row_of(name).forms_transfers if has_forms else 0 for name in transfers}
    spread = problem.collective.num_chunks * problem.topology.num_ranks
    left_out = max(0, spread - others) if spread <= MOST_SPREAD else 0
    each_s = {
        name: row.pairs_s if is_pairs and row.pairs_s is not None else row.build_s
        for name, row in zip(transfers, map(row_of, transfers), strict=True)
    }
    return {
        name: per_link_s
        + each_s[name] * max(count, min(most[name], _MOST_FORMS * count)) / 10_000
        + row_of(name).floods * _FLOOD_S * left_out / 10_000
        for name, count in transfers.items()
        if count <= most_transfers * (1 if name == "one-shot" else num_phases)
    }


def phases_of(problem: Problem) -> int:
    """Number of phases: 2 if sums are made and then spread, as in an allreduce; else 1."""
    return 1 + (problem.collective.sums_up and not problem.collective.stays_at_roots)


def num_arrivals(problem: Problem) -> int:
    """Approximate number of arrivals: sum over all chunks of the number of their destinations.

    A chunk that is a sum counts its contributions instead, if these are more. Relays count, too, if each
    chunk goes from one rank to one rank.
    """
    starting, ending = problem.collective.origin_sets.sizes, problem.collective.destination_sets.sizes
    arrivals = int(np.maximum(ending, starting * problem.collective.sums_up).sum())
    return max(arrivals, least_transfers(problem))
