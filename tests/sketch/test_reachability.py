"""Reachability of destinations, and the clauses that prevent it."""

from dataclasses import replace
from random import Random

import pytest

from taccl import collectives
from taccl.analysis.verification.verify import verify
from taccl.errors import SketchError, TopologyError
from taccl.problem.chunks import Chunk
from taccl.problem.clauses import Transit
from taccl.problem.collective import Collective
from taccl.problem.making import make_problem
from taccl.problem.problem import Clauses
from taccl.sketch.library import load_sketch
from taccl.sketch.reachability import _all_arrive, _unmet_demands, check_reachable, with_moved_roots
from taccl.sketch.sketch import Sketch
from taccl.topology.builder import TopologyBuilder
from taccl.topology.machines import dgx2, dgx_h100, ndv2
from tests.effort import cpu_s, first_schedule
from tests.synthesis.small_problems import linked, problem_of


def apply(text, name="allgather", **options):
    """A sketch on two NDv2 nodes."""
    sketch = Sketch.from_toml(f"schema = 1\n{text}", source="a.toml")
    return sketch.apply(ndv2(2), collectives.make(name, 16, **options), chunk_size="1MB")


_INSIDE = "[[0,1],[0,2],[0,3],[0,4],[2,6],[3,7],[4,5],[2,0],[3,0],[4,0],[6,2],[7,3],[5,4]]"


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        # Local rank 0 sends only its own chunk, so rank 1's never leaves the node.
        (
            "relays = {0=[0]}",
            "allgather",
            r"a\.toml: internode\.relays: chunk 1 .* cannot get from rank 1 to rank 8",
        ),
        # Contributions to the chunk rooted at rank 1 have no link that carries them to its node.
        (
            "relays = {0=[0]}",
            "allreduce",
            "contribution of rank 8 to chunk 1 of allreduce .* rank 8 to rank 1:",
        ),
        # With only 0->1 inside a node, rank 0's chunk reaches no other rank.
        (
            "[intranode]\nlinks = [[0, 1]]",
            "allgather",
            r"a\.toml: intranode\.links: chunk 0 .* rank 0 to rank 2",
        ),
        # Chunks arrive at local rank 1, which has no links inside the node: both clauses are named.
        (
            f"[intranode]\nlinks = {_INSIDE}",
            "allgather",
            r"internode\.connections leaves .*\(or intranode\.links\)",
        ),
    ],
)
def test_clauses_that_cut_a_chunk_off_are_named(text, name, message):
    """With one connection, from local rank 0 to local rank 1, the error names the clauses at fault."""
    with pytest.raises(SketchError, match=message):
        apply(f"[internode]\nconnections = {{0=[1]}}\n{text}", name)


def test_crossing_that_bans_a_detour():
    """Nodes 0 -> 1 -> 2 in a row: direct crossing forbids the path to rank 2 through node 1."""
    builder = TopologyBuilder("row", [0, 1, 2])
    for src, dst in ((0, 1), (1, 2)):
        builder.add_link(src, dst, alpha_us=1, beta_us_per_mb=1)
    collective = collectives.custom(3, precondition={0: [0]}, postcondition={0: [2]})
    with pytest.raises(SketchError, match=r"row-sketch: internode\.crossing: chunk 0 of custom"):
        Sketch.from_toml("schema = 1\nname = 'row-sketch'\n[internode]").apply(
            builder.build(), collective, chunk_size=1
        )


def test_clauses_that_only_together_forbid():
    """The relay clause or the link clause alone leaves a path, both together none; the message names both."""
    builder = TopologyBuilder("pair", [0, 1])
    for _ in range(2):
        builder.add_link(0, 1, alpha_us=1, beta_us_per_mb=1)
    clauses = Clauses(links_allowed=frozenset(), carries_from={0: frozenset(), 1: frozenset()})
    problem = make_problem(
        builder.build(), collectives.custom(2, precondition={0: [0]}, postcondition={0: [1]}),
        chunk_bytes=1, clauses=clauses,
    )  # fmt: skip
    with pytest.raises(SketchError, match=r"internode\.relays and internode\.connections together"):
        check_reachable(problem)


def test_topology_without_a_path():
    """If the topology has no path and no sketch is in use, the error names the topology."""
    topology = linked("line", [0, 0, 0], [(0, 1), (1, 0)], alpha_us=1, beta_us_per_mb=1)
    with pytest.raises(
        TopologyError,
        match="chunk 0 of allgather cannot get from rank 0 to rank 2: line has no path for it; add",
    ):
        Sketch().apply(topology, collectives.allgather(3), chunk_size=1)


def test_reduce_needs_no_path_back():
    """Links into the root are enough for reduce, and not for allreduce."""
    topology = linked("in", [0, 0], [(1, 0)], alpha_us=1, beta_us_per_mb=1)
    Sketch().apply(topology, collectives.reduce(2), chunk_size=1)
    with pytest.raises(TopologyError, match="in has no path for it; make its links bidirectional"):
        Sketch().apply(topology, collectives.allreduce(2), chunk_size=1)


def test_scan_starts_where_prefixes_are_formed():
    """A chain 0 -> 1 -> 2 suffices for a scan."""
    topology = linked("chain", [0, 0, 0], [(0, 1), (1, 2)], alpha_us=1, beta_us_per_mb=1)
    Sketch().apply(topology, collectives.scan(3), chunk_size=1)


def joined(*more):
    """Topology with a link from ranks 0 and 1 to rank 2, which waits for both ranks, and with the given
    links."""
    return linked("joined", [0, 0, 0], (((0, 1), 2), *more), alpha_us=1, beta_us_per_mb=1)


def test_a_link_of_several_sources_waits_for_all():
    """A chunk crosses a two-source link only if both sources hold it."""
    collective = collectives.custom(3, precondition={0: [0]}, postcondition={0: [2]})
    with pytest.raises(TopologyError, match="chunk 0 of custom cannot get from rank 0 to rank 2"):
        check_reachable(make_problem(joined(), collective, chunk_bytes=1))
    check_reachable(make_problem(joined((0, 1)), collective, chunk_bytes=1))


def test_several_origins_can_be_all_sources():
    """A chunk that both sources hold from the start crosses the link."""
    collective = collectives.custom(3, precondition={0: [0, 1]}, postcondition={0: [2]})
    check_reachable(make_problem(joined(), collective, chunk_bytes=1))


def test_strongly_connected_only_if_one_source_would_do():
    """Rank 1 can broadcast: it sends to rank 0, then both together to rank 2.

    Rank 0 cannot: its only link waits until rank 1 also has the chunk, which never happens.
    """
    topology = joined((1, 0), (2, 1))
    check_reachable(make_problem(topology, collectives.broadcast(3, root=1), chunk_bytes=1))
    with pytest.raises(TopologyError, match="from rank 0 to rank 1"):
        check_reachable(make_problem(topology, collectives.broadcast(3), chunk_bytes=1))


def test_sums_in_switches_need_no_search_beside_links_between_all(monkeypatch):
    """Links of one source join all ranks of a server, so its sums in the switch need no search."""
    monkeypatch.setattr("taccl.sketch.reachability.unmet", lambda problem: pytest.fail("searched"))
    for collective in (collectives.allreduce(8), collectives.allgather(8)):
        check_reachable(make_problem(dgx_h100(nvls=True), collective, chunk_bytes=1))


def test_contributions_come_from_any_source():
    """A link from two ranks adds up what they hold, which is enough for a reduce."""
    check_reachable(make_problem(joined(), collectives.reduce(3, root=2), chunk_bytes=1))


def test_a_sum_that_is_there_needs_no_path():
    """A sum of one contribution that is already at its destination needs no path to the root."""
    builder = TopologyBuilder("out", [0, 0])
    builder.add_link(0, 1, alpha_us=1, beta_us_per_mb=1)
    met = Collective("met", 2, (Chunk((0,), (0,), root=1),), combining=True)
    check_reachable(make_problem(builder.build(), met, chunk_bytes=1))


def test_sums_at_other_roots_keep_the_limits_of_links():
    """Contributions on a one-way ring of three cannot reach rank 0, as 1 -> 2 carries them to ranks 1 and 2 only.

    So another rank makes the sum for rank 0. Its contributions must not use 1 -> 2, as its own sums might: they
    go 2 -> 0 -> 1, and the sum of rank 1, too.
    """
    topology = linked("one way", [0] * 3, [(0, 1), (1, 2), (2, 0)], alpha_us=1, beta_us_per_mb=1)
    clauses = {"carries_to": {1: frozenset({1, 2})}}
    problem = problem_of(topology, collectives.allreduce(3), **clauses)
    rooted = with_moved_roots(problem)
    assert [chunk.root for chunk in rooted.collective.chunks] == [1, 1, 2]
    assert rooted.clauses.carries_to == {1: frozenset({2})}
    assert verify(first_schedule(problem)).ok


@pytest.mark.slow
def test_many_chunks_are_checked_fast():
    """Equal chunks are checked together: eight times as many take far less than eight times the CPU."""

    def checked(chunks_per_rank):
        collective = collectives.alltoall(32, chunks_per_rank=chunks_per_rank)
        problem = load_sketch("dgx2/sk1").apply(dgx2(2), collective)
        return cpu_s(lambda: check_reachable(replace(problem)))

    assert checked(8) < 8 * checked(1)


_NAMES = ("alltoall", "allgather", "allreduce", "reduce", "broadcast", "reduce-scatter")


def random_problem(random):
    """A small problem on random links, under random clauses on chunks."""
    nodes = sorted(random.choices(range(3), k=random.randint(2, 6)))
    ranks, numbers = range(len(nodes)), {node: i for i, node in enumerate(sorted({*nodes}))}
    pairs = [(a, b) for a in ranks for b in ranks if a != b and random.random() < 0.6] or [(0, 1)]
    some = [
        {e: frozenset(random.sample(ranks, 2)) for e in range(len(pairs)) if random.random() < 0.3}
        for _ in range(2)
    ]
    topology = linked("links", [numbers[node] for node in nodes], pairs, alpha_us=1, beta_us_per_mb=1)
    clauses = Clauses(
        direct_crossing=random.random() < 0.5, carries_from=some[0], carries_to=some[1],
        max_hops=random.choice([None, None, 1, 2]),
    )  # fmt: skip
    return make_problem(topology, random.choice(_NAMES), chunk_bytes=8, clauses=clauses)


@pytest.mark.parametrize("seed", range(20))
def test_a_search_for_all_chunks_that_are_alike_agrees_with_one_for_each(seed):
    """Chunks with equal starts and links share a search and the links; random clauses admit some of them."""
    problem = random_problem(Random(seed))
    assert _all_arrive(problem) == (not any(_unmet_demands(problem)))
    for reducing in (False, True):
        number, masks = problem.open_link_sets(reducing=reducing)
        for c in range(problem.collective.num_chunks):
            transit = Transit(problem.topology, problem.collective, c, reducing)
            for each in problem.clauses.said("chunk"):
                value, key = getattr(problem.clauses, each.field), each.of_transit(transit)
                for e in () if key is None else each.speaks_of(value, problem.topology):
                    is_open = masks[number[c]][e]
                    assert each.admits(key, each.of_link(value, problem.topology, e)) or not is_open
