"""Check of the limits on the number of links that a chunk passes in sequence (see `count_links`)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from taccl.analysis.verification.columns import Columns
from taccl.analysis.verification.data import by_chunk
from taccl.analysis.verification.findings import Findings
from taccl.analysis.verification.loops import count_links, fitted
from taccl.analysis.verification.named_sums import NamedSums


def check_paths(
    columns: Columns, findings: Findings, reducing: NDArray[np.bool_], named: NamedSums | None
) -> None:
    """Report the transfers whose chunk has passed more links than a clause allows, that link included."""
    limits = [(each, getattr(columns.clauses, each.field)) for each in columns.clauses.said("path")]
    if not limits:
        return
    least = min(most for _, most in limits)
    if named is None:
        far = _far(columns, reducing, least)
    else:
        far = [(i, passed) for i, passed in enumerate(named.links_passed()) if passed > least]
    for i, passed in sorted(far):
        for clause, most in limits:
            if passed > most:
                text = f"is the {_ordinal(passed)} link on the chunk's path; expected at most {most}"
                findings.report(clause.violation, text, i, clause=clause.field)


def _far(columns: Columns, reducing: NDArray[np.bool_], most: int) -> list[tuple[int, int]]:
    """(transfer, number of links passed) of transfers beyond a number of links."""
    copies, summed = np.empty((2, columns.topology.num_ranks), np.int64)
    far = []
    for some in by_chunk(columns, columns.start_sets()):
        sums = some.sums._replace(gathers=reducing[some.at]) if len(reducing) else some.sums
        passed = np.empty(len(some.at), np.int64)
        fitted(count_links, columns.is_large)(sums, some.chunks, columns.ends, copies, summed, passed)
        at = np.flatnonzero(passed > most)
        far += list(zip(some.at[at].tolist(), passed[at].tolist(), strict=True))
    return far


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
