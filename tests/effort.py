"""How much work something is: for tests of how work grows, as none asserts seconds."""

from __future__ import annotations

import time
import timeit
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def cpu_s(work: Callable[[], object]) -> float:
    """The least CPU of three times that some work takes this thread, to be compared with that of other work.

    As `timeit` does, without the garbage collector, which looks at all that earlier tests left.
    """
    return min(timeit.repeat(work, timer=time.thread_time, repeat=3, number=1))
