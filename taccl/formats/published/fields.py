"""Fields of an upstream algorithm file, with checks of their types; `algorithm` interprets them.

The published TACCL tool writes nested objects, each marked by a field ``sccl_type``. Matrices are indexed
[destination][source], and costs are for one chunk.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, model_validator

from taccl._internal.arguments import quoted
from taccl._internal.validation import Cost, validated
from taccl.errors import FormatError

REMEDY = "write the file anew with the tool that made it"

#: Index of a rank, chunk or link; then a start, limited so that the tick grid does not overflow.
_Index = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
_Count = Annotated[int, Field(strict=True, ge=1, lt=2**31)]
_Tenths = Annotated[int, Field(strict=True, ge=0, le=10**15)]


class _FileObject(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class SendEntry(NamedTuple):
    """One send of a step; `start` is in tenths of the file's unit, and `number` is the parallel link's."""

    chunk: _Index
    src: _Index
    dst: _Index
    start: _Tenths
    number: _Index
    operation: Literal["rrc"] | None = None


def _as_list(entry: object) -> object:
    if not isinstance(entry, list) or len(entry) not in (5, 6):
        raise ValueError(
            f"found {quoted(entry)}; expected [chunk, source, destination, start, link], and 'rrc' or null"
        )
    return entry


class TopologyFields(_FileObject):
    """The tool's topology; with one node, fields for links between nodes are -1 or null."""

    name: str
    copies: _Count
    ngpus_per_node: _Count
    node_links: list[list[_Index]]
    node_invbws: list[list[Cost]]
    remote_alpha: Any = None
    remote_beta: Any = None
    internode_conn: dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], list[_Index]] | None = None
    local_switches: list[list[_Index]]

    @model_validator(mode="after")
    def _fits_a_node(self) -> Self:
        size = self.ngpus_per_node
        for field in ("node_links", "node_invbws"):
            if [len(row) for row in getattr(self, field)] != [size] * size:
                raise ValueError(f"found {field} of another shape; expected {size} rows of {size}; {REMEDY}")
        named = {f"local_switches[{i}]": ranks for i, ranks in enumerate(self.local_switches)}
        if self.copies > 1:
            if not self.internode_conn:
                raise ValueError(f"found no internode_conn; expected connections between nodes; {REMEDY}")
            named |= {f"internode_conn[{src!r}]": dsts for src, dsts in self.internode_conn.items()}
            named["internode_conn"] = [int(sender) for sender in self.internode_conn]
        for field, ranks in named.items():
            if max(ranks, default=0) >= size or len(set(ranks)) < len(ranks):
                found = quoted(str(ranks))
                raise ValueError(
                    f"found {field} {found}; expected distinct local ranks 0-{size - 1}; {REMEDY}"
                )
        return self


class ChunkFields(_FileObject):
    """A chunk: ranks where it starts (`pre`) and must end (`post`), and its address in their buffers."""

    pre: list[_Index]
    post: list[_Index]
    addr: _Index


class CollectiveFields(_FileObject):
    """The tool's collective."""

    name: str
    nodes: _Count
    chunks: Annotated[list[ChunkFields], Field(min_length=1)]
    ranks: list[Any]
    triggers: Annotated[dict[str, Any], Field(max_length=0)] = Field(default_factory=dict)


class _StepFields(_FileObject):
    sends: list[Annotated[SendEntry, BeforeValidator(_as_list)]]


class AlgorithmFile(_FileObject):
    """A file whose fields have the right types and agree with each other."""

    sccl_type: Literal["algorithm"]
    name: str
    steps: list[_StepFields]
    collective: CollectiveFields
    topology: TopologyFields

    _source: str = PrivateAttr(default="")

    @property
    def where(self) -> str:
        """Name of the file for error messages."""
        return self._source

    @property
    def num_ranks(self) -> int:
        """Number of ranks of all nodes."""
        return self.topology.copies * self.topology.ngpus_per_node

    @property
    def sends(self) -> list[tuple[str, SendEntry]]:
        """All sends, each with the path of its field."""
        return [
            (f"steps[{s}].sends[{i}]", send)
            for s, step in enumerate(self.steps) for i, send in enumerate(step.sends)
        ]  # fmt: skip

    @model_validator(mode="after")
    def _agree(self) -> Self:
        num_ranks = self.num_ranks
        for found, field in ((self.collective.nodes, "nodes"), (len(self.collective.ranks), "ranks")):
            if found != num_ranks:
                raise ValueError(
                    f"found {found} ranks in collective.{field}, but the topology has {num_ranks}; {REMEDY}"
                )
        for place, send in self.sends:
            if max(send.src, send.dst) >= num_ranks or send.src == send.dst:
                raise ValueError(
                    f"found a send from rank {send.src} to rank {send.dst} in {place}; expected two of ranks "
                    f"0-{num_ranks - 1}; {REMEDY}"
                )
        return self


def algorithm_file(data: dict[str, Any], *, where: str) -> AlgorithmFile:
    """Fields of a file from its JSON; `FormatError` names a field that is invalid."""
    file = validated(AlgorithmFile, data, source=where, error=FormatError, remedy=f"; {REMEDY}")
    file._source = where
    return file
