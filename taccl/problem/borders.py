"""Lower bound on an exchange: bytes that must cross a rank's or node's border, over the rate of its links."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from taccl._internal.caching import cached
from taccl.problem.costs import HoldColumns, hold_columns, link_ends

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from taccl.topology.topology import Topology


@cached
def borders_of(topology: Topology) -> Borders:
    """Borders of a topology, computed once."""
    return Borders(topology)


class Borders:
    """Max rates and min latencies of data that leave or enter each rank and each node, for a lower bound."""

    def __init__(self, topology: Topology) -> None:
        inside = np.eye(topology.num_ranks, dtype=bool)
        if 1 < topology.num_nodes < topology.num_ranks:
            nodes = np.array(topology.node_of_rank) == np.arange(topology.num_nodes)[:, None]
            inside = np.concatenate([inside, nodes])
        self.inside = inside
        src, dst = link_ends(topology)
        borders = inside[:, src] & ~inside[:, dst], inside[:, dst] & ~inside[:, src]
        holds, betas = hold_columns(topology), [float(hold.beta_us_per_mb) for hold in topology.holds]
        rates = np.array([10**6 / beta if beta else math.inf for beta in betas])
        alphas = np.array([float(link.alpha_us) for link in topology.links])
        #: Max bytes per us (`rate`) and min latency in us (`lag`) of data that leave (first array) or enter
        #: (second array) each rank, then each node.
        self.rate = [np.array([_rate_across(each, holds, rates) for each in border]) for border in borders]
        self.lag = [np.where(border, alphas, math.inf).min(axis=1, initial=math.inf) for border in borders]

    def least_us(self, table: NDArray[np.int64]) -> float:
        """Lower bound in us on the time of an all-to-all exchange; `table` has the bytes per rank pair."""
        within = (self.inside @ table * self.inside).sum(axis=1)
        crossing = self.inside @ table.sum(axis=1) - within, self.inside @ table.sum(axis=0) - within
        return max(
            float(np.max(num_bytes / rate + lag, where=num_bytes > 0, initial=0.0))
            for num_bytes, rate, lag in zip(crossing, self.rate, self.lag, strict=True)
        )


def _rate_across(crosses: NDArray[np.bool_], holds: HoldColumns, rates: NDArray[np.float64]) -> float:
    """Upper bound in bytes per us on the joint rate of the links in `crosses`, each limited by one resource.

    Links are assigned to resources greedily: a resource that more links use comes first. Infinite without
    links, as no data crosses then.

    - `crosses`, (num_links,): True for the links whose joint rate is bounded.
    - `rates`, (num_holds,): Bytes per us of a link on a resource, for each row of `holds`.
    """
    rows = np.flatnonzero(crosses[holds.link])
    link, resource, rates = holds.link[rows], holds.resource[rows], rates[rows]
    total = 0.0
    while len(link):
        chosen = resource == np.bincount(resource).argmax()
        total += float(rates[chosen].max())
        left = ~np.isin(link, link[chosen])
        link, resource, rates = link[left], resource[left], rates[left]
    return total or math.inf
