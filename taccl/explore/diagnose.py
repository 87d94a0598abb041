"""`diagnose`: a verdict on measured bandwidths, with limits, likely causes and possible gains."""

from __future__ import annotations

import os
import shlex
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from statistics import median

from taccl._internal.arguments import Count, Duration, checked
from taccl._internal.deadline import Deadline, OutOfTime
from taccl._internal.names import first_of, in_runs
from taccl._internal.units import format_size
from taccl.analysis.simulation.simulate import simulate
from taccl.baselines import best
from taccl.errors import CollectiveError, FormatError, NumericsWarning
from taccl.explore.expectation import Choice, Expectation
from taccl.explore.measured_machine import Machine, read_logs, topology_of, untested_kind, untested_small
from taccl.explore.plan_runtimes import under_launch
from taccl.measure.causes import ANY_RATE, DETOURS, OF_NETWORK, Cause, causes_of, sizes_off
from taccl.measure.curve import Kink, irregularity_note, kinks, slow_middle
from taccl.measure.diagnosis import Diagnosis, Gain, Limit, Point, SeriesDiagnosis
from taccl.measure.facts import (
    HEALTHY,
    UNTESTED,
    UNTESTED_USUAL,
    WITHIN_ERROR,
    Facts,
    OtherNics,
    falls_from,
)
from taccl.measure.logs import OTHER_LIBRARY
from taccl.measure.machine import NO_PEERS, has_no_peers, machine_of, may_be_bridged, mismatches
from taccl.measure.model import COLLECTIVES
from taccl.measure.series import POINT_TO_POINT, Log, Series
from taccl.problem.collective import busbw_factor
from taccl.runtimes.registry import usual_runtimes
from taccl.runtimes.runtime import Runtime
from taccl.topology.models import library_name
from taccl.topology.networks import INSTANCES, NETWORK_TITLES
from taccl.topology.topology import Topology
from taccl.topology.tuning import LAUNCH_US, PACK_BYTES

#: `_LARGE`: min bytes of a message that shows bandwidth.
#: `_SMALL`: max bytes of a message that shows latency.
#: `_SETTLED`: min bytes of a message that a static fault slows by the same factor as larger messages.
_LARGE, _SMALL, _SETTLED = 64 * 2**20, 4096, 256 * 2**20
#: The bytes of a size count in its time if its expected time is at least this multiple of small messages'.
_ADDED = 1.2
#: `_GAIN_SIZES`: buffer sizes in bytes near which a better schedule is sought.
#: `_GAIN_RANKS`: max ranks for this search, which takes seconds for 16 ranks.
_GAIN_SIZES, _GAIN_RANKS = (8 * 2**10, 2**20, 2**30), 16

#: Max number of indistinguishable causes, and of irregular sizes, that a verdict names.
_NAMED = 3
#: Min ratio of measured to expected bandwidth that shows another path than PCIe: no rate of PCIe is 1.6 times
#: the rate that NCCL states for it.
_BRIDGED = 1.6
#: `_TOO_FAST`: ratio of measured to expected bandwidth above which no error of the model explains it.
#: `_OVER`: max ratio of measured bandwidth to its bound that the noise of measurements explains.
_TOO_FAST, _OVER = 1.25, 1.05


@checked
def diagnose(
    logs: Sequence[str], topology: Topology | str | None = None, *, nodes: Count | None = None,
    profile: str | None = None, collective: str | None = None, in_place: bool = False,
    ranks: Sequence[int] | None = None, without_ranks: Sequence[int] = (), budget_s: Duration = 20.0,
) -> Diagnosis:  # fmt: skip
    """Judge measured bandwidths and latencies: limits, likely causes of slow sizes, and better schedules.

    Parameters
    ----------
    logs : sequence of str
        Paths of logs of one machine, as `taccl.fit` reads them. Logs of perftest (`ib_write_bw`), one for
        each NIC, tell slow NICs from unused ones.
    topology : Topology or str, optional
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
    budget_s : float
        Seconds for better schedules; 0 seeks none.

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
    machine = Machine(topology, nodes, profile, ranks, without_ranks)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericsWarning)  # rounding is far below the noise of measurements
        return _diagnosis(logs, machine, collective, budget_s, in_place=in_place)


def _diagnosis(
    logs: Sequence[str], machine: Machine, collective: str | None, budget_s: float, *, in_place: bool
) -> Diagnosis:
    """Diagnose the logs of one machine: a verdict for each collective and number of ranks."""
    read = read_logs(logs, collective=collective, in_place=in_place)
    gpus = next((log.gpus for log in read if log.gpus), frozenset())
    network = next((log.debug.network for log in read if log.debug.network), "")
    log_of = {each.source: log for log in read for each in log.series}
    series = list(_series(read))
    # Series on the same ranks share a topology, with the figures derived from it.
    made: dict[tuple[int, int], tuple[Topology, list[str]]] = {}
    for one in series:
        if (one.num_ranks, one.num_nodes) not in made:
            made[one.num_ranks, one.num_nodes] = topology_of(one, machine, gpus, network)
    placed = [(one, *made[one.num_ranks, one.num_nodes]) for one in series]
    nics = tuple(_rate(each) for log in read for each in log.series if each.streams)
    links = [
        _link_sentence(each, machine, gpus, placed)
        for log in read
        for each in log.series
        if each.collective == POINT_TO_POINT
    ]
    named = network if machine.topology is None else ""
    expectations = [
        Expectation(each.on(on.num_ranks, on.num_nodes), on, named, log_of[each.source].debug.algorithms)
        for each, on, _ in placed
    ]
    shares = [_share(each) for each in expectations]
    deadline = Deadline.after(budget_s)
    found = []
    for index, (each, share) in enumerate(zip(expectations, shares, strict=True)):
        same = {
            other.topology.num_nodes: part
            for other, part in zip(expectations, shares, strict=True)
            if other.series.collective == each.series.collective and part is not None
        }
        log = log_of[each.series.source]
        beside = (other for other in expectations if log_of[other.series.source] is log)
        full = _full_network(each, beside)
        hosts = max(1, placed[index][0].num_nodes // each.topology.num_nodes)
        named_by_user = machine.topology is not None
        facts = _facts(each, share, same, nics, log, named=named_by_user, full_network=full, hosts=hosts)
        notes = [*placed[index][2], *filter(None, [irregularity_note(each.series)])]
        if full and facts.is_slow:
            notes.append(
                f"the {full} in the same log reaches the rate of all NICs, so they are not the cause"
            )
        if log.debug.algorithms:
            notes.append(_algorithm_note(each, log.debug.algorithms))
        found.append(_judged(each, facts, deadline, notes, machine))
    notes = [f"{log.path}: left out: {row}" for log in read for row in log.left_out]
    if expectations:
        judged = [each.series for each in expectations]
        notes += mismatches(read, judged, machine_of(expectations[0].topology), ())
    return Diagnosis(tuple(found), tuple(links), tuple(notes))


def _algorithm_note(expected: Expectation, stated: Collection[str]) -> str:
    """Note on the usual times of a log in which NCCL_ALGO states some algorithms."""
    listed = " or ".join(sorted(expected.algorithms or stated))
    if expected.algorithms:
        return f"NCCL_ALGO limits the library: usual times are those of {listed}"
    usual = "usual times are those of the library's own choice"
    return f"no times are predicted for the log's NCCL_ALGO ({listed}), so {usual}"


def _series(logs: Iterable[Log]) -> Iterator[Series]:
    """Yield the measured series of collectives in logs; `FormatError` for a collective without a model."""
    for log in logs:
        for each in log.series:
            if each.collective not in COLLECTIVES:
                known = ", ".join(COLLECTIVES)
                said = (
                    f"found {each.collective}, which no model of NCCL or RCCL covers; expected one of {known}"
                )
                raise FormatError(said, where=each.source)
            if each.collective != POINT_TO_POINT:
                yield each


def _rate(series: Series) -> float:
    """Largest bandwidth of a series in GB/s."""
    rows = zip(series.size_bytes, series.times_us, strict=True)
    return max(size / time_us for size, time_us in rows) / 1000


def _link_sentence(
    series: Series,
    machine: Machine,
    gpus: Collection[str],
    placed: Sequence[tuple[Series, Topology, list[str]]],
) -> str:
    """Sentence that compares the rate between two ranks with that of a GPU's links or a NIC."""
    rate = _rate(series)
    on = next((on for _, on, _ in placed), None)
    if on is None:
        on, _ = topology_of(
            series.on(0, series.num_nodes), machine._replace(nodes=2 if series.num_nodes > 1 else 1), gpus
        )
    figures = machine_of(on)
    between = series.num_nodes > 1
    most = figures.network_gb_per_s if between else figures.node_gb_per_s
    if not most:
        return f"{series.source}: {rate:.4g} GB/s between two ranks; {on.name} has no network to compare with"
    what = "a NIC sends" if between else "a GPU in its node sends"
    direct = 0.0 if between else _pair_gb_per_s(on)
    if 0 < direct < most:
        most, what = direct, "the links between two GPUs carry"
    share = f"{rate / most:.0%} of what {what} ({most:.4g})"
    return f"{series.source}: {rate:.4g} GB/s between two ranks are {share}"


def _pair_gb_per_s(topology: Topology) -> float:
    """Largest rate in GB/s between two ranks of a node, over all their links; 0 if a node has no links."""
    rates: dict[tuple[int, int], float] = {}
    for index, link in enumerate(topology.links):
        if len(link.srcs) == len(link.dsts) == 1 and not topology.is_internode(index):
            pair = link.src, link.dst
            rates[pair] = rates.get(pair, 0.0) + float(1000 / link.beta_us_per_mb)
    return max(rates.values(), default=0.0)


def _share(expected: Expectation) -> float | None:
    """Measured over expected bandwidth at the largest size; None if that size is too small to tell."""
    series = expected.series
    is_large = series.size_bytes[-1] >= _LARGE
    return expected.best.time_us / series.times_us[-1] if is_large else None


def _full_network(expected: Expectation, beside: Iterable[Expectation]) -> str:
    """Another collective of `beside`, on the same ranks, that reaches the rate of all NICs; else empty.

    Also empty for an alltoall, whose traffic between rails others lack.
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
        shares = other.network_shares(max(found.times_us[-1], other.best.time_us))
        if min(shares.values(), default=0.0) >= HEALTHY:
            return found.collective
    return ""


def _own_choice(expected: Expectation) -> str:
    """Algorithm that the library's own model chooses, if it is not the best one but has the measured rate."""
    own, time_us = expected.choices[-1][0], expected.series.times_us[-1]
    is_alike = HEALTHY <= own.time_us / time_us <= 1 / HEALTHY
    return own.algorithm if own != expected.best and is_alike else ""


def _small(expected: Expectation) -> tuple[float | None, float | None]:
    """Median measured and expected time of small messages in us; (None, None) if either is unknown."""
    series = expected.series
    rows = zip(series.size_bytes, series.times_us, expected.predicted_us.tolist(), strict=True)
    small = [(time_us, wanted_us) for size, time_us, wanted_us in rows if size <= _SMALL]
    if not small or not expected.knows_latencies:
        return None, None
    measured, usual = zip(*small, strict=True)
    return median(measured), median(usual)


def _small_ratios(expected: Expectation) -> dict[str, float]:
    """{algorithm: predicted time of small messages with it, divided by the measured time}."""
    small = [size for size in expected.series.size_bytes if size <= _SMALL]
    measured_us, _ = _small(expected)
    if measured_us is None:
        return {}
    times_us = expected.algorithm_us(small[len(small) // 2])
    return {name: time_us / measured_us for name, time_us in times_us.items()}


def _facts(
    expected: Expectation, share: float | None, share_of_nodes: dict[int, float], nics: tuple[float, ...],
    log: Log, *, named: bool, full_network: str, hosts: int,
) -> Facts:  # fmt: skip
    on, series, debug = expected.topology, expected.series, log.debug
    small_us, usual_us = _small(expected)
    is_slow = share is not None and share < HEALTHY
    figures = machine_of(on)
    kinked = list(_unusual(expected))
    outliers = {each.size_bytes for each in kinked if each.kind == "outlier"}
    if expected.knows_latencies:
        slow = slow_middle(series, expected.predicted_us.tolist())
        kinked += [each for each in slow if each.size_bytes not in outliers]
    launches_us = 0.0 if series.ranks_per_process else expected.launches_us
    joint = next(
        (word for word in ("NVSwitch", "NVLink", "xGMI") if any(word in r.name for r in on.resources)), "PCIe"
    )
    if joint == "NVLink" and any("PCIe" in each.name for each in on.resources):
        joint = "bridges"
    num_nics = len(on.ranks_of_node[0]) // figures.ranks_per_nic if on.num_nodes > 1 else 0
    stated = {name: said for name, said in debug.causes.items() if on.num_nodes > 1 or name not in OF_NETWORK}
    is_off = share is not None and share < WITHIN_ERROR
    others = expected.shares_of(_SETTLED)[:-1] if is_slow else ()
    other_share = max(others, default=None)
    falls = share is not None and falls_from(share, other_share)
    is_fixed = named or not is_off or falls or bool(full_network)
    other_nics = None if is_fixed else _other_nics(expected, num_nics, debug.num_nics)
    if 0 < debug.num_nics < num_nics and other_nics is None:
        stated["nic-unused"] = f"the log lists {debug.num_nics} of {num_nics} NICs (NET/IB)"
    if on.num_nodes == 1 and has_no_peers(log.gpus):
        stated["p2p-disabled"] = NO_PEERS
    return Facts(
        series.collective, on.num_nodes, share, small_us / usual_us if small_us and usual_us else None,
        expected.network_shares(series.times_us[-1]) if is_slow else {},
        expected.nic_gb_per_s,
        num_nics, joint,
        library_name(on) == "RCCL", expected.shares() if is_slow else {}, share_of_nodes, nics, named,
        tuple(kinked), _unaligned_bytes(series), small_us / launches_us if small_us and launches_us else None,
        _ll_ratio(expected), expected.network, named and on.machine in INSTANCES,
        log_network=NETWORK_TITLES.get(debug.network, debug.network),
        other_share=other_share, full_network=full_network,
        other_library=next((note for note in log.notes if note in OTHER_LIBRARY), ""), stated=stated,
        excluded=debug.excluded, algorithm_shares=expected.algorithm_shares() if is_slow else {},
        untested=untested_kind(on, debug.version), small_untested=untested_small(on, debug.version),
        small_ratios=_small_ratios(expected) if untested_small(on, debug.version) else {},
        other_nics=other_nics,
        path_gb_per_s=_path_gb_per_s(on) if joint == "bridges" else 0.0,
        busbw_gb_per_s=_busbw(series, series.times_us[-1]),
        hosts=hosts, own_choice=_own_choice(expected),
        may_be_bridged=not named and on.num_nodes == 1 and may_be_bridged(on.machine, log.gpus),
    )  # fmt: skip


def _other_nics(expected: Expectation, num_nics: int, listed: int) -> OtherNics | None:
    """Number of NICs of a node with which the bandwidth of the largest size is usual.

    None if neither the number that the log lists explains the rate, nor, without one, a half or a quarter of
    the assumed number.

    - `num_nics`, `listed`: NICs of a node as assumed, and as the log lists them; 0 if it lists none.
    """
    series = expected.series
    numbers = [listed] if listed else [num_nics // 2, num_nics // 4]
    for num in (each for each in numbers if 0 < each < num_nics):
        time_us = expected.with_nics(num)
        if time_us is not None and WITHIN_ERROR <= time_us / series.times_us[-1] <= _OVER:
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
    """Ratio of measured to expected time beyond that of small messages, at the largest size with protocol LL.

    None if times of small messages are unknown, or the expected time of that size hardly exceeds them.
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


def _judged(
    expected: Expectation, facts: Facts, deadline: Deadline, notes: Sequence[str], machine: Machine
) -> SeriesDiagnosis:
    """Verdict on one measured series, with likely causes, limits and better schedules."""
    series, on = expected.series, expected.topology
    factor = busbw_factor(series.collective, series.num_ranks)
    causes = causes_of(facts)
    small_us, usual_us = _small(expected)
    bound_us: float | None = None
    limits: tuple[Limit, ...] = ()
    if facts.share is not None:
        with suppress(OutOfTime):
            bound_us = expected.bound_us()
        limits = expected.limits(series.times_us[-1])
    points = tuple(
        Point(series.size_bytes[place], series.times_us[place], found[0].time_us, str(found[0]))
        for place, found in zip(expected.places, expected.choices, strict=True)
    )
    bound_share = None if bound_us is None else bound_us / series.times_us[-1]
    verdict = "; ".join(clauses(expected, facts, bound_us, factor))
    verdict += conclusion(facts, causes, bound_share)
    gains: tuple[Gain, ...] = ()
    is_faulty = facts.is_late or facts.is_unjudged or facts.share is not None and facts.share < WITHIN_ERROR
    if is_faulty:
        notes = [
            *notes,
            "no search for better schedules before the machine performs as expected",
        ]
    else:
        gains = tuple(_gains(expected, deadline, machine))
        if gains and on.num_nodes > 1:
            notes = [*notes, "no log has tested predictions of better schedules on several nodes"]
        if gains and not on.protocols:
            said = f"no better schedules are sought below {format_size(_LARGE)}"
            notes = [*notes, f"{said}, as latencies of schedules on {on.machine or on.name} are unknown"]
    predicted_us = tuple(expected.predicted_us.tolist())
    return SeriesDiagnosis(
        series, on.name, factor, points, predicted_us, bound_us, facts.share, small_us, usual_us, limits,
        causes, tuple(sizes_off(facts)), gains, verdict, tuple(notes), library_name(on),
    )  # fmt: skip


def clauses(expected: Expectation, facts: Facts, bound_us: float | None, factor: float) -> Iterator[str]:
    """Yield clauses of the verdict: bandwidth of the largest size, and time of small messages."""
    series, best_choice, library = expected.series, expected.best, library_name(expected.topology)
    size, time_us = series.size_bytes[-1], series.times_us[-1]
    rate = f"{size / time_us / 1000 * factor:.4g} GB/s bus at {format_size(size)}"
    if facts.share is None:
        yield f"{rate}: not judged, as bandwidth shows only from {format_size(_LARGE)} on"
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
        yield f"small messages: {small_us:.3g} us where {usual_us:.3g} are usual"


def _rate_text(choice: Choice, size: int, factor: float) -> str:
    """Text with the algorithm of a choice, and its predicted bus bandwidth at a size."""
    name = choice.algorithm.upper() if choice.algorithm == "nvls" else choice.algorithm
    return f"{name}, {size / choice.time_us / 1000 * factor:.4g}"


def conclusion(facts: Facts, causes: Sequence[Cause], bound_share: float | None) -> str:
    """End of the verdict: likely causes, several that cannot be told apart, or none.

    - `bound_share`: Measured bandwidth over the bound's; None if unknown.
    """
    rate = [each for each in causes if each.of == "rate"]
    latency = [each for each in causes if each.of == "latency"]
    detours = [each for each in rate if each.name in DETOURS and each.grade == "likely"]
    found = [(facts.is_slow, rate, "large"), (facts.is_late, detours or latency, "small")]
    said = [f"; {size} messages: {_named(some)}" for is_off, some, size in found if is_off]
    if facts.is_slow and facts.share is not None:
        if facts.fills_path:
            said[0] = "; large messages: usual for bridged pairs, whose rings share one path of PCIe"
        elif facts.other_nics is not None:
            num, gb_per_s, is_listed = facts.other_nics
            usual = f"; large messages: {gb_per_s:.4g} GB/s are usual with "
            if is_listed:
                usual += (
                    f"the {num} NICs that the log lists for a node, but {facts.nics_per_node} are assumed"
                )
            else:
                usual += f"{num} NICs for a node, or with {num / facts.nics_per_node:.0%} of their rate, but "
                usual += f"{facts.nics_per_node} are assumed"
            other = "" if is_listed else f"; with {facts.nics_per_node}, {_named(rate)}"
            said[0] = f"{usual}: name the machine (--topology){other}"
        elif facts.share >= WITHIN_ERROR and facts.own_choice:
            own = f"{facts.library}'s own choice, {facts.own_choice}, has this rate"
            said[0] = f"; within the error of the model ({1 - WITHIN_ERROR:.0%}): {own}, or{said[0][1:]}"
        elif facts.untested and facts.share >= UNTESTED:
            said[0] = f"; large messages: not judged, as predictions may be {1 / UNTESTED:g} times too fast"
            said[0] += f" (algorithm {facts.alike} has this rate)" if facts.alike else ""
        elif facts.share >= WITHIN_ERROR:
            said[0] = f"; within the error of the model ({1 - WITHIN_ERROR:.0%}), or{said[0][1:]}"
    if facts.is_unjudged:
        times = f"predictions may be {UNTESTED_USUAL:g} times too fast"
        alike = f"; algorithm {facts.small_alike} takes as long" if facts.small_alike else ""
        reason = f"no published log of {facts.small_untested}{alike}"
        said.append(f"; small messages: not judged, as {times} ({reason})")
    if facts.share is not None and facts.share > _TOO_FAST:
        is_bound = bound_share is not None and bound_share <= _OVER
        if is_bound:
            said.append("; above the prediction, but not above the bound")
        elif (
            facts.may_be_bridged or facts.joint == "PCIe" and facts.num_nodes == 1 and facts.share > _BRIDGED
        ):
            said.append("; faster than PCIe, as with NVLink bridges: give `nvidia-smi topo -m` as --topology")
        else:
            said.append("; faster than the model allows: check --topology and the number of ranks")
    off = list(sizes_off(facts))
    if off:
        said.append(f"; off the curve: {first_of(off, _NAMED)}")
    is_known = facts.share is not None or facts.small_ratio is not None
    ending = "".join(said) or ("; as expected" if is_known else "")
    if facts.may_be_bridged and facts.share is not None and HEALTHY <= facts.share <= _TOO_FAST:
        ending += " of PCIe alone" if not said else "; large messages have the rate of PCIe alone"
        ending += ": bridges between pairs of such boards are not in the log (give `nvidia-smi topo -m`)"
    in_verdict = {each.name for each in causes if each.title in ending}
    unseen = [said for name, said in facts.stated.items() if name in ANY_RATE and name not in in_verdict]
    ending += f", but {unseen[0]}" if unseen and is_known else ""
    return f"{ending}; no published log of {facts.untested}" if facts.untested and is_known else ending


def _named(causes: Sequence[Cause]) -> str:
    """Text of the one likely cause, or of several causes that cannot be told apart."""
    likely = [each for each in causes if each.grade == "likely"]
    if len(likely) == 1:
        return f"likely {likely[0].title}"
    titles = [each.title for each in likely or causes][:_NAMED]
    return f"cause unclear ({'; or '.join(titles) or 'no documented cause matches these figures'})"


def _gains(expected: Expectation, deadline: Deadline, machine: Machine) -> Iterator[Gain]:
    """Yield the predicted time of the best baseline at a few sizes, for each usual runtime of the machine.

    Nothing above `_GAIN_RANKS` ranks. Sizes below `_LARGE` are left out if the machine's profile has no
    protocols, since latencies are then unknown.
    """
    on, series = expected.topology, expected.series
    if on.num_ranks > _GAIN_RANKS:
        return
    sizes = [min(series.size_bytes, key=lambda size: abs(size / wanted - 1)) for wanted in _GAIN_SIZES]
    for size in dict.fromkeys(size for size in sizes if on.protocols or size >= _LARGE):
        place = series.size_bytes.index(size)
        measured_us, predicted_us = series.times_us[place], float(expected.predicted_us[place])
        protocols = on.protocols or ("",)
        try:
            with deadline.enforced():
                made = best(expected.problem(size), time_limit_s=max(0.1, deadline.left_s / 4))
                under = {each: expected.carried(on.under(each) if each else on) for each in protocols}
                times_us = {each: simulate(made, topology=there).finish_us for each, there in under.items()}
        except (CollectiveError, OutOfTime):
            continue
        error = max(predicted_us / measured_us, measured_us / predicted_us)
        for runtime in usual_runtimes(on):
            able = [
                us + _launch_us(runtime, under[each]) for each, us in times_us.items() if _has(runtime, each)
            ]
            if able:
                command = _command(expected, machine, size, runtime.name)
                yield Gain(size, runtime.name, measured_us, min(able), error, command)


def _launch_us(runtime: Runtime, topology: Topology) -> float:
    """Launch overhead of a runtime in us, as measured times include it; a usual value if none is known."""
    usual_us = runtime.launch.us if runtime.launch else None
    own_us = runtime.launch_us or (LAUNCH_US if usual_us is None else usual_us)
    return float(under_launch(runtime, topology).launch_us) or own_us


def _has(runtime: Runtime, protocol: str) -> bool:
    return not protocol or protocol in [each.lower() for each in runtime.protocols]


def _command(expected: Expectation, machine: Machine, size: int, runtime: str) -> str:
    """Command line of ``taccl plan`` that makes a schedule for the collective, a size and a runtime."""
    on = expected.topology
    word = machine.topology if isinstance(machine.topology, str) else on.machine or on.name
    words = ["taccl", "plan", "--topology", word]
    words += ["--nodes", str(on.num_nodes)] if on.num_nodes > 1 and not os.path.isfile(word) else []
    words += ["--profile", machine.profile] if machine.profile else []
    kept = on.cache.get("kept_ranks")
    words += ["--ranks", in_runs(kept).replace(" ", "")] if kept else []
    words += ["--collective", expected.series.collective, "--sizes", format_size(size)]
    return shlex.join([*words, "--runtime", runtime, "-o", "plan"])
