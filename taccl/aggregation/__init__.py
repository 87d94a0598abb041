"""In-network and server-side aggregation, except schedules: packet protocol, number formats, placement.

Schedules for switches and servers are made by `taccl.synthesize` and `taccl.baselines`.
"""

from taccl.aggregation.block_floating_point import (
    block_error_bounds,
    block_exponents,
    block_scales,
    dequantise_blocks,
    quantise_blocks,
)
from taccl.aggregation.fixed_point import dequantise, error_bound, largest_scale, quantise
from taccl.aggregation.packets import PacketRun, simulate_packets
from taccl.aggregation.shards import MODELS, Shards, choose_servers, layer_bytes, place_shards
from taccl.aggregation.switch_jobs import SwitchJob, switch_job

__all__ = [
    "MODELS", "PacketRun", "Shards", "SwitchJob", "block_error_bounds", "block_exponents", "block_scales",
    "choose_servers", "dequantise", "dequantise_blocks", "error_bound", "largest_scale", "layer_bytes",
    "place_shards", "quantise", "quantise_blocks", "simulate_packets", "switch_job",
]  # fmt: skip
