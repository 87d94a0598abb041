"""``taccl convert``: from file to file, with losses reported on stderr."""

import json

import pytest

import taccl
from taccl._internal.units import format_us
from taccl.formats.msccl.xml import load_msccl_xml
from taccl.formats.table import FORMATS
from taccl.schedule.timing import exact_times
from tests.cli.words import SMALL
from tests.synthesis.small_problems import custom, problem_of, ring


def test_formats_are_listed(run, run_json):
    """``--list`` shows every format, as text and as JSON."""
    code, out, _ = run("convert", "--list")
    assert code == 0
    assert all(each.name in out for each in FORMATS)
    code, values = run_json("convert", "--list")
    assert (code, [each["name"] for each in values["formats"]]) == (0, [each.name for each in FORMATS])


@pytest.mark.parametrize("target", ["x.csv", "x.trace.json"])
def test_ending_determines_the_format(run, saved, tmp_path, target):
    """The file ending selects the format, and stderr says what the format omits."""
    code, out, err = run("convert", saved, tmp_path / target)
    assert code == 0
    assert (tmp_path / target).exists()
    assert str(tmp_path / target) in out
    assert "taccl: warning:" in err
    assert "the collective" in err


def test_traces_are_files_of_ranks(run_json, saved, tmp_path):
    """A trace of four ranks is four files; the JSON lists them, and what they omit."""
    code, values = run_json("convert", saved, tmp_path / "x.et")
    assert (code, values["from"], values["to"]) == (0, "taccl-schedule", "chakra")
    assert values["files"] == [str(tmp_path / f"x.{rank}.et") for rank in range(4)]
    assert len(values["lost"]) == 1


@pytest.mark.slow
def test_a_note_states_automatic_instances(run, run_json, saved, tmp_path):
    """With ``instances=auto`` a note gives the number of parallel instances of a program, for a file and for
    each range of a plan. Chunks of 1000 bytes are too small for more than one."""
    words = ("--set", "instances=auto")
    code, values = run_json("convert", saved, tmp_path / "x.xml", *words)
    assert (code, values["notes"][0][:13]) == (0, "instances: 1,")
    assert "1024 bytes" in run("convert", saved, tmp_path / "y.xml", *words)[1]
    code, out, _ = run(
        "plan", "ring:2", "--collective", "allgather", "--sizes", "16MB", "--instances", "auto",
        "--backend", "greedy", "--time-limit", "2",
    )  # fmt: skip
    assert code == 0
    assert "note: 16MB to 16MB: instances: 2 for 50 GB/s" in out
    assert run("plan", "ring:2", "--collective", "allgather", "--instances", "some")[0] == 2


@pytest.mark.parametrize("other", [1, 2])
def test_times_of_a_program_that_takes_longer_are_stated(run, run_json, tmp_path, other):
    """A program's time is that of `lift`; stderr states it, and the schedule's, if the program takes longer.

    A merged send of the chunks 0 and 1 is one step; one of 0 and 2 becomes two, each with the link's latency."""
    sent, chunks = custom(2, [([0], [1])] * 4), (0, other, 3 - other, 3)
    problem = problem_of(ring(2), sent, merging=frozenset({0}), max_merge=2)
    no = [False] * 4
    timed = exact_times(
        problem, chunk=chunks, link=[0] * 4, starts=(0, 0, 9, 9), group=(0, 0, 1, 1), reduce=no
    )
    taccl.save(timed, tmp_path / "s.json")
    code, values = run_json("convert", tmp_path / "s.json", tmp_path / "p.xml")
    program, size = load_msccl_xml(tmp_path / "p.xml", collective=sent), problem.chunk_bytes[0]
    lifted = taccl.lift(program, topology=problem.topology, chunk_size=size)
    assert (code, values["schedule_us"], values["program_us"]) == (0, timed.finish_us, lifted.finish_us)
    later_us = (other - 1) * 2 * float(problem.topology.links[0].alpha_us)
    assert lifted.finish_us == pytest.approx(timed.finish_us + later_us)
    told = f"the program takes {format_us(lifted.finish_us)}, the schedule {format_us(timed.finish_us)}"
    assert (told in run("convert", tmp_path / "s.json", tmp_path / "q.xml")[2]) == (other == 2)


def test_there_and_back(run, saved, tmp_path):
    """A schedule converted to the published tool's format and back keeps its size and times."""
    there, back = tmp_path / "there", tmp_path / "back.json"
    assert run("convert", saved, there, "--to", "upstream-algorithm", "--set", "time-unit-us=1/5")[0] == 0
    words = ("--time-unit-us", "1/5", "--set", "chunk_size=1000")
    assert run("convert", there, back, "--from", "upstream_algorithm", *words)[0] == 0
    assert taccl.load(back).finish == taccl.load(saved).finish
    assert taccl.load(back).problem.size_bytes == 4000
    assert run("verify", back)[0] == 0


def test_an_algorithm_is_re_timed_on_another_topology(run, run_json, saved, tmp_path):
    """An algorithm of the published tool is re-timed on another ring, whose hops also take 0.52 us."""
    there = tmp_path / "there"
    run("convert", saved, there, "--to", "upstream-algorithm")
    code, values = run_json(
        "convert", there, tmp_path / "x.json", "--topology", "ring:4", "--chunk-size", "1KB"
    )
    assert (code, values["lost"]) == (0, [])
    assert taccl.load(tmp_path / "x.json").finish == taccl.load(saved).finish


@pytest.mark.slow
def test_schedule_that_does_not_fit_is_the_answer_no(run, tmp_path):
    """A scan cannot be written as an algorithm of the published tool: exit code 1."""
    words = [*SMALL]
    words[words.index("allgather")] = "scan"
    path = tmp_path / "scan.json"
    assert run("synthesize", *words, "--backend", "greedy", "--time-limit", 1, "-o", path)[0] == 0
    code, _, err = run("convert", path, tmp_path / "x", "--to", "upstream-algorithm")
    assert (code, (tmp_path / "x").exists()) == (1, False)
    assert "scan" in err


def test_program_is_for_sizes_about_that_of_its_schedule(run, saved, tmp_path):
    """A program of a 4 KB schedule is for 2 KB to 8 KB, unless ``--set`` gives a range. The range may have
    units."""
    path = tmp_path / "x.xml"
    assert run("convert", saved, path)[0] == 0
    assert 'minBytes="2000" maxBytes="8000"' in path.read_text()
    assert run("convert", saved, path, "--overwrite", "--set", "max_bytes=1GB")[0] == 0
    assert 'minBytes="2000" maxBytes="1000000000"' in path.read_text()
    code, _, err = run("convert", saved, path, "--overwrite", "--set", "max_bytes=1XB")
    assert (code, err.count("\n")) == (2, 1)
    assert "max_bytes: found '1XB'; expected a size" in err


@pytest.mark.slow
def test_long_threadblocks_are_split_with_a_message(run, tmp_path):
    """An MSCCL++ plan with more than 64 operations per threadblock is split, and stderr says so."""
    words = ("--topology", "ring:5", "--collective", "alltoall", "--chunks-per-rank", 8, "--size", "40KB")
    path, plan = tmp_path / "alltoall.json", tmp_path / "x.plan.json"
    assert run("baseline", "pairwise", *words, "-o", path)[0] == 0
    code, _, err = run("convert", path, plan)
    assert (code, plan.exists()) == (0, True)
    assert "each longer threadblock was split into several that take turns" in err
    code, _, err = run("convert", path, tmp_path / "y.plan.json", "--set", "split=false")
    assert code == 1
    assert "lower the schedule with --set channels=round-robin, --set num_channels=2" in err


def test_overwrite_replaces(run, saved, tmp_path):
    """With ``--overwrite`` an existing file is replaced."""
    target = tmp_path / "x.trace.json"
    target.write_text("mine")
    assert run("convert", saved, target, "--overwrite")[0] == 0
    assert "traceEvents" in json.loads(target.read_text())


def test_lists_of_names_have_commas(run, tmp_path):
    """A list among the options of a reader is given with commas, here the NICs in use."""
    rows = [
        "GPU0 X PIX PIX PIX 0-7 0",
        *(f"NIC{i} PIX {' '.join('X' if i == j else 'PIX' for j in range(3))}" for i in range(3)),
    ]
    text = "\n".join(
        ["\tGPU0\tNIC0\tNIC1\tNIC2\tCPU Affinity\tNUMA Affinity", *rows, "NIC0: a", "NIC1: b", "NIC2: c"]
    )
    (tmp_path / "in.txt").write_text(text + "\n")
    given = ("--set", "nodes=2", "--set", "nic_gb_per_s=5", "--set", "pcie_gb_per_s=50", "--set")
    code, *_ = run("convert", str(tmp_path / "in.txt"), str(tmp_path / "out.toml"), *given, "nics=a,NIC2")
    assert code == 0
    # Two NICs of 5 GB/s.
    assert {1000 / link.beta_us_per_mb for link in taccl.load(tmp_path / "out.toml").links} == {10}
    code, _, said = run("convert", str(tmp_path / "in.txt"), str(tmp_path / "o.toml"), *given, "nics=a,d")
    assert code == 2
    assert "found 'd'; expected a list of names out of a, b, c, NIC0, NIC1, NIC2" in said


def test_numbers_of_pairs_have_colons(run, tmp_path):
    """NVLinks that a file lacks are given pair by pair, as 0-1:4."""
    gpus = "".join(
        f'<pci busid="0000:0{i}:00.0" class="0x030200"><gpu dev="{i}" rank="{i}"/></pci>' for i in range(2)
    )
    (tmp_path / "in.xml").write_text(f'<system version="1"><cpu numaid="0">{gpus}</cpu></system>')
    given = ("--set", "nvlink_gb_per_s=25", "--set", "nvlinks=0-1:4")
    code, *_ = run("convert", str(tmp_path / "in.xml"), str(tmp_path / "out.toml"), *given)
    assert code == 0
    assert {1000 / link.beta_us_per_mb for link in taccl.load(tmp_path / "out.toml").links} == {100}
