"""Machine models and fabrics by name: ``"ndv2"``, ``"dgx-a100"``, ``"torus:4x4"``."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from taccl._internal.arguments import checked_as
from taccl._internal.names import did_you_mean, matching
from taccl.errors import TopologyError
from taccl.topology import fabrics, machines
from taccl.topology.named import EXAMPLES, parse_named, read_size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from taccl._internal.arguments import Count
    from taccl.topology.topology import Topology

FABRICS: Mapping[str, Callable[..., Topology]] = {
    name: getattr(fabrics, name.replace("-", "_")) for name in EXAMPLES
}


def machine_names() -> tuple[str, ...]:
    """Names of the machine models, and of instance types of clouds."""
    return tuple(machines.MACHINES)


def fabric_names() -> tuple[str, ...]:
    """Names of the fabrics; `parse` wants a size behind a colon."""
    return tuple(FABRICS)


@checked_as(TopologyError)
def parse(name: str, *, nodes: Count | None = None, profile: str | None = None, **options: Any) -> Topology:
    """The topology that a name stands for.

    Parameters
    ----------
    name : str
        A machine (``"ndv2"``, ``"dgx-a100"``), or a fabric and its size (``"torus:4x4"``, ``"ring:8"``,
        ``"hypercube:3"``). Case does not matter, and dashes and underscores are alike.
    nodes : int, optional
        Nodes of a machine (default 1), or nodes that the ranks of a fabric are cut into.
    profile : str, optional
        Profile of a machine's constants.
    **options
        Further keywords of the machine's or the fabric's function, e.g. ``alpha_meaning="pipelined"``.

    Raises
    ------
    TopologyError
        Names the machines, fabrics and arguments that there are, if it is none of them.
    """
    if not name.strip():
        raise TopologyError(f"found {name!r}; expected {_expected()}", where="topology")
    kind, colon, size = name.strip().partition(":")
    kind = find_kind(kind, name)
    if kind in machines.MACHINES:
        if colon:
            raise TopologyError(
                f"found {name!r}; {kind} takes no size: give the number of nodes apart", where="topology"
            )
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
    """The known name that a person's spelling stands for."""
    known = (*machines.MACHINES, *FABRICS)
    found = matching(kind, known)
    if found is None:
        hint = did_you_mean(kind, known)
        raise TopologyError(f"found {name!r}; expected {_expected()}{hint}", where="topology")
    return found


def _expected() -> str:
    return f"a machine ({', '.join(machines.MACHINES)}) or a fabric ({', '.join(EXAMPLES.values())})"


def _call(
    make: Callable[..., Topology], kind: str, sizes: tuple[Any, ...], options: Mapping[str, Any]
) -> Topology:
    known = inspect.unwrap(make).__kwdefaults__ or {}
    unknown = [option for option in options if option not in known]
    if unknown:
        raise TopologyError(f"{kind} takes no {unknown[0]!r}; it takes {', '.join(known)}", where="topology")
    return make(*sizes, **options)
