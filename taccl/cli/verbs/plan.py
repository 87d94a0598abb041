"""``taccl plan``: the best schedule for every size of a range, as files that a runtime registers."""

from __future__ import annotations

import signal
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

import taccl
from taccl._internal.deadline import busy_factor, leave, signals_to
from taccl._internal.names import shown
from taccl.cli.inputs import names_topology, sketch_from_word
from taccl.cli.options import (
    LEAST_S,
    add_collective,
    add_limit,
    add_options,
    add_subset,
    option,
    positive,
    reader,
    whole,
)
from taccl.cli.output import Answer, picked, say
from taccl.cli.problems import arguments_of, collective_of, resized, subset_for, topology_for
from taccl.errors import InputError
from taccl.runtimes.registry import registered

if TYPE_CHECKING:
    from taccl.sketch.sketch import Sketch
    from taccl.topology.topology import Topology

#: `_WRITING_SHARE`: min share of the time limit that is reserved for writing the files.
#: `_WRITING_S`: min CPU seconds that are reserved for writing the files.
#: `_MOST_WRITING_SHARE`: max share of the time limit that the estimated time to write the files may reserve.
_WRITING_SHARE, _WRITING_S, _MOST_WRITING_SHARE = 0.1, 0.5, 0.5
#: Time to write files, in multiples of `finishing_time`: one program per range; both (in and out of place).
_WRITING_PARTS = (0.7, 2.2)

_instances = reader(lambda w: w if w == "auto" else whole(w), bool, "auto or a positive whole number")


def add(verb: ArgumentParser) -> None:
    """Declare the options."""
    help = "shipped sketches (ndv2/sk1) or sketch files; or a topology in place of --topology"
    verb.add_argument("sketches", nargs="*", metavar="SKETCH", help=help)
    add_collective(verb)
    option(verb, "--sizes S:S", "range FROM:TO, or sizes S,S,... at which to synthesize", default="1KB:1GB")
    option(verb, "-o --output DIR", "output folder; not created on failure")
    option(verb, "--overwrite --force", "replace an existing plan in DIR")
    group = verb.add_argument_group("problem")
    add_options(group, "--topology", help="a file, a machine, or a fabric (default: the sketch's)")
    add_options(group, "--nodes", "--profile")
    add_subset(group)
    group = verb.add_argument_group("search")
    option(group, "--no-baselines", "exclude the baselines")
    add_options(group, "--backend")
    add_limit(verb, group, default=300.0)
    add_options(group, "--threads", "--seed")
    help = "max number of ranges (default 4, the limit of the MSCCL runtime)"
    option(group, "--max-ranges N", help, positive, default=4)
    group = verb.add_argument_group("programs")
    known = ", ".join(registered("files"))
    help = f"{known} (default: by the machine)"
    option(group, "--runtime NAME", help)
    option(group, "--in-place", "for calls with one buffer for input and output (default: as PyTorch calls)")
    option(group, "--out-of-place", "for calls with separate buffers")
    help = "message protocol (default auto: predicted fastest in each range)"
    add_options(group, "--protocol", help=help)
    help = "number of parts of each chunk, or auto: as many as the links need"
    option(group, "--instances N", help, _instances, default=1)


def run(options: Namespace) -> Answer:
    """Find the best schedule for every size of a range, and write files that a runtime registers."""
    from taccl._internal.reading import parse_json, read_text
    from taccl.explore.plan_files import check_folder
    from taccl.explore.plan_search import finishing_time
    from taccl.program.limits import IN_BOTH_PLACES
    from taccl.program.program import PROTOCOLS

    if options.output is not None:
        check_folder(options.output, overwrite=options.overwrite)
    asked, options.protocol = options.protocol, "auto"
    topology, sketches = _topology_and_sketches(options)
    collective = collective_of(options, topology)
    lowering = picked(options, "instances")
    if options.in_place and options.out_of_place:
        raise InputError("found with --in-place; leave out both for all", where="--out-of-place")
    if options.in_place or options.out_of_place:
        lowering["in_place"] = options.in_place
    if asked != "auto" and not topology.protocols:  # costs do not depend on the protocol
        asked, lowering["protocol"] = "auto", next(each for each in PROTOCOLS if each.lower() == asked)
    smallest = taccl.make_problem(topology, collective, size_bytes=1, **arguments_of(options))
    part = _WRITING_PARTS[smallest.collective.name in IN_BOTH_PLACES]
    least_s = max(_WRITING_S * busy_factor(), part * finishing_time(smallest))
    writing_s = min(least_s, _MOST_WRITING_SHARE * options.time_limit)
    left_s = options.deadline.left_s - max(writing_s, _WRITING_SHARE * options.time_limit)
    found = taccl.plan(
        topology, collective, sketches=sketches, baselines=not options.no_baselines,
        **picked(options, "sizes", "backend", "threads", "seed", "max_ranges"), **arguments_of(options),
        time_limit_s=max(LEAST_S, left_s), progress=say, protocol=asked, lowering=lowering,
        runtime=options.runtime,
    )  # fmt: skip
    if found.stopped != "done":
        why = "Ctrl-C" if found.stopped == "interrupted" else "the time limit"
        say(f"warning: stopped by {why}; this is the best plan so far")
    text = repr(found)
    if options.output is None:  # digests of large problems take long, and only JSON has them
        return Answer(f"{text}\n\nnothing is written; give -o DIR to write it", found.to_dict)
    with signals_to(leave, "SIGTERM", "SIGHUP", only=signal.SIG_DFL):
        left_s = max(LEAST_S, options.deadline.left_s)
        files = found.save(options.output, overwrite=options.overwrite, time_limit_s=left_s)
    paths = [str(path) for path in files]
    index = parse_json(read_text(paths[0]), source=paths[0])
    new = [note for note in index["notes"] if note not in found.notes]
    lines = [text, *(f"note: {note}" for note in new), ""]
    lines += [f"written to {shown(options.output)}: {len(paths)} files", *index["coverage"].values()]
    registration = index["registration"].values()
    lines += ["to register them:"] if registration else []
    lines += [f"  {how} {shown(path)}" for how, path in zip(registration, paths[1:], strict=False)]
    new_values = {"files": paths, **{name: index[name] for name in ("notes", "coverage")}}
    return Answer("\n".join(lines), lambda: found.to_dict() | new_values)


def _topology_and_sketches(options: Namespace) -> tuple[Topology, list[Sketch | None]]:
    """(topology, sketches) that the options name; the sketches are ``[None]`` if none is given."""
    words: list[str] = list(options.sketches)
    if len(words) == 1 and options.topology is None and names_topology(words[0]):
        options.topology, words = words[0], []
    if not words and options.topology is None:
        raise InputError("found neither a sketch nor --topology; give at least one", where="SKETCH")
    either = len(words) == 1 and options.topology is None
    found = [sketch_from_word(word, or_topology=either) for word in words]
    sketches = [sketch for sketch in found if sketch is not None]
    first = sketches[0] if sketches else None
    topology = subset_for(options, topology_for(options, first), first)
    return topology, [resized(each, options, topology) for each in sketches] or [None]
