"""Write the stored results into docs/benchmarks.md, between its two markers.

Examples
--------
    python -m benchmarks.page            # rewrite the page, and draw the growth of time and memory
    python -m benchmarks.page --check    # exit with 1 if the page differs from the results
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.nodes import GAPS
from benchmarks.report import value_of, verdict
from benchmarks.scale import draw

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.report import Column, Row

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
RESULTS = ROOT / "benchmarks" / "results"
GROWTH = ROOT / "docs" / "images" / "scale-growth.svg"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"

_CASE = ("case", "case", "")
_QUALITY = (
    _CASE, ("backend", "backend", ""), ("finish", "finish_us", ".6g"), ("figure to meet", "floor", ".6g"),
    ("bound", "bound_us", ".6g"), ("gap", "gap", ".2%"), ("seconds", "command_seconds", ".1f"),
)  # fmt: skip
_FIGURES = (
    ("case", "figure", ""), ("GB/s", "gb_per_s", ".6g"), ("expected", "expected", ".6g"),
    ("by hand", "by_hand", ""),
)  # fmt: skip
_KINDS = (
    ("scope", "scope", ""), ("kind", "kind", ""), ("best", "best", ""), ("best alone", "alone", ""),
    ("lead, median", "lead", ".1%"), ("most often for", "mostly", ""),
)  # fmt: skip
_SPEED = (
    ("topology", "case", ""), ("collective", "collective", ""), ("ranks", "ranks", ""),
    ("links", "links", ""), ("CPU s", "cpu_s", ".2f"), ("at most", "cpu_s_at_most", ""),
)  # fmt: skip
_SCALE = (
    _CASE, ("collective", "collective", ""), ("ranks", "ranks", ""), ("sends", "sends", ""),
    ("CPU s", "cpu_s", ".3g"), ("at most", "cpu_s_at_most", ".6g"), ("peak MB", "peak_mb", ".0f"),
    ("finish us", "finish_us", ".6g"), ("bound us", "bound_us", ".6g"), ("ratio", "ratio", ".4f"),
    ("at most", "ratio_at_most", ".6g"), ("baseline us", "beaten", ""), ("met", "met", ""),
)  # fmt: skip
#: Load average above which two cores are busy.
_BUSY_LOAD = 2.0
_MISSED_NODES = (
    _CASE, ("chunks per rank", "chunks", ""), ("finish", "finish_us", ".6g"), ("bound", "bound_us", ".6g"),
    ("gap", "gap", ".2%"), ("at most", "limit", ".0%"), ("kind of bound", "kind", ""),
    ("CPU s", "cpu_s", ".1f"), ("found by", "producer", ""),
)  # fmt: skip
_AGGREGATION = (
    ("figure", "what", ""), ("found", "found", ".5g"), ("expected", "expected", ".5g"),
    ("allowed", "allowed", ""), ("met", "met", ""),
)  # fmt: skip
_SWEEP = (
    ("sweep", "name", ""), ("runs", "runs", ""), ("seconds", "seconds", ".1f"),
    ("from the cache", "from_cache", ""), ("load average", "load", ""),
)  # fmt: skip
_SHIPPED = (
    _CASE, ("costs", "cost_model", ""), ("shipped us", "shipped_us", ".6g"),
    ("suggested us", "automatic_us", ".6g"), ("ratio", "ratio", ".3f"), ("bound us", "bound_us", ".6g"),
    ("shipped s", "shipped_seconds", ".1f"), ("suggested s", "automatic_seconds", ".1f"),
)  # fmt: skip
_LARGER = (
    _CASE, ("size", "size", ""), ("finish us", "finish_us", ".6g"), ("bound us", "bound_us", ".6g"),
    ("gap", "gap", ".2%"), ("seconds", "seconds", ".1f"),
)  # fmt: skip
_ABLATION = (
    ("left out", "without", ""), ("used in", "used", ""), ("later", "later", ""), ("sooner", "sooner", ""),
    ("within chance", "same", ""), ("mean ratio", "mean_ratio", ".4f"), ("largest", "largest_ratio", ".3f"),
    ("CPU", "cpu_ratio", ".2f"), ("cases that finish later", "which", ""),
)  # fmt: skip
_FIT = (
    ("log", "log", ""), ("median error", "median", ".1%"), ("90th percentile", "p90", ".1%"),
    ("largest", "largest", ".1%"), ("left out, median", "left_out", ".1%"),
    ("irregular", "irregularity", ".1%"), ("noise", "noise", ".1%"), ("three lines", "lines", ".1%"),
    ("CPU s", "cpu_s", ".1f"), ("met", "met", ""),
)  # fmt: skip
_RANGES = ("<64KB", "<2MB", "<64MB", ">=64MB")
_UNSEEN = (
    ("log", "log", ""), ("points", "points", ""), ("median error", "median", ".1%"),
    *((name, f"ranges.{name}", ".0%") for name in _RANGES), ("without", "without", ".1%"),
    ("source of", "source", ""), ("outlier of its class", "outlier", ""), ("met", "met", ""),
)  # fmt: skip
_FITTED = (("fitted to", "fitted", ""), *_UNSEEN[:-4], ("met", "met", ""))


def main() -> int:
    """Rewrite the page, or compare it with the results; return 1 if it differs."""
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
    makers = {
        "quality-upstream": lambda data: _quality(data, "The portfolio, upstream costs"),
        "quality-physical": lambda data: _quality(data, "The portfolio, physical costs"),
        "quality-backends": lambda data: _quality(data, "Each backend alone, upstream costs"),
        "bounds": _bounds, "scale": _scale, "sums": _sums, "nodes": _nodes, "aggregation": _aggregation,
        "sweep": _sweep, "fit": _fit, "unseen": _unseen, "suggest": _suggest, "peers": _peers,
        "ablation": _ablation,
    }  # fmt: skip
    return "\n".join(
        make(_load(name)) for name, make in makers.items() if (RESULTS / f"{name}.json").exists()
    )


def _load(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return data


def _quality(data: dict[str, Any], title: str) -> str:
    # Floors (finishes to meet) apply to upstream costs only.
    rows = [row if row["cost_model"] == "upstream" else row | {"floor": None} for row in data["rows"]]
    return _section(title, data, _QUALITY, rows)


def _bounds(data: dict[str, Any]) -> str:
    said = "Bounds for divisible data, with the profile `nominal`, next to figures derived by hand."
    figures = _section("Bounds of bandwidth", data, _FIGURES, data["figures"], said)
    speed = _section("How long a bound takes", data, _SPEED, data["speed"])
    said = (
        f"Numbers of problems, of {data['kinds'][0]['problems']}, in which a kind of bound is the best, and "
        "in which it alone is the best; *lead* is over the next kind."
    )
    kinds = _section("How often each kind of bound is the best", data, _KINDS, data["kinds"], said)
    return f"{figures}\n{speed}\n{kinds}"


def _sums(data: dict[str, Any]) -> str:
    columns = (
        ("machine", "machine", ""), ("size", "size", ""),
        *((name, f"rivals_us.{name}", ".6g") for name in data["rivals"]),
        ("ours", "ours_us", ".6g"), ("bound", "bound_us", ".6g"),
        ("over all chunkings", "bound_over_all_chunkings_us", ".6g"), ("gap", "gap", ".2%"),
    )  # fmt: skip
    said = "Finish times in us. Latency per hop: 1 us inside nodes, 3 us between nodes, 0.5 us on the fabric."
    return _section("An allreduce of every size", data, columns, data["rows"], said)


def _nodes(data: dict[str, Any]) -> str:
    """Tables of the largest gap by machine, nodes and size, and of the missed rows."""
    rows, missed = data["rows"], [row for row in data["rows"] if verdict(row)]
    largest: dict[tuple[str, str], Row] = {}
    for row in rows:
        machine, nodes, _, size = row["case"].split()
        gaps = largest.setdefault((machine, nodes), {"machine": machine, "nodes": nodes[1:]})
        gaps[size] = max(gaps.get(size, 0.0), row["gap"])
    columns = (
        ("machine", "machine", ""), ("nodes", "nodes", ""),
        *((f"{size} ({most:.0%})", size, ".1%") for size, most in GAPS.items()),
    )  # fmt: skip
    busy = sum(row["load"] is None or row["load"] > _BUSY_LOAD for row in rows)
    said = (
        f"Largest gap of allreduce, allgather and reduce-scatter within {data['limit_s']:g} s, with its "
        "limit in the heading. The bound is that for the result's number of chunks per rank. "
        f"{len(rows) - len(missed)} of {len(rows)} rows meet their limit."
    )
    if busy:
        said += f" {busy} rows were measured on a busy machine, where the time limit allows less work."
    first = _section("Collectives of one to eight nodes", data, columns, [*largest.values()], said)
    return f"{first}\n{_section('Missed limits on one to eight nodes', data, _MISSED_NODES, missed)}"


def _scale(data: dict[str, Any]) -> str:
    rows = [
        row | {"beaten": f"{row['baseline_us']:.6g} ({row['baseline']})" if row.get("baseline") else ""}
        for row in data["rows"]
    ]
    growth = ", ".join(f"{what} grows as ranks^{n:.2f}" for what, n in data["growth"].items())
    said = f"For an allgather on square meshes {growth}." if growth else ""
    return _section("Large topologies", data, _SCALE, rows, said)


def _aggregation(data: dict[str, Any]) -> str:
    rows = [
        row | {"allowed": row["allowed"] if isinstance(row["allowed"], str) else f"{row['allowed']:.0%}"}
        for row in data["rows"]
    ]
    said = (
        "Times are in us. *allowed* is the allowed deviation from the expected figure. For parameter "
        "servers, n is the number of workers and k that of NICs of a central box. *colocated over "
        "central* is the ratio of the two finish times; *over formula* is that ratio divided by the "
        "formula on the page of [parameter servers](aggregation.md#servers)."
    )
    return _section("In-network reduction and parameter servers", data, _AGGREGATION, rows, said)


def _sweep(data: dict[str, Any]) -> str:
    names = {"one_worker": "one worker", "two_workers": "two workers", "cached": "the same again"}
    rows = [data[key] | {"name": name, "runs": data["runs"]} for key, name in names.items()]
    said = (
        f"Two workers are {data['speed_up']} times as fast as one (at least {data['speed_up_at_least']}); "
        f"the limit for the cached re-run is {data['cached_s_at_most']} s."
    )
    return _section("Parallel runs and the cache", data, _SWEEP, rows, said)


def _peers(data: dict[str, Any]) -> str:
    columns = (
        ("other", "peer", ""), _CASE, ("collective", "collective", ""), ("size", "size", ""),
        ("chunks per rank", "chunks", ""), ("theirs us", "peer_us", ".6g"), ("ours us", "ours_us", ".6g"),
        ("ratio", "ratio", ".4f"), ("at most", "most", ".6g"), ("bound us", "bound_us", ".6g"),
        ("gap", "gap", ".2%"), ("CPU s", "cpu_s", ".3g"), ("missed", "missed", ""),
    )  # fmt: skip
    rows = [row | {"missed": verdict(row)} for row in data["rows"]]
    level, missed = sum(row["ratio"] <= 1 + 1e-5 for row in rows), sum(bool(verdict(row)) for row in rows)
    said = (
        f"In {level} of {len(rows)} rows our schedule finishes no later than the other's, and {missed} "
        "rows exceed their limit. *theirs* is a finish, a formula, or an optimum without latency (see "
        "`benchmarks/peers.py`). *at most* is the limit on *ratio*, ours to theirs, or to the bound if "
        "theirs is below the bound. In rows without a number of chunks, taccl chooses it, and the bound "
        "is over all chunkings."
    )
    return _section("Comparison with other synthesizers", data, columns, rows, said)


def _suggest(data: dict[str, Any]) -> str:
    shipped, larger = ([row for row in data["rows"] if key in row] for key in ("ratio", "gap"))
    first = _section("Suggested and shipped sketches", data, _SHIPPED, shipped)
    title = "Suggested sketches for larger machines"
    return f"{first}\n{_section(title, data, _LARGER, larger)}"


def _ablation(data: dict[str, Any]) -> str:
    rows = [row | {"which": _differing(row)} for row in data["rows"]]
    said = (
        f"{len(data['cases'])} cases, with a limit of {data['limit_s']:g} s of counted work and "
        f"{data['seeds']} seeds. In {data['varied']} of them the finish of the full portfolio depends on "
        "the seed. Each mechanism is left out in the cases that used it. A case counts as *later* (or "
        "*sooner*) if it finishes later (or sooner) without the mechanism with each seed, beyond the "
        "range of the full portfolio's finishes. All others are *within chance*. Ratios are without the "
        "mechanism to with it, of finishes and of CPU."
    )
    return _section("Ablation of the portfolio", data, _ABLATION, rows, said)


def _differing(row: Row) -> str:
    """Cases that finish later without a mechanism, with their ratios, the largest first."""
    later = sorted(row["differing"].items(), key=lambda each: -each[1])
    return ", ".join(f"{name} ({ratio:.3f})" for name, ratio in later if ratio > 1)


def _fit(data: dict[str, Any]) -> str:
    ahead = data["predicted"]
    said = (
        "Limits for each log are a median error of 3%, 20% at the 90th percentile, 8% left out, and 5 s. "
        "*irregular* is the mean distance of the times from the nearest curve that rises with the size. "
        "*noise* is the median deviation of a time, by the times in place and out of place. "
        "*three lines* is the median error of up to three lines of free latency and rate through the times: "
        "fits with three protocols are rarely better. "
        f"The mean of the medians of single logs is {data['mean_of_medians']:.1%} (limit 3%). Two further "
        "checks have a limit of 15%. A fit to one node of MI300X, with a NIC rate set by hand, predicts "
        f"two nodes at 1 GiB with an error of {ahead['error']:.1%}. The baseline `nccl` on a profile "
        "fitted to a log predicts that log with these median errors over sizes: "
        + ", ".join(f"{row['log']} {row['median']:.1%}" for row in data["beside"])
        + "."
    )
    return _section("Costs fitted to published logs", data, _FIT, data["rows"], said)


def _unseen(data: dict[str, Any]) -> str:
    """Tables of predictions of logs that were not fitted."""
    said = (
        "Limits are a median error of 12% over all points, and 25% for each log. Outliers are shown and "
        "not counted. *source of* names a constant that comes from this log. *without* is the median "
        "error with the constants of other machines instead."
    )
    default = _section("Published logs under default profiles", data, _UNSEEN, data["default"], said)
    told = "Logs of `benchmarks/data/published_logs.toml`, with their sources there; *source of* as above. "
    misses = [f"{row['log']} ({row['miss']})" for row in data["held out"] if row.get("miss")]
    told += f"Reasons of large errors that are known: {'; '.join(misses)}."
    held_out = _section(
        "Further published logs under default profiles",
        data,
        (*_FITTED[1:-1], _UNSEEN[-3], _UNSEEN[-1]),
        data["held out"],
        told,
    )
    titles = {
        "left out": "Published logs under fits to other logs of the machine",
        "nodes": "Several nodes under fits to one node, from 16 MB on and below",
        "collectives": "Published logs under fits to another collective",
    }
    fitted = (_section(title, data, _FITTED, data[name]) for name, title in titles.items())
    kernels = _section(
        "One-kernel runtimes", data, (*_UNSEEN[:3], *_UNSEEN[-4:-2]), data["kernels"], "The limit is 7%."
    )
    return "\n".join([default, held_out, *fitted, kernels])


def _section(
    title: str, data: dict[str, Any], columns: Sequence[Column], rows: Sequence[Row], said: str = ""
) -> str:
    """Section of the page: title, command and machine, text, and table."""
    versions = ", ".join(f"{name} {version}" for name, version in data.get("versions", {}).items())
    origin = f"`{data['command']}`: {data['machine']}" + (f"; {versions}" if versions else "")
    lines = [[head for head, _, _ in columns]]
    lines += [[_cell(value_of(row, key), form) for _, key, form in columns] for row in rows]
    head, *rest = (f"| {' | '.join(line)} |" for line in lines)
    table = "\n".join([head, "|" + "---|" * len(columns), *rest])
    return "\n\n".join([f"### {title}", f"{origin}.", *([said] if said else []), f"{table}\n"])


def _cell(value: Any, form: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else format(value, form)


if __name__ == "__main__":
    raise SystemExit(main())
