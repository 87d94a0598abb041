"""Answers of verbs, their tables, titles and notes, and their output streams.

Answers go to stdout and schedules to files; warnings, complaints and progress to stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shlex
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TextIO

import taccl
from taccl._internal.address_space import address_space_bytes, means_out_of_memory
from taccl._internal.deadline import NEVER, Deadline, OutOfTime
from taccl._internal.names import shown, shown_lines, table
from taccl._internal.units import format_count, format_gap, format_size, format_us
from taccl.cli.advice import on_command_line, with_shared_hint
from taccl.errors import AssumptionWarning, InputError, SolverUnavailableError, TacclError

if TYPE_CHECKING:
    from taccl.analysis.certificates.certificate import Certificate
    from taccl.analysis.verification.findings import Verification
    from taccl.schedule.schedule import Schedule
    from taccl.synthesis.result import Result


EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130
_EXIT_OWN_FAULT = 70
_EXIT_CODES = ((InputError, EXIT_BAD_INPUT), (SolverUnavailableError, 3), (TacclError, 1))


_OUT_OF_MEMORY = (
    "memory ran out, and nothing was written; allow more (ulimit -v, or that of the container), or take "
    "fewer ranks or chunks"
)


@dataclass(frozen=True)
class Answer:
    """Answer of a verb: text, plain values, a complaint for stderr, and an exit code.

    An answer with a complaint is negative: its exit code is 1 unless another is given.

    - `figures`: The plain values, or a function that makes them when they are first needed.
    """

    text: str
    figures: dict[str, Any] | Callable[[], dict[str, Any]]
    complaint: str = ""
    exit_code: int = 0

    def __post_init__(self) -> None:
        if self.complaint and not self.exit_code:
            object.__setattr__(self, "exit_code", 1)

    @cached_property
    def values(self) -> dict[str, Any]:
        """The plain values, as ``--json`` prints them."""
        return self.figures() if callable(self.figures) else self.figures

    def on_command_line(self, flags: Collection[str]) -> Answer:
        """Answer whose notes name command-line options in place of function parameters.

        - `flags`: Names of the verb's options, which replace parameters in the notes.
        """

        def values() -> dict[str, Any]:
            notes = self.values.get("notes")
            if not isinstance(notes, list | tuple):
                return self.values
            return self.values | {
                "notes": [on_command_line(note, flags) if isinstance(note, str) else note for note in notes]
            }

        lines = [
            on_command_line(line, flags) if line.lstrip().startswith("note: ") else line
            for line in self.text.split("\n")
        ]
        return replace(self, text="\n".join(with_shared_hint(lines)), figures=values)


def picked(thing: object, *names: str) -> dict[str, Any]:
    """{name: value} of some attributes of an object."""
    return {name: getattr(thing, name) for name in names}


def explained(error: Exception, *, where: str | None = None, flags: Collection[str] = ()) -> Answer:
    """Answer that reports an error, with its exit code.

    - `where`: Location in place of the error's own.
    - `flags`: Names of the verb's options, which replace parameters in the message.
    """
    for kind, code in _EXIT_CODES:
        if isinstance(error, kind):
            where = where or getattr(error, "where", None)
            said = on_command_line(getattr(error, "message", str(error)), flags)
            return failed(said, code, where=where)
    if means_out_of_memory(error, bounded=address_space_bytes() is not None):
        own = str(error) if str(error).startswith("too little memory") else _OUT_OF_MEMORY
        return failed(own, 1, where=where)
    said = (
        f"an internal error of taccl ({type(error).__name__}: {error}); set TACCL_TRACEBACK=1 to see where, "
    )
    return failed(f"{said}and report it", _EXIT_OWN_FAULT)


def failed(message: str, code: int, *, where: str | None = None) -> Answer:
    """Answer that consists of an error message alone."""
    values = {"error": message, "where": where, "exit_code": code}
    return Answer("", values, f"{where}: {message}" if where else message, code)


def check_output(options: argparse.Namespace, *others: str) -> None:
    """Raise `InputError` for files that could not be written, before any long work."""
    from taccl.formats.files import check_writable

    for name in ("output", *others):
        path = getattr(options, name)
        if path is not None and name == "plot":
            from taccl.plot.style import format_of

            format_of(path)
        if path is not None:
            check_writable(path, overwrite=options.overwrite)


def check_schedule_output(options: argparse.Namespace) -> None:
    """Raise `InputError` if ``--output`` cannot be written, or has the extension of another format."""
    from taccl.formats.saved import other_ending

    check_output(options)
    if options.output is not None and (ending := other_ending(options.output)):
        said = "a schedule is saved as JSON; give a name that ends in .json"
        raise InputError(f"{said} (taccl convert then writes {ending})", where=options.output)


def with_content(answer: Answer, path: str, content: str | bytes, options: argparse.Namespace) -> Answer:
    """Write `content` to `path`; return the answer with the file's name, or with an error if this fails."""
    from taccl.formats.files import write_whole

    try:
        write_whole(path, content, overwrite=options.overwrite)
    except InputError as error:
        return with_error(answer, error)
    gap = "\n" if answer.text.rpartition("\n")[2].startswith("written to ") else "\n\n"
    return replace(answer, text=f"{answer.text}{gap}written to {shown(path)}")


def with_error(answer: Answer, error: InputError) -> Answer:
    """The answer, whose text and values remain, with an error of a step after it."""
    bad = failed(error.message, EXIT_BAD_INPUT, where=error.where)
    return replace(bad, text=answer.text, figures=answer.values | bad.values)


def with_file(answer: Answer, schedule: Schedule, options: argparse.Namespace) -> Answer:
    """Write a schedule to ``--output``, if given; return the answer with the file's name."""
    from taccl.formats.native import dump_text

    if options.output is None:
        return answer
    extra = answer.values | {"command": shlex.join(("taccl", *options.words))}
    return with_content(answer, options.output, dump_text(schedule, extra), options)


def emit(answer: Answer, *, as_json: bool) -> int:
    """Print an answer; return the exit code, which is 2 if stdout cannot be written.

    A closed pipe (``| head``) is not a failure.
    """
    content = json.dumps(answer.values, allow_nan=False) if as_json else shown_lines(answer.text)
    code = answer.exit_code
    if content:
        try:
            if sys.stdout is None:
                raise ValueError("it is closed")
            if isinstance(sys.stdout, io.TextIOWrapper):
                # Escape the characters that a terminal cannot show.
                sys.stdout.reconfigure(errors="backslashreplace")
            print(content, flush=True)
        except (OSError, ValueError) as error:
            _give_up(sys.stdout)
            if not isinstance(error, BrokenPipeError):
                reason = getattr(error, "strerror", None) or error
                say(f"error: stdout: the output cannot be written ({reason}); redirect it elsewhere")
                code = EXIT_BAD_INPUT
    if answer.complaint and not as_json:
        say(f"error: {answer.complaint}")
    return code


def say(message: str) -> None:
    """Print a line on stderr; ignored if stderr cannot be written."""
    if sys.stderr is None:
        return
    try:
        print(f"taccl: {shown_lines(message)}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        _give_up(sys.stderr)


def warning_printer(flags: Collection[str] = (), *, is_verbose: bool = False) -> Callable[..., None]:
    """Function in place of `warnings.showwarning` that prints a warning as one line.

    - `flags`: Names of the verb's options, which replace parameters in the message.
    - `is_verbose`: True to print each of several assumptions on a line of its own after the warning.
    """

    def show_warning(message: Warning | str, *_: object, **__: object) -> None:
        lines = [str(message)]
        if isinstance(message, AssumptionWarning) and len(message.assumed) > 1:
            lines = [f"{message.brief}:", *(f"  {each}" for each in message.assumed)]
            lines = lines if is_verbose else [f"{message.brief} (--verbose lists them)"]
        said = with_shared_hint([on_command_line(line, flags) for line in lines])
        say("\n".join([f"warning: {said[0]}", *said[1:]]))

    return show_warning


def hold_descriptors() -> None:
    """Open stdin, stdout and stderr on the null device if the caller has closed them.

    Otherwise a file or a pipe to a solver would get descriptor 1, and receive whatever a library prints.
    """
    if None in (sys.stdin, sys.stdout, sys.stderr):
        held = os.open(os.devnull, os.O_RDWR)
        while held <= 2:
            held = os.open(os.devnull, os.O_RDWR)
        os.close(held)


@contextlib.contextmanager
def progress_shown(*, wanted: bool) -> Iterator[Callable[[str, float | None, float | None], None] | None]:
    """Callback for a progress line on a terminal's stderr; None if stderr is not a terminal."""
    if not wanted or sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status("starting") as status:

        def update(stage: str, finish_us: float | None, bound_us: float | None) -> None:
            known = [(finish_us, "best"), (bound_us, "bound")]
            figures = ", ".join(f"{word} {format_us(value)}" for value, word in known if value is not None)
            status.update(escape(f"{stage}: {figures}" if figures else stage))

        yield update


@contextlib.contextmanager
def notes_shown(*, wanted: bool = True) -> Iterator[Callable[[str], None]]:
    """Callback that shows the name of the current stage; silent unless stderr is a terminal."""
    with progress_shown(wanted=wanted) as progress:
        yield lambda text: None if progress is None else progress(text, None, None)


@contextlib.contextmanager
def ended_by_ctrl_c(deadline: Deadline, kept: str) -> Iterator[None]:
    """Context in which Ctrl-C counts as the end of a time limit; a warning then says what was `kept`."""
    with deadline.ended_by_interrupts():
        yield
    if deadline.cancellation.why:
        say(f"warning: stopped by Ctrl-C; {kept}")


def is_first_rank() -> bool:
    """True on rank 0, or without a launcher. On other ranks, output is redirected to the null device."""
    from taccl.runtime.environment import launched_by

    launch = launched_by()
    if launch is None or not launch.rank:
        return True
    sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    return False


def _give_up(stream: TextIO | None) -> None:
    """Redirect a stream to the null device, so that Python's flush at exit does not fail."""
    with contextlib.suppress(OSError, ValueError):
        if stream is not None:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def result_answer(result: Result, deadline: Deadline = NEVER) -> Answer:
    """Answer for a result: its figures, then a row per stage.

    - `deadline`: Time limit for the bound over all chunkings, which takes a second or two.
    """
    try:
        with deadline.enforced():
            result.bound_over_all_chunkings  # noqa: B018  the property keeps its value
    except (KeyboardInterrupt, OutOfTime):
        result = replace(result, is_brief=True)
    try:
        return Answer("\n".join([result.schedule.problem.heading, *result.lines()]), result.to_dict)
    except KeyboardInterrupt:  # Ctrl-C during the bound over all chunkings: answer without it
        return result_answer(replace(result, stopped="interrupted"))


#: {name of a value: (heading of its column, formatter)}.
_COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "name": ("sketch", str), "size_bytes": ("size", format_size), "chunks_per_rank": ("chunks/rank", str),
    "finish_us": ("finish", format_us), "predicted_us": ("predicted", format_us),
    "bound_us": ("bound", format_us), "gap": ("gap", format_gap),
    "gap_over_all_chunkings": ("gap over all chunkings", format_gap), "seconds": ("seconds", "{:.2f}".format),
    "algbw_gb_per_s": ("algbw GB/s", "{:.4g}".format), "busbw_gb_per_s": ("busbw GB/s", "{:.4g}".format),
    "interval_us": ("interval", format_us),
    "interval_algbw_gb_per_s": ("algbw GB/s in tiles", "{:.4g}".format),
    "interval_limits": ("limited by", str), "utilisation": ("busy", "{:.1%}".format),
    "latency_us": ("latency", format_us), "gb_per_s": ("algbw GB/s without latency", "{:.4g}".format),
    "routing_status": ("routing", str), "ordering_status": ("ordering", str),
    "solver_bound_us": ("solver's bound", format_us), "model_columns": ("variables", str),
    "first_schedule_s": ("first at s", "{:.2f}".format), "best_schedule_s": ("best at s", "{:.2f}".format),
    "time_us": ("modelled time", format_us), "algorithm": ("considered", str),
}  # fmt: skip


def figures_table(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """Table of named values of each row; `predicted_us` is shown only if launch overhead matters."""
    launched = any(row.get("predicted_us") != row.get("finish_us") for row in rows)
    shown = [_COLUMNS.get(name, (name, str)) for name in names if launched or name != "predicted_us"]
    names = [name for name in names if launched or name != "predicted_us"]
    cells = [
        ["-" if row[name] is None else show(row[name]) for name, (_, show) in zip(names, shown, strict=True)]
        for row in rows
    ]
    return table([[head for head, _ in shown], *cells], indent="  ")


def finish_text(schedule: Schedule) -> str:
    """Finish of a schedule and its bandwidth."""
    return ", ".join(filter(None, (schedule.timing, schedule.bandwidth_text)))


def following_values(schedule: Schedule, bound: Certificate | None = None) -> dict[str, Any]:
    """Figures of a schedule, its bound and its busiest resource, as plain values.

    - `bound`: A lower bound of the problem; None to compute one.
    """
    bound = bound or taccl.lower_bound(schedule.problem)
    gap = bound.gap(schedule.finish)
    uses = taccl.simulate(schedule).resources
    busiest = max(uses, key=lambda use: use.busy, default=None)
    return {
        "size_bytes": schedule.problem.size_bytes,
        **picked(schedule, "finish_us", "launch_us", "predicted_us", "algbw_gb_per_s", "busbw_gb_per_s"),
        "bound_us": bound.bound_us, "bound_limits": bound.limits, "bound_scope": bound.scope,
        "gap": None if gap == float("inf") else gap,
        "busiest": None if busiest is None else busiest.name,
        "utilisation": 0.0 if busiest is None else busiest.utilisation,
        **picked(schedule, "num_transfers", "num_sends"),
    }  # fmt: skip


def transfers_text(found: Schedule | Verification) -> str:
    """Number of transfers, and of the sends that carry them."""
    return f"{format_count(found.num_transfers, 'transfer')} in {format_count(found.num_sends, 'send')}"
