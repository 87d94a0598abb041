"""One rank that taccl started: ``python -m taccl.runtime.worker JOB.json`` under mpiexec.

Rank 0 reports on stdout, in lines of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from taccl.errors import ExecutionError, TacclError
from taccl.runtime.environment import import_mpi
from taccl.runtime.job import RunJob
from taccl.runtime.rank_execution import execute_on_rank

Task = Callable[[Any, Callable[[], dict[str, Any]], "Watchdog", Callable[[str], None]], dict[str, Any]]


#: Seconds beyond a time limit for start, cleanup and report.
GRACE_S = 30.0
_LOOK_EVERY_S = 1.0
_EXIT_CODE = 1


def main(path: str) -> int:
    """Run one rank of the job in a file; return the exit code."""
    return serve(
        path,
        lambda communicator, request, watchdog, note: execute_on_rank(
            communicator, lambda: RunJob.from_dict(request()), watchdog, note
        ).to_dict(),
    )


def serve(path: str, task: Task) -> int:
    """Run one rank of a task, whose request is in a file; rank 0 prints the report that `task` returns.

    An error of this library at rank 0 is printed, too, for `taccl.runtime.launch.launched` to raise.
    """
    with Watchdog() as watchdog:
        try:
            mpi = import_mpi()
        except ExecutionError as error:
            _say({"error": str(error)})
            return 1
        communicator = mpi.COMM_WORLD
        is_first = communicator.rank == 0
        try:
            report = task(
                communicator,
                lambda: json.loads(Path(path).read_text(encoding="utf-8")),
                watchdog,
                lambda text: _say({"note": text}),
            )
        except TacclError as error:
            if is_first:
                message, where = getattr(error, "message", str(error)), getattr(error, "where", None)
                _say({"failure": {"kind": type(error).__name__, "message": message, "where": where}})
            raise
        if is_first:
            _say({"report": report})
        watchdog.expect("ending MPI", 0)
        mpi.Finalize()
    return 0


class Watchdog:
    """Thread that ends the process if a stage exceeds its time limit, or if the parent process is gone.

    A blocked MPI call cannot be interrupted: it returns only if every rank takes part.
    """

    def __init__(self) -> None:
        self._what, self._until = "", float("inf")
        self._limit_s = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def expect(self, what: str, limit_s: float | None) -> None:
        """Set the current stage and its time limit in seconds; None for no limit."""
        self._what = what
        self._limit_s = float("inf") if limit_s is None else limit_s + GRACE_S
        self._until = time.monotonic() + self._limit_s

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()

    def _watch(self) -> None:
        parent = os.getppid()
        while not self._over.wait(_LOOK_EVERY_S):
            if os.getppid() != parent:
                os._exit(_EXIT_CODE)
            if time.monotonic() > self._until:
                sys.stderr.write(
                    f"taccl: error: {self._what} did not end within {self._limit_s:g} s; another rank may "
                    "have died\n"
                )
                sys.stderr.flush()
                os._exit(_EXIT_CODE)


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
