"""Waits of sends in a given order for their data and resources, and the earliest starts that they permit.

Sends are numbered in their order, and wait for earlier sends only. A wait says that one start is at least
another start plus a lag. All waits are listed as columns first; one loop over them then finds all starts.

If several sends wait for the same events, such as all arrivals of a sum, a *gathering node* waits for these
events in their place. It is no send. So the number of waits is linear in the number of transfers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from taccl.problem.costs import hold_columns, link_ends, wide_links
from taccl.schedule.contributions import Arrival, make_up

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from taccl.problem.collective import Collective
    from taccl.problem.problem import Problem
    from taccl.schedule.contributions import Carried
    from taccl.topology.topology import Topology

    Flags = NDArray[np.bool_]
    Ints = NDArray[np.int64]


class Events(NamedTuple):
    """Reads or arrivals of chunks at ranks as columns, in order of their sends.

    - `send`, `transfer`, (num_events,) int64: Number of the send, and index of the transfer.
    - `place`, (num_events,) int64: Rank and chunk as one number, ``rank * num_chunks + chunk``.
    """

    send: Ints
    transfer: Ints
    place: Ints

    def of(self, rows: Flags) -> Events:
        """Events of the given rows."""
        return Events(self.send[rows], self.transfer[rows], self.place[rows])


class Waits:
    """List of waits of sends and gathering nodes; `starts` computes the earliest starts.

    - `duration`, (num_sends,) int64: Ticks of each send.
    """

    def __init__(self, duration: Ints) -> None:
        self.duration = duration
        self._columns: list[tuple[Ints, Ints, Ints]] = []
        #: (num_nodes,) position of each node in the order in which starts are computed: ``2 i + 1`` for
        #: send i, ``2 i`` for a gathering node just before send i.
        self._position = [2 * np.arange(len(duration)) + 1]
        self._num_nodes = len(duration)

    def add(self, later: Ints, earlier: Ints, lag: Ints) -> None:
        """Add waits: the start of each node `later` is at least the start of `earlier` plus `lag`."""
        self._columns.append((later, earlier, lag))

    def nodes(self, before: Ints) -> Ints:
        """Numbers of new gathering nodes, each of which precedes the given send."""
        found = self._num_nodes + np.arange(len(before))
        self._position.append(2 * before)
        self._num_nodes += len(before)
        return found

    def add_each(self, later: Events, earlier: Events, lag: Ints, shift: Ints | None = None) -> None:
        """Let each `later` event wait for `earlier` ones of its rank and chunk whose sends precede its own.

        - `lag`, (num_earlier,) array: Ticks from the start of an earlier event's send to the event.
        - `shift`, (num_later,) array: Ticks added for each later event; default: 0.
        """
        order, count = np.lexsort((earlier.send, earlier.place)), len(self.duration)
        event, place, lag = earlier.send[order], earlier.place[order], lag[order]
        first = np.searchsorted(place, later.place)
        end = np.searchsorted(place * count + event, later.place * count + later.send)
        shift = np.zeros(len(first), np.int64) if shift is None else shift
        lone = end - first == 1
        self.add(later.send[lone], event[first[lone]], lag[first[lone]] + shift[lone])
        rows = np.flatnonzero(end - first > 1)
        # Later events with the same earlier ones share a node, which continues the place's previous node.
        chain = chains(first[rows], end[rows])
        node = self.nodes(later.send[rows][chain.first_row])
        self.add(node[chain.later], node[chain.later - 1], np.zeros(len(chain.later), np.int64))
        row, each = ranges(chain.begin, chain.end)
        self.add(node[row], event[each], lag[each])
        self.add(later.send[rows], node[chain.of_row], shift[rows])

    def starts(self) -> Ints:
        """Earliest start of each send in ticks, (num_sends,)."""
        later, earlier, lag = (np.concatenate(each) for each in zip(*self._columns, strict=True))
        order = np.argsort(np.concatenate(self._position)[later], kind="stable")
        found = [0] * self._num_nodes
        rows = zip(later[order].tolist(), earlier[order].tolist(), lag[order].tolist(), strict=True)
        for node, other, ticks in rows:
            at = found[other] + ticks
            if at > found[node]:
                found[node] = at
        return np.array(found[: len(self.duration)], np.int64)


def wait_for_resources(waits: Waits, problem: Problem, link: Ints, units: Ints) -> None:
    """Let each send wait for the previous one on each of its resources.

    - `link`, `units`, (num_sends,) arrays: Link and size of each send.
    """
    costs, holds, duration = problem.costs, hold_columns(problem.topology), waits.duration
    send, hold = holds.of_sends(link)
    held = costs.hold_alpha[hold] + units[send] * costs.hold_beta[hold]
    receives, resource = holds.receives[hold], holds.resource[hold]
    begin, until = np.where(receives, duration[send] - held, 0), np.where(receives, duration[send], held)
    order = np.lexsort((send, resource))
    send, resource, begin, until = send[order], resource[order], begin[order], until[order]
    # A send that holds a resource at both ends of its link also holds it in between.
    new = np.flatnonzero(np.diff(resource, prepend=-1) | np.diff(send, prepend=-1))
    if len(new) < len(send):
        begin, until = np.minimum.reduceat(begin, new), np.maximum.reduceat(until, new)
        send, resource = send[new], resource[new]
    same = np.flatnonzero(np.diff(resource) == 0)
    waits.add(send[same + 1], send[same], until[same] - begin[same + 1])


def wait_for_copies(waits: Waits, collective: Collective, reads: Events, arrivals: Events) -> bool:
    """Let each send wait for the first arrivals of its chunks; False if one arrives only later."""
    wants = reads.of(~holds_at_start(collective, reads.place))
    place, first = np.unique(arrivals.place, return_index=True)
    row = np.searchsorted(place, wants.place)
    row[row == len(place)] = 0
    if len(row) and not len(place):
        return False
    before = arrivals.send[first[row]] if len(row) else row
    if (place[row] != wants.place).any() or (before >= wants.send).any():
        return False
    waits.add(wants.send, before, waits.duration[before])
    return True


def wait_for_sums(waits: Waits, reads: Events, arrivals: Events, reduce: Flags) -> None:
    """Let sends wait for data reduced in place: a send carries the sum of all earlier arrivals.

    A sum arrives after earlier reads and copies of the data that it changes; a copy arrives after earlier
    reads and all earlier arrivals.

    - `reduce`, (num_transfers,) array: True if a transfer's data is added up.
    """
    duration, adds = waits.duration, reduce[arrivals.transfer]
    waits.add_each(reads, arrivals, duration[arrivals.send])
    starts = np.zeros(len(reads.send), np.int64)
    waits.add_each(arrivals, reads, starts, 1 - duration[arrivals.send])
    for later, earlier in ((adds, ~adds), (~adds, np.ones_like(adds))):
        some, before = arrivals.of(later), arrivals.of(earlier)
        waits.add_each(some, before, duration[before.send], 1 - duration[some.send])


def wait_for_named(
    waits: Waits, collective: Collective, reads: Events, arrivals: Events, carried: Carried
) -> bool:
    """Let each send wait for the contributions that it names; False if they are there only later, or never.

    Ranks keep arrivals unreduced. A sum that arrived is relayed; otherwise the rank composes it from earlier
    arrivals at its first send, and later sends of this sum reuse it.
    """
    number, bits = carried.number, carried.bits
    own = {mask: i for i, mask in enumerate(bits)}
    own_sum = np.array([own.get(1 << rank, -1) for rank in range(collective.num_ranks)])
    rank = reads.place // max(1, collective.num_chunks)
    is_own = holds_at_start(collective, reads.place) & (number[reads.transfer] == own_sum[rank])
    wants = reads.of(~is_own)
    key, first, of_key = np.unique(
        wants.place * len(bits) + number[wants.transfer], return_index=True, return_inverse=True
    )
    use, place, wanted = wants.send[first], wants.place[first], number[wants.transfer[first]]
    known, since = np.unique(arrivals.place * len(bits) + number[arrivals.transfer], return_index=True)
    position = np.asarray(np.searchsorted(known, key))
    arrived = np.append(known, -1)[position] == key
    duration = waits.duration
    before: Ints = np.full(len(key), len(duration))
    before[arrived] = arrivals.send[since[position[arrived]]]
    relayed = before < use
    later = relayed[of_key]
    waits.add(wants.send[later], before[of_key[later]], duration[before[of_key[later]]])
    some = np.flatnonzero(~relayed)
    parts = _parts(use[some], place[some], wanted[some], collective, arrivals, carried)
    if parts is None:
        return False
    node, (row, sources) = waits.nodes(use[some]), parts
    waits.add(node[row], sources, duration[sources])
    of_node = np.full(len(key), -1)
    of_node[some] = node
    later = ~relayed[of_key]
    waits.add(wants.send[later], of_node[of_key[later]], np.zeros(int(later.sum()), np.int64))
    return True


def _parts(
    use: Ints, place: Ints, wanted: Ints, collective: Collective, arrivals: Events, carried: Carried
) -> tuple[Ints, Ints] | None:
    """Arrivals that compose sums, as columns (index of the sum, send of the arrival).

    None if some sum has too few arrivals to be complete.

    If all arrivals within a sum are disjoint and complete it, they compose it. Otherwise a search decides.

    - `use`, `place`, `wanted`, (num_sums,) arrays: First send of each sum, its place, and the sum.
    """
    order, everyone = np.lexsort((arrivals.send, arrivals.place)), collective.num_ranks
    at, sent, sums = arrivals.place[order], arrivals.send[order], carried.number[arrivals.transfer[order]]
    words, sizes, count = carried.words(everyone), carried.sizes, int(sent.max(initial=0)) + 1
    last = np.searchsorted(at * count + sent, place * count + np.minimum(use, count))
    row, each = ranges(np.searchsorted(at, place), last)
    within = ~(words[sums[each]] & ~words[wanted[row]]).any(axis=1)
    row, each = row[within], each[within]
    union, size = np.zeros((len(use), words.shape[1]), np.uint64), np.zeros(len(use), np.int64)
    begins = np.flatnonzero(np.diff(row, prepend=-1))
    if len(begins):
        union[row[begins]] = np.bitwise_or.reduceat(words[sums[each]], begins)
        size[row[begins]] = np.add.reduceat(sizes[sums[each]], begins)
    rank = place // max(1, collective.num_chunks)
    word, bit = rank // 64, np.uint64(1) << (rank % 64).astype(np.uint64)
    has_own = holds_at_start(collective, place)
    own = np.flatnonzero(has_own & ((words[wanted, word] & bit) > 0))
    union[own, word[own]] |= bit[own]
    size[own] += 1
    is_made = (union == words[wanted]).all(axis=1) & (size == sizes[wanted])
    rows, sends = [row[is_made[row]]], [sent[each[is_made[row]]]]
    for k in np.flatnonzero(~is_made).tolist():
        known = [Arrival(-1, 1 << int(rank[k]), -1)] if has_own[k] else []
        for i in range(int(np.searchsorted(at, place[k])), int(last[k])):
            known.append(Arrival(int(sent[i]), carried.bits[sums[i]], i))
        found = make_up(carried.bits[wanted[k]], known)
        if found is None:
            return None
        sends.append(np.array([part.end for part in found if part.send >= 0], np.int64))
        rows.append(np.full(len(sends[-1]), k))
    return np.concatenate(rows), np.concatenate(sends)


def events_of(problem: Problem, chunk: Ints, link: Ints, send: Ints) -> tuple[Events, Events]:
    """(reads at the sources, arrivals at the destinations) of all transfers, in order of their sends.

    - `chunk`, `link`, `send`, (num_transfers,) arrays: Chunk, link and number of send of each transfer.
    """
    order, num_chunks = np.argsort(send, kind="stable"), problem.collective.num_chunks
    found = []
    for row, rank in _ranks_of(problem.topology, link[order]):
        transfer = order[row]
        found.append(Events(send[transfer], transfer, rank * num_chunks + chunk[transfer]))
    return found[0], found[1]


def _ranks_of(topology: Topology, link: Ints) -> list[tuple[Ints, Ints]]:
    """[(row, source), (row, destination)] of links, as columns; wide links have several of them."""
    rows = np.arange(len(link))
    if not wide_links(topology):
        return [(rows, ends[link]) for ends in link_ends(topology)]
    found = []
    for side in ("srcs", "dsts"):
        ranks = [getattr(topology.links[e], side) for e in link.tolist()]
        counts = [len(each) for each in ranks]
        flat = np.array([rank for each in ranks for rank in each], np.int64)
        found.append((np.repeat(rows, counts), flat))
    return found


def holds_at_start(collective: Collective, place: Ints) -> Flags:
    """True for each place (`Events`) if the rank holds the chunk at the start, or contributes to its sum."""
    sets, (rank, chunk) = collective.origin_sets, np.divmod(place, max(1, collective.num_chunks))
    member = np.zeros((collective.num_ranks, len(sets.sets)), bool)
    for i, ranks in enumerate(sets.sets):
        member[list(ranks), i] = True
    found: Flags = member[rank, sets.of_chunk[chunk]]
    return found


class Chains(NamedTuple):
    """Nodes that gather the events of ranges; each continues the previous node if both begin at one event.

    - `begin`, `end`, (num_nodes,): Events that each node adds to those of the node that it continues.
    - `later`: Nodes that continue the previous node.
    - `first_row`, (num_nodes,), `of_row`, (num_ranges,): First range of each node; node of each range.
    """

    begin: Ints
    end: Ints
    later: Ints
    first_row: Ints
    of_row: Ints


def chains(begin: Ints, end: Ints) -> Chains:
    """Nodes for ranges of events from `begin` to `end`, exclusive; equal ranges share a node."""
    _, row, of_row = np.unique(
        begin * (int(end.max(initial=0)) + 1) + end, return_index=True, return_inverse=True
    )
    since, last = begin[row], end[row]
    later = np.flatnonzero(since[1:] == since[:-1]) + 1
    since[later] = last[later - 1]
    return Chains(since, last, later, row, of_row)


def ranges(begin: Ints, end: Ints) -> tuple[Ints, Ints]:
    """(index of the range, value) for all values of the ranges from `begin` to `end`, exclusive."""
    count = np.maximum(0, end - begin)
    row = np.repeat(np.arange(len(count)), count)
    return row, np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count) + begin[row]
