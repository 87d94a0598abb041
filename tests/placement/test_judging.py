"""Gains judged on repetitions other than those from which an order was chosen."""

import json
from importlib import import_module

import numpy as np
import pytest

import taccl
from taccl.cli.command import run
from taccl.errors import FormatError
from taccl.placement import judging
from taccl.placement.case import Case
from taccl.placement.matrices import load_probe
from taccl.placement.probe import Probe, median_of_known
from tests.fuzzing import MANY, cases

NAMES = tuple("abcdefgh")
GIVEN = tuple(range(8))
#: Options of a search: a size at which latency dominates, and a time limit that no loaded machine reaches.
SMALL = {"size": "1KB", "time_limit_s": 3600}


def probed(seed, *, racks=1, between=20.0, passes=0, directed=True):
    """Probe of eight hosts in random order, 10 us apart or `between` us between racks, with 20 % noise."""
    rng = np.random.default_rng(seed)
    rack = rng.permutation(GIVEN) % racks
    base = np.where(rack[:, None] == rack, 10.0, between)

    def measured():
        noisy = base * (1 + 0.2 * rng.uniform(-1, 1, base.shape))
        return noisy if directed else np.triu(noisy) + np.triu(noisy, 1).T

    if not passes:
        return Probe(NAMES, measured())
    each = np.stack([measured() for _ in range(passes)])
    return Probe(NAMES, np.median(each, axis=0), latency_repeats_us=each)


def test_median_without_missing_values():
    """Medians of 0 to 4 known values per column are those of NumPy."""
    values = np.array([[3.0, 1.0, np.nan, 2.0, np.nan], [5.0, np.nan, 4.0, 0.0, np.nan],
                       [9.0, np.nan, 8.0, 1.0, np.nan], [1.0, np.nan, 6.0, np.nan, np.nan]])  # fmt: skip
    assert median_of_known(values) == pytest.approx([4.0, 1.0, 6.0, 1.0, np.nan], nan_ok=True)


@pytest.mark.slow
@pytest.mark.parametrize("passes", [4, 0], ids=["passes", "two directions"])
def test_noise_between_equal_hosts_is_no_gain(passes):
    """For equal hosts with noise the given order is kept, and the verdict says so."""
    for seed in cases("placement: noise is no gain", few=1, many=60):
        found = taccl.reorder(probed(seed, passes=passes), **SMALL)
        assert found.order == GIVEN
        assert found.gain == 1
        assert found.judgement is None or found.judgement.verdict == "within noise"


def test_noise_keeps_a_rare_outlier():
    """One measurement of 25 us among those of 10 us gives one half with noise of 25 / 10, and one without.

    If its deviation were shared by both halves, none would have more than 19 us, and each would have some.
    """
    measured = np.full((8, 8), 10.0)
    measured[4, 3] = 25
    probe = Probe(NAMES, measured)
    split = judging._halves(probe, judging._repetitions(probe)[0], np.random.default_rng(0))
    variance = {"latency_us": float(np.mean(judging._noise(*split)["latency_us"] ** 2))}
    centre = judging._shrunk(probe, judging._medians(probe, judging._repetitions(probe)[0]), variance)
    noises = judging._scaled([judging._off_mean(half, centre) for half in split], variance)
    assert sorted(10 * np.exp(each["latency_us"].max()) for each in noises) == pytest.approx(
        [10, 25], rel=0.1
    )


@pytest.mark.slow
def test_slow_repetitions_are_no_gain():
    """A slow repetition of one pair, which the given order meets and others avoid, confirms no gain.

    An interval of Student's t for the mean gain would confirm that of seed 7.
    """
    for seed in cases("placement: slow repetitions are no gain", few=1, many=200, first=7):
        rng = np.random.default_rng(seed)
        each = 10 * (1 + 0.05 * rng.uniform(-1, 1, (3, 8, 8)))
        place = rng.integers(7)
        each[rng.integers(3), place, place + 1] *= rng.uniform(3, 20)
        probe = Probe(NAMES, np.median(each, axis=0), latency_repeats_us=each)
        found = taccl.reorder(probe, algorithm="ring", **SMALL)
        assert found.judgement is None or found.judgement.verdict == "within noise"


@pytest.mark.slow
def test_ctrl_c_during_the_judgement_keeps_the_order(monkeypatch):
    """Ctrl-C while the gain is judged returns the order that the search found, which is not judged."""

    def interrupted(*_):
        raise KeyboardInterrupt

    reorder = import_module("taccl.placement.reorder")
    monkeypatch.setattr(reorder.Case, "search", lambda case, *_: (case.nested, case.ticks(case.nested)))
    monkeypatch.setattr(reorder, "judge", interrupted)
    with pytest.warns(taccl.TacclWarning, match="stopped by Ctrl-C; this is the best order so far"):
        found = taccl.reorder(probed(0, racks=2, passes=4), **SMALL, within_noise=True)
    assert found.order != GIVEN
    assert str(found.judgement).startswith("not judged against noise: stopped by Ctrl-C")


@pytest.mark.slow
@pytest.mark.parametrize("passes", [4, 0], ids=["passes", "two directions"])
def test_racks_are_a_gain_in_the_same_noise(passes):
    """For two racks in random order with the same noise, a gain above 1.5 is confirmed."""
    for seed in cases("placement: racks are a gain in noise", few=1, many=20):
        found = taccl.reorder(probed(seed, racks=2, passes=passes), time_limit_s=3600)
        assert found.order != GIVEN
        assert found.judgement.verdict == "confirmed"
        assert found.gain > 1.5
        assert "confirmed: orders chosen on one half of the " in found.why


@pytest.mark.slow
def test_time_is_reserved_for_the_judgement(monkeypatch):
    """If the judgement is expected to need all time, the order by clusters is judged without a search."""
    monkeypatch.setattr(import_module("taccl.placement.reorder"), "_JUDGING", 1e9)
    probe = probed(0, racks=2, passes=4)
    found = taccl.reorder(probe, size="100MB", time_limit_s=3600)
    assert found.judgement.verdict == "confirmed"
    assert found.order == Case(probe, "allreduce", "ring", "100MB").nested


@pytest.mark.slow
@pytest.mark.parametrize("passes", [4, 0] if MANY else [4])
@pytest.mark.parametrize("size", ["1KB", "1MB"] if MANY else ["1KB"])
def test_latencies_of_racks_are_a_gain_where_steps_cross_less(passes, size):
    """In rack order, halving and doubling leaves a rack in one step of three: a gain at small sizes."""
    for seed in cases("placement: small messages gain in noise", few=1, many=20):
        probe = probed(seed, racks=2, passes=passes)
        found = taccl.reorder(probe, algorithm="halving-doubling", size=size, time_limit_s=3600)
        assert found.judgement.verdict == "confirmed"
        assert found.judgement.gain > 1.05


@pytest.mark.slow
@pytest.mark.parametrize("between", [20.0, 12.0])
def test_the_slowest_of_many_equal_pairs_is_no_gain(between):
    """Fewer crossings between racks are no gain for a ring if its steps wait for the slowest of them.

    Six crossings of 20 us, or of 12 us, where racks are not clearly apart, take as long as two, except for
    noise.
    """
    rack = np.random.default_rng(1).permutation(GIVEN) % 2
    truth = taccl.reorder(Probe(NAMES, np.where(rack[:, None] == rack, 10.0, between)), **SMALL)
    assert truth.gain == 1
    for seed in cases("placement: noise of crossings is no gain", few=1, many=20):
        found = taccl.reorder(probed(seed, racks=2, between=between, passes=4), **SMALL)
        assert found.judgement is None or found.judgement.verdict == "within noise"


@pytest.mark.slow
def test_loads_on_both_directions_of_pairs_are_no_gain():
    """Loads double both directions of a tenth of the pairs: a gain on one matrix is not judged.

    The given order meets two of them. In one pass of four they are noise."""
    rng = np.random.default_rng(3)
    quiet = 10 * (1 + 0.02 * rng.uniform(-1, 1, (4, 8, 8)))
    loaded = np.zeros((8, 8))
    loaded[[1, 4], [2, 5]] = loaded[[2, 5], [1, 4]] = 10
    once, passes = quiet[0] + loaded, np.concatenate([quiet[:1] + loaded, quiet[1:]])
    found = taccl.reorder(Probe(NAMES, once), **SMALL)
    assert (found.order, found.judgement.verdict) == (GIVEN, "not judged")
    assert "both directions of a pair were measured in turn" in found.why
    probe = Probe(NAMES, np.median(passes, axis=0), latency_repeats_us=passes)
    judgement = taccl.reorder(probe, **SMALL).judgement
    assert judgement is None or judgement.verdict == "within noise"


@pytest.mark.slow
def test_one_measurement_per_pair_cannot_be_judged():
    """Without repetitions gains cannot be judged, which is stated; clearly separate racks are reordered."""
    equal = taccl.reorder(probed(0, directed=False), **SMALL)
    assert equal.order == GIVEN
    assert "not judged against noise: the probe has one value per pair" in equal.why
    assert "the gain may be noise" in equal.why
    rack = np.arange(8) % 2
    apart = taccl.reorder(Probe(NAMES, np.where(rack[:, None] == rack, 10.0, 20.0)), time_limit_s=3600)
    assert apart.order != GIVEN
    assert "not judged against noise: the probe has one value per pair" in apart.why


@pytest.mark.slow
def test_an_order_within_noise_is_returned_on_request():
    """On request an order within noise is returned, with its verdict."""
    found = taccl.reorder(probed(0, passes=4), within_noise=True, **SMALL)
    assert found.order != GIVEN
    assert "within noise" in found.why
    assert found.to_dict()["judgement"]["verdict"] == "within noise"


@pytest.mark.slow
def test_no_file_for_launchers_or_libraries_is_written_within_noise(tmp_path, monkeypatch, capsys):
    """If a gain is within noise, files for launchers and libraries are written only on request.

    The answer names each file that is not written, the reason, and the option to request it.
    """
    monkeypatch.chdir(tmp_path)
    probed(0, passes=4).save("probe.json")
    words = ["reorder", "probe.json", "--size", "1KB", "--time-limit", "3600", "--hostfile", "hosts"]
    words += ["--nccl-tuner", "table", "--openmpi-rules", "rules"]
    assert run([*words, "-o", "out.json"]) == 0
    out = capsys.readouterr().out
    assert "hosts is not written: the given order is kept (--within-noise" in out
    for name in ("table", "rules"):
        assert f"{name} is not written: its rules rest on figures within noise (--within" in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.json", "probe.json"]
    assert json.loads((tmp_path / "out.json").read_text())["order"] == list(GIVEN)
    assert run([*words, "--within-noise"]) == 0
    assert (tmp_path / "hosts").read_text() != "".join(f"{name}:1\n" for name in NAMES)
    assert (tmp_path / "table").exists()
    assert (tmp_path / "rules").exists()


def test_passes_are_read_back(tmp_path):
    """Probe files keep the latencies of every pass; older files are read without them."""
    path = tmp_path / "probe.json"
    probe = probed(0, passes=3)
    probe.save(path)
    again = load_probe(path)
    off = ~np.eye(8, dtype=bool)
    assert np.array_equal(again.latency_repeats_us[:, off], probe.latency_repeats_us[:, off])
    values = probe.to_dict()
    del values["latency_repeats_us"]
    path.write_text(json.dumps(values))
    assert load_probe(path).latency_repeats_us is None


@pytest.mark.parametrize(
    ("passes", "complaint"),
    [
        ([[[0, 1], [1, 0]]], "found 1 x 2 x 2 entries; expected passes of 8 hosts"),
        ([[[-1.0] * 8] * 8], "found an entry that is not a finite number above 0"),
        ("x", "found passes of different shapes, or no numbers"),
    ],
)
def test_bad_passes_are_named(tmp_path, passes, complaint):
    """The error for invalid passes in a probe file names the fault and the file."""
    path = tmp_path / "probe.json"
    path.write_text(json.dumps(probed(0).to_dict() | {"latency_repeats_us": passes}))
    with pytest.raises(FormatError, match=complaint):
        load_probe(path)
