"""Placement: which rank is on which host, what that is predicted to gain, and the files that tell others."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

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

__all__ = ["Placement"]


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
    given, order : tuple of int
        The host slot of every rank, before and now.
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
    given: tuple[int, ...]
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
    def is_new(self) -> bool:
        """Whether there is anything to gain."""
        return self.order != self.given

    @property
    def why(self) -> str:
        """What the new order gains, or why there is nothing to gain; and what limits it."""
        before, now = (f"{name} is busy {part:.0%} of the time" for name, part in self.limits)
        if self.is_new:
            proof = ", and no order is faster" if self.proven else ""
            return f"{self.gain:.3g} times as fast{proof}; before, {before}; now, {now}"
        if self.proven:
            return f"nothing to gain: no order is faster than the one given; {now}"
        return f"nothing to gain: no faster order was found; {now}"

    @cached_property
    def slot_rank(self) -> tuple[int, ...]:
        """The rank of every host slot."""
        return tuple(int(rank) for rank in np.argsort(self.order))

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
        steps, topology = self.algorithm, relabel(self.topology, self.slot_rank)
        problem = problem_of(steps, topology, self.size_bytes)
        usual = int(problem.costs.chunk_units.max(initial=1))
        fastest: dict[tuple[int, int], tuple[int, int]] = {}
        for e, ends in enumerate(topology.links):
            if len(ends.srcs) + len(ends.dsts) == 2:
                choice = (problem.costs.duration(e, usual), e)
                fastest[ends.src, ends.dst] = min(choice, fastest.get((ends.src, ends.dst), choice))
        pairs = list(zip(steps.src.tolist(), steps.dst.tolist(), strict=True))
        for src, dst in pairs:
            if (src, dst) not in fastest:
                said = f"found no link from rank {src} to rank {dst}; a schedule sends over links alone"
                raise InputError(said, where=self.topology.name)
        link = [fastest[pair][1] for pair in pairs]
        _, together = np.unique(steps.message, return_counts=True)
        merged = problem.with_clauses(merging=frozenset(link), max_merge=int(together.max(initial=1)))
        return exact_times(
            merged, chunk=steps.chunk, link=link, sequence=steps.message, group=steps.message,
            reduce=steps.reduces, contributions=steps.carries, producer=f"{steps.name}, renumbered",
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """What is known as plain values."""
        return {
            "topology": self.topology.name,
            "collective": self.algorithm.collective.name,
            "algorithm": self.algorithm.name,
            **{
                name: getattr(self, name)
                for name in ("size_bytes", "before_us", "after_us", "bound_us", "gain", "proven", "why")
            },
            "given": list(self.given),
            "order": list(self.order),
        }

    def _facts(self) -> list[tuple[str, str]]:
        return [
            ("before", format_us(self.before_us)),
            ("after", format_us(self.after_us)),
            ("bound", format_us(self.bound_us)),
            ("why", self.why),
        ]

    @property
    def title(self) -> str:
        """What runs, how much of it, and on what."""
        what = f"{self.algorithm.name} {self.algorithm.collective.name} of {format_size(self.size_bytes)}"
        return f"{what} on {self.topology.name}"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        order = ("order", " ".join(map(str, self.order)))
        return card(self.title, facts([*self._facts(), order]), notes=self.topology.notes)

    def __repr__(self) -> str:
        figures = ", ".join(f"{name} {value}" for name, value in self._facts()[:3])
        return f"Placement({self.title}: {figures})"
