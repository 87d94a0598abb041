"""Fit a machine's parameters to several series at once, and tell which parameters the data determine.

Size ranges of a library's protocols are inferred from the times first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from taccl._internal.address_space import require_address_space
from taccl._internal.arrays import Flags, Floats, Ints
from taccl.measure.model import LATENCIES, PARAMETERS, CostTerms, Parameter, times_us

#: Max ratio of posterior to prior spread at which a parameter counts as determined by the data.
_DETERMINED = 0.5
#: Max extra cost at which a fit with one parameter fewer is still preferred: 1 by Akaike's criterion.
CONTRADICTED = 1.0
#: Small messages show latency if their times grow more slowly than their sizes to this power.
_FLAT = 0.5
#: Slowdown at which the residual is 1, if a size's protocol is predicted slower than the fastest (ours).
#: This residual penalises a slow protocol, as a library chooses the one that it predicts to be fastest.
_CHOICE = 0.1
_MAX_ROUNDS = 4
#: Index of the protocol simple, which every library has; those of LL and LL128 may be switched off.
_SIMPLE = 2
#: Cost of a size under a protocol that may not be used, above all others.
_NEVER = 1e9
#: Step in the logarithm of a parameter for finite differences of residuals.
_STEP = 1e-7

#: Protocol index of each size, one array per series.
Protocols: TypeAlias = Sequence[Ints]

#: Relative error below which the cost is quadratic; above, it is linear (own choice).
NOISE = 0.02
#: Penalty for each line (range of sizes) after the first, on the scale of the loss `robust`.
_PRICE = 3.0
_ROUNDS = 5
#: Min sizes per range: any two points fit a line.
_LEAST = 3
#: Two rows are parallel if their Gram determinant is at most this share of the product of squared norms.
_PARALLEL = 1e-13


@dataclass(frozen=True, slots=True)
class Observed:
    """Series as arrays of ascending sizes and of times, with the cost terms of its collective."""

    terms: CostTerms
    size_bytes: Floats
    times_us: Floats

    def predicted_us(self, logs: Floats) -> Floats:
        """Predicted times, shape (..., 3 protocols, sizes).

        - `logs`, (..., parameters): Logarithms of the parameters.
        """
        return times_us(self.terms, self.size_bytes, logs)

    def part(self, keep: Flags | Ints) -> Observed:
        """The series at some of its sizes.

        - `keep`: Mask or indices of the sizes.
        """
        return Observed(self.terms, self.size_bytes[keep], self.times_us[keep])


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimated parameters of a machine, and the protocol inferred for each size.

    - `logs`, (parameters,): Logarithms of the parameters.
    - `free`, (parameters,): True for parameters that the data determine; the others are at their priors.
    - `protocols`: Protocol index of each size, one array per series.
    """

    logs: Floats
    free: Flags
    protocols: tuple[Ints, ...]

    def predicted_like_us(self, index: int, seen: Observed, size_bytes: Floats) -> Floats:
        """Predicted times at new sizes of a series, under the protocols of the nearest sizes below and above.

        If the two protocols differ, the faster one applies.
        """
        found = times_us(seen.terms, size_bytes, self.logs)
        last, every = len(seen.size_bytes) - 1, np.arange(len(size_bytes))
        below = np.searchsorted(seen.size_bytes, size_bytes, side="right") - 1
        above = np.searchsorted(seen.size_bytes, size_bytes, side="left")
        near = (self.protocols[index][np.clip(each, 0, last)] for each in (below, above))
        return np.minimum(*(found[each, every] for each in near))


def estimate(observed: Sequence[Observed], priors: Sequence[Parameter]) -> Estimate:
    """Maximum a posteriori estimate from all series; undetermined parameters are fixed at their priors."""
    task = _task(observed, priors)
    protocols = tuple(map(_first_protocols, observed))
    free = np.ones(len(priors), bool)
    if not any(map(shows_latency, observed)):
        free &= [each.name not in LATENCIES for each in priors]
    fitted = [task.solve(protocols, free, start) for start in _starts(task)]
    logs = min(fitted, key=lambda logs: task.cost(protocols, logs))
    for _ in range(_MAX_ROUNDS):
        again = tuple(
            old
            if each.terms.streams
            else reassigned(each.predicted_us(logs), each.times_us, each.terms.protocols)
            for each, old in zip(observed, protocols, strict=True)
        )
        if all(np.array_equal(a, b) for a, b in zip(again, protocols, strict=True)):
            break
        protocols = again
        logs = task.solve(protocols, free, logs)
    needed = np.zeros(len(priors), bool)
    while True:
        spreads = np.where(needed, 0.0, task.remaining(protocols, free, logs))
        worst = int(np.argmax(spreads))
        if spreads[worst] <= _DETERMINED:
            break
        fewer, without = free.copy(), logs.copy()
        fewer[worst] = False
        without[worst] = task.means[worst]
        without = task.solve(protocols, fewer, without)
        if task.cost(protocols, without) > task.cost(protocols, logs) + CONTRADICTED:
            needed[worst] = True  # data contradict this parameter's prior; no other parameter compensates
        else:
            free, logs = fewer, without
    return Estimate(logs, free, protocols)


def cost_of(observed: Sequence[Observed], found: Estimate, priors: Sequence[Parameter]) -> float:
    """Half the sum of squared residuals of an estimate."""
    return _task(observed, priors).cost(found.protocols, found.logs)


def refit(
    observed: Sequence[Observed], priors: Sequence[Parameter], found: Estimate, protocols: Protocols
) -> Floats:
    """Refit an estimate's free parameters to other data under known protocols; return all logarithms."""
    return _task(observed, priors).solve(protocols, found.free, found.logs)


def _task(observed: Sequence[Observed], priors: Sequence[Parameter]) -> _Fitting:
    means, spreads = np.log([each.value for each in priors]), np.array([each.spread for each in priors])
    return _Fitting(observed, means, spreads, np.log([(each.least, each.most) for each in priors]))


def _first_protocols(each: Observed) -> Ints:
    if each.terms.streams:
        return np.full(len(each.size_bytes), 2)
    found = lines(each.size_bytes, each.times_us)
    if (found == 2).all() and shows_latency(each) and each.times_us[-1] < 2 * each.times_us[0]:
        found = np.zeros(len(found), np.int64)  # all messages are small, so the protocol is ll
    return np.where(np.isin(found, each.terms.protocols), found, _SIMPLE)


def shows_latency(each: Observed) -> bool:
    """True if times at the smallest sizes grow so slowly with size that they show latency."""
    if each.terms.streams or len(each.size_bytes) < 2:
        return False
    last = min(2, len(each.size_bytes) - 1)
    slower, larger = (np.log(grown[last] / grown[0]) for grown in (each.times_us, each.size_bytes))
    return bool(slower / larger < _FLAT)


def _starts(task: _Fitting) -> Iterable[Floats]:
    """Yield starting points: the priors, then the priors with one bandwidth adapted to the largest sizes."""
    yield task.means
    slowest = max(
        float(np.log(each.times_us[-1] / times_us(each.terms, each.size_bytes[-1:], task.means)[2, 0]))
        for each in task.observed
    )
    for name in ("node_gb_per_s", "network_gb_per_s"):
        start = task.means.copy()
        start[PARAMETERS.index(name)] -= slowest
        yield start


@dataclass(frozen=True, slots=True)
class _Fitting:
    """Fitting problem: series, and normal priors of the parameters' logarithms (means and spreads).

    - `limits`, (parameters, 2): Logarithms of the least and greatest values.
    """

    observed: Sequence[Observed]
    means: Floats
    spreads: Floats
    limits: Floats

    def residuals(self, protocols: Protocols, logs: Floats, *, smoothed: bool = True) -> Floats:
        """Residuals, (..., num): prediction errors, protocol penalties, and distances to the priors.

        The penalty at a size grows with the lead of the series' fastest protocol over the one assigned to the
        size. If `smoothed`, half the square of a transformed error or penalty is the pseudo-Huber loss.
        """
        errors = []
        for each, chosen in zip(self.observed, protocols, strict=True):
            found = each.predicted_us(logs)
            predicted = found[..., chosen, np.arange(len(chosen))]
            errors.append(np.log(predicted / each.times_us) / NOISE)
            available = np.union1d(chosen, _SIMPLE)
            errors.append(np.log(predicted / found[..., available, :].min(axis=-2)) / _CHOICE)
        relative = np.concatenate(errors, axis=-1)
        if smoothed:
            relative = robust_residuals(relative)
        return np.concatenate([relative, (logs - self.means) / self.spreads], axis=-1)

    def slopes(self, protocols: Protocols, free: Flags, logs: Floats, *, smoothed: bool) -> Floats:
        """Jacobian of the residuals by the logarithms of free parameters, (free parameters, residuals)."""
        moved = np.vstack([logs, logs + _STEP * np.eye(len(logs))[free]])
        found = self.residuals(protocols, moved, smoothed=smoothed)
        return np.asarray((found[1:] - found[0]) / _STEP)

    def cost(self, protocols: Protocols, logs: Floats) -> float:
        """Half the sum of squared residuals."""
        return float((self.residuals(protocols, logs) ** 2).sum()) / 2

    def solve(self, protocols: Protocols, free: Flags, start: Floats) -> Floats:
        """Logarithms of the parameters that minimize `cost`; fixed parameters keep their start values."""
        require_address_space()
        from scipy.optimize import least_squares

        if not free.any():
            return start

        def at(values: Floats) -> Floats:
            logs = start.copy()
            logs[free] = values
            return logs

        low, high = self.limits[free].T
        begin = np.clip(start[free], low + 1e-9, high - 1e-9)
        found = least_squares(
            lambda values: self.residuals(protocols, at(values)), begin,
            jac=lambda values: self.slopes(protocols, free, at(values), smoothed=True).T,
            bounds=(low, high), max_nfev=60, ftol=1e-6, xtol=1e-6,
        )  # fmt: skip
        return at(found.x)

    def remaining(self, protocols: Protocols, free: Flags, logs: Floats) -> Floats:
        """Ratio of posterior to prior spread of each free parameter; 0 for fixed parameters."""
        left = np.zeros(len(logs))
        if free.any():
            jacobian = self.slopes(protocols, free, logs, smoothed=False)
            left[free] = np.sqrt(np.diag(np.linalg.inv(jacobian @ jacobian.T))) / self.spreads[free]
        return left


def robust_residuals(errors: Floats) -> Floats:
    """Residuals whose halved squares are the pseudo-Huber loss of errors in units of their noise."""
    return np.asarray(np.sign(errors) * np.sqrt(2 * (np.sqrt(1 + errors**2) - 1)))


def robust(relative: Floats) -> Floats:
    """Pseudo-Huber loss of relative errors in units of `NOISE`: quadratic if small, linear if large."""
    return np.sqrt(1 + (relative / NOISE) ** 2) - 1


def lines(size_bytes: Floats, times_us: Floats) -> Ints:
    """Infer the protocol of each size (0 ll, 1 ll128, 2 simple) from the shape of the times; sizes ascend.

    The sizes are cut into at most three ranges, each fitted by a line of latency and bandwidth. A further
    range must reduce the cost by `_PRICE`. One range is simple; two are ll and simple.
    """
    n = len(size_bytes)
    cost = _costs_of_lines(size_bytes, times_us)
    first, second = np.triu_indices(n + 1)
    named = (second < n) & ((first > 0) | (second == 0))
    num_further = (first > 0).astype(int) + (second > first)
    totals = cost[0, first] + cost[first, second] + cost[second, n] + _PRICE * num_further
    return _cut_at(np.where(named, totals, np.inf), n)


def _costs_of_lines(size_bytes: Floats, times_us: Floats) -> Floats:
    """Costs, (n + 1, n + 1): entry (i, j) is the cost of the best line through sizes i to j - 1.

    Both terms of a line are nonnegative. Iteratively reweighted least squares minimizes the pseudo-Huber
    loss. Ranges of fewer than `_LEAST` sizes cost infinity, empty ranges 0.
    """
    n = len(size_bytes)
    # Latency and bandwidth terms differ by many powers of ten, so each is scaled by its maximum.
    rows = np.stack([1 / times_us, size_bytes / times_us])
    rows /= rows.max(axis=1, keepdims=True)
    costs = np.zeros((n + 1, n + 1))
    for begin in range(n):
        inside = np.tri(n - begin)  # one row of weights for each last size of the range
        some, errors = rows[:, begin:], np.zeros_like(inside)
        for _ in range(_ROUNDS):
            weights = inside / np.sqrt(1 + (errors / NOISE) ** 2)
            errors = _nonnegative_lines(weights, some) @ some - 1
        found = (robust(errors) * inside).sum(axis=1)
        found[: min(_LEAST, n) - 1] = np.inf
        costs[begin, begin + 1 :] = found
    return costs


def _nonnegative_lines(weights: Floats, rows: Floats) -> Floats:
    """Nonnegative factors a and b, (lines, 2), that bring a * rows[0] + b * rows[1] nearest to 1.

    - `weights`, (lines, sizes): Weights of the squared distances from 1, for each pair of factors.
    - `rows`, (2, sizes): Positive numbers, so the best factor of one row alone is positive, too.
    """
    one, other = weights @ rows[0], weights @ rows[1]
    ones, others, mixed = weights @ rows[0] ** 2, weights @ rows[1] ** 2, weights @ (rows[0] * rows[1])
    determinant = ones * others - mixed**2
    is_line = determinant > _PARALLEL * ones * others
    both = np.stack([others * one - mixed * other, ones * other - mixed * one], axis=1)
    both /= np.where(is_line, determinant, 1)[:, None]
    is_first = one**2 / ones >= other**2 / others
    alone = np.stack([is_first * one / ones, ~is_first * other / others], axis=1)
    return np.where((is_line & (both >= 0).all(axis=1))[:, None], both, alone)


def reassigned(predicted_us: Floats, times_us: Floats, protocols: Sequence[int] = (0, 1, 2)) -> Ints:
    """Choose the protocol index of each size so that predictions, (3, sizes), match measured times best.

    Protocols keep their order over ascending sizes, and each protocol has none or at least `_LEAST` sizes.

    - `protocols`: Indices to choose from.
    """
    costs = robust(np.log(predicted_us / times_us))
    costs[np.setdiff1d(range(len(costs)), protocols)] = _NEVER
    n = costs.shape[1]
    sums = np.concatenate([np.zeros((3, 1)), np.cumsum(costs, axis=1)], axis=1)
    first, second = np.triu_indices(n + 1)
    totals = sums[0, first] + sums[1, second] - sums[1, first] + sums[2, n] - sums[2, second]
    lengths = np.stack([first, second - first, n - second])
    short = ((lengths > 0) & (lengths < min(_LEAST, n))).any(axis=0)
    return _cut_at(np.where(short, np.inf, totals), n)


def _cut_at(totals: Floats, n: int) -> Ints:
    """Protocol index of each of `n` sizes, for the two protocol switches (cuts) with the least total cost.

    - `totals`: Cost of each pair of cuts, in the order of `np.triu_indices(n + 1)`.
    """
    cuts = np.transpose(np.triu_indices(n + 1))[np.argmin(totals)]
    return np.searchsorted(cuts, np.arange(n), side="right")
