"""``taccl cache``: what the cache of results holds, and how to empty it."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import asdict

import taccl
from taccl.cli.output import Answer


def add(verb: ArgumentParser) -> None:
    """Declare the options."""
    verb.add_argument("action", choices=("info", "clear"), help="what to do; clear says what it removed")


def run(options: Namespace) -> Answer:
    """Show how much the cache of results holds, or clear it; TACCL_CACHE_DIR names another."""
    cache = taccl.Cache()
    clear = options.action == "clear"
    info = cache.clear() if clear else cache.info()
    values = asdict(info) | {"folder": str(info.folder), "removed": clear}
    return Answer(f"{'removed ' if clear else ''}{info}", values)
