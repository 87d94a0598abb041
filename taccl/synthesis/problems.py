"""Problems as users ask for them: on a topology, or on a machine by name under the fastest protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Unpack

from taccl._internal.arguments import Bytes, Count, checked_as
from taccl._internal.deadline import Deadline
from taccl.errors import CollectiveError
from taccl.problem import alltoallv, making
from taccl.problem.clauses import Clauses
from taccl.problem.collective import Collective
from taccl.problem.collectives import CollectiveArguments
from taccl.problem.problem import Problem
from taccl.topology.profiles import PROFILES
from taccl.topology.registry import parse
from taccl.topology.topology import Topology

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from taccl.sketch.sketch import Sketch


@checked_as(CollectiveError)
def make_problem(
    topology: Topology | str | None,
    collective: Collective | str,
    *,
    chunk_bytes: Bytes | Sequence[Bytes] | None = None,
    size_bytes: Bytes | None = None,
    chunks_per_rank: Count | None = None,
    sketch: Sketch | str | PathLike[str] | None = None,
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
        A topology; or a machine or a fabric by name, such as ``"dgx-a100"`` or ``"torus:4x4"``. None for the
        machine that the sketch names.
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
    sketch : Sketch, str or path, optional
        A sketch, the name of a shipped one, or a file (`Sketch.apply`). It may state the size and `clauses`.
    nodes : int, optional
        Number of nodes of a machine by name; default: that of the sketch, or 1.
    profile : str, optional
        Profile of constants of a machine by name; default: that of the sketch, or the first.
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
    SketchError
        If the sketch does not fit.

    Examples
    --------
    >>> import taccl
    >>> taccl.make_problem("dgx-a100", "allgather", nodes=2, size_bytes=64_000).topology.protocol
    'll'
    """
    if sketch is None:
        if topology is None:
            raise CollectiveError("found none; give one, or a sketch that names a machine", where="topology")
        on, protocol = asked_topology(topology, nodes=nodes, profile=profile, protocol=protocol)
        problem = making.make_problem(
            on, collective, chunk_bytes=chunk_bytes, size_bytes=size_bytes, chunks_per_rank=chunks_per_rank,
            clauses=clauses, notes=notes, **arguments,
        )  # fmt: skip
        return under_asked_protocol(problem, protocol)
    if clauses is not None:
        said = "found clauses beside a sketch, which has its own; leave one out"
        raise CollectiveError(said, where="clauses")
    applied, on, protocol = _with_topology(sketch, topology, nodes, profile, protocol)
    problem = applied.apply(
        on, collective, chunk_size=chunk_bytes, size=size_bytes, chunks_per_rank=chunks_per_rank, **arguments
    )
    return under_asked_protocol(replace(problem, notes=(*problem.notes, *notes)), protocol)


@checked_as(CollectiveError)
def alltoallv_problem(
    topology: Topology | str,
    sizes: ArrayLike,
    *,
    nodes: Count | None = None,
    profile: str | None = None,
    protocol: str | None = None,
    chunk_bytes: Bytes | None = None,
    clauses: Clauses | None = None,
) -> Problem:
    """Problem of an alltoallv: each (source, destination) pair of ranks has its own number of bytes.

    The data of a pair is cut into equal chunks, so that a pair with much data can use several paths.

    Parameters
    ----------
    topology, nodes, profile, protocol
        As for `make_problem`.
    sizes : (num_ranks, num_ranks) array_like of int
        Bytes from the row's rank to the column's. The diagonal, and pairs with 0 bytes, have no chunks; the
        problem may have none at all.
    chunk_bytes : int, optional
        Max bytes of a chunk; with the largest entry of `sizes`, each pair has one chunk. Default: a 256th
        of what the busiest rank sends or receives; more if latencies would dominate, or with more than eight
        chunks per pair; fewer if few pairs have data.
    clauses : Clauses, optional
        Clauses of a sketch; default: none.

    Raises
    ------
    CollectiveError
        If the matrix is not square with a row for each rank, or an entry is not a whole number of bytes.
    TopologyError
        If the name, the profile or the protocol is unknown.
    """
    on, protocol = asked_topology(topology, nodes=nodes, profile=profile, protocol=protocol)
    return exchange_under(on, sizes, protocol, chunk_bytes=chunk_bytes, clauses=clauses)


def exchange_under(
    topology: Topology, sizes: ArrayLike, protocol: str | None, limit: Deadline | None = None,
    *, chunk_bytes: int | None = None, clauses: Clauses | None = None,
) -> Problem:  # fmt: skip
    """Alltoallv problem; the default size of chunks is that under the chosen protocol.

    Parameters are those of `alltoallv_problem` and `under_asked_protocol`.
    """
    first = alltoallv.alltoallv_problem(topology, sizes, chunk_bytes=chunk_bytes, clauses=clauses)
    chosen = under_asked_protocol(first, protocol, limit)
    if chosen.topology.protocol == topology.protocol or chunk_bytes is not None:
        return chosen
    found = alltoallv.alltoallv_problem(chosen.topology, sizes, clauses=clauses)
    return replace(found, notes=(*found.notes, *chosen.protocol_notes()))


def _with_topology(
    sketch: Sketch | str | PathLike[str], topology: Topology | str | None, nodes: int | None,
    profile: str | None, protocol: str | None,
) -> tuple[Sketch, Topology, str]:  # fmt: skip
    """(sketch for the given number of nodes, topology, protocol as of `asked_topology`)."""
    from taccl.sketch.library import load_sketch  # imports pydantic, which takes 0.12 s of CPU

    found = load_sketch(sketch) if isinstance(sketch, (str, PathLike)) else sketch
    if topology is None:
        on, protocol = asked_topology(
            found.topology(nodes=nodes, profile=profile), protocol=protocol or "auto"
        )
    else:
        given = nodes, profile
        if isinstance(topology, str):
            given = nodes_and_profile(found, topology, nodes, profile)
        on, protocol = asked_topology(topology, nodes=given[0], profile=given[1], protocol=protocol)
    if nodes is not None:
        found = found.with_nodes(nodes, ranks_per_node=len(on.ranks_of_node[0]))
    return found, on, protocol


def nodes_and_profile(
    sketch: Sketch, machine: str, nodes: int | None, profile: str | None
) -> tuple[int | None, str | None]:
    """Number of nodes and profile of a machine by name; a sketch supplies those that are not given."""
    if machine in PROFILES:
        nodes = nodes or sketch.nodes
        named = {each.name for each in PROFILES[machine]}
        if machine == sketch.machine or sketch.profile in named:  # else the machine is refused later
            profile = profile or sketch.profile or None
    return nodes, profile


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
