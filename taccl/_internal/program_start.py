"""Start of this program, and the delay of a task by the load of the machine before it began."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from taccl._internal.deadline import run_times

#: (`delay_s`, `late_s`) of the current task; see `delayed`.
_DELAYS_S: ContextVar[tuple[float, float]] = ContextVar("delays_s", default=(0.0, 0.0))


@contextmanager
def delayed(began_s: float, late_s: float = 0.0) -> Iterator[None]:
    """Context of a task whose time limit counts from `began_s`, the start of this program.

    Its `delay_s` is then the time since, as far as this thread waited for a core.

    - `late_s`: Seconds by which the time limit of the task exceeds that of the program.
    """
    times = run_times()
    waited_s = 0.0 if times is None else times[1] / 1e9
    token = _DELAYS_S.set((min(waited_s, time.monotonic() - began_s), late_s))
    try:
        yield
    finally:
        _DELAYS_S.reset(token)


def delay_s() -> float:
    """Seconds for which a busy machine delayed the start of the current task; 0 outside `delayed`."""
    return _DELAYS_S.get()[0]


def late_s() -> float:
    """Seconds by which the current task's time limit exceeds that of the program; 0 outside `delayed`."""
    return _DELAYS_S.get()[1]


def process_began_s() -> float:
    """Approximate start of this program on the clock of `time.monotonic`: now minus run and waiting time.

    The kernel's start time of the process is not used, as it may be that of a shell that replaced itself by
    this program (``exec``).
    """
    now_s = time.monotonic()
    times = run_times()
    return now_s - (time.process_time() if times is None else sum(times) / 1e9)
