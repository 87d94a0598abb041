"""The packet protocol delivers each sum exactly once on any network, if the switch keeps a shadow copy of
each slot (its previous sum)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taccl.aggregation import simulate_packets
from taccl.errors import InputError
from tests.fuzzing import fuzzed


@pytest.mark.slow
@pytest.mark.parametrize("slots", [16, 64, 122, 512])
def test_throughput_is_that_of_the_pool_or_the_line(slots):
    """Throughput is that of the slot pool or of the line, whichever is slower, within 2 %.

    The pool passes 1,024 B per slot per 10 us, the line 12.5 GB/s.
    """
    run = simulate_packets(8_000, workers=2, slots=slots)
    assert run.ok
    assert run.repeated == 0
    assert run.goodput_gb_per_s == pytest.approx(min(12.5, slots * 0.1024), rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("loss", [0.01, 0.05])
def test_every_sum_comes_once_over_a_network_that_loses_packets(loss):
    """With losses, duplicates and reordering, 1,000 packets of 16 workers give each sum once."""
    run = simulate_packets(1_000, workers=16, loss=loss, duplicates=0.01, reordering=0.01)
    assert run.ok
    assert run.lost > 1_000 * loss
    assert 0 < run.goodput_gb_per_s < 12.5


@fuzzed(few=60, many=2000)
@given(
    workers=st.integers(1, 5), slots=st.integers(1, 6), packets=st.integers(1, 40), seed=st.integers(0, 10**6),
    loss=st.floats(0, 0.4), duplicates=st.floats(0, 0.5), reordering=st.floats(0, 0.5),
    timeout_us=st.floats(1, 60),
)  # fmt: skip
def test_no_pattern_of_losses_makes_a_sum_wrong(
    workers, slots, packets, seed, loss, duplicates, reordering, timeout_us
):
    """No pattern of losses gives a wrong sum, even if workers retransmit early, and packets arrive after
    their slot was reused twice."""
    run = simulate_packets(
        packets, workers=workers, slots=slots, loss=loss, duplicates=duplicates, reordering=reordering,
        timeout_us=timeout_us, seed=seed,
    )  # fmt: skip
    assert run.ok, run


@pytest.mark.parametrize("seed", range(5))
def test_without_the_shadow_copy_a_sum_is_wrong(seed):
    """Without the shadow copy a worker's retransmission is added to the next sum, which is wrong."""
    run = simulate_packets(1_000, workers=4, slots=16, loss=0.02, shadow_copy=False, seed=seed)
    assert run.wrong


def test_without_losses_nothing_needs_the_shadow_copy():
    """Without losses the protocol is correct even without the shadow copy."""
    assert simulate_packets(1_000, workers=4, slots=16, shadow_copy=False).ok


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({"loss": 1.0}, "loss: found 1.0; expected a share of the packets"),
        ({"duplicates": -0.1}, "duplicates: found -0.1"),
        ({"slots": 0}, "slots: found 0"),
        ({"rtt_us": 0.0}, "rtt_us: found 0.0; expected a number above 0"),
        ({"timeout_us": -1.0}, "timeout_us: found -1.0"),
    ],
)
def test_invalid_network_parameters_are_refused(said, error):
    """Invalid network parameters are refused, and the error names the parameter."""
    with pytest.raises(InputError, match=error):
        simulate_packets(10, **said)
