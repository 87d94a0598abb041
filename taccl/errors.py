"""All exceptions and warnings that taccl raises on purpose.

The message of an `InputError` says in one sentence what was found where, what was expected, and what to do.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

from taccl._internal.names import shown, shown_lines


class TacclError(Exception):
    """Base of all errors that taccl raises on purpose; control characters in messages are escaped."""

    def __init__(self, message: str = "", *, remedy: str = "") -> None:
        self.reason = shown_lines(message)  # the message without a remedy
        super().__init__(shown_lines(f"{message}; {remedy}" if remedy else message))


#: `_MOST`: max characters of a message, as names and paths in it may be of any length.
#: `_MOST_WHERE`: max characters of an error's `where`, which may also contain names and paths.
_MOST, _MOST_WHERE = 4000, 400
#: Modules whose frames a warning passes over.
_OWN = ("taccl", "functools", "contextlib")


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
        self.where = where if where is None else shown(where, _MOST_WHERE) or "''"  # an empty path is shown
        self.message = shown(message, _MOST)
        super().__init__(self.message if where is None else f"{self.where}: {self.message}")


class TopologyError(InputError):
    """A topology, or the file it came from, is wrong."""


class SketchError(InputError):
    """A communication sketch is wrong, or does not fit its topology or collective."""


class CollectiveError(InputError):
    """A collective, its chunks or its sizes are wrong."""


class FormatError(InputError):
    """A file cannot be read, or is not in the format it should be in."""


class WorkloadError(InputError):
    """A workload step, one of its operations, or a transformation is wrong; `where` names the operation."""


class SolverError(TacclError, RuntimeError):
    """A solver failed."""


class SolverUnavailableError(SolverError):
    """A known solver is not installed, or its licence does not allow a model of this size."""


class InfeasibleError(SolverError):
    """No schedule exists for the problem.

    Parameters
    ----------
    conflict : sequence of str
        The sketch's clauses that contradict each other, as far as they are known.
    """

    def __init__(self, message: str, *, conflict: Sequence[str] = ()) -> None:
        self.conflict = tuple(conflict)
        super().__init__(message)


class NoSolutionError(SolverError):
    """The search stopped before it found a schedule.

    Parameters
    ----------
    bound_us : float, optional
        A proven lower bound on the finish in microseconds, if one is known.
    """

    def __init__(self, message: str, *, bound_us: float | None = None) -> None:
        self.bound_us = bound_us
        super().__init__(message)


class VerificationError(TacclError):
    """A schedule or a program is wrong; `violations` lists its faults."""

    def __init__(self, message: str, *, violations: Sequence[object] = ()) -> None:
        self.violations = tuple(violations)
        super().__init__(message)


class ExportError(TacclError):
    """A schedule, a program or another object cannot be represented in the requested file format.

    Its `reason` says what the format lacks. The message may add a remedy: options of another conversion.
    """


class ExecutionError(TacclError):
    """A program could not be started, or did not complete."""


class TacclWarning(UserWarning):
    """Base of all warnings of taccl; control characters in names and paths are escaped."""

    def __init__(self, message: str) -> None:
        super().__init__(shown_lines(message))


class AssumptionWarning(TacclWarning):
    """An import assumed values that a machine's file lacks, or left out parts of the machine.

    - `brief`: The number of assumptions, and one of them; the message also says where all are listed.
    - `assumed`: All assumptions.
    """

    def __init__(self, brief: str, assumed: Sequence[str] = ()) -> None:
        self.brief, self.assumed = shown_lines(brief), tuple(assumed)
        listed = " (`assumed` of the topology or this warning lists them)" if len(assumed) > 1 else ""
        super().__init__(f"{brief}{listed}")


class CacheWarning(TacclWarning):
    """A stored result cannot be used, or a result cannot be stored."""


class FallbackWarning(TacclWarning):
    """Something other than requested was used, such as another backend or the stock collective."""


class LossyConversionWarning(TacclWarning):
    """A conversion lost some information."""


class NumericsWarning(TacclWarning):
    """Times are not exact: costs were rounded, a profile has no latencies, or a fit is far off."""


def warn(message: str | TacclWarning, category: type[TacclWarning] = TacclWarning) -> None:
    """Issue a warning at the line that called into taccl, however deep the call stack is.

    Frames of functools and contextlib between frames of taccl, as of a cached property, count as taccl's.
    """
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _OWN:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
