"""Reads and arrivals of chunks at ranks as columns, and nodes that gather ranges of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from taccl._internal.arrays import Flags, Ints, lexsort, numbered
from taccl.problem.collective import Collective
from taccl.problem.costs import link_ends, wide_links
from taccl.problem.problem import Problem
from taccl.topology.topology import Topology


class Events(NamedTuple):
    """Reads or arrivals of chunks at ranks as columns, in order of their sends.

    - `send`, `transfer`, (num_events,) int64: Number of the send, and index of the transfer.
    - `place`, (num_events,) int64: Rank and chunk as one number, ``rank * num_chunks + chunk``.
    """

    send: Ints
    transfer: Ints
    place: Ints

    def of(self, rows: Flags | Ints) -> Events:
        """Events of the given rows."""
        return Events(self.send[rows], self.transfer[rows], self.place[rows])


def events_of(problem: Problem, chunk: Ints, link: Ints, send: Ints) -> tuple[Events, Events]:
    """(reads at the sources, arrivals at the destinations) of all transfers, in order of their sends.

    - `chunk`, `link`, `send`, (num_transfers,) arrays: Chunk, link and number of send of each transfer.
    """
    order, num_chunks = lexsort((send,)), problem.collective.num_chunks
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
    found: Flags = sets.flags(collective.num_ranks)[sets.of_chunk[chunk], rank]
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
    _, row, of_row = numbered(begin * (int(end.max(initial=0)) + 1) + end)
    since, last = begin[row], end[row]
    later = np.flatnonzero(since[1:] == since[:-1]) + 1
    since[later] = last[later - 1]
    return Chains(since, last, later, row, of_row)
