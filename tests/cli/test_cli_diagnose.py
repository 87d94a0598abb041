"""``taccl diagnose``: text on the terminal, plain values, and an HTML page."""

import json

import pytest

from taccl.cli.command import run
from tests.explore.degraded import NVLS, RINGS, node_log

pytestmark = pytest.mark.slow


@pytest.fixture
def log(tmp_path):
    """Path of a log of eight H100 without in-switch sums."""
    path = tmp_path / "a.log"
    path.write_text(node_log(RINGS))
    return str(path)


def test_a_page_on_the_terminal_has_verdict_limits_causes_and_sizes(log, capsys):
    """The text begins with the verdict; every cause has its evidence and a remedy."""
    assert run(["diagnose", log, "--no-gains"]) == 0
    out = capsys.readouterr().out
    assert (
        out.splitlines()[1].lstrip().startswith("365 GB/s bus at 2GiB is ") or " GB/s bus at 2GiB is " in out
    )
    for part in (
        "limits, for large messages",
        "likely: NVLS is off",
        "evidence: ",
        "try: ",
        "busbw GB/s  predicted  NCCL's choice",
    ):
        assert part in out
    assert len(out.splitlines()) < 60


def test_plain_values_and_a_page_are_written(log, tmp_path, capsys):
    """The JSON has each series with verdict and causes; the page contains its picture in SVG."""
    page = tmp_path / "a.html"
    assert run(["diagnose", log, "--no-gains", "--json", "-o", str(page)]) == 0
    (found,) = json.loads(capsys.readouterr().out)["series"]
    assert [each["name"] for each in found["causes"] if each["grade"] == "likely"] == ["nvls-off"]
    assert {"verdict", "limits", "points", "gains", "bound_us"} <= set(found)
    text = page.read_text()
    assert "<svg" in text and "NVLS is off" in text
    assert len(text) < 200_000


def test_ranks_that_take_part_are_renumbered(capsys):
    """`--ranks` and `--without-rank` select GPUs of a machine, and the note names them."""
    words = ["bound", "dgx-a100", "--collective", "allgather", "--size", "1MB", "--json"]
    found = []
    for subset in (["--ranks", "0-2,5"], ["--without-rank", "3,4,6-7"]):
        assert run([*words, *subset]) == 0
        written = capsys.readouterr()
        assert "ranks 0-2, 5 of 8 take part, renumbered from 0" in written.err
        found.append(json.loads(written.out)["num_ranks"])
    assert found == [4, 4]


def test_better_schedules_may_be_left_out(tmp_path, capsys):
    """With ``--no-gains``, a healthy machine is judged without better schedules, as in Python."""
    path = tmp_path / "healthy.log"
    path.write_text(node_log(NVLS))
    assert run(["diagnose", str(path), "--no-gains"]) == 0
    out = capsys.readouterr().out
    assert "as expected" in out
    assert "a better schedule" not in out


def test_a_profile_of_a_fit_is_said_to_predict_by_schedules(tmp_path, capsys, _quick_fits):
    """Formulas of a fit and schedules under its profile are two predictions, which a note tells apart."""
    log, profile = tmp_path / "healthy.log", tmp_path / "mine.toml"
    log.write_text(node_log(NVLS))
    assert run(["fit", str(log), "--topology", "dgx-h100", "-o", str(profile)]) == 0
    words = ["diagnose", str(log), "--topology", "dgx-h100", "--no-gains"]
    told = []
    for more in ([], ["--profile", str(profile)]):
        capsys.readouterr()
        assert run([*words, *more]) == 0
        told.append("schedules under the profile" in capsys.readouterr().out)
    assert told == [False, True]
