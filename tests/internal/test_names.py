"""Names as people type them."""

import pytest

from taccl._internal.names import did_you_mean, in_runs, matching, shown, shown_lines

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


def test_shown_escapes_what_a_terminal_obeys():
    """Controls, line breaks and marks of direction become Python's escapes; letters of any script stay."""
    assert shown("a\x1b[1m\n\u202eb \ud800 \u00e9\u4e2d") == "a\\x1b[1m\\n\\u202eb \\ud800 \u00e9\u4e2d"


def test_shown_leaves_out_the_middle():
    """Both ends of a long text stay."""
    assert shown("ab" + "x" * 100 + "yz", 9) == "abx...xyz"


def test_shown_lines_keeps_lines():
    """Line breaks of a text of several lines are no part of a name."""
    assert shown_lines("a\tb\nc") == "a\\tb\nc"


def test_numbers_in_a_row_are_named_by_their_ends():
    """Runs of two or more by the first and the last, whatever order they come in."""
    assert in_runs([7, 1, 0, 2, 4]) == "0-2, 4, 7"
    assert in_runs(()) == "none"


@pytest.mark.parametrize(
    ("word", "name"), [("h100", "dgx-h100"), ("nvl72", "gb200-nvl72"), ("H-200", "h200")]
)
def test_a_name_that_holds_the_word_is_offered_first(word, name):
    """``h100`` is nearer to ``h200`` by letters, and is another GPU."""
    assert did_you_mean(word, ("h200", "dgx-h100", "gb200-nvl72")) == f"; did you mean {name!r}?"
