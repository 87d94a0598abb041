"""PCIe tree of a server: CPUs, switches, GPUs and NICs, and the NICs near each GPU.

NVLinks join GPUs pair by pair, or through NVSwitch; AMD servers have xGMI instead of NVLink.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from importlib import import_module
from itertools import pairwise
from typing import Any, NamedTuple

from taccl.topology.boards import SLOT_GB_PER_S
from taccl.topology.topology import Side

#: Rate limit on the path of a send: (name, beta in us per MB, side that holds it: "send" or "receive").
PathLimit = tuple[str, Fraction, Side]
#: {GT/s of a PCIe lane: its rate in GB/s each way, by NCCL's constants}.
LANE_GB_PER_S = {
    "2.5": Fraction(15, 80), "5": Fraction(30, 80), "8": Fraction(60, 80),
    "16": Fraction(120, 80), "32": Fraction(240, 80), "64": Fraction(480, 80),
}  # fmt: skip
#: `LANES`: lanes of a PCIe link whose number is unknown.
#: `X16_GB_PER_S`: {PCIe generation: rate in GB/s each way of this number of lanes}.
LANES = 16
X16_GB_PER_S = {3 + i: LANES * LANE_GB_PER_S[speed] for i, speed in enumerate(("8", "16", "32", "64"))}
#: Beta in us per MB of the fastest PCIe link; no link is assumed to be faster.
_FASTEST_PCIE = 1000 / Fraction(max(SLOT_GB_PER_S.values()))


class Nic(NamedTuple):
    """A network interface; `at` is its node in the server's PCIe tree."""

    name: str
    at: str
    beta_us_per_mb: Fraction


@dataclass(eq=False)
class PcieServer:
    """One server: its PCIe tree, the position of each local rank in it, and the NVLinks between ranks.

    A server may have several hosts, if NVSwitch joins their GPUs; PCIe does not join hosts.

    - `tree`: Directed graph of CPUs, switches and devices; attribute ``limit`` of an edge is its rate limit.
    - `cpus`: {CPU: (beta of its links to other CPUs in us per MB, the assumption behind it, its host)}.
    - `gpus`: GPU of each local rank, as a node of the tree. Several ranks may share a GPU.
    - `parts`: Partition of the GPU that each local rank has; empty if no ranks share a GPU.
    - `nics`: All network interfaces.
    - `nvlinks` (mapping of (int, int) to int): NVLinks between two GPUs (`gpu_numbers`), the lower one first.
    - `switches` (tuple of mapping of int to int): {GPU: its NVLinks into one NVSwitch}.
    - `nvlink_betas`: Beta in us per MB of one NVLink of each GPU (`gpu_numbers`).
    - `fabric`: ``"NVLink"`` or ``"xGMI"``.
    - `devices` (mapping of str to (str, Fraction, str)): {PCIe switch or device: (its parent, beta and name
      of the link between the two)}.
    - `guesses` (mapping of str to str): {name of a rate limit that is assumed: the assumption, with the
      argument that overrides it}.
    - `pcie_source`: Source of PCIe rates that are neither given nor assumed, with the argument that overrides
      them.
    - `assumed`: All assumptions and omissions so far.
    """

    name: str
    tree: Any = field(default_factory=lambda: import_module("networkx").DiGraph())
    cpus: dict[str, tuple[Fraction | None, str, str]] = field(default_factory=dict)
    gpus: list[str] = field(default_factory=list)
    parts: list[int] = field(default_factory=list)
    nics: list[Nic] = field(default_factory=list)
    nvlinks: Mapping[tuple[int, int], int] = field(default_factory=dict)
    switches: Sequence[Mapping[int, int]] = ()
    nvlink_betas: Sequence[Fraction] = ()
    fabric: str = "NVLink"
    devices: dict[str, tuple[str, Fraction, str]] = field(default_factory=dict)
    guesses: dict[str, str] = field(default_factory=dict)
    pcie_source: str = ""
    assumed: list[str] = field(default_factory=list)

    @property
    def gpu_numbers(self) -> list[int]:
        """Number of each local rank's GPU, in the order of ranks; the local rank if none share a GPU."""
        number = {gpu: place for place, gpu in enumerate(dict.fromkeys(self.gpus))}
        return [number[gpu] for gpu in self.gpus]

    def nvlink_beta(self, *gpus: int) -> Fraction:
        """Beta in us per MB of one NVLink of the slowest of these GPUs (`gpu_numbers`)."""
        return max(self.nvlink_betas[gpu] for gpu in gpus)

    def add_cpu(self, name: str, beta_us_per_mb: Fraction | None, *, guess: str = "", host: str = "") -> None:
        """Add a CPU, with links to other CPUs of its host; each has the rate of the sending CPU, as in NCCL.

        - `beta_us_per_mb`: Beta of the links out of this CPU; None for no limit.
        - `guess`: The assumption behind the beta; empty for a beta that the file or an argument states.
        - `host`: Name of the CPU's host, if the server has several.
        """
        for other, (beta, why, at) in self.cpus.items():
            if at != host:
                continue
            self._add_limit(name, other, (f"{name} to {other}", beta_us_per_mb, "send"), guess)
            self._add_limit(other, name, (f"{other} to {name}", beta, "send"), why)
        self.tree.add_node(name)
        self.cpus[name] = beta_us_per_mb, guess, host

    def add_device(
        self, key: str, parent: str, beta_us_per_mb: Fraction, *, name: str, guess: str = ""
    ) -> None:
        """Add or replace a PCIe switch or a device below `parent`, with a link of the same rate both ways."""
        self.devices[key] = parent, beta_us_per_mb, name
        self._add_limit(key, parent, (f"PCIe out of {name}", beta_us_per_mb, "send"), guess)
        self._add_limit(parent, key, (f"PCIe into {name}", beta_us_per_mb, "receive"), guess)

    def add_cpu_link(self, key: str, beta_us_per_mb: Fraction, *, fabric: str) -> None:
        """Add a direct link between a device and its CPU, such as C2C; paths to the CPU use it."""
        *_, top = self._above(key)
        cpu, _, name = self.devices[top][0], *self.devices[key][1:]
        self._add_limit(key, cpu, (f"{fabric} out of {name}", beta_us_per_mb, "send"), "")
        self._add_limit(cpu, key, (f"{fabric} into {name}", beta_us_per_mb, "receive"), "")

    def _add_limit(self, start: str, end: str, limit: tuple[str, Fraction | None, Side], guess: str) -> None:
        self.tree.add_edge(start, end, limit=limit)
        if guess:
            self.guesses[limit[0]] = guess

    def lift_guesses(self) -> None:
        """Raise the assumed rates of PCIe links that serve only NICs to the sum of the NICs' rates.

        An example is the PCIe link of a card with two NIC ports.
        """
        serves_gpus = {key for gpu in self.gpus for key in self._above(gpu)}
        sent: dict[str, Fraction] = defaultdict(Fraction)
        served: Counter[str] = Counter()
        used = sorted({nic for gpu in self.gpus for nic in self.near_nics(gpu)})
        for nic in (self.nics[each] for each in used):
            for key in self._above(nic.at):
                sent[key] += 1 / nic.beta_us_per_mb
                served[key] += 1
        for key in sent.keys() - serves_gpus:
            parent, beta, name = self.devices[key]
            guess = self.guesses.get(f"PCIe out of {name}", "")
            lifted = max(1 / sent[key], _FASTEST_PCIE)
            if guess and lifted < beta:
                what = "a PCIe link that serves several NICs" if served[key] > 1 else "the PCIe link of a NIC"
                guess = f"{gb_per_s(lifted)} for {what} (pcie_gb_per_s=)"
                self.assumed += [guess] * (guess not in self.assumed)
                self.add_device(key, parent, lifted, name=name, guess=guess)

    def _above(self, key: str) -> Iterator[str]:
        """Yield the device `key`, then the PCIe switches above it, from the lowest to the highest."""
        while key in self.devices:
            yield key
            key = self.devices[key][0]

    def path(self, start: str, end: str) -> list[str]:
        """Path between two nodes of the PCIe tree: up, across to another CPU if necessary, and down."""
        found: list[str] = import_module("networkx").shortest_path(self.tree, start, end)
        return found

    def limits(self, start: str, end: str) -> list[PathLimit]:
        """Rate limits on a path, as (name, beta in us per MB, end of a send that holds it)."""
        limits = [self.tree.edges[pair]["limit"] for pair in pairwise(self.path(start, end))]
        return [(name, beta, side) for name, beta, side in limits if beta is not None]

    def near_nics(self, gpu: str) -> tuple[int, ...]:
        """NICs of a GPU, by index: the nearest NICs, and farther NICs that are faster than all nearest ones.

        The nearest NICs are those whose path up the tree meets the GPU's path up the tree at the lowest node.
        Bridges between a NIC and that node do not count. NCCL prefers a farther NIC that is faster.
        """
        above, far, reached = set(self._above(gpu)), {}, {}
        of_host = import_module("networkx").descendants(self.tree, gpu)
        for number, nic in enumerate(self.nics):
            if nic.at not in of_host:
                continue
            path = set(self.path(gpu, nic.at))
            far[number] = len(self.cpus.keys() & path), len(above & path)
            reached[number] = max([nic.beta_us_per_mb, *(beta for _, beta, _ in self.limits(gpu, nic.at))])
        nearest = min(far.values(), default=None)
        fastest = min((reached[nic] for nic in far if far[nic] == nearest), default=None)
        return tuple(
            nic for nic in far if far[nic] == nearest or (fastest is not None and reached[nic] < fastest)
        )

    def shares(self, gpu: str, nics: Iterable[int], side: Side) -> dict[int, Fraction]:
        """{NIC: share of the bytes that a GPU sends or receives}, in proportion to PCIe rates to the NICs."""
        rates = {nic: 1 / self.nics[nic].beta_us_per_mb for nic in nics}
        through: dict[tuple[int, str, str], list[int]] = defaultdict(list)
        for nic in rates:
            for depth, (start, end) in enumerate(pairwise(self.path(gpu, self.nics[nic].at))):
                through[depth, start, end].append(nic)
        for (_, start, end), served in sorted(through.items(), reverse=True):
            beta = self.tree.edges[(start, end) if side == "send" else (end, start)]["limit"][1]
            together = sum((rates[nic] for nic in served), Fraction(0))
            if beta is not None and 1 / beta < together:
                rates |= {nic: rates[nic] / together / beta for nic in served}
        together = sum(rates.values(), Fraction(0))
        return {nic: rate / together for nic, rate in rates.items()}


def gb_per_s(beta_us_per_mb: Fraction) -> str:
    """Rate in GB/s of a link with a given beta, as text."""
    return f"{float(1000 / beta_us_per_mb):.4g} GB/s"
