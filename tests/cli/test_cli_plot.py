"""``taccl plot`` and ``taccl report``: files written, and refusals."""

import pytest

from tests.cli.words import SMALL

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("what", ["gantt", "topology", "bandwidth"])
def test_pictures_are_written(run, saved, tmp_path, what):
    """Each kind of picture of a schedule file is written, and the answer names its path."""
    path = tmp_path / f"{what}.svg"
    log = tmp_path / "allgather.log"
    log.write_text("# all_gather_perf\n 1000000 250000 float none -1 10.0 100.00 75.00 0\n")
    options = ("--sizes", "1KB,1MB", "--measured", log) if what == "bandwidth" else ()
    code, out, _ = run("plot", saved, "--what", what, "-o", path, *options)
    assert code == 0
    assert str(path) in out
    assert "<svg" in path.read_text()


def test_progress_needs_a_search(run, saved, tmp_path):
    """A progress picture requires a synthesis; a schedule of a baseline has no record of one."""
    code, _, err = run("plot", saved, "--what", "progress", "-o", tmp_path / "p.svg")
    assert code == 2
    assert "no record of a search" in err
    found = tmp_path / "found.json"
    assert run("synthesize", *SMALL, "--backend", "greedy", "--time-limit", "1", "-o", found)[0] == 0
    assert run("plot", found, "--what", "progress", "-o", tmp_path / "p.svg")[0] == 0


def test_a_topology_by_name_is_drawn(run, tmp_path):
    """A topology given by name is drawn without a schedule."""
    path = tmp_path / "ndv2.png"
    assert run("plot", "ndv2", "--nodes", "2", "--what", "topology", "-o", path)[0] == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_report_is_written(run_json, saved, tmp_path):
    """The page of a report contains the commands that made the schedule and the page."""
    path = tmp_path / "report.html"
    code, values = run_json("report", saved, "-o", path, "--time-limit", "1")
    assert code == 0
    assert values["ok"] is True
    page = path.read_text()
    assert "taccl baseline ring" in page
    assert f"taccl report {saved}" in page


def test_a_report_of_a_broken_schedule_answers_no(run, tmp_path):
    """For an invalid schedule the page is written, with exit code 1."""
    import taccl
    from taccl.schedule.schedule import make_schedule

    topology = taccl.topologies.parse("ring:2")
    problem = taccl.make_problem(topology, taccl.collectives.allgather(2), chunk_bytes=1000)
    path = tmp_path / "broken.json"
    taccl.save(make_schedule(problem, chunk=[], link=[], start=[], end=[]), path)
    code, _, err = run("report", path, "-o", tmp_path / "report.html", "--time-limit", "1")
    assert code == 1
    assert "breaks 2 rules" in err
    assert "not valid" in (tmp_path / "report.html").read_text()
