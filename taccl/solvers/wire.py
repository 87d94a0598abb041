"""Messages between a process and its workers: JSON, followed by an `.npz` archive of numpy arrays.

Pickle is not used, so that a message cannot run code.
"""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np

_ARRAY_KEY = "__array__"
_LENGTH_BYTES = 8


def encode(message: dict[str, Any]) -> bytes:
    """Encode a message as bytes: length of the JSON document, the document, and the archive of arrays.

    - `message`: JSON values and numpy arrays, nested as needed. Tuples arrive as lists, numpy scalars as
      numbers.

    Raises `TypeError` for any other value, such as an array of objects.
    """
    arrays: list[np.ndarray] = []

    def plain(value: Any) -> Any:
        if isinstance(value, np.generic):
            return value.item()
        if not isinstance(value, np.ndarray) or value.dtype.hasobject:
            raise TypeError(f"found {str(value)[:80]!r} in a message; expected JSON values and numpy arrays")
        arrays.append(value)
        return {_ARRAY_KEY: len(arrays) - 1}

    document = json.dumps(message, default=plain).encode()
    archive = io.BytesIO()
    if arrays:
        np.savez(archive, *arrays)
    return len(document).to_bytes(_LENGTH_BYTES, "little") + document + archive.getvalue()


def decode(data: bytes) -> dict[str, Any]:
    """Decode the bytes that `encode` returned."""
    end = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    arrays: list[np.ndarray] = []
    if end < len(data):
        with np.load(io.BytesIO(data[end:]), allow_pickle=False) as stored:
            arrays = [stored[name] for name in stored.files]

    def put_back(value: dict[str, Any]) -> Any:
        return arrays[value[_ARRAY_KEY]] if _ARRAY_KEY in value else value

    message: dict[str, Any] = json.loads(data[_LENGTH_BYTES:end], object_hook=put_back)
    return message
