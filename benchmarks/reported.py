"""Faults from public reports: output for each input of the folder ``reported``, and the right answer.

The inputs are in the folder of the environment variable ``TACCL_TEST_DATA`` (default ``../shared/data``).

Examples
--------
    python -m benchmarks.reported
    python -m benchmarks.reported --only glued --output benchmarks/results/reported.json
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.cases import data_folder
from benchmarks.report import parser_of, shown, summed_up, wanted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.report import Column, Row

#: Max seconds of a command.
_MOST_S = 120


@dataclass(frozen=True, slots=True)
class Report:
    """One input: its commands, where ``{}`` is the file, and the right answer in words.

    - `expected`: A pattern that the printed text of all commands together must match.
    """

    file: str
    commands: tuple[str, ...]
    right: str
    expected: str


_NODES = "convert {} t.toml --set nodes=2"
_ALLTOALL = "synthesize --topology t.toml --collective alltoall --size 1GB --time-limit 10"
_FIT = "fit {} --topology dgx-h100"
_WORKS = ("show {}", "bound --topology {} --collective allreduce --size 256MB")

REPORTS = (
    Report(
        "xml/two-ports-a-gpu.xml",
        (_NODES, _ALLTOALL),
        "about 100 GB/s, 2 x 25 GB/s a GPU",
        r"algbw (9[5-9]|10[0-2])\b",
    ),
    Report(
        "smi/four-cards-a-gpu.txt",
        (f"{_NODES} --set nic_gb_per_s=12 --set pcie_gb_per_s=55 --set nvlink_joins=switch", _ALLTOALL),
        "48 GB/s a GPU",
        r"algbw (47\.[5-9]|48)",
    ),
    Report(
        "smi/four-of-eight-nics.txt",
        (
            f"{_NODES} --set nic_gb_per_s=50",
            "bound --topology t.toml --collective allreduce --size 1GB --chunks-per-rank 1",
        ),
        "171.3 GB/s with one chunk per rank, or a warning that a guess limits it",
        r"algbw 171\.3",
    ),
    Report(
        "allpairs-two.xml",
        ("verify {}",),
        "ok for all of minBytes..maxBytes",
        r"ok: .* for all sizes from 6KiB to 192KiB",
    ),
    Report(
        "bridged-four.txt",
        ("baseline nccl --topology {} --collective allreduce --size 1GB",),
        "formula and schedule agree",
        r"(?s)finish +22\d{3}.*modelled time 22\d{3}",
    ),
    *(
        Report(
            f"xml/{name}.xml",
            ("show {}", "convert {} t.toml"),
            "xGMI of 48 GB/s between every two",
            r"12 +inside nodes.* 48 *\n",
        )
        for name in ("rccl-mesh", "rccl-mesh-v1")
    ),
    Report(
        "logs/p2p-two-bridges.txt",
        ("show {}", "bound --topology {} --collective allgather --size 64MB"),
        "one node, no uplink, about 762 us",
        r"(?s)in 1 node.*bound +76[234]",
    ),
    Report("logs/rocm-smi-two-hives.txt", ("show {}",), "read, or named", "output of `rocm-smi"),
    Report(
        "logs/nvbandwidth-six.txt", ("show {}", "convert {} t.toml"), "read, or named", "6 in 1 node|6 ranks"
    ),
    Report("logs/nccl-debug.txt", ("show {}",), "read, or named", "a debug log of NCCL"),
    Report("xml/graph-dump.xml", ("show {}",), "read, or named", "a graph dump of NCCL"),
    Report("smi/in-a-paste.txt", ("show {}", "convert {} t.toml"), "read, or named", "8 in 1 node|8 ranks"),
    Report("logs/plan.json", ("verify {}",), "one remedy that works", "schedule or program again"),
    Report("logs/sendrecv.log", (_FIT,), "read as point to point", "point-to-point on 2 ranks"),
    Report("logs/uneven-8-4.log", (_FIT,), "said that nodes differ", "the nodes differ"),
    Report("smi/glued.txt", ("show {}",), "split, or refused", "NODENODE"),
    *(
        Report(f"{name}", _WORKS, "works", r"bound +\d")
        for name in (
            "smi/glued-affinity.txt",
            "smi/bridge-plus-one.txt",
            "smi/bridged-pairs.txt",
            "smi/single-space.txt",
            "smi/four-numa-uneven.txt",
            "smi/four-plain.txt",
            "smi/one-plus-three.txt",
            "smi/nv8-shared-cards.txt",
            "smi/ragged.txt",
            "smi/six-escapes.txt",
            "smi/v100x4-two-cards.txt",
            "xml/numa-minus-one.xml",
            "xml/vm-bridges.xml",
        )
    ),
    Report("smi/one-gpu.txt", _WORKS, "works", "nothing has to be sent|bound +0"),
    *(
        Report(f"logs/{name}", (_FIT,), "works", "median error")
        for name in (
            "alltoall-2x8.log",
            "ib-write-bw.txt",
            "osu-allreduce-8.txt",
            "reduce-root.log",
            "three-types.log",
            "two-sizes-of-job.log",
        )
    ),
    Report("logs/page-gbps.csv", (f"{_FIT} --collective allreduce",), "works", "median error"),
    Report("logs/v100x4.log", ("fit {} --topology dgx1",), "works", "median error"),
)

_COLUMNS: tuple[Column, ...] = (
    ("file", "file", "<30"), ("what is right", "right", "<42"), ("printed", "printed", "<60"),
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run all commands, print a row for each input, and return 1 if one prints something else."""
    parser = parser_of(__doc__)
    parser.add_argument("--only", action="append", help="a part of a file's name")
    options = parser.parse_args(argv)
    folder = data_folder().parent / "reported"
    found = shown(_COLUMNS, (_row(each, folder) for each in REPORTS if wanted(each.file, options.only)))
    return summed_up(options.output, {"rows": found})


def _row(report: Report, folder: Path) -> Row:
    """Run the commands of an input. The row has all lines of output, and the line that matches `expected`."""
    with tempfile.TemporaryDirectory() as place:
        said = "\n".join(_said(command, folder / report.file, place) for command in report.commands)
    lines = [" ".join(line.split()) for line in said.splitlines() if line.strip()]
    match = re.search(report.expected, said)
    end = said.find("\n", match.end()) if match else -1
    printed = said[said.rfind("\n", 0, match.start()) + 1 : end] if match else lines[-1] if lines else ""
    return {
        "file": report.file,
        "commands": [command.replace("{}", report.file) for command in report.commands],
        "right": report.right,
        "printed": " ".join(printed.splitlines()[-1].split())[:200] if printed else "",
        "met": match is not None,
        "lines": [line[:300] for line in lines],
    }


def _said(command: str, file: Path, place: str) -> str:
    """Output of a command on both streams."""
    words = [word.replace("{}", str(file)) for word in shlex.split(command)]
    done = subprocess.run(
        [sys.executable, "-m", "taccl", *words], cwd=place, capture_output=True, text=True, timeout=_MOST_S
    )
    return f"{done.stderr}\n{done.stdout}".replace(f"{file.parent}/", "")


if __name__ == "__main__":
    sys.exit(main())
