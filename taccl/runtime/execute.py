"""Execute a program with MPI ranks: those that a launcher started, or new ones on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from taccl._internal.arguments import Count, Natural, Seconds, Size, checked
from taccl.errors import ExecutionError
from taccl.program.lower import lower
from taccl.program.program import Program
from taccl.runtime.environment import joined, launched_by
from taccl.runtime.job import RunJob, check_memory, make_job
from taccl.runtime.report import Execution
from taccl.runtimes.runtime import RunReport
from taccl.schedule.schedule import Schedule


@checked
def execute(
    program: Program | Schedule,
    size: Size = "1MB",
    *,
    dtype: str = "int32",
    repetitions: Count = 10,
    timeout_s: Seconds = 60.0,
    seed: Natural = 0,
    note: Callable[[str], None] = lambda _: None,
) -> Execution:
    """Execute a program with real messages between MPI ranks, and check its outputs.

    The program and MPI's own collective are timed, and their outputs compared, bit for bit unless floats are
    added up. A process that a launcher (mpiexec, srun) started as one of several ranks joins the others: each
    of them calls this function, the program of rank 0 is executed, and all get the same result. Otherwise one
    rank is started on this machine for each rank of the program.

    Parameters
    ----------
    program : Program or Schedule
        A schedule is lowered first (`taccl.lower` has options).
    size : int or str
        Bytes of the larger of one rank's input and output buffer, e.g. ``"1MB"``; rounded up to whole
        elements in every chunk.
    dtype : str
        ``"int32"``, ``"int64"``, ``"float32"``, ``"float64"``, or ``"fixed32"``: real numbers in fixed point,
        which travel as int32 and are judged by the sums of the real numbers.
    repetitions : int
        Timed runs, after one to warm up. The outputs of every run are judged.
    timeout_s : float
        Max seconds for one run.
    seed : int
        Seed of the inputs.
    note : callable, optional
        Called with messages on the progress.

    Returns
    -------
    Execution
        Verdict and times; for a failure the wrong chunks, or the waiting steps and the reasons.

    Raises
    ------
    InputError
        If a value cannot be used, or a launcher started another number of ranks.
    VerificationError
        If the program has steps that no rank can run.
    ExecutionError
        If there is no MPI, or a rank dies.
    """

    def job() -> RunJob:
        own = program if isinstance(program, Program) else lower(program)
        return make_job(own, size, dtype=dtype, repetitions=repetitions, timeout_s=timeout_s, seed=seed)

    return execute_job(job, note)


def run(
    read: Callable[[], Program],
    *,
    sizes: Sequence[int],
    dtype: str | None,
    note: Callable[[str], None],
    **options: Any,
) -> RunReport:
    """Execute a program at the first of some sizes, for ``taccl run``; only rank 0 reads the program."""
    kind = dtype or "int32"
    report = execute_job(lambda: make_job(read(), sizes[0], dtype=kind, **options), note)
    return RunReport(report.text(), report.figures(), report.failure())


def execute_job(make: Callable[[], RunJob], note: Callable[[str], None] = lambda _: None) -> Execution:
    """Execute the job that `make` returns; among ranks of a launcher, only rank 0 calls `make`."""
    launch = launched_by()
    if launch is None:
        from taccl.runtime.launch import launched
        from taccl.synthesis.memory import free_memory_bytes

        job = make()
        check_memory(job, free_memory_bytes())
        ranks, patience_s = job.program.num_ranks, job.timeout_s
        report = launched("taccl.runtime.worker", ranks, job.to_dict(), timeout_s=patience_s, note=note)
        return Execution.from_dict(report)
    from taccl.runtime.rank_execution import execute_on_rank
    from taccl.runtime.worker import Watchdog

    with joined() as mpi, Watchdog() as watchdog:
        communicator = mpi.COMM_WORLD
        if launch.num_ranks not in (None, communicator.size):
            library = " ".join(mpi.Get_library_version().partition("\n")[0].split()).rstrip("\0")
            raise ExecutionError(
                f"{launch.launcher} started {launch.num_ranks} ranks, but mpi4py uses {library}, which "
                f"finds {communicator.size}; use the mpiexec of that MPI, or install an mpi4py built for "
                "this one"
            )
        return execute_on_rank(communicator, make, watchdog, note)
