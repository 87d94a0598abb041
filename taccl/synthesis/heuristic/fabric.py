"""What a compiled kernel needs to know of a topology: arrays, no object per link or per chunk.

Links are put in the order of their *slots*: by destination, then by speed class (fastest first), then by
how far the source is ahead of the destination in number. A destination's links are thus neighbours in
memory, and destinations that go through their links in step ask different sources.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from taccl.costs import hold_columns, link_ends, wide_links
from taccl.errors import CollectiveError, TopologyError
from taccl.synthesis.heuristic.speeds import components, crowded, fast_rates, speed_classes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from taccl.collective import Collective
    from taccl.problem import Costs, Problem
    from taccl.topology.topology import Topology


class Fabric(NamedTuple):
    """Links by slot, the resources that several links share, and how fast ranks are joined.

    A send of u units over a slot takes ``alpha + u * beta`` ticks; the slot is free again after
    ``own_alpha + u * own_beta``. Where a resource is held by one link alone, on the sending side, these two
    say so; every other hold is a row of `hold_resource`.

    - `link` ((num_slots,) int32): The topology's link of every slot. Links with several ends have none.
    - `src`, `dst`, `speed` ((num_slots,) int64): The ends, and the speed class, 0 for the fastest.
    - `into` ((num_ranks + 1,) int64): The slots into rank r are ``into[r]:into[r + 1]``.
    - `out_of`, `out_slot` ((num_ranks + 1,), (num_slots,) int64): The slots out of rank r are
      ``out_slot[out_of[r]:out_of[r + 1]]``.
    - `hold_of` ((num_slots + 1,) int64): The holds of slot e are rows ``hold_of[e]:hold_of[e + 1]`` of the
      next four.
    - `hold_resource`, `hold_alpha`, `hold_beta`, `hold_receives`, `hold_lead` ((num_holds,)): The lead is the
      time from a send's start to where it takes the resource: of chunks of several sizes the shortest.
    - `num_resources`: Resources that the rows name.
    - `wake_of`, `wake_group`, `wake_hold` ((num_slots + 1,), (num_wakes,), (num_wakes,) int64): Groups of
      slots to look at again when a send over slot e lets go of the resource of a row.
    - `group_of`, `group_slot`, `group_lead` ((num_groups + 1,), (num_wakes,), (num_groups,) int64): Slots
      that hold one resource with one lead.
    - `component` ((num_classes, num_ranks) int64): Ranks that share a number reach one another over links of
      faster classes than k.
    - `fast_rate` ((num_classes, num_ranks) float64): Chunks of typical size that a rank can receive in a tick
      over links of faster classes than k.
    """

    num_ranks: int
    num_links: int
    link: NDArray[np.int32]
    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    speed: NDArray[np.int64]
    alpha: NDArray[np.int64]
    beta: NDArray[np.int64]
    own_alpha: NDArray[np.int64]
    own_beta: NDArray[np.int64]
    into: NDArray[np.int64]
    out_of: NDArray[np.int64]
    out_slot: NDArray[np.int64]
    hold_of: NDArray[np.int64]
    hold_resource: NDArray[np.int64]
    hold_alpha: NDArray[np.int64]
    hold_beta: NDArray[np.int64]
    hold_receives: NDArray[np.bool_]
    hold_lead: NDArray[np.int64]
    num_resources: int
    wake_of: NDArray[np.int64]
    wake_group: NDArray[np.int64]
    wake_hold: NDArray[np.int64]
    group_of: NDArray[np.int64]
    group_slot: NDArray[np.int64]
    group_lead: NDArray[np.int64]
    component: NDArray[np.int64]
    fast_rate: NDArray[np.float64]

    @property
    def num_slots(self) -> int:
        return len(self.link)

    @property
    def num_classes(self) -> int:
        return len(self.component)


@dataclass(frozen=True, slots=True)
class Demand:
    """Which chunks there are, where each starts, and which ranks may receive it.

    - `units` ((num_chunks,) int64): Size of every chunk, in the units of `Costs`.
    - `origin_of`, `origin` ((num_chunks + 1,) int64, int32): Chunk c starts at ranks
      ``origin[origin_of[c]:origin_of[c + 1]]``.
    - `wanted` ((num_ranks, ceil(num_chunks / 8)) uint8): Bit ``c & 7`` of byte ``c >> 3`` says that a rank is
      to receive chunk c. None: every rank, every chunk.
    - `needed`: The same without relays, where there are any: what does not lead there is left out in the end.
    - `reach` ((num_chunks,) int64): How far each chunk has to go. A rank sends its own in this order,
      farthest first.
    - `target` ((num_chunks,) int32): The one rank that each chunk goes to, where that is so for all. Then
      `wanted` is left out.
    """

    units: NDArray[np.int64]
    origin_of: NDArray[np.int64]
    origin: NDArray[np.int32]
    wanted: NDArray[np.uint8] | None = None
    needed: NDArray[np.uint8] | None = None
    reach: NDArray[np.int64] | None = None
    target: NDArray[np.int32] | None = None

    @property
    def num_chunks(self) -> int:
        return len(self.units)


def problem_arrays(problem: Problem) -> tuple[Fabric, Demand]:
    """The arrays of a problem, links that its sketch rules out left out."""
    units = problem.costs.chunk_units
    fabric = make_fabric(
        problem.topology,
        problem.costs,
        links=None if problem.clauses.links_allowed is None else problem.links_allowed,
        units=int(np.median(units)) if len(units) else 1,
    )
    return fabric, make_demand(problem.collective, problem.costs)


def make_fabric(
    topology: Topology, costs: Costs, *, links: Sequence[int] | None = None, units: int = 1
) -> Fabric:
    """The arrays of a topology.

    - `links`: Links that may be used; by default all. A link with several sources or destinations is left
      out.
    - `units`: The size of chunk, in the units of `costs`, that speed classes are told by.

    Raises `TopologyError` if no link is left.
    """
    num_links = len(topology.links)
    srcs, dsts = link_ends(topology)
    usable = np.ones(num_links, bool)
    usable[list(wide_links(topology))] = False
    if links is not None:
        allowed = np.zeros(num_links, bool)
        allowed[np.asarray(links, dtype=np.int64)] = True
        usable &= allowed
    kept = np.flatnonzero(usable)
    if not len(kept):
        raise TopologyError("found no link from one rank to one rank; expected at least one", where="links")
    duration = costs.link_alpha + units * costs.link_beta
    speed = np.zeros(num_links, np.int64)
    everything = _holds(topology, costs, usable)
    speed[kept] = speed_classes(crowded(everything, srcs, dsts, duration, units)[kept])
    ahead = (srcs - dsts) % topology.num_ranks
    link = kept[np.lexsort((kept, ahead[kept], speed[kept], dsts[kept]))].astype(np.int32)
    src, dst, speed = srcs[link], dsts[link], speed[link]
    out_slot = np.argsort(src, kind="stable")
    holds = _by_slot(everything, link)
    component = components(src, dst, speed, topology.num_ranks)
    return Fabric(
        num_ranks=topology.num_ranks,
        num_links=num_links,
        link=link,
        src=src,
        dst=dst,
        speed=speed,
        alpha=costs.link_alpha[link],
        beta=costs.link_beta[link],
        own_alpha=holds.own_alpha,
        own_beta=holds.own_beta,
        into=starts(dst, topology.num_ranks),
        out_of=starts(src, topology.num_ranks),
        out_slot=out_slot,
        hold_of=starts(holds.slot, len(link)),
        hold_resource=holds.resource,
        hold_alpha=holds.alpha,
        hold_beta=holds.beta,
        hold_receives=holds.receives,
        num_resources=holds.num_resources,
        component=component,
        fast_rate=fast_rates(holds, src, dst, speed, duration[link], units, component),
        **_wakes(holds, costs.link_alpha[link], costs.link_beta[link], costs.chunk_units),
    )


def make_demand(collective: Collective, costs: Costs) -> Demand:
    """The arrays of a collective in which nothing is combined.

    Raises `CollectiveError` if the collective combines, or makes chunks from one another.
    """
    if collective.combining or collective.derivations:
        raise CollectiveError(
            "found a collective that combines; give the halves that spread chunks", where=collective.name
        )
    origins = [chunk.origins for chunk in collective.chunks]
    destinations = [chunk.destinations for chunk in collective.chunks]
    num_chunks, num_ranks = collective.num_chunks, collective.num_ranks
    counts, arrivals = (np.fromiter(map(len, ends), np.int64, num_chunks) for ends in (origins, destinations))
    origin = np.fromiter(chain.from_iterable(origins), np.int32, int(counts.sum()))
    origin_of = np.concatenate(([0], np.cumsum(counts)))
    if num_chunks and (arrivals == 1).all():
        target = np.fromiter(chain.from_iterable(destinations), np.int32, num_chunks)
        return Demand(costs.chunk_units, origin_of, origin, target=target)
    wanted: NDArray[np.uint8] | None = None
    if not (arrivals == num_ranks).all():
        rows = np.zeros((num_ranks, num_chunks), bool)
        for c, ranks in enumerate(destinations):
            rows[list(ranks), c] = True
        wanted = np.packbits(rows, axis=1, bitorder="little")
    return Demand(costs.chunk_units, origin_of, origin, wanted)


@dataclass(frozen=True, slots=True)
class Holds:
    """Rows of holds that are not one link's alone; and what a link holds by itself."""

    own_alpha: NDArray[np.int64]
    own_beta: NDArray[np.int64]
    slot: NDArray[np.int64]
    resource: NDArray[np.int64]
    alpha: NDArray[np.int64]
    beta: NDArray[np.int64]
    receives: NDArray[np.bool_]
    num_resources: int


def _holds(topology: Topology, costs: Costs, usable: NDArray[np.bool_]) -> Holds:
    """The holds of links that can be used; here a link is its own slot."""
    columns, num_links = hold_columns(topology), len(usable)
    some = usable[columns.link]
    link, resource, receives = columns.link[some], columns.resource[some], columns.receives[some]
    alpha, beta = costs.hold_alpha[some], costs.hold_beta[some]
    private = (np.bincount(resource, minlength=1)[resource] == 1) & ~receives
    # A link is never free sooner than all it holds lets it be: consecutive sends are as far apart.
    own_alpha, own_beta = np.zeros(num_links, np.int64), np.zeros(num_links, np.int64)
    np.maximum.at(own_alpha, link, alpha)
    np.maximum.at(own_beta, link, beta)
    own_beta[(own_alpha == 0) & (own_beta == 0)] = 1
    kept = np.flatnonzero(~private)
    shared = np.bincount(resource[kept], minlength=1) > 0
    number = (np.cumsum(shared) - 1)[resource[kept]]
    return Holds(
        own_alpha, own_beta, link[kept], number, alpha[kept], beta[kept], receives[kept], int(shared.sum())
    )


def _by_slot(holds: Holds, link: NDArray[np.int32]) -> Holds:
    """The same holds with links in the order of their slots."""
    slot_of_link = np.full(len(holds.own_alpha), -1)
    slot_of_link[link] = np.arange(len(link))
    order = np.argsort(slot_of_link[holds.slot], kind="stable")
    return Holds(
        holds.own_alpha[link],
        holds.own_beta[link],
        slot_of_link[holds.slot[order]],
        holds.resource[order],
        holds.alpha[order],
        holds.beta[order],
        holds.receives[order],
        holds.num_resources,
    )


def _wakes(
    holds: Holds, alpha: NDArray[np.int64], beta: NDArray[np.int64], units: NDArray[np.int64]
) -> dict[str, NDArray[np.int64]]:
    """The fields of `Fabric` that say what to look at again when a resource is let go.

    Of leads that depend on the chunk the shortest counts: a group is looked at late rather than never.
    """
    lead_alpha, lead_beta = alpha[holds.slot] - holds.alpha, beta[holds.slot] - holds.beta
    fewest, most = int(units.min(initial=1)), int(units.max(initial=1))
    lead = np.minimum(lead_alpha + fewest * lead_beta, lead_alpha + most * lead_beta)
    lead = np.where(holds.receives, np.maximum(lead, 0), 0)
    leads, number = np.unique(lead, return_inverse=True)  # two numbers as one are sorted much sooner
    keys, group = np.unique(holds.resource * max(1, len(leads)) + number, return_inverse=True)
    resource, number = np.divmod(keys, max(1, len(leads)))
    groups_of_resource = starts(resource, holds.num_resources)
    each = np.diff(groups_of_resource)[holds.resource] if len(group) else np.zeros(0, np.int64)
    hold = np.repeat(np.arange(len(holds.slot)), each)
    first = np.repeat(np.cumsum(each) - each, each)
    wake_group = groups_of_resource[holds.resource[hold]] + np.arange(len(hold)) - first
    return dict(
        hold_lead=lead,
        wake_of=starts(holds.slot[hold], len(alpha)),
        wake_group=wake_group,
        wake_hold=hold,
        group_of=starts(group, len(keys)),
        group_slot=holds.slot[np.argsort(group, kind="stable")],
        group_lead=leads[number],
    )


def starts(sorted_or_not: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Where each number's rows begin once sorted by number; one more entry for the end."""
    return np.concatenate(([0], np.cumsum(np.bincount(sorted_or_not, minlength=count)))).astype(np.int64)
