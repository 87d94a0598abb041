"""Lower schedules to programs: rank, threadblock, slots and dependencies of each step.

Every send becomes a step at its source and one at its destination, on the slots that `Allocator` finds. Steps
of a threadblock are in order of the *end* of their sends. A step depends on the steps of its rank that wrote
the slots it reads, and on those that used the slots it overwrites.

No such program can deadlock, at any size and for any length of queues. Proof: consider one order of all sends
by their end. A send and its receive take place together, at the end of the send. Everything that either
depends on ends before it in this order. So the sends can be executed in this order.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np

from taccl._internal.arguments import Count, checked
from taccl._internal.arrays import distinct
from taccl._internal.names import first_of
from taccl._internal.units import format_count
from taccl.errors import InputError, LossyConversionWarning, warn
from taccl.problem.costs import wide_links
from taccl.program.emit import Draft, Key, assemble
from taccl.program.layout import FOREVER, START, Allocator, RankLayout, Value, layout
from taccl.program.messages import (
    Message,
    MessagePart,
    NamedSums,
    by_speed,
    events_of,
    follow,
    follow_named,
    link_us,
    messages_of,
    parallel_links,
)
from taccl.program.program import PROTOCOLS, Program, RankProgram, Slot
from taccl.program.replicate import choose_instances, replicate
from taccl.schedule.schedule import Schedule

#: Treatment of a merged send whose chunks are not contiguous in the buffers at both ends.
Merged = Literal["split", "pack"]
Channels = Literal["single", "round-robin", "by-chunk", "by-peer"]
Threadblocks = Literal["per-direction", "per-peer", "relay"]
_LAST = 2**62


class _PlacedPart(NamedTuple):
    """Slots for one chunk of a message.

    The sender reads `src`. The receiver adds the content of its slot `added`, if given, and writes `dst`.
    """

    src: Slot
    dst: Slot
    added: Slot | None


@checked
def lower(
    schedule: Schedule,
    *,
    in_place: bool = False,
    protocol: str | None = None,
    channels: Channels = "single",
    num_channels: Count = 1,
    threadblocks: Threadblocks = "per-direction",
    merged: Merged = "split",
    max_count: Count = 64,
    instances: Count | Literal["auto"] = 1,
    name: str = "",
) -> Program:
    """Lower a valid schedule to a program.

    Parameters
    ----------
    schedule : Schedule
        A valid schedule.
    in_place : bool
        True if input and output are one buffer. In either case, input outside the output is not overwritten.
    protocol : str, optional
        ``"Simple"``, ``"LL"`` or ``"LL128"``; by default that of the topology, or Simple if it has none.
    channels : str
        Policy for the channel of a send. ``"single"``: one channel for all. ``"round-robin"``: sends between
        two ranks use the channels in turn. ``"by-chunk"``: by the number of the chunk. ``"by-peer"``: by the
        distance between the two rank numbers, so that a channel has fewer peers. Parallel links between two
        ranks always have separate channels.
    num_channels : int
        Number of channels that the policy may use.
    threadblocks : str
        ``"per-direction"``: for each peer and channel, one threadblock sends and another receives.
        ``"per-peer"``: one does both, which needs half as many. ``"relay"``: one receives from a rank and
        sends most of that to another, as on a ring. If a threadblock receives a chunk and sends it next, both
        are one step.
    merged : str
        Treatment of merged sends whose chunks are not contiguous at both ends. ``"split"``: one step per
        contiguous run. ``"pack"``: one step, with copies that gather the chunks in scratch before it and
        scatter them after it (`Program.num_copies` counts them). Contiguous chunks are always one step.
    max_count : int
        Max chunks per step.
    instances : int or "auto"
        Number of copies of the program; each moves a part of every chunk over its own channels. ``"auto"``:
        as many as the bandwidth of the fastest link needs, within the limits of MSCCL and MSCCL++;
        `Program.notes` states the number and the reason.
    name : str
        Name of the program; by default from the collective and the topology.

    Warns
    -----
    LossyConversionWarning
        If sends have several ends because a switch multicasts or reduces: the program has a send for each
        end. If merged sends are split because their chunks are not contiguous at both ends. If sends use
        slower links while faster ones between the same ranks are free, as programs name no links.

    Raises
    ------
    InputError
        If an option is unknown, chunks differ in size, or a chunk is sent from a rank that does not hold it
        (`verify` says more).
    """
    problem = schedule.problem
    collective = problem.collective
    if len(set(problem.chunk_bytes)) > 1:
        raise InputError(
            f"found chunks of {min(problem.chunk_bytes)} to {max(problem.chunk_bytes)} bytes; a program has "
            "chunks of one size; cut the data into equal chunks",
            where="schedule",
        )
    if protocol is None:
        costs = problem.topology.protocol or "simple"
        protocol = next((each for each in PROTOCOLS if each.lower() == costs), costs)
    messages = messages_of(schedule)
    layouts = layout(collective)
    if schedule.carries is None:
        sums = NamedSums(follow(messages, collective, layouts))
    else:
        sums = follow_named(messages, collective, layouts, in_place=in_place)
    _choose_channels(messages, channels, num_channels, collective.num_ranks)
    placing = _Placing(layouts, in_place, sums, merged == "pack", max_count, threadblocks == "per-peer")
    drafts, scratch = placing.run(messages)
    notes = [_replaced(schedule), _slower(schedule), _split(placing.runs_of_split)]
    notes = [note for note in notes if note]
    for note in notes:
        warn(note, LossyConversionWarning)
    program = Program(
        name or problem.title,
        tuple(
            RankProgram(
                len(where.inputs), len(where.outputs), chunks, assemble(each, relays=threadblocks == "relay")
            )
            for each, where, chunks in zip(drafts, layouts, scratch, strict=True)
        ),
        collective,
        in_place,
        protocol,
        problem.topology.node_of_rank,
        None if problem.size_bytes is None else (problem.size_bytes // 2, 2 * problem.size_bytes),
        tuple(notes),
    )
    if instances == "auto":
        links = problem.topology.links
        betas = [links[e].beta_us_per_mb for e in set(schedule.link.tolist())]
        instances, said = choose_instances(
            program,
            gb_per_s=float(1000 / min(betas, default=1000)),
            chunk_bytes=min(problem.chunk_bytes, default=0),
        )
        program = replace(program, notes=(*program.notes, said))
    return replicate(program, instances)


def _replaced(schedule: Schedule) -> str:
    """Note on multicast and reduced sends, which a program replaces by separate sends; empty for none."""
    is_wide = np.isin(schedule.link, wide_links(schedule.problem.topology))
    num_wide = len(distinct(schedule.group[is_wide]))
    said = f"{num_wide} of {schedule.num_sends} sends are multicast or reduced by a switch"
    return f"{said}; the program sends to each end separately, and takes longer" if num_wide else ""


def _slower(schedule: Schedule) -> str:
    """Note on sends along slower ones of parallel links, which a program cannot name; empty for none."""
    topology, chunk_bytes = schedule.problem.topology, max(schedule.problem.chunk_bytes, default=0)
    used: dict[tuple[int, int], list[int]] = defaultdict(list)
    for e in set(schedule.link.tolist()):
        if len(topology.links[e].srcs) == len(topology.links[e].dsts) == 1:
            used[topology.links[e].src, topology.links[e].dst].append(e)
    slower = []
    for ends, links in sorted(used.items()):
        every = parallel_links(topology, *ends)
        if len(links) < len(every):
            times, fastest = (
                [link_us(topology, e, chunk_bytes) for e in by_speed(topology, each, chunk_bytes)]
                for each in (links, every)
            )
            if times != fastest[: len(times)]:
                slower.append("{}->{}".format(*ends))
    said = "sends use the slower of parallel links, and a program names no links: a runtime may choose others"
    return f"{said} ({first_of(slower, 3)})" if slower else ""


def _split(runs: Sequence[int]) -> str:
    """Note on merged sends that are split, from the number of runs of each; empty if none is split."""
    split = f"{format_count(len(runs), 'merged send')} split into {sum(runs)}"
    said = f"{split}, as chunks are scattered in the buffer; merged='pack' packs them"
    return said if runs else ""


def _choose_channels(
    messages: Sequence[Message], policy: Channels, num_channels: int, num_ranks: int
) -> None:
    """Assign channels to messages, in order; parallel links between two ranks have separate channels."""
    turns: Counter[tuple[int, int]] = Counter()
    by_distance = cache(partial(channel_by_distance, num_channels=num_channels, num_ranks=num_ranks))
    for message in messages:
        src, dst, among = message.src, message.dst, 0
        if policy == "round-robin":
            among = turns[src, dst] % num_channels
            turns[src, dst] += 1
        elif policy == "by-chunk":
            among = message.parts[0].chunk % num_channels
        elif policy == "by-peer":
            among = by_distance(src, dst)
        message.channel = message.lane * num_channels + among


def channel_by_distance(src: int, dst: int, num_channels: int, num_ranks: int) -> int:
    """Channel of a send under the policy "by-peer"; the same in both directions."""
    apart = min((dst - src) % num_ranks, (src - dst) % num_ranks)
    return (apart - 1) * num_channels // max(num_ranks // 2, 1)


class _Placing:
    """Single pass over the messages in time order that assigns slots to chunks and drafts all steps."""

    def __init__(
        self,
        layouts: Sequence[RankLayout],
        in_place: bool,
        sums: NamedSums,
        pack: bool,
        max_count: int,
        per_peer: bool,
    ) -> None:
        self.layouts, self.in_place, self.inputs, self.sums = layouts, in_place, sums.own, sums
        self.pack, self.max_count, self.per_peer = pack, max_count, per_peer
        self.allocators = [Allocator(where, in_place) for where in layouts]
        self.drafts: list[list[Draft]] = [[] for _ in layouts]
        self.finals: list[list[Value]] = [[] for _ in layouts]
        self.packed: dict[Message, list[Slot]] = {}
        self.runs_of_split: list[int] = []  # for each message that is split: its number of contiguous runs

    def run(self, messages: Sequence[Message]) -> tuple[list[list[Draft]], list[int]]:
        self._note_outputs(messages)
        self._place_inputs()
        for _, starts, message in events_of(messages):
            if starts:
                self._start(message)
            else:
                self._arrive(message)
        for rank, results in enumerate(self.sums.results):
            for i, (result, values) in enumerate(results):
                result.slot = self.allocators[rank].home[result.chunk]
                at = (FOREVER, -1 - len(results) + i, 0, 0)
                self._sum_up(rank, [value.place for value in values], result.place, at)
        for rank, values in enumerate(self.finals):
            for i, value in enumerate(values):
                home = self.allocators[rank].home[value.chunk]
                if value.place != home:
                    self._local(rank, "copy", value.place, home, (FOREVER, i, 0, 0))
        return self.drafts, [len(each.scratch) for each in self.allocators]

    def _note_outputs(self, messages: Sequence[Message]) -> None:
        for message in messages:
            for part in message.parts:
                for value in (part.made, *(made for _, made in part.derived)):
                    if value is not None and value.final:
                        self.finals[message.dst].append(value)
                        self.allocators[message.dst].output_from[value.chunk] = value.born

    def _place_inputs(self) -> None:
        """Place inputs where the user put them; at the start, copy those that must end in another slot."""
        for rank, (where, values) in enumerate(zip(self.layouts, self.inputs, strict=True)):
            allocator = self.allocators[rank]
            for i, chunk in enumerate(where.inputs):
                slot = where.canonical(Slot("input", i), in_place=self.in_place)
                values[chunk].slot, allocator.user[slot] = slot, values[chunk]
            moved: list[tuple[Value, Slot]] = []
            for chunk in where.inputs:
                value = values[chunk]
                source = value.place
                if not value.final or allocator.home[chunk] == source:
                    continue
                if self.in_place:
                    # Two inputs may have to swap places; a copy through scratch avoids a cyclic dependency.
                    copy = Value(chunk, START, final=True)
                    allocator.place_scratch([copy])
                    value.final = False
                    self.finals[rank].append(copy)
                    moved.append((copy, source))
                else:
                    moved.append((Value(chunk, START, slot=allocator.home[chunk]), source))
            for copy in self.sums.copies[rank] if self.sums.copies else ():
                copy.slot = allocator.home[copy.chunk]
                allocator.user[copy.slot] = copy
                moved.append((copy, values[copy.chunk].place))
            for i, (copy, source) in enumerate(moved):
                self._local(rank, "copy", source, copy.place, (START, i, 0, 0))

    def _start(self, message: Message) -> None:
        """Prepare a message at its source: sum contributions, sort its chunks by slot, pack if needed."""
        for i, part in enumerate(message.parts):
            if part.summed:
                total = part.taken
                assert total is not None, "a part that is summed up is followed"
                self.allocators[message.src].place_scratch([total])
                at = (message.start, _LAST - len(message.parts) + i, message.number, 0)
                self._sum_up(message.src, [value.place for value in part.summed], total.place, at)
        if len(message.parts) == 1:
            return
        message.parts.sort(key=lambda part: part.place)
        sources = [part.place for part in message.parts]
        if self.pack and len(sources) <= self.max_count and not _neighbours(sources):
            rank = message.src
            block = self.allocators[rank].place_block(len(sources), message.start, message.end)
            for i, (source, target) in enumerate(zip(sources, block, strict=True)):
                self._local(rank, "copy", source, target, (message.start, _LAST, message.number, i))
            self.packed[message] = block

    def _arrive(self, message: Message) -> None:
        rank, allocator = message.dst, self.allocators[message.dst]
        values = [_kept_value(part, message.end) for part in message.parts]
        allocator.place([value for value in values if value is not None])
        sources = self.packed.get(message) or [part.place for part in message.parts]
        moves = [
            _PlacedPart(source, value.place, None if value.added_to is None else value.added_to.place)
            for source, value in zip(sources, values, strict=True)
            if value is not None
        ]
        if self.pack and _neighbours(sources) and len(moves) <= self.max_count and not _is_one_run(moves):
            block = allocator.place_block(len(moves), message.end, message.end)
            self._send(
                message, [_PlacedPart(m.src, slot, None) for m, slot in zip(moves, block, strict=True)]
            )
            for i, (move, slot) in enumerate(zip(moves, block, strict=True)):
                summed = [each for each in (move.added, slot) if each is not None]
                self._sum_up(rank, summed, move.dst, (message.end, message.number, 1, 2 * i))
        else:
            self._send(message, moves)
        for i, part in enumerate(message.parts):
            for j, (source, made) in enumerate(part.derived):
                if made is values[i]:
                    continue
                allocator.place([made])
                assert made.added_to is not None
                at = (message.end, message.number, 2 + i, 2 * j)
                self._sum_up(rank, [made.added_to.place, source.place], made.place, at)

    def _send(self, message: Message, moves: Sequence[_PlacedPart]) -> None:
        """Draft the steps that send and receive a message, one pair per contiguous run of chunks."""
        if len(moves) > 1 and (breaks := sum(not _is_one_run(pair) for pair in pairwise(moves))):
            self.runs_of_split.append(1 + breaks)
        channel, kinds = message.channel, ("peer", "peer") if self.per_peer else ("send", "receive")
        sends, receives = Key(kinds[0], message.dst, channel), Key(kinds[1], message.src, channel)
        runs = [moves] if len(moves) == 1 else _runs(moves, self.max_count)  # most messages have one chunk
        for i, run in enumerate(runs):
            (src, dst, added), count = run[0], len(run)
            order = (message.end, message.number, 0, i)
            at = (message.start, _LAST, _LAST + message.number, i)
            self.drafts[message.src].append(Draft(sends, order, at, "send", src, None, count))
            operation = "receive" if added is None else "receive-reduce"
            self.drafts[message.dst].append(Draft(receives, order, order, operation, added, dst, count))

    def _sum_up(self, rank: int, slots: Sequence[Slot], dst: Slot, at: tuple[int, int, int, int]) -> None:
        """Draft local steps that write the sum of some slots to `dst`, which may be one of them."""
        first, *others = sorted(slots, key=lambda slot: slot != dst)
        if first != dst:
            self._local(rank, "copy", first, dst, at)
        for i, slot in enumerate(others, start=1):
            self._local(rank, "reduce", slot, dst, (at[0], at[1], at[2], at[3] + i))

    def _local(self, rank: int, operation: str, src: Slot, dst: Slot, at: tuple[int, int, int, int]) -> None:
        self.drafts[rank].append(Draft(Key("local", -1, 0), at, at, operation, src, dst, 1))


def _kept_value(part: MessagePart, end: int) -> Value | None:
    """Value that the receiver stores: a derived one, if it uses the part for nothing else; else the part.

    One step then receives the part and derives the value.

    - `end`: Tick at which the part arrives.
    """
    made = part.made
    if len(part.derived) == 1 and made is not None and made.read_until == end and not made.final:
        return part.derived[0][1]
    return made


def _next(slot: Slot | None, later: Slot | None) -> bool:
    """True if `later` directly follows `slot` in memory, or both are None."""
    if slot is None or later is None:
        return slot is later
    return slot.buffer == later.buffer and slot.offset + 1 == later.offset


def _neighbours(slots: Sequence[Slot]) -> bool:
    return all(_next(a, b) for a, b in pairwise(slots))


def _is_one_run(moves: Sequence[_PlacedPart]) -> bool:
    return all(all(map(_next, a, b)) for a, b in pairwise(moves))


def _runs(moves: Sequence[_PlacedPart], max_count: int) -> Iterator[list[_PlacedPart]]:
    """Yield runs of at most `max_count` moves that are contiguous in all slots."""
    stretches: list[list[_PlacedPart]] = []
    for move in moves:
        if stretches and _is_one_run([stretches[-1][-1], move]):
            stretches[-1].append(move)
        else:
            stretches.append([move])
    for whole in stretches:
        # Lengths differ little: 65 chunks become 33 and 32, not 64 and 1.
        size = math.ceil(len(whole) / math.ceil(len(whole) / max_count))
        yield from (whole[i : i + size] for i in range(0, len(whole), size))
