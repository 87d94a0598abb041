"""Every declared clause: files, searches, verification, explanation and costs."""

from __future__ import annotations

import itertools
import json
import random
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import taccl
from taccl import collectives
from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.verification.findings import KINDS
from taccl.analysis.verification.verify import verify
from taccl.errors import InfeasibleError, InputError
from taccl.problem.chunks import Chunk
from taccl.problem.clauses import CLAUSES, Clauses, SwitchPolicy
from taccl.problem.collective import Collective
from taccl.problem.making import make_problem
from taccl.schedule.schedule import Schedule
from taccl.schedule.timing import exact_times
from taccl.sketch.reachability import check_reachable
from taccl.sketch.sketch import sketch_json_schema
from taccl.synthesis.explaining.explain import explain
from taccl.synthesis.proposers.large import schedule_large, suits
from taccl.topology.builder import TopologyBuilder
from tests.effort import AMPLE_S, brief_synthesis, first_schedule
from tests.fuzzing import MANY, cases
from tests.synthesis.explaining.test_explain import random_sketch

MB = 10**6
ROOT = Path(__file__).parents[2]
#: A ring through two nodes of two ranks comes first, then all other links.
PAIRS = [(0, 1), (1, 2), (2, 3), (3, 0), (1, 0), (3, 2), (0, 2), (2, 0), (0, 3), (1, 3), (2, 1), (3, 1)]
RING = frozenset(range(4))
EVERY = frozenset(range(len(PAIRS)))
BACKENDS = ("greedy", "highs", "auto", *(("cpsat", "scip", "cbc") if MANY else ()))


def full():
    """Two nodes of two ranks: 2 us per ring link for 1 MB, 9 us over any other link."""
    builder = TopologyBuilder("two nodes, all pairs", [0, 0, 1, 1])
    for e, (src, dst) in enumerate(PAIRS):
        builder.add_link(src, dst, alpha_us=1, beta_us_per_mb=1 if e in RING else 8)
    return builder.build()


class Case(NamedTuple):
    """Test case of a clause.

    - `value`: Tested value of the clause.
    - `without_any`: Clauses, including the tested one, under which no schedule exists; None if this is not
      tested.
    - `collective`: Collective of the problem.
    - `sends`: (chunk, link, group) of the sends of a schedule that violates the value; sends of one group are
      merged. If empty, the schedule that sends every chunk around the ring violates it.
    - `others`: Further clauses of the problem.
    """

    value: Any
    without_any: dict[str, Any] | None = None
    collective: Collective = collectives.allgather(4)
    sends: tuple[tuple[int, int, int], ...] = ()
    others: dict[str, Any] = {}


def groups():
    """An allgather in each node."""
    pair = collectives.allgather(2)
    return collectives.together([pair.among([0, 1], num_ranks=4), pair.among([2, 3], num_ranks=4)])


#: {name of a clause that restricts schedules: test case}.
CASES = {
    "links_allowed": Case(EVERY - {0}, {"links_allowed": frozenset({0, 1})}),
    "carries_from": Case({1: frozenset({1})}, {"carries_from": dict.fromkeys(EVERY, frozenset({0}))}),
    "carries_to": Case(
        {1: frozenset({2})},
        {"carries_to": dict.fromkeys(EVERY, frozenset({0}))},
        collectives.reduce_scatter(4),
    ),
    "direct_crossing": Case(True, {"direct_crossing": True, "links_allowed": RING}),
    "own_first": Case(frozenset({1})),
    "max_merge": Case(2, sends=((3, 3, 0), (2, 2, 1), (2, 3, 2), (0, 0, 3), (2, 0, 3), (3, 0, 3))),
    "merging": Case(frozenset({1}), sends=((3, 3, 0), (3, 0, 1), (0, 0, 1)), others={"max_merge": 2}),
    "relays": Case(frozenset(), {"relays": frozenset(), "links_allowed": RING}, groups()),
    "max_hops": Case(2, {"max_hops": 2, "links_allowed": RING}),
}
#: {name of a clause that only guides the search: value}.
GUIDING = {
    "symmetry": ((2, 3, 0, 1),),
    "switch_policies": (SwitchPolicy("one", "min-connections", (0, 4)),),
    "link_use": "min-max",
    "objective_weight": 2,
    "routing_slack": 3,
}
BINDING = [name for name, each in CLAUSES.items() if each.scope != "search"]
IN_SKETCHES = [field for each in CLAUSES.values() for field in each.said if field != "relays"]


def problem_of(name, **clauses):
    """Problem of test case `name` (1 MB chunks), under the given clauses only."""
    return make_problem(full(), CASES[name].collective, chunk_bytes=MB, clauses=Clauses(**clauses))


def asked(name):
    """Problem of test case `name`, under the tested clause and the others that the case needs."""
    merges = {"merging": EVERY} if name == "max_merge" else {}
    return problem_of(name, **CASES[name].others, **merges, **{name: CASES[name].value})


def breaking(name):
    """Schedule of test case `name` that violates the tested clause only."""
    case, problem = CASES[name], asked(name)
    sends = list(case.sends)
    if not sends and name == "relays":
        sends = [(c, e, i) for i, (c, e) in enumerate([(0, 6), (0, 10), (1, 4), (2, 2), (3, 5)])]
    elif not sends:
        sums = problem.collective.combining
        around = [(c, (c + step + sums) % 4) for c in range(4) for step in range(3)]
        sends = [(c, e, i) for i, (c, e) in enumerate(around)]
    chunk, link, group = zip(*sends, strict=True)
    free = replace(problem, clauses=Clauses(max_merge=4, merging=EVERY))
    reduce = [problem.collective.combining] * len(sends)
    found = exact_times(free, chunk=chunk, link=link, sequence=group, group=group, reduce=reduce)
    assert case.sends or verify(found).ok
    return replace(found, problem=problem)


def compact(schedule):
    """The schedule in compact columns, in order of start."""
    order = np.argsort(schedule.start, kind="stable")
    columns = (schedule.chunk[order], schedule.link[order], schedule.start[order])
    return Schedule(schedule.problem, *columns, reduce=int(schedule.reduce.sum()), producer="by hand")


def test_every_clause_has_a_case():
    """Every declared clause has a test case."""
    assert set(CASES) == set(BINDING)
    assert set(GUIDING) == set(CLAUSES) - set(BINDING)


@pytest.mark.parametrize("name", CLAUSES)
def test_a_clause_survives_a_dict_and_a_file(name, tmp_path):
    """A clause survives round trips through a dict, JSON and a schedule file."""
    value = CASES[name].value if name in CASES else GUIDING[name]
    clauses = Clauses(**{name: value})
    assert Clauses.from_dict(json.loads(json.dumps(clauses.to_dict()))) == clauses != Clauses()
    problem = make_problem(full(), collectives.allgather(4), chunk_bytes=MB, clauses=clauses)
    empty = exact_times(problem, chunk=[], link=[], starts=[])
    taccl.save(empty, tmp_path / "schedule.json")
    assert taccl.load(tmp_path / "schedule.json").problem.clauses == clauses
    assert problem.digest() != problem.without_clauses(name).digest()


@pytest.mark.parametrize("name", CLAUSES)
def test_a_clause_can_be_given_up(name):
    """`said` lists a set clause, and `without` removes it."""
    clauses = Clauses(**{name: CASES[name].value if name in CASES else GUIDING[name]})
    assert [each.field for each in clauses.said()] == [name]
    assert clauses.without(name) == Clauses()


@pytest.mark.parametrize("field", IN_SKETCHES)
def test_the_schema_and_the_docs_have_every_field(field):
    """The JSON schema and the docs have every sketch field."""
    table, _, name = field.partition(".")
    schema, page = sketch_json_schema(), (ROOT / "docs" / "sketches.md").read_text()
    assert table in schema["properties"]
    tables = {each.lower(): content for each, content in schema["$defs"].items()}
    assert not name or name in tables[table]["properties"]
    assert f"`{name or table}`" in page or f"[[{table}]]" in page


@pytest.mark.parametrize("name", BINDING)
def test_the_verifier_names_what_breaks_a_clause(name):
    """A violation of the clause has the kind and the field that the clause declares."""
    violations = verify(breaking(name)).violations
    assert CLAUSES[name].violation in KINDS
    assert (CLAUSES[name].violation, name) in {(each.kind, each.clause) for each in violations}


@pytest.mark.parametrize("name", [name for name in BINDING if CLAUSES[name].scope != "merge"])
def test_the_verifier_of_compact_schedules_does_too(name):
    """The verifier of compact schedules names the same violation."""
    assert {each.kind for each in verify(compact(breaking(name))).violations} == {CLAUSES[name].violation}


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", BINDING)
def test_every_backend_obeys_a_clause(name, backend):
    """Every backend obeys the clause, and its proven bound is at most the finish."""
    found = brief_synthesis(asked(name), backend=backend)
    assert verify(found.schedule).ok
    assert found.bound.bound <= found.schedule.finish
    assert found.bound.check()


@pytest.mark.parametrize("name", BINDING)
def test_the_compiled_searches_obey_a_clause(name):
    """The compiled searches obey the clause where they support it."""
    problem = asked(name)
    assert suits(problem)
    assert verify(schedule_large(problem, num_runs=2)).ok


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.without_any])
def test_explain_names_a_clause_that_leaves_no_schedule(name):
    """`explain` names a clause that leaves no schedule, and its proposal leaves one."""
    problem = problem_of(name, **(CASES[name].without_any or {}))
    with pytest.raises(InputError):
        check_reachable(problem)
    found = explain(problem)
    assert not found.feasible
    assert any(field in clause for field in CLAUSES[name].said for clause in found.conflict)
    assert found.loosened is not None
    check_reachable(found.loosened)


@pytest.mark.parametrize("name", [name for name in BINDING if CLAUSES[name].scope != "merge"])
def test_explain_prices_a_clause(name):
    """`explain` states how much the clause costs, which is never negative."""
    costs = {cost.clause: cost for cost in explain(asked(name)).costs}
    found = [cost for clause, cost in costs.items() if any(field in clause for field in CLAUSES[name].said)]
    assert found
    assert all(cost.difference_us >= 0 for cost in found)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in BINDING if name not in ("links_allowed", "max_merge")])
def test_a_replanned_schedule_obeys_a_clause(name):
    """Re-planning obeys the clause, also from an old schedule without it."""
    problem = asked(name)
    free = problem.without_clauses(name)
    old = first_schedule(free)
    assert isinstance(old, Schedule)
    assert verify(taccl.replan(old, problem, time_limit_s=0.2).schedule).ok


def random_limited(seed):
    """A random ring of up to six ranks with chords, a collective, and a feasible limit on hops."""
    rng = random.Random(seed)
    n = rng.choice((3, 4, 5, 6))
    builder = TopologyBuilder(f"random {seed}", [2 * r // n for r in range(n)] if n % 2 == 0 else [0] * n)
    pairs = [(r, (r + 1) % n) for r in range(n)]
    others = [(a, b) for a in range(n) for b in range(n) if a != b and (a, b) not in pairs]
    for src, dst in pairs + rng.sample(others, rng.randint(0, len(others))):
        builder.add_link(src, dst, alpha_us=rng.choice((0, 1)), beta_us_per_mb=rng.choice((1, 2, 5)))
    names = ("allgather", "alltoall", "broadcast", "reduce", "reduce-scatter", "allreduce", "scatter", "scan")
    collective = collectives.make(rng.choice(names), n)
    problem = make_problem(builder.build(), collective, chunk_bytes=MB, clauses=Clauses(routing_slack=2))
    for limit in range(rng.choice((1, 1, 2, 3)), n):
        limited = problem.with_clauses(max_hops=limit)
        with suppress(InputError):
            check_reachable(limited)
            return limited
    return problem


def longest_path(schedule):
    """Maximum links that a chunk crosses; for a sum, up to the rank where it is first complete."""
    collective, links = schedule.problem.collective, schedule.problem.topology.links
    worst = 0
    for c, data in enumerate(collective.chunks):
        made = tuple(each.rank for each in collective.derivations if each.chunk == c)
        held = {r: {r: 0} for r in data.origins} if collective.sums_up else {}
        copies = dict.fromkeys((data.root,) if collective.sums_up else (*data.origins, *made), 0)
        own = [t for t in schedule if t.chunk == c]
        moments = [(t.start_ticks, 1, t) for t in own] + [(t.end_ticks, 0, t) for t in own]
        taken = {}
        for _, starts, t in sorted(moments, key=lambda each: each[:2]):
            src, dst = links[t.link].src, links[t.link].dst
            if starts:
                mine = dict(held.get(src, {})) if t.reduce else copies[src]
                taken[id(t)] = {r: k + 1 for r, k in mine.items()} if t.reduce else mine + 1
                worst = max([worst, *(taken[id(t)].values() if t.reduce else (taken[id(t)],))])
            elif t.reduce:
                held.setdefault(dst, {}).update(taken[id(t)])
            else:
                copies[dst] = min(taken[id(t)], copies.get(dst, taken[id(t)]))
    return worst


@pytest.mark.fuzz
def test_no_search_passes_more_links_than_it_may():
    """No search exceeds the limit on hops, and bounds with the limit are at least those without."""
    for seed in cases("path limits", few=2, many=40):
        problem = random_limited(seed)
        limit = problem.clauses.max_hops or problem.topology.num_ranks
        bound, free = lower_bound(problem), lower_bound(problem.without_clauses("max_hops"))
        assert free.bound <= bound.bound
        assert bound.check()
        found = [
            brief_synthesis(problem, backend=backend).schedule
            for backend in ("greedy", "highs", "cpsat", "auto")
        ]
        if suits(problem):
            found.append(schedule_large(problem, num_runs=2))
        for schedule in found:
            assert isinstance(schedule, Schedule)
            assert verify(schedule).ok
            assert bound.bound <= schedule.finish
            assert longest_path(schedule) <= limit
            tight = replace(
                schedule, problem=problem.with_clauses(max_hops=max(1, longest_path(schedule) - 1))
            )
            told = {each.kind for each in verify(tight).violations}
            assert told <= {"too-many-hops"}
            assert bool(told) == (longest_path(schedule) > 1)
            in_turn = np.diff(schedule.reduce[np.argsort(schedule.start, kind="stable")].astype(int)) <= 0
            # In compact columns copies follow all sums, and contributions are not named.
            if suits(problem) and in_turn.all() and schedule.carries is None:
                assert {each.kind for each in verify(compact(tight)).violations} == told


@pytest.mark.parametrize("root", [0, 1, 2])
@pytest.mark.parametrize("most", [1, 2])
def test_a_sum_of_one_contribution_counts_from_where_it_starts(root, most):
    """On a line from rank 0 a sum of one contribution reaches rank 2 in two hops, whatever its root."""
    line = taccl.topologies.mesh(3, 1)
    collective = Collective("one", 3, (Chunk((0,), (1, 2), root),), combining=True)
    problem = make_problem(line, collective, chunk_bytes=MB, clauses=Clauses(max_hops=most))
    if most == 2:
        assert lower_bound(problem).bound == taccl.synthesize(problem, backend="greedy").schedule.finish
        return
    with pytest.raises(InputError, match="max_hops leaves no path"):
        lower_bound(problem)
    with pytest.raises(InfeasibleError, match="max_hops"):
        taccl.synthesize(problem, backend="greedy")


@pytest.mark.slow
def test_a_limit_on_hops_keeps_a_symmetry_in_both_phases():
    """With a limit on hops and a symmetry, an allreduce is searched in both phases, and its schedule is
    valid."""
    text = "schema = 1\n[routing]\nmax_hops = 2\n[[symmetry]]\noffset = 1\ngroup = 4\n"
    problem = taccl.Sketch.from_toml(text).apply(
        taccl.topologies.ring(4), collectives.allreduce(4), chunk_size="1MB"
    )
    assert problem.clauses.symmetry == ((1, 2, 3, 0),)
    found = brief_synthesis(problem)
    assert verify(found.schedule).ok
    assert found.bound.bound <= found.schedule.finish


@pytest.mark.slow
def test_explain_gives_the_least_limit():
    """Opposite ranks of a ring of seven are three hops apart, the minimum limit; check_sketch says the same."""
    sketch = taccl.Sketch.from_toml("schema = 1\n[routing]\nmax_hops = 2\n", source="my.toml")
    ring = taccl.topologies.ring(7)
    problem = sketch.apply(ring, collectives.allreduce(7), chunk_size="1MB", reachable=False)
    found = explain(problem)
    assert found.change == "my.toml: routing.max_hops: set it to 3"
    assert found.proven
    told = taccl.check_sketch(sketch, ring, "allreduce", chunk_size="1MB")
    assert [(each.clause, each.verdict) for each in told.clauses] == [("routing.max_hops", "blocks")]
    with pytest.raises(InfeasibleError, match="set it to 3"):
        taccl.synthesize(problem)


@pytest.mark.slow
def test_the_cost_of_a_limit_is_reported():
    """`check_sketch` gives what a limit on hops costs: 3 us here.

    Around the ring a chunk takes 6 us; with a limit of one hop, over a slow link, 9 us.
    """
    sketch = taccl.Sketch.from_toml("schema = 1\n[routing]\nmax_hops = 1\n")
    told = taccl.check_sketch(sketch, full(), "allgather", chunk_size="1MB")
    assert [(each.clause, each.verdict, each.cost_us) for each in told.clauses] == [
        ("routing.max_hops", "binds", 3.0)
    ]
    vain = taccl.Sketch.from_toml("schema = 1\n[routing]\nmax_hops = 3\n")
    told = taccl.check_sketch(vain, full(), "allgather", chunk_size="1MB")
    assert [(each.clause, each.verdict) for each in told.clauses] == [("routing.max_hops", "unused")]


@pytest.mark.slow
def test_a_search_that_is_compiled_says_over_which_paths_it_goes(compiled_search):
    """The compiled search obeys `max_hops` by paths with the fewest links only, and the result says so."""
    problem = make_problem(
        taccl.topologies.torus(3, 3), collectives.allreduce(9), chunk_bytes=MB, clauses=Clauses(max_hops=2)
    )
    nothing = taccl.SearchParameters.from_dict({"choice": {"most_hops": 0, "few_hops": 0}})
    found = taccl.synthesize(problem, time_limit_s=AMPLE_S, parameters=nothing)
    assert found.choice.startswith("the compiled list scheduler, over paths of the fewest links:")
    assert verify(found.schedule).ok
    assert found.bound.bound <= found.schedule.finish


@pytest.mark.fuzz
def test_what_explain_proposes_leaves_a_schedule():
    """On random sketches with limits on hops, the change that `explain` proposes leaves a schedule. A limit
    that blocks is raised to its least feasible value."""
    for seed in cases("explained path limits", few=8, many=400):
        rng = random.Random(seed)
        content, name, extra, nodes, local = random_sketch(rng)
        content["routing"] = {"max_hops": rng.choice((1, 2, 3))}
        count = nodes * local
        builder = TopologyBuilder("all pairs", [r // local for r in range(count)])
        for src, dst in itertools.permutations(range(count), 2):
            builder.add_link(src, dst, alpha_us=1, beta_us_per_mb=1)
        collective = collectives.make(name, count, **extra)
        problem = taccl.Sketch.from_dict(content).apply(builder.build(), collective, reachable=False)
        found = explain(problem)
        if found.feasible:
            check_reachable(problem)
            continue
        assert found.loosened is not None
        check_reachable(found.loosened)
        if found.change.startswith("sketch: routing.max_hops"):
            limit = found.loosened.clauses.max_hops
            assert limit is not None
            with pytest.raises(InputError):
                check_reachable(problem.with_clauses(max_hops=limit - 1))
