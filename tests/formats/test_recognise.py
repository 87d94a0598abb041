"""Recognition of formats by content, whatever the file's name."""

import json
from pathlib import Path

import pytest

import taccl
from taccl._internal.file_kinds import unquoted
from taccl.errors import FormatError, InputError
from taccl.formats import detection
from taccl.formats.detection import format_of_content
from taccl.formats.registry import foreign_topology, read
from taccl.formats.table import FORMATS

TACCL_SCHEDULE = "taccl-schedule"
UPSTREAM_ALGORITHM = "upstream-algorithm"
NCCL_TOPOLOGY = "nccl-topology"
NVIDIA_SMI = "nvidia-smi"
ASTRA_NETWORK = "astra-sim-network"
FOREIGN = Path(__file__).parents[1] / "data" / "foreign"


def recognise(path):
    return format_of_content(path).name


def _write(tmp_path, text):
    path = tmp_path / "file.txt"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('{"format": "taccl-schedule", "version": 1}', TACCL_SCHEDULE),
        ('\n {\n"format" :"taccl-schedule",\n"version": 1}', TACCL_SCHEDULE),
        ('{"version": 1, "format": "taccl-schedule"}', TACCL_SCHEDULE),
        ('{"sccl_type": "algorithm", "name": "x"}', UPSTREAM_ALGORITHM),
        ('{"name": "x", "sccl_type": "algorithm"}', UPSTREAM_ALGORITHM),
        ('{"sccl_type": "algorithm", "cut sh', UPSTREAM_ALGORITHM),
        ('{"displayTimeUnit": "ns", "traceEvents": []}', "perfetto"),
        ('{"traceEvents": [', "perfetto"),
        ("transfer,chunk,chunk_bytes\n", "csv"),
        ('<?xml version="1.0"?>\n<!-- <algo> -->\n<system version="1">', NCCL_TOPOLOGY),
        ("$ nvidia-smi topo -m\n\t\x1b[4mGPU0\tGPU1\tCPU Affinity\x1b[0m\n", NVIDIA_SMI),
        ("\tGPU0\tGPU1\nGPU0\t X \tSOC\nGPU1\tSOC\t X \n", NVIDIA_SMI),
        ("GPU4,X,NV4\n", NVIDIA_SMI),
        ("# a ring\ntopology: [ Ring ]\nnpus_count: [ 4 ]\n", ASTRA_NETWORK),
    ],
)
def test_format_is_recognised_by_its_mark(tmp_path, text, name):
    """The field or line that identifies a format may be anywhere at the top; text cut off after it is recognised."""
    assert recognise(_write(tmp_path, text)) == name


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"result": {"format": "taccl-schedule"}}', "JSON with fields 'result'"),
        ('{"format": "other"}', "JSON with fields 'format'"),
        ('{"sccl_type": "topology"}', "JSON with fields 'sccl_type'"),
        ("{}", "an empty JSON object"),
        ("<page><body>", "XML with <page> at its top"),
        ("<!-- " * 100_000, "XML without an element"),
        ("<!-- --> " * 100_000 + "<!DOCTYPE x>", "XML without an element"),
        ("<unknown/>", "XML"),
        ("some words", "text"),
        ("GPU0 GPU1", "text of unknown kind"),
        ("[1, 2]", "text of unknown kind"),
        ("schema = 1", "text of unknown kind"),
    ],
)
def test_other_files_are_refused_with_what_is_known(tmp_path, text, found):
    """The error for an unknown file states what was found, and lists the accepted formats."""
    path = _write(tmp_path, text)
    with pytest.raises(FormatError) as caught:
        recognise(path)
    assert found in caught.value.message
    assert all(each.name in caught.value.message for each in FORMATS if each.load)
    assert caught.value.where == str(path)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            '{"nnodes": 2}',
            "found a sketch of the published TACCL tool; expected a schedule, a program, a topology or a workload",
        ),
        ('{"name": "NDv2", "gpus_per_node": 8}', "found a topology of the published TACCL tool"),
        ("# OSU MPI Latency Test v7\n", "found a log of OSU micro-benchmarks"),
    ],
)
def test_files_of_known_kinds_are_named(tmp_path, text, found):
    """For a known kind the message names it and the next step, instead of the list of formats."""
    path = _write(tmp_path, text)
    with pytest.raises(FormatError) as caught:
        recognise(path)
    assert caught.value.message.startswith(found)
    assert str(path) in caught.value.message


@pytest.mark.parametrize(
    "text",
    ["schema = 1\n[node]\ngpus = 8\n", '{"schema": 1, "fabric": "ring:4"}', "schema = 1\n[constants]\n"],
)
def test_every_topology_of_ours_is_recognised(tmp_path, text):
    """Any field that only topologies have identifies them, in TOML and JSON."""
    assert recognise(_write(tmp_path, text)) == "taccl-topology"


@pytest.mark.parametrize(
    ("text", "is_matrix"),
    [
        ("a,b\na,0,5\nb,5,0\n", True),
        ("0,nan\n5,0\n", True),
        ("x,a,b\na,0,far\nb,4,0\n", True),
        ("dear reader,\nthis is a letter\n", False),
        ("first, 2 things\nsecond, 3 more\n", False),
    ],
)
def test_a_matrix_is_distinguished_from_prose(tmp_path, text, is_matrix):
    """Text is recognised as a matrix if a cell of its first two rows is a number or nan."""
    path = _write(tmp_path, text)
    if is_matrix:
        assert recognise(path) == "pair-matrix"
    else:
        with pytest.raises(FormatError, match="text of unknown kind"):
            recognise(path)


@pytest.mark.parametrize(
    "text",
    [
        '{"a": ' + "[" * 100_000,
        '{"a": ' + "9" * 5000 + "}",
        '{"a": NaN}',
        '{"a": 1e99999999999999999999}',
        '{"a": 1, "a": 2}',
        '{"a": ',
        "",
        "\0\0",
    ],
    ids=["nested", "long number", "NaN", "huge exponent", "key twice", "cut short", "empty", "binary"],
)
def test_hostile_files_are_refused(tmp_path, text):
    """Files that no tool writes are refused in one sentence."""
    with pytest.raises(FormatError):
        recognise(_write(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("\tGPU0\tGPU1\nGPU0\t X \tSOC\nGPU1\tSOC\t X \n", NVIDIA_SMI),
        ("GPU4,X,NV4\n", NVIDIA_SMI),
        ("# a ring\ntopology: [ Ring ]\nnpus_count: [ 4 ]\n", ASTRA_NETWORK),
        ('<system version="1">', NCCL_TOPOLOGY),
        ("schema = 1\nranks_per_node = 2\n", None),
        ('{"format": "taccl-schedule"}', None),
        ("some words", None),
    ],
)
def test_topologies_of_other_tools_are_recognised(tmp_path, text, name):
    """`foreign_topology` gives format and reader for topology files of other tools, and None for other files."""
    found = foreign_topology(_write(tmp_path, text))
    assert (found and found[0]) == name
    assert found is None or callable(found[1])


def test_missing_file_is_an_input_error(tmp_path):
    """A missing path and a folder are refused by name."""
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(InputError, match=str(path)):
            recognise(path)


def test_large_file_is_not_parsed_for_its_format(tmp_path, monkeypatch):
    """Above a size limit, only the first field is used to recognise a file."""
    monkeypatch.setattr(detection, "_PARSED_CHARACTERS", 100)
    rest = {"x": "y" * 200}
    assert recognise(_write(tmp_path, json.dumps({"format": "taccl-schedule"} | rest))) == TACCL_SCHEDULE
    with pytest.raises(FormatError, match="of unknown kind"):
        recognise(_write(tmp_path, json.dumps(rest | {"format": "taccl-schedule"})))


#: {launcher or tool: function of a line's number that gives the label before the line}.
LABELS = {
    "mpirun": lambda _: "[1,0]<stdout>:",
    "srun": lambda _: "0: ",
    "pdsh": lambda _: "node-1: ",
    "Docker": lambda _: "worker-1  | ",
    "Kubernetes": lambda number: f"2026-01-02T03:04:05.{number:06}Z stdout F ",
    "patch": lambda _: "+",
    "mail": lambda _: "> ",
    "indentation": lambda _: "    ",
}
#: Files of formats whose readers look at whole lines.
LABELLED = (
    "nccl-topo/nvswitch-topo.xml", "slurm/topology.conf", "slurm/topology.yaml",
    "ibnetdiscover/two-leaves.txt", "astra-sim/switch-4.yml",
)  # fmt: skip


@pytest.mark.filterwarnings("ignore::taccl.errors.AssumptionWarning")
@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("name", LABELLED)
def test_labels_before_every_line_change_nothing(tmp_path, name, label):
    """Labels of launchers, logs and mails before every line of a file are ignored."""
    plain = FOREIGN / name
    path = tmp_path / plain.name
    lines = plain.read_text().splitlines()
    path.write_text("".join(f"{LABELS[label](number)}{line}\n" for number, line in enumerate(lines)))
    assert read(path).links == read(plain).links


def test_a_label_of_some_lines_is_text(tmp_path):
    """Words with a colon that begin some lines of a file, or fewer than three, are no label."""
    for text in ("a: 1\na: 2\nb: 3\n", "a: 1\na: 2\n"):
        assert unquoted(text) == text


def test_a_prompt_of_a_shell_is_no_switch(tmp_path):
    """The command above the output of `scontrol show topology`, and the prompt below, are ignored."""
    path = tmp_path / "topology.txt"
    lines = [
        "[root@head ~]# scontrol show topology",
        "SwitchName=s0 Level=0 Nodes=a[0-1]",
        "SwitchName=s1 Level=0 Nodes=a[2-3]",
        "[root@head ~]#",
    ]
    path.write_text("\n".join(lines))
    assert taccl.topologies.load(path).num_ranks == 4
