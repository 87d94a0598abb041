"""The topology value: results of the builder, refusals, and round trips."""

import json
from dataclasses import replace
from fractions import Fraction

import pytest

from taccl import topologies
from taccl.errors import FormatError, TopologyError
from taccl.topology.builder import TopologyBuilder
from taccl.topology.topology import Hold, Link, Resource, Switch, Topology


@pytest.fixture
def small():
    """Two nodes with links 0->1, 0->2 and 1->3, a NIC that the last two links share, and a multicast."""
    builder = TopologyBuilder("small", [0, 0, 1, 1], profile="mine", machine="")
    builder.add_link(0, 1, alpha_us="0.3", beta_us_per_mb=8)
    across = [builder.add_link(src, dst, alpha_us=2.6, beta_us_per_mb=105) for src, dst in ((0, 2), (1, 3))]
    nic = builder.add_resource("NIC")
    builder.add_hold(across[0], nic, alpha_us=0, beta_us_per_mb=105)
    builder.add_hold(across[1], nic, alpha_us=1, beta_us_per_mb=100, side="receive")
    multicast = builder.add_link(2, (3, 1), alpha_us=1, beta_us_per_mb=10, name="multicast")
    builder.add_switch("switch", (2, 3), [multicast])
    return builder.build(notes=["a note"])


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(
            lambda small: [(h.alpha_us, h.beta_us_per_mb, h.side) for h in small.holds_of_link[0]],
            [(Fraction(3, 10), 8, "send")],
            id="a link that occupies holds itself for alpha and beta",
        ),
        pytest.param(
            lambda small: [
                (h.link, h.alpha_us, h.beta_us_per_mb, h.side)
                for h in small.holds
                if small.resources[h.resource].name == "NIC"
            ],
            [(1, 0, 105, "send"), (2, 1, 100, "receive")],
            id="two links hold the NIC, each for its own time and on its own side",
        ),
        pytest.param(
            lambda small: (small.links[3].srcs, small.links[3].dsts, str(small.links[3])),
            ((2,), (1, 3), "2->1,3 (multicast)"),
            id="a multicast link has sorted ends",
        ),
        pytest.param(lambda small: small.links_from, ((0, 1), (2,), (3,), ()), id="links out of a rank"),
        pytest.param(lambda small: small.links_to, ((), (0, 3), (1,), (2, 3)), id="links into a rank"),
        pytest.param(lambda small: small.links_between(2, 1), (3,), id="links between ranks"),
        pytest.param(lambda small: small.links_between(1, 2), (), id="none the other way"),
        pytest.param(lambda small: small.internode_links, (1, 2, 3), id="links that leave their node"),
        pytest.param(
            repr, "Topology('small', 4 ranks in 2 nodes, 4 links, profile 'mine')", id="in one line"
        ),
        pytest.param(
            lambda small: repr(replace(small, profile="")),
            "Topology('small', 4 ranks in 2 nodes, 4 links)",
            id="without a profile",
        ),
    ],
)
def test_links_have_their_ends_holds_and_nodes(small, found, expected):
    """Links have the expected ends, holds and nodes."""
    assert found(small) == expected


def test_a_pipelined_link_holds_itself_without_alpha():
    """A pipelined link is held for its bytes alone, without alpha."""
    builder = TopologyBuilder("t", [0, 0], alpha_meaning="pipelined")
    builder.add_link(0, 1, alpha_us=5, beta_us_per_mb=2)
    (hold,) = builder.build().holds
    assert (hold.alpha_us, hold.beta_us_per_mb) == (0, 2)


def test_decimal_costs_are_exact():
    """A float is read as the decimal that was written."""
    builder = TopologyBuilder("t", [0, 0])
    builder.add_link(0, 1, alpha_us=0.1, beta_us_per_mb="0.7")
    (link,) = builder.build().links
    assert (link.alpha_us, link.beta_us_per_mb) == (Fraction(1, 10), Fraction(7, 10))


def test_ranks_know_their_place_in_their_node():
    """A rank's local rank is its index among the ranks of its node."""
    topology = TopologyBuilder("t", [0, 1, 0, 1]).build()
    assert topology.ranks_of_node == ((0, 2), (1, 3))
    assert topology.local_rank == (0, 0, 1, 1)
    assert (topology.num_ranks, topology.num_nodes) == (4, 2)


def test_reversed_turns_links_and_sides_round(small):
    """Reversal swaps sources with destinations, and send-side with receive-side holds."""
    back = small.reversed()
    assert (back.links[3].srcs, back.links[3].dsts) == ((1, 3), (2,))
    assert [h.side for h in back.holds] == ["receive" if h.side == "send" else "send" for h in small.holds]


def test_reversed_twice_is_the_same(small):
    """Two reversals give an equal topology, with the same name and notes."""
    twice = small.reversed().reversed()
    assert twice == small
    assert (twice.name, twice.notes) == (small.name, small.notes)


def test_plain_values_round_trip_through_json(small):
    """A topology survives a round trip through `to_dict` and JSON."""
    assert Topology.from_dict(json.loads(json.dumps(small.to_dict()))) == small


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        *((name, None, name) for name in ("name", "links", "holds", "switches", "node_of_rank")),
        *(
            (name, value, "not of its kind")
            for name, value in (("links", 3), ("holds", [[1, 2]]), ("resources", 0))
        ),
        # A power of ten too large for memory is refused before it is computed.
        *(
            ("alpha_us", cost, "not of its kind: number: found")
            for cost in ("1e999999999", "1e-300", "-1", "many")
        ),
    ],
)
def test_other_plain_values_are_refused(small, field, value, message):
    """A missing field, a value of another type, or a cost without an exact form is a format error."""
    data = small.to_dict()
    if field == "alpha_us":
        data["links"][0]["alpha_us"] = value
    elif value is None:
        del data[field]
    else:
        data[field] = value
    with pytest.raises(FormatError, match=message):
        Topology.from_dict(data)


@pytest.mark.parametrize(
    ("node_of_rank", "message"), [([], "no ranks"), ([0, 2], r"found node numbers \[0, 2\]")]
)
def test_invalid_nodes_are_refused(node_of_rank, message):
    """There must be a rank, and nodes must be numbered from 0 without gaps."""
    with pytest.raises(TopologyError, match=message):
        TopologyBuilder("t", node_of_rank).build()


def test_every_link_holds_a_resource():
    """A link without a resource is refused, as it could carry any number of sends at once."""
    ring = topologies.ring(3)
    with pytest.raises(TopologyError, match=r"link 0->1 holds no resource, .*; add one of its own"):
        replace(ring, holds=tuple(hold for hold in ring.holds if hold.link))


@pytest.mark.parametrize(
    ("src", "dst", "alpha", "beta", "message"),
    [
        (0, 5, 0, 1, "rank 5 does not exist; the topology has ranks 0-1"),
        (-1, 0, 0, 1, "rank -1 does not exist"),
        (1, 1, 0, 1, "joins a rank to itself"),
        (0, (1, 1), 0, 1, "names a rank twice"),
        ((), 1, 0, 1, "empty end"),
        (0, 1, -1, 1, "link 0->1: alpha_us: found -1"),
        (0, 1, 0, -1, "link 0->1: beta_us_per_mb: found -1"),
        (0, 1, 0, "much", "expected a finite number"),
        (0, 1, float("nan"), 1, "expected a finite number"),
        (0, 1, float("inf"), 1, "expected a finite number"),
        (0, 1, 1, 0, "expected alpha >= 0 and beta > 0"),
    ],
)
def test_links_with_wrong_ends_or_costs_are_refused(src, dst, alpha, beta, message):
    """Ends must be existing ranks, each named once; costs finite, beta positive, and alpha not negative."""
    builder = TopologyBuilder("t", [0, 0])
    with pytest.raises(TopologyError, match=message):
        builder.add_link(src, dst, alpha_us=alpha, beta_us_per_mb=beta)
        builder.build()


@pytest.mark.parametrize(
    ("alpha", "beta", "message"),
    [(0, 0, "expected a positive time"), (2, 1, "longer than the send"), (0, 2, "longer than the send")],
)
def test_holds_that_no_send_can_have_are_refused(alpha, beta, message):
    """A hold must take time, but no longer than the send."""
    builder = TopologyBuilder("t", [0, 0])
    link = builder.add_link(0, 1, alpha_us=1, beta_us_per_mb=1)
    builder.add_hold(link, builder.add_resource("NIC"), alpha_us=alpha, beta_us_per_mb=beta)
    with pytest.raises(TopologyError, match=message):
        builder.build()


def _one_link(**changes):
    one = Fraction(1)
    whole = Topology("t", (0, 0), (Link((0,), (1,), one, one),), (Resource("r"),), (Hold(0, 0, one, one),))
    return replace(whole, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"holds": (Hold(1, 0, Fraction(1), Fraction(1)),)}, "no such link or resource"),
        ({"holds": (Hold(0, 1, Fraction(1), Fraction(1)),)}, "no such link or resource"),
        ({"holds": (Hold(0, 0, Fraction(1), Fraction(1), "both"),)}, "expected 'send' or 'receive'"),
        ({"holds": (Hold(0, 0, Fraction(-1), Fraction(1)),)}, "expected a positive time"),
        ({"links": (Link((0,), (1,), Fraction(-1), Fraction(1)),)}, "expected alpha >= 0"),
        ({"switches": (Switch("s", (0, 2), ()),)}, "switch s: rank 2 does not exist"),
        ({"switches": (Switch("s", (0, 1), (1,)),)}, "switch s: link 1 does not exist"),
        ({"alpha_meaning": "waits"}, "expected 'occupies' or 'pipelined'"),
        ({"cost_model": "free"}, "expected 'physical' or 'upstream'"),
    ],
)
def test_what_cannot_be_a_topology_is_refused(changes, message):
    """Changes that make a topology invalid are refused however it is constructed."""
    with pytest.raises(TopologyError, match=message):
        _one_link(**changes)


def test_equal_holds_of_a_file_are_checked_once(monkeypatch):
    """A topology from a file has one object for equal costs and sides, so that each kind of hold is checked once."""
    from taccl.topology import checks

    checked, faults_of, text = [], checks._faults_of_hold, json.dumps(topologies.ring(32).to_dict())
    monkeypatch.setattr(
        checks, "_faults_of_hold", lambda hold, *_: checked.append(hold) or faults_of(hold, *_)
    )
    found = Topology.from_dict(json.loads(text))
    assert (len(found.holds), len(checked)) == (64, 1)
