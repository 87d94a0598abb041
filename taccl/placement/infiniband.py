"""Fabrics from the output of ``ibnetdiscover``: hosts below InfiniBand switches, and the rates of all links.

The formats are those of the manual page ibnetdiscover(8), also with ``-p`` (a line for each port).
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from taccl._internal.arguments import checked
from taccl._internal.file_kinds import unquoted
from taccl._internal.graph_algorithms import maximum_flow
from taccl._internal.names import first_of, shown
from taccl._internal.reading import read_text, reads
from taccl.errors import FormatError
from taccl.placement.probe import Probe
from taccl.placement.slurm import Fabric, Group, probe_of
from taccl.topology.topology import Topology

#: {speed: data rate of one lane in Gb/s}.
_LANE_GBIT = {
    "SDR": 2.0, "DDR": 4.0, "QDR": 8.0, "FDR10": 10.0, "FDR": 13.64, "EDR": 25.0, "HDR": 50.0, "NDR": 100.0,
    "XDR": 200.0,
}  # fmt: skip
#: Header of a device's ports: its GUID.
_DEVICE = re.compile(r'^(Switch|Ca|Rt)\s+\d+\s+"([SHR])-0*([0-9a-f]+)"')
#: Port of a switch: its number, and kind, GUID and description of the device behind it, width and speed.
_PORT = re.compile(
    r'^\[(\d+)\](?:\[ext \d+\])?\s+"([SHR])-0*([0-9a-f]+)"\[\d+\].*?#\s*"([^"]*)".*?\b(\d{1,2})x(\w+)'
)
#: The same with ``-p``: port and GUID of the switch, width, speed, kind and GUID behind, both descriptions.
_LINE = re.compile(
    r"^SW\s+\d+\s+(\d+)\s+0x0*([0-9a-f]+)\s+(\d{1,2})x\s+(\w+)\s+-\s+(SW|CA|RT)\s+\d+\s+\d+\s+0x0*([0-9a-f]+)\s+"
    r"\(\s*'.*?'\s+-\s+'(.*?)'\s*\)"
)
#: {kind of a device with ``-p``: its kind otherwise}: switches, adapters of hosts and routers.
_KIND_OF = {"SW": "S", "CA": "H", "RT": "R"}
#: Description of an adapter: its host, and its name.
_ADAPTER = re.compile(r"\s*([A-Za-z0-9][\w.-]*)(?:\s+\S+)?\s*")
#: Description of the adapter of a switch that reduces (SHARP), which is no host.
_REDUCES = "Aggregation Node"
#: Max characters of a line that are read; descriptions have at most 64, and patterns take quadratic time.
_MOST_CHARACTERS = 500
#: Number of capacity units per Gb/s, as flows are whole numbers.
_UNITS = 10


class _Cabling(NamedTuple):
    """Cables of a fabric.

    - `between`: {(switch, switch): Gb/s of all links between them}, in both directions.
    - `to_host`: {(switch, host): Gb/s of all links}.
    - `nameless`: Descriptions of adapters that name no host.
    - `lacking`: Number of switches that others link to, but whose own ports the file lacks.
    """

    between: dict[tuple[str, str], float]
    to_host: dict[tuple[str, str], float]
    nameless: list[str]
    lacking: int


@checked
@reads("output of ibnetdiscover")
def load_infiniband(path: str | os.PathLike[str], *, hosts: Sequence[str] | None = None) -> Probe:
    """Probe with the hosts of an InfiniBand fabric, clusters by its switches, and rates by its links.

    A host's rate is the sum of its links. Several ranks of a host share it. The uplink of a cluster is a
    maximum flow to the other hosts, for any routes; uplinks that cannot limit the cluster are left out.
    Latencies are assumed.

    - `hosts`: Hosts to keep, such as those of a job, in rank order; a host with several ranks is repeated.
      Default: all, in the order of the file.

    Raises `FormatError` if the file has no switch with hosts, or a link of unknown speed. Raises `InputError`
    if a host is not in the file, or there are fewer than two or more than 2,048 hosts.
    """
    where = os.fspath(path)
    cabling = _cabling(unquoted(read_text(path)), where)
    probe = probe_of(_fabric(cabling, where), hosts, where)
    ranks_of = Counter(probe.hosts)
    gbit: dict[str, float] = defaultdict(float)
    for (_, host), each in cabling.to_host.items():
        gbit[host] += each
    rate = np.array([gbit[host] / ranks_of[host] / 8 for host in probe.hosts])
    uplinks = tuple(_uplinks(cabling, probe, rate))
    assumed = [*probe.assumed, f"ranks send at the data rates of their hosts' links, {_span(rate)} GB/s"]
    if uplinks:
        span = _span(np.array([each for _, each in uplinks]))
        assumed.append(f"clusters send to the others at {span} GB/s, a maximum flow over all links")
    return replace(
        probe, bandwidth_gb_per_s=np.minimum.outer(rate, rate), assumed=tuple(assumed), uplinks=uplinks
    )


@checked
def load_infiniband_topology(path: str | os.PathLike[str], *, hosts: Sequence[str] | None = None) -> Topology:
    """Topology of an InfiniBand fabric; see `load_infiniband` and `Probe.topology`."""
    return load_infiniband(path, hosts=hosts).topology(name=Path(path).stem, oversubscription=1)


def _span(values: np.ndarray) -> str:
    least, most = f"{values.min():.4g}", f"{values.max():.4g}"
    return least if least == most else f"{least} to {most}"


def _cabling(text: str, where: str) -> _Cabling:
    """Links of all switches; the ports of one end suffice."""
    ports: dict[tuple[str, str], tuple[str, str, str, float]] = {}
    switch = ""
    for number, whole in enumerate(text.splitlines(), 1):
        line = whole[:_MOST_CHARACTERS]
        if (device := _DEVICE.match(line)) is not None:
            switch = device[3] if device[1] == "Switch" else ""
        elif (found := _PORT.match(line)) is not None and switch:
            at, kind, peer, description, width, speed = found.groups()
            ports[switch, at] = kind, peer, description, _gbit(width, speed, f"{where}: line {number}")
        elif (found := _LINE.match(line)) is not None:
            at, own, width, speed, kind, peer, description = found.groups()
            ports[own, at] = _KIND_OF[kind], peer, description, _gbit(width, speed, f"{where}: line {number}")
    one_way: dict[tuple[str, str], float] = defaultdict(float)
    to_host: dict[tuple[str, str], float] = defaultdict(float)
    nameless = []
    for (own, _), (kind, peer, description, gbit) in ports.items():
        if kind == "S":
            one_way[own, peer] += gbit
        elif kind == "H" and (host := _ADAPTER.fullmatch(description)) is not None:
            to_host[own, host[1]] += gbit
        elif kind == "H" and _REDUCES not in description:
            nameless.append(description)
    between = {
        ends: max(one_way.get(ends, 0.0), one_way.get(ends[::-1], 0.0))
        for pair in one_way
        for ends in (pair, pair[::-1])
    }
    lacking = {name for pair in between for name in pair} - {own for own, _ in ports}
    return _Cabling(between, to_host, nameless, len(lacking))


def _gbit(width: str, speed: str, where: str) -> float:
    """Data rate of a link in Gb/s; `FormatError` if its speed is unknown."""
    if speed not in _LANE_GBIT:
        said = f"found a link of speed {shown(speed, 30)}; expected one of {', '.join(_LANE_GBIT)}"
        raise FormatError(said, where=where)
    return int(width) * _LANE_GBIT[speed]


def _fabric(cabling: _Cabling, where: str) -> Fabric:
    """Switches as groups: each with its hosts, and the switches that are one link nearer to hosts.

    A link between switches at equal distance from hosts counts as a switch above both.
    """
    hosts: dict[str, dict[str, None]] = {}
    for switch, host in cabling.to_host:
        hosts.setdefault(switch, {})[host] = None
    if not hosts:
        said = (
            "found no switch with hosts; expected the output of ibnetdiscover, which names hosts behind ports"
        )
        raise FormatError(f"{said}; save it whole", where=where)
    near: dict[str, list[str]] = {}
    for switch, peer in cabling.between:
        near.setdefault(switch, []).append(peer)
    distance = dict.fromkeys(hosts, 0)
    order = list(hosts)
    for switch in order:
        new = [peer for peer in dict.fromkeys(near.get(switch, ())) if peer not in distance]
        distance |= dict.fromkeys(new, distance[switch] + 1)
        order += new
    groups = {
        switch: Group(
            tuple(hosts.get(switch, ())),
            tuple(peer for peer in near.get(switch, ()) if distance.get(peer) == distance[switch] - 1),
        )
        for switch in order
    }
    notes = []
    if cabling.lacking:
        said = f"switches without ports in the file: {cabling.lacking}, so hosts may be missing"
        notes.append(f"{said}; save the output whole")
    if cabling.nameless:
        told = first_of([shown(each, 40) for each in dict.fromkeys(cabling.nameless)], 3)
        notes.append(f"adapters whose descriptions name no host are left out: {told}")
    level = [(a, b) for a, b in cabling.between if a < b and distance.get(a, -1) == distance.get(b)]
    groups |= {f"{a} {b}": Group((), (a, b)) for a, b in level}
    if level:
        notes.append("links between switches of one level join them one level further up")
    return Fabric(groups, (), tuple(notes))


def _uplinks(cabling: _Cabling, probe: Probe, rate: np.ndarray) -> list[tuple[tuple[int, ...], float]]:
    """[(ranks of a cluster, GB/s out of it)] of the clusters whose links to others carry less than they send.

    - `rate`: GB/s of each rank.
    """
    switches: Mapping[str, int] = {
        name: number
        for number, name in enumerate(dict.fromkeys(name for pair in cabling.between for name in pair))
    }
    arcs = [(switches[a], switches[b], round(gbit * _UNITS)) for (a, b), gbit in cabling.between.items()]
    source, sink, most = len(switches), len(switches) + 1, sum(width for *_, width in arcs)
    at: dict[str, set[int]] = {}
    for switch, host in cabling.to_host:
        if switch in switches:
            at.setdefault(host, set()).add(switches[switch])
    found: dict[tuple[int, ...], float] = {}
    for labels in map(np.array, probe.clusters or ()):
        for label in range(labels.max() + 1):
            ranks = tuple(np.flatnonzero(labels == label).tolist())
            inside = {switch for rank in ranks for switch in at.get(probe.hosts[rank], ())}
            outside = {
                each for rank in np.flatnonzero(labels != label) for each in at.get(probe.hosts[rank], ())
            }
            if inside & outside or not inside or not outside:
                continue
            ends = [(source, each, most) for each in inside] + [(each, sink, most) for each in outside]
            src, dst, width = np.array(arcs + ends).T
            flow, _ = maximum_flow(
                len(switches) + 2, src, dst, width, source, sink, num_flows=labels.max() + 1
            )
            if 0 < (passes := flow / _UNITS / 8) < rate[list(ranks)].sum():
                found[ranks] = passes
    return list(found.items())
