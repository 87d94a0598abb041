"""Improve a schedule's routes and order jointly by ruin and recreate.

Sources: Schrimpf, Schneider, Stamm-Wilbrandt and Dueck, "Record breaking optimization results using the ruin
and recreate principle", Journal of Computational Physics 159 (2000), for the loop; Christiaens and Vanden
Berghe, "Slack induction by string removals for vehicle routing problems", Transportation Science 54 (2020),
for the removal of adjacent sends; Dueck, "New optimization heuristics: the great deluge algorithm and the
record-to-record travel", Journal of Computational Physics 104 (1993), for the acceptance criterion; Li and
Willis, EJOR 56 (1992), for forward-backward re-timing.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from taccl._internal.kernels import is_compiled, is_loaded
from taccl.analysis.verification.verify import verify
from taccl.problem.collectives import make
from taccl.problem.costs import hold_columns, wide_links
from taccl.problem.making import make_problem
from taccl.problem.problem import Problem
from taccl.schedule.combine import reduce_phase, reverse
from taccl.schedule.schedule import Schedule
from taccl.schedule.timing import exact_times
from taccl.synthesis.improve.routes import Tree, bare_trees, read_trees
from taccl.synthesis.kernels.fabric import Ints, most_merged, starts
from taccl.synthesis.kernels.improvement_kernel import improve
from taccl.synthesis.kernels.improvement_state import Arcs, Calendar, Room, Rules, SearchState, Trees, Work
from taccl.synthesis.kernels.limits import Limits
from taccl.synthesis.parameters import DEFAULTS, RuinParameters, SearchParameters
from taccl.topology.fabrics import ring

#: `_MOST_MERGED`: max chunks in a merged send.
#: `_MOST_HOLDS`: max occupations per resource in the calendar; dropping others makes finishes optimistic.
#: `Improvement.schedule` computes exact times and finishes.
#: `_MOST_RUINED`: number of removed sends after which a turn of ruin and recreate removes no more.
_MOST_MERGED, _MOST_HOLDS, _MOST_RUINED = 16, 4_096, 40
#: `_PASSES`: number of times that a re-timing of all sends goes backward and then forward.
#: `_EVERY`: mean number of iterations (turns) from one re-timing to the next.
_PASSES, _EVERY = 1, 16
#: Max relative increase in a schedule's objective value that the first iteration accepts.
_THRESHOLD = 0.01
#: Terms of the objective value that tell schedules of equal finish apart.
#: `_LATENESS`: weight of late sends, relative to the finish.
#: `_ECONOMY`: weight of resource usage.
#: `_SHARPNESS`: number of times that lateness is squared, so that sends in the last tenth count most.
_LATENESS, _ECONOMY, _SHARPNESS = 0.5, 0.1, 5
#: Min seconds left to run the kernels if they are loaded in this process.
_LOADED_S = 0.1
#: `_TURNS_PER_SEND`: max iterations (turns) per send in the first run.
#: `_RUN_SENDS`: max product of iterations and sends in the first run.
_TURNS_PER_SEND, _RUN_SENDS = 100, 10_000_000


def suits_improvement(problem: Problem, *, most_routes: int = DEFAULTS.ruin.most_routes) -> bool:
    """True if ruin and recreate supports all clauses of the problem, and the problem is small enough."""
    collective, clauses = problem.collective, problem.clauses
    routes = collective.num_chunks * problem.topology.num_ranks * (2 if collective.combining else 1)
    return (
        not collective.derivations
        and not problem.own_first
        and clauses.path_limit is None
        and routes <= most_routes
        and bool((problem.costs.link_alpha + problem.costs.link_beta > 0).all())
    )


def is_quick(limit_s: float, parameters: SearchParameters) -> bool:
    """True if the time limit suffices to run the kernels, and to load or compile them if necessary."""
    return limit_s >= least_s(parameters)


def least_s(parameters: SearchParameters) -> float:
    """Min seconds left to run the kernels: fewer if they are compiled, and fewest if they are loaded."""
    choice = parameters.choice
    if is_loaded(improve):
        return min(_LOADED_S, choice.compiled_s)
    return choice.compiled_s if is_compiled(improve) else choice.compiling_s


class Improvement:
    """Ruin and recreate on one problem: its arrays, and the best schedule so far.

    - `problem`: A problem for which `suits_improvement` is true.
    - `trees`: Trees of all chunks, with the sends that they were read from; incomplete trees are completed.
    - `merges`: True if a send may carry several chunks, where the problem allows it.
    - `chunks`: Chunks whose routes may change; None for all.
    """

    def __init__(
        self,
        problem: Problem,
        trees: Sequence[Tree],
        limits: Limits = Limits(),
        *,
        merges: bool = True,
        chunks: Collection[int] | None = None,
    ) -> None:
        self.problem, self.limits = problem, limits
        self.trees = list(trees)
        self.arcs = _arcs(problem, _MOST_MERGED if merges else 1)
        self.demand = _demand(problem, self.trees, chunks)
        num_trees = len(self.trees)
        self.now, self.kept, self.best = (_state(self.arcs, num_trees, _MOST_HOLDS) for _ in range(3))
        self._work = Work(self.arcs, self.demand, _room(self.arcs, num_trees, limits.seed))
        self.counts = np.zeros(3, np.int64)
        self._start()

    def _start(self) -> None:
        """Copy the sends of each tree (`Tree.read_from`) into the arrays of the current state.

        A tree with an unsupported link is left empty, and the search then rebuilds it. Broadcast trees
        support allowed links with one source, reduction trees allowed links with one destination and with
        sources that contribute.
        """
        now, arcs, is_open = self.now, self.arcs, self.demand.is_open[self.demand.open_class]
        send_of: dict[tuple[int, int, bool], int] = {}
        size, spare = 0, list(range(len(now.carries)))[::-1]
        for t, tree in enumerate(self.trees):
            now.root[t] = next(iter(tree.origins)) if self.demand.partner[t] >= 0 else -1
            kind = int(tree.reducing)
            over = list(tree.link_to.values())
            if any(arcs.tail[kind * arcs.num_links + e] < 0 for e in over) or not is_open[t, over].all():
                continue
            made: dict[int, int] = {}
            for rank, e in tree.link_to.items():
                if e not in made:
                    transfer = tree.read_from[rank]
                    # A send that carries chunks of both phases (reduce and broadcast) becomes one per phase.
                    key = transfer.group, e, tree.reducing
                    m = send_of.get(key, -1)
                    if m < 0 or now.carries[m] == arcs.most_merged:
                        m = send_of[key] = spare.pop()
                        now.link[m], now.kind[m], now.carries[m] = e, kind, 0
                        now.units[m], now.start[m] = 0, transfer.start_ticks
                        now.order[size] = m
                        size += 1
                    now.member[m, now.carries[m]] = t
                    now.carries[m] += 1
                    now.units[m] += self.demand.units[t]
                    made[e] = m
                now.way[t, rank], now.send[t, rank] = e, made[e]
        for state in (now, self.kept, self.best):
            state.spare[: len(spare)] = spare
        used = now.order[:size]
        now.size[:] = size, len(spare), 0, used.max(initial=-1) + 1
        for m in used.tolist():
            rows = slice(arcs.hold_of[now.link[m]], arcs.hold_of[now.link[m] + 1])
            now.load[arcs.resource[rows]] += arcs.hold_alpha[rows] + now.units[m] * arcs.hold_beta[rows]

    def run(self, *, turns: int) -> int:
        """Complete the trees and improve the schedule; returns the best finish in ticks, or -1 if none."""
        rules = Rules(
            self.limits.target_ticks, turns, _PASSES, _EVERY, _THRESHOLD, _MOST_RUINED,
            _LATENESS, _ECONOMY, _SHARPNESS,
        )  # fmt: skip
        states, signal = (self.now, self.kept, self.best), np.zeros(1, np.int64)
        with self.limits.deadline.stopping(signal):
            return int(improve(self._work, states, rules, self.counts, signal))

    def schedule(self, producer: str = "ruin and recreate") -> Schedule:
        """The best schedule so far."""
        best = self.best
        used = best.order[: best.size[0]]
        row, place = np.nonzero(np.arange(self.arcs.most_merged) < best.carries[used][:, None])
        send = used[row]
        chunk = np.array([tree.chunk for tree in self.trees], np.int64)[best.member[send, place]]
        return exact_times(
            self.problem, chunk=chunk, link=best.link[send], starts=best.start[send], group=send,
            reduce=best.kind[send] == 1, producer=producer,
        )  # fmt: skip


def improve_schedule(
    schedule: Schedule,
    limits: Limits = Limits(),
    *,
    turns: int | None = None,
    merges: bool = True,
    chunks: Collection[int] | None = None,
) -> tuple[Schedule, str]:
    """Improve a schedule by ruin and recreate: (schedule that finishes no later, text of what was done).

    Reductions without a broadcast phase are reversed in time, and improved as broadcasts, unless there are
    hyperedges. The search inserts sends of broadcasts as early as possible. It inserts sends of reductions
    as late as possible, before a finish that is still an improvement.

    - `schedule`: Schedule of a problem for which `suits_improvement` is true.
    - `turns`: Max turns; None for no limit. Each run has twice the turns of the one before, and starts from
      the best schedule. Improvement ends after `idle_runs` consecutive runs without progress.
    - `merges`, `chunks`: See `Improvement`.
    """
    problem = schedule.problem
    # In reversed time, hyperedges would bring copies to ranks that have nothing to contribute.
    is_reversible = problem.collective.stays_at_roots and not wide_links(problem.topology)
    if is_reversible and schedule.reduce.any():
        turned = reverse(schedule, reduce_phase(problem))
        turned, done = improve_schedule(turned, limits, turns=turns, merges=merges, chunks=chunks)
        found = reverse(turned, problem)
        # A reversed multicast may add a contribution twice, or need one from a rank that has none.
        is_valid = not len(wide_links(problem.topology)) or verify(found).ok
        return min(schedule, found if is_valid else schedule, key=lambda each: each.finish_ticks), done
    began, ruin = time.monotonic(), limits.parameters.ruin
    latest = limits.until or limits.deadline
    until = latest.sooner(limits.idle_s())
    trees, left = read_trees(schedule), 1 << 40 if turns is None else turns
    best, length, made, better, idle = schedule, first_turns(len(schedule), ruin), 0, 0, 0
    while idle < ruin.idle_runs and left > 0:
        if made and (best.finish_ticks <= limits.target_ticks or until.has_passed):
            break
        search = Improvement(schedule.problem, trees, limits, merges=merges, chunks=chunks)
        if not made:  # in the first run: reserve time to write the schedule, about as long as to read it
            took_s = 2 * (time.monotonic() - began)
            latest, until = latest.later(-took_s), until.later(-took_s)
        search.limits = replace(limits, deadline=until)
        finish = search.run(turns=min(length, left))
        if finish < 0:
            return schedule, "some chunks have no path along a tree"
        made, better = made + int(search.counts[0]), better + int(search.counts[2])
        left, length, idle = left - length, 2 * length, idle + 1
        limits = replace(limits, seed=limits.seed + 1_000_003)
        found = search.schedule() if finish < best.finish_ticks else best
        # This finish is exact; the search may have underestimated it.
        if found.finish_ticks < best.finish_ticks:
            best, idle = found, 0
            trees = read_trees(best)
            until = latest.sooner(limits.idle_s())
    said = f"{made} iterations, {better} of them better, from {schedule.finish_us:.4g} us"
    return best, said if better or best is schedule else f"{said} by re-timing along the same trees"


def first_turns(num_sends: int, ruin: RuinParameters) -> int:
    """Number of ruin-and-recreate iterations (turns) in the first run on `num_sends` sends."""
    return max(1, min(ruin.run_turns, _TURNS_PER_SEND * num_sends, _RUN_SENDS // max(1, num_sends)))


@cache
def compile_improvement() -> None:
    """Compile the kernels if necessary, by a run on two ranks; they are cached on disk."""
    pair = make_problem(ring(2), make("allgather", 2), chunk_bytes=1)
    search = Improvement(pair, bare_trees(pair))
    search.run(turns=1)


def _arcs(problem: Problem, most: int) -> Arcs:
    topology, costs = problem.topology, problem.costs
    links, num_links, n = topology.links, len(topology.links), topology.num_ranks
    tail = np.full(2 * num_links, -1)
    heads: list[tuple[int, ...]] = [()] * (2 * num_links)
    for e in problem.links_allowed:
        ends = links[e]
        if len(ends.srcs) == 1:
            tail[e], heads[e] = ends.srcs[0], ends.dsts
        if len(ends.dsts) == 1:
            tail[num_links + e], heads[num_links + e] = ends.dsts[0], ends.srcs
    arc = np.flatnonzero(tail >= 0)
    leaving = arc // num_links * n + tail[arc]
    head = np.array([r for each in heads for r in each], np.int64)
    arc_of_head = np.repeat(np.arange(2 * num_links), [len(each) for each in heads])
    entering = arc_of_head // num_links * n + head
    hold_of, hold = _holds(problem)
    # Merging gains nothing on links whose latency occupies no resource.
    merged = np.minimum(most_merged(problem, 0.0), most)
    columns = hold_columns(topology)
    resource = np.unique(columns.resource[hold], return_inverse=True)[1]
    return Arcs(
        n, num_links, np.array(costs.link_alpha), np.array(costs.link_beta), merged > 1,
        int(merged.max(initial=1)),
        hold_of, resource, costs.hold_alpha[hold], costs.hold_beta[hold], columns.receives[hold],
        tail, starts(arc_of_head, 2 * num_links), head,
        starts(leaving, 2 * n), arc[np.argsort(leaving, kind="stable")],
        starts(entering, 2 * n), arc_of_head[np.argsort(entering, kind="stable")],
    )  # fmt: skip


def _holds(problem: Problem) -> tuple[Ints, Ints]:
    """Holds (occupations of resources) of each link, without redundant ones: (first row by link, holds).

    A hold of a resource that no other link uses is redundant if another hold of the link covers it.
    """
    costs, columns = problem.costs, hold_columns(problem.topology)
    alpha, beta, late = costs.hold_alpha.tolist(), costs.hold_beta.tolist(), columns.receives.tolist()
    is_alone = (np.bincount(columns.resource, minlength=1)[columns.resource] == 1).tolist()
    kept: list[list[int]] = [[] for _ in problem.topology.links]
    for h in sorted(range(len(late)), key=lambda h: (is_alone[h], -alpha[h], -beta[h], -h)):
        mine = kept[columns.link[h]]
        implied = (late[g] == late[h] and alpha[g] >= alpha[h] and beta[g] >= beta[h] for g in mine)
        if not (is_alone[h] and any(implied)):
            mine.append(h)
    hold_of = np.cumsum([0, *map(len, kept)])
    return hold_of, np.array([h for mine in kept for h in sorted(mine)], np.int64)


def _demand(problem: Problem, trees: Sequence[Tree], free: Collection[int] | None) -> Trees:
    n, chunks = problem.topology.num_ranks, problem.collective.chunks
    count = len(trees)
    kind = np.array([tree.reducing for tree in trees], np.int64)
    # The two trees of a reduced chunk have adjacent numbers.
    partner = np.arange(count) ^ 1 if problem.collective.combining else np.full(count, -1)
    is_origin, is_target = np.zeros((count, n), bool), np.zeros((count, n), bool)
    for t, tree in enumerate(trees):
        is_origin[t, list(tree.origins)] = True
        is_target[t, list(tree.targets)] = True
        if partner[t] >= 0:
            data = chunks[tree.chunk]
            is_target[t, list(data.origins if tree.reducing else data.destinations)] = True
    rows = [_open_links(problem, tree) for tree in trees]
    opened = np.array(rows, bool).reshape(count, len(problem.topology.links))
    for e in wide_links(problem.topology):
        # A rank that contributes nothing may have nothing to send along with other sources.
        srcs = problem.topology.links[e].srcs
        if len(srcs) > 1:
            opened[:, e] &= [not tree.reducing or {*srcs} <= {*chunks[tree.chunk].origins} for tree in trees]
    is_open, open_class = np.unique(opened, axis=0, return_inverse=True)
    clauses = problem.clauses
    bound = clauses.carries_from or clauses.carries_to or clauses.direct_crossing
    return Trees(
        problem.costs.chunk_units[[tree.chunk for tree in trees]].astype(np.int64),
        kind, partner, problem.update_ticks[[tree.chunk for tree in trees]], is_origin, is_target, open_class,
        is_open, np.array([free is None or tree.chunk in free for tree in trees], bool),
        not bound and not problem.collective.updates,
    )  # fmt: skip


def _open_links(problem: Problem, tree: Tree) -> NDArray[np.bool_]:
    """(num_links,) True for links on which the clauses admit a tree's sends.

    A reduction adds the data of all sources of a link, so each of several sources must contribute.
    """
    opened, links = problem.open_links(tree.chunk, reducing=tree.reducing), problem.topology.links
    if tree.reducing and (wide := wide_links(problem.topology)):
        opened, givers = opened.copy(), frozenset(problem.collective.chunks[tree.chunk].origins)
        opened[[e for e in wide if len(links[e].srcs) > 1 and not givers.issuperset(links[e].srcs)]] = False
    return opened


def _state(arcs: Arcs, num_trees: int, most_holds: int) -> SearchState:
    num_sends = num_trees * arcs.num_ranks
    held = np.bincount(arcs.resource, minlength=1)
    row_of = np.concatenate(([0], np.cumsum(np.minimum(held * num_trees, most_holds))))
    none, num_resources = np.full((num_trees, arcs.num_ranks), -1), len(held)
    by_send = ("link", "kind", "carries", "units", "start", "end", "order", "spare")
    return SearchState(
        root=np.full(num_trees, -1),
        way=none,
        send=none.copy(),
        **{name: np.zeros(num_sends, np.int64) for name in by_send},
        member=np.zeros((num_sends, arcs.most_merged), np.int64),
        size=np.zeros(4, np.int64),
        load=np.zeros(num_resources, np.int64),
        calendar=Calendar(row_of, np.zeros(num_resources, np.int64), *np.zeros((3, row_of[-1]), np.int64)),
    )


def _room(arcs: Arcs, num_trees: int, seed: int) -> Room:
    n, num_sends, heap = arcs.num_ranks, num_trees * arcs.num_ranks, 16 * arcs.num_ranks + 4 * len(arcs.out)
    start = np.random.SeedSequence(seed).generate_state(2, np.uint64)
    return Room(
        ready=np.zeros((num_trees, n), np.int64),
        when=np.zeros(n, np.int64),
        cost=np.zeros(n),
        paid=np.zeros(n),
        came=np.zeros(n, np.int64),
        is_in=np.zeros(n, bool),
        path=np.zeros(n + 1, np.int64),
        heap_cost=np.zeros(heap),
        heap_rank=np.zeros(heap, np.int64),
        price=np.zeros(int(arcs.resource.max(initial=0)) + 1),
        key=np.zeros(num_sends, np.int64),
        sorted=np.zeros(num_sends, np.int64),
        following=np.zeros(num_sends, np.int64),
        first=np.full(len(arcs.tail), -1),
        ruined=np.zeros(num_trees, np.int64),
        is_ruined=np.zeros(num_trees, bool),
        queue=np.zeros(n + 2, np.int64),
        chain=np.zeros(num_sends + 1, np.int64),
        reach=np.zeros(3, np.int64),
        random=start | np.uint64(1),
    )
