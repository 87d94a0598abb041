"""Ranks end when the holder of their guard pipe ends, for any reason."""

import os
import subprocess
import sys
import time

import pytest

from taccl.runtime.parent_death_guard import MARK, guarded, marked, remove_segments

STARTER = """
import sys, time
from pathlib import Path
from taccl.runtime.parent_death_guard import guarded
with guarded(Path(sys.stdin.readline().strip())):
    print("up", flush=True)
    time.sleep(60)
"""
#: A rank that ignores everything, and a child process that it started.
RANK = "import subprocess, time; subprocess.Popen(['sleep', '60']); time.sleep(60)"


def rank_in(folder):
    """Start a process that is marked, by an environment variable, as a rank of the job in a folder."""
    return subprocess.Popen([sys.executable, "-c", RANK], env={**os.environ, MARK: str(folder)})


@pytest.mark.slow
def test_ranks_end_with_the_process_that_started_them(tmp_path):
    """If the process that started a rank is killed, the rank ends and its folder is removed."""
    folder = tmp_path / "job"
    folder.mkdir()
    command = [sys.executable, "-c", STARTER]
    starter = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    starter.stdin.write(f"{folder}\n")
    starter.stdin.flush()
    assert starter.stdout.readline() == "up\n"
    rank = rank_in(folder)
    with pytest.raises(subprocess.TimeoutExpired):
        rank.wait(0.2)
    assert rank.pid in marked(folder)
    starter.kill()
    starter.communicate()
    assert rank.wait(20) == -9
    late = rank_in(folder)
    assert late.wait(20) == -9
    until = time.monotonic() + 20
    while folder.exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not folder.exists()


@pytest.mark.slow
def test_marked_processes_end_when_the_guard_is_closed(tmp_path):
    """Closing the guard ends a marked rank and its children and removes the folder; other processes stay."""
    folder = tmp_path / "job"
    folder.mkdir()
    other = rank_in(tmp_path)
    with guarded(folder):
        rank = rank_in(folder)
        while len(marked(folder)) < 2:
            time.sleep(0.01)
    assert rank.wait(1) == -9
    assert not marked(folder)
    assert not folder.exists()
    assert other.poll() is None
    for pid in marked(tmp_path):
        os.kill(pid, 9)
    other.wait()


def test_segments_are_removed(tmp_path):
    """Shared-memory segments are removed if they exist, and skipped if they are missing."""
    there = tmp_path / "segment"
    there.write_text("")
    remove_segments([str(there), str(tmp_path / "gone")])
    assert not there.exists()
