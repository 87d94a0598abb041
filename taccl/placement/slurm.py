"""Fabrics from SLURM's ``topology.conf`` and ``topology.yaml``: hosts below switches, or in blocks.

The grammar is that of SLURM's manual pages topology.conf(5) and topology.yaml(5), version 26.11. The files
state which hosts share a switch or a block, but no rates or latencies: these are assumed, and listed as such.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl._internal.arguments import Number, checked
from taccl._internal.file_kinds import unquoted
from taccl._internal.names import shown
from taccl._internal.reading import read_text, reads
from taccl._internal.units import format_count
from taccl.errors import FormatError, InputError
from taccl.placement.hosts import USUAL_GB_PER_S, USUAL_LATENCY_US, USUAL_OVERSUBSCRIPTION
from taccl.placement.probe import Probe
from taccl.topology.topology import Topology

_KIND = "topology.conf or topology.yaml of Slurm"
#: `_MOST_NAMES`: maximum number of host names in one item of a host list, such as ``node[1-16]``.
#: `_MOST_HOSTS`: maximum number of hosts in a topology, which has a link for each pair.
_MOST_NAMES, _MOST_HOSTS = 100_000, 2048
#: Latency in us that each level of switches above the first adds; our choice.
_LEVEL_US = 2.0
#: Regular expression for a host name with lists of numbers in brackets, up to the next comma outside them.
_ITEM = re.compile(r"(?:[^\[\],\s]|\[[^\[\]]*\])+")
_PART = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
#: Prompt of a shell, with its command, above and below what `scontrol show topology` prints.
_PROMPT = re.compile(r"\s*(?:\[?[\w.-]+@[\w.-]+[^=$#%>]{0,99})?[$#%>](?: .*)?")
#: Key of a ConfigMap of Kubernetes below which a file of SLURM stands, as NVIDIA's Topograph writes it.
_KEY = re.compile(r"^([ \t]*)topology\.(?:conf|yaml):[ \t]*\|[-+]?[ \t]*$", re.MULTILINE)
_WORD = re.compile(r"(\w+)\s*=\s*(\S+)")
#: Topology plugins that describe neither switches nor blocks.
_OTHERS = ("ring", "torus3d")


class Group(NamedTuple):
    """A switch or block: its own hosts, and the switches directly below it."""

    hosts: tuple[str, ...]
    children: tuple[str, ...] = ()


class Fabric(NamedTuple):
    """One topology in a SLURM topology file, or an InfiniBand fabric.

    - `groups`: {name: switch or block}, in the order of the file; empty for a flat topology.
    - `sizes`: Block sizes in hosts, the base size first; empty for switches.
    - `notes`: Decisions made while reading.
    """

    groups: dict[str, Group]
    sizes: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


def expand_hosts(expression: str) -> Iterator[str]:
    """Host names in a SLURM host list, such as ``"node[01-16,20],login"``.

    An item may have several pairs of brackets; numbers keep the width of the first number of their range.

    Raises `InputError` for unbalanced brackets and descending ranges.
    """
    text = "".join(expression.split())
    if ",".join(items := _ITEM.findall(text)) != text.strip(","):
        raise InputError(f"found {shown(repr(expression), 60)}; expected a list such as node[01-16,20]")
    for item in items:
        parts = [
            [literal] if literal else [*_numbers(numbers, item)] for numbers, literal in _PART.findall(item)
        ]
        if prod(map(len, parts)) > _MOST_NAMES:
            raise InputError(f"found more than {_MOST_NAMES} names in {shown(item, 60)}; expected fewer")
        yield from map("".join, product(*parts))


def _numbers(text: str, item: str) -> Iterator[str]:
    for each in text.split(","):
        found = _RANGE.fullmatch(each)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if last - first >= _MOST_NAMES:
            raise InputError(f"found more than {_MOST_NAMES} names in {shown(item, 60)}; expected fewer")
        if found is None or last < first:
            said = f"found {shown(repr(each), 60)} in {shown(item, 60)}; expected a number, or a rising range"
            raise InputError(f"{said} such as 01-16")
        for number in range(first, last + 1):
            yield f"{number:0{len(found[1])}}"


@checked
@reads(_KIND)
def load_slurm(
    path: str | os.PathLike[str], *, topology: str | None = None, hosts: Sequence[str] | None = None
) -> Probe:
    """Probe with the hosts of a SLURM topology file and its switches or blocks as clusters.

    The file states no latencies: they are assumed.

    - `topology`: Name of a topology in a ``topology.yaml``; default: the cluster's default, or the first.
    - `hosts`: Hosts to keep, such as those of a job, in rank order; a host with several ranks is repeated.
      Default: all, in the order of the file.

    Raises `FormatError` if the file is neither of the two, or describes a ring or a torus. Raises
    `InputError` if a host is not in the file, or there are fewer than two or more than 2,048 hosts.
    """
    where = os.fspath(path)
    text = _in_config_map(unquoted(read_text(path)))
    is_yaml = re.search(r"^\s*-\s+topology\s*:", text, re.MULTILINE) is not None
    fabric = _of_yaml(text, topology, where) if is_yaml else _of_conf(text, topology, where)
    return probe_of(fabric, hosts, where)


def probe_of(fabric: Fabric, hosts: Sequence[str] | None, where: str) -> Probe:
    """Probe with the hosts of a fabric, or some of them, its groups as clusters, and assumed latencies."""
    parts = _partitions(fabric, where)
    known = list(dict.fromkeys(host for part in parts for group in part for host in group))
    chosen = known if hosts is None else list(hosts)
    if unknown := sorted(set(chosen) - set(known)):
        said = f"found no host {shown(unknown[0], 60)} in {shown(where, 60)}, which has {len(known)} hosts"
        raise InputError(f"{said} such as {shown(known[0], 60)}; correct the name", where="hosts")
    if not 2 <= len(chosen) <= _MOST_HOSTS:
        said = f"found {format_count(len(chosen), 'host')}; expected 2 to {_MOST_HOSTS}"
        raise InputError(f"{said}; name those of the job (--hosts)", where="hosts")
    clusters, depth, num_parts = _clusters(parts, chosen)
    times = Counter(host for group in parts[0] for host in group)
    if shared := next((host for host in dict.fromkeys(chosen) if times[host] > 1), None):
        said = f"switches that share hosts, such as {shown(shared, 60)}, form one cluster"
        fabric = fabric._replace(notes=(*fabric.notes, said))
    innermost = "a host" if len(set(chosen)) < len(chosen) else "the innermost switch or block"
    assumed = [*fabric.notes, f"latencies {USUAL_LATENCY_US:g} us inside {innermost}"]
    if clusters:
        assumed[-1] += f", and {_LEVEL_US:g} us more for each level above"
    if num_parts > 1:
        assumed.append(f"a path between {num_parts} parts of the fabric, as the file has none")
    return Probe(
        tuple(chosen), USUAL_LATENCY_US + _LEVEL_US * depth, clusters=clusters, assumed=tuple(assumed)
    )


@checked
def load_slurm_topology(
    path: str | os.PathLike[str],
    *,
    topology: str | None = None,
    hosts: Sequence[str] | None = None,
    bandwidth_gb_per_s: Number = USUAL_GB_PER_S,
    oversubscription: Number = USUAL_OVERSUBSCRIPTION,
) -> Topology:
    """Topology of a fabric in a SLURM topology file; see `load_slurm` and `Probe.topology`."""
    return load_slurm(path, topology=topology, hosts=hosts).topology(
        name=Path(path).stem, bandwidth_gb_per_s=bandwidth_gb_per_s, oversubscription=oversubscription
    )


def _in_config_map(text: str) -> str:
    """File of SLURM inside a ConfigMap of Kubernetes, below as many empty lines; other text as it is."""
    head = _KEY.search(text)
    if head is None:
        return text
    lines = text[head.end() :].splitlines()[1:]
    outside = (i for i, line in enumerate(lines) if line.strip() and not line.startswith(f"{head[1]} "))
    return "\n" * (text.count("\n", 0, head.end()) + 1) + dedent("\n".join(lines[: next(outside, None)]))


def _of_conf(text: str, topology: str | None, where: str) -> Fabric:
    """Fabric of a ``topology.conf``, or of ``scontrol show topology``: one switch or block per line.

    The command also prints aggregated blocks; the sizes in its lines are the block sizes of the fabric.
    """
    if topology is not None:
        said = f"found {shown(topology, 60)}, but a topology.conf has one topology without a name"
        raise InputError(f"{said}; leave it out", where="topology")
    groups: dict[str, Group] = {}
    sizes: tuple[int, ...] = ()
    printed: set[str] = set()
    kinds = set()
    for number, line in enumerate(re.sub(r"\\\r?\n", " ", text).splitlines(), 1):
        words = "" if _PROMPT.fullmatch(line) else line.partition("#")[0].strip()
        here = f"{where}: line {number}"
        fields = {key.lower(): value.strip("\"'") for key, value in _WORD.findall(words)}
        if not words:
            continue
        if not fields or _WORD.sub("", words).strip():
            said = f"found {shown(repr(words), 60)}; expected SwitchName=NAME Nodes=LIST, Switches=LIST or "
            raise FormatError(f"{said}BlockName=NAME Nodes=LIST", where=here)
        if "blocksizes" in fields:
            sizes = _sizes(fields.pop("blocksizes").split(","), here)
        if "blocksize" in fields:
            printed.add(fields["blocksize"])
        if fields and "aggregatedblock" not in fields:
            kind = next(iter(fields))
            kinds.add(kind)
            if kind not in ("switchname", "blockname") or len(kinds) > 1:
                said = f"found {shown(words.partition('=')[0], 60)}; expected SwitchName or BlockName alone"
                raise FormatError(f"{said} at the beginning of lines", where=here)
            below = {key: fields.get(key, "") for key in ("nodes", "switches")}
            is_block = kind == "blockname"
            _add(groups, fields[kind], below["nodes"], below["switches"], here, is_block=is_block)
    if printed:
        sizes = _sizes(sorted(printed, key=lambda size: (len(size), size)), where)
    return Fabric(groups, sizes)


def _of_yaml(text: str, topology: str | None, where: str) -> Fabric:
    """Read one fabric of a ``topology.yaml``: the named one, else the cluster's default, else the first."""
    import yaml

    try:
        every = yaml.safe_load(text)
    except yaml.YAMLError as error:
        said = " ".join(str(error).split())
        raise FormatError(f"found invalid YAML: {shown(said, 200)}; correct it", where=where) from None
    if not isinstance(every, list) or not all(
        isinstance(each, dict) and "topology" in each for each in every
    ):
        raise FormatError("found no list of topologies; expected `- topology: NAME` for each", where=where)
    names = [str(each["topology"]) for each in every]
    if topology is not None and topology not in names:
        said = f"found no topology {shown(topology, 60)}; expected one of {', '.join(names)[:200]}"
        raise InputError(said, where="topology")
    default = next((n for n, each in enumerate(every) if each.get("cluster_default") is True), 0)
    at = default if topology is None else names.index(topology)
    chosen, here = every[at], f"{where}: topology {shown(names[at], 60)}"
    others = names[:at] + names[at + 1 :]
    notes = (
        (f"topology {names[at]} of the file is read, of {len(names)}",) if others and topology is None else ()
    )
    kinds = [kind for kind in ("block", "flat", *_OTHERS, "tree") if chosen.get(kind, False) is not False]
    if len(kinds) > 1:
        said = f"found {' and '.join(kinds)} in one topology; expected one of them, as Slurm does"
        raise FormatError(f"{said}; take the others out", where=here)
    groups: dict[str, Group] = {}
    for kind, listed, below in (("tree", "switches", "switch"), ("block", "blocks", "block")):
        if kind not in chosen:
            continue
        table = chosen[kind]
        if not isinstance(table, dict) or not isinstance(table.get(listed), list):
            raise FormatError(f"found no list {listed} in {kind}; expected one", where=here)
        for each in table[listed]:
            if not isinstance(each, dict) or below not in each:
                said = f"found {shown(repr(each), 60)}; expected `{below}: NAME` and `nodes: LIST`"
                raise FormatError(said, where=here)
            nodes, children = (_listed(each.get(name)) for name in ("nodes", "children"))
            _add(groups, str(each[below]), nodes, children, here, is_block=kind == "block")
        sizes = table.get("block_sizes", [])
        return Fabric(groups, _sizes(sizes if isinstance(sizes, list) else [sizes], here), notes)
    kind = next((name for name in (*_OTHERS, "flat") if name in chosen), "none of them")
    said = f"found {kind}; expected tree or block"
    if kind == "flat":
        said += ", as a flat topology does not say which hosts are near each other"
    raise FormatError(f"{said}; measure with `taccl probe` instead", where=here)


def _listed(value: Any) -> str:
    """Host list in YAML (text, a number, or a list of these) as comma-separated text."""
    return ",".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)


def _sizes(values: Iterable[Any], where: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(each) for each in values)
    except (TypeError, ValueError):
        raise FormatError("found block sizes that are not numbers; correct them", where=where) from None
    times = [b / a for a, b in zip(sizes, sizes[1:], strict=False) if a > 0]
    if any(each < 1 for each in sizes) or any(each not in (2.0**k for k in range(1, 20)) for each in times):
        said = f"found block sizes {', '.join(map(str, sizes))}"
        raise FormatError(f"{said}; expected each a power of two times the one before", where=where)
    return sizes


def _add(
    groups: dict[str, Group], name: str, nodes: str, switches: str, where: str, *, is_block: bool
) -> None:
    """Add a switch or a block to `groups`, with its host lists expanded.

    A block without hosts is kept, as blocks are aggregated by their positions in the file.
    """
    if name in groups:
        raise FormatError(f"found {shown(name, 60)} twice; name each switch or block once", where=where)
    try:
        groups[name] = Group(*(tuple(expand_hosts(each)) for each in (nodes, switches)))
    except InputError as error:
        raise FormatError(error.message, where=where) from None
    if not any(groups[name]) and not is_block:
        said = f"found {shown(name, 60)} without Nodes and Switches; list what is below it"
        raise FormatError(said, where=where)


def _partitions(fabric: Fabric, where: str) -> list[list[tuple[str, ...]]]:
    """Hosts of each switch or block, level by level, the innermost first."""
    groups = fabric.groups
    if fabric.sizes or not any(each.children for each in groups.values()):
        blocks = [each.hosts for each in groups.values()]
        levels = [blocks]
        for size in fabric.sizes[1:]:
            together = size // fabric.sizes[0]
            levels.append([sum(blocks[at : at + together], ()) for at in range(0, len(blocks), together)])
        return levels
    height, below = _heights(groups, where)
    return [
        [below[name] for name in groups if height[name] == level] for level in range(max(height.values()) + 1)
    ]


def _heights(groups: Mapping[str, Group], where: str) -> tuple[dict[str, int], dict[str, tuple[str, ...]]]:
    """Level of each switch (0 if it has only hosts below it), and all hosts below each switch."""
    height: dict[str, int] = {}
    below: dict[str, tuple[str, ...]] = {}
    waiting = dict(groups)
    while waiting:
        ready = [name for name, each in waiting.items() if all(child in height for child in each.children)]
        if not ready:
            name, each = next(iter(waiting.items()))
            missing = [child for child in each.children if child not in groups]
            said = f"found switch {shown(name, 60)} above " + (
                f"{shown(missing[0], 60)}, which is not defined" if missing else "itself"
            )
            raise FormatError(f"{said}; correct its Switches", where=where)
        for name in ready:
            each = waiting.pop(name)
            height[name] = 1 + max((height[child] for child in each.children), default=-1)
            inside = (*each.hosts, *(host for child in each.children for host in below[child]))
            below[name] = tuple(dict.fromkeys(inside))
    return height, below


def _clusters(
    parts: Sequence[Sequence[tuple[str, ...]]], hosts: Sequence[str]
) -> tuple[tuple[tuple[int, ...], ...], NDArray[np.float64], int]:
    """(cluster of every host by level, number of levels that separate two hosts, number of unjoined parts).

    Hosts are in one cluster of a level if a chain of switches up to that level joins them. So clusters
    nest even if a switch has several parents. Levels that separate no hosts, or all, are left out. If hosts
    repeat, the innermost clusters are the ranks of one host.
    """
    places: dict[str, list[int]] = {}
    for number, host in enumerate(hosts):
        places.setdefault(host, []).append(number)
    joined = np.arange(len(hosts))
    clusters: list[tuple[int, ...]] = []
    depth = np.zeros((len(hosts), len(hosts)))
    for level in ([(host,) for host in places], *parts):
        for group in level:
            inside = [number for host in group for number in places.get(host, ())]
            joined[np.isin(joined, joined[inside])] = joined[inside].min(initial=len(hosts))
        labels = np.unique(joined, return_inverse=True)[1]
        told = tuple(labels.tolist())
        if 0 < labels.max() < len(hosts) - 1 and told not in clusters:
            clusters.append(told)
            depth += labels[:, None] != labels
    return tuple(clusters), depth, len(np.unique(joined))
