"""Every file written for another program, read by independent code that follows the format's documentation.

Programs for runtimes and files for launchers have such readers in the tests of their modules.
"""

import csv
import io
import json
import struct
import zlib
from collections import defaultdict
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest

import taccl
from taccl.formats.registry import write
from taccl.formats.table import FORMATS
from tests.formats.astra.test_chakra import RECEIVE, SEND, _attributes, _decoded

pytestmark = pytest.mark.filterwarnings("ignore::taccl.errors.LossyConversionWarning")

#: Formats of taccl itself, and formats with readers in other tests, as runtimes load them.
_ELSEWHERE = {
    "taccl-schedule": "tests/formats/test_native.py",
    "taccl-topology-json": "tests/formats/test_saved.py",
    "taccl-problem": "tests/formats/test_saved.py",
    "taccl-topology": "tests/topology/test_topology_file_writer.py",
    "msccl-xml": "tests/formats/msccl",
    "mscclpp": "tests/formats/mscclpp",
    "switch-job": "tests/aggregation/test_switch_jobs.py",
    "torch": "tests/formats/torch",
    "torch-step": "tests/workload/test_torch_program.py",
}


SCHEDULES = ("allgather", "alltoall", "allreduce")


@cache
def _scheduled(collective):
    if collective == "allreduce":
        problem = taccl.make_problem(taccl.topologies.ndv2(nodes=2), collective, size_bytes=1_600_000)
        return taccl.baselines.hierarchical(problem, cut=False)
    problem = taccl.make_problem(
        taccl.topologies.ring(4), collective, size_bytes=4_000_000, chunks_per_rank=1
    )
    # In one chunk per rank no sends merge; the published tool merges them between nodes only.
    return taccl.baselines.best(problem)


@pytest.fixture
def schedule(request):
    """Schedule of a collective, one for each name in the parameters."""
    return _scheduled(request.param)


def _sends(schedule):
    """Multiset of (chunk, source, destination) over the transfers."""
    links = schedule.problem.topology.links
    return sorted((each.chunk, links[each.link].src, links[each.link].dst) for each in schedule)


def _trace_events(text):
    """Complete events of a file in Trace Event Format, checked against the format's document.

    A file is an object with ``traceEvents``. Events with ``ph`` M name and sort processes and threads; those
    with ``ph`` X have ``ts`` and ``dur`` in microseconds. Events of one thread nest, as viewers show partial
    overlaps wrongly.
    """
    document = json.loads(text)
    assert document["displayTimeUnit"] in ("ms", "ns")
    named, spans, events = set(), defaultdict(list), []
    for each in document["traceEvents"]:
        assert isinstance(each["name"], str)
        assert type(each["pid"]) is int and type(each["tid"]) is int
        if each["ph"] == "M":
            kind, what = each["name"].split("_", 1)
            assert kind in ("process", "thread")
            assert type(each["args"][what]) is {"name": str, "sort_index": int}[what]
            if what == "name":
                named.add((each["pid"], each["tid"] if kind == "thread" else None))
            continue
        assert each["ph"] == "X"
        assert each["ts"] >= 0 <= each["dur"]
        assert {(each["pid"], None), (each["pid"], each["tid"])} <= named
        spans[each["pid"], each["tid"]].append((each["ts"], each["ts"] + each["dur"]))
        events.append(each)
    for span in spans.values():
        ordered = sorted(span)
        assert all(end <= start + 1e-6 for (_, end), (start, _) in zip(ordered, ordered[1:], strict=False))
    return events


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES, indirect=True)
def test_timelines_hold_every_send_on_its_ranks_track(schedule, tmp_path):
    """Sends of rank r are events of process r, with their time, chunks, source and destination."""
    write(schedule, tmp_path / "a.trace.json")
    num_ranks = schedule.problem.topology.num_ranks
    events = [
        each for each in _trace_events((tmp_path / "a.trace.json").read_text()) if each["pid"] < num_ranks
    ]
    found = []
    for each in events:
        chunks = each["args"]["chunk"]
        assert each["args"]["src"] == each["pid"]
        ends = each["args"]["src"], each["args"]["dst"]
        found += [(chunk, *ends) for chunk in (chunks if isinstance(chunks, list) else [chunks])]
    assert sorted(found) == _sends(schedule)
    assert max(each["ts"] + each["dur"] for each in events) == pytest.approx(schedule.finish_us)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES, indirect=True)
def test_tables_are_read_by_pandas_and_csv(schedule, tmp_path):
    """CSV tables follow RFC 4180: every row has as many cells as the head. pandas finds numbers in columns of
    numbers."""
    pandas = pytest.importorskip("pandas")
    write(schedule, tmp_path / "a.csv")
    rows = list(csv.reader(io.StringIO((tmp_path / "a.csv").read_text(), newline=""), strict=True))
    assert {len(row) for row in rows} == {len(rows[0])}
    table = pandas.read_csv(tmp_path / "a.csv")
    found = zip(table["chunk"], table["src_rank"], table["dst_rank"], strict=True)
    assert sorted(map(tuple, found)) == _sends(schedule)
    assert table["end_us"].max() == pytest.approx(schedule.finish_us)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES, indirect=True)
def test_parquet_is_read_by_pandas(schedule, tmp_path):
    """pandas reads the same rows from Parquet as from CSV."""
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow", reason="pyarrow, which writes Parquet, is not installed")
    write(schedule, tmp_path / "a.parquet")
    write(schedule, tmp_path / "a.csv")
    whole, text = pandas.read_parquet(tmp_path / "a.parquet"), pandas.read_csv(tmp_path / "a.csv")
    pandas.testing.assert_frame_equal(whole, text, check_dtype=False)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES, indirect=True)
def test_traces_hold_each_send_at_both_ends(schedule, tmp_path):
    """Traces, decoded by Protobuf with the published schema, have what ASTRA-sim's custom collective expects.

    A send has a destination, a receive a source; both have the same tag and size, and a tag is used once.
    """
    write(schedule, tmp_path / "a.et")
    sends, receives = {}, {}
    for rank in range(schedule.problem.topology.num_ranks):
        _, nodes = _decoded((tmp_path / f"a.{rank}.et").read_bytes())
        assert {each for node in nodes for each in node.data_deps} <= {node.id for node in nodes}
        for node in nodes:
            read = _attributes(node)
            if node.type == SEND:
                assert read["comm_tag"] not in sends
                sends[read["comm_tag"]] = rank, read["comm_dst"], read["comm_size"]
            elif node.type == RECEIVE:
                receives[read["comm_tag"]] = read["comm_src"], rank, read["comm_size"]
    assert sends == receives
    assert len(sends) == schedule.num_sends


@pytest.mark.parametrize("schedule", SCHEDULES[:2], indirect=True)
def test_algorithms_of_the_published_tool_are_replayed(schedule, tmp_path):
    """If the steps of an algorithm file are replayed in order, a rank sends only addresses that it has, and
    ends with those of ``output_map``.

    An object names its class in ``sccl_type``; a send is (address, source, destination, time, step).
    """
    write(schedule, tmp_path / "a.json", format="upstream-algorithm")
    data = json.loads((tmp_path / "a.json").read_text())
    assert data["sccl_type"] == "algorithm"
    assert {each["sccl_type"] for each in (data["instance"], data["collective"], data["topology"])} == {
        "instance", "collective", "topology",
    }  # fmt: skip
    holds = {int(rank): set(addresses) for rank, addresses in data["input_map"].items()}
    for step in data["steps"]:
        assert step["sccl_type"] == "step"
        sends = [tuple(each[:3]) for each in step["sends"]]
        assert all(address in holds[src] for address, src, _ in sends)
        for address, _, dst in sends:
            holds[dst].add(address)
    assert all(set(addresses) <= holds[int(rank)] for rank, addresses in data["output_map"].items())


def _png_rows(data):
    """Rows of a PNG's image data, after a check of the checksums of its chunks (RFC 2083)."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, found, kinds = 8, b"", []
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        kind, content = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length]) == (zlib.crc32(kind + content),)
        kinds.append(kind)
        found += content if kind == b"IDAT" else b""
        at += 12 + length
    assert (kinds[0], kinds[-1]) == (b"IHDR", b"IEND")
    return zlib.decompress(found)


@pytest.mark.slow
def test_pictures_are_read_by_their_formats(exchange, tmp_path):
    """An SVG picture is XML with a size; chunks of a PNG have valid checksums; the end of a PDF gives its
    table's position."""
    for ending in ("svg", "png", "pdf"):
        taccl.plot.save(taccl.plot.gantt(exchange), tmp_path / f"a.{ending}")
    root = ElementTree.parse(tmp_path / "a.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(root.attrib["viewBox"].split()) == 4
    assert len(_png_rows((tmp_path / "a.png").read_bytes())) > 1000
    pdf = (tmp_path / "a.pdf").read_bytes()
    place = int(pdf.rsplit(b"startxref", 1)[1].split()[0])
    assert pdf[place:].startswith((b"xref", b"1 0 obj")) or b"/XRef" in pdf[place : place + 200]


def test_every_written_format_has_a_reader_in_the_tests():
    """Every written format is listed here, with the existing test that reads it."""
    here = {"perfetto", "csv", "parquet", "chakra", "upstream-algorithm"}
    assert {each.name for each in FORMATS if each.dump} == here | _ELSEWHERE.keys()
    root = Path(__file__).resolve().parents[2]
    assert [test for test in _ELSEWHERE.values() if not (root / test).exists()] == []
