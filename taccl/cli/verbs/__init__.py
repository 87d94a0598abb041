"""The verbs, one module each: ``add(verbs)`` declares its options, ``run(options)`` answers.

Everything heavy is imported inside `run`.
"""

from __future__ import annotations

__all__ = ["VERBS"]

#: In the order in which ``taccl --help`` lists them; the module of ``check-sketch`` is ``check_sketch``.
VERBS = (
    "synthesize",
    "verify",
    "show",
    "simulate",
    "bound",
    "explain",
    "suggest",
    "baseline",
    "convert",
    "run",
    "plan",
    "backends",
    "compare",
    "sweep",
    "cache",
    "plot",
    "report",
)
