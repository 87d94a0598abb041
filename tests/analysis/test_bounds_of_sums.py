"""Bounds on reductions hold for every schedule that ends with the right sums, in any order of additions."""

import itertools
import random

import pytest

import taccl
from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.verification.verify import verify
from taccl.baselines import one_shot
from taccl.errors import InputError, SketchError, TopologyError
from taccl.problem.chunks import Chunk
from taccl.problem.collective import Collective
from taccl.problem.making import make_problem
from taccl.schedule.schedule import make_schedule
from taccl.schedule.timing import exact_times
from taccl.sketch.reachability import check_reachable
from taccl.topology.builder import TopologyBuilder
from tests.fuzzing import cases, some
from tests.synthesis.brute_force import TooLarge
from tests.synthesis.brute_force_apart import sums_by
from tests.synthesis.small_problems import MB, full, linked, problem_of, random_sum_problem, with_updates

#: Horizon in ticks within which no schedule of an infeasible problem may be found.
SOON = 10


def one_sum(num_ranks, origins, ends, root):
    """A collective of one sum, from the contributions of `origins` to the ranks in `ends`."""
    return Collective("sum", num_ranks, (Chunk(tuple(origins), tuple(ends), root),), combining=True)


def joined(nodes, links):
    """A topology of ranks in nodes with links of (source, destination, us for 1 MB)."""
    return linked("joined", nodes, ((src, dst, 0, beta) for src, dst, beta in links))


def sends(problem, *rows):
    """A schedule of sends (source, destination, contributions), in this order, each at its earliest start."""
    link = {(each.src, each.dst): e for e, each in enumerate(problem.topology.links)}
    return exact_times(
        problem, chunk=[0] * len(rows), link=[link[a, b] for a, b, _ in rows], sequence=range(len(rows)),
        contributions=[ranks for _, _, ranks in rows],
    )  # fmt: skip


# ---- Bounds derived by hand.


def test_the_search_finds_the_optimum_of_a_one_shot_sum():
    """A one-shot sum over 3 ranks with a port each takes 2 us; exhaustive search finds no schedule one tick
    shorter."""
    problem = problem_of(full(3, port=True), one_sum(3, range(3), range(3), 0))
    ticks = 2 * problem.costs.ticks_per_us
    assert sums_by(problem, ticks) and not sums_by(problem, ticks - 1)
    assert lower_bound(problem).bound == one_shot(problem).finish == 2


def test_a_sum_may_stay_in_its_node():
    """Rank 2 gets the sum of ranks 0 and 1 of its own node in 1 us, though the root is in another node."""
    links = [(0, 2, 1), (1, 2, 1), (0, 3, 1), (1, 3, 1), (0, 4, 1), (3, 2, 100), (4, 2, 100)]
    problem = problem_of(joined([0, 0, 0, 1, 1], links), one_sum(5, (0, 1), (2, 3), 3), direct_crossing=True)
    schedule = sends(problem, (0, 2, {0}), (1, 2, {1}), (0, 3, {0}), (1, 3, {1}))
    assert verify(schedule).ok
    assert lower_bound(problem).bound <= schedule.finish == 1


def test_the_root_need_not_be_reached():
    """If ranks 0 and 1 share a sum, and no link leads to its root, there is still a bound."""
    problem = problem_of(joined([0] * 3, [(0, 1, 1), (1, 0, 1), (2, 0, 1)]), one_sum(3, (0, 1), (0, 1), 2))
    schedule = sends(problem, (0, 1, {0}), (1, 0, {1}))
    assert verify(schedule).ok
    with pytest.raises(TopologyError):
        check_reachable(problem)
    bound = lower_bound(problem)
    assert bound.check()
    assert bound.bound == schedule.finish == 1


def test_a_sum_that_cannot_be_formed_is_refused():
    """A sum that cannot be formed is an error: no link leads from rank 0 to rank 1."""
    problem = problem_of(joined([0] * 2, [(1, 0, 1)]), one_sum(2, (0, 1), (0, 1), 0))
    with pytest.raises(TopologyError, match="no path"):
        lower_bound(problem)


def test_a_whole_sum_is_still_on_the_way_to_its_root():
    """A `carries_to` clause also holds for a sum that is complete before it reaches its only destination, the
    root."""
    topology = joined([0] * 3, [(0, 1, 1), (1, 2, 1), (0, 2, 5)])
    collective = one_sum(3, (0, 1), (2,), 2)
    free = problem_of(topology, collective)
    rows = ((0, 1, {0}), (1, 2, {0, 1}))
    assert verify(sends(free, *rows)).ok
    tied = free.with_clauses(carries_to={1: frozenset({0})})
    assert [each.kind for each in verify(sends(tied, *rows)).violations] == ["carries-to"]
    with pytest.raises(SketchError):
        lower_bound(tied)


@pytest.mark.parametrize(("most", "is_valid"), [(1, False), (2, True)])
def test_paths_of_sums_for_one_rank(most, is_valid):
    """A contribution that crosses two links to its root counts two hops, even if the second link carries the
    whole sum."""
    topology = joined([0] * 3, [(0, 1, 1), (1, 2, 1), (0, 2, 5), (1, 0, 1)])
    problem = problem_of(topology, one_sum(3, (0, 1, 2), (2,), 2), max_hops=most)
    schedule = sends(problem, (0, 1, {0}), (1, 2, {0, 1}))
    assert verify(schedule).ok == is_valid
    assert (lower_bound(problem).bound <= schedule.finish) == is_valid


def test_own_contributions_have_passed_no_link():
    """With `max_hops` 1 a one-shot schedule is valid, as each contribution crosses one link.

    Contributions that the sender received before do not add hops to its own.
    """
    problem = problem_of(full(3, port=True), one_sum(3, range(3), range(3), 0), max_hops=1)
    schedule = one_shot(problem)
    tied = make_schedule(
        problem, contributions=schedule.contributions,
        **{name: getattr(schedule, name) for name in ("chunk", "link", "start", "end", "group")},
    )  # fmt: skip
    assert verify(tied).ok


def test_a_root_that_got_the_sum_has_it_from_afar():
    """With `max_hops` 2, a complete sum that reached its root over two links may not be sent further."""
    line = joined([0] * 5, [(0, 1, 1), (1, 2, 1), (2, 3, 1), (3, 4, 1), (4, 3, 1), (3, 2, 1), (2, 1, 1)])
    problem = problem_of(line, one_sum(5, (0, 1), (1, 2, 3, 4), 3), max_hops=2)
    schedule = sends(problem, (0, 1, {0}), (1, 2, {0, 1}), (2, 3, {0, 1}), (3, 4, {0, 1}))
    assert [each.kind for each in verify(schedule).violations] == ["too-many-hops"]


# ---- Bounds of random problems, compared with schedules.


@pytest.mark.fuzz
def test_no_order_of_additions_beats_a_bound():
    """On tiny problems no order of additions finishes before the bound; infeasible problems have no schedule.

    Servers update the sums of every third problem, in 0 to 2 us for each MB.
    """
    decided = 0
    for seed in cases("bounds of sums, over all ways to add", few=15, many=1500):
        problem = random_sum_problem(seed)
        problem = problem if seed % 3 else with_updates(problem, seed // 3 % 3)
        ticks = problem.costs.ticks_per_us
        try:
            bound = lower_bound(problem)
        except InputError:
            latest = SOON * ticks
        else:
            assert bound.check()
            latest = int(bound.bound * ticks) - 1
        try:
            assert not sums_by(problem, latest, max_states=3000), seed
            decided += 1
        except TooLarge:
            continue
    assert decided > some(10, 40)


@pytest.mark.fuzz
def test_no_mix_of_sums_beats_a_bound():
    """Random mixes of one-shot and partial sums on up to six ranks, with and without clauses, never beat the
    bound."""
    found = 0
    for seed in cases("bounds of sums, random mixes", few=15, many=2000):
        rng = random.Random(f"mix {seed}")
        problem = random_sum_problem(seed) if rng.random() < 0.5 else larger(rng)
        problem = problem.with_clauses(max_hops=rng.choice((None, None, 1, 2, 3)))
        schedule = mixed(problem, rng)
        if schedule is None or not verify(schedule).ok:
            continue
        found += 1
        bound = lower_bound(problem, budget_s=1.0)
        assert bound.check(), seed
        assert bound.bound <= schedule.finish, seed
        assert lower_bound(problem, divisible=True, budget_s=1.0).bound <= schedule.finish, seed
    assert found > some(5, 20)


def larger(rng):
    """A random sum over nodes whose ranks have a port each, or share one NIC per node."""
    num_ranks, num_nodes = rng.choice(((4, 1), (4, 2), (6, 2), (6, 3)))
    nodes = [rank * num_nodes // num_ranks for rank in range(num_ranks)]
    builder = TopologyBuilder("mixed", nodes, alpha_meaning=rng.choice(("occupies", "pipelined")))
    ports = [builder.add_resource(f"port {rank}") for rank in range(num_ranks)]
    nics = [builder.add_resource(f"NIC {node}") for node in range(num_nodes)]
    has_ports, far = rng.random() < 0.5, rng.choice((1, 4))
    for src, dst in itertools.permutations(range(num_ranks), 2):
        crosses = nodes[src] != nodes[dst]
        alpha, beta = rng.choice((0, 1)), far if crosses else 1
        link = builder.add_link(src, dst, alpha_us=alpha, beta_us_per_mb=beta)
        if crosses:
            builder.add_hold(link, nics[nodes[src]], alpha_us=0, beta_us_per_mb=beta)
        if has_ports:
            builder.add_hold(link, ports[src], alpha_us=0, beta_us_per_mb=1)
    name = rng.choice(("allreduce", "allreduce", "reduce_scatter", "reduce"))
    collective = taccl.collectives.make(name, num_ranks)
    return make_problem(
        builder.build(), collective, chunk_bytes=MB,
        clauses=taccl.problem.problem.Clauses(direct_crossing=rng.random() < 0.3),
    )  # fmt: skip


def mixed(problem, rng):
    """A random schedule that forwards own contributions or sums over allowed links; None if it does not
    complete."""
    chunk, links, named = [], [], []
    if not problem.links_allowed:
        return None
    for c, data in enumerate(problem.collective.chunks):
        whole = sum(1 << rank for rank in data.origins)
        has = [{1 << r} if r in data.origins else set() for r in range(problem.topology.num_ranks)]
        share = rng.random()  # share of sends that carry own contributions alone
        for _ in range(300):
            if all(whole in made_of(has[rank]) for rank in data.destinations):
                break
            link = rng.choice(problem.links_allowed)
            ends = problem.topology.links[link]
            can = sorted(made_of(set().union(*(has[src] for src in ends.srcs))))
            own = [bits for bits in can if bits.bit_count() == 1]
            if not can:
                continue
            bits = rng.choice(own if own and rng.random() < share else [can[-1], rng.choice(can)])
            reducing = bits != whole or data.destinations == (data.root,)
            if not problem.may_carry(link, c, reducing=reducing):
                continue
            if all(bits in made_of(has[dst]) or len(has[dst]) > 6 for dst in ends.dsts):
                continue
            for dst in ends.dsts:
                has[dst].add(bits)
            chunk.append(c)
            links.append(link)
            named.append([rank for rank in range(len(has)) if bits >> rank & 1])
        else:
            return None
    try:
        return exact_times(problem, chunk=chunk, link=links, sequence=range(len(chunk)), contributions=named)
    except ValueError:  # two links hold two resources in opposite orders
        return None


def made_of(known):
    """Every sum of pairwise disjoint known sums."""
    made = {0}
    for each in known:
        made |= {each | other for other in made if not each & other}
    return made - {0}
