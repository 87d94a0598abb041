"""Transformations of steps: refusals that concern several kernels."""

import pytest

from taccl import Workload
from taccl.errors import WorkloadError
from taccl.workload import fuse


def test_kernels_that_wait_for_each_other_are_refused():
    """A fusion is refused if two kernels would wait for each other.

    Each kernel would read a result of the other.
    """
    step = Workload("two kernels", 2).input("x", (4,)).input("y", (4,))
    step = step.then("a", "relu", "x").then("b", "relu", "y")
    step = step.then("c", "multiply", "a", "b").then("d", "multiply", "b", "a")
    once = fuse(step, "a", "c")
    with pytest.raises(WorkloadError, match="the kernels of a and b wait for each other; fuse fewer"):
        fuse(once, "b", "d")
