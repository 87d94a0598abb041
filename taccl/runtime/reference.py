"""References for outputs: MPI's own collective if it exists, else sums of the inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taccl.problem.collective import Collective
from taccl.problem.collectives import arguments_of, make
from taccl.program.layout import layouts_of
from taccl.runtime.buffers import Buffers, Data, unwritten
from taccl.runtime.job import RunJob
from taccl.runtime.report import WrongChunk

Collect = Callable[[Any, NDArray[Any], NDArray[Any], int], None]

#: Name of the reference for a collective that MPI lacks.
COMPUTED = "the expected outputs, computed from all inputs (MPI has no such collective)"
#: Name of the reference for fixed point.
REAL_SUMS = "the sums of the real numbers"


@dataclass(frozen=True, slots=True)
class Counterpart:
    """MPI's own collective: ``run(communicator, input, output)`` on arrays of (chunks, elements)."""

    name: str
    run: Callable[[Any, NDArray[Any], NDArray[Any]], None]


def counterpart(collective: Collective) -> Counterpart | None:
    """MPI's own version of a collective; None if MPI has none with the same chunks."""
    if collective.name not in _COUNTERPARTS:
        return None
    arguments = arguments_of(collective)
    plain = make(
        collective.name, collective.num_ranks, chunks_per_rank=collective.chunks_per_rank, **arguments
    )
    if _ends(plain) != _ends(collective):
        return None
    root = arguments.get("root")
    name, run = _COUNTERPARTS[collective.name]
    return Counterpart(name, lambda communicator, given, output: run(communicator, given, output, root or 0))


def expected_output(job: RunJob, rank: int) -> NDArray[Any]:
    """Required output of a rank, computed from the inputs of all ranks."""
    data, chunks = Data(job), layouts_of(job.program)[rank].outputs
    output = np.empty((len(chunks), job.elements), np.float64 if data.is_fixed else job.wire)
    for index, chunk in enumerate(chunks):
        output[index] = data.result(chunk)
    return output


def find_wrong(
    job: RunJob, rank: int, buffers: Buffers, expected: NDArray[Any], *, tolerance: float, run: int, by: str
) -> list[WrongChunk]:
    """Wrong chunks of a rank: outputs that differ from `expected`; out of place, also changed inputs."""
    where, memory = layouts_of(job.program)[rank], buffers.memory
    looked_at = [("output", memory.output, expected, where.outputs, tolerance)]
    if not job.program.in_place:
        looked_at.append(("input", memory.input, buffers.given, where.inputs, 0.0))
    wrong = []
    for buffer, slots, due, chunks, most in looked_at:
        found = slots[: len(due)]
        for slot in np.flatnonzero(_differs(found, due, most).any(axis=1)).tolist():
            said = "overwritten" if buffer == "input" else _describe(found[slot], due, slot, chunks, most, by)
            wrong.append(WrongChunk(rank, buffer, slot, chunks[slot], said, run))
    return wrong


def _differs(found: NDArray[Any], expected: NDArray[Any], tolerance: float) -> NDArray[np.bool_]:
    """True where two arrays differ by more than the tolerance; with tolerance 0, where any bit differs."""
    if tolerance:
        return np.asarray(~(np.abs(found - expected) <= tolerance))  # NaN counts as different
    bits = np.dtype(f"u{found.dtype.itemsize}")
    different: NDArray[np.bool_] = found.view(bits) != expected.view(bits)
    return different


def _describe(
    found: NDArray[Any], expected: NDArray[Any], slot: int, chunks: tuple[int, ...], tolerance: float, by: str
) -> str:
    """Describe a chunk with wrong content: never written, equal to another chunk, or with wrong elements.

    - `by`: Name of the reference from which its elements differ.
    """
    nothing = unwritten(found.dtype)
    if np.isnan(found).all() if found.dtype.kind == "f" else (found == nothing).all():
        return "it was never written"
    for other, row in enumerate(expected):
        if other != slot and not _differs(found, row, tolerance).any():
            return f"it holds chunk {chunks[other]}"
    where = np.flatnonzero(_differs(found, expected[slot], tolerance))
    first = where[0]
    return (
        f"{len(where)} of {len(found)} elements differ from {by}; element {first} is {found[first]}, "
        f"expected {expected[slot][first]}"
    )


def _ends(collective: Collective) -> tuple[object, ...]:
    """Key by which two collectives are compared: origins and destinations of each chunk, in order."""
    return (
        collective.num_ranks,
        collective.combining,
        tuple((frozenset(each.origins), frozenset(each.destinations)) for each in collective.chunks),
        frozenset(collective.derivations),
    )


def _to_all(method: str) -> Collect:
    """Function that calls `method` of a communicator with an input and an output at every rank."""
    return lambda communicator, given, output, _: getattr(communicator, method)(given, output)


def _broadcast(communicator: Any, given: NDArray[Any], output: NDArray[Any], root: int) -> None:
    if communicator.rank == root:
        output[...] = given
    communicator.Bcast(output, root)


def _scatter(communicator: Any, given: NDArray[Any], output: NDArray[Any], root: int) -> None:
    communicator.Scatter(given if communicator.rank == root else None, output, root)


def _allgatherv(communicator: Any, given: NDArray[Any], output: NDArray[Any], root: int) -> None:
    counts = communicator.allgather(given.size)
    communicator.Allgatherv(given, [output, counts])


def _to_root(method: str) -> Collect:
    """Function that calls `method` of a communicator with an output at the root only."""

    def run(communicator: Any, given: NDArray[Any], output: NDArray[Any], root: int) -> None:
        getattr(communicator, method)(given, output if communicator.rank == root else None, root=root)

    return run


_COUNTERPARTS: dict[str, tuple[str, Collect]] = {
    "allgather": ("MPI_Allgather", _to_all("Allgather")),
    "allgatherv": ("MPI_Allgatherv", _allgatherv),
    "alltoall": ("MPI_Alltoall", _to_all("Alltoall")),
    "reduce-scatter": ("MPI_Reduce_scatter_block", _to_all("Reduce_scatter_block")),
    "allreduce": ("MPI_Allreduce", _to_all("Allreduce")),
    "broadcast": ("MPI_Bcast", _broadcast),
    "scatter": ("MPI_Scatter", _scatter),
    "gather": ("MPI_Gather", _to_root("Gather")),
    "reduce": ("MPI_Reduce", _to_root("Reduce")),
    "scan": ("MPI_Scan", _to_all("Scan")),
}
