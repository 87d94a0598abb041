"""Permutations of ranks, and their action on links, resources and chunks."""

from fractions import Fraction
from random import Random

import numpy as np
import pytest

from taccl import collectives
from taccl.errors import SketchError
from taccl.problem.alltoallv import alltoallv_problem
from taccl.problem.making import make_problem
from taccl.sketch.symmetry import (
    _keys,
    _taken,
    block_shifts,
    check_topology,
    chunk_permutation,
    link_permutation,
    narrow,
    offset_permutation,
    order,
    power,
    resource_permutation,
    share_permutations,
)
from taccl.topology.builder import TopologyBuilder
from taccl.topology.machines import dgx2, dgx_h100, ndv2
from taccl.topology.transform import rescaled

COSTS = {"alpha_us": 1, "beta_us_per_mb": 1}


def ring(num_ranks):
    """A ring of links r -> r + 1, in that order."""
    builder = TopologyBuilder("ring", [0] * num_ranks)
    for rank in range(num_ranks):
        builder.add_link(rank, (rank + 1) % num_ranks, **COSTS)
    return builder.build()


def two_planes(*, swapped):
    """Ranks 0 and 1 with links both ways over planes A and B, each link with its own port.

    - `swapped`: True to list rank 1's link over plane B before that over plane A.
    """
    builder = TopologyBuilder("planes", [0, 0])
    for src, dst in ((0, 1), (1, 0)):
        for plane in "BA" if swapped and src == 1 else "AB":
            link = builder.add_link(src, dst, name=plane, **COSTS)
            # Plane A's port is held for longer than plane B's, which tells the planes apart.
            port = builder.add_resource(f"{plane}{src}")
            builder.add_hold(link, port, alpha_us=1, beta_us_per_mb=1 if plane == "A" else 0)
    return builder.build()


def test_offset_permutation_stays_in_blocks():
    """A shift by 1 in groups of 2 swaps neighbours."""
    assert offset_permutation(4, 1, 2) == (1, 0, 3, 2)


def test_offset_permutation_needs_whole_blocks():
    """Six ranks do not divide into groups of four."""
    with pytest.raises(SketchError, match="divides the 6 ranks"):
        offset_permutation(6, 1, 4)


def test_order_and_power():
    """A rotation by 2 of 6 ranks has order 3, and applied twice it is a rotation by 4."""
    ranks = offset_permutation(6, 2, 6)
    assert order(ranks) == 3
    assert power(ranks, 2) == offset_permutation(6, 4, 6)
    assert power(ranks, 0) == tuple(range(6))


def test_ring_rotates():
    """Rotating a ring by one rank maps link r to link r + 1, and its resource likewise."""
    links = link_permutation(ring(4), offset_permutation(4, 1, 4))
    assert links == (1, 2, 3, 0)
    assert resource_permutation(ring(4), links) == (1, 2, 3, 0)


def test_line_does_not_rotate():
    """A ring without its last link lacks the rotation."""
    builder = TopologyBuilder("line", [0, 0, 0])
    builder.add_link(0, 1, **COSTS)
    builder.add_link(1, 2, **COSTS)
    assert link_permutation(builder.build(), (1, 2, 0)) is None


@pytest.mark.parametrize("swapped", [False, True])
def test_parallel_links_follow_their_resources(swapped):
    """Swapping the two ranks maps plane A to plane A, in whatever order its links were added."""
    topology = two_planes(swapped=swapped)
    links = link_permutation(topology, (1, 0))
    assert [topology.links[e].name for e in links] == [e.name for e in topology.links]
    resources = resource_permutation(topology, links)
    port = {r.name: i for i, r in enumerate(topology.resources)}
    assert (resources[port["A0"]], resources[port["B1"]]) == (port["A1"], port["B0"])


def test_shared_resource_has_to_map():
    """A symmetry must map shared resources to shared resources.

    Links 0->1 and 2->3 share a resource, 1->2 and 3->0 do not, so the ring no longer rotates by one.
    """
    builder = TopologyBuilder("shared", [0] * 4)
    for rank in range(4):
        builder.add_link(rank, (rank + 1) % 4, **COSTS)
    shared = builder.add_resource("bus")
    for link in (0, 2):
        builder.add_hold(link, shared, **COSTS)
    topology = builder.build()
    assert link_permutation(topology, offset_permutation(4, 1, 4)) is None
    assert link_permutation(topology, offset_permutation(4, 2, 4)) == (2, 3, 0, 1)
    with pytest.raises(
        SketchError, match=r"offset 1 maps the links that share bus with 0->1 to links around"
    ):
        check_topology(topology, offset_permutation(4, 1, 4), label="offset 1", where="a.toml: symmetry[0]")


def test_refusal_names_a_pair_of_ranks():
    """The error for a rotation that is no symmetry names two links of different cost.

    On NDv2, 0-1 is a double NVLink (23 us/MB) and 1-2 a single one (46 us/MB).
    """
    with pytest.raises(SketchError, match=r"maps link 0->1 \(23 us/MB\) to 1->2, which has 46 us/MB"):
        check_topology(ndv2(1), offset_permutation(8, 1, 8), label="offset 1", where="a.toml: symmetry[0]")


def test_refusal_names_a_missing_link():
    """A rotation of the line 0->1->2 is refused, as it would need a link 2->0."""
    builder = TopologyBuilder("line", [0, 0, 0])
    builder.add_link(0, 1, **COSTS)
    builder.add_link(1, 2, **COSTS)
    with pytest.raises(SketchError, match=r"maps link 1->2 to 2->0, which does not exist"):
        check_topology(builder.build(), (1, 2, 0), label="offset 1", where="x")


@pytest.mark.parametrize("offset", [(8, 16), (4, 8)])
def test_ndv2_has_its_symmetries(offset):
    """NDv2's two nodes are alike, and so are the two halves of a node."""
    topology = ndv2(2)
    links = link_permutation(topology, offset_permutation(16, *offset))
    assert sorted(links) == list(range(len(topology.links)))
    assert resource_permutation(topology, links) is not None


@pytest.mark.parametrize(("offset", "has"), [((2, 16), True), ((1, 16), False), ((16, 32), True)])
def test_dgx2_pairs_share_a_nic(offset, has):
    """On DGX-2 ranks 2i and 2i + 1 share a NIC, so an odd offset is not a symmetry."""
    assert (link_permutation(dgx2(2), offset_permutation(32, *offset)) is not None) == has


@pytest.mark.parametrize(
    ("collective", "expected"),
    [
        # With two chunks per rank, the k-th chunk of a rank maps to the k-th of the next.
        (collectives.allgather(3, chunks_per_rank=2), (2, 3, 4, 5, 0, 1)),
        # Chunk 3 s + d goes to the chunk from s + 1 to d + 1.
        (collectives.alltoall(3), (4, 5, 3, 7, 8, 6, 1, 2, 0)),
        # Origins and destinations are all ranks; only roots distinguish chunks.
        (collectives.allreduce(3), (1, 2, 0)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_chunks_follow_a_rotation_of_ranks(collective, expected):
    """Chunks follow a rotation of three ranks."""
    assert chunk_permutation(make_problem(ring(3), collective, chunk_bytes=1), (1, 2, 0)) == expected


@pytest.mark.parametrize("name", ["broadcast", "scatter", "gather", "reduce", "scan"])
def test_rooted_collectives_do_not_rotate(name):
    """A rotation moves the root, or the order of a scan."""
    problem = make_problem(ring(3), collectives.make(name, 3), chunk_bytes=1)
    assert chunk_permutation(problem, (1, 2, 0)) is None


def test_sizes_break_symmetry():
    """Chunks of different sizes do not map to each other."""
    problem = make_problem(ring(3), collectives.allgather(3), chunk_bytes=(1, 1, 2))
    assert chunk_permutation(problem, (1, 2, 0)) is None


def test_equal_sums_of_sizes_are_no_symmetry():
    """All ranks send 6 MB and receive 6 MB, but pairs at a distance of one rank exchange 1 or 2 MB in turn."""
    near, middle, far = (1, 2, 1, 2), (3, 3, 3, 3), (2, 1, 2, 1)
    sizes = [[0] * 4 for _ in range(4)]
    for distance, row in enumerate((near, middle, far), start=1):
        for rank, size in enumerate(row):
            sizes[rank][(rank + distance) % 4] = size * 10**6
    problem = alltoallv_problem(ring(4), sizes, chunk_bytes=10**7)
    assert chunk_permutation(problem, (1, 2, 3, 0)) is None
    assert chunk_permutation(problem, (2, 3, 0, 1)) is not None


def test_narrow_to_what_the_collective_has():
    """For a broadcast from roots 0 and 2 of four ranks, the rotation by one is narrowed to the rotation by
    two."""
    collective = collectives.multi_root_broadcast(4, roots=(0, 2))
    problem = make_problem(ring(4), collective, chunk_bytes=1)
    assert narrow(problem, offset_permutation(4, 1, 4)) == (2, offset_permutation(4, 2, 4))


def test_narrow_to_nothing():
    """If a broadcast has a single root, a rotation is narrowed to the identity."""
    problem = make_problem(ring(4), collectives.broadcast(4), chunk_bytes=1)
    assert narrow(problem, offset_permutation(4, 1, 4)) == (4, None)


def test_permutations_of_a_topology_with_scaled_costs_are_shared(monkeypatch):
    """Topologies whose costs differ only by a common factor share their permutations."""
    topology = ndv2(2)
    shift = offset_permutation(16, 8, 16)
    known = link_permutation(topology, shift)
    scaled = rescaled(topology, dict.fromkeys(((False, "beta"), (True, "beta")), Fraction(2, 3)))
    assert link_permutation(scaled, shift) == known
    again = rescaled(topology, dict.fromkeys(((False, "beta"), (True, "beta")), Fraction(1, 3)))
    share_permutations(again, topology)
    monkeypatch.setattr("taccl.sketch.symmetry._Keys", None)
    assert link_permutation(again, shift) == known


@pytest.mark.parametrize("topology", [dgx_h100(2), dgx2(1), ring(5)], ids=lambda topology: topology.name)
def test_resources_that_follow_their_links_in_order_map_as_by_all_their_links(topology):
    """The i-th hold of a link maps to the i-th of its image; a comparison of all links of resources agrees."""
    keys, random = _keys(topology), Random(1)
    for offset, group in block_shifts(topology.num_ranks):
        links = link_permutation(topology, offset_permutation(topology.num_ranks, offset, group))
        if links is not None:
            assert keys.resources_in_order(np.array(links)) is not None
            assert resource_permutation(topology, links) == _taken(keys.alike, keys.held_by(np.array(links)))
    for _ in range(5):
        links = random.sample(range(len(topology.links)), len(topology.links))
        expected = _taken(keys.alike, keys.held_by(np.array(links)))
        assert resource_permutation(topology, tuple(links)) == expected
