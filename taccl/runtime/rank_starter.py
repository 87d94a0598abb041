"""Start PyTorch ranks on this machine: ``python -m taccl.runtime.rank_starter N PROGRAM ...`` starts N.

The starter ends once all ranks have ended. If one fails, the others are ended, and a line on stderr names it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

_POLL_S = 0.05
#: Seconds for other ranks to report their failures before they are killed.
_GRACE_S = 2.0


def main(words: list[str]) -> int:
    """Start ranks, ``words[0]`` of them, each by the command ``words[1:]``; return 0 if none failed."""
    num_ranks, command = int(words[0]), words[1:]
    shared = {"WORLD_SIZE": str(num_ranks), "LOCAL_WORLD_SIZE": str(num_ranks)}
    ranks = [
        subprocess.Popen(command, env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(num_ranks)
    ]
    try:
        while True:
            codes = [each.poll() for each in ranks]
            failed = next((rank for rank, code in enumerate(codes) if code), None)
            if failed is not None:
                sys.stderr.write(f"taccl: error: rank {failed} ended with exit code {codes[failed]}\n")
                sys.stderr.flush()
                time.sleep(_GRACE_S)
                return 1
            if None not in codes:
                return 0
            time.sleep(_POLL_S)
    finally:
        for each in ranks:
            each.kill()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
