"""Hamiltonian rings on meshes, and allgathers along them that meet the bound."""

import numpy as np
import pytest

from taccl import topologies
from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.verification.verify import verify
from taccl.analysis.verification.verify_implicit import verify_implicit
from taccl.errors import TopologyError
from taccl.synthesis.symmetry.implicit import hamiltonian_ring, has_hamiltonian_ring, synthesize_implicit
from taccl.topology.named import parse_named

DIMS = [
    (2, 2),
    (2, 3),
    (3, 2),
    (4, 4),
    (5, 4),
    (4, 5),
    (2, 2, 2),
    (3, 3, 2),
    (1, 4, 3),
    (3, 4, 5),
    (2, 3, 1, 3),
]


@pytest.mark.parametrize("dims", DIMS)
def test_the_ring_visits_every_rank_once(dims):
    """The ring visits every rank once, and each step, also the last, moves by one along one axis."""
    ring = hamiltonian_ring(dims)
    assert sorted(ring.tolist()) == list(range(int(np.prod(dims))))
    places = np.stack(np.unravel_index(ring, dims))
    steps = np.abs(places - np.roll(places, -1, axis=1))
    assert (steps.sum(axis=0) == 1).all()


@pytest.mark.parametrize("dims", [(3, 3), (5, 7), (4,), (1, 6), (3, 3, 3)])
def test_meshes_without_a_ring(dims):
    """Meshes with only odd sides and lines have no Hamiltonian ring."""
    assert not has_hamiltonian_ring(dims)
    with pytest.raises(TopologyError, match="no ring visits every rank once"):
        hamiltonian_ring(dims)


def test_two_by_two_by_hand():
    """On 2 x 2 the ring goes along the second column and back along the first."""
    assert hamiltonian_ring((2, 2)).tolist() == [1, 3, 2, 0]


@pytest.mark.parametrize("collective", ["allgather", "reduce-scatter", "allreduce"])
@pytest.mark.parametrize("dims", ["2x2", "3x4", "4x4", "6x3", "2x3x2"])
def test_small_meshes_expand_to_valid_schedules(dims, collective):
    """Implicit schedules of small meshes expand to valid schedules, also with two chunks per rank."""
    for pieces in (1, 2):
        result = synthesize_implicit(f"mesh:{dims}", collective, chunks_per_rank=pieces)
        expanded = result.schedule.expand()
        assert verify_implicit(result.schedule).ok
        assert verify(expanded).ok
        assert expanded.finish == result.schedule.finish >= result.bound.bound


@pytest.mark.parametrize("dims", ["2x2", "3x4", "4x4", "6x7", "32x32"])
def test_meshes_of_two_axes_meet_the_bound(dims):
    """On meshes of two axes an allgather meets its bound: R - 1 chunks over two links into a corner, or latency."""
    result = synthesize_implicit(f"mesh:{dims}")
    assert result.gap == 0
    assert "corner" in result.bound.limits or result.bound.kind == "latency"


@pytest.mark.parametrize("collective", ["allgather", "reduce-scatter", "allreduce"])
def test_the_bound_is_the_certificate(collective):
    """On a 3 x 4 mesh the bound of an implicit schedule is at most that of `lower_bound`."""
    result = synthesize_implicit("mesh:3x4", collective)
    assert result.bound.bound <= lower_bound(result.schedule.problem()).bound


def test_mesh_200x200():
    """40,000 ranks take 20,000 rounds of 20.5 us, which is the bound."""
    result = synthesize_implicit("mesh:200x200")
    assert (result.finish_us, result.gap) == (20_000 * 20.5, 0)


@pytest.mark.slow
def test_alltoall_goes_round_too():
    """An alltoall along the ring is valid."""
    result = synthesize_implicit("mesh:2x3", "alltoall")
    assert verify(result.schedule.expand()).ok
    assert result.bound.bound <= result.schedule.finish


def test_a_mesh_topology_is_recognised():
    """A mesh topology is recognised by its links, for any division into nodes."""
    result = synthesize_implicit(topologies.mesh(4, 3, ranks_per_node=3))
    assert result.schedule.host == parse_named("mesh:4x3")


def test_only_meshes_of_one_bandwidth():
    """A mesh whose axes differ in bandwidth is refused."""
    with pytest.raises(TopologyError, match="differ in bandwidth"):
        synthesize_implicit("mesh:4x4", bandwidth_gb_per_s=[75, 50])
