"""Fabrics described by name, size and costs alone, for as many ranks as one likes: no link is listed.

A `NamedFabric` says by arithmetic whether two ranks are linked, and at what cost. `to_topology` writes a
small one out, link for link as `taccl.topology.fabrics` does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from taccl.arguments import quoted
from taccl.errors import TopologyError
from taccl.names import shown
from taccl.topology.fabrics import ALPHA_US, BANDWIDTH_GB_PER_S
from taccl.topology.parts import check_count, exact_cost, rates_of_axes
from taccl.topology.products import Dimension, Kind, multidim, name_of, read_dimensions
from taccl.topology.registry import FABRICS, dims_of_size, find_kind
from taccl.topology.topology import AlphaMeaning

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from taccl.arguments import Number
    from taccl.topology.topology import Topology

MAX_NAMED_RANKS = 2**26
"""More ranks than this are refused: rank numbers, and a pattern's offsets, are kept in 32 bits."""

_GRIDS = ("ring", "torus", "mesh")
#: How ranks are joined along the axes of a fabric.
_JOINED: dict[str, Kind] = {
    "ring": "ring", "torus": "ring", "mesh": "line", "hypercube": "ring", "star": "switch",
    "fully-connected": "fully-connected",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class NamedFabric:
    """A ring, torus, mesh, hypercube, fully connected fabric, star or product, of `MAX_NAMED_RANKS` at most.

    - `axes`: How ranks are joined along each, in the order of the name; those of a hypercube are its bits.
    """

    kind: str
    axes: tuple[Dimension, ...]
    alpha_meaning: AlphaMeaning = "occupies"

    def __post_init__(self) -> None:
        if self.kind not in FABRICS:
            raise TopologyError(f"found {quoted(self.kind)}; expected the kind of a fabric", where="fabric")
        if self.alpha_meaning not in get_args(AlphaMeaning):
            raise TopologyError(
                f"found {quoted(self.alpha_meaning)}; expected 'occupies' or 'pipelined'",
                where=f"{self.name}: alpha_meaning",
            )
        if not 2 <= self.num_ranks <= MAX_NAMED_RANKS:
            found = self.num_ranks if self.num_ranks < 2**62 else "too many"
            raise TopologyError(
                f"found {found} ranks; expected 2 to {MAX_NAMED_RANKS}", where=shown(self.name, 100)
            )

    @property
    def dims(self) -> tuple[int, ...]:
        """As behind the colon of the name: ranks along every axis, ranks, or the hypercube's dimension."""
        sizes = tuple(each.size for each in self.axes)
        return (len(sizes),) if self.kind == "hypercube" else sizes

    @property
    def first_is_fastest(self) -> bool:
        """Whether ranks that follow one another are neighbours along the first axis, and not the last."""
        return self.kind in ("multidim", "hypercube")

    @property
    def strides(self) -> tuple[int, ...]:
        """By how much ranks differ that are neighbours along each axis."""
        sizes = [each.size for each in self.axes]
        first = self.first_is_fastest
        return tuple(math.prod(sizes[:k] if first else sizes[k + 1 :]) for k in range(len(sizes)))

    @property
    def num_ranks(self) -> int:
        """How many ranks there are."""
        return math.prod(each.size for each in self.axes)

    @property
    def name(self) -> str:
        """The name that `parse_named` reads."""
        if self.kind == "multidim":
            return name_of(self.axes)
        return f"{self.kind}:{'x'.join(map(str, self.dims))}"

    def axis(self, src: NDArray[np.int64], dst: NDArray[np.int64]) -> NDArray[np.int64]:
        """An axis of the cost of the link from every source to its destination; -1 where there is no link."""
        if self.kind == "hypercube":  # whose axes are many, and alike
            differ = src ^ dst
            return np.where((differ != 0) & (differ & (differ - 1) == 0), 0, -1)
        axis = np.full(len(src), -1, dtype=np.int64)
        differing = np.zeros(len(src), dtype=np.int8)
        for place, (each, stride) in enumerate(zip(self.axes, self.strides, strict=True)):
            gap = src // stride % each.size - dst // stride % each.size
            np.abs(gap, out=gap)
            differing += gap != 0
            if each.kind in ("ring", "line"):
                axis[(gap == 1) | ((gap == each.size - 1) & (gap > 0) & (each.kind == "ring"))] = place
            else:
                axis[gap > 0] = place
        axis[differing != 1] = -1
        return axis

    def to_topology(self) -> Topology:
        """The topology, link for link; `TopologyError` if they are too many to be listed."""
        if self.kind == "multidim":
            return multidim(self.axes, alpha_meaning=self.alpha_meaning)
        rates = [Fraction(1000) / each.beta_us_per_mb for each in self.axes]
        return FABRICS[self.kind](
            *self.dims,
            bandwidth_gb_per_s=rates if self.kind in ("mesh", "torus") else rates[0],
            alpha_us=self.axes[0].alpha_us,
            alpha_meaning=self.alpha_meaning,
        )

    def to_dict(self) -> dict[str, Any]:
        """The fabric as plain values."""
        return {
            "name": self.name,
            "alpha_us": str(max(each.alpha_us for each in self.axes)),
            "betas_us_per_mb": [str(each.beta_us_per_mb) for each in self.axes[: len(self.dims)]],
            "alpha_meaning": self.alpha_meaning,
        }

    def __repr__(self) -> str:
        return f"NamedFabric({self.name!r}, {self.num_ranks} ranks)"


def parse_named(
    name: str,
    *,
    bandwidth_gb_per_s: Number | Sequence[Number] = BANDWIDTH_GB_PER_S,
    alpha_us: Number = ALPHA_US,
    alpha_meaning: AlphaMeaning | None = None,
) -> NamedFabric:
    """The fabric that a name such as ``"torus:100x100x100"`` stands for; nothing is listed.

    - `bandwidth_gb_per_s`, `alpha_us`, `alpha_meaning`: As in `taccl.topology.fabrics`; a bandwidth for every
      axis is for a mesh or a torus, and the name of a ``"multidim"`` says its own.

    Raises `TopologyError` if no fabric has that name, it has no such size, or a cost is wrong.
    """
    if not isinstance(name, str) or not name.strip():
        raise TopologyError(f"found {quoted(name)}; expected a fabric, e.g. 'torus:100x100'", where="fabric")
    kind, _, size = name.strip().partition(":")
    kind = find_kind(kind, name)
    if kind == "multidim":
        return NamedFabric(kind, read_dimensions(size, alpha_us=alpha_us), alpha_meaning or "pipelined")
    if kind not in FABRICS:
        raise TopologyError(
            f"found {quoted(name)}, a machine; expected a fabric, e.g. 'torus:100x100'", where="fabric"
        )
    dims = dims_of_size(kind, size)
    num_axes = len(dims) if kind in _GRIDS else 1
    alpha = exact_cost(alpha_us, where=f"{kind}: alpha_us")
    betas = rates_of_axes(bandwidth_gb_per_s, num_axes, where=f"{kind}: bandwidth_gb_per_s")
    sizes = (2,) * min(dims[0], 64) if kind == "hypercube" else dims
    axes = (
        Dimension.of_link(_JOINED[kind], check_count(each, where=f"{kind}: dims"), alpha, beta)
        for each, beta in zip(sizes, betas if num_axes > 1 else betas * len(sizes), strict=True)
    )
    return NamedFabric(kind, tuple(axes), alpha_meaning or "occupies")


def as_named(topology: Topology) -> NamedFabric | None:
    """The named fabric that a topology is, link for link; None where it is none.

    Nodes, which a fabric's links do not depend on, may be any.
    """
    kind, _, size = topology.name.partition(":")
    if kind != topology.machine or not size or not topology.links:
        return None
    try:
        found = parse_named(topology.name, alpha_meaning=topology.alpha_meaning)
        if found.num_ranks != topology.num_ranks:
            return None
        if kind != "multidim":  # whose name says what its links cost
            some, away = topology.links[0], [topology.links[e] for e in topology.links_from[0]]
            betas = {link.dst: link.beta_us_per_mb for link in away}
            axes = (
                Dimension.of_link(each.kind, each.size, some.alpha_us, betas.get(stride, some.beta_us_per_mb))
                for each, stride in zip(found.axes, found.strides, strict=True)
            )
            found = replace(found, axes=tuple(axes))
        listed = found.to_topology()
    except TopologyError:
        return None
    same = (listed.links, listed.holds) == (topology.links, topology.holds)
    return found if same and len(listed.resources) == len(topology.resources) else None
