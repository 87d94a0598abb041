"""Topology on which a log was measured, from the user's description or the GPUs that the log names."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from taccl._internal.names import first_of, in_runs, shown
from taccl._internal.units import format_count
from taccl.errors import AssumptionWarning, FormatError, InputError
from taccl.formats.registry import load_topology, takes_nodes
from taccl.measure.gpus import (
    NO_PEERS,
    UNNAMED,
    check_alike,
    has_no_peers,
    is_stand_in,
    machine_by_gpus,
    machines_by_gpus,
    unknown_gpus,
)
from taccl.measure.logs import read_log
from taccl.measure.machine import (
    COUNTABLE,
    assumed_rates,
    import_network,
    instance_of,
    modelled,
    nodes_of,
    port_mismatch,
    replaces,
    with_switches,
)
from taccl.measure.mismatch import rack_mismatch, without_nvlinks, wrong_ranks
from taccl.measure.predict import costs_of, known_machines
from taccl.measure.series import Log, Series
from taccl.topology.machines import SHAPES
from taccl.topology.profile_files import machine_of
from taccl.topology.registry import machine_names, parse
from taccl.topology.topology import Topology
from taccl.topology.transform import subset

#: `_TESTED_NODES`: max number of nodes of a published log that the model predicts (128 A100).
#: `_TESTED_RACKS`: max number of racks of a published log that the model predicts (GB200).
_TESTED_NODES, _TESTED_RACKS = 16, 3
#: First version of NCCL whose network the model follows (PXN, 2022).
_TESTED_VERSION = (2, 12)
#: Advice in notes on imported machines, in case their network is not of the assumed class.
_OTHER_NETWORK = "for another network, name the instance type (--topology)"
#: {network that a log names: beginnings of the classes of networks that it may be, beside its own}.
_ALSO_NAMED = {"roce": ("gib", "roce"), "libfabric": ("efa", "slingshot")}


class Machine(NamedTuple):
    """A user's description of the machine on which a log was measured.

    - `topology`: Name of a machine or instance type, path of a topology file, or a topology; None to choose
      the machine by the GPUs that a log names.
    - `nodes`: Number of nodes; None to take it from each log.
    - `ranks`, `without_ranks`: Subset of the ranks, by number in the whole machine.
    """

    topology: str | Topology | None
    nodes: int | None = None
    profile: str | None = None
    ranks: Collection[int] | None = None
    without_ranks: Collection[int] = ()


def read_logs(
    paths: Sequence[str | os.PathLike[str]], *, collective: str | None, in_place: bool
) -> list[Log]:
    """Read the logs of one GPU machine.

    Raises
    ------
    InputError
        If no log is given.
    FormatError
        If a log has nothing to read, the logs are of several kinds of GPUs, or they were measured on CPUs.
    """
    if not paths:
        raise InputError("found no log; give at least one file", where="logs")
    logs = [modelled(read_log(path, collective=collective, in_place=in_place)) for path in paths]
    check_alike(logs, "diagnose")
    for log in logs:
        on_cpu = [note for note in log.notes if note.startswith("measured ")]
        if on_cpu:
            raise FormatError(f"found times {on_cpu[0]}; expected a log of GPUs", where=log.path)
    return logs


def topology_of(
    series: Series, machine: Machine, gpus: Collection[str], named_network: str = ""
) -> tuple[Topology, list[str]]:
    """The topology that a series ran on, and notes on what was assumed.

    - `named_network`: Network between nodes that the log names (`DebugFacts.network`).

    Raises
    ------
    InputError
        If the machine is not known, or has another number of ranks than the log.
    """
    word, notes = _word(series, machine, gpus, named_network)
    if isinstance(word, Topology):
        whole = word
    else:
        whole, said = _whole(word, series, machine, gpus)
        notes += said
    if fault := without_nvlinks(whole, gpus):
        raise InputError(fault, where="topology")
    switched = with_switches(whole, gpus)
    notes += [f"assumed: {each}" for each in switched.assumed if each not in whole.assumed]
    notes += filter(None, (port_mismatch(whole, gpus), rack_mismatch(whole, gpus)))
    whole = switched
    if machine.topology is None and isinstance(word, str) and is_stand_in(word, gpus):
        notes.append(f"the GPUs are {_listed(gpus)}; {word}, whose links are alike, is assumed (--topology)")
    if has_no_peers(gpus) and whole.num_nodes == 1 and len(whole.ranks_of_node[0]) > 1:
        notes.append(f"{NO_PEERS}, often below the rate of PCIe")
    if whole.num_nodes > 1 and whole.machine:
        notes += _network_notes(whole.machine, named_network, is_chosen=machine.topology is not None)
    if many := _many_nodes(whole):
        notes.append(f"no published log has tested predictions on {many}")
    network = import_network(whole)
    if network is not None:
        reached = f"{network.efficiency:.0%} of the line rate of NICs"
        notes.append(f"{reached} is assumed to be reached, as on {network.name}; {_OTHER_NETWORK}")
    part, said = _taking_part(whole, series, machine)
    return part, notes + said


def _listed(gpus: Collection[str]) -> str:
    return first_of([shown(name, 60) for name in sorted(gpus)], 3)


def _word(
    series: Series, machine: Machine, gpus: Collection[str], named_network: str
) -> tuple[str | Topology, list[str]]:
    """The given topology, or the name of the machine or instance type with the GPUs of the log; and notes."""
    word = machine.topology or machine_by_gpus(gpus)
    if word is None and not gpus and machine.profile is not None and os.path.isfile(machine.profile):
        word = machine_of(machine.profile)
    if isinstance(word, str) and machine.topology is None and series.num_nodes != 1:
        instance = instance_of(word, named_network)
        if instance:
            said = f"the log names {named_network} as its network: {instance} is assumed (--topology)"
            return instance, [said]
    if word is not None:
        return word, []
    if several := machines_by_gpus(gpus):
        said = f"found {_listed(gpus)}, which {' and '.join(several)} have; name one of them"
        raise InputError(said, where="topology")
    known = unknown_gpus(gpus)
    named = f"no model of {_listed(gpus)}" if gpus else "no GPUs in the log"
    advice = (
        "give a topology file, such as the output of `nvidia-smi topo -m`, or the file that NCCL or RCCL "
        "writes with NCCL_TOPO_DUMP_FILE=topo.xml"
    )
    if not gpus or known == UNNAMED:
        advice = f"{advice}, or one of {', '.join(machine_names())}"
    raise InputError(f"found {named}{known and f': {known}'}; {advice}", where="topology")


def _whole(word: str, series: Series, machine: Machine, gpus: Collection[str]) -> tuple[Topology, list[str]]:
    """Topology of a name or file, with the number of nodes that is given or that the log shows, and notes."""
    nodes = machine.nodes or series.num_nodes or 1
    made = None if word in SHAPES else _made(word, nodes, machine.profile, gpus)
    node = SHAPES[word].ranks_per_node if made is None else len(made[0].ranks_of_node[0])
    is_assumed = machine.nodes is None and (node > COUNTABLE or not series.num_nodes) and series.num_ranks
    if is_assumed:
        nodes = nodes_of(series.num_ranks, node)
    if made is None or nodes != made[0].num_nodes:
        made = _made(word, nodes, machine.profile, gpus)
    whole, notes = made[0], [*made[1]]
    if is_assumed and nodes > 1 and not series.num_nodes:
        said = "the log does not list the hosts of all ranks"
        notes.append(f"{said}; {format_count(nodes, 'node')} assumed (--nodes)")
    if machine.nodes and series.num_nodes not in (0, machine.nodes) and node <= COUNTABLE:
        hosts = format_count(series.num_nodes, "host")
        notes.append(f"the log lists {hosts}, but {machine.nodes} nodes were given; check --nodes")
    return whole, notes


def _taking_part(whole: Topology, series: Series, machine: Machine) -> tuple[Topology, list[str]]:
    """Topology of the ranks that take part, and notes; `InputError` if their number is not the log's."""
    part = subset(whole, ranks=machine.ranks, without_ranks=machine.without_ranks)
    num = series.num_ranks or part.num_ranks
    if num > COUNTABLE:
        num = part.num_nodes * round(num / part.num_nodes)
    notes = []
    if part is whole and num < part.num_ranks and not num % part.num_nodes:
        each = num // part.num_nodes
        kept = [rank for ranks in whole.ranks_of_node for rank in ranks[:each]]
        part = subset(whole, ranks=kept)
        notes.append(f"the log has {num} of {whole.num_ranks} ranks; {in_runs(kept)} assumed (--ranks)")
    if part.num_ranks != num:
        raise InputError(wrong_ranks(whole, num, part.num_ranks), where=series.source)
    return part, notes


def _has_racks(topology: Topology) -> bool:
    """True if nodes are racks, which have more ranks than one host, even if only some of them take part."""
    known = SHAPES.get(topology.machine)
    return (known.ranks_per_node if known else len(topology.ranks_of_node[0])) > COUNTABLE


def _many_nodes(topology: Topology) -> str:
    """Number of nodes above which no published log confirms predictions; empty up to that number."""
    tested, what = (_TESTED_RACKS, "racks") if _has_racks(topology) else (_TESTED_NODES, "nodes")
    return f"more than {tested} {what}" if topology.num_nodes > tested else ""


def untested_kind(topology: Topology, version: Sequence[int]) -> str:
    """Kind of machine or library whose bandwidth no published log confirms; empty for other kinds.

    - `version`: Version of NCCL that the log states; empty if it states none.
    """
    is_old = topology.num_nodes > 1 and bool(version) and tuple(version[:2]) < _TESTED_VERSION
    old = f"NCCL {version[0]}.{version[1]} between nodes (update it and its plugin)" if is_old else ""
    return " and ".join(filter(None, (_many_nodes(topology), old)))


def untested_small(topology: Topology, version: Sequence[int]) -> str:
    """Kind of machine or library whose small messages no published log confirms; empty for other kinds."""
    if _has_racks(topology) and topology.num_nodes > 1:
        return "small messages between racks"
    return untested_kind(topology, version)


def _network_notes(machine: str, named: str, *, is_chosen: bool) -> list[str]:
    """Notes if the log names no network, or a network that the machine does not have.

    - `is_chosen`: True if the user named the machine, which then decides on the network.
    """
    if not named:
        return [] if is_chosen else [f"the log names no network; that of {machine} is assumed (--topology)"]
    if machine not in known_machines():
        return []
    own = costs_of(machine).network.name
    if own.startswith(named) or own.startswith(_ALSO_NAMED.get(named, ())):
        return []
    if not is_chosen and replaces(named, own):
        return [f"the log names RoCE, which is assumed with the NICs of {machine} (--topology)"]
    advice = "name the instance type (--topology)"
    if named == "sockets":
        advice = "they are slower; check NCCL_IB_DISABLE"
    return [f"the log names {named} as its network, but {own}, that of {machine}, is assumed; {advice}"]


def _made(
    word: str, nodes: int, profile: str | None, gpus: Collection[str]
) -> tuple[Topology, tuple[str, ...]]:
    """Topology `word` (a name or a file) of `nodes` nodes, and notes on rates that replace assumed ones.

    A machine that is given by name has in-switch reductions (NVLS) if its switches support them.
    """
    if os.path.isfile(word):
        if not takes_nodes(word):
            return load_topology(word), ()
        given: dict[str, Any] = {"nodes": nodes} if nodes > 1 else {}
        with warnings.catch_warnings():  # the warnings concern assumed rates, which are replaced
            warnings.simplefilter("ignore", AssumptionWarning)
            rates, notes = assumed_rates(load_topology(word, **given), gpus)
        found = load_topology(word, **given, **rates)
        # NCCL's rates replace the assumed ones, so the topology gets the profile of NCCL's own files.
        return found.changed(profile="nccl") if rates else found, notes
    if word in SHAPES:
        return parse(word, nodes=nodes, profile=profile, nvls=bool(SHAPES[word].nvls)), ()
    found = parse(word, nodes=nodes, profile=profile)
    shape = SHAPES.get(found.machine)
    if shape is None or not shape.nvls or any(len(link.dsts) > 1 for link in found.links):
        return found, ()
    return parse(word, nodes=nodes, profile=profile, nvls=True), ()
