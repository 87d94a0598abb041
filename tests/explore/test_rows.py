"""The schema of comparison tables."""

import json
import re
from pathlib import Path

import pytest

import taccl
from taccl.explore.compare import Runs, compare_rows
from taccl.explore.rows import COLUMNS, LABELS, frame, new_row, plain_rows, with_best_bounds
from tests.effort import AMPLE_S

PAGE = Path(__file__).resolve().parents[2] / "docs" / "compare.md"


def test_the_page_lists_the_columns():
    """The table of columns in the documentation lists exactly the columns of the schema."""
    listed = re.findall(r"^\| `(\w+)` \| (\w+) \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert listed == [(column.name, column.dtype, column.meaning) for column in COLUMNS]


def test_names_are_distinct():
    """Column names are unique, and labels are names of columns."""
    names = [column.name for column in COLUMNS]
    assert len(set(names)) == len(names)
    assert set(LABELS) <= set(names)


@pytest.mark.slow
def test_rows_are_plain(problem):
    """Rows are JSON with null for missing values, and make the same table again."""
    runs = Runs(backends=["greedy", "pulp:MOSEK"], num_workers=1, cache=False, time_limit_s=AMPLE_S)
    found = compare_rows(problem, runs)
    rows = plain_rows(found)
    assert rows[1]["finish_us"] is None
    assert frame(json.loads(json.dumps(rows, allow_nan=False))).equals(frame(found))


@pytest.mark.slow
def test_rows_have_stages():
    """The column `stages` has each stage of the run, and the columns of its parts add up to the seconds."""
    problem = taccl.make_problem(taccl.topologies.ring(6), "alltoall", size_bytes="1MB", chunks_per_rank=1)
    table = taccl.compare(problem, backends=["greedy"], num_workers=1, cache=False, time_limit_s=5, full=True)
    row = table.iloc[0]
    stages = json.loads(row.stages)
    assert {"greedy", "bound", "overhead"} <= {each["name"].rpartition(": ")[2] for each in stages}
    assert abs(sum(each["seconds"] for each in stages) - row.seconds) < 0.01
    first, last = table.columns.get_loc("bound_s"), table.columns.get_loc("other_s")
    assert abs(row.iloc[first : last + 1].sum() - row.seconds) < 0.01


def test_an_empty_table_has_every_column():
    """A table without rows has the same column types."""
    assert list(frame([]).dtypes) == list(frame([new_row()]).dtypes)


def test_the_best_bound_holds_for_all_runs_of_a_problem():
    """The largest bound found by any run of a problem counts for all its runs.

    With bounds of 2 and 4 us, a finish of 4 is proven, and 6 has a gap of a half.
    """
    made = [
        new_row(
            problem_digest=digest,
            bound_scope="1 chunk per rank",
            finish_us=finish,
            bound_us=bound,
            gap=finish / bound - 1,
            status="found",
        )
        for digest, finish, bound in (("a", 4.0, 2.0), ("a", 6.0, 4.0), ("b", 6.0, 3.0))
    ]
    rows = with_best_bounds([*made, new_row(problem_digest="a", status="unavailable")])
    assert [(row["status"], row["bound_us"], row["gap"]) for row in rows] == [
        ("proven for its chunks", 4.0, 0.0), ("found", 4.0, 0.5), ("found", 3.0, 1.0), ("unavailable", None, None),
    ]  # fmt: skip


def test_the_best_bound_over_all_chunkings_is_in_both_of_its_columns():
    """If runs of an open problem prove 3 and 4 us, each row shows 4 in both bound columns."""
    made = [
        new_row(problem_digest="a", bound_scope="all chunkings", finish_us=6.0, bound_us=bound, gap=6 / bound - 1,
                bound_over_all_chunkings_us=bound, gap_over_all_chunkings=6 / bound - 1, status="found")
        for bound in (3.0, 4.0)
    ]  # fmt: skip
    columns = ("bound_us", "bound_over_all_chunkings_us", "gap", "gap_over_all_chunkings")
    rows = with_best_bounds(made)
    assert [tuple(row[name] for name in columns) for row in rows] == [(4.0, 4.0, 0.5, 0.5)] * 2
