"""``taccl fit``: its output and files, and when it writes none."""

import json

import pytest

from taccl.cli.command import run
from tests.measure.logs import SIZES, table
from tests.nvswitch import server_xml

pytestmark = pytest.mark.usefixtures("_quick_fits")


@pytest.fixture
def log(tmp_path):
    """Path of a log of eight ranks."""
    path = tmp_path / "a.log"
    path.write_text(table(sizes=SIZES[::3]))
    return str(path)


@pytest.mark.slow
def test_json_has_errors_and_parameters(log, capsys):
    """In the JSON of a fit errors are fractions, and each parameter has value, low, high and source."""
    assert run(["fit", log, "--topology", "dgx-h100", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 0 <= found["median_error"] <= found["p90_error"] <= found["max_error"] < 0.2
    assert 0 <= found["left_out_median_error"] < 0.1
    for each in found["parameters"].values():
        assert {"value", "low", "high", "source"} <= set(each)


@pytest.mark.slow
def test_profiles_and_pictures_are_written(log, tmp_path, capsys):
    """The profile is shown with sources and intervals, and the picture is written to a file."""
    profile, picture = str(tmp_path / "mine.toml"), tmp_path / "mine.svg"
    assert run(["fit", log, "--topology", "dgx-h100", "-o", profile, "--plot", str(picture)]) == 0
    assert picture.read_text().startswith("<?xml")
    assert capsys.readouterr().out.endswith(f"\n\nwritten to {picture}\nwritten to {profile}\n")
    assert run(["show", "dgx-h100", "--profile", profile]) == 0
    assert "fitted to a.log (90 %:" in capsys.readouterr().out


@pytest.mark.slow
def test_poor_fits_are_accepted_on_request(tmp_path, capsys):
    """A poor fit is refused with its reason and writes nothing; with --accept the file is written."""
    rows = [
        f"{2**power} 1 float sum -1 {time} {2**power / time / 1000:.4f} 0 0"
        for power in range(10, 14)
        for time in (100.0 if power % 2 else 1000.0,)
    ]
    (tmp_path / "a.log").write_text("# all_reduce_perf\n" + "\n".join(rows) + "\n")
    profile = tmp_path / "mine.toml"
    words = ["fit", str(tmp_path / "a.log"), "--topology", "dgx-h100", "-o", str(profile)]
    assert run(words) == 1
    assert "expected at most 15%" in capsys.readouterr().err
    assert not profile.exists()
    assert run([*words, "--accept"]) == 0
    assert profile.exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::taccl.errors.AssumptionWarning")
def test_a_fit_to_a_topology_file_is_shown_before_the_error(log, tmp_path, capsys):
    """A profile of a topology file is refused, but only after the figures of the fit."""
    source, profile = tmp_path / "server.xml", tmp_path / "mine.toml"
    source.write_text(server_xml(90, 18))
    assert run(["fit", log, "--topology", str(source), "-o", str(profile)]) == 2
    shown = capsys.readouterr()
    assert "node_gb_per_s" in shown.out
    assert "a profile holds constants of a machine model" in shown.err
    assert not profile.exists()
