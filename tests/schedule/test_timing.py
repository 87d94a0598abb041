"""Exact times: every send as early as data, resources and the given order allow."""

import pytest

from taccl import collectives
from taccl.analysis.verification.verify import verify
from taccl.schedule.schedule import make_schedule
from taccl.schedule.timing import exact_times
from taccl.topology.builder import TopologyBuilder
from tests.analysis.random_schedules import random_schedules
from tests.fuzzing import MANY
from tests.synthesis.small_problems import custom, linked, problem_of


def one_link(num_chunks, *, alpha=2, meaning="occupies", **clauses):
    """Chunks from rank 0 to rank 1 over one link of alpha + 1 us each."""
    topology = linked("pair", [0, 0], [(0, 1)], alpha_us=alpha, beta_us_per_mb=1, alpha_meaning=meaning)
    return problem_of(topology, custom(2, [([0], [1])] * num_chunks), **clauses)


def pair():
    """Ranks 0 and 1, linked both ways in 2 us."""
    builder = TopologyBuilder("pair", [0, 0])
    builder.add_link(0, 1, alpha_us=1, beta_us_per_mb=1)
    builder.add_link(1, 0, alpha_us=1, beta_us_per_mb=1)
    return builder


def starts_of(schedule):
    """{(chunk, link): start in ticks}."""
    return {(t.chunk, t.link): t.start_ticks for t in schedule}


@pytest.mark.parametrize(
    "order", [{"starts": [9, 5, 7]}, {"sequence": [2, 0, 1]}], ids=lambda order: next(iter(order))
)
def test_sends_keep_their_order(order):
    """Given starts, or a given sequence, order the sends; times are then recomputed.

    Starts of 9, 5 and 7 give the order 1, 2, 0; each send takes 3 us.
    """
    schedule = exact_times(one_link(3), chunk=[0, 1, 2], link=[0, 0, 0], **order)
    assert starts_of(schedule) == {(1, 0): 0, (2, 0): 3, (0, 0): 6}


def test_a_send_listed_before_its_data_waits_for_it():
    """A send listed before its chunk arrives waits for the chunk."""
    topology = linked("chain", [0, 0, 0], [(0, 1), (1, 2)], alpha_us=1, beta_us_per_mb=1)
    problem = problem_of(topology, custom(3, [([0], [1, 2])]))
    schedule = exact_times(problem, chunk=[0, 0], link=[1, 0], sequence=[0, 1])
    verify(schedule).raise_if_failed()
    assert schedule.link.tolist() == [0, 1]


@pytest.mark.parametrize("orders", [{}, {"starts": [0], "sequence": [0]}], ids=["neither", "both"])
def test_exactly_one_order_is_given(orders):
    """`exact_times` requires `starts` or `sequence`, and refuses both together."""
    with pytest.raises(ValueError, match="either starts or sequence"):
        exact_times(one_link(1), chunk=[0], link=[0], **orders)


def test_an_empty_schedule_has_no_finish():
    """An empty schedule finishes at 0."""
    assert exact_times(one_link(1), chunk=[], link=[], starts=[]).finish_ticks == 0


def test_a_merged_send_takes_alpha_once():
    """Three chunks in one send take 2 + 3 * 1 us."""
    problem = one_link(3, merging=frozenset({0}), max_merge=3)
    schedule = exact_times(problem, chunk=[0, 1, 2], link=[0, 0, 0], starts=[0, 0, 0], group=[4, 4, 4])
    assert schedule.finish_ticks == 5
    assert schedule.num_sends == 1


def test_a_merged_send_waits_for_its_last_chunk():
    """A merged send waits for the last of its chunks.

    Chunk 1 arrives from rank 2 at 4, so the merged chunks 0 and 1 leave rank 0 at 4.
    """
    topology = linked("line", [0, 0, 0], [(0, 1, 2, 1), (2, 0, 3, 1)])
    problem = problem_of(topology, custom(3, [([0], [1]), ([2], [1])]), merging=frozenset({0}), max_merge=2)
    schedule = exact_times(problem, chunk=[0, 1, 1], link=[0, 0, 1], starts=[9, 9, 0], group=[0, 0, 1])
    assert starts_of(schedule) == {(1, 1): 0, (0, 0): 4, (1, 0): 4}
    assert schedule.finish_ticks == 4 + 2 + 2


def ingress():
    """Sends of 12 and 6 us that hold one ingress for their last 5 us."""
    builder = TopologyBuilder("ingress", [0, 0, 1, 1])
    nic = builder.add_resource("NIC of node 1")
    for src, dst, alpha, beta in ((0, 2, 4, 8), (1, 3, 2, 4)):
        link = builder.add_link(src, dst, alpha_us=alpha, beta_us_per_mb=beta)
        builder.add_hold(link, nic, alpha_us=1, beta_us_per_mb=4, side="receive")
    return problem_of(builder.build(), custom(4, [([0], [2]), ([1], [3])]))


@pytest.mark.parametrize(
    ("tentative", "start"),
    [
        # The short send holds [1, 6), before the long one's hold begins: both may start at 0.
        (1, 0),
        # The short send follows [7, 12) and holds [12, 17), so it starts at 11.
        (9, 11),
    ],
)
def test_a_receiving_hold_orders_a_later_send(tentative, start):
    """Two sends share a receiving port, which the long one holds from 7 to 12 us; the short one fits before
    or after."""
    schedule = exact_times(ingress(), chunk=[0, 1], link=[0, 1], starts=[0, tentative])
    assert starts_of(schedule) == {(0, 0): 0, (1, 1): start}


def test_pipelined_alpha_frees_the_link_early():
    """A pipelined link is free again after beta.

    Beta is 1 us: starts at 0, 1, 2, and the last send arrives at 2 + 3.
    """
    schedule = exact_times(one_link(3, meaning="pipelined"), chunk=[0, 1, 2], link=[0] * 3, starts=[0, 1, 2])
    assert starts_of(schedule) == {(0, 0): 0, (1, 0): 1, (2, 0): 2}
    assert schedule.finish_ticks == 5


def test_pipelined_merged_sends_hold_for_all_their_chunks():
    """Two merged chunks hold the link for 2 * beta: the next send starts at 2 and arrives at 5."""
    problem = one_link(3, meaning="pipelined", merging=frozenset({0}), max_merge=2)
    schedule = exact_times(problem, chunk=[0, 1, 2], link=[0] * 3, starts=[0, 0, 8], group=[0, 0, 1])
    assert starts_of(schedule) == {(0, 0): 0, (1, 0): 0, (2, 0): 2}


def test_a_reduction_waits_for_all_that_it_includes():
    """A partial sum leaves a rank once all contributions that it includes have arrived.

    Ranks 2 (4 us) and 3 (2 us) add to rank 1, which sends the sum at 4 us.
    """
    builder = TopologyBuilder("tree", [0] * 4)
    for src, dst, beta in ((1, 0, 1), (2, 1, 4), (3, 1, 2)):
        builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=beta)
    problem = problem_of(builder.build(), collectives.reduce(4))
    schedule = exact_times(
        problem, chunk=[0, 0, 0], link=[1, 2, 0], starts=[0, 0, 7], reduce=[True, True, True]
    )
    assert starts_of(schedule)[0, 0] == 4
    assert verify(schedule).ok


def test_what_arrives_later_is_not_read():
    """A rank's contribution must leave before the full sum is copied over it.

    Rank 0 holds the sum of chunk 0 at 1 us, and a copy to rank 1 takes 1 us. But link 1 -> 2 is busy with
    chunk 1 until 3 us. Only then does rank 1 send its part of chunk 0 to rank 2. So the copy may arrive at 4
    us at the earliest, and starts at 3 us.
    """
    topology = linked("read before write", [0] * 3, [(2, 0, 0, 1), (1, 2, 0, 3), (0, 1, 0, 1)])
    problem = problem_of(topology, custom(3, [([0, 1, 2], [0]), ([1, 2], [2])], combining=True))
    schedule = exact_times(
        problem, chunk=[0, 1, 0, 0], link=[0, 1, 1, 2], starts=[0, 0, 3, 4], reduce=[True, True, True, False]
    )
    assert starts_of(schedule) == {(0, 0): 0, (1, 1): 0, (0, 1): 3, (0, 2): 3}


def test_two_ranks_may_exchange_one_chunk():
    """Recursive doubling: both ranks send their contribution at 0 and hold the sum at 2."""
    problem = problem_of(pair().build(), custom(2, [([0, 1], [0, 1])], combining=True))
    valid = make_schedule(problem, chunk=[0, 0], link=[0, 1], start=[0, 0], end=[2, 2], reduce=[True, True])
    assert verify(valid).ok
    assert exact_times(problem, chunk=[0, 0], link=[0, 1], starts=[0, 0], reduce=[True, True]) == valid


def test_a_link_may_hold_one_resource_twice():
    """A link may hold one port twice, here for the first and the last 1 us of a send of 4 us.

    The next send starts after the second hold of the first one.
    """
    builder = TopologyBuilder("twice", [0] * 3)
    port = builder.add_resource("port")
    for dst in (1, 2):
        link = builder.add_link(0, dst, alpha_us=3, beta_us_per_mb=1)
        builder.add_hold(link, port, alpha_us=0, beta_us_per_mb=1)
        builder.add_hold(link, port, alpha_us=0, beta_us_per_mb=1, side="receive")
    problem = problem_of(builder.build(), custom(3, [([0], [1]), ([0], [2])]))
    schedule = exact_times(problem, chunk=[0, 1], link=[0, 1], starts=[0, 1])
    assert starts_of(schedule) == {(0, 0): 0, (1, 1): 4}
    assert verify(schedule).ok


def own_first(*, meaning="pipelined"):
    """Rank 0 sends its own chunk 0, then relays chunk 1 of rank 2, to rank 1; 0 -> 1 takes 2 + 1 us."""
    topology = linked("own first", [0] * 3, [(0, 1, 2, 1), (2, 0, 0, 1)], alpha_meaning=meaning)
    return problem_of(topology, custom(3, [([0], [1]), ([2], [1])]), own_first=frozenset({0}))


def test_own_and_relayed_chunks_are_a_latency_apart():
    """Under local-first priority a relayed chunk leaves one latency later than the pipelined link permits.

    The pipelined link is free at 1 us, and the relayed chunk arrives at 1 us, but it leaves at 2 + 1 us.
    """
    schedule = exact_times(own_first(), chunk=[0, 1, 1], link=[0, 0, 1], starts=[0, 5, 0])
    assert starts_of(schedule) == {(0, 0): 0, (1, 1): 0, (1, 0): 3}


def test_reductions_rooted_at_the_receiver_end_a_latency_after_others():
    """For reductions under local-first priority, a chunk rooted at the receiver starts once other sends ended.

    Rank 1 sends two chunks over a pipelined link: chunk 0 (1 MB, bound for rank 2 through rank 0) and chunk 1
    (3 MB, rooted at rank 0). Chunk 0 is sent at 0 and ends at 4 + 1 = 5 us. Chunk 1 ends at 5 + (4 + 3) = 12
    us, so it starts at 5 us.
    """
    problem = problem_of(
        linked("own last", [0] * 3, [(1, 0, 4, 1), (0, 2, 0, 1)], alpha_meaning="pipelined"),
        custom(3, [([0, 1, 2], [2]), ([0, 1], [0])], combining=True),
        chunk_bytes=[10**6, 3 * 10**6],
        own_first=frozenset({0}),
    )
    schedule = exact_times(
        problem, chunk=[0, 1, 0], link=[0, 0, 1], starts=[0, 20, 9], reduce=[True, True, True]
    )
    assert verify(schedule).ok, verify(schedule)
    assert starts_of(schedule)[1, 0] == 5


def test_an_order_that_contradicts_itself_is_refused():
    """Two merged sends that each need the other's chunk are refused."""
    problem = problem_of(
        pair().build(), custom(2, [([0], [1]), ([1], [0])]), merging=frozenset({0, 1}), max_merge=2
    )
    with pytest.raises(ValueError, match="is cyclic"):
        exact_times(problem, chunk=[0, 1, 0, 1], link=[0, 0, 1, 1], starts=[0] * 4, group=[0, 0, 1, 1])


def test_a_chunk_that_never_came_cannot_be_sent():
    """A send of a chunk that never arrived is refused."""
    problem = problem_of(pair().build(), custom(2, [([0], [1])]))
    with pytest.raises(ValueError, match="rank 1 sends chunk 0, which it never holds"):
        exact_times(problem, chunk=[0], link=[1], starts=[0])


@pytest.mark.parametrize(
    ("columns", "what"), [({"link": [0, 1]}, "link"), ({"link": [0, 0], "reduce": [True, False]}, "reduce")]
)
def test_a_merged_send_is_of_one_kind(columns, what):
    """A group over two links, or of a copy and a reduction, is refused."""
    problem = problem_of(pair().build(), custom(2, [([0, 1], [0, 1])] * 2, combining=True))
    with pytest.raises(ValueError, match=f"transfers of group 0 differ in {what}"):
        exact_times(problem, chunk=[0, 1], starts=[0, 0], group=[0, 0], **columns)


def test_scan_sends_what_it_derives_when_the_source_is_there():
    """Rank 1 derives prefix 1 from prefix 0 at 2 us and sends it at 2 us."""
    topology = linked("line", [0] * 3, [(0, 1), (1, 2)], alpha_us=1, beta_us_per_mb=1)
    schedule = exact_times(
        problem_of(topology, collectives.scan(3)), chunk=[0, 1], link=[0, 1], starts=[0, 9]
    )
    assert starts_of(schedule) == {(0, 0): 0, (1, 1): 2}


def _again(schedule, start):
    return exact_times(
        schedule.problem,
        chunk=schedule.chunk,
        link=schedule.link,
        starts=start,
        group=schedule.group,
        reduce=schedule.reduce,
    )


@pytest.mark.slow
def test_two_evaluations_agree_to_the_last_bit():
    """Timing a schedule twice gives one digest, and timing the result again changes nothing."""
    for schedule in random_schedules()[:: 2 if MANY else 15]:
        once = _again(schedule, schedule.start)
        assert once.digest() == _again(schedule, schedule.start).digest()
        assert once.digest() == _again(once, once.start).digest()


@pytest.mark.slow
def test_valid_times_are_never_later_afterwards():
    """Re-timing a valid schedule (here with its second half delayed) makes no send later."""
    tried = 0
    for schedule in random_schedules()[::2]:
        for delay in (0, 1, 3):
            start = schedule.start + delay * (schedule.start >= schedule.finish_ticks // 2)
            late = make_schedule(
                schedule.problem,
                chunk=schedule.chunk,
                link=schedule.link,
                start=start,
                end=start + (schedule.end - schedule.start),
                group=schedule.group,
                reduce=schedule.reduce,
            )
            if not verify(late).ok:
                continue
            tried += 1
            found = _again(late, late.start)
            assert verify(found).ok
            before = {(t.chunk, t.link, t.reduce): t.start_ticks for t in late}
            assert all(t.start_ticks <= before[t.chunk, t.link, t.reduce] for t in found)
    assert tried > 100
