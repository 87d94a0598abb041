"""One rank that ``taccl probe`` started: ``python -m taccl.placement.worker REQUEST.json`` under mpiexec."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from taccl.placement.measuring import probe_on_rank
from taccl.runtime.worker import serve

if TYPE_CHECKING:
    from collections.abc import Callable

    from taccl.runtime.watchdog import Watchdog

__all__ = ["main"]


def main(path: str) -> int:
    """Play one rank's part in the probe that a file asks for; returns the exit code."""

    def task(
        communicator: Any,
        request: Callable[[], dict[str, Any]],
        watchdog: Watchdog,
        note: Callable[[str], None],
    ) -> dict[str, Any]:
        return probe_on_rank(communicator, request(), note=note, expect=watchdog.expect)

    return serve(path, task)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
