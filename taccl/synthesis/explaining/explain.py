"""Explanation of a sketch: conflict and remedy if it is infeasible, cost of each clause if it is feasible.

For an infeasible problem, `explain` names a smallest set of clashing clauses, and the smallest change that
makes it feasible. Both are given with their places in the sketch's file. For a feasible problem it bounds the
finish without each clause: the drop of the bound is the minimum cost of the clause.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from taccl._internal.arguments import Seconds, checked
from taccl._internal.deadline import Deadline, OutOfTime
from taccl._internal.names import first_of, in_runs
from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.certificates.certificate import Certificate
from taccl.analysis.certificates.dimension_bound import DimensionBound, bound_along
from taccl.errors import InfeasibleError
from taccl.problem.clauses import BINDING, CLAUSES, Clauses
from taccl.problem.problem import Problem
from taccl.sketch.reachability import Need, reached, unmet
from taccl.solvers.registry import require_known
from taccl.synthesis.bounding import no_bound
from taccl.synthesis.explaining.clashes import (
    Change,
    clashing,
    fewest_edits,
    longer_paths,
    own_chunks_wait,
    reached_despite,
)
from taccl.synthesis.explaining.loosening import (
    CONNECTIONS,
    INSIDE,
    OWN_FIRST,
    RELAYS,
    SWITCH,
    Barriers,
    Edit,
)
from taccl.synthesis.parameters import DEFAULTS

_MAX_NAMED = 8  # max pairs of ranks that a message lists
#: Max seconds to explain why a search found nothing.
_INFEASIBLE_S = 10.0
#: Scopes of clauses that are left out one by one to find their cost; clauses on merging are relaxed instead.
_PRICED = tuple(scope for scope in BINDING if scope != "merge")
#: Name of the cost of all clauses together.
EVERY_CLAUSE = "every clause"


@dataclass(frozen=True, slots=True)
class ClauseCost:
    """Minimum cost of one clause."""

    clause: str  # "file: field", or "every clause"
    bound_us: float  # lower bound without the clause
    difference_us: float  # by how much the bound drops without the clause
    percent: float  # difference relative to `bound_us`


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """Explanation of why a problem is infeasible, or of what the clauses of a feasible problem cost.

    Parameters
    ----------
    feasible : bool
    reason : str
        An unreachable pair of ranks; for a feasible problem, what limits the bound.
    conflict : tuple of str
        A minimal set of clauses that clash, each as ``"file: field: what it says"``. Empty if the problem is
        feasible, or if its topology is disconnected.
    change, loosened : str, Problem
        The smallest change that makes the problem feasible, with file and field; and the problem after it.
    proven : bool
        True if no smaller change suffices; False if time ran out.
    bound_us : float, optional
        The lower bound on the finish of a feasible problem.
    costs : tuple of ClauseCost
        Costs of clauses, the largest first.
    unpriced : tuple of str
        Clauses whose cost was not known when time was up.
    dimension_bound : DimensionBound, optional
        For a feasible problem on a product of dimensions: the dimensions that limit algorithms along them,
        and the gain by balancing.
    """

    feasible: bool
    reason: str
    conflict: tuple[str, ...] = ()
    change: str = ""
    loosened: Problem | None = field(default=None, compare=False)
    proven: bool = True
    bound_us: float | None = None
    costs: tuple[ClauseCost, ...] = ()
    unpriced: tuple[str, ...] = ()
    dimension_bound: DimensionBound | None = None

    def to_dict(self) -> dict[str, Any]:
        """The explanation as plain values."""
        return {
            "feasible": self.feasible,
            "reason": self.reason,
            "conflict": list(self.conflict),
            "change": self.change,
            "proven": self.proven,
            "bound_us": self.bound_us,
            "costs": [asdict(cost) for cost in self.costs],
            "unpriced": list(self.unpriced),
            **({} if self.dimension_bound is None else self.dimension_bound.to_dict()),
        }

    def __repr__(self) -> str:
        if not self.feasible:
            lines = [f"Explanation: infeasible: {self.reason}"]
            if self.conflict:
                lines += ["  these clauses clash:", *(f"    {clause}" for clause in self.conflict)]
            if self.change:
                smallest = "the smallest change" if self.proven else "a change (a smaller one may suffice)"
                lines.append(f"  {smallest}: {self.change}")
            return "\n".join(lines)
        proven = f"no schedule ends before {self.bound_us:.6g} us ({self.reason})"
        lines = [f"Explanation: feasible: {proven if self.bound_us else self.reason}"]
        if self.dimension_bound is not None:
            lines.append(f"  along dimensions {self.dimension_bound.text}")
        if not (self.costs or self.unpriced):
            lines.append("  no clause has a cost to determine")
        width = max((len(cost.clause) for cost in self.costs), default=0)
        for cost in self.costs:
            price = f"at least {cost.difference_us:.6g} us ({cost.percent:.3g}%)"
            price = price if cost.difference_us else "nothing visible in the bound"
            lines.append(f"  without {cost.clause:<{width}}  {cost.bound_us:>10.6g} us; it costs {price}")
        if self.unpriced:
            lines.append(f"  time was up before the cost of:  {', '.join(self.unpriced)}")
        return "\n".join(lines)


@checked
def explain(problem: Problem, *, backend: str = "highs", time_limit_s: Seconds = 30.0) -> Explanation:
    """Explain why a problem has no schedule, with the smallest remedy; or what a feasible one's clauses cost.

    A change that adds one pair of ranks, or one rank to the relays of a sender, counts 1; so does ``crossing
    = "any"``. Removing the relays of a sender counts 2, removing all connections or links inside nodes 4.

    Parameters
    ----------
    problem : Problem
        A problem; if the sketch may keep a chunk from a destination, applied with ``reachable=False``.
    backend : str
        The solver for decisions that graph search cannot make: ``"highs"``, ``"scip"``, ``"cbc"``,
        ``"gurobi"``, ``"cpsat"`` or ``"pulp:NAME"``; ``"auto"`` and ``"greedy"`` mean ``"highs"``.
    time_limit_s : float
        Seconds for the whole explanation.

    Raises
    ------
    InputError
        If the backend is unknown, or the time limit is not positive.
    SolverUnavailableError
        If a solver is needed and is not installed, or not licensed for the model.
    """
    if backend in ("auto", "greedy"):
        backend = "highs"
    require_known(backend, others=("auto", "greedy"), where="backend")
    deadline = time.monotonic() + time_limit_s
    barriers = Barriers(problem)
    missed = list(unmet(problem))
    if missed:
        return _unreached(barriers, missed, solver=backend, deadline=deadline)
    if own_chunks_wait(problem, solver=backend, deadline=deadline):
        reason = "on links of several ranks, local-first sends wait for each other in a cycle"
        return _clash(barriers, reason, (OWN_FIRST,), Change((Edit(OWN_FIRST, "set", (), 1),), True))
    return _priced(barriers, deadline)


def infeasible(problem: Problem, *, time_limit_s: float = _INFEASIBLE_S) -> InfeasibleError | None:
    """Error for an infeasible problem, with clashing clauses and remedy; None if it is feasible."""
    found = explain(problem, time_limit_s=min(time_limit_s, _INFEASIBLE_S))
    if found.feasible:
        return None
    return InfeasibleError(f"{found.reason}; {found.change}", conflict=found.conflict)


def _unreached(barriers: Barriers, missed: Sequence[Need], *, solver: str, deadline: float) -> Explanation:
    """Explanation if some chunks cannot reach a destination."""
    problem = barriers.problem
    for demand in missed:
        found = reached(replace(problem, clauses=Clauses()), demand)
        end = next((r for r in demand.ends if r not in found), None)
        if end is not None:
            reason = f"{_path(problem, demand, end)}: {problem.topology.name} has no path for it"
            cut = in_runs(sorted(set(range(problem.topology.num_ranks)).difference(found)))
            here, there = ("from", "to") if demand.reducing else ("to", "from")
            link = f"add a link {here} one of ranks {cut} {there} one of ranks {in_runs(found)}"
            return Explanation(False, reason, change=link)
    demand, clauses = clashing(barriers, missed)
    change = longer_paths(barriers, fewest_edits(barriers, missed, solver=solver, deadline=deadline))
    known = reached_despite(barriers, demand, clauses)
    near = f"rank{'s' * (len(known) != 1)} {in_runs(known)}"
    far = f"only {near} can send to it" if demand.reducing else f"it reaches only {near}"
    return _clash(barriers, f"{_path(problem, demand, demand.ends[0])}; {far}", clauses, change)


def _path(problem: Problem, demand: Need, end: int) -> str:
    """Text that names an unreachable pair of ranks."""
    name, start = problem.collective.name, demand.starts[0]
    if demand.reducing:
        return f"the contribution of rank {end} to chunk {demand.chunk} of {name} cannot get to rank {start}"
    return f"chunk {demand.chunk} of {name} cannot get from rank {start} to rank {end}"


def _clash(barriers: Barriers, reason: str, clauses: Iterable[str], change: Change) -> Explanation:
    kinds: dict[tuple[str, str], set[tuple[int, ...]]] = {}  # {(clause, verb): items}
    for edit in change.edits:
        kinds.setdefault((edit.clause, edit.verb), set()).update(edit.items)
    return Explanation(
        feasible=False,
        reason=reason,
        conflict=tuple(f"{_place(barriers, clause)}: {_said(barriers, clause)}" for clause in clauses),
        change="; ".join(
            f"{_place(barriers, clause)}: {_edit(barriers, clause, verb, sorted(items))}"
            for (clause, verb), items in kinds.items()
        ),
        loosened=barriers.loosened(change.edits),
        proven=change.fewest,
    )


def _place(barriers: Barriers, clause: str) -> str:
    """``"file: field"`` of a clause."""
    # All relays are in one field of the file.
    field_, where = RELAYS if clause.startswith(RELAYS) else clause, barriers.clauses.where
    if field_ in where:
        return where[field_]
    source = next((place.rpartition(": ")[0] for place in where.values()), barriers.clauses.name or "sketch")
    switches = [place for name, place in where.items() if name.startswith("switch[")]
    if field_ == SWITCH and len(switches) == 1:
        return f"{switches[0]}.planes"
    return f"{source}: {field_}{'.planes' if field_ == SWITCH else ''}"


def _said(barriers: Barriers, clause: str) -> str:
    """Short text that says what a clause allows or forbids."""
    if clause in (CONNECTIONS, INSIDE):
        between = "between nodes" if clause == CONNECTIONS else "inside a node"
        if not barriers.is_local:
            return f"not every link {between} may be used"
        pairs = sorted(barriers.open_pairs[clause])
        return f"{between}, only local ranks {_pairs(pairs)} may send" if pairs else f"no link {between}"
    if clause.startswith(RELAYS):
        if not barriers.is_local:
            return CLAUSES["carries_from"].meaning
        sender = int(clause.rpartition(".")[2])
        carried = in_runs(barriers.relays[sender])
        return f"local rank {sender} carries only the chunks of local ranks {carried}"
    for each in barriers.clauses.said():
        if clause in each.said and each.meaning:
            return each.meaning.format(value=getattr(barriers.clauses, each.field))
    return "only some of the parallel links may be used"


def _edit(barriers: Barriers, clause: str, verb: str, items: Sequence[tuple[int, ...]]) -> str:
    topology = barriers.problem.topology
    if verb == "set" and items:
        return f"set it to {items[0][0]}"
    remedy = next((each.remedy for each in CLAUSES.values() if clause in each.said), "")
    if remedy:
        return remedy
    if verb == "remove":
        freed = "links carry any chunk" if clause == RELAYS else "any link may be used"
        return f"remove it, so that {freed}"
    if verb == "remove entry":
        senders = ", ".join(str(sender) for (sender,) in items)
        return f"remove the entry of local rank {senders}, so that it sends any chunk to other nodes"
    if verb == "allow":
        return f"allow link {', '.join(str(topology.links[e]) for (e,) in items)}"
    if clause == RELAYS:
        return "add " + ", ".join(f"{start} to the list of {sender}" for sender, start in items)
    local = topology.local_rank
    example = next(
        link
        for e, link in enumerate(topology.links)
        if topology.is_internode(e) == (clause == CONNECTIONS) and (local[link.src], local[link.dst]) in items
    )
    return f"allow {_pairs(items)} (such as {example})"


def _pairs(pairs: Sequence[tuple[int, ...]]) -> str:
    return first_of([f"{src} -> {dst}" for src, dst in pairs], _MAX_NAMED)


def _priced(barriers: Barriers, deadline: float) -> Explanation:
    """Explanation of a feasible problem: its bound, and how far the bound drops without each clause."""
    problem = barriers.problem
    bound = bound_until(problem, deadline)
    costs: list[ClauseCost] = []
    unpriced: list[str] = []
    for clause, without in _each_without(barriers):
        cost = None if unpriced else price(bound.bound_us, clause, without, deadline)
        if cost is None:
            unpriced.append(clause)
        else:
            costs.append(cost)
    costs.sort(key=lambda cost: (cost.clause != EVERY_CLAUSE, -cost.difference_us))
    along = None
    with suppress(OutOfTime), Deadline(deadline).enforced():
        along = bound_along(problem)
    return Explanation(
        True, bound.limits.removeprefix("nothing: "), bound_us=bound.bound_us, costs=tuple(costs),
        unpriced=tuple(unpriced), dimension_bound=along,
    )  # fmt: skip


def bound_until(problem: Problem, deadline: float) -> Certificate:
    """Best lower bound found by the deadline; zero, which proves nothing, if the first bound takes longer."""
    limit = Deadline(deadline)
    with suppress(OutOfTime), limit.at_least(DEFAULTS.budget.last_bound_s).enforced():
        return lower_bound(problem, limit_s=limit.left_s)
    return replace(no_bound(problem), limits="time was up before a bound was proven")


def bound_by(problem: Problem, deadline: float, *, divisible: bool | None = None) -> float | None:
    """The lower bound in us; None if its computation is not complete by the deadline."""
    limit = Deadline(deadline)
    with suppress(OutOfTime), limit.enforced():
        bound = lower_bound(problem, divisible=divisible, limit_s=limit.left_s)
        return None if limit.has_passed else bound.bound_us
    return None


def price(bound_us: float, clause: str, without: Problem, deadline: float) -> ClauseCost | None:
    """Cost of a clause: the bound of the problem with it, minus that of the problem without it.

    None if time is up first: an incomplete bound would overstate the cost of the clause.
    """
    free_us = bound_by(without, deadline)
    if free_us is None:
        return None
    difference = bound_us - free_us
    return ClauseCost(clause, free_us, difference, 100 * difference / free_us if free_us else 0.0)


def _each_without(barriers: Barriers) -> Iterator[tuple[str, Problem]]:
    """Yield (clause, problem without it) for each clause that binds schedules, and last for all together."""
    problem, clauses = barriers.problem, barriers.clauses
    binding = (name for each in CLAUSES.values() if each.scope in _PRICED for name in each.said)
    withouts = {clause: barriers.without([clause]) for clause in dict.fromkeys(binding)}
    fields = [clause for clause, without in withouts.items() if without.clauses != clauses]
    yield from ((_place(barriers, clause), withouts[clause]) for clause in fields)
    most = max(clauses.max_merge, problem.collective.num_chunks)
    everywhere = frozenset(range(len(problem.topology.links)))
    looser: dict[str, dict[str, Any]] = {
        "merging.max": {"max_merge": most},
        "merging.links": {"merging": everywhere, "max_merge": max(clauses.max_merge, 6)},
    }
    named = [each for each in looser if each in clauses.where]
    yield from ((clauses.where[clause], problem.with_clauses(**looser[clause])) for clause in named)
    if len(fields) + len(named) > 1:
        free = barriers.without(fields)
        yield EVERY_CLAUSE, free.with_clauses(max_merge=most, merging=everywhere) if named else free
