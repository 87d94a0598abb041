"""What a bound is a bound of: the chunks that a problem has, or every cut of its data into chunks.

A finish that meets the bound of its problem is the best in these chunks. Only one that meets the bound of
every cut is the best there is under the costs of the topology.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.certificates.certificate import Certificate
from taccl.problem import Problem, make_problem
from taccl.topology.transform import rescaled
from taccl.units import format_us

#: Seconds for arguments beyond latency; and the multiple of them after which the search for a bound ends.
_BUDGET_S, _LIMIT_TIMES = 1.0, 2.0
#: With more pairs of chunks and links none is looked for.
_MOST_MOVES = 100_000_000
#: Bounds that differ by more than this part are both told.
_WORTH_TELLING = Fraction(1, 100)


def bound_of_every_cut(bound: Certificate, *, budget_s: float = _BUDGET_S) -> Certificate | None:
    """Bound of the same problem over all chunkings; None where it would take too long.

    It is found once, in about `budget_s` seconds. Padding to whole bytes does not count, since another
    chunking pads less.
    """
    problem = bound.problem
    if bound.divisible:
        return bound
    if problem.collective.num_chunks * len(problem.topology.links) > _MOST_MOVES:
        return None
    key = f"{__name__}.bound_of_every_cut, in_network={bound.in_network}"
    if key not in problem.cache:
        problem.cache[key] = lower_bound(
            _unpadded(problem), divisible=True, in_network=bound.in_network, budget_s=budget_s,
            limit_s=_LIMIT_TIMES * budget_s,
        )  # fmt: skip
    found: Certificate = problem.cache[key]
    return found


def stronger(bound: Certificate, every: Certificate | None) -> Certificate:
    """The larger of a problem's bound and its bound over all chunkings, which holds for its chunks, too."""
    return bound if every is None or every.bound <= bound.bound else every


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
