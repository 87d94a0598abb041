"""Known solvers, their workers, and their availability on this machine."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

from taccl._internal.names import did_you_mean
from taccl.errors import InputError
from taccl.solvers.worker import Outcome, run_task

PULP_PREFIX = "pulp:"
_INFO_TIME_S = 30.0

# name -> (worker family, module that drives it)
_SOLVERS = {
    "highs": ("highs", "highs"),
    "scip": ("ortools", "scip"),
    "cbc": ("pulp", "cbc"),
    "gurobi": ("gurobi", "gurobi"),
    "cpsat": ("ortools", "cpsat"),
}
_THROUGH_PULP = ("pulp", "pulp_solver")


@dataclass(frozen=True, slots=True)
class SolverInfo:
    """One solver, as installed on this machine.

    - `name`: Name for `taccl.solvers.solver.solve`.
    - `licence`: A few words on the licence it would run under.
    - `licence_ends`: ISO date, where the licence has an end.
    - `why_not`: Why it is not available.
    """

    name: str
    available: bool
    version: str | None = None
    licence: str | None = None
    licence_ends: str | None = None
    why_not: str | None = None


def known_solvers() -> tuple[str, ...]:
    """The names that can be solved with; any ``pulp:NAME`` that PuLP knows comes on top."""
    return tuple(_SOLVERS)


def require_known(name: str, *, others: Sequence[str] = (), where: str = "solver") -> None:
    """Raise InputError, with the nearest name, unless `name` is known, here or not.

    A name after ``pulp:`` is looked up in PuLP's own list, which a worker reads once. Without PuLP any name
    passes: the solver is then unavailable.

    - `others`: Further names that the caller admits, listed with the solvers.
    - `where`: The argument that the name came from.
    """
    if name.lower() in (PULP_PREFIX, PULP_PREFIX[:-1]) and (here := _names_of_pulp("availability")):
        raise InputError(
            f"found {name!r}; of PuLP's solvers there are {', '.join(here)}: give one", where=where
        )
    if name.startswith(PULP_PREFIX) and name != PULP_PREFIX:
        known = _names_of_pulp("known")
        if known and name.lower() not in {each.lower() for each in known}:
            said = f"PuLP knows {', '.join(known)}{did_you_mean(name, known)}"
            raise InputError(f"found {name!r}; {said}", where=where)
    elif name not in _SOLVERS:
        names = (*others, *_SOLVERS)
        said = f"expected one of {', '.join(names)}, or pulp:NAME for PuLP's solvers"
        raise InputError(f"found {name!r}; {said}{did_you_mean(name, names)}", where=where)


@functools.cache
def _names_of_pulp(which: Literal["known", "availability"]) -> tuple[str, ...]:
    """Every ``pulp:NAME`` that PuLP knows, or that is available; none if PuLP is not installed."""
    outcome = run_task("pulp", f"taccl.solvers.pulp_solver:{which}", {}, time_limit_s=_INFO_TIME_S)
    if outcome.status == "interrupted":
        raise KeyboardInterrupt
    return tuple(each["name"] for each in (outcome.result or {}).get("solvers", ()))


def solver_task(name: str) -> tuple[str, str]:
    """The worker family of a solver of a known name, and the function that runs it, as ``"module:name"``."""
    family, module = _SOLVERS.get(name, _THROUGH_PULP)
    return family, f"taccl.solvers.{module}:run"


def solver_infos() -> tuple[SolverInfo, ...]:
    """Every known solver, and those of PuLP's others that are installed (as ``pulp:NAME``).

    The libraries are loaded in workers, not here.
    """
    kinds = {**_SOLVERS, PULP_PREFIX: _THROUGH_PULP}

    def availability(of: tuple[str, str]) -> Outcome:
        return run_task(of[0], f"taccl.solvers.{of[1]}:availability", {}, time_limit_s=_INFO_TIME_S)

    with ThreadPoolExecutor(len(kinds)) as pool:
        outcomes = list(pool.map(availability, kinds.values()))
    found: list[dict[str, Any]] = []
    for name, outcome in zip(kinds, outcomes, strict=True):
        result = outcome.result or {"message": outcome.message}
        why_not = [{"name": name, "why_not": result.get("message")}] if name in _SOLVERS else []
        found += result.get("solvers", why_not)
    return tuple(SolverInfo(available="why_not" not in info, **info) for info in found)
