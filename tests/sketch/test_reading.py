"""Text of small files, TOML and JSON."""

from __future__ import annotations

import time
from decimal import Decimal

import pytest

from taccl.errors import FormatError
from taccl.sketch.reading import MAX_FILE_BYTES, parse_json, parse_toml, read_text


def test_missing_file(tmp_path):
    """A missing file is named."""
    with pytest.raises(FormatError, match="none.toml: found no such file"):
        read_text(tmp_path / "none.toml")


def test_directory(tmp_path):
    """A directory is not a file."""
    with pytest.raises(FormatError, match="found a directory"):
        read_text(tmp_path)


@pytest.mark.parametrize("content", [b"", b" \n"])
def test_empty_file(tmp_path, content):
    """An empty file is refused, blank or not."""
    path = tmp_path / "empty.toml"
    path.write_bytes(content)
    with pytest.raises(FormatError, match="empty file"):
        read_text(path)


@pytest.mark.parametrize("content", [b"\xff\xfd\x00a", b"schema\x00"])
def test_binary_file(tmp_path, content):
    """Bytes that are no text are refused."""
    path = tmp_path / "binary.toml"
    path.write_bytes(content)
    with pytest.raises(FormatError, match="binary data"):
        read_text(path)


@pytest.mark.parametrize("coding", ["utf-16", "utf-16-be"])
def test_utf_16_file(tmp_path, coding):
    """Text as some editors save it: the message says how to save it instead."""
    path = tmp_path / "wide.toml"
    mark = b"\xfe\xff" if coding == "utf-16-be" else b""
    path.write_bytes(mark + "schema = 1".encode(coding))
    with pytest.raises(FormatError, match="save it as UTF-8"):
        read_text(path)


def test_large_file(tmp_path):
    """A file over the limit is refused without being read."""
    path = tmp_path / "large.toml"
    with path.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(FormatError, match="expected at most 16000000"):
        read_text(path)


@pytest.mark.parametrize("text", ["schema = 1\nname = ]", "schema = 1\nname ="])
def test_toml_error_has_line(text):
    """A fault in TOML is placed by file and line."""
    with pytest.raises(FormatError, match=r"a\.toml: found text that is not TOML.*line 2"):
        parse_toml(text, source="a.toml")


def test_json_error_has_line():
    """A fault in JSON is placed by file and line."""
    with pytest.raises(FormatError, match=r"a\.json: found text that is not JSON.*line 2"):
        parse_json('{\n"a" 1}', source="a.json")


def test_json_top_is_object():
    """A JSON list is no sketch."""
    with pytest.raises(FormatError, match="JSON list; expected an object"):
        parse_json("[1]", source="a.json")


def test_json_repeated_key():
    """A key that would silently win over its namesake is refused."""
    with pytest.raises(FormatError, match="'0' twice"):
        parse_json('{"0": 1, "0": 2}', source="a.json")


def test_json_exact_decimals():
    """Decimals keep the digits that were written."""
    assert parse_json('{"a": 0.1}', source="a.json", exact=True)["a"] == Decimal("0.1")


def test_json_repeated_key_among_many():
    """Two hundred thousand keys are gone through once."""
    keys = ", ".join(f'"{key}": 0' for key in range(200_000))
    start = time.perf_counter()
    with pytest.raises(FormatError, match="'last' twice"):
        parse_json(f'{{{keys}, "last": 1, "last": 2}}', source="a.json")
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize("number", ["9" * 5000, "NaN", "-Infinity"])
@pytest.mark.parametrize("exact", [False, True])
def test_json_number_that_cannot_be_read(number, exact):
    """Digits without end, and what JSON does not know."""
    with pytest.raises(FormatError, match="number that cannot be read"):
        parse_json(f'{{"a": {number}}}', source="a.json", exact=exact)
