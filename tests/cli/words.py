"""Command lines shared by the tests."""

from __future__ import annotations

import subprocess
import sys

#: A ring of 4 ranks, on which 4 chunks of 1000 bytes take 0.52 us per hop.
SMALL = ("--topology", "ring:4", "--collective", "allgather", "--size", "4KB")

SKETCH = """
schema = 1
name = "test sketch"
machine = "ndv2"
nodes = 2
[chunks]
size = "1MB"
[internode]
connections = { 0 = [1] }
[[symmetry]]
offset = 8
group = 16
"""


def in_process(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Run one command in a separate process."""
    command = [sys.executable, "-m", "taccl", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)
