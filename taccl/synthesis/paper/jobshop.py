"""Joint ordering and contiguity: the fold as a job shop with batches, for CP-SAT.

An interval per move, no overlap on each resource orbit, and on merging links a row of batches to which
moves are assigned. Moves may be optional, so that the solver also routes. This is the side of our process,
which builds plain arrays; `jobshop_model` runs in a worker process, the only place where ortools is loaded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
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
    threads: int = 1,
    seed: int = 0,
    log: bool = False,
    **options: Any,
) -> JobShopAnswer:
    """The best schedule that CP-SAT finds for the job shop, in a worker process.

    - `optional`, `required`: Moves that may be made, and that must be; all others are left out.
    - `upper_ticks`, `lower_ticks`: The finish must be at most (at least) this.
    - `hint`: A schedule on the fold to start from; its moves need not all be among those given.
    - `**options`: Those of `taccl.solvers.worker.start_task`, of which a time limit is needed.
    """
    moves = sorted({*optional, *required})
    required, hops = set(required), orbits.hops
    payload = _payload(orbits, moves, hint) | {
        "is_required": [m in required for m in moves],
        "least_hops": [] if hops is None else hops.least,
        "most_hops": [] if hops is None else [hops.limit - left for left in hops.left],
        "starts_anew": [hops is not None and m in hops.starts_anew for m in moves],
        "upper": int(upper_ticks),
        "lower": int(lower_ticks),
        "threads": threads,
        "seed": seed,
        "log": log,
    }
    function = "taccl.synthesis.paper.jobshop_model:run"
    return _answer(orbits, run_task("ortools", function, payload, log=log, **options))


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


def _payload(orbits: Orbits, moves: Sequence[int], hint: ListSchedule | None) -> dict[str, Any]:
    """Moves, renumbered, places and links as plain arrays, and a start."""
    costs, clauses, chosen = orbits.problem.costs, orbits.problem.clauses, [orbits.moves[m] for m in moves]
    links = sorted({move.link_orbit for move in chosen})
    number, link_number = ({each: i for i, each in enumerate(some)} for some in (moves, links))
    hint_start, hint_batch = np.full(len(moves), -1), np.full(len(moves), -1)
    hint_arrival = np.full(len(orbits.places), -1)
    for b, send in enumerate(hint.sends if hint else ()):
        for m in send.moves:
            if m in number:
                hint_start[number[m]], hint_batch[number[m]] = send.start_ticks, b
            for p in orbits.moves[m].dsts:
                hint_arrival[p] = send.end_ticks
    of_moves = "srcs", "dsts", "units", "duration", "after_ticks", "is_own"
    of_places = "head_ticks", "is_origin", "is_destination"
    return {
        **{name: [getattr(move, name) for move in chosen] for name in of_moves},
        **{name: [getattr(place, name) for place in orbits.places] for name in of_places},
        "move": np.array(moves, dtype=np.int64),
        "link": [link_number[move.link_orbit] for move in chosen],
        "single": [orbits.single_path[move.chunk] for move in chosen],
        "link_alpha": [int(costs.link_alpha[orbits.link_rep[link]]) for link in links],
        "link_beta": [int(costs.link_beta[orbits.link_rep[link]]) for link in links],
        "merging": [orbits.merging[link] for link in links],
        "own_first": [orbits.link_rep[link] in clauses.own_first for link in links],
        "held": [
            [(held.resource, held.alpha, held.beta, held.receives) for held in orbits.holds[link]]
            for link in links
        ],
        "max_merge": clauses.max_merge,
        "hint_start": hint_start,
        "hint_batch": hint_batch,
        "hint_arrival": hint_arrival,
    }
