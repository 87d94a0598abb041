"""Network files of ASTRA-sim's analytical backends, and the fabrics they stand for.

That much of YAML is read here: keys at the left margin, each with a list in brackets or line by line. What
blocks, units and occupation mean was read in the backends' sources; see ``docs/formats.md``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from fractions import Fraction
from math import prod
from pathlib import Path

from taccl.arguments import checked_as, quoted
from taccl.errors import FormatError, InputError, TopologyError
from taccl.reading import read_text
from taccl.topology.parts import check_count, check_num_links
from taccl.topology.products import Dimension, Kind, add_dimensions
from taccl.topology.topology import AlphaMeaning, Topology, TopologyBuilder
from taccl.units import exact

MAX_FILE_BYTES = 10**6
_MAX_DIMENSIONS = 16
_BYTES_PER_GB = 2**30
_FIELDS = ("topology", "npus_count", "bandwidth", "latency")
_KINDS: dict[str, Kind] = {"Ring": "ring", "FullyConnected": "fully-connected", "Switch": "switch"}
_KEY = re.compile(r"^([A-Za-z_][\w-]*|'[^']*'|\"[^\"]*\")\s*:(?:\s+(.*))?$")
_ITEM = re.compile(r"""^(?:'([^'\\]*)'|"([^"\\]*)"|([^\s'"&*!|>%@`{}\[\],#:][^'"{}\[\],#:]*))$""")

# A value and the line it is in.
Item = tuple[str, int]
Lists = dict[str, list[Item]]


@checked_as(TopologyError)
def load_astra_network(
    path: str | os.PathLike[str],
    *,
    alpha_meaning: AlphaMeaning = "pipelined",
    ranks_per_node: int | None = None,
) -> Topology:
    """The topology that an ASTRA-sim network file describes; ranks are its NPUs.

    - `alpha_meaning`: Whether a link is free again once the bytes have left, as in ASTRA-sim, or busy during
      its alpha.
    - `ranks_per_node`: Cuts the ranks, in order, into nodes of this many; by default all ranks are in one
      node, since the file knows no nodes.

    Notes
    -----
    A send through a switch takes the latency of two links and its bytes once, as the backend without
    congestion counts. The one with congestion stores and forwards: there the bytes take twice as long.
    """
    where = os.fspath(path)
    lists = _lists(read_text(path, MAX_FILE_BYTES), where)
    dims = _dimensions(lists, where)
    num_ranks = prod(each.size for each in dims)
    num_links = sum(num_ranks * (2 if each.kind == "ring" else each.size - 1) for each in dims)
    try:
        check_num_links(max(num_ranks, num_links), where=f"{where}: npus_count")
    except TopologyError as error:
        raise FormatError(error.message, where=error.where) from None
    per_node = num_ranks if ranks_per_node is None else check_count(ranks_per_node, where="ranks_per_node")
    if num_ranks % per_node:
        raise TopologyError(
            f"found {per_node}; expected a divisor of the {num_ranks} ranks", where="ranks_per_node"
        )
    builder = TopologyBuilder(
        Path(where).stem, [rank // per_node for rank in range(num_ranks)],
        alpha_meaning=alpha_meaning, profile="astra-sim",
    )  # fmt: skip
    add_dimensions(builder, dims, names={kind: block for block, kind in _KINDS.items()})
    return builder.build(notes=_notes(lists, dims, alpha_meaning, ranks_per_node))


def _notes(
    lists: Lists, dims: list[Dimension], alpha_meaning: AlphaMeaning, ranks_per_node: int | None
) -> list[str]:
    notes = ["1 GB/s of the file is 2**30 bytes a second of each link and direction, as ASTRA-sim counts"]
    if alpha_meaning == "pipelined":
        notes.append("a link is free once the bytes have left it, as in ASTRA-sim: alpha is pipelined")
    if any(each.kind == "switch" for each in dims):
        notes.append(
            "a send through a switch takes two latencies and its bytes once; ASTRA-sim's backend with "
            "congestion stores and forwards, and takes the bytes twice"
        )
    if ranks_per_node is None:
        notes.append("the file has no nodes: all ranks are in one (ranks_per_node= cuts them)")
    unread = sorted(set(lists) - set(_FIELDS))
    if unread:
        notes.append("fields that are not read: " + ", ".join(name[:40] for name in unread[:8]))
    return notes


def _dimensions(lists: Lists, where: str) -> list[Dimension]:
    """The dimensions of the network; a switch is two of the file's links away."""
    for name in _FIELDS:
        if name not in lists:
            raise FormatError(
                f"found no {name}; expected topology, npus_count, bandwidth and latency; add it", where=where
            )
        if len(lists[name]) != len(lists["topology"]) or not 0 < len(lists[name]) <= _MAX_DIMENSIONS:
            raise FormatError(
                f"found {len(lists[name])} values for {len(lists['topology'])} dimensions; expected one for "
                f"each of 1 to {_MAX_DIMENSIONS} dimensions; correct the lists",
                where=f"{where}: {name}",
            )
    blocks = f"{', '.join(tuple(_KINDS)[:-1])} or {tuple(_KINDS)[-1]}"
    for name, pattern, expected in (
        ("topology", "|".join(_KINDS), blocks),
        ("npus_count", "0*([2-9]|[1-9][0-9]{1,8})", "a whole number of at least 2"),
    ):
        for text, line in lists[name]:
            if not re.fullmatch(pattern, text):
                raise FormatError(
                    f"found {quoted(text)}; expected {expected}; correct it",
                    where=f"{where}: line {line}: {name}",
                )
    kinds, counts = ([text for text, _ in lists[name]] for name in ("topology", "npus_count"))
    rates, times_ns = ([*_numbers(lists, name, where)] for name in ("bandwidth", "latency"))
    return [
        Dimension.of_link(
            _KINDS[kind], int(count), (2 if kind == "Switch" else 1) * time_ns / 1000,
            Fraction(10**12, _BYTES_PER_GB) / rate,
        )
        for kind, count, rate, time_ns in zip(kinds, counts, rates, times_ns, strict=True)
    ]  # fmt: skip


def _numbers(lists: Lists, name: str, where: str) -> Iterator[Fraction]:
    for text, line in lists[name]:
        place = f"{where}: line {line}: {name}"
        try:
            value = exact(text, where=place)
        except InputError as error:
            raise FormatError(error.message, where=place) from None
        if value == 0 and name == "bandwidth":
            raise FormatError("found 0 GB/s; expected a positive bandwidth; correct it", where=place)
        yield value


def _lists(text: str, where: str) -> Lists:
    raw: Lists = {}
    key = ""
    for number, line in enumerate(text.splitlines(), 1):
        content = re.sub(r"(^|\s)#.*$", "", line).rstrip()
        if not content.strip() or content in ("---", "..."):
            continue
        match = _KEY.match(content)
        if match:
            key = match[1].strip("'\"")
            if key in raw:
                raise FormatError(f"found {key[:40]} twice; remove one", where=f"{where}: line {number}")
            raw[key] = [(match[2] or "", number)]
        elif key and (content[0] in " \t-]"):
            raw[key].append((content, number))
        else:
            raise FormatError(
                f"found {quoted(content)}; expected a field such as `npus_count: [ 8 ]`; correct the line",
                where=f"{where}: line {number}",
            )
    return {key: list(_items(key, each, where)) if key in _FIELDS else [] for key, each in raw.items()}


def _items(key: str, pieces: list[Item], where: str) -> Iterator[Item]:
    """The items of one list: in brackets, or each on a line behind a dash."""
    pieces = [(text.strip(), line) for text, line in pieces if text.strip()]
    place = f"{where}: line {pieces[0][1] if pieces else 1}: {key}"
    if pieces and pieces[0][0].startswith("[") and pieces[-1][0].endswith("]"):
        parts = [(part.strip(), line) for text, line in pieces for part in re.split(r"([\[\],])", text)]
        inner = [(part, line) for part, line in parts if part][1:-1]
        if inner and inner[-1][0] == ",":
            inner.pop()
        values, commas = inner[0::2], inner[1::2]
        good = len(inner) % 2 == 1 and all(text == "," for text, _ in commas)
    else:
        values = [(text[1:].strip(), line) for text, line in pieces if text.startswith("- ")]
        good = len(values) == len(pieces) > 0
    if not good:
        raise FormatError("found no list; expected one such as [ 4, 8 ]; correct it", where=place)
    for text, line in values:
        match = _ITEM.match(text)
        if match is None:
            raise FormatError(
                f"found {quoted(text)}; expected a word or a number; correct it",
                where=f"{where}: line {line}: {key}",
            )
        yield next(group for group in match.groups() if group is not None).strip(), line
