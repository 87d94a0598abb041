"""Allreduce on tori by hubs at both ends of a lattice of parallel edges.

Each hub collects the sum of the ranks nearest to it. Then it exchanges sums with its neighbour at the other
end of the edge. After that, all hubs move their sums to places at which each meets another hub, and exchange
sums again, until all have the total. The ranks nearest to the last places get it from there.
The whole plan is invariant under the translations of the lattice, and under reflections in the middles of its
edges. So one hub's path determines all sends.

Hubs of rings (`taccl.baselines.hubs`) collect along one dimension after another. These collect along all at
once, which takes fewer steps with as many sends: on a torus of 8 x 8, 11 steps and 140 sends.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from taccl.baselines.moves import Flags, Ints
from taccl.topology.recognise import links_along

if TYPE_CHECKING:
    from taccl.problem.problem import Problem
    from taccl.topology.products import Dimensions

#: Max number of parallel edges of a lattice.
_MOST_EDGES = 16
#: Max lattices with the same number and direction of edges for which paths are searched: those whose hubs
#: are nearest to all ranks.
_MOST_LATTICES = 16
#: Max states of a search for a path (about 0.03 s).
_MOST_STATES = 3_000

Digits = tuple[int, ...]
#: (rank that sends, rank that receives, True for an exchange).
Move = tuple[int, int, bool]


class _Path(NamedTuple):
    """Path of one hub's sums, from rank 0.

    - `lattice`: Digits of the translations; they map one edge to all.
    - `axis`: Dimension of the edges.
    - `steps`: Sends of the hub's sum, one in each step.
    """

    lattice: tuple[Digits, ...]
    axis: int
    steps: tuple[Move, ...]


class EdgePlan:
    """Plan of an allreduce with hubs at both ends of a lattice of edges.

    Its images under all translations load the links of a dimension equally. Alike dimensions also take turns.
    """

    def __init__(self, dims: Dimensions, path: _Path) -> None:
        self.dims, self._grid = dims, _Grid(dims.sizes)
        self._lattice, self._axis, self._steps = path
        self._maps = self._grid.maps(self._lattice, self._axis)
        self._columns: tuple[Ints, Ints, Ints, Flags] | None = None

    def __str__(self) -> str:
        return f"{len(self._maps)} at the ends of parallel edges"

    def columns(self) -> tuple[Ints, Ints, Ints, Flags]:
        """Columns of the sends: step, source, destination, and flags of the ranks in the sum."""
        if self._columns is None:
            self._columns = self._listed()
        return self._columns

    def _listed(self) -> tuple[Ints, Ints, Ints, Flags]:
        n, rows = self.dims.num_ranks, list[tuple[int, int, int]]()
        parent, depth = self._grid.trees(self._maps, 0)
        has, adds = np.eye(n, dtype=bool), list[Flags]()
        begin = int(depth.max())
        for v in np.argsort(-depth, kind="stable").tolist():
            if depth[v]:
                rows.append((begin - int(depth[v]), v, int(parent[v])))
                adds.append(has[v].copy())
                has[parent[v]] |= has[v]
        held = np.flatnonzero(has[0])
        for step, (src, dst, exchanges) in enumerate(self._steps, begin):
            for each in self._maps:
                rows.append((step, int(each[src]), int(each[dst])))
                adds.append(np.isin(np.arange(n), each[held]))
            if exchanges:
                partner = next(each for each in self._maps if each[src] == dst)
                held = np.concatenate((held, partner[held]))
        parent, depth = self._grid.trees(self._maps, self._steps[-1][0])
        begin += len(self._steps)
        for v in np.flatnonzero(depth).tolist():
            rows.append((begin + int(depth[v]) - 1, int(parent[v]), v))
            adds.append(np.ones(n, bool))
        step, src, dst = np.array(rows, np.int64).T
        order = np.argsort(step, kind="stable")
        return step[order], src[order], dst[order], np.array(adds)[order]

    @property
    def _turns(self) -> list[list[int]]:
        """Orders of the dimensions, in which alike dimensions take turns."""
        classes: dict[object, list[int]] = {}
        for k, each in enumerate(self.dims):
            classes.setdefault((each.size, each.alpha_us, each.beta_us_per_mb), []).append(k)
        turns = []
        for turn in range(math.lcm(*map(len, classes.values()))):
            order = [*range(len(self.dims))]
            for alike in classes.values():
                for i, k in enumerate(alike):
                    order[k] = alike[(i + turn) % len(alike)]
            turns.append(order)
        return turns

    def copies(self) -> list[Ints]:
        """Permutations of the ranks; the plan's images under all of them together load links equally."""
        grid, found = self._grid, list[Ints]()
        shifts = dict[int, Ints]()
        for shift in grid.digits.T:
            moved = grid.ranks_at(grid.digits + shift[:, None])
            shifts.setdefault(min(int(moved[grid.rank_at(each)]) for each in self._lattice), moved)
        for order in self._turns:
            turned = grid.ranks_at(grid.digits[order])
            found += [turned[moved] for moved in shifts.values()]
        return found

    @property
    def num_parts(self) -> int:
        """Number of parts of the data: one for each image."""
        return len(self._turns) * self.dims.num_ranks // len(self._lattice)

    def groups(self) -> Iterator[tuple[tuple[Ints, Ints, Ints, Flags], list[Ints]]]:
        """Yield the plan's sends, with the permutations of the ranks that make its images."""
        yield self.columns(), self.copies()

    def parts_per_chunk(self, problem: Problem) -> int:
        """Least number of parts of each chunk with which all images have equally many chunks."""
        return self.num_parts // math.gcd(self.num_parts, problem.collective.num_chunks)

    def num_transfers(self, problem: Problem) -> int:
        """Number of transfers of the chunks of a problem."""
        return len(self.columns()[0]) * problem.collective.num_chunks

    def estimated_us(self, problem: Problem) -> float:
        """Estimated finish if steps follow one another, and a link merges all that it sends in a step."""
        dims, costs, (step, src, dst, _) = self.dims, problem.costs, self.columns()
        moved = self._grid.digits[:, src] != self._grid.digits[:, dst]
        number = np.stack([np.bincount(step[each], minlength=step.max() + 1) for each in moved]).astype(float)
        number = np.mean([number[order] for order in self._turns], axis=0)
        num_links = np.array([2 if size > 2 else 1 for size in dims.sizes]) * dims.num_ranks
        links = [int(table[0, 1]) for table in links_along(problem.topology, dims)]
        units = int(costs.chunk_units.sum()) * number / num_links[:, None]
        ticks = (number > 0) * costs.link_alpha[links][:, None] + units * costs.link_beta[links][:, None]
        return float(ticks.max(axis=0).sum()) / costs.ticks_per_us


def edge_plans(dims: Dimensions) -> Iterator[EdgePlan]:
    """Yield plans of few steps or few sends on a torus."""
    alike = {(each.size, each.alpha_us, each.beta_us_per_mb): k for k, each in enumerate(dims)}
    for axis in sorted(alike.values()):
        for path in _paths(dims.sizes, axis):
            yield EdgePlan(dims, path)


@cache
def _paths(sizes: Digits, axis: int) -> list[_Path]:
    """Paths such that no other with edges along `axis` has fewer steps and no more sends in all.

    With h hubs, the n ranks have 2 (n - h) sends to and from hubs, and h in each step of the path.
    """
    grid = _Grid(sizes)
    found: list[tuple[int, int, _Path]] = []
    lattices: list[tuple[Digits, ...]] = [((0,) * len(sizes),)] if sizes[axis] % 2 == 0 else []
    while lattices and len(lattices[0]) <= _MOST_EDGES:
        reach = {each: int(grid.apart(grid.maps(each, axis)[:, 0]).max()) for each in lattices}
        lattices = sorted(lattices, key=reach.__getitem__)[:_MOST_LATTICES]
        fewest: dict[int, tuple[int, _Path]] = {}
        for lattice in lattices:
            _shorten(grid, lattice, axis, reach[lattice], fewest)
        found += [
            (steps, 2 * len(lattices[0]) * (number - 2), path) for number, (steps, path) in fewest.items()
        ]
        lattices = grid.doubled(lattices, axis)
    best: list[tuple[int, int, _Path]] = []
    for steps, sends, path in sorted(found, key=lambda each: each[:2]):
        if not best or sends < best[-1][1]:
            best.append((steps, sends, path))
    return [path for *_, path in best]


def _shorten(
    grid: _Grid,
    lattice: tuple[Digits, ...],
    axis: int,
    reach: int,
    fewest: dict[int, tuple[int, _Path]],
) -> None:
    """Enter better paths into {length of a path: (fewest steps in all, path)}, by breadth-first search.

    In a state (shifts, last, rank), the first hub's sum is at `rank`. It covers the images of this hub under
    the translations by `shifts`. It also covers those under reflections, translated by `last` less a shift.

    - `reach`: Number of steps before the path.
    """
    number = {each: i for i, each in enumerate(lattice)}
    maps = grid.maps(lattice, axis)
    far = np.full(grid.num_ranks, -1)
    for rank in range(grid.num_ranks):
        if far[rank] < 0:
            far[maps[:, rank]] = grid.apart(maps[:, rank]).max()
    nearest = int(far.min())
    edge = np.eye(len(grid.sizes), dtype=np.int64)[axis]
    # The translation of the reflection that maps each rank to each neighbour; -1 if there is none.
    ends = grid.digits[:, :, None] + grid.digits[:, grid.near] - edge[:, None, None]
    ends = (ends % grid.sizes[:, None, None]).transpose(1, 2, 0)
    meets = [[number.get(tuple(each), -1) for each in some] for some in ends.tolist()]
    less = [[number[tuple((np.array(a) - b) % grid.sizes)] for b in lattice] for a in lattice]
    add = [[number[tuple(np.add(a, b) % grid.sizes)] for b in lattice] for a in lattice]
    near = grid.near.tolist()
    start = frozenset([0]), 0, 0
    paths: dict[tuple[frozenset[int], int, int], tuple[Move, ...]]
    paths, seen, length = {start: ((0, grid.rank_at(edge), True),)}, {start}, 1
    while paths and len(seen) <= _MOST_STATES:
        least = min((steps for each, (steps, _) in fewest.items() if each <= length), default=math.inf)
        for (shifts, _, rank), path in paths.items():
            steps = reach + length + int(far[rank])
            if len(shifts) == len(lattice) and steps < least:
                least, fewest[length] = steps, (steps, _Path(lattice, axis, path))
        later = {}
        length += 1
        for (shifts, last, rank), path in paths.items():
            exchanges_left = (len(lattice) // len(shifts)).bit_length() - 1
            if reach + length + max(0, exchanges_left - 1) + nearest >= least:
                continue
            for to, meet in zip(near[rank], meets[rank], strict=True):
                states = [((shifts, last, to), False)]
                if meet >= 0:
                    moved = frozenset(add[less[meet][last]][each] for each in shifts)
                    if not moved & shifts:
                        states.append(((shifts | moved, meet, rank), True))
                for state, exchanges in states:
                    if state not in seen:
                        seen.add(state)
                        later[state] = (*path, (rank, to, exchanges))
        paths = later


class _Grid:
    """Ranks of a torus by their digits."""

    def __init__(self, sizes: Digits) -> None:
        self.sizes, self.num_ranks = np.array(sizes), math.prod(sizes)
        self.sizes_column = self.sizes[:, None]
        self._strides = np.cumprod((1, *sizes[:-1]))
        self.digits = np.arange(self.num_ranks) // self._strides[:, None] % self.sizes_column
        units = np.concatenate([sign * np.eye(len(sizes), dtype=np.int64) for sign in (1, -1)])
        self.near = np.stack([self.ranks_at(self.digits + each[:, None]) for each in units], axis=1)

    def ranks_at(self, digits: Ints) -> Ints:
        """Ranks by their digits (num_dimensions, number), which may be beyond the sizes."""
        return np.asarray(self._strides @ (digits % self.sizes_column))

    def rank_at(self, digits: Sequence[int] | Ints) -> int:
        """Rank by its digits."""
        return int(self._strides @ digits)

    def maps(self, lattice: Sequence[Digits], axis: int) -> Ints:
        """Permutations of the ranks: translations, then reflections that map an edge's ends to each other."""
        edge = np.eye(len(self.sizes), dtype=np.int64)[axis]
        moves = [np.array(each)[:, None] for each in lattice]
        both = [[self.ranks_at(each + self.digits) for each in moves]]
        both += [[self.ranks_at(each + edge[:, None] - self.digits) for each in moves]]
        return np.concatenate(both)

    def apart(self, ranks: Ints) -> Ints:
        """Distance of each rank from the nearest one of some ranks."""
        between = np.abs(self.digits[:, :, None] - self.digits[:, None, ranks])
        between = np.minimum(between, self.sizes[:, None, None] - between)
        return np.asarray(between.sum(axis=0).min(axis=1))

    def trees(self, maps: Ints, root: int) -> tuple[Ints, Ints]:
        """(next rank towards the nearest image of `root`, distance from it), as invariant under the maps."""
        depth = self.apart(maps[:, root])
        parent = np.full(self.num_ranks, -1)
        for v in np.flatnonzero(depth).tolist():
            if parent[v] < 0:
                to = next(u for u in self.near[v].tolist() if depth[u] < depth[v])
                parent[maps[:, v]] = maps[:, to]
        return parent, depth

    def doubled(self, lattices: Iterable[tuple[Digits, ...]], axis: int) -> list[tuple[Digits, ...]]:
        """All lattices of twice as many edges without common ends, each with one of `lattices` in it."""
        found = dict[tuple[Digits, ...], None]()
        edge = np.eye(len(self.sizes), dtype=np.int64)[axis]
        # Other reflections leave some ranks where they are.
        moves_all = (((self.digits.T + edge) % 2 == 1) & (self.sizes % 2 == 0)).any(axis=1)
        fit = {tuple(each) for each in self.digits.T[moves_all].tolist()}
        for lattice in lattices:
            has = {*lattice}
            for shift in sorted(fit - has):
                if tuple((2 * np.array(shift) % self.sizes).tolist()) in has:
                    moved = [tuple((np.add(shift, each) % self.sizes).tolist()) for each in lattice]
                    if fit.issuperset(moved):
                        found.setdefault(tuple(sorted((*lattice, *moved))))
        return [*found]
