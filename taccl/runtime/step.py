"""Scheduled steps executed by MPI ranks: each computes with numpy and sends its chunks, in order of time.

    python -m taccl.runtime.step FILE

is one rank, under mpiexec; rank 0 compares all outputs with what the reference program gives, and says by how
much the worst differs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from taccl.arguments import checked
from taccl.errors import ExecutionError
from taccl.formats.native import dump_schedule, load_schedule
from taccl.runtime.environment import find_mpiexec, import_mpi
from taccl.runtime.parent_death_guard import end_with, held
from taccl.workload.exchange import parts_of
from taccl.workload.files import from_dict, to_dict
from taccl.workload.meaning import Part, places, random_inputs, taken
from taccl.workload.replay import Rank
from taccl.workload.step import Step

if TYPE_CHECKING:
    from taccl.arguments import Natural, Seconds
    from taccl.workload.workload import Workload

__all__ = ["execute_step"]


@checked
def execute_step(
    step: Step, *, reference: Workload | None = None, seed: Natural = 0, timeout_s: Seconds = 120.0
) -> float:
    """The largest difference between what MPI ranks on this machine make of a step and what it should be.

    Parameters
    ----------
    step : Step
        With something to send.
    reference : Workload, optional
        The untransformed program, of the same inputs; by default the step's own.
    seed : int
        Of the inputs.
    timeout_s : float
        When ranks that have not ended are ended.

    Returns
    -------
    float
        Over all outputs and ranks, relative to the largest value of an output.

    Raises
    ------
    ExecutionError
        If there is no MPI, or ranks fail or do not end in time.
    """
    if step.schedule is None:
        raise ExecutionError("the step sends nothing; there is nothing for ranks to do together")
    job = {
        "workload": to_dict(step.workload), "reference": to_dict(reference or step.workload),
        "seed": seed, "schedule": dump_schedule(step.schedule),
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="taccl-step-") as folder:
        path = Path(folder) / "step.json"
        path.write_text(json.dumps(job, default=np.generic.item), encoding="utf-8")
        python = [sys.executable, "-P", "-m", "taccl.runtime.step", str(path)]
        command = [str(find_mpiexec()), "-n", str(step.workload.num_ranks), *python]
        found = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
        few = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **os.environ, "PYTHONPATH": found}
        with held(Path(folder)):
            ranks = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                start_new_session=True, env=few,
            )  # fmt: skip
            try:
                said, complained = ranks.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                raise ExecutionError(f"the ranks have not ended in {timeout_s:g} s, and were ended") from None
            finally:
                if ranks.poll() is None:
                    os.killpg(ranks.pid, signal.SIGKILL)
                    ranks.wait()
    if ranks.returncode:
        last = " / ".join(complained.decode(errors="replace").strip().splitlines()[-3:])
        raise ExecutionError(f"the ranks ended with exit code {ranks.returncode}: {last}")
    return float(json.loads(said.splitlines()[-1])["difference"])


def main(path: str) -> int:
    """Play one rank's part in the step in a file; returns the exit code."""
    end_with(Path(path).parent)
    mpi = import_mpi()
    world = mpi.COMM_WORLD
    job: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    workload, reference = from_dict(job["workload"]), from_dict(job["reference"])
    schedule = load_schedule(job["schedule"])
    step = Step(workload, schedule.problem.topology, (), schedule, parts_of(workload), None)
    inputs = random_inputs(workload, seed=job["seed"])
    mine = Rank(step, world.rank, {name: arrays[world.rank] for name, arrays in inputs.items()})
    links, pending = step.topology.links, []
    moments = [(int(t), 0, i) for i, t in enumerate(schedule.end)]
    for _, starts, i in sorted(moments + [(int(t), 1, i) for i, t in enumerate(schedule.start)]):
        chunk, link = int(schedule.chunk[i]), links[int(schedule.link[i])]
        if starts and link.src == world.rank:
            data = mine.held(chunk).copy()
            pending.append((world.Isend(data, dest=link.dst, tag=i), data))
        elif not starts and link.dst == world.rank:
            data = np.empty_like(mine.held(chunk) if schedule.reduce[i] else mine.blank(chunk))
            world.Recv(data, source=link.src, tag=i)
            mine.receive(chunk, data, reduce=bool(schedule.reduce[i]))
    for request, _ in pending:
        request.Wait()
    expected = reference.run(random_inputs(reference, seed=job["seed"]))
    worst = 0.0
    for name in reference.outputs:
        out, before = workload.tensors[name], reference.tensors[name]
        whole = Part(expected[name][world.rank], places(before, world.rank, world.size))
        right = taken(whole, places(out, world.rank, world.size))
        largest = max(float(np.abs(right).max(initial=0)), 1e-30)
        worst = max(worst, float(np.abs(mine.tensor(name).array - right).max(initial=0)) / largest)
    worst = world.allreduce(worst, op=mpi.MAX)
    if world.rank == 0:
        sys.stdout.write(json.dumps({"difference": worst}) + "\n")
        sys.stdout.flush()
    mpi.Finalize()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
