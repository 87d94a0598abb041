"""Bounds, searches and the verifier on features that other random problems have rarely.

Each test counts the problems in which the feature mattered, and asserts their share.
"""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction

import pytest

import taccl
from taccl.analysis.certificates import exchange_time
from taccl.analysis.certificates.transformed import merging_freely
from tests.analysis import rare_features as rare
from tests.analysis.claims import is_unbeaten
from tests.analysis.mutations import LISTED, mutated
from tests.analysis.tampering import changed
from tests.analysis.test_every_claim import certificates
from tests.analysis.tick_simulation import is_valid
from tests.analysis.valid_schedules import build, rows_of
from tests.effort import brief_synthesis
from tests.fuzzing import MANY, MATTERED, cases, some

#: Baselines that compete with the search's schedule.
_BASELINES = ("pairwise", "one-shot", "tree", "ring", "in-network")
#: Random changes of each schedule that verifier and simulation judge.
_MUTANTS = 4


def schedules_of(problem):
    """Verified schedules: of a search, and of baselines that obey the problem's clauses."""
    found = [brief_synthesis(problem, backend="greedy").schedule]
    for name in _BASELINES:
        with suppress(taccl.InputError):
            made = taccl.baselines.baseline(name, problem, cut=False)
            slack = made.problem.clauses.routing_slack
            if made.problem.clauses == replace(problem.clauses, routing_slack=slack):
                found.append(made)
    for each in found:
        taccl.verify(each).raise_if_failed()
    return found


def assert_verifiers_agree(schedule, seed):
    """Assert that verifier and simulation accept the schedule, and judge random changes of it alike.

    The simulation knows no contributions by name, so schedules that name them are left out.
    """
    if schedule.contributions is not None:
        return
    assert is_valid(schedule), seed
    rng, rows = random.Random(seed), rows_of(schedule)
    for _ in range(_MUTANTS if rows else 0):
        other = build(schedule.problem, mutated(rng, rows, schedule.problem, LISTED, (1, 1, 2)))
        assert taccl.verify(other).ok == is_valid(other), (seed, taccl.verify(other))


def assert_bounded(given, seed):
    """Assert that all claims are proven and exceed no schedule, and that changed witnesses prove no more.

    Returns (schedules, {kind: best claim} over all chunkings, number of claims that exhaustive search decided).
    """
    rng, decided = random.Random(seed), 0
    schedules = schedules_of(given)
    for each in schedules:
        assert_verifiers_agree(each, seed)
    for divisible in (False, True):
        problem = merging_freely(given) if divisible else given
        found = certificates(problem, divisible=divisible)
        assert all(each.check() for each in found), seed
        best, finish = max(each.bound for each in found), min(each.finish for each in schedules)
        assert best <= finish, seed
        decided += best > 0 and is_unbeaten(problem, best, max_states=300)
        for each in found:
            if each.witness is not None:
                witness = changed(each.witness, problem, rng)
                assert not replace(each, witness=witness, bound=finish + Fraction(1, 10**9)).check(), seed
    kinds = {each.kind: each.bound for each in sorted(found, key=lambda each: each.bound)}
    return schedules, kinds, decided


@pytest.mark.fuzz
def test_switches_that_add():
    """Where switches add and multicast, the best schedule uses them in a third of the problems.

    A search may say that it finds no schedule if a rank can send by a switch alone, and only some ranks
    contribute: a switch adds what all of its sources have.
    """
    used = decided = unsolved = 0
    for seed in cases("switches that add", few=3, many=600):
        problem = rare.switched(seed)
        try:
            schedules, _, number = assert_bounded(problem, seed)
        except taccl.NoSolutionError as error:
            assert "no schedule found that adds each contribution once" in str(error), seed
            unsolved += 1
            continue
        decided += number
        best = min(schedules, key=lambda each: each.finish)
        if rare.switches_matter(best):
            MATTERED["switches that add"] += 1
            used += 1
        with suppress(taccl.InputError, taccl.NoSolutionError):
            alone = brief_synthesis(problem, backend="greedy", in_network="only")
            assert taccl.verify(alone.schedule).ok and alone.bound.check(), seed
            assert alone.bound_us <= alone.finish_us, seed
    assert used >= some(1, 180) and decided >= some(1, 300) and unsolved <= some(0, 6)


@pytest.mark.fuzz
def test_ports_held_at_both_ends_of_sends():
    """Where sends hold a port at their start, and others at their end, such holds follow without a gap."""
    filled = decided = 0
    for seed in cases("ports held at both ends of sends", few=3, many=600):
        schedules, _, number = assert_bounded(rare.both_sides(seed), seed)
        decided += number
        if rare.both_sides_matter(min(schedules, key=lambda each: each.finish)):
            MATTERED["ports held at both ends of sends"] += 1
            filled += 1
    assert filled >= some(1, 300) and decided >= some(1, 300)


@pytest.mark.fuzz
def test_sums_that_nodes_exchange(monkeypatch):
    """On small clusters, exchange time is the best bound over all chunkings in a third of the problems."""
    if not MANY:
        monkeypatch.setattr(exchange_time, "_GRIDS", exchange_time._GRIDS[:1])
    best = 0
    for seed in cases("sums that nodes exchange", few=1, many=80):
        _, kinds, _ = assert_bounded(rare.exchanging(seed), seed)
        if kinds.get("exchange time", 0) == max(kinds.values()):
            MATTERED["sums that nodes exchange"] += 1
            best += 1
    assert best >= some(1, 25)


def assert_bounded_under_dates(schedule, bounds, seed):
    """Assert that a schedule under dates is valid and no earlier than the bounds, by exhaustive search as well.

    Returns 1 if exhaustive search ended.
    """
    taccl.verify(schedule).raise_if_failed()
    assert_verifiers_agree(schedule, seed)
    assert all(each.bound <= schedule.finish for each in bounds), seed
    assert not any(replace(each, bound=schedule.finish + Fraction(1, 10**9)).check() for each in bounds), seed
    return is_unbeaten(schedule.problem, bounds[0].bound, max_states=300)


@pytest.mark.fuzz
def test_release_and_due_dates():
    """Under release dates, and under due dates that reorder the sends, no schedule beats a bound.

    A search may find no schedule if a clause keeps contributions from a root, and names the clause then.
    """
    late = reordered = decided = unsolved = 0
    for seed in cases("release and due dates", few=4, many=600):
        problem = rare.dated(seed)
        bounds = [taccl.lower_bound(problem, divisible=each, budget_s=0.2) for each in (False, True)]
        assert all(each.check() for each in bounds), seed
        late += bounds[0].bound > taccl.lower_bound(problem.without_dates(), budget_s=0.2).bound
        try:
            schedule = brief_synthesis(problem, backend="greedy").schedule
        except taccl.NoSolutionError as error:
            assert "make sums at other ranks than their roots break the sketch (carries-to)" in str(error), (
                seed
            )
            unsolved += 1
            continue
        decided += assert_bounded_under_dates(schedule, bounds, seed)
        with suppress(taccl.NoSolutionError):
            met = brief_synthesis(rare.with_due_dates(seed, schedule), backend="greedy").schedule
            decided += assert_bounded_under_dates(met, bounds, seed)
            if rare.due_dates_matter(met):
                MATTERED["release and due dates"] += 1
                reordered += 1
    assert late >= some(1, 200) and reordered >= some(1, 60) and decided >= some(2, 600)
    assert unsolved <= some(0, 6)
