"""Likely causes of slow collectives: each with the figures that speak for it, and what to try."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from taccl._internal.units import format_size
from taccl.measure.curve import Kink
from taccl.measure.evidence import (
    BOUNCED_SMALL,
    HOST_MEMORY,
    MATCHES,
    Found,
    Grade,
    Of,
    Rule,
    matched,
    off_rate,
)
from taccl.measure.facts import HEALTHY, SETTLED, WITHIN_ERROR, Facts
from taccl.measure.network_causes import LATENCY_RULES, PCIE_GB_PER_S, RATE_RULES
from taccl.topology.tuning import PACK_BYTES

#: NCCL as a word in remedies, replaced by the name of the machine's library; settings such as NCCL_ALGO stay.
_NCCL = re.compile(r"\bNCCL\b")
#: Causes whose differences are this close cannot be told apart.
_INDISTINCT = 0.03
#: Max share of a rack's bandwidth that suggests that NICs, not NVLinks, join its hosts.
#: Example: 4 NICs of 46.5 GB/s per GB200 host reach 0.2 of an allreduce's bandwidth, 0.28 of an allgather's.
_BY_NICS = 0.3
#: Min ratio of small messages' times to usual ones for NUMA balancing on AMD (our choice; a log has 3.2).
_BALANCED = 2.0
#: Max ratio, either way, of small messages' time to one process's time to launch all kernels of a node.
#: Within this ratio, the launches explain the time.
_LAUNCHES = 1.3
#: Min size of a fall of the rate that a path which collapses under load explains.
_LOAD = 2**20
#: Min irregularity of times that suggests noise. RCCL's switch at a wrong size causes 0.08 (published log).
#: `_MANY`: min number of irregular sizes, more than a library has switches of protocol and algorithm (ours).
_NOISY, _MANY = 0.12, 6
#: Max irregular sizes listed in the evidence.
_SHOWN = 3

#: Causes that explain any low rate, so that lines of a log suffice as evidence.
ANY_RATE = ("sockets", "gdr-off", "nic-unused", "p2p-disabled", "no-peers")
#: Causes in `ANY_RATE` between nodes. A log of a single node may name them, although no data use the network.
OF_NETWORK = ("sockets", "gdr-off", "nic-unused")
#: Causes in NCCL's own choices and launches, which other libraries do not have.
_OF_NCCL = (
    "nvls-off", "algorithm", "protocol", "protocol-switch", "small-protocol", "one-process", "unaligned",
)  # fmt: skip
#: Causes of a low rate that also delay small messages, as all messages go through host memory or NICs.
DETOURS = ("sockets", "gdr-off", "p2p-disabled", "no-peers", "mnnvl-off")
#: Causes recognised by rates of large messages that differ by size, or between in place and out of place.
#: A slow rail is not among these causes: it slows all large messages by the same share.
_BY_KIND = ("place", "falls", "collapse", "unaligned")


class Cause(NamedTuple):
    """A possible cause, its evidence in the figures, and a remedy; `of` is the slow part of the series."""

    name: str
    of: Of
    title: str
    grade: Grade
    evidence: str
    remedy: str


def causes_of(facts: Facts) -> tuple[Cause, ...]:
    """Causes that agree with the figures, the best match first.

    Causes of slow large messages are graded possible if another cause matches as well or better. So they are
    if the rate is within the error of the model. The same holds for a slow network with NICs that were not
    measured one by one, as a slow rail explains any rate. Causes in `_BY_KIND` remain likely. A cause of
    the rate that lines of the log show is likely, and others are then possible. The same holds for another
    library. If small messages are slow as well, causes that explain both come first: `DETOURS`, or a forced
    protocol.
    """
    found = [(rule, *each) for rule in RULES if (each := _evidence(rule, facts)) is not None]
    is_stated = any(rule.of == "rate" and rule.name in facts.stated for rule, *_ in found)
    matches = sorted(distance for rule, _, distance, _ in found if rule.of == "rate" and distance <= MATCHES)
    is_unsure = facts.slow_network is not None and facts.may_hide_rail
    is_unsure |= facts.share is not None and facts.share >= facts.within_error
    is_unsure |= facts.other_nics is not None or facts.may_be_bridged and facts.is_slow
    is_unsure |= len(matches) > 1 and matches[1] <= matches[0] + _INDISTINCT
    both = () if not facts.is_late or _small_protocol(facts) else (*DETOURS, "protocol")
    detours = [rule.name for rule, *_ in found if rule.name in both]
    causes = []
    for rule, grade, distance, evidence in found:
        if rule.name == "other-library":
            grade = "likely"
        elif facts.other_library:
            grade = "possible"
        elif rule.of == "rate" and rule.name not in (facts.stated if is_stated else _BY_KIND):
            is_half = bool(detours) and rule.name not in detours  # it does not explain small messages
            is_worse = bool(matches) and distance > matches[0]
            grade = "possible" if is_stated or is_unsure or is_half or is_worse else grade
        remedy = _NCCL.sub(facts.library, rule.remedy)
        cause = Cause(rule.name, rule.of, rule.title, grade, evidence, remedy)
        causes.append((grade, rule.name not in detours, distance, cause))
    return tuple(cause for *_, cause in sorted(causes, key=lambda each: each[:3]))


def _evidence(rule: Rule, facts: Facts) -> Found:
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


def _other_library(facts: Facts, *, is_off: bool) -> Found:
    return ("likely", 0.0, facts.other_library) if facts.other_library and is_off else None


def _nvls_off(facts: Facts) -> Found:
    without = facts.shares.get("no nvls", 1.0)
    if not facts.is_slow or facts.share is None or without >= HEALTHY or facts.own_choice:
        return None
    said = (
        f"{facts.share:.0%} of the expected bandwidth; without sums in the switch {without:.0%} are expected"
    )
    ratio = facts.share / without
    if ratio < WITHIN_ERROR or off_rate(ratio) > MATCHES and ratio > 1:
        return None
    return "likely" if ratio >= 1 - MATCHES else "possible", off_rate(ratio), said


def _protocol(facts: Facts) -> Found:
    if not facts.is_slow or facts.share is None or facts.collective == "alltoall":
        return None  # messages of pairs do not follow NCCL_PROTO
    named = ((facts.shares[p], p) for p in ("ll", "ll128") if facts.shares.get(p, 1.0) < HEALTHY)
    told = f"{facts.share:.0%} of the expected bandwidth; protocol"
    found = matched(facts.share, [(share, f"{told} {p} reaches {share:.0%}") for share, p in named])
    if found and facts.is_slow_pcie and facts.slows_ll:  # forcing LL does not slow its usual sizes
        return "possible", found[1] + MATCHES, f"{found[2]}; but sizes where LL is usual are slow too"
    # If inactive NVLS, or fewer or slower links, explain the rate as well, LL or LL128 is only possible.
    is_other = _nvls_off(facts) or _nvlinks_down(facts) or _xgmi_down(facts)
    return found and ("possible" if is_other else found[0], *found[1:])


def _algorithm(facts: Facts) -> Found:
    if not facts.is_slow or facts.share is None:
        return None
    told = f"{facts.share:.0%} of the expected bandwidth; with algorithm"
    found = matched(facts.share, [
        (share, f"{told} {name} {share:.0%} are expected")
        for name, share in facts.algorithm_shares.items() if share < HEALTHY
    ])  # fmt: skip
    return found and ("possible", *found[1:])


def _before_fall(facts: Facts) -> Iterator[Kink]:
    """Yield the irregular sizes that a fall of the rate at the largest sizes does not explain."""
    yield from (each for each in facts.kinks if not facts.falls or each.size_bytes <= SETTLED)


def _switches(facts: Facts) -> Found:
    off = [each for each in _before_fall(facts) if each.kind != "outlier"]
    if not off or _collapsed(facts):
        return None
    grade: Grade = "possible" if _irregular(facts) else "likely"
    return grade, 0.0, "; ".join(f"{each.evidence} ({each.kind})" for each in off[:_SHOWN])


def _irregular(facts: Facts) -> Found:
    """Evidence of noise: times that fall and rise with the size more often than switches of protocol do."""
    if facts.irregularity < _NOISY or len(facts.kinks) < _MANY:
        return None
    told = f"times are {facts.irregularity:.0%} off the nearest curve that rises with the size, on average"
    return "likely", 0.0, f"{told}, and {len(facts.kinks)} sizes are off the curve"


def _collapsed(facts: Facts) -> Found:
    falls = [each for each in facts.kinks if each.kind == "wrong switch" and each.size_bytes >= _LOAD]
    last = falls[-1] if falls else None
    slowest = min(facts.shares.values(), default=0.0)
    if last is None or facts.share is None or facts.share >= slowest:
        return None
    told = f"large messages reach {facts.share:.1%} of the expected rate, the slowest protocol {slowest:.0%}"
    return "likely", 0.0, f"{last.evidence}; {told}"


def _falls(facts: Facts) -> Found:
    if not facts.falls:
        return None
    told = f"{facts.share:.0%} of the expected bandwidth at the largest size"
    return "likely", 0.0, f"{told}, {facts.other_share:.0%} at a smaller one from 256 MiB on"


def _place(facts: Facts) -> Found:
    if not facts.depends_on_place:
        return None
    told = f"{facts.share:.0%} of the expected bandwidth"
    return "likely", 0.0, f"{told}, {facts.place_share:.0%} in the other place"


def _outliers(facts: Facts) -> Found:
    off = [each for each in _before_fall(facts) if each.kind == "outlier"]
    return ("likely", 0.0, "; ".join(each.evidence for each in off[:_SHOWN])) if off else None


def _unaligned(facts: Facts) -> Found:
    if not facts.is_slow or not facts.unaligned_bytes:
        return None
    told = f"a rank's part of the largest size has {facts.unaligned_bytes} bytes, no multiple of {PACK_BYTES}"
    return "likely", 0.0, f"{told}: {facts.library} then copies element by element"


def _no_p2p(facts: Facts) -> Found:
    if facts.is_slow_pcie and facts.share is not None and facts.share < WITHIN_ERROR:
        told = f"{facts.share:.0%} of what PCIe carries; copies through host memory have such rates"
        is_both = facts.small_ratio is not None and facts.small_ratio >= BOUNCED_SMALL
        told += f", and longer small messages ({facts.small_ratio:.2g} times)" if is_both else ""
        return "possible", 0.05 if is_both else 0.15, told
    is_node = facts.num_nodes == 1 and facts.joint in ("NVSwitch", "NVLink", "xGMI")
    is_above = facts.busbw_gb_per_s > max(PCIE_GB_PER_S.values())
    if not is_node or facts.share is None or facts.share > HOST_MEMORY or is_above:
        return None
    # GPUs whose NVLinks are down may use PCIe directly. Slow small messages show a detour over host memory.
    is_late = facts.small_ratio is not None and facts.small_ratio >= BOUNCED_SMALL
    is_sure = facts.hosts == 1 and (is_late or facts.joint != "NVLink")
    grade: Grade = "likely" if is_sure else "possible"
    return grade, 0.0, f"{facts.share:.0%} of what {facts.joint} carries, a rate of PCIe or host memory"


def _no_peers(facts: Facts) -> Found:
    said = facts.stated.get("no-peers")
    if said is None or not facts.is_slow_pcie or facts.share is None or facts.share > HOST_MEMORY:
        return None
    return "possible", 0.0, f"{said}, but such copies are faster than {facts.share:.0%} of PCIe"


def _mnnvl_off(facts: Facts) -> Found:
    if facts.hosts == 1 or not facts.is_slow or facts.share is None:
        return None
    if facts.share > _BY_NICS and "mnnvl-off" not in facts.stated:
        return None
    told = f"{facts.share:.0%} of what {facts.joint} carries between {facts.hosts} hosts"
    return "possible", 0.0, f"{told}, a rate of their NICs"


def _nvlinks_down(facts: Facts) -> Found:
    return _links_down(facts, "NVLink")


def _xgmi_down(facts: Facts) -> Found:
    return _links_down(facts, "xGMI")


def _links_down(facts: Facts, joint: str) -> Found:
    """Evidence that fewer or slower links of one kind join pairs of GPUs in a node."""
    is_pairwise = facts.num_nodes == 1 and facts.joint == joint
    if not is_pairwise or facts.share is None or facts.share >= WITHIN_ERROR:
        return None
    told = "a rate of PCIe" if facts.share <= HOST_MEMORY else "the rate of fewer links"
    return "possible", 0.05, f"{facts.share:.0%} of what {joint} carries, {told}"


def _few_channels(facts: Facts) -> Found:
    """Evidence for few channels: a low rate inside a node that no other cause explains."""
    is_node = facts.num_nodes == 1 and facts.joint in ("NVSwitch", "NVLink", "xGMI")
    if not is_node or facts.share is None or facts.share >= WITHIN_ERROR:
        return None
    others = (_no_p2p, _nvls_off, _protocol, _algorithm, _nvlinks_down, _xgmi_down, _unaligned, _collapsed)
    if "few-channels" not in facts.stated and any(find(facts) for find in others):
        return None
    told = f"{facts.share:.0%} of the expected bandwidth, as with {facts.share:.0%} of the channels"
    return "possible", 0.1, told


def _one_path(facts: Facts) -> Found:
    if facts.num_nodes > 1 or not facts.is_slow or facts.joint != "bridges" and not facts.may_be_bridged:
        return None
    if facts.may_be_bridged:
        told = f"{facts.share:.0%} of what PCIe carries; such boards may be bridged in pairs"
        return "possible", 0.1, f"{told}, whose channels then share a path of PCIe"
    told = f"{facts.share:.0%} of what all PCIe links carry together; one path of them carries about half"
    return "possible", 0.1, told


def _numa_balancing(facts: Facts) -> Found:
    if not facts.is_late or facts.is_slow or facts.num_nodes > 1:
        return None
    told = f"small messages take {facts.small_ratio:.2g} times the usual time, and large ones do not"
    is_usual = facts.is_amd and (facts.small_ratio or 0.0) >= _BALANCED and _one_process(facts) is None
    return "likely" if is_usual else "possible", 0.0, told


def _one_process(facts: Facts) -> Found:
    ratio = facts.launches_ratio
    if not facts.is_late or ratio is None or not 1 / _LAUNCHES <= ratio <= _LAUNCHES:
        return None
    told = f"{facts.small_ratio:.2g} times the usual time, {ratio:.2g} times that of launches by one process"
    return "possible", 0.0, f"small messages take {told}; the log does not state its processes"


def _small_protocol(facts: Facts) -> Found:
    if not facts.is_late:
        return None
    found = matched(1.0, [
        (ratio, f"small messages take {facts.small_ratio:.2g} times the usual time, as with protocol {name}")
        for name, ratio in facts.small_protocols.items()
    ])  # fmt: skip
    return found and ("possible", *found[1:])


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
    Rule("few-channels", "few channels carry the data (NCCL_MAX_NCHANNELS, NCCL_MAX_CTAS)", "rate",
         _few_channels,
         "unset these two; compare the channels in NCCL_DEBUG=INFO with those of another node"),
    Rule("collapse", "congestion, or a path that collapses under load", "rate", _collapsed,
         "look at retransmissions and pauses (PFC, ECN) of NICs and switches; check ACS and IOMMU"),
    Rule("place", "the place of the output (in place or out of place)", "rate", _place,
         "use buffers as in the faster place; --in-place judges times in place"),
    Rule("falls", "the rate falls at the largest sizes (throttling or congestion)", "rate", _falls,
         "repeat with -n 100; look at `nvidia-smi -q -d PERFORMANCE` or `amd-smi metric`, and PFC pauses"),
    *RATE_RULES,
    Rule("numa-balancing", "NUMA balancing of the operating system", "latency", _numa_balancing,
         "sysctl kernel.numa_balancing=0; bind ranks to CPUs; set the CPU governor to performance"),
    Rule("one-process", "one process launches the kernels of all GPUs (-g)", "latency", _one_process,
         "start a process for each GPU: mpirun -np 8 ... -g 1"),
    Rule("small-protocol", "another protocol carries small messages (NCCL_PROTO, a tuner plugin)", "latency",
         _small_protocol,
         "compare NCCL_PROTO= unset and LL; look at the plugin's settings (NCCL_TUNER_CONFIG_PATH)"),
    *LATENCY_RULES,
    Rule("protocol-switch", "algorithm or protocol changes at the wrong size", "sizes", _switches,
         "try NCCL_PROTO and NCCL_ALGO at these sizes; update NCCL or its tuner plugin"),
    Rule("irregular", "irregular times (other traffic, lost packets, or busy hosts)", "sizes", _irregular,
         "stop other jobs; bind processes to CPUs; look at counters of PFC pauses and link errors"),
    Rule("outlier", "single slow sizes", "sizes", _outliers,
         "repeat with more warm-up and iterations: -w 20 -n 100"),
)  # fmt: skip


def sizes_off(facts: Facts) -> Iterator[str]:
    """Yield the irregular sizes, as text."""
    yield from dict.fromkeys(format_size(each.size_bytes) for each in facts.kinks)
