"""``taccl run``: execute a program with a runtime, compare it with the stock collective, and time both.

A step of a workload (`taccl.Workload`) is transformed and scheduled for a topology, and then executed. Its
outputs are compared with those of the untransformed step.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from taccl._internal.names import shown
from taccl._internal.units import format_count, parse_size
from taccl.cli.inputs import topology_from_word
from taccl.cli.options import add_options, flag_of, option, positive, rate, refuse, seconds, sizes
from taccl.cli.output import Answer, is_first_rank, notes_shown, picked, with_content
from taccl.errors import InputError
from taccl.formats.files import check_writable
from taccl.runtimes.registry import registered, runtime_named
from taccl.runtimes.runtime import RunReport

if TYPE_CHECKING:
    from taccl.program.program import Program

#: Options that only some engines support (`Runtime.run_options`).
_OF_SOME = ("topology", "in_place", "sizes", "log")
#: {option that sets a rate of the ranks' processors: description of the rate}.
_RATES = {"tflops": "TFLOPS", "gb_per_s": "memory traffic in GB/s"}


def add(verb: argparse.ArgumentParser) -> None:
    """Declare the options."""
    help = "a schedule, a program such as MSCCL XML, or a step of a workload"
    verb.add_argument("file", metavar="FILE", help=help)
    help = f"for a step of operations, {_with('topology')}: topology to schedule it on"
    option(verb, "--topology FILE|NAME", help)
    add_options(verb, "--size", help="larger of a rank's input and output (default 1MB)")
    help = "one of " + ", ".join(f"{each.name} ({each.title})" for each in registered("run").values())
    option(verb, "--engine NAME", help, default="mpi")
    option(verb, "--sizes S:S", f"{_with('sizes')}: from:to[:factor], or S,S,...", sizes)
    help = f"{_with('log')}: write the stock times, for `taccl fit` and `taccl diagnose`"
    option(verb, "--log FILE", help)
    option(verb, "--overwrite", "replace the log if it exists")
    option(verb, "--ranks N", "expected number of ranks of the file", positive)
    help = "int32, int64, float32, float64, or with mpi fixed32: reals sent as int32 (default int32, or "
    option(verb, "--dtype T", f"{help}float32 with torch, which has float16 and bfloat16, too)")
    option(verb, "--repetitions N", "number of timed runs, after one warm-up", positive, default=10)
    option(verb, "--timeout-s S", "time limit in seconds for one run", seconds, default=60.0)
    option(
        verb, "--step-s S", "for a step: time limit in seconds for its transformation", seconds, default=60.0
    )
    for name, what in _RATES.items():
        help = f"for a step: {what} of a rank's processor, for operations without costs"
        option(verb, f"{flag_of(name)} N", f"{help} (default: the machine's)", rate)
    help = f"{_with('in_place')}: lower a schedule with input and output in one buffer"
    option(verb, "--in-place", help)
    add_options(verb, "--seed", help="random seed of the inputs (default 0)")


def _with(name: str) -> str:
    """Start of an option's help, which names the engines that support it, e.g. ``with --engine mpi``."""
    able = [each.name for each in registered("run").values() if name in each.run_options]
    return f"with --engine {' or '.join(able)}"


def run(options: argparse.Namespace) -> Answer:
    """Execute a schedule or a program with one of the runtimes, and compare it with the stock collective."""
    engine = runtime_named(options.engine, "run", where="--engine")
    for name in _OF_SOME:
        if getattr(options, name) and name not in engine.run_options:
            needed = _with(name).removeprefix("with ")
            said = f"found with --engine {engine.name}; it needs {needed}: change one of the two"
            raise InputError(said, where=flag_of(name))
    if options.log is not None:
        check_writable(options.log, overwrite=options.overwrite)
    is_first = is_first_rank()
    with notes_shown(wanted=is_first) as note:
        if options.topology is not None:
            return _run_step(options, note)
        refuse(options, _RATES, "is for a step on a topology; give --topology, or leave it out")
        given = picked(options, "dtype", "repetitions", "timeout_s", "seed")
        chosen = options.sizes or (parse_size(options.size or "1MB"),)
        read = partial(_program, options)
        report = engine.made("run", RunReport, read, sizes=chosen, **given, note=note)
    complaint = f"{shown(options.file)}: {report.failure}" if report.failure else ""
    answer = Answer(report.text, dict(report.values), complaint)
    if options.log is None or not is_first:
        return answer
    return with_content(answer, options.log, report.log, options)


def _run_step(options: argparse.Namespace, note: Callable[[str], None]) -> Answer:
    """Transform and schedule a workload's step, and execute it with ranks started on this machine."""
    from taccl.formats.registry import read
    from taccl.runtime.environment import launched_by
    from taccl.runtime.step import execute_step
    from taccl.workload import autotransform
    from taccl.workload.costs import rates_of
    from taccl.workload.meaning import TOLERANCE
    from taccl.workload.workload import Workload

    if launched_by() is not None or options.in_place:
        where = "--in-place" if options.in_place else "mpiexec"
        raise InputError("a step starts its own ranks, out of place; leave this out", where=where)
    program = read(options.file)
    if not isinstance(program, Workload):
        said = f"found a {type(program).__name__.lower()}; --topology is for a workload; leave it out"
        raise InputError(said, where="--topology")
    refuse(options, ("size", "ranks", "dtype"), "a step states it itself; leave it out")
    note("transforming and scheduling")
    topology = topology_from_word(options.topology)
    rates = rates_of(options.tflops, options.gb_per_s)
    step = autotransform(program, topology, rates=rates, time_limit_s=options.step_s, note=note)
    given = picked(options, "seed", "timeout_s")
    difference = execute_step(step, reference=program, **given, note=note)
    most = max(TOLERANCE[each.dtype] for each in program.tensors.values())
    says = f"within {difference:.2g} of its largest value"
    ok = difference <= most
    text = (
        f"{step!r}\n{step.workload!r}\n  {'correct' if ok else 'wrong'}: every output is {says} (tolerance "
        f"{most:.2g}) of what the untransformed program gives"
    )
    values = {
        "ok": ok, "difference": difference, "most": most, "finish_us": step.finish_us,
        "num_ranks": program.num_ranks, "program": repr(step.workload),
    }  # fmt: skip
    wrong = f"{shown(options.file)}: an output is only {says} of the expected values"
    return Answer(text, values, "" if ok else wrong)


def _program(options: argparse.Namespace) -> Program:
    """Read a program from a file; a schedule in the file is lowered to a program."""
    from taccl.formats.detection import format_of_content, wrong_format
    from taccl.formats.registry import read
    from taccl.program.lower import lower
    from taccl.program.program import Program
    from taccl.schedule.implicit_schedule import ImplicitSchedule
    from taccl.schedule.schedule import Schedule

    found = read(options.file)
    if isinstance(found, ImplicitSchedule):
        found = found.expand()
    if isinstance(found, Schedule):
        found = lower(found, in_place=options.in_place)
    elif not isinstance(found, Program):
        raise wrong_format(options.file, format_of_content(options.file), "a schedule or a program")
    if options.in_place and not found.in_place:
        said = f"the program in {options.file} is out of place; leave it out, or give the schedule"
        raise InputError(said, where="--in-place")
    if options.ranks not in (None, found.num_ranks):
        said = f"found {options.ranks}; the program is for {format_count(found.num_ranks, 'rank')}"
        raise InputError(said, where="ranks")
    return found
