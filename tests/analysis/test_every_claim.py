"""Every claim of every kind, on problems with unlike holds: proven, and never above a schedule."""

import random
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction

import pytest

import taccl
from taccl.analysis.certificates.bounds import claims_of
from taccl.analysis.certificates.certificate import Certificate
from taccl.analysis.certificates.transformed import merging_freely
from tests.analysis.claims import is_unbeaten
from tests.analysis.tampering import changed
from tests.fuzzing import cases, some
from tests.synthesis.small_problems import random_hold_problem


def certificates(problem, *, divisible):
    """Certificates of all claims of all finders that apply to the problem."""
    per_us = problem.costs.ticks_per_us
    return [
        Certificate(problem, Fraction(each.ticks) / per_us, each.kind, each.limits, each.witness, divisible)
        for each in claims_of(problem, divisible=divisible)
    ]


def least_finish(problem):
    """Least finish in microseconds of the baselines that support the problem and its clauses, or None."""
    found = []
    for name in ("pairwise", "one-shot", "tree", "ring"):
        with suppress(taccl.InputError):
            schedule = taccl.baselines.baseline(name, problem, cut=False)
            slack = schedule.problem.clauses.routing_slack
            if schedule.problem.clauses == replace(problem.clauses, routing_slack=slack):
                taccl.verify(schedule).raise_if_failed()
                found.append(schedule.finish)
    return min(found, default=None)


@pytest.mark.fuzz
def test_no_claim_of_any_kind_is_above_a_schedule():
    """Every claim is proven, no schedule beats the largest one, and no changed witness exceeds a finish."""
    decided = 0
    for seed in cases("every claim, on unlike holds", few=2, many=1500):
        given, rng = random_hold_problem(seed), random.Random(seed)
        for divisible in (False, True):
            problem = merging_freely(given) if divisible else given
            found = certificates(problem, divisible=divisible)
            assert all(each.bound == 0 or each.check() for each in found), seed
            best = max(each.bound for each in found)
            decided += best > 0 and is_unbeaten(problem, best, max_states=500)
            finish = least_finish(problem)
            if finish is None:
                continue
            assert best <= finish, seed
            for each in found:
                if each.witness is not None:
                    witness = changed(each.witness, problem, rng)
                    assert not replace(each, witness=witness, bound=finish + Fraction(1, 10**9)).check(), seed
    assert decided >= some(1, 1000)
