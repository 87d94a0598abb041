"""``taccl cache``: what the cache of results holds, and how to empty it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import taccl
from taccl.cli.answer import Answer
from taccl.cli.options import add_verb

if TYPE_CHECKING:
    import argparse

__all__ = ["add", "run"]


def add(verbs: Any) -> None:
    """Declare the verb."""
    verb = add_verb(verbs, "cache", run, "Show how much the cache of results holds, or clear it.")
    verb.add_argument("action", choices=("info", "clear"), help="what to do; clear says what it removed")
    verb.add_argument(
        "--folder", metavar="DIR", help="another cache than the user's (or set TACCL_CACHE_DIR)"
    )


def run(options: argparse.Namespace) -> Answer:
    """Look into the cache, or clear it."""
    cache = taccl.Cache(options.folder)
    clear = options.action == "clear"
    info = cache.clear() if clear else cache.info()
    values = {
        "folder": str(info.folder), "num_entries": info.num_entries, "num_bytes": info.num_bytes,
        "oldest_s": info.oldest_s, "newest_s": info.newest_s, "removed": clear,
    }  # fmt: skip
    return Answer(f"{'removed ' if clear else ''}{info}", values)
