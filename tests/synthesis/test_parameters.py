"""`SearchParameters`: the constants of the search, from files and for searches."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import pytest

import taccl
from taccl import collectives
from taccl.errors import FormatError, InputError
from taccl.synthesis.parameters import DEFAULTS, PortfolioParameters, SearchParameters

GROUPS = [getattr(DEFAULTS, each.name) for each in dataclasses.fields(DEFAULTS)]


def ring():
    """An allgather on a ring of four, which the list scheduler solves."""
    return taccl.make_problem(taccl.topologies.ring(4), collectives.allgather(4), chunk_bytes=1000)


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: type(group).__name__)
def test_every_group_is_documented(group):
    """Each says what its constants are of."""
    assert not type(group).__doc__.startswith(type(group).__name__)


def test_a_file_changes_what_it_names(tmp_path):
    """One number of one group; all else stays as it is."""
    path = tmp_path / "search.toml"
    path.write_text("[portfolio]\njoint_hops = 100\n[list]\nnoises = [0, 0.5]\n")
    loaded = SearchParameters.load(path)
    assert loaded.to_dict() == {"portfolio": {"joint_hops": 100}, "list": {"noises": (0.0, 0.5)}}
    assert SearchParameters.from_dict(loaded.to_dict()) == loaded


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[portfolo]", "found 'portfolo'; expected one of choice, budget.*; did you mean 'portfolio'"),
        ("[portfolio]\njoint_hop = 1", "; did you mean 'joint_hops'?"),
        ("[portfolio]\njoint_hops = 1.5", "portfolio: joint_hops: found 1.5; expected a whole number"),
        ("[portfolio]\njoint_share = 1.5", "joint_share: found 1.5; expected a share, 0 to 1"),
        ("[portfolio]\njoint_share = -1", "joint_share: found -1; expected a finite number of at least 0"),
        ("[portfolio]\njoint_share = 'all'", "joint_share: found 'all'; expected a finite number"),
        ("[list]\nnoises = []", "noises: found \\[\\]; expected a list of at least one number"),
        ("portfolio = 3", "portfolio: found 3; expected a table of compiled_share"),
    ],
)
def test_what_does_not_fit_is_refused(text, said, tmp_path):
    """With the place, what was found, and what is expected."""
    path = tmp_path / "search.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=said) as caught:
        SearchParameters.load(path)
    assert str(path) in str(caught.value)


def test_groups_check_what_they_are_made_of():
    """Made in Python, too, a constant has the kind of its default."""
    assert PortfolioParameters(joint_hops=1e3).joint_hops == 1000
    with pytest.raises(InputError, match="joint_hops: found -1; expected a whole number of at least 0"):
        PortfolioParameters(joint_hops=-1)
    with pytest.raises(InputError, match="portfolio"):
        SearchParameters(portfolio=3)


def test_a_file_that_is_missing(tmp_path):
    """It is told by its path."""
    with pytest.raises(FormatError, match="there is no such file"):
        SearchParameters.load(tmp_path / "none.toml")


def test_synthesize_obeys_them():
    """With no hops that a model may have, the compiled search runs; by default the portfolio does."""
    few = SearchParameters.from_dict({"choice": {"most_hops": 0, "few_hops": 0}})
    assert taccl.synthesize(ring(), time_limit_s=2).choice.startswith("the portfolio")
    assert taccl.synthesize(ring(), time_limit_s=2, parameters=few).choice.startswith("the compiled")


@pytest.mark.slow
def test_a_sweep_has_a_row_for_each(tmp_path):
    """The column says how they differ from the defaults, and each has a key of its own in the cache."""
    few = SearchParameters.from_dict({"portfolio": {"joint_hops": 1}})
    table = taccl.sweep(
        "ring:4",
        "allgather",
        sizes=["1MB"],
        backends=["greedy"],
        time_limit_s=1,
        parameters=[DEFAULTS, few],
        num_workers=1,
        cache=tmp_path,
        full=True,
    )
    assert table["parameters"].isna().tolist() == [True, False]
    assert table["parameters"][1] == '{"portfolio": {"joint_hops": 1}}'
    assert table["key"].nunique() == 2
    assert table["status"].str.startswith("proven").all()


#: Names that stand at the top of a module, in capitals, and are no constants of the search: what kernels and
#: tables number, and estimates of what code takes.
NOT_OF_THE_SEARCH = {
    "_ADD", "_SET", "_REMOVE_ENTRY", "_REMOVE_CLAUSE", "_MAX_DEMANDS", "_MAX_SETS", "_MAX_NAMED", "_WIDTH",
    "_MOST_ASKED", "_EXPANDED_BYTES", "_FILE_BYTES", "_HOP_BYTES", "_TREE_BYTES",
    "_SENT_BYTES", "_NUM_TREES", "_VERIFIED_ROW_BYTES", "_HELD_ROW_BYTES", "_BLOCK", "_PROOF_BYTES",
    "_PROOF_LINK_BYTES", "_MOST_PROOF_LINKS", "_SAMPLED", "_BYTES_PER_HOP", "_BYTES_PER_ROW", "_NO_DEADLINE",
    "_TICK_SLACK", "_RANDOM_MASK", "_MOST_LINKS", "_MOST_TRIED", "_MOST_IMAGES", "_MOST_KEPT",
    "_CLASS_RATIO", "_MAX_CLASSES", "_LONGEST_SORTED", "_NEVER", "_FAR", "_MANY", "_CHUNK_BITS",
    "FEWEST_FIRST", "IN_TURN", "NEVER", "FAR", "_FRESH", "_BEHIND", "_ANYTHING",
    "_MOST_TRANSFERS", "MOST_TRANSFERS", "_MANY_TRANSFERS", "_NEAR", "_CUTS", "_TOLD_BELOW_US",
}  # fmt: skip


@pytest.mark.slow
def test_no_constant_stands_elsewhere():
    """A number at the top of a module of the search is one of `SearchParameters`, or says why not."""
    folder = Path(taccl.__file__).parent / "synthesis"
    found = {
        f"{path.relative_to(folder)}: {name.id}"
        for path in folder.rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign) and _is_numeric(node.value)
        for target in node.targets
        for name in (target.elts if isinstance(target, ast.Tuple) else [target])
        if isinstance(name, ast.Name) and name.id not in NOT_OF_THE_SEARCH
    }
    assert not found


def _is_numeric(node: ast.expr) -> bool:
    """Whether an expression is a number, or several."""
    if isinstance(node, ast.Tuple):
        return bool(node.elts) and all(map(_is_numeric, node.elts))
    if isinstance(node, ast.BinOp):
        return _is_numeric(node.left) and _is_numeric(node.right)
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)
