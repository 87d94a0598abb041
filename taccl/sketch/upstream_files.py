"""Fields of the published TACCL tool's sketch and topology files, and conversion of its sketches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PrivateAttr, StrictBool, model_validator

from taccl._internal.units import exact
from taccl._internal.validation import Index, Positive, Table, validated
from taccl.errors import SketchError, TopologyError
from taccl.sketch.sketch import Sketch
from taccl.sketch.tables import Connections, LocalRanks, PerLocalRank

Cost = Annotated[Any, BeforeValidator(lambda value: exact(_number(value)))]
OptionalCost = Annotated[Any, BeforeValidator(lambda value: None if value is None else exact(_number(value)))]
Matrix = tuple[tuple[Cost, ...], ...]

_POLICIES = {"uc-min": "min-connections", "uc-max": "max-connections"}
_LINK_USE = {"none": "free", "switch": "free", "minmax": "min-max", "maxmin": "max-min"}

#: {field of `Sketch`: field in a sketch file of the published TACCL tool}, for messages.
_FIELDS = {
    "nodes": "nnodes",
    "internode": "internode_sketch",
    "internode.connections": "internode_sketch.internode_conn",
    "internode.relays": "internode_sketch.gpus_to_sender_rev_map",
    "internode.own_before_relayed": "internode_sketch.enforce_ordering",
    "switch": "intranode_sketch.switches",
    "symmetry": "symmetry_offsets",
    "objective.link_use": "intranode_sketch.strategy",
    "chunks.per_rank": "hyperparameters.input_chunkup",
}


def _number(value: Any) -> Any:
    if value is None or isinstance(value, (str, bool, list, dict)):
        raise ValueError(f"found {value!r}; expected a number; correct the value")
    return value


class UpstreamTopologyFile(Table):
    """Topology file of the published TACCL tool; costs are for one chunk, in a unit that it does not name.

    Matrices are indexed [destination][source].
    """

    name: str
    gpus_per_node: Positive
    nics_per_node: int | None = Field(default=None, strict=True)
    alpha: Cost
    node_betas_list: tuple[Cost, ...] | None = None
    node_invbws_list: tuple[Cost, ...] | None = None
    remote_alpha: OptionalCost = None
    remote_beta: OptionalCost = None
    remote_invbw: OptionalCost = None
    links: tuple[tuple[Index, ...], ...] | None = None
    betas: Matrix | None = None
    invbws: Matrix | None = None

    _source: str = PrivateAttr(default="")

    @property
    def source(self) -> str:
        """Path of the file."""
        return self._source

    def where(self, field: str) -> str:
        """``"file: field"`` for messages."""
        return f"{self._source}: {field}"

    @model_validator(mode="after")
    def _costs_of_node(self) -> Self:
        lists, matrices = ("node_betas_list", "node_invbws_list"), ("links", "betas", "invbws")
        wanted = lists if self.links is None else matrices
        for field in wanted:
            if getattr(self, field) is None:
                raise ValueError(
                    f"found no {field}; expected {' and '.join(wanted)}; add it (a custom topology has "
                    f"{', '.join(matrices)} instead)"
                )
        if self.links is None:
            return self
        for field in lists:
            if getattr(self, field) is not None:
                raise ValueError(f"found {field} beside links; expected one of the two; remove one")
        size = self.gpus_per_node
        for field in matrices:
            if [len(row) for row in getattr(self, field)] != [size] * size:
                raise ValueError(
                    f"found {field} of another shape; expected {size} rows of {size}; correct it"
                )
        return self


class _Intranode(Table):
    strategy: Literal["none", "minmax", "maxmin", "switch"]
    switches: tuple[LocalRanks, ...] | None = None
    switch_hyperedge_strategy: tuple[Literal["uc-min", "uc-max"], ...] | None = None

    @model_validator(mode="after")
    def _switches_if_asked(self) -> Self:
        given = (self.switches or (), self.switch_hyperedge_strategy or ())
        if self.strategy != "switch" and any(given):
            raise ValueError(
                f"found switches beside strategy {self.strategy!r}, which ignores them; expected strategy "
                "'switch'; correct one of the two"
            )
        if self.strategy == "switch" and (not given[0] or len(given[0]) != len(given[1])):
            raise ValueError(
                f"found {len(given[0])} switches and {len(given[1])} entries of switch_hyperedge_strategy; "
                "expected one for each of at least one switch; correct the lists"
            )
        return self


class _Internode(Table):
    strategy: Literal["relay"]
    internode_conn: Connections
    gpus_to_sender_rev_map: PerLocalRank | None = None
    enforce_ordering: StrictBool = False


class _Hyperparameters(Table):
    input_chunkup: Positive = 1
    #: Field that the published tool does not use.
    heuristic: Any = None


class _SketchFile(Table):
    nnodes: Positive
    intranode_sketch: _Intranode
    internode_sketch: _Internode | None = None
    symmetry_offsets: tuple[tuple[Positive, Positive], ...] = ()
    hyperparameters: _Hyperparameters = _Hyperparameters()

    @model_validator(mode="after")
    def _connected(self) -> Self:
        if self.nnodes > 1 and self.internode_sketch is None:
            raise ValueError(
                f"found nnodes {self.nnodes} and no internode_sketch; expected connections between nodes; "
                "add them"
            )
        return self


def topology_from_file(data: Mapping[str, Any], *, source: str) -> UpstreamTopologyFile:
    """Fields of a topology file, from its JSON. Raises `TopologyError` for a wrong field."""
    file = validated(UpstreamTopologyFile, data, source=source, error=TopologyError)
    file._source = source
    return file


def sketch_from_file(data: Mapping[str, Any], *, source: str, name: str) -> Sketch:
    """Sketch from a sketch file of the published tool. Raises `SketchError` for a wrong field."""
    file = validated(_SketchFile, data, source=source)
    content: dict[str, Any] = {
        "schema": 1,
        "name": name,
        "nodes": file.nnodes,
        "chunks": {"per_rank": file.hyperparameters.input_chunkup},
        "objective": {"link_use": _LINK_USE[file.intranode_sketch.strategy], "weight": 0.01},
        "switch": _switches(file.intranode_sketch, source),
        "symmetry": [{"offset": offset, "group": group} for offset, group in file.symmetry_offsets],
        "merging": {"max": 6, "links": "internode"},
    }
    if file.internode_sketch is not None:
        content["internode"] = {
            "connections": file.internode_sketch.internode_conn,
            "own_before_relayed": file.internode_sketch.enforce_ordering,
            "crossing": "direct",
        }
        if file.internode_sketch.gpus_to_sender_rev_map is not None:
            content["internode"]["relays"] = file.internode_sketch.gpus_to_sender_rev_map
    return Sketch.from_dict(content, source=source, fields=_FIELDS)


def _switches(intranode: _Intranode, source: str) -> list[dict[str, Any]]:
    """Switches of a sketch file; equal switches in the file become the planes of one switch."""
    where = f"{source}: intranode_sketch.switches"
    planes: dict[frozenset[int], list[str]] = {}
    policies_given = intranode.switch_hyperedge_strategy or ()
    for ranks, policy in zip(intranode.switches or (), policies_given, strict=True):
        for other in planes:
            if other & set(ranks) and other != set(ranks):
                raise SketchError(
                    f"found {sorted(ranks)} and {sorted(other)}; expected switches that are equal or "
                    "disjoint; correct the lists",
                    where=where,
                )
        planes.setdefault(frozenset(ranks), []).append(policy)
    switches = []
    for joined, policies in planes.items():
        if len(set(policies)) > 1:
            raise SketchError(
                f"found {sorted(set(policies))} for the equal switches {sorted(joined)}; expected one policy "
                "for all planes of a switch; make them equal",
                where=f"{source}: intranode_sketch.switch_hyperedge_strategy",
            )
        switches.append({"ranks": sorted(joined), "policy": _POLICIES[policies[0]], "planes": len(policies)})
    return switches
