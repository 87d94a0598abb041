"""Files that tell an MPI library which algorithm to run at which size, and the choice of these algorithms.

Cost models are loaded by the functions that use them, since each measuring rank loads this module.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taccl._internal.arguments import checked, known_word
from taccl.errors import CollectiveError, FormatError, InputError, LossyConversionWarning, warn

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from taccl.placement.hosts import ProbedHosts
    from taccl.placement.probe import Probe
    from taccl.topology.topology import Topology


#: {collective: {our name of an algorithm: (number in Open MPI, name in MPICH)}}.
#: The MPICH name is the end of the name of the algorithm's function.
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
#: (collective, our name) of algorithms that MPICH has for a power of two ranks only.
_OF_POWERS = {("allgather", "halving-doubling")}
#: {collective: name of the message-size variable in MPICH's selection file}.
_COUNTED = {"allreduce": "avg_msg_size", "allgather": "total_msg_size", "alltoall": "avg_msg_size"}
#: {collective: {our name of an algorithm: NCCL's name}}.
_NCCL = {
    "allreduce": {"ring": "ring", "double-tree": "tree"},
    "allgather": {"ring": "ring"},
    "reduce-scatter": {"ring": "ring"},
}
#: Sizes in bytes at which algorithms are compared: powers of two from 1 KiB to 1 GiB.
_SIZES = tuple(1 << power for power in range(10, 31))
#: Upper end in bytes of the last range of sizes.
ENDLESS = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Choice:
    """The fastest algorithm for a range of sizes in bytes, both ends included."""

    collective: str
    least_bytes: int
    most_bytes: int
    algorithm: str


@checked
def choose(
    topology: Topology | Probe | ProbedHosts,
    collective: str,
    *,
    library: str,
    order: Sequence[int] | None = None,
) -> list[Choice]:
    """Choose a library's fastest algorithm for each message size, by simulation of a given rank order.

    Algorithms are compared from 1 KiB to 1 GiB; the first and the last choice also apply beyond.

    Parameters
    ----------
    topology : Topology, Probe or ProbedHosts
        The hosts.
    collective : str
        ``"allreduce"``, ``"allgather"``, ``"alltoall"``; for NCCL also ``"reduce-scatter"``, but no alltoall.
    library : str
        ``"openmpi"``, ``"mpich"`` or ``"nccl"``.
    order : sequence of int, optional
        The host slot of every rank; by default rank r is on slot r.
    """
    known_word(library, ("openmpi", "mpich", "nccl"), "library")
    names: Mapping[str, Mapping[str, Any]] = _NCCL if library == "nccl" else LIBRARY_NAMES
    if collective not in names:
        said = f"found {collective}; {library} has rules for {', '.join(names)}"
        raise InputError(said, where="collective")
    from taccl.placement.algorithms import ALGORITHMS
    from taccl.placement.case import Case

    times: dict[str, list[float]] = {}
    for name in ALGORITHMS.keys() & names[collective]:
        with suppress(InputError, CollectiveError):  # the algorithm may not support this number of ranks
            cases = [Case(topology, collective, name, size, order) for size in _SIZES]
            times[name] = [c.us(c.ticks(order or range(c.fabric.num_hosts))) for c in cases]
    return fastest(collective, _SIZES, times)


def fastest(
    collective: str, sizes: Sequence[int], times_us: dict[str, list[float]], *, noise: float = 0.0
) -> list[Choice]:
    """Fastest algorithm for each range of sizes, from the times of all algorithms at some sizes.

    - `times_us`: {algorithm: time at each of `sizes`}.
    - `noise`: Fraction of the least time by which the algorithm of the previous size may be slower and still
      be kept.
    """
    best: list[str] = []
    for i in range(len(sizes)):
        name = min(sorted(times_us), key=lambda name: times_us[name][i])
        is_kept = bool(best) and times_us[best[-1]][i] <= times_us[name][i] * (1 + noise)
        best.append(best[-1] if is_kept else name)
    starts = [i for i, name in enumerate(best) if i == 0 or best[i - 1] != name]
    ends = [*(sizes[i] - 1 for i in starts[1:]), ENDLESS]
    return [
        Choice(collective, sizes[i] if i else 0, end, best[i]) for i, end in zip(starts, ends, strict=True)
    ]


@checked
def openmpi_rules(choices: Sequence[Choice], num_ranks: int) -> str:
    """Text of a file of dynamic rules for Open MPI's ``coll_tuned``.

    Run with ``--mca coll_tuned_use_dynamic_rules 1 --mca coll_tuned_dynamic_rules_filename FILE``. Give an
    absolute path, as Open MPI ignores a missing file without a message. If another component has a higher
    priority, add ``--mca coll_tuned_priority 90``. Open MPI applies the rules to communicators of `num_ranks`
    ranks and more.
    """
    lines = [f"{len({choice.collective for choice in choices})}  # collectives"]
    for kind, each in groupby(choices, key=lambda choice: choice.collective):
        some = [(one.least_bytes, LIBRARY_NAMES[kind][one.algorithm][0], one.algorithm) for one in each]
        lines += [f"{_OPENMPI_KINDS[kind]}  # {kind}", "1  # numbers of ranks", f"{num_ranks}  # ranks"]
        lines.append(f"{len(some)}  # sizes: least bytes, algorithm, fan-out, segment")
        lines += [f"{least} {number} 0 0  # {name}" for least, number, name in some]
    return "\n".join(lines) + "\n"


@checked
def mpich_selection(choices: Sequence[Choice], num_ranks: int, *, base: str | os.PathLike[str]) -> str:
    """Text of a selection file, which MPICH's ``MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE`` names.

    The file replaces all of MPICH's own rules, and MPICH aborts at a collective without a rule. So MPICH's
    own rules are copied, and the choices for exactly `num_ranks` ranks are put before them.

    Parameters
    ----------
    choices : sequence of Choice
        From `choose`.
    num_ranks : int
        Size of the communicators to which the choices apply.
    base : path
        MPICH's library (``libmpi.so``), which contains its rules, or a file of these rules.

    Warns
    -----
    LossyConversionWarning
        If MPICH lacks an algorithm for this number of ranks, as 4.0 lacks rings of allreduces. Its own rules
        apply then, as it would abort.
    """
    data, tree = _selection_of(Path(base))
    is_library, lacking = b"\0" in data, set[str]()  # a file of rules does not name all algorithms
    for kind, each in groupby(choices, key=lambda choice: choice.collective):
        rules: dict[str, Any] = {}
        own = tree[f"collective={kind}"]["comm_type=intra"]

        def run(name: str) -> dict[str, Any]:
            function = f"MPIR_{kind.capitalize()}_intra_{LIBRARY_NAMES[kind][name][1]}"  # noqa: B023
            is_possible = num_ranks & (num_ranks - 1) == 0 or (kind, name) not in _OF_POWERS  # noqa: B023
            if not is_possible or (is_library and function.encode() not in data):
                lacking.add(function)
                return own  # type: ignore[no-any-return]  # noqa: B023
            return {f"algorithm={function}": {}}

        for choice in each:
            last = choice.most_bytes == ENDLESS
            # MPICH selects by bytes per rank in an alltoall, and by total bytes in an allgather.
            parts, counted = num_ranks if kind == "alltoall" else 1, _COUNTED[kind]
            key = f"{counted}=any" if last else f"{counted}<={choice.most_bytes // parts}"
            rules[key] = run(choice.algorithm)
            if (kind, choice.algorithm) == ("allreduce", "halving-doubling"):  # needs one element per rank
                rules[key] = {"count<pow2": run("doubling"), "count=any": rules[key]}
        if kind == "allreduce":  # a ring needs a commutative operation, halving-doubling a predefined one
            rules = {
                "is_commutative=yes": {"is_op_built_in=yes": rules, "is_op_built_in=no": own},
                "is_commutative=no": own,
            }
        elif kind == "alltoall":
            rules = {"is_sendbuf_inplace=no": rules, "is_sendbuf_inplace=yes": own}
        exactly = {f"comm_size<{num_ranks}": own, f"comm_size<={num_ranks}": rules, "comm_size=any": own}
        tree[f"collective={kind}"]["comm_type=intra"] = exactly
    if lacking:
        names = ", ".join(sorted(lacking))
        said = f"MPICH has no {names} for {num_ranks} ranks; its own rules are kept where these are chosen"
        warn(said, LossyConversionWarning)
    return json.dumps(tree, indent=1) + "\n"


def _selection_of(base: Path) -> tuple[bytes, dict[str, Any]]:
    """(content, MPICH's own tree of selection rules) of its library or of a JSON file.

    A library may be a text that names another one for the linker, as in packages for pip.
    """
    try:
        data = base.read_bytes()
        if linked := re.match(rb"INPUT\s*\(\s*([\w./+-]+)\s*\)", data[:4096]):
            data = base.with_name(Path(linked[1].decode()).name).read_bytes()
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
            return data, found
    said = "found no selection rules; give the libmpi.so of MPICH 4 or later, or its selection file"
    raise FormatError(said, where=str(base))
