"""Random fabrics, collectives and problems without merging, for tests of the compiled list schedulers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taccl import collectives
from taccl.problem.making import make_problem
from taccl.problem.problem import Clauses
from taccl.topology.builder import TopologyBuilder
from tests.synthesis.small_problems import MB

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from taccl.problem.collective import Collective
    from taccl.problem.problem import Problem
    from taccl.topology.topology import Topology


def problem_of(
    topology: Topology, collective: Collective, *, chunk_bytes: int | Sequence[int] = MB, **clauses: object
) -> Problem:
    """A problem without merging, unless the clauses allow it."""
    return make_problem(topology, collective, chunk_bytes=chunk_bytes, clauses=Clauses(**clauses))  # type: ignore[arg-type]


def ring_with_chords(rng: random.Random) -> Topology:
    """Ranks on a ring in random order, with chords; some links share NICs, with random holds.

    They are in one node, or in nodes of three.
    """
    num_ranks, meaning = rng.randint(2, 10), rng.choice(["occupies", "pipelined"])
    nodes = [rank // 3 for rank in range(num_ranks)] if rng.random() < 0.5 else [0] * num_ranks
    builder = TopologyBuilder("random", nodes, alpha_meaning=meaning)  # type: ignore[arg-type]
    nics = [(builder.add_resource(f"out {i}"), builder.add_resource(f"in {i}")) for i in range(3)]
    order = rng.sample(range(num_ranks), num_ranks)
    pairs = {(order[i - 1], order[i]) for i in range(num_ranks)}
    pairs |= {(src, dst) for src, dst in (rng.sample(range(num_ranks), 2) for _ in range(2 * num_ranks))}
    for src, dst in sorted(pairs):
        alpha, beta = rng.choice([0, 1, 3]), rng.choice([1, 2, 5, 7])
        link = builder.add_link(src, dst, alpha_us=alpha, beta_us_per_mb=beta)
        if rng.random() < 0.5:
            held_alpha, held_beta = rng.randint(0, alpha), rng.choice([1, beta])
            for nic, side in ((nics[src % 3][0], "send"), (nics[dst % 3][1], "receive")):
                builder.add_hold(link, nic, alpha_us=held_alpha, beta_us_per_mb=held_beta, side=side)  # type: ignore[arg-type]
    topology = builder.build()
    return topology.reversed() if rng.random() < 0.5 else topology


def random_collective(
    rng: random.Random, num_ranks: int, names: Sequence[str], *, most_chunks: int, most_targets: int
) -> Collective:
    """One of the named collectives, or one of random chunks.

    Random chunks have one or two origins, and up to `most_targets` destinations.
    """
    name = rng.choice([*names, "custom"])
    if name != "custom":
        return collectives.make(name, num_ranks, chunks_per_rank=rng.randint(1, 2))
    chunks, most_targets = range(rng.randint(1, most_chunks)), min(most_targets, num_ranks)
    return collectives.custom(
        num_ranks,
        precondition={c: rng.sample(range(num_ranks), rng.randint(1, 2)) for c in chunks},
        postcondition={c: rng.sample(range(num_ranks), rng.randint(1, most_targets)) for c in chunks},
    )


def random_sizes(rng: random.Random, collective: Collective) -> list[int]:
    """Size in bytes of each chunk of a collective."""
    return [rng.choice([MB // 4, MB, 3 * MB]) for _ in collective.chunks]
