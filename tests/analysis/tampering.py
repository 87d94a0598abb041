"""Random witnesses for tests of the checker: found ones with random changes, and invented ones."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, get_type_hints

from taccl.analysis.certificates.borders import Border, SingleMachine
from taccl.analysis.certificates.byte_counting import ByteCounting
from taccl.analysis.certificates.certificate import Witness
from taccl.analysis.certificates.cuts import CutDual, SetCharge
from taccl.analysis.certificates.dynamic_cut import DynamicCut
from taccl.analysis.certificates.exchange_time import ExchangeTime
from taccl.analysis.certificates.first_arrivals import ByteDissemination, Dissemination, Path
from taccl.analysis.certificates.flow_time import FlowTime
from taccl.analysis.certificates.flows import FlowDual
from taccl.analysis.certificates.gossip import Gossip
from taccl.analysis.certificates.hop_time import HopTime
from taccl.analysis.certificates.hub_time import HubTime
from taccl.analysis.certificates.link_time import LinkTime, PlacePrices, TimePrices
from taccl.analysis.certificates.node_entry import NodeEntry
from taccl.analysis.certificates.node_exit import NodeExit
from taccl.analysis.certificates.node_sums import NodeSums
from taccl.analysis.certificates.pair_counting import PairCounting
from taccl.analysis.certificates.rail_exchange import RailExchange
from taccl.analysis.certificates.server_time import ServerTime
from taccl.analysis.certificates.spread_tail import SpreadTail
from taccl.analysis.certificates.sum_flow import SumFlow
from taccl.analysis.certificates.throughput import NodeData

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Sequence

    from taccl.analysis.certificates.certificate import Labels
    from taccl.problem.problem import Problem


def witness_classes() -> list[type[Witness]]:
    """Every class of witnesses of the library, by kind."""
    classes: list[type[Witness]] = [Witness]
    for each in classes:  # the list grows while it is read
        classes += each.__subclasses__()
    ours = (each for each in classes if hasattr(each, "proves") and each.__module__.startswith("taccl."))
    by_kind = {each.kind: each for each in ours}  # of two, the later: `slots=True` makes a class again
    return [by_kind[kind] for kind in sorted(by_kind)]


def made_up(problem: Problem, rng: random.Random, among: Sequence[type[Witness]] = ()) -> Witness:
    """A random witness of any class, or of one in `among`, that names only parts of the problem."""
    chosen: Any = rng.choice(among or witness_classes())
    if chosen in _WELL_FORMED:
        made: Witness = _WELL_FORMED[chosen](problem, rng)
        return made
    types = get_type_hints(chosen)
    made_of = [each for each in fields(chosen) if each.default is MISSING or types[each.name] is bool]
    return chosen(**{each.name: _value(types[each.name], each.name, problem, rng) for each in made_of})


def _value(kind: Any, name: str, problem: Problem, rng: random.Random) -> Any:
    """A random value for a field of a witness, by the field's type and name."""
    num_resources = len(problem.topology.resources)
    if kind is bool:
        return rng.random() < 0.5
    if kind == frozenset[int]:
        return _some(rng, problem.topology.num_ranks)
    if kind is Fraction:
        return Fraction(rng.randrange(1, 60), rng.randint(1, 3))
    if kind is int:
        sizes = {"chunk": problem.collective.num_chunks, "resource": num_resources}
        return rng.randrange(sizes.get(name, problem.topology.num_ranks))
    if kind == tuple[int, ...] and name == "prices":
        return tuple(rng.choice((0, 1, 1, 2, 5)) for _ in range(num_resources))
    if kind == tuple[int, ...] and name in ("resources", "leaving", "entering"):
        return tuple(rng.sample(range(num_resources), num_resources))
    if kind == tuple[tuple[int, int], ...]:  # labels
        times = sorted(rng.sample(range(20), rng.randint(0, 4)))
        return tuple((ticks, rng.randrange(5)) for ticks in times)
    raise TypeError(f"no random {kind} for the field {name!r}: add the class to _WELL_FORMED")


def _dynamic_cut(problem: Problem, rng: random.Random) -> Witness:
    num_ranks = problem.topology.num_ranks
    moments = tuple(rng.randrange(-1, 9) for _ in range(num_ranks))
    return DynamicCut(rng.randrange(num_ranks), moments, backwards=rng.random() < 0.3)


def _spread_tail(problem: Problem, rng: random.Random) -> Witness:
    return SpreadTail(
        tuple(_some(rng, problem.topology.num_ranks) for _ in range(rng.choice((0, 1, 1, 2)))),
        rng.randrange(-1, 4),
        rng.randrange(-1, 6),
        backwards=rng.random() < 0.3,
    )


def _byte_dissemination(problem: Problem, rng: random.Random) -> Witness:
    ranks, every = frozenset({rng.randrange(problem.topology.num_ranks)}), len(problem.topology.resources)
    return ByteDissemination(
        ranks, tuple(rng.sample(range(every), rng.randint(0, every))), rng.random() < 0.3
    )


def _dissemination(problem: Problem, rng: random.Random) -> Witness:
    num_ranks = problem.topology.num_ranks
    times = [tuple(sorted(rng.randrange(9) for _ in range(rng.randint(1, num_ranks)))) for _ in range(2)]
    return Dissemination(_some(rng, num_ranks), *times)


def _flow_time(problem: Problem, rng: random.Random) -> Witness:
    num_ranks, num_resources = problem.topology.num_ranks, len(problem.topology.resources)
    resources = [tuple(rng.sample(range(num_resources), num_resources)) for _ in range(2)]
    prices = Fraction(rng.randrange(40), 3), Fraction(rng.randrange(40), 3)
    return FlowTime(rng.randrange(num_ranks), rng.randrange(num_ranks), *resources, prices)


def _server_time(problem: Problem, rng: random.Random) -> Witness:
    num_ranks, num_resources = problem.topology.num_ranks, len(problem.topology.resources)
    resources = [tuple(rng.sample(range(num_resources), num_resources)) for _ in range(2)]
    return ServerTime(rng.randrange(num_ranks), *resources, Fraction(rng.randrange(13), 12))


def _link_time(problem: Problem, rng: random.Random) -> Witness:
    steps, num_ranks = rng.randint(1, 9), problem.topology.num_ranks
    places = tuple(
        PlacePrices((k,), tuple(sorted((rng.randrange(9) for _ in range(steps + 1)), reverse=True)))
        for k in range(2)
    )
    times = tuple(TimePrices((k,), (k + 1,), tuple(rng.randrange(9) for _ in range(steps))) for k in range(2))
    ring, horizon = rng.random() < 0.5, Fraction(rng.randrange(1, 60))
    return LinkTime(horizon, (num_ranks,), (ring,), steps, rng.randrange(3), times, places)


def _hop_time(problem: Problem, rng: random.Random) -> Witness:
    num_resources = len(problem.topology.resources)
    resources = tuple(rng.sample(range(num_resources), num_resources))
    hops = [tuple(Fraction(rng.randrange(60), 3) for _ in range(rng.randint(1, 3))) for _ in range(2)]
    return HopTime(Fraction(rng.randrange(1, 60)), resources, tuple(hops[: rng.randint(1, 2)]))


def _hub_time(problem: Problem, rng: random.Random) -> Witness:
    del problem
    return HubTime(Fraction(rng.randrange(1, 60)), *_prices_and_factors(rng), rng.random() < 0.5)


def _exchange_time(problem: Problem, rng: random.Random) -> Witness:
    del problem
    horizon = Fraction(rng.randrange(1, 60))
    return ExchangeTime(horizon, *_prices_and_factors(rng), *_prices_and_factors(rng))


def _node_entry(problem: Problem, rng: random.Random) -> Witness:
    cells, topology = rng.randint(1, 4), problem.topology
    times = tuple(sorted(rng.sample(range(60), cells + 1)))
    prices = [tuple(rng.choice((0, 10**8, 10**9, 10**10)) for _ in range(cells)) for _ in range(2)]
    credits = tuple(sorted((rng.choice((0, 10**8, 10**9)) for _ in range(cells)), reverse=True))
    node = frozenset(rng.choice(topology.ranks_of_node))
    every = tuple(range(len(topology.resources)))
    return NodeEntry(node, every, every, times, *prices, credits, rng.random() < 0.5)


def _node_exit(problem: Problem, rng: random.Random) -> Witness:
    del problem
    ports, nics = sorted((_prices_and_factors(rng) for _ in range(2)), key=lambda each: len(each[0]))
    return NodeExit(Fraction(rng.randrange(1, 20)), *ports, *nics)


def _prices_and_factors(rng: random.Random) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Prices by time, and factors by length, for 2 to 6 cells."""
    cells = rng.randint(2, 6)
    prices, factors = (tuple(rng.randrange(1, 9) * scale for _ in range(cells + 1)) for scale in (1, 10**6))
    return prices, tuple(sorted(factors, reverse=True))


def _single_machine(problem: Problem, rng: random.Random) -> Witness:
    family = rng.choice(("rank", "node"))
    ends = tuple(sorted(rng.randrange(9) for _ in range(rng.randint(1, 6))))
    resource = rng.randrange(len(problem.topology.resources))
    return SingleMachine(resource, family, rng.random() < 0.5, rng.randrange(3), ends)


def _cut_dual(problem: Problem, rng: random.Random) -> CutDual:
    prices = tuple(rng.choice((0, 1, 1, 2, 5)) for _ in problem.topology.resources)
    parts = [_parts(rng, problem.topology.num_ranks) for _ in range(rng.randint(1, 3))]
    return CutDual(prices, tuple(SetCharge(each, _charge(rng)) for each in parts))


def _node_data(problem: Problem, rng: random.Random) -> Witness:
    return NodeData(rng.randrange(problem.topology.num_nodes), _cut_dual(problem, rng))


#: {class: function that makes a random witness of it}, for classes whose fields have a form of their own.
_WELL_FORMED = {
    DynamicCut: _dynamic_cut,
    SpreadTail: _spread_tail,
    Dissemination: _dissemination,
    ByteDissemination: _byte_dissemination,
    FlowTime: _flow_time,
    ServerTime: _server_time,
    LinkTime: _link_time,
    HopTime: _hop_time,
    HubTime: _hub_time,
    ExchangeTime: _exchange_time,
    NodeEntry: _node_entry,
    NodeExit: _node_exit,
    SingleMachine: _single_machine,
    CutDual: _cut_dual,
    NodeData: _node_data,
}


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
    if isinstance(witness, ByteCounting | ByteDissemination):
        if rng.random() < 0.2:
            return replace(witness, backwards=not witness.backwards)
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
        how = rng.choice(("horizon", "steps", "per_send", "places", "times", "rings"))
        if how == "horizon":
            return replace(witness, horizon=witness.horizon * Fraction(rng.randrange(90, 130), 100))
        if how == "places":
            return replace(witness, places=witness.places[: rng.randint(0, len(witness.places))])
        if how == "rings":
            return replace(witness, rings=tuple(rng.random() < 0.5 for _ in witness.rings))
        if how == "times":
            share = Fraction(rng.randrange(80, 120), 100)
            return replace(
                witness,
                times=tuple(
                    each._replace(prices=tuple(int(price * share) for price in each.prices))
                    for each in witness.times
                ),
            )
        return replace(witness, **{how: getattr(witness, how) + rng.choice((-1, 1, 1000))})
    if isinstance(witness, HubTime | ExchangeTime | NodeExit):
        how = rng.choice([field.name for field in fields(witness)])
        if how in ("horizon", "window"):
            return replace(witness, **{how: getattr(witness, how) * Fraction(rng.randrange(90, 130), 100)})
        some = list(getattr(witness, how))
        some[rng.randrange(len(some))] += rng.choice((-1, 1, 1000))
        return replace(witness, **{how: tuple(some)})
    if isinstance(witness, SumFlow):
        if rng.random() < 0.5:
            some = tuple(rng.sample(witness.resources, rng.randint(0, len(witness.resources))))
            return replace(witness, resources=some)
        how = rng.choice(("horizon", "price"))
        return replace(witness, **{how: Fraction(rng.randrange(30), 10) * getattr(witness, how)})
    if isinstance(witness, NodeEntry):
        how = rng.choice(("times", "entry_prices", "inner_prices", "credits"))
        some = list(getattr(witness, how))
        some[rng.randrange(len(some))] += rng.choice((-1, 1, 1000, 10**8))
        return replace(witness, **{how: tuple(some)})
    if isinstance(witness, NodeSums | RailExchange):
        some = tuple(rng.sample(witness.resources, rng.randint(0, len(witness.resources))))
        return replace(witness, resources=some)
    if isinstance(witness, NodeData):
        if rng.random() < 0.3:
            return replace(witness, node=rng.randrange(problem.topology.num_nodes))
        return replace(witness, inner=changed(witness.inner, problem, rng))
    if isinstance(witness, DynamicCut):
        moments = list(witness.joins_at)
        moments[rng.randrange(num_ranks)] += rng.choice((-3, -1, 1, 3))
        return replace(witness, joins_at=tuple(moments))
    if not isinstance(witness, FlowDual | CutDual):
        return _other_value(witness, problem, rng)
    if isinstance(witness, FlowDual) or not witness.charges or rng.random() < 0.4:
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


def _other_value(witness: Any, problem: Problem, rng: random.Random) -> Witness:
    """The witness with another random value of one field."""
    types = get_type_hints(type(witness))
    name = rng.choice([each.name for each in fields(witness) if each.name not in labels_of(witness)])
    found: Witness = replace(witness, **{name: _value(types[name], name, problem, rng)})
    return found


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
