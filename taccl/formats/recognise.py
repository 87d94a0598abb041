"""What a file holds, by its content: names in the table of formats, and the topologies of other tools.

The marks by which formats are told are those of `taccl.formats.table`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from taccl.errors import FormatError
from taccl.formats.registry import format_of_content

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from taccl.topology.topology import Topology

__all__ = [
    "ASTRA_NETWORK", "FOREIGN_TOPOLOGIES", "MSCCL_XML", "NCCL_TOPOLOGY", "NVIDIA_SMI", "TACCL_SCHEDULE",
    "UPSTREAM_ALGORITHM", "foreign_topology", "recognise",
]  # fmt: skip

TACCL_SCHEDULE = "taccl-schedule"
UPSTREAM_ALGORITHM = "upstream-algorithm"
NCCL_TOPOLOGY = "nccl-topology"
NVIDIA_SMI = "nvidia-smi"
ASTRA_NETWORK = "astra-sim-network"
MSCCL_XML = "msccl-xml"

FOREIGN_TOPOLOGIES = (NCCL_TOPOLOGY, NVIDIA_SMI, ASTRA_NETWORK)


def recognise(path: str | os.PathLike[str]) -> str:
    """The name of the format that a file is in: see `format_of_content`."""
    return format_of_content(path).name


def foreign_topology(path: str | os.PathLike[str]) -> tuple[str, Callable[..., Topology]] | None:
    """What another tool's topology file is, and the function that reads it; None of any other file.

    Raises
    ------
    InputError
        If the file cannot be read.
    """
    try:
        found = format_of_content(path)
    except FormatError:
        return None
    if found.name not in FOREIGN_TOPOLOGIES:
        return None
    module, _, function = found.load.partition(":")
    return found.name, getattr(import_module(module), function)
