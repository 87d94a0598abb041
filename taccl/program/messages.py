"""What a schedule moves between two ranks, and the values that each rank holds on the way."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from taccl.errors import InputError
from taccl.program.allocate import START, Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taccl.collective import Collective
    from taccl.program.layout import RankLayout
    from taccl.program.program import Slot
    from taccl.schedule.schedule import Schedule

__all__ = ["Message", "Part", "events_of", "follow", "messages_of"]


@dataclass(eq=False, slots=True)
class Part:
    """One chunk of a message: the value read, and the value it becomes, perhaps added to another."""

    chunk: int
    taken: Value | None = None
    made: Value | None = None
    #: Chunks that the receiver makes of this one by adding its own contribution: from which value, and it.
    derived: list[tuple[Value, Value]] = field(default_factory=list)

    @property
    def place(self) -> Slot:
        """Where it is read."""
        assert self.taken is not None, "a part is placed once it was followed"
        return self.taken.place


@dataclass(eq=False, slots=True)
class Message:
    """What goes from one rank to another in one send, `number` in order of end."""

    src: int
    dst: int
    lane: int
    parts: list[Part]
    start: int
    end: int
    reduce: bool
    number: int = -1
    channel: int = 0


def messages_of(schedule: Schedule) -> list[Message]:
    """What goes between two ranks, in order of end; of a switch that multicasts, once to each.

    A switch that reduces becomes messages that are added up where they arrive; where nothing is to be summed,
    one of its sources is enough.
    """
    links, collective = schedule.problem.topology.links, schedule.problem.collective
    lanes: dict[tuple[int, int], list[int]] = defaultdict(list)
    groups: dict[int, list[tuple[int, int, int, int, bool]]] = defaultdict(list)
    for t in schedule:
        groups[t.group].append((t.chunk, t.link, t.start_ticks, t.end_ticks, t.reduce))
    keyed = []
    for members in groups.values():
        _, link, start, end, reduce = members[0]
        for dst in links[link].dsts:
            for i, src in enumerate(links[link].srcs[: None if collective.sums_up else 1]):
                known = lanes[src, dst]
                if link not in known:
                    known.append(link)
                parts = [Part(chunk) for chunk, *_ in members]
                message = Message(src, dst, known.index(link), parts, start, end, reduce or i > 0)
                # At one moment sums come first, as the verifier has it.
                keyed.append(((end, not reduce, start), message))
    messages = [message for _, message in sorted(keyed, key=lambda each: each[0])]
    for number, message in enumerate(messages):
        message.number = number
    return messages


def events_of(messages: Sequence[Message]) -> list[tuple[int, bool, Message]]:
    """Every message twice, (time, whether it starts, message): at one moment what arrives comes first."""
    events = [(m.end, False, m) for m in messages] + [(m.start, True, m) for m in messages]
    return sorted(events, key=lambda event: (event[0], event[1], event[2].number))


def follow(
    messages: list[Message], collective: Collective, layouts: Sequence[RankLayout]
) -> list[dict[int, Value]]:
    """Enter into every message the values it reads and makes; returns what each rank starts with.

    Arrivals of what a rank already has are dropped where nothing combines.
    """
    makes: dict[tuple[int, int], list[int]] = defaultdict(list)
    for each in collective.derivations:
        makes[each.rank, each.source].append(each.chunk)
    derived = {each.chunk for each in collective.derivations}
    own = [{chunk: Value(chunk, START) for chunk in where.inputs} for where in layouts]
    held = [{c: v for c, v in mine.items() if c not in derived} for mine in own]
    for time, starts, message in events_of(messages):
        if starts:
            for part in message.parts:
                part.taken = _held_value(held[message.src], part.chunk, message)
                part.taken.read_until = max(part.taken.read_until, message.end)
            continue
        mine = held[message.dst]
        if not collective.sums_up:
            message.parts = [part for part in message.parts if part.chunk not in mine]
        for part in message.parts:
            before = mine.get(part.chunk) if message.reduce else None
            part.made = mine[part.chunk] = Value(part.chunk, time, added_to=before)
            if before is not None:
                before.added_at = time
            pending = [part.made]
            while pending:
                source = pending.pop()
                for chunk in makes[message.dst, source.chunk]:
                    if chunk in mine:
                        continue
                    contribution = own[message.dst][chunk]
                    contribution.added_at = time
                    mine[chunk] = made = Value(chunk, time, added_to=contribution)
                    source.read_until = max(source.read_until, time)
                    part.derived.append((source, made))
                    pending.append(made)
    messages[:] = [message for message in messages if message.parts]
    for rank, where in enumerate(layouts):
        for chunk in where.outputs:
            if chunk not in held[rank]:
                raise InputError(
                    f"chunk {chunk} never arrives at rank {rank}; verify the schedule first", where="schedule"
                )
            held[rank][chunk].final = True
    return own


def _held_value(held: dict[int, Value], chunk: int, message: Message) -> Value:
    if chunk not in held:
        raise InputError(
            f"chunk {chunk} is sent from rank {message.src} to {message.dst} before it is there; verify the "
            "schedule first",
            where="schedule",
        )
    return held[chunk]
