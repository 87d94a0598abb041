"""``--along K,K``: a collective in each group of ranks that differ only in the given dimensions."""

from __future__ import annotations

import pytest

from taccl.cli.command import build_parser
from taccl.cli.problems import problem_from_options
from taccl.errors import InputError

WORDS = ["synthesize", "--topology", "multidim:ring4@100,switch2@50", "--size", "1MB"]


def problem_of(*words):
    """Problem that the given options describe."""
    return problem_from_options(build_parser(WORDS[0]).parse_args([*WORDS, *words]))


def test_dimensions_are_counted_from_1():
    """Groups along dimension 2 are the ranks r and r + 4; the number of chunks stays open."""
    problem = problem_of("--collective", "allgather", "--along", "2")
    assert [group.ranks for group in problem.collective.groups] == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert (problem.chunks_open, problem.size_bytes) == (True, 10**6)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--collective", "allgather", "--along", "3"], "--along: found 3; expected .* of 1 to 2"),
        (["--collective", "allgather", "--along", "1,1"], "--along: found 1,1; expected different"),
        (["--collective", "broadcast", "--along", "1", "--root", "0"], "--root: --along does not combine"),
        (["--collective", "exchange", "--along", "1"], "--along: exchange takes none"),
    ],
)
def test_options_that_do_not_fit(words, said):
    """A dimension that does not exist, a root and an exchange are refused."""
    with pytest.raises(InputError, match=said):
        problem_of(*words)
