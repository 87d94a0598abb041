"""Run the command line: ``python -m taccl``."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    try:
        from taccl.cli import main

        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
