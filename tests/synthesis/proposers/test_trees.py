"""Schedules along packed spanning trees."""

from dataclasses import replace

import pytest

import taccl
from taccl._internal.deadline import Deadline
from taccl.analysis.verification.verify import verify
from taccl.synthesis.options import Options
from taccl.synthesis.proposers import table, trees
from taccl.synthesis.proposers.tree_hops import tree_hops
from taccl.synthesis.proposers.trees import along_trees, may_fill, offer_trees
from taccl.synthesis.search import Search
from taccl.topology.builder import TopologyBuilder


def uneven():
    """Two pairs of ranks with links of 1 us/MB inside, and of 4 (ranks 0, 2) and 8 us/MB (1, 3) between them."""
    builder = TopologyBuilder("uneven", [0, 0, 1, 1], alpha_meaning="pipelined")
    for a, b, beta in ((0, 1, 1), (2, 3, 1), (0, 2, 4), (1, 3, 8)):
        for src, dst in ((a, b), (b, a)):
            builder.add_link(src, dst, alpha_us="0.1", beta_us_per_mb=beta)
    return builder.build()


def behind_uplinks(nodes, size):
    """Nodes of ranks with a link to each other rank, and NICs behind an uplink of half their rate each way."""
    builder = TopologyBuilder("uplinks", [node for node in range(nodes) for _ in range(size)])
    ranks = range(nodes * size)
    nics, uplinks = (
        {(side, i): builder.add_resource(f"{side} {what} {i}") for side in ("send", "receive") for i in some}
        for what, some in (("NIC", ranks), ("uplink", range(nodes)))
    )
    for src in ranks:
        for dst in ranks:
            if src == dst:
                continue
            far = src // size != dst // size
            link = builder.add_link(src, dst, alpha_us=3 if far else 1, beta_us_per_mb=8 if far else 1)
            for side, rank in (("send", src), ("receive", dst)) if far else ():
                builder.add_hold(link, nics[side, rank], alpha_us=0, beta_us_per_mb=8, side=side)
                uplink = uplinks[side, rank // size]
                builder.add_hold(link, uplink, alpha_us=0, beta_us_per_mb=16 / size, side=side)
    return builder.build()


@pytest.mark.parametrize(("name", "chunks", "evenly"), [("allgather", 1, True), ("reduce_scatter", 2, False)])
def test_nics_share_an_uplink_or_few_of_them_use_it(monkeypatch, name, chunks, evenly):
    """Of the two ways to divide an uplink among NICs, the one whose schedule ends sooner is taken."""
    topology = behind_uplinks(3, 4)
    problem = taccl.make_problem(topology, name, size_bytes=240 * 10**6, chunks_per_rank=chunks)
    best = along_trees(problem)
    assert verify(best).ok
    finishes = {}
    for way in (True, False):

        def hops(phases, way=way):
            return replace(tree_hops(phases, evenly=way), is_even=False)

        monkeypatch.setattr(trees, "tree_hops", hops)
        finishes[way] = along_trees(problem).finish
    assert best.finish == finishes[evenly] < finishes[not evenly]


@pytest.mark.parametrize(("machine", "name", "chunks"), [("dgx1", "allgather", 6), ("dgx1", "allreduce", 4)])
def test_few_sends_are_tried_in_several_orders(monkeypatch, machine, name, chunks):
    """Few sends finish sooner in further orders of chunks, or with each phase of an allreduce alone."""
    topology = taccl.topologies.parse(machine)
    problem = taccl.make_problem(topology, name, size_bytes="16MB", chunks_per_rank=chunks)
    found = along_trees(problem)
    assert verify(found).ok
    monkeypatch.setattr("taccl.synthesis.proposers.tree_hops._MOST_SENDS", 0)
    assert found.finish < 0.96 * along_trees(problem).finish


def search_of(problem):
    """A search without an initial schedule."""
    return Search(replace(problem, chunks_open=False), Options(), Deadline.after(60.0), asked=problem)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["allgather", "reduce-scatter", "allreduce", "broadcast", "reduce"])
def test_trees_carry_every_collective_of_all_ranks(name):
    """Collectives from or to all ranks are scheduled along trees, and the verifier accepts them."""
    problem = taccl.make_problem(uneven(), name, size_bytes="4MB").in_its_chunks
    assert may_fill(problem)
    assert verify(along_trees(problem)).ok


@pytest.mark.slow
def test_the_number_of_chunks_comes_from_the_packing():
    """Links of 4 and 8 us/MB enter each pair: the packing cuts chunks into thirds, which fill both links."""
    search = search_of(taccl.make_problem(uneven(), "allgather", size_bytes="400MB"))
    best = offer_trees(search).best
    assert best.problem.collective.chunks_per_rank % 3 == 0
    assert best.finish_us < 1.01 * 100 * 2 * 8 / 3
    assert "throughput-optimal" in search.stages[-1].message


@pytest.mark.slow
def test_ctrl_c_keeps_the_best_trees_so_far(monkeypatch):
    """Ctrl-C while trees in finer chunks are packed keeps the schedule along those in the chunks before."""
    made = []

    def interrupted_later(problem, *given, **options):
        if made:
            raise KeyboardInterrupt
        made.append(along_trees(problem, *given, **options))
        return made[0]

    monkeypatch.setattr(trees, "along_trees", interrupted_later)
    search = search_of(taccl.make_problem(uneven(), "allgather", size_bytes="400MB"))
    with pytest.raises(KeyboardInterrupt):
        offer_trees(search)
    assert search.earliest_us == made[0].finish_us


@pytest.mark.slow
def test_numbers_of_chunks_that_plans_allow_are_kept_to():
    """If only some numbers of chunks are allowed, as in plans for files of a runtime, trees use one of them."""
    search = search_of(taccl.make_problem(uneven(), "allgather", size_bytes="400MB"))
    parameters = {"suggesting": {"counts": (1, 2, 4, 8), "counts_only": 1}}
    options = Options(parameters=taccl.SearchParameters.from_dict(parameters))
    assert offer_trees(replace(search, options=options)).best.problem.collective.chunks_per_rank == 8


@pytest.mark.slow
def test_a_given_number_of_chunks_is_kept():
    """For a given two chunks per rank trees are proposed, and the message compares them with the optimum."""
    collective = taccl.collectives.allgather(4, chunks_per_rank=2)
    search = search_of(taccl.make_problem(uneven(), collective, size_bytes="400MB"))
    offer_trees(search)
    assert search.best.problem is search.problem
    assert "above the optimum" in search.stages[-1].message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "topology"), [("allgather", uneven()), ("allreduce", taccl.topologies.hypercube(3))]
)
def test_no_resource_waits_longer_than_the_busiest_works(name, topology):
    """The steady-state interval of tiles equals the load of the busiest resource."""
    problem = taccl.make_problem(topology, name, size_bytes="400MB", chunks_per_rank=12)
    steady = taccl.initiation_interval(along_trees(problem, gapless=True))
    assert steady.interval == steady.busiest_load


def test_both_phases_of_an_allreduce_leave_no_link_idle():
    """On a ring of four, links send sums while others wait, and the finish is the load of each link."""
    problem = taccl.make_problem(taccl.topologies.ring(4), "allreduce", size_bytes="400MB", chunks_per_rank=8)
    found = along_trees(problem)
    assert verify(found).ok
    assert found.finish == taccl.initiation_interval(found).busiest_load


def test_chunks_for_some_ranks_alone_take_no_spanning_trees():
    """An alltoall, whose chunks have one destination each, uses no spanning trees."""
    assert not may_fill(taccl.make_problem(uneven(), "alltoall", size_bytes="4MB").in_its_chunks)


def test_trees_of_one_root_are_packed_on_larger_fabrics():
    """On a torus of 120 ranks, data of one rank follow four trees; trees of all ranks would take too long."""
    topology = taccl.topologies.torus(10, 12)
    broadcast, allgather = (
        taccl.make_problem(topology, name, size_bytes="64MB").in_its_chunks
        for name in ("broadcast", "allgather")
    )
    assert may_fill(broadcast) and not may_fill(allgather)
    found = along_trees(broadcast)
    assert verify(found).ok


@pytest.mark.parametrize(("name", "comes_first"), [("broadcast", True), ("allgather", False)])
def test_trees_for_data_of_one_rank_come_among_the_first(name, comes_first, monkeypatch):
    """They precede baselines in finer chunks, which take longer and finish later."""
    asked = []
    monkeypatch.setattr(table, "offer_trees", asked.append)
    monkeypatch.setattr(table, "offer_cut_first", lambda _: asked.append("finer chunks"))
    search = search_of(taccl.make_problem(uneven(), name, size_bytes="1MB"))
    names = "first baselines", "trees", "baselines in finer chunks"
    table.run(search, [each for each in table.FIRST if each.proposer.name in names])
    assert asked == [search] * comes_first + ["finer chunks"]


@pytest.mark.parametrize(
    ("is_loaded", "left_s", "is_skipped"), [(False, 0.1, True), (False, 9, False), (True, 0.1, False)]
)
def test_trees_are_skipped_if_time_does_not_suffice_to_load_their_kernels(
    monkeypatch, is_loaded, left_s, is_skipped
):
    """Loading the first kernel takes 0.2 s of CPU; with 0.1 s left, a row says so, unless it is loaded already."""
    monkeypatch.setattr(trees, "is_loaded", lambda kernel: is_loaded)
    monkeypatch.setattr(trees, "_are_compiled", lambda problem: True)
    monkeypatch.setattr(trees, "busy_factor", lambda: 1.0)
    problem = taccl.make_problem(taccl.topologies.ring(2), "allgather", size_bytes=2)
    said = trees.no_time(Search(problem, Options(), Deadline.after(left_s)))
    assert said.startswith("loading its kernels would take 0.2 s") == bool(said) == is_skipped
