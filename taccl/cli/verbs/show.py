"""``taccl show``: a schedule, a program, a sketch, or a topology with its constants' sources."""

from __future__ import annotations

import argparse
import os
import warnings
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any

import taccl
from taccl._internal.file_kinds import is_shown, wrong_kind
from taccl._internal.names import did_you_mean, note_lines, quoted, shown, table
from taccl._internal.reading import kinds_of
from taccl._internal.units import format_count, format_gap, format_us
from taccl.cli.inputs import Kind, is_file, kind_of, names_topology, program_in, topology_from_word
from taccl.cli.options import add_options, option, reader, refuse
from taccl.cli.output import Answer, picked
from taccl.errors import AssumptionWarning, InputError
from taccl.sketch.library import shipped_sketches
from taccl.topology.registry import fabric_names, machine_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taccl.program.program import Program
    from taccl.topology.topology import Topology

#: Max files whose names are compared with the name of a missing one.
_MOST_FILES = 1000


def add(verb: argparse.ArgumentParser) -> None:
    """Declare the options."""
    verb.add_argument("named", metavar="FILE|NAME", help="a file, a shipped sketch, a machine, or a fabric")
    add_options(verb, "--nodes", help="number of nodes")
    add_options(verb, "--profile", help="cost profile of a machine, by name or from a file")
    add_options(verb, "--protocol", default=None, help="message protocol (default simple)")
    rows = reader(int, lambda n: n >= -1, "a number of rows, or -1 for all")
    help = "max rows of transfers or program steps (default 20; -1: all)"
    option(verb, "--transfers N", help, rows, default=20)


def run(options: argparse.Namespace) -> Answer:
    """Show a schedule, a program, a sketch, or a topology with its constants' sources."""
    program = program_in(options.named)
    if program is not None:
        refuse(options, ("nodes", "profile", "protocol"), "found a program, which has none; leave it out")
        limit = program.num_steps if options.transfers < 0 else options.transfers
        return _of_program(program, limit=limit)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AssumptionWarning)  # the notes list the assumptions
            return _shown(options, kind_of(options.named))
    except InputError as error:
        if error.where != "topology" or is_file(options.named) or names_topology(options.named):
            raise
        known = [*_files_beside(options.named), *shipped_sketches(), *machine_names(), *fabric_names()]
        near = did_you_mean(options.named, known)
        said = (
            f"found {quoted(options.named)}; no file, shipped sketch, machine or fabric has this name{near}"
        )
        if not near:
            said = f"{error.message}; no file or shipped sketch has this name either"
        raise InputError(said, where="FILE|NAME") from None


def _files_beside(path: str) -> list[str]:
    """Files in the folder of a path, at most `_MOST_FILES`; empty if the folder does not exist."""
    folder = os.path.dirname(path)
    try:
        with os.scandir(folder or ".") as entries:
            return [
                os.path.join(folder, each.name) for each in islice(entries, _MOST_FILES) if each.is_file()
            ]
    except OSError:
        return []


def _shown(options: argparse.Namespace, kind: Kind) -> Answer:
    told = kinds_of(options.named) if is_file(options.named) else []
    if told and not is_shown(told[0]):
        wanted = "a schedule, a program, a sketch or a topology"
        raise InputError(wrong_kind(told[0], options.named, wanted), where=options.named)
    if "topology" in kind:
        given = picked(options, "nodes", "profile", "protocol")
        return _of_topology(topology_from_word(options.named, **given))
    for name in ("profile", "protocol"):
        refuse(options, (name,), f"found a {kind}, which has no {name}s; leave it out")
    if kind == "schedule":
        refuse(options, ("nodes",), "found a schedule, whose nodes are fixed; leave it out")
        limit = None if options.transfers < 0 else options.transfers
        return _of_schedule(options.named, limit=limit)
    sketch = taccl.load_sketch(options.named)
    if options.nodes is not None:
        sketch = sketch.with_nodes(options.nodes)
    return Answer(sketch.to_toml().rstrip(), {"kind": "sketch", **sketch.to_dict()})


def _of_program(program: Program, *, limit: int) -> Answer:
    """Answer with a program's figures, the verdict of `taccl.interpret` on it, and its first steps."""
    found = taccl.interpret(program)
    collective = None if program.collective is None else program.collective.name
    verdict = found.verdict
    if found.ok and not found.outputs_checked:
        verdict += ", but outputs are not checked: the collective is unknown"
    scratch = format_count(program.scratch_chunks, "chunk")
    rows = [
        ("collective", f"{collective or 'not known'}, {'in place' if program.in_place else 'out of place'}"),
        ("ranks", str(program.num_ranks)),
        ("steps", f"{program.num_steps}, {program.num_copies or 'none'} of them within ranks"),
        ("threadblocks", f"at most {program.max_threadblocks} per rank"),
        ("channels", f"{program.num_channels}, {program.protocol}"),
        ("scratch", f"at most {scratch} per rank" if program.scratch_chunks else "none"),
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


def _of_schedule(file: str, *, limit: int | None) -> Answer:
    """Answer with a schedule's figures and first transfers, and the bound and gap that its file states."""
    from taccl.cli.output import finish_text, transfers_text
    from taccl.formats.native import load_schedule, read_document
    from taccl.schedule.figures import schedule_figures
    from taccl.synthesis.bounding import no_bound

    document = read_document(file)
    schedule = load_schedule(document, where=file)
    found = document.get("result") or {}
    rows = [
        ("finish", finish_text(schedule)),
        ("schedule", transfers_text(schedule)),
        ("producer", schedule.producer or "not known"),
    ]
    if found.get("bound_us") is not None:
        chunks = no_bound(schedule.problem).scope
        rows += [("bound", _bound_text(found)), ("gap", _gap_text(found, chunks))]
    rows.append(("digest", schedule.digest()))
    lines = [schedule.problem.heading, table(rows, indent="  ")]
    if limit != 0:
        lines += ["", schedule.table(limit=limit)]
    notes = (*schedule.problem.notes, *(f"assumed: {each}" for each in schedule.problem.topology.assumed))
    values = {"kind": "schedule", **schedule_figures(schedule), "notes": list(notes), "result": found or None}
    return Answer("\n".join(lines + note_lines(notes)), values)


def _bound_text(found: Mapping[str, Any]) -> str:
    """Bound that a schedule's file states, with its scope if the file states one."""
    from taccl.analysis.certificates.certificate import ALL_CHUNKINGS

    scope = found.get("bound_scope")
    word = "over" if scope == ALL_CHUNKINGS else "for"
    return format_us(found["bound_us"]) + (f" {word} {scope}" if scope else "")


def _gap_text(found: Mapping[str, Any], chunks: str) -> str:
    """Gap that a schedule's file states, in the words of `gap_text`.

    - `chunks`: Chunks of the schedule, as ``"2 chunks per rank"``.
    """
    gap, standing = format_gap(found.get("gap")), found.get("standing") or ""
    if found.get("gap_over_all_chunkings") is None:
        return f"{gap} ({standing})" if standing else gap
    every = format_gap(found["gap_over_all_chunkings"])
    if every == gap:
        in_chunks = format_gap(found.get("gap_in_chunks", found["gap"]))
        said = standing or (f"{in_chunks} for {chunks}" if in_chunks != gap else "")
        return f"{gap} over all chunkings" + (f" ({said})" if said else "")
    over = f"{every} over all chunkings"
    return f"{gap} ({standing}; {over})" if standing else f"{gap} for {chunks} ({over})"


def _of_topology(topology: Topology) -> Answer:
    """Answer with a topology's links by cost, its switches, and its constants with their sources."""
    from taccl.topology.profiles import profile_of

    protocols = topology.protocols
    others = f" (of {', '.join(protocols)})" if set(protocols) - {topology.protocol} else ""
    rows = [
        ("ranks", f"{topology.num_ranks} in {format_count(topology.num_nodes, 'node')}"),
        ("resources", f"{len(topology.resources)}, held by {format_count(len(topology.links), 'link')}"),
        ("switches", str(len(topology.switches))),
        ("alpha", "occupies the link" if topology.alpha_meaning == "occupies" else "pipelined"),
        ("cost model", topology.cost_model),
        ("profile", topology.profile or "none"),
        ("protocol", topology.protocol + others),
        ("launch", format_us(topology.launch_us) if topology.launch_us else ""),
    ]
    links = [("links", "where", "alpha us", "beta us/MB", "GB/s"), *topology.link_kinds]
    lines = [shown(topology.name), table([row for row in rows if row[1]], indent="  ")]
    lines += ["", table(links, indent="  ")]
    profile = profile_of(topology)
    constants, ranges = ((), ()) if profile is None else (profile.told(), profile.ranges)
    corrections = () if profile is None else profile.corrections
    if profile is not None:
        cells = [(c.name, f"{float(c.value):g}", c.source) for c in constants]
        lines += ["", table([("constant", "value", "source"), *cells], indent="  ")]
    if ranges:
        lines += ["", *(f"  seen: {each.told()}" for each in ranges)]
    lines += [f"  correction: {each.told()}" for each in corrections]
    values = {
        "kind": "topology", **topology.to_dict(),
        "constants": {c.name: {"value": float(c.value), "source": c.source} for c in constants},
        "ranges": [each.model_dump() for each in ranges],
        "corrections": [each.model_dump() for each in corrections], "notes": list(topology.notes),
    }  # fmt: skip
    return Answer("\n".join(lines + note_lines(topology.told)), values)
