"""Series of a run of a log: its collective and number of ranks, by names, columns and checks of results."""

from __future__ import annotations

import os
from collections.abc import Collection
from statistics import median

from taccl.errors import FormatError
from taccl.measure.log_runs import IN_STEM, MENTIONS, PRECISE_ALGBW, LogRun
from taccl.measure.rows import HALF_DIGIT, Row
from taccl.measure.series import POINT_TO_POINT, Counted, Series
from taccl.problem.collective import busbw_factor

_SUMS = ("allreduce", "reduce", "reduce-scatter")
_PARTED = ("allgather", "alltoall", "reduce-scatter")  #: nccl-tests counts the elements of one rank's part.
#: Relative difference below which bus bandwidth counts as equal to algorithm bandwidth.
_FACTOR_OFF = 0.01
#: Min share of the greatest bandwidth at which a stream of messages counts as bandwidth-bound.
_PLATEAU = 0.95


def series_of_run(run: LogRun, where: str, given: str | None, stated: Collection[int]) -> Series:
    """Series of a run; `stated` are the numbers of ranks of communicators in the log."""
    source = f"{where}: line {run.line}"
    rows = run.rows
    if run.streams:
        most = max(row.size_bytes / row.time_us for row in rows)
        rows = [row for row in rows if row.size_bytes / row.time_us >= _PLATEAU * most]
    sizes, times = tuple(row.size_bytes for row in rows), tuple(row.time_us for row in rows)
    if run.streams:
        return Series(POINT_TO_POINT, 2, 2, sizes, times, source, streams=True)
    if any(row.algbw >= PRECISE_ALGBW for row in rows if row.reduces is not None) and not any(
        row.busbw for row in rows
    ):
        said = "found a run of one rank, which sends nothing (busbw is 0); give a log of several ranks"
        raise FormatError(f"{said} (nccl-tests built with MPI=1)", where=source)
    if given and given != POINT_TO_POINT and rows[0].reduces is not None and not _may_be(given, rows):
        fits = " or ".join(each for each in MENTIONS if _may_be(each, rows)) or "no known collective"
        said = f"found a table of {fits}, by redop and busbw, but collective={given!r}"
        raise FormatError(f"{said}; leave it out or correct it", where=source)
    name = given or _collective(run, where)
    listed = max(run.hosts, default=-1) + 1
    # With n ranks, busbw / algbw is 2 (n - 1) / n for an allreduce, and 1 for a broadcast or reduce.
    # For other collectives, busbw / algbw is (n - 1) / n.
    factor = _factor(rows[-8:]) / (2 if name == "allreduce" else 1)
    is_informative = 0.4 < factor < 0.9999 and name not in ("broadcast", "reduce")
    num_ranks = round(1 / (1 - factor)) if is_informative else 0
    known = stated if len(stated) == 1 else _parts(name, rows)
    num_ranks = next((n for n in known if n > 1 and _may_have(n, name, rows)), num_ranks)
    # busbw / algbw is imprecise for many ranks, and at low bandwidths.
    if not num_ranks or abs(num_ranks - listed) <= num_ranks // 10 or _may_have(listed, name, rows):
        num_ranks = listed or num_ranks
    complete = num_ranks and len(run.hosts) >= num_ranks - 1  # pasted lists often lack the first line
    num_nodes = len(set(run.hosts.values())) if complete and all(run.hosts.values()) else 0
    counted: Counted = "busbw" if any(row.is_bus for row in run.rows) else ""
    if run.is_osu:
        counted = "part" if name in ("allgather", "alltoall") else ""
        num_ranks = num_nodes = 2 if name == POINT_TO_POINT else 0
    return Series(
        name, num_ranks, num_nodes, sizes, times, source, counted=counted,
        ranks_per_process=run.ranks_per_process, is_doubtful_process=run.is_doubtful_process,
        others_us=tuple(row.other_us for row in rows),
    )  # fmt: skip


def _collective(run: LogRun, where: str) -> str:
    """Collective of a run: the last one named that fits the columns, else the one that its checks imply."""
    found = named_in(run, where)
    if found:
        return found[-1]
    if concluded := by_counts(run.rows) or by_checks(run) or by_root(run.rows):
        return concluded
    rooted = ("broadcast", "reduce")
    known = rooted if all(row.has_root for row in run.rows) else (*_PARTED, "allreduce", *rooted)
    fits = " or ".join(each for each in known if _may_be(each, run.rows))
    remedy = f"give --collective {fits}" if fits else "a gather or scatter has no model here"
    said = f"found a table without its collective; {remedy}"
    raise FormatError(said, where=f"{where}: line {run.line}")


def named_in(run: LogRun, where: str) -> list[str]:
    """Collectives named in the log that fit the run's columns; if none, the only one that fits them."""
    stem = os.path.basename(where)
    named = [*(each for each, form in IN_STEM.items() if form.search(stem)), *run.names]
    possible = [each for each in MENTIONS if _may_be(each, run.rows)]
    # sendrecv_perf prints a reduction operator although it does not reduce; small messages have the factor 0.
    factor = _factor(run.rows)
    known = {*possible, POINT_TO_POINT} if not factor or abs(factor - 1) < _FACTOR_OFF else possible
    return [each for each in named if each in known] or (possible if len(possible) == 1 else [])


def by_checks(run: LogRun) -> str:
    """Allgather or alltoall, told apart by the checks of a run's results; empty if these do not decide.

    Both have the same columns, but nccl-tests does not check an alltoall in place.
    """
    checks = {row.checks_in_place for row in run.rows}
    is_either = all(_may_be(each, run.rows) for each in ("allgather", "alltoall"))
    if len(checks) > 1 or not is_either or not (_factor(run.rows) or _parts("alltoall", run.rows)):
        return ""
    return {True: "allgather", False: "alltoall", None: ""}[checks.pop()]


def by_counts(rows: list[Row]) -> str:
    """Name of the collective: allreduce if rows count all elements, reduce-scatter if one rank's part.

    Empty if neither fits.
    """
    parts = {row.parts for row in rows}
    if len(parts) > 1 or parts == {0} or any(not row.reduces or row.has_root for row in rows):
        return ""
    return "allreduce" if parts == {1} else "reduce-scatter"


def by_root(rows: list[Row]) -> str:
    """Reduce or broadcast, if each row names a root rank; empty otherwise.

    Gather and scatter of nccl-tests have roots as well, but a busbw below algbw.
    """
    if not all(row.has_root for row in rows):
        return ""
    named = "reduce" if rows[0].reduces else "broadcast"
    return named if abs(_factor(rows) - 1) < _FACTOR_OFF else ""


def _may_be(name: str, rows: list[Row]) -> bool:
    """True if the columns fit a collective in their reduction operator and their ratio of busbw to algbw."""
    factor = _factor(rows)
    # nccom-test names no reduction operator; only an allreduce has a busbw above algbw.
    is_allreduce = name == "allreduce" and factor > 1 + _FACTOR_OFF
    if rows[0].reduces not in (None, name in _SUMS) and not is_allreduce:
        return False
    if not factor:
        return True
    if name == "allreduce":
        return factor > 0.99
    return (
        abs(factor - 1) < _FACTOR_OFF if name in ("broadcast", "reduce", POINT_TO_POINT) else factor < 0.9999
    )


def _parts(name: str, rows: list[Row]) -> set[int]:
    """Set with the number of ranks: size over the elements of one rank's part; empty if rows lack these."""
    parts = {row.parts for row in rows}
    return parts - {0, 1} if len(parts) == 1 and name in _PARTED else set()


def _factor(rows: list[Row]) -> float:
    """Median ratio of busbw to algbw; 0 if no row has an algbw of `PRECISE_ALGBW` or more."""
    ratios = [row.busbw / row.algbw for row in rows if row.algbw >= PRECISE_ALGBW]
    return median(ratios) if ratios else 0.0


def _may_have(num_ranks: int, name: str, rows: list[Row]) -> bool:
    """True if each row's ratio of busbw to algbw fits `num_ranks`, up to the rounding of both."""
    factor = busbw_factor(name, num_ranks) if num_ranks > 1 else 0.0
    return all(abs(row.busbw - factor * row.algbw) <= HALF_DIGIT * (1 + factor) for row in rows)
