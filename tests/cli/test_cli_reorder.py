"""``taccl probe`` and ``taccl reorder`` from the command line."""

import json
import re

import pytest

from taccl import baselines
from taccl.cli.command import run
from taccl.formats.msccl.xml import dump_msccl_xml
from taccl.problem.making import make_problem
from taccl.program.lower import lower
from taccl.topologies import ring
from tests.foreign import OURS

MATRIX = "us,a,b,c,d\na,0,20,10,20\nb,20,0,20,10\nc,10,20,0,20\nd,20,10,20,0\n"


@pytest.fixture
def matrix(tmp_path):
    """Path of a latency matrix of two racks of two hosts, listed alternately."""
    path = tmp_path / "latency.csv"
    path.write_text(MATRIX)
    return path


@pytest.mark.slow
def test_an_order_and_its_files(matrix, tmp_path, capsys):
    """Hosts of a rack are adjacent in the new order, and every requested file exists."""
    files = {name: tmp_path / name for name in ("hosts", "ranks", "rules", "tuner", "out.json")}
    words = ["reorder", matrix, "--size", "8MB", "--time-limit", 600]  # more than a loaded machine needs
    words += ["--hostfile", files["hosts"], "--rankfile", files["ranks"]]
    words += ["--openmpi-rules", files["rules"], "--nccl-tuner", files["tuner"], "-o", files["out.json"]]
    assert run([*map(str, words), "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["proven"]
    assert values["after_us"] < values["before_us"]
    assert {frozenset(values["order"][:2]), frozenset(values["order"][2:])} != {
        frozenset((0, 1)),
        frozenset((2, 3)),
    }
    order = [values["hosts"][slot] for slot in values["order"]]
    assert files["hosts"].read_text() == "".join(f"{name}:1\n" for name in order)
    assert files["ranks"].read_text().startswith(f"rank 0={order[0]}\n")
    assert json.loads(files["out.json"].read_text())["order"] == values["order"]
    assert files["rules"].read_text().startswith("1  # collectives")
    assert files["tuner"].read_text().splitlines()[1].startswith("allreduce,0,")


@pytest.mark.slow
def test_a_program_is_placed(tmp_path, capsys):
    """A file with a program is an algorithm; its time is the one that `simulate` gives."""
    program = tmp_path / "ring.xml"
    problem = make_problem(ring(4), "allgather", size_bytes=4096)
    program.write_text(dump_msccl_xml(lower(baselines.ring(problem))))
    found = []
    for words in (["simulate", program, "--topology"], ["reorder", "--algorithm", program]):
        words += ["ring:4", "--size", "4096", "--json"] + ["--collective", "allgather"] * (
            words[0] == "reorder"
        )
        assert run(list(map(str, words))) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[1]["before_us"] == pytest.approx(found[0]["sizes"][0]["finish_us"])


@pytest.mark.slow
def test_text_says_what_is_gained(matrix, capsys):
    """The text has times before and after, the bound, the reason, assumptions, and hosts in rank order."""
    assert run(["reorder", str(matrix), "--size", "8MB"]) == 0
    out = capsys.readouterr().out
    assert "times as fast for this model\n  proven: no order is simulated faster\n" in out
    assert "  note: assumed: every port 12.5 GB/s\n" in out
    assert "hosts of ranks 0 to 3: " in out


@pytest.mark.slow
def test_assumptions_are_stated_once(matrix, tmp_path, capsys):
    """Notes list clusters and every assumption once, and no warning repeats them, even with a topology built."""
    tuner = str(tmp_path / "tuner.conf")
    assert run(["reorder", str(matrix), "--size", "8MB", "--nccl-tuner", tuner]) == 0
    out, err = capsys.readouterr()
    for text in ("2 clusters", "every port 12.5 GB/s", "uplink oversubscription 4 times"):
        assert (out + err).count(text) == 1


@pytest.mark.slow
def test_slots_of_a_host_are_distinguished(tmp_path, capsys):
    """With two ranks per host, the second slot of a host has a name of its own."""
    path = tmp_path / "latency.csv"
    path.write_text("us,a,b,a,b\na,0,20,10,20\nb,20,0,20,10\na,10,20,0,20\nb,20,10,20,0\n")
    assert run(["reorder", str(path), "--size", "8MB"]) == 0
    order = capsys.readouterr().out.splitlines()[-1].split(": ")[1].split(" ")
    assert sorted(order) == ["a:0", "a:1", "b:0", "b:1"]


@pytest.mark.slow
def test_an_order_that_launchers_cannot_start_is_reported(matrix, tmp_path, capsys):
    """If launchers cannot start the order found, the given order is kept, and a note says why."""
    hosts, written = tmp_path / "hosts", tmp_path / "written"
    hosts.write_text("one:4\n")
    assert run(["reorder", str(matrix), "--hosts", str(hosts), "--hostfile", str(written)]) == 0
    said = capsys.readouterr().out
    assert "start the ranks of a host in slot order, so the order found is of no use; the order found" in said
    assert written.read_text() == "one:4\n"


@pytest.mark.slow
def test_figures_of_the_order_found_and_of_the_launched_order_are_distinguished(tmp_path, capsys):
    """If launchers start another order than the one found, a note says which of the two each figure is for."""
    path, hosts, written = (tmp_path / name for name in ("latency.csv", "hosts", "written"))
    rows = [
        [0 if i == j else (5 if i % 2 == j % 2 else 30) + (i - j) / 9 for j in range(6)] for i in range(6)
    ]
    path.write_text("\n".join([f"us,{','.join('abcdef')}", *(
        f"{name},{','.join(map(str, row))}" for name, row in zip("abcdef", rows, strict=True)
    )]))  # fmt: skip
    hosts.write_text("one:3\ntwo:3\n")
    asked = ["--size", "10MB", "--algorithm", "ring", "--hosts", str(hosts), "--hostfile", str(written)]
    assert run(["reorder", str(path), *asked, "--within-noise"]) == 0
    said = capsys.readouterr().out
    after = re.search(r"simulated after +(\S+) us", said)
    found = re.search(r"which the figures above are for; the order found was .*simulated.* at (\S+) us", said)
    assert after is not None and found is not None and float(found[1]) < float(after[1])


@pytest.mark.slow
def test_slots_beyond_the_ranks_are_named(matrix, tmp_path, capsys):
    """If a host file has more slots than the matrix has rows, the first slots are used, and a note says so."""
    matrix.write_text(MATRIX.replace("a", "w").replace("b", "x").replace("c,", "y,"))
    hosts = tmp_path / "hosts"
    hosts.write_text("n0 slots=4\nn1 slots=4\n")
    assert run(["reorder", str(matrix), "--hosts", str(hosts), "--size", "8MB"]) == 0
    told = "the host file has 8 slots for 4 rows of figures: the first 4 are used, without n1; list one slot"
    assert told in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("fabric", ["slurm/topology.conf", "ibnetdiscover/two-leaves.txt"])
def test_switches_place_the_hosts_of_a_job(tmp_path, capsys, fabric):
    """Hosts that alternate between two leaf switches are grouped by switch: the ring leaves each switch once."""
    fabric, hosts, new = OURS / fabric, tmp_path / "job", tmp_path / "new"
    hosts.write_text("node01\nnode05\nnode02\nnode06\nnode03\nnode09\n")
    words = ["reorder", fabric, "--hosts", hosts, "--hostfile", new, "--launcher", "slurm"]
    assert run([*map(str, words)]) == 0
    assert "clusters are stated, and nothing is measured" in capsys.readouterr().out
    on_first = [host in ("node01", "node02", "node03") for host in new.read_text().split()]
    assert sum(here != there for here, there in zip(on_first, on_first[1:] + on_first[:1], strict=True)) == 2
