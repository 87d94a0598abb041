"""Division of sends into turns by edge colouring; sends of one turn hold different busiest resources."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    number: dict[tuple[str, int], int] = {}  # {(side, resource): vertex}
    ends: list[tuple[int, int]] = []
    for edge, held in enumerate(holds):
        sends = receives = -1 - edge
        for hold in held:
            resource = hold.resource
            if hold.side == "send":
                if sends < 0 or busy[resource] > busy[sends]:
                    sends = resource
            elif receives < 0 or busy[resource] > busy[receives]:
                receives = resource
        one, other = ("send", sends), ("receive", receives)
        ends.append((number.setdefault(one, len(number)), number.setdefault(other, len(number))))
    if len(number) == 2 * len(ends):
        return [0] * len(ends)
    return colours_of(ends, len(number))


def colours_of(ends: Sequence[tuple[int, int]], num_vertices: int) -> list[int]:
    """Colour of each edge of a bipartite multigraph, of as many colours as its maximum degree (Koenig).

    - `ends`: The two vertices of each edge.

    References
    ----------
    D. Koenig, "Ueber Graphen und ihre Anwendung auf Determinantentheorie und Mengenlehre", Mathematische
    Annalen 77 (1916).
    """
    colour_of = [_NONE] * len(ends)
    at = [[_NONE] for _ in range(num_vertices)]  # by vertex and colour: the edge; the last one is `_NONE`

    def give(edge: int, colour: int) -> None:
        colour_of[edge] = colour
        for end in ends[edge]:
            edges = at[end]
            if colour >= len(edges) - 1:
                edges += [_NONE] * (colour + 2 - len(edges))
            edges[colour] = edge

    def swap(vertex: int, colour: int, other: int) -> None:
        """Swap two colours on the alternating path that begins at a vertex with an edge of `colour`."""
        path = []
        while colour < len(at[vertex]) and (edge := at[vertex][colour]) != _NONE:
            path.append((edge, other))
            vertex, colour, other = ends[edge][vertex == ends[edge][0]], other, colour
        for edge, _ in path:
            for end in ends[edge]:
                at[end][colour_of[edge]] = _NONE
        for edge, new in path:
            give(edge, new)

    for edge, (one, other) in enumerate(ends):
        at_one, at_other = at[one], at[other]
        free, free_there = at_one.index(_NONE), at_other.index(_NONE)
        if free < free_there and (free_there >= len(at_one) or at_one[free_there] == _NONE):
            free = free_there
        elif free < len(at_other) and at_other[free] != _NONE:
            swap(other, free, free_there)
        give(edge, free)
    return colour_of
