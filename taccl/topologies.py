"""Topologies as a user finds them, at ``taccl.topologies``: machines, fabrics, files and graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taccl.topology.fabrics import fully_connected, hypercube, mesh, ring, star, torus
from taccl.topology.machines import dgx1, dgx2, dgx_a100, dgx_h100, ndv2
from taccl.topology.registry import fabric_names, machine_names, parse
from taccl.topology.topology import Topology, TopologyBuilder
from taccl.topology.transform import from_networkx

if TYPE_CHECKING:
    from os import PathLike

__all__ = [
    "Topology", "TopologyBuilder", "dgx1", "dgx2", "dgx_a100", "dgx_h100", "fabric_names", "from_networkx",
    "fully_connected", "hypercube", "load", "machine_names", "mesh", "ndv2", "parse", "ring", "star", "torus",
]  # fmt: skip


def load(path: str | PathLike[str]) -> Topology:
    """The topology in a TOML or JSON file; see `taccl.topology.files.load_topology`."""
    # The reader of files needs pydantic, which machines and fabrics do not wait for.
    from taccl.topology.files import load_topology

    return load_topology(path)
