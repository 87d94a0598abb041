"""``taccl plot`` and ``taccl report``: a picture of a schedule, topology or search; a page on a schedule."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING, Any

from taccl._internal.names import shown
from taccl.cli.inputs import held_by, is_file, kind_of, names_topology, topology_from_word
from taccl.cli.options import LEAST_S, add_limit, add_options, add_output, add_schedule, option, refuse, sizes
from taccl.cli.output import Answer, check_output, ended_by_ctrl_c, notes_shown, picked
from taccl.cli.problems import schedule_and_details
from taccl.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes


#: {kind of picture (``--what``): options that only this kind takes}.
_WHATS = {"gantt": ("by",), "topology": ("nodes",), "bandwidth": ("sizes", "measured"), "progress": ()}


def add(verb: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_schedule(verb, "(with --what topology) a topology")
    option(verb, f"--what {'|'.join(_WHATS)}", "what to draw", default="gantt")
    add_output(verb, "output file: .svg, .png or .pdf", required=True)
    option(verb, "--by link|resource|rank", "rows of a gantt (default link)")
    option(verb, "--sizes S,S", "sizes of bandwidth, e.g. 1KB,1MB,1GB", sizes)
    help = "log of nccl-tests or similar, drawn as points of bandwidth; repeatable"
    option(verb, "--measured LOG", help, action="append")
    add_options(verb, "--nodes", help="number of nodes, if FILE names a topology")


def run(options: argparse.Namespace) -> Answer:
    """Draw a schedule, its topology, its bandwidth over size, or the progress of its search."""
    from taccl.plot.style import format_of, save

    format_of(options.output)
    check_output(options)
    for what, names in _WHATS.items():
        if what != options.what:
            said = f"--what {options.what} does not take it, only --what {what} does; leave it out"
            refuse(options, names, said)
    with notes_shown() as note:
        note(f"drawing {options.what}")
        save(_drawn(options), options.output, overwrite=options.overwrite)
    return Answer(f"written to {shown(options.output)}", {"what": options.what, "file": options.output})


def _drawn(options: argparse.Namespace) -> Axes:
    import taccl.plot as plots
    from taccl.plot.comparison import draw_trace, trace_in
    from taccl.plot.gantt import draw_bars, rows_height
    from taccl.plot.style import figure
    from taccl.plot.topology import height_of
    from taccl.schedule.bars import bars_of

    if (
        options.what == "topology"
        and held_by(options.file) != "schedule"
        and "topology" in kind_of(options.file)
    ):
        found = topology_from_word(options.file, nodes=options.nodes)
        return plots.topology(found, ax=figure(height=height_of(found)))
    refuse(options, ("nodes",), "found a schedule, whose nodes are fixed; leave it out")
    if not is_file(options.file) and names_topology(options.file):
        raise InputError(
            f"found a topology; --what {options.what} draws a schedule: give one "
            "(of `taccl synthesize -o`), or --what topology",
            where=options.file,
        )
    schedule, details = schedule_and_details(options.file, options)
    if options.what == "topology":
        found = schedule.problem.topology
        return plots.topology(found, schedule, ax=figure(height=height_of(found)))
    if options.what == "bandwidth":
        measured = options.measured or ()
        return plots.bandwidth(schedule, sizes=options.sizes, measured=measured, ax=figure(height=5.2))
    if options.what == "progress":
        return draw_trace(trace_in(details), schedule.problem.heading, ax=figure(height=4.0))
    by: Any = options.by or "link"
    bars = bars_of(schedule, by)
    ax = figure(height=rows_height(len(bars.rows)))
    return draw_bars(schedule, bars, by, bound_us=details.get("bound_us"), ax=ax)


def add_report(verb: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_schedule(verb)
    add_output(verb, "the page, e.g. report.html", required=True)
    help = "log of nccl-tests or similar, compared with the bandwidths; repeatable"
    option(verb, "--measured LOG", help, action="append", default=[])
    add_limit(verb, earlier="--budget")


def run_report(options: argparse.Namespace) -> Answer:
    """Write a page in HTML about a schedule: figures, proof, pictures, load, bandwidth over size."""
    from taccl.plot.report import write_report

    check_output(options)
    schedule, details = schedule_and_details(options.file, options)
    kept = "parts of the page are missing, as it says"
    with notes_shown() as note, ended_by_ctrl_c(options.deadline, kept):
        note("verifying, timing and drawing")
        _, verification = write_report(
            schedule, options.output, overwrite=options.overwrite, details=details,
            command=shlex.join(["taccl", "report", options.file, "-o", options.output]),
            time_limit_s=max(LEAST_S, options.deadline.left_s), measured=options.measured,
        )  # fmt: skip
    figures = picked(schedule, "finish_us", "launch_us", "predicted_us")
    values = {"file": options.output, "ok": verification.ok, **figures}
    broken = "" if verification.ok else verification.counted("rule")
    complaint = f"{shown(options.file)}: the schedule breaks {broken}; see the page" if broken else ""
    return Answer(f"written to {shown(options.output)}", values, complaint)
