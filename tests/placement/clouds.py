"""Simulated clouds for tests: hosts in racks, which share uplinks."""

from __future__ import annotations

import numpy as np

from taccl import Probe


def cloud(racks, *, seed=None, over=4.0, noise=0.0):
    """(true fabric of racks of hosts, in an order shuffled by `seed`; probe of its latencies)."""
    rng = np.random.default_rng(seed)
    rack = np.repeat(np.arange(len(racks)), racks)
    if seed is not None:
        rack = rng.permutation(rack)
    latency = np.where(rack[:, None] == rack, 10.0, 20.0)
    names = tuple(f"vm{number}" for number in range(len(rack)))
    groups = [np.flatnonzero(rack == each) for each in range(len(racks))]
    uplinks = tuple((tuple(g.tolist()), 12.5 * max(1.0, len(g) / over)) for g in groups if len(g) > 1)
    truth = Probe(names, latency, np.full(latency.shape, 12.5), uplinks=uplinks)
    noisy = latency * (1 + noise * rng.standard_normal(latency.shape)).clip(0.6, 1.4)
    return truth.topology(), Probe(names, noisy), rack
