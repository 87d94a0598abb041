"""Why a sketch cannot work and what would make it work; or, where it works, what its clauses cost.

`explain` names the fewest clauses of an infeasible problem that clash, with their place in the sketch's
file, and the smallest change that makes it feasible. Of a feasible one it bounds the finish without each
clause: what the bound falls by is what the clause costs at least.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from taccl.analysis.certificates.bounds import lower_bound
from taccl.arguments import checked
from taccl.solvers.registry import require_known
from taccl.synthesis.explaining.clashes import (
    Change,
    blocked,
    circle_of_own_chunks,
    clashing,
    demands,
    fewest_edits,
    reach,
)
from taccl.synthesis.explaining.loosening import (
    CONNECTIONS,
    CROSSING,
    INSIDE,
    OWN_FIRST,
    RELAYS,
    STRANGERS,
    SWITCH,
    Barriers,
    Edit,
    halves,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from taccl.arguments import Seconds
    from taccl.problem import Problem
    from taccl.synthesis.explaining.clashes import Demand

__all__ = ["ClauseCost", "Explanation", "explain"]

_MAX_NAMED = 8
#: What the bound without any clause is filed under.
EVERY_CLAUSE = "every clause"


@dataclass(frozen=True, slots=True)
class ClauseCost:
    """What one clause costs at least.

    Parameters
    ----------
    clause : str
        ``"file: field"``, or ``"every clause"``.
    bound_us : float
        The lower bound on the finish without the clause.
    difference_us : float
        How much lower that is than with it.
    percent : float
        The difference, relative to `bound_us`.
    """

    clause: str
    bound_us: float
    difference_us: float
    percent: float


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """Why a problem is infeasible, or what the clauses of a feasible one cost.

    Parameters
    ----------
    feasible : bool
    reason : str
        Who cannot get where; of a feasible problem, what limits the bound.
    conflict : tuple of str
        The clauses that clash, each as ``"file: field: what it says"``: without any one of them they would
        not. Empty if the problem is feasible, or if its topology is at fault.
    change : str
        The smallest change that makes the problem feasible, with file and field.
    loosened : Problem, optional
        The problem after that change.
    proven : bool
        Whether no smaller change would do; False where time ran out.
    bound_us : float, optional
        The lower bound on the finish of a feasible problem.
    costs : tuple of ClauseCost
        The dearest clause first; clauses that time did not reach are left out.
    """

    feasible: bool
    reason: str
    conflict: tuple[str, ...] = ()
    change: str = ""
    loosened: Problem | None = field(default=None, compare=False)
    proven: bool = True
    bound_us: float | None = None
    costs: tuple[ClauseCost, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The explanation as plain values."""
        return {
            "feasible": self.feasible,
            "reason": self.reason,
            "conflict": list(self.conflict),
            "change": self.change,
            "proven": self.proven,
            "bound_us": self.bound_us,
            "costs": [
                {
                    "clause": cost.clause,
                    "bound_us": cost.bound_us,
                    "difference_us": cost.difference_us,
                    "percent": cost.percent,
                }
                for cost in self.costs
            ],
        }

    def __repr__(self) -> str:
        if not self.feasible:
            lines = [f"Explanation: infeasible: {self.reason}"]
            if self.conflict:
                lines += ["  these clauses clash:", *(f"    {clause}" for clause in self.conflict)]
            if self.change:
                smallest = "the smallest change" if self.proven else "a change (smaller ones may do)"
                lines.append(f"  {smallest}: {self.change}")
            return "\n".join(lines)
        lines = [f"Explanation: feasible: no schedule ends before {self.bound_us:.6g} us ({self.reason})"]
        if not self.costs:
            lines.append("  no clause to leave out")
        width = max((len(cost.clause) for cost in self.costs), default=0)
        for cost in self.costs:
            lines.append(
                f"  without {cost.clause:<{width}}  {cost.bound_us:>10.6g} us; "
                f"it costs at least {cost.difference_us:.6g} us ({cost.percent:.3g} %)"
            )
        return "\n".join(lines)


@checked
def explain(problem: Problem, *, backend: str = "highs", time_limit_s: Seconds = 30.0) -> Explanation:
    """Why a problem has no schedule, and the smallest change that gives it one; or what its clauses cost.

    A change that names one more pair of ranks, or one more rank that a sender carries for, counts 1; so
    does ``crossing = "any"``. To take a sender's relays away counts 2, to give up all connections or links
    inside nodes 4.

    Parameters
    ----------
    backend : str
        The solver for what graph search alone does not decide: ``"highs"``, ``"scip"``, ``"cbc"``,
        ``"gurobi"``, ``"cpsat"`` or ``"pulp:NAME"``; ``"auto"`` and ``"greedy"`` mean ``"highs"``.
    time_limit_s : float
        Of the whole explanation.

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
    parts = halves(problem)
    missed = blocked([demand for half in parts for demand in demands(half)])
    if missed:
        return _unreached(barriers, missed, solver=backend, deadline=deadline)
    for half in parts:
        circle = circle_of_own_chunks(barriers, half, solver=backend, deadline=deadline)
        if circle:
            return _circle(barriers, circle)
    return _priced(barriers, deadline)


def _unreached(barriers: Barriers, missed: Sequence[Demand], *, solver: str, deadline: float) -> Explanation:
    """The explanation where some chunks cannot get to where they must."""
    for demand in missed:
        reached = reach(demand, lambda link: True)
        ends = tuple(r for r in demand.ends if r not in reached)
        if ends:
            name = barriers.problem.topology.name.removesuffix(" reversed")
            reason = f"{_path(demand, ends[0])}: {name} has no path for it"
            cut = sorted(set(range(barriers.problem.topology.num_ranks)) - reached)
            way = ("from", "to") if demand.half.reducing else ("to", "from")
            link = f"add a link {way[0]} one of ranks {_ranks(cut)} {way[1]} one of ranks {_ranks(reached)}"
            return Explanation(False, reason, change=link)
    demand, clauses = clashing(barriers, missed)
    change = fewest_edits(barriers, missed, solver=solver, deadline=deadline)
    reached = reach(
        demand,
        lambda link: barriers.blocking(demand.half, link, demand.chunk).isdisjoint(clauses),
    )
    far = f"only ranks {_ranks(reached)} can send theirs there" if demand.half.reducing else (
        f"it reaches only ranks {_ranks(reached)}"
    )  # fmt: skip
    return _clash(barriers, f"{_path(demand, demand.ends[0])}; {far}", clauses, change)


def _path(demand: Demand, end: int) -> str:
    """Who cannot get where."""
    name = demand.half.problem.collective.name.split(" (")[0]
    start = demand.starts[0]
    if demand.half.reducing:
        return f"the contribution of rank {end} to chunk {demand.chunk} of {name} cannot get to rank {start}"
    return f"chunk {demand.chunk} of {name} cannot get from rank {start} to rank {end}"


def _circle(barriers: Barriers, clauses: tuple[str, ...]) -> Explanation:
    """The explanation where own chunks that go first wait for each other."""
    reason = "on links of several ranks, own chunks that go first wait for each other in a circle"
    return _clash(barriers, reason, clauses, Change((Edit(OWN_FIRST, "set", (), 1),), True))


def _clash(barriers: Barriers, reason: str, clauses: Iterable[str], change: Change) -> Explanation:
    conflict = tuple(f"{_place(barriers, clause)}: {_said(barriers, clause)}" for clause in clauses)
    return Explanation(
        feasible=False,
        reason=reason,
        conflict=conflict,
        change="; ".join(_told(barriers, change.edits)),
        loosened=barriers.loosened(change.edits),
        proven=change.fewest,
    )


def _place(barriers: Barriers, clause: str) -> str:
    """``"file: field"`` of a clause."""
    field_, where = _field(clause), barriers.clauses.where
    if field_ in where:
        return where[field_]
    source = next((place.rpartition(": ")[0] for place in where.values()), barriers.clauses.name or "sketch")
    switches = [place for name, place in where.items() if name.startswith("switch[")]
    if field_ == SWITCH and len(switches) == 1:
        return f"{switches[0]}.planes"
    return f"{source}: {field_}{'.planes' if field_ == SWITCH else ''}"


def _field(clause: str) -> str:
    """The field of a sketch that a clause is in; a sender's relays are in one for all."""
    return RELAYS if clause.startswith(RELAYS) else clause


def _said(barriers: Barriers, clause: str) -> str:
    """What a clause says, in a few words."""
    if clause in (CONNECTIONS, INSIDE):
        between = "between nodes" if clause == CONNECTIONS else "inside a node"
        if not barriers.is_local:
            return f"not every link {between} may be used"
        pairs = barriers.allowed_pairs[clause]
        return f"{between}, only local ranks {_pairs(pairs)} may send" if pairs else f"no link {between}"
    if clause.startswith(RELAYS):
        if not barriers.is_local:
            return "links carry only what starts at some ranks"
        sender = int(clause.rpartition(".")[2])
        carried = _ranks(barriers.carried_by(sender))
        return f"local rank {sender} carries off only the chunks of local ranks {carried}"
    if clause == CROSSING:
        return "a chunk crosses only straight from a node where it starts to one that needs it"
    if clause == OWN_FIRST:
        return "a sender's own chunks go before those it relays"
    if clause == STRANGERS:
        return "only some ranks pass on chunks of process groups that they are not in"
    return "only some of the parallel links may be used"


def _told(barriers: Barriers, edits: Sequence[Edit]) -> Iterator[str]:
    """What to write in the sketch, one sentence for every clause and kind of edit."""
    kinds = dict.fromkeys((edit.clause, edit.verb) for edit in edits)
    for clause, verb in kinds:
        items = sorted({i for e in edits if (e.clause, e.verb) == (clause, verb) for i in e.items})
        yield f"{_place(barriers, clause)}: {_edit(barriers, clause, verb, items)}"


def _edit(barriers: Barriers, clause: str, verb: str, items: Sequence[tuple[int, ...]]) -> str:
    topology = barriers.problem.topology
    if clause == CROSSING:
        return 'set it to "any"'
    if clause == OWN_FIRST:
        return "set it to false"
    if clause == STRANGERS:
        return "remove it, so that any rank may relay"
    if verb == "remove":
        return "remove it, so that " + (
            "links carry any chunk" if clause == RELAYS else "any link may be used"
        )
    if verb == "remove entry":
        senders = ", ".join(str(sender) for (sender,) in items)
        return f"remove the entry of local rank {senders}, so that it carries any chunk off its node"
    if verb == "allow":
        return f"allow link {', '.join(str(topology.links[e]) for (e,) in items)}"
    if clause == RELAYS:
        return "add " + ", ".join(f"{start} to the list of {sender}" for sender, start in items)
    example = next(
        link
        for e, link in enumerate(topology.links)
        if topology.is_internode(e) == (clause == CONNECTIONS)
        and (topology.local_rank[link.src], topology.local_rank[link.dst]) in items
    )
    return f"allow {_pairs(items)} (such as {example})"


def _pairs(pairs: Sequence[tuple[int, ...]]) -> str:
    named = ", ".join(f"{src} -> {dst}" for src, dst in pairs[:_MAX_NAMED])
    more = len(pairs) - _MAX_NAMED
    return f"{named} and {more} more" if more > 0 else named


def _ranks(ranks: Iterable[int]) -> str:
    """Ranks with runs written as ``0-7``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs) or "none"


def _priced(barriers: Barriers, deadline: float) -> Explanation:
    """What each clause costs: the bound with it, against the bound without it."""
    problem = barriers.problem
    bound = lower_bound(problem)
    costs = []
    for clause, without in _each_without(barriers):
        if time.monotonic() > deadline:
            break
        free_us = lower_bound(without).bound_us
        difference = bound.bound_us - free_us
        percent = 100 * difference / free_us if free_us else 0.0
        costs.append(ClauseCost(clause, free_us, difference, percent))
    costs.sort(key=lambda cost: (cost.clause != EVERY_CLAUSE, -cost.difference_us))
    return Explanation(True, bound.limits, bound_us=bound.bound_us, costs=tuple(costs))


def _each_without(barriers: Barriers) -> Iterator[tuple[str, Problem]]:
    """Every clause that binds a schedule, and the problem without it; last, the one without all."""
    problem, clauses = barriers.problem, barriers.clauses
    fields = []
    for clause in (CONNECTIONS, INSIDE, SWITCH, RELAYS, STRANGERS, CROSSING, OWN_FIRST):
        without = barriers.without([clause])
        if without.clauses != clauses:
            fields.append(clause)
            yield _place(barriers, clause), without
    most = max(clauses.max_merge, problem.collective.num_chunks)
    if "merging.max" in clauses.where:
        yield clauses.where["merging.max"], problem.with_clauses(max_merge=most)
    everywhere = frozenset(range(len(problem.topology.links)))
    if "merging.links" in clauses.where:
        yield (
            clauses.where["merging.links"],
            problem.with_clauses(merging=everywhere, max_merge=max(clauses.max_merge, 6)),
        )
    named = {"merging.max", "merging.links"} & set(clauses.where)
    if len(fields) + len(named) > 1:
        free = barriers.without(fields)
        if named:
            free = free.with_clauses(max_merge=most, merging=everywhere)
        yield EVERY_CLAUSE, free
