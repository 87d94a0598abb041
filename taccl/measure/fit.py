"""`fit`: a cost model of a machine fitted to benchmark logs, with errors and intervals."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from taccl._internal.address_space import require_address_space
from taccl._internal.arguments import Count, Natural, checked
from taccl._internal.arrays import Floats, Ints
from taccl._internal.deadline import Deadline, OutOfTime
from taccl.errors import InputError, NumericsWarning, warn
from taccl.measure.channel_limits import channel_costs, few_channels
from taccl.measure.correction import LeftOut, correction
from taccl.measure.curve import irregularity_note
from taccl.measure.estimate import (
    CONTRADICTED,
    Estimate,
    Observed,
    cost_of,
    estimate,
    refit,
    robust,
    robust_residuals,
    shows_latency,
)
from taccl.measure.fitted import Fit, FittedParameter, FittedSeries, senders
from taccl.measure.gpus import check_alike
from taccl.measure.library_costs import Costs
from taccl.measure.logs import read_log
from taccl.measure.machine import (
    Machine,
    figures_of,
    find_machine,
    links_share,
    local_ranks,
    modelled,
    placed,
    with_switches,
)
from taccl.measure.mismatch import mismatches, wrong_ranks
from taccl.measure.model import COLLECTIVES, PARAMETERS, Choice, Parameter, priors, terms_of
from taccl.measure.predict import choice_of, costs_of, series_us
from taccl.measure.series import POINT_TO_POINT, Series, differing_logs, joined
from taccl.topology.topology import Topology
from taccl.topology.tuning import PROTOCOLS

#: Min sizes for held-out sizes, and for intervals by resampling.
_MIN_SIZES = 3
#: Max 90th percentile of relative errors without correction by size; above it, a warning and a note.
WORST_P90 = 0.2
#: Max ratio of a fitted value to its physical limit at which it counts as limited.
_NEAR = 1.005
_FOLDS = 10
#: Prior rate of a NIC in GB/s for a topology without a network, where it has no effect.
_USUAL_NIC = 25.0
#: Number of bootstrap resamples for intervals, and the fewest that suffice after Ctrl-C.
_RESAMPLES, _MIN_RESAMPLES = 100, 20
_INTERVAL = (5, 95)
#: Index of the rate inside a node among the parameters.
_NODE_RATE = PARAMETERS.index("node_gb_per_s")
#: Max ratio of a fitted rate to that in NCCL's tables; a higher rate implies sums in switches (our choice).
MOST_OF_LINK = 1.1


@checked
def fit(
    logs: Sequence[str | os.PathLike[str]], topology: Topology | str, *, nodes: Count | None = None,
    collective: str | None = None, in_place: bool = False, ranks: Sequence[int] | None = None,
    without_ranks: Sequence[int] = (), seed: Natural = 0,
) -> Fit:  # fmt: skip
    """Fit the cost model of a machine to benchmark logs.

    Parameters
    ----------
    logs : sequence of str or path
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
    gpus = {name for log in read for name in log.gpus}
    on, guesses = (None, []) if isinstance(topology, str) else _with_guesses(topology, gpus)
    machine = find_machine(str(topology)) if on is None else figures_of(on)
    rates_source = f"profile nominal of {machine.name}" if on is None else machine.name
    nic_gb_per_s = machine.network_gb_per_s or _USUAL_NIC
    before = priors(machine.node_gb_per_s, nic_gb_per_s, rates_source, is_wire=on is None)
    most = max(each.num_ranks for log in read for each in log.series)
    most_nodes = nodes or max(each.num_nodes for log in read for each in log.series)
    local = local_ranks(machine.ranks_per_node, most_nodes or 1, ranks, without_ranks)
    series = [placed(each, len(local), nodes, most) for log in read for each in log.series]
    if on is not None:
        _check_nodes(series, on)
    version = next((log.debug.version for log in read if log.debug.version), ())
    costs = costs_of(machine.name).under(version).on_ranks(local) if on is None else None
    of_channels = costs if on is None else channel_costs(on)
    kept, slowed = _without_few_channels(joined(series), of_channels, version)
    rate = machine.node_gb_per_s if costs is None else costs.node_gb_per_s
    shares = _links_shares(on, costs, local, set(map(senders, kept)))
    choices = [] if any(log.debug.algorithms for log in read) else _choices(costs, kept)
    protocols = [_protocols(costs, each) for each in kept]
    observed, found, share, is_off = _estimated(
        kept, machine, before, shares, MOST_OF_LINK * rate, choices, protocols
    )
    deadline = Deadline()  # passes at Ctrl-C, on the command line
    tenths = [fold for fold in _left_out(observed, before, deadline) if fold]
    folds = [list(each) for each in zip(*tenths, strict=True)] or [[] for _ in kept]
    fitted = [
        _fitted_series(each, seen, protocols, found.logs, left)
        for each, seen, protocols, left in zip(kept, observed, found.protocols, folds, strict=True)
    ]
    left_out = [
        error
        for each, left in zip(fitted, folds, strict=True)
        for fold in left
        for error in fold.errors(corrected=bool(each.factors)).tolist()
    ]
    errors = [
        abs(predicted / time_us - 1)
        for each in fitted
        for predicted, time_us in zip(each.predicted_us, each.series.times_us, strict=True)
    ]
    taken = (0, 1, 2)
    if any(map(shows_latency, observed)):
        taken = tuple(np.unique(np.concatenate([*found.protocols, [2]])).tolist())
    source = ", ".join(os.path.basename(log.path) for log in read)
    rows = tuple(f"{log.path}: {row}" for log in read for row in log.left_out)
    samples = _samples(observed, before, found, seed, deadline)
    parameters = _parameters(observed, before, found, source, samples)
    rates = [
        (each.name, each.value, prior.value)
        for each, prior in zip(parameters, before, strict=True)
        if each.determined and each.name.endswith("_gb_per_s")
    ]
    p90 = float(np.percentile([error for each in fitted for error in each.model_errors], 90))
    poor = (
        f"the 90th percentile of the errors without correction is {p90:.0%}: "
        "some sizes fit badly; see their table"
    )
    if p90 > WORST_P90:
        warn(f"fit to {source}: {poor}", NumericsWarning)
    notes = (
        *differing_logs(series, [log.path for log in read for _ in log.series]),
        *slowed,
        *mismatches(read, kept, machine, rates),
        *guesses,
        *_at_limits(parameters, before, has_one_node=any(each.num_nodes == 1 for each in kept)),
        *([poor] if p90 > WORST_P90 else []),
        *([_interrupted(len(samples), has_left_out=bool(left_out))] if deadline.has_passed else []),
        *(f"{each.source}: {note}" for each in kept if (note := irregularity_note(each))),
    )
    if costs is not None:
        costs = calibrated(replace(costs, nvls=costs.nvls and not is_off), kept)
    return Fit(
        machine.name, parameters, tuple(fitted), tuple(errors), tuple(left_out), rows,
        taken, notes, costs, share, None if on is None else machine, shares,
    )  # fmt: skip


def _estimated(
    series: Sequence[Series],
    machine: Machine,
    before: Sequence[Parameter],
    shares: Mapping[int, float],
    most_gb_per_s: float,
    choices: Sequence[Choice],
    protocols: Sequence[tuple[int, ...]],
) -> tuple[list[Observed], Estimate, float, bool]:
    """Estimate parameters with or without in-switch sums (NVLS), whichever explains the series better.

    - `shares`: Shares of a rank's links, by number of ranks that send in a node (`Fit.links_shares`).
    - `choices`: Algorithm that the library chooses for each series, or empty.
    - `protocols`: Indices of the protocols that each series may use.

    Returns observations, estimate, rate of in-switch sums as a share of a rank's rate, and True if the logs
    contradict such sums. The estimate without such sums is preferred. Exceptions: its cost exceeds that of
    the other by more than `CONTRADICTED`, or it needs a link above `most_gb_per_s`. An estimate under
    `choices` is preferred to both, with the same exceptions, as rings else look like trees over slower NICs.
    The cost of the sizes that a choice concerns suffices.
    """

    def under(share: float, choices: Sequence[Choice]) -> tuple[list[Observed], Estimate, float, float]:
        observed = []
        for each, choice, usable in zip(series, choices, protocols, strict=True):
            terms = terms_of(each, machine.ranks_per_nic, share, shares[senders(each)], choice)
            terms = terms._replace(protocols=usable)
            observed.append(Observed(terms, np.array(each.size_bytes, float), np.array(each.times_us)))
        found = estimate(observed, before)
        return observed, found, share, cost_of(observed, found, before)

    any_algorithm = [Choice()] * len(series)
    plain = best = under(0.0, any_algorithm)
    if machine.nvls_share:
        best = under(machine.nvls_share, any_algorithm)
    rate = float(np.exp(plain[1].logs[_NODE_RATE]))
    is_plain = rate <= most_gb_per_s and plain[3] <= best[3] + CONTRADICTED
    against = is_plain and plain[3] + CONTRADICTED < best[3]
    taken = plain if is_plain else best
    if choices:
        by_choice = under(0.0, choices)
        logs, free = by_choice[1].logs[_NODE_RATE], by_choice[1].free[_NODE_RATE]
        costs = [(each[3], _large_cost(*each[:2], choices)) for each in (by_choice, taken)]
        is_good = any(own <= other + CONTRADICTED for own, other in zip(*costs, strict=True))
        if is_good and not (free and np.exp(logs) > most_gb_per_s):
            taken = by_choice
    return *taken[:3], against


def _large_cost(observed: Sequence[Observed], found: Estimate, choices: Sequence[Choice]) -> float:
    """Cost of the errors of an estimate at the sizes from which on a choice is known."""
    cost = 0.0
    for each, protocols, choice in zip(observed, found.protocols, choices, strict=True):
        predicted = each.predicted_us(found.logs)[protocols, np.arange(len(protocols))]
        errors = np.log(predicted / each.times_us)[each.size_bytes >= choice.size_bytes]
        cost += float(robust(errors).sum())
    return cost


def _choices(costs: Costs | None, series: Sequence[Series]) -> list[Choice]:
    """The library's choice of ring or tree for large sums between nodes, for each series; empty if unknown.

    Other collectives have one algorithm. Inside a node the links' rate is known, which tells trees apart.
    """
    sums = [each for each in series if each.collective == "allreduce" and each.num_nodes > 1]
    found = {id(each): choice_of(costs, each) for each in sums} if costs is not None else {}
    known = {each.algorithm for each in found.values()} - {""}
    return [found.get(id(each), Choice()) for each in series] if known and known <= {"ring", "tree"} else []


def _protocols(costs: Costs | None, series: Series) -> tuple[int, ...]:
    """Indices of the protocols that a collective may use over the machine's network; simple is always one."""
    only = () if costs is None or series.num_nodes < 2 else costs.network.only
    if not only or series.collective in ("alltoall", POINT_TO_POINT):
        return tuple(range(len(PROTOCOLS)))
    return tuple(
        index for index, each in enumerate(PROTOCOLS) if any(name.endswith(f" {each.name}") for name in only)
    )


def _with_guesses(topology: Topology, gpus: Collection[str]) -> tuple[Topology, list[str]]:
    """(topology with the switches that the names of its GPUs imply, notes on what this assumes)."""
    on = with_switches(topology, gpus)
    return on, [f"assumed: {each}" for each in on.assumed if each not in topology.assumed]


def _links_shares(
    on: Topology | None, costs: Costs | None, local: Sequence[int], nums: Iterable[int]
) -> dict[int, float]:
    """{number of ranks that send in a node: share of a rank's links that join them}.

    - `on`, `costs`: Topology from a file or costs of a machine by name; the other is None.
    """
    if costs is not None:
        return {num: costs.links_share(num) for num in nums}
    assert on is not None, "a machine by name has costs"
    return {num: links_share(on, local[:num]) for num in nums}


def _check_nodes(series: Iterable[Series], topology: Topology) -> None:
    """Raise `InputError` if a collective has more nodes than a topology from a file."""
    for each in series:
        is_larger = each.num_nodes > topology.num_nodes and each.collective != POINT_TO_POINT
        if is_larger and not topology.machine:
            raise InputError(wrong_ranks(topology, each.num_ranks, topology.num_ranks), where=each.source)


def _fitted_series(
    series: Series, observed: Observed, protocols: Ints, logs: Floats, folds: Sequence[LeftOut]
) -> FittedSeries:
    """Series with the predicted time of each size, under its protocol, and with its correction by size."""
    predicted = observed.predicted_us(logs)[protocols, np.arange(len(protocols))]
    factors = np.array([])
    if not observed.terms.streams:
        factors = correction(observed.size_bytes, observed.times_us / predicted, folds)
        predicted = predicted * (factors if factors.size else 1.0)
    numbers = predicted.tolist(), protocols.tolist(), factors.tolist(), observed.terms.below.tolist()
    return FittedSeries(series, *map(tuple, numbers))


def _without_few_channels(
    series: Iterable[Series], costs: Costs | None, version: Sequence[int]
) -> tuple[tuple[Series, ...], tuple[str, ...]]:
    """(series whose rates are those of links and NICs, notes on the others).

    Raises `InputError` if none are left.
    """
    found = [(each, few_channels(costs, each, version) if costs is not None else "") for each in series]
    notes = [f"{each.source}: left out, as {clause}, less than a NIC" for each, clause in found if clause]
    kept = tuple(each for each, clause in found if not clause)
    if not kept:
        raise InputError(f"{notes[0]}; add a collective on these nodes, or ib_write_bw", where="logs")
    return kept, tuple(notes)


def _at_limits(
    parameters: Sequence[FittedParameter], before: Sequence[Parameter], *, has_one_node: bool
) -> Iterator[str]:
    """Yield a sentence for each fitted parameter at its physical limit, with the probable reason.

    - `has_one_node`: True if a log is of one node.
    """
    for each, prior in zip(parameters, before, strict=True):
        if not each.determined or prior.least * _NEAR < each.value < prior.most / _NEAR:
            continue
        why = "another algorithm, or fewer channels, carried these sizes"
        if each.name == "node_latency" and not has_one_node:
            why = "the logs do not tell hops in a node from the network's start; add a log of one node"
        elif each.name.endswith("_latency"):
            why = "a slower path than the machine's links was used, possibly through hosts"
        elif each.name.endswith("_gb_per_s"):
            why = "the times need more than its wire carries; check --topology, the ranks, and which NIC sent"
        yield f"{each.name} is at its limit of {each.value:.3g}, its physical limit: {why}"


def _left_out(
    observed: Sequence[Observed], before: Sequence[Parameter], deadline: Deadline
) -> list[list[LeftOut]]:
    """10-fold cross-validation, by fold and series: a fit to nine tenths of the sizes predicts the others.

    The sizes of a fold are ten places apart, so the neighbours of a size that is left out are kept. Empty
    if there are too few sizes, or at the deadline.
    """
    if min(len(each.size_bytes) for each in observed) < _MIN_SIZES:
        return []
    with suppress(OutOfTime), deadline.enforced():
        return [_fold(fold, observed, before) for fold in range(_FOLDS)]
    return []


def _fold(fold: int, observed: Sequence[Observed], before: Sequence[Parameter]) -> list[LeftOut]:
    """One tenth of the sizes, by series, as a fit to the others predicts them."""
    out = [np.arange(len(each.size_bytes)) % _FOLDS == fold for each in observed]
    if not any(each.any() for each in out):
        return []
    kept = [each.part(~away) for each, away in zip(observed, out, strict=True)]
    found = estimate(kept, before)
    return [
        LeftOut(
            each.size_bytes[away], each.times_us[away],
            found.predicted_like_us(index, some, each.size_bytes[away]), some.size_bytes, some.times_us,
            found.predicted_like_us(index, some, some.size_bytes),
        )
        for index, (each, some, away) in enumerate(zip(observed, kept, out, strict=True))
    ]  # fmt: skip


def _samples(
    observed: Sequence[Observed], before: Sequence[Parameter], found: Estimate, seed: int, deadline: Deadline
) -> list[Floats]:
    """Logarithms of the parameters in bootstrap resamples of the sizes, as many as the deadline permits."""
    random = np.random.default_rng(seed)
    samples: list[Floats] = []
    with suppress(OutOfTime), deadline.enforced():
        for _ in range(_RESAMPLES):
            counts = [len(each.size_bytes) for each in observed]
            rows = [np.sort(random.integers(count, size=count)) for count in counts]
            drawn = [each.part(chosen) for each, chosen in zip(observed, rows, strict=True)]
            protocols = tuple(p[chosen] for p, chosen in zip(found.protocols, rows, strict=True))
            samples.append(refit(drawn, before, found, protocols))
    return samples


def _interrupted(num_samples: int, *, has_left_out: bool) -> str:
    """Note on a fit that Ctrl-C ended.

    - `has_left_out`: True if errors at held-out sizes are known.
    """
    unknown = "" if has_left_out else ", and errors at held-out sizes are unknown"
    rest = f"intervals rest on {num_samples} of {_RESAMPLES} resamples{unknown}"
    return f"stopped by Ctrl-C: {rest}; fit again for the rest"


def _parameters(
    observed: Sequence[Observed], before: Sequence[Parameter], found: Estimate, source: str,
    samples: Sequence[Floats],
) -> tuple[FittedParameter, ...]:  # fmt: skip
    """Add to each parameter its interval, from bootstrap resampling, or from the prior.

    The prior has the width of the interval if the parameter is undetermined, or there are too few sizes or
    resamples.
    """
    few = "sizes" if sum(len(each.size_bytes) for each in observed) < _MIN_SIZES else ""
    few = few or "resamples" * (len(samples) < _MIN_RESAMPLES)
    lows, highs = np.percentile(np.array(samples or [found.logs]), _INTERVAL, axis=0)
    fitted = []
    for index, prior in enumerate(before):
        free = bool(found.free[index])
        value = float(np.exp(found.logs[index])) if free else prior.value
        off = 1.645 * prior.spread
        low, high = np.log(value) - off, np.log(value) + off
        if free and not few:
            low, high = lows[index], highs[index]
        said = f"fitted to {source}" if free else f"prior, not determined ({prior.source})"
        said += f"; too few {few} for its interval, that of the prior" if free and few else ""
        most = 1.0 if prior.name.endswith("_share") else np.inf
        ends = min(float(np.exp(low)), value), max(min(float(np.exp(high)), most), value)
        fitted.append(FittedParameter(prior.name, value, *ends, prior.unit, said, free))
    return tuple(fitted)


#: {factor: standard deviation of the normal prior of its logarithm} (our choice).
#: The deviations are larger for networks than for nodes, as networks vary more.
_SPREADS = {
    "launch_scale": 0.5, "node_latency": 0.1, "network_latency": 0.5, "node_rate": 0.08, "network_rate": 0.2,
}  # fmt: skip
#: Relative error of a predicted time above which a row counts less (pseudo-Huber loss).
#: Predictions with default profiles have about this error.
_NOISE = 0.1


def calibrated(costs: Costs, series: Sequence[Series]) -> Costs:
    """Scale a library's costs by the factors that fit measured series best.

    If there are bandwidth tests between nodes, the NIC's rate is first set to the highest rate in them.

    - `series`: Series with known numbers of ranks and nodes.
    """
    streams = [each for each in series if each.streams and each.num_nodes > 1]
    if streams:
        rates = (np.array(each.size_bytes) / np.array(each.times_us) / 1000 for each in streams)
        costs = replace(costs, nic_gb_per_s=max(float(rate.max()) for rate in rates))
    timed = [each for each in series if not each.streams]
    if not timed:
        return costs
    costs = replace(costs, ranks_per_process=max(each.launched_together for each in timed))
    require_address_space()
    from scipy.optimize import least_squares

    names, spreads = list(_SPREADS), np.array(list(_SPREADS.values()))

    def scaled(logs: Floats) -> Costs:
        return replace(costs, **dict(zip(names, np.exp(logs).tolist(), strict=True)))

    def residuals(logs: Floats) -> Floats:
        at = scaled(logs)
        errors = [np.log(series_us(at, each) / np.array(each.times_us)) / _NOISE for each in timed]
        off = np.concatenate(errors)
        return np.concatenate([robust_residuals(off), logs / spreads])

    found = least_squares(residuals, np.zeros(len(names)), max_nfev=40, xtol=1e-5, ftol=1e-5)
    return scaled(found.x)
