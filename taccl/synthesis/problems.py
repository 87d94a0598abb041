"""`make_problem` as users call it: on a topology, or on a machine by name under the fastest protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from taccl._internal.arguments import Bytes, Count, checked_as
from taccl._internal.deadline import Deadline
from taccl.errors import CollectiveError
from taccl.problem import making
from taccl.problem.clauses import Clauses
from taccl.problem.collective import Collective
from taccl.problem.collectives import CollectiveArguments
from taccl.problem.problem import Problem
from taccl.topology.registry import parse
from taccl.topology.topology import Topology


@checked_as(CollectiveError)
def make_problem(
    topology: Topology | str,
    collective: Collective | str,
    *,
    chunk_bytes: Bytes | Sequence[Bytes] | None = None,
    size_bytes: Bytes | None = None,
    chunks_per_rank: Count | None = None,
    nodes: Count | None = None,
    profile: str | None = None,
    protocol: str | None = None,
    clauses: Clauses | None = None,
    notes: Sequence[str] = (),
    **arguments: Unpack[CollectiveArguments],
) -> Problem:
    """Make a problem from chunk sizes, or from a size as nccl-tests counts it.

    Parameters
    ----------
    topology : Topology or str
        A topology; or a machine or a fabric by name, such as ``"dgx-a100"`` or ``"torus:4x4"``.
    collective : Collective or str
        A name, or a `Collective`. If it was made without `chunks_per_rank` and a size is given, the number of
        chunks is open: `taccl.synthesize` then chooses it.
    chunk_bytes : int or sequence of int, optional
        Size of all chunks, or of each.
    size_bytes : int, optional
        The larger of one rank's input and output buffer. A size that does not divide into chunks is padded;
        a note in the problem says so. Exactly one of the two sizes must be given.
    chunks_per_rank : int, optional
        Number of chunks of each rank's own data. With a `Collective`, only allowed if it leaves the number
        open.
    nodes : int, optional
        Number of nodes of a machine by name; default 1.
    profile : str, optional
        Profile of constants of a machine by name.
    protocol : str, optional
        One of the machine's, or ``"auto"`` for the one predicted to be the fastest (`taccl.choose_protocol`).
        Default: ``"auto"`` for a name, as on the command line; for a `Topology`, its own.
    clauses : Clauses, optional
        Default: any link may carry any chunk; sends between nodes merge up to 6 chunks. For small sums, sends
        also merge on links whose alpha exceeds beta times the size of all data, and merge any number of
        chunks.
    notes : sequence of str
        Notes that the problem and its results show.
    **arguments : CollectiveArguments
        `root`, `roots` or `counts` of a named collective, as in `taccl.collectives.make`.

    Raises
    ------
    CollectiveError
        If neither or both sizes are given, they do not fit the collective, or the number of chunks is given
        twice.
    TopologyError
        If the name, the profile or the protocol is unknown.

    Examples
    --------
    >>> import taccl
    >>> taccl.make_problem("dgx-a100", "allgather", nodes=2, size_bytes=64_000).topology.protocol
    'll'
    """
    topology, protocol = asked_topology(topology, nodes=nodes, profile=profile, protocol=protocol)
    problem = making.make_problem(
        topology, collective, chunk_bytes=chunk_bytes, size_bytes=size_bytes, chunks_per_rank=chunks_per_rank,
        clauses=clauses, notes=notes, **arguments,
    )  # fmt: skip
    return under_asked_protocol(problem, protocol)


def asked_topology(
    topology: Topology | str, *, nodes: int | None = None, profile: str | None = None, protocol: str | None
) -> tuple[Topology, str]:
    """(topology, ``"auto"`` if its protocol is to be chosen by `under_asked_protocol`, else the protocol).

    Parameters are those of `make_problem`.

    Raises
    ------
    TopologyError
        If the name, the profile or the protocol is unknown.
    CollectiveError
        If nodes or a profile are given beside a `Topology`.
    """
    if isinstance(topology, str):
        topology, protocol = parse(topology, nodes=nodes, profile=profile), protocol or "auto"
    elif nodes is not None or profile is not None:
        name, given = ("profile", profile) if nodes is None else ("nodes", nodes)
        raise CollectiveError(f"found {given!r}, but the topology has its own; leave it out", where=name)
    protocol = topology.protocol if protocol is None else protocol.lower()
    return (
        (topology, protocol)
        if protocol in ("auto", topology.protocol)
        else (topology.under(protocol), protocol)
    )


def under_asked_protocol(problem: Problem, protocol: str | None, limit: Deadline | None = None) -> Problem:
    """The problem under the fastest protocol if `protocol` is ``"auto"``, else unchanged.

    - `limit`: Deadline of the search that follows, of which the choice has a share; None for ample time.
    """
    if protocol != "auto" or len(problem.topology.protocols) < 2:
        return problem
    from taccl.synthesis.suggesting.protocols import AMPLE_S, under_fastest_protocol

    return under_fastest_protocol(problem, Deadline.after(AMPLE_S) if limit is None else limit)
