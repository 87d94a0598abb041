"""Random witnesses for tests of the checker: found ones with random changes, and invented ones."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from taccl.analysis.certificates.borders import Border, SingleMachine
from taccl.analysis.certificates.byte_counting import ByteCounting
from taccl.analysis.certificates.cuts import CutDual, SetCharge
from taccl.analysis.certificates.dynamic_cut import DynamicCut
from taccl.analysis.certificates.first_arrivals import Dissemination, Path
from taccl.analysis.certificates.flow_time import FlowTime
from taccl.analysis.certificates.flows import FlowDual
from taccl.analysis.certificates.gossip import Gossip
from taccl.analysis.certificates.hub_time import HubTime
from taccl.analysis.certificates.link_time import HopPrice, LinkTime
from taccl.analysis.certificates.node_sums import NodeSums
from taccl.analysis.certificates.pair_counting import PairCounting
from taccl.analysis.certificates.spread_tail import SpreadTail
from taccl.analysis.certificates.sum_flow import SumFlow
from taccl.analysis.certificates.switch_counting import SwitchSums

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

    from taccl.analysis.certificates.certificate import Labels, Witness
    from taccl.problem.problem import Problem


def made_up(problem: Problem, rng: random.Random) -> Witness:
    """A random witness of any kind that names only ranks, chunks and resources of the problem."""
    num_ranks, num_resources = problem.topology.num_ranks, len(problem.topology.resources)
    kind = rng.choice(
        (
            "path",
            "border",
            "gossip",
            "moving",
            "spread",
            "known",
            "pairs",
            "bytes",
            "flow time",
            "link time",
            "hub time",
            "sum flow",
            "node sums",
            "switch sums",
            "single machine",
            "sets",
            "paths",
        )
    )
    if kind == "path":
        return Path(rng.randrange(problem.collective.num_chunks), rng.randrange(num_ranks))
    if kind == "border":
        return Border(_some(rng, num_ranks), rng.random() < 0.5)
    if kind == "gossip":
        return Gossip(_some(rng, num_ranks))
    if kind == "moving":
        moments = tuple(rng.randrange(-1, 9) for _ in range(num_ranks))
        return DynamicCut(rng.randrange(num_ranks), moments, backwards=rng.random() < 0.3)
    if kind == "spread":
        return SpreadTail(
            tuple(_some(rng, num_ranks) for _ in range(rng.choice((0, 1, 1, 2)))),
            rng.randrange(-1, 4),
            rng.randrange(-1, 6),
            backwards=rng.random() < 0.3,
        )
    if kind == "known":
        times = [tuple(sorted(rng.randrange(9) for _ in range(rng.randint(1, num_ranks)))) for _ in range(2)]
        return Dissemination(_some(rng, num_ranks), *times)
    if kind == "pairs":
        return PairCounting(_some(rng, num_ranks))
    if kind == "bytes":
        return ByteCounting(_some(rng, num_ranks), tuple(rng.sample(range(num_resources), num_resources)))
    if kind == "flow time":
        resources = [tuple(rng.sample(range(num_resources), num_resources)) for _ in range(2)]
        prices = Fraction(rng.randrange(40), 3), Fraction(rng.randrange(40), 3)
        return FlowTime(rng.randrange(num_ranks), rng.randrange(num_ranks), *resources, prices)
    if kind == "link time":
        prices = tuple(
            HopPrice((k,), (k + 1,), rng.randrange(3), rng.randint(1, 3), rng.randrange(9)) for k in range(2)
        )
        return LinkTime(
            Fraction(rng.randrange(1, 60)), (num_ranks,), rng.randint(1, 9), 3, rng.randrange(3), prices
        )
    if kind == "hub time":
        cells = rng.randint(2, 6)
        prices, factors = (
            tuple(rng.randrange(1, 9) * scale for _ in range(cells + 1)) for scale in (1, 10**6)
        )
        return HubTime(Fraction(rng.randrange(1, 60)), prices, tuple(sorted(factors, reverse=True)))
    if kind == "sum flow":
        resources = tuple(rng.sample(range(num_resources), num_resources))
        return SumFlow(resources, Fraction(rng.randrange(60), 2), Fraction(rng.randrange(20), 3))
    if kind == "node sums":
        return NodeSums(tuple(rng.sample(range(num_resources), num_resources)))
    if kind == "switch sums":
        return SwitchSums(rng.randrange(num_resources))
    if kind == "single machine":
        family = rng.choice(("rank", "node"))
        ends = tuple(sorted(rng.randrange(9) for _ in range(rng.randint(1, 6))))
        return SingleMachine(rng.randrange(num_resources), family, rng.random() < 0.5, rng.randrange(3), ends)
    prices = tuple(rng.choice((0, 1, 1, 2, 5)) for _ in range(num_resources))
    if kind == "paths":
        return FlowDual(prices)
    charges = [SetCharge(_parts(rng, num_ranks), _charge(rng)) for _ in range(rng.randint(1, 3))]
    return CutDual(prices, tuple(charges))


def labels_of(witness: Any) -> dict[str, Labels]:
    """{field: labels ((ticks, max number), ...)} of a witness; empty if the witness has no labels."""
    fields = (
        ()
        if isinstance(witness, Dissemination)
        else ("awake", "inside", "entered", "pairs", "collected", "spread")
    )
    return {name: labels for name in fields if (labels := getattr(witness, name, ()))}


def changed(witness: Witness, problem: Problem, rng: random.Random) -> Witness:
    """The witness with one random change."""
    num_ranks = problem.topology.num_ranks
    if labels_of(witness) and rng.random() < 0.5:
        return relabelled(witness, rng.choice(sorted(labels_of(witness))), rng)
    if isinstance(witness, Path):
        if rng.random() < 0.5:
            return replace(witness, chunk=rng.randrange(problem.collective.num_chunks))
        return replace(witness, destination=rng.randrange(num_ranks))
    if isinstance(witness, Border):
        if rng.random() < 0.3:
            return replace(witness, entering=not witness.entering)
        return replace(witness, ranks=witness.ranks ^ {rng.randrange(num_ranks)})
    if isinstance(witness, SingleMachine):
        if rng.random() < 0.3:
            return replace(witness, entering=not witness.entering)
        if witness.ends and rng.random() < 0.6:
            ends = list(witness.ends)
            ends[rng.randrange(len(ends))] += rng.choice((-1, 1, 3))
            return replace(witness, ends=tuple(ends))
        if rng.random() < 0.3:
            return replace(witness, tail=witness.tail + rng.choice((-1, 1)))
        return replace(witness, resource=rng.randrange(len(problem.topology.resources)))
    if isinstance(witness, SpreadTail):
        how = rng.choice(("ranks", "least", "last", "backwards"))
        if how == "backwards":
            return replace(witness, backwards=not witness.backwards)
        if how == "ranks":
            sets = [ranks ^ {rng.randrange(num_ranks)} for ranks in witness.sets]
            return replace(witness, sets=tuple(sets[: rng.randint(0, len(sets))]))
        return replace(witness, **{how: getattr(witness, how) + rng.choice((-1, 1))})
    if isinstance(witness, Dissemination) and rng.random() < 0.5:
        field = rng.choice(("anywhere", "inside"))
        times = list(getattr(witness, field))
        times[rng.randrange(len(times))] += rng.choice((-1, 1))
        return replace(witness, **{field: tuple(times)})
    if isinstance(witness, Dissemination | PairCounting | Gossip):
        return replace(witness, ranks=witness.ranks ^ {rng.randrange(num_ranks)})
    if isinstance(witness, ByteCounting):
        if rng.random() < 0.5:
            return replace(witness, ranks=witness.ranks ^ {rng.randrange(num_ranks)})
        return replace(
            witness, resources=tuple(rng.sample(witness.resources, rng.randint(0, len(witness.resources))))
        )
    if isinstance(witness, FlowTime):
        how = rng.choice(("source", "target", "leaving", "entering", "prices"))
        if how in ("source", "target"):
            return replace(witness, **{how: rng.randrange(num_ranks)})
        if how == "prices":
            scale = Fraction(rng.randrange(1, 30), 10)
            return replace(witness, prices=tuple(scale * price for price in witness.prices))
        some = getattr(witness, how)
        return replace(witness, **{how: tuple(rng.sample(some, rng.randint(0, len(some))))})
    if isinstance(witness, LinkTime):
        how = rng.choice(("horizon", "steps", "per_send", "prices"))
        if how == "horizon":
            return replace(witness, horizon=witness.horizon * Fraction(rng.randrange(90, 130), 100))
        if how == "prices":
            return replace(witness, prices=witness.prices[: rng.randint(0, len(witness.prices))])
        return replace(witness, **{how: getattr(witness, how) + rng.choice((-1, 1, 1000))})
    if isinstance(witness, HubTime):
        how = rng.choice(("horizon", "prices", "factors"))
        if how == "horizon":
            return replace(witness, horizon=witness.horizon * Fraction(rng.randrange(90, 130), 100))
        some = list(getattr(witness, how))
        some[rng.randrange(len(some))] += rng.choice((-1, 1, 1000))
        return replace(witness, **{how: tuple(some)})
    if isinstance(witness, SumFlow):
        if rng.random() < 0.5:
            some = tuple(rng.sample(witness.resources, rng.randint(0, len(witness.resources))))
            return replace(witness, resources=some)
        how = rng.choice(("horizon", "price"))
        return replace(witness, **{how: Fraction(rng.randrange(30), 10) * getattr(witness, how)})
    if isinstance(witness, NodeSums):
        some = tuple(rng.sample(witness.resources, rng.randint(0, len(witness.resources))))
        return replace(witness, resources=some)
    if isinstance(witness, DynamicCut):
        moments = list(witness.joins_at)
        moments[rng.randrange(num_ranks)] += rng.choice((-3, -1, 1, 3))
        return replace(witness, joins_at=tuple(moments))
    if isinstance(witness, FlowDual) or rng.random() < 0.4:
        prices = list(witness.prices)
        r = rng.randrange(len(prices))
        prices[r] = rng.choice((0, prices[r] + 1, 2 * prices[r], -1))
        return replace(witness, prices=tuple(prices))
    charges = list(witness.charges)
    i = rng.randrange(len(charges))
    how = rng.choice(("charge", "drop", "twice", "parts"))
    if how == "drop":
        del charges[i]
    elif how == "twice":
        charges.append(charges[i])
    elif how == "charge":
        charges[i] = replace(charges[i], charge=charges[i].charge * rng.choice((2, Fraction(3, 2), -1)))
    else:
        charges[i] = replace(charges[i], parts=_parts(rng, num_ranks))
    return replace(witness, charges=tuple(charges))


def relabelled(witness: Any, field: str, rng: random.Random) -> Witness:
    """The witness with one label's time or number changed, or with the label removed."""
    labels = list(getattr(witness, field))
    place = rng.randrange(len(labels))
    ticks, most = labels[place]
    how = rng.choice(("later", "earlier", "fewer", "dropped"))
    if how == "dropped":
        del labels[place]
    else:
        more = {"later": rng.choice((1, 3)), "earlier": -1}.get(how, 0)
        labels[place] = (ticks + more, most - (how == "fewer"))
    found: Witness = replace(witness, **{field: tuple(labels)})
    return found


def with_one_number(value: Any, convert: Callable[[Any], Any]) -> Iterator[Any]:
    """Yield a copy of a witness for each number in it, truth values included, with that number converted."""
    if isinstance(value, int | Fraction):
        yield convert(value)
    elif is_dataclass(value) and not isinstance(value, type):
        for each in fields(value):
            for other in with_one_number(getattr(value, each.name), convert):
                yield replace(value, **{each.name: other})
    elif isinstance(value, tuple | frozenset):
        parts = list(value)
        for i, part in enumerate(parts):
            for other in with_one_number(part, convert):
                changed_parts = [*parts[:i], other, *parts[i + 1 :]]
                named = hasattr(value, "_fields")
                yield type(value)(*changed_parts) if named else type(value)(changed_parts)


def _some(rng: random.Random, num_ranks: int) -> frozenset[int]:
    return frozenset(r for r in range(num_ranks) if rng.random() < 0.5)


def _parts(rng: random.Random, num_ranks: int) -> tuple[frozenset[int], ...]:
    """One random set of ranks, or several that are mostly disjoint."""
    if rng.random() < 0.6:
        return (_some(rng, num_ranks) or frozenset((0,)),)
    number = [rng.randrange(3) for _ in range(num_ranks)]
    parts = [frozenset(r for r in range(num_ranks) if number[r] == i) for i in range(3)]
    if rng.random() < 0.2:
        parts[0] = parts[0] | {rng.randrange(num_ranks)}
    return tuple(part for part in parts if part)


def _charge(rng: random.Random) -> Fraction:
    return Fraction(rng.randint(0, 6), rng.randint(1, 4))
