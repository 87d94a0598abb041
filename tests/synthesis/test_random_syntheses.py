"""Random topologies, collectives, groups, sizes and failures: schedules verify and respect their bounds.

The default run takes some dozens of problems; with TACCL_MANY=1 in the environment it takes thousands.
"""

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

import taccl
from taccl import collectives
from taccl.baselines import pairwise, ring
from taccl.errors import CollectiveError, InfeasibleError, InputError, TopologyError
from taccl.problem.alltoallv import alltoallv_problem
from taccl.problem.making import make_problem
from taccl.problem.problem import Clauses
from taccl.synthesis.proposers.large import schedule_large, suits
from taccl.topology.builder import TopologyBuilder
from taccl.topology.transform import without
from tests.analysis.valid_schedules import full
from tests.effort import brief_synthesis
from tests.fuzzing import fuzzed

MB = 10**6

NAMES = ("allgather", "reduce-scatter", "allreduce", "alltoall", "broadcast", "reduce", "scatter", "gather")


@st.composite
def topologies(draw, *, most_ranks=9):
    """A random ring with chords in one or more nodes: shared NICs, bandwidth tiers, both alpha meanings."""
    num_ranks = draw(st.integers(2, most_ranks))
    num_nodes = draw(st.sampled_from([n for n in (1, 2, 3) if n <= num_ranks]))
    nodes = [r * num_nodes // num_ranks for r in range(num_ranks)]
    builder = TopologyBuilder("random", nodes, alpha_meaning=draw(st.sampled_from(["occupies", "pipelined"])))
    ports = [(builder.add_resource(f"out {i}"), builder.add_resource(f"in {i}")) for i in range(num_nodes)]
    order = draw(st.permutations(range(num_ranks)))
    pairs = {(order[i - 1], order[i]) for i in range(num_ranks)}
    ranks = st.integers(0, num_ranks - 1)
    pairs |= {(a, b) for a, b in draw(st.lists(st.tuples(ranks, ranks), max_size=3 * num_ranks)) if a != b}
    shares = draw(st.booleans())
    for src, dst in sorted(pairs):
        crosses = nodes[src] != nodes[dst]
        alpha = draw(st.integers(0, 3))
        beta = draw(st.sampled_from([1, 2])) * (5 if crosses else 1)
        link = builder.add_link(src, dst, alpha_us=alpha, beta_us_per_mb=beta)
        if shares and (crosses or num_nodes == 1):
            cost = {"alpha_us": draw(st.integers(0, alpha)), "beta_us_per_mb": beta}
            builder.add_hold(link, ports[nodes[src]][0], **cost)
            builder.add_hold(link, ports[nodes[dst]][1], side="receive", **cost)
    return builder.build()


@st.composite
def spread_out(draw, num_ranks):
    """A random custom collective of up to five chunks."""
    ranks = st.lists(st.integers(0, num_ranks - 1), min_size=1, max_size=num_ranks, unique=True)
    chunks = range(draw(st.integers(1, 5)))
    return collectives.custom(
        num_ranks,
        precondition={c: draw(ranks) for c in chunks},
        postcondition={c: draw(ranks) for c in chunks},
    )


def check(problem, schedule):
    """Assert that the schedule verifies, as it is and in full form, and finishes no earlier than its bound."""
    assert taccl.verify(schedule).violations == ()
    assert taccl.verify(full(schedule)).violations == ()
    bound = taccl.lower_bound(problem, budget_s=1.0)
    assert bound.bound <= schedule.finish


@fuzzed(few=3, many=200)
@given(st.data())
def test_named_collectives(data):
    """Every named collective, with several chunks per rank and any root, has a valid schedule."""
    topology = data.draw(topologies())
    name = data.draw(st.sampled_from(NAMES))
    rooted = name in ("broadcast", "reduce", "scatter", "gather")
    root = data.draw(st.integers(0, topology.num_ranks - 1)) if rooted else None
    collective = collectives.make(
        name, topology.num_ranks, root=root, chunks_per_rank=data.draw(st.integers(1, 3))
    )
    problem = make_problem(topology, collective, chunk_bytes=MB)
    check(problem, schedule_large(problem, seed=data.draw(st.integers(0, 3))))


@fuzzed(few=4, many=300)
@given(st.data())
def test_custom_collectives_of_many_sizes(data):
    """Custom collectives with individual chunk sizes have valid schedules."""
    topology = data.draw(topologies())
    collective = data.draw(spread_out(topology.num_ranks))
    sizes = data.draw(
        st.lists(
            st.sampled_from([1, MB // 4, MB, 3 * MB]),
            min_size=collective.num_chunks,
            max_size=collective.num_chunks,
        )
    )
    problem = make_problem(topology, collective, chunk_bytes=sizes)
    check(problem, schedule_large(problem))


@fuzzed(few=8, many=400)
@given(st.data())
def test_exchanges_of_any_sizes(data):
    """Alltoallv matrices with zero, small and large entries have valid schedules."""
    topology = data.draw(topologies(most_ranks=6))
    count = topology.num_ranks
    entries = st.lists(st.sampled_from([0, 1, 1000, MB]), min_size=count * count, max_size=count * count)
    sizes = np.array(data.draw(entries), np.int64).reshape(count, count)
    assume(sizes[~np.eye(count, dtype=bool)].any())
    problem = alltoallv_problem(topology, sizes)
    check(problem, schedule_large(problem))


@fuzzed(few=4, many=200)
@given(st.data())
def test_process_groups(data):
    """Two process groups have valid schedules, or an error if too few ranks outside the groups may relay."""
    topology = data.draw(topologies())
    assume(topology.num_ranks >= 4)
    order = data.draw(st.permutations(range(topology.num_ranks)))
    cut = data.draw(st.integers(2, topology.num_ranks - 2))
    name = data.draw(st.sampled_from(["allgather", "alltoall", "allreduce", "reduce-scatter"]))
    groups = [
        collectives.make(name, len(ranks)).among(ranks, num_ranks=topology.num_ranks)
        for ranks in (order[:cut], order[cut:])
    ]
    relays = data.draw(st.sampled_from([None, frozenset(order[: cut // 2]), frozenset(order)]))
    collective = collectives.together(groups)
    problem = make_problem(topology, collective, chunk_bytes=MB, clauses=Clauses(relays=relays))
    assert suits(problem)
    try:
        schedule = schedule_large(problem)
    except CollectiveError as error:
        assert "cannot reach" in str(error) and relays is not None and relays != frozenset(order)
        return
    check(problem, schedule)


@fuzzed(few=6, many=150)
@given(st.data())
def test_failures(data):
    """If a link fails or has half its rate, a new schedule and a re-planned one verify."""
    topology = data.draw(topologies(most_ranks=6))
    name = data.draw(st.sampled_from(["allgather", "alltoall", "broadcast", "allreduce"]))
    problem = make_problem(topology, collectives.make(name, topology.num_ranks), chunk_bytes=MB)
    old = schedule_large(problem)
    failed = data.draw(st.sampled_from(topology.links))
    try:
        left = without(topology, links=[(failed.src, failed.dst)])
        changed = make_problem(left, problem.collective, chunk_bytes=MB)
        schedule = schedule_large(changed)
    except (TopologyError, CollectiveError, InfeasibleError):
        return  # no way is left, and that was said
    check(changed, schedule)
    assert taccl.verify(taccl.replan(old, changed, time_limit_s=0.1).schedule).ok


@fuzzed(few=2, many=40)
@given(st.data())
def test_never_worse_than_the_baselines(data):
    """`greedy` finishes no later than the ring and the pairwise exchange."""
    topology = data.draw(topologies(most_ranks=6))
    name = data.draw(st.sampled_from(["allgather", "allreduce", "reduce-scatter", "alltoall"]))
    problem = make_problem(topology, collectives.make(name, topology.num_ranks), chunk_bytes=MB)
    try:
        baseline = (pairwise if name == "alltoall" else ring)(problem, cut=False)
    except InputError:
        return  # it is not defined here
    result = brief_synthesis(problem, backend="greedy")
    assert taccl.verify(result.schedule).ok
    assert result.bound_us <= result.finish_us <= baseline.finish_us
