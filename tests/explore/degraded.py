"""Logs of machines with one fault each, by a small model that is independent of the package.

A collective takes a latency, plus the time of its bytes over the slowest of the resources that carry equal
parts: the NIC of each rail, and the links of a node. Times have noise of 1.5 %.
"""

import random

SIZES = tuple(2**power for power in range(10, 34, 3))
#: `NVLS`: bus bandwidth in GB/s of sums on 8 H100 with in-switch sums (published log: 481).
#: `RINGS`: bus bandwidth in GB/s of sums on 8 H100 without in-switch sums (published logs: 362 to 370).
NVLS, RINGS = 478.0, 365.0
#: `NIC`: GB/s of messages on a NIC of 200 Gb/s (published logs: 23 of 25).
#: `HALF_SLOT`: GB/s on such a NIC in a slot with half of the PCIe 4.0 lanes.
NIC, HALF_SLOT = 23.3, 13.2


def network_log(rails, *, seed=0, latency_us=30.0, name="all_gather"):
    """Log of a collective in rings on two nodes of eight A100, over the given rails."""
    return _log(name, "NVIDIA A100-SXM4-80GB", 2, latency_us, min(rails) * len(rails), seed)


def node_log(busbw, *, seed=0, latency_us=15.0, name="all_reduce"):
    """Log of a collective on eight H100 in a node, with the given bus bandwidth in GB/s."""
    return _log(name, "NVIDIA H100 80GB HBM3", 1, latency_us, busbw, seed)


def _log(name, gpu, nodes, latency_us, busbw, seed):
    part = 1 - 1 / (8 * nodes)
    redop, factor = {"all_gather": ("none", part), "all_reduce": ("sum", 2 * part)}[name]
    noise = random.Random(seed)
    lines = [f"# Collective test starting: {name}_perf", "# Using devices"]
    lines += [
        f"#  Rank {rank} Group 0 Pid {rank + 1} on host{rank // 8} device {rank % 8} [0000:00:00] {gpu}"
        for rank in range(8 * nodes)
    ]
    lines.append("#  size  count  type  redop  root  time  algbw  busbw #wrong")
    for size in SIZES:
        time_us = (latency_us + size * factor / busbw / 1000) * noise.uniform(0.985, 1.015)
        algbw = size / time_us / 1000
        lines.append(f"{size} {size // 4} float {redop} -1 {time_us:.2f} {algbw:.2f} {algbw * factor:.2f} 0")
    return "\n".join(lines) + "\n"


def collapsed(log, *, from_bytes=2**25, gb_per_s=2.5):
    """Log of an allgather on 16 ranks whose bandwidth is only `gb_per_s` for sizes of `from_bytes` and more."""
    lines = log.splitlines()
    for place, line in enumerate(lines):
        cells = line.split()
        if cells[0].isdigit() and int(cells[0]) >= from_bytes:
            time_us = int(cells[0]) / gb_per_s / 1000
            lines[place] = " ".join([*cells[:5], f"{time_us:.2f} {gb_per_s:.2f} {gb_per_s * 15 / 16:.2f} 0"])
    return "\n".join(lines) + "\n"


#: {fault: logs of machines with it}. If a NIC is unused, its GPU sends nothing over NICs or shares another's.
FAULTS = {
    "none": [network_log([NIC] * 8), network_log([NIC] * 8, seed=3), node_log(NVLS)],
    "nic-unused": [
        network_log([NIC / 8] * 8),
        network_log([NIC * 7 / 8] * 8),
        network_log([*[NIC] * 6, NIC / 2, NIC / 2], seed=1),
    ],
    "pcie": [network_log([HALF_SLOT] * 8), network_log([HALF_SLOT] * 8, seed=2)],
    "slow-rail": [network_log([*[NIC] * 7, part * NIC], seed=3) for part in (0.4, 0.66, 0.75)],
    "collapse": [collapsed(network_log([NIC] * 8)), collapsed(network_log([NIC] * 8, seed=5))],
    "nvls-off": [node_log(RINGS), node_log(RINGS * 1.01, seed=4)],
}
CASES = [(fault, log) for fault, logs in FAULTS.items() for log in logs]
