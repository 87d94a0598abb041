"""Recursive multiplying as the first schedule: forms and mixed plans by their estimated finishes."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import replace
from functools import cached_property

from taccl._internal.deadline import Deadline, OutOfTime, busy_factor
from taccl._internal.units import format_count
from taccl.analysis.certificates.bounds import latency_bound, lower_bound
from taccl.baselines.chunking import cut_chunks, may_merge, merging
from taccl.baselines.multiplying import Estimated, mixed_schedule
from taccl.baselines.multiplying_mixes import PAYS, mixed_transfers, to_mix
from taccl.baselines.multiplying_plans import StepPlan
from taccl.baselines.multiplying_times import StepTimes
from taccl.baselines.table import num_arrivals
from taccl.errors import InputError
from taccl.problem.problem import Problem
from taccl.schedule.schedule import Schedule
from taccl.synthesis.proposers.baseline_proposals import BY_ESTIMATE, for_baselines_s, left_out, tried_finer
from taccl.synthesis.proposers.finer import is_at_one_rank, is_hypercube, search_for
from taccl.synthesis.search import Search
from taccl.topology.recognise import grid_of

#: Recursive multiplying has several forms: merged messages or one per chunk, and several numbers of parts.
#: `_MERGED_PARTS`: numbers of parts with merged messages; only the form with the earliest estimate is built.
#: Estimated finishes of merged forms are exact on regular machines.
#: `_MERGED_ARRIVALS`: max arrivals of chunks in such a merged form.
#: `_SEPARATE_PARTS`: numbers of parts with one message per chunk, which finish large sums up to 25 % sooner.
_MERGED_PARTS, _MERGED_ARRIVALS, _SEPARATE_PARTS = (1, 2, 8, 64), 300_000, (2, 4)
#: Max ratio of the estimate in whole chunks to that of the mixed plan for which finer chunks are estimated.
_FINER_GAIN = 1.1

#: `_FORM_S_PER_ARRIVAL`: CPU seconds to build and verify a form, per arrival and part: (unmerged, merged).
#: Unmerged forms take longer, as a list scheduler times their sends.
#: `_LISTED_GAIN`: max ratio of estimated to best known finish at which a form without merging is built.
_FORM_S_PER_ARRIVAL, _LISTED_GAIN = (5e-5, 5e-6), 1.2

#: CPU seconds for estimates of merged forms, and to build the earliest one, even if time is up.
_LEAST_FORMS_S = 0.6
#: `_PLANS_S`, `_PLANS_S_PER_LINK`: CPU s, fixed and per link, to estimate plans of recursive multiplying.
#: The first estimate's measured time replaces these values.
#: `_PLANS_SHARE`: max share of the time left for these estimates; above it, only simple plans are estimated.
#: Simple plans take a quarter of the time, but may finish 25 % later (dgx2 x8 allreduce).
_PLANS_S, _PLANS_S_PER_LINK, _PLANS_SHARE = 0.01, 5e-6, 0.5
#: A mixed plan divides chunks into parts, each with its own plan.
#: The first mixed plan has equal parts with one plan, in coarse chunks.
#: Simulated annealing in fine chunks then changes the parts (1 to 4 s of CPU).
#: `_MIXES_TIMES`: time to estimate the first mixed plan, as a multiple of the time to estimate all plans.
#: `_SEARCH_S`: CPU seconds in which annealing gains most; with less, forms without merging come first.
#: `_FIRST_RUN_S`: CPU seconds to load annealing and for its first run, which is short, but gains 1 to 5 %.
#: `_MIXES_S_PER_TRANSFER`, `_MIXES_S_PER_MESSAGE`: CPU seconds to build and verify a mixed plan.
#: `_MIXES_SHARE`, `_BATCHES_SHARE`: max shares of the time left for mixed plans, and for batches of chunks.
#: `_LATE_MIXES_S`, `_LATE_MIXES_SHARE`: if baselines may be late, CPU seconds or share of the time left for
#: mixed plans, whichever is more; other baselines have the rest.
#: `_MIX_BUILD_SHARE`: max share of this time to build and verify one, unless it has the coarsest chunks.
_MIXES_TIMES, _SEARCH_S, _FIRST_RUN_S = 2.0, 0.4, 0.3
_MIXES_S_PER_MESSAGE = 1.5e-6
#: `_SHOWN_SHARE`: max share of the time left to build and verify the best one after the first annealing.
#: `_BUILD_TIMES`: time reserved to build and verify one, as a multiple of its estimate.
_MIXES_S_PER_TRANSFER, _MIXES_SHARE, _MIX_BUILD_SHARE, _BUILD_TIMES = 0.8e-6, 0.6, 0.6, 1.25
_BATCHES_SHARE, _LATE_MIXES_S, _LATE_MIXES_SHARE, _SHOWN_SHARE = 0.6, 1.0, 0.75, 0.1
#: `_FAR`: ratio of the first mixed plan's estimate, without latency, to a quick bound, above which other
#: proposers are likely to finish far earlier. It is 1.5 to 6 where links in a server differ; elsewhere up to
#: 1.3 for sums above 1 MB, and up to 1.8 for small ones.
#: `_FAR_SHARE`: max share of the time left for mixed plans there.
#: `_QUICK_S_PER_LINK`, `_QUICK_SHARE`: CPU seconds per link of that bound, and max share of the time left.
_FAR, _FAR_SHARE = 1.4, 0.1
_QUICK_S_PER_LINK, _QUICK_SHARE = 2e-5, 0.02


def offer_estimated(search: Search) -> Search | None:
    """Propose schedules of recursive multiplying with the earliest estimated finish.

    Messages merge in the first schedule, which is quick to build: a single plan, in the finest chunks that
    time allows, or equal parts of one plan (a mixed plan), whichever has the earliest estimate. The mixed
    plan is then improved, so that groups of chunks follow different plans: by simulated annealing if time
    allows, else by insertion of small parts.
    Forms with one message per chunk come last, if their estimated finish is early enough.
    Returns a search that holds the best schedule. Returns None if messages may not merge, on tori and meshes
    other than hypercubes, and for data that all starts or ends at one rank: there, other baselines usually
    finish first.
    """
    problem, since = search.problem, time.monotonic()
    open_problem = replace(problem, chunks_open=True)
    is_other_grid = grid_of(problem.topology) is not None and not is_hypercube(problem.topology)
    if not may_merge(open_problem) or is_other_grid or is_at_one_rank(problem):
        return None
    if num_arrivals(problem) > search.parameters.portfolio.first_transfers:
        return None
    forms = _Forms(search, open_problem)
    forms.estimate()
    improve = forms.improve_batches if forms.mixed is None else forms.improve_mix
    steps = [improve, forms.send_separately]
    if forms.anneals_at_once:  # without the schedule that this replaces
        with suppress(InputError, OutOfTime):
            improve()
        steps.remove(improve)
    if forms.best is None:
        forms.build_earliest()
    if forms.has_no_time_for_both:
        steps.reverse()
    for step in steps if forms.best is not None else ():
        with suppress(InputError, OutOfTime), search.kept_at_ctrl_c(lambda: forms.best):
            step()
    if (best := forms.best) is not None and best.best is not None:
        tried_finer(problem).add(BY_ESTIMATE)
        message = f"first: {best.best.producer}{left_out(search, list(dict.fromkeys(forms.skipped)))}"
        search.record("baselines", "taccl", "done", since, finish_us=best.best_us, message=message)
    return forms.best


class _Forms:
    """Forms of recursive multiplying: their estimates, and the best schedule built so far.

    - `merged`: Estimates of single plans with merged messages. Each has finer chunks than the one before, and
      a sufficiently earlier finish (`PAYS`).
    - `mixed`: Estimate of the mixed plan whose parts are equal; None if there are no mixed plans, or no time
      for them.
    - `best`: Search that holds the best schedule; None if none is built yet.
    - `finish_us`: Earliest known finish, here or in the search.
    - `skipped`: Names of the forms that were skipped for lack of time.
    """

    def __init__(self, search: Search, problem: Problem) -> None:
        """Forms for a problem whose number of chunks is open, without estimates yet."""
        share, late_s = search.parameters.portfolio.best_share, search.parameters.budget.late_s
        self.search, self.problem = search, problem
        self.deadline, self.cpu_began_s = search.deadline, time.thread_time()
        self.until = search.deadline.sooner(for_baselines_s(search.deadline, share))
        self.late = search.deadline.later(late_s * busy_factor())
        self.arrivals = num_arrivals(problem)
        self.plans_s = _PLANS_S + _PLANS_S_PER_LINK * len(problem.topology.links)
        self.to_mix = to_mix(problem)
        self.merged: list[Estimated] = []
        self.mixed: Estimated | None = None
        self.best: Search | None = None
        self.finish_us = search.earliest_us
        self.skipped: list[str] = []

    @property
    def least_s(self) -> float:
        """Estimated wall seconds to use up `_LEAST_FORMS_S` of CPU; 0 if it is used up."""
        return busy_factor() * max(0.0, self.cpu_began_s + _LEAST_FORMS_S - time.thread_time())

    def left_s(self, limit: Deadline) -> float:
        """Seconds until a deadline, but at least `least_s`."""
        return max(limit.left_s, self.least_s)

    def at_least(self, limit: Deadline) -> Deadline:
        """The deadline, but no earlier than after twice `least_s`, as other work may slow this one down."""
        return limit.at_least(2 * self.least_s)

    @property
    def has_no_time_for_both(self) -> bool:
        """True if annealing of mixed plans leaves no time for forms with one message per chunk."""
        if self.mixed is None:
            return False
        search_s = _mix_s(self.to_mix[-1]) + busy_factor() * _SEARCH_S
        return search_s > self.mixes_share * self.left_s(self.deadline)

    @cached_property
    def over_bound(self) -> float:
        """The mixed plan's estimate without latency, as a multiple of a quick bound.

        It is 1 without a mixed plan, and if the bound would take a notable share of the time.
        """
        bound_s = busy_factor() * _QUICK_S_PER_LINK * len(self.problem.topology.links)
        if self.mixed is None or bound_s > _QUICK_SHARE * self.left_s(self.deadline):
            return 1.0
        quick = lower_bound(self.problem, divisible=True, end_s=0.0).bound_us
        return (self.mixed.us - latency_bound(self.problem).bound_us) / quick if quick else 1.0

    @property
    def anneals_at_once(self) -> bool:
        """True if baselines may be late, and time suffices to improve a mixed plan, the earliest form.

        False if twice the estimated time for both is left, so that the plan is built and shown beforehand.
        """
        if self.mixed is None or not self.search.baselines_take_all or self.mixed.us > self.merged[-1].us:
            return False
        anneals_s, left_s = self._anneals_s(self.to_mix[0]), self.mixes_share * self.left_s(self.deadline)
        return anneals_s <= left_s < 2 * (anneals_s + _mix_s(self.mixed.times.problem))

    def _anneals_s(self, problem: Problem) -> float:
        """Estimated seconds of a short annealing, and to build and verify its plan in a problem's chunks."""
        return _mix_s(problem) + busy_factor() * _FIRST_RUN_S

    @property
    def mixes_share(self) -> float:
        """Max share of the time left for mixed plans."""
        if not self.search.baselines_take_all:
            return _FAR_SHARE if self.over_bound > _FAR else _MIXES_SHARE
        least_s, left_s = busy_factor() * _LATE_MIXES_S, self.left_s(self.deadline)
        return max(_LATE_MIXES_SHARE, least_s / left_s) if least_s < left_s else 1.0

    def has_time(self, parts: int, *, merges: bool) -> bool:
        """True if chunks have that many parts, and time suffices for such a form; otherwise it is skipped."""
        if parts > min(self.problem.chunk_bytes) or (merges and parts * self.arrivals > _MERGED_ARRIVALS):
            return False
        needed_s = busy_factor() * (self.plans_s + _FORM_S_PER_ARRIVAL[merges] * self.arrivals * parts)
        if self.mixed is not None and self.best is None:
            needed_s += _mix_s(self.mixed.times.problem)
        if needed_s > self.left_s(self.until):
            self.skipped.append(f"chunks cut into {parts}")
            return False
        return True

    def estimate(self) -> None:
        """Estimate schedules with merged messages: whole chunks, the mixed plan, then finer chunks."""
        with suppress(InputError, OutOfTime):
            for parts in _MERGED_PARTS:
                if self.merged and not (self._may_be_sooner() and self.has_time(parts, merges=True)):
                    continue
                began_s = time.thread_time()
                is_short = busy_factor() * self.plans_s > _PLANS_SHARE * self.left_s(self.until)
                form = self._estimated(parts, simple=is_short)
                if form is None:
                    continue
                if self.merged and form.us > PAYS * self.merged[-1].us:
                    break
                self.merged.append(form)
                if len(self.merged) == 1 and self.to_mix:
                    if not is_short:
                        self.plans_s = time.thread_time() - began_s
                    self._estimate_mixed()

    def _may_be_sooner(self) -> bool:
        """True unless the mixed plan is so early that single plans in finer chunks are surely later.

        Finer chunks shorten single plans little, except those whose parts follow one another. The mixed plan
        is the best of these.
        """
        return self.mixed is None or self.merged[0].us <= _FINER_GAIN * self.mixed.us

    def _estimated(self, parts: int, *, simple: bool) -> Estimated | None:
        """Estimate of a form with merged messages whose chunks are cut into `parts`; see `Estimated.of`."""
        finer = cut_chunks(self.problem, parts) if parts > 1 else self.problem
        likely = self.merged[-1].plan if self.merged else None
        most_us = math.inf if self.mixed is None else self.mixed.us
        soon = Deadline.after(_BATCHES_SHARE * self.left_s(self.until))
        with (self.at_least(self.until) if self.merged else self.late).enforced():
            return Estimated.of(merging(finer), likely, simple=simple, most_us=most_us, until=soon)

    def _estimate_mixed(self) -> None:
        """Estimate the mixed plan of equal parts, if time suffices to build it, too."""
        estimate_s = busy_factor() * _MIXES_TIMES * self.plans_s
        if estimate_s + _mix_s(self.to_mix[-1]) > self.left_s(self.deadline):
            self.skipped.append("mixed plans")
            return
        with self.at_least(self.deadline).enforced():
            self.mixed = Estimated.mixed(self.problem)

    def build_earliest(self) -> None:
        """Build the form with the earliest estimate, or the next one if that is invalid or takes too long."""
        every = [*reversed(self.merged), *([] if self.mixed is None else [self.mixed])]
        for form in sorted(every, key=lambda form: form.us):
            if self.best is not None or form.us >= self.finish_us:
                break
            with suppress(InputError, OutOfTime), self.late.enforced():
                self._keep(form.schedule(lists=False))

    def improve_batches(self) -> None:
        """Search on for batches of the earliest single plan; in the finest chunks if it has none."""
        form, finer = self.merged[-1], None
        if form.is_by_node and not form.has_batches:
            every = (parts for parts in reversed(_MERGED_PARTS[1:]) if self.has_time(parts, merges=True))
            if (parts := next(every, None)) is None:
                return
            finer = merging(cut_chunks(self.problem, parts))
        build_s = busy_factor() * _FORM_S_PER_ARRIVAL[True] * num_arrivals(finer or form.times.problem)
        left_s = self.until.left_s
        ends_at = self.until.sooner(min(_BATCHES_SHARE * left_s, left_s - build_s))
        with self.until.enforced():
            better = None if ends_at.has_passed else form.in_better_batches(finer, ends_at)
            if better is not None and better.us < self.finish_us:
                self._keep(better.schedule(lists=False))

    def improve_mix(self) -> None:
        """Improve the mixed plan in as fine chunks as there is time to build.

        If there is no time for simulated annealing, small parts with other plans are inserted only.
        """
        latest = self.at_least(self.deadline)
        ends_at = latest.sooner(self.mixes_share * self.left_s(self.deadline))
        left_s = ends_at.left_s
        able = [each for each in self.to_mix if self._anneals_s(each) <= left_s]
        fit = [each for each in able if _mix_s(each) <= _MIX_BUILD_SHARE * left_s] or able[-1:]
        if not fit or (self.search.baselines_take_all and not self._may_gain_by_annealing(fit[0])):
            self.skipped.append("annealing of mixed plans")
            self._insert_parts()
            return
        build_s, most = _mix_s(fit[0]), mixed_transfers(fit[0])
        # The search often takes all its time. If the machine is busy, building takes longer than estimated.
        limit = latest.sooner(max(ends_at.left_s + build_s, self.deadline.left_s))
        with limit.enforced():
            self._keep_mix(ends_at.later(-_BUILD_TIMES * build_s), most, limit)

    def _insert_parts(self) -> None:
        """Build a mixed plan without annealing, in as fine chunks as there is time for."""
        built, left_s = self.mixed, self.left_s(self.deadline) - busy_factor() * _MIXES_TIMES * self.plans_s
        if built is None:
            return
        least = mixed_transfers(built.times.problem)
        fit = [each for each in self.to_mix if mixed_transfers(each) >= least and _mix_s(each) <= left_s]
        if fit:
            limit = self.at_least(self.deadline)
            with limit.enforced():
                self._keep_mix(self.deadline.sooner(0.0), mixed_transfers(fit[0]), limit)

    def _may_gain_by_annealing(self, problem: Problem) -> bool:
        """True if the problem's chunks are at least as fine as in the mixed plan."""
        mixed = self.mixed
        return mixed is None or problem.collective.num_chunks >= mixed.times.problem.collective.num_chunks

    def _keep_mix(self, until: Deadline, most_transfers: int, limit: Deadline) -> None:
        """Keep a mixed plan if it is earlier; annealing ends at `until`, and it is built before `limit`."""

        def fits(times: StepTimes, plan: StepPlan) -> bool:
            messages_s = busy_factor() * _MIXES_S_PER_MESSAGE * times.num_messages(plan)
            is_fit = _mix_s(times.problem) + messages_s <= limit.left_s
            if not is_fit:
                self.skipped.append(f"a mixed plan of {format_count(times.num_messages(plan), 'message')}")
            return is_fit

        found = mixed_schedule(
            self.problem,
            until,
            below_us=self.finish_us if self.mixed is None else min(self.finish_us, self.mixed.us),
            most_transfers=most_transfers,
            patient=True,
            fits=fits,
            keep=self._keep,
            shows=lambda times: _mix_s(times.problem) <= _SHOWN_SHARE * until.left_s,
        )
        if found is not None:
            self._keep(found)

    def send_separately(self) -> None:
        """Make schedules by recursive multiplying in which each chunk is a message of its own."""
        for parts in _SEPARATE_PARTS:
            if not self.has_time(parts, merges=False):
                continue
            most_us = _LISTED_GAIN * self.finish_us
            with self.at_least(self.until).enforced():
                form = Estimated.of(cut_chunks(self.problem, parts), self.merged[-1].plan, most_us=most_us)
            if form is None or form.us >= most_us:
                break
            with self.at_least(self.until).enforced():
                self._keep(form.schedule())

    def _keep(self, made: Schedule) -> None:
        """Keep a schedule if it is the earliest, allowed in the search, and valid."""
        found = search_for(self.search, made) if made.finish_us < self.finish_us else None
        if found is not None:
            self.best, self.finish_us = found, made.finish_us


def _mix_s(problem: Problem) -> float:
    """Estimated seconds to build and verify a mixed plan in the problem's own chunks."""
    return busy_factor() * _MIXES_S_PER_TRANSFER * mixed_transfers(problem)
