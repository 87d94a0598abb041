"""The fields of an upstream algorithm file, each checked; what they mean is for `algorithm`.

The file is what the published TACCL tool writes: nested objects that a field ``sccl_type`` marks. A send is
``[chunk, source, destination, start, link]``, where start is in tenths of the file's unit of time, and a
sixth entry is ``"rrc"`` where it reduces, null where not. Matrices are indexed [destination][source].
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from taccl.arguments import quoted
from taccl.errors import FormatError
from taccl.validation import validated

_REMEDY = "write the file anew with the tool that made it"
#: Costs beyond this, and starts, would overflow the grid of ticks; no machine comes near.
_LARGEST = 10**15
_MOST_DIGITS = 30


class SendEntry(NamedTuple):
    """One entry of a step's sends; `start` is in tenths of the file's unit, `place` the field it is in."""

    chunk: int
    src: int
    dst: int
    start: int
    number: int
    reduces: bool
    place: str


def _cost(value: object) -> Fraction:
    """An exact cost; a number whose fraction would fill the memory is refused before it is made."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST:
        return Fraction(value)
    if isinstance(value, Decimal) and value >= 0 and value.adjusted() <= len(str(_LARGEST)):
        exponent = value.as_tuple().exponent
        if isinstance(exponent, int) and exponent >= -_MOST_DIGITS:
            return Fraction(value)
    raise ValueError(f"found {quoted(value)}; expected a number from 0 to 1e15, with at most 30 decimals")


def _send(entry: object) -> list[Any]:
    if not isinstance(entry, list) or len(entry) not in (5, 6):
        found = f"{len(entry)} entries" if isinstance(entry, list) else quoted(entry)
        raise ValueError(
            f"found {found}; expected [chunk, source, destination, start, link], or a sixth entry that says "
            "whether it reduces"
        )
    for value in entry[:5]:
        if type(value) is not int or not 0 <= value <= _LARGEST:
            raise ValueError(
                f"found {quoted(value)}; expected whole numbers from 0 to 1e15 (start in tenths of the unit)"
            )
    if entry[5:] not in ([], [None], ["rrc"]):
        raise ValueError(f"found {quoted(entry[5])} as the sixth entry; expected 'rrc' (it reduces) or null")
    return entry


_Index = Annotated[int, Field(ge=0, lt=2**31)]
_Count = Annotated[int, Field(ge=1, lt=2**31)]
_Cost = Annotated[Any, BeforeValidator(_cost)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class TopologyFields(_Strict):
    """The tool's topology; matrices are indexed [destination][source], costs are for one chunk."""

    name: str
    copies: _Count
    ngpus_per_node: _Count
    node_links: list[list[_Index]]
    node_invbws: list[list[_Cost]]
    #: -1 or null where there is one node.
    remote_alpha: Any = None
    remote_beta: Any = None
    internode_conn: dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], list[_Index]] | None = None
    local_switches: list[list[_Index]]

    def remote_cost(self, field: str, where: str) -> Fraction:
        """``remote_alpha`` or ``remote_beta``, needed where there are several nodes."""
        try:
            return _cost(getattr(self, field))
        except ValueError as error:
            raise FormatError(
                f"{error}, because there are {self.copies} nodes; {_REMEDY}",
                where=f"{where}: topology.{field}",
            ) from None


class _Chunk(_Strict):
    pre: list[_Index]
    post: list[_Index]
    addr: _Index


class _Collective(_Strict):
    name: str
    nodes: _Count
    chunks: Annotated[list[_Chunk], Field(min_length=1)]
    ranks: list[Any]
    triggers: dict[str, Any] = Field(default_factory=dict)


class _Step(_Strict):
    sends: list[Annotated[Any, BeforeValidator(_send)]]


class _Algorithm(_Strict):
    name: str
    steps: list[_Step]
    collective: _Collective
    topology: TopologyFields


class AlgorithmFile(NamedTuple):
    """A file whose fields have the right types and agree with each other.

    - `where`: The file, for messages.
    - `chunks` (list of (origins, destinations, address))
    """

    where: str
    name: str
    collective: str
    num_ranks: int
    chunks: list[tuple[tuple[int, ...], tuple[int, ...], int]]
    sends: list[SendEntry]
    topology: TopologyFields


def algorithm_file(data: dict[str, Any], *, where: str) -> AlgorithmFile:
    """The fields of a file, from its JSON."""
    if data.get("sccl_type") != "algorithm":
        raise FormatError(
            f"found {quoted(data.get('sccl_type'))}; expected 'algorithm', as in a file that the published "
            "TACCL tool writes when it solves; check the path",
            where=f"{where}: sccl_type",
        )
    fields = validated(_Algorithm, data, source=where, error=FormatError, remedy=f"; {_REMEDY}")
    topology, collective = fields.topology, fields.collective
    num_ranks = topology.copies * topology.ngpus_per_node
    for found, field in ((collective.nodes, "nodes"), (len(collective.ranks), "ranks")):
        if found != num_ranks:
            raise FormatError(
                f"found {found} ranks, but the topology has {topology.copies} x {topology.ngpus_per_node} = "
                f"{num_ranks}; {_REMEDY}",
                where=f"{where}: collective.{field}",
            )
    if collective.triggers:
        raise FormatError(
            f"found {len(collective.triggers)} entries; expected none, because chunks that others trigger "
            "cannot be replayed; use an algorithm without them",
            where=f"{where}: collective.triggers",
        )
    _check_matrices(topology, where)
    chunks = [(tuple(sorted(c.pre)), tuple(sorted(c.post)), c.addr) for c in collective.chunks]
    sends = _sends(fields.steps, num_ranks, where)
    return AlgorithmFile(where, fields.name, collective.name, num_ranks, chunks, sends, topology)


def _check_matrices(topology: TopologyFields, where: str) -> None:
    """Shapes of the matrices, and ranks of connections and switches, fit the number of ranks in a node."""
    size = topology.ngpus_per_node
    for field in ("node_links", "node_invbws"):
        rows = getattr(topology, field)
        wrong = next((i for i, row in enumerate(rows) if len(row) != size), None)
        if len(rows) != size or wrong is not None:
            found = f"{len(rows)} rows" if len(rows) != size else f"a row of {len(rows[wrong or 0])}"
            raise FormatError(
                f"found {found}; expected {size} rows of {size}, as ngpus_per_node says; {_REMEDY}",
                where=f"{where}: topology.{field}",
            )
    named = {f"local_switches[{i}]": ranks for i, ranks in enumerate(topology.local_switches)}
    if topology.copies > 1:
        if not topology.internode_conn:
            raise FormatError(
                f"found none; expected connections between nodes, because there are {topology.copies}; "
                f"{_REMEDY}",
                where=f"{where}: topology.internode_conn",
            )
        for sender, receivers in topology.internode_conn.items():
            named[f"internode_conn[{sender!r}]"] = [int(sender), *receivers]
    for field, ranks in named.items():
        far = next((rank for rank in ranks if rank >= size), None)
        members = ranks[1:] if field.startswith("internode") else ranks
        if far is not None or len(set(members)) < len(members):
            found = f"rank {far}" if far is not None else "a rank twice"
            raise FormatError(
                f"found {found}; expected distinct local ranks 0-{size - 1}; {_REMEDY}",
                where=f"{where}: topology.{field}",
            )


def _sends(steps: list[_Step], num_ranks: int, where: str) -> list[SendEntry]:
    sends = []
    for s, step in enumerate(steps):
        for i, (chunk, src, dst, start, number, *operation) in enumerate(step.sends):
            place = f"steps[{s}].sends[{i}]"
            sends.append(SendEntry(chunk, src, dst, start, number, operation == ["rrc"], place))
            if max(src, dst) >= num_ranks or src == dst:
                raise FormatError(
                    f"found a send from rank {src} to rank {dst}; expected two of ranks 0-{num_ranks - 1}; "
                    f"{_REMEDY}",
                    where=f"{where}: {place}",
                )
    return sends
