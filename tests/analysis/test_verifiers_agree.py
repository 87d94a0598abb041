"""Verifiers of full, compact and implicit schedules agree with one another and with a simulation of data.

Valid schedules of random problems are changed at random; all verifiers must give one verdict.
"""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest

from taccl import collectives, topologies
from taccl.analysis.verification import columns as in_columns
from taccl.analysis.verification import data as replay
from taccl.analysis.verification.verify import verify
from taccl.baselines import baseline
from taccl.errors import CollectiveError, InputError
from taccl.problem.chunks import Chunk
from taccl.problem.collective import Collective
from taccl.problem.making import make_problem
from taccl.problem.problem import Clauses
from taccl.schedule.implicit_schedule import IMPLICIT_COLLECTIVES, Pattern
from taccl.schedule.schedule import Schedule
from taccl.synthesis.proposers.large import schedule_large
from taccl.synthesis.symmetry.implicit import synthesize_implicit
from taccl.topology.builder import TopologyBuilder
from tests.analysis import valid_schedules as valid
from tests.analysis.mutations import COMMON, IMPLICIT, LISTED, mutated
from tests.analysis.tick_simulation import data_arrives, dates_are_kept
from tests.fuzzing import MATTERED, cases

MB = 10**6
#: Kinds of violation that the simulation of data can find.
OF_DATA = {"presence", "postcondition", "double-count", "lost-contribution", "race", "reduce"}

#: Kinds of violation of release and due dates.
OF_DATES = {"release", "due"}


class Send(NamedTuple):
    chunk: int
    link: int
    start: int
    reduce: bool = False


# ---- Random problems.


def random_fabric(rng):
    """Two to five ranks on a ring with chords, some links twice, and shared resources; a link may hold one
    resource several times."""
    num_ranks = rng.choice((2, 3, 3, 4, 5))
    num_nodes = rng.choice((1, 1, 2, num_ranks))
    nodes = [r * num_nodes // num_ranks for r in range(num_ranks)]
    builder = TopologyBuilder("random", nodes, alpha_meaning=rng.choice(("occupies", "pipelined")))
    pairs = [(r, (r + 1) % num_ranks) for r in range(num_ranks)]
    every = [(a, b) for a in range(num_ranks) for b in range(num_ranks) if a != b]
    pairs += rng.sample(every, rng.randint(0, min(len(every), 6)))
    shared = [builder.add_resource(f"shared {i}") for i in range(rng.choice((0, 0, 1, 2)))]
    for src, dst in pairs:
        alpha, beta = rng.choice((0, 1, 2)), rng.choice((1, 1, 2))
        link = builder.add_link(src, dst, alpha_us=alpha, beta_us_per_mb=beta)
        for resource in shared:
            for _ in range(rng.choice((0, 1, 1, 2))):
                held = rng.randint(0, alpha), rng.randint(0, beta)
                if any(held):
                    builder.add_hold(
                        link,
                        resource,
                        alpha_us=held[0],
                        beta_us_per_mb=held[1],
                        side=rng.choice(("send", "receive")),
                    )
    return builder.build()


def random_chunks(rng, num_ranks):
    """Random sums, with any root and some ranks without a contribution, or random copies."""
    combining, everyone, chunks = rng.random() < 0.75, range(num_ranks), []
    for _ in range(rng.choice((1, 1, 2, 3))):
        origins = tuple(sorted(rng.sample(everyone, rng.randint(1, num_ranks))))
        ends = tuple(sorted(rng.sample(everyone, rng.randint(1, num_ranks))))
        roots = (ends[0], ends[0], rng.randrange(num_ranks), None if len(origins) == 1 else ends[-1])
        root = rng.choice(roots) if combining else None
        chunks.append(Chunk(origins, ends, root))
    return Collective("random", num_ranks, tuple(chunks), combining)


def random_collective(rng, num_ranks):
    """A random collective: named, custom, or of one or two process groups."""
    names = ("broadcast", "gather", "allgather", "alltoall", "reduce", "reduce-scatter", "allreduce")
    how = rng.choice(("named", "custom", "custom", "custom", "groups"))
    if how == "custom":
        return random_chunks(rng, num_ranks)
    if how == "named":
        return collectives.make(rng.choice(names), num_ranks, chunks_per_rank=rng.choice((1, 1, 2)))
    parts = []
    for _ in range(rng.choice((1, 2))):
        ranks = rng.sample(range(num_ranks), rng.randint(2, num_ranks))
        parts.append(collectives.make(rng.choice(names), len(ranks)).among(ranks, num_ranks=num_ranks))
    return collectives.together(parts)


def random_clauses(rng, topology):
    """Random clauses, or none, loose enough for some schedules to obey them."""
    links, ranks = range(len(topology.links)), range(topology.num_ranks)

    def guarded():
        return {
            e: frozenset(rng.sample(ranks, rng.randint(1, len(ranks)))) for e in links if rng.random() < 0.2
        }

    def maybe(value, otherwise):
        return value if rng.random() < 0.25 else otherwise

    if rng.random() < 0.3:
        return Clauses()
    return Clauses(
        links_allowed=maybe(frozenset(e for e in links if rng.random() < 0.9), None),
        carries_from=maybe(guarded(), {}),
        carries_to=maybe(guarded(), {}),
        direct_crossing=rng.random() < 0.15,
        own_first=maybe(frozenset(e for e in links if rng.random() < 0.4), frozenset()),
        max_merge=rng.choice((1, 2)),
        merging=frozenset(e for e in links if rng.random() < 0.5),
        relays=maybe(frozenset(r for r in ranks if rng.random() < 0.6), None),
    )


def random_case(rng):
    topology = random_fabric(rng)
    collective = random_collective(rng, topology.num_ranks)
    sizes = [MB] * collective.num_chunks
    if rng.random() < 0.4:
        sizes = [rng.choice((1, 2, 3)) * MB for _ in sizes]
    return make_problem(topology, collective, chunk_bytes=sizes, clauses=Clauses())


def with_dates(rng, problem, latest):
    """The problem with random release dates, due dates, or both, up to about `latest` ticks, some between ticks."""

    def drawn(ends, share):
        return tuple(
            (c, rank, Fraction(rng.randrange(3 * latest + 3), rng.choice((1, 2, 3))) / per_us)
            for c, data in enumerate(problem.collective.chunks)
            for rank in getattr(data, ends)
            if rng.random() < share
        )

    per_us, how = problem.costs.ticks_per_us, rng.choice(("release", "due", "both"))
    return replace(
        problem,
        release_us=() if how == "due" else drawn("origins", 0.2),
        due_us=() if how == "release" else drawn("destinations", 0.4),
    )


# ---- Random schedules, in which sends obey data and resources.


class Clock:
    """Places sends one after another, each as early as its data and resources allow."""

    def __init__(self, problem):
        self.problem, self.sends = problem, []
        self.taken: dict[int, list[tuple[int, int]]] = {}

    def put(self, chunk, link, ready, *, reduce=False):
        """Add a send, and return its end."""
        costs, topology = self.problem.costs, self.problem.topology
        units = int(costs.chunk_units[chunk])
        took, start = costs.duration(link, units), ready
        while True:
            spans = []
            for h, hold in enumerate(topology.holds):
                if hold.link == link:
                    length = int(costs.hold_alpha[h]) + units * int(costs.hold_beta[h])
                    begin = start if hold.side == "send" else start + took - length
                    spans.append((hold.resource, begin, begin + length))
            if not any(
                a < until and since < b for r, a, b in spans for since, until in self.taken.get(r, [])
            ):
                break
            start += 1
        for r, a, b in spans:
            self.taken.setdefault(r, []).append((a, b))
        self.sends.append(Send(chunk, link, start, reduce))
        return start + took


def random_sends(problem, rng):
    """Sends of a schedule that is valid without clauses; for sums, partial sums first."""
    clock, links = Clock(problem), problem.topology.links
    order = [c for c in range(problem.collective.num_chunks)]
    since = {}
    for c in rng.sample(order, len(order)):
        data = problem.collective.chunks[c]
        if not problem.collective.combining:
            since.update({(c, r): 0 for r in data.origins})
            continue
        root = data.root if data.root is not None else rng.choice(data.destinations)
        since[c, root] = gather(clock, c, root, rng)
    pause = max((s.start + 1 for s in clock.sends), default=0) if rng.random() < 0.8 else 0
    for c in rng.sample(order, len(order)):
        missing = [r for r in problem.collective.chunks[c].destinations if (c, r) not in since]
        while missing:
            ways = [
                e for e, ends in enumerate(links) if (c, ends.src) in since and (c, ends.dst) not in since
            ]
            link = rng.choice(ways)
            src, dst = links[link].src, links[link].dst
            since[c, dst] = clock.put(c, link, max(pause, since[c, src]))
            missing = [r for r in missing if r != dst]
    return clock.sends


def gather(clock, chunk, root, rng):
    """Partial sums along a random tree, each sent once its inputs have arrived; returns the time at the root."""
    links, origins = clock.problem.topology.links, clock.problem.collective.chunks[chunk].origins
    way = {root: None}
    while not way.keys() >= set(origins):
        link = rng.choice([e for e, ends in enumerate(links) if ends.dst in way and ends.src not in way])
        way[links[link].src] = link
    ready = dict.fromkeys(origins, 0)
    for src, link in reversed(way.items()):
        if src in ready and link is not None:
            end = clock.put(chunk, link, ready[src], reduce=True)
            ready[links[link].dst] = max(end, ready.get(links[link].dst, 0))
    return ready[root]


def compact_of(problem, sends, num_reducing=None):
    """A compact schedule of the sends, ordered by start, of which the first `num_reducing` reduce (default:
    as in `sends`)."""
    ordered = sorted(sends, key=lambda send: send.start)
    if num_reducing is None:
        num_reducing = sum(send.reduce for send in sends)
    return Schedule(
        problem,
        np.array([send.chunk for send in ordered], np.int32),
        np.array([send.link for send in ordered], np.int32),
        np.array([send.start for send in ordered], np.int64),
        reduce=num_reducing,
    )


def add_idle(rng, sends, problem):
    """Let an idle rank, which contributes and receives nothing, send a reduction.

    A verifier of reversed sums would miss it.
    """
    links, latest = problem.topology.links, max(0, 0, *(send.start for send in sends if send.reduce))
    reached = {(send.chunk, links[send.link % len(links)].dst) for send in sends}
    ways = [
        (c, e)
        for c, chunk in enumerate(problem.collective.chunks)
        for e, ends in enumerate(links)
        if ends.src not in chunk.origins and (c, ends.src) not in reached
    ]
    if ways:
        sends.append(Send(*rng.choice(ways), rng.randrange(latest + 1), problem.collective.combining))


def assert_agreed(compact, *, told=""):
    """Assert that verification with and without end times, and the simulation of data, give one verdict;
    returns the kinds of violation."""
    short = verify(compact)
    if "index" in {v.kind for v in short.violations}:
        with pytest.raises(InputError, match="there are 0-"):
            _ = compact.end
        return {"index"}
    whole = valid.full(compact)
    full = verify(whole)
    kinds = {v.kind for v in full.violations}
    said = f"{told}\n{full}\n{short}\n{whole.problem.clauses}\n"
    told_of_columns = {v.kind for v in short.violations}
    # After a race the remaining value depends on the order of equal starts, and so do later violations.
    has_race = "race" in told_of_columns & kinds
    assert told_of_columns == kinds or has_race, said
    assert full.finish_us == short.finish_us, said
    assert full.num_redundant == short.num_redundant or has_race, said
    assert data_arrives(whole) == kinds.isdisjoint(OF_DATA), f"{said}{whole.table()}"
    assert dates_are_kept(whole) == kinds.isdisjoint(OF_DATES), f"{said}{whole.table()}"
    return kinds


@pytest.mark.fuzz
def test_compact_and_full_verifier_agree_on_mutants(monkeypatch):
    """Compact and full verifier agree on schedules with up to three random changes, in any block size."""
    found = Counter()
    for seed in cases("mutants of compact schedules", few=300, many=50_000):
        rng = random.Random(seed // 10)
        problem = random_case(rng)
        sends = random_sends(problem, rng)
        rng = random.Random(f"{seed} changed")
        monkeypatch.setattr(in_columns, "BLOCK", rng.choice((1, 3, 1 << 18)))
        monkeypatch.setattr(replay, "BLOCK", in_columns.BLOCK)
        monkeypatch.setattr(replay, "_PASS", rng.choice((1, 5, 1 << 20)))
        monkeypatch.setattr(in_columns, "MANY", rng.choice((0, 1 << 15)))  # compiled, or as Python
        by_sorts = random.Random(f"{seed} forms").random() < 0.5
        monkeypatch.setattr(in_columns, "SOME", 0 if by_sorts else 1 << 15)
        problem = replace(problem, clauses=random_clauses(rng, problem.topology))
        dates = random.Random(f"{seed} dates")
        if dates.random() < 0.2:
            problem = with_dates(dates, problem, max((send.start for send in sends), default=0))
        if sends and rng.random() < 0.15:
            add_idle(rng, sends, problem)
        else:
            sends = mutated(rng, sends, problem, COMMON, (0, 0, 1, 1, 2, 3))
        count = sum(send.reduce for send in sends) + (rng.choice((-1, 1)) if rng.random() < 0.1 else 0)
        kinds = assert_agreed(compact_of(problem, sends, max(0, count)), told=seed)
        MATTERED["mutants of compact schedules"] += not kinds.isdisjoint(OF_DATES)
        found.update(kinds or {""})
    kinds = set(found) - {"index", "interval", "reduce"}
    assert kinds >= {"", *OF_DATA, "contention", "link-not-allowed", *OF_DATES} - {"reduce"}, found


# ---- Schedules of every kind.


@cache
def produced():
    """Schedules made by hand, by the compiled list scheduler, and by baselines."""
    examples = [example() for example in valid.SMALL]
    for topology in (topologies.ring(4), topologies.torus(2, 3), topologies.mesh(2, 2)):
        for name in ("broadcast", "allgather", "alltoall", "reduce", "reduce-scatter", "allreduce"):
            problem = make_problem(topology, collectives.make(name, topology.num_ranks), chunk_bytes=MB)
            examples.append(schedule_large(problem, num_runs=1))
            for algorithm in ("ring", "tree", "recursive", "pairwise"):
                with suppress(CollectiveError):
                    examples.append(baseline(algorithm, problem, cut=False))
    return tuple(examples)


@pytest.mark.fuzz
def test_verifiers_agree_on_mutants_of_schedules():
    """Verifiers agree on randomly changed schedules that have a compact form.

    For schedules without one, the full verifier agrees with the simulation of data.
    """
    compared = Counter()
    for seed in cases("mutants of schedules", few=100, many=12_000):
        rng = random.Random(seed)
        start = rng.choice(produced())
        rows = mutated(rng, valid.rows_of(start), start.problem, LISTED, (0, 1, 1, 1, 2, 3))
        changed = valid.build(start.problem, rows)
        full = verify(changed)
        kinds = {v.kind for v in full.violations}
        compact = valid.without_ends(changed)
        if compact is not None:
            compared.update(assert_agreed(compact, told=seed) or {""})
            assert verify(compact).ok == full.ok, seed
        elif kinds.isdisjoint({"index", "interval"}):
            assert data_arrives(changed) == kinds.isdisjoint(OF_DATA), f"{seed}\n{full}\n{changed.table()}"
    assert set(compared) >= {"", "presence", "contention", "double-count"}, compared


@pytest.mark.fuzz
def test_sums_of_many_contributions_agree(monkeypatch):
    """Verifiers agree on sums of 60 to 125 contributions, whose sets take one or two 64-bit words in the
    compact verifier."""
    found = Counter()
    for seed in cases("mutants of wide sums", few=12, many=400):
        rng = random.Random(seed)
        monkeypatch.setattr(in_columns, "MANY", rng.choice((0, 1 << 15)))
        num_ranks = rng.choice((62, 63, 64, 100, 125))
        ends = tuple(sorted(rng.sample(range(num_ranks), 3)))
        origins = tuple(sorted(rng.sample(range(num_ranks), rng.randint(60, num_ranks))))
        collective = Collective("wide", num_ranks, (Chunk(origins, ends, ends[0]),), True)
        problem = make_problem(topologies.ring(num_ranks), collective, chunk_bytes=1000, clauses=Clauses())
        sends = random_sends(problem, rng)
        sends = mutated(rng, sends, problem, COMMON, (0, 1, 2))
        found.update(assert_agreed(compact_of(problem, sends), told=seed) or {""})
    assert len(found) > 1, found


# ---- Cases that fuzzing or deliberate attacks found.


def test_a_rank_that_contributes_nothing_has_nothing_to_send():
    """Rank 1 contributes to rank 0; rank 2, which contributes nothing, sends as well, over its own link.

    In reversed time rank 0 would send the chunk to both, and rank 2 would be a harmless leaf.
    """
    sum_of_one = collectives.custom(3, precondition={0: [1]}, postcondition={0: [0]}, combining=True)
    problem = make_problem(topologies.ring(3), sum_of_one, chunk_bytes=1000)
    into_root = [
        next(e for e, ends in enumerate(problem.topology.links) if ends.src == r and ends.dst == 0)
        for r in (1, 2)
    ]
    sound = compact_of(problem, [Send(0, into_root[0], 0, True)])
    assert not assert_agreed(sound)
    both = compact_of(problem, [Send(0, link, 0, True) for link in into_root])
    assert assert_agreed(both) == {"presence"}
    (fault,) = verify(both).violations
    assert "rank 2 does not hold the chunk when the send starts" in fault.message


def test_a_sum_may_spread_while_another_is_gathered():
    """Chunk 0 is complete at rank 0 at 2 us and copied to rank 1 at once, while chunk 1 is still being
    reduced.

    Sends take 1 + 1 us. Chunk 1 goes to rank 1 over the second link between them, from 1 us to 3.
    """
    builder = TopologyBuilder("pair", [0, 0])
    over, back, beside = (
        builder.add_link(a, b, alpha_us=1, beta_us_per_mb=1) for a, b in ((0, 1), (1, 0), (0, 1))
    )
    chunks = (Chunk((0, 1), (0, 1), 0), Chunk((0, 1), (1,), 1))
    problem = make_problem(builder.build(), Collective("two sums", 2, chunks, True), chunk_bytes=MB)
    sends = [Send(0, back, 0, True), Send(1, beside, 1, True), Send(0, over, 2)]
    assert not assert_agreed(compact_of(problem, sends))


def test_ranks_may_exchange_their_contributions():
    """Both ranks add the other's contribution at 2 us: an allreduce without a copy from a root."""
    builder = TopologyBuilder("pair", [0, 0])
    links = [builder.add_link(a, b, alpha_us=1, beta_us_per_mb=1) for a, b in ((0, 1), (1, 0))]
    problem = make_problem(
        builder.build(), Collective("x", 2, (Chunk((0, 1), (0, 1), 0),), True), chunk_bytes=MB
    )
    assert not assert_agreed(compact_of(problem, [Send(0, link, 0, True) for link in links]))


@pytest.mark.parametrize(("start", "verdict"), [(0, ["contention"]), (1, []), (2, ["contention"]), (3, [])])
def test_a_link_may_hold_a_resource_by_several_rows(start, verdict):
    """A link may have several holds of one resource: a send of 3 us holds a NIC for its first and its last 1
    us.

    Another send holds the NIC for its first microsecond; if it starts at 1 us, it fits between. A third,
    redundant hold of the last 1 us changes nothing.
    """
    builder = TopologyBuilder("NIC", [0, 0, 0])
    nic = builder.add_resource("NIC")
    long, short = (builder.add_link(0, dst, alpha_us=2, beta_us_per_mb=1) for dst in (1, 2))
    for side in ("send", "receive", "receive"):
        builder.add_hold(long, nic, alpha_us=0, beta_us_per_mb=1, side=side)
    builder.add_hold(short, nic, alpha_us=1, beta_us_per_mb=0)
    collective = Collective("two copies", 3, (Chunk((0,), (1,)), Chunk((0,), (2,))))
    problem = make_problem(builder.build(), collective, chunk_bytes=MB)
    assert assert_agreed(compact_of(problem, [Send(0, long, 0), Send(1, short, start)])) == set(verdict)


def test_an_implicit_sum_may_spread_while_another_is_gathered():
    """An implicit schedule may copy a complete sum while another one is still being reduced.

    On a ring of two, where a send takes L ticks, the first sum of each rank is complete at L and then copied.
    The second one is complete only at 3 L.
    """
    schedule = synthesize_implicit("ring:2", "allreduce", chunks_per_rank=2).schedule
    took = int(schedule.ticks.latency[0])
    rows = [(0, 1, 0, 0, True), (0, 0, 1, took, False), (1, 1, 0, 2 * took, True), (1, 0, 1, 3 * took, False)]
    item, src, dst, start, reduce = zip(*rows, strict=True)
    pattern = Pattern.sorted(item, src, dst, [0] * 4, start, reduce)
    assert not assert_implicit_agrees(replace(schedule, pattern=pattern))


# ---- Implicit schedules and their expansions.

FABRICS = ("ring:4", "torus:3x3", "star:4", "mesh:2x3", "hypercube:2", "fully-connected:3")


def mutated_pattern(schedule, rng):
    """The pattern with up to three random changes of its rows, which keep their place."""
    rows = [Pattern(*row) for row in zip(*(column.tolist() for column in schedule.pattern), strict=True)]
    rows = mutated(rng, rows, schedule, IMPLICIT)
    columns = {
        name: np.array([getattr(row, name) for row in rows], column.dtype)
        for name, column in schedule.pattern._asdict().items()
    }
    return replace(schedule, pattern=Pattern(**columns))


def assert_implicit_agrees(schedule, *, told=""):
    """Assert that an implicit schedule is valid exactly if its expansion is, and that violations agree;
    returns the kinds of violation."""
    short = verify(schedule)
    kinds = {v.kind for v in short.violations}
    if kinds & {"index", "symmetry"}:  # rows that mean nothing, and cannot be written out
        return {"index"}
    whole = schedule.expand()
    full = verify(whole)
    said = f"{told}\n{full}\n{short}\n{whole.table()}"
    assert kinds <= {v.kind for v in full.violations}, said
    assert full.ok == short.ok, said
    assert (full.finish_us, full.num_transfers) == (short.finish_us, short.num_transfers), said
    assert not full.ok or full.num_redundant == short.num_redundant, said
    return kinds


@pytest.mark.fuzz
def test_implicit_and_full_verifier_agree_on_mutants():
    """Implicit and full verifier agree on every pattern with up to three random changes."""
    found = Counter()
    made = {}
    for seed in cases("mutants of implicit schedules", few=150, many=10_000):
        rng = random.Random(seed)
        key = rng.choice(FABRICS), rng.choice(IMPLICIT_COLLECTIVES), rng.choice((1, 1, 2))
        if key not in made:
            made[key] = synthesize_implicit(key[0], key[1], chunks_per_rank=key[2]).schedule
        found.update(assert_implicit_agrees(mutated_pattern(made[key], rng), told=seed) or {""})
    assert set(found) >= {"", "contention", "presence", "postcondition", "double-count"}, found
