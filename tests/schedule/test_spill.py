"""Schedules with columns in files, and summaries."""

import json
import os

import numpy as np
import pytest

import taccl
from taccl import collectives
from taccl.errors import FormatError, InputError
from taccl.problem.making import make_problem
from taccl.schedule import spill as spilling
from taccl.schedule.combine import naming_contributions
from taccl.schedule.schedule import Schedule
from taccl.schedule.spill import check_folder, load_spilled, room_for, spill, summarize
from taccl.synthesis.proposers.large import schedule_large
from tests.analysis import valid_schedules as valid

COLLECTIVES = ("allgather", "allreduce", "reduce-scatter", "alltoall")


def problem_of(name="allgather", size=3):
    """A collective on a square mesh."""
    topology = taccl.topologies.mesh(size, size)
    return make_problem(topology, collectives.make(name, topology.num_ranks), chunk_bytes=10**6)


def large(name="allgather"):
    """First schedule of the large scheduler."""
    return schedule_large(problem_of(name), num_runs=1)


@pytest.fixture(scope="module")
def schedule():
    return large()


@pytest.mark.parametrize("name", COLLECTIVES)
def test_spilled_schedule_is_the_same(name, tmp_path):
    """A spilled schedule has the same digest, verdict and figures as in memory."""
    schedule = large(name)
    spilled = spill(schedule, tmp_path / "columns")
    assert isinstance(spilled.kept.chunk, np.memmap)
    assert taccl.verify(spilled).ok
    assert (spilled.digest(), spilled.finish_us) == (schedule.digest(), schedule.finish_us)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), [("allgather", {}), ("allreduce", {"num_runs": 1})])
def test_columns_that_are_found_in_files(name, options, tmp_path):
    """The scheduler writes to unnamed files, also if it improves the schedule: the folder stays empty, and the
    schedule is the same."""
    spilled = schedule_large(problem_of(name), spill_dir=tmp_path, **options)
    assert os.listdir(tmp_path) == []
    assert spilled.digest() == schedule_large(problem_of(name), **options).digest()


def test_spilled_schedule_comes_back(schedule, tmp_path):
    """A schedule spilled by one process is loaded by another."""
    spill(schedule, tmp_path)
    assert load_spilled(tmp_path).digest() == schedule.digest()


def test_large_problem_is_not_written(schedule, tmp_path, monkeypatch):
    """A large problem is not written to the folder, so it must be given on reading; another problem is
    refused."""
    monkeypatch.setattr(spilling, "_MOST_PAIRS", 10)
    spill(schedule, tmp_path)
    with pytest.raises(InputError, match="does not contain its large problem"):
        load_spilled(tmp_path)
    assert load_spilled(tmp_path, problem_of()).digest() == schedule.digest()
    with pytest.raises(FormatError, match="another problem"):
        load_spilled(tmp_path, problem_of(size=4))


def test_changed_columns_are_refused(schedule, tmp_path):
    """If files of a spilled schedule were changed, their digest differs, and they are refused."""
    spill(schedule, tmp_path)
    np.save(tmp_path / "link.npy", np.zeros(len(schedule), np.int32))
    with pytest.raises(FormatError, match="changed after they were written"):
        load_spilled(tmp_path)


@pytest.mark.parametrize("name", ["schedule.json", "link.npy"])
def test_missing_part_is_refused(name, schedule, tmp_path):
    """A folder in which one file of a spilled schedule is missing is refused."""
    spill(schedule, tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(FormatError):
        load_spilled(tmp_path)


def test_index_of_another_kind_is_refused(tmp_path):
    """A folder whose index has another format is refused."""
    (tmp_path / "schedule.json").write_text(json.dumps({"format": "other"}))
    with pytest.raises(FormatError, match="taccl-spilled-schedule"):
        load_spilled(tmp_path)


@pytest.mark.parametrize("what", ["file", "full", "nowhere"])
def test_folder_that_cannot_be_used(what, tmp_path):
    """A schedule is not spilled to a file, to a non-empty folder, or to a folder whose parent is missing."""
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").write_text("")
    folder = tmp_path / "no" / "where" if what == "nowhere" else tmp_path / what
    with pytest.raises(InputError):
        check_folder(folder)


def test_disk_that_is_too_small(tmp_path):
    """Too little disk space is reported before anything is written."""
    with pytest.raises(InputError, match="free; the schedule needs"):
        check_folder(tmp_path, num_bytes=10**18)
    with pytest.raises(InputError, match="cannot be written"):
        room_for(10**15, np.int64, tmp_path)


def test_failed_spill_leaves_nothing(schedule, tmp_path, monkeypatch):
    """A failed spill leaves neither files nor the folder."""

    def fails(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", fails)
    with pytest.raises(InputError, match="No space left"):
        spill(schedule, tmp_path / "new")
    assert os.listdir(tmp_path) == []


def test_summary_has_the_figures(schedule):
    """A summary has transfers, finish, bandwidth and digest."""
    summary = summarize(schedule)
    assert summary.num_bytes == 0
    for name in ("num_transfers", "num_sends", "finish_us", "algbw_gb_per_s", "busbw_gb_per_s"):
        assert getattr(summary, name) == getattr(schedule, name)
    assert summary.digest() == schedule.digest()


@pytest.mark.parametrize("use", [taccl.verify, list, lambda s: s.end, lambda s: s.table(), taccl.lower])
def test_summary_has_no_transfers(schedule, use):
    """Functions that need transfers say that only a summary was kept."""
    with pytest.raises(InputError, match="only a summary was kept of these 72 transfers"):
        use(summarize(schedule))


def test_a_count_of_reductions_that_is_text_is_a_number(tmp_path):
    """A number of reductions stored as text is read as a number."""
    found = schedule_large(problem_of("allreduce"), num_runs=1)
    left = Schedule(found.problem, *found.kept[:3], reduce=5)
    spill(left, tmp_path / "left")
    index = tmp_path / "left" / "schedule.json"
    content = json.loads(index.read_text())
    index.write_text(json.dumps(content | {"num_reducing": str(left.kept.reduce)}))
    assert load_spilled(tmp_path / "left").kept.reduce == left.kept.reduce


def test_every_column_that_is_kept_is_spilled(tmp_path):
    """Ends, groups, reductions and contributions are spilled and restored."""
    sums = valid.allreduce()
    for place, schedule in enumerate((valid.merged(), naming_contributions(sums, sums.problem))):
        spill(schedule, tmp_path / str(place))
        found = load_spilled(tmp_path / str(place))
        assert found == schedule
        assert found.kept.arrays.keys() == schedule.kept.arrays.keys()
