"""Plans of recursive multiplying: the groups of ranks in each step, and the parts of chunks they exchange.

The place of a rank in its node, and its node, are numbers in digits of mixed bases. In a step, ranks that
differ in one digit exchange all they hold: with base 2, recursive doubling. Or they exchange along the digits
of places alone what starts in their node, while each sends its own straight to all ranks of other nodes.

Of sums, what goes to all is scattered along some digits first: each rank of a group gets what the others have
of its part of the chunks. Along the other digits each gets all that the others have summed, and adds it up
itself. At last sums are gathered along the first digits, in the opposite order. With base 2, scattering alone
is recursive halving and doubling, adding up alone is recursive doubling.

Parts of the chunks may go each their own way, so that all links work at once. They cross between nodes *in
turns*: one part before all sums in nodes, one after the first of these, and so on. They go *round about* on a
torus: each part begins along another dimension. Or they go *one behind another*: while one crosses between
nodes, the next is still scattered in its node. What spreads, and sums for one rank each, goes *node by node*:
what came from one is gathered while more comes from the next.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: How parts go that send nothing together; the latter are of what spreads, by how far it comes from.
BEHIND, BY_NODE = "one behind another", "node by node"


class Digit(NamedTuple):
    """A digit of the node's number (`across`), or of the place in it; a step of it adds its weight.

    Of weight 0 it is every rank of another node, and this one. From one node to the next the place moves on
    by `shift`, so that what crosses at several times goes over several links. With a `turn` it is one other
    rank alone, which differs by that.
    """

    across: bool
    base: int
    weight: int
    shift: int = 0
    turn: int = 0

    def __str__(self) -> str:
        if not self.weight:
            return f"straight to {self.base - 1}"
        return f"{self.base} nodes" if self.across else str(self.base)


class PlanPart(NamedTuple):
    """Part of the chunks: digits along which its sums are scattered, and then added up.

    At last they are gathered along the first again, the last first; as is what spreads.
    """

    scattered: tuple[Digit, ...]
    summed: tuple[Digit, ...] = ()

    def __str__(self) -> str:
        named = ("scatter", self.scattered), ("sum", self.summed)
        return ", ".join(f"{name} {' x '.join(map(str, some))}" for name, some in named if some)


class StepPlan(NamedTuple):
    """Parts of equal numbers of chunks, with a plan for each; `how` they differ, as text.

    What parts send in the same step goes together, unless they go one behind another, or node by node.
    """

    parts: tuple[PlanPart, ...]
    how: str = ""

    def __str__(self) -> str:
        return f"{self.parts[-1]}{self.how and ', '}{self.how}"

    @property
    def block(self) -> int:
        """So many chunks in a row are of one part, as they are scattered among as many ranks."""
        return max(math.prod(digit.base for digit in part.scattered) for part in self.parts)


class PlanStep(NamedTuple):
    """A step of some parts: `verb`, the digit along which, and the numbers of the parts."""

    verb: str
    digit: Digit
    parts: tuple[int, ...]


def straight_digit(num_nodes: int, num_local: int) -> Digit:
    """The digit of every rank of another node, and this one."""
    return Digit(True, (num_nodes - 1) * num_local + 1, 0)


def all_plans(num_nodes: int, num_local: int, *, sums: bool, to_one: bool, most: int) -> Iterator[StepPlan]:
    """Plans for nodes of so many ranks, of no larger bases than `most`.

    - `sums`: Whether chunks are sums.
    - `to_one`: Whether each is for one rank.
    """
    for inner in _all_bases(num_local, most):
        local = tuple(_digits(inner, across=False))
        if num_nodes > 1 and sums == to_one:  # as data are the same for many, or from many
            turns = [Digit(True, num_nodes, 1, turn=turn) for turn in range(1, num_nodes)]
            yield StepPlan((*(PlanPart(local, (turn,)) for turn in turns), PlanPart(local)), BY_NODE)
        for outer in _all_bases(num_nodes, most):
            far = tuple(_digits(outer, across=True))
            if to_one or not sums:
                yield StepPlan((PlanPart((*local, *far)),))
                yield StepPlan((PlanPart((*far, *local)),))
                if far:
                    yield StepPlan((PlanPart((*local, straight_digit(num_nodes, num_local))),))
                continue
            for i in range(len(local) + 1):
                for j in range(len(far) + 1):
                    yield from _plans_of_sums(local, far, i, j)


def _plans_of_sums(local: tuple[Digit, ...], far: tuple[Digit, ...], i: int, j: int) -> Iterator[StepPlan]:
    """What is scattered along the first i digits in nodes and j between them, in all ways."""
    scattered, near, out = (*local[:i], *far[:j]), local[i:], far[j:]
    part = PlanPart(scattered, (*near, *out))
    yield StepPlan((part,))
    if near and out:
        for shift in (math.prod(digit.base for digit in local[:i]), 0):
            crossing = [tuple(digit._replace(shift=shift * k) for digit in out) for k in range(len(near) + 1)]
            yield StepPlan(
                tuple(PlanPart(scattered, (*near[:k], *each, *near[k:])) for k, each in enumerate(crossing)),
                "in turns",
            )
    if len(local) > 1:
        orders = [(*local[k:], *local[:k]) for k in range(len(local))]
        yield StepPlan(
            tuple(PlanPart((*each[:i], *far[:j]), (*each[i:], *out)) for each in orders), "round about"
        )
    if far and i:
        yield StepPlan((part,) * 2, BEHIND)
        yield StepPlan((part,) * 4, BEHIND)


def _all_bases(number: int, most: int) -> Iterator[tuple[int, ...]]:
    """All ways to write a number as a product of no larger numbers than `most`, in every order."""
    if number == 1:
        yield ()
    for base in range(2, min(number, most) + 1):
        if number % base == 0:
            for rest in _all_bases(number // base, most):
                yield (base, *rest)


def _digits(bases: Sequence[int], *, across: bool) -> Iterator[Digit]:
    """Digits of such bases, the lowest first."""
    weight = 1
    for base in bases:
        yield Digit(across, base, weight)
        weight *= base
