"""The schema of comparisons: documented, and plain."""

from __future__ import annotations

import json
import re
from pathlib import Path

import taccl
from taccl.explore.rows import COLUMNS, LABELS, frame, new_row, plain_rows

PAGE = Path(__file__).resolve().parents[2] / "docs" / "compare.md"


def test_the_page_lists_the_columns():
    """The table of the documentation is the schema."""
    listed = re.findall(r"^\| `(\w+)` \| (\w+) \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert listed == [(column.name, column.dtype, column.meaning) for column in COLUMNS]


def test_names_are_distinct():
    """No column is there twice, and labels are columns."""
    names = [column.name for column in COLUMNS]
    assert len(set(names)) == len(names)
    assert set(LABELS) <= set(names)


def test_rows_are_plain(problem):
    """Rows of a table are JSON, with null for what is missing, and make the same table again."""
    table = taccl.compare(
        problem, backends=["greedy", "pulp:MOSEK"], num_workers=1, cache=False, time_limit_s=5
    )
    rows = plain_rows(table)
    assert rows[1]["finish_us"] is None
    assert frame(json.loads(json.dumps(rows, allow_nan=False))).equals(table)


def test_an_empty_table_has_every_column():
    """Types do not depend on rows."""
    assert list(frame([]).dtypes) == list(frame([new_row()]).dtypes)
