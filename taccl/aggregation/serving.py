"""Where sums are kept: at a box's cards, or at the workers themselves, whichever finishes first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.verification.verify import verify
from taccl.arguments import checked
from taccl.baselines.servers import servers as exchanged
from taccl.collectives import exchange
from taccl.problem import make_problem
from taccl.units import format_gap, format_us, parse_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from taccl.analysis.certificates.certificate import Certificate
    from taccl.arguments import Number, Size
    from taccl.schedule.schedule import Schedule
    from taccl.topology.topology import Topology

__all__ = ["Served", "choose_servers"]


@checked
@dataclass(frozen=True, repr=False)
class Served:
    """An exchange with the servers that were chosen.

    Parameters
    ----------
    choice : {"central", "colocated"}
        Whether the servers that were given keep the sums, or the workers do.
    schedule : Schedule
        Verified.
    bound : Certificate
        Of the exchange with these servers.
    finish_us : mapping of str to float
        Of both choices.
    """

    choice: str
    schedule: Schedule
    bound: Certificate
    finish_us: Mapping[str, float]

    def __repr__(self) -> str:
        told = ", ".join(f"{name} {format_us(us)}" for name, us in self.finish_us.items())
        return f"Served({self.choice} of {told}; gap {format_gap(self.bound.gap(self.schedule.finish))})"


@checked
def choose_servers(
    topology: Topology,
    size: Size,
    *,
    workers: Sequence[int],
    servers: Sequence[int],
    update_us_per_mb: Number = 0,
) -> Served:
    """The exchange that finishes first: sums at the servers given, or at the workers, each with a share.

    Parameters
    ----------
    topology : Topology
        Such as `taccl.topologies.rack`.
    size : int or str
        Bytes that each worker contributes and gets back, e.g. ``"100MB"``; cut into as many chunks as pay.
    workers, servers : sequence of int
        Ranks; servers that are no workers contribute nothing.
    update_us_per_mb : number
        As in `taccl.collectives.exchange`.

    Raises
    ------
    InputError
        If a rank does not exist or is named twice in a role, or no link leads to a server.
    """
    found = {}
    for name, keepers in (("central", servers), ("colocated", workers)):
        collective = exchange(
            workers, keepers, num_ranks=topology.num_ranks, update_us_per_mb=update_us_per_mb
        )
        found[name] = exchanged(make_problem(topology, collective, size_bytes=parse_size(size)))
    choice = min(found, key=lambda name: found[name].finish)
    verify(found[choice]).raise_if_failed()
    finish_us = {name: schedule.finish_us for name, schedule in found.items()}
    return Served(choice, found[choice], lower_bound(found[choice].problem, budget_s=2), finish_us)
