"""Name the measurements that would determine the parameters that a fit's logs leave undetermined."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from taccl.measure.series import Series


class _Measurement(NamedTuple):
    """A measurement: sizes in bytes, on one or several nodes, and the parameters that it may determine."""

    text: str
    parameters: tuple[str, ...]
    least: int
    most: float = float("inf")
    is_between: bool | None = False  # True on several nodes, False in one, None for either
    num_sizes: int = 5  # fewest sizes in the range with which a log counts as this measurement


_MEASUREMENTS = (
    _Measurement("small sizes (8 B to 64 KB) in one node", ("launch_us", "node_latency"), 8, 2**16),
    _Measurement("small sizes (8 B to 64 KB) on two nodes", ("network_latency",), 8, 2**16, is_between=True),
    _Measurement(
        "a sweep of sizes by factors of 2 (8 B to 8 GB)",
        ("ll_latency", "ll128_latency", "simple_latency", "ll_share", "ll128_share", "channel_us"),
        8, 2**33, is_between=None, num_sizes=25,
    ),
    _Measurement("large sizes (64 MB and more) in one node", ("node_gb_per_s",), 64 * 10**6),
    _Measurement(
        "large sizes (64 MB and more) on two nodes, or ib_write_bw",
        ("network_gb_per_s",), 64 * 10**6, is_between=True,
    ),
)  # fmt: skip


def missing_measurements(undetermined: Iterable[str], logs: Sequence[Series] = ()) -> tuple[str, ...]:
    """Measurements that would determine parameters, one sentence each; empty if all are determined.

    If `logs` contain the measurement for a parameter already, the sentence says that it is not enough.
    """
    names = set(undetermined)
    found = []
    for each in _MEASUREMENTS:
        some = ", ".join(name for name in each.parameters if name in names)
        if some and any(_has(log, each) for log in logs):
            found.append(f"{some}: not determined, although the logs have {each.text}")
        elif some:
            found.append(f"{each.text} would determine {some}")
    return tuple(found)


def _has(log: Series, wanted: _Measurement) -> bool:
    """True if a log contains a measurement."""
    if wanted.is_between is not None and wanted.is_between != (log.num_nodes > 1):
        return False
    return sum(wanted.least <= size <= wanted.most for size in log.size_bytes) >= wanted.num_sizes
