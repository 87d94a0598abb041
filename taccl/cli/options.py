"""Options that verbs share, as argparse reads them."""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from taccl._internal.names import did_you_mean, matching
from taccl._internal.units import parse_size, parse_sizes, parse_time_us
from taccl._internal.value_readers import MOST_S
from taccl._internal.value_readers import share as read_share
from taccl.errors import InputError
from taccl.problem import collectives
from taccl.problem.collectives import ARGUMENTS, CollectiveArguments, argument_names

T = TypeVar("T")


def reader(make: Callable[[str], T], fits: Callable[[T], object], expected: str) -> Callable[[str], T]:
    """Make an argparse converter that applies `make` to a word and checks the result with `fits`.

    If `make` raises ValueError, or the check fails, the error names what was `expected`.
    """

    def read(word: str) -> T:
        try:
            found = make(word)
        except ValueError:
            pass
        else:
            if fits(found):
                return found
        raise argparse.ArgumentTypeError(f"found {word!r}; expected {expected}")

    return read


def whole(word: str) -> int:
    """A whole number of at least 0 and at most 18 digits; ValueError for anything else."""
    return int(word if word.isascii() and word.isdigit() and len(word) <= 18 else "")


def _seconds(word: str) -> float:
    """Seconds from a number, or a time with its unit such as ``60s``; ValueError for any other text."""
    if word[-1:].isalpha():
        return min(float(parse_time_us(word) / 10**6), MOST_S)
    found = float(word)
    return found if math.isinf(found) else min(found, MOST_S)


positive = reader(whole, lambda n: n > 0, "a positive whole number")
at_least_zero = reader(whole, lambda n: n >= 0, "a whole number of at least 0")
jitter = reader(float, lambda x: 0 <= x < 1, "a number of at least 0 and below 1")
rate = reader(float, lambda x: 0 < x < math.inf, "a positive number")
seconds = reader(
    _seconds, lambda x: 0 < x < math.inf, "a positive number of seconds, or a time such as 60s or 5min"
)


def _ranks_and_runs(text: str) -> tuple[int, ...]:
    """Ranks in a list of ranks and ranges, such as ``0-3,8``; ValueError for any other text."""
    runs = [word.partition("-") for word in text.split(",")]
    return tuple(rank for a, dash, b in runs for rank in range(whole(a), whole(b if dash else a) + 1))


_us = reader(float, lambda x: 0 <= x < math.inf, "a time in us of at least 0")
_subset = reader(
    _ranks_and_runs,
    # Ranks are renumbered in ascending order; another order, as of CUDA_VISIBLE_DEVICES=3,1, would be lost.
    lambda ranks: ranks != () and all(a < b for a, b in itertools.pairwise(ranks)),
    "ranks such as 0-3,8, each once, in ascending order",
)


def several(read: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """Make a function that converts comma-separated values for argparse."""
    return lambda text: tuple(map(read, text.split(",")))


def parsed(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Make an argparse converter from a function of a word that raises `InputError`."""

    def read(word: str) -> T:
        try:
            return parse(word)
        except InputError as error:
            raise argparse.ArgumentTypeError(error.message) from None

    return read


size, sizes = parsed(parse_size), parsed(parse_sizes)


def share(word: str) -> str:
    """Check a share such as ``1%``, for argparse. It stays text, as a number above 1 is no valid share."""
    parsed(lambda text: read_share(text, "share"))(word)
    return word


def _collective(word: str, *more: str) -> str:
    """Name of the collective, or the name in `more`, that a word spells in any variant."""
    known = (*collectives.COLLECTIVES, *more)
    name = matching(word, known)
    if name is None:
        near = did_you_mean(word, known)
        raise argparse.ArgumentTypeError(f"found {word!r}; expected one of {', '.join(known)}{near}")
    return name


#: `BY_MATRIX`: name of the collective whose message sizes come from a matrix.
#: `MATRICES`: text on the forms in which the matrix may be given.
BY_MATRIX, MATRICES = "alltoallv", "a CSV or .npy file, or a skew such as zipf:0.8 or hot:64"
#: `EXCHANGE`: name of the collective of servers and workers.
#: `ROLES`: options of the collective `EXCHANGE`.
EXCHANGE, ROLES = "exchange", ("servers", "worker_ranks", "layers", "update_us_per_mb")
#: Size of a collective if neither a sketch nor an option states one.
USUAL_SIZE = "64MB"
#: Least seconds for the main work of a verb, even if its preparation used up the time limit.
LEAST_S = 0.1
A_TOPOLOGY = "a file, a machine (ndv2), or a fabric (torus:4x4)"
_COLLECTIVES = ", ".join(collectives.COLLECTIVES)
_PROTOCOL = "message protocol (default auto: predicted fastest for the size)"
_SIZE = "larger of a rank's input and output buffer, e.g. 16MB (default: the sketch's, or 64MB)"
_CHUNKS_PER_RANK = (
    "number of chunks that each rank's data is cut into; a sketch's size is that of one chunk, so K chunks "
    "make K times the data, unless --size gives the data"
)
#: {option that several verbs share: (name of its value, help, other arguments of argparse)}.
_SHARED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "--topology": ("FILE|NAME", A_TOPOLOGY, {}),
    "--nodes": ("N", "number of nodes; rescales sketches", {"type": positive}),
    "--profile": ("P", "cost profile of the machine: a name such as nominal, or a file of `taccl fit`", {}),
    "--protocol": ("auto|simple|ll|ll128", _PROTOCOL, {"type": str.lower, "default": "auto"}),
    "--collective": ("NAME", _COLLECTIVES, {"type": _collective, "required": True}),
    "--size": ("S", _SIZE, {"type": size}),
    "--chunk-size": ("S", "bytes of one chunk, e.g. 1MB", {"type": size}),
    "--chunks-per-rank": ("K", _CHUNKS_PER_RANK, {"type": positive}),
    "--time-unit-us": ("US", "microseconds in the file's unit of time", {}),
    "--backend": ("NAME", "auto, or one of `taccl backends`", {"default": "auto"}),
    "--time-limit": ("S", "seconds", {"type": seconds, "default": 30.0}),
    "--threads": ("N", "threads of a solver", {"type": positive}),
    "--seed": ("N", "random seed (default 0)", {"type": at_least_zero, "default": 0}),
}


def option(
    parser: argparse._ActionsContainer, words: str, help: str, read: Callable[[str], Any] | None = None,
    **how: Any,
) -> None:  # fmt: skip
    """Declare an option from one text: its flags, then its value's name or its choices.

    Choices are ``one|other``. Without a value the option is a switch. The default is appended to the help,
    unless the help already has the word "default".
    """
    *flags, value = words.split(" ")
    if value.startswith("-"):
        flags, how = [*flags, value], {"action": "store_true"} | how
    elif value.islower():
        how = {"choices": value.split("|")} | how
    else:
        how = {"metavar": value, "type": read} | how
    default = how.get("default")
    if default and default != "auto" and "default" not in help:
        help += f" (default {default:g})" if isinstance(default, float) else f" (default {default})"
    parser.add_argument(*flags, help=help, **how)


def add_options(parser: argparse._ActionsContainer, *names: str, help: str = "", **changed: Any) -> None:
    """Declare options of `_SHARED` by name.

    - `help`: Help in place of the usual one.
    - `changed`: Arguments of argparse in place of the usual ones.
    """
    for name in names:
        value, usual, how = _SHARED[name]
        option(parser, f"{name} {value}", help or usual, **(how | changed))


def add_limit(
    verb: argparse.ArgumentParser, group: argparse._ActionsContainer | None = None, *,
    default: float = 30.0, help: str = "time limit in seconds, or such as 5min", earlier: str = "",
) -> None:  # fmt: skip
    """Declare the time limit of a verb, in a group of its options; `options.deadline` then holds it.

    - `earlier`: Earlier name of the option, which is accepted as well.
    """
    add_options(group or verb, "--time-limit", help=help, default=default)
    if earlier:
        verb.add_argument(
            earlier, type=seconds, dest="time_limit", default=argparse.SUPPRESS, help=argparse.SUPPRESS
        )


def add_output(verb: argparse.ArgumentParser, help: str, *, required: bool = False) -> None:
    """Declare the options for the file to write."""
    option(verb, "-o --output FILE", help, required=required)
    option(verb, "--overwrite", "replace the file if it exists")


def add_subset(parser: argparse._ActionsContainer, usual: str = "all") -> None:
    """Declare the options for a subset of a topology's ranks, which are renumbered from 0.

    - `usual`: The ranks without these options, for the help.
    """
    help = "participating ranks in ascending order, such as those of CUDA_VISIBLE_DEVICES"
    option(parser, "--ranks R-R,R", f"{help} (default: {usual})", _subset)
    option(parser, "--without-rank R,R", "excluded ranks", _subset, default=())


def add_size(parser: argparse._ActionsContainer) -> None:
    """Declare ``--size`` and ``--chunk-size``, of which at most one may be given."""
    add_options(parser.add_mutually_exclusive_group(), "--size", "--chunk-size")


def add_schedule(verb: argparse.ArgumentParser, *also: str) -> None:
    """Declare the argument for a schedule's file, and the options for files of the published TACCL tool.

    - `also`: Other kinds of files that the verb accepts, for the help.
    """
    kinds = ["a schedule (of `taccl synthesize -o`)", "an algorithm of the published TACCL tool", *also]
    verb.add_argument("file", metavar="FILE", help=", ".join(kinds[:-1]) + f" or {kinds[-1]}")
    group = verb.add_argument_group("for an algorithm of the published TACCL tool")
    add_options(group, "--topology", help="topology to re-time the schedule on")
    add_options(group, "--chunk-size", "--time-unit-us")


def flag_of(name: str) -> str:
    """Flag of an attribute of the parsed options: ``time_limit`` is ``--time-limit``."""
    return "--" + name.replace("_", "-")


def was_given(name: str, options: argparse.Namespace) -> bool:
    """True if an option was given on the command line, rather than left at its default."""
    return any(word.partition("=")[0] == flag_of(name) for word in options.words)


def refuse(options: argparse.Namespace, names: Iterable[str], why: str) -> None:
    """Raise `InputError` for the first option in `names` that was given; `why` is the message."""
    for name in names:
        if getattr(options, name) is not None:
            raise InputError(why, where=flag_of(name))


def _along(word: str) -> tuple[int, ...] | str:
    """Convert the value of ``--along``: dimensions such as ``1,3``, or the name of process groups."""
    if word[:1].isdigit():
        return reader(several(positive), bool, "dimensions such as 1,3")(word)
    return word


def add_collective(parser: argparse._ActionsContainer, *, required: bool = True) -> None:
    """Declare options for the collective, its arguments, a matrix of bytes, and servers and workers."""
    help = f"{_COLLECTIVES}, {BY_MATRIX} with --matrix, or {EXCHANGE} with --servers"
    known = BY_MATRIX, EXCHANGE
    add_options(
        parser, "--collective", help=help, required=required, type=lambda word: _collective(word, *known)
    )
    option(
        parser, "--matrix FILE|SKEW", f"bytes from each rank (row) to each rank, for {BY_MATRIX}: {MATRICES}"
    )
    for name, kind in CollectiveArguments.__annotations__.items():
        is_list, letter = "Sequence" in str(kind), name[0].upper()
        takers = ", ".join(each for each in collectives.COLLECTIVES if name in argument_names(each))
        read = reader(several(whole), bool, ARGUMENTS[name]) if is_list else at_least_zero
        value = f"{letter},{letter}" if is_list else letter
        option(parser, f"--{name} {value}", f"{ARGUMENTS[name]}; for {takers}", read)
    help = "one collective per group of ranks that differ only in these dimensions (numbered from 1), or a "
    help += "[[group]] of the sketch"
    option(parser, "--along K,K|GROUP", help, _along)
    option(parser, "--servers R-R,R", f"server ranks, which reduce and update, for {EXCHANGE}", _subset)
    help = f"ranks that contribute, for {EXCHANGE} (default: all but the servers, or all if all serve)"
    option(parser, "--worker-ranks R-R,R", help, _subset)
    help = f"layers for {EXCHANGE}, in place of a size: a model's name, or a CSV file of name,bytes"
    option(parser, "--layers FILE|MODEL", help)
    option(parser, "--update-us-per-mb US", f"microseconds per MB of a server's update, for {EXCHANGE}", _us)


def add_problem_options(
    parser: argparse.ArgumentParser, *, also: str = "", collective_required: bool = True
) -> None:
    """Declare the sketch argument, and the options that describe a problem.

    - `also`: Other inputs that the verb accepts in place of a sketch, for the help.
    """
    help = "a shipped sketch (ndv2/sk1), a sketch file (also of the published TACCL tool), or a topology"
    parser.add_argument("sketch", nargs="?", metavar="SKETCH", help=help + also)
    group = parser.add_argument_group("problem")
    add_collective(group, required=collective_required)
    add_options(group, "--topology")
    costs = "costs of a topology file of the published TACCL tool: its own (upstream), or ours (physical)"
    option(group, "--cost-model upstream|physical", costs)
    add_options(group, "--time-unit-us", help="microseconds in the unit of time of such a file")
    add_options(group, "--nodes", "--profile", "--protocol")
    add_subset(group)
    add_size(parser.add_argument_group("size, one of"))
    add_options(group, "--chunks-per-rank")
