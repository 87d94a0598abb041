"""Problems in finer chunks, and baselines in finer chunks than the search uses, if they finish sooner."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import replace

from taccl._internal.caching import cached
from taccl._internal.deadline import Deadline, OutOfTime, busy_factor
from taccl._internal.units import format_count, format_s
from taccl.analysis.verification.verify import verify
from taccl.baselines import baseline
from taccl.baselines.hubs import hub_sends
from taccl.baselines.multiplying import Estimated, mixed_schedule
from taccl.baselines.multiplying_mixes import PAYS, mixed_transfers, to_mix
from taccl.baselines.spread import (
    MANY_CUT,
    cut_chunks,
    may_merge,
    merging,
    soonest_cut_us,
    soonest_so_far,
    sums_everywhere,
)
from taccl.baselines.table import TABLE, num_arrivals, row_of
from taccl.baselines.tree_mixes import soonest_plan
from taccl.errors import InputError
from taccl.problem.chunks import RankSets
from taccl.problem.making import by_default, make_problem
from taccl.problem.problem import Problem
from taccl.schedule.schedule import Schedule
from taccl.synthesis.proposers.balanced import balanced_schedule, cut_balanced
from taccl.synthesis.proposers.baseline_proposals import (
    BY_ESTIMATE,
    for_baselines_s,
    left_out,
    made_of,
    tried_finer,
)
from taccl.synthesis.search import Search
from taccl.topology.recognise import grid_of

#: Recursive multiplying has several forms: merged messages or one per chunk, and several numbers of parts.
#: `_MERGED_PARTS`: numbers of parts with merged messages; only the form with the earliest estimate is built.
#: Estimated finishes of merged forms are exact on regular machines.
#: `_MERGED_ARRIVALS`: max arrivals of chunks in such a merged form.
#: `_SEPARATE_PARTS`: numbers of parts with one message per chunk, which finish large sums up to 25 % sooner.
_MERGED_PARTS, _MERGED_ARRIVALS, _SEPARATE_PARTS = (1, 2, 8, 64), 300_000, (2, 4)

#: `_FORM_S_PER_ARRIVAL`: CPU seconds to build and verify a form, per arrival and part: (unmerged, merged).
#: Unmerged forms take longer, as a list scheduler times their sends.
#: `_LISTED_GAIN`: max ratio of estimated to best known finish at which a form without merging is built.
_FORM_S_PER_ARRIVAL, _LISTED_GAIN = (5e-5, 5e-6), 1.2

#: CPU seconds to cut the data of one rank, even if time is up: whole, it takes many times as long to send.
_LEAST_CUT_S = 0.3
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
#: `_MIXES_S_PER_TRANSFER`: CPU seconds per transfer to build and verify a mixed plan.
#: `_MIXES_SHARE`: max share of the time left for mixed plans.
#: `_MIX_BUILD_SHARE`: max share of this time to build and verify one, unless it has the coarsest chunks.
_MIXES_TIMES, _SEARCH_S, _FIRST_RUN_S = 2.0, 0.4, 0.3
_MIXES_S_PER_TRANSFER, _MIXES_SHARE, _MIX_BUILD_SHARE = 0.8e-6, 0.6, 0.6

#: `_HUBS_S_PER_TRANSFER`: CPU seconds per transfer to build and verify an allreduce by hubs.
#: `_MIX_SHARE`: share of the time left for mixes of trees on meshes, where they usually finish first.
#: `_HUBS_SHARE`: max share of the time for hubs in which plans are searched, before one is chosen and built.
#: `_BUILD_SHARE`: share of the other time for building; less than 1, as the load of a machine varies.
_HUBS_S_PER_TRANSFER, _MIX_SHARE, _HUBS_SHARE, _BUILD_SHARE = 4e-6, 0.7, 0.6, 0.6

#: Max transfers of a baseline in finer chunks, as many as recursive doubling of 64 chunks on 64 ranks has.
_CUT_TRANSFERS = 64 * 64 * 6

#: `_CUT_VERIFY_S`: min seconds allowed to verify a baseline in finer chunks, even past the deadline.
#: `_VERIFY_TRANSFER_S`: CPU seconds per transfer to verify a baseline in finer chunks.
#: This includes the extra work for merged transfers and listed contributions, of which they have many.
_CUT_VERIFY_S, _VERIFY_TRANSFER_S = 0.5, 2e-5


def offer_estimated(search: Search) -> Search | None:
    """Propose schedules of recursive multiplying with the earliest estimated finish.

    Messages merge in the first schedule, which is quick to build: a single plan, in the finest chunks that
    time allows, or equal parts of one plan (a mixed plan), whichever has the earliest estimate. If time
    allows, simulated annealing then improves the mixed plan, so that groups of chunks follow different plans.
    Forms with one message per chunk come last, if their estimated finish is early enough.
    Returns a search that holds the best schedule. Returns None if messages may not merge, on tori and meshes,
    and for data that all starts or ends at one rank: there, other baselines usually finish first.
    """
    problem, since = search.problem, time.monotonic()
    open_problem = replace(problem, chunks_open=True)
    if not may_merge(open_problem) or grid_of(problem.topology) is not None or is_at_one_rank(problem):
        return None
    if num_arrivals(problem) > search.parameters.portfolio.first_transfers:
        return None
    forms = _Forms(search, open_problem)
    forms.estimate()
    forms.build_earliest()
    steps = [forms.send_separately] if forms.mixed is None else [forms.improve_mix, forms.send_separately]
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

    @property
    def mixes_share(self) -> float:
        """Max share of the time left for mixed plans: all if baselines may be late, as nothing follows."""
        return 1.0 if self.deadline.at_s > self.search.options.ends_s else _MIXES_SHARE

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
                if self.merged and not self.has_time(parts, merges=True):
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

    def _estimated(self, parts: int, *, simple: bool) -> Estimated | None:
        """Estimate of a form with merged messages whose chunks are cut into `parts`; see `Estimated.of`."""
        finer = cut_chunks(self.problem, parts) if parts > 1 else self.problem
        likely = self.merged[-1].plan if self.merged else None
        most_us = math.inf if self.mixed is None else self.mixed.us
        with (self.at_least(self.until) if self.merged else self.late).enforced():
            return Estimated.of(merging(finer), likely, simple=simple, most_us=most_us)

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

    def improve_mix(self) -> None:
        """Improve the mixed plan by simulated annealing, in as fine chunks as there is time to build."""
        latest = self.at_least(self.deadline)
        ends_at = latest.sooner(self.mixes_share * self.left_s(self.deadline))
        fit = [each for each in self.to_mix if _mix_s(each) <= _MIX_BUILD_SHARE * ends_at.left_s]
        fit = fit or self.to_mix[-1:]
        num_chunks = self.mixed.times.problem.collective.num_chunks if self.mixed is not None else 0
        is_coarser = self.mixes_share == 1.0 and fit[0].collective.num_chunks < num_chunks
        if is_coarser or _mix_s(fit[0]) + busy_factor() * _FIRST_RUN_S > ends_at.left_s:
            self.skipped.append("annealing of mixed plans")
            return
        build_s, most = _mix_s(fit[0]), mixed_transfers(fit[0])
        # The search often takes all its time. If the machine is busy, building takes longer than estimated.
        with latest.sooner(max(ends_at.left_s + build_s, self.deadline.left_s)).enforced():
            # If estimates are not exact, annealing may gain nothing.
            untils = [ends_at.later(-build_s)]
            if self.mixed is not None and not self.mixed.times.are_exact:
                untils.insert(0, ends_at.sooner(0.0))
            for until in untils:
                found = mixed_schedule(
                    self.problem, until, below_us=self.finish_us, most_transfers=most, patient=True
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


def offer_hubs(search: Search) -> Search | None:
    """Propose an allreduce by hubs on a torus or mesh, with merged sends, if its estimate is the earliest.

    `offer_cut` builds it only after many other forms of the bucket algorithm, and not on large tori. Returns
    the search that holds the schedule; None if there is none, or if time is short.
    """
    problem, since, dims = _opened(search.problem), time.monotonic(), grid_of(search.problem.topology)
    if dims is None or not (may_merge(problem) and sums_everywhere(problem)):
        return None
    plan, share = None, search.parameters.portfolio.best_share
    if any(each.kind == "line" for each in dims):
        share = max(share, _MIX_SHARE)
    until = search.deadline.sooner(for_baselines_s(search.deadline, share))
    rest_s = (1 - _HUBS_SHARE) * until.left_s
    with suppress(OutOfTime), until.enforced():
        plan = soonest_plan(
            problem,
            dims,
            until=until.sooner(_HUBS_SHARE * until.left_s),
            most_transfers=_BUILD_SHARE * rest_s / (busy_factor() * _HUBS_S_PER_TRANSFER),
        )
    if plan is None and until.has_passed:
        search.record("baselines", "taccl", "skipped", since, message="hubs: no plan in time")
        return None
    until = search.deadline.sooner(for_baselines_s(search.deadline, share))
    if plan is None or plan.estimated_us(problem) >= search.earliest_us:
        return None
    parts = plan.parts_per_chunk(problem)
    takes_s = busy_factor() * _HUBS_S_PER_TRANSFER * parts * plan.num_transfers(problem)
    if parts > min(problem.chunk_bytes):
        return None
    if takes_s > until.left_s:
        said = f"hubs: takes about {format_s(takes_s)}, and {format_s(until.left_s)} are left for it"
        search.record("baselines", "taccl", "skipped", since, message=said)
        return None
    made = None
    with suppress(InputError, OutOfTime), until.enforced():
        finer = merging(cut_chunks(problem, parts) if parts > 1 else problem)
        found = hub_sends(finer, plan).schedule(finer, producer=f"bucket (hubs: {plan})")
        made = search_for(search, found) if found.finish_us < search.earliest_us else None
    said = "hubs: none better" if made is None else f"hubs: {plan}"
    finish_us = search.best_us if made is None else made.best_us
    search.record("baselines", "taccl", "done", since, finish_us=finish_us, message=said)
    return made


def offer_cut(search: Search, until: Deadline) -> Search | None:
    """Propose baselines of few transfers in finer chunks; returns the search that holds the best schedule.

    Returns None if no baseline is better. Baselines that fit into the time left come first, and
    among these the ones that usually gain by finer chunks. At ties, the earliest possible finish decides.
    Baselines that cannot finish sooner than the incumbent are skipped.
    """
    if not search.has_found:
        return None
    problem, since, finish_us = search.problem, time.monotonic(), search.earliest_us
    best: Search | None = None
    open_problem = _opened(problem)  # with an open number of chunks, messages may merge
    producer, tried = "", tried_finer(problem)
    # Each cut has twice as many transfers as the one before, so all cuts take twice as long as the last one.
    most_s, factor = until.left_s / busy_factor(), 2 * MANY_CUT / 10_000
    kind = "root" if is_at_one_rank(problem) else "all"
    usual = {name for name, row in TABLE.items() if row.finer_chunks in (kind, "both")}
    few = [
        (
            # Data of one rank is first cut coarsely, so that some schedule is complete in time.
            factor * row_of(name).build_s > most_s and not (kind == "root" and name in usual),
            name not in usual,
            # A whole chunk of one rank takes one of many paths, unlike finer ones.
            0.0 if kind == "root" and name in usual else soonest_cut_us(whole),
            name,
        )
        for name, whole in made_of(problem).items()
        if whole.num_transfers <= _CUT_TRANSFERS and name not in tried
    ]
    late: list[str] = []
    for _, _, soonest_us, name in sorted(few):
        if soonest_us >= finish_us:
            continue
        if until.has_passed:
            late.append(name)
            continue
        found = None
        limit = until.at_least(busy_factor() * _LEAST_CUT_S) if kind == "root" and best is None else until
        with suppress(InputError, OutOfTime), search.kept_at_ctrl_c(lambda: best), limit.enforced():
            found = baseline(name, open_problem)
            tried.add(name)
        if found is None:  # time was up: take the best complete schedule
            found = next(iter(soonest_so_far(open_problem)), None)
        if found is None or found.finish_us >= finish_us:
            continue
        verify_s = max(_CUT_VERIFY_S, busy_factor() * _VERIFY_TRANSFER_S * found.num_transfers)
        with suppress(InputError, OutOfTime), until.at_least(verify_s).enforced():
            finer = search_for(search, found)
            if finer is not None:
                best, finish_us, producer = finer, found.finish_us, found.producer
    message = f"in finer chunks: {producer or 'none better'}{left_out(search, late)}"
    search.record("baselines", "taccl", "done", since, finish_us=finish_us, message=message)
    return best


def offer_balanced_groups(search: Search) -> Search | None:
    """Propose schedules for process groups that balance the load of the dimensions each group spans.

    If the number of chunks is open, it is the one with the earliest planned finish. Returns a search that
    holds the schedule in finer chunks. Returns None if the ranks of a group do not span dimensions of their
    own, or if time is short. Returns None also if the number of chunks is given; `search` then has the
    schedule.
    """
    since, portfolio = time.monotonic(), search.parameters.portfolio
    until = search.deadline.sooner(for_baselines_s(search.deadline, portfolio.best_share))
    problem = replace(search.problem, chunks_open=search.is_open)
    found, made, said = None, None, ""
    # The first attempt is in fewer chunks, so that a schedule exists if the deadline stops the second.
    for most in (portfolio.first_transfers // 2, 2 * portfolio.first_transfers):
        spent_s = time.monotonic() - since
        try:
            with search.kept_at_ctrl_c(lambda: made), until.enforced():
                finer = cut_balanced(problem, policy=search.options.policy, most_transfers=most)
                if found is not None:
                    parts = finer.collective.num_chunks // found.problem.collective.num_chunks
                    if parts == 1 or parts * spent_s > until.left_s:
                        break
                found = balanced_schedule(finer, most_transfers=most, improve=False)
                assert found is not None, "any finish counts"
                if search.is_open:
                    made = search_for(search, found) or made
                else:
                    search.offer_whole(found, producer=found.producer, verified=True)
        except (InputError, OutOfTime) as error:
            said = str(error)
    if found is None:
        search.record("groups over dimensions", "taccl", "no-solution", since, message=said)
        return None
    search.record("groups over dimensions", "taccl", "done", since, finish_us=found.finish_us)
    return made


@cached
def _opened(problem: Problem) -> Problem:
    """The problem with an open number of chunks; each call returns one and the same object with its cache."""
    return replace(problem, chunks_open=True)


def search_for(search: Search, found: Schedule) -> Search | None:
    """Return a new search that holds `found`, a schedule in finer chunks.

    Returns None if this number of chunks is not allowed, or if the cut makes chunks of other sizes. Returns
    None also if `found` is invalid for the problem in finer chunks.
    """
    suggesting = search.parameters.suggesting
    count = found.problem.collective.chunks_per_rank // search.problem.collective.chunks_per_rank
    if suggesting.counts_only and count not in suggesting.counts:
        return None
    finer, clauses = with_note_on_chunks(cut(search.problem, count)), found.problem.clauses
    if clauses.merging - finer.clauses.merging or clauses.max_merge > finer.clauses.max_merge:
        finer = merging(finer)
    if finer.chunk_bytes != found.problem.chunk_bytes:
        return None
    found = found.under(finer)
    if not verify(found).ok:
        return None
    best = search.beside(finer)
    best.offer_whole(found, producer=found.producer, verified=True)
    return best


def is_at_one_rank(problem: Problem) -> bool:
    """True if one rank is the only origin, or the only destination, of all chunks."""
    return any(map(_is_one_rank, (problem.collective.origin_sets, problem.collective.destination_sets)))


def _is_one_rank(ends: RankSets) -> bool:
    """True if `ends`, the origins or the destinations of all chunks, is one and the same rank."""
    return len(ends.sets) == len(ends.sets[0]) == 1


def cut(problem: Problem, parts: int) -> Problem:
    """The problem with each chunk cut into `parts`, under the same sketch.

    Without a sketch, the default clauses are derived again for the smaller chunks.
    """
    if parts == 1:
        return problem
    default, size_bytes = by_default(problem), problem.size_bytes
    clauses = None if problem.clauses == default.clauses else problem.clauses
    notes = [note for note in problem.notes if note not in default.notes]  # padding notes are made again
    finer = problem.collective.split(parts)
    return make_problem(problem.topology, finer, size_bytes=size_bytes, clauses=clauses, notes=notes)


def with_note_on_chunks(problem: Problem) -> Problem:
    """The problem, with a note on its number of chunks per rank if that is not one."""
    if problem.collective.chunks_per_rank == 1:
        return problem
    cut_into = format_count(problem.collective.chunks_per_rank, "chunk")
    note = f"cut into {cut_into} per rank; chunks_per_rank= (--chunks-per-rank) sets another number"
    return replace(problem, notes=(*problem.notes, note))
