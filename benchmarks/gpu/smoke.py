"""Run an MSCCL++ plan with several ranks on one GPU, and compare its sums with exact ones.

Each rank is a process, and all share device 0: they access each other's memory by CUDA IPC. Such times do not
apply to machines with a GPU for each rank, so none is printed.

    taccl convert schedule.json plan.json --to mscclpp --set in-place
    mpirun -n 4 python benchmarks/gpu/smoke.py plan.json --size 65536

It needs MSCCL++ 0.9.0, cupy and mpi4py, and follows MSCCL++'s own python/test/executor_test.py. It has not
been run, as no GPU was available. Only MSCCL++ can be tried in this way: NCCL and the runtimes of MSCCL XML
refuse two ranks on one device.
"""

from __future__ import annotations

import argparse
import sys


def main() -> int:
    """Run the plan of an in-place allreduce; return 1 if a rank has a wrong element."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("plan", help="plan of an allreduce in place")
    parser.add_argument("--size", type=int, default=65536, help="bytes, a multiple of 16 times the chunks")
    options = parser.parse_args()

    import cupy as cp
    from mpi4py import MPI
    from mscclpp import CommGroup, DataType, ExecutionPlan, Executor, GpuBuffer, PacketType

    cp.cuda.Device(0).use()
    group = CommGroup(MPI.COMM_WORLD)
    plan = ExecutionPlan(options.plan, group.my_rank)
    if plan.collective != "allreduce":
        sys.exit(f"found a plan of {plan.collective}; expected allreduce")
    executor, stream = Executor(group.communicator), cp.cuda.Stream(non_blocking=True)
    data = GpuBuffer(options.size // 4, dtype=cp.int32)
    place = cp.arange(data.size, dtype=cp.int32)
    wrong = 0
    for call in range(3):  # packets of successive calls lie in two halves of the scratch
        with stream:
            data[:] = place * (group.my_rank + 1) + call
        stream.synchronize()
        MPI.COMM_WORLD.Barrier()
        executor.execute(
            group.my_rank, data.data.ptr, data.data.ptr, data.nbytes, data.nbytes, DataType.int32, plan,
            stream.ptr, PacketType.LL16,
        )  # fmt: skip
        stream.synchronize()
        num = group.nranks
        expected = place * (num * (num + 1) // 2) + call * num
        wrong += int(cp.count_nonzero(data != expected))
    print(f"rank {group.my_rank} of {group.nranks} on device 0: {wrong} wrong elements in 3 calls")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
