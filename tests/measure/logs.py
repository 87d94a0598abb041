"""Invented logs in the formats of benchmarks."""

from __future__ import annotations

HEAD = "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong"
SIZES = tuple(2**power for power in range(3, 34))


def time_us(size: int, latency_us: float = 20.0, gb_per_s: float = 200.0) -> float:
    """Time in us of a size at a latency and a bandwidth."""
    return latency_us + size / gb_per_s / 1000


def row(size: int, time: float, *, ranks: int = 8, redop: str = "sum", factor: float | None = None) -> str:
    """A row of nccl-tests; the times in place are twice those out of place."""
    part = (ranks - 1) / ranks
    factor = factor or (2 * part if redop == "sum" else part)
    cells = []
    for each in (time, 2 * time):
        algbw = size / each / 1000
        cells += [f"{each:.2f}", f"{algbw:.2f}", f"{algbw * factor:.2f}", "0"]
    return f"{size:>12} {size // 4:>12}     float     {redop}      -1 " + " ".join(
        f"{each:>8}" for each in cells
    )


def table(*, prefix: str = "", ranks: int = 8, sizes: tuple[int, ...] = SIZES, **given: str) -> str:
    """A table with its head, with a prefix on every line."""
    lines = ["# all_reduce_perf", HEAD, *(row(size, time_us(size), ranks=ranks, **given) for size in sizes)]
    return "".join(f"{prefix}{line}\n" for line in lines)
