"""``taccl probe``: latency and bandwidth between MPI ranks, pair by pair, as a file that makes a topology."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taccl.cli.answer import Answer
from taccl.cli.options import add_options, positive
from taccl.cli.output import add_output, check_output, is_first_rank, notes_shown
from taccl.names import shown, table

if TYPE_CHECKING:
    import argparse

    import taccl

EXAMPLES = (
    "taccl probe -n 8 -o probe.json",
    "taccl probe -n 16 --rounds 5 -o probe.json",
)


def add(verb: argparse.ArgumentParser) -> None:
    """Declare the options."""
    help = "ranks to start on this machine; without, the ranks that mpiexec has started"
    verb.add_argument("-n", "--ranks", type=positive, metavar="N", help=help)
    help = "the probe; until it is whole, what is known is in FILE.part, and a next probe goes on from there"
    add_output(verb, help, required=True)
    help = "rounds of pairs at most, a sample (default: all pairs)"
    verb.add_argument("--rounds", type=positive, metavar="N", help=help)
    add_options(verb, "--size", default="1MB", help="of the messages that tell bandwidth (default 1MB)")
    help = "messages of a pair that count (default 20)"
    verb.add_argument("--repetitions", type=positive, default=20, metavar="N", help=help)


def run(options: argparse.Namespace) -> Answer:
    """Measure latency and bandwidth between MPI ranks, pair by pair."""
    from taccl.placement.measuring import probe

    is_first = is_first_rank()
    if is_first:
        check_output(options)
    with notes_shown(wanted=is_first) as note:
        found = probe(
            ranks=options.ranks, rounds=options.rounds, size=options.size, path=options.output,
            repetitions=options.repetitions, overwrite=options.overwrite, note=note,
        )  # fmt: skip
    values = {name: value for name, value in found.to_dict().items() if name not in ("format", "version")}
    return Answer(f"{_text(found)}\n\nwritten to {shown(options.output)}", values)


def _text(found: taccl.Probe) -> str:
    topology = found.topology()
    rows = [
        ("directions differ by", f"{found.asymmetry:.1%} (median)"),
        ("spread of a pair", "" if found.latency_spread is None else f"{found.latency_spread:.1%} (median)"),
        *(
            ("shared way out", f"ranks {', '.join(map(str, r))}: {rate:.3g} GB/s")
            for r, rate in found.uplinks
        ),
        ("topology", "; ".join(topology.notes)),
    ]
    return f"{found}\n{table([row for row in rows if row[1]], indent='  ')}"
