"""The JSON Schema of a sketch file, for editors."""

from __future__ import annotations

from typing import Any

from taccl.sketch.sketch import Sketch

__all__ = ["sketch_json_schema"]


def sketch_json_schema() -> dict[str, Any]:
    """The JSON Schema of a sketch file, TOML or JSON."""
    schema = Sketch.model_json_schema(by_alias=True)
    for table in (schema, *schema["$defs"].values()):
        # The first line of a docstring says what the table is; the fields describe themselves.
        table["description"] = table["description"].partition("\n")[0]
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "taccl communication sketch"
    schema["required"] = ["schema"]
    schema["properties"]["$schema"] = {"type": "string", "description": "Where this schema is."}
    return schema
