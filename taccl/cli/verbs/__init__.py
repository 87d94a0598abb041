"""The verbs, one module each: ``add(verb)`` declares its options, ``run(options)`` answers.

What `run` says of itself is the help of the verb, which ends with ``EXAMPLES``. Everything heavy is imported
inside it.
"""

from __future__ import annotations

#: In the order in which ``taccl --help`` lists them.
VERBS = (
    "synthesize", "verify", "show", "simulate", "bound", "explain", "suggest", "baseline", "convert", "run",
    "plan", "fit", "probe", "reorder", "backends", "compare", "sweep", "cache", "plot", "report",
)  # fmt: skip
