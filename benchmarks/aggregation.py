"""In-network and server-based reduction: gains, limits, and behaviour under packet loss.

Each figure is measured on verified schedules or in a packet simulation, and compared with a formula. A row
misses its figure if the two differ by more than the row allows, or if a finish lies below its bound.

Examples
--------
    python -m benchmarks.aggregation
    python -m benchmarks.aggregation --part switch --part table
    python -m benchmarks.aggregation --output benchmarks/results/aggregation.json  # keeps other parts
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

import taccl
from benchmarks.report import parser_of, shown, summed_up, with_stored
from taccl._internal.units import parse_size
from taccl.aggregation import (
    MODELS,
    block_error_bounds,
    block_exponents,
    choose_servers,
    dequantise,
    dequantise_blocks,
    error_bound,
    largest_scale,
    layer_bytes,
    place_shards,
    quantise,
    quantise_blocks,
    simulate_packets,
)  # fmt: skip
from taccl.baselines import baseline
from taccl.baselines.servers import servers
from taccl.problem.collectives import allreduce, exchange, together
from taccl.topologies import in_network, rack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.report import Column, Row
    from taccl.schedule.schedule import Schedule
    from taccl.topology.topology import Topology

#: Relative rounding error of figures in floating point.
ROUNDING = 1e-12
#: Cost of a worker's port in us/MB.
PORT_US_PER_MB = 80
SLOTS = (16, 32, 64, 96, 112, 122, 128, 192, 256, 512)
WORKERS, CARDS = range(4, 33), range(1, 17)


COLUMNS: tuple[Column, ...] = (
    ("figure", "what", "<58"), ("found", "found", ">12.5g"), ("expected", "expected", ">12.5g"),
    ("allowed", "allowed", ">8"),
)  # fmt: skip


def row(what: str, found: float, expected: float, allowed: float | str) -> Row:
    """A figure with its expected value.

    - `allowed`: Max relative difference, or ``"or more"`` or ``"or less"`` for a one-sided limit.
    """
    if isinstance(allowed, str):
        slack = ROUNDING * abs(expected)
        met = found >= expected - slack if allowed == "or more" else found <= expected + slack
    else:
        met = abs(found - expected) <= allowed * abs(expected)
    return {"what": what, "found": found, "expected": expected, "allowed": allowed, "met": bool(met)}


at_least, at_most = partial(row, allowed="or more"), partial(row, allowed="or less")


def checked(schedule: Schedule) -> Schedule:
    """The given schedule, once it is verified; raises an error if it is invalid."""
    taccl.verify(schedule).raise_if_failed()
    return schedule


def open_sum(topology: Topology, size: str) -> taccl.Problem:
    """An allreduce problem whose number of chunks is open."""
    return taccl.make_problem(topology, "allreduce", size_bytes=parse_size(size))


def switch(_: float) -> Iterator[Row]:
    """Speedup of in-network reduction over a ring, and the rate that the switch's slots permit."""
    for workers in (8, 16):
        problem = open_sum(in_network(workers), "1GB")
        ring, adding = (checked(baseline(name, problem)) for name in ("ring", "in-network"))
        found = ring.finish_us / adding.finish_us
        yield row(f"ring over switch, {workers} workers", found, 2 * (workers - 1) / workers, 0.01)
    for slots in SLOTS:
        expected = min(12.5, slots * 1024 / 10 / 1000)
        schedule = checked(baseline("in-network", open_sum(in_network(8, slots=slots), "1GB")))
        yield row(f"GB/s of {slots} slots, schedule", schedule.algbw_gb_per_s or 0, expected, 0.02)
        run = simulate_packets(20_000, workers=2, slots=slots)
        yield row(f"GB/s of {slots} slots, packets", run.goodput_gb_per_s, expected, 0.02)
    for slots in (32, 64):
        problem = open_sum(in_network(8, slots=slots), "1GB")
        alone = min(baseline(name, problem).finish_us for name in ("ring", "in-network"))
        mixed = taccl.synthesize(problem, time_limit_s=20)
        yield at_least(
            f"faster of switch and ring over both together, {slots} slots", alone / mixed.finish_us, 1.1
        )
        assert mixed.bound.check(), "the witness proves the bound of a mix"
        yield at_most(f"gap of both together, {slots} slots", mixed.gap, 0.1)


def makespan(limit_s: float) -> Iterator[Row]:
    """Makespans of schedules as users get them: 1 GB summed at one server, 100 MB summed in switches."""
    for workers, cards in ((8, 4), (24, 14), (8, 10)):
        topology, box = rack(workers, cards), range(workers, workers + cards)
        collective = exchange(workers, box, num_ranks=topology.num_ranks)
        found = checked(servers(taccl.make_problem(topology, collective, size_bytes=10**9), levels="one"))
        expected = 1000 * PORT_US_PER_MB * max(1, workers / cards)
        yield row(f"us of 1 GB at a box, n={workers}, k={cards}", found.finish_us, expected, 0.02)
    for slots in (16, 64):
        problem = open_sum(in_network(8, slots=slots), "100MB")
        alone = taccl.synthesize(problem, time_limit_s=limit_s, in_network="only")
        assert alone.bound.check(), "the witness proves the bound of switches alone"
        yield row(
            f"us of 100 MB by switches alone, {slots} slots", alone.finish_us, 10**9 / (slots * 1024), 0.02
        )
        yield at_most(f"gap of switches alone, {slots} slots", alone.gap, 0.02)


def packets(_: float) -> Iterator[Row]:
    """Sums and goodput of 10,000 packets of 16 workers over a lossy network."""
    for loss in (0.0, 0.01, 0.05):
        run = simulate_packets(10_000, workers=16, loss=loss, duplicates=0.01, reordering=0.01)
        yield row(f"wrong or missing sums at {loss:.0%} loss", len(run.wrong) + run.missing, 0, 0)
        yield at_least(f"GB/s at {loss:.0%} loss", run.goodput_gb_per_s, 1.0)
    run = simulate_packets(10_000, workers=16, loss=0.01, shadow_copy=False)
    yield at_least("wrong sums at 1% loss without the shadow copy", len(run.wrong), 1)


def fixed_point(_: float) -> Iterator[Row]:
    """Ratio of the largest fixed-point error to its bound, on random and on worst-case numbers."""
    rng = np.random.default_rng(0)
    for ranks in (8, 16):
        for what, values in (
            ("random", rng.uniform(-1, 1, (ranks, 100_000))),
            ("bfloat16", _as_bfloat16(rng.normal(0, 0.2, (ranks, 100_000)).clip(-1, 1))),
            ("float16", rng.uniform(-1, 1, (ranks, 100_000)).astype(np.float16)),
            ("adversarial", np.full((ranks, 1_000), 0.5 / 2**20)),
        ):
            scale = 2.0**20
            sums = sum(quantise(each, scale, ranks=ranks, most=1.0).astype(np.int64) for each in values)
            error = np.abs(dequantise(sums, scale) - values.astype(np.float64).sum(0)).max()
            ratio = float(error / error_bound(ranks, scale))
            yield at_most(f"error over bound, {what}, {ranks} ranks", ratio, 1)
        yield from _blocks(rng, ranks)
        scale = largest_scale(1.0, ranks)
        most = ranks * int(quantise([1.0], scale, ranks=ranks)[0])
        yield row(f"largest sum of {ranks} ranks over what fits", most / (2**31 - 1), 1, 1e-6)


def _blocks(rng: np.random.Generator, ranks: int) -> Iterator[Row]:
    """Rows of errors with an exponent per block of 256 numbers, whose magnitudes differ by up to 10**9."""
    values = rng.uniform(-1, 1, (ranks, 100, 256)) * 10 ** rng.uniform(-9, 0, (100, 1))
    agreed = np.max([block_exponents(each) for each in values], axis=0)
    sums = sum(quantise_blocks(each, agreed, ranks=ranks).astype(np.int64) for each in values)
    exact = values.sum(0)
    errors = np.abs(dequantise_blocks(sums, agreed, ranks=ranks) - exact).max(axis=1)
    ratio = float((errors / block_error_bounds(agreed, ranks=ranks)).max())
    yield at_most(f"error over bound, exponent per block, {ranks} ranks", ratio, 1)
    scale = largest_scale(1.0, ranks)
    sums = sum(quantise(each, scale, ranks=ranks, most=1.0).astype(np.int64) for each in values)
    whole = np.abs(dequantise(sums, scale) - exact).max(axis=1)
    least = int(np.argmin(np.abs(values).max(axis=(0, 2))))
    gain = float(whole[least] / errors[least])
    yield at_least(f"error of one scale over blocks', smallest block, {ranks} ranks", gain, 10**6)


def _as_bfloat16(values: np.ndarray) -> np.ndarray:
    return (values.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)


def interval_us_per_mb(topology: Topology, workers: range, keepers: range) -> float:
    """Time per MB of an exchange in us, in steady state of successive exchanges."""
    collective = exchange(workers, keepers, num_ranks=topology.num_ranks)
    problem = taccl.make_problem(topology, collective, chunk_bytes=10**6)
    interval = taccl.initiation_interval(checked(servers(problem, cut=False, levels="one")))
    return interval.interval_us / collective.num_chunks


def central(_: float) -> Iterator[Row]:
    """Rows that compare a central server with colocated servers, and check the choice between them."""
    for workers in WORKERS:
        own = interval_us_per_mb(rack(workers, 1), range(workers), range(workers))
        yield row(f"colocated us/MB, n={workers}", own, PORT_US_PER_MB * 2 * (workers - 1) / workers, 0.02)
        worst = 1.0
        for cards in CARDS:
            box = range(workers, workers + cards)
            expected = 2 * (workers - 1) / workers / max(1, workers / cards)
            found = own / interval_us_per_mb(rack(workers, cards), range(workers), box)
            worst = max(worst, found / expected, expected / found)
            if (workers, cards) in ((8, 10), (8, 4)):
                yield row(f"colocated over central, n={workers}, k={cards}", found, expected, 0.02)
        yield row(f"colocated over central over formula, worst of k=1-16, n={workers}", worst, 1, 0.02)
    for cards in (10, 4):
        chosen = choose_servers(rack(8, cards), "1GB", workers=range(8), servers=range(8, 8 + cards))
        # Workers that reduce on the way to the box may beat both formulas.
        formula_us = 1000 * PORT_US_PER_MB * min(1.75, max(1, 8 / cards))
        over = chosen.finish_us / formula_us
        yield at_most(f"chosen servers over the better formula, 1 GB, n=8, k={cards}", over, 1.02)
        yield at_least(f"us of 1 GB, n=8, k={cards}", chosen.finish_us, chosen.bound_us)


def core_bytes(schedule: Schedule) -> int:
    """Number of bytes that leave racks over the core."""
    topology = schedule.problem.topology
    uplinks = {r for r, each in enumerate(topology.resources) if each.name.startswith("uplink")}
    crossing = {hold.link for hold in topology.holds if hold.resource in uplinks}
    rows = zip(schedule.chunk.tolist(), schedule.link.tolist(), strict=True)
    return sum(schedule.problem.chunk_bytes[c] for c, e in rows if e in crossing)


def shards(_: float) -> Iterator[Row]:
    """Rows on bytes over the core, balance of network cards, and bandwidth shares of tenants."""
    for workers, racks in ((8, 4), (4, 2)):
        topology = rack(workers, 2, racks, 4)
        collective = exchange(workers * racks, 2 * racks)
        problem = taccl.make_problem(topology, collective, chunk_bytes=10**6)
        flat, two = (core_bytes(checked(servers(problem, cut=False, levels=n))) for n in ("one", "two"))
        yield row(f"core bytes, one level over two, {racks} racks x {workers}", flat / two, workers, 0)
    for model, cards in product(MODELS, (4, 10)):
        layers, box = layer_bytes(model), range(8, 8 + cards)
        cut, whole = (place_shards(layers, rack(8, cards), box, chunk=size) for size in ("32KB", None))
        yield at_most(f"imbalance, {model}, {cards} cards, 32 KB", cut.imbalance, 1.01)
        yield at_least(f"imbalance, {model}, {cards} cards, whole layers", whole.imbalance, cut.imbalance)
    topology, box = rack(16, 8), range(16, 24)
    tenants = [
        replace(exchange(range(first, first + 8), box, chunks_per_server=64), num_ranks=24)
        for first in (0, 8)
    ]
    both = together(tenants)
    schedule = checked(servers(taccl.make_problem(topology, both, chunk_bytes=10**5), cut=False))
    group = np.array(both.group_of_chunk)[schedule.chunk]
    for tenant in (0, 1):
        end_us = float(schedule.problem.costs.us(int(schedule.end[group == tenant].max())))
        yield row(
            f"tenant {tenant} of 2, part of the rate", 8 * 64 * 0.1 * PORT_US_PER_MB / end_us, 0.5, 0.05
        )


def table(limit_s: float) -> Iterator[Row]:
    """Finishes of all algorithms for an allreduce of 100 MB, on three clusters.

    These are one rack of 8 workers, one of 16, and 4 racks of 8 with a core oversubscribed 4:1.
    """
    for name, workers, racks, cards in (("8", 8, 1, 10), ("16", 16, 1, 20), ("4 x 8, 4:1", 8, 4, 10)):
        oversubscription = 1 if racks == 1 else 4
        adding = in_network(workers, racks=racks, core_oversubscription=oversubscription)
        boxes = rack(workers, cards, racks, oversubscription)
        everyone, box = range(workers * racks), range(workers * racks, boxes.num_ranks)
        plain = taccl.make_problem(adding, allreduce(len(everyone)), size_bytes=10**8)
        at_box, at_workers = (
            taccl.make_problem(boxes, exchange(everyone, at, num_ranks=boxes.num_ranks), size_bytes=10**8)
            for at in (box, everyone)
        )
        ways: list[tuple[str, Callable[[], Schedule]]] = [
            ("ring", partial(baseline, "ring", plain)),
            ("double tree", partial(baseline, "tree", plain)),
            ("halving-doubling", partial(baseline, "recursive", plain)),
            ("colocated servers", partial(servers, at_workers, levels="one")),
            ("central box", partial(servers, at_box, levels="one")),
            ("in-network", partial(baseline, "in-network", plain)),
        ]
        if racks > 1:
            ways.insert(5, ("two-level boxes", partial(servers, at_box, levels="two")))
        best = by_ranks = float("inf")
        for way, make in ways:
            schedule = checked(make())
            if schedule.problem.topology is adding:
                best = min(best, schedule.finish_us)
                by_ranks = by_ranks if way == "in-network" else min(by_ranks, schedule.finish_us)
            bound = taccl.lower_bound(schedule.problem, budget_s=2)
            yield at_least(f"us, {way}, rack {name}", schedule.finish_us, bound.bound_us)
        searched = taccl.synthesize(open_sum(adding, "100MB"), time_limit_s=limit_s, in_network="off")
        yield at_least(f"us, our search by ranks, rack {name}", searched.finish_us, searched.bound_us)
        yield at_most(f"our search over the best of ranks, rack {name}", searched.finish_us / by_ranks, 1)
        bound = taccl.lower_bound(open_sum(adding, "100MB"), budget_s=2)
        yield at_least(f"us, best without servers, rack {name}, over the bound", best, bound.bound_us)


PARTS = {each.__name__: each for each in (switch, makespan, packets, fixed_point, central, shards, table)}


def main() -> int:
    """Run, print the rows, and write the results; return 1 if a row misses its figure."""
    parser = parser_of(__doc__)
    parser.add_argument("--part", action="append", choices=PARTS, help="default: all")
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds of each search")
    options = parser.parse_args()
    warnings.simplefilter("ignore", taccl.NumericsWarning)
    stored = with_stored(options.output, [], "part", "what")
    of_part = {part: [row for row in stored if row["part"] == part] for part in PARTS}
    for part in options.part or PARTS:
        print(f"\n{PARTS[part].__doc__}", end="")
        found = ({"part": part, **each} for each in PARTS[part](options.time_limit))
        of_part[part] = shown(COLUMNS, found)
    rows = [row for part in PARTS for row in of_part[part]]
    return summed_up(options.output, {"rows": rows}, time_limit_s=options.time_limit)


if __name__ == "__main__":
    sys.exit(main())
