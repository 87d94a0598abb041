"""The sections of a report, in the order of the page: from findings to pieces of HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from taccl.analysis.certificates.certificate import Certificate
from taccl.analysis.certificates.every_cut import bound_rows, standing
from taccl.analysis.simulation.simulate import simulate
from taccl.analysis.verification.violation import Verification
from taccl.errors import TacclError
from taccl.html import as_html
from taccl.plot.gantt import COPIES, MOST_SHAPES, REDUCTIONS, draw_bars, rows_height
from taccl.plot.layout import height_of
from taccl.plot.progress import draw_trace
from taccl.plot.report.parts import data, facts, fold_away, paragraph, picture, table
from taccl.plot.sizes import NAMES_OF_BASELINES, bandwidth, bandwidths
from taccl.plot.style import figure, title_of
from taccl.plot.topology import topology as draw_topology
from taccl.schedule.bars import By, bars_of, busy_shares
from taccl.schedule.compact import CompactSchedule
from taccl.schedule.schedule import Schedule
from taccl.synthesis.result import TraceEntry
from taccl.units import format_count, format_gap, format_size, format_us

_VIEWS: tuple[By, ...] = ("rank", "link", "resource")
_MOST_VIOLATIONS = 50
_MOST_ROWS = 12
_MOST_TRANSFERS = 300
#: Replaying more transfers than this takes too long for a page.
_MOST_REPLAYED = 20_000
#: Drawing more takes too much memory.
_MOST_DRAWN = 1_000_000
#: Certificates of larger problems are not checked again: that takes as long as finding them.
_MOST_CHECKED = 20_000


@dataclass(frozen=True)
class Findings:
    """What a page is made from; `details` say how the schedule was found, as `Result.to_dict` has it."""

    schedule: Schedule | CompactSchedule
    verification: Verification
    bound: Certificate
    trace: tuple[TraceEntry, ...]
    details: Mapping[str, Any]
    command: str
    budget_s: float
    measured: Sequence[str]

    @property
    def gap(self) -> float:
        """How far the finish is above the bound, as a share of the bound."""
        return self.bound.gap(self.schedule.finish)

    @cached_property
    def whole(self) -> Schedule | None:
        """The schedule with every transfer; None where it has too many to be drawn."""
        if self.schedule.num_transfers > _MOST_DRAWN:
            return None
        return self.schedule.expand() if isinstance(self.schedule, CompactSchedule) else self.schedule

    def left_out(self, done: str, most: int) -> str:
        """Why what is `done` to `most` transfers is not done to so many."""
        count = self.schedule.num_transfers
        return f"left out: the schedule has {count} transfers, and is {done} up to {most}"


def summary(found: Findings) -> str:
    """The figures at the top."""
    schedule, limit = found.schedule, found.bound
    best = standing(limit, schedule.finish)
    every = [(name, text.partition(",")[0]) for name, text in bound_rows(limit)[1:]]
    predicted = format_us(schedule.launch + schedule.finish) if schedule.launch else ""
    cards = [
        (format_us(schedule.finish), "finish"),
        (predicted, "predicted: launch and finish"),
        (_rate(schedule.busbw_gb_per_s), "bus bandwidth"),
        (_rate(schedule.algbw_gb_per_s), "algorithm bandwidth"),
        (format_us(limit.bound), f"bound: no schedule of {limit.scope} is faster"),
        *((text, f"bound {name}: no schedule is faster") for name, text in every),
        (format_gap(found.gap) + (f" ({best})" if best else ""), "gap: (finish - bound) / bound"),
        (str(schedule.num_transfers), f"transfers in {format_count(schedule.num_sends, 'send')}"),
    ]
    card = '<div class="card"><b>{}</b><span>{}</span></div>'
    shown = "".join(card.format(as_html(value), as_html(name)) for value, name in cards if value)
    return f'<div class="cards">{shown}</div>'


def verification(found: Findings) -> list[str]:
    """What was checked, and each violation."""
    checked = found.verification
    count, redundant = format_count(len(checked.violations), "violation"), checked.num_redundant
    rows = [
        ("verdict", "valid: every rule holds" if checked.ok else count),
        ("finish", format_us(checked.finish_us)),
        ("redundant", format_count(redundant, "redundant arrival") if redundant else ""),
        ("digest", found.schedule.digest()),
    ]
    text = (
        "The verifier replays the schedule from its problem alone, with exact costs, and calls nothing of "
        "what made it: every chunk is where it is sent from, no resource is held twice at a time, every "
        "clause of the sketch is obeyed, and at the end every rank holds what it must."
    )
    shown = checked.violations[:_MOST_VIOLATIONS]
    more = len(checked.violations) - len(shown)
    parts = [paragraph(text), facts(rows)]
    if shown:
        parts.append(table(("kind", "violation"), [(each.kind, str(each)) for each in shown]))
        parts.append(paragraph(f"and {more} more, which taccl verify lists" if more else "", kind="note"))
    return parts


def bound(found: Findings) -> list[str]:
    """The certificate in words."""
    limit = found.bound
    count = found.schedule.num_transfers
    proven = limit.check() if count <= _MOST_CHECKED and limit.witness else None
    holds = "worked out again from its witness, by arithmetic alone: it holds"
    checked = {True: holds, False: "the witness does not prove the bound", None: ""}
    rows = [
        *((name, text.partition(", limited")[0]) for name, text in bound_rows(limit)),
        ("bandwidth", f"{_rate(limit.algbw_gb_per_s)} at most" if limit.algbw_gb_per_s else ""),
        ("limited by", limit.limits),
        ("kind", limit.kind),
        ("witness", limit.witness_text),
        ("checked", checked[proven]),
        ("gap", format_gap(found.gap)),
    ]
    text = f"A time that no schedule of the problem ({limit.scope}) can beat, with what proves it."
    if found.gap == 0:
        text += f" The schedule meets it: it is {standing(limit, found.schedule.finish)}."
    elif found.gap != float("inf"):
        text += f" This one is {found.gap:.2%} above it: a better one may exist, or the bound may be too low."
    return [paragraph(text), facts(rows)]


def timeline(found: Findings) -> list[str]:
    """Gantt charts by rank, link and resource, and what their bars are."""
    whole = found.whole
    if whole is None:
        return [paragraph(found.left_out("drawn", _MOST_DRAWN), kind="note")]
    if not whole.num_transfers:
        return [paragraph("There is nothing to send.", kind="note")]
    try:
        charts = {by: bars_of(whole, by, max_rows=64) for by in _VIEWS}
    except TacclError as error:
        return [paragraph(f"left out: {error}", kind="bad")]
    bound_us = found.bound.bound_us or None
    buttons, views, groups = [], [], {}
    for by, bars in charts.items():
        name, ax = f"gantt-{by}", figure(width=11, height=rows_height(len(bars.rows)))
        drawn = draw_bars(whole, bars, by, bound_us=bound_us, ax=ax)
        views.append(f'<div id="view-{by}">{picture(drawn, name, f"sends by {by} over time")}</div>')
        buttons.append(f'<button type="button" data-shows="view-{by}">by {by}</button>')
        if len(bars.row) <= MOST_SHAPES:
            names = ((COPIES, ~bars.reduce), (REDUCTIONS, bars.reduce))
            groups[name] = {kind: bars.send[some].tolist() for kind, some in names}
    texts = data("sends", {"pictures": groups, "texts": _texts(whole) if groups else []})
    text = "A bar is a send; point at one to see what it carries. The dashed line is the bound."
    return [paragraph(text), f'<div class="tabs">{"".join(buttons)}</div>', *views, texts]


def _texts(schedule: Schedule) -> list[str]:
    """What each send carries, by group."""
    problem, us = schedule.problem, schedule.problem.costs.us
    members: dict[int, list[int]] = {}
    for index, group in enumerate(schedule.group.tolist()):
        members.setdefault(group, []).append(index)
    texts = [""] * (max(members, default=-1) + 1)
    for group, indices in members.items():
        at, chunks = indices[0], schedule.chunk[indices].tolist()
        size = format_size(sum(problem.chunk_bytes[chunk] for chunk in chunks))
        what = "reduces" if schedule.reduce[at] else "copies"
        some = ", ".join(map(str, chunks[:8])) + (", ..." if len(chunks) > 8 else "")
        start, end = (float(us(column[at])) for column in (schedule.start, schedule.end))
        texts[group] = (
            f"{what} chunk{'s' if len(chunks) > 1 else ''} {some} ({size})\n"
            f"over link {problem.topology.links[int(schedule.link[at])]}\n{start:.3f} to {end:.3f} us"
        )
    return texts


def load(found: Findings) -> list[str]:
    """The topology with link loads, the busiest links, and the busiest resources with why they idle."""
    whole = found.whole
    if whole is None:
        return [paragraph(found.left_out("drawn", _MOST_DRAWN), kind="note")]
    topology = whole.problem.topology
    try:
        drawn = draw_topology(topology, whole, ax=figure(width=9, height=height_of(topology)))
        shown = picture(drawn, "topology-picture", "topology with link loads")
        parts = [shown, paragraph("The busiest links:"), _links(whole)]
    except TacclError as error:
        parts = [paragraph(f"left out: {error}", kind="bad")]
    if whole.num_transfers > _MOST_REPLAYED:
        text = f"How resources idle is {found.left_out('replayed', _MOST_REPLAYED)}"
        return [*parts, paragraph(text, kind="note")]
    try:
        resources = simulate(whole).resources
    except TacclError as error:
        return [*parts, paragraph(f"left out: {error}", kind="note")]
    rows = []
    for use in resources[:_MOST_ROWS]:
        idle = (use.idle_for_data, use.idle_for_clause, use.idle_for_resource, use.idle_at_end)
        busy = (str(use.num_sends), f"{use.busy_us:.3f}", f"{use.utilisation:.1%}")
        rows.append((use.name, *busy, *(f"{float(each):.3f}" for each in idle)))
    head = (
        "resource", "sends", "busy in us", "busy", "idle for data", "for a clause",
        "for another resource", "at the end",
    )  # fmt: skip
    text = "The busiest resources, and what they wait for when they are idle (in us):"
    more = paragraph(_more(len(resources), len(rows), "resource"), kind="note")
    return [*parts, paragraph(text), table(head, rows, numbers=range(1, 8)), more]


def _links(schedule: Schedule) -> str:
    topology = schedule.problem.topology
    links, holds = topology.links, topology.holds_of_link
    size = np.array(schedule.problem.chunk_bytes, dtype=np.float64)[schedule.chunk]
    carried = np.bincount(schedule.link, weights=size, minlength=len(links))
    chunks = np.bincount(schedule.link, minlength=len(links))
    shares = busy_shares(schedule)
    own = np.array([max((shares[h.resource] for h in held), default=0.0) for held in holds])
    used = np.flatnonzero(chunks)
    order = used[np.lexsort((used, -carried[used], -own[used]))][:_MOST_ROWS]
    rows = [
        (str(links[e]), str(chunks[e]), format_size(int(carried[e])), f"{own[e]:.1%}") for e in order.tolist()
    ]
    more = _more(len(used), len(rows), "link")
    idle = f"{len(links) - len(used)} of {len(links)} links carry nothing."
    listed = table(("link", "chunks", "bytes", "busiest resource it holds"), rows, numbers=(1, 2, 3))
    return listed + paragraph(f"{more} {idle}", kind="note")


def sizes(found: Findings) -> list[str]:
    """Bus bandwidth over size, as a picture and as a table."""
    if found.whole is None or found.whole.num_transfers > _MOST_REPLAYED:
        return [paragraph(found.left_out("replayed", _MOST_REPLAYED), kind="note")]
    try:
        rates = bandwidths(found.whole, budget_s=found.budget_s, measured=found.measured)
    except TacclError as error:
        if found.measured:
            raise
        return [paragraph(f"left out: {error}", kind="note")]
    drawn = bandwidth(rates, ax=figure(width=9, height=5.2))
    bounds = {"bound": rates.bound}
    if rates.bound_under_sketch:
        bounds = {"bound, sketch aside": rates.bound, "bound under the sketch": rates.bound_under_sketch}
    lines = [rates.schedule, *bounds.values(), *rates.baselines.values()]
    rows = []
    for index, (size, best) in enumerate(zip(rates.sizes_bytes, rates.best_baseline, strict=True)):
        mine = rates.schedule[index]
        faster = f"{mine / best[1]:.2f}x" if mine and best else ""
        rows.append((format_size(size), *(_number(line[index]) for line in lines), faster))
    names = [NAMES_OF_BASELINES[name] for name in rates.baselines]
    head = ("size", "this schedule", *bounds, *names, "over the best baseline")
    text = (
        "The schedule keeps its order at every size. Baselines are well-known algorithms on the same "
        "topology with the same chunks, each in the form that is fastest at that size."
    )
    if rates.bound_under_sketch:
        text += (
            " They leave the sketch aside, which binds the schedule: there is a bound with it and without."
        )
    if rates.measured:
        text += f" Circles are measured: {format_count(len(rates.measured), 'size')} of the logs given."
    undefined = [
        paragraph(f"{NAMES_OF_BASELINES[name]}: {why}", kind="note") for name, why in rates.undefined.items()
    ]
    shown = picture(drawn, "bandwidth-picture", "bus bandwidth over size")
    numbers = table(head, rows, numbers=range(1, len(head)))
    return [paragraph(text), shown, *undefined, fold_away("The numbers: bus bandwidth in GB/s", numbers)]


def search(found: Findings) -> list[str]:
    """Stages with their seconds, and the best finish and bound over time."""
    details = found.details
    stages = details.get("stages")
    rows = [
        (*(_word(stage.get(name)) for name in ("name", "solver", "status")),
         _number(stage.get("seconds"), ".2f"), _number(stage.get("finish_us"), ".3f"),
         _word(stage.get("message")))
        for stage in (stages if isinstance(stages, list) else ())
        if isinstance(stage, dict)
    ]  # fmt: skip
    known = [
        ("found by", found.schedule.producer or "not known"),
        ("backend", _word(details.get("backend"))),
        ("seconds", _number(details.get("seconds"), ".2f")),
        ("seed", _word(details.get("seed"))),
        ("stopped", _word(details.get("stopped"))),
    ]
    parts = [facts(known)]
    if rows:
        head = ("stage", "solver", "status", "seconds", "finish in us", "")
        parts.append(table(head, rows, numbers=(3, 4)))
    else:
        parts.append(paragraph("The file does not say how the schedule was found.", kind="note"))
    if any(entry.finish_us is not None for entry in found.trace):
        title = title_of(found.schedule.problem)
        drawn = draw_trace(found.trace, title, ax=figure(width=9, height=3.6))
        parts.append(picture(drawn, "progress-picture", "best finish and bound over time"))
    return parts


def problem(found: Findings) -> list[str]:
    """Topology, collective, sizes and the sketch's clauses."""
    it = found.schedule.problem
    topology, clauses = it.topology, it.clauses
    said = [each.reads(getattr(clauses, each.field)) for each in clauses.said() if each.reads is not None]
    rows = [
        *it.facts(),
        ("links", f"{len(topology.links)}, which hold {format_count(len(topology.resources), 'resource')}"),
        ("profile", topology.profile),
        ("protocol", topology.protocol),
        ("launch", format_us(topology.launch_us) if topology.launch_us else ""),
        ("cost model", topology.cost_model),
        *said,
    ]
    notes = [paragraph(f"note: {note}", kind="note") for note in dict.fromkeys((*it.notes, *topology.notes))]
    return [facts(rows), *notes]


def transfers(found: Findings) -> list[str]:
    """The first transfers."""
    schedule = found.schedule
    links, us = schedule.problem.topology.links, schedule.problem.costs.us
    rows: list[tuple[str, ...]] = []
    for each in islice(schedule, _MOST_TRANSFERS):
        link = str(links[each.link]) if 0 <= each.link < len(links) else f"no link {each.link}"
        times = (f"{float(us(ticks)):.3f}" for ticks in (each.start_ticks, each.end_ticks))
        rows.append((*times, str(each.chunk), link, str(each.group), "reduce" if each.reduce else "copy"))
    head = ("start in us", "end in us", "chunk", "link", "send", "operation")
    more = _more(schedule.num_transfers, len(rows), "transfer")
    if more:
        more = f"the first of them; {more} `taccl show FILE --transfers -1` lists all."
    said = f"{format_count(schedule.num_transfers, 'transfer')} {more}".strip()
    return [paragraph(said), table(head, rows, numbers=(0, 1, 2, 4))]


def versions(found: Findings) -> list[str]:
    """What made the schedule and the page."""
    stated, made = found.details.get("versions"), _word(found.details.get("command"))
    if isinstance(stated, dict) and stated:
        parts = [facts([(_word(name), _word(version)) for name, version in stated.items()])]
    else:
        parts = [paragraph("The file does not say which versions made it.", kind="note")]
    for name, text in (("The schedule was made by", made), ("This page was made by", found.command)):
        if text:
            parts.append(f"<p>{as_html(name)}</p><pre>{as_html(text)}</pre>")
    return parts


def _rate(gb_per_s: float | None) -> str:
    return "" if gb_per_s is None else f"{gb_per_s:.4g} GB/s"


def _number(value: object, format: str = ".4g") -> str:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return f"{value:{format}}" if is_number else ""


def _word(value: object) -> str:
    """A plain value of a file as text, cut where it is no word any more."""
    text = "" if value is None else str(value)
    return text if len(text) <= 2000 else text[:2000] + " ..."


def _more(total: int, shown: int, noun: str) -> str:
    hidden = total - shown
    return f"{format_count(hidden, f'more {noun}')} not shown." if hidden else ""
