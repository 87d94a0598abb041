"""`SearchParameters`: search constants as Python objects and from files."""

import ast
import dataclasses
import re
from pathlib import Path

import pytest

import taccl
from taccl import collectives
from taccl.errors import FormatError, InputError
from taccl.synthesis.parameters import DEFAULTS, PortfolioParameters, SearchParameters
from tests.effort import AMPLE_S

GROUPS = [getattr(DEFAULTS, each.name) for each in dataclasses.fields(DEFAULTS)]


def ring():
    """An allgather on a ring of four, which the list scheduler solves."""
    return taccl.make_problem(taccl.topologies.ring(4), collectives.allgather(4), chunk_bytes=1000)


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: type(group).__name__)
def test_every_group_is_documented(group):
    """Every group has a docstring of its own."""
    assert not type(group).__doc__.startswith(type(group).__name__)


def test_there_are_at_most_sixty_constants():
    """There are at most sixty constants; others are in the modules that use them."""
    assert sum(len(dataclasses.fields(group)) for group in GROUPS) <= 60


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: type(group).__name__)
def test_every_group_names_benchmarks_that_it_affects(group):
    """Every group names the modules of `benchmarks` that it affects."""
    folder = Path(__file__).parents[2] / "benchmarks"
    named = re.findall(r"benchmarks\.(\w+)", type(group).__doc__)
    assert named and all((folder / f"{name}.py").exists() for name in named)


def test_a_file_changes_what_it_names(tmp_path):
    """A file changes the constants that it names, and no others."""
    path = tmp_path / "search.toml"
    path.write_text("[portfolio]\njoint_hops = 100\n[suggesting]\ncounts = [1, 4]\n")
    loaded = SearchParameters.load(path)
    assert loaded.to_dict() == {"portfolio": {"joint_hops": 100}, "suggesting": {"counts": (1, 4)}}
    assert SearchParameters.from_dict(loaded.to_dict()) == loaded


def test_only_changed_constants_are_printed():
    """The text of parameters is the call that makes them: `help` of a function shows the defaults in one word."""
    assert repr(SearchParameters()) == "SearchParameters()"
    changed = SearchParameters.from_dict({"portfolio": {"joint_hops": 100}})
    assert eval(repr(changed)) == changed


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[portfolo]", "found 'portfolo'; expected one of choice, budget.*; did you mean 'portfolio'"),
        ("[portfolio]\njoint_hop = 1", "; did you mean 'joint_hops'?"),
        ("[portfolio]\njoint_hops = 1.5", "portfolio: joint_hops: found 1.5; expected a whole number"),
        ("[portfolio]\njoint_share = 1.5", "joint_share: found 1.5; expected a share, 0 to 1"),
        ("[portfolio]\njoint_share = -1", "joint_share: found -1; expected a finite number of at least 0"),
        ("[portfolio]\njoint_share = 'all'", "joint_share: found 'all'; expected a finite number"),
        ("[suggesting]\ncounts = []", "counts: found \\[\\]; expected a list of at least one number"),
        ("portfolio = 3", "portfolio: found 3; expected a table of joint_hops"),
    ],
)
def test_what_does_not_fit_is_refused(text, said, tmp_path):
    """The error for a bad file has the place, the value found, and the value expected."""
    path = tmp_path / "search.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=said) as caught:
        SearchParameters.load(path)
    assert str(path) in str(caught.value)


def test_groups_check_what_they_are_made_of():
    """Constants set in Python are checked for the type of their default."""
    assert PortfolioParameters(joint_hops=1e3).joint_hops == 1000
    with pytest.raises(InputError, match="joint_hops: found -1; expected a whole number of at least 0"):
        PortfolioParameters(joint_hops=-1)
    with pytest.raises(InputError, match="portfolio"):
        SearchParameters(portfolio=3)


def test_a_file_that_is_missing(tmp_path):
    """The error for a missing file of parameters names its path."""
    with pytest.raises(FormatError, match="there is no such file"):
        SearchParameters.load(tmp_path / "none.toml")


@pytest.mark.slow
def test_synthesize_obeys_parameters(compiled_search):
    """With a limit of 0 hops for models the compiled search runs; by default the portfolio does."""
    few = SearchParameters.from_dict({"choice": {"most_hops": 0, "few_hops": 0}})
    assert taccl.synthesize(ring(), time_limit_s=AMPLE_S).choice.startswith("the portfolio")
    assert taccl.synthesize(ring(), time_limit_s=AMPLE_S, parameters=few).choice.startswith("the compiled")


@pytest.mark.slow
def test_a_sweep_has_a_row_for_each(tmp_path):
    """A sweep over parameters has a row for each, with its differences from the defaults and its own cache
    key."""
    few = SearchParameters.from_dict({"portfolio": {"joint_hops": 1}})
    table = taccl.sweep(
        "ring:4",
        "allgather",
        sizes=["1MB"],
        chunks_per_rank=[1],
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


@pytest.mark.slow
def test_constants_of_modules_say_what_they_are():
    """Every number at the top of a search module has a comment on its line or above its block."""
    folder = Path(taccl.__file__).parent / "synthesis"
    bare = []
    for path in folder.rglob("*.py"):
        lines = path.read_text().splitlines()
        for node in ast.parse("\n".join(lines)).body:
            if not isinstance(node, ast.Assign) or not _is_numeric(node.value):
                continue
            above = node.lineno - 2
            while re.match(r"_?[A-Z][A-Z_0-9, ]* = ", lines[above]):
                above -= 1
            if not lines[above].startswith("#") and "#" not in lines[node.lineno - 1]:
                bare.append(f"{path.relative_to(folder)}: {lines[node.lineno - 1]}")
    assert not bare


def _is_numeric(node):
    """True if an expression is a number or a tuple of numbers."""
    if isinstance(node, ast.Tuple):
        return bool(node.elts) and all(map(_is_numeric, node.elts))
    if isinstance(node, ast.BinOp):
        return _is_numeric(node.left) and _is_numeric(node.right)
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)
