"""The report in a real browser: no error in its console, and no script that could run."""

import dataclasses
import json
import re
import shutil
import subprocess
from html import unescape

import pytest

import taccl
from taccl._internal.units import format_us
from tests.fuzzing import thinned
from tests.plot.test_display import HOSTILE

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the path to open the report in")


def opened(page, folder):
    """(document as rendered by the browser, console output)."""
    path = folder / "report.html"
    path.write_text(page, encoding="utf-8")
    done = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr", "--dump-dom", path.as_uri(),
        ],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.fixture(scope="module")
def hostile(found):
    """A result whose names all contain scripts."""
    problem = found.schedule.problem
    links = tuple(link._replace(name=HOSTILE) for link in problem.topology.links)
    topology = dataclasses.replace(problem.topology, name=HOSTILE, links=links)
    problem = dataclasses.replace(problem, topology=topology)
    schedule = dataclasses.replace(found.schedule, problem=problem, producer=HOSTILE)
    return dataclasses.replace(
        found, schedule=schedule, bound=dataclasses.replace(found.bound, problem=problem)
    )


@pytest.mark.slow
def test_the_page_opens_without_a_complaint(hostile, tmp_path):
    """Sections and figures are shown, every bar has its title, and names are text."""
    page = taccl.report(hostile, time_limit_s=1e-9)
    document, console = opened(page, tmp_path)
    assert console == []
    assert document.count("</title></path>") >= 3 * hostile.schedule.num_sends
    assert len(re.findall(r"<section id=", document)) == 10
    assert format_us(hostile.finish_us) in document
    assert "<script" not in document
    assert "<img" not in document
    assert "&lt;img src=x onerror=alert(1)&gt;" in document
    assert document.count("<details open") == 1


@pytest.mark.slow
def test_a_script_that_got_in_would_not_run(found, tmp_path):
    """The page's policy admits no script; the browser reports that it refused one."""
    page = taccl.report(found, time_limit_s=1e-9)
    page = page.replace("<main>", "<main><script>document.title = 'taken'</script>")
    document, console = opened(page, tmp_path)
    assert "<title>taken</title>" not in document
    assert any("Content Security Policy" in line for line in console)


#: Script that measures the page and writes the figures into its title.
#: These are cut-off texts of pictures and excess width of page and pictures in pixels, on a phone and a
#: screen, and number of tables and captions without content.
LOOK = """<script>
const cut = [], excess = [], main = document.querySelector("main");
for (const width of [350, 1120]) {
  main.style.width = `${width}px`;
  for (const each of [main, ...document.querySelectorAll("figure")])
    excess.push(each.scrollWidth - each.clientWidth);
  for (const svg of document.querySelectorAll("svg")) {
    const box = svg.getBoundingClientRect();
    for (const text of svg.querySelectorAll("text")) {
      const own = text.getBoundingClientRect();
      if (own.left < box.left - 1 || own.right > box.right + 1 || own.top < box.top - 1
          || own.bottom > box.bottom + 1) cut.push(text.textContent);
    }
  }
}
const empty = [...document.querySelectorAll("table")].filter(each => !each.querySelector("td"));
empty.push(...[...document.querySelectorAll("figure")].filter(each => !each.innerText.trim()));
document.title = JSON.stringify([cut, excess, empty.length]);
</script></main>"""


@pytest.fixture
def direct():
    """Alltoall by direct sends, for which eight baselines are not defined."""
    problem = taccl.make_problem(taccl.topologies.fully_connected(8), "alltoall", size_bytes=8000)
    return taccl.baselines.pairwise(problem)


@pytest.mark.slow
@pytest.mark.parametrize("which", thinned(["found", "direct"], every=2))
def test_nothing_is_cut_off_or_empty(which, request, tmp_path):
    """No caption is cut off, page and pictures fit the width of phones and screens, and no table is empty."""
    page = taccl.report(request.getfixturevalue(which), time_limit_s=20).replace(
        "<details>", "<details open>"
    )
    page = re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    document, _ = opened(page.replace("</main>", LOOK), tmp_path)
    cut, excess, num_empty = json.loads(unescape(re.search("<title>(.*?)</title>", document)[1]))
    assert (cut, num_empty) == ([], 0)
    assert max(excess) <= 0
