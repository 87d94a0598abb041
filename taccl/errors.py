"""Every exception and warning that taccl raises on purpose.

An `InputError` says what, where, found against expected, and what to do next, in one sentence.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

from taccl._internal.names import shown, shown_lines


class TacclError(Exception):
    """Base of every error that taccl raises on purpose; control characters of names are shown escaped."""

    def __init__(self, message: str = "") -> None:
        super().__init__(shown_lines(message))


#: Characters of a message, and of a place: names and paths may be of any length.
_MOST, _MOST_WHERE = 4000, 400


class InputError(TacclError, ValueError):
    """An argument or a file cannot be used.

    Parameters
    ----------
    message : str
        What was found, against what was expected, and what to do.
    where : str, optional
        ``"file: field"`` or the argument at fault; it leads the printed message.
    """

    def __init__(self, message: str, *, where: str | None = None) -> None:
        self.where = where if where is None else shown(where, _MOST_WHERE)
        self.message = shown(message, _MOST)
        super().__init__(f"{self.where}: {self.message}" if where else self.message)


class TopologyError(InputError):
    """A topology, or the file it came from, is wrong."""


class SketchError(InputError):
    """A communication sketch is wrong, or does not fit its topology or collective."""


class CollectiveError(InputError):
    """A collective, its chunks or its sizes are wrong."""


class FormatError(InputError):
    """A file cannot be read, or is not in the format it should be in."""


class WorkloadError(InputError):
    """A step, one of its operations, or a transformation of it is wrong; `where` names the operation."""


class SolverError(TacclError, RuntimeError):
    """A solver failed."""


class SolverUnavailableError(SolverError):
    """A known solver is not installed, or its licence does not admit the model."""


class InfeasibleError(SolverError):
    """No schedule exists for the problem.

    Parameters
    ----------
    conflict : sequence of str
        The clauses that clash, as far as they are known.
    """

    def __init__(self, message: str, *, conflict: Sequence[str] = ()) -> None:
        self.conflict = tuple(conflict)
        super().__init__(message)


class NoSolutionError(SolverError):
    """The search stopped with no schedule in hand.

    Parameters
    ----------
    bound_us : float, optional
        A proven lower bound on the finish time, if one is known.
    """

    def __init__(self, message: str, *, bound_us: float | None = None) -> None:
        self.bound_us = bound_us
        super().__init__(message)


class VerificationError(TacclError):
    """A schedule breaks the rules; `violations` lists how."""

    def __init__(self, message: str, *, violations: Sequence[object] = ()) -> None:
        self.violations = tuple(violations)
        super().__init__(message)


class ExportError(TacclError):
    """A format cannot hold what was asked of it."""


class ExecutionError(TacclError):
    """A program did not run to its end."""


class TacclWarning(UserWarning):
    """Base of every warning that taccl gives; control characters of names and paths are shown escaped."""

    def __init__(self, message: str) -> None:
        super().__init__(shown_lines(message))


class AssumptionWarning(TacclWarning):
    """An import assumed, dropped or guessed part of a machine that its file does not state."""


class CacheWarning(TacclWarning):
    """A stored result cannot be used, or a result cannot be stored."""


class FallbackWarning(TacclWarning):
    """Something other than what was asked for was used instead."""


class LossyConversionWarning(TacclWarning):
    """A conversion could not keep everything."""


class NumericsWarning(TacclWarning):
    """A number was rounded, padded or is badly scaled."""


def warn(message: str, category: type[TacclWarning]) -> None:
    """Warn at the caller's line outside taccl, however deep the cause is."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "taccl":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
