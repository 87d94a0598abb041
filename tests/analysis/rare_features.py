"""Random small problems with features that other generators draw rarely, and signs that a feature mattered."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from itertools import permutations
from typing import TYPE_CHECKING

from taccl import collectives
from taccl.analysis.certificates.transformed import merging_freely
from taccl.analysis.verification.verify import verify
from taccl.errors import InputError
from taccl.problem.making import make_problem
from taccl.problem.problem import Clauses
from taccl.schedule.listing import released
from taccl.sketch.reachability import check_possible
from taccl.topology.builder import TopologyBuilder
from taccl.topology.in_network import InNetwork, shared_links
from taccl.topology.parts import LinkCost, add_aggregation
from tests.synthesis.small_problems import ANY_WAY, MB, custom, random_hold_problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taccl.problem.collective import Collective
    from taccl.problem.problem import Problem
    from taccl.schedule.schedule import Schedule
    from taccl.topology.topology import Topology


def dated(seed: int) -> Problem:
    """A random problem with unlike holds, in which half of the data has a release date."""
    rng = random.Random(f"dates {seed}")
    problem = random_hold_problem(seed)
    release = tuple(
        (chunk, rank, Fraction(rng.randint(1, 12), rng.choice((1, 2))))
        for chunk, data in enumerate(problem.collective.chunks)
        for rank in data.origins
        if rng.random() < 0.5
    )
    return replace(problem, release_us=release)


def with_due_dates(seed: int, schedule: Schedule) -> Problem:
    """The schedule's problem with one or two due dates, each within 2 us of the schedule's arrival there.

    If one of ten random choices allows it, the schedule's sends can be ordered to meet the dates.
    """
    rng, problem = random.Random(f"due {seed}"), schedule.problem
    per_us, links = problem.costs.ticks_per_us, problem.topology.links
    arrived = {
        (t.chunk, rank): t.end_ticks
        for t in sorted(schedule, key=lambda t: t.end_ticks)
        for rank in links[t.link].dsts
        if rank in problem.collective.chunks[t.chunk].destinations
    }
    for _ in range(10):
        due = {
            place: max(Fraction(0), Fraction(arrived[place], per_us) - rng.choice((0, 1, 1, 2)))
            for place in rng.sample(sorted(arrived), min(len(arrived), rng.choice((1, 1, 2))))
        }
        dated = replace(problem, due_us=tuple((*place, us) for place, us in due.items()))
        with suppress(ValueError):  # exchanged sums deadlock unless contributions are named
            found = released(dated, schedule)
            if verify(found).ok and due_dates_matter(found):
                break
    return dated


def due_dates_matter(schedule: Schedule) -> bool:
    """True if the same sends, most urgent first, miss a due date if they do not respect due dates."""
    problem = schedule.problem
    free = released(replace(problem, due_us=()), schedule)
    ticks = {place[:2]: place[2] * problem.costs.ticks_per_us for place in problem.due_us}
    return any(
        t.end_ticks > ticks.get((t.chunk, rank), t.end_ticks)
        for t in free
        for rank in problem.topology.links[t.link].dsts
    )


def switched(seed: int) -> Problem:
    """A random collective of three or four ranks behind a switch that adds and multicasts.

    The links of a rank may hold its ports for a part of the time only, and a pool of slots may be scarce.
    """
    rng = random.Random(f"switch {seed}")
    num_ranks = rng.choice((3, 3, 4))
    builder = TopologyBuilder("switch", [0] * num_ranks, alpha_meaning=rng.choice(("occupies", "pipelined")))
    ports = [{r: builder.add_resource(f"{way} {r}") for r in range(num_ranks)} for way in ("out", "in")]
    alpha, beta = Fraction(rng.choice((0, 1, 2))), Fraction(rng.choice((1, 2)))
    for src, dst in permutations(range(num_ranks), 2):
        if rng.random() < 0.2:
            continue
        link = builder.add_link(src, dst, alpha_us=alpha, beta_us_per_mb=beta)
        held = rng.choice((alpha, 0)), beta
        for side, port in (("send", ports[0][src]), ("receive", ports[1][dst])):
            builder.add_hold(link, port, alpha_us=held[0], beta_us_per_mb=held[1], side=side)  # type: ignore[arg-type]
    slots = {"slots": 1, "payload_bytes": MB, "rtt_us": rng.choice((2, 4))} if rng.random() < 0.4 else {}
    reduces = InNetwork(**slots, efficiency=rng.choice((1, 1, Fraction(1, 2))))  # type: ignore[arg-type]
    add_aggregation(builder, *ports, LinkCost(alpha, beta), reduces=reduces, name="switch")
    builder.add_switch("switch", range(num_ranks), range(len(builder.links)), reduces=reduces)
    name = rng.choice(("allreduce", "allreduce", "reduce", "reduce-scatter", "allgather", "broadcast"))
    collective = rng.choice((collectives.make(name, num_ranks), _random_sums(rng, num_ranks)))
    return _problem(builder.build(), collective, rng)


def switches_matter(schedule: Schedule) -> bool:
    """True if a switch adds or multicasts in the schedule."""
    return not set(schedule.link.tolist()).isdisjoint(shared_links(schedule.problem.topology))


def exchanging(seed: int) -> Problem:
    """A sum of all ranks on two or three nodes of two ranks; each rank has ports and a NIC, in and out."""
    rng = random.Random(f"nodes {seed}")
    num_ranks, rails = rng.choice((4, 4, 6)), rng.random() < 0.5
    near = rng.choice((1, 2)), rng.choice((0, Fraction(1, 2))), rng.choice((1, 2, 4))
    far = rng.choice((3, 4, 6)), rng.choice((0, Fraction(1, 2))), rng.choice((1, 2, 4, 8))
    builder = TopologyBuilder("nodes", [rank // 2 for rank in range(num_ranks)])
    held = {
        (side, rank, is_far): builder.add_resource(f"{side} {rank} {is_far}")
        for side in ("send", "receive")
        for rank in range(num_ranks)
        for is_far in (False, True)
    }
    for src, dst in permutations(range(num_ranks), 2):
        is_far = src // 2 != dst // 2
        if is_far and rails and (src - dst) % 2:
            continue
        alpha, overhead, beta = far if is_far else near
        link = builder.add_link(src, dst, alpha_us=alpha, beta_us_per_mb=beta, overhead_us=overhead)
        for side, rank in (("send", src), ("receive", dst)):
            builder.add_hold(
                link, held[side, rank, is_far], alpha_us=overhead, beta_us_per_mb=beta, side=side
            )  # type: ignore[arg-type]
    number = rng.choice((1, 1, 2))
    every = dict.fromkeys(range(number), range(num_ranks))
    sums = collectives.custom(num_ranks, precondition=every, postcondition=every, combining=True)
    return merging_freely(make_problem(builder.build(), sums, chunk_bytes=MB // number))


def both_sides(seed: int) -> Problem:
    """A random problem of ranks with one port each: sends hold it at their start, receives at their end.

    Most sends take longer than they hold the ports, so that a port can be filled by holds of both sides.
    """
    rng = random.Random(f"both sides {seed}")
    num_ranks = rng.choice((2, 3, 3, 4))
    nodes = rng.choice(([0] * num_ranks, [int(2 * r >= num_ranks) for r in range(num_ranks)]))
    builder = TopologyBuilder("ports", nodes, alpha_meaning=rng.choice(("occupies", "pipelined")))
    ports = [builder.add_resource(f"port {r}") for r in range(num_ranks)]
    bus = [builder.add_resource("bus")] if rng.random() < 0.3 else []
    pairs = list(permutations(range(num_ranks), 2))
    kept = {(r, (r + 1) % num_ranks) for r in range(num_ranks)}
    for src, dst in pairs:
        if (src, dst) not in kept and rng.random() < 0.3:
            continue
        alpha, beta = rng.choice((0, 1, 2, 3)), rng.choice((1, 1, 2))
        link = builder.add_link(
            src, dst, alpha_us=alpha, beta_us_per_mb=beta, overhead_us=rng.choice((None, 0))
        )
        for side, port in (("send", ports[src]), ("receive", ports[dst])):
            held = rng.choice(((0, beta), (0, beta), (alpha, beta), (rng.randint(0, alpha), 1)))
            builder.add_hold(link, port, alpha_us=held[0], beta_us_per_mb=held[1], side=side)  # type: ignore[arg-type]
        for each in bus:
            side = rng.choice(("send", "receive"))
            builder.add_hold(link, each, alpha_us=0, beta_us_per_mb=rng.choice((1, beta)), side=side)  # type: ignore[arg-type]
    name = rng.choice(("allgather", "alltoall", "allreduce", "reduce-scatter", "gather", "scatter"))
    collective = rng.choice((collectives.make(name, num_ranks), _random_sums(rng, num_ranks)))
    return _problem(builder.build(), collective, rng)


def both_sides_matter(schedule: Schedule) -> bool:
    """True if a hold at the end of a send and one at the start of another follow each other without a gap."""
    costs, topology = schedule.problem.costs, schedule.problem.topology
    sends = {t.group: (t.link, t.start_ticks, t.end_ticks) for t in schedule}
    units: dict[int, int] = {}
    for t in schedule:
        units[t.group] = units.get(t.group, 0) + int(costs.chunk_units[t.chunk])
    begins: set[tuple[int, str, int]] = set()
    ends: set[tuple[int, str, int]] = set()
    for group, (link, start, end) in sends.items():
        for h, hold in enumerate(topology.holds):
            if hold.link == link:
                length = int(costs.hold_alpha[h]) + units[group] * int(costs.hold_beta[h])
                first = start if hold.side == "send" else end - length
                begins.add((hold.resource, hold.side, first))
                ends.add((hold.resource, hold.side, first + length))
    other = {"send": "receive", "receive": "send"}
    return any((resource, other[side], tick) in begins for resource, side, tick in ends)


def _random_sums(rng: random.Random, num_ranks: int) -> Collective:
    """One to three chunks with random origins and destinations, as sums or as copies."""
    combining, everyone = rng.random() < 0.6, range(num_ranks)
    ways: list[tuple[Sequence[int], Sequence[int]]] = []
    for _ in range(rng.choice((1, 2, 3))):
        count = rng.randint(2, num_ranks) if combining else 1
        ends = sorted(rng.sample(everyone, rng.randint(1, num_ranks)))
        ways.append((sorted(rng.sample(everyone, count)), ends))
    return custom(num_ranks, ways, combining=combining)


def _problem(topology: Topology, collective: Collective, rng: random.Random) -> Problem:
    """The problem, in half of the cases with sends that may merge; an allreduce if nothing can be sent."""
    links = range(len(topology.links))
    merging = frozenset(e for e in links if rng.random() < 0.5) if rng.random() < 0.5 else frozenset()
    clauses = Clauses(routing_slack=ANY_WAY, merging=merging, max_merge=rng.choice((1, 2, 3)))
    problem = make_problem(topology, collective, chunk_bytes=MB, clauses=clauses)
    try:
        check_possible(problem)
    except InputError:
        problem = replace(problem, clauses=clauses)
    if collective.is_met:
        every = collectives.make("allreduce", topology.num_ranks)
        problem = make_problem(topology, every, chunk_bytes=MB, clauses=clauses)
    return problem
