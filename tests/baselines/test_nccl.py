"""What NCCL would choose, and the schedule of it."""

from __future__ import annotations

import pytest

import taccl
from benchmarks.fit import baseline_row
from taccl.baselines import nccl, nccl_choices
from taccl.errors import CollectiveError
from taccl.topology.topology import TopologyBuilder


def problem_of(topology, collective="allreduce", size=2**20):
    """A collective of a size."""
    return taccl.make_problem(topology, collective, size_bytes=size)


def test_the_model_by_hand():
    """A ring under LL: launch and base, 14 hops of 0.6 us, and 1.75 bytes for every byte at its rate."""
    topology = taccl.topologies.dgx_h100(profile="nccl")
    (found,) = (
        each
        for each in nccl_choices(problem_of(topology))
        if (each.algorithm, each.protocol) == ("ring", "ll")
    )
    beta = topology.under("ll").links[0].beta_us_per_mb
    assert found.latency_us == pytest.approx(7.0 + 6.6 + 14 * 0.6)
    assert found.time_us == pytest.approx(found.latency_us + 1.75 * 2**20 / 1e6 * float(beta))


def test_protocols_follow_one_another():
    """As messages grow, the latency counts less, and the bandwidth more."""
    topology = taccl.topologies.dgx_h100(profile="nccl")
    best = [nccl_choices(problem_of(topology, size=size))[0].protocol for size in (8, 2**24, 2**30)]
    assert best == ["ll", "ll128", "simple"]


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reduce-scatter", "broadcast", "alltoall"])
def test_the_schedule_is_valid_under_the_protocol_chosen(collective, nodes):
    """Whatever the problem's own protocol; its producer says which algorithm and protocol."""
    problem = problem_of(taccl.topologies.dgx_h100(nodes, profile="nccl"), collective)
    best, found = nccl_choices(problem)[0], nccl(problem)
    assert taccl.verify(found).ok
    assert found.problem.topology.protocol == best.protocol
    assert found.producer.startswith(f"nccl ({best.algorithm}, {best.protocol}, {best.channels} channels: ")


def test_one_ring_takes_what_the_model_says():
    """Behind a switch, with a chunk for each rank: launch, 14 hops and 14 chunks, but for overheads."""
    problem = problem_of(taccl.topologies.dgx_h100(profile="nccl"), size=2**30)
    assert nccl(problem).predicted_us == pytest.approx(nccl_choices(problem)[0].time_us, rel=1e-3)


def test_eight_ranks_that_are_all_linked_have_seven_rings():
    """A mesh's ring uses all of its links: 448 GB/s of a rank, of which 4 / 7 are the bytes of an allreduce."""
    problem = problem_of(taccl.topologies.mi300x(profile="nominal"), size=7 * 2**27)
    assert nccl(problem).algbw_gb_per_s == pytest.approx(448 * 4 / 7, rel=1e-6)


def test_switches_that_add_are_used():
    """Four ranks behind a switch that adds and multicasts: a byte goes there once, and comes back once."""
    builder = TopologyBuilder("sharp", [0] * 4)
    into, out = ([builder.add_resource(f"port {way} {rank}") for rank in range(4)] for way in ("in", "out"))
    others = {rank: tuple(r for r in range(4) if r != rank) for rank in range(4)}
    pairs = [((a,), (b,)) for a in range(4) for b in others[a]]
    wide = [each for rank in range(4) for each in ((others[rank], (rank,)), ((rank,), others[rank]))]
    for srcs, dsts in pairs + wide:
        link = builder.add_link(srcs, dsts, alpha_us=0, beta_us_per_mb=2)
        for rank in srcs:
            builder.add_hold(link, out[rank], alpha_us=0, beta_us_per_mb=2)
        for rank in dsts:
            builder.add_hold(link, into[rank], alpha_us=0, beta_us_per_mb=2, side="receive")
    builder.add_switch("switch", range(4), range(20), reduces=taccl.topologies.InNetwork())
    problem = problem_of(builder.build(), size=4 * 10**6)
    best, found = nccl_choices(problem)[0], nccl(problem)
    assert (best.algorithm, best.time_us) == ("nvls", pytest.approx(8.0))
    assert taccl.verify(found).ok
    assert 8.0 < found.finish_us < 8.6  # 4 MB at 2 us per MB, and the last chunk's way back


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (lambda: problem_of(taccl.topologies.ring(4), "scan"), "nccl has no scan; it has allreduce"),
        (
            lambda: problem_of(TopologyBuilder("one", [0]).build(), taccl.collectives.allgather(1)),
            "two ranks or more",
        ),
    ],
)
def test_what_nccl_lacks_is_said(problem, said):
    """One sentence."""
    with pytest.raises(CollectiveError, match=said):
        nccl(problem())


@pytest.mark.slow
@pytest.mark.parametrize("log", ["p5_x1_allreduce_aws_batch", "mi300x_x1_allreduce_rccl"])
def test_fitted_profiles_predict_their_logs(shared_data, log):
    """Launch and finish of the schedule that NCCL would choose, within 15 % of the log's times (median)."""
    assert baseline_row(shared_data / "nccl-tests", log)["met"]
