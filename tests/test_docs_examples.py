"""Documentation examples run: Python blocks, files, and commands with their promised exit code.

On a page, blocks run in their order and share one folder and one set of names:

- a block of Python is executed;
- a block whose first line has ``title="name"`` is written to a file of that name;
- in a block of console, each line that starts with ``taccl`` is run. It must exit with 0, or with the code
  that a comment ``# exits with N`` at its end promises.

Time limits, bounds and rows of sizes are shortened here. Commands that name files of the published tool run
separately, beside copies.
"""

from __future__ import annotations

import importlib.util
import itertools
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

import joblib
import pytest

import taccl
from taccl.analysis.certificates import bounds
from taccl.baselines import chunking, dimension_passes
from taccl.cli import main
from taccl.placement import tuning
from taccl.plot import sizes, style
from tests.effort import PATIENT, first_bounds, quick_fits
from tests.foreign import OURS, REAL

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
#: Time limit in seconds of every documented call; a later first schedule is waited for.
MOST_SECONDS = 0.03
#: Parameters of every documented search: wait for a schedule, but not for the bound over all chunkings.
SHORT = taccl.SearchParameters.from_dict(
    {"budget": {**PATIENT.to_dict()["budget"], "least_every_s": 0, "most_every_s": 0, "last_every_s": 0}}
)
#: Seconds for bounds of small problems, which by default take up to 1.5 s after the limit.
BOUND_SECONDS = 0.02
#: {text of examples: text of a smaller case that is run instead}; tests in tests/synthesis run large ones.
SMALLER = {
    "100x100x100": "10x10x10",
    "mesh:32x32": "mesh:8x8",
    "mesh(24, 24)": "mesh(8, 8)",
    "mesh(25, 25)": "mesh(8, 8)",
    "allgather(625)": "allgather(64)",
    "--nodes 8": "--nodes 2",
    # Each rank is a process.
    "probe -n 4": "probe -n 2",
    "ring:4 --collective allreduce --size 1MB -o ring.json": "ring:2 --collective allreduce --size 1MB -o ring.json",
    "--timeout-s 1": "--timeout-s 0.3",
}

_FENCE = re.compile(
    r"^```(?P<language>\w+)?(?P<info>[^\n]*)\n(?P<content>.*?)^```$", re.MULTILINE | re.DOTALL
)
_TITLE = re.compile(r'title="([^"]+)"')
_EXITS = re.compile(r"#\s*exits with (\d+)")
#: Our files in place of the published tool's files that pages name, if those are missing.
_STAND_INS = {"sk1-ndv2-n2.json": "ndv2-n2.json", "topo-ndv2-1MB.json": "ndv2-2MB.json"}
_UPSTREAM_FILE = re.compile(r"\b((?:sk|topo)[\w-]*-[\w-]*\.json)\b")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page."""

    language: str
    title: str
    content: str
    line: int


def blocks_of(page):
    text = page.read_text(encoding="utf-8")
    blocks = []
    for match in _FENCE.finditer(text):
        title = _TITLE.search(match["info"])
        line = text.count("\n", 0, match.start()) + 1
        blocks.append(Block(match["language"] or "", title[1] if title else "", match["content"], line))
    return blocks


def commands_of(block):
    """Commands of a console block; a backslash at the end of a line joins it to the next."""
    joined = block.content.replace("\\\n", " ")
    lines = (line.strip().removeprefix("$ ") for line in joined.splitlines())
    return [line for line in lines if line.startswith("taccl ")]


@pytest.fixture
def short_searches(monkeypatch):
    """Shorten searches, bounds and pictures, as these tests check calls and exit codes, not finishes.

    Comparisons start no processes, which would load all libraries again; other tests do.
    """
    bandwidths = taccl.plot.bandwidths

    def cut(whole, **further):
        return lambda *words, **options: whole(*words, **options | further)

    def two_sizes(schedule, *, sizes=None, **options):
        return bandwidths(schedule, sizes=sizes and list(sizes)[::3], **options)

    limit = {"time_limit_s": MOST_SECONDS}
    monkeypatch.setattr(taccl, "synthesize", cut(taccl.synthesize, parameters=SHORT, **limit))
    monkeypatch.setattr("taccl.aggregation.shards.synthesize", taccl.synthesize)
    for name in ("compare", "reorder", "report", "suggest_sketches"):
        monkeypatch.setattr(taccl, name, cut(getattr(taccl, name), **limit))
    for name in ("plan", "sweep"):  # which share it between problems
        monkeypatch.setattr(taccl, name, cut(getattr(taccl, name), time_limit_s=5 * MOST_SECONDS))
    monkeypatch.setattr(taccl, "lower_bound", cut(taccl.lower_bound, budget_s=MOST_SECONDS))
    for name in ("_FIRST_S", "_SMALL_S", "_LEAST_S"):
        monkeypatch.setattr(bounds, name, BOUND_SECONDS)
    monkeypatch.setattr(chunking, "MOST_CUT", 2000)  # a schedule with more transfers is not cut further
    # Tuning starts ranks for each algorithm. To save time, only tests/placement/test_tuning.py tunes alltoall.
    some = {kind: tuning.LIBRARY_NAMES[kind] for kind in ("allreduce",)}
    monkeypatch.setattr(tuning, "LIBRARY_NAMES", some)
    monkeypatch.setattr(dimension_passes, "_MOST_TRIES", 2)
    for most in ("_MOST_DRAWN", "_MOST_REPLAYED"):  # tests of pages draw their pictures
        monkeypatch.setattr(f"taccl.plot.report.{most}", 0)
    monkeypatch.setattr(style, "render", lambda picture, format: b"tests of pictures render them")
    monkeypatch.setattr(sizes, "_SIZES", sizes._SIZES[::6])
    monkeypatch.setattr(sizes, "_BOUND_S", BOUND_SECONDS)
    monkeypatch.setattr(sizes, "BASELINES", {name: sizes.BASELINES[name] for name in ("ring", "pairwise")})
    for module in (sizes, taccl.plot):
        monkeypatch.setattr(module, "bandwidths", two_sizes)
    with joblib.parallel_config(backend="sequential"), quick_fits(), first_bounds():
        yield


def smaller(text):
    """The text of an example, with smaller cases in place of large ones."""
    for large, small in SMALLER.items():
        text = text.replace(large, small)
    return text


def run_command(command, where, capsys):
    """Run one command, and compare its exit code with the promised one."""
    promised = _EXITS.search(command)
    command = smaller(command)
    command = re.sub(r"^(taccl report .*)--time-limit \S+", rf"\1--time-limit {MOST_SECONDS}", command)
    command = re.sub(r"(--step-s |step_s=)\S+", rf"\g<1>{MOST_SECONDS}", command)
    # Named solvers would use their whole time limit.
    command = re.sub(r"^(taccl (?:compare|sweep) .*)--time-limit \S+", r"\1", command)
    command = re.sub(r"^taccl (compare|sweep)", rf"taccl \1 --time-limit {MOST_SECONDS}", command)
    code = main(shlex.split(command, comments=True)[1:])
    said = capsys.readouterr()
    assert code == int(promised[1] if promised else 0), f"{where}: {command}\n{said.err}"


#: Pages with Python or commands to run. Those of the formulation run, with what they print, in test_docs.py.
WITH_EXAMPLES = [
    page
    for page in PAGES
    if page.name != "formulation.md"
    and {block.language for block in blocks_of(page)} & {"python", "console", "bash"}
]
#: Pages with commands that name files of the published tool.
WITH_UPSTREAM_FILES = [
    page for page in PAGES if any(_UPSTREAM_FILE.search(block.content) for block in blocks_of(page))
]


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda page: page.name)
def test_examples_run(page, tmp_path, monkeypatch, capsys, short_searches):
    """Every example of a page does what the page says."""
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "example"}
    for block in blocks_of(page):
        where = f"{page.name}:{block.line}"
        if block.title:
            Path(block.title).write_text(block.content, encoding="utf-8")
        elif block.language == "python":
            exec(compile("\n" * block.line + smaller(block.content), str(page), "exec"), names)
        elif block.language in ("console", "bash"):
            for command in commands_of(block):
                if not _UPSTREAM_FILE.search(command):
                    run_command(command, where, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_UPSTREAM_FILES, ids=lambda page: page.name)
def test_examples_with_upstream_files_run(page, tmp_path, monkeypatch, capsys, short_searches):
    """Commands that name files of the published tool run in a folder with copies."""
    commands = [
        command
        for block in blocks_of(page)
        if block.language in ("console", "bash")
        for command in commands_of(block)
        if _UPSTREAM_FILE.search(command)
    ]
    monkeypatch.chdir(tmp_path)
    for command in commands:
        for name in _UPSTREAM_FILE.findall(command):
            real = (REAL / "upstream-taccl").glob(f"*/{name}")
            ours = (OURS / "upstream-taccl").glob(f"*/{_STAND_INS[name]}")
            shutil.copy(next(itertools.chain(real, ours)), tmp_path / name)
        run_command(command, page.name, capsys)


@pytest.mark.parametrize("name", ["sketches.md", "quickstart.md", "concepts.md", "backends.md"])
def test_pages_have_examples(name):
    """Pages that teach by example contain examples that run."""
    languages = {block.language for block in blocks_of(ROOT / "docs" / name)}
    assert languages & {"python", "console", "bash"}


@pytest.mark.slow
def test_sketch_reference_is_current():
    """The generated part of the sketch reference is what its script writes."""
    path = ROOT / "docs" / "make_sketch_reference.py"
    spec = importlib.util.spec_from_file_location("make_sketch_reference", path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    page = script.PAGE.read_text(encoding="utf-8")
    assert script.updated(page) == page, "run python docs/make_sketch_reference.py"


@pytest.mark.slow
def test_baselines_of_the_quickstart_finish_as_printed(capsys):
    """The example that compares baselines with a synthesized schedule prints the text below it."""
    blocks = blocks_of(ROOT / "docs" / "quickstart.md")
    (number,) = (k for k, block in enumerate(blocks) if "baselines.baseline(name, problem)" in block.content)
    exec(compile(blocks[number].content, "quickstart.md", "exec"), {"taccl": taccl})
    assert capsys.readouterr().out == blocks[number + 1].content


@pytest.mark.slow
def test_quoted_verdicts_are_those_of_diagnose(tmp_path, monkeypatch):
    """Each page or verdict on the page of `diagnose` is what the command before it prints, to the digit."""
    page = ROOT / "docs" / "diagnose.md"
    text = page.read_text(encoding="utf-8")
    for block in blocks_of(page):
        if block.title:
            (tmp_path / block.title).write_text(block.content)
    monkeypatch.chdir(tmp_path)
    parts = re.split(r"^(taccl diagnose (?!allreduce).*)$", text, flags=re.MULTILINE)
    commands = list(zip(parts[1::2], parts[2::2], strict=True))
    assert len(commands) == 4
    for command, after in commands:
        words = shlex.split(command)[2:]
        logs = [word for word in words if word.endswith((".log", ".txt"))]
        topology = words[words.index("--topology") + 1] if "--topology" in words else None
        found = taccl.diagnose(logs, topology, gains=False)
        printed = re.match(r"\n```\n\n```text\n(.*?)```", after, re.DOTALL)
        if printed:
            assert printed[1].splitlines() == repr(found).splitlines()
        else:
            quote = " ".join(re.findall(r"^> (.*)$", after, re.MULTILINE))
            assert found.series[0].verdict == quote
