"""What a report tells of a schedule: everything is worked out here, and what could not be says why."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.simulation.simulate import simulate
from taccl.analysis.verification.verify import verify
from taccl.errors import TacclError
from taccl.plot.progress import moments_in
from taccl.plot.sizes import bandwidths
from taccl.schedule.compact import CompactSchedule
from taccl.synthesis.result import Result

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taccl.analysis.certificates.certificate import Certificate
    from taccl.analysis.simulation.simulation import Simulation
    from taccl.analysis.verification.verify import Verification
    from taccl.plot.sizes import Bandwidths
    from taccl.schedule.schedule import Schedule
    from taccl.synthesis.result import Moment

__all__ = ["Findings", "look_into"]

#: Seconds for the bound of a schedule that comes without one.
_BOUND_S = 5.0
#: Replaying more transfers than this takes too long for a page.
_MOST_REPLAYED = 20_000
#: Drawing more takes too much memory.
_MOST_DRAWN = 1_000_000
#: Certificates of larger problems are not checked again: that takes as long as finding them.
_MOST_CHECKED = 20_000


@dataclass(frozen=True, slots=True)
class Findings:
    """All that a page is made from.

    Parameters
    ----------
    whole : Schedule, optional
        The schedule with every transfer; None where it has too many to be drawn.
    proven : bool, optional
        What `Certificate.check` said; None where it was not asked.
    details : mapping
        How the schedule was found, as `Result.to_dict` has it; empty where that is not known.
    missing : mapping of section to text
        Why something is left out.
    """

    schedule: Schedule | CompactSchedule
    whole: Schedule | None
    verification: Verification
    bound: Certificate
    proven: bool | None
    simulation: Simulation | None
    bandwidths: Bandwidths | None
    moments: tuple[Moment, ...]
    details: Mapping[str, Any]
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def gap(self) -> float:
        """How far the finish is above the bound, as a share of the bound."""
        return self.bound.gap(self.schedule.finish)


def look_into(
    found: Result | Schedule | CompactSchedule, details: Mapping[str, Any] | None, *, budget_s: float
) -> Findings:
    """Verify, bound, replay and time a schedule at many sizes."""
    missing: dict[str, str] = {}
    schedule = found.schedule if isinstance(found, Result) else found
    if isinstance(found, Result):
        details = found.to_dict()
    details = details or {}
    verification = verify(schedule)
    bound = found.bound if isinstance(found, Result) else lower_bound(schedule.problem, budget_s=_BOUND_S)
    count = schedule.num_transfers
    proven = bound.check() if count <= _MOST_CHECKED and bound.witness else None
    whole: Schedule | None = None
    if count <= _MOST_DRAWN:
        whole = schedule.expand() if isinstance(schedule, CompactSchedule) else schedule
    else:
        why = f"left out: the schedule has {count} transfers, and is drawn up to {_MOST_DRAWN}"
        missing["timeline"] = missing["load"] = why
    simulation, rates = None, None
    if whole is None or count > _MOST_REPLAYED:
        why = f"left out: the schedule has {count} transfers, and is replayed up to {_MOST_REPLAYED}"
        missing["sizes"] = why
        missing.setdefault("load", f"How resources idle is {why}")
    else:
        try:
            simulation = simulate(whole)
        except TacclError as error:
            missing["load"] = f"left out: {error}"
        try:
            rates = bandwidths(whole, budget_s=budget_s)
        except TacclError as error:
            missing["sizes"] = f"left out: {error}"
    moments = found.progress if isinstance(found, Result) else moments_in(details)
    return Findings(
        schedule, whole, verification, bound, proven, simulation, rates, moments, details, missing
    )
