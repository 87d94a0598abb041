"""``taccl run --engine torch``: own gloo ranks and torchrun, reports, logs, and a killed rank."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import taccl
from taccl.cli import main
from taccl.formats.torch.rounds import rounds_of
from taccl.measure.logs import log_of_text, read_log
from taccl.runtime.environment import launched_by
from taccl.runtime.torch_report import TimedSize, TorchReport
from tests.pytorch import PYTHON, environment, needs_torch
from tests.runtime.small_programs import schedule_for

TIMED = (TimedSize(1000, 250, (110.0,), (50.0,), 0), TimedSize(100_000, 25_000, (200.0,), (60.0,), 0))


def report_of(*sizes, **options):
    given = {
        "program": "p", "collective": "allreduce", "num_ranks": 2, "num_rounds": 10, "root": -1,
        "dtype": "float32", "backend": "nccl", "version": "2.13.0", "busbw_factor": 1.0, "crowded": False,
        "devices": (("a", 0, "NVIDIA H100"), ("b", 0, "NVIDIA H100")), **options,
    }  # fmt: skip
    return TorchReport(**given, sizes=sizes)


@pytest.fixture
def file(tmp_path):
    """A schedule of an allreduce on two ranks."""
    taccl.save(schedule_for("allreduce", "ring:2"), tmp_path / "two.json")
    return tmp_path / "two.json"


def ran(*words, command=("-m", "taccl")):
    """Result of a command in the environment with PyTorch."""
    words = [PYTHON, *command, *map(str, words)]
    return subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=300)


def test_a_log_holds_the_stock_times():
    """`fit` and `diagnose` read sizes, times, ranks, nodes and GPUs of the stock collective from a log."""
    log = log_of_text(report_of(*TIMED).log(), "stock.log")
    [series] = log.series
    assert (series.collective, series.num_ranks, series.num_nodes) == ("allreduce", 2, 2)
    assert (series.size_bytes, series.times_us) == ((1000, 100_000), (50.0, 60.0))
    assert log.gpus == {"NVIDIA H100"}


@pytest.mark.parametrize("name", ["allgather", "reduce-scatter", "alltoall", "broadcast", "reduce", "gather"])
def test_a_log_names_its_collective(name):
    """A log names its collective as nccl-tests does."""
    factor = 1.0 if name in ("broadcast", "reduce") else 0.5
    [series] = log_of_text(report_of(*TIMED, collective=name, busbw_factor=factor).log(), "a.log").series
    assert series.collective == name


def test_the_cost_of_a_round():
    """The cost of a round is fitted to measured times of two sizes.

    The measured times of 10 rounds are 110 us at 1000 B and 200 us at 100 kB. They fit 109.09 us + size / 1.1
    GB/s, so 10.909 us per round.
    """
    assert report_of(*TIMED).round_us() == pytest.approx(10.909, rel=1e-3)
    assert report_of(TIMED[0]).round_us() is None


@pytest.fixture
def log(tmp_path):
    """A log of a schedule of 10 rounds that moves the size once: 10 us per round and 1 ns per byte."""
    sizes = [TimedSize(size, size // 4, (100.0 + size / 1000,), (50.0,), 0) for size in (1000, 100_000)]
    (tmp_path / "ring.log").write_text(report_of(*sizes, volume=1.0).log())
    return tmp_path / "ring.log"


def test_a_log_predicts_other_schedules(log):
    """The costs of a log predict schedules with other numbers of rounds.

    An allreduce on 2 ranks has 2 rounds of half the data, or 1 of all: 10 us per round, 1 us for 1000 bytes.
    """
    schedule = schedule_for("allreduce", "ring:2")
    found = rounds_of(taccl.lower(schedule))
    predicted = taccl.predict_run(schedule, "1KB", str(log))
    assert predicted.time_us == pytest.approx(10 * found.num_rounds + found.volume, rel=1e-6)
    assert (predicted.algorithm, predicted.source) == (
        f"{found.num_rounds} rounds",
        f"fitted to {log} (nccl)",
    )


def test_the_volume_of_rounds():
    """The volume of rounds is the share of the data that each rank receives in them.

    An allgather on a ring of 4 delivers 2 of 4 blocks to each rank in round 1, and 1 in round 2: 3/4 of the
    data.
    """
    assert rounds_of(taccl.lower(schedule_for("allgather", "ring:4"))).volume == 0.75


def test_logs_that_predict_nothing_are_refused(log, tmp_path):
    """Logs without a report, with one size, of other numbers of ranks, or of mixed kinds of ranks are
    refused."""
    two, four = (schedule_for("allreduce", f"ring:{n}") for n in (2, 4))
    (tmp_path / "plain.log").write_text("# Using devices\n")
    (tmp_path / "spoilt.log").write_text("# taccl {}\n")
    (tmp_path / "one.log").write_text(report_of(TIMED[0]).log())
    (tmp_path / "gloo.log").write_text(report_of(*TIMED, backend="gloo").log())
    for schedule, names, said in (
        (two, ["plain.log"], "found no report; expected a log of `taccl run --engine torch --log FILE`"),
        (two, ["spoilt.log"], "found a report that cannot be read"),
        (two, ["one.log"], "found one size; expected two or more: run with --sizes"),
        (four, ["ring.log"], "found logs of 2 ranks; the schedule is for 4"),
        (two, ["ring.log", "gloo.log"], "found 2 ranks of gloo"),
    ):
        with pytest.raises(taccl.TacclError, match=said):
            taccl.predict_run(schedule, "1KB", [tmp_path / name for name in names])


def test_wrong_elements_are_a_failure():
    """A report with wrong elements fails, and names their number and the size."""
    report = report_of(replace(TIMED[0], num_wrong=3))
    assert not report.ok
    assert report.failure() == "3 elements of 1KB differ from those of the stock all_reduce"
    with pytest.raises(taccl.errors.VerificationError):
        report.raise_if_failed()


def test_torchrun_is_a_launcher():
    """torchrun is recognised by its run ID; RANK alone is not enough, since other tools set it."""
    given = {"RANK": "1", "WORLD_SIZE": "4"}
    assert launched_by(given) is None
    found = launched_by({**given, "TORCHELASTIC_RUN_ID": "none"})
    assert (found.launcher, found.rank, found.num_ranks) == ("torchrun", 1, 4)


def test_without_pytorch_the_error_says_what_to_install(file, capsys, monkeypatch):
    """Without PyTorch the error is one sentence with the install command, without a traceback."""
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["run", str(file), "--engine", "torch"]) == 1
    assert "pip install '.[torch]'" in capsys.readouterr().err


@needs_torch
@pytest.mark.slow
def test_run_starts_its_own_ranks(file, tmp_path):
    """Two ranks of gloo agree with the stock collective bit for bit; the log is read back."""
    words = ("run", file, "--engine", "torch", "--sizes", "1KB,40KB", "--repetitions", 2, "--json")
    done = ran(*words, "--dtype", "bfloat16", "--log", tmp_path / "stock.log")
    assert done.returncode == 0, done.stderr
    values = json.loads(done.stdout)
    assert (values["ok"], values["backend"], values["num_ranks"]) == (True, "gloo", 2)
    assert [each["size_bytes"] for each in values["sizes"]] == [1000, 40_000]
    assert all(len(each["times_us"]) == 2 for each in values["sizes"])
    [series] = read_log(tmp_path / "stock.log").series
    assert (series.collective, series.num_ranks, series.size_bytes) == ("allreduce", 2, (1000, 40_000))


@needs_torch
@pytest.mark.slow
def test_ranks_of_torchrun(file):
    """torchrun starts the ranks; rank 0 alone prints the report."""
    start = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "taccl")
    done = ran("run", file, "--engine", "torch", "--size", "1KB", "--repetitions", 1, command=start)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("correct: every output agrees bit for bit with all_reduce") == 1


@needs_torch
@pytest.mark.slow
def test_a_killed_rank_ends_the_run(file):
    """If rank 1 is killed, the message names it, and no process is left."""
    words = [PYTHON, "-m", "taccl", "run", str(file), "--engine", "torch", "--repetitions", "1000000"]
    run = subprocess.Popen(
        words,
        env={**environment(), "TACCL_TEST_OF": str(file)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while not (found := [pid for pid in ranks(file) if has_variable(pid, b"RANK=1")]):
            assert run.poll() is None, run.stderr.read()
            time.sleep(0.1)
        os.kill(found[0], signal.SIGKILL)
        _, complaint = run.communicate(timeout=120)
    finally:
        run.kill()
    assert run.returncode == 1
    assert "rank 1 ended with exit code -9" in complaint
    assert not ranks(file)


def ranks(file):
    """Processes that run a rank of the engine for a test, found by the test's `file`."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = each.read_bytes().split(b"\0")
        except OSError:
            continue
        pid = int(each.parent.name)
        is_rank = b"taccl.runtime.torch_run" in words and b"taccl.runtime.rank_starter" not in words
        if is_rank and has_variable(pid, f"TACCL_TEST_OF={file}".encode()):
            found.append(pid)
    return found


def has_variable(pid, setting):
    try:
        return setting in (Path("/proc") / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
