"""Sums in the network and at servers, beside their schedules: the protocol of packets, fixed point, shards.

Schedules of switches and servers are made by `taccl.synthesize` and `taccl.baselines`.
"""

from taccl.aggregation.fixed_point import dequantise, error_bound, largest_scale, quantise
from taccl.aggregation.packets import PacketRun, simulate_packets
from taccl.aggregation.shards import MODELS, Shards, choose_servers, layer_bytes, place_shards

__all__ = [
    "MODELS", "PacketRun", "Shards", "choose_servers", "dequantise", "error_bound", "largest_scale",
    "layer_bytes", "place_shards", "quantise", "simulate_packets",
]  # fmt: skip
