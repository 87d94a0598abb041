"""Recognise the kind of a file by its content, and advise on it: a command to use, or a file to give instead.

Rows of `taccl.formats.table` are kinds: the formats that taccl reads or writes. The tables here and in
`text_kinds` have the other kinds: inputs without a format, such as sketches, and outputs of other tools, each
recognised by a line that only the tool prints. `kinds_in` and `kinds_of_text` recognise kinds; `advice_on`
gives the advice.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pkgutil import resolve_name
from textwrap import dedent
from typing import Any

from taccl._internal.names import shown
from taccl._internal.text_kinds import (
    CHAKRA,
    FIT,
    FIT_TABLE,
    HOSTS,
    PICTURED,
    SHOW,
    SLOTS,
    SUPERBENCH,
    SUPERBENCH_METRIC,
    TEXTS,
    TIMES,
    Text,
    unsupported,
)
from taccl._internal.web_text import without_markup

#: {kind: {field at the top of JSON or TOML: its value, or None for any}}; a file of the kind has all fields.
_MARKS: dict[str, dict[str, str | None]] = {
    "plan": {"format": "taccl-plan"},
    "trace of PyTorch's profiler": {"traceEvents": None, "schemaVersion": None},
    "execution trace of PyTorch": {"schema": None, "pid": None, "nodes": None},
    "record of PyTorch's flight recorder": {"entries": None, "pg_config": None},
    "Chakra trace in JSON": {"workload_graph": None},
    "placement": {"before_us": None, "after_us": None},
    "upstream sketch": {"nnodes": None},
    "upstream topology": {"gpus_per_node": None},
    "profile": {"machine": None, "source": None, "constants": None},
    "report of `taccl run --json`": dict.fromkeys(("collective", "size_bytes", "times", "num_ranks")),
    "output of nvbandwidth in JSON": {"nvbandwidth": None},
    "output of nccl-tests in JSON": {"results": None, "average_bus_bandwidth": None},
    "output of perftest in JSON": {"test_info": None, "results": None},
    "input of TE-CCL": {"TopologyParams": None, "InstanceParams": None},
    "schedule of TE-CCL": {"1-Epoch_Duration": None, "4-Collective_Finish_Time": None},
    "output of iperf3 in JSON": {"start": None, "intervals": None, "end": None},
    "list of AWS instances with their network nodes": {"Instances": None},
    "output of ncclras in JSON": {"nccl_version": None, "communicators": None},
    "system file of ASTRA-sim": {"scheduling-policy": None},
    "logical topology of ASTRA-sim": {"logical-dims": None},
    "memory file of ASTRA-sim": {"memory-type": None},
    "notebook of Jupyter": {"cells": None, "nbformat": None},
    "rank table of HCCL": {"server_count": None, "server_list": None},
    "network of ASTRA-sim's first version": {"topologies-per-dim": None},
    "answer of a verb with --json": {"finish_us": None, "digest": None},
    "graph of networkx in JSON": {"directed": None, "multigraph": None, "nodes": None},
}
#: {kind: top-level fields}; a file that has any of the fields is of the kind.
_FIELDS = {
    "topology": {
        "node", "nics", "link", "resource", "ranks_per_node", "rails", "network", "bandwidth_gb_per_s",
        "fabric", "alpha_meaning", "alpha_us", "launch_us", "nvls", "assumed",
    },
    "sketch": {
        "$schema", "chunks", "internode", "intranode", "symmetry", "objective", "routing", "merging", "group",
    },
    "file of SCCL or msccl-tools": {"msccl_type"},
}  # fmt: skip

#: Number of leading characters of a text in which patterns are searched.
_HEAD_CHARACTERS = 1 << 16
#: Min number of escaped tabs in a text without tabs that stand for tabs; a path on Windows has fewer.
_FEWEST_TABS = 8
#: Quote prefixes (``>``), code fences and colours to remove; line breaks stay, to keep line numbers right.
_QUOTES = re.compile(r"^[^\S\n]*(>[^\S\n]?)+|^[^\S\n]*```.*$|\x1b\[[0-9;]*m", re.MULTILINE)


#: Label that launchers and tools put before every line: that of a rank or host (mpirun, srun, pdsh, Docker),
#: a plus sign of a patch, or the time and stream of a container's log (second group).
_LABEL = re.compile(
    r"(\[\d+(?:,\d+)?\](?:<std(?:out|err)>)?: ?|\d{1,5}: |[A-Za-z][\w.-]{0,62}(?:: | +\| )|\+(?=[^+]))"
    r"|(\d{4}-\d\d-\d\dT[\d:.]{8,18}(?:Z|[+-]\d\d:\d\d) (?:std(?:out|err) [FP] )?)"
)
#: Min number of lines with a label that show that it is one.
_FEWEST_LABELS = 3

#: {kind: advice} of kinds recognised by fields.
_ADVICE = {
    "plan": "`taccl verify {file}` checks the files that it lists",
    "file of SCCL or msccl-tools": unsupported("give the MSCCL XML that `msccl solve ncclize` writes of it"),
    "trace of PyTorch's profiler": unsupported(
        f"taccl.workload.from_chakra reads Chakra traces of it; {TIMES}"
    ),
    "execution trace of PyTorch": unsupported(
        "taccl.workload.from_chakra reads the Chakra trace that chakra_converter makes of it"
    ),
    "record of PyTorch's flight recorder": unsupported(TIMES),
    "Chakra trace in JSON": CHAKRA,
    "notebook of Jupyter": unsupported("run it, and save it with the output of its cells, which is read"),
    "rank table of HCCL": unsupported(SLOTS),
    "placement": "`taccl reorder {file} --verify` measures its gain",
    "upstream sketch": SHOW,
    "upstream topology": SHOW,
    "profile": "`taccl show MACHINE --profile {file}` reads it, with the machine that it names",
    "report of `taccl run --json`": FIT,
    "output of nvbandwidth in JSON": SHOW,
    "output of nccl-tests in JSON": FIT,
    "output of perftest in JSON": unsupported("give the table that it prints without --out_json"),
    "input of TE-CCL": unsupported("describe the machine in a topology file, as the page on TE-CCL shows"),
    "schedule of TE-CCL": unsupported("give the MSCCL XML that its lowering writes from it"),
    "output of iperf3 in JSON": unsupported(HOSTS),
    "list of AWS instances with their network nodes": unsupported(
        "write its network nodes as switches of a topology.conf, lines such as SwitchName=leaf0 Nodes=n[0-7]"
    ),
    "output of ncclras in JSON": unsupported(f"it counts collectives and names no links; {TIMES}"),
    "system file of ASTRA-sim": unsupported("give the network file in YAML"),
    "logical topology of ASTRA-sim": unsupported("give the network file in YAML"),
    "memory file of ASTRA-sim": unsupported("give the network file in YAML"),
    "network of ASTRA-sim's first version": unsupported("write it in YAML, as the page on formats shows"),
    "answer of a verb with --json": "it has figures but no sends; write the schedule with -o",
    "graph of networkx in JSON": unsupported(
        "taccl.topologies.from_networkx makes a topology of the graph that networkx.node_link_graph reads"
    ),
    "topology": SHOW,
    "sketch": SHOW,
}
#: {kind of binary file: its first bytes}.
_BINARY = {
    "archive": (b"\x1f\x8b", b"PK\x03\x04", b"BZh", b"\xfd7zXZ\0", b"(\xb5/\xfd", b"7z\xbc\xaf"),
    "PDF": (b"%PDF-",),
    "picture": (b"\x89PNG", b"\xff\xd8\xff", b"GIF8"),
    "Chakra trace": (),  # recognised by `_CHAKRA` instead
    "database or profile": (b"SQLite format 3", b"\x89HDF"),
    "table in Parquet": (b"PAR1",),
}
#: First bytes of a Chakra trace: sizes, then a version such as ``0.0.4``, or the word ``schema``.
_CHAKRA = re.compile(rb"[\s\S]{1,7}\n(\x05\d\.\d\.\d|\x06schema)")
_ADVICE |= dict.fromkeys(_BINARY, PICTURED) | {
    "archive": "unpack it, and give the file inside",
    "Chakra trace": CHAKRA,
    "table in Parquet": "if taccl wrote it, give the schedule that it was made of; else save it as text",
}
_ADVICE |= {each.name: each.advice for each in TEXTS}
#: Kinds of files that `taccl fit` reads.
LOGS = tuple(name for name, advice in _ADVICE.items() if advice in (FIT, FIT_TABLE))


def _formats() -> dict[str, Any]:
    """{kind: `FileFormat`} of formats that define their own kind, which none of the tables above has."""
    found: dict[str, Any] = {}
    for each in resolve_name("taccl.formats.table:FORMATS"):
        if each.kind_of_file not in _ADVICE:
            found.setdefault(each.kind_of_file, each)
    return found


def is_shown(kind: str) -> bool:
    """True if `taccl show` reads files of a kind."""
    return _advice_on(kind).startswith("`taccl show {file}`")


def pattern_of(kind: str) -> str:
    """Regular expression that recognises a kind of text, for a search over many lines."""
    return next(each.pattern for each in TEXTS if each.name == kind)


def has_fields(data: Mapping[str, Any], fields: Mapping[str, Any]) -> bool:
    """True if a file has all of the top-level fields, each with its value, or with any value for None."""
    return all(name in data and value in (None, data[name]) for name, value in fields.items())


def kinds_in(data: dict[str, Any]) -> list[str]:
    """Kinds recognised by the top-level fields of a file; empty if unknown."""
    marks = _MARKS | {kind: each.fields for kind, each in _formats().items() if each.fields}
    all_of = [kind for kind, fields in marks.items() if has_fields(data, fields)]
    # Kinds with a field of a certain value come first, then kinds with more fields: they are more specific.
    all_of.sort(key=lambda kind: (not any(marks[kind].values()), -len(marks[kind])))
    if any(re.fullmatch(SUPERBENCH_METRIC, name) for name in data):
        return [SUPERBENCH]
    is_topology = "schema" in data and "constants" in data
    any_of = [kind for kind, fields in _FIELDS.items() if fields & data.keys()]
    return all_of + ["topology"] * is_topology + any_of


def unquoted(text: str) -> str:
    r"""Text without quotation marks of mails, code fences, colours, HTML and common indentation.

    Line breaks become those of Unix, and no-break spaces of web pages become spaces. Tabs and line breaks
    that a program printed as ``\t`` and ``\n`` become such. Line numbers are kept, unless HTML or such a text
    has several lines on one.
    """
    if "\t" not in text and text.count("\\t") >= _FEWEST_TABS:
        text = text.replace("\\n", "\n").replace("\\t", "\t")
    return without_quotes(without_markup(text.replace("\r\n", "\n")))


def without_quotes(text: str) -> str:
    """Text without quotation marks, as of `unquoted`, but with all tags and references: XML needs them."""
    text = text.replace("\r\n", "\n").replace("\u00a0", " ")
    # Patterns over all characters of a long log take a quarter of a second, looks at its lines a tenth of it.
    if "\x1b" in text or any(line.lstrip()[:1] in (">", "`") for line in text.split("\n")):
        text = _QUOTES.sub("", text)
    lines = _unlabelled(text.split("\n"))
    if any(line[:1] not in ("", " ", "\t") for line in lines):
        return "\n".join(line if line.strip(" \t") else "" for line in lines)
    return dedent("\n".join(lines))


def _unlabelled(lines: list[str]) -> list[str]:
    """Lines without the label that all lines with text begin with, if there is one; times may differ."""
    first = next((line for line in lines if line.strip()), "")
    label = _LABEL.match(first)
    if label is None:
        return lines
    ends = [0] * len(lines)
    for place, line in enumerate(lines):
        own = _LABEL.match(line) if label[2] else None
        if own is not None and own[2]:
            ends[place] = own.end()
        elif label[1] and line.startswith(label[1]):
            ends[place] = len(label[1])
        elif line.strip() not in ("", label[0].strip()):
            return lines
    if len(lines) - ends.count(0) < _FEWEST_LABELS:
        return lines
    return [line[end:] if end else "" for line, end in zip(lines, ends, strict=True)]


def kinds_of_text(text: str) -> list[str]:
    """Kind of a text that is neither JSON nor TOML, as a list of one; empty if unknown.

    If no pattern matches, the text is searched again without indentation, as it may be quoted in other text.
    """
    head = unquoted(text[:_HEAD_CHARACTERS])
    own = [
        Text(kind, each.begins, "") for kind, each in _formats().items() if each.begins and not each.fields
    ]
    for lines in (head, re.sub(r"(?m)^[ \t]+", "", head)):
        for each in (*own, *TEXTS):
            if re.search(each.pattern, lines, re.MULTILINE):
                return [each.name]
    return []


def kind_of_bytes(data: bytes) -> str:
    """Kind of a binary file, by its first bytes; empty if unknown."""
    if _CHAKRA.match(data):
        return "Chakra trace"
    return next((kind for kind, begins in _BINARY.items() if data.startswith(begins)), "")


def a(kind: str) -> str:
    """Name of a kind of files with its article, e.g. ``a sketch``."""
    if kind.startswith("upstream "):
        return f"a {kind.removeprefix('upstream ')} of the published TACCL tool"
    if kind.startswith(("output of", "answer of")):
        return f"the {kind}"
    return f"a{'n' * (kind[0].lower() in 'aeiou' or kind.startswith('NCCL'))} {kind}"


def wrong_kind(kind: str, file: str, wanted: str = "") -> str:
    """Message on a file of a wrong kind: what it is, what was expected, and the next step."""
    expected = f"; expected {wanted}" if wanted else ""
    return f"found {a(kind)}{expected}; {advice_on(kind, file)}"


def advice_on(kind: str, file: str) -> str:
    """Next step for a file of a kind, as a sentence."""
    return _advice_on(kind).replace("{file}", shlex.quote(shown(file, 200)))


def _advice_on(kind: str) -> str:
    """Next step for a file of a kind, as a sentence with ``{file}`` in place of its path."""
    if kind in _ADVICE:
        return _ADVICE[kind]
    return _formats()[kind].advice_on_file if kind in _formats() else "check the path"
