"""MkDocs hooks that add pages from other folders: the list of shipped sketches, and their JSON Schema.

MkDocs calls these functions during a build (`hooks` in mkdocs.yml).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

SKETCHES = Path(__file__).resolve().parents[1] / "sketches"
#: {file outside this folder: its page in the site}.
PAGES = {"README.md": "shipped-sketches.md", "sketch.schema.json": "sketch.schema.json"}


def on_files(files: Files, *, config: Any) -> Files:
    """Add the files from outside this folder to the site."""
    for name, page in PAGES.items():
        files.append(File.generated(config, page, content=(SKETCHES / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Rewrite links to these files so that they lead to their pages in the site."""
    for name, page in PAGES.items():
        markdown = markdown.replace(f"](../sketches/{name})", f"]({page})")
    return markdown
