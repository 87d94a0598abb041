"""Read nodes of Chakra execution traces: protobuf, chakra_jsonizer's output, or JSON for Chakra's feeder.

A trace in protobuf is a sequence of messages, each a length and that many bytes (``et_def.proto``); it may be
compressed by gzip. chakra_jsonizer writes the same messages as JSON, one after another. The JSON that
Chakra's feeder reads is one object with the nodes in ``workload_graph``. See
https://github.com/mlcommons/chakra.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from taccl._internal.reading import MAX_FILE_BYTES, read_bytes
from taccl.errors import FormatError

#: Types of nodes; the index is the value in protobuf's enum `NodeType`.
NODE_TYPES = (
    "INVALID_NODE", "METADATA_NODE", "MEM_LOAD_NODE", "MEM_STORE_NODE", "COMP_NODE", "COMM_SEND_NODE",
    "COMM_RECV_NODE", "COMM_COLL_NODE",
)  # fmt: skip
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
    where, content = os.fspath(path), read_bytes(path)
    if content[:2] == b"\x1f\x8b":
        content = _inflated(content, where)
    try:
        is_json = content.lstrip()[:1] == b"{"
        nodes = list(_from_json(content.decode()) if is_json else _from_protobuf(content))
    except (ValueError, TypeError, KeyError, IndexError, struct.error, AttributeError) as error:
        told = f"{type(error).__name__}: {error}"[:120]
        said = f"found no Chakra execution trace ({told}); expected protobuf (.et) or JSON of chakra_jsonizer"
        raise FormatError(said, where=where) from None
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


def _from_json(text: str) -> Iterator[TraceNode]:
    decoder, at, first = json.JSONDecoder(), 0, True
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        data, at = decoder.raw_decode(text, at)
        if first and "workload_graph" in data:
            yield from map(_of_feeder, data["workload_graph"])
        elif first and "schema" in data and "nodes" in data:
            raise ValueError("a host trace of PyTorch, which chakra_trace_link and chakra_converter convert")
        elif not first or "type" in data:  # the first message has the metadata of the whole trace
            yield _of_jsonizer(data)
        first = False


def _of_jsonizer(data: Mapping[str, Any]) -> TraceNode:
    """Node from protobuf's JSON mapping, where 64-bit numbers are text.

    Names are in camel case, or those of the fields themselves (``preserving_proto_field_name``).
    """
    data, attributes = {_camel(name): value for name, value in data.items()}, {}
    for each in data.get("attr", ()):
        value = next((value for name, value in each.items() if _camel(name) not in ("name", "docString")), 0)
        is_whole = isinstance(value, str) and any("int" in key or "ixed" in key for key in each)
        attributes[each["name"]] = int(value) if is_whole else value
    after, control = _ids(data.get("dataDeps", ())), _ids(data.get("ctrlDeps", ()))
    kind = data.get("type", "INVALID_NODE")
    took_us = float(data.get("durationMicros", 0))
    return TraceNode(int(data.get("id", 0)), data.get("name", ""), kind, after, control, took_us, attributes)


def _camel(name: str) -> str:
    """Name of a protobuf field in camel case, such as ``dataDeps``."""
    first, *rest = name.split("_")
    return "".join([first, *map(str.capitalize, rest)])


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
    at, first = 0, True
    while at < len(content):
        size, at = _varint(content, at)
        message = content[at : at + size]
        if len(message) < size:
            raise ValueError("a message is cut off")
        at += size
        if not first:  # the first message has the metadata of the whole trace
            yield _node(message)
        first = False


def _node(message: bytes) -> TraceNode:
    """Decode a protobuf `Node` message.

    Its fields are 1 id, 2 name, 3 type, 4 control dependencies, 5 data dependencies, 7 duration, and 10
    attributes.
    """
    number, name, kind, took_us = 0, "", 0, 0.0
    waits: dict[int, list[int]] = {4: [], 5: []}
    attributes: dict[str, Any] = {}
    for field_number, value in _fields(message):
        if field_number == 1:
            number = value
        elif field_number == 2:
            name = value.decode()
        elif field_number == 3:
            kind = value
        elif field_number in waits:
            waits[field_number] += [value] if isinstance(value, int) else _packed(value)
        elif field_number == 7:
            took_us = float(value)
        elif field_number == 10:
            attributes |= _attribute(value)
    return TraceNode(number, name, NODE_TYPES[kind], _ids(waits[5]), _ids(waits[4]), took_us, attributes)


#: {field number of a fixed-width value in `AttributeProto`: its `struct` format}.
_FIXED = {3: "<d", 5: "<f", 19: "<I", 21: "<Q", 23: "<i", 25: "<q"}


def _attribute(message: bytes) -> dict[str, Any]:
    """Decode an attribute message as {name: value}; empty if its value is a list."""
    name, found = "", None
    for number, value in _fields(message):
        if number == 1:
            name = value.decode()
        elif number in (7, 9):
            found = value - (1 << 64) if value >> 63 else value
        elif number in (11, 13):
            found = value
        elif number in (15, 17):
            found = (value >> 1) ^ -(value & 1)
        elif number in _FIXED:
            (found,) = struct.unpack(_FIXED[number], value)
        elif number == 27:
            found = bool(value)
        elif number == 29:
            found = value.decode()
    return {} if found is None else {name: found}


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """(field number, value) of each field of a protobuf message: an integer for a varint, else raw bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(message, at)
            yield number, value
            continue
        if wire == 2:
            size, at = _varint(message, at)
        else:
            size = {1: 8, 5: 4}[wire]
        if at + size > len(message):
            raise ValueError("a field is cut off")
        yield number, message[at : at + size]
        at += size


def _packed(content: bytes) -> list[int]:
    found, at = [], 0
    while at < len(content):
        value, at = _varint(content, at)
        found.append(value)
    return found


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """(value of the varint at position `at`, position after the varint)."""
    value = shift = 0
    while True:
        byte = content[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value & ((1 << 64) - 1), at
        if shift > 63:
            raise ValueError("a number has more than 64 bits")
