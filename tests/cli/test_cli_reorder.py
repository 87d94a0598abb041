"""``taccl probe`` and ``taccl reorder`` as a person types them."""

import json
import re

import pytest

from taccl.cli.command import run

MATRIX = "us,a,b,c,d\na,0,20,10,20\nb,20,0,20,10\nc,10,20,0,20\nd,20,10,20,0\n"


@pytest.fixture
def matrix(tmp_path):
    """Two racks of two hosts, in turns."""
    path = tmp_path / "latency.csv"
    path.write_text(MATRIX)
    return path


@pytest.mark.slow
def test_an_order_and_its_files(matrix, tmp_path, capsys):
    """The racks follow one another, and every requested file exists."""
    files = {name: tmp_path / name for name in ("hosts", "ranks", "rules", "tuner", "out.json")}
    words = ["reorder", matrix, "--size", "8MB", "--hostfile", files["hosts"], "--rankfile", files["ranks"]]
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
def test_text_says_what_is_gained(matrix, capsys):
    """Before, after, the bound, why, what was assumed, and the hosts in the order of ranks."""
    assert run(["reorder", str(matrix), "--size", "8MB"]) == 0
    out = capsys.readouterr().out
    assert "times as fast; proven: no order is simulated faster" in out
    assert re.search(r"note: .*every port 12.5 GB/s", out)
    assert "rank 0 to 3 on: " in out


@pytest.mark.slow
def test_slots_of_a_host_are_told_apart(tmp_path, capsys):
    """Two ranks of each host: the second one is called so."""
    path = tmp_path / "latency.csv"
    path.write_text(MATRIX.replace("us,a,b,c,d", "us,a,b,a,b"))
    assert run(["reorder", str(path), "--size", "8MB"]) == 0
    order = capsys.readouterr().out.splitlines()[-1].split(": ")[1].split(" ")
    assert sorted(order) == ["a:0", "a:1", "b:0", "b:1"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--hosts", "few"], "--hosts: found 3 slots for 4 ranks"),
        (["--hosts", "none"], "there is no such file"),
        (["--algorithm", "rong"], "--algorithm: found 'rong'"),
        (["--oversubscription", "0"], "expected a number of at least 1"),
        (["--plot", "x.txt"], "x.txt"),
        (["--hostfile", "few"], "the file exists"),
    ],
)
def test_bad_words_are_refused(matrix, tmp_path, monkeypatch, capsys, words, complaint):
    """In one sentence, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "few").write_text("a\nb\nc\n")
    assert run(["reorder", str(matrix), *words]) == 2
    assert complaint in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["few", "latency.csv"]


def test_hosts_in_another_order_than_the_rows_are_refused(matrix, tmp_path, capsys):
    """Two slots on each measured host would put the figures of b on the second slot of a."""
    (tmp_path / "hosts").write_text("a:2\nb:2\nc:2\nd:2\n")
    assert run(["reorder", str(matrix), "--hosts", str(tmp_path / "hosts")]) == 2
    assert "found slot 1 on a, and row 1 of the figures is of b" in capsys.readouterr().err


def test_hosts_need_names(capsys):
    """A machine's ranks have none."""
    assert run(["reorder", "ring:4", "--hostfile", "hosts"]) == 2
    assert "found no names of hosts; give them with --hosts" in capsys.readouterr().err


def test_a_topology_says_its_own_bandwidth(capsys):
    """Options for probes are refused for other topologies."""
    assert run(["reorder", "ring:4", "--bandwidth", "3"]) == 2
    assert "--bandwidth: found a topology, which says it itself" in capsys.readouterr().err


def test_probe_needs_ranks(tmp_path, capsys):
    """None are started unless a number is given."""
    assert run(["probe", "-o", str(tmp_path / "probe.json")]) == 2
    assert "--ranks: found none; expected two ranks or more" in capsys.readouterr().err
