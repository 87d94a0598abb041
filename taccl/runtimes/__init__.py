"""Runtimes that execute schedules: those of the library, and those that users register.

>>> from taccl.runtimes import Launch, Runtime, register
>>> register(Runtime("mine", launch=Launch(3.0, "measured on our cluster")))  # doctest: +SKIP
"""

from taccl.runtimes.registry import register, registered, unregister
from taccl.runtimes.runtime import Launch, PlanFiles, RunReport, Runtime, ServedSizes

__all__ = [
    "Launch", "PlanFiles", "RunReport", "Runtime", "ServedSizes", "register", "registered", "unregister",
]  # fmt: skip
