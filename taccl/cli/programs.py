"""Files that hold a program: told by their content, shown, and followed on a topology."""

from __future__ import annotations

import argparse
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any

import taccl
from taccl._internal.names import shown, table
from taccl._internal.units import format_count
from taccl.cli.output import Answer, picked
from taccl.cli.things import held_by, topology_from_word
from taccl.errors import InputError

if TYPE_CHECKING:
    from taccl.analysis.certificates.certificate import Certificate
    from taccl.program.program import Program
    from taccl.schedule.schedule import Schedule


def program_in(word: str) -> Program | None:
    """The program in a file; None where a word names anything else."""
    from taccl.formats.registry import read

    return read(word) if held_by(word) == "program" else None


def followed(
    program: Program, options: argparse.Namespace, *, size: int | str | None, chunk_size: str | None = None
) -> Schedule:
    """The schedule that a program follows on the topology of the options."""
    if options.topology is None:
        raise InputError(
            "a program does not say what it runs on; give a topology, e.g. --topology dgx2 --nodes 2",
            where="--topology",
        )
    if size is None and chunk_size is None:
        raise InputError("a program has no size of its own; give one, e.g. --size 1MB", where="--size")
    topology = topology_from_word(options.topology, nodes=options.nodes, profile=options.profile)
    return taccl.lift(program, topology=topology, size=size, chunk_size=chunk_size)


def following_values(schedule: Schedule, bound: Certificate | None = None) -> dict[str, Any]:
    """The figures of a schedule, or of a program's, as plain values.

    - `bound`: One that is shown beside them; None works it out.
    """
    bound = bound or taccl.lower_bound(schedule.problem)
    gap = bound.gap(schedule.finish)
    uses = taccl.simulate(schedule).resources
    busiest = max(uses, key=lambda use: use.busy, default=None)
    return {
        "size_bytes": schedule.problem.size_bytes,
        **picked(schedule, "finish_us", "launch_us", "predicted_us", "algbw_gb_per_s", "busbw_gb_per_s"),
        "bound_us": bound.bound_us, "bound_limits": bound.limits,
        "gap": None if gap == float("inf") else gap,
        "busiest": None if busiest is None else busiest.name,
        "utilisation": 0.0 if busiest is None else busiest.utilisation,
        **picked(schedule, "num_transfers", "num_sends"),
    }  # fmt: skip


def program_answer(program: Program, *, limit: int) -> Answer:
    """A program's figures, whether it works, and its first steps."""
    found = taccl.interpret(program)
    collective = None if program.collective is None else program.collective.name
    verdict = found.verdict
    if found.ok and not found.outputs_checked:
        verdict += ", but outputs were not judged: the collective is not known"
    rows = [
        ("collective", f"{collective or 'not known'}, {'in place' if program.in_place else 'out of place'}"),
        ("ranks", str(program.num_ranks)),
        ("steps", f"{program.num_steps}, of them {program.num_copies} within ranks"),
        ("threadblocks", f"{program.max_threadblocks} a rank at most"),
        ("channels", f"{program.num_channels}, {program.protocol}"),
        ("scratch", f"{format_count(program.scratch_chunks, 'chunk')} a rank at most"),
        ("run", verdict),
    ]
    lines = [f"program {shown(program.name)}", table(rows, indent="  ")]
    lines += [f"  {fault}" for fault in found.faults]
    if limit:
        cells = [("rank", "tb", "step", "peer", "channel", "")]
        for address, step in islice(program.steps(), limit):
            tb = program.ranks[address.rank].threadblocks[address.threadblock]
            ends = (("to", tb.send_to), ("from", tb.receive_from))
            peers = [f"{word} {peer}" for word, peer in ends if peer is not None]
            cells.append(
                (str(address.rank), str(address.threadblock), str(address.step), ", ".join(peers) or "-",
                 str(tb.channel), str(step))
            )  # fmt: skip
        lines += ["", table(cells, indent="  ")]
        if program.num_steps > limit:
            lines.append(f"  ... and {program.num_steps - limit} more")
    figures = picked(
        program, "in_place", "protocol", "num_ranks", "num_steps", "num_copies", "num_channels",
        "max_threadblocks", "scratch_chunks",
    )  # fmt: skip
    values = {
        "kind": "program", "name": program.name, "collective": collective, **figures,
        "operations": dict(Counter(step.operation for _, step in program.steps())),
        **picked(found, "ok", "outputs_checked", "sizes_bytes"),
        "hangs_from_bytes": dict(found.hangs_from), "faults": [str(fault) for fault in found.faults],
    }  # fmt: skip
    return Answer("\n".join(lines), values)
