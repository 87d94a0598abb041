"""Tests of cut counting on very large problems, where the chunks are counted at the most promising sets of
ranks only."""

import numpy as np
import pytest

import taccl
from taccl.analysis.certificates import borders
from taccl.analysis.certificates.borders import counted
from taccl.analysis.certificates.finding.gates import FOREVER, _least_rests
from taccl.analysis.certificates.finding.needed_sends import NeededSends
from taccl.analysis.certificates.finding.volume import Volume
from taccl.topology.builder import TopologyBuilder


@pytest.mark.parametrize("seed", range(5))
def test_the_set_with_the_highest_bound_is_counted_first(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng = np.random.default_rng(seed)
    builder = TopologyBuilder("uneven nodes", [rank // 3 for rank in range(12)])
    for src in range(12):
        for dst in {(src + 1) % 12, (src + 5) % 12, (src - 1) % 12}:
            builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=int(rng.integers(10, 200)))
    problem = taccl.make_problem(
        builder.build(), taccl.collectives.allgather(12, chunks_per_rank=16), chunk_bytes=10**6
    )
    demand, volume = NeededSends(problem), Volume(problem, divisible=False)
    claims = list(counted(demand, volume))
    of_ranks, of_nodes = claims[:12], claims[12:]
    assert len(of_nodes) == 4
    for family in (of_ranks, of_nodes):
        assert family[0].ticks == max(claim.ticks for claim in family)
    monkeypatch.setattr(borders, "_MOST_COUNTED", 1)
    assert [claim.witness for claim in counted(demand, volume)] == [of_ranks[0].witness, of_nodes[0].witness]


def test_the_least_rest_of_sends_is_that_of_all_holds_of_a_gate():
    """Holds that are alike count once; random ones agree with a comparison of all of them, one by one."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        num_gates, num_holds = int(rng.integers(1, 5)), int(rng.integers(5, 30))
        gate = np.append(np.arange(num_gates), rng.integers(num_gates, size=num_holds - num_gates))
        most, alpha, beta = (rng.integers(1, bound, num_holds) for bound in (400, 4, 3))
        found = _least_rests(num_gates, gate, most, alpha, alpha + beta)
        assert found.shape == (most.max(), num_gates)
        for n, q in ((1, 0), (2, num_gates - 1), (257, 0), (int(most.max()), 0)):
            every = [alpha[i] + n * beta[i] for i in range(num_holds) if gate[i] == q and n <= most[i]]
            assert n > len(found) or found[n - 1, q] == min(every, default=FOREVER)
