"""Joint scheduling of computation and communication of a step, such as a training iteration."""

from taccl.workload.autotransform import autotransform
from taccl.workload.chakra import from_chakra
from taccl.workload.costs import Rates
from taccl.workload.files import load_workload, save_workload
from taccl.workload.fx import from_fx
from taccl.workload.lowering import lower_step, save_traces
from taccl.workload.replay import replay_step
from taccl.workload.schedule import schedule_workload
from taccl.workload.step import Step
from taccl.workload.transform import fuse, overlap, reorder, slice_state, split

__all__ = [
    "Rates", "Step", "autotransform", "from_chakra", "from_fx", "fuse", "load_workload", "lower_step",
    "overlap", "reorder", "replay_step", "save_traces", "save_workload", "schedule_workload", "slice_state",
    "split",
]  # fmt: skip
