"""``taccl probe``: latency and bandwidth between MPI ranks, pair by pair, as a file that makes a topology."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from taccl.cli.options import add_options, positive
from taccl.cli.output import Answer, add_output, check_output, is_first_rank, notes_shown, with_content
from taccl.errors import InputError
from taccl.names import shown, table
from taccl.units import format_size, format_us

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    import taccl
    from taccl.placement.tuning import Tuning

EXAMPLES = (
    "taccl probe -n 8 -o probe.json",
    "taccl probe -n 16 --rounds 5 -o probe.json",
    "taccl probe --collectives --mpiexec 'mpiexec -f hosts -n 16' -o selection.json",
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
    help = (
        "measure the MPI library's collectives instead, by each of its algorithms; FILE is the rules for it"
    )
    verb.add_argument("--collectives", action="store_true", help=help)
    help = "with --collectives: the command that starts ranks, anew for each algorithm, instead of -n"
    verb.add_argument("--mpiexec", metavar="COMMAND", help=help)


def run(options: argparse.Namespace) -> Answer:
    """Measure latency and bandwidth between MPI ranks, pair by pair; or the library's collectives."""
    from taccl.placement.measuring import probe

    is_first = is_first_rank()
    if is_first:
        check_output(options)
    with notes_shown(wanted=is_first) as note:
        if options.collectives:
            return _tuned(options, note)
        if options.mpiexec is not None:
            said = "found a command; start taccl itself by it: mpiexec ... taccl probe -o FILE"
            raise InputError(said, where="--mpiexec")
        found = probe(
            ranks=options.ranks, rounds=options.rounds, size=options.size, path=options.output,
            repetitions=options.repetitions, overwrite=options.overwrite, note=note,
        )  # fmt: skip
    values = {name: value for name, value in found.to_dict().items() if name not in ("format", "version")}
    return Answer(f"{_text(found)}\n\nwritten to {shown(options.output)}", values)


def _tuned(options: argparse.Namespace, note: Callable[[str], None]) -> Answer:
    from taccl.placement.tuning import measure_collectives

    if options.rounds is not None or (options.ranks is not None and options.mpiexec is not None):
        where, said = (
            ("--rounds", "which are of pairs") if options.rounds else ("--ranks", "beside --mpiexec")
        )
        raise InputError(f"found {getattr(options, where[2:])}, {said}; leave it out", where=where)
    found = measure_collectives(
        options.ranks, launcher=_words(options.mpiexec), size=options.size,
        repetitions=options.repetitions, note=note,
    )  # fmt: skip
    values = {"library": found.library, "ranks": found.num_ranks, "sizes": list(found.sizes)}
    answer = Answer(_tuned_text(found), values | {"times_us": found.times_us})
    return with_content(answer, options.output, found.rules(), options)


def _words(command: str | None) -> list[str]:
    try:
        return shlex.split(command or "")
    except ValueError as error:
        raise InputError(f"found {shown(command or '', 60)} ({error}); close it", where="--mpiexec") from None


def _tuned_text(found: Tuning) -> str:
    rows = [["", "", *map(format_size, found.sizes)]]
    for kind, times in found.times_us.items():
        rows += [[kind, name, *map(format_us, us)] for name, us in times.items()]
    choices = [
        f"  {each.collective} from {format_size(each.least_bytes)} on: {each.algorithm}"
        for each in found.choices
    ]
    head = f"{found.library} on {found.num_ranks} ranks, median of the slowest rank"
    return "\n".join([head, table(rows, indent="  "), *choices])


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
