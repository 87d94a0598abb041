"""Sketch and topology files of the published TACCL tool, exactly as it means them.

Its costs are per chunk and in a unit that its files do not name. Under ``cost_model="upstream"`` they are
kept, truncated as that tool truncates them, so that schedules can be compared like for like; under
``"physical"`` the machine that the file names takes their place.

References
----------
Shah et al., "TACCL: Guiding Collective Algorithm Synthesis using Communication Sketches", NSDI 2023, and
https://github.com/microsoft/taccl, whose INPUT_GUIDE.md describes the topology file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from taccl.collectives import make
from taccl.errors import SketchError, TopologyError
from taccl.reading import parse_json, read_text
from taccl.sketch.library import load_sketch
from taccl.sketch.upstream_model import UpstreamModel, machine_of
from taccl.units import BYTES_PER_MB, exact, parse_size

if TYPE_CHECKING:
    from taccl.collective import Collective
    from taccl.problem import Problem
    from taccl.sketch.sketch import Sketch
    from taccl.sketch.upstream_files import TopologyFile
    from taccl.topology.topology import Topology

CostModel = Literal["upstream", "physical"]

#: What one chunk is taken to weigh where nobody says; the costs of a chunk do not depend on it.
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
    root: int | None = None,
    roots: Sequence[int] | None = None,
) -> Problem:
    """The problem of a sketch on an upstream topology file.

    - `sketch`, `topology`: Upstream files; the sketch may be a `Sketch`, or any other that `load_sketch`
      takes.
    - `collective`: A name uses the sketch's chunk partitioning, unless `chunks_per_rank` is given.
    - `cost_model`: The file's costs as the published tool uses them, or the machine that the file names.
    - `nodes`: Rescale the sketch to so many nodes.
    - `chunk_size`, `size`: Without either, an upstream cost model leaves ``size_bytes`` unknown, and a
      physical one takes the chunk size from the file's name, where 1MB is 2**20 bytes.
    - `time_unit_us`: Microseconds in the file's unit of time; one unless given.
    - `root`, `roots`: As `taccl.collectives.make` takes them.
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
            root=root,
            roots=roots,
            chunks_per_rank=guide.chunks.per_rank if chunks_per_rank is None else chunks_per_rank,
        )
    if cost_model == "physical":
        if time_unit_us is not None:
            raise SketchError(
                "a time unit says what the file's costs mean, but cost_model='physical' sets them aside; "
                "leave it out",
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
    machine = UpstreamModel(file, guide, num_nodes, chunk_bytes, _time_unit(time_unit_us)).build()
    if size is not None:
        return guide.apply(machine, collective, size=size)
    problem = guide.apply(machine, collective, chunk_size=chunk_bytes)
    return problem if known else replace(problem, size_bytes=None)


def load_upstream_topology(path: Path | str, *, nodes: int | None = None) -> Topology:
    """The topology of an upstream topology file under the upstream cost model; one node unless given.

    Links between nodes take a sketch, which says who is connected: see `load_problem`.
    """
    from taccl.sketch.sketch import Sketch

    file = _read_topology(Path(path))
    return UpstreamModel(file, Sketch(), nodes or 1, NOMINAL_CHUNK_BYTES, Fraction(1)).build()


def _read_topology(path: Path) -> TopologyFile:
    from taccl.sketch.upstream_files import topology_from_file

    return topology_from_file(parse_json(read_text(path), source=str(path), exact=True), source=str(path))


def _time_unit(time_unit_us: int | float | str | None) -> Fraction:
    unit = exact(1 if time_unit_us is None else time_unit_us, where="time_unit_us")
    if unit == 0:
        raise TopologyError("found 0; expected the microseconds in a unit", where="time_unit_us")
    return unit


def _physical_problem(
    file: TopologyFile,
    guide: Sketch,
    nodes: int,
    collective: Collective,
    *,
    chunk_size: int | str | None,
    size: int | str | None,
) -> Problem:
    """The problem on the machine that the file names."""
    from taccl.topology.registry import parse

    machine = machine_of(file)
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
                f"found {file.name!r}, which does not say the size of a chunk; expected a name such as "
                "'NDv2_1MB'; give chunk_size or size",
                where=file.where("name"),
            )
        chunk_size = f"{suffix[1]}{suffix[2][0].upper()}iB"
    topology = parse(machine, nodes=nodes, profile="taccl")
    problem = guide.apply(topology, collective, chunk_size=chunk_size, size=size)
    note = (
        f"{file.source}: its costs are set aside; those of {machine}, profile 'taccl', are used "
        "(cost_model='upstream' uses the file's)"
    )
    return replace(problem, notes=(*problem.notes, note))
