"""Lift programs to schedules: chunk, link and times of every message on a topology.

This is the inverse of `taccl.program.lower`, for programs of any origin. A lifted program can be simulated,
bounded and verified like every schedule.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from operator import add
from typing import Any

import numpy as np

from taccl._internal.arguments import Size, checked
from taccl._internal.names import first_of
from taccl._internal.units import parse_size
from taccl.analysis.verification.verify import verify
from taccl.errors import InputError
from taccl.problem.collective import Collective
from taccl.problem.costs import hold_columns
from taccl.problem.making import make_problem
from taccl.problem.problem import Clauses, Problem
from taccl.program.checks import MAX_CHUNKS, parcels_of
from taccl.program.contents import Content, Memory, contents_of
from taccl.program.execution import execute
from taccl.program.interpret import interpret
from taccl.program.layout import layouts_of
from taccl.program.messages import by_speed, parallel_links, unequal_pairs
from taccl.program.program import OPERATIONS, PROTOCOLS, Program, Queue, StepAddress
from taccl.schedule.listing import Tasks
from taccl.schedule.schedule import Schedule, make_schedule
from taccl.topology.topology import Topology


@dataclass(eq=False, slots=True)
class TracedMessage:
    """Message of one sending step: its chunks, the content of each, and the step that receives it."""

    step: StepAddress
    queue: Queue
    contents: list[Content]
    chunks: list[int]
    receiver: StepAddress


@checked
def lift(
    program: Program,
    *,
    topology: Topology | None = None,
    size: Size | None = None,
    chunk_size: Size | None = None,
) -> Schedule:
    """The verified schedule that a program follows on a topology, with exact times.

    Every step starts as soon as the program allows: after the steps before it in its threadblock and its
    dependencies. The number of sends in a queue is limited by the protocol. Sends that compete for a link,
    port or NIC have no order in a program: three orders are timed, and the earliest finish counts. Copies and
    sums within a rank take no time. A step that sends several chunks is one merged send.

    Parameters
    ----------
    program : Program
        The program; it must state its collective.
    topology : Topology
        The network, with a link for each pair of ranks that communicates. If several links join a pair, its
        channels, in order, use them in turn, the link that is fastest for a chunk first. If it has costs by
        protocol, those of the program's protocol apply.
    size : int or str, optional
        Size as nccl-tests counts it (``"1MB"``). Either this or `chunk_size` is required.
    chunk_size : int or str, optional
        Size of each of the program's chunks.

    Raises
    ------
    InputError
        If ranks or sizes do not fit, two ranks have no link, or the program does not state its collective.
    VerificationError
        If the program hangs at the size, races, or has wrong outputs (`taccl.interpret`).
    """
    if topology is None:
        raise InputError("a program has no topology; give topology=...", where="topology")
    if size is None and chunk_size is None:
        raise InputError("a program has no size of its own; give size='1MB' (--size 1MB)", where="size")
    if program.num_ranks != topology.num_ranks:
        raise InputError(
            f"the program is for {program.num_ranks} ranks, but {topology.name} has {topology.num_ranks}; "
            "give a topology with as many (--nodes)",
            where="topology",
        )
    if (protocol := program.protocol.lower()) in topology.protocols:
        topology = topology.under(protocol)
    # The program's own sizes do not matter: check it at the given size only.
    if size is not None:
        size_bytes = parse_size(size)
    else:
        assert chunk_size is not None, "one of the two sizes is given"
        size_bytes = parse_size(chunk_size, where="chunk_size") * program.size_chunks
    interpret(replace(program, sizes_bytes=(size_bytes, size_bytes))).raise_if_failed()
    sent = _trace(program)
    collective = program.collective
    assert collective is not None, "tracing raised"
    links = _links(topology, sent, Fraction(size_bytes, program.size_chunks))
    merged = {link for each, link in zip(sent, links, strict=True) if len(each.chunks) > 1}
    problem = make_problem(
        topology,
        collective,
        size_bytes=None if size is None else parse_size(size),
        chunk_bytes=None if chunk_size is None else parse_size(chunk_size, where="chunk_size"),
        clauses=Clauses(
            max_merge=max((len(each.chunks) for each in sent), default=1), merging=frozenset(merged)
        ),
        notes=_link_notes(topology, links, Fraction(size_bytes, program.size_chunks)),
    )
    start, end = _times(problem, program, sent, links)
    message = [m for m, each in enumerate(sent) for _ in each.chunks]
    columns: dict[str, Any] = {
        "chunk": [chunk for each in sent for chunk in each.chunks],
        "link": [links[m] for m in message],
        "start": [start[m] for m in message],
        "end": [end[m] for m in message],
        "group": message,
        "producer": f"program {program.name}",
    }
    schedule = make_schedule(problem, **columns, reduce=[a for each in sent for a in _adds(collective, each)])
    if not collective.sums_up or verify(schedule).ok:
        return schedule
    # The program keeps contributions unreduced at some rank, so each send names those that it carries.
    carried = [{rank for rank, _ in content.parts()} for each in sent for content in each.contents]
    schedule = make_schedule(problem, **columns, contributions=carried)
    verify(schedule).raise_if_failed()
    return schedule


def _links(topology: Topology, sent: Sequence[TracedMessage], chunk_bytes: Fraction) -> list[int]:
    """Link of each message; a program names pairs of ranks and channels, but no links."""
    channels: dict[tuple[int, int], set[int]] = defaultdict(set)
    for each in sent:
        channels[each.queue.src, each.queue.dst].add(each.queue.channel)
    link_of: dict[tuple[int, int, int], int] = {}
    for (src, dst), used in channels.items():
        known = by_speed(topology, parallel_links(topology, src, dst), chunk_bytes)
        if not known:
            raise InputError(
                f"the program sends from rank {src} to rank {dst}, but {topology.name} has no such link; "
                "give the topology that the program was made for",
                where="topology",
            )
        for place, channel in enumerate(sorted(used)):
            link_of[src, dst, channel] = known[place % len(known)]
    return [link_of[each.queue] for each in sent]


def _link_notes(topology: Topology, links: Sequence[int], chunk_bytes: Fraction) -> list[str]:
    """Note on pairs of ranks with unequal parallel links, as a program names no links; empty without."""
    uneven = unequal_pairs(topology, links, chunk_bytes)
    said = "a program names no links; of unequal parallel links the fastest are assumed"
    return [f"{said} ({first_of(uneven, 3)})"] if uneven else []


def _adds(collective: Collective, sent: TracedMessage) -> list[bool]:
    """True for each chunk of a message that the receiver adds to its content.

    A chunk is added if it lacks the receiver's contribution and is not complete, or if its server, which
    updates the sum, receives it. If another receiver contributes nothing, a complete sum could be added or
    stored; it is added if another chunk of its send is.
    """
    if not collective.sums_up:
        return [False] * len(sent.chunks)
    rank = sent.queue.dst
    adds, either = [], []
    for chunk, content in zip(sent.chunks, sent.contents, strict=True):
        origins, root = collective.chunks[chunk].origins, collective.chunks[chunk].root
        is_pushed = collective.updates and rank == root
        parts = content.parts()
        adds.append((rank, chunk) not in parts and (is_pushed or len(parts) < len(origins)))
        either.append(rank not in origins and len(parts) == len(origins))
    return [added or (free and any(adds)) for added, free in zip(adds, either, strict=True)]


def _trace(program: Program) -> list[TracedMessage]:
    """Messages of all sending steps of a program that `taccl.interpret` accepts, in a feasible order."""
    collective = program.collective
    if collective is None:
        raise InputError("its collective is unknown; read it with collective=...", where=program.name)
    # The largest messages wait least for room; their size does not change the content sent.
    run, memory = execute(program, chunks=MAX_CHUNKS), Memory(program, layouts_of(program))
    assert run.stuck is None, "a program is traced once it was interpreted"
    contents = memory.run(run.steps, run.messages, run.chunks)
    receiver = {parcel.send: parcel.receive for parcel in parcels_of(program)}
    derived = {
        content: chunk
        for chunk, content in enumerate(contents_of(collective) if collective.derivations else ())
    }
    sent: list[TracedMessage] = []
    for step, address in zip(run.done, run.steps.addresses(run.done), strict=True):
        queue = program.threadblock(address).sends_into(address.rank)
        if step not in contents or queue is None:
            continue
        held = [memory.contents[number] for number in contents[step]]
        chunks = [_chunk(each, derived, address) for each in held]
        sent.append(TracedMessage(address, queue, held, chunks, receiver[address]))
    return sent


def _chunk(content: Content, derived: Mapping[Content, int], step: StepAddress) -> int:
    chunk = derived.get(content)
    if not derived:
        # Content that was never written, or was added twice, has another object in place of a chunk.
        chunks = [each for each, _ in content]
        chunk = chunks[0] if len(chunks) == 1 and isinstance(chunks[0], int) else None
    if chunk is None:
        raise InputError(
            f"{step} sends neither a chunk of the collective nor a sum of contributions; only these can be "
            "scheduled",
            where="program",
        )
    return chunk


def _times(
    problem: Problem, program: Program, sent: Sequence[TracedMessage], links: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Start and end of every message in ticks, if every rank proceeds as early as possible.

    A step begins after the end of the one before it in its threadblock and of its dependencies. A message
    starts when its step has begun, the queue has room for it, and every resource that it holds is free. A
    message leaves the queue when its receiving step has begun. Steps within a rank take no time.

    Three orders of messages that compete for a resource are timed, and the earliest finish counts: by
    earliest possible start, then by distance from source rank to destination rank; by longest remaining path;
    by most work left.
    """
    tasks, occupied = _messages(problem, sent, links)
    after, duration, room = tasks.after, list(tasks.duration), PROTOCOLS[program.protocol]
    message_of = {each.step: m for m, each in enumerate(sent)}
    begins = {address: tasks.add() for address, _ in program.steps()}
    received = {each.receiver: m for m, each in enumerate(sent)}
    in_queue: dict[Queue, list[int]] = defaultdict(list)
    for m, each in enumerate(sent):
        queue = in_queue[each.queue]
        if len(queue) >= room:  # wait until an earlier message has been received
            before = queue[-room]
            after[before].append((m, duration[before]))
            after[begins[sent[before].receiver]].append((m, 0))
        queue.append(m)
    # A step without a send is done once it has begun and its input has arrived.
    # A step with a send is done `occupied` ticks after the send's start.
    done: dict[StepAddress, list[tuple[int, int]]] = {}
    for address, step in program.steps():
        done[address] = [(begins[address], 0)]
        if address in received:
            done[address].append((received[address], duration[received[address]]))
        if OPERATIONS[step.operation].sends:
            for task, gap in done[address]:
                after[task].append((message_of[address], gap))
            done[address] = [(message_of[address], occupied[message_of[address]])]
    for address, step in program.steps():
        rank, t, s = address
        for other in {*step.depends, *([(t, s - 1)] if s else [])}:
            for task, gap in done[StepAddress(rank, *other)]:
                after[task].append((begins[address], gap))
    for task, m, gap in _updates(problem, sent, duration, tasks.add()):
        after[task].append((m, gap))
    try:
        alone = tasks.heads()
    except ValueError:
        raise InputError(
            f"steps wait for each other when a queue holds {room} whole sends; send fewer chunks in a step",
            where="program",
        ) from None
    turns = [(each.queue.dst - each.queue.src) % program.num_ranks for each in sent]
    turns += [0] * (len(alone) - len(turns))
    able = [tasks.starts([*zip(alone, turns, strict=True)])]
    with suppress(ValueError):  # raised if steps wait for each other in a cycle of no length
        able += [tasks.starts([(-tail, turn) for tail, turn in zip(tasks.tails(), turns, strict=True)])]
        able += [tasks.starts_in_gaps()]
    ends = [[*map(add, start, duration)] for start in able]  # of messages, which are the first tasks
    best = min(range(len(able)), key=lambda i: max(ends[i], default=0))
    return able[best][: len(sent)], ends[best]


def _updates(
    problem: Problem, sent: Sequence[TracedMessage], duration: Sequence[int], beginning: int
) -> Iterator[tuple[int, int, int]]:
    """(task, message, ticks from the task's start): waits of servers' messages for updates of their sums.

    A server updates a sum once all messages with its contributions have arrived.

    - `beginning`: Task without a wait, for sums that need no message.
    """
    collective = problem.collective
    if not collective.update_us_per_mb:
        return
    pushed: dict[int, list[int]] = defaultdict(list)
    for m, each in enumerate(sent):
        for chunk, content in zip(each.chunks, each.contents, strict=True):
            root, origins = collective.chunks[chunk].root, collective.chunks[chunk].origins
            if each.queue.dst == root:
                pushed[chunk].append(m)
            elif each.queue.src == root and len(content.parts()) == len(origins):
                ticks = int(problem.update_ticks[chunk])
                yield beginning, m, ticks
                yield from ((before, m, duration[before] + ticks) for before in pushed[chunk])


def _messages(
    problem: Problem, sent: Sequence[TracedMessage], links: Sequence[int]
) -> tuple[Tasks, list[int]]:
    """Messages as tasks, and ticks from the start of each until its sending step is done."""
    costs, columns, link = problem.costs, hold_columns(problem.topology), np.array(links, np.int64)
    units = np.array([costs.chunk_units[each.chunks].sum() for each in sent], np.int64)
    duration = costs.link_alpha[link] + units * costs.link_beta[link]
    message, hold = columns.of_sends(link)
    held = costs.hold_alpha[hold] + units[message] * costs.hold_beta[hold]
    late = columns.receives[hold]
    begin = np.where(late, duration[message] - held, 0)
    tasks = Tasks(duration.tolist(), [[] for _ in sent], [[] for _ in sent])
    for m, *own in np.stack([message, columns.resource[hold], begin, begin + held], axis=1).tolist():
        tasks.holds[m].append(tuple(own))
    occupied = np.zeros_like(duration)
    np.maximum.at(occupied, message[~late], held[~late])
    return tasks, np.where(occupied > 0, occupied, duration).tolist()
