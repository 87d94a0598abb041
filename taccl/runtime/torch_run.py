"""A schedule executed by ranks of PyTorch, compared with the stock collective and timed beside it.

Ranks are those of torchrun, or started here, each as ``python -m taccl.runtime.torch_run JOB.json``.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from taccl._internal.arguments import known_word
from taccl._internal.deadline import num_cores
from taccl._internal.units import format_count
from taccl.errors import ExecutionError, InputError
from taccl.formats.torch.rounds import rounds_of
from taccl.program.program import Program
from taccl.runtime.environment import launched_by
from taccl.runtime.launch import launched
from taccl.runtime.torch_calls import (
    call_of,
    gather_texts,
    has_root,
    import_torch,
    module_of,
    num_elements,
    num_inputs,
    require_torch,
    result_of,
    stock_call,
    tensors_of,
)
from taccl.runtime.torch_report import TorchReport
from taccl.runtime.worker import GRACE_S, Watchdog
from taccl.runtimes.runtime import RunReport

#: Types of elements. Inputs are whole numbers from 0 to 7, whose sums over 36 ranks bfloat16 holds exactly.
DTYPES = ("int32", "int64", "float32", "float64", "float16", "bfloat16")
_MAX_INPUT = 8


def execute_in_torch(
    program: Program,
    sizes: Sequence[int],
    *,
    dtype: str = "float32",
    repetitions: int = 10,
    timeout_s: float = 60.0,
    seed: int = 0,
    note: Callable[[str], None] = lambda _: None,
) -> TorchReport:
    """Execute a program in PyTorch at some sizes, in bytes of the larger of a rank's buffers.

    - `repetitions`: Timed runs of each size, after one to warm up. All outputs are compared.
    - `timeout_s`: Max seconds for one message.

    Raises `InputError` if another launcher than torchrun started this process, or torchrun another number of
    ranks. `ExecutionError` without PyTorch, or if a rank fails. `ExportError` if PyTorch has no such
    collective.
    """
    known_word(dtype, DTYPES, "dtype")
    require_torch()
    found = rounds_of(program)  # errors are raised here, before any rank starts
    job = {
        "program": program.to_dict(), "num_rounds": found.num_rounds, "volume": found.volume,
        "sizes": list(sizes), "dtype": dtype, "repetitions": repetitions, "timeout_s": timeout_s,
        "seed": seed,
    }  # fmt: skip
    launch = launched_by()
    if launch is not None and launch.launcher != "torchrun":
        said = f"found ranks of {launch.launcher}; start it with torchrun, or directly on one machine"
        raise InputError(said, where="--engine")
    if launch is None:
        starter = [sys.executable, "-P", "-m", "taccl.runtime.rank_starter", str(program.num_ranks)]
        report = launched(
            "taccl.runtime.torch_run",
            program.num_ranks,
            job,
            timeout_s=timeout_s,
            note=note,
            launcher=starter,
        )
        return TorchReport.from_dict(report)
    if launch.num_ranks != program.num_ranks:
        said = f"found {launch.num_ranks}; the schedule is for {format_count(program.num_ranks, 'rank')}"
        raise InputError(said, where="torchrun")
    return TorchReport.from_dict(_execute_on_rank(job, "env://", note))


def run(read: Callable[[], Program], *, sizes: Sequence[int], dtype: str | None, **options: Any) -> RunReport:
    """Execute a program in PyTorch, for ``taccl run``."""
    report = execute_in_torch(read(), sizes, dtype=dtype or "float32", **options)
    return RunReport(report.text(), report.figures(), report.failure(), report.log())


def main(path: str) -> int:
    """Run one rank of the job in a file; rank 0 prints the report."""
    folder = Path(path).parent
    job = json.loads(Path(path).read_text(encoding="utf-8"))

    def say(message: dict[str, Any]) -> None:
        if os.environ["RANK"] == "0":
            sys.stdout.write(json.dumps(message) + "\n")
            sys.stdout.flush()

    with Watchdog() as watchdog:
        watchdog.expect("the run in PyTorch", GRACE_S + len(job["sizes"]) * job["timeout_s"])
        # Ranks meet by a file in the job's folder, so no port has to be free.
        report = _execute_on_rank(job, f"file://{folder / 'store'}", lambda text: say({"note": text}))
        say({"report": report})
    return 0


def _execute_on_rank(job: dict[str, Any], address: str, note: Callable[[str], None]) -> dict[str, Any]:
    """Execute the job at all of its sizes, together with the other ranks; return the report at every rank.

    - `address`: URL of the store by which the ranks find each other.
    """
    torch = import_torch()
    dist = torch.distributed
    program, rank = Program.from_dict(job["program"]), int(os.environ["RANK"])
    local, locals_ = int(os.environ.get("LOCAL_RANK", rank)), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    on_gpus = torch.cuda.is_available() and torch.cuda.device_count() >= locals_
    device = torch.device("cuda", local) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    backend = "nccl" if on_gpus else "gloo"
    note(f"starting {program.num_ranks} ranks of {backend}")
    dist.init_process_group(
        backend, init_method=address, rank=rank, world_size=program.num_ranks,
        timeout=timedelta(seconds=job["timeout_s"]),
    )  # fmt: skip
    try:
        return _run(torch, job, program, device, note)
    finally:
        dist.destroy_process_group()


def _run(
    torch: Any, job: dict[str, Any], program: Program, device: Any, note: Callable[[str], None]
) -> dict[str, Any]:
    dist, rank, ranks = torch.distributed, torch.distributed.get_rank(), program.num_ranks
    assert program.collective is not None, "it has rounds"
    name, dtype = program.collective.name, getattr(torch, job["dtype"])
    module = module_of(program)
    root = module.ROOT or 0
    ours, stock = call_of(module, name), stock_call(name, None, root)
    is_root = rank == root
    made = []
    for size in job["sizes"]:
        note(f"running {size} bytes")
        item = torch.empty(0, dtype=dtype).element_size()
        elements = num_elements(name, ranks, size, item)
        generator = torch.Generator().manual_seed(job["seed"] * ranks + rank)
        shape = (num_inputs(name, ranks, elements),)
        source = torch.randint(0, _MAX_INPUT, shape, generator=generator).to(dtype).to(device)
        times: dict[str, list[float]] = {"ours": [], "stock": []}
        num_wrong = 0
        for run in range(1 + job["repetitions"]):
            results = {}
            for kind, call in (("ours", ours), ("stock", stock)):
                tensors = tensors_of(name, source, ranks, is_root=is_root)
                took_us = _timed(torch, device, call, tensors)
                results[kind] = result_of(name, tensors, is_root=is_root)
                if run:
                    times[kind].append(took_us)
            num_wrong += sum(
                int((a != b).sum()) for a, b in zip(results["ours"], results["stock"], strict=True)
            )
        slowest = torch.tensor([times["ours"], times["stock"]], dtype=torch.float64, device=device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        total = torch.tensor([num_wrong], device=device)
        dist.all_reduce(total)
        blocks = max(1, program.collective.size_chunks // module.PARTS) if not has_root(name) else 1
        blocks = ranks if name in ("gather", "scatter") else blocks
        made.append(
            {
                "size_bytes": elements * blocks * item, "count": elements * blocks,
                "times_us": slowest[0].tolist(), "stock_us": slowest[1].tolist(), "num_wrong": int(total[0]),
            }
        )  # fmt: skip
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    own = json.dumps([socket.gethostname()[:100], device.index or 0, gpu[:100]])
    devices = [tuple(json.loads(each)) for each in gather_texts(own)]
    on_host = sum(host == socket.gethostname() for host, _, _ in devices)
    return {
        "program": program.name, "collective": name, "num_ranks": ranks, "num_rounds": job["num_rounds"],
        "root": -1 if module.ROOT is None else root, "dtype": job["dtype"], "backend": dist.get_backend(),
        "version": str(torch.__version__), "busbw_factor": program.collective.busbw_factor,
        "devices": devices, "crowded": not gpu and on_host > num_cores(), "sizes": made,
        "volume": job["volume"],
    }  # fmt: skip


def _timed(torch: Any, device: Any, call: Callable[..., Any], tensors: tuple[Any, ...]) -> float:
    """Microseconds that a call takes at this rank, from a barrier before it to the end of its work."""
    torch.distributed.barrier()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    began = time.perf_counter()
    call(*tensors)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - began) * 1e6


if __name__ == "__main__":
    try:
        code = main(sys.argv[1])
    except (ExecutionError, RuntimeError) as error:
        first = str(error).partition("\n")[0]
        sys.stderr.write(f"rank {os.environ.get('RANK')}: {type(error).__name__}: {first}\n")
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads of a backend may still wait for ranks that are gone
