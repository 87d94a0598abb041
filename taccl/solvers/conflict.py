"""Which blocks of rows of an infeasible model clash: an irreducible set of tags, by a deletion filter.

Every row carries a tag. Blocks are left out one after another; a block without which the rest is still
infeasible stays out. What remains clashes as a whole, and no part of it does. Bounds and integrality of
variables always hold. Source: Chinneck and Dravnieks, "Locating Minimal Infeasible Constraint Sets in Linear
Programs", ORSA Journal on Computing 3(2), 1991.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from taccl.errors import NoSolutionError, SolverError, SolverUnavailableError
from taccl.solvers.model import LinearModel, MilpModel
from taccl.solvers.solver import solve

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["Conflict", "smallest_conflict"]


@dataclass(frozen=True, slots=True)
class Conflict:
    """Tags whose rows have no point in common, together with the rows that always hold.

    Parameters
    ----------
    tags : tuple of str
        In the order in which the model first named them.
    irreducible : bool
        Whether the rest has a point without any one of them; False where a solver ran out of time.
    num_solves : int
    seconds : float
    """

    tags: tuple[str, ...]
    irreducible: bool
    num_solves: int
    seconds: float


def smallest_conflict(
    model: MilpModel | LinearModel,
    solver: str = "highs",
    *,
    time_limit_s: float = 60.0,
    keep: Collection[str] = (),
    threads: int = 1,
    seed: int = 0,
    memory_limit_mb: int | None = None,
) -> Conflict | None:
    """An irreducible set of tags whose rows make a model infeasible; None if the model is feasible.

    The model's costs play no part.

    Parameters
    ----------
    solver : str
        One of `taccl.solvers.registry.known_solvers`, or ``pulp:NAME``.
    time_limit_s : float
        Of all solves together. Blocks that were not tried by then are kept.
    keep : collection of str
        Tags whose rows always hold, and which are not part of the answer.
    memory_limit_mb : int, optional
        Of each solver's process.

    Raises
    ------
    SolverUnavailableError
        If the solver is not installed, or not licensed for the model.
    NoSolutionError
        If the solver can neither find a point of the whole model nor rule one out in time.
    KeyboardInterrupt
        If Ctrl-C came.
    """
    since = time.monotonic()
    arrays = model.arrays() if isinstance(model, MilpModel) else model
    arrays = dataclasses.replace(arrays, cost=np.zeros_like(arrays.cost))
    num_solves = 0

    def answer(left_out: Collection[str]) -> str:
        nonlocal num_solves
        left_s = time_limit_s - (time.monotonic() - since)
        if left_s <= 0:
            return "no-solution"
        num_solves += 1
        options = {"threads": threads, "seed": seed, "memory_limit_mb": memory_limit_mb}
        solution = solve(_without(arrays, left_out), solver, time_limit_s=left_s, **options)  # type: ignore[arg-type]
        if solution.status in ("unavailable", "unlicensed"):
            raise SolverUnavailableError(f"{solver} cannot run here: {solution.message}; see taccl backends")
        if solution.status == "interrupted":
            raise KeyboardInterrupt
        return "feasible" if solution.values is not None else solution.status

    whole = answer(())
    if whole == "feasible":
        return None
    if whole == "no-solution":
        raise NoSolutionError(f"{solver} could not tell in {time_limit_s:g} s whether the model is feasible")
    if whole != "infeasible":
        raise SolverError(f"{solver} ended as {whole} where the model is feasible or infeasible")
    irreducible = True
    left_out: list[str] = []
    candidates = [tag for tag in arrays.tag_names if tag not in keep]
    for tag in candidates:
        without = answer((*left_out, tag))
        if without == "infeasible":
            left_out.append(tag)
        elif without != "feasible":
            irreducible = False
    tags = tuple(tag for tag in candidates if tag not in left_out)
    return Conflict(tags, irreducible, num_solves, time.monotonic() - since)


def _without(model: LinearModel, tags: Collection[str]) -> LinearModel:
    """The model without the rows of some tags."""
    rows = ~np.array([name in tags for name in model.tag_names], bool)[model.row_tag]
    sizes = np.diff(model.row_start)
    nonzeros = np.repeat(rows, sizes)
    return dataclasses.replace(
        model,
        row_start=np.concatenate([[0], np.cumsum(sizes[rows])]).astype(np.int64),
        column=model.column[nonzeros],
        coefficient=model.coefficient[nonzeros],
        row_lower=model.row_lower[rows],
        row_upper=model.row_upper[rows],
        row_tag=model.row_tag[rows],
    )
