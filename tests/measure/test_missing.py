"""A fit names the measurements that would determine its undetermined parameters."""

import pytest

import taccl
from taccl.errors import InputError, NumericsWarning
from taccl.measure.fitted import missing_measurements
from taccl.measure.machine import placed
from taccl.measure.model import PARAMETERS
from taccl.measure.series import Series
from tests.measure.logs import SIZES, table

pytestmark = pytest.mark.usefixtures("_quick_fits")


def test_every_parameter_has_its_measurement():
    """Each undetermined parameter is named once among the missing measurements.

    No measurement is missing if all parameters are determined.
    """
    told = " ".join(missing_measurements(PARAMETERS)).replace(",", " ").split()
    assert all(told.count(name) == 1 for name in PARAMETERS)
    assert missing_measurements([]) == ()


def test_a_measurement_that_the_logs_have_is_not_asked_for():
    """Small sizes in one node cannot separate launch and latency; more of them are not asked for."""
    small = Series("allreduce", 8, 1, tuple(2**k for k in range(3, 17)), (10.0,) * 14, "a.log")
    said = missing_measurements(["launch_us", "network_latency"], [small])
    assert said[0].startswith("launch_us: not determined, although the logs have small sizes (8 B to 64 KB)")
    assert said[1] == "small sizes (8 B to 64 KB) on two nodes would determine network_latency"


@pytest.mark.slow
def test_one_node_lacks_the_network(line_fit):
    """A fit to a log of one node asks for a log of two nodes."""
    assert (
        "large sizes (64 MB and more) on two nodes, or ib_write_bw would determine network_gb_per_s"
        in line_fit.missing
    )


@pytest.mark.slow
def test_topologies_are_fitted_without_a_profile(tmp_path):
    """A fit to a topology has the topology's rates as priors; it predicts times, but has no profile to
    save."""
    (tmp_path / "a.log").write_text(table(sizes=SIZES[::3]))
    fit = taccl.fit([str(tmp_path / "a.log")], taccl.topologies.fully_connected(8))
    assert fit.predict_us("allreduce", 8, 1, 2**33) == pytest.approx(2**33 / 200e3, rel=0.05)
    with pytest.raises(
        InputError, match=r"state these rates in the topology file: [\d.]+ GB/s over all links"
    ):
        fit.to_toml()


def test_a_number_of_nodes_replaces_guessed_racks():
    """A given number of nodes replaces the guess from racks of 72 GPUs.

    16 ranks of GB200 are guessed to be one node; if 4 nodes of 16 ranks are given, 8 ranks are 2 of these
    nodes.
    """
    log = Series("allreduce", 16, 4, (1,), (1.0,), "a.log")
    assert placed(log, 72, None, 16).num_nodes == 1
    assert placed(log, 72, 4, 16).num_nodes == 4
    assert placed(Series("allreduce", 8, 2, (1,), (1.0,), "b.log"), 72, 4, 16).num_nodes == 2


@pytest.mark.slow
def test_large_errors_at_some_sizes_are_noted(tmp_path):
    """A 90th percentile of errors above 20 % is a warning and a note, even if the median error is small."""
    lines = table().splitlines()
    for place in (4, 9, 14, 19, 24):
        cells = lines[place].split()
        cells[5] = f"{3 * float(cells[5]):.2f}"
        cells[6] = f"{int(cells[0]) / float(cells[5]) / 1000:.2f}"
        lines[place] = " ".join(cells)
    (tmp_path / "a.log").write_text("\n".join(lines))
    with pytest.warns(NumericsWarning, match="fit to a.log: the 90th percentile of the errors without"):
        notes = taccl.fit([str(tmp_path / "a.log")], "dgx-h100").notes
    assert any("90th percentile of the errors" in note for note in notes)
