"""Judgement of an order on measurements that it was not chosen on: a gain, or noise."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from taccl.placement.case import Case
from taccl.topology.clusters import completed, levels

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from taccl.deadline import Deadline
    from taccl.placement.algorithms import Algorithm
    from taccl.placement.probe import Probe

#: Random splits of the measurements into halves, and the effort of the search on each half.
_SPLITS, _EFFORT = 5, 0.2
#: Part of the distances that clusters may have wrong and still be clearly apart; our choice.
_FEW = 0.1
#: Least gain that counts, as a part of the time; our choice.
_LEAST = 0.01


@dataclass(frozen=True, slots=True)
class Judgement:
    """Judgement of the procedure that chose an order, on measurements that it did not see.

    - `basis`: The repetitions, e.g. ``"4 passes"``; empty if there are none, or no time was left.
    - `gains`: For each split, the certain speedup by an order chosen on the other half of the repetitions (as
      `Placement.gain`, but also below 1).
    - `spread`: Largest over least time of the order given on any half, less 1.
    - `reason`: Reason that there is no judgement; empty if there is one.
    - `has_clusters`: True if hosts form clusters that are clearly apart, or share uplinks that were measured.
    """

    basis: str = ""
    gains: tuple[float, ...] = ()
    spread: float = 0.0
    reason: str = ""
    has_clusters: bool = False

    @property
    def gain(self) -> float:
        """Geometric mean of the gains; 1 if there are none."""
        return float(np.exp(np.mean(np.log(self.gains)))) if self.gains else 1.0

    @property
    def noise(self) -> float:
        """The larger of the spread and two standard deviations of the gains."""
        return max(self.spread, 2 * float(np.std(self.gains, ddof=1))) if len(self.gains) > 1 else self.spread

    @property
    def verdict(self) -> str:
        """``"confirmed"``, ``"within noise"`` or ``"not judged"``.

        A gain is confirmed if every split has one, and their mean exceeds the noise.
        """
        if not self.gains:
            return "not judged"
        is_gain = min(self.gains) > 1 and self.gain - 1 > max(self.noise, _LEAST)
        return "confirmed" if is_gain else "within noise"

    @property
    def is_trusted(self) -> bool:
        """True if files may be written by default: the gain is confirmed, or comes from clusters of hosts."""
        return self.verdict == "confirmed" or (self.verdict == "not judged" and self.has_clusters)

    def __str__(self) -> str:
        if not self.gains:
            clusters = "" if self.has_clusters else ", and hosts form no clusters: the gain may be noise"
            return f"not judged against noise: {self.reason}{clusters}"
        low, high = min(self.gains), max(self.gains)
        return (
            f"{self.verdict}: orders chosen on one half of the {self.basis} are at least {low:.3g} to "
            f"{high:.3g} times as fast on the other half, where {self.noise:.1%} is noise"
        )

    def to_dict(self) -> dict[str, Any]:
        """The judgement as plain values."""
        return {
            "verdict": self.verdict, "basis": self.basis, "gains": list(self.gains), "spread": self.spread,
            "noise": self.noise, "reason": self.reason,
        }  # fmt: skip


def are_apart(probe: Probe) -> bool:
    """True if hosts share uplinks that were measured, or form clusters that are clearly apart.

    They are apart if most distances inside clusters are below most distances between them.
    """
    distance = probe.distance
    found = levels(distance)
    if probe.uplinks or not found:
        return bool(probe.uplinks)
    inside = found[0][:, None] == found[0]
    off = ~np.eye(len(distance), dtype=bool)
    return bool(np.quantile(distance[inside & off], 1 - _FEW) < np.quantile(distance[~inside], _FEW))


def judge(
    probe: Probe,
    given: Mapping[str, Any],
    algorithm: Algorithm,
    size_bytes: int,
    seed: int,
    deadline: Deadline,
) -> Judgement:
    """Judgement of what a search on the probe gains, by splits of its repetitions into halves.

    The repetitions of each pair of hosts are dealt out at random: both halves have the same structure, each
    with noise of its own. Repetitions are the passes of the probe, or else the two directions of a pair.

    - `given`: Options of `Probe.topology`.
    """
    has_clusters = are_apart(probe)
    stacks, basis, reason = _repetitions(probe)
    gains, times = [], []
    for split in range(_SPLITS if basis else 0):
        if deadline.has_passed:
            break
        halves = [
            half.topology(**given) for half in _halves(probe, stacks, np.random.default_rng((seed, split)))
        ]
        cases = [Case(half, algorithm.collective.name, algorithm, size_bytes) for half in halves]
        ranks = range(probe.num_hosts)
        order, _ = cases[0].search(ranks, seed, deadline, effort=_EFFORT)
        before = [case.us(case.ticks(ranks, apart=True)) for case in cases]
        times += before
        if not deadline.has_passed:
            gains.append(before[1] / cases[1].us(cases[1].ticks(order)))
    if basis and len(gains) < 2:
        return Judgement(reason="the time limit came first; give more time", has_clusters=has_clusters)
    spread = max(times) / min(times) - 1 if times else 0.0
    return Judgement(basis, tuple(gains), spread, reason, has_clusters)


def _repetitions(probe: Probe) -> tuple[dict[str, NDArray[np.float64]], str, str]:
    """{field: (repetitions, hosts, hosts)}, their name, and why there are none."""
    passes = {
        "latency_us": probe.latency_repeats_us, "bandwidth_gb_per_s": probe.bandwidth_repeats_gb_per_s
    }  # fmt: skip
    known = {
        name: each for name, each in passes.items() if each is not None and getattr(probe, name) is not None
    }
    counts = {len(each) for each in known.values()}
    if len(counts) == 1 and min(counts) > 1:
        return known, f"{min(counts)} passes", ""
    known = {name: getattr(probe, name) for name in passes if getattr(probe, name) is not None}
    known = {name: np.stack([_mirrored(each), _mirrored(each.T)]) for name, each in known.items()}
    if probe.asymmetry > 0:
        return known, "two directions of each pair", ""
    return known, "", "the probe has one figure per pair; probe again for repetitions"


def _mirrored(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """The matrix with what is above the diagonal below it as well."""
    above = np.triu(matrix, 1)
    return above + above.T


def _halves(
    probe: Probe, stacks: Mapping[str, NDArray[np.float64]], rng: np.random.Generator
) -> tuple[Probe, Probe]:
    """Two probes, each with half of the repetitions of every pair."""
    count, number = probe.num_hosts, len(next(iter(stacks.values())))
    deal = rng.random((number, count, count))
    deal = np.triu(deal) + np.triu(deal, 1).transpose(0, 2, 1)  # both directions of a pair go together
    turn = np.argsort(np.argsort(deal, axis=0), axis=0)
    bare = {"latency_us": None, "bandwidth_gb_per_s": None}
    none = {"latency_repeats_us": None, "bandwidth_repeats_gb_per_s": None}

    def half(chosen: NDArray[np.bool_]) -> Probe:
        known: dict[str, Any] = {}
        for name, each in stacks.items():
            matrix = completed(np.nanmedian(np.where(chosen, each, np.nan), axis=0))
            # Medians over few passes can differ between directions by more than a probe admits.
            known[name] = (matrix + matrix.T) / 2
        return replace(probe, sampled=False, **{**bare, **none, **known})

    return half(turn < number // 2), half(turn >= number // 2)
