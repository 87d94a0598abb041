"""Plans of recursive multiplying: the groups of ranks in each step, and the division of chunks into parts.

A rank's node and its local rank are written as digits of mixed bases. In a step, ranks that differ in one
digit exchange all that they hold; with base 2, this is recursive doubling. Alternatively they exchange along
digits of the local rank only, and each rank sends its own chunks *straight* to all ranks of other nodes.

Sums for all ranks are first scattered along some digits: each rank of a group receives its share of what the
others hold. Along the other digits, each rank receives all partial sums of the others, and adds them up.
Finally, sums are gathered along the first digits in the opposite order. With base 2, scattering along all
digits is recursive halving and doubling; summing along all digits is recursive doubling.

The chunks may be divided into parts with plans of their own, so that all links are used at the same time:

- *in turns*: each part crosses between nodes at a different point of its steps in nodes. One part does so
  before the first step, another before the second step, and so on;
- *round about*, on a torus: each part starts with a different dimension;
- *one behind another*: one part crosses between nodes while the next is scattered in its node;
- *node by node*, for chunks without sums, or sums with one destination each: chunks of one node are gathered
  while those of the next node arrive. Chunks of several nodes may be gathered together, and those of a node
  in several parts (`taccl.baselines.multiplying_batches`);
- *mixed*: parts with any plans and sizes, so that one crosses while another is summed or gathered
  (`taccl.baselines.multiplying_mixes`). A part may also cross before it is summed in nodes, or at the end.
  Its messages inside nodes may be divided into pieces, so that the first of them cross while others are sent
  (`taccl.baselines.multiplying_overlaps`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from taccl._internal.units import format_count

#: Names of the kinds of plans whose parts send separate messages: `BEHIND`, `BY_NODE` and `MIXED`.
BEHIND, BY_NODE, MIXED = "one behind another", "node by node", "mixed"
#: Max ratio of the group sizes (bases of digits) of two steps that count as similar.
_ALIKE = 2


class Digit(NamedTuple):
    """Digit in which partners of a step differ: of the node's number if `across`, else of the local rank.

    - `base`: Number of values of the digit, i.e. of ranks in a group.
    - `weight`: Difference between ranks whose digits differ by one; 0 stands for all ranks of other nodes.
    - `shift`: Difference of local ranks between partners in successive nodes, so that parts use different
      links.
    - `turns`: Differences between the digits of a rank and its partners, if these are only some of its group.
      Empty if ranks exchange with all partners of their group.
    - `pieces`: Number of messages for each partner, if chunks are scattered between nodes next, or were
      gathered there before. Each message is for, or from, some of the partners in that step, which overlaps
      with this one.
    - `own`: Number of parts of the chunks; one is for, or from, the rank's own node in the step between
      nodes. If positive, only this part is sent; if negative, only the ``-own - 1`` others; if 0, all.
    """

    across: bool
    base: int
    weight: int
    shift: int = 0
    turns: tuple[int, ...] = ()
    pieces: int = 1
    own: int = 0

    def __str__(self) -> str:
        if not self.weight:
            return f"straight to {self.base - 1}"
        named = f"{self.base} nodes" if self.across else str(self.base)
        pieces = self.pieces + (self.own != 0)
        return named if pieces == 1 else f"{named} in {pieces} pieces"

    @property
    def is_divided(self) -> bool:
        """True if the chunks for a partner go in several messages."""
        return self.pieces > 1 or self.own != 0

    @property
    def undivided(self) -> Digit:
        """The digit with one message for each partner."""
        return self._replace(pieces=1, own=0) if self.is_divided else self


class PlanPart(NamedTuple):
    """Plan of a part of the chunks: the digits along which its sums are scattered, and exchanged whole.

    Chunks are scattered along `scattered`, then exchanged whole along `summed`, then gathered along
    `scattered` in the opposite order. Whole chunks may also be summed along `before` before they are
    scattered, and along `after` after they are gathered. Parts of `BY_NODE` are only gathered; they cross
    between nodes along `summed` before that, or along `after`.
    """

    scattered: tuple[Digit, ...]
    summed: tuple[Digit, ...] = ()
    before: tuple[Digit, ...] = ()
    after: tuple[Digit, ...] = ()

    def __str__(self) -> str:
        named = ("sum", self.before), ("scatter", self.scattered), ("sum", self.summed), ("sum", self.after)
        return ", ".join(f"{name} {' x '.join(map(str, some))}" for name, some in named if some)

    @property
    def is_divided(self) -> bool:
        """True if a step inside nodes has several pieces, so that it overlaps with one between nodes."""
        return any(digit.is_divided for digit in self.scattered)

    @property
    def undivided(self) -> PlanPart:
        """The plan with one message for each partner in all steps."""
        return self._replace(scattered=tuple(digit.undivided for digit in self.scattered))

    @property
    def crossings(self) -> frozenset[Digit]:
        """Digits of the steps between nodes."""
        every = *self.scattered, *self.summed, *self.before, *self.after
        return frozenset(digit for digit in every if digit.across)

    def steps(self, *, spreads: bool = False, to_one: bool = False) -> list[tuple[str, Digit]]:
        """Steps of the part in order, as (verb, digit).

        - `spreads`: True for chunks without sums, which are only gathered.
        - `to_one`: True for sums that stay where they are scattered to.
        """
        scattered, gathered = _with_own(self.scattered)
        scattered, gathered = () if spreads else scattered, () if to_one and not spreads else gathered
        verbs = ("scatter", scattered), ("sum", self.summed), ("gather", gathered)
        steps = ("sum", self.before), *verbs, ("sum", self.after)
        return [(verb, digit) for verb, digits in steps for digit in digits]


class StepPlan(NamedTuple):
    """Plan of recursive multiplying: the plans of all parts of the chunks.

    Parts that take the same step share its messages, except with `BEHIND`, `BY_NODE` and `MIXED`.

    - `how`: Kind of division into parts; empty for a single part.
    - `sizes`: Number of chunks of each part of `MIXED`; for `BY_NODE`, that of each rank. If it is empty,
      `MIXED` does not apply, and each part of `BY_NODE` has all chunks of its nodes.
    - `delays`: (index of a step, its earliest start in us) of each part of `MIXED`; empty if there are none.
    """

    parts: tuple[PlanPart, ...]
    how: str = ""
    sizes: tuple[int, ...] = ()
    delays: tuple[tuple[int, float], ...] = ()

    def __str__(self) -> str:
        if self.how == MIXED:
            largest = self.parts[self.sizes.index(max(self.sizes))]
            others = len({*self.parts}) - 1
            mixed = f"mixed with {format_count(others, 'other plan')} " if others else ""
            return f"{largest}, {mixed}in {len(self.parts)} parts"
        if self.how == BY_NODE:
            own = next(part for part in self.parts if not part.summed)._replace(after=())
            number = sum(bool(part.summed or part.after) for part in self.parts)
            return f"{own}, {BY_NODE}" + (f" in {number} batches" if self.sizes else "")
        return f"{self.parts[-1]}{self.how and ', '}{self.how}"

    @property
    def block(self) -> int:
        """Number of consecutive chunks given to a part at once: enough for the scatter steps of each part."""
        return max(math.prod(digit.base for digit in part.scattered) for part in self.parts)


class PlanStep(NamedTuple):
    """Step that `parts` take together, between ranks that differ in `digit`.

    - `verb`: ``"scatter"``, ``"sum"`` or ``"gather"``.
    """

    verb: str
    digit: Digit
    parts: tuple[int, ...]


def straight_digit(num_nodes: int, num_local: int) -> Digit:
    """Digit of a step in which each rank exchanges directly with all ranks of other nodes."""
    return Digit(True, (num_nodes - 1) * num_local + 1, 0)


def is_simple(plan: StepPlan) -> bool:
    """True if a plan treats all chunks alike, with at most two steps in nodes and two between nodes.

    The two steps inside nodes have groups of similar size, and so do the two between nodes.
    """
    if plan.how:
        return False
    part = plan.parts[0]
    digits = (*part.scattered, *part.summed)
    bases = [[digit.base for digit in digits if digit.across is across] for across in (False, True)]
    return all(len(some) <= 2 and max(some, default=0) <= _ALIKE * min(some, default=0) for some in bases)


def all_plans(num_nodes: int, num_local: int, *, sums: bool, to_one: bool, most: int) -> Iterator[StepPlan]:
    """Yield all plans of recursive multiplying for nodes of equal size.

    - `sums`: True if chunks are summed.
    - `to_one`: True if each chunk has one destination.
    - `most`: Max base of a digit, i.e. max ranks of a group.
    """
    for inner in _all_bases(num_local, most):
        local = tuple(_digits(inner, across=False))
        if num_nodes > 1 and sums == to_one:
            crossings = [Digit(True, num_nodes, 1, turns=(turn,)) for turn in range(1, num_nodes)]
            yield StepPlan((*(PlanPart(local, (each,)) for each in crossings), PlanPart(local)), BY_NODE)
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


def all_mixable(num_nodes: int, num_local: int, *, most: int) -> Iterator[PlanPart]:
    """Yield plans for parts of a mixed allreduce plan, on nodes of equal size; some are repeated.

    Parts may be scattered between nodes before they are scattered inside nodes. Then ports inside nodes carry
    fewer bytes, and NICs are in use from the start.

    - `most`: Max base of a digit, i.e. max ranks of a group.
    """
    for inner in _all_bases(num_local, most):
        local = tuple(_digits(inner, across=False))
        for outer in _all_bases(num_nodes, most):
            far = tuple(_digits(outer, across=True))
            for i in range(len(local) + 1):
                for j in range(len(far) + 1):
                    near, out = local[i:], far[j:]
                    for scattered in _in_pieces(local[:i], far[:j]):
                        yield PlanPart(scattered, (*near, *out))
                        yield PlanPart(scattered, (*out, *near))
                        yield PlanPart(scattered, near, before=out)
                        yield PlanPart(scattered, near, after=out)
                    yield PlanPart((*far[:j], *local[:i]), (*near, *out))
                    yield PlanPart((*far[:j], *local[:i]), (*out, *near))


def _with_own(scattered: tuple[Digit, ...]) -> tuple[tuple[Digit, ...], tuple[Digit, ...]]:
    """Digits along which to scatter, then those along which to gather.

    A digit that leaves out chunks of the own node has a further step for these, after that between nodes.
    """
    there: list[Digit] = []
    back: list[Digit] = []
    left_out: list[Digit] = []
    for digit in scattered:
        there += [digit, *left_out]
        left_out = [digit._replace(pieces=1, own=-digit.own)] if digit.own < 0 else []
        back += [digit, *left_out]
    return tuple(there), tuple(reversed(back))


def _in_pieces(local: tuple[Digit, ...], far: tuple[Digit, ...]) -> Iterator[tuple[Digit, ...]]:
    """Yield the digits with each division of the messages in the last step inside nodes.

    The number of partners in the step between nodes is a multiple of the number of pieces.
    """
    yield *local, *far
    if local and far:
        base = far[0].base
        for number, own in ((base, 0), (base - 1, -base)):
            for pieces in range(1, number + 1):
                if number % pieces == 0 and (own or pieces > 1):
                    yield *local[:-1], local[-1]._replace(pieces=pieces, own=own), *far


def _plans_of_sums(local: tuple[Digit, ...], far: tuple[Digit, ...], i: int, j: int) -> Iterator[StepPlan]:
    """Yield plans that scatter sums along the first i digits of local ranks and the first j of nodes."""
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
    """Yield factorisations of a number, as ordered tuples of factors from 2 to `most`."""
    if number == 1:
        yield ()
    for base in range(2, min(number, most) + 1):
        if number % base == 0:
            for rest in _all_bases(number // base, most):
                yield (base, *rest)


def _digits(bases: Sequence[int], *, across: bool) -> Iterator[Digit]:
    """Yield digits with the given bases, the lowest digit first."""
    weight = 1
    for base in bases:
        yield Digit(across, base, weight)
        weight *= base
