"""Placement: which rank is on which host, what that is predicted to gain, and the files that tell others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from taccl.baselines.routes import ShortestRoutes
from taccl.errors import InputError
from taccl.html import card, facts
from taccl.placement.fabric import problem_of
from taccl.schedule.timing import exact_times
from taccl.topology.transform import relabel
from taccl.units import format_size, format_us

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from taccl.placement.algorithms import Algorithm
    from taccl.schedule.schedule import Schedule
    from taccl.topology.topology import Topology

#: Gains below are told in per cent.
_LITTLE = 1.1


@dataclass(frozen=True, eq=False, repr=False)
class Placement:
    """An order of ranks, and what is known of it; `taccl.reorder` returns one.

    Parameters
    ----------
    topology : Topology
        The hosts, as they were given.
    algorithm : Algorithm
        What runs in rank order; its `name` and `collective` say what that is.
    size_bytes : int
        The larger of one rank's input and output buffer.
    order : tuple of int
        The host slot of every rank; before, rank r was on slot r.
    before_us, after_us : float
        Simulated times of the algorithm in the order given, and in the new one.
    bound_us : float
        No order finishes earlier.
    proven : bool
        Whether the order is the best of all.
    limits : pair of (str, float)
        Before and now: the resource that is busy for longest, and for which part of the time.
    distance_us : (num_hosts, num_hosts) array
        For how long the largest message holds what lies between two hosts, all of it together.
    """

    topology: Topology
    algorithm: Algorithm
    size_bytes: int
    order: tuple[int, ...]
    before_us: float
    after_us: float
    bound_us: float
    proven: bool = False
    limits: tuple[tuple[str, float], tuple[str, float]] = (("", 0.0), ("", 0.0))
    distance_us: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))

    @property
    def gain(self) -> float:
        """How many times as long the order given takes."""
        return self.before_us / self.after_us

    @property
    def faster(self) -> str:
        """The gain in words: per cent where it is little."""
        little = self.gain < _LITTLE
        return f"{self.gain - 1:.1%} faster" if little else f"{self.gain:.3g} times as fast"

    @property
    def why(self) -> str:
        """What the new order gains, or why there is nothing to gain; and what limits it."""
        before, now = (f"{name} is busy {part:.0%} of the time" for name, part in self.limits)
        if self.order != tuple(range(len(self.order))):
            proof = ", and no order is faster" if self.proven else ""
            return f"{self.faster}{proof}; before, {before}; now, {now}"
        known = "no order is faster than the one given" if self.proven else "no faster order was found"
        return f"nothing to gain: {known}; {now}"

    def schedule(self) -> Schedule:
        """The algorithm in the new order as a schedule, with exact times, to verify, draw or lower.

        There what shares a resource takes turns, and holds all of its resources together: it finishes no
        earlier than `after_us`, but for algorithms whose ranks wait for whole steps (pairwise), as it waits
        for data alone.

        Raises
        ------
        InputError
            If the algorithm sends where no link leads.
        """
        steps, topology = self.algorithm, relabel(self.topology, np.argsort(self.order).tolist())
        problem = problem_of(steps, topology, self.size_bytes)
        routes, link = ShortestRoutes.of(problem), []
        for src, dst in zip(steps.src.tolist(), steps.dst.tolist(), strict=True):
            direct = routes.direct(src, dst)
            if direct is None:
                said = f"found no link from rank {src} to rank {dst}; a schedule sends over links alone"
                raise InputError(said, where=self.topology.name)
            link.append(direct[1])
        _, together = np.unique(steps.message, return_counts=True)
        merged = problem.with_clauses(merging=frozenset(link), max_merge=int(together.max(initial=1)))
        return exact_times(
            merged, chunk=steps.chunk, link=link, sequence=steps.message, group=steps.message,
            reduce=steps.reduces, contributions=steps.carries, producer=f"{steps.name}, renumbered",
        )  # fmt: skip

    @property
    def title(self) -> str:
        """What runs, how much of it, and on what."""
        what = f"{self.algorithm.name} {self.algorithm.collective.name} of {format_size(self.size_bytes)}"
        return f"{what} on {self.topology.name}"

    def to_dict(self) -> dict[str, Any]:
        """What is known as plain values."""
        figures = ("size_bytes", "before_us", "after_us", "bound_us", "gain", "proven", "why")
        return {
            "topology": self.topology.name,
            "collective": self.algorithm.collective.name,
            "algorithm": self.algorithm.name,
            **{name: getattr(self, name) for name in figures},
            "order": list(self.order),
        }

    @property
    def times(self) -> list[tuple[str, str]]:
        """Before, after and the bound, as text."""
        figures = {"before": self.before_us, "after": self.after_us, "bound": self.bound_us}
        return [(name, format_us(us)) for name, us in figures.items()]

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        more = [("why", self.why), ("order", " ".join(map(str, self.order)))]
        return card(self.title, facts([*self.times, *more]), notes=self.topology.notes)

    def __repr__(self) -> str:
        return f"Placement({self.title}: {', '.join(map(' '.join, self.times))})"
