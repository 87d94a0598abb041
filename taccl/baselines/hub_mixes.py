"""Allreduces on meshes by hubs of each line: parts of the chunks follow plans that overlap in time.

Each plan (`taccl.baselines.line_hubs`) leaves some links idle in some steps. A linear program chooses the
plans' shares of the chunks such that all steps together take the least time. A local search rounds them.
On small meshes, plans by trees of any shape are added (`taccl.baselines.mesh_trees`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from taccl._internal.caching import cached
from taccl.baselines.hubs import PartPlan, soonest_hub_plan
from taccl.baselines.line_hubs import classes_of_links, distinct_images, images, late_plans, least_steps
from taccl.baselines.mesh_trees import MeshTrees, Solved
from taccl.solvers.highs import minimise

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taccl.baselines.hubs import PlanSends
    from taccl.baselines.line_hubs import Floats, MeshPlan, MeshPlans
    from taccl.baselines.moves import Ints
    from taccl.problem.problem import Problem
    from taccl.topology.products import Dimensions
    from taccl.topology.topology import Topology

#: `_MOST_RANKS`: max ranks of a mesh for which mixes are made.
#: `_MOST_DIMENSIONS`: max dimensions of such a mesh.
#: `_MOST_TRANSFERS`: max transfers of a mix.
_MOST_RANKS, _MOST_DIMENSIONS, _MOST_TRANSFERS = 256, 4, 150_000
#: The number of steps of plans is raised by one until this many successive numbers give no earlier finish.
_STEPS_AFTER = 3
#: Numbers of equal shares into which the chunks are divided; each share follows one plan.
_SHARES = (3, 4, 6, 8, 12, 16, 24)
#: A mix with more transfers is preferred only if its finish is below this share of the other one's finish,
#: for each doubling of the number of transfers.
_PAYS = 0.995
#: Number of plans, with the least reduced costs, among which the shares are divided.
_MOST_CANDIDATES = 150
#: Max ranks of a mesh whose chunks may also follow trees (up to about 3 s). On larger meshes, equal shares of
#: many plans lose what trees gain.
_MOST_RANKS_OF_TREES = 16
#: Times in us, or shares, up to this are zero.
_NONE = 1e-9
#: Weight of uneven loads in the local search; it decides between mixes of equal finish.
_UNEVEN = 1e-3


class _Mixed(NamedTuple):
    """Plans, their best shares if these need not be equal, and the estimated finish in us."""

    finish_us: float
    plans: MeshPlans
    shares: Floats


class HubMix(NamedTuple):
    """Mix of plans on a mesh: parts of the chunks follow images of the plans.

    - `plans`: (plan, number of parts for each of its distinct images).
    - `finish_us`: Estimated finish.
    """

    plans: tuple[tuple[MeshPlan, int], ...]
    dims: Dimensions
    finish_us: float

    def __str__(self) -> str:
        return f"a mix of {len(self.plans)} plans" if len(self.plans) > 1 else "one plan"

    def groups(self) -> Iterator[tuple[PlanSends, list[Ints]]]:
        """Yield (sends, permutations of the ranks) for each plan."""
        for plan, number in self.plans:
            sends = plan.sends(self.dims)
            yield sends, distinct_images(self.dims, sends) * number

    @property
    def num_parts(self) -> int:
        """Number of parts of the chunks."""
        return sum(len(copies) for _, copies in self.groups())

    def parts_per_chunk(self, problem: Problem) -> int:
        """Least number of parts of each chunk with which all parts have equally many chunks."""
        number = self.num_parts
        return number // math.gcd(number, problem.collective.num_chunks)

    def num_transfers(self, problem: Problem) -> int:
        """Number of transfers in a problem: chunks times the mean number of transfers per chunk of a part."""
        groups = [(len(sends[0]), len(copies)) for sends, copies in self.groups()]
        each = sum(sends * copies for sends, copies in groups) / sum(copies for _, copies in groups)
        return round(each * problem.collective.num_chunks)

    def estimated_us(self, problem: Problem) -> float:
        """Estimated finish if steps follow one another, and a link merges all that it sends in a step."""
        return self.finish_us


def soonest_plan(problem: Problem, dims: Dimensions, *, mixes: bool = True) -> PartPlan | None:
    """Plan of hubs with the earliest estimated finish; None if there is none, or there are too many ranks.

    - `mixes`: False for plans on tori only. Mixes on meshes need merged sends and chunks that may be cut.
    """
    return soonest_hub_plan(problem, dims) or (soonest_mix(problem, dims) if mixes else None)


def soonest_mix(problem: Problem, dims: Dimensions) -> HubMix | None:
    """Mix with the earliest estimated finish; None if some dimension is a ring, or the mesh is too large."""
    if dims.num_ranks > _MOST_RANKS or len(dims) > _MOST_DIMENSIONS:
        return None
    if any(each.kind != "line" and each.size > 2 for each in dims):
        return None
    best: HubMix | None = None
    for mixed in _soonest(problem.topology, dims, sum(problem.chunk_bytes)):
        mix = _rounded(problem, dims, mixed.plans, mixed.shares)
        if mix is not None and (best is None or mix.finish_us < _PAYS * best.finish_us):
            best = mix
    return best


@cached
def _soonest(topology: Topology, dims: Dimensions, num_bytes: int) -> list[_Mixed]:
    """Best mix of hub plans alone, with unequal shares; also the best one with trees, if that is faster."""
    finish_us, late, found = math.inf, 0, dict[int, _Mixed]()
    steps = least_steps(topology, dims)
    while late <= _STEPS_AFTER and (plans := late_plans(topology, dims, steps)) is not None:
        late += finish_us < math.inf
        mixed = _shares(topology, dims, plans, num_bytes)
        if mixed is not None:
            found[steps] = mixed
            if mixed.finish_us < finish_us:
                finish_us, late = mixed.finish_us, 0
        steps += 1
    if not found:
        return []
    best = min(found.values(), key=lambda mixed: mixed.finish_us)
    if dims.num_ranks > _MOST_RANKS_OF_TREES:
        return [best]
    with_trees = _with_trees(topology, dims, found, num_bytes)
    return [best] if with_trees is best else [best, with_trees]


def _with_trees(topology: Topology, dims: Dimensions, found: dict[int, _Mixed], num_bytes: int) -> _Mixed:
    """Best mix in which chunks may also follow trees.

    More steps than for the best mix without trees are tried as long as the finish falls, if a send may both
    add and copy.

    - `found`: {number of steps: best mix without trees}.
    """
    alpha, beta = _us_of_classes(topology, dims, num_bytes)
    trees = MeshTrees(dims, *classes_of_links(topology, dims)[:2])
    steps = min(found, key=lambda number: found[number].finish_us)
    best, last_us, grown = found[steps], math.inf, []
    while steps in found:
        plans = found[steps].plans
        plans = trees.added(
            plans, np.zeros(plans.loads.shape[1:], bool), lambda loads: _solved(loads, alpha, beta)
        )
        each = _solved(plans.loads, alpha, beta)
        if each is None or each.finish_us > _PAYS * last_us:
            break
        last_us = each.finish_us
        grown.append((last_us, plans))
        steps += 1
    for least_us, plans in reversed(grown):
        if least_us < best.finish_us:
            best = _shares(topology, dims, plans, num_bytes, trees, best.finish_us) or best
    return best


def _rounded(problem: Problem, dims: Dimensions, plans: MeshPlans, weights: Floats) -> HubMix | None:
    """Mix in equal shares; None if it has too many chunks.

    - `weights`: (num_plans,) best shares of the plans if they need not be equal.
    """
    best, least_transfers = None, 0
    num_bytes, num_images = sum(problem.chunk_bytes), len(images(dims))
    us = _us_of_classes(problem.topology, dims, num_bytes)
    for shares in _SHARES:
        counts, finish_us = _divided(plans.loads, weights, us, shares)
        numbers = []
        for j in np.flatnonzero(counts).tolist():
            copies = distinct_images(dims, plans.plans[j].sends(dims))
            numbers.append((plans.plans[j], int(counts[j]) * num_images // len(copies)))
        least = math.gcd(*(number for _, number in numbers))
        mix = HubMix(tuple((plan, number // least) for plan, number in numbers), dims, finish_us)
        chunks = math.lcm(problem.collective.num_chunks, mix.num_parts)
        transfers = 2 * (dims.num_ranks - 1) * chunks
        if transfers > _MOST_TRANSFERS or chunks > num_bytes:
            continue
        pays = 1.0 if best is None else _PAYS ** max(0.0, math.log2(transfers / least_transfers))
        if best is None or finish_us < pays * best.finish_us:
            best, least_transfers = mix, transfers
    return best


def _divided(loads: Floats, weights: Floats, us: tuple[Floats, Floats], shares: int) -> tuple[Ints, float]:
    """(number of shares of each plan, estimated finish in us), by local search from rounded shares.

    - `loads`: (num_plans, 2, num_classes, num_steps), as in `MeshPlans`.
    - `weights`: (num_plans,) best shares of the plans if they need not be equal.
    - `us`: As from `_us_of_classes`.
    """
    alpha, beta = (each[:, None] for each in us)
    scaled = loads * beta / shares

    def steps_us(times: Floats) -> Floats:
        """Time of each step; additions and copies over one link are two sends."""
        num_sends = np.maximum(1, (times > _NONE).sum(axis=-3))
        found: Floats = (times.sum(axis=-3) + alpha * num_sends).max(axis=-2)
        return found

    def costs(base: Floats) -> Floats:
        """Finish with one more share of each plan, plus a small penalty for uneven loads."""
        times = base + scaled
        uneven = (times.sum(axis=1) ** 2).sum(axis=(1, 2))
        found: Floats = steps_us(times).sum(axis=-1) + _UNEVEN * uneven
        return found

    counts = np.floor(shares * weights + _NONE).astype(np.int64)
    total = np.einsum("j,jkrs->krs", counts, scaled)
    for _ in range(shares - int(counts.sum())):
        j = int(costs(total).argmin())
        counts[j] += 1
        total = total + scaled[j]
    best = math.inf
    while True:
        moves = []
        for j in np.flatnonzero(counts).tolist():
            each = costs(total - scaled[j])
            i = int(each.argmin())
            moves.append((float(each[i]), j, i))
        least, j, i = min(moves)
        if least >= best - _NONE or i == j:
            break
        best = least
        counts[j] -= 1
        counts[i] += 1
        total = np.einsum("j,jkrs->krs", counts, scaled)
    return counts, float(steps_us(total).sum())


def _shares(
    topology: Topology,
    dims: Dimensions,
    plans: MeshPlans,
    num_bytes: int,
    trees: MeshTrees | None = None,
    limit_us: float = math.inf,
) -> _Mixed | None:
    """Mix with the least finish; None if a linear program has no solution.

    A send either adds or copies. So a link that would do both in a step keeps the larger load, and plans with
    the other are left out of the next program. Plans with a share come first, then others by reduced cost.

    - `trees`: Adds trees to the plans that are left.
    - `limit_us`: None is also returned if the finish is not below this limit.
    """
    alpha, beta = _us_of_classes(topology, dims, num_bytes)
    closed = np.zeros(plans.loads.shape[1:], bool)
    while len(plans.loads):
        if trees is not None and closed.any():
            plans = trees.added(plans, closed, lambda loads: _solved(loads, alpha, beta))
        loads = plans.loads
        found = _solved(loads, alpha, beta)
        if found is None or found.finish_us >= limit_us:
            return None
        both = np.einsum("j,jkrs->krs", found.shares, loads)
        clash = (both > _NONE).all(axis=0)
        if not clash.any():
            reduced = np.einsum("jkrs,rs->j", loads, found.prices) - found.plan_price
            likely = np.lexsort((reduced, -np.where(found.shares > _NONE, found.shares, 0)))[
                :_MOST_CANDIDATES
            ]
            return _Mixed(found.finish_us, plans.only(likely), found.shares[likely])
        closed |= clash & (both.argmin(axis=0) == np.arange(2)[:, None, None])
        plans = plans.only(np.flatnonzero(~(loads[:, closed] > 0).any(axis=1)))
    return None


def _solved(loads: Floats, alpha: Floats, beta: Floats) -> Solved | None:
    """Best shares of plans if a send may both add and copy; None if the linear program has no solution.

    The time of a step is at least alpha plus the bytes of each link times its beta.
    """
    count, _, num_classes, num_steps = loads.shape
    num_rows = num_classes * num_steps
    row = np.arange(num_rows)
    plan, _, kind, step = at = np.nonzero(loads)
    entries = (
        np.concatenate((kind * num_steps + step, row, np.full(count, num_rows))),
        np.concatenate((plan, count + row % num_steps, np.arange(count))),
        np.concatenate((loads[at] * beta[kind], np.full(num_rows, -1.0), np.ones(count))),
    )
    cost = np.concatenate((np.zeros(count), np.ones(num_steps)))
    found = minimise(cost, entries, (np.repeat(-alpha, num_steps), [1.0]), method="simplex")
    if found is None:
        return None
    prices = -found.duals[:num_rows].reshape(num_classes, num_steps) * beta[:, None]
    return Solved(found.objective, found.values[:count], prices, float(found.duals[num_rows]))


def _us_of_classes(topology: Topology, dims: Dimensions, num_bytes: int) -> tuple[Floats, Floats]:
    """(alpha in us, us per send of all bytes) of each class of links, (num_classes,) each."""
    axis = classes_of_links(topology, dims)[2]
    alpha = np.array([float(each.alpha_us) for each in dims])
    beta = np.array([float(each.beta_us_per_mb) for each in dims]) * num_bytes / 1e6
    return alpha[axis], beta[axis]
