"""Maximum flows on small dense networks, in exact integers: Dinic's algorithm.

References
----------
E. A. Dinic, "Algorithm for solution of a problem of maximum flow in networks with power estimation", Soviet
Mathematics Doklady 11 (1970).
"""

from __future__ import annotations

import numpy as np

from taccl._internal.arrays import Ints
from taccl._internal.kernels import compiled, inner


@inner(allocates=True)
def _raise_flow(room: Ints, source: int, sink: int, most: int, level: Ints) -> int:
    """Send up to `most` units of flow from source to sink, update the capacities, and return the flow.

    - `room`, (num_nodes, num_nodes): Residual capacities.
    - `level`, (num_nodes,): On return -1 beyond a minimum cut, if the flow is below `most`.
    """
    num_nodes, total = len(room), 0
    place, path = np.empty(num_nodes, np.int64), np.empty(num_nodes, np.int64)
    while total < most:
        level[:] = -1
        level[source], path[0] = 0, source  # the path serves as the queue of a breadth-first search
        first, end = 0, 1
        while first < end:
            node = path[first]
            first += 1
            for other in range(num_nodes):
                if room[node, other] > 0 and level[other] < 0:
                    level[other], path[end] = level[node] + 1, other
                    end += 1
        if level[sink] < 0:
            break
        place[:] = 0
        path[0], depth = source, 0
        while depth >= 0 and total < most:
            node = path[depth]
            if node == sink:
                amount = most - total
                for i in range(depth):
                    amount = min(amount, room[path[i], path[i + 1]])
                total += amount
                for i in range(depth, 0, -1):
                    room[path[i - 1], path[i]] -= amount
                    room[path[i], path[i - 1]] += amount
                    if not room[path[i - 1], path[i]]:
                        depth = i - 1  # go on from the first arc without room
                continue
            while place[node] < num_nodes:
                other = place[node]
                if room[node, other] > 0 and level[other] == level[node] + 1:
                    break
                place[node] += 1
            if place[node] < num_nodes:
                depth += 1
                path[depth] = place[node]
            else:
                depth -= 1
                if depth >= 0:
                    place[path[depth]] += 1
    return total


@compiled(allocates=True)
def flow_up_to(room: Ints, source: int, sink: int, most: int, level: Ints) -> int:
    """Value of a maximum flow, or `most` if that is less; `room` then holds the residual capacities.

    - `level`, (num_nodes,): On return -1 beyond a minimum cut, if the flow is below `most`.
    """
    return _raise_flow(room, source, sink, most, level)


@compiled(allocates=True)
def largest_shortfall(capacity: Ints, source: int, sinks: Ints, demand: int, most: int, level: Ints) -> int:
    """Largest amount by which the maximum flow to any sink falls short of a demand; 0 if no flow does.

    - `sinks`: The sink with the largest shortfall is moved to the front, as the next call likely finds it
      again.
    - `most`: Shortfall that ends the search.
    - `level`, (num_nodes,): On return -1 beyond a minimum cut of the sink with the largest shortfall, if any.
    """
    worst, found = 0, np.empty(len(capacity), np.int64)
    for i in range(len(sinks)):
        short = demand - _raise_flow(capacity.copy(), source, sinks[i], demand, found)
        if short > worst:
            worst = short
            for node in range(len(level)):  # a check of shapes in `level[:] = found` takes 1.6 s to compile
                level[node] = found[node]
            sinks[0], sinks[i] = sinks[i], sinks[0]
            if worst >= most:
                break
    return worst


def compile_flows() -> None:
    """Compile both kernels by running them once on a network of two nodes and one arc."""
    room, level = np.array([[0, 1], [0, 0]]), np.empty(2, np.int64)
    largest_shortfall(room, 0, np.array([1]), 1, 1, level)
    flow_up_to(room, 0, 1, 1, level)
