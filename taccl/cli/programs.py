"""Files that hold a program: told by their content, shown, and followed on a topology."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import taccl
from taccl.cli.text import picked
from taccl.cli.things import is_file, topology_from_word
from taccl.errors import FormatError, InputError
from taccl.names import shown, table
from taccl.units import format_count, format_gap

if TYPE_CHECKING:
    import argparse

    from taccl.program.program import Program
    from taccl.schedule.schedule import Schedule


def holds_program(word: str | None) -> bool:
    """Whether a word is a file whose content is a program's."""
    return held_by(word) == "program"


def held_by(word: str | None) -> str:
    """What the table of formats says that a file holds; empty of any other word."""
    from taccl.formats.registry import format_of_content

    if word is None or not is_file(word):
        return ""
    try:
        return format_of_content(word).holds
    except FormatError:
        return ""


def load_program(word: str) -> Program:
    """The program in a file."""
    from taccl.formats.registry import read

    program: Program = read(word)
    return program


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


def following_text(schedule: Schedule, noun: str = "program") -> str:
    """How long a schedule, or a program's, takes, how near that is to the bound, and what is busiest."""
    values = following_values(schedule)
    return (
        f"the {noun} takes {schedule.timing}, a gap of {format_gap(values['gap'])} to the bound; "
        f"busiest is {values['busiest']}, {values['utilisation']:.1%} of that time"
    )


def following_values(schedule: Schedule) -> dict[str, Any]:
    """The figures of a schedule, or of a program's, as plain values."""
    bound = taccl.lower_bound(schedule.problem)
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


def program_text(program: Program, *, limit: int) -> str:
    """A program's figures, whether it works, and its first steps."""
    values = program_values(program)
    collective = "not known" if program.collective is None else program.collective.name
    verdict = "ok" if values["ok"] else format_count(len(values["faults"]), "fault")
    if values["ok"] and not values["outputs_checked"]:
        verdict += ", but outputs were not judged: the collective is not known"
    rows = [
        ("collective", f"{collective}, {'in place' if program.in_place else 'out of place'}"),
        ("ranks", str(program.num_ranks)),
        ("steps", f"{program.num_steps}, of them {program.num_copies} within ranks"),
        ("threadblocks", f"{program.max_threadblocks} a rank at most"),
        ("channels", f"{program.num_channels}, {program.protocol}"),
        ("scratch", f"{format_count(program.scratch_chunks, 'chunk')} a rank at most"),
        ("run", verdict),
    ]
    lines = [f"program {shown(program.name)}", table(rows, indent="  ")]
    lines += [f"  {fault}" for fault in values["faults"]]
    if limit:
        head = ("rank", "tb", "step", "peer", "channel", "")
        cells: list[tuple[str, ...]] = []
        for address, step in program.steps():
            if len(cells) == limit:
                break
            tb = program.ranks[address.rank].threadblocks[address.threadblock]
            ends = (("to", tb.send_to), ("from", tb.receive_from))
            peers = [f"{word} {peer}" for word, peer in ends if peer is not None]
            cells.append(
                (str(address.rank), str(address.threadblock), str(address.step), ", ".join(peers) or "-",
                 str(tb.channel), str(step))
            )  # fmt: skip
        lines += ["", table([head, *cells], indent="  ")]
        if program.num_steps > len(cells):
            lines.append(f"  ... and {program.num_steps - len(cells)} more")
    return "\n".join(lines)


def program_values(program: Program) -> dict[str, Any]:
    """A program's figures, and whether it works, as plain values."""
    found = taccl.interpret(program)
    figures = picked(
        program, "in_place", "protocol", "num_ranks", "num_steps", "num_copies", "num_channels",
        "max_threadblocks", "scratch_chunks",
    )  # fmt: skip
    return {
        "kind": "program", "name": program.name,
        "collective": None if program.collective is None else program.collective.name, **figures,
        "operations": dict(Counter(step.operation for _, step in program.steps())),
        **picked(found, "ok", "outputs_checked"), "faults": [str(fault) for fault in found.faults],
    }  # fmt: skip
