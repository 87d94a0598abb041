"""A replay of a PyTorch module without PyTorch: rounds of all ranks on chunks as sets of contributions."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Marker in receive buffers until the message arrives; adding to it is an error.
OVERWRITTEN = None


class In(NamedTuple):
    first: int
    count: int


class Out(NamedTuple):
    first: int
    count: int


class Staged(NamedTuple):
    number: int
    first: int
    count: int


class Local(NamedTuple):
    target: Any
    operands: list[Any]


class Round(NamedTuple):
    stage: dict[int, list[int]] = {}
    send: dict[int, list[Any]] = {}
    receive: dict[int, Any] = {}
    then: list[Local] = []


def table_of(text: str) -> dict[str, Any]:
    """{name: value} of the constants of a module."""
    names: dict[str, Any] = {"In": In, "Out": Out, "Staged": Staged, "Local": Local, "Round": Round}
    _, _, rest = text.partition("# --- the schedule ---\n")
    exec(rest.partition("# --- end of the schedule ---")[0], names)
    return names


class Replay:
    """Replay of a module's rounds on all ranks; `inputs` and `outputs` have a list of chunks for each rank.

    Receives write before the sends of their round read, as messages may overtake each other.
    """

    def __init__(self, table: dict[str, Any], inputs: list[list[Any]], outputs: list[list[Any]]) -> None:
        self.rounds, self.inputs, self.outputs = table["ROUNDS"], inputs, outputs
        self.staged: list[dict[int, list[Any]]] = [{} for _ in self.rounds]
        self.under_way: dict[tuple[int, int], deque[list[Any]]] = defaultdict(deque)
        self.num_messages = 0

    def run(self) -> None:
        running = {rank: self._rank(rank) for rank in range(len(self.rounds))}
        while running:
            before = len(running), self.num_messages
            running = {rank: each for rank, each in running.items() if next(each, "done") != "done"}
            waiting = [queue for queue in self.under_way.values() if queue]
            assert (len(running), self.num_messages) != before or waiting, "ranks wait for each other"
        assert not any(self.under_way.values()), "a message is never received"

    def _rank(self, rank: int) -> Iterator[str]:
        for part in self.rounds[rank]:
            for number, parts in part.stage.items():
                self.staged[rank][number] = [OVERWRITTEN] * len(parts)
            for place in part.receive.values():
                self._write(rank, place, [OVERWRITTEN] * place.count)
            for peer, places in part.send.items():
                chunks = [chunk for place in places for chunk in self._read(rank, place)]
                self.under_way[rank, peer].append(chunks)
                self.num_messages += 1
            for peer, place in part.receive.items():
                while not self.under_way[peer, rank]:
                    yield "waits"
                self._write(rank, place, self.under_way[peer, rank].popleft())
            for target, operands in part.then:
                first, *others = [self._read(rank, each) for each in operands]
                for other in others:
                    assert not any(a & b for a, b in zip(first, other, strict=True)), "added twice"
                    first = [a | b for a, b in zip(first, other, strict=True)]
                self._write(rank, target, first)

    def _buffer(self, rank: int, place: Any) -> list[Any]:
        if isinstance(place, Staged):
            return self.staged[rank][place.number]
        return (self.inputs if isinstance(place, In) else self.outputs)[rank]

    def _read(self, rank: int, place: Any) -> list[Any]:
        found = self._buffer(rank, place)[place.first : place.first + place.count]
        assert len(found) == place.count, f"rank {rank} reads past the end of {place}"
        assert OVERWRITTEN not in found, f"rank {rank} reads {place}, which a message overwrites"
        return found

    def _write(self, rank: int, place: Any, chunks: list[Any]) -> None:
        assert len(chunks) == place.count, f"rank {rank} writes {len(chunks)} chunks to {place}"
        self._buffer(rank, place)[place.first : place.first + place.count] = chunks


def replayed(text: str, collective: Any) -> Replay:
    """Execute a module on the inputs of a collective, and assert its outputs."""
    from taccl.program.layout import layout

    layouts = layout(collective)
    kept = collective.combining

    def content(chunk: int, ranks: Any) -> frozenset[tuple[int, int]]:
        return frozenset((chunk, rank if kept else -1) for rank in ranks)

    inputs = [[content(c, [rank]) for c in where.inputs] for rank, where in enumerate(layouts)]
    outputs = [
        [content(c, [rank]) if c in where.inputs else OVERWRITTEN for c in where.outputs]
        for rank, where in enumerate(layouts)
    ]
    given = [list(each) for each in inputs]
    found = Replay(table_of(text), inputs, outputs)
    found.run()
    assert found.inputs == given
    for where, mine in zip(layouts, found.outputs, strict=True):
        assert mine == [content(c, collective.chunks[c].origins) for c in where.outputs]
    return found
