"""``taccl synthesize``: find a schedule, verify it, and say how good it is."""

from __future__ import annotations

import logging
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import taccl
from taccl.cli.answer import Answer
from taccl.cli.implicit import check_room, implicit_answer
from taccl.cli.options import (
    add_options,
    add_problem_options,
    add_sketch,
    problem_from_options,
    settle_topology,
)
from taccl.cli.output import add_output, check_output, progress_shown, say, with_file
from taccl.errors import InputError
from taccl.units import format_count, parse_size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from taccl.problem import Problem

#: The part of the time limit that is spent on suggestions, and how much at most.
_SHARE, _MOST_S = 0.3, 20.0

#: What its help ends with.
EXAMPLES = (
    "taccl synthesize ndv2/sk1 --collective allgather --size 16MB -o schedule.json",
    "taccl synthesize dgx-a100 --nodes 2 --collective allreduce --size 64MB --time-limit 60",
)


def add(verb: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_sketch(verb)
    add_problem_options(verb)
    add_options(verb, "--backend", "--time-limit", "--threads")
    help = "memory of a solver or a large schedule, e.g. 4GB"
    verb.add_argument("--memory-limit", metavar="SIZE", help=help)
    verb.add_argument("--summary", action="store_true", help="of a large schedule keep the figures only")
    verb.add_argument("--spill", metavar="DIR", help="keep the columns of a large schedule in a new folder")
    add_options(verb, "--seed")
    verb.add_argument("--no-sketch", action="store_true", help="where no sketch is given, suggest none")
    verb.add_argument("--parameters", metavar="FILE", help="constants of the search, from a TOML file")
    verb.add_argument("--log", action="store_true", help="show what the solvers say, on stderr")
    add_output(verb, "write the schedule to a file")


def run(options: argparse.Namespace) -> Answer:
    """Find a schedule, verify it, and say how good it is."""
    from taccl.cli.text import result_text

    check_output(options)
    settle_topology(options)
    if options.output is not None and (options.summary or options.spill is not None):
        raise InputError(
            "found --summary or --spill as well, which leave no schedule to write; leave one of them out",
            where="--output",
        )
    implicit = None if options.summary or options.spill is not None else implicit_answer(options)
    if implicit is not None:
        return implicit
    memory_limit_mb = None
    if options.memory_limit is not None:
        memory_limit_mb = max(1, parse_size(options.memory_limit, where="--memory-limit") // 10**6)
    check_room(options, memory_limit_mb)
    problem = problem_from_options(options, reachable=False)  # synthesize explains what cannot be reached
    if options.log:
        logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(name)s: %(message)s")
    known = options.parameters
    parameters = taccl.SearchParameters.load(known) if known else taccl.SearchParameters()
    with progress_shown(wanted=not options.log) as progress:
        began = time.monotonic()
        problem, sketch = _suggested(problem, options, progress)
        result = taccl.synthesize(
            problem, backend=options.backend, sketch=sketch, threads=options.threads, seed=options.seed,
            time_limit_s=max(0.1, options.time_limit - (time.monotonic() - began)),
            memory_limit_mb=memory_limit_mb, log=options.log, progress=progress,
            keep="summary" if options.summary else "schedule", spill_dir=options.spill,
            to_file=options.output is not None, parameters=parameters,
        )  # fmt: skip
    if result.interrupted:
        say("warning: stopped by Ctrl-C; this is the best schedule so far")
    elif result.stopped == "time limit":
        say("warning: stopped by the time limit; this is the best schedule so far")
    return with_file(Answer(result_text(result), result.to_dict()), result.schedule, options)


def _suggested(
    problem: Problem,
    options: argparse.Namespace,
    progress: Callable[[str, float | None, float | None], None] | None,
) -> tuple[Problem, str | taccl.SketchProposal]:
    """The problem in as many chunks as the best suggested sketch asks for, and that sketch.

    A problem that is cut as its options say stays as it is; what is suggested for it is then left to
    `taccl.synthesize`, unless options forbid it.
    """
    from taccl.synthesis.suggesting.guided import is_unguided

    if options.no_sketch:
        return problem, "none"
    cut = options.sketch is not None or options.size is None or options.chunks_per_rank is not None
    cut |= problem.topology.cost_model == "upstream"  # whose costs are for one size of chunks
    alone = options.backend != "auto" or options.summary or options.spill is not None
    if cut or alone or not is_unguided(problem):
        return problem, "auto"
    try:
        found = taccl.suggest_sketches(
            problem.topology, options.collective, options.size, root=options.root, roots=options.roots,
            most=1, time_limit_s=min(_MOST_S, _SHARE * options.time_limit), seed=options.seed,
            progress=progress,
        )  # fmt: skip
    except InputError:  # what a sketch cannot speak of; synthesis says what is wrong with the rest
        return problem, "none"
    if not found:
        return problem, "none"
    collective = found[0].problem.collective
    again = taccl.make_problem(problem.topology, collective, size_bytes=problem.size_bytes)
    cut_into = format_count(collective.chunks_per_rank, "chunk")
    note = f"cut into {cut_into} a rank, which bound and gap are for; --chunks-per-rank gives another number"
    return replace(again, notes=(*again.notes, note)), found[0]
