"""Tab completion in a shell, by argcomplete: ``eval "$(register-python-argcomplete taccl)"``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain

import taccl
from taccl.cli.command import build_parser


def complete() -> None:
    """Answer the shell that asks how a line may go on, and exit."""
    import argcomplete

    parser = build_parser()
    verbs = next(each.choices for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    for action in chain.from_iterable(verb._actions for verb in verbs.values()):
        if action.dest in _NAMES and action.choices is None:
            action.completer = partial(_known_and_files, _NAMES[action.dest])
    argcomplete.autocomplete(parser, append_space=False)


def _known_and_files(known: Callable[[], Iterable[str]], prefix: str, **_: object) -> list[str]:
    """Names that begin as what was typed does, and files."""
    from argcomplete.completers import FilesCompleter

    return [name for name in known() if name.startswith(prefix)] + list(FilesCompleter()(prefix))


def _topologies() -> Iterable[str]:
    from taccl import topologies

    return (*topologies.machine_names(), *(f"{fabric}:" for fabric in topologies.fabric_names()))


def _backends() -> Iterable[str]:
    from taccl.solvers.registry import known_solvers
    from taccl.synthesis.backends import OWN_BACKENDS

    return (*OWN_BACKENDS, *known_solvers())


#: By the name of the argument.
_NAMES: dict[str, Callable[[], Iterable[str]]] = {
    "sketch": taccl.shipped_sketches,
    "sketches": taccl.shipped_sketches,
    "thing": lambda: (*taccl.shipped_sketches(), *_topologies()),
    "topology": _topologies,
    "collective": lambda: taccl.collectives.COLLECTIVES,
    "backend": _backends,
    "backends": _backends,
}
