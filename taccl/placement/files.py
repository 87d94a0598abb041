"""Files that tell MPI libraries which algorithm to run at which size."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taccl._internal.arguments import checked, known_word
from taccl.errors import CollectiveError, FormatError, InputError

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from taccl.placement.probe import Probe
    from taccl.topology.topology import Topology

#: {collective: {our algorithm: the library's name}}: Open MPI's number, and the last words of MPICH's
#: function.
LIBRARY_NAMES = {
    "allreduce": {
        "doubling": (3, "recursive_doubling"),
        "ring": (4, "ring"),
        "halving-doubling": (6, "reduce_scatter_allgather"),
    },
    "allgather": {"halving-doubling": (3, "recursive_doubling"), "ring": (4, "ring"), "bruck": (2, "brucks")},
    "alltoall": {"pairwise": (2, "pairwise"), "bruck": (3, "brucks")},
}
_OPENMPI_KINDS = {"allreduce": 2, "allgather": 0, "alltoall": 3}
#: The size that MPICH compares.
_COUNTED = {"allreduce": "avg_msg_size", "allgather": "total_msg_size", "alltoall": "avg_msg_size"}
#: {collective: {our algorithm: NCCL's}}.
_NCCL = {
    "allreduce": {"ring": "ring", "double-tree": "tree"},
    "allgather": {"ring": "ring"},
    "reduce-scatter": {"ring": "ring"},
}
#: Sizes at which algorithms are compared: twice as much each.
_SIZES = tuple(1 << power for power in range(10, 31))
#: Beyond all sizes.
_ENDLESS = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Choice:
    """The fastest algorithm from one size to another, in bytes, both included."""

    collective: str
    least_bytes: int
    most_bytes: int
    algorithm: str


@checked
def choose(
    topology: Topology | Probe, collective: str, *, library: str, order: Sequence[int] | None = None
) -> list[Choice]:
    """The library's fastest algorithm by prediction at each size, in an order of ranks.

    They are compared from 1 KiB to 1 GiB; the first and the last choice hold beyond.

    Parameters
    ----------
    topology : Topology or Probe
        The hosts.
    collective : str
        ``"allreduce"``, ``"allgather"``, ``"alltoall"``; of NCCL ``"reduce-scatter"``, and no alltoall.
    library : str
        ``"openmpi"``, ``"mpich"`` or ``"nccl"``.
    order : sequence of int, optional
        The host slot of every rank; by default rank r is on slot r.
    """
    known_word(library, ("openmpi", "mpich", "nccl"), "library")
    told: Mapping[str, Mapping[str, Any]] = _NCCL if library == "nccl" else LIBRARY_NAMES
    if collective not in told:
        said = f"found {collective}; {library} is told of {', '.join(told)}"
        raise InputError(said, where="collective")
    from taccl.placement.algorithms import ALGORITHMS
    from taccl.placement.case import Case

    times: dict[str, list[float]] = {}
    for name in ALGORITHMS.keys() & told[collective]:
        with suppress(InputError, CollectiveError):  # not among so many ranks
            cases = [Case(topology, collective, name, size, order) for size in _SIZES]
            times[name] = [c.us(c.ticks(order or range(c.fabric.num_hosts))) for c in cases]
    return fastest(collective, _SIZES, times)


def fastest(
    collective: str, sizes: Sequence[int], times_us: dict[str, list[float]], *, noise: float = 0.0
) -> list[Choice]:
    """From the times of algorithms at some sizes, which is to be run from one size on to the next.

    The one before is kept where the fastest is faster by no more than `noise`, a part of its time.
    """
    best: list[str] = []
    for i in range(len(sizes)):
        name = min(sorted(times_us), key=lambda name: times_us[name][i])
        is_kept = bool(best) and times_us[best[-1]][i] <= times_us[name][i] * (1 + noise)
        best.append(best[-1] if is_kept else name)
    starts = [i for i, name in enumerate(best) if i == 0 or best[i - 1] != name]
    ends = [*(sizes[i] - 1 for i in starts[1:]), _ENDLESS]
    return [
        Choice(collective, sizes[i] if i else 0, end, best[i]) for i, end in zip(starts, ends, strict=True)
    ]


@checked
def openmpi_rules(choices: Sequence[Choice], num_ranks: int) -> str:
    """A file of dynamic rules for Open MPI's ``coll_tuned``.

    Run with ``--mca coll_tuned_use_dynamic_rules 1 --mca coll_tuned_dynamic_rules_filename FILE``; give the
    whole path, as a file that is not there is ignored without a word. Another component may have the higher
    priority: ``--mca coll_tuned_priority 90``. Rules hold for as many ranks and more.
    """
    lines = [f"{len({choice.collective for choice in choices})}  # collectives"]
    for kind, each in groupby(choices, key=lambda choice: choice.collective):
        some = [(one.least_bytes, LIBRARY_NAMES[kind][one.algorithm][0], one.algorithm) for one in each]
        lines += [f"{_OPENMPI_KINDS[kind]}  # {kind}", "1  # numbers of ranks", f"{num_ranks}  # ranks"]
        lines.append(f"{len(some)}  # sizes: from so many bytes on, algorithm, fan-out, segment")
        lines += [f"{least} {number} 0 0  # {name}" for least, number, name in some]
    return "\n".join(lines) + "\n"


@checked
def mpich_selection(choices: Sequence[Choice], num_ranks: int, *, base: str | os.PathLike[str]) -> str:
    """A file for MPICH's ``MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE``.

    Such a file stands for all that MPICH would choose by, and a collective that is missing ends the program:
    so the rest is taken from MPICH's own, and choices for just as many ranks are put before it.

    Parameters
    ----------
    choices : sequence of Choice
        As `choose` finds them.
    num_ranks : int
        Of the communicators that they are for.
    base : path
        MPICH's library (``libmpi.so``), which holds the tree it chooses by, or a file of that.
    """
    tree = _selection_of(Path(base))
    for kind, each in groupby(choices, key=lambda choice: choice.collective):
        rules: dict[str, Any] = {}

        def run(name: str) -> dict[str, Any]:
            return {f"algorithm=MPIR_{kind.capitalize()}_intra_{LIBRARY_NAMES[kind][name][1]}": {}}  # noqa: B023

        for choice in each:
            last = choice.most_bytes == _ENDLESS
            # MPICH counts the bytes to one rank for an alltoall, and the whole for an allgather.
            parts, counted = num_ranks if kind == "alltoall" else 1, _COUNTED[kind]
            key = f"{counted}=any" if last else f"{counted}<={choice.most_bytes // parts}"
            rules[key] = run(choice.algorithm)
            if (kind, choice.algorithm) == ("allreduce", "halving-doubling"):  # which needs a number a rank
                rules[key] = {"count<pow2": run("doubling"), "count=any": rules[key]}
        own = tree[f"collective={kind}"]["comm_type=intra"]
        if kind == "allreduce":  # a ring needs an operation that commutes, halving one that MPI knows
            rules = {
                "is_commutative=yes": {"is_op_built_in=yes": rules, "is_op_built_in=no": own},
                "is_commutative=no": own,
            }
        elif kind == "alltoall":
            rules = {"is_sendbuf_inplace=no": rules, "is_sendbuf_inplace=yes": own}
        exactly = {f"comm_size<{num_ranks}": own, f"comm_size<={num_ranks}": rules, "comm_size=any": own}
        tree[f"collective={kind}"]["comm_type=intra"] = exactly
    return json.dumps(tree, indent=1) + "\n"


def _selection_of(base: Path) -> dict[str, Any]:
    """The tree by which MPICH chooses, from its library or a JSON file: the one with every collective."""
    try:
        data = base.read_bytes()
    except OSError as error:
        said = f"the file cannot be read ({error.strerror}); give MPICH's libmpi.so, or its selection file"
        raise InputError(said, where=str(base)) from None
    for start in re.finditer(rb'\{\s*"collective=', data):
        text = data[start.start() :].split(b"\0", 1)[0].decode("utf-8", "replace")
        try:
            tree, _ = json.JSONDecoder().raw_decode(text)
        except ValueError:
            continue
        if {"collective=allreduce", "collective=ibarrier"} <= set(tree):
            found: dict[str, Any] = tree
            return found
    said = "found no tree of collectives; give the libmpi.so of MPICH 4 or later, or its selection file"
    raise FormatError(said, where=str(base))
