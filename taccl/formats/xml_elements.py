"""Parse XML, even from untrusted files, as a tree of elements with tags, attributes and line numbers.

Document types are refused, and with them all entities that a file could define. So the parser expands and
fetches nothing. Depth and number of elements are limited.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NoReturn
from xml.parsers import expat

from taccl._internal.file_kinds import without_quotes
from taccl._internal.web_text import without_markup
from taccl.errors import FormatError

_MAX_DEPTH = 64
_MAX_ELEMENTS = 2 * 10**6
#: Messages of the parser on a text that ends before its root element does.
_CUT = ("unclosed token", "no element found")
#: Spaces before a declaration of XML, which has to be first.
_AFTER_SPACE = re.compile(r"\A(\s+)(<\?xml\b[^>]*>)")
#: Beginning of the root element of a file that is read here, at the beginning of a line.
_ROOT = re.compile(r"^[ \t]*(?:<\?xml\b[^>\n]*>\s*)?<(system|algo)\b", re.MULTILINE)


@dataclass(eq=False, slots=True)
class XmlElement:
    """XML element with its tag, attributes as text, child elements, file and line number."""

    tag: str
    attributes: dict[str, str]
    file: str
    line: int
    children: list[XmlElement] = field(default_factory=list)

    def all(self, tag: str) -> list[XmlElement]:
        """Direct children with a given tag."""
        return [child for child in self.children if child.tag == tag]

    def error(self, message: str) -> FormatError:
        """`FormatError` about this element, with its file, line, tag and first attribute."""
        first = "".join(f' {key[:20]}="{value[:40]}"' for key, value in list(self.attributes.items())[:1])
        return FormatError(message, where=f"{self.file}: line {self.line}: <{self.tag[:40]}{first}>")


def _without_surroundings(text: str) -> str:
    """Text without other text before and after its root element, as in the output of a shell; lines stay."""
    found = _ROOT.search(text)
    end = text.rfind(f"</{found[1]}>") if found else -1
    if found is None or end < found.start():
        return text
    begin = 0 if text.lstrip().startswith("<") else found.start()
    return "\n" * text.count("\n", 0, begin) + text[begin : text.index(">", end) + 1]


def parse_xml(text: str, *, where: str) -> XmlElement:
    """Parse XML text, also quoted in a mail, a page or amid other text; return the root element.

    Raises `FormatError` if the text is not well-formed XML, has a document type, or is nested too deeply or
    too large.
    """
    if "&lt;" in text and (plain := without_markup(text)).lstrip().startswith("<"):
        text = plain
    text = _without_surroundings(text if text.lstrip().startswith("<") else without_quotes(text))
    if not text.startswith("<"):
        # A declaration must be first in the text, so spaces and lines before it change places with it.
        text = _AFTER_SPACE.sub(r"\2\1", text)
    parser = expat.ParserCreate()
    parser.buffer_text = True
    roots: list[XmlElement] = []
    path: list[XmlElement] = []
    count = 0

    def refuse(message: str) -> NoReturn:
        raise FormatError(message, where=f"{where}: line {parser.CurrentLineNumber}")

    def begin(tag: str, attributes: dict[str, str]) -> None:
        nonlocal count
        count += 1
        if len(path) >= _MAX_DEPTH:
            refuse(f"found more than {_MAX_DEPTH} elements inside one another")
        if count > _MAX_ELEMENTS:
            refuse(f"found more than {_MAX_ELEMENTS} elements; check that it is the file you meant")
        element = XmlElement(tag, attributes, where, parser.CurrentLineNumber)
        (path[-1].children if path else roots).append(element)
        path.append(element)

    def doctype(*_: object) -> None:
        refuse("found a document type (<!DOCTYPE ...>); expected elements only; remove it")

    parser.StartElementHandler = begin
    parser.EndElementHandler = lambda _tag: path.pop()
    parser.StartDoctypeDeclHandler = doctype
    parser.EntityDeclHandler = doctype
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        message = expat.errors.messages[error.code]
        advice = "the file ends too early: save or copy it again" if message in _CUT else "correct that line"
        said = f"found text that is not XML: {message}; {advice}"
        raise FormatError(said, where=f"{where}: line {error.lineno}") from None
    return roots[0]
