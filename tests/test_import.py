"""``import taccl`` is fast, loads no heavy package, and provides every public name."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import taccl
from taccl._internal import moved
from tests.foreign import OURS

HEAVY = (
    "networkx", "scipy", "ortools", "gurobipy", "pulp", "highspy", "pandas", "rich", "matplotlib", "numba",
    "mpi4py", "pydantic",
)  # fmt: skip


def in_fresh_process(code):
    """Output of code in a new process."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def loaded_by(*commands):
    """Exit code of each command and the packages that were loaded after it, of those named with it.

    All run in one new process.
    """
    code = (
        "import contextlib, io, sys\n"
        "from taccl.cli.command import run\n"
        f"for words, packages in {commands!r}:\n"
        "    with contextlib.redirect_stdout(io.StringIO()):\n"
        "        code = run(words)\n"
        "    print(words[0], code, *[name for name in packages if name in sys.modules])"
    )
    return in_fresh_process(code).splitlines()


def test_nothing_heavy_is_loaded():
    """``import taccl`` loads no slow package."""
    code = f"import sys, taccl; print([name for name in {HEAVY} if name in sys.modules])"
    assert in_fresh_process(code) == "[]"


@pytest.mark.slow
def test_modules_that_are_seldom_needed_are_not_loaded():
    """Ranks of a step load neither baselines nor bounds. The search loads neither predictions of libraries, nor
    explanations of clashes, nor package metadata."""
    step = ("taccl.baselines", "taccl.analysis.certificates.bounds", "taccl.workload.bound")
    search = ("taccl.measure.predict", "taccl.synthesis.explaining", "importlib.metadata")
    code = (
        "import sys, taccl.synthesis.synthesize\n"
        f"print([name for name in {search} if name in sys.modules])\n"
        "for name in [name for name in sys.modules if name.startswith('taccl')]:\n"
        "    del sys.modules[name]\n"
        "import taccl.runtime.step\n"
        f"print([name for name in {step} if name in sys.modules])"
    )
    assert in_fresh_process(code) == "[]\n[]"


@pytest.mark.slow
def test_nothing_heavy_is_loaded_for_problems_and_plans():
    """A problem and a plan without a sketch need no slow package."""
    code = (
        "import sys, taccl\n"
        "topology = taccl.topologies.ndv2(nodes=2)\n"
        "taccl.make_problem(topology, taccl.collectives.allgather(16), chunk_bytes=1)\n"
        "taccl.plan\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    assert in_fresh_process(code) == "[]"


@pytest.mark.slow
def test_small_problems_load_no_compiler():
    """Small problems that need no kernel are solved without numba, SciPy, pydantic or masked arrays.

    A bound loads neither the search nor the baselines, which take 0.4 s of CPU. A comparison whose progress is not
    shown loads neither rich nor pandas.
    """
    heavy = ("numba", "scipy", "networkx", "numpy.ma", "pandas", "pydantic", "rich")
    small = ("--collective", "allgather", "--size", "64KB")
    compared = ("compare", "ring:4", *small, "--chunks-per-rank", "1", "--backends", "greedy", "--no-cache")
    assert loaded_by(
        (("bound", "dgx1", *small), (*heavy, "taccl.baselines", "taccl.synthesis.search")),
        (("synthesize", "dgx1", *small, "--chunks-per-rank", "1"), heavy),
        (("baseline", "best", "ring:4", "--collective", "allreduce", "--size", "64KB"), heavy),
        (compared, ("pandas", "rich")),
    ) == ["bound 0", "synthesize 0", "baseline 0", "compare 0"]


@pytest.mark.slow
def test_imports_of_servers_load_no_tables(tmp_path):
    """The topology of a server loads networkx, but neither pandas nor PyArrow."""
    file, tables = str(OURS / "nvidia-smi" / "square.txt"), ("networkx", "pandas", "pyarrow")
    assert loaded_by((("show", file), tables), (("convert", file, str(tmp_path / "t.toml")), tables)) == [
        "show 0 networkx",
        "convert 0 networkx",
    ]


def test_import_is_fast():
    """The import loads only taccl, few of its modules, and few of the standard library."""
    code = "import sys; before = set(sys.modules); import taccl; print(*set(sys.modules) - before)"
    loaded = in_fresh_process(code).split()
    roots = {name.partition(".")[0] for name in loaded} - {"taccl"}
    assert roots <= sys.stdlib_module_names
    assert len(loaded) < 60


def test_every_name_loads():
    """Every name that the facade lists exists."""
    assert not [name for name in taccl.__all__ if getattr(taccl, name, None) is None]


def test_every_name_is_shown():
    """Tab completion shows every name before it is loaded."""
    shown = in_fresh_process("import taccl; print(set(taccl.__all__) <= set(dir(taccl)))")
    assert shown == "True"


def test_unknown_names_are_refused():
    """A name that the facade lacks is an AttributeError, as of any module."""
    with pytest.raises(AttributeError, match="no attribute 'synthesise'"):
        taccl.synthesise  # noqa: B018


def test_compact_schedule_is_a_deprecated_name():
    """`CompactSchedule` is a deprecated alias of `Schedule`."""
    with pytest.warns(DeprecationWarning, match="use taccl.Schedule"):
        assert taccl.CompactSchedule is taccl.Schedule
    assert "CompactSchedule" not in taccl.__all__


def test_version_is_the_installed_one():
    """``__version__`` is that of the installed package."""
    from importlib.metadata import version

    assert taccl.__version__ == version("taccl")


def test_modules_are_found_at_their_earlier_places():
    """Modules are found at their earlier places for one release, with a warning."""
    with pytest.warns(DeprecationWarning, match="taccl.problem.collective now"):
        from taccl.collective import Chunk
    with pytest.warns(DeprecationWarning, match="taccl.problem.collectives now"):
        from taccl.collectives import allgather
    with pytest.warns(DeprecationWarning, match="taccl.analysis.certificates.throughput now"):
        from taccl.analysis.certificates.node_data import node_data_bounds
    with pytest.warns(DeprecationWarning, match="make_problem is in taccl.problem.making now"):
        from taccl.problem import make_problem
    assert Chunk.__module__ == "taccl.problem.chunks"
    assert allgather is taccl.collectives.allgather
    assert node_data_bounds.__module__ == "taccl.analysis.certificates.throughput"
    assert make_problem.__module__ == "taccl.problem.making"
    with pytest.raises(ImportError, match="no_such_name"):
        from taccl.problem import no_such_name  # noqa: F401


def test_former_places_lead_to_present_ones():
    """A moved module has no file of its own, and it stands for one that has; a moved name is where the table says."""
    package = Path(taccl.__file__).parent
    for former, present in moved._MOVED.items():
        own, file = (
            package.parent.joinpath(*name.split(".")).with_suffix(".py") for name in (former, present)
        )
        assert not own.exists() and file.exists(), former
    for module, names in moved._NAMES.items():
        for former, (place, present) in names.items():
            with pytest.warns(DeprecationWarning, match=f"{former} is {place}.{present} now"):
                found = getattr(import_module(module), former)
            assert found is getattr(import_module(place), present)


def test_what_outside_code_imports_is_found():
    """Imports that earlier pages showed work, with a warning if the place is a former one."""
    with pytest.warns(DeprecationWarning):
        from taccl.formats.msccl_xml import dump_msccl_xml
        from taccl.schedule.compact import CompactSchedule

        from taccl.placement.reorder import Case
        from taccl.topology.topology import TopologyBuilder
        from taccl.workload.step import ComputeTile, Step
    assert TopologyBuilder.__module__ == "taccl.topology.builder" and CompactSchedule is taccl.Schedule
    assert all(map(callable, (dump_msccl_xml, Case, ComputeTile, Step)))
    with pytest.raises(ImportError, match="no_such_name"):
        from taccl.topology.topology import no_such_name  # noqa: F401
