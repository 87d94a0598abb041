"""A topology and an algorithm as arrays: what compiled kernels time, and what no placement can beat."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from taccl.baselines.routes import Routes
from taccl.costs import hold_columns, link_ends
from taccl.problem import Problem

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from taccl.placement.algorithms import Algorithm

__all__ = [
    "Messages", "Paths", "Relaxed", "as_messages", "as_paths", "least_crossing", "problem_of", "relaxed",
]  # fmt: skip


class Messages(NamedTuple):
    """Messages in order; m waits for the earlier ones ``wait[wait_of[m] : wait_of[m + 1]]``."""

    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    units: NDArray[np.int64]
    wait_of: NDArray[np.int64]
    wait: NDArray[np.int64]


class Paths(NamedTuple):
    """The links from host to host, ``link[path_of[p] : path_of[p + 1]]`` of pair ``p = src * hosts + dst``.

    The holds of link e are ``hold_of[e] : hold_of[e + 1]``, of resources whose index in the topology is
    ``name[resource]``; times are ticks, and ticks a unit.
    """

    path_of: NDArray[np.int64]
    link: NDArray[np.int64]
    alpha: NDArray[np.int64]
    beta: NDArray[np.int64]
    hold_of: NDArray[np.int64]
    resource: NDArray[np.int64]
    hold_alpha: NDArray[np.int64]
    hold_beta: NDArray[np.int64]
    name: NDArray[np.int64]


class Relaxed(NamedTuple):
    """What a message takes at least, wherever its ends are, or with one end known; and what must follow it.

    Parameters
    ----------
    kind : (num_messages,) int64
        Which of the sizes it has.
    anywhere : (num_sizes,) int64
    from_host, to_host : (num_sizes, num_hosts) int64
    port_out, port_in : (num_sizes,) int64
        For how long it holds its source's port, and its destination's, at least; 0 where hosts have none.
    tail : (num_messages,) int64
        From its end to that of all.
    """

    kind: NDArray[np.int64]
    anywhere: NDArray[np.int64]
    from_host: NDArray[np.int64]
    to_host: NDArray[np.int64]
    port_out: NDArray[np.int64]
    port_in: NDArray[np.int64]
    tail: NDArray[np.int64]


def problem_of(algorithm: Algorithm, topology: object, size_bytes: int) -> Problem:
    """What the algorithm does on a topology, with the chunks that it cuts the data into."""
    collective = algorithm.collective
    if algorithm.weights:
        # A schedule's own chunks, in proportion.
        before = max(1, sum(algorithm.weights) * (collective.size_chunks or 1) // collective.num_chunks)
        sizes = tuple(max(1, -(-weight * size_bytes // before)) for weight in algorithm.weights)
    else:
        sizes = (-(-size_bytes // collective.size_chunks),) * collective.num_chunks
    return Problem(topology, collective, sizes, size_bytes=size_bytes)  # type: ignore[arg-type]


def as_messages(algorithm: Algorithm, problem: Problem) -> Messages:
    """The messages of an algorithm, with the sizes of a problem's chunks."""
    count = int(algorithm.message.max(initial=-1)) + 1
    units = np.zeros(count, dtype=np.int64)
    np.add.at(units, algorithm.message, problem.costs.chunk_units[algorithm.chunk])
    _, first = np.unique(algorithm.message, return_index=True)
    waiting, wait = algorithm.waits()
    wait_of = np.concatenate(([0], np.cumsum(np.bincount(waiting, minlength=count))))
    return Messages(algorithm.src[first], algorithm.dst[first], units, wait_of, wait)


def as_paths(problem: Problem) -> Paths:
    """The way from every rank of the problem's topology to every other: a link, or the shortest route.

    `TopologyError` says between which two ranks there is none.
    """
    topology, costs = problem.topology, problem.costs
    count = topology.num_ranks
    src, dst = link_ends(topology)
    plain = np.array([len(link.srcs) + len(link.dsts) == 2 for link in topology.links], dtype=bool)
    usual = int(costs.chunk_units.max(initial=1))
    took = np.where(plain, costs.link_alpha + usual * costs.link_beta, np.iinfo(np.int64).max)
    direct = np.full(count * count, -1, dtype=np.int64)
    order = np.argsort(-took, kind="stable")  # of several links the fastest is written last
    order = order[plain[order]]
    direct[src[order] * count + dst[order]] = order
    lacking = np.flatnonzero(direct < 0)
    routes = Routes(problem)
    ways = {p: routes.route(p // count, p % count) for p in lacking.tolist() if p // count != p % count}
    hops = np.where(direct >= 0, 1, 0)
    for pair, way in ways.items():
        hops[pair] = len(way)
    path_of = np.concatenate(([0], np.cumsum(hops)))
    link = np.empty(path_of[-1], dtype=np.int64)
    known = np.flatnonzero(direct >= 0)
    link[path_of[known]] = direct[known]
    for pair, way in ways.items():
        link[path_of[pair] : path_of[pair + 1]] = way
    return Paths(path_of, link, costs.link_alpha, costs.link_beta, *_holds(problem))


def _holds(problem: Problem) -> tuple[NDArray[np.int64], ...]:
    """The holds of every link, but for a resource of its own where it holds one that is shared as long."""
    costs, columns = problem.costs, hold_columns(problem.topology)
    link, resource, alpha, beta = columns.link, columns.resource, costs.hold_alpha, costs.hold_beta
    alone = np.bincount(resource)[resource] == 1
    longest = np.zeros((2, len(problem.topology.links)), dtype=np.int64)
    for most, each in zip(longest, (alpha, beta), strict=True):
        np.maximum.at(most, link, each)
    covers = np.zeros(longest.shape[1], dtype=bool)
    covers[link[~alone & (alpha == longest[0, link]) & (beta == longest[1, link])]] = True
    kept = np.flatnonzero(~(alone & covers[link]))
    kept = kept[np.argsort(link[kept], kind="stable")]
    hold_of = np.concatenate(([0], np.cumsum(np.bincount(link[kept], minlength=longest.shape[1]))))
    names, dense = np.unique(resource[kept], return_inverse=True)
    return hold_of, dense.astype(np.int64), alpha[kept], beta[kept], names


def relaxed(messages: Messages, paths: Paths, num_hosts: int) -> Relaxed:
    """What every message takes at least, wherever its ends are; nothing yet of what must follow it."""
    sizes, kind = np.unique(messages.units, return_inverse=True)
    every = np.arange(num_hosts)
    between = (every[:, None] != every[None, :]).ravel()
    hop_pair = np.repeat(np.arange(num_hosts * num_hosts), np.diff(paths.path_of))
    never = np.iinfo(np.int64).max
    rows = []
    for size in sizes.tolist():
        took = np.zeros(num_hosts * num_hosts, dtype=np.int64)
        np.add.at(took, hop_pair, paths.alpha[paths.link] + size * paths.beta[paths.link])
        table = np.where(between, took, never).reshape(num_hosts, num_hosts)
        ports = [_port(paths, num_hosts, size, into=into) for into in (False, True)]
        rows.append((table.min(), table.min(axis=1), table.min(axis=0), *ports))
    anywhere, from_host, to_host, port_out, port_in = (
        np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)
    )
    nothing = np.zeros(len(kind), dtype=np.int64)
    return Relaxed(kind.astype(np.int64), anywhere, from_host, to_host, port_out, port_in, nothing)


def _port(paths: Paths, num_hosts: int, size: int, *, into: bool) -> int:
    """For how long a message holds something that every message from its host, or to it, holds; at least."""
    pair = np.flatnonzero(np.diff(paths.path_of))
    # The link by which a path leaves its source, or reaches its destination.
    link = paths.link[paths.path_of[pair + 1] - 1 if into else paths.path_of[pair]]
    host = pair % num_hosts if into else pair // num_hosts
    held = paths.hold_alpha + size * paths.hold_beta
    least = []
    for each in range(num_hosts):
        links = np.unique(link[host == each])
        number = paths.hold_of[links + 1] - paths.hold_of[links]
        rows = np.repeat(paths.hold_of[links], number) + _counted(number)
        names, times = np.unique(paths.resource[rows], return_counts=True)
        common = names[times == len(links)]
        least.append(max((int(held[rows[paths.resource[rows] == c]].min()) for c in common), default=0))
    return min(least)


def _counted(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """0, 1, ... up to each of the numbers."""
    return np.arange(int(numbers.sum())) - np.repeat(np.cumsum(numbers) - numbers, numbers)


def least_crossing(messages: Messages, paths: Paths, num_hosts: int) -> int:
    """How long some way out of a set of hosts is busy at least, whichever ranks are in the set.

    Of n ranks k are behind a resource that every message out of k hosts holds. Where every rank sends as much
    as it receives, they send ``a * k * (n - k) / n`` to the others at least, `a` the second eigenvalue of the
    Laplacian of what ranks send to each other, both ways halved.

    References
    ----------
    B. Mohar, "The Laplacian spectrum of graphs", Graph Theory, Combinatorics and Applications 2 (1991).
    """
    flow = np.zeros((num_hosts, num_hosts))
    np.add.at(flow, (messages.src, messages.dst), messages.units.astype(float))
    if not np.allclose(flow.sum(axis=0), flow.sum(axis=1)):
        return 0
    even = (flow + flow.T) / 2
    joint = float(np.linalg.eigvalsh(np.diag(even.sum(axis=1)) - even)[1])
    pair = np.repeat(np.arange(num_hosts**2), np.diff(paths.path_of))
    holds = paths.hold_of[paths.link + 1] - paths.hold_of[paths.link]
    resource = paths.resource[np.repeat(paths.hold_of[paths.link], holds) + _counted(holds)]
    beta = paths.hold_beta[np.repeat(paths.hold_of[paths.link], holds) + _counted(holds)]
    pair = np.repeat(pair, holds)
    order = np.argsort(resource, kind="stable")
    most = 0.0
    for rows in np.split(order, np.cumsum(np.bincount(resource))[:-1]):
        src, dst = np.unique(pair[rows] // num_hosts), np.unique(pair[rows] % num_hosts)
        inside = len(src)
        if inside + len(dst) == num_hosts and len(np.unique(pair[rows])) == inside * len(dst):
            units = joint * inside * len(dst) / num_hosts
            most = max(most, units * float(beta[rows].min()))
    return int(most * (1 - 1e-9))  # an eigenvalue is no exact number
