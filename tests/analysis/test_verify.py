"""Schedules that `verify` accepts, and its messages."""

import dataclasses
import pickle
import warnings
from fractions import Fraction

import numpy as np
import pytest

from taccl import collectives
from taccl.analysis.verification.verify import verify
from taccl.errors import NumericsWarning, VerificationError
from taccl.problem.chunks import Chunk
from taccl.problem.collective import Collective
from taccl.problem.making import make_problem
from taccl.problem.problem import Clauses, Problem
from taccl.schedule.schedule import make_schedule
from taccl.topology.builder import TopologyBuilder
from tests.analysis.valid_schedules import (
    MB,
    SMALL,
    Row,
    allreduce,
    build,
    coarse_grid,
    guided,
    merged,
    relay,
    rows_of,
    scan,
    shared_nic,
    unequal_chunks,
)
from tests.effort import cpu_s
from tests.synthesis.small_problems import linked, problem_of


@pytest.mark.parametrize("example", SMALL, ids=lambda each: each.__name__)
def test_valid_schedule_has_no_violation(example):
    """Every valid example schedule has no violation."""
    assert verify(example()).violations == ()


def test_counts_transfers_and_sends():
    """A merged send of two chunks is two transfers in one send."""
    found = verify(merged())
    assert (found.num_transfers, found.num_sends, found.finish_us) == (6, 5, 42.0)


def test_empty_schedule_of_nothing_to_do_is_valid():
    """An allgather of one rank is valid without transfers."""
    topology = TopologyBuilder("alone", [0]).build()
    found = verify(build(make_problem(topology, collectives.allgather(1), chunk_bytes=1), []))
    assert found.ok
    assert found.finish_us == 0


def test_empty_schedule_of_something_to_do_fails():
    """The violations of an empty schedule of a broadcast name each of its two destinations."""
    found = verify(build(relay().problem, []))
    assert [(v.kind, v.rank, v.chunk) for v in found.violations] == [
        ("postcondition", 1, 0),
        ("postcondition", 2, 0),
    ]


@pytest.mark.parametrize(
    ("make", "again"),
    [
        (relay, Row(0, 0, 6, 12)),
        # Rank 1 derives prefix 1 at 2; a copy that returns from rank 2 at 6 adds nothing.
        (scan, Row(1, 2, 4, 6)),
        # Rank 1 sends the complete sum of chunk 0 to rank 2, which holds it already.
        (allreduce, Row(0, 3, 4, 6)),
    ],
)
def test_what_comes_a_second_time_is_counted_and_allowed(make, again):
    """If a rank already holds, derived or summed a chunk, its arrival counts as redundant and is no
    violation."""
    schedule = make()
    found = verify(build(schedule.problem, [*rows_of(schedule), again]))
    assert (found.ok, found.num_redundant) == (True, 1)


def test_a_sum_that_comes_back_updated_is_not_redundant():
    """Rank 0 alone contributes, and needs the sum that its server updates; a second copy is redundant."""
    topology = linked("pair", [0, 0], [(0, 1, 0, 4), (1, 0, 0, 1)])
    sums = Collective("sums", 2, (Chunk((0,), (0,), root=1),), combining=True, update_us_per_mb=0)
    problem = problem_of(topology, sums)
    for times in (1, 2):
        rows = {"chunk": [0] * (1 + times), "link": [0, *[1] * times], "start": [0, 4, 5][: 1 + times]}
        found = verify(make_schedule(problem, **rows, reduce=[True, *[False] * times]))
        assert (found.ok, found.num_redundant) == (True, times - 1)


def test_derivations_chain_without_delay():
    """A rank that derives chunk 1 from 0 and 2 from 1 may send 2 as soon as 0 arrives."""
    topology = TopologyBuilder("line", [0, 0, 0])
    topology.add_link(0, 1, alpha_us=1, beta_us_per_mb=1)
    topology.add_link(1, 2, alpha_us=1, beta_us_per_mb=1)
    collective = collectives.Collective(
        "chain",
        3,
        (collectives.Chunk((0,), ()), collectives.Chunk((), ()), collectives.Chunk((), (2,))),
        derivations=(collectives.Derivation(1, 1, 2), collectives.Derivation(0, 1, 1)),
    )
    problem = make_problem(topology.build(), collective, chunk_bytes=[MB, MB, MB])
    assert verify(build(problem, [Row(0, 0, 0, 2), Row(2, 1, 2, 4)])).ok
    early = verify(build(problem, [Row(0, 0, 0, 2), Row(2, 1, 1, 3)]))
    assert [v.kind for v in early.violations] == ["presence"]


def test_snapshot_is_taken_at_the_start():
    """Data reduced into a buffer during a send is not part of the send."""
    schedule = allreduce()
    # Rank 0 sends chunk 0 to rank 1 one tick before the contributions of 1 and 2 arrive at 2.
    rows = [
        r._replace(start=1, end=3) if (r.chunk, r.link, r.start) == (0, 0, 2) else r
        for r in rows_of(schedule)
    ]
    found = verify(build(schedule.problem, rows))
    lost = [v for v in found.violations if v.kind == "lost-contribution"]
    assert [(v.rank, v.chunk) for v in lost] == [(1, 0)]


def test_two_different_copies_at_the_same_time_are_a_race():
    """Rank 1 receives a partial and the complete sum at the same time: a race."""
    topology = TopologyBuilder("triangle", [0, 0, 0])
    for src, dst in ((2, 0), (2, 1), (0, 1)):
        topology.add_link(src, dst, alpha_us=1, beta_us_per_mb=1)
    collective = collectives.custom(3, precondition={0: [0, 2]}, postcondition={0: [0, 1]}, combining=True)
    problem = make_problem(topology.build(), collective, chunk_bytes=MB)
    whole = [Row(0, 0, 0, 2, reduce=True), Row(0, 2, 2, 4)]
    assert verify(build(problem, [*whole, Row(0, 1, 1, 3)])).ok
    found = verify(build(problem, [*whole, Row(0, 1, 2, 4)]))
    assert [(v.kind, v.rank, v.link) for v in found.violations] == [("race", 1, 2)]


@pytest.mark.parametrize(("whole_us", "ticks_per_us"), [(0, 10**9), (10**12, 10**6)])
def test_coarse_grid_rounds_up_and_no_further(whole_us, ticks_per_us):
    """Costs that fit no tick are rounded up to the next one, and no further.

    1/3 us is 333333333.3 ticks: ends of 333333334 plus beta are accepted, one tick more or less is refused.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericsWarning)
        schedule = coarse_grid(whole_us)
        assert schedule.problem.costs.ticks_per_us == ticks_per_us
        assert verify(schedule).ok
        right = int(schedule.end[0])
        for end in (right - 1, right + 1):
            wrong = verify(build(schedule.problem, [Row(0, 0, 0, end)]))
            assert [v.kind for v in wrong.violations] == ["times"]


def test_times_do_not_come_from_the_problem_costs():
    """The verifier ignores manipulated costs of the problem."""
    schedule = unequal_chunks()
    costs = schedule.problem.costs
    wrong = dataclasses.replace(costs, link_alpha=np.array([0, 0]), link_beta=np.array([1, 1]))
    problem = dataclasses.replace(schedule.problem)
    problem.__dict__["costs"] = wrong
    found = verify(build(problem, [Row(0, 0, 0, 2), Row(1, 1, 0, 3)]))
    assert {v.kind for v in found.violations} == {"times"}


def test_no_rounding_on_a_grid_that_is_too_coarse():
    """If ticks are whole microseconds, a send that takes 2.5 us may not be scheduled as 3: the grid is too
    coarse."""
    problem = dataclasses.replace(relay().problem)
    problem.__dict__["costs"] = dataclasses.replace(problem.costs, ticks_per_us=1)
    found = verify(build(problem, [Row(0, 0, 0, 3), Row(0, 1, 3, 6)]))
    assert [(v.kind, v.link) for v in found.violations] == [("times", 1)]


def test_no_rounding_on_a_grid_that_could_be_exact():
    """If an exact grid exists, rounded times are refused.

    Thirds of a microsecond are exact at 3 ticks per us, so they may not be rounded at 10**6 ticks per us.
    """
    topology = TopologyBuilder("thirds", [0, 0])
    topology.add_link(0, 1, alpha_us=Fraction(1, 3), beta_us_per_mb=1)
    problem = make_problem(topology.build(), collectives.broadcast(2), chunk_bytes=MB)
    assert verify(build(problem, [Row(0, 0, 0, 4)])).ok
    problem = dataclasses.replace(problem)
    problem.__dict__["costs"] = dataclasses.replace(problem.costs, ticks_per_us=10**6)
    found = verify(build(problem, [Row(0, 0, 0, 1333334)]))
    assert [v.kind for v in found.violations] == ["times"]


def test_the_verifier_does_not_call_may_carry(monkeypatch):
    """The verifier evaluates clauses itself, without methods of `Problem`."""
    schedule = guided()
    monkeypatch.setattr(Problem, "may_carry", lambda *_, **__: pytest.fail("asked"))
    assert verify(schedule).ok


def test_send_does_not_contend_with_itself():
    """A send that holds one resource on both sides does not conflict with itself."""
    topology = TopologyBuilder("bus", [0, 0])
    bus = topology.add_resource("bus")
    for _ in range(2):
        link = topology.add_link(0, 1, alpha_us=1, beta_us_per_mb=1)
        topology.add_hold(link, bus, alpha_us=1, beta_us_per_mb=1)
        topology.add_hold(link, bus, alpha_us=1, beta_us_per_mb=1, side="receive")
    problem = make_problem(topology.build(), collectives.broadcast(2, chunks_per_rank=2), chunk_bytes=MB)
    assert verify(build(problem, [Row(0, 0, 0, 2), Row(1, 1, 2, 4)])).ok
    found = verify(build(problem, [Row(0, 0, 0, 2), Row(1, 1, 1, 3)]))
    assert {v.kind for v in found.violations} == {"contention"}
    assert {v.chunk for v in found.violations} == {1}


def test_long_hold_contends_beyond_its_neighbour():
    """A long hold contends with later ones, even after a shorter hold that has ended.

    A NIC held in [0, 10) is not free at 6, even after an invalid hold [2, 4).
    """
    topology = TopologyBuilder("NIC", [0, 0, 0, 1])
    nic = topology.add_resource("NIC")
    for src, cost in ((0, 10), (1, 2), (2, 2)):
        link = topology.add_link(src, 3, alpha_us=0, beta_us_per_mb=cost)
        topology.add_hold(link, nic, alpha_us=0, beta_us_per_mb=cost)
    problem = make_problem(topology.build(), collectives.gather(4, root=3), chunk_bytes=MB)
    found = verify(build(problem, [Row(0, 0, 0, 10), Row(1, 1, 2, 4), Row(2, 2, 6, 8)]))
    assert [(v.kind, v.chunk) for v in found.violations] == [("contention", 1), ("contention", 2)]


def test_message_names_rank_chunk_link_and_times():
    """The message of a violation starts with rank, chunk, link and times."""
    schedule = relay()
    first, second = rows_of(schedule)
    found = verify(build(schedule.problem, [first, second._replace(start=5, end=10)]))
    (violation,) = found.violations
    assert violation.message == (
        "rank 1, chunk 0, link 1 (1->2), 2.5 to 5 us: rank 1 holds the chunk only from 3 us"
    )
    assert (violation.start_us, violation.end_us) == (2.5, 5.0)


def test_message_of_a_clause_names_its_file():
    """A clause's violation names its file and field."""
    schedule = guided()
    (violation,) = verify(build(schedule.problem, [Row(0, 4, 0, 2)])).violations
    assert violation.clause == "carries_from"
    assert violation.message.endswith("(guided.toml: internode.relays)")


def test_raise_if_failed_lists_ten_and_the_count():
    """Twelve violations are printed as ten lines and the number of others."""
    topology = TopologyBuilder("ranks", [0] * 13).build()
    problem = make_problem(topology, collectives.broadcast(13), chunk_bytes=MB)
    found = verify(build(problem, []))
    with pytest.raises(VerificationError, match="breaks 12 rules") as caught:
        found.raise_if_failed()
    assert str(caught.value).count("postcondition:") == 10
    assert str(caught.value).endswith("... and 2 more")
    assert caught.value.violations == found.violations


def test_raise_if_failed_is_silent_on_success():
    """For a valid schedule `raise_if_failed` raises nothing, and the verification says ok."""
    found = verify(relay())
    found.raise_if_failed()
    assert repr(found) == "Verification(2 transfers in 2 sends, finish 5.5 us: ok)"


def test_verification_can_cross_processes():
    """A verification can be pickled."""
    found = verify(build(relay().problem, []))
    assert pickle.loads(pickle.dumps(found)) == found


def test_verify_leaves_the_schedule_alone():
    """The verifier does not change the schedule: its digest is the same before and after."""
    schedule = shared_nic()
    before = schedule.digest()
    verify(schedule)
    assert schedule.digest() == before


def _ring(num_ranks, *, combining=False):
    """Ring allgather, in which rank r sends chunk r - t to its right in round t; or the reduce-scatter."""
    topology = TopologyBuilder("ring", [0] * num_ranks)
    for rank in range(num_ranks):
        topology.add_link(rank, (rank + 1) % num_ranks, alpha_us=1, beta_us_per_mb=1)
    make = collectives.reduce_scatter if combining else collectives.allgather
    problem = make_problem(topology.build(), make(num_ranks), chunk_bytes=MB)
    rounds, links = np.divmod(np.arange(num_ranks * (num_ranks - 1)), num_ranks)
    chunk = (links - rounds - combining) % num_ranks
    return make_schedule(
        problem,
        chunk=chunk,
        link=links,
        start=2 * rounds,
        end=2 * rounds + 2,
        reduce=np.full(len(links), combining),
    )


@pytest.mark.slow
@pytest.mark.parametrize("combining", [False, True])
def test_transfers_are_gone_through_once(combining):
    """Verification takes time in proportion to the number of transfers.

    Rings of 40 and 160 ranks have 1,560 and 25,440 transfers: 16 times as many take less than 80 times the
    CPU.
    """
    small, large = (_ring(num_ranks, combining=combining) for num_ranks in (40, 160))
    assert verify(large).ok
    assert cpu_s(lambda: verify(large)) < 80 * cpu_s(lambda: verify(small))


def test_merged_send_is_reduced_or_copied_as_a_whole():
    """A merged send of two chunks that reduces one and copies the other is refused."""
    topology = TopologyBuilder("pair", [0, 0])
    topology.add_link(1, 0, alpha_us=1, beta_us_per_mb=1)
    collective = collectives.custom(
        2, precondition={0: [0, 1], 1: [1]}, postcondition={0: [0], 1: [0]}, combining=True
    )
    clauses = Clauses(merging=frozenset({0}), max_merge=2)
    problem = make_problem(topology.build(), collective, chunk_bytes=MB, clauses=clauses)
    both = build(problem, [Row(0, 0, 0, 3, 0, reduce=True), Row(1, 0, 0, 3, 0, reduce=True)])
    assert verify(both).ok
    mixed = build(problem, [Row(0, 0, 0, 3, 0, reduce=True), Row(1, 0, 0, 3, 0)])
    assert [v.kind for v in verify(mixed).violations] == ["merge"]


class TestPhaseOfASum:
    """The data that a send carries, not its operation, decides which clause applies to it."""

    @staticmethod
    def kinds(links, precondition, postcondition, rows, **clauses):
        """Kinds of violation of rows (link, operation) in sequence, 2 us each."""
        topology = TopologyBuilder("links", [0] * (1 + max(map(max, links))))
        for src, dst in links:
            topology.add_link(src, dst, alpha_us=1, beta_us_per_mb=1)
        collective = collectives.custom(
            1 + max(map(max, links)),
            precondition={0: precondition}, postcondition={0: postcondition}, combining=True,
        )  # fmt: skip
        problem = make_problem(topology.build(), collective, chunk_bytes=MB, clauses=Clauses(**clauses))
        schedule = build(
            problem,
            [Row(0, link, 2 * i, 2 * i + 2, reduce=what == "reduce") for i, (link, what) in enumerate(rows)],
        )
        return [v.kind for v in verify(schedule).violations]

    @pytest.mark.parametrize(("carries", "kinds"), [({0}, ["carries-to"]), ({2}, [])])
    def test_copy_of_part_of_a_sum(self, carries, kinds):
        """Rank 1 copies the sum of ranks 0 and 1 back to rank 0. As this is still the reduce phase, the link
        must be allowed to carry sums to root 2."""
        found = self.kinds(
            [(0, 1), (1, 0), (0, 2)], [0, 1, 2], [2], [(0, "reduce"), (1, "copy"), (2, "reduce")],
            carries_to={1: frozenset(carries)},
        )  # fmt: skip
        assert found == kinds

    @pytest.mark.parametrize("what", ["copy", "reduce"])
    @pytest.mark.parametrize(("carries", "kinds"), [({1}, ["carries-from"]), ({0}, [])])
    def test_whole_sum_added_to_nothing(self, what, carries, kinds):
        """Root 0 sends the sum to rank 2, which holds nothing: adding it there counts as a copy."""
        found = self.kinds(
            [(1, 0), (0, 2)], [0, 1], [0, 2], [(0, "reduce"), (1, what)], carries_from={1: frozenset(carries)}
        )  # fmt: skip
        assert found == kinds

    @pytest.mark.parametrize(("carries", "kinds"), [({0}, ["carries-to"]), ({2}, [])])
    def test_whole_sum_on_its_way_to_a_root_without_a_part(self, carries, kinds):
        """Rank 1 has the complete sum, but root 2 has not received it yet, so the sum is still in the reduce
        phase."""
        found = self.kinds(
            [(0, 1), (1, 2), (2, 3)], [0, 1], [2, 3], [(0, "reduce"), (1, "reduce"), (2, "copy")],
            carries_to={1: frozenset(carries)}, carries_from={1: frozenset({1}), 2: frozenset({2})},
        )  # fmt: skip
        assert found == kinds

    def test_sum_of_one_contributor_starts_whole(self):
        """A sum with the single contributor 1 is complete there and spreads from rank 1: link 2 may not carry
        it."""
        found = self.kinds(
            [(0, 1), (1, 2), (2, 3)], [1], [2, 3], [(1, "copy"), (2, "copy")],
            carries_to={1: frozenset({0})}, carries_from={1: frozenset({1}), 2: frozenset({2})},
        )  # fmt: skip
        assert found == ["carries-from"]

    @pytest.mark.parametrize("what", ["copy", "reduce"])
    def test_one_contributor_at_the_root(self, what):
        """A sum with the single contributor 0, the root, is complete from the start and spreads from there."""
        found = self.kinds([(0, 1)], [0], [0, 1], [(0, what)], carries_from={0: frozenset({1})})
        assert found == ["carries-from"]
