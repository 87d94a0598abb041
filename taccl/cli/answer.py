"""What a verb has to say, and how errors become it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from taccl.errors import InputError, SolverUnavailableError, TacclError

EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130
_EXIT_OWN_FAULT = 70
_EXIT_CODES = ((InputError, EXIT_BAD_INPUT), (SolverUnavailableError, 3), (TacclError, 1))


@dataclass(frozen=True, slots=True)
class Answer:
    """What a verb has to say: as text, as plain values, as an exit code, and as a complaint on stderr."""

    text: str
    values: dict[str, Any]
    exit_code: int = 0
    complaint: str = ""


def judged(text: str, values: dict[str, Any], complaint: str) -> Answer:
    """An answer that is yes without a complaint, and no with one."""
    return Answer(text, values, 1 if complaint else 0, complaint)


def explained(error: Exception, *, where: str | None = None) -> Answer:
    """What an error says to a person, with its exit code; `where` replaces the error's own."""
    for kind, code in _EXIT_CODES:
        if isinstance(error, kind):
            where = where or getattr(error, "where", None)
            return failed(getattr(error, "message", str(error)), code, where=where)
    return failed(
        f"a fault of taccl's own ({type(error).__name__}: {error}); set TACCL_TRACEBACK=1 to see where, "
        "and report it",
        _EXIT_OWN_FAULT,
    )


def failed(message: str, code: int, *, where: str | None = None) -> Answer:
    """An answer that is a complaint and no more."""
    values = {"error": message, "where": where, "exit_code": code}
    return Answer("", values, code, f"{where}: {message}" if where else message)
