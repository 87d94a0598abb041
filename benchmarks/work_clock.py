"""A clock that counts work, so that a search with a time limit does the same at every run.

In `counted_work`, ``time.monotonic`` stands still except for

- a run of the list scheduler: by its number of hops;
- a run of a compiled list scheduler: by its number of sends;
- iterations of ruin and recreate: by the number of sends that each may re-time;
- a job shop: by the deterministic time of CP-SAT, whose two strategies take turns;
- a MILP: by its time limit, or a tenth or a hundredth of that if HiGHS ends sooner.

A second of this clock is about a second of CPU. Baselines, bounds and verification take no time by it. HiGHS
cannot limit its work on a relaxation, so its CPU time is limited instead. Only this may differ between runs.
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any
from unittest import mock

import taccl.synthesis.synthesize  # noqa: F401  its modules hold the functions that are replaced
from taccl._internal import deadline
from taccl._internal.deadline import Deadline
from taccl.solvers import worker
from taccl.synthesis.improve.improvement import Improvement
from taccl.synthesis.kernels import limits
from taccl.synthesis.proposers import greedy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from taccl.solvers.child import Control

#: `_S_PER_HOP`: CPU seconds per hop of a run of the list scheduler.
#: `_S_PER_SEND`: CPU seconds per send of a run of a compiled list scheduler.
_S_PER_HOP, _S_PER_SEND = 6e-6, 1e-6
#: `_TURN_S`: CPU seconds of the constant part of an iteration of ruin and recreate.
#: `_TURN_S_PER_SEND`: CPU seconds per send of the schedule.
_TURN_S, _TURN_S_PER_SEND = 2e-5, 1.2e-7
#: `_CPSAT_RATE`: deterministic time of CP-SAT per CPU second.
#: `_CPSAT_WORKERS`: number of workers of CP-SAT whose turns are counted.
_CPSAT_RATE, _CPSAT_WORKERS = 0.2, 2
#: Shares of the time limit of a MILP that it may count as: the smallest one above its CPU time, or 1.
_MILP_SHARES = (0.01, 0.1, 1.0)
#: Min seconds counted for a solver's task, so that a loop over tasks that end immediately still ends.
_LEAST_TASK_S = 0.02
#: Seconds by the wall clock after which a solver is stopped anyway.
_GUARD_S = 300.0


class _Clock:
    """Clock that advances only by counted work of the thread that made it."""

    def __init__(self) -> None:
        self.now_s, self.thread = time.monotonic(), threading.get_ident()

    def __call__(self) -> float:
        return self.now_s

    def count(self, seconds: float) -> None:
        """Add counted work; work of other threads, left behind by earlier searches, is ignored."""
        if threading.get_ident() == self.thread:
            self.now_s += seconds


@contextmanager
def counted_work() -> Iterator[None]:
    """Context in which time limits of `taccl.synthesize` count work."""
    clock = _Clock()
    with ExitStack() as stack:
        for owner, name, replacement in (
            (time, "monotonic", clock),
            (deadline, "_RUN_TIMES", ""),
            (deadline, "_load_factor", lambda: 1.0),
            (Deadline, "run", lambda self, work, **_: work()),
            (Deadline, "enforced", _checked),
            (Deadline, "stopping", lambda self, signal: nullcontext()),
            (Improvement, "run", _turns(clock, Improvement.run)),
        ):
            stack.enter_context(mock.patch.object(owner, name, replacement))
        for function, counted in (
            (limits.best_of, _compiled_runs),
            (greedy.list_schedule, _list_runs),
            (worker.run_task, _tasks),
        ):
            _replace(stack, function, counted(clock, function))
        yield


def _replace(stack: ExitStack, function: Callable[..., Any], replacement: Callable[..., Any]) -> None:
    """Replace a function under its name in every module of the package that imported it."""
    name = function.__name__
    for module in [*sys.modules.values()]:
        is_ours = getattr(module, "__name__", "").startswith("taccl.")  # not all of these are modules
        if is_ours and getattr(module, name, None) is function:
            stack.enter_context(mock.patch.object(module, name, replacement))


def _checked(deadline: Deadline, ready: Callable[[], bool] | None = None) -> AbstractContextManager[None]:
    """Replacement of `Deadline.enforced` that checks the deadline once: interrupts would follow wall time."""
    if ready is None or ready():
        deadline.check()
    return nullcontext()


def _turns(clock: _Clock, run: Callable[..., int]) -> Callable[..., int]:
    """Wrap ruin and recreate so that it runs as many iterations as the counted time allows."""

    def counted(self: Improvement, *, turns: int) -> int:
        each_s = _TURN_S + _TURN_S_PER_SEND * int(self.now.size[0])
        most = min(float(turns), self.limits.deadline.left_s / each_s)
        finish = run(self, turns=max(1, int(most)))
        clock.count(int(self.counts[0]) * each_s)
        return finish

    return counted


def _compiled_runs(clock: _Clock, best_of: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the runs of a compiled list scheduler, to count each by its number of sends."""

    def counted(attempt: Callable[..., Any], *given: Any, **options: Any) -> Any:
        num_sends = 0

        def once(*arguments: Any) -> Any:
            nonlocal num_sends
            found = attempt(*arguments)
            num_sends = num_sends if found is None else len(found.chunk)
            clock.count(_S_PER_SEND * num_sends)
            return found

        return best_of(once, *given, **options)

    return counted


def _list_runs(clock: _Clock, list_schedule: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the list scheduler, to count a run by its number of hops."""

    def counted(quotient: Any, *given: Any, **options: Any) -> Any:
        clock.count(_S_PER_HOP * len(quotient.hops))
        return list_schedule(quotient, *given, **options)

    return counted


def _tasks(clock: _Clock, run_task: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the tasks of solvers, to end them by counted work."""

    def counted(
        family: str, function: str, payload: dict[str, Any], *, time_limit_s: float, **options: Any
    ) -> Any:
        if function.endswith(":availability"):
            return run_task(family, function, payload, time_limit_s=time_limit_s, **options)
        payload = payload | {"function": function, "work_s": time_limit_s}
        outcome = run_task(family, f"{__name__}:in_worker", payload, time_limit_s=_GUARD_S, **options)
        clock.count(max(_LEAST_TASK_S, (outcome.result or {}).get("work_s", time_limit_s)))
        return outcome

    return counted


def in_worker(payload: dict[str, Any], control: Control) -> dict[str, Any]:
    """Run a task in its worker process until its work is done; its result also has the work in ``work_s``."""
    name, limit_s = payload["function"], payload["work_s"]
    module, _, function = name.partition(":")
    is_milp = module == "taccl.solvers.highs"
    if not is_milp:
        payload = payload | {"in_turns": True, "threads": _CPSAT_WORKERS}
    with (_highs_work if is_milp else _cpsat_work)(limit_s) as work_s:
        result: dict[str, Any] = getattr(import_module(module), function)(payload, control)
        return result | {"work_s": work_s()}


@contextmanager
def _cpsat_work(limit_s: float) -> Iterator[Callable[[], float]]:
    """Context in which CP-SAT counts its work; yields a function that returns it."""
    from taccl.solvers import cpsat
    from taccl.synthesis.milp import jobshop_model

    solvers: list[Any] = []
    new_solver = cpsat.new_solver

    def limited(payload: dict[str, Any], control: Control) -> Any:
        solver = new_solver(payload, control)
        solver.parameters.max_deterministic_time = _CPSAT_RATE * limit_s
        solvers.append(solver)
        return solver

    def work_s() -> float:
        done: float = sum(each.response_proto.deterministic_time for each in solvers)
        return done / _CPSAT_RATE

    with (
        mock.patch.object(cpsat, "new_solver", limited),
        mock.patch.object(jobshop_model, "new_solver", limited),
    ):
        yield work_s


@contextmanager
def _highs_work(limit_s: float) -> Iterator[Callable[[], float]]:
    """Context that limits HiGHS by its CPU time; yields a function for the seconds its run counts."""
    from taccl.solvers import highs

    listen, began_s = highs._listen, time.process_time()

    def done_s() -> float:
        return time.process_time() - began_s

    def limited(solver: Any, control: Control) -> None:
        listen(solver, control)

        def stop(event: Any) -> None:
            if done_s() > limit_s:
                event.interrupt()

        solver.cbMipInterrupt += stop

    def work_s() -> float:
        return limit_s * next((share for share in _MILP_SHARES if done_s() < share * limit_s), 1.0)

    with mock.patch.object(highs, "_listen", limited):
        yield work_s
