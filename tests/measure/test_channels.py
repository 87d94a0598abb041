"""Channels of messages between two ranks follow NCCL's rule."""

import numpy as np
import pytest

from taccl.measure.channels import filling_us, pair_channels
from taccl.measure.predict import costs_of, predicted_us
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
