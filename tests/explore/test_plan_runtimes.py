"""Plans for runtimes: their files, the shell variables that register them, and the calls that use them."""

import json
import re
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

import taccl
from taccl._internal.units import format_size
from taccl.errors import InputError
from taccl.explore.plan_files import save_plan
from taccl.explore.plan_runtimes import coverage_text, serving_counts, under_protocols_of
from taccl.formats.mscclpp.executor import verify_plan
from taccl.formats.mscclpp.registration import unit_bytes
from taccl.runtimes import ServedSizes
from taccl.runtimes.registry import runtime_named, usual_runtimes
from taccl.runtimes.table import RUNTIMES
from taccl.synthesis.parameters import DEFAULTS
from taccl.topology.registry import parse
from tests.effort import brief_plan
from tests.formats.msccl import rccl
from tests.fuzzing import thinned

pytestmark = pytest.mark.slow


@cache
def plan_of(topology, collective, runtime=None, sizes=("4KB", "64MB"), **lowering):
    """Plan from list schedules, by default for small and large messages."""
    return brief_plan(
        topology, collective, sizes=sizes, backend="greedy", baselines=False,
        runtime=runtime, lowering=lowering,
    )  # fmt: skip


def saved(plan, folder):
    """Save a plan to a folder; return the content of its ``plan.json``."""
    save_plan(plan, folder)
    return json.loads((folder / "plan.json").read_text())


@pytest.fixture(scope="module")
def on_mi300x(tmp_path_factory):
    """(plan of an allreduce on MI300X, its folder, content of its ``plan.json``)."""
    plan = plan_of("mi300x", "allreduce")
    folder = tmp_path_factory.mktemp("plans") / "a plan"
    return plan, folder, saved(plan, folder)


def variables(folder, *names):
    """Values of shell variables after reading environment.sh from another folder."""
    told = " ".join(f'"${name}"' for name in names)
    words = ["bash", "-c", f'cd / && . "$1" && printf "%s\\n" {told}', "sh", folder / "environment.sh"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()


def test_mi300x_uses_environment_variables_of_rccl(on_mi300x):
    """A folder for MI300X has only algorithm files, which RCCL loads by its own environment variables."""
    plan, folder, _ = on_mi300x
    names = ("MSCCL_ALGO_DIR", "RCCL_MSCCL_ENABLE", "RCCL_MSCCL_FORCE_ENABLE", "RCCL_MSCCLPP_ENABLE")
    algorithms, *switches = variables(folder, *names)
    assert switches == ["1", "1", "0"]
    files = sorted(Path(algorithms).iterdir())
    assert len(files) == len(plan.ranges)
    assert {rccl.load(each).collective for each in files} == {"allreduce"}
    assert "ROCm 7.13" in (folder / "environment.sh").read_text()


def test_every_size_of_the_plan_gets_its_file_from_rccl(on_mi300x):
    """RCCL gets a file for every planned size, with ends of ranges in whole chunks of 4-byte elements."""
    plan, folder, index = on_mi300x
    coverage = index["coverage"]["rccl"]
    chunks = " or ".join(map(str, sorted({each.program.size_chunks for each in plan.ranges})))
    assert coverage.endswith(f"in place, multiples of {chunks} elements")
    folder = folder / "msccl-algorithms"
    for number, each in enumerate(plan.ranges, 1):
        unit = 4 * each.program.size_chunks
        for size in (-(-each.min_bytes // unit) * unit, each.max_bytes // unit * unit):
            got = rccl.choose(folder, "allreduce", 8, size // 4, 4, in_place=True)
            assert got == f"range-{number:02}.xml"
            assert rccl.choose(folder, "allreduce", 8, size // 4 + 1, 4, in_place=True) == ""
            assert rccl.choose(folder, "allreduce", 8, size // 4, 4, in_place=False) == ""


@pytest.mark.parametrize(
    "collective", thinned(["reduce_scatter", "allgather", "alltoall", "broadcast", "reduce"], every=2)
)
def test_rccl_reads_every_collective(collective, tmp_path):
    """Files for RCCL use its names of collectives, such as reducescatter."""
    saved(plan_of("ring:4", collective, "rccl", ("4KB",)), tmp_path / "p")
    known = {rccl.load(each).collective for each in (tmp_path / "p" / "msccl-algorithms").iterdir()}
    assert known == {collective.replace("_", "")}
    assert not list((tmp_path / "p").glob("*.plan.json"))


@pytest.mark.parametrize(
    ("collective", "places"),
    [
        ("allreduce", {True}), ("reduce", {True}), ("broadcast", {True}), ("alltoall", {False}),
        ("reduce_scatter", {True, False}), ("allgather", {True, False}),
    ],
)  # fmt: skip
def test_mscclpp_gets_the_places_that_pytorch_calls(collective, places, tmp_path):
    """MSCCL++ gets the placements that PyTorch uses: in place, or both for allgather and reduce-scatter."""
    index = saved(plan_of("ring:4", collective, sizes=("4KB",)), tmp_path / "p")
    for row in index["ranges"]:
        files = [name for key, name in row["files"].items() if key.startswith("mscclpp")]
        plans = [json.loads((tmp_path / "p" / name).read_text()) for name in files]
        assert {plan["inplace"] for plan in plans} == places
        assert all(verify_plan(plan) for plan in plans)


def test_a_place_that_was_asked_for_is_the_only_one(tmp_path):
    """If a placement (in place or not) is requested, the plan has files for it alone."""
    index = saved(plan_of("ring:4", "allreduce", sizes=("4KB",), in_place=False), tmp_path / "p")
    assert [set(row["files"]) for row in index["ranges"]] == [
        {"msccl_xml", "mscclpp", "schedule"} for _ in index["ranges"]
    ]
    assert all(
        json.loads(path.read_text())["inplace"] is False for path in (tmp_path / "p").glob("*.plan.json")
    )


def test_mscclpp_serves_ranges_whose_protocol_it_lacks(on_mi300x):
    """Ranges planned for LL128, which MSCCL++ lacks, get files for another protocol, with a note."""
    plan, folder, index = on_mi300x
    lacking = [number for number, each in enumerate(plan.ranges, 1) if each.protocol == "ll128"]
    assert lacking
    files = {
        number: json.loads((folder / f"range-{number:02}.plan.json").read_text())
        for number in range(1, len(plan.ranges) + 1)
    }
    for number in lacking:
        found = files[number]
        assert found["protocol"] in ("LL", "Simple")
    assert sum("MSCCL++ has no LL128" in note for note in index["notes"]) <= 2  # one line for each protocol
    assert any(
        re.match(rf"range-{lacking[0]:02}\.plan\.json\b.*: (LL|Simple) in place of LL128, as MSCCL\+\+", note)
        for note in index["notes"]
    )
    units = " or ".join(format_size(unit) for unit in sorted({unit_bytes(each) for each in files.values()}))
    assert index["coverage"]["mscclpp"] == (
        f"mscclpp: 4KB to 64MB in {len(plan.ranges)} files, in place, multiples of {units}"
    )


def test_mscclpp_serves_ranges_in_which_packets_are_not_safe(tmp_path):
    """If LL packets are unsafe for a reduce, MSCCL++ gets Simple files beside MSCCL's LL files, with a note."""
    plan = taccl.plan(
        "dgx-h100", "reduce", sizes=["4KB"], backend="greedy", time_limit_s=10, protocol="ll", baselines=False
    )
    index = saved(plan, tmp_path / "p")
    assert [each.protocol for each in plan.ranges] == ["ll"]
    assert json.loads((tmp_path / "p" / "range-01.plan.json").read_text())["protocol"] == "Simple"
    assert any(
        "range-01.plan.json: Simple in place of LL, as packets (LL)" in note for note in index["notes"]
    )


def test_a_plan_for_mscclpp_takes_its_protocols_alone(tmp_path):
    """A plan for MSCCL++ has no LL128 range, and no files for other runtimes."""
    options = {"sizes": ["1MB"], "backend": "greedy", "baselines": False, "runtime": "mscclpp"}
    plan = brief_plan("mi300x", "allreduce", **options)
    assert {each.protocol for each in plan.ranges} <= {"ll", "simple"}
    index = saved(plan, tmp_path / "p")
    assert index["register"] == ["register_plans.py"]
    assert {path.suffix for path in (tmp_path / "p").iterdir()} == {".json", ".py"}


def test_protocols_that_a_runtime_lacks_cannot_be_asked_of_it():
    """LL128 cannot be requested for MSCCL++."""
    with pytest.raises(InputError, match=r"MSCCL\+\+ runs allreduce on .* by simple or ll"):
        taccl.plan("mi300x", "allreduce", sizes=["1MB"], protocol="ll128", runtime="mscclpp")
    with pytest.raises(InputError, match=r"MSCCL\+\+ runs allreduce on .* by simple or ll"):
        taccl.plan("ring:4", "allreduce", sizes=["1MB"], lowering={"protocol": "LL128"}, runtime="mscclpp")


@pytest.mark.parametrize(
    ("topology", "runtime", "why"),
    [
        ("mi300x", None, "RCCL has no scatter, which does not support custom collectives"),
        ("ring:4", "msccl-executor", "the MSCCL executor has no scatter"),
        ("ring:4", "mscclpp", r"MSCCL\+\+ has no scatter, as some ranks have no input"),
    ],
)
def test_collectives_that_a_runtime_lacks_are_refused_before_the_search(topology, runtime, why):
    """A collective that the runtime lacks is refused before the search."""
    with pytest.raises(InputError, match=why):
        taccl.plan(topology, "scatter", runtime=runtime, progress=pytest.fail)


def test_packets_do_not_compete_where_they_are_not_safe():
    """MSCCL++ has no LL for a broadcast, so LL is not tried."""
    plan = brief_plan("mi300x", "broadcast", sizes=["4KB"], backend="greedy", runtime="mscclpp")
    assert {each.protocol for each in plan.ranges} == {"simple"}
    assert not any("left out" in note for note in plan.notes)


def test_runtimes_are_named_as_people_write_them():
    """MSCCL++ and MSCCL are distinct names; unknown runtimes give an error that lists all."""
    assert runtime_named("MSCCL++").name == "mscclpp"
    assert runtime_named("MSCCL").name == "msccl"
    with pytest.raises(InputError, match="msccl, msccl-executor, rccl, mscclpp"):
        runtime_named("oneccl")


def test_machines_have_their_makers_runtime():
    """By default a plan is for RCCL if the topology's name, machine or links are of AMD, and for MSCCL
    otherwise; MSCCL++ is added."""
    own = replace(taccl.topologies.ring(2), name="mi250x2", machine="")
    assert [each.name for each in usual_runtimes(own)] == ["rccl", "mscclpp"]
    assert [each.name for each in usual_runtimes(taccl.topologies.dgx2())] == ["msccl", "mscclpp"]
    imported = replace(taccl.topologies.mi300x(), name="server", machine="")
    assert [each.name for each in usual_runtimes(imported)] == ["rccl", "mscclpp"]
    instance = parse("nd-mi300x-v5")
    assert [each.name for each in usual_runtimes(instance)] == ["rccl", "mscclpp"]


def test_roots_that_no_runtime_of_xml_looks_at_are_reported(tmp_path):
    """A note says that XML runtimes ignore the root, while MSCCL++'s module checks it."""
    plan = brief_plan("ring:4", "broadcast", root=2, sizes=["4KB"], backend="greedy")
    index = saved(plan, tmp_path / "p")
    unseen = "runtimes of MSCCL XML take every broadcast for one with root 2"
    assert index["coverage"]["msccl"].endswith(unseen)
    assert unseen in (tmp_path / "p" / "environment.sh").read_text()
    assert json.loads((tmp_path / "p" / "range-01.plan.json").read_text())["root"] == 2


def test_collectives_without_a_call_of_nccl_are_reported(tmp_path):
    """A plan for a scatter says by which function alone a program can use its MSCCL files."""
    index = saved(brief_plan("ring:3", "scatter", sizes=["4KB"], backend="greedy"), tmp_path / "p")
    unseen = "scatter has no call of NCCL: only for ncclCustomCollective, by the file's number"
    assert index["coverage"]["msccl"].endswith(unseen)
    assert f"# Careful: {unseen}.\n" in (tmp_path / "p" / "environment.sh").read_text()


def test_sizes_without_a_file_are_stated():
    """The coverage line states the ranges of sizes, at both ends of the plan, that no file covers."""
    plan = plan_of("ring:4", "allreduce")
    low, high = plan.ranges[0].min_bytes, plan.ranges[-1].max_bytes
    assert (low, high) == (4000, 64 * 10**6)
    served = [ServedSizes("a", 5001, 10**6, True), ServedSizes("b", 10**6 + 1, 10**7, True, 64)]
    assert coverage_text(RUNTIMES["rccl"], plan, served) == (
        "rccl: 5.001KB to 10MB in 2 files, in place, multiples of 64B (nothing for 4KB to 5KB, 10MB to 64MB)"
    )
    assert coverage_text(RUNTIMES["mscclpp"], plan, []) == "mscclpp: no file"
    alone = [ServedSizes("a", 1000, 1000, in_place=True, unit_bytes=64)]
    assert coverage_text(RUNTIMES["rccl"], plan, alone).startswith(
        "rccl: 1KB to 1KB in 1 file, in place, multiples of 64B (which leaves out every size of 1 file)"
    )


@pytest.mark.parametrize(("num_chunks", "served"), [(8, True), (4, True), (6, False), (12, False)])
def test_chunks_that_divide_no_power_of_two_are_reported(num_chunks, served):
    """The coverage line says that a file is not used for powers of two if its number of chunks divides none.

    For example, 6 chunks do not divide 2 ** 20 elements.
    """
    files = [ServedSizes("a", 4000, 64 * 10**6, True, num_chunks=num_chunks)]
    text = coverage_text(RUNTIMES["rccl"], plan_of("ring:4", "allreduce"), files)
    told = "" if served else " (which leaves out powers of two)"
    assert text == f"rccl: 4KB to 64MB in 1 file, in place, multiples of {num_chunks} elements{told}"


@pytest.mark.parametrize(
    ("topology", "collective", "counts"),
    [
        ("ring:4", "allreduce", (1, 2, 4, 8, 16)),
        ("ring:6", "allgather", (1, 2, 4, 8, 16)),  # elements of each rank count
        ("ring:6", "allreduce", DEFAULTS.suggesting.counts),  # six chunks at least
        ("ring:6", "broadcast", (1, 2, 4, 8, 16)),
    ],
)
def test_data_are_cut_so_that_files_serve_powers_of_two(topology, collective, counts):
    """Numbers of chunks that do not divide powers of two are not tried.

    Files in 3, 6 and 12 chunks would be skipped for 2 ** 20 elements.
    """
    fabric = parse(topology)
    whole = taccl.make_problem(fabric, collective, size_bytes=10**6).collective
    assert tuple(serving_counts(whole, DEFAULTS.suggesting.counts)) == counts


@pytest.mark.parametrize(("unit", "served"), [(96, False), (1536, False), (128, True)])
def test_units_of_bytes_that_divide_no_power_of_two_are_reported(unit, served):
    """If a file cannot serve powers of two, that is stated.

    MSCCL++ refuses 2 ** 20 bytes in 6 chunks of multiples of 16 bytes.
    """
    files = [ServedSizes("a", 4000, 64 * 10**6, True, unit)]
    text = coverage_text(RUNTIMES["mscclpp"], plan_of("ring:4", "broadcast"), files)
    assert text.endswith("multiples of 128B" if served else "B (which leaves out powers of two)")


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["msccl", "mscclpp"])
def test_a_plan_serves_powers_of_two(runtime):
    """On a DGX-1, whose best allreduce has 6 chunks per rank, the plan uses a power of two and says so."""
    plan = brief_plan("dgx1", "allreduce", sizes=["64MB"], runtime=runtime)
    assert plan.ranges[0].program.size_chunks.bit_count() == 1
    assert any("so that files serve powers of two" in note for note in plan.notes)


@pytest.mark.slow
def test_a_number_of_chunks_of_a_sketch_holds():
    """A sketch's six chunks per rank are kept, and the coverage line names the sizes left out."""
    sketch = taccl.Sketch.from_dict({"schema": 1, "name": "six", "chunks": {"per_rank": 6}})
    plan = brief_plan("ring:4", "broadcast", sketches=[sketch], sizes=["1MB"], baselines=False)
    assert plan.ranges[0].program.size_chunks % 6 == 0


def test_chunks_of_each_rank_count_for_collectives_by_rank():
    """A file of an allgather serves powers of two if the chunks of one rank divide them.

    Here these are 2 chunks on each of 3 ranks. All 6 chunks together would not divide a power of two.
    """
    files = [ServedSizes("a", 4000, 64 * 10**6, False, num_chunks=6)]
    text = coverage_text(RUNTIMES["rccl"], plan_of("ring:3", "allgather"), files)
    assert text == "rccl: 4KB to 64MB in 1 file, out of place, multiples of 6 elements"


def test_files_that_msccl_does_not_load_serve_nothing():
    """Files beyond the four that MSCCL loads serve nothing, which is stated."""
    plan = plan_of("ring:4", "allreduce")
    served = [ServedSizes(str(i), 4000 + 1000 * i, 4999 + 1000 * i, True) for i in range(5)]
    assert coverage_text(RUNTIMES["msccl"], plan, served).startswith("msccl: 4KB to 7.999KB in 4 files")


def test_the_folder_of_algorithms_is_replaced_only_as_it_was(tmp_path):
    """A saved plan is not replaced if its folder of algorithms contains a file that the plan did not write."""
    plan = plan_of("ring:4", "allgather", "rccl", ("4KB",))
    folder = tmp_path / "p"
    plan.save(folder)
    plan.save(folder, overwrite=True)
    (folder / "msccl-algorithms" / "mine.xml").write_text("mine")
    with pytest.raises(InputError, match=r"'mine\.xml'"):
        plan.save(folder, overwrite=True)


def test_kernels_of_a_whole_collective_have_their_own_launch():
    """MSCCL++ plans have the launch cost of one MSCCL++ kernel, MSCCL files NCCL's launch and base latency."""
    fabric, kind = taccl.topologies.dgx_a100(), taccl.collectives.allgather(8)
    launches = {
        name: {float(e.launch_us) for e in under_protocols_of(RUNTIMES[name], fabric, kind, "auto", {})}
        for name in ("msccl", "mscclpp")
    }
    assert launches["mscclpp"] == {4.95}
    assert min(launches["msccl"]) == pytest.approx(1.8 + 6.6)


@pytest.mark.slow
def test_syntheses_under_one_protocol_have_the_runtime_s_launch():
    """Progress of a plan states the launch time of its runtime, as its ranges do, with one protocol as well."""
    told: list[str] = []
    plan = taccl.plan(
        "dgx-a100", collective="allgather", runtime="mscclpp", protocol="simple", sizes=["64KB"], time_limit_s=5,
        baselines=False, progress=told.append,
    )  # fmt: skip
    assert plan.ranges[0].schedule.launch_us == 4.95
    assert any("with a launch of 4.95 us" in each for each in told)


def test_broadcasts_between_nodes_avoid_simple_in_msccl_xml(tmp_path):
    """On a topology without protocols, a broadcast between nodes is written under LL for MSCCL, which would hang."""
    topology = taccl.topologies.parse("ring:4", ranks_per_node=2)
    plan = brief_plan(topology, "broadcast", sizes=["4KB"], backend="greedy", runtime="msccl")
    plan.save(tmp_path / "plan")
    assert 'proto="LL"' in (tmp_path / "plan" / "range-01.xml").read_text()
    with pytest.raises(InputError, match="runs broadcast on .* by ll or ll128"):
        brief_plan(topology, "broadcast", sizes=["4KB"], runtime="msccl", lowering={"protocol": "Simple"})
