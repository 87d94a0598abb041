"""A plan: the best schedule for every size of a range, and where one takes over from the other.

Schedules are synthesized at some sizes, and every one is timed at all others (`taccl.simulate`), with the
baselines beside them. Between two sizes with different winners the crossover is found in whole bytes.
"""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taccl import collective as collectives
from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.simulation.simulate import simulate
from taccl.analysis.verification.verify import verify
from taccl.baselines import BASELINES
from taccl.errors import ExportError, InfeasibleError, InputError, NoSolutionError, TacclWarning
from taccl.explore.plan_files import check_lowering, runnable
from taccl.problem import Clauses, make_problem
from taccl.schedule.schedule import Schedule
from taccl.sketch.apply import apply
from taccl.sketch.library import load_sketch
from taccl.synthesis.pipeline import synthesize
from taccl.topology.registry import parse
from taccl.topology.topology import Topology
from taccl.units import format_count, format_size, format_us, parse_size, positive_seconds, whole_number

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from fractions import Fraction

    from taccl.analysis.certificates.certificate import Certificate
    from taccl.problem import Problem
    from taccl.program.program import Program
    from taccl.sketch.sketch import Sketch

__all__ = ["Plan", "PlanRange", "plan"]

#: Sizes at which schedules are synthesized grow by this factor.
_FACTOR = 4
#: Each bound of a range gets about so long.
_BOUND_S = 1.0


@dataclass(frozen=True, slots=True, repr=False)
class PlanRange:
    """What to use from one size to another, both included.

    Parameters
    ----------
    min_bytes, max_bytes : int
        Sizes as nccl-tests counts them.
    schedule : Schedule
        Verified; timed at ``schedule.problem.size_bytes``: what it was made for, or the nearest in the range.
    source : str
        The sketch that it was synthesized with, or the baseline, and for which size.
    finish_min, finish_max : Fraction
        Exact microseconds at both ends.
    bound, bound_min, bound_max : Certificate
        For the size of `schedule`, and at both ends; of any schedule, whatever sketches say.
    program : Program, optional
        What a runtime executes; None where none was asked for.
    """

    min_bytes: int
    max_bytes: int
    schedule: Schedule
    source: str
    finish_min: Fraction
    finish_max: Fraction
    bound: Certificate
    bound_min: Certificate
    bound_max: Certificate
    program: Program | None = None

    @property
    def gap(self) -> float:
        """(finish - bound) / bound at the size of the schedule."""
        return self.bound.gap(self.schedule.finish)

    @property
    def scratch_bytes(self) -> int:
        """What the program needs at a rank beside the user's buffers, at the largest size."""
        if self.program is None or self.program.collective is None:
            return 0
        return -(-self.max_bytes * self.program.scratch_chunks // self.program.collective.size_chunks)

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain values."""
        return {
            "min_bytes": self.min_bytes,
            "max_bytes": self.max_bytes,
            "source": self.source,
            "size_bytes": self.schedule.problem.size_bytes,
            "finish_us": self.schedule.finish_us,
            "bound_us": self.bound.bound_us,
            "bound_limits": self.bound.limits,
            "gap": _number(self.gap),
            "finish_us_at_min": float(self.finish_min),
            "finish_us_at_max": float(self.finish_max),
            "gap_at_min": _number(self.bound_min.gap(self.finish_min)),
            "gap_at_max": _number(self.bound_max.gap(self.finish_max)),
            "algbw_gb_per_s_at_max": float(self.max_bytes / self.finish_max / 1000),
            "verified": True,
            "scratch_bytes": self.scratch_bytes,
            "num_transfers": self.schedule.num_transfers,
            "num_sends": self.schedule.num_sends,
            "digest": self.schedule.digest(),
        }

    def __repr__(self) -> str:
        return (
            f"PlanRange({format_size(self.min_bytes)} to {format_size(self.max_bytes)}: {self.source}, "
            f"{format_us(self.finish_min)} to {format_us(self.finish_max)})"
        )


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """Ranges that follow one another without a gap, and what was tried.

    Parameters
    ----------
    ranges : tuple of PlanRange
        In order of size; each begins one byte after the one before it ends.
    num_candidates : int
        Different schedules that were compared.
    stopped : str
        ``"done"``, ``"time limit"`` or ``"interrupted"``: fewer schedules were compared then.
    """

    topology: Topology
    collective: str
    ranges: tuple[PlanRange, ...]
    num_candidates: int
    seconds: float
    stopped: str
    notes: tuple[str, ...] = ()

    def range_of(self, size: int | str) -> PlanRange:
        """The range that a size lies in.

        Raises
        ------
        InputError
            If it lies in none.
        """
        size_bytes = parse_size(size)
        for each in self.ranges:
            if each.min_bytes <= size_bytes <= each.max_bytes:
                return each
        raise InputError(
            f"found {format_size(size_bytes)}; the plan is for {format_size(self.ranges[0].min_bytes)} to "
            f"{format_size(self.ranges[-1].max_bytes)}",
            where="size",
        )

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> tuple[Path, ...]:
        """Write programs, schedules, their index and how to register them; see `taccl.explore.plan_files`.

        Raises
        ------
        InputError
            If the folder exists and `overwrite` is False, or is no plan's, or cannot be written.
        """
        from taccl.explore.plan_files import save_plan

        return save_plan(self, folder, overwrite=overwrite)

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain values."""
        return {
            "topology": self.topology.name,
            "collective": self.collective,
            "num_ranks": self.topology.num_ranks,
            "ranges": [each.to_dict() for each in self.ranges],
            "num_candidates": self.num_candidates,
            "seconds": self.seconds,
            "stopped": self.stopped,
            "notes": list(self.notes),
        }

    def table(self) -> str:
        """The ranges as text, one a row."""
        rows: list[tuple[str, ...]] = [("from", "to", "finish", "gap", "GB/s at the end", "schedule")]
        for each in self.ranges:
            gaps = (each.bound_min.gap(each.finish_min), each.bound_max.gap(each.finish_max))
            rows.append(
                (
                    *(f"{size} B" for size in (each.min_bytes, each.max_bytes)),
                    f"{format_us(each.finish_min)} to {format_us(each.finish_max)}",
                    " to ".join("none proven" if math.isinf(gap) else f"{gap:.1%}" for gap in gaps),
                    f"{each.max_bytes / float(each.finish_max) / 1000:.4g}", each.source,
                )
            )  # fmt: skip
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        cells = ([c.ljust(w) for c, w in zip(row, widths, strict=True)] for row in rows)
        return "\n".join("  ".join(row).rstrip() for row in cells)

    def __repr__(self) -> str:
        head = (
            f"Plan({self.collective} on {self.topology.name}: {format_count(len(self.ranges), 'range')} of "
            f"{format_count(self.num_candidates, 'schedule')} in {self.seconds:.1f} s, {self.stopped})"
        )
        return "\n".join([head, self.table(), *(f"note: {note}" for note in self.notes)])


def _number(gap: float) -> float | None:
    return None if math.isinf(gap) else gap


def plan(
    topology: Topology | str,
    collective: str,
    *,
    sketches: Iterable[Sketch | str | os.PathLike[str] | None] = (None,),
    sizes: str | Iterable[int | str] = "1KB:1GB",
    root: int | None = None,
    baselines: bool = True,
    backend: str = "auto",
    time_limit_s: float = 300.0,
    threads: int | None = None,
    seed: int = 0,
    max_ranges: int = 4,
    lowering: Mapping[str, Any] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Plan:
    """The best schedule for every size of a range, with the sizes at which one takes over from another.

    Parameters
    ----------
    topology : Topology or str
        A name such as ``"dgx2"`` stands for its topology with one node.
    collective : str
        The name of one; each sketch cuts the data as it says (``chunks.per_rank``).
    sketches : iterable of sketch, shipped name or path
        Each is synthesized at every size; None for no sketch.
    sizes : str or iterable of sizes
        ``"1KB:1GB"``: from the one to the other, synthesized at every fourfold. Or where to synthesize.
    root : int, optional
        Of broadcast, scatter, gather and reduce.
    baselines : bool
        Whether the well-known algorithms compete, too.
    backend, threads, seed
        As of `taccl.synthesize`.
    time_limit_s : float
        Of all syntheses; what one leaves over is for those after it.
    max_ranges : int
        At most so many; the MSCCL runtime loads four files. What is lost by the limit is noted.
    lowering : mapping, optional
        Options of `taccl.lower`.
    progress : callable, optional
        Called with a line of text after every size.

    Returns
    -------
    Plan
        Ctrl-C stops the search, and the plan is made of what there is; ``plan.stopped`` says so.

    Raises
    ------
    InputError
        If a sketch, a size or an option cannot be used.
    InfeasibleError, NoSolutionError
        If there is no schedule at all.
    KeyboardInterrupt
        If Ctrl-C came before there was a schedule.
    """
    began = time.monotonic()
    fabric = topology if isinstance(topology, Topology) else parse(topology)
    grid = _grid(sizes)
    time_limit_s = positive_seconds(time_limit_s, where="time_limit_s")
    max_ranges = whole_number(max_ranges, at_least=1, where="max_ranges")
    loaded = _loaded(sketches)
    check_lowering(lowering or {})
    if not isinstance(collective, str):
        raise InputError(f"found {collective!r}; expected a name such as 'allgather'", where="collective")
    cases = [(_name(sketch), _problems(fabric, collective, root, sketch, grid)) for sketch in loaded]
    search = _Search(grid, progress or (lambda _: None))
    try:
        if baselines:
            search.add_baselines(cases)
        search.synthesize(cases, backend, time_limit_s, threads, seed)
    except KeyboardInterrupt:
        if not search.candidates:
            raise
        search.stopped = "interrupted"
    if not search.candidates:
        raise search.failure or NoSolutionError("no schedule was found; give more time, or another sketch")
    ranges, notes = search.ranges(max_ranges, dict(lowering or {}))
    return Plan(
        fabric, cases[0][1][0].collective.name, ranges, len(search.candidates), time.monotonic() - began,
        search.stopped, (*search.notes, *notes),
    )  # fmt: skip


def _grid(sizes: str | Iterable[int | str]) -> list[int]:
    """The sizes to synthesize at, in order."""
    if not hasattr(sizes, "__iter__"):  # a single one
        return [parse_size(sizes, where="sizes")]  # type: ignore[arg-type]
    if isinstance(sizes, str) and ":" in sizes:
        ends = sizes.split(":")
        if len(ends) != 2:
            raise InputError(f"found {sizes!r}; expected two sizes such as '1KB:1GB'", where="sizes")
        first, last = (parse_size(end, where="sizes") for end in ends)
        if first > last:
            raise InputError(f"found {sizes!r}; expected the smaller size first", where="sizes")
        grid = [first]
        while grid[-1] * _FACTOR < last:
            grid.append(grid[-1] * _FACTOR)
        return grid if last == first else [*grid, last]
    words = sizes.split(",") if isinstance(sizes, str) else list(sizes)
    if not words:
        raise InputError("found none; expected sizes such as '1KB:1GB'", where="sizes")
    return sorted({parse_size(word, where="sizes") for word in words})


def _loaded(sketches: Iterable[Sketch | str | os.PathLike[str] | None]) -> list[Sketch | None]:
    if isinstance(sketches, str) or not hasattr(sketches, "__iter__") or hasattr(sketches, "chunks"):
        raise InputError(
            f"found {sketches!r}; expected several, such as ['ndv2/sk1', None]", where="sketches"
        )
    loaded: list[Sketch | None] = []
    for each in sketches:
        if isinstance(each, (str, Path)):
            loaded.append(load_sketch(each))
        elif each is None or hasattr(each, "chunks"):
            loaded.append(each)  # type: ignore[arg-type]
        else:
            raise InputError(f"found {each!r}; expected a sketch, its name or its file", where="sketches")
    if not loaded:
        raise InputError("found none; expected at least one, or None for no sketch", where="sketches")
    return loaded


def _name(sketch: Sketch | None) -> str:
    return "no sketch" if sketch is None else f"sketch {sketch.name or sketch.source or 'unnamed'}"


def _problems(
    topology: Topology, collective: str, root: int | None, sketch: Sketch | None, grid: Sequence[int]
) -> list[Problem]:
    """The problem at every size."""
    per_rank = 1 if sketch is None else sketch.chunks.per_rank
    whole = collectives.make(collective, topology.num_ranks, root=root, chunks_per_rank=per_rank)
    if sketch is None:
        return [make_problem(topology, whole, size_bytes=size) for size in grid]
    clauses = apply(sketch, topology, whole, size=grid[0]).clauses
    return [replace(make_problem(topology, whole, size_bytes=size), clauses=clauses) for size in grid]


def _spread(count: int) -> list[int]:
    """All places, the first few far apart already: the ends, then the middle of the widest gap."""
    order = [0, count - 1][: min(count, 2)]
    while len(order) < count:
        known = sorted(order)
        low, high = max(zip(known, known[1:], strict=False), key=lambda gap: gap[1] - gap[0])
        order.append((low + high) // 2)
    return order


class _Candidate:
    """A schedule, and its finish at any size.

    The order of sends is kept, so that the finish is the longest of many ways through them, each of which
    takes some time and some more for every byte: a convex function of bytes that never falls. Two sizes on
    one side of a third thus tell how long it takes there at least, and few sizes need to be simulated.
    """

    def __init__(self, schedule: Schedule, source: str) -> None:
        self.schedule, self.source = schedule, source
        self._finish: dict[int, Fraction | float] = {}

    @cached_property
    def shape(self) -> tuple[object, ...]:
        """What it does but for times: two of one shape have the same finish at every size."""
        s = self.schedule
        columns = (s.chunk, s.link, s.group, s.reduce)
        return (s.problem.collective.num_chunks, *(column.tobytes() for column in columns))

    def _chunk_bytes(self, size: int) -> int:
        return -(-size // self.schedule.problem.collective.size_chunks)

    def finish(self, size: int) -> Fraction | float:
        """Exact microseconds; infinite where its order cannot be kept."""
        key = self._chunk_bytes(size)
        if key not in self._finish:
            try:
                self._finish[key] = simulate(self.schedule, size=size).finish
            except InputError:
                self._finish[key] = math.inf
        return self._finish[key]

    def at_least(self, size: int) -> Fraction | float:
        """What its finish cannot be less than, as far as that is known."""
        key = self._chunk_bytes(size)
        if key in self._finish:
            return self._finish[key]
        known = sorted((x, y) for x, y in self._finish.items() if y < math.inf)
        below, above = [p for p in known if p[0] < key], [p for p in known if p[0] > key]
        least: Fraction | float = below[-1][1] if below else 0
        for pair in (below[:-3:-1], above[:2]):
            if len(pair) == 2:
                (x, y), (other_x, other_y) = pair
                least = max(least, y + (y - other_y) * (key - x) / (x - other_x))
        return least

    def at(self, size: int) -> Schedule:
        """The verified schedule with the times it has at a size."""
        schedule = simulate(self.schedule, size=size).as_schedule()
        verify(schedule).raise_if_failed()
        return schedule


def _winner(candidates: Sequence[_Candidate], size: int) -> _Candidate:
    """The candidate that finishes first."""
    best: _Candidate | None = None
    for each in sorted(candidates, key=lambda candidate: candidate.at_least(size)):
        if best is not None and each.at_least(size) >= best.finish(size):
            break
        if best is None or each.finish(size) < best.finish(size):
            best = each
    assert best is not None, "there is a candidate"
    return best


class _Search:
    """The candidates as they are found."""

    def __init__(self, grid: Sequence[int], progress: Callable[[str], None]) -> None:
        self.grid, self.progress = grid, progress
        self.candidates: list[_Candidate] = []
        self.shapes: set[tuple[object, ...]] = set()
        self.notes: list[str] = []
        self.stopped = "done"
        self.failure: Exception | None = None

    def add(self, schedule: Schedule, source: str) -> None:
        candidate = _Candidate(schedule, source)
        if candidate.shape not in self.shapes:
            self.shapes.add(candidate.shape)
            self.candidates.append(candidate)

    def add_baselines(self, cases: Sequence[tuple[str, Sequence[Problem]]]) -> None:
        """Every baseline that can do it, for small, middle and large sizes, and each cut of the data."""
        cuts = {problems[0].collective.chunks_per_rank: problems for _, problems in cases}
        places = sorted({0, len(self.grid) // 2, len(self.grid) - 1})
        for problems in cuts.values():
            for place in places:
                plain = make_problem(
                    problems[place].topology, problems[place].collective, size_bytes=self.grid[place]
                )
                for name, function in BASELINES.items():
                    try:
                        self.add(function(plain), f"baseline {name}, for {format_size(self.grid[place])}")
                    except InputError:  # which it cannot do on this topology
                        continue

    def synthesize(
        self,
        cases: Sequence[tuple[str, Sequence[Problem]]],
        backend: str,
        time_limit_s: float,
        threads: int | None,
        seed: int,
    ) -> None:
        """A schedule for every size and sketch, as long as there is time."""
        deadline = time.monotonic() + time_limit_s
        left = len(self.grid) * len(cases)
        for place in _spread(len(self.grid)):
            size = self.grid[place]
            said = []
            for name, problems in cases:
                share = (deadline - time.monotonic()) / left
                left -= 1
                if share <= 0:
                    self.stopped = "time limit"
                    continue
                try:
                    result = synthesize(
                        problems[place], backend=backend, time_limit_s=share, threads=threads, seed=seed
                    )
                except (InfeasibleError, NoSolutionError) as error:
                    self.failure = error
                    self.notes.append(f"{name} at {format_size(size)}: {error}")
                    continue
                found = result.schedule if isinstance(result.schedule, Schedule) else result.schedule.expand()
                self.add(found, f"{name}, for {format_size(size)}")
                said.append(f"{name} {format_us(result.finish_us)} (gap {result.gap:.2%})")
                if result.interrupted:
                    self.stopped = "interrupted"
                    return
            self.progress(f"{format_size(size)}: {', '.join(said) or 'no time left'}")

    def ranges(self, max_ranges: int, lowering: dict[str, Any]) -> tuple[tuple[PlanRange, ...], list[str]]:
        """The tiles of the plan, each with a program that its runtime can hold; and what there is to say."""
        notes: list[str] = []
        remaining = list(self.candidates)
        programs: dict[_Candidate, Program] = {}
        # Large sizes first: they tell most about the others.
        best = {size: _winner(remaining, size).finish(size) for size in reversed(self.grid)}
        while True:
            tiles = _tiles(remaining, self.grid)
            for _, _, winner in tiles:
                if winner not in programs:
                    try:
                        programs[winner] = runnable(winner.schedule, lowering)
                    except ExportError as error:
                        remaining.remove(winner)
                        notes.append(f"a schedule of {winner.source} was left out: {error}")
                        break
            else:
                if len(tiles) <= max_ranges:
                    break
                remaining = _without_one(tiles, self.grid)
            if not remaining:
                raise ExportError(f"no schedule fits its format: {'; '.join(notes)}")
        worst = max(_tile_of(tiles, size)[2].finish(size) / best[size] - 1 for size in self.grid)
        if worst:
            notes.append(
                f"with so few ranges, or the format's limits, some sizes take up to {float(worst):.2%} "
                "longer than the best schedule that was found for them"
            )
        return tuple(_range(first, last, winner, programs[winner]) for first, last, winner in tiles), notes


Tile = tuple[int, int, _Candidate]


def _tiles(candidates: Sequence[_Candidate], grid: Sequence[int]) -> list[Tile]:
    """(first size, last size, winner), one after the other from the first size of the grid to its last."""
    tiles: list[Tile] = []

    def add(first: int, last: int, candidate: _Candidate) -> None:
        if tiles and tiles[-1][2] is candidate:
            first = tiles.pop()[0]
        tiles.append((first, last, candidate))

    def between(first: int, before: _Candidate, last: int, after: _Candidate) -> None:
        """Tile all of first to last but `last` itself."""
        if before is after or last - first == 1:
            add(first, last - 1, before)
            return
        low, high = first, last  # before wins at low, after at high
        while high - low > 1:
            middle = (low + high) // 2
            if before.finish(middle) <= after.finish(middle):
                low = middle
            else:
                high = middle
        third = _winner(candidates, low)
        if third.finish(low) < before.finish(low) and low > first:
            between(first, before, low, third)
            between(low, third, last, after)
            return
        add(first, low, before)
        if high < last:
            add(high, last - 1, after)

    winners = [_winner(candidates, size) for size in grid]
    # A tie goes to who won before, so that nothing changes for nothing.
    for i in range(1, len(grid)):
        if winners[i - 1].finish(grid[i]) <= winners[i].finish(grid[i]):
            winners[i] = winners[i - 1]
    for i in range(len(grid) - 1):
        between(grid[i], winners[i], grid[i + 1], winners[i + 1])
    add(grid[-1], grid[-1], winners[-1])
    return tiles


def _tile_of(tiles: Sequence[Tile], size: int) -> Tile:
    return next(tile for tile in tiles if tile[0] <= size <= tile[1])


def _without_one(tiles: Sequence[Tile], grid: Sequence[int]) -> list[_Candidate]:
    """The winners but for the one that is missed least, by the worst ratio over sizes."""
    winners = list(dict.fromkeys(winner for _, _, winner in tiles))
    sizes = sorted({*grid, *(end for first, last, _ in tiles for end in (first, last))})

    def regret(left_out: _Candidate) -> Fraction | float:
        others = [each for each in winners if each is not left_out]
        return max(
            min(each.finish(size) for each in others) / min(each.finish(size) for each in winners)
            for size in sizes
        )

    least = min(winners, key=regret)
    return [each for each in winners if each is not least]


def _free(problem: Problem) -> Problem:
    """The problem with no clause of a sketch but what merges: schedules of all sketches compete."""
    clauses = problem.clauses
    return replace(problem, clauses=Clauses(max_merge=clauses.max_merge, merging=clauses.merging))


def _range(first: int, last: int, winner: _Candidate, program: Program) -> PlanRange:
    own = min(max(winner.schedule.problem.size_bytes or first, first), last)
    schedules = [winner.at(size) for size in (first, own, last)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TacclWarning)
        bounds = [lower_bound(_free(each.problem), budget_s=_BOUND_S) for each in schedules]
    return PlanRange(
        first, last, schedules[1], winner.source, schedules[0].finish, schedules[2].finish,
        bounds[1], bounds[0], bounds[2], program,
    )  # fmt: skip
