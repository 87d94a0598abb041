"""Collective of an upstream algorithm file, from the origins and destinations of its chunks.

Chunks with the same address are contributions to one sum. The tool's own allreduce is an exception: its sends
name chunks by number, and all of these share a few addresses.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

from taccl.errors import FormatError
from taccl.formats.published.fields import REMEDY, AlgorithmFile, ChunkFields
from taccl.problem.collective import Chunk, Collective
from taccl.problem.collectives import ROOTED, make

_LONGEST_NAME = 200

#: {the tool's name of a collective: (our name, power)}; n ranks have n ** power chunks, or a multiple.
KINDS = {
    "Allgather": ("allgather", 1), "Alltoall": ("alltoall", 2), "Broadcast": ("broadcast", 0),
    "Scatter": ("scatter", 1), "Gather": ("gather", 1), "Allreduce": ("allreduce", 1),
    "Reduce": ("reduce", 0), "ReduceScatter": ("reduce-scatter", 1),
}  # fmt: skip


def collective_of(file: AlgorithmFile) -> tuple[dict[int, int], Collective, list[str]]:
    """{number that sends use: chunk}, the collective, and notes for the user."""
    chunks = file.collective.chunks
    by_address: dict[int, list[ChunkFields]] = defaultdict(list)
    for each in chunks:
        by_address[each.addr].append(each)
    numbered = {address: index for index, address in enumerate(by_address)}
    if len(by_address) == len(chunks):
        alone = [Chunk(tuple(sorted(each.pre)), tuple(sorted(each.post))) for each in chunks]
        return numbered, _named(file, alone, combining=False), []
    sends = [send for _, send in file.sends]
    numbers = {send.chunk for send in sends}
    if numbers.issubset(by_address) or not any(send.operation for send in sends):
        sums = [_sum(file, address, parts) for address, parts in by_address.items()]
        return numbered, _named(file, sums, combining=True), []
    # The tool's own allreduce: sends name chunks by number. Each is a piece of every rank's data, and is
    # summed at the rank where the file lets it start.
    everyone = tuple(range(file.num_ranks))
    pieces = []
    for index, each in enumerate(chunks):
        if len(each.pre) != 1 or not each.post:
            raise FormatError(
                f"found {len(each.pre)} ranks where it starts and {len(each.post)} where it ends; expected "
                f"one rank, at which it is summed, and at least one; {REMEDY}",
                where=f"{file.where}: collective.chunks[{index}]",
            )
        pieces.append(Chunk(everyone, tuple(sorted(each.post)), each.pre[0]))
    note = (
        f"{file.where}: sends name {len(numbers)} chunks, but the buffers hold {len(by_address)}; the chunks "
        "are taken as pieces of every rank's data, and the buffer maps are set aside"
    )
    return {index: index for index in range(len(pieces))}, _named(file, pieces, combining=True), [note]


def _sum(file: AlgorithmFile, address: int, parts: Sequence[ChunkFields]) -> Chunk:
    """The chunk that is the sum of the contributions to one address; its root is the first destination."""
    origins = sorted(rank for each in parts for rank in each.pre)
    destinations = sorted(parts[0].post)
    if (
        any(sorted(each.post) != destinations for each in parts)
        or len(set(origins)) < len(origins)
        or not destinations
    ):
        raise FormatError(
            f"address {address}: found contributions that end at different ranks, come twice from one, or "
            "end nowhere; expected one sum that the same ranks ask for; others (scan) are not read",
            where=f"{file.where}: collective.chunks",
        )
    return Chunk(tuple(origins), tuple(destinations), destinations[0])


def _named(file: AlgorithmFile, chunks: list[Chunk], *, combining: bool) -> Collective:
    """The collective of these chunks, with our name for it if the chunks match that collective."""
    stated = file.collective.name
    collective = Collective(stated[:_LONGEST_NAME], file.num_ranks, tuple(chunks), combining)
    name = stated.partition("(")[0]
    if name not in KINDS:
        return collective
    kind, fewest = KINDS[name][0], file.num_ranks ** KINDS[name][1]
    per_rank, rest = divmod(len(chunks), fewest)
    ends = chunks[0].destinations if kind in ("gather", "reduce") else chunks[0].origins
    if rest or not per_rank or not ends:
        return collective
    root = ends[0] if kind in ROOTED else None
    known = make(kind, file.num_ranks, root=root, chunks_per_rank=per_rank)
    if _ends(known) != _ends(collective):
        return collective
    return replace(collective, name=kind, chunks_per_rank=per_rank)


def _ends(collective: Collective) -> Counter[tuple[object, ...]]:
    """Number of chunks by origins and destinations, ignoring roots, which the tool chooses."""
    return Counter((c.origins, c.destinations, collective.combining) for c in collective.chunks)
