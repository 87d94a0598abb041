"""What the site shows beside the pages in this folder: the list of shipped sketches, and their JSON Schema.

MkDocs calls these functions while it builds (`hooks` in mkdocs.yml).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

SKETCHES = Path(__file__).resolve().parents[1] / "sketches"
#: Where a link out of this folder leads in the site.
PAGES = {"README.md": "shipped-sketches.md", "sketch.schema.json": "sketch.schema.json"}


def on_files(files: Files, *, config: Any) -> Files:
    """Add what lies beside the folder of the pages."""
    for name, page in PAGES.items():
        files.append(File.generated(config, page, content=(SKETCHES / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Lead links to those files to where they are in the site."""
    for name, page in PAGES.items():
        markdown = markdown.replace(f"](../sketches/{name})", f"]({page})")
    return markdown
