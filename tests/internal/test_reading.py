"""Reading of foreign text files, TOML and JSON."""

import json
import os
from decimal import Decimal

import pytest

import taccl
from taccl._internal import reading
from taccl._internal.reading import MAX_FILE_BYTES, parse_json, parse_toml, read_text
from taccl.errors import FormatError, InputError
from taccl.formats.native import load as load_schedule
from taccl.measure.logs import read_log
from taccl.placement.launchers import read_hosts
from taccl.workload.files import load_workload
from tests.effort import cpu_s


@pytest.mark.parametrize(
    ("name", "message"), [("none.toml", "none.toml: there is no such file"), ("", "is a folder")]
)
def test_what_is_no_file_is_refused(tmp_path, name, message):
    """A missing file is named, and a folder is reported as such."""
    with pytest.raises(FormatError, match=message):
        read_text(tmp_path / name)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "the file is empty", id="nothing"),
        pytest.param(b" \n", "the file is empty", id="blanks"),
        pytest.param(b"\xff\xfd\x00a", "binary data", id="no text"),
        pytest.param(b"schema\x00", "binary data", id="a NUL byte"),
        pytest.param("schema = 1".encode("utf-16"), "save it as UTF-8", id="UTF-16"),
        pytest.param(
            b"\xfe\xff" + "schema = 1".encode("utf-16-be"), "save it as UTF-8", id="UTF-16, big endian"
        ),
        pytest.param(b"name = 'caf\xe9'", "not UTF-8 text, at byte 11", id="another coding"),
    ],
)
def test_bytes_that_are_no_text_are_refused(tmp_path, content, message):
    """The error for an empty or binary file says so. For text of another encoding it gives the position and
    advice."""
    path = tmp_path / "file.toml"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=message):
        read_text(path)


def test_byte_order_mark(tmp_path):
    """Files with a byte order mark are read."""
    (tmp_path / "a.toml").write_bytes(b"\xef\xbb\xbfname = 1\n")
    assert read_text(tmp_path / "a.toml") == "name = 1\n"


@pytest.mark.parametrize("line", ["sep=;", "SEP=,\r"])
def test_separator_line_of_spreadsheets_is_empty(tmp_path, line):
    """The first line of a CSV that tells Excel the separator is dropped; line numbers stay."""
    (tmp_path / "a.csv").write_bytes(f"\ufeff{line}\n1;2\n".encode())
    assert read_text(tmp_path / "a.csv") == "\n1;2\n"


@pytest.mark.parametrize("is_whole", [True, False])
def test_the_output_of_a_notebook_is_its_text(tmp_path, is_whole):
    """Text that cells print is read; a notebook without it, or one that is cut off, is read as it is."""
    path = tmp_path / "a.ipynb"
    printed = [
        {"output_type": "stream", "name": "stdout", "text": ["a\tb\n", "1\t2\n"]},
        {"output_type": "execute_result", "data": {"text/plain": "3"}, "metadata": {}},
        {"output_type": "error", "ename": "KeyError", "traceback": []},
    ]
    cells = [{"cell_type": "markdown", "source": ["# b"]}, {"cell_type": "code", "outputs": printed}]
    text = json.dumps({"cells": cells, "metadata": {}, "nbformat": 4}, indent=1)
    path.write_text(text if is_whole else text[:-1])
    assert read_text(path) == ("a\tb\n1\t2\n\n3" if is_whole else text[:-1])
    path.write_text('{"cells": [{"cell_type": "code", "outputs": 3}], "nbformat": 4}')
    assert read_text(path) == path.read_text()


def test_file_of_just_the_limit(tmp_path):
    """A file whose size is exactly the limit is read."""
    (tmp_path / "a").write_text("x" * 10)
    assert read_text(tmp_path / "a", 10) == "x" * 10
    with pytest.raises(FormatError, match="larger than 9B"):
        read_text(tmp_path / "a", 9)


@pytest.mark.parametrize("name", ["a\0b", "n" * 5000, "n/" * 5000, "\ud800", ""])
def test_impossible_path(name):
    """Paths that the system refuses give one short sentence."""
    with pytest.raises(FormatError, match="cannot be read|there is no such file") as caught:
        read_text(name)
    assert len(str(caught.value)) < 600
    assert str(caught.value).isprintable()


def test_pipe_is_not_waited_for(tmp_path):
    """A pipe without a writer is refused without waiting."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FormatError, match="is a pipe or a device"):
        read_text(tmp_path / "pipe")


@pytest.mark.parametrize("name", ["/dev/zero", "/dev/null", "/dev/tty"])
def test_device_is_not_read(name):
    """An endless device is refused."""
    with pytest.raises(FormatError, match="is a pipe or a device|cannot be read"):
        read_text(name)


def test_links_in_a_circle_and_to_nowhere(tmp_path):
    """Symbolic links in a circle or to nothing are refused."""
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    (tmp_path / "nowhere").symlink_to(tmp_path / "none")
    with pytest.raises(FormatError, match="cannot be read"):
        read_text(tmp_path / "circle")
    with pytest.raises(FormatError, match="no such file"):
        read_text(tmp_path / "nowhere")


def test_large_file(tmp_path):
    """A file over the limit is refused without being read."""
    path = tmp_path / "large.toml"
    with path.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(FormatError, match="larger than 16MB"):
        read_text(path)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("schema = 1\nname = ]", "correct that line"),
        ("schema = 1\nname =", "correct that line"),
        ("schema = 1\nsize = 1MB", "put quotes around text"),
        ("schema = 1\nmachine = ndv2  # a", "put quotes around text"),
    ],
)
def test_toml_error_has_line(text, advice):
    """A TOML error is reported with file, line and advice."""
    with pytest.raises(FormatError, match=rf"a\.toml: found text that is not TOML.*line 2.*; {advice}$"):
        parse_toml(text, source="a.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(
            '{\n"a" 1}', r"a\.json: found text that is not JSON.*line 2", id="a fault is placed by line"
        ),
        pytest.param('{"a": [1, "b', "ends too early: save or copy it again", id="a file that was cut off"),
        pytest.param("null", "JSON null; expected an object", id="null is no object"),
        pytest.param("[1]", "JSON list; expected an object", id="a list is no object"),
        pytest.param('{"0": 1, "0": 2}', "'0' twice", id="a key that would win over its namesake"),
        pytest.param(
            '{"a": 1e400}', "number that cannot be read", id="more than 64 bits hold is not infinity"
        ),
        pytest.param('{"a": -1e400}', "number that cannot be read", id="nor less"),
    ],
)
def test_json_that_is_refused(text, message):
    """The error for invalid JSON names the fault and the file."""
    with pytest.raises(FormatError, match=message):
        parse_json(text, source="a.json")


def test_json_exact_decimals():
    """Decimals read from JSON keep their written digits."""
    assert parse_json('{"a": 0.1}', source="a.json", exact=True)["a"] == Decimal("0.1")


@pytest.mark.slow
def test_json_repeated_key_among_many():
    """A repeated key among a hundred thousand is found in near-linear time."""

    def refused(count):
        keys = ", ".join(f'"{key}": 0' for key in range(count))
        with pytest.raises(FormatError, match="'last' twice"):
            parse_json(f'{{{keys}, "last": 1, "last": 2}}', source="a.json")

    assert cpu_s(lambda: refused(96_000)) < 30 * cpu_s(lambda: refused(12_000))


@pytest.mark.parametrize("number", ["9" * 5000, "NaN", "-Infinity"])
@pytest.mark.parametrize("exact", [False, True])
def test_json_number_that_cannot_be_read(number, exact):
    """Endless digits and non-JSON numbers are refused."""
    with pytest.raises(FormatError, match="number that cannot be read"):
        parse_json(f'{{"a": {number}}}', source="a.json", exact=exact)


@pytest.mark.parametrize("depth", [100, 20_000, 2_000_000])
@pytest.mark.parametrize(
    ("before", "inside", "after"),
    [("a = ", "[", "]"), ("a", ".a", " = 1"), ("[a", ".a", "]\nb = 1"), ("'a'", ' . "a"', " = 1")],
)
def test_toml_nested_deeply(before, inside, after, depth):
    """Deeply nested TOML lists and dotted keys are refused on reading."""
    closing = after * depth if inside == "[" else after
    with pytest.raises(FormatError, match="nested too deeply"):
        parse_toml(before + inside * depth + closing, source="a.toml")


@pytest.mark.parametrize("depth", [100, 900, 20_000])
def test_json_nested_deeply(depth):
    """Deeply nested JSON is refused above the same depth, whatever Python's recursion limit is."""
    with pytest.raises(FormatError, match="nested too deeply"):
        parse_json('{"a":' * depth + "1" + "}" * depth, source="a.json")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('{"format": "taccl-schedule"}', "a schedule"),
        ('{"format": "taccl-plan"}', "a plan"),
        ('{"before_us": 2, "after_us": 1}', "a placement"),
        ('{"num_ranks": 2, "operations": []}', "a workload"),
        ("transfer,chunk,\n", "a table of transfers"),
        ("<!-- a -->\n<algo name=''/>", "a program"),
        ('machine = "ndv2"\nsource = "log"\n[constants]', "a profile"),
        ("schema = 1\n[nics]", "a topology"),
        ("schema = 1\n[routing]\nspeed = 1", "a sketch"),
    ],
)
def test_a_file_of_another_kind_is_named(tmp_path, text, kind):
    """A file of another kind is named as that kind; one of the right kind is reported by its fault."""
    path = tmp_path / "file"
    path.write_text(text)
    readers = {
        "a topology": taccl.topologies.load, "a sketch": taccl.load_sketch, "a schedule": load_schedule,
        "a workload": load_workload, "a set of search parameters": taccl.SearchParameters.load,
        "a log of a benchmark": read_log, "a host file": read_hosts,
    }  # fmt: skip
    for wanted, read in readers.items():
        with pytest.raises(InputError) as caught:
            read(path)
        assert caught.value.message.startswith(f"found {kind}; expected {wanted}") == (wanted != kind)


def test_a_sketch_with_a_strange_field_stays_one(tmp_path):
    """A sketch with an unknown field is reported by that field, not as another kind."""
    path = tmp_path / "file.toml"
    path.write_text("schema = 1\nfabric = 'ring:4'\n[routing]")
    with pytest.raises(InputError, match="fabric: found an unknown field"):
        taccl.load_sketch(path)


def test_the_folder_of_a_plan_is_named(tmp_path):
    """The message on the folder of a plan names the plan's index."""
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(FormatError, match=r"is the folder of a plan; give its index, .*plan\.json"):
        read_text(tmp_path)


@pytest.mark.parametrize(("text", "told"), [
    ('{"log":"a \\"b\\"\\n","stream":"stdout"}\n{"log":"\\u003cc\\n","stream":"stdout"}\n', 'a "b"\n<c'),
    ('{"time": 1, "message": "a"}\n\n{"time": 2, "message": "b"}\n', "a\nb"),
    ('  "a\tb\\n",\n  "c"\n', "a\tb\nc"),
    ('host1 | CHANGED => {\n  "msg": [\n    "a\\tb",\n    "c"\n  ]\n}\n', "a\tb\nc"),
    ('stdout_lines:\n  - "a"\n  - "b"\n', "a\nb"), ('{"rc": 0, "stdout": "a\\nb"}', "a\nb"),
    ('hosts = [\n  "a",\n  "b",\n]\n', None), ('{"stdout": "a"}', None),
    ('{"stages": [{"message": "a", "took_s": 1}], "notes": ["b\\nc"]}\n\n', None),
    ('{"log": "a"}\n', None), ('{"log": 3}\n{"log": "a"}\n', None), ('"a"\n\\"\n', None), ('"a","b"\n"c",3\n', None),
    ('"a","b"\n"c","d"\n', None), ('"a", "b",\n"c", "d",\n', None),
])  # fmt: skip
def test_lines_that_a_logger_stored_are_the_text(tmp_path, text, told):
    """If each line is a record of a logger or a string in JSON, these are the text of a file."""
    path = tmp_path / "a.log"
    path.write_text(text)
    assert read_text(path) == (told or text)


def test_depth_is_found_beside_plain_values():
    """A list of numbers with one deep list among them is too deep; numbers alone are not looked at twice."""
    deep: list = []
    for _ in range(reading._MAX_DEPTH):
        deep = [deep]
    reading.check_depth({"a": [1, 2.0, None, "x", True] * 9, "b": [[1], {"c": [1]}]}, where="here")
    with pytest.raises(FormatError, match="here"):
        reading.check_depth({"a": [1, 2, deep, 3]}, where="here")
