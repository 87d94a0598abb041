"""How the ranks of one dimension pass on what each of them has: round a ring, straight, or by doubling.

A form says over which links what starts at each rank goes, and when. All ranks do the same, and each has as
many pieces; reductions run a form backwards. The two ways round a ring, or along a line, are lanes: nothing
that goes one way waits for the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taccl.topology.products import Dimension


class Pace(NamedTuple):
    """Ticks for which a send of one piece holds what it goes over, and that it takes."""

    held: int
    latency: int


class Hop(NamedTuple):
    """A hop of what starts at a rank, from and to ranks whose digits differ by so much from its own.

    Hops of one step that share a port have turns, in each of which all pieces go, or every other one: the
    even ones where `half` is 0, the odd ones where it is 1. In an exchange they are for the `target`.
    """

    src: int
    dst: int
    turn: int = 0
    half: int = -1
    target: int = 0

    def going(self, num_pieces: int, parity: int) -> range:
        """The pieces that go, one behind the other."""
        return range(num_pieces) if self.half < 0 else range(self.half ^ parity, num_pieces, 2)


class Run(NamedTuple):
    """What a lane does at a stretch: hops, and how many ticks after its begin their turns begin.

    The lane is 1 or -1 where there are two, as they go upwards or downwards. It is busy for `busy` ticks;
    what it does next begins `lag` ticks after the run, or later.
    """

    lane: int
    hops: tuple[tuple[int, Hop], ...]
    busy: int
    lag: int


class Form(NamedTuple):
    """The hops of every lane, step by step; in an exchange ranks have something else for each other rank."""

    lanes: tuple[tuple[tuple[Hop, ...], ...], ...]
    exchange: bool

    def runs(self, num_pieces: int, pace: Pace, *, parity: int, most: int) -> Iterator[Run]:
        """The runs of each lane in turn, at most so many; a step that waits for none begins no other.

        - `parity`: 1 where even and odd pieces change places, so that chunks in turn use both ways round a
          ring.
        """
        for way, lane in zip((1, -1) if len(self.lanes) > 1 else (0,), self.lanes, strict=True):
            steps = [step for step in lane if step[0].going(num_pieces, parity)]
            hops: list[tuple[int, Hop]] = []
            begin, fewest = 0, -(-len(steps) // most)
            for place, step in enumerate(steps):
                hops += [(begin + hop.turn * num_pieces * pace.held, hop) for hop in step]
                busy = pace.held * max(
                    hop.turn * num_pieces + len(hop.going(num_pieces, parity)) for hop in step
                )
                # In an exchange the turn before brings what goes next; of a half, pieces close ranks.
                late, last = num_pieces * self.exchange, place + 1 == len(steps)
                if not last and not self.exchange and steps[place + 1][0].half >= 0:
                    final = steps[place + 1][0].going(num_pieces, parity)[-1]
                    late = final - final // 2
                lag = pace.latency + late * pace.held
                if last or (lag > busy and (place + 1) % fewest == 0):
                    yield Run(way, tuple(hops), begin + busy, begin + lag)
                    hops, begin = [], 0
                else:
                    begin += max(busy, lag)


def form_of(each: Dimension, *, exchange: bool, doubling: bool = False) -> Form:
    """The form that suits a dimension; behind a switch straight, or, where pieces are merged, by doubling."""
    size, is_ring = each.size, each.kind == "ring" and each.size > 2
    if is_ring or each.kind == "line":
        reach = size // 2 if is_ring else size - 1

        def hop(way: int, i: int, far: int) -> Hop:
            half = int(way < 0) if is_ring and 2 * far == size else -1
            return Hop(way * i, way * (i + 1), far - i - 1, half, way * far % size * exchange)

        return Form(
            tuple(
                tuple(
                    tuple(hop(way, i, far) for far in range(i + 1, reach + 1 if exchange else i + 2))
                    for i in range(reach)
                )
                for way in (1, -1)
            ),
            exchange,
        )
    if each.kind == "switch" and doubling and not exchange:
        bits = [1 << bit for bit in range((size - 1).bit_length())]
        steps = [tuple(Hop(i, i + far, i) for i in range(min(far, size - far))) for far in bits]
        return Form((tuple(steps),), exchange)
    port = each.kind == "switch"
    hops = tuple(Hop(0, d, (d - 1) * port, target=d * exchange) for d in range(1, size))
    return Form(((hops,),), exchange)
