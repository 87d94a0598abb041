"""Docstrings of the public API, with sections for parameters."""

import inspect
import re
import types

import pydantic

import taccl

#: Number of parameters from which a function needs a section for them.
_SEVERAL = 3
_HEAD = "Parameters\n----------\n"


def _reached(name, thing):
    """Yield (name, object) of functions, classes and their methods below a public name."""
    if isinstance(thing, types.ModuleType):
        for inner in thing.__all__:
            yield from _reached(f"{name}.{inner}", getattr(thing, inner))
    elif inspect.isclass(thing):
        if not issubclass(thing, (Exception, pydantic.BaseModel)):
            yield name, thing
        for inner, method in vars(thing).items():
            method = getattr(method, "__func__", method)
            if not inner.startswith("_") and inspect.isfunction(method):
                yield f"{name}.{inner}", method
    elif callable(thing):
        yield name, thing


PUBLIC = {path: thing for name in taccl.__all__ for path, thing in _reached(name, getattr(taccl, name))}


def _parameters(thing):
    return [name for name in inspect.signature(thing).parameters if name not in ("self", "cls")]


def test_all_have_a_docstring():
    """Every public object has a docstring."""
    assert not [name for name, thing in PUBLIC.items() if not inspect.getdoc(thing)]


def test_several_parameters_are_explained():
    """Functions and classes with three or more parameters have a section for them."""
    several = [name for name, thing in PUBLIC.items() if len(_parameters(thing)) >= _SEVERAL]
    assert several
    assert not [name for name in several if _HEAD not in inspect.getdoc(PUBLIC[name])]


def test_every_parameter_is_named():
    """The section names every parameter of a function; fields of classes may be left out."""
    missing = []
    for name, thing in PUBLIC.items():
        if not inspect.isclass(thing) and len(_parameters(thing)) >= _SEVERAL:
            _, _, explained = inspect.getdoc(thing).partition(_HEAD)
            missing += [
                f"{name}: {each}" for each in _parameters(thing) if not re.search(rf"\b{each}\b", explained)
            ]
    assert not missing
