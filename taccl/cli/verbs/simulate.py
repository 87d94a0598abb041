"""``taccl simulate``: what becomes of a schedule at other sizes, and under other assumptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taccl.cli.answer import Answer
from taccl.cli.options import (
    add_schedule,
    add_verb,
    at_least_zero,
    jitter,
    positive,
    schedule_from_options,
    sizes,
)

if TYPE_CHECKING:
    import argparse

__all__ = ["add", "run"]


def add(verbs: Any) -> None:
    """Declare the verb."""
    help = "Replay a schedule at other sizes or under other assumptions, with its order kept."
    verb = add_verb(verbs, "simulate", run, help)
    add_schedule(verb)
    verb.add_argument("--sizes", type=sizes, metavar="S,S", help="e.g. 1KB,1MB,1GB (default: its own)")
    verb.add_argument(
        "--alpha", choices=("occupies", "pipelined"), help="whether a link is busy during alpha"
    )
    verb.add_argument("--profile", metavar="P", help="other constants of the machine, e.g. nominal")
    verb.add_argument("--tiles", type=positive, default=1, metavar="N", help="so many one after the other")
    verb.add_argument(
        "--jitter", type=jitter, default=0.0, metavar="X", help="0.1: each send 10 %% off at most"
    )
    verb.add_argument("--seed", type=at_least_zero, default=0, metavar="N", help="of the jitter (default 0)")


def run(options: argparse.Namespace) -> Answer:
    """Simulate a schedule, once for each size."""
    from taccl.analysis.simulation.simulate import simulate
    from taccl.analysis.simulation.steady import initiation_interval
    from taccl.cli.text import simulation_text, simulation_values

    schedule = schedule_from_options(options)
    found = []
    for size in options.sizes or (None,):
        simulation = simulate(
            schedule,
            size=size,
            alpha=options.alpha,
            profile=options.profile,
            tiles=options.tiles,
            jitter=options.jitter,
            seed=options.seed,
        )
        once = simulation if options.tiles == 1 and not options.jitter else simulate(
            schedule, size=size, alpha=options.alpha, profile=options.profile
        )  # fmt: skip
        found.append((simulation, initiation_interval(once.as_schedule())))
    return Answer(simulation_text(schedule, found), simulation_values(schedule, found))
