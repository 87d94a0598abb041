"""Checks before a search: compatible options, and sums that some rank can make."""

from __future__ import annotations

from taccl.errors import InfeasibleError, InputError, SketchError, TopologyError
from taccl.problem.problem import Problem
from taccl.schedule.schedule import Schedule
from taccl.sketch.reachability import check_reachable, is_possible
from taccl.solvers.registry import OWN_BACKENDS, require_known
from taccl.synthesis.explaining.explain import infeasible
from taccl.synthesis.options import Options
from taccl.synthesis.proposers.competing import obeying
from taccl.synthesis.suggesting.chunks import cut_as
from taccl.synthesis.suggesting.sketched_search import check_proposal
from taccl.synthesis.transforms.requirements import OtherRoots


def check_options(problem: Problem, options: Options) -> None:
    """Raise `InputError` for options that are incompatible with each other or with the problem."""
    backend, sketch = options.backend, options.sketch
    if backend not in OWN_BACKENDS:
        require_known(backend, others=OWN_BACKENDS, where="backend")
    if isinstance(sketch, str):
        if sketch not in ("auto", "none"):
            raise InputError(f"found {sketch!r}; expected 'auto', 'none' or a proposal", where="sketch")
        return
    check_proposal(sketch, cut_as(sketch, problem))
    if backend != "auto" or not options.keeps_sends:
        raise InputError(
            "found a proposal, which guides only the portfolio; leave it out, or give backend='auto' "
            "without keep='summary' (--summary) and spill_dir= (--spill)",
            where="sketch",
        )


def feasible(problem: Problem, time_limit_s: float) -> tuple[OtherRoots | None, Schedule | None]:
    """(transform to other roots or None, schedule or None); both None if sums can be made at their roots.

    If contributions cannot reach a root, other roots are chosen. If no rank can make a sum, the result is a
    schedule with unreduced contributions. Raises `InfeasibleError`, with the clauses that clash, if a sketch
    keeps a chunk from a destination.
    """
    try:
        check_reachable(problem)
    except (SketchError, TopologyError) as error:
        rooted = OtherRoots.apply(problem)
        one_shot = obeying("one-shot", problem) if rooted is None and is_possible(problem) else None
        if rooted is not None or one_shot is not None:
            return rooted, one_shot
        if isinstance(error, TopologyError):
            raise
        raise infeasible(problem, time_limit_s=time_limit_s) or InfeasibleError(str(error)) from None
    return None, None
