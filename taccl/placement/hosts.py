"""Hosts of a probe: costs between all pairs as arrays, and the topology with these costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import chain, permutations
from itertools import count as numbers
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from taccl._internal.names import first_of
from taccl._internal.units import format_count
from taccl.errors import InputError
from taccl.topology.boards import SLOT_GB_PER_S, Board, board_of
from taccl.topology.builder import TopologyBuilder
from taccl.topology.parts import exact_cost, hold_ends

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from taccl._internal.arguments import Number
    from taccl.placement.probe import Probe
    from taccl.topology.topology import Side, Topology

#: Key under which a topology's cache holds the `ProbedHosts` that the topology was made from.
MEASURED = "measured"
#: Ratio of rates above which links of a GPU are of different kinds, such as NVLink and PCIe.
_RATIO_OF_KINDS = 1.5
#: GB/s of a PCIe 5 x16 slot: slower links of a GPU may share one slot, within a socket and across sockets.
_SLOT_GB_PER_S = SLOT_GB_PER_S[5]
#: `_NVLINK_GB_PER_S`: min and max rate of one NVLink of P100 and V100 in GB/s, as measured.
#: `_SAME`: max relative difference at which a rate counts as a multiple of one NVLink's.
_NVLINK_GB_PER_S, _SAME = (16.0, 26.0), 0.08
#: Max ratio of the measured rates of a GPU's NVLinks to that of its data sheet; our choice.
_SLACK = 1.05
#: Min ratio of the rate of bridges of two GPUs to that of every other link; they are faster than PCIe 4 x16.
_RATIO_OF_BRIDGES = 2.0
#: Factor by which the oversubscription grows with each level of clusters; our choice.
_FURTHER = 2.0
#: Values for costs that were not measured; our choices, listed among the topology's assumptions.
#: GPUs of one server have the latency of links in a node of TACCL's topo-ndv2-1MB.json, as other imports do.
USUAL_LATENCY_US, _SERVER_LATENCY_US = 10.0, 0.3
USUAL_GB_PER_S = 12.5
USUAL_OVERSUBSCRIPTION = 4.0
#: Number of decimals to which latencies in us and costs in us/MB are rounded.
DECIMALS = 3


class SharedPath(NamedTuple):
    """Uplink that all messages out of a set of hosts share, and downlink that all messages into it share.

    - `inside`: (num_hosts,) bool, True for the hosts of the set.
    - `beta_us_per_mb`: Time for which a message holds the uplink and the downlink, in us/MB.
    """

    name: str
    inside: NDArray[np.bool_]
    beta_us_per_mb: float


class PairCosts(NamedTuple):
    """Costs between hosts, rounded to `DECIMALS` decimals.

    - `alpha_us`, `beta_us_per_mb`: (num_hosts, num_hosts) float64, row to column; 0 on the diagonal.
    - `kind`: (num_hosts, num_hosts) int64, kind of each link; links of one host and kind share a port.
    - `has_ports`: False if links do not share ports.
    - `shared`: Uplinks of clusters, each with a downlink.
    - `node`: Innermost cluster of each host.
    """

    alpha_us: NDArray[np.float64]
    beta_us_per_mb: NDArray[np.float64]
    kind: NDArray[np.int64]
    has_ports: bool
    shared: tuple[SharedPath, ...]
    node: tuple[int, ...]
    notes: tuple[str, ...]
    assumed: tuple[str, ...]

    def resources(self) -> list[str]:
        """Names of resources: ports out, ports in, then uplink and downlink of each shared path."""
        hosts, kinds = len(self.node), range(int(self.kind.max()) + 1)
        names = [
            f"port {way} {host}" + (f" of kind {kind}" if kind else "")
            for way in ("out", "in")
            for host in range(hosts)
            for kind in kinds
        ]
        return names + [f"{way} of {each.name}" for each in self.shared for way in ("uplink", "downlink")]


@dataclass(frozen=True, eq=False)
class ProbedHosts:
    """Hosts of a probe for rank placement: costs as arrays, and a topology built at the first access.

    - `options`: Options of `Probe.topology`.
    """

    probe: Probe
    name: str = "probe"
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_ranks(self) -> int:
        """Number of hosts."""
        return self.probe.num_hosts

    @cached_property
    def costs(self) -> PairCosts:
        """Costs between all pairs of hosts."""
        return _costs(self.probe, **self.options)

    @property
    def ranks_of_node(self) -> tuple[tuple[int, ...], ...]:
        """Hosts of each innermost cluster."""
        node = np.array(self.costs.node)
        return tuple(tuple(np.flatnonzero(node == each).tolist()) for each in range(node.max() + 1))

    @property
    def told(self) -> list[str]:
        """Notes and assumptions, as the topology lists them."""
        return [*self.costs.notes, *(f"assumed: {each}" for each in self.costs.assumed)]

    @cached_property
    def topology(self) -> Topology:
        """Topology with a link for each pair of hosts."""
        costs, builder = self.costs, TopologyBuilder(self.name, self.costs.node, profile="measured")
        index = {name: builder.add_resource(name) for name in costs.resources()}
        hosts, kinds = self.num_ranks, int(costs.kind.max()) + 1
        alpha_us, beta = (
            [[Fraction(each, 10**DECIMALS) for each in row] for row in in_thousandths(matrix).tolist()]
            for matrix in (costs.alpha_us, costs.beta_us_per_mb)
        )
        ends = np.array([*permutations(range(hosts), 2)])
        for src, dst in ends.tolist():
            link = builder.add_link(src, dst, alpha_us=alpha_us[src][dst], beta_us_per_mb=beta[src][dst])
            if costs.has_ports:
                kind = int(costs.kind[src, dst])
                out, into = src * kinds + kind, (hosts + dst) * kinds + kind
                hold_ends(builder, link, out, into, alpha_us=builder.links[link].alpha_us)
        for each in costs.shared:
            held = Fraction(str(each.beta_us_per_mb))
            sides: tuple[tuple[Side, str], ...] = (("send", "uplink"), ("receive", "downlink"))
            for side, way in sides:
                near, far = ends.T if side == "send" else ends.T[::-1]
                for link in np.flatnonzero(each.inside[near] & ~each.inside[far]).tolist():
                    resource = index[f"{way} of {each.name}"]
                    builder.add_hold(link, resource, alpha_us=0, beta_us_per_mb=held, side=side)
        topology = builder.build(notes=costs.notes, assumed=costs.assumed)
        topology.cache[MEASURED] = self
        return topology


def _costs(
    probe: Probe,
    *,
    bandwidth_gb_per_s: Number = USUAL_GB_PER_S,
    oversubscription: Number = USUAL_OVERSUBSCRIPTION,
    ports: str | None = None,
) -> PairCosts:
    """Costs between all pairs of a probe's hosts; see `Probe.topology` for the options."""
    count = probe.num_hosts
    rate = float(exact_cost(bandwidth_gb_per_s, where="bandwidth_gb_per_s"))
    over = float(exact_cost(oversubscription, where="oversubscription"))
    if not (rate > 0 and over >= 1):
        said = f"found {rate:g} GB/s, oversubscribed {over:g} times; expected above 0, and 1 or more"
        raise InputError(said, where="bandwidth_gb_per_s, oversubscription")
    rates, latencies = probe.bandwidth_gb_per_s, probe.latency_us
    slowness = np.full((count, count), 1.0 / rate) if rates is None else probe.filled(1.0 / rates)
    usual_us = _SERVER_LATENCY_US if probe.is_one_server else USUAL_LATENCY_US
    alpha = np.full((count, count), usual_us) if latencies is None else probe.filled(latencies)
    assumed = [f"every port {rate:g} GB/s"] * (rates is None)
    assumed += [f"every latency {usual_us:g} us"] * (latencies is None)
    assumed += probe.assumed
    found = [] if probe.is_one_server else probe.levels
    innermost = found[0].tolist() if found else [0] * count
    uplinks = _uplinks(probe, found, slowness, over, assumed)
    shared = []
    for what, ranks, each in uplinks:
        inside = np.isin(np.arange(count), ranks)
        # A pair across a shared uplink is no faster than the uplink.
        for rows, columns in ((inside, ~inside), (~inside, inside)):
            across = np.ix_(rows, columns)
            slowness[across] = np.maximum(slowness[across], 1.0 / each)
        shared.append(SharedPath(what, inside, float(_rounded(np.array(1000.0 / each)))))
    kinds, wires, because_of = np.zeros((count, count), np.int64), np.zeros((count, count), bool), ""
    if probe.is_one_server:
        kinds, wires, because_of = _kinds_of_links(slowness, probe.gpus)
    if found:
        nested = ", in ".join(format_count(int(labels.max()) + 1, "cluster") for labels in found)
        because = "as their distances suggest" if probe.clusters is None else "as was stated"
        assumed.insert(0, f"{count} hosts are in {nested}, {because}")
    notes = [] if found else [f"{count} hosts, all alike"]
    if probe.is_one_server:
        notes = [f"{count} GPUs of one server"]
        rest = kinds[~(wires | np.eye(count, dtype=bool))]
        num_kinds, least = int(rest.max(initial=-1)) + 1, 1 / slowness[wires].max() if wires.any() else 0.0
        assumed += _assumed_of_ports(ports, num_kinds, least, because_of)
    alpha = np.nan_to_num(np.round(alpha, DECIMALS))
    beta = np.nan_to_num(_rounded(1000.0 * slowness))
    return PairCosts(
        alpha, beta, kinds, ports != "none", tuple(shared), tuple(innermost), tuple(notes), tuple(assumed)
    )


def _uplinks(
    probe: Probe,
    found: list[NDArray[np.int64]],
    slowness: NDArray[np.float64],
    over: float,
    assumed: list[str],
) -> list[tuple[str, list[int], float]]:
    """[(name, ranks behind it, rate in GB/s)] of uplinks as measured, else by clusters at usual ratios.

    - `found`: Cluster of each host, for each level of clusters; the innermost first.
    - `slowness`: Reciprocal rates between hosts. `over`: Oversubscription of the innermost clusters.
    - `assumed`: A sentence on assumed ratios is appended.
    """
    uplinks = [(f"ranks {ranks[0]}-{ranks[-1]}", list(ranks), each) for ranks, each in probe.uplinks]
    if not probe.uplinks and over > 1 and found:
        times = [over * _FURTHER**depth for depth in range(len(found))]
        assumed.append(f"uplink oversubscription {', then '.join(f'{each:g}' for each in times)} times")
        own = 1.0 / np.min(np.where(np.eye(probe.num_hosts, dtype=bool), np.inf, slowness), axis=1)
        names = chain(("rack", "pod", "zone"), map("level {}".format, numbers(4)))
        for kind, labels, each in zip(names, found, times, strict=False):
            for cluster, hosts in enumerate(np.flatnonzero(labels == n) for n in range(labels.max() + 1)):
                # An uplink is at least as fast as the fastest port of its hosts.
                passes = max(own[hosts].max(), own[hosts].sum() / each)
                uplinks += [(f"{kind} {cluster}", hosts.tolist(), passes)] * (len(hosts) > 1)
    return uplinks


def _assumed_of_ports(ports: str | None, num_kinds: int, least: float, because_of: str) -> list[str]:
    """Assumptions on the ports of the GPUs of a server.

    - `num_kinds`: Number of kinds of links that share a port; 0 if all links have wires of their own.
    - `least`: Least rate in GB/s of NVLinks with wires of their own; 0 without such links.
    """
    of_each = (
        f"one for each of {format_count(num_kinds, 'kind')} of links by rate (up to {_SLOT_GB_PER_S:g} "
        "GB/s one PCIe slot)"
    )
    assumed = []
    if ports is None and num_kinds:
        assumed.append(
            f"links of a GPU share a port, {of_each}, as pairs were measured one at a time "
            "(ports='none' assumes separate wires)"
        )
    elif ports == "shared" and num_kinds > 1:
        assumed.append(f"the shared ports of a GPU are {of_each}")
    if ports != "none" and least:
        assumed.append(f"links of at least {least:.3g} GB/s are {because_of}")
    return assumed


def _kinds_of_links(
    slowness: NDArray[np.float64], gpus: Sequence[str]
) -> tuple[NDArray[np.int64], NDArray[np.bool_], str]:
    """(kind of each link, True for NVLinks with wires of their own, reason), the first two as matrices.

    Kinds are numbered by rate, from 0 for the fastest; after them, each NVLink of a GPU has its own. Links
    are of different kinds if their sorted rates have a gap between them. All rates below that of a PCIe slot
    are of one kind, apart from NVLinks that join two GPUs without a switch.

    - `gpus`: Model of each GPU; empty if unknown, so that NVLinks are recognised by their rates.
    """
    off = ~np.eye(len(slowness), dtype=bool)
    ordered = np.sort(slowness[off])
    differ = ordered[1:] > _RATIO_OF_KINDS * ordered[:-1]
    starts = ordered[1:][differ & (ordered[:-1] < 1 / _SLOT_GB_PER_S)]
    kinds = np.where(off, np.searchsorted(starts, slowness, side="right"), 0)
    places = np.flatnonzero(differ) + 1
    boards = [each for each in map(board_of, gpus) if each is not None]
    fabric = "NVLink"
    if len(boards) == len(slowness):
        wires, fabric = _nvlinks_of(slowness, boards), boards[0].fabric
        models = first_of(sorted(set(gpus)), 2)
        is_meshed = all(each.is_meshed for each in boards)
        why = f"they join all {models}" if is_meshed else f"the PCIe slots of {models} are slower"
    else:
        wires = off & (slowness <= _slowest_nvlink(ordered, places))
        why = "their rates are whole multiples of one NVLink's"
        if not wires.any():
            wires = _bridges(slowness, ordered, places)
            why = (
                f"each GPU has at most one, and other links are slower by {_RATIO_OF_BRIDGES:g} times or more"
            )
    ranks = np.arange(len(slowness))
    own = kinds.max() + (ranks[None] - ranks[:, None]) % len(ranks)
    links = "NVLinks" if fabric == "NVLink" else f"{fabric} links"
    return np.where(wires, own, kinds), wires, f"{links} with wires of their own, as {why}"


def _nvlinks_of(slowness: NDArray[np.float64], boards: Sequence[Board]) -> NDArray[np.bool_]:
    """True for NVLinks that join pairs of GPUs: links faster than the PCIe slots of both, or of a mesh.

    There are none if those of a GPU add up to more than its NVLinks, which it then shares through a switch.
    """
    slots = np.array([SLOT_GB_PER_S[each.pcie] for each in boards])
    most = np.array([each.num_nvlinks * each.nvlink_gb_per_s for each in boards])
    meshed = np.array([each.is_meshed for each in boards])
    off = ~np.eye(len(slowness), dtype=bool)
    rates = np.where(off, 1 / np.where(off, slowness, 1.0), 0.0)
    is_faster = rates > np.minimum.outer(slots, slots)
    may_join = off & (np.minimum.outer(most, most) > 0)
    found: NDArray[np.bool_] = may_join & (is_faster | np.logical_and.outer(meshed, meshed))
    is_switched = (np.where(found, rates, 0.0).sum(axis=1) > _SLACK * most).any()
    return found & (not is_switched)


def _bridges(
    slowness: NDArray[np.float64], ordered: NDArray[np.float64], starts: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """True for NVLink bridges, (num_hosts, num_hosts): they join GPUs in pairs, and PCIe joins the pairs.

    PCIe 5 may be as fast as a bridge. But it seldom joins a GPU to one other at this rate, and to all others
    at a far lower one.

    - `ordered`, `starts`: As in `_slowest_nvlink`.
    """
    none = np.zeros(slowness.shape, bool)
    if not len(starts):
        return none
    slowest, next_class = ordered[starts[0] - 1], ordered[starts[0]]
    if slowest >= 1 / SLOT_GB_PER_S[4] or next_class < _RATIO_OF_BRIDGES * slowest:
        return none
    found: NDArray[np.bool_] = (slowness <= slowest) & ~np.eye(len(slowness), dtype=bool)
    is_matching = (found == found.T).all() and found.sum(axis=1).max() == 1
    return found if is_matching else none


def _slowest_nvlink(ordered: NDArray[np.float64], starts: NDArray[np.int64]) -> float:
    """Greatest slowness of NVLinks that join pairs of GPUs, as on DGX-1; 0 if none are found.

    Pairs have one, two or more of these NVLinks, so that the rates are multiples of one rate. Pairs without
    them are slower. PCIe does not have such rates.

    - `ordered`: Slownesses of all links, ascending, in us per KB.
    - `starts`: Index of the first link of each class of rates after the fastest class.
    """
    classes = np.split(1 / ordered, starts)
    rates = [float(np.median(each)) for each in classes]
    for place, one in enumerate(rates[:-1]):
        times = [rate / one for rate in rates[:place]]
        is_multiple = all(round(each) > 1 and abs(each / round(each) - 1) <= _SAME for each in times)
        if times and is_multiple and _NVLINK_GB_PER_S[0] <= one <= _NVLINK_GB_PER_S[1]:
            return float(ordered[starts[place] - 1])
    return 0.0


def _rounded(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values rounded to `DECIMALS` decimals, so that times are exact; at least 1 in the last decimal."""
    return np.maximum(np.round(values, DECIMALS), 10.0**-DECIMALS)


def in_thousandths(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Values of `DECIMALS` decimals as whole numbers, in units of the last decimal."""
    whole: NDArray[np.int64] = np.rint(values * 10**DECIMALS).astype(np.int64)
    return whole
