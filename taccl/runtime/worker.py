"""One rank that taccl started: ``python -m taccl.runtime.worker JOB.json`` under mpiexec.

Rank 0 says what there is to say on stdout, in lines of JSON. The pipe that guards it is in the job's folder.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taccl.errors import ExecutionError
from taccl.runtime.environment import import_mpi
from taccl.runtime.job import RunJob
from taccl.runtime.rank_execution import execute_on_rank
from taccl.runtime.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import Callable

    Task = Callable[[Any, Callable[[], dict[str, Any]], Watchdog, Callable[[str], None]], dict[str, Any]]


def main(path: str) -> int:
    """Play one rank's part in the job in a file; returns the exit code."""
    return serve(
        path,
        lambda communicator, request, watchdog, note: execute_on_rank(
            communicator, lambda: RunJob.from_dict(request()), watchdog, note
        ).to_dict(),
    )


def serve(path: str, task: Task) -> int:
    """Play one rank's part in a task, whose request is in a file, and let rank 0 report what it returns."""
    with Watchdog() as watchdog:
        try:
            mpi = import_mpi()
        except ExecutionError as error:
            _say({"error": str(error)})
            return 1
        communicator = mpi.COMM_WORLD
        is_first = communicator.rank == 0
        report = task(
            communicator,
            lambda: json.loads(Path(path).read_text(encoding="utf-8")),
            watchdog,
            lambda text: _say({"note": text}),
        )
        if is_first:
            _say({"report": report})
        watchdog.expect("ending MPI", 0)
        mpi.Finalize()
    return 0


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
