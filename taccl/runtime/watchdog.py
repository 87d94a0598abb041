"""A guard over a rank: ends its process where another rank, or what started it, is gone."""

from __future__ import annotations

import os
import sys
import threading
import time
from types import TracebackType

#: What anything may take beside its time limit: start, clean up, and report.
GRACE_S = 30.0
_LOOK_EVERY_S = 1.0
_EXIT_CODE = 1


class Watchdog:
    """A thread that ends the process once something takes too long, or its parent process is gone.

    Inside an MPI call nothing else helps: the call returns only if every rank plays its part.
    """

    def __init__(self) -> None:
        self._what, self._until = "", float("inf")
        self._limit_s = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def expect(self, what: str, limit_s: float | None) -> None:
        """Say what comes next, and within which time; None for any."""
        self._what = what
        self._limit_s = float("inf") if limit_s is None else limit_s + GRACE_S
        self._until = time.monotonic() + self._limit_s

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()

    def _watch(self) -> None:
        parent = os.getppid()
        while not self._over.wait(_LOOK_EVERY_S):
            if os.getppid() != parent:
                os._exit(_EXIT_CODE)
            if time.monotonic() > self._until:
                sys.stderr.write(
                    f"taccl: error: {self._what} did not end within {self._limit_s:g} s; another rank may "
                    "have died\n"
                )
                sys.stderr.flush()
                os._exit(_EXIT_CODE)
