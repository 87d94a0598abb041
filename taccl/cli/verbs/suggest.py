"""``taccl suggest`` and ``taccl explain``: sketches for a problem; costs or conflicts of a given sketch."""

from __future__ import annotations

import argparse
import json
import textwrap
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import taccl
from taccl._internal.deadline import OutOfTime
from taccl._internal.names import note_lines, shown, table
from taccl._internal.units import format_size, format_us
from taccl.cli.inputs import sketch_from_word, topology_from_word
from taccl.cli.options import (
    A_TOPOLOGY,
    LEAST_S,
    add_collective,
    add_limit,
    add_options,
    add_problem_options,
    add_size,
    option,
    positive,
)
from taccl.cli.output import Answer, ended_by_ctrl_c, picked, progress_shown
from taccl.cli.problems import arguments_of, collective_of, problem_from_options, resized, settle_size
from taccl.errors import InputError, NoSolutionError
from taccl.synthesis.problems import under_asked_protocol

if TYPE_CHECKING:
    from taccl._internal.deadline import Deadline
    from taccl.problem.problem import Problem
    from taccl.schedule.schedule import Schedule
    from taccl.topology.topology import Topology


#: Max required arrivals (pairs of a chunk and a destination) for which baselines are tried.
_MOST_ARRIVALS = 6_000


def add(verb: argparse.ArgumentParser) -> None:
    """Declare the options."""
    verb.add_argument("topology", metavar="TOPOLOGY", help=A_TOPOLOGY)
    add_options(verb, "--nodes", help="number of nodes of a machine")
    add_options(verb, "--profile", "--protocol")
    add_collective(verb)
    add_size(verb)
    add_options(
        verb,
        "--chunks-per-rank",
        help="number of chunks that each rank's data is cut into (default: the fastest)",
    )
    option(verb, "--most N", "max number of sketches", positive, default=5)
    add_limit(verb, default=20.0)
    add_options(verb, "--seed")
    how = verb.add_mutually_exclusive_group()
    option(how, "-o --output DIR", "write each as a TOML file into a folder")
    option(how, "--best", "print only the best, as TOML")
    option(how, "--check SKETCH", "check your sketch: effect and cost of each clause")
    option(verb, "--overwrite", "replace files that exist")


def run(options: argparse.Namespace) -> Answer:
    """Suggest sketches for a topology, a collective and a size; or check one that you write."""
    from taccl.formats.files import folder_path

    topology = topology_from_word(options.topology, **picked(options, "nodes", "profile", "protocol"))
    if options.check is not None:
        return _checked(options, topology)
    settle_size(options)
    if options.output is not None:
        folder_path(options.output)
    left_s = max(LEAST_S, options.deadline.left_s)
    with progress_shown(wanted=True) as progress:
        found = taccl.suggest_sketches(
            topology, collective_of(options, topology), options.size, time_limit_s=left_s, progress=progress,
            **picked(options, "chunk_size", "chunks_per_rank", "most", "seed", "protocol"),
            **arguments_of(options),
        )  # fmt: skip
    if not found:
        raise NoSolutionError("no sketch is scheduled in time; give more time, or fewer chunks")
    if options.best:
        return Answer(found[0].to_toml().rstrip(), _values(topology, found[:1]))
    rival = _rival(found[0].problem, options.deadline)
    text = _text(topology, found, rival)
    if options.output is not None:
        files = _write(found, Path(options.output), overwrite=options.overwrite)
        text += "\n\n" + "\n".join(f"written to {shown(str(file))}" for file in files)
    baseline = rival and {"name": rival.producer, "finish_us": rival.finish_us}
    return Answer(text, {**_values(topology, found), "baseline": baseline})


def _rival(problem: Problem, deadline: Deadline) -> Schedule | None:
    """Fastest baseline, to compare with sketches; None if the problem is too large or the time too short.

    Small reductions are fastest if every rank sends its contribution directly, which no sketch describes.
    """
    if sum(len(chunk.destinations) for chunk in problem.collective.chunks) > _MOST_ARRIVALS:
        return None
    size, whole = problem.size_bytes, problem.chunk_bytes[0]
    free = taccl.make_problem(
        problem.topology, problem.collective, size_bytes=size, chunk_bytes=None if size else whole
    )
    with suppress(InputError, OutOfTime, KeyboardInterrupt), deadline.enforced():
        return taccl.baselines.baseline("best", free, cut=False)
    return None


def _checked(options: argparse.Namespace, topology: Topology) -> Answer:
    sketch = sketch_from_word(options.check)
    assert sketch is not None
    if sketch.nodes is not None:
        sketch = resized(sketch, options, topology)
    collective = collective_of(options, topology)
    if isinstance(collective, str):
        cut = options.chunks_per_rank or sketch.chunks.per_rank
        arguments = arguments_of(options)
        collective = taccl.collectives.make(collective, topology.num_ranks, chunks_per_rank=cut, **arguments)
    given, notes = picked(options, "chunk_size", "size"), list[str]()
    with suppress(InputError):  # the report has the errors of the sketch
        applied = sketch.apply(topology, collective, reachable=False, **given)
        chosen = under_asked_protocol(applied, options.protocol, options.deadline)
        topology, notes = chosen.topology, list(chosen.protocol_notes())
    left_s = max(LEAST_S, options.deadline.left_s)
    with ended_by_ctrl_c(options.deadline, "this is the check so far"):
        report = taccl.check_sketch(sketch, topology, collective, time_limit_s=left_s, **given)
    complaint = "" if report.usable else "the sketch cannot be used as it is"
    text = "\n".join([repr(report).removeprefix("SketchReport: "), *note_lines(notes)])
    return Answer(text, {**report.to_dict(), "notes": notes}, complaint)


def _text(topology: Topology, found: Sequence[taccl.SketchProposal], rival: Schedule | None) -> str:
    from taccl.cli.output import figures_table
    from taccl.synthesis.suggesting.proposals import find_shifts

    shifts = ", ".join(f"{shift.offset} in {shift.group}" for shift in find_shifts(topology)) or "none"
    size = found[0].problem.size_bytes
    proposals = _values(topology, found)["proposals"]
    listed = figures_table(proposals, ("name", "finish_us", "bound_us", "chunks_per_rank"))
    why = [textwrap.fill(f"{each['name']}: {each['why']}", 100, subsequent_indent="  ") for each in proposals]
    title = f"{found[0].problem.collective.name} on {shown(topology.name)}"
    title += f", {format_size(size)}" if size else ""
    protocol = found[0].problem.topology.protocol
    title += f", protocol {protocol}" if protocol else ""
    facts = [("symmetries", shifts)]
    if rival is None:
        facts.append(("best baseline", "not timed: too little time, or a problem too large for baselines"))
    else:
        sooner = (
            ", faster than every sketch" if rival.finish_us < min(each.finish_us for each in found) else ""
        )
        facts.append(("best baseline", f"{rival.producer}: {format_us(rival.finish)}{sooner}"))
    lines = [title, table(facts, indent="  "), "", listed, "", textwrap.indent("\n".join(why), "  ")]
    return "\n".join(lines + note_lines(found[0].problem.notes))


def _values(topology: Topology, found: Sequence[taccl.SketchProposal]) -> dict[str, Any]:
    proposals = [
        {
            "name": each.sketch.name, **picked(each, "finish_us", "bound_us", "limits"),
            "chunks_per_rank": each.sketch.chunks.per_rank, "why": each.why, "toml": each.to_toml(),
        }
        for each in found
    ]  # fmt: skip
    problem = found[0].problem
    return {
        "topology": topology.name, "collective": problem.collective.name,
        "size_bytes": problem.size_bytes, "protocol": problem.topology.protocol or None,
        "notes": list(problem.notes), "proposals": proposals,
    }  # fmt: skip


def _write(found: Sequence[taccl.SketchProposal], folder: Path, *, overwrite: bool) -> list[Path]:
    """Write each sketch to a file ``POSITION-NAME.toml``, and the JSON Schema of sketches beside them."""
    from taccl.formats.files import check_writable, write_whole
    from taccl.sketch.sketch import sketch_json_schema

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        said = f"the folder cannot be made ({getattr(error, 'strerror', None) or error}); give another path"
        raise InputError(said, where=str(folder)) from None
    files = [folder / f"{place}-{each.sketch.name}.toml" for place, each in enumerate(found, 1)]
    for file in files:
        check_writable(file, overwrite=overwrite)
    for file, each in zip(files, found, strict=True):
        write_whole(file, each.to_toml(), overwrite=overwrite)
    schema = json.dumps(sketch_json_schema(), indent=2) + "\n"
    write_whole(folder / "sketch.schema.json", schema, overwrite=True)
    return files


def add_explain(verb: ArgumentParser) -> None:
    """Declare the options."""
    add_problem_options(verb)
    add_options(verb, "--backend", help="a solver (default highs)")
    add_limit(verb)


def run_explain(options: Namespace) -> Answer:
    """Say why a sketch admits no schedule and what to change; or what each of its clauses costs."""
    from taccl.synthesis.explaining.explain import explain

    problem = problem_from_options(options, reachable=False)
    left_s = max(LEAST_S, options.deadline.left_s)
    with ended_by_ctrl_c(options.deadline, "this is the explanation so far"):
        found = explain(problem, backend=options.backend, time_limit_s=left_s)
    complaint = "" if found.feasible else "no schedule exists"
    text = "\n".join([repr(found).removeprefix("Explanation: "), *note_lines(problem.notes)])
    return Answer(text, {**found.to_dict(), "notes": list(problem.notes)}, complaint)
