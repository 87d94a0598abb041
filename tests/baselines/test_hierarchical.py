"""The two-level baseline."""

from collections import Counter
from functools import partial
from importlib import import_module
from itertools import accumulate, product

import numpy as np
import pytest

import taccl
from taccl.baselines import chunking, forms, hierarchical
from taccl.baselines.chunking import merging, run
from taccl.baselines.moves import routed
from taccl.baselines.rails import _over_stars, _plan, best_cut, by_rails, estimated_us
from taccl.errors import CollectiveError
from taccl.topology import fabrics
from tests.fuzzing import MANY
from tests.synthesis.small_problems import linked


def test_allgather_crosses_first(make, unit_costs):
    """Two nodes of two ranks: a chunk crosses in one hop, then is copied inside, 4 us."""
    topology = fabrics.fully_connected(4, ranks_per_node=2, **unit_costs)
    # Link 0 -> 1 carries chunk 0 from 0 to 2 us, and chunk 2, from the other node, from 2 to 4.
    assert hierarchical(make("allgather", topology)).finish_us == 4


def test_only_ranks_of_one_local_rank_talk_across(make, unit_costs):
    """Every link that is used between nodes joins ranks of equal local number."""
    topology = fabrics.fully_connected(6, ranks_per_node=3, **unit_costs)
    schedule = hierarchical(make("allreduce", topology))
    crossings = [topology.links[t.link] for t in schedule if topology.is_internode(t.link)]
    assert crossings
    assert all(topology.local_rank[e.src] == topology.local_rank[e.dst] for e in crossings)


def test_alltoall_in_two_levels(make, unit_costs):
    """In an alltoall a chunk crosses once to the rank of equal local number in the other node, and then moves
    inside the node."""
    topology = fabrics.fully_connected(4, ranks_per_node=2, **unit_costs)
    schedule = hierarchical(make("alltoall", topology))
    # Each of four ranks sends 2 chunks to the other node, 8 in all.
    assert sum(topology.is_internode(t.link) for t in schedule) == 8


def test_chunks_spread_only_where_they_have_destinations(make, unit_costs, monkeypatch):
    """The moves of an alltoall inside nodes go to destinations only, in the form of chunk by chunk."""
    listed = []
    module = import_module("taccl.baselines.hierarchical")
    monkeypatch.setattr(
        module, "routed", lambda problem, moves: listed.append(moves) or routed(problem, moves)
    )
    problem = make("alltoall", fabrics.fully_connected(4, ranks_per_node=2, **unit_costs))
    sends = module._chunk_by_chunk(problem)
    # All 16 chunks may cross. Every rank sends 1 chunk in its node, and passes on 1 of the other node.
    assert [len(each.chunk) for each in listed] == [16 + 4 + 4]
    assert len(sends.chunk) == 8 + 4 + 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "nodes", "name", "most_us"),
    [
        ("dgx_a100", 2, "allgather", 64),
        ("mi300x", 2, "allreduce", 92.2),
        *([("dgx_a100", 4, "allreduce", 149.5)] if MANY else []),
    ],  # fmt: skip
)
def test_chunks_are_passed_on_in_a_node_while_others_cross(machine, nodes, name, most_us):
    """Allreduce and allgather of 16 MB overlap sends inside and between nodes, and take little longer than
    their NICs are busy."""
    topology = getattr(taccl.topologies, machine)(nodes)
    found = hierarchical(taccl.make_problem(topology, name, size_bytes=16 * 10**6))
    taccl.verify(found).raise_if_failed()
    assert found.producer == "hierarchical (chunk by chunk)"
    assert found.finish_us <= most_us


def test_one_node_is_refused(make, unit_costs):
    """The two-level baseline refuses a single node."""
    with pytest.raises(CollectiveError, match="two or more nodes of one size, but found 1 of 4 ranks"):
        hierarchical(make("allgather", fabrics.ring(4, **unit_costs)))


@pytest.mark.slow
def test_what_was_cut_before_an_interrupt_is_found_under_its_name(monkeypatch):
    """A schedule in finer chunks that was built before an interrupt is cached for the search, under the
    baseline's name."""
    problem = taccl.make_problem(taccl.topologies.dgx_a100(2), "allgather", size_bytes=16 * 10**6)
    made = forms.listed
    calls = iter([made, made])
    monkeypatch.setattr(forms, "listed", lambda *given, **named: next(calls)(*given, **named))
    with pytest.raises(RuntimeError):
        hierarchical(problem)
    assert chunking.finest(problem)["hierarchical"].problem.collective.chunks_per_rank == 2


@pytest.mark.slow
@pytest.mark.parametrize(("collective", "root"), [("broadcast", 5), ("reduce", 0)])
def test_data_of_one_rank_cross_by_all_nics(collective, root):
    """A broadcast uses all eight NICs of each node, and so does a reduction."""
    topology = taccl.topologies.dgx_h100(nodes=2).under("simple")
    problem = taccl.make_problem(topology, collective, size_bytes="64MB", root=root)
    found = hierarchical(problem)
    assert taccl.verify(found).ok
    # Eight NICs of 50 GB/s pass 64 MB in 160 us, and chunks fill a chain of nodes. One NIC takes 1280 us.
    assert 160 < found.finish_us < 300


def test_stars_of_nodes_share_the_load_of_nics():
    """On four nodes, each NIC of the first node sends three chunks, one to each other node, which pass them on.

    So each other NIC sends one chunk twice, and receives three.
    """
    topology = taccl.topologies.dgx_h100(nodes=4)
    problem = taccl.make_problem(topology, "broadcast", size_bytes="24KB", chunks_per_rank=24)
    schedule = run(problem, partial(by_rails, over="stars")).schedule(problem, producer="stars")
    assert taccl.verify(schedule).ok
    crossings = [topology.links[each.link] for each in schedule if each.link in topology.internode_links]
    assert Counter(link.srcs[0] for link in crossings) == {rank: 3 if rank < 8 else 2 for rank in range(32)}
    assert Counter(link.dsts[0] for link in crossings) == dict.fromkeys(range(8, 32), 3)


@pytest.mark.parametrize(("num_nodes", "across"), [(4, 1), (4, 3), (8, 5), (8, 7), (16, 40)])
def test_nodes_of_stars_receive_from_one_node_per_turn(num_nodes, across):
    """If the first node copies each chunk once, no node sends or receives two chunks in a turn."""
    turn = np.arange(3 * num_nodes)
    sent, received = Counter(), Counter()
    for _, leaves, above, below in _over_stars(turn, turn, np.ones_like(turn), num_nodes, across):
        sent.update(zip(leaves.tolist(), np.broadcast_to(above, turn.shape).tolist(), strict=True))
        received.update(zip(leaves.tolist(), below.tolist(), strict=True))
    assert set(sent.values()) == set(received.values()) == {1}
    assert len(received) == (num_nodes - 1) * len(turn)


@pytest.mark.parametrize("root", [0, 9])
def test_chunks_of_several_turns_share_messages_inside_nodes(root):
    """Groups of two turns need fewer messages inside nodes, and as many between nodes."""
    topology = taccl.topologies.dgx_h100(nodes=4)
    problem = taccl.make_problem(topology, "broadcast", size_bytes="1MB", chunks_per_rank=64, root=root)
    numbers = []
    for group in (1, 2):
        spread = partial(by_rails, over="stars", group=group)
        schedule = run(merging(problem), spread).schedule(merging(problem), producer="stars")
        assert taccl.verify(schedule).ok
        numbers.append(
            Counter(
                topology.is_internode(link) for link in {each.group: each.link for each in schedule}.values()
            )
        )
    assert numbers[1][True] == numbers[0][True] == 64 * 3
    assert numbers[1][False] < 0.9 * numbers[0][False]


@pytest.mark.parametrize("num_chunks", [1, 2, 4])
@pytest.mark.parametrize("across", [1, 3, 7])
def test_the_first_node_sends_the_copies_that_end_all_at_the_earliest_time(num_chunks, across):
    """A plan of copies ends as early as the best of all numbers of copies."""
    num_nodes = 5

    def end(copies):
        """Turn in which the last copy arrives; hubs start once a chunk has arrived."""
        begin = [*accumulate(copies, initial=0)]
        late = [first + 2 * across + num_nodes - 1 - each for first, each in zip(begin, copies) if each < 4]
        return max(begin[-1] - 1 + across, *late, 0)

    begin, copies = zip(*_plan(num_chunks, num_nodes, across, True), strict=True)
    assert list(begin) == [*accumulate(copies, initial=0)][:-1]
    assert end(copies) == min(map(end, product(range(1, num_nodes), repeat=num_chunks)))


def test_more_bytes_are_cut_into_more_parts():
    """The estimated number of parts grows with the size, up to the limits of transfers and bytes."""
    topology = taccl.topologies.dgx_h100(nodes=4)
    sizes = [2, "16KB", "1MB", "16MB", "1GB"]
    problems = [taccl.make_problem(topology, "broadcast", size_bytes=size) for size in sizes]
    parts = [best_cut(problem, most_transfers=31 * 512) for problem in problems]
    assert parts == sorted(set(parts))
    assert parts[0] <= 2 and parts[-1] == 512


def test_parts_fill_whole_turns():
    """A broadcast from a node of 72 ranks is cut into a multiple of 72."""
    problem = taccl.make_problem(taccl.topologies.gb200_nvl72(nodes=2), "broadcast", size_bytes="64MB")
    assert best_cut(problem, most_transfers=143 * 300) == 288


@pytest.mark.parametrize(("collective", "protocol"), [("broadcast", "ll"), ("reduce", "simple")])
def test_the_finish_of_a_broadcast_is_estimated(collective, protocol):
    """The estimated finish of data of one rank is at most 8 % late; other collectives have none."""
    topology = taccl.topologies.dgx_h100(nodes=4).under(protocol)
    problem = taccl.make_problem(topology, collective, size_bytes="256KB")
    assert 0.99 < estimated_us(problem) / hierarchical(problem).finish_us < 1.08
    for other in ("allgather", "scan"):
        assert estimated_us(taccl.make_problem(topology, other, size_bytes="256KB")) == np.inf


def test_chunks_are_coarse_where_each_message_takes_a_microsecond(unit_costs):
    """100 kB take 100 us over a link; eight chunks of 13.5 us end soonest, in eight steps."""
    topology = fabrics.ring(6, ranks_per_node=2, **unit_costs)
    assert hierarchical(taccl.make_problem(topology, "broadcast", size_bytes="100KB")).finish_us <= 108


def test_helped_stars_reach_every_rank(unit_costs):
    """Helped stars copy to nodes of three ranks, of which each chunk reaches each other node once."""
    topology = fabrics.fully_connected(12, ranks_per_node=3, **unit_costs)
    problem = taccl.make_problem(topology, "broadcast", size_bytes="60KB", chunks_per_rank=12, root=4)
    schedule = run(problem, partial(by_rails, over="helped stars")).schedule(problem, producer="stars")
    assert taccl.verify(schedule).ok
    assert sum(topology.is_internode(each.link) for each in schedule) == 3 * 12


def test_a_reduction_finishes_no_later_than_its_copies_in_reversed_time():
    """On a machine whose links are alike in both directions, a reduce takes no longer than a broadcast."""
    topology = taccl.topologies.mi300x(nodes=3)
    problems = [taccl.make_problem(topology, name, size_bytes="64KB") for name in ("broadcast", "reduce")]
    copies, sums = map(hierarchical, problems)
    assert taccl.verify(sums).ok
    assert sums.finish <= copies.finish


def test_a_scatter_finishes_as_early_as_the_gather_that_it_reverses():
    """The data of a rank cross by the NIC of their destination, as they do in a gather."""
    topology = taccl.topologies.dgx_h100(nodes=4)
    gather, scatter = (
        hierarchical(taccl.make_problem(topology, name, size_bytes="1MB")) for name in ("gather", "scatter")
    )
    assert taccl.verify(scatter).ok
    assert scatter.finish <= gather.finish


def test_a_reduction_between_unlike_ranks_is_timed_in_both_directions():
    """Rank 3 adds to the five chunks of others over its only link out, 5 us; in reversed time, it takes 6 us."""
    out = {0: (1, 2, 3, 4, 5), 1: (3, 4, 5), 2: (0, 1), 3: (2,), 4: (2, 3, 5), 5: (0, 1, 3)}
    links = [(src, dst) for src, each in out.items() for dst in each]
    even = linked("unlike", [0, 0, 1, 1, 2, 2], links, alpha_us=0, beta_us_per_mb=1)
    topology = even.degraded({links.index((0, 1)): 0.5})
    found = hierarchical(taccl.make_problem(topology, "reduce-scatter", size_bytes="6MB"), cut=False)
    assert taccl.verify(found).ok
    assert found.finish_us == 5
