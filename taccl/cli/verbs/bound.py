"""``taccl bound``: a lower bound on any schedule's finish, and the costs of the sketch and whole chunks."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any

import taccl
from taccl._internal.deadline import OutOfTime, busy_factor
from taccl._internal.names import note_lines, table
from taccl._internal.units import format_count, format_rates, format_size, format_us, gb_per_s
from taccl.cli.inputs import followed, held_by, program_in
from taccl.cli.options import LEAST_S, ROLES, add_limit, add_problem_options, option, refuse
from taccl.cli.output import Answer, ended_by_ctrl_c, following_values, picked, say
from taccl.cli.problems import (
    exceeds_limit,
    is_by_name,
    named_fabric,
    problem_from_options,
    schedule_in,
    settle_size,
)
from taccl.errors import TopologyError
from taccl.problem.collective import busbw_factor
from taccl.problem.collectives import ARGUMENTS
from taccl.problem.making import merged
from taccl.schedule.implicit_schedule import IMPLICIT_COLLECTIVES

if TYPE_CHECKING:
    from taccl.analysis.certificates.certificate import Certificate
    from taccl.analysis.certificates.scopes import Prices
    from taccl.problem.problem import Problem
    from taccl.topology.named import NamedFabric

#: Share of the time left for `taccl.prices`: bounds with and without the sketch, and for divisible chunks.
#: `_PRICES_SHARE`: if the rest of the time limit is for the bound with sums in switches.
#: `_ONLY_PRICES`: if sums in switches cannot help, so that only the answer remains to be printed.
_PRICES_SHARE, _ONLY_PRICES = 0.75, 0.95
#: Min seconds for `taccl.prices`, as loading modules may use up the time limit on a busy machine.
#: If loading alone exceeds the limit, the minimum is lower by the excess:
#: `_LEAST_PRICES_S`: minimum if the limit was not exceeded.
#: `_LATE_PRICES_S`: minimum however long the excess is.
_LEAST_PRICES_S, _LATE_PRICES_S = 1.0, 0.3
#: CPU seconds to list links and chunks and to bound them, per pair of ranks, with a margin of 50 %.
#: If all pairs would exceed the time limit, the bound of a fabric given by name follows from its dimensions.
_LISTED_S_PER_PAIR = 1.2e-5
#: Note of an answer that the time limit or Ctrl-C cut off.
_SO_FAR = "these are the highest bounds so far"
#: {kind of a file whose problem is bounded: options that its content makes superfluous}.
_SUPERFLUOUS = {"program": ("time_unit_us",), "schedule": ("nodes", "profile", "size")}


def add(verb: ArgumentParser) -> None:
    """Declare the options."""
    also = "; or a file with a schedule or a program"
    add_problem_options(verb, also=also, collective_required=False)
    add_limit(verb, default=60.0)
    option(verb, "--check", "recheck the proof from its witness alone")


def run(options: Namespace) -> Answer:
    """Show a proven lower bound on any schedule's finish, and its bottleneck."""
    from taccl.analysis.certificates.scopes import gap_text

    noun = held_by(options.sketch)
    if noun not in _SUPERFLUOUS:
        fabric = named_fabric(options)
        listed_s = busy_factor() * _LISTED_S_PER_PAIR
        if fabric is not None and exceeds_limit(fabric, options, s_per_pair=listed_s):
            answer = _of_fabric(fabric, options)
            if answer is not None:
                return answer
        problem = problem_from_options(options)
        if problem.chunks_open:  # also allow merged sends inside nodes, as synthesis does
            problem = merged(problem) or problem
        return _bounded(problem, options)[0]
    said = ("collective", "chunks_per_rank", *ARGUMENTS, *ROLES, "along", "cost_model", *_SUPERFLUOUS[noun])
    refuse(options, said, f"a {noun} contains it; leave it out")
    program = program_in(options.sketch)
    if program is not None:
        schedule = followed(program, options, size=options.size, chunk_size=options.chunk_size)
    else:
        schedule = schedule_in(options.sketch, options)
    answer, prices = _bounded(schedule.problem, options)
    is_open, every = schedule.problem.chunks_open, prices.divisible
    values = following_values(schedule, every if is_open else prices.bound)
    values["gap_over_all_chunkings"] = every.gap(schedule.finish) if every.bound else None
    text = (
        f"{answer.text}\n  the {noun} takes {schedule.timing}, a gap of "
        f"{gap_text(prices.bound, schedule.finish, every, is_open=is_open)}; busiest is {values['busiest']}, "
        f"{values['utilisation']:.1%} of that time"
    )
    return replace(answer, text=text, figures=lambda: answer.values | {noun: values})


def _of_fabric(fabric: NamedFabric, options: Namespace) -> Answer | None:
    """Answer from a fabric's dimensions alone; None if a witness is needed, or no such bound is known."""
    from taccl.analysis.certificates.translation_bound import divisible_bound, path_bound
    from taccl.synthesis.symmetry.implicit import implicit_translations

    name, num_ranks, count = options.collective, fabric.num_ranks, options.chunks_per_rank
    if options.check or name not in IMPLICIT_COLLECTIVES or not is_by_name(options):
        return None
    try:
        shape = implicit_translations(fabric)
    except TopologyError:
        return None
    settle_size(options)
    num_chunks = num_ranks * (count or 1)
    chunk_bytes = options.chunk_size or -(-options.size // num_chunks)
    size_bytes = options.size if options.chunk_size is None else num_chunks * chunk_bytes
    every = divisible_bound(shape, name, chunk_bytes=Fraction(size_bytes, num_ranks))
    whole = max(path_bound(shape, name, chunk_bytes=chunk_bytes), every, key=lambda each: each.bound)
    is_open = count is None and options.chunk_size is None
    scopes = "over all chunkings", f"for {format_count(count or 1, 'chunk')} per rank"
    both = list(zip((every, whole), scopes, strict=True))
    (bound, scope), (other, label) = both if is_open else both[::-1]
    rates = format_rates(gb_per_s(size_bytes, bound.bound), busbw_factor(name, num_ranks))
    rows = [
        ("bound", f"{format_us(bound.bound)} {scope}"),
        ("bandwidth", f"{rates} at most"),
        ("limited by", bound.limits),
        ("kind", bound.kind),
        (label.removeprefix("over "), f"{format_us(other.bound)} ({other.kind})"),
        ("links", "not listed, as that would exceed the time limit"),
    ]
    title = f"{name} on {fabric.name}, {format_size(size_bytes)}"
    values = {
        **bound.to_dict(), "divisible": is_open, "scope": scope.partition(" ")[2], "implicit": True,
        "collective": name, "topology": fabric.name, "size_bytes": size_bytes, "num_ranks": num_ranks,
        "num_chunks": num_chunks,
    }  # fmt: skip
    return Answer(f"{title}\n{table(rows, indent='  ')}", values)


def _bounded(problem: Problem, options: Namespace) -> tuple[Answer, Prices]:
    """(answer, bounds with and without the sketch, and for divisible chunks) for a problem.

    The answer lists the bound, its bottleneck, and how much the sketch and whole chunks cost.
    """
    from taccl.analysis.certificates.scopes import under_sketch

    left_s = options.deadline.left_s
    late_s = max(0.0, time.monotonic() - options.deadline.at_s)
    least_s = max(_LATE_PRICES_S, _LEAST_PRICES_S - late_s)
    share = _PRICES_SHARE if _may_sum_in_switches(problem) else _ONLY_PRICES
    with ended_by_ctrl_c(options.deadline, _SO_FAR):
        prices = taccl.prices(problem, time_limit_s=max(least_s, share * left_s))
        in_switches = _in_switches(problem, max(LEAST_S, options.deadline.left_s))
    bound, whole = prices.bound, f"whole chunks cost {prices.chunks:+.2%}"
    other = "all chunkings", f"{_brief(prices.divisible)}{under_sketch(problem)}; {whole}"
    if problem.chunks_open:
        bound, other = prices.divisible, (f"for {bound.scope}", f"{_brief(bound)}; {whole}")
    if options.deadline.has_passed and not options.deadline.cancellation.why:
        say(f"warning: stopped by the time limit; {_SO_FAR}")
    proven = bound.check() if options.check else None
    rows = [
        ("bound", bound.text),
        *([("bandwidth", f"{bound.bandwidth_text} at most")] if bound.bandwidth_text else []),
        ("limited by", bound.limits),
        ("kind", bound.kind),
        other,
    ]
    if problem.clauses != problem.clauses.only("merge"):
        # The cost of the sketch compares bounds for one number of chunks; an open one has the row `other`.
        at, scope = (len(rows), f" for {prices.bound.scope}") if problem.chunks_open else (-1, "")
        price = f"{_brief(prices.without_sketch)}{scope}; the sketch costs {prices.sketch:+.2%}"
        rows.insert(at, ("without sketch", price))
    if problem.topology.assumed:
        rows.append(("model", problem.topology.proviso))
    if in_switches is not None:
        rows.append(("in switches", f"{_brief(in_switches)}, if switches reduce data in transit"))
    if proven is not None:
        rows.append(("checked", f"the witness {'proves' if proven else 'does not prove'} the bound"))
    text = "\n".join([problem.heading, table(rows, indent="  "), *note_lines(problem.notes)])
    complaint = "the witness does not prove the bound" if proven is False else ""
    # Plain values of witnesses take longer than the text, which most commands print.
    figures = partial(_values, problem, bound, prices, in_switches, proven)
    return Answer(text, figures, complaint), prices


def _may_sum_in_switches(problem: Problem) -> bool:
    """True if several ranks need a sum of several contributions; otherwise, sums in switches do not help."""
    chunks = problem.collective.chunks if problem.collective.combining else ()
    return any(min(len(each.origins), len(each.destinations)) > 1 for each in chunks)


def _in_switches(problem: Problem, left_s: float) -> Certificate | None:
    """Bound with sums in switches; None if they cannot help, or it is not found in time."""
    if _may_sum_in_switches(problem):
        with suppress(OutOfTime):
            return taccl.lower_bound(problem, in_network=True, budget_s=left_s, limit_s=left_s, end_s=left_s)
    return None


def _values(
    problem: Problem, bound: Certificate, prices: Prices, in_switches: Certificate | None, proven: bool | None
) -> dict[str, Any]:
    """Plain values of a bound, of the costs of the sketch and of whole chunks, and of their witnesses."""
    certificates = picked(prices, "bound", "without_sketch", "divisible")
    return {
        **bound.to_dict(),
        "prices": {name: each.to_dict() for name, each in certificates.items()}
        | picked(prices, "sketch", "chunks"),
        "in_switches": None if in_switches is None else in_switches.to_dict(), "checked": proven,
        "collective": problem.collective.name, "topology": problem.topology.name,
        "sketch": problem.clauses.name or None, "cost_model": problem.topology.cost_model,
        "protocol": problem.topology.protocol or None,
        "size_bytes": problem.size_bytes, "num_ranks": problem.topology.num_ranks,
        "assumed": list(problem.topology.assumed),
        "num_chunks": problem.collective.num_chunks, "notes": list(problem.notes),
    }  # fmt: skip


def _brief(bound: Certificate) -> str:
    return f"{format_us(bound.bound)} ({bound.kind})"
