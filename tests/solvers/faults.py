"""Tasks that fail on purpose, to test that a worker process contains the failure."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

if TYPE_CHECKING:
    from taccl.solvers.child import Control

__all__ = ["abort", "echo", "exhaust_memory", "fail", "leave", "linger", "overrun", "print_natively", "stall"]


def echo(payload: dict[str, Any], control: Control) -> dict[str, Any]:
    """The payload, and the worker's process number."""
    return {"payload": payload, "pid": os.getpid()}


def abort(payload: dict[str, Any], control: Control) -> NoReturn:
    """Abort by a signal, as a native library may."""
    os.abort()


def leave(payload: dict[str, Any], control: Control) -> NoReturn:
    """End the process with an exit code."""
    os._exit(payload["code"])


def fail(payload: dict[str, Any], control: Control) -> NoReturn:
    """Raise a Python exception."""
    raise RuntimeError("this drill always fails")


def exhaust_memory(payload: dict[str, Any], control: Control) -> dict[str, Any]:
    """Allocate `payload["megabytes"]` MB of memory (MB is 10**6 bytes)."""
    return {"bytes": np.ones(payload["megabytes"] * 10**6 // 8).nbytes}


def linger(payload: dict[str, Any], control: Control) -> dict[str, Any]:
    """Report progress until asked to stop or out of time, then return the count."""
    count = 0
    while not control.stop_requested() and control.time_left_s() > 0:
        count += 1
        control.progress({"count": count, "values": np.arange(count)})
        time.sleep(0.05)
    return {"count": count, "stopped": control.stop_requested()}


def overrun(payload: dict[str, Any], control: Control) -> NoReturn:
    """Report progress once, then ignore every limit."""
    control.progress({"count": 1})
    while True:
        time.sleep(0.05)


def stall(payload: dict[str, Any], control: Control) -> NoReturn:
    """Ignore every limit, without progress."""
    while True:
        time.sleep(0.05)


def print_natively(payload: dict[str, Any], control: Control) -> dict[str, Any]:
    """Write to file descriptors 1 and 2, as native code does."""
    os.write(1, b"printed on 1\n")
    os.write(2, b"printed on 2\n")
    return {}
