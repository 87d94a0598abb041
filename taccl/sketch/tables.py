"""Tables of a sketch file, such as `chunks` and `internode`, with their fields and validation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    StrictBool,
    Tag,
    WithJsonSchema,
    model_validator,
)

from taccl._internal.units import exact, parse_size
from taccl._internal.validation import Index, Positive, Table


def _kept(check: Callable[[Any], Any]) -> BeforeValidator:
    """Validator that checks a value and keeps it as it was written."""

    def checked_value(value: Any) -> Any:
        check(value)
        return value

    return BeforeValidator(checked_value)


def optional(default: Any, description: str) -> Any:
    """Declare a field of a table, with its default and its description for documentation."""
    return Field(default=default, description=description)


def _check_ranks(ranks: tuple[Any, ...]) -> tuple[Any, ...]:
    if not ranks:
        raise ValueError("found an empty list; expected at least one rank; add one, or remove the entry")
    if len(set(ranks)) != len(ranks):
        raise ValueError(f"found {list(ranks)}; expected each once; remove the repeated one")
    return ranks


LocalRank = Index
LocalRanks = Annotated[
    tuple[LocalRank, ...],
    AfterValidator(_check_ranks),
    Field(json_schema_extra={"minItems": 1, "uniqueItems": True}),
]
#: {local rank: local ranks}. The keys, which are text in TOML and JSON, are converted to numbers here.
PerLocalRank = dict[Annotated[int, Field(ge=0)], LocalRanks]
Pair = tuple[LocalRank, LocalRank]
SketchSize = Annotated[
    Any,
    _kept(parse_size),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string"}, {"type": "null"}]}),
]
Number = Annotated[
    Any, _kept(exact), WithJsonSchema({"anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}]})
]


def _shape(value: Any) -> str:
    if isinstance(value, str):
        return "as-word"
    return "as-pairs" if isinstance(value, (list, tuple)) else "as-table"


Connections = Annotated[
    Annotated[PerLocalRank, Tag("as-table")]
    | Annotated[Literal["fully-connected", "direct-map"], Tag("as-word")],
    Discriminator(_shape),
]


class Chunks(Table):
    """Size and partitioning of chunks."""

    size: SketchSize = optional(None, "Bytes of one chunk: a number, or text such as '1MB'.")
    per_rank: Positive = optional(1, "Number of pieces of each rank's own data. Left out: synthesis chooses.")


class Internode(Table):
    """Connections between nodes, for every ordered pair of nodes."""

    connections: Connections | None = optional(
        None,
        "Receivers in other nodes of every sending local rank; 'direct-map' is i to i. Left out: "
        "every link that the topology has.",
    )
    relays: PerLocalRank | None = optional(
        None, "Local ranks whose chunks a sender carries off the node; a sender without an entry carries any."
    )
    own_before_relayed: StrictBool = optional(False, "A sender's own chunks take priority over relayed ones.")
    crossing: Literal["direct", "any"] = optional(
        "direct",
        "'direct': a chunk crosses only straight from a node where it starts to one that needs "
        "it; 'any': through any node.",
    )

    @model_validator(mode="after")
    def _relays_send(self) -> Self:
        if isinstance(self.connections, dict) and self.relays:
            for sender in self.relays:
                if sender not in self.connections:
                    raise ValueError(
                        f"found relays of local rank {sender}, which sends to no other node; expected a "
                        f"sender of connections ({', '.join(map(str, self.connections))})"
                    )
        return self


class Intranode(Table):
    """Links inside a node that may be used."""

    links: Annotated[
        Annotated[tuple[Pair, ...], Tag("as-pairs")] | Annotated[Literal["all"], Tag("as-word")],
        Discriminator(_shape),
    ] = optional("all", "'all', or the [src, dst] pairs of local ranks that may be used.")


class SwitchSketch(Table):
    """Number of a switch's connections that a routing should use."""

    name: str = optional("", "Name of the switch in messages.")
    ranks: LocalRanks = Field(description="Local ranks that the switch joins.")
    policy: Literal["min-connections", "max-connections", "free"] = optional(
        "free", "Minimise or maximise the number of the switch's connections in use."
    )
    planes: Positive | None = optional(
        None, "Number of parallel links between two ranks that may be used; left out: all."
    )


class Symmetry(Table):
    """Rank r behaves as rank (r + offset) mod group inside its block of `group` ranks."""

    offset: Positive = Field(description="Shift of every rank inside its block.")
    group: int = Field(strict=True, ge=2, description="Number of consecutive ranks in a block.")
    strict: StrictBool = optional(
        False, "Refuse a collective that lacks the symmetry, rather than narrow it."
    )

    @model_validator(mode="after")
    def _moves(self) -> Self:
        if self.offset % self.group == 0:
            raise ValueError(
                f"found offset {self.offset} in groups of {self.group}, which moves no rank; expected an "
                "offset that is no multiple of the group"
            )
        return self


def _check_along(along: tuple[int, ...]) -> tuple[int, ...]:
    if not along or len(set(along)) != len(along):
        raise ValueError(f"found {list(along)}; expected different dimensions; name each once")
    return along


class ProcessGroup(Table):
    """Process groups, such as `dp`: ranks that differ only in some dimensions of the topology."""

    name: Annotated[str, Field(min_length=1)] = Field(description="Name of the groups, such as 'dp'.")
    along: Annotated[tuple[Positive, ...], AfterValidator(_check_along)] = Field(
        description="Dimensions in which the ranks of a group differ, numbered from 1."
    )


def check_group_names(groups: tuple[ProcessGroup, ...]) -> tuple[ProcessGroup, ...]:
    """Check that process groups have different names; return them."""
    names = [group.name for group in groups]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise ValueError(f"found {repeated!r} more than once; expected a different name for each [[group]]")
    return groups


class Objective(Table):
    """Secondary terms of the routing objective, added to the finish."""

    link_use: Literal["free", "min-max", "max-min"] = optional(
        "free", "Minimise the busiest link's load, or maximise the idlest link's."
    )
    weight: Number = optional(0.01, "Weight of the secondary terms relative to the finish.")


class Routing(Table):
    """Limits on detours of paths."""

    slack: Number = optional(0.1, "Allowed relative excess of a chunk's path over its shortest path.")
    max_hops: Positive | None = optional(
        None,
        "Max links on a chunk's path from its origin, and on a contribution's path to the root of its sum.",
    )


class Merging(Table):
    """Sends that may carry more than one chunk."""

    max: Positive = optional(6, "Max chunks per send.")
    links: Literal["internode", "all", "none"] = optional(
        "internode", "Links whose sends may carry more than one chunk."
    )
