"""Conditions for processes under test: read-only folders and full disks."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_DROP_FROM_BOUNDING_SET, _OVERRIDE_PERMISSIONS, _READ_ANYTHING = 24, 1, 2


def without_privileges() -> None:
    """For `preexec_fn`: apply file permissions to the new process even if root starts it."""
    if os.geteuid() == 0:
        for capability in (_OVERRIDE_PERMISSIONS, _READ_ANYTHING):
            if ctypes.CDLL(None).prctl(_DROP_FROM_BOUNDING_SET, capability, 0, 0, 0):
                os._exit(99)


def no_file_above(num_bytes: int) -> Callable[[], None]:
    """For `preexec_fn`: limit the size of files to `num_bytes`, as on a full disk.

    No bytecode is written either: Python 3.11 keeps partial bytecode, which no later process can read.
    """

    def limit() -> None:
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))

    return limit
