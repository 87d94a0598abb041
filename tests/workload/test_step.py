"""Scheduled steps: gap to the bound, verification, and detected faults."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import taccl
from taccl import Workload
from taccl.errors import WorkloadError
from taccl.schedule.schedule import make_schedule
from taccl.workload import Rates, autotransform, overlap, reorder, schedule_workload, slice_state, split
from taccl.workload.autotransform import fused, sharded

#: Four ranks, fully connected, 1 us per hop and 100 us/MB.
RANKS = taccl.topologies.fully_connected(4, alpha_us=1, bandwidth_gb_per_s=10)


def sums(cost_us, tiles):
    """A kernel that produces 4 MB of partial sums, and their allreduce."""
    step = Workload("sums", 4).then("g", "compute", shape=(64, 16_384), layout="partial", cost_us=cost_us)
    step = step.then("sum", "allreduce", "g")
    return overlap(step, ["g", "sum"], tiles=tiles) if tiles > 1 else step


@pytest.fixture(scope="module")
def step():
    """Step with eight tiles of 20 us."""
    return schedule_workload(sums(160, 8), RANKS)


@pytest.mark.slow
def test_a_step_is_near_its_bound(step):
    """With about equal times to compute and to send, tiles overlap and the gap is below 0.25."""
    assert step.verify().ok
    assert step.bound <= step.finish
    assert step.gap < 0.25
    assert step.finish_us < schedule_workload(sums(160, 8), RANKS, order="in-sequence").finish_us * 0.75


def test_a_small_sum_is_made_whole():
    """On a ring of four ranks, an allreduce of 1 KB takes two hops, not the six of both of its phases."""
    ring = taccl.topologies.ring(4, alpha_us=1, bandwidth_gb_per_s=1000)
    small = Workload("small", 4).input("x", (256,), layout="partial").then("sum", "allreduce", "x")
    made = schedule_workload(small, ring)
    assert made.verify().ok
    assert made.bound <= made.finish < 2.01


def test_in_sequence_times_add_up():
    """If kernels and sends do not overlap, all kernels (160 us) end before the first send."""
    whole = schedule_workload(sums(160, 1), RANKS, order="in-sequence")
    alone = schedule_workload(sums(0, 1), RANKS, order="in-sequence")
    assert whole.finish == alone.finish + 160
    assert whole.verify().ok


@pytest.mark.slow
def test_a_share_of_the_processor_slows_what_it_computes():
    """If communication uses a fifth of the processor, kernels of 160 us take 200 us, and the bound rises."""
    shared = schedule_workload(sums(160, 1), RANKS, communication_share=0.2)
    assert max(each.end_us for each in shared.tiles) == 200
    assert shared.verify().ok
    assert shared.bound > schedule_workload(sums(160, 1), RANKS).bound
    assert schedule_workload(sums(160, 1), RANKS, communication_share=0.2, order="in-sequence").verify().ok


@pytest.mark.slow
def test_what_is_sent_waits_for_its_tile(step):
    """Release dates of chunks are the ends of tiles, and the verifier refuses earlier sends."""
    released = {us for _, _, us in step.schedule.problem.release_us}
    assert released == {Fraction(20 * tile) for tile in range(1, 9)}
    early = replace(step.schedule, start=step.schedule.start - 20, end=step.schedule.end - 20)
    assert "release" in repr(replace(step, schedule=early).verify())


@pytest.mark.parametrize("fault", ["early", "short", "twice", "missing", "busy", "released"])
def test_the_judge_names_what_is_wrong(step, fault):
    """The verifier names each single fault in an otherwise valid step."""
    one, two, *rest = step.tiles
    schedule = step.schedule
    if fault == "released":
        moments = tuple((c, r, us - 1) for c, r, us in schedule.problem.release_us)
        schedule = replace(schedule, problem=replace(schedule.problem, release_us=moments))
        tiles, said = step.tiles, "is released at rank"
    else:
        changed, said = {
            "early": ((replace(one, start_us=Fraction(-1)),), "starts at -1 us, before the step starts"),
            "short": ((replace(one, end_us=one.end_us - 1),), "lasts 19 us; the tile needs 20 us"),
            "twice": ((one, one), "duplicated"),
            "missing": ((), "is not computed"),
            "busy": ((replace(one, start_us=Fraction(10), end_us=Fraction(30)),), "busy"),
        }[fault]
        tiles = (*changed, two, *rest)
    verdict = replace(step, tiles=tiles, schedule=schedule).verify()
    assert not verdict.ok
    assert said in repr(verdict)


def of_other_problem(step, **changes):
    """The step with a schedule for another problem, which differs from the step's own in the given fields."""
    problem = replace(step.schedule.problem, due_us=(), **changes)
    found = taccl.synthesize(problem, backend="greedy", sketch="none").schedule
    return replace(step, schedule=found)


@pytest.fixture(scope="module")
def plain():
    """A kernel of 10 us and the allreduce of its 4 MB."""
    step = Workload("plain", 4).then("a", "compute", shape=(4, 250_000), layout="partial", cost_us=10)
    return schedule_workload(step.then("s", "allreduce", "a"), RANKS)


@pytest.mark.slow
def test_sends_of_the_workloads_own_problem_are_accepted(plain):
    """A schedule that was synthesized under the step's release dates, but without due dates, is accepted."""
    assert of_other_problem(plain).verify().ok


@pytest.mark.slow
def test_sends_of_smaller_chunks_are_refused(plain):
    """Sends of 1-byte chunks are refused, as the kernel's chunks have 1 MB."""
    verdict = of_other_problem(plain, chunk_bytes=(1,) * 4).verify()
    assert "chunk 0 of s has 1 bytes; expected 1000000" in repr(verdict)


@pytest.mark.slow
@pytest.mark.parametrize("role", ["origins", "destinations"])
def test_sends_between_fewer_ranks_are_refused(plain, role):
    """Sums that stay at their roots, or lack a contribution, are refused."""
    collective = plain.schedule.problem.collective
    less = {"destinations": lambda c: (c.root,), "origins": lambda c: c.origins[:-1]}[role]
    chunks = tuple(replace(each, **{role: less(each)}) for each in collective.chunks)
    release = tuple((c, r, us) for c, r, us in plain.schedule.problem.release_us if r in chunks[c].origins)
    changed = replace(collective, chunks=chunks, groups=())
    verdict = of_other_problem(plain, collective=changed, release_us=release).verify()
    assert f"chunk 0 of s has {role}" in repr(verdict)


@pytest.mark.slow
@pytest.mark.parametrize("change", [{"bandwidth_gb_per_s": 1e5}, {"alpha_us": 0}])
def test_sends_on_a_faster_topology_are_refused(plain, change):
    """A schedule on a topology with faster links is refused."""
    fast = taccl.topologies.fully_connected(4, **({"alpha_us": 1, "bandwidth_gb_per_s": 10} | change))
    assert "differs from fully-connected:4 in links" in repr(of_other_problem(plain, topology=fast).verify())


@pytest.mark.slow
def test_copies_in_place_of_sums_are_refused(plain):
    """A collective that copies in place of summing is refused."""
    collective = replace(plain.schedule.problem.collective, combining=False, groups=())
    assert "reduction differs" in repr(of_other_problem(plain, collective=collective).verify())


@pytest.mark.slow
def test_chunks_that_may_not_merge_are_refused_where_they_may(plain):
    """A schedule with merged sends is refused if the workload's problem does not allow merging."""
    problem = plain.schedule.problem
    every = frozenset(range(len(RANKS.links)))
    most = {"merging": every, "max_merge": problem.clauses.max_merge + 1}
    assert "chunks may merge over 12 links" in repr(
        of_other_problem(plain, clauses=replace(problem.clauses, **most)).verify()
    )


@pytest.mark.slow
def test_a_schedule_may_have_further_clauses(plain):
    """A schedule under a sketch that forbids links is accepted."""
    ring = frozenset(e for e, link in enumerate(RANKS.links) if (link.src + 1) % 4 == link.dst)
    clauses = replace(plain.schedule.problem.clauses, links_allowed=ring)
    assert of_other_problem(plain, clauses=clauses).verify().ok


def test_a_schedule_without_sends_is_refused(plain):
    """A schedule without sends is refused, be it for another problem or for the workload's own."""
    nothing = {"chunk": [], "link": [], "start": [], "end": []}
    custom = taccl.collectives.custom(4, precondition={0: [0]}, postcondition={0: [0]})
    other = make_schedule(taccl.make_problem(RANKS, custom, chunk_bytes=8), **nothing)
    said = repr(replace(plain, schedule=other).verify())
    assert "sends are of 1 chunk; the workload's collectives have 4" in said
    own = make_schedule(plain.schedule.problem, **nothing)
    assert not replace(plain, schedule=own).verify().ok


@pytest.mark.parametrize("share", [-1.0, 1.0, float("nan")])
def test_an_invalid_share_is_refused(plain, share):
    """A communication share that is below 0, 1 or NaN is refused."""
    assert "communication_share is" in repr(replace(plain, communication_share=share).verify())


@pytest.mark.parametrize("convert", [lambda us: math.nan, float, np.float64, str])
def test_tiles_with_inexact_times_are_refused(plain, convert):
    """Tiles whose times are NaN, floats, numpy's or text are refused; no comparison with NaN would hold."""
    tiles = tuple(
        replace(each, start_us=convert(each.start_us), end_us=convert(each.end_us)) for each in plain.tiles
    )
    (first, *_) = replace(plain, tiles=tiles).verify().violations
    assert "expected integers, and fractions for times" in first


def test_a_workload_of_other_ranks_is_refused(plain):
    """A workload of two ranks is refused on a topology of four."""
    two = Workload("two", 2).then("a", "compute", shape=(4,), cost_us=10)
    assert "the workload is of 2 ranks" in repr(replace(plain, workload=two).verify())


def test_a_link_that_does_not_exist_is_named(plain):
    """An unknown link is named in the error."""
    link = plain.schedule.link.copy()
    link[0] = 99
    assert "there is no such link" in repr(
        replace(plain, schedule=replace(plain.schedule, link=link)).verify()
    )


def test_a_reader_starts_after_its_chunks():
    """The verifier refuses a kernel that starts before the allreduce whose result it reads has ended."""
    step = schedule_workload(sums(10, 1).then("next", "compute", "sum", shape=(4,), cost_us=5), RANKS)
    assert step.verify().ok
    assert step.finish == max(each.end_us for each in step.tiles) == step.schedule.finish + 5
    moved = tuple(
        replace(each, start_us=each.start_us - 3, end_us=each.end_us - 3)
        if each.operation == "next"
        else each
        for each in step.tiles
    )
    assert "reads tile 0 of sum" in repr(replace(step, tiles=moved).verify())


@pytest.mark.slow
def test_all_kinds_of_collectives_are_scheduled():
    """A step with several kinds of collectives in sequence, with kernels between them, gets a valid
    schedule."""
    step = Workload("all", 4).input("x", (64, 64), layout="sliced(0)").then("a", "alltoall", "x", axis=1)
    step = step.then("r", "relu", "a").then("s", "send", "r", shift=1).then("g", "allgather", "s")
    step = step.then("p", "compute", "g", shape=(64, 64), layout="partial", cost_us=3)
    step = step.then("c", "reduce_scatter", "p", axis=0)
    found = schedule_workload(step, RANKS, rates=Rates(1, 100))
    assert found.verify().ok
    assert found.bound <= found.finish


def test_nothing_to_send_is_a_schedule_too():
    """A step of two kernels without sends takes the sum of their times."""
    step = (
        Workload("alone", 4)
        .then("a", "compute", shape=(4,), cost_us=3)
        .then("b", "compute", shape=(4,), cost_us=4)
    )
    found = schedule_workload(step, RANKS)
    assert found.finish == found.bound == 7
    assert found.schedule.num_sends == 0
    assert found.verify().ok


@pytest.mark.slow
def test_the_search_beats_the_program():
    """The search slices the state as a program transformed by hand does, and finishes earlier than that
    program."""
    step = Workload("momentum", 4).input("g", (1 << 20,), layout="partial")
    step = step.input("m", (1 << 20,)).input("p", (1 << 20,)).then("sum", "allreduce", "g")
    step = step.then("old", "scale", "m", value=0.9).then("m_new", "add", "old", "sum")
    step = step.then("p_new", "subtract", "p", "m_new").updating(m="m_new", p="p_new").returning("p_new")
    rates = Rates(1, 100)
    found = autotransform(step, RANKS, rates=rates, tiles=(4,))
    by_hand = slice_state(reorder(split(step, "sum"), "sum"), "m")
    assert found.verify().ok
    assert found.workload.state_bytes == by_hand.state_bytes
    assert found.finish < schedule_workload(by_hand, RANKS, rates=rates).finish
    assert found.finish < schedule_workload(step, RANKS, rates=rates).finish


def test_a_search_without_time_still_overlaps():
    """A search with almost no time still overlaps computation and communication, in 4 tiles, the minimum."""
    found = autotransform(sums(160, 1), RANKS, time_limit_s=1e-9)
    assert [each.tiles for each in found.workload.overlaps] == [4]


def test_ctrl_c_keeps_the_best_step_so_far():
    """Ctrl-C after the second scheduled step returns the better of the two, and a warning says so."""
    said = []

    def note(text):
        said.append(text)
        if len(said) == 2:
            raise KeyboardInterrupt

    with pytest.warns(taccl.TacclWarning, match="stopped by Ctrl-C; this is the best step so far"):
        found = autotransform(sums(160, 1), RANKS, note=note)
    assert (len(said), found.verify().ok) == (2, True)


def test_a_search_without_time_is_no_slower_than_the_usual_forms():
    """A search with almost no time returns at least the best of the usual forms, here ZeRO-1.

    With 50 us per hop, tiles cost more latency than their overlap saves.
    """
    slow = taccl.topologies.fully_connected(4, alpha_us=50, bandwidth_gb_per_s=10)
    step = Workload("momentum", 4).input("g", (1 << 16,), layout="partial").input("m", (1 << 16,))
    step = step.input("p", (1 << 16,)).then("sum", "allreduce", "g").then("old", "scale", "m", value=0.9)
    step = step.then("m_new", "add", "old", "sum").then("p_new", "subtract", "p", "m_new")
    step = step.updating(m="m_new", p="p_new").returning("p_new")
    kernels = fused(step, collectives=False)
    zero = fused(sharded(step, ["sum"]), collectives=False)
    usual = [
        schedule_workload(each, slow, rates=Rates(1, 10), order="in-sequence").finish
        for each in (step, kernels, zero)
    ]
    assert usual[2] == min(usual)
    assert autotransform(step, slow, rates=Rates(1, 10), time_limit_s=1e-9).finish <= min(usual)


def test_a_search_without_time_overlaps_what_is_independent():
    """A search with almost no time returns at least the program with communication beside a kernel."""
    step = Workload("apart", 4).input("g", (1 << 16,), layout="partial").then("sum", "allreduce", "g")
    step = step.then("k", "compute", shape=(4,), cost_us=100)
    together, alone = (
        schedule_workload(step, RANKS, order=order).finish for order in ("together", "in-sequence")
    )
    assert autotransform(step, RANKS, tiles=(7,), time_limit_s=1e-9).finish <= together < alone


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        ({"topology": taccl.topologies.ring(3)}, "is of 4 ranks"),
        ({"communication_share": 1.0}, "found 1.0; expected a share"),
        ({"algorithm": "rung"}, "rung"),
        ({"order": "both"}, "order"),
    ],
)
def test_what_cannot_be_scheduled_is_refused(ask, said):
    """An option that does not suit the step, or that is unknown, is refused in one sentence."""
    with pytest.raises(taccl.InputError, match=said):
        schedule_workload(sums(1, 1), **({"topology": RANKS} | ask))


def test_unknown_costs_are_asked_for():
    """Without processor rates and without given costs an error asks for the cost."""
    step = Workload("w", 4).input("x", (4, 4)).then("y", "matmul", "x", "x")
    with pytest.raises(
        WorkloadError,
        match="y: has no cost_us, and the rates of .* are not known; give it one, or give tflops=",
    ):
        schedule_workload(step, RANKS)


def test_a_picture_has_two_rows_a_rank(step):
    """The plot has two rows per rank, kernels and sends, with a bar for each tile and send."""
    ax = taccl.plot.step(step, max_ranks=2)
    assert [text.get_text() for text in ax.get_yticklabels()] == [
        "compute 0",
        "send 0",
        "compute 1",
        "send 1",
    ]
    sent = sum(step.topology.links[link].src < 2 for link in step.schedule.link.tolist())
    assert sum(len(each.get_paths()) for each in ax.collections) == 2 * 8 + sent
