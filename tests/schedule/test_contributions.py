"""Schedules whose sends name their contributions: partial sums that ranks keep separate."""

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

import taccl
from taccl.baselines import one_shot
from taccl.errors import InputError
from taccl.problem.chunks import Chunk
from taccl.problem.collective import Collective
from taccl.problem.making import make_problem
from taccl.schedule.contributions import Arrival, Carried, compositions, make_up
from taccl.schedule.precedence import Precedence
from taccl.schedule.schedule import make_schedule
from taccl.schedule.timing import exact_times
from taccl.topology.builder import TopologyBuilder
from tests.fuzzing import cases


def one_sum(num_ranks, *, wanted=None):
    """A sum over all ranks that the given ranks need, by default all."""
    ranks = tuple(range(num_ranks))
    return Collective("allreduce", num_ranks, (Chunk(ranks, wanted or ranks, 0),), combining=True)


def behind_a_port(num_ranks):
    """A topology whose ranks send one message at a time each, at 1 us/MB."""
    builder = TopologyBuilder("ports", [0] * num_ranks)
    ports = [builder.add_resource(f"out {rank}") for rank in range(num_ranks)]
    for src, dst in itertools.permutations(range(num_ranks), 2):
        link = builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=1)
        builder.add_hold(link, ports[src], alpha_us=0, beta_us_per_mb=1)
    return builder.build()


def exchange():
    """A schedule in which each of three ranks sends its contribution to the two others in sequence: 2 us."""
    return one_shot(make_problem(behind_a_port(3), one_sum(3), chunk_bytes=10**6))


def test_own_contributions_go_out_after_others_came():
    """A one-shot allreduce, in which each rank sends its contribution to both others, finishes at its bound.

    A rank still sends its own contribution alone after it has received others.
    """
    schedule = exchange()
    assert taccl.verify(schedule).ok
    assert schedule.finish == 2 == taccl.lower_bound(schedule.problem).bound
    assert {ranks for ranks in schedule.contributions} == {(0,), (1,), (2,)}


def test_one_buffer_would_count_twice():
    """Without named contributions the same sends carry accumulated sums, and contributions count twice."""
    named = exchange()
    plain = make_schedule(
        named.problem,
        chunk=named.chunk,
        link=named.link,
        start=named.start,
        end=named.end,
        reduce=named.reduce,
    )
    assert "double-count" in {each.kind for each in taccl.verify(plain).violations}


def test_a_contribution_is_named_once():
    """A send that names rank 0 twice is refused."""
    schedule = exchange()
    twice = [(0, 0) if ranks == (0,) else ranks for ranks in schedule.contributions]
    with pytest.raises(InputError, match="names ranks 0, 0 twice"):
        mutated(schedule, contributions=twice)
    sums = tuple((0, 0) if ranks == (1,) else ranks for ranks in schedule.sums)
    with pytest.raises(InputError, match="names ranks 0, 0 twice"):
        replace(schedule, sums=sums)


def mutated(schedule, **columns):
    """The schedule with some columns replaced."""
    kept = {name: getattr(schedule, name) for name in ("chunk", "link", "start", "end", "group")}
    given = {"contributions": schedule.contributions} | columns
    return make_schedule(schedule.problem, **kept | given)


@pytest.mark.parametrize(
    ("index", "named", "kind"),
    [
        (0, {1}, "presence"),  # rank 0 has no contribution of rank 1 at the start
        (0, {0, 1}, "presence"),
        (0, set(), "presence"),
        (-1, {0, 1, 2}, "presence"),  # the last contribution comes after that send starts
    ],
)
def test_what_a_rank_does_not_have_is_refused(index, named, kind):
    """A send may only carry a sum that its sender can form when it starts."""
    schedule = exchange()
    contributions = schedule.contributions
    contributions[index] = named
    assert kind in {
        each.kind for each in taccl.verify(mutated(schedule, contributions=contributions)).violations
    }


def test_overlapping_sums_do_not_add_up():
    """Sums of ranks 0 and 1, and of 1 and 2, form the sum of all three neither as a result nor in a send."""
    topology = taccl.topologies.fully_connected(4)
    collective = Collective("sum", 4, (Chunk((0, 1, 2), (3,), 3),), combining=True)
    problem = make_problem(topology, collective, chunk_bytes=1)
    link = {(each.src, each.dst): e for e, each in enumerate(topology.links)}
    sends = [((0, 1), {0}), ((1, 2), {1}), ((1, 3), {0, 1}), ((2, 3), {1, 2}), ((3, 0), {1, 2})]
    schedule = exact_times(
        problem, chunk=[0] * 5, link=[link[pair] for pair, _ in sends], sequence=range(5),
        contributions=[named for _, named in sends],
    )  # fmt: skip
    assert [each.kind for each in taccl.verify(schedule).violations] == ["double-count"]
    assert schedule.link[-1] == link[3, 0]
    onward = mutated(schedule, contributions=[*schedule.contributions[:-1], (0, 1, 2)])
    assert [each.kind for each in taccl.verify(onward).violations] == ["double-count"] * 2


def test_links_that_add_carry_the_union():
    """A link from two ranks, which adds their data, carries the union of their contributions."""
    builder = TopologyBuilder("in network", [0] * 3)
    builder.add_link((0, 1), 2, alpha_us=0, beta_us_per_mb=1)
    collective = Collective("sum", 3, (Chunk((0, 1), (2,), 2),), combining=True)
    problem = make_problem(builder.build(), collective, chunk_bytes=10**6)
    whole = make_schedule(
        problem, chunk=[0], link=[0], start=[0], end=[problem.costs.ticks_per_us], contributions=[{0, 1}]
    )
    assert taccl.verify(whole).ok


def is_union(wanted, sums):
    """True if a set is a disjoint union of some of the given sets, by trying all of them."""
    return not wanted or any(
        is_union(wanted - each, sums) for each in sums if min(wanted) in each and each <= wanted
    )


def sums_are_made(schedule):
    """True if each sum can be made at its sender when it starts, and the whole sum at its destinations."""
    links, chunks = schedule.problem.topology.links, schedule.problem.collective.chunks
    sends = [(*send, set(ranks)) for send, ranks in zip(schedule, schedule.contributions, strict=True)]

    def known(rank, chunk, by):
        own = [{rank}] if rank in chunks[chunk].origins else []
        return own + [
            sent for c, link, _, end, *_, sent in sends
            if c == chunk and rank in links[link].dsts and end <= by
        ]  # fmt: skip

    everyone = [set(chunk.origins) for chunk in chunks]
    ends = [(rank, c) for c, chunk in enumerate(chunks) for rank in chunk.destinations]
    return all(
        sent and sent <= everyone[c] and reduced == (sent != everyone[c])
        and is_union(sent, known(links[link].src, c, start))
        for c, link, start, _, _, reduced, *_, sent in sends
    ) and all(is_union(everyone[c], known(rank, c, np.inf)) for rank, c in ends)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "topology", [taccl.topologies.star(4), taccl.topologies.torus(2, 3)], ids=["star", "torus"]
)
@pytest.mark.parametrize("name", ["multiplying", "one-shot"])
def test_mutants_of_named_sums_are_judged_as_by_a_replay_of_sets(name, topology):
    """Dropped, repeated, shifted, swapped and renamed sums are faults exactly if a replay of sets says so."""
    problem, num_ranks = make_problem(topology, "allreduce", size_bytes=1 << 16), topology.num_ranks
    schedule = taccl.baselines.baseline(name, problem, cut=False)
    assert schedule.carries is not None and sums_are_made(schedule)
    columns = ("chunk", "link", "start", "end", "reduce", "contributions")
    rows = list(zip(*(getattr(schedule, column) for column in columns), strict=True))
    kinds, verdicts = {"presence", "reduce", "postcondition", "double-count"}, set()
    for seed in cases(f"mutants of {name} with named sums", few=30, many=2000):
        rng, changed = random.Random(seed), [list(row) for row in rows]
        for change in rng.choices(range(6), k=rng.choice((1, 1, 2))):
            row, other = rng.choice(changed), rng.choice(changed)
            if change == 0:
                changed.remove(row)
            elif change == 1:
                changed.append([*row])
            elif change == 2:
                by = rng.choice((-1, 1, -row[2], 10**9))
                row[2:4] = row[2] + by, row[3] + by
            elif change == 3:
                row[4] = not row[4]
            elif change == 4:
                row[5], other[5] = other[5], row[5]
            else:
                row[5] = tuple({*row[5]} ^ {rng.randrange(num_ranks)})
                row[4] = len(row[5]) < num_ranks
        mutant = make_schedule(problem, **dict(zip(columns, zip(*changed, strict=True), strict=True)))
        found = taccl.verify(mutant)
        if all(each.kind != "interval" for each in found.violations):
            is_sound = not kinds & {each.kind for each in found.violations}
            assert is_sound == sums_are_made(mutant), f"seed {seed}: {found}"
            verdicts.add(is_sound)
    assert verdicts == {True, False}


def test_contributions_need_a_sum():
    """An allgather, which sums nothing, is refused with named contributions."""
    problem = make_problem(taccl.topologies.ring(3), taccl.collectives.allgather(3), chunk_bytes=1)
    with pytest.raises(InputError, match="has no sums"):
        make_schedule(problem, chunk=[0], link=[0], start=[0], end=[1], contributions=[{0}])


@pytest.mark.parametrize("ranks", [{5}, {-1}])
def test_unknown_ranks_contribute_nothing(ranks):
    """Contributions of unknown ranks are refused."""
    with pytest.raises(InputError, match="contribution of rank"):
        mutated(exchange(), contributions=[ranks] * 6)


@pytest.mark.parametrize("contributions", [5, [0] * 6, [{0, "0"}] * 6, [{0.5}] * 6], ids=str)
def test_contributions_are_ranks_of_each_transfer(contributions):
    """Contributions must be given as ranks for each transfer."""
    with pytest.raises(InputError, match="expected the ranks of each transfer|expected a whole number"):
        mutated(exchange(), contributions=contributions)


def test_columns_have_one_length():
    """A schedule whose columns differ in length is refused."""
    with pytest.raises(InputError, match="length"):
        make_schedule(exchange().problem, chunk=[0], link=[0], start=[0], end=[1], contributions=[{0}, {1}])


def test_saved_and_read(tmp_path):
    """A schedule file keeps the named contributions."""
    schedule = exchange()
    taccl.save(schedule, tmp_path / "sums.json")
    assert taccl.load(tmp_path / "sums.json").contributions == schedule.contributions


def test_names_are_part_of_the_schedule():
    """Schedules that differ only in contributions are unequal."""
    schedule = exchange()
    other = [ranks if ranks != (0,) else (0, 1) for ranks in schedule.contributions]
    assert schedule != mutated(schedule, contributions=other)
    assert "sum of 0" in schedule.table()
    assert [each.contributions for each in schedule] == schedule.contributions


@pytest.mark.slow
def test_replanned():
    """Without a failure, re-planning keeps the schedule; after the loss of a link, the new schedule
    verifies."""
    problem = make_problem(taccl.topologies.fully_connected(4), one_sum(4), chunk_bytes=1000)
    schedule = one_shot(problem)
    same = taccl.replan(schedule, problem)
    assert (same.schedule, same.from_scratch) == (schedule, False)
    left = taccl.topology.transform.without(problem.topology, links=[0])
    again = taccl.replan(schedule, make_problem(left, one_sum(4), chunk_bytes=1000))
    assert again.from_scratch
    assert taccl.verify(again.schedule).ok


@pytest.mark.parametrize("in_place", [False, True])
def test_lowered_and_lifted(in_place):
    """Lowering and then lifting a schedule of named contributions returns the same schedule.

    The program keeps arrivals in scratch and computes the sums from them.
    """
    schedule = exchange()
    program = taccl.lower(schedule, in_place=in_place)
    assert taccl.interpret(program).ok
    again = taccl.lift(program, topology=schedule.problem.topology, chunk_size=10**6)
    assert (again.finish, sorted(again.contributions)) == (2, sorted(schedule.contributions))


def test_out_of_place_one_shot_needs_no_scratch():
    """Arrivals needed only for the result are added to it directly, without scratch."""
    assert max(rank.scratch_chunks for rank in taccl.lower(exchange()).ranks) == 0


def by_brute_force(wanted, known):
    """True if some of the known sums are disjoint and add up to `wanted`."""
    return any(
        sum(some) == wanted == np.bitwise_or.reduce(some)
        for count in range(1, len(known) + 1)
        for some in itertools.combinations(known, count)
    )


@pytest.mark.fuzz
def test_search_and_verifier_agree_on_the_sums_of_a_rank():
    """Search and verifier agree with an enumeration of subsets on the sums that a rank can form."""
    topology = taccl.topologies.fully_connected(5)
    found = set()
    for seed in cases("sums of arrivals", few=150, many=3000):
        rng = random.Random(seed)
        known = sorted({rng.randrange(1, 16) for _ in range(rng.randrange(1, 7))})
        wanted = rng.choice([15, rng.randrange(1, 16)])
        expected = by_brute_force(wanted, known)
        parts = make_up(wanted, [Arrival(0, bits, i) for i, bits in enumerate(known)])
        assert (parts is not None) == expected
        assert parts is None or sum(part.bits for part in parts) == wanted
        assert composed(wanted, known) == (None if parts is None else {part.send for part in parts})
        assert verifier_accepts(topology, wanted, known) == expected
        found.add(expected)
    assert found == {False, True}


def composed(wanted, known):
    """Indices of the known sums that compose `wanted`, as the precedence graph finds them; None for none."""
    carried = Carried.of([[rank for rank in range(4) if bits >> rank & 1] for bits in (*known, wanted)])
    (last,), own, first, end = (np.array([each]) for each in (carried.number[-1], -1, 0, len(known)))
    _, parts, missing = compositions(carried, np.array([last]), own, first, end, end, carried.number[:-1])
    return None if missing else {*parts.tolist()}


def verifier_accepts(topology, wanted, known):
    """True if the verifier lets rank 4 send a sum once it has the known sums of ranks 0-3."""
    contributors = tuple(rank for rank in range(4))
    collective = Collective("sum", 5, (Chunk(contributors, (), 4),), combining=True)
    problem = make_problem(topology, collective, chunk_bytes=1)
    link = {(each.src, each.dst): e for e, each in enumerate(topology.links)}
    duration = problem.costs.duration(0, 1)
    rows = []
    ranks_of = [[rank for rank in range(4) if bits >> rank & 1] for bits in known]
    # Every rank first receives every contribution, and can then send any sum.
    rows = [(link[src, dst], 0, {src}) for src, dst in itertools.permutations(range(4), 2)]
    rows += [(link[i % 4, 4], duration * (1 + i), ranks) for i, ranks in enumerate(ranks_of)]
    rows.append((link[4, 0], duration * 10, [rank for rank in range(4) if wanted >> rank & 1]))
    schedule = make_schedule(
        problem, chunk=[0] * len(rows), link=[row[0] for row in rows], start=[row[1] for row in rows],
        end=[row[1] + duration for row in rows], contributions=[row[2] for row in rows],
    )  # fmt: skip
    violations = taccl.verify(schedule).violations
    assert all(each.link == link[4, 0] for each in violations)
    return not violations


@pytest.mark.fuzz
def test_random_named_sums_lower_and_come_back():
    """Random schedules of named sums that verify run as programs and lift back; without a needed send they
    fail."""
    for seed in cases("named sums, lowered and lifted", few=4, many=200):
        rng = random.Random(seed)
        num_ranks = rng.randrange(2, 6)
        topology = taccl.topologies.fully_connected(num_ranks)
        problem = make_problem(topology, taccl.collectives.allreduce(num_ranks), chunk_bytes=100)
        schedule = random_sums(problem, rng)
        assert taccl.verify(schedule).ok
        program = taccl.lower(schedule, in_place=rng.random() < 0.5)
        taccl.interpret(program).raise_if_failed()
        again = taccl.lift(program, topology=topology, chunk_size=100)
        assert again.finish <= schedule.finish
        dropped = rng.randrange(len(schedule))
        kept = [i for i in range(len(schedule)) if i != dropped]
        contributions = [schedule.contributions[i] for i in kept]
        columns = {name: getattr(schedule, name)[kept] for name in ("chunk", "link", "start", "end")}
        lacking = make_schedule(problem, **columns, contributions=contributions)
        known = {
            (c, problem.topology.links[e].dst, ranks)
            for c, e, ranks in zip(columns["chunk"], columns["link"], contributions, strict=True)
        }
        row = (
            schedule.chunk[dropped],
            topology.links[schedule.link[dropped]].dst,
            schedule.contributions[dropped],
        )
        assert row in known or not taccl.verify(lacking).ok


def random_sums(problem, rng):
    """Random sums: each chunk's ranks send sums to random ranks until all can form the total."""
    topology = problem.topology
    link = {(each.src, each.dst): e for e, each in enumerate(topology.links)}
    chunk, links, named = [], [], []
    everyone = 2**topology.num_ranks - 1
    for c in range(problem.collective.num_chunks):
        has = [{1 << rank} for rank in range(topology.num_ranks)]
        while not all(by_brute_force(everyone, sorted(here)) for here in has):
            src, dst = rng.sample(range(topology.num_ranks), 2)
            some = rng.sample(sorted(has[src]), rng.randrange(1, len(has[src]) + 1))
            bits = sum(some)
            if (
                bits != np.bitwise_or.reduce(some)
                or bits in has[dst]
                or by_brute_force(everyone, sorted(has[dst]))
            ):
                continue
            if len(has[dst]) > 5 and bits & (bits - 1):
                continue
            has[dst].add(bits)
            chunk.append(c)
            links.append(link[src, dst])
            named.append([rank for rank in range(topology.num_ranks) if bits >> rank & 1])
    return needed_alone(problem, chunk, links, named)


def needed_alone(problem, chunk, links, named):
    """The schedule without sends that no rank needs."""
    at = len(chunk) - 1
    while at >= 0:
        rows = [i for i in range(len(chunk)) if i != at]
        try:
            less = exact_times(
                problem, chunk=[chunk[i] for i in rows], link=[links[i] for i in rows], sequence=range(len(rows)),
                contributions=[named[i] for i in rows],
            )  # fmt: skip
        except InputError:
            less = None
        if less is not None and taccl.verify(less).ok:
            chunk, links, named = ([column[i] for i in rows] for column in (chunk, links, named))
        at -= 1
    return exact_times(problem, chunk=chunk, link=links, sequence=range(len(chunk)), contributions=named)


def test_sums_of_many_arrivals_are_joined_once():
    """Rank 0 adds the three arriving contributions once, and sends the sum of all four to three ranks."""
    topology = taccl.topologies.fully_connected(4)
    link = {(e.src, e.dst): i for i, e in enumerate(topology.links)}
    ends = [(1, 0), (2, 0), (3, 0), (0, 1), (0, 2), (0, 3)]
    contributions = [(1,), (2,), (3,), *[(0, 1, 2, 3)] * 3]
    problem = make_problem(topology, one_sum(4), chunk_bytes=1000)
    schedule = exact_times(
        problem, chunk=[0] * 6, link=[link[each] for each in ends], sequence=range(6),
        contributions=contributions,
    )  # fmt: skip
    order = Precedence(problem, problem, **schedule.columns)
    assert order.num_events == order.num_sends + 1
    assert taccl.verify(schedule).ok
    again = exact_times(
        problem, chunk=schedule.chunk, link=schedule.link, starts=schedule.start,
        contributions=schedule.contributions,
    )  # fmt: skip
    assert again.digest() == schedule.digest()


@pytest.mark.parametrize(("last", "kinds"), [({4, 5}, []), ({1, 4, 5}, ["double-count"])])
def test_the_largest_sums_need_not_be_part_of_a_disjoint_union(last, kinds):
    """The verifier forms the sum of six ranks from {0, 1}, {2, 3} and {4, 5}, although {0, 1, 2} is known
    too.

    With {1, 4, 5} in place of {4, 5}, contribution 1 would count twice.
    """
    topology = taccl.topologies.fully_connected(7)
    collective = Collective("sum", 7, (Chunk((0, 1, 2, 3, 4, 5), (6,), 6),), combining=True)
    problem = make_problem(topology, collective, chunk_bytes=1)
    link = {(each.src, each.dst): e for e, each in enumerate(topology.links)}
    sends = [
        ((1, 0), {1}), ((2, 0), {2}), ((3, 2), {3}), ((1, 4), {1}), ((5, 4), {5}),
        ((0, 6), {0, 1, 2}), ((0, 6), {0, 1}), ((2, 6), {2, 3}), ((4, 6), last),
    ]  # fmt: skip
    schedule = exact_times(
        problem, chunk=[0] * len(sends), link=[link[pair] for pair, _ in sends], sequence=range(len(sends)),
        contributions=[named for _, named in sends],
    )  # fmt: skip
    assert [each.kind for each in taccl.verify(schedule).violations] == kinds
