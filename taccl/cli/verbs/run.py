"""``taccl run``: a program executed by MPI ranks, compared with MPI's own collective, and timed beside it.

The quickest schedule of a step of operations (`taccl.Workload`) is executed on a topology, and its outputs
are compared with those of the operations alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from taccl._internal.arguments import known_name
from taccl._internal.names import shown, table
from taccl._internal.units import format_count, format_size
from taccl.cli.options import add_options, option, positive, seconds, sizes
from taccl.cli.output import Answer, is_first_rank, notes_shown, picked, with_content
from taccl.cli.things import topology_from_word
from taccl.errors import InputError
from taccl.formats.files import check_writable

if TYPE_CHECKING:
    from taccl.program.program import Program
    from taccl.runtime.report import Execution, Times

#: Ways to execute a program.
ENGINES = ("mpi", "torch")


def add(verb: argparse.ArgumentParser) -> None:
    """Declare the options."""
    verb.add_argument("file", metavar="FILE", help="a schedule, a program such as MSCCL XML, or a step")
    option(verb, "--topology NAME|FILE", "for a step of operations: what it is transformed and scheduled for")
    add_options(verb, "--size", help="larger of a rank's input and output (default 1MB)")
    option(
        verb, "--engine NAME", "mpi (default), or torch: PyTorch, beside its stock collective", default="mpi"
    )
    option(verb, "--sizes S:S", "with --engine torch: from:to[:factor], or S,S,...", sizes)
    option(verb, "--log FILE", "with --engine torch: the stock times, for `taccl fit` and `taccl diagnose`")
    option(verb, "--overwrite", "replace the log if it exists")
    option(verb, "--ranks N", "refuse a file for another number of ranks", positive)
    help = "int32, int64, float32, float64, or with mpi fixed32: reals sent as int32 (default int32, or "
    option(verb, "--dtype T", f"{help}float32 with torch, which has float16 and bfloat16, too)")
    option(verb, "--repetitions N", "timed runs, after one more", positive, default=10)
    option(verb, "--timeout-s S", "seconds for one run", seconds, default=60.0)
    option(verb, "--step-s S", "for a step: seconds of the search for transformations", seconds, default=60.0)
    option(verb, "--in-place", "lower a schedule with input and output in one buffer")
    add_options(verb, "--seed", help="of the inputs (default 0)")


def run(options: argparse.Namespace) -> Answer:
    """Execute a schedule or a program with MPI ranks, and compare it with MPI's own collective."""
    if known_name(options.engine, ENGINES, "--engine") == "torch":
        return _run_in_torch(options)
    if options.sizes is not None or options.log is not None:
        where = "--log" if options.sizes is None else "--sizes"
        raise InputError("is of --engine torch; add that, or leave this out", where=where)
    options.size, options.dtype = options.size or "1MB", options.dtype or "int32"
    from taccl.runtime.execute import execute_job
    from taccl.runtime.job import make_job

    is_first = is_first_rank()
    given = picked(options, "dtype", "repetitions", "timeout_s", "seed", "ranks")
    with notes_shown(wanted=is_first) as note:
        if options.topology is not None:
            return _run_step(options, note)
        execution = execute_job(lambda: make_job(_program(options), options.size, **given), note)
    complaint = "" if execution.ok else f"{shown(options.file)}: {execution.failure()}"
    values = {
        "ok": execution.ok, **execution.to_dict(), "times": _figures(execution, execution.times),
        "mpi_times": _figures(execution, execution.mpi_times), "failure": execution.failure(),
    }  # fmt: skip
    return Answer(_text(execution), values, complaint)


def _run_in_torch(options: argparse.Namespace) -> Answer:
    """Execute a schedule or a program in PyTorch, and compare it with the stock collective."""
    from taccl._internal.units import parse_size
    from taccl.runtime.torch_run import execute_in_torch

    if options.topology is not None or options.in_place:
        where = "--topology" if options.topology is not None else "--in-place"
        raise InputError("is of --engine mpi; leave it out", where=where)
    if options.log is not None:
        check_writable(options.log, overwrite=options.overwrite)
    is_first = is_first_rank()
    chosen = options.sizes or (parse_size(options.size or "1MB"),)
    with notes_shown(wanted=is_first) as note:
        program = _program(options)
        if options.ranks not in (None, program.num_ranks):
            said = f"found {options.ranks}; the program is for {format_count(program.num_ranks, 'rank')}"
            raise InputError(said, where="ranks")
        given = picked(options, "repetitions", "timeout_s", "seed")
        report = execute_in_torch(program, chosen, dtype=options.dtype or "float32", **given, note=note)
    values = {"ok": report.ok, **report.to_dict(), "round_us": report.round_us(), "failure": report.failure()}
    complaint = "" if report.ok else f"{shown(options.file)}: {report.failure()}"
    answer = Answer(report.text(), values, complaint)
    if options.log is None or not is_first:
        return answer
    return with_content(answer, options.log, report.log(), options)


def _run_step(options: argparse.Namespace, note: Callable[[str], None]) -> Answer:
    """Transform and schedule a step, and execute it with ranks of this machine."""
    from taccl.formats.registry import read
    from taccl.runtime.environment import launched_by
    from taccl.runtime.step import execute_step
    from taccl.workload import autotransform
    from taccl.workload.meaning import TOLERANCE
    from taccl.workload.workload import Workload

    if launched_by() is not None or options.in_place:
        where = "--in-place" if options.in_place else "mpiexec"
        raise InputError("a step starts ranks of its own, out of place; leave this out", where=where)
    program = read(options.file)
    if not isinstance(program, Workload):
        said = f"found a {type(program).__name__.lower()}; --topology is for a workload; leave it out"
        raise InputError(said, where="--topology")
    note("transforming and scheduling")
    topology = topology_from_word(options.topology)
    step = autotransform(program, topology, time_limit_s=options.step_s, note=note)
    given = picked(options, "seed", "timeout_s")
    difference = execute_step(step, reference=program, **given, note=note)
    most = max(TOLERANCE[each.dtype] for each in program.tensors.values())
    says = f"within {difference:.2g} of its largest value"
    ok = difference <= most
    text = (
        f"{step!r}\n{step.workload!r}\n  {'correct' if ok else 'wrong'}: every output is {says} (at most "
        f"{most:.2g}) of what the untransformed program gives"
    )
    values = {
        "ok": ok, "difference": difference, "most": most, "finish_us": step.finish_us,
        "num_ranks": program.num_ranks, "program": repr(step.workload),
    }  # fmt: skip
    wrong = f"{shown(options.file)}: some output is only {says} of what it should be"
    return Answer(text, values, "" if ok else wrong)


def _program(options: argparse.Namespace) -> Program:
    """The program in a file, or the one that its schedule is lowered to."""
    from taccl.formats.registry import format_of_content, read, wrong_format
    from taccl.program.lower import lower
    from taccl.program.program import Program
    from taccl.schedule.implicit_schedule import ImplicitSchedule
    from taccl.schedule.schedule import Schedule

    found = read(options.file)
    if isinstance(found, ImplicitSchedule):
        found = found.expand()
    if isinstance(found, Schedule):
        return lower(found, in_place=options.in_place)
    if not isinstance(found, Program):
        raise wrong_format(options.file, format_of_content(options.file), "a schedule or a program")
    if options.in_place and not found.in_place:
        said = f"the program in {options.file} is out of place; leave it out, or give the schedule"
        raise InputError(said, where="--in-place")
    return found


def _text(execution: Execution) -> str:
    place = "in place" if execution.in_place else "out of place"
    ranks, machines = format_count(execution.num_ranks, "rank"), format_count(execution.num_hosts, "machine")
    size = f"{format_size(execution.size_bytes)} of {execution.dtype}"
    lines = [f"{execution.program}, {place}: {ranks} on {machines}, {size}"]
    if execution.times is not None and execution.ok:
        runs = format_count(len(execution.times.each_us) + 1, "run")
        how = f"within {execution.tolerance:.2g}" if execution.tolerance else "bit for bit"
        if execution.compared_with:
            verdict = f"correct: in all {runs} every output agrees {how} with {execution.compared_with}"
        else:
            verdict = f"all {runs} came to their end; outputs were not judged: the collective is not known"
        lines.append(f"  {verdict}")
    rows: list[tuple[str, ...]] = [("", "median", "fastest", "algbw", "busbw")]
    own = execution.compared_with or "MPI's own"
    for name, times in (("the program", execution.times), (own, execution.mpi_times)):
        if times is not None:
            algbw, busbw = execution.algbw_gb_per_s(times), execution.busbw_gb_per_s(times)
            fast = (f"{time_us / 1000:.3f} ms" for time_us in (times.median_us, times.min_us))
            rows.append((name, *fast, f"{algbw:.4g} GB/s", f"{busbw:.4g} GB/s"))
    if len(rows) > 1:
        lines.append(table(rows, indent="  "))
    if execution.crowded:
        lines.append("  ranks share cores here: times say little of what either takes where they do not")
    versions = [
        text.replace(" Version:", "") if name == "mpi" else f"{name} {text}"
        for name, text in execution.versions.items()
    ]
    lines.append("  " + ", ".join(versions))
    return "\n".join(lines)


def _figures(execution: Execution, times: Times | None) -> dict[str, Any] | None:
    if times is None:
        return None
    rates = {f"{name}_gb_per_s": getattr(execution, f"{name}_gb_per_s")(times) for name in ("algbw", "busbw")}
    return {"each_us": list(times.each_us), **picked(times, "median_us", "min_us"), **rates}
