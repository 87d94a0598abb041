"""``taccl simulate``: what becomes of a schedule or a program at other sizes and under other assumptions."""

from __future__ import annotations

import argparse

from taccl.cli.options import add_options, add_schedule, jitter, positive, schedule_from_options, sizes
from taccl.cli.output import Answer
from taccl.cli.programs import followed, following_values, holds_program, load_program
from taccl.errors import InputError
from taccl.names import shown, table
from taccl.units import format_gap, format_size, format_us

EXAMPLES = (
    "taccl simulate schedule.json --sizes 1MB,16MB,256MB",
    "taccl simulate program.xml --topology dgx2 --nodes 2 --size 16MB",
)


def add(verb: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_schedule(verb, also="or a program (MSCCL XML)")
    size = verb.add_mutually_exclusive_group()
    size.add_argument("--sizes", type=sizes, metavar="S,S", help="e.g. 1KB,1MB,1GB (default: its own)")
    size.add_argument("--size", dest="sizes", type=sizes, metavar="S", help="the same, of one size")
    help = "whether a link is busy during alpha"
    verb.add_argument("--alpha", choices=("occupies", "pipelined"), help=help)
    add_options(verb, "--profile", help="other constants of the machine, e.g. nominal")
    help = "tiles of the message, one after the other (default 1)"
    verb.add_argument("--tiles", type=positive, default=1, metavar="N", help=help)
    help = "0.1: each send takes up to 10 %% more or less"
    verb.add_argument("--jitter", type=jitter, default=0.0, metavar="X", help=help)
    add_options(verb, "--seed", help="of the jitter (default 0)")
    group = verb.add_argument_group("of a program (MSCCL XML), with --topology")
    add_options(group, "--nodes", help="number of nodes of the topology")


def run(options: argparse.Namespace) -> Answer:
    """Replay a schedule at other sizes or under other assumptions, or a program on a topology."""
    from taccl.analysis.simulation.simulate import simulate
    from taccl.analysis.simulation.steady import initiation_interval
    from taccl.cli.text import simulation_text, simulation_values

    if holds_program(options.file):
        return _of_program(options)
    if options.nodes is not None:
        raise InputError("found a schedule, whose nodes are fixed; leave it out", where="--nodes")
    schedule = schedule_from_options(options)
    found = []
    varied = {"tiles": options.tiles, "jitter": options.jitter, "seed": options.seed}
    for size in options.sizes or (None,):
        assumed = {"size": size, "alpha": options.alpha, "profile": options.profile}
        simulation = simulate(schedule, **assumed, **varied)
        is_plain = options.tiles == 1 and not options.jitter
        once = simulation if is_plain else simulate(schedule, **assumed)
        found.append((simulation, initiation_interval(once.as_schedule())))
    return Answer(simulation_text(schedule, found), simulation_values(schedule, found))


def _of_program(options: argparse.Namespace) -> Answer:
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
    program = load_program(options.file)
    sizes = (None,) if options.sizes is None and options.chunk_size is not None else options.sizes or (None,)
    schedules = [
        followed(program, options, size=size, chunk_size=None if size else options.chunk_size)
        for size in sizes
    ]
    first, figures = schedules[0].problem, [following_values(each) for each in schedules]
    launches = any(each["launch_us"] for each in figures)
    told = ("predicted",) if launches else ()
    rows = [("size", "finish", *told, "GB/s", "bus GB/s", "bound", "gap", "busiest", "busy")]
    rows += [
        (
            format_size(each["size_bytes"]), format_us(each["finish_us"]),
            *((format_us(each["predicted_us"]),) if launches else ()), f"{each['algbw_gb_per_s']:.4g}",
            f"{each['busbw_gb_per_s']:.4g}", format_us(each["bound_us"]),
            format_gap(each["gap"]), each["busiest"], f"{each['utilisation']:.1%}",
        )
        for each in figures
    ]  # fmt: skip
    title = f"program {shown(program.name)}: {first.title}, {program.protocol}"
    said = [note for each in schedules for note in (*each.problem.topology.notes, *each.problem.notes)]
    notes = list(dict.fromkeys(said))
    values = {
        "program": program.name, "collective": first.collective.name, "topology": first.topology.name,
        "protocol": program.protocol, "sizes": figures, "notes": notes,
    }  # fmt: skip
    lines = [title, "", table(rows, indent="  ")]
    return Answer("\n".join(lines + [f"  note: {note}" for note in notes]), values)
