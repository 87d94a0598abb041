"""``taccl verify``: check a schedule, a program, an MSCCL++ plan, or all files of a plan of ranges."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import taccl
from taccl._internal.names import quoted, shown
from taccl._internal.units import format_count, format_limit, format_us
from taccl.cli.options import add_schedule, refuse
from taccl.cli.output import Answer, picked
from taccl.cli.problems import schedule_in
from taccl.errors import FormatError, InputError, VerificationError


def add(verb: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_schedule(verb, "a program (MSCCL XML, MSCCL++ plan)", "the index of a plan (plan.json)")


def run(options: argparse.Namespace) -> Answer:
    """Check a schedule against its problem, a program by a symbolic run, or all files of a plan."""
    from taccl._internal.reading import kinds_of

    if "plan" in kinds_of(options.file):
        _refuse_costs(options, "a plan")
        return _index(options.file, options)
    return _file(options.file, options)


def _refuse_costs(options: argparse.Namespace, kind: str) -> None:
    """Raise `InputError` for options that set costs, as `kind` is checked for all costs and sizes."""
    said = f"found {kind}, which is checked on any topology and at all its sizes"
    refuse(
        options, ("topology", "chunk_size", "time_unit_us"), f"{said}; leave it out, or use taccl simulate"
    )


def _index(file: str, options: argparse.Namespace) -> Answer:
    """Check every file that a plan's index (``plan.json``) names."""
    from taccl._internal.reading import parse_json, read_text

    document = parse_json(read_text(file), source=file)
    try:
        names = [name for each in document["ranges"] for name in each["files"].values()]
    except (AttributeError, LookupError, TypeError):
        said = "found a plan's index without files; write the plan with taccl plan -o DIR"
        raise FormatError(said, where=file) from None
    answers = [_part(os.path.join(os.path.dirname(file), str(name)), options) for name in names]
    broken = sum(bool(each.complaint) for each in answers)
    left = [each.values["file"] for each in answers if each.values["ok"] is None]
    verdict = f"{format_count(broken, 'file')} of {len(answers)} with faults" if broken else "ok"
    if left and not broken:
        verdict += f", but {format_count(len(left), 'file')} of {len(answers)} not checked"
    lines = [f"{shown(file)}: {verdict}: a plan of {format_count(len(answers), 'file')}"]
    lines += [each.text for each in answers]
    values = {
        "file": file, "ok": not broken, "not_checked": left, "files": [each.values for each in answers],
    }  # fmt: skip
    return Answer("\n".join(lines), values, f"{shown(file)}: {verdict}" if broken else "")


def _part(file: str, options: argparse.Namespace) -> Answer:
    """Check one file of a plan; an unreadable file is a fault of the plan.

    A program in a format that cannot be read back, such as a module for PyTorch, is named as not checked.
    """
    from taccl.formats.detection import format_of_content

    try:
        each = format_of_content(file)
        unread = each.holds == "program" and not each.load and each.name not in _CHECKS
        if unread and file.lower().endswith(each.extensions):
            said = f"{shown(file)}: not checked: a {each.kind_of_file} cannot be read back"
            return Answer(said, {"file": file, "ok": None, "faults": []})
        return _file(file, options)
    except InputError as error:
        said = str(error)
        return Answer(said, {"file": file, "ok": False, "faults": [said]}, said)


def _file(file: str, options: argparse.Namespace) -> Answer:
    """Check the schedule, program or MSCCL++ plan in a file."""
    from taccl.cli.output import transfers_text
    from taccl.formats.detection import format_of_content
    from taccl.formats.published.algorithm import retimed

    check = _CHECKS.get(format_of_content(file, "a schedule or a program").name)
    if check is not None:
        _refuse_costs(options, "a program")
        return check(file)
    schedule = schedule_in(file, options)
    found = taccl.verify(schedule)
    verdict = "ok" if found.ok else found.counted("violation")
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
        lines.append(f"  re-timed in its stated order, it is valid and finishes in {format_us(true.finish)}")
    return Answer("\n".join(lines), values, f"{shown(file)}: the schedule breaks {found.counted('rule')}")


def _program(file: str) -> Answer:
    """Interpret an MSCCL XML program, and say whether it can hang, race or give wrong results."""
    from taccl.formats.msccl.xml import load_msccl_xml

    program = load_msccl_xml(file)
    found = taccl.interpret(program)
    steps = format_count(program.num_steps, "step")
    ranks = format_count(len(program.ranks), "rank")
    faults = format_count(len(found.faults), "fault")
    word, judged = ("ok", "for") if found.ok else (faults, "checked for")
    lines = [f"{shown(file)}: {word}: a program of {steps} on {ranks}, {judged} {found.scope}"]
    lines += [f"  {fault}" for fault in found.faults]
    values = {
        "file": file, "ok": found.ok, "num_steps": program.num_steps, "num_ranks": len(program.ranks),
        "sizes_bytes": found.sizes_bytes, "hangs_from_bytes": dict(found.hangs_from),
        "faults": [picked(each, "kind", "message", "rank", "chunk") for each in found.faults],
    }  # fmt: skip
    complaint = "" if found.ok else f"{shown(file)}: the program has {faults}"
    return Answer("\n".join(lines), values, complaint)


def _plan(file: str) -> Answer:
    """Run an MSCCL++ plan by its executor's rules, and say if it can hang, race or give wrong results."""
    from taccl._internal.reading import parse_json, read_text
    from taccl.formats.mscclpp.executor import needs_flush, verify_plan
    from taccl.formats.mscclpp.operations import reused_scratch_bytes

    plan = parse_json(read_text(file), source=file)
    fault, notes = "", list[str]()
    judged = False
    try:
        judged = verify_plan(plan)
        if needs_flush(plan):
            notes.append(
                "MSCCL++ up to 0.9.0 does not flush at pwsf, which this plan needs; use a later version"
            )
    except FormatError as error:
        raise FormatError(error.message, where=file) from None
    except VerificationError as error:
        fault = str(error)
    ranks = format_count(len(plan["gpus"]), "rank")
    operations = sum(len(tb["ops"]) for gpu in plan["gpus"] for tb in gpu["threadblocks"])
    sizes = _sizes_of(plan, file)
    most = reused_scratch_bytes(plan)
    if not fault and most is not None and most < plan.get("max_message_size", 2**64 - 1):
        said = (
            f"with reuse_resources, chunks of messages above {format_limit(most)} overwrite others in scratch"
        )
        notes.append(f"{said}; set max_message_size")
    verdict = "1 fault" if fault else "ok" if judged else "ok, but outputs are not checked: custom collective"
    place = "in place" if plan["inplace"] else "out of place"
    steps = format_count(operations, "operation")
    head = f"{shown(file)}: {verdict}: an MSCCL++ plan of {steps} on {ranks}, {place}, for sizes {sizes}"
    values = {
        "file": file,
        "ok": not fault,
        "num_operations": operations,
        "num_ranks": len(plan["gpus"]),
        "outputs_checked": judged,
        "faults": [fault] if fault else [],
        "notes": notes,
    }
    complaint = f"{shown(file)}: the plan has 1 fault" if fault else ""
    lines = [head, *(f"  note: {note}" for note in notes), *([f"  {fault}"] if fault else [])]
    return Answer("\n".join(lines), values, complaint)


def _sizes_of(plan: Mapping[str, Any], file: str) -> str:
    """Range of sizes that a plan serves: ``from 0B to 1GiB``; ``from 0B on`` up to 2**62 bytes and more."""
    least, most = plan.get("min_message_size", 0), plan.get("max_message_size", 2**64 - 1)
    if not (type(least) is int and type(most) is int and 0 <= least <= most):
        said = f"found sizes from {quoted(least)} to {quoted(most)}; expected whole numbers of bytes"
        raise FormatError(f"{said}, the first no larger", where=f"{file}: max_message_size")
    return f"from {format_limit(least)} " + ("on" if most >= 2**62 else f"to {format_limit(most)}")


#: {format of a program: its check}.
_CHECKS = {"msccl-xml": _program, "mscclpp": _plan}
