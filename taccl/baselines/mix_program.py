"""Linear program for the shares of plans in a mix, such that all steps together take the least time.

Plans may be added between solutions, as column generation does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from taccl.solvers.highs import GrowingProgram

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from taccl.baselines.moves import Ints

    Floats = NDArray[np.float64]


class Solved(NamedTuple):
    """Solution of the linear program for the shares of plans.

    - `prices`: (num_classes, num_steps) price of a send over a link of each class in each step, in us.
    - `plan_price`: Price of a plan, in us; plans whose sends cost less shorten the finish.
    """

    finish_us: float
    shares: Floats
    prices: Floats
    plan_price: float


class MixProgram:
    """Linear program for the shares of plans if a send may both add and copy.

    The time of a step is at least the latency plus the bytes of each link times its beta.

    - `loads`: (num_plans, 2, num_classes, num_steps), as in `MeshPlans`.
    - `latency`: (num_classes, num_steps) us in which a link sends nothing.
    - `beta`: (num_classes,) us per send of all bytes.
    """

    def __init__(self, loads: Floats, latency: Floats, beta: Floats) -> None:
        self._shape, self._beta, self._first = loads.shape[2:], beta, len(loads)
        num_rows, num_steps = latency.size, latency.shape[1]
        row = np.arange(num_rows)
        at_most = row, self._first + row % num_steps, np.full(num_rows, -1.0)
        cost = np.repeat((0.0, 1.0), (self._first, num_steps))
        entries = [np.append(*each) for each in zip(self._entries(loads), at_most, strict=True)]
        self._program = GrowingProgram(
            cost, (entries[0], entries[1], entries[2]), (-latency.ravel(), [1.0]), method="simplex"
        )

    def _entries(self, loads: Floats) -> tuple[Ints, Ints, Floats]:
        """(row, plan, value) of the nonzeros of plans with these loads."""
        num_classes, num_steps = self._shape
        count, num_rows = len(loads), num_classes * num_steps
        plan, _, kind, step = at = np.nonzero(loads)
        return (
            np.append(kind * num_steps + step, np.full(count, num_rows)),
            np.append(plan, np.arange(count)),
            np.append(loads[at] * self._beta[kind], np.ones(count)),
        )

    def add(self, loads: Floats) -> None:
        """Add plans with these loads."""
        self._program.add_columns(np.zeros(len(loads)), self._entries(loads))

    def solved(self) -> Solved | None:
        """Best shares of the plans; None if the linear program has no solution."""
        found, (num_classes, num_steps) = self._program.solved(), self._shape
        if found is None:
            return None
        prices = -found.duals[:-1].reshape(num_classes, num_steps) * self._beta[:, None]
        shares = np.delete(found.values, np.s_[self._first : self._first + num_steps])
        return Solved(found.objective, shares, prices, float(found.duals[-1]))
