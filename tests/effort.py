"""How much work something is: for tests of how work grows, as none asserts seconds."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def cpu_s(work: Callable[[], object]) -> float:
    """The least CPU of three times that some work takes this thread, to be compared with that of other work."""
    taken = []
    for _ in range(3):
        began = time.thread_time()
        work()
        taken.append(time.thread_time() - began)
    return min(taken)
