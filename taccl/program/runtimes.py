"""Runtimes that load files of programs: protocols, names and limits, and what a program has beyond these.

Versions of their sources:

- ``msccl``: microsoft/msccl, a fork of NCCL 2.12.12; reads MSCCL XML.
- ``msccl-executor``: Azure/msccl-executor-nccl, on NCCL 2.23.4; reads MSCCL XML.
- ``rccl``: RCCL 2.21.5 (ROCm 6.3) up to 2.27.7 (ROCm 7.2); reads MSCCL XML. 2.28.3 (ROCm 7.13) removed it.
- ``mscclpp``: MSCCL++ 0.9.0; reads execution plans.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

from taccl._internal.arguments import known_name
from taccl.program.program import Program
from taccl.program.split import weight
from taccl.topology.topology import Topology
from taccl.topology.tuning import KERNEL_LAUNCH_US

#: Limits of the parsers and kernels of MSCCL XML: number of a threadblock that a step waits for, peers over
#: one channel, chunks per message, and elements of a rank.
MAX_DEPENDED_ID, MAX_PEERS, MAX_COUNT, MAX_ELEMENTS = 127, 32, 71, 4095
#: Its limits on text: characters of a name, attributes of an element, characters of a value.
MAX_NAME, MAX_ATTRIBUTES, MAX_VALUE = 63, 16, 255


@dataclass(frozen=True, slots=True)
class Runtime:
    """One runtime.

    - `title`: Its name in sentences.
    - `protocols`: Its protocols, a subset of `taccl.program.program.PROTOCOLS`.
    - `max_steps`: Max steps per threadblock that its parser of MSCCL XML accepts, including steps that only
      wait.
    - `max_threadblocks`: Max threadblocks of a rank; of MSCCL++, those that a V100 surely runs concurrently.
    - `max_channels`: Max channels of a program (``MAXCHANNELS``).
    - `max_files`: Max files that it loads; None if there is no limit that plans reach.
    - `renamed`: {MSCCL's name of a collective: the runtime's name}.
    - `takes_custom`: True if it accepts custom collectives.
    - `includes_most`: True if it also uses a file at its largest size.
    - `launch_us`: Launch of a kernel that runs a whole collective; None if it runs in kernels of a library,
      with that library's launch and base latency.
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
    launch_us: float | None = None

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
        Runtime(
            "mscclpp", "MSCCL++", protocols=("Simple", "LL"), max_threadblocks=80, launch_us=KERNEL_LAUNCH_US
        ),
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
    is_amd = re.search(r"\bmi\d", topology.machine or topology.name, re.IGNORECASE) is not None
    return RUNTIMES["rccl" if is_amd else "msccl"], RUNTIMES["mscclpp"]


class Excess(NamedTuple):
    """One excess over a limit of the format; `where` is its rank, threadblock and step if they apply."""

    where: tuple[int, ...]
    message: str


def excesses(program: Program, runtime: Runtime) -> Iterator[Excess]:
    """Yield excesses over the limits of a runtime's files, each with advice for a lowering within them."""
    for where, found, most, what, remedy in _measured(program, runtime):
        if found > most:
            names = ("rank", "threadblock", "step")
            place = " of ".join(f"{name} {i}" for name, i in reversed([*zip(names, where, strict=False)]))
            yield Excess(
                where,
                f"holds at most {most} {what}, and {place or 'the program'} has {found}; lower the schedule "
                f"with {remedy}",
            )


def _measured(program: Program, runtime: Runtime) -> Iterator[tuple[tuple[int, ...], int, int, str, str]]:
    """Yield (place, number found, max number, name of the quantity, remedy) for every limited quantity."""
    fewer = "fewer num_channels or instances"
    joined = f"threadblocks='per-peer', or {fewer}"
    yield (), program.num_channels, runtime.max_channels, "channels", fewer
    for r, rank in enumerate(program.ranks):
        peers: dict[tuple[int, str], set[int]] = defaultdict(set)
        for threadblock in rank.threadblocks:
            for word, peer in (("send to", threadblock.send_to), ("receive from", threadblock.receive_from)):
                if peer is not None:
                    peers[threadblock.channel, word].add(peer)
        pairs = {(peer, channel) for (channel, _), known in peers.items() for peer in known}
        remedy = joined
        if len(pairs) > runtime.max_threadblocks:
            remedy = f"{fewer}, or under a sketch by which a rank talks to fewer others"
        yield (r,), len(rank.threadblocks), runtime.max_threadblocks, "threadblocks a rank", remedy
        for (_, word), known in sorted(peers.items()):
            spread = f"channels='by-peer', num_channels={ceil(len(known) / MAX_PEERS) + 1}"
            yield (r,), len(known), MAX_PEERS, f"peers to {word} over one channel", spread
        weights = [sum(map(weight, threadblock.steps)) for threadblock in rank.threadblocks]
        elements = 1 + program.num_ranks + len(weights) + sum(weights)
        smaller = "fewer instances, or cut the data into fewer chunks"
        yield (r,), elements, MAX_ELEMENTS, "elements a rank, such as threadblocks and steps", smaller
        for t, total in enumerate(weights):
            spread = (
                f"channels='round-robin', num_channels={ceil(total / runtime.max_steps)} or more, leave "
                "split=False out, or cut the data into fewer chunks"
            )
            yield (r, t), total, runtime.max_steps, "steps per threadblock, with those that only wait", spread
    for address, step in program.steps():
        yield address, step.count, MAX_COUNT, "chunks a step", f"max_count={MAX_COUNT}"
        last = max((t for t, _ in step.depends), default=-1)
        yield address, last, MAX_DEPENDED_ID, "as number of a threadblock that a step waits for", joined
