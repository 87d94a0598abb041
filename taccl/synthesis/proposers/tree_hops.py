"""Hops of chunks along packed trees, in one phase or in both phases of an allreduce, and their schedules.

In an allreduce, the hops of both phases are scheduled in one run. A rank sends a sum to its parent when the
parts of all its children have arrived. The root sends it out when the sum is complete. Sums go first, but no
resource idles if it can send out a complete sum, so the two phases fill the pipeline once. With few sends,
schedules of each phase alone, joined, may finish earlier.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from taccl.problem.problem import Problem
from taccl.schedule.columns import narrow
from taccl.schedule.schedule import Schedule
from taccl.synthesis.kernels.fabric import Fabric, Floats, Ints, chunk_type_of, problem_arrays
from taccl.synthesis.kernels.limits import Limits, Sends, best_of
from taccl.synthesis.kernels.queue_kernel import Hops
from taccl.synthesis.proposers.queues import (
    make_hops,
    run_hops,
    send_at_earliest,
    send_ordered,
    slots_of,
    starts_of,
)
from taccl.synthesis.proposers.router import sending_ns
from taccl.synthesis.transforms.phases import Phase
from taccl.synthesis.trees.packing import tree_routes

#: `_TURN_WEIGHTS`: weights of due dates to try in waiting chunks' priority; the remaining route's is 1.
#: The first two are always tried. The others, and further orders of chunks, are tried if there are few sends:
#: `_MOST_RUNS`: max runs along the same trees.
#: `_MOST_SENDS`: max sends of all these runs together.
#: `_STEADY_WEIGHTS`: the same for schedules without idle gaps.
#: `_MOST_DELAYS`: max rounds that delay the first starts on resources with idle gaps.
_TURN_WEIGHTS, _STEADY_WEIGHTS, _MOST_DELAYS = (0.5, 1.0, 0.1), (0.2, 0.35), 12
_LEAST_RUNS, _MOST_RUNS, _MOST_SENDS = 2, 12, 12_000


@dataclass(frozen=True, slots=True)
class TreeHops:
    """Hops of chunks along trees, and their due dates.

    If both phases of an allreduce are included, chunk c is in the reduce phase, and chunk c + num_chunks in
    the broadcast phase.

    - `due`, (num_hops,): Due date of each hop in ticks, by the turn of its chunk.
    - `after`, (num_hops,): Ticks added to the priority key of each hop.
    - `peak_ticks`: Ticks for which the busiest resource is occupied.
    - `is_even`: True if links share some switch evenly that could also serve some of them only.
    - `parts`: The hops of each phase alone, in reversed time for the reduce phase, if both are included.
    """

    fabric: Fabric
    num_chunks: int
    hops: Hops
    due: Floats
    after: Floats
    peak_ticks: int
    is_even: bool
    parts: tuple[TreeHops, ...] = ()

    def shuffled(self, seed: int) -> TreeHops:
        """The same hops with chunks in another order: each chunk has random ticks added to its priority.

        The ticks are at most those between two chunks of a root that follow one another.
        """
        num_roots = len(np.unique(self.fabric.src[self.hops.slot[self.hops.waits_for == 0]]))
        between = self.peak_ticks * num_roots / self.num_chunks
        ticks = between * np.random.default_rng(seed).random(len(self.hops.units))
        return replace(self, after=self.after + ticks[self.hops.chunk])

    def run(self, weight: float, limit: int, limits: Limits, begins: Ints | None = None) -> Sends | None:
        """Schedule the hops, early due dates first on each link; None if it exceeds the limit, or is stopped.

        If hops wait for the same link, the one with the least weighted due date minus the time of its
        remaining route goes first. So a rank forwards chunks at the rate at which it receives them, rather
        than all chunks with long routes first.
        """
        hops = self.hops._replace(key=self.hops.key + self.after + weight * self.due)
        return run_hops(self.fabric, hops, limits, limit, least_ticks=self.peak_ticks, begins=begins)

    def schedule(self, problem: Problem, sends: Sends) -> Schedule:
        """The sends as a schedule of a problem; in its reduce phase, sends are copies back in time."""
        given: dict[str, Any] = {"producer": "spanning trees"}
        chunk = sends.chunk
        if len(self.hops.units) > self.num_chunks:
            given["reduce"] = chunk < self.num_chunks
            chunk = narrow(chunk % self.num_chunks)
        return Schedule(problem, chunk, narrow(sends.link), sends.start, **given)


def tree_hops(phases: tuple[Phase, ...], *, evenly: bool = True) -> TreeHops | None:
    """Hops along packed trees of one phase, or of the reduce and the broadcast phase; None without trees.

    - `evenly`: See `split_switches`.
    """
    parts = []
    for phase in phases:
        fabric, demand = problem_arrays(phase.problem)
        trees = tree_routes(phase.problem, fabric, evenly=evenly)
        if trees is None:
            return None
        hops, peak = make_hops(fabric, demand.units, trees.routes), trees.routes.peak_ticks
        due = peak * trees.turn[hops.chunk]
        none = np.zeros(len(due))
        parts.append(TreeHops(fabric, demand.num_chunks, hops, due, none, peak, trees.is_even))
    if len(parts) == 1:
        return parts[0]
    up, out = parts
    return replace(
        out,
        hops=_reducing(out.fabric, up.fabric, up.hops, out.hops),
        due=np.append(up.due, out.due),
        after=np.append(up.after, np.full(len(out.due), float(up.peak_ticks))),
        peak_ticks=up.peak_ticks + out.peak_ticks,
        is_even=up.is_even or out.is_even,
        parts=(up, out),
    )


def _reducing(fabric: Fabric, reversed_fabric: Fabric, up: Hops, out: Hops) -> Hops:
    """Hops of both phases: up the trees, then out of their roots.

    - `reversed_fabric`, `up`: The reduce phase, in reversed time, as copies over reversed links.
    - `out`: Hops of the broadcast phase.
    """
    num_chunks, num_ranks = len(out.units), fabric.num_ranks
    rows = up.slot.reshape(num_chunks, -1)
    num_hops, per_chunk = rows.size, rows.shape[1]
    parent, child = reversed_fabric.src[rows], reversed_fabric.dst[rows]
    slot_of = np.zeros(int(fabric.link.max()) + 1, np.int32)
    slot_of[fabric.link] = np.arange(fabric.num_slots)
    slot = slot_of[reversed_fabric.link[rows]]
    took = fabric.alpha[slot] + out.units[:, None] * fabric.beta[slot]
    each = np.arange(num_chunks)
    ahead, hop_out = np.zeros((num_chunks, num_ranks), np.int64), np.full((num_chunks, num_ranks), -1)
    for i in range(per_chunk):  # parents come before children
        ahead[each, child[:, i]] = took[:, i] + ahead[each, parent[:, i]]
        hop_out[each, child[:, i]] = per_chunk * each + i
    num_children = np.zeros((num_chunks, num_ranks), np.int32)
    np.add.at(num_children, (each[:, None], parent), 1)
    is_root_hop = out.waits_for == 0
    root = fabric.src[out.slot]
    first_out = num_hops + np.flatnonzero(np.append(True, np.diff(out.chunk) != 0) & is_root_hop)
    last_out = first_out + np.bincount(out.chunk[is_root_hop], minlength=num_chunks)
    next_of = np.take_along_axis(hop_out, parent, axis=1)
    to_root = next_of < 0
    next_end = np.where(to_root, last_out[:, None], next_of + 1)
    next_of = np.where(to_root, first_out[:, None], next_of)
    height = np.maximum.reduceat(-out.key, first_out - num_hops)
    key = -np.take_along_axis(ahead, child, axis=1) - height[:, None]
    waits = np.take_along_axis(num_children, child, axis=1).ravel()
    waits_out = np.where(is_root_hop, num_children[out.chunk, root], out.waits_for)

    def joined(up: Any, down: Any, dtype: Any) -> Any:
        return np.append(up, down).astype(dtype)

    return out._replace(
        units=np.tile(out.units, 2),
        slot=joined(slot.ravel(), out.slot, np.int32),
        chunk=joined(np.repeat(each, per_chunk), out.chunk + num_chunks, np.int32),
        waits_for=joined(waits, waits_out, np.int32),
        next_of=joined(next_of.ravel(), out.next_of + num_hops, np.int32),
        next_end=joined(next_end.ravel(), out.next_end + num_hops, np.int32),
        key=joined(key.ravel(), out.key, np.float64),
        is_urgent=np.zeros(0, bool),
    )


def send_in_turn(hops: TreeHops, limits: Limits = Limits()) -> Sends | None:
    """Best schedule with several weights of due dates; None if stopped.

    With few sends, several orders of the chunks are tried, and the phases of an allreduce one by one.
    """
    weights = len(_TURN_WEIGHTS)

    def attempt(run: int, limit: int, limits: Limits) -> Sends | None:
        tried = hops if run < weights else hops.shuffled(limits.seed)
        return tried.run(_TURN_WEIGHTS[run % weights], limit, limits)

    steps, affordable = sending_ns(hops.fabric, len(hops.due)), _MOST_SENDS // max(1, len(hops.due))
    best = best_of(attempt, limits, max(_LEAST_RUNS, min(_MOST_RUNS, affordable)), steps=steps)
    if best is None or not hops.parts or affordable <= _LEAST_RUNS:
        return best
    found = _send_one_by_one(hops, replace(limits, deadline=limits.until or limits.deadline))
    return best if found is None or found.finish_ticks >= best.finish_ticks else found


def _send_one_by_one(hops: TreeHops, limits: Limits) -> Sends | None:
    """Schedule each phase alone, and start the sends of both as early as possible in that order.

    None if it was stopped.
    """
    up, out = (send_in_turn(part, limits) for part in hops.parts)
    if up is None or out is None:
        return None
    (reverse, reduction), (fabric, after) = ((part.fabric, part.hops) for part in hops.parts)
    took = reverse.alpha[reduction.slot] + reduction.units[reduction.chunk] * reverse.beta[reduction.slot]
    ends = starts_of(reverse, reduction, up) + took  # in reversed time
    order = np.argsort(np.append(-ends, starts_of(fabric, after, out)), kind="stable")
    return send_ordered(fabric, hops.hops, order, chunk_type_of(len(hops.hops.units)))


def send_without_gaps(hops: TreeHops, limits: Limits = Limits()) -> Sends | None:
    """Best schedule in which no resource's span, from first to last use, exceeds the busiest one's busy time.

    The tiles of a large message can then follow one another at the rate of the busiest resource. Resources
    that idle between sends begin later. None if no such schedule is found. Further weights of due dates are
    tried until one finishes by the target of `limits`.
    """

    def attempt(run: int, limit: int, limits: Limits) -> Sends | None:
        return _gapless(hops, _STEADY_WEIGHTS[run], limits)

    return best_of(attempt, limits, len(_STEADY_WEIGHTS))


def _gapless(hops: TreeHops, weight: float, limits: Limits) -> Sends | None:
    """Schedule without idle gaps (see `send_without_gaps`); None if none is found in time or rounds."""
    begins = np.zeros(hops.fabric.num_slots, np.int64)
    for _ in range(_MOST_DELAYS):
        found = hops.run(weight, 2**62, limits, begins)
        if found is None:
            break
        late = _late_begins(hops.fabric, int(hops.hops.units[0]), found)
        if late is None:
            return send_at_earliest(hops.fabric, hops.hops, found)
        begins = np.maximum(begins, late)
    return None


def _late_begins(fabric: Fabric, size: int, found: Sends) -> Ints | None:
    """(num_slots,) earliest starts on links, in ticks, delayed to remove idle time; None if there is none.

    A link or resource has idle time if the span from its first to its last use exceeds the busy time of the
    busiest one. Its uses then start later by the difference.

    - `size`: Size of every chunk.
    """
    num_slots, slot = fabric.num_slots, slots_of(fabric, found)
    count, start = np.bincount(slot, minlength=num_slots), found.start.astype(np.int64)
    first, last = np.full(num_slots, 2**62), np.full(num_slots, -(2**62))
    np.minimum.at(first, slot, start)
    np.maximum.at(last, slot, start)
    own, took = fabric.own_alpha + size * fabric.own_beta, fabric.alpha + size * fabric.beta
    user = np.repeat(np.arange(num_slots), np.diff(fabric.hold_of))
    held = fabric.hold_alpha + size * fabric.hold_beta
    lead = np.where(fabric.hold_receives, took[user] - held, 0)
    # Busy ticks of all links, followed by those of all shared resources.
    load = np.concatenate((count * own, np.zeros(fabric.num_resources, np.int64)))
    begin = np.concatenate((first, np.full(fabric.num_resources, 2**62)))
    end = np.concatenate((last + own, np.full(fabric.num_resources, -(2**62))))
    resource = num_slots + fabric.hold_resource
    np.add.at(load, resource, count[user] * held)
    np.minimum.at(begin, resource, first[user] + lead)
    np.maximum.at(end, resource, last[user] + lead + held)
    over = np.where(load > 0, end - begin - load.max(), 0)
    if (over <= 0).all():
        return None
    begin = np.where(over > 0, begin + over, 0)
    late = begin[:num_slots].copy()
    np.maximum.at(late, user, begin[resource] - np.where(over[resource] > 0, lead, 0))
    return late
