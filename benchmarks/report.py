"""What drivers share: their options, tables that are printed row by row, and results in files."""

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
    #: The head of a column, the key of its values (`value_of`), and their format, such as ``">9.1f"``.
    Column = tuple[str, str, str]


def parser_of(text: str | None) -> argparse.ArgumentParser:
    """The options that all drivers have, below what a driver says of itself."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--output", type=Path, help="a JSON file for the results")
    return parser


def wanted(name: str, parts: Sequence[str] | None) -> bool:
    """Whether a name has one of these parts, in whatever case; any will do where none are given."""
    return not parts or any(part.lower() in name.lower() for part in parts)


def shown(
    columns: Sequence[Column],
    rows: Iterable[Row],
    said: Callable[[Row], str] = lambda row: "",
    head: str = "",
) -> list[Row]:
    """Rows, each printed when it comes: its columns, what it misses, and what is said of it.

    - `head`: What stands at the end of the line above the table.
    """
    found = []
    print("\n" + " ".join(f"{name:{_width(form)}}" for name, _, form in columns), head, flush=True)
    for row in rows:
        found.append(row)
        line = [*(_cell(value_of(row, key), form) for _, key, form in columns), verdict(row), said(row)]
        print(" ".join(line).rstrip(), flush=True)
    return found


def value_of(row: Mapping[str, Any], key: str) -> Any:
    """What a row says under a key, or, behind a dot, under a key of what is there."""
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
    """What a row misses, if anything: it has a list of that, or says whether its figure is met."""
    missed: Sequence[str] = row.get("missed", () if row.get("met", True) else ("MISSED",))
    return ", ".join(missed)


def summed_up(output: Path | None, results: Mapping[str, Sequence[Row]], **facts: Any) -> int:
    """Say how many rows miss their figure, and keep all of them; the exit code: 1 if any does.

    - `results`: Rows by the name of their table.
    - `facts`: What else is kept.
    """
    rows = [row for some in results.values() for row in some]
    misses = sum(bool(verdict(row)) for row in rows)
    print(f"\n{len(rows)} rows, {misses} missed; {machine()}")
    if output is not None:
        keep(output, {**facts, **results})
    return int(misses > 0)


def keep(output: Path, contents: Mapping[str, Any]) -> None:
    """Write results, with the command that they are of and the machine."""
    command = " ".join([f"python -m benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]])
    origin = {"command": command, "machine": machine()}
    output.write_text(json.dumps({**origin, **contents, **origin}, indent=1) + "\n")


@contextmanager
def picture(path: Path, *, width: float, height: float, parts: int = 1) -> Iterator[Any]:
    """Axes of a new figure, which becomes an SVG file, the same each time."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "taccl"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, parts, figsize=(width, height), layout="constrained")
    yield axes
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def on_logarithms(place: Any, ranks: Iterable[int], label: str) -> None:
    """Ranks and what grows with them, both as logarithms, with a tick for every number of ranks."""
    place.set(xscale="log", yscale="log", xlabel="ranks", ylabel=label)
    ticks = sorted({int(tick) for tick in ranks})
    place.set_xticks(ticks, [str(tick) for tick in ticks])
    place.minorticks_off()
    place.grid(alpha=0.3)
    place.legend(frameon=False)


def machine() -> str:
    """The cores this process may use, the kind of processor and system, and the version of Python."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores} cores, {platform.machine()}, {platform.system()}, Python {platform.python_version()}"
