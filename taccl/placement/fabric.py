"""Arrays of a topology and an algorithm for the compiled kernels, and lower bounds over all placements."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from taccl._internal.arrays import Flags, Floats, Ints
from taccl.problem.problem import Problem

if TYPE_CHECKING:
    from taccl.placement.algorithms import Algorithm
    from taccl.placement.host_links import HostLinks


#: Min mean messages per flow (source, destination, size) to check resources' busy times before the makespan.
_FEW_FLOWS = 4


class RankMessages(NamedTuple):
    """Messages of an algorithm as columns; message m waits for ``wait[wait_of[m] : wait_of[m + 1]]``.

    - `src`, `dst`, (num_messages,) int64: Ranks.
    - `units`, (num_messages,) int64: Size in units of data.
    - `kind`, (num_messages,) int64: Row of `HostPaths.takes` for the size of the message.
    - `flow`, (num_messages,) int64: Index of the message's flow in `Flows`.
    """

    src: Ints
    dst: Ints
    units: Ints
    kind: Ints
    flow: Ints
    wait_of: Ints
    wait: Ints


class Flows(NamedTuple):
    """Number of messages by source rank, destination rank and size; columns of (num_flows,) int64."""

    src: Ints
    dst: Ints
    kind: Ints
    number: Ints


NO_FLOWS = Flows(*np.zeros((4, 0), dtype=np.int64))


class HostPaths(NamedTuple):
    """Links on the path between any two hosts, and holds (uses of a resource by a link) of each link.

    The path from host src to host dst has number p = src * num_hosts + dst. Its links are
    ``link[path_of[p] : path_of[p + 1]]``. The holds of link e are ``hold_of[e] : hold_of[e + 1]``. A hold's
    `resource` is an index in `name`, which has the resource's index in the topology. A hold begins with its
    send, or ends with it (at a receiver). Times are in ticks, for each message size.

    - `takes`, (num_sizes, num_links) int64: Time of a send.
    - `held`, (num_sizes, num_holds) int64: Time for which the resource is held.
    - `before`, (num_sizes, num_holds) int64: Time from the start of the hold to the end of the send.
    - `after`, (num_sizes, num_holds) int64: Time from the end of the hold to the end of the send.
    """

    path_of: Ints
    link: Ints
    hold_of: Ints
    resource: Ints
    takes: Ints
    held: Ints
    before: Ints
    after: Ints
    name: Ints


class Relaxed(NamedTuple):
    """Lower bounds in ticks on messages whose source or destination rank has no host yet, for pruning.

    - `anywhere`, (num_sizes,) int64: Minimum time of a message if neither end is placed.
    - `from_host`, `to_host`, (num_sizes, num_hosts) int64: Minimum time of a message if only its source, or
      only its destination, is placed: on each host.
    - `port_out`, `port_in`, (num_sizes,) int64: Minimum time for which a message holds a port of its source
      and of its destination; 0 if hosts have no port.
    - `tail`, (num_messages,) int64: Minimum time from the end of the message to the makespan.
    - `flows`: Number of messages by source rank, destination rank and size. The time for which they keep a
      resource busy is a lower bound on the makespan. Empty if flows have few messages on average, or if ranks
      are open.
    """

    anywhere: Ints
    from_host: Ints
    to_host: Ints
    port_out: Ints
    port_in: Ints
    tail: Ints
    flows: Flows


class Room(NamedTuple):
    """Work arrays for one thread of the compiled kernels that time rank orders.

    - `end`, (num_messages,) int64: End of each message.
    - `free`: Release time of each resource, then of the send and the receive port of each rank.
    - `near`: Copies of the paths that flows take in one rank order, for fast access: path f is that of flow
      f, with times for the flow's message size alone.
    """

    end: Ints
    free: Ints
    near: HostPaths


def chunk_sizes(algorithm: Algorithm, size_bytes: int) -> tuple[int, ...]:
    """Bytes of each chunk into which an algorithm cuts the data."""
    collective = algorithm.collective
    if algorithm.weights:
        # Scale a schedule's own chunk sizes to the given size.
        before = max(1, sum(algorithm.weights) * (collective.size_chunks or 1) // collective.num_chunks)
        return tuple(max(1, -(-weight * size_bytes // before)) for weight in algorithm.weights)
    return (-(-size_bytes // collective.size_chunks),) * collective.num_chunks


def problem_of(algorithm: Algorithm, topology: object, size_bytes: int) -> Problem:
    """Problem of an algorithm's collective on a topology, with the chunk sizes of the algorithm."""
    sizes = chunk_sizes(algorithm, size_bytes)
    return Problem(topology, algorithm.collective, sizes, size_bytes=size_bytes)  # type: ignore[arg-type]


def as_messages(algorithm: Algorithm, chunk_units: Ints) -> tuple[RankMessages, Flows]:
    """Build the messages of an algorithm, and the flows that they form.

    - `chunk_units`, (num_chunks,) int64: Size of each chunk in units.
    """
    count = int(algorithm.message.max(initial=-1)) + 1
    units, first = np.zeros((2, count), dtype=np.int64)
    np.add.at(units, algorithm.message, chunk_units[algorithm.chunk])
    # NumPy keeps the last write, so writing in reverse order leaves the first transfer of each message.
    first[algorithm.message[::-1]] = np.arange(len(algorithm.message))[::-1]
    waiting, wait = algorithm.waits()
    wait_of = np.concatenate(([0], np.cumsum(np.bincount(waiting, minlength=count))))
    src, dst = algorithm.src[first], algorithm.dst[first]
    _, kind = _numbered(units)
    ranks, kinds = algorithm.collective.num_ranks, int(kind.max(initial=-1)) + 1
    each, flow = _numbered((src * ranks + dst) * kinds + kind)
    flows = Flows(*(
        np.ascontiguousarray(column, dtype=np.int64)
        for column in (each // kinds // ranks, each // kinds % ranks, each % kinds, np.bincount(flow))
    ))  # fmt: skip
    return RankMessages(src, dst, units, kind, flow, wait_of, wait), flows


def _numbered(values: Ints) -> tuple[Ints, Ints]:
    """(distinct values in ascending order, index of each value among them); values are nonnegative."""
    span = int(values.max(initial=-1)) + 1
    if span > 4 * len(values):
        each, number = np.unique(values, return_inverse=True)
        return each, number.astype(np.int64)
    is_used = np.zeros(span, dtype=bool)  # a table is faster than sorting
    is_used[values] = True
    return np.flatnonzero(is_used), (np.cumsum(is_used) - 1)[values]


def _sizes_of(messages: RankMessages) -> Ints:
    """Message size of each size class (`kind`), in units, ascending."""
    sizes = np.zeros(int(messages.kind.max(initial=-1)) + 1, dtype=np.int64)
    sizes[messages.kind] = messages.units
    return sizes


def _is_implied(side: Ints, held: Ints, resource: Ints) -> Flags:
    """True for each redundant hold (use of a resource by a link).

    A hold is redundant under two conditions. No other link uses its resource. Another hold of the link on the
    same side (send or receive) lasts at least as long for every size.
    """
    alone: Flags = np.bincount(resource)[resource] == 1
    if not alone.any():
        return alone
    longest = np.zeros((2, int(side.max(initial=-1)) + 1), dtype=np.int64)
    beside = np.zeros(longest.shape[1], dtype=np.bool_)
    beside[side[alone]] = True
    others = np.flatnonzero(beside[side] & ~alone)
    others = others[np.lexsort((*held[:, others], side[others]))]
    longest[:, side[others]] = held[:, others]
    implied: Flags = alone & (held <= longest[:, side]).all(axis=0)
    return implied


def _second_eigenvalue(matrix: Floats) -> float:
    """Second smallest eigenvalue of a symmetric matrix."""
    if (matrix[1:, 1:] == matrix[:-1, :-1]).all() and (matrix[1:, 0] == matrix[:-1, -1]).all():
        # A circulant matrix, as of a ring or a pairwise exchange: O(n log n) instead of O(n ** 3).
        return float(np.sort(np.fft.fft(matrix[0]).real)[1])
    return float(np.linalg.eigvalsh(matrix)[1])


class HostFabric:
    """Paths between all pairs of hosts, with the times of sends for the message sizes of an algorithm.

    - `paths`: The arrays that kernels read.
    - `took`: [alpha, beta] of the path of each pair of hosts, in ticks and ticks per unit.
    """

    def __init__(self, links: HostLinks, messages: RankMessages) -> None:
        from scipy.sparse import csr_array

        count = self.num_hosts = links.num_hosts
        of_link, held, resource, receives = links.of_link, links.held, links.resource, links.receives
        kept = ~_is_implied(2 * of_link + receives, held, resource)
        if not kept.all():
            of_link, held, resource, receives = of_link[kept], held[:, kept], resource[kept], receives[kept]
        is_used = np.bincount(resource, minlength=len(links.names)) > 0
        name, resource = np.flatnonzero(is_used), (np.cumsum(is_used) - 1)[resource]
        self.names = [links.names[each] for each in name.tolist()]
        num_links = links.takes.shape[1]
        hold_of = np.searchsorted(of_link, np.arange(num_links + 1))
        path_of = np.concatenate(([0], np.cumsum(links.hops)))
        units = _sizes_of(messages)[:, None]
        takes, times = links.takes[0] + units * links.takes[1], held[0] + units * held[1]
        whole = takes[:, of_link]
        before, after = np.where(receives, times, whole), np.where(receives, 0, whole - times)
        self.paths = HostPaths(path_of, links.link, hold_of, resource, takes, times, before, after, name)
        pair = np.repeat(np.arange(count * count), links.hops)
        ones = np.ones(len(links.link), dtype=np.int64)
        self._hop = csr_array((ones, (pair, links.link)), (count * count, num_links))
        self._of_links = [csr_array((ticks, resource, hold_of), (num_links, len(name))) for ticks in held]
        self.took = [self._hop @ ticks for ticks in links.takes]

    @cached_property
    def held(self) -> list[Any]:
        """[alpha, beta] of the time for which a message between two hosts (row) holds a resource (column)."""
        return [self._hop @ ticks for ticks in self._of_links]

    def relaxed(self, messages: RankMessages, flows: Flows) -> Relaxed:
        """Lower bounds on message times if source or destination has no host yet.

        The fields `port_out`, `port_in` and `tail` are 0.
        """
        sizes, rows = _sizes_of(messages), []
        for units in sizes.tolist():
            took = (self.took[0] + units * self.took[1]).reshape(self.num_hosts, -1)
            np.fill_diagonal(took, np.iinfo(np.int64).max)
            rows.append((took.min(), took.min(axis=1), took.min(axis=0)))
        anywhere, from_host, to_host = (
            np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)
        )
        tail, none = np.zeros(len(messages.units), dtype=np.int64), np.zeros(len(sizes), dtype=np.int64)
        if _FEW_FLOWS * len(flows.src) > len(messages.src):
            flows = NO_FLOWS
        return Relaxed(anywhere, from_host, to_host, none, none, tail, flows)

    def room(self, messages: RankMessages, flows: Flows) -> Room:
        """Allocate the work arrays of one thread for the compiled kernels that time rank orders.

        - `flows`: The flows in the result of `relaxed`.
        """
        paths, num_flows = self.paths, len(flows.src)
        free = np.zeros(len(paths.name) + 2 * self.num_hosts, dtype=np.int64)
        hops = num_flows * int(np.diff(paths.path_of).max(initial=0))
        holds = hops * int(np.diff(paths.hold_of).max(initial=0))
        hop, hold = np.arange(hops), np.zeros(holds, dtype=np.int64)
        near = HostPaths(
            np.zeros(num_flows + 1, dtype=np.int64), hop, np.zeros(hops + 1, dtype=np.int64), hold,
            np.zeros((1, hops), dtype=np.int64), hold[None].copy(), hold[None].copy(), hold[None].copy(),
            np.zeros(0, dtype=np.int64),
        )  # fmt: skip
        return Room(np.zeros(len(messages.src), dtype=np.int64), free, near)

    def with_ports(self, relaxed: Relaxed, messages: RankMessages) -> Relaxed:
        """Tighten the bounds of messages whose source or destination has no host, by the times of ports."""
        ports = np.array([self._ports(units) for units in _sizes_of(messages).tolist()], dtype=np.int64)
        port_out, port_in = np.ascontiguousarray(ports.T)
        return relaxed._replace(port_out=port_out, port_in=port_in, flows=NO_FLOWS)

    def _ports(self, units: int) -> list[int]:
        """Minimum ticks for which a message holds a port of its source, and one of its destination.

        A resource is a port of a host if all messages from the host, or all to it, hold the resource. The
        minimum is over all hosts.
        """
        held, ports = self._held(units).tocoo(), []
        # In each direction, all num_hosts - 1 pairs of a host hold its port; resources with fewer are none.
        # To save memory, only ports get columns: then (host, resource) arrays are about as large as `held`.
        often = np.bincount(held.col, minlength=held.shape[1]) >= self.num_hosts - 1
        kept, size = often[held.col], int(often.sum())
        pair, times, column = held.row[kept], held.data[kept], (np.cumsum(often) - 1)[held.col[kept]]
        for host in (pair // self.num_hosts, pair % self.num_hosts):
            key = host * size + column
            number = np.bincount(key, minlength=self.num_hosts * size)
            least = np.full(len(number), np.iinfo(np.int64).max)
            np.minimum.at(least, key, times)
            common = np.where(number == self.num_hosts - 1, least, 0).reshape(self.num_hosts, size)
            ports.append(int(common.max(axis=1, initial=0).min()))
        return ports

    def _held(self, units: int) -> Any:
        return self.held[0] + units * self.held[1]

    def distance(self, units: int) -> Floats:
        """Distance of each pair of hosts: the time of a message, plus the times for which it holds resources.

        The result has shape (num_hosts, num_hosts) and is in ticks.
        """
        held = self._hop @ np.stack([ticks.sum(axis=1) for ticks in self._of_links], axis=1)
        whole = self.took[0] + held[:, 0] + units * (self.took[1] + held[:, 1])
        return np.asarray(whole, dtype=np.float64).reshape(self.num_hosts, -1)

    def busiest(self, messages: RankMessages, order: Ints) -> tuple[str, int]:
        """Name of the resource that an order keeps busy longest, and its busy time in ticks."""
        pair = order[messages.src] * self.num_hosts + order[messages.dst]
        number = np.bincount(pair, minlength=self.num_hosts**2)
        units = np.zeros_like(number)
        np.add.at(units, pair, messages.units)
        busy = number @ self.held[0] + units @ self.held[1]
        most = int(np.argmax(busy))
        return self.names[most], int(busy[most])

    def least_crossing(self, messages: RankMessages) -> int:
        """Lower bound in ticks, for every order of ranks, on the most that a resource between hosts is busy.

        Take k of the n hosts, and a resource that all messages from them to the other hosts hold. Every rank
        must send as much as it receives. Then the ranks on these k hosts send at least ``a * k * (n - k) /
        n`` units to the others. Here `a` is the second eigenvalue of the Laplacian of the traffic between
        ranks, averaged over both directions. The bound is 0 if some rank sends more or less than it receives.

        References
        ----------
        B. Mohar, "The Laplacian spectrum of graphs", Graph Theory, Combinatorics and Applications 2 (1991).
        """
        flow, most = np.zeros((self.num_hosts, self.num_hosts)), 0.0
        np.add.at(flow, (messages.src, messages.dst), messages.units.astype(float))
        if not np.allclose(flow.sum(axis=0), flow.sum(axis=1)):
            return 0
        even = (flow + flow.T) / 2
        joint = _second_eigenvalue(np.diag(even.sum(axis=1)) - even)
        rates = self.held[1].tocsc()
        # Only resources that hold all pairs across a cut count: skip those with fewer than num_hosts - 1.
        for resource in np.flatnonzero(np.diff(rates.indptr) >= self.num_hosts - 1):
            first, last = rates.indptr[resource : resource + 2]
            src, dst = (np.unique(side) for side in divmod(rates.indices[first:last], self.num_hosts))
            if len(src) + len(dst) == self.num_hosts and last - first == len(src) * len(dst):
                units = joint * len(src) * len(dst) / self.num_hosts
                most = max(most, units * float(rates.data[first:last].min()))
        return int(most * (1 - 1e-9))  # eigenvalues are inexact
