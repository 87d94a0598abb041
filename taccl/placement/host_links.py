"""Arrays of the links between hosts and of the resources that sends hold, from a topology or a probe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from taccl._internal.arrays import Flags, Ints
from taccl.baselines.routes import ShortestRoutes
from taccl.placement.hosts import DECIMALS, PairCosts, in_thousandths
from taccl.placement.kernel import TOO_LONG
from taccl.problem.costs import hold_columns
from taccl.problem.problem import Problem


class HostLinks(NamedTuple):
    """Links between hosts as arrays, and the holds of each link: resources that a send over it occupies.

    Costs are in ticks (alpha) and in ticks per unit of data (beta).

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
    hops: Ints
    link: Ints
    takes: Ints
    of_link: Ints
    resource: Ints
    receives: Flags
    held: Ints
    names: list[str]
    ticks_per_us: int
    chunk_units: Ints

    @classmethod
    def of_problem(cls, problem: Problem) -> HostLinks:
        """Links and holds of a problem's shortest routes; `TopologyError` if two ranks have no route."""
        topology, costs, routes = problem.topology, problem.costs, ShortestRoutes.of(problem)
        count = topology.num_ranks
        src, dst = np.nonzero(~np.eye(count, dtype=bool))
        pair, _, link = routes.hops(src, dst, direct_first=True)
        num_hops = np.bincount((src * count + dst)[pair], minlength=count**2)
        columns, num_links = hold_columns(topology), len(topology.links)
        of_link, hold = columns.of_sends(np.arange(num_links))
        return cls(
            count, num_hops, link,
            np.stack((costs.link_alpha, costs.link_beta)), of_link, columns.resource[hold],
            columns.receives[hold], np.stack((costs.hold_alpha[hold], costs.hold_beta[hold])),
            [each.name for each in topology.resources], costs.ticks_per_us, costs.chunk_units,
        )  # fmt: skip

    @classmethod
    def of_costs(cls, costs: PairCosts, sizes: Sequence[int], used: Flags) -> HostLinks:
        """Links and holds of the topology that `ProbedHosts.topology` would build, without building it.

        - `used`, (num_hosts, num_hosts): True for each pair to include.
        """
        count, num_kinds = len(costs.node), int(costs.kind.max()) + 1
        off = used & ~np.eye(count, dtype=bool)
        alpha, beta = (in_thousandths(each) for each in (costs.alpha_us, costs.beta_us_per_mb))
        # A thousandth of a us per MB is a femtosecond per byte.
        # Large data gets coarser ticks, so that times fit into 64 bits.
        longest = count * (int(beta.max()) * sum(sizes) + int(alpha.max()) * 10**6 * len(sizes))
        unit = next((each for each in (1, 10**3, 10**6) if longest // each < TOO_LONG), 10**6)
        src, dst = np.nonzero(off)
        links = np.arange(len(src))
        takes = np.stack((-(-alpha[off] * 10**6 // unit), beta[off]))
        kind, num_ports = costs.kind[off], count * num_kinds
        rows: list[tuple[Ints, Any, int, Any, Any]] = []  # no row lists a link twice
        if costs.has_ports:
            rows.append((links, src * num_kinds + kind, 0, *takes))
            rows.append((links, num_ports + dst * num_kinds + kind, 1, *takes))
        links_of = _by_host(src, count), _by_host(dst, count)
        for number, each in enumerate(costs.shared):
            held, hosts = round(each.beta_us_per_mb * 10**DECIMALS), np.flatnonzero(each.inside).tolist()
            for receives, far in enumerate((dst, src)):
                own = np.concatenate([links_of[receives][host] for host in hosts])
                crossing = own[~each.inside[far[own]]]
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


def _by_host(ends: Ints, num_hosts: int) -> list[Ints]:
    """Indices of the links at each host, given the host at one end of every link."""
    return np.split(np.argsort(ends, kind="stable"), np.cumsum(np.bincount(ends, minlength=num_hosts))[:-1])
