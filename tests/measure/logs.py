"""Invented logs in the formats of benchmarks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taccl.problem.collective import busbw_factor

if TYPE_CHECKING:
    from collections.abc import Callable

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


def old_table(
    version: int, name: str, time: Callable[[int], float], *, ranks: int = 8, root: int = 3, error: str = ""
) -> str:
    """A table of nccl-tests 1.0 or 2.0: only columns that the collective needs, and times in ms in 1.0.

    Times in place are 3 % above `time`, in us for a size in bytes. `error` is the last cell of a group.
    """
    is_first = version == 1
    is_rooted = name in ("broadcast", "reduce")
    places = 1 if is_first and name == "broadcast" else 2
    op = ["op" if is_first else "redop"] if "reduce" in name else []
    cells = ["bytes", "N", "type"] if is_first else ["size", "count", "type"]
    cells += [*op, *(["root"] if is_rooted else [])]
    cells += ["time", "algbw", "busbw", "res" if is_first else "error"] * places
    lines = [f"# {name.replace('-', '_')}_perf", "# " + "  ".join(f"{each:>7}" for each in cells)]
    if not is_first:
        lines.append("#  (B)    (elements)  " + "    (us)  (GB/s)  (GB/s)  " * places)
    factor = float(busbw_factor(name, ranks))
    for size in SIZES[:24]:
        parts = ranks if name in ("allgather", "reduce-scatter", "alltoall") else 1
        line = f"{size:12}  {size // 4 // parts:12}  {'float':>6}" + f"  {'sum':>6}" * len(op)
        line += f"  {root:6}" * is_rooted
        for place in range(places):
            took = time(size) * (1 + place * 0.03)
            algbw = size / took / 1000
            digits = 0 if took > 10000 else 1 if took > 100 else 2
            shown = f"{took / 1000:7.3f}" if is_first else f"{took:7.{digits}f}"
            line += f"  {shown}  {algbw:6.2f}  {algbw * factor:6.2f}  {error or '0e+00':>5}"
        lines.append(line)
    return "".join(f"{line}\n" for line in lines)
