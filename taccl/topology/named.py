"""Fabrics described by name, size and costs only, without listed links, for any number of ranks.

A `NamedFabric` computes whether two ranks are linked, and at what cost. `to_topology` lists the links of a
small fabric.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from taccl._internal.arguments import Number, quoted
from taccl._internal.names import did_you_mean, matching, shown
from taccl.errors import TopologyError
from taccl.topology.builder import TopologyBuilder
from taccl.topology.parts import (
    LinkCost,
    add_crossbar,
    check_count,
    check_num_links,
    exact_cost,
    rates_of_axes,
)
from taccl.topology.products import ALPHA_US, Dimension, Kind, add_dimensions, name_of, read_dimensions
from taccl.topology.topology import AlphaMeaning, Topology

MAX_NAMED_RANKS = 2**26
"""Maximum number of ranks of a named fabric, so that rank numbers and their differences fit into 32 bits."""
BANDWIDTH_GB_PER_S = 50
"""Default bandwidth in GB/s. It and the default alpha of 0.5 us are common in comparisons of synthesizers."""

EXAMPLES = {
    "ring": "ring:8", "mesh": "mesh:4x4", "torus": "torus:4x4", "hypercube": "hypercube:3",
    "fully-connected": "fully-connected:8", "star": "star:16", "multidim": "multidim:switch16@100,ring8@50",
}  # fmt: skip
"""{kind of fabric: example of its name}."""
_GRIDS = ("mesh", "torus")
#: {kind of fabric: how each of its dimensions joins ranks}.
_JOINED: dict[str, Kind] = {
    "ring": "ring", "torus": "ring", "mesh": "line", "hypercube": "ring", "star": "switch",
    "fully-connected": "fully-connected",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class NamedFabric:
    """A ring, torus, mesh, hypercube, fully connected fabric, star or product of dimensions.

    - `axes`: Dimensions in the order in which the name lists them. A hypercube has one for each bit of a
      rank number.
    """

    kind: str
    axes: tuple[Dimension, ...]
    alpha_meaning: AlphaMeaning = "occupies"

    def __post_init__(self) -> None:
        if self.alpha_meaning not in get_args(AlphaMeaning):
            raise TopologyError(
                f"found {quoted(self.alpha_meaning)}; expected 'occupies' or 'pipelined'",
                where=f"{self.name}: alpha_meaning",
            )
        check_count(self.num_ranks, where=f"{self.kind}: number of ranks", least=2)

    @property
    def dims(self) -> tuple[int, ...]:
        """Numbers after the colon of the name: ranks along every axis, or the dimension of a hypercube."""
        sizes = tuple(each.size for each in self.axes)
        return (len(sizes),) if self.kind == "hypercube" else sizes

    @property
    def first_is_fastest(self) -> bool:
        """True if consecutive ranks are neighbours along the first axis rather than the last."""
        return self.kind in ("multidim", "hypercube")

    @property
    def strides(self) -> tuple[int, ...]:
        """Difference in rank between neighbours along each axis."""
        sizes = [each.size for each in self.axes]
        first = self.first_is_fastest
        return tuple(math.prod(sizes[:k] if first else sizes[k + 1 :]) for k in range(len(sizes)))

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return math.prod(each.size for each in self.axes)

    @property
    def name(self) -> str:
        """Name from which `parse_named` builds this kind and size of fabric."""
        if self.kind == "multidim":
            return name_of(self.axes)
        return f"{self.kind}:{'x'.join(map(str, self.dims))}"

    def axis(self, src: NDArray[np.int64], dst: NDArray[np.int64]) -> NDArray[np.int64]:
        """Axis of the link from each source to its destination; -1 if no link joins the two.

        Hypercubes return 0 for every link, as all their axes have equal costs.
        """
        if self.kind == "hypercube":  # its many axes have equal costs
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

    def to_topology(self, *, ranks_per_node: int | None = None) -> Topology:
        """Topology with all links listed, in one node or in nodes of `ranks_per_node` ranks.

        Raises `TopologyError` if there are too many links, or `ranks_per_node` does not divide the number of
        ranks.
        """
        ways = ((2, each.size - 1)[each.kind not in ("ring", "line")] for each in self.axes)
        check_num_links(self.num_ranks * sum(ways), where=self.kind)
        per_node = ranks_per_node or self.num_ranks
        if self.num_ranks % per_node:
            raise TopologyError(
                f"found {per_node}; expected a divisor of the {self.num_ranks} ranks",
                where=f"{self.kind}: ranks_per_node",
            )
        nodes, meaning = [rank // per_node for rank in range(self.num_ranks)], self.alpha_meaning
        builder = TopologyBuilder(self.name, nodes, alpha_meaning=meaning, machine=self.kind)
        if self.kind == "star":
            add_crossbar(builder, range(self.num_ranks), self.axes[0].link_cost, name="switch")
        elif self.kind in ("multidim", "ring", "fully-connected"):
            add_dimensions(builder, self.axes, names=None if self.kind == "multidim" else {self.kind: ""})
        else:
            known: dict[
                LinkCost, LinkCost
            ] = {}  # equal costs are one object, which `groupby` compares quickly
            costs = [known.setdefault(each.link_cost, each.link_cost) for each in self.axes]
            for cost, links in groupby(self._neighbours(), lambda link: costs[link[2]]):
                builder.add_alike(((src, dst) for src, dst, _ in links), cost=cost)
        return builder.build()

    def _neighbours(self) -> Iterator[tuple[int, int, int]]:
        """(source, destination, axis) of every link of a mesh, torus or hypercube, in order."""
        if self.kind == "hypercube":
            yield from ((r, r ^ s, k) for r in range(self.num_ranks) for k, s in enumerate(self.strides))
            return
        for axis, (each, stride) in enumerate(zip(self.axes, self.strides, strict=True)):
            for rank in range(self.num_ranks):
                place = rank // stride % each.size
                if place + 1 < each.size:
                    yield from ((rank, rank + stride, axis), (rank + stride, rank, axis))
                elif each.kind == "ring" and each.size > 2:
                    first = rank - place * stride
                    yield from ((rank, first, axis), (first, rank, axis))

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


def fabric(
    kind: str,
    dims: Sequence[int],
    bandwidth_gb_per_s: Number | Sequence[Number] = BANDWIDTH_GB_PER_S,
    alpha_us: Number = ALPHA_US,
    alpha_meaning: AlphaMeaning = "occupies",
) -> NamedFabric:
    """Build a fabric of any kind except ``"multidim"`` from the numbers in its name, and its costs.

    Raises `TopologyError` for invalid numbers or costs.
    """
    if not dims:
        raise TopologyError("found no axes; expected at least one, e.g. 4, 4", where=f"{kind}: dims")
    sizes = (2,) * min(dims[0], 62) if kind == "hypercube" else dims
    alpha = exact_cost(alpha_us, where=f"{kind}: alpha_us")
    num_axes = len(dims) if kind in _GRIDS else 1
    betas = rates_of_axes(bandwidth_gb_per_s, num_axes, where=f"{kind}: bandwidth_gb_per_s")
    axes = (
        Dimension.of_link(_JOINED[kind], check_count(each, where=f"{kind}: dims"), alpha, beta)
        for each, beta in zip(sizes, betas if num_axes > 1 else betas * len(sizes), strict=True)
    )
    return NamedFabric(kind, tuple(axes), alpha_meaning)


def read_size(kind: str, size: str) -> tuple[int, ...]:
    """Parse the numbers after the colon of a fabric's name, for any kind except ``"multidim"``."""
    form = r"[0-9]{1,9}(x[0-9]{1,9}){0,63}" if kind in _GRIDS else r"[0-9]{1,9}"
    if not re.fullmatch(form, size.strip().lower()):
        found = quoted(size) if size else "no size"
        if re.fullmatch(r"[0-9x]{10,}", size.strip().lower()):
            said = f"found {found}; expected numbers of at most 9 digits"
            raise TopologyError(said, where=f"{kind}: size")
        raise TopologyError(f"found {found}; expected a size as in {EXAMPLES[kind]!r}", where=f"{kind}: size")
    return tuple(int(dim) for dim in size.lower().split("x"))


#: Names of the keyword arguments of `parse_named`.
COSTS = ("bandwidth_gb_per_s", "alpha_us", "alpha_meaning")


def parse_named(
    name: str,
    *,
    bandwidth_gb_per_s: Number | Sequence[Number] = BANDWIDTH_GB_PER_S,
    alpha_us: Number = ALPHA_US,
    alpha_meaning: AlphaMeaning | None = None,
) -> NamedFabric:
    """Build a fabric from its name, such as ``"torus:100x100x100"``; at most `MAX_NAMED_RANKS` ranks.

    - `bandwidth_gb_per_s`, `alpha_us`, `alpha_meaning`: As in `taccl.topology.fabrics`. Only meshes and tori
      take one bandwidth for each axis; the name of a ``"multidim"`` contains its bandwidths.

    Raises `TopologyError` if no fabric has that name or size, or a cost is wrong.
    """
    kind, _, size = name.strip().partition(":") if isinstance(name, str) else ("", "", "")
    found = matching(kind, EXAMPLES)
    if found is None:
        said = f"found {quoted(name)}; expected a fabric, e.g. 'torus:100x100'{did_you_mean(kind, EXAMPLES)}"
        raise TopologyError(said, where="fabric")
    if found == "multidim":
        named = NamedFabric(found, read_dimensions(size, alpha_us=alpha_us), alpha_meaning or "pipelined")
    else:
        dims = read_size(found, size)
        named = fabric(found, dims, bandwidth_gb_per_s, alpha_us, alpha_meaning or "occupies")
    if named.num_ranks > MAX_NAMED_RANKS:
        many = named.num_ranks if named.num_ranks < 2**62 else "too many"
        said = f"found {many} ranks; expected 2 to {MAX_NAMED_RANKS}"
        raise TopologyError(said, where=shown(named.name, 100))
    return named


def as_named(topology: Topology) -> NamedFabric | None:
    """Named fabric with exactly the links and costs of a topology; None if no fabric has them.

    The topology may divide its ranks into nodes in any way, as links of a fabric do not depend on nodes.
    """
    kind, _, size = topology.name.partition(":")
    if kind != topology.machine or not size or not topology.links:
        return None
    try:
        found = parse_named(topology.name, alpha_meaning=topology.alpha_meaning)
        if found.num_ranks != topology.num_ranks:
            return None
        if kind != "multidim":  # its name contains the costs
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
