"""Statistical test of the gain from a new rank order, on measurements that were not used to choose it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from taccl._internal.arrays import Flags, Floats
from taccl._internal.deadline import Deadline
from taccl.placement.case import Case
from taccl.placement.hosts import ProbedHosts
from taccl.placement.probe import REPEATS, Probe, median_of_known
from taccl.topology.clusters import common_levels

#: `_SPLITS`: number of random splits of the measurements into halves.
#: `_EFFORT`: effort of the search on each half, as a part of the usual number of orders.
_SPLITS, _EFFORT = 3, 0.2
#: Level of the test: approximate probability that noise alone confirms a gain.
_LEVEL = 0.01
#: Number of resamples, the fewest with which a test at this level can confirm a gain.
_RESAMPLES = round(1 / _LEVEL) - 1
#: Name of the repetitions of a matrix without passes.
_DIRECTIONS = "two directions of each pair"
#: Maximum share of the remaining time for searches of an order on each half of the measurements.
#: The rest of the remaining time is for the gains and their test.
_SEARCHING = 0.6
#: Fraction q: clusters are clear if quantile 1 - q of distances inside is below quantile q of those between.
_FEW = 0.1
#: Minimum gain that is confirmed (0.01: 1 % faster); our choice.
_LEAST = 0.01
#: Minimum number of pairs of hosts in a class, for its figures to be moved towards their mean (`_shrunk`).
_FEWEST_PAIRS = 4


@dataclass(frozen=True, slots=True)
class Judgement:
    """Result of a statistical test of the search for a rank order, on data that the search did not use.

    - `basis`: Repetitions that were split into halves, e.g. ``"4 passes"``; empty if there is no judgement.
    - `gains`: For each half, the lower bound on its speedup by the order chosen on the other half (as
      `Placement.gain`, but it may be below 1).
    - `least`: Lower end of the one-sided 99 % confidence interval of the mean gain; if it is at most 1, it is
      of the resamples until the first one that contradicts a gain.
    - `reason`: Reason that there is no judgement; empty if there is one.
    - `has_clusters`: True if hosts form clusters that are clearly apart, or share uplinks that were measured.
    """

    basis: str = ""
    gains: tuple[float, ...] = ()
    least: float = 1.0
    reason: str = ""
    has_clusters: bool = False

    @property
    def gain(self) -> float:
        """Geometric mean of `gains`, the speedups on each half of the measurements; 1 if there are none."""
        return float(np.exp(np.mean(np.log(self.gains)))) if self.gains else 1.0

    @property
    def verdict(self) -> str:
        """Verdict on the gain: ``"confirmed"``, ``"within noise"`` or ``"not judged"``.

        A gain is confirmed if it exceeds 1 % and its confidence interval excludes 1.
        """
        if not self.gains:
            return "not judged"
        return "confirmed" if self.least > 1 and self.gain > 1 + _LEAST else "within noise"

    @property
    def is_trusted(self) -> bool:
        """True if the new order is used by default: gain confirmed, or not judged and clusters are clear."""
        return self.verdict == "confirmed" or (self.verdict == "not judged" and self.has_clusters)

    def __repr__(self) -> str:
        return f"Judgement({self})"

    def __str__(self) -> str:
        if not self.gains:
            doubt = ", and no clusters of hosts are clearly apart: the gain may be noise"
            return f"not judged against noise: {self.reason}{'' if self.has_clusters else doubt}"
        is_small = self.verdict == "within noise" and self.gain > 1 + _LEAST and self.basis != _DIRECTIONS
        return (
            f"{self.verdict}: orders chosen on one half of the {self.basis} are {self.gain:.3g} times as "
            f"fast on the other half, at least {self.least:.3g} times with {1 - _LEVEL:.0%} confidence"
        ) + ("; more passes tell smaller gains (taccl probe --passes)" if is_small else "")

    def to_dict(self) -> dict[str, Any]:
        """The judgement as plain values."""
        return {
            "verdict": self.verdict, "basis": self.basis, "gains": list(self.gains), "gain": self.gain,
            "least": self.least, "reason": self.reason,
        }  # fmt: skip


def has_clear_clusters(probe: Probe) -> bool:
    """True if hosts share uplinks that were measured, or form clusters that are clearly apart.

    Clusters are clearly apart if the 90 % quantile of distances inside them is below the 10 % quantile
    between them.
    """
    distance, found = probe.distance, probe.levels
    if probe.uplinks or not found:
        return bool(probe.uplinks)
    inside = found[0][:, None] == found[0]
    off = ~np.eye(len(distance), dtype=bool)
    return bool(np.quantile(distance[inside & off], 1 - _FEW) < np.quantile(distance[~inside], _FEW))


#: {field of a `Probe`: symmetric (num_hosts, num_hosts) matrix of the logarithms of its values}.
_Figures = dict[str, "Floats"]


def judge(hosts: ProbedHosts, searched: Case, seed: int, deadline: Deadline) -> Judgement:
    """Judge the gain of the search on a probe by random splits of its repetitions into halves.

    The repetitions of each pair of hosts are split at random, so that both halves have the same structure,
    each with its own noise. Repetitions are the passes of the probe, or else the two directions of a pair.
    Each half judges the order chosen on the other, with its noise reduced by `_shrunk`.

    The mean gain is confirmed by a permutation test, if it exceeds the gain on each of 99 simulated halves.
    These have the noise of measured halves with permuted hosts, and no differences between pairs otherwise.
    Any order can meet a rare outlier in them, as the given one may have by chance. A second simulation has
    the estimated differences, too, as the slowest of many noisy pairs between clusters is slower than that of
    few; their own gain is subtracted. The mean of several halves has less noise than one, so that noise alone
    confirms a gain at most at the level of the test.

    Both directions of a pair are often measured in turn. A load then slows both, so they confirm no gain
    unless hosts form clear clusters.

    - `searched`: Algorithm and size on the hosts.
    """
    has_clusters = has_clear_clusters(hosts.probe)
    stacks, basis, reason = _repetitions(hosts.probe)
    if not basis:
        return Judgement(reason=reason, has_clusters=has_clusters)
    deadline.check()
    halves = _Halves(hosts, searched, stacks, seed)
    orders, gains = halves.search(seed, deadline)
    gain = float(np.mean(gains))
    excess = halves.gains_by_noise(orders, gain, seed, deadline)
    if excess is None:
        return Judgement(reason="the time limit was reached; give more time", has_clusters=has_clusters)
    least = float(np.exp(gain - max(excess)))
    judged = Judgement(basis, tuple(np.exp(gains).tolist()), least, "", has_clusters)
    if basis == _DIRECTIONS and judged.verdict == "confirmed" and not has_clusters:
        reason = "both directions of a pair were measured in turn, and a load then looks like a slow pair; "
        return Judgement(reason=f"{reason}measure in passes (taccl probe)")
    return judged


class _Halves:
    """Random splits of a probe's repetitions into halves, and gains of orders on them.

    - `splits`: Figures of both halves of each split.
    - `noise`: {field: variance of the noise in a half}.
    - `gain_s`: Seconds that the gain of one order took last, or longest in the resamples.
    """

    def __init__(self, hosts: ProbedHosts, searched: Case, stacks: _Figures, seed: int) -> None:
        self.hosts, self.probe, self.searched, self.stacks = hosts, hosts.probe, searched, stacks
        self.splits = [
            _halves(self.probe, stacks, np.random.default_rng((seed, split))) for split in range(_SPLITS)
        ]
        self.noise = {
            name: float(np.mean([_noise(*split)[name] ** 2 for split in self.splits])) for name in stacks
        }
        self.gain_s = 0.0

    def case(self, noisy_probe: Probe, *only: Sequence[int]) -> Case:
        """The searched case on other figures of the hosts."""
        noisy, steps = replace(self.hosts, probe=noisy_probe), self.searched.algorithm
        name, size_bytes = steps.collective.name, self.searched.size_bytes
        return Case(noisy, name, steps, size_bytes, like=self.searched, only=only)

    def logs(self, figures: _Figures, orders: Sequence[Sequence[int]]) -> list[float]:
        """Logarithm of the gain of each order, on measurements whose noise is reduced by `_shrunk`."""
        ranks, noisy = range(self.probe.num_hosts), _with_figures(self.probe, figures)
        shrunk = _with_figures(self.probe, _shrunk(noisy, figures, self.noise))
        if not self.probe.is_one_server:  # keep the clusters found before shrinkage
            shrunk = replace(shrunk, clusters=tuple(tuple(labels.tolist()) for labels in noisy.levels))
        judging = self.case(shrunk, ranks, *orders)
        before = judging.us(judging.ticks(ranks, is_relaxed=True))
        return [float(np.log(before / judging.us(judging.ticks(order)))) for order in orders]

    def search(self, seed: int, deadline: Deadline) -> tuple[list[tuple[int, ...]], list[float]]:
        """Orders found on each half, and the logarithms of their gains on the other halves."""
        ranks, began = range(self.probe.num_hosts), time.monotonic()
        halves = [self.case(_with_figures(self.probe, half)) for half in self.splits[0]]
        halves[0].ticks(ranks)
        # Building and timing a case takes about as long as judging an order.
        # Reserve time for both gains of a split, for the resamples, and for one case more, as times vary.
        one_s = (time.monotonic() - began) / 2
        reserved_s = (3 + 2 * _RESAMPLES) * one_s
        searching = deadline.sooner(min(_SEARCHING * deadline.left_s, deadline.left_s - reserved_s))
        orders, gains = list[tuple[int, ...]](), list[float]()
        for split in self.splits:
            if orders and searching.left_s < 2 * one_s:
                break
            found = []
            for number, half in enumerate(split):
                if not orders:
                    deadline.check()
                one = halves.pop(0) if halves else self.case(_with_figures(self.probe, half))
                until = searching.sooner(searching.left_s / (2 - number))
                found.append(one.search(ranks, seed, until, effort=_EFFORT)[0])
            if searching.has_passed and orders:
                break
            orders += found
            began = time.monotonic()
            gains += [self.logs(half, [order])[0] for half, order in zip(split, found[::-1], strict=True)]
            self.gain_s = (time.monotonic() - began) / 2
        return orders, gains

    def gains_by_noise(
        self, orders: Sequence[tuple[int, ...]], gain: float, seed: int, deadline: Deadline
    ) -> list[float] | None:
        """Logarithms of the gains of orders on simulated halves, less the gains without noise.

        The simulation ends with the first one that is no less than `gain`; None if the time does not suffice.
        """
        # Values without noise. Medians of all repetitions keep no outlier that only one of them has.
        clustered = self.probe if has_clear_clusters(self.probe) else replace(self.probe, clusters=())
        of_medians = {name: variance / 2 for name, variance in self.noise.items()}
        centre = _shrunk(clustered, _medians(self.probe, self.stacks), of_medians)
        noises = _scaled([_off_mean(half, centre) for half in chain(*self.splits)], self.noise)
        # Values without differences between pairs, and the estimated ones.
        off = ~np.eye(self.probe.num_hosts, dtype=bool)
        level = {name: np.full_like(values, values[off].mean()) for name, values in centre.items()}
        worlds = [(values, float(np.mean(self.logs(values, orders)))) for values in (level, centre)]
        excess, rng = list[float](), np.random.default_rng((seed, _SPLITS))
        while len(excess) < _RESAMPLES and max(excess, default=-np.inf) < gain:
            if deadline.left_s < self.gain_s:
                return None
            began = time.monotonic()
            number, shuffled = len(excess) % len(orders), rng.permutation(self.probe.num_hosts)
            noise = {name: each[np.ix_(shuffled, shuffled)] for name, each in noises[number].items()}
            other = [orders[number ^ 1]]
            excess.append(
                max(
                    self.logs({name: values[name] + noise[name] for name in values}, other)[0] - alone
                    for values, alone in worlds
                )
            )
            self.gain_s = max(self.gain_s, time.monotonic() - began)
        return excess


def _repetitions(probe: Probe) -> tuple[_Figures, str, str]:
    """(repeated measurements in a probe, their name, reason); the name is empty if the gain cannot be judged.

    The reason says why it cannot, and is empty otherwise.

    The repetitions are {field: (num_repetitions, num_hosts, num_hosts) array}, the same in both directions.
    """
    passes = {
        "latency_us": probe.latency_repeats_us, "bandwidth_gb_per_s": probe.bandwidth_repeats_gb_per_s
    }  # fmt: skip
    known = {
        name: each for name, each in passes.items() if each is not None and getattr(probe, name) is not None
    }
    counts = {len(each) for each in known.values()}
    if len(counts) == 1 and min(counts) > 1:
        both = {name: np.stack([each, each.transpose(0, 2, 1)]) for name, each in known.items()}
        return (
            {name: _mean_of_known(each) for name, each in both.items()},
            f"{min(counts)} passes",
            "",
        )
    known = {name: getattr(probe, name) for name in passes if getattr(probe, name) is not None}
    known = {name: np.stack([_mirrored(each), _mirrored(each.T)]) for name, each in known.items()}
    if probe.asymmetry > 0:
        return known, _DIRECTIONS, ""
    if probe.assumed and probe.clusters is not None:
        return known, "", "clusters are stated, and nothing is measured (see `taccl probe`)"
    return known, "", "the probe has one value per pair; probe again for repetitions"


def _mean_of_known(values: Floats) -> Floats:
    """Mean along the first axis over the values that are not nan; nan where all are."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        found: Floats = np.nanmean(values, axis=0)
    return found


def _mirrored(matrix: Floats) -> Floats:
    """Symmetric matrix from the entries above the diagonal of a matrix."""
    above = np.triu(matrix, 1)
    return above + above.T


def _halves(probe: Probe, stacks: _Figures, rng: np.random.Generator) -> tuple[_Figures, _Figures]:
    """Split the repetitions of every pair at random; return the median figures of both halves."""
    number, count, _ = next(iter(stacks.values())).shape
    deal = rng.random((number, count, count))
    deal = np.triu(deal) + np.triu(deal, 1).transpose(0, 2, 1)  # keep both directions of a pair in one half
    turn = np.argsort(np.argsort(deal, axis=0), axis=0)

    is_first = turn < number // 2
    return _medians(probe, stacks, is_first), _medians(probe, stacks, ~is_first)


def _medians(probe: Probe, stacks: _Figures, chosen: Flags | bool = True) -> _Figures:
    """Logarithms of the median figures of the chosen repetitions of each pair."""
    found = {}
    for name, each in stacks.items():
        known = median_of_known(np.where(chosen, each, np.nan))
        np.fill_diagonal(known, 1.0)  # the diagonal is unused
        found[name] = np.log(probe.filled(known))
    return found


def _noise(one: _Figures, other: _Figures) -> _Figures:
    """Estimate the noise in one half of the measurements from the difference between both halves."""
    differ = _off_mean(one, other)
    return {name: differ[name] / np.sqrt(2) for name in differ}


def _off_mean(one: _Figures, other: _Figures) -> _Figures:
    """Difference between figures, less its mean, as a delay common to all pairs delays every order alike."""
    found = {}
    for name in one:
        differ = one[name] - other[name]
        off = ~np.eye(len(differ), dtype=bool)
        found[name] = np.where(off, differ - differ[off].mean(), 0.0)
    return found


def _shrunk(probe: Probe, figures: _Figures, variance: Mapping[str, float]) -> _Figures:
    """Move values towards the mean of their class to reduce noise (positive-part James-Stein shrinkage).

    The factor is the part of the variance in the class that is noise. Without shrinkage, the slowest of many
    pairs would seem slower than the slowest of few, though all are equal. Pairs whose hosts share equally
    many levels of clusters form a class.

    - `variance`: {field: variance of the noise}.

    References
    ----------
    B. Efron and C. Morris, "Stein's estimation rule and its competitors", J. Am. Stat. Assoc. 68 (1973).
    """
    shared = common_levels(probe.levels, probe.num_hosts)
    np.fill_diagonal(shared, -1)
    found = {}
    for name, values in figures.items():
        found[name] = values.copy()
        for each in np.unique(shared[shared >= 0]):
            of_class = values[shared == each]
            spread = float(of_class.var())
            if len(of_class) >= 2 * _FEWEST_PAIRS and spread > 0:
                kept = max(0.0, 1 - variance[name] / spread)
                found[name][shared == each] = of_class.mean() + kept * (of_class - of_class.mean())
    return found


def _scaled(noises: Sequence[_Figures], variance: Mapping[str, float]) -> list[_Figures]:
    """Noise of several halves, all scaled alike such that its mean square is `variance`.

    Shrunk values, from which it is measured, differ the less from a half the less they are shrunk. The skew
    of rare outliers stays.
    """
    square = {name: float(np.mean([each[name] ** 2 for each in noises])) for name in variance}
    factor = {name: np.sqrt(variance[name] / square[name]) if square[name] else 0.0 for name in square}
    return [{name: factor[name] * each[name] for name in factor} for each in noises]


def _with_figures(probe: Probe, figures: _Figures) -> Probe:
    """Copy of a probe with the latencies and bandwidths in `figures` (logarithms), without repetitions."""
    none = dict.fromkeys(REPEATS)
    known: dict[str, Any] = {
        name: np.exp(figures[name]) if name in figures else None
        for name in ("latency_us", "bandwidth_gb_per_s")
    }
    return replace(probe, sampled=False, **(known | none))
