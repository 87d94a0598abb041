"""Figures of machine models follow from their links."""

import pytest

from taccl.errors import InputError
from taccl.measure.machine import find_machine


@pytest.mark.parametrize(("name", "ranks_per_node", "ranks_per_nic", "node", "network"), [
    ("dgx-h100", 8, 1, 450.0, 50.0),  # a port of NVSwitch; a NIC of 400 Gb/s
    ("dgx2", 16, 2, 150.0, 12.5),
    ("ndv2", 8, 8, 150.0, 12.5),  # six NVLinks of 25 GB/s; one NIC of 100 Gb/s for all
])  # fmt: skip
def test_promises(name, ranks_per_node, ranks_per_nic, node, network):
    """GB/s of a rank inside its node and of a NIC, and who shares what."""
    found = find_machine(name)
    assert (found.ranks_per_node, found.ranks_per_nic) == (ranks_per_node, ranks_per_nic)
    assert (found.node_gb_per_s, found.network_gb_per_s) == pytest.approx((node, network))


@pytest.mark.parametrize("name", ["ring:4", "links.toml", "nowhere"])
def test_only_machine_models_are_fitted(name):
    """Fabrics and files have no profiles, so that they are not offered."""
    with pytest.raises(InputError, match="expected a machine model, by name: ndv2, dgx1") as caught:
        find_machine(name)
    assert "ring:8" not in str(caught.value)
