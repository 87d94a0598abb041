"""``taccl synthesize`` with and without a given time limit."""

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
