"""Topologies from network files of ASTRA-sim's analytical backends.

The meaning of building blocks (such as ``Ring``), units and link occupancy follows the source code of the
backends; see ``docs/formats.md``.
"""

from __future__ import annotations

import os
from fractions import Fraction
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from taccl._internal.arguments import checked_as
from taccl._internal.file_kinds import unquoted
from taccl._internal.names import shown
from taccl._internal.reading import read_text
from taccl._internal.validation import Cost, validated
from taccl.errors import FormatError, TopologyError
from taccl.topology.builder import TopologyBuilder
from taccl.topology.parts import check_count, check_num_links
from taccl.topology.products import Dimension, Kind, add_dimensions
from taccl.topology.topology import AlphaMeaning, Topology

MAX_FILE_BYTES = 10**5
_MAX_DIMENSIONS = 16
_BYTES_PER_GB = 2**30
_KINDS: dict[str, Kind] = {"Ring": "ring", "FullyConnected": "fully-connected", "Switch": "switch"}


def _positive(rate: Fraction) -> Fraction:
    if not rate:
        raise ValueError("found 0 GB/s; expected a positive bandwidth; correct it")
    return rate


class _Network(BaseModel):
    """The fields read from an ASTRA-sim network file; each is a list with one entry per dimension."""

    model_config = ConfigDict(extra="allow")

    topology: Annotated[list[Literal["Ring", "FullyConnected", "Switch"]], Field(max_length=_MAX_DIMENSIONS)]
    npus_count: list[Annotated[int, Field(ge=1, lt=10**9)]]
    bandwidth: list[Annotated[Cost, AfterValidator(_positive)]]
    latency: list[Cost]

    @model_validator(mode="after")
    def _one_each(self) -> Self:
        for name in ("npus_count", "bandwidth", "latency"):
            found, expected = len(getattr(self, name)), len(self.topology)
            if found != expected:
                raise ValueError(
                    f"found {found} values of {name} for {expected} dimensions; correct the lists"
                )
        if self.npus_count and max(self.npus_count) == 1:
            raise ValueError("found one NPU; expected a dimension of at least 2 in npus_count")
        return self


@checked_as(TopologyError)
def load_astra_network(
    path: str | os.PathLike[str],
    *,
    alpha_meaning: AlphaMeaning = "pipelined",
    ranks_per_node: int | None = None,
) -> Topology:
    """The topology that an ASTRA-sim network file describes; ranks are its NPUs.

    - `alpha_meaning`: With ``"pipelined"``, a link is free again once the bytes have left, as in ASTRA-sim.
      With ``"occupies"``, the link is also busy during its alpha.
    - `ranks_per_node`: Number of consecutive ranks per node; by default all ranks are in one node, as the
      file has no nodes.

    Notes
    -----
    A send through a switch has the latency of two links and the transfer time of one, as in the backend that
    ignores congestion. In the congestion-aware backend, the switch stores and forwards. The bytes then take
    twice as long.
    """
    where = os.fspath(path)
    file = validated(
        _Network, _plain(unquoted(read_text(path, MAX_FILE_BYTES)), where), source=where, error=FormatError
    )
    dims = [
        Dimension.of_link(
            _KINDS[kind], count, (2 if kind == "Switch" else 1) * time_ns / 1000,
            Fraction(10**12, _BYTES_PER_GB) / rate,
        )
        for kind, count, rate, time_ns in zip(
            file.topology, file.npus_count, file.bandwidth, file.latency, strict=True
        )
        if count > 1
    ]  # fmt: skip
    num_ranks = prod(each.size for each in dims)
    num_links = sum(num_ranks * (2 if each.kind == "ring" else each.size - 1) for each in dims)
    try:
        check_num_links(max(num_ranks, num_links), where=f"{where}: npus_count")
    except TopologyError as error:
        raise FormatError(error.message, where=error.where) from None
    per_node = num_ranks if ranks_per_node is None else check_count(ranks_per_node, where="ranks_per_node")
    if num_ranks % per_node:
        raise TopologyError(
            f"found {per_node}; expected a divisor of the {num_ranks} ranks", where="ranks_per_node"
        )
    builder = TopologyBuilder(
        Path(where).stem, [rank // per_node for rank in range(num_ranks)],
        alpha_meaning=alpha_meaning, profile="astra-sim",
    )  # fmt: skip
    add_dimensions(builder, dims, names={kind: block for block, kind in _KINDS.items()})
    return builder.build(notes=_notes(file, alpha_meaning), assumed=_assumed(file, ranks_per_node))


def _notes(file: _Network, alpha_meaning: AlphaMeaning) -> list[str]:
    notes = ["1 GB/s of the file is 2**30 bytes a second of each link and direction, as ASTRA-sim counts"]
    if alpha_meaning == "pipelined":
        notes.append("alpha is pipelined, as in ASTRA-sim: a link is free once the bytes have left it")
    skipped = [str(k) for k, count in enumerate(file.npus_count) if count == 1]
    if skipped:
        notes.append(f"dimensions of one NPU have no links: npus_count[{', '.join(skipped)}] are skipped")
    if "Switch" in file.topology:
        notes.append(
            "a send through a switch takes two latencies and its bytes once (ASTRA-sim's congestion-aware "
            "backend counts the bytes twice)"
        )
    return notes


def _assumed(file: _Network, ranks_per_node: int | None) -> list[str]:
    """Texts on assumptions: that all ranks are in one node (if no number is given), and on ignored fields."""
    assumed = []
    if ranks_per_node is None:
        assumed.append("all ranks are in one node, as the file states none (ranks_per_node= divides them)")
    if file.model_extra:
        unread = ", ".join(name[:40] for name in sorted(file.model_extra)[:8])
        assumed.append(f"ignored fields: {unread}")
    return assumed


def _plain(text: str, where: str) -> dict[str, Any]:
    """{field: its items as strings} of a YAML file; empty for other fields that are no lists.

    Raises `FormatError` if a field of a network is not a list.
    """
    import yaml

    try:
        top = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", "characters or depth")
        at = f"{where}: line {mark.line + 1}" if mark else where
        raise FormatError(f"found invalid YAML: {problem}; correct it", where=at) from None
    if not isinstance(top, yaml.MappingNode):
        raise FormatError("found no fields; expected some such as `npus_count: [ 8 ]`", where=where)
    fields: dict[str, Any] = {}
    for key, node in top.value:
        if key.value in fields:
            line = key.start_mark.line + 1
            raise FormatError(f"found {key.value[:40]} twice; remove one", where=f"{where}: line {line}")
        is_list = isinstance(node, yaml.SequenceNode)
        if not is_list and key.value in _Network.model_fields:
            value = shown(node.value, 40) if isinstance(node, yaml.ScalarNode) else ""
            said = f"found {value or 'no list'}; expected a list with an entry for each dimension"
            said += f": [ {value} ]" if value else ""
            raise FormatError(said, where=f"{where}: line {key.start_mark.line + 1}: {key.value}")
        items = node.value if is_list else []
        fields[str(key.value)] = [
            str(item.value if isinstance(item, yaml.ScalarNode) else item.tag) for item in items
        ]
    return fields
