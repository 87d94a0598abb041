"""Fabrics described by name, size and costs alone, for as many ranks as one likes: no link is listed.

A `NamedFabric` says by arithmetic whether two ranks are linked, and at what cost. `to_topology` writes a
small one out, link for link as `taccl.topology.fabrics` does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from taccl.arguments import quoted
from taccl.errors import TopologyError
from taccl.topology.fabrics import ALPHA_US, BANDWIDTH_GB_PER_S
from taccl.topology.parts import check_count, exact_cost, rates_of_axes
from taccl.topology.products import Dimension, multidim, name_of, read_dimensions
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


@dataclass(frozen=True, slots=True)
class NamedFabric:
    """A ring, torus, mesh, hypercube, fully connected fabric, star or product, of `MAX_NAMED_RANKS` at most.

    - `dims`: As behind the colon of the name: ranks along every axis, ranks, or the hypercube's dimension.
    - `betas`: Us per MB of the links along every axis; one where the fabric has no axes.
    - `product`: The dimensions of a ``"multidim"``, the first varying fastest; its alpha is that of the
      slowest.
    """

    kind: str
    dims: tuple[int, ...]
    alpha_us: Fraction
    betas: tuple[Fraction, ...]
    alpha_meaning: AlphaMeaning = "occupies"
    product: tuple[Dimension, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in FABRICS:
            raise TopologyError(f"found {quoted(self.kind)}; expected the kind of a fabric", where="fabric")
        if not self.dims:
            raise TopologyError("found no axes; expected at least one, e.g. 4, 4", where=f"{self.kind}: dims")
        for dim in self.dims:
            check_count(dim, where=f"{self.kind}: dims")
        if self.alpha_meaning not in get_args(AlphaMeaning):
            raise TopologyError(
                f"found {quoted(self.alpha_meaning)}; expected 'occupies' or 'pipelined'",
                where=f"{self.name}: alpha_meaning",
            )
        if len(self.betas) != self.num_axes or min(self.betas) <= 0 or self.alpha_us < 0:
            raise TopologyError(
                f"found alpha {self.alpha_us} and {len(self.betas)} betas for {self.num_axes} axes; expected "
                "one positive beta for every axis, and no negative alpha",
                where=self.name,
            )
        too_big = max(self.dims) > (26 if self.kind == "hypercube" else MAX_NAMED_RANKS)
        if too_big or not 2 <= self.num_ranks <= MAX_NAMED_RANKS:
            raise TopologyError(
                f"found {'too many' if too_big else self.num_ranks} ranks; expected 2 to {MAX_NAMED_RANKS}",
                where=self.name,
            )

    @property
    def num_axes(self) -> int:
        """Kinds of links that may differ in cost: axes of a grid, one of any other fabric."""
        return len(self.dims) if self.kind in (*_GRIDS, "multidim") else 1

    @property
    def alphas(self) -> tuple[Fraction, ...]:
        """Microseconds of the links along every axis."""
        return tuple(each.alpha_us for each in self.product) or (self.alpha_us,) * self.num_axes

    def has_ports(self, axis: int) -> bool:
        """Whether links along an axis run through a switch, with a port out and a port in for each rank."""
        return self.product[axis].kind == "switch" if self.product else self.kind == "star"

    def goes_round(self, axis: int) -> bool:
        """Whether links along an axis join neighbours alone."""
        return self.product[axis].kind == "ring" if self.product else self.kind in _GRIDS

    @property
    def strides(self) -> tuple[int, ...]:
        """By how much ranks differ that are neighbours along each of `dims`."""
        places = range(len(self.dims))
        return tuple(math.prod(self.dims[:k] if self.product else self.dims[k + 1 :]) for k in places)

    @property
    def num_ranks(self) -> int:
        """How many ranks there are."""
        return 2 ** self.dims[0] if self.kind == "hypercube" else math.prod(self.dims)

    @property
    def name(self) -> str:
        """The name that `parse_named` reads."""
        if self.product:
            return name_of(self.product)
        return f"{self.kind}:{'x'.join(map(str, self.dims))}"

    def axis(self, src: NDArray[np.int64], dst: NDArray[np.int64]) -> NDArray[np.int64]:
        """The axis of the link from every source to its destination; -1 where there is no link."""
        if self.kind == "hypercube":
            differ = src ^ dst
            return np.where((differ != 0) & (differ & (differ - 1) == 0), 0, -1)
        if self.kind not in (*_GRIDS, "multidim"):
            return np.where(src != dst, 0, -1)
        axis = np.full(len(src), -1, dtype=np.int64)
        differing = np.zeros(len(src), dtype=np.int8)
        for place, (dim, stride) in enumerate(zip(self.dims, self.strides, strict=True)):
            gap = src // stride % dim - dst // stride % dim
            np.abs(gap, out=gap)
            differing += gap != 0
            if self.goes_round(place):
                axis[(gap == 1) | ((gap == dim - 1) & (gap > 0) & (self.kind != "mesh"))] = place
            else:
                axis[gap > 0] = place
        axis[differing != 1] = -1
        return axis

    def to_topology(self) -> Topology:
        """The topology, link for link; `TopologyError` if they are too many to be listed."""
        if self.product:
            return multidim(self.product, alpha_meaning=self.alpha_meaning)
        rates = [Fraction(1000) / beta for beta in self.betas]
        return FABRICS[self.kind](
            *self.dims,
            bandwidth_gb_per_s=rates if self.kind in ("mesh", "torus") else rates[0],
            alpha_us=self.alpha_us,
            alpha_meaning=self.alpha_meaning,
        )

    def to_dict(self) -> dict[str, Any]:
        """The fabric as plain values."""
        return {
            "name": self.name,
            "alpha_us": str(self.alpha_us),
            "betas_us_per_mb": [str(beta) for beta in self.betas],
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
        parts = read_dimensions(size, alpha_us=alpha_us)
        slowest = max(each.alpha_us for each in parts)
        sizes, costs = zip(*((each.size, each.beta_us_per_mb) for each in parts), strict=True)
        return NamedFabric(kind, sizes, slowest, costs, alpha_meaning or "pipelined", parts)
    if kind not in FABRICS:
        raise TopologyError(
            f"found {quoted(name)}, a machine; expected a fabric, e.g. 'torus:100x100'", where="fabric"
        )
    dims = dims_of_size(kind, size)
    num_axes = len(dims) if kind in _GRIDS else 1
    alpha = exact_cost(alpha_us, where=f"{kind}: alpha_us")
    betas = rates_of_axes(bandwidth_gb_per_s, num_axes, where=f"{kind}: bandwidth_gb_per_s")
    return NamedFabric(kind, dims, alpha, betas, alpha_meaning or "occupies")


def as_named(topology: Topology) -> NamedFabric | None:
    """The named fabric that a topology is, link for link; None where it is none.

    Nodes, which a fabric's links do not depend on, may be any.
    """
    kind, _, size = topology.name.partition(":")
    if kind != topology.machine or not size or not topology.links:
        return None
    try:
        if kind == "multidim":
            found = parse_named(topology.name, alpha_meaning=topology.alpha_meaning)
        else:
            dims = tuple(int(dim) for dim in size.split("x"))
            alpha, betas = topology.links[0].alpha_us, _betas(kind, dims, topology)
            found = NamedFabric(kind, dims, alpha, betas, topology.alpha_meaning)
        if found.num_ranks != topology.num_ranks:
            return None
        listed = found.to_topology()
    except (TopologyError, ValueError):
        return None
    same = (listed.links, listed.holds) == (topology.links, topology.holds)
    return found if same and len(listed.resources) == len(topology.resources) else None


def _betas(kind: str, dims: tuple[int, ...], topology: Topology) -> tuple[Fraction, ...]:
    """Costs along every axis, read off the links that leave rank 0."""
    if kind not in _GRIDS:
        return (topology.links[0].beta_us_per_mb,)
    to = {topology.links[e].dst: topology.links[e].beta_us_per_mb for e in topology.links_from[0]}
    strides = [math.prod(dims[axis + 1 :]) for axis in range(len(dims))]
    some = topology.links[0].beta_us_per_mb
    return tuple(to.get(stride, some) if dim > 1 else some for dim, stride in zip(dims, strides, strict=True))
