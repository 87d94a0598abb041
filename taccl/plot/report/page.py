"""A report: one page in HTML that needs no other file and asks nothing of any server."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.verification.verify import verify
from taccl.arguments import Duration, checked
from taccl.formats.files import check_writable, write_whole
from taccl.html import as_html
from taccl.plot.progress import trace_in
from taccl.plot.report import sections
from taccl.plot.report.look import SCRIPT, STYLE
from taccl.plot.report.parts import section
from taccl.plot.style import drawing, title_of
from taccl.schedule.compact import CompactSchedule
from taccl.schedule.schedule import Schedule
from taccl.synthesis.result import Result
from taccl.units import format_count

#: The sections in order, each a function of `sections`.
_CONTENTS = {
    "verification": "Verification", "bound": "Bound and gap", "timeline": "Timeline", "load": "Load",
    "sizes": "Bandwidth over size", "search": "Search", "problem": "Problem and sketch",
    "transfers": "Transfers", "versions": "Versions and command",
}  # fmt: skip
#: Seconds for the bound of a schedule that comes without one.
_BOUND_S = 5.0


@checked
@drawing
def report(
    found: Result | Schedule | CompactSchedule,
    path: str | os.PathLike[str] | None = None,
    *,
    overwrite: bool = False,
    details: Mapping[str, Any] | None = None,
    command: str = "",
    budget_s: Duration = 30.0,
    measured: Sequence[str] = (),
) -> str:
    """A page about a schedule: figures, verification, bound, pictures, load, bandwidth over size, transfers.

    Everything is worked out anew: a schedule that breaks rules gets a page that says which.

    Parameters
    ----------
    found : Result, Schedule or CompactSchedule
    path : path, optional
        Where the page is written, whole or not at all.
    overwrite : bool
        Whether a file of that name may be replaced.
    details : mapping, optional
        How a schedule was found, as `Result.to_dict` has it and files keep it; a result says so itself.
    command : str
        What was typed to make the page.
    budget_s : float
        When baselines are left out that are not timed yet.
    measured : sequence of str
        Files of logs (see `taccl.fit`), set beside the bandwidths over size.

    Returns
    -------
    str
        HTML. Of a very large schedule pictures are left out, and the page says so.

    Raises
    ------
    InputError
        If the file exists and `overwrite` is False, or it cannot be written.
    """
    if path is not None:
        check_writable(path, overwrite=overwrite)
    if isinstance(found, Result):
        schedule, bound, details, trace = found.schedule, found.bound, found.to_dict(), found.trace
    else:
        schedule, details = found, details or {}
        bound, trace = lower_bound(schedule.problem, budget_s=_BOUND_S), trace_in(details)
    known = sections.Findings(schedule, verify(schedule), bound, trace, details, command, budget_s, measured)
    contents = "".join(f'<a href="#{name}">{as_html(title)}</a>' for name, title in _CONTENTS.items())
    parts = (section(name, title, *getattr(sections, name)(known)) for name, title in _CONTENTS.items())
    it, judged = schedule.problem, known.verification
    verdict = "verified" if judged.ok else f"not valid: {format_count(len(judged.violations), 'violation')}"
    sub = f"{it.topology.num_ranks} ranks in {format_count(it.topology.num_nodes, 'node')}"
    sub += f", found by {schedule.producer}" if schedule.producer else ""
    head = (
        f'<h1>{as_html(title_of(it))}</h1><div class="sub">{as_html(sub)}</div>'
        f'<div class="{"verdict" if judged.ok else "verdict no"}">{as_html(verdict)}</div>'
    )
    body = "".join((head, sections.summary(known), f"<nav>{contents}</nav>", *parts))
    # Only this script may run, and nothing may be fetched, whatever a file has in it.
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    page = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{as_html(policy)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{as_html(title_of(it))}</title>\n<style>{STYLE}</style>\n</head>\n"
        f'<body>\n<main>\n{body}</main>\n<div id="tip" role="tooltip" hidden></div>\n'
        f"<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )
    if path is not None:
        write_whole(path, page, overwrite=overwrite)
    return page
