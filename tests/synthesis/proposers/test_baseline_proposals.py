"""Baselines as the first schedule of a search."""

import re
import time
from importlib import import_module

import pytest

import taccl
from taccl._internal.deadline import NEVER, Deadline, OutOfTime
from taccl.baselines import BASELINES
from taccl.baselines.chunking import without_sketch
from taccl.baselines.forms import complete_so_far
from taccl.baselines.table import build_times, num_arrivals, phases_of
from taccl.errors import InputError
from taccl.synthesis.bounding import look_for_bound
from taccl.synthesis.budget import Turn
from taccl.synthesis.proposers import baseline_proposals, table
from taccl.synthesis.proposers.compiling import compile_named
from taccl.synthesis.proposing import OwnProposer
from taccl.synthesis.search import Options, Search
from tests.effort import AMPLE_S, BRIEF, PATIENT

synthesizing = import_module("taccl.synthesis.synthesize")


def problem_of(collective="allreduce", num_ranks=4):
    """A collective on a ring, in one chunk per rank."""
    topology = taccl.topologies.ring(num_ranks)
    return taccl.make_problem(topology, collective, size_bytes=4000, chunks_per_rank=1)


@pytest.mark.parametrize("collective", ["allgather", "allreduce", "alltoall", "broadcast"])
def test_the_best_baseline_is_the_first_schedule(collective):
    """With time for all baselines the first schedule is the fastest of them."""
    problem = problem_of(collective)
    search = Search(problem, Options(), NEVER)
    baseline_proposals.offer_first(search)
    finishes = []
    for make in BASELINES.values():
        try:
            finishes.append(make(problem, cut=False).finish)
        except InputError:
            continue
    assert search.best.finish == min(finishes)
    assert taccl.verify(search.best).ok


def test_refused_baselines_are_counted():
    """If the sketch forbids link 0, which every baseline uses, the stage has their number, not "none better"."""
    problem = problem_of("allgather")
    allowed = frozenset(range(1, len(problem.topology.links)))
    search = Search(problem.with_clauses(links_allowed=allowed), Options(), NEVER)
    baseline_proposals.offer_first(search)
    assert search.best is None
    assert re.fullmatch(r"first: none of \d+ obeys the sketch", search.stages[-1].message)


@pytest.mark.parametrize(("size", "first"), [("16KB", "bine"), ("256KB", "bucket")])
def test_few_steps_come_first_for_small_sums_on_tori(size, first):
    """On a torus the preferred baseline is Bine trees if latency exceeds the time of all bytes, else bucket."""
    problem = taccl.make_problem(taccl.topologies.torus(4, 4, 4), "allreduce", size_bytes=size)
    assert baseline_proposals.preferred(problem)[0] == first


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [2, 4])
def test_the_compiled_list_scheduler_comes_first_for_uneven_pairs(nodes, monkeypatch):
    """If pairs exchange different numbers of bytes, the first schedule is that of the list scheduler.

    It is within 5 % of the bound; baselines send the largest pair's data over one path, and take three times
    as long.
    """
    topology = taccl.topologies.dgx_h100(nodes)
    compile_named("alltoall")
    sizes = taccl.skewed_sizes(topology.num_ranks, 64 * 10**6, "zipf:0.8")
    search = Search(taccl.alltoallv_problem(topology, sizes), Options(), Deadline.after(AMPLE_S))
    finishes_us = []

    def refused(name, problem, *, cut):
        finishes_us.append(search.best_us)
        raise InputError(name)

    monkeypatch.setattr(baseline_proposals, "are_kept", lambda _: True)
    monkeypatch.setattr(baseline_proposals, "baseline", refused)
    baseline_proposals.offer_first(search)
    assert finishes_us[0] < 1.05 * taccl.lower_bound(search.problem, budget_s=AMPLE_S).bound_us


@pytest.mark.parametrize(("left_s", "comes_first"), [(1e-3, True), (AMPLE_S, False)])
def test_baselines_precede_a_named_solver_that_would_have_no_schedule_in_time(left_s, comes_first):
    """Baselines run before a named solver only if its first schedule would be late; a note says so.

    The estimate for 32 hops, 4 chunks times 8 links, is 2 ms.
    """
    search = Search(problem_of("allgather"), Options(backend="highs"), Deadline.after(left_s))
    (turn,) = [each for each in table.FIRST if each.proposer.name == "first baselines"]
    assert turn.is_meant(search) == comes_first
    if comes_first:
        turn.proposer.propose(search)
        assert taccl.verify(search.best).ok
        assert search.notes == ["time was short for highs alone, so baselines came first"]


@pytest.mark.parametrize(("collective", "second"), [("allgather", "recursive"), ("alltoall", "pairwise")])
def test_recursive_doubling_comes_late_for_chunks_from_one_rank_to_one_other(collective, second):
    """An alltoall along a hypercube forwards each chunk on half of log2(ranks) links on average."""
    problem = taccl.make_problem(taccl.topologies.dgx1(2), collective, size_bytes="1MB")
    assert baseline_proposals.preferred(problem)[:2] == ["multiplying", second]


def test_without_time_the_quickest_is_offered():
    """With a deadline of 0 s the quickest baseline is still the first schedule."""
    search = Search(problem_of(), Options(parameters=PATIENT), Deadline.after(0.0))
    baseline_proposals.offer_first(search)
    assert taccl.verify(search.best).ok


@pytest.mark.slow
def test_one_that_takes_too_long_is_broken_off(monkeypatch):
    """A baseline that takes too long is interrupted; the others still compete."""
    made = baseline_proposals.baseline

    def endless(name, problem, *, cut):
        while name == "tree":
            pass
        return made(name, problem, cut=cut)

    monkeypatch.setattr(baseline_proposals, "baseline", endless)
    search = Search(problem_of(), Options(), Deadline.after(1.0))
    baseline_proposals.offer_first(search)
    assert taccl.verify(search.best).ok


def test_the_best_baseline_as_a_rule_has_a_larger_share(monkeypatch):
    """The usually fastest baseline starts once a schedule exists, and gets twice the time of each other
    baseline."""
    problem = problem_of()
    search = Search(problem, Options(), Deadline.after(1000))
    builds_s = {"pairwise": 0.0, "ring": 300.0, "bucket": 300.0}
    monkeypatch.setattr(baseline_proposals, "busy_factor", lambda: 1.0)
    monkeypatch.setattr(baseline_proposals, "build_times", lambda *_, **__: builds_s)
    baseline_proposals.offer_first(search)
    assert set(baseline_proposals.made_of(problem)) == {"pairwise", "bucket"}


def test_a_baseline_of_several_forms_waits_for_quick_ones(monkeypatch):
    """If there is no time to build all forms of the preferred baseline, baselines that can be built in time
    come before its first form."""
    problem = problem_of()
    search = Search(problem, Options(), Deadline.after(1000))
    order, made = [], baseline_proposals.baseline

    def recorded(name, problem, *, cut):
        order.append(name)
        return made(name, problem, cut=cut)

    def times(*_, whole=True):
        return {"bucket": 600.0 if whole else 60.0, "ring": 1.0, "tree": 50.0}

    monkeypatch.setattr(baseline_proposals, "busy_factor", lambda: 1.0)
    monkeypatch.setattr(baseline_proposals, "build_times", times)
    monkeypatch.setattr(baseline_proposals, "baseline", recorded)
    baseline_proposals.offer_first(search)
    assert order == ["ring", "tree", "bucket"]


@pytest.mark.parametrize(("begins_s", "first"), [(0.25, "multiplying"), (0.5, "tree")])
def test_without_time_a_quick_first_form_of_the_preferred_baseline_suffices(monkeypatch, begins_s, first):
    """Without time, the first form of the preferred baseline is built, if that takes little.

    It may take 0.3 s, or twice the shortest build time (0.2 s, of tree). Otherwise, the next baseline in
    order is built for which this holds.
    """
    topology = taccl.topologies.fully_connected(4)
    problem = taccl.make_problem(topology, "allgather", size_bytes=4000, chunks_per_rank=1)
    tried, made = [], baseline_proposals.baseline

    def recorded(name, problem, *, cut):
        tried.append(name)
        return made(name, problem, cut=cut)

    def times(*_, whole=True):
        return {"multiplying": 5.0 if whole else begins_s, "pairwise": 0.6, "tree": 0.2}

    monkeypatch.setattr(baseline_proposals, "busy_factor", lambda: 1.0)
    monkeypatch.setattr(baseline_proposals, "build_times", times)
    monkeypatch.setattr(baseline_proposals, "baseline", recorded)
    baseline_proposals.offer_first(Search(problem, Options(parameters=PATIENT), Deadline.after(0.0)))
    assert tried == [first]


def test_the_estimate_for_multiplying_includes_all_its_forms():
    """The estimated build time of recursive multiplying is that of up to eleven forms, not of the first one
    alone."""
    problem = problem_of(num_ranks=32)
    first, whole = (
        baseline_proposals.build_times(problem, 10**6, 10**9, whole=each) for each in (False, True)
    )
    assert whole["multiplying"] > 8 * first["multiplying"]
    assert whole["ring"] == first["ring"]


@pytest.mark.parametrize(
    ("collective", "phases"), [("allgather", 1), ("reduce-scatter", 1), ("allreduce", 2)]
)
def test_a_limit_on_transfers_is_for_each_phase(collective, phases):
    """Baselines are left out by their transfers per phase: an allreduce has those that an allgather has."""
    problem = taccl.make_problem(taccl.topologies.ring(8), collective, size_bytes="1MB")
    assert phases_of(problem) == phases
    assert "pairwise" in build_times(problem, 8 * 8)
    assert "pairwise" not in build_times(problem, 8 * 8 - 9)


def test_relays_of_an_alltoall_count_as_transfers():
    """The mean distance on a mesh of 11 x 11 ranks is 7.3 hops, so all baselines have too many transfers."""
    problem = taccl.make_problem(taccl.topologies.mesh(11, 11), "alltoall", size_bytes="1MB")
    assert num_arrivals(problem) == 2 * 11**2 * 11 * (11**2 - 1) // 3
    assert not build_times(problem, 100_000)


@pytest.mark.parametrize(
    ("left_s", "names"),
    [(60.0, ["multiplying", "tree", "ring", "swing"]), (0.0, ["ring", "swing", "tree", "multiplying"])],
)
def test_baselines_that_take_little_time_come_in_order_of_preference(monkeypatch, left_s, names):
    """With ample time, the usually best baseline is first. Without, it is the best of those about as quick as
    the quickest."""
    builds_s = {"swing": 0.1, "ring": 0.15, "tree": 0.5, "multiplying": 1.0}
    monkeypatch.setattr(baseline_proposals, "build_times", lambda *_, **__: builds_s)
    monkeypatch.setattr(baseline_proposals, "busy_factor", lambda: 1.0)
    assert baseline_proposals.quickest_first(problem_of("allreduce"), left_s) == names


@pytest.mark.slow
def test_a_first_alltoall_is_pairwise_if_time_is_short(monkeypatch):
    """Without time for several baselines, the first alltoall of 64 ranks meets the bound of the NICs.

    Pairwise exchange is built in 0.1 s. Recursive multiplying has few forms there, so its estimated time is
    that of one form.
    """
    monkeypatch.setattr(baseline_proposals, "busy_factor", lambda: 1.0)
    problem = taccl.make_problem(taccl.topologies.dgx2(4), "alltoall", size_bytes="1MB")
    search = Search(problem, Options(parameters=PATIENT), Deadline.after(0.0))
    baseline_proposals.offer_first(search)
    assert search.best.finish_us <= 1.001 * taccl.lower_bound(problem).bound_us
    first, whole = (
        baseline_proposals.build_times(problem, 10**6, 10**9, whole=each) for each in (False, True)
    )
    assert first["multiplying"] == whole["multiplying"]


def test_a_baseline_with_a_complete_schedule_stops_at_its_limit(monkeypatch):
    """A baseline that reaches its time limit goes on only until it has a first complete schedule."""
    problem = problem_of()
    ring = taccl.baselines.baseline("ring", problem, cut=False)

    def endless(*_, **__):
        complete_so_far(without_sketch(problem)).append(ring)
        while True:
            pass

    monkeypatch.setattr(baseline_proposals, "baseline", endless)
    assert baseline_proposals._in_time("tree", problem, Deadline.after(0.05), NEVER).finish == ring.finish


def test_baselines_that_take_long_come_last(monkeypatch):
    """A baseline that takes longer to build than its share of time is built after the search, if time
    remains."""
    problem = problem_of()
    search = Search(problem, Options(), Deadline.after(1000))
    monkeypatch.setattr(baseline_proposals, "busy_factor", lambda: 1.0)
    monkeypatch.setattr(
        baseline_proposals, "build_times", lambda *_, **__: {"pairwise": 0.0, "ring": 500.0, "tree": 2000.0}
    )
    baseline_proposals.offer_first(search)
    assert set(baseline_proposals.made_of(problem)) == {"pairwise"}
    baseline_proposals.offer_rest(search)
    assert set(baseline_proposals.made_of(problem)) == {"pairwise", "ring"}


def test_a_result_is_no_later_than_the_first_schedule(monkeypatch):
    """The search's schedule replaces the first one only if it finishes no later."""
    problem = problem_of("allgather")
    best = taccl.baselines.best(problem, cut=False)

    def offers(search):
        search.offer_whole(best, producer="first", verified=True)

    def none(*_, **__):
        raise synthesizing.NoSolutionError("nothing")

    monkeypatch.setattr(table, "offer_first", offers)
    monkeypatch.setattr(synthesizing, "propose_all", none)
    result = taccl.synthesize(problem)
    assert result.finish_us == best.finish_us
    assert any("the search found no schedule: nothing" in note for note in result.notes)
    assert 0 < result.bound_us <= result.finish_us


def test_baselines_of_an_equal_problem_are_not_made_again(monkeypatch):
    """Baselines are shared between equal problems that differ only in notes."""
    one, other = problem_of(), problem_of()
    baseline_proposals.obeying("ring", one)
    baseline_proposals.share_baselines(other, one)
    monkeypatch.setattr(baseline_proposals, "baseline", lambda *_, **__: pytest.fail("made again"))
    assert baseline_proposals.obeying("ring", other).problem is other


@pytest.mark.parametrize(
    ("clauses", "is_taken"), [({}, True), ({"links_allowed": frozenset(range(1, 16))}, False)]
)
def test_baselines_built_before_replace_slower_schedules(clauses, is_taken):
    """The fastest baseline built before a search replaces a slower schedule, unless the sketch forbids it."""
    problem = problem_of("allgather", num_ranks=8).with_clauses(**clauses)
    made = {
        name: BASELINES[name](problem_of("allgather", num_ranks=8), cut=False) for name in ("ring", "tree")
    }
    baseline_proposals.made_of(problem).update({name: each.under(problem) for name, each in made.items()})
    assert made["ring"].finish < made["tree"].finish
    search = Search(problem, Options(), NEVER, best=made["tree"])
    baseline_proposals.offer_made(search)
    assert (search.best.finish == made["ring"].finish) == is_taken


@pytest.mark.parametrize("name", ["ring", "tree"])
def test_a_trial_that_meets_the_bound_ends_the_search(name):
    """A schedule by which the number of chunks was chosen is proposed if and only if it meets the bound."""
    problem = problem_of("allgather")
    trial = BASELINES[name](problem, cut=False)
    baseline_proposals.trials(problem).append(trial)
    search = Search(problem, Options(), Deadline.after(AMPLE_S))
    look_for_bound(search)
    is_proven = baseline_proposals.offer_proven(search)
    assert is_proven == search.is_met == (trial.finish == search.bound.bound)
    assert search.best == (trial if is_proven else None)


def test_a_balanced_schedule_that_takes_too_long_is_skipped(monkeypatch):
    """If the balanced schedule takes longer than the time left, a stage says so, and none is built."""
    monkeypatch.setattr(baseline_proposals, "_balanced_s", lambda *_: 100.0)
    monkeypatch.setattr(baseline_proposals, "search_balanced", None)
    search = Search(problem_of(), Options(), Deadline.after(60))
    baseline_proposals.offer_balanced(search)
    (stage,) = search.stages
    assert (stage.name, stage.status) == ("dimensions", "skipped")
    assert stage.message.startswith("takes about 100 s")


@pytest.mark.slow
def test_the_time_before_the_search_has_rows_of_its_own():
    """Baselines and the choice of chunks are stages of their own, so stages add up to the total time."""
    topology = taccl.topologies.ring(4)
    problem = taccl.make_problem(topology, "broadcast", size_bytes=10**9)
    found = taccl.synthesize(problem, backend="greedy", time_limit_s=AMPLE_S, parameters=BRIEF)
    names = [stage.name for stage in found.stages]
    assert names[0] == "baselines" and "chunks" in names
    assert set(names[: names.index("chunks")]) == {"baselines", "bound over all chunkings"}


@pytest.mark.parametrize(
    ("given", "where"), [({"sketch": "ndv2/sk1"}, "sketch"), ({"backend": "hghs"}, "backend")]
)
def test_arguments_are_checked_before_any_schedule_is_made(given, where, monkeypatch):
    """An unknown option is refused before any schedule is made, also without time."""
    monkeypatch.setattr(table, "offer_first", lambda _: pytest.fail("a schedule was made"))
    with pytest.raises(taccl.errors.InputError) as error:
        taccl.synthesize(problem_of(), time_limit_s=1e-9, **given)
    assert error.value.where == where


@pytest.mark.slow
@pytest.mark.parametrize(
    ("topology", "first"),
    [
        (taccl.topologies.ring(4), "bucket"),
        (taccl.topologies.torus(2, 4), "bine"),
        (taccl.topologies.mesh(2, 4), "bucket"),
        (taccl.topologies.mesh(2, 3), "bucket"),
        (taccl.topologies.fully_connected(4), "multiplying"),
    ],
)
def test_the_best_as_a_rule_comes_first_if_time_suffices(topology, first, monkeypatch):
    """If time suffices, the usually fastest baseline is built first, before quicker ones."""
    problem = taccl.make_problem(topology, "allreduce", size_bytes=4000, chunks_per_rank=1)
    tried = []
    made = baseline_proposals.baseline
    monkeypatch.setattr(
        baseline_proposals,
        "baseline",
        lambda name, *given, **named: tried.append(name) or made(name, *given, **named),
    )
    baseline_proposals.offer_first(Search(problem, Options(), Deadline.after(1000)))
    assert tried[0] == first


def test_what_is_complete_of_a_baseline_counts(monkeypatch):
    """A complete schedule by recursive multiplying is proposed even if time ends while it is improved."""

    def ends(*_, **__):
        raise OutOfTime("time")

    problem = taccl.make_problem(taccl.topologies.dgx1(1), "allreduce", size_bytes=10**6, chunks_per_rank=1)
    monkeypatch.setattr(import_module("taccl.baselines.forms"), "listed", ends)
    monkeypatch.setattr(baseline_proposals, "build_times", lambda *_, **__: {"multiplying": 0.0})
    search = Search(problem, Options(), NEVER)
    baseline_proposals.offer_first(search)
    assert search.best.producer.startswith("multiplying") and taccl.verify(search.best).ok


def test_a_search_without_a_schedule_advises_more_time(monkeypatch):
    """If all stages end without a schedule, the error advises more time."""
    monkeypatch.setattr(synthesizing, "propose_all", lambda *_: None)
    with pytest.raises(synthesizing.NoSolutionError, match="give more time"):
        taccl.synthesize(problem_of("allgather"), backend="highs")


@pytest.mark.parametrize(
    ("factor", "limit_s", "delay_s", "begins_late_s", "late_s"),
    [
        (1.0, 2.0, 0.0, 0.0, 0.0), (1.2, 2.0, 0.0, 0.0, 0.4), (1.2, 0.5, 0.3, 0.0, 0.46), (3.0, 2.0, 0.0, 0.0, 1.46),
        (3.0, 2.0, 0.0, 0.5, 0.96), (30.0, 2.0, 0.0, 0.0, 0.0),
    ],
)  # fmt: skip
def test_baselines_may_be_late_on_a_busy_machine(
    monkeypatch, factor, limit_s, delay_s, begins_late_s, late_s
):
    """Baselines have the CPU time that an idle machine would give them, up to 1.7 s past the limit.

    A delay before the search counts. The verb's end is part of these seconds, more on a busier machine, and
    so is the time by which the verb's limit had passed before the search.
    Proposers that follow end at the limit.
    """
    monkeypatch.setattr(table, "_END_S_PER_LINK", 0.0)
    monkeypatch.setattr(table, "busy_factor", lambda: factor)
    began_s, ends = time.monotonic(), {}
    for name in ("FIRST", "SECOND"):
        noted = OwnProposer(name, lambda search, name=name: ends.update({name: search.deadline.at_s}))
        monkeypatch.setattr(table, name, (Turn(noted),))
    options = Options(began_s=began_s, ends_s=began_s + limit_s, delay_s=delay_s, late_s=begins_late_s)
    search = Search(problem_of("allgather"), options, Deadline(options.ends_s))
    table.propose_first(search)
    assert ends == {"FIRST": pytest.approx(options.ends_s + late_s), "SECOND": pytest.approx(options.ends_s)}


def test_baselines_follow_a_schedule_by_estimate_until_the_late_end():
    """Baselines are built after the limit, too, while a busy machine still owes them CPU time."""
    problem = problem_of("alltoall")
    search = Search(problem, Options(ends_s=time.monotonic() - 1), Deadline.after(AMPLE_S))
    first = taccl.baselines.baseline(worst := "recursive", problem, cut=False)
    search.offer_whole(first, producer=worst)
    table.run(search, [each for each in table.FIRST if each.proposer.name == "first baselines"])
    assert search.best_us < first.finish_us
