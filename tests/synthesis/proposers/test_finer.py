"""Baselines in smaller chunks than those of the search."""

import math
import time
from dataclasses import replace
from fractions import Fraction
from importlib import import_module
from itertools import permutations

import pytest

import taccl
from taccl._internal.deadline import NEVER, Deadline, OutOfTime
from taccl.analysis.certificates import scopes
from taccl.baselines.tree_mixes import soonest_plan
from taccl.synthesis.budget import run
from taccl.synthesis.proposers import baseline_proposals, finer, table
from taccl.synthesis.proposers import estimated as estimating
from taccl.synthesis.proposers.finer import is_large_on_grid, offer_usual_on_grid
from taccl.synthesis.proposers.table import FIRST
from taccl.synthesis.search import Options, Search
from taccl.topology.recognise import grid_of
from tests.effort import AMPLE_S, BRIEF

synthesizing = import_module("taccl.synthesis.synthesize")


@pytest.mark.slow
def test_baselines_in_finer_chunks_come_last():
    """A broadcast along a ring, pipelined in smaller chunks than the search's, is proposed last and replaces the
    search's schedule."""
    topology = taccl.topologies.ring(6)
    problem = taccl.make_problem(topology, "broadcast", size_bytes=10**6, chunks_per_rank=1)
    search = Search(problem, Options(), Deadline.after(1000))
    baseline_proposals.offer_first(search)
    found = finer.offer_cut(search, search.deadline)
    assert found.problem.collective.chunks_per_rank > 1
    assert found.best.finish < search.best.finish
    assert found.best.finish == taccl.baselines.best(problem).finish
    assert finer.offer_cut(search, search.deadline) is None, "none is made in finer chunks again"


def test_the_earliest_baseline_is_cut_again_while_that_pays():
    """A ring ends its own cuts of a broadcast with four chunks; eight end 2 % sooner, and are added at the end.

    Without a baseline as the earliest schedule, nothing is cut.
    """
    problem = taccl.make_problem(taccl.topologies.ring(4), "broadcast", size_bytes=10**6)
    search = Search(problem.in_its_chunks, Options(), Deadline.after(AMPLE_S), asked=problem)
    baseline_proposals.offer_first(search, ["ring"])
    assert finer.offer_cut_again(search, search.deadline) is None
    search.others.append(finer.offer_cut(search, search.deadline))
    found = finer.offer_cut_again(search, search.deadline)
    assert [each.problem.collective.chunks_per_rank for each in (*search.others, found)] == [4, 8]
    assert found.best.finish < search.earliest_search.finish
    taccl.verify(found.best).raise_if_failed()


@pytest.mark.parametrize(
    ("topology", "collective", "is_preferred"),
    [
        ("mesh:3x3", "allreduce", True),
        ("mesh:3x3", "alltoall", True),
        ("mesh:3x3", "broadcast", False),
        ("fully-connected:4", "allreduce", False),
    ],
)
def test_the_bucket_algorithm_is_tried_first_where_it_is_usually_best(topology, collective, is_preferred):
    """Elsewhere, no stage says that it was tried, or that there was no time for it."""
    topology = taccl.topologies.parse(topology)
    problem = taccl.make_problem(topology, collective, size_bytes=90_000)
    assert finer.prefers_passes(problem) == is_preferred


@pytest.mark.parametrize("has_found", [True, False])
def test_the_bucket_algorithm_is_late_only_without_a_schedule(has_found, monkeypatch):
    """Once time is up, the bucket algorithm is built in finer chunks only if there is no schedule yet."""
    problem, built = taccl.make_problem(taccl.topologies.mesh(3, 3), "allreduce", size_bytes=90_000), []
    search = Search(problem.in_its_chunks, Options(), Deadline.after(-1), asked=problem)
    if has_found:
        ring = taccl.baselines.ring(search.problem, cut=False)
        search.offer_whole(ring, producer="ring", verified=True)
    monkeypatch.setattr(finer, "for_baselines_s", lambda *_: 0.0)
    monkeypatch.setattr(finer, "passes", lambda *_, **__: built.append(1))
    finer.offer_passes(search)
    assert len(built) == (not has_found)


def test_no_stage_names_the_bucket_algorithm_for_chunks_that_it_does_not_support():
    """Two chunks that each go to two of nine ranks have no bucket algorithm."""
    some = taccl.collectives.custom(
        9, precondition={0: [0], 1: [3]}, postcondition={0: [1, 2], 1: [4, 5]}, name="some"
    )
    problem = taccl.make_problem(taccl.topologies.parse("mesh:3x3"), some, size_bytes=90_000)
    search = Search(problem.in_its_chunks, Options(), Deadline.after(AMPLE_S), asked=problem)
    assert finer.prefers_passes(search.problem)
    assert finer.offer_passes(search) is None
    assert not search.stages


@pytest.mark.slow
def test_data_of_one_rank_is_cut_even_if_time_is_up(monkeypatch):
    """Trees between nodes and in finer chunks are tried even if the time limit has passed.

    A broadcast of 16 MB on four nodes is then several times as fast as in one chunk.
    """
    monkeypatch.setattr(table, "_LEAST_ROOT_S", 100.0)
    monkeypatch.setattr(table, "_MOST_LATE_S", 1000.0)
    problem = taccl.make_problem(taccl.topologies.ndv2(4), "broadcast", size_bytes="16MB")
    search = Search(replace(problem, chunks_open=False), Options(), Deadline.after(-1), asked=problem)
    before = search.deadline
    found = table._from_one_rank_first(search)
    assert found.best.finish < search.best.finish / 2
    assert "hierarchical" in found.best.producer
    assert search.deadline.at_s == pytest.approx(before.at_s)


@pytest.mark.slow
def test_pipelined_trees_come_before_other_baselines_of_a_root(monkeypatch):
    """For a collective with one root, pipelined trees in finer chunks are built before the other baselines.

    The number of chunks is open.
    """
    built = []

    def noted(name, problem, **options):
        built.append((name, problem.chunks_open))
        return taccl.baselines.baseline(name, problem, **options)

    for module in (baseline_proposals, finer):
        monkeypatch.setattr(module, "baseline", noted)
    problem = taccl.make_problem(taccl.topologies.ring(6), "broadcast", size_bytes=10**6)
    whole = replace(problem.in_its_chunks, chunks_open=False)
    search = Search(whole, Options(), Deadline.after(1000), asked=problem)
    run(search, FIRST)
    assert built[:2] == [("tree", False), ("tree", True)] and ("ring", False) in built[2:]


@pytest.mark.slow
def test_baselines_of_many_transfers_are_cut_finer_too():
    """With smaller chunks, a ring of 2,256 transfers finishes three times earlier."""
    problem = taccl.make_problem(taccl.topologies.fully_connected(48), "allgather", size_bytes=4 * 10**6)
    search = Search(problem.in_its_chunks, Options(), Deadline.after(1000))
    ring = baseline_proposals._as_asked("ring", search.problem)
    search.offer_whole(ring, producer="ring", verified=True)
    found = finer.offer_cut(search, search.deadline)
    assert found.best.finish * 3 < ring.finish


@pytest.mark.slow
def test_merged_messages_compete_where_chunks_are_open():
    """On a 4 x 4 torus a baseline with merged sends finishes 64 KB in 4.6 us before the search starts."""
    problem = taccl.make_problem(taccl.topologies.torus(4, 4), "allreduce", size_bytes=64_000)
    search = Search(problem.in_its_chunks, Options(), Deadline.after(60))
    baseline_proposals.offer_first(search)
    found = finer.offer_cut(search, search.deadline)
    assert found.best.finish_us <= 4.6 and taccl.verify(found.best).ok
    assert found.best.problem.clauses.merging and found.best.problem == found.problem


@pytest.mark.parametrize(("most", "is_merged"), [(100_000, True), (0, False)])
def test_messages_of_many_transfers_merge_where_that_usually_gains(monkeypatch, most, is_merged):
    """A bucket allgather of many small chunks is tried with merged messages, whose latency counts once."""
    monkeypatch.setattr(finer, "_CUT_TRANSFERS", 0)
    monkeypatch.setattr(finer, "_MERGED_TRANSFERS", most)
    problem = taccl.make_problem(taccl.topologies.torus(4, 4), "allgather", size_bytes=10**5)
    search = Search(replace(problem, chunks_open=False), Options(), NEVER, asked=problem)
    baseline_proposals.offer_first(search, ["bucket", "ring"])
    found = finer.offer_cut(search, NEVER)
    assert is_merged == (found is not None and found.best.finish < search.best.finish)


@pytest.mark.parametrize(("second_us", "kept"), [(9.96, [10.0, 9.96]), (9.98, [10.0])])
def test_merged_forms_in_finer_chunks_must_pay(second_us, kept, monkeypatch):
    """Finer chunks that gain less than 0.3 % by their estimate are left out."""
    estimates = iter((10.0, second_us, math.inf))
    problem = taccl.make_problem(taccl.topologies.ring(3), "allreduce", size_bytes=3_000)
    forms = estimating._Forms(Search(problem.in_its_chunks, Options(), Deadline.after(1000)), problem)
    monkeypatch.setattr(
        forms, "_estimated", lambda *_, **__: estimating.Estimated(next(estimates), None, None)
    )
    forms.estimate()
    assert [each.us for each in forms.merged] == kept


@pytest.mark.slow
def test_ctrl_c_keeps_the_form_that_is_built(monkeypatch):
    """Ctrl-C in the search for mixed plans ends the search with the schedule that recursive multiplying has."""

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(estimating, "mixed_schedule", interrupted)
    problem = taccl.make_problem(taccl.topologies.ndv2(2), "allreduce", size_bytes=16_000_000)
    result = taccl.synthesize(problem, time_limit_s=60)
    assert (result.stopped, result.bound.kind) == ("interrupted", "none")
    assert result.schedule.producer.startswith("multiplying")


def test_copies_merge_inside_nodes_where_chunks_are_open():
    """In an allgather of 12 KB on three nodes, chunks of several nodes spread in one send to each other rank of a
    node, or in fewer sends than that.

    Two crossings of 500 B hold a NIC for 0.04 us each, and 2.68 us pass until the last one arrives. The sends
    inside the node hold a port for 0.02 us and 1.5 kB at 7.09 us per MB, 0.2145 us in all, and take 0.58 us more.
    """
    topology = taccl.topologies.dgx_h100(3).under("ll")
    problem = taccl.make_problem(topology, "allgather", size_bytes=12_000)
    found = estimating.offer_estimated(Search(problem.in_its_chunks, Options(), Deadline.after(1000)))
    assert taccl.verify(found.best).ok
    assert found.best.finish_us <= 2.68 + 2 * 0.04 + 0.2145 + 0.58


@pytest.mark.slow
def test_separate_messages_follow_the_merged_form_of_the_earliest_estimate(monkeypatch):
    """With time for five estimates, four of merged forms, 64 MB on 4 H100 nodes finish with the best of both.

    Without list scheduling of separate messages they would finish at 352.68 us. Mixed plans are left out.
    """
    monkeypatch.setattr(estimating.Estimated, "mixed", lambda *_, **__: None)
    estimate, left = estimating.Estimated.of, [5]

    def estimated(*given, **options):
        if not left[0]:
            raise OutOfTime("ended")
        left[0] -= 1
        return estimate(*given, **options)

    monkeypatch.setattr(estimating.Estimated, "of", estimated)
    problem = taccl.make_problem(taccl.topologies.dgx_h100(nodes=4), "allreduce", size_bytes=64 * 10**6)
    found = estimating.offer_estimated(Search(problem.in_its_chunks, Options(), Deadline.after(1000)))
    assert found.best.finish_us == pytest.approx(307.67, abs=0.01)


@pytest.mark.slow
def test_a_baseline_without_time_for_all_forms_offers_its_best(monkeypatch):
    """If a baseline in finer chunks exceeds the time limit, the best of its schedules so far, with or without
    merged sends, is proposed."""
    made = []

    def ended(name, problem):
        made.append(taccl.baselines.baseline(name, problem))
        raise OutOfTime("ended")

    problem = taccl.make_problem(taccl.topologies.torus(4, 4), "allreduce", size_bytes=256_000)
    search = Search(problem.in_its_chunks, Options(), Deadline.after(1000))
    bucket = baseline_proposals._as_asked("bucket", search.problem)
    search.offer_whole(bucket, producer="bucket", verified=True)
    monkeypatch.setattr(finer, "baseline", ended)
    found = finer.offer_cut(search, search.deadline)
    assert found.best.finish_us == min(each.finish_us for each in made) < bucket.finish_us
    assert found.problem.clauses.merging


@pytest.mark.slow
@pytest.mark.parametrize(
    ("topology", "size_bytes"),
    [(taccl.topologies.torus(6, 6), 72_000), (taccl.topologies.mesh(4, 4), 76_800)],
)
def test_sums_at_hubs_come_first_on_tori_and_meshes(topology, size_bytes):
    """The plan of hubs with the earliest estimated finish is proposed, with merged sends."""
    problem = taccl.make_problem(topology, "allreduce", size_bytes=size_bytes)
    search = Search(problem.in_its_chunks, Options(), Deadline.after(1000), asked=problem)
    found = finer.offer_hubs(search)
    assert taccl.verify(found.best).ok and found.problem.clauses.merging
    assert found.best.finish_us == pytest.approx(
        soonest_plan(problem, grid_of(problem.topology)).estimated_us(problem)
    )
    search.others.append(found)
    assert finer.offer_hubs(search) is None, "a later estimate is not built"


@pytest.mark.parametrize(
    ("topology", "collective", "size_bytes", "limit_s"),
    [
        (taccl.topologies.torus(4, 4), "allgather", 64_000, 1000),
        (taccl.topologies.mesh(4, 4), "reduce_scatter", 64_000, 1000),
        (taccl.topologies.dgx_h100(1), "allreduce", 64_000, 1000),
        (taccl.topologies.torus(5, 5), "allreduce", 25, 1000),
        (taccl.topologies.torus(4, 4), "allreduce", 64_000, 1e-9),
    ],
)
def test_no_sums_at_hubs_elsewhere_or_without_time(topology, collective, size_bytes, limit_s):
    """Copies, sums at one rank each, switches, chunks of too few bytes, and an expired time limit have no plan of hubs."""
    problem = taccl.make_problem(topology, collective, size_bytes=size_bytes)
    search = Search(problem.in_its_chunks, Options(), Deadline.after(limit_s), asked=problem)
    assert finer.offer_hubs(search) is None


@pytest.mark.slow
def test_large_tori_have_their_sums_at_hubs():
    """On a torus of 16 x 16, hubs that finish in 13.36 us are among the first proposals."""
    problem = taccl.make_problem(taccl.topologies.torus(16, 16), "allreduce", size_bytes=256_000)
    search = Search(problem.in_its_chunks, Options(), Deadline.after(1000), asked=problem)
    run(search, [turn for turn in FIRST if turn.proposer.name == "sums at hubs"])
    assert search.earliest_us == pytest.approx(13.36)


@pytest.mark.slow
def test_recursive_multiplying_is_proposed_first_on_switches(monkeypatch):
    """For 1 MB on four DGX-2, recursive multiplying in half chunks with merged sends is proposed first.

    Whole chunks would finish at 36.5 us. They are estimated, but not built. Mixed plans, which would finish
    earlier, are left out.
    """
    monkeypatch.setattr(estimating.Estimated, "mixed", lambda *_, **__: None)
    built, schedule = [], estimating.Estimated.schedule
    monkeypatch.setattr(
        estimating.Estimated, "schedule", lambda form, **how: built.append(form) or schedule(form, **how)
    )
    problem = taccl.make_problem(taccl.topologies.dgx2(4), "allreduce", size_bytes=10**6)
    search = Search(problem.in_its_chunks, Options(), Deadline.after(1000), asked=problem)
    found = estimating.offer_estimated(search)
    assert found.best.finish_us < 33 and taccl.verify(found.best).ok
    assert found.problem.collective.chunks_per_rank == 2 and not baseline_proposals.made_of(search.problem)
    assert len(built) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "is_mixed"), [(1, True), (1e6, False)])
def test_a_mixed_plan_is_proposed_if_time_allows(factor, is_mixed, monkeypatch):
    """256 KB on two A100 nodes finish 12 % sooner by a mixed plan, which is searched if there is time."""
    monkeypatch.setattr(estimating, "busy_factor", lambda: factor)
    monkeypatch.setattr(estimating, "_LEAST_FORMS_S", 0.0)
    problem = taccl.make_problem(taccl.topologies.dgx_a100(2, protocol="ll"), "allreduce", size_bytes=256_000)
    search = Search(problem.in_its_chunks, Options(), Deadline.after(1000), asked=problem)
    found = estimating.offer_estimated(search).best
    assert taccl.verify(found).ok
    assert ("mixed" in found.producer, found.finish_us < 8.3) == (is_mixed, is_mixed)


def test_a_mixed_plan_may_take_longer_to_build_than_estimated(monkeypatch):
    """A search that takes all its time is kept if building then takes 0.75 s instead of 0.6 s."""
    monkeypatch.setattr(estimating, "_LEAST_FORMS_S", 0.0)
    monkeypatch.setattr(estimating, "_MIXES_SHARE", 0.2)
    monkeypatch.setattr(estimating, "_FIRST_RUN_S", 0.0)
    monkeypatch.setattr(estimating, "_mix_s", lambda _: 0.6)
    monkeypatch.setattr(
        estimating, "mixed_schedule", lambda _, until, **__: time.sleep(until.left_s + 0.75) or 1
    )
    problem, kept = taccl.make_problem(taccl.topologies.dgx_h100(2), "allreduce", size_bytes=10**6), []
    forms = estimating._Forms(Search(problem.in_its_chunks, Options(), Deadline.after(6)), problem)
    monkeypatch.setattr(forms, "_keep", kept.append)
    forms.improve_mix()
    assert kept == [1]


@pytest.mark.parametrize(
    ("left_s", "ends_s", "share"),
    [(1000, 2000, 0.6), (1000, 900, 0.6), (1000, 0, 0.75), (100, 0, 1.0), (0, -1, 1.0)],
)
def test_late_mixed_plans_leave_time_for_other_baselines(left_s, ends_s, share, monkeypatch):
    """After the time limit, other baselines have a quarter of the time, unless mixed plans need it.

    They need 100 s here: 1 s of CPU on a machine that is busy with 99 other processes.
    """
    monkeypatch.setattr(estimating, "busy_factor", lambda: 100.0)
    monkeypatch.setattr(estimating, "_LEAST_FORMS_S", 0.0)
    problem = taccl.make_problem(taccl.topologies.dgx_h100(2), "allreduce", size_bytes=10**6)
    began_s = time.monotonic()
    options = Options(began_s=began_s, ends_s=began_s + ends_s)
    forms = estimating._Forms(Search(problem, options, Deadline.after(left_s)), problem)
    assert forms.mixes_share == pytest.approx(share, rel=0.01)


@pytest.mark.parametrize(("slow_beta", "share"), [(10, 0.6), (100, 0.1)])
def test_mixed_plans_far_above_the_bound_get_little_time(slow_beta, share):
    """Plans that use slow links beside a fast ring finish late, and other proposers get the time."""
    builder = taccl.topologies.TopologyBuilder("a ring with slow chords", range(12))
    for src, dst in permutations(range(12), 2):
        beta = 10 if (src - dst) % 12 in (1, 11) else slow_beta
        builder.add_link(src, dst, alpha_us=0.5, beta_us_per_mb=beta)
    problem = taccl.make_problem(builder.build(), "allreduce", size_bytes=64 * 10**6)
    forms = estimating._Forms(Search(problem.in_its_chunks, Options(), Deadline.after(1000)), problem)
    forms.estimate()
    assert forms.mixed is not None and forms.mixes_share == share


@pytest.mark.parametrize(
    ("is_late", "anneals_s", "fails", "built"),
    [(True, 600, False, 0), (True, 600, True, 1), (True, 60, False, 1), (False, 600, False, 1)],
)
def test_late_annealing_replaces_the_first_mixed_plan(is_late, anneals_s, fails, built, monkeypatch):
    """If baselines may be late, and time is short for both, the equal parts of a mixed plan are built only if
    annealing finds nothing."""
    problem = taccl.make_problem(taccl.topologies.dgx_h100(2), "allreduce", size_bytes=10**6)
    options = Options(ends_s=time.monotonic() + (0 if is_late else 2000))
    search = Search(problem.in_its_chunks, options, Deadline.after(1000), asked=problem)
    found = taccl.baselines.ring(search.problem, cut=False)
    made: list[str] = []

    def anneal(forms):
        if not fails:
            forms.best = search.beside(search.problem, best=found)

    def build(forms):
        made.append("equal parts")
        forms.best = forms.best or search.beside(search.problem, best=found)

    for name, step in (
        ("improve_mix", anneal),
        ("build_earliest", build),
        ("send_separately", lambda _: None),
    ):
        monkeypatch.setattr(estimating._Forms, name, step)
    monkeypatch.setattr(estimating._Forms, "_anneals_s", lambda *_: anneals_s)
    assert estimating.offer_estimated(search).best is found
    assert len(made) == built


@pytest.mark.parametrize(("build_s", "is_searched"), [(400, True), (599.99, False)])
def test_a_mixed_plan_in_the_coarsest_chunks_needs_time_for_a_short_search_only(
    build_s, is_searched, monkeypatch
):
    """600 of 1000 s are for mixed plans. If building takes 400 s, the rest suffices for a first short search."""
    monkeypatch.setattr(estimating, "_mix_s", lambda _: build_s)
    chosen = []
    monkeypatch.setattr(
        estimating, "mixed_schedule", lambda *_, most_transfers, **__: chosen.append(most_transfers)
    )
    problem = taccl.make_problem(taccl.topologies.dgx_h100(2), "allreduce", size_bytes=10**6)
    forms = estimating._Forms(Search(problem.in_its_chunks, Options(), Deadline.after(1000)), problem)
    forms.improve_mix()
    assert chosen == [estimating.mixed_transfers(forms.to_mix[-1])] * is_searched
    assert forms.skipped == ["annealing of mixed plans"] * (not is_searched)


@pytest.mark.slow
def test_the_first_mixed_plan_precedes_finer_chunks(monkeypatch):
    """If time ends after the first two estimates, the better one is built: equal parts of one plan that overlap.

    64 MB on four H100 nodes finish at 416.7 us in whole chunks, and at 307.7 us in such parts.
    """
    estimate, left = estimating.Estimated.of, [1]

    def estimated(*given, **options):
        if not left[0]:
            raise OutOfTime("ended")
        left[0] -= 1
        return estimate(*given, **options)

    def ended(*_, **__):
        raise OutOfTime("ended")

    monkeypatch.setattr(estimating.Estimated, "of", estimated)
    monkeypatch.setattr(estimating, "mixed_schedule", ended)
    problem = taccl.make_problem(taccl.topologies.dgx_h100(nodes=4), "allreduce", size_bytes=64 * 10**6)
    found = estimating.offer_estimated(Search(problem.in_its_chunks, Options(), Deadline.after(1000)))
    assert found.best.finish_us == pytest.approx(307.67, abs=0.01)


def test_a_busy_machine_has_one_schedule_by_estimate(monkeypatch):
    """On a busy machine only one estimated schedule is built; its stage names the skipped chunkings."""
    monkeypatch.setattr(estimating, "busy_factor", lambda: 1e4)
    monkeypatch.setattr(estimating, "_LEAST_FORMS_S", 0.0)
    problem = taccl.make_problem(taccl.topologies.dgx_h100(2), "allreduce", size_bytes=10**6)
    search = Search(problem.in_its_chunks, Options(), Deadline.after(1), asked=problem)
    found = estimating.offer_estimated(search)
    assert found.problem.collective.chunks_per_rank == 1 and taccl.verify(found.best).ok
    assert search.stages[-1].message.endswith(
        "; no time for mixed plans, chunks cut into 2, chunks cut into 8, chunks cut into 64, chunks cut into 4"
    )


def test_the_mixed_plan_of_equal_parts_is_built_even_if_time_is_up(monkeypatch):
    """For 64 MB on two nodes, parts that overlap finish in little more than half the time of whole chunks.

    They are built in the coarsest chunks, as finer ones gain nothing.
    """
    monkeypatch.setattr(estimating, "_LEAST_FORMS_S", AMPLE_S)
    monkeypatch.setattr(estimating, "mixed_schedule", lambda *_, **__: None)
    problem = taccl.make_problem(taccl.topologies.dgx_h100(2), "allreduce", size_bytes=64 * 10**6)
    search = Search(problem.in_its_chunks, Options(), Deadline.after(0), asked=problem)
    found = estimating.offer_estimated(search)
    assert found.problem.collective.chunks_per_rank == 8 and taccl.verify(found.best).ok
    whole = estimating.Estimated.of(estimating.merging(problem), None, simple=True)
    assert found.best.finish_us < 0.65 * whole.us


def test_first_forms_have_a_time_of_work(monkeypatch):
    """A stall of the process, after which the deadline has passed, takes none of the CPU time of first forms."""
    began_s, stalled_s = time.monotonic(), [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: began_s + stalled_s[0])
    problem = taccl.make_problem(taccl.topologies.dgx_h100(2), "allreduce", size_bytes=64 * 10**6)
    search = Search(problem.in_its_chunks, Options(), Deadline.after(1), asked=problem)
    forms = estimating._Forms(search, problem)
    monkeypatch.setattr(estimating, "_LEAST_FORMS_S", AMPLE_S)
    stalled_s[0] = 100.0
    assert forms.until.has_passed and forms.has_time(1, merges=True)
    assert not forms.at_least(forms.until).has_passed


@pytest.mark.parametrize(
    ("topology", "collective", "algorithm", "share"),
    [
        (taccl.topologies.torus(3, 4), "allreduce", "dimension-balanced", Fraction(4, 5)),
        (taccl.topologies.hypercube(3), "reduce_scatter", "recursive", Fraction(4, 5)),
    ],
    ids=["torus", "hypercube"],
)
def test_large_data_on_a_grid_goes_in_finer_chunks(topology, collective, algorithm, share):
    """The usual baseline, balanced or halving, takes at most that share of the time of its whole chunks."""
    problem = taccl.make_problem(topology, collective, size_bytes=4_000_000)
    search = Search(problem.in_its_chunks, Options(), Deadline.after(1000), asked=problem)
    found = offer_usual_on_grid(search)
    assert found.best.producer.startswith(algorithm)
    assert found.best.finish < share * search.best.finish
    small = taccl.make_problem(topology, collective, size_bytes=4_000)
    assert (is_large_on_grid(problem), is_large_on_grid(small)) == (True, False)


def test_recursive_multiplying_is_estimated_on_hypercubes():
    """On a hypercube, it is found by estimates in as many parts as pay: 5.52 us, or 7.26 in whole chunks."""
    problem = taccl.make_problem(taccl.topologies.hypercube(3), "allreduce", size_bytes=256_000)
    found = estimating.offer_estimated(Search(problem.in_its_chunks, Options(), Deadline.after(1000)))
    assert found.best.producer.startswith("multiplying")
    assert found.best.finish_us <= 5.52


@pytest.mark.parametrize(
    ("topology", "collective"),
    [(taccl.topologies.torus(4, 4), "allreduce"), (taccl.topologies.ndv2(2), "reduce")],
)
def test_recursive_multiplying_is_not_estimated_on_tori_or_with_roots(topology, collective, monkeypatch):
    """On tori and for sums with a root no schedule by recursive multiplying is estimated."""
    problem = taccl.make_problem(topology, collective, size_bytes=64_000)
    monkeypatch.setattr(estimating.Estimated, "of", lambda *_: pytest.fail("made"))
    assert estimating.offer_estimated(Search(problem.in_its_chunks, Options(), NEVER)) is None


@pytest.mark.slow
def test_a_baseline_in_finer_chunks_has_the_bound_that_was_found_before(monkeypatch):
    """The bound over all chunkings is computed once per synthesis, even if its computation ran out of time."""
    sought = []

    def found(problem, **options):
        sought.append(problem)
        return taccl.lower_bound(problem, **options)

    def none(*_, **__):
        raise synthesizing.NoSolutionError("nothing")

    monkeypatch.setattr(scopes, "lower_bound", found)
    monkeypatch.setattr(synthesizing, "propose_all", none)
    problem = taccl.make_problem(taccl.topologies.ring(6), "broadcast", size_bytes=10**6)
    result = taccl.synthesize(problem, time_limit_s=AMPLE_S, parameters=BRIEF)
    assert result.schedule.problem.collective.chunks_per_rank > 1
    assert len(sought) == 1


@pytest.mark.parametrize(("topology", "count"), [("ring:4", None), ("hypercube:2", 7)])
def test_nothing_is_sent_if_all_counts_are_zero(topology, count):
    """A collective without chunks has an empty schedule, and no other number of chunks is tried."""
    topology = taccl.topologies.parse(topology)
    problem = taccl.make_problem(
        topology, "allgatherv", size_bytes=100, counts=[0] * 4, chunks_per_rank=count
    )
    result = taccl.synthesize(problem, time_limit_s=AMPLE_S, parameters=BRIEF)
    assert len(result.schedule) == result.bound.bound == 0
    assert not problem.chunks_open and not finer.is_at_one_rank(problem)
