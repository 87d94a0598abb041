"""Transfers as columns of a table, with one row per transfer and pair of ranks; its text in CSV, and Parquet.

Parquet needs pyarrow. ``docs/formats.md`` lists the columns. The table holds the transfers but not the
problem, so it cannot be read as a schedule.
"""

from __future__ import annotations

import io
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from taccl._internal.arrays import ranges
from taccl._internal.names import install_extra
from taccl.errors import ExportError, InputError
from taccl.schedule.columns import check_indices

if TYPE_CHECKING:
    from taccl.schedule.schedule import Schedule


def transfers_table(schedule: Schedule) -> dict[str, NDArray[Any]]:
    """{name: column} of a table of all transfers in order of start, for `Schedule.to_frame` and files.

    Raises `ExportError` if the chunk or the link of a transfer does not exist.
    """
    problem = schedule.problem
    topology = problem.topology
    try:
        check_indices(problem, schedule.chunk, schedule.link)
    except InputError as error:
        raise ExportError(error.message) from None
    pairs = [[(src, dst) for src in e.srcs for dst in e.dsts] for e in topology.links]
    first = np.cumsum([0, *map(len, pairs)])
    every = np.array([pair for each in pairs for pair in each], dtype=np.int64).reshape(-1, 2)
    transfer, row = ranges(first[schedule.link], first[schedule.link + 1])
    chunk, link, ends = schedule.chunk[transfer], schedule.link[transfer], every[row]
    node = np.array(topology.node_of_rank, dtype=np.int64)
    us = {
        name: np.array([float(problem.costs.us(ticks)) for ticks in column.tolist()], dtype=np.float64)
        for name, column in (("start_us", schedule.start), ("end_us", schedule.end))
    }
    named: dict[str, NDArray[Any]] = {}
    if schedule.carries is not None:
        sums = np.array([" ".join(map(str, ranks)) for ranks in schedule.sums], dtype=object)
        named["contributions"] = sums[schedule.carries[transfer]]
    return {
        "transfer": transfer,
        "chunk": chunk,
        "chunk_bytes": np.array(problem.chunk_bytes, dtype=np.int64)[chunk],
        "src_rank": ends[:, 0],
        "dst_rank": ends[:, 1],
        "src_node": node[ends[:, 0]],
        "dst_node": node[ends[:, 1]],
        "link": link,
        "link_name": np.array([str(e) for e in topology.links], dtype=object)[link],
        "group": schedule.group[transfer],
        "operation": np.where(schedule.reduce[transfer], "reduce", "copy").astype(object),
        **named,
        "start_us": us["start_us"][transfer],
        "end_us": us["end_us"][transfer],
    }


def csv_text(schedule: Schedule) -> str:
    """Table of a schedule's transfers as CSV text, with a header line."""
    text: str = schedule.to_frame().to_csv(index=False, lineterminator="\n")
    return text


def parquet_bytes(schedule: Schedule) -> bytes:
    """Table of a schedule's transfers as the content of a Parquet file.

    Raises `ExportError` if pyarrow is not installed.
    """
    try:
        pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise ExportError(
            f"Parquet needs pyarrow, which cannot be imported ({error}); install it with "
            f"{install_extra('parquet')}, or write CSV"
        ) from None
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.table(transfers_table(schedule)), buffer)
    return buffer.getvalue()
