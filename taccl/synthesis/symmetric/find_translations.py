"""Finding translations of a topology: shifts inside blocks of ranks, one block inside another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taccl.errors import TopologyError
from taccl.topology.regular import CyclicProduct
from taccl.topology.translations import translations_of_topology

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from taccl.topology.topology import Topology
    from taccl.topology.translations import Translations

__all__ = ["find_translations"]


def find_translations(topology: Topology) -> Translations | None:
    """Translations of a topology that are shifts inside blocks of ranks, one inside another; None without.

    Tori, hypercubes and rings are of this kind when their ranks are numbered row by row.
    """
    if any(len(link.srcs) + len(link.dsts) > 2 for link in topology.links):
        return None
    looks = _Links(topology)
    for moduli in looks.chains():
        try:
            return translations_of_topology(topology, CyclicProduct(moduli))
        except TopologyError:
            continue
    return None


class _Links:
    """The links of a topology as numbers that a shift of ranks either keeps as a set, or does not."""

    _MOST_CHAINS = 20

    def __init__(self, topology: Topology) -> None:
        links = topology.links
        self.num_ranks = topology.num_ranks
        self.src = np.array([e.src for e in links], dtype=np.int64)
        self.dst = np.array([e.dst for e in links], dtype=np.int64)
        kinds: dict[object, int] = {}
        self.kind = np.array(
            [kinds.setdefault((e.alpha_us, e.beta_us_per_mb), len(kinds)) for e in links], dtype=np.int64
        )
        self.codes = np.sort(self._codes(np.arange(self.num_ranks)))
        self.known: dict[tuple[int, int], bool] = {}

    def _codes(self, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        return (self.kind * self.num_ranks + ranks[self.src]) * self.num_ranks + ranks[self.dst]

    def keeps(self, step: int, block: int) -> bool:
        """Whether rank r may go to (r + step) mod block inside its block."""
        if (step, block) not in self.known:
            r = np.arange(self.num_ranks)
            shifted = r - r % block + (r + step) % block
            self.known[step, block] = np.array_equal(np.sort(self._codes(shifted)), self.codes)
        return self.known[step, block]

    def chains(self) -> Iterator[tuple[int, ...]]:
        """Moduli of shifts that together take any rank to any, from the coarsest block to the finest."""
        sizes = [n for n in range(1, self.num_ranks + 1) if self.num_ranks % n == 0]
        pending: list[tuple[int, ...]] = [(1,)]
        found = 0
        while pending and found < self._MOST_CHAINS:
            chain = pending.pop()
            step = chain[-1]
            if step == self.num_ranks:
                found += 1
                yield tuple(b // a for a, b in zip(chain, chain[1:], strict=False))[::-1]
                continue
            blocks = [n for n in sizes if n > step and n % step == 0 and self.keeps(step, n)]
            pending += [(*chain, block) for block in blocks]
