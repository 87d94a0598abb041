"""Kinds of text files, each with the pattern that recognises it and advice on such a file."""

from __future__ import annotations

from typing import NamedTuple

#: Pattern of text that may stand before the root element of XML.
BEFORE_ELEMENT = r"\s*(<\?xml[^>]*>\s*)?(<!--(?:(?!-->)[\s\S])*-->\s*)*"
#: Pattern of a table's cell that holds a number.
_NUMBER = r"\"?(?:[-+]?\.?\d[\d.eE+-]*|nan|inf)\"?"
#: Pattern of a unit that may follow the number in a table's cell.
_UNIT = r"(?: ?(?:[kKMGT]i?)?[bB](?:it|yte)?s?(?:ps|/s)| ?[nuµm]s)?"
#: Pattern of a number, or of a mark on the diagonal, in a matrix.
_ENTRY = rf"(?:{_NUMBER}|[-xX]|N/A)"
#: At least three rows of numbers separated by blanks or bars; a row may begin with a name.
_SPACED_ROWS = rf"(^[|\t ]*(?:\w[\w.:-]*[|\t ]+)?{_ENTRY}(?:[|\t ]+{_ENTRY}){{1,}}[|\t ]*$\n?){{3,}}"
_COMMA_ROW, _OTHER_ROW = (
    rf"(?=[^=\[{{<\n]*$)[^{mark}\n]*(?:[{mark}][^{mark}\n]*)*?[{mark}]"
    rf" {{0,20}}{_NUMBER}{after} {{0,20}}(?=[{mark}]|$)"
    for mark, after in ((",", _UNIT), (r";\t", r"(?:,\d+)?"))
)
#: Header of a table of times. The word that ends in `bw` begins at a boundary, or after the first `_`.
#: A search takes linear time, as there is one such place for each word.
_TIMES_HEAD = (
    r"[#|\t \"]*((message|msg|buffer|data)[ _])?(size|bytes)(\b|_)"
    r"(.*(\b|_)(time|latency)|([^\W_]*_|.*\b)\w*bw)(\b|_)"
)
#: Header of the CSV that `taccl compare` writes.
_COMPARISON_HEAD = r"[\w,]*\bbackend,[\w,]*\bfinish_us,"
#: Fields of `nvidia-smi --query-gpu`, in the header of its CSV.
_GPU_FIELD = r"\b(pci|pcie|memory|utilization|temperature|power|clocks)\.[a-z]"
#: Beginning of a matrix: a row with commas, below comments and at most one header.
#: The pattern's second alternative is a matrix of p2pBandwidthLatencyTest.
_MATRIX_ROWS = (
    rf"(?i)\A(#.*\n|[^\S\n]*\n)*+(?!{_TIMES_HEAD}|{_COMPARISON_HEAD}|gpu,bdf,|.*(?:{_GPU_FIELD}|,\(Topology\)))((?=.*,)[^=\[{{<\n]*\n)?{_COMMA_ROW}"
    r"|P2P=(Enabled|Disabled).*(Matrix|\((GB/s|us)\))"
)
#: Advice on files of a kind: a command that reads such a file, or the file to give instead.
SHOW = "`taccl show {file}` reads it"
FIT = "`taccl fit {file} --topology MACHINE` reads it, with the name of the machine"
FIT_TABLE = "`taccl fit {file} --topology MACHINE --collective NAME` reads it, if its header names the units"
CHAKRA = "taccl.workload.from_chakra reads it in Python"
_NCCL_DUMP = "the topology is in the file that NCCL writes with NCCL_TOPO_DUMP_FILE=topo.xml"
_RCCL_DUMP = (
    "the topology is in the file that RCCL writes with NCCL_TOPO_DUMP_FILE=topo.xml; for measured rates give "
    "what `rocm-bandwidth-test -a` or `TransferBench p2p` prints, or name a machine, e.g. mi300x"
)
_SERVER = (
    "for the topology of a server give what `nvidia-smi topo -m` prints, or the file that NCCL writes with "
    "NCCL_TOPO_DUMP_FILE=topo.xml"
)
HOSTS = "for the network between hosts give a matrix of pairs as CSV, or what `taccl probe` measures"
TIMES = "for measured times give a log of nccl-tests, rccl-tests, perftest or OSU micro-benchmarks"
SLOTS = (
    "for `taccl reorder FILE --hosts` give the hosts in their present order, each a line name or name:slots"
)
_RATE = "the rate of a NIC is given as a number, e.g. nic_gb_per_s=50"
_FABRIC = "for the fabric of InfiniBand give what `ibnetdiscover` prints"
_FILE = "write a topology file with [node], [nics] and [network]"


#: Kind of texts in which a matrix of pairs may stand, whatever separates its cells.
MATRIX_IN_TEXT = "text with a matrix of numbers"


#: Results of SuperBench, an object for every node, and the form of some fields that tell it apart.
SUPERBENCH, SUPERBENCH_METRIC = (
    "summary of SuperBench",
    r"[\w-]{1,40}(?::[^\"/\n]{1,80})?/(?:\w{1,80}_(?:busbw|algbw|time)|return_code)(?::\d+)?",
)


class Text(NamedTuple):
    """A kind of text: name, regular expression for its first lines, and advice on such a file."""

    name: str
    pattern: str
    advice: str


def unsupported(remedy: str) -> str:
    """Advice on a file that is not supported."""
    return f"taccl does not read it; {remedy}"


PICTURED = unsupported("save the text of the log or of the matrix that it shows")
#: Kinds of text, tried in order, after those of `taccl.formats.table`; the first that matches is chosen.
TEXTS = (
    # Kinds that taccl reads or writes, among unsupported kinds of similar text.
    Text(
        "comparison",
        rf"\A{_COMPARISON_HEAD}|\A\[\s*\{{\s*\"topology\":\s*[^\n]*\s*\"collective\":",
        "pandas reads it, and taccl.plot.comparison draws the table in Python",
    ),
    Text("file of logs by pair", r"^#\s*pair:?\s+\S+\s+\S+\s*$", SHOW),
    Text(
        "log of nccl-tests or rccl-tests",
        r"#\s+nThreads?:?\s+\d+\s+nGpus|#\s+Rank\s+\d+\s.*\bdevice\s+\d+\s+\[|\bsize\s+count\s+type\b"
        r"|(^|[\s:>])\d+\s+\d+\s+(u?int\d+|float\d*|half|bfloat16|double|fp8\w*)\s+([a-z]+\s+)?[-\d.]+\s"
        # Rows that rccl-tests writes as JSON (-x).
        r"|\A\s*+(?:\[\s*+)?\{[^{}]{0,400}\"(?i:in_?place)\":[^{}]{0,200}\"(?i:alg_?bw)\":",
        FIT,
    ),
    Text(
        "log of Intel MPI Benchmarks or of oneCCL's benchmark",
        r"Intel ?\(R\) MPI Benchmarks|^#\s*Benchmarking:?\s+\w|#bytes +#repetitions",
        unsupported(TIMES),
    ),
    Text(
        "log of ucc_perftest or of a benchmark in PyTorch",
        r"^Collective:\s+\w+$|\bTime, us +Bandwidth, GB/s|^size\(MB\) +tavg\(usec\)",
        unsupported(TIMES),
    ),
    Text("log of mscclpp-test", r"\bsize\s+count\s+time(\s+\S+){3}\s+time\b|\bkernel num: \d", FIT_TABLE),
    Text(
        "log of perftest (ib_write_bw and its kind)",
        r"^[ \t]*(RDMA_\w+|Send|Write\w*|Atomic\w*|Raw_\w+)\s.*\b(BW|Latency)\b.*Test\s*$"
        r"|\bBW (peak|average)\[|\bt_typical\[usec\]",
        FIT,
    ),
    Text("log of NCCL's Inspector", r'\A\s*\{"header":\s*\{"id":[^\n]*"coll_perf":', FIT),
    Text("log of OSU micro-benchmarks", r"^[ \t]*#\s*(?:OSU\s|OMB[ -]Py)", FIT),
    Text(
        "log of DeepSpeed's communication or of all_reduce_bench.py",
        r"^-* ?Performance of \w+ on \d+ devices|^Comm\. Op\s+Message Size\b"
        r"|^The average bandwidth of \w+|^\|\s*payload\s*\|",
        unsupported(TIMES),
    ),
    Text(
        "log of libfabric's tests (fi_pingpong and its kind)",
        r"^[ \t]*bytes[ \t]+(#sent|iters)[ \t].*\busec/xfer\b",
        unsupported(HOSTS),
    ),
    Text("table of measured times", rf"(?i)\A(.*\n){{0,9}}{_TIMES_HEAD}", FIT_TABLE),
    Text(
        "output of `nvidia-smi topo -m`",
        r"^.{0,80}?\bGPU\d+(\b|GPU|NIC).*CPU Affinity"
        r"|^(?=.*\bGPU\d+[ \t,|]+X[\s,|]).*\b(NV\d+|PIX|PXB|PHB|NODE|SYS|SOC)\b",
        "`taccl show {file}` reads it, if it is whole: its header, and a row for every device",
    ),
    Text(
        "table for NCCL's example tuner plugin",
        r"^#\s*coll\w*,\s*min_?bytes|^(broadcast|reduce|all_?gather|reduce_?scatter|all_?reduce),\d+,\d+,\w+,",
        unsupported(
            "`taccl reorder HOSTS --nccl-tuner FILE` writes such a table; give the hosts or the machine"
        ),
    ),
    Text("rank file of Open MPI", r"^rank\s+\d+\s*=\s*\S", unsupported(SLOTS)),
    Text(
        "host file",
        r"^[\w.-]+[ \t]+(max[_-])?slots\s*=\s*\d+"
        r"|\A(#.*\n)*([\w.-]+:\d+[ \t]*([,\n]|#.*(\n|\Z)|\Z))+\Z"
        r"|\A(#.*\n)*([A-Za-z][\w.-]*\[[\d,-]+\](:\d+)?[ \t]*([,\n]|\Z))+\Z"
        # Names with a digit, one per line. Only their first digits fit `\d`: backtracking takes linear time.
        r"|\A(?=.*\n[^\n])([A-Za-z](?:[^\W\d]|[.-])*\d[\w.-]*[ \t]*(\n|\Z))+\Z",
        "`taccl reorder FILE --hosts {file}` reads it, beside the FILE of a probe",
    ),
    Text("profile of mpiP or IPM", r"^@ mpiP\b|^##IPMv\d", unsupported(TIMES)),
    Text("log of a training run", r"\biteration +\d+/ *\d+ \|", unsupported(TIMES)),
    Text(
        "table of a benchmark, whose first column is not the size",
        r"(?i)\A(#.*\n)*(?=[^\n]*[,;|\t])(?=[^\n]*(\b|_)(size|bytes)(\b|_))"
        r"[^\n]*(\b|_)(time|alg_?bw|bus_?bw|latency)(\b|_)",
        FIT_TABLE,
    ),
    Text(
        "profile of PyTorch, Nsight Systems or NCCL's profiler",
        r"\bTotal Time \(ns\)|\bSelf CPU %.*# of Calls"
        r"|^[ \t]*\{\"name\": \"\w[\w ]*\", \"cat\": \"\w+\", \"ph\": ",
        unsupported(TIMES),
    ),
    # Output of chakra_jsonizer: JSON objects one after another, the first with the version alone.
    Text("Chakra trace in JSON", r"\A\s*\{\s*\"version\": ?\"[\d.]+\"\s*\}\s*\{", CHAKRA),
    Text(
        "table of layers",
        r"(?i)\A(#.*\n)*(?!.{0,99}(src|dst|source|rank|host|node|gpu))(.{0,99}[,;\t])?\W?(layer|param|tensor)"
        r"[\w .]{0,20}\W?[,;\t](.{0,99}[,;\t])?\W?([a-z]+[_ ])?(bytes|size)\W*\n",
        "`--collective exchange --layers {file}` reads it",
    ),
    Text(SUPERBENCH, rf"\A\s*\{{(?=.*\"{SUPERBENCH_METRIC}\")", unsupported(TIMES)),
    Text("record of NCCL's inspector", r"\A\s*\{\"header\": ?\{.*\"coll_perf\": ?\{", unsupported(TIMES)),
    Text("output of ncclras", r"^Job summary\n=+$", unsupported(f"{_NCCL_DUMP}; {TIMES}")),
    Text("output of mpiGraph", r"^START mpiGraph|^Send\s+\S+:\d+\s+\S+:\d+", SHOW),
    Text(
        "topology or result of TACOS in CSV",
        r"(?i)\A\d+,*\nsrc, ?dest, ?latency|^NPUs Count,\d",
        unsupported("write each link as [[link]] of a topology file"),
    ),
    Text("matrix of pairs", _MATRIX_ROWS, SHOW),
    # Texts of benchmarks.
    Text(
        "log of iperf, netperf, qperf, sockperf, ucx_perftest or ping",
        r"^sockperf(\[\w+\])?: |^Pong from |"
        r"^\[\s*ID\]\s+Interval\s+Transfer|^(Client c|C)onnecting to |^\[ *\d+\] +local \S+ port "
        r"|^PING \S+ \(|^traceroute to |^MIGRATED \w+ STREAM|^(tcp|udp|rc|uc|ud)_\w+:\s*$"
        r"|^\|\s*Stage\s*\|",
        unsupported(HOSTS),
    ),
    Text(
        "output of gdrcopy or gdscheck",
        r"^GDS release version: |^BAR writing test, size=|^(write|read) BW: [\d.]+ ?MB/s$",
        unsupported(_SERVER),
    ),
    Text("log of ROCm Validation Suite (RVS)", r"^\[RESULT\] \[ *\d+\.\d+\]", unsupported(_RCCL_DUMP)),
    Text(
        "log of PARAM or of the benchmarks of gloo, HCL or DeepEP",
        r"^\[tuning\] (Best|SMs) |\bCOMMS-RES\b|^[ \t]*elements\s+min \(us\)|^\[BENCHMARK\]\s",
        unsupported(TIMES),
    ),
    Text("matrix of nvbandwidth", r"^.{0,120}?\bmemcpy \w+ GPU\(row\) (->|<-) GPU\(column\) bandwidth", SHOW),
    Text(
        "output of nvbandwidth without a one-way matrix of GPUs",
        r"^nvbandwidth Version|^memcpy (CE|SM) .*\bbandwidth \(GB/s\)",
        "`nvbandwidth -t device_to_device_memcpy_read_ce` prints such a matrix",
    ),
    Text(
        "output of bandwidthTest, deviceQuery or another sample of CUDA",
        r"\[CUDA Bandwidth Test\]|^\S*deviceQuery Starting|^\[\S*simpleP2P\] - |^GPU\d+ <-> GPU\d+:$",
        unsupported(_SERVER),
    ),
    Text(
        "matrix of rocm_bandwidth_test or TransferBench",
        r"^.{0,120}?\bUnidirectional copy peak bandwidth GB/s(?!.*\bNIC\b)",
        SHOW,
    ),
    Text(
        "output of rocm_bandwidth_test or TransferBench without a one-way matrix",
        r"RocmBandwidthTest|^[ \t]*TransferBench\b|peak bandwidth GB/s|^GPU-GFX All-To-All benchmark",
        "`rocm-bandwidth-test -a` or `TransferBench p2p` prints such a matrix",
    ),
    Text(
        "output of p2pBandwidthLatencyTest, cut short",
        r"P2P \(Peer-to-Peer\) GPU Bandwidth Latency Test|^P2P Connectivity Matrix",
        "save the full output, with its matrix `P2P=Enabled Bandwidth`",
    ),
    # Descriptions of the hardware of one server, by NCCL, hwloc or the vendors' tools.
    Text(
        "graph dump of NCCL (NCCL_GRAPH_DUMP_FILE)",
        rf"\A{BEFORE_ELEMENT}<graphs?\b",
        unsupported(f"it has the rings and trees that NCCL chose; {_NCCL_DUMP}"),
    ),
    Text(
        "debug log of NCCL (NCCL_DEBUG=INFO)",
        r"\b(NCCL|RCCL|MSCCLPP) (INFO|WARN|TRACE)\b|^=== System : maxBw ",
        unsupported(f"{_NCCL_DUMP}; {TIMES}"),
    ),
    Text(
        "topology of hwloc (lstopo)",
        r"<!DOCTYPE topology\b|^[ \t]*<topology\b|^(│ )?Machine (\((P#0 )?(total=)?\d+\w+|L#0)",
        unsupported(_SERVER),
    ),
    Text(
        "output of `nvidia-smi topo -p2p`",
        r"^(?=.*\bGPU0[ \t]+X\s).*\b(OK|CNS|GNS|TNS|DR|NS)\b",
        unsupported(f"it says which GPUs may copy to each other, without rates; {_SERVER}"),
    ),
    Text(
        "output of `nvidia-smi nvlink`",
        r"^[ \t]*Link \d+: ([\d.]+ GB/s|Remote|<inactive>)",
        unsupported(_SERVER),
    ),
    Text(
        "output of nvidia-smi or nvidia-imex-ctl",
        r"\bNVIDIA-SMI\s+(\d|has failed)|^Failed to run topology matrix|^=+NVSMI LOG=+"
        rf"|^GPU \d+: .*\(UUID: |\A[^\n]*{_GPU_FIELD}"
        r"|<nvidia_smi_log>|^Connectivity Table Legend:|^# gpu +(pwr|sm|fb) "
        r"|^The following GPUs (have an affinity|are connected)|^GPU \d+ is connected to GPU \d",
        unsupported(_SERVER),
    ),
    Text(
        "output of `amd-smi topology` or `amd-smi xgmi`",
        r"^[ \t]*(ACCESS|WEIGHT|HOPS|LINK TYPE|LINK METRIC|NUMA BW|CACHE COHERENCY) TABLE:"
        r"|^AMDSMI_\w+ \|.*version|\Agpu,bdf,"
        r"|\A(?=\s*[{\[])(?=[\s\S]*\"bdf\":)(?=[\s\S]*\"link_type\":)",
        unsupported(_RCCL_DUMP),
    ),
    Text(
        "output of `rocm-smi --showtopo`",
        r"(?i)\A[^\n]*,\(Topology\)"
        r"|\b(Weight|Hops|Link (Type|Accessibility)|Bandwidth min/max) between two GPUs"
        r"|^GPU\[\d+\]\s*: \(Topology\)|\"\(Topology\) "
        r"|^GPU\d+[ \t]+(\S+[ \t]+)*?(XGMI|PCIE|\d{4,}-\d{4,})(?!\S)",
        unsupported(_RCCL_DUMP),
    ),
    Text("output of amd-smi", r"^GPU: \d+\n +[A-Z_]+:|\bAMD-SMI \d", unsupported(_RCCL_DUMP)),
    Text("output of rocm-smi", r"ROCm System Management Interface|=\s*ROCm SMI\b", unsupported(_RCCL_DUMP)),
    Text(
        "output of dcgmi, xpu-smi, npu-smi, hl-smi, hy-smi or cnmon",
        r"\|\s*NvLink Link Status\s*\||\bbetween two DCUs\b"
        r"|\bCard0[ \t]+Card1\b|^modID\s+CPU Affinity|\|\s*(Topology Information|Diagnostic\s+\|)"
        r"|\bGPU \d+/\d+[\s|]+GPU \d+/\d+|\bNPU0\s+NPU1\b|\b(npu|hl)-smi\b|\bHL-SMI Version\b",
        unsupported(f"{_FILE}; {_SERVER}"),
    ),
    Text("output of rocminfo", r"^ROCk module|^HSA System Attributes", unsupported(_RCCL_DUMP)),
    Text(
        "output of lspci",
        r"^([0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] (\"|3D |[A-Z]|[0-9a-f]{4}: )"
        r"|^[ \t]*Lnk(Cap|Sta)2?:\s|^-(\+-)?\[[0-9a-f]{4}:[0-9a-f]{2}(-\w+)?\]-",
        unsupported(_SERVER),
    ),
    Text(
        "output of ucx_info or fi_info",
        r"^# (UCT version|Library version|UCP context)\b|^#\s+(Memory domain|Transport): \w|^provider: \w+$",
        unsupported(HOSTS),
    ),
    Text(
        "output of PyTorch's or vLLM's collect_env",
        r"^Collecting environment information\.|^PyTorch version: \S+\n(Is debug build|CUDA used)",
        unsupported(_SERVER),
    ),
    Text("output of lscpu or numactl", r"^Architecture:\s+\w|^available: \d+ nodes \(", unsupported(_SERVER)),
    # Texts on networks.
    Text(
        "output of ibnetdiscover",
        r"^(SW|CA) +\d+ +\d+ 0x[0-9a-f]+ |^#\s*Topology file: generated on"
        r"|^(Switch|Ca|Rt)\s+\d+\s+\"[SHR]-[0-9a-f]+\"|^vendid=0x",
        "`taccl show {file}` reads it, if it is whole: all switches with their ports",
    ),
    Text(
        "output of ibhosts, ibswitches or ibroute",
        r"^(Ca|Switch)\t: 0x|^(Unicast lids|Multicast mlids) \[0x",
        unsupported(f"{_FABRIC}; {HOSTS}"),
    ),
    Text(
        "output of ibstat, ibv_devinfo, iblinkinfo or ibdiagnet",
        r"^.{0,120}?\w+ port \d+ (\(\w+\) )?==> \w+ \(|^link \w+/\d+ state "
        r"|^CA '[\w:]+'|^Infiniband device '|^hca_id:\s|^CA: .*:$|^Switch: 0x[0-9a-f]+ "
        r"|^Errors for (0x|\")|^sminfo: sm lid |^/usr/share/ibdiagnet|^ *device +\t? *node GUID$",
        unsupported(f"{_RATE}; {_FABRIC}"),
    ),
    Text(
        "output of `mst status`",
        r"^MST (modules|devices):$|^DEVICE_TYPE +MST +PCI\b",
        unsupported(f"{_SERVER}; {_RATE}"),
    ),
    Text(
        "output of ethtool, ip or ifconfig",
        r"^Settings for \S+:|^\d+: \S+: <[A-Z_,]+> mtu |^\w+: flags=\d+<",
        unsupported(f"{_RATE}; {HOSTS}"),
    ),
    Text(
        "topology.conf or topology.yaml of Slurm",
        r"(?i)^[ \t]*((SwitchName|BlockName|RingName|BlockSizes)\s*=|- +topology *: "
        r"|switches:[ \t]*\n[ \t]*- +switch *: |blocks:[ \t]*\n[ \t]*- +block *: )",
        SHOW,
    ),
    Text(
        "model of topograph",
        r"^switches:[ \t]*\n([ \t]*#.*\n)*[ \t]+[\w.-]+:[ \t]*$",
        unsupported("give the topology.conf or topology.yaml that topograph writes for Slurm"),
    ),
    Text("output of lldpcli", r"^LLDP neighbors:", unsupported(HOSTS)),
    Text("output of ompi_info", r"^ *(Package: Open MPI |Open MPI: \d)", unsupported(SLOTS)),
    Text(
        "map of processes by mpirun",
        r"^[ \t]*=+\s+(ALLOCATED NODES|JOB MAP)\s+=+|\b[Rr]ank \d+ (is )?(bound to|not bound)",
        unsupported(SLOTS),
    ),
    Text(
        "output of sinfo, squeue or scontrol",
        r"^PARTITION\s+AVAIL|^NodeName=\S|^NODELIST\b|^ *JOBID +PARTITION ",
        unsupported(HOSTS),
    ),
    Text(
        "topology of ns-3 (ASTRA-sim, SimAI)",
        r"\A\d+ \d+ \d+[ \w]*\n[\d ]*\n\d+ \d+ [\d.]+[GM]bps [\d.]+\w?s ",
        unsupported(_FILE),
    ),
    Text("topology of htsim (ASTRA-sim)", r"\A(#.*\n)*Nodes \d+\s+Tiers \d+\s", unsupported(_FILE)),
    Text(
        "list of settings of NCCL (environment or nccl.conf)",
        r"^[ \t]*(export[ \t]+)?(NCCL|RCCL|MSCCL(PP)?)_[A-Z0-9_]+[ \t]*=[ \t]*\S",
        unsupported(f"{_NCCL_DUMP}; {TIMES}"),
    ),
    Text(
        "output of mlxlink, perfquery or show_gids",
        r"^DEV\s+PORT\s+INDEX\s+GID\b|^Operational Info$|^# Port (extended )?counters: ",
        unsupported(f"{_RATE}; {HOSTS}"),
    ),
    Text(
        "object of Kubernetes",
        r"^apiVersion: [\w./]+$|^NAME +STATUS +ROLES ",
        unsupported(f"{_SERVER}; {HOSTS}"),
    ),
    # These kinds come last, as their patterns match many other texts.
    # The table may begin at any line. Other texts that may hold such a table were recognised before.
    Text("table of measured times", rf"(?i)^{_TIMES_HEAD}", FIT_TABLE),
    Text(
        MATRIX_IN_TEXT,
        # A lookahead finds a row with commas, so that a search does not go back to its many other matches.
        rf"(?i)\A(#.*\n|[^\S\n]*\n)*((?=.*[;\t]).*\n)?{_OTHER_ROW}|{_SPACED_ROWS}|(^(?={_COMMA_ROW}).+\n?){{2,}}",
        f"{SHOW}, if it has a row and a column for every host or GPU",
    ),
    Text(
        "log of the kernel or of a service",
        r"\A\[ *\d+\.\d{6}\] |^Fabric Manager Log initializing at: "
        r"|^.{0,80}\bnv(idia)?-?fabric-?manager(\.service\b|\[\d+\]|:)",
        unsupported(_SERVER),
    ),
    Text(
        "log of a job (torchrun or Slurm)",
        r"^\[rank\d+\]:|^[EIW]\d{4} [\d:.]+ +\d+ torch/|^(srun|slurmstepd): ",
        unsupported(f"{_NCCL_DUMP}; {TIMES}"),
    ),
    Text(
        "graph (GraphML, GML or DOT)",
        rf"\A{BEFORE_ELEMENT}<graphml\b|\A\s*(strict )?(di)?graph\b[^\n\[{{]*[\[{{]",
        unsupported("read it with networkx, and give the graph to taccl.topologies.from_networkx"),
    ),
    Text(
        "page in Markdown",
        r"\A(---\n[\s\S]{0,2000}?\n---\n\s*)?(# \S.*|\S.*\n[=-]{3,}[ \t]*)\n"
        r"[ \t]*\n(?=[\s\S]*^(#{2,6} \w|[*-] \w|\w.*\b(the|a|and)\b))",
        unsupported("save the table or the block that it quotes as a file, and give that"),
    ),
    Text(
        "script",
        r"\A#!|^(import|from) \w[\w.]*( import .*)?$|^#include\b",
        unsupported("give the file that it writes, or the log that it prints"),
    ),
    Text("web page or picture", rf"(?i)\A{BEFORE_ELEMENT}<(!doctype (html|svg)|html|svg)\b", PICTURED),
)
