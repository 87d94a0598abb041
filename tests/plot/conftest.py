"""Fixtures for pictures without a screen."""

from __future__ import annotations

import os

import pytest

os.environ["MPLBACKEND"] = "Agg"


@pytest.fixture(autouse=True)
def no_figures_left():
    """Close the figures that a test opened."""
    from matplotlib import pyplot

    yield
    pyplot.close("all")
