"""Small valid schedules, built by hand, and functions to change them.

Chunks are 1 MB, so a send takes alpha + beta microseconds; unless stated otherwise a tick is 1 us.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from taccl import collectives
from taccl.problem.making import make_problem
from taccl.problem.problem import Clauses
from taccl.schedule.schedule import Schedule, make_schedule
from taccl.topology.builder import TopologyBuilder
from tests.synthesis.small_problems import linked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taccl.problem.problem import Problem

MB = 10**6


class Row(NamedTuple):
    """One transfer, as `taccl.schedule.schedule.Transfer`."""

    chunk: int
    link: int
    start: int
    end: int
    group: int = -1
    reduce: bool = False


def full(schedule: Schedule) -> Schedule:
    """The schedule in the form that stores every column."""
    return make_schedule(schedule.problem, **schedule.columns, producer=schedule.producer)


def without_ends(schedule: Schedule) -> Schedule | None:
    """The schedule without columns of ends and groups; None if sends merge, or do not last as long as they cost."""
    costs, collective, links = (
        schedule.problem.costs,
        schedule.problem.collective,
        schedule.problem.topology.links,
    )
    rows = sorted(rows_of(schedule), key=lambda row: row.start)
    if schedule.num_sends < len(rows):
        return None
    for row in rows:
        if not (0 <= row.chunk < collective.num_chunks and 0 <= row.link < len(links)):
            return None
        if row.end - row.start != costs.duration(row.link, int(costs.chunk_units[row.chunk])):
            return None
    return Schedule(
        schedule.problem,
        np.array([row.chunk for row in rows], np.int32),
        np.array([row.link for row in rows], np.int32),
        np.array([row.start for row in rows], np.int64),
        reduce=np.array([row.reduce for row in rows], bool),
    )


def build(problem: Problem, rows: Sequence[Row]) -> Schedule:
    """A schedule from rows; a row with group -1 is a send by itself."""
    alone = 1 + max((row.group for row in rows), default=0)
    return make_schedule(
        problem,
        chunk=[row.chunk for row in rows],
        link=[row.link for row in rows],
        start=[row.start for row in rows],
        end=[row.end for row in rows],
        group=[row.group if row.group >= 0 else alone + i for i, row in enumerate(rows)],
        reduce=[row.reduce for row in rows],
    )


def rows_of(schedule: Schedule) -> list[Row]:
    """The rows of a schedule."""
    return [Row(*transfer[:6]) for transfer in schedule]


def relay() -> Schedule:
    """Broadcast along 0 -> 1 -> 2 in 3 and 2.5 us; a tick is half a microsecond."""
    problem = make_problem(
        linked("line", [0, 0, 0], [(0, 1, 1, 2), (1, 2, "0.5", 2)]), collectives.broadcast(3), chunk_bytes=MB
    )
    return build(problem, [Row(0, 0, 0, 6), Row(0, 1, 6, 11)])


def merged() -> Schedule:
    """Rank 0 gets chunk 1 in 2 us. Then it sends chunks 0 and 1 to the other node together in 5 + 2 * 10 us.

    Chunk 3 follows in 5 + 10 us.
    """
    topology = TopologyBuilder("two nodes", [0, 0, 1, 1])
    topology.add_link(1, 0, alpha_us=1, beta_us_per_mb=1)
    topology.add_link(0, 2, alpha_us=5, beta_us_per_mb=10)
    topology.add_link(2, 3, alpha_us=1, beta_us_per_mb=1)
    topology.add_link(3, 2, alpha_us=1, beta_us_per_mb=1)
    collective = collectives.custom(
        4, precondition={0: [0], 1: [1], 2: [3], 3: [0]}, postcondition={0: [2, 3], 1: [2], 2: [2], 3: [2]}
    )
    clauses = Clauses(max_merge=2, merging=frozenset({1}))
    problem = make_problem(topology.build(), collective, chunk_bytes=MB, clauses=clauses)
    first = [Row(1, 0, 0, 2), Row(0, 1, 2, 27, 7), Row(1, 1, 2, 27, 7), Row(0, 2, 27, 29)]
    return build(problem, [*first, Row(2, 3, 0, 2), Row(3, 1, 27, 42)])


def shared_nic() -> Schedule:
    """Two links of 4 + 8 us share a NIC that each send holds for 1 + 8 us: the second send starts at 9 us."""
    topology = TopologyBuilder("shared NIC", [0, 0, 1, 1])
    nic = topology.add_resource("NIC of node 0")
    for src, dst in ((0, 2), (1, 3)):
        link = topology.add_link(src, dst, alpha_us=4, beta_us_per_mb=8)
        topology.add_hold(link, nic, alpha_us=1, beta_us_per_mb=8)
    collective = collectives.custom(4, precondition={0: [0], 1: [1]}, postcondition={0: [2], 1: [3]})
    problem = make_problem(topology.build(), collective, chunk_bytes=MB)
    return build(problem, [Row(0, 0, 0, 12), Row(1, 1, 9, 21)])


def ingress_nic() -> Schedule:
    """Two sends of 12 and 6 us hold one NIC for their last 5 us, and end at 12 and 7 us."""
    topology = TopologyBuilder("ingress NIC", [0, 0, 1, 1])
    nic = topology.add_resource("NIC of node 1")
    for src, dst, alpha, beta in ((0, 2, 4, 8), (1, 3, 2, 4)):
        link = topology.add_link(src, dst, alpha_us=alpha, beta_us_per_mb=beta)
        topology.add_hold(link, nic, alpha_us=1, beta_us_per_mb=4, side="receive")
    collective = collectives.custom(4, precondition={0: [0], 1: [1]}, postcondition={0: [2], 1: [3]})
    problem = make_problem(topology.build(), collective, chunk_bytes=MB)
    return build(problem, [Row(0, 0, 0, 12), Row(1, 1, 1, 7)])


def switch_ports() -> Schedule:
    """Sends of 1 + 1 us hold the source's output port in the first 1 us, the input port in the last."""
    topology = TopologyBuilder("crossbar", [0, 0, 0])
    ports_out = [topology.add_resource(f"port out of {rank}") for rank in range(3)]
    ports_in = [topology.add_resource(f"port into {rank}") for rank in range(3)]
    links = []
    for src, dst in ((0, 1), (0, 2), (1, 2)):
        link = topology.add_link(src, dst, alpha_us=1, beta_us_per_mb=1)
        topology.add_hold(link, ports_out[src], alpha_us=0, beta_us_per_mb=1)
        topology.add_hold(link, ports_in[dst], alpha_us=0, beta_us_per_mb=1, side="receive")
        links.append(link)
    topology.add_switch("crossbar", range(3), links)
    collective = collectives.custom(3, precondition={0: [0], 1: [1]}, postcondition={0: [1, 2], 1: [2]})
    problem = make_problem(topology.build(), collective, chunk_bytes=MB)
    # Rank 0's port is free again at 1; rank 2's is held in [1, 2) by chunk 1, then in [2, 3) by chunk 0.
    return build(problem, [Row(0, 0, 0, 2), Row(1, 2, 0, 2), Row(0, 1, 1, 3)])


def allreduce() -> Schedule:
    """Three ranks: each sends chunk c to rank c, which sends the sum back; 2 us per send."""
    topology = TopologyBuilder("triangle", [0, 0, 0])
    pairs = [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]
    for src, dst in pairs:
        topology.add_link(src, dst, alpha_us=1, beta_us_per_mb=1)
    problem = make_problem(topology.build(), collectives.allreduce(3), chunk_bytes=MB)
    gather = [Row(dst, link, 0, 2, reduce=True) for link, (_, dst) in enumerate(pairs)]
    spread = [Row(src, link, 2, 4) for link, (src, _) in enumerate(pairs)]
    return build(problem, gather + spread)


def reduce_chain() -> Schedule:
    """Reduce to rank 0 along 2 -> 1 -> 0; the other links are idle."""
    topology = TopologyBuilder("chain", [0, 0, 0])
    for src, dst in ((2, 1), (1, 0), (0, 1), (2, 0), (2, 0)):
        topology.add_link(src, dst, alpha_us=1, beta_us_per_mb=1)
    clauses = Clauses(carries_to={4: frozenset({1, 2})})
    problem = make_problem(topology.build(), collectives.reduce(3), chunk_bytes=MB, clauses=clauses)
    return build(problem, [Row(0, 0, 0, 2, reduce=True), Row(0, 1, 2, 4, reduce=True)])


def own_first() -> Schedule:
    """Rank 1 sends its own chunk 1, then 2 us later relays chunk 0; the link is free after 1 us."""
    topology = TopologyBuilder("own first", [0, 1, 2], alpha_meaning="pipelined")
    topology.add_link(0, 1, alpha_us=1, beta_us_per_mb=1)
    topology.add_link(1, 2, alpha_us=1, beta_us_per_mb=1)
    collective = collectives.custom(3, precondition={0: [0], 1: [1]}, postcondition={0: [2], 1: [2]})
    clauses = Clauses(own_first=frozenset({1}), max_merge=2, merging=frozenset({1}))
    problem = make_problem(topology.build(), collective, chunk_bytes=MB, clauses=clauses)
    return build(problem, [Row(1, 1, 0, 2), Row(0, 0, 0, 2), Row(0, 1, 2, 4)])


def direct() -> Schedule:
    """Broadcast on a triangle directly from rank 0, as no chunk may cross more than one link."""
    topology = TopologyBuilder("triangle", [0, 0, 0])
    for src, dst in ((0, 1), (1, 2), (0, 2)):
        topology.add_link(src, dst, alpha_us=1, beta_us_per_mb=2)
    problem = make_problem(
        topology.build(), collectives.broadcast(3), chunk_bytes=MB, clauses=Clauses(max_hops=1)
    )
    return build(problem, [Row(0, 0, 0, 3), Row(0, 2, 0, 3)])


def own_last() -> Schedule:
    """Local-first priority for reductions over 2 -> 1: chunk 0, root 0, ends 2 us before chunk 1, root 1."""
    topology = TopologyBuilder("own last", [0, 1, 2], alpha_meaning="pipelined")
    topology.add_link(2, 1, alpha_us=1, beta_us_per_mb=1)
    topology.add_link(1, 0, alpha_us=1, beta_us_per_mb=1)
    topology.add_link(0, 1, alpha_us=1, beta_us_per_mb=1)
    collective = collectives.custom(
        3, precondition={0: [0, 1, 2], 1: [1, 2]}, postcondition={0: [0], 1: [1]}, combining=True
    )
    clauses = Clauses(own_first=frozenset({0}))
    problem = make_problem(topology.build(), collective, chunk_bytes=MB, clauses=clauses)
    rows = [Row(0, 0, 0, 2, reduce=True), Row(0, 1, 2, 4, reduce=True), Row(1, 0, 2, 4, reduce=True)]
    return build(problem, rows)


def scan() -> Schedule:
    """Rank 1 derives prefix 1 when prefix 0 arrives at 2 us, and sends it on; rank 2 derives prefix 2."""
    topology = TopologyBuilder("line", [0, 0, 0])
    for src, dst in ((0, 1), (1, 2), (2, 1)):
        topology.add_link(src, dst, alpha_us=1, beta_us_per_mb=1)
    problem = make_problem(topology.build(), collectives.scan(3), chunk_bytes=MB)
    return build(problem, [Row(0, 0, 0, 2), Row(1, 1, 2, 4)])


def guided() -> Schedule:
    """Chunk 0 goes directly from node 0 to node 2; clauses forbid other paths."""
    topology = TopologyBuilder("three nodes", [0, 1, 2])
    for src, dst in ((0, 2), (0, 1), (1, 2), (0, 2), (0, 2)):
        topology.add_link(src, dst, alpha_us=1, beta_us_per_mb=1)
    clauses = Clauses(
        direct_crossing=True,
        links_allowed=frozenset({0, 1, 2, 4}),
        carries_from={4: frozenset({1})},
        where={"carries_from": "guided.toml: internode.relays"},
    )
    collective = collectives.custom(3, precondition={0: [0]}, postcondition={0: [2]})
    problem = make_problem(topology.build(), collective, chunk_bytes=MB, clauses=clauses)
    return build(problem, [Row(0, 0, 0, 2)])


def guided_reduce() -> Schedule:
    """Rank 2 reduces directly to root 0, and gets the sum back; a node is between them."""
    topology = TopologyBuilder("three nodes", [0, 1, 2])
    for src, dst in ((2, 0), (2, 1), (1, 0), (0, 2)):
        topology.add_link(src, dst, alpha_us=1, beta_us_per_mb=1)
    # Rank 1 contributes nothing, so a path through it is a detour.
    collective = collectives.custom(3, precondition={0: [0, 2]}, postcondition={0: [0, 2]}, combining=True)
    problem = make_problem(
        topology.build(), collective, chunk_bytes=MB, clauses=Clauses(direct_crossing=True)
    )
    return build(problem, [Row(0, 0, 0, 2, reduce=True), Row(0, 3, 2, 4)])


def guided_allreduce() -> Schedule:
    """Rank 0, between 1 and 2, is the root of chunk 0 and relays chunk 1, whose root is 2."""
    topology = TopologyBuilder("line", [0, 0, 0])
    for src, dst in ((1, 0), (2, 0), (0, 1), (0, 2)):
        topology.add_link(src, dst, alpha_us=1, beta_us_per_mb=1)
    everyone = (0, 1, 2)
    chunks = tuple(collectives.Chunk(everyone, everyone, root) for root in (0, 2))
    collective = collectives.Collective("two roots", 3, chunks, combining=True)
    clauses = Clauses(own_first=frozenset({2}), carries_from={3: frozenset({0})})
    problem = make_problem(topology.build(), collective, chunk_bytes=MB, clauses=clauses)
    first = [Row(0, 0, 0, 2, reduce=True), Row(0, 1, 0, 2, reduce=True), Row(0, 2, 2, 4), Row(0, 3, 2, 4)]
    second = [Row(1, 0, 2, 4, reduce=True), Row(1, 3, 4, 6, reduce=True), Row(1, 1, 6, 8), Row(1, 2, 8, 10)]
    return build(problem, first + second)


def hyperedges() -> Schedule:
    """A switch reduces from ranks 1 and 2 into 0, then multicasts the sum to both; chunk 1 stays at 1."""
    topology = TopologyBuilder("in-network", [0, 0, 0])
    topology.add_link((1, 2), 0, alpha_us=1, beta_us_per_mb=1)
    topology.add_link(0, (1, 2), alpha_us=1, beta_us_per_mb=1)
    topology.add_link(1, 2, alpha_us=1, beta_us_per_mb=1)
    ends = {0: [0, 1, 2], 1: [1]}
    collective = collectives.custom(3, precondition=ends, postcondition=ends, combining=True)
    problem = make_problem(topology.build(), collective, chunk_bytes=MB)
    return build(problem, [Row(0, 0, 0, 2, reduce=True), Row(0, 1, 2, 4)])


def unequal_chunks() -> Schedule:
    """Alltoallv of 2 MB one way and 3 MB the other: 1 + 2 * 2 and 1 + 3 * 2 us."""
    topology = TopologyBuilder("pair", [0, 1])
    topology.add_link(0, 1, alpha_us=1, beta_us_per_mb=2)
    topology.add_link(1, 0, alpha_us=1, beta_us_per_mb=2)
    collective = collectives.custom(2, precondition={0: [0], 1: [1]}, postcondition={0: [1], 1: [0]})
    problem = make_problem(topology.build(), collective, chunk_bytes=[2 * MB, 3 * MB])
    return build(problem, [Row(0, 0, 0, 5), Row(1, 1, 0, 7)])


def coarse_grid(whole_us: int = 0) -> Schedule:
    """Schedule whose alpha of 1/3 us, and beta just under a tick, are rounded up to ticks of a femtosecond.

    - `whole_us`: Added to alpha; ticks are picoseconds if times are too long for femtoseconds.
    """
    topology = TopologyBuilder("thirds", [0, 0])
    alpha = whole_us + Fraction(1, 3)
    topology.add_link(0, 1, alpha_us=alpha, beta_us_per_mb=Fraction(1, 1000000007))
    problem = make_problem(topology.build(), collectives.broadcast(2), chunk_bytes=MB)
    return build(problem, [Row(0, 0, 0, math.ceil(alpha * problem.costs.ticks_per_us) + 1)])


#: Schedules of a few dozen ticks, which a tick-by-tick simulation can follow.
SMALL = (
    relay,
    merged,
    shared_nic,
    ingress_nic,
    switch_ports,
    allreduce,
    reduce_chain,
    own_first,
    direct,
    own_last,
    scan,
    guided,
    guided_reduce,
    guided_allreduce,
    hyperedges,
    unequal_chunks,
)
