"""Placement of sums: at the cards of a box or at the workers, whichever finishes first."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from taccl._internal.arguments import checked
from taccl._internal.units import format_us, parse_size
from taccl.problem.collectives import exchange
from taccl.problem.problem import make_problem
from taccl.synthesis.synthesize import synthesize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taccl._internal.arguments import Number, Size
    from taccl.synthesis.result import Result
    from taccl.topology.topology import Topology


@checked
def choose_servers(
    topology: Topology,
    size: Size,
    *,
    workers: Sequence[int],
    servers: Sequence[int],
    update_us_per_mb: Number = 0,
) -> Result:
    """The exchange that finishes first: sums at the servers given, or at the workers, each with a share.

    The result's `choice` says which, ``"central"`` or ``"colocated"``, and when both finish.

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
        problem = make_problem(topology, collective, size_bytes=parse_size(size))
        found[name] = synthesize(problem)
    told = ", ".join(f"{name} {format_us(each.schedule.finish)}" for name, each in found.items())
    choice = min(found, key=lambda name: found[name].schedule.finish)
    return replace(found[choice], choice=f"{choice} of {told}")
