"""Topologies by name."""

import pytest

import taccl
from taccl.errors import TopologyError
from taccl.topology import fabrics, machines
from taccl.topology.networks import INSTANCES
from taccl.topology.registry import fabric_names, machine_names, parse


@pytest.mark.parametrize("name", ["dgx-a100", "DGX_A100", "dgxa100", " Dgx-A100 "])
def test_spelling_of_machines_is_free(name):
    """Case, dashes and underscores in a machine's name do not matter."""
    assert parse(name) == machines.dgx_a100()


@pytest.mark.slow
def test_every_machine_parses_under_its_own_name():
    """The name of a machine's topology parses to the same machine."""
    for name in machine_names():
        topology = parse(name, nodes=2, profile="nominal")
        assert (topology.machine, topology.num_nodes, topology.profile) == (name, 2, "nominal")


def test_every_machine_model_is_a_function_of_the_facade():
    """Each machine model is also a function of the facade; instance types are available by `parse` only."""
    named = {name.replace("-", "_") for name in machine_names() if name not in INSTANCES}
    assert named <= set(taccl.topologies.__all__)


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("ring:8", fabrics.ring(8)),
        ("mesh:4x3", fabrics.mesh(4, 3)),
        ("torus:4x4x2", fabrics.torus(4, 4, 2)),
        ("hypercube:3", fabrics.hypercube(3)),
        ("fully-connected:4", fabrics.fully_connected(4)),
        ("Fully_Connected:4", fabrics.fully_connected(4)),
        ("star:5", fabrics.star(5)),
    ],
)
def test_fabrics_are_named_with_their_size(name, same):
    """In a fabric's name its size follows a colon, as in ``ring:8``."""
    assert parse(name) == same


@pytest.mark.parametrize(
    "name", ["ring:8", "mesh:4x3", "torus:2x2", "hypercube:3", "fully-connected:4", "star:5"]
)
def test_the_name_of_a_fabric_parses_to_itself(name):
    """The name of a fabric's topology parses to the same fabric."""
    assert parse(name).name == name
    assert parse(name).machine in fabric_names()


def test_a_fabric_is_cut_into_nodes():
    """Four nodes of a 4x4 torus have four ranks each."""
    assert parse("torus:4x4", nodes=4).ranks_of_node[1] == (4, 5, 6, 7)


def test_keywords_are_passed_on():
    """Keyword arguments are passed on to the function of the machine or fabric."""
    assert parse("dgx-h100", nodes=2, rails=False) == machines.dgx_h100(2, rails=False)
    assert parse("ring:4", bandwidth_gb_per_s=10) == fabrics.ring(4, bandwidth_gb_per_s=10)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("torsu:4x4", {}, "did you mean 'torus'"),
        ("dgx3", {}, "expected a machine such as .*ring:8; did you mean 'dgx"),
        ("", {}, "expected a machine .ndv2, dgx1, .*ring:8"),
        (None, {}, "found None"),
        (__file__, {}, "found the file .*: read the file with taccl.topologies.load"),
        ("ring", {}, "ring: size: found no size; expected a size as in 'ring:8'"),
        ("ring:4x4", {}, "ring: size: found '4x4'"),
        ("mesh:4x", {}, "expected a size as in 'mesh:4x4'"),
        ("ring:-3", {}, "ring: size: found '-3'"),
        ("ring:99999999999", {}, "ring: size: found '99999999999'; expected numbers of at most 9 digits"),
        ("h100", {}, "did you mean 'dgx-h100'"),
        ("ndv2:2", {}, "ndv2 takes no size: give the number of nodes as nodes=2$"),
        ("ndv2", {"num_nodes": 2}, "takes nodes, profile, .*; did you mean 'nodes'"),
        ("ndv2", {"nodes": 0}, "nodes: found 0"),
        ("ndv2", {"profile": "fast"}, "expected a file, or one of taccl, nominal"),
        ("ndv2", {"rails": True}, "ndv2: rails: found True, but ndv2 has none"),
        ("ring:4", {"profile": "nominal"}, "a fabric has no profiles"),
        ("ring:4", {"nodes": 3}, "divides the 4 ranks"),
        ("torus:100000x100000", {}, "expected at most 1000000"),
    ],
)
def test_what_names_no_topology_is_refused(name, options, message):
    """The error for an unknown name of a topology lists the known names, and suggests the nearest."""
    with pytest.raises(TopologyError, match=message):
        parse(name, **options)
