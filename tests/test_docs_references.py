"""References on pages: anchors, names in code, files, arXiv numbers, and commands in sentences."""

import argparse
import importlib
import re
import shlex
from functools import cache

import pytest

from taccl.cli.command import build_parser
from taccl.cli.verbs import VERBS
from tests.test_docs_examples import PAGES, ROOT, blocks_of, commands_of

#: Fenced blocks, which other tests run.
_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_ANCHOR = re.compile(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)")
_LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)")
_NAME = re.compile(r"`(taccl(?:\.\w+)+)")
_FILE = re.compile(r"(?<!\[)`((?:taccl|tests|docs|benchmarks|sketches)/[\w/.-]+)`")
_ARXIV = re.compile(r"arxiv(?:\.org/(?:abs|pdf)/|[ :]+)(\S+?)(?=[\s,.;)\]]*(?:[\s)\]]|$))", re.IGNORECASE)
_COMMAND = re.compile(r"`(taccl [a-z][^`]*)`")


def text_of(page):
    """Text of a page without its fenced blocks."""
    return _BLOCK.sub("", page.read_text(encoding="utf-8"))


@cache
def anchors_of(page):
    """Anchors of a page's headings, as Python-Markdown and GitHub derive them."""
    headings = re.findall(r"^#+ +(.*)$", text_of(page), re.MULTILINE)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    words = [re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in plain]
    named = re.findall(r'(?:id="|\{#)([\w-]+)', page.read_text(encoding="utf-8"))
    return {re.sub(r"[-\s]+", "-", each) for each in words} | set(named)


@cache
def options_of(verb):
    """Options of a verb's parser."""
    actions = build_parser(verb)._actions
    verbs = next(each for each in actions if isinstance(each, argparse._SubParsersAction))
    return {name for action in verbs.choices[verb]._actions for name in action.option_strings}


def exists(dotted):
    """True if a dotted name leads to a module or to something in one."""
    words = dotted.split(".")
    for end in range(len(words), 0, -1):
        try:
            found = importlib.import_module(".".join(words[:end]))
        except ModuleNotFoundError:
            continue
        for word in words[end:]:
            if not hasattr(found, word):
                return word in getattr(found, "__annotations__", {})
            found = getattr(found, word)
        return True
    return False


def test_anchors_lead_to_headings():
    """Every link to a part of a page names an existing heading."""
    dead = []
    for page in PAGES:
        for target, anchor in _ANCHOR.findall(text_of(page)):
            leads_to = (page.parent / target).resolve() if target else page
            if leads_to.suffix == ".md" and anchor not in anchors_of(leads_to):
                dead.append(f"{page.name}: {target}#{anchor}")
    assert not dead


def test_links_lead_to_files_of_the_site():
    """A page of the site links only to files below docs/ and to those that its hooks add; other pages to any file."""
    site, dead = ROOT / "docs", []
    added = re.findall(r'"([^"]+)": "', re.search(r"PAGES = (.*)", (site / "site_hooks.py").read_text())[1])
    for page in PAGES:
        of_the_site = {ROOT / "sketches" / name for name in added} if site in page.parents else set()
        root = site if site in page.parents else ROOT
        for target in _LINK.findall(text_of(page)):
            file = (page.parent / target).resolve()
            if not (file.exists() and (root in file.parents or file in of_the_site)):
                dead.append(f"{page.name}: {target}")
    assert not dead


def is_in_a_file(dotted):
    """True if a dotted name is a module or defined in one; moved modules do not count."""
    *folders, name = dotted.split(".")
    path = ROOT.joinpath(*folders)
    files = (path.with_suffix(".py"), path / "__init__.pyi", path / "__init__.py")
    source = next((file.read_text(encoding="utf-8") for file in files if file.exists()), "")
    return (path / f"{name}.py").exists() or re.search(rf"\b{name}\b", source) is not None


def test_names_in_the_reference_exist():
    """Every name whose docstring the reference shows is in its module."""
    pages = (ROOT / "docs" / "reference").glob("*.md")
    named = [name for page in pages for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)]
    assert len(named) > 50
    assert not [name for name in named if not is_in_a_file(name)]


@pytest.mark.filterwarnings("error::DeprecationWarning")
def test_names_in_code_exist():
    """Every dotted name in code on a page exists and is not deprecated."""
    named = {name for page in PAGES for name in _NAME.findall(text_of(page))}
    assert not [name for name in sorted(named) if not exists(name)]


def test_files_of_the_project_exist():
    """Every project file that a page names exists."""
    named = {name for page in PAGES for name in _FILE.findall(text_of(page))}
    assert not [name for name in sorted(named) if not (ROOT / name).exists()]


def test_arxiv_numbers_have_their_form():
    """An arXiv number is a year and month, a dot, and four or five digits."""
    form = re.compile(r"\d\d(0[1-9]|1[0-2])\.\d{4,5}(v\d+)?")
    numbers = {number for page in PAGES for number in _ARXIV.findall(text_of(page))}
    assert not [number for number in sorted(numbers) if not form.fullmatch(number)]


def test_commands_in_sentences_have_their_options():
    """A command in a sentence, table or block that is not run has a valid verb and options."""
    blocks = [block for page in PAGES for block in blocks_of(page) if block.language == "shell"]
    shown = {each for block in blocks for each in commands_of(block)}
    wrong = []
    for command in sorted(shown.union(*(_COMMAND.findall(text_of(page)) for page in PAGES))):
        words = shlex.split(command, comments=True)
        options = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        if words[1] in VERBS and not options <= options_of(words[1]):
            wrong.append(command)
    assert not wrong


def test_formulas_are_well_formed():
    """Formulas have balanced braces and no space at their ends, which would leave them text."""
    text = re.sub(r"`[^`]*`", "", text_of(ROOT / "docs" / "formulation.md"))
    formulas = [
        each for pair in re.findall(r"\$\$(.+?)\$\$|\$([^$]+)\$", text, re.DOTALL) for each in pair if each
    ]
    assert len(formulas) > 200
    assert text.count("$") % 2 == 0
    assert not [each for each in formulas if each != each.strip() or each.count("{") != each.count("}")]


def test_borrowed_commands_of_the_gallery_run_elsewhere():
    """Every command of the gallery that its own tests do not run is run on another page.

    Names of pictures may differ.
    """

    def lines(pages, languages):
        blocks = (block for page in pages for block in blocks_of(page) if block.language in languages)
        return {
            re.sub(r" (-o|--sizes) \S+", "", line) for block in blocks for line in block.content.splitlines()
        }

    gallery = ROOT / "docs" / "gallery.md"
    run = lines([page for page in PAGES if page != gallery], {"console", "python"})
    assert lines([gallery], {"shell", "py"}) <= run


def test_pictures_of_the_gallery_are_small():
    """The gallery has ten pictures of less than 100 KB each."""
    pictures = re.findall(r"\]\((images/\S+)\)", (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8"))
    assert len(pictures) == 10
    assert max((ROOT / "docs" / picture).stat().st_size for picture in pictures) < 100_000
