"""``taccl warmup``: compile the kernels of the search, so that no later run has to."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from taccl.cli.output import Answer


def add(verb: ArgumentParser) -> None:
    """Declare the options: none."""


def run(options: Namespace) -> Answer:
    """Compile the kernels of the search, in about 20 s of CPU, unless they are kept already."""
    from taccl.synthesis.kernels.improvement_kernel import improve
    from taccl.synthesis.proposers.compiling import compile_every

    cpu_s = compile_every()
    folder = improve.stats.cache_path  # type: ignore[attr-defined]
    said = f"compiled in {cpu_s:.1f} s of CPU" if cpu_s else "compiled already"
    return Answer(f"kernels {said}, kept in {folder}", {"cpu_s": cpu_s, "folder": folder})
