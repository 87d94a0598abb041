"""Baselines in finer chunks."""

from dataclasses import replace

import pytest

from taccl import collectives
from taccl._internal.deadline import OutOfTime
from taccl.analysis.verification.verify import verify
from taccl.baselines import BASELINES, best, buckets, chunking
from taccl.baselines import forms as forms_module
from taccl.baselines.chunking import (
    cut_chunks,
    cut_while_it_pays,
    keep_soonest,
    merging,
    soonest_so_far,
    without_sketch,
)
from taccl.baselines.direct import least_one_shot_us
from taccl.baselines.forms import Form, complete_so_far, fastest_in_turn, in_reversed_time
from taccl.baselines.moves import Sends
from taccl.errors import CollectiveError
from taccl.problem.collectives import together
from taccl.problem.making import make_problem
from taccl.topology import fabrics
from taccl.topology.builder import TopologyBuilder
from tests.fuzzing import by_turns


def test_parts_follow_one_another():
    """Parts of a chunk are adjacent, and have its origins and destinations."""
    problem = make_problem(fabrics.ring(3), collectives.allgather(3), chunk_bytes=1000)
    halves = cut_chunks(problem, 2)
    assert halves.collective == collectives.allgather(3, chunks_per_rank=2)
    assert halves.chunk_bytes == (500,) * 6
    assert halves.size_bytes == problem.size_bytes


def test_parts_are_whole_bytes():
    """Parts are rounded up to whole bytes, and a note says so."""
    problem = make_problem(fabrics.ring(3), collectives.allgather(3), chunk_bytes=1000)
    thirds = cut_chunks(problem, 3)
    assert set(thirds.chunk_bytes) == {334}
    assert thirds.notes[-1] == "each chunk is cut into 3 parts, rounded up to whole bytes"


def test_process_groups_keep_their_chunks():
    """Chunks of joined process groups are cut within each group."""
    pair = [collectives.allgather(2).among(ranks, num_ranks=4) for ranks in ((0, 1), (2, 3))]
    both = cut_chunks(make_problem(fabrics.ring(4), together(pair), chunk_bytes=1000), 2).collective
    assert [group.num_chunks for group in both.groups] == [4, 4]
    assert both.chunks_of_group == (range(4), range(4, 8))


def test_latency_keeps_chunks_whole(make, unit_costs):
    """If the latency of a send is as long as its data takes, the chunks of a ring are not cut further."""
    problem = make("allgather", fabrics.ring(4, **unit_costs))
    assert BASELINES["ring"](problem).problem.chunk_bytes == problem.chunk_bytes


def test_one_byte_is_not_cut():
    """A chunk has at least one byte."""
    problem = make_problem(fabrics.ring(3, alpha_us=0), collectives.broadcast(3), chunk_bytes=1)
    assert BASELINES["tree"](problem).problem.chunk_bytes == (1,)


def test_cutting_ends_before_transfers_are_too_many(monkeypatch):
    """Cutting stops at the limit on transfers, even where finer chunks would be faster."""
    monkeypatch.setattr("taccl.baselines.chunking.MOST_CUT", 40)
    problem = make_problem(fabrics.ring(3, alpha_us=0), collectives.broadcast(3), chunk_bytes=1 << 20)
    found = cut_while_it_pays(problem, lambda each: BASELINES["tree"](each, cut=False), name="here", cut=True)
    assert 20 < found.num_transfers <= 40


def test_merged_messages_along_dimensions_are_cut_on_large_tori():
    """On a torus of 14 x 14, all links are busy only if chunks are cut into four parts, two per dimension."""
    problem = make_problem(fabrics.torus(14, 14), "allgather", size_bytes=196 * 10**6)
    found = BASELINES["bucket"](problem)
    assert found.num_transfers == 4 * 196 * 195 > chunking.MOST_CUT
    verify(found).raise_if_failed()
    whole = BASELINES["bucket"](merging(problem), cut=False)
    assert found.finish_us < 0.6 * whole.finish_us


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "collective"), by_turns(BASELINES, ["allreduce", "allgather", "broadcast", "reduce"])
)
def test_cut_schedules_verify_and_are_no_slower(name, collective):
    """Schedules in finer chunks are valid and finish no later than those in whole chunks."""
    topology = fabrics.torus(2, 4, ranks_per_node=4, alpha_us=0)
    problem = make_problem(topology, collectives.make(collective, 8), chunk_bytes=10**6)
    try:
        whole, found = BASELINES[name](problem, cut=False), BASELINES[name](problem)
    except CollectiveError:
        return
    verify(found).raise_if_failed()
    assert whole.problem.collective == problem.collective
    assert found.finish <= whole.finish


def test_finer_chunks_are_not_built_unmerged_if_latencies_alone_take_longer(monkeypatch):
    """Finer unmerged chunks are not tried if their latencies alone exceed a merged schedule's time.

    On the torus here, an allreduce of 100 KB is faster with merged messages.
    """
    built = []

    def noted(problem, forms):
        built.append((bool(problem.clauses.merging), problem.collective.num_chunks))
        return forms_module.fastest_form(problem, forms)

    monkeypatch.setattr(buckets, "fastest_form", noted)
    torus = fabrics.torus(4, 4)
    found = BASELINES["bucket"](make_problem(torus, "allreduce", size_bytes=100_000))
    assert found.problem.clauses.merging
    assert (False, 16) in built and (True, 64) in built and (False, 64) not in built


def test_nothing_to_send_is_not_cut():
    """A schedule without sends is built once, in whole chunks."""
    alone = TopologyBuilder("alone", [0]).build()
    problem = make_problem(alone, collectives.allgather(1), chunk_bytes=1 << 20)
    made = []

    def make(each):
        made.append(each)
        return BASELINES["tree"](each, cut=False)

    assert len(cut_while_it_pays(problem, make, name="here", cut=True)) == 0
    assert len(made) == 1


def test_the_best_baseline_of_nothing_to_send_is_empty():
    """The best baseline for a chunk that is where it must end has no transfers, on links that form no grid."""
    kept = collectives.custom(3, precondition={0: [0]}, postcondition={0: [0]})
    links = TopologyBuilder("line", [0] * 3)
    for src, dst in ((0, 1), (1, 0), (1, 2), (2, 1), (0, 2)):
        links.add_link(src, dst, alpha_us=1, beta_us_per_mb=1)
    assert best(make_problem(links.build(), kept, chunk_bytes=1000)).num_transfers == 0


def test_whole_chunks_are_made_once():
    """The schedule of whole chunks is cached for a search that asks for finer chunks."""
    problem = make_problem(fabrics.ring(3, alpha_us=0), collectives.broadcast(3), chunk_bytes=1)
    whole = BASELINES["tree"](problem, cut=False)
    assert BASELINES["tree"](problem, cut=True) is whole


@pytest.mark.slow
def test_the_best_baseline_skips_what_lists_too_much(monkeypatch):
    """For large chunks `best` does not build one-shot sums, which send 15 times the data on a torus."""
    problem = make_problem(fabrics.torus(4, 4), "allreduce", size_bytes="16MB")

    def listed(*_, **__):
        pytest.fail("one-shot is listed")

    monkeypatch.setattr("taccl.baselines.one_shot", listed)
    monkeypatch.setitem(BASELINES, "one-shot", listed)
    assert verify(best(problem)).ok


@pytest.mark.slow
def test_the_best_baseline_leaves_out_what_has_too_many_transfers(monkeypatch):
    """`best` skips a baseline with too many transfers and returns another one."""
    monkeypatch.setattr("taccl.baselines.moves._MOST_TRANSFERS", 2_000)
    problem = make_problem(fabrics.torus(4, 4), "allreduce", size_bytes="16MB", chunks_per_rank=1)
    with pytest.raises(CollectiveError, match="expected at most 1000"):
        BASELINES["one-shot"](problem, cut=False)
    assert verify(best(problem, cut=False)).ok


@pytest.mark.parametrize(
    ("topology", "name"), [(fabrics.ring(4), "bucket"), (fabrics.fully_connected(4), "tree")]
)
def test_the_best_baseline_so_far_is_returned_once_time_is_up(topology, name):
    """With almost no time `best` returns the usually best baseline of a torus, or elsewhere the quickest one."""
    problem = make_problem(topology, collectives.allgather(4), chunk_bytes=1 << 20)
    first = BASELINES[name](problem, cut=False)
    assert best(problem, time_limit_s=1e-9).digest() == first.digest()


def test_a_complete_form_of_the_first_baseline_counts_once_time_is_up(monkeypatch):
    """If a form of the first baseline is complete when time is up, `best` returns it and tries no other."""
    problem = make_problem(fabrics.ring(4), collectives.allgather(4), chunk_bytes=1 << 20)
    form = BASELINES["ring"](problem, cut=False)

    def endless(problem, *, cut):
        complete_so_far(without_sketch(problem)).append(form)
        while True:
            pass

    for name in BASELINES:
        monkeypatch.setitem(BASELINES, name, endless)
    assert best(problem, time_limit_s=1e-9).digest() == form.digest()


def test_finer_chunks_that_were_made_in_time_count(monkeypatch):
    """If time is up while finer chunks are tried, the best schedule in finer chunks so far is returned."""
    problem = make_problem(fabrics.ring(4), collectives.allgather(4), chunk_bytes=1 << 20)
    whole = BASELINES["ring"](problem, cut=False)
    finer = replace(whole, start=whole.start // 2, end=whole.end // 2)

    def made(problem, *, cut):
        keep_soonest(problem, finer)
        return whole

    for name in BASELINES:
        monkeypatch.setitem(BASELINES, name, made)
    assert best(problem, time_limit_s=1e-9).finish == finer.finish < whole.finish
    assert best(problem).finish == whole.finish


def test_one_shot_finishes_no_sooner_than_its_bound():
    """The estimate of one-shot's finish is a lower bound on it."""
    problem = make_problem(fabrics.torus(4, 4), "allreduce", size_bytes="16MB")
    assert 0 < least_one_shot_us(problem) <= BASELINES["one-shot"](problem, cut=False).finish_us


def test_a_second_call_continues_cutting():
    """A second call goes on with finer chunks where the time limit ended the first, without rebuilding its
    schedules."""
    problem = make_problem(fabrics.ring(12, alpha_us=0), collectives.broadcast(12), chunk_bytes=1 << 20)
    made = []
    most = 8

    def ring(each):
        parts = each.collective.num_chunks
        if parts > most:
            raise OutOfTime("time")
        made.append(parts)
        return BASELINES["ring"](each, cut=False)

    with pytest.raises(OutOfTime):
        cut_while_it_pays(problem, ring, name="ring", cut=True)
    most = 16
    with pytest.raises(OutOfTime):
        cut_while_it_pays(problem, ring, name="ring", cut=True)
    assert made == [1, 2, 4, 8, 16]


def test_equal_problems_share_their_whole_chunks():
    """Problems that differ only in sketch or notes share their cached schedules."""
    topology = fabrics.ring(4)
    one, other = (make_problem(topology, collectives.allgather(4), size_bytes=4000) for _ in range(2))
    made = cut_while_it_pays(one, lambda each: BASELINES["ring"](each, cut=False), name="one", cut=False)
    found = cut_while_it_pays(replace(other, notes=("n",)), pytest.fail, name="one", cut=False)
    assert found.digest() == made.digest()
    assert found.problem.notes == ("n",)


def test_coarser_chunks_come_before_a_long_first_cut(monkeypatch):
    """A first cut into many parts follows ones into a quarter as many, which are complete if time ends."""
    monkeypatch.setattr(chunking, "_LONG_CUT", 10)
    problem, counts = make_problem(fabrics.ring(4), collectives.broadcast(4), chunk_bytes=10**6), []

    def made(finer):
        counts.append(finer.collective.num_chunks)
        return BASELINES["tree"](finer, cut=False)

    cut_while_it_pays(problem, made, name="tree", cut=True, parts=64)
    assert counts[:4] == [1, 4, 16, 64]


def test_the_likely_number_of_parts_follows_a_coarse_one_and_is_made_once():
    """After half of the first number of parts, the one with the best estimate is tried, then others in order."""
    problem, counts = make_problem(fabrics.ring(4), collectives.broadcast(4), chunk_bytes=10**6), []

    def made(finer):
        counts.append(finer.collective.num_chunks)
        return BASELINES["tree"](finer, cut=False)

    found = cut_while_it_pays(problem, made, name="tree", cut=True, parts=8, likely=32, most_transfers=100)
    assert counts == [1, 4, 32, 8, 16]
    assert found.problem.collective.num_chunks == 4


def test_a_reduction_counts_if_time_ends_among_its_copies():
    """If time is up before all forms of the copies are timed, the last complete one is reversed and kept."""
    asked = make_problem(fabrics.ring(4), "reduce", size_bytes=10**6)

    def made(finer):
        def copied(copies):
            complete_so_far(copies).append(BASELINES["tree"](copies, cut=False))
            raise OutOfTime("time")

        return in_reversed_time(finer, copied)

    with pytest.raises(OutOfTime):
        cut_while_it_pays(merging(asked), made, name="tree", cut=True, asked=asked)
    (kept,) = soonest_so_far(asked)
    assert verify(kept).ok and kept.problem.collective.combining


def test_a_form_in_finer_chunks_counts_if_time_ends_before_the_next_one():
    """If time is up before all forms of an algorithm are timed, a complete one in finer chunks is kept."""
    problem, forms = make_problem(fabrics.ring(4), collectives.broadcast(4), chunk_bytes=10**6), []

    def made(finer):
        if finer.collective.num_chunks == 1:
            return BASELINES["tree"](finer, cut=False)
        forms.append(BASELINES["tree"](finer, cut=False))
        complete_so_far(finer).append(forms[-1])
        raise OutOfTime("time")

    with pytest.raises(OutOfTime):
        cut_while_it_pays(problem, made, name="tree", cut=True)
    assert soonest_so_far(problem) == forms


def test_all_forms_are_timed_in_order_before_one_is_timed_by_list_scheduling(monkeypatch):
    """List scheduling takes ten times as long, so that time may end within it."""
    problem, steps = make_problem(fabrics.ring(4), collectives.broadcast(4), chunk_bytes=10**6), []
    sends = Sends.of(BASELINES["tree"](problem, cut=False))

    def times(problem, sends, producer, *, least):
        for how in ("in order", "listed"):
            steps.append((producer, how))
            yield sends.schedule(problem, producer=producer)

    monkeypatch.setattr(forms_module, "timed", times)
    monkeypatch.setattr(Sends, "busy_ticks", lambda *_: 0)  # each form may be the earliest
    forms_module.fastest_form(problem, [("a", sends), ("b", sends)], lists=True)
    assert steps == [("a", "in order"), ("b", "in order"), ("a", "listed"), ("b", "listed")]


def test_a_form_is_complete_before_the_next_one_is_built():
    """Forms in the order of their estimates are built in turn, so that the first one counts if time ends."""
    problem = make_problem(fabrics.ring(4), collectives.broadcast(4), chunk_bytes=10**6)

    def in_order():
        yield Form("a", lambda: Sends.of(BASELINES["tree"](problem, cut=False)))
        assert [each.producer for each in complete_so_far(problem)] == ["a"]
        yield Form("b", lambda: Sends.of(BASELINES["ring"](problem, cut=False)))

    assert fastest_in_turn(problem, in_order()) is complete_so_far(problem)[-1]


@pytest.mark.parametrize(
    ("share", "times", "built"),
    [(1.0, 1.05, "a"), (1.0, 1.005, "ab"), (0.8, 1.25, "a"), (0.8, 1.2, "ab"), (2.0, 1.05, "ab")],
)
def test_forms_of_later_estimates_are_skipped_once_one_finishes_as_estimated(share, times, built):
    """The first form finishes as estimated, later, or far sooner; the second is estimated `times` as late."""
    problem = make_problem(fabrics.ring(4), collectives.broadcast(4), chunk_bytes=10**6)
    sends, names = Sends.of(BASELINES["tree"](problem, cut=False)), []
    estimate = share * sends.schedule(problem, producer="tree").finish_ticks

    def made(name):
        names.append(name)
        return sends

    forms = [
        Form("a", lambda: made("a"), estimate),
        Form("b", lambda: made("b"), times * estimate),
    ]
    fastest_in_turn(problem, forms)
    assert "".join(names) == built
