"""Communication sketches, which are restrictions and hints for the synthesizer, from TOML or JSON.

Ranks in a sketch are local ranks (positions in their node), except in `[[symmetry]]`, which permutes all
ranks. `Sketch()` restricts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, PrivateAttr

from taccl._internal.arguments import Count, checked
from taccl._internal.reading import parse_json, parse_toml, toml_document, toml_text
from taccl._internal.units import parse_size
from taccl._internal.validation import Positive, Table, validated
from taccl.errors import SketchError, TopologyError
from taccl.sketch.apply import apply as apply_sketch
from taccl.sketch.tables import (
    Chunks,
    Internode,
    Intranode,
    Merging,
    Objective,
    ProcessGroup,
    Routing,
    SwitchSketch,
    Symmetry,
    check_group_names,
    optional,
)
from taccl.topology.topology import Topology


class Sketch(Table):
    """A communication sketch, schema version 1; see `Sketch.apply`, and `load_sketch` for files."""

    model_config = ConfigDict(populate_by_name=True)

    schema_version: Literal[1] = Field(default=1, alias="schema", description="Version of this schema.")
    name: str = optional("", "Name of the sketch in results and messages.")
    description: str = optional("", "Purpose of the sketch.")
    machine: str = optional("", "Machine model that the sketch is for; empty for any.")
    profile: str = optional("", "Profile of the machine's constants, e.g. 'taccl'.")
    nodes: Positive | None = optional(None, "Number of nodes that the sketch is for.")
    chunks: Chunks = Field(default_factory=Chunks)
    internode: Internode | None = optional(None, "Left out: any link may carry anything.")
    intranode: Intranode = Field(default_factory=Intranode)
    switch: tuple[SwitchSketch, ...] = ()
    symmetry: tuple[Symmetry, ...] = ()
    group: Annotated[tuple[ProcessGroup, ...], AfterValidator(check_group_names)] = ()
    objective: Objective = Field(default_factory=Objective)
    routing: Routing = Field(default_factory=Routing)
    merging: Merging = Field(default_factory=Merging)

    _source: str = PrivateAttr(default="")
    _fields: dict[str, str] = PrivateAttr(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        """True if all fields are equal; the files that the sketches came from may differ."""
        return self.__dict__ == other.__dict__ if isinstance(other, Sketch) else NotImplemented

    @property
    def source(self) -> str:
        """The file or shipped name that the sketch came from; empty for one made in Python."""
        return self._source

    @property
    def chunk_bytes(self) -> int | None:
        """Bytes of one chunk; None if the sketch does not say."""
        return None if self.chunks.size is None else parse_size(self.chunks.size)

    @checked
    def along(self, group: str) -> tuple[int, ...]:
        """Dimensions (from 1) of the process groups named `group`. Raises `SketchError` if there are none."""
        named = {each.name: each.along for each in self.group}
        if group not in named:
            said = f"expected one of {', '.join(named)}" if named else "expected a [[group]] of this name"
            raise SketchError(f"found no group {group!r}; {said}; add it", where=self.where("group"))
        return named[group]

    def value_of(self, field: str) -> Any:
        """Value of a field such as ``"routing.slack"``."""
        table, _, name = field.partition(".")
        return getattr(getattr(self, table), name)

    @checked
    def where(self, field: str) -> str:
        """``"file: field"`` for messages, with the file's own name of the field."""
        parent, _, index = field.partition("[")
        known = self._fields.get(parent)
        named = f"{known}[{index}" if known and index else known
        return f"{self._source or self.name or 'sketch'}: {named or field}"

    @classmethod
    @checked
    def from_toml(cls, text: str, *, source: str = "") -> Sketch:
        """Sketch from a TOML text. Raises `FormatError` or `SketchError` if it is not one."""
        return cls.from_dict(parse_toml(text, source=source or "TOML text"), source=source)

    @classmethod
    @checked
    def from_json(cls, text: str, *, source: str = "") -> Sketch:
        """Sketch from a JSON text. Raises `FormatError` or `SketchError` if it is not one."""
        return cls.from_dict(parse_json(text, source=source or "JSON text"), source=source)

    @classmethod
    @checked
    def from_dict(
        cls, data: Mapping[str, Any], *, source: str = "", fields: Mapping[str, str] | None = None
    ) -> Sketch:
        """Sketch from plain values, as parsed from a file.

        Parameters
        ----------
        data, source
            Values by field, and the name of the file for messages.
        fields : mapping, optional
            {field of `Sketch`: name in the file} for files of another format.

        Raises
        ------
        SketchError
            If a field does not fit.
        """
        if "schema" not in data:
            raise SketchError(
                "found nothing; expected the version of the sketch schema; add 'schema = 1'",
                where=f"{source or 'sketch'}: schema",
            )
        values = {key: value for key, value in data.items() if key != "$schema"}
        sketch = validated(cls, values, source=source, rename=fields or {})
        sketch._source, sketch._fields = source, dict(fields or {})
        return sketch

    def to_dict(self) -> dict[str, Any]:
        """The sketch as plain values: the schema version, and every field that is stated.

        Fields that are stated with their default are kept: ``per_rank = 1`` asks for one chunk per rank;
        a sketch without it leaves the number open.
        """
        content = self.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)
        return {"schema": 1, **content}

    def to_toml(self) -> str:
        """The sketch as a TOML text."""
        return toml_document(self.to_dict())

    def _repr_html_(self) -> str:
        """HTML for notebooks: a row for each field that is stated."""
        from taccl._internal.html import card, facts

        content = self.to_dict()
        title, text = content.pop("name", "") or "sketch", content.pop("description", "")
        del content["schema"]
        rows = []
        for name, value in content.items():
            tables = value if name in ("switch", "symmetry", "group") else [value]
            for each in tables:
                inner = each.items() if isinstance(each, dict) else [("", each)]
                rows.append((name, "; ".join(f"{key} {toml_text(field)}".strip() for key, field in inner)))
        return card(f"{title}: {text}" if text else title, facts(rows))

    @checked
    def topology(self, *, nodes: Count | None = None, profile: str | None = None) -> Topology:
        """Topology of the machine that the sketch names; `nodes` and `profile` override the sketch's fields.

        Raises
        ------
        SketchError
            If the sketch names no machine, or a machine or profile that is not known.
        """
        from taccl.topology.registry import parse

        if not self.machine:
            raise SketchError(
                "found no machine; expected one such as 'ndv2'; name it, or give a topology",
                where=self.where("machine"),
            )
        try:
            return parse(self.machine, nodes=nodes or self.nodes, profile=profile or self.profile or None)
        except TopologyError as error:
            field = "profile" if error.where and "profile" in error.where else "machine"
            if field == "profile" and profile is not None:
                raise
            raise SketchError(error.message, where=self.where(field)) from None

    @checked
    def with_nodes(self, nodes: Count, *, ranks_per_node: Count | None = None) -> Sketch:
        """The sketch for another number of nodes; symmetries over all ranks are extended to the new number.

        Parameters
        ----------
        ranks_per_node : int, optional
            Needed only if the sketch has symmetries and names no machine.

        Raises
        ------
        SketchError
            If a symmetry neither stays inside a node nor spans all of them.
        """
        if nodes == self.nodes:
            return self
        if ranks_per_node is None and self.symmetry:
            ranks_per_node = self.topology(nodes=1).num_ranks if self.machine else None
        rescaled = (self._rescaled(each, i, nodes, ranks_per_node) for i, each in enumerate(self.symmetry))
        kept = tuple(each for each in rescaled if each is not None)
        return self.model_copy(update={"nodes": nodes, "symmetry": kept})

    def _rescaled(
        self, entry: Symmetry, index: int, nodes: int, ranks_per_node: int | None
    ) -> Symmetry | None:
        """Rescale a symmetry to another number of nodes; None if it would then move no rank."""
        where = self.where(f"symmetry[{index}]")
        if ranks_per_node is None:
            raise SketchError(
                "found no machine, so the number of ranks in a node is not known; name the machine in the "
                "sketch, or give ranks_per_node",
                where=where,
            )
        if ranks_per_node % entry.group == 0:
            return entry
        if self.nodes is None or entry.group != self.nodes * ranks_per_node or entry.offset % ranks_per_node:
            raise SketchError(
                f"found offset {entry.offset} in groups of {entry.group}, which neither stays inside a node "
                f"of {ranks_per_node} ranks nor moves whole nodes among all {self.nodes or 'of them'}; write "
                f"the symmetry for {nodes} nodes",
                where=where,
            )
        group = nodes * ranks_per_node
        return entry.model_copy(update={"group": group}) if entry.offset % group else None

    apply = apply_sketch


def sketch_json_schema() -> dict[str, Any]:
    """JSON Schema of a sketch file (TOML or JSON), for editors."""
    schema = Sketch.model_json_schema(by_alias=True)
    for table in (schema, *schema["$defs"].values()):
        # Only the first line of a docstring describes the table; fields have their own descriptions.
        table["description"] = table["description"].partition("\n")[0]
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "taccl communication sketch"
    schema["required"] = ["schema"]
    schema["properties"]["$schema"] = {"type": "string", "description": "Location of this schema."}
    return schema
