"""Joint ordering and merging of sends as a job shop for CP-SAT, and cuts on routing from its bounds.

The job shop is on the quotient of a problem by its symmetry. There is an interval per hop, no overlap on each
resource orbit, and on merging links a sequence of batches to which hops are assigned. If hops are optional,
the solver also routes. This module prepares plain arrays in the calling process; `jobshop_model` runs in a
worker process, the only place where ortools is loaded.

A cut comes from the critical path of a schedule: logic-based Benders decomposition with routing as the master
problem. The hops of that path, and the hops that bring their chunks, are scheduled alone. The bound that
CP-SAT proves for these hops holds for every routing that includes them all. Sources: Hooker and Ottosson,
"Logic-based Benders decomposition", Mathematical Programming 96, 2003; Jain and Grossmann, "Algorithms for
hybrid MILP/CP models for a class of optimization problems", INFORMS Journal on Computing 13 (4), 2001.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from taccl.solvers.worker import Outcome, run_task
from taccl.synthesis.milp.jobshop_model import ALL_BATCHES
from taccl.synthesis.milp.solutions import needed_entries
from taccl.synthesis.proposers.greedy import ListSchedule, Send, send_of
from taccl.synthesis.symmetry.quotient import Quotient


@dataclass(frozen=True, slots=True)
class JobShopAnswer:
    """Result of solving the job shop.

    - `status`: As for `taccl.solvers.solver.Solution`.
    - `schedule`: Schedule on the quotient; None if none was found.
    - `bound_ticks`: Lower bound on the job shop's finish; None without one.
    """

    status: str
    schedule: ListSchedule | None
    bound_ticks: int | None
    message: str
    seconds: float


def solve(
    quotient: Quotient,
    *,
    optional: Collection[int],
    required: Collection[int],
    upper_ticks: int,
    lower_ticks: int = 0,
    hint: ListSchedule | None = None,
    threads: int = 1,
    seed: int = 0,
    log: bool = False,
    in_turns: bool = True,
    **options: Any,
) -> JobShopAnswer:
    """Best schedule that CP-SAT finds for the job shop, in a worker process.

    - `optional`, `required`: Hops that may be made, and that must be; all others are left out.
    - `upper_ticks`, `lower_ticks`: The finish must be at most (at least) this.
    - `hint`: A schedule on the quotient to start from; it may use other hops, too.
    - `in_turns`: True to interleave CP-SAT's strategies by amounts of work instead of time, so that results
      are reproducible. False finds better schedules if the time limit is short.
    - `**options`: Options of `taccl.solvers.worker.run_task`, including the time limit.
    """
    hops = sorted({*optional, *required})
    required, limits = set(required), quotient.hop_limit
    begins: frozenset[tuple[int, int]] = frozenset() if limits is None else limits.begins
    payload = _payload(quotient, hops, hint) | {
        "is_required": [m in required for m in hops],
        "least_hops": [] if limits is None else limits.least,
        "most_hops": [] if limits is None else [limits.limit - left for left in limits.left],
        "begins": [[(m, a) in begins for a in quotient.hops[m].srcs] for m in hops],
        "upper": int(upper_ticks),
        "lower": int(lower_ticks),
        "threads": threads,
        "in_turns": in_turns,
        "seed": seed,
        "log": log,
    }
    function = "taccl.synthesis.milp.jobshop_model:run"
    return _answer(quotient, run_task("ortools", function, payload, log=log, **options))


def _answer(quotient: Quotient, outcome: Outcome) -> JobShopAnswer:
    """Answer from the outcome of a worker; after a crash or kill, with its last incumbent if there is one."""
    result = outcome.result or outcome.last_progress or {}
    status: str = outcome.status
    if outcome.status == "done":
        status = str(result["status"])
    bound = None if result.get("bound") is None else int(result["bound"])
    schedule = None
    if "start" in result:
        batches: dict[int, list[int]] = defaultdict(list)
        starts: dict[int, int] = {}
        for m, begin, batch in zip(result["hop"], result["start"], result["batch"], strict=True):
            batches[int(batch)].append(int(m))
            starts[int(batch)] = int(begin)
        sends = [send_of(quotient, sorted(hops), starts[batch]) for batch, hops in batches.items()]
        sends.sort(key=lambda send: (send.start_ticks, send.link, send.hops))
        schedule = ListSchedule(tuple(sends), int(result["finish"]))
    return JobShopAnswer(status, schedule, bound, outcome.message, outcome.seconds)


def _payload(quotient: Quotient, hops: Sequence[int], hint: ListSchedule | None) -> dict[str, Any]:
    """Convert hops, states and links to plain arrays with consecutive numbers, and add the hint."""
    costs, clauses, chosen = (
        quotient.problem.costs,
        quotient.problem.clauses,
        [quotient.hops[m] for m in hops],
    )
    links = sorted({hop.link_orbit for hop in chosen})
    number, link_number = ({each: i for i, each in enumerate(some)} for some in (hops, links))
    hint_start, hint_batch = np.full(len(hops), -1), np.full(len(hops), -1)
    hint_arrival = np.full(len(quotient.states), -1)
    for b, send in enumerate(hint.sends if hint else ()):
        for m in send.hops:
            if m in number:
                hint_start[number[m]], hint_batch[number[m]] = send.start_ticks, b
            for p in quotient.hops[m].dsts:
                hint_arrival[p] = send.end_ticks
    of_hops = "srcs", "dsts", "units", "duration", "after_ticks", "is_own"
    of_states = "head_ticks", "is_origin", "is_destination"
    return {
        **{name: [getattr(hop, name) for hop in chosen] for name in of_hops},
        **{name: [getattr(state, name) for state in quotient.states] for name in of_states},
        "hop": np.array(hops, dtype=np.int64),
        "link": [link_number[hop.link_orbit] for hop in chosen],
        "single": [quotient.single_path[hop.chunk] for hop in chosen],
        "link_alpha": [int(costs.link_alpha[quotient.link_rep[link]]) for link in links],
        "link_beta": [int(costs.link_beta[quotient.link_rep[link]]) for link in links],
        "merging": [quotient.merging[link] for link in links],
        "own_first": [quotient.link_rep[link] in clauses.own_first for link in links],
        "held": [
            [(held.resource, held.alpha, held.beta, held.receives) for held in quotient.holds[link]]
            for link in links
        ],
        "max_merge": clauses.max_merge,
        "hint_start": hint_start,
        "hint_batch": hint_batch,
        "hint_arrival": hint_arrival,
    }


@dataclass(frozen=True, slots=True)
class Cut:
    """Proof that every schedule with all of the hops in `hops` finishes at `ticks` or later."""

    hops: frozenset[int]
    ticks: int


def find_cut(
    quotient: Quotient, schedule: ListSchedule, *, upper_ticks: int, lower_ticks: int, **options: Any
) -> Cut | None:
    """Cut from the critical path of a schedule, or else from all its needed hops; None if neither is proven.

    - `upper_ticks`: Finish of the incumbent: a cut of at least this excludes the routing.
    - `lower_ticks`: Proven bound: a cut must exceed it.
    - `**options`: Options of `jobshop.solve`, with the time limit of each proof.
    """
    entries = needed_entries(quotient, schedule)
    every = frozenset(entries.values())
    for hops in dict.fromkeys((critical_hops(quotient, schedule, entries), every)):
        if not _is_relaxed_exactly(quotient, hops):
            continue
        answer = solve(
            _alone(quotient, hops), optional=(), required=hops, upper_ticks=upper_ticks - 1,
            lower_ticks=min(lower_ticks, upper_ticks - 1), **options,
        )  # fmt: skip
        if answer.status == "infeasible":
            return Cut(hops, upper_ticks)
        if answer.bound_ticks is not None and answer.bound_ticks > lower_ticks:
            return Cut(hops, answer.bound_ticks)
    return None


def critical_hops(quotient: Quotient, schedule: ListSchedule, entries: dict[int, int]) -> frozenset[int]:
    """Hops of a critical path, and all earlier hops that bring their chunks.

    - `entries`: {needed state: hop that brings its chunk}.
    """
    sends = {m: send for send in schedule.sends for m in send.hops}
    needed = set(entries.values())
    turns: dict[tuple[int, int], Send] = {}
    for send in schedule.sends:
        for resource, _, until in _holds(quotient, send):
            turns[resource, until] = send
    at = max((sends[m] for m in needed), key=lambda send: send.end_ticks, default=None)
    critical: set[int] = set()
    while at is not None and needed.intersection(at.hops) - critical:
        critical |= needed.intersection(at.hops)
        origins = (entries.get(p) for m in at.hops if m in needed for p in quotient.hops[m].srcs)
        before = [sends[m] for m in origins if m is not None and sends[m].end_ticks == at.start_ticks]
        begins = (hold[:2] for hold in _holds(quotient, at))
        before += [turns[begin] for begin in begins if begin in turns]
        at = next((send for send in before if send is not at), None)
    pending = list(critical)
    while pending:
        for p in quotient.hops[pending.pop()].srcs:
            m = entries.get(p)
            if m is not None and m not in critical and not quotient.states[p].is_origin:
                critical.add(m)
                pending.append(m)
    return frozenset(critical)


def _holds(quotient: Quotient, send: Send) -> list[tuple[int, int, int]]:
    """Occupations of resources by a send, as [(resource, begin, end), ...] in ticks."""
    units = sum(quotient.hops[m].units for m in send.hops)
    spans = []
    for held in quotient.holds[send.link]:
        length = held.alpha + units * held.beta
        begin = send.end_ticks - length if held.receives else send.start_ticks
        spans.append((held.resource, begin, begin + length))
    return spans


def _is_relaxed_exactly(quotient: Quotient, hops: Collection[int]) -> bool:
    """True if a bound of the job shop of only these hops holds for all schedules that contain them.

    The model must allow all merges, and no other hop may be able to speed up these hops. Multicasts are
    excluded, since another hop may enter one of their states sooner.
    """
    if any(len(quotient.hops[m].dsts) > 1 for m in hops):
        return False
    counts = Counter(quotient.hops[m].link_orbit for m in hops)
    merging = [link for link in counts if quotient.merging[link]]
    beta = quotient.problem.costs.link_beta
    return all(
        counts[link] <= ALL_BATCHES
        and all(held.beta == beta[quotient.link_rep[link]] for held in quotient.holds[link] if held.receives)
        for link in merging
    )


def _alone(quotient: Quotient, hops: Collection[int]) -> Quotient:
    """Copy of the quotient whose destinations are exactly the states that the given hops enter."""
    entered: dict[int, bool] = defaultdict(bool)
    entered |= {p: True for m in hops for p in quotient.hops[m].dsts}
    states = (replace(state, is_destination=entered[p]) for p, state in enumerate(quotient.states))
    return replace(quotient, states=tuple(states))
