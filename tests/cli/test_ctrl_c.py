"""Ctrl-C in verbs that compute no schedule: it counts as the end of the time limit, and the answer is partial."""

import signal
from importlib import import_module
from pathlib import Path

import pytest

from tests.cli.words import SMALL
from tests.measure.logs import table

#: Sketches that admit no schedule.
INFEASIBLE = Path(__file__).parents[1] / "data" / "infeasible"


@pytest.fixture
def interrupted_in(monkeypatch):
    """Function that makes a call of a library function, by number, receive Ctrl-C."""

    def interrupted(module, name, number=1):
        *owners, last = name.split(".")
        owner = import_module(module)
        for each in owners:
            owner = getattr(owner, each)
        original, calls = getattr(owner, last), []

        def call(*values, **options):
            calls.append(values)
            if len(calls) == number:
                signal.raise_signal(signal.SIGINT)
            return original(*values, **options)

        monkeypatch.setattr(owner, last, call)

    return interrupted


@pytest.fixture
def log(tmp_path):
    """Path of a log of an allreduce on eight ranks."""
    path = tmp_path / "a.log"
    path.write_text(table())
    return path


@pytest.mark.parametrize("options", [(), ("--chunks-per-rank", 1)], ids=["open", "one chunk"])
def test_bounds_so_far_are_kept(run, interrupted_in, options):
    """Ctrl-C after the first claim of a bound keeps that claim."""
    interrupted_in("taccl.analysis.certificates.bounds", "_Finders.claims")
    code, out, err = run("bound", *SMALL, *options)
    assert (code, "  bound " in out) == (0, True)
    assert err == "taccl: warning: stopped by Ctrl-C; these are the highest bounds so far\n"


@pytest.mark.slow
def test_costs_so_far_are_kept(run_json, interrupted_in):
    """Ctrl-C during the second of five costs keeps the first, and names the others."""
    interrupted_in("taccl.synthesis.explaining.explain", "bound_by", 2)
    code, values = run_json("explain", "ndv2/sk1", "--collective", "allgather")
    assert (code, len(values["costs"]), len(values["unpriced"])) == (0, 1, 4)


@pytest.mark.slow
def test_a_check_so_far_is_kept(run, interrupted_in):
    """Ctrl-C during the bound of a sketch that is checked keeps the verdicts on its clauses."""
    interrupted_in("taccl.synthesis.explaining.check", "bound_until")
    words = ("suggest", "ndv2", "--nodes", 2, "--collective", "allgather", "--check", "ndv2/sk1")
    code, out, err = run(*words)
    assert (code, out.startswith("ndv2-sk1 can be used")) == (0, True)
    assert "internode.connections  unknown  not determined: time was up" in out
    assert "stopped by Ctrl-C; this is the check so far" in err


def test_a_change_so_far_is_kept(run, interrupted_in):
    """Ctrl-C while the smallest change is sought removes whole clauses, and the exit code remains 1."""
    interrupted_in("taccl.synthesis.explaining.clashes", "solve")
    code, out, err = run("explain", INFEASIBLE / "no-links-inside.toml", "--collective", "allgather")
    assert (code, "a change (a smaller one may suffice)" in out) == (1, True)
    assert "stopped by Ctrl-C; this is the explanation so far" in err


@pytest.mark.parametrize(
    ("call", "known"),
    [
        (("refit", 2), "rest on 1 of 100 resamples; fit again"),
        (("_fold", 1), "rest on 0 of 100 resamples, and errors at held-out sizes are unknown; fit again"),
    ],
    ids=["resamples", "held-out sizes"],
)
def test_intervals_of_a_fit_rest_on_the_resamples_so_far(run, interrupted_in, log, call, known):
    """Ctrl-C keeps the fit; a note says which of its figures are incomplete, and profiles are written."""
    interrupted_in("taccl.measure.fit", *call)
    profile = log.with_suffix(".toml")
    code, out, err = run("fit", log, "--topology", "dgx-h100", "-o", profile)
    assert (code, profile.exists()) == (0, True)
    assert "too few resamples for its interval, that of the prior" in out
    assert f"note: stopped by Ctrl-C: intervals {known}" in out
    assert "stopped by Ctrl-C; intervals or held-out sizes are incomplete, as a note says" in err


def test_verdicts_are_kept_without_better_schedules(run, interrupted_in, log):
    """Ctrl-C while better schedules are sought keeps the verdict."""
    interrupted_in("taccl.explore.possible_gains", "_schedule_of")
    code, out, err = run("diagnose", log, "--topology", "dgx-a100")
    assert (code, "time was up in the search for better schedules at" in out) == (0, True)
    assert "stopped by Ctrl-C; bounds or better schedules are missing" in err


@pytest.mark.slow
def test_the_page_so_far_is_written(run, interrupted_in, saved, tmp_path):
    """Ctrl-C while a page is made leaves out the parts that are not ready, and the page says so."""
    interrupted_in("taccl.plot.report", "check_page")
    page = tmp_path / "page.html"
    code, out, err = run("report", saved, "-o", page)
    assert (code, out) == (0, f"written to {page}\n")
    assert "stopped by Ctrl-C; parts of the page are missing, as it says" in err
    assert "not timed: the time budget is spent" in page.read_text()


def test_an_unfinished_probe_is_named(run, monkeypatch, tmp_path):
    """Ctrl-C during a probe names the file from which the next one resumes, and the exit code is 130."""

    def probe(*, path, **_):
        Path(f"{path}.part").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr("taccl.placement.measuring.probe", probe)
    code, out, err = run("probe", "-n", 2, "-o", tmp_path / "p.json")
    assert (code, out) == (130, "")
    assert (
        f"interrupted; {tmp_path / 'p.json.part'} has the rounds so far: run the same again to resume" in err
    )


def test_a_second_ctrl_c_ends_the_verb(run, interrupted_in):
    """A second Ctrl-C gives no answer, and exit code 130."""
    interrupted_in("taccl.analysis.certificates.bounds", "_Finders.claims")
    interrupted_in("taccl.analysis.certificates.bounds", "latency_of", 2)
    code, out, err = run("bound", *SMALL)
    assert (code, out, err) == (130, "", "taccl: error: interrupted before any result\n")


def test_the_predicted_time_of_nccl_is_shown(run, interrupted_in):
    """Ctrl-C while the channels of NCCL are sought shows its predicted time on a machine by name."""
    interrupted_in("taccl.baselines.nccl", "over_channels")
    code, out, err = run("baseline", "nccl", "dgx-a100", "--collective", "allreduce", "--size", "64MB")
    assert (code, "  predicted " in out) == (0, True)
    assert err.endswith("warning: stopped by Ctrl-C; this is the predicted time only\n")


def test_a_baseline_is_kept_without_its_bound(run, interrupted_in):
    """Ctrl-C during the lower bound of a baseline keeps its schedule, with the claims so far."""
    interrupted_in("taccl.analysis.certificates.bounds", "_Finders.claims")
    code, out, err = run("baseline", "ring", *SMALL)
    assert (code, "  finish " in out) == (0, True)
    assert err.endswith("warning: stopped by Ctrl-C; the bound may be loose\n")
