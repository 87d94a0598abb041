"""Writes the stored results into docs/benchmarks.md, between its two markers.

python -m benchmarks.page            # rewrite the page, and draw how time and memory grow
python -m benchmarks.page --check    # exit 1 if the page is not what the results say
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.scale import draw

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
RESULTS = ROOT / "benchmarks" / "results"
GROWTH = ROOT / "docs" / "images" / "scale-growth.svg"
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
        return int(after != before or not GROWTH.exists())
    PAGE.write_text(after)
    if (RESULTS / "scale.json").exists():
        draw(_load("scale")["rows"], GROWTH)
    return 0


def _results() -> str:
    parts = [_quality(name, title) for name, title in TITLES.items() if (RESULTS / f"{name}.json").exists()]
    if (RESULTS / "bounds.json").exists():
        parts += _bounds(_load("bounds"))
    if (RESULTS / "scale.json").exists():
        parts.append(_scale(_load("scale")))
    if (RESULTS / "sums.json").exists():
        parts.append(_sums(_load("sums")))
    if (RESULTS / "aggregation.json").exists():
        parts.append(_aggregation(_load("aggregation")))
    if (RESULTS / "sweep.json").exists():
        parts.append(_sweep(_load("sweep")))
    if (RESULTS / "fit.json").exists():
        parts.append(_fit(_load("fit")))
    if (RESULTS / "suggest.json").exists():
        parts += _suggest(_load("suggest"))
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


def _sums(data: dict[str, Any]) -> str:
    rivals = list(data["rivals"])
    head = ("machine", "size", *rivals, "ours", "bound", "of every cut", "gap")
    rows = [
        (
            row["machine"],
            row["size"],
            *(_number(row["rivals_us"].get(name)) for name in rivals),
            _number(row["ours_us"]),
            _number(row["bound_us"]),
            _number(row["bound_of_every_cut_us"]),
            f"{row['gap']:.2%}",
        )
        for row in data["rows"]
    ]
    title = "Sums of every size: an allreduce with 1 us a hop inside nodes and 3 us between, in us"
    return _section(title, data, _table(head, rows))


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
        "baseline us",
        "met",
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
            f"{row['baseline_us']:.6g} ({row['baseline']})" if row.get("baseline") else "",
            "yes" if row["met"] else "no",
        )
        for row in data["rows"]
    ]
    growth = ", ".join(f"{what} grows as ranks ** {n:.2f}" for what, n in data["growth"].items())
    said = f"Of an allgather on square meshes {growth}.\n\n" if growth else ""
    return _section("Greedy at scale", data, said + _table(head, rows))


def _aggregation(results: dict[str, Any]) -> str:
    lines = [
        "### Sums in the network and at servers",
        "",
        f"`{results['command']}`: {results['machine']}. Times in us; a figure may differ by what",
        "is allowed from what is expected.",
        "",
        "| figure | found | expected | allowed | met |",
        "|---|---|---|---|---|",
    ]
    for row in results["rows"]:
        allowed = row["allowed"] if isinstance(row["allowed"], str) else f"{row['allowed']:.0%}"
        figures = f"{row['found']:.5g} | {row['expected']:.5g} | {allowed}"
        lines.append(f"| {row['what']} | {figures} | {'yes' if row['met'] else 'no'} |")
    return "\n".join([*lines, ""])


def _sweep(data: dict[str, Any]) -> str:
    head = ("sweep", "runs", "seconds", "from the cache", "load average")
    rows = [
        (name, str(data["runs"]), f"{part['seconds']:.1f}", str(part["from_cache"]), str(part["load"]))
        for name, part in (
            ("one worker", data["one_worker"]),
            ("two workers", data["two_workers"]),
            ("the same again", data["cached"]),
        )
    ]
    said = (
        f"Two workers are {data['speed_up']} times as fast as one (to be met: {data['speed_up_at_least']}); "
        f"the cached re-run is to take {data['cached_s_at_most']} s at most."
    )
    return _section("A sweep of many runs", data, f"{said}\n\n{_table(head, rows)}")


def _suggest(data: dict[str, Any]) -> list[str]:
    shipped = [
        (
            row["case"],
            row["cost_model"],
            _number(row["shipped_us"]),
            _number(row["automatic_us"]),
            f"{row['ratio']:.3f}",
            _number(row["bound_us"]),
            f"{row['shipped_seconds']:.1f}",
            f"{row['automatic_seconds']:.1f}",
        )
        for row in data["rows"]
        if "ratio" in row
    ]
    larger = [
        (
            row["case"],
            row["size"],
            _number(row["finish_us"]),
            _number(row["bound_us"]),
            f"{row['gap']:.2%}",
            f"{row['seconds']:.1f}",
        )
        for row in data["rows"]
        if "gap" in row
    ]
    head = ("case", "costs", "shipped us", "automatic us", "ratio", "bound us", "shipped s", "automatic s")
    return [
        _section("Automatic sketches beside the shipped ones", data, _table(head, shipped)),
        _section(
            "Automatic sketches of larger machines, against physical bounds",
            data,
            _table(("case", "size", "finish us", "bound us", "gap", "seconds"), larger),
        ),
    ]


def _fit(data: dict[str, Any]) -> str:
    head = ("log", "median error", "90th percentile", "largest", "left out, median", "CPU s", "met")
    rows = [
        (
            row["log"],
            *(f"{row[name]:.1%}" for name in ("median", "p90", "largest", "left_out")),
            f"{row['cpu_s']:.1f}",
            "yes" if row["met"] else "no",
        )
        for row in data["rows"]
    ]
    ahead = data["predicted"]
    said = (
        "To be met: median 6%, 90th percentile 20%, left out 8%, 5 s; mean of the medians of single logs 4%, "
        f"which is {data['mean_of_medians']:.1%}. Two nodes of MI300X at 1 GiB, from a log of one and a "
        f"NIC rate written by hand: off {ahead['error']:.1%}, at most 15%. What the baseline `nccl` predicts "
        "on a profile fitted to a log, beside that log (median over sizes, at most 15%): "
        + ", ".join(f"{row['log']} {row['median']:.1%}" for row in data["beside"])
        + "."
    )
    return _section("Costs fitted to published logs", data, f"{said}\n\n{_table(head, rows)}")


def _section(title: str, data: dict[str, Any], table: str) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in data.get("versions", {}).items())
    said = f"`{data['command']}`: {data['machine']}" + (f"; {versions}" if versions else "")
    return f"### {title}\n\n{said}.\n\n{table}\n"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


if __name__ == "__main__":
    raise SystemExit(main())
