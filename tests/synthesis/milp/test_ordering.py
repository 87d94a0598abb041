"""Ordering rules: each gives a schedule of a routing's hops."""

import pytest

from taccl import collectives
from taccl.analysis.verification.verify import verify
from taccl.errors import InputError
from taccl.sketch.group import symmetry_group
from taccl.synthesis.milp.ordering import RULES, best_order, order
from taccl.synthesis.milp.solutions import needed_hops
from taccl.synthesis.proposers.greedy import critical_priorities, expand, list_schedule
from taccl.synthesis.symmetry.quotient import take_quotient
from taccl.topology.builder import TopologyBuilder
from tests.synthesis.small_problems import custom, linked, problem_of, relayed, ring, two_nodes


def tree():
    """Allgather on a ring of 4 in which every chunk travels in one direction."""
    topology = ring(4)
    problem = problem_of(topology, collectives.allgather(4))
    onward = {e for e, link in enumerate(topology.links) if link.dst == (link.src + 1) % 4}
    return take_quotient(problem, symmetry_group(problem)).restrict(
        (c, e) for c in range(4) for e in onward if topology.links[e].dst != c
    )


def routed(problem):
    """The quotient with only the hops that the list scheduler uses."""
    quotient = take_quotient(problem, symmetry_group(problem))
    found = list_schedule(quotient, critical_priorities(quotient))
    assert found is not None
    needed = needed_hops(quotient, found)
    return quotient.restrict((quotient.hops[m].chunk, quotient.hops[m].link) for m in needed)


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_makes_a_valid_schedule(rule):
    """Every rule gives a valid schedule: three hops of 2 us without contention."""
    quotient = tree()
    found = order(quotient, rule)
    schedule = expand(quotient, found.sends, producer=rule)
    assert verify(schedule).ok
    assert schedule.finish_ticks == 6


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_obeys_own_first(rule):
    """Every rule obeys the sketch's local-first priority."""
    quotient = routed(relayed())
    found = order(quotient, rule)
    assert verify(expand(quotient, found.sends, producer=rule)).ok


def test_an_unknown_rule_is_refused():
    """The error for an unknown rule lists the known ones."""
    with pytest.raises(InputError, match="longest-path-first"):
        order(tree(), "shortest-first")


def test_the_best_rule_is_no_worse_than_any():
    """The best order is no later than that of any rule, on links that merge."""
    problem = problem_of(two_nodes(), collectives.allgather(4), merging=frozenset({4, 5, 6}), max_merge=2)
    quotient = routed(problem)
    best = best_order(quotient)
    assert best[1] in RULES
    for rule in RULES:
        found = order(quotient, rule)
        assert found is None or best[0].finish_ticks <= found.finish_ticks


def line(rule):
    """Chunks in the order in which link 0 -> 1 sends them under a rule.

    Chunks 0, 2 and 3 go from rank 0 to rank 1. Chunk 1 goes 3 -> 0 -> 1 -> 2, in 1, 1 and 5 us.
    """
    topology = linked("line", [0] * 4, [(0, 1, 0, 1), (1, 2, 0, 5), (3, 0, 0, 1)])
    problem = problem_of(topology, custom(4, [([0], [1]), ([3], [2]), ([0], [1]), ([0], [1])]))
    found = order(take_quotient(problem, symmetry_group(problem)), rule)
    return [
        hop
        for send in found.sends
        if send.link == 0
        for hop in (take_quotient(problem, symmetry_group(problem)).hops[m].chunk for m in send.hops)
    ]


@pytest.mark.parametrize(
    ("priority", "place"), [("longest-path-first", 1), ("earliest-first", 3), ("own-chunk-first", 3)]
)
def test_priorities_of_a_late_chunk_with_far_to_go(priority, place):
    """Only a long path lets chunk 1 overtake: it starts at rank 3 and arrives last, with 6 us to go.

    It is second then, after the chunk that starts at 0, and else follows all others.
    """
    assert line(priority).index(1) == place


@pytest.mark.slow
def test_a_path_of_many_ranks_needs_no_recursion():
    """Under every rule a chunk is relayed along 1,200 ranks without a recursion error."""
    builder = TopologyBuilder("one way", [0] * 1200)
    for rank in range(1199):
        builder.add_link(rank, rank + 1, alpha_us=0, beta_us_per_mb=1)
    problem = problem_of(builder.build(), custom(1200, [([0], [1199])]))
    quotient = take_quotient(problem, symmetry_group(problem))
    for rule in RULES:
        found = order(quotient, rule)
        assert found.finish_ticks == 1199


def test_a_cyclic_path_ends():
    """Ordering ends even if hops lead around a cycle: a chunk that arrives at a rank again is ignored."""
    quotient = take_quotient(problem_of(ring(4), collectives.broadcast(4)))
    schedule = order(quotient, "longest-path-first")
    assert schedule.finish_ticks == 2 * quotient.hops[0].duration
