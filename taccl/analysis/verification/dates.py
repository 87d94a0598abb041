"""Release and due dates of chunks at ranks.

Data that a rank starts with is neither sent nor added to before its release date. Each chunk with a due date
is complete at its rank by then.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from taccl.analysis.verification.columns import Columns
from taccl.analysis.verification.copies import Copies
from taccl.analysis.verification.findings import Findings


def check_dates(columns: Columns, findings: Findings, copies: Copies | None) -> None:
    """Report transfers before release dates, and chunks after due dates.

    - `copies`: Arrivals of chunks that are copied; a sum is whole with its last arrival.
    """
    problem, ticks, num_ranks = columns.problem, columns.ticks, columns.topology.num_ranks
    release = {(chunk, rank): us * ticks.per_us for chunk, rank, us in problem.release_us}
    released = np.array([c * num_ranks + rank for c, rank in release], np.int64)
    # Times of sends are whole, so that dates may be rounded up for them.
    release_ticks = np.array([math.ceil(each) for each in release.values()], np.int64)
    due = np.array([c * num_ranks + rank for c, rank, _ in problem.due_us], np.int64)
    arrived = np.zeros(len(due), np.int64)
    for block in columns.blocks() if release or problem.due_us else ():
        leaves, src = columns.ends.sources(block.link)
        lands, dst = columns.ends.destinations(block.link)
        adds = columns.adds(block.rows)[lands]
        early = []
        for time, i, at, text in (
            (block.start, leaves, src, "leaves before {us} us, when the rank has it"),
            (block.end, lands[adds], dst[adds], "is added to what the rank has only from {us} us on"),
        ):
            place, is_known = _places(released, block.chunk[i] * num_ranks + at)
            is_early = np.flatnonzero(is_known)
            is_early = is_early[time[i[is_early]] < release_ticks[place[is_early]]]
            early += [(int(i[k]), int(at[k]), text) for k in is_early.tolist()]
        for k, r, text in sorted(early, key=lambda each: each[0]):
            when = f"{float(release[int(block.chunk[k]), r] / ticks.per_us):.6g}"
            findings.report("release", text.format(us=when), block.first + k, rank=r)
        place, is_due = _places(due, block.chunk[lands] * num_ranks + dst)
        np.maximum.at(arrived, place[is_due], block.end[lands[is_due]])
    for number, (chunk, rank, us) in enumerate(problem.due_us):
        known = release.get((chunk, rank))
        if copies is None:
            there = max(known or Fraction(0), Fraction(int(arrived[number])))
        else:
            since = int(copies.table.since[copies.table.at(chunk, rank)])
            there = Fraction(0 if since == copies.table.never else since)
            there = there if known is None else min(known, there)
        if there > us * ticks.per_us:
            text = f"is there at {ticks.us(there)} us; it is due at {float(us):.6g} us"
            findings.report("due", text, rank=rank, chunk=chunk)


def _places(
    keys: NDArray[np.int64], wanted: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Index of each wanted key in sorted `keys`, and True where it is one of them."""
    if not len(keys):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), bool)
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return place, keys[place] == wanted
