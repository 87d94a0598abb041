"""Common parts of benchmark drivers: options, tables printed row by row, and results in files."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    Row = dict[str, Any]
    #: (heading of a column, key of its values (`value_of`), their format such as ``">9.1f"``).
    Column = tuple[str, str, str]


def parser_of(text: str | None) -> argparse.ArgumentParser:
    """Parser with the options of all drivers; `text` describes the driver."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--output", type=Path, help="a JSON file for the results")
    return parser


def wanted(name: str, parts: Sequence[str] | None) -> bool:
    """True if a name contains one of `parts`, ignoring case, or if no parts are given."""
    return not parts or any(part.lower() in name.lower() for part in parts)


def shown(
    columns: Sequence[Column],
    rows: Iterable[Row],
    said: Callable[[Row], str] = lambda row: "",
    head: str = "",
) -> list[Row]:
    """Print each row as soon as it is ready, with its columns, its verdict and a remark; return all rows.

    - `said`: Function from a row to the remark.
    - `head`: Text at the end of the heading line.
    """
    found = []
    print("\n" + " ".join(f"{name:{_width(form)}}" for name, _, form in columns), head, flush=True)
    for row in rows:
        found.append(row)
        line = [*(_cell(value_of(row, key), form) for _, key, form in columns), verdict(row), said(row)]
        print(" ".join(line).rstrip(), flush=True)
    return found


def value_of(row: Mapping[str, Any], key: str) -> Any:
    """Value of a row for a key; the key ``a.b`` is the value for ``b`` in the value for ``a``."""
    first, _, rest = key.partition(".")
    return value_of(row.get(first, {}), rest) if rest else row.get(first)


def _cell(value: Any, form: str) -> str:
    if value is None or isinstance(value, bool):
        return f"{'' if value is None else 'yes' if value else 'NO':{_width(form)}}"
    return f"{value:{form}}"


def _width(form: str) -> str:
    found = re.match(r"[<>]\d+", form)
    assert found, "a format has a side and a width"
    return found[0]


def verdict(row: Mapping[str, Any]) -> str:
    """Failed checks of a row as text, from its list ``missed`` or its flag ``met``; empty if none failed."""
    missed: Sequence[str] = row.get("missed", () if row.get("met", True) else ("MISSED",))
    return ", ".join(missed)


def summed_up(output: Path | None, results: Mapping[str, Sequence[Row]], **facts: Any) -> int:
    """Print the number of rows that miss their figure, and write all rows; return 1 if any row does, else 0.

    - `results`: {name of a table: its rows}.
    - `facts`: Further entries of the results file.
    """
    rows = [row for some in results.values() for row in some]
    misses = sum(bool(verdict(row)) for row in rows)
    print(f"\n{len(rows)} rows, {misses} missed; {machine()}")
    if output is not None:
        keep(output, {**facts, **results})
    return int(misses > 0)


def with_stored(output: Path | None, rows: Sequence[Row], *keys: str) -> list[Row]:
    """Rows of a results file, of which new rows replace those with the same values for `keys`."""
    is_stored = output is not None and output.exists()
    stored: list[Row] = json.loads(output.read_text())["rows"] if is_stored and output is not None else []
    return [*{tuple(row.get(key) for key in keys): row for row in (*stored, *rows)}.values()]


def keep(output: Path, contents: Mapping[str, Any]) -> None:
    """Write results to a JSON file, with the command and the machine."""
    command = " ".join([f"python -m benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]])
    origin = {"command": command, "machine": machine()}
    output.write_text(json.dumps({**origin, **contents, **origin}, indent=1) + "\n")


@contextmanager
def picture(path: Path, *, width: float, height: float, parts: int = 1) -> Iterator[Any]:
    """Context with axes of a new figure, which is written as SVG with reproducible bytes."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "taccl"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, parts, figsize=(width, height), layout="constrained")
    yield axes
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def on_logarithms(place: Any, ranks: Iterable[int], label: str) -> None:
    """Set logarithmic axes for a quantity over ranks, with a tick for every number of ranks."""
    place.set(xscale="log", yscale="log", xlabel="ranks", ylabel=label)
    ticks = sorted({int(tick) for tick in ranks})
    place.set_xticks(ticks, [str(tick) for tick in ticks])
    place.minorticks_off()
    place.grid(alpha=0.3)
    place.legend(frameon=False)


def machine() -> str:
    """Cores available to this process, kind of processor, operating system, and Python version, as text."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores} cores, {platform.machine()}, {platform.system()}, Python {platform.python_version()}"
