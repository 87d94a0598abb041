"""Joint ordering and contiguity: the quotient as a job shop with batches, for CP-SAT.

An interval per hop, no overlap on each resource orbit, and on merging links a row of batches to which
hops are assigned. Hops may be optional, so that the solver also routes. This is the side of our process,
which builds plain arrays; `jobshop_model` runs in a worker process, the only place where ortools is loaded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from taccl.solvers.worker import Outcome, run_task
from taccl.synthesis.proposers.greedy import ListSchedule, send_of
from taccl.synthesis.symmetry.quotient import Quotient


@dataclass(frozen=True, slots=True)
class JobShopAnswer:
    """Result of the job shop: a status of `Solution`, a schedule on the quotient, and its bound."""

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
    """The best schedule that CP-SAT finds for the job shop, in a worker process.

    - `optional`, `required`: Hops that may be made, and that must be; all others are left out.
    - `upper_ticks`, `lower_ticks`: The finish must be at most (at least) this.
    - `hint`: A schedule on the quotient to start from; its hops need not all be among those given.
    - `in_turns`: True if strategies take turns of counted work, and two runs find the same; otherwise more is
      found in short rounds.
    - `**options`: Those of `taccl.solvers.worker.run_task`, of which a time limit is needed.
    """
    hops = sorted({*optional, *required})
    required, limits = set(required), quotient.hop_limit
    payload = _payload(quotient, hops, hint) | {
        "is_required": [m in required for m in hops],
        "least_hops": [] if limits is None else limits.least,
        "most_hops": [] if limits is None else [limits.limit - left for left in limits.left],
        "starts_anew": [limits is not None and m in limits.starts_anew for m in hops],
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
        for m, begin, batch in zip(result["hop"], result["start"], result["batch"], strict=True):
            batches[int(batch)].append(int(m))
            starts[int(batch)] = int(begin)
        sends = [send_of(quotient, sorted(hops), starts[batch]) for batch, hops in batches.items()]
        sends.sort(key=lambda send: (send.start_ticks, send.link, send.hops))
        schedule = ListSchedule(tuple(sends), int(result["finish"]))
    return JobShopAnswer(status, schedule, bound, outcome.message, outcome.seconds)


def _payload(quotient: Quotient, hops: Sequence[int], hint: ListSchedule | None) -> dict[str, Any]:
    """Hops, renumbered, states and links as plain arrays, and a start."""
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
