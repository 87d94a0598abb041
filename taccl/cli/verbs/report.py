"""``taccl report``: a page in HTML about a schedule."""

from __future__ import annotations

import argparse
import shlex

import taccl
from taccl._internal.names import shown
from taccl.cli.options import LEAST_S, add_limit, add_output, add_schedule, option, schedule_in
from taccl.cli.output import Answer, check_output, notes_shown, picked


def add(verb: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_schedule(verb)
    add_output(verb, "the page, e.g. report.html", required=True)
    help = "a log of nccl-tests or the like, set beside the bandwidths; more than once for several"
    option(verb, "--measured LOG", help, action="append", default=[])
    add_limit(verb, option_name="--budget")


def run(options: argparse.Namespace) -> Answer:
    """Write a page in HTML about a schedule: figures, proof, pictures, load, bandwidth over size."""
    from taccl.cli.verbs.plot import details_of
    from taccl.plot.report import report

    check_output(options)
    schedule = schedule_in(options.file, options)
    with notes_shown() as note:
        note("verifying, timing and drawing")
        report(
            schedule, options.output, overwrite=options.overwrite, details=details_of(options.file),
            command=shlex.join(["taccl", "report", options.file, "-o", options.output]),
            budget_s=max(LEAST_S, options.deadline.left_s), measured=options.measured,
        )  # fmt: skip
    verification = taccl.verify(schedule)
    figures = picked(schedule, "finish_us", "launch_us", "predicted_us")
    values = {"file": options.output, "ok": verification.ok, **figures}
    broken = "" if verification.ok else verification.counted("rule")
    complaint = f"{shown(options.file)}: the schedule breaks {broken}; the page says which" if broken else ""
    return Answer(f"written to {shown(options.output)}", values, complaint)
