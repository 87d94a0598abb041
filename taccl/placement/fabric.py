"""Arrays of a topology and an algorithm for the compiled kernels, and lower bounds over all placements."""

from __future__ import annotations

from functools import cached_property
from itertools import chain, product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from taccl.baselines.routes import ShortestRoutes
from taccl.placement.hosts import DECIMALS, in_thousandths
from taccl.placement.kernel import TOO_LONG
from taccl.problem.costs import hold_columns
from taccl.problem.problem import Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from taccl.placement.algorithms import Algorithm
    from taccl.placement.hosts import PairCosts


#: Minimum messages per flow for which the busy times of an order are checked before its makespan.
_FEW_FLOWS = 4


class RankMessages(NamedTuple):
    """Messages in order, as columns; message m waits for messages ``wait[wait_of[m] : wait_of[m + 1]]``.

    - `src`, `dst`, (num_messages,) int64: Ranks.
    - `units`, (num_messages,) int64: Size in units of data.
    - `kind`, (num_messages,) int64: Row of `HostPaths.takes` for the size of the message.
    """

    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    units: NDArray[np.int64]
    kind: NDArray[np.int64]
    wait_of: NDArray[np.int64]
    wait: NDArray[np.int64]


class Flows(NamedTuple):
    """Number of messages by source rank, destination rank and size; columns of (num_flows,) int64."""

    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    kind: NDArray[np.int64]
    number: NDArray[np.int64]


class HostPaths(NamedTuple):
    """Links on the path between any two hosts: ``link[path_of[p] : path_of[p + 1]]``, p = src * hosts + dst.

    The holds of link e are ``hold_of[e] : hold_of[e + 1]``; `name` maps their `resource` to its index in the
    topology. A hold begins with its send, or ends with it (at a receiver). Times are ticks, by message size.

    - `takes`, (num_sizes, num_links) int64: Time of a send.
    - `held`, (num_sizes, num_holds) int64: Time for which the resource is held.
    - `before`, (num_sizes, num_holds) int64: Time from the start of the hold to the end of the send.
    - `after`, (num_sizes, num_holds) int64: Time from the end of the hold to the end of the send.
    """

    path_of: NDArray[np.int64]
    link: NDArray[np.int64]
    hold_of: NDArray[np.int64]
    resource: NDArray[np.int64]
    takes: NDArray[np.int64]
    held: NDArray[np.int64]
    before: NDArray[np.int64]
    after: NDArray[np.int64]
    name: NDArray[np.int64]


class Relaxed(NamedTuple):
    """Lower bounds in ticks on messages whose ends are partly placed, for pruning.

    - `anywhere`, (num_sizes,) int64: Minimum time of a message if neither end is placed.
    - `from_host`, `to_host`, (num_sizes, num_hosts) int64: Minimum time of a message if only its source, or
      only its destination, is placed: on each host.
    - `port_out`, `port_in`, (num_sizes,) int64: Minimum time for which a message holds a port of its source
      and of its destination; 0 if hosts have no port.
    - `tail`, (num_messages,) int64: Minimum time from the end of the message to the makespan.
    - `flows`: Number of messages by source rank, destination rank and size. The time for which they keep a
      resource busy is a lower bound on the makespan. Empty if flows have few messages on average.
    """

    anywhere: NDArray[np.int64]
    from_host: NDArray[np.int64]
    to_host: NDArray[np.int64]
    port_out: NDArray[np.int64]
    port_in: NDArray[np.int64]
    tail: NDArray[np.int64]
    flows: Flows


def chunk_sizes(algorithm: Algorithm, size_bytes: int) -> tuple[int, ...]:
    """Bytes of each chunk into which an algorithm cuts the data."""
    collective = algorithm.collective
    if algorithm.weights:
        # Scale a schedule's own chunk sizes to the size asked for.
        before = max(1, sum(algorithm.weights) * (collective.size_chunks or 1) // collective.num_chunks)
        return tuple(max(1, -(-weight * size_bytes // before)) for weight in algorithm.weights)
    return (-(-size_bytes // collective.size_chunks),) * collective.num_chunks


def problem_of(algorithm: Algorithm, topology: object, size_bytes: int) -> Problem:
    """The algorithm as a problem on a topology, with the algorithm's chunks."""
    sizes = chunk_sizes(algorithm, size_bytes)
    return Problem(topology, algorithm.collective, sizes, size_bytes=size_bytes)  # type: ignore[arg-type]


def as_messages(algorithm: Algorithm, chunk_units: NDArray[np.int64]) -> RankMessages:
    """Build the messages of an algorithm.

    - `chunk_units`, (num_chunks,) int64: Size of each chunk in units.
    """
    count = int(algorithm.message.max(initial=-1)) + 1
    units = np.zeros(count, dtype=np.int64)
    np.add.at(units, algorithm.message, chunk_units[algorithm.chunk])
    _, first = np.unique(algorithm.message, return_index=True)
    waiting, wait = algorithm.waits()
    wait_of = np.concatenate(([0], np.cumsum(np.bincount(waiting, minlength=count))))
    kind = np.unique(units, return_inverse=True)[1].astype(np.int64)
    return RankMessages(algorithm.src[first], algorithm.dst[first], units, kind, wait_of, wait)


class HostLinks(NamedTuple):
    """Links and holds between hosts as columns; costs in ticks (alpha) and ticks per unit of data (beta).

    - `hops`: (num_hosts ** 2,) int64, number of links on the path of each (source, destination) pair. Pairs
      are in order of source, then destination.
    - `link`: Links of the paths of all pairs, one pair after the other.
    - `takes`: (2, num_links) int64, alpha and beta of a send.
    - `of_link`, `resource`: (num_holds,) int64, link and resource of each hold, sorted by link.
    - `receives`: (num_holds,) bool, True if the hold ends with the send, False if it begins with it.
    - `held`: (2, num_holds) int64, alpha and beta of each hold.
    - `names`: Name of each resource.
    - `chunk_units`: (num_chunks,) int64, size of each chunk in units.
    """

    num_hosts: int
    hops: NDArray[np.int64]
    link: NDArray[np.int64]
    takes: NDArray[np.int64]
    of_link: NDArray[np.int64]
    resource: NDArray[np.int64]
    receives: NDArray[np.bool_]
    held: NDArray[np.int64]
    names: list[str]
    ticks_per_us: int
    chunk_units: NDArray[np.int64]

    @classmethod
    def of_problem(cls, problem: Problem) -> HostLinks:
        """Shortest routes over a topology. Raises `TopologyError` if two ranks have no route."""
        topology, costs, routes = problem.topology, problem.costs, ShortestRoutes.of(problem)
        count = topology.num_ranks
        ways = [[] if src == dst else routes.hop(src, dst) for src, dst in product(range(count), repeat=2)]
        columns, num_links = hold_columns(topology), len(topology.links)
        of_link, hold = columns.of_sends(np.arange(num_links))
        return cls(
            count, np.array([*map(len, ways)]), np.array([*chain.from_iterable(ways)], dtype=np.int64),
            np.stack((costs.link_alpha, costs.link_beta)), of_link, columns.resource[hold],
            columns.receives[hold], np.stack((costs.hold_alpha[hold], costs.hold_beta[hold])),
            [each.name for each in topology.resources], costs.ticks_per_us, costs.chunk_units,
        )  # fmt: skip

    @classmethod
    def of_costs(cls, costs: PairCosts, sizes: Sequence[int]) -> HostLinks:
        """Links and holds of the topology that `ProbedHosts.topology` would build, without building it."""
        count, num_kinds = len(costs.node), int(costs.kind.max()) + 1
        alpha, beta = in_thousandths(costs.alpha_us), in_thousandths(costs.beta_us_per_mb)
        # A thousandth of a us per MB is a femtosecond per byte.
        # Large data gets coarser ticks, so that times fit into 64 bits.
        longest = count * (int(beta.max()) * sum(sizes) + int(alpha.max()) * 10**6 * len(sizes))
        unit = next((each for each in (1, 10**3, 10**6) if longest // each < TOO_LONG), 10**6)
        off = ~np.eye(count, dtype=bool)
        src, dst = np.nonzero(off)
        links = np.arange(len(src))
        takes = np.stack((-(-alpha[off] * 10**6 // unit), beta[off]))
        kind, num_ports = costs.kind[off], count * num_kinds
        rows: list[tuple[NDArray[np.int64], Any, int, Any, Any]] = []  # no row has a link twice
        if costs.has_ports:
            rows.append((links, src * num_kinds + kind, 0, *takes))
            rows.append((links, num_ports + dst * num_kinds + kind, 1, *takes))
        number_of = np.cumsum(off).reshape(count, count) - 1
        for number, each in enumerate(costs.shared):
            held = round(each.beta_us_per_mb * 10**DECIMALS)
            inside, outside = np.flatnonzero(each.inside), np.flatnonzero(~each.inside)
            for receives, pairs in enumerate((np.ix_(inside, outside), np.ix_(outside, inside))):
                crossing = number_of[pairs].ravel()
                rows.append((crossing, 2 * num_ports + 2 * number + receives, receives, 0, held))
        number_of_holds = np.zeros(len(links), dtype=np.int64)
        for crossing, *_ in rows:
            number_of_holds[crossing] += 1
        of_link = np.repeat(links, number_of_holds)
        at = np.cumsum(number_of_holds) - number_of_holds  # where the next hold of each link goes
        columns = np.empty((4, len(of_link)), dtype=np.int64)
        for crossing, *values in rows:
            place = at[crossing]
            for column, value in zip(columns, values, strict=True):
                column[place] = value
            at[crossing] += 1
        resource, received = columns[:2]
        return cls(
            count, off.ravel().astype(np.int64), links, takes, of_link, resource, received == 1,
            columns[2:], costs.resources(), 10**9 // unit, -(-np.array(sizes, dtype=np.int64) // unit),
        )  # fmt: skip


def _sizes_of(messages: RankMessages) -> NDArray[np.int64]:
    """Units of each kind of message, ascending."""
    sizes = np.zeros(int(messages.kind.max(initial=-1)) + 1, dtype=np.int64)
    sizes[messages.kind] = messages.units
    return sizes


def _flows_of(messages: RankMessages) -> Flows:
    """Count messages by ranks and size; empty if there are too many flows to save time."""
    ranks, kinds = int(max(messages.src.max(), messages.dst.max())) + 1, int(messages.kind.max()) + 1
    keys = (messages.src * ranks + messages.dst) * kinds + messages.kind
    each, number = np.unique(keys, return_counts=True)
    src, dst, kind = each // kinds // ranks, each // kinds % ranks, each % kinds
    few = slice(None) if _FEW_FLOWS * len(src) <= len(messages.src) else slice(0)
    return Flows(*(np.ascontiguousarray(column[few], dtype=np.int64) for column in (src, dst, kind, number)))


def _is_implied(
    side: NDArray[np.int64], held: NDArray[np.int64], resource: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """True for each hold that delays no send beyond another hold of the same link and side.

    Only this link uses the resource of the hold, and the other hold lasts at least as long for every size.
    """
    alone: NDArray[np.bool_] = np.bincount(resource)[resource] == 1
    if not alone.any():
        return alone
    longest = np.zeros((2, int(side.max(initial=-1)) + 1), dtype=np.int64)
    beside = np.zeros(longest.shape[1], dtype=np.bool_)
    beside[side[alone]] = True
    others = np.flatnonzero(beside[side] & ~alone)
    others = others[np.lexsort((*held[:, others], side[others]))]
    longest[:, side[others]] = held[:, others]
    implied: NDArray[np.bool_] = alone & (held <= longest[:, side]).all(axis=0)
    return implied


class HostFabric:
    """Paths between all hosts, for the message sizes of an algorithm.

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
        """[alpha, beta] of the time for which a message of a pair (row) holds each resource (column)."""
        return [self._hop @ ticks for ticks in self._of_links]

    def relaxed(self, messages: RankMessages, flows: Flows | None = None) -> Relaxed:
        """Lower bounds on the times of messages whose ends are partly placed; `tail` and ports are 0.

        - `flows`: Flows of the messages, if known.
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
        return Relaxed(anywhere, from_host, to_host, none, none, tail, flows or _flows_of(messages))

    def with_ports(self, relaxed: Relaxed, messages: RankMessages) -> Relaxed:
        """Tighter lower bounds: with the times of ports, which count only where ends are not placed."""
        ports = np.array([self._ports(units) for units in _sizes_of(messages).tolist()], dtype=np.int64)
        port_out, port_in = np.ascontiguousarray(ports.T)
        return relaxed._replace(port_out=port_out, port_in=port_in)

    def _ports(self, units: int) -> list[int]:
        """Minimum ticks for which a message holds a port of its source, and one of its destination.

        A port counts if all messages of its host in that direction hold it; the minimum is over hosts.
        """
        held, ports = self._held(units).tocoo(), []
        # All num_hosts - 1 pairs of a host hold its port, so resources held by fewer pairs are left out.
        # Without these, an array of (host, resource) is about as long as the number of holds.
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

    def distance(self, units: int) -> NDArray[np.float64]:
        """(num_hosts, num_hosts) ticks: time of a message on its path, plus its holds of resources."""
        held = self._hop @ np.stack([ticks.sum(axis=1) for ticks in self._of_links], axis=1)
        whole = self.took[0] + held[:, 0] + units * (self.took[1] + held[:, 1])
        return np.asarray(whole, dtype=np.float64).reshape(self.num_hosts, -1)

    def busiest(self, messages: RankMessages, order: NDArray[np.int64]) -> tuple[str, int]:
        """Name of the resource that an order keeps busy longest, and its busy time in ticks."""
        pair = order[messages.src] * self.num_hosts + order[messages.dst]
        number = np.bincount(pair, minlength=self.num_hosts**2)
        units = np.zeros_like(number)
        np.add.at(units, pair, messages.units)
        busy = number @ self.held[0] + units @ self.held[1]
        most = int(np.argmax(busy))
        return self.names[most], int(busy[most])

    def least_crossing(self, messages: RankMessages) -> int:
        """Lower bound in ticks, over all orders, on the busy time of resources between two sets of hosts.

        Consider a resource that every message from a set of k of the n hosts to the others holds. Every rank
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
        joint = float(np.linalg.eigvalsh(np.diag(even.sum(axis=1)) - even)[1])
        rates = self.held[1].tocsc()
        # A set of hosts and the others form at least num_hosts - 1 pairs; skip resources held by fewer.
        for resource in np.flatnonzero(np.diff(rates.indptr) >= self.num_hosts - 1):
            first, last = rates.indptr[resource : resource + 2]
            src, dst = (np.unique(side) for side in divmod(rates.indices[first:last], self.num_hosts))
            if len(src) + len(dst) == self.num_hosts and last - first == len(src) * len(dst):
                units = joint * len(src) * len(dst) / self.num_hosts
                most = max(most, units * float(rates.data[first:last].min()))
        return int(most * (1 - 1e-9))  # eigenvalues are inexact
