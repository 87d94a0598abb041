"""Transfers as a table, for spreadsheets and data frames: CSV, or Parquet if pyarrow is installed.

``docs/formats.md`` lists the columns. The table holds the transfers but not the problem, so it cannot be read
as a schedule.
"""

from __future__ import annotations

import io
from importlib import import_module

from taccl._internal.names import install_extra
from taccl.errors import ExportError
from taccl.schedule.schedule import Schedule
from taccl.schedule.transfers import transfers_table


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
