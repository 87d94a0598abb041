"""``taccl simulate``: replay a schedule or a program at other sizes or under other assumptions."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from taccl._internal.names import first_of, note_lines, shown
from taccl._internal.units import format_count, format_limit, format_us
from taccl.cli.inputs import followed, program_in
from taccl.cli.options import add_options, add_schedule, jitter, option, positive, refuse, sizes
from taccl.cli.output import Answer, figures_table, following_values, picked
from taccl.cli.problems import schedule_in

if TYPE_CHECKING:
    from taccl.program.program import Program

#: First columns of the table with a row for each size.
_FIGURES = ("size_bytes", "finish_us", "predicted_us", "algbw_gb_per_s", "busbw_gb_per_s")


def add(verb: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_schedule(verb, "a program (MSCCL XML)")
    size = verb.add_mutually_exclusive_group()
    option(size, "--sizes S,S", "sizes to replay, e.g. 1KB,1MB,1GB (default: the schedule's own)", sizes)
    option(size, "--size S", "a single size to replay", sizes, dest="sizes")
    option(
        verb, "--alpha occupies|pipelined", "link occupancy during alpha (default: as the topology states)"
    )
    add_options(verb, "--profile", help="cost profile of the machine, e.g. nominal (default: the schedule's)")
    option(
        verb,
        "--tiles N",
        "number of tiles of the message, pipelined one after the other",
        positive,
        default=1,
    )
    option(
        verb,
        "--jitter X",
        "relative jitter of each send's time: 0.1 is up to 10 %% more or less",
        jitter,
        default=0.0,
    )
    add_options(verb, "--seed", help="random seed of the jitter (default 0)")
    group = verb.add_argument_group("for a program (MSCCL XML), with --topology")
    add_options(group, "--nodes", help="number of nodes of the topology")


def run(options: argparse.Namespace) -> Answer:
    """Replay a schedule at other sizes or under other assumptions, or a program on a topology."""
    from taccl.analysis.simulation.simulate import simulate
    from taccl.analysis.simulation.steady import initiation_interval

    program = program_in(options.file)
    if program is not None:
        return _of_program(program, options)
    refuse(options, ("nodes",), "found a schedule, whose nodes are fixed; leave it out")
    schedule = schedule_in(options.file, options)
    rows = []
    for size in options.sizes or (None,):
        assumed = {"size": size, **picked(options, "alpha", "profile")}
        found = simulate(schedule, **assumed, **picked(options, "tiles", "jitter", "seed"))
        is_plain = options.tiles == 1 and not options.jitter
        once = found if is_plain else simulate(schedule, **assumed)
        steady = initiation_interval(once.as_schedule())
        figures = ("finish_us", "launch_us", "predicted_us", "algbw_gb_per_s", "busbw_gb_per_s")
        rows.append({
            "size_bytes": found.problem.size_bytes, **picked(found, *figures),
            "interval_us": steady.interval_us, "interval_limits": steady.limits,
            "interval_algbw_gb_per_s": steady.algbw_gb_per_s,
            "interval_busbw_gb_per_s": steady.busbw_gb_per_s,
        })  # fmt: skip
    topology, notes = found.problem.topology, found.problem.notes
    assumptions = f"alpha {topology.alpha_meaning}, {format_count(found.tiles, 'tile')}"
    if found.jitter:
        assumptions += f", jitter {found.jitter:g}, seed {found.seed}"
    own = f"  original finish {schedule.timing}; simulated with {assumptions}"
    shown = (*_FIGURES, "interval_us", "interval_algbw_gb_per_s", "interval_limits")
    is_own = not (options.sizes or options.alpha or options.profile) and is_plain
    if is_own and found.finish < schedule.finish:
        also = " of threadblocks and queues" if schedule.producer.startswith("program ") else ""
        said = "here each send starts once its data and resources permit; the original has further waits"
        notes = (*notes, f"{said}{also}")
    lines = [schedule.problem.heading, own, "", figures_table(rows, shown)]
    values = {
        **picked(schedule, "finish_us", "launch_us", "predicted_us"),
        "collective": schedule.problem.collective.name,
        "topology": schedule.problem.topology.name, "alpha": topology.alpha_meaning,
        **picked(found, "tiles", "jitter", "seed"), "digest": schedule.digest(), "sizes": rows,
        "notes": list(notes),
    }  # fmt: skip
    return Answer("\n".join(lines + note_lines(notes)), values)


def _of_program(program: Program, options: argparse.Namespace) -> Answer:
    """Answer with the time of a program on a topology at each size."""
    from taccl.analysis.simulation.simulate import simulate
    from taccl.program.checks import NO_LIMIT

    unfit = {name for name in ("alpha", "time_unit_us") if getattr(options, name) is not None}
    unfit |= {name for name, usual in (("tiles", 1), ("jitter", 0)) if getattr(options, name) != usual}
    refuse(
        options, sorted(unfit),
        "found a program; make a schedule of it first (taccl convert FILE schedule.json --topology NAME "
        "--size S), and simulate that",
    )  # fmt: skip
    schedules = [
        followed(program, options, size=size, chunk_size=None if size else options.chunk_size)
        for size in options.sizes or (None,)
    ]
    first, rows = schedules[0].problem, [following_values(each) for each in schedules]
    said = [note for each in schedules for note in (*each.problem.topology.told, *each.problem.notes)]
    notes = list(dict.fromkeys(said))
    # The replay knows data and resources, but neither steps nor queues.
    alone = [simulate(each) for each in schedules]
    faster = [
        format_us(each.finish) + (f" for {format_limit(each.size_bytes)}" if each.size_bytes else "")
        for each, lifted in zip(alone, schedules, strict=True)
        if each.finish < lifted.finish
    ]
    if faster:
        apart = "sends also wait for steps of threadblocks and for room in queues; without these waits, "
        notes.append(f"{apart}the finish is {first_of(faster, 4)}")
    least, most = program.sizes_bytes or (0, NO_LIMIT)
    given = [each.problem.size_bytes for each in schedules]
    if outside := [format_limit(size) for size in given if size is not None and not least <= size <= most]:
        span = f"from {format_limit(least)}" + (f" to {format_limit(most)}" if most < NO_LIMIT else "")
        notes.append(f"runtimes use the program {span} by its file, and so not for {first_of(outside, 4)}")
    scope = rows[0]["bound_scope"]
    title = f"program {shown(program.name)}: {first.title}, {program.protocol}; bound and gap for {scope}"
    lines = [title, "", figures_table(rows, (*_FIGURES, "bound_us", "gap", "busiest", "utilisation"))]
    values = {
        "program": program.name, "collective": first.collective.name, "topology": first.topology.name,
        "protocol": program.protocol, "sizes": rows, "notes": notes,
    }  # fmt: skip
    return Answer("\n".join(lines + note_lines(notes)), values)
