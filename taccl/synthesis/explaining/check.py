"""`check_sketch`: effect and cost of each clause of a sketch.

Each clause is left out in turn. Changes of the problem's clauses, symmetry and bound show its effect and its
minimum cost. Clauses that do not fit the topology are set aside first, so that the others can be checked in
the same run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from os import PathLike
from typing import Any, Unpack

import numpy as np

from taccl._internal.arguments import Seconds, Size, checked
from taccl._internal.deadline import Deadline, busy_factor
from taccl._internal.units import format_us
from taccl.errors import InputError, SketchError
from taccl.problem.clauses import CLAUSES
from taccl.problem.collective import Collective
from taccl.problem.collectives import CollectiveArguments, make
from taccl.problem.problem import Problem
from taccl.sketch.apply import apply
from taccl.sketch.group import Symmetries, symmetry_group
from taccl.sketch.library import load_sketch
from taccl.sketch.reachability import check_reachable, unmet
from taccl.sketch.sketch import Sketch
from taccl.sketch.tables import Internode, Intranode, Merging, Objective, Routing
from taccl.synthesis.explaining.explain import bound_by, bound_until, explain, price
from taccl.synthesis.suggesting.proposals import Shift, find_shifts, fitting_shifts
from taccl.topology.topology import Topology

#: {table of a sketch whose fields are clauses: value of the table if it has no clause}.
_TABLES = {
    "internode": Internode(crossing="any"), "intranode": Intranode(), "objective": Objective(),
    "routing": Routing(), "merging": Merging(),
}  # fmt: skip
#: Max chunks times links for which the effect of a clause is determined chunk by chunk.
_MOST_ASKED = 1_000_000
#: CPU seconds for effects of clauses and for symmetries to advise, even if time is up.
_LATE_S = 0.3


@dataclass(frozen=True, slots=True)
class ClauseReport:
    """Effect of one clause, with a verdict.

    - ``"wrong"``: it does not fit the topology.
    - ``"blocks"``: no schedule exists because of it.
    - ``"unused"``: it has no effect.
    - ``"binds"``: schedules must obey it.
    - ``"guides"``: it only affects the search.
    - ``"unknown"``: time did not suffice to determine its effect.
    """

    clause: str  # field of the clause, e.g. "internode.relays" or "symmetry[0]"
    verdict: str
    effect: str  # effect as a sentence
    bound_us: float | None = None  # lower bound without the clause; None if not computed
    cost_us: float | None = None  # minimum cost: by how much the clause raises the bound


@dataclass(frozen=True, slots=True, repr=False)
class SketchReport:
    """Result of `check_sketch`.

    Parameters
    ----------
    name : str
        Name of the sketch.
    usable : bool
        True if all clauses fit, and a schedule exists.
    clauses : tuple of ClauseReport
        Reports on clauses, in the order of the file.
    bound_us, free_us, divisible_us : float, optional
        Lower bound under the sketch; without any clause; and under the sketch for data that may be cut
        arbitrarily finely. Clauses that do not fit are left out. None if no schedule exists; the last two
        also if time was up first.
    limits : str
        What limits `bound_us`; for an infeasible sketch, an unreachable pair of ranks.
    conflict, change : tuple of str, str
        If no schedule exists: the clauses that clash, and the smallest change with which one exists.
    num_unreachable : int
        Number of kinds of chunk (by origins and destinations) that cannot reach a destination.
    hints : tuple of str
        Possible additions, such as symmetries of the topology and the clauses.
    scope : str
        Number of chunks for which `bound_us` and `free_us` hold, such as ``"1 chunk per rank"``.
    """

    name: str
    usable: bool
    clauses: tuple[ClauseReport, ...]
    bound_us: float | None = None
    free_us: float | None = None
    divisible_us: float | None = None
    limits: str = ""
    conflict: tuple[str, ...] = ()
    change: str = ""
    num_unreachable: int = 0
    hints: tuple[str, ...] = ()
    scope: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values."""
        return asdict(self)

    def __repr__(self) -> str:
        verdict = "can be used" if self.usable else "cannot be used as it is"
        lines = [f"SketchReport: {self.name or 'the sketch'} {verdict}"]
        if self.bound_us is not None and self.free_us is not None:
            over = self.bound_us / self.free_us - 1 if self.free_us else 0.0
            scope = f" for {self.scope}" if self.scope else ""
            partly = "" if self.usable else " (of the clauses that fit)"
            lines += [
                f"  bound {format_us(self.bound_us)}{scope}{partly}, limited by {self.limits}",
                f"  without any clause {format_us(self.free_us)}: the sketch costs {over:+.2%} at least",
            ]
        if self.bound_us is not None and self.divisible_us:
            lines.append(
                f"  divisible data {format_us(self.divisible_us)}: whole chunks cost "
                f"{self.bound_us / self.divisible_us - 1:+.2%}"
            )
        if self.num_unreachable:
            others = self.num_unreachable - 1
            more = f" (and {others} kinds of chunk more)" if others else ""
            lines.append(f"  no schedule: {self.limits}{more}")
            lines += [f"    clashes: {clause}" for clause in self.conflict]
            lines.append(f"    the smallest change: {self.change}")
        width = max((len(each.clause) for each in self.clauses), default=0)
        for each in self.clauses:
            lines.append(f"  {each.clause:<{width}}  {each.verdict:<6}  {each.effect}")
        return "\n".join(lines + [f"  hint: {hint}" for hint in self.hints])


@checked
def check_sketch(
    sketch: Sketch | str | PathLike[str],
    topology: Topology,
    collective: str | Collective,
    *,
    chunk_size: Size | None = None,
    size: Size | None = None,
    time_limit_s: Seconds = 30.0,
    **arguments: Unpack[CollectiveArguments],
) -> SketchReport:
    """Report the effect and the minimum cost of each clause of a sketch on a topology.

    Clauses that do not fit are a part of the report, not an error.

    Parameters
    ----------
    sketch : Sketch, str or path
        A sketch, a shipped name, or a file.
    topology : Topology
    collective : str or Collective
        A name, or a collective with an open number of chunks, is cut into the sketch's chunks per rank.
    chunk_size, size : int or str, optional
        As for `Sketch.apply`: the sketch's own chunk size is used unless one of them is given.
    time_limit_s : float
        Seconds after which the costs of the remaining clauses are not computed.
    **arguments : CollectiveArguments
        `root`, `roots` or `counts` of a named collective, as for `taccl.collectives.make`.

    Raises
    ------
    InputError
        If the sketch's file, the collective or the sizes cannot be used, or the topology is disconnected.
    """
    deadline = time.monotonic() + time_limit_s
    guide = load_sketch(sketch) if isinstance(sketch, (str, PathLike)) else sketch
    if isinstance(collective, str):
        collective = make(collective, topology.num_ranks, **arguments)
    elif given := [name for name, value in arguments.items() if value is not None]:
        said = "found one with a collective object; leave it out, or name the collective"
        raise InputError(said, where=given[0])
    if collective.chunks_open:
        collective = collective.split(guide.chunks.per_rank)
    check = _Check(guide, topology, collective, {"chunk_size": chunk_size, "size": size})
    problem, missed = check.problem, len(list(unmet(check.problem)))
    if missed:
        check_reachable(replace(problem, clauses=problem.clauses.only("merge")))
        found = explain(problem, time_limit_s=time_limit_s)
        return SketchReport(
            guide.name,
            usable=False,
            clauses=check.reports(check.blocking),
            limits=found.reason,
            conflict=found.conflict,
            change=found.change,
            num_unreachable=missed,
        )
    bound = bound_until(problem, deadline)
    until = Deadline(deadline).at_least(busy_factor() * _LATE_S)
    return SketchReport(
        name=guide.name,
        usable=not check.wrong,
        clauses=check.reports(lambda name: check.effect(name, bound.bound_us, until)),
        bound_us=bound.bound_us,
        free_us=None if until.has_passed else bound_by(check.apply(*_clause_names(guide)), deadline),
        divisible_us=bound_by(problem, deadline, divisible=True),
        limits=bound.limits,
        scope=bound.scope,
        hints=check.hints(until),
    )


class _Check:
    """Applies a sketch to a topology without chosen clauses, to find the effect of each clause.

    Clauses that do not fit are left out from the start; `wrong` is {clause: fault}.
    """

    def __init__(
        self, sketch: Sketch, topology: Topology, collective: Collective, sizes: Mapping[str, Any]
    ) -> None:
        self.sketch, self.topology, self.collective, self.sizes = sketch, topology, collective, sizes
        self.wrong: dict[str, str] = {}
        while True:
            fitting, names = _without_clauses(sketch, self.wrong)
            try:
                self.problem = self.apply()
                return
            except SketchError as error:
                name = next((n for n, field in names.items() if _names(fitting, field, error)), None)
                if name is None:
                    raise
                self.wrong[name] = error.message + self._nearest(name)

    def apply(self, *names: str) -> Problem:
        """The problem without the clauses of the given names."""
        sketch, _ = _without_clauses(self.sketch, {*self.wrong, *names})
        return apply(sketch, self.topology, self.collective, reachable=False, **self.sizes)

    def reports(self, report: Callable[[str], ClauseReport]) -> tuple[ClauseReport, ...]:
        """A report for each clause: the fault of a clause that does not fit, else `report(name)`."""
        return tuple(
            ClauseReport(name, "wrong", self.wrong[name]) if name in self.wrong else report(name)
            for name in _clause_names(self.sketch)
        )

    def _nearest(self, name: str) -> str:
        """Advice on a faulty ``[[symmetry]]`` clause: the topology's nearest symmetry. Empty for others."""
        if not name.startswith("symmetry["):
            return ""
        entry = self.sketch.symmetry[int(name[9:-1])]
        known = [
            Shift(shift.group, offset)
            for shift in find_shifts(self.topology)
            for offset in range(shift.offset, shift.group, shift.offset)
        ]
        if not known:
            return " (no shift inside blocks of ranks is one)"
        near = min(known, key=lambda s: (abs(s.group - entry.group), abs(s.offset - entry.offset), s))
        return f"; the nearest symmetry that holds is offset {near.offset} in groups of {near.group}"

    def blocking(self, name: str) -> ClauseReport:
        """Report on a clause of an infeasible sketch: whether all chunks arrive once it is left out."""
        if any(unmet(self.apply(name))):
            return ClauseReport(name, "binds", "without it some chunks still cannot reach their destinations")
        return ClauseReport(name, "blocks", "without it every chunk can reach its destinations")

    def effect(self, name: str, bound_us: float, until: Deadline) -> ClauseReport:
        """Effect of a clause in a sketch that admits a schedule."""
        if until.has_passed:
            return ClauseReport(name, "unknown", "not determined: time was up")
        try:
            without = self.apply(name)
        except SketchError as error:  # other clauses depend on this one
            return ClauseReport(name, "binds", f"without it another clause does not fit: {error.message}")
        if name.startswith("symmetry"):
            return self._symmetry(name, without)
        if without.clauses.only() == self.problem.clauses.only():
            left, given = (
                _without_clauses(self.sketch, names) for names in ({*self.wrong, name}, self.wrong)
            )
            is_default = left[0] == given[0]
            effect = "is the default, which holds without it, too" if is_default else "has no effect"
            return ClauseReport(name, "unused", effect, bound_us, 0.0)
        if _obeyed(without) == _obeyed(self.problem):
            scopes = {each.scope for each in CLAUSES.values() if name.partition("[")[0] in each.said}
            if scopes <= {"search"} or not without.clauses.same(self.problem.clauses, "search"):
                return ClauseReport(
                    name, "guides", "guides the search, without binding schedules", bound_us, 0.0
                )
            return ClauseReport(name, "unused", "redundant: other clauses forbid the same", bound_us, 0.0)
        cost = price(bound_us, name, without, until.at_s)
        if cost is None:
            return ClauseReport(name, "binds", "not bounded: time was up")
        if cost.difference_us <= 0:
            return ClauseReport(name, "binds", "costs nothing visible in the bound", cost.bound_us, 0.0)
        percent = f" ({cost.percent:.2f}%)" if cost.bound_us else ""
        effect = (
            f"costs at least {format_us(cost.difference_us)}{percent}; "
            f"without it the bound is {format_us(cost.bound_us)}"
        )
        return ClauseReport(name, "binds", effect, cost.bound_us, cost.difference_us)

    def _symmetry(self, name: str, without: Problem) -> ClauseReport:
        """Effect of a ``[[symmetry]]`` entry: by how much it reduces the model."""
        entry = self.sketch.symmetry[int(name[9:-1])]
        said = f"offset {entry.offset} in groups of {entry.group} "
        dropped = [note for note in self.problem.notes if said in note]
        group, other = symmetry_group(self.problem), symmetry_group(without)
        if group.order is not None and group.order == other.order:
            return ClauseReport(name, "unused", dropped[0] if dropped else "the other symmetries contain it")
        if group.order is None and _reduce_alike(group, other):
            return ClauseReport(name, "unused", "the other symmetries reduce the model as much")
        reduces = " further" if other.order is None else f": {group} symmetries instead of {other}"
        effect = f"reduces the model{reduces}, without binding schedules"
        return ClauseReport(name, "guides", "; ".join([*dropped, effect]))

    def hints(self, deadline: Deadline) -> tuple[str, ...]:
        """Advice on symmetries that the sketch does not use, and that are found by the deadline."""
        group = symmetry_group(self.problem)
        plain = self.problem.with_clauses(symmetry=())

        def adds(ranks: tuple[int, ...]) -> bool:
            more = plain.with_clauses(symmetry=(*self.problem.clauses.symmetry, ranks))
            return not (
                group.has(ranks) or group.order is None and _reduce_alike(group, symmetry_group(more))
            )

        return tuple(
            f"offset {shift.offset} in groups of {shift.group} is a symmetry too: add it as [[symmetry]] to "
            "make the model smaller"
            for shift in fitting_shifts(plain, find_shifts(self.topology), deadline=deadline)
            if adds(shift.ranks(self.topology.num_ranks))
        )


def _clause_names(sketch: Sketch) -> tuple[str, ...]:
    """The clauses of a sketch, as ``"internode.relays"`` or ``"switch[0]"``, in order."""
    names = []
    if sketch.internode is not None:  # the default of `crossing`, "direct", is a clause, too
        given = {*sketch.internode.model_fields_set, "crossing"}
        names += [f"internode.{field}" for field in Internode.model_fields if field in given]
    names += [f"intranode.{field}" for field in sorted(sketch.intranode.model_fields_set)]
    names += [f"switch[{i}]" for i in range(len(sketch.switch))]
    names += [f"symmetry[{i}]" for i in range(len(sketch.symmetry))]
    for table in ("objective", "routing", "merging"):
        names += [f"{table}.{field}" for field in sorted(getattr(sketch, table).model_fields_set)]
    return tuple(names)


def _without_clauses(sketch: Sketch, names: Collection[str]) -> tuple[Sketch, dict[str, str]]:
    """(sketch without the clauses `names`, {remaining clause: its name in the reduced sketch})."""
    places = {name: name for name in _clause_names(sketch) if name not in names}
    changes: dict[str, Any] = {}
    for table, plain in _TABLES.items():
        fields = {name.partition(".")[2] for name in names if name.startswith(f"{table}.")}
        if fields:
            values = {field: getattr(plain, field) for field in fields}
            changes[table] = getattr(sketch, table).model_copy(update=values)
    for table in ("switch", "symmetry"):
        entries = getattr(sketch, table)
        left = [i for i in range(len(entries)) if f"{table}[{i}]" not in names]
        changes[table] = tuple(entries[i] for i in left)
        places.update({f"{table}[{i}]": f"{table}[{place}]" for place, i in enumerate(left)})
    return sketch.model_copy(update=changes), places


def _reduce_alike(one: Symmetries, other: Symmetries) -> bool:
    """True if two symmetry groups have the same orbits of (chunk, link), so that they reduce models alike."""
    if not (np.array_equal(one.links, other.links) and np.array_equal(one.chunks, other.chunks)):
        return False
    different = np.unique(one.chunks).tolist()
    return all(np.array_equal(one.fixing(c).links, other.fixing(c).links) for c in different)


def _names(sketch: Sketch, field: str, error: SketchError) -> bool:
    """True if an error concerns a field of a sketch, or something inside it."""
    where, place = error.where or "", sketch.where(field)
    return where == place or where.startswith((f"{place}.", f"{place}["))


def _obeyed(problem: Problem) -> tuple[object, ...]:
    """Constraints that clauses put on schedules, in comparable form: chunks of each link, order, merging."""
    clauses, collective = problem.clauses, problem.collective
    links = problem.links_allowed
    merging = frozenset(clauses.merging) & frozenset(links) if clauses.max_merge > 1 else frozenset()
    longest = problem.topology.num_ranks - 1  # max links of a path without a cycle
    longest = min(longest, clauses.path_limit or longest)
    rest = clauses.max_merge if merging else 1, merging, longest, clauses.values("group")
    across = [e for e in links if problem.topology.is_internode(e)]
    if collective.num_chunks * len(across) > _MOST_ASKED:
        return rest, links, clauses.values("chunk", "order")
    both = (False, True) if collective.sums_up else (False,)
    asked = [(c, reducing) for c in range(collective.num_chunks) for reducing in both]
    opened = [problem.open_links(c, reducing=reducing) for c, reducing in asked]

    def is_own(link: int, chunk: int, reducing: bool) -> bool:
        data, ends = collective.chunks[chunk], problem.topology.links[link]
        starts = data.origins if data.root is None else (data.root,)
        return not set(starts).isdisjoint(ends.dsts if reducing else ends.srcs)

    def has_others(link: int) -> bool:
        passed = (each for each, is_open in zip(asked, opened, strict=True) if is_open[link])
        return any(not is_own(link, *each) for each in passed)

    # Local-first priority only matters where relayed chunks use the link, too.
    ordered = frozenset(e for e in clauses.own_first.intersection(across) if has_others(e))
    return rest, links, [is_open[across].tobytes() for is_open in opened], ordered
