"""Joint ordering and contiguity: the fold as a job shop with batches, for CP-SAT.

An interval per move, no overlap on each resource orbit, and on merging links a row of batches to which
moves are assigned. Moves may be optional, so that the solver also routes. This is the side of our process,
which builds plain arrays; `jobshop_model` runs in a worker process, the only place where ortools is loaded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from taccl.solvers.worker import Outcome, run_task
from taccl.synthesis.greedy import ListSchedule, send_of
from taccl.synthesis.paper.orbits import Orbits


@dataclass(frozen=True, slots=True)
class JobShopAnswer:
    """What the job shop found: a status of `Solution`, a schedule on the fold, and a bound of the fold."""

    status: str
    schedule: ListSchedule | None
    bound_ticks: int | None
    message: str
    seconds: float


def solve(
    orbits: Orbits,
    *,
    optional: Collection[int],
    required: Collection[int],
    upper_ticks: int,
    lower_ticks: int = 0,
    hint: ListSchedule | None = None,
    joins: Collection[int] = (),
    reducing: Collection[int] = (),
    time_limit_s: float,
    threads: int = 1,
    seed: int = 0,
    memory_limit_mb: int | None = None,
    log: bool = False,
    on_progress: Callable[[dict[str, Any]], None] | None = None,
) -> JobShopAnswer:
    """The best schedule that CP-SAT finds for the job shop, in a worker process.

    - `optional`, `required`: Moves that may be made, and that must be; all others are left out.
    - `upper_ticks`, `lower_ticks`: The finish must be at most (at least) this.
    - `hint`: A schedule on the fold to start from; its moves need not all be among those given.
    - `joins`: Places that are complete when every required move into them has arrived: sums.
    - `reducing`: Moves that reduce: they never merge with others, and their own chunks go last.
    """
    payload = _payload(orbits, sorted(optional), set(required), upper_ticks, lower_ticks, hint)
    payload["is_join"] = [p in set(joins) for p in range(len(orbits.places))]
    if joins:  # then routes are given, each half's within its limit
        payload["least_hops"] = payload["most_hops"] = []
    payload["reduces"] = [int(m) in set(reducing) for m in payload["move"]]
    payload |= {"threads": threads, "seed": seed, "log": log}
    outcome = run_task(
        "ortools",
        "taccl.synthesis.paper.jobshop_model:run",
        payload,
        time_limit_s=time_limit_s,
        memory_limit_mb=memory_limit_mb,
        on_progress=on_progress,
        log=log,
    )
    return _answer(orbits, outcome)


def _answer(orbits: Orbits, outcome: Outcome) -> JobShopAnswer:
    """The answer that an outcome holds; a crash or a kill may leave the last incumbent."""
    result = outcome.result or outcome.last_progress or {}
    status: str = outcome.status
    if outcome.status == "done":
        status = str(result["status"])
    bound = None if result.get("bound") is None else int(result["bound"])
    schedule = None
    if "start" in result:
        batches: dict[int, list[int]] = defaultdict(list)
        starts: dict[int, int] = {}
        for m, begin, batch in zip(result["move"], result["start"], result["batch"], strict=True):
            batches[int(batch)].append(int(m))
            starts[int(batch)] = int(begin)
        sends = [send_of(orbits, sorted(moves), starts[batch]) for batch, moves in batches.items()]
        sends.sort(key=lambda send: (send.start_ticks, send.link, send.moves))
        schedule = ListSchedule(tuple(sends), int(result["finish"]))
    return JobShopAnswer(status, schedule, bound, outcome.message, outcome.seconds)


def _payload(
    orbits: Orbits,
    optional: Sequence[int],
    required: set[int],
    upper: int,
    lower: int,
    hint: ListSchedule | None,
) -> dict[str, Any]:
    """The job shop as plain arrays, moves renumbered."""
    moves = sorted({*optional, *required})
    costs, clauses, hops = orbits.problem.costs, orbits.problem.clauses, orbits.hops
    number = {m: i for i, m in enumerate(moves)}
    chosen = [orbits.moves[m] for m in moves]
    used_links = sorted({move.link_orbit for move in chosen})
    link_number = {link: i for i, link in enumerate(used_links)}
    hint_start, hint_batch = np.full(len(moves), -1), np.full(len(moves), -1)
    hint_arrival = np.full(len(orbits.places), -1)
    for b, send in enumerate(hint.sends if hint else ()):
        for m in send.moves:
            if m in number:
                hint_start[number[m]], hint_batch[number[m]] = send.start_ticks, b
            for p in orbits.moves[m].dsts:
                hint_arrival[p] = send.end_ticks
    return {
        "move": np.array(moves, dtype=np.int64),
        "srcs": [list(move.srcs) for move in chosen],
        "dsts": [list(move.dsts) for move in chosen],
        "link": [link_number[move.link_orbit] for move in chosen],
        "units": [move.units for move in chosen],
        "duration": [move.duration for move in chosen],
        "after": [move.after_ticks for move in chosen],
        "is_own": [move.is_own for move in chosen],
        "is_required": [m in required for m in moves],
        "single": [orbits.single_path[move.chunk] for move in chosen],
        "head": [place.head_ticks for place in orbits.places],
        "is_origin": [place.is_origin for place in orbits.places],
        "is_destination": [place.is_destination for place in orbits.places],
        "least_hops": [] if hops is None else hops.least,
        "most_hops": [] if hops is None else [hops.limit - left for left in hops.left],
        "starts_anew": [hops is not None and m in hops.starts_anew for m in moves],
        "link_alpha": [int(costs.link_alpha[orbits.link_rep[link]]) for link in used_links],
        "link_beta": [int(costs.link_beta[orbits.link_rep[link]]) for link in used_links],
        "merging": [orbits.merging[link] for link in used_links],
        "own_first": [orbits.link_rep[link] in clauses.own_first for link in used_links],
        "held": [
            [link_number[link], held.resource, held.alpha, held.beta, int(held.receives)]
            for link in used_links
            for held in orbits.holds[link]
        ],
        "max_merge": clauses.max_merge,
        "upper": int(upper),
        "lower": int(lower),
        "hint_start": hint_start.astype(np.int64),
        "hint_batch": hint_batch.astype(np.int64),
        "hint_arrival": hint_arrival.astype(np.int64),
    }
