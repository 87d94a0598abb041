"""Predicted times of NCCL and RCCL, from the tuning models in their source.

A library chooses the algorithm and the protocol that are fastest by its own model. That model omits the
launch, and uses the latency that a network plugin states. The predicted time is computed apart from it:
launch, latencies of all hops, filling of the pipeline, and bytes over the rates of wires.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2
from typing import TYPE_CHECKING

import numpy as np

from taccl._internal.arrays import Floats
from taccl.measure.channels import (
    filling_us,
    network_channels,
    pair_channels,
    power_above,
    searched,
    tree_speed,
)
from taccl.measure.in_switch import nvls_blocks, switch_collectives
from taccl.measure.library_costs import Candidate, Costs
from taccl.measure.rccl import between_nodes
from taccl.measure.ring_chunks import ring_data_us
from taccl.measure.series import POINT_TO_POINT
from taccl.topology import tuning
from taccl.topology.tuning import PROTOCOLS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray


#: Index of protocol simple in `PROTOCOLS`.
_SIMPLE = 2


def candidates(
    costs: Costs, collective: str, num_ranks: int, num_nodes: int, size_bytes: Floats
) -> list[Candidate]:
    """Times of each algorithm and protocol; the library chooses the candidate with the least `model_us`."""
    run = Run(costs, collective, num_ranks, num_nodes, size_bytes)
    only = costs.network.only if num_nodes > 1 and collective not in ("alltoall", POINT_TO_POINT) else ()
    launched = costs.ranks_per_process
    if costs.generation == "Volta" and not launched:  # benchmarks of V100 ran one process per node
        launched = run.per_node
    start_us = costs.launch_us * costs.launch_scale
    if num_nodes > 1:
        start_us += costs.network.start_of(costs.host) * costs.network_latency
    found = [each for each in run.all() if not only or f"{each.algorithm} {each.protocol}" in only]
    # The host launches an operation while GPUs still run the previous one, so the longer time applies.
    num = min(launched, run.per_node)
    return [
        each._replace(time_us=np.maximum(each.time_us + start_us, num * run.host_us(each))) for each in found
    ]


def chosen(found: list[Candidate]) -> NDArray[np.int64]:
    """Index of the candidate that the library chooses, (sizes,)."""
    place: NDArray[np.int64] = np.argmin([each.model_us for each in found], axis=0)
    return place


@dataclass(frozen=True, slots=True)
class Run:
    """A collective on `num_ranks` ranks in equal nodes at several sizes, with the times of its algorithms."""

    costs: Costs
    collective: str
    num_ranks: int
    num_nodes: int
    size: Floats

    @property
    def per_node(self) -> int:
        """Ranks of a node."""
        return self.num_ranks // self.num_nodes

    @property
    def wires(self) -> float:
        """GB/s of all NICs of a node, one way."""
        return ceil(self.per_node / self.costs.ranks_per_nic) * self.costs.nic_gb_per_s

    @property
    def network(self) -> float:
        """Rate in GB/s that large messages reach over all NICs of a node, one way."""
        return self.wires * self.costs.network.efficiency * self.costs.network_rate

    @property
    def nic(self) -> float:
        """Rate in GB/s that large messages reach over a NIC, one way."""
        return self.network / ceil(self.per_node / self.costs.ranks_per_nic)

    @property
    def node(self) -> float:
        """Rate in GB/s at which a rank sends inside its node."""
        return self.table_gb_per_s * self.costs.node_rate

    @property
    def table_gb_per_s(self) -> float:
        """Rate of a rank inside its node by the library's tables, over links to participating ranks."""
        return self.costs.node_gb_per_s * self.links_share

    @property
    def links_share(self) -> float:
        """Share of a rank's links inside its node that carry data."""
        # A point-to-point message can use only the links between its two ranks.
        return self.costs.links_share(2 if self.collective == POINT_TO_POINT else self.per_node)

    @property
    def num_nics(self) -> int:
        """NICs of a node, as the library sees them."""
        return ceil(self.per_node / self.costs.ranks_per_nic) * self.costs.nics_per_rank

    @property
    def channels(self) -> tuple[int, float]:
        """Number of channels that the library's search finds, and the speed of each in GB/s."""
        if self.costs.fitted is not None or self.costs.pcie:
            return self._unsearched
        if self.num_nodes == 1:
            return searched(self.costs.generation, self.table_gb_per_s, None)
        g = self.per_node  # a channel leaves the node at one of its g ranks, which sends to a NIC instead
        node = self.table_gb_per_s * g / (g - 1) if g > 1 else float("inf")
        return searched(self.costs.generation, node, (self.num_nics, self.wires))

    @property
    def _unsearched(self) -> tuple[int, float]:
        links = round(self.costs.num_links * self.links_share)
        num = max(links if self.num_nodes == 1 else self.num_nics, 2)
        return num, (self.table_gb_per_s if self.num_nodes == 1 else self.wires) / num

    @property
    def num_channels(self) -> int:
        """Number of channels that NCCL's topology search finds on this machine."""
        return self.channels[0]

    @property
    def message_channels(self) -> int:
        """Max number of channels of a message to a rank on another node, under NCCL."""
        costs, num = self.costs, 2 * self.num_channels
        return network_channels(num, costs.nics_per_rank, costs.nic_gb_per_s, self.num_ranks, costs.version)

    @property
    def num_steps(self) -> int:
        """Number of steps of the collective on a ring."""
        n = self.num_ranks
        return {"allreduce": 2 * (n - 1), "allgather": n - 1, "reduce-scatter": n - 1}.get(self.collective, n)

    def all(self) -> Iterator[Candidate]:
        """Yield the times of all algorithms that the library has for the collective, without the launch."""
        if self.collective in ("alltoall", POINT_TO_POINT):
            yield from self._pairs()
            return
        if self.costs.architecture and self.num_nodes > 1:
            yield from between_nodes(self)
            return
        for p in self.protocols:
            yield self.ring(p)
            if self.collective == "allreduce" and self.costs.fitted is None:
                yield self._tree(p)
        if self.collective in ("allgather", "reduce-scatter") and self._has_pat():
            yield self._pat()
        yield from switch_collectives(self)

    def _has_pat(self) -> bool:
        """True if NCCL has parallel aggregated trees (PAT, since 2.23): with one GPU per node only."""
        return self.costs.fitted is None and self.num_ranks == self.num_nodes

    @property
    def protocols(self) -> tuple[int, ...]:
        """Indices of the protocols that the library uses."""
        has_ll128 = not self.costs.pcie and (self.num_nodes == 1 or self.costs.network.ll128)
        return tuple(p for p, each in enumerate(PROTOCOLS) if has_ll128 or each.name != "ll128")

    def fitted_costs(self, protocol: str) -> tuple[float, float, float]:
        """(base us, hop us, share) of a protocol under a library without a table."""
        assert self.costs.fitted is not None, "the library has a table"
        return self.costs.fitted[protocol]

    def network_us(self, p: int, algorithm: str, *, model: bool) -> float:
        """Latency in us of a hop between nodes: in the library's own tuning model if `model`, else in ours.

        - `p`: Index of the protocol in `PROTOCOLS`.
        """
        row, network = PROTOCOLS[p], self.costs.network
        is_alone = model and self.per_node == 1  # the model then uses the hop of a tree
        hop = row.tree_network_us if algorithm == "tree" or is_alone else row.ring_network_us
        if model:
            return hop + network.stated_us * (2 if row.name == "simple" else 1)
        return (hop + network.further_us(row.name)) * self.costs.network_latency

    def _channels_used(self, protocol: str, algorithm: str, most: float) -> Floats:
        """Number of channels that messages of each size use, up to `most`."""
        least = tuning.CHANNEL_BYTES[protocol]
        if algorithm == "ring" and protocol == "ll":
            least *= self.num_ranks
        return np.clip(self.size / least, 1, most)

    def _posts_us(self, p: int, algorithm: str) -> Floats:
        """Time in us that data, and channels beyond the first, add to a hop between nodes."""
        costs, name = self.costs, PROTOCOLS[p].name
        if self._checks_flags(p):
            least = tuning.CHANNEL_BYTES[name]
            of_channel = self.size / (self.num_ranks if algorithm == "ring" else 1)
            return np.minimum(of_channel / least, 1.0) * costs.network.ll_us * costs.network_latency
        further = self._channels_used(name, algorithm, self.num_channels / costs.nics_per_rank) - 1
        return further * costs.network.post_us * costs.network_latency

    def _step_us(self, p: int, posts: int) -> Floats | float:
        """Least time in us of a step of a ring between nodes, as a host posts a message for each channel.

        - `posts`: number of posts for a single channel, of which further channels hide all but one.
        """
        costs, least = self.costs, tuning.NET_POST_US["Intel"] * posts
        if costs.architecture:
            return least
        used = self._channels_used(PROTOCOLS[p].name, "ring", 2 * self.num_channels)
        each = max(tuning.STEP_POST_US, costs.network.message_us)
        return np.maximum(used / self.per_node * each, least)

    def _checks_flags(self, p: int) -> bool:
        """True if the time in which hosts look for flags under LL is known for the network."""
        return PROTOCOLS[p].name == "ll" and self.num_nodes > 1 and self.costs.network.ll_us > 0

    def host_us(self, found: Candidate) -> Floats:
        """Host time in us to launch an algorithm on one GPU, for each message size."""
        costs, num = self.costs, 2 * self.num_channels  # NCCL doubles the channels that it found
        if found.algorithm == "pairwise":
            used = np.full(self.size.shape, float(power_above(num)))
        elif found.algorithm == "nvls":
            used = np.full(self.size.shape, float(nvls_blocks(self)[0]))
        else:
            used = self._channels_used(found.protocol, found.algorithm, num)
        return (costs.serial_launch_us + used * costs.channel_launch_us) * costs.launch_scale

    def _node_us(self, p: int, algorithm: str) -> tuple[float, float]:
        """(base latency, latency of a hop inside a node), in us."""
        row = PROTOCOLS[p]
        if self.costs.fitted is not None:
            return self.costs.fitted[row.name][:2]
        base = row.tree_base_us if algorithm == "tree" else row.ring_base_us
        if self.costs.pcie:
            return base, tuning.PCIE_HOPS_US[algorithm][p]
        return base, row.tree_hop_us if algorithm == "tree" else row.ring_hop_us

    def _real_hop_us(self, p: int, hop_us: float) -> float:
        """Predicted time in us of a hop inside a node; `hop_us` is the time by the library's model."""
        is_ll = PROTOCOLS[p].name == "ll" and not self.costs.pcie
        return tuning.LL_HOP_US.get(self.costs.generation, hop_us) if is_ll else hop_us

    def _ll_gb_per_s(self, *, model: bool) -> float:
        """Maximum rate of LL in GB/s; NCCL's model assumes a lower one between nodes with AMD processors."""
        if self.num_nodes == 1:
            return float(tuning.LL_GB_PER_S[self.costs.generation])
        return tuning.LL_NETWORK_GB_PER_S[self.costs.host if model else "Intel"][min(self.num_nodes - 2, 1)]

    def _ring_gb_per_s(self, p: int, wires: float, node: float, scale: float, *, model: bool) -> float:
        """Bus bandwidth of rings in GB/s under protocol number `p`.

        In nodes of g ranks, 1 / g of a rank's sends leave the node.

        - `wires`, `node`: Rates in GB/s out of a node, and of a rank inside its node.
        - `scale`: Factor of the protocol's maximum rate.
        - `model`: True for the rate by the library's model, False for the predicted rate.
        """
        g, costs, name = self.per_node, self.costs, PROTOCOLS[p].name
        across = self.num_nodes > 1
        rate = min(node * g / (g - 1) if g > 1 else np.inf, wires) if across else node
        if costs.fitted is not None:
            return rate * costs.fitted[name][2]
        if name == "ll":
            most = self._ll_gb_per_s(model=model)
            return min(rate * PROTOCOLS[p].bandwidth_share, most * scale)
        if name == "ll128":
            most = self.num_channels * self._channel_limit(tuning.RING_LL128_CHANNEL, model=model) * scale
            return min(rate * PROTOCOLS[p].bandwidth_share, most)
        if model or costs.pcie or costs.generation not in tuning.RING_CHANNEL:
            return rate
        if across and (costs.generation, costs.network.name) in tuning.RING_CHANNEL_FREE:
            return rate
        return min(rate, self.num_channels * tuning.RING_CHANNEL[costs.generation] * scale)

    def ring(self, p: int) -> Candidate:
        """Times of rings under protocol number `p`."""
        costs, m, steps = self.costs, self.num_nodes, self.num_steps
        base, hop = self._node_us(p, "ring")
        is_simple = PROTOCOLS[p].name == "simple"
        model_hop = hop
        real_hop: Floats | float = self._real_hop_us(p, hop)
        if m > 1:
            posts = tuning.SIMPLE_POSTS if is_simple else 1
            model_hop = max(model_hop, tuning.NET_POST_US[costs.host] * posts)
            real_hop = np.maximum(real_hop, self._step_us(p, posts))
        across = (m - 1) * (2 if self.collective == "allreduce" else 1)
        inside = (self.num_ranks - 1 if self.collective in ("broadcast", "reduce") else steps) - across
        model_us = base + inside * model_hop + across * self.network_us(p, "ring", model=True)
        if self.collective in ("broadcast", "reduce"):
            model_us = base + (model_hop if m == 1 else self.network_us(p, "ring", model=True))
        network_us = self.network_us(p, "ring", model=False) + self._posts_us(p, "ring")
        latency_us = (base + inside * real_hop) * costs.node_latency + across * network_us
        by_model = np.full(self.size.shape, model_us)
        if self.collective == "allreduce" and m > 1 and is_simple:
            plateau = tuning.RING_PLATEAU[costs.generation not in ("", "Volta")]
            # NCCL runs twice as many channels as its search finds.
            by_model[self.size / (2 * self.num_channels * self.num_ranks) >= tuning.PLATEAU_BYTES] *= plateau
        total = self.channels[0] * self.channels[1]
        wires = self._ring_gb_per_s(p, total, total if m == 1 else np.inf, 1.0, model=True)
        real = self._ring_gb_per_s(p, self.network, self.node, costs.node_rate, model=False)
        by_model = by_model + self.size / 1000 * steps / self.num_ranks / wires
        return Candidate("ring", PROTOCOLS[p].name, by_model, latency_us + ring_data_us(self, p, real))

    def _tree(self, p: int) -> Candidate:
        costs, m, g, name = self.costs, self.num_nodes, self.per_node, PROTOCOLS[p].name
        num, speed = self.channels
        if m == 2 and not costs.pcie:
            speed = tree_speed(costs.generation, self.table_gb_per_s, num, speed)
        model_rate = self._tree_gb_per_s(name, num * speed, model=True)
        rate = self._tree_gb_per_s(name, self.table_gb_per_s, model=False)
        levels = int(log2(m))
        base, hop = self._node_us(p, "tree")
        across = 2 * (m - 1) / m / PROTOCOLS[p].bandwidth_share
        real = min(rate * costs.node_rate, self.network / across if m > 1 else np.inf)
        model_us = base + 2 * ((g - 1) * hop + levels * self.network_us(p, "tree", model=True))
        network_us = self.network_us(p, "tree", model=False) + self._posts_us(p, "tree")
        hops_us = 2 * (g - 1) * self._real_hop_us(p, hop)
        time_us = (base + hops_us) * costs.node_latency + 2 * levels * network_us
        correction, kb = self.corrected(p), self.size / 1000
        if name == "simple":  # to fill the pipeline, the first step of each channel passes all hops
            # NCCL runs twice as many channels as its search finds (``ncclTopoPostset``).
            step_kb = np.minimum(costs.network.step_bytes * 2 * num, self.size) / 1000
            across_us = step_kb / self.network if m > 1 else 0.0
            time_us = time_us + 2 * (g - 1) * step_kb / self.node + 2 * levels * across_us + kb / real
        else:  # the checks of flags are what NCCL's correction of LL stands for
            time_us = time_us + kb / (real * (1.0 if self._checks_flags(p) else correction))
        return Candidate("tree", name, model_us + kb / (model_rate * correction), time_us)

    @property
    def _place(self) -> int:
        """Index into NCCL's tables, which have an entry each for one node, for two nodes and for more."""
        return min(self.num_nodes, 3) - 1

    @property
    def tree_limit_gb_per_s(self) -> float:
        """Maximum total rate of all tree channels in GB/s, with the data up and down the trees added."""
        return float(self.num_channels * tuning.TREE_CHANNEL[self.costs.generation][self._place])

    def _channel_limit(self, limits: Mapping[str, float], *, model: bool) -> float:
        """Maximum GB/s of a channel: by the library's own model if `model`, else the predicted one.

        - `limits`: {GPU generation: maximum GB/s of a channel} of the newest version.
        """
        generation = self.costs.generation
        if model and generation == "Blackwell" and self.costs.is_before(*tuning.NVLS_VERSION):
            return tuning.OLD_BLACKWELL * limits["Hopper"]
        return limits[generation]

    def _tree_gb_per_s(self, name: str, total: float, *, model: bool) -> float:
        """GB/s of reduced data through trees: half of what channels carry, as data go both up and down."""
        num, place = self.num_channels, self._place
        if name == "simple" and not model and self.num_nodes > 1 and not self.costs.pcie:
            return total / 2  # published logs exceed the maximum of NCCL's model (`tuning.TREE_CHANNEL`)
        limits = {each: rates[place] for each, rates in tuning.TREE_CHANNEL.items()}
        rate = min(total * tuning.TREE_SHARE, num * self._channel_limit(limits, model=model))
        if name == "ll":
            rate = min(rate * tuning.TREE_LL_SHARE, self._ll_gb_per_s(model=model))
        elif name == "ll128":
            limits = {each: rates[place] for each, rates in tuning.TREE_LL128_CHANNEL.items()}
            most = num * self._channel_limit(limits, model=model)
            rate = min(rate * tuning.TREE_LL128_SHARES[place > 0], most)
        return rate / 2

    def corrected(self, p: int) -> Floats:
        """NCCL's tree correction factors under protocol number `p`: share of bandwidth, by message size."""
        table = np.array(tuning.TREE_CORRECTION[p], float)
        place = np.floor(np.log2(np.maximum(self.size / 64, 1e-9))).astype(int)
        return np.where((place >= 0) & (place < len(table)), table[np.clip(place, 0, len(table) - 1)], 1.0)

    def _pat(self) -> Candidate:
        """Parallel aggregated trees (PAT); latency and bandwidth are those of NCCL's model."""
        costs, kb, hops = self.costs, self.size / 1000, int(log2(self.num_nodes)) / tuning.PAT_HOPS
        linear_us = tuning.PAT_BASE_US + tuning.PAT_RANK_US * self.num_ranks
        model_us = linear_us + hops * self.network_us(2, "tree", model=True)
        time_us = linear_us * costs.node_latency + hops * self.network_us(2, "tree", model=False)
        wires, network = self.wires * tuning.PAT_SHARE, self.network * tuning.PAT_SHARE
        return Candidate("pat", "simple", model_us + kb / wires, time_us + kb / network)

    def _pair_pipeline(
        self, message: Floats, peers: int, node: float
    ) -> tuple[Floats | float, Floats | float]:
        """(GB/s of a rank to `peers` in its node, us until receivers can copy the first chunks)."""
        costs, sizes = self.costs, tuning.PAIR_SIZES["node"]
        if not costs.nvswitch or costs.fitted is not None or self.num_nodes > 1:
            return node, 0.0
        num, speed = 2 * self.num_channels, self.channels[1] / 2  # NCCL doubles the channels it found
        each = pair_channels(num, 2 * costs.num_links, self.num_ranks, message, sizes)
        speed = max(speed * node / self.node, costs.pair_rates.channel_gb_per_s)
        rate = np.minimum(node, each * peers * speed)
        return rate, filling_us(message, each, rate / peers, sizes)

    def _ll_pairs(self, message: Floats, peers: int) -> tuple[Floats | float, Floats | float]:
        """(max bytes of a message to each of `peers` in a node under LL, max GB/s of its channels)."""
        costs, (since, until) = self.costs, tuning.PAIR_LL_VERSIONS
        if not costs.nvswitch or costs.fitted is not None:
            return tuning.PAIR_LL_BYTES, np.inf
        num, most = 2 * self.num_channels, 2 * costs.num_links
        is_between = costs.is_before(*until) and not costs.is_before(*since)
        sizes = tuning.PAIR_SIZES["ll" if is_between else "node"]
        each = pair_channels(num, most, self.num_ranks, message, sizes)
        each = np.minimum(each, power_above(num) / peers)  # more peers share channels
        rate = each * tuning.PAIR_LL_CHANNEL.get(costs.generation, np.inf)
        channels = min(power_above(most), power_above(num)) if is_between else 1
        return tuning.PAIR_LL_BYTES * channels, rate

    def _network_channels(self, message: Floats) -> Floats:
        """Number of channels that carry a message to a rank on another node."""
        sizes, most = tuning.PAIR_SIZES["network"], self.message_channels
        return pair_channels(2 * self.num_channels, most, self.num_ranks, message, sizes)

    def _network_pipeline(self, message: Floats) -> tuple[Floats | float, Floats | float]:
        """(GB/s of a message to a rank on another node, us until its first chunks have arrived)."""
        if self.costs.fitted is not None:
            return self.nic, 0.0
        each = self._network_channels(message)
        rate = np.minimum(self.nic, each * tuning.PAIR_CHANNEL_NETWORK_GB_PER_S * self.costs.network_rate)
        return rate, filling_us(message, each, rate, tuning.PAIR_SIZES["network"])

    def _message(self) -> tuple[Floats, Floats | float, float]:
        """(us over the wire at the full rate, us to fill the pipeline, us between nodes) of a message.

        Each rank sends to the next rank, and the slowest message leaves its node.
        """
        if self.num_nodes == 1:
            rate, fill_us = self._pair_pipeline(self.size, 1, self.node * self.costs.pair_rates.one)
            return self.size / 1000 / rate, fill_us, 0.0
        rate, fill_us = self._network_pipeline(self.size)
        is_flushed = self.costs.generation not in tuning.WITHOUT_FLUSH
        us = self.network_us(_SIMPLE, "ring", model=False) if is_flushed else self._posts_to_us(1)
        return self.size / 1000 / rate, fill_us, us

    def _exchange(self) -> tuple[Floats, Floats | float, float]:
        """(us over the wire, us to fill the pipeline, us between nodes), if all pairs exchange messages."""
        costs, n, g = self.costs, self.num_ranks, self.per_node
        rate, fill_us = self._pair_pipeline(self.size / n, g - 1, self.node * costs.pair_rates.all)
        outside, peers = self.nic / min(g, costs.ranks_per_nic), n - g
        if peers and costs.fitted is None:
            each = self._network_channels(self.size / n)
            fill_us = filling_us(self.size / n, each, outside / peers, tuning.PAIR_SIZES["network"])
        wire_us = self.size / 1000 / n * np.maximum((g - 1) / rate, peers / outside if peers else 0.0)
        return wire_us, fill_us, self._posts_to_us(peers)

    def _posts_to_us(self, peers: int) -> float:
        """Latency in us of messages to ranks of other nodes, which a host posts one after another."""
        hop_us = self.costs.network.hop_us if peers else 0.0
        posts_us = peers * (PROTOCOLS[0].ring_network_us + tuning.NET_POST_US["Intel"])
        return float((posts_us + hop_us) * self.costs.network_latency)

    def _pairs(self) -> Iterator[Candidate]:
        """Yield times of messages between pairs of ranks."""
        costs, is_message = self.costs, self.collective == POINT_TO_POINT
        wire_us, fill_us, network_us = self._message() if is_message else self._exchange()
        # NCCL has no buffers of LL for messages to other nodes (``src/transport/net.cc``).
        message = self.size / (1 if is_message else self.num_ranks)
        most, ll_rate = self._ll_pairs(message, 1 if is_message else self.per_node - 1)
        is_ll = message <= (most if self.num_nodes == 1 or costs.fitted else 0)
        for p in (0, _SIMPLE):
            base, hop = self._node_us(p, "ring")
            share = costs.fitted["ll"][2] if costs.fitted and p == 0 else PROTOCOLS[p].bandwidth_share
            latency_us = (base + self._real_hop_us(p, hop)) * costs.node_latency + network_us
            sent_us = (
                wire_us + fill_us if p == _SIMPLE else np.maximum(wire_us / share, message / 1000 / ll_rate)
            )
            time_us = latency_us + sent_us
            is_wrong = is_ll == (p == _SIMPLE)
            yield Candidate("pairwise", PROTOCOLS[p].name, np.where(is_wrong, np.inf, time_us), time_us)
