"""Predictions of published logs that no constant and no fit has seen.

- `default`: default profiles against every log, by size. Outliers of their class are shown and not counted.
  Some constants come from these logs (`source of`); `without` is the median with those of other machines.
- `held out`: default profiles against further published logs (`data/published_logs.toml`). The known
  reason of a large error (`miss`) is printed, and does not excuse it.
- `left out`: a fit to the other logs of a machine against each log.
- `nodes`: a fit to one node, with the network's rate given, against several nodes.
- `collectives`: a fit to one collective against others of the same machine.
- `kernels`: runtimes that run a collective in one kernel.

Errors are relative, for out-of-place times. A row is met if its median error is within the limit. Fits to the
logs themselves are in `benchmarks.fit`.

Examples
--------
    python -m benchmarks.unseen
    python -m benchmarks.unseen --output benchmarks/results/unseen.json
"""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import taccl
from benchmarks.constants import SOURCE_OF, costs_without
from benchmarks.report import parser_of, shown, summed_up
from taccl.measure.logs import read_log
from taccl.measure.predict import costs_of, predict, ranks_per_node, series_us
from taccl.measure.series import Series

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from benchmarks.report import Column, Row
    from taccl.measure.fitted import Fit
    from taccl.measure.library_costs import Costs

#: `WORST_DEFAULT`: max median error of all points under default profiles.
#: `WORST_MACHINE`: max median error of one machine's points under default profiles.
WORST_DEFAULT, WORST_MACHINE = 0.12, 0.25
#: `WORST_LEFT_OUT`: max median error of a log under a fit to other logs.
#: `WORST_SMALL`: max median error of several nodes below 16 MB.
#: `WORST_KERNEL`: max median error of runtimes in one kernel.
WORST_LEFT_OUT, WORST_SMALL, WORST_KERNEL = 0.10, 0.20, 0.07
#: Sizes from which bandwidth dominates between nodes.
LARGE_BYTES = 16 << 20
#: Further published logs; constants come from a few of them.
PUBLISHED = Path(__file__).parent / "data" / "published_logs.toml"
#: (heading, smallest size) of the ranges of sizes.
RANGES = (("<64KB", 0), ("<2MB", 64 << 10), ("<64MB", 2 << 20), (">=64MB", 64 << 20))


class Case(NamedTuple):
    """A log, the machine that it was measured on, and the reason why it is an outlier of its class.

    - `network`: Class of networks of the log's library, if it is not the machine's.
    - `version`: Version of NCCL by the log's first line; empty if it states none.
    """

    log: str
    topology: str
    outlier: str = ""
    network: str | None = None
    version: tuple[int, ...] = ()


CASES = (
    Case("a100_p4de.24xlarge_x2_allreduce_aws", "p4de.24xlarge"),
    Case("b200_lambda_x2_allreduce", "b200", version=(2, 26)),
    Case("gb200_oci_1rack-3racks_allreduce_alltoall", "gb200-nvl72", version=(2, 27)),
    Case("h100_a3mega_gke_x2_allgather_full", "a3-megagpu-8g"),
    Case("h100_a3mega_x2_allreduce_gcp", "a3-megagpu-8g"),
    Case("h100_oci_x2_allreduce_large", "dgx-h100", version=(2, 23)),
    Case("h100_p5.48xlarge_x2_allreduce_aws", "p5.48xlarge"),
    Case(
        "h200_2x1_allgather_1nic_gke", "a3-ultragpu-8g", "its NIC carries 0.64 of its wire", version=(2, 25)
    ),
    Case("mi300x_x1_allreduce_rccl", "mi300x"),
    Case("mi300x_x2_allreduce_rccl", "mi300x", network="rccl-2.22"),
    Case("mi355x_x1_allreduce_full", "mi355x"),
    Case("mi355x_x1_alltoall_full", "mi355x"),
    Case("p5_x1_allreduce_aws_batch", "p5.48xlarge"),
    Case("unseen/a100_cw128_sharp_allreduce", "dgx-a100"),
    Case("unseen/a100_x1_sendrecv_large", "dgx-a100"),
    Case("unseen/dgx2_12gpu_allgather", "dgx2", "its parts of ranks are no multiples of 16 bytes"),
    Case("unseen/dgx2_12gpu_allreduce", "dgx2"),
    Case("unseen/dgx2_12gpu_broadcast", "dgx2"),
    Case("unseen/gb300_1domain_4x4_allreduce", "gb200-nvl72", "rings, where NVLS is usual"),
    Case("unseen/l40s_2x1_allreduce", "l40s"),
    Case("unseen/mi300x_azure_x1_allreduce", "mi300x", "NUMA balancing is on, by its thread"),
    Case("unseen/mscclpp_fig_h100_x1_nccl_allreduce", "dgx-h100"),
    *(
        Case(f"unseen/ndmv4_x{nodes}_{collective}", "nd-a100-v4")
        for nodes in (1, 2)
        for collective in ("allgather", "allreduce", "alltoall")
    ),
)
_OF = {case.log: case for case in CASES}
#: Logs of one machine, each of which is predicted by a fit to the others.
MACHINES = (
    ("p5_x1_allreduce_aws_batch", "h100_p5.48xlarge_x2_allreduce_aws"),
    ("h100_a3mega_x2_allreduce_gcp", "h100_a3mega_gke_x2_allgather_full"),
    ("mi300x_x1_allreduce_rccl", "mi300x_x2_allreduce_rccl"),
    ("mi355x_x1_allreduce_full", "mi355x_x1_alltoall_full"),
    tuple(f"unseen/dgx2_12gpu_{each}" for each in ("allreduce", "allgather", "broadcast")),
    tuple(case.log for case in CASES if "ndmv4" in case.log),
)
#: (log of one node, log of several nodes) of one machine.
NODES = (
    ("p5_x1_allreduce_aws_batch", "h100_p5.48xlarge_x2_allreduce_aws"),
    ("p5_x1_allreduce_aws_batch", "h100_oci_x2_allreduce_large"),
    ("mi300x_x1_allreduce_rccl", "mi300x_x2_allreduce_rccl"),
    *((f"unseen/ndmv4_x1_{each}", f"unseen/ndmv4_x2_{each}") for each in ("allreduce", "allgather")),
)
#: (log of one collective, logs of others) of one machine.
COLLECTIVES = (
    ("h100_a3mega_x2_allreduce_gcp", ("h100_a3mega_gke_x2_allgather_full",)),
    ("h100_a3mega_gke_x2_allgather_full", ("h100_a3mega_x2_allreduce_gcp",)),
    ("mi355x_x1_allreduce_full", ("mi355x_x1_alltoall_full",)),
    ("mi355x_x1_alltoall_full", ("mi355x_x1_allreduce_full",)),
    ("unseen/dgx2_12gpu_allreduce", ("unseen/dgx2_12gpu_allgather", "unseen/dgx2_12gpu_broadcast")),
    ("unseen/ndmv4_x1_allreduce", ("unseen/ndmv4_x1_allgather", "unseen/ndmv4_x1_alltoall")),
)
#: {bytes: us} of an allreduce of MSCCL++ on 8 A100, from its documentation (docs/performance-ndmv4.md).
KERNELS = {
    8 << 10: 6.51, 24 << 10: 7.24, 48 << 10: 7.91, 72 << 10: 8.28, 16 << 20: 156.8, 32 << 20: 288.7,
    1 << 30: 7702.0,
}  # fmt: skip

_COLUMNS: tuple[Column, ...] = (
    ("log", "log", "<44"),
    ("points", "points", ">6d"),
    ("median", "median", ">7.1%"),
)
_RANGED: tuple[Column, ...] = (*_COLUMNS, *((name, f"ranges.{name}", ">7.0%") for name, _ in RANGES))
_DEFAULT: tuple[Column, ...] = (*_RANGED, ("without", "without", ">8.1%"), ("source of", "source", "<20"))
_FITTED: tuple[Column, ...] = (("fitted to", "fitted", "<34"), *_RANGED)


def main() -> int:
    """Print all tables, and write the results; return 1 if a figure is missed."""
    options = parser_of(__doc__).parse_args()
    folder = Path(os.environ.get("TACCL_TEST_DATA", "../shared/data")) / "nccl-tests"
    print("default profiles")
    default = shown(_DEFAULT, default_rows(folder), said=lambda row: row["outlier"])
    default += list(medians(default))
    results = {"default": default}
    print("\nheld out")
    columns = (*_RANGED, _DEFAULT[-1])
    results["held out"] = shown(columns, held_out(), said=lambda row: row["miss"])
    results["held out"] += list(medians(results["held out"]))[1:2]
    parts = {"left out": left_out, "nodes": over_nodes, "collectives": over_collectives}
    for name, of in parts.items():
        print(f"\n{name}")
        results[name] = shown(_FITTED, of(folder), said=lambda row: row["outlier"])
    print("\none-kernel runtimes")
    results["kernels"] = shown((*_COLUMNS, *_DEFAULT[-2:]), [kernel_row()])
    for row in (row for rows in results.values() for row in rows):
        row.pop("errors", None), row.pop("errors_without", None)
    return summed_up(options.output, results)


def default_rows(folder: Path) -> Iterator[Row]:
    """A row for each log, under the default profile of its machine."""
    for case in CASES:
        series = list(series_of(folder, case))
        own = costs_of(case.topology, network=case.network).under(case.version)
        row = row_of(case.log, [(each, us_of(own, each)) for each in series])
        row |= {"outlier": case.outlier, "met": bool(case.outlier) or row["median"] <= WORST_MACHINE}
        row |= {"source": SOURCE_OF.get(case.log, ""), "without": None, "errors_without": row["errors"]}
        if row["source"]:
            costs = costs_without(case.topology, case.log, case.network).under(case.version)
            other = row_of(case.log, [(each, us_of(costs, each)) for each in series])
            row |= {"without": other["median"], "errors_without": other["errors"]}
        yield row


def held_out() -> Iterator[Row]:
    """A row for each log of `published_logs.toml`, under the default profile of its machine."""
    for log in tomllib.loads(PUBLISHED.read_text())["log"]:
        series, costs = published(log)
        row = row_of(log["name"], [(series, us_of(costs, series))])
        source, miss = log.get("source_of", ""), log.get("miss", "")
        errors = {"errors_without": row["errors"], "miss": miss, "met": row["median"] <= WORST_MACHINE}
        yield {**row, "source": source, "outlier": "", **errors}


def published(log: dict[str, Any]) -> tuple[Series, Costs]:
    """Series of a log of `published_logs.toml`, and the costs of its machine."""
    sizes = tuple(log["first_bytes"] << k for k in range(len(log["times_us"])))
    series = Series(
        log["collective"], log["ranks"], log["nodes"], sizes, tuple(map(float, log["times_us"])),
        log["source"], ranks_per_process=log.get("ranks_per_process", 0),
    )  # fmt: skip
    network = log.get("network") if log["nodes"] > 1 else None
    costs = costs_of(log["topology"], network=network, network_gb_per_s=log.get("nic_gb_per_s"))
    return series, costs.under(log.get("version", ()))


def medians(rows: list[Row]) -> Iterator[Row]:
    """Print and yield three median errors; outliers are not counted.

    The first is over the points of all logs. The second omits logs from which a constant comes. The third is
    over all logs again, but replaces constants that come from the predicted log (`costs_without`).
    """
    counted = [row for row in rows if not row["outlier"]]
    unseen = [row for row in counted if not row["source"]]
    for name, some, errors, most in (
        ("all", counted, "errors", WORST_DEFAULT),
        ("no source of a constant", unseen, "errors", WORST_DEFAULT),
        ("all, without constants of own logs", counted, "errors_without", None),
    ):
        points = [error for row in some for error in row[errors]]
        median = float(np.median(points))
        print(
            f"{name}: median of {len(points)} points {median:.1%}" + (f", at most {most:.0%}" if most else "")
        )
        yield {"log": name, "points": len(points), "median": median, "met": most is None or median <= most}


def left_out(folder: Path) -> Iterator[Row]:
    """A row for each log of a machine, under a fit to the others."""
    for logs in MACHINES:
        for log in logs:
            others = [each for each in logs if each != log]
            yield fitted_row(folder, others, log)


def over_nodes(folder: Path) -> Iterator[Row]:
    """Rows of logs of several nodes, predicted from a fit to one node, at large and at small sizes."""
    for one, several in NODES:
        yield fitted_row(folder, [one], several, least=LARGE_BYTES)
        if "large" not in several:
            yield fitted_row(folder, [one], several, most=LARGE_BYTES, worst=WORST_SMALL)


def over_collectives(folder: Path) -> Iterator[Row]:
    """A row for each log of a collective, under a fit to another collective."""
    for one, others in COLLECTIVES:
        for other in others:
            yield fitted_row(folder, [one], other)


def kernel_row() -> Row:
    """Row of one-kernel runtimes: errors of predictions for MSCCL++ on 8 A100.

    The row also has the errors of each size under a fit to the other sizes.
    """
    off_us = {size: time_us - kernel_us(size) for size, time_us in KERNELS.items()}
    errors = [abs(each / KERNELS[size]) for size, each in off_us.items()]
    small = [size for size in KERNELS if size <= 64 << 10]  # the source of the launch: each without itself
    without = [
        abs(each - (np.median([off_us[s] for s in small if s != size]) if size in small else 0))
        / KERNELS[size]
        for size, each in off_us.items()
    ]
    median = float(np.median(errors))
    return {"log": "MSCCL++, allreduce, 8 A100", "points": len(errors), "median": median, "errors": errors,
            "source": "launch", "without": float(np.median(without)),
            "met": median <= WORST_KERNEL}  # fmt: skip


def fitted_row(
    folder: Path, fitted: list[str], log: str, *, least: int = 0, most: float = np.inf,
    worst: float = WORST_LEFT_OUT,
) -> Row:  # fmt: skip
    """Row of a log under a fit to other logs, at sizes from `least` to below `most`."""
    case = _OF[log]
    found = taccl.fit([str(folder / f"{each}.txt") for each in fitted], case.topology)
    series = list(series_of(folder, case))
    row = row_of(log, [(each, fit_us(found, each)) for each in series], least=least, most=most)
    is_other = case.network is not None and least < LARGE_BYTES and case.network != _network_of(found)
    outlier = case.outlier or is_other * f"its library is of class {case.network}, which no fitted log states"
    return {
        "fitted": _short(fitted),
        **row,
        "outlier": outlier,
        "met": bool(outlier) or row["median"] <= worst,
    }


def _network_of(found: Fit) -> str:
    """Class of networks of a fit; empty for the fit of a topology file."""
    return "" if found.costs is None else found.costs.network.name


def _short(logs: list[str]) -> str:
    names = [log.removeprefix("unseen/") for log in logs]
    return names[0] if len(names) == 1 else f"{names[0]} + {len(names) - 1}"


def row_of(
    log: str, found: Iterable[tuple[Series, list[float]]], *, least: int = 0, most: float = np.inf
) -> Row:
    """Row of a log: median errors of the predictions of its series, by range of sizes."""
    errors: list[float] = []
    sizes: list[int] = []
    for series, predicted in found:
        errors += [a / b - 1 for a, b in zip(predicted, series.times_us, strict=True)]
        sizes += series.size_bytes
    kept = [least <= size < most for size in sizes]
    size, off = np.array(sizes)[kept], np.abs(np.array(errors))[kept]
    bounds = [*(start for _, start in RANGES), np.inf]
    ranges = {}
    for (name, start), end in zip(RANGES, bounds[1:], strict=True):
        some = off[(size >= start) & (size < end)]
        ranges[name] = float(np.median(some)) if some.size else None
    return {"log": log.removeprefix("unseen/"), "points": len(off), "median": float(np.median(off)),
            "ranges": ranges, "errors": off.tolist()}  # fmt: skip


def series_of(folder: Path, case: Case) -> Iterator[Series]:
    """Series of a log, each with its number of nodes: as stated, or the fewest that its ranks fit into.

    On machines with more than 16 GPUs per node, which are racks, the stated number is ignored.
    """
    per_node = ranks_per_node(case.topology)
    for each in read_log(folder / f"{case.log}.txt").series:
        num_nodes = each.num_nodes or -(-each.num_ranks // per_node)
        if per_node > 16:  # its hosts are trays of one rack
            num_nodes = -(-each.num_ranks // per_node)
        yield each.on(num_nodes * round(each.num_ranks / num_nodes), num_nodes)


def us_of(costs: Costs, series: Series) -> list[float]:
    """Predicted times in us of a series, under the costs of a machine."""
    return list(series_us(costs, series))


def fit_us(found: Fit, series: Series) -> list[float]:
    """Predicted times in us of a series, under a fit."""
    asked = series.collective, series.num_ranks, series.num_nodes
    return [found.predict_us(*asked, size) for size in series.size_bytes]


def kernel_us(size: int) -> float:
    """Predicted time in us of an allreduce on 8 A100 in one kernel."""
    return predict("dgx-a100", "allreduce", size, runtime="mscclpp").time_us


if __name__ == "__main__":
    sys.exit(main())
