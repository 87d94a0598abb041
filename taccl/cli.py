"""The command line: each verb calls one public function, and only this module prints.

Exit codes: 0 done; 1 the answer is no (infeasible, a check failed, no schedule found); 2 bad input; 3 a known
solver is not installed or not licensed; 70 a fault of taccl's own; 130 Ctrl-C with nothing in hand.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import sys
import time
import traceback
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import taccl
from taccl import cli_text as text
from taccl.cli_problem import (
    add_problem_options,
    kind_of,
    positive,
    problem_from_options,
    seconds,
    topology_from_word,
)
from taccl.errors import (
    InfeasibleError,
    InputError,
    NoSolutionError,
    SolverUnavailableError,
    TacclError,
    TacclWarning,
    VerificationError,
)
from taccl.units import format_us, parse_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["main"]

_EXIT_CODES: tuple[tuple[type[Exception], int], ...] = (
    (InputError, 2), (SolverUnavailableError, 3), (InfeasibleError, 1), (NoSolutionError, 1),
    (VerificationError, 1), (TacclError, 1),
)  # fmt: skip
_EXIT_OWN_FAULT = 70
_EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Answer:
    """What a verb has to say: as text, as plain values, and as an exit code."""

    text: str
    values: dict[str, Any]
    exit_code: int = 0
    complaint: str = ""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    as_json = "--json" in words
    with warnings.catch_warnings():
        warnings.simplefilter("once", TacclWarning)
        warnings.showwarning = _show_warning
        try:
            options = _parser().parse_args(words)
            answer: Answer = options.verb(options)
        except SystemExit as done:  # --help and --version
            return done.code if isinstance(done.code, int) else 0
        except KeyboardInterrupt:
            answer = _failed("interrupted before there was a schedule", None, _EXIT_INTERRUPTED)
        except Exception as error:
            if os.environ.get("TACCL_TRACEBACK") == "1":
                traceback.print_exc()
            answer = _explained(error)
    _emit(answer, as_json=as_json)
    return answer.exit_code


def synthesize(options: argparse.Namespace) -> Answer:
    """``taccl synthesize``."""
    _check_output(options)
    problem = problem_from_options(options)
    memory_limit_mb = None
    if options.memory_limit is not None:
        memory_limit_mb = max(1, parse_size(options.memory_limit, where="--memory-limit") // 10**6)
    if options.log:
        logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(name)s: %(message)s")
    with _progress(shown=sys.stderr.isatty() and not options.log) as progress:
        result = taccl.synthesize(
            problem,
            backend=options.backend,
            time_limit_s=options.time_limit,
            threads=options.threads,
            seed=options.seed,
            memory_limit_mb=memory_limit_mb,
            log=options.log,
            progress=progress,
        )
    values = result.to_dict()
    if options.output is not None:
        taccl.save(result.schedule, options.output, overwrite=options.overwrite, extra=values)
    if result.interrupted:
        _say("warning: stopped by Ctrl-C; this is the best schedule so far")
    elif result.stopped == "time limit":
        _say("warning: stopped by the time limit; this is the best schedule so far")
    return Answer(text.result_text(result) + _written(options), values)


def verify(options: argparse.Namespace) -> Answer:
    """``taccl verify``."""
    verification = taccl.verify(taccl.load(options.file))
    count = len(verification.violations)
    complaint = f"{options.file}: the schedule breaks {count} rule{'s' if count > 1 else ''}"
    return Answer(
        text.verification_text(options.file, verification),
        text.verification_values(options.file, verification),
        exit_code=0 if verification.ok else 1,
        complaint="" if verification.ok else complaint,
    )


def show(options: argparse.Namespace) -> Answer:
    """``taccl show``."""
    kind = kind_of(options.thing)
    if options.profile is not None and "topology" not in kind:
        raise InputError(f"found a {kind}, which has no profiles; leave it out", where="--profile")
    if options.nodes is not None and kind == "schedule":
        raise InputError("found a schedule, whose nodes are fixed; leave it out", where="--nodes")
    if kind == "schedule":
        from taccl.formats.native import load_schedule, read_document

        document = read_document(options.thing)
        schedule = load_schedule(document, where=options.thing)
        found = document.get("result") or {}
        return Answer(
            text.schedule_text(schedule, found, limit=options.transfers),
            text.schedule_values(schedule, found),
        )
    if kind in ("sketch", "upstream sketch"):
        sketch = taccl.load_sketch(options.thing)
        if options.nodes is not None:
            sketch = sketch.with_nodes(options.nodes)
        return Answer(text.sketch_text(sketch), text.sketch_values(sketch))
    topology = topology_from_word(options.thing, nodes=options.nodes, profile=options.profile)
    return Answer(text.topology_text(topology), text.topology_values(topology))


def baseline(options: argparse.Namespace) -> Answer:
    """``taccl baseline``."""
    from taccl.synthesis.result import Result

    if options.list:
        rows = [
            (name, (function.__doc__ or "").splitlines()[0].removeprefix("A schedule "))
            for name, function in taccl.baselines.BASELINES.items()
        ]
        return Answer(text.table(rows), {"baselines": dict(rows)})
    if options.name is None:
        raise InputError("found no name; give that of a baseline, or --list to see them", where="baseline")
    if options.collective is None:
        raise InputError("found none; give one, e.g. --collective allgather", where="--collective")
    _check_output(options)
    problem = problem_from_options(options)
    began = time.perf_counter()
    schedule = taccl.baselines.baseline(options.name, problem)
    took_s = time.perf_counter() - began
    taccl.verify(schedule).raise_if_failed()
    bound = taccl.lower_bound(schedule.problem)
    result = Result(schedule, bound, f"baseline {options.name}", (), took_s, notes=problem.notes)
    values = result.to_dict()
    if options.output is not None:
        taccl.save(schedule, options.output, overwrite=options.overwrite, extra=values)
    return Answer(text.result_text(result) + _written(options), values)


def bound(options: argparse.Namespace) -> Answer:
    """``taccl bound``."""
    problem = problem_from_options(options)
    found = taccl.lower_bound(problem)
    return Answer(text.bound_text(problem, found), text.bound_values(problem, found))


def backends(options: argparse.Namespace) -> Answer:
    """``taccl backends``."""
    found = taccl.backends()
    return Answer(str(found), {"backends": [asdict(row) for row in found.rows]})


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are ours."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see {self.prog} --help)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="taccl",
        description="Synthesize verified schedules for collective communication from sketches.",
        epilog="Exit codes: 0 done, 1 the answer is no, 2 bad input, 3 no such solver here, "
        "70 a fault of taccl's own, 130 Ctrl-C.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version)
    verbs = parser.add_subparsers(metavar="VERB", required=True)

    def add_verb(name: str, function: Callable[[argparse.Namespace], Answer], help: str) -> _Parser:
        verb: _Parser = verbs.add_parser(name, help=help, description=help, allow_abbrev=False)
        verb.add_argument("--json", action="store_true", help="print one JSON object")
        verb.set_defaults(verb=function)
        return verb

    def add_sketch(verb: _Parser) -> None:
        help = "a shipped name (ndv2/sk1), a TOML or JSON file, or an upstream sketch file"
        verb.add_argument("sketch", nargs="?", metavar="SKETCH", help=help)

    def add_output(verb: _Parser) -> None:
        verb.add_argument("-o", "--output", metavar="FILE", help="write the schedule to a file")
        verb.add_argument("--overwrite", action="store_true", help="replace the file if it exists")

    verb = add_verb("synthesize", synthesize, "Find a schedule, verify it, and say how good it is.")
    add_sketch(verb)
    add_problem_options(verb)
    verb.add_argument("--backend", default="auto", metavar="NAME", help="auto, or one of `taccl backends`")
    verb.add_argument("--time-limit", type=seconds, default=30.0, metavar="S", help="seconds (default 30)")
    verb.add_argument("--threads", type=positive, metavar="N", help="threads of a solver")
    verb.add_argument("--memory-limit", metavar="SIZE", help="memory of a solver, e.g. 4GB")
    verb.add_argument("--seed", type=int, default=0, metavar="N", help="default 0")
    verb.add_argument("--log", action="store_true", help="show what the solvers say, on stderr")
    add_output(verb)

    verb = add_verb("verify", verify, "Check a schedule against its topology, collective and sketch.")
    verb.add_argument("file", metavar="FILE", help="a file that `taccl synthesize -o` wrote")

    verb = add_verb("show", show, "Show a schedule, a sketch, or a topology with its constants' sources.")
    verb.add_argument("thing", metavar="THING", help="a file, a shipped sketch, a machine, or a fabric")
    verb.add_argument("--nodes", type=positive, metavar="N", help="number of nodes")
    verb.add_argument("--profile", metavar="P", help="which constants of a machine")
    verb.add_argument("--transfers", type=int, default=20, metavar="N", help="rows (default 20, -1: all)")

    verb = add_verb("baseline", baseline, "Show what a well-known algorithm, without a sketch, would take.")
    verb.add_argument("name", nargs="?", metavar="NAME", help="one of --list, or best")
    add_sketch(verb)
    verb.add_argument("--list", action="store_true", help="list the baselines")
    add_problem_options(verb, collective_required=False)
    add_output(verb)

    verb = add_verb("bound", bound, "Show a proven lower bound on any schedule's finish, and what limits.")
    add_sketch(verb)
    add_problem_options(verb)

    add_verb("backends", backends, "List the backends, their versions and licences, or why they are missing.")
    return parser


class _Version(argparse.Action):
    """``--version``, looked up only when asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help="show the version and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"taccl {taccl.__version__}")
        parser.exit()


def _check_output(options: argparse.Namespace) -> None:
    """Raise `InputError` for an output file that could not be written, before any long work."""
    if options.output is None:
        return
    path = Path(options.output)
    if path.is_dir():
        raise InputError("is a folder; give the path of a file", where=options.output)
    if path.exists() and not options.overwrite:
        raise InputError(
            "the file exists; pass --overwrite to replace it, or give another path", where=options.output
        )
    if not path.parent.is_dir():
        raise InputError(
            f"there is no folder {path.parent}; make it first, or give another path", where=options.output
        )
    if not os.access(path.parent, os.W_OK):
        raise InputError(
            f"the folder {path.parent} may not be written to; give another path", where=options.output
        )


@contextlib.contextmanager
def _progress(*, shown: bool) -> Iterator[Callable[[str, float | None, float | None], None] | None]:
    """A line on stderr that says what is going on; None where nobody would see it."""
    if not shown:
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


def _written(options: argparse.Namespace) -> str:
    return f"\n\nwritten to {options.output}" if options.output is not None else ""


def _explained(error: Exception) -> Answer:
    """What an error says to a person, with its exit code."""
    for kind, code in _EXIT_CODES:
        if isinstance(error, kind):
            return _failed(getattr(error, "message", str(error)), getattr(error, "where", None), code)
    return _failed(
        f"a fault of taccl's own ({type(error).__name__}: {error}); set TACCL_TRACEBACK=1 to see where, "
        "and report it",
        None,
        _EXIT_OWN_FAULT,
    )


def _failed(message: str, where: str | None, code: int) -> Answer:
    values = {"error": message, "where": where, "exit_code": code}
    return Answer("", values, code, f"{where}: {message}" if where else message)


def _show_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    _say(f"warning: {message}")


def _say(message: str) -> None:
    print(f"taccl: {message}", file=sys.stderr)


def _emit(answer: Answer, *, as_json: bool) -> None:
    """Print an answer; a reader that has gone away (``| head``) changes nothing about it."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name that the terminal cannot show
    try:
        if as_json:
            print(json.dumps(answer.values, allow_nan=False))
        elif answer.text:
            print(answer.text)
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes once more at exit, which must find a descriptor that still takes something.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if answer.complaint and not as_json:
        _say(f"error: {answer.complaint}")
