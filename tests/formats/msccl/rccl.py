"""Algorithm files as RCCL 2.21.5 reads and selects them (``msccl_parser.cc``, ``msccl_lifecycle.cc``).

A separate reader by that library's rules: required attributes, known names, limits, and the file of a folder
that a call gets. It is independent of taccl.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

MAX_STEPS, MAX_THREADBLOCKS, MAX_PER_CHANNEL, MAX_COUNT = 64, 64, 32, 72
MAX_NODES, MAX_SUBS, MAX_ATTRIBUTES, MAX_TEXT, MAX_CHANNELS = 4096, 1024, 16, 255, 128
#: {collective: size of a call in multiples of a rank's number of elements}; 0 stands for the number of ranks.
MULTIPLIERS = {
    "reduce": 1, "broadcast": 1, "allreduce": 1, "send": 1, "recv": 1, "gather": 1, "scatter": 1, "alltoallv": 1,
    "reducescatter": 0, "allgather": 0, "alltoall": 0,
}  # fmt: skip
TYPES = ("s", "r", "rcs", "rrs", "rrc", "rrcs", "cpy", "re", "nop")


class Algorithm(NamedTuple):
    """Properties of a file by which the library selects it for a call."""

    collective: str
    num_ranks: int
    num_chunks: int
    num_channels: int
    least: int
    most: int
    in_place: bool
    out_of_place: bool


class Node:
    """An XML element with its attributes and children."""

    def __init__(self, name: str, attributes: dict[str, str]) -> None:
        self.name, self.attributes, self.inside = name, attributes, list[Node]()

    def number(self, name: str) -> int:
        """Value of a required attribute."""
        return int(self.attributes[name], 0)


def parse(text: str) -> Node:
    """Parse the root element: one space before each attribute, double quotes, no tabs."""
    stack = [Node("", {})]
    for tag in re.finditer(
        r"<!--.*?-->|<(/?)([^ >/]+)((?: [^ =]+=\"[^\"]*\")*)(/?)>|[^ \n\r<]|<", text, re.DOTALL
    ):
        if tag[0].startswith("<!--"):
            continue
        assert tag[2], f"unreadable: {text[tag.start() : tag.start() + 60]!r}"
        if tag[1]:
            assert stack.pop().name == tag[2]
            continue
        attributes = dict(re.findall(r' ([^ =]+)="([^"]*)"', tag[3]))
        assert len(attributes) <= MAX_ATTRIBUTES
        assert all(len(each) <= MAX_TEXT for pair in attributes.items() for each in pair)
        node = Node(tag[2], attributes)
        stack[-1].inside.append(node)
        assert len(stack[-1].inside) <= MAX_SUBS
        if not tag[4]:
            stack.append(node)
    [algo] = stack.pop().inside
    assert not stack
    assert algo.name == "algo"
    return algo


def load(path: Path) -> Algorithm:
    """Read a file and check the program of every rank by the library's rules."""
    return _algorithm(path.read_text())


@cache  # `choose` reads all files of a folder for each call
def _algorithm(text: str) -> Algorithm:
    algo = parse(text)
    collective = algo.attributes["coll"]
    assert collective in MULTIPLIERS
    assert algo.attributes["proto"] in ("Simple", "LL", "LL128")
    assert algo.number("nchannels") <= MAX_CHANNELS
    ranks = {gpu.number("id"): gpu for gpu in algo.inside}
    assert sorted(ranks) == list(range(algo.number("ngpus")))
    for rank, gpu in ranks.items():
        _check_rank(rank, gpu, len(ranks))
    flags = (bool(algo.number(name)) for name in ("inplace", "outofplace"))
    numbers = (algo.number(name) for name in ("ngpus", "nchunksperloop", "nchannels", "minBytes", "maxBytes"))
    return Algorithm(collective, *numbers, *flags)


def _check_rank(rank: int, gpu: Node, num_nodes: int) -> None:
    lengths = {each[0]: gpu.number(each) for each in ("i_chunks", "o_chunks", "s_chunks")}
    assert [tb.number("id") for tb in gpu.inside] == list(range(len(gpu.inside)))
    assert len(gpu.inside) <= MAX_THREADBLOCKS
    assert num_nodes + sum(1 + len(tb.inside) for tb in gpu.inside) < MAX_NODES
    ends: dict[tuple[int, str], int] = {}
    for tb in gpu.inside:
        channel, pending = tb.number("chan"), 0
        for side in ("send", "recv"):
            assert tb.number(side) not in (rank, -2)
            if tb.number(side) >= 0:
                ends[channel, side] = ends.get((channel, side), 0) + 1
        for s, step in enumerate(tb.inside):
            kind, waits = step.attributes["type"], step.number("depid") >= 0
            assert (step.number("s"), kind in TYPES) == (s, True)
            assert s < MAX_STEPS
            assert step.number("hasdep") in (0, 1)
            assert step.number("deps") >= -1
            pending += waits
            if kind == "nop":
                continue
            assert waits or not pending, "the last of several dependencies is on the step that waits"
            pending = 0
            assert 0 <= step.number("cnt") < MAX_COUNT
            assert "s" not in kind or tb.number("send") >= 0
            assert kind[0] != "r" or kind == "re" or tb.number("recv") >= 0
            for side in ("src", "dst"):
                assert -1 <= step.number(f"{side}off") < lengths[step.attributes[f"{side}buf"]] or kind in (
                    "s",
                    "r",
                    "rrc",
                )
    assert all(number <= MAX_PER_CHANNEL for number in ends.values())


def choose(folder: Path, collective: str, num_ranks: int, count: int, width: int, *, in_place: bool) -> str:
    """File of a folder that a call uses, the first one that applies; empty if none does."""
    for path in sorted(folder.iterdir()):
        known = load(path)
        multiplier = MULTIPLIERS[known.collective] or known.num_ranks
        size = count * width * multiplier
        if (
            (known.collective, known.num_ranks) == (collective, num_ranks)
            and count * multiplier % known.num_chunks == 0
            and size >= known.least
            and (known.most == 0 or size <= known.most)
            and (known.in_place if in_place else known.out_of_place)
        ):
            return path.name
    return ""
