"""``taccl backends``, ``taccl cache``, ``taccl warmup``: installed solvers, stored results, compiled code."""

from __future__ import annotations

import compileall
import importlib.util
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path

import taccl
from taccl.cli.output import Answer


def add_backends(verb: ArgumentParser) -> None:
    """Declare no options."""


def run_backends(options: Namespace) -> Answer:
    """List the backends, their versions and licences, or why they are missing."""
    found = taccl.backends()
    return Answer(str(found), {"backends": [asdict(row) for row in found.rows]})


def add_cache(verb: ArgumentParser) -> None:
    """Declare the options."""
    verb.add_argument(
        "action", choices=("info", "clear"), help="show the cache, or clear it and report what is removed"
    )


def run_cache(options: Namespace) -> Answer:
    """Show the size of the cache of results, or clear it; TACCL_CACHE_DIR sets its folder."""
    cache = taccl.Cache()
    clear = options.action == "clear"
    info = cache.clear() if clear else cache.info()
    values = asdict(info) | {"folder": str(info.folder), "removed": clear}
    return Answer(f"{'removed ' if clear else ''}{info}", values)


def add_warmup(verb: ArgumentParser) -> None:
    """Declare no options."""


def run_warmup(options: Namespace) -> Answer:
    """Compile the kernels of the search (about 18 s of CPU) and the bytecode, unless they are cached."""
    from taccl.synthesis.kernels.improvement_kernel import improve
    from taccl.synthesis.proposers.compiling import compile_every

    cpu_s = compile_every()
    folder = improve.stats.cache_path  # type: ignore[attr-defined]
    said = f"compiled in {cpu_s:.1f} s of CPU" if cpu_s else "compiled already"
    modules = _keep_bytecode()
    text = f"kernels {said}, kept in {folder}"
    text += f"\nbytecode of {modules} modules kept" if modules else ""
    return Answer(text, {"cpu_s": cpu_s, "folder": folder, "modules": modules})


def _keep_bytecode() -> int:
    """Write bytecode for the modules of taccl that have none on disk; return the number of these modules.

    Many container images set PYTHONDONTWRITEBYTECODE. Without bytecode on disk, every process there would
    compile the source tree again (about 0.5 s). Folders that are not writable are left as they are.
    """
    if sys.pycache_prefix is not None:
        return 0
    package = Path(taccl.__file__).parent
    sources = sorted(package.rglob("*.py"))
    missing = [path for path in sources if not Path(importlib.util.cache_from_source(str(path))).exists()]
    compileall.compile_dir(package, quiet=2, workers=1)
    return sum(Path(importlib.util.cache_from_source(str(path))).exists() for path in missing)
