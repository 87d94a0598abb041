"""Validate data from files by pydantic models; errors are one sentence with file and field.

The module also defines field types that models of files share.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Tag, ValidationError

from taccl._internal.arguments import quoted
from taccl._internal.names import did_you_mean
from taccl._internal.units import exact
from taccl.errors import InputError, SketchError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic_core import ErrorDetails

#: {tag of a discriminated union in pydantic's error path: its description}.
UNION_TAGS = {"as-table": "a table", "as-word": "a word", "as-pairs": "a list of pairs"}
#: Parts of pydantic's error paths that name no field of the file: tags, keys, and branches of unions.
_NO_FIELDS = {*UNION_TAGS, "[key]", "int", "list[int]", "constrained-int", "list[constrained-int]"}

Model = TypeVar("Model", bound=BaseModel)
#: Whole number of at least 1.
Positive = Annotated[int, Field(strict=True, ge=1)]
#: Whole number of at least 0.
Index = Annotated[int, Field(strict=True, ge=0)]
#: Exact cost, nonnegative.
Cost = Annotated[Fraction, BeforeValidator(exact)]


class Table(BaseModel):
    """Base class for models of a table in a file; unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Fields that differ from their defaults."""
        known = type(self).model_fields
        for name, value in super().__repr_args__():
            if name not in known or value != known[name].get_default(call_default_factory=True):
                yield name, value


def validated(
    model: type[Model],
    data: object,
    *,
    source: str,
    error: type[InputError] = SketchError,
    rename: Mapping[str, str] | None = None,
    remedy: str = "",
) -> Model:
    """Validate data as an instance of `model`; an error names all wrong fields, or the first and a `remedy`.

    - `rename`: {field: its name in a file of another format}.
    - `remedy`: Advice that replaces the advice on each field.
    """
    try:
        return model.model_validate(data)
    except ValidationError as failure:
        faults = [_fault(model, each) for each in failure.errors(include_url=False)]
    entries = []
    for path, sentence, advice in faults:
        parent, bracket, rest = path.partition("[")
        entries.append(((rename or {}).get(parent, parent) + bracket + rest, f"{sentence}{remedy or advice}"))
    path, sentence = entries[0]
    others = "".join(f"; also {field}: {text}" for field, text in entries[1:])
    if remedy and others:
        others = f" (and {len(entries) - 1} more such errors)"
    raise error(sentence + others, where=": ".join(filter(None, (source, path))) or None)


def _fault(model: type[BaseModel], error: ErrorDetails) -> tuple[str, str, str]:
    """Path of the wrong field, a sentence on the error, and advice."""
    loc = [part for part in error["loc"] if part not in _NO_FIELDS]
    path = ""
    for part in loc:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    kind, value = error["type"], error["input"]
    found = str(value).lower() if isinstance(value, bool) else quoted(value)
    if kind == "missing":
        return path, "found nothing; this field is required", "; add it"
    if kind == "extra_forbidden":
        known = list(_by_name(_model_at(model, loc[:-1])))
        advice = did_you_mean(str(loc[-1]), known) or "; remove it"
        return path, f"found an unknown field; expected one of {', '.join(known)}", advice
    context = error.get("ctx", {})
    cause = context.get("error")
    if isinstance(cause, ValueError):
        return path, cause.message if isinstance(cause, InputError) else str(cause), ""
    expected = error["msg"].removeprefix("Input should be ").removeprefix("Input should ")
    expected = (expected[:1].lower() + expected[1:]).partition(", unable")[0]
    if kind == "union_tag_invalid" or (kind == "literal_error" and "as-word" in error["loc"]):
        expected = " or ".join(_forms(_annotation_at(model, loc)))
    elif kind == "tuple_type" and isinstance(value, dict) and _model_at(model, loc):
        header = ".".join(part for part in loc if isinstance(part, str))
        advice = f"; write [[{header}]] (JSON: [{{...}}])"
        return path, "found one table; expected a list of tables", advice
    elif kind in ("tuple_type", "model_type"):
        expected = "a list" if kind == "tuple_type" else "a table"
    elif kind in ("too_short", "too_long"):
        number = context.get("min_length", context.get("max_length"))
        bound = (
            "" if context.get("field_type") == "Tuple" else "at least " if kind == "too_short" else "at most "
        )
        expected = f"{bound}{number} item{'' if number == 1 else 's'}"
    elif expected.startswith(("greater", "less")):
        expected = f"a number {expected}"
    return path, f"found {found}; expected {expected}", "; correct the value"


def _by_name(model: type[BaseModel]) -> dict[str, Any]:
    """{name in a file: field} of a model."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _annotation_at(model: type[BaseModel], loc: Sequence[int | str]) -> Any:
    """Annotation of the innermost known field on a path; the model itself if there is none."""
    here: Any = model
    for part in loc:
        fields = _by_name(owner) if (owner := _model_in(here)) else {}
        here = fields[part].annotation if part in fields else here
    return here


def _model_at(model: type[BaseModel], loc: Sequence[int | str]) -> Any:
    """Model of the table at a path; None if the field at the path is no table."""
    return _model_in(_annotation_at(model, loc))


def _forms(annotation: Any) -> list[str]:
    """Descriptions of the forms that a field may have, from the tags of its union; its words are quoted."""
    parts = typing.get_args(annotation)
    tag = next((part.tag for part in parts if isinstance(part, Tag)), None)
    if tag == "as-word":
        return [repr(word) for word in typing.get_args(parts[0])]
    return [UNION_TAGS[tag]] if tag else [form for part in parts for form in _forms(part)]


def _model_in(annotation: Any) -> Any:
    """Model class inside an annotation; None if there is none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = (_model_in(each) for each in typing.get_args(annotation))
    return next((each for each in inner if each is not None), None)
