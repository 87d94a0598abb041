"""Topology under the published TACCL tool's cost model: links, switch planes, and serialising ports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import permutations, product
from typing import NamedTuple

from taccl.errors import SketchError
from taccl.topology.builder import TopologyBuilder
from taccl.topology.parts import hold_ends
from taccl.topology.topology import Topology


class Edge(NamedTuple):
    """A link to be built; `plane` is (switch, plane) if it passes a switch.

    `src` and `dst` are local ranks for a link inside a node, and global ranks for a link between nodes.
    """

    src: int
    dst: int
    alpha_us: Fraction
    beta_us_per_mb: Fraction
    plane: tuple[int, int] | None = None
    name: str = ""


def wired(
    name: str, machine: str, *, nodes: int, size: int, inside: Sequence[Edge], across: Iterable[Edge]
) -> Topology:
    """Build a topology of equal nodes, with links inside and across nodes, and ports that serialise sends.

    - `size`: Ranks per node.

    At a plane of a switch, the sends of a rank are serialised, and so are its receives. With more than two
    nodes, a rank's remote sends are serialised, and so are its remote receives.
    """
    node_of_rank = [node for node in range(nodes) for _ in range(size)]
    builder = TopologyBuilder(
        f"{name} x{nodes}", node_of_rank, profile=name, machine=machine, cost_model="upstream"
    )
    ports: dict[str, int] = {}

    def add(edge: Edge, base: int, port: str, at: str = "") -> int:
        src, dst = base + edge.src, base + edge.dst
        link = builder.add_link(
            src, dst, alpha_us=edge.alpha_us, beta_us_per_mb=edge.beta_us_per_mb, name=edge.name
        )
        ends = [f"{port} out of rank {src}{at}", f"{port} into rank {dst}{at}"] if port else []
        for end in ends:
            if end not in ports:
                ports[end] = builder.add_resource(end)
        if ends:
            hold_ends(builder, link, ports[ends[0]], ports[ends[1]], alpha_us=edge.alpha_us)
        return link

    for base in range(0, nodes * size, size):
        through: dict[tuple[int, int], list[int]] = {}
        for edge in inside:
            if edge.plane is None:
                add(edge, base, "")
                continue
            at = f" at plane {edge.plane[1]} of switch {edge.plane[0]}"
            through.setdefault(edge.plane, []).append(add(edge, base, "port", at))
        for (switch, plane), links in through.items():
            ranks = {rank for e in links for rank in (builder.links[e].src, builder.links[e].dst)}
            builder.add_switch(
                f"plane {plane} of switch {switch} of node {base // size}", sorted(ranks), links
            )
    for edge in across:
        add(edge, 0, "remote port" if nodes > 2 else "")
    return builder.build()


def edges_inside(
    pairs: Iterable[tuple[int, int, int, Fraction]], planes: Mapping[tuple[int, int], tuple[int, int]]
) -> list[Edge]:
    """Links inside a node; parallel links go to the planes of their switch in turn.

    - `pairs`: (source, destination, number of parallel links, beta in us/MB).
    - `planes`: Result of `planes_between`.
    """
    edges = []
    for src, dst, parallel, beta in pairs:
        switch, num_planes = planes.get((src, dst), (None, 1))
        for number in range(parallel):
            plane = number % num_planes
            through = None if switch is None else (switch, plane)
            name = f"plane {plane}" if num_planes > 1 else ""
            edges.append(Edge(src, dst, Fraction(0), beta, through, name))
    return edges


def edges_across(
    pairs: Iterable[tuple[int, int]], nodes: int, size: int, alpha_us: Fraction, beta: Fraction
) -> list[Edge]:
    """Links from each sender to its receiver, for every ordered pair of nodes.

    - `pairs`: (sender, receiver) as local ranks.
    - `size`: Ranks per node.
    """
    return [
        Edge(here * size + sender, there * size + receiver, alpha_us, beta)
        for (here, there), (sender, receiver) in product(permutations(range(nodes), 2), pairs)
    ]


def planes_between(
    switches: Iterable[tuple[Iterable[int], int]], *, where: Callable[[int], str]
) -> dict[tuple[int, int], tuple[int, int]]:
    """{(source, destination): (switch, number of planes)} of local ranks joined by a switch."""
    joined: dict[tuple[int, int], tuple[int, int]] = {}
    for switch, (ranks, num_planes) in enumerate(switches):
        for rank in ranks:
            if (rank, rank) in joined:
                raise SketchError(
                    f"found local rank {rank} in two switches; expected switches that are equal or disjoint; "
                    "correct the lists",
                    where=where(switch),
                )
        joined |= {(src, dst): (switch, num_planes) for src in ranks for dst in ranks}
    return joined
