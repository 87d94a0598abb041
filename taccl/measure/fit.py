"""`fit`: a cost model of a machine from logs of benchmarks, and how well it agrees with them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from taccl.arguments import Bytes, Count, Natural, checked
from taccl.errors import FormatError, InputError
from taccl.measure.estimate import Estimate, Observed, estimate, refit, shows_latency
from taccl.measure.logs import joined, read_log
from taccl.measure.machine import find_machine
from taccl.measure.mismatch import mismatches
from taccl.measure.model import COLLECTIVES, Parameter, priors, terms_of, times_us
from taccl.measure.series import Series
from taccl.units import format_count

#: A median error beyond this says that the model is not of this machine.
WORST_MEDIAN = 0.15
_FOLDS = 10
#: Most ranks whose number bandwidths of two decimals determine; above, all nodes are assumed alike.
_COUNTABLE = 64
_RESAMPLES = 100
_INTERVAL = (5, 95)


@dataclass(frozen=True, slots=True)
class FittedParameter:
    """A parameter with its interval of 90 %, and where the value comes from: the logs, or its prior."""

    name: str
    value: float
    low: float
    high: float
    unit: str
    source: str
    determined: bool


@dataclass(frozen=True, slots=True)
class FittedSeries:
    """A series, what the model says of each size, and the protocol there (0 ll, 1 ll128, 2 simple)."""

    series: Series
    predicted_us: tuple[float, ...]
    protocols: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fit:
    """Parameters of a machine that logs determine, beside those that stay at their priors.

    Parameters
    ----------
    machine : str
        The machine model whose priors were taken.
    errors, left_out_errors : tuple of float
        Relative errors of all sizes; and of each tenth of the sizes under a fit to the others.
    rows_left_out : tuple of str
        File and line of each row that disagrees with itself, and why.
    protocols : tuple of int
        Those that were taken, and simple; all, where no log goes down to sizes that tell.
    notes : tuple of str
        Differences between the logs and the machine: other GPUs, CPUs, unequal nodes, impossible rates.
    """

    machine: str
    parameters: tuple[FittedParameter, ...]
    series: tuple[FittedSeries, ...]
    errors: tuple[float, ...]
    left_out_errors: tuple[float, ...]
    rows_left_out: tuple[str, ...]
    protocols: tuple[int, ...] = (0, 1, 2)
    notes: tuple[str, ...] = ()

    @property
    def median_error(self) -> float:
        """The median of the relative errors."""
        return float(np.median(self.errors))

    @property
    def left_out_median_error(self) -> float | None:
        """The same of sizes left out; None where there are too few to leave any out."""
        return float(np.median(self.left_out_errors)) if self.left_out_errors else None

    @property
    def complaint(self) -> str:
        """Why the fit is not to be used unless accepted; empty where it is."""
        if self.median_error <= WORST_MEDIAN:
            return ""
        return (
            f"found a median error of {self.median_error:.1%}; expected at most {WORST_MEDIAN:.0%}: the "
            "model does not describe these logs; check machine and nodes, or accept it as it is"
        )

    @checked
    def predict_us(self, collective: str, num_ranks: Count, num_nodes: Count, size_bytes: Bytes) -> float:
        """The time of a collective, under the fastest of the protocols that were taken.

        Parameters
        ----------
        collective : str
            Its name.
        num_ranks, num_nodes : int
            Where it runs.
        size_bytes : int
            The larger of a rank's input and output.
        """
        asked = Series(collective, num_ranks, num_nodes, (size_bytes,), (1.0,), "asked")
        logs = np.log([each.value for each in self.parameters])
        terms = terms_of(asked, find_machine(self.machine).ranks_per_nic)
        return float(np.min(times_us(terms, np.array([float(size_bytes)]), logs)[list(self.protocols)]))

    def to_toml(self, *, accept: bool = False) -> str:
        """A profile of the machine, which works wherever a profile's name does.

        Raises
        ------
        InputError
            If the fit is poor and not accepted.
        """
        from taccl.measure.profile import profile_toml

        if self.complaint and not accept:
            raise InputError(self.complaint, where="fit")
        left = self.left_out_median_error
        sources = ", ".join(os.path.basename(each.series.source) for each in self.series)
        told = f", of sizes left out {left:.1%}" if left is not None else ""
        return profile_toml(self, f"taccl fit of {sources}: median error {self.median_error:.1%}{told}")

    def to_dict(self) -> dict[str, Any]:
        """Errors as fractions, parameters with intervals and sources, and the series, as plain values."""
        return {
            "machine": self.machine,
            "median_error": self.median_error,
            "p90_error": float(np.percentile(self.errors, 90)),
            "max_error": max(self.errors),
            "left_out_median_error": self.left_out_median_error,
            "parameters": {each.pop("name"): each for each in map(asdict, self.parameters)},
            "series": [
                {
                    "title": each.series.title, "source": each.series.source,
                    "size_bytes": list(each.series.size_bytes), "measured_us": list(each.series.times_us),
                    "predicted_us": list(each.predicted_us), "protocols": list(each.protocols),
                }
                for each in self.series
            ],
            "rows_left_out": list(self.rows_left_out),
            "notes": list(self.notes),
        }  # fmt: skip


@checked
def fit(
    logs: Sequence[str], topology: str, *, nodes: Count | None = None, collective: str | None = None,
    in_place: bool = False, seed: Natural = 0,
) -> Fit:  # fmt: skip
    """The cost model of a machine that explains logs of benchmarks best.

    Parameters
    ----------
    logs : sequence of str
        Files of nccl-tests, rccl-tests, perftest, OSU micro-benchmarks, or ``taccl run --json``, all of one
        machine.
    topology : str
        A machine model, whose constants are priors: ``"dgx-h100"``.
    nodes : int, optional
        Most nodes that the machine may have, where a log does not state the number of ranks.
    collective : str, optional
        What was measured, where a log does not say.
    in_place : bool
        Which of the times of nccl-tests and rccl-tests; default: those out of place.
    seed : int
        Of the resampling that intervals come from.

    Raises
    ------
    FormatError
        If a file has nothing to read, a time is not above 0, or logs are of different machines.
    InputError
        If the topology is no machine model, or a log has more ranks than it.
    """
    if not logs:
        raise InputError("found no log; give at least one file", where="logs")
    if collective is not None and collective not in COLLECTIVES:
        said = f"found {collective!r}; expected one of {', '.join(COLLECTIVES)}"
        raise InputError(said, where="collective")
    read = [read_log(log, collective=collective, in_place=in_place) for log in logs]
    first = next((log for log in read if log.gpus), read[0])
    for log in read:
        if log.gpus and log.gpus != first.gpus:
            here, there = (", ".join(sorted(each.gpus)) for each in (log, first))
            said = f"found {here}, but {first.path} is of {there}; expected logs of one machine"
            raise FormatError(f"{said}: fit them apart", where=log.path)
    machine = find_machine(topology)
    before = priors(machine.node_gb_per_s, machine.network_gb_per_s, f"profile nominal of {machine.name}")
    series = [_placed(each, machine.ranks_per_node, nodes) for log in read for each in log.series]
    kept = tuple(joined(series))
    observed = []
    for each in kept:
        sizes, times = np.array(each.size_bytes, float), np.array(each.times_us)
        observed.append(Observed(terms_of(each, machine.ranks_per_nic), sizes, times))
    found = estimate(observed, before)
    fitted, errors = [], []
    for each, seen, protocols in zip(kept, observed, found.protocols, strict=True):
        predicted = seen.predicted_us(found.logs)[protocols, np.arange(len(protocols))]
        errors += np.abs(predicted / seen.times_us - 1).tolist()
        fitted.append(FittedSeries(each, tuple(predicted.tolist()), tuple(protocols.tolist())))
    taken = (0, 1, 2)
    if any(map(shows_latency, observed)):
        taken = tuple(np.unique(np.concatenate([*found.protocols, [2]])).tolist())
    source = ", ".join(os.path.basename(log.path) for log in read)
    rows = tuple(f"{log.path}: {row}" for log in read for row in log.left_out)
    parameters = _parameters(observed, before, found, source, seed)
    rates = [
        (each.name, each.value, prior.value)
        for each, prior in zip(parameters, before, strict=True)
        if each.determined and each.name.endswith("_gb_per_s")
    ]
    notes = mismatches(read, kept, machine, rates)
    return Fit(
        machine.name, parameters, tuple(fitted), tuple(errors), tuple(_left_out(observed, before)), rows,
        taken, notes,
    )  # fmt: skip


def _placed(each: Series, ranks_per_node: int, nodes: int | None) -> Series:
    """The series with its ranks and nodes, which a log may leave unsaid; many ranks fill whole nodes."""
    n = each.num_ranks or ranks_per_node * (nodes or 1)
    if each.collective not in COLLECTIVES or n < 2:
        known = f"one of {', '.join(COLLECTIVES)}, on two ranks or more"
        raise FormatError(f"found {each.collective!r} on {n} ranks; expected {known}", where=each.source)
    m = each.num_nodes or -(-n // ranks_per_node)
    if ranks_per_node > _COUNTABLE:  # racks, of whose trays a log lists each as a host
        m = -(-n // ranks_per_node)
    if n > _COUNTABLE:
        n = m * round(n / m)
    if n > m * ranks_per_node or (nodes is not None and m > nodes and not each.streams):
        found = f"found {format_count(n, 'rank')} in {format_count(m, 'node')}"
        most = f"{format_count(nodes or m, 'node')} of {format_count(ranks_per_node, 'rank')}"
        said = f"{found}; expected at most {most}; check --topology and --nodes"
        raise InputError(said, where=each.source)
    return each.on(n, m)


def _left_out(observed: Sequence[Observed], before: Sequence[Parameter]) -> list[float]:
    """Errors at each tenth of the sizes, under a fit to the other sizes that knows nothing of them."""
    if min(len(each.size_bytes) for each in observed) < 3:
        return []
    errors: list[float] = []
    for fold in range(_FOLDS):
        out = [np.arange(len(each.size_bytes)) % _FOLDS == fold for each in observed]
        if not any(each.any() for each in out):
            continue
        kept = [each.part(~away) for each, away in zip(observed, out, strict=True)]
        found = estimate(kept, before)
        for index, (each, away) in enumerate(zip(observed, out, strict=True)):
            sizes, times = each.size_bytes[away], each.times_us[away]
            predicted = found.predicted_like_us(index, kept[index], sizes)
            errors += np.abs(predicted / times - 1).tolist()
    return errors


def _parameters(
    observed: Sequence[Observed], before: Sequence[Parameter], found: Estimate, source: str, seed: int
) -> tuple[FittedParameter, ...]:
    """Each parameter with its interval: over resampled rows, or of its prior where it is not determined."""
    random = np.random.default_rng(seed)
    samples = []
    for _ in range(_RESAMPLES):
        counts = [len(each.size_bytes) for each in observed]
        rows = [np.sort(random.integers(count, size=count)) for count in counts]
        drawn = [each.part(chosen) for each, chosen in zip(observed, rows, strict=True)]
        protocols = tuple(p[chosen] for p, chosen in zip(found.protocols, rows, strict=True))
        samples.append(refit(drawn, before, found, protocols))
    lows, highs = np.percentile(np.array(samples), _INTERVAL, axis=0)
    fitted = []
    for index, prior in enumerate(before):
        free = bool(found.free[index])
        value = float(np.exp(found.logs[index])) if free else prior.value
        off = 1.645 * prior.spread
        low, high = (lows[index], highs[index]) if free else (np.log(value) - off, np.log(value) + off)
        said = f"fitted to {source}" if free else f"prior, not determined ({prior.source})"
        most = 1.0 if prior.name.endswith("_share") else np.inf
        ends = min(float(np.exp(low)), value), max(min(float(np.exp(high)), most), value)
        fitted.append(FittedParameter(prior.name, value, *ends, prior.unit, said, free))
    return tuple(fitted)
