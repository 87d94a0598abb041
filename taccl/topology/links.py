"""Links, resources and holds of a topology. A hold is the time for which a send occupies a resource."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import partial
from operator import itemgetter
from typing import Any, Literal, NamedTuple, TypeVar

from taccl._internal.names import shown

AlphaMeaning = Literal["occupies", "pipelined"]
Side = Literal["send", "receive"]
_NOTHING = Fraction(0)  # one shared object: conversions of costs are cached by object identity
#: {side of a send: the opposite side}, for reversed time or links.
OTHER_SIDE: dict[Side, Side] = {"send": "receive", "receive": "send"}


class Link(NamedTuple):
    """A directed link from one rank to another; to several for a multicast, from several for a reduction.

    A send of b bytes takes ``alpha_us + b * beta_us_per_mb / 10**6`` microseconds.
    """

    srcs: tuple[int, ...]
    dsts: tuple[int, ...]
    alpha_us: Fraction
    beta_us_per_mb: Fraction
    name: str = ""

    @property
    def src(self) -> int:
        """Source rank; the first one of several."""
        return self.srcs[0]

    @property
    def dst(self) -> int:
        """Destination rank; the first one of several."""
        return self.dsts[0]

    def held_us(
        self, alpha_meaning: AlphaMeaning, overhead_us: Fraction | None = None
    ) -> tuple[Fraction, Fraction]:
        """(alpha in us, beta in us/MB) of the time for which a send holds the link itself.

        Alpha is that of the link with "occupies" and 0 with "pipelined", and at most `overhead_us` if given.
        """
        alpha_us = self.alpha_us if alpha_meaning == "occupies" else _NOTHING
        return alpha_us if overhead_us is None else min(alpha_us, overhead_us), self.beta_us_per_mb

    @property
    def ends(self) -> str:
        """Ranks of the link as in messages, e.g. ``"0->1,2"``."""
        return ends_text(self.srcs, self.dsts)

    def __str__(self) -> str:
        return ends_text(self.srcs, self.dsts, self.name)


def ends_text(srcs: Sequence[int], dsts: Sequence[int], name: str = "") -> str:
    """Ranks of a link as messages show them, with the link's name: ``"0->1,2 (NVLink)"``."""
    single = len(srcs) == len(dsts) == 1
    ends = f"{srcs[0]}->{dsts[0]}" if single else f"{','.join(map(str, srcs))}->{','.join(map(str, dsts))}"
    return f"{ends} ({shown(name)})" if name else ends


class Resource(NamedTuple):
    """A resource, such as a link, a switch port or a NIC; one send at a time occupies it."""

    name: str


class Hold(NamedTuple):
    """A send of b bytes over `link` holds `resource` for ``alpha_us + b * beta_us_per_mb / 10**6``.

    The hold begins with the send if `side` is ``"send"``, and ends with it if `side` is ``"receive"``.
    """

    link: int
    resource: int
    alpha_us: Fraction
    beta_us_per_mb: Fraction
    side: Side = "send"


def columns_of(rows: Sequence[tuple[Any, ...]], *places: int) -> tuple[Iterable[Any], ...]:
    """Iterables over some fields of links or holds, given by index: six times as fast as access by name."""
    return tuple(map(itemgetter(place), rows) for place in places)


Row = TypeVar("Row", Link, Resource, Hold)


def made_of(kind: type[Row], *columns: Iterable[Any]) -> tuple[Row, ...]:
    """Build links, resources or holds from one column per field; five times as fast as calling the class."""
    return tuple(map(partial(tuple.__new__, kind), zip(*columns, strict=False)))
