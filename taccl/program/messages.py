"""Messages of a schedule between two ranks, and the values that each rank holds over time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from operator import itemgetter

from taccl._internal.units import BYTES_PER_MB
from taccl.errors import InputError
from taccl.problem.collective import Collective
from taccl.program.layout import FOREVER, START, RankLayout, Value
from taccl.program.program import Slot
from taccl.schedule.contributions import Arrival, bits_of, make_up
from taccl.schedule.schedule import Schedule
from taccl.topology.topology import Topology


@dataclass(eq=False, slots=True)
class MessagePart:
    """One chunk of a message: the value read (`taken`), and the value that the arrival makes (`made`)."""

    chunk: int
    taken: Value | None = None
    #: Values summed to make `taken`; empty if `taken` exists already.
    summed: Sequence[Value] = ()
    #: Ranks whose contributions the chunk carries, as bits; 0 if the schedule does not name them.
    bits: int = 0
    made: Value | None = None
    #: (source value, derived value) of chunks that the receiver derives by adding its own contribution.
    derived: Sequence[tuple[Value, Value]] = ()

    @property
    def place(self) -> Slot:
        """Slot from which the sender reads the chunk."""
        assert self.taken is not None, "a part is placed once it was followed"
        return self.taken.place


@dataclass(eq=False, slots=True)
class Message:
    """Message from one rank to another in one send.

    - `lane`: Index of its link among the links used between the two ranks, the fastest first.
    - `start`, `end`: Ticks.
    - `reduce`: True if it is added to the receiver's content.
    - `number`: Its position in order of end.
    """

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
    """Messages between ranks, in order of end; a multicast becomes one message per destination.

    A send that a switch reduces becomes one message per source, added up at the destination. If the
    collective does not sum, only the first source sends.
    """
    links, collective = schedule.problem.topology.links, schedule.problem.collective
    lanes: dict[tuple[int, int], list[int]] = defaultdict(list)
    columns = (schedule.chunk, schedule.link, schedule.start, schedule.end, schedule.reduce)
    chunk, link, start, end, reduce = (column.tolist() for column in columns)
    groups: dict[int, list[int]] = {}
    for transfer, group in enumerate(schedule.group.tolist()):
        groups.setdefault(group, []).append(transfer)
    carried = schedule.contributions
    keyed = []
    for members in groups.values():
        first = members[0]
        e = link[first]
        for dst in links[e].dsts:
            for i, src in enumerate(links[e].srcs[: None if collective.sums_up else 1]):
                known = lanes[src, dst]
                if e not in known:
                    known.append(e)
                parts = [
                    MessagePart(chunk[t], bits=0 if carried is None else bits_of(carried[t])) for t in members
                ]
                times = start[first], end[first]
                message = Message(src, dst, known.index(e), parts, *times, reduce[first] or i > 0)
                # Sums come first among equal times, as in the verifier.
                keyed.append(((end[first], not reduce[first], start[first]), message))
    messages = [message for _, message in sorted(keyed, key=itemgetter(0))]
    chunk_bytes = max(schedule.problem.chunk_bytes, default=0)
    lane_of = {
        ends: [by_speed(schedule.problem.topology, known, chunk_bytes).index(e) for e in known]
        for ends, known in lanes.items()
        if len(known) > 1
    }
    for number, message in enumerate(messages):
        message.number = number
        if (message.src, message.dst) in lane_of:
            message.lane = lane_of[message.src, message.dst][message.lane]
    return messages


def by_speed(topology: Topology, links: Iterable[int], chunk_bytes: int | Fraction) -> list[int]:
    """Links in order of their time for a chunk; links of equal time stay in order."""
    return sorted(links, key=lambda index: link_us(topology, index, chunk_bytes))


def link_us(topology: Topology, index: int, chunk_bytes: int | Fraction) -> Fraction:
    """Time in us that a link takes for a chunk."""
    link = topology.links[index]
    return link.alpha_us + link.beta_us_per_mb * chunk_bytes / BYTES_PER_MB


def parallel_links(topology: Topology, src: int, dst: int) -> list[int]:
    """Links from `src` alone to `dst` alone."""
    links = topology.links
    return [e for e in topology.links_between(src, dst) if len(links[e].srcs) == len(links[e].dsts) == 1]


def events_of(messages: Sequence[Message]) -> list[tuple[int, bool, Message]]:
    """(tick, True if it starts, message) for start and end of each message, in time order, ends first."""
    events = [(m.end, False, m) for m in messages] + [(m.start, True, m) for m in messages]
    keys = [2 * m.end for m in messages] + [2 * m.start + 1 for m in messages]
    order = sorted(range(len(keys)), key=keys.__getitem__)  # stable: `messages` are in order of number
    return [events[i] for i in order]


def unequal_pairs(topology: Topology, links: Iterable[int], chunk_bytes: int | Fraction) -> list[str]:
    """Pairs of ranks (``0->1``) that `links` join, between which links differ in their time for a chunk."""
    ends = {(topology.links[e].srcs[0], topology.links[e].dsts[0]) for e in links}
    every = {each: parallel_links(topology, *each) for each in sorted(ends)}
    return [
        f"{src}->{dst}"
        for (src, dst), known in every.items()
        if len({link_us(topology, e, chunk_bytes) for e in known}) > 1
    ]


def follow(
    messages: list[Message], collective: Collective, layouts: Sequence[RankLayout]
) -> list[dict[int, Value]]:
    """Set the values that each message reads and makes; return {chunk: value} of the inputs of each rank.

    If the collective does not sum, arrivals of chunks that a rank already holds are dropped.
    """
    makes: dict[tuple[int, int], list[int]] = defaultdict(list)
    for each in collective.derivations:
        makes[each.rank, each.source].append(each.chunk)
        if each.rank in collective.chunks[each.source].origins:
            said = (
                f"rank {each.rank} derives chunk {each.chunk} from chunk {each.source}, its own input, but a "
            )
            said += f"program derives chunks only from received data: let chunk {each.chunk} start there"
            raise InputError(said, where="schedule")
    derived = {each.chunk for each in collective.derivations}
    own = [{chunk: Value(chunk, START) for chunk in where.inputs} for where in layouts]
    held = [{c: v for c, v in mine.items() if c not in derived} for mine in own]
    for time, starts, message in events_of(messages):
        if starts:
            mine = held[message.src]
            for part in message.parts:
                if part.chunk not in mine:
                    raise InputError(
                        f"chunk {part.chunk} is sent from rank {message.src} to {message.dst} before it "
                        "arrives; verify the schedule first",
                        where="schedule",
                    )
                part.taken = taken = mine[part.chunk]
                taken.read_until = max(taken.read_until, message.end)
            continue
        mine = held[message.dst]
        if not collective.sums_up and any(part.chunk in mine for part in message.parts):
            message.parts = [part for part in message.parts if part.chunk not in mine]
        for part in message.parts:
            before = mine.get(part.chunk) if message.reduce else None
            part.made = mine[part.chunk] = Value(part.chunk, time, added_to=before)
            if before is not None:
                before.added_at = time
            pending = [part.made] if makes else []
            while pending:
                source = pending.pop()
                for chunk in makes.get((message.dst, source.chunk), ()):
                    if chunk in mine:
                        continue
                    contribution = own[message.dst][chunk]
                    contribution.added_at = time
                    mine[chunk] = made = Value(chunk, time, added_to=contribution)
                    source.read_until = max(source.read_until, time)
                    part.derived = [*part.derived, (source, made)]
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
    """Partial sum of a chunk at a rank: the value, and the ids of the arrivals that were added into it."""

    arrivals: set[int]
    value: Value


@dataclass(eq=False, slots=True)
class _Reader:
    """A later send or a final result that reads the sum of some contributions that arrived at a rank.

    - `since`: Tick at which the arrivals are read.
    - `arrivals`: Ids of the contributions in the sum: parts that arrived, `_OWN` or `_COPY`.
    """

    since: int
    arrivals: set[int]


#: `_OWN`: id of a rank's own contribution to a chunk, which no message delivers.
#: `_COPY`: id of a copy of the rank's own contribution in the slot of its result.
_OWN, _COPY = -1, -2


@dataclass(eq=False, slots=True)
class NamedSums:
    """Inputs of ranks, and their final sums, for a schedule that names contributions.

    - `own`: {chunk: the rank's contribution}, by rank.
    - `copies`: Copies of contributions at the places of results, to which arrivals are added, by rank.
    - `results`: (result, its summands) of sums made at the end, by rank.
    """

    own: list[dict[int, Value]]
    copies: list[list[Value]] = field(default_factory=list)
    results: list[list[tuple[Value, list[Value]]]] = field(default_factory=list)


def follow_named(
    messages: list[Message], collective: Collective, layouts: Sequence[RankLayout], *, in_place: bool
) -> NamedSums:
    """Set the values that messages read and make, for a schedule whose sends name their contributions.

    An arrival is added to an existing value at once if every later reader reads both or neither. Parts that
    are never read are not sent.
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
    """Readers of the contributions that arrive at each rank: later messages and the rank's results.

    - `readers`: {(rank, chunk): all readers}.
    - `results`: {(rank, chunk): the reader for the result}.
    - `reads`: {id of a message's part: reader that sums it up at the sender}, for parts read on arrival.
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
        for message in sorted(messages, key=lambda each: -each.end):  # latest readers first
            for part in message.parts:
                if any(id(part) in reader.arrivals for reader in self.readers[message.dst, part.chunk]):
                    here = arrivals[message.src, part.chunk]
                    reader = _reader(here, part.bits, message.start, part.chunk, message.src)
                    self.reads[id(part)] = reader
                    self.readers[message.src, part.chunk].append(reader)

    def wants_copy(self, rank: int, chunk: int) -> bool:
        """True if a rank sends its own contribution alone, and also needs it in the sum that it outputs.

        The sum then starts as a copy of the contribution. The reader for the sum is changed to read the copy.
        """
        result = self.results.get((rank, chunk))
        apart = any(reader.arrivals == {_OWN} for reader in self.readers[rank, chunk])
        if result is None or not apart or _OWN not in result.arrivals:
            return False
        result.arrivals = result.arrivals - {_OWN} | {_COPY}
        return True


def _kept(here: list[_Piece], arrival: int, later: Sequence[_Reader], chunk: int, time: int) -> Value:
    """Store a contribution that arrives at a rank; return the value that contains it.

    The arrival is added to an existing value if every later reader reads both or neither. Otherwise it
    becomes a value of its own.
    """
    piece = _Piece({arrival}, Value(chunk, time))
    beside = next((each for each in here if _have_same_readers([each, piece], later)), None)
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
            f"rank {rank} lacks contributions to a sum of chunk {chunk}; verify the schedule first",
            where="schedule",
        )
    return _Reader(since, {each.send for each in parts})


def _have_same_readers(pieces: Sequence[_Piece], readers: Sequence[_Reader]) -> bool:
    """True if each reader reads either all of the pieces or none."""
    return all(len({piece.arrivals <= reader.arrivals for piece in pieces}) == 1 for reader in readers)


def _taken(
    here: list[_Piece], reader: _Reader, later: Sequence[_Reader], part: MessagePart, message: Message
) -> Value:
    """Value that the sender reads for a part of a message: an existing value, or the sum of several.

    The sum replaces its summands if every later reader reads either all of them or none.
    """
    read = [piece for piece in here if piece.arrivals <= reader.arrivals]
    if len(read) == 1:
        return read[0].value
    part.summed = [piece.value for piece in read]
    total = Value(part.chunk, message.start)
    for value in part.summed:
        value.read_until = max(value.read_until, message.start)
    if _have_same_readers(read, later):
        here[:] = [piece for piece in here if piece not in read]
        here.append(_Piece(set().union(*(piece.arrivals for piece in read)), total))
    return total
