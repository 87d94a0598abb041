"""Searches for the collectives of steps that end by their work."""

from dataclasses import replace

import pytest

from tests.effort import AMPLE_S, BRIEF


@pytest.fixture(autouse=True)
def _brief_collectives(monkeypatch):
    """End searches for collectives of a step as `brief_synthesis` does; schedules of steps are no worse for these."""
    from taccl.workload import exchange

    own = exchange._PARAMETERS.portfolio
    kept = {name: getattr(own, name) for name in ("balanced_transfers", "apart_hops")}
    monkeypatch.setattr(exchange, "_PARAMETERS", replace(BRIEF, portfolio=replace(BRIEF.portfolio, **kept)))
    monkeypatch.setattr(exchange, "_SEARCH_S", AMPLE_S)
