"""Sums of some ranks along trees of a linear program: its optimum, rounding, and valid schedules."""

import random
from collections import Counter

import pytest

from taccl import collectives, lower_bound, make_problem, verify
from taccl._internal.deadline import Deadline
from taccl.schedule.timing import exact_times
from taccl.synthesis import bounding
from taccl.synthesis.proposers import table
from taccl.synthesis.proposers.finer import cut
from taccl.synthesis.proposers.priced_trees import along, sums_of_some
from taccl.synthesis.search import Options, Search
from taccl.synthesis.trees.priced import rounded, tree_shares
from taccl.topology import fabrics, machines
from taccl.topology.builder import TopologyBuilder
from tests.effort import AMPLE_S
from tests.synthesis.small_problems import MB, full


def shares_of(problem):
    """Shares of trees, without a time limit."""
    return tree_shares(problem, lambda: False)


def among(num_ranks, group, name="allreduce"):
    """A collective of some of the ranks."""
    return collectives.make(name, len(group)).among(group, num_ranks=num_ranks)


@pytest.mark.parametrize(
    ("topology", "collective", "busy_us"),
    [
        # Without updates, shares of 2/3 at workers and 1/3 at the fifth rank: 1/3 us on every link.
        (full(5), among(5, range(4)), 1 / 3),
        # The server takes part in 8 sends over 20 links.
        (full(5), collectives.exchange(4, 1), 8 / 20),
        # Four ranks of a ring: two rings of 6 sends for half of the sums each, over relays.
        (fabrics.ring(6, alpha_us=0, bandwidth_gb_per_s=1000), among(6, (1, 2, 4, 5)), 6 / 8),
    ],
)
def test_the_program_balances_links(topology, collective, busy_us):
    """The shares use links as evenly as exact arithmetic allows; 1 MB takes 1 us over each link."""
    problem = make_problem(topology, collective, size_bytes=12 * MB)
    found = shares_of(problem)
    ticks = 12 * busy_us * problem.costs.ticks_per_us
    assert ticks * 0.999 <= found.busy_ticks <= ticks * 1.005
    finer = cut(problem, 24)
    assert len(rounded(found, finer)) == finer.collective.num_chunks
    number = Counter(rounded(found, finer))
    most = max(sum(found.load[pair] * count for pair, count in number.items())) / finer.collective.num_chunks
    assert most <= 1.3 * ticks


def test_shares_of_a_kind_over_idle_links_add_up_to_one():
    """A sum over links that are not the busiest has one share of its data, too, and each chunk a pair."""
    builder = TopologyBuilder("unlike", [0] * 4)
    for rank, (ahead, back) in enumerate([(8, 1), (2, 2), (1, 1), (1, 8)]):
        after = (rank + 1) % 4
        builder.add_link(rank, after, alpha_us=0, beta_us_per_mb=ahead)
        builder.add_link(after, rank, alpha_us=0, beta_us_per_mb=back)
    starts, ends = [(2, 3), (1, 2), (0, 1), (0, 3)], [(0, 3), (0, 1), (0, 1), (1, 2)]
    sums = collectives.custom(
        4, precondition=dict(enumerate(starts)), postcondition=dict(enumerate(ends)), combining=True
    )
    problem = make_problem(builder.build(), sums, size_bytes=4 * MB)
    found = shares_of(problem)
    total = Counter()
    for pair, share in zip(found.pairs, found.share, strict=True):
        total[pair.kind] += share
    assert [*total.values()] == pytest.approx([1.0] * 4)
    assert len(rounded(found, problem)) == 4


def test_servers_are_roots_of_updated_sums():
    """Each updated sum passes its own server, and the schedule in finer chunks is within 1.6 of the optimum."""
    problem = make_problem(fabrics.ring(6), collectives.exchange([1, 2, 4, 5], [0, 3]), size_bytes=64 * MB)
    found = shares_of(problem)
    made = along(cut(problem, 16), found)
    verify(made).raise_if_failed()
    assert made.finish_ticks <= 1.6 * found.busy_ticks
    assert brief_finish(problem) <= 1.45 * found.busy_ticks


def brief_finish(problem):
    """Finish in ticks of the list schedule in the best of some numbers of chunks."""
    found = shares_of(problem)
    return min(along(cut(problem, parts), found).finish_ticks for parts in (4, 16, 32))


@pytest.mark.parametrize(
    "topology", [fabrics.mesh(2, 3), fabrics.ring(5, bidirectional=False), machines.dgx1()]
)
def test_trees_suit_random_sums(topology):
    """Random sums of some ranks have valid schedules along trees, in whole chunks and in two parts."""
    rng, num_ranks = random.Random("sums"), topology.num_ranks
    before, after = (
        {c: rng.sample(range(num_ranks), rng.randint(2, num_ranks - 1)) for c in range(4)} for _ in range(2)
    )
    collective = collectives.custom(num_ranks, precondition=before, postcondition=after, combining=True)
    for parts in (1, 2):
        problem = make_problem(topology, collective.split(parts), chunk_bytes=4 * MB // parts)
        found = shares_of(problem)
        assert sums_of_some(problem)
        schedule = along(problem, found)
        verify(schedule).raise_if_failed()
        assert schedule.finish_ticks >= found.busy_ticks * 0.999


@pytest.mark.parametrize(
    "problem",
    [
        make_problem(fabrics.ring(4), "allreduce", size_bytes=MB),  # shared by all: spanning trees
        make_problem(fabrics.ring(4), "allgather", size_bytes=MB),
        make_problem(fabrics.ring(4), "reduce_scatter", size_bytes=MB),
        make_problem(machines.dgx1(), collectives.exchange(4, 4), size_bytes=64),  # latency counts
    ],
)
def test_other_problems_have_other_proposers(problem):
    """Sums that all ranks share, copies, and latency-bound sums are left to other proposers."""
    assert not sums_of_some(problem)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("choice", "near", "is_improved"), [("", 1, True), ("trees", 1, True), ("", 3, False)]
)
def test_the_earliest_schedule_in_other_chunks_is_improved(choice, near, is_improved, monkeypatch):
    """Ruin and recreate follows a schedule in finer chunks until it meets the bound, unless that was near.

    The schedule is a baseline's, or along trees.
    """
    monkeypatch.setattr(table, "_NEAR_BOUND", near)
    problem = make_problem(fabrics.ring(3, alpha_us=0), "allgather", size_bytes=12)
    finer = cut(problem, 2)
    onward = {
        link.srcs[0]: e
        for e, link in enumerate(finer.topology.links)
        if link.dsts[0] == (link.srcs[0] + 1) % 3
    }
    hops = [(c, onward[(c // 2 + hop) % 3]) for hop in range(2) for c in range(6)]
    chunk, link = zip(*hops, strict=True)
    late = exact_times(finer, chunk=chunk, link=link, sequence=range(len(hops)), producer="one way")
    search = Search(problem, Options(), Deadline.after(AMPLE_S), asked=problem)
    other = search.beside(finer, bound=lower_bound(finer), choice=choice)
    other.offer_whole(late, producer="one way")
    search.others.append(other)
    bounding.look_for_bound_over_all_chunkings(search)
    table._ruin_finer(search)
    assert other.is_met == is_improved and (other.best.producer == "ruin and recreate") == is_improved
