"""A rank whose peers do not answer ends at its time limit."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

RANK = """
import time
from taccl.runtime import worker
worker._LOOK_EVERY_S = 0.05
worker.GRACE_S = 0.1
with worker.Watchdog() as guard:
    guard.expect("waiting for the others", {limit})
    time.sleep({sleep})
"""


def test_what_takes_too_long_ends_the_process():
    """A phase that exceeds its limit of 0.2 s and 0.1 s of grace ends the process; the message names both."""
    code = RANK.format(limit=0.2, sleep=60)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert "waiting for the others did not end within 0.3 s" in done.stderr


def test_what_ends_in_time_is_left_alone():
    """A phase that ends in time prints nothing."""
    code = RANK.format(limit=30, sleep=0.2)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
