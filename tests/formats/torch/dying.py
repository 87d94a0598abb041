"""Two ranks that reduce in an endless loop, until rank 1 dies."""

import os
import sys
from threading import Timer

import torch
import torch.distributed as dist

sys.path.insert(0, sys.argv[1])
from collective import Collective

dist.init_process_group("gloo")
collective, tensor = Collective(), torch.ones(1 << 16)
collective.all_reduce(tensor, dist.ReduceOp.MAX)  # both ranks are connected before one dies
if dist.get_rank() == 1:
    Timer(0.2, lambda: os._exit(9)).start()
while True:
    collective.all_reduce(tensor, dist.ReduceOp.MAX)
