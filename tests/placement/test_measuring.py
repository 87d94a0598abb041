"""A probe by real MPI ranks: rounds, measurements, and continuation after an interruption."""

import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import taccl
from taccl.errors import ExecutionError, InputError
from taccl.placement.matrices import load_probe
from taccl.placement.measuring import _ProbeRank, pairs_of_round


@pytest.mark.parametrize("count", [2, 3, 8, 9])
def test_rounds_have_every_pair_once(count):
    """n - 1 rounds (n for odd n) pair all ranks once, and each rank at most once per round."""
    rounds = [pairs_of_round(count, number) for number in range(count - 1 + count % 2)]
    for pairs in rounds:
        ranks = [rank for pair in pairs for rank in pair]
        assert len(ranks) == len(set(ranks)) == count - count % 2
    every = sorted(pair for pairs in rounds for pair in pairs)
    assert every == [(a, b) for a in range(count) for b in range(a + 1, count)]


@pytest.mark.parametrize(("is_crowded", "batches"), [(False, 1), (True, 3)])
def test_where_cores_are_few_pairs_take_turns(is_crowded, batches):
    """Three pairs of a round are measured simultaneously, or one after another if cores are few."""
    rank, waited = _ProbeRank.__new__(_ProbeRank), []
    done = SimpleNamespace(Test=lambda: True)
    rank.comm = SimpleNamespace(rank=6, Ibarrier=lambda: waited.append("") or done)
    rank.expect, rank.repetitions, rank.part, rank.is_crowded = lambda *_: None, 1, None, is_crowded
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("taccl.placement.measuring.gathered", lambda comm, value: None)
        rank._measure([(0, 1), (2, 3), (4, 5)])
    assert len(waited) == batches


def test_small_messages_that_were_held_up_make_no_link_infinitely_fast():
    """The one-way time of a large message is at least half of its round trip.

    Here the small answer's latency (150 us) exceeds the whole round trip (100 us), so subtracting it would give
    a negative time.
    """
    rank = _ProbeRank.__new__(_ProbeRank)
    rank.comm, rank.small, rank.large = SimpleNamespace(rank=0), np.zeros(1), np.zeros(10**6)
    rank.repetitions = 20
    took_s = {1: 300e-6, 10**6: 100e-6}
    rank._there_and_back = lambda partner, begins, message, count: np.full(count, took_s[len(message)])
    latency_us, gb_per_s, _ = rank._both_directions((0, 1))
    assert latency_us == pytest.approx(150)
    assert gb_per_s == pytest.approx(20)  # 1 MB in half of 100 us


@pytest.fixture(scope="module")
def probed(mpiexec, tmp_path_factory):
    """(probe of three ranks, its file, its notes)."""
    path, told = tmp_path_factory.mktemp("probe") / "probe.json", []
    return taccl.probe(ranks=3, path=path, size="64KB", passes=5, note=told.append), path, told


@pytest.mark.slow
def test_a_probe_of_real_ranks(probed):
    """Every pair has latency and bandwidth in both directions; the file is complete, and gives a topology."""
    found, path, told = probed
    off = ~np.eye(3, dtype=bool)
    assert (found.latency_us[off] > 0).all()
    assert (found.bandwidth_gb_per_s[off] > 0).all()
    assert "round 3 of 3" in told
    assert "pass 5 of 5" in told
    assert found.latency_repeats_us.shape == found.bandwidth_repeats_gb_per_s.shape == (5, 3, 3)
    assert np.allclose(np.median(found.latency_repeats_us, axis=0)[off], found.latency_us[off])
    assert load_probe(path).to_dict() == found.to_dict()
    assert not path.with_name("probe.json.part").exists()
    assert taccl.topologies.load(path).num_ranks == 3


@pytest.mark.slow
def test_a_probe_goes_on_where_it_was_broken_off(probed, tmp_path):
    """Rounds in the partial file are not measured again: their figures stay to the last digit."""
    whole, path, told = probed[0], tmp_path / "probe.json", []
    known = whole.to_dict() | {"sampled": True, "uplinks": []}
    for a, b in pairs_of_round(3, 0):
        for matrix in ("latency_us", "bandwidth_gb_per_s"):
            known[matrix][a][b] = known[matrix][b][a] = None
    path.with_name("probe.json.part").write_text(json.dumps(known))
    again = taccl.probe(ranks=3, path=path, size="64KB", passes=5, note=told.append)
    assert "2 rounds were measured before" in told
    assert "round 1 of 1" in told
    kept = [pair for number in (1, 2) for pair in pairs_of_round(3, number)]
    assert all(again.latency_us[pair] <= whole.latency_us[pair] for pair in kept)


@pytest.mark.slow
def test_a_sample_joins_a_launcher(mpiexec, tmp_path):
    """Two of three rounds under the user's own mpiexec give two of three pairs, and a topology of all ranks."""
    path = tmp_path / "probe.json"
    words = ["probe", "-o", str(path), "--rounds", "2", "--size", "4KB", "--repetitions", "4", "--json"]
    done = subprocess.run(
        [mpiexec, "-n", "3", sys.executable, "-m", "taccl", *words],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["sampled"]
    found = load_probe(path)
    assert found.latency_us is not None
    assert np.isfinite(found.latency_us).sum() == 2 * 2
    assert found.topology().num_ranks == 3


def test_what_cannot_be_probed_is_refused(tmp_path, monkeypatch):
    """Fewer than two ranks, an existing file and a missing MPI are refused."""
    with pytest.raises(InputError, match="ranks: found none; expected two ranks or more"):
        taccl.probe()
    with pytest.raises(InputError, match="ranks: found 1;"):
        taccl.probe(ranks=1)
    path = tmp_path / "there.json"
    path.write_text("{}")
    with pytest.raises(InputError, match="the file exists"):
        taccl.probe(ranks=2, path=path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ExecutionError, match="mpi4py is not installed"):
        taccl.probe(ranks=2, path=tmp_path / "new.json")
    assert not (tmp_path / "new.json").exists()
