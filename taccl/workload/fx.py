"""Steps from PyTorch graphs: `torch.export` programs and `torch.fx` graphs with functional collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from taccl._internal.arguments import Count, checked_as
from taccl._internal.names import did_you_mean
from taccl.errors import LossyConversionWarning, WorkloadError, warn
from taccl.workload.fx_graph import TRACE, Graph, has_effects
from taccl.workload.fx_operations import READERS
from taccl.workload.fx_reading import NodeReader
from taccl.workload.fx_values import Positions, Unread, Whole
from taccl.workload.workload import Workload


@checked_as(WorkloadError)
def from_fx(
    program: Any,
    num_ranks: Count,
    *,
    layouts: Mapping[str, str] | None = None,
    mesh: Sequence[tuple[str, Count]] = (),
    groups: Mapping[str, str] | None = None,
    name: str = "step",
) -> Workload:
    """Convert the PyTorch graph of one rank, with its functional collectives, into a step.

    Parameters
    ----------
    program : torch.export.ExportedProgram, torch.fx.GraphModule or torch.fx.Graph
        Graph of aten operations with shapes, as traced by torch.export and make_fx. Parameters and buffers
        become inputs; buffers and inputs that the graph mutates become state.
    num_ranks : int
        Number of ranks that run the graph.
    layouts : mapping of str to str, optional
        {input: layout}, by the name of its placeholder, parameter or buffer. Other inputs are replicated.
    mesh : sequence of (str, int), optional
        Names and sizes of the dimensions of the ranks, for graphs with several process groups.
    groups : mapping of str to str, optional
        {process group (``ProcessGroup.group_name`` in the graph): its dimension, or several as ``"dp+tp"``}.
    name : str
        Name of the step.

    Returns
    -------
    Workload
        The step; its tensors have the names of the graph's nodes.

    Raises
    ------
    WorkloadError
        If an operation is unknown, shapes are dynamic, or the layouts lead to other local shapes than the
        graph states.
    """
    nodes = list(getattr(getattr(program, "graph", program), "nodes", ()))
    if not nodes:
        said = f"found a {type(program).__name__}; expected a graph: {TRACE}"
        raise WorkloadError(said, where="program")
    signature = getattr(program, "graph_signature", None)
    known = {
        fqn: placeholder
        for kind in ("inputs_to_parameters", "inputs_to_buffers")
        for placeholder, fqn in getattr(signature, kind, {}).items()
    }
    asked = _by_placeholder(layouts or {}, nodes, known)
    grid = Workload(name, num_ranks, mesh=tuple(mesh)).grid
    graph = NodeReader(grid, groups or {}, READERS)
    try:
        returned = _read(graph, nodes, asked, signature, known)
    except WorkloadError as error:
        if not graph.has_choice:
            raise
        graph = NodeReader(grid, groups or {}, READERS, keeps_lengths=True)
        try:
            returned = _read(graph, nodes, asked, signature, known)
        except WorkloadError:
            raise error from None
    state = tuple(graph.state.items())
    operations, inputs = tuple(graph.operations), tuple(graph.inputs)
    return Workload(name, num_ranks, inputs, operations, returned, state, mesh=tuple(mesh))


def _read(
    graph: NodeReader,
    nodes: Sequence[Any],
    asked: Mapping[str, str],
    signature: Any,
    known: Mapping[str, str],
) -> tuple[str, ...]:
    """Add all nodes to the step; return the names of the tensors that the graph returns."""
    returned: tuple[str, ...] = ()
    for node in nodes:
        if node.op in ("placeholder", "get_attr"):
            if node.users or node.name in asked:
                if node.op == "get_attr" and "val" not in node.meta and "tensor_meta" not in node.meta:
                    graph.node = node
                    said = "is a graph of its own (a region of autocast or a checkpoint) or has no shape"
                    raise graph.refused(f"{said}; call run_decompositions(), which joins such graphs")
                is_number = isinstance(node.meta.get("val"), (int, float))
                layout = asked.get(node.name, "replicated")
                graph.values[node] = node.meta["val"] if is_number else graph.add_input(node, layout)
        elif node.op == "output":
            returned = _outputs(graph, node, signature, known)
        elif node.users or has_effects(node):
            graph.values[node] = graph.read(node)
    return returned


def _by_placeholder(
    layouts: Mapping[str, str], nodes: Sequence[Any], known: Mapping[str, str]
) -> dict[str, str]:
    """{name of a placeholder node: layout}, from layouts by input; `WorkloadError` for an unknown input."""
    given = [node.name for node in nodes if node.op in ("placeholder", "get_attr")]
    names = {**dict(zip(given, given, strict=True)), **known}
    for each in layouts:
        if each not in names:
            said = f"is not an input of the graph{did_you_mean(each, list(names))}"
            raise WorkloadError(f"{said}; expected some of {', '.join(names)}", where=f"layouts: {each}")
    return {names[each]: layout for each, layout in layouts.items()}


def _outputs(graph: Graph, node: Any, signature: Any, known: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the tensors that the graph returns; tensors that replace inputs are added to the state."""
    graph.node = node
    flat = node.args[0] if isinstance(node.args[0], (list, tuple)) else [node.args[0]]
    replaces = dict(getattr(signature, "user_inputs_to_mutate", {}))
    buffers = getattr(signature, "buffers_to_mutate", {}) | getattr(signature, "parameters_to_mutate", {})
    replaces |= {name: known[fqn] for name, fqn in buffers.items()}
    returned = []
    for each in flat:
        value = graph.value(each)
        if value is None:
            continue
        if each.name in replaces:
            graph.state[replaces[each.name]] = _name_of(graph, value)
            continue
        if isinstance(value, (Whole, Positions)):
            said = f"{each.name} has whole numbers; the step returns them in float32, exact up to 2**24"
            warn(said, LossyConversionWarning)
            value = graph.cast(value, "float32")
        returned.append(_name_of(graph, value))
    return tuple(dict.fromkeys(returned))


def _name_of(graph: Graph, value: Any) -> str:
    """Name of the step's tensor for an output of the graph; `WorkloadError` if no tensor can represent it."""
    try:
        return graph.name_of(value)
    except Unread as error:
        raise WorkloadError(error.message, where=error.where) from None
