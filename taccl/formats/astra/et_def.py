"""Messages of Chakra execution traces in protobuf, by Chakra's schema ``et_def.proto``.

A trace is a sequence of messages, each after its length: one with the metadata of the whole trace, then the
nodes. See https://github.com/mlcommons/chakra.
"""

from __future__ import annotations

from functools import cache
from typing import Any

#: Types of nodes; the index is the value in protobuf's enum `NodeType`.
NODE_TYPES = (
    "INVALID_NODE", "METADATA_NODE", "MEM_LOAD_NODE", "MEM_STORE_NODE", "COMP_NODE", "COMM_SEND_NODE",
    "COMM_RECV_NODE", "COMM_COLL_NODE",
)  # fmt: skip
#: Types of an attribute's value, in the order of the schema, which has a list of each type behind it.
_VALUES = (
    "double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64",
    "sfixed32", "sfixed64", "bool", "string",
)  # fmt: skip


@cache
def message_classes() -> tuple[Any, Any]:
    """(class of the message with the metadata, class of nodes), with the fields that taccl reads or writes.

    An attribute has one of the fields ``double_val``, ``float_val``, and so on.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from google.protobuf.json_format import ParseDict

    values = [
        _field(3 + 2 * place, f"{kind}_val", kind) | {"oneofIndex": 0} for place, kind in enumerate(_VALUES)
    ]
    schema = {
        "name": "et_def.proto", "package": "chakra", "syntax": "proto3",
        "enumType": [
            {"name": "NodeType", "value": [{"name": n, "number": i} for i, n in enumerate(NODE_TYPES)]}
        ],
        "messageType": [
            {"name": "AttributeProto", "field": [_field(1, "name", "string"), *values],
             "oneofDecl": [{"name": "value"}]},
            {"name": "GlobalMetadata", "field": [
                _field(1, "version", "string"), _field(2, "attr", "message"),
            ]},
            {"name": "Node", "field": [
                _field(1, "id", "uint64"), _field(2, "name", "string"), _field(3, "type", "enum"),
                _field(4, "ctrl_deps", "uint64", is_list=True),
                _field(5, "data_deps", "uint64", is_list=True),
                _field(7, "duration_micros", "uint64"), _field(10, "attr", "message"),
            ]},
        ],
    }  # fmt: skip
    pool = descriptor_pool.DescriptorPool()
    pool.Add(ParseDict(schema, descriptor_pb2.FileDescriptorProto()))
    kinds = (pool.FindMessageTypeByName(f"chakra.{name}") for name in ("GlobalMetadata", "Node"))
    metadata, node = map(message_factory.GetMessageClass, kinds)
    return metadata, node


def _field(number: int, name: str, kind: str, *, is_list: bool = False) -> dict[str, Any]:
    """Descriptor of a field as plain values; a message is a list of attributes, an enum a type of nodes."""
    label = "LABEL_REPEATED" if is_list or kind == "message" else "LABEL_OPTIONAL"
    made = {"number": number, "name": name, "label": label, "type": f"TYPE_{kind.upper()}"}
    types = {"message": ".chakra.AttributeProto", "enum": ".chakra.NodeType"}
    return made | ({"typeName": types[kind]} if kind in types else {})
