"""``taccl verify``: check a schedule against its topology, collective and sketch."""

from __future__ import annotations

import argparse
from dataclasses import asdict

import taccl
from taccl.cli.options import add_schedule, schedule_in
from taccl.cli.output import Answer, picked
from taccl.names import shown
from taccl.units import format_count, format_us


def add(verb: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_schedule(verb, also="or a program (MSCCL XML)")


def run(options: argparse.Namespace) -> Answer:
    """Check a schedule against its topology, collective and sketch; or run a program, and judge it."""
    from taccl.cli.text import transfers_text
    from taccl.formats.published.algorithm import retimed
    from taccl.formats.registry import format_of_content

    file = options.file
    if format_of_content(file).name == "msccl-xml":
        return _program(file)
    schedule = schedule_in(file, options)
    found = taccl.verify(schedule)
    verdict = "ok" if found.ok else format_count(len(found.violations), "violation")
    head = f"{shown(file)}: {verdict}: {transfers_text(found)}, finish {format_us(found.finish_us)}"
    if found.num_redundant:
        head += f", {format_count(found.num_redundant, 'redundant arrival')}"
    lines = [head, *(f"  {each}" for each in found.violations)]
    values = {
        "file": file, **picked(found, "ok", "finish_us", "num_transfers", "num_sends", "num_redundant"),
        "violations": [asdict(each) for each in found.violations],
    }  # fmt: skip
    if found.ok:
        return Answer("\n".join(lines), values)
    true = retimed(schedule)
    values["true_finish_us"] = None if true is None else true.finish_us
    if true is not None and taccl.verify(true).ok:
        lines.append(f"  sent in the order that it states, it is valid and takes {format_us(true.finish)}")
    broken = format_count(len(found.violations), "rule")
    return Answer("\n".join(lines), values, f"{shown(file)}: the schedule breaks {broken}")


def _program(file: str) -> Answer:
    """Run a program of a runtime, and say whether it can hang, race or end up wrong."""
    from taccl.formats.msccl.xml import load_msccl_xml

    program = load_msccl_xml(file)
    found = taccl.interpret(program)
    steps = format_count(program.num_steps, "step")
    ranks = format_count(len(program.ranks), "rank")
    verdict = "ok" if found.ok else format_count(len(found.faults), "fault")
    lines = [f"{shown(file)}: {verdict}: a program of {steps} on {ranks}"]
    lines += [f"  {fault}" for fault in found.faults]
    values = {
        "file": file, "ok": found.ok, "num_steps": program.num_steps, "num_ranks": len(program.ranks),
        "faults": [picked(each, "kind", "message", "rank", "chunk") for each in found.faults],
    }  # fmt: skip
    complaint = "" if found.ok else f"{shown(file)}: the program has {verdict}"
    return Answer("\n".join(lines), values, complaint)
