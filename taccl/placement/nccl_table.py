"""Tables for the example tuner plugins of NCCL and RCCL: algorithm, protocol and channels by size."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from taccl._internal.arguments import checked
from taccl.errors import InputError
from taccl.placement.files import ENDLESS, choose

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from taccl._internal.arguments import Count
    from taccl.placement.hosts import ProbedHosts
    from taccl.topology.topology import Topology
    from taccl.topology.tuning import Protocol

#: {our name: its name in NCCL's example tuner plugin}, for the collectives that this plugin supports.
_COLLECTIVES = {
    "allreduce": "allreduce", "allgather": "allgather", "reduce-scatter": "reducescatter",
    "broadcast": "broadcast", "reduce": "reduce",
}  # fmt: skip
#: Message sizes in NCCL's tuner table: powers of two, 8 B to 8 GiB. A rule applies up to the next size.
_TABLE_SIZES = tuple(1 << power for power in range(3, 34))
#: {protocol: (bytes per thread below which NCCL 2.30 drops a channel, minimum threads per channel)}.
#: The minimum threads for simple are those that NCCL uses on PCIe.
_THREAD_BYTES = {"ll": (8, 512), "ll128": (8, 640), "simple": (64, 256)}
#: `_FEWEST_CHANNELS`: minimum number of channels in a rule of NCCL's tuner table.
#: `_MOST_CHANNELS`: maximum number of channels in a rule, as NCCL 2.30 builds at most 64.
_FEWEST_CHANNELS, _MOST_CHANNELS = 2, 64
#: {algorithm: number of channels in rules for RCCL}, which builds up to 112, for trees 64. RCCL reads the
#: number as 8 bits with a sign.
_RCCL_CHANNELS = {"ring": 112, "pat": 112, "tree": 64}
#: Algorithms whose channels NCCL 2.30 does not limit to those that it built (NVLS: between nodes).
_UNLIMITED = ("nvls", "collnet_direct", "collnet_chain")
#: {collective: NCCL's algorithms besides ring}, in the order of their fallback rules in the table.
#: Fallback rules apply if NCCL_ALGO excludes the fastest algorithm.
_OTHERS = {
    "allreduce": ("tree", "nvls", "nvls_tree", "collnet_direct", "collnet_chain"),
    "allgather": ("pat", "nvls", "collnet_direct"),
    "reduce-scatter": ("pat", "nvls", "collnet_direct"),
}
_HEAD = "# collective,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks"
_NOTES = """\
# The plugin takes the first rule that matches, and 1 channel without one: so every size has a rule, for
# {num_ranks} ranks first and then for any number. Channels are upper limits; NCCL uses those that it built.
{needed}# A rule whose protocol or algorithm is not available is skipped for the next rule of the same sizes.
"""


_NEEDED = """\
# NCCL 2.29 and later also need NCCL_ALLGATHERV_ENABLE=0, as their broadcasts do not keep to that limit.
"""


class _Rule(NamedTuple):
    algorithm: str
    protocol: str
    channels: int
    nodes: int = -1


@checked
def nccl_tuner(
    topology: Topology, order: Sequence[int] | None = None, *, num_nodes: Count | None = None
) -> str:
    """Table for NCCL's example tuner plugin (``NCCL_TUNER_CONFIG_FILE``), for its five collectives.

    Machines by name keep NCCL's own choices, by the model in its source. On other topologies, its tables
    decide algorithm and protocol. Between hosts, the simulation decides at which sizes an allreduce uses a
    ring or a tree. The column of nodes is -1 (any), except for NVLS inside a server: NCCL counts servers
    there, and clusters of hosts are not servers.

    NCCL uses at most the channels that it built, with three exceptions. Rules for CollNet, and for NVLS
    between servers, state two channels. Broadcasts of NCCL 2.29 and later follow the rules for an allgather,
    unless ``NCCL_ALLGATHERV_ENABLE=0`` is set. Set it, as they would use channels that do not exist.
    Rules for GPUs of AMD state 112 channels, for trees 64: the most that RCCL uses. It gives small messages
    fewer.

    Parameters
    ----------
    topology : Topology
        The hosts.
    order : sequence of int, optional
        The host slot of every rank; by default rank r is on slot r.
    num_nodes : int, optional
        Number of servers, for the latencies of protocols. Default: one server per rank of a probe of hosts,
        otherwise the nodes. Machine models and matrices of one server ignore it.

    Raises
    ------
    InputError
        If there is one rank.

    References
    ----------
    NVIDIA Collective Communications Library 2.30: ``plugins/tuner/example`` (README and ``plugin.c``), and
    ``src/enqueue.cc`` for the number of channels by size; ``src/scheduler/allgatherv_sched.cc``.
    """
    from taccl.topology.models import library_name

    if topology.num_ranks < 2:
        raise InputError("found one rank; a table is for two or more", where="topology")
    is_rccl, lines = library_name(topology) == "RCCL", [_HEAD]
    for kind, name in _COLLECTIVES.items():
        ours = _by_size(topology, kind, order, num_nodes)
        # Communicators of other sizes get a ring, with LL or simple, whichever is faster on two servers.
        rate = _slowest_gb_per_s(topology)
        others = [_ordered(_tabled(kind, 2, 2, size, rate), size, 2)[-1:] for size in _TABLE_SIZES]
        others = [[*best, *_fallbacks(kind, best[0])] for best in others]
        for num_ranks, rules in ((topology.num_ranks, ours), *_of_smaller(topology, kind), (-1, others)):
            lines += _lines(name, rules, num_ranks, is_rccl=is_rccl)
    notes = _NOTES.format(num_ranks=topology.num_ranks, needed="" if is_rccl else _NEEDED)
    return "\n".join(lines) + "\n" + notes


def _fallbacks(kind: str, best: _Rule) -> Iterator[_Rule]:
    """All rules of a collective but the best; they apply if NCCL_ALGO or NCCL_PROTO excludes the best."""
    protocols = ("ll", "ll128", "simple") if best.protocol == "ll" else ("simple", "ll128", "ll")
    for algorithm in ("ring", *_OTHERS.get(kind, ())):
        if algorithm == "nvls":
            yield _Rule(algorithm, "simple", _MOST_CHANNELS, nodes=1)
        most = _FEWEST_CHANNELS if algorithm in _UNLIMITED else _MOST_CHANNELS
        for protocol in protocols if algorithm in ("ring", "tree") else ("simple",):
            if (algorithm, protocol) != best[:2]:
                yield _Rule(algorithm, protocol, most)


def _lines(name: str, rules: Sequence[list[_Rule]], num_ranks: int, *, is_rccl: bool) -> Iterator[str]:
    """Yield the table's lines for one collective; neighbouring sizes with equal rules share lines."""
    if is_rccl:
        rules = [
            [rule._replace(channels=_RCCL_CHANNELS.get(rule.algorithm, rule.channels)) for rule in some]
            for some in rules
        ]
    first = 0
    for each, sizes in groupby(range(len(rules)), key=rules.__getitem__):
        end = list(sizes)[-1]
        last = ENDLESS if end == len(rules) - 1 else _TABLE_SIZES[end + 1] - 1
        for algorithm, protocol, channels, nodes in each:
            yield f"{name},{first},{last},{algorithm},{protocol},{channels},{nodes},{num_ranks}"
        first = last + 1


def _by_size(
    topology: Topology, kind: str, order: Sequence[int] | None, num_nodes: int | None
) -> list[list[_Rule]]:
    """Rules at each size: the fastest first, then those that apply if NCCL cannot use the fastest."""
    from taccl.baselines.nccl import is_by_name
    from taccl.placement.hosts import MEASURED

    ranks = topology.num_ranks
    if topology.protocols or is_by_name(topology):
        modelled = _modelled(topology, kind)
        return [_ordered(each, size, ranks) for each, size in zip(modelled, _TABLE_SIZES, strict=True)]
    measured: ProbedHosts | None = topology.cache.get(MEASURED)
    is_of_hosts = measured is not None and not measured.probe.is_one_server
    if topology.machine or (measured is not None and not is_of_hosts):
        num_nodes = topology.num_nodes
    else:
        num_nodes = num_nodes or (ranks if is_of_hosts else topology.num_nodes)
    rate = _slowest_gb_per_s(topology)
    tabled = [_tabled(kind, ranks, num_nodes, size, rate) for size in _TABLE_SIZES]
    # NCCL chooses the rings inside servers itself. Between servers they follow the order of ranks.
    if kind == "allreduce" and not topology.machine and (is_of_hosts or num_nodes == ranks):
        choices = choose(topology, kind, library="nccl", order=order)
        for times, size in zip(tabled, _TABLE_SIZES, strict=True):
            chosen = next(each.algorithm for each in choices if each.least_bytes <= size <= each.most_bytes)
            behind = max(times.values())
            for algorithm, protocol in times:
                if (algorithm == "ring") != (chosen == "ring"):
                    times[algorithm, protocol] += behind
    return [_ordered(each, size, ranks) for each, size in zip(tabled, _TABLE_SIZES, strict=True)]


def _modelled(topology: Topology, kind: str) -> Iterator[dict[tuple[str, str], float]]:
    """Yield {(algorithm, protocol): time in us} for each size, by NCCL's cost model of the machine.

    On machines by name these are the times by which NCCL itself chooses.
    """
    from taccl.baselines.nccl import is_by_name, nccl_choices
    from taccl.problem.making import make_problem
    from taccl.topology.profiles import profile_of

    if is_by_name(topology):
        yield from _of_library(topology, kind, topology.num_ranks, topology.num_nodes)
        return
    nvls = "nvls" if topology.num_nodes == 1 else "nvls_tree"
    profile = profile_of(topology)
    found = nccl_choices(make_problem(topology, kind, size_bytes=_TABLE_SIZES[-1]))
    for size in _TABLE_SIZES:
        if profile is not None and profile.ranges:  # use the protocol that was measured at this size
            found = nccl_choices(make_problem(topology, kind, size_bytes=size))
        yield {
            (nvls if each.algorithm == "nvls" else each.algorithm, each.protocol): each.latency_us
            + size / each.gb_per_s / 1000
            for each in found
        }


def _of_library(
    topology: Topology, kind: str, num_ranks: int, num_nodes: int
) -> Iterator[dict[tuple[str, str], float]]:
    """Yield {(algorithm, protocol): us} for each size on a machine by name, by the model in NCCL's source."""
    import numpy as np

    from taccl.measure.library import candidates
    from taccl.measure.predict import costs_of

    nvls = "nvls" if num_nodes == 1 else "nvls_tree"
    sizes = np.array(_TABLE_SIZES, float)
    found = candidates(costs_of(topology.machine), kind, num_ranks, num_nodes, sizes)
    for place in range(len(sizes)):
        yield {
            (nvls if each.algorithm == "nvls" else each.algorithm, each.protocol): float(each.model_us[place])
            for each in found
        }


def _of_smaller(topology: Topology, kind: str) -> Iterator[tuple[int, list[list[_Rule]]]]:
    """Yield the rules at each size for smaller communicators of a machine by name: (number of ranks, rules).

    The number of ranks determines the nodes that a communicator is assumed to span. With at most as many
    ranks as a node has, it is inside a node, as for tensor parallelism. With as many ranks as there are
    nodes, it has one rank of each node. Otherwise it consists of whole nodes.
    """
    from taccl.baselines.nccl import is_by_name

    if not is_by_name(topology):
        return
    whole, nodes = topology.num_ranks, topology.num_nodes
    node = whole // nodes
    of_nodes = {num * node: num for num in range(2, nodes) if nodes % num == 0} | {nodes: nodes}
    in_node = {num: 1 for num in range(2, node + 1) if node % num == 0}
    for num_ranks, num_nodes in sorted((of_nodes | in_node).items()):
        if not 1 < num_ranks < whole:
            continue
        times = zip(_of_library(topology, kind, num_ranks, num_nodes), _TABLE_SIZES, strict=True)
        yield num_ranks, [_ordered(each, size, num_ranks) for each, size in times]


def _tabled(
    kind: str, num_ranks: int, num_nodes: int, size: int, gb_per_s: float
) -> dict[tuple[str, str], float]:
    """{(algorithm, protocol): time in us} by NCCL's tables, with the rate of the slowest hop."""
    from taccl.measure.model import patterns_of
    from taccl.topology.tuning import LL_NETWORK_GB_PER_S, PROTOCOLS, TREE_LL_SHARE

    def rate(algorithm: str, protocol: Protocol) -> float:
        if protocol.name != "ll":
            return gb_per_s * protocol.bandwidth_share
        share = TREE_LL_SHARE if algorithm == "tree" else protocol.bandwidth_share
        most = LL_NETWORK_GB_PER_S["Intel"][min(num_nodes - 2, 1)] if num_nodes > 1 else float("inf")
        return min(gb_per_s * share, most)

    return {
        (pattern.algorithm, each.name): sum(pattern.tabled_us(each))
        + size * (pattern.node_volume + pattern.network_volume) / rate(pattern.algorithm, each) / 1000
        for pattern in patterns_of(kind, num_ranks, num_nodes)
        for each in PROTOCOLS
    }


def _slowest_gb_per_s(topology: Topology) -> float:
    """Minimum of the rates in GB/s at which a rank sends inside its node and to other nodes."""
    from taccl.measure.machine import machine_of

    machine = machine_of(topology)
    return min(rate for rate in (machine.node_gb_per_s, machine.network_gb_per_s) if rate)


def _ordered(times_us: dict[tuple[str, str], float], size: int, num_ranks: int) -> list[_Rule]:
    """Rules by predicted time: the fastest, the fastest without LL128, the fastest ring without LL128."""
    every = sorted(times_us, key=times_us.__getitem__)
    plain = [key for key in every if key[1] != "ll128"]
    rings = [key for key in plain if key[0] == "ring"]
    chosen = dict.fromkeys(keys[0] for keys in (every, plain, rings) if keys)
    return [
        _Rule(*key, _channels(*key, size, num_ranks), nodes=1 if key[0] == "nvls" else -1) for key in chosen
    ]


def _channels(algorithm: str, protocol: str, size: int, num_ranks: int) -> int:
    """Maximum number of channels that NCCL uses from this size up to twice the size, 2 to 64; 64 for NVLS."""
    if algorithm.startswith("nvls"):
        return _MOST_CHANNELS
    each, threads = _THREAD_BYTES[protocol]
    sharing = num_ranks if (algorithm, protocol) == ("ring", "ll") else 1
    return min(max(2 * size // (each * threads * sharing), _FEWEST_CHANNELS), _MOST_CHANNELS)
