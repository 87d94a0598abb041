"""The layer rule: imports point strictly down, and names on one line never import each other."""

import ast
import gc
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

import taccl

pytestmark = pytest.mark.slow

PACKAGE = Path(taccl.__file__).parent

#: Layers of imports from bottom to top, one per line, as in docs/architecture.md.
#: Parts on one line import each other only on the two topmost lines: facade and command line.
LINES = (
    (
        "_internal.address_space",
        "_internal.arrays",
        "_internal.garbage",
        "_internal.interrupts",
        "_internal.kernel_context",
        "_internal.kernel_stamp",
        "_internal.moved",
        "_internal.names",
        "_internal.text_kinds",
        "_internal.web_text",
    ),
    ("errors",),
    (
        "_internal.caching",
        "_internal.deadline",
        "_internal.file_kinds",
        "_internal.graph_algorithms",
        "_internal.html",
        "_internal.kernel_cache",
        "_internal.kernel_compiler",
        "_internal.named_tables",
        "_internal.plugins",
        "_internal.units",
    ),
    ("_internal.program_start", "_internal.value_readers"),
    ("_internal.arguments", "_internal.kernels", "_internal.reading"),
    ("_internal.draws", "_internal.validation"),
    ("topology", "problem.chunks", "solvers"),
    ("problem.collective",),
    ("problem.custom_collectives",),
    ("problem.clauses", "problem.collectives", "problem.costs"),
    ("problem.open_links",),
    ("problem.problem",),
    ("problem.byte_matrices", "problem.making"),
    ("problem.alltoallv",),
    ("runtimes",),
    ("sketch", "schedule", "measure"),
    ("analysis", "baselines"),
    ("synthesis", "program"),
    ("aggregation", "formats"),
    ("workload",),
    ("explore", "plot", "runtime"),
    ("placement", "torch"),
    ("__init__", "topologies"),
    ("cli", "__main__"),
)
LINE_OF_PART = {part: index for index, line in enumerate(LINES) for part in line}
TOP = len(LINES) - 1
FILES = sorted(PACKAGE.rglob("*.py"))


def part_of(module):
    """The part of taccl that a dotted module name belongs to; ``__init__`` for taccl itself.

    The modules of `_internal` and of `problem` stand on lines of their own.
    """
    pieces = module.split(".")
    apart = len(pieces) > 2 and pieces[1] in ("_internal", "problem")
    return ".".join(pieces[1:3]) if apart else pieces[1] if len(pieces) > 1 else "__init__"


@cache
def tree_of(path):
    """Syntax tree of a file, parsed once for all tests.

    Garbage collections during the parsing would take twice as long as the parsing itself.
    """
    gc.disable()
    try:
        return ast.parse(path.read_text(), str(path))
    finally:
        gc.enable()


@cache
def statements_of(path):
    """All statements of a file, also inside functions; without expressions, which take most of the time."""
    found = [tree_of(path)]
    for node in found:
        for part in ("body", "orelse", "handlers", "finalbody", "cases"):
            found += getattr(node, part, ())
    return found


def imported_parts(path):
    """Parts of taccl that a file imports, also inside functions and for type checkers only."""
    parts = set()
    for node in statements_of(path):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path.name}: relative import in line {node.lineno}; write it in full"
            names = [node.module or ""]
            if node.module == "taccl":
                names = [f"taccl.{a.name}" if a.name in LINE_OF_PART else "taccl" for a in node.names]
            elif node.module in ("taccl._internal", "taccl.problem"):
                names = [f"{node.module}.{a.name}" for a in node.names]
        else:
            continue
        parts |= {part_of(name) for name in names if name.split(".")[0] == "taccl"}
    return parts


def test_imports_point_down():
    """A file imports its own part and parts on lines below its own, and nothing else of taccl."""
    wrong = []
    for path in FILES:
        relative = path.relative_to(PACKAGE)
        own = part_of(".".join(("taccl", *relative.with_suffix("").parts)))
        if own in ("_internal.__init__", "problem.__init__"):
            continue  # a docstring, and names for one release
        assert own in LINE_OF_PART, f"{own} has no line yet: add it to LINES, and to docs/architecture.md"
        line = LINE_OF_PART[own]
        for part in imported_parts(path) - {own}:
            facade = own == "__init__" and part == "topologies"
            together = line == TOP and LINE_OF_PART[part] == TOP
            if not (LINE_OF_PART[part] < line or facade or together):
                wrong.append(f"{relative} imports taccl.{part}")
    assert not wrong


def test_no_imports_go_round():
    """Imports of modules form no cycle, not even inside functions, except for types."""
    modules = {".".join(("taccl", *path.relative_to(PACKAGE).with_suffix("").parts)): path for path in FILES}
    imports = nx.DiGraph()
    for module, path in modules.items():
        for_types = {
            id(inner)
            for node in statements_of(path)
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            for inner in ast.walk(node)
        }
        for node in statements_of(path):
            if isinstance(node, ast.ImportFrom) and id(node) not in for_types:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    imports.add_edge(module, inner if inner in modules else node.module)
    assert not [sorted(each) for each in nx.strongly_connected_components(imports) if len(each) > 1]


def loads_blas(node):
    """True for an import of SciPy other than of ``scipy.sparse`` alone."""
    return (
        isinstance(node, ast.ImportFrom)
        and str(node.module).startswith("scipy.")
        and node.module != "scipy.sparse"
    )


def is_look_at_memory(node):
    """True for a call of `require_address_space`."""
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") == "require_address_space"


def test_blas_is_loaded_after_a_look_at_the_address_space():
    """Functions that import BLAS first call `require_address_space`, as BLAS would hang without memory."""
    wrong = []
    for path in [each for each in FILES if any(map(loads_blas, statements_of(each)))]:
        for node in statements_of(path):
            if not isinstance(node, ast.FunctionDef):
                continue
            lines = [each.lineno for each in ast.walk(node) if loads_blas(each)]
            calls = [each.lineno for each in ast.walk(node) if is_look_at_memory(each)]
            if lines and not (calls and min(calls) < min(lines)):
                wrong.append(f"{path.name}: {node.name}")
    assert not wrong


CERTIFICATES = PACKAGE / "analysis" / "certificates"


#: Names of the evaluation methods of witnesses, with their numbers of arguments.
EVALUATIONS = {("holds", 3), ("proven", 2)}


def names_used(node):
    """Names that a function or class refers to; for the class of a witness only those in its evaluation."""
    if isinstance(node, ast.ClassDef):
        return set().union(*map(names_used, [evaluation(node)] if evaluation(node) else node.body))
    names = [each for each in ast.walk(node) if isinstance(each, ast.Name)]
    local = {each.arg for each in ast.walk(node) if isinstance(each, ast.arg)}
    local |= {each.id for each in names if isinstance(each.ctx, ast.Store)}
    return {each.id for each in names} - local


def evaluation(node):
    """The evaluation method of a witness."""
    for each in node.body if isinstance(node, ast.ClassDef) else ():
        if isinstance(each, ast.FunctionDef) and (each.name, len(each.args.args)) in EVALUATIONS:
            return each
    return None


Place = tuple[str, str]


def names_in_certificates() -> tuple[dict[Place, ast.AST], dict[Place, Place]]:
    """Functions and classes of the certificates by (module, name), and imported names with their source."""
    defined, imported = {}, {}
    for path in CERTIFICATES.rglob("*.py"):
        module = ".".join(("taccl", *path.relative_to(PACKAGE).with_suffix("").parts))
        for node in tree_of(path).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                defined[module, node.name] = node
            elif isinstance(node, ast.ImportFrom):
                imported |= {
                    (module, each.asname or each.name): (node.module, each.name) for each in node.names
                }
    return defined, imported


def used_from(starts: list[Place], *, witnesses: bool) -> dict[Place, Place]:
    """Functions and classes of the certificates reachable from `starts`, each with one that uses it."""
    defined, imported = names_in_certificates()
    queue, seen = list(starts), dict(zip(starts, starts, strict=True))
    for module, name in queue:
        for used in names_used(defined[module, name]):
            found = imported.get((module, used), (module, used))
            if found in defined and found not in seen and (witnesses or not evaluation(defined[found])):
                seen[found] = module, name
                queue.append(found)
    return seen


def test_witnesses_are_evaluated_without_what_found_them():
    """No function serves both an evaluation and a finder, except relaxations of the problem and a job's
    fields."""
    defined, _ = names_in_certificates()
    evaluations = [place for place, node in defined.items() if evaluation(node)]
    assert len(evaluations) >= 10
    evaluated = used_from(evaluations, witnesses=True)
    found = used_from([("taccl.analysis.certificates.bounds", "claims_of")], witnesses=False)
    assert len(found) > 50
    for place in evaluated.keys() & found.keys():
        assert place[0].endswith((".transformed", ".certificate")), (
            f"{place}: {evaluated[place]}, {found[place]}"
        )
    assert not [place for place in evaluated if ".finding." in place[0]]


def test_kernels_take_few_arguments():
    """Kernels take at most eight arguments; named tuples of arrays hold the rest."""
    for path in FILES:
        for node in tree_of(path).body:
            if isinstance(node, ast.FunctionDef):
                marks = {ast.unparse(mark).partition("(")[0] for mark in node.decorator_list}
                if marks & {"compiled", "inner"}:
                    assert len(node.args.args) <= 8, f"{path}: {node.name} takes {len(node.args.args)}"


def test_only_the_command_line_prints():
    """Only modules of the command line call `print`."""
    printing = [
        str(path.relative_to(PACKAGE))
        for path in FILES
        if path.relative_to(PACKAGE).parts[0] != "cli" and "print" in path.read_text()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not printing
