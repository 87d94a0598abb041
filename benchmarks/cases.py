"""Frozen instances of the quality benchmark: files of the published tool, and the figures to meet.

`CASES` name files of the folder ``upstream-taccl`` in the folder of the environment variable
``TACCL_TEST_DATA`` (default ``../shared/data``).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import taccl
from taccl.sketch.upstream import load_problem

if TYPE_CHECKING:
    from collections.abc import Callable

    from taccl.problem.problem import Problem
    from taccl.topology.topology import Topology

MB = 10**6


@dataclass(frozen=True, slots=True)
class Case:
    """One instance of the quality benchmark: a collective, a sketch and a topology.

    Parameters
    ----------
    name : str
        Name of the case.
    collective, sketch, topology : str
        Names of files without their suffix.
    floor : float
        Finish to meet under ``cost_model="upstream"``, in the topology file's unit.
    seconds : float
        Max seconds of the whole command.
    published : float
        Finish of the published tool, measured with HiGHS instead of Gurobi; nan if it finds no schedule.
    """

    name: str
    collective: str
    sketch: str
    topology: str
    floor: float
    seconds: float
    published: float

    @property
    def files(self) -> tuple[Path, Path]:
        """Paths of its sketch and its topology."""
        folder = data_folder()
        return folder / "sketch" / f"{self.sketch}.json", folder / "topo" / f"{self.topology}.json"

    def problem(self, collective: str = "", cost_model: Any = "upstream") -> Problem:
        """Problem of the case, or of another collective if one is named."""
        return load_problem(*self.files, collective=collective or self.collective, cost_model=cost_model)


CASES = (
    Case("allgather NDv2 x1 sk1 1MB", "allgather", "sk1-ndv2-n1", "topo-ndv2-1MB", 69, 5, 92),
    Case("allgather NDv2 x2 sk1 1MB", "allgather", "sk1-ndv2-n2", "topo-ndv2-1MB", 919.4, 10, 968),
    Case("allgather NDv2 x4 sk1 1MB", "allgather", "sk1-ndv2-n4", "topo-ndv2-1MB", 2620, 30, 2651),
    Case("allgather DGX-2 x1 sk1 1MB", "allgather", "sk1-dgx2-n1", "topo-dgx2-1MB", 120, 5, 120),
    Case("allgather DGX-2 x2 sk1 1MB", "allgather", "sk1-dgx2-n2", "topo-dgx2-1MB", 512, 30, 566.4),
    Case("allgather DGX-2 x2 sk2 1KB", "allgather", "sk2-dgx2-n2", "topo-dgx2-1KB", 930, 10, 1364),
    Case("alltoall NDv2 x2 sk1 1MB", "alltoall", "sk1-ndv2-n2", "topo-ndv2-1MB", 6748.6, 30, 6829.2),
    Case("alltoall NDv2 x2 sk2 1KB", "alltoall", "sk2-ndv2-n2", "topo-ndv2-1KB", 916, 10, 916),
    Case("alltoall DGX-2 x2 sk2 1KB", "alltoall", "sk2-dgx2-n2", "topo-dgx2-1KB", 1193, 30, 3594),
    Case("alltoall DGX-2 x2 sk1 1MB", "alltoall", "sk1-dgx2-n2", "topo-dgx2-1MB", 6900, 60, float("nan")),
    Case("allreduce NDv2 x2 sk1 1MB", "allreduce", "sk1-ndv2-n2", "topo-ndv2-1MB", 1880, 30, 1943.8),
    Case("allreduce DGX-2 x2 sk1 1MB", "allreduce", "sk1-dgx2-n2", "topo-dgx2-1MB", 1024, 60, 1132.8),
)


@dataclass(frozen=True, slots=True)
class PlainCase:
    """A machine, a collective and a size, without a sketch, for the portfolio.

    Parameters
    ----------
    machine : function without arguments that returns a topology, or str
        A string is the name of a file in the folder ``te-ccl`` next to the published tool's.
    size_bytes : int
        Size in bytes as nccl-tests counts it.
    finish_us, gap : float, optional
        Max finish in us, and max gap, (finish - bound) / bound.
    seconds : float
        Time limit in seconds.
    """

    name: str
    machine: Callable[[], Topology] | str
    collective: str
    size_bytes: int
    chunks_per_rank: int = 1
    finish_us: float = float("inf")
    gap: float = float("inf")
    seconds: float = 30.0

    def problem(self) -> Problem:
        """Problem of the case."""
        topology = te_ccl(self.machine) if isinstance(self.machine, str) else self.machine()
        made = taccl.collectives.make(
            self.collective, topology.num_ranks, chunks_per_rank=self.chunks_per_rank
        )
        return taccl.make_problem(topology, made, size_bytes=self.size_bytes)


#: {chunks per rank: finish to meet in us}. With multicast links the same finish must be met.
_NDV2_US = {1: 68.375, 2: 66.1875, 4: 65.1}
#: {chunks per rank: finish to meet in us}.
#: Each of four chunks has 7,813 bytes, rounded up from 7,812.5, with which the finish would be 9.25.
_DGX2_US = {1: 11.0, 2: 9.8, 4: 9.250336}
_MULTICAST_US = {MB: 68.375, 64 * MB: 4124, 1000 * MB: 64379}

PLAIN_CASES = (
    *(
        PlainCase(f"allgather ndv2x4 1MB, {k} a rank", "ndv2x4", "allgather", MB, k, finish)
        for k, finish in _NDV2_US.items()
    ),
    *(
        PlainCase(
            f"allgather ndv2x4-multicast {size // MB}MB", "ndv2x4-multicast", "allgather", size, 1, finish
        )
        for size, finish in _MULTICAST_US.items()
    ),
    *(
        PlainCase(f"allgather dgx2x2 1MB, {k} a rank", "dgx2x2", "allgather", MB, k, finish, seconds=20)
        for k, finish in _DGX2_US.items()
    ),
    PlainCase("allreduce NDv2 x4 64KB", lambda: taccl.topologies.ndv2(4), "allreduce", 64 * 1024, gap=0.25),
    PlainCase("allgather DGX-2 x4 64KB", lambda: taccl.topologies.dgx2(4), "allgather", 64 * 1024, gap=0.15),
    PlainCase("allreduce DGX-2 x4 16MB", lambda: taccl.topologies.dgx2(4), "allreduce", 16 << 20, gap=0.08),
    PlainCase(
        "broadcast DGX-H100 x4, 16 chunks",
        lambda: taccl.topologies.dgx_h100(4, profile="nominal"),
        "broadcast",
        16 * MB,
        16,
        gap=0.17,
    ),  # fmt: skip
)


def te_ccl(name: str) -> Topology:
    """Topology from a file of the folder ``te-ccl``."""
    return taccl.topologies.load(data_folder().parent / "te-ccl" / f"{name}.toml")


def data_folder() -> Path:
    """Folder of the published tool's files.

    Raises
    ------
    FileNotFoundError
        If it does not exist.
    """
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("TACCL_TEST_DATA", default)) / "upstream-taccl"
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not there; set TACCL_TEST_DATA to the folder of test data")
    return folder
