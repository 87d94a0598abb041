"""Implicit synthesis: one call finds a schedule, stored as the pattern of one rank, and a lower bound.

Translations of the fabric repeat the pattern at every rank. A mesh has no translations. But with an even side
it has a ring: a cycle that visits every rank once. In two dimensions, a corner rank has two incoming links.
So an allgather among R ranks takes at least (R - 1) / 2 rounds. The bidirectional ring reaches this number,
and its schedule can be implicit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from taccl._internal.arguments import Count, Natural, Size, checked
from taccl._internal.units import format_gap, format_us, parse_size
from taccl.analysis.certificates.dimension_bound import DimensionBound, dimension_bound
from taccl.analysis.certificates.translation_bound import FabricBound, bound_of
from taccl.analysis.verification.verify_implicit import verify_implicit
from taccl.errors import InputError, TopologyError
from taccl.schedule.implicit_schedule import ImplicitSchedule
from taccl.sketch.symmetry import block_shifts, link_permutation, offset_permutation
from taccl.synthesis.parameters import DEFAULTS, SearchParameters
from taccl.synthesis.proposers.balanced import balanced_implicit
from taccl.synthesis.result import StageLog, Stages
from taccl.synthesis.symmetry.translation import translate
from taccl.topology.named import COSTS, NamedFabric, as_named, parse_named
from taccl.topology.recognise import dimensions
from taccl.topology.topology import Topology
from taccl.topology.translations import (
    CyclicProduct,
    Translations,
    along_ring,
    translations_of_fabric,
    translations_of_topology,
)

#: Max chains of block shifts that `find_translations` tries.
#: A chain's shifts map links to links; it fails if they do not also map resources to resources.
_MOST_TRIED = 20


@dataclass(frozen=True, slots=True)
class ImplicitResult:
    """An implicit schedule, verified, and its lower bound.

    Parameters
    ----------
    schedule : ImplicitSchedule
    bound : FabricBound
    seconds : float
        Wall-clock seconds of synthesis and verification.
    dimension_bound : DimensionBound, optional
        For ``backend="dimension-balanced"``: bandwidth lower bound of algorithms that pass one dimension
        after another.
    stages : Stages
        A tuple of `Stage`, which add up to `seconds`; ``stages.to_frame()`` is a DataFrame.
    """

    schedule: ImplicitSchedule
    bound: FabricBound
    seconds: float
    dimension_bound: DimensionBound | None = None
    stages: Stages = Stages()

    @property
    def finish_us(self) -> float:
        """Time of the last arrival, in microseconds."""
        return self.schedule.finish_us

    @property
    def gap(self) -> float:
        """(finish - bound) / bound; 0 for a proven optimum."""
        return self.bound.gap(self.schedule.finish)

    def to_dict(self) -> dict[str, Any]:
        """The result as plain values."""
        return {
            **self.schedule.summary(),
            **self.bound.to_dict(),
            **({} if self.dimension_bound is None else self.dimension_bound.to_dict()),
            "gap": self.gap,
            "seconds": self.seconds,
            "stages": self.stages.to_dicts(),
        }

    def __repr__(self) -> str:
        schedule, bound = self.schedule, self.bound
        return (
            f"ImplicitResult({schedule.collective} on {schedule.host.name}: {schedule.num_transfers} "
            f"transfers, finish {schedule.timing}, bound {format_us(bound.bound)}, gap "
            f"{format_gap(self.gap)}; limited by {bound.limits})"
        )


@checked
def synthesize_implicit(
    fabric: str | NamedFabric | Topology | Translations,
    collective: str = "allgather",
    *,
    chunk_size: Size = "1MB",
    chunks_per_rank: Count = 1,
    backend: Literal["auto", "dimension-balanced"] = "auto",
    policy: Literal["lp", "greedy"] = "lp",
    group: Sequence[Sequence[int]] | None = None,
    seed: Natural = 0,
    parameters: SearchParameters = DEFAULTS,
    **costs: Any,
) -> ImplicitResult:
    """A verified implicit schedule of a collective, on a fabric that looks the same from every rank.

    Parameters
    ----------
    fabric : str, NamedFabric, Topology or Translations
        A name such as ``"torus:100x100x100"``, ``"mesh:200x200"``, ``"hypercube:16"``, or a topology.
    collective : {"allgather", "reduce-scatter", "allreduce", "alltoall"}
    chunk_size : int or str
        Bytes of one chunk.
    chunks_per_rank : int
        Number of chunks into which a rank's part of the data is cut.
    backend : {"auto", "dimension-balanced"}
        ``"auto"`` searches patterns that translations repeat; with ``"dimension-balanced"`` each chunk
        traverses the fabric's dimensions in an order of its own.
    policy : {"lp", "greedy"}
        How ``"dimension-balanced"`` chooses these orders; see `synthesize`.
    group : sequence of rank permutations, optional
        For a topology: generators of its translations. None: they are searched among shifts in blocks of
        ranks.
    seed : int
        Same arguments and seed give the same schedule.
    parameters : SearchParameters
        Constants of the search.
    **costs
        Only for a fabric given by name: ``bandwidth_gb_per_s``, ``alpha_us``, ``alpha_meaning``; see
        `parse_named`.

    Raises
    ------
    InputError
        If an argument has a wrong type, the fabric has neither translations nor a ring that serves the
        collective, or the pattern would need too much memory.
    VerificationError
        If the schedule is invalid, which would be a bug of this library.
    """
    log = StageLog()
    chunk_bytes = parse_size(chunk_size, where="chunk_size")
    along, known = None, COSTS if isinstance(fabric, str) else ()
    for name in costs:
        if name not in known:
            said = (
                f"expected one of {', '.join(known)}" if known else "a fabric that is no name says its costs"
            )
            raise InputError(f"found an unused option; {said}: leave it out", where=name)
    if isinstance(fabric, str):
        fabric = parse_named(fabric, **costs)
    if backend == "dimension-balanced":
        host = fabric.host if isinstance(fabric, Translations) else fabric
        dims = dimensions(host)
        schedule = balanced_implicit(
            dims, collective, chunk_bytes=chunk_bytes, num_chunks=chunks_per_rank, policy=policy
        )
        log.end("dimensions", finish_us=schedule.finish_us, message=schedule.producer)
        along = dimension_bound(dims, collective, schedule.size_bytes)
    else:
        shape = implicit_translations(fabric, group=group)
        log.end("translations")
        schedule = translate(
            shape, collective, chunk_bytes=chunk_bytes, chunks_per_rank=chunks_per_rank, seed=seed,
            parameters=parameters,
        )  # fmt: skip
        log.end("pattern", finish_us=schedule.finish_us, message=schedule.producer)
    verify_implicit(schedule).raise_if_failed()
    log.end("verification")
    bound = bound_of(schedule)
    log.end("bound", message=bound.limits)
    return ImplicitResult(schedule, bound, log.seconds, along, log.stages)


def implicit_translations(
    fabric: str | NamedFabric | Topology | Translations, *, group: Sequence[Sequence[int]] | None = None
) -> Translations:
    """Translations of a fabric, or of the ring through a mesh.

    Raises `TopologyError` if there are none.
    """
    if isinstance(fabric, Translations):
        return fabric
    if isinstance(fabric, str):
        fabric = parse_named(fabric)
    if isinstance(fabric, NamedFabric):
        if fabric.kind == "mesh":
            return along_ring(fabric, hamiltonian_ring(fabric.dims))
        return translations_of_fabric(fabric)
    if group is not None:
        return translations_of_topology(fabric, group)
    found = find_translations(fabric)
    if found is not None:
        return found
    named = as_named(fabric)
    if named is not None:
        return implicit_translations(named)
    raise TopologyError(
        "found no translations among shifts in blocks of ranks; use backend='greedy', or name them in Python "
        "(group of synthesize_implicit)",
        where=fabric.name,
    )


def find_translations(topology: Topology) -> Translations | None:
    """Translations of a topology, composed of shifts in nested blocks of ranks; None if there are none.

    Tori, hypercubes and rings have these if their ranks are numbered row by row.
    """
    import networkx as nx

    num_ranks = topology.num_ranks
    if any(len(link.srcs) + len(link.dsts) > 2 for link in topology.links):
        return None
    if num_ranks == 1:
        return translations_of_topology(topology, CyclicProduct(()))
    shifts = nx.DiGraph()
    shifts.add_nodes_from((1, num_ranks))
    for step, block in reversed(list(block_shifts(num_ranks))):
        if link_permutation(topology, offset_permutation(num_ranks, step, block)) is not None:
            shifts.add_edge(step, block)
    # Chains of shifts that together map any rank to any other, from the finest block to the coarsest.
    for chain in islice(nx.all_simple_paths(shifts, 1, num_ranks), _MOST_TRIED):
        moduli = tuple(block // step for step, block in pairwise(chain))[::-1]
        with contextlib.suppress(TopologyError):
            return translations_of_topology(topology, CyclicProduct(moduli))
    return None


def has_hamiltonian_ring(dims: Sequence[int]) -> bool:
    """True if a mesh has a ring through all ranks: at least two axes longer than 1, one of even length."""
    real = [dim for dim in dims if dim > 1]
    return len(real) > 1 and any(dim % 2 == 0 for dim in real)


def hamiltonian_ring(dims: Sequence[int]) -> NDArray[np.int64]:
    """Ranks of a mesh in the order of a ring: each is linked to the next, and the last to the first.

    An even axis becomes the vertical axis of a sheet; the other axes, traversed in a zigzag, become its
    horizontal axis. The first column of the sheet is the return path; the other columns are traversed row by
    row in a zigzag. Raises `TopologyError` if the mesh has no such ring.
    """
    if not has_hamiltonian_ring(dims):
        raise TopologyError(
            "a mesh has no translations, and no ring visits every rank once; expected two axes of two ranks "
            "or more, one of them even; use backend='greedy' on the topology",
            where=f"mesh:{'x'.join(map(str, dims))}",
        )
    upright = next(axis for axis, dim in enumerate(dims) if dim % 2 == 0)
    grid = np.moveaxis(np.arange(int(np.prod(dims)), dtype=np.int64).reshape(dims), upright, 0)
    sheet = grid.reshape(grid.shape[0], -1)[:, _zigzag(grid.shape[1:])]
    rows = sheet[:, 1:].copy()
    rows[1::2] = rows[1::2, ::-1]
    return np.concatenate((rows.ravel(), sheet[::-1, 0]))


def _zigzag(dims: Sequence[int]) -> NDArray[np.int64]:
    """Cells of a grid in zigzag (boustrophedon) order, so that consecutive cells are neighbours."""
    path = np.zeros(1, dtype=np.int64)
    for dim in reversed(dims):
        size = len(path)
        turned = np.stack([path if place % 2 == 0 else path[::-1] for place in range(dim)])
        path = (turned + size * np.arange(dim, dtype=np.int64)[:, None]).ravel()
    return path
