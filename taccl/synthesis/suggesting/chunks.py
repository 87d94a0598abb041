"""`choose_chunks`: choice of the number of chunks, if a problem leaves it open.

Large messages finish earlier in several chunks per rank, which overlap on their paths and use more links.
Small ones do not, as each chunk pays the latency of its sends. So a list scheduler tries several numbers, and
the number with the earliest finish is chosen. If a sketch may help, suggested sketches are tried, too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise

from taccl._internal.arguments import Natural, Seconds, checked
from taccl._internal.caching import cached
from taccl._internal.deadline import Deadline, OutOfTime
from taccl._internal.kernels import is_compiled
from taccl._internal.units import format_count, format_s
from taccl.analysis.certificates.scopes import known_bound_over_all_chunkings, share_bound_over_all_chunkings
from taccl.errors import InfeasibleError, InputError, NoSolutionError, SketchError
from taccl.problem.making import merged
from taccl.problem.problem import Problem
from taccl.schedule.schedule import Schedule
from taccl.sketch.reachability import check_reachable
from taccl.synthesis.bounding import look_for_bound_over_all_chunkings, no_bound
from taccl.synthesis.improve.improvement import improve_schedule, suits_improvement
from taccl.synthesis.kernels.improvement_kernel import improve
from taccl.synthesis.kernels.limits import Limits
from taccl.synthesis.options import Observer, Options
from taccl.synthesis.parameters import DEFAULTS, SearchParameters
from taccl.synthesis.proposers.baseline_proposals import baseline_us, trials
from taccl.synthesis.proposers.compiling import compile_in_a_row
from taccl.synthesis.proposers.finer import cut, is_at_one_rank, search_for, with_note_on_chunks
from taccl.synthesis.proposers.large import COMPILED, effort, suits
from taccl.synthesis.search import Search
from taccl.synthesis.suggesting.proposals import SketchProposal
from taccl.synthesis.suggesting.sketched_search import is_unguided
from taccl.synthesis.suggesting.suggest import compiled_schedule, has_kernels, quick_schedule, suggest_for
from taccl.synthesis.trees.roots import has_free_roots

#: Seconds per hop that a first sketch takes; with less time left, no sketch is suggested.
_SUGGEST_S_PER_HOP = 1.5e-6
#: Chunks may merge (see `merged`) if this shortens recursive multiplying to at most this share of its finish.
_MERGING_PAYS = 0.97
#: Phases of sums overlap if brief ruin and recreate cuts the list scheduler's finish to at most this share.
#: If phases overlap, brief runs of ruin and recreate also compare the other numbers of chunks.
_OVERLAPS = 0.95
#: `_RUN_TURNS`: number of iterations of the short run of ruin and recreate.
#: `_RUN_SENDS`: max product of iterations and sends (about 0.5 s of CPU).
_RUN_TURNS, _RUN_SENDS = 1_000, 4_000_000
#: The largest number of chunks is doubled while that shortens the schedule.
#: `_FINER_PAYS`: max ratio of the finish in twice as many chunks to the best so far, to double again.
#: `_MOST_ARRIVALS`: max product of the numbers of chunks and ranks, if all data starts or ends at one rank.
_FINER_PAYS, _MOST_ARRIVALS = 0.98, 10_000
#: Numbers of chunks near the best one are tried, too.
#: `_NEARBY_PAYS`: max ratio of their finish to that of the other numbers, for one of them to be used. A gain
#: of 1 % by the list scheduler may be lost in the search.
#: `_LARGE_PAYS`: the same above `_LARGE_HOPS`, where the search rarely improves on the list scheduler.
#: `_NEARBY_ROUNDS`: number of times that the gaps to both neighbours are halved.
#: `_NEARBY_HOPS`: max hops of a trial, over all its runs (about 40 ms).
#: `_NEARBY_RUNS`: runs of the list scheduler in a trial. One run finishes up to 12 % later than four.
_NEARBY_PAYS, _LARGE_PAYS, _LARGE_HOPS = 0.98, 0.995, 50_000
_NEARBY_ROUNDS, _NEARBY_HOPS, _NEARBY_RUNS = 3, 200_000, 4
#: `_MOST_NEARBY`: max numbers of chunks that are tried again after the search (0.7 s of CPU each).
#: `_NEARLY`: max ratio of the finish of their first trials to the earliest finish.
_MOST_NEARBY, _NEARLY = 3, 1.05
#: Max relative difference of finishes that count as equal, such as by chunk sizes in whole bytes.
ROUNDED = 1e-7
#: Reason for a skipped step.
_COLD = "its kernels are not compiled"
#: Max ratio of the list scheduler's finish with a number of chunks to its earliest, to improve that schedule.
_FAR = 1.1


@checked
def choose_chunks(
    problem: Problem,
    *,
    time_limit_s: Seconds = 10.0,
    seed: Natural = 0,
    progress: Callable[[str, float | None, float | None], None] | None = None,
    parameters: SearchParameters = DEFAULTS,
) -> Problem:
    """Choose the number of chunks per rank with which a first schedule finishes earliest.

    Returns the problem in that number. `taccl.synthesize` and `taccl.compare` use the same function.

    Parameters
    ----------
    problem : Problem
        A problem made of a size and a collective without `chunks_per_rank`, so that the number is open; any
        other is returned as it is.
    time_limit_s : float
        Seconds after which the best number so far is taken.
    seed : int
        Seed of the list scheduler.
    progress : callable, optional
        Called with (current trial, best finish in us or None, None).
    parameters : SearchParameters
        ``parameters.suggesting.counts`` are the numbers to try; ``partitions`` those to try with sketches.
    """
    until = Deadline.after(time_limit_s)
    options = Options(seed=seed, observer=Observer(progress=progress), parameters=parameters)
    chosen, _ = choose_with_sketches(problem, options, until, give_up=until)
    if until.cancellation.why:
        raise KeyboardInterrupt
    return chosen


def choose_with_sketches(
    problem: Problem,
    options: Options,
    until: Deadline,
    *,
    give_up: Deadline,
    suggests: bool = True,
    skipped: dict[str, str] | None = None,
) -> tuple[Problem, list[SketchProposal]]:
    """(problem in the best number of chunks, suggested sketches for it); without sketches if none suits.

    Ctrl-C cancels both deadlines; the best trial so far is returned, or `KeyboardInterrupt` is raised.

    - `until`: Deadline after which no further number or sketch is tried.
    - `give_up`: Deadline at which a trial under way is stopped.
    - `suggests`: False to suggest no sketches.
    - `skipped`: {step that is skipped for lack of time or of compiled kernels: reason}, which is filled here.
    """
    skipped = {} if skipped is None else skipped
    if not problem.chunks_open:
        return problem, []
    whole, suggesting = problem.in_its_chunks, options.parameters.suggesting
    if problem.collective.is_met or effort(problem) > suggesting.most_hops:
        return whole, []
    try:
        check_reachable(problem)
    except SketchError:  # the search reports this error later
        return whole, []
    most = (problem.size_bytes or 0) // problem.collective.size_chunks  # chunks have at least one byte
    problems = {count: cut(whole, count) for count in suggesting.counts if count <= max(1, most)}
    if not problems:  # every number would make chunks of less than a byte
        return whole, []
    tried = _Trials(whole, problems, options, until, give_up, skipped)
    best, best_us = tried.soonest()
    sketches: list[SketchProposal] = []
    partitions = {count: each for count, each in problems.items() if count in suggesting.partitions}
    first_s, may_suggest = effort(problem) * _SUGGEST_S_PER_HOP, is_unguided(problem, options.parameters)
    is_late = first_s > until.left_s
    if suggests and may_suggest and is_late:
        said = f"a first sketch takes about {format_s(first_s)}, and {format_s(until.left_s)} are left for it"
        skipped["suggest"] = said
    if suggests and partitions and not is_late and may_suggest and best_us > tried.enough_us:
        # InputError: no sketch can describe the topology.
        with suppress(InputError, OutOfTime), until.interruptible():
            found = suggest_for(
                list(partitions), partitions.__getitem__, options, most=suggesting.sketches,
                time_limit_s=until.left_s, give_up=give_up,
            )  # fmt: skip
            if found and found[0].finish_us < (1 - ROUNDED) * best_us:
                best = partitions[found[0].problem.collective.chunks_per_rank]
            sketches = [each for each in found if each.problem.collective == best.collective]
    if all(best is not each for each in problems.values()):  # `best` merges chunks, unlike these sketches
        sketches = []
    chosen = _cut_short(with_note_on_chunks(best), tried.untried)
    if chosen is not best:
        improved_schedules(chosen).extend(improved_schedules(best))
        trials(chosen).extend(trials(best))
    return chosen, sketches


def with_chunks(search: Search) -> tuple[Problem, Sequence[SketchProposal]]:
    """Choose the number of chunks if it is open, and the sketches to search under.

    Returns (problem in these chunks, sketches).
    """
    problem, options, limit = search.asked or search.problem, search.options, search.deadline
    whole, suggesting = problem.in_its_chunks, options.parameters.suggesting
    sketch = options.sketch
    if not isinstance(sketch, str):
        return cut_as(sketch, problem), [sketch]
    if not problem.chunks_open:
        return whole, []
    if suits(whole) and max(suggesting.counts) * effort(whole) > suggesting.few_hops:
        compile_in_a_row(search, whole, limit)
    share_bound_over_all_chunkings(whole, search.problem)
    until = limit.sooner(min(suggesting.most_suggest_s, suggesting.chunks_share * limit.left_s))
    give_up = limit.sooner(suggesting.give_up_share * limit.left_s)
    skipped: dict[str, str] = {}
    chosen, sketches = choose_with_sketches(
        problem, options, until, give_up=give_up, suggests=sketch == "auto", skipped=skipped
    )
    for name, reason in skipped.items():
        search.record(f"chunks: {name}", "taccl", "skipped", time.monotonic(), message=reason)
    guides = options.backend == "auto" and options.keeps_sends
    return chosen, sketches if guides else []


def cut_as(sketch: SketchProposal, problem: Problem) -> Problem:
    """The problem, with chunks cut as in the proposal if the problem leaves their number open."""
    if not problem.chunks_open:
        return problem
    return cut(problem.in_its_chunks, sketch.problem.collective.chunks_per_rank)


@dataclass(slots=True)
class _Trials:
    """Schedules of the list schedulers in several numbers of chunks, by which one number is chosen.

    - `whole`: The problem in its own chunks.
    - `problems`: {number of chunks: problem}; a better number near these is added.
    - `until`: Deadline after which no further number is tried.
    - `give_up`: Deadline at which a trial under way is stopped.
    - `skipped`: {step that is skipped for lack of time or of compiled kernels: reason}, which is filled here.
    - `first`: {number of chunks: its earliest schedule}.
    - `untried`: Numbers of chunks for which there was no time.
    """

    whole: Problem
    problems: dict[int, Problem]
    options: Options
    until: Deadline
    give_up: Deadline
    skipped: dict[str, str]
    first: dict[int, Schedule] = field(default_factory=dict)
    untried: list[int] = field(default_factory=list)

    @property
    def enough_us(self) -> float:
        """Finish in us that meets the known bound over all chunkings; 0 without one."""
        bound = known_bound_over_all_chunkings(no_bound(self.whole))
        return 0.0 if bound is None else (1 + ROUNDED) * bound.bound_us

    def soonest(self) -> tuple[Problem, float]:
        """(problem in the best number of chunks, its finish in us).

        The best is the one with the earliest schedule of a list scheduler; at ties, the one with fewer
        chunks. If the ring baseline in the fewest chunks finishes before all of these, the fewest are chosen.
        Recursive multiplying merges chunks. If it finishes clearly first, the fewest are chosen, and chunks
        may merge. Numbers near the best one follow (`_add_nearby`).

        If the phases of sums overlap, short runs of ruin and recreate compare the numbers instead. Its
        kernels must be compiled for this.
        """
        fewest, parameters = self.problems[min(self.problems)], self.options.parameters
        merging, merging_us = merged(fewest), math.inf
        if merging is not None:
            merging_us = baseline_us("multiplying", merging, self.give_up, parameters)
        self._try_all(fewest)
        if self.until.cancellation.why and not self.first:
            raise KeyboardInterrupt
        if len(self.first) == len(self.problems) and not parameters.suggesting.counts_only:
            self._add_nearby()
        best, best_us = fewest, math.inf
        if self.first:
            count, best_us = self._overlapped()
            best = self.problems[count]
            trials(best).append(self.first[count])
        ring_us = baseline_us("ring", fewest, self.give_up, parameters)
        if ring_us < best_us:
            best, best_us = fewest, ring_us
        if merging is not None and merging_us < _MERGING_PAYS * best_us:
            best, best_us = merging, merging_us
        return best, best_us

    def _try_all(self, fewest: Problem) -> None:
        """Try numbers of chunks, in order, until time is up, one has no schedule, or one meets the bound.

        The compiled list scheduler is fast, so that the choice does not depend on the time limit. The list
        scheduler in Python is better on few hops. It also runs if kernels are not compiled and cannot be in
        time.
        """
        options, suggesting = self.options, self.options.parameters.suggesting
        efforts = list(map(effort, self.problems.values()))
        compiles = max(efforts) > suggesting.few_hops and all(map(suits, self.problems.values()))
        is_cold = compiles and not has_kernels(fewest, options, self.give_up)
        compiles &= not is_cold
        if is_cold:
            self.skipped[COMPILED] = _COLD
        if compiles and sum(efforts) <= suggesting.most_hops:
            self.until = self.give_up  # trials of these sizes take less time than loading the kernels
        for count, problem in self.problems.items():
            found: list[Schedule | None] = []
            with (
                suppress(InfeasibleError, InputError, NoSolutionError),
                self.until.interruptible(),
            ):  # NoSolutionError includes OutOfTime
                self._report(count, min((each.finish_us for each in self.first.values()), default=None))
                if compiles:
                    found.append(compiled_schedule(problem, options, self.until))
                if not compiles or effort(problem) <= suggesting.few_hops:
                    found.append(quick_schedule(problem, options, self.until))
            made = min(
                (each for each in found if each is not None), key=lambda it: it.finish_us, default=None
            )
            if made is None:
                if (self.until.has_passed or is_cold) and not self.until.cancellation.why:
                    self.untried = [each for each in self.problems if each >= count]
                break
            self.first[count] = made
            if made.finish_us <= self.enough_us:
                break

    def _report(self, count: int, best_us: float | None, said: str = "") -> None:
        self.options.observer.report(f"{format_count(count, 'chunk')} per rank{said}", best_us)

    def _add_nearby(self) -> None:
        """Add the problem in the best number of chunks beyond or between those tried, if that pays.

        The finish is a term that falls with the number of chunks, plus one that rises, plus rounding. So the
        largest number is doubled while it is the best. Then each round halves the gaps between the best
        number and its neighbours. Only the compiled list scheduler is fast enough for these trials.

        Numbers that finish before the chosen one, but do not pay, are kept in `nearby`.
        """
        whole, first, options = self.whole, self.first, self.options
        finishes = {count: made.finish_us for count, made in first.items()}
        least_us, is_pipelined = min(finishes.values()), is_at_one_rank(whole)
        if min(finishes, key=finishes.__getitem__) <= 2 or (has_free_roots(whole) and not is_pipelined):
            return
        if not (suits(whole) and has_kernels(whole, options, self.until)):
            return
        tried: dict[int, Schedule] = {}

        def attempt(count: int) -> None:
            """Try a number of chunks; an earlier finish is put into `finishes` and `tried`."""
            self._report(count, min(finishes.values()))
            made = None
            with suppress(InputError, NoSolutionError), self.until.interruptible():
                finer = self.problems.get(count) or cut(whole, count)
                made = compiled_schedule(finer, options, self.until, num_runs=num_runs)
            if made is not None and made.finish_us < finishes.get(count, math.inf):
                finishes[count], tried[count] = made.finish_us, made

        def is_small(count: int, *, doubled: bool = False) -> bool:
            """True if time suffices for a trial, and chunks have at least one byte."""
            if count > min(whole.chunk_bytes) or self.until.has_passed:
                return False
            if is_pipelined and doubled:
                return count * whole.collective.num_chunks * whole.topology.num_ranks <= _MOST_ARRIVALS
            return num_runs * count * effort(whole) <= _NEARBY_HOPS

        num_runs = _NEARBY_RUNS
        if not is_small(2 * max(finishes)):
            num_runs = 1
        for count in [count for count in finishes if num_runs > 1 and finishes[count] <= _FAR * least_us]:
            attempt(count)
        most, least_us = max(finishes), min(finishes.values())
        while finishes[most] <= least_us and is_small(2 * most, doubled=True):
            attempt(2 * most)
            if finishes.get(2 * most, math.inf) > _FINER_PAYS * least_us:
                break
            most, least_us = 2 * most, finishes[2 * most]
            self.problems[most], first[most] = tried[most].problem, tried[most]
        for _ in range(_NEARBY_ROUNDS):
            counts, best = sorted(finishes), min(finishes, key=finishes.__getitem__)
            place = counts.index(best)
            for fewer, more in pairwise(counts[max(0, place - 1) : place + 2]):
                if more - fewer > 1 and is_small((fewer + more) // 2):
                    attempt((fewer + more) // 2)
        first.update((count, made) for count, made in tried.items() if count in first)
        best = min(finishes, key=finishes.__getitem__)
        pays = _LARGE_PAYS if best * effort(whole) > _LARGE_HOPS else _NEARBY_PAYS
        if best not in first and finishes[best] <= pays * min(made.finish_us for made in first.values()):
            self.problems[best], first[best] = tried[best].problem, tried[best]
        least_us = min(made.finish_us for made in first.values())
        ahead = [made for count, made in tried.items() if count not in first and made.finish_us < least_us]
        nearby(whole)[:] = sorted(ahead, key=lambda made: made.finish)

    def _overlapped(self) -> tuple[int, float]:
        """(number of chunks with the earliest finish, that finish in us), if phases of sums may overlap.

        A list scheduler times each phase by itself. Finer chunks overlap more, which a short run of ruin and
        recreate shows. Without such an overlap, the finish of the list scheduler decides.
        """
        first, options = self.first, self.options
        finishes = {count: made.finish_us for count, made in first.items()}
        best = _fewest(finishes)
        if not first[best].problem.collective.sums_up:
            return best, finishes[best]
        if not is_compiled(improve):
            self.skipped["ruin and recreate"] = _COLD
            return best, finishes[best]
        improved: dict[int, float] = {}
        for count in sorted(first, key=lambda each: (each != best, each)):
            made, is_far = first[count], finishes[count] > _FAR * finishes[best]
            if is_far or _RUN_TURNS * len(made) > _RUN_SENDS or not suits_improvement(made.problem):
                continue
            if self.until.has_passed:
                said = f"no time left for {format_count(count, 'chunk')} per rank"
                self.skipped["ruin and recreate"] = said
                break
            self._report(count, finishes[best], ", improved")
            limits = Limits(self.until, seed=options.seed, parameters=options.parameters)
            found, _ = improve_schedule(made, limits, turns=_RUN_TURNS)
            improved[count] = found.finish_us
            improved_schedules(made.problem).append(found)
            if improved.get(best, finishes[best]) > _OVERLAPS * finishes[best]:
                break
        compared = {**{best: finishes[best]}, **improved}
        best = _fewest(compared)
        return best, compared[best]


def _fewest(finishes: Mapping[int, float]) -> int:
    """The least number of chunks with the earliest finish, where finishes within `ROUNDED` are equal."""
    least_us = min(finishes.values())
    return min(count for count, us in finishes.items() if us <= (1 + ROUNDED) * least_us)


@cached
def nearby(problem: Problem) -> list[Schedule]:
    """Trials in numbers of chunks near the chosen one that finish slightly sooner, earliest first."""
    return []


def offer_nearby(search: Search) -> Search | None:
    """Propose the best of all runs of the compiled list scheduler in numbers of chunks near the chosen one.

    Returns the search that holds the schedule; None if it is not earlier than the one so far.
    """
    since, first_us, best = time.monotonic(), search.earliest_us, None
    tried = nearby((search.asked or search.problem).in_its_chunks)[:_MOST_NEARBY]
    tried = [each for each in tried if each.finish_us <= _NEARLY * first_us]
    every = look_for_bound_over_all_chunkings(search) if tried else None
    if every is not None and first_us <= every.bound_us:
        return None
    for trial in tried:
        made = None
        with suppress(InputError, NoSolutionError):
            made = compiled_schedule(trial.problem, search.options, search.deadline, num_runs=None)
        if made is not None and made.finish_us < (first_us if best is None else best.finish_us):
            best = made
        if search.deadline.has_passed:
            break
    better = None if best is None else search_for(search, best)
    if tried:
        said, finish_us = "none better", first_us
        if best is not None and better is not None:
            said = f"{format_count(best.problem.collective.chunks_per_rank, 'chunk')} per rank"
            better.choice, finish_us = f"{COMPILED}: {said}, near the number of the search", best.finish_us
        search.record("nearby chunks", "compiled", "done", since, finish_us=finish_us, message=said)
    return better


@cached
def improved_schedules(problem: Problem) -> list[Schedule]:
    """Unverified schedules by which the number of chunks was chosen; the search goes on from them."""
    return []


def _cut_short(problem: Problem, untried: Sequence[int]) -> Problem:
    """The problem, with a note on the other numbers of chunks that were not tried for lack of time."""
    own = problem.collective.chunks_per_rank
    numbers = ", ".join(str(number) for number in untried if number != own)
    if not numbers:
        return problem
    instead = f", and {own} was used untried" if own in untried else ""
    note = f"time was too short to try {numbers} chunks per rank{instead}; give a longer limit (--time-limit)"
    return replace(problem, notes=(*problem.notes, note))
