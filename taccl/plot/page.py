"""Build a self-contained HTML page, which loads nothing, runs no script, and holds its pictures as SVG."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from html import escape
from io import BytesIO
from typing import TYPE_CHECKING

from taccl._internal.html import as_html
from taccl.plot.style import render

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TAG = re.compile(r"<[^>]*>")
_PROLOGUE = re.compile(r"^.*?(?=<svg)|<metadata>.*?</metadata>\s*", re.DOTALL)
_REFERENCE = re.compile(r'(\bid="|url\(#|href="#)')
_PATH, _NUMBER = re.compile(r'(?<=\bd=")[^"]*'), re.compile(r"-?\d+\.\d+")
_IMAGE = re.compile(r"(?<=data:image/png;base64,)[A-Za-z0-9+/=\s]+")
#: `_DECIMALS`: decimals of coordinates in points. `_IMAGE_COLOURS`: number of colours in an image.
_DECIMALS, _IMAGE_COLOURS = 2, 128
#: Content security policy of a page, under which it fetches nothing and runs no script, whatever its content.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1120px; margin: 0 auto; padding: 24px 20px 60px; }
h1 { font-size: 24px; margin: 0; } h2 { font-size: 18px; margin: 34px 0 8px; }
h1, p, li, figcaption, table:not(:has(thead)) td:last-child { overflow-wrap: anywhere; }
.verdict { font-size: 17px; } section > table, section > div { display: block; overflow-x: auto; }
nav a { margin-right: 14px; } pre, .wide { overflow-x: auto; } pre { font-size: 13px; }
.dataframe { font-size: 13px; }
.dataframe th, .dataframe td { text-align: right; padding: 0 10px 0 0; overflow-wrap: normal; }
section > table:has(th) td:last-child { min-width: 16em; }
figure { margin: 12px 0; background: white; color: black; } figure svg { width: 100%; height: auto; }
@media (max-width: 480px) { thead ~ tbody, thead { font-size: 12px; } pre { font-size: 10px; } }
"""
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>{title}</h1>
{body}
</main>
</body>
</html>
"""


def html_page(title: str, body: str) -> str:
    """HTML page from a title, which is plain text, and a body, which is HTML."""
    return _PAGE.format(policy=escape(_POLICY), style=_STYLE, title=as_html(title), body=body)


def picture(drawn: Axes, name: str, texts: Mapping[str, Sequence[str]] | None = None) -> str:
    """Render a matplotlib picture as inline SVG for an HTML page; its title becomes the caption, as text.

    The caption wraps on narrow screens, which the text of a picture does not.

    - `name`: Prefix of the SVG ids, which keeps them distinct from those of other pictures.
    - `texts`: {SVG id of a group of shapes: tooltip of each shape}.
    """
    caption = "<br>".join(map(as_html, drawn.get_title(loc="left").split("\n")))
    drawn.set_title("", loc="left")
    svg = _PROLOGUE.sub("", render(drawn, "svg").decode())
    for group, some in (texts or {}).items():
        begin, before, rest = svg.partition(f'<g id="{group}">')
        shapes, after, end = rest.partition("</g>")
        if shapes.count("<path ") == len(some):
            titles = iter(some)
            shapes = re.sub(
                r"(<path [^>]*)/>", lambda path: f"{path[1]}><title>{as_html(next(titles))}</title></path>",
                shapes,
            )  # fmt: skip
        svg = begin + before + shapes + after + end
    svg = _PATH.sub(lambda found: _shorter(found[0]), _IMAGE.sub(lambda found: _with_palette(found[0]), svg))
    apart = _TAG.sub(lambda tag: _REFERENCE.sub(rf"\g<1>{name}-", tag[0]), svg)
    return f"<figure><figcaption>{caption}</figcaption>{apart}</figure>"


def _shorter(path: str) -> str:
    """A path in SVG on one line, with coordinates rounded to what can be seen."""
    rounded = _NUMBER.sub(lambda number: f"{float(number[0]):.{_DECIMALS}f}".rstrip("0").rstrip("."), path)
    return " ".join(rounded.split())


def _with_palette(encoded: str) -> str:
    """Convert a PNG image in base64 to a palette of `_IMAGE_COLOURS` colours, to save bytes."""
    from PIL import Image  # matplotlib requires it

    content = BytesIO()
    image = Image.open(BytesIO(b64decode(encoded))).convert("RGBA")
    image.quantize(_IMAGE_COLOURS, method=Image.Quantize.FASTOCTREE).save(content, "PNG", optimize=True)
    return b64encode(content.getvalue()).decode()


def folded(summary: str, content: str, *, is_open: bool = False) -> str:
    """Collapsible HTML below a summary line."""
    return f"<details{' open' * is_open}><summary>{summary}</summary>{content}</details>"


def with_commands(text: str) -> str:
    """Convert a text to HTML, with commands in backquotes marked as code."""
    return re.sub("`(.*?)`", r"<code>\1</code>", as_html(text))
