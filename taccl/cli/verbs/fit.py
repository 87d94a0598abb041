"""``taccl fit`` and ``taccl diagnose``: fit a machine's costs to logs of benchmarks, or judge the logs."""

from __future__ import annotations

import argparse
from pathlib import Path

import taccl
from taccl.cli.inputs import check_path, is_file, topology_from_word
from taccl.cli.options import LEAST_S, add_limit, add_options, add_output, add_subset, option
from taccl.cli.output import (
    Answer,
    check_output,
    ended_by_ctrl_c,
    notes_shown,
    picked,
    with_content,
    with_error,
)
from taccl.errors import InputError
from taccl.formats.files import check_page
from taccl.formats.registry import takes_nodes


def add(verb: argparse.ArgumentParser) -> None:
    """Declare the options."""
    help = "nccl-tests, rccl-tests, perftest or OSU output, or reports of `taccl run --json`"
    verb.add_argument("logs", nargs="+", metavar="LOG", help=help)
    help = "the machine, e.g. dgx-h100, or a topology file, whose fit has no profile"
    add_options(verb, "--topology", required=True, help=help)
    add_options(verb, "--nodes", help="number of nodes of the largest log, if logs list no hosts")
    add_subset(verb, "as many as a log has, the first of each node")
    help = "measured collective, if a log does not state it"
    add_options(verb, "--collective", required=False, type=str, help=help)
    add_output(verb, "the profile, e.g. mine.toml")
    option(verb, "--plot FILE", "a picture of measured and predicted times (.svg, .png)")
    option(verb, "--in-place", "fit the in-place times (default: out of place)")
    option(verb, "--accept", "write the profile despite large errors")
    add_options(verb, "--seed")


def run(options: argparse.Namespace) -> Answer:
    """Fit the costs of a machine to logs of benchmarks, and write them as a profile."""
    check_output(options, "plot")
    if options.output is not None and (ending := Path(options.output).suffix.lower()) not in ("", ".toml"):
        said = f"found the ending '{ending}'; a profile is saved as TOML, so give a name that ends in .toml"
        raise InputError(said, where=options.output)
    with notes_shown() as note:
        note("reading and fitting")
        given = picked(options, "nodes", "collective", "in_place", "seed")
        on = options.topology
        check_path(on)
        if is_file(on):  # the number of nodes of a file that states it is not that of the largest log
            on = topology_from_word(on, nodes=options.nodes if takes_nodes(on) else None)
        with ended_by_ctrl_c(options.deadline, "intervals or held-out sizes are incomplete, as a note says"):
            found = taccl.fit(
                options.logs, on, ranks=options.ranks, without_ranks=options.without_rank, **given
            )
    complaint = "" if options.accept else found.complaint
    answer = Answer(repr(found), found.to_dict(), complaint)
    if complaint:
        return answer
    if options.plot is not None:
        from taccl.plot.sizes import measured
        from taccl.plot.style import figure, format_of, render

        content = render(measured(found, ax=figure()), format_of(options.plot))
        answer = with_content(answer, options.plot, content, options)
    if options.output is not None and not answer.complaint:
        try:
            profile = found.to_toml(accept=options.accept)
        except InputError as error:
            return with_error(answer, error)
        answer = with_content(answer, options.output, profile, options)
    return answer


def add_diagnose(verb: argparse.ArgumentParser) -> None:
    """Declare the options."""
    help = "logs of nccl-tests or rccl-tests; also of ib_write_bw, one log for each NIC"
    verb.add_argument("logs", nargs="+", metavar="LOG", help=help)
    help = "a machine, an instance type or a topology file (default: by the GPUs that a log names)"
    add_options(verb, "--topology", help=help)
    add_options(verb, "--nodes", help="number of nodes (default: as each log says)")
    add_options(verb, "--profile", help="costs of the machine, e.g. the file of a fit to a healthy log")
    add_subset(verb, "as many as a log has, the first of each node")
    help = "collective that was measured, for logs that do not state it"
    add_options(verb, "--collective", required=False, type=str, help=help)
    option(verb, "--in-place", "judge the in-place times (default: out of place)")
    add_output(verb, "a page in HTML, e.g. diagnosis.html")
    option(verb, "--no-gains", "seek no better schedules")
    add_limit(verb, default=20.0, earlier="--budget")


def run_diagnose(options: argparse.Namespace) -> Answer:
    """Judge measured bandwidths: resources that limit them, likely causes, and better schedules."""
    if options.output is not None:
        check_page(options.output, overwrite=options.overwrite)
    if options.topology is not None:
        check_path(options.topology)
    with notes_shown() as note:
        note("reading, predicting and comparing")
        with ended_by_ctrl_c(options.deadline, "bounds or better schedules are missing, as notes say"):
            found = taccl.diagnose(
                options.logs, options.topology, ranks=options.ranks, without_ranks=options.without_rank,
                gains=not options.no_gains, time_limit_s=max(LEAST_S, options.deadline.left_s),
                **picked(options, "nodes", "profile", "collective", "in_place"),
            )  # fmt: skip
    answer = Answer(repr(found), found.to_dict())
    if options.output is None:
        return answer
    from taccl.plot.sizes import diagnosis_page

    return with_content(answer, options.output, diagnosis_page(found), options)
