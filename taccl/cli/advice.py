"""Advice in the library's messages, rewritten from function parameters to command-line options.

The library names its parameters, as in ``backend='greedy'``. A verb that has an option for the
parameter shows the option. Options of file formats are given to ``taccl convert`` alone, so other verbs show
that command.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from taccl.cli.options import flag_of

#: A parameter with or without a value, as messages write it; not one that follows ``--set``.
_PARAMETER = re.compile(r"(?<![-\w.])(?<!--set )([a-z]\w{2,})=(?!=)(\.\.\.|'[^']*'|\"[^\"]*\"|[\w.]*\w)?")

#: The command at the end of a rewritten message, with one setting.
_HINT = re.compile(r"; `taccl convert IN OUT --set \w+=\S+` writes a file that states it$")

#: A parameter with a value, followed by the option for it: ``sketch='none' (--no-sketch)``.
_WITH_OPTION = re.compile(_PARAMETER.pattern + r" \((--([a-z][a-z-]*))\)")


def on_command_line(said: str, flags: Collection[str]) -> str:
    """Rewrite a message: parameters that it names become options of a verb.

    Options of file formats that the verb lacks become a ``taccl convert`` command.

    - `flags`: Names of the verb's options, without dashes.
    """
    said = _WITH_OPTION.sub(lambda match: match[3] if match[4].replace("-", "_") in flags else match[0], said)
    named = {match[1]: (match[2] or "").strip("'\"") for match in _PARAMETER.finditer(said)}
    left = named.keys() - set(flags)
    settings = set() if "--set" in said or not left else left & _settings("load", "dump")
    valued = {name for name in settings if named[name] not in ("", "...")}

    def as_option(match: re.Match[str]) -> str:
        name, value = match[1], (match[2] or "").strip("'\"")
        if name in valued and "set" in flags:
            return f"--set {name}={value}"
        if name not in flags or flag_of(name) in said or value.lower() == "false":
            return match[0]
        return flag_of(name) if value in ("True", "") else f"{flag_of(name)} {value}"

    made = _PARAMETER.sub(as_option, said)
    if not settings:
        return made
    if "set" in flags:
        return made if settings == valued else f"{made}; --set NAME=VALUE sets each"
    told = " ".join(f"--set {name}={named[name] if name in valued else 'VALUE'}" for name in sorted(settings))
    if not settings & _settings("load"):
        if settings == valued == named.keys():
            return _PARAMETER.sub(f"`taccl convert IN OUT {told}`", said, count=1)
        return f"{made}: `taccl convert IN OUT {told}`"
    # The converted file must also state options given to the verb: files of taccl's own are read without any.
    stated = [
        name
        for name in sorted(_settings("load") & set(flags) & named.keys())
        if named[name] not in ("", "...")
    ]
    told = " ".join([*(f"--set {name}={named[name]}" for name in stated), told])
    return f"{made}; `taccl convert IN OUT {told}` writes a file that states it"


def with_shared_hint(lines: Sequence[str]) -> list[str]:
    """Replace the `taccl convert` commands at the ends of several lines by a line after the last of them."""
    hinted = [number for number, line in enumerate(lines) if _HINT.search(line)]
    if len(hinted) < 2:
        return list(lines)
    brief = [_HINT.sub("", line) for line in lines]
    last = lines[hinted[-1]]
    indent = last[: len(last) - len(last.lstrip())] + "note: " * last.lstrip().startswith("note: ")
    brief.insert(
        hinted[-1] + 1, f"{indent}to state values in a file: `taccl convert IN OUT --set NAME=VALUE`"
    )
    return brief


def _settings(*ways: str) -> set[str]:
    """Names of the options with which files are read (``load``) or written (``dump``)."""
    from pkgutil import resolve_name

    from taccl.formats.registry import options_of
    from taccl.formats.table import CONVERSIONS, FORMATS

    found = [getattr(each, way) for each in FORMATS for way in ways]
    found += CONVERSIONS.values() if "dump" in ways else []
    return {name for function in found if function for name in options_of(resolve_name(function))}
