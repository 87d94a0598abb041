"""Lanes: the hops of a channel or tree, their links, their order in a step (by edge colouring), and times."""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from math import ceil, gcd
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

import numpy as np

from taccl.baselines.edge_colouring import turns_of
from taccl.baselines.periods import periodic
from taccl.baselines.ring import near_nodes
from taccl.baselines.routes import ShortestRoutes
from taccl.baselines.tree import two_trees

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from taccl.baselines.channels import Channels
    from taccl.baselines.periods import Held
    from taccl.problem.problem import Problem
    from taccl.topology.topology import Topology

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    #: (parent rank, child rank).
    Hop = tuple[int, int]

Algorithm = Literal["ring", "tree"]

#: Number of steps round closed rings that are simulated to measure the mean time of a step.
_REPLAYED = 9
#: Number of pieces for which the period of a plan matters, but hardly the wait of the first piece.
_MANY_PIECES = 10_000
#: Max transfers of all pipelined pieces (about 2 s); it limits the number of pieces per chain or tree.
_MOST_PIECED = 120_000


class Plan(NamedTuple):
    """Periodic plan: each piece of the data repeats the sends of the piece before, a period later.

    - `starts_us`, (directions, lanes, hops): Start of the first piece on each hop.
    - `end_us`: Time by which the first piece has arrived everywhere.
    """

    period_us: float
    starts_us: Floats
    end_us: float


class HoldUs(NamedTuple):
    """Hold of a resource at one side of a link, with floating-point costs."""

    resource: int
    side: str
    alpha_us: float
    us_per_mb: float


class _HoldsOfLinks(dict[int, list[HoldUs]]):
    """{link: its holds}; those of each link are made once."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology

    def __missing__(self, link: int) -> list[HoldUs]:
        found = self[link] = [
            HoldUs(hold.resource, hold.side, float(hold.alpha_us), float(hold.beta_us_per_mb))
            for hold in self._topology.holds_of_link[link]
        ]
        return found


class Lanes:
    """Hops of all channels of an algorithm; each channel carries an equal share of the data.

    A lane is the hops of one channel, or of one of its two trees. Data go in one or two directions: down
    (parents to children), up, or up and then down. Arrays by hop have the shape (directions, lanes, hops).

    - `hops`: Hops of each lane from its root on, parents before children. A closed ring has no root; chains
      and trees are *open* lanes.
    - `backwards`: True for each direction that goes up, from children to parents.
    - `busy`, (2, num_resources): Time for which one message on every hop keeps each resource busy, in us per
      message and us per MB.
    - `goes_round`: True if every rank has a part of the data, which goes round closed rings.
    """

    def __init__(self, problem: Problem, algorithm: Algorithm, channels: Channels) -> None:
        self.problem, self.channels = problem, channels
        topology, routes = problem.topology, ShortestRoutes.of(problem)
        ends = {chunk.origins[0] if chunk.root is None else chunk.root for chunk in problem.collective.chunks}
        self.backwards: tuple[bool, ...] = (False,)
        self.goes_round = algorithm == "ring" and (len(ends) > 1 or is_allreduce(problem))
        if algorithm == "tree":
            self.hops = [hops for order in channels.orders for hops in _trees(topology, routes, order)]
            self.backwards = (True, False)
        elif self.goes_round:
            self.hops = [list(pairwise((*order, order[0]))) for order in channels.orders]
        else:
            self.backwards = (problem.collective.combining,)
            self.hops = [
                list(pairwise(_from(order, *ends, backwards=self.backwards[0]))) for order in channels.orders
            ]
        #: Links of each hop; several if ranks between its ends relay.
        self.routes = [
            [[routes.hop(*(hop[::-1] if back else hop)) for hop in hops] for hops in self.hops]
            for back in self.backwards
        ]
        links = topology.links
        each = [tuple(route) for way in self.routes for lane in way for route in lane]
        shape = (len(self.routes), len(self.hops), -1)
        costs = {
            route: (
                float(sum(links[e].alpha_us for e in route)),
                float(sum(links[e].beta_us_per_mb for e in route)),
            )
            for route in set(each)
        }
        self._alpha_us, self._us_per_mb = (
            np.array([costs[route][i] for route in each]).reshape(shape) for i in (0, 1)
        )
        of_link = _HoldsOfLinks(topology)
        self._holds = [
            [[h for e in r for h in of_link[e]] for r in lane] for way in self.routes for lane in way
        ]
        every = [hold for lane in self._holds for holds in lane for hold in holds]
        self.busy = np.zeros((2, max(1, len(topology.resources))))
        resource = np.array([hold.resource for hold in every], dtype=np.int64)
        for busy, us in zip(self.busy, ("alpha_us", "us_per_mb"), strict=True):
            np.add.at(busy, resource, [getattr(hold, us) for hold in every])

    @cached_property
    def relayed(self) -> bool:
        """True if some hop is relayed by ranks between its ends."""
        return any(len(route) > 1 for way in self.routes for lane in way for route in lane)

    @cached_property
    def links(self) -> Ints:
        """Link of each hop, (directions, lanes, hops), if no hop is relayed."""
        return np.array([[[route[0] for route in lane] for lane in way] for way in self.routes])

    @cached_property
    def turns(self) -> Ints:
        """Turn of each hop within a step, (directions, lanes, hops), so that hops of one turn hardly contend.

        The turns are an edge colouring of a bipartite graph. Each hop is an edge between the busiest resource
        at its start and the busiest resource at its end.
        """
        found = turns_of([holds for lane in self._holds for holds in lane], self.busy[1] + self.busy[0])
        return np.array(found).reshape(self._alpha_us.shape)

    @cached_property
    def stretch(self) -> float:
        """Ratio of a step's time to the time for which its busiest resource is held, at least 1.

        It may exceed 1 because a send starts only when all its resources are free at once.
        """
        if self.goes_round:
            return self._replayed[0]
        found = self._periodic_per_mb
        return 1.0 if found is None else max(1.0, found[0] / float(self.busy[1].max()))

    def plan(self, mb: float, pieces: float, *, slack_us: float = 0.0) -> Plan | None:
        """Periodic plan of pieces of `mb` MB on each chain or tree (open lane); None if none is found.

        - `slack_us`: Time from the arrival of data to the earliest send of it.
        """
        takes = self._alpha_us + mb * self._us_per_mb
        found = self._periodic(takes, 1.0, mb, pieces, slack_us)
        return None if found is None else Plan(found[0], *self._starts_us(takes + slack_us, *found))

    @cached_property
    def _periodic_per_mb(self) -> tuple[float, Floats] | None:
        """Period and phases of a periodic plan for 1 MB messages without latency; None if none is found."""
        return self._periodic(self._us_per_mb, 0.0, 1.0, _MANY_PIECES, 0.0)

    def _periodic(
        self, takes_us: Floats, latency: float, mb: float, pieces: float, slack_us: float
    ) -> tuple[float, Floats] | None:
        """Period of the fastest plan found for `pieces` pieces, and phase of each hop in it, in us, or None.

        - `takes_us`, (directions, lanes, hops): Time of a message of `mb` MB on each hop.
        - `latency`: 1 to include alpha in holds, 0 to leave it out.
        """
        takes: list[float] = takes_us.ravel().tolist()
        holds: list[list[Held]] = []
        for hop, held in enumerate(each for lane in self._holds for each in lane):
            lasts = [latency * h.alpha_us + mb * h.us_per_mb for h in held]
            begins = (
                takes[hop] - us if h.side == "receive" else 0.0 for h, us in zip(held, lasts, strict=True)
            )
            holds.append([*zip((h.resource for h in held), begins, lasts, strict=True)])
        places = np.arange(len(takes))
        busy = (self.busy[1] + self.busy[0]).tolist()
        load = np.array([-max((busy[resource] for resource, _, _ in held), default=0.0) for held in holds])
        lasts_us = takes_us + slack_us
        alone_us = self._starts_us(lasts_us, 0.0, None)[0]
        keys: tuple[Ints | Floats, ...] = alone_us.ravel(), self.turns.ravel(), places, load
        orders = (np.lexsort((places, key)).tolist() for key in keys)

        def end_us(period: float, phases: Sequence[float] | None) -> float:
            """Time in us by which the first piece has arrived everywhere."""
            phase = None if phases is None else np.array(phases).reshape(takes_us.shape)
            return self._starts_us(lasts_us, period, phase)[1]

        before = self._before(alone_us + lasts_us)
        found = periodic(holds, lasts_us.ravel().tolist(), before, orders, end_us, pieces)
        return None if found is None else (found[0], np.array(found[1]).reshape(takes_us.shape))

    def _before(self, ends_us: Floats) -> list[int]:
        """For each hop, the index of the hop whose data it forwards; -1 if it sends its source's own data.

        If the source forwards a sum of several arrivals, the index is that of the latest one.

        - `ends_us`, (directions, lanes, hops): Arrival of the first piece on each hop, without contention.
        """
        ends, num, found = ends_us.ravel(), ends_us.shape[2], np.full(ends_us.size, -1)
        for lane, hops in enumerate(self.hops):
            arrivals: dict[int, int] = {}
            for way, back in enumerate(self.backwards):
                first, before = (way * len(self.hops) + lane) * num, arrivals
                arrivals = {hops[0][0]: before[hops[0][0]]} if way else {}
                for place in range(num)[:: -1 if back else 1]:
                    src, dst = hops[place][::-1] if back else hops[place]
                    hop = first + place
                    found[hop] = arrivals.get(src, -1)
                    if dst not in arrivals or ends[hop] > ends[arrivals[dst]]:
                        arrivals[dst] = hop
        return cast("list[int]", found.tolist())

    @cached_property
    def _replayed(self) -> tuple[float, Floats]:
        """(stretch, starts of sends in the first step) on closed rings, from a simulation without latency.

        The stretch is the ratio of a step's time to that of its busiest resource. The starts, (directions,
        lanes, hops), are fractions of a step's time. Hops of a step are scheduled in the order of their
        `turns`.
        """
        order = np.lexsort((np.arange(self.turns.size), self.turns.ravel())).tolist()
        holds = [holds for lane in self._holds for holds in lane]
        lasts = self._us_per_mb.ravel().tolist()
        num = self._us_per_mb.shape[2]
        free = [0.0] * self.busy.shape[1]
        ready, ends = [0.0] * len(order), []
        first: list[float] = []
        for _ in range(_REPLAYED):
            arrival, starts = [0.0] * len(order), [0.0] * len(order)
            for hop in order:
                start, us = ready[hop], lasts[hop]
                for hold in holds[hop]:
                    before = us - hold.us_per_mb if hold.side == "receive" else 0.0
                    start = max(start, free[hold.resource] - before)
                for hold in holds[hop]:
                    free[hold.resource] = start + (us if hold.side == "receive" else hold.us_per_mb)
                starts[hop], arrival[hop] = start, start + us
            ready = [arrival[hop - hop % num + (hop - 1) % num] for hop in range(len(order))]
            ends.append(max(arrival))
            first = first if len(ends) > 1 else starts
        replayed = (ends[-1] - ends[_REPLAYED // 2]) / (_REPLAYED - 1 - _REPLAYED // 2)
        shape = self.turns.shape
        if not replayed:
            return 1.0, np.zeros(shape)
        stretch = max(1.0, replayed / float(self.busy[1].max()))
        return stretch, (np.array(first) / replayed).reshape(shape)

    def pieces_us(self, pieces: float) -> float:
        """Estimated time in us of the given number of pieces on each chain or tree.

        The time of the first piece is the mean of two estimates. In one, it never waits for resources; in
        the other, it waits for its phase in a periodic plan on every hop.
        """
        mb = self.mb_of(pieces)
        alone_us = in_turn_us = self.alone_us(mb)
        if self._periodic_per_mb is not None:
            period, phases = self._periodic_per_mb
            scale = self.period_us(mb) / period
            takes = self._alpha_us + mb * self._us_per_mb
            in_turn_us = self._starts_us(takes, scale * period, scale * phases)[1]
        return (alone_us + in_turn_us) / 2 + (pieces - 1) * self.period_us(mb)

    def alone_us(self, mb: float) -> float:
        """Time of the first piece on all chains or trees, without contention."""
        return self._starts_us(self._alpha_us + mb * self._us_per_mb, 0.0, None)[1]

    def _starts_us(self, latency: Floats, period: float, phase: Floats | None) -> tuple[Floats, float]:
        """Start of the first piece on each hop, (directions, lanes, hops), and time when it is everywhere.

        - `latency`, (directions, lanes, hops): Time from the start of a send to the next send of its data.
        - `phase`, (directions, lanes, hops): Phase of starts within a period. None: as soon as possible.
        """
        starts, end = np.zeros(latency.shape), 0.0
        lasts, phases = latency.tolist(), None if phase is None else phase.tolist()
        for lane, hops in enumerate(self.hops):
            ready: dict[int, float] = {hops[0][0]: 0.0}
            for way, back in enumerate(self.backwards):
                root = ready[hops[0][0]] if way else 0.0
                ready = {} if back else {hops[0][0]: root}
                own, found = lasts[way][lane], [0.0] * len(hops)
                for hop in range(len(hops))[:: -1 if back else 1]:
                    src, dst = hops[hop][::-1] if back else hops[hop]
                    start = ready.get(src, 0.0)
                    if phases is not None:
                        begin = phases[way][lane][hop]
                        late = ceil((start - begin) / period - 1e-9)
                        start = max(late * period + begin, start)
                    found[hop] = start
                    arrival = start + own[hop]
                    ready[dst] = max(ready.get(dst, 0.0), arrival) if back else arrival
                    end = max(end, arrival)
                starts[way, lane] = found
        return starts, end

    def period_us(self, mb: float) -> float:
        """Period in which every hop sends `mb` MB once: time of the busiest resource, times `stretch`."""
        return self.stretch * self.busiest_us(mb)

    def tightness(self, mb: float) -> float:
        """Ratio of a ring's mean time of a hop, for `mb` MB, to the time of a step's busiest resource."""
        hops_us = (self._alpha_us + mb * self._us_per_mb).mean(axis=2)
        return float(hops_us.max()) / max(self.period_us(mb), 1e-12)

    def busiest_us(self, mb: float) -> float:
        """Time for which messages of `mb` MB on every hop hold the busiest resource."""
        return float((self.busy[0] + mb * self.busy[1]).max())

    def round_us(self, mb: float, steps: int) -> tuple[Floats, float]:
        """Start of each message on closed rings, (steps, lanes, hops), and end of the last message, in us.

        Messages of the first step start as in `_replayed`. All others start once their data has arrived and
        the hop's resources are free.
        """
        latency = (self._alpha_us + mb * self._us_per_mb)[0]
        held = self._held_us(mb)[0]
        starts = np.zeros((steps, *latency.shape))
        ready, free = self._replayed[1][0] * self.period_us(mb), np.zeros_like(latency)
        end = 0.0
        for step in range(steps):
            starts[step] = np.maximum(ready, free)
            free, arrival = starts[step] + held, starts[step] + latency
            end = max(end, float(arrival.max()))
            ready = np.roll(arrival, 1, axis=1)
        return starts, end

    @property
    def parts(self) -> int:
        """Number of parts to cut each chunk into, so that all rings, chains or trees carry equally many."""
        count, num, n = self.problem.collective.num_chunks, len(self.hops), self.problem.topology.num_ranks
        if self.goes_round:
            # Each ring has a part per rank; chunks of an allreduce may be assigned to any rank.
            owned, wanted = (count, n * num) if is_allreduce(self.problem) else (count // n, num)
            return wanted // gcd(owned, wanted)
        least = num // gcd(count, num)
        return least * max(1, round(self._best_pieces() * num / count / least))

    @property
    def num_pieces(self) -> float:
        """Number of pieces that follow one another on each chain or tree."""
        parts = min(self.parts, *self.problem.chunk_bytes)
        return max(1.0, self.problem.collective.num_chunks * parts / len(self.hops))

    def roots(self, count: int) -> list[int]:
        """Rank at which each of `count` chunks of an allreduce is summed."""
        num, n = len(self.hops), self.problem.topology.num_ranks
        if not self.goes_round:
            return [self.hops[c % num][0][0] for c in range(count)]
        return [c // num % n if count % (n * num) == 0 else c % n for c in range(count)]

    def mb_of(self, pieces: float) -> float:
        """MB of each piece, given the number of pieces on each chain or tree."""
        assert self.problem.size_bytes is not None, "checked by the caller"
        return self.problem.size_bytes / 1e6 / len(self.hops) / pieces

    def _best_pieces(self) -> int:
        most = max(1, _MOST_PIECED // self._alpha_us.size)
        numbers = sorted({*(2**power for power in range(most.bit_length())), most})
        best: int = min(numbers, key=self.pieces_us)
        return best

    def _held_us(self, mb: float) -> Floats:
        """Min us between two messages on each hop: load of the hop's busiest resource times `stretch`."""
        of_resource = self.stretch * (self.busy[0] + mb * self.busy[1])
        held = [
            [max((of_resource[h.resource] for h in holds), default=0.0) for holds in lane]
            for lane in self._holds
        ]
        return np.array(held).reshape(self._alpha_us.shape)


def is_allreduce(problem: Problem) -> bool:
    """True if every rank receives every sum."""
    collective = problem.collective
    everyone = collective.num_ranks
    return collective.combining and all(len(chunk.destinations) == everyone for chunk in collective.chunks)


def _from(order: Sequence[int], root: int, *, backwards: bool) -> Sequence[int]:
    """Ranks of a ring in order from `root` on; in the opposite order if `backwards`."""
    walked = order[::-1] if backwards else order
    first = walked.index(root)
    return (*walked[first:], *walked[:first])


def _trees(topology: Topology, routes: ShortestRoutes, order: Sequence[int]) -> Iterator[list[Hop]]:
    """Yield the hops of two trees of nodes with a chain in each node; one tree for one or two nodes."""
    nodes = near_nodes(topology, routes)
    size = len(nodes[0])
    chains = [order[n * size : (n + 1) * size] for n in range(len(nodes))]
    for edges in two_trees(range(len(nodes)))[: 1 if len(nodes) < 3 else 2]:
        across = [(chains[a][0], chains[b][0]) for _, a, b in edges]
        yield across + [hop for chain in chains for hop in pairwise(chain)]
