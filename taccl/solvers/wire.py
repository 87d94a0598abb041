"""Messages between a process and its workers: JSON with numpy arrays, in length-prefixed frames.

A frame is two little-endian unsigned 64-bit lengths, then a JSON document, then an uncompressed `.npz`
archive (empty when the message holds no arrays). Pickle is never used, so a frame can hold data only.
"""

from __future__ import annotations

import io
import json
import struct
from typing import Any

import numpy as np

__all__ = ["FrameReader", "encode_message"]

_PREFIX = struct.Struct("<QQ")
_ARRAY_KEY = "__array__"


def encode_message(message: dict[str, Any]) -> bytes:
    """One frame that holds a message.

    Parameters
    ----------
    message : dict
        JSON values and numpy arrays, nested as needed. Tuples arrive as lists, numpy scalars as numbers.

    Raises
    ------
    TypeError
        If a value is neither a JSON value nor an array of numbers, booleans or text, or a key is not text.
    """
    arrays: list[np.ndarray] = []
    document = json.dumps(_take_arrays_out(message, arrays)).encode()
    archive = b""
    if arrays:
        buffer = io.BytesIO()
        np.savez(buffer, *arrays)
        archive = buffer.getvalue()
    return _PREFIX.pack(len(document), len(archive)) + document + archive


class FrameReader:
    """Bytes in as they arrive, whole messages out."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The messages that are complete once `data` has arrived."""
        self._buffer += data
        messages = []
        while len(self._buffer) >= _PREFIX.size:
            document_bytes, archive_bytes = _PREFIX.unpack_from(self._buffer)
            archive_start = _PREFIX.size + document_bytes
            end = archive_start + archive_bytes
            if len(self._buffer) < end:
                break
            document = json.loads(bytes(self._buffer[_PREFIX.size : archive_start]))
            arrays: list[np.ndarray] = []
            if archive_bytes:
                archive = io.BytesIO(bytes(self._buffer[archive_start:end]))
                with np.load(archive, allow_pickle=False) as stored:
                    arrays = [stored[f"arr_{index}"] for index in range(len(stored.files))]
            del self._buffer[:end]
            messages.append(_put_arrays_back(document, arrays))
        return messages


def _take_arrays_out(value: Any, arrays: list[np.ndarray]) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value.item() if isinstance(value, np.generic) else value
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise TypeError("an array of Python objects cannot be sent to a worker; found dtype object")
        arrays.append(value)
        return {_ARRAY_KEY: len(arrays) - 1}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (list, tuple)):
        return [_take_arrays_out(item, arrays) for item in value]
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str) or key == _ARRAY_KEY:
                raise TypeError(f"a message has the key {key!r}; expected text other than {_ARRAY_KEY!r}")
        return {key: _take_arrays_out(item, arrays) for key, item in value.items()}
    raise TypeError(f"a message holds a {type(value).__name__}; expected JSON values and numpy arrays")


def _put_arrays_back(value: Any, arrays: list[np.ndarray]) -> Any:
    if isinstance(value, list):
        return [_put_arrays_back(item, arrays) for item in value]
    if isinstance(value, dict):
        if _ARRAY_KEY in value:
            return arrays[value[_ARRAY_KEY]]
        return {key: _put_arrays_back(item, arrays) for key, item in value.items()}
    return value
