"""Verification of schedules without a column of end times: chunks sent around a ring, dates and updates.

``test_verify_mutations.py`` has mutations of every kind.
"""

from dataclasses import replace

import numpy as np
import pytest

import taccl
from taccl import collectives
from taccl.analysis.verification import columns, data, named_sums, sends
from taccl.analysis.verification.columns import pairs
from taccl.analysis.verification.findings import MOST_LISTED
from taccl.analysis.verification.verify import verify
from taccl.baselines import chunking
from taccl.problem.making import make_problem
from taccl.schedule.schedule import Schedule
from taccl.synthesis.proposers.large import schedule_large
from taccl.topology.builder import TopologyBuilder
from tests.analysis import valid_schedules as valid

#: Ticks of a 1 MB send over a link of 50 GB/s: 20.5 us in half microseconds.
SEND = 41


def ring_exchange(num_ranks):
    """Every rank sends its chunk to its neighbour at time 0, over a ring of one direction."""
    conditions = {r: [r] for r in range(num_ranks)}, {r: [(r + 1) % num_ranks] for r in range(num_ranks)}
    collective = collectives.custom(num_ranks, precondition=conditions[0], postcondition=conditions[1])
    problem = make_problem(taccl.topologies.ring(num_ranks), collective, chunk_bytes=10**6)
    links = {(e.src, e.dst): i for i, e in enumerate(problem.topology.links)}
    link = [links[r, (r + 1) % num_ranks] for r in range(num_ranks)]
    return (
        problem,
        np.arange(num_ranks, dtype=np.int32),
        np.array(link, np.int32),
        np.zeros(num_ranks, np.int32),
    )


def test_a_valid_schedule_passes():
    """Sends at time 0, each over its own link, are valid."""
    problem, chunk, link, start = ring_exchange(3)
    found = verify(Schedule(problem, chunk, link, start))
    assert found.ok
    assert found.finish_us == SEND / 2


def test_a_chunk_that_is_not_there_is_found():
    """A send of the last chunk from rank 0 to rank 1, one tick before the chunk arrives at rank 0, is a
    violation."""
    problem, chunk, link, start = ring_exchange(3)
    columns = np.append(chunk, chunk[-1]), np.append(link, link[0]), np.append(start, np.int32(SEND - 1))
    found = verify(Schedule(problem, *columns)).violations
    assert {fault.kind for fault in found} == {"presence", "contention"}  # nor is its link free by then
    later = np.append(start, np.int32(SEND))
    assert verify(Schedule(problem, *columns[:2], later)).ok


def test_a_chunk_from_where_it_never_is_is_found():
    """Chunk 0 sent from rank 2, where it never arrives, is a violation."""
    problem, chunk, link, start = ring_exchange(3)
    columns = np.append(chunk, np.int32(0)), np.append(link, link[2]), np.append(start, np.int32(SEND))
    (fault,) = verify(Schedule(problem, *columns)).violations
    assert fault.kind == "presence"


def test_a_chunk_that_never_arrives_is_found():
    """If the last send is missing, the postcondition is violated."""
    problem, chunk, link, start = ring_exchange(3)
    (fault,) = verify(Schedule(problem, chunk[:-1], link[:-1], start[:-1])).violations
    assert fault.kind == "postcondition"
    assert (fault.chunk, fault.rank) == (2, 0)


def test_a_link_that_does_not_exist_is_found():
    """Unknown links are index violations, and the schedule has no finish."""
    problem, chunk, link, start = ring_exchange(3)
    found = verify(Schedule(problem, chunk, link + 4, start))
    assert "index" in {fault.kind for fault in found.violations}
    assert np.isnan(found.finish_us)


def test_pairs_number_chunks_from_the_first():
    """Pairs of chunk and rank, with chunks numbered from `first`: chunk 5 is at ranks 1 and 2, chunk 6 at
    none, chunk 7 at rank 0."""
    chunk, rank = pairs([(1, 2), (), (0,)], first=5)
    assert chunk.tolist() == [5, 5, 7]
    assert rank.tolist() == [1, 2, 0]


@pytest.mark.slow
def test_links_of_several_ends_that_carry_nothing_are_no_hindrance():
    """Unused in-network links do not change the verdict."""
    topology = taccl.topologies.dgx_h100(1, nvls=True)
    pairs = frozenset(i for i, link in enumerate(topology.links) if len(link.srcs) + len(link.dsts) == 2)
    problem = make_problem(topology, collectives.allgather(8), chunk_bytes=10**6)
    schedule = schedule_large(problem.with_clauses(links_allowed=pairs))
    assert taccl.verify(schedule).ok and taccl.verify(valid.full(schedule)).ok
    early = Schedule(schedule.problem, schedule.chunk, schedule.link, np.zeros_like(schedule.start))
    assert not taccl.verify(early).ok


def columns_of(problem, *rows):
    """A schedule without end times from rows (chunk, link, start, reduces)."""
    chunk, link, start, reduces = zip(*rows, strict=True)
    return Schedule(
        problem,
        np.array(chunk, np.int32),
        np.array(link, np.int32),
        np.array(start),
        reduce=np.array(reduces),
    )


def kinds(schedule):
    """Kinds of violation, asserted to equal those of the same schedule with end times."""
    found = {each.kind for each in taccl.verify(schedule).violations}
    assert {each.kind for each in taccl.verify(valid.full(schedule)).violations} == found
    return found


@pytest.mark.parametrize(
    ("release", "due", "kind"), [(0, 5.5, None), (1, 5.5, "release"), (0, 5, "due"), (0, 6, None)]
)
def test_dates_bind_columns(release, due, kind):
    """Release and due dates are checked: a chunk leaves rank 0 at 0 and reaches rank 2 at 5.5 us."""
    problem = replace(valid.relay().problem, release_us=((0, 0, release),), due_us=((0, 2, due),))
    assert kinds(columns_of(problem, (0, 0, 0, False), (0, 1, 6, False))) == ({kind} if kind else set())


@pytest.mark.parametrize(("pull", "kind"), [(200, None), (199, "update")])
def test_a_server_updates_sums_of_columns(pull, kind):
    """A worker may pull a sum only after the server's update.

    Two workers push 1 MB each by 10 us, and the update ends at 20 us, with ten ticks per us.
    """
    topology = TopologyBuilder("star", [0, 0, 0])
    for src, dst in ((0, 2), (1, 2), (2, 0), (2, 1)):
        topology.add_link(src, dst, alpha_us=0, beta_us_per_mb="10")
    topology.add_link(0, 1, alpha_us="0.1", beta_us_per_mb=1)
    collective = collectives.exchange([0, 1], [2], num_ranks=3, update_us_per_mb=10)
    problem = make_problem(topology.build(), collective, chunk_bytes=10**6)
    rows = [(0, 0, 0, True), (0, 1, 0, True), (0, 2, pull, False), (0, 3, pull, False)]
    assert kinds(columns_of(problem, *rows)) == ({kind} if kind else set())


def test_columns_may_be_in_any_order():
    """Rows may be in any order: here the second send comes first."""
    problem = valid.relay().problem
    assert not kinds(columns_of(problem, (0, 1, 6, False), (0, 0, 0, False)))
    assert kinds(columns_of(problem, (0, 1, 5, False), (0, 0, 0, False))) == {"presence"}


@pytest.mark.slow
def test_a_thousand_violations_of_a_kind_are_listed():
    """1,000 of 1,100 violations of a kind are listed, and the verdict is marked as incomplete."""
    problem, *_ = ring_exchange(MOST_LISTED + 100)
    found = verify(Schedule(problem, *(np.zeros(0, np.int32),) * 3))
    assert (len(found.violations), found.is_complete) == (MOST_LISTED, False)
    assert "breaks more than 1000 rules" in repr(found)
    problem, *_ = ring_exchange(MOST_LISTED)
    found = verify(Schedule(problem, *(np.zeros(0, np.int32),) * 3))
    assert (len(found.violations), found.is_complete) == (MOST_LISTED, True)


@pytest.mark.parametrize("is_large", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_both_forms_of_a_loop_name_contributions(is_large, monkeypatch):
    """The Python loop and the compiled loop find the same faults: contributions of ranks 2 and 65 arrive
    twice, that of rank 7 never."""
    monkeypatch.setattr(columns, "MANY", 0 if is_large else 1 << 15)
    topology = TopologyBuilder("star", [0] * 70)
    for rank in range(1, 70):
        topology.add_link(rank, 0, alpha_us=1, beta_us_per_mb=1)
    problem = make_problem(topology.build(), collectives.reduce(70), chunk_bytes=10**6)
    rows = [(0, link, 0, True) for link in range(69) if link != 6]
    found = verify(columns_of(problem, *rows, (0, 1, 2, True), (0, 64, 2, True)))
    texts = [each.message.split(": ")[1] for each in found.violations]
    twice = "adds contributions of ranks {} that the rank already holds"
    assert texts == [twice.format(2), twice.format(65), "the sum lacks contributions of ranks 7"]


@pytest.mark.slow
def test_a_loop_accepts_many_sums_that_are_no_trees(monkeypatch):
    """The compiled loop accepts sums whose contributions do not travel along trees.

    Ranks 0 and 1, and 2 and 3 exchange partial sums, then 0 and 2, and 1 and 3.
    """
    monkeypatch.setattr(columns, "MANY", 0)
    monkeypatch.setattr(data, "replay_sum", None)  # which replays only what is at fault
    topology = TopologyBuilder("square", [0] * 4)
    ends = [(0, 1), (1, 0), (2, 3), (3, 2), (0, 2), (2, 0), (1, 3), (3, 1)]
    for src, dst in ends:
        topology.add_link(src, dst, alpha_us=1, beta_us_per_mb=1)
    problem = make_problem(topology.build(), collectives.allreduce(4), chunk_bytes=10**6)
    rows = [(c, link, 4 * c + 2 * (link > 3), True) for c in range(4) for link in range(8)]
    assert taccl.verify(columns_of(problem, *rows)).ok


def test_only_merged_sends_that_may_be_wrong_are_read_one_by_one(monkeypatch):
    """Merged sends are judged as columns; the transfers of a faulty one are then read to name the fault."""
    problem = chunking.merging(make_problem(taccl.topologies.dgx2(1), "allreduce", size_bytes=10**6))
    schedule = taccl.baselines.multiplying(problem, cut=False)
    assert schedule.num_sends < schedule.num_transfers
    read, is_one_send = [], sends._is_one_send
    monkeypatch.setattr(sends, "_is_one_send", lambda *of: read.append(of[1]) or is_one_send(*of))
    assert verify(schedule).ok
    assert not read
    link = schedule.link.copy()
    link[0] = schedule.link[np.flatnonzero(schedule.link != link[0])[0]]
    faults = verify(replace(schedule, link=link))
    assert read == [schedule.group[0]]
    assert "merge" in {each.kind for each in faults.violations}


@pytest.mark.parametrize(
    ("topology", "name"),
    [(taccl.topologies.ndv2(1), "multiplying"), (taccl.topologies.torus(4, 4), "bucket")],
)
def test_sums_judged_together_and_one_by_one_have_the_same_faults(monkeypatch, topology, name):
    """Valid sums with named contributions are judged by sorts; loops give the same verdict for each change.

    On the torus, ranks hold sums that overlap.
    """
    problem = make_problem(topology, "allreduce", size_bytes=10**5)
    schedule = taccl.baselines.baseline(name, problem, cut=False)
    assert schedule.carries is not None
    rng, num = np.random.default_rng(0), schedule.num_transfers
    every = [schedule]
    for _ in range(40):
        field = rng.choice(["start", "carries", "link", "chunk"])
        column = getattr(schedule, field).copy()
        column[rng.integers(num)] = column[rng.integers(num)]
        end = schedule.end - schedule.start + column if field == "start" else schedule.end
        every.append(replace(schedule, **{"end": end, field: column}))
    together = [verify(each) for each in every]
    compared, is_sum_of_all = [], named_sums._is_sum_of_all

    def compare(wanted, known, by):
        compared.append((wanted, id(known)))
        return is_sum_of_all(wanted, known, by)

    monkeypatch.setattr(named_sums, "_is_sum_of_all", compare)
    assert verify(schedule).ok
    assert not compared  # it is judged by sorts
    monkeypatch.setattr(named_sums.NamedSums, "_are_made", lambda _: False)
    assert verify(schedule).ok
    assert compared
    if name == "multiplying":  # a rank that sends a sum many times composes it once
        assert len(set(compared)) == len(compared)
    assert together == [verify(each) for each in every]
    assert 1 < sum(each.ok for each in together) < len(together)


@pytest.mark.parametrize(("collective", "name"), [("alltoall", "pairwise"), ("allreduce", "hierarchical")])
def test_many_copies_and_sums_are_judged_by_sorts(collective, name, monkeypatch):
    """Valid copies and sums along trees, hundreds of transfers, are judged without a loop over sends.

    Loops in Python would take most of the time of the verifier, and numba takes 0.3 s to load.
    """
    problem = make_problem(taccl.topologies.dgx_h100(3), collective, size_bytes="1MB")
    schedule = taccl.baselines.baseline(name, problem, cut=False)
    assert schedule.num_transfers >= columns.SOME
    monkeypatch.setattr(columns, "MANY", 1 << 30)
    for module, name in ((data, "fitted"), (sends, "fitted"), (data, "replay_sum")):
        monkeypatch.setattr(module, name, lambda *_: pytest.fail("a loop over sends"))
    assert verify(schedule).ok
    late = replace(schedule, start=schedule.start // 2)
    monkeypatch.undo()
    assert not verify(late).ok
