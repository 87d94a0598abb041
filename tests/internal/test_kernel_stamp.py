"""Stamps of kernels: an edit recompiles the kernels that it can change, and no others."""

import importlib
import shutil
import sys

import pytest

from taccl._internal import kernel_cache, kernels
from taccl._internal.kernel_stamp import StampedFunction
from taccl.synthesis.kernels import ruin_kernel
from taccl.synthesis.kernels.improvement_kernel import improve
from taccl.synthesis.kernels.spreading_kernel import spread_chunks

LOWER = '''
from typing import NamedTuple

from taccl._internal.kernels import inner

FACTOR, TABLE = 2, (3, 4)


class Pair(NamedTuple):
    a: int
    b: int


class Outer(NamedTuple):
    pair: Pair


@inner
def deepest(x, by=1):
    """Docstring."""
    return x + by


@inner
def deep(x):
    return deepest(x) * 10
'''
UPPER = """
import lower
from lower import TABLE, deep
from taccl._internal.kernels import compiled


def adding(y):
    def add(x):
        return x + y

    add.__qualname__ = "add"
    return compiled(add)


add = adding(5)


@compiled
def call(x):
    return deep(x)


@compiled
def scale(x):
    return x * lower.FACTOR


@compiled
def look_up(x):
    return x + TABLE[0]


@compiled
def subtract(pair):
    return pair.a - pair.b


@compiled
def read(outer):
    return outer.pair.a


@compiled
def alone(x):
    return x - 1
"""
NAMES = {"add", "call", "scale", "look_up", "subtract", "read", "alone"}


@pytest.fixture
def load(tmp_path_factory, monkeypatch):
    """Function that imports the modules of a folder as a new process would."""
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setattr("numba.config.CACHE_DIR", "")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def loaded(folder):
        with monkeypatch.context() as patch:
            patch.syspath_prepend(folder)
            for name in ("lower", "upper"):
                monkeypatch.delitem(sys.modules, name, raising=False)
            return importlib.import_module("upper")

    yield loaded
    for name in ("lower", "upper"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def answers(upper):
    """{name: result} of all kernels."""
    given = {"read": upper.lower.Outer(upper.lower.Pair(a=7, b=8)), "subtract": upper.lower.Pair(4, 12)}
    return {name: getattr(upper, name)(given.get(name, 4)) for name in NAMES}


@pytest.fixture(scope="module")
def compiled_folder(tmp_path_factory):
    """Folder of the modules `lower` and `upper`, in which their kernels are compiled once."""
    folder = tmp_path_factory.mktemp("compiled")
    (folder / "lower.py").write_text(LOWER)
    (folder / "upper.py").write_text(UPPER)
    return folder


@pytest.fixture
def folder(compiled_folder, load, tmp_path):
    """Copy of the two modules with compiled kernels, which the first test compiles."""
    expected = {"add": 9, "call": 50, "scale": 8, "look_up": 7, "subtract": -8, "read": 7, "alone": 3}
    assert answers(load(compiled_folder)) == expected
    return shutil.copytree(compiled_folder, tmp_path / "copy")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        pytest.param("x + by", "x - by", {"call": 30}, id="callee of a callee"),
        pytest.param("by=1", "by=2", {"call": 60}, id="default value"),
        pytest.param("(x, by=1)", "(x, most=9, by=1)", {"call": 50}, id="signature of a callee"),
        pytest.param("@inner\ndef deep(", "@inner(allocates=True)\ndef deep(", {"call": 50}, id="option"),
        pytest.param("FACTOR, TABLE = 2,", "FACTOR, TABLE = 3,", {"scale": 12}, id="constant of a module"),
        pytest.param("FACTOR, TABLE = 2,", "FACTOR, TABLE = 2.0,", {"scale": 8.0}, id="type of a constant"),
        pytest.param("(3, 4)", "(5, 4)", {"look_up": 9}, id="constant tuple"),
        pytest.param("adding(5)", "adding(6)", {"add": 10}, id="closure"),
        pytest.param("    a: int\n    b: int", "    b: int\n    a: int", {"subtract": 8, "read": 7}, id="order of fields"),
        pytest.param("    b: int", "    b: int\n    c: int = 0", {"subtract": -8, "read": 7}, id="new field"),
        pytest.param("alone(x)", "alone(x, y=3)", {"alone": 3}, id="signature"),
        pytest.param("x - 1", "x - 2", {"alone": 2}, id="code of a kernel"),
        pytest.param("    return x - 1", "    # Comment.\n    return x - 1", {}, id="comment"),
        pytest.param("Docstring.", "Other docstring.", {}, id="docstring"),
        pytest.param("FACTOR, TABLE", "UNUSED = 1\n\n\nFACTOR, TABLE", {}, id="moved lines"),
    ],
)  # fmt: skip
def test_an_edit_recompiles_the_kernels_that_reach_it(folder, load, old, new, changed):
    """An edit recompiles only the kernels that use the edited code; the others are loaded from the cache.

    `is_compiled` distinguishes the two before any kernel is loaded.
    """
    assert LOWER.count(old) + UPPER.count(old) == 1
    for name, source in (("lower", LOWER), ("upper", UPPER)):
        (folder / f"{name}.py").write_text(source.replace(old, new))
    upper = load(folder)
    kept = {name for name in NAMES if kernels.is_compiled(getattr(upper, name))}
    found = answers(upper)
    hits = {name for name in NAMES if sum(getattr(upper, name).stats.cache_hits.values())}
    assert kept == hits == NAMES - changed.keys()
    assert {name: found[name] for name in changed} == changed


@pytest.mark.slow
def test_another_version_of_numba_recompiles_all_kernels(folder, load, monkeypatch):
    """Code that another version of numba compiled is not run."""
    for module in (kernels, kernel_cache):
        monkeypatch.setattr(module, "compiler_versions", lambda: ("another", "version", "here"))
    upper = load(folder)
    assert not any(kernels.is_compiled(getattr(upper, name)) for name in NAMES)
    assert (upper.alone(4), upper.alone.stats.cache_hits) == (3, {})


def test_a_kernel_of_the_search_reaches_its_constants_and_no_other_kernel_does(monkeypatch):
    """A constant of ruin and recreate changes the stamp of its kernel, but not of the list scheduler's."""
    before = improve.stamp, spread_chunks.stamp
    monkeypatch.setattr(ruin_kernel, "NONE", -2)
    after = improve.stamp, spread_chunks.stamp
    assert (before[0] != after[0], before[1] == after[1]) == (True, True)


def test_a_value_that_a_stamp_does_not_cover_is_refused():
    """A kernel that uses a value of an unsupported type is refused, as changes of the value would go
    unnoticed."""
    unsupported = object()
    with pytest.raises(TypeError, match="of a type that its stamp does not support"):
        StampedFunction(lambda: unsupported, {}).stamp  # noqa: B018
