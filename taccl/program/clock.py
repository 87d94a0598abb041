"""When each message of a program is under way on a topology, if every rank goes on as soon as it can.

A step begins when the one before it in its threadblock, and those that it depends on, are done. A message
starts when its step has begun, the queue has room for it, and every resource that it holds is free; of
several that could go, the one goes first that alone could go first, and of equals the one to the next
rank, then to the one after that, so that ranks do not all send to one. What is received is taken out of the
queue once the receiving step has begun. Steps within a rank take no time.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from taccl.costs import hold_columns
from taccl.errors import InputError
from taccl.program.program import OPERATIONS, PROTOCOLS, Program, Queue, StepAddress
from taccl.schedule.listing import Tasks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taccl.problem import Problem
    from taccl.program.lift import TracedMessage


def times_of(
    problem: Problem, program: Program, sent: Sequence[TracedMessage], links: Sequence[int]
) -> tuple[list[int], list[int]]:
    """The start and the end of every message in ticks.

    - `sent`: What the program sends, as `taccl.program.lift` traces it.
    - `links`: The link that each goes over.
    """
    tasks, occupied = _messages(problem, sent, links)
    after, duration, room = tasks.after, list(tasks.duration), PROTOCOLS[program.protocol]
    message_of = {each.step: m for m, each in enumerate(sent)}
    begins = {address: tasks.add() for address, _ in program.steps()}
    received = {each.receiver: m for m, each in enumerate(sent)}
    in_queue: dict[Queue, list[int]] = defaultdict(list)
    for m, each in enumerate(sent):
        queue = in_queue[each.queue]
        if len(queue) >= room:  # until then an earlier message is taken out
            before = queue[-room]
            after[before].append((m, duration[before]))
            after[begins[sent[before].receiver]].append((m, 0))
        queue.append(m)
    # What a step does is done once it has begun and what it receives is there, or some time after it sends.
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
    try:
        alone = tasks.heads()
    except ValueError:
        raise InputError(
            f"steps wait for each other when a queue holds {room} whole sends; send fewer chunks in a step",
            where="program",
        ) from None
    turns = [(each.queue.dst - each.queue.src) % program.num_ranks for each in sent] + [0] * len(begins)
    start = tasks.starts([*zip(alone, turns, strict=True)])[: len(sent)]
    return start, [begin + length for begin, length in zip(start, duration, strict=True)]


def _messages(
    problem: Problem, sent: Sequence[TracedMessage], links: Sequence[int]
) -> tuple[Tasks, list[int]]:
    """Messages as tasks, and for how long after its start each keeps its step from being done."""
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
