"""Switches split off: capacities of a network with switches as capacities of single links between ranks.

Capacity of an arc into a switch and of one out of it becomes that of an arc past the switch, as much as
leaves every set of nodes wide enough to be entered. Maximum flows tell how much. Switches go one by one,
until arcs join ranks alone. Each then stands for the path of a link.

References
----------
A. Frank, "On connectivity properties of Eulerian digraphs" (1988). J. Bang-Jensen, A. Frank and B. Jackson,
"Preserving and increasing local edge-connectivity in mixed graphs", SIAM Journal on Discrete Mathematics 8
(1995). L. Zhao et al., "ForestColl", arXiv 2402.06787 (2024).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taccl.synthesis.kernels.flow_kernel import largest_shortfall

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from taccl.synthesis.trees.network import Network

    Ints = NDArray[np.int64]

#: Arcs of the network, that chunks pass one after another.
Path = tuple[int, ...]


def split_switches(network: Network, capacity: Ints, counts: Ints) -> dict[int, int] | None:
    """{link: chunks that it may carry}, such that every rank can still receive every chunk in time.

    None if some switch cannot be split off, because its links lack some of the pairs of ranks that it joins.

    - `capacity`, (num_arcs,), and `counts`, (num_ranks,): As in `least_time`.
    """
    state = _Splitting(network, capacity, counts)
    parts = {
        path[i:j]
        for path in network.arcs_of_link.values()
        for i in range(len(path))
        for j in range(i + 1, len(path) + 1)
    }
    for switch in range(network.num_ranks, network.num_nodes):
        into = sorted((path for path in state.left if state.ends(path)[1] == switch), key=state.ends)
        out = sorted((path for path in state.left if state.ends(path)[0] == switch), key=state.ends)
        excess = sum(map(state.left.__getitem__, into)) - sum(map(state.left.__getitem__, out))
        for path in into if excess > 0 else out:  # as much comes in as goes out
            lowered = state.lower([path], min(abs(excess), state.left[path]))
            excess -= lowered if excess > 0 else -lowered
        for a, b in _paired(state, switch, into, out):
            if a + b in parts:
                state.lower([a, b], min(state.left[a], state.left[b]), whole=a + b)
        for path in (*into, *out):
            state.lower([path], state.left[path])
            if state.left.pop(path):
                return None
    link_of = {path: link for link, path in network.arcs_of_link.items()}
    return {link_of[path]: count for path, count in state.left.items() if count}


def _paired(state: _Splitting, switch: int, into: list[Path], out: list[Path]) -> list[tuple[Path, Path]]:
    """Pairs of paths into a switch and out of it, in the order in which they get all that they can.

    Few partners for each port make sends wait least for one another. Ranks that are far apart otherwise come
    first, as those behind one switch need no other; then each port with the next, the one after that, ...
    """
    width = state.widths_without(switch)
    place = {path: i for side in (into, out) for i, path in enumerate(side)}

    def rank(pair: tuple[Path, Path]) -> tuple[int, int]:
        begin, end = state.ends(pair[0])[0], state.ends(pair[1])[1]
        return int(width[begin, end]), (place[pair[1]] - place[pair[0]]) % len(into)

    return sorted(((a, b) for a in into for b in out), key=rank)


class _Splitting:
    """Capacities left to paths, and the same between nodes, with a source of all chunks."""

    def __init__(self, network: Network, capacity: Ints, counts: Ints) -> None:
        self.left: dict[Path, int] = {(arc,): int(each) for arc, each in enumerate(capacity)}
        self._network, self._total, self._source = network, int(counts.sum()), network.num_nodes
        self._room = network.matrix(capacity)
        self._room[self._source, : network.num_ranks] = counts
        self._sinks, self._level = np.arange(network.num_ranks), np.zeros(len(self._room), np.int64)

    def ends(self, path: Path) -> tuple[int, int]:
        """Nodes at which a path begins and ends."""
        return int(self._network.tail[path[0]]), int(self._network.head[path[-1]])

    def widths_without(self, switch: int) -> Ints:
        """(num_nodes, num_nodes) capacity of the widest path between nodes that does not pass a switch."""
        width = self._room[: self._source, : self._source].copy()
        for via in range(len(width)):
            if via != switch:
                np.maximum(width, np.minimum(width[:, via, None], width[via]), out=width)
        return width

    def lower(self, paths: list[Path], most: int, whole: Path | None = None) -> int:
        """Lower the capacities of paths, as far as every set of nodes stays wide enough; by how much.

        - `whole`: The path along both, which gains what they lose.
        """
        if most <= 0:
            return 0
        self._change(paths, most, whole)
        kept = int(largest_shortfall(self._room, self._source, self._sinks, self._total, most, self._level))
        kept = min(kept, most)
        self._change(paths, -kept, whole)
        for path in paths:
            self.left[path] -= most - kept
        if whole is not None and kept < most:
            self.left[whole] = self.left.get(whole, 0) + most - kept
        return most - kept

    def _change(self, paths: list[Path], amount: int, whole: Path | None) -> None:
        for path in paths:
            self._room[self.ends(path)] -= amount
        if whole is not None:
            self._room[self.ends(whole)] += amount
