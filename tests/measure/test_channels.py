"""Channels and chunks follow NCCL's rules."""

from dataclasses import replace

import numpy as np
import pytest

from taccl.measure.channels import filling_us, pair_channels, searched
from taccl.measure.predict import costs_of, predicted_us
from taccl.measure.ring_chunks import whole_chunks
from taccl.topology.tuning import PAIR_SIZES

KB, MB = 1 << 10, 1 << 20


@pytest.mark.parametrize(
    ("message", "num"),
    [(64 * KB, 1), (64 * KB + 1, 2), (256 * KB, 4), (64 * MB, 4), (64 * MB + 1, 8), (512 * MB, 32)],
)
def test_channels_of_a_message_grow_with_its_size(message, num):
    """Among 8 ranks, a message uses one of 32 channels per 64 KB, up to four, and more above 16 MB per
    channel."""
    assert pair_channels(32, 36, 8, np.array([float(message)]), PAIR_SIZES["node"])[0] == num


def test_many_ranks_start_with_one_channel():
    """Among 64 ranks with 32 channels, a message of up to 16 MB uses one channel."""
    assert pair_channels(32, 36, 64, np.array([16.0 * MB]), PAIR_SIZES["node"])[0] == 1


def test_a_pipeline_fills_with_a_chunk_per_channel():
    """To fill the pipelines of four channels takes 512 KB on each, that is 2 MB at 20 GB/s."""
    filled = filling_us(np.array([64.0 * MB]), np.array([4.0]), np.array([20.0]), PAIR_SIZES["node"])
    assert filled[0] == pytest.approx(2 * MB / 20_000)


def test_an_alltoall_on_b200_uses_28_of_32_channels():
    """An alltoall of 256 to 512 MB on 8 B200 uses 28 of 32 channels, 4 for each of 7 peers.

    A channel has 22.5 GB/s, of which 93 % are reached.
    """
    costs = costs_of("b200")
    small, large = predicted_us(costs, "alltoall", 8, 1, np.array([256.0 * MB, 512.0 * MB]))
    assert 256 * MB * 7 / 8 / (large - small) / 1000 == pytest.approx(28 * 22.5 * 0.93, rel=0.01)


@pytest.mark.parametrize(("message", "chunk"), [(64 * KB, 32 * KB), (512 * KB, 64 * KB), (2 * MB, 128 * KB)])
def test_small_messages_between_nodes_have_small_chunks(message, chunk):
    """Chunks of messages between nodes are a quarter below 128 KB, and a half below 1 MB."""
    filled = filling_us(np.array([float(message)]), np.array([1.0]), 20.0, PAIR_SIZES["network"])
    assert filled[0] == pytest.approx(chunk / 20_000)


@pytest.mark.parametrize(
    ("generation", "gb_per_s", "found"),
    [("Hopper", 8 * 20.6, (8, 20.0)), ("Hopper", 18 * 20.6, (12, 30.0)), ("Ampere", 240.0, (12, 20.0))],
)
def test_the_search_of_channels_ends_at_half_of_the_best_speed(generation, gb_per_s, found):
    """On 8 H800, NCCL finds 4 channels of 40 GB/s, which it splits, and not 27 of 6 GB/s with 2 GB/s more."""
    assert searched(generation, gb_per_s, None) == found


def test_old_chunks_of_ll128_are_whole_units():
    """On 24 channels of 8 ranks, 4 MiB are two units of 19,200 bytes for each chunk, that is 7.4 MB.

    A loop has at most 576,000 bytes for each.
    """
    loop = 192 * 576_000
    found = whole_chunks(np.array([4.0 * MB, loop, loop + 1.0]), 192)
    assert found.tolist() == [192 * 2 * 19_200, loop, loop + 192 * 19_200]


def test_the_last_chunk_of_a_ring_is_copied():
    """On 4 H100, a large allreduce takes as long as its data, latencies of about 30 us, and half a chunk.

    The chunk is 2 MiB on each of 24 channels. A rank sends 1.5 bytes for each byte of the allreduce.
    """
    one, two = predicted_us(costs_of("dgx-h100"), "allreduce", 4, 1, np.array([2.0**30, 2.0**31]))
    us_per_byte = (two - one) / 2**30
    assert one - 2**30 * us_per_byte == pytest.approx(30 + 24 * MB * us_per_byte / 1.5, rel=0.1)


def test_messages_between_nodes_are_flushed_before_hopper():
    """A message of 8 B between nodes of Hopper has the network latency of a message of an alltoall, 3.7 us.

    On Ampere it is that of NCCL's table under simple, 14 us, which includes a flush.
    """
    hopper, ampere = (
        predicted_us(replace(costs_of("dgx-h100"), generation=each), "point-to-point", 16, 2, np.array([8.0]))
        for each in ("Hopper", "Ampere")
    )
    assert ampere - hopper == pytest.approx(14.0 - 3.7)
