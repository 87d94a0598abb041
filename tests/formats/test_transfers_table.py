"""Transfers as a table: columns with their units, as CSV and as Parquet."""

import csv
import sys

import pytest

import taccl
from taccl import collectives
from taccl.errors import ExportError, InputError
from taccl.problem.making import make_problem
from taccl.schedule.schedule import make_schedule
from taccl.schedule.transfers import transfers_table
from taccl.topology.builder import TopologyBuilder

COLUMNS = [
    "transfer", "chunk", "chunk_bytes", "src_rank", "dst_rank", "src_node", "dst_node", "link", "link_name",
    "group", "operation", "start_us", "end_us",
]  # fmt: skip


def _schedule():
    """Rank 1 adds its chunk to rank 0's in 1/4 + 1 us; then 0 sends it to both ranks of node 1 in 2 us."""
    builder = TopologyBuilder("two nodes", [0, 0, 1, 1])
    builder.add_link(1, 0, alpha_us="1/4", beta_us_per_mb=1, name="up, fast")
    builder.add_link((0,), (2, 3), alpha_us=0, beta_us_per_mb=2)
    collective = collectives.Collective("sum", 4, (collectives.Chunk((0, 1), (2, 3), 0),), combining=True)
    problem = make_problem(builder.build(), collective, chunk_bytes=10**6)
    # Starts and ends are in ticks of 1/4 us.
    return make_schedule(problem, chunk=[0, 0], link=[0, 1], start=[0, 5], end=[5, 13], reduce=[True, False])


def test_a_frame_has_the_columns_of_the_table():
    """`Schedule.to_frame` has a row per pair of ranks, and times in microseconds."""
    frame = _schedule().to_frame()
    assert list(frame.columns) == list(transfers_table(_schedule()))
    assert frame[["src_rank", "dst_rank", "end_us"]].values.tolist() == [
        [1, 0, 1.25],
        [0, 2, 3.25],
        [0, 3, 3.25],
    ]


def test_rows_by_hand():
    """A row per pair of ranks: the send to two ranks gives two rows of one transfer."""
    table = {name: column.tolist() for name, column in transfers_table(_schedule()).items()}
    assert list(table) == COLUMNS
    assert table["transfer"] == [0, 1, 1]
    assert (table["src_rank"], table["dst_rank"]) == ([1, 0, 0], [0, 2, 3])
    assert (table["src_node"], table["dst_node"]) == ([0, 0, 0], [0, 1, 1])
    assert table["operation"] == ["reduce", "copy", "copy"]
    assert (table["start_us"], table["end_us"]) == ([0, 1.25, 1.25], [1.25, 3.25, 3.25])
    assert table["chunk_bytes"] == [10**6] * 3
    assert table["link_name"][0] == "1->0 (up, fast)"


def test_csv_is_read_as_it_was(tmp_path):
    """A CSV reader gets the same names, numbers, and texts with commas."""
    path = tmp_path / "transfers.csv"
    taccl.write(_schedule(), path)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    table = transfers_table(_schedule())
    assert list(rows[0]) == COLUMNS
    assert [row["link_name"] for row in rows] == table["link_name"].tolist()
    assert [float(row["end_us"]) for row in rows] == table["end_us"].tolist()


def test_every_transfer_is_there():
    """Every transfer is a row, in the schedule's order."""
    topology = taccl.topologies.ring(8)
    problem = make_problem(topology, collectives.allgather(8), chunk_bytes=10**6)
    schedule = taccl.baselines.ring(problem)
    table = transfers_table(schedule)
    assert table["transfer"].tolist() == list(range(len(schedule)))
    assert table["chunk"].tolist() == schedule.chunk.tolist()
    assert max(table["end_us"]) == schedule.finish_us


def test_empty_schedule_is_a_line_of_names(tmp_path):
    """Without transfers the table has only the line of column names."""
    problem = make_problem(taccl.topologies.ring(2), collectives.allgather(2), chunk_bytes=1)
    taccl.write(make_schedule(problem, chunk=[], link=[], start=[], end=[]), tmp_path / "empty.csv")
    assert (tmp_path / "empty.csv").read_text() == ",".join(COLUMNS) + "\n"


def test_unknown_links_are_refused():
    """A transfer over a link that does not exist is refused, as it has no ranks."""
    schedule = _schedule()
    wrong = make_schedule(schedule.problem, chunk=[0], link=[7], start=[0], end=[1])
    with pytest.raises(ExportError, match="link outside 0-1"):
        transfers_table(wrong)


def test_existing_file_stays(tmp_path):
    """An existing file is replaced only on request."""
    path = tmp_path / "transfers.csv"
    path.write_text("mine")
    with pytest.raises(InputError, match="exists"):
        taccl.write(_schedule(), path)
    assert path.read_text() == "mine"


def test_parquet_holds_the_table(tmp_path):
    """The Parquet file, read by pyarrow, equals the table with its types."""
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow, which writes Parquet, is not installed")
    path = tmp_path / "transfers.parquet"
    taccl.write(_schedule(), path)
    found = parquet.read_table(path).to_pydict()
    assert found == {name: column.tolist() for name, column in transfers_table(_schedule()).items()}


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    """Without pyarrow the message names the extra, and no file is made."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ExportError, match=r"pip install '\.\[parquet\]'"):
        taccl.write(_schedule(), tmp_path / "transfers.parquet")
    assert not list(tmp_path.iterdir())
