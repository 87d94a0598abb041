"""How `taccl synthesize` cuts the data of a person who gave a size, and neither a sketch nor chunks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import taccl
from taccl.errors import InputError
from taccl.units import format_count

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from taccl.problem import Problem

__all__ = ["suggested"]

#: The part of the time limit that is spent on suggestions, and how much at most.
_SHARE, _MOST_S = 0.3, 20.0


def suggested(
    problem: Problem,
    options: argparse.Namespace,
    progress: Callable[[str, float | None, float | None], None] | None,
) -> tuple[Problem, str | taccl.SketchProposal]:
    """The problem in as many chunks as the best suggested sketch asks for, and that sketch.

    A problem that is cut as its options say stays as it is; what is suggested for it is then left to
    `taccl.synthesize`, unless options forbid it.
    """
    from taccl.synthesis.suggesting.guided import is_unguided

    if options.no_sketch:
        return problem, "none"
    cut = options.sketch is not None or options.size is None or options.chunks_per_rank is not None
    cut |= problem.topology.cost_model == "upstream"  # whose costs are for one size of chunks
    alone = options.backend != "auto" or options.summary or options.spill is not None
    if cut or alone or not is_unguided(problem):
        return problem, "auto"
    try:
        found = taccl.suggest_sketches(
            problem.topology,
            options.collective,
            options.size,
            root=options.root,
            roots=options.roots,
            most=1,
            time_limit_s=min(_MOST_S, _SHARE * options.time_limit),
            seed=options.seed,
            progress=progress,
        )
    except InputError:  # what a sketch cannot speak of; synthesis says what is wrong with the rest
        return problem, "none"
    if not found:
        return problem, "none"
    collective = found[0].problem.collective
    again = taccl.make_problem(problem.topology, collective, size_bytes=problem.size_bytes)
    cut_into = format_count(collective.chunks_per_rank, "chunk")
    note = f"cut into {cut_into} a rank, which bound and gap are for; --chunks-per-rank gives another number"
    return replace(again, notes=(*again.notes, note)), found[0]
