"""Prediction of the algorithm and protocol that NCCL chooses, by a model of its costs.

On machines by name, the choice is that of `taccl.predict`; elsewhere, the candidate of least modelled time.
Rings and trees run over channels, packed into the links as NCCL's search does (`taccl.baselines.channels`).
Their predicted time is a latency (launch, base latency and hops) plus the bytes over the bandwidth of all
channels. Pieces of NVLS pass a pipeline of switches and trees (`taccl.baselines.nvls`). Alltoalls take the
launch plus the time of their busiest resource, or of their longest route. Schedules of rings and trees use
the same channels, and those of NVLS the same pipeline.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, log2
from typing import TYPE_CHECKING, NamedTuple, cast

from taccl._internal.arguments import checked
from taccl._internal.caching import cached
from taccl._internal.units import format_count, format_us
from taccl.baselines.channel_schedules import over_channels, predict
from taccl.baselines.direct import exchange_end_us, exchange_us, pairwise
from taccl.baselines.nccl_links import table_rates, topology_under
from taccl.baselines.nvls import NvlsPipeline, has_nvls, links_of_switches, nvls_schedule, with_switches
from taccl.errors import CollectiveError
from taccl.measure.machine import machine_of
from taccl.measure.model import COLLECTIVES, patterns_of
from taccl.topology.in_network import shared_links
from taccl.topology.machines import SHAPES
from taccl.topology.models import library_name
from taccl.topology.parts import on_rails
from taccl.topology.profiles import PROFILES, measured_ratio, profile_of
from taccl.topology.registry import parse
from taccl.topology.tuning import (
    CHANNEL_GB_PER_S,
    MAX_CHANNELS,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taccl.baselines.lanes import Algorithm
    from taccl.measure.predict import Prediction
    from taccl.problem.problem import Problem
    from taccl.schedule.schedule import Schedule
    from taccl.topology.topology import Topology


#: Max relative difference in time between a schedule and NCCL's model without a warning.
_AGREES = 0.1


class Considered(NamedTuple):
    """Candidate for NCCL's choice: an algorithm under a protocol, with figures of NCCL's cost model.

    - `channels`: Number of channels that the bandwidth from rank to rank requires.
    - `latency_us`: Time for 0 bytes: launch, base latency and hops.
    - `gb_per_s`: Algorithm bandwidth in the limit of large sizes.
    - `time_us`: Total time, launch included; hops overlap transfers once pieces fill the pipeline.
    """

    algorithm: str
    protocol: str
    channels: int
    latency_us: float
    gb_per_s: float
    time_us: float

    def __str__(self) -> str:
        parts = self.algorithm, self.protocol, format_count(self.channels, "channel")
        return ", ".join(filter(None, parts))


@checked
def nccl_choices(problem: Problem, *, nvls: bool = True) -> tuple[Considered, ...]:
    """All algorithms under all protocols of the topology's profile, NCCL's choice first, then by time.

    On machines by name, the choice is that of `taccl.predict`, which follows NCCL's tuning tables. On other
    topologies, it is the fastest candidate. If the profile records the protocol that NCCL was measured to use
    for the collective at this size, only this protocol is considered.

    Parameters
    ----------
    problem : Problem
        The problem to solve, under any protocol.
    nvls : bool
        True to allow sums in switches on machines whose switches can add, as NCCL does by default.

    Raises
    ------
    CollectiveError
        If NCCL has no such collective, the size is not known, or nodes differ in size.
    """
    return _choices(problem, nvls=nvls)


@cached
def _choices(problem: Problem, *, nvls: bool) -> tuple[Considered, ...]:
    found, expected = list(_candidates(problem, nvls=nvls)), expected_of_nccl(problem, nvls=nvls)
    return tuple(sorted(found, key=lambda each: (not _is_of(each, expected), each.time_us)))


def nccl_candidate(problem: Problem, algorithm: str, protocol: str) -> Considered:
    """The candidate of `nccl_choices` with an algorithm and a protocol; NCCL's choice if there is none."""
    found = next(_candidates(problem, only=(algorithm, protocol)), None)
    return found or nccl_choices(problem)[0]


def _candidates(
    problem: Problem, *, nvls: bool = True, only: tuple[str, str] | None = None
) -> Iterator[Considered]:
    """Yield all algorithms under all protocols, or `only` one: (algorithm, protocol)."""
    _check(problem)
    topology, size = problem.topology, problem.size_bytes
    assert size is not None, "checked"
    name, sizes = problem.collective.name, (topology.num_ranks, topology.num_nodes)
    switched = with_switches(problem) if nvls else problem
    for protocol in _protocols(topology, name, size):
        for pattern in patterns_of(name, *sizes):
            if only not in (None, (pattern.algorithm, protocol)):
                continue
            on = topology_under(problem, protocol, pattern.algorithm)
            if pattern.algorithm in ("ring", "tree"):
                yield _over_channels(problem, pattern.algorithm, protocol, on)
            else:
                yield _pairwise(problem, protocol, on)
        if only in (None, ("nvls", protocol)) and nvls and protocol in ("", "simple") and has_nvls(switched):
            yield _in_switches(switched, protocol, topology_under(switched, protocol, "nvls"))


def _is_of(candidate: Considered, expected: Prediction | None) -> bool:
    """True if a candidate is what NCCL is expected to choose; its topology may lack costs by protocol."""
    if expected is None or candidate.algorithm != expected.algorithm:
        return False
    return candidate.protocol in ("", expected.protocol)


@cached
def expected_of_nccl(problem: Problem, *, nvls: bool) -> Prediction | None:
    """Algorithm, protocol and time of NCCL by `predict`; None unless the topology is a machine by name."""
    from taccl.measure.predict import predict as predict_library  # loads all tables of machines

    topology, size = problem.topology, problem.size_bytes
    if size is None or not is_by_name(topology):
        return None
    name, nodes = problem.collective.name, topology.num_nodes
    return predict_library(topology.machine, name, size, nodes=nodes, nvls=nvls)


@cached
def is_by_name(topology: Topology) -> bool:
    """True if a topology is an unchanged machine by name that `taccl.predict` knows, with its own costs."""
    from taccl.measure.predict import known_machines  # loads all tables of machines

    machine = topology.machine
    if machine not in known_machines() or topology.profile not in [each.name for each in PROFILES[machine]]:
        return False
    links = tuple(e for e in topology.links if len(e.srcs) == len(e.dsts) == 1)
    by_name = parse(
        machine, nodes=topology.num_nodes, profile=topology.profile, protocol=topology.protocol or None,
        rails=SHAPES[machine].has_rails and on_rails(topology),
    )  # fmt: skip
    return links == by_name.links


def _over_channels(problem: Problem, algorithm: str, protocol: str, on: Topology) -> Considered:
    """Ring or tree algorithm as a candidate, with times predicted from the hops of its channels."""
    found = predict(problem, cast("Algorithm", algorithm), on)
    launch_us = float(on.launch_us)
    return Considered(
        algorithm, protocol, _num_channels(found.hop_gb_per_s), launch_us + found.latency_us, found.gb_per_s,
        launch_us + found.time_us,
    )  # fmt: skip


def _pairwise(problem: Problem, protocol: str, on: Topology) -> Considered:
    """Pairwise exchange as a candidate; its time is that of the busiest resource, or of the longest route.

    Messages to ranks inside the node and to other nodes start at the same time, so their latencies overlap.
    """
    assert problem.size_bytes is not None, "checked"
    machine = machine_of(problem.topology.under(protocol) if protocol else problem.topology)
    num_channels = _num_channels(max(machine.node_gb_per_s, machine.network_gb_per_s))
    exchange, launch_us = replace(problem, topology=on), float(on.launch_us)
    busy_us = float(exchange_us(exchange).max(initial=0))
    return Considered(
        "pairwise", protocol, num_channels, launch_us + exchange_end_us(exchange, empty=True),
        problem.size_bytes / busy_us / 1000 if busy_us else float("inf"),
        launch_us + exchange_end_us(exchange),
    )  # fmt: skip


def _in_switches(problem: Problem, protocol: str, on: Topology) -> Considered:
    """NVLS as a candidate, with times of its pipeline of switches and trees."""
    pipeline, launch_us = NvlsPipeline(replace(problem, topology=on)), float(on.launch_us)
    reduction_us_per_mb = float(on.links[shared_links(on)[0]].beta_us_per_mb)
    rates = 1000 / reduction_us_per_mb, machine_of(on).network_gb_per_s
    return Considered(
        "nvls", protocol, _num_channels(max(rates)), launch_us + pipeline.alone_us(0), pipeline.gb_per_s,
        launch_us + pipeline.time_us(pipeline.pieces),
    )  # fmt: skip


def _num_channels(gb_per_s: float) -> int:
    """Number of channels for a bandwidth, rounded up to a power of two."""
    return int(min(2 ** ceil(log2(max(gb_per_s / CHANNEL_GB_PER_S, 1))), MAX_CHANNELS))


@checked
def nccl(problem: Problem, *, cut: bool = True, nvls: bool = True) -> Schedule:
    """Predicted choice of NCCL: its algorithm, on the topology under its protocol.

    The schedule's `producer` names the algorithm and the protocol; `nccl_choices` returns all candidates.

    Parameters
    ----------
    problem : Problem
        The problem to solve, under any protocol.
    cut : bool
        True to cut chunks into smaller ones while that shortens the schedule.
    nvls : bool
        True to allow sums in switches on machines whose switches can add, as NCCL does by default. The
        schedule's topology then includes the links of these switches.

    Raises
    ------
    CollectiveError
        If NCCL has no such collective, the size is not known, or nodes differ in size.

    References
    ----------
    The NVIDIA Collective Communications Library, version 2.30: its tuning tables, and the model in which it
    uses them. For switches that reduce, its algorithm NVLS, with trees between nodes.
    """
    return scheduled(problem, nccl_choices(problem, nvls=nvls)[0], cut=cut)


def scheduled(problem: Problem, best: Considered, *, cut: bool = True) -> Schedule:
    """Schedule of a candidate from `nccl_choices`; arguments are as in `nccl`."""
    problem = with_switches(problem) if best.algorithm == "nvls" else problem
    assert problem.size_bytes is not None, "checked"
    on = topology_under(problem, best.protocol, best.algorithm)
    if best.algorithm in ("ring", "tree"):
        schedule = over_channels(problem, cast("Algorithm", best.algorithm), on, cut=cut)
    else:
        make = pairwise if best.algorithm == "pairwise" else nvls_schedule
        schedule = make(replace(problem, topology=on), cut=cut)
    return replace(
        schedule, producer=f"nccl ({best}: modelled time {format_us(best.time_us)}): {schedule.producer}"
    )


def nccl_bounded(
    problem: Problem, schedule: Schedule, chosen: Considered, *, nvls: bool = True
) -> tuple[Problem, tuple[str, ...]]:
    """Problem whose bound is compared with a schedule of `nccl`, and notes on how finish and bound differ.

    The problem has the topology as given, under the schedule's protocol. The schedule itself may be on slower
    links, as NCCL's model grants trees only a part of the bandwidth.

    - `nvls`: False if the choice was made without sums in switches.
    """
    library = library_name(problem.topology)
    first = [f"nccl stands for {library}, the library of these GPUs"] if library != "NCCL" else []
    notes = []
    if chosen.algorithm == "nvls" and not links_of_switches(problem.topology):
        notes.append("reductions in switches (NVLS) are on, as in NCCL (--no-nvls excludes them)")
        switched, known = with_switches(problem), problem.topology.assumed
        notes += [f"assumed: {each}" for each in switched.topology.assumed if each not in known]
        problem = switched
    topology = problem.topology
    if chosen.protocol:
        topology = topology.under(chosen.protocol)
        notes.append(f"protocol {chosen.protocol} is the choice of {library} here, for finish and bound")
    if schedule.problem.topology.links != topology.links:
        notes.append(f"for the finish, {table_rates(chosen.algorithm)}; the bound is for full link rates")
    gaps = _library_gap(problem, schedule, chosen, nvls=nvls), _measured_gap(problem, chosen)
    first += filter(None, (*gaps, model_gap(schedule, chosen)))
    return replace(schedule.problem, topology=topology), (*first, *notes)


def model_gap(schedule: Schedule, chosen: Considered) -> str:
    """Warning if a schedule of NCCL's choice differs in time from NCCL's model; empty within 10 %.

    A schedule that is slower than the model does not represent NCCL.
    """
    ratio, library = schedule.predicted_us / chosen.time_us, library_name(schedule.problem.topology)
    if abs(ratio - 1) <= _AGREES:
        return ""
    return (
        f"this schedule takes {format_us(schedule.predicted_us)}, {ratio:.2f} times the modelled time of "
        f"{library}'s algorithm ({format_us(chosen.time_us)}): compare with the smaller figure before "
        f"claiming to beat {library}"
    )


def _library_gap(problem: Problem, schedule: Schedule, chosen: Considered, *, nvls: bool) -> str:
    """Note if `predict` expects another algorithm, protocol or time than `chosen`; empty within 10 % of it.

    - `schedule`: The schedule of `chosen`, whose time is printed beside the note.

    The schedule's time depends on the rates of links only, as for all other schedules. `predict` also applies
    the maximum rates of NCCL's LL and LL128, and the share of a NIC's rate that NCCL reaches.
    """
    expected = expected_of_nccl(problem, nvls=nvls)
    if expected is None:
        return ""
    is_chosen, library = _is_of(chosen, expected), library_name(problem.topology)
    if is_chosen and abs(expected.time_us / chosen.time_us - 1) <= _AGREES:
        return ""
    reason = "by latencies and rates from measured logs: compare real runs with this figure"
    if expected.time_us < schedule.predicted_us:
        reason = f"less than this schedule: compare with that figure before claiming to beat {library}"
    elif not is_chosen:
        reason = "an algorithm or protocol that this baseline lacks here: compare real runs with this figure"
    return (
        f"{library} itself is expected to take {format_us(expected.time_us)} on {problem.topology.machine} "
        f"({expected.algorithm}, {expected.protocol}), {reason}"
    )


def _measured_gap(problem: Problem, chosen: Considered) -> str:
    """Note on the fitted profile's correction of the modelled time at this size; empty within 10 % of it."""
    topology, size = problem.topology, problem.size_bytes
    factor = 1.0 if size is None else measured_ratio(topology, problem.collective.name, size)
    if abs(factor - 1) <= _AGREES:
        return ""
    return (
        f"by the profile's log, {library_name(topology)} takes {factor:.2f} times the modelled time at this "
        f"size, {format_us(factor * chosen.time_us)}: compare real runs with that figure"
    )


def choice_gap(topology: Topology, considered: tuple[Considered, ...]) -> str:
    """Note that the library's choice is not the fastest of the candidates on these links; empty if it is."""
    chosen, best = considered[0], min(considered, key=lambda each: each.time_us)
    if best.time_us >= chosen.time_us:
        return ""
    choice = ", ".join(filter(None, (chosen.algorithm, chosen.protocol)))
    return (
        f"{library_name(topology)} is expected to choose {choice}, although {best.algorithm}"
        f"{best.protocol and f', {best.protocol}'} has a shorter modelled time, which assumes the rates of "
        "this topology's links"
    )


def _check(problem: Problem) -> None:
    topology, name = problem.topology, problem.collective.name
    said = ""
    if name not in COLLECTIVES:
        said = f"has no {name}; it has {', '.join(COLLECTIVES[:-1])}"
    elif problem.size_bytes is None:
        said = "chooses by size, and the problem's is not known; give chunks a size"
    elif len({len(ranks) for ranks in topology.ranks_of_node}) > 1 or topology.num_ranks == 1:
        said = "supports nodes of equal size and at least two ranks; use another baseline"
    if said:
        raise CollectiveError(f"nccl {said}", where="baseline")


def _protocols(topology: Topology, collective: str, size: int) -> tuple[str, ...]:
    """Protocols to consider: the measured one for this collective and size, or all."""
    profile = profile_of(topology)
    seen = () if profile is None else profile.ranges
    of = collective, topology.num_ranks, topology.num_nodes
    taken = (
        each.protocol
        for each in seen
        if (each.collective, each.ranks, each.nodes) == of and each.from_bytes <= size <= each.up_to_bytes
    )
    return tuple(taken) or topology.protocols or ("",)
