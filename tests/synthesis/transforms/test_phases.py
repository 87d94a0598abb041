"""Reducing collectives in one call: reduce phase, broadcast phase, and their overlap."""

import itertools

import pytest

import taccl
from taccl import collectives
from taccl._internal.deadline import Deadline
from taccl.baselines import baseline
from taccl.synthesis.proposers import ruin, stages
from taccl.synthesis.proposers.large import schedule_large
from taccl.synthesis.search import Options, Search
from taccl.synthesis.transforms import phases
from taccl.synthesis.transforms.phases import search_phases
from taccl.topology.builder import TopologyBuilder
from tests.effort import AMPLE_S, BRIEF, HASTY, assert_sound, brief_synthesis
from tests.fuzzing import by_turns, some
from tests.synthesis.brute_force import optimal_ticks
from tests.synthesis.small_problems import custom, linked, problem_of, random_problem, ring, star, two_nodes

TOPOLOGIES = {"ring": ring(4), "star": star(3), "two nodes": two_nodes()}
COMBINING = {
    "reduce": collectives.reduce(4, root=2),
    "reduce-scatter": collectives.reduce_scatter(4),
    "allreduce": collectives.allreduce(4),
    "allreduce of 2 chunks a rank": collectives.allreduce(4, chunks_per_rank=2),
    "scan": collectives.scan(4),
}
MULTI_ROOT = {
    "broadcast": collectives.multi_root_broadcast(4, roots=[1, 3]),
    "scatter": collectives.multi_root_scatter(4, roots=[0, 2]),
    "gather": collectives.multi_root_gather(4, roots=[0, 3]),
    "reduce": custom(4, [(range(4), [1]), (range(4), [3])], combining=True),
    "allreduce": custom(4, [(range(4), range(4)), ([1, 2], [0, 3])], combining=True),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("topology", "collective", "backend"),
    by_turns(TOPOLOGIES, COMBINING, ["auto", "greedy", "highs", "cpsat"]),
)
def test_combining(topology, collective, backend):
    """Every reducing collective has a verified schedule on every kind of network."""
    problem = problem_of(TOPOLOGIES[topology], COMBINING[collective])
    assert_sound(brief_synthesis(problem, backend=backend), problem)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("topology", "collective", "backend"), by_turns(TOPOLOGIES, MULTI_ROOT, ["auto", "greedy", "highs"])
)
def test_multi_root(topology, collective, backend):
    """Collectives with several roots, reducing or not, have verified schedules."""
    problem = problem_of(TOPOLOGIES[topology], MULTI_ROOT[collective])
    assert_sound(brief_synthesis(problem, backend=backend), problem)


def test_phases_of_early_sums_overlap():
    """The server's first sums leave while later contributions arrive: 22 us, not 36 us for one after another."""
    collective = collectives.exchange(range(4), [0], chunks_per_server=8)
    square = taccl.topologies.ring(4, alpha_us=1, bandwidth_gb_per_s=1)
    problem = taccl.make_problem(square, collective, size_bytes=8000)
    found = [baseline("pairwise", phase.problem, cut=False) for phase in phases.split(problem)]
    joined = phases.join(problem, found, retimed=False)
    together = phases.overlapped(joined)
    assert taccl.verify(together).ok
    assert (joined.finish, together.finish) == (36, 22)


@pytest.mark.parametrize("name", ["reduce", "reduce-scatter"])
def test_reductions_only_reduce(name):
    """Sums needed only at their root have no broadcast phase: every transfer reduces."""
    result = brief_synthesis(problem_of(ring(4), COMBINING[name]))
    assert result.schedule.reduce.all()
    assert not any(stage.name.startswith("broadcast") for stage in result.stages)


def test_allreduce_reduces_and_spreads():
    """On 4 ranks each of 4 chunks takes 4 reducing transfers, 2 of them in an exchange, and 2 copies."""
    schedule = brief_synthesis(problem_of(ring(4), collectives.allreduce(4))).schedule
    assert (int(schedule.reduce.sum()), int((~schedule.reduce).sum())) == (16, 8)


# (topology, collective, finish in us), derived by hand.
# On a ring of 4, 2 us per hop, a sum needs data from two hops away, 4 us.
# The 12 sends of a reduce-scatter need two rounds over the 8 links of a ring, also 4 us.
# On a star with leaves 1, 2 and 3 us away, a sum at the hub takes the slowest leaf's 3 us.
# For a sum at leaf 3, the sum of the others is at the hub after 2 us and takes 3 us more.
KNOWN = [
    ("ring", collectives.reduce_scatter(4), 4),
    ("ring", collectives.reduce(4), 4),
    ("star", collectives.reduce(4), 3),
    ("star", collectives.reduce(4, root=3), 5),
]


@pytest.mark.parametrize(("topology", "collective", "finish_us"), KNOWN)
def test_known_finish(topology, collective, finish_us):
    """The finish found for a reducing collective equals the value derived by hand."""
    result = brief_synthesis(problem_of(TOPOLOGIES[topology], collective))
    assert result.finish_us == finish_us


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(some(6, 24)))
def test_random(seed):
    """On random reductions: bound <= optimum (by brute force, where possible) <= finish found.

    Brute force assumes one buffer per chunk; a schedule that keeps contributions separate may finish earlier.
    """
    problem = random_problem(seed, combining=True)
    result = brief_synthesis(problem, backend="greedy")
    taccl.verify(result.schedule).raise_if_failed()
    assert result.bound_us <= result.finish_us
    least = optimal_ticks(problem, max_states=2_000)
    if least is None:
        return
    assert result.bound_us <= problem.costs.us(least)
    assert problem.costs.us(least) <= result.finish_us or result.schedule.contributions is not None


@pytest.mark.slow
class TestBothHalves:
    """Reduce and broadcast phases of an allreduce together."""

    def test_phases_overlap(self):
        """On a star with leaves 1, 2 and 3 us away, fast leaves' sums spread while the slow leaf's are formed.

        One phase after the other takes 9 + 9 us. The link to leaf 3 has 4 sends of 3 us, and the first, of a
        partial sum, can start at 2 us. So the last send ends at 14 us, if sums may be completed at ranks
        other than the collective's roots.
        """
        search = Search(problem_of(star(3), collectives.allreduce(4)), Options(), Deadline.after(100.0))
        search_phases(search, lambda part: stages.greedy(part, budget_s=0.0, max_runs=1))
        assert search.best.finish_us == 18
        assert taccl.improve(search.best, parameters=BRIEF, time_limit_s=AMPLE_S).finish_us == 14

    def test_the_best_trees_are_improved_where_sums_that_are_kept_apart_come_first(self, monkeypatch):
        """For 64 KB on two NDv2 recursive multiplying finishes before the two-phase schedule along trees, until ruin
        and recreate has improved the latter."""
        improved = []
        improve = ruin.improve_schedule

        def watch(schedule, *given):
            improved.append(schedule)
            return improve(schedule, *given)

        monkeypatch.setattr(ruin, "improve_schedule", watch)
        problem = taccl.make_problem(
            taccl.topologies.ndv2(2), collectives.allreduce(16, chunks_per_rank=1), size_bytes=64_000
        )
        result = brief_synthesis(problem, parameters=HASTY)
        assert_sound(result, problem)
        [first] = improved
        multiplying = taccl.baselines.baseline("multiplying", problem, cut=False)
        assert multiplying.finish < first.finish and multiplying.carries is not None
        assert result.schedule.finish < multiplying.finish

    def test_bound_met_needs_none(self):
        """If one phase after the other meets the bound, no improvement runs."""
        result = brief_synthesis(problem_of(two_nodes(), collectives.allreduce(4)))
        assert (result.finish_us, result.stopped) == (14, "bound met")
        assert "ruin and recreate" not in [each.name for each in result.stages]

    def test_merging_clauses_hold(self):
        """Merged sends between nodes stay merged, and never mix reductions with copies."""
        problem = problem_of(
            two_nodes(),
            collectives.allreduce(4, chunks_per_rank=2),
            merging=frozenset({4, 5, 6}),
            max_merge=2,
        )
        result = brief_synthesis(problem)
        assert_sound(result, problem)
        schedule = result.schedule
        kinds = {}
        for group, reduces in zip(schedule.group.tolist(), schedule.reduce.tolist(), strict=True):
            assert kinds.setdefault(group, reduces) == reduces

    @pytest.mark.parametrize("name", ["ndv2/sk1", "ndv2/sk1-n1", "ndv2/sk2-n1"])
    def test_on_a_sketch(self, name):
        """Reductions under a shipped sketch, with its symmetry and merging, have verified schedules."""
        sketch = taccl.load_sketch(name)
        topology = sketch.topology()
        problem = sketch.apply(topology, collectives.allreduce(topology.num_ranks))
        assert_sound(brief_synthesis(problem), problem)


def test_halves_of_fine_ticks_are_joined():
    """Reduce and broadcast phases are joined even if the finish in ticks exceeds 32 bits."""
    builder = taccl.topologies.TopologyBuilder("fine", [0] * 4)
    for src, dst in itertools.permutations(range(4), 2):
        builder.add_link(src, dst, alpha_us="0.123456789", beta_us_per_mb="2.345")
    problem = taccl.make_problem(builder.build(), "allreduce", size_bytes=4_000_004)
    found = schedule_large(problem, num_runs=1, seed=0)
    assert found.finish_ticks > 2**32
    assert taccl.verify(found).ok


@pytest.mark.parametrize("name", ["reduce", "reduce-scatter", "allreduce"])
@pytest.mark.parametrize("backend", ["greedy", "auto"])
def test_links_that_add_up_count_a_contribution_once(name, backend):
    """On a ring of three with a reduction link from ranks 1 and 2 to 0, each contribution counts once."""
    builder = TopologyBuilder("adding", [0, 0, 0])
    for rank, beta in enumerate((3, 1, 3)):
        builder.add_link(rank, (rank + 1) % 3, alpha_us=0, beta_us_per_mb=beta)
    builder.add_link((1, 2), 0, alpha_us=1, beta_us_per_mb=1)
    problem = problem_of(builder.build(), collectives.make(name, 3))
    assert_sound(brief_synthesis(problem, backend=backend), problem)


def test_links_that_add_up_may_be_needed_and_count_twice():
    """A problem for which no schedule adds each contribution once is an error.

    Here rank 0 is reached only by a reduction link from ranks 1 and 2, and rank 2 only from rank 1.
    """
    topology = linked("narrow", [0, 0, 0], [*((0, 1), (1, 2)), ((1, 2), 0)], alpha_us=0, beta_us_per_mb=1)
    problem = problem_of(topology, collectives.reduce_scatter(3))
    with pytest.raises(taccl.NoSolutionError, match="adds each contribution once"):
        brief_synthesis(problem, backend="greedy")


@pytest.mark.parametrize(("backend", "exists"), [("auto", True), ("highs", False)])
def test_a_whole_schedule_exists_once_the_first_of_isomorphic_phases_has_one(backend, exists):
    """On a ring the broadcast phase is the reduce phase, renamed, so its schedule serves both at once.

    A named solver's trace has its own schedules only, so it waits for the end of the phase.
    """
    problem = taccl.make_problem(taccl.topologies.ring(6), "allreduce", size_bytes="6MB", chunks_per_rank=1)
    search = Search(problem, Options(), Deadline.after(100.0), backend=backend)
    finishes = []

    def search_phase(part):
        stages.greedy(part, budget_s=0.0, max_runs=1)
        finishes.append(None if search.best is None else search.best.finish_us)

    search_phases(search, search_phase)
    assert finishes == [search.best.finish_us if exists else None]
    assert taccl.verify(search.best).ok


def test_a_phase_that_finds_a_better_schedule_later_shortens_the_whole(monkeypatch):
    """If a step of a phase runs after the phases were joined, as it was short of time, they are joined again."""
    monkeypatch.setattr(phases, "find_isomorphism", lambda *_: None)
    problem = taccl.make_problem(taccl.topologies.ring(6), "allreduce", size_bytes="6MB", chunks_per_rank=1)
    search, parts = Search(problem, Options(), Deadline.after(100.0)), []

    def search_phase(part):
        parts.append(part)
        part.offer_whole(taccl.baselines.tree(part.problem, cut=False), producer="tree")

    search_phases(search, search_phase)
    finishes = [search.finish]
    for part in parts:
        stages.greedy(part, budget_s=0.0, max_runs=1)
        finishes.append(search.finish)
    assert finishes[0] > finishes[1] > finishes[2]
    assert taccl.verify(search.best).ok
