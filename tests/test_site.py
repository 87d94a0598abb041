"""The site contains every page and every public name."""

import json
import re
import tomllib
from pathlib import Path

import pytest

import taccl
from taccl.cli.verbs import VERBS

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
SKETCHES = sorted((ROOT / "sketches").rglob("*.toml"))
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]
NAVIGATION = re.findall(r": ([\w/-]+\.(?:md|ipynb))$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)


def test_every_page_has_a_place():
    """The navigation lists each page and notebook once, and otherwise only what the hooks add."""
    pages = [
        path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*") if path.suffix in {".md", ".ipynb"}
    ]
    assert sorted(NAVIGATION) == sorted({*pages, "shipped-sketches.md"})


def test_every_public_name_is_in_the_reference():
    """Each public name is on exactly one page of the reference."""
    entry = re.compile(r"^::: taccl\.(\w+)(?:\.\w+)*$", re.MULTILINE)
    pages = [set(entry.findall(path.read_text())) for path in (DOCS / "reference").glob("*.md")]
    public = sorted(set(taccl.__all__) - {"__version__"})
    assert sorted(name for page in pages for name in page if name in public) == public


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=[path.name for path in NOTEBOOKS])
def test_notebooks_hold_no_outputs(notebook):
    """Notebooks contain no outputs, counts or widgets."""
    document = json.loads(notebook.read_text(encoding="utf-8"))
    ran = [
        cell for cell in document["cells"] if cell.get("outputs") or cell.get("execution_count") is not None
    ]
    assert not ran
    assert "widgets" not in document["metadata"]


def test_every_notebook_is_there():
    """There are at least six notebooks, so the test above is not empty."""
    assert len(NOTEBOOKS) >= 6


def test_readme_lists_every_command():
    """The README's table lists every verb in the order of ``taccl --help``."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `taccl ([\w-]+)", readme, re.MULTILINE)
    assert tuple(listed) == VERBS


@pytest.mark.parametrize("extra", sorted(EXTRAS))
def test_readme_lists_every_extra(extra):
    """The README names every extra."""
    assert f"`{extra}`" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("sketch", SKETCHES, ids=[path.stem for path in SKETCHES])
def test_shipped_sketches_lead_editors_to_the_schema(sketch):
    """The first line of a shipped sketch is the relative path to its schema."""
    line = sketch.read_text(encoding="utf-8").splitlines()[0]
    assert line.startswith("#:schema ")
    assert (
        sketch.parent / line.removeprefix("#:schema ")
    ).resolve() == ROOT / "sketches" / "sketch.schema.json"
