"""MPI ranks that serve one job after another, as their start takes most of a small job's CPU (0.2 s per rank).

``mpiexec -n N rank_session.py FOLDER`` runs the ranks. Each reads jobs from a pipe in the folder that is named by its number,
and plays the rank that taccl would start for the job: ``python -m WORKER REQUEST``.
"""

import importlib
import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

from taccl.errors import ExecutionError


class RankSession:
    """A session, whose ranks start with its first job."""

    def __init__(self, mpiexec, folder, num_ranks):
        self.folder, self._pipes = Path(folder), []
        self._command = [mpiexec, "-n", str(num_ranks), sys.executable, "-P", __file__, str(folder)]
        self._num_ranks, self._process = num_ranks, None

    @contextmanager
    def serving(self):
        """Context in which taccl's runs are jobs of this session."""
        import pytest  # not loaded by the ranks

        with pytest.MonkeyPatch.context() as patch:
            for module in ("launch", "step"):
                patch.setattr(f"taccl.runtime.{module}.launched", self.launched)
            yield

    def launched(self, worker, num_ranks, request, *, timeout_s, note=lambda _: None):
        """Report of a job's rank 0, as of ranks that were started for it; the worker limits the time."""
        if self._process is None:
            self._start()
        path = self.folder / "job.json"
        path.write_text(json.dumps(request), encoding="utf-8")
        job = json.dumps([worker, num_ranks, str(path)]) + "\n"
        for pipe in self._pipes[:num_ranks]:
            os.write(pipe, job.encode())
        for line in self._process.stdout:
            message = json.loads(line)
            if "note" in message:
                note(message["note"])
            if "report" in message:
                return message["report"]
        raise ExecutionError(f"the ranks ended: {self._said()}")

    def close(self):
        """Let the ranks end."""
        for pipe in self._pipes:
            os.close(pipe)
        if self._process is not None:
            self._process.communicate(timeout=60)

    def _start(self):
        paths = [self.folder / str(rank) for rank in range(self._num_ranks)]
        for path in paths:
            os.mkfifo(path)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"}
        with (self.folder / "stderr").open("wb") as errors:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
            )
        self._pipes = [self._opened(path) for path in paths]

    def _opened(self, path):
        """A pipe's end for writing, once a rank reads from it."""
        while True:
            try:
                return os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            except OSError:
                assert self._process.poll() is None, self._said()
                time.sleep(0.02)

    def _said(self):
        return (self.folder / "stderr").read_text(encoding="utf-8", errors="replace")


def _serve(folder):
    """Play one rank of each job that comes."""
    from mpi4py import MPI

    from taccl.runtime import worker as started
    from taccl.runtime.parent_death_guard import remove_segments, segments_of

    world = MPI.COMM_WORLD
    world.Barrier()
    remove_segments(segments_of(os.getpid()))  # all have them: other tests look for segments that are left
    with open(f"{folder}/{world.rank}", encoding="utf-8") as jobs:
        for job in jobs:
            worker, num_ranks, path = json.loads(job)
            members = world.group.Incl(range(num_ranks))
            communicator = world.Create_group(members)
            started.import_mpi = lambda of=communicator: SimpleNamespace(COMM_WORLD=of, Finalize=of.Free)
            importlib.import_module(worker).main(path)


if __name__ == "__main__":
    _serve(sys.argv[1])
