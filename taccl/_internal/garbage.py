"""Rare garbage collections during work that allocates many objects."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Allocations between garbage collections. Python's 700 would cost a fifth of the time of large topologies,
#: and a quarter of that of baselines.
COLLECT_EVERY = 100_000


@contextmanager
def rarely_collected() -> Iterator[None]:
    """Context in which garbage is collected after `COLLECT_EVERY` allocations.

    Nothing changes if collection is off, or the caller's threshold is higher.
    """
    before = gc.get_threshold()
    if not 0 < before[0] < COLLECT_EVERY:
        yield
        return
    own = (COLLECT_EVERY, *before[1:])
    gc.set_threshold(*own)
    try:
        yield
    finally:
        if gc.get_threshold() == own:
            gc.set_threshold(*before)
