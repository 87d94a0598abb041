"""Execute a `Step` (workload and schedule) with MPI ranks, which compute with numpy and exchange chunks.

    python -m taccl.runtime.step FILE

runs one rank, under mpiexec. Each rank compares its outputs with those of the reference program, and rank 0
reports the largest difference.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from taccl._internal.arguments import Natural, Seconds, checked
from taccl.formats.native import dump_schedule, load_schedule
from taccl.runtime.launch import launched
from taccl.runtime.rank_execution import gathered, patiently
from taccl.runtime.worker import Watchdog, serve
from taccl.workload.files import from_dict, to_dict
from taccl.workload.meaning import Piece, given_parts, places, taken
from taccl.workload.replay import StepRank, events_in_order
from taccl.workload.step import Step
from taccl.workload.workload import Workload


@checked
def execute_step(
    step: Step,
    *,
    reference: Workload | None = None,
    seed: Natural = 0,
    timeout_s: Seconds = 120.0,
    note: Callable[[str], None] = lambda _: None,
) -> float:
    """Execute a step with MPI ranks on this machine; return the largest error of its outputs.

    Parameters
    ----------
    step : Step
        A verified step.
    reference : Workload, optional
        The untransformed workload, with the same inputs; by default the step's own workload.
    seed : int
        Seed of the inputs.
    timeout_s : float
        Seconds after which unfinished ranks are ended.
    note : callable, optional
        Called with messages on the progress.

    Returns
    -------
    float
        Largest difference over all outputs and ranks, relative to the largest value of the output at the
        rank.

    Raises
    ------
    ExecutionError
        If there is no MPI, or ranks fail or do not end in time.
    """
    schedule = json.loads(json.dumps(dump_schedule(step.schedule), default=np.generic.item))
    request = {
        "workload": to_dict(step.workload), "reference": to_dict(reference or step.workload), "seed": seed,
        "schedule": schedule, "timeout_s": timeout_s,
    }  # fmt: skip
    ranks = step.workload.num_ranks
    report = launched("taccl.runtime.step", ranks, request, timeout_s=timeout_s, note=note)
    return float(report["difference"])


def main(path: str) -> int:
    """Run one rank of the step in a file; return the exit code."""
    return serve(path, _execute_on_rank)


def _execute_on_rank(
    communicator: Any, request: Callable[[], dict[str, Any]], watchdog: Watchdog, note: Callable[[str], None]
) -> dict[str, Any]:
    asked = request()
    workload, reference = from_dict(asked["workload"]), from_dict(asked["reference"])
    schedule, rank = load_schedule(asked["schedule"]), communicator.rank
    step = Step(workload, schedule.problem.topology, (), schedule, None)
    watchdog.expect("the step", asked["timeout_s"])
    mine = StepRank(step, rank, given_parts(workload, None, seed=asked["seed"]))
    pending = []
    for number, starts, transfer in events_in_order(step):
        link = step.topology.links[transfer.link]
        if starts and link.src == rank:
            data = mine.sent(transfer).copy()
            pending.append((communicator.Isend(data, dest=link.dst, tag=number), data))
        elif not starts and link.dst == rank:
            data = mine.room(transfer.chunk)
            patiently(communicator.Irecv(data, source=link.src, tag=number))
            mine.receive(transfer, data)
    for sending, _ in pending:
        patiently(sending)
    note("computing the program's outputs")
    watchdog.expect("computing the program's outputs", asked["timeout_s"])
    expected = reference.run(seed=asked["seed"])
    worst = 0.0
    for name in reference.outputs:
        whole = Piece(expected[name][rank], places(reference, name, rank))
        right = taken(whole, places(workload, name, rank))
        largest = max(float(np.abs(right).max(initial=0)), 1e-30)
        worst = max(worst, float(np.abs(mine.tensor(name).array - right).max(initial=0)) / largest)
    reports = gathered(communicator, worst)
    return {"difference": max(reports or (worst,))}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
