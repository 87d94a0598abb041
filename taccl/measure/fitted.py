"""Results of `fit`: parameters with intervals, series with predictions, and errors."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from taccl._internal.arguments import Bytes, Count, checked
from taccl._internal.names import note_lines, shown, table
from taccl._internal.units import format_count, format_size
from taccl.errors import InputError
from taccl.measure.curve import irregularity, noise
from taccl.measure.library_costs import Costs
from taccl.measure.machine import Machine, find_machine
from taccl.measure.model import terms_of, times_us
from taccl.measure.predict import predicted_us
from taccl.measure.series import BETWEEN_RUNS, POINT_TO_POINT, Series
from taccl.topology.profile_files import factors_at

#: Max median relative error of a fit that describes the machine.
WORST_MEDIAN = 0.15


@dataclass(frozen=True, slots=True)
class FittedParameter:
    """A parameter with its 90 % interval and the source of its value: the logs or its prior."""

    name: str
    value: float
    low: float
    high: float
    unit: str
    source: str
    determined: bool


@dataclass(frozen=True, slots=True)
class FittedSeries:
    """A series with predicted time and protocol at each size (0 ll, 1 ll128, 2 simple).

    - `factors`: Correction at each size, included in the predicted times; empty if there is none.
    - `below`: Size in bytes from which each algorithm is not used, as `CostTerms.below`.
    """

    series: Series
    predicted_us: tuple[float, ...]
    protocols: tuple[int, ...]
    factors: tuple[float, ...] = ()
    below: tuple[float, ...] = ()

    def factor(self, size_bytes: int) -> float:
        """Correction at a size; beyond the measured sizes, that of the nearest one."""
        if not self.factors:
            return 1.0
        return float(factors_at(size_bytes, self.series.size_bytes, self.factors))

    @property
    def model_errors(self) -> list[float]:
        """Relative errors of the cost model alone, without the correction by size."""
        predicted = np.array(self.predicted_us) / np.array(self.factors or 1.0)
        return [abs(error) for error in (predicted / np.array(self.series.times_us) - 1).tolist()]

    @property
    def ranges(self) -> dict[int, tuple[int, int]]:
        """{protocol: smallest and largest measured size at which the library used it}."""
        sizes = {
            index: [
                size
                for size, each in zip(self.series.size_bytes, self.protocols, strict=True)
                if each == index
            ]
            for index in sorted(set(self.protocols))
        }
        return {index: (taken[0], taken[-1]) for index, taken in sizes.items()}


@dataclass(frozen=True, slots=True)
class Fit:
    """Fitted parameters of a machine; parameters that the logs do not determine keep their priors.

    Parameters
    ----------
    machine : str
        Machine model whose constants are the priors.
    parameters : tuple of FittedParameter
        All parameters, in the order of `PARAMETERS`.
    series : tuple of FittedSeries
        Measured series with predictions.
    errors : tuple of float
        Relative errors at all sizes, as fractions.
    left_out_errors : tuple of float
        Relative errors in 10-fold cross-validation: at each tenth of the sizes, under a fit to the others,
        with their correction by size if the series has one. These errors also decide whether it has one, so
        they are slightly low. Empty if a series has fewer than 3 sizes, or after Ctrl-C.
    rows_left_out : tuple of str
        File and line of each row whose time and bandwidth contradict each other, with the reason.
    protocols : tuple of int
        Protocols that the logs show, and simple. All three if no log has sizes small enough to show latency.
    notes : tuple of str
        Differences between the logs and the machine: other GPUs, CPUs, unequal nodes, impossible rates.
    costs : Costs, optional
        Figures of the machine as far as the logs calibrate them, for collectives and numbers of nodes that
        no log has.
    nvls_share : float
        Share of a rank's rate that sums in switches reach; 0 if the logs show none.
    figures : Machine, optional
        Figures of a topology that is not a machine model; None for machines by name.
    links_shares : mapping of int to float
        By number of ranks that send in a node: share of a rank's links inside its node that join them.
    """

    machine: str
    parameters: tuple[FittedParameter, ...]
    series: tuple[FittedSeries, ...]
    errors: tuple[float, ...]
    left_out_errors: tuple[float, ...]
    rows_left_out: tuple[str, ...]
    protocols: tuple[int, ...] = (0, 1, 2)
    notes: tuple[str, ...] = ()
    costs: Costs | None = None
    nvls_share: float = 0.0
    figures: Machine | None = None
    links_shares: Mapping[int, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        values, left = self.to_dict(), self.left_out_median_error
        errors = [
            ("median error", f"{self.median_error:.1%}"),
            ("90th percentile", f"{values['p90_error']:.1%}"),
            ("largest", f"{values['max_error']:.1%}"),
            (
                "median error at held-out sizes",
                "too few sizes, or no time" if left is None else f"{left:.1%}",
            ),
            *([("noise, by both places", _noise(self.noise, self.median_error))] if self.noise else []),
        ]
        titles = ", ".join(
            f"{each.series.title} ({format_count(len(each.series.size_bytes), 'size')})"
            for each in self.series
        )
        parameters = [
            (p.name, f"{p.value:.4g}", f"{p.low:.4g} to {p.high:.4g}", p.unit, p.source)
            for p in self.parameters
        ]
        head = ("parameter", "value", "90 %", "unit", "source")
        lines = [f"{self.machine}: {titles}", table(errors, indent="  "), ""]
        lines.append(table([head, *parameters], indent="  "))
        lines += ["", *(f"  missing: {each}" for each in self.missing)] if self.missing else []
        for each in self.series:
            sizes, measured = each.series.size_bytes, each.series.times_us
            rows = [
                (format_size(size), f"{time_us:.1f}", f"{predicted:.1f}", f"{predicted / time_us - 1:+.1%}")
                for size, time_us, predicted in zip(sizes, measured, each.predicted_us, strict=True)
            ]
            lines += ["", each.series.title]
            lines.append(table([("size", "measured us", "predicted us", "off"), *rows], indent="  "))
            if each.factors:
                lines.append(f"  {_correction(each.factors)}")
        if self.rows_left_out:
            lines += ["", *(f"  left out: {shown(row)}" for row in self.rows_left_out)]
        return "\n".join(lines + note_lines(self.notes))

    @property
    def median_error(self) -> float:
        """Median of the relative errors, as a fraction."""
        return float(np.median(self.errors))

    @property
    def left_out_median_error(self) -> float | None:
        """Median relative error in cross-validation; None if there are too few sizes, or after Ctrl-C."""
        return float(np.median(self.left_out_errors)) if self.left_out_errors else None

    @property
    def irregularity(self) -> float:
        """Mean relative distance of the measured times from curves that rise with the size, as a fraction."""
        of_each = [(irregularity(each.series), len(each.series.size_bytes)) for each in self.series]
        return sum(found * num for found, num in of_each) / sum(num for _, num in of_each)

    @property
    def noise(self) -> float | None:
        """Median relative deviation of a measured time; None if no log has times of both places.

        It follows from the times in place and out of place. A smaller error of the fit shows nothing more.
        """
        return noise(each.series for each in self.series)

    @property
    def missing(self) -> tuple[str, ...]:
        """Measurements that would determine the parameters left at their priors, one sentence each."""
        undetermined = [each.name for each in self.parameters if not each.determined]
        return missing_measurements(undetermined, [each.series for each in self.series])

    @property
    def complaint(self) -> str:
        """Reason not to use the fit unless the user accepts it; empty if the fit is good."""
        on_cpus = next((note for note in self.notes if ": measured " in note), "")
        if on_cpus:
            return f"{on_cpus}; the model is for GPUs: measure on GPUs, or accept the errors"
        between = next((note for note in self.notes if BETWEEN_RUNS in note), "")
        if between:
            return f"{between}: keep the log of one of them, or accept the errors"
        if self.median_error <= WORST_MEDIAN:
            return ""
        return (
            f"found a median error of {self.median_error:.1%}; expected at most {WORST_MEDIAN:.0%}: the "
            "model does not describe these logs; check machine and nodes, or accept the errors"
        )

    @checked
    def predict_us(self, collective: str, num_ranks: Count, num_nodes: Count, size_bytes: Bytes) -> float:
        """Predicted time of a collective in us.

        Collectives that a log has, on as many ranks and nodes, follow the fitted parameters under the
        protocol that the library used at this size; under the fastest one among `protocols` at sizes between
        those of two protocols, and beyond all. The correction by size of the log applies, if it has one.
        Others follow the library's own choice and pipeline, calibrated to the logs.

        Parameters
        ----------
        collective : str
            Name of the collective.
        num_ranks, num_nodes : int
            Numbers of ranks and of equal nodes that it runs on.
        size_bytes : int
            The larger of a rank's input and output, in bytes.
        """
        seen = {(e.series.collective, e.series.num_ranks, e.series.num_nodes): e for e in self.series}
        measured = seen.get((collective, num_ranks, num_nodes))
        ranges = {} if measured is None else measured.ranges
        if self.costs is not None and not ranges:
            size = np.array([float(size_bytes)])
            return float(predicted_us(self.costs, collective, num_ranks, num_nodes, size)[0])
        asked = Series(collective, num_ranks, num_nodes, (size_bytes,), (1.0,), "asked")
        logs = np.log([each.value for each in self.parameters])
        machine = self.figures or find_machine(self.machine)
        terms = terms_of(
            asked, machine.ranks_per_nic, self.nvls_share, self.links_shares.get(senders(asked), 1.0)
        )
        if measured is not None and measured.below:
            terms = terms._replace(below=np.array(measured.below))
        used = [index for index, (low, high) in ranges.items() if low <= size_bytes <= high]
        times = times_us(terms, np.array([float(size_bytes)]), logs)
        factor = 1.0 if measured is None else measured.factor(size_bytes)
        return factor * float(np.min(times[used or list(self.protocols)]))

    def to_toml(self, *, accept: bool = False) -> str:
        """Profile of the machine as TOML text, which can be saved and then given instead of a profile name.

        Parameters
        ----------
        accept : bool
            True to accept a poor fit.

        Raises
        ------
        InputError
            If the fit is poor and not accepted, or of a topology that is not a machine model.
        """
        from taccl.measure.profile import profile_toml

        if self.figures is not None:
            said = f"found a fit to {self.machine}; a profile holds constants of a machine model, by name"
            fitted = {each.name: f"{each.value:.4g} GB/s" for each in self.parameters if each.determined}
            rates = {"node_gb_per_s": "over all links of a rank in its node", "network_gb_per_s": "for a NIC"}
            found = " and ".join(f"{fitted[name]} {of}" for name, of in rates.items() if name in fitted)
            remedy = f"state these rates in the topology file: {found}" if found else "no rate was determined"
            raise InputError(f"{said}; {remedy}", where="fit")
        if self.complaint and not accept:
            raise InputError(self.complaint, where="fit")
        left = self.left_out_median_error
        sources = ", ".join(os.path.basename(each.series.source) for each in self.series)
        told = f", at held-out sizes {left:.1%}" if left is not None else ""
        return profile_toml(self, f"taccl fit of {sources}: median error {self.median_error:.1%}{told}")

    def to_dict(self) -> dict[str, Any]:
        """The fit as plain values: errors as fractions, parameters with intervals and sources, and series."""
        return {
            "machine": self.machine,
            "median_error": self.median_error,
            "p90_error": float(np.percentile(self.errors, 90)),
            "max_error": max(self.errors),
            "left_out_median_error": self.left_out_median_error,
            "irregularity": self.irregularity,
            "noise": self.noise,
            "parameters": {each.pop("name"): each for each in map(asdict, self.parameters)},
            "series": [
                {
                    "title": each.series.title, "source": each.series.source,
                    "size_bytes": list(each.series.size_bytes), "measured_us": list(each.series.times_us),
                    "predicted_us": list(each.predicted_us), "protocols": list(each.protocols),
                    "factors": list(each.factors),
                }
                for each in self.series
            ],
            "missing": list(self.missing),
            "rows_left_out": list(self.rows_left_out),
            "notes": list(self.notes),
        }  # fmt: skip


def _correction(factors: tuple[float, ...]) -> str:
    return (
        f"includes a correction by size ({min(factors):.2f} to {max(factors):.2f}), which predicts held-out "
        "sizes better; beyond the measured sizes, it stays at its first or last value"
    )


def _noise(noise: float, error: float) -> str:
    return f"{noise:.1%}" + "; the median error is within it" * (error <= noise)


def senders(series: Series) -> int:
    """Number of ranks of a node that send: all that take part, or two for messages between two ranks."""
    return 2 if series.collective == POINT_TO_POINT else series.num_ranks // series.num_nodes


class _Measurement(NamedTuple):
    """A measurement: sizes in bytes, on one or several nodes, and the parameters that it may determine."""

    text: str
    parameters: tuple[str, ...]
    least: int
    most: float = float("inf")
    is_between: bool | None = False  # True on several nodes, False in one, None for either
    num_sizes: int = 5  # fewest sizes in the range with which a log counts as this measurement


_MEASUREMENTS = (
    _Measurement("small sizes (8 B to 64 KB) in one node", ("launch_us", "node_latency"), 8, 2**16),
    _Measurement("small sizes (8 B to 64 KB) on two nodes", ("network_latency",), 8, 2**16, is_between=True),
    _Measurement(
        "a sweep of sizes by factors of 2 (8 B to 8 GB)",
        ("ll_latency", "ll128_latency", "simple_latency", "ll_share", "ll128_share", "channel_us"),
        8, 2**33, is_between=None, num_sizes=25,
    ),
    _Measurement("large sizes (64 MB and more) in one node", ("node_gb_per_s",), 64 * 10**6),
    _Measurement(
        "large sizes (64 MB and more) on two nodes, or ib_write_bw",
        ("network_gb_per_s",), 64 * 10**6, is_between=True,
    ),
)  # fmt: skip


def missing_measurements(undetermined: Iterable[str], logs: Sequence[Series] = ()) -> tuple[str, ...]:
    """Measurements that would determine parameters, one sentence each; empty if all are determined.

    If `logs` contain the measurement for a parameter already, the sentence says that it is not enough.
    """
    names = set(undetermined)
    found = []
    for each in _MEASUREMENTS:
        some = ", ".join(name for name in each.parameters if name in names)
        if some and any(_has(log, each) for log in logs):
            found.append(f"{some}: not determined, although the logs have {each.text}")
        elif some:
            found.append(f"{each.text} would determine {some}")
    return tuple(found)


def _has(log: Series, wanted: _Measurement) -> bool:
    """True if a log contains a measurement."""
    if wanted.is_between is not None and wanted.is_between != (log.num_nodes > 1):
        return False
    return sum(wanted.least <= size <= wanted.most for size in log.size_bytes) >= wanted.num_sizes
