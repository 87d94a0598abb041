"""Runtimes by name: the library's, those of installed packages, and those that users register."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from taccl._internal.arguments import checked, known_name, known_word
from taccl._internal.plugins import Plugins
from taccl.runtimes.runtime import Runtime
from taccl.runtimes.table import ALIASES, RUNTIMES
from taccl.topology.models import library_name

if TYPE_CHECKING:
    from taccl.topology.topology import Topology


#: Fields of `Runtime` by which `registered` selects runtimes.
_ROLES = ("name", "files", "launch", "run", "usual_for")


def _is_runtime(thing: object) -> bool:
    return isinstance(thing, Runtime) and re.fullmatch(r"[a-z][a-z0-9-]*", thing.name) is not None


#: Runtimes that users register, or installed packages declare as entry points of group ``taccl.runtimes``.
PLUGINS: Plugins[Runtime] = Plugins(
    "taccl.runtimes", "runtime", _is_runtime, "a Runtime with a name of lower-case letters, digits and dashes"
)


@checked
def register(runtime: Runtime) -> None:
    """Add a runtime in this process; it replaces a runtime of the same name.

    An installed package registers by an entry point of the group ``taccl.runtimes``, which names a `Runtime`.

    Raises
    ------
    InputError
        If it is not a `Runtime`, or its name has other characters than small letters, digits and dashes.
    """
    PLUGINS.register(runtime)


@checked
def unregister(name: str) -> None:
    """Remove a runtime that was registered in this process.

    Raises
    ------
    InputError
        If none of this name is registered.
    """
    PLUGINS.unregister(name)


@checked
def registered(role: str = "name") -> dict[str, Runtime]:
    """{name: runtime} of all known runtimes whose field `role` is set, the library's own first.

    - `role`: Field of `Runtime` that must be set: ``"name"``, ``"files"``, ``"launch"``, ``"run"`` or
      ``"usual_for"``.

    Raises `InputError` for another role.
    """
    known_word(role, _ROLES, "role")
    every = RUNTIMES | PLUGINS.by_name()
    return {name: each for name, each in every.items() if getattr(each, role)}


def runtime_named(word: str, role: str = "files", *, xml: bool = False, where: str = "runtime") -> Runtime:
    """Runtime by name, ignoring case and dashes.

    - `role`: As in `registered`.
    - `xml`: True to accept only runtimes that read MSCCL XML.

    Raises `InputError` if there is none.
    """
    known = {name: each for name, each in registered(role).items() if each.reads_xml or not xml}
    word = word.replace("++", "pp")
    return known[ALIASES.get(word) or known_name(word, known, where)]


def usual_runtimes(topology: Topology) -> tuple[Runtime, ...]:
    """Runtimes that plans include by default: RCCL on AMD GPUs, else MSCCL; and MSCCL++."""
    makers = ("amd" if library_name(topology) == "RCCL" else "nvidia", "any")
    return tuple(each for each in registered("usual_for").values() if each.usual_for in makers)
