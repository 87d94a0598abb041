"""``taccl warmup``."""

import importlib.util
from pathlib import Path

import pytest

import taccl.cli.verbs.installation
from taccl.synthesis.proposers import compiling


@pytest.mark.slow
def test_what_was_compiled_and_where_it_is_kept(run, run_json, monkeypatch):
    """The output has the CPU time of compilation, or says that all kernels were compiled already."""
    monkeypatch.setattr(compiling, "compile_every", lambda: 18.25)
    code, values = run_json("warmup")
    assert (code, values["cpu_s"]) == (0, 18.25)
    assert run("warmup")[1].startswith(f"kernels compiled in 18.2 s of CPU, kept in {values['folder']}")
    monkeypatch.setattr(compiling, "compile_every", lambda: 0.0)
    assert run("warmup")[1].startswith("kernels compiled already, kept in ")


def test_bytecode_is_kept_where_python_keeps_none(run_json, monkeypatch):
    """A module without bytecode on disk is compiled and counted."""
    monkeypatch.setattr(compiling, "compile_every", lambda: 0.0)
    run_json("warmup")
    kept = Path(importlib.util.cache_from_source(taccl.cli.verbs.installation.__file__))
    kept.unlink()
    code, values = run_json("warmup")
    assert (code, values["modules"], kept.exists()) == (0, 1, True)
