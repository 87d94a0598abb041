"""Write programs as Python modules for PyTorch, which need nothing but PyTorch.

Each value is in a free slot of the user's tensors, else in a staged tensor per message. The user's input is
only read. An input that is also an output of its rank is in the output from the start. So one list of steps
serves calls in place and out of place.

The code around a schedule is that of `taccl.formats.torch.template`, without methods of other collectives.
"""

from __future__ import annotations

import ast
import re
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import NamedTuple

from taccl._internal.arguments import checked
from taccl._internal.names import shown
from taccl._internal.units import format_count
from taccl.formats.torch.rounds import METHODS, Rounds, Value, rounds_of
from taccl.program.program import Program

#: {PyTorch method: its arguments in the module's usage example}.
_EXAMPLES = {
    "all_reduce": "tensor", "reduce": "tensor", "broadcast": "tensor",
    "all_gather_into_tensor": "output, input", "reduce_scatter_tensor": "output, input",
    "all_to_all_single": "output, input", "gather": "tensor, gather_list", "scatter": "tensor, scatter_list",
}  # fmt: skip
_ROUNDS, _END = "ROUNDS: list[list[Round]] = [\n", "# --- end of the schedule ---\n"
#: Number of different tags of modules, so that two schedules on one process group rarely share a tag.
_TAGS = 2**20


@checked
def dump_torch_module(program: Program) -> str:
    """Text of a Python module that executes a program with PyTorch's point-to-point messages.

    Its class ``Collective`` has the methods of `torch.distributed` for the program's collective.

    Raises `ExportError` if PyTorch has no such collective, or the program does not compute it.
    """
    found = rounds_of(program)
    call, method = found.call, METHODS[found.call.name][0]
    template = files("taccl.formats.torch").joinpath("template.py").read_text(encoding="utf-8")
    _, example, rest = template.partition(".all_reduce(tensor)\n\n")
    before, rounds, rest = rest.partition(_ROUNDS)
    lines = [line for rank, each in enumerate(place(found)) for line in _rank_lines(rank, each)]
    table = "\n".join([*lines, "]\n"])
    for name, value in (
        ("NUM_RANKS", program.num_ranks),
        ("PARTS", call.parts),
        ("ROOT: int | None", call.root),
        ("TAG", zlib.crc32(table.encode()) % _TAGS),
    ):
        before = re.sub(rf"^({re.escape(name)}) = .*$", rf"\1 = {value}", before, flags=re.MULTILINE)
    name = shown(program.name, 100).replace("\\", "\\\\").replace('"', '\\"')
    counts = (program.num_ranks, "rank"), (found.num_rounds, "round"), (len(found.arrivals), "message")
    header = (
        f'"""{name}: {", ".join(format_count(*each) for each in counts)}; for PyTorch.\n\n'
        "    collective = Collective()  # or Collective(group)\n"
        f"    collective.{example.replace('all_reduce(tensor)', f'{method}({_EXAMPLES[method]})')[1:]}"
    )
    whole = f"{header}{before}{rounds}{table}{_END}{rest.partition(_END)[2]}"
    return _without_unused(whole, METHODS[call.name])


def _rank_lines(rank: int, rounds: Mapping[int, RankRound]) -> Iterator[str]:
    yield f"    [  # rank {rank}"
    for number, each in sorted(rounds.items()):
        yield f"        Round(  # {number}"
        for name, text in (
            ("stage", _dict({key: str(list(parts)) for key, parts in each.stage.items()})),
            ("send", _dict({peer: f"[{_places(places)}]" for peer, places in each.send.items()})),
            ("receive", _dict({peer: _place(target) for peer, target in each.receive.items()})),
        ):
            if text != "{}":
                yield f"            {name}={text},"
        if each.then:
            yield "            then=["
            yield from (f"                {_local(local)}," for local in each.then)
            yield "            ],"
        yield "        ),"
    yield "    ],"


def _local(local: Local) -> str:
    return f"Local({_place(local.target)}, [{_places(local.operands)}])"


def _places(places: Sequence[Place]) -> str:
    return ", ".join(map(_place, places))


def _place(place: Place) -> str:
    slots = f"{place.first}, {place.num}"
    if isinstance(place.buffer, int):
        return f"Staged({place.buffer}, {slots})"
    return f"{'In' if place.buffer == 'input' else 'Out'}({slots})"


def _dict(entries: Mapping[int, str]) -> str:
    return "{" + ", ".join(f"{key}: {text}" for key, text in entries.items()) + "}"


def _without_unused(text: str, methods: tuple[str, ...]) -> str:
    """Remove public methods other than `methods` from a module, then private code that is left unused."""
    tree = ast.parse(text)
    [collective] = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Collective")
    uses = {node: _used(node) for node in (*tree.body, *collective.body) if node is not collective}
    private = {node: [name for name in _names(node) if re.match("_(?!_)", name)] for node in uses}
    gone = {n for n in collective.body for name in _names(n) if name[0] != "_" and name not in methods}
    num_gone = -1
    while len(gone) > num_gone:
        num_gone = len(gone)
        used = frozenset().union(*(names for node, names in uses.items() if node not in gone))
        gone |= {node for node, names in private.items() if not used.issuperset(names)}
    lines = text.splitlines(keepends=True)
    for node in sorted(gone, key=lambda node: -node.lineno):
        first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))]) - 1
        last = node.end_lineno or node.lineno
        if lines[last : last + 1] == ["}  # fmt: skip\n"]:
            last += 1
        while first and lines[first - 1].lstrip().startswith("#"):
            first -= 1
        while first and not lines[first - 1].strip():
            first -= 1
        lines[first:last] = []
    return "".join(lines)


def _used(node: ast.stmt) -> set[str]:
    """Names and attributes that a statement uses."""
    found = set()
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute):
            found.add(each.attr)
        elif isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load):
            found.add(each.id)
    return found


def _names(node: ast.stmt) -> list[str]:
    """Names that a definition or an assignment binds."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


class Place(NamedTuple):
    """Consecutive slots of a buffer.

    - `buffer`: ``"input"``, ``"output"``, or the number of a staged tensor.
    """

    buffer: str | int
    first: int
    num: int = 1


class Local(NamedTuple):
    """Operation within a rank: `target` becomes the sum of the operands, or a copy of a single operand."""

    target: Place
    operands: tuple[Place, ...]


@dataclass(slots=True)
class RankRound:
    """One rank's messages and local operations in a round.

    - `stage` ({number of a staged tensor: for each of its slots, the part of a block that it holds}): Tensors
      to allocate first.
    - `send`, `receive` ({peer: places}): One message per peer; its chunks are contiguous at the receiver.
    - `then`: Operations once all messages have arrived, in order.
    """

    stage: dict[int, tuple[int, ...]] = field(default_factory=dict)
    send: dict[int, tuple[Place, ...]] = field(default_factory=dict)
    receive: dict[int, Place] = field(default_factory=dict)
    then: list[Local] = field(default_factory=list)


def place(found: Rounds) -> list[dict[int, RankRound]]:
    """Choose buffers for all chunks; return, for each rank, {round: its messages and operations}.

    The key `num_rounds` has the rank's operations after all rounds.
    """
    return _Placing(found).run()


class _Placing:
    """State of a pass over all rounds: the place of each value so far, and the staged tensors in use."""

    def __init__(self, found: Rounds) -> None:
        self.found = found
        self.at: dict[int, Place] = {}
        #: {(rank, output slot): the value that it holds}.
        self.occupant: dict[tuple[int, int], Value] = {}
        #: For each rank, {number of a staged tensor: last round that reads it}.
        self.in_use: list[dict[int, int]] = [{} for _ in found.layouts]
        self.rounds: list[dict[int, RankRound]] = [defaultdict(RankRound) for _ in found.layouts]

    def run(self) -> list[dict[int, RankRound]]:
        for rank, values in enumerate(self.found.inputs):
            outputs = {chunk: slot for slot, chunk in enumerate(self.found.layouts[rank].outputs)}
            for value in values:
                slot = outputs.get(value.chunk)
                self.at[value.number] = (
                    Place("input", value.input_slot) if slot is None else Place("output", slot)
                )
                if slot is not None:
                    self.occupant[rank, slot] = value
        messages: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for number, src, dst in self.found.arrivals:
            messages[number].append((src, dst))
        for number in range(self.found.num_rounds):
            for src, dst in sorted(messages[number]):
                self._message(number, src, dst, self.found.arrivals[number, src, dst])
            for rank in range(len(self.found.layouts)):
                for value in self.found.sums.get((number, rank), ()):
                    self._sum(number, value)
                self._join(self.rounds[rank].get(number))
        for rank, values in enumerate(self.found.outputs):
            end = self.found.num_rounds
            for value in values:
                home = Place("output", value.output_slot)
                if self.at[value.number] != home:
                    self.rounds[rank][end].then.append(Local(home, (self.at[value.number],)))
            self._join(self.rounds[rank].get(end))
        return self.rounds

    def _message(self, number: int, src: int, dst: int, arrivals: Sequence[Value]) -> None:
        """Place a message's values in free consecutive slots of the output, else in a staged tensor."""
        mine = self.rounds[dst][number]
        before = (number, -1)
        homes = [value.output_slot for value in arrivals]
        direct = all(self._is_free(value, before) for value in arrivals)
        ordered = sorted(arrivals, key=lambda value: value.output_slot if direct else self._order(value))
        if direct and max(homes) - min(homes) + 1 == len(homes):
            target = Place("output", min(homes), len(homes))
            for value in arrivals:
                self._put(value, value.output_slot)
        else:
            moved = [value for value in ordered if self._is_free(value, (number, 0))]
            target = Place(self._staged(dst, number, ordered, moved), 0, len(ordered))
            for i, value in enumerate(ordered):
                self.at[value.number] = Place(target.buffer, i)
            for value in moved:
                mine.then.append(Local(Place("output", value.output_slot), (self.at[value.number],)))
                self._put(value, value.output_slot)
        mine.receive[src] = target
        sources = [self.at[value.source.number] for value in ordered if value.source is not None]
        self.rounds[src][number].send[dst] = joined(sources)

    def _sum(self, number: int, value: Value) -> None:
        """Place a sum: in its output slot if free, else in place of a summand, else in a staged tensor."""
        now = (number, value.turn)
        operands = tuple(self.at[each.number] for each in value.summands)
        if self._is_free(value, now):
            self._put(value, value.output_slot)
        else:
            unread = (
                at
                for at, each in zip(operands, value.summands, strict=True)
                if at.buffer != "input" and each.last_read <= now
            )
            target = next(unread, None)
            if target is None:
                target = Place(self._staged(value.rank, number, [value]), 0)
            self.at[value.number] = target
            if isinstance(target.buffer, int):
                self._keep(value.rank, target.buffer, value)
            else:
                self.occupant[value.rank, target.first] = value
        self.rounds[value.rank][number].then.append(Local(self.at[value.number], operands))

    def _order(self, value: Value) -> tuple[str, int, int]:
        """Sort key of an arrived value: the buffer and slot of its copy at the sender."""
        assert value.source is not None, "it arrived"
        at = self.at[value.source.number]
        return (at.buffer, 0, at.first) if isinstance(at.buffer, str) else ("", at.buffer, at.first)

    def _is_free(self, value: Value, time: tuple[int, int]) -> bool:
        """True if a value belongs in an output slot that nothing reads at or after `time`, a (round, turn).

        The previous occupant may be a summand of the value itself.
        """
        if value.output_slot < 0:
            return False
        held = self.occupant.get((value.rank, value.output_slot))
        return held is None or held.last_read < time or (held in value.summands and held.last_read == time)

    def _put(self, value: Value, slot: int) -> None:
        self.occupant[value.rank, slot] = value
        self.at[value.number] = Place("output", slot)

    def _staged(self, rank: int, number: int, values: Sequence[Value], moved: Sequence[Value] = ()) -> int:
        """Reserve the lowest-numbered free staged tensor for `values` in a round; return its number.

        The tensor stays in use until the values are read, except for values that are `moved` to the output in
        this round.
        """
        busy = self.in_use[rank]
        free = next(i for i in range(len(busy) + 1) if busy.get(i, -1) < number)
        busy[free] = number
        for value in values:
            if value not in moved:
                self._keep(rank, free, value)
        parts = self.found.call.parts
        self.rounds[rank][number].stage[free] = tuple(value.chunk % parts for value in values)
        return free

    def _keep(self, rank: int, staged: int, value: Value) -> None:
        """Keep a staged tensor in use until the last read of a value in it."""
        last = value.last_read[0]
        self.in_use[rank][staged] = max(self.in_use[rank][staged], last)

    def _join(self, mine: RankRound | None) -> None:
        """Merge successive operations of a round whose slots are all consecutive."""
        if mine is None:
            return
        done: list[Local] = []
        for each in mine.then:
            before = done[-1] if done else None
            if before is not None and len(before.operands) == len(each.operands):
                pairs = zip((before.target, *before.operands), (each.target, *each.operands), strict=True)
                if all(a.buffer == b.buffer and a.first + a.num == b.first for a, b in pairs):
                    wider = [a._replace(num=a.num + 1) for a in (before.target, *before.operands)]
                    done[-1] = Local(wider[0], tuple(wider[1:]))
                    continue
            done.append(each)
        mine.then[:] = done


def joined(places: Sequence[Place]) -> tuple[Place, ...]:
    """Merge places of one slot each that are consecutive in a buffer; keep their order."""
    runs: list[Place] = []
    for each in places:
        last = runs[-1] if runs else None
        if last is not None and last.buffer == each.buffer and last.first + last.num == each.first:
            runs[-1] = last._replace(num=last.num + 1)
        else:
            runs.append(each)
    return tuple(runs)
