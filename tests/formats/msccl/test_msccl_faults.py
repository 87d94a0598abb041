"""Sixty seeded faults in valid MSCCL XML, ten of each kind that deadlocks or corrupts: all are found."""

import random
import re
from functools import cache

import pytest

from taccl.errors import FormatError
from taccl.formats.msccl.xml import dump_msccl_xml, parse_msccl_xml
from taccl.program.interpret import interpret
from tests.program.examples import program_of

STEP = re.compile(r'<step s="\d+" type="(\w+)".*?/>')


@cache
def texts():
    """Valid files: copies and sums, in place and out of place, relays through scratch, several channels."""
    return [
        dump_msccl_xml(program_of(name, topology, chunks_per_rank=2, **options))
        for name, topology, options in (
            ("allgather", "ring:5", {}),
            ("allgather", "mesh:2x3", {"in_place": True, "channels": "round-robin", "num_channels": 2}),
            ("alltoall", "ring:5", {}),
            ("allreduce", "ring:4", {"in_place": True}),
            ("reduce-scatter", "mesh:2x3", {"threadblocks": "per-peer"}),
        )
    ]


def steps(text, *types, holding=""):
    """Steps of the given types whose lines contain a text."""
    return [m for m in STEP.finditer(text) if m.group(1) in types and holding in m.group()]


def replaced(text, step, new):
    return text[: step.start()] + new + text[step.end() :]


def drop_send(text, chance):
    step = chance.choice(steps(text, "s"))
    return replaced(text, step, step.group().replace('type="s"', 'type="nop"'))


def swap_receives(text, chance):
    """Exchange the offsets of two consecutive receives of a threadblock."""
    found = steps(text, "r", "rrc")
    pairs = [
        (a, b)
        for a, b in zip(found, found[1:], strict=False)
        if "</tb>" not in text[a.end() : b.start()] and _field(a, "dstoff") != _field(b, "dstoff")
        and _field(a, "dstbuf") == _field(b, "dstbuf")
    ]  # fmt: skip
    a, b = chance.choice(pairs)
    text = replaced(text, b, _set(b.group(), "dstoff", _field(a, "dstoff")))
    return replaced(text, a, _set(a.group(), "dstoff", _field(b, "dstoff")))


def lose_hasdep(text, chance):
    step = chance.choice(steps(text, "r", "rrc", "s", "cpy", holding='hasdep="1"'))
    return replaced(text, step, _set(step.group(), "hasdep", "0"))


def wrong_offset(text, chance):
    """Move a receive in the output buffer by one chunk."""
    found = [m for m in steps(text, "r", "rrc") if _field(m, "dstbuf") == "o"]
    step = chance.choice(found)
    offset = int(_field(step, "dstoff"))
    return replaced(text, step, _set(step.group(), "dstoff", str(offset - 1 if offset else 1)))


def past_the_end(text, chance):
    step = chance.choice(steps(text, "s", "r", "rrc"))
    side = "srcoff" if step.group(1) == "s" else "dstoff"
    return replaced(text, step, _set(step.group(), side, "4000"))


def change_sums(text, chance):
    """Turn a reduction into a plain receive; in a file without reductions, let a step depend on threadblock 128."""
    found = steps(text, "rrc")
    if found:
        step = chance.choice(found)
        return replaced(text, step, step.group().replace('"rrc"', '"r"'))
    step = chance.choice(steps(text, "s", "r", "cpy"))
    return replaced(text, step, _set(_set(step.group(), "depid", "128"), "deps", "0"))


def _field(step, name):
    found = re.search(rf'{name}="([^"]*)"', step.group())
    assert found
    return found.group(1)


def _set(step, name, value):
    return re.sub(rf'{name}="[^"]*"', f'{name}="{value}"', step)


@pytest.mark.slow
def test_the_files_are_valid():
    """The MSCCL XML files are valid before faults are added."""
    for text in texts():
        assert interpret(parse_msccl_xml(text)).ok


@pytest.mark.parametrize(
    "spoil", [drop_send, swap_receives, lose_hasdep, wrong_offset, past_the_end, change_sums]
)
@pytest.mark.parametrize("seed", range(10))
def test_faults_are_caught(spoil, seed):
    """Random faults in a file are found by the reader or by the interpreter."""
    chance = random.Random(seed)
    text = texts()[seed % len(texts())]
    spoiled = spoil(text, chance)
    assert spoiled != text
    try:
        interpretation = interpret(parse_msccl_xml(spoiled))
    except FormatError:
        return
    assert not interpretation.ok
