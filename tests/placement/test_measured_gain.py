"""A placement measured by real ranks: the mapping of ranks to slots, and the criterion of a gain."""

import json

import pytest

from taccl.cli.command import run
from taccl.errors import InputError
from taccl.placement.measured_gain import MeasuredGain, measure_gain, slots_of
from tests.effort import cpu_s


def gain(*ratios):
    """Measurement of calls of 100 us, with the given ratios of times before to times after."""
    return MeasuredGain(
        "MPICH", "allreduce", "ring", 10**6, tuple(100 * r for r in ratios), (100.0,) * len(ratios)
    )


@pytest.mark.parametrize(
    ("names", "hosts", "slots"),
    [
        (["b", "a"], ["a", "b"], [1, 0]),
        (["a", "b", "a", "b"], ["a", "a", "b", "b"], [0, 2, 1, 3]),
        (["b.net", "a.net"], ["a", "b"], [1, 0]),
        (["x", "y"], [], [0, 1]),
    ],
)
def test_ranks_are_slots_by_the_names_of_their_machines(names, hosts, slots):
    """Ranks of a host get its slots in ascending order, whatever the order in which ranks start."""
    assert slots_of(names, hosts) == slots


def test_slots_of_many_hosts_are_found_in_linear_time():
    """Each of 10,000 ranks finds the slot of its machine quickly."""
    hosts = [f"node{i}" for i in range(10_000)]
    assert cpu_s(lambda: slots_of(hosts[::-1], hosts)) < 0.2


def test_ranks_on_other_hosts_are_refused():
    """If a host has one rank too many, the run is refused, as it is another placement."""
    with pytest.raises(InputError, match="found ranks on a, but the placement is for a, b; start one rank"):
        slots_of(["a", "a"], ["a", "b"])


@pytest.mark.parametrize(
    ("measured", "verdict"),
    [
        (gain(*[1.5, 1.6] * 10), "confirmed"),
        (gain(*[0.9, 1.1] * 10), "within noise"),
        (gain(*[1.005] * 20), "within noise"),
        (gain(*[0.8] * 20), "slower"),
        (gain(*[2.0] * 6), "within noise"),
    ],
)
def test_a_gain_is_confirmed_beyond_noise(measured, verdict):
    """A gain is confirmed if its interval of ratios excludes 1 and it exceeds 1 %.

    Six calls confirm no gain, as by chance all six are faster with probability (1/2)^6 > 1 %.
    """
    assert measured.verdict == verdict
    assert str(measured).startswith(f"{verdict}: allreduce by MPICH takes ")


def test_the_interval_is_that_of_the_sign_test():
    """The sign test's interval of 20 ratios is from the 5th smallest to the 5th largest (probability 0.6 % on
    each side)."""
    assert gain(*range(1, 21)).interval == (5, 16)


def test_a_placement_without_hosts_is_refused():
    """A placement read from `Placement.to_dict` is refused, as it names no hosts."""
    with pytest.raises(InputError, match="without hosts; write it with `taccl reorder -o`"):
        measure_gain(
            {"order": [0, 1], "collective": "allreduce", "algorithm": "ring", "size_bytes": 8}, ranks=2
        )


@pytest.mark.slow
def test_both_orders_are_run_by_real_ranks(tmp_path, capsys):
    """Three real ranks make twenty calls in each order, by the placement's algorithm."""
    path = tmp_path / "placement.json"
    order = {
        "order": [2, 0, 1],
        "hosts": [],
        "collective": "allgather",
        "algorithm": "ring",
        "size_bytes": 3000,
    }
    path.write_text(json.dumps(order))
    if run(["reorder", str(path), "--verify", "-n", "3", "--json"]):
        pytest.skip("MPI cannot be run here")
    found = json.loads(capsys.readouterr().out)
    assert len(found["before_us"]) == len(found["after_us"]) == 20
    assert min(found["before_us"]) > 0
    assert found["least"] <= found["gain"] <= found["most"]
    assert found["is_forced"] == (found["library"] == "MPICH")
