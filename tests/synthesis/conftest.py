"""Fixtures of the tests of the search."""

from dataclasses import replace

import pytest

from taccl.synthesis import bounding


@pytest.fixture
def loose_bound(monkeypatch):
    """Halve the bound, so that no schedule meets it and every stage runs."""
    proven = bounding.lower_bound

    def half(problem, **options):
        bound = proven(problem, **options)
        return replace(bound, bound=bound.bound / 2)

    monkeypatch.setattr(bounding, "lower_bound", half)
    monkeypatch.setattr(bounding, "bound_over_all_chunkings", lambda *_, **__: None)  # may meet the optimum
