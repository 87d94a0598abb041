"""Namespace ``taccl.topologies``: machines, fabrics, and topologies from files and graphs."""

from __future__ import annotations

import os
from os import PathLike
from typing import Any

from taccl._internal.arguments import checked_as
from taccl.errors import FormatError, TopologyError
from taccl.topology.builder import TopologyBuilder, from_networkx
from taccl.topology.fabrics import fully_connected, hypercube, mesh, multidim, ring, star, torus
from taccl.topology.in_network import InNetwork
from taccl.topology.machines import (
    a100_pcie,
    a800,
    b200,
    dgx1,
    dgx2,
    dgx_a100,
    dgx_h100,
    gb200_nvl72,
    gh200,
    h100_pcie,
    h200,
    h800,
    l40s,
    mi300x,
    mi350x,
    mi355x,
    ndv2,
    t4,
    v100_pcie,
)
from taccl.topology.racks import in_network, rack
from taccl.topology.registry import fabric_names, machine_names, parse
from taccl.topology.topology import Topology

__all__ = [
    "InNetwork", "Topology", "TopologyBuilder", "a100_pcie", "a800", "b200", "dgx1", "dgx2", "dgx_a100",
    "dgx_h100", "fabric_names", "from_networkx", "fully_connected", "gb200_nvl72", "gh200", "h100_pcie",
    "h200", "h800", "hypercube", "in_network", "l40s", "load", "machine_names", "mesh", "mi300x", "mi350x",
    "mi355x", "multidim", "ndv2", "parse", "rack", "ring", "star", "t4", "torus", "v100_pcie",
]  # fmt: skip


@checked_as(TopologyError)
def load(path: str | PathLike[str], *, protocol: str | None = None, **arguments: Any) -> Topology:
    """Load a topology from a file: TOML or JSON of taccl, or a file of another tool, recognised by content.

    Parameters
    ----------
    path : str or path
        The file.
    protocol : str, optional
        Protocol of messages, one of the profile of the file's machine.
    **arguments
        Data that files of other tools do not contain. See `load_nccl_topology`, `load_nvidia_smi` and
        `load_astra_network` in `taccl.formats`, and `load_probe_topology` in `taccl.placement.matrices`. For
        files of the published TACCL tool see `load_upstream_topology` in `taccl.sketch.upstream`.

    Raises
    ------
    InputError
        If the file cannot be read, it takes no such argument, or the machine lacks the protocol.
    """
    # Import late: readers of files need pydantic, which is slow to load and not needed for machines.
    from taccl.formats.registry import load_topology

    try:
        topology = load_topology(path, **arguments)
    except FormatError:
        named = str(path)
        if os.path.exists(path) or named.partition(":")[0] not in (*machine_names(), *fabric_names()):
            raise
        said = f"there is no such file, and load reads files; call taccl.topologies.parse({named!r})"
        raise FormatError(said, where=named) from None
    return topology if protocol is None else topology.under(protocol)
