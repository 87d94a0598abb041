"""Files of servers for several tests, and figures of the topologies that are imported from them."""

from __future__ import annotations

import warnings

import taccl
from taccl.errors import AssumptionWarning


def load_quietly(path, **arguments):
    """Topology of a file, loaded without the warning that lists its assumptions."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AssumptionWarning)
        return taccl.topologies.load(path, **arguments)


def write_dump(tmp_path, *devices, version=1):
    """NCCL's dump of one CPU with the given XML devices below it."""
    path = tmp_path / "dump.xml"
    path.write_text(f'<system version="{version}"><cpu numaid="0">{"".join(devices)}</cpu></system>')
    return path


def holders(topology, name):
    """(source, destination) of the links that hold a resource."""
    return {
        (topology.links[h.link].src, topology.links[h.link].dst)
        for h in topology.holds
        if topology.resources[h.resource].name == name
    }
