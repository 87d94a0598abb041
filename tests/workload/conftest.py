"""Searches for the collectives of steps that end by their work."""

from dataclasses import replace

import pytest

from tests.effort import AMPLE_S, BRIEF


@pytest.fixture(autouse=True)
def _brief_collectives(monkeypatch):
    """End searches for collectives of a step as `brief_synthesis` does; schedules of steps are no worse for these."""
    from taccl.workload import exchange

    own = exchange._PARAMETERS.portfolio
    portfolio = replace(BRIEF.portfolio, balanced_transfers=own.balanced_transfers)
    monkeypatch.setattr(exchange, "_PARAMETERS", replace(BRIEF, portfolio=portfolio))
    monkeypatch.setattr(exchange, "_SEARCH_S", AMPLE_S)
