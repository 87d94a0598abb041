"""Division of sends into turns by edge colouring; sends of one turn hold different busiest resources."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from taccl.baselines.lanes import HoldUs
    from taccl.topology.topology import Hold

#: No edge.
_NONE = -1


def turns_of(holds: Sequence[Sequence[Hold | HoldUs]], busy_us: NDArray[np.float64]) -> list[int]:
    """Turn of each send; in a turn, no two sends share a busiest resource of the sender or of the receiver.

    - `holds`: Holds of each send; of the sender's and of the receiver's, only the busiest resource counts.
    - `busy_us`, (num_resources,): Time for which all sends keep each resource busy.
    """
    busy = busy_us.tolist()
    ends: list[tuple[tuple[str, int], tuple[str, int]]] = []
    for number, held in enumerate(holds):
        busiest = {"send": -1 - number, "receive": -1 - number}
        for hold in held:
            known = busiest[hold.side]
            if known < 0 or busy[hold.resource] > busy[known]:
                busiest[hold.side] = hold.resource
        ends.append((("send", busiest["send"]), ("receive", busiest["receive"])))
    if len({one for one, _ in ends}) == len({other for _, other in ends}) == len(ends):
        return [0] * len(ends)
    colouring = EdgeColouring()
    for number, (one, other) in enumerate(ends):
        colouring.add(number, one, other)
    return [colouring.colour_of[number] for number in range(len(ends))]


class EdgeColouring:
    """Edge colouring of a bipartite multigraph, with as many colours as its maximum degree (Koenig).

    References
    ----------
    D. Koenig, "Ueber Graphen und ihre Anwendung auf Determinantentheorie und Mengenlehre", Mathematische
    Annalen 77 (1916).
    """

    def __init__(self) -> None:
        self.colour_of: dict[int, int] = {}
        self._ends: dict[int, tuple[tuple[str, int], tuple[str, int]]] = {}
        #: {vertex: edge of each colour, or `_NONE`}; the last one is `_NONE`.
        self._at: dict[tuple[str, int], list[int]] = {}

    def add(self, edge: int, one: tuple[str, int], other: tuple[str, int]) -> None:
        """Add and colour an edge (a number from 0 on); edges on an alternating path may be recoloured."""
        self._ends[edge] = one, other
        at_one, at_other = (self._at.setdefault(end, [_NONE]) for end in (one, other))
        free, free_there = at_one.index(_NONE), at_other.index(_NONE)
        if free < free_there and (free_there >= len(at_one) or at_one[free_there] == _NONE):
            free = free_there
        elif self._edge(other, free) != _NONE:
            self._swap(other, free, free_there)
        self._give(edge, free)

    def _edge(self, vertex: tuple[str, int], colour: int) -> int:
        """Edge of a colour at a vertex, or `_NONE`."""
        at = self._at[vertex]
        return at[colour] if colour < len(at) else _NONE

    def _swap(self, vertex: tuple[str, int], colour: int, other: int) -> None:
        """Swap two colours on the alternating path that begins at `vertex` with an edge of `colour`."""
        path = []
        while (edge := self._edge(vertex, colour)) != _NONE:
            path.append((edge, other))
            one, end = self._ends[edge]
            vertex, colour, other = (end if vertex == one else one), other, colour
        for edge, _ in path:
            for end in self._ends[edge]:
                self._at[end][self.colour_of[edge]] = _NONE
        for edge, new in path:
            self._give(edge, new)

    def _give(self, edge: int, colour: int) -> None:
        self.colour_of[edge] = colour
        for end in self._ends[edge]:
            at = self._at[end]
            if colour >= len(at) - 1:
                at += [_NONE] * (colour + 2 - len(at))
            at[colour] = edge
