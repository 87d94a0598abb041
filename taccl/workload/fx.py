"""Steps from PyTorch graphs: `torch.export` programs and `torch.fx` graphs with functional collectives.

A node whose operator has a converter is converted by it. Any other node becomes an `aten` operation, a call
of the operator on local tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from taccl._internal.arguments import Count, checked_as
from taccl._internal.names import did_you_mean
from taccl.errors import LossyConversionWarning, WorkloadError, warn
from taccl.workload.fx_calls import called
from taccl.workload.fx_graph import FUNCTIONAL, TRACE, Graph, has_effects
from taccl.workload.fx_operations import READERS
from taccl.workload.fx_values import (
    Deferred,
    Named,
    Own,
    Positions,
    Stacked,
    Unread,
    View,
    Whole,
    arguments_of,
    described,
)
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


class NodeReader(Graph):
    """A step under construction, to which the nodes of a graph are added in order."""

    def read(self, node: Any) -> Any:
        """Convert a node that calls an operation, and return its value.

        An operation without a converter becomes an `aten` operation, which calls PyTorch on local tensors; so
        does a node whose arguments the converter does not support.
        """
        self.node = node
        first = len(self.operations)
        if getattr(node.target, "__name__", "") == "getitem":
            source, place = node.args
            return self._named(self._read(source, lambda: self._item(source, place), place), first)
        schema = getattr(node.target, "_schema", None)
        if node.op != "call_function" or schema is None:
            raise self.refused(f"found {node.op} {self._what()}; {TRACE}, which yield aten operations")
        name = str(node.target).rpartition(".")[0].replace("_functional_autograd", "_functional")
        reader = self.readers.get(name)
        if reader is None and name.endswith("_") and self._is_last_reader(node):
            reader = self.readers.get(name.removesuffix("_"))

        def made() -> Any:
            if reader is None:
                advice = "remove it, or decompose it with run_decompositions()"
                if getattr(schema, "is_mutable", False):
                    advice = FUNCTIONAL
                raise self.unread(f"found {self._what()}, which is not supported; {advice}")
            return reader(self, {name: self.value(each) for name, each in arguments_of(node).items()})

        return self._named(self._read(node, made), first)

    def _read(self, node: Any, make: Callable[[], Any], item: int | None = None) -> Any:
        """Value that `make` returns; if it raises `Unread`, convert the node to a call of its operator."""
        first, current = len(self.operations), self.node
        try:
            return make()
        except Unread as error:
            self.forget(first)
            self.node = node
            try:
                found = called(self, item=item)
            except Unread as other:
                reason = "" if other.message in error.message else f" (it {other.message})"
                raise WorkloadError(f"{error.message}{reason}", where=node.name) from None
            self.node = current
            return found

    def _what(self) -> str:
        """Description of the current node's operation and operands, for messages."""
        values = (*self.node.args, *self.node.kwargs.values())
        told = ", ".join(described(self.value(each)) for each in values)
        return f"{self.node.target} of {told or 'nothing'}"

    def _is_last_reader(self, node: Any) -> bool:
        """True if a tensor that a node writes in place is read afterwards only as the node's result."""
        written = node.args[0] if node.args else None
        users, target = getattr(written, "users", ()), getattr(written, "target", None)
        # In evaluation, dropout returns its operand itself, which other nodes may read.
        is_made = getattr(written, "op", "") == "call_function" and "dropout" not in str(target)
        is_made &= not getattr(target, "is_view", True)
        return is_made and all(
            user is node or (user in self.values and not getattr(user.target, "is_view", True))
            for user in users
        )

    def _item(self, source: Any, place: int) -> Any:
        """Result number `place` of the node `source`; operations added for it are named after `source`."""
        found, node = self.values[source][place], self.node
        if not isinstance(found, Deferred) or not found.is_taken:
            return found
        self.node = source
        made = found.value(self)
        self.node = node
        return made

    def _named(self, found: Any, first: int) -> Any:
        """Check a node's value and return it; the operation that computes it is renamed to the node's name.

        - `first`: Number of operations in the step before the node. These keep their names.
        """
        if isinstance(found, (Named, View, Stacked, Own)):
            if len(self.operations) > first and self.operations[-1].name == found.name:
                found = replace(found, name=self._last_as(self._fresh(self.node.name)))
            self._check(found)
        return found

    def _last_as(self, name: str) -> str:
        """Rename the last operation; return the new name."""
        last = self.operations[-1]
        self.operations[-1] = replace(last, name=name)
        self.tensors[name] = replace(self.tensors.pop(last.name), name=name)
        return name

    def _check(self, found: Named | View | Stacked | Own) -> None:
        """Raise `WorkloadError` unless a value has the local shape and element type that the graph states."""
        shape, dtype = self.stated()
        tensor, local = self.tensors[found.name], self.local_shape(found)
        fits = (shape, dtype) == (local, tensor.dtype)
        if isinstance(found, View):
            fits &= math.prod(local) == math.prod(self.local_shape(Named(found.name)))
        if shape is not None and not fits:
            read = ", ".join(f"{name} {self.tensors[name]}" for name in self._inputs_of(found))
            raise self.refused(
                f"{self.node.target} gives {dtype}{list(shape)} at each rank, but {read} would give "
                f"{tensor.dtype}{list(local)}; correct the layouts of the inputs"
            )

    def _inputs_of(self, found: Named | View | Stacked | Own) -> tuple[str, ...]:
        made = next((each for each in self.operations if each.name == found.name), None)
        return made.inputs if made is not None else (found.name,)
