"""Placement: host of each rank, predicted gain, and the schedule in the new order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from taccl._internal.html import card, facts
from taccl._internal.units import format_size, format_us
from taccl.baselines.routes import ShortestRoutes
from taccl.errors import InputError
from taccl.placement.fabric import problem_of
from taccl.placement.hosts import ProbedHosts
from taccl.schedule.schedule import make_schedule
from taccl.topology.transform import relabel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from taccl.placement.algorithms import Algorithm
    from taccl.placement.judging import Judgement
    from taccl.schedule.schedule import Schedule
    from taccl.topology.topology import Topology

#: `_LITTLE`: min speedup given as a factor; smaller ones are given in per cent.
#: `_NONE`: speedups of at most 1 plus this value count as no speedup.
_LITTLE, _NONE = 1.1, 5e-4
#: Wording of the claim that branch and bound proves.
_SIMULATED = "is simulated faster"


@dataclass(frozen=True, eq=False, repr=False)
class Placement:
    """Order of ranks with its predicted times; the result of `taccl.reorder`.

    Parameters
    ----------
    hosts : Topology or ProbedHosts
        The hosts as given; the property `topology` turns a probe into a topology.
    algorithm : Algorithm
        Algorithm that runs in rank order, with its `name` and `collective`.
    size_bytes : int
        The larger of one rank's input and output buffer.
    order : tuple of int
        Host slot of every rank; the original order has rank r on slot r.
    before_us, after_us : float
        Simulated finish in the original and in the new order; `schedule` gives all start and end times.
    bound_us : float
        Lower bound on the simulated finish over all orders of ranks; 0 if time was too short for it.
    proven : bool
        True if no order of ranks finishes earlier in this simulation, in which each resource serves messages
        in the algorithm's order.
    limits : pair of (str, float)
        For the original and the new order: the resource with the largest load, and its load as a part of the
        finish.
    distance_us : (num_hosts, num_hosts) array
        Time of the largest message between two hosts, plus the times for which it holds resources.
    before_least_us : float
        Lower bound on the finish in the original order over all ways in which messages may share resources.
    judgement : Judgement, optional
        Statistical test of the gain on a probe; None without a probe or a gain.
    """

    hosts: Topology | ProbedHosts
    algorithm: Algorithm
    size_bytes: int
    order: tuple[int, ...]
    before_us: float
    after_us: float
    bound_us: float
    proven: bool = False
    limits: tuple[tuple[str, float], tuple[str, float]] = (("", 0.0), ("", 0.0))
    distance_us: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    before_least_us: float = 0.0
    judgement: Judgement | None = None

    @property
    def topology(self) -> Topology:
        """The hosts as a topology with a link for each pair; that of a probe is built at the first access."""
        return self.hosts.topology if isinstance(self.hosts, ProbedHosts) else self.hosts

    @property
    def gain(self) -> float:
        """Guaranteed speedup in the simulation: `before_least_us` over `after_us`, at least 1."""
        return max(1.0, self.before_least_us / self.after_us)

    @property
    def faster(self) -> str:
        """Speedup in words, with the part of it that is guaranteed."""
        if self.after_us >= self.before_us:
            return "as fast as before"
        if self.gain >= _LITTLE:
            return f"at least {self.gain:.3g} times as fast"
        simulated = f"{self.before_us / self.after_us - 1:.1%} faster as simulated"
        certain = f"at least {self.gain - 1:.1%} certain"
        return f"{simulated}, {certain if self.gain > 1 + _NONE else 'not certain'}"

    @property
    def why(self) -> str:
        """Speedup of the new order, or the reason that there is none, and the bottleneck resources."""
        before, now = (f"{name} is busy {part:.0%} of the time" for name, part in self.limits)
        assumed = (self.hosts.costs if isinstance(self.hosts, ProbedHosts) else self.hosts).assumed
        model = " for this model" if assumed else ""
        if self.order != tuple(range(len(self.order))):
            proof = f"; proven: no order {_SIMULATED}" if self.proven else ""
            judged = "" if self.judgement is None else f"; {self.judgement}"
            return f"{self.faster}{model}{proof}{judged}; before, {before}; now, {now}"
        if self.judgement is not None and not self.judgement.is_trusted:
            return f"the given order is kept; {self.judgement}; {now}"
        known = "no faster order was found"
        if self.proven:
            known = f"proven{model}: no order {_SIMULATED} than the one given"
        return f"nothing to gain: {known}; {now}"

    def schedule(self) -> Schedule:
        """The algorithm in the new order as a schedule, to verify, draw or lower.

        Its makespan is `after_us`, as both come from the same simulation.

        Raises
        ------
        InputError
            If the algorithm sends between hosts that no link joins.
        """
        from taccl.placement.case import Case

        steps, topology = self.algorithm, relabel(self.topology, np.argsort(self.order).tolist())
        problem = problem_of(steps, topology, self.size_bytes)
        routes, link = ShortestRoutes.of(problem), []
        for src, dst in zip(steps.src.tolist(), steps.dst.tolist(), strict=True):
            direct = routes.direct(src, dst)
            if direct is None:
                said = f"found no link from rank {src} to rank {dst}; a schedule sends only over links"
                raise InputError(said, where=self.hosts.name)
            link.append(direct[1])
        _, together = np.unique(steps.message, return_counts=True)
        merged = problem.with_clauses(merging=frozenset(link), max_merge=int(together.max(initial=1)))
        case = Case(self.hosts, steps.collective.name, steps, self.size_bytes, on_links=True)
        end, units = case.ends(self.order)[steps.message], case.messages.units[steps.message]
        duration = problem.costs.link_alpha[link] + units * problem.costs.link_beta[link]
        return make_schedule(
            merged, chunk=steps.chunk, link=link, start=end - duration, end=end, group=steps.message,
            reduce=steps.reduces, contributions=steps.carries, producer=f"{steps.name}, renumbered",
        )  # fmt: skip

    @property
    def title(self) -> str:
        """Collective, size and topology, in one line."""
        what = f"{self.algorithm.name} {self.algorithm.collective.name} of {format_size(self.size_bytes)}"
        return f"{what} on {self.hosts.name}"

    def to_dict(self) -> dict[str, Any]:
        """The placement as plain values."""
        figures = (
            "size_bytes", "before_us", "before_least_us", "after_us", "bound_us", "gain", "proven", "why",
        )  # fmt: skip
        return {
            "topology": self.hosts.name,
            "collective": self.algorithm.collective.name,
            "algorithm": self.algorithm.name,
            **{name: getattr(self, name) for name in figures},
            "order": list(self.order),
            "judgement": None if self.judgement is None else self.judgement.to_dict(),
        }

    @property
    def times(self) -> list[tuple[str, str]]:
        """Simulated finish before and after, and the lower bound over all orders, as text."""
        figures = {
            "simulated before": self.before_us, "simulated after": self.after_us,
            "lower bound over all orders": self.bound_us,
        }  # fmt: skip
        return [(name, format_us(us)) for name, us in figures.items()]

    def _repr_html_(self) -> str:
        """HTML for notebooks."""
        more = [("why", self.why), ("order", " ".join(map(str, self.order)))]
        return card(self.title, facts([*self.times, *more]), notes=self.hosts.told)

    def __repr__(self) -> str:
        return f"Placement({self.title}: {', '.join(map(' '.join, self.times))})"
