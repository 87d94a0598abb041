"""``taccl backends``: which there are, their versions and licences, or why they are missing."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import taccl
from taccl.cli.answer import Answer
from taccl.cli.options import add_verb

if TYPE_CHECKING:
    import argparse

__all__ = ["add", "run"]


def add(verbs: Any) -> None:
    """Declare the verb."""
    add_verb(
        verbs, "backends", run, "List the backends, their versions and licences, or why they are missing."
    )


def run(options: argparse.Namespace) -> Answer:
    """List the backends."""
    found = taccl.backends()
    return Answer(str(found), {"backends": [asdict(row) for row in found.rows]})
