"""``taccl run`` as a command: started alone, under mpiexec, interrupted and refused; no process or file
remains."""

import json
import os
import signal
import sys
import time

import pytest

import taccl
from taccl.cli import main
from taccl.errors import ExecutionError
from taccl.runtime.parent_death_guard import remove_segments
from tests.foreign import OURS
from tests.fuzzing import MANY
from tests.runtime.small_programs import first_step, program_for, schedule_for, with_changed_step


@pytest.fixture
def allgather_file(tmp_path):
    """File with an allgather schedule on four ranks."""
    path = tmp_path / "allgather.json"
    taccl.save(schedule_for("allgather"), path)
    return path


@pytest.fixture
def pair_file(tmp_path):
    """File with an allgather schedule on two ranks, whose start takes half the CPU."""
    path = tmp_path / "pair.json"
    taccl.save(schedule_for("allgather", "ring:2"), path)
    return path


@pytest.fixture
def hanging_file(tmp_path):
    """File with a program of two ranks in which one waits for a send that never comes."""
    program = program_for("allgather", "ring:2")
    path = tmp_path / "hanging.xml"
    place = first_step(program, 1, "send")
    taccl.write(with_changed_step(program, 1, place, None), path)
    return path


def said(capsys):
    """(stdout, stderr) printed so far."""
    captured = capsys.readouterr()
    return captured.out, captured.err


@pytest.mark.slow
class TestStarted:
    """Runs whose ranks taccl starts itself."""

    def test_text_and_exit_code_0(self, mpiexec, pair_file, capsys):
        """A correct run exits with 0 and names the collective that it was compared with."""
        assert main(["run", str(pair_file), "--size", "64KB", "--repetitions", "3"]) == 0
        out, _ = said(capsys)
        assert "2 ranks on 1 machine, 64KB of int32" in out
        assert "correct: in all 4 runs every output agrees bit for bit with MPI_Allgather" in out

    def test_modules_of_the_current_folder_are_left_alone(self, mpiexec, pair_file, monkeypatch):
        """Ranks do not import a file of the current folder that is named like a library's module."""
        (pair_file.parent / "json.py").write_text("raise RuntimeError")
        monkeypatch.chdir(pair_file.parent)
        assert main(["run", pair_file.name, "--size", "1KB", "--repetitions", "1"]) == 0

    def test_hang_is_exit_code_1_and_names_ranks(self, marked, hanging_file):
        """A hang exits with 1 and names the waiting ranks and steps on stderr; no process or shared memory
        remains."""
        process = marked.start("run", hanging_file, "--size", "64KB", "--timeout-s", 1)
        _, complaint = process.communicate(timeout=60)
        assert process.returncode == 1
        assert "not done after 1 s" in complaint
        assert "waits for a chunk from rank 1 to rank" in complaint
        assert not marked.alive()
        assert not marked.left_in_memory()

    def test_python_program_of_an_xml_file(self, ranks, capsys):
        """MSCCL XML written by hand runs in place, as the file declares."""
        file = OURS / "msccl-xml" / "allgather-4-direct.xml"
        assert main(["run", str(file), "--size", "100KB", "--repetitions", "1", "--json"]) == 0
        values = json.loads(said(capsys)[0])
        assert (values["ok"], values["in_place"], values["compared_with"]) == (True, True, "MPI_Allgather")


def _left(marked, tmp_path):
    """Shared memory and temporary folders that remain."""
    return [*marked.left_in_memory(), *(tmp_path / "temporary").glob("taccl-run-*")]


@pytest.mark.slow
class TestEnded:
    """Interrupted runs leave nothing behind."""

    @pytest.mark.parametrize(
        ("number", "code"),
        [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGKILL, -signal.SIGKILL)],
        ids=["Ctrl-C", "SIGTERM", "SIGKILL"],
    )
    def test_nothing_is_left(self, number, code, marked, hanging_file, tmp_path):
        """After a signal no process, shared memory or file remains: mpiexec, its proxy and both ranks end."""
        process = marked.start("run", hanging_file, "--size", "64KB", "--timeout-s", 60)
        marked.wait_for(5, process)
        process.send_signal(number)
        process.communicate(timeout=30)
        assert process.returncode == code
        # If the command was killed, the guard ends its ranks and then removes files, within 10 s.
        patience_s = 0 if number == signal.SIGINT else 10
        assert not marked.alive_after(patience_s)
        until = time.monotonic() + patience_s
        while (left := _left(marked, tmp_path)) and time.monotonic() < until:
            time.sleep(0.05)
        assert not left

    def test_a_rank_that_dies_is_reported(self, marked, hanging_file):
        """If one of two ranks is killed, the other ends, and the command says that there is no report."""
        process = marked.start("run", hanging_file, "--size", "64KB", "--timeout-s", 60)
        marked.wait_for(5, process)
        os.kill(max(marked.alive()), signal.SIGKILL)
        _, complaint = process.communicate(timeout=30)
        assert process.returncode == 1
        assert "and no report" in complaint
        assert not marked.alive()


#: Loaded by every Python process: one rank kills itself at a given function of the runtime.
KILLED_AT = """
import os, signal, sys

def look(frame, event, _):
    code = frame.f_code
    if event == "call" and code.co_qualname == {name!r} and "taccl/runtime/" in code.co_filename:
        os.kill(os.getpid(), signal.SIGKILL)

if "taccl.runtime.worker" in sys.orig_argv and os.environ.get("PMI_RANK") == "{rank}":
    sys.setprofile(look)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "name"),
    [
        (0, "import_mpi"),  # the others are in MPI_Init
        (0, "Execution.from_dict"),  # every rank has all that it waits for
        *(
            [
                (1, "_agree_on_job"),
                (1, "import_mpi"),
                (1, "Engine.run"),
                (1, "gathered"),
                (0, "_JobRank._report"),
            ]
            if MANY
            else []
        ),
    ],
)
def test_a_rank_that_is_killed_in_any_phase(rank, name, marked, pair_file, tmp_path, monkeypatch):
    """If a rank is killed in any phase, the run ends with exit code 1 and one error message. No process,
    shared memory or file remains."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(KILLED_AT.format(rank=rank, name=name))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "site"), *filter(None, sys.path)]))
    process = marked.start("run", pair_file, "--size", "64KB", "--repetitions", 1, "--timeout-s", 20)
    out, complaint = process.communicate(timeout=60)
    assert (process.returncode, out, complaint.count("taccl: error: ")) == (1, "", 1), complaint
    assert "and no report" in complaint
    assert not marked.alive()
    assert not marked.left_in_memory()
    assert not list((tmp_path / "temporary").glob("taccl-run-*"))


#: Loaded by every Python process: one rank waits at a given function of the runtime.
WAITS_AT = """
import os, pathlib, sys, time

def look(frame, event, _):
    code = frame.f_code
    if event == "call" and code.co_qualname == {name!r} and "taccl/runtime/" in code.co_filename:
        sys.setprofile(None)
        pathlib.Path({reached!r}).touch()
        time.sleep(60)

if os.environ.get("PMI_RANK") == "{rank}":
    sys.setprofile(look)
"""


@pytest.mark.slow
class TestJoined:
    """Runs whose ranks mpiexec started."""

    def test_rank_0_prints(self, marked, mpiexec, pair_file):
        """Rank 0 alone prints the report, and the exit code is 0."""
        process = marked.start("run", pair_file, "--size", "64KB", command=(mpiexec, "-n", 2))
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert out.count("correct: in all 11 runs") == 1

    def test_wrong_number_of_ranks_is_refused(self, marked, mpiexec, allgather_file):
        """A wrong number of ranks exits with 2 before execution, with one message, and without a hang."""
        process = marked.start("run", allgather_file, command=(mpiexec, "-n", 2))
        out, complaint = process.communicate(timeout=60)
        assert process.returncode == 2
        assert complaint.count("found 2 MPI ranks; the program is for 4; start it with -n 4") == 1
        assert not out
        assert not marked.alive()

    def test_a_file_that_only_rank_0_looks_for(self, marked, mpiexec, tmp_path):
        """A missing file gives one error message and exit code 2 at all ranks."""
        process = marked.start("run", tmp_path / "none.json", command=(mpiexec, "-n", 2))
        _, complaint = process.communicate(timeout=60)
        assert process.returncode == 2
        assert complaint.count("there is no such file") == 1

    def test_hang_is_exit_code_1(self, marked, mpiexec, hanging_file):
        """A hang exits with 1; the JSON report's cause names rank 1, and stderr is empty."""
        words = ("run", hanging_file, "--size", "64KB", "--timeout-s", 1, "--json")
        process = marked.start(*words, command=(mpiexec, "-n", 2))
        out, complaint = process.communicate(timeout=60)
        assert process.returncode == 1
        values = json.loads(out)
        assert not values["ok"]
        assert values["waits"] and "a chunk that is never sent from rank 1" in values["cause"]
        assert not complaint
        assert not marked.alive()

    @pytest.mark.parametrize(("rank", "name"), [(1, "import_mpi"), (0, "_agree_on_job"), (1, "Engine.run")])
    def test_ctrl_c_in_any_phase(self, rank, name, marked, mpiexec, pair_file, tmp_path, monkeypatch):
        """Ctrl-C in any phase ends all ranks, also those blocked in MPI, and no rank prints a traceback."""
        reached = tmp_path / "reached"
        waits = WAITS_AT.format(rank=rank, name=name, reached=str(reached))
        (tmp_path / "sitecustomize.py").write_text(waits)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
        process = marked.start("run", pair_file, "--size", "64KB", command=(mpiexec, "-n", 2))
        marked.wait_until_shared(process)
        while not reached.exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=30)
        assert process.returncode
        assert "Traceback" not in complaint
        assert not marked.alive_after(5)
        left = marked.left_in_memory()
        if name == "import_mpi":  # a rank that is killed while MPI starts leaves what it shares
            time.sleep(0.1)
            remove_segments(map(str, left & marked.left_in_memory()))
        else:
            assert not left

    def test_launcher_of_another_mpi_is_reported(self, marked, allgather_file, monkeypatch):
        """Under Open MPI's launcher, four ranks started but this environment's MPI sees one: the error says
        so."""
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
        monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
        process = marked.start("run", allgather_file)
        _, complaint = process.communicate(timeout=60)
        assert process.returncode == 1
        assert "Open MPI's mpiexec started 4 ranks, but mpi4py uses" in complaint
        assert "which finds 1" in complaint


class TestRefused:
    """Invalid runs are refused before any rank starts."""

    @pytest.fixture(autouse=True)
    def _nothing_starts(self, monkeypatch):
        def start(*_):
            raise AssertionError("ranks were started")

        monkeypatch.setattr("taccl.runtime.launch._start", start)

    @pytest.mark.parametrize(
        ("words", "complaint"),
        [
            (["--ranks", "8"], "--ranks: found 8; the program is for 4 ranks"),
            (["--dtype", "int8"], "--dtype: found 'int8'; expected one of int32"),
            (["--size", "many"], "--size: found 'many'"),
            (["--timeout-s", "0"], "--timeout-s: found '0'; expected a positive number of seconds"),
            (["--repetitions", "0"], "--repetitions: found '0'; expected a positive whole number"),
        ],
    )
    def test_bad_options_are_exit_code_2(self, words, complaint, allgather_file, capsys):
        """The error for a bad option names the option, the value found and the value expected."""
        assert main(["run", str(allgather_file), *words]) == 2
        assert complaint in said(capsys)[1]

    def test_more_memory_than_there_is(self, mpiexec, allgather_file, capsys, monkeypatch):
        """A run that needs more memory than is free is refused, and the error says how much it needs.

        In an allgather of 4 MB, each of 4 ranks needs 3 (1 + 4) chunks of 1 MB, and two queues of 2 chunks:
        76 MB in all.
        """
        monkeypatch.setattr("taccl.synthesis.memory.free_memory_bytes", lambda: 75 * 10**6)
        assert main(["run", str(allgather_file), "--size", "4MB"]) == 2
        assert "need about 76MB of memory; 75MB are free" in said(capsys)[1]

    @pytest.mark.slow
    def test_a_topology_is_no_program(self, capsys):
        """A topology file is refused: a schedule or a program is expected."""
        file = OURS / "nccl-topo" / "two-cpus-topo.xml"
        assert main(["run", str(file)]) == 2
        assert "expected a schedule or a program" in said(capsys)[1]

    def test_in_place_is_a_matter_of_lowering(self, hanging_file, capsys):
        """``--in-place`` is refused for a program, which is already lowered out of place."""
        assert main(["run", str(hanging_file), "--in-place"]) == 2
        assert "is out of place" in said(capsys)[1]

    def test_without_the_extra(self, allgather_file, capsys, monkeypatch):
        """Without mpi4py the error gives the install command, with exit code 1."""
        monkeypatch.setitem(sys.modules, "mpi4py", None)
        assert main(["run", str(allgather_file)]) == 1
        assert "pip install '.[mpi]'" in said(capsys)[1]

    def test_without_a_launcher(self, monkeypatch, tmp_path):
        """Without a launcher beside mpi4py nothing starts; one elsewhere on the PATH could belong to another
        MPI."""
        pytest.importorskip("mpi4py")
        from taccl.runtime import environment

        (tmp_path / "mpiexec").write_text("#!/bin/sh\n")
        (tmp_path / "mpiexec").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr(environment, "_candidates", list)
        with pytest.raises(ExecutionError, match="no mpiexec in .*pip install '.\\[mpi\\]'"):
            environment.find_mpiexec()
