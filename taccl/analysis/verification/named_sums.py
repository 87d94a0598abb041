"""Replay of transfers that name the contributions they carry, as in a runtime with scratch space."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import reduce
from operator import or_

import numpy as np

from taccl.analysis.verification.columns import Columns
from taccl.analysis.verification.data import ranks_text
from taccl.analysis.verification.findings import Findings
from taccl.analysis.verification.loops import NEVER

#: Max search nodes to compose a sum from arrived sums; beyond it, the sum is reported as undecided.
_MOST_TRIED = 200_000


class NamedSums:
    """Replay of transfers that name the contributions they carry.

    A rank keeps its own contribution and every arrival, separately and permanently. Each sum that it sends,
    and each of its results, must be a disjoint union of sums that it holds by then. If only the root wants a
    sum, all its sends are on the way to the root. Otherwise, partial sums are on the way to the root, and the
    whole sum spreads from the rank that completes it.

    - `num_redundant`: Number of arrivals of a sum that the rank already holds.
    - `reducing`, (num_transfers,) bool: True for transfers on the way to their root.
    """

    def __init__(self, columns: Columns, carried: list[int]) -> None:
        chunks = columns.collective.chunks
        self._columns, self._carried = columns, carried
        *read, ends = columns.read(slice(None))
        self._rows = list(zip(*(column.tolist() for column in read), strict=True))
        self._ends, self._adds = ends, columns.adds(slice(None))
        #: Ranks that contribute to each chunk, as bit masks.
        self._everyone = [sum(1 << rank for rank in data.origins) for data in chunks]
        everyone, stays = self._everyone, [data.destinations == (data.root,) for data in chunks]
        pairs = zip(self._rows, carried, strict=True)
        self.reducing = np.array([bits != everyone[c] or stays[c] for (c, *_), bits in pairs], dtype=bool)
        self.num_redundant = 0

    def report(self, findings: Findings) -> None:
        """Report wrongly named contributions, and sums that a rank cannot make at the time it needs them."""
        columns, carried, everyone = self._columns, self._carried, self._everyone
        links, chunks = columns.topology.links, columns.collective.chunks
        if columns.collective.update_us_per_mb is not None:
            said = "named contributions do not show a server's update; expected a schedule without them"
            findings.report("update", said, chunk=None)
        self._check_names(findings)
        has: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)  # (rank, chunk) -> {sum: arrival tick}
        for chunk, data in enumerate(chunks):
            for rank in data.origins:
                has[rank, chunk][1 << rank] = -NEVER
        rows, ends = self._rows, self._ends.tolist()
        for i in np.argsort(self._ends, kind="stable").tolist():
            chunk, link, _ = rows[i]
            bits = carried[i]
            for rank in links[link].dsts:
                known = has[rank, chunk]
                if bits in known:
                    self.num_redundant += 1
                else:
                    known[bits] = ends[i]
        composed: set[tuple[int, int, int]] = set()  # (rank, chunk, sum); rows are in order of start
        for i, (chunk, link, start) in enumerate(rows):
            srcs, bits = links[link].srcs, carried[i]
            for rank in srcs:
                since = has[rank, chunk].get(bits)
                if since is not None and since <= start:
                    break
            else:
                key = srcs[0], chunk, bits
                if len(srcs) == 1 and (key in composed or _is_sum_of_all(bits, has[key[:2]], start)):
                    composed.add(key)
                    continue
                by_then = [each for r in srcs for each, since in has[r, chunk].items() if since <= start]
                _report_unmade(findings, bits, by_then, i=i, rank=srcs[0], chunk=chunk)
        for chunk, data in enumerate(chunks):
            for rank in data.destinations:
                known = has[rank, chunk]
                if not everyone[chunk] or everyone[chunk] not in known:
                    _report_unmade(findings, everyone[chunk], [*known], rank=rank, chunk=chunk)

    def _check_names(self, findings: Findings) -> None:
        """Report sums of no contribution or of ranks that have none, and sums that should not be added."""
        carried, adds = self._carried, self._adds.tolist()
        whole = [self._everyone[chunk] for chunk, *_ in self._rows]
        lacks = [bits != every for bits, every in zip(carried, whole, strict=True)]
        are_named = all(bits and not bits & ~every for bits, every in set(zip(carried, whole, strict=True)))
        if are_named and lacks == adds:
            return
        for i in np.argsort(self._ends, kind="stable").tolist():
            bits, strange = carried[i], carried[i] & ~whole[i]
            if adds[i] != lacks[i]:
                expected = "reduced, as it lacks some" if lacks[i] else "copied, as it has all"
                findings.report("reduce", f"expected the sum of ranks {ranks_text(bits)} to be {expected}", i)
            if not bits or strange:
                text = f"carries contributions of ranks {ranks_text(strange)}, which have none"
                findings.report("presence", text if bits else "carries nothing", i)

    def links_passed(self) -> Iterator[int]:
        """Yield the number of links that each transfer's sum has passed, in order of start.

        The number is one more than the maximum over sums at the sources that may be part of this sum. A whole
        sum starts with 0 links at the rank that completes it, root or not. A whole sum that arrived keeps its
        number.
        """
        columns, carried = self._columns, self._carried
        links, rows, ends = columns.topology.links, self._rows, self._ends
        lands = iter(np.lexsort((~self._adds, ends)).tolist())
        landing = next(lands, None)
        #: {(rank, chunk): {arrived sum: fewest links that it passed}}.
        passed: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
        under_way: list[int] = []
        for i, (chunk, link, start) in enumerate(rows):
            while landing is not None and ends[landing] <= start:
                bits, number = carried[landing], under_way[landing]
                for rank in links[rows[landing][1]].dsts:
                    known = passed[rank, rows[landing][0]]
                    known[bits] = min(number, known.get(bits, number))
                landing = next(lands, None)
            spreads = not self.reducing[i] and carried[i] == self._everyone[chunk]
            before = [
                number
                for rank in links[link].srcs
                for bits, number in passed[rank, chunk].items()
                if (bits == carried[i] if spreads else not bits & ~carried[i])
            ]
            under_way.append(1 + max(before, default=0))
            yield under_way[-1]


def _is_sum_of_all(wanted: int, known: dict[int, int], by: int) -> bool:
    """True if all known sums within the wanted one are disjoint and together equal to it.

    - `known`: {sum: its arrival in ticks}; only arrivals up to the tick `by` count.
    """
    total = union = 0
    for bits, since in known.items():
        if since <= by and not bits & ~wanted:
            total += bits
            union |= bits
    return union == wanted == total  # without an overlap, the sum of the bit masks equals their union


def _report_unmade(
    findings: Findings, wanted: int, known: list[int], *, rank: int, chunk: int, i: int | None = None
) -> None:
    """Report a sum that is no disjoint union of the `known` sums: missing or repeated contributions."""
    usable = {bits for bits in known if bits and not bits & ~wanted}
    reached = reduce(or_, usable, 0)
    # Without an overlap, the sum of the bit masks equals their union.
    if wanted in usable or reached == wanted == sum(usable):
        return
    if reached != wanted:
        lacking = ranks_text(wanted & ~reached)
        if i is None:
            text = f"the sum lacks contributions of ranks {lacking}"
            findings.report("postcondition", text, rank=rank, chunk=chunk)
        else:
            text = f"the rank holds no contributions of ranks {lacking} that fit when the send starts"
            findings.report("presence", text, i, rank=rank)
        return
    can_be_made = _is_disjoint_union(wanted, usable)
    if not can_be_made:
        text = f"the sum of ranks {ranks_text(wanted)} cannot be made without counting a contribution twice"
        if can_be_made is None:
            text = f"undecided whether the sum of ranks {ranks_text(wanted)} can be made"
        findings.report("double-count", text, i, rank=rank, chunk=chunk)


def _is_disjoint_union(wanted: int, usable: set[int]) -> bool | None:
    """True if `wanted` is a disjoint union of `usable` sums; None if the search reached its limit."""
    largest_first = sorted(usable, key=lambda bits: (-bits.bit_count(), bits))
    rest = wanted
    for bits in largest_first:
        if not bits & ~rest:
            rest ^= bits
    if not rest:
        return True
    of_rank: dict[int, list[int]] = defaultdict(list)
    for bits in largest_first:
        for place in range(bits.bit_length()):
            if bits >> place & 1:
                of_rank[place].append(bits)
    left = [wanted]
    for _ in range(_MOST_TRIED):
        if not left or not left[-1]:
            return bool(left)
        missing = left.pop()
        # Branch on the rank that the fewest known sums contain.
        place = min(
            (r for r in range(missing.bit_length()) if missing >> r & 1), key=lambda r: len(of_rank[r])
        )
        left += [missing & ~bits for bits in of_rank[place] if not bits & ~missing]
    return None
