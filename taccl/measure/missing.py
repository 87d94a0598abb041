"""Name the measurements that would determine the parameters that a fit's logs leave undetermined."""

from __future__ import annotations

from collections.abc import Iterable

#: {measurement: parameters that it determines}.
_DETERMINES = {
    "small sizes (8 B to 64 KB) in one node": ("launch_us", "node_latency"),
    "small sizes (8 B to 64 KB) on two nodes": ("network_latency",),
    "a sweep of sizes by factors of 2 (8 B to 8 GB)": (
        "ll_latency", "ll128_latency", "simple_latency", "ll_share", "ll128_share", "channel_us",
    ),
    "large sizes (64 MB and more) in one node": ("node_gb_per_s",),
    "large sizes (64 MB and more) on two nodes, or ib_write_bw": ("network_gb_per_s",),
}  # fmt: skip


def missing_measurements(undetermined: Iterable[str]) -> tuple[str, ...]:
    """Measurements that would determine parameters, one sentence each; empty if all are determined."""
    names = set(undetermined)
    found = []
    for measurement, parameters in _DETERMINES.items():
        some = [each for each in parameters if each in names]
        if some:
            found.append(f"{measurement} would determine {', '.join(some)}")
    return tuple(found)
