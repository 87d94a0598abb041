"""How the ranks of one dimension pass on what each of them has: round a ring, straight, or by doubling.

A form says over which links what starts at each rank goes, and when, in steps. Every rank has as many pieces,
which go one after another; reductions run a form backwards. All forms but a line's look the same from every
rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from taccl.topology.products import Dimension

__all__ = ["Form", "Pace", "Timed", "best_form"]


class Pace(NamedTuple):
    """Ticks for which a send of one piece holds what it goes over, and that it takes.

    Where `merge` pieces may go in one send, `alpha` of the ticks held are paid once for all of them.
    """

    held: int
    latency: int
    alpha: int = 0
    merge: int = 1


class Form(NamedTuple):
    """Hops of what starts at the ranks of a dimension.

    Parameters
    ----------
    waits : bool
        Whether hops of a step wait for what arrives in the step before.
    src, dst : (size, num_hops) int64
        Digits of ranks, in the row of the rank where it starts.
    step, turn : (size or 1, num_hops) int64
        Hops of one step that share a port have turns, in each of which all pieces of a rank go.
    half : (1, num_hops) int64
        -1 of all pieces, 0 or 1 of every other.
    target : (num_hops,) int64
        Whom it is for, by how much digits differ; 0 where it is for all.
    """

    name: str
    waits: bool
    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    step: NDArray[np.int64]
    turn: NDArray[np.int64]
    half: NDArray[np.int64]
    target: NDArray[np.int64]

    def timed(self, num_pieces: int, pace: Pace) -> Timed:
        """When each piece goes over each hop."""
        halved, begin = -(-num_pieces // 2), 0
        begins, each = [], []
        step, turn, is_half = self.step[0], self.turn[0], self.half[0] >= 0
        for number in range(int(step.max()) + 1):
            own, halves = step == number, is_half[step == number].any()
            begins.append(begin)
            each.append(halved if halves else num_pieces)
            # What only a half of the pieces do after all others closes ranks: the last wait for their turn.
            closes = is_half[step == number + 1].any() and not halves and not self.target.any()
            wait = self.waits * (pace.latency + closes * (num_pieces // 2) * pace.held)
            begin += max((int(turn[own].max()) + 1) * each[-1] * pace.held, wait)
        pieces, half = np.arange(num_pieces), self.half[..., None]
        place = np.where(half >= 0, pieces // 2, pieces)
        at = (np.array(column)[self.step][..., None] for column in (begins, each))
        offset = next(at) + (self.turn[..., None] * next(at) + place) * pace.held
        goes = np.broadcast_to((half < 0) | (half == pieces % 2), offset.shape)
        last = int(offset[goes].max())
        return Timed(self, offset, goes, last + pace.held, last + pace.latency)

    def merged_ticks(self, num_pieces: int, pace: Pace) -> int:
        """About how long it takes where pieces that go over one link in a step are merged."""
        step, turn, half = self.step[0], self.turn[0], self.half[0]
        by, total = (self.dst[0] - self.src[0]) % len(self.src), 0
        for number in range(int(step.max()) + 1):
            own = step == number
            turns = int(turn[own].max()) + 1
            run = -(-num_pieces // 2) if half[own].max() >= 0 else num_pieces
            if len(np.unique(by[own])) == 1:  # all turns are those of one link
                run, turns = run * turns, 1
            total += turns * (-(-run // pace.merge) * pace.alpha + run * (pace.held - pace.alpha))
        return total + (int(step.max()) * self.waits + 1) * (pace.latency - pace.held)


class Timed(NamedTuple):
    """A form at a pace; `offset`, in ticks, and `goes` are (size or 1, num_hops, num_pieces).

    The dimension is busy until `busy` ticks after its begin, and all has arrived after `span`.
    """

    form: Form
    offset: NDArray[np.int64]
    goes: NDArray[np.bool_]
    busy: int
    span: int


def best_form(each: Dimension, num_pieces: int, pace: Pace, *, exchange: bool) -> Timed:
    """The form in which all is there first, of those that suit a dimension; its times are without merging.

    Parameters
    ----------
    num_pieces : int
        That every rank has for all others, or, in an exchange, for each.
    exchange : bool
        Whether ranks have something else for each other rank, as in an alltoall.
    """
    forms = _exchanges(each) if exchange else _spreads(each)
    if pace.merge > 1:
        return min(forms, key=lambda form: form.merged_ticks(num_pieces, pace)).timed(num_pieces, pace)
    return min((form.timed(num_pieces, pace) for form in forms), key=lambda timed: timed.span)


def _spreads(each: Dimension) -> list[Form]:
    size = each.size
    if each.kind == "line":
        return [_on_a_line(size)]
    if size > 2 and each.kind == "ring":
        near = [(way * s, way * (s + 1), s, 0, -1, 0) for s in range((size - 1) // 2) for way in (1, -1)]
        far = size // 2 - 1
        last = [(way * far, way * (far + 1), far, 0, int(way == -1), 0) for way in (1, -1)]
        return [_alike("ring", True, size, near + last * (size % 2 == 0))]
    port = each.kind == "switch"
    direct = [(0, d, 0, (d - 1) * port, -1, 0) for d in range(1, size)]
    bits = [(1 << bit, bit) for bit in range((size - 1).bit_length())]
    doubling = [(i, i + far, bit, i, -1, 0) for far, bit in bits for i in range(min(far, size - far))]
    around = [(s, s + 1, s, 0, -1, 0) for s in range(size - 1)]
    return [
        _alike("direct", False, size, direct), _alike("doubling", True, size, doubling),
        _alike("ring", True, size, around),
    ]  # fmt: skip


def _exchanges(each: Dimension) -> list[Form]:
    size = each.size
    if size == 2 or each.kind != "ring":
        port = each.kind == "switch"
        hops = [(0, d, 0, (d - 1) * port, -1, d) for d in range(1, size)]
        return [_alike("direct", False, size, hops)]
    hops, step = [], 0
    for i in range(size // 2):
        for far in range(i + 1, size // 2 + 1):
            for way in (1, -1):
                half = int(way == -1) if 2 * far == size else -1
                hops.append((way * i, way * (i + 1), step, 0, half, way * far))
            step += 1
    return [_alike("ring", True, size, hops)]


def _alike(name: str, waits: bool, size: int, hops: Iterable[tuple[int, ...]]) -> Form:
    """The same hops from every rank."""
    src, dst, step, turn, half, target = (np.array(column, np.int64) for column in zip(*hops, strict=True))
    rank = np.arange(size)[:, None]
    once = step[None, :], turn[None, :], half[None, :]
    return Form(name, waits, (src + rank) % size, (dst + rank) % size, *once, target % size)


def _on_a_line(size: int) -> Form:
    """Both ways from every rank to the ends, what comes from farther away behind what is from nearer."""
    rank, hop = np.arange(size)[:, None], np.arange(size - 1)[None, :]
    above = size - 1 - rank
    far = np.where(hop < above, hop, hop - above)
    way = np.where(hop < above, 1, -1)
    src = rank + way * far
    return Form("line", True, src, src + way, far, 0 * far, 0 * hop - 1, 0 * hop[0])
