"""The ablation study `benchmarks.ablation`: its clock of counted work, and its comparison of runs."""

from __future__ import annotations

import time
from contextlib import ExitStack

import pytest

import taccl
from benchmarks.ablation import _TABLES, MECHANISMS, WHOLE, compared, next_run
from benchmarks.work_clock import counted_work
from taccl import collectives
from taccl.synthesis.proposers import stages, table


def runs(*whole, without=()):
    """Runs of one case by seed: finishes of the full system and without baselines."""
    given = {WHOLE: whole, "baselines": without}
    return {
        "case": {
            f"{name}, seed {seed}": {"finish_us": finish, "cpu_s": 1.0, "used": ["baselines"]}
            for name, finishes in given.items()
            for seed, finish in enumerate(finishes)
        }
    }


def test_time_alone_does_not_move_the_clock():
    """Waiting for 5 ms does not advance the clock of counted work."""
    with counted_work():
        began = time.monotonic()
        time.sleep(0.005)
        assert time.monotonic() == began


@pytest.mark.slow
def test_a_search_counts_the_same_at_every_run():
    """Two runs return the same schedule after the same counted work."""
    topology, collective = taccl.topologies.ndv2(1), collectives.allreduce(8)
    found = []
    for _ in range(2):
        problem = taccl.make_problem(topology, collective, chunk_bytes=1000)
        with counted_work():
            began = time.monotonic()
            result = taccl.synthesize(problem, time_limit_s=0.5, backend="greedy", threads=1)
            found.append((result.schedule.digest(), time.monotonic() - began))
    assert found[0] == found[1] and found[0][1] > 0


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism_can_be_left_out(name):
    """Proposers of a mechanism are named as in the tables; afterwards, the tables are as before."""

    def tables():
        return [*(getattr(table, each) for each in _TABLES), stages.STAGES["auto"]]

    before = tables()
    with ExitStack() as stack:
        MECHANISMS[name].leave_out(stack)
    assert tables() == before


def test_a_finish_in_the_range_of_the_whole_is_chance():
    """The full system takes 10 to 12 us, depending on the seed: 11 us without a mechanism is no effect."""
    row = compared("baselines", runs(10.0, 12.0, without=[11.0]), 2)
    assert (row["later"], row["sooner"], row["same"]) == (0, 0, 1)


def test_finishes_beyond_the_range_of_the_whole_are_an_effect():
    """13 us and more with both seeds, against 10 to 12 us, is an effect; the ratio is that of the medians."""
    row = compared("baselines", runs(10.0, 12.0, without=[13.0, 20.0]), 2)
    assert (row["later"], row["largest_ratio"]) == (1, 1.5)


@pytest.mark.parametrize(
    ("finishes", "following"), [((), 0), ((11.0,), None), ((13.0,), 1), ((13.0, 20.0), None)]
)
def test_seeds_follow_until_one_finishes_in_the_range_of_the_whole(finishes, following):
    """More seeds run until one finishes within the full system's range of 10 to 12 us."""
    found = next_run(runs(10.0, 12.0, without=finishes)["case"], [WHOLE, "baselines"], 2)
    assert found == (None if following is None else ("baselines", following))


def test_a_seed_that_did_not_use_a_mechanism_finishes_as_the_whole():
    """13 us without baselines at seed 0 is no effect, if the full system used none at seed 1.

    Without baselines, seed 1 then finishes as in the full system.
    """
    case = runs(10.0, 12.0, without=[13.0])
    case["case"][f"{WHOLE}, seed 1"]["used"] = []
    assert compared("baselines", case, 2)["later"] == 0


def test_a_mechanism_that_no_run_used_changes_nothing():
    """A mechanism that no run used is not ablated."""
    case = runs(10.0, 12.0)
    for run in case["case"].values():
        run["used"] = []
    row = compared("baselines", case, 2)
    assert (row["used"], row["later"], row["mean_ratio"]) == (0, 0, 1.0)
