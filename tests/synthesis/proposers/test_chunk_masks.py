"""The compiled list scheduler under a sketch: allowed chunks per link, local-first priority, relays."""

import random

import numpy as np
import pytest

import taccl
from taccl import collectives
from taccl.problem.making import make_problem
from taccl.problem.problem import Clauses
from taccl.schedule.schedule import Schedule
from taccl.synthesis.proposers import queues
from taccl.synthesis.proposers.large import effort, schedule_large, why_not
from taccl.synthesis.proposers.spreading import has_chunk_masks
from taccl.topology.builder import TopologyBuilder
from tests.analysis.valid_schedules import full
from tests.fuzzing import by_turns

topologies = taccl.topologies
MB = 10**6


def under_sketch(name, collective, *, nodes):
    """A collective under a shipped sketch, on the given number of nodes."""
    sketch = taccl.load_sketch(name).with_nodes(nodes, ranks_per_node=16)
    topology = sketch.topology(nodes=nodes)
    made = collectives.make(collective, topology.num_ranks, chunks_per_rank=sketch.chunks.per_rank)
    return sketch.apply(topology, made)


def columns_of(schedule, **changes):
    """The schedule with some columns replaced."""
    columns = {"chunk": schedule.chunk, "link": schedule.link, "start": schedule.start} | changes
    return Schedule(schedule.problem, **columns, reduce=schedule.kept.reduce)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("collective", "name"), by_turns(["allgather", "allreduce", "alltoall"], ["dgx2/sk1", "dgx2/sk2"])
)
def test_shipped_sketches_are_obeyed(name, collective):
    """Schedules under shipped sketches pass both verifiers, with and without stored end times."""
    problem = under_sketch(name, collective, nodes=2)
    assert has_chunk_masks(problem) and not why_not(problem)
    schedule = schedule_large(problem)
    assert taccl.verify(schedule).violations == ()
    assert taccl.verify(full(schedule)).violations == ()


@pytest.mark.slow
def test_many_nodes_under_a_sketch():
    """Eight DGX-2 with 606,208 hops: every rank receives 254 of 256 chunks, each exactly once."""
    problem = under_sketch("dgx2/sk1", "allgather", nodes=8)
    assert effort(problem) == 606_208
    schedule = schedule_large(problem)
    assert taccl.verify(schedule).ok
    assert schedule.num_transfers == 128 * 254


def four_ranks(**clauses):
    """An allgather on a ring of four."""
    return make_problem(
        topologies.ring(4), collectives.allgather(4), chunk_bytes=MB, clauses=Clauses(**clauses)
    )


@pytest.mark.slow
def test_link_carries_what_it_may():
    """A link carries only chunks that it may carry.

    Link 0 -> 1 carries only rank 0's chunk: those of 2 and 3 travel the other way.
    """
    topology = topologies.ring(4)
    link = next(e for e, ends in enumerate(topology.links) if (ends.src, ends.dst) == (0, 1))
    schedule = schedule_large(four_ranks(carries_from={link: frozenset({0})}))
    assert taccl.verify(schedule).ok
    assert {int(c) for c, e in zip(schedule.chunk, schedule.link, strict=True) if e == link} <= {0}


def test_own_chunks_go_first():
    """On every link of a ring the rank's own chunk starts before any other chunk."""
    schedule = schedule_large(four_ranks(own_first=frozenset(range(8))))
    assert taccl.verify(schedule).ok
    assert taccl.verify(full(schedule)).ok


def test_ranks_that_may_not_relay():
    """Ranks 0 and 2 of a ring of four exchange chunks; only 3 may relay."""
    topology = topologies.ring(4)
    collective = collectives.allgather(2).among([0, 2], num_ranks=4)
    problem = make_problem(topology, collective, chunk_bytes=MB, clauses=Clauses(relays=frozenset({3})))
    schedule = schedule_large(problem)
    assert taccl.verify(schedule).ok
    assert {topology.links[e].dst for e in schedule.link.tolist()} == {0, 2, 3}


@pytest.mark.slow
def test_own_chunks_of_an_exchange_go_first_by_every_rule():
    """In an alltoall, each priority rule of paths sends a link's own chunks before relayed ones."""
    mesh = topologies.mesh(2, 3, alpha_us=1, bandwidth_gb_per_s=50)
    problem = make_problem(
        mesh,
        collectives.alltoall(6, chunks_per_rank=1),
        size_bytes="64KB",
        clauses=Clauses(own_first=frozenset(range(len(mesh.links)))),
    )
    for num_runs in (1, 2, 4, None):
        assert taccl.verify(schedule_large(problem, num_runs=num_runs)).ok


@pytest.mark.parametrize("late_s", [10, -10])
def test_short_of_time_sketches_are_obeyed(monkeypatch, late_s):
    """Without time, chunks share paths over the links that they may use, in a single pass or in a run."""
    monkeypatch.setattr(queues, "_LATE_S", late_s)
    mesh = topologies.mesh(2, 3, ranks_per_node=3)
    across = mesh.internode_links[0]
    clauses = Clauses(
        own_first=frozenset(range(len(mesh.links))), direct_crossing=True,
        carries_from={across: frozenset({mesh.links[across].src})},
    )  # fmt: skip
    for name in ("alltoall", "allgather"):
        problem = make_problem(mesh, name, chunk_bytes=MB, clauses=clauses)
        assert taccl.verify(schedule_large(problem, time_limit_s=0, num_runs=1)).ok


def test_pipelined_links_and_own_chunks_first():
    """Local-first priority on pipelined links is not supported, and the reason is given."""
    problem = make_problem(
        topologies.ring(4, alpha_meaning="pipelined"),
        collectives.allgather(4),
        chunk_bytes=MB,
        clauses=Clauses(own_first=frozenset({0})),
    )
    assert "local-first priority" in why_not(problem)


@pytest.mark.parametrize(
    ("kind", "clauses"),
    [
        ("carries-from", {"carries_from": {0: frozenset({2})}}),
        ("link-not-allowed", {"links_allowed": frozenset(range(1, 8))}),
        ("own-first", {"own_first": frozenset(range(8))}),
    ],
)
def test_verifier_names_the_clause(kind, clauses):
    """A schedule that ignores the sketch, with rank 0's own chunk last on its link, violates the named
    clause."""
    free = schedule_large(four_ranks())
    judged = Schedule(four_ranks(**clauses), free.chunk, free.link, free.start)
    if kind == "own-first":
        # Rank 0's own chunk once more over its link, at the end: allowed, except after relayed chunks.
        relayed = next(
            e for c, e in zip(free.chunk, free.link, strict=True) if free.problem.topology.links[e].src != c
        )
        own = free.problem.topology.links[relayed].src
        judged = Schedule(
            judged.problem,
            np.append(free.chunk, np.array(own, free.chunk.dtype)),
            np.append(free.link, np.int32(relayed)),
            np.append(free.start, np.array(free.finish_ticks, free.start.dtype)),
        )
    found = taccl.verify(judged)
    assert {violation.kind for violation in found.violations} == {kind}


@pytest.mark.slow
def test_verifier_names_a_relay():
    """All ranks of a ring relay for 0 and 2, but only 3 may: the verifier names the clause."""
    collective = collectives.allgather(2).among([0, 2], num_ranks=4)
    free = schedule_large(make_problem(topologies.ring(4), collective, chunk_bytes=MB))
    if not any(1 in (free.problem.topology.links[e].dst,) for e in free.link.tolist()):
        links = free.problem.topology.links
        through = {(0, 1): 0, (1, 2): 0}
        chunk = np.zeros(2, free.chunk.dtype)
        link = [next(e for e, x in enumerate(links) if (x.src, x.dst) == ends) for ends in through]
        free = columns_of(
            free, chunk=chunk, link=np.array(link, np.int32), start=np.array([0, 10**6], np.int64)
        )
    problem = free.problem.with_clauses(relays=frozenset({3}))
    found = taccl.verify(Schedule(problem, free.chunk, free.link, free.start))
    assert {violation.kind for violation in found.violations} == {"link-not-allowed"}


def test_verifier_names_a_detour_between_nodes():
    """On a line of three nodes the verifier refuses the path of node 0's chunk through node 1 to node 2."""
    builder = TopologyBuilder("line", [0, 1, 2])
    for src, dst in ((0, 1), (1, 2)):
        builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=1)
    collective = collectives.custom(3, precondition={0: [0]}, postcondition={0: [2]})
    free = schedule_large(make_problem(builder.build(), collective, chunk_bytes=MB))
    problem = free.problem.with_clauses(direct_crossing=True)
    found = taccl.verify(Schedule(problem, free.chunk, free.link, free.start))
    assert {violation.kind for violation in found.violations} == {"direct-crossing"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_random_clauses_are_obeyed(seed):
    """Under random clauses on a full mesh of two nodes, schedules pass both verifiers."""
    rng = random.Random(seed)
    num_ranks = rng.choice([4, 6])
    builder = TopologyBuilder("two nodes", [r * 2 // num_ranks for r in range(num_ranks)])
    for src in range(num_ranks):
        for dst in range(num_ranks):
            if src != dst:
                builder.add_link(src, dst, alpha_us=rng.randint(0, 2), beta_us_per_mb=rng.choice([1, 2, 5]))
    topology = builder.build()
    links = range(len(topology.links))
    clauses = Clauses(
        # The direct link always carries the chunk, so every chunk has a path.
        carries_from={
            e: frozenset({topology.links[e].src, *rng.sample(range(num_ranks), 1)})
            for e in rng.sample(links, len(links) // 2)
        },
        own_first=frozenset(rng.sample(links, len(links) // 3)),
        direct_crossing=rng.random() < 0.5,
    )
    name = rng.choice(["allgather", "alltoall", "scatter", "broadcast"])
    problem = make_problem(topology, collectives.make(name, num_ranks), chunk_bytes=MB, clauses=clauses)
    schedule = schedule_large(problem, seed=seed)
    assert taccl.verify(schedule).violations == ()
    assert taccl.verify(full(schedule)).violations == ()
