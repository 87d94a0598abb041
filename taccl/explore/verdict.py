"""End of a verdict of `diagnose`: likely causes, usual figures of other machines, or none."""

from __future__ import annotations

from collections.abc import Sequence

from taccl._internal.names import first_of
from taccl._internal.units import format_count
from taccl.measure.causes import ANY_RATE, DETOURS, Cause, sizes_off
from taccl.measure.facts import HEALTHY, UNTESTED, UNTESTED_USUAL, WITHIN_ERROR, Facts

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
