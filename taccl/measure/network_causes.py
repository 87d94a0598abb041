"""Causes of slow collectives in NICs, their PCIe links and the network between nodes."""

from __future__ import annotations

from taccl.measure.evidence import (
    BOUNCED_SMALL,
    HOST_MEMORY,
    MATCHES,
    WIRE,
    Found,
    Rule,
    matched,
    nearest,
    off_rate,
)
from taccl.measure.facts import HEALTHY, UNEQUAL, WITHIN_ERROR, Facts

#: Shares of the expected rate of PCIe that a link with fewer lanes or of an older generation reaches.
_FEWER_LANES = ((1 / 2, "half"), (1 / 4, "a quarter"))
#: Max share of the network's bandwidth that suggests transfers without GPUDirect RDMA.
_BOUNCED = 0.85
#: Min fall of the share of the expected bandwidth, from fewer to more nodes, that shows oversubscription.
_FALLS = 0.1
#: Ratios of oversubscription that are usual between leaves of a network.
_OVERSUBSCRIPTIONS = (2, 3, 4)
#: {PCIe link: GB/s one way that DMA reaches}, as 0.85 of the raw rate (published measurements: 0.8 to 0.9).
PCIE_GB_PER_S = {
    f"PCIe {generation}.0 x{lanes}": 0.85 * per_lane * lanes
    for generation, per_lane in ((3, 0.985), (4, 1.969), (5, 3.938))
    for lanes in (4, 8, 16)
}
#: A node suggests sockets up to this rate in GB/s (our choice: a 100 Gb/s wire) and share of its NICs' rate.
_SOCKETS_GB_PER_S, _SOCKETS_SHARE = 12.5, 0.5


def _sockets(facts: Facts) -> Found:
    if facts.slow_network is None:
        return None
    share = facts.network_shares.get("ring", facts.slow_network)
    carried = share * facts.nic_gb_per_s * facts.nics_per_node
    if carried > _SOCKETS_GB_PER_S or share > _SOCKETS_SHARE:
        return None
    return "possible", 0.0, f"a node sends {carried:.3g} GB/s, {share:.0%} of its NICs' rate, as sockets may"


def _unused_nic(facts: Facts) -> Found:
    share, num = facts.slow_network, facts.nics_per_node
    slow = _slow_nics(facts)
    if share is None or facts.nics_differ or slow and slow[1] <= MATCHES:
        return None
    half = 0.5, "half of the NICs' rate: one of two is unused, or two GPUs share one"
    some = [(used / num, f"the rate of {used} of {num} NICs") for used in range(1, num)]
    # The bus bandwidth of a ring equals the total rate of the NICs that the ring uses.
    ring, reached = facts.network_shares.get("ring", share), facts.measured_share
    pairs = [(ring, each) for each in some] + [(share, each) for each in (*some[-1:], half)]
    measured = ", as measured one by one" if reached < 1 else ""
    told = f"the network carries {{:.0%}} of what its NICs could{measured}: {{}}"
    return nearest(
        (off_rate(carried / reached / part), told.format(carried / reached, text))
        for carried, (part, text) in pairs
    )


def _pcie(facts: Facts) -> Found:
    if facts.is_slow_pcie and facts.share is not None:
        told = f"{facts.share:.0%} of the expected bandwidth"
        found = matched(facts.share, [
            (part, f"{told}; {text} of the lanes, or of their rate, reaches {part:.0%}")
            for part, text in _FEWER_LANES
        ])  # fmt: skip
        if found is None and facts.share <= HOST_MEMORY:
            return "possible", 0.1, f"{told}, less than with a quarter of the lanes, or of their rate"
        if found and facts.slows_ll is False:
            return "possible", found[1] + MATCHES, f"{found[2]}; but sizes where LL is usual are not slow"
        return found
    share, nominal = facts.slow_network, facts.nic_gb_per_s
    if share is None or facts.nics_gb_per_s:  # `_slow_rail` and `_slow_nics` judge measured NICs
        return None
    slower = [
        (rate / nominal, link, rate) for link, rate in PCIE_GB_PER_S.items() if rate < HEALTHY * nominal
    ]
    return matched(share, [
        (part, f"a NIC carries {share * nominal:.3g} of {nominal:.3g} GB/s; {link} carries {rate:.3g}")
        for part, link, rate in slower
    ])  # fmt: skip


def _slow_nics(facts: Facts) -> Found:
    share, reached, num = facts.slow_network, facts.measured_share, len(facts.nics_gb_per_s)
    if share is None or facts.nics_differ or reached >= HEALTHY:
        return None
    ratio = facts.network_shares.get("ring", share) / reached
    # perftest states the wire rate. Messages of a collective reach at least 1 / `WIRE` of that rate.
    distance = off_rate(min(1.0, ratio * WIRE) if ratio < 1 else ratio)
    slowest, nominal = min(facts.nics_gb_per_s), facts.nic_gb_per_s
    told = f"NICs measured one by one ({num}) reach {slowest:.3g} of {nominal:.3g} GB/s"
    link = nearest((abs(slowest / rate - 1), name) for name, rate in PCIE_GB_PER_S.items())
    told += f"; {link[2]} carries {PCIE_GB_PER_S[link[2]]:.3g}" if link else ""
    several = num >= min(2, facts.nics_per_node)
    return "likely" if several and distance <= MATCHES else "possible", distance, told


def _slow_rail(facts: Facts) -> Found:
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


def _oversubscribed(facts: Facts) -> Found:
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
        found = nearest((off_rate(carried * n), told.format(f"{n} to 1 between")) for n in _OVERSUBSCRIPTIONS)
        return found and ("possible", found[1] if facts.nics_gb_per_s else max(found[1], 0.3), found[2])
    return "possible", 0.3, f"{facts.num_nodes} nodes reach {share:.0%} of their NICs' rate"


def _no_gdr(facts: Facts) -> Found:
    share, ratio = facts.slow_network, facts.small_ratio
    if share is None or share > _BOUNCED:
        return None
    if ratio is None or ratio < BOUNCED_SMALL:
        if facts.nics_gb_per_s:
            return None
        told = f"{share:.0%} of the NICs' rate"
        told += "" if ratio is None else "; small messages, which are not slow, need no GPUDirect RDMA"
        return "possible", 0.3, told
    told = f"the NICs' rate ({share:.0%}) and small messages ({ratio:.2g} times as long) are both worse"
    return "possible", 0.2, told


def _cross_rail(facts: Facts) -> Found:
    share = facts.slow_network
    if share is None or facts.collective != "alltoall" or facts.nics_per_node < 2:
        return None
    return "possible", 0.1, f"an alltoall sends between all rails, and reaches {share:.0%} of the NICs' rate"


def _numa_path(facts: Facts) -> Found:
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


def _fabric(facts: Facts) -> Found:
    return None if facts.is_instance else _slow_path(facts)


def _path(facts: Facts) -> Found:
    return _slow_path(facts) if facts.is_instance else None


def _slow_path(facts: Facts) -> Found:
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


def _other_network(facts: Facts) -> Found:
    if facts.named_network or facts.slow_network is None or "sockets" in facts.stated:
        return None
    whole = facts.nic_gb_per_s * facts.nics_per_node
    algorithms: dict[str, list[str]] = {}
    for name, share in sorted(facts.network_shares.items()):
        algorithms.setdefault(f"{share * whole:.3g}", []).append(name)
    rates = " or ".join(f"{rate} ({', '.join(names)})" for rate, names in algorithms.items())
    named = f"{facts.log_network}, but no rates" if facts.log_network else "no network"
    return "possible", 0.0, f"the log names {named}; a node's NICs with {rates} GB/s in all explain the rate"


#: Causes of slow large messages, in the order in which pages list them.
RATE_RULES = (
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
)  # fmt: skip
#: Causes of slow small messages, in this order.
LATENCY_RULES = (
    Rule("slow-fabric", "a network with a higher latency (EFA, TCPX, sockets), or a path through host memory",
         "latency", _fabric,
         "name the instance type with --topology; look for GDRDMA in NCCL_DEBUG=INFO"),
    Rule("slow-path", "a path through host memory, or sockets instead of the network's plugin",
         "latency", _path,
         "look for GDRDMA and NET in NCCL_DEBUG=INFO; check NCCL_NET_PLUGIN and the plugin's version"),
)  # fmt: skip
