"""The table of proposers: all that the library asks for a schedule of a problem, in order."""

from __future__ import annotations

from taccl.problem.problem import Problem
from taccl.synthesis.budget import Turn, run
from taccl.synthesis.improve.improvement import is_quick, suits_improvement
from taccl.synthesis.proposers.balanced import BALANCED, search_balanced
from taccl.synthesis.proposers.competing import competing_s, is_small, offer_baselines
from taccl.synthesis.proposers.stages import ruin_and_recreate, search_plain
from taccl.synthesis.proposing import OwnProposer, registered
from taccl.synthesis.search import Search
from taccl.synthesis.suggesting.sketched_search import is_unguided, search_guided
from taccl.synthesis.transforms.exchange import exchange_s, offer_exchanged
from taccl.synthesis.transforms.fused import offer_fused

#: Share of the time kept for ruin and recreate without a sketch, which leaves models few hops.
_SKETCHED_SHARE = 0.3


def _competes(search: Search) -> bool:
    """True if baselines compete: with the library's own searches, and not with a solver alone."""
    return search.backend in ("auto", "greedy")


def _is_free(search: Search) -> bool:
    """True if anything may be tried: for the portfolio, of which all sends are kept."""
    return search.backend == "auto" and search.options.keeps_sends


def _is_guided(search: Search) -> bool:
    """True if the search goes on under sketches that were proposed, or are to be suggested."""
    is_long = search.limit_s >= search.parameters.choice.compiling_s
    may_suggest = _is_free(search) and search.options.sketch == "auto" and (is_long or not search.is_large)
    return bool(search.proposals) or (may_suggest and is_unguided(search.problem, search.parameters))


def _is_plain(search: Search) -> bool:
    return search.backend != BALANCED and not _is_guided(search)


def _improving_s(search: Search) -> float:
    """Seconds kept for ruin and recreate; 0 where it does not run."""
    is_meant = _is_free(search) and suits_improvement(search.problem) and not _too_short(search)
    share = search.parameters.budget.improve_share if _is_guided(search) else _SKETCHED_SHARE
    return is_meant * share * search.limit_s


def _too_short(search: Search) -> str:
    """The reason why there is no time for ruin and recreate; empty if there is."""
    if is_quick(search.limit_s, search.parameters):
        return ""
    return f"its kernels are not compiled, and {search.limit_s:.2g} s do not suffice for that"


def _baselines_first(search: Search) -> None:
    offer_baselines(search, search.parameters.portfolio.baseline_share)


def _baselines_last(search: Search) -> None:
    share = search.parameters.portfolio.baseline_share if _improving_s(search) else 1.0
    offer_baselines(search, share)


def _competing_s(search: Search) -> float:
    """Seconds kept for baselines, beyond those that improvement leaves."""
    most_s = search.parameters.budget.improve_share * search.deadline.left_s
    needed_s = min(competing_s(search.problem, most_s, search.parameters), most_s)
    return max(0.0, needed_s - _improving_s(search))


def _exchanging_s(search: Search) -> float:
    return exchange_s(search.problem, search.deadline.left_s, search.parameters)


def _balanced(search: Search) -> None:
    """The schedule along dimensions, and the bound."""
    search_balanced(search, policy=search.options.policy)
    search.look_for_bound()


def _offer_registered(search: Search) -> None:
    """Ask the proposers of users, each with its share of the time."""
    share = search.parameters.portfolio.registered_share
    run(search, [Turn(each, share=share) for each in registered()])


def _has_chunks(problem: Problem) -> bool:
    return problem.collective.chunks_per_rank > 1


def _sums_up(problem: Problem) -> bool:
    return problem.collective.sums_up


#: The proposers for a whole problem, in order. Phases of a reduction are searched by `stages.STAGES`.
PROPOSERS: tuple[Turn, ...] = (
    Turn(
        OwnProposer("chunks as one", offer_fused, _has_chunks),
        lambda search: _competes(search) and search.options.keeps_sends,
        runs_late=True,
    ),
    Turn(OwnProposer("baselines", _baselines_first, is_small), _competes, runs_late=True),
    Turn(OwnProposer("registered", _offer_registered), _is_free),
    Turn(
        OwnProposer("dimension-balanced", _balanced),
        lambda search: search.backend == BALANCED,
        runs_late=True,
    ),
    Turn(
        OwnProposer("suggested sketches", search_guided),
        lambda search: search.backend != BALANCED and _is_guided(search),
        runs_late=True,
    ),
    Turn(OwnProposer("search", search_plain), _is_plain, runs_late=True),
    Turn(
        OwnProposer("baselines", _baselines_last, lambda problem: not is_small(problem)),
        _competes,
        reserve_s=_competing_s,
        runs_late=True,
    ),
    Turn(
        OwnProposer("ruin and recreate", ruin_and_recreate, suits_improvement),
        _is_free,
        _too_short,
        _improving_s,
        improves=True,
    ),
    Turn(
        OwnProposer("exchange", offer_exchanged, _sums_up),
        lambda search: search.most_earliest > 0,
        reserve_s=_exchanging_s,
        runs_late=True,
    ),
)


def propose_all(search: Search) -> None:
    """Ask every proposer of the table in turn."""
    can_exchange = search.backend == "auto" and _sums_up(search.problem)
    is_exchanging = can_exchange and _exchanging_s(search) > 0
    search.most_earliest = search.parameters.portfolio.exchanged if is_exchanging else 0
    run(search, PROPOSERS)
