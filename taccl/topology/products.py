"""Products of dimensions: each dimension is a ring, a fully connected group, a switch or a line.

Ranks are numbered in mixed radix; the first dimension's digit varies fastest. Two ranks are joined if they
differ in one digit. `Dimensions` lists the dimensions of a topology; `taccl.topology.recognise` finds them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import permutations
from math import prod
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from taccl._internal.arguments import quoted
from taccl._internal.arrays import distinct
from taccl._internal.names import did_you_mean, matching
from taccl._internal.units import parse_time_us
from taccl.errors import InputError, TopologyError
from taccl.topology.parts import LinkCost, add_crossbar, check_count, exact_cost

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from taccl._internal.arguments import Number
    from taccl.topology.builder import TopologyBuilder
    from taccl.topology.named import NamedFabric
    from taccl.topology.topology import Topology

Kind = Literal["ring", "fully-connected", "switch", "line"]
MAX_DIMENSIONS = 16
ALPHA_US = Fraction(1, 2)
_EXAMPLE = "'multidim:switch16@100,ring8@50'"
_MADE = ("ring", "fully-connected", "switch")
_WORD = re.compile(r"\s*([A-Za-z][A-Za-z_-]*?)-?([0-9]{1,9})\s*(?:@([^@]*))?(?:@([^@]*))?")
_RATE = re.compile(r"\s*([0-9.eE+/-]+)\s*([A-Za-z/]*)\s*")
#: {unit: factor to GB/s}; a small b means bits.
_RATE_UNITS = {"": Fraction(1), "GB/s": Fraction(1), "Gb/s": Fraction(1, 8), "Gbps": Fraction(1, 8)}


@dataclass(frozen=True, slots=True)
class Dimension:
    """One dimension of a product: how it joins the `size` ranks that differ only in its digit.

    - `kind`: ``"ring"`` is bidirectional; ``"line"`` is a ring without its closing link, as in a mesh.
    - `bandwidth_gb_per_s`: Rate in GB/s at which a rank sends, and receives, over all its links of the
      dimension together; for a line, over one link.
    - `alpha_us`: Latency of a link in us.
    """

    kind: Kind
    size: int
    bandwidth_gb_per_s: Fraction
    alpha_us: Fraction

    @classmethod
    def of_link(cls, kind: Kind, size: int, alpha_us: Fraction, beta_us_per_mb: Fraction) -> Dimension:
        """Dimension whose links have the given alpha and beta."""
        links = cls(kind, size, Fraction(1), alpha_us).links_per_rank
        return cls(kind, size, 1000 * links / beta_us_per_mb, alpha_us)

    @property
    def links_per_rank(self) -> int:
        """Number of links of a rank that share its bandwidth; 1 for a line or switch (one port out)."""
        most = {"ring": 2, "fully-connected": self.size}.get(self.kind, 1)
        return max(1, min(most, self.size - 1))

    @property
    def beta_us_per_mb(self) -> Fraction:
        """Time in us per MB (10**6 bytes) over one link."""
        return 1000 * self.links_per_rank / self.bandwidth_gb_per_s

    @property
    def link_cost(self) -> LinkCost:
        """Cost of a send over one link."""
        return LinkCost(self.alpha_us, self.beta_us_per_mb)

    @property
    def hops(self) -> tuple[int, ...]:
        """Number of hops to the rank d positions further, for d from 0; on a line, from its first rank."""
        if self.kind == "ring":
            return tuple(min(d, self.size - d) for d in range(self.size))
        if self.kind == "line":
            return tuple(range(self.size))
        return tuple(min(d, 1) for d in range(self.size))

    def __str__(self) -> str:
        rate, alpha = (
            f"{each.numerator}" if each.denominator == 1 else repr(float(each))
            if Fraction(repr(float(each))) == each else str(each)
            for each in (self.bandwidth_gb_per_s, self.alpha_us)
        )  # fmt: skip
        return f"{self.kind}{self.size}@{rate}" + (f"@{alpha}" if self.alpha_us != ALPHA_US else "")


@dataclass(frozen=True, eq=False)
class Dimensions(Sequence[Dimension]):
    """Dimensions of a network, found by `taccl.dimensions`; a rank is the sum of digit x stride over them.

    Parameters
    ----------
    dims : tuple of Dimension
        Dimensions; the first one's digit varies fastest.
    host : Topology or NamedFabric
        Network with these dimensions.
    """

    dims: tuple[Dimension, ...]
    host: Topology | NamedFabric

    def __getitem__(self, index: Any) -> Any:
        return self.dims[index]

    def __len__(self) -> int:
        return len(self.dims)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of ranks along every dimension."""
        return tuple(each.size for each in self.dims)

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return prod(self.sizes)

    @property
    def strides(self) -> tuple[int, ...]:
        """Difference in rank between neighbours along each dimension."""
        return tuple(prod(self.sizes[:k]) for k in range(len(self.dims)))

    @property
    def is_regular(self) -> bool:
        """True if the network looks the same from every rank: no dimension is a line."""
        return all(each.kind != "line" for each in self.dims)

    def digits(self, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Digits of ranks along each dimension, as a (num_dimensions, num_ranks) array."""
        strides, sizes = (np.array(each, np.int64)[:, None] for each in (self.strides, self.sizes))
        return np.asarray(ranks // strides % sizes)

    def groups(self, along: Sequence[int]) -> list[tuple[int, ...]]:
        """Groups of ranks that differ only in the dimensions `along`; ranks of a group ascend.

        - `along`: Indices of dimensions, from 0.
        """
        if not along or len(set(along)) < len(along) or not set(along) <= set(range(len(self.dims))):
            said = f"found {list(along)}; expected different dimensions of 0 to {len(self.dims) - 1}"
            raise TopologyError(said, where="along")
        ranks = np.arange(self.num_ranks)
        first = ranks - sum(self.digits(ranks)[k] * self.strides[k] for k in along)
        return [tuple(np.flatnonzero(first == each).tolist()) for each in distinct(first)]

    def loads_us_per_mb(self, order: Sequence[int], *, exchange: bool = False) -> tuple[Fraction, ...]:
        """Busy time of each dimension in us per MB (10**6 bytes) of data, for an order of dimensions.

        Parameters
        ----------
        order : sequence of int
            Order in which a reduction passes the dimensions; each dimension divides the data by its size.
        exchange : bool
            True for an all-to-all exchange: the data does not shrink, and loads every hop of its path.
        """
        loads, left = [Fraction(0)] * len(self.dims), Fraction(1)
        for k in order:
            each = self.dims[k]
            hops = sum(each.hops) if exchange else each.size - 1
            loads[k] = left * Fraction(hops, each.size) * 1000 / each.bandwidth_gb_per_s
            left /= 1 if exchange else each.size
        return tuple(loads)

    def __repr__(self) -> str:
        return f"Dimensions({self.host.name}: {' x '.join(map(str, self.dims))})"


def name_of(dims: Sequence[Dimension]) -> str:
    """Name of a product of dimensions, as on the command line."""
    return f"multidim:{','.join(map(str, dims))}"


def add_dimensions(
    builder: TopologyBuilder, dims: Sequence[Dimension], *, names: Mapping[str, str] | None = None
) -> None:
    """Add the links of a product of dimensions to a topology builder.

    - `names`: {kind of dimension: name of its links}; default: the kind.
    """
    num_ranks, stride = len(builder.node_of_rank), 1
    for number, each in enumerate(dims):
        name = (names or {}).get(each.kind, each.kind)
        firsts = [rank for rank in range(num_ranks) if rank // stride % each.size == 0]
        for line, first in enumerate(firsts):
            ranks = [first + i * stride for i in range(each.size)]
            if each.kind == "switch":
                switch = f"switch {line} of dimension {number}"
                add_crossbar(builder, ranks, each.link_cost, name=switch, link_name=name)
                continue
            if each.kind == "ring" and each.size > 2:
                upwards = list(zip(ranks, [*ranks[1:], ranks[0]], strict=True))
                pairs = upwards + [(dst, src) for src, dst in upwards]
            else:
                pairs = list(permutations(ranks, 2))
            builder.add_alike(pairs, cost=each.link_cost, name=name)
        stride *= each.size


def read_dimensions(dims: str | Sequence[Any], *, alpha_us: Number = ALPHA_US) -> tuple[Dimension, ...]:
    """Read dimensions from text or tuples, as `multidim` takes them; drop dimensions of size 1.

    Raises `TopologyError` for invalid dimensions, and if all sizes are 1.
    """
    where = "multidim: dims"
    given: Sequence[Any] = [_split(word) for word in dims.split(",")] if isinstance(dims, str) else dims
    if isinstance(given, Mapping) or not 0 < len(given) <= MAX_DIMENSIONS:
        raise TopologyError(
            f"found {len(given)} dimensions; expected 1 to {MAX_DIMENSIONS}, as in {_EXAMPLE}", where=where
        )
    found = [
        _read(each, alpha_us, f"multidim: dims: dimension {number}") for number, each in enumerate(given, 1)
    ]
    if all(each.size == 1 for each in found):
        raise TopologyError("found one rank; expected a dimension of at least 2 ranks", where=where)
    return tuple(each for each in found if each.size > 1)


def _split(word: str) -> tuple[str | None, ...]:
    match = _WORD.fullmatch(word)
    if match is None:
        raise TopologyError(
            f"found {quoted(word)}; expected a kind, a size and a bandwidth in GB/s, as in {_EXAMPLE}",
            where="multidim: dims",
        )
    return match.groups()


def _read(given: Any, default_alpha: Number, where: str) -> Dimension:
    if isinstance(given, str) or not isinstance(given, Sequence) or not 2 <= len(given) <= 4:
        raise TopologyError(
            f"found {quoted(given)}; expected a kind, a size, a bandwidth, and an alpha if it differs, e.g. "
            "('switch', 16, '100GB/s', '0.5us')",
            where=where,
        )
    kind, size, rate, alpha = (*given, None, None)[:4]
    known = matching(kind, _MADE) if isinstance(kind, str) else None
    if known is None:
        hint = did_you_mean(kind, _MADE) if isinstance(kind, str) else ""
        raise TopologyError(f"found {quoted(kind)}; expected a kind, {', '.join(_MADE)}{hint}", where=where)
    if isinstance(size, str) and size.strip().isdecimal():
        size = int(size)
    size = check_count(size, where=f"{where}: size", least=1)
    assert known in get_args(Kind)
    return Dimension(known, size, _rate(rate, f"{where}: bandwidth"), _alpha(alpha, default_alpha, where))  # type: ignore[arg-type]


def _rate(given: Any, where: str) -> Fraction:
    """Bandwidth in GB/s (10**9 bytes per second), from a number or text with a unit."""
    if given is None or (isinstance(given, str) and not given.strip()):
        raise TopologyError("found none; give the GB/s of a rank, e.g. switch16@100", where=where)
    number, unit = given, ""
    if isinstance(given, str):
        match = _RATE.fullmatch(given)
        if match is None or match[2] not in _RATE_UNITS:
            raise TopologyError(
                f"found {quoted(given)}; expected GB/s, e.g. 100, '100GB/s' or '800Gbps'", where=where
            )
        number, unit = match[1], match[2]
    rate = exact_cost(number, where=where) * _RATE_UNITS[unit]
    if not rate:
        raise TopologyError("found 0 GB/s; expected a positive bandwidth", where=where)
    return rate


def _alpha(given: Any, default: Number, where: str) -> Fraction:
    try:
        return parse_time_us(default if given is None else given, where=f"{where}: alpha")  # type: ignore[arg-type]
    except InputError as error:
        raise TopologyError(error.message, where=error.where) from None
