"""``taccl diagnose``: a verdict on measured bandwidths, with limits, likely causes and possible gains."""

from __future__ import annotations

import argparse

import taccl
from taccl.cli.options import add_options, add_output, add_subset, option, seconds
from taccl.cli.output import Answer, check_output, notes_shown, picked, with_content


def add(verb: argparse.ArgumentParser) -> None:
    """Declare the options."""
    help = "output of nccl-tests or rccl-tests; of ib_write_bw beside it, one log for each NIC"
    verb.add_argument("logs", nargs="+", metavar="LOG", help=help)
    help = "a machine, an instance type or a topology file (default: by the GPUs that a log names)"
    add_options(verb, "--topology", help=help)
    add_options(verb, "--nodes", help="number of nodes (default: as each log says)")
    add_options(verb, "--profile", help="costs of the machine, e.g. the file of a fit to a healthy log")
    add_subset(verb)
    help = "collective that was measured, for logs that do not state it"
    add_options(verb, "--collective", required=False, type=str, help=help)
    option(verb, "--in-place", "judge the times in place (default: out of place)")
    add_output(verb, "a page in HTML, e.g. diagnosis.html")
    option(verb, "--budget S", "seconds for better schedules", seconds, default=20.0)


def run(options: argparse.Namespace) -> Answer:
    """Judge measured bandwidths: resources that limit them, likely causes, and better schedules."""
    check_output(options)
    with notes_shown() as note:
        note("reading, predicting and comparing")
        found = taccl.diagnose(
            options.logs, options.topology, ranks=options.ranks, without_ranks=options.without_rank,
            budget_s=options.budget, **picked(options, "nodes", "profile", "collective", "in_place"),
        )  # fmt: skip
    answer = Answer(repr(found), found.to_dict())
    if options.output is None:
        return answer
    from taccl.plot.diagnosis import diagnosis_page

    return with_content(answer, options.output, diagnosis_page(found), options)
