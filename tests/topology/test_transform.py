"""Transforms of topologies: what they change and what they preserve."""

import random
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl.errors import TopologyError
from taccl.topology.builder import TopologyBuilder
from taccl.topology.fabrics import mesh, ring, star
from taccl.topology.links import Link
from taccl.topology.machines import dgx2, dgx_h100, ndv2
from taccl.topology.topology import Topology
from taccl.topology.transform import degraded, relabel, subset, without


def edges(topology):
    return sorted((link.src, link.dst) for link in topology.links)


def names(topology):
    return {resource.name for resource in topology.resources}


def test_transforms_keep_assumptions():
    """Assumptions survive relabelling, subsets, slowing, reversal, other protocols and plain values."""
    guessed = replace(ring(4), assumed=("a guess",))
    machine = replace(dgx_h100(1), assumed=("a guess",))
    for each in (
        relabel(guessed, [1, 2, 3, 0]),
        without(guessed, links=[(0, 1)]),
        without(guessed, ranks=[3]),
        degraded(guessed, {(0, 1): Fraction(1, 2)}),
        guessed.reversed(),
        Topology.from_dict(guessed.to_dict()),
        machine.under("ll"),
    ):
        assert each.assumed == ("a guess",)


def test_relabel_renames_ends_nodes_and_switches():
    """With ranks 0, 1, 2 renamed 2, 0, 1, link ends, nodes and switches are renamed."""
    builder = TopologyBuilder("t", [0, 0, 1])
    builder.add_link(0, (1, 2), alpha_us=1, beta_us_per_mb=1)
    builder.add_switch("s", (0, 1), [0])
    new = relabel(builder.build(), [2, 0, 1])
    assert (new.links[0].srcs, new.links[0].dsts) == ((2,), (0, 1))
    assert new.node_of_rank == (0, 1, 0)
    assert new.switches[0].ranks == (2, 0)
    assert new.resources[0].name == "link 2->0,1"


@pytest.mark.slow
@given(seed=st.integers(0, 1000))
@settings(max_examples=15, deadline=None)
def test_relabelled_back_is_the_same(seed):
    """Relabelling by a permutation and then its inverse gives the same topology."""
    topology = ndv2(2)
    permutation = list(range(16))
    random.Random(seed).shuffle(permutation)
    inverse = [permutation.index(rank) for rank in range(16)]
    assert relabel(relabel(topology, permutation), inverse) == topology


@pytest.mark.parametrize("permutation", [[0, 1], [0, 1, 1], [1, 2, 3]])
def test_relabel_requires_a_permutation(permutation):
    """A renaming that repeats or omits a rank is refused."""
    with pytest.raises(TopologyError, match="expected every rank 0-2 once"):
        relabel(ring(3), permutation)


def test_links_between_ranks_kept_stay():
    """A subset keeps the links between its ranks: ranks 1 and 2 of a line 0-1-2-3 become a line 0-1."""
    assert edges(without(mesh(4), ranks=[0, 3])) == [(0, 1), (1, 0)]


def test_a_node_can_fail():
    """The second of two nodes alone equals the first except for names."""
    node = without(dgx2(2), ranks=range(16))
    assert node.node_of_rank == (0,) * 16
    assert node.links == dgx2(1).links
    assert len(node.switches) == 1
    assert node.switches[0].ranks == tuple(range(16))
    assert not any("NIC" in name for name in names(node))


def test_switches_of_one_rank_go():
    """A switch with one remaining rank is removed."""
    assert without(star(3), ranks=[1, 2]).switches == ()


@pytest.mark.parametrize(
    ("ranks", "message"), [([0, 1, 2], "found no ranks to keep"), ([9], "rank 9 does not exist")]
)
def test_some_ranks_that_exist_must_stay(ranks, message):
    """Failed ranks must exist, and at least one rank must remain."""
    with pytest.raises(TopologyError, match=message):
        without(ring(3), ranks=ranks)


def test_without_links_keeps_the_rest():
    """Without one link, ranks keep their numbers, and other links their order."""
    topology = ring(4)
    left = without(topology, links=[(0, 1)])
    assert edges(left) == [edge for edge in edges(topology) if edge != (0, 1)]
    assert left.num_ranks == 4
    assert "link 0->1" not in names(left)


def test_a_pair_means_every_link_between_the_two():
    """Parallel links fail together if named by their ends, and separately if named by index."""
    builder = TopologyBuilder("t", [0, 0])
    for _ in range(2):
        builder.add_link(0, 1, alpha_us=1, beta_us_per_mb=1)
    assert without(builder.build(), links=[(0, 1)]).links == ()
    assert len(without(builder.build(), links=[1]).links) == 1


def test_holds_follow_their_links_when_some_fail():
    """Each remaining link still holds its own ports."""
    left = without(star(3), links=[0, 4])
    for index, link in enumerate(left.links):
        held = {left.resources[hold.resource].name for hold in left.holds_of_link[index]}
        assert held == {f"link {link}", f"port out {link.src} (switch)", f"port in {link.dst} (switch)"}
    assert left.switches[0].links == (0, 1, 2, 3)


def test_without_ranks_renumbers_the_others():
    """A ring of four without rank 1 is the line 2-3-0, now 1-2-0."""
    assert edges(without(ring(4), ranks=[1])) == [(0, 2), (1, 2), (2, 0), (2, 1)]


def test_links_and_ranks_can_fail_together():
    """If links and ranks fail together, links are named by the rank numbers before the failure."""
    assert edges(without(ring(4), links=[(3, 0)], ranks=[1])) == [(0, 2), (1, 2), (2, 1)]


@pytest.mark.parametrize(
    ("failed", "message"),
    [
        ({"links": [(0, 2)]}, r"link \(0, 2\) does not exist"),
        ({"links": [99]}, "link 99 does not exist"),
        ({"links": [(0, 9)]}, "rank 9 does not exist"),
        ({"ranks": [9]}, "rank 9 does not exist"),
        ({"ranks": [0, 1, 2, 3]}, "found no ranks to keep"),
    ],
)
def test_what_fails_must_exist(failed, message):
    """A failed link or rank that does not exist is refused."""
    with pytest.raises(TopologyError, match=message):
        without(ring(4), **failed)


def test_a_nic_takes_its_links_along():
    """If a NIC fails, the links that hold it fail, too.

    NIC 3 of node 1 has one link in each direction, to and from NIC 3 of node 0.
    """
    topology = dgx_h100(2, profile="nominal")
    left = without(topology, resources=["NIC 3 of node 1 egress", "NIC 3 of node 1 ingress"])
    assert set(edges(topology)) - set(edges(left)) == {(3, 11), (11, 3)}
    assert "NIC 3 of node 1 egress" not in names(left)
    with pytest.raises(TopologyError, match="there is no resource 'NIC 9 of node 1'"):
        without(topology, resources=["NIC 9 of node 1"])


def test_a_degraded_link_is_slower_by_itself():
    """With a quarter of its bandwidth, link 0 -> 1 and its hold have four times the beta, the same alpha."""
    topology = ring(3)
    slow = degraded(topology, {(0, 1): "0.25"})
    index = topology.links_between(0, 1)[0]
    for e, (was, now) in enumerate(zip(topology.links, slow.links, strict=True)):
        factor = 4 if e == index else 1
        assert (now.alpha_us, now.beta_us_per_mb) == (was.alpha_us, factor * was.beta_us_per_mb)
        assert slow.holds_of_link[e][0].beta_us_per_mb == factor * topology.holds_of_link[e][0].beta_us_per_mb
    assert degraded(topology, {index: Fraction(1, 4)}) == slow


def test_a_degraded_link_leaves_what_it_shares_alone():
    """A NIC shared by several links keeps its rate."""
    topology = dgx_h100(3, profile="nominal")
    e = topology.links_between(0, 8)[0]
    held = {topology.resources[h.resource].name: h for h in degraded(topology, {e: 0.5}).holds_of_link[e]}
    assert held["link 0->8 (InfiniBand)"].beta_us_per_mb == 40
    assert held["NIC 0 of node 0 egress"].beta_us_per_mb == 20


def test_a_degraded_nic_slows_its_links():
    """With half a NIC's rate, every send holds it twice as long, and takes twice as long."""
    topology = dgx_h100(3, profile="nominal")
    slow = degraded(topology, {"NIC 0 of node 0 egress": 0.5})
    for there in (8, 16):
        (e,) = slow.links_between(0, there)
        assert slow.links[e].beta_us_per_mb == 40
        assert {slow.resources[h.resource].name: h.beta_us_per_mb for h in slow.holds_of_link[e]} == {
            f"link 0->{there} (InfiniBand)": 20,
            "NIC 0 of node 0 egress": 40,
            f"NIC 0 of node {there // 8} ingress": 20,
        }
    (back,) = slow.links_between(8, 0)
    assert slow.links[back] == topology.links[back]


@pytest.mark.parametrize(
    ("links", "message"),
    [
        ({(0, 1): 0}, "found 0; expected the part of the bandwidth that is left"),
        ({(0, 1): 2}, "above 0 and at most 1"),
        ({(0, 1): -1}, "found -1"),
        ({(0, 9): 1}, "rank 9 does not exist"),
        ({99: 1}, "link 99 does not exist"),
        ({"NIC": 1}, "there is no resource 'NIC'"),
    ],
)
def test_what_is_degraded_must_exist_and_keep_something(links, message):
    """Degraded links must exist, and keep a positive part of their bandwidth."""
    with pytest.raises(TopologyError, match=message):
        degraded(ring(4), links)


def test_subsets_keep_sums_in_switches():
    """Four of eight ranks keep a reducing switch, with reductions and multicasts among them."""
    whole = dgx_h100(nvls=True)
    part = subset(whole, ranks=(0, 1, 4, 5))
    wide = {(link.srcs, link.dsts) for link in part.links if max(len(link.srcs), len(link.dsts)) > 1}
    assert wide == {
        ends
        for rank in range(4)
        for others in [tuple(each for each in range(4) if each != rank)]
        for ends in [((rank,), others), (others, (rank,))]
    }
    assert {resource.name for resource in part.resources if resource.name.startswith("link ")} == {
        f"link {link}" for link in part.links
    }


def test_subsets_of_all_ranks_are_the_topology_itself():
    """The subset of all ranks is the topology itself."""
    whole = dgx2()
    assert subset(whole) is whole
    assert subset(whole, without_ranks=(7,)).num_ranks == 15


def test_names_of_links_are_made_for_their_own_resources_alone(monkeypatch):
    """A subset renames the resources of links, and makes no names for the holds of ports and NICs."""
    topology, made = dgx_h100(2), []
    name = Link.__str__
    monkeypatch.setattr(Link, "__str__", lambda link: (made.append(link), name(link))[1])
    found = subset(topology, ranks=range(1, 16))
    assert len(made) <= 3 * len(topology.links)
    assert {each.name for each in found.resources} >= {f"link {name(link)}" for link in found.links}
