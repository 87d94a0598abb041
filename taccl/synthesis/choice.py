"""Which of the searches is to run: by the effort that each would take, within the time there is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taccl.synthesis.large import effort, why_not
from taccl.synthesis.timing_group import timing_group

if TYPE_CHECKING:
    from taccl.problem import Problem

__all__ = ["choose"]

#: Problems with more moves than this, once folded, are left to the compiled list scheduler; and so are those
#: with more than so many for each second of the time limit, unless they have few.
_MOST_MOVES, _MOVES_PER_S, _FEW_MOVES = 200_000, 50_000, 100_000


def choose(problem: Problem, backend: str, time_limit_s: float) -> tuple[bool, str]:
    """Whether only the compiled list scheduler would end in time; and what runs, with the figures why.

    Effort is counted in moves, chunks times links, of which a symmetry leaves one of each orbit.
    """
    if backend not in ("auto", "greedy"):
        return False, f"{backend}, as asked"
    own = "the portfolio" if backend == "auto" else "the list scheduler"
    most = int(round(min(_MOST_MOVES, max(_FEW_MOVES, _MOVES_PER_S * time_limit_s)), -3))
    moves = effort(problem)
    if moves <= most:
        return False, f"{own}: {moves} moves, at most {most}"
    folded = moves // timing_group(problem).counted
    size = f"about {moves:.2g} moves, {folded:.2g} of them once folded by symmetry"
    if folded <= most:
        return False, f"{own}: {size}, at most {most}"
    unknown = why_not(problem)
    if unknown:
        return False, f"{own}, slowly: {size}; the compiled list scheduler does not know {unknown}"
    reached = f"{_MOST_MOVES} that models reach"
    if folded <= _MOST_MOVES:
        reached = f"{most} that models reach in {time_limit_s:.2g} s"
    return True, f"the compiled list scheduler: {size}, more than the {reached}"
