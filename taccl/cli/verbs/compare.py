"""``taccl compare`` and ``taccl sweep``: results side by side, for one problem or for every combination."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from taccl._internal.names import shown
from taccl._internal.units import format_count, format_size, parse_size
from taccl.cli.inputs import sketch_from_word, topology_from_word
from taccl.cli.options import (
    A_TOPOLOGY,
    LEAST_S,
    USUAL_SIZE,
    add_collective,
    add_limit,
    add_options,
    add_output,
    add_problem_options,
    option,
    positive,
    reader,
    several,
    sizes,
    whole,
)
from taccl.cli.output import Answer, check_output, figures_table, picked, say, with_content
from taccl.cli.problems import arguments_of, collective_of, problem_from_options, resized
from taccl.errors import InputError


def _numbers(text: str) -> Sequence[int]:
    first, colon, end = text.partition(":")
    return range(whole(first), whole(end)) if colon else tuple(map(whole, text.split(",")))


#: Share of the remaining time for all runs; the rest is for the table.
_RUNS_SHARE = 0.9
_ENDINGS = (".csv", ".json")
_seeds = reader(_numbers, bool, "whole numbers such as 0,7, or 0:3 for 0, 1 and 2")
#: Converter of comma-separated words for argparse.
words = reader(lambda text: tuple(map(str.strip, text.split(","))), all, "comma-separated words")


def add(verb: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_problem_options(verb)
    add_run_options(verb, backends="auto,greedy,highs,scip,cbc,cpsat")


def run(options: argparse.Namespace) -> Answer:
    """Compare the results of several backends for one problem."""
    from taccl.explore.compare import Runs, compare_rows

    check_table(options)
    # An unreachable destination becomes a row of the table.
    problem = problem_from_options(options, reachable=False)
    rows = compare_rows(problem, Runs(**run_options(options)))
    return table_answer(rows, options, problem.topology.proviso)


def add_run_options(verb: argparse.ArgumentParser, *, backends: str) -> None:
    """Declare the options of each run, and the file of the table."""
    group = verb.add_argument_group("runs")
    help = f"comma-separated names from `taccl backends` (default {backends})"
    option(group, "--backends A,B", help, words, default=words(backends))
    option(group, "--seeds N,N|N:N", "e.g. 0,7, or 0:3 for 0, 1 and 2 (default 0)", _seeds, default=(0,))
    add_limit(verb, group, help="time limit in seconds; runs share it equally")
    add_options(group, "--threads", default=1, help="threads of a solver")
    option(group, "--workers N", "parallel runs (default: one per core)", positive)
    option(
        group, "--details", "show the status of routing and ordering, solver bounds, model sizes and rounds"
    )
    option(group, "--no-cache", "neither read nor store results in the cache")
    add_output(verb, "write the table: .csv or .json")


def run_options(options: argparse.Namespace) -> dict[str, Any]:
    """Options of `add_run_options`, as arguments of `Runs`."""
    # Keep joblib's processes from importing modules of the current folder first, such as a json.py.
    os.environ["PYTHONSAFEPATH"] = "1"
    left_s = max(LEAST_S, _RUNS_SHARE * options.deadline.left_s)
    return {
        "backends": options.backends, "seeds": options.seeds, "time_limit_s": options.time_limit,
        "total_limit_s": left_s, "threads": options.threads, "num_workers": options.workers,
        "cache": not options.no_cache,
    }  # fmt: skip


def check_table(options: argparse.Namespace) -> None:
    """Raise `InputError` for a file that could not be written, before any long work."""
    if options.output is None:
        return
    ending = Path(options.output).suffix.lower()
    if ending not in _ENDINGS:
        said = f"found {ending or 'no ending'}; expected .csv or .json"
        raise InputError(said, where=options.output)
    check_output(options)


def table_answer(found: list[dict[str, Any]], options: argparse.Namespace, proviso: str) -> Answer:
    """Answer with the table of a comparison, written to ``--output`` if given.

    - `proviso`: Text on the assumptions of the topology; empty if there are none.
    """
    from taccl.explore.rows import frame, plain_rows

    rows = plain_rows(found)
    num_found = sum(row["verified"] for row in rows)
    why = next((f"; {row['backend']}: {row['error']}" for row in rows if row["error"]), "")
    complaint = "" if num_found else f"none of {format_count(len(rows), 'run')} has a schedule{why}"
    text = _text(rows, details=options.details)
    text += f"\n  figures and proofs hold for this model: {proviso}" if proviso else ""
    answer = Answer(text, {"rows": rows}, complaint)
    path = options.output
    if path is None:
        return answer
    if Path(path).suffix.lower() == ".csv":
        content = frame(found).to_csv(index=False)
    else:
        content = json.dumps(rows, indent=1, allow_nan=False) + "\n"
    return with_content(answer, path, content, options)


def _text(rows: list[dict[str, Any]], *, details: bool = False) -> str:
    """Table of runs: columns in which they differ, and each run's quality, or why it found no schedule."""
    from taccl.explore.rows import DETAILS

    # The row of a run that did not start may have no topology.
    first = next((row for row in rows if row["topology"] is not None), rows[0])
    may_differ = ("sketch", "size_bytes", "protocol", "seed")
    labels = [name for name in may_differ if len({row[name] for row in rows} - {None}) > 1]
    gaps = ["gap", "gap_over_all_chunkings"]
    if all(row["gap"] == row["gap_over_all_chunkings"] for row in rows):
        gaps = ["gap_over_all_chunkings"]
    columns = [*labels, "backend", "chunks_per_rank", "finish_us", "predicted_us", *gaps]
    columns += ["algbw_gb_per_s", "seconds", "status"]
    if details:
        columns = [*labels, *(name for name in DETAILS if name != "error")]
    told = [row | {"status": _told_status(row)} for row in rows]
    title = f"{first['collective']} on {shown(str(first['topology']), 100)}"
    if "sketch" not in labels and first["sketch"] != "none":
        title += f", sketch {first['sketch']}"
    if "size_bytes" not in labels and first["size_bytes"]:
        title += f", {format_size(first['size_bytes'])}"
    if "protocol" not in labels and first["protocol"]:
        title += f", protocol {first['protocol']}"
    reasons = dict.fromkeys(
        f"{row['backend']}: {row['status']}: {row['error']}" for row in rows if row["error"] is not None
    )
    return "\n".join([shown(title), figures_table(told, columns), *(f"  {shown(each)}" for each in reasons)])


def _told_status(row: dict[str, Any]) -> str:
    """Status of a run, with remarks: what cut an unproven search, and that the cache had it."""
    is_cut = row["status"] == "found" and row["stopped"] in ("time limit", "interrupted")
    remarks = [row["stopped"]] * is_cut + ["cached"] * bool(row["from_cache"])
    return f"{row['status']} ({', '.join(remarks)})" if remarks else str(row["status"])


def add_sweep(verb: argparse.ArgumentParser) -> None:
    """Declare the options."""
    verb.add_argument("topology", metavar="TOPOLOGY", help=A_TOPOLOGY)
    group = verb.add_argument_group("combinations")
    add_collective(group)
    add_options(group, "--nodes", "--profile", "--protocol")
    help = "comma-separated names or files; none for no sketch (default)"
    option(group, "--sketches A,B", help, words, default=("none",))
    help = "e.g. 1KB,1MB; or FIRST:LAST[:FACTOR], 10 unless given: 1KB:1GB, 1KiB:1MiB:4"
    option(group, "--sizes S,S|S:S", help, sizes)
    add_options(group, "--chunks-per-rank", type=several(positive), metavar="K,K")
    add_run_options(verb, backends="auto")


def run_sweep(options: argparse.Namespace) -> Answer:
    """Compare the results for all combinations of sketches, sizes and backends."""
    from taccl.explore.compare import Runs, sweep_rows

    check_table(options)
    topology = topology_from_word(options.topology, **picked(options, "nodes", "profile", "protocol"))
    sketches = [sketch_from_word(None if word == "none" else word) for word in options.sketches]
    if options.sizes is None and options.matrix is None and not any(sketches):
        options.sizes = (parse_size(USUAL_SIZE),)
        say(f"note: the size is {USUAL_SIZE}, as neither --sizes nor a sketch states one")
    found = sweep_rows(
        topology, collective_of(options, topology), Runs(**run_options(options)),
        sketches=[each and resized(each, options, topology) for each in sketches],
        **picked(options, "sizes", "chunks_per_rank", "protocol"), **arguments_of(options),
    )  # fmt: skip
    return table_answer(found, options, topology.proviso)
