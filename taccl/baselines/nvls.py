"""NVLS as an algorithm of the baseline ``nccl``: allreduces in which the switch of each node makes sums.

In every node, the switch adds up each chunk, and delivers the sum to one rank. Trees of nodes add up these
sums, and the switches multicast the results. Chunks follow one another by a periodic plan.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from math import ceil, gcd
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from taccl.baselines.chunking import cut_chunks, without_sketch
from taccl.baselines.edge_colouring import turns_of
from taccl.baselines.periods import periodic
from taccl.baselines.tree import two_trees
from taccl.schedule.timing import exact_times
from taccl.topology.in_network import shared_links
from taccl.topology.machines import SHAPES
from taccl.topology.nvls import with_nvls
from taccl.topology.parts import on_rails
from taccl.topology.profiles import profile_of
from taccl.topology.registry import parse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taccl.baselines.lanes import Floats
    from taccl.baselines.periods import Held
    from taccl.baselines.tree import Edges
    from taccl.problem.problem import Problem
    from taccl.schedule.schedule import Schedule
    from taccl.topology.topology import Topology

#: Chunks are cut into the fewest parts for which the shortest time is at least this share of the time.
_PAYS = 0.995
#: Max transfers of schedules whose chunks are cut (about 2 s).
_MOST_TRANSFERS = 80_000
#: Min ticks in a plan between the arrival of data and their next send, as starts are rounded later.
_SLACK_TICKS = 2


def with_switches(problem: Problem) -> Problem:
    """Add the links of reducing switches (NVLS) to the topology of an allreduce.

    The problem is returned unchanged if it is no allreduce, has clauses other than merging, or has such links
    already. It is also unchanged if its machine has no such switches or no profile, or differs from the
    machine's model in links or costs. For topologies read from files, `with_nvls` decides.
    """
    topology, shape = problem.topology, SHAPES.get(problem.topology.machine)
    if (
        links_of_switches(topology)
        or problem.collective.name != "allreduce"
        or without_sketch(problem) != problem
    ):
        return problem
    if not topology.machine:
        return replace(problem, topology=with_nvls(topology))
    if (profile := profile_of(topology)) is None or shape is None or not shape.nvls:
        return problem
    made = parse(
        topology.machine, nodes=topology.num_nodes, profile=profile.name, nvls=True,
        rails=shape.has_rails and on_rails(topology),
        protocol=topology.protocol or None, alpha_meaning=topology.alpha_meaning,
    )  # fmt: skip
    is_alike = tuple(e for e in made.links if len(e.srcs) == len(e.dsts) == 1) == topology.links
    return replace(problem, topology=made) if is_alike else problem


def links_of_switches(topology: Topology) -> dict[int, tuple[int, int]]:
    """{rank: (reduction link to it, multicast link from it)}, both through the switch of the rank's node."""
    shared = {(topology.links[e].srcs, topology.links[e].dsts): e for e in shared_links(topology)}
    found = {}
    for ranks in topology.ranks_of_node:
        for rank in ranks:
            others = tuple(other for other in ranks if other != rank)
            if (others, (rank,)) in shared and ((rank,), others) in shared:
                found[rank] = shared[others, (rank,)], shared[(rank,), others]
    return found


def has_nvls(problem: Problem) -> bool:
    """True if NVLS can run a problem: an allreduce whose nodes all have switches that reduce.

    With several nodes, ranks with the same local rank must be linked.
    """
    topology = problem.topology
    is_switched = len(links_of_switches(topology)) == topology.num_ranks
    joined = all(_rails(topology, rank) for rank in topology.ranks_of_node[0])
    return is_switched and problem.collective.name == "allreduce" and joined


def why_no_nvls(problem: Problem) -> str:
    """Reason why NVLS does not support a problem, as a clause that begins with 'as'."""
    switched = with_switches(problem)
    if problem.collective.name != "allreduce":
        return "as this baseline has sums in switches for allreduce only"
    if without_sketch(problem) != problem:
        return "as sums in switches are not combined with a sketch"
    if has_nvls(switched):
        return "as the costs come from a log of another protocol at this size"
    if len(links_of_switches(switched.topology)) == switched.topology.num_ranks:
        return "as ranks with the same local rank are not linked across nodes"
    return "as no switch of this topology reduces all ranks' data"


def _rails(topology: Topology, rank: int) -> dict[tuple[int, int], int]:
    """{(source node, destination node): link} between the ranks that have the same local rank as `rank`.

    Empty if a link is missing; {(0, 0): -1} for a single node.
    """
    place = topology.local_rank[rank]
    heads = [ranks[place] for ranks in topology.ranks_of_node]
    links = {(topology.links[e].src, topology.links[e].dst): e for e in topology.internode_links}
    pairs = [(a, b) for a in range(len(heads)) for b in range(len(heads)) if a != b]
    if any((heads[a], heads[b]) not in links for a, b in pairs):
        return {}
    return {(a, b): links[heads[a], heads[b]] for a, b in pairs} or {(0, 0): -1}


class Hop(NamedTuple):
    """Send of each piece of a lane.

    - `adds`: True for a reduction.
    - `across`: True between nodes.
    - `after`: Indices of the hops in the lane whose arrivals this hop sends on.
    """

    link: int
    adds: bool
    across: bool
    after: tuple[int, ...]


class NvlsPipeline:
    """Pipeline of an NVLS allreduce: lanes that carry equal shares of the data, in pieces.

    A lane has a root, which is a local rank, and one of the two trees that join nodes; two nodes have one
    tree. In each node, the switch sums a piece at the root. The tree adds up these sums and returns the
    result, and the switches multicast it from the roots. In a single node, rank 0 is the only root. With
    several nodes all ranks are roots, so that every NIC is used.

    - `lanes`: Hops of each lane, each after those in its `after`.
    - `busy`, (2, num_resources): Time for which one piece on every lane holds each resource, in us per piece
      and us per MB.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        topology, nodes = problem.topology, problem.topology.ranks_of_node
        nvls = links_of_switches(topology)
        roots = nodes[0] if len(nodes) > 1 else nodes[0][:1]
        trees = two_trees(range(len(nodes)))[: 2 if len(nodes) > 2 else 1]
        self.lanes = [
            _lane(edges, _rails(topology, root), [nvls[ranks[topology.local_rank[root]]] for ranks in nodes])
            for edges in trees
            for root in roots
        ]
        self.busy = np.zeros((2, len(topology.resources)))
        for hold in (
            hold for lane in self.lanes for hop in lane for hold in topology.holds_of_link[hop.link]
        ):
            self.busy[:, hold.resource] += float(hold.alpha_us), float(hold.beta_us_per_mb)

    @property
    def gb_per_s(self) -> float:
        """Algorithm bandwidth in GB/s for large sizes, if the busiest resource is never idle."""
        us_per_mb = float(self.busy[1].max()) / len(self.lanes)
        return 1000 / us_per_mb if us_per_mb else float("inf")

    def time_us(self, pieces: float) -> float:
        """Time in us of pieces on each lane, which are a period apart.

        Each hop of a piece after its first one waits half a period on average, for its turn.
        """
        mb, num_waits = self._mb_of(pieces), max(map(_depth, self.lanes)) - 1
        period_us = float((self.busy[0] + mb * self.busy[1]).max())
        return self.alone_us(mb) + (pieces - 1 + num_waits / 2) * period_us

    def alone_us(self, mb: float) -> float:
        """Time in us of a piece of `mb` MB on each lane, without contention."""
        return max(self._starts_us(lane, mb)[1] for lane in self.lanes)

    @cached_property
    def parts(self) -> int:
        """Number of parts to cut each chunk into: the fewest for which `time_us` is near its minimum."""
        count, num = self.problem.collective.num_chunks, len(self.lanes)
        least = num // gcd(count, num)
        most = min(_MOST_TRANSFERS // (count * len(self.lanes[0])), *self.problem.chunk_bytes)
        numbers = [least * 2**power for power in range((most // least).bit_length())] or [1]
        times_us = [self.time_us(self._pieces_of(parts)) for parts in numbers]
        best: int = next(n for n, us in zip(numbers, times_us, strict=True) if _PAYS * us <= min(times_us))
        return best

    @property
    def pieces(self) -> float:
        """Number of pieces of each lane, if chunks are cut into `parts`."""
        return self._pieces_of(self.parts)

    def _pieces_of(self, parts: int) -> float:
        return max(1.0, self.problem.collective.num_chunks * parts / len(self.lanes))

    def _mb_of(self, pieces: float) -> float:
        assert self.problem.size_bytes is not None, "checked by the caller"
        return self.problem.size_bytes / 1e6 / len(self.lanes) / pieces

    def plan(self, mb: float, slack_us: float) -> tuple[float, list[list[float]]]:
        """Periodic plan of pieces of `mb` MB: (period, start of the first piece on each hop of each lane).

        - `slack_us`: Time from the arrival of data to the earliest send of it.
        """
        # A switch serves one lane at a time: its reduction, and the multicast of an earlier piece.
        ends_us = np.cumsum([max(self._held_us(hop.link, mb) for hop in lane) for lane in self._inside])
        node_us, phases = float(ends_us[-1]), [0.0, *ends_us[:-1].tolist()]
        period_us, of_network = self._network_phases(mb, slack_us, node_us)
        starts = []
        for number, lane in enumerate(self.lanes):
            phase = [of_network.get((number, i), phases[number]) for i in range(len(lane))]
            starts.append(self._starts_us(lane, mb, slack_us, (period_us, phase))[0])
        return period_us, starts

    @property
    def _inside(self) -> list[list[Hop]]:
        return [[hop for hop in lane if not hop.across] for lane in self.lanes]

    def _network_phases(
        self, mb: float, slack_us: float, least_us: float
    ) -> tuple[float, dict[tuple[int, int], float]]:
        """Period of at least `least_us`, and {(lane, hop): phase in it} of hops between nodes, in us.

        Without phases, hops start as soon as their data have arrived.
        """
        topology = self.problem.topology
        hops = [(n, i) for n, lane in enumerate(self.lanes) for i, hop in enumerate(lane) if hop.across]
        if not hops:
            return least_us, {}
        place = {hop: k for k, hop in enumerate(hops)}
        takes, before = list[float](), list[int]()
        holds: list[Sequence[Held]] = []
        for number, i in hops:
            link, after = self.lanes[number][i].link, self.lanes[number][i].after
            takes.append(self._takes_us(link, mb) + slack_us)
            before.append(place.get((number, after[-1]), -1) if after else -1)
            held = [
                (h, float(h.alpha_us) + mb * float(h.beta_us_per_mb)) for h in topology.holds_of_link[link]
            ]
            wholly = takes[-1] - slack_us
            holds.append([(h.resource, wholly - us if h.side == "receive" else 0.0, us) for h, us in held])
        busy_us = self.busy[0] + mb * self.busy[1]
        load = [-max(busy_us[resource] for resource, _, _ in held) for held in holds]
        turns = turns_of([topology.holds_of_link[self.lanes[n][i].link] for n, i in hops], busy_us)
        keys = ((np.array(turns), np.array(load)), (np.array(turns),), (np.array(load),))
        # The last task keeps a resource of its own busy for `least_us`, which no period can be shorter than.
        orders = [[*np.lexsort((np.arange(len(hops)), *key)).tolist(), len(hops)] for key in keys]
        holds.append([(len(topology.resources), 0.0, least_us)])
        found = periodic(holds, [*takes, least_us], [*before, -1], orders)
        if found is None:
            return max(least_us, float(busy_us.max())), {}
        return found[0], dict(zip(hops, found[1], strict=False))

    def _starts_us(
        self, lane: list[Hop], mb: float, slack_us: float = 0.0, plan: tuple[float, list[float]] | None = None
    ) -> tuple[list[float], float]:
        """Start of a lane's first piece on each hop, and its last arrival, in us.

        - `plan`: Period and phase of each hop; None: each hop starts as soon as its data have arrived.
        """
        starts, ends = list[float](), list[float]()
        for i, hop in enumerate(lane):
            start = max((ends[earlier] for earlier in hop.after), default=0.0)
            if plan is not None:
                period_us, phase_us = plan[0], plan[1][i]
                late = ceil((start - phase_us) / period_us - 1e-9)
                start = max(start, late * period_us + phase_us)
            starts.append(start)
            ends.append(start + self._takes_us(hop.link, mb) + slack_us)
        return starts, max(ends)

    def _takes_us(self, link: int, mb: float) -> float:
        each = self.problem.topology.links[link]
        return float(each.alpha_us) + mb * float(each.beta_us_per_mb)

    def _held_us(self, link: int, mb: float) -> float:
        """Longest time in us for which a piece of `mb` MB holds a resource of the link."""
        holds = self.problem.topology.holds_of_link[link]
        return max((float(h.alpha_us) + mb * float(h.beta_us_per_mb) for h in holds), default=0.0)


def _lane(edges: Edges, rails: dict[tuple[int, int], int], of_root: list[tuple[int, int]]) -> list[Hop]:
    """Hops of a lane: reductions in nodes, up and down the tree of nodes, and multicasts in nodes.

    - `of_root`: Reduction link and multicast link of the root in each node.
    """
    lane = [Hop(reduction, True, False, ()) for reduction, _ in of_root]
    sums: list[tuple[int, ...]] = [(node,) for node in range(len(of_root))]
    for _, parent, child in reversed(edges):
        sums[parent] += (len(lane),)
        lane.append(Hop(rails[child, parent], True, True, sums[child]))
    for _, parent, child in edges:
        lane.append(Hop(rails[parent, child], False, True, sums[parent]))
        sums[child] = (len(lane) - 1,)
    return lane + [Hop(multicast, False, False, sums[node]) for node, (_, multicast) in enumerate(of_root)]


def _depth(lane: list[Hop]) -> int:
    """Number of hops on the longest path of a piece through a lane."""
    depth = list[int]()
    for hop in lane:
        depth.append(1 + max((depth[earlier] for earlier in hop.after), default=0))
    return max(depth)


def nvls_schedule(problem: Problem, *, cut: bool) -> Schedule:
    """NVLS schedule: the pieces of each lane of `NvlsPipeline` follow one another by its plan."""
    pipeline = NvlsPipeline(problem)
    if cut and pipeline.parts > 1:
        problem = cut_chunks(problem, pipeline.parts)
    slack_us = _SLACK_TICKS / float(problem.costs.ticks_per_us)
    period_us, starts = pipeline.plan(max(problem.chunk_bytes) / 1e6, slack_us)
    num = len(pipeline.lanes)
    rows = [
        (c, hop.link, hop.adds, c // num * period_us + start)
        for c in range(problem.collective.num_chunks)
        for hop, start in zip(pipeline.lanes[c % num], starts[c % num], strict=True)
    ]
    chunks, links, adds, start_us = zip(*rows, strict=True)
    ticks: Floats = np.ceil(np.array(start_us) * float(problem.costs.ticks_per_us))
    return exact_times(
        problem, chunk=chunks, link=links, starts=ticks.astype(np.int64), reduce=adds,
        producer="sums in switches",
    )  # fmt: skip
