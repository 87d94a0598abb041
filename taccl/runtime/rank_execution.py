"""Joint work of the ranks: agree on a job, execute it and MPI's own collective, and report."""

from __future__ import annotations

import json
import os
import platform
import time
import traceback
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from taccl import errors
from taccl._internal.deadline import num_cores
from taccl._internal.units import format_count
from taccl.errors import ExecutionError, InputError
from taccl.program.checks import fewest_chunks
from taccl.program.layout import layouts_of
from taccl.runtime.buffers import Buffers, Data
from taccl.runtime.engine import Engine, Stuck
from taccl.runtime.job import RunJob
from taccl.runtime.parent_death_guard import remove_segments, segments_of
from taccl.runtime.reference import COMPUTED, REAL_SUMS, Counterpart, counterpart, expected_output, find_wrong
from taccl.runtime.report import Execution, WrongChunk, was_moving

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from taccl.runtime.worker import Watchdog

_POLL_S = 5e-4
#: Max wrong chunks that a rank reports one by one.
_MAX_WRONG_PER_RANK = 20


def execute_on_rank(
    communicator: Any,
    make: Callable[[], RunJob],
    watchdog: Watchdog,
    note: Callable[[str], None] = lambda _: None,
) -> Execution:
    """Execute a job with all ranks of a communicator; called by each of them.

    - `make`: Function that returns the job; called at rank 0 only.
    - `note`: Called with messages on the progress, at rank 0.

    Returns
    -------
    Execution
        The same at every rank.

    Raises at every rank the error that `make` raised at rank 0. `InputError` at every rank, if the
    program is for another number of ranks.
    """
    job = _agree_on_job(communicator, make, watchdog)
    try:
        watchdog.expect("getting buffers ready", job.timeout_s)
        mine = communicator.Dup()
        rank = _JobRank(mine, job, watchdog, note if communicator.rank == 0 else lambda _: None)
        report = broadcast(mine, rank.run())
        mine.Free()
    except BaseException:
        # If one rank ended alone, the others would wait forever, so end all of them.
        # MPICH does not remove its shared memory.
        remove_segments(segments_of(os.getpid()))
        traceback.print_exc()
        communicator.Abort(1)
        raise
    return Execution.from_dict(report)


def _agree_on_job(communicator: Any, make: Callable[[], RunJob], watchdog: Watchdog) -> RunJob:
    def checked() -> dict[str, Any]:
        job = make()
        if job.program.num_ranks != communicator.size:
            raise InputError(
                f"found {format_count(communicator.size, 'MPI rank')}; the program is for "
                f"{job.program.num_ranks}; start it with -n {job.program.num_ranks}",
                where="mpiexec",
            )
        return job.to_dict()

    watchdog.expect("agreeing on the job", None)
    return RunJob.from_dict(agreed(communicator, checked))


class _JobRank:
    """One rank that executes a job: runs the program and MPI's own collective, and compares outputs."""

    def __init__(
        self, communicator: Any, job: RunJob, watchdog: Watchdog, note: Callable[[str], None]
    ) -> None:
        self.communicator, self.rank, self.job = communicator, communicator.rank, job
        self.watchdog, self.note = watchdog, note
        self.num_hosts, self.crowded = placing(communicator)
        self.buffers = Buffers(job, self.rank)
        self.counterpart: Counterpart | None = None
        self.tolerance, self.scale, self.compared_with = 0.0, 1.0, ""
        if job.program.collective is not None:
            data = Data(job)
            self.tolerance, self.scale = data.tolerance, data.scale
            # MPI has no collective for fixed point: compare such sums with sums of the real numbers.
            self.counterpart = None if data.is_fixed else counterpart(job.program.collective)
            other = REAL_SUMS if data.is_fixed else COMPUTED
            self.compared_with = self.counterpart.name if self.counterpart else other
        self.wrong: list[WrongChunk] = []
        self.num_wrong = 0

    def run(self) -> dict[str, Any] | None:
        """Execute the job; return the plain values of an `Execution` at rank 0, and None at other ranks."""
        stuck: Stuck | None = None
        times: list[float] = []
        mpi_times: list[float] = []
        expected: NDArray[Any] | None = None
        if self.counterpart is not None:
            self.note(f"running {self.counterpart.name}")
            expected, mpi_times = self._run_mpi(self.counterpart)
        elif self.job.program.collective is not None:
            self.note("computing the expected outputs")
            self._expect("computing the expected outputs")
            expected = expected_output(self.job, self.rank)
        program, memory = self.job.program, self.buffers.memory
        chunks = fewest_chunks(program, self.job.size_bytes)
        engine = Engine(program, self.rank, memory, self.communicator, chunks=chunks, crowded=self.crowded)
        for run in range(1 + self.job.repetitions):
            self.note(f"run {run} of {self.job.repetitions}" if run else "warming up")
            self._expect(f"run {run}")
            self.buffers.restore()
            self.communicator.Barrier()
            began = time.perf_counter()
            stuck = engine.run(self.job.timeout_s)
            took_us = (time.perf_counter() - began) * 1e6
            if self._any(stuck is not None):
                self._expect("giving up")
                engine.abandon()
                break
            if run:
                times.append(took_us)
            if expected is not None:
                self._judge(expected, run)
        self._expect("reporting")
        outcome = {
            "wrong": [asdict(each) for each in self.wrong[:_MAX_WRONG_PER_RANK]],
            "num_wrong": self.num_wrong,
            "waits": [] if stuck is None else [asdict(each) for each in stuck.waits],
            "idle_s": None if stuck is None else stuck.idle_s,
            "times": times,
            "mpi_times": mpi_times,
        }
        reports = gathered(self.communicator, outcome)
        return None if reports is None else self._report(reports)

    def _expect(self, what: str) -> None:
        self.watchdog.expect(what, self.job.timeout_s)

    def _run_mpi(self, own: Counterpart) -> tuple[NDArray[Any], list[float]]:
        """Run MPI's own collective; return its output, and microseconds of each run after the first."""
        num_outputs = len(layouts_of(self.job.program)[self.rank].outputs)
        output = np.empty((num_outputs, self.job.elements), self.job.wire)
        times = []
        for _ in range(1 + self.job.repetitions):
            self._expect(own.name)
            self.communicator.Barrier()
            began = time.perf_counter()
            own.run(self.communicator, self.buffers.given, output)
            times.append((time.perf_counter() - began) * 1e6)
        return output, times[1:]

    def _judge(self, expected: NDArray[Any], run: int) -> None:
        wrong = find_wrong(
            self.job, self.rank, self.buffers, expected, tolerance=self.tolerance, run=run,
            by=self.counterpart.name if self.counterpart is not None else "what is due",
        )  # fmt: skip
        known = {(each.buffer, each.slot) for each in self.wrong}
        new = [each for each in wrong if (each.buffer, each.slot) not in known]
        self.wrong += new
        self.num_wrong += len(new)

    def _any(self, mine: bool) -> bool:
        from mpi4py import MPI

        answer = np.array([0], dtype=np.int32)
        patiently(self.communicator.Iallreduce(np.array([mine], dtype=np.int32), answer, MPI.MAX))
        return bool(answer[0])

    def _report(self, reports: list[dict[str, Any]]) -> dict[str, Any]:
        job, program, collective = self.job, self.job.program, self.job.program.collective
        idle_s = min((each["idle_s"] for each in reports if each["idle_s"] is not None), default=0.0)
        waits = [wait for report in reports for wait in report["waits"]]
        cause = ""
        if waits and not was_moving(idle_s, job.timeout_s):
            from taccl.program.interpret import interpret  # imported here, as ranks seldom need it

            faults = interpret(replace(program, sizes_bytes=(job.size_bytes,) * 2)).faults
            cause = next((fault.message for fault in faults if fault.kind == "deadlock"), "")

        def slowest(name: str) -> dict[str, Any] | None:
            """Time of the slowest rank in every repetition; None if nothing was timed."""
            each_us = [max(times) for times in zip(*(report[name] for report in reports), strict=True)]
            return {"each_us": each_us} if each_us else None

        return {
            "program": program.name, "num_ranks": program.num_ranks, "in_place": program.in_place,
            "collective": "" if collective is None else collective.name,
            "busbw_factor": 1.0 if collective is None else collective.busbw_factor,
            "num_hosts": self.num_hosts, "crowded": self.crowded, "dtype": job.dtype,
            "size_bytes": job.size_bytes, "timeout_s": job.timeout_s, "versions": _versions(),
            "compared_with": "" if waits else self.compared_with, "tolerance": self.tolerance / self.scale,
            "num_wrong": sum(each["num_wrong"] for each in reports),
            "wrong": [wrong for report in reports for wrong in report["wrong"]],
            "waits": waits, "cause": cause, "idle_s": idle_s,
            "times": None if waits else slowest("times"), "mpi_times": slowest("mpi_times"),
        }  # fmt: skip


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    import mpi4py

    try:
        own = version("taccl")
    except PackageNotFoundError:  # taccl runs from a source tree that was never installed
        own = "unknown"
    library = " ".join(mpi4py.MPI.Get_library_version().partition("\n")[0].partition(",")[0].split())
    versions = {"mpi4py": mpi4py.__version__, "numpy": np.__version__, "python": platform.python_version()}
    return {"mpi": library.rstrip("\0"), **versions, "taccl": own}


def placing(communicator: Any) -> tuple[int, bool]:
    """(number of machines on which ranks run, True if ranks of a machine share cores)."""
    from mpi4py import MPI

    local = communicator.Split_type(MPI.COMM_TYPE_SHARED)
    found = np.array([local.rank == 0, local.size > num_cores()], dtype=np.int32)
    local.Free()
    communicator.Allreduce(MPI.IN_PLACE, found)
    return int(found[0]), bool(found[1])


def broadcast(communicator: Any, value: Any) -> Any:
    """Broadcast rank 0's plain values to all ranks."""
    content = json.dumps(value).encode() if communicator.rank == 0 else b""
    length = np.array([len(content)], dtype=np.int64)
    patiently(communicator.Ibcast(length))
    buffer = bytearray(content or int(length[0]))
    patiently(communicator.Ibcast(buffer))
    return json.loads(buffer)


def agreed(communicator: Any, make: Callable[[], Any]) -> Any:
    """Call `make` at rank 0, and broadcast its plain values; an error there is raised at every rank."""
    message: dict[str, Any] = {}
    raised: BaseException | None = None
    if communicator.rank == 0:
        try:
            message = {"values": make()}
        except BaseException as error:  # sent to the other ranks, which would else wait forever
            raised = error
            message = {"error": type(error).__name__, "message": str(error)}
    message = broadcast(communicator, message)
    if raised is not None:
        raise raised
    if "error" in message:
        kind = getattr(errors, message["error"], None)
        if kind is None:
            raise ExecutionError(f"rank 0 failed: {message['error']}: {message['message']}")
        raise kind(message["message"])
    return message["values"]


def gathered(communicator: Any, value: Any) -> list[Any] | None:
    """Gather every rank's plain values at rank 0; None elsewhere."""
    from mpi4py import MPI

    content = json.dumps(value).encode()
    is_first = communicator.rank == 0
    lengths = np.zeros(communicator.size, dtype=np.int64) if is_first else None
    patiently(communicator.Igather(np.array([len(content)], dtype=np.int64), lengths))
    if lengths is None:
        patiently(communicator.Igatherv([content, MPI.BYTE], None))
        return None
    buffer = bytearray(int(lengths.sum()))
    patiently(communicator.Igatherv([content, MPI.BYTE], [buffer, lengths.tolist(), MPI.BYTE]))
    ends = np.cumsum(lengths)
    return [json.loads(buffer[end - n : end]) for end, n in zip(ends, lengths, strict=True)]


def patiently(request: Any) -> None:
    """Wait for a request without keeping a core busy."""
    while not request.Test():
        time.sleep(_POLL_S)
