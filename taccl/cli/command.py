"""Parse the command line, run the named verb, and print its answer."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from importlib import import_module
from itertools import takewhile
from typing import Any, NoReturn

import taccl
from taccl._internal.deadline import Deadline
from taccl._internal.names import did_you_mean
from taccl.cli.options import flag_of
from taccl.cli.output import (
    EXIT_INTERRUPTED,
    Answer,
    emit,
    explained,
    failed,
    hold_descriptors,
    warning_printer,
)
from taccl.cli.verbs import EXAMPLES, SHARED, VERBS
from taccl.errors import InputError, TacclWarning

_INTERRUPTED = failed("interrupted before any result", EXIT_INTERRUPTED)


def run(
    argv: Sequence[str] | None = None, interrupts: Sequence[int] = (), *, began_s: float | None = None
) -> int:
    """Run one verb; return its exit code.

    - `interrupts`: List to which the caller's signal handler appends each Ctrl-C.
    - `began_s`: Start of the verb on the clock of `time.monotonic`, from which its time limit counts.
    """
    began_s = time.monotonic() if began_s is None else began_s
    words = list(sys.argv[1:] if argv is None else argv)
    hold_descriptors()
    with warnings.catch_warnings():
        warnings.simplefilter("once", TacclWarning)
        warnings.showwarning = warning_printer()
        try:
            answer = _answer(words, interrupts, began_s)
        except KeyboardInterrupt as interrupt:
            answer = failed(str(interrupt), EXIT_INTERRUPTED) if str(interrupt) else _INTERRUPTED
    # An import that Ctrl-C interrupts may look like a missing or damaged library.
    if interrupts and answer.exit_code not in (0, EXIT_INTERRUPTED) and not answer.text:
        answer = _INTERRUPTED
    return emit(answer, as_json="--json" in words)


def _answer(words: list[str], interrupts: Sequence[int], began_s: float) -> Answer:
    options = argparse.Namespace()
    if words[:1] == ["--version"]:
        return Answer(f"taccl {taccl.__version__}", {"version": taccl.__version__})
    try:
        options = build_parser(words[0] if words and words[0] in VERBS else None).parse_args(words)
        if interrupts:  # Python drops a KeyboardInterrupt raised while a module is deallocated
            return _INTERRUPTED
        options.words = words  # the command line, stored in output files
        options.began_s = began_s
        limit_s = getattr(options, "time_limit", None)
        options.deadline = Deadline() if limit_s is None else Deadline(began_s + limit_s)
        warnings.showwarning = warning_printer(options.flags, is_verbose=options.verbose)
        answer: Answer = options.run(options)
        return answer.on_command_line(options.flags)
    except _Help as help:
        return Answer(str(help), {"help": str(help)})
    except Exception as error:
        if os.environ.get("TACCL_TRACEBACK") == "1":
            traceback.print_exc()
        where = _option_named(getattr(error, "where", None), options)
        return explained(error, where=where, flags=getattr(options, "flags", ()))


class _Help(Exception):
    """Raised by ``--help``, with the text to print."""


class _VerbsHelp(argparse.HelpFormatter):
    """Help with each verb on one line: argparse leaves the indentation of verbs out of their width."""

    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        if isinstance(action, argparse._SubParsersAction):
            self._action_max_length += self._indent_increment


#: How argparse begins its message on required arguments that were not given.
_REQUIRED = "the following arguments are required: "


class _Parser(argparse.ArgumentParser):
    """Argument parser that raises `InputError` and prints nothing."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        # Treat ``-5MB`` as a wrong size, not as an option.
        self._negative_number_matcher = re.compile(r"^-\.?\d")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, but report unknown options first, with the help of the verb."""
        is_own = (lambda word: word != "--") if self._subparsers is None else (lambda word: word[:1] == "-")
        for word in takewhile(is_own, args):
            if word.startswith("--") and word != "--json":  # help and version accept --json, too
                self._check_option(word)
        found, extra = super().parse_known_args(args, namespace)
        for word in extra:
            if word.startswith("-") and word != "--":
                self._check_option(word)
            self.error(f"found {word!r} after all arguments; leave it out")
        return found, extra

    def _check_option(self, word: str) -> None:
        name, known = word.partition("=")[0], self._option_string_actions
        if name not in known:
            shown = [each for each, action in known.items() if action.help != argparse.SUPPRESS]
            near = did_you_mean(name, shown)
            for action in self._get_positional_actions():
                if action.dest == name[2:]:
                    near = f"; give its value alone: {self.prog} {action.metavar or action.dest}"
            if self._subparsers is not None and not near:
                near = " before the verb; put a verb's options after it"
            self.error(f"there is no option {name}{near}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = list(map(str, action.choices))
        said = f"found {value!r}; expected one of {', '.join(known)}{did_you_mean(str(value), known)}"
        raise argparse.ArgumentError(action, said)

    def error(self, message: str) -> NoReturn:
        where = None
        if message.startswith("argument "):
            where, _, message = message.removeprefix("argument ").partition(": ")
        if message == "expected one argument":
            message = "found no value; give one"
        if message.startswith(_REQUIRED):
            where, message = message.removeprefix(_REQUIRED), "found none; give one"
            known = {argparse._get_action_name(each): each.choices for each in self._actions}.get(where)
            message += f" of {', '.join(known)}" if known else ""
        raise InputError(f"{message} (see {self.prog} --help)", where=where)

    def print_help(self, file: object = None) -> None:
        raise _Help(self.format_help().rstrip())


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """Build the parser of all verbs, or, in less time, of the verb `only`."""
    parser = _Parser(
        prog="taccl",
        description="Synthesize verified schedules for collective communication from sketches.",
        epilog="taccl VERB --help shows options and examples. Exit codes: 0 success, 1 a check failed or no "
        "schedule was found, 2 bad input, 3 a solver is missing, 70 a bug in taccl, 130 Ctrl-C.",
        allow_abbrev=False,
        formatter_class=_VerbsHelp,
    )
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    for name in VERBS if only is None else (only,):
        module, suffix = (SHARED[name], f"_{name}") if name in SHARED else (name, "")
        functions = vars(import_module(f"taccl.cli.verbs.{module}"))
        add, run = functions[f"add{suffix}"], functions[f"run{suffix}"]
        help = run.__doc__ or ""  # python -OO strips docstrings
        examples = [line for line in EXAMPLES.splitlines() if line.split()[1:2] == [name]]
        verb = verbs.add_parser(
            name,
            help=help,
            description=help,
            epilog="\n  ".join(("examples:", *examples)),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        verb.add_argument("--json", action="store_true", help="print one JSON object")
        verb.add_argument("--verbose", action="store_true", help="print warnings with all details")
        add(verb)
        flags = {action.dest for action in verb._actions if action.option_strings}
        verb.set_defaults(run=run, flags=flags)
    return parser


def _option_named(where: str | None, options: argparse.Namespace) -> str | None:
    """Command-line option for the parameter name in an error's `where`; None if there is none."""
    where = where or ""
    names = (where, f"{where}s", *(where.removesuffix(unit) for unit in ("_s", "_mb", "_bytes", "_dir")))
    return next((flag_of(name) for name in names if name in getattr(options, "flags", ())), None)


def complete() -> None:
    """Answer a shell's completion request (``eval "$(register-python-argcomplete taccl)"``)."""
    from argcomplete import autocomplete

    names: Any = _names_and_files
    autocomplete(build_parser(), default_completer=names, append_space=False)


def _names_and_files(prefix: str, action: argparse.Action, **_: object) -> list[str]:
    """Completions of `prefix`: names that the option accepts, if it has some; else all names and files."""
    from argcomplete.completers import FilesCompleter

    from taccl.solvers.registry import OWN_BACKENDS, known_solvers

    fabrics = (f"{fabric}:" for fabric in taccl.topologies.fabric_names())
    machines, collectives = taccl.topologies.machine_names(), taccl.collectives.COLLECTIVES
    backends, sketches = (*OWN_BACKENDS, *known_solvers()), taccl.shipped_sketches()
    of_kind = {"collective": collectives, "backend": backends, "backends": backends}.get(action.dest)
    known = of_kind or (*sketches, *machines, *fabrics, *collectives, *backends)
    files = [] if of_kind else FilesCompleter()(prefix)
    return [name for name in known if name.startswith(prefix)] + list(files)
