"""``taccl simulate``: what becomes of a schedule or a program at other sizes and under other assumptions."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from taccl.cli.options import add_options, add_schedule, jitter, option, positive, refuse, schedule_in, sizes
from taccl.cli.output import Answer, picked
from taccl.cli.programs import followed, following_values, program_in
from taccl.errors import InputError
from taccl.names import shown, table
from taccl.units import format_count, format_gap, format_size, format_us

if TYPE_CHECKING:
    from taccl.program.program import Program

EXAMPLES = (
    "taccl simulate schedule.json --sizes 1MB,16MB,256MB",
    "taccl simulate program.xml --topology dgx2 --nodes 2 --size 16MB",
)


def add(verb: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_schedule(verb, also="or a program (MSCCL XML)")
    size = verb.add_mutually_exclusive_group()
    option(size, "--sizes S,S", "e.g. 1KB,1MB,1GB (default: its own)", sizes)
    option(size, "--size S", "the same, of one size", sizes, dest="sizes")
    option(verb, "--alpha occupies|pipelined", "whether a link is busy during alpha")
    add_options(verb, "--profile", help="other constants of the machine, e.g. nominal")
    option(verb, "--tiles N", "tiles of the message, one after the other", positive, default=1)
    option(verb, "--jitter X", "0.1: each send takes up to 10 %% more or less", jitter, default=0.0)
    add_options(verb, "--seed", help="of the jitter (default 0)")
    group = verb.add_argument_group("of a program (MSCCL XML), with --topology")
    add_options(group, "--nodes", help="number of nodes of the topology")


def run(options: argparse.Namespace) -> Answer:
    """Replay a schedule at other sizes or under other assumptions, or a program on a topology."""
    from taccl.analysis.simulation.simulate import simulate
    from taccl.analysis.simulation.steady import initiation_interval
    from taccl.cli.text import note_lines, rate_text, title_of

    program = program_in(options.file)
    if program is not None:
        return _of_program(program, options)
    refuse(options, ("nodes",), "found a schedule, whose nodes are fixed; leave it out")
    schedule = schedule_in(options.file, options)
    found = []
    varied = picked(options, "tiles", "jitter", "seed")
    for size in options.sizes or (None,):
        assumed = {"size": size, **picked(options, "alpha", "profile")}
        simulation = simulate(schedule, **assumed, **varied)
        is_plain = options.tiles == 1 and not options.jitter
        once = simulation if is_plain else simulate(schedule, **assumed)
        found.append((simulation, initiation_interval(once.as_schedule())))
    rows, sizes = [], []
    for simulation, steady in found:
        size = simulation.problem.size_bytes
        rows.append(
            ("not known" if size is None else format_size(size), format_us(simulation.finish),
             format_us(simulation.predicted_us), rate_text(simulation.algbw_gb_per_s),
             rate_text(simulation.busbw_gb_per_s), format_us(steady.interval),
             rate_text(steady.algbw_gb_per_s), steady.limits)
        )  # fmt: skip
        figures = ("finish_us", "launch_us", "predicted_us", "algbw_gb_per_s", "busbw_gb_per_s")
        sizes.append({
            "size_bytes": size, **picked(simulation, *figures),
            "interval_us": steady.interval_us, "interval_limits": steady.limits,
            "interval_algbw_gb_per_s": steady.algbw_gb_per_s,
            "interval_busbw_gb_per_s": steady.busbw_gb_per_s,
        })  # fmt: skip
    first = found[0][0]
    topology, notes = first.problem.topology, first.problem.notes
    assumptions = f"alpha {topology.alpha_meaning}, {format_count(first.tiles, 'tile')}"
    if first.jitter:
        assumptions += f", jitter {first.jitter:g}, seed {first.seed}"
    own = f"  its own finish is {schedule.timing}; simulated with {assumptions}"
    head = ("GB/s", "bus GB/s", "interval", "GB/s in tiles", "limited by")
    launches = any(simulation.launch for simulation, _ in found)
    lines = [title_of(schedule.problem), own, "", _table(head, rows, launches=launches)]
    values = {
        **picked(schedule, "finish_us", "launch_us", "predicted_us"),
        "collective": schedule.problem.collective.name,
        "topology": schedule.problem.topology.name, "alpha": topology.alpha_meaning,
        **picked(first, "tiles", "jitter", "seed"), "digest": schedule.digest(), "sizes": sizes,
        "notes": list(notes),
    }  # fmt: skip
    return Answer("\n".join(lines + note_lines(notes)), values)


def _of_program(program: Program, options: argparse.Namespace) -> Answer:
    """What a program takes on a topology at each size."""
    for name, given in (
        ("--alpha", options.alpha is not None), ("--tiles", options.tiles > 1),
        ("--jitter", options.jitter > 0), ("--time-unit-us", options.time_unit_us is not None),
    ):  # fmt: skip
        if given:
            raise InputError(
                "found a program; make a schedule of it first (taccl convert FILE schedule.json --topology "
                "NAME --size S), and simulate that",
                where=name,
            )
    schedules = [
        followed(program, options, size=size, chunk_size=None if size else options.chunk_size)
        for size in options.sizes or (None,)
    ]
    first, figures = schedules[0].problem, [following_values(each) for each in schedules]
    rows = [
        (format_size(each["size_bytes"]), *(format_us(each[name]) for name in ("finish_us", "predicted_us")),
         *(f"{each[name]:.4g}" for name in ("algbw_gb_per_s", "busbw_gb_per_s")),
         format_us(each["bound_us"]), format_gap(each["gap"]), each["busiest"], f"{each['utilisation']:.1%}")
        for each in figures
    ]  # fmt: skip
    head = ("GB/s", "bus GB/s", "bound", "gap", "busiest", "busy")
    title = f"program {shown(program.name)}: {first.title}, {program.protocol}"
    said = [note for each in schedules for note in (*each.problem.topology.notes, *each.problem.notes)]
    notes = list(dict.fromkeys(said))
    values = {
        "program": program.name, "collective": first.collective.name, "topology": first.topology.name,
        "protocol": program.protocol, "sizes": figures, "notes": notes,
    }  # fmt: skip
    lines = [title, "", _table(head, rows, launches=any(each["launch_us"] for each in figures))]
    return Answer("\n".join(lines + [f"  note: {note}" for note in notes]), values)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]], *, launches: bool) -> str:
    """Rows of a size, its finish, the same with the launch, which is left out where none is, and more."""
    told = [("size", "finish", "predicted", *head), *rows]
    return table(told if launches else [(*row[:2], *row[3:]) for row in told], indent="  ")
