"""Verifier of implicit schedules: one pattern of sends is proven valid together with all its translations.

The proof has five steps. Each is arithmetic on whole arrays, without expansion into transfers:

1. *Links.* Element g of the group maps place 0 to g, and place p to g + p. A product of cyclic groups does so
   by definition; for a group of permutations, the products are checked here. For every link class and every
   place, the represented link is looked up in the fabric. It must exist, have the costs of the class, and
   hold resources of the stated classes for the stated times.
2. *Resources.* No two links of a link class hold the same resource. So a send never meets its own
   translations at a resource.
3. *Rows.* Every row ends where its link class leads: ``dst == translate(src, class.dst)``. So does every
   translation of the row, as ``g + (p + d) == (g + p) + d``.
4. *Contention.* By step 2, two sends can meet at a resource only if both of their rows hold its resource
   class. The intervals of these rows must not overlap.
5. *Data.* By translation, it suffices to check the chunks of place 0. Each chunk must be sent from a place
   that already holds it, and must reach every place that wants it. A sum must include every contribution
   once; it is replayed as for ordinary schedules (`data.replay_sum`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from taccl._internal.arrays import distinct
from taccl.analysis.verification.columns import MANY, LinkEnds
from taccl.analysis.verification.data import accept, landing_order, replay_sum
from taccl.analysis.verification.findings import Verification, Violation
from taccl.analysis.verification.loops import SumChunks, Sums, views
from taccl.schedule.implicit_schedule import ImplicitSchedule
from taccl.topology.named import NamedFabric
from taccl.topology.topology import Topology
from taccl.topology.translations import CyclicProduct, LinkClass, Translations

#: Max faulty rows to list for each rule.
_MOST = 5
#: Max ratio of all (item, place) pairs to used pairs for a dense table; above it, the table is sparse.
_SPARSE = 8
_NEVER = 2**62


def verify_implicit(schedule: ImplicitSchedule) -> Verification:
    """Verify an implicit schedule; the module's docstring gives the proof.

    Reports every broken rule, but at most one fault of the links and one of the sums. The effort is
    proportional to the number of links and of pattern rows, not of transfers. If links or rows are invalid,
    later steps are skipped.
    """
    judge = _Judge(schedule)
    if judge.check_links() and judge.check_rows():
        judge.check_contention()
        judge.check_data()
    return Verification(
        tuple(judge.violations),
        finish_us=schedule.finish_us if not judge.meaningless else 0.0,
        num_transfers=schedule.num_transfers,
        num_sends=schedule.num_transfers,
        num_redundant=judge.num_redundant * schedule.num_ranks,
    )


class _Judge:
    """State of a verification: the schedule, and the violations found."""

    def __init__(self, schedule: ImplicitSchedule) -> None:
        self.schedule, self.pattern = schedule, schedule.pattern
        self.shape: Translations = schedule.translations
        self.num_ranks = self.shape.num_ranks
        self.violations: list[Violation] = []
        self.meaningless = False
        self.num_redundant = 0
        #: {resource class: number of times that link classes hold it}.
        self.uses = Counter(hold.resource for each in self.shape.classes for hold in each.holds)

    def report(self, kind: str, message: str, row: int | None = None) -> None:
        if row is None:
            self.violations.append(Violation(kind, message))
            return
        columns = self.pattern
        item, src, dst = (int(column[row]) for column in (columns.item, columns.src, columns.dst))
        start = end = None
        if not self.meaningless:
            per_us = self.schedule.ticks.ticks_per_us
            start, end = int(columns.start[row]) / per_us, int(self.schedule.ends[row]) / per_us
        at = "" if start is None else f" at {start:.3f} us"
        told = f"row {row} (item {item}, {src}->{dst}{at}): {message}"
        self.violations.append(Violation(kind, told, rank=src, chunk=item, start_us=start, end_us=end))

    def report_rows(self, kind: str, rows: NDArray[np.int64], text: str | Callable[[int], str]) -> None:
        for row in rows[:_MOST].tolist():
            self.report(kind, text if isinstance(text, str) else text(row), row)
        if len(rows) > _MOST:
            self.report(kind, f"and {len(rows) - _MOST} rows more")

    # ---- the fabric

    def check_links(self) -> bool:
        """Check steps 1 and 2: links, costs and holds of the classes match the fabric."""
        shape, num_ranks = self.shape, self.num_ranks
        if shape.group.order != num_ranks:
            self.report("symmetry", f"the group has {shape.group.order} elements for {num_ranks} ranks")
        elif shape.ranks is not None and not _is_permutation(shape.ranks, num_ranks):
            self.report("symmetry", "the places are not at every rank once")
        elif any(not 0 < each.dst < num_ranks for each in shape.classes):
            self.report("symmetry", f"a class of links leads to no other place 1-{num_ranks - 1}")
        elif len({each.dst for each in shape.classes}) < len(shape.classes):
            self.report("symmetry", "two classes stand for the same links")
        elif not isinstance(shape.group, CyclicProduct) and not _is_regular(shape.group.table, shape.group):
            self.report("symmetry", "the permutations are not a sharply transitive group")
        elif isinstance(shape.group, CyclicProduct) and min(shape.group.moduli, default=1) < 1:
            self.report("symmetry", f"found moduli {shape.group.moduli}; expected positive ones")
        else:
            host = shape.host
            faults = (
                _unlike_named(self, host) if isinstance(host, NamedFabric) else _unlike_topology(self, host)
            )
            for kind, message in islice(faults, 1):
                self.report(kind, message)
        self.meaningless = bool(self.violations)
        return not self.violations

    def links(self) -> Iterator[tuple[int, LinkClass, NDArray[np.int64], NDArray[np.int64]]]:
        """Yield each class of links as (number, link class, source ranks, destination ranks)."""
        places = np.arange(self.num_ranks, dtype=np.int64)
        for number, each in enumerate(self.shape.classes):
            ends = self.shape.group.translate(places, each.dst)
            yield number, each, self.shape.rank_at(places), self.shape.rank_at(ends)

    # ---- the pattern

    def check_rows(self) -> bool:
        """Check step 3: indices exist, starts are nonnegative, and destinations match the link class."""
        pattern, shape = self.pattern, self.shape
        lengths = {len(column) for column in pattern}
        if len(lengths) > 1:
            self.report("index", f"the pattern's columns have {sorted(lengths)} rows; expected equal lengths")
            self.meaningless = True
            return False
        self.meaningless = True  # until indices are checked: rows of unknown classes have no ends
        for name, column, count in (
            ("item", pattern.item, self.schedule.num_items),
            ("place", pattern.src, self.num_ranks),
            ("place", pattern.dst, self.num_ranks),
            ("class of links", pattern.link_class, len(shape.classes)),
        ):
            wrong = np.flatnonzero((column < 0) | (column >= count))
            self.report_rows("index", wrong, f"there is no such {name}; expected 0-{count - 1}")
        if self.violations:
            return False
        self.meaningless = False
        self.report_rows("interval", np.flatnonzero(pattern.start < 0), "the send starts before time 0")
        steps = np.array([each.dst for each in shape.classes], dtype=np.int64)
        ends = shape.group.translate(pattern.src, steps[pattern.link_class])
        self.report_rows(
            "symmetry",
            np.flatnonzero(ends != pattern.dst),
            lambda row: f"its class {pattern.link_class[row]} of links leads to {ends[row]}",
        )
        return not self.violations

    def check_contention(self) -> None:
        """Check step 4: sends of the pattern that hold one class of resources do so one after another."""
        pattern, ticks = self.pattern, self.schedule.ticks
        order = np.argsort(pattern.link_class, kind="stable")
        cuts = np.searchsorted(pattern.link_class[order], np.arange(len(ticks.holds) + 1))
        users: dict[int, list[tuple[int, int, int]]] = {}
        for number, holds in enumerate(ticks.holds):
            for resource, length, lead in holds:
                users.setdefault(resource, []).append((number, length, lead))
        for each in users.values():
            parts = [order[cuts[number] : cuts[number + 1]] for number, _, _ in each]
            rows = np.concatenate(parts)
            begins = pattern.start[rows] + np.repeat([lead for _, _, lead in each], list(map(len, parts)))
            ends = begins + np.repeat([length for _, length, _ in each], list(map(len, parts)))
            if len(begins) > 1 and not (begins[1:] >= begins[:-1]).all():
                by_time = np.argsort(begins, kind="stable")
                rows, begins, ends = rows[by_time], begins[by_time], ends[by_time]
            late = np.flatnonzero(begins[1:] < ends[:-1])
            self.report_rows(
                "contention", rows[1:][late], "the resource is still held by another send of its class"
            )

    def check_data(self) -> None:
        """Check step 5: copies reach every place that needs them, or sums include every contribution once."""
        reduce = self.pattern.reduce
        if self.schedule.collective in ("reduce-scatter", "allreduce"):
            self._check_sums()
        else:
            self.report_rows("reduce", np.flatnonzero(reduce), f"{self.schedule.collective} does not reduce")
            self._check_spread()

    def _check_spread(self) -> None:
        """Check that chunks spread from place 0 to every place that needs them."""
        schedule, pattern, num_ranks = self.schedule, self.pattern, self.num_ranks
        item = pattern.item.astype(np.int64)
        sent, got = item * num_ranks + pattern.src, item * num_ranks + pattern.dst
        wanted = np.arange(schedule.num_items * num_ranks, dtype=np.int64)  # item * num_ranks + place
        if schedule.collective == "alltoall":
            items = np.arange(schedule.num_items, dtype=np.int64)
            wanted = items * num_ranks + items // schedule.chunks_per_rank
        wanted = wanted[wanted % num_ranks != 0]
        if schedule.num_items * num_ranks <= _SPARSE * (len(item) + len(wanted)):
            keys = np.arange(schedule.num_items * num_ranks, dtype=np.int64)
        else:  # most items reach few places
            keys = distinct(np.concatenate((sent, got, wanted)))
            sent, got, wanted = (np.searchsorted(keys, each) for each in (sent, got, wanted))
        own = keys % num_ranks == 0
        first = np.full(len(keys), _NEVER)
        np.minimum.at(first, got, schedule.ends)
        self.num_redundant += len(item) - int(((first < _NEVER) & ~own).sum())
        missing = keys[wanted][first[wanted] == _NEVER]
        first[own] = 0
        early = np.flatnonzero(pattern.start < first[sent])
        self.report_rows("presence", early, "the chunk is not where it is sent from when its send starts")
        for key in missing[:_MOST].tolist():
            chunk, place = divmod(key, num_ranks)
            self.report("postcondition", f"item {chunk} never reaches place {place}")
        if len(missing) > _MOST:
            self.report("postcondition", f"and {len(missing) - _MOST} more never reach their places")

    def _check_sums(self) -> None:
        """Check that sums at place 0 include every contribution once; report at most one fault."""
        pattern, num_items = self.pattern, self.schedule.num_items
        ranks = np.arange(self.num_ranks)
        num_wanted = 1 if self.schedule.collective == "reduce-scatter" else self.num_ranks
        zeros, whole = np.zeros(num_items, np.int64), np.full(num_items, self.num_ranks)
        order = np.lexsort((pattern.start, pattern.item))
        item, src, dst, start, end = (
            column[order].astype(np.int64)
            for column in (pattern.item, pattern.src, pattern.dst, pattern.start, self.schedule.ends)
        )
        adds, rows = pattern.reduce[order], np.arange(len(item))
        first = np.searchsorted(item, np.arange(num_items + 1))
        sums = Sums(rows, start, end, adds, landing_order(item, end, adds), np.zeros(len(item), bool))
        dates = zeros[:0], np.zeros(num_items + 1, np.int64), zeros[:0]
        chunks = SumChunks(first, zeros, ranks, zeros, whole, ranks, zeros, zeros + num_wanted, *dates)
        ends = LinkEnds(
            np.arange(0, 2 * len(item) + 2, 2), 2 * rows + 1, np.stack((src, dst), axis=1).ravel()
        )
        is_large = len(item) >= MANY
        accepted, num_redundant = accept(
            sums, chunks, ends, self.num_ranks, is_copied=False, is_large=is_large
        )
        self.num_redundant += num_redundant
        seen, faults = (views(sums), views(chunks), views(ends)), []
        for c in np.flatnonzero(~accepted).tolist():
            found, redundant, _ = replay_sum(*seen, c)
            faults += found
            self.num_redundant += redundant
        for fault in sorted(faults, key=lambda each: each[:2])[:1]:
            row = None if fault.send is None else int(order[fault.send])
            at = f"item {fault.chunk} at place {fault.rank}: " if row is None else ""
            self.report(fault.kind, f"{at}{fault.text}", row)


def _is_permutation(values: NDArray[np.int64], count: int) -> bool:
    return len(values) == count and np.array_equal(np.sort(values), np.arange(count))


def _is_regular(table: NDArray[np.int64], group: object) -> bool:
    """True if the rows of `table` are all permutations in the generated group; row g maps place 0 to g."""
    count = len(table)
    generators = [np.asarray(each) for each in getattr(group, "generators", ())]
    if not generators or not np.array_equal(table[0], np.arange(count)):
        return False
    if not np.array_equal(table[:, 0], np.arange(count)):
        return False
    if any(not _is_permutation(step, count) for step in generators):
        return False
    return all(np.array_equal(step[table], table[step]) for step in generators)


def _unlike_named(judge: _Judge, host: NamedFabric) -> Iterator[tuple[str, str]]:
    """Yield (kind of violation, text) for each difference between the link classes and a named fabric.

    Only the first difference is meaningful, as later ones may follow from it.
    """
    ports_of_axis: dict[int, list[int]] = {}
    for number, each, src, dst in judge.links():
        axis = host.axis(src, dst)
        for at in np.flatnonzero(axis < 0).tolist():
            yield "symmetry", f"class {number}: {host.name} has no link {src[at]}->{dst[at]}"
        axes = np.flatnonzero(np.bincount(axis)).tolist()
        costs = {(host.axes[a].alpha_us, host.axes[a].beta_us_per_mb) for a in axes}
        if costs != {(each.alpha_us, each.beta_us_per_mb)}:
            known = ", ".join(f"{alpha} us and {beta} us/MB" for alpha, beta in sorted(costs))
            found = f"alpha {each.alpha_us} us and {each.beta_us_per_mb} us/MB"
            yield "times", f"class {number}: {found}; {host.name} has {known}"
        held = each.alpha_us if host.alpha_meaning == "occupies" else 0 * each.alpha_us
        expected = [(held, each.beta_us_per_mb, "send")]
        if any(host.axes[a].kind == "switch" for a in axes):
            expected += [(held, each.beta_us_per_mb, "send"), (held, each.beta_us_per_mb, "receive")]
        holds = [(hold.alpha_us, hold.beta_us_per_mb, hold.side) for hold in each.holds]
        ports = [hold.resource for hold in each.holds[1:]]
        # All classes of links of one switch must hold the same ports.
        sound = holds == expected and ports == ports_of_axis.setdefault(axes[0], ports)
        if not sound or judge.uses[each.holds[0].resource] > 1 or len(set(ports)) < len(ports):
            yield "contention", f"class {number}: found holds {holds}; expected those of {host.name}"


def _unlike_topology(judge: _Judge, host: Topology) -> Iterator[tuple[str, str]]:
    """Yield (kind of violation, text) for each difference between the link classes and a topology.

    Only the first difference is meaningful, as later ones may follow from it.
    """
    resource_class = judge.shape.resource_class
    if len(resource_class) != len(host.resources):
        yield "symmetry", f"found classes of {len(resource_class)} resources for the topology's"
    links_between: dict[tuple[int, int], list[int]] = {}
    for e, link in enumerate(host.links):
        if len(link.srcs) + len(link.dsts) == 2:
            links_between.setdefault((link.src, link.dst), []).append(e)
    for number, each, src, dst in judge.links():
        expected = sorted((h.resource, h.alpha_us, h.beta_us_per_mb, h.side) for h in each.holds)
        held: set[int] = set()
        for a, b in zip(src.tolist(), dst.tolist(), strict=True):
            links = links_between.get((a, b), [])
            if len(links) != 1:
                yield "symmetry", f"class {number}: found {len(links)} links {a}->{b}; expected one"
            link, holds = host.links[links[0]], host.holds_of_link[links[0]]
            if (link.alpha_us, link.beta_us_per_mb) != (each.alpha_us, each.beta_us_per_mb):
                claimed = f"alpha {each.alpha_us} us and {each.beta_us_per_mb} us/MB"
                has = f"{link.alpha_us} us and {link.beta_us_per_mb} us/MB"
                yield "times", f"class {number}: {claimed}; link {link} has {has}"
            if expected != sorted(
                (resource_class[h.resource], h.alpha_us, h.beta_us_per_mb, h.side) for h in holds
            ):
                yield "contention", f"class {number}: link {link} has other holds than the class says"
            for again in (h.resource for h in holds if h.resource in held):
                name = host.resources[again].name
                yield "contention", f"class {number}: two of its links hold {name} at once"
            held.update(h.resource for h in holds)
