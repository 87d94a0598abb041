"""``taccl synthesize``: find a schedule, verify it, and say how good it is.

A large symmetric fabric that is given by name gets an implicit schedule; its topology is never built.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import taccl
from taccl._internal.names import shown, table
from taccl._internal.program_start import delayed
from taccl._internal.units import format_count, format_gap, format_size, format_us
from taccl.cli.options import (
    LEAST_S,
    add_limit,
    add_options,
    add_output,
    add_problem_options,
    option,
    share,
    size,
    was_given,
)
from taccl.cli.output import Answer, check_schedule_output, picked, progress_shown, say, with_file
from taccl.cli.problems import (
    exceeds_limit,
    is_by_name,
    named_fabric,
    problem_from_options,
    schedule_in,
    settle_size,
)
from taccl.errors import InputError
from taccl.schedule.implicit_schedule import IMPLICIT_COLLECTIVES
from taccl.solvers.registry import OWN_BACKENDS

if TYPE_CHECKING:
    from taccl.synthesis.result import Result
    from taccl.synthesis.symmetry.implicit import ImplicitResult
    from taccl.topology.named import NamedFabric

#: Share of the time limit that is left after the search, for the bound over all chunkings and the answer.
_REST_SHARE = 0.1
#: A search that used less than this share of its time was not stopped by the time limit itself.
_MOST_OF_LIMIT = 0.9

#: Fewest ranks for an implicit schedule, on fabrics that look alike from every rank.
_MANY_RANKS = 2048
#: Fewest ranks for an implicit schedule by the backend ``dimension-balanced``.
_MANY_BALANCED = 257
#: CPU seconds to list and verify a schedule, per pair of ranks.
#: If all pairs exceed the given limit, schedules of fewer ranks are implicit, too, unless written to a file.
_LISTED_S_PER_PAIR = 1e-5
#: Max gap of an implicit schedule; above it ordinary synthesis runs instead.
_WORTH_A_SEARCH = 0.1

#: Options with which `schedule_in` reads a file in taccl's own format.
_OWN_FILE = argparse.Namespace(topology=None, chunk_size=None, time_unit_us=None)


def add(verb: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_problem_options(verb)
    add_options(verb, "--backend")
    add_limit(verb, help="time limit in seconds; without it, the search also stops once it stalls")
    add_options(verb, "--threads")
    help = "for the backend dimension-balanced: how chunks are assigned to orders of dimensions"
    option(verb, "--policy lp|greedy", help, default="lp")
    option(verb, "--memory-limit SIZE", "memory limit of a solver or a large schedule, e.g. 4GB", size)
    option(verb, "--summary", "keep only the figures of a large schedule")
    option(verb, "--spill DIR", "keep the columns of a large schedule on disk, in a new folder")
    add_options(verb, "--seed")
    option(verb, "--until-gap G", "stop once the proven gap is at most this, e.g. 1%%", share)
    option(verb, "--start FILE", "warm start from a schedule; the result finishes no later")
    option(verb, "--no-sketch", "do not try suggested sketches")
    help = "where sums are made: auto (default), off (ranks only) or only (switches only)"
    option(verb, "--in-network auto|off|only", help, default="auto")
    option(verb, "--parameters FILE", "parameters of the search, from a TOML file")
    option(verb, "--log", "print the solvers' logs on stderr")
    add_output(verb, "write the schedule to FILE")


def run(options: argparse.Namespace) -> Answer:
    """Find a schedule, verify it, and say how good it is."""
    from taccl.cli.output import result_answer
    from taccl.formats.files import folder_path
    from taccl.synthesis.synthesize import IDLE_SHARE

    check_schedule_output(options)
    if options.output is not None and (options.summary or options.spill is not None):
        said = "found with --summary or --spill, which keep no schedule to write; leave one out"
        raise InputError(said, where="--output")
    if was_given("policy", options) and options.backend not in ("auto", "dimension-balanced"):
        said = f"found with the backend {options.backend}; it is for dimension-balanced: leave it out"
        raise InputError(said, where="--policy")
    if options.spill is not None:
        folder_path(options.spill)
    lists = options.summary or options.spill is not None or options.start is not None
    implicit = None if lists else implicit_answer(options)
    if implicit is not None:
        return implicit
    memory_limit_mb = options.memory_limit and options.memory_limit // 10**6
    if memory_limit_mb == 0:
        said = f"found {format_size(options.memory_limit)}; expected at least 1MB, e.g. 4GB"
        raise InputError(said, where="--memory-limit")
    check_room(options, memory_limit_mb)
    start = None if options.start is None else schedule_in(options.start, _OWN_FILE)
    if start is not None and options.protocol == "auto":
        options.protocol = start.problem.topology.protocol or "auto"
    problem = problem_from_options(options, reachable=False)  # synthesize explains unreachable ranks
    if options.log:
        logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(name)s: %(message)s")
    known = options.parameters
    parameters = taccl.SearchParameters() if known is None else taccl.SearchParameters.load(known)
    left_s = options.deadline.left_s - _REST_SHARE * options.time_limit
    late_s = max(0.0, time.monotonic() + LEAST_S - options.deadline.at_s)
    with progress_shown(wanted=not options.log) as progress, delayed(options.began_s, late_s):
        result = taccl.synthesize(
            problem, **picked(options, "backend", "policy", "threads", "seed", "log", "in_network"),
            sketch="none" if options.no_sketch else "auto", time_limit_s=max(LEAST_S, left_s),
            idle_share=None if was_given("time_limit", options) else IDLE_SHARE,
            memory_limit_mb=memory_limit_mb, progress=progress, parameters=parameters,
            keep="summary" if options.summary else "schedule", spill_dir=options.spill,
            to_file=options.output is not None, until_gap=options.until_gap, start=start,
        )  # fmt: skip
    result = _with_start(result, options.began_s)
    if result.interrupted or result.stopped == "time limit":
        say(f"warning: {_cut_text(result, left_s)}")
    return with_file(result_answer(result, options.deadline), result.schedule, options)


def _cut_text(result: Result, limit_s: float) -> str:
    """Text that names what cut the search: Ctrl-C, the time limit, or a stage's share of that limit."""
    if result.interrupted:
        return "stopped by Ctrl-C; this is the best schedule so far"
    if result.seconds < _MOST_OF_LIMIT * limit_s:
        return "a stage reached its share of the time limit; a longer limit may give a better schedule"
    return "stopped by the time limit; this is the best schedule so far"


def _with_start(result: Result, began_s: float) -> Result:
    """The result with an additional first stage: the time from the start of the command to the search."""
    from taccl.synthesis.result import Stage, Stages

    seconds = time.monotonic() - result.seconds - began_s
    said = "Python, its modules and the inputs"
    start = Stage("start", "taccl", "done", seconds, message=said, began_s=-seconds)
    return replace(result, stages=Stages((start, *result.stages)))


def check_room(options: argparse.Namespace, memory_limit_mb: int | None) -> None:
    """Raise `InputError` before any work if a schedule on a named fabric cannot fit into memory."""
    from taccl.synthesis.memory import check_columns

    fabric = _fabric(options)
    if fabric is not None and options.spill is None and options.collective in IMPLICIT_COLLECTIVES:
        what = f"{options.collective} on {fabric.name}"
        check_columns(what, fabric.num_ranks, memory_limit_mb=memory_limit_mb)


def implicit_answer(options: argparse.Namespace) -> Answer | None:
    """Report for implicit synthesis, or None if ordinary synthesis should run."""
    fabric = _fabric(options)
    if fabric is None or not is_by_name(options):
        return None
    balanced = options.backend == "dimension-balanced"
    try:
        chunks, chunk_bytes = _cut(options, fabric)
        result = taccl.synthesize_implicit(
            fabric, options.collective, chunk_size=chunk_bytes, chunks_per_rank=chunks, seed=options.seed,
            policy=options.policy, backend="dimension-balanced" if balanced else "auto",
        )  # fmt: skip
    except InputError:
        if balanced:
            raise
        return None  # ordinary synthesis may find a schedule, or explains the error
    if result.gap > _WORTH_A_SEARCH and not balanced:
        schedule = result.schedule
        say(
            f"note: the implicit {schedule.collective} on {schedule.host.name} is {result.gap:.0%} above its "
            "bound; searching for an explicit schedule instead"
        )
        return None
    text = _text(result)
    values = {
        **result.to_dict(), "implicit": True, "backend": options.backend, "verified": True,
        "num_chunks": result.schedule.num_ranks * chunks, "seed": options.seed,
    }  # fmt: skip
    if options.output is not None:
        from taccl.formats.files import write_whole

        write_whole(options.output, json.dumps(values, indent=1) + "\n", overwrite=options.overwrite)
        said = "it describes all transfers, which are not listed"
        text += f"\n\nsummary written to {shown(options.output)}: {said}"
    return Answer(text, values)


def _fabric(options: argparse.Namespace) -> NamedFabric | None:
    """Fabric of an implicit schedule, given by name; None if its links and transfers are to be listed."""
    fabric, balanced = named_fabric(options), options.backend == "dimension-balanced"
    if fabric is None or options.backend not in OWN_BACKENDS or options.collective is None:
        return None
    if balanced and not taccl.dimensions(fabric).is_regular:
        return None
    is_large = fabric.num_ranks >= (_MANY_BALANCED if balanced else _MANY_RANKS)
    is_listed = options.output is not None or not exceeds_limit(
        fabric, options, s_per_pair=_LISTED_S_PER_PAIR
    )
    return fabric if is_large or not is_listed else None


def _cut(options: argparse.Namespace, fabric: NamedFabric) -> tuple[int, int]:
    """(chunks per rank, bytes per chunk); ``dimension-balanced`` may choose the number of chunks."""
    from taccl.synthesis.proposers.balanced import choose_num_chunks

    count = options.chunks_per_rank
    if options.chunk_size is not None:
        return count or 1, options.chunk_size
    settle_size(options)
    if count is None and options.backend == "dimension-balanced":
        dims = taccl.dimensions(fabric)
        count = choose_num_chunks(dims, options.collective, options.size, policy=options.policy)
    return count or 1, -(-options.size // (fabric.num_ranks * (count or 1)))


def _text(result: ImplicitResult) -> str:
    schedule = result.schedule
    transfers = format_count(schedule.num_transfers, "transfer")
    rows_of_one = format_count(schedule.num_rows, "row")
    repeated = f"{rows_of_one} that {format_count(schedule.num_ranks, 'translation')} repeat"
    chunks = format_count(schedule.chunks_per_rank, "chunk")
    rows = [
        ("finish", f"{schedule.timing}, {schedule.bandwidth_text}"),
        ("bound", f"{format_us(result.bound.bound)}, limited by {result.bound.limits}"),
        ("gap", format_gap(result.gap) + (f" (optimal for {chunks} per rank)" if result.gap == 0 else "")),
        *([] if result.dimension_bound is None else [("dimensions", result.dimension_bound.text)]),
        ("schedule", f"{transfers}, implicit: {repeated}; verified"),
        ("found by", f"{schedule.producer} in {result.seconds:.2f} s"),
    ]
    title = f"{schedule.collective} on {schedule.host.name}, {format_size(schedule.size_bytes)}"
    return "\n".join([title, table(rows, indent="  ")])
