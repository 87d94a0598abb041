"""Ranks end with whoever holds the pipe that guards them, however that ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

from taccl.runtime.parent_death_guard import held, processes_naming, remove_segments

RANK = """
import sys, time
from pathlib import Path
from taccl.runtime.parent_death_guard import end_with
end_with(Path(sys.argv[1]))
print("up", flush=True)
time.sleep(60)
"""


def rank_in(folder) -> subprocess.Popen:
    """A process that holds on to the pipe in a folder."""
    return subprocess.Popen([sys.executable, "-c", RANK, str(folder)], stdout=subprocess.PIPE, text=True)


def test_lets_go(tmp_path):
    """A rank lives as long as the line is held, ends when it is let go, and takes the folder with it."""
    folder = tmp_path / "job"
    folder.mkdir()
    with held(folder):
        rank = rank_in(folder)
        assert rank.stdout.readline() == "up\n"
        with pytest.raises(subprocess.TimeoutExpired):
            rank.wait(0.2)
        assert rank.pid in processes_naming(folder)
    assert rank.wait(10) == 1
    assert not folder.exists()


def test_nobody_holds_it_any_more(tmp_path):
    """A rank that starts too late ends at once, whether the line is still there or not."""
    with held(tmp_path):
        pass
    assert rank_in(tmp_path).wait(10) == 1
    assert rank_in(tmp_path / "nowhere").wait(10) == 1


def test_segments_are_removed(tmp_path):
    """Those that are there."""
    there = tmp_path / "segment"
    there.write_text("")
    remove_segments([str(there), str(tmp_path / "gone")])
    assert not there.exists()
