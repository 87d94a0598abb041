"""The fields that `docs/formats.md` and `docs/plan.md` list are those that ``--json`` prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.words import SMALL
from tests.measure.logs import SIZES, table
from tests.runtime.test_runtime_report import RIGHT

DOCS = Path(__file__).resolve().parents[2] / "docs"
_LISTS = re.compile(r"`(?P<name>\w+)`, a list: `(?P<fields>[a-z_ ]+)`")
#: {first cell of a row of the tables: words of a command whose output has all fields of the row}. Braces name
#: files of `files`.
COMMANDS = {
    "`bound`": ("bound", *SMALL),
    "`simulate`": ("simulate", "{schedule}", "--sizes", "1KB"),
    "`explain`": ("explain", *SMALL, "--time-limit", 5),
    "`verify`": ("verify", "{schedule}"),
    "`backends`": ("backends",),
    "`baseline --list`": ("baseline", "--list"),
    "`suggest`": ("suggest", "ring:4", "--collective", "allgather", "--size", "4KB", "--time-limit", 1),
    "`suggest --check`": ("suggest", "ring:4", *SMALL[2:], "--check", "{sketch}"),
    "`diagnose`": ("diagnose", "{log}", "--topology", "dgx-h100", "--time-limit", 60),
    "`reorder`": ("reorder", "{pairs}", "--algorithm", "ring", "--size", "1MB"),
    "`probe --dry-run`": ("probe", "-n", 4, "-o", "{folder}/probe.csv", "--dry-run"),
    "`warmup`": ("warmup",),
    "`cache`": ("cache", "info"),
    "`plot`": ("plot", "{schedule}", "-o", "{folder}/gantt.svg"),
    "`report`": ("report", "{schedule}", "-o", "{folder}/page.html"),
    "`convert`": ("convert", "{schedule}", "{folder}/program.xml"),
    "`convert --list`": ("convert", "--list"),
    "`plan`": (
        "plan", "--topology", "ring:4", "--collective", "allgather", "--sizes", "1KB:4KB", "--time-limit", 2,
        "-o", "{folder}/plan",
    ),
    "`simulate` of a program": ("simulate", "{program}", "--topology", "ring:4", "--sizes", "4KB"),
    "`show` of a program": ("show", "{program}"),
    "`verify` of a program": ("verify", "{program}"),
    "`verify` of an MSCCL++ plan": ("verify", "{plan}"),
}  # fmt: skip
#: {name in braces: file, or the folder itself}.
FILES = {"log": "a.log", "pairs": "pairs.csv", "folder": ""}
#: Rows that another test here or in `tests/explore/test_rows.py` compares, or that refer to other rows.
ELSEWHERE = {
    "`show`", "`compare`, `sweep`", "`run`", "`fit`", "`bound` of a program, or of a schedule",
    "`plan`, programs under `simulate`, `bound` and `show`, and schedules under `bound`",
}  # fmt: skip


def _words(text: str) -> set[str]:
    """Names between backticks, without options."""
    names = {name for quoted in text.split("`")[1::2] for name in quoted.split()}
    return {name for name in names if not name.startswith("-")}


def _rows() -> dict[str, str]:
    """{command: cell with its fields} of both pages."""
    rows: dict[str, str] = {}
    for page, title in (("formats.md", "## Results as JSON"), ("plan.md", "## Fields of JSON output")):
        section = (DOCS / page).read_text().split(title + "\n")[1].split("\n## ")[0]
        lines = [line.strip("| ").split(" | ", 1) for line in section.splitlines() if line.startswith("| `")]
        rows |= {command: fields for command, fields in lines if command not in rows}
    return rows


@pytest.fixture
def files(tmp_path, run) -> dict[str, str]:
    """{name: path} of input files, and of a folder for outputs."""
    paths = {name: str(tmp_path / f"{name}.json") for name in ("schedule", "program", "sketch")}
    paths |= {"program": str(tmp_path / "ring.xml"), "sketch": str(tmp_path / "sketch.toml")}
    assert run("baseline", "ring", *SMALL, "-o", paths["schedule"])[0] == 0
    paths["plan"] = str(tmp_path / "ring.plan.json")
    for kind in ("program", "plan"):
        assert run("convert", paths["schedule"], paths[kind])[0] == 0
    (tmp_path / "sketch.toml").write_text(
        'schema = 1\nname = "one symmetry"\n[[symmetry]]\noffset = 1\ngroup = 4\n'
    )
    (tmp_path / "a.log").write_text(table(sizes=SIZES[::3]))
    pairs = "".join(f"{a},{b},{5 + (a + b) % 3}\n" for a in range(3) for b in range(3) if a != b)
    (tmp_path / "pairs.csv").write_text(f"src,dst,latency_us\n{pairs}")
    return paths | {name: str(tmp_path / file) for name, file in FILES.items()}


class TestDocumentedFields:
    """Fields of ``--json`` on the pages."""

    @pytest.mark.slow
    @pytest.mark.parametrize("command", COMMANDS)
    def test_rows(self, command, run_json, files):
        """A command prints the fields of its row, and no others; so do the lists among them."""
        text = _rows()[command]
        code, values = run_json(*(str(word).format(**files) for word in COMMANDS[command]))
        assert code == 0
        lists = {each["name"]: set(each["fields"].split()) for each in _LISTS.finditer(text)}
        assert set(values) == _words(_LISTS.sub("", text)) | set(lists)
        for name, fields in lists.items():
            assert {key for item in values[name] for key in item} == fields, name

    @pytest.mark.slow
    def test_schedules_under_bound(self, run_json, files):
        """`bound` of a schedule prints an object with the fields of a size of `simulate`, and one more."""
        code, values = run_json("bound", files["schedule"])
        assert code == 0
        sizes = _LISTS.search(_rows()["`simulate` of a program"])
        assert sizes
        more = _words(_rows()["`bound` of a program, or of a schedule"].partition("of `simulate`")[2])
        assert set(values["schedule"]) == {*sizes["fields"].split(), *more}

    @pytest.mark.slow
    @pytest.mark.parametrize("command", ["synthesize", "baseline"])
    def test_results(self, command, run_json):
        """`synthesize` and `baseline` print the fields of the page, and each stage the fields of stages."""
        text = (DOCS / "formats.md").read_text().split("## Results as JSON\n")[1]
        fields = re.search(r"has the fields\n\n`([^`]+)`", text)
        stages = re.search(r"each of `stages` has `([^`]+)`", text)
        assert fields
        assert stages
        words = ("ring",) if command == "baseline" else ()
        code, values = run_json(command, *words, *SMALL)
        assert code == 0
        assert set(values) == set(fields[1].split())
        assert {key for stage in values["stages"] for key in stage} <= set(stages[1].split())

    def test_executions(self):
        """`run` prints the fields of its row, and its times those listed for times."""
        figures = RIGHT.figures()
        assert {*figures, *figures["times"]} == _words(_rows()["`run`"])
        assert set(figures["times"]) == _words(_rows()["`run`"].partition("; the times have ")[2])

    @pytest.mark.slow
    @pytest.mark.usefixtures("_quick_fits")
    def test_fits(self, run_json, files):
        """`fit` prints the fields of its row; so do its parameters and its series."""
        top, parameters, series = _rows()["`fit`"].split("`; ")
        code, values = run_json("fit", files["log"], "--topology", "dgx-h100")
        assert code == 0
        assert set(values) == _words(top + "`") | {"parameters", "series"}
        for each in values["parameters"].values():
            assert {"parameters", *each} == _words(parameters + "`")
        assert {"series", *values["series"][0]} == _words(series)

    def test_errors(self, run_json):
        """An error has the fields of the page."""
        text = (DOCS / "formats.md").read_text().split("## Results as JSON\n")[1]
        found = re.search(r"An error is also an object, with the fields `([^`]+)`", text)
        assert found
        assert set(run_json("verify", "missing.json")[1]) == set(found[1].split())

    def test_every_row_is_compared(self):
        """Each row of the tables has a command here, or is named as compared elsewhere."""
        assert set(_rows()) == {*COMMANDS, *ELSEWHERE}
