"""What was fitted as a profile of the machine, in TOML."""

from __future__ import annotations

from math import exp, log
from typing import TYPE_CHECKING

from taccl.measure.machine import find_machine
from taccl.reading import toml_text
from taccl.topology.profiles import find_profile
from taccl.topology.tuning import PROTOCOLS, SOURCE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from taccl.measure.fit import Fit, FittedParameter, FittedSeries
    from taccl.topology.tuning import Protocol


def profile_toml(fit: Fit, name: str) -> str:
    """The profile that a fit makes of the machine's data sheets; `name` says which fit it is."""
    machine = find_machine(fit.machine)
    found = {each.name: each for each in fit.parameters}
    lines = [f"machine = {toml_text(fit.machine)}", f"source = {toml_text(name)}", ""]
    for constant in find_profile(fit.machine, "nominal").constants:
        lines += [f"[constants.{constant.name}]"]
        between, ll = constant.name.startswith("internode"), PROTOCOLS[0]
        kind, _, cost = constant.name.partition("_")
        value = float(constant.value)
        if kind != "nic" and cost.endswith("beta_us_per_mb"):
            rate = found["network_gb_per_s" if between else "node_gb_per_s"]
            promised = machine.network_gb_per_s if between else machine.node_gb_per_s
            lines += _measured([rate], value * promised, inverse=True)
        elif kind != "nic" and cost == "alpha_us":
            scale = found["network_latency" if between else "node_latency"]
            hop = ll.ring_network_us if between else ll.ring_hop_us
            lines += _measured([scale, found["ll_latency"]], hop)
        else:
            lines += [f"value = {_number(value)}", f"source = {toml_text(constant.source)}"]
        lines.append("")
    lines += ["[launch.latency_us]", *_measured([found["launch_us"]]), ""]
    for index in fit.protocols:
        lines += _protocol(PROTOCOLS[index], found)
    for series in fit.series:
        lines += _ranges(series)
    return "\n".join(lines)


def _protocol(protocol: Protocol, found: dict[str, FittedParameter]) -> Iterable[str]:
    scale, head = found[f"{protocol.name}_latency"], f"protocol.{protocol.name}"
    yield from (f"[{head}.latency_scale]", *_measured([scale]), "")
    yield from (f"[{head}.base_us]", *_measured([scale], protocol.ring_base_us), "")
    node, network = found["node_latency"], found["network_latency"]
    yield from (f"[{head}.node_hop_us]", *_measured([scale, node], protocol.ring_hop_us), "")
    yield from (f"[{head}.network_hop_us]", *_measured([scale, network], protocol.ring_network_us), "")
    yield f"[{head}.bandwidth_share]"
    share = found.get(f"{protocol.name}_share")
    if share is None:
        yield from ("value = 1.0", 'source = "by definition: shares are of this protocol\'s bandwidth"', "")
    else:
        yield from (*_measured([share]), "")


def _ranges(found: FittedSeries) -> Iterable[str]:
    """The runs of sizes at which a protocol was taken."""
    sizes, protocols = found.series.size_bytes, found.protocols
    for index, protocol in enumerate(PROTOCOLS):
        taken = [size for size, each in zip(sizes, protocols, strict=True) if each == index]
        if taken:
            yield from (
                "[[range]]",
                f"collective = {toml_text(found.series.collective)}",
                f"ranks = {found.series.num_ranks}",
                f"nodes = {found.series.num_nodes}",
                f"protocol = {toml_text(protocol.name)}",
                f"from_bytes = {taken[0]}",
                f"up_to_bytes = {taken[-1]}",
                "",
            )


def _measured(of: Sequence[FittedParameter], factor: float = 1.0, *, inverse: bool = False) -> list[str]:
    """A product of parameters, or a factor over one, with an interval as of independent ones."""
    value, below, above = factor, 0.0, 0.0
    for each in of:
        value = value / each.value if inverse else value * each.value
        down, up = log(each.value / each.low), log(each.high / each.value)
        down, up = (up, down) if inverse else (down, up)
        below, above = below + down**2, above + up**2
    source = "; ".join(dict.fromkeys(f"{each.name}: {each.source}" for each in of))
    source += f"; times {_number(factor)} us ({SOURCE})" if factor != 1 and not inverse else ""
    low, high = value * exp(-(below**0.5)), value * exp(above**0.5)
    named = zip(("value", "low", "high"), (value, low, high), strict=True)
    told = (f"{name} = {_number(number, is_beta=inverse)}" for name, number in named)
    return [*told, f"source = {toml_text(source)}"]


def _number(value: float, *, is_beta: bool = False) -> str:
    """A decimal of six digits, which TOML takes for one; a beta of so many that grids of ticks hold it."""
    text = str(round(value, 3) or value) if is_beta else f"{value:.6g}"
    return text if any(each in text for each in ".e") else f"{text}.0"
