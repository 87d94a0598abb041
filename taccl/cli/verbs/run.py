"""``taccl run``: a program executed by MPI ranks, compared with MPI's own collective, and timed beside it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from taccl.cli.answer import Answer
from taccl.cli.options import add_verb, at_least_zero, positive, seconds
from taccl.cli.output import progress_shown
from taccl.errors import InputError
from taccl.names import shown
from taccl.units import format_count, format_size

if TYPE_CHECKING:
    import argparse

    from taccl.program.program import Program
    from taccl.runtime.job import Job
    from taccl.runtime.report import Execution, Times

__all__ = ["add", "run"]

_EXIT_WRONG = 1


def add(verbs: Any) -> None:
    """Declare the verb."""
    help = "Execute a schedule or a program with MPI ranks, and compare it with MPI's own collective."
    verb = add_verb(verbs, "run", run, help)
    verb.add_argument("file", metavar="FILE", help="a schedule, or a program such as MSCCL XML")
    verb.add_argument(
        "--size", default="1MB", metavar="S", help="larger of a rank's input and output (default 1MB)"
    )
    verb.add_argument("--ranks", type=positive, metavar="N", help="refuse a file for another number of ranks")
    verb.add_argument(
        "--dtype", default="int32", metavar="T", help="int32 (default), int64, float32 or float64"
    )
    verb.add_argument(
        "--repetitions",
        type=positive,
        default=10,
        metavar="N",
        help="timed runs, after one more (default 10)",
    )
    verb.add_argument(
        "--timeout-s", type=seconds, default=60.0, metavar="S", help="seconds for one run (default 60)"
    )
    verb.add_argument(
        "--in-place", action="store_true", help="lower a schedule with input and output in one buffer"
    )
    verb.add_argument("--seed", type=at_least_zero, default=0, metavar="N", help="of the inputs (default 0)")


def run(options: argparse.Namespace) -> Answer:
    """Execute what is in a file: with ranks of our own, or as one of those that mpiexec started."""
    from taccl.runtime.environment import launched_by
    from taccl.runtime.execute import execute_job

    launch = launched_by()
    if launch is not None and launch.rank:
        _be_silent()
    with progress_shown(wanted=launch is None or not launch.rank) as progress:

        def note(text: str) -> None:
            if progress is not None:
                progress(text, None, None)

        execution = execute_job(lambda: _job(options), note)
    return Answer(
        _text(execution),
        _values(execution),
        exit_code=0 if execution.ok else _EXIT_WRONG,
        complaint="" if execution.ok else f"{shown(options.file)}: {execution.failure()}",
    )


def _job(options: argparse.Namespace) -> Job:
    from taccl.runtime.job import make_job

    return make_job(
        _program(options), options.size, dtype=options.dtype, repetitions=options.repetitions,
        timeout_s=options.timeout_s, seed=options.seed, ranks=options.ranks,
    )  # fmt: skip


def _program(options: argparse.Namespace) -> Program:
    """The program in a file, or the one that its schedule is lowered to."""
    from taccl.formats.registry import read
    from taccl.program.lower import lower
    from taccl.program.program import Program
    from taccl.schedule.compact import CompactSchedule
    from taccl.schedule.implicit import ImplicitSchedule
    from taccl.schedule.schedule import Schedule

    found = read(options.file)
    if isinstance(found, ImplicitSchedule):
        found = found.expand()
    if isinstance(found, (Schedule, CompactSchedule)):
        return lower(found, in_place=options.in_place)
    if not isinstance(found, Program):
        raise InputError(
            f"found a {type(found).__name__.lower()}; expected a schedule or a program", where=options.file
        )
    if options.in_place and not found.in_place:
        raise InputError(
            f"the program in {options.file} is out of place; leave it out, or give the schedule",
            where="--in-place",
        )
    return found


def _be_silent() -> None:
    """Leave all there is to say to rank 0."""
    nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stdout = sys.stderr = nowhere


def _text(execution: Execution) -> str:
    from taccl.cli.text import table

    place = "in place" if execution.in_place else "out of place"
    lines = [
        f"{execution.program}, {place}: {format_count(execution.num_ranks, 'rank')} on "
        f"{format_count(execution.num_hosts, 'machine')}, {format_size(execution.size_bytes)} of "
        f"{execution.dtype}"
    ]
    if execution.times is not None and execution.ok:
        lines.append(_verdict(execution))
    rows = [("", "median", "fastest", "algorithm", "bus")]
    for name, times in (("the program", execution.times), (_own(execution), execution.mpi_times)):
        if times is not None:
            algbw, busbw = execution.algbw_gb_per_s(times), execution.busbw_gb_per_s(times)
            fast = (_ms(times.median_us), _ms(times.min_us))
            rows.append((name, *fast, f"{algbw:.4g} GB/s", f"{busbw:.4g} GB/s"))
    if len(rows) > 1:
        lines.append(table(rows, indent="  "))
    if execution.crowded:
        lines.append("  ranks share cores here: times say little of what either takes where they do not")
    lines.append("  " + ", ".join(_version(name, text) for name, text in execution.versions.items()))
    return "\n".join(lines)


def _verdict(execution: Execution) -> str:
    assert execution.times is not None
    runs = format_count(len(execution.times.each_us) + 1, "run")
    if not execution.compared_with:
        return f"  all {runs} came to their end; outputs were not judged: the collective is not known"
    how = f"within {execution.tolerance:.2g}" if execution.tolerance else "bit for bit"
    return f"  correct: in all {runs} every output agrees {how} with {execution.compared_with}"


def _own(execution: Execution) -> str:
    return execution.compared_with or "MPI's own"


def _version(name: str, text: str) -> str:
    return text.replace(" Version:", "") if name == "mpi" else f"{name} {text}"


def _ms(time_us: float) -> str:
    return f"{time_us / 1000:.3f} ms"


def _values(execution: Execution) -> dict[str, Any]:
    return {
        "ok": execution.ok,
        **execution.to_dict(),
        "times": _figures(execution, execution.times),
        "mpi_times": _figures(execution, execution.mpi_times),
        "failure": execution.failure(),
    }


def _figures(execution: Execution, times: Times | None) -> dict[str, Any] | None:
    if times is None:
        return None
    return {
        "each_us": list(times.each_us),
        "median_us": times.median_us,
        "min_us": times.min_us,
        "algbw_gb_per_s": execution.algbw_gb_per_s(times),
        "busbw_gb_per_s": execution.busbw_gb_per_s(times),
    }
