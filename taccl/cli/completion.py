"""Tab completion in a shell, by argcomplete: ``eval "$(register-python-argcomplete taccl)"``."""

from __future__ import annotations

from typing import Any

import taccl
from taccl.cli.command import build_parser


def complete() -> None:
    """Answer the shell that asks how a line may go on, and exit."""
    from argcomplete import autocomplete

    names: Any = _names_and_files
    autocomplete(build_parser(), default_completer=names, append_space=False)


def _names_and_files(prefix: str, **_: object) -> list[str]:
    """Names of whatever kind that begin as what was typed does, and files."""
    from argcomplete.completers import FilesCompleter

    from taccl.solvers.registry import known_solvers
    from taccl.synthesis.backends import OWN_BACKENDS

    fabrics = (f"{fabric}:" for fabric in taccl.topologies.fabric_names())
    machines, collectives = taccl.topologies.machine_names(), taccl.collectives.COLLECTIVES
    known = (*taccl.shipped_sketches(), *machines, *fabrics, *collectives, *OWN_BACKENDS, *known_solvers())
    return [name for name in known if name.startswith(prefix)] + list(FilesCompleter()(prefix))
