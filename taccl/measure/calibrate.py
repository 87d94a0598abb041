"""Calibrate a library's predicted times to measured times by five factors, each with a prior at 1.

The factors scale the machine's latencies and rates. Predictions with the scaled figures follow the library's
own choice of algorithm. They also cover collectives and numbers of nodes that no log has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from taccl._internal.address_space import require_address_space
from taccl.measure.estimate import robust_residuals
from taccl.measure.library_costs import Costs
from taccl.measure.predict import series_us
from taccl.measure.series import Series

#: {factor: standard deviation of the normal prior of its logarithm} (our choice).
#: The deviations are larger for networks than for nodes, as networks vary more.
_SPREADS = {
    "launch_scale": 0.5, "node_latency": 0.1, "network_latency": 0.5, "node_rate": 0.08, "network_rate": 0.2,
}  # fmt: skip
#: Relative error of a predicted time above which a row counts less (pseudo-Huber loss).
#: Predictions with default profiles have about this error.
_NOISE = 0.1


def calibrated(costs: Costs, series: Sequence[Series]) -> Costs:
    """Scale a library's costs by the factors that fit measured series best.

    If there are bandwidth tests between nodes, the NIC's rate is first set to the highest rate in them.

    - `series`: Series with known numbers of ranks and nodes.
    """
    streams = [each for each in series if each.streams and each.num_nodes > 1]
    if streams:
        rates = (np.array(each.size_bytes) / np.array(each.times_us) / 1000 for each in streams)
        costs = replace(costs, nic_gb_per_s=max(float(rate.max()) for rate in rates))
    timed = [each for each in series if not each.streams]
    if not timed:
        return costs
    costs = replace(costs, ranks_per_process=max(each.launched_together for each in timed))
    require_address_space()
    from scipy.optimize import least_squares

    names, spreads = list(_SPREADS), np.array(list(_SPREADS.values()))

    def scaled(logs: NDArray[np.float64]) -> Costs:
        return replace(costs, **dict(zip(names, np.exp(logs).tolist(), strict=True)))

    def residuals(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        at = scaled(logs)
        errors = [np.log(series_us(at, each) / np.array(each.times_us)) / _NOISE for each in timed]
        off = np.concatenate(errors)
        return np.concatenate([robust_residuals(off), logs / spreads])

    found = least_squares(residuals, np.zeros(len(names)), max_nfev=40, xtol=1e-5, ftol=1e-5)
    return scaled(found.x)
