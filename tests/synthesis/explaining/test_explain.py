"""Explanations of infeasible sketches: the clauses in conflict, a change that helps, and costs of clauses."""

import random
import tomllib
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

from taccl import collectives
from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.verification.verify import verify
from taccl.errors import InputError, SketchError
from taccl.problem.making import make_problem
from taccl.problem.problem import Clauses
from taccl.sketch import apply as apply_module
from taccl.sketch.library import load_sketch
from taccl.sketch.reachability import check_reachable, unmet
from taccl.sketch.sketch import Sketch
from taccl.solvers.registry import known_solvers, solver_infos
from taccl.synthesis.explaining import clashes
from taccl.synthesis.explaining.explain import explain
from taccl.synthesis.explaining.loosening import Barriers
from taccl.synthesis.synthesize import synthesize
from taccl.topology.builder import TopologyBuilder
from taccl.topology.fabrics import ring
from taccl.topology.machines import ndv2
from tests.effort import AMPLE_S, PATIENT
from tests.fuzzing import MANY, some, thinned
from tests.synthesis.small_problems import linked

DATA = Path(__file__).resolve().parents[2] / "data" / "infeasible"


@pytest.fixture(scope="module")
def infos():
    """{name of a solver: its availability}; asking starts a process for each, so collection does not."""
    return {info.name: info for info in solver_infos()}


def line():
    """A line of three nodes 0 - 1 - 2 with one rank each."""
    builder = TopologyBuilder("line", [0, 1, 2])
    for src, dst in ((0, 1), (1, 0), (1, 2), (2, 1)):
        builder.add_link(src, dst, alpha_us=1, beta_us_per_mb=1, name="cable")
    return builder.build()


def multicast():
    """Four ranks with multicast links only: each sends to the three others together."""
    builder = TopologyBuilder("multicast", [0] * 4)
    for src in range(4):
        builder.add_link(src, tuple(r for r in range(4) if r != src), alpha_us=1, beta_us_per_mb=1)
    return builder.build()


def circle():
    """Links (0, 1) -> 8 and (3, 4) -> 9, each with two sources that must both hold a chunk before it is sent.

    Two more links leave each of four ranks: 8 (to 4 and 5), 9 (to 1 and 2), 6 (to 0 and 1) and 7 (to 3 and
    4).
    """
    builder = TopologyBuilder("circle", [0, 0, 0, 1, 1, 1, 0, 1, 1, 0])
    plain = ((6, 0), (6, 1), (7, 3), (7, 4), (8, 4), (8, 5), (9, 1), (9, 2))
    for srcs, dst in (*plain, ((0, 1), 8), ((3, 4), 9)):
        builder.add_link(srcs, dst, alpha_us=1, beta_us_per_mb=1)
    return builder.build()


def two_chunks():
    """Two chunks that deadlock under local-first priority on the links with two sources of `circle`.

    Chunk 0 starts at ranks 0 and 7. Link (3, 4) -> 9 relays it to rank 1. Then (0, 1) -> 8 sends it on to
    rank 5, as an own chunk of rank 0. Chunk 1 starts at ranks 3 and 6. Link (0, 1) -> 8 relays it to rank 4.
    Then (3, 4) -> 9 sends it on to rank 2, as an own chunk of rank 3. With priority for own chunks, each of
    the two links waits for the other.
    """
    return collectives.custom(10, precondition={0: [0, 7], 1: [3, 6]}, postcondition={0: [1, 5], 1: [2, 4]})


ALL_RELAYS = {"0": [0, 1, 2, 3, 4, 5, 6, 7]}
#: {sketch: (topology or None for its own, collective, fields at fault, corrected tables)}.
CASES = {
    "relay-forgets-a-rank": (
        None, "allreduce",
        ("internode.connections", "internode.relays"), {"internode": {"relays": ALL_RELAYS}},
    ),
    "no-sender-for-a-rank": (
        None, "allgather",
        ("internode.connections", "internode.relays", "internode.relays"),
        {"internode": {"relays": {"0": [0, 1, 2, 3, 7], "1": [4, 5, 6]}}},
    ),
    "no-connections": (
        None, "allgather", ("internode.connections",), {"internode": {"connections": {"0": [0]}}},
    ),
    "no-links-inside": (None, "alltoall", ("intranode.links",), {"intranode": {"links": "all"}}),
    "receiver-cannot-hand-on": (
        None, "broadcast", ("internode.connections", "intranode.links"),
        {"intranode": {"links": [[1, 0], [0, 1], [0, 2], [0, 3], [0, 4], [2, 6], [3, 7], [4, 5]]}},
    ),
    "sender-gets-nothing": (
        None, "gather", ("internode.connections", "intranode.links"),
        {"intranode": {"links": "all"}},
    ),
    "one-way-chain": (
        lambda: ring(4), "reduce-scatter", ("intranode.links",),
        {"intranode": {"links": [[0, 1], [1, 2], [2, 3], [3, 0]]}},
    ),
    "direct-crossing-of-a-line": (
        line, "alltoall", ("internode.crossing",), {"internode": {"crossing": "any"}},
    ),
    "relays-of-a-line": (line, "allgather", ("internode.relays",), {"internode": {"relays": {}}}),
    "multicast-without-a-pair": (
        multicast, "allgather", ("intranode.links",),
        {"intranode": {"links": [[s, d] for s in range(4) for d in range(4) if s != d]}},
    ),
    "own-chunks-in-a-circle": (
        circle, two_chunks, ("internode.own_before_relayed",),
        {"internode": {"own_before_relayed": False}},
    ),
    "symmetric-relays": (
        None, "allgather",
        ("internode.connections", "internode.relays", "internode.relays"),
        {"internode": {"relays": {"0": [0, 1, 2, 3], "4": [4, 5, 6, 7]}}},
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def unchecked(monkeypatch):
    """Skip the reachability check, so that infeasible sketches become problems."""
    monkeypatch.setattr(apply_module, "check_reachable", lambda problem: None)


def problem_of(name, *, edits=None):
    """The problem of a sketch in the data folder, with edits to its tables."""
    topology, collective, _, _ = CASES[name]
    content = tomllib.loads((DATA / f"{name}.toml").read_text())
    for table, fields in (edits or {}).items():
        content[table] = {**content.get(table, {}), **fields}
    sketch = Sketch.from_dict(content, source=f"{name}.toml")
    place = topology() if topology else sketch.topology()
    ends = collectives.make(collective, place.num_ranks) if isinstance(collective, str) else collective()
    return sketch.apply(place, ends)


def sketched(text, *, nodes=2, collective="allgather", **options):
    """The problem of a sketch on NDv2 nodes."""
    sketch = Sketch.from_toml(f"schema = 1\n{text}", source="a.toml")
    topology = ndv2(nodes)
    return sketch.apply(
        topology, collectives.make(collective, topology.num_ranks, **options), chunk_size="1MB"
    )


def works(problem):
    """True if the list scheduler finds a schedule that the verifier accepts."""
    result = synthesize(problem, backend="greedy", time_limit_s=0.3, parameters=PATIENT)
    return verify(result.schedule).ok


def test_there_are_twelve():
    """The data folder has twelve infeasible sketches, and each is a case."""
    assert {path.stem for path in DATA.glob("*.toml")} == set(CASES)
    assert len(CASES) == 12


@pytest.mark.parametrize("name", CASES)
def test_fields_at_fault(name):
    """The explanation names the conflicting fields, with the file of the sketch."""
    explanation = explain(problem_of(name))
    assert not explanation.feasible
    fields = tuple(f"{name}.toml: {field}" for field in CASES[name][2])
    assert tuple(": ".join(clause.split(": ")[:2]) for clause in explanation.conflict) == fields


@pytest.mark.slow
@pytest.mark.parametrize("name", thinned(CASES, every=2))
def test_change_makes_it_feasible(name):
    """After the proposed change the list scheduler finds a schedule, and no conflict remains."""
    explanation = explain(problem_of(name))
    assert explanation.change.startswith(f"{name}.toml: ")
    assert explanation.loosened is not None
    assert works(explanation.loosened)


@pytest.mark.slow
@pytest.mark.parametrize("name", thinned([*CASES][0 if MANY else 1 :], every=2))
def test_what_to_write_instead(name):
    """The sketch with its field corrected by hand is feasible."""
    explanation = explain(problem_of(name, edits=CASES[name][3]))
    assert explanation.feasible
    assert explanation.conflict == ()


CHANGES = {
    "relay-forgets-a-rank": "internode.relays: add 7 to the list of 0",
    "no-sender-for-a-rank": "internode.relays: add 7 to the list of 0",
    "no-connections": "internode.connections: allow 0 -> 0 (such as 0->8 (InfiniBand))",
    "no-links-inside": "intranode.links: remove it, so that any link may be used",
    "receiver-cannot-hand-on": "intranode.links: allow 1 -> 0 (such as 1->0 (NVLink x2))",
    "one-way-chain": "intranode.links: allow 3 -> 0 (such as 3->0)",
    "direct-crossing-of-a-line": 'internode.crossing: set it to "any"',
    "relays-of-a-line": "internode.relays: remove the entry of local rank 0, so that it sends any chunk to "
    "other nodes",
    "multicast-without-a-pair": "intranode.links: allow 0 -> 1, 0 -> 2, 0 -> 3 (such as 0->1,2,3)",
    "own-chunks-in-a-circle": "internode.own_before_relayed: set it to false",
    "symmetric-relays": "internode.relays: add 3 to the list of 0, 7 to the list of 4",
}


@pytest.mark.parametrize("name", CHANGES)
def test_smallest_change(name):
    """The smallest change is given in the sketch's own fields and values."""
    explanation = explain(problem_of(name))
    assert explanation.change == f"{name}.toml: {CHANGES[name]}"
    assert explanation.proven


@pytest.mark.slow
@pytest.mark.parametrize("backend", known_solvers())
def test_every_backend_finds_the_change(backend, infos):
    """Two nodes with two broken rings need a solver: every backend finds the same two edits.

    Inside a node only 0 -> 1 and 2 -> 3 remain of a ring of four: 1 -> 2 and 3 -> 0 close it.
    """
    if not infos[backend].available:
        pytest.skip(f"{backend} is not here: {infos[backend].why_not}")
    sketch = Sketch.from_toml("schema = 1\n[intranode]\nlinks = [[0, 1], [2, 3]]", source="a.toml")
    problem = sketch.apply(ring(4), collectives.allgather(4), chunk_size="1MB")
    explanation = explain(problem, backend=backend)
    assert explanation.change == "a.toml: intranode.links: allow 1 -> 2, 3 -> 0 (such as 1->2)"
    assert works(explanation.loosened)


@pytest.mark.parametrize("backend", known_solvers())
def test_every_backend_finds_the_circle(backend, infos):
    """If own chunks wait for each other in a cycle, only the routing model shows it, with every solver."""
    if not infos[backend].available:
        pytest.skip(f"{backend} is not here: {infos[backend].why_not}")
    explanation = explain(problem_of("own-chunks-in-a-circle"), backend=backend)
    assert explanation.reason.endswith("wait for each other in a cycle")
    assert len(explanation.conflict) == 1


@pytest.mark.parametrize(("name", "reason"), [
    ("no-sender-for-a-rank", "chunk 7 of allgather cannot get from rank 7 to rank 8; it reaches only ranks 0-7"),
    (
        "relay-forgets-a-rank",
        "the contribution of rank 8 to chunk 7 of allreduce cannot get to rank 7; only ranks 0-7 can send to it",
    ),
])  # fmt: skip
def test_reasons_name_chunk_and_ranks(name, reason):
    """The reason names the chunk that never leaves a node, or the contribution that cannot reach its root."""
    assert explain(problem_of(name)).reason == reason


def test_no_solver_where_graph_search_decides(monkeypatch):
    """If one edit makes every chunk reachable, graph search proves without a solver that no smaller change
    exists."""
    monkeypatch.setattr(clashes, "solve", None)
    assert explain(problem_of("no-connections")).proven


@pytest.mark.parametrize("name", [name for name in CASES if name != "own-chunks-in-a-circle"])
def test_conflict_is_irreducible(name):
    """The conflict is irreducible: without any one of its clauses the blocked chunk reaches its destination."""
    barriers = Barriers(problem_of(name))
    demand, clauses = clashes.clashing(barriers, list(unmet(barriers.problem)))
    for left_out in clauses:
        assert demand.ends[0] in clashes.reached_despite(barriers, demand, set(clauses) - {left_out})


def random_sketch(rng):
    """A random sketch of two or three nodes with two or three ranks each, and a collective for it."""
    nodes, local = rng.choice((2, 3)), rng.choice((2, 3))
    ranks = range(local)
    senders = rng.sample(ranks, rng.randint(1, local))
    content = {"schema": 1, "chunks": {"size": "1MB"}}
    content["internode"] = {"crossing": rng.choice(("any", "direct"))}
    if rng.random() < 0.8:
        content["internode"]["connections"] = {
            str(s): rng.sample(ranks, rng.randint(1, local)) for s in senders
        }
    if rng.random() < 0.6:
        content["internode"]["relays"] = {str(s): rng.sample(ranks, rng.randint(1, local)) for s in senders}
    if rng.random() < 0.6:
        pairs = [[s, d] for s in ranks for d in ranks if s != d and rng.random() < 0.5]
        content["intranode"] = {"links": pairs}
    name = rng.choice(("allgather", "allreduce", "alltoall", "reduce", "broadcast", "gather", "scan"))
    rooted = name in ("reduce", "broadcast", "gather")
    return content, name, {"root": rng.randrange(nodes * local)} if rooted else {}, nodes, local


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(some(2, 4)))
def test_random_sketches(seed):
    """On random sketches the reachability check and the explanation agree, and the change passes the check."""
    rng = random.Random(seed)
    for _ in range(25):
        content, name, options, nodes, local = random_sketch(rng)
        builder = TopologyBuilder("small", [r // local for r in range(nodes * local)])
        for src, dst in permutations(range(nodes * local), 2):
            builder.add_link(src, dst, alpha_us=1, beta_us_per_mb=1)
        topology = builder.build()
        sketch = Sketch.from_dict(content, source="r.toml")
        problem = sketch.apply(topology, collectives.make(name, topology.num_ranks, **options))
        try:
            check_reachable(problem)
        except SketchError:
            explanation = explain(problem)
            assert not explanation.feasible
            assert explanation.conflict
            check_reachable(explanation.loosened)
        else:
            assert not any(unmet(problem))


def test_topology_at_fault():
    """If no link enters a rank, the explanation names the cut of the topology, not a clause."""
    topology = linked("torn", [0, 0, 0], ((0, 1), (1, 0), (2, 0)), alpha_us=1, beta_us_per_mb=1)
    explanation = explain(make_problem(topology, collectives.allgather(3), chunk_bytes=10))
    assert not explanation.feasible
    assert explanation.conflict == ()
    assert (
        explanation.reason == "chunk 0 of allgather cannot get from rank 0 to rank 2: torn has no path for it"
    )
    assert explanation.change == "add a link to one of ranks 2 from one of ranks 0-1"


@pytest.mark.slow
def test_clauses_made_in_python():
    """Clauses set in Python that no sketch can express are listed link by link."""
    topology = ndv2(2)
    across = {e for e in topology.internode_links if topology.links[e].src < 8}  # node 1 sends nothing back
    inside = set(range(len(topology.links))) - set(topology.internode_links)
    clauses = Clauses(name="by hand", links_allowed=frozenset(across | inside))
    explanation = explain(make_problem(topology, collectives.allgather(16), chunk_bytes=10, clauses=clauses))
    assert explanation.conflict == (
        "by hand: internode.connections: not every link between nodes may be used",
    )
    assert explanation.change == "by hand: internode.connections: allow link 8->0 (InfiniBand)"
    assert works(explanation.loosened)


def test_symmetry_that_clashes_is_bad_input():
    """A symmetry that the connections lack is refused as input, before any explanation."""
    text = "[internode]\nconnections = {0=[0]}\n[[symmetry]]\noffset = 4\ngroup = 8"
    sketch = Sketch.from_toml(f'schema = 1\nmachine = "dgx-a100"\nnodes = 2\n{text}', source="a.toml")
    topology = sketch.topology()
    with pytest.raises(SketchError, match=r"a\.toml: symmetry\[0\]"):
        sketch.apply(topology, collectives.allgather(16), chunk_size="1MB")


@pytest.mark.slow
def test_scan_is_explained():
    """Prefixes of a scan that a rank derives from received data need a path, too."""
    problem = sketched("[internode]\nconnections = {}", collective="scan")
    explanation = explain(problem)
    assert explanation.conflict == ("a.toml: internode.connections: no link between nodes",)
    assert works(explanation.loosened)


@pytest.mark.slow
def test_dearest_clause():
    """The costliest clause of a scatter allows one connection between nodes, where eight are possible.

    Eight chunks of 105 us each go over this connection in two sends, each with 2.6 us of latency. Over eight
    links the NIC is busy with data alone, and the 2.6 us count once.
    """
    problem = sketched("[internode]\nconnections = {0=[1]}", collective="scatter")
    explanation = explain(problem, time_limit_s=AMPLE_S)
    assert explanation.feasible
    assert explanation.bound_us == pytest.approx(8 * 105 + 2 * 2.6)
    assert explanation.bound_us == pytest.approx(lower_bound(problem).bound_us)
    dearest = next(cost for cost in explanation.costs if cost.clause != "every clause")
    assert dearest.clause == "a.toml: internode.connections"
    assert dearest.bound_us == pytest.approx(lower_bound(make_problem(
        ndv2(2), problem.collective, chunk_bytes=10**6)).bound_us)  # fmt: skip
    assert dearest.difference_us == pytest.approx(explanation.bound_us - dearest.bound_us)
    assert dearest.percent == pytest.approx(100 * dearest.difference_us / dearest.bound_us)
    assert "it costs at least 2.6 us (0.309%)" in repr(explanation)
    free = replace(dearest, bound_us=explanation.bound_us, difference_us=0.0, percent=0.0)
    assert repr(replace(explanation, costs=(free,))).endswith("; it costs nothing visible in the bound")


@pytest.mark.slow
def test_no_clause_costs_less_than_nothing():
    """Removing a clause never raises the bound, and removing all clauses lowers it most."""
    sketch = load_sketch("ndv2/sk1")
    topology = sketch.topology()
    problem = sketch.apply(topology, collectives.allreduce(topology.num_ranks))
    explanation = explain(problem, time_limit_s=AMPLE_S)
    assert explanation.costs[0].clause == "every clause"
    assert all(0 <= cost.difference_us <= explanation.costs[0].difference_us for cost in explanation.costs)


def test_problem_without_clauses():
    """A problem without clauses is feasible and has no costs."""
    explanation = explain(make_problem(ring(4), collectives.allgather(4), chunk_bytes=10))
    assert explanation.feasible
    assert explanation.costs == ()
    assert "no clause has a cost to determine" in repr(explanation)
    nothing = explain(make_problem(ring(4), "allgatherv", size_bytes=10, counts=[0] * 4))
    assert "feasible: every rank holds its data at the start" in repr(nothing)


@pytest.mark.slow
def test_clauses_that_time_leaves_unpriced_are_named():
    """Clauses whose cost was not computed before the time limit are named in the result and its text."""
    problem = load_sketch("ndv2/sk1").apply(ndv2(nodes=2), "alltoall")
    explanation = explain(problem, time_limit_s=0.05)
    named = {"ndv2/sk1: internode.connections", "ndv2/sk1: merging.max"}
    assert named <= {*explanation.unpriced, *(cost.clause for cost in explanation.costs)}
    assert explanation.unpriced
    assert f"time was up before the cost of:  {explanation.unpriced[0]}" in repr(explanation)
    assert explanation.to_dict()["unpriced"] == list(explanation.unpriced)


def test_repr_and_dict():
    """The text of an explanation shows clauses and change; `to_dict` gives them as plain values."""
    explanation = explain(problem_of("no-connections"))
    text = repr(explanation)
    assert "infeasible" in text
    assert "no-connections.toml: internode.connections: no link between nodes" in text
    assert f"the smallest change: {explanation.change}" in text
    plain = explanation.to_dict()
    assert plain["feasible"] is False
    assert plain["conflict"] == list(explanation.conflict)
    assert plain["costs"] == []


@pytest.mark.slow
def test_no_time_for_a_proof():
    """If time runs out, all blocking clauses are dropped, and the text says that a smaller change may
    suffice."""
    explanation = explain(problem_of("no-links-inside"), time_limit_s=1e-9)
    assert not explanation.proven
    assert "a smaller one may suffice" in repr(explanation)
    assert works(explanation.loosened)


@pytest.mark.parametrize(
    ("options", "where"), [({"backend": "glpk"}, "backend"), ({"time_limit_s": 0}, "time_limit_s")]
)
def test_bad_options(options, where):
    """A wrong backend or time limit is refused with the argument's name."""
    with pytest.raises(InputError, match=f"^{where}"):
        explain(problem_of("no-connections"), **options)
