"""Large symmetric fabrics by name: an implicit schedule, without building the topology at all."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

import taccl
from taccl._internal.names import shown, table
from taccl._internal.units import format_count, format_gap, format_size, format_us
from taccl.cli.options import settle_size, settle_topology
from taccl.cli.output import Answer, say
from taccl.cli.things import is_file
from taccl.errors import InputError
from taccl.schedule.implicit.schedule import IMPLICIT_COLLECTIVES
from taccl.synthesis.backends import OWN_BACKENDS

if TYPE_CHECKING:
    from taccl.synthesis.symmetry.implicit import ImplicitResult
    from taccl.topology.named import NamedFabric

#: Fewest ranks for an implicit schedule, on fabrics that look alike from every rank.
_MANY_RANKS = 2048
#: Fewest ranks for an implicit schedule by ``dimension-balanced``.
_MANY_BALANCED = 257
#: A worse implicit schedule is left to the general way.
_WORTH_A_SEARCH = 0.1


def check_room(options: argparse.Namespace, memory_limit_mb: int | None) -> None:
    """Raise `InputError` for a named fabric of more ranks than any schedule has room for, at once."""
    from taccl.synthesis.memory import check_columns

    fabric = _fabric(options)
    if fabric is not None and options.spill is None and options.collective in IMPLICIT_COLLECTIVES:
        what = f"{options.collective} on {fabric.name}"
        check_columns(what, fabric.num_ranks, memory_limit_mb=memory_limit_mb)


def implicit_answer(options: argparse.Namespace) -> Answer | None:
    """Report for implicit synthesis, or None if ordinary synthesis should run."""
    fabric = _fabric(options)
    if fabric is None:
        return None
    balanced = options.backend == "dimension-balanced"
    try:
        chunks, chunk_bytes = _cut(options, fabric)
        result = taccl.synthesize_implicit(
            fabric, options.collective, chunk_size=chunk_bytes, chunks_per_rank=chunks, seed=options.seed,
            policy=options.policy, backend="dimension-balanced" if balanced else "auto",
        )  # fmt: skip
    except InputError:
        if balanced:
            raise
        return None  # which the usual way explains, or can do
    if result.gap > _WORTH_A_SEARCH and not balanced:
        schedule = result.schedule
        say(
            f"note: the implicit {schedule.collective} on {schedule.host.name} is {result.gap:.0%} above its "
            "bound; a schedule that lists every transfer is looked for instead"
        )
        return None
    text = _text(result)
    stage = {
        "name": "translation" if result.dimension_bound is None else "dimensions", "solver": "taccl",
        "status": "done", "seconds": result.seconds, "finish_us": result.finish_us, "bound": None,
        "message": "",
    }  # fmt: skip
    values = {
        **result.to_dict(), "implicit": True, "backend": options.backend, "verified": True,
        "num_chunks": result.schedule.num_ranks * chunks, "stages": [stage], "seed": options.seed,
    }  # fmt: skip
    if options.output is not None:
        from taccl.formats.files import write_whole

        write_whole(options.output, json.dumps(values, indent=1) + "\n", overwrite=options.overwrite)
        said = "the transfers follow from it, and are not in the file"
        text += f"\n\nsummary written to {shown(options.output)}: {said}"
    return Answer(text, values)


def _fabric(options: argparse.Namespace) -> NamedFabric | None:
    from taccl.topology.named import parse_named

    settle_topology(options)
    if options.sketch is not None or options.topology is None or is_file(options.topology):
        return None
    balanced = options.backend == "dimension-balanced"
    if options.backend not in OWN_BACKENDS or options.collective is None:
        return None
    try:
        fabric = parse_named(options.topology)
    except InputError:
        return None
    if balanced and not taccl.dimensions(fabric).is_regular:
        return None
    return fabric if fabric.num_ranks >= (_MANY_BALANCED if balanced else _MANY_RANKS) else None


def _cut(options: argparse.Namespace, fabric: NamedFabric) -> tuple[int, int]:
    """Number of chunks per rank, and the bytes of each; the optimal number along dimensions."""
    from taccl.synthesis.proposers.balanced import choose_num_chunks

    count = options.chunks_per_rank
    if options.chunk_size is not None:
        return count or 1, options.chunk_size
    settle_size(options)
    if count is None and options.backend == "dimension-balanced":
        dims = taccl.dimensions(fabric)
        count = choose_num_chunks(dims, options.collective, options.size, policy=options.policy)
    return count or 1, -(-options.size // (fabric.num_ranks * (count or 1)))


def _text(result: ImplicitResult) -> str:
    schedule = result.schedule
    transfers = format_count(schedule.num_transfers, "transfer")
    rows_of_one = format_count(schedule.num_rows, "row")
    repeated = f"{rows_of_one} that {format_count(schedule.num_ranks, 'translation')} repeat"
    chunks = format_count(schedule.chunks_per_rank, "chunk")
    rows = [
        ("finish", f"{schedule.timing}, {schedule.bandwidth_text}"),
        ("bound", f"{format_us(result.bound.bound)}, limited by {result.bound.limits}"),
        ("gap", format_gap(result.gap) + (f" (optimal for {chunks} per rank)" if result.gap == 0 else "")),
        *([] if result.dimension_bound is None else [("dimensions", result.dimension_bound.text)]),
        ("schedule", f"{transfers}, implicit: {repeated}; verified"),
        ("found by", f"{schedule.producer} in {result.seconds:.2f} s"),
    ]
    title = f"{schedule.collective} on {schedule.host.name}, {format_size(schedule.size_bytes)}"
    return "\n".join([title, table(rows, indent="  ")])
