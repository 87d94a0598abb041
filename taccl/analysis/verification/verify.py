"""Independent verifier: replays a schedule against the topology, the collective and the clauses.

No code here calls a producer of schedules. Times are recomputed from the topology's exact fractions, and the
clauses are read from `Clauses` alone. Only the number of ticks per microsecond comes from ``problem.costs``.
`symmetry`, `switch_policies`, `link_use`, `objective_weight` and `routing_slack` guide a search and constrain
no schedule, so they are not checked.

Replay
------
- In a collective that does not combine, a rank either holds a chunk or does not. Its origins hold it from the
  start, or from its release date. Any other rank holds it from the end of the first send that delivers it, or
  from the arrival of the chunk that it is derived from (`Derivation`). Collectives with derivations (scan)
  are judged by the same rule: the chunk that travels is a whole prefix, to which nothing is added.
- In a combining collective, each rank holds, for each chunk, the set of ranks whose contributions are summed
  in its buffer. A send carries the contents of its source's buffer at its start. On arrival they are added to
  those of the destination (``reduce``) or replace them. At equal times, arrivals come before starts.
- If transfers name the contributions that they carry, a rank keeps its own contribution and all arrivals
  separately, as a runtime with scratch space does. Each sum that it sends, and each result, must be a
  disjoint union of some of them.
- Some clauses distinguish sums on their way to the root from sums on their way from it. The verifier decides
  by what the sender holds when a send starts, and ignores ``reduce``: see `check_sums`.

A transfer that breaks one rule is still checked against the others, as far as they apply. A fault is reported
once, and not again at every rank downstream.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from fractions import Fraction
from functools import cache

from taccl.analysis.verification.contents import check_copies, check_named_sums, check_sums
from taccl.analysis.verification.obedience import check_clauses, check_moments, check_own_first, check_paths
from taccl.analysis.verification.replay import Replay
from taccl.analysis.verification.verify_compact import verify_compact
from taccl.analysis.verification.verify_implicit import verify_implicit
from taccl.analysis.verification.violation import Verification
from taccl.arguments import checked
from taccl.schedule.compact import CompactSchedule
from taccl.schedule.implicit import ImplicitSchedule
from taccl.schedule.schedule import Schedule
from taccl.topology.topology import Hold


@checked
def verify(schedule: Schedule | CompactSchedule | ImplicitSchedule) -> Verification:
    """Verify a schedule; report every broken rule, but only the first fault of a compact schedule.

    Compact schedules are verified by `verify_compact`, or expanded if servers update sums. Implicit schedules
    are verified without expansion (`verify_implicit`).
    """
    if isinstance(schedule, ImplicitSchedule):
        return verify_implicit(schedule)
    if isinstance(schedule, CompactSchedule):
        if schedule.problem.collective.update_us_per_mb is None:
            return verify_compact(schedule)
        schedule = schedule.expand()
    replay = Replay(schedule)
    _check_indices(replay)
    _check_merging(replay)
    _check_times(replay)
    _check_contention(replay)
    collective = schedule.problem.collective
    if replay.carried is not None:
        if collective.update_us_per_mb is not None:
            said = "contributions that are kept apart show no update; expected a schedule that names none"
            replay.report("update", said, chunk=None)
        num_redundant = check_named_sums(replay, replay.carried)
    elif collective.combining and not collective.derivations:
        num_redundant = check_sums(replay)
    else:
        num_redundant = check_copies(replay)
    check_clauses(replay)
    check_paths(replay)
    check_own_first(replay)
    check_moments(replay)
    return Verification(
        tuple(replay.violations),
        finish_us=float(Fraction(max(replay.end, default=0), replay.ticks_per_us)),
        num_transfers=len(replay.chunk),
        num_sends=len(set(replay.group)),
        num_redundant=num_redundant,
    )


def _check_indices(replay: Replay) -> None:
    """Check that chunk, link and interval of each transfer are valid; exclude invalid ones from replay."""
    num_chunks, num_links = replay.collective.num_chunks, len(replay.topology.links)
    for i, (chunk, link, start, end) in enumerate(
        zip(replay.chunk, replay.link, replay.start, replay.end, strict=True)
    ):
        if not 0 <= chunk < num_chunks:
            replay.report("index", f"there is no such chunk; expected 0-{num_chunks - 1}", i)
        elif not 0 <= link < num_links:
            replay.report("index", f"there is no such link; expected 0-{num_links - 1}", i)
        elif end <= start:
            replay.report("interval", "the send does not end after it starts", i)
        else:
            replay.usable.append(i)
            if start < 0:
                replay.report("interval", "the send starts before time 0", i)


def _check_merging(replay: Replay) -> None:
    """Check that transfers of a group share link, times and operation, and obey the merge limits."""
    groups: dict[int, list[int]] = defaultdict(list)
    for i in replay.usable:
        groups[replay.group[i]].append(i)
    whole = Counter(replay.group)
    for group, members in groups.items():
        first = members[0]
        if whole[group] == len(members) == 1:
            replay.sends.append(members)
            continue
        sound = whole[group] == len(members)
        seen: set[int] = set()
        shares = f"shares group {group} with chunk {replay.chunk[first]}"
        for i in members:
            text = ""
            if replay.reduce[i] != replay.reduce[first]:
                text = f"{shares}, one reduced and one copied; expected one of the two for a whole send"
            elif any(column[i] != column[first] for column in (replay.link, replay.start, replay.end)):
                when = f"{replay.link_text(replay.link[first])}, {replay.span(first)}"
                text = f"{shares}, {when}; expected the same link, start and end"
            elif replay.chunk[i] in seen:
                text = f"the chunk is twice in group {group}"
            if text:
                replay.report("merge", text, i)
                sound = False
            seen.add(replay.chunk[i])
        if not sound:
            continue
        replay.sends.append(members)
        if len(members) > 1 and replay.link[first] not in replay.clauses.merging:
            text = f"{len(members)} chunks in one send; sends over this link do not merge"
            replay.report("merge", text, first, clause="merging")
        elif len(members) > replay.clauses.max_merge:
            text = f"{len(members)} chunks in one send; expected at most {replay.clauses.max_merge}"
            replay.report("merge", text, first, clause="max_merge")


def _check_times(replay: Replay) -> None:
    """Check that every send lasts alpha + bytes * beta of its link."""
    latency = cache(replay.latency)
    for members in replay.sends:
        first = members[0]
        link, num_bytes = replay.link[first], replay.bytes_of(members)
        expected, found = latency(link, num_bytes), replay.end[first] - replay.start[first]
        if found != expected:
            ends = replay.topology.links[link]
            replay.report(
                "times",
                f"takes {replay.us(found)} us; alpha {ends.alpha_us} us and {num_bytes} bytes at "
                f"{ends.beta_us_per_mb} us/MB make {replay.us(expected)} us",
                first,
            )


def _check_contention(replay: Replay) -> None:
    """Check that each resource is held by one send at a time; intervals are half open."""
    rows: list[tuple[int, int, int, int]] = []

    @cache
    def held(link: int, num_bytes: int) -> list[tuple[Hold, int]]:
        """Each hold with its length in ticks, rounded up: starts and ends are whole ticks."""
        holds = replay.topology.holds_of_link[link]
        return [(h, math.ceil(replay.ticks(h.alpha_us, h.beta_us_per_mb, num_bytes))) for h in holds]

    for index, members in enumerate(replay.sends):
        first = members[0]
        for hold, length in held(replay.link[first], replay.bytes_of(members)):
            begin = replay.start[first] if hold.side == "send" else replay.end[first] - length
            rows.append((hold.resource, begin, index, begin + length))
    last, until, holder = -1, 0, -1  # which resource is held, until when, and by which send
    for resource, begin, index, end in sorted(rows):
        if resource != last:
            last, until, holder = resource, begin, index
        if index != holder and begin < until:
            first, other = replay.sends[index][0], replay.sends[holder][0]
            replay.report(
                "contention",
                f"holds {replay.topology.resources[resource].name} from {replay.us(begin)} us, which "
                f"chunk {replay.chunk[other]} over {replay.link_text(replay.link[other])} holds until "
                f"{replay.us(until)} us",
                first,
            )
        if end >= until:
            until, holder = end, index
