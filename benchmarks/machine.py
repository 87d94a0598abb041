"""What results were measured on, in one line."""

from __future__ import annotations

import os
import platform

__all__ = ["machine"]


def machine() -> str:
    """The cores this process may use, the kind of processor and system, and the version of Python."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores} cores, {platform.machine()}, {platform.system()}, Python {platform.python_version()}"
