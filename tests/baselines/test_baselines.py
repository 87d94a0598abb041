"""All baselines give valid schedules, ignore the sketch except for its merging, and are found by name."""

import re
from contextlib import suppress
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl import baselines, collectives
from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.verification.verify import verify
from taccl.baselines import BASELINES, baseline, best
from taccl.baselines.chunking import cut_chunks
from taccl.baselines.table import build_times, soonest_us
from taccl.errors import CollectiveError, InputError, TopologyError
from taccl.problem.chunks import Chunk, Derivation
from taccl.problem.collective import Collective
from taccl.problem.making import make_problem
from taccl.problem.problem import Clauses
from taccl.sketch.upstream import load_problem
from taccl.topology import fabrics, machines
from taccl.topology.builder import TopologyBuilder
from taccl.topology.racks import in_network
from tests.arguments import arguments_for
from tests.foreign import OURS
from tests.fuzzing import MANY, by_turns, some
from tests.synthesis.small_problems import linked

COLLECTIVES = [name for name in collectives.COLLECTIVES if name != "scan" and "multi" not in name]
TOPOLOGIES = {
    "ndv2 x1": machines.ndv2(),
    "ndv2 x2": machines.ndv2(nodes=2),
    "dgx2 x1": machines.dgx2(),
    "mesh 2x3": fabrics.mesh(2, 3),
    "torus 4x4 in 4 nodes": fabrics.torus(4, 4, ranks_per_node=4),
    "one-way ring": fabrics.ring(5).without(links=range(5, 10)),
    "star 3": fabrics.star(3),
}
#: Topologies whose schedules take more than a tenth of a second of CPU.
LARGE = {"ndv2 x2", "dgx2 x1", "torus 4x4 in 4 nodes"}


def one_for(name, topology):
    """A topology on which a baseline supports an allreduce: the given one, unless it needs another."""
    if name == "in-network":
        return in_network(4, payload_bytes=64)
    return fabrics.fully_connected(4, ranks_per_node=2) if name == "servers" else topology


@pytest.mark.parametrize(
    ("name", "collective", "topology"),
    [
        pytest.param(*each, marks=[pytest.mark.slow] * (each[-1] in LARGE))
        for each in by_turns(BASELINES, COLLECTIVES, TOPOLOGIES)
    ],
)
def test_schedules_verify_and_keep_the_bound(name, collective, topology):
    """A baseline refuses a collective or gives a valid schedule that finishes no earlier than the bound."""
    problem, bound = _bounded(collective, topology)
    try:
        schedule = BASELINES[name](problem, cut=False)
    except CollectiveError:
        return
    assert schedule.problem == problem
    verify(schedule).raise_if_failed()
    assert schedule.finish >= bound


@cache
def _bounded(collective, topology):
    """A problem and its lower bound."""
    num_ranks = TOPOLOGIES[topology].num_ranks
    arguments = {"chunks_per_rank": 2 if num_ranks <= 8 else 1, **arguments_for(collective, num_ranks)}
    problem = make_problem(TOPOLOGIES[topology], collective, chunk_bytes=10**5, **arguments)
    return problem, lower_bound(problem).bound


@pytest.mark.parametrize("name", BASELINES)
def test_baselines_are_functions_of_the_namespace(name):
    """Every baseline is a function of `taccl.baselines` under its own name."""
    make = BASELINES[name]
    assert getattr(baselines, make.__name__) is make and make.__name__ in baselines.__all__


@pytest.mark.slow
@pytest.mark.parametrize("name", BASELINES)
def test_repeated_runs_agree(name, make, annealed):
    """A baseline gives the same schedule each time."""
    problem = make("allreduce", one_for(name, fabrics.torus(2, 4, ranks_per_node=4)))
    assert BASELINES[name](problem).digest() == BASELINES[name](problem).digest()


@pytest.mark.slow
@pytest.mark.parametrize("name", BASELINES)
def test_only_merging_is_kept_of_the_sketch(name, make):
    """Baselines ignore the sketch's forbidden links, but keep its merging."""
    topology = fabrics.fully_connected(4, ranks_per_node=2)
    if name in ("dimension-balanced", "bucket"):
        topology = fabrics.torus(2, 2, ranks_per_node=2)
    problem = make("allreduce", one_for(name, topology))
    sketched = replace(
        problem, clauses=Clauses(links_allowed=frozenset(), max_merge=3, merging=frozenset({1, 2}))
    )
    assert BASELINES[name](sketched).problem.clauses == Clauses(max_merge=3, merging=frozenset({1, 2}))


@pytest.mark.parametrize("name", BASELINES)
def test_one_rank_needs_nothing(name):
    """On one rank a baseline sends nothing, or says that it needs nodes or dimensions."""
    topology = TopologyBuilder("alone", [0]).build()
    problem = make_problem(topology, collectives.allreduce(1), chunk_bytes=1)
    if name in ("hierarchical", "dimension-balanced", "bucket"):
        with pytest.raises(CollectiveError):
            BASELINES[name](problem)
    else:
        assert BASELINES[name](problem).num_transfers == 0


@pytest.mark.parametrize("name", ["ring", "recursive", "pairwise"])
def test_sums_name_ranks_that_cannot_be_reached_by_the_links_of_the_topology(name):
    """A sum at rank 0 needs links from rank 1, and the error names them, not the reversed links of its copies."""
    topology = linked("one way", [0, 0], [(0, 1)], alpha_us=1, beta_us_per_mb=1)
    problem = make_problem(topology, collectives.reduce(2), chunk_bytes=1)
    with pytest.raises(TopologyError, match="one way: no links lead from rank 1 to rank 0"):
        BASELINES[name](problem)


@pytest.mark.parametrize("name", BASELINES)
def test_scan_is_refused(name, make):
    """A scan, whose prefixes depend on each other, is refused by every baseline."""
    with pytest.raises(CollectiveError, match="scan"):
        BASELINES[name](make("scan", fabrics.fully_connected(4, ranks_per_node=2)))


def test_missed_due_dates_are_noted():
    """A copy of 1 MB over three hops of 1 + 20 us takes 63 us, so a due date at 40 us is missed by 23 us."""
    problem = make_problem(
        fabrics.ring(6, bandwidth_gb_per_s=50, alpha_us=1), "allgather", size_bytes=6 * 10**6
    )
    problem = replace(problem, due_us=((0, 3, 40),))
    schedule = baseline("ring", problem, cut=False)
    assert schedule.finish_us == 63
    assert schedule.problem.notes[-1].startswith("a due date is missed by 23 us")
    assert [each.kind for each in verify(schedule).violations] == ["due"]


@pytest.mark.slow
def test_best_prefers_the_schedule_that_meets_the_due_dates():
    """The earliest allreduce misses a due date that a later one, along trees with urgent sends first, meets."""
    problem = make_problem(fabrics.ring(6), "allreduce", size_bytes=6 * 10**6)
    timely = best(replace(problem, due_us=((0, 3, 55),)))
    assert verify(timely).ok
    assert timely.finish > best(problem).finish


@pytest.mark.slow
@pytest.mark.parametrize("name", ["allgather", "allreduce", "reduce", "alltoall"])
def test_missed_due_dates_are_those_of_the_verifier(name):
    """For every baseline a note of a missed due date is present if and only if the verifier reports one."""
    problem = make_problem(fabrics.fully_connected(4, ranks_per_node=2), name, size_bytes=4 * 10**6)
    chunk, rank = next(
        (c, r) for c, one in enumerate(problem.collective.chunks) for r in one.destinations if r == 0
    )
    for due_us in (5, 20, 40, 80):
        asked = replace(problem, due_us=((chunk, rank, due_us),))
        for each in BASELINES:
            with suppress(InputError):
                found = baseline(each, asked)
                is_noted = any(note.startswith("a due date is missed") for note in found.problem.notes)
                verdict = verify(found)
                assert {one.kind for one in verdict.violations} == ({"due"} if is_noted else set())


def test_ranks_that_cannot_be_reached_are_named():
    """Without a path from rank 1 to rank 0 the error names both ranks."""
    topology = linked("one way", [0, 0], [(0, 1)], alpha_us=1, beta_us_per_mb=1)
    problem = make_problem(topology, collectives.allgather(2), chunk_bytes=1)
    with pytest.raises(TopologyError, match="one way: no links lead from rank 1 to rank 0"):
        BASELINES["ring"](problem)


def test_best_needs_only_the_links_that_some_baseline_uses():
    """Along a one-way chain, `best` broadcasts by pairwise sends; if no baseline can, it says so."""
    topology = linked("chain", [0] * 3, [(0, 1), (1, 2)], alpha_us=1, beta_us_per_mb=1)
    problem = make_problem(topology, collectives.broadcast(3), chunk_bytes=10**6)
    assert best(problem) == BASELINES["pairwise"](problem)
    with pytest.raises(CollectiveError, match="no baseline supports allgather"):
        best(make_problem(topology, collectives.allgather(3), chunk_bytes=1))


@pytest.mark.slow
def test_best_is_the_fastest(make):
    """`best` finishes no later than any baseline that can do the collective."""
    problem = make("allgather", fabrics.mesh(3, 4))
    finishes = []
    for function in BASELINES.values():
        try:
            finishes.append(function(problem).finish)
        except CollectiveError:
            continue
    assert best(problem).finish == min(finishes)


def test_by_name(make):
    """`baseline` finds every baseline by name, and `best`."""
    problem = make("allgather", fabrics.ring(4))
    assert baseline("ring", problem) == BASELINES["ring"](problem)
    assert baseline("best", problem) == best(problem)


def test_unknown_name(make):
    """An unknown name is refused, and the error lists the known ones."""
    with pytest.raises(InputError, match=r"found 'rong'; .*; did you mean 'ring'\?") as caught:
        baseline("rong", make("allgather", fabrics.ring(4)))
    assert set(BASELINES) <= set(re.findall(r"[\w-]+", str(caught.value)))


def test_no_baseline_can(make):
    """If no baseline supports the collective, `best` says so."""
    with pytest.raises(CollectiveError, match="no baseline supports scan"):
        best(make("scan", fabrics.ring(4)))


def assert_relayed(files, cost_model, collective, sketch, topology):
    """Assert that baselines give valid schedules where only the sketch's links join nodes, so that other
    ranks must relay."""
    problem = load_problem(
        files / "sketch" / f"{sketch}.json",
        files / "topo" / f"{topology}.json",
        collective=collective,
        cost_model=cost_model,
    )
    for function in BASELINES.values():
        try:
            schedule = function(problem, cut=False)
        except CollectiveError:
            continue
        verify(schedule).raise_if_failed()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cost_model", "collective", "sketch", "topology"),
    [
        ("upstream", "allgather", "hub-n2", "hub-64KB"), ("upstream", "allreduce", "hub-n3", "hub-64KB"),
        ("upstream", "alltoall", "ndv2-n2", "ndv2-2MB"), ("physical", "allreduce", "ndv2-n2", "ndv2-2MB"),
    ],
)  # fmt: skip
def test_our_topologies(cost_model, collective, sketch, topology):
    """Baselines work on our files in the published tool's format."""
    assert_relayed(OURS / "upstream-taccl", cost_model, collective, sketch, topology)


UPSTREAM = [("sk1-ndv2-n2", "ndv2-1MB"), ("sk2-ndv2-n2", "ndv2-1KB"), ("sk1-dgx2-n2", "dgx2-1MB")]
#: (cost model, collective, sketch, topology) of cases on files of the published TACCL tool.
#: Without `MANY` a third of the cases run, with at most one cost model per topology and collective.
RELAYED = [
    (cost_model, collective, *files)
    for i, files in enumerate(UPSTREAM)
    for j, collective in enumerate(("allgather", "alltoall", "allreduce"))
    for k, cost_model in enumerate(("upstream", "physical"))
    if MANY or (i + j + k) % 3 == 0
]


@pytest.mark.slow
@pytest.mark.parametrize(("cost_model", "collective", "sketch", "topology"), RELAYED)
def test_upstream_topologies(shared_data, cost_model, collective, sketch, topology):
    """Baselines work on files of the published tool."""
    assert_relayed(shared_data / "upstream-taccl", cost_model, collective, sketch, f"topo-{topology}")


@st.composite
def problems(draw):
    """Problems on strongly connected topologies of random links, costs, nodes and chunks."""
    num_ranks = draw(st.integers(2, 8))
    num_nodes = draw(st.sampled_from([n for n in (1, 2, 4) if num_ranks % n == 0]))
    builder = TopologyBuilder("random", [rank * num_nodes // num_ranks for rank in range(num_ranks)])
    pairs = [(rank, (rank + 1) % num_ranks) for rank in range(num_ranks)]
    ranks = st.integers(0, num_ranks - 1)
    pairs += [pair for pair in draw(st.lists(st.tuples(ranks, ranks), max_size=20)) if pair[0] != pair[1]]
    for src, dst in pairs:
        alpha_us, beta_us_per_mb = draw(st.integers(0, 3)), draw(st.integers(1, 5))
        builder.add_link(src, dst, alpha_us=alpha_us, beta_us_per_mb=beta_us_per_mb)
    name, pieces = draw(st.sampled_from(COLLECTIVES)), draw(st.integers(1, 3))
    made = collectives.make(name, num_ranks, chunks_per_rank=pieces, **arguments_for(name, num_ranks))
    return make_problem(builder.build(), made, chunk_bytes=10**6)


@pytest.mark.slow
@given(problem=problems())
@settings(max_examples=some(2, 20), deadline=None)
def test_random_topologies(problem):
    """On random strongly connected topologies baselines give valid schedules that finish no earlier than the
    bound."""
    for function in BASELINES.values():
        try:
            schedule = function(problem)
        except CollectiveError:
            continue
        verify(schedule).raise_if_failed()
        assert schedule.finish >= lower_bound(schedule.problem).bound


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("combining", [False, True])
def test_without_chunks_nothing_is_sent(name, combining):
    """For a collective without chunks a baseline gives an empty schedule or refuses."""
    nothing = collectives.custom(4, precondition={}, postcondition={}, combining=combining)
    problem = make_problem(fabrics.fully_connected(4, ranks_per_node=2), nothing, chunk_bytes=[])
    with suppress(CollectiveError):
        assert len(BASELINES[name](problem)) == 0


def test_sums_and_finer_chunks_keep_their_release_dates():
    """Sums of three ranks, and two chunks of which the second is released late, wait for their dates.

    Each part of a chunk that is cut has the date of the chunk.
    """
    late = replace(make_problem(fabrics.ring(3), "allreduce", chunk_bytes=10**6), release_us=((1, 2, 500),))
    assert verify(best(late, cut=False)).ok
    copies = make_problem(fabrics.ring(4), collectives.broadcast(4, chunks_per_rank=2), chunk_bytes=10**6)
    finer = cut_chunks(replace(copies, release_us=((1, 0, 500),), due_us=((0, 3, 900),)), 2)
    assert finer.release_us == ((2, 0, 500), (3, 0, 500))
    assert finer.due_us == ((0, 3, 900), (1, 3, 900))


def test_nothing_to_derive_needs_nothing():
    """Rank 0 of 2 would derive a chunk that no rank needs: the best baseline sends nothing."""
    chunks = Chunk((1,), ()), Chunk((), ())
    derived = Collective("derived", 2, chunks, combining=True, derivations=(Derivation(0, 0, 1),))
    assert not best(make_problem(fabrics.ring(2), derived, chunk_bytes=1)).num_transfers


def test_the_best_baseline_is_pipelined_where_that_pays():
    """A broadcast over two hops is faster in pipelined pieces than in one chunk."""
    topology = fabrics.ring(3, alpha_us=0, bandwidth_gb_per_s=1)
    problem = make_problem(topology, collectives.broadcast(3), chunk_bytes=1 << 16)
    assert best(problem).finish < best(problem, cut=False).finish


def test_finer_chunks_of_one_rank_are_expected_on_all_nics():
    """A whole chunk crosses to each of 8 nodes over one NIC, and finer chunks over 8, unlike those of a tree."""
    problem = make_problem(machines.h200(nodes=8), "broadcast", size_bytes=16 * 10**6)
    soonest = {
        name: soonest_us(name, baseline(name, problem, cut=False)) for name in ("hierarchical", "tree")
    }
    assert soonest["hierarchical"] < 90 and soonest["tree"] > 320  # 80 us are reached; a NIC takes 320 us


@pytest.mark.parametrize(
    ("few", "times", "found"), [(0, 2, [False]), (2000, 2, [False, True]), (2000, 9, [False])]
)
def test_baselines_that_are_too_busy_to_be_best_are_not_tried_in_finer_chunks(monkeypatch, few, times, found):
    """A baseline whose busiest link is busy for longer than another baseline takes is not tried in finer
    chunks. With few transfers, it is not tried from three times as long on.

    - `times`: Busy time of the slower baseline, as a multiple of the other one's finish.
    """
    topology = fabrics.ring(4, alpha_us=0, bandwidth_gb_per_s=1)
    problem = make_problem(topology, collectives.allgather(4), chunk_bytes=1 << 16)
    cuts, ring, pairwise = [], BASELINES["ring"], BASELINES["pairwise"]

    def busy(problem, *, cut=True):
        cuts.append(cut)
        slower = replace(problem, chunk_bytes=tuple(times * size for size in problem.chunk_bytes))
        return pairwise(slower, cut=False)

    monkeypatch.setattr("taccl.baselines.BASELINES", {"ring": ring, "busy": busy})
    monkeypatch.setattr("taccl.baselines._CUT_ANYWAY", few)
    best(problem)
    assert cuts == found


def test_exchanges_of_pairs_are_estimated_with_what_they_leave_out():
    """Bine trees first send chunks of an alltoall to all ranks, which takes longer than a pairwise exchange."""
    pairs, copies = (make_problem(fabrics.torus(4, 4, 8), name, size_bytes=4 * 10**6)
                     for name in ("alltoall", "allgather"))  # fmt: skip
    many = build_times(pairs, 10**9)
    assert many["bine"] > 3 * many["pairwise"]
    few = build_times(copies, 10**9)
    assert few["bine"] < 2 * few["pairwise"]
