"""``taccl synthesize``: find a schedule, verify it, and say how good it is."""

from __future__ import annotations

import argparse
import logging
import sys

import taccl
from taccl.cli.implicit import check_room, implicit_answer
from taccl.cli.options import (
    LEAST_S,
    add_limit,
    add_options,
    add_output,
    add_problem_options,
    option,
    problem_from_options,
    size,
)
from taccl.cli.output import Answer, check_output, picked, progress_shown, say, with_file
from taccl.errors import InputError

#: Share of the time limit for the bound over all chunkings and for the answer.
_REST_SHARE = 0.1


def add(verb: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_problem_options(verb)
    add_options(verb, "--backend")
    add_limit(verb)
    add_options(verb, "--threads")
    option(verb, "--policy lp|greedy", "how the backend dimension-balanced deals out chunks", default="lp")
    option(verb, "--memory-limit SIZE", "memory of a solver or a large schedule, e.g. 4GB", size)
    option(verb, "--summary", "of a large schedule keep the figures only")
    option(verb, "--spill DIR", "keep the columns of a large schedule in a new folder")
    add_options(verb, "--seed")
    option(verb, "--no-sketch", "where no sketch is given, suggest none")
    help = "switches that add: auto (default), off or only"
    option(verb, "--in-network auto|off|only", help, default="auto")
    option(verb, "--parameters FILE", "constants of the search, from a TOML file")
    option(verb, "--log", "show what the solvers say, on stderr")
    add_output(verb, "write the schedule to a file")


def run(options: argparse.Namespace) -> Answer:
    """Find a schedule, verify it, and say how good it is."""
    from taccl.cli.text import result_answer

    check_output(options)
    if options.output is not None and (options.summary or options.spill is not None):
        said = "found --summary or --spill as well, which leave no schedule to write; leave one of them out"
        raise InputError(said, where="--output")
    implicit = None if options.summary or options.spill is not None else implicit_answer(options)
    if implicit is not None:
        return implicit
    memory_limit_mb = options.memory_limit and max(1, options.memory_limit // 10**6)
    check_room(options, memory_limit_mb)
    problem = problem_from_options(options, reachable=False)  # synthesize explains what cannot be reached
    if options.log:
        logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(name)s: %(message)s")
    known = options.parameters
    parameters = taccl.SearchParameters.load(known) if known else taccl.SearchParameters()
    left_s = options.deadline.left_s - _REST_SHARE * options.time_limit
    with progress_shown(wanted=not options.log) as progress:
        result = taccl.synthesize(
            problem, **picked(options, "backend", "policy", "threads", "seed", "log", "in_network"),
            sketch="none" if options.no_sketch else "auto", time_limit_s=max(LEAST_S, left_s),
            memory_limit_mb=memory_limit_mb, progress=progress, parameters=parameters,
            keep="summary" if options.summary else "schedule", spill_dir=options.spill,
            to_file=options.output is not None,
        )  # fmt: skip
    if result.interrupted or result.stopped == "time limit":
        what = "Ctrl-C" if result.interrupted else "the time limit"
        say(f"warning: stopped by {what}; this is the best schedule so far")
    return with_file(result_answer(result, options.deadline), result.schedule, options)
