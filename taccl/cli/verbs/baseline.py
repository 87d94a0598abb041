"""``taccl baseline``: finish time of a well-known algorithm, without a sketch."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from contextlib import suppress
from functools import partial

import taccl
from taccl._internal.arguments import known_name
from taccl._internal.deadline import Deadline, OutOfTime, busy_factor
from taccl._internal.names import matching, note_lines, table
from taccl._internal.units import format_us, gb_per_s
from taccl.analysis.certificates.bounds import latency_bound
from taccl.cli.options import LEAST_S, add_limit, add_output, add_problem_options, option
from taccl.cli.output import Answer, check_schedule_output, ended_by_ctrl_c, say, with_file
from taccl.cli.problems import problem_from_options
from taccl.errors import CollectiveError, InputError
from taccl.problem.problem import Problem
from taccl.schedule.schedule import Schedule
from taccl.synthesis.parameters import DEFAULTS
from taccl.topology.models import library_name

#: Share of the time limit for the schedule; the rest is for its verification and bounds.
_SCHEDULE_SHARE = 0.6
#: Share of the time left in which the baseline best is compared with nccl.
_NCCL_SHARE = 0.1
#: Max seconds for the lower bound, with which the schedule is compared.
_BOUND_S = 20.0


def add(verb: ArgumentParser) -> None:
    """Declare the options."""
    verb.add_argument(
        "name", nargs="?", metavar="NAME", help="a name from --list, or best: the fastest except nccl"
    )
    option(verb, "--list", "list the baselines")
    option(
        verb,
        "--no-nvls",
        "nccl without NVLS (reduction in NVSwitches, on by default for Hopper and Blackwell)",
    )
    add_problem_options(verb, collective_required=False)
    add_limit(verb, default=60.0)
    add_output(verb, "write the schedule to FILE")


def run(options: Namespace) -> Answer:
    """Show the schedule of a well-known algorithm, without a sketch."""
    from taccl.baselines.nccl import Considered, choice_gap, nccl_bounded
    from taccl.baselines.nvls import why_no_nvls
    from taccl.cli.output import figures_table, result_answer
    from taccl.synthesis.result import Result, Stages

    if options.list:
        known = {**taccl.baselines.BASELINES, "nccl": taccl.baselines.nccl}.items()
        rows = [(name, (function.__doc__ or "").splitlines()[0]) for name, function in known]
        return Answer(table(rows), {"baselines": dict(rows)})
    if options.name is None:
        raise InputError("found none; give the name of a baseline (see --list)", where="NAME")
    check_schedule_output(options)
    names = (*taccl.baselines.BASELINES, "best", "nccl")
    if not matching(options.name, names) and matching(options.sketch or "", names):
        command = f"taccl baseline {options.sketch} {options.name}"
        raise InputError(f"found {options.name!r}; the baseline comes first: {command}", where="NAME")
    options.name = known_name(options.name, names, "NAME")
    is_nccl = options.name == "nccl"
    if options.no_nvls and options.name not in ("nccl", "best"):
        raise InputError(f"found with {options.name}; it is for nccl: leave it out", where="--no-nvls")
    if is_nccl and options.protocol == "auto":
        options.protocol = None  # NCCL's model chooses the protocol
    problem = problem_from_options(options)
    began = time.perf_counter()
    try:
        schedule = _schedule(options.name, problem, options.deadline, nvls=not options.no_nvls)
    except (OutOfTime, KeyboardInterrupt) as error:
        is_wanted = is_nccl and options.output is None
        predicted = _predicted(problem, nvls=not options.no_nvls) if is_wanted else None
        if predicted is None:
            raise
        if isinstance(error, KeyboardInterrupt):
            say("warning: stopped by Ctrl-C; this is the predicted time only")
        return predicted
    took_s = time.perf_counter() - began
    taccl.verify(schedule).raise_if_failed()
    notes, bounded = _ignored(problem, schedule), schedule.problem
    considered: tuple[Considered, ...] = ()
    if options.name == "best":
        notes += _sooner_nccl(problem, schedule, options)
    if is_nccl:
        considered = taccl.baselines.nccl_choices(problem, nvls=not options.no_nvls)
        bounded, said = nccl_bounded(problem, schedule, considered[0], nvls=not options.no_nvls)
        notes += [*filter(None, (choice_gap(problem.topology, considered),)), *said]
    if not problem.chunks_open:
        notes += ["chunks are not cut, as their number is given; baselines cut them if it is left open"]
    notes += schedule.problem.notes  # the least important, as they are known beforehand
    with ended_by_ctrl_c(options.deadline, "the bound may be loose"):
        left_s = options.deadline.left_s
        try:
            options.deadline.check()
            bound = taccl.lower_bound(
                bounded, divisible=False, budget_s=min(_BOUND_S, left_s), limit_s=left_s, end_s=left_s
            )
        except OutOfTime:
            bound = latency_bound(bounded)
        result = Result(schedule, bound, f"baseline {options.name}", Stages(), took_s, notes=tuple(notes))
        if problem.chunks_open:
            with suppress(OutOfTime), options.deadline.enforced():
                result = result.over_all_chunkings()
    answer = result_answer(result, options.deadline)
    if is_nccl:
        choices = [each._asdict() for each in considered]
        names = ("algorithm", "protocol", "channels", "latency_us", "gb_per_s", "time_us")
        text = f"{answer.text}\n\n{figures_table(choices, names)}"
        if "nvls" not in {each["algorithm"] for each in choices}:
            why = "by --no-nvls" if options.no_nvls else why_no_nvls(problem)
            text += f"\nnvls: none, {why}"
        answer = Answer(text, answer.values | {"considered": choices})
    return with_file(answer, schedule, options)


def _predicted(problem: Problem, *, nvls: bool) -> Answer | None:
    """Answer with the predicted time of NCCL, if the time limit is too short to build its schedule.

    None unless the topology is a machine by name.
    """
    from taccl.baselines.nccl import expected_of_nccl

    expected = expected_of_nccl(problem, nvls=nvls)
    if expected is None:
        return None
    library, size_bytes = library_name(problem.topology), problem.size_bytes
    rate = gb_per_s(size_bytes, expected.time_us)
    rows = [("predicted", f"{format_us(expected.time_us)} ({expected.algorithm}, {expected.protocol})")]
    rows += [] if rate is None else [("bandwidth", f"algbw {rate:.4g} GB/s")]
    notes = [
        f"no schedule: {library}'s channels were not found in time; give more time (--time-limit)",
        f"the time is by {library}'s tables and rates from measured logs, as `taccl.predict` computes it",
    ]
    values = {
        "collective": problem.collective.name, "topology": problem.topology.name,
        "num_ranks": problem.topology.num_ranks, "size_bytes": size_bytes, "finish_us": None,
        "predicted_us": expected.time_us, "launch_us": expected.launch_us,
        "algorithm": expected.algorithm, "protocol": expected.protocol, "algbw_gb_per_s": rate,
        "notes": notes,
    }  # fmt: skip
    text = "\n".join([problem.heading, table(rows, indent="  "), *note_lines(notes)])
    return Answer(text, values)


def _ignored(problem: Problem, schedule: Schedule) -> list[str]:
    """Note on a sketch whose clauses bind a problem, but not the schedule of a baseline; empty if none."""
    kept = schedule.problem.clauses.said()
    if all(each.scope == "search" or each in kept for each in problem.clauses.said()):
        return []
    return ["a baseline ignores the sketch, except for its limits on merging, and so does its bound"]


def _sooner_nccl(problem: Problem, schedule: Schedule, options: Namespace) -> list[str]:
    """Note if nccl, which best leaves out, has a shorter modelled time; empty otherwise, or if time is up."""
    limit = options.deadline.sooner(_NCCL_SHARE * options.deadline.left_s)
    with suppress(CollectiveError, InputError, OutOfTime), limit.enforced():
        chosen = taccl.baselines.nccl_choices(problem, nvls=not options.no_nvls)[0]
        if chosen.time_us < schedule.predicted_us:
            said = f"best leaves out nccl, whose modelled time is {format_us(chosen.time_us)} ({chosen})"
            return [f"{said}: `taccl baseline nccl`"]
    return []


def _schedule(name: str, problem: Problem, deadline: Deadline, *, nvls: bool) -> Schedule:
    """The fastest schedule of a baseline that is found in time, or before Ctrl-C.

    A number of chunks that the options give is kept. While there is no schedule, the time limit may be
    exceeded by up to ``budget.late_s``, as by a synthesis, except for nccl.
    """
    from taccl.baselines.chunking import built_within, soonest_so_far

    if name == "nccl":
        with deadline.enforced():
            return taccl.baselines.nccl(problem, cut=problem.chunks_open, nvls=nvls)
    limit, known, why = deadline.sooner(_SCHEDULE_SHARE * deadline.left_s), list[Schedule](), ""
    try:
        with deadline.later(DEFAULTS.budget.late_s * busy_factor()).enforced():
            if name == "best":
                known = soonest_so_far(problem)
                left_s = max(LEAST_S, limit.left_s)
                found = taccl.baselines.best(problem, cut=problem.chunks_open, time_limit_s=left_s)
            else:
                make = partial(taccl.baselines.baseline, name, problem, cut=False)
                found = built_within(problem, make, limit) or make()
                known = [found]
                with suppress(OutOfTime), limit.enforced():
                    found = taccl.baselines.baseline(name, problem) if problem.chunks_open else found
    except KeyboardInterrupt:
        if not known:
            raise
        found, why = min(known, key=lambda schedule: schedule.finish), "Ctrl-C"
    if why := why or "the time limit" * limit.has_passed:
        say(f"warning: stopped by {why}; this is the fastest baseline so far")
    return found
