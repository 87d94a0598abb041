"""Predicted times of NCCL's in-switch algorithms: NVLS in nodes, SHARP between nodes, and both."""

from __future__ import annotations

from math import log2
from typing import TYPE_CHECKING

import numpy as np

from taccl._internal.arrays import Floats
from taccl.measure.library_costs import Candidate
from taccl.topology import tuning
from taccl.topology.tuning import PROTOCOLS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from taccl.measure.library import Run

#: Index of protocol simple, which all algorithms with sums in switches use.
_SIMPLE = 2


def switch_collectives(run: Run) -> Iterator[Candidate]:
    """Yield the in-switch algorithms that the machine, the network and the collective allow."""
    costs = run.costs
    has_nvls = costs.nvls and costs.generation in tuning.NVLS_SHARE and run.per_node > 2
    has_sharp = costs.sharp and costs.fitted is None and run.num_nodes > 1
    if run.collective in ("allgather", "reduce-scatter") and has_nvls:
        if run.num_nodes == 1 and run.per_node <= tuning.NVLS_RANKS:
            yield _nvls_copies(run)
    elif run.collective == "allreduce":
        if has_nvls:
            yield _nvls(run)
        if has_nvls and has_sharp:
            yield _nvls_sharp(run)
        if has_sharp and run.per_node <= tuning.COLLNET_DIRECT_RANKS:
            yield _collnet(run)


def _nvls_rate(run: Run) -> float:
    """GB/s through a switch in one direction, as measured on full nodes."""
    generation = run.costs.generation
    channels, speed = tuning.NVLS_CHANNELS[generation]
    return (channels - 1) * speed * tuning.NVLS_SHARE[generation] * _links_share(run)


def _model_rate(run: Run) -> float:
    """GB/s through the switch of a single node in one direction, by NCCL's model.

    Each rank is the head of a channel, up to `NVLS_RANKS`. A head's port carries each channel once, and its
    own twice.
    """
    generation, heads = run.costs.generation, min(run.per_node, tuning.NVLS_RANKS)
    speed = _fastest(tuning.CHANNEL_SPEEDS[generation][0], run.costs.node_gb_per_s / (heads + 1))
    return (heads - 1) * speed * tuning.NVLS_SHARE[generation]


def _links_share(run: Run) -> float:
    """Number of a GPU's NVLinks, as a share of `NVLS_LINKS`; 1 if it is unknown."""
    return min(run.costs.num_links / tuning.NVLS_LINKS, 1.0)


def _nvls(run: Run) -> Candidate:
    """NVLS allreduce, which reduces in the switch of each node, and over trees between nodes."""
    costs, m, n, g = run.costs, run.num_nodes, run.num_ranks, run.per_node
    # NCCL's bus bandwidth for the ranks of a node, limited by the rate of their ports.
    # A port carries all data, and 1 / g of it again, as each of g ranks sums one part and multicasts it.
    full = max(n, tuning.NVLS_FULL)
    few = min((1 + 1 / tuning.NVLS_FULL) / (1 + 1 / g), 1.0)
    rate = _nvls_rate(run) * full / (full - 1) * few
    rate = min(rate, costs.node_gb_per_s * tuning.NVLS_SHARE[costs.generation])
    # Bytes that the busiest node sends per byte over two trees (`nvls_pattern`); NCCL: 2 from 3 nodes on.
    across, levels = min(m / 2, 2.0), int(log2(m))
    model_rate = _model_rate(run) * n / (n - 1)
    if m > 1:
        per_channel = tuning.NVLS_CHANNEL[costs.generation][min(m, 3) - 1]
        most = per_channel * min(g, 8) * n / (2 * (n - 1))
        model_rate = min(rate, most, run.wires / min(m - 1, 2))
        rate = min(rate, most * tuning.NVLS_LIMITED.get(costs.generation, np.inf))
    is_old = costs.is_before(*tuning.NVLS_VERSION)
    model_rate = _old_model_rate(run) if is_old else model_rate
    hop_us = tuning.NVLS_OLD_NETWORK_US if is_old else tuning.NVLS_NETWORK_US
    model_us = tuning.NVLS_US + 2 * levels * (hop_us + 2 * costs.network.stated_us)
    has_correction = m > 1 and costs.generation == "Blackwell" and not is_old
    correction = run.corrected(_SIMPLE) if has_correction else np.ones_like(run.size)
    kb = run.size / 1000
    # Each round of the pipeline moves one chunk per block and rank through the switch.
    blocks, _ = nvls_blocks(run)
    turn_kb = np.minimum(_nvls_chunk(run) * blocks * min(g, tuning.NVLS_RANKS), run.size) / 1000
    hop_us = tuning.NVLS_HOP_US.get(costs.generation, PROTOCOLS[_SIMPLE].ring_hop_us)
    turn_us = turn_kb / (rate * costs.node_rate) + hop_us * costs.node_latency
    if costs.generation in tuning.NVLS_ROUND:
        round_us, block_rate = tuning.NVLS_ROUND[costs.generation]
        turn_us = np.maximum(turn_us, round_us * costs.node_latency + turn_kb / (block_rate * blocks))
    network_us = turn_kb * across / run.network if m > 1 else np.zeros_like(kb)
    num_turns = kb / np.maximum(turn_kb, 1e-9)
    latency_us = tuning.NVLS_US * costs.node_latency + turn_us * (2 if m > 1 else 1)
    # Each of the two trees carries half of a round's data, so one level up and down takes `network_us`.
    latency_us = latency_us + 2 * levels * run.network_us(_SIMPLE, "tree", model=False)
    latency_us = latency_us + (levels - 1) * network_us if m > 1 else latency_us
    time_us = latency_us + num_turns * np.maximum(turn_us, network_us)
    return Candidate("nvls", "simple", model_us + kb / (model_rate * correction), time_us)


def _nvls_chunk(run: Run) -> Floats:
    """NVLS chunk size in bytes for each message size; small messages have smaller chunks."""
    heads = min(run.per_node, tuning.NVLS_RANKS)
    blocks, own = nvls_blocks(run)
    chunk = np.full(run.size.shape, float(run.costs.network.nvls_chunk_bytes or own))
    for most, num in tuning.NVLS_CHUNKS[run.num_nodes > 1]:
        is_few = run.size < num * blocks * heads * chunk
        chunk = np.where(is_few & (chunk > most), float(most), chunk)
    return chunk


def nvls_blocks(run: Run) -> tuple[int, int]:
    """(thread blocks of NVLS, max bytes of its chunk), unless a network's plugin sets the chunk."""
    costs, m, several = run.costs, run.num_nodes, run.num_nodes > 1
    blocks, chunk = tuning.NVLS_BLOCKS[costs.generation][several], tuning.NVLS_CHUNK_BYTES
    if several and costs.generation == "Blackwell" and not costs.is_before(*tuning.NVLS_TUNING_VERSION):
        return _blackwell_blocks(run, costs.nic_gb_per_s / costs.nics_per_rank)
    return blocks, min(chunk, tuning.NVLS_MANY_CHUNK_BYTES) if m >= tuning.NVLS_MANY_NODES else chunk


def _blackwell_blocks(run: Run, nic_gb_per_s: float) -> tuple[int, int]:
    """(thread blocks, max bytes of a chunk) on several nodes: ``ncclNvlsTreeSm100Tuning`` of NCCL 2.30.

    The NICs of servers with 8 GPUs are assumed to be behind PCIe switches, and those of racks are not.
    """
    g, kib = run.per_node, 1 << 10
    is_near, few = g <= 8, g >= 16 or g <= 8 and nic_gb_per_s < 96
    if run.num_nodes == 2 and nic_gb_per_s >= 48:
        return 32, (256 if g <= 4 else 64 if few else 128) * kib
    if nic_gb_per_s >= 96:
        return (24, 256 * kib) if g <= 8 else (32, (128 if g < 32 else 64) * kib)
    if nic_gb_per_s >= 48:
        return 24, (64 if is_near else 128) * kib
    return 32, (tuning.NVLS_CHUNK_BYTES if run.num_nodes < tuning.NVLS_MANY_NODES else 64 * kib)


def _old_model_rate(run: Run) -> float:
    """GB/s of an allreduce by NVLS in the model of NCCL before `tuning.NVLS_VERSION`."""
    heads, (inside, between) = (
        min(run.per_node, tuning.NVLS_RANKS),
        tuning.CHANNEL_SPEEDS[run.costs.generation],
    )
    speed = _fastest(inside, run.costs.node_gb_per_s / (heads + 1))
    if run.num_nodes > 1:
        across = _fastest(between, run.wires / heads)
        speed = min(speed, across if run.num_nodes == 2 else across / 2)
    return heads * speed * tuning.NVLS_OLD_SHARE


def _fastest(speeds: Sequence[float], most: float) -> float:
    """The highest speed up to `most`, or else the lowest."""
    return max((each for each in speeds if each <= most), default=min(speeds))


def _nvls_copies(run: Run) -> Candidate:
    """NVLS in one node, either multicasts of all ranks' parts (allgather) or sums (reduce-scatter)."""
    costs, g, kb = run.costs, run.per_node, run.size / 1000
    real, model = (each * (g - 1) / g for each in (_nvls_rate(run), _model_rate(run)))
    time_us = tuning.NVLS_US * costs.node_latency + kb / (real * costs.node_rate)
    return Candidate("nvls", "simple", tuning.NVLS_US + kb / model, time_us)


def _nvls_sharp(run: Run) -> Candidate:
    """Allreduce with NVLS in nodes and SHARP between them, where a NIC sends its part of the data once.

    NCCL's model has the traffic of a ring instead.
    """
    costs, n, kb = run.costs, run.num_ranks, run.size / 1000
    model_us = tuning.NVLS_US + tuning.NVLS_SHARP_US + 2 * costs.network.stated_us
    time_us = tuning.NVLS_US * costs.node_latency
    time_us += (tuning.NVLS_SHARP_US + 2 * costs.network.hop_us) * costs.network_latency
    inside = _nvls_rate(run) * n / (n - 1)
    model = min(inside, run.wires * n / (2 * (n - 1)))
    real = min(inside * costs.node_rate, run.wires * tuning.SHARP_SHARE * costs.network_rate)
    return Candidate("nvls-sharp", "simple", model_us + kb / model, time_us + kb / real)


def _collnet(run: Run) -> Candidate:
    """CollNet allreduce, with SHARP between nodes, and direct sums (NVSwitch) or chains of GPUs in nodes."""
    costs, g = run.costs, run.per_node
    if costs.nvswitch:
        node_us = 2 * (min(1, g - 1) * tuning.COLLNET_DIRECT_US[0] + (g - 1) * tuning.COLLNET_ARITY_US)
        hop_us, name = tuning.COLLNET_DIRECT_US[1], "collnet-direct"
        excess = g / run.num_channels  # GPUs of a node per channel
        share = 1 / (excess - (excess - 1) / 2)
        share *= 1.0 if costs.generation in ("Volta", "Ampere") else tuning.COLLNET_DIRECT_SHARE
    else:
        (inside_us, hop_us), name, share = tuning.COLLNET_CHAIN_US, "collnet", 1.0
        node_us = 2 * (g - 1) * inside_us
    model_us = node_us + hop_us + 2 * costs.network.stated_us
    network_us = (hop_us + 2 * costs.network.hop_us) * costs.network_latency
    time_us, kb, node = node_us * costs.node_latency + network_us, run.size / 1000, costs.node_gb_per_s * g
    model = min(node, run.wires) * share / 2
    real = min(node * costs.node_rate, run.network) * share / 2
    return Candidate(name, "simple", model_us + kb / model, time_us + kb / real)
