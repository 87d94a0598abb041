"""The backends that `synthesize` can use: which are there, in what version, licensed until when."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata

from taccl._internal.html import table as html_table
from taccl._internal.names import table
from taccl.solvers.registry import SolverInfo, solver_infos

OWN_BACKENDS = ("auto", "greedy", "dimension-balanced")
_HEAD = ("backend", "available", "version", "note")
_PACKAGES = ("taccl", "highspy", "ortools", "gurobipy", "pulp", "numpy")


@dataclass(frozen=True, slots=True)
class Backends:
    """A table of backends; iterate it for `SolverInfo` rows, print it to read it."""

    rows: tuple[SolverInfo, ...]

    def __iter__(self) -> Iterator[SolverInfo]:
        return iter(self.rows)

    def __repr__(self) -> str:
        return table([_HEAD, *self._cells])

    def _repr_html_(self) -> str:
        return html_table(_HEAD, self._cells)

    @property
    def _cells(self) -> list[tuple[str, ...]]:
        """A row for each backend, under `_HEAD`."""
        cells: list[tuple[str, ...]] = []
        for row in self.rows:
            until = f"until {row.licence_ends}" if row.licence_ends else None
            note = row.why_not or ", ".join(filter(None, (row.licence, until)))
            cells.append((row.name, "yes" if row.available else "no", row.version or "-", note))
        return cells


def backends() -> Backends:
    """Every backend by name: the portfolio, the list scheduler, and each solver that is known."""
    version = _version("taccl")
    own = [
        SolverInfo("auto", True, version, "a portfolio of greedy, highs and cpsat", None, None),
        SolverInfo("greedy", True, version, "the list scheduler alone", None, None),
        SolverInfo("dimension-balanced", True, version, "chunks balanced over dimensions", None, None),
    ]
    return Backends((*own, *solver_infos()))


def package_versions() -> dict[str, str]:
    """The versions of taccl, Python and of the packages that solve."""
    versions = {name: _version(name) for name in _PACKAGES}
    return {"python": platform.python_version()} | {n: v for n, v in versions.items() if v is not None}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
