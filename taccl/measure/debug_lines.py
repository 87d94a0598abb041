"""Facts that a log states in lines of NCCL_DEBUG=INFO (networks, NICs, paths) and in its commands."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

#: Line of NCCL_DEBUG: host, process, thread and GPU, after labels of launchers and times, if any.
_LABEL = (
    r"\[[^\]\n]{0,80}\](?:<\w{1,9}>:)?|[\w./-]{1,80}(?::| \|)(?=\s)|\d[\d-]{7,9}[T ][\d:.,]{8,18}Z?(?=\s)"
)
_DEBUG = re.compile(rf"(?: *+(?:{_LABEL})\s*+){{0,3}}[\w.-]{{1,253}}:\d+:\d+ \[\d+\] [NR]CCL ")
#: Message of a line for a call of a collective.
_CALL = re.compile(r"CCL INFO (\w{1,32}): opCount ")
#: Pattern of the text before the message in a line of NCCL_DEBUG=INFO; it begins other patterns.
#: It matches at one place of a line only, so that a search takes linear time.
_INFO = r"^(?>.*?[NR]CCL INFO )"
#: {network: pattern of the lines that name it}, the most specific first.
_NETWORK_LINES = {
    "tcpxo": re.compile(rf"(?m){_INFO}.*(FasTrak|TCPXO)"),
    "tcpx": re.compile(rf"(?m){_INFO}.*TCPX"),
    "slingshot": re.compile(rf"(?im){_INFO}.*(Selected provider is cxi|\bcxi\b)"),
    "efa": re.compile(rf"(?im){_INFO}.*Selected provider is efa"),
    "libfabric": re.compile(rf"(?m){_INFO}.*AWS Libfabric"),
    "roce": re.compile(r"(NCCL|RCCL) INFO NET/IB ?: Using .*/RoCE"),
    "infiniband": re.compile(r"(NCCL|RCCL) INFO NET/IB ?: Using .*/IB\b"),
    "sockets": re.compile(r"(NCCL|RCCL) INFO Using network Socket"),
}
#: `_NICS`: pattern of the line that lists the NICs of a rank's node. `_NIC`: pattern of a NIC in the list.
_NICS, _NIC = re.compile(r"CCL INFO NET/IB ?: Using (\[0\].*)"), re.compile(r"\[\d+\]\w")
#: `_HCA`: value of NCCL_IB_HCA: names of NICs, with ports or without, after an optional ``=``.
#: `_COMMA`: comma between the names, also as shells escape it.
_HCA = r"[\"']?=?(\w{1,40}(?::\d+)?(?:\\?,\w{1,40}(?::\d+)?)+)"
_HCA_IN_COMMAND = re.compile(rf"\bNCCL_IB_HCA={_HCA}")
_HCA_IN_LINE = re.compile(rf"CCL INFO NCCL_IB_HCA set by environment to {_HCA}")
_COMMA = re.compile(r"\\?,")
#: Words of a log with a plugin for the network, which may use neither InfiniBand nor sockets.
_PLUGIN = re.compile(r"(?i)FI_PROVIDER|\bofi\b|libfabric|tcpx|fastrak|aws-ofi|\befa\b|\bcxi\b")
#: Words in lower case, of which each line that states a fact has one, except for channels.
_WORDS = (
    "fastrak", "tcpx", "libfabric", "cxi", "efa", "ofi", "provider", " using ", "using [", "gdr",
    "gpu direct", "nvls", "mnnvl", "nccl_", "version", "ccl-library", "rccl ",
)  # fmt: skip
#: Text of each line about a channel, of which a log may have thousands.
_OF_CHANNEL = "CCL INFO Channel "
#: Path of a channel from one rank to another, such as P2P/IPC, SHM/direct/direct or NET/IB/0/GDRDMA.
#: Names of plugins may have spaces, as in NET/AWS Libfabric/0/GDRDMA.
_PATH = re.compile(r"CCL INFO Channel .* via (P2P|SHM|NET)/(\S.*)")
#: Lines of a library that sends through host memory: in the summary of its rings, or for a NIC.
_NO_GDR = re.compile(rf"(?m){_INFO}.*(use ring PXN \d GDR 0\b|GPU Direct RDMA Disabled for HCA)")
#: `_NO_NVLS`: line of a GPU without NVLS. `_NVLS`: lines of a communicator with NVLS.
_NO_NVLS = re.compile(r"NVLS multicast support is not available")
_NVLS = re.compile(r"CCL INFO (NVLS comm 0x|Connected NVLS tree)")
#: Line of a communicator whose hosts NVLinks do not join, though it has several.
_NO_MNNVL = re.compile(r"CCL INFO comm \S+ rank .* nNodes (?!1\b)\d+ .*\bMNNVL 0\b")
_SETTING = re.compile(r"CCL INFO (NCCL_\w+) set by environment to (\^?\w[\w,]*)")
#: `_COMMAND`: line of a command that sets variables. `_SET`: a variable in it, with its value.
_COMMAND = re.compile(r"^(?:.*(?:-x|export|env) +NCCL_\w+=.*|.*\bNCCL_\w+=.*_perf\b.*)$", re.MULTILINE)
_SET = re.compile(r"\b(NCCL_\w+)=[\"']?(\^?\w[\w,]*)")
#: Version of NCCL or RCCL in its own line, or as a number in the header of nccl-tests: 22803 is 2.28.3.
#: `_NAMED_VERSION`: version of RCCL in a remark, which counts if no line states one.
_VERSION = re.compile(r"[NR]CCL version ?:? (\d+)\.(\d+)|[nr]ccl-library=(\d)(\d\d)\d\d\b")
_NAMED_VERSION = re.compile(r"\bRCCL (\d)\.(\d+)\.\d")
#: {name of an algorithm in NCCL_ALGO, in lower case: name in predictions}.
_ALGORITHMS = {"ring": "ring", "tree": "tree", "nvls": "nvls", "nvlstree": "nvls", "pat": "pat"}
#: Values of NCCL_ALGO that leave one algorithm, without sums in switches.
_ONE_KIND = re.compile(r"(?i)ring|tree")
#: {variable of NCCL: (pattern of values that slow collectives, name of the cause)}.
_SETTINGS = {
    "NCCL_P2P_DISABLE": (re.compile("1"), "p2p-disabled"),
    "NCCL_P2P_LEVEL": (re.compile("(?i)0|loc"), "p2p-disabled"),
    "NCCL_NET_GDR_LEVEL": (re.compile("(?i)0|loc"), "gdr-off"),
    "NCCL_NET": (re.compile("(?i)socket"), "sockets"),
    "NCCL_IB_DISABLE": (re.compile("1"), "sockets"),
    "NCCL_MNNVL_ENABLE": (re.compile("0"), "mnnvl-off"),
    "NCCL_NVLS_ENABLE": (re.compile("0"), "nvls-off"),
    "NCCL_ALGO": (re.compile(r"(?i)(ring|tree|,)+|\^(.*,)?nvls(,.*)?"), "nvls-off"),
    "NCCL_MAX_NCHANNELS": (re.compile(r"\d+"), "few-channels"),
    "NCCL_MAX_CTAS": (re.compile(r"\d+"), "few-channels"),
    "NCCL_PROTO": (re.compile(r"(?i)(ll128|ll|,)+|\^(.*,)?simple(,.*)?"), "protocol"),
}


class DebugFacts(NamedTuple):
    """Facts about a run that its lines of NCCL_DEBUG=INFO state.

    - `network`: Network between nodes, such as ``"efa"``; empty if unknown.
    - `num_nics`: Number of NICs of a node that the library uses; 0 if unknown.
    - `causes`: {name of a cause of slow collectives: evidence}.
    - `excluded`: Names of causes that the lines exclude.
    - `algorithms`: Algorithms, by their names in predictions, to which NCCL_ALGO limits the library; empty if
      it limits none.
    - `version`: Version of NCCL or RCCL, such as (2, 28); empty if unknown.
    """

    network: str = ""
    num_nics: int = 0
    causes: Mapping[str, str] = {}
    excluded: frozenset[str] = frozenset()
    algorithms: frozenset[str] = frozenset()
    version: tuple[int, ...] = ()


def is_debug(line: str) -> bool:
    """True for a line of NCCL_DEBUG, which is no row and no header; launchers may have labelled it."""
    return "CCL " in line and _DEBUG.match(line) is not None


def called(line: str) -> str:
    """Name of the collective that a line of NCCL_DEBUG_SUBSYS=COLL says is called; empty for other lines."""
    found = _CALL.search(line) if ": opCount " in line else None
    return found[1] if found else ""


def debug_facts(text: str) -> DebugFacts:
    """Facts that the lines of a log state."""
    lines = text.split("\n")
    paths = _PATH.findall("\n".join(line for line in lines if _OF_CHANNEL in line))
    told = [line for line in lines if _OF_CHANNEL not in line and any(map(line.lower().__contains__, _WORDS))]
    # Channels of one kind state the same facts.
    text = "\n".join([*told, *dict.fromkeys(f"{_OF_CHANNEL}via {kind}/{rest}" for kind, rest in paths)])
    network = next((name for name, form in _NETWORK_LINES.items() if form.search(text)), "")
    nics = [len(_NIC.findall(listed)) for listed in _NICS.findall(text)] or list(_chosen_nics(text))
    excluded = {"gdr-off"} if network == "sockets" else {"sockets"} if network else set()
    between = [rest for kind, rest in paths if kind == "NET" and not rest.startswith("Socket")]
    if between and all("GDRDMA" in rest for rest in between):
        excluded.add("gdr-off")
    inside = {kind for kind, _ in paths} - {"NET"}
    if inside == {"P2P"}:
        excluded.add("p2p-disabled")
    if _NVLS.search(text):
        excluded.add("nvls-off")
    causes = dict(_causes(text, network, between, inside))
    versions = _VERSION.findall(text) or _NAMED_VERSION.findall(text)
    version = next((tuple(int(part) for part in found if part) for found in versions), ())
    left = frozenset(excluded - causes.keys())
    return DebugFacts(network, min(nics, default=0), causes, left, _algorithms(text), version)


def _chosen_nics(text: str) -> Iterator[int]:
    """Yield the number of NICs that each value of NCCL_IB_HCA lists, if it lists several.

    A value with one name, such as ``mlx5``, selects all NICs whose names begin so.
    """
    commands = "\n".join(_COMMAND.findall(text))
    for value in (*_HCA_IN_COMMAND.findall(commands), *_HCA_IN_LINE.findall(text)):
        names = {name.partition(":")[0] for name in _COMMA.split(value)}
        if len(names) > 1 and all(name[-1].isdigit() for name in names):
            yield len(names)


def _settings(text: str) -> list[tuple[str, str]]:
    """Variables of NCCL that commands or lines set, with their values."""
    return [*_SET.findall(" ".join(_COMMAND.findall(text))), *_SETTING.findall(text)]


def _algorithms(text: str) -> frozenset[str]:
    """Algorithms to which NCCL_ALGO limits the library; empty for values that exclude or are not known."""
    values = [value.lower().split(",") for name, value in _settings(text) if name == "NCCL_ALGO"]
    named = values[-1] if values else []
    known = frozenset(_ALGORITHMS[each] for each in named if each in _ALGORITHMS)
    return known if all(each in _ALGORITHMS for each in named) else frozenset()


def _causes(text: str, network: str, between: list[str], inside: set[str]) -> Iterator[tuple[str, str]]:
    """Yield (name of a cause of slow collectives, evidence of it in a log).

    - `between`: Paths of channels between nodes.
    - `inside`: Kinds of paths of channels inside nodes.
    """
    if network == "sockets":
        yield "sockets", "the log says that the library uses sockets"
    host = sum("GDRDMA" not in rest for rest in between)
    if host:
        yield "gdr-off", f"the log lists {host} of {len(between)} channels between nodes without GDRDMA"
    elif not between and network != "sockets" and _NO_GDR.search(text):
        yield "gdr-off", "the log says that GPUDirect RDMA is not used"
    if inside == {"SHM"}:
        yield "p2p-disabled", "the log lists all channels inside nodes as via SHM"
    if _NO_NVLS.search(text):
        yield "nvls-off", "the log says that NVLS multicast is not available"
    if _NO_MNNVL.search(text):
        yield "mnnvl-off", "the log says MNNVL 0"
    for name, value in _settings(text):
        values, cause = _SETTINGS.get(name, (None, ""))
        if cause == "sockets" and (network or _PLUGIN.search(text)):
            continue  # NCCL_NET and NCCL_IB_DISABLE do not concern plugins
        if values and values.fullmatch(value):
            yield cause, f"the log says that {name} is {value}"
        if name == "NCCL_ALGO" and _ONE_KIND.fullmatch(value):
            yield "algorithm", f"the log says that {name} is {value}"
