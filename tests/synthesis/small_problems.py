"""Tiny problems, named ones and random ones, whose best finish `brute_force` finds."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from taccl import collectives
from taccl.problem import Clauses, make_problem
from taccl.topology.topology import TopologyBuilder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taccl.collective import Collective
    from taccl.problem import Problem
    from taccl.topology.topology import Topology

MB = 10**6
#: So that no way is too long for the search: what is left is the least finish of the problem itself.
ANY_WAY = 1000


def problem_of(
    topology: Topology, collective: Collective, *, chunk_bytes: int | Sequence[int] = MB, **clauses: object
) -> Problem:
    """A problem whose routing slack keeps every way, and whose sends merge only if the clauses say so."""
    return make_problem(
        topology,
        collective,
        chunk_bytes=chunk_bytes,
        clauses=Clauses(**{"routing_slack": ANY_WAY, **clauses}),  # type: ignore[arg-type]
    )


def ring(
    num_ranks: int, *, betas: Sequence[int] = (0,), alpha: int = 1, meaning: str = "occupies"
) -> Topology:
    """Neighbours joined both ways; link i takes ``alpha + 1 + betas[i mod len(betas)]`` us for 1 MB."""
    builder = TopologyBuilder(f"ring of {num_ranks}", [0] * num_ranks, alpha_meaning=meaning)  # type: ignore[arg-type]
    pairs = [(i, (i + d) % num_ranks) for i in range(num_ranks) for d in (1, -1)]
    for i, (src, dst) in enumerate(dict.fromkeys(pairs)):
        builder.add_link(src, dst % num_ranks, alpha_us=alpha, beta_us_per_mb=1 + betas[i % len(betas)])
    return builder.build()


def star(num_leaves: int) -> Topology:
    """Rank 0 joined both ways to every leaf r, in r us."""
    builder = TopologyBuilder(f"star of {num_leaves}", [0] * (num_leaves + 1))
    for leaf in range(1, num_leaves + 1):
        builder.add_link(0, leaf, alpha_us=0, beta_us_per_mb=leaf)
        builder.add_link(leaf, 0, alpha_us=0, beta_us_per_mb=leaf)
    return builder.build()


def full(num_ranks: int, *, port: bool = False) -> Topology:
    """A link for every ordered pair, 1 us; with `port`, a rank sends to one other at a time."""
    builder = TopologyBuilder(f"full {num_ranks}", [0] * num_ranks)
    ports = [builder.add_resource(f"port {rank}") for rank in range(num_ranks)] if port else []
    for src in range(num_ranks):
        for dst in range(num_ranks):
            if src != dst:
                link = builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=1)
                if port:
                    builder.add_hold(link, ports[src], alpha_us=0, beta_us_per_mb=1)
    return builder.build()


def two_nodes(*, meaning: str = "occupies") -> Topology:
    """Nodes of two ranks joined in 1 us; 0 -> 2 and 1 -> 3 take 2 + 1 us and share a NIC for 1 + 1.

    Links: 0, 1 in node 0; 2, 3 in node 1; 4 is 0 -> 2 and 5 is 1 -> 3; 6 is 2 -> 0.
    """
    builder = TopologyBuilder("two nodes", [0, 0, 1, 1], alpha_meaning=meaning)  # type: ignore[arg-type]
    for src, dst in ((0, 1), (1, 0), (2, 3), (3, 2)):
        builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=1)
    nic = builder.add_resource("NIC of node 0")
    for src, dst in ((0, 2), (1, 3)):
        link = builder.add_link(src, dst, alpha_us=2, beta_us_per_mb=1)
        builder.add_hold(link, nic, alpha_us=1 if meaning == "occupies" else 0, beta_us_per_mb=1)
    builder.add_link(2, 0, alpha_us=2, beta_us_per_mb=1)
    return builder.build()


def relayed() -> Problem:
    """Rank 1's chunk comes to rank 0 at once, but must not cross to rank 2 before rank 0's own."""
    builder = TopologyBuilder("own first", [0, 0, 1])
    builder.add_link(1, 0, alpha_us=0, beta_us_per_mb=1)
    builder.add_link(0, 2, alpha_us=1, beta_us_per_mb=1)
    builder.add_link(2, 0, alpha_us=1, beta_us_per_mb=1)
    builder.add_link(0, 1, alpha_us=0, beta_us_per_mb=1)
    return problem_of(
        builder.build(),
        collectives.allgather(3),
        merging=frozenset({1, 2}),
        max_merge=2,
        own_first=frozenset({1, 2}),
    )


def late_hold() -> Topology:
    """Links of 4 and 2 us into ranks 2 and 3 hold one ingress for the last 2 and 1 of them."""
    builder = TopologyBuilder("late hold", [0, 0, 1, 1])
    ingress = builder.add_resource("ingress")
    for src, dst, beta, held in ((0, 2, 4, 2), (1, 3, 2, 1), (0, 3, 3, 3), (2, 3, 2, 0)):
        link = builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=beta)
        if held:
            builder.add_hold(link, ingress, alpha_us=0, beta_us_per_mb=held, side="receive")
    return builder.build()


def custom(
    num_ranks: int, ways: Sequence[tuple[Sequence[int], Sequence[int]]], *, combining: bool = False
) -> Collective:
    """A collective from (origins, destinations) per chunk."""
    return collectives.custom(
        num_ranks,
        precondition={c: origins for c, (origins, _) in enumerate(ways)},
        postcondition={c: ends for c, (_, ends) in enumerate(ways)},
        combining=combining,
    )


def random_problem(seed: int, *, combining: bool = False) -> Problem:
    """A problem of 2 to 4 ranks and at most 4 chunks, of any shape that the rules allow."""
    rng = random.Random(seed)
    num_ranks = rng.choice((2, 3, 3, 4))
    nodes = [0] * num_ranks if rng.random() < 0.5 else [int(2 * r >= num_ranks) for r in range(num_ranks)]
    builder = TopologyBuilder(f"random {seed}", nodes, alpha_meaning=rng.choice(("occupies", "pipelined")))
    pairs = [(r, (r + 1) % num_ranks) for r in range(num_ranks)]
    others = [(a, b) for a in range(num_ranks) for b in range(num_ranks) if a != b and (a, b) not in pairs]
    pairs += rng.sample(others, min(len(others), rng.choice((0, 1, 2, 3))))
    shared = [builder.add_resource(f"shared {i}") for i in range(rng.choice((0, 1, 2)))]
    sides = [rng.choice(("send", "receive")) for _ in shared]
    mixed = rng.random() < 0.3
    for src, dst in pairs:
        alpha, beta = rng.choice((0, 1, 2)), rng.choice((1, 1, 2))
        link = builder.add_link(src, dst, alpha_us=alpha, beta_us_per_mb=beta)
        for resource, side in zip(shared, sides, strict=True):
            if rng.random() < 0.5:
                held = (rng.randint(0, alpha), rng.randint(0, beta))
                side = rng.choice(("send", "receive")) if mixed else side
                if any(held):
                    builder.add_hold(link, resource, alpha_us=held[0], beta_us_per_mb=held[1], side=side)  # type: ignore[arg-type]
    links = range(len(pairs))
    merging = frozenset(e for e in links if rng.random() < 0.5)
    own_first = frozenset(e for e in links if rng.random() < 0.2) if not combining else frozenset()
    everyone = range(num_ranks)
    ways = []
    for _ in range(rng.choice((1, 2, 3) if combining else (2, 3, 4))):
        origins = sorted(
            rng.sample(everyone, rng.randint(1, num_ranks) if combining else rng.choice((1, 1, 1, 2)))
        )
        ends = sorted(rng.sample(everyone, rng.randint(1, num_ranks)))
        ways.append((origins, ends[:1] if combining and rng.random() < 0.6 else ends))
    sizes = [MB] * len(ways) if rng.random() < 0.7 else [rng.choice((1, 2)) * MB for _ in ways]
    return problem_of(
        builder.build(),
        custom(num_ranks, ways, combining=combining),
        chunk_bytes=sizes,
        merging=merging,
        max_merge=rng.choice((1, 2, 3)),
        own_first=own_first,
    )
