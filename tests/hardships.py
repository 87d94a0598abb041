"""Hardships that tests put processes through: folders that they may not write, and files that they cannot fill."""

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
    """As `preexec_fn`: permissions of files hold for the new process, even if root starts it."""
    if os.geteuid() == 0:
        for capability in (_OVERRIDE_PERMISSIONS, _READ_ANYTHING):
            if ctypes.CDLL(None).prctl(_DROP_FROM_BOUNDING_SET, capability, 0, 0, 0):
                os._exit(99)


def no_file_above(num_bytes: int) -> Callable[[], None]:
    """As `preexec_fn`: no file grows beyond so much, as on a disk that is full.

    No bytecode is written either: Python 3.11 keeps what it could write of it, which no later process can read.
    """

    def limit() -> None:
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))

    return limit
