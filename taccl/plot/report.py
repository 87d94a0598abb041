"""Report on a schedule as one self-contained HTML page, which loads nothing from files or servers.

It combines pictures with the HTML that notebooks show of each object. There is no script: the text of a bar
is the bar's SVG title, which browsers show as a tooltip. The verdict at the top says how good the schedule
is, and names up to three next actions.
"""

from __future__ import annotations

import os
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from html import escape
from typing import TYPE_CHECKING, Any

from taccl._internal.arguments import Duration, checked
from taccl._internal.deadline import NEVER, Deadline, OutOfTime, busy_factor
from taccl._internal.html import as_html, facts, table
from taccl._internal.names import first_of, listed, shown, shown_lines
from taccl._internal.units import format_count, format_size, format_us
from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.certificates.certificate import ALL_CHUNKINGS, Certificate
from taccl.analysis.certificates.scopes import (
    LIMIT_TIMES,
    bound_over_all_chunkings,
    bound_rows,
    cuts_s,
    gap_text,
    stronger,
    under_sketch,
)
from taccl.analysis.simulation.simulate import simulate
from taccl.analysis.verification.verify import verify
from taccl.errors import TacclError
from taccl.formats.files import check_page, write_whole
from taccl.plot.comparison import draw_trace, trace_in
from taccl.plot.gantt import COPIES, REDUCTIONS, draw_bars, rows_height
from taccl.plot.page import folded, html_page, picture, with_commands
from taccl.plot.sizes import NOT_TIMED, bandwidth, bandwidths, measured_points
from taccl.plot.style import drawing, figure
from taccl.plot.topology import height_of
from taccl.plot.topology import topology as draw_topology
from taccl.problem.problem import Problem
from taccl.schedule.bars import Bars, By, bars_of
from taccl.schedule.schedule import Schedule
from taccl.synthesis.bounding import no_bound
from taccl.synthesis.result import Result

if TYPE_CHECKING:
    import pandas as pd

    from taccl.analysis.verification.findings import Verification


_VIEWS: tuple[By, ...] = ("rank", "link", "resource")
_MOST_VIOLATIONS = 50
_MOST_TRANSFERS = 300
#: Max transfers of a schedule that is replayed; more take too long for a page.
_MOST_REPLAYED = 20_000
#: Max bars of a page that are drawn as shapes, each with a tooltip; charts with further bars become images.
_MOST_SHAPES = 2400
#: Max bytes of charts whose bars are shapes, so that a page with all its pictures stays below 1 MB.
_MOST_SHAPE_BYTES = 500_000
#: Max transfers of a schedule that is drawn; more need too much memory.
_MOST_DRAWN = 1_000_000
#: Max transfers of a schedule whose certificate is rechecked, which takes as long as finding it.
_MOST_CHECKED = 20_000
#: `_BOUND_S`: max seconds for the bound of a schedule that has none.
#: `_BOUND_SHARE`: max share of the page's time limit for one bound.
#: `_REST_SHARE`: share of the page's time limit reserved for the parts after the bandwidths.
_BOUND_S, _BOUND_SHARE, _REST_SHARE = 5.0, 0.2, 0.1
#: `_LEAST_BOUND_S`: min seconds for one bound.
#: `_ENDING_SHARE`: share of the time for a bound after which its search ends with the best bound so far.
#: `_MOST_CUT_S`: max seconds for cuts around nodes and ranks, the quickest bound of a large schedule.
#: `_USUAL_BOUND_S`: with fewer seconds left, the bound over all chunkings has a smaller budget than usual.
#: `_FEW_TRANSFERS`: max transfers of a schedule whose pictures are drawn even after the time limit.
_LEAST_BOUND_S, _FEW_TRANSFERS = 0.3, 500
_ENDING_SHARE, _MOST_CUT_S, _USUAL_BOUND_S = 0.8, 1.0, 2.0


@checked
def report(
    found: Result | Schedule,
    path: str | os.PathLike[str] | None = None,
    *,
    overwrite: bool = False,
    details: Mapping[str, Any] | None = None,
    command: str = "",
    time_limit_s: Duration = 30.0,
    measured: Sequence[str] = (),
    budget_s: Duration | None = None,
) -> str:
    """HTML page about a schedule: verification, bound, timeline, load, bandwidth over size, and transfers.

    All figures are recomputed. The page of an invalid schedule lists its violations.

    Parameters
    ----------
    found : Result or Schedule
        The schedule.
    path : path, optional
        File to which the page is written, whole or not at all.
    overwrite : bool
        True to replace an existing file.
    details : mapping, optional
        Origin of the schedule, as in `Result.to_dict` and in files; a result states its own.
    command : str
        Command line that makes the page.
    time_limit_s : float
        Max seconds for the whole page. Parts that are not ready by then are left out, and the page says so.
    measured : sequence of str
        Paths of logs (see `taccl.fit`) whose bandwidths are drawn as points over size.
    budget_s : float, optional
        Earlier name of `time_limit_s`.

    Returns
    -------
    str
        The HTML. For a very large schedule, pictures are left out, and the page says so.

    Raises
    ------
    InputError
        If the file exists and `overwrite` is False, or it cannot be written, or its name has the ending of
        another format.
    """
    if budget_s is not None:
        warnings.warn("budget_s is time_limit_s now", DeprecationWarning, stacklevel=3)
        time_limit_s = budget_s
    return write_report(
        found, path, overwrite=overwrite, details=details, command=command, time_limit_s=time_limit_s,
        measured=measured,
    )[0]  # fmt: skip


@drawing
def write_report(
    found: Result | Schedule, path: str | os.PathLike[str] | None, *, overwrite: bool,
    details: Mapping[str, Any] | None, command: str, time_limit_s: float, measured: Sequence[str],
) -> tuple[str, Verification]:  # fmt: skip
    """(page of `report`, verification of the schedule); arguments are those of `report`."""
    limit = Deadline.after(time_limit_s)
    if path is not None:
        check_page(path, overwrite=overwrite)
    page = _Page(found, details or {}, limit, time_limit_s, measured)
    text = page.html(command)
    if path is not None:
        write_whole(path, text, overwrite=overwrite)
    return text, page.judged


class _Page:
    """Page about one schedule: its figures, recomputed, and its sections.

    - `judged`: Verification of the schedule.
    """

    def __init__(
        self, found: Result | Schedule, details: Mapping[str, Any], limit: Deadline, limit_s: float,
        measured: Sequence[str],
    ) -> None:  # fmt: skip
        self._limit, self._limit_s, self._measured = limit, limit_s, measured
        self._details: Mapping[str, Any] = details
        if isinstance(found, Result):
            self._schedule, self._details, self._trace = found.schedule, found.to_dict(), found.trace
            self._bound, self._is_open = found.bound_in_chunks, found.bound_of_chosen is not None
        else:
            self._schedule, self._details, self._trace = found, details, trace_in(details)
            self._is_open = details.get("bound_scope") == ALL_CHUNKINGS
            self._bound = _bound(found.problem, min(_BOUND_S, _BOUND_SHARE * limit_s))
        self._problem, self.judged = self._schedule.problem, verify(self._schedule)
        measured_points(self._problem, measured)  # raises for unusable logs before pictures are drawn
        self._every: Certificate | None = None
        cut_s = min(busy_factor() * cuts_s(self._problem), _MOST_CUT_S)
        with suppress(OutOfTime), (share := self._share().at_least(cut_s)).enforced():
            left_s = share.left_s
            brief_s = left_s / LIMIT_TIMES if left_s < _USUAL_BOUND_S else None
            self._every = bound_over_all_chunkings(self._bound, budget_s=brief_s, most_s=left_s)
        self._gap = gap_text(self._bound, self._schedule.finish, self._every, is_open=self._is_open)
        self._rates: pd.DataFrame | None = None

    def html(self, command: str) -> str:
        """The whole page."""
        contents = self._contents(command)
        sentence, actions = verdict(
            self._schedule, self.judged, stronger(self._bound, self._every), self._gap, self._rates,
            is_measured=bool(self._measured),
        )  # fmt: skip
        steps = "".join(f"<li>{with_commands(each)}</li>" for each in actions)
        verdict_text = f'<p class="verdict">{as_html(sentence)}</p><ol>{steps}</ol>'
        links = "\n".join(f'<a href="#{name}">{title}</a>' for name, (title, _) in contents.items())
        parts = [
            f'<section id="verdict">{verdict_text}</section>\n',
            f"<nav>{links}</nav>\n",
            *(
                f'<section id="{name}"><h2>{title}</h2>\n{part}</section>\n'
                for name, (title, part) in contents.items()
            ),
        ]
        return html_page(self._problem.heading, "".join(parts))

    def _contents(self, command: str) -> dict[str, tuple[str, str]]:
        """{id of a section: (title, HTML)}, in order."""
        schedule, problem, bound, unless = self._schedule, self._problem, self._bound, self._unless
        clauses = problem.clauses
        said = [each.reads(getattr(clauses, each.field)) for each in clauses.said() if each.reads is not None]
        checked = self._rechecked()
        return {
            "verification": ("Verification", self._verification()),
            "bound": ("Bound and gap", bound._repr_html_() + _paragraph(checked)),
            "timeline": ("Timeline",
                         unless(_MOST_DRAWN, "drawn", lambda: _timeline(schedule, bound.bound_us))),
            "load": ("Load", unless(_MOST_DRAWN, "drawn", self._load)
                     + unless(_MOST_REPLAYED, "replayed", self._waits)),
            "sizes": ("Bandwidth over size", unless(_MOST_REPLAYED, "replayed", self._sizes)),
            "search": ("Search", _search(self._details, schedule.producer)
                       + unless(schedule.num_transfers, "drawn", self._progress)),
            "problem": ("Problem and sketch",
                        problem._repr_html_() + facts(said) + problem.topology._repr_html_()),
            "transfers": ("Transfers",
                          folded("the first ones", _lines(schedule.table(limit=_MOST_TRANSFERS)))),
            "versions": ("Versions and command", _versions(self._details, command)),
        }  # fmt: skip

    def _progress(self) -> str:
        """Picture of the finish over the time of the search; empty if the trace has none."""
        if all(entry.finish_us is None for entry in self._trace):
            return ""
        drawn = draw_trace(self._trace, self._problem.heading, ax=figure(width=9, height=3.6))
        return picture(drawn, "progress-picture")

    def _share(self) -> Deadline:
        """Deadline of one bound."""
        return self._limit.sooner(_BOUND_SHARE * self._limit_s).at_least(_LEAST_BOUND_S)

    def _rechecked(self) -> str:
        """Sentence on the check of the bound's witness; empty if it is not checked in time."""
        if self._schedule.num_transfers <= _MOST_CHECKED and self._bound.witness:
            with suppress(OutOfTime), self._share().enforced():
                holds = "it holds" if self._bound.check() else "the witness does not prove the bound"
                return f"Rechecked from its witness alone: {holds}."
        return ""

    def _unless(self, most: int, done: str, make: Callable[[], str]) -> str:
        """HTML from `make`; if `make` fails or there are over `most` transfers, a paragraph that says so."""
        count = self._schedule.num_transfers
        if count > most:
            said = f"the schedule has {count} transfers, and is {done} up to {most}"
            return _paragraph(f"left out: {said}")
        try:
            with (NEVER if count <= _FEW_TRANSFERS else self._limit).enforced():
                return make()
        except TacclError as error:
            return _paragraph(f"left out: {error}")

    def _verification(self) -> str:
        schedule, judged = self._schedule, self.judged
        violations = listed(judged.violations, most=_MOST_VIOLATIONS)
        figures = [
            ("verdict", "valid: every rule holds" if judged.ok else "not valid"),
            ("violations", judged.counted("violation") if violations else ""),
            ("finish", schedule.timing),
            ("bandwidth of the finish" if schedule.launch else "bandwidth", schedule.bandwidth_text),
            ("with the launch", _with_launch(schedule)),
            *bound_rows(self._bound, self._every, is_open=self._is_open),
            ("gap", self._gap),
            ("schedule", f"{schedule.num_transfers} transfers in {format_count(schedule.num_sends, 'send')}"),
            ("redundant", str(judged.num_redundant or "")),
            ("digest", schedule.digest()),
        ]
        return facts(figures) + _lines("\n".join(violations))

    def _sizes(self) -> str:
        left_s = self._limit.left_s - _REST_SHARE * self._limit_s
        rates = bandwidths(self._schedule, budget_s=max(0.0, left_s), measured=self._measured)
        drawn = bandwidth(rates, ax=figure(width=9, height=5.2))
        self._rates = rates
        known = rates.dropna(axis="columns", how="all")
        rows = known.rename(index=format_size).reset_index(names="size")
        shown = rows.to_html(float_format="{:.4g}".format, na_rep="", border=0, index=False)
        shown = _paragraph("Bus bandwidth in GB/s:") + shown if known.size else ""
        reasons: dict[str, list[str]] = {}
        for name, said in rates.attrs["undefined"].items():
            reasons.setdefault(said, []).append(name)
        why = "".join(_paragraph(f"{', '.join(names)}: {said}") for said, names in reasons.items())
        why = folded("baselines without a curve", why) if why else ""
        return f'{picture(drawn, "bandwidth-picture")}<div class="wide">{shown}</div>{why}'

    def _load(self) -> str:
        on = self._problem.topology
        drawn = draw_topology(on, self._schedule, ax=figure(width=9, height=height_of(on)))
        return picture(drawn, "topology-picture")

    def _waits(self) -> str:
        text = "The busiest resources, with the reasons for their idle time, in us:"
        return _paragraph(text) + _lines(simulate(self._schedule).table(limit=12))


def _bound(problem: Problem, seconds: float) -> Certificate:
    """Lower bound found within `seconds`; a bound of 0 if none is ready after twice that time."""
    most_s = max(_LEAST_BOUND_S, 2 * seconds)
    with suppress(OutOfTime), Deadline.after(most_s).enforced():
        return lower_bound(problem, budget_s=seconds, limit_s=most_s, end_s=_ENDING_SHARE * most_s)
    return no_bound(problem)


def _with_launch(schedule: Schedule) -> str:
    """Text of the bus bandwidth over launch time plus finish, as logs measure it; empty if it is unknown."""
    busbw = schedule.predicted_busbw_gb_per_s if schedule.launch else None
    return "" if busbw is None else f"busbw {busbw:.4g} GB/s, as measured and in bandwidth over size"


def _paragraph(text: str) -> str:
    return f"<p>{as_html(text)}</p>" if text else ""


def _lines(text: str) -> str:
    return f"<pre>{escape(shown_lines(text))}</pre>" if text else ""


def _timeline(schedule: Schedule, bound_us: float) -> str:
    """Gantt charts by rank, link and resource."""
    if not schedule.num_transfers:
        return _paragraph("Nothing is sent.")
    views, num_shapes, num_bytes = [], 0, 0

    def drawn(bars: Bars, by: By, *, is_image: bool) -> str:
        ax = figure(width=11, height=rows_height(len(bars.rows)))
        draw_bars(schedule, bars, by, bound_us=bound_us or None, is_image=is_image, ax=ax)
        return picture(ax, f"gantt-{by}", {} if is_image else _texts(schedule, bars))

    for by in _VIEWS:
        bars = bars_of(schedule, by, max_rows=64)
        is_image = num_shapes + len(bars.row) > _MOST_SHAPES
        view = drawn(bars, by, is_image=is_image)
        if not is_image and num_bytes + len(view) > _MOST_SHAPE_BYTES:
            is_image, view = True, drawn(bars, by, is_image=True)
        if not is_image:
            num_shapes, num_bytes = num_shapes + len(bars.row), num_bytes + len(view)
        views.append(folded(f"by {by}", view, is_open=by == _VIEWS[0]))
    point = "Hover over a bar to see its chunks. " if num_shapes else ""
    return _paragraph(f"{point}The dashed line is the bound.") + "".join(views)


def _texts(schedule: Schedule, bars: Bars) -> dict[str, list[str]]:
    """{SVG id of a group of bars: tooltips of its bars, in order}."""
    problem = schedule.problem
    chunks: dict[int, list[int]] = defaultdict(list)
    for group, chunk in zip(schedule.group.tolist(), schedule.chunk.tolist(), strict=True):
        chunks[group].append(chunk)
    columns = (bars.send, bars.link, bars.reduce, bars.start_us, bars.end_us)
    texts: dict[str, list[str]] = {COPIES: [], REDUCTIONS: []}
    for send, link, reduces, start_us, end_us in zip(*(c.tolist() for c in columns), strict=True):
        size = format_size(sum(problem.chunk_bytes[chunk] for chunk in chunks[send]))
        what = f"chunk {first_of(chunks[send], 8)} ({size}) over {problem.topology.links[link]}"
        said = f"{'reduces' if reduces else 'copies'} {what}, {start_us:.3f} to {end_us:.3f} us"
        texts[REDUCTIONS if reduces else COPIES].append(said)
    return texts


def _search(details: Mapping[str, Any], producer: str) -> str:
    """HTML on how the schedule was found: producer, backend, seed and stages, as far as they are known."""
    names = ("name", "solver", "status", "seconds", "finish_us", "message")
    stages = details.get("stages")
    listed = [each for each in stages if isinstance(each, dict)] if isinstance(stages, list) else []
    known = [(name, _word(details.get(name))) for name in ("backend", "seconds", "seed", "stopped")]
    found = facts([("found by", producer or "not known"), *known])
    rows = [[_word(each.get(name)) for name in names] for each in listed]
    return found + (table(names, rows) if rows else "")


def _versions(details: Mapping[str, Any], command: str) -> str:
    """Versions of the programs that made the schedule and the page."""
    stated = details.get("versions")
    rows = [*stated.items()] if isinstance(stated, dict) else []
    made = [("schedule made by", details.get("command")), ("page made by", command)]
    return facts([(_word(name), _word(value)) for name, value in (*rows, *made)])


def _word(value: object) -> str:
    """A plain value from a file as text, cut at 2000 characters."""
    text = "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    return shown(text, 2000)


#: `_WIDE_GAP` is the gap to the bound above which the verdict advises a longer search.
#: `_DIFFERS` is the min ratio of two bandwidths that are called different.
_WIDE_GAP, _DIFFERS = 0.05, 1.005
#: Max number of next actions that a verdict names.
_MOST = 3


def verdict(
    schedule: Schedule,
    judged: Verification,
    bound: Certificate,
    gap: str,
    rates: pd.DataFrame | None,
    *,
    is_measured: bool = False,
) -> tuple[str, list[str]]:
    """A text on how good a schedule is, and at most `_MOST` next actions, the most urgent first.

    - `bound`, `gap`: The largest lower bound that is known, and the gap in words (`gap_text`).
    - `rates`: Bandwidths by size (`taccl.plot.bandwidths`), with baselines; None if they were not computed.
    - `is_measured`: True if the page shows measured bandwidths.
    """
    if not judged.ok:
        said = f"This schedule is not valid: it has {judged.counted('violation')}. Do not run it."
        return said, [
            "Read the violations below; `taccl verify FILE` lists them, too.",
            "Find a valid schedule: `taccl synthesize` verifies what it returns.",
        ]
    problem = schedule.problem
    said = f"It finishes after {format_us(schedule.finish)}; gap to the lower bound: {gap}."
    if problem.topology.assumed:
        said += f" Times and bounds hold for this model: {problem.topology.proviso}."
    actions = []
    baseline = _best_baseline(schedule, rates)
    if baseline is not None:
        name, ratio = baseline
        if ratio < 1 / _DIFFERS:
            said += f" The baseline {name}, in the same chunks, is {1 / ratio:.3g} times as fast."
            actions.append(f"Use the baseline {name} for this size: `taccl baseline` makes it.")
        else:
            times = f"{ratio:.3g} times as fast" if ratio > _DIFFERS else "as fast"
            said += f" It is {times} as the best baseline in the same chunks, {name}{_untimed(rates)}."
            said += " Baselines that cut or mix chunks may be faster: taccl baseline best."
    if bound.gap(schedule.finish) > _WIDE_GAP:
        how = "`taccl synthesize` with a larger --time-limit, or another sketch (`taccl suggest`)"
        of = ("" if bound.divisible else f" for {bound.scope}") + under_sketch(problem)
        actions.append(f"Search longer: {how}. No schedule{of} finishes before {format_us(bound.bound)}.")
    profile = f"the profile {problem.topology.profile}" if problem.topology.profile else "the topology"
    fit = "`taccl fit LOG` fits them to your machine"
    fit += "" if is_measured else ", and `taccl report --measured LOG` shows the log here"
    actions += [
        f"Check the costs, which come from {profile}: {fit}.",
        "Run it: `taccl convert FILE OUT` writes it for MSCCL or MSCCL++, and `taccl run FILE` uses MPI.",
        "Cover other sizes: `taccl plan` finds the best schedule for each size of a range.",
    ]
    return f"This schedule is valid. {said}", actions[:_MOST]


def _best_baseline(schedule: Schedule, rates: pd.DataFrame | None) -> tuple[str, float] | None:
    """The fastest baseline at the schedule's size, and the schedule's speedup over it; None if not known."""
    size = schedule.problem.size_bytes
    if rates is None or not rates.attrs["baselines"] or size not in rates.index:
        return None
    row = rates.loc[size].dropna()
    known = row.reindex(rates.attrs["baselines"]).dropna()
    if known.empty or "this schedule" not in row or not known.max():
        return None
    return str(known.idxmax()), float(row["this schedule"] / known.max())


def _untimed(rates: pd.DataFrame | None) -> str:
    """Text that names the baselines that the time budget left out of a comparison; empty if none."""
    reasons = {} if rates is None else rates.attrs["undefined"]
    names = [name for name, why in reasons.items() if why.startswith(NOT_TIMED)]
    return f" (without {', '.join(names)}: {NOT_TIMED})" if names else ""
