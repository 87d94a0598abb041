"""Random servers as graphs of capacities, and their files; the graph is independent of the importers.

A server is a random tree of PCIe switches below CPUs. `Drawn.graph` has the rates in GB/s by each format's
documentation; rates that a file does not state are unlimited. Capacities are optima of linear programs over
the paths of that graph.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import combinations, pairwise, permutations
from typing import TYPE_CHECKING, Any

import networkx as nx
import numpy as np

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Mapping

#: {attributes of a CPU: GB/s to other CPUs in NCCL's tables}.
CPUS = {
    'arch="x86_64" vendor="AuthenticAMD" familyid="143" modelid="49"': 16,
    'arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="17"': 24,
    'arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85"': 10,
    'arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143"': 22,
    'arch="arm64"': 6,
    "": None,
}
#: {GT/s: GB/s of one lane in NCCL's tables}.
LANES = {"5.0": 0.375, "8.0": 0.75, "16.0": 1.5, "32.0": 3.0, "64.0": 6.0}
#: {compute capability times ten: GB/s of one NVLink}.
NVLINKS = {60: 18, 70: 20, 80: 20, 86: 12, 90: 20.6, 100: 40.1}
#: {AMD's architecture: GB/s of one xGMI link}.
XGMI = {"gfx908": 24, "gfx90a": 36, "gfx942": 48}

Pair = tuple[str, str]


def _least(*program: Any, **rows: Any) -> float:
    """Optimum of a linear program; SciPy is imported for it, and not when tests are collected."""
    from scipy.optimize import linprog

    return float(linprog(*program, **rows).fun)


def capacity(topology, links):
    """Total rate of links in GB/s under the topology's holds: the optimum of a linear program."""
    if not links:
        return 0
    place = {link: index for index, link in enumerate(links)}
    rows: dict[int, np.ndarray] = {}
    for hold in topology.holds:
        if hold.link in place:
            row = rows.setdefault(hold.resource, np.zeros(len(links)))
            row[place[hold.link]] += float(hold.beta_us_per_mb) / 1000
    held = np.array(list(rows.values()))
    return -_least(-np.ones(len(links)), A_ub=held, b_ub=np.ones(len(held)))


@dataclass
class Part:
    """A device of the tree; `rate` in GB/s, None if its file does not state it."""

    name: str
    rate: float | None
    slot: str = ""
    below: list[Part] = field(default_factory=list)
    ports: list[tuple[str, float]] = field(default_factory=list)


@dataclass
class Drawn:
    """A server: trees of its CPUs, links between GPUs, and the arguments of its import.

    - `cpus`: One entry for each CPU: (attributes, devices below it).
    - `links`: {(GPU, GPU): number of links}, the lower rank first.
    - `switched`: {GPU: number of links into an NVSwitch}.
    - `link_rate`: GB/s of one link between GPUs.
    - `others`: {GPU of another kind: (its attributes, GB/s of one of its links)}.
    """

    cpus: list[tuple[str, list[Part]]]
    links: dict[Pair, int] = field(default_factory=dict)
    switched: dict[str, int] = field(default_factory=dict)
    link_rate: float = 0
    others: dict[str, tuple[str, float]] = field(default_factory=dict)
    gpu: str = ""
    fabric: str = "nvlink"
    arguments: dict[str, Any] = field(default_factory=dict)

    def parts(self) -> list[tuple[str, Part]]:
        """(parent, device) for all devices, parents first."""
        found = [(f"cpu{number}", part) for number, (_, below) in enumerate(self.cpus) for part in below]
        for _, part in found:
            found += [(part.name, each) for each in part.below]
        return found

    @property
    def gpus(self) -> list[str]:
        """GPUs by rank."""
        return sorted((part.name for _, part in self.parts() if part.name.startswith("GPU")), key=_number)

    @property
    def ports(self) -> dict[str, float]:
        """{port of a NIC: its GB/s}."""
        return {name: rate for _, part in self.parts() for name, rate in part.ports}

    def kind(self, gpu: str) -> tuple[str, float]:
        """(attributes of a GPU, GB/s of one of its links)."""
        return self.others.get(gpu, (self.gpu, self.link_rate))

    def graph(self) -> nx.DiGraph:
        """CPUs, devices and ports with the capacity of each direction in GB/s."""
        graph = nx.DiGraph()
        graph.add_nodes_from(f"cpu{number}" for number in range(len(self.cpus)))
        for a, b in permutations(range(len(self.cpus)), 2):
            rate = self.arguments.get("cpu_gb_per_s", CPUS[self.cpus[a][0]])
            graph.add_edge(f"cpu{a}", f"cpu{b}", rate=rate)
        for parent, part in self.parts():
            rate = self.arguments.get("pcie_gb_per_s", part.rate)
            graph.add_edge(parent, part.name, rate=rate)
            graph.add_edge(part.name, parent, rate=rate)
            for port, speed in part.ports:
                speed = self.arguments.get("nic_gb_per_s", speed)
                graph.add_edge(part.name, f"net {port}", rate=speed)
                graph.add_edge(f"net {port}", part.name, rate=speed)
        return graph

    def between_nodes(self, used: Mapping[str, Iterable[int]], ranks: Iterable[int]) -> float:
        """Rate in GB/s from some ranks of a server to all ranks of an equal server, each through the ports
        that it uses.

        - `used`: {port: ranks that use it}.
        """
        pairs = [(rank, f"net {port}") for port, users in used.items() for rank in users]
        out = [(self.gpus[rank], port) for rank, port in pairs if rank in set(ranks)]
        into = [(port, self.gpus[rank]) for rank, port in pairs]
        sums = [[1.0] * len(out) + [-1.0] * len(into)]
        if self.arguments.get("rails"):
            sums = [
                [float(gpu == each) for each, _ in out] + [-float(gpu == each) for _, each in into]
                for gpu in self.gpus
            ]
        return self._flow([("out", *pair) for pair in out] + [("into", *pair) for pair in into], sums)

    def _flow(self, pairs: list[tuple[str, str, str]], sums: list[list[float]]) -> float:
        graph, rows, limits = self.graph(), defaultdict(lambda: np.zeros(len(pairs))), {}
        for column, (which, start, end) in enumerate(pairs):
            for step in pairwise(nx.shortest_path(graph, start, end)):
                if (rate := graph.edges[step]["rate"]) is not None:
                    rows[which, step][column], limits[which, step] = 1, rate
        if not rows:
            return np.inf
        gain = [-float(which == "out") for which, _, _ in pairs]
        return -_least(gain, np.array(list(rows.values())), list(limits.values()), sums, [0] * len(sums))

    def any_port(self, *, into: bool = False) -> float:
        """GB/s out of the server, or into it, where every GPU may use every port: a maximum flow."""
        graph = nx.DiGraph()
        for a, b, rate in self.graph().edges(data="rate"):
            a, b = (b, a) if into else (a, b)
            graph.add_edge(a, b, **({} if rate is None else {"capacity": rate}))
        graph.add_edges_from(("out", gpu) for gpu in self.gpus)
        graph.add_edges_from((f"net {port}", "net") for port in self.ports)
        return float(nx.maximum_flow_value(graph, "out", "net"))

    def inside(self) -> dict[tuple[int, int], float | None]:
        """{pair of ranks: GB/s of the path that joins them}: links, or PCIe if links do not join all GPUs."""
        place = {gpu: rank for rank, gpu in enumerate(self.gpus)}
        found: dict[tuple[int, int], float | None] = {}
        for (a, b), count in self.links.items():
            slower = min(self.kind(a)[1], self.kind(b)[1])
            found[place[a], place[b]] = found[place[b], place[a]] = count * slower
        for a, b in permutations(self.switched, 2):
            found[place[a], place[b]] = min(self.switched[each] * self.kind(each)[1] for each in (a, b))
        joined = nx.Graph([*found])
        joined.add_nodes_from(range(len(place)))
        if nx.is_connected(joined) and self.arguments.get("pcie") != "always":
            return found
        graph = self.graph()
        for a, b in permutations(range(len(place)), 2):
            steps = pairwise(nx.shortest_path(graph, self.gpus[a], self.gpus[b]))
            rates = [rate for step in steps if (rate := graph.edges[step]["rate"]) is not None]
            found.setdefault((a, b), min(rates, default=None))
        return found

    def exchange(self) -> float | None:
        """GB/s per pair of ranks if all pairs joined by PCIe send at once; None if nothing limits."""
        graph, crossed = self.graph(), Counter[Pair]()
        place = {gpu: rank for rank, gpu in enumerate(self.gpus)}
        joined = {(place[a], place[b]) for pair in self.links for a, b in (pair, pair[::-1])}
        joined |= {(place[a], place[b]) for a, b in permutations(self.switched, 2)}
        for a, b in set(self.inside()) - joined:
            crossed.update(pairwise(nx.shortest_path(graph, self.gpus[a], self.gpus[b])))
        rates = [rate / n for step, n in crossed.items() if (rate := graph.edges[step]["rate"]) is not None]
        return min(rates, default=None)

    def xml(self, version: int) -> str:
        """The server as NCCL (version 1) or RCCL (version 2) dumps it."""
        below = "".join(
            f'<cpu numaid="{number}" {attributes}>{"".join(map(self._element, parts))}</cpu>'
            for number, (attributes, parts) in enumerate(self.cpus)
        )
        return f'<system version="{version}">{below}</system>'

    def _element(self, part: Part) -> str:
        kind = part.name[:3]
        code = {"GPU": "0x038000" if self.fabric == "xgmi" else "0x030200", "NIC": "0x020000"}
        inner = "".join(map(self._element, part.below))
        if kind == "GPU":
            rank, links = _number(part.name), ""
            for pair, count in self.links.items():
                if part.name in pair:
                    other = next(each for each in pair if each != part.name)
                    links += (
                        f'<{self.fabric} target="{_busid(other)}" count="{count}" tclass="{code["GPU"]}"/>'
                    )
            if part.name in self.switched:
                links += f'<nvlink target="0:fe:0.0" count="{self.switched[part.name]}" tclass="0x068000"/>'
            inner = f'<gpu dev="{rank}" rank="{rank}" {self.kind(part.name)[0]}>{links}</gpu>'
        if kind == "NIC":
            nets = (
                f'<net name="{name}" dev="0" speed="{round(rate * 8000)}" port="{port}" gdr="1"/>'
                for port, (name, rate) in enumerate(part.ports)
            )
            inner = f"<nic>{''.join(nets)}</nic>"
        return (
            f'<pci busid="{_busid(part.name)}" class="{code.get(kind, "0x060400")}" {part.slot}>{inner}</pci>'
        )

    def matrix(self) -> str:
        """The server as `nvidia-smi topo -m` prints it."""
        above, kin = {}, defaultdict(list)
        for parent, part in self.parts():
            above[part.name] = [part.name, *above.get(parent, [parent])]
            kin[part.name[:3]].append(part.name)
        devices = [*self.gpus, *sorted(kin["NIC"], key=_number)]

        def cell(a: str, b: str) -> str:
            count = self.links.get((a, b)) or self.links.get((b, a))
            if count or (a in self.switched and b in self.switched and a != b):
                return f"NV{count or self.switched[a]}"
            if a == b or above[a][-1] != above[b][-1]:
                return "X" if a == b else "SYS"
            switches = set(above[a][1:-1]) ^ set(above[b][1:-1])
            shared = set(above[a][1:-1]) & set(above[b][1:-1])
            return ("PXB" if switches else "PIX") if shared else "NODE"

        rows = ["\t".join(("", *devices, "CPU Affinity", "NUMA Affinity"))]
        for a in devices:
            cpu = above[a][-1].removeprefix("cpu")
            affinity = [f"{cpu}0-{cpu}7", cpu] if a.startswith("GPU") else []
            rows.append("\t".join((a, *(cell(a, b) for b in devices), *affinity)))
        return "\n".join(rows) + "\n"


def _number(name: str) -> int:
    return int(name[3:])


def _busid(name: str) -> str:
    return f"{'GNS'.index(name[0])}:{_number(name):02x}:0.0"


def draw(rng: random.Random, *, is_matrix: bool) -> Drawn:
    """Random server with 1 to 8 GPUs.

    - `is_matrix`: True for servers that a matrix describes completely: one rate of PCIe and of NICs, at most
      two levels of switches, NICs of one port.
    """
    numbers: Counter[str] = Counter()
    lacking = rng.choice((0, 0, 0.3))
    one_slot = rng.random() < 0.5
    most_nics = rng.choice((0, 1, 2, 8))

    def name(kind: str) -> str:
        numbers[kind] += 1
        return f"{kind}{numbers[kind] - 1}"

    def part(kind: str) -> Part:
        gt, lanes = ("16.0", 16) if one_slot else (rng.choice([*LANES]), rng.choice((4, 8, 16, 16)))
        if rng.random() < lacking:
            slot = rng.choice(('link_speed="Unknown" link_width="255"', "", f'link_speed="{gt} GT/s PCIe"'))
            return Part(name(kind), None, slot)
        return Part(name(kind), LANES[gt] * lanes, f'link_speed="{gt} GT/s PCIe" link_width="{lanes}"')

    def nic() -> Part:
        found = part("NIC")
        for port in range(1 if is_matrix else rng.choice((1, 1, 1, 2))):
            rate = rng.choice((1.25, 12.5, 12.5, 25, 25, 50, 100))
            found.ports.append((f"{found.name}" if is_matrix else f"{found.name}p{port}", rate))
        return found

    def some(depth: int, most: int) -> list[Part]:
        found = []
        for _ in range(rng.randint(1, most)):
            if depth < (2 if is_matrix else 3) and rng.random() < 0.4:
                found.append(part("SWI"))
                found[-1].below = some(depth + 1, 3)
            elif numbers["GPU"] < 8 and rng.random() < 0.6:
                found.append(part("GPU"))
            else:
                found += [nic() for _ in range(rng.randint(0, most_nics))]
        return found

    kinds = [rng.choice([*CPUS]) for _ in range(rng.choice((1, 1, 2, 2, 4)))]
    if rng.random() < 0.6:
        kinds = kinds[:1] * len(kinds)
    server = Drawn([(kind, some(0, 3)) for kind in kinds])
    if not numbers["GPU"]:
        server.cpus[0][1].append(part("GPU"))
    _draw_links(server, rng, is_matrix=is_matrix)
    server.arguments = {"nodes": 2 if server.ports else 1}
    for argument, rates in (
        ("cpu_gb_per_s", (5, 30)),
        ("pcie_gb_per_s", (10, 55)),
        ("nic_gb_per_s", (12, 60)),
    ):
        if rng.random() < (0.5 if is_matrix else 0.15):
            server.arguments[argument] = rng.choice(rates)
    if rng.random() < 0.2:
        server.arguments["pcie"] = "always"
    if rng.random() < 0.2:
        server.arguments["rails"] = True
    if is_matrix:
        server.arguments.setdefault("nic_gb_per_s", 25)
        server.cpus = [("", below) for _, below in server.cpus]
        for _, each in server.parts():
            each.rate = None
    return server


def _draw_links(server: Drawn, rng: random.Random, *, is_matrix: bool) -> None:
    gpus, kind = server.gpus, rng.choice(("none", "pairs", "pairs", "switch"))
    capability, server.link_rate = rng.choice([*NVLINKS.items()])
    server.gpu = f'sm="{capability}"'
    if is_matrix:
        server.link_rate = 25
    elif rng.random() < 0.3:
        gcn, server.link_rate = rng.choice([*XGMI.items()])
        server.gpu, server.fabric = f'sm="90" gcn="{gcn}"', "xgmi"
    elif rng.random() < 0.3:
        capability, rate = rng.choice([*NVLINKS.items()])
        server.others = {gpu: (f'sm="{capability}"', rate) for gpu in gpus if rng.random() < 0.4}
    if kind == "switch" and server.fabric == "nvlink" and len(gpus) > 2:
        each = rng.choice((12, 18))
        server.switched = {
            gpu: each if is_matrix or rng.random() < 0.8 else rng.choice((6, 17)) for gpu in gpus
        }
    elif kind != "none":
        share, most = rng.choice((0.3, 1)), 18 // max(len(gpus) - 1, 1)
        server.links = {
            pair: rng.randint(1, min(most, 4)) for pair in combinations(gpus, 2) if rng.random() < share
        }
