"""``taccl verify``: check a schedule against its topology, collective and sketch."""

from __future__ import annotations

import argparse

import taccl
from taccl.cli.options import add_schedule, schedule_from_options
from taccl.cli.output import Answer
from taccl.names import shown
from taccl.units import format_count, format_us

EXAMPLES = (
    "taccl verify schedule.json",
    "taccl verify program.xml",
)


def add(verb: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_schedule(verb, also="or a program (MSCCL XML)")


def run(options: argparse.Namespace) -> Answer:
    """Check a schedule against its topology, collective and sketch; or run a program on arrays."""
    from taccl.cli.text import verification_text, verification_values
    from taccl.formats.registry import format_of_content

    if format_of_content(options.file).name == "msccl-xml":
        return _program(options)
    schedule = schedule_from_options(options)
    verification = taccl.verify(schedule)
    text = verification_text(options.file, verification)
    values = verification_values(options.file, verification)
    if verification.ok:
        return Answer(text, values)
    from taccl.formats.published.algorithm import retimed

    true = retimed(schedule)
    values["true_finish_us"] = None if true is None else true.finish_us
    if true is not None and taccl.verify(true).ok:
        text += f"\n  sent in the order that it states, it is valid and takes {format_us(true.finish)}"
    broken = format_count(len(verification.violations), "rule")
    return Answer(text, values, f"{shown(options.file)}: the schedule breaks {broken}")


def _program(options: argparse.Namespace) -> Answer:
    """Run a program of a runtime, and say whether it can hang, race or end up wrong."""
    from taccl.cli.text import picked
    from taccl.formats.msccl.xml import load_msccl_xml

    program = load_msccl_xml(options.file)
    found = taccl.interpret(program)
    steps = format_count(program.num_steps, "step")
    ranks = format_count(len(program.ranks), "rank")
    verdict = "ok" if found.ok else format_count(len(found.faults), "fault")
    lines = [f"{shown(options.file)}: {verdict}: a program of {steps} on {ranks}"]
    lines += [f"  {fault}" for fault in found.faults]
    values = {
        "file": options.file, "ok": found.ok, "num_steps": program.num_steps, "num_ranks": len(program.ranks),
        "faults": [picked(each, "kind", "message", "rank", "chunk") for each in found.faults],
    }  # fmt: skip
    complaint = "" if found.ok else f"{shown(options.file)}: the program has {verdict}"
    return Answer("\n".join(lines), values, complaint)
