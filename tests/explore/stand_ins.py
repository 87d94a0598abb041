"""Stand-ins for the runs of `compare` in worker processes, each of which imports this module and little else."""

import os


def dying(index, run, parent):
    """A row without a search; run 1 ends its own process instead."""
    return os._exit(1) if index == 1 else (index, run.row | {"status": "found"}, None)


def where(index, run, parent):
    """Id of the process in which a run executes."""
    return index, run.row | {"error": str(os.getpid())}, None
