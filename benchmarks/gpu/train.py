"""Train a small network under DistributedDataParallel; MSCCL++ sums its gradients by plans.

On GPUs, with MSCCL++ in NCCL's place (`docs/runtimes.md`); on CPUs with gloo, without plans:

    taccl plan --topology dgx-a100 --collective allreduce --sizes 4KB:4MB --runtime mscclpp -o plan
    LD_PRELOAD=.../libmscclpp_nccl.so MSCCLPP_NCCL_LIB_PATH=.../libnccl.so \\
        torchrun --nproc-per-node 8 benchmarks/gpu/train.py --plan plan
    torchrun --nproc-per-node 2 benchmarks/gpu/train.py

It was run on CPUs. It has not been run on GPUs.
"""

from __future__ import annotations

import argparse
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> int:
    """Train, and return 1 if the parameters of the ranks differ or the loss does not fall."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plan", help="folder of `taccl plan`, with its register_plans.py")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    on_gpus = torch.cuda.is_available()
    if on_gpus:
        torch.cuda.set_device(local)
    if options.plan is not None:
        register(options.plan, rank, on_gpus=on_gpus)
    dist.init_process_group("nccl" if on_gpus else "gloo")
    try:
        return train(torch.device("cuda", local) if on_gpus else torch.device("cpu"), options.steps)
    finally:
        dist.destroy_process_group()


def register(folder: str, rank: int, *, on_gpus: bool) -> None:
    """Make the plans known to MSCCL++, which must happen before the process group starts."""
    if not on_gpus or "mscclpp" not in os.environ.get("LD_PRELOAD", ""):
        sys.exit("found no MSCCL++ in NCCL's place; run on GPUs with LD_PRELOAD=.../libmscclpp_nccl.so")
    sys.path.insert(0, folder)
    import register_plans

    register_plans.register(rank)


def train(device: torch.device, steps: int) -> int:
    """Run steps of gradient descent on a fixed target; DDP sums gradients in buckets."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 1)).to(device)
    model = DistributedDataParallel(network, bucket_cap_mb=1)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(dist.get_rank())
    inputs = torch.randn(64, 256, device=device)
    targets = inputs[:, :1]
    losses = []
    for _ in range(steps):
        optimiser.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    weights = torch.cat([each.detach().flatten() for each in network.parameters()])
    first = weights.clone()
    dist.broadcast(first, 0)
    is_same = torch.equal(weights, first)
    print(
        f"rank {dist.get_rank()}: loss {losses[0]:.4f} to {losses[-1]:.4f}, parameters as rank 0: {is_same}"
    )
    return 0 if is_same and losses[-1] < losses[0] else 1


if __name__ == "__main__":
    sys.exit(main())
