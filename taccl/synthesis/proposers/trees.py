"""Schedules along packed spanning trees, which reach the machine's throughput in enough chunks.

The throughput of chunks that go to all ranks is limited by the set of ranks with the smallest incoming
capacity. Trees reach that limit if each rank's data is cut into enough parts. Sums go along the same trees,
reversed. An allreduce may root more sums at some ranks than at others.

Large messages are cut into tiles, which repeat the schedule. Without idle gaps, tiles follow one another at
the rate of the busiest resource.

References
----------
L. Zhao, S. Pal, T. Chugh, W. Wang, J. Fantl, P. Basu, J. Khoury, A. Krishnamurthy, "ForestColl:
Throughput-Optimal Collective Communications on Heterogeneous Network Fabrics", arXiv 2402.06787 (2024).
"""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction

import numpy as np

from taccl._internal.deadline import OutOfTime, busy_factor
from taccl._internal.kernels import is_compiled, is_loaded
from taccl._internal.units import format_count, format_gap, format_s
from taccl.analysis.verification.loops import accept_copies, accept_trees, compiled_loop
from taccl.analysis.verification.verify import compile_verifier, verify
from taccl.errors import InputError, NoSolutionError
from taccl.problem.collectives import make
from taccl.problem.making import make_problem
from taccl.problem.problem import Problem
from taccl.schedule.schedule import MANY, Schedule
from taccl.synthesis.kernels.flow_kernel import flow_up_to, largest_shortfall
from taccl.synthesis.kernels.limits import Limits
from taccl.synthesis.kernels.queue_kernel import send_along
from taccl.synthesis.proposers.finer import cut, is_at_one_rank, with_note_on_chunks
from taccl.synthesis.proposers.large import effort
from taccl.synthesis.proposers.tree_hops import send_in_turn, send_without_gaps, tree_hops
from taccl.synthesis.search import Search
from taccl.synthesis.transforms.phases import Phase, join, split
from taccl.synthesis.trees.network import least_time, network_of, trees_per_chunk
from taccl.synthesis.trees.packing import tree_counts
from taccl.synthesis.trees.roots import root_shares, with_roots
from taccl.topology.fabrics import ring

Shares = Sequence[Fraction]
#: `_MOST_RANKS`: max ranks for which trees are packed (about 1 s at 64).
#: `_MOST_OF_ONE`: max (ranks, links) if all trees have one root. Four trees on a torus need 0.5 s of CPU for
#: 256 ranks, and 11 s for 1,024.
#: `_MOST_SENDS`: max sends of a schedule along trees.
_MOST_RANKS, _MOST_OF_ONE, _MOST_SENDS = 96, (512, 3_000), 350_000
#: Schedules of at most this many sends are tried whatever their estimated finish.
_FEW_SENDS = 10_000
#: `_SHARE`: share of the time left for the search for trees.
#: `_LEAST_S`: min CPU seconds for the search for trees, up to the share `_MOST_SHARE` of the time left.
_SHARE, _LEAST_S, _MOST_SHARE = 0.3, 2.0, 0.6
#: Max ratio of the finish in finer chunks to the finish at the last gain that counts as a gain.
_PAYS = 0.999
#: Max ratio of a gapless schedule's finish to the best finish, for the gapless schedule to be preferred.
#: Tiles of a large message can repeat a gapless schedule at the rate of the busiest resource.
_STEADY = Fraction(1002, 1000)
#: Number of consecutive chunk counts without gain after which no finer chunks are tried.
_PATIENCE = 2
#: Max share of the tree search's time in which the shares of roots are chosen.
#: The choice takes at most 0.4 s of CPU for 96 ranks; loading the kernel of maximum flows takes as much.
_ROOTS_SHARE = 0.5
#: `_HOPS`: estimated time to fill the pipeline, as a multiple of the slowest send's duration.
#: `_FAR`: a number of chunks is tried if its estimated finish is at most this multiple of the best estimate.
_HOPS, _FAR = 8, Fraction(105, 100)
#: Relative difference of times caused by rounding to whole bytes.
_ROUNDED = Fraction(1, 10_000)
#: `_COMPILE_S`: CPU seconds to compile the kernels, which are then cached.
#: `_LOAD_S`: CPU seconds to load the first of them from the cache.
#: `_COMPILE_SHARE`: max share of the remaining time to spend on compiling the kernels.
_COMPILE_S, _LOAD_S, _COMPILE_SHARE = 9.0, 0.2, 0.5


def may_fill(problem: Problem) -> bool:
    """True if trees support the problem, and throughput rather than latency limits it.

    Each chunk must go from one rank to all ranks, or be a sum of all ranks. On some link the transmission
    time of a chunk must exceed the latency. The sketch may only restrict links.
    """
    topology, costs = problem.topology, problem.costs
    plain = replace(problem.clauses, links_allowed=None)
    size, most = (topology.num_ranks, len(topology.links)), _MOST_OF_ONE
    has_few = all(map(operator.le, size, most)) and is_at_one_rank(problem)
    if not (has_few or topology.num_ranks <= _MOST_RANKS):
        return False
    if problem.collective.is_met or plain != plain.only("merge"):
        return False
    is_long = costs.link_beta * int(costs.chunk_units.max(initial=0)) > costs.link_alpha
    return bool(is_long.any()) and all(tree_counts(phase.problem) is not None for phase in split(problem))


def is_worthwhile(search: Search) -> bool:
    """True if trees may improve the schedule: the number of chunks is open, or there are many hops."""
    return search.is_open or effort(search.problem) > search.parameters.suggesting.few_hops


def no_time(search: Search) -> str:
    """Reason why there is no time to compile the kernels, or to load them; empty if there is."""
    needed_s, left_s = busy_factor() * _COMPILE_S, search.deadline.left_s
    if _are_compiled(search.problem):
        loads_s = 0.0 if is_loaded(flow_up_to) else busy_factor() * _LOAD_S
        said = f"loading its kernels would take {format_s(loads_s)}, and {format_s(left_s)} are left"
        return said if left_s < loads_s else ""
    if left_s * _COMPILE_SHARE >= needed_s:
        return ""
    needed = format_s(needed_s)
    return f"compiling its kernels would take {needed}, more than half of the {format_s(left_s)} left"


def offer_trees(search: Search) -> Search | None:
    """Propose schedules along trees; if the number of chunks is open, in finer chunks while that pays.

    Returns a search that holds the best schedule, if that is in finer chunks.
    """
    if not _compiled(search):
        return None
    since, left_s = time.monotonic(), search.deadline.left_s
    least_s = min(_LEAST_S * busy_factor(), _MOST_SHARE * left_s)
    until = search.deadline.sooner(max(_SHARE * left_s, least_s))
    best, said, idle = None, "", 0
    gained: Fraction | None = None
    search.report("spanning trees")
    kept = search.kept_at_ctrl_c(lambda: _holding(search, best, said))
    with suppress(NoSolutionError, InputError), kept, until.enforced():  # NoSolutionError includes OutOfTime
        choosing = until.sooner(_ROOTS_SHARE * until.left_s)
        shares = root_shares(search.problem, lambda: choosing.has_passed)
        for problem, share in _in_chunks(search, shares):
            found = along_trees(problem, Limits(until, seed=search.options.seed), shares=shares)
            if found is None:
                break
            if gained is None or found.finish < _PAYS * gained:
                gained, idle = found.finish, 0
            elif found.num_transfers > _FEW_SENDS:
                idle += 1
            if (best is None or found.finish < best.finish) and verify(found).ok:
                best, said = found, share
            if idle >= _PATIENCE:
                break
        if best is not None:
            limits = Limits(until, seed=search.options.seed, target_ticks=best.finish_ticks)
            steady = along_trees(best.problem, limits, gapless=True)
            if steady is not None and steady.finish <= _STEADY * best.finish and verify(steady).ok:
                best, said = steady, f"{said}; in steady state the busiest resource is never idle"
    if best is None:
        said = "no schedule in time" if until.has_passed else "none found that may finish sooner"
        search.record("trees", "compiled", "no-solution", since, message=said)
        return None
    search.record("trees", "compiled", "done", since, finish_us=best.finish_us, message=said)
    return _holding(search, best, said)


def _holding(search: Search, best: Schedule | None, said: str) -> Search | None:
    """Search in finer chunks that holds a verified schedule; None if `search` holds it, or without one."""
    if best is None:
        return None
    in_chunks = best.problem is search.problem
    other = search if in_chunks else search.beside(best.problem, choice=f"spanning trees: {said}")
    other.offer_whole(best, producer=best.producer, verified=True)
    return None if in_chunks else other


def _in_chunks(search: Search, shares: Shares | None) -> Iterator[tuple[Problem, str]]:
    """(problem, description of its trees) for each number of chunks in which trees may beat the incumbent.

    - `shares`: Share of the sums rooted at each rank; None for the problem's own roots.

    The candidates are the number with which trees reach the optimal throughput, powers of two below it, and
    its multiples by powers of two; or the search's own numbers, if no others are allowed. Candidates whose
    estimated finish is far behind the best are skipped, unless they are quick to try.
    """
    whole = search.problem
    num_chunks, optimum, parts, is_shared = whole.collective.num_chunks, Fraction(0), 1, False
    for phase in split(whole):
        network, counts = network_of(phase.problem), tree_counts(phase.problem)
        if network is None or counts is None:
            return
        if shares is not None:
            counts = np.array(shares) * math.lcm(*(share.denominator for share in shares))
            counts = counts.astype(np.int64)
        time_per_unit, enough = trees_per_chunk(network, counts)
        total = int(counts.sum())
        units = phase.problem.costs.chunk_units[0] * Fraction(num_chunks, total)
        optimum += phase.problem.costs.us(1) * time_per_unit * units
        enough = math.lcm(enough * total, num_chunks) // num_chunks
        parts, is_shared = math.lcm(parts, enough), is_shared or min(network.share) < 1
    num_sends = num_chunks * whole.topology.num_ranks
    if num_sends > _MOST_SENDS:
        return
    most = max(1, min(_MOST_SENDS // num_sends, *whole.chunk_bytes)) if search.is_open else 1
    suggesting = search.parameters.suggesting
    numbers = _numbers(parts, most)
    if suggesting.counts_only and search.is_open:
        numbers = sorted(count for count in suggesting.counts if count <= most)
    # Quick candidates are yielded one by one, before estimates of the others are compared.
    few = _FEW_SENDS * (whole.topology.num_ranks <= _MOST_RANKS)
    quick = [count for count in numbers if num_sends * count <= few]
    for some in (*([count] for count in quick), numbers[len(quick) :]):
        problems = [whole if count == 1 else cut(whole, count) for count in some]
        times = [_busy_and_filling(_phases(each, shares)) for each in problems]
        most_us = _FAR * min((busy + filling for busy, filling in times), default=Fraction(0))
        for problem, (busy, filling) in zip(problems, times, strict=True):
            if busy + filling <= most_us and busy < search.finish:
                described = _described(problem, busy, optimum, parts * whole.collective.chunks_per_rank)
                described += ", for equal shares of what ranks share" * is_shared
                if shares is not None:
                    described += f", with roots at {sum(map(bool, shares))} of {len(shares)} ranks"
                yield with_note_on_chunks(problem) if problem is not whole else whole, described


def _phases(problem: Problem, shares: Shares | None) -> tuple[Phase, ...]:
    """Phases of a problem, with its sums rooted at ranks by `shares`; None for the problem's own roots."""
    return split(problem if shares is None else with_roots(problem, shares))


def _busy_and_filling(phases: Sequence[Phase]) -> tuple[Fraction, Fraction]:
    """(time that trees occupy the busiest resource, estimated time to fill the pipeline), in microseconds."""
    busy = filling = Fraction(0)
    for phase in phases:
        network, counts, costs = network_of(phase.problem), tree_counts(phase.problem), phase.problem.costs
        assert network is not None and counts is not None, "the problem in whole chunks has both"
        units = int(costs.chunk_units[0])
        busy += costs.us(least_time(network, counts, units)[0])
        slowest = int((network.alpha + units * network.beta).max() + costs.link_alpha.max())
        filling += _HOPS * costs.us(slowest)
    return busy, filling


def _described(problem: Problem, least: Fraction, optimum: Fraction, enough: int) -> str:
    """Number of trees per rank, and their throughput relative to the optimum, as text.

    - `enough`: Trees per rank that reach the optimum; 0 if unknown.
    """
    trees = f"{format_count(problem.collective.chunks_per_rank, 'tree')} per rank"
    if least <= optimum * (1 + _ROUNDED):
        return f"{trees}, throughput-optimal"
    above = format_gap(float(least / optimum - 1)) if optimum else "latency"
    if enough and problem.collective.chunks_per_rank % enough == 0:
        return f"{trees}, throughput-optimal except for latency, which adds {above}"
    said = f"{trees}, {above} above the optimum without latency"
    return f"{said} (reached by {format_count(enough, 'tree')} per rank)" if enough else said


def _numbers(parts: int, most: int) -> list[int]:
    """Numbers of parts per chunk to try, ascending, up to `most`.

    - `parts`: The number with which trees reach the optimal throughput; 0 if unknown.
    """
    powers = [1 << i for i in range(most.bit_length())]
    multiples = [parts * each for each in powers if 0 < parts * each <= most]
    return sorted({*multiples, *(each for each in powers if not multiples or each < parts)})


def _are_compiled(problem: Problem) -> bool:
    """True if the kernels that compute and verify schedules along trees are compiled."""
    loop = accept_trees if problem.collective.combining else accept_copies
    return all(map(is_compiled, (flow_up_to, largest_shortfall, send_along, compiled_loop(loop))))


def _compiled(search: Search) -> bool:
    """Compile the kernels, if necessary, by solving a problem of two ranks; true if they are compiled.

    The compilation is recorded as a stage of the search.
    """
    if _are_compiled(search.problem):
        return True
    since, limit_s = time.monotonic(), _COMPILE_SHARE * search.deadline.left_s
    name = "allreduce" if search.problem.collective.combining else "allgather"
    pair = make_problem(ring(2), make(name, 2), chunk_bytes=1)

    def run_once() -> None:
        found = along_trees(pair)
        assert found is not None, "two ranks in a ring have trees"
        compile_verifier(found)

    search.report("compiling kernels once")
    try:
        search.deadline.sooner(limit_s).run(run_once)
    except OutOfTime:
        search.record("kernels", "compiled", "no-solution", since, message="not compiled in time")
        return False
    search.record("kernels", "compiled", "done", since, message="compiled once")
    return True


def along_trees(
    problem: Problem, limits: Limits = Limits(), *, shares: Shares | None = None, gapless: bool = False
) -> Schedule | None:
    """Schedule of a problem in its own chunks along packed spanning trees; None without such trees.

    - `shares`: Share of the sums rooted at each rank, for an allreduce; None for the problem's own roots.
    - `gapless`: True for a schedule that can be repeated at the rate of its busiest resource; the result is
      None if none is found.

    Raises
    ------
    OutOfTime
        If it was stopped.
    """
    phases = _phases(problem, shares)
    hops = tree_hops(phases)
    if hops is None:
        return None
    send = send_without_gaps if gapless else send_in_turn
    sends = send(hops, limits)
    # Switches that some links share evenly may also serve few of them: either may end sooner.
    few = tree_hops(phases, evenly=False) if hops.is_even and not limits.deadline.has_passed else None
    other = None if few is None else send(few, limits)
    if few is not None and other is not None and (sends is None or other.finish_ticks < sends.finish_ticks):
        hops, sends = few, other
    if sends is None and gapless:
        return None
    if sends is None:
        raise OutOfTime("stopped before there was a schedule along trees")
    is_whole = len(phases) > 1  # both phases in one run
    found = hops.schedule(problem if is_whole else phases[0].problem, sends)
    joined = found if is_whole else join(problem, [found], retimed=False)
    return joined if joined.num_transfers > MANY else joined.in_order()
