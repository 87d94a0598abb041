"""Notebook output: tables with figures, and escaped names."""

from __future__ import annotations

import dataclasses
from html.parser import HTMLParser

import pytest

import taccl
from taccl._internal import html

HOSTILE = "<script>alert('x')</script><img src=x onerror=alert(1)>&\"'"


class Elements(HTMLParser):
    """Parser that collects the names of all elements, and checks that each is closed."""

    def __init__(self, content):
        super().__init__()
        self.names: set[str] = set()
        self.open: list[str] = []
        self.text = ""
        self.feed(content)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.names.add(tag)
        if tag not in ("meta", "link", "input", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.fixture
def shown(found):
    """HTML of every object of one result that has a notebook display."""
    problem = found.schedule.problem
    return {
        "Topology": problem.topology,
        "Sketch": taccl.load_sketch("ndv2/sk1"),
        "Problem": problem,
        "Result": found,
        "Certificate": found.bound,
        "Schedule": found.schedule,
        "Simulation": taccl.simulate(found.schedule),
    }


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("Topology", ["two nodes", "4 in 2 nodes", "between nodes"]),
        ("Sketch", ["ndv2"]),
        ("Problem", ["allreduce on two nodes", "4MB"]),
        ("Result", ["finish", "gap", "greedy", "verified"]),
        ("Certificate", ["limited by", "witness"]),
        ("Schedule", ["0->1", "reduce"]),
        ("Simulation", ["resource", "busy"]),
    ],
)
def test_the_figures_are_there(shown, kind, words):
    """Each display names its object and has its figures, in closed elements."""
    elements = Elements(shown[kind]._repr_html_())
    assert elements.open == []
    assert "script" not in elements.names
    for word in words:
        assert word in elements.text


def test_names_are_text(shown, found):
    """A name that contains a script is shown as text."""
    problem = found.schedule.problem
    link = problem.topology.links[0]._replace(name=HOSTILE)
    topology = dataclasses.replace(
        problem.topology, name=HOSTILE, profile=HOSTILE, links=(link, *problem.topology.links[1:]),
        notes=(HOSTILE,),
        resources=tuple(each._replace(name=HOSTILE) for each in problem.topology.resources),
    )  # fmt: skip
    clauses = dataclasses.replace(problem.clauses, name=HOSTILE)
    hostile = dataclasses.replace(problem, topology=topology, clauses=clauses, notes=(HOSTILE,))
    schedule = dataclasses.replace(found.schedule, problem=hostile, producer=HOSTILE)
    bound = dataclasses.replace(found.bound, problem=hostile, limits=HOSTILE)
    stage = dataclasses.replace(found.stages[0], message=HOSTILE)
    result = dataclasses.replace(found, schedule=schedule, bound=bound, stages=(stage,), notes=(HOSTILE,))
    sketch = taccl.Sketch.from_dict({"schema": 1, "name": HOSTILE, "description": HOSTILE})
    for each in (topology, hostile, schedule, bound, result, sketch, taccl.simulate(schedule)):
        elements = Elements(each._repr_html_())
        assert not elements.names & {"script", "img"}
        assert HOSTILE in elements.text


def test_dark_pages_stay_dark(shown):
    """The only colours set are greys that are visible on dark and light pages."""
    for each in shown.values():
        content = each._repr_html_()
        assert "color:inherit" in content
        assert "background:#" not in content
        assert "color:#" not in content


def test_long_tables_are_cut():
    """Long tables are cut, with a count of omitted rows."""
    content = html.table(("a",), [(str(i),) for i in range(9)], limit=2)
    assert content.count("<td") == 2
    assert "... and 7 more" in content


def test_facts_without_a_value_are_left_out():
    """Facts with an empty value have no row."""
    assert html.facts([("a", "1"), ("b", "")]).count("<tr") == 1


def test_a_broken_schedule_is_shown(exchange):
    """A schedule with a link that does not exist is shown, and the link is named."""
    import numpy as np

    wrong = dataclasses.replace(exchange, link=np.array([9, 0, 1], dtype=np.int32))
    assert "no link 9" in wrong._repr_html_()


def test_a_notebook_shows_every_figure():
    """If drawing the first figure makes matplotlib's backend interactive, the backend stays interactive.

    Otherwise a notebook would show no later figure.
    """
    import matplotlib

    from taccl.plot.style import drawing

    before = matplotlib.is_interactive()
    matplotlib.interactive(False)
    try:
        drawing(matplotlib.interactive)(True)
        assert matplotlib.is_interactive()
    finally:
        matplotlib.interactive(before)
