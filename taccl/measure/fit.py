"""`fit`: a cost model of a machine fitted to benchmark logs, with errors and intervals."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from taccl._internal.arguments import Bytes, Count, Natural, checked
from taccl.errors import InputError
from taccl.measure.calibrate import calibrated
from taccl.measure.channel_limits import channel_costs, few_channels
from taccl.measure.curve import irregularity, irregularity_note
from taccl.measure.estimate import (
    CONTRADICTED,
    LIMITS,
    Estimate,
    Observed,
    cost_of,
    estimate,
    refit,
    shows_latency,
)
from taccl.measure.gpus import check_alike
from taccl.measure.library_costs import Costs
from taccl.measure.logs import read_log
from taccl.measure.machine import (
    Machine,
    figures_of,
    find_machine,
    links_share,
    local_ranks,
    mismatches,
    modelled,
    placed,
    with_switches,
    wrong_ranks,
)
from taccl.measure.missing import missing_measurements
from taccl.measure.model import COLLECTIVES, PARAMETERS, Parameter, priors, terms_of, times_us
from taccl.measure.predict import costs_of, predicted_us
from taccl.measure.series import POINT_TO_POINT, Log, Series, joined
from taccl.topology.topology import Topology

#: Max median relative error of a fit that describes the machine.
WORST_MEDIAN = 0.15
#: Min sizes for held-out sizes, and for intervals by resampling.
_MIN_SIZES = 3
#: Max 90th percentile of the relative errors; above it, a note says that some sizes fit badly.
WORST_P90 = 0.2
_FOLDS = 10
#: Prior rate of a NIC in GB/s for a topology without a network, where it has no effect.
_USUAL_NIC = 25.0
_RESAMPLES = 100
_INTERVAL = (5, 95)
#: Max ratio of a fitted rate to that in NCCL's tables; a higher rate implies sums in switches (our choice).
MOST_OF_LINK = 1.1


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
    """A series with predicted time and protocol at each size (0 ll, 1 ll128, 2 simple)."""

    series: Series
    predicted_us: tuple[float, ...]
    protocols: tuple[int, ...]

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
        Relative errors in 10-fold cross-validation: at each tenth of the sizes, under a fit to the others.
        Empty if a series has fewer than 3 sizes.
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

    @property
    def median_error(self) -> float:
        """Median of the relative errors, as a fraction."""
        return float(np.median(self.errors))

    @property
    def left_out_median_error(self) -> float | None:
        """Median relative error in cross-validation; None if there are too few sizes for that."""
        return float(np.median(self.left_out_errors)) if self.left_out_errors else None

    @property
    def irregularity(self) -> float:
        """Mean relative distance of the measured times from curves that rise with the size, as a fraction."""
        of_each = [(irregularity(each.series), len(each.series.size_bytes)) for each in self.series]
        return sum(found * num for found, num in of_each) / sum(num for _, num in of_each)

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
        those of two protocols, and beyond all. Others follow the library's own choice and pipeline,
        calibrated to the logs.

        Parameters
        ----------
        collective : str
            Name of the collective.
        num_ranks, num_nodes : int
            Numbers of ranks and of equal nodes that it runs on.
        size_bytes : int
            The larger of a rank's input and output, in bytes.
        """
        seen = {(e.series.collective, e.series.num_ranks, e.series.num_nodes): e.ranges for e in self.series}
        ranges = seen.get((collective, num_ranks, num_nodes), {})
        if self.costs is not None and not ranges:
            size = np.array([float(size_bytes)])
            return float(predicted_us(self.costs, collective, num_ranks, num_nodes, size)[0])
        asked = Series(collective, num_ranks, num_nodes, (size_bytes,), (1.0,), "asked")
        logs = np.log([each.value for each in self.parameters])
        machine = self.figures or find_machine(self.machine)
        terms = terms_of(
            asked, machine.ranks_per_nic, self.nvls_share, self.links_shares.get(_senders(asked), 1.0)
        )
        used = [index for index, (low, high) in ranges.items() if low <= size_bytes <= high]
        times = times_us(terms, np.array([float(size_bytes)]), logs)
        return float(np.min(times[used or list(self.protocols)]))

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
            "parameters": {each.pop("name"): each for each in map(asdict, self.parameters)},
            "series": [
                {
                    "title": each.series.title, "source": each.series.source,
                    "size_bytes": list(each.series.size_bytes), "measured_us": list(each.series.times_us),
                    "predicted_us": list(each.predicted_us), "protocols": list(each.protocols),
                }
                for each in self.series
            ],
            "missing": list(self.missing),
            "rows_left_out": list(self.rows_left_out),
            "notes": list(self.notes),
        }  # fmt: skip


@checked
def fit(
    logs: Sequence[str], topology: Topology | str, *, nodes: Count | None = None,
    collective: str | None = None, in_place: bool = False, ranks: Sequence[int] | None = None,
    without_ranks: Sequence[int] = (), seed: Natural = 0,
) -> Fit:  # fmt: skip
    """Fit the cost model of a machine to benchmark logs.

    Parameters
    ----------
    logs : sequence of str
        Paths of logs of nccl-tests, rccl-tests, perftest, OSU micro-benchmarks, or ``taccl run --json``, all
        measured on one machine.
    topology : Topology or str
        Name of a machine model, such as ``"dgx-h100"``, whose constants are the priors; or a topology, such
        as one from a file, whose rates are the priors. Profiles can be made of machine models only.
    nodes : int, optional
        Number of nodes of the largest log, for logs that do not list their hosts, or if a node is a rack;
        other logs have proportionally many. By default as many as their ranks fill. Logs that list their
        hosts have at most this many nodes.
    collective : str, optional
        Collective that was measured, for logs that do not state it.
    in_place : bool
        True for the in-place times of nccl-tests and rccl-tests, False for the out-of-place times.
    ranks, without_ranks : sequence of int
        Ranks of the machine that took part, or did not, as CUDA_VISIBLE_DEVICES says; the same in each node.
        By default a log with fewer ranks has the first ranks of each node.
    seed : int
        Seed of the resampling for the intervals.

    Returns
    -------
    Fit
        Parameters with intervals, errors, and notes on differences between logs and machine.

    Raises
    ------
    FormatError
        If a file has no usable row, a time is not above 0, or the logs are of different machines.
    InputError
        If the topology is not a machine model, a log has more ranks or nodes than expected, or ranks differ
        between nodes.
    """
    if not logs:
        raise InputError("found no log; give at least one file", where="logs")
    if collective is not None and collective not in COLLECTIVES:
        said = f"found {collective!r}; expected one of {', '.join(COLLECTIVES)}"
        raise InputError(said, where="collective")
    read = [modelled(read_log(log, collective=collective, in_place=in_place)) for log in logs]
    check_alike(read, "fit")
    is_named = isinstance(topology, str)
    guesses: list[str] = []
    if isinstance(topology, str):
        machine = find_machine(topology)
    else:
        on = with_switches(topology, {name for log in read for name in log.gpus})
        guesses = [f"assumed: {each}" for each in on.assumed if each not in topology.assumed]
        machine = figures_of(on)
    rates_source = f"profile nominal of {machine.name}" if is_named else machine.name
    before = priors(machine.node_gb_per_s, machine.network_gb_per_s or _USUAL_NIC, rates_source)
    most = max(each.num_ranks for log in read for each in log.series)
    most_nodes = nodes or max(each.num_nodes for log in read for each in log.series)
    local = local_ranks(machine.ranks_per_node, most_nodes or 1, ranks, without_ranks)
    series = [placed(each, len(local), nodes, most) for log in read for each in log.series]
    if isinstance(topology, Topology) and not topology.machine:  # a machine's model has all its nodes alike
        for each in series:
            if each.num_nodes > topology.num_nodes and each.collective != POINT_TO_POINT:
                said = wrong_ranks(topology, each.num_ranks, topology.num_ranks)
                raise InputError(said, where=each.source)
    costs = _costs(machine.name, read).on_ranks(local) if is_named else None
    kept, slowed = _without_few_channels(joined(series), costs or channel_costs(on))
    rate = machine.node_gb_per_s if costs is None else costs.node_gb_per_s
    shares = {
        num: links_share(on, local[:num]) if costs is None else costs.links_share(num)
        for num in map(_senders, kept)
    }
    observed, found, share, is_off = _estimated(kept, machine, before, shares, MOST_OF_LINK * rate)
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
    p90 = float(np.percentile(errors, 90))
    poor = f"the 90th percentile of the errors is {p90:.0%}: some sizes fit badly; see their table"
    notes = (
        *slowed,
        *mismatches(read, kept, machine, rates),
        *guesses,
        *_at_limits(parameters),
        *([poor] if p90 > WORST_P90 else []),
        *(f"{each.source}: {note}" for each in kept if (note := irregularity_note(each))),
    )
    if costs is not None:
        costs = calibrated(replace(costs, nvls=costs.nvls and not is_off), kept)
    return Fit(
        machine.name, parameters, tuple(fitted), tuple(errors), tuple(_left_out(observed, before)), rows,
        taken, notes, costs, share, None if is_named else machine, shares,
    )  # fmt: skip


def _estimated(
    series: Sequence[Series],
    machine: Machine,
    before: Sequence[Parameter],
    shares: Mapping[int, float],
    most_gb_per_s: float,
) -> tuple[list[Observed], Estimate, float, bool]:
    """Estimate parameters with or without in-switch sums (NVLS), whichever explains the series better.

    - `shares`: Shares of a rank's links, by number of ranks that send in a node (`Fit.links_shares`).

    Returns observations, estimate, rate of in-switch sums as a share of a rank's rate, and True if the logs
    contradict such sums. The estimate without such sums is preferred. Exceptions: its cost exceeds that of
    the other by more than `CONTRADICTED`, or it needs a link above `most_gb_per_s`.
    """
    found = []
    for share in dict.fromkeys((0.0, machine.nvls_share)):
        observed = []
        for each in series:
            terms = terms_of(each, machine.ranks_per_nic, share, shares[_senders(each)])
            observed.append(Observed(terms, np.array(each.size_bytes, float), np.array(each.times_us)))
        found.append((observed, estimate(observed, before), share))
    plain, best = found[0], found[-1]
    plain_cost, best_cost = (cost_of(*each[:2], before) for each in (plain, best))
    rate = float(np.exp(plain[1].logs[PARAMETERS.index("node_gb_per_s")]))
    is_plain = rate <= most_gb_per_s and plain_cost <= best_cost + CONTRADICTED
    against = is_plain and plain_cost + CONTRADICTED < best_cost
    return *(plain if is_plain else best), against


def _costs(machine: str, logs: Sequence[Log]) -> Costs:
    """Costs of a machine by name, under the version of the library that the logs state."""
    version = next((log.debug.version for log in logs if log.debug.version), ())
    return costs_of(machine).under(version)


def _without_few_channels(
    series: Iterable[Series], costs: Costs | None
) -> tuple[tuple[Series, ...], tuple[str, ...]]:
    """(series whose rates are those of links and NICs, notes on the others).

    Raises `InputError` if none are left.
    """
    found = [(each, few_channels(costs, each) if costs is not None else "") for each in series]
    notes = [f"{each.source}: left out, as {clause}, less than a NIC" for each, clause in found if clause]
    kept = tuple(each for each, clause in found if not clause)
    if not kept:
        raise InputError(f"{notes[0]}; add a collective on these nodes, or ib_write_bw", where="logs")
    return kept, tuple(notes)


def _senders(series: Series) -> int:
    """Number of ranks of a node that send: all that take part, or two for messages between two ranks."""
    return 2 if series.collective == POINT_TO_POINT else series.num_ranks // series.num_nodes


def _at_limits(parameters: Sequence[FittedParameter]) -> Iterator[str]:
    """Yield a sentence for each fitted parameter at its physical limit, with the probable reason."""
    for each in parameters:
        least, most = LIMITS.get(each.name, (0.0, np.inf))
        if not each.determined or least * 1.01 < each.value < most * 0.99:
            continue
        why = "another algorithm, or fewer channels, carried these sizes"
        if each.name.endswith("_latency"):
            why = "a slower path than the machine's links was used, possibly through hosts"
        yield f"{each.name} is at its limit of {each.value:.3g}, its physical limit: {why}"


def _left_out(observed: Sequence[Observed], before: Sequence[Parameter]) -> list[float]:
    """Relative errors in 10-fold cross-validation: a fit to nine tenths of the sizes predicts the others."""
    if min(len(each.size_bytes) for each in observed) < _MIN_SIZES:
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
    """Add to each parameter its interval, from bootstrap resampling, or from the prior.

    The prior has the width of the interval if the parameter is undetermined, or there are too few sizes.
    """
    random = np.random.default_rng(seed)
    samples = []
    for _ in range(_RESAMPLES):
        counts = [len(each.size_bytes) for each in observed]
        rows = [np.sort(random.integers(count, size=count)) for count in counts]
        drawn = [each.part(chosen) for each, chosen in zip(observed, rows, strict=True)]
        protocols = tuple(p[chosen] for p, chosen in zip(found.protocols, rows, strict=True))
        samples.append(refit(drawn, before, found, protocols))
    lows, highs = np.percentile(np.array(samples), _INTERVAL, axis=0)
    is_few = sum(len(each.size_bytes) for each in observed) < _MIN_SIZES
    fitted = []
    for index, prior in enumerate(before):
        free = bool(found.free[index])
        value = float(np.exp(found.logs[index])) if free else prior.value
        off = 1.645 * prior.spread
        low, high = np.log(value) - off, np.log(value) + off
        if free and not is_few:
            low, high = lows[index], highs[index]
        said = f"fitted to {source}" if free else f"prior, not determined ({prior.source})"
        said += "; too few sizes for its interval, that of the prior" if free and is_few else ""
        most = 1.0 if prior.name.endswith("_share") else np.inf
        ends = min(float(np.exp(low)), value), max(min(float(np.exp(high)), most), value)
        fitted.append(FittedParameter(prior.name, value, *ends, prior.unit, said, free))
    return tuple(fitted)
