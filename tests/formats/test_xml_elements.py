"""XML read as elements with line numbers, and refusal of hostile XML."""

import pytest

import taccl
from taccl.errors import FormatError
from taccl.formats.xml_elements import parse_xml


def test_elements_have_lines_and_places():
    """Elements have line numbers: the second one begins in the second line."""
    top = parse_xml('<a x="1">\n  <b y="&lt;2"/>\n  <c/>\n</a>', where="f.xml")
    (inner,) = top.all("b")
    assert (top.tag, inner.line, inner.attributes) == ("a", 2, {"y": "<2"})
    assert inner.error("wrong").where == 'f.xml: line 2: <b y="<2">'
    assert [child.tag for child in top.children] == ["b", "c"]


@pytest.mark.parametrize(
    "text",
    [
        '> <a>\n>   <b/>\n> </a>\n', "```xml\n<a><b/></a>\n```\n", '\n<?xml version="1.0"?><a>\n<b/></a>',
        '> <?xml version="1.0"?>\n> <a>\n> <b/></a>', "<a\n><b/></a>",
    ],
    ids=["mail", "fence", "empty line", "mail with declaration", "bracket at the start of a line"],
)  # fmt: skip
def test_pasted_text(text):
    """Marks of mails and fences around XML are ignored, and line numbers are those of the text."""
    top = parse_xml(text, where="f.xml")
    (inner,) = top.all("b")
    assert inner.line == text[: text.index("<b")].count("\n") + 1


@pytest.mark.parametrize(
    "form", ["$ cat topo.xml\n{}\n$ exit\n", "# Our node\n\n```xml\n{}\n```\nIt is new.\n"]
)
def test_elements_amid_other_text(tmp_path, form):
    """A dump of NCCL is recognised and read in the output of a shell, and in a page."""
    text = form.format('<?xml version="1.0"?>\n<system version="1">\n  <cpu numaid="0"/>\n</system>')
    (cpu,) = parse_xml(text, where="f.xml").children
    assert cpu.line == text[: text.index("<cpu")].count("\n") + 1
    path = tmp_path / "session.txt"
    path.write_text(text)
    with pytest.raises(FormatError, match="found no GPU"):
        taccl.topologies.load(path)


@pytest.mark.parametrize("form", ["{}", "> {}", "```\n{}```\n"], ids=["plain", "mail", "fence"])
def test_references_in_pasted_text(form):
    """Character references within attributes are those of XML, also in a mail or a fence."""
    assert parse_xml(form.format('<a b="1 &lt; 2 &amp; 3"/>\n'), where="f.xml").attributes["b"] == "1 < 2 & 3"


BOMB = "".join(f'<!ENTITY a{i + 1} "{f"&a{i};" * 10}">' for i in range(9))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f'<!DOCTYPE a [<!ENTITY a0 "ha">{BOMB}]><a>&a9;</a>', "document type"),
        ('<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><a>&b;</a>', "document type"),
        ('<!DOCTYPE a SYSTEM "http://localhost/a.dtd"><a/>', "document type"),
        ("<a>" * 1000, "inside one another"),
        ("<a>&b;</a>", "undefined entity"),
        ("<a x='1' x='2'/>", "duplicate attribute"),
        ("<a><b></a>", "mismatched tag"),
        ("<a/><b/>", "junk after document element"),
        ("text", "not XML"),
        ("", "no element found"),
        ("<a><b x='1", "ends too early: save or copy it again"),
    ],
)
def test_hostile_and_broken_text(text, words):
    """The error is one sentence with the line; entities are neither expanded nor fetched."""
    with pytest.raises(FormatError, match=words) as caught:
        parse_xml(text, where="f.xml")
    assert caught.value.where == "f.xml: line 1"
