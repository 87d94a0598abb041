"""Compilation of the search's kernels in worker processes, concurrent with the search.

Workers fill the on-disk cache of compiled functions, from which this process loads them. Meanwhile baselines
and the list scheduler produce schedules. Without a cache, this process compiles.
"""

from __future__ import annotations

import gc
import logging
import os
import tempfile
import threading
import time
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

from taccl._internal.deadline import NEVER, Deadline, OutOfTime, busy_factor
from taccl._internal.interrupts import start
from taccl._internal.kernels import is_compiled
from taccl._internal.units import format_s
from taccl.analysis.verification.loops import accept_copies, accept_trees, compiled_loop
from taccl.analysis.verification.verify import compile_verifier
from taccl.baselines.multiplying_annealing import compile_annealing
from taccl.baselines.multiplying_kernel import anneal
from taccl.baselines.tree_kernel import reassign
from taccl.baselines.tree_mixes import compile_mixes
from taccl.baselines.tree_times import finish_us
from taccl.errors import TacclError
from taccl.problem.collectives import make
from taccl.problem.making import make_problem
from taccl.problem.problem import Clauses, Problem
from taccl.solvers.worker import Outcome, run_task
from taccl.synthesis.improve.improvement import (
    compile_improvement,
    is_quick,
    least_s,
    suits_improvement,
)
from taccl.synthesis.kernels.drawing_kernel import spread_by_draws
from taccl.synthesis.kernels.fabric import problem_arrays
from taccl.synthesis.kernels.flow_kernel import compile_flows, flow_up_to, largest_shortfall
from taccl.synthesis.kernels.improvement_kernel import improve
from taccl.synthesis.kernels.limits import Limits
from taccl.synthesis.kernels.queue_kernel import send_along, send_in_order
from taccl.synthesis.kernels.router_kernel import route
from taccl.synthesis.kernels.spreading_kernel import spread_chunks
from taccl.synthesis.options import Options
from taccl.synthesis.proposers.large import effort, schedule_large, suits
from taccl.synthesis.proposers.queues import send_along_trees, send_at_once
from taccl.synthesis.proposers.router import find_paths, find_trees
from taccl.synthesis.proposers.spreading import Rule, spread
from taccl.synthesis.search import Search
from taccl.topology.fabrics import ring

logger = logging.getLogger(__name__)

#: `IMPROVEMENT`: name of the kernels of ruin and recreate.
#: `TREES`: name of the kernels of packings of trees.
#: `MIXES`: name of the kernels of mixes: of trees on meshes, and of plans of recursive multiplying.
#: Other kernels (list schedulers and verifier) have the name of the collective that they are compiled with.
IMPROVEMENT, TREES, MIXES = "ruin and recreate", "trees", "mixes"
#: Names of all kernels, one tuple per worker process; kernels in a tuple share compiled functions.
_EVERY = (("allgather", "reduce-scatter", "alltoall"), (IMPROVEMENT, TREES, MIXES))
#: Notes of a search that ran without kernels, as they are not compiled, or were not loaded in time.
COLD = (
    "the compiled search was left out, as compiling it takes about 18 s of CPU, once; run `taccl warmup`, or "
    "give a longer time limit (--time-limit 60) once"
)
UNLOADED = (
    "the compiled search was left out, as its kernels were not loaded from disk in time; a longer time limit "
    "may give a better schedule"
)
#: `_NOTABLE_S`: min seconds of compiling or loading kernels to be recorded as a stage.
#: `_WAITED_S`: min seconds of a wait that ends before kernels are compiled, to be recorded as a stage.
_NOTABLE_S, _WAITED_S = 0.005, 0.1
#: Share of the time left for which a search that has a schedule waits for kernels to be compiled.
_WAIT_SHARE = 0.5
#: `_LONGEST_S`: max seconds of a worker's compilation.
#: `_TICK_S`: seconds between checks whether the compilation has ended.
_LONGEST_S, _TICK_S = 900.0, 0.05
#: Nice value of workers, so that the search has priority.
_NICE = 5


def needed(problem: Problem) -> tuple[str, ...]:
    """Names of the kernels for a problem; for a reduction, with the kernels of its broadcast phase."""
    lists: tuple[str, ...] = ("alltoall",) if _goes_to_one(problem) else ("allgather",)
    if problem.collective.combining:
        lists = ("reduce-scatter", "allgather")
    return (*lists, IMPROVEMENT) if suits_improvement(problem) else lists


def are_kept(problem: Problem) -> bool:
    """True if the kernels that a problem needs are compiled, in this process or in the cache on disk."""
    return all(map(is_kept, needed(problem)))


def is_kept(name: str) -> bool:
    """True if the kernels with this name are compiled, in this process or in the cache on disk."""
    if name == IMPROVEMENT:
        return is_compiled(improve)
    if name == TREES:
        return is_compiled(flow_up_to) and is_compiled(largest_shortfall)
    if name == MIXES:
        return all(map(is_compiled, (reassign, finish_us, anneal)))
    kernels: list[Any] = [send_along, route] if name == "alltoall" else [spread_chunks, spread_by_draws]
    kernels.append(send_in_order)
    verifying = accept_trees if name == "reduce-scatter" else accept_copies
    return all(map(is_compiled, [*kernels, compiled_loop(verifying)]))


def compile_kernels(problem: Problem) -> None:
    """Compile the kernels of a problem in this process, or load them from the cache."""
    paths = tuple(problem.clauses.only("path").values("path").items())
    for name in needed(problem):
        compile_named(name, paths)


@cache
def compile_named(name: str, paths: tuple[tuple[str, Any], ...] = ()) -> None:
    """Compile every kernel with this name by running it once on a problem of two ranks.

    - `paths`: Clauses on paths, which need further kernels.
    """
    if name == IMPROVEMENT:
        compile_improvement()
        return
    if name == TREES:
        compile_flows()
        return
    if name == MIXES:
        compile_mixes()
        compile_annealing()
        return
    pair = make_problem(ring(2), make(name, 2), chunk_bytes=1, clauses=Clauses(**dict(paths)))
    compile_verifier(schedule_large(pair, num_runs=1))
    if name == "alltoall":
        find_paths(*problem_arrays(pair))
    # Under a sketch, given or suggested, the chunks of any collective may travel along trees.
    some = problem_arrays(make_problem(ring(2), make("allgather", 2), chunk_bytes=1))
    spread(*some, Limits(num_runs=1), rules=[Rule("drawn")])
    trees = find_trees(*some)
    send_along_trees(*some, Limits(num_runs=1), trees, partial(find_trees, *some))
    send_at_once(*some, trees)


class Compilation:
    """Compilation of kernels in a worker process, which starts immediately.

    - `outcome`: Outcome of the worker's task; None until it has ended.
    - `is_counted`: True once its CPU seconds are recorded in a stage.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names, self.began_s = names, time.monotonic()
        self.outcome: Outcome | None = None
        self.is_counted = False
        start(threading.Thread(target=self._run, name="taccl-kernels", daemon=True))

    def wait(self, deadline: Deadline) -> None:
        """Wait until the worker process has ended; raises `OutOfTime` at the deadline."""
        while self.outcome is None:
            deadline.check()
            time.sleep(_TICK_S)

    def _run(self) -> None:
        payload = {"names": list(self.names), "temporary": tempfile.gettempdir()}
        task = f"{__name__}:compile_in_worker"
        try:
            self.outcome = run_task("kernels", task, payload, time_limit_s=_LONGEST_S)
        finally:
            self.outcome = self.outcome or Outcome("crashed")
            logger.debug("kernels %s: %s", self.names, self.outcome)


#: {kernel name: compilation that this process has started}.
_BEGUN: dict[str, Compilation] = {}


def compile_in_worker(payload: dict[str, Any], control: object) -> dict[str, Any]:
    """Task of a worker process: compile kernels into the cache; returns the CPU seconds.

    - `payload`: ``"names"`` of the kernels, and the ``"temporary"`` folder of the waiting process, which may
      hold the cache.
    """
    tempfile.tempdir = payload["temporary"]
    gc.disable()  # saves 7 % of the CPU time; the process ends soon
    if hasattr(os, "nice"):
        os.nice(_NICE)
    for name in payload["names"]:
        compile_named(name)
    return {"cpu_s": time.process_time()}


def begin_compiling(search: Search) -> None:
    """Start to compile the kernels for a search of many hops, if there are cores and time for it."""
    problem, parameters = search.problem, search.parameters
    if (
        search.backend in ("auto", "greedy")
        and search.options.threads > 1
        and effort(problem) > parameters.suggesting.few_hops
        and search.deadline.left_s >= parameters.choice.cold_s
        and suits(problem)
    ):
        _begin(problem)


def compile_every() -> float:
    """Compile all kernels that are not in the cache, in two workers; returns the CPU seconds.

    Raises `TacclError` if a worker dies, or if the cache folder cannot be written.
    """
    begun = [Compilation(names) for names in _EVERY if not all(map(is_kept, names))]
    cpu_s = 0.0
    for each in begun:
        each.wait(NEVER)
        if each.outcome is None or each.outcome.result is None:
            said = each.outcome.message if each.outcome else ""
            raise TacclError(f"the kernels of {', '.join(each.names)} could not be compiled: {said}")
        cpu_s += float(each.outcome.result["cpu_s"])
    if not all(map(is_kept, (name for names in _EVERY for name in names))):
        raise TacclError("compiled kernels cannot be kept; name a folder to write to in NUMBA_CACHE_DIR")
    return cpu_s


def too_short(search: Search) -> str:
    """Reason why there is no time to run the kernels, or to compile them first; empty if there is."""
    if is_quick(search.limit_s, search.parameters):
        return ""
    if is_kept(IMPROVEMENT):
        return (
            f"needs at least {least_s(search.parameters):g} s, and the search has {format_s(search.limit_s)}"
        )
    return f"its kernels are not compiled, and {format_s(search.limit_s)} are too few to compile them"


def have_compiled(search: Search) -> bool:
    """Compile the search's kernels if necessary, within the time limit; true if they are compiled.

    A first schedule loads only the kernels that it calls, when it calls them.
    """
    deadline = search.deadline
    if search.top.best is None:
        if are_kept(search.problem):
            return True
        deadline = search.patience.later(search.parameters.budget.late_s * busy_factor())
    elif not are_kept(search.problem):
        deadline = deadline.sooner(_WAIT_SHARE * deadline.left_s)
    found = compile_in_a_row(search, search.problem, deadline)
    if not found:
        search.notes.append(why_left_out(search.problem))
    return found


def why_left_out(problem: Problem) -> str:
    """Note of a search that ran without the kernels of a problem."""
    return UNLOADED if are_kept(problem) else COLD


def compile_in_a_row(search: Search, problem: Problem, deadline: Deadline) -> bool:
    """Compile a problem's kernels if necessary, as a stage of the search; true if they are compiled."""
    since, was_kept = time.monotonic(), are_kept(problem)
    found = compile_with_progress(problem, search.options, deadline)
    took_s = time.monotonic() - since
    if not found:
        why = why_left_out(problem)
        is_told = any(each.message == why for each in search.stages)
        if not is_told or took_s >= _WAITED_S:
            message = f"not {'compiled' if why == COLD else 'loaded'} in time" if is_told else why
            search.record("kernels", "compiled", "skipped", since, message=message)
    elif took_s >= _NOTABLE_S:  # else kernels were in memory already
        said = "loaded" if was_kept else _stage_message(problem)
        search.record("kernels", "compiled", "done", since, message=said)
    return found


def compile_with_progress(problem: Problem, options: Options, deadline: Deadline) -> bool:
    """Compile a problem's kernels if necessary, and report progress; false if time does not suffice.

    Kernels that workers complete stay on disk, which shortens the next run.
    """
    choice, told_s = options.parameters.choice, options.parameters.large.told_after_s

    def tell(past_s: float, *_: object) -> None:
        if past_s >= told_s:
            options.observer.report(f"compiling kernels once, {past_s:.0f} s so far", None)

    if not are_kept(problem):
        begun = [each.began_s for each in _begun(problem)]
        past_s = time.monotonic() - min(begun) if begun else 0.0
        if deadline.left_s < busy_factor() * choice.cold_s - past_s:
            return False
        _begin(problem)
    deadline = deadline.at_least(choice.compiled_s)
    try:  # run in another thread, as Ctrl-C would be lost while this one compiles
        deadline.run(partial(_await, problem, deadline), tell=tell)
    except OutOfTime:
        return False
    return True


def _begin(problem: Problem) -> None:
    """Start to compile those kernels of a problem that are neither cached nor being compiled."""
    missing = [name for name in needed(problem) if name not in _BEGUN and not is_kept(name)]
    improving = [name for name in missing if name == IMPROVEMENT]
    for names in ([name for name in missing if name != IMPROVEMENT], improving):
        if names:
            _BEGUN.update(dict.fromkeys(names, Compilation(names)))


def _await(problem: Problem, deadline: Deadline) -> None:
    """Wait for the workers, then load what they compiled, or compile what they could not."""
    for each in _begun(problem):
        each.wait(deadline)
    compile_kernels(problem)


def _begun(problem: Problem) -> list[Compilation]:
    """The compilations of a problem's kernels that this process has started."""
    return list(dict.fromkeys(_BEGUN[name] for name in needed(problem) if name in _BEGUN))


def _stage_message(problem: Problem) -> str:
    """Message of a stage that compiles, with CPU seconds of workers that no other stage has counted."""
    cpu_s = 0.0
    for each in _begun(problem):
        if each.outcome is not None and each.outcome.result is not None and not each.is_counted:
            each.is_counted, cpu_s = True, cpu_s + float(each.outcome.result["cpu_s"])
    return f"compiled once: {cpu_s:.1f} s of CPU besides the search" if cpu_s else "compiled once"


def _goes_to_one(problem: Problem) -> bool:
    """True if every chunk has one destination."""
    return all(len(ranks) == 1 for ranks in problem.collective.destination_sets.sets)
