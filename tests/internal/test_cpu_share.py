"""The share of a core that this thread gets, from the platform's run and wait times."""

import time

import pytest

from taccl._internal import deadline, program_start


@pytest.fixture
def run_times(tmp_path, monkeypatch):
    """Function that sets the seconds for which this thread ran and waited for a core."""
    path = tmp_path / "schedstat"
    monkeypatch.setattr(deadline, "_RUN_TIMES", str(path))
    monkeypatch.setattr(deadline, "_seen", deadline._Seen())
    monkeypatch.setattr(deadline._Seen, "factor", 1.0)
    monkeypatch.setattr(deadline._Seen, "is_known", False)
    return lambda ran_s, waited_s: path.write_text(f"{ran_s * 10**9:.0f} {waited_s * 10**9:.0f} 7\n")


def test_the_busy_factor_is_of_the_last_work(run_times):
    """The busy factor, elapsed time over CPU time, covers the work since the previous call.

    It is 4 for 1 s of work that waits 3 s for a core, and 1 for later work that does not wait.
    """
    run_times(1.0, 3.0)
    assert deadline.busy_factor() == pytest.approx(4.0)
    run_times(2.0, 3.0)
    assert deadline.busy_factor() == pytest.approx(1.0)


def test_the_busy_factor_stays_until_more_work_is_done(run_times):
    """The busy factor keeps its value until enough further work is measured; 0.05 s is not enough."""
    run_times(1.0, 3.0)
    deadline.busy_factor()
    run_times(1.05, 9.0)
    assert deadline.busy_factor() == pytest.approx(4.0)


def test_the_start_of_a_program_tells_how_busy_the_machine_is(run_times):
    """The first busy factor follows from 0.1 s of work, as decisions at the start of a program need it."""
    run_times(0.1, 0.2)
    assert deadline.busy_factor() == pytest.approx(3.0)


def test_without_run_times_the_load_of_the_machine_counts(tmp_path, monkeypatch):
    """Without the kernel's run times the load average counts: 8 tasks on 2 cores give a busy factor of 4."""
    monkeypatch.setattr(deadline, "_RUN_TIMES", str(tmp_path / "none"))
    monkeypatch.setattr("os.getloadavg", lambda: (8.0, 0.0, 0.0))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert deadline.busy_factor() == 4.0


def test_a_program_began_before_it_ran_and_waited(run_times):
    """A program that ran for 0.1 s and waited for 300 s started 300.1 s ago."""
    run_times(0.1, 300.0)
    assert time.monotonic() - program_start.process_began_s() == pytest.approx(300.1, abs=5)


def test_without_run_times_a_program_began_its_cpu_time_ago(tmp_path, monkeypatch):
    """Without the kernel's run times, a program that has used 200 s of CPU is assumed to be 200 s old."""
    monkeypatch.setattr(deadline, "_RUN_TIMES", str(tmp_path / "none"))
    monkeypatch.setattr("time.process_time", lambda: 200.0)
    assert time.monotonic() - program_start.process_began_s() == pytest.approx(200.0, abs=5)


@pytest.mark.parametrize(("waited_s", "began_ago_s", "delay_s"), [(3, 8, 3), (300, 0, 0), (0, 5, 0)])
def test_a_start_is_delayed_while_its_thread_waits_for_a_core(run_times, waited_s, began_ago_s, delay_s):
    """Only waiting since the start counts, so that a long-lived program has no delay."""
    run_times(1.0, waited_s)
    with program_start.delayed(time.monotonic() - began_ago_s, 0.5):
        assert program_start.delay_s() == pytest.approx(delay_s, abs=0.1)
        assert program_start.late_s() == 0.5
    assert program_start.delay_s() == program_start.late_s() == 0
