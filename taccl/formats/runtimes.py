"""Runtimes that load files of programs: their protocols, limits and names, by version of their sources.

- ``msccl``: microsoft/msccl, a fork of NCCL 2.12.12; reads MSCCL XML.
- ``msccl-executor``: Azure/msccl-executor-nccl, on NCCL 2.23.4; reads MSCCL XML.
- ``rccl``: RCCL 2.21.5 (ROCm 6.3) up to 2.27.7 (ROCm 7.2); reads MSCCL XML. 2.28.3 (ROCm 7.13) removed it.
- ``mscclpp``: MSCCL++ 0.10; reads execution plans.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from taccl._internal.arguments import known_name
from taccl.topology.topology import Topology


@dataclass(frozen=True, slots=True)
class Runtime:
    """One runtime.

    - `title`: Its name in sentences.
    - `protocols`: Its protocols, a subset of `taccl.program.program.PROTOCOLS`.
    - `max_steps`: Max steps per threadblock that its parser of MSCCL XML accepts, including steps that only
      wait.
    - `max_threadblocks`: Max threadblocks of a rank.
    - `max_channels`: Max channels of a program (``MAXCHANNELS``).
    - `max_files`: Max files that it loads; None if there is no limit that plans reach.
    - `renamed`: {MSCCL's name of a collective: the runtime's name}.
    - `takes_custom`: True if it accepts custom collectives.
    - `includes_most`: True if it also uses a file at its largest size.
    """

    name: str
    title: str
    protocols: tuple[str, ...] = ("Simple", "LL", "LL128")
    max_steps: int = 256
    max_threadblocks: int = 216
    max_channels: int = 32
    max_files: int | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)
    takes_custom: bool = True
    includes_most: bool = False

    @property
    def reads_xml(self) -> bool:
        """True if it reads MSCCL XML."""
        return self.name != "mscclpp"


#: Collectives that PyTorch calls in place, and those that it calls both in place and out of place.
USUALLY_IN_PLACE, IN_BOTH_PLACES = ("allreduce", "reduce", "broadcast"), ("allgather", "reduce-scatter")

_RENAMED = {"reduce_scatter": "reducescatter"}
RUNTIMES = {
    each.name: each
    for each in (
        Runtime("msccl", "MSCCL", max_files=4),
        Runtime(
            "msccl-executor", "the MSCCL executor", max_steps=64, max_threadblocks=1024, renamed=_RENAMED,
            takes_custom=False, includes_most=True,
        ),
        Runtime(
            "rccl", "RCCL", max_steps=64, max_threadblocks=64, max_channels=128, renamed=_RENAMED,
            takes_custom=False, includes_most=True,
        ),
        Runtime("mscclpp", "MSCCL++", protocols=("Simple", "LL")),
    )
}  # fmt: skip


def runtime_named(word: str, *, xml: bool = False) -> Runtime:
    """Runtime by name, ignoring case and dashes.

    - `xml`: True to accept only runtimes that read MSCCL XML.

    Raises `InputError` if there is none.
    """
    known = [each.name for each in RUNTIMES.values() if each.reads_xml or not xml]
    return RUNTIMES[known_name(word.replace("++", "pp"), known, "runtime")]


def usual_runtimes(topology: Topology) -> tuple[Runtime, ...]:
    """Usual runtimes for a machine: RCCL if it has AMD GPUs by its name, else MSCCL; and MSCCL++."""
    is_amd = re.match(r"mi\d", topology.machine or topology.name, re.IGNORECASE) is not None
    return RUNTIMES["rccl" if is_amd else "msccl"], RUNTIMES["mscclpp"]
