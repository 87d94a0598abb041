"""Fixtures for pictures without a screen."""

from __future__ import annotations

import matplotlib
import pytest

matplotlib.use("Agg")


@pytest.fixture(autouse=True)
def no_figures_left():
    """Close the figures that a test opened."""
    from matplotlib import pyplot

    yield
    pyplot.close("all")
