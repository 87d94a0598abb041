"""Timelines for Perfetto: tracks, times and arguments of events."""

import json
from collections import defaultdict

import pytest

import taccl
from taccl import collectives
from taccl.errors import InputError
from taccl.formats.perfetto import trace
from taccl.problem.making import make_problem
from taccl.schedule.schedule import make_schedule
from taccl.topology.builder import TopologyBuilder


def _problem(*, alpha_meaning="occupies"):
    """Ranks 0 and 1 each send to 2, in 1 + 2 us for 1 MB; they share a NIC for the last 2 us."""
    builder = TopologyBuilder("shared", [0, 0, 1], alpha_meaning=alpha_meaning)
    nic = builder.add_resource("NIC")
    for src in (0, 1):
        link = builder.add_link(src, 2, alpha_us=1, beta_us_per_mb=2)
        builder.add_hold(link, nic, alpha_us=0, beta_us_per_mb=2, side="receive")
    return make_problem(builder.build(), collectives.gather(3, root=2), chunk_bytes=10**6)


def _schedule():
    return make_schedule(_problem(), chunk=[0, 1], link=[0, 1], start=[0, 2], end=[3, 5])


def _events(document):
    """({(process, thread) by name: events}, names of all threads)."""
    names = {
        (each["pid"], each["tid"]): each["args"]["name"]
        for each in document["traceEvents"]
        if each["name"] == "thread_name"
    }
    tracks = defaultdict(list)
    for each in document["traceEvents"]:
        if each["ph"] == "X":
            tracks[each["pid"], names[each["pid"], each["tid"]]].append((each["ts"], each["dur"]))
    return dict(tracks)


def test_tracks_by_hand():
    """A track for each link in its rank's process, and one for the NIC: held from 1 to 3 and from 3 to 5 us."""
    assert _events(trace(_schedule())) == {
        (0, "link 0: 0->2"): [(0, 3)],
        (1, "link 1: 1->2"): [(2, 3)],
        (3, "NIC (0)"): [(1, 2), (3, 2)],
    }


def test_events_say_what_is_sent():
    """Arguments of an event are the chunk, the link, its ends, the group, the bytes, and whether the send
    reduces."""
    event = next(each for each in trace(_schedule())["traceEvents"] if each["ph"] == "X")
    assert event["name"] == "copy chunk 0"
    assert event["args"] == {
        "chunk": 0, "link": 0, "src": 0, "dst": 2, "group": 0, "reduce": False, "bytes": 10**6,
    }  # fmt: skip


def test_merged_send_is_one_event():
    """Chunks that travel together are listed in one event."""
    problem = make_problem(
        _problem().topology, collectives.gather(3, root=2, chunks_per_rank=2), chunk_bytes=10**6
    )
    schedule = make_schedule(problem, chunk=[0, 1], link=[0, 0], start=[0, 0], end=[5, 5], group=[0, 0])
    events = [each for each in trace(schedule)["traceEvents"] if each["ph"] == "X" and each["pid"] == 0]
    assert [(each["args"]["chunk"], each["name"]) for each in events] == [([0, 1], "copy chunks 0, 1")]


def test_processes_are_named():
    """Ranks are named with their nodes, in their order."""
    names = [e["args"]["name"] for e in trace(_schedule())["traceEvents"] if e["name"] == "process_name"]
    assert names == ["rank 0 (node 0)", "rank 1 (node 0)", "shared resources"]


def test_overlapping_sends_have_tracks_of_their_own():
    """With pipelined alpha, overlapping sends of a link go to a second track."""
    problem = make_problem(
        _problem(alpha_meaning="pipelined").topology, collectives.gather(3, root=2, chunks_per_rank=2),
        chunk_bytes=10**6,
    )  # fmt: skip
    schedule = make_schedule(problem, chunk=[0, 1], link=[0, 0], start=[0, 2], end=[3, 5])
    tracks = _events(trace(schedule))
    assert tracks[0, "link 0: 0->2"] == [(0, 3)]
    assert tracks[0, "link 0: 0->2, overlapping"] == [(2, 3)]


@pytest.mark.slow
def test_no_two_events_of_a_track_overlap():
    """On a machine with switches and NICs, events of one track follow one another, as viewers expect."""
    machine = taccl.topologies.dgx2(nodes=2)
    problem = make_problem(machine, collectives.allgather(32), chunk_bytes=10**6)
    for spans in _events(trace(taccl.baselines.hierarchical(problem))).values():
        ordered = sorted(spans)
        assert all(b[0] >= a[0] + a[1] - 1e-6 for a, b in zip(ordered, ordered[1:], strict=False))


def test_file_is_json_as_viewers_read_it(tmp_path):
    """The file is the JSON object that `trace` returns, and an existing file is not replaced."""
    path = tmp_path / "x.trace.json"
    taccl.write(_schedule(), path)
    assert json.loads(path.read_text()) == trace(_schedule())
    with pytest.raises(InputError, match="exists"):
        taccl.write(_schedule(), path)


def test_empty_schedule_has_no_events(tmp_path):
    """Without transfers the trace is empty, but valid JSON."""
    taccl.write(make_schedule(_problem(), chunk=[], link=[], start=[], end=[]), tmp_path / "empty.trace")
    assert json.loads((tmp_path / "empty.trace").read_text())["traceEvents"] == []
