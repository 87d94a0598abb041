"""Search for a plan: collect candidate schedules and lower bounds, and divide sizes into ranges."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from taccl._internal.deadline import NEVER, Deadline, OutOfTime, busy_factor
from taccl._internal.names import notes_by_text
from taccl._internal.units import format_count, format_gap, format_size
from taccl.analysis.certificates.certificate import Certificate
from taccl.analysis.simulation.simulate import simulate
from taccl.baselines import BASELINES
from taccl.baselines.chunking import built_within
from taccl.baselines.table import build_times, num_arrivals, phases_of
from taccl.errors import ExportError, InfeasibleError, InputError, NoSolutionError
from taccl.explore.plan_ranges import PlanRange
from taccl.explore.plan_runtimes import runnable
from taccl.explore.plan_tiles import Tile, TimedSchedule, range_of, ratio, tiles_of, winner_at, without_one
from taccl.problem.making import make_problem
from taccl.problem.problem import Problem
from taccl.program.program import Program
from taccl.runtimes.runtime import Runtime
from taccl.runtimes.table import RUNTIMES
from taccl.schedule.schedule import Schedule
from taccl.synthesis.parameters import DEFAULTS
from taccl.synthesis.proposers.baseline_proposals import quickest_first
from taccl.synthesis.result import StageLog
from taccl.synthesis.synthesize import synthesize
from taccl.topology.topology import Topology

#: Share of the remaining time for lowering schedules to programs; the rest is for lower bounds.
_PROGRAMS_SHARE = 0.6
#: `_FINISH_S`: CPU seconds per send to lower, check, time at other sizes and write to files (estimate).
#: `_LARGE_SHARE`: max share of the remaining time that one schedule may need to be lowered and written.
#: `_FEWEST_PROGRAMS`: with time to lower fewer programs, `_tiles_in_haste` alone chooses the ranges of sizes.
_FINISH_S, _LARGE_SHARE, _FEWEST_PROGRAMS = 5e-4, 0.5, 2
#: `_TIMING_S`: CPU seconds per send to verify a schedule (3e-6), and to time it at each size (2.5e-6).
#: `_QUICK_S`: max CPU seconds of a baseline that is built for several sizes even if time is up.
#: `_LATE_S`: seconds beyond the time limit that are allowed for the first program and the times of its range.
#: `_BRIEF_S`: seconds that are allowed for the first program in any case.
_TIMING_S, _QUICK_S, _LATE_S, _BRIEF_S = 1.5e-5, 0.1, 1.5, 0.25
#: `LEAST_SYNTHESIS_S`: min seconds that must be left for a synthesis to begin.
#: `_OVERRUN_S`: CPU seconds by which the last synthesis may exceed its time limit before it is given up.
LEAST_SYNTHESIS_S, _OVERRUN_S = 0.1, 0.2


def _spread(count: int) -> list[int]:
    """Indices 0 to count - 1 in bisection order: both ends, then repeatedly the middle of the widest gap."""
    order = [0, count - 1][: min(count, 2)]
    while len(order) < count:
        known = sorted(order)
        low, high = max(zip(known, known[1:], strict=False), key=lambda gap: gap[1] - gap[0])
        order.append((low + high) // 2)
    return order


def finishing_time(problem: Problem) -> float:
    """Estimated seconds to time, lower and write the smallest schedule of a problem."""
    return busy_factor() * _FINISH_S * num_arrivals(problem) * phases_of(problem)


def _work_per_send(lowering: dict[str, Any]) -> float:
    """Factor on estimated seconds per send: the number of program instances times `busy_factor`."""
    instances = lowering.get("instances", 1)
    return busy_factor() * (instances if isinstance(instances, int) else 1)


def _first_is_quick(turns: Sequence[tuple[Sequence[Problem], str, int]]) -> bool:
    """True if the first turn's baseline takes at most `_QUICK_S` to build.

    - `turns`: (problems, baseline, index of the problem for which to build it), in order.
    """
    if not turns:
        return True
    problems, name, place = turns[0]
    takes_s = build_times(problems[place], DEFAULTS.portfolio.first_transfers)
    return takes_s.get(name, math.inf) <= _QUICK_S


class PlanSearch:
    """State of the search for a plan: candidate schedules, known bounds, notes, and why the search ended."""

    def __init__(
        self,
        grid: Sequence[int],
        progress: Callable[[str], None],
        topologies: Sequence[Topology],
        runtime: Runtime = RUNTIMES["msccl"],
        log: StageLog | None = None,
    ) -> None:
        self.log = StageLog() if log is None else log
        self.grid, self.topologies, self.progress, self.runtime = grid, topologies, progress, runtime
        self.candidates: list[TimedSchedule] = []
        self.shapes: dict[tuple[object, ...], TimedSchedule] = {}
        self.bounds: dict[tuple[str, int | None], Certificate] = {}
        self.notes: list[str] = [f"model: {each.proviso}" for each in topologies[:1] if each.assumed]
        self.stopped = "done"
        self.failure: Exception | None = None

    def add(self, schedule: Schedule, source: str, until: Deadline = NEVER) -> None:
        """Add a schedule as a candidate under every protocol, unless a candidate has the same sends.

        If time is up, the schedule is added under its own protocol only, without a simulation.
        """
        own, topologies = schedule.problem.topology, self.topologies
        if until.has_passed and any(each is own for each in topologies):
            topologies = [own]
        for topology in topologies:
            try:
                same = topology is own
                found = schedule if same else simulate(schedule, topology=topology).as_schedule()
            except InputError:  # the order of sends is infeasible under this protocol
                continue
            candidate = TimedSchedule(found, source)
            if candidate.shape not in self.shapes:
                self.shapes[candidate.shape] = candidate
                self.candidates.append(candidate)
            self.shapes[candidate.shape].made_us[found.problem.size_bytes or 0] = found.predicted_us

    def add_baselines(
        self,
        cases: Sequence[tuple[str, Sequence[Problem]]],
        until: Deadline,
        first_until: Deadline | None = None,
    ) -> None:
        """Add each applicable baseline for a small, a middle and a large size, and each number of chunks.

        Baselines that take little time come first, with the usually best of them at the front. For each
        baseline, the large size precedes the others. A note states how many baselines time did not allow.

        - `first_until`: Deadline of the first baseline, once one of its forms is complete; default: `until`.
        """
        cuts = {problems[0].collective.chunks_per_rank: problems for _, problems in cases}
        # A plan covers sizes up to the largest for which a schedule was made.
        places = [*dict.fromkeys((len(self.grid) - 1, 0, len(self.grid) // 2))]
        left = [
            (problems, name, place)
            for problems in cuts.values()
            for name in quickest_first(problems[0], until.left_s)
            if name in BASELINES
            for place in places
        ]
        # Build a first schedule per size in `places` even if late; for the first size only if that is slow.
        total, waiting = len(left), {*places[: len(places) if _first_is_quick(left) else 1]}
        with contextlib.suppress(OutOfTime), until.enforced(lambda: bool(self.candidates) and not waiting):
            while left:
                problems, name, place = left[0]
                size, problem = self.grid[place], problems[place]
                plain = make_problem(problem.topology, problem.collective, size_bytes=size)
                with contextlib.suppress(InputError):  # the baseline is not defined for this problem
                    source = f"baseline {name}, for {format_size(size)}"
                    ends = until if self.candidates or first_until is None else first_until
                    found = built_within(plain, partial(BASELINES[name], plain, cut=False), ends)
                    if found is not None:
                        self.add(found, source, until)
                        waiting.discard(place)
                del left[0]
        late = f"too little time for {len(left)} of {total} baselines" if left else ""
        if late:
            self.notes.append(late)
        self.log.end("baselines", message=late)

    def _on_runtime(self, problem: Problem, size: int) -> Problem:
        """The problem under the runtime's launch time, and the protocol that is best so far for its size."""
        if self.candidates:
            topology = winner_at(self.candidates, size).schedule.problem.topology
        else:
            same = (each for each in self.topologies if each.protocol == problem.topology.protocol)
            topology = next(same, self.topologies[0])
        return problem if topology == problem.topology else replace(problem, topology=topology)

    def synthesize(
        self, cases: Sequence[tuple[str, Sequence[Problem]]], until: Deadline, **options: Any
    ) -> None:
        """Synthesize candidates for every size and sketch while time is left; `options` go to `synthesize`.

        Time does not run out before there is a candidate. A note states how many syntheses it did not allow.
        """
        left = num_missing = total = len(self.grid) * len(cases)
        try:
            with until.later(_OVERRUN_S * busy_factor()).enforced(lambda: bool(self.candidates)):
                for place in _spread(len(self.grid)):
                    size = self.grid[place]
                    said = []
                    for name, problems in cases:
                        stage = f"{format_size(size)}, {name}"
                        if until.left_s / left < LEAST_SYNTHESIS_S and self.candidates:
                            left -= 1
                            self.log.end(stage, status="skipped", message="no time left")
                            continue
                        problem = self._on_runtime(problems[place], size)
                        share_s = max(until.left_s / left, LEAST_SYNTHESIS_S)
                        left -= 1
                        try:
                            result = synthesize(problem, time_limit_s=share_s, **options)
                        except (InfeasibleError, NoSolutionError) as error:
                            num_missing -= 1
                            self.failure = error
                            self.notes.append(f"{name} at {format_size(size)}: {error}")
                            self.log.end(stage, status="no-solution", message=str(error))
                            continue
                        self.add(result.schedule.listable(), f"{name}, for {format_size(size)}")
                        if result.bound.divisible:
                            self.bounds[problem.topology.protocol, size] = result.bound
                        self.log.end(
                            stage, finish_us=result.finish_us, message=result.stopped, within=result.stages
                        )
                        said.append(f"{name} {result.schedule.timing} (gap {format_gap(result.gap)})")
                        num_missing -= 1
                        if result.interrupted:
                            self.stopped = "interrupted"
                            return
                    if said:
                        self.progress(f"{format_size(size)}: {', '.join(said)}")
        except OutOfTime:
            self.log.end("synthesis", status="timed-out", message="stopped at its time limit")
        if num_missing:
            self.stopped = "time limit"
            self.notes.append(f"too little time for {num_missing} of {total} syntheses; give more time")

    def ranges(
        self, max_ranges: int, lowering: dict[str, Any], limit: Deadline
    ) -> tuple[tuple[PlanRange, ...], list[str]]:
        """Choose the plan's ranges, each with a program within the runtime's limits; return ranges and notes.

        If time runs out, `_tiles_in_haste` uses the schedules whose programs are ready. Schedules with too
        many sends to be lowered and written in time are left out from the start.
        """
        notes: list[str] = []
        most = _LARGE_SHARE * max(0.0, limit.left_s) / (_FINISH_S * _work_per_send(lowering))
        most = max(most, min(len(each.schedule) for each in self.candidates))
        able = [each for each in self.candidates if len(each.schedule) <= most]
        if len(able) < len(self.candidates):
            large = format_count(len(self.candidates) - len(able), "schedule")
            notes.append(
                f"{large} of more than {int(most)} sends left out: too little time to write such programs"
            )
        programs: dict[TimedSchedule, Program] = {}  # of the fastest schedules, as far as time allows
        programs_s = _PROGRAMS_SHARE * limit.left_s
        fewest = min(len(each.schedule) for each in able)
        if _FEWEST_PROGRAMS * self._lowering_s(fewest, lowering) > programs_s:
            programs_s = 0.0  # an interrupted program would be lowered again below, with all the time
        status = "done"
        try:
            with limit.sooner(programs_s).enforced():
                tiles = self._tiles_with_programs(max_ranges, lowering, programs, notes, able)
        except OutOfTime:
            self.stopped, status = "time limit", "timed-out"
            timing_s = busy_factor() * _TIMING_S * fewest
            until = limit.later(_LATE_S - timing_s).at_least(_BRIEF_S)
            tiles = self._tiles_in_haste(max_ranges, lowering, programs, until)
            if programs:
                notes.append("too little time to write programs for all schedules; give more time")
        self.log.end("programs", status=status)
        notes += notes_by_text(
            (f"{format_size(first)} to {format_size(last)}", note)
            for first, last, winner in tiles
            for note in (programs[winner].notes if winner in programs else ())
        )
        found = tuple(
            range_of(tile, programs.get(tile[2]), limit, 3 * (len(tiles) - number), self.bounds)
            for number, tile in enumerate(tiles)
        )
        self.log.end("bounds of the ranges")
        return found, notes

    def _tiles_in_haste(
        self,
        max_ranges: int,
        lowering: dict[str, Any],
        programs: dict[TimedSchedule, Program],
        limit: Deadline,
    ) -> list[Tile]:
        """Ranges of sizes (tiles) when time is short, each with the fastest schedule that has a program.

        First, the best schedules for the largest and the smallest size are lowered to programs, as far as
        time allows. The result is a single tile if there are more than `max_ranges`, or time runs out. If no
        program is ready by the limit, it has the best schedule for the largest size, without a program.
        Sizes above the largest for which a schedule was made are left to the library's own algorithms.
        Raises `ExportError` if the runtime's files can hold no program.
        """
        made = {size for each in self.candidates for size in each.made_us}
        last = max(made)
        grid = [size for size in self.grid if size <= last] or self.grid[:1]
        for size in (last, min(made)):
            self._add_program(size, lowering, programs, limit)
        if not programs and isinstance(self.failure, ExportError):
            raise self.failure
        if len(grid) < len(self.grid):
            most = format_size(grid[-1])
            self.notes.append(f"too little time for sizes above {most}: the library serves them")
        if not programs:
            best = self._by_time(last)[0]
            needed_s = self._lowering_s(len(best.schedule), lowering)
            about = f"no program, as that of {len(best.schedule)} sends takes about {math.ceil(needed_s)} s"
            more = "more time, or fewer instances" if lowering.get("instances", 1) != 1 else "more time"
            self.notes.append(f"{about}: give {more}, or use `taccl convert` for the schedule")
            return [(grid[0], grid[-1], best)]
        if len(programs) == 1:  # its times are needed for no comparison
            return [(grid[0], grid[-1], next(iter(programs)))]
        with contextlib.suppress(OutOfTime), limit.enforced():
            tiles = tiles_of(list(programs), grid)
            if len(tiles) <= max_ranges:
                return tiles
        return [(grid[0], grid[-1], min(programs, key=lambda each: each.finish(grid[-1])))]

    def _lowering_s(self, num_sends: int, lowering: dict[str, Any]) -> float:
        """Estimated seconds to lower a schedule to a program, and to check the program."""
        return self.runtime.lower_s * _work_per_send(lowering) * num_sends

    def _by_time(self, size: int) -> list[TimedSchedule]:
        """Candidates by their predicted time at a size for which they were made, the fastest first."""
        return sorted(self.candidates, key=lambda each: each.made_us.get(size, math.inf))

    def _add_program(
        self, size: int, lowering: dict[str, Any], programs: dict[TimedSchedule, Program], limit: Deadline
    ) -> None:
        """Lower the fastest schedule for `size` whose program is ready by the limit; add it to `programs`."""
        for each in self._by_time(size):
            if each in programs:
                return
            if self._lowering_s(len(each.schedule), lowering) > limit.left_s:
                continue
            try:
                with contextlib.suppress(OutOfTime), limit.enforced():
                    programs[each] = runnable(each.schedule, lowering, self.runtime)
                    return
            except ExportError as error:
                self.failure = error

    def _tiles_with_programs(
        self,
        max_ranges: int,
        lowering: dict[str, Any],
        programs: dict[TimedSchedule, Program],
        notes: list[str],
        able: Sequence[TimedSchedule],
    ) -> list[Tile]:
        """Best ranges of sizes (tiles) whose schedules can be lowered; adds to `programs` and `notes`."""
        remaining, reasons = list(able), dict[str, None]()
        # Large sizes come first, as finishes there give the tightest limits on finishes at other sizes.
        best = {size: winner_at(remaining, size).finish(size) for size in reversed(self.grid)}
        while True:
            tiles = tiles_of(remaining, self.grid)
            # Lower the schedules of the first and the last tile first: there, other schedules lose most.
            for place in _spread(len(tiles)):
                winner = tiles[place][2]
                if winner not in programs:
                    try:
                        programs[winner] = runnable(winner.schedule, lowering, self.runtime)
                    except ExportError as error:
                        remaining.remove(winner)
                        reasons[error.reason] = None
                        notes.append(f"a schedule of {winner.source} was left out: {error.reason}")
                        break
            else:
                if len(tiles) <= max_ranges:
                    break
                remaining = without_one(tiles, self.grid)
            if not remaining:
                raise ExportError(f"no schedule fits its format: {'; '.join(reasons)}")
        used = {
            size: next(each for first, last, each in tiles if first <= size <= last) for size in self.grid
        }
        worst = max(ratio(used[size].finish(size), best[size]) - 1 for size in self.grid)
        if worst:
            longer = f"up to {float(worst):.2%} longer than the best schedule for them"
            notes.append(f"few ranges, or limits of the format, cost time: some sizes take {longer}")
        return tiles
