"""Backends of `synthesize`: this package's own and the solvers, with workers, versions and licences."""

from __future__ import annotations

import functools
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from taccl._internal.html import table as html_table
from taccl._internal.names import did_you_mean, table
from taccl.errors import InputError
from taccl.solvers.worker import Outcome, run_task

PULP_PREFIX = "pulp:"
_INFO_TIME_S = 30.0

# {solver: (worker family, module in `taccl.solvers`)}.
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
    """A solver as installed on this machine.

    - `name`: Name for `taccl.solvers.solver.solve`.
    - `licence`: Short description of the licence under which it runs.
    - `licence_ends`: ISO date, None if the licence does not end.
    - `why_not`: Reason that it is not available; None if it is.
    """

    name: str
    available: bool
    version: str | None = None
    licence: str | None = None
    licence_ends: str | None = None
    why_not: str | None = None


def known_solvers() -> tuple[str, ...]:
    """Names of the solvers; in addition, any ``pulp:NAME`` that PuLP supports can be used."""
    return tuple(_SOLVERS)


def require_known(name: str, *, others: Sequence[str] = (), where: str = "solver") -> None:
    """Raise `InputError`, with the most similar name, unless `name` is a known solver, installed or not.

    A name after ``pulp:`` is looked up in PuLP's list, which a worker reads once. Without PuLP any such name
    passes, and the solver is reported as unavailable later.

    - `others`: Further names that the caller accepts, listed with the solvers.
    - `where`: Argument that the name came from, for messages.
    """
    if name.lower() in (PULP_PREFIX, PULP_PREFIX[:-1]) and (here := _names_of_pulp("availability")):
        raise InputError(f"found {name!r}; expected one of {', '.join(here)}", where=where)
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
    """Names ``pulp:NAME`` of all solvers that PuLP supports, or of installed ones; empty without PuLP."""
    outcome = run_task("pulp", f"taccl.solvers.pulp_solver:{which}", {}, time_limit_s=_INFO_TIME_S)
    if outcome.status == "interrupted":
        raise KeyboardInterrupt
    return tuple(each["name"] for each in (outcome.result or {}).get("solvers", ()))


def solver_task(name: str) -> tuple[str, str]:
    """Worker family of a known solver, and the function that runs it, as ``"module:name"``."""
    family, module = _SOLVERS.get(name, _THROUGH_PULP)
    return family, f"taccl.solvers.{module}:run"


def solver_infos() -> tuple[SolverInfo, ...]:
    """Information on every known solver, and on each installed solver of PuLP (as ``pulp:NAME``).

    The libraries are loaded in workers, not in this process.
    """
    from concurrent.futures import ThreadPoolExecutor

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


OWN_BACKENDS = ("auto", "greedy", "dimension-balanced")
_HEAD = ("backend", "available", "version", "note")
_PACKAGES = ("taccl", "highspy", "ortools", "gurobipy", "pulp", "numpy")


@dataclass(frozen=True, slots=True)
class Backends:
    """Table of backends; iterate over it for `SolverInfo` rows, or print it."""

    rows: tuple[SolverInfo, ...]

    def __iter__(self) -> Iterator[SolverInfo]:
        return iter(self.rows)

    def __repr__(self) -> str:
        return table([_HEAD, *self._cells])

    def _repr_html_(self) -> str:
        return html_table(_HEAD, self._cells)

    @property
    def _cells(self) -> list[tuple[str, ...]]:
        """One row of text for each backend, in the columns of `_HEAD`."""
        cells: list[tuple[str, ...]] = []
        for row in self.rows:
            until = f"until {row.licence_ends}" if row.licence_ends else None
            note = row.why_not or ", ".join(filter(None, (row.licence, until)))
            cells.append((row.name, "yes" if row.available else "no", row.version or "-", note))
        return cells


def backends() -> Backends:
    """All backends: this package's own, and every known solver."""
    version = _version("taccl")
    own = [
        SolverInfo("auto", True, version, "a portfolio of greedy, cpsat and local search", None, None),
        SolverInfo("greedy", True, version, "baselines and list schedulers, no solver", None, None),
        SolverInfo(
            "dimension-balanced", True, version, "per-dimension phases with balanced loads", None, None
        ),
    ]
    return Backends((*own, *solver_infos()))


def package_versions() -> dict[str, str]:
    """{package: version} of Python, taccl and the solver packages."""
    versions = {name: _version(name) for name in _PACKAGES}
    return {"python": platform.python_version()} | {n: v for n, v in versions.items() if v is not None}


@functools.cache  # reading the metadata takes 3 ms a package
def _version(package: str) -> str | None:
    from importlib import metadata  # imported here, as the import takes 0.05 s

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
