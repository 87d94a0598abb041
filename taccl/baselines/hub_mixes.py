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
from taccl._internal.deadline import NEVER
from taccl.baselines.hubs import PartPlan, soonest_hub_plan
from taccl.baselines.line_hubs import classes_of_links, distinct_images, images, late_plans, least_steps
from taccl.baselines.mesh_trees import MeshTrees
from taccl.baselines.mix_program import MixProgram

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taccl._internal.deadline import Deadline
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
#: Numbers of steps grow by the share `_GROWTH` (with trees, `_TREES_GROWTH`), but at least by 1, until
#: `_STEPS_AFTER` in a row give no earlier finish. Trees are first added to the least number that finishes at
#: most `_LATER` times as late as the best, as links that both add and copy in a step delay mixes of fewer
#: steps less.
_GROWTH, _TREES_GROWTH, _STEPS_AFTER, _LATER = 1 / 6, 1 / 10, 2, 1.02
#: `_SEARCH_SHARE`: max share of the time for plans and their best shares; the rest is for equal shares.
#: `_HUBS_SHARE`: max share of that time for hubs in more and more steps; the rest is for trees and shares.
_SEARCH_SHARE, _HUBS_SHARE = 0.7, 0.4
#: Numbers of equal shares into which the chunks are divided; each share follows one plan. Up to `_FEW_SHARES`
#: are tried even if time is up.
_SHARES, _FEW_SHARES = (3, 4, 6, 8, 12, 16, 24, 48, 96, 192, 384), 24
#: A mix with more transfers is preferred only if its finish is below this share of the other one's finish,
#: for each doubling of the number of transfers.
_PAYS = 0.998
#: Number of plans, with the least reduced costs, among which the shares are divided.
_MOST_CANDIDATES = 150
#: Max product of the numbers of steps and classes of links for which chunks may also follow trees (up to
#: about 4 s on 16 ranks, in 24 steps).
_MOST_ROWS_OF_TREES = 150
#: A link that would both add and copy in a step sends twice in it if the smaller load takes longer than this
#: multiple of the latency.
_TWICE = 0.5
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


def soonest_plan(
    problem: Problem,
    dims: Dimensions,
    *,
    mixes: bool = True,
    until: Deadline = NEVER,
    most_transfers: float = math.inf,
) -> PartPlan | None:
    """Plan of hubs with the earliest estimated finish; None if there is none, or there are too many ranks.

    - `mixes`: False for plans on tori only. Mixes on meshes need merged sends and chunks that may be cut.
    - `until`, `most_transfers`: As for `soonest_mix`.
    """
    plan = soonest_hub_plan(problem, dims)
    return plan or (soonest_mix(problem, dims, until, most_transfers) if mixes else None)


def soonest_mix(
    problem: Problem, dims: Dimensions, until: Deadline = NEVER, most_transfers: float = math.inf
) -> HubMix | None:
    """Mix with the earliest estimated finish; None if some dimension is a ring, or the mesh is too large.

    - `until`: Deadline after which the best mix so far is returned.
    - `most_transfers`: Max transfers of the mix, unless even the coarsest mix has more.
    """
    if dims.num_ranks > _MOST_RANKS or len(dims) > _MOST_DIMENSIONS:
        return None
    if any(each.kind != "line" and each.size > 2 for each in dims):
        return None
    best: HubMix | None = None
    search_until = until.sooner(_SEARCH_SHARE * until.left_s)
    for mixed in _mixes_of(problem.topology, dims, sum(problem.chunk_bytes)).soonest(search_until):
        if best is not None and best.finish_us < _PAYS * mixed.finish_us:
            break
        mix = _rounded(problem, dims, mixed, until, most_transfers)
        if mix is not None and (best is None or _PAYS * mix.finish_us <= best.finish_us):
            best = mix
    return best


@cached
def _mixes_of(topology: Topology, dims: Dimensions, num_bytes: int) -> _Mixes:
    """Search for the best mix."""
    return _Mixes(topology, dims, num_bytes)


class _Mixes:
    """Search for the best mix over the number of steps. A later call continues with what is complete."""

    def __init__(self, topology: Topology, dims: Dimensions, num_bytes: int) -> None:
        self.topology, self.dims = topology, dims
        self.us = _us_of_classes(topology, dims, num_bytes)
        self.trees = MeshTrees(dims, *classes_of_links(topology, dims)[:2])
        #: {number of steps: plans of hubs, and their least finish if a send may both add and copy}.
        self._hubs: dict[int, tuple[MeshPlans, float]] = {}
        #: The same with trees.
        self._trees: dict[int, tuple[MeshPlans, float]] = {}
        self._mixed: dict[tuple[int, bool], _Mixed | None] = {}

    def soonest(self, until: Deadline) -> list[_Mixed]:
        """Best mixes if shares need not be equal: one with trees, and one of hubs alone if it finishes first.

        - `until`: Deadline after which the best mixes so far are returned.
        """
        self._add_hubs(until.sooner(_HUBS_SHARE * until.left_s))
        self._add_trees(until)
        found, best_us = list[_Mixed](), math.inf
        for plans, trees in ((self._trees, self.trees), (self._hubs, None)):
            best = self._best(plans, best_us, trees, until)
            if best is not None:
                found.append(best)
                best_us = best.finish_us
        if until.has_passed:  # some trees may be missing
            self._trees.clear()
            self._mixed = {key: mixed for key, mixed in self._mixed.items() if not key[1]}
        return found

    def _best(
        self,
        plans: dict[int, tuple[MeshPlans, float]],
        most_us: float,
        trees: MeshTrees | None,
        until: Deadline,
    ) -> _Mixed | None:
        """Best mix of plans that finishes before `most_us`; None if there is none.

        - `plans`: {number of steps: plans, and their least finish if a send may both add and copy}.
        - `trees`: As for `_shares`.
        """
        best, best_us = None, most_us
        for steps, (some, us) in sorted(plans.items(), key=lambda each: each[1][1]):
            if us >= best_us or (best_us < math.inf and until.has_passed):
                break
            key = steps, trees is not None
            if key not in self._mixed:
                self._mixed[key] = _shares(some, self.us, trees, until)
            mixed = self._mixed[key]
            if mixed is not None and mixed.finish_us < best_us:
                best, best_us = mixed, mixed.finish_us
        return best

    def _add_hubs(self, until: Deadline) -> None:
        """Find the least finish of hubs for more and more steps."""
        steps, late, best_us = least_steps(self.topology, self.dims), 0, math.inf
        while late < _STEPS_AFTER and (best_us == math.inf or not until.has_passed):
            if self._hub_plans(steps) is None:
                break
            late = 0 if self._hubs[steps][1] < best_us else late + 1
            best_us = min(best_us, self._hubs[steps][1])
            steps += max(1, int(_GROWTH * steps))

    def _add_trees(self, until: Deadline) -> None:
        """Find the least finish with trees, for more and more steps, as long as it falls."""
        most, best_us = _MOST_ROWS_OF_TREES // len(self.us[0]), math.inf
        few = {steps: us for steps, (_, us) in self._hubs.items() if steps <= most}
        least_us = min(few.values(), default=math.inf)
        steps = next((steps for steps, us in few.items() if us <= _LATER * least_us), most + 1)
        while steps <= most and not until.has_passed:
            plans = self._hub_plans(steps)
            if plans is None:
                break
            if steps not in self._trees:
                latency = np.repeat(self.us[0][:, None], steps, axis=1)
                none = np.zeros(plans.loads.shape[1:], bool)
                program = MixProgram(plans.loads, latency, self.us[1])
                plans = self.trees.added(plans, none, program, until)
                found = program.solved()
                self._trees[steps] = plans, math.inf if found is None else found.finish_us
            if self._trees[steps][1] > _PAYS * best_us:
                break
            best_us = self._trees[steps][1]
            steps += max(1, int(_TREES_GROWTH * steps))

    def _hub_plans(self, steps: int) -> MeshPlans | None:
        """Plans of hubs with a number of steps; None if there are too many."""
        if steps not in self._hubs:
            plans = late_plans(self.topology, self.dims, steps)
            if plans is None:
                return None
            self._hubs[steps] = plans, self._finish_us(plans)
        return self._hubs[steps][0]

    def _finish_us(self, plans: MeshPlans) -> float:
        """Least finish if a send may both add and copy."""
        latency = np.repeat(self.us[0][:, None], plans.loads.shape[3], axis=1)
        found = MixProgram(plans.loads, latency, self.us[1]).solved()
        return math.inf if found is None else found.finish_us


def _rounded(
    problem: Problem, dims: Dimensions, mixed: _Mixed, until: Deadline, most_transfers: float
) -> HubMix | None:
    """Mix in equal shares; None if it has too many chunks.

    - `until`, `most_transfers`: As for `soonest_mix`.
    """
    plans, weights = mixed.plans, mixed.shares
    best, least_transfers = None, 0
    num_bytes, num_images = sum(problem.chunk_bytes), len(images(dims))
    us = _us_of_classes(problem.topology, dims, num_bytes)
    num_copies: dict[int, int] = {}
    for shares in _SHARES:
        if shares > _FEW_SHARES and until.has_passed:
            break
        counts, finish_us = _divided(plans.loads, weights, us, shares)
        numbers = []
        for j in np.flatnonzero(counts).tolist():
            if j not in num_copies:
                num_copies[j] = len(distinct_images(dims, plans.plans[j].sends(dims)))
            numbers.append((plans.plans[j], int(counts[j]) * num_images // num_copies[j]))
        least = math.gcd(*(number for _, number in numbers))
        mix = HubMix(tuple((plan, number // least) for plan, number in numbers), dims, finish_us)
        # Number of parts of the mix: each share has `num_images` of them.
        chunks = math.lcm(problem.collective.num_chunks, shares * num_images // least)
        transfers = 2 * (dims.num_ranks - 1) * chunks
        if transfers > _MOST_TRANSFERS or chunks > num_bytes or (best and transfers > most_transfers):
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
    plans: MeshPlans, us: tuple[Floats, Floats], trees: MeshTrees | None = None, until: Deadline = NEVER
) -> _Mixed | None:
    """Mix with the least finish; None if a linear program has no solution.

    A send either adds or copies. A link that would do both in a step sends twice in it if the smaller load
    is large (`_TWICE`). Otherwise it keeps the larger load, and plans with the other are left out of the next
    program. Plans with a share come first, then others by reduced cost.

    - `us`: As from `_us_of_classes`.
    - `trees`: Adds trees to the plans that are left.
    - `until`: Deadline after which no more trees are added.
    """
    alpha, beta = (each[:, None] for each in us)
    closed = np.zeros(plans.loads.shape[1:], bool)
    latency = np.repeat(alpha, plans.loads.shape[3], axis=1)
    while len(plans.loads):
        program = MixProgram(plans.loads, latency, us[1])
        if trees is not None and closed.any():
            plans = trees.added(plans, closed, program, until)
        loads, found = plans.loads, program.solved()
        if found is None:
            return None
        both = np.einsum("j,jkrs->krs", found.shares, loads)
        clash = (both > _NONE).all(axis=0) & (latency == alpha)
        if not clash.any():
            reduced = np.einsum("jkrs,rs->j", loads, found.prices) - found.plan_price
            likely = np.lexsort((reduced, -np.where(found.shares > _NONE, found.shares, 0)))[
                :_MOST_CANDIDATES
            ]
            return _Mixed(found.finish_us, plans.only(likely), found.shares[likely])
        twice = clash & (both.min(axis=0) * beta > _TWICE * alpha)
        latency += alpha * twice
        closed |= clash & ~twice & (both.argmin(axis=0) == np.arange(2)[:, None, None])
        plans = plans.only(np.flatnonzero(~(loads[:, closed] > 0).any(axis=1)))
    return None


def _us_of_classes(topology: Topology, dims: Dimensions, num_bytes: int) -> tuple[Floats, Floats]:
    """(alpha in us, us per send of all bytes) of each class of links, (num_classes,) each."""
    axis = classes_of_links(topology, dims)[2]
    alpha = np.array([float(each.alpha_us) for each in dims])
    beta = np.array([float(each.beta_us_per_mb) for each in dims]) * num_bytes / 1e6
    return alpha[axis], beta[axis]
