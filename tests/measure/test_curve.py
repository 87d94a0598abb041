"""Outlier sizes are found from times alone."""

from dataclasses import replace

import numpy as np
import pytest

from taccl.measure.curve import irregularity, irregularity_note, kinks, middle_clause, noise, slow_middle
from taccl.measure.series import Series


def series(**times_us):
    """A series of times by size: ``b1024=3.0``."""
    sizes = tuple(int(name[1:]) for name in times_us)
    return Series("allreduce", 8, 1, sizes, tuple(times_us.values()), "a.log: line 1")


def test_a_smooth_curve_has_no_kinks():
    """A smooth curve of latency and bandwidth has no kinks."""
    times = {f"b{2**power}": 20 + 2**power / 200e3 for power in range(3, 34)}
    assert kinks(series(**times)) == ()


@pytest.mark.parametrize(
    ("times", "kind", "size"),
    [
        ({"b16": 12.9, "b32": 22.3, "b64": 14.5, "b128": 14.6}, "outlier", 32),
        ({"b33554432": 203.0, "b67108864": 512.0, "b134217728": 577.0}, "outlier", 67108864),
        ({"b262144": 84.0, "b524288": 160.0, "b1048576": 166.0, "b2097152": 298.0}, "late switch", 524288),
        ({"b33554432": 147.0, "b67108864": 461.0, "b134217728": 900.0}, "wrong switch", 67108864),
        ({"b512": 19.0, "b1024": 19.1, "b2048": 15.0, "b4096": 15.1}, "wrong switch", 1024),
    ],
)
def test_kinks_have_a_kind_and_a_size(times, kind, size):
    """An outlier, a late switch of protocol and a switch to a wrong protocol are each recognised, with the
    size."""
    assert (kind, size) in [(each.kind, each.size_bytes) for each in kinks(series(**times))]


def test_a_size_somewhat_slower_than_both_neighbours_is_noise():
    """2 KiB took 116 us over EFA, 1 and 4 KiB 103 and 100: a protocol would also slow the size before."""
    times = {"b512": 103.0, "b1024": 103.1, "b2048": 116.0, "b4096": 100.1, "b8192": 114.8, "b16384": 117.4}
    assert kinks(series(**times)) == ()


def test_repeated_falls_from_one_level_are_noise():
    """A library leaves a slow protocol once, so two falls from 51 us are slow runs of single sizes."""
    times = {
        "b64": 51.0,
        "b128": 51.1,
        "b256": 43.0,
        "b512": 43.4,
        "b1024": 50.5,
        "b2048": 50.9,
        "b4096": 43.8,
    }
    assert [each.kind for each in kinks(series(**times))] == ["outlier", "outlier"]


def test_a_slow_middle_exceeds_both_ends():
    """A middle size ten times slower than both ends is found."""
    times = {f"b{2**power}": 10.0 for power in range(3, 20)} | {"b1024": 100.0}
    found = list(slow_middle(series(**times), [10.0] * 17))
    assert [each.size_bytes for each in found] == [1024]


def test_irregular_times_leave_every_rising_curve():
    """Two times of six that are swapped, by a factor of 1.21, lie 10 % off the nearest rising curve."""
    rising = series(b1=10.0, b2=10.0, b4=11.0, b8=13.0, b16=16.0, b32=20.0)
    swapped = series(b1=10.0, b2=10.0, b4=12.1, b8=10.0, b16=16.0, b32=20.0)
    assert irregularity(rising) == 0 and not irregularity_note(rising)
    assert irregularity(swapped) == pytest.approx(1.1 ** (2 / 6) - 1)
    assert irregularity_note(swapped) == (
        "irregular times: 3.2% off the nearest curve that rises with the size, on average"
    )


def test_noise_is_the_deviation_that_both_places_show():
    """Independent deviations of 1 % are found, also if one place takes 1.4 times as long at all sizes."""
    random = np.random.default_rng(0)
    deviations = random.normal(0, 0.01, (2, 400))
    times, others = 10 * np.exp(deviations[0]), 14 * np.exp(deviations[1])
    found = replace(series(b1=1.0), times_us=tuple(times), others_us=tuple(others))
    assert noise([found]) == pytest.approx(np.median(np.abs(deviations)), rel=0.1)


def test_noise_needs_times_of_both_places():
    """Three changes from one size to the next are needed; sizes without a time in one place do not count."""
    found = series(b1=10.0, b2=10.0, b4=11.0, b8=13.0)
    assert noise([found]) is None
    assert noise([replace(found, others_us=(10.0, 10.0, 11.0, 0.0))]) is None
    assert noise([replace(found, others_us=(10.0, 10.0, 11.0, 13.0))]) == 0


@pytest.mark.parametrize(
    "times",
    [
        {"b8": 100.0, "b16": 50.0, "b32": 30.0, "b64": 30.0, "b128": 31.0},
        {"b8": 30.0, "b16": 150.0, "b32": 80.0, "b64": 30.0, "b128": 31.0},
    ],
    ids=["at the start", "within"],
)
def test_a_size_after_an_outlier_may_be_an_outlier(times):
    """The times after a disturbance return to the curve, which is no change of protocol."""
    assert {each.kind for each in kinks(series(**times))} == {"outlier"}


def test_sizes_in_the_middle_that_take_somewhat_longer_are_named():
    """Four sizes of 1.4 times the expected time are named as a range; a single one is noise."""
    smooth = {f"b{2**power}": 10.0 for power in range(3, 20)}
    slow = series(**(smooth | dict.fromkeys(("b1024", "b2048", "b4096", "b8192"), 14.0)))
    assert middle_clause(slow, [10.0] * 17) == "1KiB to 8KiB take up to 1.4 times the expected time"
    assert middle_clause(series(**(smooth | {"b1024": 14.0})), [10.0] * 17) == ""


@pytest.mark.parametrize(("first", "said"), [(8, ""), (512 << 10, "512KiB to 4MiB take up to 4 times")])
def test_the_smallest_sizes_of_a_log_without_small_sizes_may_be_slow(first, said):
    """If all small sizes take 4 times as long, a launch does; a log from 512 KiB on shows no small sizes."""
    sizes = [first << power for power in range(12)]
    slow = series(**{f"b{size}": 40.0 if size < 8 * sizes[1] else 10.0 for size in sizes})
    assert middle_clause(slow, [10.0] * 12).startswith(said)
    assert bool(middle_clause(slow, [10.0] * 12)) == bool(said)
