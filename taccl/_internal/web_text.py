"""Plain text from copies of web pages, in which tags of HTML and character references are left."""

from __future__ import annotations

import html
import re

#: Tags around text and tables on web pages. Single letters are tags of other XML, too.
_NAMES = "table|thead|tbody|tr|t[dh]|pre|code|samp|span|div|br|strong|em|font|li|ul|ol|details|summary"
_TAG = re.compile(rf"</?(?:{_NAMES})(?:\s[^<>\n]{{0,500}})?/?>", re.IGNORECASE)
#: `_ENDS_LINE`: tag that ends a line or a row of a table, unless a line break follows it.
#: `_ENDS_CELL`: tag that ends a cell.
_ENDS_LINE = re.compile(r"(?:<br\s*/?>|</(?:tr|div|li|summary)>)(?![^\S\n]*\n)", re.IGNORECASE)
_ENDS_CELL = re.compile(r"</t[dh]>", re.IGNORECASE)
#: Character references, such as ``&lt;`` or ``&#160;``.
_REFERENCE = re.compile(r"&(?:lt|gt|amp|quot|apos|nbsp|#\d{1,5}|#[xX][0-9a-fA-F]{1,4});")
#: Marks of a whole page, whose other texts would be taken for rows of the one that is meant.
_PAGE = re.compile(r"<(?:!doctype html|html|script|svg)\b", re.IGNORECASE)


def without_markup(text: str) -> str:
    """The text without tags of HTML, with characters in place of references such as ``&lt;``.

    JSON, XML and whole web pages are returned as they are.
    """
    begins = text.lstrip()[:1]
    if begins == "{" or not ("<" in text or "&" in text) or _PAGE.search(text):
        return text
    is_tagged = _TAG.search(text) is not None
    if begins == "<" and not is_tagged:
        return text
    if is_tagged:
        text = _TAG.sub("", _ENDS_CELL.sub("\t", _ENDS_LINE.sub("\n", text)))
    return html.unescape(text) if _REFERENCE.search(text) else text
