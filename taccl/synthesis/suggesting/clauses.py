"""The clauses of a sketch by name, and the sketch without some of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taccl.sketch.sketch import Internode, Intranode, Merging, Objective, Routing

if TYPE_CHECKING:
    from collections.abc import Collection

    from taccl.sketch.sketch import Sketch

__all__ = ["clause_names", "without_clauses"]

#: Tables whose fields are clauses, and what they are without any.
_TABLES = {
    "intranode": Intranode(), "objective": Objective(), "routing": Routing(), "merging": Merging(),
}  # fmt: skip
#: Of a table that is there; a table that is not there asks for nothing.
_INTERNODE = Internode(crossing="any")


def clause_names(sketch: Sketch) -> tuple[str, ...]:
    """The clauses that a sketch has, as ``"internode.relays"`` or ``"switch[0]"``, in order."""
    names = []
    if sketch.internode is not None:  # which says "direct" unless it says otherwise
        given = {*sketch.internode.model_fields_set, "crossing"}
        names += [f"internode.{field}" for field in Internode.model_fields if field in given]
    names += [f"intranode.{field}" for field in sorted(sketch.intranode.model_fields_set)]
    names += [f"switch[{i}]" for i in range(len(sketch.switch))]
    names += [f"symmetry[{i}]" for i in range(len(sketch.symmetry))]
    for table in ("objective", "routing", "merging"):
        names += [f"{table}.{field}" for field in sorted(getattr(sketch, table).model_fields_set)]
    return tuple(names)


def without_clauses(sketch: Sketch, names: Collection[str]) -> tuple[Sketch, dict[str, str]]:
    """The sketch without some clauses; and of each that is left, its place in that sketch."""
    places = {name: name for name in clause_names(sketch) if name not in names}
    changes: dict[str, Any] = {}
    for table, plain in (*_TABLES.items(), ("internode", _INTERNODE)):
        fields = {name.partition(".")[2] for name in names if name.startswith(f"{table}.")}
        if fields:
            values = {field: getattr(plain, field) for field in fields}
            changes[table] = getattr(sketch, table).model_copy(update=values)
    for table in ("switch", "symmetry"):
        entries = getattr(sketch, table)
        left = [i for i in range(len(entries)) if f"{table}[{i}]" not in names]
        changes[table] = tuple(entries[i] for i in left)
        places.update({f"{table}[{i}]": f"{table}[{place}]" for place, i in enumerate(left)})
    return sketch.model_copy(update=changes), places
