"""``taccl reorder``: placement of ranks on hosts, and the files that pass it to launchers and libraries."""

from __future__ import annotations

import argparse
import json
import shlex
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import taccl
from taccl._internal.names import first_of, shown, table
from taccl._internal.units import format_count
from taccl.cli.inputs import format_in, is_file, program_in, topology_from_word
from taccl.cli.options import (
    LEAST_S,
    add_limit,
    add_options,
    add_output,
    option,
    positive,
    reader,
    refuse,
    was_given,
)
from taccl.cli.output import (
    Answer,
    check_output,
    is_first_rank,
    notes_shown,
    picked,
    progress_shown,
    with_content,
)
from taccl.errors import AssumptionWarning, InputError
from taccl.formats.native import load as load_schedule

if TYPE_CHECKING:
    from taccl.placement.hosts import ProbedHosts
    from taccl.topology.topology import Topology

#: `_ORDERS`: options that write a file for a launcher.
#: `_RULES`: options that write a file for an MPI library or NCCL.
_ORDERS, _RULES = ("hostfile", "rankfile"), ("openmpi_rules", "mpich_selection", "nccl_tuner")

_times = reader(float, lambda x: 1 <= x < 1e6, "a number of at least 1")
_rate = reader(float, lambda x: 0 < x < 1e9, "a positive number of GB/s")


def add(verb: argparse.ArgumentParser) -> None:
    """Declare the options."""
    help = "a probe (of `taccl probe`), a matrix of latencies (CSV), SLURM's topology.conf or topology.yaml, "
    help += "another topology file, or a machine"
    verb.add_argument("topology", metavar="FILE|NAME", help=help)
    add_options(verb, "--collective", required=False)
    verb.set_defaults(collective="allreduce")
    help = "ring, rings:4, double-tree:8, halving-doubling, doubling, pairwise, hierarchical:8; or a file "
    help += "with a schedule or a program"
    option(verb, "--algorithm NAME|FILE", help, default="ring")
    add_options(verb, "--size", default="100MB", help="larger of a rank's input and output")
    add_options(verb, "--nodes", help="number of nodes of a machine")
    add_limit(verb)
    add_options(verb, "--seed")
    add_output(verb, "the placement as JSON")
    group = verb.add_argument_group("verify with MPI ranks")
    help = (
        "FILE is a placement (-o): run the library's collective alternately in both orders of ranks, on the "
    )
    help += "ranks that mpiexec has started"
    option(group, "--verify", help)
    option(group, "-n --ranks N", "with --verify: number of ranks to start on this machine", positive)
    help = "with --verify: calls in each order (default 20)"
    option(group, "--repetitions N", help, positive)
    group = verb.add_argument_group("for unmeasured networks")
    help = "ratio of hosts' bandwidth to their rack's uplink (default 4)"
    option(group, "--oversubscription K", help, _times)
    option(group, "--bandwidth GB/S", "bandwidth of each host (default 12.5)", _rate)
    group = verb.add_argument_group("files for launchers and libraries")
    help = "adopt the new order and write its files even if the gain may be noise"
    option(group, "--within-noise", help)
    help = "the hosts in their present order, each a line name, name:slots or name slots=N, or a line for "
    help += "each slot (default: the probe's); for a file of SLURM or ibnetdiscover, those of the job"
    option(group, "--hosts FILE", help)
    option(group, "--hostfile FILE", "write a host file in the new order")
    help = "launcher of the host file (default mpich, with Hydra); for torchrun, a script that prints options"
    option(group, "--launcher mpich|openmpi|slurm|torchrun", help, default="mpich")
    option(group, "--rankfile FILE", "write a rank file for Open MPI 5.0.10 and later")
    option(group, "--openmpi-rules FILE", "write Open MPI's dynamic rules: the algorithm for each size")
    option(
        group, "--mpich-selection FILE", "write MPICH's selection file (JSON): the algorithm for each size"
    )
    help = "MPICH's libmpi.so or selection file, for all other choices"
    option(group, "--mpich-base FILE", help)
    option(group, "--nccl-tuner FILE", "write a table for NCCL's example tuner plugin")
    option(group, "--plot FILE", "write a picture of the matrix, before and after")


def run(options: argparse.Namespace) -> Answer:
    """Renumber ranks so that the algorithm of a library fits the network."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AssumptionWarning)  # the answer lists the assumptions
        return _verified(options) if options.verify else _reordered(options)


def _reordered(options: argparse.Namespace) -> Answer:
    refuse(options, ("ranks", "repetitions"), "found without --verify; leave it out")
    check_output(options, *_ORDERS, *_RULES, "plot")
    if options.hostfile is None and was_given("launcher", options):
        raise InputError("found without --hostfile; give both, or leave it out", where="--launcher")
    if options.mpich_selection is None:
        refuse(options, ("mpich_base",), "found without --mpich-selection; give both, or leave it out")
    if options.mpich_selection is not None and options.mpich_base is None:
        from taccl.runtime.environment import find_library

        options.mpich_base = find_library()
    topology, hosts = _hosts(options)
    algorithm = options.algorithm
    if is_file(algorithm):
        algorithm = program_in(algorithm) or load_schedule(algorithm)
    with progress_shown(wanted=True) as progress:
        given = {
            "time_limit_s": max(LEAST_S, options.deadline.left_s), "seed": options.seed, "progress": progress,
            "within_noise": options.within_noise,
        }  # fmt: skip
        found = taccl.reorder(topology, options.collective, algorithm, options.size, **given)
    notes = [*found.hosts.told, *_unused(hosts, topology.num_ranks)]
    if not (found.judgement is None or found.judgement.is_trusted or options.within_noise):
        notes += _withheld(options)
    if hosts and (options.hostfile is not None or options.rankfile is not None):
        found, notes = _launched(found, hosts, notes)
    contents = _contents(found, hosts, options)
    start = _start(found, hosts, options, notes)
    values = found.to_dict() | {"hosts": hosts, "files": [*contents], "start": start, "notes": notes}
    answer = Answer(_text(found, hosts, start, notes), values)
    if options.output is not None:
        contents = {options.output: json.dumps(values, indent=1) + "\n", **contents}
    for path, content in contents.items():
        answer = with_content(answer, path, content, options)
    if options.plot is not None:
        from taccl.placement.pictures import matrices
        from taccl.plot.style import format_of, render

        picture = render(matrices(found), format_of(options.plot))
        answer = with_content(answer, options.plot, picture, options)
    return answer


def _verified(options: argparse.Namespace) -> Answer:
    """Measure the gain of a placement with MPI ranks; every rank returns the same answer."""
    from taccl._internal.file_kinds import wrong_kind
    from taccl._internal.reading import kinds_of, parse_json, read_text
    from taccl.placement.measured_gain import measure_gain

    refuse(options, (*_ORDERS, *_RULES, "hosts", "plot"), "found with --verify; leave it out")
    if is_first := is_first_rank():
        check_output(options)
    if (kinds := kinds_of(options.topology)) and "placement" not in kinds:
        said = wrong_kind(kinds[0], options.topology, "a placement, which -o writes")
        raise InputError(said, where=options.topology)
    placement = parse_json(read_text(options.topology), source=options.topology)
    with notes_shown(wanted=is_first) as note:
        given = {name: value for name, value in picked(options, "ranks", "repetitions").items() if value}
        found = measure_gain(placement, **given, note=note)
    text = str(found)
    if not found.is_forced:
        text += f"\n  the library chose its algorithm; the placement is for {found.algorithm}"
    answer = Answer(text, found.to_dict())
    if options.output is None:
        return answer
    return with_content(answer, options.output, json.dumps(found.to_dict(), indent=1) + "\n", options)


def _hosts(options: argparse.Namespace) -> tuple[Topology | ProbedHosts, list[str]]:
    """(topology or probe of the hosts, host name of each slot); the names are empty if no file has them."""
    from taccl.placement.hosts import ProbedHosts
    from taccl.placement.infiniband import load_infiniband
    from taccl.placement.launchers import read_hosts
    from taccl.placement.matrices import load_probe
    from taccl.placement.slurm import load_slurm

    named: list[str] = []
    topology: Topology | ProbedHosts
    known = format_in(options.topology)
    of_cluster = {"slurm-topology": load_slurm, "ibnetdiscover": load_infiniband}
    if known is not None and known.name in ("taccl-probe", "pair-matrix", *of_cluster):
        if known.name in of_cluster:
            # The file lists all hosts of the cluster, and a job has only some of them.
            wanted = None if options.hosts is None else read_hosts(options.hosts)
            probe = of_cluster[known.name](options.topology, hosts=wanted)
        else:
            probe = load_probe(options.topology)
        if known.name == "ibnetdiscover":
            said = "the file has the rates of all links; leave it out"
            refuse(options, ("oversubscription", "bandwidth"), said)
            options.oversubscription = 1
        given = {"oversubscription": options.oversubscription, "bandwidth_gb_per_s": options.bandwidth}
        given = {name: value for name, value in given.items() if value is not None}
        topology, named = ProbedHosts(probe, options.topology, given), list(probe.hosts)
    else:
        said = "a topology contains it; leave it out"
        refuse(options, ("oversubscription", "bandwidth"), said)
        topology = topology_from_word(options.topology, nodes=options.nodes)
    if options.hosts is not None:
        measured, named = named, read_hosts(options.hosts)
        if len(named) < topology.num_ranks:
            said = (
                f"found {format_count(len(named), 'slot')} for {topology.num_ranks} ranks; name one for each"
            )
            raise InputError(said, where="--hosts")
        listed = set(map(_short, named))
        for row, (host, slot) in enumerate(zip(measured, named, strict=False)):
            if _short(host) != _short(slot) and _short(host) in listed:
                said = f"found slot {row} on {shown(slot)}, and row {row} of the figures is of {shown(host)}"
                raise InputError(f"{said}; list one slot for each row, in the order of rows", where="--hosts")
    elif not named and (options.hostfile or options.rankfile):
        raise InputError("found no names of hosts; give them with --hosts", where="--hostfile")
    return topology, named


def _short(host: str) -> str:
    """Name of a host without its domain; an address stays whole."""
    name = host.partition(".")[0]
    return host if name.isdigit() else name


def _unused(named: list[str], num_ranks: int) -> list[str]:
    """List with one note on host slots that get no rank; empty if there are no more slots than ranks."""
    if len(named) <= num_ranks:
        return []
    used = set(named[:num_ranks])
    free = dict.fromkeys(name for name in named[num_ranks:] if name not in used)
    which = f", without {first_of([shown(name) for name in free], 4)}" if free else ""
    return [
        f"the host file has {len(named)} slots for {num_ranks} rows of figures: the first {num_ranks} are "
        f"used{which}; list one slot for each row if rows are hosts"
    ]


def _withheld(options: argparse.Namespace) -> list[str]:
    """Cancel the requested files because the gain is within noise; return a note for each file."""
    notes = []
    for name in (*_ORDERS, *_RULES):
        path = getattr(options, name)
        if path is not None:
            because = "the given order is kept"
            if name in _RULES:
                because = "its rules rest on figures within noise"
            notes.append(f"{path} is not written: {because} (--within-noise writes it)")
            setattr(options, name, None)
    return notes


def _launched(
    found: taccl.Placement, hosts: list[str], notes: list[str]
) -> tuple[taccl.Placement, list[str]]:
    """(placement in launchers' start order, notes); adds a note if `found` has ranks in another order."""
    from taccl.placement.launchers import as_launched

    started = as_launched(found, hosts)
    if started is not found:
        said = "launchers start the ranks of a host in slot order, which the figures above are for"
        if started.order == tuple(range(len(started.order))):
            said = "launchers start the ranks of a host in slot order, so the order found is of no use"
        judged = ", and judged," if found.judgement is not None and found.judgement.gains else ""
        notes = [*notes, f"{said}; the order found was simulated{judged} at {found.after_us:.6g} us"]
    return started, notes


def _start(
    found: taccl.Placement, hosts: list[str], options: argparse.Namespace, notes: list[str]
) -> list[str]:
    """Commands that start ranks with the host file or the rank file; adds caveats of all files to `notes`."""
    from taccl.placement.launchers import caveats, command
    from taccl.topology.models import library_name

    start = []
    if options.hostfile is not None:
        start.append(command(found, hosts, options.launcher, str(options.hostfile)))
        notes += caveats(found, hosts, options.launcher)
    if options.rankfile is not None:
        path = shlex.quote(str(options.rankfile))
        start.append(f"mpirun -n {len(found.order)} --map-by rankfile:FILE={path}")
        notes.append(
            "Open MPI ignores --bind-to for rank files, and before 5.0.10 starts nothing from them; "
            "--hostfile with --launcher openmpi keeps its binding, with earlier versions, too"
        )
    if options.nccl_tuner is not None:
        library, path = library_name(found.topology), shlex.quote(str(options.nccl_tuner))
        said = f"{library}'s example plugin reads NCCL_TUNER_CONFIG_FILE={path}"
        if library == "NCCL":
            said += (
                "; set NCCL_ALLGATHERV_ENABLE=0, as broadcasts of NCCL 2.29 use missing channels without it"
            )
        notes.append(said)
    return start


def _contents(found: taccl.Placement, hosts: list[str], options: argparse.Namespace) -> dict[str, str]:
    """{path: content} of the files for launchers and libraries that the options request."""
    from taccl.placement import files, launchers, nccl_table

    def choices(library: str) -> Any:
        return files.choose(found.hosts, options.collective, library=library, order=found.order)

    count, num_servers = len(found.order), len(set(hosts)) or None
    writers: dict[str, Callable[[], str]] = {
        "hostfile": lambda: launchers.hostfile(found, hosts, options.launcher),
        "rankfile": lambda: launchers.rankfile(found, hosts),
        "openmpi_rules": lambda: files.openmpi_rules(choices("openmpi"), count),
        "mpich_selection": lambda: files.mpich_selection(choices("mpich"), count, base=options.mpich_base),
        "nccl_tuner": lambda: nccl_table.nccl_tuner(found.topology, found.order, num_nodes=num_servers),
    }
    paths = {name: getattr(options, name) for name in writers}
    return {path: writers[name]() for name, path in paths.items() if path is not None}


def _text(found: taccl.Placement, hosts: list[str], start: list[str], notes: list[str]) -> str:
    from taccl.placement.launchers import slots_by_host

    names = [*map(str, range(found.hosts.num_ranks))]
    if hosts:
        names = list(hosts)
        for host, slots in slots_by_host(hosts).items():
            for number, slot in enumerate(slots if len(slots) > 1 else ()):
                names[slot] = f"{host}:{number}"  # a number tells apart several slots of one host
    order = " ".join(names[slot] for slot in found.order)
    lines = [found.title, table(found.times, indent="  "), ""]
    lines += [f"  {each}" for each in found.why.split("; ")]
    lines += [f"  note: {note}" for note in notes]
    lines += [f"  start by: {each}" for each in start]
    return "\n".join([*lines, "", f"hosts of ranks 0 to {len(found.order) - 1}: {order}"])
