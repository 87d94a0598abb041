"""Read and write programs as MSCCL XML, which MSCCL (a fork of NCCL), the MSCCL executor and RCCL run.

The runtime of the published TACCL tool also reads the format. Files follow the runtimes' parsers and kernels,
which are stricter than XML. Limits of the format are checked before a file is written. A step of a file can
wait for one other step only; for each further dependency, a step that only waits precedes it.

The reader checks every rule that can be checked without running the program. The runtime's own parser does
not detect these faults: unknown dependencies, dependencies on steps that do not announce their end
(``hasdep``), and queues shared by two threadblocks. Nor does it detect chunks past the end of a buffer, or
dependencies on threadblocks whose numbers are too high. With these faults the runtime hangs or computes wrong
results. Here each fault raises an error that names the line. Other faults (deadlocks, races, wrong results)
appear only in a run: `taccl.program.interpret` finds them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from taccl._internal.arguments import Bytes, Natural, checked
from taccl._internal.reading import read_text
from taccl.errors import ExportError, FormatError, LossyConversionWarning, warn
from taccl.formats.program_kind import (
    ProgramKind,
    collective_of,
    kind_of,
    sizes_of,
    warn_of_split,
    warn_of_updates,
)
from taccl.formats.xml_elements import XmlElement, parse_xml
from taccl.problem.collective import Collective
from taccl.program.checks import NO_LIMIT, ONE_STEP, check_ends, check_steps, parcels_of
from taccl.program.limits import (
    MAX_ATTRIBUTES,
    MAX_COUNT,
    MAX_FUSED,
    MAX_NAME,
    MAX_VALUE,
    excesses,
    unfit_fusions,
)
from taccl.program.program import (
    OPERATIONS,
    PROTOCOLS,
    Program,
    RankProgram,
    Slot,
    Step,
    StepAddress,
    Threadblock,
)
from taccl.program.split import split_threadblocks, weight
from taccl.runtimes.registry import runtime_named
from taccl.runtimes.runtime import Runtime
from taccl.runtimes.table import RUNTIMES

#: {type of a step in a file: operation in a program}.
TYPES = {
    "s": "send", "r": "receive", "rcs": "receive-send", "rrc": "receive-reduce",
    "rrs": "receive-reduce-send", "rrcs": "receive-reduce-copy-send", "cpy": "copy", "re": "reduce",
    "nop": "nop",
}  # fmt: skip
_BUFFERS = {"i": "input", "o": "output", "s": "scratch"}
_COLLECTIVES = ("allreduce", "allgather", "reduce", "broadcast", "alltoall", "reduce_scatter", "custom")
#: Runtimes that read MSCCL XML.
_READERS = [each for each in RUNTIMES.values() if each.reads_xml]
#: {another runtime's name of a collective: MSCCL's name}.
_ALIASES = {theirs: ours for each in _READERS for ours, theirs in each.renamed.items()}
#: Largest limits among all runtimes, since a file may be meant for any of them.
_LARGEST = Runtime(
    "any", "any runtime",
    max_steps=max(each.max_steps for each in _READERS),
    max_threadblocks=max(each.max_threadblocks for each in _READERS),
    max_channels=max(each.max_channels for each in _READERS),
)  # fmt: skip
_LIMIT_BYTES = 64 * 10**6
_NUMBER = re.compile(r"[+-]?[0-9]{1,20}")


@checked
def load_msccl_xml(
    path: str | os.PathLike[str], *, collective: Collective | None = None, root: int | None = None
) -> Program:
    """Load a program from an MSCCL XML file; see `parse_msccl_xml`.

    - `collective`, `root`: As in `parse_msccl_xml`.
    """
    return parse_msccl_xml(read_text(path, _LIMIT_BYTES), where=str(path), collective=collective, root=root)


def parse_msccl_xml(
    text: str, *, where: str = "MSCCL XML", collective: Collective | None = None, root: int | None = None
) -> Program:
    """Parse the text of an MSCCL XML file as a program.

    - `where`: Name of the file for error messages.
    - `collective`: The collective of a file that does not name one (``coll="custom"``). Without it, the
      outputs are not checked.
    - `root`: Root of a broadcast or reduce. Default: the file's attribute ``root``, else 0.
    """
    _check_spelling(text, where)
    return _File(parse_xml(text, where=where)).program(collective, root)


def _check_spelling(text: str, where: str) -> None:
    """Raise `FormatError` for XML syntax that the MSCCL runtime's parser does not accept."""
    bare = re.sub(r"<!--.*?-->", lambda found: re.sub(r"[^\n]", " ", found.group()), text, flags=re.DOTALL)
    for pattern, found, remedy in (
        (r"<\?", "an XML declaration", "remove it"),
        (r"\t", "a tab", "indent with spaces"),
        (r"<[^<>\n]*\n", "a tag that continues on the next line", "write it on one line"),
        (r"<[^<>]*\s\w+\s*=\s*'", "single quotes", "use double quotes"),
    ):
        match = re.search(pattern, bare)
        if match:
            line = bare.count("\n", 0, match.start()) + 1
            raise FormatError(
                f"found {found}, which the MSCCL runtime does not support; {remedy}",
                where=f"{where}: line {line}",
            )


class _File:
    """Convert a parsed MSCCL XML file to a program; methods raise `FormatError` with the line at fault."""

    def __init__(self, algo: XmlElement) -> None:
        self.algo = algo
        #: {key: XML element}; a key is (rank, threadblock, step), (rank, threadblock), (rank,), or () (all).
        self.elements: dict[tuple[int, ...], XmlElement] = {(): algo}
        if algo.tag != "algo":
            raise algo.error(f"found <{algo.tag}>; expected <algo>; check that it is an MSCCL XML file")
        self.num_ranks = self._number(algo, "ngpus", 1, 2**15)
        self.num_channels = self._number(algo, "nchannels", 1, _LARGEST.max_channels)
        self.size = self._number(algo, "nchunksperloop", 1, 2**20)
        kind = self._choice(algo, "coll", (*_COLLECTIVES, *_ALIASES))
        self.kind = _ALIASES.get(kind, kind)
        self.in_place = bool(self._number(algo, "inplace", 0, 1))

    def program(self, collective: Collective | None, root: int | None) -> Program:
        algo = self.algo
        name = self._text(algo, "name")
        if len(name) > MAX_NAME:
            raise algo.error(f"name has {len(name)} characters; expected at most {MAX_NAME}")
        least = self._number(algo, "minBytes", 0, 2**63 - 1, default=0)
        # In RCCL and the MSCCL executor, maxBytes="0" means no limit; in MSCCL it requires minBytes="0".
        most = self._number(algo, "maxBytes", 0, NO_LIMIT, default=2**27) or NO_LIMIT
        if least > most:
            raise algo.error(f"minBytes is {least} and maxBytes {most}; expected a range")
        gpus = {self._number(gpu, "id", 0, self.num_ranks - 1): gpu for gpu in algo.all("gpu")}
        if len(algo.all("gpu")) != self.num_ranks or len(gpus) != self.num_ranks:
            raise algo.error(
                f"found {len(algo.all('gpu'))} <gpu> elements with {len(gpus)} ids; expected "
                f"{self.num_ranks}, one for each of ngpus"
            )
        purpose = self._collective(collective, root)
        program = Program(
            name,
            tuple(self._rank(gpus[rank], rank) for rank in range(self.num_ranks)),
            purpose,
            self.in_place,
            self._choice(algo, "proto", tuple(PROTOCOLS)),
            sizes_bytes=(least, most),
        )
        self._check(program)
        return program

    def _collective(self, given: Collective | None, root: int | None) -> Collective | None:
        n, size = self.num_ranks, self.size
        if given is not None and given.num_ranks != n:
            raise self.algo.error(f"ngpus is {n}; the collective is over {given.num_ranks} ranks")
        if given is not None:
            return given
        if root is None:
            root = self._number(self.algo, "root", 0, n - 1, default=0)
        if self.kind not in ("allreduce", "broadcast", "reduce", "custom") and size % n:
            raise self.algo.error(
                f"nchunksperloop is {size}; expected a multiple of ngpus, {n}, of {self.kind}"
            )
        return collective_of(ProgramKind(self.kind, size, root), n)

    def _check(self, program: Program) -> None:
        """Raise `FormatError` for the first fault that can be detected without running the program."""
        for fault in (*check_steps(program), *check_ends(program)):
            place = fault.steps[-1]
            raise self.elements.get(place, self.elements[place[:2]]).error(fault.message)
        for excess in excesses(program, _LARGEST):
            raise self.elements[excess.where].error(f"MSCCL XML {excess.message}; {excess.remedy}")
        for address, step in program.steps():
            for t, s in step.depends:
                awaited = self.elements[address.rank, t, s]
                if self._number(awaited, "hasdep", 0, 1) != 1:
                    raise self.elements[address].error(
                        f"waits for step {s} of threadblock {t}, in line {awaited.line}, which lacks "
                        'hasdep="1" and never signals its end; add it'
                    )

    def _rank(self, gpu: XmlElement, rank: int) -> RankProgram:
        sizes = list(ProgramKind(self.kind, self.size).buffer_chunks(self.num_ranks))
        for place, attribute in enumerate(("i_chunks", "o_chunks")):
            found, expected = self._number(gpu, attribute, 0, 2**20), sizes[place]
            # In place, input and output share one buffer, so a file may declare one of them empty.
            # A rank of a custom collective may have no input or no output.
            if found != expected and (found or not (self.in_place or self.kind == "custom")):
                raise gpu.error(
                    f"{attribute} is {found}; expected {expected} of {self.kind} in {self.size} chunks"
                )
            sizes[place] = expected if self.in_place else found
        inputs, outputs = sizes
        blocks = {self._number(tb, "id", 0, _LARGEST.max_threadblocks - 1): tb for tb in gpu.all("tb")}
        if sorted(blocks) != list(range(len(gpu.all("tb")))):
            raise gpu.error(
                f"threadblocks have ids {sorted(blocks)}; expected 0 to {len(gpu.all('tb')) - 1}, each once"
            )
        self.elements[rank,] = gpu
        threadblocks = tuple(self._threadblock(blocks[t], rank, t) for t in range(len(blocks)))
        return RankProgram(inputs, outputs, self._number(gpu, "s_chunks", 0, 2**20), threadblocks)

    def _threadblock(self, tb: XmlElement, rank: int, number: int) -> Threadblock:
        self.elements[rank, number] = tb
        peers: list[int | None] = []
        for word in ("send", "recv"):
            peer = self._number(tb, word, -1, self.num_ranks - 1)
            if peer == rank:
                raise tb.error(f"{word} is {peer}, the rank itself; expected another")
            peers.append(None if peer < 0 else peer)
        steps: list[Step] = []
        waited = False
        for s, element in enumerate(tb.all("step")):
            self.elements[rank, number, s] = element
            step = self._step(element, s)
            is_nop = step.operation == "nop"
            if waited and not is_nop and not step.depends:
                raise element.error(
                    "a step after steps that only wait does not wait itself; expected depid and deps: the "
                    "last of its dependencies"
                )
            waited = is_nop and (waited or bool(step.depends))
            steps.append(step)
        announced = [bool(self._number(element, "hasdep", 0, 1)) for element in tb.all("step")]
        for s in unfit_fusions(steps, announced):
            raise self.elements[rank, number, s].error(
                "the MSCCL runtime fuses this sum with the next one into the same chunk, and fuses at most "
                f'{MAX_FUSED} sums, of one cnt; give it hasdep="1", which prevents that'
            )
        channel = self._number(tb, "chan", 0, self.num_channels - 1)
        return Threadblock(tuple(steps), peers[0], peers[1], channel)

    def _step(self, step: XmlElement, place: int) -> Step:
        if self._number(step, "s", 0, 2**20) != place:
            raise step.error(f"s is {step.attributes['s']}; expected {place}, its position")
        operation = TYPES[self._choice(step, "type", tuple(TYPES))]
        parts = OPERATIONS[operation]
        block, index = (self._number(step, name, -1, 2**20) for name in ("depid", "deps"))
        depends = ((block, index),) if block >= 0 else ()
        self._number(step, "hasdep", 0, 1)
        if operation == "nop":
            return Step("nop", depends=depends)
        src, dst = self._slot(step, "src"), self._slot(step, "dst")
        needs, gives = (tuple(step.attributes.get(name, "").split()) for name in ("needs", "gives"))
        count = self._number(step, "cnt", 1, MAX_COUNT)
        read, written = (src if parts.reads else None), (dst if parts.writes else None)
        return Step(operation, read, written, count, depends, needs, gives)

    def _slot(self, step: XmlElement, side: str) -> Slot:
        buffer = self._choice(step, f"{side}buf", tuple(_BUFFERS))
        return Slot(_BUFFERS[buffer], self._number(step, f"{side}off", -(2**20), 2**20))

    def _text(self, element: XmlElement, name: str) -> str:
        if len(element.attributes) > MAX_ATTRIBUTES:
            raise element.error(
                f"found {len(element.attributes)} attributes; expected at most {MAX_ATTRIBUTES}"
            )
        value = element.attributes.get(name)
        if value is None:
            raise element.error(f"has no {name}; add it")
        if len(value) > MAX_VALUE:
            raise element.error(f"{name} has {len(value)} characters; expected at most {MAX_VALUE}")
        return value

    def _number(
        self, element: XmlElement, name: str, least: int, most: int, default: int | None = None
    ) -> int:
        if default is not None and name not in element.attributes:
            return default
        text = self._text(element, name)
        if not _NUMBER.fullmatch(text) or not least <= int(text) <= most:
            raise element.error(f"{name} is {text[:30]!r}; expected a whole number from {least} to {most}")
        return int(text)

    def _choice(self, element: XmlElement, name: str, known: Sequence[str]) -> str:
        text = self._text(element, name)
        if text not in known:
            raise element.error(f"{name} is {text[:30]!r}; expected one of {', '.join(known)}")
        return text


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
    warn_of_updates(program, "MSCCL XML")
    if split is not False:
        whole, program = program, split_threadblocks(program, max_steps=reader.max_steps)
        if split is None and program is not whole:
            warn_of_split(
                f"MSCCL XML for {reader.title} holds at most {reader.max_steps} steps per threadblock"
            )
    _check_limits(program, kind, reader)
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
    _check_limits(program, _kind_for(program, reader), reader)


def _kind_for(program: Program, reader: Runtime) -> ProgramKind:
    """Kind of a program's collective; raise `ExportError` if the runtime supports none such."""
    kind = kind_of(program, "MSCCL XML")
    if kind.name == "custom" and not reader.takes_custom:
        raise ExportError(
            f"{reader.title} supports no custom collectives in MSCCL XML; write it for runtime='msccl', "
            "or choose allgather, allreduce, alltoall, broadcast, reduce or reduce_scatter among all ranks"
        )
    return kind


def _check_limits(program: Program, kind: ProgramKind, reader: Runtime) -> None:
    for excess in excesses(program, reader):
        raise ExportError(f"MSCCL XML for {reader.title} {excess.message}", remedy=excess.remedy)
    nodes = program.node_of_rank
    if nodes is None or not (reason := why_not_between_nodes(kind.name, program.protocol)):
        return
    queues = (parcel.queue for parcel in parcels_of(program))
    if any(nodes[queue.src] != nodes[queue.dst] for queue in queues):
        raise ExportError(f"{reader.title} {reason}")


def why_not_between_nodes(collective: str, protocol: str) -> str:
    """Reason why runtimes hang with a program that sends between nodes; empty if they do not.

    Kernels of MSCCL always take four slots of the Simple buffer for a message, in two slices. For some
    collectives, the proxies that serve the network expect one.
    """
    is_one_step = collective in ONE_STEP and protocol.lower() == "simple"
    said = f"hangs in a {collective} between nodes under Simple, and needs protocol LL or LL128"
    return said if is_one_step else ""


def unseen_root(collective: str, root: int) -> str:
    """Text of a warning that runtimes run a program with one root for calls with any root."""
    return f"runtimes of MSCCL XML take every {collective} for one with root {root}"


def _mirrored(program: Program) -> tuple[Mirrored, Mirrored]:
    """({receiving step: slot that the peer sends from}, {sending step: slot that the peer receives into})."""
    sources: Mirrored = {}
    targets: Mirrored = {}
    for parcel in parcels_of(program):
        ours, theirs = program.step(parcel.send), program.step(parcel.receive)
        targets[parcel.send] = theirs.dst or theirs.src
        sources[parcel.receive] = ours.src or ours.dst
    return sources, targets


def _rank_lines(r: int, rank: RankProgram, sources: Mirrored, targets: Mirrored) -> Iterator[str]:
    """Yield XML lines of a rank's threadblocks; steps that only wait precede one that waits for several."""
    # Position of each step in its threadblock, counting the added steps that only wait.
    places = [[end - 1 for end in accumulate(map(weight, tb.steps))] for tb in rank.threadblocks]
    awaited = {each for tb in rank.threadblocks for step in tb.steps for each in step.depends}
    for t, threadblock in enumerate(rank.threadblocks):
        send = -1 if threadblock.send_to is None else threadblock.send_to
        receive = -1 if threadblock.receive_from is None else threadblock.receive_from
        announced = [(t, s) in awaited for s in range(len(threadblock.steps))]
        for s in unfit_fusions(threadblock.steps, announced):
            announced[s] = True  # prevents the fusion with the next sum
        yield f"    {_tag('tb', {'id': t, 'send': send, 'recv': receive, 'chan': threadblock.channel})}"
        for s, (step, place) in enumerate(zip(threadblock.steps, places[t], strict=True)):
            *others, last = [(other, places[other][index]) for other, index in step.depends] or [(-1, -1)]
            for i, wait in enumerate(others, start=place - len(others)):
                yield _step_line(i, _NOP, None, None, wait, hasdep=False)
            address = StepAddress(r, t, s)
            src = step.src or sources.get(address) or step.dst
            dst = step.dst or targets.get(address) or step.src
            yield _step_line(place, step, src, dst, last, hasdep=announced[s])
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
