"""What a file holds, by its content: the first thing to ask of a file that anybody may have written.

A format is a name and the mark of such a file: a field of JSON with its value, the top element of XML, or a
line of text. A format more is an entry more in `FORMATS`, and a word to the caller that loads it.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import TYPE_CHECKING, Literal, NamedTuple

from taccl.errors import FormatError
from taccl.formats.files import read_limited
from taccl.sketch.reading import parse_json

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from taccl.topology.topology import Topology

__all__ = [
    "ASTRA_NETWORK", "FORMATS", "MSCCL_XML", "NCCL_TOPOLOGY", "NVIDIA_SMI", "TACCL_SCHEDULE",
    "UPSTREAM_ALGORITHM", "Format", "foreign_topology", "recognise",
]  # fmt: skip

TACCL_SCHEDULE = "taccl schedule"
UPSTREAM_ALGORITHM = "upstream algorithm"
NCCL_TOPOLOGY = "NCCL topology"
NVIDIA_SMI = "nvidia-smi matrix"
ASTRA_NETWORK = "ASTRA-sim network"
MSCCL_XML = "MSCCL XML"

_LIMIT_BYTES = 10**9
#: A file whose first field does not say what it is must be parsed whole, which takes many times its size.
_PARSED_CHARACTERS = 64 * 10**6
#: Marks of XML and of text are near the top.
_HEAD_CHARACTERS = 1 << 16


class Format(NamedTuple):
    """A format: its mark is `field` with `value` at the top of JSON, an XML top element, or a line of text.

    `mark` is the element's name in XML, and in text an expression that a line matches from its beginning.
    """

    name: str
    kind: Literal["JSON", "XML", "text"]
    sign: str
    description: str
    field: str = ""
    value: str = ""
    mark: str = ""


FORMATS = (
    Format(
        TACCL_SCHEDULE, "JSON", "'format' is 'taccl-schedule'", "what `taccl synthesize -o` writes",
        field="format", value="taccl-schedule",
    ),
    Format(
        UPSTREAM_ALGORITHM, "JSON", "'sccl_type' is 'algorithm'",
        "what the published TACCL tool writes when it solves",
        field="sccl_type", value="algorithm",
    ),
    Format(
        NCCL_TOPOLOGY, "XML", "<system> at its top", "what NCCL_TOPO_DUMP_FILE and NCCL_TOPO_FILE name",
        mark="system",
    ),
    Format(
        MSCCL_XML, "XML", "<algo> at its top", "what MSCCL and the published tool's runtime load",
        mark="algo",
    ),
    Format(
        NVIDIA_SMI, "text", "a line of GPU0, GPU1, ... and CPU Affinity", "what `nvidia-smi topo -m` prints",
        mark=r"(?:\x1b\[[0-9;]*m|[^\S\n])*GPU\d+\b[^\n]*\bCPU Affinity",
    ),
    Format(
        ASTRA_NETWORK, "text", "a line that begins with npus_count:", "a network file of ASTRA-sim",
        mark=r"npus_count\s*:",
    ),
)  # fmt: skip

#: Fields that tell other files a user may have at hand, which hold no transfers.
_OTHERS = {
    "nnodes": "an upstream sketch", "gpus_per_node": "an upstream topology",
    "schema": "a sketch or a topology", "sccl_type": "another object of the published TACCL tool",
}  # fmt: skip


def recognise(path: str | os.PathLike[str]) -> str:
    """The name of the format that a file is in: one of `FORMATS`.

    The file is not checked any further; whoever loads it does that.

    Raises
    ------
    InputError
        If the file cannot be read.
    FormatError
        If it is in none of these formats; the message says what was found, and lists them.
    """
    where = str(path)
    text = read_limited(path, _LIMIT_BYTES).lstrip()
    if text.startswith("<"):
        return _recognise_xml(text, where)
    if not text.startswith("{"):
        return _recognise_text(text, where)
    return _recognise_json(text, where)


def _recognise_json(text: str, where: str) -> str:
    formats = [each for each in FORMATS if each.kind == "JSON"]
    for each in formats:
        mark = rf'\{{\s*"{re.escape(each.field)}"\s*:\s*"{re.escape(each.value)}"\s*[,}}]'
        if re.match(mark, text):
            return each.name
    if len(text) > _PARSED_CHARACTERS:
        raise _unknown(f"{len(text)} characters of JSON whose first field does not say what they are", where)
    data = parse_json(text, source=where, exact=True)
    for each in formats:
        if data.get(each.field) == each.value:
            return each.name
    other = next((found for field, found in _OTHERS.items() if field in data), None)
    names = ", ".join(repr(name[:40]) for name in list(data)[:6])
    raise _unknown(other or (f"JSON with fields {names}" if data else "an empty JSON object"), where)


def _recognise_xml(text: str, where: str) -> str:
    element = _top_element(text)
    for each in FORMATS:
        if each.kind == "XML" and each.mark == element:
            return each.name
    raise _unknown(f"XML with <{element[:40]}> at its top" if element else "XML without an element", where)


def _top_element(text: str) -> str:
    """The name of the first element, behind comments and declarations; empty if there is none."""
    at = 0
    while at < len(text):
        for opening, closing in (("<!--", "-->"), ("<?", "?>")):
            if text.startswith(opening, at):
                end = text.find(closing, at + len(opening))
                at = len(text) if end < 0 else end + len(closing)
                break
        else:
            if not text[at].isspace():
                match = re.compile(r"<([\w.:-]+)").match(text, at)
                return match[1] if match else ""
            at += 1
    return ""


def _recognise_text(text: str, where: str) -> str:
    head = text[:_HEAD_CHARACTERS]
    for each in FORMATS:
        if each.kind == "text" and any(re.match(each.mark, line) for line in head.splitlines()):
            return each.name
    raise _unknown("text that is no JSON object", where)


def _unknown(found: str, where: str) -> FormatError:
    known = " or ".join(
        f"{_article(each.name)} {each.name} ({each.sign}: {each.description})" for each in FORMATS
    )
    return FormatError(f"found {found}; expected {known}; check the path", where=where)


def _article(name: str) -> str:
    return "an" if name[0] in "aeiouAN" or name.startswith("nv") else "a"


def foreign_topology(path: str | os.PathLike[str]) -> tuple[str, Callable[..., Topology]] | None:
    """What another tool's topology file is, and the function that reads it; None of any other file.

    Raises
    ------
    InputError
        If the file cannot be read.
    """
    try:
        found = recognise(path)
    except FormatError:
        return None
    place = _TOPOLOGY_READERS.get(found)
    if place is None:
        return None
    module, _, function = place.partition(":")
    return found, getattr(import_module(module), function)


_TOPOLOGY_READERS = {
    NCCL_TOPOLOGY: "taccl.formats.nccl_topology:load_nccl_topology",
    NVIDIA_SMI: "taccl.formats.nvidia_smi:load_nvidia_smi",
    ASTRA_NETWORK: "taccl.formats.astra_network:load_astra_network",
}
