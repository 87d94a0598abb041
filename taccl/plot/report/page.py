"""A report: one page in HTML that needs no other file and asks nothing of any server.

What it tells is worked out here, and what could not be says why.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.simulation.simulate import simulate
from taccl.analysis.verification.verify import verify
from taccl.arguments import checked
from taccl.errors import TacclError
from taccl.formats.files import check_writable, write_whole
from taccl.html import as_html
from taccl.plot.progress import moments_in
from taccl.plot.report import sections
from taccl.plot.report.look import SCRIPT, STYLE
from taccl.plot.report.parts import section
from taccl.plot.sizes import bandwidths
from taccl.plot.style import drawing, title_of
from taccl.schedule.compact import CompactSchedule
from taccl.synthesis.result import Result
from taccl.units import format_count

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from taccl.analysis.certificates.certificate import Certificate
    from taccl.analysis.simulation.simulation import Simulation
    from taccl.analysis.verification.violation import Verification
    from taccl.arguments import Duration
    from taccl.plot.sizes import Bandwidths
    from taccl.schedule.schedule import Schedule
    from taccl.synthesis.result import Moment

#: The sections in order, each a function of `sections`.
_CONTENTS = {
    "verification": "Verification", "bound": "Bound and gap", "timeline": "Timeline", "load": "Load",
    "sizes": "Bandwidth over size", "search": "Search", "problem": "Problem and sketch",
    "transfers": "Transfers", "versions": "Versions and command",
}  # fmt: skip
#: Seconds for the bound of a schedule that comes without one.
_BOUND_S = 5.0
#: Replaying more transfers than this takes too long for a page.
_MOST_REPLAYED = 20_000
#: Drawing more takes too much memory.
_MOST_DRAWN = 1_000_000
#: Certificates of larger problems are not checked again: that takes as long as finding them.
_MOST_CHECKED = 20_000


@dataclass(frozen=True, slots=True)
class Findings:
    """All that a page is made from.

    - `whole`: The schedule with every transfer; None where it has too many to be drawn.
    - `proven`: What `Certificate.check` said; None where it was not asked.
    - `details` (mapping): How the schedule was found, as `Result.to_dict` has it; empty where that is not
      known.
    - `missing` (mapping of section to text): Why something is left out.
    """

    schedule: Schedule | CompactSchedule
    whole: Schedule | None
    verification: Verification
    bound: Certificate
    proven: bool | None
    simulation: Simulation | None
    bandwidths: Bandwidths | None
    moments: tuple[Moment, ...]
    details: Mapping[str, Any]
    missing: Mapping[str, str]
    command: str

    @property
    def gap(self) -> float:
        """How far the finish is above the bound, as a share of the bound."""
        return self.bound.gap(self.schedule.finish)


def _look_into(
    found: Result | Schedule | CompactSchedule, details: Mapping[str, Any] | None, *, budget_s: float,
    measured: Sequence[str], command: str,
) -> Findings:  # fmt: skip
    """Verify, bound, replay and time a schedule at many sizes."""
    missing: dict[str, str] = {}
    schedule = found.schedule if isinstance(found, Result) else found
    if isinstance(found, Result):
        details = found.to_dict()
    details = details or {}
    verification = verify(schedule)
    bound = found.bound if isinstance(found, Result) else lower_bound(schedule.problem, budget_s=_BOUND_S)
    count = schedule.num_transfers
    proven = bound.check() if count <= _MOST_CHECKED and bound.witness else None
    whole: Schedule | None = None
    if count <= _MOST_DRAWN:
        whole = schedule.expand() if isinstance(schedule, CompactSchedule) else schedule
    else:
        why = f"left out: the schedule has {count} transfers, and is drawn up to {_MOST_DRAWN}"
        missing["timeline"] = missing["load"] = why
    simulation, rates = None, None
    if whole is None or count > _MOST_REPLAYED:
        why = f"left out: the schedule has {count} transfers, and is replayed up to {_MOST_REPLAYED}"
        missing["sizes"] = why
        missing.setdefault("load", f"How resources idle is {why}")
    else:
        try:
            simulation = simulate(whole)
        except TacclError as error:
            missing["load"] = f"left out: {error}"
        try:
            rates = bandwidths(whole, budget_s=budget_s, measured=measured)
        except TacclError as error:
            if measured:
                raise
            missing["sizes"] = f"left out: {error}"
    moments = found.progress if isinstance(found, Result) else moments_in(details)
    return Findings(
        schedule, whole, verification, bound, proven, simulation, rates, moments, details, missing, command
    )


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
    known = _look_into(found, details, budget_s=budget_s, measured=measured, command=command)
    contents = "".join(f'<a href="#{name}">{as_html(title)}</a>' for name, title in _CONTENTS.items())
    parts = (section(name, title, *getattr(sections, name)(known)) for name, title in _CONTENTS.items())
    body = "".join((_head(known), sections.summary(known), f"<nav>{contents}</nav>", *parts))
    # Only this script may run, and nothing may be fetched, whatever a file has in it.
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    page = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{as_html(policy)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{as_html(title_of(known.schedule.problem))}</title>\n<style>{STYLE}</style>\n</head>\n"
        f'<body>\n<main>\n{body}</main>\n<div id="tip" role="tooltip" hidden></div>\n'
        f"<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )
    if path is not None:
        write_whole(path, page, overwrite=overwrite)
    return page


def _head(found: Findings) -> str:
    checked = found.verification
    verdict = "verified" if checked.ok else f"not valid: {format_count(len(checked.violations), 'violation')}"
    it = found.schedule.problem
    sub = f"{it.topology.num_ranks} ranks in {format_count(it.topology.num_nodes, 'node')}"
    if found.schedule.producer:
        sub += f", found by {found.schedule.producer}"
    mark = "verdict" if checked.ok else "verdict no"
    return (
        f'<h1>{as_html(title_of(it))}</h1><div class="sub">{as_html(sub)}</div>'
        f'<div class="{mark}">{as_html(verdict)}</div>'
    )
