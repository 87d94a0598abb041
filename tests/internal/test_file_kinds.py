"""Kinds of files: detection by content, names in messages, and advice."""

import gzip

import pytest

import taccl
from taccl._internal.file_kinds import _ADVICE, _BINARY, _FIELDS, _MARKS, LOGS, a, advice_on, kinds_of_text
from taccl._internal.reading import kinds_of
from taccl._internal.text_kinds import TEXTS as KINDS_OF_TEXT
from taccl.errors import InputError
from taccl.formats.native import load as load_schedule
from taccl.formats.table import FORMATS
from taccl.measure.logs import read_log
from tests.effort import cpu_s
from tests.outputs import FIELDS, TEXTS

ALL = {**TEXTS, **FIELDS}


def test_every_kind_has_a_sample():
    """Every kind has a sample text."""
    of_formats = {each.kind_of_file for each in FORMATS} - _BINARY.keys()
    texts = {each.name for each in KINDS_OF_TEXT}
    assert texts | _MARKS.keys() | _FIELDS.keys() | of_formats == ALL.keys()
    assert texts | _MARKS.keys() | _FIELDS.keys() | _BINARY.keys() == _ADVICE.keys()


def first_kinds(samples, path):
    """{kind of a sample: first kind that is recognised in a file of its text}."""
    found = {}
    for kind, text in samples.items():
        path.write_bytes(text.encode())
        found[kind] = kinds_of(path)[0]
    return found


def test_a_kind_is_recognised_by_its_top_lines(tmp_path):
    """The first kind that is recognised in a sample file is the sample's own."""
    assert first_kinds(ALL, tmp_path / "file") == {kind: kind for kind in ALL}


@pytest.mark.parametrize(
    "data",
    [b"\x07\n\x050.0.4H\x12\x14all", b"\xda\xd0\x01\x12\x1d\n\x06schema\xea\x01\x12"],
    ids=["0.0.4", "1.0.2"],
)
def test_chakra_traces_are_recognised(tmp_path, data):
    """A Chakra trace given as a sketch is named, with the function that reads it."""
    path = tmp_path / "trace.0.et"
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"found a Chakra trace; .*from_chakra"):
        taccl.load_sketch(path)


def test_a_summary_of_one_node_is_no_topology(tmp_path):
    """A summary of SuperBench on one node is one object of JSON with the field ``node``."""
    path = tmp_path / "summary.json"
    path.write_text('{"node": "n1", "gemm-flops/FP64:0": 9031.2, "nccl-bw/allreduce_8_busbw:0": 0.1}')
    assert kinds_of(path) == ["summary of SuperBench"]


@pytest.mark.parametrize("before", ["$ the command\n", "\ufeff", "\n\n", "[1,0]<stdout>:"])
@pytest.mark.parametrize("kind", ["log of nccl-tests or rccl-tests", "debug log of NCCL (NCCL_DEBUG=INFO)"])
def test_what_a_shell_puts_before_changes_nothing(kind, before):
    """A shell prompt, a byte order mark, empty lines and a launcher's prefix do not matter."""
    assert kinds_of_text(before + TEXTS[kind]) == [kind]


@pytest.mark.parametrize("kind", TEXTS)
def test_a_known_output_is_named_wherever_it_is_not_read(tmp_path, kind):
    """If a known output of a tool is given as a topology, sketch, schedule or log, the error names its kind,
    the expected kind, and advice."""
    path = tmp_path / "a file.txt"
    path.write_text(TEXTS[kind])
    are_logs = (*LOGS, "file of logs by pair")
    readers = (load_schedule, taccl.load_sketch, *(() if kind in are_logs else (read_log,)))
    for read in readers:
        with pytest.raises(InputError) as caught:
            read(path)
        assert f"found {a(kind)}; expected " in caught.value.message
        assert caught.value.message.endswith(advice_on(kind, str(path)))


#: Outputs of other versions and sub-commands of a tool, each with its kind.
OTHER_FORMS = [
    ('[\n {\n  "topology": "ring:4",\n  "collective": "allgather",\n  "num_ranks": 4\n }\n]\n', "comparison"),
    (
        "#------\n#    Intel (R) MPI Benchmarks 2018, MPI-1 part\n",
        "log of Intel MPI Benchmarks or of oneCCL's benchmark",
    ),
    ("                    Send Bidirectional BW Test\n", "log of perftest (ib_write_bw and its kind)"),
    ("                    RDMA_Read Latency Test\n", "log of perftest (ib_write_bw and its kind)"),
    ("# OSU MPI-CUDA All-to-All Personalized Exchange Latency Test v7\n", "log of OSU micro-benchmarks"),
    (
        "# Notes\n\n    # OSU MPI Bandwidth Test v7.5\n    # Size  Bandwidth (MB/s)\n    1  2.1\n    2  4.2\n",
        "log of OSU micro-benchmarks",
    ),
    ("#   size   count   time   algbw   busbw  #wrong\n", "table of measured times"),
    ("0: 1024 256 bfloat16 sum -1 12.1 0.08 0.15 0\n", "log of nccl-tests or rccl-tests"),
    (
        '[\n{\n"name": "AllReduce",\n"size": 8,\n"inPlace": 1,\n"time": 9.1,\n"algBw": 0.1\n}\n]\n',
        "log of nccl-tests or rccl-tests",
    ),
    ('{"name":"X","in_place":true,"time":9.1,"alg_bw":0.1}\n{}\n', "log of nccl-tests or rccl-tests"),
    ("Machine (62GB)\n  Package L#0\n", "topology of hwloc (lstopo)"),
    ("tcp_bw:\n    bw  =  1.18 GB/sec\n", "log of iperf, netperf, qperf, sockperf, ucx_perftest or ping"),
    ("\tCOMMS-RES-all_reduce-float32\t 1024\n", "log of PARAM or of the benchmarks of gloo, HCL or DeepEP"),
    ("  tree:\n    switches:\n      - switch: root\n", "topology.conf or topology.yaml of Slurm"),
    ("- topology: flat\n  flat: true\n", "topology.conf or topology.yaml of Slurm"),
    (
        '[{"gpu": 0, "bdf": "0:5:0.0", "links": [{"link_type": "XGMI"}]}]\n',
        "output of `amd-smi topology` or `amd-smi xgmi`",
    ),
    ("gpu,bdf,link_0\n0,0000:05:00.0,SELF\n", "output of `amd-smi topology` or `amd-smi xgmi`"),
    ('{"system": {"(Topology) Hops between DRM devices 0 and 1": "1"}}', "output of `rocm-smi --showtopo`"),
    ("index, name, pci.bus_id\n0, GPU, 0:1B:00.0\n", "output of nvidia-smi or nvidia-imex-ctl"),
    ("[n1:7] MCW rank 0 bound to socket 0[core 0]: [B/.]\n", "map of processes by mpirun"),
    ("import torch\nprint(1)\n", "script"),
    (
        "# Benchmarking: allreduce\n\n   #bytes  #repetitions   t_avg[usec]\n",
        "log of Intel MPI Benchmarks or of oneCCL's benchmark",
    ),
    (
        "Comm. Op            Message Size        Count               Total Latency(ms)\nbroadcast\n",
        "log of DeepSpeed's communication or of all_reduce_bench.py",
    ),
    (
        "     Name    Self CPU %      Self CPU   CPU total %    # of Calls\n",
        "profile of PyTorch, Nsight Systems or NCCL's profiler",
    ),
    (
        '[\n{"name": "AllReduce", "cat": "COLL", "ph": "b", "id": 0},\n',
        "profile of PyTorch, Nsight Systems or NCCL's profiler",
    ),
    ("=== System : maxBw 48.0 totalBw 370.8 ===\nCPU/0-0 (1/2/-1)\n", "debug log of NCCL (NCCL_DEBUG=INFO)"),
    ("provider: efa\n    fabric: efa\n", "output of ucx_info or fi_info"),
    ("#\n# Memory domain: mlx5_0\n#     Component: ib\n", "output of ucx_info or fi_info"),
    ("DEV     PORT    INDEX   GID       IPv4\n", "output of mlxlink, perfquery or show_gids"),
    ("# Port counters: Lid 12 port 1\n", "output of mlxlink, perfquery or show_gids"),
    ("W1102 10:00:00.000000 14 torch/distributed/run.py:779]\n", "log of a job (torchrun or Slurm)"),
    ("[rank0]: Traceback (most recent call last):\n", "log of a job (torchrun or Slurm)"),
    ("index, name, pcie.link.width.current\n0, Example GPU, 16\n", "output of nvidia-smi or nvidia-imex-ctl"),
    ("index;layer;size\n0;fc1;64MB\n", "table of layers"),
    ("n01\nn01\nn02\n", "host file"),
    (
        "+----+\n| HL-SMI Version:   hl-1.16.0  |\n",
        "output of dcgmi, xpu-smi, npu-smi, hl-smi, hy-smi or cnmon",
    ),
    ("        Card0   Card1   CPU Affinity\n", "output of dcgmi, xpu-smi, npu-smi, hl-smi, hy-smi or cnmon"),
    ('{\n  "version": "0.0.4"\n}{\n  "id": "1"\n}\n', "Chakra trace in JSON"),
    ("write BW: 10984.5MB/s\n", "output of gdrcopy or gdscheck"),
    ("Collective:             Allreduce\n", "log of ucc_perftest or of a benchmark in PyTorch"),
    (
        "size(MB)   tavg(usec)    tmin(usec)\n0.10 227.7 196.8\n",
        "log of ucc_perftest or of a benchmark in PyTorch",
    ),
    ("=== Bandwidth min/max between two GPUs ===\n", "output of `rocm-smi --showtopo`"),
    ("==== Link accessibility between two GPUs ====\n", "output of `rocm-smi --showtopo`"),
    ("     GPU0   GPU1\nGPU0 N/A    50000-50000\nGPU1 50000-50000 N/A\n", "output of `rocm-smi --showtopo`"),
    ("| AMD-SMI 26.0.0+37d158ab      amdgpu version: 6.14.14 |\n", "output of amd-smi"),
    ("GPU0 <-> GPU1:\n  * Perf Rank: 0\n", "output of bandwidthTest, deviceQuery or another sample of CUDA"),
    (
        "# gpu    pwr  gtemp\n# Idx      W      C\n    0     70     30\n",
        "output of nvidia-smi or nvidia-imex-ctl",
    ),
    ("Failed to run topology matrix\n", "output of nvidia-smi or nvidia-imex-ctl"),
    ("NVIDIA-SMI has failed because it couldn't communicate\n", "output of nvidia-smi or nvidia-imex-ctl"),
    ("GPU 0 is connected to GPU 1 via PIX\n", "output of nvidia-smi or nvidia-imex-ctl"),
    (
        "0000:17:00.0 mlx5_0 (MT4129 - X) ConnectX-7 fw 28.39 port 1 (ACTIVE) ==> ib0 (Up)\n",
        "output of ibstat, ibv_devinfo, iblinkinfo or ibdiagnet",
    ),
    ('Errors for 0x1 "leaf1"\n', "output of ibstat, ibv_devinfo, iblinkinfo or ibdiagnet"),
    ("             JOBID PARTITION     NAME\n", "output of sinfo, squeue or scontrol"),
    ("NAME    STATUS   ROLES    AGE\nn1  Ready  <none>  1d\n", "object of Kubernetes"),
    (
        "[tuning] SMs 24, NVL chunk 4: 120.00 GB/s\n",
        "log of PARAM or of the benchmarks of gloo, HCL or DeepEP",
    ),
    ("Pong from n2.(none) (Lid 12)\n", "log of iperf, netperf, qperf, sockperf, ucx_perftest or ping"),
    ("Machine (P#0 total=1056G)\n", "topology of hwloc (lstopo)"),
    (
        "---\nname: x\n---\n\n# Racks\n\nSee the state of nvidia-fabricmanager.\n\n## Steps\n",
        "page in Markdown",
    ),
    ("Mar 04 10:11:12 n1 nv-fabricmanager[12]: Connected\n", "log of the kernel or of a service"),
    ("# OMB-Py MPI Allgather Latency Test\n# Size (B)  Latency (us)\n", "log of OSU micro-benchmarks"),
    (
        "**Weight Between Two GPUs**\n\n| | GPU0 |\n|:--|:--:|\n| GPU0 | 0 |\n",
        "output of `rocm-smi --showtopo`",
    ),
    (
        "modID\tCPU Affinity\tNUMA Affinity\n0\t0-39\t0\n",
        "output of dcgmi, xpu-smi, npu-smi, hl-smi, hy-smi or cnmon",
    ),
    (
        "PING b (10.0.0.2) 56(84) bytes of data.\n",
        "log of iperf, netperf, qperf, sockperf, ucx_perftest or ping",
    ),
    (
        "traceroute to b (10.0.0.2), 30 hops max\n",
        "log of iperf, netperf, qperf, sockperf, ucx_perftest or ping",
    ),
    ("      GPU 0/0|GPU 0/1|CPU Affinity\n", "output of dcgmi, xpu-smi, npu-smi, hl-smi, hy-smi or cnmon"),
    ("| Diagnostic    | Result   |\n", "output of dcgmi, xpu-smi, npu-smi, hl-smi, hy-smi or cnmon"),
    (
        "[BENCHMARK]     NW Bandwidth   : 258.2 GB/s\n",
        "log of PARAM or of the benchmarks of gloo, HCL or DeepEP",
    ),
    ("size,time_us\n1024,nan\n", "table of measured times"),
    ("size_bytes;latency_ms\n1024;0,25\n", "table of measured times"),
    ("op\tsize\ttime(us)\nx\t1024\t30\n", "table of a benchmark, whose first column is not the size"),
    ("nodes;size_mb;time_us\n2;1;30,5\n", "table of a benchmark, whose first column is not the size"),
    ("data_size(Bytes):   |   aveg_time(us):   |\n8192 | 57.4 |\n", "table of measured times"),
    ("graph [\n  node [ id 0 ]\n]\n", "graph (GraphML, GML or DOT)"),
    ("-+-[0000:e0]-+-00.0  Example bridge\n", "output of lspci"),
    ("e1:00.0 3D controller: Example Corporation GPU (rev a1)\n", "output of lspci"),
    ('0000:e1:00.0 "3D controller" "Example" "GPU"\n', "output of lspci"),
    ("e1:00.0 0302: 10de:0000 (rev a1)\n", "output of lspci"),
    ("mlx5_0 port 1 ==> ib0 (Up)\n", "output of ibstat, ibv_devinfo, iblinkinfo or ibdiagnet"),
    (
        "    device          \t   node GUID\n    ------          \t----------------\n",
        "output of ibstat, ibv_devinfo, iblinkinfo or ibdiagnet",
    ),
    (
        "# sizes of blocks: 4, 8\nswitches:\n  sw1:\n    switches:\n    - leaf1\n",
        "model of topograph",
    ),
    ("DEVICE_TYPE      MST                        PCI       RDMA\n", "output of `mst status`"),
    (
        "Fabric Manager Log initializing at: 1/2/2026 03:04:05.006\n",
        "log of the kernel or of a service",
    ),
    ("hca_id:\tmlx5_0\n", "output of ibstat, ibv_devinfo, iblinkinfo or ibdiagnet"),
    ("1: lo: <LOOPBACK,UP> mtu 65536 qdisc noqueue\n", "output of ethtool, ip or ifconfig"),
    ("GPU[0]\t\t: (Topology) Numa Node: 0\n", "output of `rocm-smi --showtopo`"),
    ("Unicast lids [0x0-0x40] of switch Lid 1\n", "output of ibhosts, ibswitches or ibroute"),
    (
        "SW     2  1 0x0002 4x NDR - CA     1  1 0x0001 ( 'leaf' - 'node01' )\n",
        "output of ibnetdiscover",
    ),
    ("Connectivity Table Legend:\nI - Invalid\n", "output of nvidia-smi or nvidia-imex-ctl"),
    ('<?xml version="1.0" ?>\n<nvidia_smi_log>\n', "output of nvidia-smi or nvidia-imex-ctl"),
    ("===\n= Link Type between two DCUs =\n", "output of dcgmi, xpu-smi, npu-smi, hl-smi, hy-smi or cnmon"),
    (
        "device,(Topology) Numa Node,(Topology) Numa Affinity\ncard0,0,0\ncard1,0,0\n",
        "output of `rocm-smi --showtopo`",
    ),
    ("##IPMv2.0.6#####\n#\n# command   : ./a.out\n", "profile of mpiP or IPM"),
    ("==============NVSMI LOG==============\n", "output of nvidia-smi or nvidia-imex-ctl"),
    ("LINK METRIC TABLE:\n  bdf  bit_rate\n", "output of `amd-smi topology` or `amd-smi xgmi`"),
    ("       GPU0   GPU1\nGPU0   0      XGMI\nGPU1   XGMI   0\n", "output of `rocm-smi --showtopo`"),
    ("0000:18:00.0 3D controller: Example\n", "output of lspci"),
    ("\tLnkSta:\tSpeed 32GT/s, Width x16\n", "output of lspci"),
    (
        "Client connecting to h2, TCP port 5001\n",
        "log of iperf, netperf, qperf, sockperf, ucx_perftest or ping",
    ),
    ("   #bytes #repetitions  t[usec]  Mbytes/sec\n", "log of Intel MPI Benchmarks or of oneCCL's benchmark"),
    ("10.0.0.1:8\n10.0.0.2:8\n", "host file"),
    ("# rack 1\nn1:8  # rail 0\nn2:8\n", "host file"),
    ("n1:8,n2:8\n", "host file"),
    ("gpu[001-004,7]\n", "host file"),
    ("us  a  b  c\na  0 10 20\nb 10  0 20\nc 20 20  0\n", "text with a matrix of numbers"),
    (
        "banner\n" * 12 + "size   latency(us)   BW(GB/s)\n1   16.4   0.1\n2   16.5   0.2\n4   16.6   0.3\n",
        "table of measured times",
    ),
    (
        "| us | a | b |\n|--|--|--|\n| a | 0 | 10 |\n| b | 10 | 0 |\n| c | 20 | 20 |\n",
        "text with a matrix of numbers",
    ),
    ("export NCCL_ALGO=Ring\nNCCL_DEBUG=INFO\n", "list of settings of NCCL (environment or nccl.conf)"),
    ("n1:7:7 [0] MSCCLPP INFO Connected\n", "debug log of NCCL (NCCL_DEBUG=INFO)"),
]


def test_other_forms_of_an_output_are_recognised():
    """Outputs of other versions and sub-commands of a tool are recognised."""
    assert [(text, kinds_of_text(text)) for text, _ in OTHER_FORMS] == [
        (text, [kind]) for text, kind in OTHER_FORMS
    ]


@pytest.mark.parametrize("pasted", [
    lambda text: "".join(f"> {line}\n" for line in text.splitlines()),
    lambda text: "".join(f"    {line}\n" for line in text.splitlines()),
    lambda text: text.replace("\n", "\r\n"),
], ids=["quoted", "indented", "lines of Windows"])  # fmt: skip
def test_a_pasted_file_is_recognised_as_the_file(tmp_path, pasted):
    """A pasted file is recognised despite quote marks, indentation and carriage returns."""
    samples = {kind: pasted(text) for kind, text in ALL.items()}
    assert first_kinds(samples, tmp_path / "file") == {kind: kind for kind in ALL}


def test_advice_holds_paths_as_a_shell_takes_them():
    """Paths in advice are quoted for the shell."""
    assert advice_on("sketch", "a b.toml") == "`taccl show 'a b.toml'` reads it"


def test_unknown_text_is_quoted(tmp_path):
    """Unknown text is quoted by its beginning, rather than reported as faulty TOML."""
    path = tmp_path / "notes.txt"
    path.write_text("dear reader,\nthis is a letter\n")
    with pytest.raises(InputError, match="found text of unknown kind, which begins 'dear reader,'"):
        taccl.topologies.load(path)


@pytest.mark.parametrize("begins", ["[    0.000] Linux version 6", "[tuning] 24 SMs: 58.1 GB/s"])
def test_brackets_before_other_words_are_no_toml(tmp_path, begins):
    """A line with brackets and more words is not a TOML table head."""
    path = tmp_path / "log.txt"
    path.write_text(begins + "\n")
    with pytest.raises(InputError, match="found text of unknown kind, which begins "):
        taccl.topologies.load(path)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (gzip.compress(b"a,b\n", mtime=0), "an archive"),
        (b"%PDF-1.7\n", "a PDF"),
        (b"\x89PNG\r\n", "a picture"),
    ],
)
def test_files_that_are_no_text_are_named(tmp_path, content, kind):
    """Binary files are named by their first bytes, with advice."""
    path = tmp_path / "file.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"found {kind}; expected UTF-8 text; (unpack it|taccl does not)"):
        taccl.topologies.load(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece",
    ["\n", ",", "1,", " ", "GPU0 ", "GPU0 X ", "a;1", "\t", "<!-- ", "# \n", "size time ", "n1:8,", "n[1],"],
)
def test_hostile_texts_are_recognised_in_linear_time(piece):
    """Hostile text of four times the size takes far less than sixteen times the CPU."""
    short, long = (piece * (size // len(piece)) for size in (1 << 13, 1 << 15))
    kinds_of_text(short)
    assert cpu_s(lambda: kinds_of_text(long)) < 10 * cpu_s(lambda: kinds_of_text(short)) + 0.05


@pytest.mark.parametrize("names", ["node012\n" * 14, "a12" * 2700, "a:1#" * 1000 + "\n"])
def test_names_above_other_text_are_no_host_file_in_linear_time(names):
    """Names one per line, one long name, and names in a comment are judged quickly if other text follows."""
    text = f"{names}!\n(end)\n"
    assert cpu_s(lambda: kinds_of_text(text)) < 0.3
    assert kinds_of_text(text) == []


@pytest.mark.slow
@pytest.mark.parametrize("text", ["size_" * 3000, "a b\nc d\n" + "1 ," * 8000 + "!"])
def test_words_and_cells_that_no_line_ends_are_judged_quickly(text):
    """A header of one long word, and a single row of many numbers, are no tables, judged in linear time."""
    assert cpu_s(lambda: kinds_of_text(f"{text}\n(end)\n")) < 0.3
    assert kinds_of_text(f"{text}\n(end)\n") == []


@pytest.mark.parametrize(
    ("header", "is_table"),
    [
        ("size alg_bw", True),
        ("size_b time", True),
        ("size_x_bw", True),
        ("bytes algbw", True),
        ("size_time", False),
        ("size_bw", False),
        ("size bwx", False),
    ],
)
def test_headers_of_times_name_a_size_and_a_time(header, is_table):
    """A table of times begins with a size, and has a column of times or bandwidths after it."""
    assert (kinds_of_text(f"{header} (x)\n")[:1] == ["table of measured times"]) is is_table
