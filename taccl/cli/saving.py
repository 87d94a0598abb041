"""Writing an answer's schedule to the file that the user named."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

import taccl
from taccl.cli.answer import EXIT_BAD_INPUT
from taccl.errors import InputError
from taccl.names import shown

if TYPE_CHECKING:
    import argparse

    from taccl.cli.answer import Answer
    from taccl.schedule.compact import CompactSchedule
    from taccl.schedule.schedule import Schedule

__all__ = ["add_output", "check_output", "with_file"]


def add_output(verb: argparse.ArgumentParser) -> None:
    """Declare the file to write."""
    verb.add_argument("-o", "--output", metavar="FILE", help="write the schedule to a file")
    verb.add_argument("--overwrite", action="store_true", help="replace the file if it exists")


def check_output(options: argparse.Namespace) -> None:
    """Raise `InputError` for an output file that could not be written, before any long work."""
    if options.output is not None:
        from taccl.formats.files import check_writable

        check_writable(options.output, overwrite=options.overwrite)


def with_file(answer: Answer, schedule: Schedule | CompactSchedule, options: argparse.Namespace) -> Answer:
    """The answer, once its schedule is written where the user asked.

    If that fails the answer still stands, with a complaint and the exit code of bad input.
    """
    if options.output is None:
        return answer
    try:
        # There is memory for it: that was checked before the schedule was looked for.
        whole = (
            schedule if isinstance(schedule, taccl.Schedule) else schedule.expand(memory_limit_bytes=2**62)
        )
        command = shlex.join(("taccl", *options.words))
        extra = answer.values | {"command": command}
        taccl.save(whole, options.output, overwrite=options.overwrite, extra=extra)
    except InputError as error:
        values = {"error": error.message, "where": error.where, "exit_code": EXIT_BAD_INPUT}
        return replace(answer, values=answer.values | values, exit_code=EXIT_BAD_INPUT, complaint=str(error))
    return replace(answer, text=f"{answer.text}\n\nwritten to {shown(options.output)}")
