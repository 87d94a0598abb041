"""Writes the stored results into docs/benchmarks.md, between its two markers.

python -m benchmarks.page            # rewrite the page
python -m benchmarks.page --check    # exit 1 if the page is not what the results say
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"

TITLES = {
    "quality-upstream": "The portfolio, upstream costs",
    "quality-physical": "The portfolio, physical costs",
    "quality-backends": "Each backend alone, upstream costs",
}


def main() -> int:
    """Rewrite the page, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only")
    options = parser.parse_args()
    before = PAGE.read_text()
    head, rest = before.split(BEGIN)
    after = f"{head}{BEGIN}\n\n{_results()}\n{END}{rest.split(END)[1]}"
    if options.check:
        return int(after != before)
    PAGE.write_text(after)
    return 0


def _results() -> str:
    parts = [_quality(name, title) for name, title in TITLES.items() if (RESULTS / f"{name}.json").exists()]
    if (RESULTS / "bounds.json").exists():
        parts += _bounds(_load("bounds"))
    if (RESULTS / "scale.json").exists():
        parts.append(_scale(_load("scale")))
    return "\n".join(parts)


def _load(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return data


def _quality(name: str, title: str) -> str:
    data = _load(name)
    rows = [
        (
            row["case"],
            row["backend"],
            _number(row.get("finish_us")),
            _number(row.get("floor") if row["cost_model"] == "upstream" else None),
            _number(row.get("bound_us")),
            "" if row.get("gap") is None else f"{row['gap']:.2%}",
            f"{row['command_seconds']:.1f}",
        )
        for row in data["rows"]
    ]
    head = ("case", "backend", "finish", "figure to meet", "bound", "gap", "seconds")
    return _section(title, data, _table(head, rows))


def _bounds(data: dict[str, Any]) -> list[str]:
    figures = [
        (f["figure"], _number(f["gb_per_s"]), _number(f["expected"]), f["by_hand"]) for f in data["figures"]
    ]
    speed = [
        (
            f["case"],
            f["collective"],
            str(f["ranks"]),
            str(f["links"]),
            f"{f['cpu_s']:.2f}",
            str(f["cpu_s_at_most"]),
        )
        for f in data["speed"]
    ]
    return [
        _section(
            "Bounds of bandwidth: profile nominal, divisible data",
            data,
            _table(("case", "GB/s", "expected", "by hand"), figures),
        ),
        _section(
            "How long a bound takes",
            data,
            _table(("topology", "collective", "ranks", "links", "CPU s", "at most"), speed),
        ),
    ]


def _scale(data: dict[str, Any]) -> str:
    head = (
        "case",
        "collective",
        "ranks",
        "sends",
        "CPU s",
        "at most",
        "peak MB",
        "finish us",
        "bound us",
        "ratio",
        "at most",
    )
    rows = [
        (
            row["case"],
            row["collective"],
            str(row["ranks"]),
            str(row["sends"]),
            f"{row['cpu_s']:.3g}",
            _number(row.get("cpu_s_at_most")),
            f"{row['peak_mb']:.0f}",
            _number(row["finish_us"]),
            _number(row["bound_us"]),
            f"{row['ratio']:.4f}",
            _number(row.get("ratio_at_most")),
        )
        for row in data["rows"]
    ]
    return _section("Greedy at scale", data, _table(head, rows))


def _section(title: str, data: dict[str, Any], table: str) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in data.get("versions", {}).items())
    said = f"`{data['command']}`: {data['machine']}" + (f"; {versions}" if versions else "")
    return f"### {title}\n\n{said}.\n\n{table}\n"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


if __name__ == "__main__":
    raise SystemExit(main())
