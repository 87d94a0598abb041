"""Messages of a schedule between two ranks, and the values that each rank holds meanwhile."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from taccl.collective import Collective
from taccl.errors import InputError
from taccl.program.allocate import FOREVER, START, Value
from taccl.program.layout import RankLayout
from taccl.program.program import Slot
from taccl.schedule.precedence import Arrival, bits_of, make_up
from taccl.schedule.schedule import Schedule, Transfer


@dataclass(eq=False, slots=True)
class MessagePart:
    """One chunk of a message: the value read, and the value it becomes, perhaps added to another."""

    chunk: int
    taken: Value | None = None
    #: Values that are summed up to make `taken`, where it is not there yet.
    summed: list[Value] = field(default_factory=list)
    #: The ranks whose contributions it carries, as bits, where the schedule names them.
    bits: int = 0
    made: Value | None = None
    #: Chunks that the receiver makes of this one by adding its own contribution: from which value, and it.
    derived: list[tuple[Value, Value]] = field(default_factory=list)

    @property
    def place(self) -> Slot:
        """Slot where it is read."""
        assert self.taken is not None, "a part is placed once it was followed"
        return self.taken.place


@dataclass(eq=False, slots=True)
class Message:
    """Message from one rank to another in one send, `number` in order of end."""

    src: int
    dst: int
    lane: int
    parts: list[MessagePart]
    start: int
    end: int
    reduce: bool
    number: int = -1
    channel: int = 0


def messages_of(schedule: Schedule) -> list[Message]:
    """Messages between ranks, in order of end; one to each destination of a multicast.

    A switch that reduces becomes messages that are added up where they arrive; where nothing is to be summed,
    one of its sources is enough.
    """
    links, collective = schedule.problem.topology.links, schedule.problem.collective
    lanes: dict[tuple[int, int], list[int]] = defaultdict(list)
    groups: dict[int, list[Transfer]] = defaultdict(list)
    for t in schedule:
        groups[t.group].append(t)
    keyed = []
    for members in groups.values():
        _, link, start, end, _, reduce, _ = members[0]
        for dst in links[link].dsts:
            for i, src in enumerate(links[link].srcs[: None if collective.sums_up else 1]):
                known = lanes[src, dst]
                if link not in known:
                    known.append(link)
                parts = [MessagePart(t.chunk, bits=bits_of(t.contributions or ())) for t in members]
                message = Message(src, dst, known.index(link), parts, start, end, reduce or i > 0)
                # Sums come first among equal times, as in the verifier.
                keyed.append(((end, not reduce, start), message))
    messages = [message for _, message in sorted(keyed, key=lambda each: each[0])]
    for number, message in enumerate(messages):
        message.number = number
    return messages


def events_of(messages: Sequence[Message]) -> list[tuple[int, bool, Message]]:
    """Every message twice, (time, True if it starts, message); arrivals come first among equal times."""
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
        if each.rank in collective.chunks[each.source].origins:
            said = (
                f"rank {each.rank} makes chunk {each.chunk} of chunk {each.source}, which it starts with; a "
            )
            said += f"program makes chunks of what arrives: let chunk {each.chunk} start there itself"
            raise InputError(said, where="schedule")
    derived = {each.chunk for each in collective.derivations}
    own = [{chunk: Value(chunk, START) for chunk in where.inputs} for where in layouts]
    held = [{c: v for c, v in mine.items() if c not in derived} for mine in own]
    for time, starts, message in events_of(messages):
        if starts:
            for part in message.parts:
                if part.chunk not in held[message.src]:
                    raise InputError(
                        f"chunk {part.chunk} is sent from rank {message.src} to {message.dst} before it is "
                        "there; verify the schedule first",
                        where="schedule",
                    )
                part.taken = held[message.src][part.chunk]
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


@dataclass(eq=False, slots=True)
class _Piece:
    """Arrivals of a chunk at a rank that are summed in one value."""

    arrivals: set[int]
    value: Value


@dataclass(eq=False, slots=True)
class _Reader:
    """A part that is sent, or a result: from when it reads, and the arrivals that it sums."""

    since: int
    arrivals: set[int]


#: Among arrivals, which else are ids of parts: what a rank contributes, and a copy where its result is to be.
_OWN, _COPY = -1, -2


@dataclass(eq=False, slots=True)
class NamedSums:
    """Inputs of ranks, and their sums at the end, if a schedule names the contributions it carries.

    - `own` (list of dict of int to Value): What each rank contributes to each chunk.
    - `copies`: Copies of these where results are to be, which arrivals are added to.
    - `results` (list of list of (Value, list of Value)): Results of each rank that are summed up at the end,
      and of what.
    """

    own: list[dict[int, Value]]
    copies: list[list[Value]] = field(default_factory=list)
    results: list[list[tuple[Value, list[Value]]]] = field(default_factory=list)


def follow_named(
    messages: list[Message], collective: Collective, layouts: Sequence[RankLayout], *, in_place: bool
) -> NamedSums:
    """The same where messages name the contributions that they carry, and ranks keep what arrives apart.

    An arrival is added to a value at once where whatever reads either of them later reads both. What nobody
    reads is not sent.
    """
    plan = _SumPlan(messages, collective, layouts)
    for message in messages:
        message.parts = [part for part in message.parts if id(part) in plan.reads]
    messages[:] = [message for message in messages if message.parts]
    own = [{chunk: Value(chunk, START) for chunk in where.inputs} for where in layouts]
    pieces: dict[tuple[int, int], list[_Piece]] = defaultdict(list)
    copies: list[list[Value]] = []
    for rank, values in enumerate(own):
        copies.append([])
        for chunk, value in values.items():
            pieces[rank, chunk].append(_Piece({_OWN}, value))
            if not in_place and plan.wants_copy(rank, chunk):
                copies[rank].append(Value(chunk, START))
                pieces[rank, chunk].append(_Piece({_COPY}, copies[rank][-1]))
    totals: set[int] = set()
    for time, starts, message in events_of(messages):
        rank = message.src if starts else message.dst
        for part in message.parts:
            kept = pieces[rank, part.chunk]
            later = [each for each in plan.readers[rank, part.chunk] if each.since >= time]
            if starts:
                part.taken = _taken(kept, plan.reads[id(part)], later, part, message)
                part.taken.read_until = max(part.taken.read_until, message.end)
                totals |= {id(part.taken)} if part.summed else set()
            else:
                part.made = _kept(kept, id(part), later, part.chunk, time)
    results: list[list[tuple[Value, list[Value]]]] = []
    for rank, where in enumerate(layouts):
        results.append([])
        for chunk in where.outputs:
            wanted = plan.results[rank, chunk].arrivals
            read = [piece.value for piece in pieces[rank, chunk] if piece.arrivals <= wanted]
            result = read[0]
            if len(read) > 1 or id(result) in totals:
                result = Value(chunk, FOREVER)
                results[rank].append((result, read))
                for value in read:
                    value.read_until = FOREVER
            result.final = True
    return NamedSums(own, copies, results)


class _SumPlan:
    """Readers of arrivals: parts that are sent on, by id, and results.

    - `readers`: dict of (rank, chunk) to list of _Reader.
    - `results`: dict of (rank, chunk) to _Reader.
    - `reads` (dict of int to _Reader): Of every part that somebody reads where it arrives.
    """

    def __init__(
        self, messages: Sequence[Message], collective: Collective, layouts: Sequence[RankLayout]
    ) -> None:
        arrivals: dict[tuple[int, int], list[Arrival]] = defaultdict(list)
        for rank, where in enumerate(layouts):
            for chunk in where.inputs:
                if rank in collective.chunks[chunk].origins:
                    arrivals[rank, chunk].append(Arrival(START, 1 << rank, _OWN))
        for message in messages:
            for part in message.parts:
                arrivals[message.dst, part.chunk].append(Arrival(message.end, part.bits, id(part)))
        self.readers: dict[tuple[int, int], list[_Reader]] = defaultdict(list)
        self.results: dict[tuple[int, int], _Reader] = {}
        for rank, where in enumerate(layouts):
            for chunk in where.outputs:
                whole = bits_of(collective.chunks[chunk].origins)
                reader = _reader(arrivals[rank, chunk], whole, FOREVER, chunk, rank)
                self.results[rank, chunk] = reader
                self.readers[rank, chunk].append(reader)
        self.reads: dict[int, _Reader] = {}
        for message in sorted(messages, key=lambda each: -each.end):  # what reads an arrival ends after it
            for part in message.parts:
                if any(id(part) in reader.arrivals for reader in self.readers[message.dst, part.chunk]):
                    here = arrivals[message.src, part.chunk]
                    reader = _reader(here, part.bits, message.start, part.chunk, message.src)
                    self.reads[id(part)] = reader
                    self.readers[message.src, part.chunk].append(reader)

    def wants_copy(self, rank: int, chunk: int) -> bool:
        """Whether a rank's contribution is sent alone, and is in its result: that then begins with a copy."""
        result = self.results.get((rank, chunk))
        apart = any(reader.arrivals == {_OWN} for reader in self.readers[rank, chunk])
        if result is None or not apart or _OWN not in result.arrivals:
            return False
        result.arrivals = result.arrivals - {_OWN} | {_COPY}
        return True


def _kept(here: list[_Piece], arrival: int, later: Sequence[_Reader], chunk: int, time: int) -> Value:
    """The value that an arrival becomes: by itself, or added to one that the same readers read."""
    piece = _Piece({arrival}, Value(chunk, time))
    beside = next((each for each in here if _read_alike([each, piece], later)), None)
    if beside is not None:
        here.remove(beside)
        beside.value.added_at = time
        piece = _Piece(beside.arrivals | {arrival}, Value(chunk, time, added_to=beside.value))
    here.append(piece)
    return piece.value


def _reader(arrivals: Sequence[Arrival], bits: int, since: int, chunk: int, rank: int) -> _Reader:
    parts = make_up(bits, [each for each in arrivals if each.end <= since])
    if parts is None:
        raise InputError(
            f"rank {rank} has not what makes up a sum of chunk {chunk}; verify the schedule first",
            where="schedule",
        )
    return _Reader(since, {each.send for each in parts})


def _read_alike(pieces: Sequence[_Piece], readers: Sequence[_Reader]) -> bool:
    """Whether whoever reads one of some pieces reads all."""
    return all(len({piece.arrivals <= reader.arrivals for piece in pieces}) == 1 for reader in readers)


def _taken(
    here: list[_Piece], reader: _Reader, later: Sequence[_Reader], part: MessagePart, message: Message
) -> Value:
    """What a part reads: a value that is there, or the sum of several, which stays where it can."""
    read = [piece for piece in here if piece.arrivals <= reader.arrivals]
    if len(read) == 1:
        return read[0].value
    part.summed = [piece.value for piece in read]
    total = Value(part.chunk, message.start)
    for value in part.summed:
        value.read_until = max(value.read_until, message.start)
    if _read_alike(read, later):
        here[:] = [piece for piece in here if piece not in read]
        here.append(_Piece(set().union(*(piece.arrivals for piece in read)), total))
    return total
