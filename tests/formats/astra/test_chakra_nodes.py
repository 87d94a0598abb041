"""Chakra trace nodes in protobuf's encoding and in chakra_jsonizer's."""

import gzip

import pytest
from google.protobuf.json_format import MessageToJson

from taccl.errors import FormatError
from taccl.formats.astra.chakra_nodes import load_trace_nodes
from tests.formats.astra.test_chakra import METADATA, NODE


def messages():
    """Messages of a trace: metadata, a computation and a collective that waits for it."""
    head = METADATA(version="0.0.4")
    first = NODE(id=7, name="gemm", type=4, duration_micros=12)
    first.attr.add(name="is_cpu_op", bool_val=False)
    then = NODE(id=300, name="sum", type=7, data_deps=[7, 1000], ctrl_deps=[2])
    then.attr.add(name="comm_type", int64_val=0)
    then.attr.add(name="comm_size", int64_val=1 << 40)
    then.attr.add(name="comm_tag", int32_val=-5)
    then.attr.add(name="pg_name", string_val="0")
    return head, first, then


def protobuf():
    """Bytes of a trace: each message, preceded by its length."""
    parts = [each.SerializeToString() for each in messages()]
    return b"".join(bytes([len(part)]) + part for part in parts)


def jsonized(**options):
    """Text of chakra_jsonizer: concatenated JSON messages, with `NodeType` as an enumeration."""
    text = "".join(MessageToJson(each, **options) for each in messages())
    return (
        text.replace('"type": 4', '"type": "COMP_NODE"')
        .replace('"type": 7', '"type": "COMM_COLL_NODE"')
        .encode()
    )


@pytest.mark.parametrize(
    "content",
    [protobuf(), jsonized(), jsonized(preserving_proto_field_name=True), gzip.compress(protobuf())],
    ids="pjfz",
)
def test_every_form_gives_the_same_nodes(tmp_path, content):
    """Every encoding gives the messages' ids, names, dependencies, durations and attributes."""
    (tmp_path / "trace.0.et").write_bytes(content)
    gemm, total = load_trace_nodes(tmp_path / "trace.0.et")
    assert (gemm.id, gemm.name, gemm.kind, gemm.after, gemm.duration_us) == (7, "gemm", "COMP_NODE", (), 12)
    assert gemm.attributes == {"is_cpu_op": False}
    assert (total.kind, total.after, total.control) == ("COMM_COLL_NODE", (7, 1000), (2,))
    wanted = {"comm_type": 0, "comm_size": 1 << 40, "comm_tag": -5, "pg_name": "0"}
    assert total.attributes == wanted


def test_the_json_of_the_feeder_is_read(tmp_path):
    """In the JSON of Chakra's trace feeder, attributes are fields of the node."""
    text = '{"workload_graph": [{"Id": 3, "Name": "a", "NodeType": 4, "data_deps": [1], "runtime": 5,'
    (tmp_path / "trace.json").write_text(text + ' "is_cpu_op": true}]}')
    [node] = load_trace_nodes(tmp_path / "trace.json")
    assert (node.id, node.kind, node.after, node.duration_us) == (3, "COMP_NODE", (1,), 5)
    assert node.attributes == {"is_cpu_op": True}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff\xff", "no whole Chakra execution trace"),
        (protobuf()[:-3], "no whole Chakra execution trace .*DecodeError"),
        (
            b'{"schema": "1.0.2-chakra.0.0.4", "nodes": []}',
            "found a host trace of PyTorch; .*chakra_trace_link",
        ),
        (b"", "without nodes"),
        (gzip.compress(protobuf())[:-9], "truncated or too large gzip data"),
    ],
)
def test_other_files_are_refused(tmp_path, content, said):
    """The error for a file that is not a Chakra trace states what the file contains."""
    (tmp_path / "trace").write_bytes(content)
    with pytest.raises(FormatError, match=said):
        load_trace_nodes(tmp_path / "trace")
