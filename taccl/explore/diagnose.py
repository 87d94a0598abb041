"""`diagnose`: a verdict on measured bandwidths, with limits, likely causes and possible gains."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from statistics import median
from typing import NamedTuple

from taccl._internal.arguments import Count, Duration, Seconds, checked
from taccl._internal.deadline import Deadline, OutOfTime
from taccl._internal.units import format_digits, format_size
from taccl.errors import FormatError, NumericsWarning
from taccl.explore.expectation import Choice, Expectation
from taccl.explore.measured_machine import Machine, read_logs, topology_of, untested_kind, untested_small
from taccl.explore.possible_gains import with_gains
from taccl.explore.verdict import OVER, conclusion, link_sentence
from taccl.measure.causes import OF_NETWORK, causes_of, sizes_off
from taccl.measure.channel_limits import largest_rate
from taccl.measure.curve import Kink, irregularity, irregularity_note, kinks, middle_clause, slow_middle
from taccl.measure.diagnosis import Diagnosis, Limit, Point, SeriesDiagnosis
from taccl.measure.facts import HEALTHY, LARGE, SETTLED, WITHIN_ERROR, Facts, OtherNics, is_below
from taccl.measure.gpus import NO_PEERS, has_no_peers, may_be_bridged
from taccl.measure.logs import OTHER_LIBRARY
from taccl.measure.machine import machine_of
from taccl.measure.mismatch import mismatches, other_gpus
from taccl.measure.model import COLLECTIVES
from taccl.measure.series import POINT_TO_POINT, WRONG, Log, Series
from taccl.problem.collective import busbw_factor
from taccl.topology.models import library_name
from taccl.topology.networks import INSTANCES, NETWORK_TITLES
from taccl.topology.topology import Topology
from taccl.topology.tuning import PACK_BYTES

#: Max bytes of a message that shows latency.
_SMALL = 4096
#: Note on expected times under a profile from a file.
_BY_SCHEDULES = (
    "usual times are those of schedules under the profile; formulas, as of `taccl fit`, differ by some %"
)
#: Note if small messages are not judged.
_NO_LATENCIES = "the topology states no latencies of the library: predictions of small messages are too short"
#: Max share of the time for verdicts with their bounds and limits; the rest is for better schedules.
_VERDICT_SHARE = 0.6
#: Min ratio of a message's expected time to that of small messages, for its time to depend on its bytes.
_ADDED = 1.2


@checked
def diagnose(
    logs: Sequence[str | os.PathLike[str]], topology: Topology | str | os.PathLike[str] | None = None, *,
    nodes: Count | None = None, profile: str | None = None, collective: str | None = None,
    in_place: bool = False, ranks: Sequence[int] | None = None, without_ranks: Sequence[int] = (),
    gains: bool = True, time_limit_s: Seconds = 20.0, budget_s: Duration | None = None,
) -> Diagnosis:  # fmt: skip
    """Judge measured bandwidths and latencies: limits, likely causes of slow sizes, and better schedules.

    Parameters
    ----------
    logs : sequence of str or path
        Paths of logs of one machine, as `taccl.fit` reads them. Logs of perftest (`ib_write_bw`), one for
        each NIC, tell slow NICs from unused ones.
    topology : Topology, str or path, optional
        A topology, a topology file, or a name such as ``"dgx-h100"``; by default the machine with the GPUs
        that a log names.
    nodes : int, optional
        Number of nodes; by default as each log says.
    profile : str, optional
        Profile of the machine, such as the file of a fit to a healthy log, which is more accurate.
    collective : str, optional
        Collective that was measured, for logs that do not state it.
    in_place : bool
        True for the in-place times of nccl-tests and rccl-tests.
    ranks, without_ranks : sequence of int
        Ranks of the topology that took part, or did not, as CUDA_VISIBLE_DEVICES says.
    gains : bool
        True to seek better schedules, for up to 16 ranks.
    time_limit_s : float
        Max seconds. A verdict is always made. Bounds and limits that need more time are left out, and so are
        better schedules; notes say so.
    budget_s : float, optional
        Earlier name of `time_limit_s`; 0 seeks no better schedules.

    Returns
    -------
    Diagnosis
        A verdict for each collective and number of ranks.

    Raises
    ------
    FormatError
        If a log has no usable row, was measured on CPUs, is of a collective without a model, or the logs are
        of several machines.
    InputError
        If the machine is unknown, or has other ranks than a log.
    """
    topology = os.fspath(topology) if isinstance(topology, os.PathLike) else topology
    if budget_s is not None:
        warnings.warn("budget_s is time_limit_s now", DeprecationWarning, stacklevel=3)
        gains, time_limit_s = gains and budget_s > 0, budget_s or time_limit_s
    machine = Machine(topology, nodes, profile, ranks, without_ranks)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericsWarning)  # rounding is far below the noise of measurements
        deadline = Deadline.after(time_limit_s)
        return _diagnosis(logs, machine, collective, deadline, in_place=in_place, gains=gains)


class _Case(NamedTuple):
    """A measured series: its expectation, its log, notes on the topology, and hosts per node of this one."""

    expected: Expectation
    log: Log
    notes: list[str]
    hosts: int


def _diagnosis(
    logs: Sequence[str | os.PathLike[str]],
    machine: Machine,
    collective: str | None,
    deadline: Deadline,
    *,
    in_place: bool,
    gains: bool,
) -> Diagnosis:
    """Diagnose the logs of one machine: a verdict for each collective and number of ranks, then gains."""
    read = read_logs(logs, collective=collective, in_place=in_place)
    gpus = next((log.gpus for log in read if log.gpus), frozenset())
    network = next((log.debug.network for log in read if log.debug.network), "")
    # Series on the same ranks share a topology, with the figures derived from it.
    made: dict[tuple[int, int], tuple[Topology, list[str]]] = {}
    measured = list(_series(read))
    for one, _ in measured:
        if (one.num_ranks, one.num_nodes) not in made:
            made[one.num_ranks, one.num_nodes] = topology_of(one, machine, gpus, network)
    named = network if machine.topology is None else ""
    cases = []
    for one, log in measured:
        on, notes = made[one.num_ranks, one.num_nodes]
        resized = one.on(on.num_ranks, on.num_nodes)
        expected = Expectation(resized, on, named, log.debug.algorithms, log.debug.version)
        cases.append(_Case(expected, log, notes, max(1, one.num_nodes // on.num_nodes)))
    nics = tuple(largest_rate(each) for log in read for each in log.series if each.streams)
    usual = next(iter(made.values()), (None,))[0]
    links = tuple(
        link_sentence(each, machine, gpus, usual, log.debug.version)
        for log in read
        for each in log.series
        if each.collective == POINT_TO_POINT
    )
    found, sound = list[SeriesDiagnosis](), list[int]()
    verdicts = deadline.sooner(_VERDICT_SHARE * deadline.left_s)
    for index, case in enumerate(cases):
        facts = _facts(case, cases, nics, named=machine.topology is not None)
        notes = [*case.notes, *_notes(case, facts)]
        if _is_faulty(facts):
            notes.append("better schedules are not sought until the machine performs as expected")
        else:
            sound.append(index)
        limit = verdicts.sooner(verdicts.left_s / (len(cases) - index))
        found.append(_judged(case.expected, facts, limit, notes, machine, case.log))
    for number, index in enumerate(sound if gains else ()):
        limit = deadline.sooner(deadline.left_s / (len(sound) - number))
        found[index] = with_gains(found[index], cases[index].expected, limit, machine)
    notes = [f"{log.path}: left out: {row}" for log in read for row in log.left_out]
    if cases:
        first = cases[0].expected
        judged = [each.expected.series for each in cases]
        notes += mismatches(read, judged, machine_of(first.topology), ())
        if machine.profile is not None and first.follows_schedules:
            notes.append(_BY_SCHEDULES)
    return Diagnosis(tuple(found), links, tuple(notes))


def _notes(case: _Case, facts: Facts) -> Iterator[str]:
    """Yield notes on a measured series: irregular sizes, and what its usual times rest on."""
    expected, stated = case.expected, case.log.debug.algorithms
    yield from filter(None, [irregularity_note(expected.series)])
    if facts.full_network and facts.is_slow:
        reaches = "in the same log reaches the rate of all NICs, so they are not the cause"
        yield f"the {facts.full_network} {reaches}"
    if stated:
        yield _algorithm_note(expected, stated)
    if not expected.knows_latencies and expected.series.size_bytes[0] <= _SMALL:
        yield _NO_LATENCIES


def _algorithm_note(expected: Expectation, stated: Collection[str]) -> str:
    """Note on the usual times of a log in which NCCL_ALGO states some algorithms."""
    listed = " or ".join(sorted(expected.algorithms or stated))
    if expected.algorithms:
        return f"NCCL_ALGO limits the library: usual times are those of {listed}"
    usual = "usual times are those of the library's own choice"
    return f"no times are predicted for the log's NCCL_ALGO ({listed}), so {usual}"


def _series(logs: Iterable[Log]) -> Iterator[tuple[Series, Log]]:
    """Yield (series of a collective, its log); raise `FormatError` for a collective without a model."""
    for log in logs:
        for each in log.series:
            if each.collective not in COLLECTIVES:
                known = ", ".join(COLLECTIVES)
                said = (
                    f"found {each.collective}, which no model of NCCL or RCCL covers; expected one of {known}"
                )
                raise FormatError(said, where=each.source)
            if each.collective != POINT_TO_POINT:
                yield each, log


def _share(expected: Expectation) -> float | None:
    """Measured over expected bandwidth at the largest size; None if that size is too small to show it."""
    series = expected.series
    is_large = series.size_bytes[-1] >= LARGE
    return expected.best.time_us / series.times_us[-1] if is_large else None


def _full_network(expected: Expectation, beside: Iterable[Expectation]) -> str:
    """Another collective of `beside`, on the same ranks, that reaches the rate of all NICs; else empty.

    It reaches that rate with the algorithm that the library chooses by its own model. Also empty for an
    alltoall, whose traffic between rails others lack.
    """
    series = expected.series
    if series.num_nodes == 1 or series.collective == "alltoall":
        return ""
    for other in beside:
        found = other.series
        if found.collective == series.collective or _share(other) is None:
            continue
        if (found.num_ranks, found.num_nodes) != (series.num_ranks, series.num_nodes):
            continue
        own = other.choices[-1][0]
        shares = other.network_shares(max(found.times_us[-1], own.time_us))
        if shares.get(own.algorithm, 0.0) >= HEALTHY:
            return found.collective
    return ""


def _own_choice(expected: Expectation) -> str:
    """Algorithm that the library's own model chooses, if it is not the best one but has the measured rate."""
    own, time_us = expected.choices[-1][0], expected.series.times_us[-1]
    is_alike = HEALTHY <= own.time_us / time_us <= 1 / HEALTHY
    return own.algorithm if own != expected.best and is_alike else ""


def _small(expected: Expectation) -> tuple[float | None, float | None]:
    """Median measured and expected time of small messages in us; (None, None) if either is unknown.

    Single slow sizes, such as the first one, are left out if there are others.
    """
    series = expected.series
    slow = {each.size_bytes for each in kinks(series) if each.kind == "outlier"}
    rows = zip(series.size_bytes, series.times_us, expected.predicted_us.tolist(), strict=True)
    small = [row for row in rows if row[0] <= _SMALL]
    if not small or not expected.knows_latencies:
        return None, None
    _, measured, usual = zip(*([row for row in small if row[0] not in slow] or small), strict=True)
    return median(measured), median(usual)


def _small_ratios(expected: Expectation, *, protocols: bool = False) -> dict[str, float]:
    """{algorithm, or protocol: predicted time of small messages with it, divided by the measured time}.

    - `protocols`: True for the protocols that the library does not choose.
    """
    small = [size for size in expected.series.size_bytes if size <= _SMALL]
    measured_us, _ = _small(expected)
    if measured_us is None:
        return {}
    middle = small[len(small) // 2]
    times_us = expected.other_protocols_us(middle) if protocols else expected.algorithm_us(middle)
    return {name: time_us / measured_us for name, time_us in times_us.items()}


def _facts(case: _Case, cases: Sequence[_Case], nics: tuple[float, ...], *, named: bool) -> Facts:
    """Figures of a measured series relative to what is expected.

    - `cases`: All series of the diagnosis.
    - `nics`: Rates of single NICs in GB/s.
    - `named`: True if the user named the topology.
    """
    expected, log = case.expected, case.log
    on, series, debug = expected.topology, expected.series, log.debug
    share = _share(expected)
    alike = (each.expected for each in cases if each.expected.series.collective == series.collective)
    parts = ((each.topology.num_nodes, _share(each)) for each in alike)
    share_of_nodes = {number: part for number, part in parts if part is not None}
    full_network = _full_network(expected, (each.expected for each in cases if each.log is log))
    small_us, usual_us = _small(expected)
    is_slow = share is not None and share < HEALTHY
    figures = machine_of(on)
    kinked = list(_unusual(expected))
    outliers = {each.size_bytes for each in kinked if each.kind == "outlier"}
    middle = ""
    if expected.knows_latencies:
        slow = slow_middle(series, expected.predicted_us.tolist())
        kinked += [each for each in slow if each.size_bytes not in outliers]
        middle = middle_clause(series, expected.predicted_us.tolist())
    launches_us = 0.0 if series.ranks_per_process else expected.launches_us
    joint = next(
        (word for word in ("NVSwitch", "NVLink", "xGMI") if any(word in r.name for r in on.resources)), "PCIe"
    )
    if joint == "NVLink" and any("PCIe" in each.name for each in on.resources):
        joint = "bridges"
    num_nics = len(on.ranks_of_node[0]) // figures.ranks_per_nic if on.num_nodes > 1 else 0
    stated = {name: said for name, said in debug.causes.items() if on.num_nodes > 1 or name not in OF_NETWORK}
    is_off = share is not None and share < WITHIN_ERROR
    others = expected.shares_of(SETTLED)[:-1] if is_slow else ()
    other_share = max(others, default=None)
    place_share = share * series.times_us[-1] / series.other_us if share and series.other_us else None
    works = share is not None and (is_below(share, other_share) or is_below(share, place_share))
    is_fixed = named or not is_off or works or bool(full_network)
    other_nics = None if is_fixed else _other_nics(expected, num_nics, debug.num_nics)
    if 0 < debug.num_nics < num_nics and other_nics is None:
        stated["nic-unused"] = f"the log lists {debug.num_nics} of {num_nics} NICs (NET/IB or NCCL_IB_HCA)"
    excluded = set(debug.excluded) | ({"nic-unused"} if 0 < num_nics <= debug.num_nics else set())
    if on.num_nodes == 1 and has_no_peers(log.gpus) and "p2p-disabled" not in excluded:
        stated["no-peers"] = NO_PEERS
        excluded.add("p2p-disabled")
    return Facts(
        series.collective, on.num_nodes, share, small_us / usual_us if small_us and usual_us else None,
        expected.network_shares(series.times_us[-1]) if is_slow else {},
        expected.nic_gb_per_s,
        num_nics, joint,
        library_name(on) == "RCCL", expected.shares() if is_slow else {}, share_of_nodes, nics, named,
        tuple(kinked), irregularity(series), _unaligned_bytes(series),
        small_us / launches_us if small_us and launches_us else None,
        _ll_ratio(expected), expected.network, named and on.machine in INSTANCES,
        log_network=NETWORK_TITLES.get(debug.network, debug.network),
        other_share=other_share, place_share=place_share, full_network=full_network, middle=middle,
        other_library=next((note for note in log.notes if note in OTHER_LIBRARY), ""), stated=stated,
        excluded=excluded, algorithm_shares=expected.algorithm_shares() if is_slow else {},
        untested=untested_kind(on, debug.version), small_untested=untested_small(on, debug.version),
        small_protocols=_small_ratios(expected, protocols=True),
        small_ratios=_small_ratios(expected) if untested_small(on, debug.version) else {},
        other_nics=other_nics, lists_links=not on.machine,
        path_gb_per_s=_path_gb_per_s(on) if joint == "bridges" else 0.0,
        busbw_gb_per_s=_busbw(series, series.times_us[-1]),
        hosts=case.hosts, own_choice=_own_choice(expected),
        may_be_bridged=not named and on.num_nodes == 1 and may_be_bridged(on.machine, log.gpus),
    )  # fmt: skip


def _other_nics(expected: Expectation, num_nics: int, listed: int) -> OtherNics | None:
    """Number of NICs per node that would explain the bandwidth measured at the largest size.

    None if neither the number that the log lists explains the rate, nor, without one, a half or a quarter of
    the assumed number.

    - `num_nics`, `listed`: NICs of a node as assumed, and as the log lists them; 0 if it lists none.
    """
    series = expected.series
    numbers = [listed] if listed else [num_nics // 2, num_nics // 4]
    for num in (each for each in numbers if 0 < each < num_nics):
        time_us = expected.with_nics(num)
        if time_us is not None and WITHIN_ERROR <= time_us / series.times_us[-1] <= OVER:
            return OtherNics(num, _busbw(series, time_us), bool(listed))
    return None


def _busbw(series: Series, time_us: float) -> float:
    """Bus bandwidth in GB/s of the largest size if it takes `time_us`."""
    return series.size_bytes[-1] / time_us / 1000 * busbw_factor(series.collective, series.num_ranks)


def _path_gb_per_s(topology: Topology) -> float:
    """Highest rate in GB/s of a PCIe link between two ranks; 0 if there is none."""
    rates = (1000 / float(each.beta_us_per_mb) for each in topology.links if "PCIe" in each.name)
    return max(rates, default=0.0)


def _unusual(expected: Expectation) -> Iterator[Kink]:
    """Yield sizes with irregular measured times, unless the predicted times are irregular there, too."""
    for each in kinks(expected.series):
        near = expected.around(each.size_bytes)
        usual = () if near is None else kinks(near)
        if (each.kind, each.size_bytes) not in {(other.kind, other.size_bytes) for other in usual}:
            yield each


def _ll_ratio(expected: Expectation) -> float | None:
    """Measured over expected increase of the time, from small messages to the largest size with protocol LL.

    None if times of small messages are unknown, or if the expected increase is small.
    """
    small_us, usual_us = _small(expected)
    usual = [
        (expected.series.times_us[place], found[0].time_us)
        for place, found in zip(expected.places, expected.choices, strict=True)
        if found[0].protocol == "ll"
    ]
    if small_us is None or usual_us is None or not usual or usual[-1][1] < _ADDED * usual_us:
        return None
    measured_us, predicted_us = usual[-1]
    return float((measured_us - small_us) / (predicted_us - usual_us))


def _unaligned_bytes(series: Series) -> int:
    """Bytes of a rank's part at the largest size if NCCL cannot copy them in whole packs; otherwise 0."""
    if series.collective not in ("allgather", "reduce-scatter", "alltoall"):
        return 0
    part = series.size_bytes[-1] // series.num_ranks
    return part if part % PACK_BYTES else 0


def _is_faulty(facts: Facts) -> bool:
    """True if a machine performs worse than expected, so that better schedules would not help."""
    return facts.is_late or facts.is_unjudged or (facts.share is not None and facts.share < WITHIN_ERROR)


def _judged(
    expected: Expectation, facts: Facts, deadline: Deadline, notes: Sequence[str], machine: Machine, log: Log,
) -> SeriesDiagnosis:  # fmt: skip
    """Verdict on one measured series, with likely causes, a bound and limits."""
    series, on = expected.series, expected.topology
    factor = busbw_factor(series.collective, series.num_ranks)
    causes = causes_of(facts)
    small_us, usual_us = _small(expected)
    bound_us: float | None = None
    limits: tuple[Limit, ...] = ()
    if facts.share is not None:
        with suppress(OutOfTime):
            bound_us = expected.bound_us(deadline.left_s / 2)
        try:
            with deadline.enforced():
                limits = expected.limits(series.times_us[-1])
        except OutOfTime:
            notes = [*notes, "time was up before the busiest resources were known; give more time"]
    points = tuple(
        Point(series.size_bytes[place], series.times_us[place], found[0].time_us, str(found[0]))
        for place, found in zip(expected.places, expected.choices, strict=True)
    )
    bound_share = None if bound_us is None else bound_us / series.times_us[-1]
    said = other_gpus(log.gpus, machine_of(on)) if machine.topology is not None else ""
    if said:  # the figures of another machine make no cause likely
        by_figures = [each for each in causes if each.of != "sizes" and each.name not in facts.stated]
        causes = tuple(each._replace(grade="possible") if each in by_figures else each for each in causes)
    verdict = "; ".join(filter(None, [said, *clauses(expected, facts, bound_us, factor)]))
    verdict += conclusion(facts, causes, bound_share)
    verdict += "".join(f"; {note}" for note in log.notes if note.startswith(WRONG))
    predicted_us = tuple(expected.predicted_us.tolist())
    return SeriesDiagnosis(
        series, on.name, factor, points, predicted_us, bound_us, facts.share, small_us, usual_us, limits,
        causes, tuple(sizes_off(facts)), (), verdict, tuple(notes), library_name(on),
    )  # fmt: skip


def clauses(expected: Expectation, facts: Facts, bound_us: float | None, factor: float) -> Iterator[str]:
    """Yield clauses of the verdict: bandwidth of the largest size, and time of small messages."""
    series, best_choice, library = expected.series, expected.best, library_name(expected.topology)
    size, time_us = series.size_bytes[-1], series.times_us[-1]
    rate = f"{format_digits(size / time_us / 1000 * factor)} GB/s bus at {format_size(size)}"
    if facts.share is None:
        yield f"{rate}: not judged, as bandwidth shows only from {format_size(LARGE)} on"
    else:
        best_of = _rate_text(best_choice, size, factor)
        if (own := expected.choices[-1][0]) != best_choice:
            best_of += f"; {library}'s model chooses {_rate_text(own, size, factor)}"
        bound = f", {bound_us / time_us:.0%} of the bound" if bound_us is not None else ""
        is_above = bound_us is not None and bound_us > min(time_us, best_choice.time_us)
        bound += " on the rates of the model" if is_above else ""
        best_of_all = f"what {library}'s best algorithm can do here ({best_of})"
        yield f"{rate} is {facts.share:.0%} of {best_of_all}{bound}"
    small_us, usual_us = _small(expected)
    if small_us is not None and usual_us is not None:
        yield f"small messages: {format_digits(small_us, 3)} us where {format_digits(usual_us, 3)} are usual"


def _rate_text(choice: Choice, size: int, factor: float) -> str:
    """Text with the algorithm of a choice, and its predicted bus bandwidth at a size."""
    name = choice.algorithm.upper() if choice.algorithm == "nvls" else choice.algorithm
    return f"{name}, {format_digits(size / choice.time_us / 1000 * factor)}"
