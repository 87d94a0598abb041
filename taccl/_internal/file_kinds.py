"""Kinds of files, recognised by their content, and advice for each kind: a command to use, or a file to give.

Some kinds are this package's own, recognised by their fields or first lines. The others are outputs of other
tools, recognised by a line that only the tool prints. `kinds_in` and `kinds_of_text` recognise kinds;
`advice_on` gives the advice.
"""

from __future__ import annotations

import re
import shlex
from textwrap import dedent
from typing import Any, NamedTuple

from taccl._internal.names import shown

#: {kind: {field at the top of JSON or TOML: its value, or None for any}}; a file of the kind has all fields.
MARKS: dict[str, dict[str, str | None]] = {
    "schedule": {"format": "taccl-schedule"},
    "plan": {"format": "taccl-plan"},
    "probe": {"format": "taccl-probe"},
    "saved topology": {"format": "taccl-topology"},
    "problem": {"format": "taccl-problem"},
    "algorithm of the published TACCL tool": {"sccl_type": "algorithm"},
    "trace of PyTorch's profiler": {"traceEvents": None, "schemaVersion": None},
    "timeline": {"traceEvents": None},
    "switch job": {"format": "taccl-switch-job"},
    "plan for MSCCL++": {"gpus": None, "inplace": None, "protocol": None},
    "workload": {"num_ranks": None, "operations": None},
    "placement": {"before_us": None, "after_us": None},
    "upstream sketch": {"nnodes": None},
    "upstream topology": {"gpus_per_node": None},
    "profile": {"machine": None, "source": None, "constants": None},
    "report of `taccl run --json`": dict.fromkeys(("collective", "size_bytes", "times", "num_ranks")),
    "output of nvbandwidth in JSON": {"nvbandwidth": None},
    "output of nccl-tests in JSON": {"results": None, "average_bus_bandwidth": None},
    "output of perftest in JSON": {"test_info": None, "results": None},
    "input of TE-CCL": {"TopologyParams": None, "InstanceParams": None},
    "schedule of TE-CCL": {"1-Epoch_Duration": None, "4-Collective_Finish_Time": None},
    "output of iperf3 in JSON": {"start": None, "intervals": None, "end": None},
    "system file of ASTRA-sim": {"scheduling-policy": None},
    "logical topology of ASTRA-sim": {"logical-dims": None},
    "network of ASTRA-sim's first version": {"topologies-per-dim": None},
    "answer of a verb with --json": {"finish_us": None, "digest": None},
}
#: {kind: fields}; a file of the kind has any of these.
_FIELDS = {
    "topology": {
        "node", "nics", "link", "resource", "ranks_per_node", "rails", "network", "bandwidth_gb_per_s",
        "fabric", "alpha_meaning", "alpha_us", "launch_us", "nvls", "assumed",
    },
    "sketch": {
        "$schema", "chunks", "internode", "intranode", "symmetry", "objective", "routing", "merging", "group",
    },
    "file of SCCL or msccl-tools": {"msccl_type"},
}  # fmt: skip

#: Number of characters of a text that are searched.
_HEAD_CHARACTERS = 1 << 16
#: Quotation marks of mails, and code fences; their line breaks are kept, as messages count lines.
_QUOTES = re.compile(r"^[^\S\n]*(>[^\S\n]?)+|^[^\S\n]*```.*$", re.MULTILINE)
#: Text allowed before the root element of XML.
_BEFORE_ELEMENT = r"\s*(<\?xml[^>]*>\s*)?(<!--(?:(?!-->)[\s\S])*-->\s*)*"
#: Cell with a number.
_NUMBER = r"\"?(?:[-+]?\.?\d[\d.eE+-]*|nan|inf)\"?"
#: Unit that may follow a number in its cell.
_UNIT = r"(?: ?(?:[kKMGT]i?)?[bB](?:it|yte)?s?(?:ps|/s)| ?[nuµm]s)?"
#: Three rows of numbers separated by blanks or bars, each with at most a name before them.
_SPACED_ROWS = (
    rf"(^[|\t ]*(?:\w[\w.:-]*[|\t ]+)?{_NUMBER}(?:[|\t ]+(?:{_NUMBER}|[-xX]|N/A)){{1,}}[|\t ]*$\n?){{3,}}"
)
_COMMA_ROW, _OTHER_ROW = (
    rf"(?=[^=\[{{<\n]*$)[^{mark}\n]*(?:[{mark}][^{mark}\n]*)*?[{mark}]"
    rf" {{0,20}}{_NUMBER}{after} {{0,20}}(?=[{mark}]|$)"
    for mark, after in ((",", _UNIT), (r";\t", r"(?:,\d+)?"))
)
#: Header of a table of times, and of the CSV that `taccl compare` writes.
_TIMES_HEAD = r"[#|\t \"]*((message|msg|buffer|data)[ _])?(size|bytes)\b.*(\b|_)(time|latency|\w*bw)\b"
_COMPARISON_HEAD = r"[\w,]*\bbackend,[\w,]*\bfinish_us,"
#: A row with commas below comments and at most a header; or a matrix of p2pBandwidthLatencyTest.
_MATRIX_ROWS = (
    rf"(?i)\A(#.*\n|[^\S\n]*\n)*(?!{_TIMES_HEAD}|{_COMPARISON_HEAD}|gpu,bdf,)((?=.*,)[^=\[{{<\n]*\n)?{_COMMA_ROW}"
    r"|P2P=(Enabled|Disabled).*Matrix"
)
#: Advice: what to do, or what to give instead.
_SHOW = "`taccl show {file}` reads it"
_FIT = "`taccl fit {file} --topology MACHINE` reads it, with the name of the machine"
_FIT_TABLE = "`taccl fit {file} --topology MACHINE --collective NAME` reads it, if its header names the units"
_WRITTEN = "the format is write-only; give the schedule or program that it was made of"
_NCCL_DUMP = "the topology is in the file that NCCL writes with NCCL_TOPO_DUMP_FILE=topo.xml"
_RCCL_DUMP = "the topology is in the file that RCCL writes with NCCL_TOPO_DUMP_FILE=topo.xml"
_SERVER = (
    "for the topology of a server give what `nvidia-smi topo -m` prints, or the file that NCCL writes with "
    "NCCL_TOPO_DUMP_FILE=topo.xml"
)
_MATRIX = (
    "save its matrix of GPUs as CSV, with GB/s in the first cell, or give what p2pBandwidthLatencyTest prints"
)
_HOSTS = "for the network between hosts give a matrix of pairs as CSV, or what `taccl probe` measures"
_TIMES = "for measured times give a log of nccl-tests, rccl-tests, perftest or OSU micro-benchmarks"
_SLOTS = (
    "for `taccl reorder FILE --hosts` give the hosts in their present order, each a line name or name:slots"
)
_RATE = "the rate of a NIC is given as a number, e.g. nic_gb_per_s=50"
_FILE = "write a topology file with [node], [nics] and [network]"


class _Text(NamedTuple):
    """A kind of text: name, regular expression for its first lines, and advice on such a file."""

    name: str
    tells: str
    advice: str


def _no(remedy: str) -> str:
    """Advice on a file that is not supported."""
    return f"taccl does not read it; {remedy}"


_OF_TEXT = _no("save the text of the log or of the matrix that it shows")

#: {kind: advice} of kinds recognised by fields.
_ADVICE = {
    "schedule": _SHOW,
    "plan": "`taccl verify {file}` checks the files that it lists",
    "probe": _SHOW,
    "saved topology": _SHOW,
    "problem": "taccl.load reads it in Python; commands take a sketch or a topology",
    "algorithm of the published TACCL tool": "`taccl verify {file}` reads it",
    "file of SCCL or msccl-tools": _no("give the MSCCL XML that `msccl solve ncclize` writes of it"),
    "trace of PyTorch's profiler": _no(f"taccl.workload.from_chakra reads Chakra traces of it; {_TIMES}"),
    "timeline": f"{_WRITTEN}; ui.perfetto.dev shows a timeline",
    "switch job": f"{_WRITTEN}; it holds settings for a switch and its workers",
    "plan for MSCCL++": "`taccl verify {file}` runs it; else give the program that it was made of",
    "workload": "`taccl run {file} --topology NAME` reads it",
    "placement": "the format is write-only; it lists hosts in order for launchers",
    "upstream sketch": _SHOW,
    "upstream topology": _SHOW,
    "profile": "`taccl show MACHINE --profile {file}` reads it, with the machine that it names",
    "report of `taccl run --json`": _FIT,
    "output of nvbandwidth in JSON": _no("give what it prints without --format json or --json"),
    "output of nccl-tests in JSON": _no("give the table that it prints beside that file"),
    "output of perftest in JSON": _no("give the table that it prints without --out_json"),
    "input of TE-CCL": _no("describe the machine in a topology file, as the page on TE-CCL shows"),
    "schedule of TE-CCL": _no("give the MSCCL XML that its lowering writes from it"),
    "output of iperf3 in JSON": _no(_HOSTS),
    "system file of ASTRA-sim": _no("give the network file in YAML"),
    "logical topology of ASTRA-sim": _no("give the network file in YAML"),
    "network of ASTRA-sim's first version": _no("write it in YAML, as the page on formats shows"),
    "answer of a verb with --json": "it has figures but no sends; write the schedule with -o",
    "topology": _SHOW,
    "sketch": _SHOW,
}
#: Kinds of text; the first match counts.
_TEXTS = (
    # This package's own kinds, and supported ones.
    _Text("program", rf"\A{_BEFORE_ELEMENT}<algo\b", _SHOW),
    _Text("module for PyTorch", r"\A\"\"\"[^\n]*; for PyTorch\.$", f"{_WRITTEN}; Python imports it"),
    _Text("table of transfers", r"\Atransfer,chunk,", _WRITTEN),
    _Text("comparison", rf"\A{_COMPARISON_HEAD}", "pandas reads it, and taccl does not"),
    _Text("NCCL topology", rf"\A{_BEFORE_ELEMENT}<(system|cpu|pci)\b", _SHOW),
    _Text("ASTRA-sim network", r"^npus_count\s*:", _SHOW),
    _Text("file of logs by pair", r"^#\s*pair:?\s+\S+\s+\S+\s*$", _SHOW),
    _Text(
        "log of nccl-tests or rccl-tests",
        r"#\s+nThreads?:?\s+\d+\s+nGpus|#\s+Rank\s+\d+\s.*\bdevice\s+\d+\s+\[|\bsize\s+count\s+type\b"
        r"|(^|[\s:>])\d+\s+\d+\s+(u?int\d+|float\d*|half|bfloat16|double|fp8\w*)\s+([a-z]+\s+)?[-\d.]+\s",
        _FIT,
    ),
    _Text(
        "log of Intel MPI Benchmarks or of oneCCL's benchmark",
        r"Intel ?\(R\) MPI Benchmarks|^#\s*Benchmarking:?\s+\w|#bytes +#repetitions",
        _no(_TIMES),
    ),
    _Text("log of mscclpp-test", r"\bsize\s+count\s+time(\s+\S+){3}\s+time\b|\bkernel num: \d", _FIT_TABLE),
    _Text(
        "log of perftest (ib_write_bw and its kind)",
        r"^[ \t]*(RDMA_\w+|Send|Write\w*|Atomic\w*|Raw_\w+)\s.*\b(BW|Latency)\b.*Test\s*$"
        r"|\bBW (peak|average)\[|\bt_typical\[usec\]",
        _FIT,
    ),
    _Text("log of OSU micro-benchmarks", r"^#\s*OSU\s", _FIT),
    _Text(
        "log of DeepSpeed's communication or of all_reduce_bench.py",
        r"^-* ?Performance of \w+ on \d+ devices|^Comm\. Op\s+Message Size\b"
        r"|^The average bandwidth of \w+|^\|\s*payload\s*\|",
        _no(_TIMES),
    ),
    _Text(
        "table of measured times",
        rf"(?i)\A(.*\n){{0,9}}{_TIMES_HEAD}",
        _FIT_TABLE,
    ),
    _Text(
        "output of `nvidia-smi topo -m`",
        r"^(?=.*\bGPU0\b).*\bCPU Affinity|^(?=.*\bGPU0[ \t]+X\s).*\b(NV\d+|PIX|PXB|PHB|NODE|SYS)\b",
        "`taccl show {file}` reads it, if it is whole: its header, and a row for every device",
    ),
    _Text(
        "table for NCCL's example tuner plugin",
        r"^#\s*coll\w*,\s*min_?bytes|^(broadcast|reduce|all_?gather|reduce_?scatter|all_?reduce),\d+,\d+,\w+,",
        _no("`taccl reorder HOSTS --nccl-tuner FILE` writes such a table; give the hosts or the machine"),
    ),
    _Text("rank file of Open MPI", r"^rank\s+\d+\s*=\s*\S", _no(_SLOTS)),
    _Text(
        "host file",
        r"^[\w.-]+[ \t]+(max[_-])?slots\s*=\s*\d+|\A([\w.-]+:\d+[ \t]*(\n|\Z))+\Z",
        "`taccl reorder FILE --hosts {file}` reads it, beside the FILE of a probe",
    ),
    _Text(
        "table of a benchmark, whose first column is not the size",
        r"(?i)\A(#.*\n)*(?=[^\n]*,)(?=[^\n]*\b(size|bytes)\b)[^\n]*\b(time|alg_?bw|bus_?bw|latency)\b",
        _no("save its columns of sizes and times as CSV, with the head `size (B),time (us)`"),
    ),
    _Text(
        "profile of PyTorch, Nsight Systems or NCCL's profiler",
        r"\bTotal Time \(ns\)|\bSelf CPU %.*# of Calls"
        r"|^[ \t]*\{\"name\": \"\w[\w ]*\", \"cat\": \"\w+\", \"ph\": ",
        _no(_TIMES),
    ),
    _Text("record of NCCL's inspector", r"\A\s*\{\"header\": ?\{.*\"coll_perf\": ?\{", _no(_TIMES)),
    _Text("output of ncclras", r"^Job summary\n=+$", _no(f"{_NCCL_DUMP}; {_TIMES}")),
    _Text("matrix of pairs", _MATRIX_ROWS, _SHOW),
    # Benchmarks.
    _Text(
        "log of iperf, netperf, qperf or ucx_perftest",
        r"^\[\s*ID\]\s+Interval\s+Transfer|^(Client c|C)onnecting to |^\[ *\d+\] +local \S+ port "
        r"|^MIGRATED \w+ STREAM|^(tcp|udp|rc|uc|ud)_\w+:\s*$"
        r"|^\|\s*Stage\s*\|",
        _no(_HOSTS),
    ),
    _Text(
        "log of PARAM or of the benchmarks of gloo or HCL",
        r"\bCOMMS-RES\b|^[ \t]*elements\s+min \(us\)|^\[BENCHMARK\]\s",
        _no(_TIMES),
    ),
    _Text("matrix of nvbandwidth", r"^memcpy \w+ GPU\(row\) (->|<-) GPU\(column\) bandwidth", _SHOW),
    _Text(
        "output of nvbandwidth without a one-way matrix of GPUs",
        r"^nvbandwidth Version|^memcpy (CE|SM) .*\bbandwidth \(GB/s\)",
        "`nvbandwidth -t device_to_device_memcpy_read_ce` prints such a matrix",
    ),
    _Text("output of bandwidthTest", r"\[CUDA Bandwidth Test\]", _no(_SERVER)),
    _Text(
        "output of rocm_bandwidth_test or TransferBench",
        r"RocmBandwidthTest|^[ \t]*TransferBench\b|peak bandwidth GB/s",
        _no(_MATRIX),
    ),
    _Text(
        "output of p2pBandwidthLatencyTest, cut short",
        r"P2P \(Peer-to-Peer\) GPU Bandwidth Latency Test|^P2P Connectivity Matrix",
        "save the full output, with its matrix `P2P=Enabled Bandwidth`",
    ),
    # Servers.
    _Text(
        "graph dump of NCCL (NCCL_GRAPH_DUMP_FILE)",
        rf"\A{_BEFORE_ELEMENT}<graphs?\b",
        _no(f"it has the rings and trees that NCCL chose; {_NCCL_DUMP}"),
    ),
    _Text(
        "debug log of NCCL (NCCL_DEBUG=INFO)",
        r"\b(NCCL|RCCL|MSCCLPP) (INFO|WARN|TRACE)\b|^=== System : maxBw ",
        _no(f"{_NCCL_DUMP}; {_TIMES}"),
    ),
    _Text(
        "topology of hwloc (lstopo)",
        r"<!DOCTYPE topology\b|^[ \t]*<topology\b|^(│ )?Machine (\(\d+\w+|L#0)",
        _no(_SERVER),
    ),
    _Text(
        "output of `nvidia-smi topo -p2p`",
        r"^(?=.*\bGPU0[ \t]+X\s).*\b(OK|CNS|GNS|TNS|DR|NS)\b",
        _no(f"it says which GPUs may copy to each other, without rates; {_SERVER}"),
    ),
    _Text("output of `nvidia-smi nvlink`", r"^[ \t]*Link \d+: ([\d.]+ GB/s|Remote|<inactive>)", _no(_SERVER)),
    _Text(
        "output of nvidia-smi",
        r"\bNVIDIA-SMI\s+\d|^=+NVSMI LOG=+|^GPU \d+: .*\(UUID: |\bpci\.bus_id\b",
        _no(_SERVER),
    ),
    _Text(
        "output of `amd-smi topology`",
        r"^[ \t]*(ACCESS|WEIGHT|HOPS|LINK TYPE|LINK METRIC|NUMA BW|CACHE COHERENCY) TABLE:"
        r"|^AMDSMI_\w+ \|.*version|\Agpu,bdf,"
        r"|\A(?=\s*[{\[])(?=[\s\S]*\"bdf\":)(?=[\s\S]*\"link_type\":)",
        _no(_RCCL_DUMP),
    ),
    _Text(
        "output of `rocm-smi --showtopo`",
        r"\b(Weight|Hops|Link Type|Bandwidth min/max) between two GPUs"
        r"|^GPU\[\d+\]\s*: \(Topology\)|\"\(Topology\) "
        r"|^GPU\d+[ \t]+(\S+[ \t]+)*?(XGMI|PCIE)\b",
        _no(_RCCL_DUMP),
    ),
    _Text("output of rocm-smi", r"ROCm System Management Interface|=\s*ROCm SMI\b", _no(_RCCL_DUMP)),
    _Text(
        "output of dcgmi, xpu-smi, npu-smi or hl-smi",
        r"\|\s*(Topology Information|Diagnostic\s+\|)"
        r"|\bGPU \d+/\d+\s+GPU \d+/\d+|\bNPU0\s+NPU1\b|\b(npu|hl)-smi\b",
        _no(f"{_FILE}; {_SERVER}"),
    ),
    _Text("output of rocminfo", r"^ROCk module|^HSA System Attributes", _no(_RCCL_DUMP)),
    _Text(
        "output of lspci",
        r"^([0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] (\"|3D |[A-Z]|[0-9a-f]{4}: )"
        r"|^[ \t]*Lnk(Cap|Sta)2?:\s|^-(\+-)?\[[0-9a-f]{4}:[0-9a-f]{2}(-\w+)?\]-",
        _no(_SERVER),
    ),
    _Text(
        "output of ucx_info or fi_info",
        r"^# (UCT version|Library version|UCP context)\b|^provider: \w+$",
        _no(_HOSTS),
    ),
    _Text("output of lscpu or numactl", r"^Architecture:\s+\w|^available: \d+ nodes \(", _no(_SERVER)),
    # Networks.
    _Text(
        "output of ibnetdiscover",
        r"^#\s*Topology file: generated on|^(Switch|Ca|Rt)\s+\d+\s+\"[SHR]-[0-9a-f]+\"|^vendid=0x",
        _no(_HOSTS),
    ),
    _Text(
        "output of ibstat, iblinkinfo or ibv_devinfo",
        r"^\w+ port \d+ ==> \w+ \(|^link \w+/\d+ state "
        r"|^CA '[\w:]+'|^Infiniband device '|^hca_id:\s|^CA: .*:$|^Switch: 0x[0-9a-f]+ ",
        _no(f"{_RATE}; {_HOSTS}"),
    ),
    _Text(
        "output of ethtool, ip or ifconfig",
        r"^Settings for \S+:|^\d+: \S+: <[A-Z_,]+> mtu |^\w+: flags=\d+<",
        _no(f"{_RATE}; {_HOSTS}"),
    ),
    _Text(
        "topology.conf or topology.yaml of Slurm",
        r"(?i)^[ \t]*((SwitchName|BlockName|RingName|BlockSizes)\s*=|- +(switch|block|topology) *: )",
        _SHOW,
    ),
    _Text(
        "map of processes by mpirun",
        r"^[ \t]*=+\s+(ALLOCATED NODES|JOB MAP)\s+=+|\b[Rr]ank \d+ (is )?(bound to|not bound)",
        _no(_SLOTS),
    ),
    _Text("output of sinfo or scontrol", r"^PARTITION\s+AVAIL|^NodeName=\S|^NODELIST\b", _no(_HOSTS)),
    _Text(
        "topology of ns-3 (ASTRA-sim, SimAI)",
        r"\A\d+ \d+ \d+[ \w]*\n[\d ]*\n\d+ \d+ [\d.]+[GM]bps [\d.]+\w?s ",
        _no(_FILE),
    ),
    # Last, as these patterns match many other texts.
    _Text(
        "matrix without commas",
        rf"(?i)\A(#.*\n)*((?=.*[;\t]).*\n)?{_OTHER_ROW}|{_SPACED_ROWS}",
        "taccl reads a matrix as CSV: put commas between its cells, and points into its numbers",
    ),
    _Text(
        "graph (GraphML, GML or DOT)",
        rf"\A{_BEFORE_ELEMENT}<graphml\b|\A\s*(strict )?(di)?graph\b[^\n\[{{]*[\[{{]",
        _no("read it with networkx, and give the graph to taccl.topologies.from_networkx"),
    ),
    _Text(
        "script",
        r"\A#!|^(import|from) \w[\w.]*( import .*)?$|^#include\b",
        _no("give the file that it writes, or the log that it prints"),
    ),
    _Text(
        "web page or picture",
        rf"(?i)\A{_BEFORE_ELEMENT}<(!doctype (html|svg)|html|svg)\b",
        _OF_TEXT,
    ),
)
#: {kind of binary file: its first bytes}.
_BINARY = {
    "archive": (b"\x1f\x8b", b"PK\x03\x04", b"BZh", b"\xfd7zXZ\0", b"(\xb5/\xfd", b"7z\xbc\xaf"),
    "PDF": (b"%PDF-",),
    "picture": (b"\x89PNG", b"\xff\xd8\xff", b"GIF8"),
    "Chakra trace": (),  # see _CHAKRA
    "database or profile": (b"SQLite format 3", b"\x89HDF", b"PAR1"),
}
#: First bytes of a Chakra trace: sizes, and a version or the key of one.
_CHAKRA = re.compile(rb"[\s\S]{1,7}\n(\x05\d\.\d\.\d|\x06schema)")
_ADVICE |= dict.fromkeys(_BINARY, _OF_TEXT) | {
    "archive": "unpack it, and give the file inside",
    "Chakra trace": "taccl.workload.from_chakra reads it in Python",
}
_ADVICE |= {each.name: each.advice for each in _TEXTS}
#: Kinds that `taccl fit` reads, and kinds that `taccl show` reads.
LOGS = tuple(name for name, advice in _ADVICE.items() if advice in (_FIT, _FIT_TABLE))
SHOWN = tuple(name for name, advice in _ADVICE.items() if advice.startswith("`taccl show {file}`"))


def tells(kind: str) -> str:
    """Regular expression of a kind of text, for a search over lines."""
    return next(each.tells for each in _TEXTS if each.name == kind)


def kinds_in(data: dict[str, Any]) -> list[str]:
    """Kinds recognised by the top-level fields of a file; empty if unknown."""
    all_of = [
        kind for kind, way in MARKS.items() if all(k in data and v in (None, data[k]) for k, v in way.items())
    ]
    is_topology = "schema" in data and "constants" in data
    any_of = [kind for kind, fields in _FIELDS.items() if fields & data.keys()]
    return all_of + ["topology"] * is_topology + any_of


def unquoted(text: str) -> str:
    """Text without quotation marks of mails, code fences and common indentation.

    Line breaks become those of Unix; line numbers are kept.
    """
    return dedent(_QUOTES.sub("", text.replace("\r\n", "\n")))


def kinds_of_text(text: str) -> list[str]:
    """Kind of a text that is neither JSON nor TOML, as a list of one; empty if unknown.

    If no pattern matches, the text is searched again without indentation, as it may be quoted in other text.
    """
    head = unquoted(text[:_HEAD_CHARACTERS])
    for lines in (head, re.sub(r"(?m)^[ \t]+", "", head)):
        for each in _TEXTS:
            if re.search(each.tells, lines, re.MULTILINE):
                return [each.name]
    return []


def kind_of_bytes(data: bytes) -> str:
    """Kind of a binary file, by its first bytes; empty if unknown."""
    if _CHAKRA.match(data):
        return "Chakra trace"
    return next((kind for kind, begins in _BINARY.items() if data.startswith(begins)), "")


def a(kind: str) -> str:
    """Kind with its article."""
    if kind.startswith(("output of", "answer of")):
        return f"the {kind}"
    return f"a{'n' * (kind[0].lower() in 'aeiou' or kind.startswith('NCCL'))} {kind}"


def wrong_kind(kind: str, file: str, wanted: str = "") -> str:
    """Message on a file of a wrong kind: what it is, what was expected, and the next step."""
    expected = f"; expected {wanted}" if wanted else ""
    return f"found {a(kind)}{expected}; {advice_on(kind, file)}"


def advice_on(kind: str, file: str) -> str:
    """Next step for a file of a kind, as a sentence."""
    advice = _ADVICE.get(kind, "check the path")
    return advice.replace("{file}", shlex.quote(shown(file, 200)))
