"""What all tests share."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

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
