"""Programs on the command line: simulated, bounded, shown, and converted to schedules; and plans."""

import json
import shutil

import pytest

import taccl
from taccl.formats.msccl.xml import dump_msccl_xml
from taccl.problem.collectives import reduce_scatter
from taccl.program.lower import lower
from tests.foreign import OURS

#: Three ranks, two of which wait for each other.
HANGING = OURS / "msccl-xml" / "allgather-3-deadlock.xml"


@pytest.fixture
def direct():
    """Path of an allgather program of four ranks that sends everything in one step."""
    return OURS / "msccl-xml" / "allgather-4-direct.xml"


def test_simulate_says_finish_bound_and_utilisation(direct, run_json):
    """``taccl simulate`` of a program prints finish, bound and utilisation.

    1 MB in chunks of 250 KB over links of 50 GB/s takes 0.5 + 5 us, the bound; links are never idle.
    """
    code, found = run_json("simulate", direct, "--topology", "fully-connected:4", "--size", "1MB")
    [row] = found["sizes"]
    assert (code, row["finish_us"], row["gap"], row["utilisation"]) == (0, 5.5, 0.0, 1.0)


def test_simulate_takes_several_sizes(direct, run):
    """With several sizes there is a row for each."""
    code, out, _ = run("simulate", direct, "--topology", "fully-connected:4", "--sizes", "1KB,1MB")
    assert code == 0
    assert "0.505 us" in out and "5.5 us" in out


def test_simulate_says_what_waits_of_threadblocks_cost(run, tmp_path):
    """A note tells the time of a program apart from the time that its sends take alone."""
    problem = taccl.make_problem(taccl.topologies.ring(4), reduce_scatter(4), size_bytes=64_000)
    path, where = tmp_path / "program.xml", ("--topology", "ring:4", "--size", "64KB")
    program = lower(taccl.baselines.multiplying(problem), threadblocks="per-peer")
    path.write_text(dump_msccl_xml(program))
    _, out, _ = run("simulate", path, *where)
    assert "without these waits, the finish is 2.46 us for 64KB" in " ".join(out.split())
    run("convert", path, tmp_path / "schedule.json", *where)
    _, out, _ = run("simulate", tmp_path / "schedule.json")
    assert "the original has further waits of threadblocks and queues" in " ".join(out.split())


def test_simulate_says_which_sizes_the_file_excludes(direct, run, tmp_path):
    """A note names the sizes for which no runtime uses the program, by the range in its file."""
    path = tmp_path / "small.xml"
    path.write_text(direct.read_text().replace("<algo ", '<algo maxBytes="2000" ', 1))
    given = ("simulate", path, "--topology", "fully-connected:4", "--sizes")
    said = "note: runtimes use the program from 0B to 2KB by its file, and so not for 1MB"
    assert said in run(*given, "1KB,1MB")[1]
    assert "by its file" not in run(*given, "1KB")[1]


def test_bound_of_a_program(direct, run):
    """The output has the bound of the program's problem, and the program's gap to it."""
    code, out, _ = run("bound", direct, "--topology", "fully-connected:4", "--size", "1MB")
    assert (code, "a gap of 0.00% (proven best under these limits on merging); " in out) == (0, True)


def test_show_says_what_a_program_does(run):
    """``taccl show`` prints a program's steps and threadblocks, and says that the program deadlocks."""
    code, out, _ = run("show", HANGING, "--transfers", "2")
    assert code == 0
    assert "12, none of them within ranks" in out
    assert "deadlock: 2 steps wait for each other" in out
    assert "... and 10 more" in out


def test_verify_says_for_which_sizes_a_program_runs(run_json):
    """If a program deadlocks, the output has {library: size in bytes from which it deadlocks}, here 0."""
    code, found = run_json("verify", HANGING)
    assert (code, found["ok"], found["sizes_bytes"]) == (1, False, [0, 2**27])
    assert found["hangs_from_bytes"] == {"NCCL": 0, "RCCL": 0}


@pytest.fixture
def execution_plan(direct, run, tmp_path):
    """Path of the same program as an MSCCL++ plan."""
    target = tmp_path / "direct.plan.json"
    assert run("convert", direct, target, "--set", "ranks_per_node=4")[0] == 0
    return target


def test_verify_runs_an_execution_plan(execution_plan, run, run_json):
    """An MSCCL++ plan is verified by the executor's rules, including its outputs."""
    assert ": ok: an MSCCL++ plan of " in run("verify", execution_plan)[1]
    code, found = run_json("verify", execution_plan)
    assert (code, found["ok"], found["outputs_checked"], found["num_ranks"]) == (0, True, True, 4)


def test_verify_names_the_fault_of_an_execution_plan(execution_plan, run):
    """Removing a wait from a plan is reported as a race."""
    execution_plan.write_text(execution_plan.read_text().replace('"wait"', '"nop"', 1))
    code, out, error = run("verify", execution_plan)
    assert code == 1
    assert "race: nothing orders" in out
    assert "the plan has 1 fault" in error


def test_a_plan_that_cannot_be_run_names_one_remedy(run, tmp_path):
    """`verify` names the missing ranks of an incomplete plan. Other verbs cannot read a plan, and ask for its
    program instead."""
    path = tmp_path / "plan.json"
    path.write_text(
        '{"name": "x", "collective": "allreduce", "protocol": "Simple", "inplace": true, "gpus": []}'
    )
    assert "found no gpus; expected one for each rank" in run("verify", path)[2]
    for verb in (("convert", path, tmp_path / "x.json"), ("simulate", path, "--topology", "ring:2")):
        assert "else give the program that it was made of" in run(*verb)[2]


@pytest.mark.slow
def test_verify_checks_all_files_of_a_plan(run, run_json, tmp_path):
    """All programs in the index of a plan's folder are checked; one that was spoiled afterwards is found."""
    words = ("--topology", "fully-connected:2", "--collective", "allgather", "--sizes", "4KB,64KB")
    assert run("plan", *words, "--time-limit", "0.5", "-o", tmp_path / "p")[0] == 0
    index = tmp_path / "p" / "plan.json"
    code, found = run_json("verify", index)
    assert (code, found["ok"]) == (0, True)
    assert len(found["files"]) == sum(len(each["files"]) for each in json.loads(index.read_text())["ranges"])
    path = tmp_path / "p" / "range-01.xml"
    path.write_text(path.read_text().replace('srcoff="0"', 'srcoff="1"'))
    assert run("verify", index)[0] == 1


def test_verify_names_modules_of_a_plan_as_not_checked(direct, run, run_json, tmp_path):
    """Modules for PyTorch in a plan cannot be read back: they are named, and are no fault unless spoiled."""
    schedule = shutil.copy(direct, tmp_path / "range-01.json")
    assert run("convert", schedule, tmp_path / "range-01.py")[0] == 0
    files = {"schedule": "range-01.json", "torch": "range-01.py"}
    index = tmp_path / "plan.json"
    index.write_text(json.dumps({"format": "taccl-plan", "version": 1, "ranges": [{"files": files}]}))
    code, out, error = run("verify", index)
    assert (code, error) == (0, "")
    assert "plan.json: ok, but 1 file of 2 not checked" in out
    assert "range-01.py: not checked: a module for PyTorch cannot be read back" in out
    found = run_json("verify", index)[1]
    assert found["not_checked"] == [str(tmp_path / "range-01.py")]
    (tmp_path / "range-01.json").write_text((tmp_path / "range-01.py").read_text())
    assert run("verify", index)[0] == 1  # a module in place of a schedule
    shutil.copy(direct, schedule)
    (tmp_path / "range-01.py").unlink()
    assert run("verify", index)[0] == 1


@pytest.mark.slow
def test_a_plan_says_what_each_runtime_gets(run, run_json, tmp_path):
    """The text has the sizes covered by each runtime's files, or, with --runtime, by the given runtime's files."""
    words = ("--topology", "fully-connected:2", "--collective", "allreduce", "--sizes", "4KB,64KB")
    code, out, _ = run("plan", *words, "--time-limit", "0.5", "-o", tmp_path / "p")
    assert code == 0
    assert "msccl: 4KB to 64KB in 1 file, in place, multiples of 2 elements" in out
    assert "mscclpp: 4KB to 64KB in 1 file, in place, multiples of 32B" in out
    words = (*words, "--time-limit", "0.5", "--runtime", "rccl", "--out-of-place", "-o", tmp_path / "q")
    code, found = run_json("plan", *words)
    assert (code, found["coverage"]) == (
        0,
        {"rccl": "rccl: 4KB to 64KB in 1 file, out of place, multiples of 2 elements"},
    )
    words = (*words[:-5], "--runtime", "torch", "-o", tmp_path / "r")
    assert (
        f"  with PyTorch: taccl.torch.load of the folder, or without taccl `Collective` of {tmp_path}"
        in (run("plan", *words)[1])
    )


@pytest.mark.slow
@pytest.mark.parametrize(("collective", "in_place"), [("allreduce", True), ("allgather", False)])
def test_converted_plans_are_for_the_calls_of_pytorch(collective, in_place, run, tmp_path):
    """Plans for sums of all ranks are in place, and a note says so, unless the user chooses otherwise."""
    source, target = tmp_path / "ring.json", tmp_path / "ring.plan.json"
    assert (
        run("baseline", "ring", "ring:4", "--collective", collective, "--size", "64KB", "-o", source)[0] == 0
    )
    out = run("convert", source, target)[1]
    assert json.loads(target.read_text())["inplace"] is in_place
    assert ("in place, as PyTorch calls it" in out) == in_place
    assert run("convert", source, target, "--overwrite", "--set", "in_place=false")[0] == 0
    assert json.loads(target.read_text())["inplace"] is False


@pytest.mark.slow
def test_a_schedule_for_ll128_is_converted(run, tmp_path):
    """LL128 is fastest for 1 MB on MI300X, but MSCCL++ lacks it: another protocol is used, with a warning."""
    source, target = tmp_path / "s.json", tmp_path / "s.plan.json"
    words = ("--topology", "mi300x", "--collective", "allreduce", "--size", "1MB", "--protocol", "ll128")
    assert run("baseline", "pairwise", *words, "-o", source)[0] == 0
    code, _, error = run("convert", source, target)
    assert (code, json.loads(target.read_text())["protocol"]) == (0, "LL")
    assert "MSCCL++ has no LL128: the plan uses LL" in error


def test_a_program_becomes_a_schedule(direct, run, tmp_path):
    """A program converted on a topology is a schedule file that verifies."""
    target = tmp_path / "schedule.json"
    words = ("--topology", "fully-connected:4", "--size", "1MB")
    assert run("convert", direct, target, *words)[0] == 0
    assert run("verify", target)[0] == 0


def test_topology_files_of_other_tools_are_converted(run, tmp_path):
    """The nvidia-smi matrix converted to a topology file is shown like the matrix."""
    source, target = OURS / "nvidia-smi" / "square.txt", tmp_path / "square.toml"
    code, _, err = run("convert", source, target)
    assert (code, "cannot hold" in err) == (0, True)
    assert run("show", target)[1].splitlines()[1] == run("show", source)[1].splitlines()[1]


def test_a_program_that_hangs_is_not_simulated(run):
    """A program that deadlocks is not simulated: exit code 1, with the cycle."""
    code, _, err = run("simulate", HANGING, "--topology", "fully-connected:3", "--size", "3MB")
    assert (code, "wait for each other" in err) == (1, True)


@pytest.mark.slow
def test_plan_writes_a_folder(run, tmp_path):
    """Sizes go to stderr, ranges to stdout, files to the folder; a second run requires --overwrite."""
    folder = tmp_path / "plan"
    words = (
        "ring:4",
        "--collective",
        "allgather",
        "--sizes",
        "4KB,64KB",
        "--backend",
        "greedy",
        "--time-limit",
        "120",
    )
    code, out, err = run("plan", *words, "-o", folder)
    assert (code, err.count("no sketch")) == (0, 2)
    assert f"source {folder}/environment.sh" in out
    assert json.loads((folder / "plan.json").read_text())["ranges"][0]["min_bytes"] == 4000
    code, _, err = run("plan", *words, "-o", folder)
    assert (code, "--overwrite" in err) == (2, True)
    assert run("plan", *words, "-o", folder, "--overwrite")[0] == 0


@pytest.mark.slow
def test_plan_of_sketches_takes_their_topology(run_json):
    """Two sketches of one machine need no topology: the plan uses the sketch's machine, rescaled."""
    code, found = run_json(
        "plan", "ndv2/sk1", "ndv2/sk2", "--nodes", "2", "--collective", "allgather", "--sizes", "1MB",
        "--backend", "greedy", "--time-limit", "2", "--no-baselines",
    )  # fmt: skip
    assert (code, found["topology"], found["num_ranks"]) == (0, "ndv2 x2", 16)
    assert found["ranges"][0]["source"].startswith("sketch ndv2-sk")


@pytest.mark.slow
def test_plan_takes_some_ranks(run, tmp_path):
    """A plan for two of four GPUs renumbers them from 0, and a note names them."""
    words = ("--collective", "allgather", "--sizes", "1MB", "--backend", "greedy", "--time-limit", "2")
    code, out, err = run("plan", "fully-connected:4", "--ranks", "1,3", *words, "--no-baselines")
    assert code == 0
    assert "ranks 1, 3 of 4 take part" in err
    assert "Plan(allgather on" in out


def test_a_plan_as_text_needs_no_digests(run, monkeypatch):
    """Digests of a plan's schedules, which take long for many ranks, are made for JSON only."""
    words = "plan", "ring:2", "--collective", "allgather", "--sizes", "1MB"
    monkeypatch.setattr(taccl.Plan, "to_dict", lambda self: pytest.fail("made"))
    code, out, _ = run(*words)
    assert code == 0
    assert "nothing is written" in out
