"""Bounds of collectives on implicit fabrics, from distances and from volume over capacity.

latency
    The chunk of the farthest rank needs alpha + beta per hop.
cut counting
    Number of whole chunks over the rate of the links that they must cross. These are the links into the rank
    with the fewest links, or all links of a fabric that looks the same from every rank.

Over all chunkings, only the alphas of the path count, and the bytes over the rate of these links.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from taccl._internal.graph_algorithms import shortest_paths
from taccl._internal.units import BYTES_PER_MB, format_us
from taccl.analysis.certificates.finding.gates import first_tick
from taccl.errors import TopologyError
from taccl.schedule.implicit_schedule import ClassTicks, ImplicitSchedule, ticks_of
from taccl.topology.named import NamedFabric
from taccl.topology.products import Dimension
from taccl.topology.translations import ClassHold, LinkClass, Translations


@dataclass(frozen=True, slots=True)
class FabricBound:
    """Lower bound on the finish of any schedule of a collective on a fabric.

    - `bound`: Microseconds, exact.
    - `kind`: ``"latency"`` or ``"cut counting"``; ``"none"`` for a single rank.
    - `limits`: Text that names the bottleneck.
    """

    bound: Fraction
    kind: str
    limits: str

    @property
    def bound_us(self) -> float:
        """The bound in microseconds."""
        return float(self.bound)

    def gap(self, finish: Fraction) -> float:
        """(finish - bound) / bound; 0 if the finish equals the bound."""
        return float((finish - self.bound) / self.bound) if finish != self.bound else 0.0

    def to_dict(self) -> dict[str, Any]:
        """The bound as plain values."""
        return {"bound_us": self.bound_us, "kind": self.kind, "bound_limits": self.limits}

    def __repr__(self) -> str:
        return f"FabricBound({format_us(self.bound)}: {self.kind}, limited by {self.limits})"


class _Job(NamedTuple):
    """Sends that some resources or links must carry together.

    - `servers`: (hold, latency) in ticks of each of these resources, which serve sends in parallel.
    - `needed`: Number of sends of a chunk; of a share of all sends, it may be a fraction.
    - `where`: Text that names the bottleneck.
    """

    servers: Sequence[tuple[int, int]]
    needed: int | Fraction
    where: str


def collective_bound(
    translations: Translations, collective: str, *, chunks_per_rank: int, chunk_bytes: int
) -> FabricBound:
    """Higher of the latency and the cut-counting bound of a collective whose schedule may use all links.

    - `collective`: One of `taccl.schedule.implicit_schedule.IMPLICIT_COLLECTIVES`.

    Raises `TopologyError` if links do not lead to every rank.
    """
    if translations.num_ranks == 1:
        return _NOTHING
    costs = ticks_of(translations.classes, chunk_bytes)
    far, jobs = _far_and_jobs(translations, collective, chunks_per_rank, costs)
    best = (far, "latency", f"the path from the farthest rank, which takes {format_us(_us(far, costs))}")
    for servers, needed, where in jobs:
        num_sends = math.ceil(needed)
        ticks = _counting(servers, num_sends)
        if ticks > best[0]:
            best = (ticks, "cut counting", f"{num_sends} sends of whole chunks over {where}")
    return FabricBound(_us(best[0], costs), best[1], best[2])


def divisible_bound(translations: Translations, collective: str, *, chunk_bytes: Fraction) -> FabricBound:
    """Higher of the latency and the throughput bound of a collective over all chunkings.

    - `collective`: One of `taccl.schedule.implicit_schedule.IMPLICIT_COLLECTIVES`.
    - `chunk_bytes`: Bytes of a chunk if there is one chunk per rank.

    Raises `TopologyError` if links do not lead to every rank.
    """
    if translations.num_ranks == 1:
        return _NOTHING
    alphas, betas = _parts_of(translations), _parts_of(translations, chunk_bytes)
    far = _us(_far_and_jobs(translations, collective, 1, alphas)[0], alphas)
    best = FabricBound(far, "latency", f"the latencies on the path from the farthest rank, {format_us(far)}")
    for servers, needed, where in _far_and_jobs(translations, collective, 1, betas)[1]:
        if all(hold for hold, _ in servers):
            bound = Fraction(needed) / sum(Fraction(betas.ticks_per_us, hold) for hold, _ in servers)
            if bound > best.bound:
                said = f"the bytes of {float(needed):.6g} chunks over {where}"
                best = FabricBound(bound, "throughput", said)
    return best


def path_bound(translations: Translations, collective: str, *, chunk_bytes: int) -> FabricBound:
    """Bound by the path of a chunk to the farthest rank; it holds even if sends may merge chunks."""
    if translations.num_ranks == 1:
        return _NOTHING
    parts = _parts_of(translations), _parts_of(translations, Fraction(chunk_bytes))
    # The path's time is a sum over its hops, so latencies and transmission times add up.
    far = sum(_us(_far_and_jobs(translations, collective, 1, each)[0], each) for each in parts)
    return FabricBound(Fraction(far), "latency", "the path of a chunk to the farthest rank")


def _parts_of(translations: Translations, chunk_bytes: Fraction | None = None) -> ClassTicks:
    """Exact costs of the bytes of a chunk without alphas; None: those of the alphas alone."""

    def cost(each: LinkClass | ClassHold) -> Fraction:
        return each.alpha_us if chunk_bytes is None else each.beta_us_per_mb * chunk_bytes / BYTES_PER_MB

    held = [[(hold.resource, cost(hold)) for hold in each.holds] for each in translations.classes]
    alone = [cost(each) for each in translations.classes]
    values = {*alone, *(us for some in held for _, us in some)}
    grid = math.lcm(*(us.denominator for us in values))
    latency = np.array([int(us * grid) for us in alone], dtype=object)
    return ClassTicks(grid, latency, tuple(tuple((q, int(us * grid), 0) for q, us in some) for some in held))


def _far_and_jobs(
    translations: Translations, collective: str, pieces: int, costs: ClassTicks
) -> tuple[int, list[_Job]]:
    """(ticks on the path from the farthest rank, jobs of a collective of `pieces` chunks per rank)."""
    host, num_ranks = translations.host, translations.num_ranks
    if isinstance(host, NamedFabric) and translations.ranks is not None:
        return _mesh_jobs(host, collective, pieces, costs)
    hops, far = _distances(translations, costs)
    needed = {"allreduce": 2 * (num_ranks - 1), "alltoall": hops}.get(collective, num_ranks - 1)
    why = {
        "alltoall": "every hop of every chunk is a send",
        "allreduce": "a sum that all ranks share takes 2 (R - 1) sends",
    }.get(collective, "every other rank's chunk takes a send into each rank")
    servers = _servers(costs)
    into = f"{len(servers)} resource{'s' if len(servers) > 1 else ''} of each rank"
    jobs = [_Job(servers, pieces * needed, f"{into}: {why}")]
    if collective == "alltoall" and isinstance(host, NamedFabric) and host.kind in ("torus", "multidim"):
        jobs += _along_axes(host, translations, pieces, costs)
    return far, jobs


def bound_of(schedule: ImplicitSchedule) -> FabricBound:
    """Lower bound on the finish of any schedule with the same collective, chunks and fabric."""
    return collective_bound(
        schedule.translations,
        schedule.collective,
        chunks_per_rank=schedule.chunks_per_rank,
        chunk_bytes=schedule.chunk_bytes,
    )


_NOTHING = FabricBound(Fraction(0), "none", "nothing: every rank holds its data at the start")


def _us(ticks: int, costs: ClassTicks) -> Fraction:
    return Fraction(ticks, costs.ticks_per_us)


def _servers(costs: ClassTicks, classes: set[int] | None = None) -> list[tuple[int, int]]:
    """[(hold, latency) in ticks, ...] of resources that can serve sends in parallel.

    Each link class is assigned to one of the resources that its links hold, so no send counts twice. A class
    that holds no resource is listed with hold 0.

    - `classes`: Link classes that count; None for all.
    """
    left = set(range(len(costs.latency))) if classes is None else set(classes)
    users: dict[int, set[int]] = {}
    for g in sorted(left):
        for resource, _, _ in costs.holds[g]:
            users.setdefault(resource, set()).add(g)
    servers = []
    for resource in sorted(users, key=lambda r: -len(users[r])):
        taken = users[resource] & left
        if taken:
            left -= taken
            held = min(length for g in taken for r, length, _ in costs.holds[g] if r == resource)
            servers.append((held, min(int(costs.latency[g]) for g in taken)))
    servers += [(0, int(costs.latency[g])) for g in left]
    return servers


def _counting(servers: Sequence[tuple[int, int]], needed: int) -> int:
    """Min ticks in which servers (links or ports), each a (hold, latency) pair, can carry `needed` sends."""

    def done(ticks: int) -> bool:
        busy = ((held, ticks - latency) for held, latency in servers if ticks >= latency)
        return sum(needed if not held else time // held + 1 for held, time in busy) >= needed

    return first_tick(done)


def _mesh_jobs(host: NamedFabric, collective: str, pieces: int, costs: ClassTicks) -> tuple[int, list[_Job]]:
    """(least ticks from a corner of a mesh to the opposite corner, jobs that bound the collective).

    One job counts the sends into a corner rank. For an allreduce, another job counts the sends over an
    average link. All links of a mesh cost the same, so those of the ring through its ranks give the costs.
    """
    num_ranks, corner = host.num_ranks, sum(dim > 1 for dim in host.dims)
    latency, held = int(costs.latency[0]), costs.holds[0][0][1]
    far = latency * sum(dim - 1 for dim in host.dims)
    servers = [(held, latency)] * corner
    into = f"the {corner} links into the rank in a corner"
    if collective != "allreduce":
        why = "every other rank's chunk takes a send into each rank"
        return far, [_Job(servers, pieces * (num_ranks - 1), f"{into}: {why}")]
    num_links = 2 * sum(num_ranks // dim * (dim - 1) for dim in host.dims)
    on_one = Fraction(2 * pieces * (num_ranks - 1) * num_ranks, num_links)
    return far, [
        _Job(servers, pieces * num_ranks, f"{into}: it needs the others' part of every sum"),
        _Job([(held, latency)], on_one, "some link: a sum that all ranks share takes 2 (R - 1) sends"),
    ]


def _along_axes(host: NamedFabric, translations: Translations, pieces: int, costs: ClassTicks) -> list[_Job]:
    """Jobs as in `_mesh_jobs`, one per torus axis: the sends that links along this axis must carry."""
    place_0 = np.zeros(len(costs.latency), dtype=np.int64)
    axis_of = host.axis(place_0, np.array([each.dst for each in translations.classes])).tolist()
    jobs = []
    for axis, along in enumerate(host.axes):
        servers = _servers(costs, {g for g, other in enumerate(axis_of) if other == axis})
        if servers:
            into = f"the {len(servers)} links out of each rank along axis {axis}"
            needed = pieces * _hops_along(host, along)
            jobs.append(_Job(servers, needed, f"{into}: every hop of every chunk is a send"))
    return jobs


def _distances(translations: Translations, costs: ClassTicks) -> tuple[int, int]:
    """(sum of hops from place 0 to all other places, ticks from place 0 to the farthest place)."""
    host = translations.host
    if not isinstance(host, NamedFabric):
        return _searched(translations, costs)
    ends = ((each.alpha_us, each.beta_us_per_mb) for each in translations.classes)
    latency = dict(zip(ends, costs.latency.tolist(), strict=True))
    far = sum(
        max(each.hops) * latency[each.alpha_us, each.beta_us_per_mb] for each in host.axes if each.size > 1
    )
    return sum(_hops_along(host, each) for each in host.axes), far


def _hops_along(host: NamedFabric, axis: Dimension) -> int:
    """Sum of the numbers of hops along one axis from place 0 to all other places."""
    return host.num_ranks // axis.size * sum(axis.hops)


def _searched(translations: Translations, costs: ClassTicks) -> tuple[int, int]:
    """(sum of hops, ticks to the farthest place) from place 0, by shortest paths on an explicit topology."""
    num_ranks = translations.num_ranks
    places = np.arange(num_ranks)
    ends = [translations.group.translate(places, each.dst) for each in translations.classes]
    rows, columns = np.tile(places, len(ends)), np.concatenate(ends)
    hops, latency = (
        shortest_paths(num_ranks, rows, columns, np.repeat(weight, num_ranks), 0)[0]
        for weight in (np.ones(len(ends)), costs.latency)
    )
    if np.isinf(hops).any():
        raise TopologyError(
            "links do not lead from a rank to every other; add links", where=translations.host.name
        )
    return int(hops.sum()), int(latency.max())
