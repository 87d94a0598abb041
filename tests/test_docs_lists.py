"""Lists and tables on pages equal the tables of the library: names, figures, and the tree of modules."""

from __future__ import annotations

import re
from pkgutil import resolve_name

import pytest

import taccl
from taccl.analysis.certificates.certificate import kinds_of_bounds
from taccl.baselines.table import label_of
from taccl.formats.table import FORMATS
from taccl.measure.causes import RULES
from taccl.problem.collectives import COLLECTIVES, argument_names
from taccl.topology.machines import SHAPES
from taccl.topology.networks import INSTANCES, NETWORKS
from tests.arguments import arguments_for
from tests.test_docs_examples import ROOT, blocks_of


def test_table_of_sizes_is_current():
    """The table in the concepts states chunks, size and bus bandwidth as the code computes them."""
    rows = re.findall(
        r"^\| `([\w-]+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \|[^|]*\|$",
        (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert {row[0] for row in rows} == set(COLLECTIVES)
    for n, k in ((2, 1), (4, 1), (8, 3)):
        counts = arguments_for("allgatherv", n)["counts"]
        values = {"n": n, "k": k, "m": 2, "s": sum(counts), "l": min(counts)}
        for name, *cells in rows:
            collective = taccl.collectives.make(name, n, chunks_per_rank=k, **arguments_for(name, n))
            chunks, size, busbw = (_value(cell, values) for cell in cells)
            assert (chunks, size) == (collective.num_chunks, collective.size_chunks), name
            assert busbw == pytest.approx(collective.busbw_factor), name


def test_list_of_collectives_is_current():
    """The quickstart names every collective; among those with several roots it names one."""
    page = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    listed = set(
        re.findall(r"`(\w[\w-]*)`", re.search(r"Collectives are\n(.*?)your own", page, re.DOTALL).group(1))
    )
    named = {name for name in COLLECTIVES if not name.startswith("multi-root")}
    assert listed == named | {"multi-root-broadcast"}


@pytest.mark.parametrize("argument", ["root", "counts"])
def test_arguments_of_collectives_are_current(argument):
    """The concepts name every collective that has a root, or counts."""
    page = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")
    text = page.partition("### Arguments of collectives")[2].partition("```")[0]
    sentence = re.search(rf"`{argument}` \(`--{argument}[^)]*\)[^.]*\.", text).group()
    listed = set(re.findall(r"[\w-]+", sentence))
    assert {name for name in COLLECTIVES if argument in argument_names(name)} - listed == set()


def test_list_of_machines_is_current():
    """The quickstart lists the registry's models."""
    page = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    listed = re.search(r"Machines are [^;]*", page).group()
    models = set(taccl.topologies.machine_names()) - set(INSTANCES)
    assert set(re.findall(r"\b[a-z][a-z-]*\d[\w-]*", listed)) == models


def test_places_of_decisions_are_current():
    """Each file of the table of decisions in the architecture page defines the names beside it."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = page.split("## Where to change ...")[1].split("\n## ")[0]
    rows = re.findall(r"^\| [^|]+ \| `([\w/.]+)` \| ([^|]+) \|$", section, re.MULTILINE)
    assert len(rows) > 10
    for file, names in rows:
        code = (ROOT / "taccl" / file).read_text(encoding="utf-8")
        for name in re.findall(r"`(\w+)`", names):
            assert re.search(rf"^(    )?(def {name}\(|class {name}\b|{name}\b[:, ])", code, re.MULTILINE), (
                name
            )


def test_causes_of_diagnose_are_current():
    """The page of `diagnose` has a row with title, evidence and remedy for every cause, in their order."""
    page = (ROOT / "docs" / "diagnose.md").read_text(encoding="utf-8")
    listed = page.split("\n## Causes, evidence, remedies\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| ([^|]+) \|$", listed, re.MULTILINE)
    rows = [row for row in rows if row != ("cause", "what to try")]
    assert rows == list(dict.fromkeys((rule.title, rule.remedy) for rule in RULES))


def test_instance_types_are_current():
    """The page of real machines has a row for every instance type and for every class of networks."""
    page = (ROOT / "docs" / "real-machines.md").read_text(encoding="utf-8")
    assert not [
        name for name in INSTANCES if not re.search(rf"^\|[^|]*`{re.escape(name)}`", page, re.MULTILINE)
    ]
    for each in NETWORKS.values():
        start = f"{each.start_us}" + ("" if each.amd_start_us is None else f" ({each.amd_start_us})")
        hop = f"{each.hop_us}" + ("" if each.simple_us is None else f" ({each.simple_us})")
        post = f"{each.post_us}" + (f" ({each.ll_us:g})" if each.ll_us else "")
        figures = (hop, start, post, each.efficiency, each.stated_us)
        row = [f"`{each.name}`", *map(str, figures), "yes" if each.ll128 else "no", each.source]
        assert f"| {' | '.join(row)} |" in page


@pytest.mark.parametrize(
    ("page", "line"),
    [
        ("docs/glossary.md", r"\| fabric \| [^|]*"),
        ("docs/quickstart.md", r"fabrics are [^.]*"),
        ("docs/modules.md", r"fabrics\.py +.*"),
    ],
)
def test_lists_of_fabrics_are_current(page, line):
    """Lists of fabrics on pages contain every fabric of the registry."""
    listed = re.search(line, (ROOT / page).read_text(encoding="utf-8")).group().replace(" ", "-")
    assert not [name for name in taccl.topologies.fabric_names() if name not in listed]


def test_machines_with_rails_are_current():
    """The formats' page names the machines that take `rails`."""
    page = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    listed = re.search(r"`rails` is for ([^;|]*), where", page).group(1)
    models = [name for name in taccl.topologies.machine_names() if name not in INSTANCES]
    takes = [name for name in models if SHAPES[name].has_rails]
    assert sorted(re.findall(r"`([\w-]+)`", listed)) == sorted(takes)


def test_table_of_formats_is_current():
    """The page of formats names every format once, in a row that has its readers and its writers."""
    page = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    table = page.split("| file | format | read by | written by |\n")[1].partition("\n\n")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines()[1:]]
    named = [(name, cells) for cells in rows for name in re.findall(r"`([^`]+)`", cells[1])]
    assert sorted(name for name, _ in named) == sorted(each.name for each in FORMATS)
    by_name = {each.name: each for each in FORMATS}
    for name, (_, _, readers, writers) in named:
        assert readers.strip() or not by_name[name].load, name
        assert writers.strip() or not by_name[name].dump, name
    functions = re.findall(r"`(taccl\.[\w.]+)`", table)
    assert len(functions) > 10 and all(callable(resolve_name(each)) for each in functions)


#: Functions that serve several formats, or a part of a file: a schedule as a dictionary, the nodes of a trace.
PARTS = {
    "native:dump_schedule", "native:load_schedule", "saved:load", "registry:load_topology",
    "astra.chakra_nodes:load_trace_nodes",
}  # fmt: skip


def test_every_reader_and_writer_is_in_the_table_of_formats():
    """Each public function ``load`` or ``dump`` of the package of formats serves a format."""
    served = {name for each in FORMATS for name in (each.load, each.dump)}
    package, found = ROOT / "taccl" / "formats", set()
    for path in package.rglob("*.py"):
        module = ".".join(path.relative_to(package).with_suffix("").parts)
        functions = re.findall(r"^def ((?:load|dump)(?:_\w+)?)\(", path.read_text(), re.MULTILINE)
        found |= {f"{module}:{name}" for name in functions}
    assert {f"taccl.formats.{each}" for each in found - PARTS} <= served and found >= PARTS


def _value(cell, values):
    """Value of a table cell such as ``2(n - 1) / n`` or ``n k``."""
    numerator, _, denominator = cell.strip().partition("/")

    def product(text):
        total = 1
        for factor in re.findall(r"\([ns] - [1l]\)|\d+|[nkms]²?", text):
            if factor.startswith("("):
                total *= values["n"] - 1 if factor == "(n - 1)" else values["s"] - values["l"]
            elif factor.isdigit():
                total *= int(factor)
            else:
                total *= values[factor[0]] ** (2 if factor.endswith("²") else 1)
        return total

    return product(numerator) / (product(denominator) if denominator else 1)


def test_kinds_of_bounds_are_current():
    """The table of how good a schedule is has a row of seven cells for every kind that a witness proves, and no
    other."""
    rows = re.findall(
        r"^\| `([a-z ]+)` \|(?:[^|]*\|){6}$",
        (ROOT / "docs" / "how-good.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert set(rows) == set(kinds_of_bounds())


def test_overview_of_bounds_is_current():
    """The overview of the formulation has a row for each of these kinds."""
    formulation = (ROOT / "docs" / "formulation.md").read_text(encoding="utf-8")
    rows = formulation.partition("Lower bounds, by the `kind`")[2].partition("\n## ")[0]
    assert not [kind for kind in kinds_of_bounds() if f"| [{kind}](" not in rows]


def test_labels_of_baselines_are_current():
    """The page of pictures lists the label of every baseline."""
    page = (ROOT / "docs" / "plots.md").read_text(encoding="utf-8")
    listed = re.search(r"algorithms that a library chooses from: ([^.]*)\.", page).group(1)
    assert set(re.split(r",\s+", listed)) == {label_of(name) for name in taccl.baselines.BASELINES}


def test_kinds_of_violation_are_current():
    """The table in the concepts names every kind of violation, and no other."""
    from taccl.analysis.verification.findings import KINDS

    _, _, section = (
        (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8").partition("the verifier checks")
    )
    section = section.partition("\n## ")[0]
    assert tuple(re.findall(r"^\| `([\w-]+)` \|", section, re.MULTILINE)) == KINDS


def test_folders_of_the_tree_are_current():
    """The tree in the architecture names every folder of the package with modules, by path or by name."""
    tree = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").partition("## The tree")[2]
    tree = tree.partition("\n## ")[0]
    folders = {path.parent.name for path in (ROOT / "taccl").rglob("__init__.py")}
    assert [name for name in sorted(folders) if not re.search(rf"\b{name}\b", tree)] == []
    named = set(re.findall(r"^ +(\w+)/ ", tree, re.MULTILINE))
    assert named and named <= folders


def test_tree_is_current():
    """The list of modules names every module of the package, and no other."""
    tree = next(
        block.content for block in blocks_of(ROOT / "docs" / "modules.md") if "errors.py" in block.content
    )
    named = set()
    folders = {}
    for line in tree.splitlines()[1:]:
        words = line.split()
        indent = len(line) - len(line.lstrip())
        if indent == 0:
            break
        folder = folders.get(indent, "") if indent > 2 else ""
        if words[0].endswith("/"):
            folders[indent + 2] = folder + words[0]
            continue
        named |= {
            folder + word for word in words if word.endswith(".py") and word != "make_sketch_reference.py"
        }
    package = ROOT / "taccl"
    found = {path.relative_to(package).as_posix() for path in package.rglob("*.py")}
    assert named == {path for path in found if path == "__init__.py" or not path.endswith("__init__.py")}
