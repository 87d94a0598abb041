"""The frozen instances of the quality benchmark: the published tool's files, and the figures to meet.

`CASES` name files of the folder ``upstream-taccl`` in the folder that the environment variable
``TACCL_TEST_DATA`` names (default ``../shared/data``).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CASES", "Case", "data_folder"]


@dataclass(frozen=True, slots=True)
class Case:
    """One instance.

    Parameters
    ----------
    name : str
    collective, sketch, topology : str
        Files without their suffix.
    floor : float
        The finish to meet under ``cost_model="upstream"``, in the topology file's unit.
    seconds : float
        What the whole command may take.
    published : float
        The finish of the published tool, measured with HiGHS in Gurobi's place; nan where it finds none.
    """

    name: str
    collective: str
    sketch: str
    topology: str
    floor: float
    seconds: float
    published: float


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


def data_folder() -> Path:
    """The folder of upstream's files.

    Raises
    ------
    FileNotFoundError
        If it is not there.
    """
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("TACCL_TEST_DATA", default)) / "upstream-taccl"
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not there; set TACCL_TEST_DATA to the folder of test data")
    return folder
