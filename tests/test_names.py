"""Names as people type them."""

from __future__ import annotations

import pytest

from taccl.names import did_you_mean, matching

KNOWN = ("allgather", "reduce-scatter", "broadcast")


@pytest.mark.parametrize("word", ["reduce-scatter", "Reduce_Scatter", "REDUCESCATTER", " reduce scatter"])
def test_spelling_does_not_matter(word):
    """Case, dashes, underscores and blanks are left aside."""
    assert matching(word, KNOWN) == "reduce-scatter"


def test_other_names_match_nothing():
    """A typing error is not taken for what it is near."""
    assert matching("allgathr", KNOWN) is None


def test_the_nearest_is_offered():
    """As the known name is written."""
    assert did_you_mean("reduce-scater", KNOWN) == "; did you mean 'reduce-scatter'?"


def test_nothing_is_offered_for_something_else():
    """Nothing near, nothing said."""
    assert did_you_mean("zzz", KNOWN) == ""
