"""``taccl probe``: latency and bandwidth between MPI ranks, pair by pair, in a file usable as a topology."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

from taccl._internal.names import shown, table
from taccl._internal.units import format_size, format_us, parse_size
from taccl.cli.options import add_options, add_output, option, positive, refuse
from taccl.cli.output import Answer, check_output, is_first_rank, notes_shown, picked, with_content
from taccl.errors import InputError

if TYPE_CHECKING:
    import taccl


def add(verb: argparse.ArgumentParser) -> None:
    """Declare the options."""
    help = "number of ranks to start on this machine (default: those that mpiexec started)"
    option(verb, "-n --ranks N", help, positive)
    help = "output file; an unfinished probe is kept in FILE.part, from which the next one resumes"
    add_output(verb, help, required=True)
    option(verb, "--rounds N", "max rounds of pairs, a sample (default: all pairs)", positive)
    help = "measure O(n log n) pairs; clusters inferred from them are tested on held-out pairs"
    option(verb, "--few", help)
    help = "only print the pairs, bytes and seconds that a probe of -n ranks requires"
    option(verb, "--dry-run", help)
    help = "size of the messages that measure bandwidth; with --collectives, the largest size"
    add_options(verb, "--size", default="1MB", help=help)
    option(verb, "--repetitions N", "timed messages per pair", positive, default=20)
    help = "passes over all pairs (default 4); more tell smaller gains from noise (`taccl reorder`)"
    option(verb, "--passes N", help, positive)
    help = "measure the MPI library's collectives with each of its algorithms; write its rules to FILE"
    option(verb, "--collectives", help)
    help = "with --collectives: command that starts the ranks of each run, instead of -n"
    option(verb, "--mpiexec COMMAND", help)


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
            said = (
                "found a command without --collectives; start taccl with it: mpiexec ... taccl probe -o FILE"
            )
            raise InputError(said, where="--mpiexec")
        if options.dry_run:
            return _work(options)
        if options.few:
            refuse(options, ("rounds",), "found with --few, which chooses its rounds; leave it out")
        given = picked(options, "ranks", "rounds", "size", "repetitions", "passes", "few", "overwrite")
        try:
            found = probe(**given, path=options.output, note=note)
        except KeyboardInterrupt:
            part = f"{options.output}.part"
            if options.few or not os.path.exists(part):
                raise
            said = f"interrupted; {shown(part)} has the rounds so far: run the same again to resume"
            raise KeyboardInterrupt(said) from None
    values = {name: value for name, value in found.to_dict().items() if name not in ("format", "version")}
    return Answer(f"{_text(found)}\n\nwritten to {shown(options.output)}", values)


def _work(options: argparse.Namespace) -> Answer:
    """Answer of ``--dry-run``: pairs, bytes and seconds that a probe would need."""
    from taccl.placement.probe import probe_work

    if options.ranks is None or options.ranks < 2:
        raise InputError("found none; --dry-run needs two ranks or more", where="--ranks")
    rounds = options.ranks - 1 + options.ranks % 2
    rounds = rounds if options.rounds is None else min(rounds, max(2, options.rounds))
    size = parse_size(options.size, where="--size")
    found = probe_work(
        options.ranks,
        rounds=rounds,
        size=size,
        repetitions=options.repetitions,
        few=options.few,
        passes=options.passes,
    )
    return Answer(str(found), asdict(found))


def _tuned(options: argparse.Namespace, note: Callable[[str], None]) -> Answer:
    from taccl.placement.tuning import measure_collectives

    for name in ("rounds", "passes"):
        said = f"found {getattr(options, name)} with --collectives, which has no {name}; leave it out"
        refuse(options, (name,), said)
    if options.mpiexec is not None:
        refuse(options, ("ranks",), f"found {options.ranks} with --mpiexec; leave it out")
    command = options.mpiexec or ""
    try:
        launcher = shlex.split(command)
    except ValueError as error:
        raise InputError(f"found {shown(command, 60)} ({error}); close it", where="--mpiexec") from None
    given = picked(options, "size", "repetitions")
    found = measure_collectives(options.ranks, launcher=launcher, **given, note=note)
    rows = [["", "", *map(format_size, found.sizes)]]
    for kind, times in found.times_us.items():
        rows += [[kind, name, *map(format_us, us)] for name, us in times.items()]
    choices = [f"  {c.collective} from {format_size(c.least_bytes)} on: {c.algorithm}" for c in found.choices]
    head = f"{found.library} on {found.num_ranks} ranks, median of the slowest rank"
    text = "\n".join([head, table(rows, indent="  "), *choices])
    values = {"library": found.library, "ranks": found.num_ranks, "sizes": list(found.sizes)}
    answer = Answer(text, values | {"times_us": found.times_us})
    return with_content(answer, options.output, found.rules(), options)


def _text(found: taccl.Probe) -> str:
    from taccl.placement.hosts import ProbedHosts

    rows = [("directions differ by", f"{found.asymmetry:.1%} (median)")]
    if found.latency_spread is not None:
        rows.append(("spread of a pair", f"{found.latency_spread:.1%} (median)"))
    for ranks, rate in found.uplinks:
        rows.append(("shared uplink", f"ranks {', '.join(map(str, ranks))}: {rate:.3g} GB/s"))
    if notes := ProbedHosts(found).told:
        rows.append(("topology", "; ".join(notes)))
    return f"{found}\n{table(rows, indent='  ')}"
