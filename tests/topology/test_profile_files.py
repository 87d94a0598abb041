"""Profile files are accepted in place of a profile's name."""

from dataclasses import replace

import pytest

import taccl
from taccl.baselines.nccl import nccl_bounded, nccl_choices
from taccl.errors import TopologyError
from taccl.explore.expectation import Expectation
from taccl.explore.plan_runtimes import under_launch
from taccl.measure.series import Series
from taccl.runtimes.table import RUNTIMES
from taccl.topology.profiles import profile_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def fitted(line_fit):
    """Text of the profile that a fit writes."""
    return line_fit.to_toml()


@pytest.fixture
def profile(fitted, tmp_path):
    """Path of a file with the profile `fitted`."""
    path = tmp_path / "mine.toml"
    path.write_text(fitted)
    return path


def test_a_runtime_has_its_own_launch(profile):
    """A profile file names the measured library, and may give other libraries a launch of their own.

    A launch of MSCCL++ in the file replaces its default of 4.95 us.
    """
    assert 'runtime = "nccl"' in profile.read_text()
    topology = taccl.topologies.parse("dgx-h100", profile=str(profile))
    assert float(under_launch(RUNTIMES["mscclpp"], topology).launch_us) == 4.95
    given = "[launch.runtime]\nmscclpp = { value = 3.5, source = 'mine' }\n\n[protocol.simple]"
    profile.write_text(profile.read_text().replace("[protocol.simple]", given, 1))
    topology = taccl.topologies.parse("dgx-h100", profile=str(profile))
    assert float(under_launch(RUNTIMES["mscclpp"], topology).launch_us) == 3.5
    assert under_launch(RUNTIMES["msccl"], topology).launch_us == topology.launch_us


def test_fitted_bandwidths_are_those_of_the_links(profile):
    """200 GB/s of algbw on 8 ranks behind NVSwitch are 350 GB/s per rank."""
    topology = taccl.topologies.parse("dgx-h100", nodes=2, profile=str(profile))
    assert float(1000 / topology.links[0].beta_us_per_mb) == pytest.approx(350, rel=0.02)
    assert float(topology.links[0].alpha_us) > 0
    assert topology.profile == str(profile)


def test_corrections_by_size_hold_for_their_log_alone(line_fit, profile):
    """A correction of the fit is written, read and stated for the measured collective and ranks, and is 1 else.

    The baseline notes the measured time where the correction exceeds 10 %, and a diagnosis expects it.
    """
    (series,) = line_fit.series
    factors = [1.0 if size < 2**20 else 1.2 for size in series.series.size_bytes]
    fit = replace(line_fit, series=(replace(series, factors=tuple(factors)),))
    plain, asked = line_fit.predict_us("allreduce", 8, 1, 2**40), ("allreduce", 8, 1, 2**40)
    assert fit.predict_us(*asked) == pytest.approx(1.2 * plain)
    plain_topology = taccl.topologies.parse("dgx-h100", profile=str(profile))
    profile = profile.with_name("corrected.toml")
    profile.write_text(fit.to_toml())
    topology = taccl.topologies.parse("dgx-h100", profile=str(profile))
    found = profile_of(topology)
    assert [found.correction("allreduce", 8, 1, size) for size in (1, 2**40)] == [1.0, 1.2]
    assert found.correction("allreduce", 16, 2, 2**40) == found.correction("allgather", 8, 1, 2**40) == 1
    for size, is_noted in ((2**16, False), (2**26, True)):
        problem = taccl.make_problem(topology, "allreduce", size_bytes=size)
        choice = nccl_choices(problem)[0]
        _, notes = nccl_bounded(problem, taccl.baselines.nccl(problem), choice)
        assert any("takes 1.20 times the modelled time" in each for each in notes) == is_noted
        usual, corrected = (
            Expectation(Series("allreduce", 8, 1, (size,), (1.0,), "log"), on).choices[0][0].time_us
            for on in (plain_topology, topology)
        )
        assert corrected == pytest.approx((1.2 if is_noted else 1.0) * usual)


@pytest.mark.parametrize(("old", "new", "said"), [
    ("[launch]", """[[correction]]
collective = 'allreduce'
ranks = 8
nodes = 1
bytes = [16, 8]
factors = [1, 1]

[launch]""", "expected ascending bytes, with a factor for each"),
    ('machine = "dgx-h100"', 'machine = "dgx2"', "machine: found a profile of dgx2; expected one of dgx-h100"),
    ("nic_alpha_us =", "nic_beta =", r"nic_alpha_us: found nothing; this constant is required"),
    ("[launch]", "more_us = { value = 1, source = 'x' }\n[launch]", "unknown constant"),
    ("[protocol.simple]", "[protocol.ll3]", "protocol.ll3: found 'll3'; expected 'simple', 'll' or 'll128'"),
])  # fmt: skip
def test_wrong_files_are_named(profile, old, new, said):
    """A profile of another machine, with a missing or extra constant, or an unknown protocol, is refused."""
    profile.write_text(profile.read_text().replace(old, new, 1))
    with pytest.raises(TopologyError, match=said) as caught:
        taccl.topologies.parse("dgx-h100", profile=str(profile))
    assert "mine.toml" in str(caught.value)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("size", [1, 10**6 + 3, 2**30 + 1])
def test_fitted_costs_fit_a_grid_of_ticks(profile, size):
    """Fitted costs, of any number of digits, have exact times in ticks for any protocol and chunk size."""
    topology = taccl.topologies.parse("dgx-h100", nodes=2, profile=str(profile))
    for protocol in topology.protocols:
        problem = taccl.make_problem(topology.under(protocol), "allgather", chunk_bytes=size)
        assert problem.costs.ticks_per_us <= 10**9
