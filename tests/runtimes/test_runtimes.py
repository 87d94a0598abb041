"""Runtimes as plug-ins: planning, prediction and execution with a registered one, and the table."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import taccl
from taccl.cli import main
from taccl.errors import ExportError, FallbackWarning, InputError
from taccl.explore.plan_runtimes import check_collective, runnable
from taccl.runtimes import Launch, PlanFiles, RunReport, Runtime, register, registered, unregister
from taccl.runtimes.registry import PLUGINS, runtime_named
from taccl.runtimes.runtime import called
from taccl.runtimes.table import RUNTIMES
from tests.effort import brief_plan
from tests.formats.torch.replay import replayed

PAGE = Path(__file__).resolve().parents[2] / "docs" / "runtimes.md"


def why_not(runtime, collective, topology, protocol):
    """Reason why the test's runtime refuses a collective, as it has no broadcast; empty if it accepts."""
    return f"{runtime.title} has no broadcast" if collective.name == "broadcast" and not protocol else ""


def check(runtime, program):
    """Refuse programs with more than 100 steps per threadblock."""
    if max(len(tb.steps) for rank in program.ranks for tb in rank.threadblocks) > 100:
        raise ExportError(f"{runtime.title} holds 100 steps")


def files(runtime, plan):
    """Files of a plan: for each range of sizes its program, in JSON."""
    return PlanFiles.of_ranges(plan, "steps", ".steps", lambda each: json.dumps(each.program.to_dict()))


def run(read, *, sizes, **options):
    """Interpret the program symbolically, and return a report."""
    found = taccl.interpret(read())
    return RunReport(
        f"ran {sizes[0]} bytes", {"ok": found.ok, **options, "note": None}, "" if found.ok else "wrong"
    )


MINE = Runtime(
    "in-python", "the interpreter", protocols=("Simple",), why_not=why_not, check=check, files=files, run=run,
    launch=Launch(2.5, "our choice"),
)  # fmt: skip


@pytest.fixture
def mine():
    """Register a runtime for one test."""
    register(MINE)
    yield MINE
    unregister(MINE.name)


@pytest.fixture(scope="module")
def plan_of_ring():
    """A plan of one size."""
    return brief_plan("ring:3", "allgather", sizes=["4KB"], backend="greedy", baselines=False)


@pytest.mark.slow
def test_a_plan_covers_a_registered_runtime(mine, tmp_path):
    """A plan for a registered runtime has the runtime's files in its index, and a line on the sizes that they
    cover.

    Predicted times include the runtime's launch.
    """
    plan = brief_plan("dgx-a100", "allgather", sizes=["4KB"], backend="greedy", runtime="in-python")
    assert {float(each.schedule.launch) for each in plan.ranges} == {2.5}
    assert {each.protocol for each in plan.ranges} == {"simple"}
    plan.save(tmp_path / "p")
    index = json.loads((tmp_path / "p" / "plan.json").read_text())
    assert index["coverage"] == {"in-python": "in-python: 4KB to 4KB in 1 file, out of place"}
    name = index["ranges"][0]["files"]["steps"]
    program = taccl.Program.from_dict(json.loads((tmp_path / "p" / name).read_text()))
    assert taccl.interpret(program).ok
    plan.save(tmp_path / "p", overwrite=True)
    (tmp_path / "p" / "mine.steps").write_text("mine")
    with pytest.raises(InputError, match=r"'mine\.steps'"):
        plan.save(tmp_path / "p", overwrite=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"a.txt": ""}, "files returned a dict; expected a PlanFiles"),
        (PlanFiles({}, [], []), "files has 0 rows; expected one for each of 1 ranges"),
        (PlanFiles({"../a.txt": ""}, [{}], []), r"files has a file '\.\./a\.txt'; expected a new name"),
        (PlanFiles({"plan.json": ""}, [{}], []), "files has a file 'plan.json'; expected a new name"),
    ],
)
def test_files_that_a_plan_cannot_hold_are_refused(made, said, tmp_path, plan_of_ring):
    """A runtime that writes outside the folder or over the plan's files is refused, and no folder is left."""
    register(Runtime("in-python", "the interpreter", files=lambda runtime, plan: made))
    try:
        with pytest.raises(InputError, match=f"the interpreter: {said}"):
            replace(plan_of_ring, runtimes=("in-python",)).save(tmp_path / "p")
    finally:
        unregister("in-python")
    assert not list(tmp_path.iterdir())


def test_a_run_without_a_report_is_refused(mine, ring_file, capsys):
    """A runtime whose `run` returns no report is refused, with the type that it returned."""
    register(replace(MINE, run=lambda read, **options: None))
    assert main(["run", ring_file, "--engine", "in-python"]) == 2
    assert "the interpreter: run returned a NoneType; expected a RunReport" in capsys.readouterr().err


def test_a_failure_of_its_functions_names_the_runtime(mine, ring_file, capsys):
    """An error in a function of a registered runtime is reported with the runtime, not as an error of taccl."""

    def run(read, **options):
        raise RuntimeError("device lost")

    register(replace(MINE, run=run))
    assert main(["run", ring_file, "--engine", "in-python"]) == 2
    said = "runtime: the interpreter: run failed (RuntimeError: device lost); mend the runtime"
    assert said in capsys.readouterr().err


def _divided(*figures):
    return 1 / 0


@pytest.mark.parametrize(
    ("predict", "said"),
    [
        (_divided, r"predict failed \(ZeroDivisionError: division by zero\); mend the runtime"),
        (lambda *figures: 3.0, "predict returned a float; expected a Prediction"),
        ("no_module_of_mine:predict", r"predict failed \(ModuleNotFoundError: .*\); mend the runtime"),
    ],
)
def test_a_failure_of_its_prediction_names_the_runtime(mine, predict, said):
    """A prediction of a registered runtime that fails, gives another type or is missing names the runtime."""
    register(replace(MINE, launch=Launch(2.5, "our choice", predict=predict)))
    with pytest.raises(InputError, match=f"^runtime: the interpreter: {said}"):
        taccl.predict("dgx-h100", "allreduce", "1KB", runtime="in-python")


def test_unknown_protocols_of_a_runtime_are_refused():
    """A runtime with an unknown protocol is refused, with the most similar known one."""
    with pytest.raises(
        InputError, match=r"^runtime mine: protocols: found 'LL256'; expected one of Simple, LL,"
    ):
        Runtime("mine", protocols=("Simple", "LL256"))


@pytest.mark.slow
def test_a_runtime_may_have_its_own_lowering_and_times(mine, plan_of_ring):
    """A runtime's `lower` makes the programs, and its `Launch.predict` the times, with their source."""
    lowered = []

    def lower(schedule, **options):
        lowered.append(options)
        return taccl.lower(schedule, **options)

    def predict(costs, collective, ranks, nodes, size):
        return taccl.Prediction(ranks * 1.5, "mine", "", 0.0)

    register(replace(MINE, lower=lower, launch=Launch(2.5, "our choice", predict=predict)))
    runnable(plan_of_ring.ranges[0].schedule, {"in_place": False}, runtime_named("in-python"))
    assert lowered == [{"in_place": False}]
    found = taccl.predict("dgx-h100", "allreduce", "1KB", runtime="in-python")
    assert (found.time_us, found.algorithm, found.source) == (12.0, "mine", "our choice")


def test_a_runtimes_reason_against_a_collective_is_reported(mine):
    """The error for a collective that a runtime refuses gives the runtime's reason; no search begins."""
    with pytest.raises(InputError, match="the interpreter has no broadcast; choose allgather"):
        taccl.plan("ring:4", "broadcast", sizes=["1KB"], runtime="in-python", progress=pytest.fail)


def test_predict_counts_the_launch_of_a_registered_runtime(mine):
    """Predictions use the registered runtime's launch and source."""
    own, stock = (
        taccl.predict("dgx-h100", "allreduce", "1KB", runtime=each) for each in ("in-python", "nccl")
    )
    assert own.time_us - stock.time_us == pytest.approx(2.5 - stock.launch_us)
    assert (own.launch_us, own.source) == (2.5, "our choice")


def test_run_executes_by_a_registered_runtime(mine, ring_file, capsys):
    """``taccl run --engine`` passes the program and the options to the engine, and prints its report."""
    assert main(["run", ring_file, "--engine", "in-python", "--size", "2KB", "--seed", "3", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert (values["ok"], values["seed"]) == (True, 3)
    assert main(["run", ring_file, "--engine", "In_Python"]) == 0
    assert "ran 1000000 bytes" in capsys.readouterr().out


def test_options_of_other_engines_are_refused(mine, ring_file, capsys):
    """An option of another engine is refused, with the engine that accepts it."""
    assert main(["run", ring_file, "--engine", "in-python", "--sizes", "1KB"]) == 2
    assert (
        "--sizes: found with --engine in-python; it needs --engine torch: change one of the two"
        in capsys.readouterr().err
    )


def test_what_is_no_runtime_is_not_registered():
    """A name with blanks, and objects of other types, are refused."""
    for thing in (object(), Runtime("My Runtime")):
        with pytest.raises(InputError, match="runtime: found .*; expected a"):
            register(thing)


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ({"us": -1.0}, "us: found -1; expected a time of at least 0"),
        ({"us": None, "hops_us": (1.0, -2.0)}, "hops_us: found -2; expected a time"),
        ({"us": 1.0, "shares": (0.0, 1.0)}, "shares: found 0; expected shares above 0"),
    ],
)
def test_impossible_launches_are_refused(figures, said):
    """Negative times, and kernels without a rate, are refused before a prediction counts them."""
    with pytest.raises(InputError, match=said):
        Launch(source="ours", **figures)


def test_installed_packages_register_by_entry_points(monkeypatch):
    """Installed packages register runtimes by entry points."""

    class Entry:
        name = "in-python"

        def load(self):
            return MINE

    monkeypatch.setattr(
        "importlib.metadata.entry_points", lambda group: [Entry()] * (group == "taccl.runtimes")
    )
    assert PLUGINS.installed() == [MINE]
    Entry.value = "mine:make"
    monkeypatch.setattr(Entry, "load", lambda self: lambda: MINE)
    with pytest.warns(FallbackWarning, match="names mine:make, which is no runtime .expected a Runtime"):
        assert PLUGINS.installed() == []


@pytest.mark.parametrize("name", RUNTIMES)
def test_functions_of_the_library_exist(name):
    """Every function that a runtime's row names can be imported."""
    runtime = RUNTIMES[name]
    named = [
        each for each in (runtime.why_not, runtime.lower, runtime.check, runtime.files, runtime.run) if each
    ]
    named += [runtime.launch.predict] if runtime.launch.predict else []
    assert all(callable(called(each)) for each in named)


def test_predict_knows_every_runtime():
    """Every runtime has launch costs; the earlier name of MSCCL XML still works."""
    assert set(registered("launch")) == set(RUNTIMES)
    assert runtime_named("msccl-xml", "launch") is RUNTIMES["msccl"]
    for name in sorted(set(RUNTIMES) - {"rccl"}):
        assert taccl.predict("dgx-h100", "allreduce", "8KB", runtime=name).time_us > 0


def test_pytorch_has_no_scan():
    """PyTorch's row states why scan is refused; MPI's row refuses no collective."""
    topology, scan = taccl.topologies.ring(2), taccl.collectives.scan(2)
    assert RUNTIMES["torch"].reason_against(scan, topology) == "PyTorch has no method for scan"
    check_collective(RUNTIMES["mpi"], scan, topology)
    with pytest.raises(InputError, match="PyTorch has no method for scan; choose allgather"):
        taccl.plan("ring:2", "scan", sizes=["1KB"], runtime="torch", progress=pytest.fail)


@pytest.mark.slow
def test_a_plan_for_pytorch_has_modules(tmp_path):
    """A plan for PyTorch has a module for each range, in place and out of place."""
    plan = brief_plan(
        "ring:3", "allreduce", sizes=["4KB"], backend="greedy", baselines=False, runtime="torch"
    )
    plan.save(tmp_path / "p")
    index = json.loads((tmp_path / "p" / "plan.json").read_text())
    assert (
        index["coverage"]["torch"]
        == "torch: 4KB to 4KB in 1 file, out of place; 4KB to 4KB in 1 file, in place"
    )
    text = (tmp_path / "p" / index["ranges"][0]["files"]["torch"]).read_text()
    replayed(text, plan.ranges[0].program.collective)


def row_of(runtime):
    """The row of a runtime in the page."""
    launch = runtime.launch
    us = "the library's" if launch.us is None else f"{float(launch.us):g} us"
    plan = f"`--runtime {runtime.name}`" if runtime.files else "no"
    engine = f"`--engine {runtime.name}`" if runtime.run else "no"
    return f"| `{runtime.name}` | {runtime.title} | {', '.join(runtime.protocols) or '-'} | {plan} | {us} | {engine} |"


@pytest.mark.parametrize("name", RUNTIMES)
def test_the_page_lists_every_runtime(name):
    """The table of roles in docs/runtimes.md has the rows of the registry, and no other."""
    page = PAGE.read_text(encoding="utf-8")
    assert row_of(RUNTIMES[name]) in page
    table = page.partition("| runtime | title |")[2].partition("\n\n")[0]
    assert len(table.splitlines()) == len(RUNTIMES) + 2
    plans = (PAGE.parent / "plan.md").read_text(encoding="utf-8").partition("| `--runtime` |")[2]
    assert (f"\n| `{name}` |" in plans) == bool(RUNTIMES[name].files)
