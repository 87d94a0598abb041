"""``taccl backends``: which there are, their versions and licences, or why they are missing."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import asdict

import taccl
from taccl.cli.output import Answer


def add(verb: ArgumentParser) -> None:
    """Declare nothing: there is nothing to choose."""


def run(options: Namespace) -> Answer:
    """List the backends, their versions and licences, or why they are missing."""
    found = taccl.backends()
    return Answer(str(found), {"backends": [asdict(row) for row in found.rows]})
