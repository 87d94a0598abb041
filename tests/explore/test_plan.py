"""Plans: contiguous ranges, the best known schedule at every size, and complete folders."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from collections import defaultdict
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import taccl
from taccl._internal.deadline import NEVER, Deadline, OutOfTime
from taccl.analysis.certificates import bounds
from taccl.errors import ExportError, InputError, NoSolutionError, SketchError
from taccl.explore import plan as planning
from taccl.explore import plan_mscclpp, plan_runtimes, plan_search, plan_tiles
from taccl.explore.plan_tiles import TimedSchedule, winner_at
from taccl.formats.msccl import xml
from taccl.formats.msccl.xml import load_msccl_xml
from taccl.program import limits
from taccl.runtimes.registry import runtime_named
from taccl.runtimes.table import RUNTIMES
from taccl.synthesis.bounding import no_bound
from taccl.topology.transform import without
from tests.effort import AMPLE_S, brief_plan, brief_synthesis
from tests.fuzzing import MANY

#: Two ranks of each of two NDv2 nodes: small messages go directly, larger ones enter each node once.
FOUR = without(taccl.topologies.ndv2(nodes=2), ranks=[*range(2, 8), *range(10, 16)])
GRID = [1000, 10**6]
#: Sketch whose only clause keeps a rank's data in one chunk.
WHOLE = taccl.Sketch.from_dict({"schema": 1, "name": "whole", "chunks": {"per_rank": 1}})
NO_SPACE = OSError(28, "No space left on device")


@cache
def four_plan():
    """Plan of an allgather among four ranks, by the list scheduler and with the baselines."""
    return brief_plan(FOUR, "allgather", sizes=GRID, backend="greedy")


@cache
def ring_plan():
    """A small plan on a ring."""
    return brief_plan("ring:4", "allgather", sketches=[WHOLE], sizes=GRID, backend="greedy")


def raising(error):
    """Function that raises an error, whatever its arguments."""

    def call(*_, **__):
        raise error

    return call


def endless(*_, **__):
    """Function that never returns."""
    while True:
        time.sleep(0.001)


def baselines_only():
    """Plan search for the problem of `four_plan` with the baselines alone, without syntheses."""
    search = plan_search.PlanSearch(GRID, lambda _: None, [FOUR])
    problems = [taccl.make_problem(FOUR, "allgather", size_bytes=size) for size in GRID]
    search.add_baselines([("no sketch", problems)], NEVER)
    return search


def test_candidates_are_lowered_without_warnings():
    """A program's losses are in its notes, without a warning, as the plan may not use the program."""
    problem = taccl.make_problem(taccl.topologies.hypercube(4), "allreduce", chunk_bytes=1)
    schedule = taccl.baselines.baseline("swing", problem)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = plan_runtimes.runnable(schedule, {}, runtime_named("msccl"))
    assert any("chunks are scattered" in note for note in program.notes)


def test_programs_are_checked_without_a_file(monkeypatch):
    """The limits of the format are checked without writing the file, which takes longer for many steps.

    A program within these limits is not split.
    """
    monkeypatch.setattr(xml, "_rank_lines", None)
    monkeypatch.setattr(plan_runtimes, "split_threadblocks", None)
    problem = taccl.make_problem(FOUR, "allgather", chunk_bytes=1)
    schedule = taccl.baselines.baseline("ring", problem)
    program = plan_runtimes.runnable(schedule, {}, runtime_named("msccl"))
    monkeypatch.setattr(limits, "MAX_ELEMENTS", 3)
    with pytest.raises(ExportError, match="lower the schedule with fewer instances") as caught:
        xml.check_msccl_xml(program, runtime_named("msccl"))
    assert "holds at most 3 elements per rank" in caught.value.reason
    assert "lower" not in caught.value.reason  # a plan, whose notes say the reason, has no such options


def test_no_time_is_spent_on_other_protocols_once_it_is_up():
    """After the deadline, a baseline is a candidate under its own protocol only; before, under all."""
    machine = taccl.topologies.parse("dgx-a100")
    protocols = [machine.under(each) for each in ("simple", "ll")]
    schedule = taccl.baselines.ring(taccl.make_problem(protocols[1], "allgather", size_bytes=1024))
    for until, found in ((Deadline.after(-1.0), ["ll"]), (NEVER, ["simple", "ll"])):
        search = plan_search.PlanSearch([1024], lambda _: None, protocols)
        search.add(schedule, "baseline ring, for 1KB", until)
        assert [each.schedule.problem.topology.protocol for each in search.candidates] == found


def test_a_hurried_plan_of_one_program_compares_no_times(monkeypatch):
    """If only one schedule became a program in time, no finishes are simulated to choose it."""
    search = baselines_only()
    monkeypatch.setattr(TimedSchedule, "finish", None)
    program = plan_runtimes.runnable(search.candidates[0].schedule, {}, runtime_named("msccl"))
    programs = {search.candidates[0]: program}
    monkeypatch.setattr(search, "_add_program", lambda *_: None)
    (tile,) = search._tiles_in_haste(4, {}, programs, Deadline.after(-1.0))
    assert tile == (GRID[0], GRID[-1], search.candidates[0])


@pytest.mark.slow
def test_ranges_tile_all_sizes():
    """The first range begins at 1 KB, each next one a byte after the last, and the last ends at 1 MB."""
    ranges = four_plan().ranges
    assert (ranges[0].min_bytes, ranges[-1].max_bytes) == (1000, 10**6)
    assert all(b.min_bytes == a.max_bytes + 1 for a, b in zip(ranges, ranges[1:], strict=False))
    assert all(each.min_bytes <= each.max_bytes for each in ranges)


@pytest.mark.slow
def test_a_range_ends_where_the_next_schedule_becomes_faster():
    """At the end of a range its schedule is no slower than the next one's, and a byte later it is slower."""
    ranges = four_plan().ranges
    assert len(ranges) > 1
    for before, after in zip(ranges, ranges[1:], strict=False):
        last, first = before.max_bytes, after.min_bytes
        assert (
            taccl.simulate(before.schedule, size=last).finish
            <= taccl.simulate(after.schedule, size=last).finish
        )
        assert (
            taccl.simulate(before.schedule, size=first).finish
            > taccl.simulate(after.schedule, size=first).finish
        )


@pytest.mark.slow
def test_no_candidate_is_better():
    """At each synthesized size, no schedule found is faster than the plan's."""
    candidates = baselines_only().candidates
    for size in GRID:
        finish = taccl.simulate(four_plan().range_of(size).schedule, size=size).finish
        assert finish <= min(candidate.finish(size) for candidate in candidates)


def test_few_simulations_find_the_winner():
    """With bounds on finish times, fewer simulations find the same fastest finish as trying every candidate."""
    lazy, thorough = baselines_only().candidates, baselines_only().candidates
    for size in (10**6, 250_000, 1000, 60_000, 15_000, 4000):
        assert winner_at(lazy, size).finish(size) == min(each.finish(size) for each in thorough)
    assert sum(len(each._finish) for each in lazy) < sum(len(each._finish) for each in thorough)


def test_every_range_is_verified_and_bounded():
    """Schedules verify at the size at which they are timed, which is in their range; none beats the bound."""
    for each in four_plan().ranges:
        assert taccl.verify(each.schedule).ok
        assert each.min_bytes <= each.schedule.problem.size_bytes <= each.max_bytes
        assert each.bound.bound <= each.schedule.finish
        assert each.finish_min <= each.finish_max


@pytest.mark.slow
def test_scratch_is_in_proportion():
    """The scratch of a program grows with the size in proportion to its chunks.

    With 3 chunks in the scratch and 4 in the buffer, the scratch is 3/4 of the plan's largest size.
    """
    [each] = ring_plan().ranges
    ranks = tuple(replace(rank, scratch_chunks=3) for rank in each.program.ranks)
    assert replace(each, program=replace(each.program, ranks=ranks)).scratch_bytes == 750_000


@pytest.mark.slow
def test_a_ring_needs_one_range():
    """A plan of one chunk per rank on a ring of four has one range, as one schedule is optimal at every size."""
    sizes = "4KB:1MB"
    plan = brief_plan("ring:4", "allgather", sketches=[WHOLE], sizes=sizes, backend="greedy")
    assert [(each.min_bytes, each.max_bytes) for each in plan.ranges] == [(4000, 10**6)]
    assert plan.stopped == "done"


def test_fewer_ranges_keep_the_least_loss():
    """With a limit of one range, one schedule serves all sizes, and a note states the loss."""
    ranges, notes = baselines_only().ranges(1, {}, NEVER)
    assert [(each.min_bytes, each.max_bytes) for each in ranges] == [(1000, 10**6)]
    assert any("few ranges, or limits of the format" in note for note in notes)


def test_programs_of_the_ends_are_made_first(monkeypatch):
    """If time ends before the last program, the programs for the smallest and the largest sizes exist."""
    search, made = baselines_only(), []
    first, middle, last = search.candidates[:3]
    tiles = [(1000, 1999, first), (2000, 2999, middle), (3000, 10**6, last)]
    monkeypatch.setattr(plan_search, "tiles_of", lambda *_: tiles)
    monkeypatch.setattr(plan_search, "runnable", lambda schedule, *_: made.append(schedule))
    search._tiles_with_programs(3, {}, {}, [], search.candidates)
    assert made == [first.schedule, last.schedule, middle.schedule]


@pytest.mark.slow
def test_files_are_what_the_plan_says(tmp_path):
    """The folder has programs with byte ranges, loadable schedules, and an index that names them all."""
    plan, folder = four_plan(), tmp_path / "plan"
    files = plan.save(folder)
    assert {path.name for path in files} == {path.name for path in folder.iterdir()}
    index = json.loads((folder / "plan.json").read_text())
    assert [row["min_bytes"] for row in index["ranges"]] == [each.min_bytes for each in plan.ranges]
    for row, each in zip(index["ranges"], plan.ranges, strict=True):
        text = (folder / row["files"]["msccl_xml"]).read_text()
        # The runtime excludes `maxBytes` itself.
        assert f'minBytes="{each.min_bytes}" maxBytes="{each.max_bytes + 1}"' in text
        assert taccl.interpret(load_msccl_xml(folder / row["files"]["msccl_xml"])).ok
        assert taccl.load(folder / row["files"]["schedule"]) == each.schedule
        plan_of_range = json.loads((folder / row["files"]["mscclpp"]).read_text())
        assert plan_of_range["min_message_size"] == each.min_bytes
        assert plan_of_range["max_message_size"] == each.max_bytes
    assert "taccl-allgather-1" in (folder / "register_plans.py").read_text()


def test_out_of_time_files_state_the_bounds_of_the_plan(tmp_path, monkeypatch):
    """The files of a plan that ran out of time have its bounds; no bound is computed when they are written."""
    plan = replace(ring_plan(), stopped="time limit")
    monkeypatch.setattr(bounds, "lower_bound", None)
    plan.save(tmp_path / "plan")
    for number, each in enumerate(plan.ranges, 1):
        stated = json.loads((tmp_path / "plan" / f"range-{number:02}.json").read_text())["result"]
        assert stated["bound_us"] == each.bound.bound_us > 0


def test_without_time_for_a_bound_that_of_the_synthesis_counts(monkeypatch):
    """If there is no time for a range's bound, the bound that a synthesis proved for the same size is used."""
    winner = baselines_only().candidates[0]
    known = taccl.lower_bound(winner.at(1000).problem, divisible=True)
    monkeypatch.setattr(plan_tiles, "lower_bound", raising(OutOfTime("late")))
    found = plan_tiles.range_of(
        (1000, 4000, winner), None, Deadline.after(0.0), 3, {(FOUR.protocol, 1000): known}
    )
    assert (found.bound_min, found.bound_max.kind) == (known, "none")


def test_bounds_of_all_ranges_share_the_time_left(monkeypatch):
    """Each bound has an equal share of the time left, so that all of them end by the deadline."""
    given = []

    def at_once(problem, *, limit_s, **_):
        given.append(limit_s)
        return no_bound(problem, divisible=True)

    monkeypatch.setattr(plan_tiles, "lower_bound", at_once)
    winner = baselines_only().candidates[0]
    plan_tiles.range_of((500, 2 * 10**6, winner), None, Deadline.after(6.0), 12, {})
    assert len(given) == 3 and 0.4 < sum(given) / 3 <= 6.0 / 10


@pytest.mark.slow
def test_large_schedules_are_left_to_plans_with_more_time():
    """Without time to write the programs of large schedules, smaller ones are used, and a note says so."""
    search = baselines_only()
    halves = taccl.make_problem(FOUR, "allgather", size_bytes="1MB", chunks_per_rank=2)
    search.add(taccl.baselines.ring(halves, cut=False), "in halves")
    sizes = sorted({len(each.schedule) for each in search.candidates})
    assert len(sizes) > 1
    ranges, notes = search.ranges(4, {"instances": 1}, Deadline.after(1e-6))
    assert {len(each.schedule) for each in ranges} == {sizes[0]}
    assert any("sends left out: too little time to write such programs" in note for note in notes)


def test_the_environment_names_existing_files(tmp_path):
    """After reading environment.sh from any folder, a shell has the plan's programs registered."""
    folder = tmp_path / "a plan"
    ring_plan().save(folder)
    done = subprocess.run(
        ["bash", "-c", 'cd / && . "$1" && echo "$MSCCL_XML_FILES" "$NCCL_ALGO"', "sh", folder / "environment.sh"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    files, _, algorithms = done.stdout.strip().rpartition(" ")
    assert [Path(each).is_file() for each in files.split(":")] == [True] * len(ring_plan().ranges)
    assert algorithms == "MSCCL,RING,TREE"


def test_a_folder_is_there_whole_or_not_at_all(tmp_path, monkeypatch):
    """If the disk is full at the last file, no new folder remains, and an older plan stays unchanged."""
    import taccl.explore.plan_xml as files

    folder = tmp_path / "plan"
    ring_plan().save(folder)
    before = (folder / "plan.json").read_bytes()

    monkeypatch.setattr(files, "environment_text", raising(NO_SPACE))
    with pytest.raises(InputError, match="No space left"):
        ring_plan().save(folder, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["plan"]
    assert (folder / "plan.json").read_bytes() == before


def test_a_disk_that_is_full_at_a_schedule_names_the_plan(tmp_path, monkeypatch):
    """If the disk is full at a schedule, the error names the requested folder, not the temporary one."""
    plan = ring_plan()
    monkeypatch.setattr(os, "fsync", raising(NO_SPACE))
    with pytest.raises(InputError, match="No space left") as told:
        plan.save(tmp_path / "plan")
    assert (told.value.where, list(tmp_path.iterdir())) == (str(tmp_path / "plan"), [])


def test_only_plans_are_replaced(tmp_path):
    """A folder with foreign contents is never replaced, and a folder with only a plan on request."""
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="something other than a plan"):
        ring_plan().save(tmp_path, overwrite=True)
    folder = tmp_path / "plan"
    ring_plan().save(folder)
    with pytest.raises(InputError, match="--overwrite"):
        ring_plan().save(folder)
    ring_plan().save(folder, overwrite=True)


def test_a_folder_with_more_than_a_plan_is_kept(tmp_path):
    """A folder that holds a foreign file beside a plan is not replaced."""
    folder = tmp_path / "plan"
    ring_plan().save(folder)
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"'notes\.txt'"):
        ring_plan().save(folder, overwrite=True)
    assert (folder / "notes.txt").read_text() == "mine"


def test_a_stop_between_two_renames_keeps_the_older_plan(tmp_path, monkeypatch):
    """Ctrl-C between the two renames that replace a plan restores the older plan."""
    folder = tmp_path / "plan"
    ring_plan().save(folder)
    real = os.replace

    def interrupted(source, target):
        if source.name.endswith(".tmp"):
            raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ring_plan().save(folder, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["plan"]
    assert (folder / "plan.json").exists()


def test_names_end_no_comment(tmp_path):
    """A line break in a topology's name adds no command to environment.sh."""
    name = "ring\ntouch pwned"
    plan = replace(ring_plan(), topology=replace(taccl.topologies.ring(4), name=name))
    plan.save(tmp_path / "plan")
    text = (tmp_path / "plan" / "environment.sh").read_text()
    assert text.startswith(r"# allgather on ring\ntouch pwned, out of place")


@pytest.mark.parametrize("folder", ["a" * 300, "a\0b"])
def test_impossible_names_of_folders_are_refused(folder, tmp_path):
    """A folder name that is too long, or has a null character, is bad input."""
    with pytest.raises(InputError, match="cannot be used"):
        ring_plan().save(tmp_path / folder)


@pytest.mark.slow
def test_interrupts_keep_what_there_is(monkeypatch):
    """Ctrl-C in the second synthesis gives a plan from the first one and the baselines."""
    real, calls = plan_search.synthesize, []

    def interrupted(*args, **options):
        calls.append(args)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return real(*args, **options)

    monkeypatch.setattr(plan_search, "synthesize", interrupted)
    plan = taccl.plan("ring:4", "allgather", sizes="4KB:1MB", backend="greedy")
    assert (plan.stopped, len(calls)) == ("interrupted", 2)
    assert plan.ranges[-1].max_bytes == 10**6


@pytest.mark.slow
def test_stages_of_a_plan_account_for_its_time(monkeypatch):
    """The stages of a plan, with those of each synthesis, add up to its seconds, here those of the CPU."""
    monkeypatch.setattr(time, "monotonic", time.process_time)
    plan = brief_plan("ring:6", "alltoall", sketches=[WHOLE], sizes="4KB:1MB", backend="greedy")
    table = plan.stages.to_frame()
    assert table.seconds.sum() == pytest.approx(plan.seconds, rel=0.01, abs=0.01)
    assert (table.seconds >= -1e-6).all() and len(plan.stages) == len(plan.to_dict()["stages"])
    names = set(table["name"])
    assert {"preparation", "baselines", "programs", "bounds of the ranges"} < names
    assert {"4KB, sketch whole: greedy", "1MB, sketch whole"} < names


@pytest.mark.slow
def test_an_error_of_the_progress_function_is_raised():
    """An exception of `progress` reaches the caller, even one that the search raises at its time limit."""
    with pytest.raises(OutOfTime, match="mine"):
        taccl.plan(
            "ring:2", "allgather", sizes=["4KB"], backend="greedy", progress=raising(OutOfTime("mine"))
        )


def test_stages_of_a_plan_name_what_was_left_out(monkeypatch):
    """A synthesis without time, without a schedule, or cut by the limit is a row with its reason."""
    monkeypatch.setattr(plan_search, "synthesize", raising(NoSolutionError("none for us")))
    plan = taccl.plan("ring:4", "allgather", sizes=["4KB"], backend="greedy", time_limit_s=AMPLE_S)
    row = next(each for each in plan.stages if each.name == "4KB, no sketch")
    assert (row.status, row.message) == ("no-solution", "none for us")


def test_an_interrupt_among_baselines_keeps_those_before(monkeypatch):
    """Ctrl-C in the second baseline, which is slower to build, gives a plan from the first one."""
    monkeypatch.setattr(
        plan_search, "BASELINES", {"tree": taccl.baselines.tree, "ring": raising(KeyboardInterrupt)}
    )
    plan = taccl.plan("ring:4", "allgather", sizes="4KB:1MB", backend="greedy")
    assert (plan.stopped, plan.num_candidates) == ("interrupted", 1)


def test_an_interrupt_before_any_schedule_is_passed_on(monkeypatch):
    """Ctrl-C before the first schedule raises KeyboardInterrupt."""
    monkeypatch.setattr(plan_search, "synthesize", raising(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        taccl.plan("ring:4", "allgather", baselines=False)


def test_a_plan_without_time_for_programs_has_schedules_alone(tmp_path, monkeypatch):
    """If even the smallest program takes too long by estimate, the plan says so, and has its schedules."""
    monkeypatch.setattr(plan_search.PlanSearch, "_lowering_s", lambda _, num_sends, lowering: 1e4 * num_sends)
    monkeypatch.setattr(plan_search, "runnable", None)
    plan = taccl.plan("ring:4", "allgather", sizes=["4KB"], backend="greedy", time_limit_s=100)
    note = "no program, as that of 24 sends takes about [0-9]+ s: give more time, or use `taccl convert`"
    assert any(re.match(note, each) for each in plan.notes)
    assert [(each.program, each.scratch_bytes) for each in plan.ranges] == [(None, None)]
    paths = plan.save(tmp_path / "plan")
    assert {path.name for path in paths} == {"plan.json", "range-01.json"}
    assert json.loads(paths[0].read_text())["coverage"]["msccl"] == "msccl: no file"
    assert taccl.load(paths[1]) == plan.ranges[0].schedule


@pytest.mark.parametrize(("lower_s", "has_program"), [(8e-5, True), (1e4, False)])
def test_time_for_a_program_is_that_of_its_runtime(lower_s, has_program):
    """A program is made if the runtime's own time per send fits into the time that is left."""
    runtime = replace(RUNTIMES["msccl"], lower_s=lower_s)
    search = plan_search.PlanSearch(GRID[:1], lambda _: None, [FOUR], runtime)
    problem = taccl.make_problem(FOUR, "allgather", size_bytes=GRID[0])
    search.add(taccl.baselines.ring(problem), "baseline ring, for 1KB")
    (found,), _ = search.ranges(4, {"in_place": False}, Deadline.after(100.0))
    assert (found.program is not None) == has_program
    assert RUNTIMES["mscclpp"].lower_s > 4 * RUNTIMES["msccl"].lower_s


def test_limits_of_syntheses_leave_out_the_time_to_choose_a_protocol(monkeypatch):
    """The choice of a protocol takes 10 of 100 s for each of two sizes, and each synthesis takes its limit."""
    now_s, limits_s = [0.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])

    def chosen(_, problem, __):
        now_s[0] += 10.0
        return problem

    def synthesized(_, *, time_limit_s):
        limits_s.append(time_limit_s)
        now_s[0] += time_limit_s
        raise NoSolutionError("none")

    monkeypatch.setattr(plan_search.PlanSearch, "_on_runtime", chosen)
    monkeypatch.setattr(plan_search, "synthesize", synthesized)
    search = plan_search.PlanSearch(GRID[:2], lambda _: None, [FOUR])
    problems = [taccl.make_problem(FOUR, "allgather", size_bytes=size) for size in GRID[:2]]
    search.synthesize([("no sketch", problems)], Deadline(100.0))
    assert limits_s == [45, 35]
    assert now_s == [100]


def test_lowering_obeys_the_time_limit(monkeypatch):
    """A program that takes longer than estimated is given up at the time limit."""
    monkeypatch.setattr(plan_search, "runnable", endless)
    search = baselines_only()
    ranges, _ = search.ranges(4, {"in_place": False}, Deadline.after(-1.5))
    assert [each.program for each in ranges] == [None]
    assert any(each.startswith("no program, as that of 12 sends takes about 1 s") for each in search.notes)


@pytest.mark.slow
def test_baselines_obey_the_time_limit(monkeypatch):
    """A baseline that exceeds its share of the time is omitted, and the plan says so."""
    monkeypatch.setattr(plan_search, "BASELINES", {"pairwise": taccl.baselines.pairwise, "ring": endless})
    plan = taccl.plan("ring:4", "allgather", sizes=["4KB"], backend="greedy", time_limit_s=1)
    assert any("too little time for 1 of 2 baselines" in note for note in plan.notes)


def test_without_time_each_of_three_sizes_still_has_a_schedule(monkeypatch):
    """If time is up before the first baseline, the smallest, a middle and the largest size get a schedule."""

    def slowly(problem, *, cut):
        time.sleep(0.1)
        return taccl.baselines.ring(problem, cut=cut)

    monkeypatch.setattr(plan_search, "BASELINES", {"ring": slowly})
    grid = [1000, 10**6, 10**9]
    problems = [taccl.make_problem(FOUR, "allgather", size_bytes=size) for size in grid]
    search = plan_search.PlanSearch(grid, lambda _: None, [FOUR])
    search.add_baselines([("no sketch", problems)], Deadline.after(0.0))
    assert {size for each in search.candidates for size in each.made_us} == {*grid}


def test_a_plan_says_how_many_syntheses_time_did_not_allow():
    """A plan without time for any synthesis says so in a note, and holds baselines."""
    plan = taccl.plan("ring:4", "allgather", sizes=GRID, backend="greedy", time_limit_s=1e-3)
    assert "too little time for 2 of 2 syntheses; give more time" in plan.notes
    assert plan.stopped == "time limit"
    assert all(each.source.startswith("baseline") for each in plan.ranges)


def test_files_that_would_be_late_are_left_out(tmp_path, monkeypatch):
    """Files of a further runtime that time does not allow are left out, and the index names them."""
    monkeypatch.setattr(plan_mscclpp, "_LEAST_S", 0.0)
    paths = ring_plan().save(tmp_path / "plan", time_limit_s=1e-9)
    index = json.loads(paths[0].read_text())
    assert {path.name for path in paths} == {"plan.json", "environment.sh", "range-01.json", "range-01.xml"}
    late = "too little time for the MSCCL++ plan of range-01, range-01.in-place; give more time"
    assert late in index["notes"] and index["coverage"]["mscclpp"] == "mscclpp: no file"


def test_files_of_the_only_runtime_are_always_written(tmp_path, monkeypatch):
    """Without time, a plan for MSCCL++ alone still has the files of its own programs."""
    monkeypatch.setattr(plan_mscclpp, "_LEAST_S", 0.0)
    plan = replace(ring_plan(), runtimes=("mscclpp",))
    names = {path.name for path in plan.save(tmp_path / "plan", time_limit_s=1e-9)}
    assert "range-01.plan.json" in names and "range-01.in-place.plan.json" not in names


@pytest.mark.slow
def test_the_time_limit_still_gives_a_plan():
    """A plan whose time limit ends early still covers all sizes, as sizes far apart are synthesized first."""
    plan = taccl.plan("ring:4", "allgather", sizes="1KB:1GB", backend="greedy", time_limit_s=1e-6)
    assert plan.stopped == "time limit"
    assert (plan.ranges[0].min_bytes, plan.ranges[-1].max_bytes) == (1000, 10**9)


def test_without_time_larger_sizes_are_left_to_the_library():
    """If time ends after 1 KB, its schedule does not serve larger sizes, which are left to the library."""
    search = plan_search.PlanSearch(GRID, lambda _: None, [FOUR])
    problem = taccl.make_problem(FOUR, "allgather", size_bytes=GRID[0])
    search.add(taccl.baselines.ring(problem), "baseline ring, for 1KB")
    ((first, last, _),) = search._tiles_in_haste(4, {"in_place": False}, {}, NEVER)
    assert (first, last) == (GRID[0], GRID[0])
    assert search.notes == ["too little time for sizes above 1KB: the library serves them"]


@pytest.mark.slow
def test_without_time_for_programs_the_best_for_both_ends_get_one(monkeypatch):
    """Without time for all programs, the best schedules for the largest and smallest size get one each."""
    monkeypatch.setattr(plan_search.PlanSearch, "_tiles_with_programs", raising(OutOfTime("no time")))
    plan = brief_plan("ring:4", "allgather", sketches=[WHOLE], sizes=GRID, backend="greedy")
    monkeypatch.undo()
    whole = ring_plan()
    assert plan.ranges[0].finish_min == whole.ranges[0].finish_min
    assert plan.ranges[-1].finish_max == whole.ranges[-1].finish_max


@pytest.mark.slow
@pytest.mark.parametrize(
    "why", [ExportError("it has too many steps"), OutOfTime("no time")], ids=["room", "time"]
)
def test_without_time_the_schedule_of_the_fewest_sends_gets_a_program(monkeypatch, why):
    """If no other schedule becomes a program in time, or fits the runtime's files, that of the fewest sends does."""
    runnable, fewest = plan_search.runnable, 12

    def only_few(schedule, *rest):
        if len(schedule) > fewest:
            raise why
        return runnable(schedule, *rest)

    monkeypatch.setattr(plan_search.PlanSearch, "_tiles_with_programs", raising(OutOfTime("no time")))
    monkeypatch.setattr(plan_search, "runnable", only_few)
    plan = brief_plan("ring:4", "allgather", sizes=GRID, backend="greedy")
    assert [len(each.schedule) for each in plan.ranges] == [fewest]
    fewest = 0
    if isinstance(why, OutOfTime):
        plan = brief_plan("ring:4", "allgather", sizes=GRID, backend="greedy")
        assert [each.program for each in plan.ranges] == [None]
        return
    with pytest.raises(ExportError, match="too many steps"):
        brief_plan("ring:4", "allgather", sizes=GRID, backend="greedy")


def test_a_program_that_takes_most_of_the_time_gets_all_of_it(monkeypatch):
    """If even the smallest program exceeds its share of the time, no attempt at several programs precedes it."""
    monkeypatch.setattr(plan_search, "busy_factor", lambda: 1.0)
    monkeypatch.setattr(plan_search.PlanSearch, "_lowering_s", lambda _, num_sends, lowering: 2.0 * num_sends)
    monkeypatch.setattr(plan_search.PlanSearch, "_tiles_with_programs", endless)
    search = plan_search.PlanSearch(GRID[:1], lambda _: None, [FOUR])
    problem = taccl.make_problem(FOUR, "allgather", size_bytes=GRID[0])
    search.add(taccl.baselines.ring(problem), "baseline ring, for 1KB")
    ranges, notes = search.ranges(4, {"in_place": False}, Deadline.after(60.0))
    assert [each.source for each in ranges] == ["baseline ring, for 1KB"]
    assert "too little time to write programs for all schedules; give more time" in notes


def test_a_range_of_one_size_is_verified_and_bounded_once(monkeypatch):
    """If both ends and the schedule have one size, the range has one verification and one bound."""
    problem = taccl.make_problem(FOUR, "allgather", size_bytes=GRID[0])
    winner, calls = TimedSchedule(taccl.baselines.ring(problem), "ring"), []
    verify, bound = plan_tiles.verify, plan_tiles._bound
    monkeypatch.setattr(plan_tiles, "verify", lambda each: calls.append("verify") or verify(each))
    monkeypatch.setattr(plan_tiles, "_bound", lambda *given: calls.append("bound") or bound(*given))
    found = plan_tiles.range_of((GRID[0], GRID[0], winner), None, NEVER, 3, {})
    assert sorted(calls) == ["bound", "verify"]
    assert found.bound is found.bound_min is found.bound_max
    assert found.finish_min == found.finish_max == found.schedule.finish


def test_a_schedule_is_not_simulated_at_its_own_size():
    """At its own size a schedule keeps its times, unless a simulation has shown an earlier finish."""
    problem = taccl.make_problem(FOUR, "allgather", size_bytes=GRID[0])
    made = taccl.baselines.ring(problem)
    late = replace(made, start=made.start + 1000, end=made.end + 1000)
    assert TimedSchedule(made, "ring").at(GRID[0]) is made
    assert TimedSchedule(made, "ring").at(GRID[1]).problem.size_bytes == GRID[1]
    winner = TimedSchedule(late, "late")
    assert winner.finish(GRID[0]) == made.launch + made.finish < late.launch + late.finish
    assert winner.at(GRID[0]).finish == made.finish


@pytest.mark.parametrize(("count", "order"), [(1, [0]), (2, [0, 1]), (5, [0, 4, 2, 1, 3])])
def test_sizes_are_visited_far_apart_first(count, order):
    """Sizes are visited in bisection order: both ends, the middle, then the middles of the halves."""
    assert plan_search._spread(count) == order


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"threadblocks": "per-peer"},
        {"channels": "round-robin", "num_channels": 2},
        {"channels": "by-peer", "num_channels": 3},
    ],
    ids=str,
)
def test_peers_over_a_channel_are_known_before_the_schedule_is_lowered(options):
    """The predicted number of peers over one channel is that of the lowered program."""
    problem = taccl.make_problem(taccl.topologies.dgx2(), "alltoall", size_bytes="1MB")
    schedule = taccl.baselines.pairwise(problem)
    peers = defaultdict(set)
    for rank, each in enumerate(taccl.lower(schedule, **options).ranks):
        for block in each.threadblocks:
            for way, peer in (("to", block.send_to), ("from", block.receive_from)):
                peers[rank, way, block.channel] |= {peer} - {None}
    assert plan_runtimes._most_peers(schedule, options) == max(map(len, peers.values()))


def test_a_schedule_with_many_peers_is_lowered_once(monkeypatch):
    """With 15 peers, and room for 3 over one channel, only the last lowering, over 8 channels, is tried."""
    problem = taccl.make_problem(taccl.topologies.dgx2(), "alltoall", size_bytes="1MB")
    monkeypatch.setattr(plan_runtimes, "MAX_PEERS", 3)
    monkeypatch.setattr(limits, "MAX_PEERS", 3)
    lowered, lower = [], plan_runtimes.lower
    monkeypatch.setattr(
        "taccl.program.lower.lower", lambda *_, **given: lowered.append(given) or lower(*_, **given)
    )
    program = plan_runtimes.runnable(taccl.baselines.pairwise(problem), {}, runtime_named("msccl"))
    assert [each["num_channels"] for each in lowered] == [8]
    assert program.num_channels == 8


#: Options for more channels than MSCCL has: each of 20 instances uses two.
_MANY = {"instances": 20, "channels": "by-peer", "num_channels": 2}


@pytest.mark.slow
def test_programs_that_are_too_large_for_the_runtime_are_an_error():
    """If an option makes every program too large for the runtime, the error states the limit."""
    with pytest.raises(ExportError, match="at most 32 channels"):
        brief_plan("dgx1", "allgather", sizes=["1MB"], backend="greedy", lowering=_MANY)


def test_small_alltoallvs_merge_the_chunks_of_a_pair():
    """An alltoallv of 1 KB, cut into chunks for its large sizes, takes hardly longer than the longest path."""
    collective = taccl.alltoallv_collective(taccl.skewed_sizes(4, 64_000, "zipf:0.8"))
    found = brief_plan("ring:4", collective, sizes=[1000], backend="greedy", baselines=False)
    (only,) = found.ranges
    # Two hops of 0.5 us, and under 0.1 us per KB. One by one, a link passes 18 chunks or more, each 0.5 us.
    assert 1 < only.schedule.finish_us < 1.1


def test_a_plan_of_nothing_is_refused():
    """An exchange in which no pair has bytes has no sizes to plan for."""
    collective = taccl.alltoallv_collective(np.zeros((4, 4), int))
    with pytest.raises(InputError, match="found an alltoallv without data; expected bytes for a pair"):
        taccl.plan(taccl.topologies.ring(4), collective, sizes="1MB")


def test_more_instances_than_channels_are_refused_at_once():
    """Each instance needs a channel, so more instances than channels are refused before any search."""
    with pytest.raises(InputError, match=r"instances: found 99999; expected at most 32, the channels of"):
        taccl.plan("dgx1", "allreduce", lowering={"instances": 99_999})


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"sizes": "1MB:1KB"}, InputError, "smaller size first"),
        ({"sizes": "1KB:1MB:1GB"}, InputError, "two sizes"),
        ({"sizes": []}, InputError, "found none"),
        ({"sizes": "1KB:much"}, InputError, "'much'"),
        ({"sketches": ["ndv2/sk9"]}, SketchError, "no shipped sketch"),
        ({"sketches": ["ndv2/sk1"]}, SketchError, "nodes|machine|ranks"),
        ({"sketches": "ndv2/sk1"}, SketchError, "nodes|machine|ranks"),
        ({"sketches": []}, InputError, "at least one"),
        ({"time_limit_s": 0}, InputError, "positive number of seconds"),
        ({"max_ranges": 0}, InputError, "at least 1"),
        ({"lowering": {"channels": "none"}}, InputError, "round-robin"),
        ({"lowering": {"chanels": "single"}}, InputError, "found 'chanels'"),
        ({"sizes": None}, InputError, "sizes"),
        ({"sketches": 3}, InputError, "sketches: found 3; expected several"),
    ],
    ids=str,
)
def test_bad_input_is_refused(options, kind, message):
    """Each invalid size, sketch or option is refused in one sentence."""
    given = {"sizes": ["1MB"], "backend": "greedy", "time_limit_s": 5} | options
    with pytest.raises(kind, match=message):
        taccl.plan("ring:4", "allgather", **given)


def test_a_size_outside_the_plan_is_reported():
    """For a size outside its range, a plan's error states the range."""
    with pytest.raises(InputError, match="1KB to 1MB"):
        four_plan().range_of("1GB")


@pytest.mark.slow
def test_each_size_is_cut_into_as_many_chunks_as_are_best():
    """1 GB goes around a ring in several chunks, since one chunk would take two hops in sequence."""
    topology = taccl.topologies.ring(4)
    (only,) = brief_plan(topology, "broadcast", sizes=["1GB"], backend="greedy", baselines=False).ranges
    count = only.schedule.problem.collective.chunks_per_rank
    assert count > 1
    problem = taccl.make_problem(topology, "broadcast", size_bytes=10**9, chunks_per_rank=count)
    alone = brief_synthesis(problem, backend="greedy")
    assert only.finish_max <= alone.schedule.finish


def test_a_sketch_that_says_how_many_chunks_is_obeyed():
    """``per_rank`` of a sketch holds at every size; without it, the number of chunks is open."""
    ring = taccl.topologies.ring(4)
    said = taccl.Sketch.from_dict({"schema": 1, "chunks": {"per_rank": 3}})
    for sketch, per_rank, is_open in ((said, 3, False), (taccl.Sketch(), 1, True), (None, 1, True)):
        for problem in planning._problems(ring, "allgather", {}, sketch, GRID):
            assert (problem.collective.chunks_per_rank, problem.chunks_open) == (per_rank, is_open)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("topology", "at_most_us"),
    [
        # One-shot: 1 KB over every link, at 0.5 us plus 20 us/MB.
        (taccl.topologies.fully_connected(4), "0.52"),
        # Without latency only the amount of data counts.
        (taccl.topologies.dgx_a100(nodes=1, profile="nominal"), "0.006"),
        # Recursive doubling: four exchanges inside nodes and one between nodes.
        *([(taccl.topologies.dgx2(nodes=2), "4.05")] if MANY else []),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_small_sums_are_made_by_few_sends(topology, at_most_us):
    """Baselines that reduce at several ranks compete for small sums, and their programs fit the format."""
    (only,) = brief_plan(topology, "allreduce", sizes=["1KB"], backend="greedy").ranges
    assert only.finish_max <= Fraction(at_most_us)


@pytest.mark.slow
def test_few_sizes_are_simulated(monkeypatch):
    """If the times of simulated sizes lie on a straight line, sizes between them are interpolated, exactly."""

    problem = taccl.make_problem(taccl.topologies.ndv2(nodes=2), "allgather", size_bytes="1MB")
    schedule = taccl.baselines.baseline("ring", problem)
    simulated = []

    def counted(schedule, *, size):
        simulated.append(size)
        return taccl.simulate(schedule, size=size)

    monkeypatch.setattr(plan_tiles, "simulate", counted)
    candidate = TimedSchedule(schedule, "ring")
    sizes = [2**10, 2**26, *np.random.default_rng(0).integers(2**10, 2**26, 30).tolist()]
    for size in sizes:
        found = taccl.simulate(schedule, size=size)
        assert candidate.at_least(size) <= candidate.finish(size) == found.launch + found.finish
    assert 0 < len(simulated) < 10


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="sends POSIX signals")
def test_a_killed_plan_leaves_no_folder_behind(tmp_path):
    """SIGTERM while files are written removes the draft, and the exit code is that of the signal."""
    script = (
        "import os, signal, sys\n"
        "from taccl import cli\n"
        "from taccl.explore import plan_files\n"
        "def fill(plan, folder):\n"
        "    (folder / 'range-01.xml').write_text('half')\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "plan_files._fill = fill\n"
        "sys.exit(cli.main(sys.argv[1:]))\n"
    )
    words = ["plan", "ring:4", "--collective", "allgather", "--sizes", "4KB", "--backend", "greedy"]
    done = subprocess.run([sys.executable, "-c", script, *words, "-o", str(tmp_path / "plan")], timeout=100)
    assert done.returncode == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_plan_of_a_machine_by_name_has_nodes():
    """A name takes nodes and a profile, as in `make_problem`; a `Topology` has its own."""
    with pytest.raises(InputError, match="nodes: found 2, but the topology has its own"):
        taccl.plan(taccl.topologies.ring(4), "allgather", nodes=2)
    found = taccl.plan("dgx1", "allgather", nodes=2, profile="nominal", sizes=["1KB"], time_limit_s=0.1)
    assert found.topology == taccl.topologies.dgx1(2, profile="nominal")
