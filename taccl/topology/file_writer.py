"""Write topology files that list every link and resource, for `taccl.topology.files` to read."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from decimal import Context, Decimal
from fractions import Fraction

from taccl._internal.reading import toml_text
from taccl.errors import ExportError, LossyConversionWarning, warn
from taccl.topology.parts import links_among
from taccl.topology.topology import Hold, Topology, plain_fields

#: Maximum number of digits before, and after, the decimal point.
_MAX_DIGITS = 30
#: End of the messages of all errors.
_SAVED = "; save it as JSON: taccl.save(topology, 'topology.json')"


def dump_topology(topology: Topology) -> str:
    """Text of a TOML topology file from which `load_topology` builds the same topology.

    The ranks, links, switches, resources and holds are the same; resources and holds may be in another order.
    Costs are exact: those without a decimal form are text such as ``"20/3"``. The topology's notes become
    comments, its assumptions a field. A `LossyConversionWarning` reports that machine and profile become
    comments only, or that a switch has only some of the links among its ranks.

    Raises `ExportError` if the format cannot express the topology. Examples: links without a resource of
    their own, nodes whose ranks are not consecutive, and names with invalid characters. Costs per chunk, as
    in the published TACCL tool, are another. The message suggests `taccl.save`, which writes any topology as
    JSON.
    """
    if topology.cost_model != "physical":
        raise ExportError(
            "a topology file holds costs per byte, but this topology has the published tool's costs per "
            f"chunk{_SAVED}"
        )
    named = topology.machine or topology.profile
    names = "machine, profile and protocol" if topology.protocol else "machine and profile"
    lost = [f"the names of {names}, except as a comment"] if named else []
    lines = [*_comments(topology), "schema = 1", f"name = {toml_text(topology.name)}"]
    if topology.assumed:
        lines += ["assumed = [", *(f"  {toml_text(each)}," for each in topology.assumed), "]"]
    if topology.alpha_meaning != "occupies":
        lines.append(f'alpha_meaning = "{topology.alpha_meaning}"')
    if topology.launch_us:
        lines.append(f"launch_us = {_number(topology.launch_us)}")
    counts = [len(ranks) for ranks in topology.ranks_of_node]
    if list(topology.node_of_rank) != [node for node, count in enumerate(counts) for _ in range(count)]:
        raise ExportError(
            "a topology file numbers ranks node by node, unlike this topology; relabel it first "
            "(taccl.topology.transform.relabel), or save it as JSON: taccl.save(topology, 'topology.json')"
        )
    lines.append(f"nodes = {topology.num_nodes}")
    lines.append(f"ranks_per_node = {counts[0] if len(set(counts)) == 1 else counts}")
    lines += ["", "# Costs in microseconds, and microseconds per MB of 10^6 bytes.", "link = ["]
    own = _own_resources(topology)
    for link, hold in zip(topology.links, own, strict=True):
        held_us, _ = link.held_us(topology.alpha_meaning)
        overhead = f"overhead_us = {_number(hold.alpha_us)}, " if hold.alpha_us != held_us else ""
        alpha = f"alpha_us = {_number(link.alpha_us)}, " if link.alpha_us else ""
        name = f", name = {toml_text(link.name)}" if link.name else ""
        ends = f"src = {_ranks(link.srcs)}, dst = {_ranks(link.dsts)}"
        several = "multicast = true, " if len(link.dsts) > 1 else ""
        several += "own_port = true, " if len(link.srcs) + len(link.dsts) > 2 else ""
        beta = f"beta_us_per_mb = {_number(link.beta_us_per_mb)}"
        lines.append(f"  {{ {ends}, {several}{alpha}{overhead}{beta}{name} }},")
    lines.append("]")
    for switch in topology.switches:
        if links_among(topology.links, switch.ranks) != sorted(switch.links) or len(switch.ranks) < 2:
            lost.append(f"which links run through switch {switch.name!r}, if not all among its ranks")
        if len(switch.ranks) > 1:
            lines += ["", "[[switch]]", f"name = {toml_text(switch.name)}", f"ranks = {list(switch.ranks)}"]
            if switch.reduces is not None:
                told = (
                    f"{name} = {toml_text(value)}" for name, value in plain_fields(switch.reduces).items()
                )
                lines.append(f"reduces = {{ {', '.join(told)} }}")
    lines += _resource_lines(topology, {hold.resource for hold in own})
    for what in dict.fromkeys(lost):
        warn(f"a topology file cannot hold {what}", LossyConversionWarning)
    return "\n".join(lines) + "\n"


def _comments(topology: Topology) -> Iterator[str]:
    named = [(what, getattr(topology, what)) for what in ("machine", "profile", "protocol")]
    told = ", ".join(f"{what} {name}" for what, name in named if name)
    for text in (f"From {told}." if told else "", *topology.notes):
        if text:
            yield "# " + " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _resource_lines(topology: Topology, own: set[int]) -> Iterator[str]:
    """Lines of [[resource]] entries: one entry per resource, rate and side; none for links' own resources."""
    holds_of: dict[int, list[Hold]] = defaultdict(list)
    for hold in topology.holds:
        if hold.resource not in own:
            holds_of[hold.resource].append(hold)
    parallel: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = defaultdict(list)
    for index, link in enumerate(topology.links):
        parallel[link.srcs, link.dsts].append(index)
    taken: set[str] = set()
    for resource, holds in sorted(holds_of.items()):
        name, number = topology.resources[resource].name, 2
        while name in taken:
            name, number = f"{topology.resources[resource].name} ({number})", number + 1
        taken.add(name)
        entries: dict[tuple[str, Fraction | None, Fraction | None], list[int]] = defaultdict(list)
        for hold in holds:
            rate = (hold.alpha_us, hold.beta_us_per_mb)
            as_long = rate == topology.links[hold.link].held_us(topology.alpha_meaning)
            entries[hold.side, *((None, None) if as_long else rate)].append(hold.link)
        for number, ((side, alpha_us, beta_us_per_mb), links) in enumerate(entries.items()):
            if len(set(links)) < len(links):
                twice = next(e for e in links if links.count(e) > 1)
                raise ExportError(
                    f"a topology file lists each hold once, but {topology.links[twice]} holds "
                    f"{topology.resources[resource].name} twice alike{_SAVED}"
                )
            pairs = _named(topology, links, parallel)
            yield from ("", "[[resource]]", f"name = {toml_text(name)}")
            if number:
                yield "continues = true"
            yield f"links = [{', '.join(pairs)}]"
            if side != "send":
                yield f'side = "{side}"'
            if beta_us_per_mb is not None and alpha_us is not None:
                if not beta_us_per_mb:
                    raise ExportError(
                        "a topology file cannot hold resources held for a constant time, as "
                        f"{topology.resources[resource].name} is{_SAVED}"
                    )
                if alpha_us:
                    yield f"alpha_us = {_number(alpha_us)}"
                yield f"beta_us_per_mb = {_number(beta_us_per_mb)}"


def _named(
    topology: Topology,
    links: list[int],
    parallel: Mapping[tuple[tuple[int, ...], tuple[int, ...]], list[int]],
) -> Iterator[str]:
    """Links as a [[resource]] entry lists them: by ranks for all parallel links, else by ranks and name."""
    meant = set(links)
    done: set[int] = set()
    for e in links:
        link = topology.links[e]
        alike = parallel[link.srcs, link.dsts]
        if e in done:
            continue
        ends = f"{_ranks(link.srcs)}, {_ranks(link.dsts)}"
        if meant.issuperset(alike):
            done.update(alike)
            yield f"[{ends}]"
            continue
        is_unique = [topology.links[other].name for other in alike].count(link.name) == 1
        yield f"[{ends}, {toml_text(link.name) if is_unique else alike.index(e)}]"


def _own_resources(topology: Topology) -> list[Hold]:
    """Hold of each link on its own resource."""
    holders = Counter(hold.resource for hold in topology.holds)
    own: list[Hold] = []
    for link, holds in zip(topology.links, topology.holds_of_link, strict=True):
        alpha_us, beta_us_per_mb = link.held_us(topology.alpha_meaning)
        mine = [
            hold
            for hold in holds
            if holders[hold.resource] == 1
            and topology.resources[hold.resource].name == f"link {link}"
            and (hold.beta_us_per_mb, hold.side) == (beta_us_per_mb, "send")
            and hold.alpha_us <= alpha_us
        ]
        if not mine:
            raise ExportError(
                f"in a topology file every link is a resource of its own, and link {link} holds none; "
                "give it one, or save it as JSON: taccl.save(topology, 'topology.json')"
            )
        own.append(mine[0])
    return own


def _ranks(ranks: tuple[int, ...]) -> str:
    return str(ranks[0]) if len(ranks) == 1 else str(list(ranks))


def _number(value: Fraction) -> str:
    """Exact number as decimals if possible, else as the text of a fraction."""
    decimal = Context(prec=2 * _MAX_DIGITS).divide(Decimal(value.numerator), Decimal(value.denominator))
    text = format(decimal, "f")
    whole, _, decimals = text.partition(".")
    if value == Fraction(text) and max(len(whole), len(decimals)) <= _MAX_DIGITS:
        return text
    if max(len(str(value.numerator)), len(str(value.denominator))) > _MAX_DIGITS:
        raise ExportError(f"a topology file holds numbers of at most {_MAX_DIGITS} digits{_SAVED}")
    return f'"{value}"'
