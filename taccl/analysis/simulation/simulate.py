"""Simulation: replay of a schedule under other assumptions, in the same order and with the same merging.

The assumptions are another size, alpha meaning, profile, or topology costs (`assume`). Links, resources,
initial data, chunks and clauses stay; only bytes and costs change.

The replay ignores the schedule's own times. The schedule's order determines the waits of each send
(`taccl.analysis.simulation.events`), and a send is timed after all of its predecessors. This order is not
that of start times: the ingress side is held until a send's end, so a send may be later in the order of a
resource and still start first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from taccl._internal.arguments import Count, Natural, Size, checked, known_word
from taccl._internal.names import first_of
from taccl._internal.units import parse_size
from taccl.analysis.simulation.events import JITTER_BITS, Events, EventTimes
from taccl.analysis.simulation.simulation import Simulation
from taccl.errors import InputError
from taccl.problem.problem import Problem
from taccl.schedule.longest_paths import in_enough_bits
from taccl.schedule.schedule import Schedule
from taccl.topology.machines import SHAPES
from taccl.topology.profiles import profile_of
from taccl.topology.registry import machine_names, parse
from taccl.topology.topology import Hold, Topology

#: Max sends and joins of all tiles together (a replay of about 200 s and 2 GB).
_MOST_EVENTS = 100_000_000


@checked
def simulate(
    schedule: Schedule,
    *,
    size: Size | None = None,
    alpha: str | None = None,
    profile: str | None = None,
    topology: Topology | None = None,
    tiles: Count = 1,
    jitter: float = 0.0,
    seed: Natural = 0,
) -> Simulation:
    """Replay a schedule under other assumptions, with the same order and the same merging of chunks.

    Every send starts as soon as its chunks are at its sources and its resources are free, in the schedule's
    order. A reducing send also waits for all contributions that it is to include. Gaps that the problem's
    clauses require (`own_first`) are kept. Under the schedule's own assumptions, the finish equals the
    schedule's exactly if every send starts as early as possible. A schedule with slack, such as one written
    by hand, finishes earlier here. One whose sends overlap on a resource finishes later, at its true finish.

    Parameters
    ----------
    size : int or str, optional
        Size as nccl-tests counts it (``"16MB"``). Chunks are scaled in proportion, and rounded up to bytes.
    alpha : {"occupies", "pipelined"}, optional
        With ``"occupies"``, a link's own hold lasts for alpha + bytes * beta, where a machine's profile may
        cap alpha at its overhead. With ``"pipelined"``, it lasts for bytes * beta. A switch port whose
        hold equals the link's own hold changes with it. NICs and other resources keep their holds.
    profile : str, optional
        Another profile of the machine's constants, e.g. ``"nominal"``.
    topology : Topology, optional
        Topology with the same links and holds, and other costs.
    tiles : int
        Number of tiles of a large message, each of the problem's size. Every resource serves all sends of a
        tile, in the schedule's order, before those of the next. Sends wait for data of their own tile only.
    jitter : float
        Max relative deviation: durations and holds of each send of each tile are multiplied by a factor,
        drawn uniformly between ``1 - jitter`` and ``1 + jitter``.
    seed : int
        Seed of the factors; the same seed gives the same times.

    Raises
    ------
    InputError
        If an assumption is unknown or does not fit the problem, if the schedule does not belong to its
        problem, or if sends would wait for one another in a cycle.

    Notes
    -----
    If a chunk arrives at a rank several times, sends wait for the arrival that is first in the schedule. If
    the schedule forwards a sum before a further contribution is added, the addition waits for that send: the
    contribution arrives at least one tick later.
    """
    if not 0 <= jitter < 1:
        raise InputError(f"found {jitter!r}; expected a number of at least 0 and below 1", where="jitter")
    problem = assume(schedule.problem, size=size, alpha=alpha, profile=profile, topology=topology)
    events = Events(schedule, problem)
    if tiles * events.num_events > _MOST_EVENTS:
        raise InputError(
            f"found {tiles} tiles of {events.num_events} sends and joins; expected at most "
            f"{max(1, _MOST_EVENTS // events.num_events)}: each takes about 2 us and 20 bytes to replay; "
            "simulate a few tiles, and add taccl.initiation_interval for each further one",
            where="tiles",
        )
    run = _play(events, tiles, jitter, seed)
    return Simulation(schedule, problem, tiles=tiles, jitter=jitter, seed=seed, run=run)


def _factors(events: Events, tiles: int, jitter: float, seed: int) -> NDArray[np.int64]:
    """Duration factors, (tiles, num_events), as multiples of 2**-JITTER_BITS.

    Joins take no time; their factor is stored as 2**JITTER_BITS, which stands for 1.
    """
    width = min(round(jitter * 2**JITTER_BITS), 2**JITTER_BITS - 1)
    drawn = np.random.default_rng(seed).integers(-width, width, (tiles, events.num_sends), endpoint=True)
    joins = np.zeros((tiles, events.num_events - events.num_sends), dtype=np.int64)
    factors: NDArray[np.int64] = np.concatenate([drawn, joins], axis=1) + 2**JITTER_BITS
    return factors


def _play(events: Events, tiles: int, jitter: float, seed: int) -> EventTimes:
    """Replay all tiles; return the start of each event, and which of the event's waits ends last."""
    source, target, after, lead, extra, _, across = events.waits
    most = np.abs(after) + np.abs(lead) + extra
    numbers = in_enough_bits(most, tiles * 2 ** (JITTER_BITS + 1 if jitter else 0)).dtype
    factors = _factors(events, tiles, jitter, seed).astype(numbers) if jitter else None
    run, before = EventTimes(events, [], [], factors), None
    gap = events.gaps().astype(numbers)
    for tile in range(tiles):
        if factors is not None:
            now, since = factors[tile], factors[max(tile - 1, 0)]
            from_start = after * np.where(across > 0, since[source], now[source])
            gap = from_start - lead * now[target] + extra * run.unit
        start, binding = np.zeros(events.num_events, numbers), np.full(events.num_events, -1)
        _, endless = events.levels.postpone(start, gap, binding, before)
        if len(endless):
            _refuse_cycle(events, endless)
        run.starts.append(start)
        run.bindings.append(binding.astype(np.int32))
        before = start
    return run


def _refuse_cycle(events: Events, endless: NDArray[np.int64]) -> NoReturn:
    """Raise `InputError` that names the sends of a cycle, whose events wait for each other."""
    component = events.levels.component
    sends = np.flatnonzero(component[: events.num_sends] == component[endless[0]]).tolist()
    raise InputError(
        f"the schedule's order cannot be kept under these assumptions: sends of groups {first_of(sends, 6)} "
        "would wait for one another; simulate closer to the schedule's assumptions, or synthesize for these",
        where="schedule",
    )


def assume(
    problem: Problem,
    *,
    size: int | float | str | None = None,
    alpha: str | None = None,
    profile: str | None = None,
    topology: Topology | None = None,
) -> Problem:
    """Return the problem under other assumptions, which `taccl.simulate` explains.

    - `size`, `alpha`, `profile`, `topology`: As in `taccl.simulate`.

    Raises `InputError` if an assumption is unknown or does not fit the problem.
    """
    if profile is not None and topology is not None:
        raise InputError("found both; a topology has its own costs: leave one out", where="profile, topology")
    assumed = problem.topology
    if topology is not None:
        for difference in _differences(assumed, topology):
            raise InputError(
                f"{difference}; give one with the same links and holds, and other costs", where="topology"
            )
        assumed = topology
    if profile is not None:
        assumed = _with_profile(assumed, profile)
    if alpha is not None:
        assumed = _with_alpha(assumed, alpha)
    if assumed is not problem.topology:
        problem = replace(problem, topology=assumed)
    return problem if size is None else _with_size(problem, parse_size(size))


def _with_size(problem: Problem, size_bytes: int) -> Problem:
    """Return the problem with all chunks scaled in proportion, rounded up to bytes as in `make_problem`."""
    if problem.size_bytes is None:
        raise InputError(
            "the schedule's size is unknown, so it cannot be scaled; leave the size out", where="size"
        )
    size_chunks = problem.collective.size_chunks
    whole = -(-problem.size_bytes // size_chunks) if size_chunks else 0
    if set(problem.chunk_bytes) == {whole}:
        chunk_bytes = (-(-size_bytes // size_chunks),) * len(problem.chunk_bytes)
    else:
        chunk_bytes = tuple(-(-each * size_bytes // problem.size_bytes) for each in problem.chunk_bytes)
    return replace(problem, chunk_bytes=chunk_bytes, size_bytes=size_bytes)


def _with_alpha(topology: Topology, alpha: str) -> Topology:
    """Include alpha in links' own holds if `alpha` is "occupies"; remove it if `alpha` is "pipelined".

    A switch port whose hold equals the link's own hold changes in the same way. Other holds stay.
    """
    known_word(alpha, ("occupies", "pipelined"), "alpha")
    if alpha == topology.alpha_meaning:
        return topology
    num_holders = Counter(hold.resource for hold in topology.holds)
    own: dict[int, Hold] = {}
    for hold in topology.holds:
        link = topology.links[hold.link]
        if num_holders[hold.resource] == 1 and hold.beta_us_per_mb == link.beta_us_per_mb:
            own.setdefault(hold.link, hold)
    profile = profile_of(topology)
    overheads = [None if profile is None else profile.overhead_us(between=each) for each in (False, True)]

    def kept_us(link: int) -> Fraction:
        alpha_us, overhead = topology.links[link].alpha_us, overheads[topology.is_internode(link)]
        return (
            Fraction(0) if alpha == "pipelined" else alpha_us if overhead is None else min(alpha_us, overhead)
        )

    switched = {link for switch in topology.switches for link in switch.links}

    def follows(hold: Hold) -> bool:
        mine = own.get(hold.link)
        if mine is None or mine is hold:
            return mine is hold
        as_long = (hold.alpha_us, hold.beta_us_per_mb) == (mine.alpha_us, mine.beta_us_per_mb)
        return hold.link in switched and as_long

    return replace(
        topology,
        alpha_meaning=alpha,  # type: ignore[arg-type]
        holds=tuple(
            hold._replace(alpha_us=kept_us(hold.link)) if follows(hold) else hold for hold in topology.holds
        ),
    )


def _with_profile(topology: Topology, profile: str) -> Topology:
    """Replace costs by those of another profile of the machine; links are matched by ends and name."""
    if topology.machine not in machine_names():
        raise InputError(
            f"found {profile!r}, but {topology.name} is no machine by name, and only these have profiles; "
            "give a topology with the intended costs",
            where="profile",
        )
    nvls = {"nvls": True} if any(switch.reduces for switch in topology.switches) else {}
    options = [{}, {"rails": False}] if SHAPES[topology.machine].has_rails else [{}]
    names = []
    for option in options:
        model = parse(
            topology.machine,
            nodes=topology.num_nodes,
            profile=profile,
            alpha_meaning=topology.alpha_meaning,
            **nvls,
            **option,
        )
        model = model.under(topology.protocol) if topology.protocol in model.protocols else model
        swapped = _with_costs_of(topology, model)
        if swapped is not None:
            return swapped
        names.append(model.name)
    raise InputError(
        f"found {profile!r}, but {topology.name} has links or resources that {names[0]} does not have; "
        "give a topology with the intended costs",
        where="profile",
    )


def _with_costs_of(topology: Topology, model: Topology) -> Topology | None:
    """Return the topology with the model's costs; None if the model lacks a link or hold of the topology."""
    links = {(e.srcs, e.dsts, e.name): e for e in model.links}
    holds = {(str(model.links[h.link]), model.resources[h.resource].name, h.side): h for h in model.holds}
    try:
        new_links = tuple(links[e.srcs, e.dsts, e.name] for e in topology.links)
        new_holds = [
            holds[str(topology.links[h.link]), topology.resources[h.resource].name, h.side]
            for h in topology.holds
        ]
    except KeyError:
        return None
    return replace(
        topology,
        profile=model.profile,
        protocol=model.protocol,
        launch_us=model.launch_us,
        links=new_links,
        holds=tuple(
            old._replace(alpha_us=new.alpha_us, beta_us_per_mb=new.beta_us_per_mb)
            for old, new in zip(topology.holds, new_holds, strict=True)
        ),
    )


def _differences(topology: Topology, other: Topology) -> Iterator[str]:
    """Yield differences of `other` from the schedule's topology in ranks, links and holds, as text."""
    for name, found, expected in (
        ("ranks", other.num_ranks, topology.num_ranks),
        ("links", len(other.links), len(topology.links)),
        ("resources", len(other.resources), len(topology.resources)),
        ("holds", len(other.holds), len(topology.holds)),
    ):
        if found != expected:
            yield f"{other.name} has {found} {name}, but the schedule's {topology.name} has {expected}"
    for index, (mine, theirs) in enumerate(zip(topology.links, other.links, strict=True)):
        if (mine.srcs, mine.dsts) != (theirs.srcs, theirs.dsts):
            yield f"link {index} of {other.name} is {theirs}, but the schedule's is {mine}"
    for held, holds in zip(topology.holds, other.holds, strict=True):
        if (held.link, held.resource, held.side) != (holds.link, holds.resource, holds.side):
            yield (
                f"link {holds.link} of {other.name} holds {other.resources[holds.resource].name}, where the "
                f"schedule's link {held.link} holds {topology.resources[held.resource].name}"
            )
