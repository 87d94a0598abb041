"""The site shows what there is: every page has a place, and every public name is in the reference."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import taccl

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
NAVIGATION = re.findall(r": ([\w/-]+\.(?:md|ipynb))$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)


def test_every_page_has_a_place():
    """The navigation names each page and notebook once, and nothing else but what the hooks add."""
    pages = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*") if path.suffix in {".md", ".ipynb"}]
    assert sorted(NAVIGATION) == sorted({*pages, "shipped-sketches.md"})


@pytest.mark.parametrize("name", sorted(set(taccl.__all__) - {"__version__"}))
def test_every_public_name_is_in_the_reference(name):
    """Each name of the facade, or of a module what is in it, stands on exactly one page of the reference."""
    entry = re.compile(rf"^::: taccl\.{name}(\.\w+)*$", re.MULTILINE)
    pages = [path for path in (DOCS / "reference").glob("*.md") if entry.search(path.read_text())]
    assert len(pages) == 1
