"""The docs agree with the code: headings for model rows, examples, layers and tables."""

import json
import re
from functools import cache
from pathlib import Path

import pytest

import taccl
from taccl import collectives
from taccl.problem.problem import SwitchPolicy
from taccl.sketch.group import symmetry_group
from taccl.synthesis.milp import ordering, routing
from taccl.synthesis.milp.jobshop import Cut
from taccl.synthesis.proposers.greedy import critical_priorities, list_schedule
from taccl.synthesis.stopping import REMEDIES, StoppingRule
from taccl.synthesis.symmetry.quotient import take_quotient
from taccl.synthesis.symmetry.timing_group import timing_group
from tests.synthesis.small_problems import custom, full, problem_of, relayed, ring, star, two_nodes
from tests.test_architecture import LINES
from tests.test_docs_examples import blocks_of

DOCS = Path(__file__).resolve().parents[1] / "docs"
FORMULATION = DOCS / "formulation.md"
TAGS = (*routing.TAGS, *ordering.TAGS)


def problems():
    """Small problems whose models together have every block of rows."""
    policy = SwitchPolicy("switch", "min-connections", tuple(range(12)))
    return {
        "links between nodes": problem_of(two_nodes(), collectives.allgather(4)),
        "four chunks over a link that merges two": problem_of(
            ring(2), custom(2, [([0], [1])] * 4), merging=frozenset({0}), max_merge=2
        ),
        "one way for each chunk": problem_of(star(3), collectives.alltoall(4)),
        "copies through one port": problem_of(full(4, port=True), collectives.broadcast(4)),
        "own chunks first": relayed(),
        "a switch with few connections": problem_of(
            full(4), collectives.allgather(4), switch_policies=(policy,)
        ),
        "short paths": problem_of(ring(6), collectives.broadcast(6), max_hops=3),
        "light links": problem_of(full(4), collectives.broadcast(4), link_use="min-max"),
    }


@cache
def tags_of_rows(name):
    """The tags of the rows that the routing and the contiguity model of a problem have."""
    problem = problems()[name]
    quotient = take_quotient(problem, symmetry_group(problem))
    schedule = list_schedule(quotient, critical_priorities(quotient))
    model = routing.RoutingModel(
        quotient,
        upper_ticks=schedule.finish_ticks,
        sequenced=range(quotient.num_resources),
        cuts=[Cut(frozenset({0}), schedule.finish_ticks)],
    ).model
    return {*model.tags, *ordering.ContiguityModel(quotient, schedule).model.tags}


def headings():
    """The tags that the formulation has a heading for, in its order."""
    return re.findall(r"^### `([^`]+)`$", FORMULATION.read_text(encoding="utf-8"), re.MULTILINE)


def test_every_tag_has_a_heading():
    """Every tag of model rows has a heading in the formulation."""
    assert not set(TAGS) - set(headings())


def test_every_heading_is_a_tag():
    """Every heading of the formulation is a tag in the code."""
    assert not set(headings()) - set(TAGS)


def test_headings_follow_the_code():
    """Each tag has one heading, and they come in the order in which the code lists them."""
    assert headings() == list(TAGS)


@pytest.mark.parametrize("tag", TAGS)
def test_every_tag_is_in_a_model(tag):
    """Every tag has rows in some problem's model."""
    assert any(tag in tags_of_rows(name) for name in problems())


@pytest.mark.parametrize("name", problems())
def test_every_row_has_a_listed_tag(name):
    """Models have only rows with listed tags."""
    assert tags_of_rows(name) <= set(TAGS)


def test_the_running_example_is_as_the_formulation_states():
    """The list scheduler finds 41 us on the ring, and link 0 -> 1 may carry chunks 0, 3 and 2.

    Chunks 3 and 2 are at rank 0 at 20.5 us or later, and chunk 2 at 41 us.
    """
    problem = taccl.make_problem(
        taccl.topologies.ring(4), "allgather", size_bytes=4 * 10**6, chunks_per_rank=1
    )
    quotient, ticks = take_quotient(problem), problem.costs.ticks_per_us
    assert list_schedule(quotient, critical_priorities(quotient)).finish_ticks == 41 * ticks
    model = routing.RoutingModel(quotient, upper_ticks=int(61.5 * ticks), lower_ticks=41 * ticks)
    link = next(e for e, each in enumerate(problem.topology.links) if (each.src, each.dst) == (0, 1))
    chunk_of = {model.made[m]: hop.chunk for m, hop in enumerate(quotient.hops) if hop.link == link}
    rows, found = model.model.arrays(), {}
    for n in range(rows.num_rows):
        columns = rows.column[rows.row_start[n] : rows.row_start[n + 1]].tolist()
        if rows.tag_names[rows.row_tag[n]] == "routing.resource" and chunk_of.keys() & set(columns):
            found[float(rows.row_lower[n])] = {chunk_of[x] for x in columns if x != model.finish}
    assert found == {0.0: {0, 2, 3}, 20.5: {2, 3}, 41.0: {2}}


@pytest.mark.slow
def test_folding_is_as_the_formulation_states():
    """The routing model of the folded example has as many variables as the formulation states."""
    sketch = taccl.load_sketch("dgx2/sk1")
    problem = sketch.apply(taccl.topologies.dgx2(2), collectives.allgather(32))
    group = timing_group(problem)
    model = routing.RoutingModel(take_quotient(problem, group), upper_ticks=10**9).model
    stated = f"$G = H$ has {group.order} elements. The routing model has {model.arrays().num_variables:,} variables"
    assert group.order == symmetry_group(problem).order
    assert stated in FORMULATION.read_text(encoding="utf-8")


@pytest.mark.slow
def test_examples_print_what_the_formulation_says(capsys):
    """Each bound in an example of the formulation is the one that the comment beside it states."""
    blocks = [block.content for block in blocks_of(FORMULATION) if block.language == "python"]
    stated = [line for block in blocks for line in re.findall(r"^print.*  # (.*)$", block, re.MULTILINE)]
    exec("".join(blocks), {})
    assert capsys.readouterr().out.splitlines() == stated
    assert len(stated) >= 10


def test_layers_are_those_of_the_test():
    """The architecture's table of layers equals the test's."""
    page = (FORMULATION.parent / "architecture.md").read_text(encoding="utf-8")
    _, _, section = page.partition("## Which way imports point")
    table = section.split("```")[1].removeprefix("text\n")
    table = re.sub(r"(\S+)\{(.*?)\}", lambda m: " ".join(m[1] + name for name in m[2].split()), table)
    lines = [tuple(sorted(line.split())) for line in table.splitlines() if line.strip()]
    assert lines[::-1] == [tuple(sorted(line)) for line in LINES]


def test_files_of_how_to_add_exist():
    """Every file that a recipe of the architecture names exists."""
    page = (FORMULATION.parent / "architecture.md").read_text(encoding="utf-8")
    _, _, recipes = page.partition("## How to add")
    root = FORMULATION.parents[1]
    there = [
        path.relative_to(root).as_posix()
        for top in ("taccl", "tests", "docs", "benchmarks")
        for path in (root / top).rglob("*")
    ]
    named = re.findall(r"`([\w/]+(?:\.py|\.md|/))`", recipes)
    missing = [
        name for name in named if not any(f"/{path}".endswith(f"/{name.rstrip('/')}") for path in there)
    ]
    assert len(named) > 40
    assert not missing


def test_reasons_why_a_search_ended_are_listed():
    """The page of backends and the docstring of `Result` list every value of `Result.stopped`."""
    rules = [each for each in StoppingRule.__subclasses__() if each.__module__.startswith("taccl.")]
    named = {*REMEDIES, *(rule.reason for rule in rules)}
    text = (DOCS / "backends.md").read_text(encoding="utf-8")
    assert {reason for reason in named if f"`{reason}`" not in text} == set()
    assert {reason for reason in named if f'``"{reason}"``' not in taccl.Result.__doc__} == set()


def test_the_changelog_states_each_subject_once():
    """No section of the changelog has two lines with one label or beginning; blank lines are around headings."""
    text = (DOCS.parent / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = re.split(r"^### ", text, flags=re.MULTILINE)[1:]
    entries = [re.findall(r"^ *(?:- )?(\*\*.+?\*\*|.{40})", section, re.MULTILINE) for section in sections]
    assert sum(len(each) for each in entries) > 50
    assert [each for section in entries for each in set(section) if section.count(each) > 1] == []
    assert not re.findall(r"(?<!\n)\n#|^#.*\n(?!\n)", text, re.MULTILINE)


@pytest.mark.parametrize(("scope", "column"), [("whole chunks", 4), ("all chunkings", 5)])
def test_kinds_of_bounds_are_as_measured(scope, column):
    """Table cells of bound kinds equal the stored results of `benchmarks.bounds`."""
    rows = json.loads((DOCS.parent / "benchmarks" / "results" / "bounds.json").read_text())["kinds"]
    measured = {row["kind"]: shown_as(row) for row in rows if row["scope"] == scope}
    _, _, below = (DOCS / "how-good.md").read_text().partition("| kind | idea |")
    lines = re.findall(r"^\| `([a-z ]+)` (\|(?:[^|]*\|){6})$", below, re.MULTILINE)
    table = {kind: cells.split("|")[column].strip() for kind, cells in lines}
    assert {kind: cell for kind, cell in table.items() if cell != "-"} == measured


def shown_as(row):
    """Table cell of a result row: number of problems in which a kind of bound is the best, in which it alone is,
    and by how much."""
    lead = f" ({row['lead']:.1%})".replace("%", " %") if row["lead"] is not None else ""
    return f"{row['best']}, {row['alone']}{lead}"
