"""Share of a core that this thread gets on a busy machine, and the start of this process."""

from __future__ import annotations

import os
import threading
import time

#: Times for which the calling thread ran and waited for a core, in ns; seconds that it ran between two looks.
_RUN_TIMES, _LEAST_RUN_S = "/proc/thread-self/schedstat", 0.2


def busy_factor() -> float:
    """About how many seconds on the clock a second of work takes, by the load of the machine; at least 1.

    Linux tells how long the calling thread ran and how long it waited for a core; the factor is of its last
    work. Other platforms tell the load of the last minute, or none, and then count as idle.
    """
    try:
        with open(_RUN_TIMES, encoding="ascii") as file:
            ran_ns, waited_ns, _ = map(int, file.read().split())
    except (OSError, ValueError):
        return _load_factor()
    ran_s, waited_s = (ran_ns - _seen.ran_ns) / 1e9, (waited_ns - _seen.waited_ns) / 1e9
    if ran_s >= _LEAST_RUN_S:
        _seen.ran_ns, _seen.waited_ns = ran_ns, waited_ns
        _Seen.factor = _seen.factor = 1 + waited_s / ran_s
    return _seen.factor


class _Seen(threading.local):
    """Run time of a thread, its wait for a core, and the factor of these, when it last looked.

    A thread that has done little work has the factor of the thread that looked last.
    """

    ran_ns, waited_ns, factor = 0, 0, 1.0


_seen = _Seen()


def _load_factor() -> float:
    """The factor by the load of the last minute."""
    try:
        load = os.getloadavg()[0]
    except (AttributeError, OSError):
        return 1.0
    return max(1.0, load / (os.cpu_count() or 1))


def process_began_s() -> float:
    """About the start of this program on the clock of `time.monotonic`: before it ran and waited for a core.

    The kernel's start time of a process is not used: it may be that of a shell that ran other commands first,
    and then made way for this one (``exec``).
    """
    now_s = time.monotonic()
    try:
        with open(_RUN_TIMES, encoding="ascii") as file:
            ran_ns, waited_ns, _ = map(int, file.read().split())
    except (OSError, ValueError):
        return now_s - time.process_time()
    return now_s - (ran_ns + waited_ns) / 1e9
