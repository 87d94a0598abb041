"""What all tests share."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.fuzzing import MANY, TRIED

_PROJECT = Path(__file__).resolve().parents[1]


def pytest_configure() -> None:
    """Let Ctrl-C reach tests that send it: a shell has what it starts in the background ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real input files: TACCL_TEST_DATA, or ``../shared/data`` beside the project."""
    named = os.environ.get("TACCL_TEST_DATA")
    folder = Path(named) if named else _PROJECT.parent / "shared" / "data"
    if not folder.is_dir():
        reason = f"no test data at {folder}; set TACCL_TEST_DATA to the folder of real input files"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return folder


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    """Keep results that tests compare out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TACCL_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item):
    """Note with each test how many random cases it tried."""
    before = TRIED.copy()
    try:
        return (yield)
    finally:
        item.user_properties += [("fuzz", [name, tried]) for name, tried in (TRIED - before).items()]


def pytest_terminal_summary(terminalreporter) -> None:
    """With TACCL_MANY=1: a table of what was tried, and how many tests of it failed."""
    if not MANY:
        return
    tried, failed = Counter(), Counter()
    for report in [r for kind in ("passed", "failed") for r in terminalreporter.stats.get(kind, [])]:
        for name, count in [value for key, value in report.user_properties if key == "fuzz"]:
            tried[name] += count
            failed[name] += report.failed
    terminalreporter.section("random cases")
    for name, count in sorted(tried.items()):
        terminalreporter.line(f"| {name} | {count:,} | {failed[name] or 'none'} |")
    terminalreporter.line(f"| all | {sum(tried.values()):,} | {sum(failed.values()) or 'none'} |")
