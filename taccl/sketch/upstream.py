"""Sketch and topology files of the published TACCL tool, with its cost model or with a machine model.

Costs in its files are per chunk, in a unit that the files do not name. With ``cost_model="upstream"`` they
are used as that tool uses them, truncated to whole units, so that schedules can be compared like for like.
With ``cost_model="physical"`` the costs of the machine that the file names replace them.

In the upstream model, a send inside a node costs a whole number of the file's units, without a separate
alpha. With switches, a rank's sends through a plane are serialised, and so are its receives. Nodes are joined
only by the links that the sketch asks for. Each of these has a fixed share of the NICs. With more than two
nodes, a rank's remote sends are serialised, and so are its remote receives.

References
----------
Shah et al., "TACCL: Guiding Collective Algorithm Synthesis using Communication Sketches", NSDI 2023, and
https://github.com/microsoft/taccl, whose INPUT_GUIDE.md describes the topology file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

from taccl._internal.reading import parse_json, read_text, reads
from taccl._internal.units import BYTES_PER_MB, exact, parse_size
from taccl.errors import SketchError, TopologyError
from taccl.problem.collectives import CollectiveArguments, make
from taccl.sketch.library import load_sketch
from taccl.sketch.upstream_wiring import Edge, edges_across, edges_inside, planes_between, wired
from taccl.topology.machines import SHAPES
from taccl.topology.parts import check_num_links, check_ranks
from taccl.topology.topology import Topology

if TYPE_CHECKING:
    from taccl.problem.collective import Collective
    from taccl.problem.problem import Problem
    from taccl.sketch.sketch import Sketch
    from taccl.sketch.upstream_files import UpstreamTopologyFile

CostModel = Literal["upstream", "physical"]

#: Machines recognised by the start of a topology file's name; their number of NICs overrides the file's.
_MACHINES = ("ndv2", "dgx2")
#: Chunk size assumed if none is given; the cost of a chunk does not depend on it.
NOMINAL_CHUNK_BYTES = BYTES_PER_MB

_SIZE_IN_NAME = re.compile(r"_([0-9]+)(KB|MB|GB)$", re.IGNORECASE)


def load_problem(
    sketch: Path | str | Sketch,
    topology: Path | str,
    *,
    collective: str | Collective = "allgather",
    cost_model: CostModel = "upstream",
    nodes: int | None = None,
    chunk_size: int | str | None = None,
    size: int | str | None = None,
    time_unit_us: int | float | str | None = None,
    chunks_per_rank: int | None = None,
    **arguments: Unpack[CollectiveArguments],
) -> Problem:
    """Build the problem of a sketch on a topology file of the published TACCL tool.

    - `sketch`, `topology`: Files of that tool; the sketch may also be a `Sketch`, or anything that
      `load_sketch` accepts.
    - `collective`: Name or `Collective`. If its number of chunks is open, `chunks_per_rank` or the sketch's
      number applies.
    - `cost_model`: ``"upstream"`` for the file's costs as that tool uses them, ``"physical"`` for the machine
      that the file names.
    - `nodes`: Number of nodes to which the sketch is rescaled.
    - `chunk_size`, `size`: If neither is given, and the sketch has no chunk size, ``size_bytes`` of an
      upstream problem is unknown. A physical problem then gets the chunk size from the file's name, where 1MB
      means 2**20 bytes.
    - `time_unit_us`: Microseconds in the file's unit of time; default 1.
    - `arguments`: As for `taccl.collectives.make`.
    """
    if cost_model not in ("upstream", "physical"):
        raise SketchError(f"found {cost_model!r}; expected 'upstream' or 'physical'", where="cost_model")
    if chunk_size is not None and size is not None:
        raise SketchError("found both a chunk size and a size; give one", where="chunk_size, size")
    file = _read_topology(Path(topology))
    guide = load_sketch(sketch) if isinstance(sketch, (str, Path)) else sketch
    if nodes is not None:
        guide = guide.with_nodes(nodes, ranks_per_node=file.gpus_per_node)
    num_nodes = guide.nodes or 1
    if isinstance(collective, str):
        collective = make(
            collective,
            num_nodes * file.gpus_per_node,
            chunks_per_rank=guide.chunks.per_rank if chunks_per_rank is None else chunks_per_rank,
            **arguments,
        )
    elif collective.chunks_open:
        collective = collective.split(chunks_per_rank or guide.chunks.per_rank)
    if cost_model == "physical":
        if time_unit_us is not None:
            raise SketchError(
                "a time unit applies to the file's costs, which cost_model='physical' ignores; leave it out",
                where="time_unit_us",
            )
        return _physical_problem(file, guide, num_nodes, collective, chunk_size=chunk_size, size=size)
    known = size is not None or chunk_size is not None or guide.chunk_bytes is not None
    if size is not None:
        chunk_bytes = -(-parse_size(size) // collective.size_chunks)
    elif chunk_size is not None:
        chunk_bytes = parse_size(chunk_size, where="chunk_size")
    else:
        chunk_bytes = guide.chunk_bytes or NOMINAL_CHUNK_BYTES
    unit_us = exact(1 if time_unit_us is None else time_unit_us, where="time_unit_us")
    if unit_us == 0:
        raise TopologyError("found 0; expected the microseconds in a unit", where="time_unit_us")
    machine = UpstreamModel(file, guide, num_nodes, chunk_bytes, unit_us).build()
    if size is not None:
        return guide.apply(machine, collective, size=size)
    problem = guide.apply(machine, collective, chunk_size=chunk_bytes)
    return problem if known else replace(problem, size_bytes=None)


def load_upstream_topology(path: Path | str, *, nodes: int | None = None) -> Topology:
    """Load a topology file of the published TACCL tool as one node, under the tool's cost model.

    Links between nodes depend on the sketch's connections: see `load_problem`.
    """
    from taccl.sketch.sketch import Sketch

    file = _read_topology(Path(path))
    if nodes is not None and nodes > 1:
        raise TopologyError(
            f"found {nodes} nodes; expected one, as only a sketch connects the nodes of this topology; give "
            "the sketch, with this file as its topology",
            where=str(path),
        )
    return UpstreamModel(file, Sketch(), nodes or 1, NOMINAL_CHUNK_BYTES, Fraction(1)).build()


@reads("upstream topology")
def _read_topology(path: Path) -> UpstreamTopologyFile:
    from taccl.sketch.upstream_files import topology_from_file

    return topology_from_file(parse_json(read_text(path), source=str(path), exact=True), source=str(path))


def _physical_problem(
    file: UpstreamTopologyFile,
    guide: Sketch,
    nodes: int,
    collective: Collective,
    *,
    chunk_size: int | str | None,
    size: int | str | None,
) -> Problem:
    """Build the problem with the costs of the machine that the topology file names."""
    from taccl.topology.registry import parse

    machine = _machine_of(file)
    if not machine:
        raise TopologyError(
            f"found {file.name!r}; expected a name that starts with NDv2 or DGX2, because a physical cost "
            "model needs a machine; use the upstream cost model, or a machine's name",
            where=file.where("name"),
        )
    if chunk_size is None and size is None and guide.chunk_bytes is None:
        suffix = _SIZE_IN_NAME.search(file.name)
        if suffix is None:
            raise TopologyError(
                f"found {file.name!r}, which states no chunk size; expected a name such as "
                "'NDv2_1MB'; give size= or chunk_size=",
                where=file.where("name"),
            )
        chunk_size = f"{suffix[1]}{suffix[2][0].upper()}iB"
    topology = parse(machine, nodes=nodes, profile="taccl")
    problem = guide.apply(topology, collective, chunk_size=chunk_size, size=size)
    note = (
        f"{file.source}: its costs are replaced by {machine}'s, profile 'taccl' (cost_model='upstream' "
        "keeps them)"
    )
    return replace(problem, notes=(*problem.notes, note))


def _machine_of(file: UpstreamTopologyFile) -> str:
    """Machine with which the name in a topology file begins, such as ``"ndv2"``; empty if none."""
    known = _MACHINES if file.links is None else ()
    return next((machine for machine in known if file.name.lower().startswith(machine)), "")


@dataclass(frozen=True)
class UpstreamModel:
    """Builder of a topology from the published TACCL tool's files, under that tool's cost model.

    - `chunk_bytes`: Chunk size to which the file's costs refer.
    """

    file: UpstreamTopologyFile
    sketch: Sketch
    nodes: int
    chunk_bytes: int
    time_unit_us: Fraction

    def build(self) -> Topology:
        """Build the topology: links inside nodes, the sketch's links between nodes, and their ports."""
        file = self.file
        machine = _machine_of(file)
        if machine and file.gpus_per_node != SHAPES[machine].ranks_per_node:
            raise TopologyError(
                f"found {file.gpus_per_node}; expected {SHAPES[machine].ranks_per_node}, as {machine} has; "
                "correct it",
                where=file.where("gpus_per_node"),
            )
        self._check_size()
        inside, across = self._inside(), self._across() if self.nodes > 1 else []
        return wired(
            file.name, machine, nodes=self.nodes, size=file.gpus_per_node, inside=inside, across=across
        )

    def _check_size(self) -> None:
        """Raise `TopologyError` for a topology that is too large for memory."""
        size = self.file.gpus_per_node
        parallel = max((max(row) for row in self.file.links), default=1) if self.file.links else 1
        planes = max((switch.planes or 1 for switch in self.sketch.switch), default=1)
        num_links = size**2 * self.nodes * (parallel * planes + self.nodes - 1)
        check_num_links(num_links, where=self.file.where("gpus_per_node"))

    def _per_mb(self, cost_of_chunk: int, field: str) -> Fraction:
        """Convert the cost of a chunk in the file's units to us/MB."""
        if cost_of_chunk <= 0:
            raise TopologyError(
                "the published tool truncates costs to whole units, which leaves 0 for a chunk; expected at "
                "least 1; multiply every cost in the file by one factor, and divide time_unit_us by it",
                where=self.file.where(field),
            )
        return cost_of_chunk * self.time_unit_us * Fraction(BYTES_PER_MB, self.chunk_bytes)

    def _node_links(self) -> list[tuple[int, int, int, Fraction, Fraction]]:
        """Links inside a node: (source, destination, number of parallel links, beta, alpha + beta)."""
        file = self.file
        ranks = range(file.gpus_per_node)
        if file.links is not None and file.betas is not None and file.invbws is not None:
            return [
                (src, dst, file.links[dst][src], file.betas[dst][src], file.invbws[dst][src])
                for src, dst in permutations(ranks, 2) if file.links[dst][src]
            ]  # fmt: skip
        betas, totals = file.node_betas_list or (), file.node_invbws_list or ()
        shape = SHAPES.get(_machine_of(file))
        nvlinks = shape.pairs if shape else {}
        expected, rule = 1, " (two for a name that starts with NDv2)"
        if nvlinks:
            expected, rule = 2, ": a double NVLink, then a single one"
        for field, found in (("node_betas_list", betas), ("node_invbws_list", totals)):
            if len(found) != expected:
                raise TopologyError(
                    f"found {len(found)} entries; expected {expected}{rule}; correct the list",
                    where=file.where(field),
                )
        if not nvlinks:
            return [(src, dst, 1, betas[0], totals[0]) for src, dst in permutations(ranks, 2)]
        return [
            (src, dst, 1, betas[2 - count], totals[2 - count])
            for (a, b), count in sorted(nvlinks.items()) for src, dst in ((a, b), (b, a))
        ]  # fmt: skip

    def _inside(self) -> list[Edge]:
        """Links inside a node; each plane of a switch has links of its own."""
        switches = [(switch.ranks, switch.planes or 1) for switch in self.sketch.switch]
        for index, (ranks, _) in enumerate(switches):
            self._check_local(ranks, self._where_of_switch(index))
        planes = planes_between(switches, where=self._where_of_switch)
        pairs = []
        for src, dst, parallel, beta, total in self._node_links():
            num_planes = planes[src, dst][1] if (src, dst) in planes else 1
            # With switches in a sketch, the published tool's link cost is alpha + beta / number of planes.
            # Without switches, its link cost is the sum of alpha and beta that the file gives.
            cost = int(self.file.alpha + beta / num_planes) if self.sketch.switch else int(total)
            per_mb = self._per_mb(cost, "node_betas_list" if self.sketch.switch else "node_invbws_list")
            pairs.append((src, dst, parallel * num_planes, per_mb))
        return edges_inside(pairs, planes)

    def _where_of_switch(self, index: int) -> str:
        return self.sketch.where(f"switch[{index}].ranks")

    def _check_local(self, ranks: Iterable[int], where: str) -> None:
        of = f"{self.file.name} has local ranks"
        check_ranks(ranks, self.file.gpus_per_node, where=where, error=SketchError, of=of)

    def _across(self) -> list[Edge]:
        """Links by which the sketch connects each ordered pair of nodes; they share the NICs evenly."""
        file = self.file
        connections = self._connections()
        if file.remote_alpha is None or file.remote_beta is None:
            missing = "remote_alpha" if file.remote_alpha is None else "remote_beta"
            raise TopologyError(
                f"found nothing; expected a cost, because the sketch has {self.nodes} nodes; add it",
                where=file.where(missing),
            )
        shape = SHAPES.get(_machine_of(file))
        nics = shape.ranks_per_node // shape.ranks_per_nic if shape else file.nics_per_node
        if nics is None or nics < 1:
            raise TopologyError(
                f"found {nics or 'nothing'}; expected the number of NICs, because the sketch has "
                f"{self.nodes} nodes; add it",
                where=file.where("nics_per_node"),
            )
        num_links = sum(len(receivers) for receivers in connections.values())
        per_mb = self._per_mb(int(file.remote_beta * num_links / nics), "remote_beta")
        pairs = [(sender, receiver) for sender, receivers in connections.items() for receiver in receivers]
        alpha_us = file.remote_alpha * self.time_unit_us
        return edges_across(pairs, self.nodes, file.gpus_per_node, alpha_us, per_mb)

    def _connections(self) -> dict[int, tuple[int, ...]]:
        """{sending local rank: receiving local ranks in other nodes}."""
        size = self.file.gpus_per_node
        internode = self.sketch.internode
        if internode is None:
            raise SketchError(
                f"found nothing; expected connections between nodes, because the sketch has {self.nodes} "
                "nodes; add them",
                where=self.sketch.where("internode"),
            )
        connections: Any = internode.connections
        if connections == "direct-map":
            return {rank: (rank,) for rank in range(size)}
        if connections in (None, "fully-connected"):
            return {rank: tuple(range(size)) for rank in range(size)}
        where = self.sketch.where("internode.connections")
        for sender, receivers in connections.items():
            self._check_local((sender, *receivers), where)
        fanouts = sorted({len(receivers) for receivers in connections.values()})
        if len(fanouts) > 1:
            raise SketchError(
                f"found senders with {fanouts[0]} and with {fanouts[-1]} receivers; expected equally many "
                "under the upstream cost model; correct the connections",
                where=where,
            )
        return dict(connections)
