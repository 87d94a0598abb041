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
    off = list(sizes_off(facts))
    clauses = [
        *([_slow_clause(facts, rate)] if facts.is_slow else []),
        *([f"small messages: {_named(detours or latency)}"] if facts.is_late else []),
        *([_unjudged_clause(facts)] if facts.is_unjudged else []),
        *([_fast_clause(facts, bound_share)] if (facts.share or 0.0) > _TOO_FAST else []),
        *([f"off the curve: {first_of(off, _NAMED)}"] if off else []),
        *([f"{facts.middle}, by a fault or an error of the model"] if facts.middle else []),
    ]
    is_known = facts.share is not None or facts.small_ratio is not None
    ending = "".join(f"; {each}" for each in clauses or ["as expected"] * is_known)
    if facts.may_be_bridged and facts.share is not None and HEALTHY <= facts.share <= _TOO_FAST:
        ending += "; large messages have the rate of PCIe alone" if clauses else " of PCIe alone"
        ending += ": bridges between pairs of such boards are not in the log (give `nvidia-smi topo -m`)"
    in_verdict = {each.name for each in causes if each.title in ending}
    unseen = [said for name, said in facts.stated.items() if name in ANY_RATE and name not in in_verdict]
    if _has_peers(facts):
        ending += "; no copies through host memory, as GeForce and TITAN cards have without a modified driver"
    elif unseen and is_known:
        ending += f", but {unseen[0]}"
    return f"{ending}; no published log of {facts.untested}" if facts.untested and is_known else ending


def _has_peers(facts: Facts) -> bool:
    """True if GPUs whose drivers usually bar copies between them have the rate of such copies."""
    return "no-peers" in facts.stated and facts.share is not None and facts.share >= HEALTHY


def _slow_clause(facts: Facts, rate: Sequence[Cause]) -> str:
    """Clause on large messages that are slower than expected.

    - `rate`: Causes of low rates.
    """
    assert facts.share is not None, "large messages are slow"
    is_within_error = facts.share >= WITHIN_ERROR
    within_error = f"within the error of the model ({1 - WITHIN_ERROR:.0%})"
    plain = f"large messages: {_named(rate)}"
    if facts.fills_path:
        return "large messages: usual for bridged pairs, whose rings share one path of PCIe"
    if facts.other_nics is not None:
        num, gb_per_s, is_listed = facts.other_nics
        usual = f"large messages: {gb_per_s:.4g} GB/s are usual with "
        assumed = f"but {facts.nics_per_node} are assumed: name the machine (--topology)"
        if is_listed:
            return f"{usual}the {num} NICs that the log lists for a node, {assumed}"
        usual += (
            f"{format_count(num, 'NIC')} for a node, or with {num / facts.nics_per_node:.0%} of their rate"
        )
        return f"{usual}, {assumed}; with {facts.nics_per_node}, {_named(rate)}"
    if facts.own_choice:
        where = within_error if is_within_error else "large messages"
        return f"{where}: {facts.library}'s own choice, {facts.own_choice}, has this rate, or {plain}"
    if facts.untested and facts.share >= UNTESTED:
        alike = f" (algorithm {facts.alike} has this rate)" if facts.alike else ""
        times = f"predictions may be {1 / UNTESTED:.2g} times too fast"
        return f"large messages: not judged, as {times}{alike}"
    return f"{within_error}, or {plain}" if is_within_error else plain


def _unjudged_clause(facts: Facts) -> str:
    """Clause on small messages whose expected time is too uncertain to judge them."""
    times = f"predictions may be {UNTESTED_USUAL:g} times too fast"
    alike = f"; algorithm {facts.small_alike} takes as long" if facts.small_alike else ""
    reason = f"no published log of {facts.small_untested} confirms them{alike}"
    return f"small messages: not judged, as {times} ({reason})"


def _fast_clause(facts: Facts, bound_share: float | None) -> str:
    """Clause on large messages that are faster than any error of the model explains."""
    if bound_share is not None and bound_share <= OVER:
        return "above the prediction, but not above the bound"
    is_beyond_pcie = facts.joint == "PCIe" and facts.num_nodes == 1 and (facts.share or 0.0) > _BRIDGED
    if not facts.may_be_bridged and not is_beyond_pcie:
        if _has_peers(facts):
            return "faster than usual PCIe"
        return "faster than the model allows: check --topology and the number of ranks"
    if facts.lists_links:
        return "faster than the PCIe links of --topology: it may lack NVLink bridges, or be of another server"
    return "faster than PCIe, as with NVLink bridges: give `nvidia-smi topo -m` as --topology"


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
    on: Topology | None,
    version: Sequence[int],
) -> str:
    """Sentence that compares the rate between two ranks with that of a GPU's links or a NIC.

    - `on`: Topology of a measured collective; None if the logs have no collective.
    """
    rate = largest_rate(series)
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
