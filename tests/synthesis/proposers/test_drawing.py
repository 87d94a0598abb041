"""Scheduling by random draws of chunks, for links of irregular speeds, also in groups ("convoys") of chunks."""

import numpy as np
import pytest

import taccl
from taccl.synthesis.kernels.fabric import problem_arrays
from taccl.synthesis.proposers import drawing
from taccl.synthesis.proposers.large import schedule_large
from taccl.synthesis.proposers.spreading import default_rules, has_tiers
from taccl.topology.builder import TopologyBuilder

MB = 10**6


def uneven(size, chunks_per_rank=1):
    """Allgather of 1 MB chunks on a mesh whose links have 10 to 50 GB/s in each direction by chance."""
    rng, ranks = np.random.default_rng(0), np.arange(size * size).reshape(size, size)
    builder = TopologyBuilder("uneven", [0] * ranks.size)
    for one, other in ((ranks[:, :-1], ranks[:, 1:]), (ranks[:-1], ranks[1:])):
        for pair in zip(one.ravel().tolist(), other.ravel().tolist(), strict=True):
            for src, dst in (pair, pair[::-1]):
                builder.add_link(src, dst, alpha_us=2, beta_us_per_mb=int(rng.integers(20, 101)))
    collective = taccl.collectives.allgather(ranks.size, chunks_per_rank=chunks_per_rank)
    return taccl.make_problem(builder.build(), collective, chunk_bytes=MB)


def received_us(problem):
    """Time in which the slowest rank receives all other chunks over all links into it at once."""
    rate = np.zeros(problem.topology.num_ranks)
    for link in problem.topology.links:
        rate[link.dst] += 1 / (2 + float(link.beta_us_per_mb))
    per_rank = problem.collective.num_chunks // len(rate)
    return float(((len(rate) - 1) * per_rank / rate).max())


def test_links_of_random_speeds_draw_their_chunks():
    """With links of random speeds chunks are drawn at random, and the first schedule is near the optimum.

    It finishes within 1 % of the time in which the slowest rank can receive.
    """
    problem = uneven(18)
    assert default_rules(*problem_arrays(problem))[0].order == "drawn"
    schedule = schedule_large(problem, num_runs=1)
    assert taccl.verify(schedule).ok
    assert schedule.finish_us <= 1.01 * received_us(problem)


def test_tiers_of_links_are_found():
    """Fast links in nodes and slow ones between them are found as tiers; random speeds are not."""
    problem = taccl.make_problem(taccl.topologies.ndv2(2), "allgather", chunk_bytes=MB)
    assert has_tiers(problem_arrays(problem)[0])
    assert not has_tiers(problem_arrays(uneven(6))[0])


@pytest.mark.parametrize("chunks_per_rank", [1, 3])
def test_convoys_bring_all_chunks(monkeypatch, chunks_per_rank):
    """All chunks of a cluster, sent together as a convoy, reach every rank; the sends are sorted by start."""
    monkeypatch.setattr(drawing, "_FEW_SENDS", 0)
    monkeypatch.setattr(drawing, "_CONVOY_SHARE", 4 / (256 * 256 * chunks_per_rank) ** 0.25)
    monkeypatch.setattr(drawing, "_BLOCK", 500)
    problem = uneven(16, chunks_per_rank)
    schedule = schedule_large(problem, num_runs=1)
    assert taccl.verify(schedule).ok
    assert len(schedule) == 256 * 255 * chunks_per_rank
    assert (np.diff(schedule.kept.start) >= 0).all()
    assert schedule.finish_us <= 1.3 * received_us(problem)


@pytest.mark.parametrize(("few", "size"), [(1296, 4), (1297, 1)])
def test_convoys_only_for_very_many_sends(monkeypatch, few, size):
    """An allgather in a 6 x 6 mesh has 36 * 36 sends, whose fourth root is 6; 0.7 * 6 is at least 4."""
    monkeypatch.setattr(drawing, "_FEW_SENDS", few)
    monkeypatch.setattr(drawing, "_CONVOY_SHARE", 0.7)
    assert drawing._convoy_size(*problem_arrays(uneven(6))) == size


def test_clusters_are_joined_and_of_the_size():
    """Clusters in a 6 x 6 mesh have 2 to 7 ranks for a target of 4, each linked to another of its cluster."""
    fabric, _ = problem_arrays(uneven(6))
    cluster = drawing.clusters(fabric, 4)
    sizes = np.bincount(cluster)
    assert sizes.min() >= 2
    assert sizes.max() <= 7
    inside = cluster[fabric.src] == cluster[fabric.dst]
    assert set(fabric.src[inside]) == set(range(36))
