"""Find MPI's packages and ``mpiexec``, and the launcher that started this process."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taccl._internal.deadline import signals_to
from taccl._internal.names import install_extra
from taccl.errors import ExecutionError
from taccl.runtime.parent_death_guard import remove_segments, segments_of

if TYPE_CHECKING:
    from importlib.metadata import PackagePath

INSTALL = install_extra("mpi")
#: Exit code of a process that Ctrl-C ended.
_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class LaunchedRank:
    """Launcher that started this process, and the rank of the process.

    `num_ranks` is None if the launcher does not state the number of ranks.
    """

    launcher: str
    rank: int
    num_ranks: int | None


#: (launcher, variable with the rank, variable with the number of ranks).
_LAUNCHERS = (
    ("Open MPI's mpiexec", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MPICH's mpiexec, or one of its kind", "PMI_RANK", "PMI_SIZE"),
    ("a launcher that speaks PMIx", "PMIX_RANK", ""),
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


def launched_by(environ: dict[str, str] | os._Environ[str] = os.environ) -> LaunchedRank | None:
    """The launcher that started this process as one of several ranks; None if there is none."""
    for launcher, rank, size in _LAUNCHERS:
        if not environ.get(rank, "").isdigit():
            continue
        given = environ.get(size, "") if size else ""
        num_ranks = int(given) if given.isdigit() else None
        # Many tools set these variables, but only torchrun also sets the id of its run.
        if launcher == "torchrun" and "TORCHELASTIC_RUN_ID" not in environ:
            continue
        # A batch script, and a shell that srun started, also have the variables of srun's ranks.
        if launcher == "srun" and (num_ranks or 0) < 2:
            continue
        return LaunchedRank(launcher, int(environ[rank]), num_ranks)
    return None


def find_mpiexec() -> Path:
    """Path of the launcher (``mpiexec``) of this environment's MPI library.

    A launcher from elsewhere may belong to another MPI library.
    """
    if importlib.util.find_spec("mpi4py") is None:
        raise ExecutionError(f"running needs mpi4py and mpich, but mpi4py is not installed; {INSTALL}")
    for candidate in _candidates():
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate
    raise ExecutionError(
        f"found mpi4py, but no mpiexec in {sys.prefix}; {INSTALL}, or start the ranks with your MPI's "
        "mpiexec: mpiexec -n N taccl run ..."
    )


def find_library() -> Path:
    """Path of MPICH's shared library in this environment."""
    for file in _mpich_files():
        if file.name.startswith("libmpi.so."):
            return Path(str(file.locate())).resolve()
    raise ExecutionError(f"found no MPICH in {sys.prefix}; {INSTALL}, or name its libmpi.so")


def import_mpi() -> Any:
    """Import mpi4py's module ``MPI``, which initializes MPI."""
    try:
        from mpi4py import MPI  # this enables threads; without them, MPICH 5.0 never yields a shared core
    except (ImportError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise ExecutionError(
            f"running needs mpi4py and an MPI library, which cannot be loaded ({reason}); {INSTALL}"
        ) from None
    return MPI


@contextmanager
def joined() -> Iterator[Any]:
    """Import MPI in a rank of a launcher; until the end of the context, Ctrl-C ends all ranks.

    Ranks wait for each other, so none may end alone. No Python code runs while MPI starts, so Ctrl-C kills
    the process there.
    """

    def end(*_: object) -> None:
        remove_segments(segments_of(os.getpid()))  # MPICH does not remove its shared memory
        mpi.COMM_WORLD.Abort(_INTERRUPTED)

    with signals_to(signal.SIG_DFL, "SIGINT"):
        mpi = import_mpi()
        with signals_to(end, "SIGINT"):
            yield mpi


def _candidates() -> list[Path]:
    own = [Path(str(file.locate())).resolve() for file in _mpich_files() if file.name == "mpiexec"]
    return [*own, Path(sys.executable).parent / "mpiexec", Path(sys.prefix) / "bin" / "mpiexec"]


def _mpich_files() -> Iterable[PackagePath]:
    """Files of MPICH's package; none if it is not installed."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        return distribution("mpich").files or ()
    except PackageNotFoundError:
        return ()
