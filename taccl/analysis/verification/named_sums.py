"""Replay of transfers that name the contributions they carry, as in a runtime with scratch space."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property, reduce
from operator import or_

import numpy as np
from numpy.typing import NDArray

from taccl._internal.arrays import Ints, distinct, first_rows, lexsort, places_of, ranges
from taccl.analysis.verification.columns import Columns, flat_sets
from taccl.analysis.verification.data import ranks_text
from taccl.analysis.verification.findings import Findings
from taccl.analysis.verification.loops import NEVER

#: Max search nodes to compose a sum from arrived sums; beyond it, the sum is reported as undecided.
_MOST_TRIED = 200_000
#: Limits above which sums are judged one by one, instead of all together by sorts.
#: `_MOST_PLACES`: max product of the numbers of chunks, ranks and distinct sums.
#: `_MOST_PAIRS`: max number of (wanted sum, sum at its place) pairs, of about 50 bytes.
_MOST_PLACES, _MOST_PAIRS = 2**62, 1 << 24


class NamedSums:
    """Replay of transfers that name the contributions they carry.

    A rank keeps its own contribution and every arrival, separately and permanently. Each sum that it sends,
    and each of its results, must be a disjoint union of sums that it holds by then. If only the root wants a
    sum, all its sends are on the way to the root. Otherwise, partial sums are on the way to the root, and the
    whole sum spreads from the rank that completes it.

    - `num_redundant`: Number of arrivals of a sum that the rank already holds.
    - `reducing`, (num_transfers,) bool: True for transfers on the way to their root.
    """

    def __init__(self, columns: Columns) -> None:
        assert columns.carried is not None, "transfers name contributions"
        collective, index = columns.collective, {bits: number for number, bits in enumerate(columns.sums)}
        self._columns, self._carried = columns, columns.carried
        self._chunk, self._link, self._start, self._ends = columns.read(slice(None))
        self._adds = columns.adds(slice(None))
        everyone = [sum(1 << rank for rank in ranks) for ranks in collective.origin_sets.sets]
        whole = [index.setdefault(bits, len(index)) for bits in everyone]
        #: (num_ranks,) Index in `_sums` of each rank's own contribution.
        self._own = np.array([index.setdefault(1 << r, len(index)) for r in range(collective.num_ranks)])
        #: (num_chunks,) Index in `_sums` of the sum of all contributions to each chunk.
        self._whole = np.array(whole, np.int64)[collective.origin_sets.of_chunk]
        #: Distinct sets of contributions: those that transfers carry, whole sums, and those of single ranks.
        self._sums = list(index)
        stays = np.array([data.destinations == (data.root,) for data in collective.chunks], bool)
        self._lacks = self._carried != self._whole[self._chunk]
        self.reducing = self._lacks | stays[self._chunk]
        self.num_redundant = 0

    @cached_property
    def _rows(self) -> list[tuple[int, int, int]]:
        """(chunk, link, start) of each transfer."""
        return list(zip(self._chunk.tolist(), self._link.tolist(), self._start.tolist(), strict=True))

    @cached_property
    def _carried_bits(self) -> list[int]:
        """Bit mask of the contributions that each transfer carries."""
        return [self._sums[number] for number in self._carried.tolist()]

    def report(self, findings: Findings) -> None:
        """Report wrongly named contributions, and sums that a rank cannot make at the time it needs them."""
        if self._columns.collective.updates:
            said = "named contributions do not show a server's update; expected a schedule without them"
            findings.report("update", said, chunk=None)
        self._check_names(findings)
        if not self._are_made():
            self._report_sums(findings)

    def _are_made(self) -> bool:
        """True if ranks can make all sums from disjoint arrivals; false also if that is not decided here.

        Sets `num_redundant` if the result is True.
        """
        columns, num_ranks, num_sums = self._columns, self._columns.collective.num_ranks, len(self._sums)
        origins, given, given_end = flat_sets(columns.collective.origin_sets)
        wanted, want, want_end = flat_sets(columns.collective.destination_sets)
        if len(given) * num_ranks * num_sums >= _MOST_PLACES:
            return False
        # A place is a chunk at a rank; a key is a sum at a place. Own contributions are there from the start.
        chunk, at = ranges(given, given_end)
        own = (chunk * num_ranks + origins[at]) * num_sums + self._own[origins[at]]
        send, rank = columns.ends.destinations(self._link)
        arrived = (self._chunk[send] * num_ranks + rank) * num_sums + self._carried[send]
        held, which = np.unique(np.append(own, arrived), return_inverse=True)
        since = np.full(len(held), NEVER)
        np.minimum.at(since, which, np.append(np.full(len(own), -NEVER), self._ends[send]))
        send, rank = columns.ends.sources(self._link)
        sent = (self._chunk[send] * num_ranks + rank) * num_sums + self._carried[send]
        place, is_held = places_of(held, sent)
        is_sent = np.zeros(len(self._link), bool)
        is_sent[send[is_held & (since[place] <= self._start[send])]] = True
        rest = np.flatnonzero(~is_sent[send])
        if (np.bincount(send[rest]) > 1).any():  # several ranks compose the sum
            return False
        chunk, at = ranges(want, want_end)
        results = (chunk * num_ranks + wanted[at]) * num_sums + self._whole[chunk]
        results = results[~places_of(held, results)[1]]
        keys, first = first_rows(sent[rest])  # in order of start
        by = np.append(self._start[send[rest[first]]], np.full(len(results), NEVER))
        if not self._are_disjoint_unions(held, since, np.append(keys, results), by):
            return False
        self.num_redundant = len(arrived) + len(distinct(own)) - len(held)
        return True

    def _are_disjoint_unions(self, held: Ints, since: Ints, keys: Ints, by: Ints) -> bool:
        """True if each wanted sum is found to be a disjoint union of sums that its place holds by a time.

        - `held`, `since`: Keys of all sums at places, ascending, and the ticks from which they are there.
        - `keys`, `by`: Keys of the wanted sums, and the ticks by which they are needed.
        """
        place, target = np.divmod(keys, len(self._sums))
        begin = np.searchsorted(held, place * len(self._sums))
        end = np.searchsorted(held, (place + 1) * len(self._sums))
        if (end - begin).sum() > _MOST_PAIRS:
            return False
        query, at = ranges(begin, end)
        is_usable, part = since[at] <= by[query], held[at] % len(self._sums)
        words, sizes = _words(self._sums), np.array([bits.bit_count() for bits in self._sums])
        for word in words.T:
            is_usable &= word[part] & ~word[target[query]] == 0
        query, part = query[is_usable], part[is_usable]
        first = np.flatnonzero(np.diff(query, prepend=-1))
        if len(first) < len(keys):  # a place holds no part of a sum
            return False
        if not len(keys):
            return True
        # Parts that together have as many ranks as their union are disjoint.
        are_made = np.add.reduceat(sizes[part], first) == sizes[target]
        for word in words.T:
            are_made &= np.bitwise_or.reduceat(word[part], first) == word[target]
        # If parts overlap, take the largest disjoint ones.
        rest, order = words[target], lexsort((-sizes[part], query))
        left, last = np.flatnonzero(~are_made), np.append(first[1:], len(part))
        while len(left):
            bits = words[part[order[first[left]]]]
            fits = left[(bits & ~rest[left] == 0).all(axis=1)]
            rest[fits] ^= words[part[order[first[fits]]]]
            first[left] += 1
            left = left[(first[left] < last[left]) & rest[left].any(axis=1)]
        return not rest[~are_made].any()

    def _report_sums(self, findings: Findings) -> None:
        """Report sums that a rank cannot make, one transfer after another; count redundant arrivals."""
        columns, carried, rows = self._columns, self._carried_bits, self._rows
        links, chunks = columns.topology.links, columns.collective.chunks
        has: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)  # (rank, chunk) -> {sum: arrival tick}
        for chunk, data in enumerate(chunks):
            for rank in data.origins:
                has[rank, chunk][1 << rank] = -NEVER
        ends = self._ends.tolist()
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
            everyone = self._sums[self._whole[chunk]]
            for rank in data.destinations:
                known = has[rank, chunk]
                if not everyone or everyone not in known:
                    _report_unmade(findings, everyone, [*known], rank=rank, chunk=chunk)

    def _check_names(self, findings: Findings) -> None:
        """Report sums of no contribution or of ranks that have none, and sums that should not be added."""
        whole = self._whole[self._chunk]
        named = distinct(self._carried * len(self._sums) + whole)
        pairs = ((self._sums[k // len(self._sums)], self._sums[k % len(self._sums)]) for k in named.tolist())
        if all(bits and not bits & ~every for bits, every in pairs) and (self._lacks == self._adds).all():
            return
        for i in np.argsort(self._ends, kind="stable").tolist():
            bits, lacks = self._carried_bits[i], bool(self._lacks[i])
            strange = bits & ~self._sums[whole[i]]
            if self._adds[i] != lacks:
                expected = "reduced, as it lacks some" if lacks else "copied, as it has all"
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
        columns, carried = self._columns, self._carried_bits
        links, rows, ends = columns.topology.links, self._rows, self._ends
        lands = iter(lexsort((~self._adds, ends)).tolist())
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
            spreads = not (self.reducing[i] or self._lacks[i])
            before = [
                number
                for rank in links[link].srcs
                for bits, number in passed[rank, chunk].items()
                if (bits == carried[i] if spreads else not bits & ~carried[i])
            ]
            under_way.append(1 + max(before, default=0))
            yield under_way[-1]


def _words(sums: Sequence[int]) -> NDArray[np.uint64]:
    """Bit masks as words of 64 bits, (num_sums, num_words)."""
    num_words = max(1, -(-max(bits.bit_length() for bits in sums) // 64))
    every = b"".join(bits.to_bytes(8 * num_words, "little") for bits in sums)
    return np.frombuffer(every, "<u8").reshape(-1, num_words).astype(np.uint64)


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
