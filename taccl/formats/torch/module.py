"""Write programs as Python modules for PyTorch, which need nothing but PyTorch.

The code around a schedule is that of `taccl.formats.torch.template`, without methods of other collectives.
"""

from __future__ import annotations

import ast
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files

from taccl._internal.arguments import checked
from taccl._internal.names import shown
from taccl._internal.units import format_count
from taccl.formats.torch.places import Local, Place, RankRound, place
from taccl.formats.torch.rounds import METHODS, rounds_of
from taccl.program.program import Program

#: {PyTorch method: its arguments in the module's usage example}.
_EXAMPLES = {
    "all_reduce": "tensor", "reduce": "tensor", "broadcast": "tensor",
    "all_gather_into_tensor": "output, input", "reduce_scatter_tensor": "output, input",
    "all_to_all_single": "output, input", "gather": "tensor, gather_list", "scatter": "tensor, scatter_list",
}  # fmt: skip
_ROUNDS, _END = "ROUNDS: list[list[Round]] = [\n", "# --- end of the schedule ---\n"
#: Number of different tags of modules, so that two schedules on one process group rarely share a tag.
_TAGS = 2**20


@checked
def dump_torch_module(program: Program) -> str:
    """Text of a Python module that executes a program with PyTorch's point-to-point messages.

    Its class ``Collective`` has the methods of `torch.distributed` for the program's collective.

    Raises `ExportError` if PyTorch has no such collective, or the program does not compute it.
    """
    found = rounds_of(program)
    call, method = found.call, METHODS[found.call.name][0]
    template = files("taccl.formats.torch").joinpath("template.py").read_text(encoding="utf-8")
    _, example, rest = template.partition(".all_reduce(tensor)\n\n")
    before, rounds, rest = rest.partition(_ROUNDS)
    lines = [line for rank, each in enumerate(place(found)) for line in _rank_lines(rank, each)]
    table = "\n".join([*lines, "]\n"])
    for name, value in (
        ("NUM_RANKS", program.num_ranks),
        ("PARTS", call.parts),
        ("ROOT: int | None", call.root),
        ("TAG", zlib.crc32(table.encode()) % _TAGS),
    ):
        before = re.sub(rf"^({re.escape(name)}) = .*$", rf"\1 = {value}", before, flags=re.MULTILINE)
    name = shown(program.name, 100).replace("\\", "\\\\").replace('"', '\\"')
    counts = (program.num_ranks, "rank"), (found.num_rounds, "round"), (len(found.arrivals), "message")
    header = (
        f'"""{name}: {", ".join(format_count(*each) for each in counts)}; for PyTorch.\n\n'
        "    collective = Collective()  # or Collective(group)\n"
        f"    collective.{example.replace('all_reduce(tensor)', f'{method}({_EXAMPLES[method]})')[1:]}"
    )
    whole = f"{header}{before}{rounds}{table}{_END}{rest.partition(_END)[2]}"
    return _without_unused(whole, METHODS[call.name])


def _rank_lines(rank: int, rounds: Mapping[int, RankRound]) -> Iterator[str]:
    yield f"    [  # rank {rank}"
    for number, each in sorted(rounds.items()):
        yield f"        Round(  # {number}"
        for name, text in (
            ("stage", _dict({key: str(list(parts)) for key, parts in each.stage.items()})),
            ("send", _dict({peer: f"[{_places(places)}]" for peer, places in each.send.items()})),
            ("receive", _dict({peer: _place(target) for peer, target in each.receive.items()})),
        ):
            if text != "{}":
                yield f"            {name}={text},"
        if each.then:
            yield "            then=["
            yield from (f"                {_local(local)}," for local in each.then)
            yield "            ],"
        yield "        ),"
    yield "    ],"


def _local(local: Local) -> str:
    return f"Local({_place(local.target)}, [{_places(local.operands)}])"


def _places(places: Sequence[Place]) -> str:
    return ", ".join(map(_place, places))


def _place(place: Place) -> str:
    slots = f"{place.first}, {place.num}"
    if isinstance(place.buffer, int):
        return f"Staged({place.buffer}, {slots})"
    return f"{'In' if place.buffer == 'input' else 'Out'}({slots})"


def _dict(entries: Mapping[int, str]) -> str:
    return "{" + ", ".join(f"{key}: {text}" for key, text in entries.items()) + "}"


def _without_unused(text: str, methods: tuple[str, ...]) -> str:
    """Remove public methods other than `methods` from a module, then private code that is left unused."""
    while True:
        tree = ast.parse(text)
        [collective] = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Collective")
        used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        used |= {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
        gone = [
            node
            for node in [*tree.body, *collective.body]
            for name in _names(node)
            if (name.startswith("_") and not name.startswith("__") and name not in used)
            or (node in collective.body and not name.startswith("_") and name not in methods)
        ]
        if not gone:
            return text
        lines = text.splitlines(keepends=True)
        for node in sorted(gone, key=lambda node: -node.lineno):
            first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))]) - 1
            last = node.end_lineno or node.lineno
            if lines[last : last + 1] == ["}  # fmt: skip\n"]:
                last += 1
            while first and lines[first - 1].lstrip().startswith("#"):
                first -= 1
            while first and not lines[first - 1].strip():
                first -= 1
            lines[first:last] = []
        text = "".join(lines)


def _names(node: ast.stmt) -> list[str]:
    """Names that a definition or an assignment binds."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]
