"""Release and due dates of chunks at ranks.

Data that a rank starts with is neither sent nor added to before its release date. Each chunk with a due date
is complete at its rank by then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from taccl.analysis.verification.columns import Columns
from taccl.analysis.verification.data import arrivals, places_of
from taccl.analysis.verification.findings import Findings


def check_dates(columns: Columns, findings: Findings, dates: Mapping[tuple[int, int], int] | None) -> None:
    """Report transfers before release dates, and chunks after due dates.

    - `dates`: `Replay.dates` of copies; None for sums, which are whole with their last arrival.
    """
    problem, ticks, num_ranks = columns.problem, columns.ticks, columns.topology.num_ranks
    if not problem.release_us and not problem.due_us:
        return
    release = {(chunk, rank): us * ticks.per_us for chunk, rank, us in problem.release_us}
    released = np.array([c * num_ranks + rank for c, rank in release], np.int64)
    # Times of sends are whole, so that dates may be rounded up for them.
    release_ticks = np.array([math.ceil(each) for each in release.values()], np.int64)
    for block in columns.blocks() if release else ():
        leaves, src = columns.ends.sources(block.link)
        lands, dst = columns.ends.destinations(block.link)
        adds = columns.adds(block.rows)[lands]
        early = []
        for time, i, at, text in (
            (block.start, leaves, src, "leaves before {us} us, when the rank has it"),
            (block.end, lands[adds], dst[adds], "is added to what the rank has only from {us} us on"),
        ):
            place, is_known = places_of(released, block.chunk[i] * num_ranks + at)
            is_early = np.flatnonzero(is_known)
            is_early = is_early[time[i[is_early]] < release_ticks[place[is_early]]]
            early += [(int(i[k]), int(at[k]), text) for k in is_early.tolist()]
        for k, r, text in sorted(early, key=lambda each: each[0]):
            when = f"{float(release[int(block.chunk[k]), r] / ticks.per_us):.6g}"
            findings.report("release", text.format(us=when), block.first + k, rank=r)
    arrived = arrivals(columns, [(chunk, rank) for chunk, rank, _ in problem.due_us], last=dates is None)
    for chunk, rank, us in problem.due_us:
        own = release.get((chunk, rank), (dates or {}).get((chunk, rank)))
        if (chunk, rank) not in release and rank in columns.collective.chunks[chunk].origins:
            own = 0
        times = [ticks for ticks in (own, arrived.get((chunk, rank))) if ticks is not None]
        there = max(times, default=0) if dates is None else min(times, default=0)
        if there > us * ticks.per_us:
            text = f"is there at {ticks.us(there)} us; it is due at {float(us):.6g} us"
            findings.report("due", text, rank=rank, chunk=chunk)
