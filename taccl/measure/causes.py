"""Likely causes of slow collectives: each with the figures that speak for it, and what to try."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

from taccl._internal.units import format_size
from taccl.measure.curve import Kink
from taccl.measure.facts import HEALTHY, SETTLED, UNEQUAL, WITHIN_ERROR, Facts
from taccl.topology.tuning import PACK_BYTES

#: NCCL as a word in remedies, replaced by the name of the machine's library; settings such as NCCL_ALGO stay.
_NCCL = re.compile(r"\bNCCL\b")
#: `_MATCHES`: max relative difference between the measured share of the expected bandwidth and the share
#: that a cause predicts. `_INDISTINCT`: causes whose differences are this close cannot be told apart.
_MATCHES, _INDISTINCT = 0.05, 0.03
#: Max credible ratio of measured to expected bandwidth: a NIC's wire rate over the rate that messages reach.
_WIRE = 1.08
#: Shares of the expected rate of PCIe that a link with fewer lanes or of an older generation reaches.
_FEWER_LANES = ((1 / 2, "half"), (1 / 4, "a quarter"))
#: Max share of a node's bandwidth that suggests that GPUs cannot reach each other directly (P2P).
_HOST_MEMORY = 0.2
#: Max share of a rack's bandwidth that suggests that NICs join its hosts, as NVLinks do not. 4 NICs of
#: 46.5 GB/s for a host of GB200 are 0.2 of an allreduce, and 0.28 of an allgather.
_BY_NICS = 0.3
#: `_BOUNCED`: max share of the network's bandwidth that suggests transfers without GPUDirect RDMA.
#: `_BOUNCED_SMALL`: min ratio of times of small messages to usual times that suggests the same.
_BOUNCED, _BOUNCED_SMALL = 0.85, 1.3
#: Min ratio of times of small messages to usual times at which NUMA balancing is likely, with GPUs of AMD
#: (our choice; 3.2 in a published log with it).
_BALANCED = 2.0
#: Min fall of the share of the expected bandwidth, from fewer to more nodes, that shows oversubscription.
_FALLS = 0.1
#: Ratios of oversubscription that are usual between leaves of a network.
_OVERSUBSCRIPTIONS = (2, 3, 4)
#: Max ratio, in either direction, of the time of small messages to the time in which one process launches
#: the kernels of all GPUs of a node. Within it, the launches explain the time.
_LAUNCHES = 1.3
#: Max irregular sizes listed in the evidence.
_SHOWN = 3
#: {PCIe link: GB/s one way that DMA reaches}, as 0.85 of the raw rate (published measurements: 0.8 to 0.9).
PCIE_GB_PER_S = {
    f"PCIe {generation}.0 x{lanes}": 0.85 * per_lane * lanes
    for generation, per_lane in ((3, 0.985), (4, 1.969), (5, 3.938))
    for lanes in (4, 8, 16)
}

#: ``"likely"`` if figures match this cause alone, ``"possible"`` if they do not exclude it.
Grade = Literal["likely", "possible"]
#: Slow part of a series: the rate of large messages, the latency of small ones, or sizes off the curve.
Of = Literal["rate", "latency", "sizes"]
#: Causes that explain any low rate, so that lines of a log suffice as evidence.
ANY_RATE = ("sockets", "gdr-off", "nic-unused", "p2p-disabled", "no-peers")
#: Those of them between nodes, which a log of one node may name although no data use its network.
OF_NETWORK = ("sockets", "gdr-off", "nic-unused")
#: Max rate in GB/s of a node that suggests sockets (our choice: the wire rate of 100 Gb/s), and max share of
#: its NICs' rate.
_SOCKETS_GB_PER_S, _SOCKETS_SHARE = 12.5, 0.5
#: Causes in NCCL's own choices and launches, which other libraries do not have.
_OF_NCCL = ("nvls-off", "algorithm", "protocol", "protocol-switch", "one-process", "unaligned")
#: Causes of a low rate that also delay small messages, as all messages go through host memory or NICs.
DETOURS = ("sockets", "gdr-off", "p2p-disabled", "no-peers", "mnnvl-off")
#: Causes recognised by rates that differ among large messages, by their size or their place. A slow rail is
#: none of these: it slows all large messages by the same share.
_BY_KIND = ("place", "falls", "collapse", "unaligned")


class Cause(NamedTuple):
    """A possible cause, its evidence in the figures, and a remedy; `of` is the slow part of the series."""

    name: str
    of: Of
    title: str
    grade: Grade
    evidence: str
    remedy: str


#: (grade, relative distance from the measured share, evidence) of a cause; None if figures exclude it.
_Found = tuple[Grade, float, str] | None


def causes_of(facts: Facts) -> tuple[Cause, ...]:
    """Causes that agree with the figures, the best match first.

    Causes of slow large messages are graded possible if several causes match equally well, or the rate is
    within the error of the model. The same holds for a slow network with NICs that were not measured one by
    one, as a slow rail explains any rate. Causes in `_BY_KIND` remain likely. A cause of the rate that
    lines of the log show is likely, and others are then possible. The same holds for another library.
    """
    found = [(rule, *each) for rule in RULES if (each := _evidence(rule, facts)) is not None]
    is_stated = any(rule.of == "rate" and rule.name in facts.stated for rule, *_ in found)
    matches = sorted(distance for rule, _, distance, _ in found if rule.of == "rate" and distance <= _MATCHES)
    is_unsure = facts.slow_network is not None and facts.may_hide_rail
    is_unsure |= facts.share is not None and facts.share >= facts.within_error
    is_unsure |= facts.other_nics is not None or facts.may_be_bridged and facts.is_slow
    is_unsure |= len(matches) > 1 and matches[1] <= matches[0] + _INDISTINCT
    causes = []
    for rule, grade, distance, evidence in found:
        if rule.name == "other-library":
            grade = "likely"
        elif facts.other_library:
            grade = "possible"
        elif rule.of == "rate" and rule.name not in (facts.stated if is_stated else _BY_KIND):
            grade = "possible" if is_stated or is_unsure else grade
        remedy = _NCCL.sub(facts.library, rule.remedy)
        causes.append((grade, distance, Cause(rule.name, rule.of, rule.title, grade, evidence, remedy)))
    return tuple(cause for _, _, cause in sorted(causes, key=lambda each: each[:2]))


class Rule(NamedTuple):
    """A cause of slow collectives, and the function that looks for evidence of it in the figures."""

    name: str
    title: str
    of: Of
    find: Callable[[Facts], _Found]
    remedy: str


def _evidence(rule: Rule, facts: Facts) -> _Found:
    """Evidence of a cause in the figures, and in the lines of the log."""
    if rule.name in facts.excluded or facts.other_library and rule.name in _OF_NCCL:
        return None
    found, stated = rule.find(facts), facts.stated.get(rule.name)
    works = facts.falls or facts.depends_on_place
    if works and rule.of == "rate" and rule.name not in _BY_KIND:
        return None  # this cause would also slow smaller sizes, or the other place, which are fast
    if stated is None or rule.name == "no-peers" and found is not None:
        return found
    if found is not None:
        return "likely", 0.0, f"{stated}; {found[2]}"
    is_slow = facts.is_slow if rule.name in ("p2p-disabled", "no-peers") else facts.slow_network is not None
    return ("likely", 0.0, stated) if rule.name in ANY_RATE and is_slow else None


def _matched(share: float, expected: Iterable[tuple[float, str]]) -> _Found:
    """Evidence for the expected share nearest to the measured `share`; None unless within `_MATCHES`."""
    return _nearest((abs(share / each - 1), text) for each, text in expected)


def _off_rate(ratio: float) -> float:
    """Relative distance of a measured rate from the expected one; `ratio` is measured over expected.

    If the measured rate is higher, the distance is scaled: the rate of the wire (`_WIRE`) is at the distance
    `_MATCHES`.
    """
    return 1 - ratio if ratio < 1 else (ratio - 1) * _MATCHES / (_WIRE - 1)


def _nearest(found: Iterable[tuple[float, str]]) -> _Found:
    """Evidence with the least relative distance; None unless that is within `_MATCHES`."""
    distance, text = min(found, default=(1.0, ""))
    return ("likely", distance, text) if distance <= _MATCHES else None


def _other_library(facts: Facts, *, is_off: bool) -> _Found:
    return ("likely", 0.0, facts.other_library) if facts.other_library and is_off else None


def _nvls_off(facts: Facts) -> _Found:
    without = facts.shares.get("no nvls", 1.0)
    if not facts.is_slow or facts.share is None or without >= HEALTHY:
        return None
    said = (
        f"{facts.share:.0%} of the expected bandwidth; without sums in the switch {without:.0%} are expected"
    )
    ratio = facts.share / without
    if ratio < WITHIN_ERROR or _off_rate(ratio) > _MATCHES and ratio > 1:
        return None
    return "likely" if ratio >= 1 - _MATCHES else "possible", _off_rate(ratio), said


def _protocol(facts: Facts) -> _Found:
    if not facts.is_slow or facts.share is None:
        return None
    named = ((facts.shares[p], p) for p in ("ll", "ll128") if facts.shares.get(p, 1.0) < HEALTHY)
    told = f"{facts.share:.0%} of the expected bandwidth; protocol"
    found = _matched(facts.share, [(share, f"{told} {p} reaches {share:.0%}") for share, p in named])
    if found and facts.is_slow_pcie and facts.slows_ll:  # forcing LL does not slow its usual sizes
        return "possible", found[1] + _MATCHES, f"{found[2]}; but sizes where LL is usual are slow too"
    # LL or LL128 is only possible if protocol simple without NVLS, or fewer links, explain the rate.
    is_other = _nvls_off(facts) or _nvlinks_down(facts) or _xgmi_down(facts)
    return found and ("possible" if is_other else found[0], *found[1:])


def _algorithm(facts: Facts) -> _Found:
    if not facts.is_slow or facts.share is None:
        return None
    told = f"{facts.share:.0%} of the expected bandwidth; with algorithm"
    found = _matched(facts.share, [
        (share, f"{told} {name} {share:.0%} are expected")
        for name, share in facts.algorithm_shares.items() if share < HEALTHY
    ])  # fmt: skip
    return found and ("possible", *found[1:])


def _before_fall(facts: Facts) -> Iterator[Kink]:
    """Yield the irregular sizes that a fall of the rate at the largest sizes does not explain."""
    yield from (each for each in facts.kinks if not facts.falls or each.size_bytes <= SETTLED)


def _switches(facts: Facts) -> _Found:
    off = [each for each in _before_fall(facts) if each.kind != "outlier"]
    if not off or _collapsed(facts):
        return None
    return "likely", 0.0, "; ".join(f"{each.evidence} ({each.kind})" for each in off[:_SHOWN])


def _collapsed(facts: Facts) -> _Found:
    last = next((each for each in reversed(facts.kinks) if each.kind == "wrong switch"), None)
    slowest = min(facts.shares.values(), default=0.0)
    if last is None or facts.share is None or facts.share >= slowest:
        return None
    told = f"large messages reach {facts.share:.1%} of the expected rate, the slowest protocol {slowest:.0%}"
    return "likely", 0.0, f"{last.evidence}; {told}"


def _falls(facts: Facts) -> _Found:
    if not facts.falls:
        return None
    told = f"{facts.share:.0%} of the expected bandwidth at the largest size"
    return "likely", 0.0, f"{told}, {facts.other_share:.0%} at a smaller one from 256 MiB on"


def _place(facts: Facts) -> _Found:
    if not facts.depends_on_place:
        return None
    told = f"{facts.share:.0%} of the expected bandwidth"
    return "likely", 0.0, f"{told}, {facts.place_share:.0%} in the other place"


def _outliers(facts: Facts) -> _Found:
    off = [each for each in _before_fall(facts) if each.kind == "outlier"]
    return ("likely", 0.0, "; ".join(each.evidence for each in off[:_SHOWN])) if off else None


def _unaligned(facts: Facts) -> _Found:
    if not facts.is_slow or not facts.unaligned_bytes:
        return None
    told = f"a rank's part of the largest size has {facts.unaligned_bytes} bytes, no multiple of {PACK_BYTES}"
    return "likely", 0.0, f"{told}: {facts.library} then copies element by element"


def _no_p2p(facts: Facts) -> _Found:
    if facts.is_slow_pcie and facts.share is not None and facts.share < WITHIN_ERROR:
        told = f"{facts.share:.0%} of what PCIe carries; copies through host memory have such rates"
        is_both = facts.small_ratio is not None and facts.small_ratio >= _BOUNCED_SMALL
        told += f", and longer small messages ({facts.small_ratio:.2g} times)" if is_both else ""
        return "possible", 0.05 if is_both else 0.15, told
    is_node = facts.num_nodes == 1 and facts.joint in ("NVSwitch", "NVLink", "xGMI")
    if not is_node or facts.share is None or facts.share > _HOST_MEMORY:
        return None
    # GPUs whose NVLinks are down may use PCIe directly. If small messages are slow, too, the path is a detour
    # through host memory.
    is_late = facts.small_ratio is not None and facts.small_ratio >= _BOUNCED_SMALL
    is_sure = facts.hosts == 1 and (is_late or facts.joint != "NVLink")
    grade: Grade = "likely" if is_sure else "possible"
    return grade, 0.0, f"{facts.share:.0%} of what {facts.joint} carries, a rate of PCIe or host memory"


def _no_peers(facts: Facts) -> _Found:
    said = facts.stated.get("no-peers")
    if said is None or not facts.is_slow_pcie or facts.share is None or facts.share > _HOST_MEMORY:
        return None
    return "possible", 0.0, f"{said}, but such copies are faster than {facts.share:.0%} of PCIe"


def _mnnvl_off(facts: Facts) -> _Found:
    if facts.hosts == 1 or not facts.is_slow or facts.share is None:
        return None
    if facts.share > _BY_NICS and "mnnvl-off" not in facts.stated:
        return None
    told = f"{facts.share:.0%} of what {facts.joint} carries between {facts.hosts} hosts"
    return "possible", 0.0, f"{told}, a rate of their NICs"


def _nvlinks_down(facts: Facts) -> _Found:
    return _links_down(facts, "NVLink")


def _xgmi_down(facts: Facts) -> _Found:
    return _links_down(facts, "xGMI")


def _links_down(facts: Facts, joint: str) -> _Found:
    """Evidence that fewer or slower links of one kind join pairs of GPUs in a node."""
    is_pairwise = facts.num_nodes == 1 and facts.joint == joint
    if not is_pairwise or facts.share is None or facts.share >= WITHIN_ERROR:
        return None
    told = "a rate of PCIe" if facts.share <= _HOST_MEMORY else "the rate of fewer links"
    return "possible", 0.05, f"{facts.share:.0%} of what {joint} carries, {told}"


def _one_path(facts: Facts) -> _Found:
    if facts.num_nodes > 1 or not facts.is_slow or facts.joint != "bridges" and not facts.may_be_bridged:
        return None
    if facts.may_be_bridged:
        told = f"{facts.share:.0%} of what PCIe carries; such boards may be bridged in pairs"
        return "possible", 0.1, f"{told}, whose channels then share a path of PCIe"
    told = f"{facts.share:.0%} of what all PCIe links carry together; one path of them carries about half"
    return "possible", 0.1, told


def _sockets(facts: Facts) -> _Found:
    if facts.slow_network is None:
        return None
    share = facts.network_shares.get("ring", facts.slow_network)
    carried = share * facts.nic_gb_per_s * facts.nics_per_node
    if carried > _SOCKETS_GB_PER_S or share > _SOCKETS_SHARE:
        return None
    return "possible", 0.0, f"a node sends {carried:.3g} GB/s, {share:.0%} of its NICs' rate, as sockets may"


def _unused_nic(facts: Facts) -> _Found:
    share, num = facts.slow_network, facts.nics_per_node
    slow = _slow_nics(facts)
    if share is None or facts.nics_differ or slow and slow[1] <= _MATCHES:
        return None
    half = 0.5, "half of the NICs' rate: one of two is unused, or two GPUs share one"
    some = [(used / num, f"the rate of {used} of {num} NICs") for used in range(1, num)]
    # The bus bandwidth of a ring equals the total rate of the NICs that the ring uses.
    ring, reached = facts.network_shares.get("ring", share), facts.measured_share
    pairs = [(ring, each) for each in some] + [(share, each) for each in (*some[-1:], half)]
    measured = ", as measured one by one" if reached < 1 else ""
    told = f"the network carries {{:.0%}} of what its NICs could{measured}: {{}}"
    return _nearest(
        (_off_rate(carried / reached / part), told.format(carried / reached, text))
        for carried, (part, text) in pairs
    )


def _pcie(facts: Facts) -> _Found:
    if facts.is_slow_pcie and facts.share is not None:
        told = f"{facts.share:.0%} of the expected bandwidth"
        found = _matched(facts.share, [
            (part, f"{told}; {text} of the lanes, or of their rate, reaches {part:.0%}")
            for part, text in _FEWER_LANES
        ])  # fmt: skip
        if found is None and facts.share <= _HOST_MEMORY:
            return "possible", 0.1, f"{told}, less than with a quarter of the lanes, or of their rate"
        if found and facts.slows_ll is False:
            return "possible", found[1] + _MATCHES, f"{found[2]}; but sizes where LL is usual are not slow"
        return found
    share, nominal = facts.slow_network, facts.nic_gb_per_s
    if share is None or facts.nics_gb_per_s:  # `_slow_rail` and `_slow_nics` judge measured NICs
        return None
    slower = [
        (rate / nominal, link, rate) for link, rate in PCIE_GB_PER_S.items() if rate < HEALTHY * nominal
    ]
    return _matched(share, [
        (part, f"a NIC carries {share * nominal:.3g} of {nominal:.3g} GB/s; {link} carries {rate:.3g}")
        for part, link, rate in slower
    ])  # fmt: skip


def _slow_nics(facts: Facts) -> _Found:
    share, reached, num = facts.slow_network, facts.measured_share, len(facts.nics_gb_per_s)
    if share is None or facts.nics_differ or reached >= HEALTHY:
        return None
    ratio = facts.network_shares.get("ring", share) / reached
    # perftest states the wire rate. Messages of a collective reach at least 1 / `_WIRE` of that rate.
    distance = _off_rate(min(1.0, ratio * _WIRE) if ratio < 1 else ratio)
    slowest, nominal = min(facts.nics_gb_per_s), facts.nic_gb_per_s
    told = f"NICs measured one by one ({num}) reach {slowest:.3g} of {nominal:.3g} GB/s"
    link = _nearest((abs(slowest / rate - 1), name) for name, rate in PCIE_GB_PER_S.items())
    told += f"; {link[2]} carries {PCIE_GB_PER_S[link[2]]:.3g}" if link else ""
    several = num >= min(2, facts.nics_per_node)
    return "likely" if several and distance <= _MATCHES else "possible", distance, told


def _slow_rail(facts: Facts) -> _Found:
    share = facts.slow_network
    if share is None or facts.nics_per_node < 2:
        return None
    if facts.nics_differ:
        rates = sorted(facts.nics_gb_per_s)
        num_slow = sum(rate * UNEQUAL < rates[-1] for rate in rates)
        listed = ", ".join(f"{rate:.3g}" for rate in rates)
        told = f"NICs measured one by one reach {listed} GB/s: {num_slow} of {len(rates)} are slow"
        # All rails carry equal parts, so the slowest one limits the rate.
        explained = facts.network_shares.get("ring", share) / min(1.0, rates[0] / (facts.nic_gb_per_s or 1.0))
        return "likely" if explained >= WITHIN_ERROR else "possible", 0.0, told
    measured = len(facts.nics_gb_per_s)
    several_slow = measured > 1 and facts.measured_share < 1  # so more than a single rail is slow
    if measured >= facts.nics_per_node or several_slow:
        return None
    slow = share * facts.nic_gb_per_s
    told = f"all rails carry equal parts: one at {slow:.3g} of {facts.nic_gb_per_s:.3g} GB/s explains it"
    told += f"; only {measured} of {facts.nics_per_node} NICs were measured" if measured else ""
    return "possible", 0.1, told


def _oversubscribed(facts: Facts) -> _Found:
    share, by_nodes = facts.slow_network, sorted(facts.share_of_nodes.items())
    if share is None or facts.num_nodes < 2:
        return None
    if len(by_nodes) > 1 and by_nodes[-1][1] < by_nodes[0][1] - _FALLS and facts.num_nodes > by_nodes[0][0]:
        told = ", ".join(f"{part:.0%} on {nodes}" for nodes, part in by_nodes)
        return "likely", 0.0, f"share of the expected bandwidth by number of nodes: {told}"
    if facts.num_nodes == 2 and facts.nics_differ:
        return None
    if facts.num_nodes == 2:
        carried = facts.network_shares.get("ring", share) / facts.measured_share
        told = f"the network carries {carried:.0%} of what its NICs could: {{}} nodes under different leaves"
        found = _nearest(
            (_off_rate(carried * n), told.format(f"{n} to 1 between")) for n in _OVERSUBSCRIPTIONS
        )
        return found and ("possible", found[1] if facts.nics_gb_per_s else max(found[1], 0.3), found[2])
    return "possible", 0.3, f"{facts.num_nodes} nodes reach {share:.0%} of their NICs' rate"


def _no_gdr(facts: Facts) -> _Found:
    share, ratio = facts.slow_network, facts.small_ratio
    if share is None or ratio is None or share > _BOUNCED or ratio < _BOUNCED_SMALL:
        return None
    return (
        "possible",
        0.2,
        f"the NICs' rate ({share:.0%}) and small messages ({ratio:.2g} times as long) are both worse",
    )


def _cross_rail(facts: Facts) -> _Found:
    share = facts.slow_network
    if share is None or facts.collective != "alltoall" or facts.nics_per_node < 2:
        return None
    return "possible", 0.1, f"an alltoall sends between all rails, and reaches {share:.0%} of the NICs' rate"


def _numa_path(facts: Facts) -> _Found:
    if facts.slow_network is not None and not facts.nics_gb_per_s:
        return (
            "possible",
            0.4,
            f"{facts.slow_network:.0%} of the NICs' rate; no figure excludes a NIC behind another CPU",
        )
    if facts.is_slow_pcie:
        return (
            "possible",
            0.1,
            f"GPUs that talk through two CPUs reach {facts.share:.0%} of the expected bandwidth",
        )
    return None


def _numa_balancing(facts: Facts) -> _Found:
    if not facts.is_late or facts.is_slow or facts.num_nodes > 1:
        return None
    told = f"small messages take {facts.small_ratio:.2g} times the usual time, and large ones do not"
    is_usual = facts.is_amd and (facts.small_ratio or 0.0) >= _BALANCED and _one_process(facts) is None
    return "likely" if is_usual else "possible", 0.0, told


def _one_process(facts: Facts) -> _Found:
    ratio = facts.launches_ratio
    if not facts.is_late or ratio is None or not 1 / _LAUNCHES <= ratio <= _LAUNCHES:
        return None
    told = f"{facts.small_ratio:.2g} times the usual time, {ratio:.2g} times that of launches by one process"
    return "possible", 0.0, f"small messages take {told}; the log does not state its processes"


def _fabric(facts: Facts) -> _Found:
    return None if facts.is_instance else _slow_path(facts)


def _path(facts: Facts) -> _Found:
    return _slow_path(facts) if facts.is_instance else None


def _slow_path(facts: Facts) -> _Found:
    """Evidence that the path between nodes delays small messages."""
    if facts.num_nodes < 2 or not facts.is_late:
        return None
    is_usual = bool(facts.log_network) and facts.network.startswith(facts.log_network)
    if is_usual and {"sockets", "gdr-off"} <= set(facts.excluded):  # the log shows the usual path
        return None
    told = f"small messages take {facts.small_ratio:.2g} times the usual time"
    return (
        "likely" if "sockets" in facts.stated else "possible",
        0.1,
        told + (f" of {facts.network}" if facts.network else ""),
    )


def _other_network(facts: Facts) -> _Found:
    if facts.named_network or facts.slow_network is None or "sockets" in facts.stated:
        return None
    whole = facts.nic_gb_per_s * facts.nics_per_node
    rates = (f"{share * whole:.3g} ({name})" for name, share in sorted(facts.network_shares.items()))
    named = f"{facts.log_network}, but no rates" if facts.log_network else "no network"
    told = f"the log names {named}; NICs of {' or '.join(rates)} GB/s per node in all explain it"
    return "possible", 0.0, told


_OTHER_LIBRARY = "a library other than NCCL and RCCL ran the collective"
_USE_TESTS = "measure with nccl-tests or rccl-tests, or compare with other logs of the same library"
#: Causes in the order in which pages list them: of slow large messages, of slow small ones, of single sizes.
RULES = (
    Rule("other-library", _OTHER_LIBRARY, "rate",
         lambda facts: _other_library(facts, is_off=facts.is_slow), _USE_TESTS),
    Rule("other-library", _OTHER_LIBRARY, "latency",
         lambda facts: _other_library(facts, is_off=facts.is_late), _USE_TESTS),
    Rule("unaligned", "parts of ranks are not aligned", "rate", _unaligned,
         f"measure sizes that are multiples of {PACK_BYTES} bytes for each rank, or update nccl-tests"),
    Rule("p2p-disabled", "GPUs do not talk directly (P2P disabled)", "rate", _no_p2p,
         "unset NCCL_P2P_DISABLE; give containers --ipc=host; look for P2P in NCCL_DEBUG=INFO"),
    Rule("no-peers", "GPUs do not talk directly (GeForce and TITAN have no P2P)", "rate", _no_peers,
         "copies need all lanes and a near CPU: look at LnkSta in `lspci -vv` and at `nvidia-smi topo -m`"),
    Rule("mnnvl-off", "NVLink does not join the hosts of a rack (MNNVL)", "rate", _mnnvl_off,
         "unset NCCL_MNNVL_ENABLE; look for MNNVL 1 in NCCL_DEBUG=INFO; check the IMEX service"),
    Rule("nvlinks-down", "NVLinks are down or missing", "rate", _nvlinks_down,
         "look at `nvidia-smi nvlink --status` and at NV cells in `nvidia-smi topo -m`; check the bridges"),
    Rule("xgmi-down", "xGMI links are down or slow", "rate", _xgmi_down,
         "look at `amd-smi xgmi` and `rocm-smi --showtopo`; compare pairs of GPUs with sendrecv_perf"),
    Rule("one-path", "all channels use one path of PCIe between bridged GPUs", "rate", _one_path,
         "compare the rings in NCCL_DEBUG=INFO; without another cause this is usual"),
    Rule("nvls-off", "NVLS is off", "rate", _nvls_off,
         "unset NCCL_NVLS_ENABLE and NCCL_ALGO; start the fabric manager; look for NVLS in NCCL_DEBUG=INFO"),
    Rule("algorithm", "a slower algorithm carries large messages (NCCL_ALGO)", "rate", _algorithm,
         "unset NCCL_ALGO; check the tuner plugin and the version of NCCL"),
    Rule("protocol", "a protocol for small messages carries large ones", "rate", _protocol,
         "unset NCCL_PROTO; check the tuner plugin and the version of NCCL"),
    Rule("collapse", "congestion, or a path that collapses under load", "rate", _collapsed,
         "look at retransmissions and pauses (PFC, ECN) of NICs and switches; check ACS and IOMMU"),
    Rule("place", "the place of the output (in place or out of place)", "rate", _place,
         "use buffers as in the faster place; --in-place judges times in place"),
    Rule("falls", "the rate falls at the largest sizes (throttling or congestion)", "rate", _falls,
         "repeat with -n 100; look at `nvidia-smi -q -d PERFORMANCE` or `amd-smi metric`, and PFC pauses"),
    Rule("sockets", "sockets carry the data instead of RDMA", "rate", _sockets,
         "look for NET/Socket and NET/IB in NCCL_DEBUG=INFO; check NCCL_IB_DISABLE and NCCL_IB_HCA"),
    Rule("nic-unused", "NICs are unused", "rate", _unused_nic,
         "compare NCCL_IB_HCA and NET in NCCL_DEBUG=INFO with `ibstat`; measure each NIC with ib_write_bw"),
    Rule("pcie", "a slower PCIe generation or fewer lanes", "rate", _pcie,
         "compare LnkSta with LnkCap of NICs and GPUs in `lspci -vv`; measure each NIC with ib_write_bw"),
    Rule("slow-rail", "a rail is slow", "rate", _slow_rail,
         "measure each NIC with ib_write_bw, and pass these logs beside this one; check counters of errors"),
    Rule("slow-nics", "every NIC is slow (link rate or PCIe lanes)", "rate", _slow_nics,
         "compare the rates in `ibstat`, and LnkSta with LnkCap in `lspci -vv`, with the NICs' data sheet"),
    Rule("oversubscribed", "the network is oversubscribed", "rate", _oversubscribed,
         "measure 2 nodes under one leaf, then 2 under different leaves"),
    Rule("cross-rail", "traffic between rails", "rate", _cross_rail,
         "check NCCL_PXN_DISABLE (0) and NCCL_CROSS_NIC; compare with an allreduce on the same nodes"),
    Rule("gdr-off", "GPUDirect RDMA is off", "rate", _no_gdr,
         "load nvidia-peermem (AMD: ib_peer_mem); look for GDRDMA in NCCL_DEBUG=INFO; check ACS"),
    Rule("numa-path", "a path through another CPU", "rate", _numa_path,
         "look at NUMA in `nvidia-smi topo -m` or `rocm-smi --showtopo`; bind ranks to their GPU's CPU"),
    Rule("other-network", "the network differs from the assumed one", "rate", _other_network,
         "name the machine or a topology file: --topology"),
    Rule("numa-balancing", "NUMA balancing of the operating system", "latency", _numa_balancing,
         "sysctl kernel.numa_balancing=0; bind ranks to CPUs; set the CPU governor to performance"),
    Rule("one-process", "one process launches the kernels of all GPUs (-g)", "latency", _one_process,
         "start a process for each GPU: mpirun -np 8 ... -g 1"),
    Rule("slow-fabric", "a network with a higher latency (EFA, TCPX, sockets), or a path through host memory",
         "latency", _fabric,
         "name the instance type with --topology; look for GDRDMA in NCCL_DEBUG=INFO"),
    Rule("slow-path", "a path through host memory, or sockets instead of the network's plugin",
         "latency", _path,
         "look for GDRDMA and NET in NCCL_DEBUG=INFO; check NCCL_NET_PLUGIN and the plugin's version"),
    Rule("protocol-switch", "algorithm or protocol changes at the wrong size", "sizes", _switches,
         "try NCCL_PROTO and NCCL_ALGO at these sizes; update NCCL or its tuner plugin"),
    Rule("outlier", "single slow sizes", "sizes", _outliers,
         "repeat with more warm-up and iterations: -w 20 -n 100"),
)  # fmt: skip


def sizes_off(facts: Facts) -> Iterator[str]:
    """Yield the irregular sizes, as text."""
    yield from dict.fromkeys(format_size(each.size_bytes) for each in facts.kinks)
