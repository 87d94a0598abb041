"""Valid schedules corrupted by hand in every kind of violation, and at random; each is reported exactly."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

import pytest

from taccl.analysis.verification.findings import KINDS
from taccl.analysis.verification.verify import verify
from tests.analysis import valid_schedules as valid
from tests.analysis.mutations import LISTED, mutated
from tests.analysis.tick_simulation import is_valid
from tests.analysis.valid_schedules import SMALL, Row, build, rows_of, without_ends
from tests.fuzzing import some

if TYPE_CHECKING:
    from collections.abc import Callable

    from taccl.schedule.schedule import Schedule


class Mutation(NamedTuple):
    """A change of a valid schedule, and the expected violations.

    Rows whose (chunk, link) is in `drop` are replaced by `rows`; `places` are the (rank, chunk, link) of all
    violations, which are of one kind.
    """

    what: str
    kind: str
    example: Callable[[], Schedule]
    drop: tuple[tuple[int, int], ...]
    rows: tuple[Row, ...]
    places: tuple[tuple[int | None, int, int | None], ...]

    def schedule(self):
        """The corrupted schedule."""
        start = self.example()
        rows = [row for row in rows_of(start) if (row.chunk, row.link) not in self.drop]
        # Kept rows get group numbers from 100 on, above those of the new rows.
        kept = [row._replace(group=100 + row.group) for row in rows]
        return build(start.problem, [*kept, *self.rows])


def _reduce(chunk, link, start, end):
    return Row(chunk, link, start, end, reduce=True)


#: {kind: faults}: description, example, dropped rows, new rows, and places of the violations.
FAULTS = {
    "index": [
        ("unknown chunk", valid.relay, (), (Row(1, 0, 6, 12),), ((0, 1, 0),)),
        ("negative chunk", valid.relay, (), (Row(-1, 0, 6, 12),), ((0, -1, 0),)),
        ("unknown link", valid.relay, (), (Row(0, 2, 6, 12),), ((None, 0, 2),)),
        ("negative link", valid.relay, (), (Row(0, -1, 6, 12),), ((None, 0, -1),)),
        (
            "unknown chunk in a merged send, whose other chunks are then not timed",
            valid.merged,
            ((0, 1), (1, 1), (3, 1), (0, 2)),
            (*(Row(chunk, 1, 2, 37, 7) for chunk in (0, 1, 4)), Row(0, 2, 37, 39), Row(3, 1, 37, 52)),
            ((0, 4, 1),),
        ),
    ],
    "interval": [
        ("no time at all", valid.relay, (), (Row(0, 0, 6, 6),), ((0, 0, 0),)),
        ("end before start", valid.relay, (), (Row(0, 0, 12, 6),), ((0, 0, 0),)),
        ("start before 0", valid.relay, ((0, 0),), (Row(0, 0, -1, 5),), ((0, 0, 0),)),
    ],
    "times": [
        ("a tick too long", valid.relay, ((0, 1),), (Row(0, 1, 6, 12),), ((1, 0, 1),)),
        ("a tick too short", valid.relay, ((0, 1),), (Row(0, 1, 6, 10),), ((1, 0, 1),)),
        ("the time of another chunk", valid.unequal_chunks, ((1, 1),), (Row(1, 1, 0, 5),), ((1, 1, 1),)),
        (
            "two alphas in a merged send",
            valid.merged,
            ((0, 1), (1, 1), (0, 2), (3, 1)),
            (Row(0, 1, 2, 32, 7), Row(1, 1, 2, 32, 7), Row(0, 2, 32, 34), Row(3, 1, 32, 47)),
            ((0, 0, 1),),
        ),
    ],
    "merge": [
        (
            "merged chunks start apart",
            valid.merged,
            ((0, 1), (1, 1)),
            (Row(0, 1, 2, 27, 7), Row(1, 1, 3, 27, 7)),
            ((0, 1, 1),),
        ),
        (
            "merged chunks end apart",
            valid.merged,
            ((0, 1), (1, 1)),
            (Row(0, 1, 2, 27, 7), Row(1, 1, 2, 28, 7)),
            ((0, 1, 1),),
        ),
        (
            "one group over two links",
            valid.switch_ports,
            ((0, 0), (1, 2)),
            (Row(0, 0, 0, 2, 7), Row(1, 2, 0, 2, 7)),
            ((1, 1, 2),),
        ),
        (
            "a chunk twice in one send",
            valid.merged,
            ((0, 1), (1, 1)),
            (Row(0, 1, 2, 27, 7), Row(0, 1, 2, 27, 7), Row(1, 1, 2, 27, 7)),
            ((0, 0, 1),),
        ),
        (
            "a send of the same chunk twice",
            valid.merged,
            ((3, 1),),
            (Row(3, 1, 27, 52, 7), Row(3, 1, 27, 52, 7)),
            ((0, 3, 1),),
        ),
        (
            "merging where the link does not",
            valid.switch_ports,
            ((0, 1), (1, 2)),
            (Row(0, 2, 2, 5, 7), Row(1, 2, 2, 5, 7)),
            ((1, 0, 2),),
        ),
        (
            "three chunks where two may merge",
            valid.merged,
            ((0, 1), (1, 1), (3, 1), (0, 2)),
            (Row(0, 1, 2, 37, 7), Row(1, 1, 2, 37, 7), Row(3, 1, 2, 37, 7), Row(0, 2, 37, 39)),
            ((0, 0, 1),),
        ),
    ],
    "presence": [
        ("a relay too early", valid.relay, ((0, 1),), (Row(0, 1, 5, 10),), ((1, 0, 1),)),
        ("a derived chunk before its source", valid.scan, ((1, 1),), (Row(1, 1, 1, 3),), ((1, 1, 1),)),
        ("a merged chunk that is not there yet", valid.merged, ((1, 0),), (Row(1, 0, 1, 3),), ((0, 1, 1),)),
        ("one source of a switch empty", valid.hyperedges, (), (_reduce(1, 0, 2, 4),), ((2, 1, 0),)),
        ("an empty buffer sent", valid.own_last, (), (Row(1, 2, 0, 2),), ((0, 1, 2),)),
    ],
    "contention": [
        ("a NIC not free yet", valid.shared_nic, ((1, 1),), (Row(1, 1, 8, 20),), ((1, 1, 1),)),
        ("a NIC that two sends enter", valid.ingress_nic, ((1, 1),), (Row(1, 1, 2, 8),), ((0, 0, 0),)),
        ("a port that two sends enter", valid.switch_ports, ((1, 2),), (Row(1, 2, 1, 3),), ((1, 1, 2),)),
        (
            "a port that two sends leave",
            valid.switch_ports,
            ((0, 1), (1, 2)),
            (Row(0, 1, 0, 2), Row(1, 2, 1, 3)),
            ((0, 0, 1),),
        ),
        ("a busy link", valid.relay, (), (Row(0, 0, 5, 11),), ((0, 0, 0),)),
        (
            "two sends that could be merged",
            valid.merged,
            ((0, 1), (1, 1), (0, 2), (3, 1)),
            (Row(0, 1, 2, 17), Row(1, 1, 2, 17), Row(0, 2, 17, 19), Row(3, 1, 17, 32)),
            ((0, 1, 1),),
        ),
    ],
    "postcondition": [
        ("an undelivered chunk", valid.relay, ((0, 1),), (), ((2, 0, None),)),
        ("an incomplete sum", valid.reduce_chain, ((0, 0),), (), ((0, 0, None),)),
    ],
    "double-count": [
        ("a contribution by two ways", valid.reduce_chain, (), (_reduce(0, 3, 4, 6),), ((0, 0, 3),)),
        (
            "a sum added to its parts",
            valid.hyperedges,
            ((0, 1),),
            (_reduce(0, 1, 2, 4),),
            ((1, 0, 1), (2, 0, 1)),
        ),
        (
            "sources of a switch that overlap",
            valid.hyperedges,
            ((0, 0), (0, 1)),
            (_reduce(0, 2, 0, 2), _reduce(0, 0, 2, 4), Row(0, 1, 4, 6)),
            ((2, 0, 0),),
        ),
    ],
    "lost-contribution": [
        ("a copy over a partial sum", valid.reduce_chain, (), (Row(0, 2, 2, 4),), ((1, 0, 2),))
    ],
    "race": [("a copy and a reduction at once", valid.hyperedges, (), (_reduce(0, 2, 2, 4),), ((2, 0, 1),))],
    "reduce": [
        ("a reduction in a broadcast", valid.relay, ((0, 1),), (_reduce(0, 1, 6, 11),), ((2, 0, 1),)),
        ("a reduction in a scan", valid.scan, ((1, 1),), (_reduce(1, 1, 2, 4),), ((2, 1, 1),)),
    ],
    "link-not-allowed": [("a forbidden link", valid.guided, ((0, 0),), (Row(0, 3, 0, 2),), ((0, 0, 3),))],
    "carries-from": [
        ("a chunk on others' relay", valid.guided, ((0, 0),), (Row(0, 4, 0, 2),), ((0, 0, 4),)),
        ("a sum on others' relay", valid.guided_allreduce, (), (Row(1, 3, 8, 10),), ((0, 1, 3),)),
    ],
    "carries-to": [
        ("a reduction on others' relay", valid.reduce_chain, ((0, 0),), (_reduce(0, 4, 0, 2),), ((2, 0, 4),))
    ],
    "direct-crossing": [
        (
            "a way through a third node",
            valid.guided,
            ((0, 0),),
            (Row(0, 1, 0, 2), Row(0, 2, 2, 4)),
            ((0, 0, 1), (1, 0, 2)),
        ),
        (
            "a reduction through a third node",
            valid.guided_reduce,
            ((0, 0), (0, 3)),
            (_reduce(0, 1, 0, 2), _reduce(0, 2, 2, 4), Row(0, 3, 4, 6)),
            ((2, 0, 1), (1, 0, 2)),
        ),
    ],
    "own-first": [
        ("a relayed chunk too soon", valid.own_first, ((1, 1),), (Row(1, 1, 1, 3),), ((1, 0, 1),)),
        ("a relayed chunk before the own", valid.own_first, ((1, 1),), (Row(1, 1, 3, 5),), ((1, 0, 1),)),
        (
            "a relayed chunk with the own",
            valid.own_first,
            ((1, 1), (0, 1)),
            (Row(1, 1, 2, 5, 7), Row(0, 1, 2, 5, 7)),
            ((1, 0, 1),),
        ),
        (
            "a chunk of another root before the own",
            valid.guided_allreduce,
            ((0, 2),),
            (Row(0, 2, 10, 12),),
            ((0, 1, 2),),
        ),
        ("a relayed reduction too late", valid.own_last, ((1, 0),), (_reduce(1, 0, 1, 3),), ((2, 0, 0),)),
        (
            "a relayed reduction after the own",
            valid.own_last,
            ((0, 0), (0, 1), (1, 0)),
            (_reduce(1, 0, 0, 2), _reduce(0, 0, 1, 3), _reduce(0, 1, 3, 5)),
            ((2, 0, 0),),
        ),
    ],
    "too-many-hops": [("over two links", valid.direct, ((0, 2),), (Row(0, 1, 3, 6),), ((1, 0, 1),))],
}
MUTATIONS = [Mutation(what, kind, *fault) for kind, faults in FAULTS.items() for what, *fault in faults]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.what)
def test_names_exactly_the_fault(mutation):
    """Exactly one kind of violation is reported, at the expected ranks, chunks and links, and in the interval of
    a transfer. The tick-by-tick simulation refuses each corrupted schedule, too."""
    schedule = mutation.schedule()
    found = verify(schedule).violations
    expected = [(mutation.kind, *place) for place in mutation.places]
    assert [(v.kind, v.rank, v.chunk, v.link) for v in found] == expected
    us = schedule.problem.costs.us
    intervals = {(t.chunk, t.link, float(us(t.start_ticks)), float(us(t.end_ticks))) for t in schedule}
    assert all(v.link is None or (v.chunk, v.link, v.start_us, v.end_us) in intervals for v in found)
    assert not is_valid(schedule)


def test_faults_are_named_without_ends():
    """Without columns of ends and groups, which merges and wrong durations need, faults are of the same kind."""
    named = set()
    for mutation in MUTATIONS:
        schedule = without_ends(mutation.schedule())
        if schedule is not None:
            assert {v.kind for v in verify(schedule).violations} == {mutation.kind}, mutation.what
            named.add(mutation.kind)
    assert named == {mutation.kind for mutation in MUTATIONS} - {"index", "times", "merge"}


def test_valid_schedules_need_no_ends():
    """Valid schedules are accepted without columns of ends and groups, except the one that merges."""
    short = {example.__name__: without_ends(example()) for example in SMALL}
    assert [name for name, schedule in short.items() if schedule is None] == ["merged"]
    assert all(verify(schedule).ok for schedule in short.values() if schedule is not None)


@pytest.mark.parametrize("example", SMALL, ids=lambda each: each.__name__)
def test_simulation_accepts_valid_schedules(example):
    """The tick-by-tick simulation accepts every valid schedule."""
    assert is_valid(example())


def test_every_kind_has_a_mutation():
    """Every kind of violation has a mutation, and every mutation a known kind.

    Symmetry violations, only of implicit schedules, are tested in ``test_verify_implicit.py``, release and
    due dates in ``test_listing.py``, updates in ``test_servers.py``.
    """
    elsewhere = {"symmetry", "release", "due", "update"}
    assert {mutation.kind for mutation in MUTATIONS} == set(KINDS) - elsewhere


@pytest.mark.slow
@pytest.mark.parametrize("example", SMALL, ids=lambda each: each.__name__)
def test_random_mutations_are_caught_or_harmless(example):
    """Verifier and simulation agree on every schedule with one to three random changes."""
    start = example()
    rng = random.Random(f"mutations of {example.__name__}")
    verdicts = set()
    for _ in range(some(50, 500)):
        changed = build(start.problem, mutated(rng, rows_of(start), start.problem, LISTED))
        found = verify(changed)
        assert found.ok == is_valid(changed), f"{found}\n{changed.table()}"
        verdicts.add(found.ok)
    assert verdicts == {True, False}


@pytest.mark.parametrize("clause", ["links_allowed", "own_first", "max_merge", "merging", "carries_from"])
def test_valid_schedule_fails_a_stricter_clause(clause):
    """The valid schedule `merged` violates each of these stricter clauses."""
    schedule = valid.merged()
    stricter = {
        "links_allowed": frozenset({0, 2, 3}),  # without link 1, off the node
        "own_first": frozenset({1}),  # chunk 1 is relayed in one send with chunk 0
        "max_merge": 1,
        "merging": frozenset(),
        "carries_from": {1: frozenset({1})},  # only chunks of rank 1
    }
    problem = schedule.problem.with_clauses(**{clause: stricter[clause]})
    found = verify(build(problem, rows_of(schedule))).violations
    assert {v.clause for v in found} == {clause}
    assert {v.link for v in found} == {1}
