"""Variants of a problem under another size, alpha meaning, profile, or topology costs.

Links, resources, initial data, chunks and clauses stay; only bytes and costs change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from taccl._internal.arguments import known_word
from taccl._internal.units import parse_size
from taccl.errors import InputError
from taccl.problem.problem import Problem
from taccl.topology.machines import SHAPES
from taccl.topology.profiles import profile_of
from taccl.topology.registry import machine_names, parse
from taccl.topology.topology import Hold, Topology


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
    """Scale every chunk in proportion, rounded up to whole bytes as `make_problem` pads."""
    if problem.size_bytes is None:
        raise InputError(
            "the schedule's own size is not known, so nothing can be scaled from it; leave the size out",
            where="size",
        )
    size_chunks = problem.collective.size_chunks
    whole = -(-problem.size_bytes // size_chunks) if size_chunks else 0
    if set(problem.chunk_bytes) == {whole}:
        chunk_bytes = (-(-size_bytes // size_chunks),) * len(problem.chunk_bytes)
    else:
        chunk_bytes = tuple(-(-each * size_bytes // problem.size_bytes) for each in problem.chunk_bytes)
    return replace(problem, chunk_bytes=chunk_bytes, size_bytes=size_bytes)


def _with_alpha(topology: Topology, alpha: str) -> Topology:
    """Set or remove alpha in each link's own hold, and in switch ports that are held as long."""
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
            replace(hold, alpha_us=kept_us(hold.link)) if follows(hold) else hold for hold in topology.holds
        ),
    )


def _with_profile(topology: Topology, profile: str) -> Topology:
    """Replace the costs by those of another profile of the machine, matching links by ends and name."""
    if topology.machine not in machine_names():
        raise InputError(
            f"found {profile!r}, but {topology.name} is not made from a machine model "
            f"({', '.join(machine_names())}); give a topology with the costs that you mean",
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
        "give a topology with the costs that you mean",
        where="profile",
    )


def _with_costs_of(topology: Topology, model: Topology) -> Topology | None:
    """Return the topology with the model's costs; None if the model lacks one of its links or holds."""
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
            replace(old, alpha_us=new.alpha_us, beta_us_per_mb=new.beta_us_per_mb)
            for old, new in zip(topology.holds, new_holds, strict=True)
        ),
    )


def _differences(topology: Topology, other: Topology) -> Iterator[str]:
    """Yield the differences between `other` and the schedule's topology: ranks, links, and holds."""
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
