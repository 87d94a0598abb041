"""``taccl synthesize`` with and without a given time limit."""

from dataclasses import replace

import pytest

import taccl


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "share"), [((), 1 / 3), (("--time-limit", "5"), None), (("--time-limit=5",), None)]
)
def test_a_time_limit_that_is_given_may_be_used_up(words, share, run, monkeypatch):
    """Without a given limit, improvement ends once it finds nothing for a third of the time."""
    seen, found = [], taccl.synthesize

    def noted(problem, **options):
        seen.append(options["idle_share"])
        return found(problem, **options)

    monkeypatch.setattr(taccl, "synthesize", noted)
    code, _, _ = run("synthesize", "ring:4", "--collective", "allgather", "--size", "4KB", *words)
    assert (code, seen) == (0, [share])


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(1, "a stage reached its share of the time limit"), (9.5, "stopped by the time limit")],
)
def test_a_limit_with_time_left_is_not_said_to_stop_the_search(seconds, said, run, monkeypatch):
    """A search with time left was cut by a stage's share of the limit, and the warning says so."""
    found = taccl.synthesize

    def cut(problem, **options):
        return replace(found(problem, **options), stopped="time limit", seconds=seconds)

    monkeypatch.setattr(taccl, "synthesize", cut)
    words = ["--collective", "allgather", "--size", "4KB", "--backend", "greedy", "--time-limit", "10"]
    code, _, err = run("synthesize", "ring:2", *words, "--chunks-per-rank", "1")
    assert code == 0 and said in err
