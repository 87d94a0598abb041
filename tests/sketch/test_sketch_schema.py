"""The published JSON Schema."""

import json
import tomllib
from pathlib import Path

import pytest

from taccl.sketch.library import shipped_sketches
from taccl.sketch.sketch import sketch_json_schema

SKETCHES = Path(__file__).resolve().parents[2] / "sketches"


def test_published_schema_is_current():
    """The published schema file equals the one generated from the models."""
    assert json.loads((SKETCHES / "sketch.schema.json").read_text()) == sketch_json_schema()


@pytest.mark.parametrize("name", shipped_sketches())
def test_shipped_sketch_fits_the_schema(name):
    """Shipped sketches validate against the schema."""
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema comes with the test extra")
    content = tomllib.loads((SKETCHES / f"{name}.toml").read_text())
    jsonschema.validate(content, sketch_json_schema())


def test_schema_refuses_unknown_fields():
    """The schema refuses unknown fields."""
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema comes with the test extra")
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"schema": 1, "node": 2}, sketch_json_schema())
