"""Themis's networks and training steps: a fixed order of dimensions against balanced orders.

Networks, cycles of computation and bytes of collectives are published inputs (`data/themis.toml`). The first
part is an allreduce of 1 GB in 64 chunks on each of the six networks of 1,024 ranks. The second part is one
iteration of each training step on each network. Every collective is a verified schedule of sends, and its
time is that of its sends. Computation of a rank runs one layer after another:

- data parallel: forward, then weight and input gradients of each layer, from the last one. Collectives of
  weight gradients run beside computation, one after another.
- DLRM: the forward alltoall of embeddings runs beside the bottom layers, and the backward one, too.
- Transformer: a collective of the model-parallel group ends before the next layer begins. That of an input
  gradient runs beside the layer's weight gradient. The forward pass is repeated in the backward pass.

A row misses its figure if a schedule beats its bound along dimensions.

Examples
--------
    python -m benchmarks.themis
    python -m benchmarks.themis --part steps --output benchmarks/results/themis.json
"""

from __future__ import annotations

import itertools
import math
import sys
import tomllib
import warnings
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import taccl
from benchmarks.report import parser_of, shown, summed_up
from taccl.analysis.verification.verify_implicit import verify_implicit
from taccl.solvers.registry import package_versions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from benchmarks.report import Column, Row

DATA = tomllib.loads((Path(__file__).parent / "data" / "themis.toml").read_text(encoding="utf-8"))
SIZE, CHUNKS = 10**9, 64
#: `HOP`: latency of a hop.
#: `CYCLE_US`: microseconds of a cycle.
HOP, CYCLE_US = "0.001us", 1e-3


@cache
def finish_us(dims: tuple[str, ...], collective: str, size: int, policy: str) -> float:
    """Finish in us of a collective along dimensions.

    - `policy`: ``"fixed"`` for the fixed order of dimensions, ``"greedy"`` for orders that are balanced
      greedily, anything else for orders that a linear program balances.

    Only reductions and allgathers have a fixed order: for an alltoall all orders have equal loads.
    """
    name = "multidim:" + ",".join(f"{each}@{HOP}" for each in dims)
    found = taccl.dimensions(name)
    if policy == "fixed" and collective != "alltoall":
        fixed = taccl.baselines.hierarchical(found, chunks=CHUNKS, collective=collective, size=size)
        verify_implicit(fixed).raise_if_failed()
        return fixed.finish_us
    per_rank = CHUNKS if collective != "alltoall" else 1
    result = taccl.synthesize_implicit(
        name, collective, chunk_size=math.ceil(size / (per_rank * found.num_ranks)),
        chunks_per_rank=per_rank, backend="dimension-balanced",
        policy="greedy" if policy == "greedy" else "lp",
    )  # fmt: skip
    bound = result.dimension_bound
    assert bound is not None
    assert bound.bound_us <= result.finish_us, "a bound is beaten"
    return result.finish_us


def network(row: dict[str, Any]) -> Row:
    """Row of the first part: finishes on one network under each policy, and gains over the fixed order."""
    dims = tuple(row["dims"].split(","))
    each = {policy: finish_us(dims, "allreduce", SIZE, policy) for policy in ("fixed", "greedy", "lp")}
    gains = {f"{policy}_gain": each["fixed"] / each[policy] for policy in ("greedy", "lp")}
    times = {f"{policy}_us": found for policy, found in each.items()}
    return {"case": row["name"], "dims": row["dims"], **times, **gains, "missed": []}


def networks() -> Iterator[Row]:
    """Rows of one allreduce on each network, then one row of gains for each policy.

    A row of gains states their mean and maximum, computed and published.
    """
    rows = [network(each) for each in DATA["network"]]
    yield from rows
    known = DATA["utilisation"]
    for policy in ("greedy", "lp"):
        gains = [row[f"{policy}_gain"] for row in rows]
        yield {
            "case": f"mean and largest gain, {policy}", "missed": [],
            "why": f"{sum(gains) / len(gains):.2f}, {max(gains):.2f}; "
            f"published: {known['mean']}, {known['most']}",
        }  # fmt: skip


@dataclass
class Clock:
    """Simulated time of one rank's computation, and times at which the networks of its groups are free."""

    time_of: Callable[[str, int, str], float]
    now: float = 0.0
    computed: float = 0.0
    free: dict[str, float] = field(default_factory=dict)

    def compute(self, cycles: int) -> None:
        """Compute for a number of cycles."""
        self.now += cycles * CYCLE_US
        self.computed += cycles * CYCLE_US

    def send(self, collective: str, size: int, group: str) -> float:
        """Begin a collective once its group's network is free; returns its end."""
        end = max(self.now, self.free.get(group, 0.0)) + self.time_of(collective, size, group)
        self.free[group] = end
        return end

    def wait(self, end: float) -> None:
        """Wait for the end of a collective."""
        self.now = max(self.now, end)


def iteration(step: dict[str, Any], time_of: Callable[[str, int, str], float]) -> Clock:
    """The clock after one iteration, once all collectives have ended."""
    clock = Clock(time_of)
    sends = {(layer, phase): tuple(rest) for layer, phase, *rest in step["collectives"]}
    blocks = step["loop"] == "transformer"

    def forward() -> None:
        pending = 0.0
        for name, cycles, *_ in step["layers"]:
            clock.compute(cycles)
            if (name, "forward") in sends:
                pending = clock.send(*sends[name, "forward"])
            if blocks or name == step.get("last_bottom"):
                clock.wait(pending)

    forward()
    if step.get("recomputes"):
        forward()
    early, embeddings = step.get("last_bottom"), 0.0
    for name, _, of_input, of_weight in reversed(step["layers"]):
        if name == early:  # gradients of embeddings are known once the top layers are done
            embeddings = clock.send(*sends["embedding", "input"])
        if name == "embedding":
            clock.wait(embeddings)
        if blocks:
            clock.compute(of_input)
            end = clock.send(*sends[name, "input"]) if (name, "input") in sends else 0.0
            clock.compute(of_weight)
            clock.wait(end)
        else:
            clock.compute(of_weight)
        if (name, "weight") in sends:
            clock.send(*sends[name, "weight"])
        if not blocks:
            clock.compute(of_input)
    clock.wait(max(clock.free.values(), default=0.0))
    return clock


def groups(dims: tuple[str, ...], ranks: int | None) -> dict[str, tuple[str, ...]]:
    """{group: its dimensions}.

    The groups are all ranks and, if `ranks` is given, the model-parallel group of `ranks` ranks and the
    data-parallel group.

    The model-parallel ranks are along the first dimensions. If the last of these is larger than needed, the
    rest of it belongs to the data-parallel ranks; this is possible for a switch.
    """
    found = {"all": dims}
    if ranks is None:
        return found
    model, data, left = [], [], ranks
    for each in dims:
        kind, rate = each.split("@")
        word, size = kind.rstrip("0123456789"), int(kind[len(kind.rstrip("0123456789")) :])
        inside = math.gcd(size, left)
        left //= inside
        model += [f"{word}{inside}@{rate}"] if inside > 1 else []
        data += [f"{word}{size // inside}@{rate}"] if size > inside else []
    return found | {"model": tuple(model), "data": tuple(data)}


def times_of(along: dict[str, tuple[str, ...]], policy: str) -> Callable[[str, int, str], float]:
    """Function that returns the time in us of a collective of some bytes in a group.

    - `along`: {group: its dimensions}.
    """
    return lambda collective, size, group: finish_us(along[group], collective, size, policy)


def steps() -> Iterator[Row]:
    """Rows of the second part."""
    for step, each in itertools.product(DATA["workload"], DATA["network"]):
        along = groups(tuple(each["dims"].split(",")), step.get("model_ranks"))
        clocks = {policy: iteration(step, times_of(along, policy)) for policy in ("fixed", "greedy", "lp")}
        times = {f"{policy}_us": clock.now for policy, clock in clocks.items()}
        yield {
            "case": f"{step['name']} on {each['name']}", **times, "computed_us": clocks["lp"].computed,
            "lp_gain": times["fixed_us"] / times["lp_us"],
            "greedy_gain": times["fixed_us"] / times["greedy_us"], "missed": [],
            "why": f"published: {step['gain'][0]:.2f} on average, at most {step['gain'][1]:.2f}",
        }  # fmt: skip


PARTS: dict[str, Callable[[], Iterable[Row]]] = {"networks": networks, "steps": steps}
COLUMNS: tuple[Column, ...] = (
    ("case", "case", "<40"), ("computed", "computed_us", ">11.5g"), ("fixed", "fixed_us", ">11.5g"),
    ("greedy", "greedy_us", ">11.5g"), ("lp", "lp_us", ">11.5g"), ("gain", "lp_gain", ">6.3g"),
)  # fmt: skip


def main() -> int:
    """Run, print the table, and write the results."""
    parser = parser_of(__doc__)
    parser.add_argument("--part", action="append", choices=PARTS, help="default: all")
    options = parser.parse_args()
    warnings.simplefilter("ignore", taccl.NumericsWarning)
    parts = [PARTS[part]() for part in PARTS if part in (options.part or PARTS)]
    rows = shown(COLUMNS, itertools.chain(*parts), lambda row: row.get("why", ""), "(times in us)")
    return summed_up(options.output, {"rows": rows}, versions=package_versions())


if __name__ == "__main__":
    sys.exit(main())
