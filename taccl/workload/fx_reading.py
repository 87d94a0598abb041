"""Convert the nodes of a PyTorch graph into operations of a step.

A node whose operator has a converter is converted by it. Any other node becomes an `aten` operation, a call
of the operator on local tensors.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from taccl.errors import WorkloadError
from taccl.workload.fx_calls import called
from taccl.workload.fx_graph import FUNCTIONAL, TRACE, Graph
from taccl.workload.fx_values import Deferred, Named, Own, Stacked, Unread, View, arguments_of, described

if TYPE_CHECKING:
    from collections.abc import Callable


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
