"""Output that cannot be written, and Ctrl-C before any output."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cli.words import SMALL
from tests.fuzzing import thinned
from tests.hardships import no_file_above

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="redirects POSIX descriptors")

TACCL = f"{sys.executable} -m taccl"


def shell(command):
    """Run a bash command line in which ``taccl`` is this installation."""
    whole = f'set -o pipefail; taccl() {{ {TACCL} "$@"; }}; {command}'
    return subprocess.run(["bash", "-c", whole], capture_output=True, text=True, timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", thinned(["--version", "--help", "show ring:4", "bound --help", "show ring:4 --json"], every=2)
)
class TestStdout:
    """Answers that cannot be written to stdout."""

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
    def test_full(self, words):
        """On a full disk the error is one sentence, with the exit code of bad input."""
        done = shell(f"taccl {words} >/dev/full")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert done.stderr.startswith("taccl: error: stdout: the output cannot be written (No space left")

    def test_closed(self, words):
        """If stdout is closed, the error is one sentence, with the exit code of bad input."""
        done = shell(f"taccl {words} >&-")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)

    def test_gone(self, words):
        """If the reader has closed the pipe, there is no error."""
        done = shell(f"taccl {words} | true")
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize("where", ["2>&-", "2>/dev/full", "2>/dev/full >/dev/full"])
def test_stderr_that_cannot_be_written(where):
    """If stderr cannot be written, the exit code still reports the error."""
    done = shell(f"taccl show nosuch {where}")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


@pytest.mark.slow
def test_closed_descriptors_are_not_reused(tmp_path):
    """A file written while stdout is closed holds the schedule and nothing else."""
    path = tmp_path / "out.json"
    assert shell(f"taccl baseline ring {' '.join(SMALL)} -o {path} >&- 2>&- <&-").returncode == 2
    assert shell(f"taccl verify {path}").returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("delay_s", [0.02, 0.05, 0.1, 0.2])
def test_ctrl_c_during_start(delay_s):
    """Ctrl-C before the verb begins ends the process with exit code 130 or SIGINT, without a traceback."""
    code = (
        "import sys\n"
        "from taccl.cli import main\n"
        "print(flush=True)\n"
        "sys.exit(main(['synthesize', '--topology', 'dgx2', '--nodes', '2', '--collective', 'alltoall', "
        "'--size', '32MB']))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdout.readline()
    time.sleep(delay_s)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    # Python ends by the signal if it was interrupted in a library's code; a shell reports both as 130.
    assert process.returncode in (130, -signal.SIGINT)
    assert "Traceback" not in err or err.startswith("Exception ignored in: <function _get_module_lock")


@pytest.mark.parametrize(
    "error",
    [ImportError("numpy is damaged"), SystemError("numpy returned NULL"), KeyboardInterrupt()],
    ids=["import", "other", "itself"],
)
def test_ctrl_c_during_an_import(monkeypatch, error):
    """An import that Ctrl-C interrupts is reported as an interrupt, whatever error the library raises."""
    import builtins

    from taccl.cli import main

    whole = builtins.__import__

    def interrupted(name, *rest):
        if name == "taccl.cli.command":
            with suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            raise error
        return whole(name, *rest)

    monkeypatch.setattr(builtins, "__import__", interrupted)
    assert main(["--version"]) == 130


@pytest.mark.parametrize(
    "error",
    [ImportError("numpy is damaged"), SystemError("numpy returned NULL"), KeyboardInterrupt()],
    ids=["import", "other", "itself"],
)
def test_ctrl_c_that_became_another_error(capsys, monkeypatch, error):
    """An error of a library that Ctrl-C left half imported is reported as an interrupt."""
    from taccl.cli import main

    def interrupted(*_, **__):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise error from None

    monkeypatch.setattr("taccl.cli.verbs.bound.problem_from_options", interrupted)
    assert main(["bound", *SMALL]) == 130
    assert capsys.readouterr().err == "taccl: error: interrupted before any result\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_environment_is_left_alone():
    """Running a command changes no file descriptor of its process."""
    from taccl.cli import main

    before = sorted(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else []
    main(["show", "ring:4"])
    assert (sorted(os.listdir("/proc/self/fd")) if before else []) == before


#: Run the command with a Ctrl-C as the process ends, and print if a last garbage collection ran.
ENDS = """
import atexit, gc, signal, sys
from taccl.cli import main
atexit.register(lambda: print(gc.get_freeze_count() > len(gc.get_objects())))
atexit.register(signal.raise_signal, signal.SIGINT)
sys.exit(main())
"""


@pytest.mark.slow
def test_ctrl_c_at_the_end_of_the_process():
    """Ctrl-C at the end of the process changes nothing, and no final garbage collection runs."""
    done = subprocess.run(
        [sys.executable, "-c", ENDS, "show", "ring:4"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("\nTrue\n")


#: Run several commands, each of which replaces a file; print exit code, file and message of each.
REPLACES = """
import contextlib, io, json, sys
from taccl.cli import main
for name, words in json.loads(sys.argv[1]):
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        code = main(words)
    print(json.dumps([code, open(name).read(), said.getvalue()]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits the size of files as Linux does")
def test_a_disk_that_fills_keeps_old_files(tmp_path, run):
    """On a full disk the message names the given path, the exit code is 2, and the old file stays."""
    schedule, plan = tmp_path / "schedule.json", tmp_path / "plan"
    assert run("baseline", "ring", *SMALL, "-o", schedule)[0] == 0
    once = ("--collective", "allgather", "--sizes", "1KB", "--time-limit", "0.2", "--backend", "greedy")
    assert run("plan", "ring:4", *once, "-o", plan)[0] == 0
    index = plan / "plan.json"
    old = {tmp_path / name: f"old {name}" for name in ("s.json", "a.xml", "page.html")} | {
        index: index.read_text()
    }
    for path, text in old.items():
        path.write_text(text)
    first, xml, page, _ = map(str, old)
    commands = {
        first: [
            "synthesize",
            *SMALL,
            "--backend",
            "greedy",
            "--time-limit",
            "0.5",
            "-o",
            first,
            "--overwrite",
        ],
        xml: ["convert", str(schedule), xml, "--overwrite"],
        page: ["report", str(schedule), "-o", page, "--overwrite", "--time-limit", "0.1"],
        str(index): ["plan", "ring:4", *once, "-o", str(plan), "--overwrite"],
    }
    done = subprocess.run(
        [sys.executable, "-c", REPLACES, json.dumps(list(commands.items()))],
        capture_output=True, text=True, timeout=120, preexec_fn=no_file_above(500),
    )  # fmt: skip
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    for (path, text), (code, left, said) in zip(old.items(), answers, strict=True):
        given = plan if path == index else path
        *progress, complaint = said.splitlines()
        assert (code, left, "error" in "".join(progress)) == (2, text, False)
        assert complaint.startswith(f"taccl: error: {given}: ")
        assert "File too large" in complaint
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["plan", "schedule.json", "s.json", "a.xml", "page.html"]
    )
