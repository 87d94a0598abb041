"""Start ranks on this machine, watch them, and end them all in any case."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from taccl import errors
from taccl.errors import ExecutionError, InputError, TacclError
from taccl.runtime.environment import find_mpiexec
from taccl.runtime.parent_death_guard import MARK, guarded
from taccl.runtime.worker import GRACE_S

#: Max seconds for ranks to start, apart from the caller's time limit; many ranks on few cores take seconds.
_START_S = 120.0
#: Max ranks to start on this machine: each is a process of about 60 MB.
_MOST_RANKS = 1024
_TERMINATE_S = 1.0
_KILL_S = 5.0
_POLL_S = 0.02
_NUM_STDERR_LINES = 8
#: `_STDOUT`: name of the file for the stdout of mpiexec and the ranks, in the folder of the job.
#: `_STDERR`: name of the file for the stderr of mpiexec and the ranks, in the same folder.
_STDOUT, _STDERR = "stdout", "stderr"


def launched(
    worker: str,
    num_ranks: int,
    request: dict[str, Any],
    *,
    timeout_s: float,
    note: Callable[[str], None] = lambda _: None,
    launcher: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run a module as ranks on this machine, with a request in a file; return the report of rank 0.

    - `timeout_s`: Seconds for which rank 0 may be silent, besides a grace period.
    - `launcher`: Command that starts the ranks; by default ``mpiexec -n`` of this environment.
    - `environment`: Environment variables of the ranks, in addition to those of this process.

    Raises `InputError` for too many ranks without a launcher.
    """
    if not launcher and num_ranks > _MOST_RANKS:
        said = f"found {num_ranks} to start here; expected at most {_MOST_RANKS}, as each is a process"
        raise InputError(f"{said}: start more on several hosts, with mpiexec or srun", where="ranks")
    start = launcher or [str(find_mpiexec()), "-n", str(num_ranks)]
    if not launcher:
        note(f"starting {num_ranks} ranks")
    folder = Path(tempfile.mkdtemp(prefix="taccl-run-"))
    with guarded(folder):
        path = folder / "job.json"
        path.write_text(json.dumps(request), encoding="utf-8")
        process = _start(start, path, worker, environment or {})
        try:
            return _attend(process, folder, timeout_s, note)
        finally:  # the guard process kills remaining ranks
            process.terminate()
            try:
                process.wait(_TERMINATE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _start(
    start: Sequence[str], request: Path, worker: str, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    # The ranks find the modules that this process finds, and none in the current folder.
    python = [sys.executable, "-P", "-m", worker]
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    command = [*start, *python, str(request)]
    # Each rank computes in one thread, as cores are few; settings of the user take precedence.
    few_threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    folder = request.parent
    try:
        # Output goes to files, as mpiexec ends the ranks before they can clean up if a pipe breaks.
        with open(folder / _STDOUT, "wb") as output, open(folder / _STDERR, "wb") as errors:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,  # this process alone handles Ctrl-C
                restore_signals=False,  # SIGPIPE stays ignored: else it ends mpiexec once an MPICH proxy ends
                env={**few_threads, **os.environ, **environment, "PYTHONPATH": path, MARK: str(folder)},
            )
    except OSError as error:
        raise ExecutionError(f"{start[0]} cannot be started ({error.strerror or error})") from None


def _attend(
    process: subprocess.Popen[bytes], folder: Path, timeout_s: float, note: Callable[[str], None]
) -> dict[str, Any]:
    """Pass on messages of rank 0, and return its final report."""
    patience_s, heard_at = _START_S, time.monotonic()
    with open(folder / _STDOUT, "rb") as stream:
        part = b""
        while True:
            has_ended = process.poll() is not None  # checked before reading, so that no message is missed
            *lines, part = (part + stream.read()).split(b"\n")
            for message in map(_parsed, lines):
                if "note" in message:
                    note(message["note"])
                if "error" in message:
                    raise ExecutionError(f"the ranks cannot start: {message['error']}")
                if "failure" in message:
                    raise _failure(**message["failure"])
                if "report" in message:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(_KILL_S)
                    report: dict[str, Any] = message["report"]
                    return report
                patience_s, heard_at = timeout_s + 2 * GRACE_S, time.monotonic()
            if lines:
                continue
            if has_ended:
                raise ExecutionError(
                    f"the ranks ended with exit code {process.returncode} and no report{_last_errors(folder)}"
                )
            if time.monotonic() - heard_at > patience_s:
                raise ExecutionError(
                    f"the ranks were silent for {patience_s:g} s, and are stopped{_last_errors(folder)}"
                )
            time.sleep(_POLL_S)


def _failure(kind: str, message: str, where: str | None) -> TacclError:
    """Error that ended the task at rank 0."""
    made: Any = getattr(errors, kind, ExecutionError)
    found: TacclError = made(message, where=where) if issubclass(made, InputError) else made(message)
    return found


def _last_errors(folder: Path) -> str:
    """The last lines that any rank wrote on stderr."""
    text = (folder / _STDERR).read_text(encoding="utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "".join(f"\n  {line}" for line in lines[-_NUM_STDERR_LINES:])


def _parsed(line: bytes) -> dict[str, Any]:
    """Message of rank 0 in a line; empty for other output, such as a library's."""
    try:
        message = json.loads(line)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}
