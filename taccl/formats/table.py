"""Table of all formats: kind of object, marks for detection, reader and writer of each.

Functions are named as ``"module:function"``, and imported at their first call. A reader is called as
``load(path, **options)`` and returns the object in the file. A writer is called as ``dump(thing, **options)``
and returns the content of the file. A writer of several files is called as ``dump(thing, path, **options)``
and returns {path: content}. Keyword-only parameters are the options of the format. A writer warns of losses.
The kind of a format's object is a key of `KINDS`; `CONVERSIONS` lists functions from one kind to another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from taccl._internal.file_kinds import pattern_of
from taccl._internal.text_kinds import BEFORE_ELEMENT, SHOW


@dataclass(frozen=True, slots=True)
class FileFormat:
    """A file format: kind of the object in a file, marks for detection, reader and writer.

    - `holds`: The kind of the object in a file.
    - `extensions`: Extensions of the format's files. If formats share an extension, the first one that can
      hold the object is the default for writing.
    - `load`, `dump`: ``"module:function"``; empty if the format is not read, or not written.
    - `fields` (mapping of str to value): Top-level fields of a JSON file that identify the format; None for
      any value.
    - `begins`: For a format that is not JSON, a regular expression that is found at the top of its files.
    - `family`: Name of another format that users may give for this one, if the object is of this format's
      kind. Example: for a workload, ``torch`` means ``torch-step``.
    - `loses`: Information that no file of this format holds; `convert` warns of the loss. Empty if the
      writer itself warns.
    - `kind`: Name of these files in messages, e.g. ``table of transfers``; by default ``file of format
      NAME``. Formats whose files cannot be told apart share a kind.
    - `advice`: Next step for such a file that is given where another kind is expected; ``{file}`` stands for
      its path. The default follows from `holds`, `load` and `dump`.
    - `any_call`: True if a file of a program serves data of every length, in place and out of place.
    """

    name: str
    holds: str
    description: str
    extensions: tuple[str, ...] = ()
    load: str = ""
    dump: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    begins: str = ""
    loses: str = ""
    any_call: bool = False
    family: str = ""
    kind: str = ""
    advice: str = ""

    @property
    def kind_of_file(self) -> str:
        """Name of a file of this format in messages."""
        return self.kind or f"file of format {self.name}"

    @property
    def advice_on_file(self) -> str:
        """Advice on a file of this format: what to do with it, with ``{file}`` in place of its path."""
        if self.advice:
            return self.advice
        if not self.load:
            return f"the format is write-only; give the {self.holds} that it was made of"
        return SHOW if self.holds in ("program", "topology") else "`taccl convert {file} OUT` reads it"


_VIEW = "the topology's costs, the collective and the sketch; it cannot be read back"

#: Formats, in the order in which loaders try them. One with `fields` or `begins` is also a kind of file.
FORMATS: list[FileFormat] = [
    FileFormat(
        "taccl-schedule", "schedule", "a schedule in taccl's own format", (".json",),
        load="taccl.formats.native:load",
        dump="taccl.formats.native:dump_text",
        kind="schedule",
        fields={"format": "taccl-schedule"},
        advice=SHOW,
    ),
    FileFormat(
        "upstream-algorithm", "schedule", "an algorithm of the published TACCL tool",
        load="taccl.formats.published.algorithm:load_upstream_algorithm",
        dump="taccl.formats.published.dump:dump_upstream_algorithm",
        kind="algorithm of the published TACCL tool",
        fields={"sccl_type": "algorithm"},
        advice="`taccl verify {file}` reads it",
    ),
    FileFormat(
        "perfetto", "schedule", "a timeline for Perfetto or Chrome's tracing page",
        (".perfetto.json", ".trace.json", ".trace"),
        dump="taccl.formats.perfetto:trace_text",
        kind="timeline",
        fields={"traceEvents": None},
        advice="the format is write-only; ui.perfetto.dev shows a timeline",
        loses=_VIEW,
    ),
    FileFormat(
        "csv", "schedule", "a table of transfers", (".csv",),
        dump="taccl.schedule.transfers:csv_text",
        kind="table of transfers",
        begins=r"\Atransfer,chunk,",
        loses=_VIEW,
    ),
    FileFormat(
        "parquet", "schedule", "a table of transfers; needs pyarrow", (".parquet",),
        dump="taccl.schedule.transfers:parquet_bytes",
        kind="table in Parquet",
        loses=_VIEW,
    ),
    FileFormat(
        "switch-job", "schedule", "settings of a switch job (in-network sums)", (".job.json",),
        dump="taccl.aggregation.switch_jobs:dump_switch_job",
        kind="switch job",
        fields={"format": "taccl-switch-job"},
        loses="the schedule's sends and times; it cannot be read back",
    ),
    FileFormat(
        "chakra", "schedule", "execution traces for ASTRA-sim, one per rank", (".et",),
        dump="taccl.formats.astra.chakra:dump_chakra",
        kind="Chakra trace",
    ),
    FileFormat(
        "msccl-xml", "program", "an algorithm for MSCCL, or for TACCL's runtime", (".xml",),
        load="taccl.formats.msccl.xml:load_msccl_xml",
        dump="taccl.formats.msccl.xml:dump_msccl_xml",
        kind="program",
        begins=rf"\A{BEFORE_ELEMENT}<algo\b|^[ \t]*<algo\s+name=",
    ),
    FileFormat(
        "taccl-topology", "topology", "a topology in taccl's own format, link by link", (".toml",),
        load="taccl.topology.files:load_topology",
        dump="taccl.topology.file_writer:dump_topology",
        kind="topology",
        begins=r"^((ranks_per_node|fabric|link)\s*=|\[\[(link|resource)\]\])",
    ),
    FileFormat(
        "taccl-topology-json", "topology", "any topology, as taccl.save writes it", (".json",),
        load="taccl.formats.saved:load_topology",
        dump="taccl.formats.saved:dump_topology",
        kind="saved topology",
        fields={"format": "taccl-topology"},
    ),
    FileFormat(
        "taccl-problem", "problem", "any problem, as taccl.save writes it", (".json",),
        load="taccl.formats.saved:load_problem",
        dump="taccl.formats.saved:dump_problem",
        kind="problem",
        fields={"format": "taccl-problem"},
        advice="taccl.load reads it in Python; commands take a sketch or a topology",
    ),
    FileFormat(
        "taccl-workload", "workload", "a step of operations that compute and communicate",
        load="taccl.workload.files:load_workload",
        kind="workload",
        fields={"num_ranks": None, "operations": None},
        advice="`taccl run {file} --topology NAME` reads it",
        begins=r"^\[\[operations\]\]",
    ),
    FileFormat(
        "mscclpp", "program", "an execution plan for MSCCL++", (".plan.json",),
        dump="taccl.formats.mscclpp.plan:dump_mscclpp_plan",
        kind="plan for MSCCL++",
        fields={"gpus": None, "inplace": None, "protocol": None},
        advice="`taccl verify {file}` runs it; else give the program that it was made of",
        loses="the schedule's times, the topology's costs and the sketch; it cannot be read back",
    ),
    FileFormat(
        "torch", "program", "a Python module that needs only PyTorch", (".py",),
        dump="taccl.formats.torch.module:dump_torch_module",
        kind="module for PyTorch",
        begins=r"\A\"\"\"[^\n]*; for PyTorch\.$",
        advice="the format is write-only; Python imports it",
        loses="the schedule's times, the topology's costs and the sketch; it cannot be read back",
        any_call=True,
    ),
    FileFormat(
        "nccl-topology", "topology", "a server, from NCCL_TOPO_DUMP_FILE of NCCL or RCCL",
        load="taccl.formats.nccl.topology:load_nccl_topology",
        kind="NCCL topology",
        begins=rf"\A{BEFORE_ELEMENT}<(system|cpu|pci)\b|^[ \t]*<system\s+version=",
    ),
    FileFormat(
        "nvidia-smi", "topology", "a server, from nvidia-smi topo -m",
        load="taccl.formats.nccl.nvidia_smi:load_nvidia_smi",
        kind="output of `nvidia-smi topo -m`",
        begins=pattern_of("output of `nvidia-smi topo -m`"),
    ),
    FileFormat(
        "taccl-probe", "topology", "latencies and bandwidths between hosts, from `taccl probe`",
        load="taccl.placement.matrices:load_probe_topology",
        kind="probe",
        fields={"format": "taccl-probe"},
    ),
    FileFormat(
        "pair-matrix", "topology",
        "a matrix of pairs: CSV, p2pBandwidthLatencyTest, nvbandwidth, rocm_bandwidth_test, TransferBench, "
        "mpiGraph, or logs under `# pair A B`",
        load="taccl.placement.matrices:load_probe_topology",
        kind="matrix of pairs",
        fields={"nvbandwidth": None},
        begins="|".join(
            map(
                pattern_of,
                (
                    "matrix of pairs", "matrix of nvbandwidth",
                    "matrix of rocm_bandwidth_test or TransferBench", "output of mpiGraph",
                    "file of logs by pair",
                ),
            )
        ),
    ),
    FileFormat(
        "slurm-topology", "topology", "SLURM's topology.conf or topology.yaml: switches or blocks of hosts",
        load="taccl.placement.slurm:load_slurm_topology",
        kind="topology.conf or topology.yaml of Slurm",
        begins=pattern_of("topology.conf or topology.yaml of Slurm"),
    ),
    FileFormat(
        "ibnetdiscover", "topology", "an InfiniBand fabric, from ibnetdiscover: hosts, switches and links",
        load="taccl.placement.infiniband:load_infiniband_topology",
        kind="output of ibnetdiscover",
        begins=pattern_of("output of ibnetdiscover"),
    ),
    FileFormat(
        "astra-sim-network", "topology", "a network file of ASTRA-sim",
        load="taccl.formats.astra.network:load_astra_network",
        kind="ASTRA-sim network",
        begins=r"^npus_count\s*:",
    ),
    FileFormat(
        "torch-step", "workload", "a step as a Python program that needs only PyTorch", (".py",),
        dump="taccl.workload.torch_program:dump_torch_step",
        kind="module for PyTorch",
        loses="the step's costs and schedule; it cannot be read back",
        family="torch",
    ),
]  # fmt: skip

#: {kind of object: its class}.
KINDS = {
    "schedule": "taccl.schedule.schedule:Schedule",
    "implicit schedule": "taccl.schedule.implicit_schedule:ImplicitSchedule",
    "simulation": "taccl.analysis.simulation.simulation:Simulation",
    "program": "taccl.program.program:Program",
    "topology": "taccl.topology.topology:Topology",
    "workload": "taccl.workload.workload:Workload",
    "problem": "taccl.problem.problem:Problem",
}

#: {(kind, other kind): function that converts an object of the first kind into one of the other}.
CONVERSIONS = {
    ("implicit schedule", "schedule"): "taccl.schedule.implicit_schedule:ImplicitSchedule.expand",
    ("simulation", "schedule"): "taccl.analysis.simulation.simulation:Simulation.as_schedule",
    ("schedule", "program"): "taccl.program.lower:lower",
    ("program", "schedule"): "taccl.program.lift:lift",
}
