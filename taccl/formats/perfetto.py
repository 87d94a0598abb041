"""Timeline of a schedule as a trace for Perfetto and Chrome's tracing page.

Each rank is a process with a track for each of its outgoing links. One more process has a track for each
resource that several links share. Events of one link may overlap, as a link may be free before its send ends.
The later of two overlapping events goes to a separate track, because viewers nest overlapping events.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

from taccl.schedule.bars import By, bars_of
from taccl.schedule.schedule import Schedule

_TRACKS: tuple[By, ...] = ("link", "resource")


def trace_text(schedule: Schedule) -> str:
    """Timeline of a schedule as JSON text for Perfetto, with one line per event.

    Raises `InputError` if the chunk or the link of a transfer does not exist.
    """
    document = trace(schedule)
    lines = ",\n".join(json.dumps(each, separators=(",", ":")) for each in document.pop("traceEvents"))
    return f'{{"traceEvents": [\n{lines}\n], {json.dumps(document)[1:]}\n'


def trace(schedule: Schedule) -> dict[str, Any]:
    """Timeline of a schedule as a dict of trace events; errors as for `trace_text`."""
    problem, topology = schedule.problem, schedule.problem.topology
    links, shared_by = topology.links, Counter(r for r, _ in {(h.resource, h.link) for h in topology.holds})
    names = [f"rank {rank} (node {node})" for rank, node in enumerate(topology.node_of_rank)]
    charts = {by: bars_of(schedule, by, max_rows=sys.maxsize) for by in _TRACKS}
    sends = _sends(schedule)
    events: list[dict[str, Any]] = []
    # Overlapping events of a track are in different lanes; each lane becomes a thread.
    threads: dict[tuple[int, str, int], int] = {}  # {(process, track, lane): thread}
    used = Counter[int]()
    for by, bars in charts.items():
        for row, lane, send, start_us, end_us in zip(
            *(getattr(bars, name).tolist() for name in ("row", "lane", "send", "start_us", "end_us")),
            strict=True,
        ):
            number, name = bars.number[row], bars.rows[row]
            if by == "link":
                process, track = links[number].src, f"link {number}: {name}"
            elif shared_by[number] > 1:
                process, track = len(names), f"{name} ({number})"
            else:
                continue
            if (process, track, lane) not in threads:
                used[process] += 1
                thread = threads[process, track, lane] = used[process]
                events += _named("thread", track + ", overlapping" * (lane > 0), process, thread, thread)
            events.append({
                "ph": "X", **sends[send], "pid": process, "tid": threads[process, track, lane],
                "ts": start_us, "dur": end_us - start_us,
            })  # fmt: skip
    names.append("shared resources")
    processes = [each for rank in sorted(used) for each in _named("process", names[rank], rank, 0, rank)]
    return {
        "traceEvents": [*processes, *events],
        "displayTimeUnit": "ns",
        "otherData": {
            "collective": problem.collective.name, "topology": topology.name, "producer": schedule.producer,
            "finish_us": schedule.finish_us,
        },
    }  # fmt: skip


def _sends(schedule: Schedule) -> dict[int, dict[str, Any]]:
    """{group number of a send: name, category and arguments of its trace event}."""
    problem, members = schedule.problem, dict[int, list[Any]]()
    for transfer in schedule:
        members.setdefault(transfer.group, []).append(transfer)
    found = {}
    for group, transfers in members.items():
        chunks, first = [each.chunk for each in transfers], transfers[0]
        ends = problem.topology.links[first.link]
        operation = "reduce" if first.reduce else "copy"
        what = f"chunk{'s' if len(chunks) > 1 else ''} {', '.join(map(str, chunks))}"
        args = {
            "chunk": chunks[0] if len(chunks) == 1 else chunks,
            "link": first.link,
            "src": ends.src if len(ends.srcs) == 1 else list(ends.srcs),
            "dst": ends.dst if len(ends.dsts) == 1 else list(ends.dsts),
            "group": group,
            "reduce": first.reduce,
            "bytes": sum(problem.chunk_bytes[chunk] for chunk in chunks),
        }
        found[group] = {"name": f"{operation} {what}", "cat": operation, "args": args}
    return found


def _named(kind: str, name: str, pid: int, tid: int, place: int) -> list[dict[str, Any]]:
    """Metadata events that set the name and the position of a process or thread."""
    return [
        {"ph": "M", "name": f"{kind}_{what}", "pid": pid, "tid": tid, "args": args}
        for what, args in (("name", {"name": name}), ("sort_index", {"sort_index": place}))
    ]
