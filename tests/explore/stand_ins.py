"""Stand-ins for the runs of `compare` in worker processes, each of which imports this module and little else."""

import os
import signal
import time
from pathlib import Path


def dying(index, run, parent):
    """A row without a search; run 1 ends its own process instead."""
    return os._exit(1) if index == 1 else (index, run.row | {"status": "found"}, None)


def where(index, run, parent):
    """Id of the process in which a run executes."""
    return index, run.row | {"error": str(os.getpid())}, None


def held(index, run, parent):
    """A run that ends only if interrupted; run 0 sends Ctrl-C to `compare` once run 1 is under way, too."""
    from taccl.explore import workers

    def perform(run):
        folder = Path(parent.stop).parent
        (folder / f"{index}.begun").touch()
        try:
            while not (folder / "1.begun").exists():
                time.sleep(0.01)
            if index == 0:
                os.kill(parent.process, signal.SIGINT)
            while True:
                time.sleep(0.01)
        except KeyboardInterrupt:
            return run.row | {"status": "found", "stopped": "interrupted"}, None

    before, workers.perform = workers.perform, perform
    try:
        return index, *workers.perform_for(parent, run)
    finally:
        workers.perform = before
