"""Mixes of plans on a mesh: parts of the chunks follow images of several plans."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taccl.baselines.hubs import PlanSends
    from taccl.baselines.moves import Ints
    from taccl.problem.problem import Problem


class TreeMix(NamedTuple):
    """Mix of plans on a mesh: parts of the chunks follow images of the plans.

    - `plans`: (sends of a plan, permutations of the ranks) of each plan; one permutation for each part.
    - `finish_us`: Estimated finish in us; ignores that parts of the data are rounded to whole bytes.
    """

    plans: tuple[tuple[PlanSends, list[Ints]], ...]
    finish_us: float

    def __str__(self) -> str:
        return f"a mix of {len(self.plans)} plans" if len(self.plans) > 1 else "one plan"

    def groups(self) -> Sequence[tuple[PlanSends, list[Ints]]]:
        """(sends, permutations of the ranks) of each plan."""
        return self.plans

    @property
    def num_parts(self) -> int:
        """Number of parts of the chunks."""
        return sum(len(copies) for _, copies in self.plans)

    def parts_per_chunk(self, problem: Problem) -> int:
        """Least number of parts of each chunk with which all parts have equally many chunks."""
        number = self.num_parts
        return number // math.gcd(number, problem.collective.num_chunks)

    def num_transfers(self, problem: Problem) -> int:
        """Number of transfers in a problem: its chunks times the mean over parts of transfers per chunk."""
        total = sum(len(sends[0]) * len(copies) for sends, copies in self.plans)
        return round(total / self.num_parts * problem.collective.num_chunks)

    def estimated_us(self, problem: Problem) -> float:
        """Estimated finish in us; ignores that parts of the data are rounded to whole bytes."""
        return self.finish_us
