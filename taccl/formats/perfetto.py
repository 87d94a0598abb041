"""The timeline of a schedule or a simulation as a trace that Perfetto and Chrome's tracing page show.

A process per rank has a track for each of its links out, and the process after the ranks one for each
resource that several links share. Where events of a track overlap (a link may be free again before its send
ends), the later ones go to a track of their own, because a viewer nests what shares a track.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from taccl.analysis.simulation.events import Events
from taccl.analysis.simulation.simulation import Simulation
from taccl.problem import Problem
from taccl.schedule.schedule import Schedule


def trace_text(timeline: Schedule | Simulation) -> str:
    """The trace as JSON, with a line per event.

    Raises `InputError` if the schedule is none of its problem.
    """
    document = trace(timeline)
    lines = ",\n".join(json.dumps(each, separators=(",", ":")) for each in document.pop("traceEvents"))
    return f'{{"traceEvents": [\n{lines}\n], {json.dumps(document)[1:]}\n'


def trace(timeline: Schedule | Simulation) -> dict[str, Any]:
    """The trace as plain values.

    Raises `InputError` if the schedule is none of its problem.
    """
    if isinstance(timeline, Simulation):
        schedule, events, per_us = timeline.schedule, timeline.run.events, timeline.ticks_per_us
    else:
        schedule, per_us = timeline, timeline.problem.costs.ticks_per_us
        events = Events(schedule, schedule.problem)
    problem, tiles = events.problem, _tiles(timeline, events)
    tracks: dict[tuple[int, str], list[_Slice]] = defaultdict(list)
    for tile in tiles:
        for send, link in enumerate(events.link):
            ends = problem.topology.links[link]
            tracks[ends.src, f"link {link}: {ends}"].append(
                _slice(schedule, events, send, tile.number, tile.starts[send], tile.ends[send])
            )
    for resource in sorted(_shared(problem).intersection(events.uses)):
        name = f"{problem.topology.resources[resource].name} ({resource})"
        track = tracks[problem.topology.num_ranks, name]
        for tile in tiles:
            for use in events.uses[resource]:
                start, scale = tile.starts[use.send], tile.scale[use.send]
                begin, until = start + scale * use.begin, start + scale * use.until
                track.append(_slice(schedule, events, use.send, tile.number, begin, until))
    return {
        "traceEvents": [*_named_processes(problem, tracks), *_laid_out(tracks, per_us)],
        "displayTimeUnit": "ns",
        "otherData": {
            "collective": problem.collective.name,
            "topology": problem.topology.name,
            "producer": schedule.producer,
            "finish_us": timeline.finish_us,
        },
    }


class _Tile(NamedTuple):
    """Start and end of every send of one tile, in ticks, and what the ticks of each are multiplied by."""

    number: int
    starts: Sequence[int]
    ends: Sequence[int]
    scale: Sequence[int]


class _Slice(NamedTuple):
    """An event of a track, in ticks."""

    start: int
    end: int
    name: str
    args: dict[str, Any]


def _tiles(timeline: Schedule | Simulation, events: Events) -> list[_Tile]:
    if not isinstance(timeline, Simulation):
        first = [members[0] for members in events.transfers]
        columns = (timeline.start[first].tolist(), timeline.end[first].tolist())
        return [_Tile(0, *columns, [1] * events.num_sends)]
    tiles = []
    for number, column in enumerate(timeline.run.starts):
        starts, scale = column.tolist(), timeline.run.scale(number)
        ends = [starts[send] + ticks * scale[send] for send, ticks in enumerate(events.duration)]
        tiles.append(_Tile(number, starts, ends, scale))
    return tiles


def _slice(schedule: Schedule, events: Events, send: int, tile: int, start: int, end: int) -> _Slice:
    problem, transfers, link = events.problem, events.transfers[send], events.link[send]
    chunks = [int(schedule.chunk[t]) for t in transfers]
    ends = problem.topology.links[link]
    reduce = bool(schedule.reduce[transfers[0]])
    args = {
        "chunk": chunks[0] if len(chunks) == 1 else chunks,
        "link": link,
        "src": ends.src if len(ends.srcs) == 1 else list(ends.srcs),
        "dst": ends.dst if len(ends.dsts) == 1 else list(ends.dsts),
        "group": int(schedule.group[transfers[0]]),
        "reduce": reduce,
        "bytes": sum(problem.chunk_bytes[chunk] for chunk in chunks),
        "tile": tile,
    }
    what = f"chunk{'s' if len(chunks) > 1 else ''} {', '.join(map(str, chunks))}"
    return _Slice(start, end, f"{'reduce' if reduce else 'copy'} {what}", args)


def _shared(problem: Problem) -> set[int]:
    holders: dict[int, set[int]] = defaultdict(set)
    for hold in problem.topology.holds:
        holders[hold.resource].add(hold.link)
    return {resource for resource, links in holders.items() if len(links) > 1}


def _named_processes(problem: Problem, tracks: dict[tuple[int, str], list[_Slice]]) -> list[dict[str, Any]]:
    node_of_rank = problem.topology.node_of_rank
    names = {rank: f"rank {rank} (node {node})" for rank, node in enumerate(node_of_rank)}
    names[len(node_of_rank)] = "shared resources"
    processes = sorted({process for process, _ in tracks})
    return [each for process in processes for each in _named("process", names[process], process, 0, process)]


def _named(kind: str, name: str, pid: int, tid: int, place: int) -> list[dict[str, Any]]:
    """What a process or thread is called, and its place among others."""
    return [
        {"ph": "M", "name": f"{kind}_{what}", "pid": pid, "tid": tid, "args": args}
        for what, args in (("name", {"name": name}), ("sort_index", {"sort_index": place}))
    ]


def _laid_out(tracks: dict[tuple[int, str], list[_Slice]], ticks_per_us: int) -> list[dict[str, Any]]:
    """Threads with their names, and events; those that overlap others of their track on further threads."""
    laid_out: list[dict[str, Any]] = []
    used: dict[int, int] = defaultdict(int)
    for (process, name), slices in sorted(tracks.items(), key=lambda track: _natural(track[0])):
        free_at: list[int] = []
        threads: list[int] = []
        for each in sorted(slices, key=lambda each: (each.start, each.end)):
            lane = next((i for i, free in enumerate(free_at) if free <= each.start), len(free_at))
            if lane == len(free_at):
                used[process] += 1
                free_at.append(0)
                threads.append(used[process])
                shown = name if not lane else f"{name}, overlapping"
                laid_out += _named("thread", shown, process, used[process], used[process])
            free_at[lane] = each.end
            laid_out.append({
                "ph": "X", "name": each.name, "cat": "reduce" if each.args["reduce"] else "copy",
                "pid": process, "tid": threads[lane],
                "ts": float(Fraction(each.start, ticks_per_us)),
                "dur": float(Fraction(each.end - each.start, ticks_per_us)), "args": each.args,
            })  # fmt: skip
    return laid_out


def _natural(key: tuple[int, str]) -> tuple[int, int, str]:
    process, name = key
    number = name.removeprefix("link ").partition(":")[0]
    return process, int(number) if number.isdigit() else -1, name
