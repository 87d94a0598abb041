"""Read nodes of Chakra execution traces: protobuf, chakra_jsonizer's output, or JSON for Chakra's feeder.

A trace in protobuf (`taccl.formats.astra.et_def`) may be compressed by gzip. chakra_jsonizer writes the same
messages as JSON, one after another. The JSON that Chakra's feeder reads is one object with the nodes in
``workload_graph``.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

from taccl._internal.reading import MAX_FILE_BYTES, read_bytes
from taccl.errors import FormatError
from taccl.formats.astra.et_def import NODE_TYPES, message_classes

#: Collectives; the index is the value in protobuf's enum `CollectiveCommType`.
COLLECTIVE_TYPES = (
    "ALL_REDUCE", "REDUCE", "ALL_GATHER", "GATHER", "SCATTER", "BROADCAST", "ALL_TO_ALL", "REDUCE_SCATTER",
    "REDUCE_SCATTER_BLOCK", "BARRIER",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TraceNode:
    """A node of a Chakra execution trace.

    - `kind`: One of `NODE_TYPES`.
    - `after`: Ids of the nodes that it waits for (data dependencies).
    - `control`: Ids of its control dependencies; for a host operation, ids of the operations that call it.
    - `duration_us`: Duration in microseconds; 0 if the trace states none.
    - `attributes`: {name: number, truth value or text}.
    """

    id: int
    name: str
    kind: str
    after: tuple[int, ...] = ()
    control: tuple[int, ...] = ()
    duration_us: float = 0.0
    attributes: Mapping[str, Any] = field(default_factory=dict)


def load_trace_nodes(path: str | os.PathLike[str]) -> list[TraceNode]:
    """Load the nodes of a trace, in the order of the file.

    Raises `InputError` if the file cannot be read, and `FormatError` if it is not a trace.
    """
    from google.protobuf.json_format import ParseError
    from google.protobuf.message import DecodeError

    where, content = os.fspath(path), read_bytes(path)
    if content[:2] == b"\x1f\x8b":
        content = _inflated(content, where)
    try:
        is_json = content.lstrip()[:1] == b"{"
        nodes = list(_from_json(content.decode(), where) if is_json else _from_protobuf(content))
    except FormatError:
        raise
    except (DecodeError, ParseError, ValueError, TypeError, LookupError, AttributeError) as error:
        told = f"{type(error).__name__}: {error}"[:120]
        said = f"found no whole Chakra execution trace ({told}); expected protobuf (.et), or JSON of"
        raise FormatError(f"{said} chakra_jsonizer", where=where) from None
    if not nodes:
        raise FormatError("found a trace without nodes; check the file", where=where)
    return nodes


def _inflated(content: bytes, where: str) -> bytes:
    try:
        found = zlib.decompressobj(wbits=31)
        inflated = found.decompress(content, MAX_FILE_BYTES)
    except zlib.error as error:
        raise FormatError(f"found damaged gzip ({error}); copy the file again", where=where) from None
    if found.unconsumed_tail or not found.eof:
        raise FormatError("found truncated or too large gzip data; expand it with gunzip", where=where)
    return inflated


def _from_json(text: str, where: str) -> Iterator[TraceNode]:
    from google.protobuf.json_format import ParseDict

    decoder, at, first, (_, node) = json.JSONDecoder(), 0, True, message_classes()
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        data, at = decoder.raw_decode(text, at)
        if first and "workload_graph" in data:
            yield from map(_of_feeder, data["workload_graph"])
        elif first and "schema" in data and "nodes" in data:
            said = (
                "found a host trace of PyTorch; expected a Chakra trace: convert it by chakra_trace_link and"
            )
            raise FormatError(f"{said} chakra_converter", where=where)
        elif not first or "type" in data:  # the first message has the metadata of the whole trace
            yield _of_message(ParseDict(data, node(), ignore_unknown_fields=True))
        first = False


def _of_feeder(data: Mapping[str, Any]) -> TraceNode:
    """Node from the JSON of Chakra's feeder, where attributes are fields of the node."""
    known = ("Id", "Name", "NodeType", "data_deps", "ctrl_deps", "ctrlDeps", "runtime")
    after, control = _ids(data.get("data_deps", ())), _ids(data.get("ctrl_deps", data.get("ctrlDeps", ())))
    attributes = {name: value for name, value in data.items() if name not in known}
    kind = NODE_TYPES[data["NodeType"]]
    took_us = float(data.get("runtime", 0))
    return TraceNode(int(data["Id"]), data.get("Name", ""), kind, after, control, took_us, attributes)


def _ids(given: Any) -> tuple[int, ...]:
    return tuple(dict.fromkeys(map(int, given)))


def _from_protobuf(content: bytes) -> Iterator[TraceNode]:
    from google.protobuf.proto import parse_length_prefixed

    file, (metadata, node) = BytesIO(content), message_classes()
    parse_length_prefixed(metadata, file)
    while (message := parse_length_prefixed(node, file)) is not None:
        yield _of_message(message)


def _of_message(message: Any) -> TraceNode:
    values = [(each.name, each.WhichOneof("value"), each) for each in message.attr]
    return TraceNode(
        message.id, message.name, NODE_TYPES[message.type], _ids(message.data_deps), _ids(message.ctrl_deps),
        float(message.duration_micros),
        {name: getattr(each, value) for name, value, each in values if value is not None},
    )  # fmt: skip
