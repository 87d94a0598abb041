"""CP-SAT model of the job shop, built from plain arrays and solved in a worker process.

There is an interval per hop that is sent alone, and a sequence of batches per merging link; see `jobshop`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np

from taccl.solvers.child import Control
from taccl.solvers.cpsat import new_solver

#: Max hops of a merging link for which the model has as many batches as hops, so that any merging is allowed.
ALL_BATCHES = 10


def run(payload: dict[str, Any], control: Control) -> dict[str, Any]:
    """Build the job shop in CP-SAT and solve it; called in a worker process."""
    from ortools.sat.python import cp_model

    shop = _Shop(cp_model, payload)

    class Watch(cp_model.CpSolverSolutionCallback):  # type: ignore[misc]
        def on_solution_callback(self) -> None:
            found = shop.read(self.value, self.objective_value, self.best_objective_bound)
            control.progress({"status": "feasible"} | found)

    solver = new_solver(payload, control)
    with control.stopping(solver.stop_search):
        status = solver.status_name(solver.solve(shop.model, Watch())).lower()
    if status in ("optimal", "feasible"):
        found = shop.read(solver.value, solver.objective_value, solver.best_objective_bound)
        return {"status": status} | found
    return {"status": "infeasible" if status == "infeasible" else "no-solution", "bound": None}


class _Shop:
    """CP-SAT model of a job shop that is given as plain arrays (`payload`), and reader of its solutions."""

    def __init__(self, cp: Any, payload: dict[str, Any]) -> None:
        self.payload, self.model = payload, cp.CpModel()
        model, upper = self.model, payload["upper"]
        self.count = len(payload["link"])
        self.finish = model.new_int_var(min(payload["lower"], upper), upper, "finish")
        self.arrival: dict[int, Any] = {}
        self.made: list[Any] = []
        self.brings: dict[tuple[int, int], Any] = {}
        self.begin: dict[int, Any] = {}
        self.intervals: dict[int, list[tuple[Any, Any]]] = defaultdict(list)
        self.batches: dict[int, _Batches] = {}
        self._route()
        if payload["least_hops"]:
            self._limit_hops()
        hops_of_link: dict[int, list[int]] = defaultdict(list)
        for m, link in enumerate(payload["link"]):
            hops_of_link[link].append(m)
        for link, hops in sorted(hops_of_link.items()):
            if payload["merging"][link]:
                self.batches[link] = _Batches(self, link, hops)
            else:
                for m in hops:
                    self._single(m, link)
                if payload["own_first"][link]:
                    self._own_first(hops)
        for used in self.intervals.values():
            model.add_no_overlap([interval for interval, _ in used])
            model.add(self.finish >= sum(load for _, load in used))
        model.minimize(self.finish)

    def at(self, state: int) -> Any:
        """Arrival time of a state, a (chunk, rank) pair; 0 at an origin."""
        if self.payload["is_origin"][state]:
            return 0
        if state not in self.arrival:
            head, upper = self.payload["head_ticks"][state], self.payload["upper"]
            self.arrival[state] = self.model.new_int_var(min(head, upper), upper, "")
            hinted = int(self.payload["hint_arrival"][state])
            self.model.add_hint(self.arrival[state], hinted if hinted >= 0 else upper)
            if self.payload["is_destination"][state]:
                self.model.add(self.finish >= self.arrival[state])
        return self.arrival[state]

    def _route(self) -> None:
        """Let one hop enter each destination, and let hops only leave origins or states that a hop enters."""
        payload, model = self.payload, self.model
        into: dict[int, list[int]] = defaultdict(list)
        out: dict[int, list[int]] = defaultdict(list)
        for m in range(self.count):
            self.made.append(True if payload["is_required"][m] else model.new_bool_var(""))
            for p in payload["dsts"][m]:
                into[p].append(m)
            for p in payload["srcs"][m]:
                out[p].append(m)
        for p in range(len(payload["head_ticks"])):
            entering = [self._brings(m, p, into[p]) for m in into[p]]
            leaving = [self.made[m] for m in out[p]]
            single = any(payload["single"][m] for m in (*into[p], *out[p]))
            if payload["is_origin"][p]:
                if single and leaving and not payload["is_destination"][p]:
                    model.add(sum(leaving) <= 1)
                continue
            if payload["is_destination"][p]:
                model.add(sum(entering) == 1) if len(entering) > 1 else model.add_bool_or(entering or [False])
            elif single:
                model.add(sum(entering) == sum(leaving))
            elif entering:
                model.add(sum(entering) <= 1)
            if not single or payload["is_destination"][p]:
                for each in leaving:
                    if each is True:
                        model.add_bool_or(entering)
                    else:
                        model.add_bool_or([*entering, each.negated()])

    def _limit_hops(self) -> None:
        """Constrain the number of links on a chunk's path to each state, a (chunk, rank) pair.

        A hop adds one link to the path to its source; `begins` marks sources at which the count restarts.
        """
        payload, model = self.payload, self.model
        passed = [
            0 if is_origin else model.new_int_var(min(least, most), max(least, most), "")
            for is_origin, least, most in zip(
                payload["is_origin"], payload["least_hops"], payload["most_hops"], strict=True
            )
        ]
        for m, begins in enumerate(payload["begins"]):
            for p in payload["dsts"][m]:
                sources = zip(payload["srcs"][m], begins, strict=True)
                for a, is_begin in sources if not payload["is_origin"][p] else ():
                    before = 0 if is_begin else passed[a]
                    self.only_if(model.add(passed[p] >= before + 1), self.brings.get((m, p), self.made[m]))

    def _brings(self, m: int, p: int, into: Sequence[int]) -> Any:
        """Literal that is true if state `p`, a (chunk, rank) pair, gets its chunk from hop `m`.

        A multicast may reach ranks that get the chunk from another hop; its literals for these are false.

        - `into`: All hops into the state.
        """
        payload = self.payload
        if payload["is_origin"][p] or all(len(payload["dsts"][k]) == 1 for k in into):
            return self.made[m]
        brings = self.brings[m, p] = self.model.new_bool_var("")
        if self.made[m] is not True:
            self.model.add_implication(brings, self.made[m])
        return brings

    def only_if(self, constraint: Any, *literals: Any) -> None:
        """Enforce a constraint only if all literals hold; literals that are True are skipped."""
        conditions = [literal for literal in literals if literal is not True]
        if conditions:
            constraint.only_enforce_if(conditions)

    def _single(self, m: int, link: int) -> None:
        """Add an unmerged send of a hop: an interval on each resource of its link."""
        payload, model, upper = self.payload, self.model, self.payload["upper"]
        duration, units, made = payload["duration"][m], payload["units"][m], self.made[m]
        latest = max(0, upper - duration - payload["after_ticks"][m])
        start = model.new_int_var(0, latest, "")
        self.begin[m] = start
        for p in payload["srcs"][m]:
            self.only_if(model.add(start >= self.at(p)), made)
        for p in payload["dsts"][m]:
            self.only_if(model.add(self.at(p) >= start + duration), self.brings.get((m, p), made))
        for resource, alpha, beta, receives in payload["held"][link]:
            length = alpha + units * beta
            offset = duration - length if receives else 0
            interval = model.new_optional_fixed_size_interval_var(start + offset, length, made, "")
            self.intervals[resource].append((interval, length * made))
        hinted = int(payload["hint_start"][m])
        if made is not True:
            model.add_hint(made, hinted >= 0)
        model.add_hint(start, max(0, min(hinted, latest)))

    def _own_first(self, hops: Sequence[int]) -> None:
        """Let each own chunk start at least its duration before relayed ones (local-first priority)."""
        payload = self.payload
        for own, relayed in product(hops, hops):
            if payload["is_own"][own] and not payload["is_own"][relayed]:
                apart = self.model.add(self.begin[relayed] >= self.begin[own] + payload["duration"][own])
                self.only_if(apart, self.made[own], self.made[relayed])

    def read(self, value: Callable[[Any], int], objective: float, bound: float) -> dict[str, Any]:
        """Read a solution: arrays of the sent hops, their starts and batches; finish and bound in ticks."""
        hops, starts, together = [], [], []
        for m in range(self.count):
            if self.made[m] is not True and not value(self.made[m]):
                continue
            link = self.payload["link"][m]
            hops.append(int(self.payload["hop"][m]))
            if link in self.batches:
                begin, batch = self.batches[link].read(m, value)
                starts.append(begin)
                together.append(-1 - (link * self.count + batch))
            else:
                starts.append(int(value(self.begin[m])))
                together.append(m)
        return {
            "hop": np.array(hops, dtype=np.int64),
            "start": np.array(starts, dtype=np.int64),
            "batch": np.array(together, dtype=np.int64),
            "finish": round(objective),
            "bound": round(bound),
        }


class _Batches:
    """Batches (merged sends) of one merging link, in order of time; unused batches come last."""

    def __init__(self, shop: _Shop, link: int, hops: Sequence[int]) -> None:
        self.shop, self.link, self.hops = shop, link, hops
        payload, model, upper = shop.payload, shop.model, shop.payload["upper"]
        self.alpha, self.beta = payload["link_alpha"][link], payload["link_beta"][link]
        self.max_merge, count = payload["max_merge"], len(hops)
        hinted = sorted({int(payload["hint_batch"][m]) for m in hops} - {-1}, key=self._hinted_start)
        rows = min(count, max(-(-count // self.max_merge) + 2, len(hinted)) if count > ALL_BATCHES else count)
        total = sum(payload["units"][m] for m in hops)
        self.starts = [model.new_int_var(0, upper, "") for _ in range(rows)]
        self.ends = [model.new_int_var(0, upper, "") for _ in range(rows)]
        self.units = [model.new_int_var(0, total, "") for _ in range(rows)]
        self.used = [model.new_bool_var("") for _ in range(rows)]
        self.chosen = {m: [model.new_bool_var("") for _ in range(rows)] for m in hops}
        for m in hops:
            model.add(sum(self.chosen[m]) == (1 if shop.made[m] is True else shop.made[m]))
        for j in range(rows):
            self._one(j)
        for j in range(1, rows):
            model.add_implication(self.used[j], self.used[j - 1])
        self._hold()
        if payload["own_first"][link]:
            self._own_first()
        self._hint(hinted)

    def _hinted_start(self, batch: int) -> int:
        payload = self.shop.payload
        return min(int(payload["hint_start"][m]) for m in self.hops if payload["hint_batch"][m] == batch)

    def _one(self, j: int) -> None:
        """Let batch j last alpha plus beta times its units, and start after its chunks arrive."""
        shop, payload, model = self.shop, self.shop.payload, self.shop.model
        inside = [self.chosen[m][j] for m in self.hops]
        model.add(sum(inside) <= self.max_merge * self.used[j])
        model.add(sum(inside) >= self.used[j])
        model.add(self.units[j] == sum(payload["units"][m] * self.chosen[m][j] for m in self.hops))
        model.add(self.ends[j] == self.starts[j] + self.alpha * self.used[j] + self.beta * self.units[j])
        for m in self.hops:
            for p in payload["srcs"][m]:
                if not payload["is_origin"][p]:
                    model.add(self.starts[j] >= shop.at(p)).only_enforce_if(self.chosen[m][j])
            for p in payload["dsts"][m]:
                arrives = model.add(shop.at(p) >= self.ends[j])
                shop.only_if(arrives, self.chosen[m][j], shop.brings.get((m, p), True))

    def _hold(self) -> None:
        """Let batches occupy the link's resources one by one, never together with sends of other links."""
        shop, model, upper = self.shop, self.shop.model, self.shop.payload["upper"]
        every = shop.payload["held"]
        users = Counter(resource for held in every for resource in {resource for resource, *_ in held})
        for resource, alpha, beta, receives in every[self.link]:
            previous = None
            for j in range(len(self.starts)):
                length = alpha * self.used[j] + beta * self.units[j]
                begin = self.ends[j] - length if receives else self.starts[j]
                if previous is not None:
                    model.add(begin >= previous)
                previous = begin + length
                if users[resource] > 1:
                    first, size, end = (model.new_int_var(0, upper, "") for _ in range(3))
                    model.add(first == begin)
                    model.add(size == length)
                    model.add(end == previous)
                    interval = model.new_optional_interval_var(first, size, end, self.used[j], "")
                    shop.intervals[resource].append((interval, length))
        model.add(shop.finish >= self.ends[-1])

    def _own_first(self) -> None:
        """Start relayed chunks at least the time of an unmerged send after each own chunk (local-first)."""
        payload, model = self.shop.payload, self.shop.model
        later = [model.new_bool_var("") for _ in self.starts]
        for j in range(1, len(later)):
            model.add_implication(later[j - 1], later[j])
        turn = model.new_int_var(0, payload["upper"], "")
        for m in self.hops:
            own = bool(payload["is_own"][m])
            for j, phase in enumerate(later):
                model.add_implication(self.chosen[m][j], phase.negated() if own else phase)
            latency = self.alpha + self.beta * payload["units"][m]
            for chosen, start in zip(self.chosen[m], self.starts, strict=True):
                apart = model.add(turn >= start + latency) if own else model.add(start >= turn)
                apart.only_enforce_if(chosen)

    def _hint(self, hinted: Sequence[int]) -> None:
        payload, model = self.shop.payload, self.shop.model
        row = {batch: j for j, batch in enumerate(hinted) if j < len(self.starts)}
        end = 0
        for j in range(len(self.starts)):
            inside = [m for m in self.hops if row.get(int(payload["hint_batch"][m])) == j]
            begin = self._hinted_start(hinted[j]) if inside else end
            units = sum(payload["units"][m] for m in inside)
            end = begin + (self.alpha + self.beta * units if inside else 0)
            model.add_hint(self.starts[j], begin)
            model.add_hint(self.ends[j], end)
            model.add_hint(self.units[j], units)
            model.add_hint(self.used[j], bool(inside))
            for m in self.hops:
                model.add_hint(self.chosen[m][j], m in inside)
        for m in self.hops:
            if self.shop.made[m] is not True:
                model.add_hint(self.shop.made[m], int(payload["hint_batch"][m]) in row)

    def read(self, m: int, value: Callable[[Any], int]) -> tuple[int, int]:
        """(start in ticks, index of the batch) of a hop that the solution makes."""
        for j, literal in enumerate(self.chosen[m]):
            if value(literal):
                return int(value(self.starts[j])), j
        raise AssertionError("a hop that is made is in a batch")
