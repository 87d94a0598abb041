"""``taccl backends``, ``taccl cache`` and ``taccl warmup``: what is installed and kept on this machine."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import asdict

import taccl
from taccl.cli.output import Answer


def add_backends(verb: ArgumentParser) -> None:
    """Declare nothing: there is nothing to choose."""


def run_backends(options: Namespace) -> Answer:
    """List the backends, their versions and licences, or why they are missing."""
    found = taccl.backends()
    return Answer(str(found), {"backends": [asdict(row) for row in found.rows]})


def add_cache(verb: ArgumentParser) -> None:
    """Declare the options."""
    verb.add_argument("action", choices=("info", "clear"), help="what to do; clear says what it removed")


def run_cache(options: Namespace) -> Answer:
    """Show how much the cache of results holds, or clear it; TACCL_CACHE_DIR names another."""
    cache = taccl.Cache()
    clear = options.action == "clear"
    info = cache.clear() if clear else cache.info()
    values = asdict(info) | {"folder": str(info.folder), "removed": clear}
    return Answer(f"{'removed ' if clear else ''}{info}", values)


def add_warmup(verb: ArgumentParser) -> None:
    """Declare the options: none."""


def run_warmup(options: Namespace) -> Answer:
    """Compile the kernels of the search, in about 20 s of CPU, unless they are kept already."""
    from taccl.synthesis.kernels.improvement_kernel import improve
    from taccl.synthesis.proposers.compiling import compile_every

    cpu_s = compile_every()
    folder = improve.stats.cache_path  # type: ignore[attr-defined]
    said = f"compiled in {cpu_s:.1f} s of CPU" if cpu_s else "compiled already"
    return Answer(f"kernels {said}, kept in {folder}", {"cpu_s": cpu_s, "folder": folder})
