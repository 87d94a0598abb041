"""The launcher of ranks survives broken pipes."""

import pytest

from taccl.runtime.launch import launched


@pytest.mark.slow
def test_a_broken_pipe_does_not_end_the_launcher():
    """A launcher that writes to a process that has ended goes on, and its ranks' report arrives."""
    script = """kill -PIPE $$; echo '{"report": {"ok": true}}'"""
    report = launched("none", 1, {}, timeout_s=60, launcher=["sh", "-c", script])
    assert report == {"ok": True}
