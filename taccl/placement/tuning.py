"""The fastest algorithm of an MPI library at each size, measured with real ranks.

A library reads the name of a forced algorithm when it starts. Each algorithm therefore gets new processes.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from taccl._internal.arguments import checked
from taccl._internal.units import parse_size
from taccl.errors import ExecutionError, InputError
from taccl.placement.files import LIBRARY_NAMES, fastest, mpich_selection, openmpi_rules
from taccl.runtime.environment import find_library, launched_by
from taccl.runtime.launch import launched
from taccl.runtime.worker import serve

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taccl._internal.arguments import Count, Size
    from taccl.placement.files import Choice

#: The smallest size measured, and how many times as large each next one is; calls before those that count.
_FROM_BYTES, _TIMES, WARM_UP = 1 << 10, 4, 3
#: Seconds for which ranks may be silent.
_PATIENCE_S = 300.0
#: Differences that count for nothing, as a part of a time; our choice.
_NOISE = 0.05
#: What each library is told to force one algorithm; the other takes no notice.
_FORCED = {"OMPI_MCA_coll_tuned_use_dynamic_rules": "1", "OMPI_MCA_coll_tuned_priority": "90"}
_FORCED |= {"MPIR_CVAR_DEVICE_COLLECTIVES": "none"}
#: {library as it names itself: our name} of those that can be told an algorithm.
LIBRARIES = {"Open MPI": "openmpi", "MPICH": "mpich"}


@dataclass(frozen=True)
class Tuning:
    """What was measured of a library's collectives.

    - `library`: ``"openmpi"`` or ``"mpich"``.
    - `sizes`: Bytes of the larger of a rank's buffers.
    - `times_us`: Of each collective and algorithm, at each size, the median of the slowest rank.
    """

    library: str
    num_ranks: int
    sizes: tuple[int, ...]
    times_us: dict[str, dict[str, list[float]]]

    @property
    def choices(self) -> list[Choice]:
        """The fastest algorithm of each collective, by size."""
        return [
            each
            for kind, times in self.times_us.items()
            for each in fastest(kind, self.sizes, times, noise=_NOISE)
        ]

    def rules(self) -> str:
        """The file by which the library runs these choices."""
        if self.library == "openmpi":
            return openmpi_rules(self.choices, self.num_ranks)
        return mpich_selection(self.choices, self.num_ranks, base=find_library())


@checked
def measure_collectives(
    ranks: Count | None = None,
    *,
    launcher: Sequence[str] = (),
    size: Size = "1MB",
    repetitions: Count = 20,
    note: Callable[[str], None] = lambda _: None,
) -> Tuning:
    """The times of every algorithm that the MPI library here has for allreduce, allgather and alltoall.

    Parameters
    ----------
    ranks : int, optional
        How many to start on this machine.
    launcher : sequence of str, optional
        Instead: the words that start ranks of the user's, as ``["mpiexec", "-f", "hosts", "-n", "16"]``.
    size : int or str
        Up to which sizes are measured, from 1 KB on.
    repetitions : int
        Calls that count, of which the median does.
    note : callable, optional
        Told what is going on.

    Raises
    ------
    InputError
        If neither says how ranks are started, or they are those of a launcher already.
    ExecutionError
        If there is no MPI, a rank dies, or the library is neither Open MPI nor MPICH.
    """
    if launched_by() is not None:
        said = "found ranks that a launcher has started, which are started anew for each algorithm; "
        raise InputError(f"{said}run taccl once, and say how they start (--mpiexec)", where="mpiexec")
    if (ranks is None or ranks < 2) and not launcher:
        found = "none" if ranks is None else str(ranks)
        raise InputError(f"found {found}; expected two ranks or more to start here", where="ranks")
    sizes = [_FROM_BYTES]
    while sizes[-1] * _TIMES <= parse_size(size, where="size"):
        sizes.append(sizes[-1] * _TIMES)
    times: dict[str, dict[str, list[float]]] = {kind: {} for kind in LIBRARY_NAMES}
    report: dict[str, Any] = {}
    for kind, names in LIBRARY_NAMES.items():
        for name in names:
            note(f"{kind} by {name}")
            request = {"kind": kind, "sizes": sizes, "repetitions": repetitions}
            report = launched(
                "taccl.placement.tuning", ranks or 0, request,
                timeout_s=_PATIENCE_S, note=note, launcher=launcher, environment=forced(kind, name),
            )  # fmt: skip
            if report["num_ranks"] < 2:
                said = "found ranks that do not know of each other; give the launcher of the MPI that mpi4py "
                raise ExecutionError(f"{said}loads, which is {report['library']}")
            times[kind][name] = report["us"]
    library = LIBRARIES.get(report["library"])
    if library is None:
        raise ExecutionError(f"found {report['library']}, expected Open MPI or MPICH: no others take rules")
    return Tuning(library, report["num_ranks"], tuple(sizes), times)


def forced(kind: str, algorithm: str) -> dict[str, str]:
    """Variables by which both libraries run one algorithm of `LIBRARY_NAMES`."""
    number, words = LIBRARY_NAMES[kind][algorithm]
    return {
        **_FORCED, f"OMPI_MCA_coll_tuned_{kind}_algorithm": str(number),
        f"MPIR_CVAR_{kind.upper()}_INTRA_ALGORITHM": words,
    }  # fmt: skip


def collective_call(comm: Any, kind: str, size_bytes: int) -> Callable[[], None]:
    """A function that calls a collective once; its larger buffer has about `size_bytes` bytes of float32.

    Raises `InputError` if MPI has no such collective, or none is measured here.
    """
    count = max(1, size_bytes // 4 // comm.size) * comm.size
    whole, other = np.zeros(count, dtype=np.float32), np.zeros(count, dtype=np.float32)
    part = whole[: count // comm.size]
    buffers = {
        "allreduce": (whole, other), "allgather": (part, other), "alltoall": (whole, other),
        "reduce-scatter": (whole, other[: len(part)]),
    }  # fmt: skip
    if kind not in buffers:
        raise InputError(f"found {kind}; expected one of {', '.join(buffers)}", where="collective")
    name = "Reduce_scatter_block" if kind == "reduce-scatter" else kind.capitalize()
    call = getattr(comm, name)
    return lambda: call(*buffers[kind])


def _measured(comm: Any, request: dict[str, Any]) -> dict[str, Any]:
    """One rank's part: the time of the slowest rank, the median of some calls, at each size."""
    from mpi4py import MPI

    found = []
    for size in request["sizes"]:
        call = collective_call(comm, request["kind"], size)
        took = np.zeros(request["repetitions"])
        for turn in range(-WARM_UP, len(took)):
            comm.Barrier()
            began = time.perf_counter()
            call()
            took[max(turn, 0)] = time.perf_counter() - began
        slowest = np.zeros_like(took)
        comm.Allreduce(took, slowest, op=MPI.MAX)
        found.append(float(np.median(slowest)) * 1e6)
    said = MPI.Get_library_version()
    library = next((name for name in LIBRARIES if name in said), said.split("\n")[0][:60])
    return {"us": found, "num_ranks": comm.size, "library": library}


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1], lambda comm, request, *_: _measured(comm, request())))
