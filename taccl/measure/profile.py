"""Write a fit as a profile of the machine, in TOML."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import exp, log, prod
from typing import TYPE_CHECKING, Any

from taccl._internal.reading import toml_document
from taccl.measure.machine import find_machine
from taccl.topology.profiles import PROFILES, find_profile
from taccl.topology.tuning import PROTOCOLS, SOURCE, Protocol

if TYPE_CHECKING:
    from taccl.measure.fitted import Fit, FittedParameter, FittedSeries


def profile_toml(fit: Fit, name: str) -> str:
    """Machine's nominal profile with the fitted constants, as TOML text.

    - `name`: Source line of the profile, which identifies the fit.
    """
    machine = find_machine(fit.machine)
    found = {each.name: each for each in fit.parameters}
    constants = {}
    ll = PROTOCOLS[0]
    for constant in find_profile(fit.machine, "nominal").constants:
        kind, _, cost = constant.name.partition("_")
        where, hop, promised = "node", ll.ring_hop_us, machine.node_gb_per_s
        if constant.name.startswith("internode"):
            where, hop, promised = "network", ll.ring_network_us, machine.network_gb_per_s
        value = float(constant.value)
        if kind != "nic" and cost.endswith("beta_us_per_mb"):
            told = _measured([found[f"{where}_gb_per_s"]], value * promised, inverse=True)
        elif kind != "nic" and cost == "alpha_us":
            scales = ["network_latency"] if where == "network" else ["node_latency", "ll_latency"]
            told = _measured([found[name] for name in scales], hop)
        else:
            told = {"value": _number(value), "source": constant.source}
        constants[constant.name] = told
    corrections = [_correction(series) for series in fit.series if series.factors]
    return toml_document({
        "machine": fit.machine, "source": name, "runtime": PROFILES[fit.machine][0].runtime or "nccl",
        "constants": constants,
        "launch": {
            "latency_us": _measured([found["launch_us"]]), "channel_us": _measured([found["channel_us"]]),
        },
        "protocol": {PROTOCOLS[i].name: _protocol(PROTOCOLS[i], found) for i in fit.protocols},
        "range": [each for series in fit.series for each in _ranges(series)],
        **({"correction": corrections} if corrections else {}),
    })  # fmt: skip


def _protocol(protocol: Protocol, found: dict[str, FittedParameter]) -> dict[str, Any]:
    scale, share = found[f"{protocol.name}_latency"], found.get(f"{protocol.name}_share")
    whole = {"value": 1.0, "source": "by definition: shares are of this protocol's bandwidth"}
    return {
        "latency_scale": _measured([scale]),
        "base_us": _measured([scale], protocol.ring_base_us),
        "node_hop_us": _measured([scale, found["node_latency"]], protocol.ring_hop_us),
        "network_hop_us": _measured([found["network_latency"]], protocol.ring_network_us),
        "bandwidth_share": whole if share is None else _measured([share]),
    }


def _ranges(found: FittedSeries) -> Iterator[dict[str, Any]]:
    """Yield the size range of each protocol that the library used in a series."""
    series = found.series
    for index, (smallest, largest) in found.ranges.items():
        yield {
            "collective": series.collective, "ranks": series.num_ranks, "nodes": series.num_nodes,
            "protocol": PROTOCOLS[index].name, "from_bytes": smallest, "up_to_bytes": largest,
        }  # fmt: skip


def _correction(found: FittedSeries) -> dict[str, Any]:
    """Correction by size of a series."""
    series, factors = found.series, [round(each, 4) for each in found.factors]
    return {
        "collective": series.collective, "ranks": series.num_ranks, "nodes": series.num_nodes,
        "bytes": list(series.size_bytes), "factors": factors,
    }  # fmt: skip


def _measured(of: Sequence[FittedParameter], factor: float = 1.0, *, inverse: bool = False) -> dict[str, Any]:
    """TOML entry for `factor` times a product of parameters; its interval assumes independent parameters.

    - `inverse`: True for the factor divided by the product.
    """
    product = prod(each.value for each in of)
    value = factor / product if inverse else factor * product
    below = sum(log(each.value / each.low) ** 2 for each in of)
    above = sum(log(each.high / each.value) ** 2 for each in of)
    below, above = (above, below) if inverse else (below, above)
    source = "; ".join(dict.fromkeys(f"{each.name}: {each.source}" for each in of))
    source += f"; times {_number(factor)} us ({SOURCE})" if factor != 1 and not inverse else ""
    low, high = value * exp(-(below**0.5)), value * exp(above**0.5)
    named = zip(("value", "low", "high"), (value, low, high), strict=True)
    return {**{name: _number(number, is_beta=inverse) for name, number in named}, "source": source}


def _number(value: float, *, is_beta: bool = False) -> float:
    """Round to 6 significant digits, but a beta in us/MB to 3 decimals, so that times fit a grid of ticks."""
    return round(value, 3) or value if is_beta else float(f"{value:.6g}")
