"""Table for NCCL's example tuner plugin: algorithm, protocol and channels by collective and size."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from taccl._internal.arguments import checked
from taccl.baselines.nccl import nccl_choices
from taccl.errors import InputError
from taccl.measure.machine import machine_of
from taccl.measure.model import ways
from taccl.placement.files import choose
from taccl.problem.problem import make_problem
from taccl.topology.profiles import profile_of
from taccl.topology.tuning import PROTOCOLS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from taccl._internal.arguments import Count
    from taccl.topology.topology import Topology

#: {our name: the plugin's name} of the collectives that the plugin knows.
_COLLECTIVES = {
    "allreduce": "allreduce", "allgather": "allgather", "reduce-scatter": "reducescatter",
    "broadcast": "broadcast", "reduce": "reduce",
}  # fmt: skip
#: Sizes at which choices are made, 8 B to 8 GiB; each holds up to the next.
_SIZES = tuple(1 << power for power in range(3, 34))
#: Last byte of the last range: above every size.
_ENDLESS = 2**63 - 1
#: Bytes per thread below which NCCL 2.30 drops a channel, and its fewest threads per channel, by protocol:
#: on PCIe alone, simple has 256.
_THREAD_BYTES = {"ll": (8, 512), "ll128": (8, 640), "simple": (64, 256)}
#: Fewest channels written. One is what the plugin sets where no rule matches, and slows large messages down.
#: The most are all that NCCL 2.30 can build.
_FEWEST_CHANNELS, _MOST_CHANNELS = 2, 64
#: {our name: NCCL's algorithms beside the ring}, for fallbacks if NCCL_ALGO excludes the rules before.
_OTHERS = {
    "allreduce": ("tree", "nvls", "nvls_tree", "collnet_direct", "collnet_chain"),
    "allgather": ("pat", "nvls", "collnet_direct"),
    "reduce-scatter": ("pat", "nvls", "collnet_direct"),
}
_HEAD = "# collective,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks"
_NOTES = """\
# The plugin takes the first rule that matches, and 1 channel without one: so every size has a rule, for
# {num_ranks} ranks first and then for any number. Channels are upper limits; NCCL uses those that it built.
# A rule whose protocol or algorithm is not available is skipped for the next rule of the same sizes.
"""


class _Rule(NamedTuple):
    algorithm: str
    protocol: str
    channels: int


@checked
def nccl_tuner(
    topology: Topology, order: Sequence[int] | None = None, *, num_nodes: Count | None = None
) -> str:
    """A table for NCCL's example tuner plugin (``NCCL_TUNER_CONFIG_FILE``), for all five of its collectives.

    Machine models get the fastest algorithm and protocol by NCCL's own model. On other topologies the
    simulation gives the sizes at which an allreduce uses a ring or a tree. Protocols then follow NCCL's
    tables. The column of nodes is -1 (any): NCCL counts servers, and clusters of hosts are none.

    Parameters
    ----------
    topology : Topology
        The hosts.
    order : sequence of int, optional
        The host slot of every rank; by default rank r is on slot r.
    num_nodes : int, optional
        Number of servers among the hosts of a probe, for the latencies of protocols. Default: the nodes of a
        machine model, and one server per rank elsewhere.

    Raises
    ------
    InputError
        If there is one rank.

    References
    ----------
    NVIDIA Collective Communications Library 2.30: ``plugins/tuner/example`` (README and ``plugin.c``), and
    ``src/enqueue.cc`` for the number of channels by size.
    """
    if topology.num_ranks < 2:
        raise InputError("found one rank; a table is for two or more", where="topology")
    lines = [_HEAD]
    for kind, name in _COLLECTIVES.items():
        ours = _by_size(topology, kind, order, num_nodes)
        # Communicators of other sizes: a ring, under LL for as long as it pays between two servers.
        rate = _slowest_gb_per_s(topology)
        others = [_ordered(_tabled(kind, 2, 2, size, rate), size, 2)[-1:] for size in _SIZES]
        others = [[*best, *_fallbacks(kind, best[0])] for best in others]
        lines += [*_lines(name, ours, topology.num_ranks), *_lines(name, others, -1)]
    return "\n".join(lines) + "\n" + _NOTES.format(num_ranks=topology.num_ranks)


def _fallbacks(kind: str, best: _Rule) -> Iterator[_Rule]:
    """All other rules of a collective, for where NCCL_ALGO or NCCL_PROTO excludes the best one."""
    protocols = ("ll", "ll128", "simple") if best.protocol == "ll" else ("simple", "ll128", "ll")
    for algorithm in ("ring", *_OTHERS.get(kind, ())):
        for protocol in protocols if algorithm in ("ring", "tree") else ("simple",):
            if (algorithm, protocol) != best[:2]:
                yield _Rule(algorithm, protocol, _MOST_CHANNELS)


def _lines(name: str, rules: Sequence[list[_Rule]], num_ranks: int) -> Iterator[str]:
    """Rules of neighbouring sizes joined where they agree."""
    first = 0
    for each, sizes in groupby(range(len(rules)), key=rules.__getitem__):
        end = list(sizes)[-1]
        last = _ENDLESS if end == len(rules) - 1 else _SIZES[end + 1] - 1
        for rule in each:
            yield f"{name},{first},{last},{rule.algorithm},{rule.protocol},{rule.channels},-1,{num_ranks}"
        first = last + 1


def _by_size(
    topology: Topology, kind: str, order: Sequence[int] | None, num_nodes: int | None
) -> list[list[_Rule]]:
    """Rules at each size: the fastest, then those for where its protocol or algorithm is not available."""
    ranks = topology.num_ranks
    if topology.protocols:
        modelled = _modelled(topology, kind)
        return [_ordered(each, size, ranks) for each, size in zip(modelled, _SIZES, strict=True)]
    num_nodes = topology.num_nodes if topology.machine else num_nodes or ranks
    rate = _slowest_gb_per_s(topology)
    tabled = [_tabled(kind, ranks, num_nodes, size, rate) for size in _SIZES]
    if kind == "allreduce" and not topology.machine:  # inside a machine NCCL lays its own rings
        choices = choose(topology, kind, library="nccl", order=order)
        for times, size in zip(tabled, _SIZES, strict=True):
            chosen = next(each.algorithm for each in choices if each.least_bytes <= size <= each.most_bytes)
            behind = max(times.values())
            for algorithm, protocol in times:
                if (algorithm == "ring") != (chosen == "ring"):
                    times[algorithm, protocol] += behind
    return [_ordered(each, size, ranks) for each, size in zip(tabled, _SIZES, strict=True)]


def _modelled(topology: Topology, kind: str) -> Iterator[dict[tuple[str, str], float]]:
    """{(algorithm, protocol): us} at each size, by NCCL's model of a machine."""
    nvls = "nvls" if topology.num_nodes == 1 else "nvls_tree"
    profile = profile_of(topology)
    found = nccl_choices(make_problem(topology, kind, size_bytes=_SIZES[-1]))
    for size in _SIZES:
        if profile is not None and profile.ranges:  # the protocol that was measured at this size
            found = nccl_choices(make_problem(topology, kind, size_bytes=size))
        yield {
            (nvls if each.algorithm == "nvls" else each.algorithm, each.protocol): each.latency_us
            + size / each.gb_per_s / 1000
            for each in found
        }


def _tabled(
    kind: str, num_ranks: int, num_nodes: int, size: int, gb_per_s: float
) -> dict[tuple[str, str], float]:
    """{(algorithm, protocol): us} by NCCL's tables, where the slowest hop has this rate."""
    return {
        (way.algorithm, each.name): sum(way.tabled_us(each))
        + size * (way.node_volume + way.network_volume) / (gb_per_s * each.bandwidth_share) / 1000
        for way in ways(kind, num_ranks, num_nodes)
        for each in PROTOCOLS
    }


def _slowest_gb_per_s(topology: Topology) -> float:
    """GB/s that a rank sends to its node or to others, whichever is less."""
    machine = machine_of(topology)
    return min(rate for rate in (machine.node_gb_per_s, machine.network_gb_per_s) if rate)


def _ordered(times_us: dict[tuple[str, str], float], size: int, num_ranks: int) -> list[_Rule]:
    """The fastest rule, the fastest without LL128, and the fastest along a ring without LL128."""
    every = sorted(times_us, key=times_us.__getitem__)
    plain = [key for key in every if key[1] != "ll128"]
    rings = [key for key in plain if key[0] == "ring"]
    chosen = dict.fromkeys(keys[0] for keys in (every, plain, rings) if keys)
    return [_Rule(*key, _channels(*key, size, num_ranks)) for key in chosen]


def _channels(algorithm: str, protocol: str, size: int, num_ranks: int) -> int:
    """Most channels that NCCL keeps busy from this size up to the next, 2 to 64; NVLS gets them all."""
    if algorithm.startswith("nvls"):
        return _MOST_CHANNELS
    each, threads = _THREAD_BYTES[protocol]
    sharing = num_ranks if (algorithm, protocol) == ("ring", "ll") else 1
    return min(max(2 * size // (each * threads * sharing), _FEWEST_CHANNELS), _MOST_CHANNELS)
