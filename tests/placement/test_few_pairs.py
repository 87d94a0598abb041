"""Probes of few pairs: the pairs measured, the clusters found, and their test on held-out pairs."""

from types import SimpleNamespace

import numpy as np
import pytest

from taccl.cli.command import run
from taccl.placement import measuring
from taccl.placement.few_pairs import FewPairs, explained, found_by, most_pairs, verdict
from taccl.placement.measuring import _ProbeRank
from taccl.placement.probe import probe_work


def cloud(racks, pods=1, noise=0.1, seed=0):
    """(latencies in us: 10 in racks, 20 between them, 30 between pods, with noise; rack of each host)."""
    rng = np.random.default_rng(seed)
    rack = rng.permutation(np.repeat(np.arange(len(racks)), racks))
    pod = rack * pods // len(racks)
    far = 10.0 + 10 * (rack[:, None] != rack) + 10 * (pod[:, None] != pod)
    far = far * (1 + noise * rng.standard_normal(far.shape)).clip(0.5, 1.5)
    return (far + far.T) / 2, rack


def probed(latency):
    """(plan, measured figures, clusters, held-out pairs) of a probe of these latencies."""
    plan, seen = FewPairs(len(latency)), np.full(latency.shape, np.nan)

    def measure(pairs):
        ranks = [rank for pair in pairs for rank in pair]
        assert len(ranks) == len(set(ranks)), "a rank has one partner in a round"
        for a, b in pairs:
            assert np.isnan(seen[a, b]), "no pair is measured twice"
            seen[a, b] = seen[b, a] = latency[a, b]
        return [latency[pair] for pair in pairs]

    return plan, seen, *found_by(plan, measure)


@pytest.mark.parametrize(
    ("racks", "pods", "sizes"),
    [((8,) * 8, 1, [8]), ((8,) * 8, 2, [8, 2]), ((13, 9, 8, 8, 8, 7, 6, 5), 1, [8])],
)
def test_racks_and_pods_are_found_from_few_pairs(racks, pods, sizes):
    """At most 864 of 2,016 pairs are measured, with 10 % noise; held-out pairs confirm the clusters."""
    latency, rack = cloud(racks, pods)
    plan, seen, clusters, held = probed(latency)
    assert [max(level) + 1 for level in clusters] == sizes
    assert len(set(zip(clusters[0], rack.tolist(), strict=True))) == len(racks)
    assert np.triu(~np.isnan(seen), 1).sum() <= most_pairs(64) == 864
    assert "clusters explain 9" in verdict(plan, seen, held, clusters)


def test_equal_hosts_are_in_no_clusters():
    """For equal hosts the probe ends after six random rounds, without clusters."""
    plan, seen, clusters, held = probed(cloud((64,))[0])
    assert clusters == ()
    assert plan.num_rounds == 6
    assert "no clusters were found" in verdict(plan, seen, held, clusters)


def test_exhausted_pairs_are_reported():
    """32 racks of 2 hosts need more than the allowed pairs: the verdict names racks that may be one."""
    plan, seen, clusters, held = probed(cloud((2,) * 32)[0])
    assert "may be one, as no pairs are left" in verdict(plan, seen, held, clusters)


def test_clusters_that_do_not_predict_are_reported():
    """For random distances, two clusters explain under half of the variance, and the verdict says so."""
    place = np.arange(32)
    latency = np.exp(np.random.default_rng(0).standard_normal((32, 32)))
    latency = (latency + latency.T) / 2
    held = [(a, a + 1) for a in range(0, 32, 2)]
    halves = ((place % 2).tolist(),)
    assert explained(latency, held, halves) < 0.5
    said = verdict(FewPairs(32), latency, held, halves)
    assert "clusters do not explain 16 held-out pairs" in said
    assert said.endswith("measure all pairs")


def test_rank_0_chooses_the_rounds_of_a_probe(monkeypatch):
    """Rank 0 broadcasts the rounds of the first pass, later passes repeat them, and all five racks are found."""
    latency, _ = cloud((8,) * 5)
    rank = _ProbeRank.__new__(_ProbeRank)
    rank.comm, rank.rounds, rank.note = SimpleNamespace(rank=0, size=40), [], lambda _: None
    rank.latency_us, told = np.full((4, 40, 40), np.nan), []

    def measure(pairs, turn=0):
        for a, b in pairs:
            rank.latency_us[turn, a, b] = rank.latency_us[turn, b, a] = latency[a, b]

    rank._measure = measure
    monkeypatch.setattr(measuring, "broadcast", lambda comm, value: told.append(value))
    rank._find_clusters()
    assert told == [*rank.rounds, []]
    assert rank.missing == [[], *[rank.rounds] * 3]
    assert [max(level) + 1 for level in rank.clusters] == [5]


def test_the_work_is_that_of_the_messages():
    """The predicted work of a probe counts all its messages and their replies.

    Two ranks with 4 repetitions in 4 passes send 1 + 3 small and 3 + 3 large messages each way.
    """
    work = probe_work(2, rounds=1, size=100, repetitions=4, few=False)
    assert (work.passes, work.pairs, work.rounds) == (4, 1, 1)
    assert work.num_bytes == 4 * 2 * (4 * 2 + 6 * 101)
    more = probe_work(2, rounds=1, size=100, repetitions=4, few=False, passes=6)
    assert (more.passes, more.num_bytes) == (6, 6 * 2 * (4 * 2 + 6 * 101))


def test_work_is_stated_beforehand(capsys, tmp_path):
    """The amount of work is stated without measuring or writing anything."""
    path = tmp_path / "probe.json"
    assert run(["probe", "-n", "256", "--few", "--dry-run", "-o", str(path)]) == 0
    out = capsys.readouterr().out
    assert "4 passes over at most 4480 of 32640 pairs" in out
    assert "GB sent" in out
    assert not path.exists()
