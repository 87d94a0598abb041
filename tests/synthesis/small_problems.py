"""Tiny problems, named and random, whose optimum `brute_force` finds."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from taccl import collectives
from taccl.errors import InputError
from taccl.problem.chunks import Chunk, Derivation, ProcessGroup
from taccl.problem.collective import Collective
from taccl.problem.making import make_problem
from taccl.problem.problem import Clauses
from taccl.sketch.reachability import check_possible, check_reachable
from taccl.topology.builder import TopologyBuilder

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from taccl.problem.problem import Problem
    from taccl.topology.links import AlphaMeaning, Side
    from taccl.topology.topology import Topology

MB = 10**6
#: Routing slack that allows every path, so that the optimum is that of the problem itself.
ANY_WAY = 1000


def problem_of(
    topology: Topology, collective: Collective, *, chunk_bytes: int | Sequence[int] = MB, **clauses: object
) -> Problem:
    """A problem whose routing slack allows every path, and whose sends merge only if the clauses say so."""
    return make_problem(
        topology,
        collective,
        chunk_bytes=chunk_bytes,
        clauses=Clauses(**{"routing_slack": ANY_WAY, **clauses}),  # type: ignore[arg-type]
    )


def linked(
    name: str,
    node_of_rank: Sequence[int],
    links: Iterable[tuple],
    *,
    alpha_us: object = None,
    beta_us_per_mb: object = None,
    **options: object,
) -> Topology:
    """A topology of links that share no resources.

    Each of `links` is (source, destination) at the common cost, or (source, destination, alpha in us, beta in
    us/MB).
    """
    builder = TopologyBuilder(name, node_of_rank, **options)
    for src, dst, *cost in links:
        alpha, beta = cost or (alpha_us, beta_us_per_mb)
        builder.add_link(src, dst, alpha_us=alpha, beta_us_per_mb=beta)
    return builder.build()


def ring(
    num_ranks: int, *, betas: Sequence[int] = (0,), alpha: int = 1, meaning: str = "occupies"
) -> Topology:
    """A ring with links both ways; link i takes ``alpha + 1 + betas[i mod len(betas)]`` us for 1 MB."""
    builder = TopologyBuilder(f"ring of {num_ranks}", [0] * num_ranks, alpha_meaning=meaning)  # type: ignore[arg-type]
    pairs = [(i, (i + d) % num_ranks) for i in range(num_ranks) for d in (1, -1)]
    for i, (src, dst) in enumerate(dict.fromkeys(pairs)):
        builder.add_link(src, dst % num_ranks, alpha_us=alpha, beta_us_per_mb=1 + betas[i % len(betas)])
    return builder.build()


def star(num_leaves: int) -> Topology:
    """Rank 0 linked both ways to every leaf r, in r us."""
    builder = TopologyBuilder(f"star of {num_leaves}", [0] * (num_leaves + 1))
    for leaf in range(1, num_leaves + 1):
        builder.add_link(0, leaf, alpha_us=0, beta_us_per_mb=leaf)
        builder.add_link(leaf, 0, alpha_us=0, beta_us_per_mb=leaf)
    return builder.build()


def full(num_ranks: int, *, port: bool = False) -> Topology:
    """A link of 1 us for every ordered pair; with `port`, a rank sends to one other at a time."""
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
    """Two nodes of two ranks, 1 us inside; 0 -> 2 and 1 -> 3 take 2 + 1 us and share a NIC for 1 + 1.

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
    """Rank 1's chunk is at rank 0 early, but rank 0 may send it to rank 2 only after its own chunk."""
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
    """Two nodes whose links between them share one ingress, held at the end of a send.

    0 -> 2 takes 4 us and holds the ingress for the last 2 us; 1 -> 3 takes 2 us and holds it for the last 1 us.
    """
    builder = TopologyBuilder("late hold", [0, 0, 1, 1])
    ingress = builder.add_resource("ingress")
    for src, dst, beta, held in ((0, 2, 4, 2), (1, 3, 2, 1), (0, 3, 3, 3), (2, 3, 2, 0)):
        link = builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=beta)
        if held:
            builder.add_hold(link, ingress, alpha_us=0, beta_us_per_mb=held, side="receive")
    return builder.build()


def two_levels(
    per_node: int, *, local: int, nic: int, num_nodes: int = 2, alpha: int = 0, meaning: str = "occupies"
) -> Topology:
    """Fully connected nodes; each rank has a port each way, and each node a NIC each way.

    `local` and `nic` are microseconds for 1 MB through a port and a NIC.
    """
    num_ranks = per_node * num_nodes
    node = [r // per_node for r in range(num_ranks)]
    builder = TopologyBuilder("two levels", node, alpha_meaning=meaning)  # type: ignore[arg-type]
    ports = [[builder.add_resource(f"{way} {r}") for r in range(num_ranks)] for way in ("out", "in")]
    nics = [[builder.add_resource(f"NIC {way} {i}") for i in range(num_nodes)] for way in ("out", "in")]
    for a in range(num_ranks):
        for b in set(range(num_ranks)) - {a}:
            near = node[a] == node[b]
            beta = local if near else nic
            link = builder.add_link(a, b, alpha_us=0 if near else alpha, beta_us_per_mb=beta)
            out, into = (ports[0][a], ports[1][b]) if near else (nics[0][node[a]], nics[1][node[b]])
            builder.add_hold(link, out, alpha_us=0, beta_us_per_mb=beta)
            builder.add_hold(link, into, alpha_us=0, beta_us_per_mb=beta, side="receive")
    return builder.build()


def joined(
    nodes: list[int], *, alpha: int = 1, beta: int = 1, far: int = 3, shared: bool = False
) -> Topology:
    """All pairs of ranks linked through a port each way, which each send also holds for its latency.

    Between nodes a send takes longer, and may hold only a NIC of the node.
    """
    builder = TopologyBuilder("joined", nodes, alpha_meaning="pipelined")
    num = len(nodes)
    ports = [[builder.add_resource(f"{way} {r}") for r in range(num)] for way in ("out", "in")]
    nics = [[builder.add_resource(f"NIC {way} {n}") for n in sorted(set(nodes))] for way in ("out", "in")]
    for a in range(num):
        for b in set(range(num)) - {a}:
            is_far = nodes[a] != nodes[b]
            latency = far if is_far else alpha
            link = builder.add_link(a, b, alpha_us=latency, beta_us_per_mb=beta)
            out, into = (
                (nics[0][nodes[a]], nics[1][nodes[b]]) if is_far and shared else (ports[0][a], ports[1][b])
            )
            held = 0 if is_far else latency
            builder.add_hold(link, out, alpha_us=held, beta_us_per_mb=beta)
            builder.add_hold(link, into, alpha_us=held, beta_us_per_mb=beta, side="receive")
    return builder.build()


def merged(topology: Topology, name: str, most: int) -> Problem:
    """A problem in which sends of at most `most` chunks may merge on every link."""
    collective = collectives.make(name, topology.num_ranks)
    return problem_of(topology, collective, max_merge=most, merging=frozenset(range(len(topology.links))))


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
    """A random problem of 2 to 4 ranks and at most 4 chunks."""
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


def with_updates(problem: Problem, us_per_mb: int) -> Problem:
    """The problem of sums, each of which its root updates before it is sent on."""
    return replace(problem, collective=replace(problem.collective, update_us_per_mb=us_per_mb))


def random_group_problem(seed: int) -> Problem:
    """A random problem of 2 to 4 ranks that combines process groups, relays, scans, sums and clauses.

    Some links are parallel or multicast, and some topologies have symmetries.
    """
    rng = random.Random(f"groups {seed}")
    while True:
        topology = _random_topology(rng)
        collective = _random_groups(rng, topology.num_ranks)
        sizes = [rng.choice((1, 1, 2)) * MB for _ in collective.chunks] if rng.random() < 0.35 else MB
        problem = problem_of(
            topology, collective, chunk_bytes=sizes, **_random_clauses(rng, topology, collective)
        )
        try:
            check_reachable(problem)
        except InputError:
            continue
        return problem


def random_hold_problem(seed: int) -> Problem:
    """A random problem of 2 to 4 ranks whose sends hold shared resources in unlike ways.

    Each hold has costs and a side of its own, at most those of its link. Links may be parallel, without alpha,
    or busy for a part of it. Collectives are named, or have random origins and destinations.
    """
    rng = random.Random(f"holds {seed}")
    while True:
        num_ranks = rng.choice((2, 3, 3, 3, 4))
        topology = _random_holds(rng, num_ranks)
        everyone, combining = range(num_ranks), rng.random() < 0.5
        name = rng.choice(("allgather", "allreduce", "allreduce", "reduce-scatter", "alltoall", "gather"))
        collective = collectives.make(name, num_ranks)
        if rng.random() < 0.5:
            ways = []
            for _ in range(rng.choice((1, 2, 3))):
                count = rng.randint(1, num_ranks) if combining else rng.choice((1, 1, 2))
                ends = rng.sample(everyone, rng.randint(1, num_ranks))
                ways.append((sorted(rng.sample(everyone, count)), sorted(ends)))
            collective = custom(num_ranks, ways, combining=combining)
        clauses = _random_clauses(rng, topology, collective) if rng.random() < 0.3 else {}
        sizes = [rng.choice((1, 2)) * MB for _ in collective.chunks] if rng.random() < 0.2 else MB
        try:
            problem = problem_of(topology, collective, chunk_bytes=sizes, **clauses)
            check_possible(problem)
        except InputError:
            continue
        if not collective.is_met:
            return problem


def _random_holds(rng: random.Random, num_ranks: int) -> Topology:
    nodes = rng.choice(([0] * num_ranks, [int(2 * r >= num_ranks) for r in range(num_ranks)]))
    meaning: AlphaMeaning = rng.choice(("occupies", "pipelined"))
    builder = TopologyBuilder("random holds", nodes, alpha_meaning=meaning)
    others = [(a, b) for a in range(num_ranks) for b in range(num_ranks) if a != b]
    pairs = [(r, (r + 1) % num_ranks) for r in range(num_ranks)] + rng.choices(others, k=rng.randrange(5))
    shared = [builder.add_resource(f"shared {i}") for i in range(rng.choice((0, 1, 1, 2, 3)))]
    alphas, betas = rng.choice(((0, 1, 2, 3), (0, 0, 1), (2, 3), (4,))), rng.choice(((1,), (1, 2), (1, 2, 3)))
    for i, (src, dst) in enumerate(others if rng.random() < 0.25 else pairs):
        alpha, beta = rng.choice(alphas), rng.choice(betas)
        overhead = rng.choice((None, 0, rng.randint(0, alpha)))
        link = builder.add_link(
            src, dst, alpha_us=alpha, beta_us_per_mb=beta, overhead_us=overhead, name=f"{i}"
        )
        for resource in shared if rng.random() < 0.8 else ():
            part = rng.randint(0, alpha), rng.randint(0, beta)
            held = rng.choice(((alpha, beta), (0, beta), part))
            side: Side = rng.choice(("send", "receive"))
            if any(held):
                builder.add_hold(link, resource, alpha_us=held[0], beta_us_per_mb=held[1], side=side)
    return builder.build()


def random_sum_problem(seed: int) -> Problem:
    """One or two sums of 2 to 4 ranks with random roots, under clauses on where sums may go."""
    rng = random.Random(f"sums {seed}")
    topology = _random_topology(rng)
    everyone = tuple(range(topology.num_ranks))
    chunks = []
    for _ in range(rng.choice((1, 1, 2))):
        origins, ends = (tuple(sorted(rng.sample(everyone, rng.randint(1, len(everyone))))) for _ in range(2))
        kind = rng.choice(("all", "all", "one", "any", "any"))
        origins, ends = (everyone, everyone) if kind == "all" else (origins, ends)
        ends = ends[:1] if kind == "one" else ends
        chunks.append(Chunk(origins, ends, rng.choice(everyone if rng.random() < 0.5 else ends)))
    collective = Collective("sums", topology.num_ranks, tuple(chunks), combining=True)
    clauses = _random_clauses(rng, topology, collective) | {"direct_crossing": rng.random() < 0.4}
    sizes = [rng.choice((1, 1, 2)) * MB for _ in chunks] if rng.random() < 0.35 else MB
    return problem_of(topology, collective, chunk_bytes=sizes, **clauses)


def random_derived_problem(seed: int) -> Problem:
    """Up to three chunks, some of which ranks derive from others; destinations and origins are random."""
    for attempt in range(100):
        rng = random.Random(f"derived {seed} {attempt}")
        topology = _random_topology(rng)
        everyone = range(topology.num_ranks)
        chunks, made = [], []
        for c in range(rng.choice((2, 2, 3))):
            ends = tuple(sorted(rng.sample(everyone, rng.randint(0, 2))))
            if c and rng.random() < 0.7:
                made.append(Derivation(rng.randrange(c), rng.choice(everyone), c))
                chunks.append(Chunk((), ends))
            else:
                chunks.append(Chunk(tuple(sorted(rng.sample(everyone, rng.choice((1, 1, 2))))), ends))
        collective = Collective(
            "derived", topology.num_ranks, tuple(chunks), combining=bool(made), derivations=tuple(made)
        )
        problem = problem_of(topology, collective)
        try:
            check_reachable(problem)
        except InputError:
            continue
        if made and not collective.is_met:
            return problem
    raise AssertionError("no such problem")


def _random_topology(rng: random.Random) -> Topology:
    num_ranks = rng.choice((2, 3, 3, 3, 3, 4))
    halves = [int(2 * r >= num_ranks) for r in range(num_ranks)]
    builder = TopologyBuilder(
        "random",
        rng.choice(([0] * num_ranks, halves, list(range(num_ranks)))),
        alpha_meaning=rng.choice(("occupies", "occupies", "pipelined")),
    )
    ends: list[tuple[int, tuple[int, ...], tuple[int, int]]]  # an offset or a number, ranks, costs
    if rng.random() < 0.4:  # every rank looks the same
        steps = {1, *rng.sample(range(1, num_ranks), rng.randrange(num_ranks))}
        costs = {step: (rng.choice((0, 0, 1)), rng.choice((1, 1, 2, 5))) for step in sorted(steps)}
        ends = [(step, (r, (r + step) % num_ranks), costs[step]) for step in costs for r in range(num_ranks)]
    else:
        pairs = [(r, (r + 1) % num_ranks) for r in range(num_ranks)]
        others = [(a, b) for a in range(num_ranks) for b in range(num_ranks) if a != b]
        pairs += rng.sample(others, rng.randrange(min(len(others), 4)))
        ends = [
            (i, pair, (rng.choice((0, 0, 1, 2)), rng.choice((1, 1, 2, 5)))) for i, pair in enumerate(pairs)
        ]
    shared = [
        (builder.add_resource(f"bus {i}"), rng.choice(("send", "receive")))
        for i in range(rng.choice((0, 1, 1, 2)))
    ]
    sharing = {step: [hold for hold in shared if rng.random() < 0.5] for step, _, _ in ends}
    ports = [builder.add_resource(f"port {r}") for r in range(num_ranks)] if rng.random() < 0.25 else []
    for step, (src, dst), (alpha, beta) in ends:
        link = builder.add_link(src, dst, alpha_us=alpha, beta_us_per_mb=beta)
        held = rng.choice(((alpha, beta), (0, beta), (0, 1)))
        for resource, side in sharing[step]:
            builder.add_hold(link, resource, alpha_us=held[0], beta_us_per_mb=held[1], side=side)  # type: ignore[arg-type]
        if ports:
            builder.add_hold(link, ports[src], alpha_us=0, beta_us_per_mb=1)
    if num_ranks > 2 and rng.random() < 0.15:
        some = rng.sample(range(num_ranks), num_ranks)
        one, many = tuple(some[:1]), tuple(some[1 : rng.randint(3, num_ranks)])
        many_to_one = rng.random() < 0.3
        builder.add_link(
            many if many_to_one else one, one if many_to_one else many, alpha_us=0, beta_us_per_mb=1
        )
    return builder.build()


def _random_groups(rng: random.Random, num_ranks: int) -> Collective:
    """Up to three groups that copy, sum or scan; some have a chunk equal to another group's."""
    kind = rng.choice(("copies", "copies", "sums", "sums", "scans"))
    groups: list[Collective] = []
    known: list[Chunk] = []
    for _ in range(rng.choice((1, 2, 2) if kind == "sums" else (1, 2, 2, 3))):
        members = rng.sample(range(num_ranks), rng.randint(min(2 + (kind == "scans"), num_ranks), num_ranks))
        if kind == "scans":
            groups.append(collectives.scan(len(members)).among(members, num_ranks=num_ranks))
            continue
        chunks: list[Chunk] = []
        for _ in range(rng.choice((1, 1, 2))):
            fits = [c for c in known if {*c.origins, *c.destinations}.issubset(members)]
            if fits and rng.random() < 0.7:
                chunks.append(rng.choice(fits))
                continue
            count = rng.randint(1, len(members)) if kind == "sums" else rng.choice((1, 1, 1, 2))
            origins = tuple(sorted(rng.sample(members, count)))
            ends = tuple(sorted(rng.sample(members, rng.randint(1, len(members)))))
            if kind == "copies":
                chunks.append(Chunk(origins, ends))
            elif rng.random() < 0.3:
                everyone = tuple(sorted(members))
                chunks.append(Chunk(everyone, everyone, rng.choice(members)))
            else:
                ends = ends[:1] if rng.random() < 0.5 else ends
                chunks.append(Chunk(origins, ends, rng.choice(ends)))
        known += chunks
        group = ProcessGroup("group", tuple(members), len(chunks))
        groups.append(Collective("group", num_ranks, tuple(chunks), kind == "sums", groups=(group,)))
    return collectives.together(groups)


def _random_clauses(rng: random.Random, topology: Topology, collective: Collective) -> dict[str, object]:
    num_ranks, links = topology.num_ranks, range(len(topology.links))

    def some(share: float) -> frozenset[int]:
        return frozenset(e for e in links if rng.random() < share)

    def carried() -> dict[int, frozenset[int]]:
        chosen = some(0.3) if rng.random() < 0.2 else ()
        return {e: frozenset(rng.sample(range(num_ranks), rng.randint(1, num_ranks))) for e in chosen}

    sums = collective.combining and not collective.derivations
    relays = frozenset(r for r in range(num_ranks) if rng.random() < 0.25)
    return {
        "relays": relays if rng.random() < 0.6 else None,
        "carries_from": carried(),
        "carries_to": carried() if sums else {},
        "direct_crossing": rng.random() < 0.15,
        "links_allowed": some(0.8) if rng.random() < 0.15 else None,
        "merging": some(0.5),
        "max_merge": rng.choice((1, 1, 2, 3)),
        "own_first": some(0.2) if not sums and rng.random() < 0.2 else frozenset(),
    }
