"""Which solvers there are, which worker runs each, and what this machine has of them."""

from __future__ import annotations

import difflib
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from taccl.errors import InputError
from taccl.solvers.worker import run_task, start_task

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["SolverInfo", "known_solvers", "require_known", "solver_family", "solver_function", "solver_infos"]

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


@dataclass(frozen=True, slots=True)
class SolverInfo:
    """One solver, as this machine has it.

    Attributes
    ----------
    name : str
        What `taccl.solvers.solver.solve` takes.
    available : bool
    version : str or None
    licence : str or None
        A few words on the licence it would run under.
    licence_ends : str or None
        ISO date, where the licence has an end.
    why_not : str or None
        Why it is not available.
    """

    name: str
    available: bool
    version: str | None
    licence: str | None
    licence_ends: str | None
    why_not: str | None


def known_solvers() -> tuple[str, ...]:
    """The names that can be solved with; any ``pulp:NAME`` that PuLP knows comes on top."""
    return tuple(_SOLVERS)


def require_known(name: str, *, others: Sequence[str] = (), where: str = "solver") -> None:
    """Raise InputError, with the nearest name, unless `name` is known, here or not.

    What comes after ``pulp:`` is looked up in PuLP's own list, which a worker reads once. Without PuLP any
    name passes: the solver is then unavailable.

    Parameters
    ----------
    others : sequence of str
        What the caller admits besides, to be listed with the solvers.
    where : str
        The argument that the name came from.
    """
    if name in _SOLVERS:
        return
    if name.startswith(PULP_PREFIX) and len(name) > len(PULP_PREFIX):
        known = _names_of_pulp()
        if known and name.lower() not in {each.lower() for each in known}:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InputError(f"found {name!r}; PuLP knows {', '.join(known)}{hint}", where=where)
        return
    names = (*others, *_SOLVERS)
    near = difflib.get_close_matches(name.lower(), names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise InputError(
        f"found {name!r}; expected one of {', '.join(names)}, or pulp:NAME for PuLP's solvers{hint}",
        where=where,
    )


@functools.cache
def _names_of_pulp() -> tuple[str, ...]:
    """Every ``pulp:NAME``; none if PuLP is not installed."""
    outcome = run_task("pulp", "taccl.solvers.pulp_solver:known", {}, time_limit_s=_INFO_TIME_S)
    if outcome.status == "interrupted":
        raise KeyboardInterrupt
    names = (outcome.result or {}).get("names")
    return tuple(f"{PULP_PREFIX}{name}" for name in names or ())


def solver_family(name: str) -> str:
    """The worker family that runs a solver of a known name."""
    return "pulp" if name.startswith(PULP_PREFIX) else _SOLVERS[name][0]


def solver_function(name: str) -> str:
    """The function that a worker calls to run a solver of a known name, as ``"module:name"``."""
    module = "pulp_solver" if name.startswith(PULP_PREFIX) else _SOLVERS[name][1]
    return f"taccl.solvers.{module}:run"


def solver_infos() -> tuple[SolverInfo, ...]:
    """Every known solver, and those of PuLP's others that are installed (as ``pulp:NAME``).

    The libraries are loaded in workers, not here.
    """
    modules: dict[tuple[str, str], list[str]] = {("pulp", "pulp_solver"): []}
    for name, place in _SOLVERS.items():
        modules.setdefault(place, []).append(name)
    tasks = {
        place: start_task(place[0], f"taccl.solvers.{place[1]}:availability", {}, time_limit_s=_INFO_TIME_S)
        for place in modules
    }
    found: list[dict[str, Any]] = []
    for place, task in tasks.items():
        outcome = task.wait()
        assert outcome is not None
        if outcome.result is not None:
            found += outcome.result["solvers"]
        else:
            found += [{"name": name, "why_not": outcome.message} for name in modules[place]]
    order = {name: index for index, name in enumerate(_SOLVERS)}
    found.sort(key=lambda info: (order.get(info["name"], len(order)), info["name"]))
    return tuple(
        SolverInfo(
            name=info["name"],
            available=info.get("why_not") is None,
            version=info.get("version"),
            licence=info.get("licence"),
            licence_ends=info.get("licence_ends"),
            why_not=info.get("why_not"),
        )
        for info in found
    )
