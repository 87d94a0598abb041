"""Write programs as MSCCL XML, which MSCCL (a fork of NCCL), the MSCCL executor and RCCL run.

The runtime of the published TACCL tool also reads the format. Files follow the runtimes' parsers and kernels,
which are stricter than XML. Limits of the format are checked before a file is written. A step of a file can
wait for one other step only; for each further dependency, a step that only waits precedes it. The reader
enforces the same rules: see `taccl.formats.msccl.reading`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import accumulate

from taccl._internal.arguments import Bytes, Natural, checked
from taccl.errors import ExportError, LossyConversionWarning, warn
from taccl.formats.msccl.reading import TYPES, load_msccl_xml, parse_msccl_xml
from taccl.formats.program_kind import ProgramKind, kind_of, sizes_of, warn_of_split
from taccl.program.checks import traffic
from taccl.program.program import Program, RankProgram, Slot, Step, StepAddress
from taccl.program.runtimes import MAX_NAME, excesses
from taccl.program.split import split_threadblocks, weight
from taccl.runtimes.registry import runtime_named
from taccl.runtimes.runtime import Runtime

__all__ = ["dump_msccl_xml", "load_msccl_xml", "parse_msccl_xml"]

#: {step: slot of the step at the other end of its queue, or None if that step names no slot}.
Mirrored = dict[StepAddress, Slot | None]

_TYPE_OF = {operation: kind for kind, operation in TYPES.items()}
_NOP = Step("nop")


@checked
def dump_msccl_xml(
    program: Program,
    *,
    min_bytes: Bytes | Natural | None = None,
    max_bytes: Bytes | Natural | None = None,
    split: bool | None = None,
    name: str = "",
    runtime: str = "msccl",
) -> str:
    """Text of the MSCCL XML file for a program.

    - `min_bytes`, `max_bytes`: Message sizes for which the runtime uses the program. MSCCL excludes
      ``max_bytes`` itself; RCCL and the MSCCL executor include it. Default: half to twice the size of a
      lowered schedule, and up to 128 MiB for other programs. The runtime allocates scratch memory for
      ``max_bytes``.
    - `split`: True to split a threadblock with too many steps into several that run one after another, each
      with its own channel (`taccl.program.split`). Default: split if needed, with a warning.
    - `name`: Name of the program in the file, by default the program's. Characters other than letters,
      digits, ``_``, ``.`` and ``-`` become ``-``.
    - `runtime`: Runtime that reads the file, one of `taccl.runtimes`; its limits and names apply.
    """
    reader = runtime_named(runtime, xml=True)
    min_bytes, max_bytes = sizes_of(program, min_bytes, max_bytes, otherwise=2**27)
    kind = _kind_for(program, reader)
    if split is not False:
        whole, program = program, split_threadblocks(program, max_steps=reader.max_steps)
        if split is None and program is not whole:
            warn_of_split(
                f"MSCCL XML for {reader.title} holds at most {reader.max_steps} steps per threadblock"
            )
    _check_limits(program, reader)
    sources, targets = _mirrored(program)
    scratch = program.scratch_chunks
    attributes: dict[str, object] = {
        "name": re.sub(r"[^A-Za-z0-9_.-]+", "-", name or program.name)[:MAX_NAME],
        "proto": program.protocol,
        "nchannels": program.num_channels,
        "nchunksperloop": kind.size,
        "ngpus": program.num_ranks,
        "coll": reader.renamed.get(kind.name, kind.name),
        "inplace": int(program.in_place),
        "outofplace": int(not program.in_place),
        "minBytes": min_bytes,
        "maxBytes": max_bytes,
    }
    if kind.root is not None:
        attributes["root"] = kind.root
        said = f"{unseen_root(kind.name, kind.root)}; use the file only where that is so"
        warn(said, LossyConversionWarning)
    lines = [_tag("algo", attributes)]
    inputs, outputs = kind.buffer_chunks(program.num_ranks)
    for r, rank in enumerate(program.ranks):
        lines.append(
            "  " + _tag("gpu", {"id": r, "i_chunks": inputs, "o_chunks": outputs, "s_chunks": scratch})
        )
        lines += _rank_lines(r, rank, sources, targets)
        lines.append("  </gpu>")
    lines.append("</algo>")
    return "\n".join(lines) + "\n"


def check_msccl_xml(program: Program, reader: Runtime) -> None:
    """Raise `ExportError` if an MSCCL XML file for a runtime cannot hold a program, without a split."""
    _kind_for(program, reader)
    _check_limits(program, reader)


def _kind_for(program: Program, reader: Runtime) -> ProgramKind:
    """Kind of a program's collective; raise `ExportError` if the runtime supports none such."""
    kind = kind_of(program, "MSCCL XML")
    if kind.name == "custom" and not reader.takes_custom:
        raise ExportError(
            f"{reader.title} supports no custom collectives in MSCCL XML; write it for runtime='msccl', "
            "or choose allgather, allreduce, alltoall, broadcast, reduce or reduce_scatter among all ranks"
        )
    return kind


def _check_limits(program: Program, reader: Runtime) -> None:
    for excess in excesses(program, reader):
        raise ExportError(f"MSCCL XML for {reader.title} {excess.message}", remedy=excess.remedy)


def unseen_root(collective: str, root: int) -> str:
    """Text of a warning that runtimes run a program with one root for calls with any root."""
    return f"runtimes of MSCCL XML take every {collective} for one with root {root}"


def _mirrored(program: Program) -> tuple[Mirrored, Mirrored]:
    """({receiving step: slot that the peer sends from}, {sending step: slot that the peer receives into})."""
    sources: Mirrored = {}
    targets: Mirrored = {}
    sent, received = traffic(program)
    for queue, sends in sent.items():
        for (send, ours), (receive, theirs) in zip(sends, received[queue], strict=False):
            targets[send] = theirs.dst or theirs.src
            sources[receive] = ours.src or ours.dst
    return sources, targets


def _rank_lines(r: int, rank: RankProgram, sources: Mirrored, targets: Mirrored) -> Iterator[str]:
    """Yield XML lines of a rank's threadblocks; steps that only wait precede one that waits for several."""
    # Position of each step in its threadblock, counting the added steps that only wait.
    places = [[end - 1 for end in accumulate(map(weight, tb.steps))] for tb in rank.threadblocks]
    awaited = {each for tb in rank.threadblocks for step in tb.steps for each in step.depends}
    for t, threadblock in enumerate(rank.threadblocks):
        send = -1 if threadblock.send_to is None else threadblock.send_to
        receive = -1 if threadblock.receive_from is None else threadblock.receive_from
        yield f"    {_tag('tb', {'id': t, 'send': send, 'recv': receive, 'chan': threadblock.channel})}"
        for s, (step, place) in enumerate(zip(threadblock.steps, places[t], strict=True)):
            *others, last = [(other, places[other][index]) for other, index in step.depends] or [(-1, -1)]
            for i, wait in enumerate(others, start=place - len(others)):
                yield _step_line(i, _NOP, None, None, wait, hasdep=False)
            address = StepAddress(r, t, s)
            src = step.src or sources.get(address) or step.dst
            dst = step.dst or targets.get(address) or step.src
            yield _step_line(place, step, src, dst, last, hasdep=(t, s) in awaited)
        yield "    </tb>"


def _step_line(
    place: int, step: Step, src: Slot | None, dst: Slot | None, wait: tuple[int, int], *, hasdep: bool
) -> str:
    read, read_at = (src.buffer[0], src.offset) if src else ("i", -1)
    written, written_at = (dst.buffer[0], dst.offset) if dst else ("o", -1)
    count = 0 if step.operation == "nop" else step.count
    tiles = (("needs", step.needs), ("gives", step.gives)) if step.needs or step.gives else ()
    tile_names = "".join(f' {name}="{" ".join(names)}"' for name, names in tiles if names)
    return (
        f'      <step s="{place}" type="{_TYPE_OF[step.operation]}" srcbuf="{read}" srcoff="{read_at}" '
        f'dstbuf="{written}" dstoff="{written_at}" cnt="{count}" depid="{wait[0]}" deps="{wait[1]}" '
        f'hasdep="{int(hasdep)}"{tile_names}/>'
    )


def _tag(name: str, attributes: Mapping[str, object]) -> str:
    return f"<{name} " + " ".join(f'{key}="{value}"' for key, value in attributes.items()) + ">"
