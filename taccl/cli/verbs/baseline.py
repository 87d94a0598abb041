"""``taccl baseline``: what a well-known algorithm, without a sketch, would take."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace

import taccl
from taccl.cli.options import add_output, add_problem_options, option, problem_from_options
from taccl.cli.output import Answer, check_output, with_file
from taccl.errors import InputError
from taccl.names import matching, table


def add(verb: ArgumentParser) -> None:
    """Declare the options."""
    verb.add_argument("name", nargs="?", metavar="NAME", help="one of --list, or best of all but nccl")
    option(verb, "--list", "list the baselines")
    add_problem_options(verb, collective_required=False)
    add_output(verb, "write the schedule to a file")


def run(options: Namespace) -> Answer:
    """Show what a well-known algorithm, without a sketch, would take."""
    from taccl.baselines.nccl import Considered, nccl_bounded
    from taccl.cli.text import figures_table, result_answer
    from taccl.synthesis.result import Result

    if options.list:
        known = {**taccl.baselines.BASELINES, "nccl": taccl.baselines.nccl}.items()
        rows = [(name, (function.__doc__ or "").splitlines()[0]) for name, function in known]
        return Answer(table(rows), {"baselines": dict(rows)})
    if options.name is None:
        raise InputError("found none; give the name of a baseline, or --list to see them", where="NAME")
    check_output(options)
    problem = problem_from_options(options)
    began = time.perf_counter()
    schedule = taccl.baselines.baseline(options.name, problem)
    took_s = time.perf_counter() - began
    taccl.verify(schedule).raise_if_failed()
    is_nccl, notes = bool(matching(options.name, ["nccl"])), list(schedule.problem.notes)
    bounded = schedule.problem
    considered: tuple[Considered, ...] = ()
    if is_nccl:
        considered = taccl.baselines.nccl_choices(problem)
        bounded, said = nccl_bounded(problem, schedule, considered[0])
        notes += said
    bound = taccl.lower_bound(bounded, divisible=False)
    result = Result(schedule, bound, f"baseline {options.name}", (), took_s, notes=tuple(notes))
    if problem.chunks_open:
        result = result.over_all_chunkings()
    answer = result_answer(result)
    if is_nccl:
        choices = [each._asdict() for each in considered]
        names = ("algorithm", "protocol", "channels", "latency_us", "gb_per_s", "time_us")
        text = f"{answer.text}\n\n{figures_table(choices, names)}"
        if "nvls" not in {each["algorithm"] for each in choices}:
            text += "\nnvls: none, as no switch here adds up all ranks' data"
        answer = Answer(text, answer.values | {"considered": choices})
    return with_file(answer, schedule, options)
