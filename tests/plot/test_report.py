"""The report: one page with every section and the right figures, for any schedule."""

import dataclasses
import re
from base64 import b64decode
from html import escape
from io import BytesIO

import numpy as np
import pytest

import taccl
from taccl._internal.deadline import OutOfTime
from taccl._internal.units import format_us
from taccl.errors import InputError
from taccl.plot import sizes
from taccl.plot.report import verdict
from tests.effort import brief_synthesis, first_bounds
from tests.plot.test_display import HOSTILE, Elements

SECTIONS = (
    "verdict", "verification", "bound", "timeline", "load", "sizes", "search", "problem", "transfers", "versions",
)  # fmt: skip


@pytest.fixture(scope="module")
def page(found):
    return taccl.report(found, command="taccl report out.json -o report.html", time_limit_s=0.5)


@pytest.fixture
def _no_pictures(monkeypatch):
    """Leave out the pictures of a report, whose drawing takes most of its time."""
    monkeypatch.setattr("taccl.plot.report.picture", lambda *_: "")


def section(page, name):
    """Content of a section."""
    return re.search(f'<section id="{name}">(.*?)</section>', page, re.DOTALL)[1]


@pytest.mark.slow
def test_every_section_is_there(page):
    """The sections of a report are in the order of its table of contents."""
    assert tuple(re.findall(r'<section id="(\w+)"', page)) == SECTIONS


@pytest.mark.slow
def test_the_figures_are_those_of_the_result(page, found):
    """The page of a report has the result's finish, bound and bandwidth with units, and its digest."""
    for figure in (
        format_us(found.finish_us),
        format_us(found.bound_us),
        f"{found.schedule.busbw_gb_per_s:.4g} GB/s",
        found.schedule.digest(),
        found.bound.limits,
    ):
        assert figure in Elements(page).text


@pytest.mark.slow
def test_the_witness_is_in_words(page, found):
    """The page describes the witness in words, and says that the certificate was checked again."""

    text = Elements(section(page, "bound")).text
    assert found.bound.witness_text in text
    assert "from its witness alone: it holds" in text


def test_stages_and_versions_are_listed(page, found):
    """Stages and versions are those of the result, and the command is shown."""
    text = Elements(section(page, "search")).text
    for stage in found.stages:
        assert stage.name in text
    assert found.versions["numpy"] in section(page, "versions")
    assert "taccl report out.json -o report.html" in section(page, "versions")


@pytest.mark.slow
@pytest.mark.usefixtures("_no_pictures")
def test_the_verdict_and_three_actions_come_first(page, found, exchange):
    """Validity, finish and gap come first, as in the table below, followed by what to do next."""
    said = section(page, "verdict")
    assert said.startswith('<p class="verdict">This schedule is valid. It finishes after ')
    assert format_us(found.finish_us) in said
    assert said.count("<li>") == 3
    wrong = dataclasses.replace(exchange, link=np.array([0, 9, 1], dtype=np.int32))
    said = section(taccl.report(wrong), "verdict")
    assert "not valid: it has" in said and "Do not run it." in said


@pytest.mark.slow
@pytest.mark.usefixtures("_no_pictures")
def test_a_faster_baseline_is_the_first_advice():
    """For a ring of 1 KB on 8 ranks, the first advice is a baseline of fewer steps."""
    problem = taccl.make_problem(taccl.topologies.fully_connected(8), "allgather", size_bytes=1000)
    said = section(taccl.report(taccl.baselines.ring(problem), time_limit_s=60), "verdict")
    assert re.search(r"The baseline \S.*, in the same chunks, is [\d.]+ times as fast\.", said)
    assert "<li>Use the baseline" in said


@pytest.mark.slow
def test_a_claim_about_all_schedules_names_its_chunks():
    """The verdict says for which chunks no schedule finishes earlier, unless the bound is over all chunkings."""
    problem = taccl.make_problem(taccl.topologies.ring(8), "allreduce", size_bytes=10**6, chunks_per_rank=1)
    schedule = taccl.baselines.tree(problem)
    judged = taccl.verify(schedule)
    for divisible, of in ((False, " for 1 chunk per rank"), (True, "")):
        bound = taccl.lower_bound(problem, divisible=divisible)
        actions = " ".join(verdict(schedule, judged, bound, "", None)[1])
        assert f"No schedule{of} finishes before {format_us(bound.bound)}." in actions


def test_a_verdict_on_a_topology_with_assumptions_holds_for_its_model():
    """The verdict says on how many assumptions its times and bounds rest, and nothing without any."""
    ring = taccl.topologies.ring(4)
    for assumed in ((), ("slow links",)):
        topology = dataclasses.replace(ring, assumed=assumed)
        schedule = taccl.baselines.ring(taccl.make_problem(topology, "allgather", size_bytes=10**6))
        said, _ = verdict(schedule, taccl.verify(schedule), taccl.lower_bound(schedule.problem), "", None)
        assert ("hold for this model: 1 assumption of the topology" in said) == bool(assumed)


def test_a_comparison_names_baselines_without_time(monkeypatch, exchange):
    """Baselines that are fastest most often are timed first, and those without time are named beside the best
    one."""
    asked = []

    def rates_of(name, problem, every):
        asked.append(name)
        if name != "ring":
            raise OutOfTime("no time is left")
        return (1e-9,)

    monkeypatch.setattr(sizes, "_rates", rates_of)
    rates = sizes.bandwidths(exchange, sizes=[exchange.problem.size_bytes])
    assert asked[0] == "multiplying"
    assert rates.attrs["undefined"]["recursive multiplying"] == "not timed: the time budget is spent"
    said, _ = verdict(exchange, taccl.verify(exchange), taccl.lower_bound(exchange.problem), "0", rates)
    assert re.search(r"best baseline in the same chunks, ring \(without .*recursive multiplying", said)
    assert "cut or mix chunks may be faster" in said


@pytest.mark.slow
@pytest.mark.usefixtures("_no_pictures")
def test_the_table_of_bandwidths_has_one_head(exchange):
    """The table of bandwidths has one row of titles, which begins with the size, and states the unit."""
    part = section(taccl.report(exchange, time_limit_s=20), "sizes")
    head = re.search("<thead>(.*?)</thead>", part, re.DOTALL)[1]
    assert "Bus bandwidth in GB/s:" in part
    assert head.count("<tr") == 1 and re.search(r"<th>size</th>", head)


@pytest.mark.slow
def test_a_page_of_many_bars_is_small(monkeypatch, found):
    """A view with more bars than the limit of shapes is an image of few colours, without a title for each bar."""
    from PIL import Image

    from taccl.plot import report as sections

    monkeypatch.setattr(sections, "_MOST_SHAPES", 0)
    page = section(taccl.report(found, time_limit_s=1e-9), "timeline")
    images = re.findall(r'<image [^>]*?"data:image/png;base64,\s*([^"]*)"', page)
    assert len(images) >= 3
    assert {Image.open(BytesIO(b64decode(each))).mode for each in images} == {"P"}
    assert "Hover over a bar" not in page


@pytest.mark.slow
@pytest.mark.usefixtures("_no_pictures")
def test_baselines_without_time_are_listed_once(found):
    """Baselines that the time budget leaves out are named in one sentence."""
    said = section(taccl.report(found, time_limit_s=1e-9), "sizes")
    assert said.count("not timed: the time budget is spent") == 1
    assert "ring, " in said and "double binary tree, " in said


@pytest.mark.slow
def test_a_report_of_dense_timelines_is_below_a_megabyte(monkeypatch):
    """Timelines of many long tooltips fit into a page below 1 MB."""
    monkeypatch.setattr("taccl.plot.report._MOST_REPLAYED", 0)  # no bandwidths over size, about 50 KB
    problem = taccl.make_problem(taccl.topologies.dgx_h100(4), "allgather", size_bytes=4 * 10**6)
    with first_bounds():
        page = taccl.report(taccl.baselines.ring(problem), time_limit_s=120)
    assert 300_000 < len(page) < 900_000
    assert page.count("<svg ") == 4


def test_every_bar_has_a_text(page, found):
    """Each shape of each picture has a title with the chunks, the link and the times of its send."""
    links, us = found.schedule.problem.topology.links, found.schedule.problem.costs.us
    for by in ("rank", "link", "resource"):
        groups = re.findall(rf'<g id="gantt-{by}-(copies|reductions)">(.*?)</g>', page, re.DOTALL)
        assert {kind for kind, _ in groups} == {"copies", "reductions"}
        titles = [
            title
            for kind, drawn in groups
            for title in re.findall(rf"<path [^>]*><title>({kind[:3]}.*?)</title></path>", drawn)
        ]
        assert len(titles) == sum(drawn.count("<path") for _, drawn in groups)
        for each in found.schedule if by != "resource" else ():  # of which a send may hold none
            over = escape(f" over {links[each.link]}, {float(us(each.start_ticks)):.3f} to ")
            (said,) = {title for title in titles if over in title}
            assert f"chunk {each.chunk} (" in said


def test_identifiers_are_unique(page):
    """Pictures on one page do not share identifiers."""
    found = re.findall(r'<[^>]*\bid="([^"]*)"', page)
    assert len(found) == len(set(found))


def test_nothing_is_fetched(page):
    """No element refers to another file, and the page's policy forbids such references."""
    assert "default-src 'none'" in page.replace("&#x27;", "'")
    for attribute, target in re.findall(r'<[^>]*?\b(src|href|xlink:href|action)="([^"]*)"', page):
        assert target.startswith(("#", "data:")), attribute
    assert not re.search(r"url\((?!#)", page)
    assert "@import" not in page


@pytest.mark.slow
def test_the_same_schedule_is_the_same_page(monkeypatch, exchange):
    """The page of a report, with its timeline, has no date and no random identifier."""
    monkeypatch.setattr("taccl.plot.report._MOST_REPLAYED", 0)
    with pytest.warns(DeprecationWarning, match="budget_s is time_limit_s now"):
        again = taccl.report(exchange, budget_s=1e-9)
    assert taccl.report(exchange, time_limit_s=1e-9) == again


@pytest.mark.slow
@pytest.mark.usefixtures("_no_pictures")
def test_a_schedule_that_breaks_rules_gets_a_page_that_says_which(found):
    """For a schedule without its last arrival, the page says that a chunk never arrives."""
    columns = {
        name: getattr(found.schedule, name)[:-1]
        for name in ("chunk", "link", "start", "end", "group", "reduce", "carries")
    }
    page = taccl.report(dataclasses.replace(found.schedule, **columns), time_limit_s=1e-9)
    assert "not valid" in page
    assert "1 violation" in page
    assert "never" in section(page, "verification") or "lacks" in section(page, "verification")


@pytest.mark.slow
@pytest.mark.usefixtures("_no_pictures")
def test_a_file_keeps_which_gap_was_asked_for():
    """With an open number of chunks, the page from a saved file has the same rows as from the result."""
    topology = taccl.topologies.fully_connected(3)
    result = brief_synthesis(taccl.make_problem(topology, "allgather", size_bytes="8MB"))
    pages = (
        taccl.report(result, time_limit_s=60),
        taccl.report(result.schedule, details=result.to_dict(), time_limit_s=60),
    )
    of_result, of_file = (section(page, "verification") for page in pages)
    assert "over all chunkings (optimal for 1 chunk per rank)" in of_result
    assert of_file == of_result


def test_links_that_do_not_exist_are_no_obstacle(exchange):
    """For links that do not exist, the page names the fault and omits the pictures."""
    wrong = dataclasses.replace(exchange, link=np.array([0, 9, 1], dtype=np.int32))
    page = taccl.report(wrong)
    assert "not valid" in page
    assert "no link 9" in section(page, "transfers")
    assert "left out" in section(page, "timeline")


def test_no_picture_is_drawn_once_time_is_up(monkeypatch, exchange):
    """Once time is up, pictures of all but the smallest schedules are left out, that of the search included.

    The bound is still shown.
    """
    from taccl.plot import report as sections

    monkeypatch.setattr(sections, "_FEW_TRANSFERS", 0)
    monkeypatch.setattr(sections, "figure", lambda **_: pytest.fail("drawn"))
    trace = [{"seconds": 0.1, "finish_us": exchange.finish_us, "bound_us": None}]
    page = taccl.report(exchange, details={"trace": trace}, time_limit_s=1e-9)
    for name in ("timeline", "load", "sizes", "search"):
        assert "left out: the time limit was reached" in section(page, name)
    assert "limited by" in section(page, "verification")


@pytest.mark.slow
def test_names_are_text(found):
    """No name from a file becomes an element or an attribute."""
    problem = found.schedule.problem
    bad = HOSTILE + "</script><script>alert(2)</script>"
    links = tuple(link._replace(name=bad) for link in problem.topology.links)
    topology = dataclasses.replace(
        problem.topology, name=bad, profile=bad, links=links, notes=(bad,),
        resources=tuple(each._replace(name=bad) for each in problem.topology.resources),
    )  # fmt: skip
    clauses = dataclasses.replace(problem.clauses, name=bad)
    hostile = dataclasses.replace(problem, topology=topology, clauses=clauses, notes=(bad,))
    schedule = dataclasses.replace(found.schedule, problem=hostile, producer=bad)
    details = {
        "stages": [{"name": bad, "solver": bad, "status": bad, "seconds": bad, "message": bad}, 3],
        "versions": {bad: bad}, "backend": bad, "stopped": bad, "command": bad, "trace": bad, "seed": [bad],
    }  # fmt: skip
    page = taccl.report(schedule, details=details, command=bad, time_limit_s=1e-9)
    assert "<script" not in page
    assert "<img" not in page
    assert bad in Elements(section(page, "search")).text


@pytest.mark.slow
def test_very_large_schedules_get_figures_without_pictures(monkeypatch, exchange):
    """Above the size limits the page omits the pictures and says so."""
    from taccl.plot import report as sections

    monkeypatch.setattr(sections, "picture", lambda *_: "<svg/>")
    monkeypatch.setattr(sections, "_MOST_REPLAYED", 2)
    page = taccl.report(exchange)
    for name in ("load", "sizes"):
        assert "left out: the schedule has 3 transfers, and is replayed up to 2" in section(page, name)
    assert "<svg" in section(page, "timeline")
    monkeypatch.setattr(sections, "_MOST_DRAWN", 2)
    page = taccl.report(exchange)
    for name in ("timeline", "load"):
        assert "left out: the schedule has 3 transfers, and is drawn up to 2" in section(page, name)
    assert "<svg" not in page


@pytest.mark.slow
@pytest.mark.usefixtures("_no_pictures")
def test_many_transfers_are_cut(monkeypatch, exchange):
    """The table of transfers is cut, and states the number of those omitted."""
    from taccl.plot import report as sections

    monkeypatch.setattr(sections, "_MOST_TRANSFERS", 1)
    page = taccl.report(exchange, time_limit_s=1e-9)
    assert "... and 2 more" in section(page, "transfers")


@pytest.mark.slow
@pytest.mark.usefixtures("_no_pictures")
def test_schedules_without_ends_have_a_page(found):
    """Schedules without stored ends have a page like any other."""
    import taccl.baselines as baselines

    made = baselines.ring(found.schedule.problem)
    bare = taccl.Schedule(made.problem, made.chunk, made.link, made.start, reduce=int(made.reduce.sum()))
    assert "by rank" in taccl.report(bare, time_limit_s=1e-9)


@pytest.mark.slow
@pytest.mark.usefixtures("_no_pictures")
def test_pages_are_written_whole_or_not_at_all(tmp_path, exchange):
    """An existing report file is kept, unless replacement is requested."""
    path = tmp_path / "report.html"
    path.write_text("mine")
    with pytest.raises(InputError, match="exists"):
        taccl.report(exchange, path)
    assert path.read_text() == "mine"
    taccl.report(exchange, path, overwrite=True, time_limit_s=1e-9)
    assert path.read_text().startswith("<!DOCTYPE html>")
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]
