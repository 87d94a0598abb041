"""Allreduces on meshes by mixes of trees: each share of the data has its own trees and steps of their sends.

A share follows trees to a few hubs in the middle of the mesh or elsewhere. These exchange their sums, and
trees lead from them. Sends wait such that all links are busy in most steps (`taccl.baselines.tree_kernel`).
At first all links take the same time for a step; messages at corners may take several steps. Later, links
drift apart: one may send few long messages, others many short ones (`taccl.baselines.tree_times`).
Each share has an image under every symmetry of the mesh, so that the links of a class are loaded equally.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from taccl._internal.arrays import distinct
from taccl._internal.caching import cached
from taccl._internal.deadline import NEVER, busy_factor
from taccl._internal.kernels import is_compiled
from taccl.baselines.hubs import PartPlan, soonest_hub_plan
from taccl.baselines.mesh_images import classes_of_links, distinct_images, images, links_of_ranks
from taccl.baselines.tree_cores import at_ends, cores_of, divided
from taccl.baselines.tree_kernel import Rules, Sweeps, reassign
from taccl.baselines.tree_plans import TreeMix
from taccl.baselines.tree_times import Cores, Grid, Shares
from taccl.problem.making import make_problem
from taccl.topology.fabrics import mesh
from taccl.topology.recognise import grid_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from taccl._internal.deadline import Deadline
    from taccl.baselines.hubs import PlanSends
    from taccl.problem.problem import Problem
    from taccl.topology.products import Dimensions
    from taccl.topology.topology import Topology

#: `_MOST_RANKS`: max ranks of a mesh for which mixes are made.
#: `_MOST_DIMENSIONS`: max dimensions of a mesh for which mixes are made.
_MOST_RANKS, _MOST_DIMENSIONS = 256, 4
#: Max transfers of a mix (about 1.2 s to build and verify).
MOST_TRANSFERS = 310_000
#: `_FINER`: ratio of each number of shares to the one before, while more shares shorten the mix.
#: `_MOST_PARTS`: max number of shares, multiplied by the number of images (symmetric copies) of each.
#: `_MOST_UNEVEN`: approximate share of the time that the first number of shares may lose by uneven loads.
_FINER, _MOST_PARTS, _MOST_UNEVEN = 4, 8000, 0.5
#: Max ratio of finishes, per doubling of transfers, at which a mix with more transfers is preferred.
_PAYS = 0.998
#: `_GROWTH`: relative change from one number of steps to the next to try; the change is at least 1.
#: `_LIKELY`: factor of the estimated number of steps, fitted to meshes of 16 and 64 ranks.
_GROWTH, _LIKELY = 1 / 8, 0.6
#: Max span: number of steps of a message at a corner, where all data pass over few links (our choice).
_MOST_SPAN = 4
#: Sweeps over all shares: `_BRIEF` to compare numbers of shares and steps, `_LONG` for the best ones.
#: `_DRIFTING`: number of last sweeps, in which links drift apart.
#: `_FEW_SENDS`: max shares * steps * ranks (about 0.2 s) to give several numbers of steps long searches, and
#: to let links drift apart to the end.
_BRIEF, _LONG, _DRIFTING, _FEW_SENDS = 6, 24, 24, 200_000
#: `_BRIEF_SENDS`: max shares * steps * ranks (about 0.3 s) to search with wide blocks of hubs, too.
_BRIEF_SENDS = 10_000
#: Sharpness of the smooth maximum over links in the first sweep, and in the last of `_BRIEF` and of `_LONG`.
#: The unit of sharpness is 1 over the mean time of a link's data in a step.
#: `_DRIFT_SHARPNESS`: sharpness in the first and the last sweep in which links drift apart.
_SHARPNESS, _DRIFT_SHARPNESS = (8.0, 60.0, 240.0), (3.0, 30.0)
#: A link that both adds and copies in a step sends twice in it, which costs a latency more.
#: `_FREE`: share of the sweeps, the first ones, that ignore the extra latency of adding and copying.
#: `_CLASHES`: some long searches let such a link drop the rarer of adds and copies in the step,
#: if these take less than this number of latencies.
_FREE, _CLASHES = 0.4, 0.5
#: Links drift apart from the best number of steps, or from a share of it, whose steps may be divided before:
#: (share of the number, number of parts).
#: `_DRIFT_GAIN`: max ratio of finishes at which no long search follows, as it gains less (about 1 %).
#: `_HOPELESS`: share of the sweeps after which these end if the finish is above `_PAYS` times the best one.
#: `_MOST_WORK`: max square of the number of shares, times ranks, while links drift apart (0.3 s per sweep).
#: `_FEW_WORK`: same, to compare `_DRIFTS`, from the best long search, and if drifting gained that much.
#: `_RESTART_WORK`: same, of all restarts of a drift with other random numbers (0.6 s).
#: `_RESTARTS`: max restarts.
_DRIFTS, _DRIFT_GAIN, _HOPELESS = ((1.0, 2), (0.8, 2), (1.0, 1)), 0.98, 1 / 3
_MOST_WORK, _FEW_WORK, _RESTART_WORK, _RESTARTS = 8_000_000, 1_100_000, 1_400_000, 20
#: Max share of the time to choose the numbers of shares and steps; links then drift apart, which gains more.
_CHOICE_SHARE = 0.4
#: `_TRIES`: changes tried with each tree in a sweep.
#: `_OTHERS`: a share tries its own core, and each other core with probability 1 / `_OTHERS`.
_TRIES, _OTHERS = 40, 20
#: CPU seconds to compile the kernel, if that was not done before.
_COMPILE_S = 4.0


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
) -> TreeMix | None:
    """Mix with the earliest finish.

    None if some dimension is a ring, the mesh is too large, or there is no time to compile the kernel.

    - `until`: Deadline after which the best mix so far is returned.
    - `most_transfers`: Max transfers of the mix, unless even the coarsest mix has more.
    """
    if dims.num_ranks > _MOST_RANKS or len(dims) > _MOST_DIMENSIONS:
        return None
    if any(each.kind != "line" and each.size > 2 for each in dims):
        return None
    if not is_compiled(reassign) and until.left_s < _COMPILE_S * busy_factor():
        return None
    most_transfers = min(most_transfers, MOST_TRANSFERS)
    args = problem.topology, dims, sum(problem.chunk_bytes), problem.collective.num_chunks
    mixes = _mixes_of(*args, wide=False)
    found = mixes.soonest(until, most_transfers)
    if found is not None and mixes.is_brief and len(dims) > 1 and not until.has_passed:
        other = _mixes_of(*args, wide=True).soonest(until, most_transfers)
        if other is not None and other.finish_us < found.finish_us:
            return other
    return found


def compile_mixes() -> None:
    """Compile the kernels by running them once on two ranks."""
    pair = mesh(2)
    dims = grid_of(pair)
    assert dims is not None, "a line is a mesh"
    soonest_mix(make_problem(pair, "allreduce", size_bytes=2), dims)


@cached
def _mixes_of(topology: Topology, dims: Dimensions, num_bytes: int, num_chunks: int, *, wide: bool) -> _Mixes:
    """Search for the best mix."""
    return _Mixes(topology, dims, num_bytes, num_chunks, wide=wide)


class _Found(NamedTuple):
    """Shares with their trees and cores, and their finish."""

    finish_us: float
    number: int
    steps: int
    span: int
    shares: Shares
    cores: Cores


class _Mixes:
    """Search for the best mix over the numbers of shares and steps. Later calls reuse what is complete.

    - `num_bytes`, `num_chunks`: Total bytes of the sums, and number of their chunks.
    - `wide`: As in `cores_of`.
    """

    def __init__(
        self, topology: Topology, dims: Dimensions, num_bytes: int, num_chunks: int, *, wide: bool = False
    ) -> None:
        self.dims, self.num_bytes, self.num_chunks = dims, num_bytes, num_chunks
        table, sizes, axis = classes_of_links(topology, dims)
        self.near, self.kind = links_of_ranks(dims, table)
        alpha = np.array([float(each.alpha_us) for each in dims])
        beta = np.array([float(each.beta_us_per_mb) for each in dims]) * num_bytes / 1e6
        #: Latency in us of each class of links, and us per send of all bytes over one of its links.
        self.alpha, self.beta = alpha[axis], beta[axis] / sizes
        #: Mean us per link of the data of all sends.
        self.busy_us = 2 * (dims.num_ranks - 1) * float((self.beta * sizes).mean()) / int(sizes.sum())
        self.cores, self.least_steps = cores_of(dims, self.near, self.kind, wide=wide)
        #: True for classes of links at corners.
        self.at_ends = at_ends(self.near, self.kind)
        self._found: dict[tuple[int, int, int, int, bool], _Found | None] = {}
        self._drifted: dict[tuple[float, int, int, int, int | None], _Found] = {}
        #: Number of shares of the coarsest mix.
        self.least_number = num_chunks // math.gcd(num_chunks, len(images(dims)))
        #: True if the latest search had so few shares that another one takes little time.
        self.is_brief = False

    def soonest(self, until: Deadline, most_transfers: float) -> TreeMix | None:
        """Best mix; None if even the coarsest one has too many chunks.

        - `until`, `most_transfers`: As for `soonest_mix`.
        """
        best, before, numbers = None, list[_Found](), [*self._numbers(most_transfers)]
        chosen_by = until.sooner(_CHOICE_SHARE * until.left_s)
        while len(numbers) > 1 and self._uneven(numbers[0]) > _MOST_UNEVEN:
            del numbers[0]
        for number in numbers:
            if best is not None and (chosen_by.has_passed or self._gains_too_little(number, before)):
                break
            found = self._over_spans(number, best, chosen_by)
            if found is None:
                break
            pays = 1.0 if best is None else _PAYS ** math.log2(number / best.number)
            if best is not None and found.finish_us >= pays * best.finish_us:
                break
            best = found
            before.append(best)
        if best is None:
            return None
        self.is_brief = best.number * best.steps * len(self.near) <= _BRIEF_SENDS
        return self._mix(self._improved(best, [each.number for each in before], until))

    def _gains_too_little(self, number: int, before: Sequence[_Found]) -> bool:
        """True if the last shares gained little, and links with that number of shares do not drift apart."""
        gains = [each.finish_us for each in before[-2:]]
        return len(gains) > 1 and gains[1] > _DRIFT_GAIN * gains[0] and self._work(number) > _MOST_WORK

    def _numbers(self, most_transfers: float) -> Iterator[int]:
        """Yield numbers of shares, each finer than the one before."""
        num_images, least = len(images(self.dims)), self.least_number
        per_share = 2 * (self.dims.num_ranks - 1) * num_images
        finest = min(most_transfers / per_share, self.num_bytes / num_images, _MOST_PARTS / num_images)
        most = int(finest / least) * least
        if least * per_share > MOST_TRANSFERS or least * num_images > self.num_bytes:
            return
        number = least
        yield number
        while number < most:
            number = number * _FINER if 2 * number * _FINER <= most else most
            yield number

    def _likely_steps(self, number: int) -> int:
        """Estimate of the best number of steps.

        With k steps, data flow in all but the first and last ones, which are as many as the `least_steps`.
        Each step takes the latency, and uneven numbers of shares per link.
        """
        waits_us = float(self.alpha.mean()) + 2 * self.busy_us / self._sends_per_link(number)
        return self.least_steps + int(_LIKELY * math.sqrt(self.busy_us * self.least_steps / waits_us))

    def _sends_per_link(self, number: int) -> float:
        """Mean number of sends of single parts over a link."""
        dims, num_links = self.dims, int((self.near >= 0).sum())
        return 2 * (dims.num_ranks - 1) * number * len(images(dims)) / num_links

    def _uneven(self, number: int) -> float:
        """Estimated share of the time that is lost as links carry whole numbers of parts in each step."""
        return 2 * self._likely_steps(number) / self._sends_per_link(number)

    def _over_spans(self, number: int, before: _Found | None, until: Deadline) -> _Found | None:
        """Best result of short searches, with growing spans while these gain in as many steps.

        - `before`: Result for fewer shares, from whose span and steps the search starts.
        """
        steps, first = self._likely_steps(number), 1
        if before is not None:
            steps, first = round(steps * before.steps / self._likely_steps(before.number)), before.span
        best = self._over_steps(number, steps, first, until)
        for span in range(first + 1, _MOST_SPAN + 1) if self.at_ends.any() else ():
            if best is None or until.has_passed:
                break
            found = self._searched(number, best.steps, span, _BRIEF, until)
            if found is None or found.finish_us >= best.finish_us:
                break
            best = _earlier(found, self._over_steps(number, best.steps, span, until))
        return best

    def _over_steps(self, number: int, middle: int, span: int, until: Deadline) -> _Found | None:
        """Best result of short searches, each with more steps than the last, then each with fewer."""
        best = self._searched(number, middle, span, _BRIEF, until)
        for way in (1, -1):
            steps = middle if best is None else best.steps
            while best is None or not until.has_passed:
                steps += way * max(span, int(_GROWTH * steps))
                if steps < self.least_steps or (best is None and way < 0):
                    break
                found = self._searched(number, steps, span, _BRIEF, until)
                if best is not None and (found is None or found.finish_us >= best.finish_us):
                    break
                best = found
        if best is not None and not until.has_passed:
            best = _earlier(best, self._searched(number, best.steps, span, _BRIEF, until, closes=True))
        return best

    def _improved(self, even: _Found, coarser: Sequence[int], until: Deadline) -> _Found:
        """Best after sweeps in which links drift apart; if these gain little, after long searches, too.

        Long searches of small problems also try other numbers of steps. Links then drift apart from the best.
        At last, the best drift is repeated with other random numbers.
        """
        best, start, parts = self._drifted_apart(even, self._few_like(even, coarser, until), until)
        if best.finish_us >= _DRIFT_GAIN * even.finish_us:
            long = self._long_searched(even, until)
            best = _earlier(best, long)
            if long is not even and self._work(even.number) <= _FEW_WORK and not until.has_passed:
                found = self._drifting(long, 1, best.finish_us, until)
                if found.finish_us < best.finish_us:
                    best, start, parts = found, long, 1
        for seed in range(2, 2 + min(_RESTARTS, _RESTART_WORK // self._work(start.number))):
            if not until.has_passed:
                best = _earlier(best, self._drifting(start, parts, best.finish_us, until, seed))
        return best

    def _work(self, number: int) -> int:
        """Square of the number of shares, times ranks; grows as the time of a sweep if links drift."""
        return number**2 * len(self.near)

    def _is_small(self, found: _Found) -> bool:
        """True if there are few shares, steps and ranks."""
        return found.number * found.steps * len(self.near) <= _FEW_SENDS

    def _few_like(self, even: _Found, coarser: Sequence[int], until: Deadline) -> _Found:
        """Result in as many steps with few of the `coarser` numbers of shares; `even` if it has few, too."""
        fits = [number for number in (*coarser, even.number) if self._work(number) <= _FEW_WORK]
        if not fits or fits[-1] == even.number:
            return even
        return self._searched(fits[-1], even.steps, even.span, _BRIEF, until) or even

    def _drifted_apart(self, even: _Found, few: _Found, until: Deadline) -> tuple[_Found, _Found, int]:
        """(best after sweeps in which links drift apart, start of the best drift, parts of its steps).

        - `few`: `even`, or a result with fewer shares. The best drift of these is then repeated with `even`.
        """
        best, start, parts, tried = even, even, _DRIFTS[0][1], list[tuple[float, float, int]]()
        for each in (*_DRIFTS, *([] if few is even else [None])):
            of, (share, number) = (few, each) if each else (even, min(tried)[1:])
            gains = of is few and best.finish_us < _DRIFT_GAIN * even.finish_us
            if until.has_passed or self._work(of.number) > (_FEW_WORK if gains else _MOST_WORK):
                break
            fewer = max(self.least_steps, round(share * of.steps))
            brief = of if share == 1 else self._searched(of.number, fewer, of.span, _BRIEF, until)
            if brief is not None:
                to_beat = of if self._work(of.number) <= _FEW_WORK else best
                found = self._drifting(brief, number, to_beat.finish_us, until)
                tried.append((found.finish_us, share, number))
                if found.finish_us < best.finish_us:
                    best, start, parts = found, brief, number
        return best, start, parts

    def _long_searched(self, even: _Found, until: Deadline) -> _Found:
        """Best result of long searches; `even` if none is better."""
        number, steps, span = even.number, even.steps, even.span
        tries, long = [(steps, False), (steps, True)], even
        if self._is_small(even):
            more = max(1, int(_GROWTH * steps))
            tries += (steps + more, True), (steps - more, True)
        for each, closes in tries:
            if not until.has_passed:
                long = _earlier(long, self._searched(number, each, span, _LONG, until, closes=closes))
        return long

    def _searched(
        self, number: int, steps: int, span: int, sweeps: int, until: Deadline, *, closes: bool = False
    ) -> _Found | None:
        """Trees of each share after some sweeps; None if the steps do not suffice.

        A search that is cut off by the deadline is not kept for later calls.

        - `span`: Number of steps of each message at corners; `steps` is rounded up to a multiple of it.
        - `closes`: True to close links for sends that take little time next to others of the step.
        """
        steps += -steps % span
        key = number, steps, span, sweeps, closes
        if key in self._found:
            return self._found[key]
        n, num_classes = len(self.near), len(self.alpha)
        shares = Shares(
            np.full(number, -1),
            np.zeros(number, np.int64),
            np.full((2, number, n), -1),
            np.zeros((2, number, n), np.int64),
            np.zeros((2, num_classes, steps), np.int64),
            np.zeros((2, num_classes, steps), bool),
            np.array([1], np.uint64),
        )
        trees = self._sweeps(self.cores, shares, span)
        low, high = _SHARPNESS[0], _SHARPNESS[1 if sweeps == _BRIEF else 2]
        for each in range(sweeps):
            sharp = low * (high / low) ** (each / (sweeps - 1)) * steps / self.busy_us
            counts = each >= _FREE * sweeps
            if counts and closes:
                fewer = shares.sends.argmin(axis=0) == np.arange(2)[:, None, None]
                few_us = shares.sends.min(axis=0) * (self.beta[:, None] / number)
                shares.closed[:] |= fewer & (few_us > 0) & (few_us < _CLASHES * self.alpha[:, None])
            if not trees.run(Rules(sharp, counts, False, _TRIES, _OTHERS)):
                self._found[key] = None
                return None
            if until.has_passed:
                break
        found = _Found(trees.finish_us(), number, steps, span, shares, self.cores)
        if not until.has_passed:
            self._found[key] = found
        return found

    def _drifting(
        self, start: _Found, parts: int, best_us: float, until: Deadline, seed: int | None = None
    ) -> _Found:
        """Trees after sweeps in which links drift apart; each step is divided into parts before.

        If time is short, there are fewer sweeps, and the sharpness grows faster to its last value. Such trees
        are not kept for later calls.

        - `best_us`: Earliest known finish.
        - `seed`: New state of the random numbers; None to go on with that of `start`.
        """
        key = start.finish_us, start.number, start.steps, parts, seed
        if key in self._drifted:
            return self._drifted[key]
        shares, cores = divided(start.shares, start.cores, parts)
        if seed is not None:
            shares.random[0] = seed
        trees = self._sweeps(cores, shares)
        (low, high), began_s, is_short = _DRIFT_SHARPNESS, time.monotonic(), False
        limit_s = max(until.at_s - began_s, 1e-9)
        for each in range(_DRIFTING):
            grown, spent = each / (_DRIFTING - 1), (time.monotonic() - began_s) / limit_s
            if each and spent > grown:
                is_short, grown = True, min(1.0, spent)
            sharp = low * (high / low) ** grown * start.steps / self.busy_us
            trees.run(Rules(sharp, False, True, _TRIES, _OTHERS))
            finish = trees.finish_us()
            if until.has_passed or (each >= _HOPELESS * _DRIFTING and finish > _PAYS * best_us):
                break
        found = _Found(finish, start.number, start.steps, 1, shares, cores)
        if not (is_short or until.has_passed):
            self._drifted[key] = found
        return found

    def _sweeps(self, cores: Cores, shares: Shares, span: int = 1) -> Sweeps:
        """Sweeps over shares: the beta of each link is divided by their number."""
        spans = np.where(self.at_ends, span, 1)
        grid = Grid(self.near, self.kind, self.alpha, self.beta / len(shares.core), spans)
        return Sweeps(grid, cores, shares)

    def _mix(self, found: _Found) -> TreeMix:
        """Mix of the plans of all shares; equal plans are merged."""
        plans: dict[bytes, PlanSends] = {}
        counts: Counter[bytes] = Counter()
        for i in range(len(found.shares.core)):
            sends = self._sends(found, i)
            key = np.stack(sends[:3]).tobytes()
            plans[key] = sends
            counts[key] += 1
        num_images = len(images(self.dims))
        copies = {key: distinct_images(self.dims, sends) for key, sends in plans.items()}
        numbers = {key: count * num_images // len(copies[key]) for key, count in counts.items()}
        least = math.gcd(*numbers.values())
        mixed = tuple((plans[key], copies[key] * (number // least)) for key, number in numbers.items())
        return TreeMix(mixed, found.finish_us)

    def _sends(self, found: _Found, i: int) -> PlanSends:
        """Columns of the sends of a share, in the order of steps."""
        shares, cores = found.shares, found.cores
        rows: list[tuple[int, int, int]] = []
        for half in range(2):
            ranks = np.flatnonzero(shares.way[half, i] >= 0)
            hubward = self.near[ranks, shares.way[half, i, ranks]]
            src, dst = (ranks, hubward) if half == 0 else (hubward, ranks)
            rows += zip(shares.step[half, i, ranks].tolist(), src.tolist(), dst.tolist(), strict=True)
        core = int(shares.core[i])
        used = np.flatnonzero(cores.kind[core] >= 0)
        steps = int(shares.begin[i]) + cores.step[core, used]
        rows += zip(steps.tolist(), *cores.ends[core, used].T.tolist(), strict=True)
        step, src, dst = np.array(sorted(rows), np.int64).reshape(-1, 3).T
        has = np.eye(len(self.near), dtype=bool)
        adds = np.empty((len(step), len(has)), bool)
        for k in distinct(step).tolist():
            now = step == k
            adds[now] = has[src[now]]
            np.logical_or.at(has, dst[now], adds[now])
        return step, src, dst, adds


def _earlier(best: _Found, found: _Found | None) -> _Found:
    """Result with the earlier finish; `best` if they are equal or `found` is None."""
    return best if found is None or found.finish_us >= best.finish_us else found
