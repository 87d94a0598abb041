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

KILLED = """
import os, signal, sys
from taccl.formats.files import write_whole

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


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none/s.json", "there is no folder"),
        (".", "is a folder"),
        ("a\0b", None),
        ("n" * 5000, None),
        ("/dev/null", "is not a regular file"),
    ],  # fmt: skip
    ids=[
        "no folder is made on the way",
        "a folder is never replaced",
        "a NUL byte",
        "a long name",
        "a device",
    ],
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_path_that_cannot_be_written_is_an_input_error(tmp_path, name, message, overwrite):
    """If a path cannot be written, an error gives the reason, and no file remains."""
    with pytest.raises(InputError, match=message):
        write_whole(tmp_path / name, "text", overwrite=overwrite)
    assert os.listdir(tmp_path) == []


def test_a_dash_is_no_name_of_a_file(tmp_path, monkeypatch):
    """The name by which other programs mean stdout is refused, unless it is written as a path."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="is not a file; give the path of a file, or ./- for this name"):
        write_whole("-", "text")
    write_whole("./-", "text")
    assert os.listdir(tmp_path) == ["-"]


def test_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    """A write cut short by a full disk or Ctrl-C leaves the old file whole and no draft."""
    path = tmp_path / "s.json"
    path.write_text("old")
    for fault, expected in (
        (OSError(28, "No space left on device"), InputError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ):

        def fail(_, fault=fault):
            raise fault

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(expected):
            write_whole(path, "new" * 1000, overwrite=True)
        assert path.read_text() == "old"
        assert os.listdir(tmp_path) == ["s.json"]


def test_write_without_hard_links(tmp_path, monkeypatch):
    """Files are also written on file systems without hard links."""

    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    write_whole(tmp_path / "s.json", b"bytes")
    assert (tmp_path / "s.json").read_bytes() == b"bytes"
    with pytest.raises(InputError, match="the file exists"):
        write_whole(tmp_path / "s.json", b"other")


def test_symbolic_link_stays_one(tmp_path):
    """Overwriting through a symbolic link replaces its target."""
    (tmp_path / "real").write_text("old")
    (tmp_path / "alias").symlink_to("real")
    write_whole(tmp_path / "alias", "new", overwrite=True)
    assert (tmp_path / "alias").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_new_file_has_an_ordinary_mode(tmp_path):
    """A new file's mode follows the umask."""
    write_whole(tmp_path / "a", "text")
    (tmp_path / "b").write_text("text")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_replaced_file_keeps_its_mode(tmp_path):
    """Overwriting keeps the mode of a private file."""
    path = tmp_path / "s.json"
    path.write_text("old")
    path.chmod(0o600)
    write_whole(path, "new", overwrite=True)
    assert path.stat().st_mode & 0o777 == 0o600
