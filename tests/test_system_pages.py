"""Pages of published systems: ten features each, with calls and their results."""

import re
import shlex
from functools import partial

import pytest

import taccl
from taccl.cli import main
from tests.effort import AMPLE_S, BRIEF
from tests.test_docs_examples import ROOT, blocks_of

SYSTEMS = sorted((ROOT / "docs" / "systems").glob("*.md"))
_ROW = re.compile(r"^\| (?P<feature>[^|]+) \| `(?P<call>.+?)` \| `(?P<said>.+?)` \|$", re.MULTILINE)


def features(page):
    """(feature, call, expected text) of each row of a page's last table."""
    text = page.read_text(encoding="utf-8").partition("## Ten features")[2]
    return [tuple(part.replace(r"\|", "|") for part in row.groups()) for row in _ROW.finditer(text)]


def test_there_is_a_page_for_each_system():
    """Each of six published systems has a page in the site's navigation."""
    names = [page.stem for page in SYSTEMS]
    assert names == ["cloud-collectives", "coconet", "phub", "switchml", "tacos", "themis"]
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert all(f"systems/{name}.md" in site for name in names)


@pytest.fixture
def brief_searches(monkeypatch):
    """End searches by their work: a schedule that cannot be improved would be searched until the time limit."""

    brief = partial(taccl.synthesize, parameters=BRIEF)
    for name in ("taccl.synthesize", "taccl.aggregation.shards.synthesize"):
        monkeypatch.setattr(
            name, lambda *given, **options: brief(*given, **options | {"time_limit_s": AMPLE_S})
        )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::taccl.errors.AssumptionWarning")
@pytest.mark.filterwarnings("ignore::taccl.errors.LossyConversionWarning")
@pytest.mark.parametrize("page", SYSTEMS, ids=[page.stem for page in SYSTEMS])
def test_features_are_shown_by_their_calls(page, tmp_path, monkeypatch, capsys, brief_searches):
    """Each command succeeds and prints the page's text, and each call returns it."""
    monkeypatch.chdir(tmp_path)
    rows, names = features(page), {"__name__": "page"}
    assert len(rows) == 10
    for block in blocks_of(page):
        exec(compile(block.content, page.name, "exec"), names)
    capsys.readouterr()
    for feature, call, said in rows:
        if call.startswith("taccl "):
            code, found = main(shlex.split(call)[1:]), ""
            found = capsys.readouterr().out
            assert code == 0, f"{feature}: {call}"
        else:
            found = str(eval(call, names))
        assert said in found, f"{feature}: {call} says {found[:200]}"
