"""Measure the fastest algorithm of an MPI library at each size, with real ranks.

MPI libraries read the name of a forced algorithm at start-up, so each algorithm is run in new processes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taccl._internal.arguments import Count, Size, checked
from taccl._internal.units import parse_size
from taccl.errors import ExecutionError, InputError
from taccl.placement.files import LIBRARY_NAMES, Choice, fastest, mpich_selection, openmpi_rules
from taccl.runtime.environment import find_library, launched_by
from taccl.runtime.launch import launched
from taccl.runtime.worker import serve

#: `_FROM_BYTES`: smallest size measured, in bytes.
#: `_TIMES`: ratio of consecutive sizes measured.
#: `_WARM_UP`: number of calls before the timed ones.
_FROM_BYTES, _TIMES, _WARM_UP = 1 << 10, 4, 3
#: Timeout in seconds after the last message from the ranks.
_PATIENCE_S = 300.0
#: Relative difference of times that counts as noise; our choice.
_NOISE = 0.05
#: Environment variables that make Open MPI and MPICH obey a forced algorithm.
#: Each library ignores the variables of the other.
_FORCED = {"OMPI_MCA_coll_tuned_use_dynamic_rules": "1", "OMPI_MCA_coll_tuned_priority": "90"}
_FORCED |= {"MPIR_CVAR_DEVICE_COLLECTIVES": "none"}
#: {name in the library's version text: our name} of the libraries that accept a forced algorithm.
LIBRARIES = {"Open MPI": "openmpi", "MPICH": "mpich"}


@dataclass(frozen=True)
class Tuning:
    """Measured times of a library's collectives.

    - `library`: ``"openmpi"`` or ``"mpich"``.
    - `sizes`: Bytes of the larger of a rank's input and output buffer.
    - `times_us`: {collective: {algorithm: time at each size}}; median over calls of the slowest rank's time.
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
            if times
            for each in fastest(kind, self.sizes, times, noise=_NOISE)
        ]

    def rules(self) -> str:
        """Content of the file that makes the library run the algorithms in `choices`."""
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
    """Measure every algorithm of this machine's MPI library for allreduce, allgather and alltoall.

    Parameters
    ----------
    ranks : int, optional
        Number of ranks to start on this machine.
    launcher : sequence of str, optional
        Instead of `ranks`: command that starts the ranks, e.g. ``["mpiexec", "-f", "hosts", "-n", "16"]``.
    size : int or str
        Largest size to measure; the smallest is 1 KiB.
    repetitions : int
        Number of timed calls, whose median is reported.
    note : callable, optional
        Called with a line of text at each stage.

    Raises
    ------
    InputError
        If neither `ranks` nor `launcher` is given, or this process is itself a rank of a launcher.
    ExecutionError
        If there is no MPI, a rank dies with the first algorithm, or the library is neither Open MPI nor
        MPICH. Later algorithms that do not run are left out.
    """
    if launched_by() is not None:
        said = "found ranks that a launcher has started, but each algorithm needs its own run; "
        raise InputError(f"{said}run taccl once without the launcher, and give --mpiexec", where="mpiexec")
    if (ranks is None or ranks < 2) and not launcher:
        found = "none" if ranks is None else str(ranks)
        said = f"found {found}; expected two ranks or more to start here, such as ranks=2"
        raise InputError(said, where="ranks")
    sizes = [_FROM_BYTES]
    while sizes[-1] * _TIMES <= parse_size(size, where="size"):
        sizes.append(sizes[-1] * _TIMES)
    times: dict[str, dict[str, list[float]]] = {kind: {} for kind in LIBRARY_NAMES}
    report: dict[str, Any] = {}
    for kind, names in LIBRARY_NAMES.items():
        for name in names:
            note(f"{kind} by {name}")
            request = {"kind": kind, "sizes": sizes, "repetitions": repetitions}
            try:
                report = launched(
                    "taccl.placement.tuning", ranks or 0, request,
                    timeout_s=_PATIENCE_S, note=note, launcher=launcher, environment=forced(kind, name),
                )  # fmt: skip
            except ExecutionError as error:
                if not report:  # not the algorithm's fault
                    raise
                note(f"{kind} by {name} is left out, as it does not run: {error}")
                continue
            if report["num_ranks"] < 2:
                said = "found disconnected ranks; give the launcher of the MPI that mpi4py "
                raise ExecutionError(f"{said}loads, which is {report['library']}")
            times[kind][name] = report["us"]
    library = LIBRARIES.get(report["library"])
    if library is None:
        raise ExecutionError(
            f"found {report['library']}; expected Open MPI or MPICH, as no others accept rules"
        )
    return Tuning(library, report["num_ranks"], tuple(sizes), times)


def forced(kind: str, algorithm: str) -> dict[str, str]:
    """Environment variables with which Open MPI and MPICH run one algorithm of `LIBRARY_NAMES`."""
    number, words = LIBRARY_NAMES[kind][algorithm]
    return {
        **_FORCED, f"OMPI_MCA_coll_tuned_{kind}_algorithm": str(number),
        f"MPIR_CVAR_{kind.upper()}_INTRA_ALGORITHM": words,
    }  # fmt: skip


def collective_call(comm: Any, kind: str, size_bytes: int) -> Callable[[], None]:
    """Function that calls a collective once; its larger buffer has about `size_bytes` bytes of float32.

    Raises `InputError` for a collective that is not measured here.
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


def slowest_us(comm: Any, calls: Sequence[Callable[[], None]], repetitions: int) -> NDArray[np.float64]:
    """Time of each call at the slowest rank in us, (repetitions, calls); the order of calls alternates."""
    from mpi4py import MPI

    took_s = np.zeros((repetitions, len(calls)))
    for turn in range(-_WARM_UP, repetitions):
        for which in range(len(calls))[:: 1 if turn % 2 else -1]:
            comm.Barrier()
            began = time.perf_counter()
            calls[which]()
            took_s[max(turn, 0), which] = time.perf_counter() - began
    slowest = np.zeros_like(took_s)
    comm.Allreduce(took_s, slowest, op=MPI.MAX)
    return 1e6 * slowest


def library_name() -> str:
    """Name of the MPI library: a key of `LIBRARIES`, otherwise the beginning of its version text."""
    from mpi4py import MPI

    said = MPI.Get_library_version()
    return next((name for name in LIBRARIES if name in said), said.split("\n")[0][:60])


def _measured(comm: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Measure one algorithm at one rank: median over calls of the slowest rank's time, at each size."""
    found = []
    for size in request["sizes"]:
        call = collective_call(comm, request["kind"], size)
        found.append(float(np.median(slowest_us(comm, [call], request["repetitions"]))))
    return {"us": found, "num_ranks": comm.size, "library": library_name()}


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1], lambda comm, request, *_: _measured(comm, request())))
