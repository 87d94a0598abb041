"""The launcher of ranks survives broken pipes, and raises errors of its ranks."""

import json

import pytest

from taccl.errors import ExecutionError, InputError
from taccl.runtime.launch import launched


@pytest.mark.slow
def test_a_broken_pipe_does_not_end_the_launcher():
    """A launcher that writes to a process that has ended goes on, and its ranks' report arrives."""
    script = """kill -PIPE $$; echo '{"report": {"ok": true}}'"""
    report = launched("none", 1, {}, timeout_s=60, launcher=["sh", "-c", script])
    assert report == {"ok": True}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "where", "raised", "text"),
    [
        ("InputError", "hosts", InputError, "hosts: found none"),
        ("Unknown", None, ExecutionError, "found none"),
    ],
)
def test_an_error_of_rank_0_is_raised(kind, where, raised, text):
    """An error that ends the task at rank 0 is raised as it was there, with its location."""
    report = json.dumps({"failure": {"kind": kind, "message": "found none", "where": where}})
    with pytest.raises(raised) as caught:
        launched("none", 1, {}, timeout_s=60, launcher=["sh", "-c", f"echo '{report}'"])
    assert (type(caught.value), str(caught.value)) == (raised, text)
