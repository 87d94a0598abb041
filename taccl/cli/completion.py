"""Tab completion in a shell, by argcomplete: ``eval "$(register-python-argcomplete taccl)"``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator

import taccl
from taccl.cli.command import build_parser


def complete() -> None:
    """Answer the shell that asks how a line may go on, and exit."""
    import argcomplete

    parser = build_parser()
    for action in _actions(parser):
        known = _NAMES.get(action.dest)
        if known is not None and action.choices is None:
            action.completer = _completer(known)  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser, append_space=False)


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The actions of a parser and of its verbs."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for verb in action.choices.values():
                yield from _actions(verb)


def _completer(known: Callable[[], Iterable[str]]) -> Callable[..., list[str]]:
    """Names that begin as what was typed does, and files."""

    def names(prefix: str, **_: object) -> list[str]:
        from argcomplete.completers import FilesCompleter

        return [name for name in known() if name.startswith(prefix)] + list(FilesCompleter()(prefix))

    return names


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
