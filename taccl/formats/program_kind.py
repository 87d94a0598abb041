"""Describe a program to a runtime: name of its collective, buffer sizes in chunks, and message sizes."""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

from taccl.errors import ExportError, FallbackWarning, FormatError, InputError, LossyConversionWarning, warn
from taccl.problem.chunks import Chunk
from taccl.problem.collective import Collective
from taccl.problem.collectives import make
from taccl.program.layout import layout
from taccl.program.program import Program

#: Collectives whose calls state the number of elements per rank, not of the whole buffer.
_COUNTED_BY_RANK = ("allgather", "alltoall", "gather", "reduce-scatter", "scatter")


class ProgramKind(NamedTuple):
    """Collective of a program: its name in a runtime, its size in chunks, and its root.

    - `name`: MSCCL's name of the collective, or ``custom``.
    - `size`: Number of chunks of the larger buffer of a rank.
    - `root`: Root of a broadcast or reduce.
    """

    name: str
    size: int
    root: int | None = None

    def buffer_chunks(self, num_ranks: int) -> tuple[int, int]:
        """Numbers of chunks of the input and of the output, the same at every rank."""
        part = self.size // num_ranks
        inputs = part if self.name == "allgather" else self.size
        return inputs, part if self.name == "reduce_scatter" else self.size


def kind_of(program: Program, format_name: str) -> ProgramKind:
    """`ProgramKind` with MSCCL's name of a program's collective; ``custom`` if MSCCL has no name for it."""
    collective = program.collective
    if not any(rank.input_chunks or rank.output_chunks for rank in program.ranks):
        raise ExportError(f"{format_name} requires chunks, but {program.name} has none")
    if collective is None:
        longest = max(max(rank.input_chunks, rank.output_chunks) for rank in program.ranks)
        return ProgramKind("custom", longest)
    everyone, count, n = tuple(range(program.num_ranks)), collective.num_chunks, program.num_ranks
    starts = [chunk.origins for chunk in collective.chunks]
    ends = [chunk.destinations for chunk in collective.chunks]
    own = [(c // -(-count // n),) for c in range(count)] if count % n == 0 else None  # owner of each chunk
    if not collective.derivations and {*(starts if collective.combining else ends)} == {everyone}:
        # If combining, every chunk is a sum over all ranks; otherwise every chunk is sent to all ranks.
        # `others` is where the sums end, or where the chunks start.
        others = ends if collective.combining else starts
        if collective.combining and {*others} == {everyone}:
            return ProgramKind("allreduce", count)
        if others == own:
            return ProgramKind("reduce_scatter" if collective.combining else "allgather", count)
        if len(set(others)) == 1 and len(others[0]) == 1:
            return ProgramKind("reduce" if collective.combining else "broadcast", count, others[0][0])
    pairs = [((s,), (d,)) for s in everyone for d in everyone for _ in range(count // n**2)]
    if not collective.combining and not collective.derivations and pairs == [*zip(starts, ends, strict=True)]:
        return ProgramKind("alltoall", count // n)
    layouts = layout(collective)
    if program.in_place and any(where.input_offset or where.output_offset for where in layouts):
        raise ExportError(
            f"{format_name} lacks {collective.name}, and a custom algorithm's input and "
            "output begin together in place; lower the schedule out of place"
        )
    return ProgramKind("custom", max(max(len(where.inputs), len(where.outputs)) for where in layouts))


def collective_of(kind: ProgramKind, num_ranks: int) -> Collective | None:
    """Collective that a `ProgramKind` describes; None for ``custom``, which is no particular collective."""
    if kind.name == "custom":
        return None
    if kind.name in ("broadcast", "reduce"):
        return make(kind.name, num_ranks, root=kind.root, chunks_per_rank=kind.size)
    if kind.name == "allreduce":
        everyone, each = tuple(range(num_ranks)), -(-kind.size // num_ranks)
        chunks = tuple(Chunk(everyone, everyone, c // each) for c in range(kind.size))
        return Collective("allreduce", num_ranks, chunks, True, each)
    if kind.size % num_ranks:
        raise FormatError(f"found {kind.size} chunks; expected a multiple of the ranks, of {kind.name}")
    return make(kind.name, num_ranks, chunks_per_rank=kind.size // num_ranks)


def sizes_of(program: Program, least: int | None, most: int | None, *, otherwise: int) -> tuple[int, int]:
    """Smallest and largest size in bytes for which a runtime uses a program: `least` and `most` if given.

    The default is the program's own range, or 0 to `otherwise` if the program has no range.
    """
    usual = program.sizes_bytes or (0, otherwise)
    if least is None:
        least = usual[0] if most is None else min(usual[0], most)
    if most is None:
        most = max(usual[1], least)
    if not 0 <= least <= most:
        raise InputError(f"found {least} to {most} bytes; expected a range", where="min_bytes")
    return least, most


def serves_powers_of_two(divisor: int, collective: str, num_ranks: int) -> bool:
    """True if large powers of two, as numbers of elements or bytes in a call, are multiples of `divisor`."""
    ranks = num_ranks if collective in _COUNTED_BY_RANK else 1
    return (divisor // gcd(divisor, ranks)).bit_count() == 1


def note_of_multiples(program: Program) -> str:
    """Text for the user if the program's file cannot serve sizes that are powers of two; empty if it can."""
    name = "" if program.collective is None else program.collective.name
    if serves_powers_of_two(program.size_chunks, name, program.num_ranks):
        return ""
    return f"the file serves only data that divide into {program.size_chunks} chunks, so no powers of two"


def warn_of_split(limit: str) -> None:
    """Warn that threadblocks were split by default, because of a runtime's limit."""
    text = f"{limit}: each longer threadblock was split into several that take turns"
    warn(text, FallbackWarning)


def warn_of_updates(program: Program, format_name: str) -> None:
    """Warn that a file for a runtime lacks the updates of the servers in the program's collective, if any."""
    if program.collective is not None and program.collective.update_us_per_mb:
        warn(
            f"{format_name} has no updates by servers: sums are passed on as they are", LossyConversionWarning
        )
