"""Pattern of an implicit schedule: sends seen from place 0, and their costs in ticks."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taccl._internal.units import BYTES_PER_MB
from taccl.errors import InputError, TopologyError
from taccl.problem.costs import MAX_TICKS_PER_US, ROUNDED_TICKS_PER_US
from taccl.topology.translations import LinkClass

#: Max ticks of a send. Then any number of sends that fits into memory, in sequence, fits into 64 bits.
_MAX_SEND_TICKS = 2**31


class ClassTicks(NamedTuple):
    """Costs of sending one chunk in ticks, for each class of links.

    - `latency`: Duration of a send, by class.
    - `holds`: (resource class, ticks held, ticks from the start of the send to the hold) by class.
    """

    ticks_per_us: int
    latency: NDArray[np.int64]
    holds: tuple[tuple[tuple[int, int, int], ...], ...]


def ticks_of(classes: tuple[LinkClass, ...], chunk_bytes: int) -> ClassTicks:
    """Costs in whole ticks: exact, or rounded up on a coarser grid if the exact one has too many ticks.

    The grid is one of those that `taccl.problem.costs.exact_costs` chooses from.
    """
    scale = Fraction(chunk_bytes, BYTES_PER_MB)
    values = [(each.alpha_us, each.beta_us_per_mb * scale) for each in classes]
    values += [(hold.alpha_us, hold.beta_us_per_mb * scale) for each in classes for hold in each.holds]

    def ticks(alpha: Fraction, beta: Fraction) -> int:
        return math.ceil(alpha * grid) + math.ceil(beta * scale * grid)

    grid = math.lcm(*{v.denominator for pair in set(values) for v in pair})
    longest = max((ticks(each.alpha_us, each.beta_us_per_mb) for each in classes), default=0)
    if grid > MAX_TICKS_PER_US or longest > _MAX_SEND_TICKS:
        grid = min(grid, ROUNDED_TICKS_PER_US)
    latency = [ticks(each.alpha_us, each.beta_us_per_mb) for each in classes]
    if max(latency, default=0) > _MAX_SEND_TICKS:
        raise TopologyError(
            f"found a send of {max(latency)} ticks; expected at most {_MAX_SEND_TICKS}: give smaller costs "
            "or chunks, or costs with fewer decimals",
            where="alpha, beta",
        )
    holds = []
    for each, whole in zip(classes, latency, strict=True):
        rows = []
        for hold in each.holds:
            length = ticks(hold.alpha_us, hold.beta_us_per_mb)
            rows.append((hold.resource, length, whole - length if hold.side == "receive" else 0))
        holds.append(tuple(rows))
    return ClassTicks(grid, np.array(latency, dtype=np.int64), tuple(holds))


class Pattern(NamedTuple):
    """Sends seen from place 0, in order of start, as columns with one value per row.

    - `item`: Index of a chunk of place 0. For an alltoall it is ``offset * chunks_per_rank + piece``, where
      the offset is the destination's place; otherwise it is the piece. For a sum, place 0 is the root.
    - `src`, `dst`: Places.
    - `link_class`: Class of the link between them.
    - `start`: Start in ticks.
    - `reduce`: True if the chunk is added to the destination's content.
    """

    item: NDArray[np.int32]
    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    link_class: NDArray[np.int32]
    start: NDArray[np.int64]
    reduce: NDArray[np.bool_]

    @classmethod
    def sorted(cls, *rows: ArrayLike) -> Pattern:
        """The pattern from columns whose rows are in any order."""
        kinds = (*[np.int32] * 4, np.int64, bool)
        columns = [np.asarray(column, dtype=kind) for column, kind in zip(rows, kinds, strict=True)]
        if len({column.shape for column in columns}) > 1 or columns[0].ndim != 1:
            raise InputError(
                f"found columns of shapes {[column.shape for column in columns]}; expected one value per row",
                where="pattern",
            )
        starts = columns[4]
        if len(starts) > 1 and not (starts[1:] >= starts[:-1]).all():
            order = np.lexsort((columns[0], columns[3], starts))
            columns = [column[order] for column in columns]
        for column in columns:
            column.setflags(write=False)
        return cls(*columns)
