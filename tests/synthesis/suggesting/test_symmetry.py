"""Symmetries of topologies, and the shape of a topology that a sketch refers to."""

from fractions import Fraction

import pytest

import taccl
from taccl._internal.deadline import Deadline
from taccl.errors import TopologyError
from taccl.synthesis.suggesting.proposals import (
    Shift,
    find_shape,
    find_shifts,
    fitting_shifts,
    relay_plans,
)
from taccl.topology.builder import TopologyBuilder
from tests.synthesis.small_problems import linked


def plans(topology):
    """{name: plan for sends between nodes} of a topology."""
    return {plan.name: plan for plan in relay_plans(find_shape(topology))}


def said(plan):
    """The ``[internode]`` fields of a plan, without their comments."""
    return {name: value for name, (value, _) in plan.internode.items()}


def test_a_slow_link_breaks_the_symmetry():
    """A ring with one link slower in one direction has no symmetry left."""
    ring = taccl.topologies.ring(6)
    assert find_shifts(ring)
    assert not find_shifts(ring.degraded({(0, 1): "0.5"}))


def test_a_shared_resource_breaks_the_symmetry():
    """Two pairs of ranks are symmetric unless one of them shares a port."""
    for ports, expected in (
        (0, {Shift(2, 1), Shift(4, 2)}),
        (2, {Shift(2, 1)}),
        (4, {Shift(2, 1), Shift(4, 2)}),
    ):
        builder = TopologyBuilder("pairs", (0, 0, 0, 0))
        shared = [builder.add_resource(f"port {i}") for i in range(2)]
        for src, dst in ((0, 1), (1, 0), (2, 3), (3, 2)):
            link = builder.add_link(src, dst, alpha_us=1, beta_us_per_mb=1)
            if src < ports:
                builder.add_hold(link, shared[src // 2], alpha_us=1, beta_us_per_mb=1)
        assert expected == set(find_shifts(builder.build()))


def test_shifts_of_a_torus_are_its_rows_and_columns():
    """The shifts of a 4 x 4 torus include a shift by one rank within each row, and a shift of all ranks by
    one row."""
    shifts = find_shifts(taccl.topologies.torus(4, 4))
    assert {Shift(4, 1), Shift(16, 4)} <= set(shifts)
    assert Shift(16, 1) not in shifts


def test_shifts_of_dgx2_keep_pairs_at_their_nics():
    """If ranks 2i and 2i + 1 share a NIC, shifts by two in a node are symmetries; shifts by one are not."""
    shifts = find_shifts(taccl.topologies.dgx2(nodes=2))
    assert Shift(16, 2) in shifts
    assert Shift(32, 16) in shifts
    assert Shift(16, 1) not in shifts


def test_switches_are_found_where_none_is_declared():
    """Ranks with ports that all reach each other form a switch, declared or not."""
    machine = taccl.topologies.dgx_a100(profile="nominal")
    data = machine.to_dict() | {"switches": []}
    assert find_shape(taccl.Topology.from_dict(data)).switches == (tuple(range(8)),)


def test_plans_between_nodes_with_many_links():
    """For two DGX-2 there are three plans for sends between nodes.

    Ranks send only their own chunks, or only to the rank with their own local number, or without restriction.
    """
    found = plans(taccl.topologies.dgx2(nodes=2))
    assert list(found) == ["own-chunks", "same-number", "free"]
    assert said(found["own-chunks"])["relays"] == {rank: (rank,) for rank in range(16)}
    assert said(found["same-number"]) == {"connections": "direct-map"}
    assert said(found["free"]) == {}


def test_one_node_needs_no_relays():
    """A topology of one node has one plan, which sets nothing about sends between nodes."""
    (plan,) = relay_plans(find_shape(taccl.topologies.ring(4)))
    assert plan.internode == {}


def test_few_links_between_nodes_need_no_plan():
    """If only rank 1 of each node is linked to the other node, the only plan is "free", which restricts
    nothing."""
    builder = TopologyBuilder("bridge", (0, 0, 1, 1))
    for src, dst in ((0, 1), (1, 0), (2, 3), (3, 2), (1, 3), (3, 1)):
        builder.add_link(src, dst, alpha_us=1, beta_us_per_mb=1)
    assert list(plans(builder.build())) == ["free"]


def test_nodes_of_different_sizes_are_refused():
    """Nodes of 2 and 1 ranks are refused, since a sketch names local ranks of every node."""
    with pytest.raises(TopologyError, match="uneven: found nodes of 1, 2 ranks"):
        find_shape(linked("uneven", (0, 0, 1), ((0, 1), (1, 2), (2, 0)), alpha_us=1, beta_us_per_mb=1))


def test_fitting_symmetries_end_at_the_deadline():
    """Once time is up, the symmetries found so far count."""
    topology = taccl.topologies.ring(6)
    problem = taccl.make_problem(topology, "allgather", size_bytes=6000)
    assert fitting_shifts(problem, find_shifts(topology), deadline=Deadline.after(0)) == ()
    assert fitting_shifts(problem, find_shifts(topology))


def test_links_of_one_kind_are_compared_once(monkeypatch):
    """The fastest link between nodes is found by one sum of alpha and beta for each kind of link."""
    shape, added = find_shape(taccl.topologies.ndv2(nodes=2)), []
    add = Fraction.__add__
    monkeypatch.setattr(Fraction, "__add__", lambda a, b: added.append(a) or add(a, b))
    # Any of 8 x 8 ranks has a link to each of the other node, all of one kind.
    assert [shape.is_small(1), shape.is_small(2**30)] == [True, False]
    assert len(shape.topology.internode_links) == 128
    assert len(added) == 1
