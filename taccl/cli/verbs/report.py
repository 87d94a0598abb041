"""``taccl report``: a page in HTML about a schedule."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import taccl
from taccl.cli.answer import Answer
from taccl.cli.options import add_schedule, add_verb, schedule_from_options, seconds
from taccl.cli.output import progress_shown
from taccl.names import shown
from taccl.units import format_count

if TYPE_CHECKING:
    import argparse

__all__ = ["add", "run"]


def add(verbs: Any) -> None:
    """Declare the verb."""
    help = "Write a page in HTML about a schedule: figures, proof, pictures, load, bandwidth over size."
    verb = add_verb(verbs, "report", run, help)
    add_schedule(verb)
    verb.add_argument("-o", "--output", required=True, metavar="FILE", help="the page, e.g. report.html")
    verb.add_argument("--overwrite", action="store_true", help="replace the file if it exists")
    verb.add_argument(
        "--budget", type=seconds, default=30.0, metavar="S", help="seconds for baselines (default 30)"
    )


def run(options: argparse.Namespace) -> Answer:
    """Write a page about a schedule."""
    from taccl.cli.verbs.plot import details_of
    from taccl.formats.files import check_writable
    from taccl.plot.report.page import write_report

    check_writable(options.output, overwrite=options.overwrite)
    schedule = schedule_from_options(options)
    with progress_shown(wanted=True) as progress:
        if progress is not None:
            progress("verifying, timing and drawing", None, None)
        write_report(
            schedule,
            options.output,
            overwrite=options.overwrite,
            details=details_of(options.file),
            command=shlex.join(["taccl", "report", options.file, "-o", options.output]),
            budget_s=options.budget,
        )
    verification = taccl.verify(schedule)
    values = {"file": options.output, "ok": verification.ok, "finish_us": schedule.finish_us}
    broken = "" if verification.ok else format_count(len(verification.violations), "rule")
    complaint = f"{shown(options.file)}: the schedule breaks {broken}; the page says which" if broken else ""
    return Answer(f"written to {shown(options.output)}", values, 1 if broken else 0, complaint)
