"""The command line: verbs that call the library and print its answers; only this package prints.

Exit codes: 0 done; 1 a check failed, or no schedule exists or was found; 2 bad input, or
output that cannot be written; 3 a known solver is not installed or not licensed; 70 an internal error;
130 interrupted (Ctrl-C) before there was an answer.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType

from taccl._internal.deadline import await_left_behind, signals_to
from taccl._internal.garbage import COLLECT_EVERY, rarely_collected
from taccl._internal.program_start import process_began_s


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb of the command line; return its exit code.

    Without `argv` this is the command itself: it reads `sys.argv`, its time limit counts from the start of
    the process, and the process ends afterwards.
    """
    began_s, interrupts = process_began_s() if argv is None else time.monotonic(), list[int]()
    code = 130
    if argv is None:
        gc.set_threshold(COLLECT_EVERY, *gc.get_threshold()[1:])

    # The handler records each Ctrl-C, even if its exception is lost.
    def note(number: int, frame: FrameType | None) -> None:
        interrupts.append(number)
        signal.default_int_handler(number, frame)

    try:  # slow imports are in here, so that Ctrl-C is handled
        with signals_to(note, "SIGINT", only=signal.default_int_handler), rarely_collected():
            from taccl.cli.command import complete, run

            if "_ARGCOMPLETE" in os.environ:
                complete()
            code = run(argv, interrupts, began_s=began_s)
    except KeyboardInterrupt:
        pass
    except Exception:
        if not interrupts:  # an import that Ctrl-C interrupts may raise any error, such as ImportError
            raise
    if argv is None:  # the answer is printed: neither Ctrl-C nor garbage collection delays the end
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        gc.freeze()
        if interrupts or any(each.name == "taccl-work" for each in threading.enumerate()):
            _end_now(code)
    return code


def _end_now(code: int) -> None:
    """End the process without shutting down the interpreter.

    A worker thread abandoned at the time limit may still run compiled code, and would abort during a
    shutdown. Ctrl-C within ``exec``, which data classes use, still has an effect after its exception was
    handled: a shutdown of Python then kills the process by the signal instead of returning `code`.
    """
    atexit.unregister(await_left_behind)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
    os._exit(code)
