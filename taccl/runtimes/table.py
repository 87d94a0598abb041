"""Table of the runtimes that the library supports, one entry each.

Versions of their sources:

- ``msccl``: microsoft/msccl, a fork of NCCL 2.12.12; reads MSCCL XML.
- ``msccl-executor``: Azure/msccl-executor-nccl, on NCCL 2.23.4; reads MSCCL XML.
- ``rccl``: RCCL 2.21.5 (ROCm 6.3) up to 2.27.7 (ROCm 7.2); reads MSCCL XML. 2.28.3 (ROCm 7.13) removed it.
- ``mscclpp``: MSCCL++ 0.9.0; reads execution plans.
"""

from __future__ import annotations

from typing import Any

from taccl.runtimes.runtime import Launch, Runtime
from taccl.topology.tuning import KERNEL_LAUNCH_US, PROTOCOLS

_XML: dict[str, Any] = {
    "reads": "msccl-xml", "why_not": "taccl.explore.plan_xml:why_not",
    "check": "taccl.explore.plan_xml:check", "files": "taccl.explore.plan_xml:files",
    "lower_s": 4.5e-5,  # 3.0e-5 to 5.8e-5 for ten schedules of 1,000 to 41,000 sends
}  # fmt: skip
_XML_LAUNCH = Launch(
    3.6,
    "Azure/msccl, README.md: 1 KB to 8 MB on 8 H100; copies through NCCL's buffers reach 0.6 of the links",
    one_kernel=True, hops_us=(PROTOCOLS[1].ring_hop_us, 3.4), shares=(1.0, 0.6), one_shot=False,
    falls_back=True,
)  # fmt: skip
_RENAMED = {"reduce_scatter": "reducescatter"}

#: {name: runtime}
RUNTIMES = {
    each.name: each
    for each in (
        Runtime("msccl", "MSCCL", max_files=4, usual_for="nvidia", launch=_XML_LAUNCH, **_XML),
        Runtime(
            "msccl-executor", "the MSCCL executor", max_steps=64, max_threadblocks=1024, renamed=_RENAMED,
            takes_custom=False, includes_most=True, launch=_XML_LAUNCH, **_XML,
        ),
        Runtime(
            "rccl", "RCCL", max_steps=64, max_threadblocks=64, max_channels=128, renamed=_RENAMED,
            takes_custom=False, includes_most=True, usual_for="amd",
            launch=Launch(None, "prior of fits to published logs, which replace it"), **_XML,
        ),
        Runtime(
            "mscclpp", "MSCCL++", "mscclpp", protocols=("Simple", "LL"), max_threadblocks=80, usual_for="any",
            why_not="taccl.explore.plan_mscclpp:why_not", check="taccl.explore.plan_mscclpp:check",
            files="taccl.explore.plan_mscclpp:files",
            lower_s=2.5e-4,  # 1.5e-4 to 3.1e-4 for the same ten
            launch=Launch(
                KERNEL_LAUNCH_US,
                "published times of MSCCL++ on A100: one kernel, without NCCL's base; half of LL's rate",
                one_kernel=True,
            ),
        ),
        Runtime(
            "nccl", "NCCL",
            launch=Launch(
                None,
                "our choice: with NCCL's base and hops, an allreduce on 8 H100 takes what a published log "
                "shows",
            ),
        ),
        Runtime(
            "torch", "PyTorch", "torch", protocols=(), why_not="taccl.explore.plan_torch:why_not",
            check="taccl.explore.plan_torch:check", files="taccl.explore.plan_torch:files",
            run="taccl.runtime.torch_run:run", run_options=("sizes", "log"),
            launch=Launch(None, "as NCCL's: the host's Python time is not counted"),
        ),
        Runtime(
            "mpi", "MPI", protocols=(), run="taccl.runtime.execute:run", run_options=("in_place", "topology"),
            launch=Launch(
                0.0,
                "our choice, compared with no log: messages between pairs, and sums in memory of the host",
                predict="taccl.measure.predict:by_mpi",
            ),
        ),
    )
}  # fmt: skip

#: {earlier name of a runtime: its present name}
ALIASES = {"msccl-xml": "msccl"}
