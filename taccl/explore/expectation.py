"""Expected times of a measured collective by models of NCCL and RCCL, their bound, and busy resources."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.analysis.certificates.bounds import lower_bound
from taccl.baselines.nccl import nccl_candidate, nccl_choices, scheduled
from taccl.measure.channel_limits import ROUNDED, channel_costs
from taccl.measure.diagnosis import Limit
from taccl.measure.library import candidates, chosen
from taccl.measure.library_costs import Costs
from taccl.measure.machine import import_network, is_uniform_server, machine_of, replaces
from taccl.measure.predict import costs_of, ranks_per_node
from taccl.measure.series import Series
from taccl.problem.collective import busbw_factor
from taccl.problem.making import make_problem
from taccl.problem.problem import Problem
from taccl.schedule.bars import busy_shares
from taccl.topology.models import MODELS
from taccl.topology.networks import NETWORK_TITLES, NETWORKS
from taccl.topology.parts import on_rails, thousandths
from taccl.topology.profiles import PROFILES, measured_ratio
from taccl.topology.topology import Topology
from taccl.topology.transform import rescaled, subset

#: Factor by which links between nodes are slowed, so that they alone determine the predicted time.
_SLOWED = 16
#: Pattern of numbers in names of resources.
_NUMBERS = re.compile(r"\d+")
#: Max ranks for which chunks of NCCL's schedule are cut into a part for each channel (about 1 s).
_CUT_RANKS = 16
#: Seconds to search for a lower bound; slow linear programs may extend them to five times as long.
_BOUND_S = 2.0
#: `_SEARCH_RANKS`: max ranks of a search for a lower bound; above, it is that of cuts around nodes and ranks.
#: `_BOUND_RANKS`: max ranks with a bound (1.3 s of CPU for 576 ranks).
_SEARCH_RANKS, _BOUND_RANKS = 64, 1024
#: Max ranks for which NCCL's schedule is built to find its busiest resources (2 s of CPU).
#: On larger machines, NCCL's schedule is built for as many of the first nodes as fit, but at least two.
_SCHEDULE_RANKS = 128
#: `_SIZES`: (max ranks, number of sizes at which the model is evaluated), ascending.
#: `_FEW_SIZES`: number of sizes for more ranks.
_SIZES, _FEW_SIZES = ((16, 8), (64, 5)), 3


class Choice(NamedTuple):
    """An algorithm under a protocol, and its time in us at one size."""

    algorithm: str
    protocol: str
    time_us: float

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.algorithm, self.protocol)))


class Expectation:
    """Expected behaviour of a stock library for one collective on one topology.

    Machines and instance types by name use the library's own choices and pipeline (`taccl.measure.library`).
    So do imports of one server with NVSwitch, or with PCIe alone, whose GPUs are alike. Other topologies,
    and profiles from files, use the baseline `nccl`, which sends over their links.
    """

    def __init__(
        self,
        series: Series,
        topology: Topology,
        named_network: str = "",
        algorithms: Collection[str] = (),
        version: Sequence[int] = (),
    ) -> None:
        """Prepare to predict the times of a measured series on a topology.

        - `named_network`: Network that the log names, which counts if the topology follows from GPUs alone.
        - `algorithms`: Algorithms to which the log's NCCL_ALGO limits the library; empty for all. Those that
          the model has determine `predicted_us`, but not the best choice.
        - `version`: Version of the library that the log states; empty if it states none.
        """
        self.series, self.topology = series, topology
        most = next((most for ranks, most in _SIZES if topology.num_ranks <= ranks), _FEW_SIZES)
        count = len(series.size_bytes)
        #: Indices of the sizes that are predicted: the largest three, and others evenly spaced.
        self.places = sorted(
            {*range(max(count - 3, 0), count), *np.linspace(0, count - 1, most).astype(int).tolist()}
        )
        costs = _costs_on(topology, named_network, version) or _costs_on_pcie(series, topology, version)
        self._costs = costs and replace(costs, ranks_per_process=series.launched_together)
        #: Algorithms to which `predicted_us` is limited; empty if it is for the library's own choice.
        self.algorithms = frozenset(algorithms) & self._modelled
        network = import_network(topology) if self._costs is None else self._costs.network
        #: Network between nodes that expected times assume; empty if unknown.
        self.network = "" if network is None else NETWORK_TITLES.get(network.name, network.name)
        #: Fraction of a NIC's rate that large messages reach.
        self._reached = 1.0 if network is None else network.efficiency

    @property
    def _modelled(self) -> frozenset[str]:
        """Algorithms among which the library's model chooses; empty if the machine's costs are unknown."""
        if self._costs is None:
            return frozenset()
        on, at = self.topology, np.array([float(self.series.size_bytes[-1])])
        able = candidates(self._costs, self.series.collective, on.num_ranks, on.num_nodes, at)
        return frozenset(each.algorithm for each in able)

    @property
    def follows_schedules(self) -> bool:
        """True if expected times are those of schedules on the topology, not of the library's own model."""
        return self._costs is None

    @property
    def knows_latencies(self) -> bool:
        """True if times of small messages can be predicted."""
        return self._costs is not None or bool(self.topology.protocols)

    @property
    def nic_gb_per_s(self) -> float:
        """Rate of a NIC that large messages reach, in GB/s; 0 in a single node."""
        if self.topology.num_nodes == 1:
            return 0.0
        rate = machine_of(self.topology).network_gb_per_s if self._costs is None else self._costs.nic_gb_per_s
        return rate * self._reached

    @property
    def launches_us(self) -> float:
        """Time in us in which one process launches the kernels of all GPUs of a node; 0 if unknown."""
        costs = self._costs
        each_us = 0.0 if costs is None else costs.serial_launch_us + costs.channel_launch_us
        return each_us * len(self.topology.ranks_of_node[0])

    @property
    def least_us(self) -> float:
        """Time in us in which a process of the log launches the kernels of its GPUs in turn; 0 if unknown.

        Operations that follow one another take at least this long, under any schedule.
        """
        per_node = len(self.topology.ranks_of_node[0])
        return self.launches_us * min(self.series.launched_together, per_node) / per_node

    @property
    def start_us(self) -> float:
        """Time in us before the first hop of a collective between nodes; 0 on one node, or if unknown."""
        if self._costs is None or self.topology.num_nodes == 1:
            return 0.0
        return self._costs.network.start_of(self._costs.host)

    def carried(self, topology: Topology) -> Topology:
        """The topology with network rates lowered to what large messages reach, if that is known."""
        return rescaled(topology, {(True, "beta"): 1 / Fraction(str(self._reached))}, thousandths)

    @cached_property
    def _carried(self) -> Topology:
        return self.carried(self.topology)

    @cached_property
    def _slowed(self) -> Topology:
        return rescaled(self._carried, {(True, "beta"): Fraction(_SLOWED)})

    def problem(self, size_bytes: int, topology: Topology | None = None) -> Problem:
        """Problem of the measured collective at a size."""
        return make_problem(topology or self.topology, self.series.collective, size_bytes=size_bytes)

    @cached_property
    def choices(self) -> tuple[tuple[Choice, ...], ...]:
        """Choices at each size of `places`: that of the library first, then the others by predicted time."""
        return tuple(self._choices(self.series.size_bytes[place]) for place in self.places)

    def _choices(self, size_bytes: int, *, slowed: bool = False) -> tuple[Choice, ...]:
        """Each algorithm and protocol that the library has at a size, with its predicted time.

        The library's own choice comes first, then the others by time.

        - `slowed`: True to slow links between nodes.
        """
        if self._costs is None:
            found = nccl_choices(self.problem(size_bytes, self._slowed if slowed else self._carried))
            ratio = measured_ratio(self.topology, self.series.collective, size_bytes)
            return tuple(Choice(each.algorithm, each.protocol, ratio * each.time_us) for each in found)
        costs = replace(self._costs, network_rate=1 / _SLOWED) if slowed else self._costs
        on, sizes = self.topology, np.array([float(size_bytes)])
        able = candidates(costs, self.series.collective, on.num_ranks, on.num_nodes, sizes)
        own = able[int(chosen(able)[0])]
        every = sorted(able, key=lambda each: (each is not own, float(each.time_us[0])))
        return tuple(Choice(each.algorithm, each.protocol, float(each.time_us[0])) for each in every)

    def _usual_us(self, sizes: Sequence[int]) -> NDArray[np.float64]:
        """Predicted times in us under the library's own choice among the algorithms that NCCL_ALGO leaves."""
        assert self._costs is not None, "only machines by name have the library's own choices"
        on, at = self.topology, np.array(sizes, float)
        every = candidates(self._costs, self.series.collective, on.num_ranks, on.num_nodes, at)
        able = [each for each in every if each.algorithm in self.algorithms] or every
        return np.array([each.time_us for each in able])[chosen(able), np.arange(len(at))]

    def algorithm_us(self, size_bytes: int) -> dict[str, float]:
        """{algorithm: predicted time in us of a size, under its fastest protocol}."""
        slowest_first = sorted(self._choices(size_bytes), key=lambda each: -each.time_us)
        return {each.algorithm: each.time_us for each in slowest_first}

    def other_protocols_us(self, size_bytes: int) -> dict[str, float]:
        """{protocol that the library does not choose: predicted time in us, with its fastest algorithm}."""
        own, *others = self._choices(size_bytes)
        slowest_first = sorted(others, key=lambda each: -each.time_us)
        return {each.protocol: each.time_us for each in slowest_first if each.protocol != own.protocol}

    def with_nics(self, num: int) -> float | None:
        """Predicted time in us of the largest size if a node had `num` NICs, shared equally.

        None if the machine's costs are unknown, or `num` does not divide the ranks of a node.
        """
        per_node = len(self.topology.ranks_of_node[0])
        if self._costs is None or self._costs.nics_per_rank > 1 or per_node % num:
            return None
        costs = replace(self._costs, ranks_per_nic=per_node // num)
        on, size = self.topology, np.array([float(self.series.size_bytes[-1])])
        able = candidates(costs, self.series.collective, on.num_ranks, on.num_nodes, size)
        own = able[int(chosen(able)[0])]
        return min(float(each.time_us[0]) for each in able if each is own or each.algorithm == "nvls")

    def around(self, size_bytes: int) -> Series | None:
        """Predicted times at a measured size, and at the two sizes on either side.

        None without the library's own choices, since other predictions take long and are smooth.
        """
        if self._costs is None:
            return None
        sizes = self.series.size_bytes
        place = sizes.index(size_bytes)
        near = sizes[max(place - 2, 0) : place + 3]
        return replace(self.series, size_bytes=near, times_us=tuple(self._usual_us(near).tolist()))

    @property
    def best(self) -> Choice:
        """Algorithm and protocol of the largest size: the library's choice, or sums in switches if faster.

        NCCL's model of its choice can miss such sums where rings are slower than it states.
        """
        return _best_of(self.choices[-1])

    def shares_of(self, least_bytes: int) -> list[float]:
        """Measured over expected bandwidth at each predicted size of `least_bytes` or more, ascending."""
        series = self.series
        return [
            _best_of(found).time_us / series.times_us[place]
            for place, found in zip(self.places, self.choices, strict=True)
            if series.size_bytes[place] >= least_bytes
        ]

    @cached_property
    def predicted_us(self) -> NDArray[np.float64]:
        """Predicted times at all sizes of the series.

        Without the library's own choices, they are interpolated between `places` on logarithmic scales.
        """
        if self._costs is not None:
            return self._usual_us(self.series.size_bytes)
        sizes, at = np.log(self.series.size_bytes), np.log([found[0].time_us for found in self.choices])
        return np.exp(np.interp(sizes, sizes[self.places], at))

    def shares(self) -> dict[str, float]:
        """{protocol, or ``"no nvls"``: bandwidth at the largest size, as a ratio to the best choice's}."""
        least = {
            each.protocol: each.time_us for each in reversed(self.choices[-1]) if each.algorithm != "nvls"
        }
        found = {protocol: self.best.time_us / time_us for protocol, time_us in least.items()}
        if self.best.algorithm == "nvls":
            found["no nvls"] = max(found.values(), default=1.0)
        return found

    def algorithm_shares(self) -> dict[str, float]:
        """{slower algorithm: bandwidth at the largest size, as a ratio to the best choice's}.

        If the best choice is sums in switches (NVLS), rings are left out: `shares` has their ratio as
        ``"no nvls"``.
        """
        best = self.best
        least = {each.algorithm: each.time_us for each in reversed(self.choices[-1])}
        without = (best.algorithm, "nvls", *(["ring"] if best.algorithm == "nvls" else []))
        return {
            name: best.time_us / least[name] for name in ("ring", "tree") if name in least.keys() - without
        }

    def network_shares(self, measured_us: float) -> dict[str, float]:
        """{algorithm: share of the NIC rate that would explain `measured_us` at the largest size}.

        The share is the least over the algorithm's protocols. Algorithms that are expected to be slower than
        measured are left out. Empty in a single node.
        """
        if self.topology.num_nodes == 1:
            return {}
        least = self._choices(self.series.size_bytes[-1], slowed=True)
        slowed = {(each.algorithm, each.protocol): each.time_us for each in least}
        shares: dict[str, float] = {}
        for each in self.choices[-1]:
            if each.time_us <= measured_us and (each.algorithm, each.protocol) in slowed:
                share = slowed[each.algorithm, each.protocol] / _SLOWED / measured_us
                shares[each.algorithm] = min(share, shares.get(each.algorithm, 1.0))
        return shares

    def bound_us(self, most_s: float = math.inf) -> float | None:
        """Lower bound in us for the largest size, launch included, over all chunkings.

        None above `_BOUND_RANKS` ranks.

        - `most_s`: Max seconds; raises `OutOfTime` if no bound is found in time.
        """
        num_ranks = self.topology.num_ranks
        if num_ranks > _BOUND_RANKS:
            return None
        problem, budget_s = self.problem(self.series.size_bytes[-1]), min(_BOUND_S, most_s)
        if num_ranks > _SEARCH_RANKS:
            budget_s = 0.0
        limit_s, end_s = min(4 * budget_s, most_s), min(5 * _BOUND_S, most_s)
        found = lower_bound(problem, divisible=True, budget_s=budget_s, limit_s=limit_s, end_s=end_s)
        return found.bound_us + float(self.topology.launch_us)

    def limits(self, measured_us: float) -> tuple[Limit, ...]:
        """The busiest resource of each kind in NCCL's schedule of the largest size, busiest first.

        Above `_SCHEDULE_RANKS` ranks, the schedule is for the first nodes only. Their use of resources is
        scaled to all nodes.
        """
        topology = _first_nodes(self.topology)
        is_cut = topology.num_ranks <= _CUT_RANKS
        problem = self.problem(self.series.size_bytes[-1], topology)
        # Imports have no protocols, so their schedules have none.
        own = nccl_candidate(problem, self.best.algorithm, self.best.protocol if topology.protocols else "")
        schedule = scheduled(problem, own, cut=is_cut)
        # NCCL's model may add links to the topology, for sums in NVSwitch.
        on, busy_us = schedule.problem.topology, busy_shares(schedule) * schedule.finish_us
        if not is_cut:  # as uncut chunks load one channel each, average over resources of one kind
            names = [_NUMBERS.sub("", resource.name) for resource in on.resources]
            _, group, count = np.unique(names, return_inverse=True, return_counts=True)
            busy_us = (np.bincount(group, weights=busy_us) / count)[group]
        used = set(schedule.link.tolist())
        betas: dict[int, float] = {}
        # Links that hold a resource may differ in rate: take the lowest rate, which is the largest beta.
        for hold in on.holds:
            if hold.link in used:
                betas[hold.resource] = max(betas.get(hold.resource, 0.0), float(hold.beta_us_per_mb))
        between = {hold.resource for hold in on.holds if on.is_internode(hold.link)}
        for is_between in (False, True):
            some = [index for index in range(len(on.resources)) if (index in between) == is_between]
            busy_us[some] *= self._growth(own.algorithm, topology, between=is_between)
        kinds: dict[str, Limit] = {}
        for index in np.argsort(-busy_us, kind="stable").tolist():
            name = on.resources[index].name
            if busy_us[index] and betas.get(index):
                kind = _kind(name, between=index in between)
                kinds.setdefault(kind, Limit(name, 1000 / betas[index], float(busy_us[index]) / measured_us))
        return tuple(kinds.values())

    def _growth(self, algorithm: str, part: Topology, *, between: bool) -> float:
        """Ratio of the data that a resource carries on all nodes to the data that it carries on `part`.

        - `between`: True for resources between nodes.
        """
        if part is self.topology:
            return 1.0

        def carried(on: Topology) -> float:
            if algorithm == "ring":
                return 1 - 1 / on.num_ranks
            if between:
                return 1 - 1 / on.num_nodes
            return 1 / on.num_nodes if algorithm == "pairwise" and not on_rails(on) else 1.0

        return carried(self.topology) / carried(part)


def _best_of(choices: tuple[Choice, ...]) -> Choice:
    """The library's choice, which comes first, or sums in switches if they are faster."""
    own, *others = choices
    return min([own, *(each for each in others if each.algorithm == "nvls")], key=lambda each: each.time_us)


def _costs_on(topology: Topology, named_network: str, version: Sequence[int]) -> Costs | None:
    """Costs of the topology's machine; if it has only some of the ranks, costs of a node with those.

    None for profiles from files, and for topologies on which the library's costs are unknown.
    """
    if is_uniform_server(topology):
        costs = channel_costs(topology)
        return costs and costs.under(version)
    if topology.profile not in [each.name for each in PROFILES.get(topology.machine, ())]:
        return None
    costs, kept = costs_of(topology.machine), topology.cache.get("kept_ranks", ())
    if replaces(named_network, costs.network.name):
        costs = replace(costs, network=NETWORKS[named_network])
    costs = costs.under(version)
    per_node = ranks_per_node(topology.machine)
    # As nodes are alike, the first one with kept ranks stands for all.
    return costs.on_ranks([rank % per_node for rank in kept if rank // per_node == kept[0] // per_node])


def _costs_on_pcie(series: Series, topology: Topology, version: Sequence[int]) -> Costs | None:
    """Costs of the machine model with PCIe as fast as that of an imported server, up to its rings' rate.

    None if links other than PCIe join ranks, or the ranks differ. None also for an alltoall, whose rate
    depends on the file's switches.
    """
    if {link.name for link in topology.links} != {"PCIe"} or not is_uniform_server(topology):
        return None
    rate = machine_of(topology).node_gb_per_s * (1 + ROUNDED)
    rates = {name: float(model.pcie.nccl_gb_per_s) for name, model in MODELS.items() if model.pcie}
    able = [name for name, of_model in rates.items() if of_model <= rate]
    if series.collective == "alltoall" or not able:
        return None
    costs = costs_of(max(able, key=rates.__getitem__))
    problem = make_problem(topology, series.collective, size_bytes=series.size_bytes[-1])
    ring = max(each.gb_per_s for each in nccl_choices(problem) if each.algorithm == "ring")
    ring *= busbw_factor(series.collective, series.num_ranks) * (1 + ROUNDED)
    return replace(costs, node_gb_per_s=min(costs.node_gb_per_s, ring)).under(version)


def _first_nodes(topology: Topology) -> Topology:
    """The first nodes of a topology, with at most `_SCHEDULE_RANKS` ranks, but at least two nodes."""
    kept = max(_SCHEDULE_RANKS // len(topology.ranks_of_node[0]), 2)
    if topology.num_ranks <= _SCHEDULE_RANKS or topology.num_nodes <= kept:
        return topology
    return subset(topology, ranks=[rank for ranks in topology.ranks_of_node[:kept] for rank in ranks])


def _kind(resource: str, *, between: bool) -> str:
    """Kind of a resource: "inside" or "between" nodes for links and ports, else its name without numbers."""
    if resource.startswith(("link ", "port ", "NIC ")):
        return "between" if between else "inside"
    return re.sub(r"\b(?:in|out|egress|ingress|up|down)\b", "", _NUMBERS.sub("", resource))
