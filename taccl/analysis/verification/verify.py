"""Independent verifier: replays a schedule against the topology, the collective and the clauses.

No code here calls a producer of schedules. Times are recomputed from the topology's exact fractions, and the
clauses are read from `Clauses` alone. Only the number of ticks per microsecond comes from ``problem.costs``.
`symmetry`, `switch_policies`, `link_use`, `objective_weight` and `routing_slack` guide a search and constrain
no schedule, so they are not checked.

Schedules are read as `Columns`, block by block, and each rule is checked in one place. Columns may be
memory-mapped files.

Replay
------
- In a collective that does not combine, a rank either holds a chunk or does not. Its origins hold it from the
  start, or from its release date. Any other rank holds it from the end of the first send that delivers it, or
  from the arrival of the chunk that it is derived from (`Derivation`). Collectives with derivations (scan)
  are judged by the same rule: the chunk that travels is a whole prefix, to which nothing is added.
- In a combining collective, each rank holds, for each chunk, the set of ranks whose contributions are summed
  in its buffer. A send carries the contents of its source's buffer at its start. On arrival they are added to
  those of the destination (``reduce``) or replace them. At equal times, arrivals come before starts. Chunks
  do not affect each other's buffers, so they are replayed one by one.
- If transfers name the contributions that they carry, a rank keeps its own contribution and all arrivals
  separately, as a runtime with scratch space does. Each sum that it sends, and each result, must be a
  disjoint union of some of them.
- Some clauses distinguish sums on their way to the root from sums on their way from it. The verifier decides
  by what the sender holds when a send starts, and ignores ``reduce``.

A transfer that breaks one rule is still checked against the others, as far as they apply. A fault is reported
once, and not again at every rank downstream.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from math import nan

import numpy as np

from taccl._internal.arguments import checked
from taccl.analysis.verification.clauses import check_clauses, check_dates, check_order, check_paths
from taccl.analysis.verification.columns import Columns
from taccl.analysis.verification.data import Replay
from taccl.analysis.verification.findings import Findings, Verification
from taccl.analysis.verification.named_sums import NamedSums
from taccl.analysis.verification.sends import Contention, check_indices, check_merging, check_times
from taccl.analysis.verification.verify_implicit import verify_implicit
from taccl.schedule.implicit_schedule import ImplicitSchedule
from taccl.schedule.schedule import Schedule


@checked
def verify(schedule: Schedule | ImplicitSchedule) -> Verification:
    """Verify a schedule: report every broken rule, with at most 1,000 violations of each kind.

    The result has ``ok``, the ``violations``, and the finish in us. Its ``raise_if_failed()`` raises
    `VerificationError`. Implicit schedules are verified without expansion into transfers (`verify_implicit`).
    """
    if isinstance(schedule, ImplicitSchedule):
        return verify_implicit(schedule)
    return _judge(schedule, Columns(schedule))


def compile_verifier(schedule: Schedule) -> None:
    """Compile the loops that verify schedules of a kind of collective, by verifying one such schedule."""
    columns = Columns(schedule)
    columns.is_large, columns.is_sorted = True, False
    _judge(schedule, columns)


def _judge(schedule: Schedule, columns: Columns) -> Verification:
    findings = Findings(columns)
    finish = None if columns.end is None else int(columns.end.max(initial=0))
    valid = check_indices(columns, findings)
    sizes: Counter[int] = Counter()
    if columns.group is not None:
        groups, counts = np.unique(columns.group, return_counts=True)
        sizes.update(dict(zip(groups[counts > 1].tolist(), counts[counts > 1].tolist(), strict=True)))
    if valid is not None:
        columns.take(valid)
    columns.sort()
    check_merging(columns, findings, sizes)
    check_times(columns, findings)
    num_redundant, last = _check_blocks(columns, findings)
    if finish is None:  # a send has no end if its link or its chunk does not exist
        has_ends = all(each.kind != "index" for each in findings.violations)
        finish = last if has_ends else None
    return Verification(
        tuple(findings.violations),
        finish_us=nan if finish is None else float(Fraction(finish, columns.ticks.per_us)),
        num_transfers=schedule.num_transfers,
        num_sends=schedule.num_sends,
        num_redundant=num_redundant,
        is_complete=findings.is_complete,
    )


def _check_blocks(columns: Columns, findings: Findings) -> tuple[int, int]:
    """Check contention, data, clauses and dates; return (number of redundant arrivals, last end in ticks)."""
    data: Replay | NamedSums
    data = Replay(columns) if columns.carried is None else NamedSums(columns)
    contention, last = Contention(columns), 0
    for block in columns.blocks():
        contention.note(block)
        last = max(last, int(block.end.max()))
    contention.report(findings)
    data.report(findings)
    check_clauses(columns, findings, data.reducing)
    check_paths(columns, findings, data.reducing, data if isinstance(data, NamedSums) else None)
    check_order(columns, findings, data.reducing)
    check_dates(columns, findings, None if isinstance(data, NamedSums) else data.dates)
    return data.num_redundant, last
