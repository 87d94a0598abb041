"""End of a verdict of `diagnose`: likely causes, usual figures of others, or rates between two ranks."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from taccl._internal.names import first_of
from taccl._internal.units import format_count
from taccl.explore.measured_machine import Machine, topology_of
from taccl.measure.causes import ANY_RATE, DETOURS, Cause, sizes_off
from taccl.measure.channel_limits import channel_costs, few_channels, largest_rate
from taccl.measure.facts import HEALTHY, UNTESTED, UNTESTED_USUAL, WITHIN_ERROR, Facts
from taccl.measure.machine import machine_of
from taccl.measure.series import Series
from taccl.topology.topology import Topology

#: Max number of indistinguishable causes, and of irregular sizes, that a verdict names.
_NAMED = 3
#: Min ratio of measured to expected bandwidth that shows another path than PCIe, whose rates vary by less.
_BRIDGED = 1.6
#: `_TOO_FAST`: ratio of measured to expected bandwidth above which no error of the model explains it.
#: `OVER`: max ratio of measured bandwidth to its bound that the noise of measurements explains.
_TOO_FAST, OVER = 1.25, 1.05


def conclusion(facts: Facts, causes: Sequence[Cause], bound_share: float | None) -> str:
    """End of the verdict: likely causes, several that cannot be told apart, or none.

    - `bound_share`: Measured bandwidth over the bound's; None if unknown.
    """
    rate = [each for each in causes if each.of == "rate"]
    latency = [each for each in causes if each.of == "latency"]
    detours = [each for each in rate if each.name in DETOURS and each.grade == "likely"]
    found = [(facts.is_slow, rate, "large"), (facts.is_late, detours or latency, "small")]
    said = [f"; {size} messages: {_named(some)}" for is_off, some, size in found if is_off]
    if facts.is_slow and facts.share is not None:
        if facts.fills_path:
            said[0] = "; large messages: usual for bridged pairs, whose rings share one path of PCIe"
        elif facts.other_nics is not None:
            num, gb_per_s, is_listed = facts.other_nics
            usual = f"; large messages: {gb_per_s:.4g} GB/s are usual with "
            if is_listed:
                usual += (
                    f"the {num} NICs that the log lists for a node, but {facts.nics_per_node} are assumed"
                )
            else:
                usual += f"{format_count(num, 'NIC')} for a node, or with {num / facts.nics_per_node:.0%} "
                usual += f"of their rate, but {facts.nics_per_node} are assumed"
            other = "" if is_listed else f"; with {facts.nics_per_node}, {_named(rate)}"
            said[0] = f"{usual}: name the machine (--topology){other}"
        elif facts.own_choice:
            own = f"{facts.library}'s own choice, {facts.own_choice}, has this rate"
            is_near = facts.share >= WITHIN_ERROR
            of = f"within the error of the model ({1 - WITHIN_ERROR:.0%})" if is_near else "large messages"
            said[0] = f"; {of}: {own}, or{said[0][1:]}"
        elif facts.untested and facts.share >= UNTESTED:
            said[0] = f"; large messages: not judged, as predictions may be {1 / UNTESTED:.2g} times too fast"
            said[0] += f" (algorithm {facts.alike} has this rate)" if facts.alike else ""
        elif facts.share >= WITHIN_ERROR:
            said[0] = f"; within the error of the model ({1 - WITHIN_ERROR:.0%}), or{said[0][1:]}"
    if facts.is_unjudged:
        times = f"predictions may be {UNTESTED_USUAL:g} times too fast"
        alike = f"; algorithm {facts.small_alike} takes as long" if facts.small_alike else ""
        reason = f"no published log of {facts.small_untested}{alike}"
        said.append(f"; small messages: not judged, as {times} ({reason})")
    if facts.share is not None and facts.share > _TOO_FAST:
        is_bound = bound_share is not None and bound_share <= OVER
        if is_bound:
            said.append("; above the prediction, but not above the bound")
        elif (
            facts.may_be_bridged or facts.joint == "PCIe" and facts.num_nodes == 1 and facts.share > _BRIDGED
        ):
            way_out = (
                "than the PCIe links of --topology: it may lack NVLink bridges, or be of another server"
                if facts.lists_links
                else "than PCIe, as with NVLink bridges: give `nvidia-smi topo -m` as --topology"
            )
            said.append(f"; faster {way_out}")
        else:
            said.append("; faster than the model allows: check --topology and the number of ranks")
    off = list(sizes_off(facts))
    if off:
        said.append(f"; off the curve: {first_of(off, _NAMED)}")
    if facts.middle:
        said.append(f"; {facts.middle}, by a fault or an error of the model")
    is_known = facts.share is not None or facts.small_ratio is not None
    ending = "".join(said) or ("; as expected" if is_known else "")
    if facts.may_be_bridged and facts.share is not None and HEALTHY <= facts.share <= _TOO_FAST:
        ending += " of PCIe alone" if not said else "; large messages have the rate of PCIe alone"
        ending += ": bridges between pairs of such boards are not in the log (give `nvidia-smi topo -m`)"
    in_verdict = {each.name for each in causes if each.title in ending}
    unseen = [said for name, said in facts.stated.items() if name in ANY_RATE and name not in in_verdict]
    ending += f", but {unseen[0]}" if unseen and is_known else ""
    return f"{ending}; no published log of {facts.untested}" if facts.untested and is_known else ending


def _named(causes: Sequence[Cause]) -> str:
    """Text of the one likely cause, or of several causes that cannot be told apart."""
    likely = [each for each in causes if each.grade == "likely"]
    if len(likely) == 1:
        return f"likely {likely[0].title}"
    titles = [each.title for each in likely or causes][:_NAMED]
    return f"cause unclear ({'; or '.join(titles) or 'no documented cause matches these figures'})"


def link_sentence(
    series: Series,
    machine: Machine,
    gpus: Collection[str],
    placed: Sequence[tuple[Series, Topology, list[str]]],
    version: Sequence[int],
) -> str:
    """Sentence that compares the rate between two ranks with that of a GPU's links or a NIC."""
    rate = largest_rate(series)
    on = next((on for _, on, _ in placed), None)
    if on is None:
        on, _ = topology_of(
            series.on(0, series.num_nodes), machine._replace(nodes=2 if series.num_nodes > 1 else 1), gpus
        )
    figures = machine_of(on)
    between = series.num_nodes > 1
    most = figures.network_gb_per_s if between else figures.node_gb_per_s
    if not most:
        return f"{series.source}: {rate:.4g} GB/s between two ranks; {on.name} has no network to compare with"
    what = "the rate of a NIC" if between else "the rate of a GPU inside its node"
    direct = 0.0 if between else _pair_gb_per_s(on)
    if 0 < direct < most:
        most, what = direct, "the rate of the links between two GPUs"
    said = f"{series.source}: {rate:.4g} GB/s between two ranks, {rate / most:.0%} of {what} ({most:.4g})"
    costs = channel_costs(on)
    clause = "" if costs is None else few_channels(costs, series, version)
    return f"{said}; {clause}: set NCCL_NCHANNELS_PER_NET_PEER" if clause else said


def _pair_gb_per_s(topology: Topology) -> float:
    """Largest rate in GB/s between two ranks of a node, over all their links; 0 if a node has no links."""
    rates: dict[tuple[int, int], float] = {}
    for index, link in enumerate(topology.links):
        if len(link.srcs) == len(link.dsts) == 1 and not topology.is_internode(index):
            pair = link.src, link.dst
            rates[pair] = rates.get(pair, 0.0) + float(1000 / link.beta_us_per_mb)
    return max(rates.values(), default=0.0)
