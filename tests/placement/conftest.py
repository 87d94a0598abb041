"""Fixtures that shorten searches for orders of hosts."""

from __future__ import annotations

import pytest

from taccl.placement import case
from tests.fuzzing import MANY


@pytest.fixture(autouse=True)
def _fewer_tries(monkeypatch):
    """Try a tenth of the usual number of orders per search, or all of them with ``TACCL_MANY=1``."""
    if not MANY:
        monkeypatch.setattr(case, "_MOST_TRIES", case._MOST_TRIES // 10)
