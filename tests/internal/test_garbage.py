"""Garbage collections are rare during a synthesis, and the caller's threshold is restored."""

import gc

import pytest

import taccl
from taccl._internal.garbage import COLLECT_EVERY, rarely_collected
from taccl.cli import main


@pytest.fixture(autouse=True)
def _threshold():
    """Restore the threshold of this process."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize(
    ("given", "inside"), [(700, COLLECT_EVERY), (0, 0), (2 * COLLECT_EVERY, 2 * COLLECT_EVERY)]
)
def test_only_a_lower_threshold_is_raised(given, inside):
    """Python's threshold is raised and restored; none (0) and a higher one stay as they are."""
    gc.set_threshold(given, 10, 10)
    with rarely_collected():
        assert gc.get_threshold()[0] == inside
    assert gc.get_threshold() == (given, 10, 10)


def test_a_threshold_that_is_set_inside_stays():
    """A threshold that the caller sets meanwhile, as in a callback, is not replaced at the end."""
    gc.set_threshold(700, 10, 10)
    with rarely_collected():
        gc.set_threshold(5000, 10, 10)
    assert gc.get_threshold()[0] == 5000


def test_a_command_in_a_process_of_the_caller_restores_the_threshold():
    """`taccl.cli.main` with arguments leaves the caller's threshold as it was."""
    gc.set_threshold(700, 10, 10)
    assert main(["--version"]) == 0
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.slow
def test_synthesis_collects_garbage_rarely():
    """In the callback for a first schedule the threshold is raised; afterwards it is the caller's again."""
    gc.set_threshold(700, 10, 10)
    seen = []
    problem = taccl.make_problem(taccl.topologies.ring(4), "allgather", size_bytes="4KB")
    taccl.synthesize(
        problem, backend="greedy", time_limit_s=20, on_incumbent=lambda *_: seen.append(gc.get_threshold()[0])
    )
    assert set(seen) == {COLLECT_EVERY}
    assert gc.get_threshold()[0] == 700
