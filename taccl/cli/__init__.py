"""The command line: one file per verb, each of which calls one public function; only this package prints.

Exit codes: 0 done; 1 the answer is no (infeasible, a check failed, no schedule found); 2 bad input, or an
answer that cannot be written; 3 a known solver is not installed or not licensed; 70 a fault of taccl's own;
130 Ctrl-C with nothing in hand.
"""

from __future__ import annotations

import os
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code."""
    try:  # whatever takes time to import is imported in here
        if "_ARGCOMPLETE" in os.environ:  # a shell asks how a line may go on
            from taccl.cli.completion import complete

            complete()
        from taccl.cli.command import run

        return run(argv)
    except KeyboardInterrupt:
        return 130
