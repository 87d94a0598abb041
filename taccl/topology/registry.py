"""Machine models and fabrics by name, such as ``"ndv2"``, ``"dgx-a100"`` or ``"torus:4x4"``."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any

from taccl._internal.arguments import Count, checked_as
from taccl._internal.names import did_you_mean, matching, quoted
from taccl.errors import TopologyError
from taccl.topology import fabrics, machines
from taccl.topology.named import EXAMPLES, parse_named, read_size
from taccl.topology.networks import INSTANCES
from taccl.topology.topology import Topology

FABRICS: Mapping[str, Callable[..., Topology]] = {
    name: getattr(fabrics, name.replace("-", "_")) for name in EXAMPLES
}


def machine_names() -> tuple[str, ...]:
    """Names of the machine models, and of instance types of clouds."""
    return tuple(machines.MACHINES)


def fabric_names() -> tuple[str, ...]:
    """Names of the fabrics, without the size that `parse` requires after a colon."""
    return tuple(FABRICS)


@checked_as(TopologyError)
def parse(name: str, *, nodes: Count | None = None, profile: str | None = None, **options: Any) -> Topology:
    """Topology of a machine model or fabric, by name.

    Parameters
    ----------
    name : str
        A machine (``"ndv2"``, ``"dgx-a100"``), or a fabric with its size (``"torus:4x4"``, ``"ring:8"``,
        ``"hypercube:3"``). Case, dashes and underscores do not matter.
    nodes : int, optional
        Number of nodes of a machine (default 1), or number of nodes that divide the ranks of a fabric.
    profile : str, optional
        Profile of a machine's constants.
    **options
        Further keywords of the function of the machine or fabric, e.g. ``alpha_meaning="pipelined"``.

    Raises
    ------
    TopologyError
        For an unknown machine, fabric or argument; the message lists the known ones.
    """
    if not name.strip():
        raise TopologyError(f"found {name!r}; expected {_expected()}", where="topology")
    kind, colon, size = name.strip().partition(":")
    kind = find_kind(kind, name)
    if kind in machines.MACHINES:
        if colon:
            remedy = f"give the number of nodes as nodes={size if size.isdecimal() else '...'}"
            raise TopologyError(f"found {name!r}; {kind} takes no size: {remedy}", where="topology")
        if profile is not None:
            options["profile"] = profile
        return _call(machines.MACHINES[kind], kind, (nodes or 1,), options)
    if profile is not None:
        raise TopologyError(f"found {profile!r}; a fabric has no profiles: leave it out", where="profile")
    made: tuple[Any, ...] = (size,) if kind == "multidim" else read_size(kind, size)
    if nodes is not None:
        num_ranks = parse_named(f"{kind}:{size}").num_ranks
        if num_ranks % nodes:
            said = f"found {nodes}; expected a whole number of nodes that divides the {num_ranks} ranks"
            raise TopologyError(said, where=f"{kind}: nodes")
        options["ranks_per_node"] = num_ranks // nodes
    return _call(FABRICS[kind], kind, made, options)


def find_kind(kind: str, name: str) -> str:
    """Name of the machine or fabric that a spelling matches. Raises `TopologyError` if there is none."""
    known = (*machines.MACHINES, *FABRICS)
    found = matching(kind, known)
    if found is None and os.path.isfile(name):
        said = f"found the file {name!r}; expected a name: read the file with taccl.topologies.load"
        raise TopologyError(said, where="topology")
    if found is None:
        hint = did_you_mean(kind, known)
        expected = "a machine such as ndv2, or a fabric such as ring:8" if hint else _expected()
        raise TopologyError(f"found {quoted(name)}; expected {expected}{hint}", where="topology")
    return found


def _expected() -> str:
    names = ", ".join(name for name in machines.MACHINES if name not in INSTANCES)
    return (
        f"a machine ({names}, or a cloud's instance type such as {next(iter(INSTANCES))}) "
        f"or a fabric ({', '.join(EXAMPLES.values())})"
    )


def _call(
    make: Callable[..., Topology], kind: str, sizes: tuple[Any, ...], options: Mapping[str, Any]
) -> Topology:
    known = inspect.unwrap(make).__kwdefaults__ or {}
    unknown = [option for option in options if option not in known]
    if unknown:
        takes = ["nodes", *known]
        said = f"{kind} takes no {unknown[0]!r}; it takes {', '.join(takes)}{did_you_mean(unknown[0], takes)}"
        raise TopologyError(said, where="topology")
    try:
        return make(*sizes, **options)
    except TopologyError as error:
        if error.where is None or error.where.startswith(kind):
            raise
        raise TopologyError(error.message, where=f"{kind}: {error.where}") from None
