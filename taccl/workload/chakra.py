"""Steps from Chakra execution traces: computations with their measured durations, and collectives.

A trace has dependencies, the duration of each computation and the bytes of each collective, but no values and
no layouts. So each computation becomes a kernel of unknown function (`compute`) whose result is one element
per rank. Each collective reads data of its own size, available once all its dependencies have ended.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from taccl._internal.arguments import Count, checked_as
from taccl._internal.names import first_of
from taccl._internal.units import format_count, format_us
from taccl.errors import LossyConversionWarning, WorkloadError, warn
from taccl.formats.astra.chakra_nodes import COLLECTIVE_TYPES, TraceNode, load_trace_nodes
from taccl.workload.mesh import Mesh
from taccl.workload.operations import DTYPE_BYTES, Operation
from taccl.workload.workload import Workload

#: {collective in a trace: kind of operation}.
_KINDS = {
    "ALL_REDUCE": "allreduce", "ALL_GATHER": "allgather", "ALL_TO_ALL": "alltoall",
    "REDUCE_SCATTER": "reduce_scatter", "REDUCE_SCATTER_BLOCK": "reduce_scatter",
}  # fmt: skip
_WORK = ("COMP_NODE", "MEM_LOAD_NODE", "MEM_STORE_NODE")


@checked_as(WorkloadError)
def from_chakra(
    path: str | os.PathLike[str],
    num_ranks: Count,
    *,
    mesh: Sequence[tuple[str, Count]] = (),
    groups: Mapping[str, str] | None = None,
    name: str = "trace",
) -> Workload:
    """Convert the Chakra execution trace of one rank, which stands for all ranks, into a step.

    Computations have the durations of the trace as costs, and collectives its sizes and dependencies. A
    warning lists what is lost: host operations (only their dependencies are kept), durations of collectives,
    and unsupported collectives.

    Parameters
    ----------
    path : path
        The trace: protobuf (``.et``), output of chakra_jsonizer, or the JSON of Chakra's feeder.
    num_ranks : int
        Number of ranks of the job.
    mesh : sequence of (str, int), optional
        Names and sizes of the dimensions of the ranks, for traces with several process groups.
    groups : mapping of str to str, optional
        {process group of the trace (``pg_name``): its dimension, or several as ``"dp+tp"``}.
    name : str
        Name of the step.

    Returns
    -------
    Workload
        The step. Operations have the names and ids of their nodes.

    Raises
    ------
    FormatError
        If the file is not a Chakra trace.
    WorkloadError
        If dependencies form a cycle, several nodes have one id, a collective has no size, its size is not
        divisible among the ranks, it sums one-byte elements, or the trace has sends and receives between two
        ranks.
    """
    grid = Workload(name, num_ranks, mesh=tuple(mesh)).grid
    trace = _Trace(load_trace_nodes(path), grid, groups or {}, os.fspath(path))
    for node in trace.ordered():
        trace.add(node)
    if not trace.operations:
        said = "found no computation on a device and no collective; convert a trace of host and device"
        raise WorkloadError(said, where=os.fspath(path))
    trace.warn_of_losses()
    return Workload(name, num_ranks, operations=tuple(trace.operations), mesh=tuple(mesh))


class _Trace:
    """Converter of a trace, node by node, into the operations of a step."""

    def __init__(self, nodes: Sequence[TraceNode], mesh: Mesh, groups: Mapping[str, str], where: str) -> None:
        self.node = {each.id: each for each in nodes}
        twice = [number for number, times in Counter(each.id for each in nodes).items() if times > 1]
        if twice:
            said = f"found several nodes with id {first_of(twice, 3)}, expected one; convert the trace again"
            raise WorkloadError(said, where=where)
        self.mesh, self.groups, self.where = mesh, groups, where
        self.num_ranks = mesh.size(mesh.names)
        self.operations: list[Operation] = []
        #: {node: operations that must end before a dependent node starts}.
        self.ends: dict[int, tuple[str, ...]] = {}
        self.seen: list[str] = []
        self.host: list[TraceNode] = []
        self.timed: list[TraceNode] = []
        self.unknown: list[str] = []
        self.waits = {each.id: self._waits(each) for each in nodes}
        self.absent = {source for each in nodes for source in each.after if source not in self.node}

    def _waits(self, node: TraceNode) -> list[int]:
        """Ids of the nodes on which a node depends.

        Control dependencies from and to host operations are left out: they show which operation calls
        another, and not which waits for another's end.
        """
        control = (i for i in node.control if i in self.node and not _is_host(self.node[i]))
        return [*(i for i in node.after if i in self.node), *(control if not _is_host(node) else ())]

    def ordered(self) -> list[TraceNode]:
        """Nodes in topological order. Raises `WorkloadError` for a cycle."""
        import networkx as nx

        graph = nx.DiGraph()
        graph.add_nodes_from(self.node)
        graph.add_edges_from((source, number) for number, some in self.waits.items() for source in some)
        try:
            return [self.node[i] for i in nx.lexicographical_topological_sort(graph)]
        except nx.NetworkXUnfeasible:
            cycle = [source for source, _ in nx.find_cycle(graph)]
            said = f"nodes {first_of(cycle, 5)} wait for one another; record the trace again"
            raise WorkloadError(said, where=self.where) from None

    def add(self, node: TraceNode) -> None:
        """Add the operations of a node; a node without operations passes its dependencies on."""
        sources = dict.fromkeys(name for i in self.waits[node.id] for name in self.ends[i])
        collective = self._collective(node)
        if node.kind in ("COMM_SEND_NODE", "COMM_RECV_NODE") and not _is_host(node):
            said = "is a send or a receive, but a step has the same operations on all ranks"
            raise self._refused(node, f"{said}; leave pipeline stages out of the trace")
        if node.kind == "COMM_COLL_NODE" and not collective and not _is_host(node):
            raise self._refused(node, "is a collective without comm_type; convert it by chakra_converter")
        if node.kind == "COMM_COLL_NODE" and collective in _KINDS:
            self.ends[node.id] = (self._add_collective(node, _KINDS[collective], [*sources]),)
        elif node.kind in _WORK and not _is_host(node):
            made = self._add(node, "", [*sources], (self.num_ranks,), "sliced(0)", node.duration_us)
            self.ends[node.id] = (made,)
        else:
            self.ends[node.id] = tuple(sources)
            if node.kind == "COMM_COLL_NODE" and not _is_host(node):
                self.unknown.append(collective)
            elif node.duration_us:
                self.host.append(node)

    def _collective(self, node: TraceNode) -> str:
        number = node.attributes.get("comm_type")
        known = isinstance(number, int) and 0 <= number < len(COLLECTIVE_TYPES)
        return COLLECTIVE_TYPES[number] if known and number is not None else ""

    def _add_collective(self, node: TraceNode, kind: str, sources: Sequence[str]) -> str:
        """Add a collective and the data that it reads; return its name."""
        num_bytes = node.attributes.get("comm_size", 0)
        if not isinstance(num_bytes, int) or num_bytes < 1:
            raise self._refused(
                node, f"found comm_size {num_bytes!r}; expected bytes of each rank, 1 or more"
            )
        group = self._group(node)
        over = self.mesh.dims_of(group, where=f"groups: {group}")
        ranks = self.mesh.size(over)
        # Each rank's part must be a whole number of elements, whose type the trace does not state.
        # So take the largest type that divides the part; bool has one byte.
        whole = ranks if kind in ("reduce_scatter", "alltoall") else 1
        moves = kind in ("allgather", "alltoall")
        types = ("float32", "float16", "bool") if moves else ("float32", "float16")
        dtype = next((name for name in types if not num_bytes % (whole * DTYPE_BYTES[name])), "")
        if not dtype and num_bytes % whole:
            said = f"found comm_size {num_bytes}, which does not divide into {whole} parts"
            raise self._refused(node, f"{said}; check the number of ranks")
        if not dtype:
            said = f"found comm_size {num_bytes}: sums of one-byte elements are not supported"
            raise self._refused(node, f"{said}; leave this collective out of the trace")
        count = num_bytes // DTYPE_BYTES[dtype]
        # Groups have separate data, as slices along axis 0.
        outside = [dim for dim in self.mesh.names if dim not in over]
        first = (self.mesh.size(outside),) if outside else ()
        apart = f"sliced(0) over {'+'.join(outside)}, " if outside else ""
        of, axis = (f" over {'+'.join(over)}" if group else ""), len(first)
        shape, layout = {
            "allgather": ((count * ranks,), f"sliced({axis})"),
            "alltoall": ((ranks, count), f"sliced({axis})"),
        }.get(kind, ((count,), "partial"))
        data = self._add(node, "data", sources, (*first, *shape), f"{apart}{layout}{of}", 0.0, dtype)
        to = {"reduce_scatter": axis, "alltoall": axis + 1}.get(kind)
        self.operations.append(Operation(_name(node, ""), kind, (data,), axis=to, group=group))
        if node.duration_us:
            self.timed.append(node)
        return self.operations[-1].name

    def _group(self, node: TraceNode) -> str:
        """Name of the step's group (mesh dimensions) for a collective's process group in the trace."""
        name = str(node.attributes.get("pg_name", ""))
        self.seen.append(name)
        if self.groups and name not in self.groups:
            known = ", ".join(self.groups)
            raise self._refused(
                node, f"is over process group {name!r}; name it in groups=, which has {known}"
            )
        if not self.groups and name != self.seen[0]:
            said = f"is over process group {name!r}, and others over {self.seen[0]!r}"
            raise self._refused(node, f"{said}; give mesh= and groups={{name: dimension}}")
        return str(self.groups.get(name, ""))

    def _add(
        self,
        node: TraceNode,
        role: str,
        sources: Sequence[str],
        shape: tuple[int, ...],
        layout: str,
        cost_us: float,
        dtype: str = "float32",
    ) -> str:
        name = _name(node, role)
        self.operations.append(
            Operation(
                name, "compute", tuple(sources), shape=shape, dtype=dtype, layout=layout, cost_us=cost_us
            )
        )
        return name

    def _refused(self, node: TraceNode, said: str) -> WorkloadError:
        return WorkloadError(said, where=f"{self.where}: node {node.id}, {node.name[:60]}")

    def warn_of_losses(self) -> None:
        """Warn of the parts of the trace that are not in the step."""
        lost = ["ranks that differ from this one"]
        if self.host:
            us = sum(each.duration_us for each in self.host)
            lost.append(f"times of {format_count(len(self.host), 'host operation')} ({format_us(us)})")
        if self.timed:
            us = sum(each.duration_us for each in self.timed)
            lost.append(f"measured times of {format_count(len(self.timed), 'collective')} ({format_us(us)})")
        if self.unknown:
            told = (f"{count} {name}" for name, count in Counter(self.unknown).items())
            lost.append(f"collectives of other kinds ({', '.join(told)})")
        if self.absent:
            ids = first_of(sorted(self.absent), 3)
            lost.append(f"dependencies on nodes that the trace does not have ({ids})")
        warn(f"a step from a Chakra trace cannot hold {'; '.join(lost)}", LossyConversionWarning)


def _is_host(node: TraceNode) -> bool:
    """True if a node ran on the host: metadata, or an operation that launches others."""
    return bool(node.attributes.get("is_cpu_op", False)) or node.kind in ("METADATA_NODE", "INVALID_NODE")


def _name(node: TraceNode, role: str) -> str:
    """Name of a node's operation: letters and digits of its name, then its id."""
    words = re.sub(r"\W+", "_", node.name, flags=re.ASCII).strip("_")[:40] or "node"
    words = f"n_{words}" if words[0].isdigit() else words
    return "_".join(filter(None, (words, role, str(node.id))))
