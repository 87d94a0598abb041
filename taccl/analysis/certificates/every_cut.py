"""What a bound is a bound of: the chunks that a problem has, or every cut of its data into chunks.

A finish that meets the bound of its problem is the best in these chunks. Only one that meets the bound of
every cut is the best there is under the costs of the topology.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.certificates.certificate import Certificate
from taccl.caching import cached
from taccl.problem import Problem, make_problem
from taccl.topology.transform import rescaled
from taccl.units import format_us

#: Seconds for what limits more than latency; and after which what is found will do.
_BUDGET_S, _LIMIT_S = 1.0, 2.0
#: With more pairs of chunks and links none is looked for.
_MOST_MOVES = 100_000_000
#: Bounds that differ by more than this part are both told.
_WORTH_TELLING = Fraction(1, 100)


def bound_of_every_cut(bound: Certificate) -> Certificate | None:
    """The bound of the same problem however its data is cut; found once, None where that takes too long.

    Data that was padded to whole bytes is taken as it was, since another cut pads less.
    """
    problem = bound.problem
    if bound.divisible:
        return bound
    if problem.collective.num_chunks * len(problem.topology.links) > _MOST_MOVES:
        return None
    return _of_every_cut(problem, bound.in_network)


@cached
def _of_every_cut(problem: Problem, in_network: bool) -> Certificate:
    return lower_bound(
        _unpadded(problem), divisible=True, in_network=in_network, budget_s=_BUDGET_S, limit_s=_LIMIT_S
    )


def standing(bound: Certificate, finish: Fraction, every: Certificate | None) -> str:
    """What is proven of a finish, in words: the best of all, the best in these chunks; empty if neither."""
    if finish > bound.bound:
        return ""
    problem, clauses = bound.problem, bound.problem.clauses
    if every is not None and finish <= every.bound:  # which no limit of what merges raises
        is_sketched, words = clauses != clauses.only("merge"), "proven best"
    else:
        default = make_problem(problem.topology, problem.collective, chunk_bytes=problem.chunk_bytes)
        is_sketched, words = clauses != default.clauses, f"best for {bound.scope}"
    words += " for this model" if problem.topology.assumed else ""
    return words + (" under this sketch" if is_sketched or clauses.name else "")


def bound_rows(bound: Certificate, every: Certificate | None) -> list[tuple[str, str]]:
    """A bound in words, by what it is of; and that of every cut, where it is lower by more than 1 %."""
    if every is None or bound.bound <= every.bound * (1 + _WORTH_TELLING):
        return [("bound", f"{format_us(bound.bound)}, limited by {bound.limits}")]
    return [
        ("bound", f"{format_us(bound.bound)} for {bound.scope}, limited by {bound.limits}"),
        ("of every cut", f"{format_us(every.bound)}, limited by {every.limits}"),
    ]


def _unpadded(problem: Problem) -> Problem:
    """The problem with as much less time for every byte as there are bytes of padding."""
    padded = problem.collective.size_chunks * problem.chunk_bytes[0] if problem.chunk_bytes else 0
    if problem.size_bytes is None or not 0 < problem.size_bytes < padded or len(set(problem.chunk_bytes)) > 1:
        return problem
    less = dict.fromkeys(((False, "beta"), (True, "beta")), Fraction(problem.size_bytes, padded))
    topology = rescaled(problem.topology, less)
    return replace(problem, topology=topology, size_bytes=padded)
