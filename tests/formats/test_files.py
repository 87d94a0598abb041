"""Files are written whole or not at all: on a full disk, when killed, and with simultaneous writers."""

import errno
import os
import signal
import subprocess
import sys
import threading

import pytest

import taccl
from taccl.baselines.in_network import in_network
from taccl.baselines.ring import ring
from taccl.errors import InputError
from taccl.formats.files import write_whole
from taccl.formats.registry import write
from taccl.formats.table import FORMATS
from taccl.problem.collectives import allgather
from taccl.topology.registry import parse
from tests.effort import brief_plan

KILLED = """
import os, signal, sys
from taccl.formats.files import write_whole
from tests.effort import brief_plan
os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
write_whole(sys.argv[1], "new" * 1000, overwrite=True)
"""
SCHEDULE = ring(taccl.make_problem(parse("ring:4"), allgather(4), size_bytes=4))


@pytest.fixture
def full_disk(monkeypatch):
    """Make every write of a file fail as on a full disk."""

    def fail(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)


@pytest.mark.filterwarnings("ignore::taccl.errors.LossyConversionWarning")
@pytest.mark.parametrize(("name", "kind"), [(each.name, each.holds) for each in FORMATS if each.dump])
def test_a_full_disk_leaves_no_file(name, kind, tmp_path, full_disk):
    """On a full disk every format's writer raises an error, and neither a partial file nor a draft remains."""
    problem = SCHEDULE.problem
    step = taccl.Workload("sum", 4).input("x", (8,), layout="partial").then("y", "allreduce", "x")
    thing = {"topology": problem.topology, "problem": problem, "workload": step}.get(kind, SCHEDULE)
    if name == "switch-job":  # only for sums that a switch makes
        topology = taccl.topologies.in_network(4)
        thing = in_network(taccl.make_problem(topology, "allreduce", size_bytes=4096))
    with pytest.raises(InputError, match="cannot be written .No space left on device."):
        write(thing, tmp_path / "file", format=name)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_the_old_file(tmp_path, full_disk):
    """On a full disk the old file stays unchanged."""
    (tmp_path / "file").write_text("old")
    with pytest.raises(InputError, match="No space left"):
        write_whole(tmp_path / "file", "new", overwrite=True)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


@pytest.mark.slow
def test_a_full_disk_leaves_no_plan(tmp_path, full_disk):
    """On a full disk neither a plan's folder nor a draft of it remains."""
    plan = brief_plan("ring:2", "allgather", sizes=("1KB", "2KB"), backend="greedy")
    with pytest.raises(InputError, match="No space left"):
        plan.save(tmp_path / "plan")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_kill_leaves_the_old_file(tmp_path):
    """A process killed while writing leaves at most a hidden draft, which blocks no later write."""
    (tmp_path / "file").write_text("old")
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "file")])
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "file").read_text() == "old"
    assert all(path.name.startswith(".file.") for path in tmp_path.iterdir() if path.name != "file")
    write_whole(tmp_path / "file", "newer", overwrite=True)
    assert (tmp_path / "file").read_text() == "newer"


@pytest.mark.parametrize("overwrite", [False, True])
def test_of_many_who_write_at_once_one_is_read(tmp_path, overwrite):
    """After simultaneous writes the file is complete and from one writer, without overwrite the only success."""
    start, done = threading.Barrier(8), []

    def put(number):
        start.wait()
        try:
            write_whole(tmp_path / "file", str(number) * 100_000, overwrite=overwrite)
        except InputError as error:
            assert "the file exists" in str(error)
        else:
            done.append(number)

    threads = [threading.Thread(target=put, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = (tmp_path / "file").read_text()
    assert found in {str(number) * 100_000 for number in done}
    assert len(done) == (8 if overwrite else 1)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
