"""Interpreter, which runs a program symbolically, and reports hangs, races and wrong outputs at any rank.

It shares no code with the lowering of schedules except the positions of chunks in the user's buffers
(`layout`). An output is right if exactly the required contributions were added, each once, and no content of
unwritten slots.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from taccl._internal.arguments import checked
from taccl._internal.names import first_of, listed
from taccl._internal.units import format_count, format_limit
from taccl.errors import VerificationError
from taccl.problem.collective import Collective
from taccl.program.checks import (
    LIBRARIES,
    MAX_CHUNKS,
    NO_LIMIT,
    ProgramFault,
    check_queues,
    check_sizes,
    check_steps,
    fewest_chunks,
    first_size,
)
from taccl.program.columns import columns_of
from taccl.program.contents import ANYONE, Content, Memory, contents_of
from taccl.program.execution import Run, execute, find_races
from taccl.program.layout import RankLayout, layouts_of
from taccl.program.program import Program, Slot

#: `_MOST_FAULTS`: max faults that an `Interpretation` lists.
#: `_MOST_NAMED`: max contributions that the message of a fault names.
_MOST_FAULTS, _MOST_NAMED = 100, 4


#: Every kind of fault that `interpret` reports.
FAULT_KINDS = (
    "step",  # a step that no rank can run: a slot past its buffer, a missing peer, an unknown dependency
    "queue",  # two threadblocks at one end of a queue, or different numbers of chunks sent and received
    "deadlock",  # steps that wait for each other, or for a message or room that never comes
    "race",  # two unordered accesses to one slot, one of them a write
    "output",  # an output slot without the content that the collective requires
    "input",  # a slot of the user's input that an out-of-place program overwrote
)


@dataclass(frozen=True, slots=True, repr=False)
class Interpretation:
    """Result of `interpret`, the symbolic check of a program: its faults, and the sizes that were checked.

    Parameters
    ----------
    num_steps : int
        Steps that were run to their end.
    outputs_checked : bool
        True if the outputs were checked: the program states its collective, and it ran to its end.
    sizes_bytes : tuple of int, optional
        Smallest and largest size in bytes for which the verdict holds, both included; None for all sizes.
    hangs_from : dict of str to int
        {library: smallest size in bytes at which the program hangs}; empty if it hangs at no size in the
        range.
    """

    faults: tuple[ProgramFault, ...]
    num_steps: int
    outputs_checked: bool
    sizes_bytes: tuple[int, int] | None = None
    hangs_from: Mapping[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """True if the program has no fault."""
        return not self.faults

    @property
    def scope(self) -> str:
        """The sizes for which the verdict holds, as text."""
        if self.sizes_bytes is None:
            return "all sizes"
        least, most = self.sizes_bytes
        return f"all sizes from {format_limit(least)} " + (
            "on" if most >= NO_LIMIT else f"to {format_limit(most)}"
        )

    @property
    def verdict(self) -> str:
        """``"ok"`` or the number of faults, and the sizes for which that holds."""
        if self.ok:
            return f"ok for {self.scope}"
        return f"{format_count(len(self.faults), 'fault')} in a check of {self.scope}"

    def raise_if_failed(self) -> None:
        """Raise an error if the program has faults.

        Raises
        ------
        VerificationError
            If there are faults: their number, and the first ten.
        """
        if not self.ok:
            raise VerificationError(self._text(), violations=self.faults)

    def _text(self) -> str:
        kinds = Counter(each.kind for each in self.faults)
        tally = ", ".join(f"{kind} {kinds[kind]}" for kind in FAULT_KINDS if kinds[kind])
        head = f"the program has {format_count(len(self.faults), 'fault')} ({tally}):"
        return "\n".join([head, *listed(self.faults)])

    def __repr__(self) -> str:
        unchecked = "" if self.outputs_checked else ", outputs not checked"
        verdict = self.verdict if self.ok else self._text()
        return f"Interpretation({format_count(self.num_steps, 'step')} run{unchecked}: {verdict})"


@checked
def interpret(program: Program, *, capacity: int | None = None) -> Interpretation:
    """Run a program symbolically, and check it for all of its sizes (`Program.sizes_bytes`).

    Only hangs depend on the size: the larger the chunks, the fewer of them fit into one message
    (`taccl.program.checks`). The verdict holds for the default buffers of both NCCL and RCCL.

    Parameters
    ----------
    program : Program
        The program.
    capacity : int, optional
        Number of one-chunk messages that a queue holds before a send must wait. A program that runs with 1
        runs at every size. Default: 2 messages for Simple, 8 for LL and LL128, each of as many chunks as fit.
    """
    faults: list[ProgramFault] = []

    def report(found: Iterator[ProgramFault]) -> None:
        faults.extend(islice(found, _MOST_FAULTS - len(faults)))

    collective, layouts = program.collective, layouts_of(program)
    report(check_steps(program))
    report(check_queues(program))
    report(check_sizes(program, layouts))
    sizes = None if capacity is not None else program.sizes_bytes
    if any(fault.kind == "step" or (fault.kind == "queue" and fault.steps) for fault in faults):
        return Interpretation(tuple(faults), 0, outputs_checked=False, sizes_bytes=sizes)
    run, hang, hangs_from = _run_at_all_sizes(program, capacity)
    report(iter([hang] if hang is not None else []))
    memory = Memory(program, layouts)
    report(find_races(program, run, memory.places))
    checked = run.stuck is None and collective is not None
    if checked:
        assert collective is not None
        memory.run(run.steps, run.messages, run.chunks)
        report(_check_contents(memory, layouts, collective, in_place=program.in_place))
    return Interpretation(tuple(faults), len(run.done), checked, sizes, hangs_from)


def _run_at_all_sizes(
    program: Program, capacity: int | None
) -> tuple[Run, ProgramFault | None, dict[str, int]]:
    """Run a program at its sizes; return (best run, hang or None, {library: first size that hangs}).

    The best run is the one with the fewest chunks per message that reaches the end. If all hang, it is the
    one with the most chunks per message. Sizes are in bytes.
    """
    # A message has chunks of one step only, so a limit above the chunks of the largest step has no effect.
    most = min(max(columns_of(program).num_chunks.tolist(), default=1), MAX_CHUNKS)
    least_bytes, most_bytes = program.sizes_bytes or (0, NO_LIMIT)
    low, high = min(fewest_chunks(program, most_bytes), most), most
    if capacity is not None:
        low = high = 1
    last = execute(program, capacity=capacity, chunks=low)
    if last.stuck is None:
        return last, None, {}
    # The program hangs with `low` chunks per message. It may run with more, which smaller sizes allow.
    best = execute(program, capacity=capacity, chunks=high) if high > low else last
    if best.stuck is not None:
        return best, best.stuck, {} if capacity is not None else dict.fromkeys(LIBRARIES, least_bytes)
    while high - low > 1:
        middle = (low + high) // 2
        found = execute(program, capacity=capacity, chunks=middle)
        if found.stuck is None:
            high, best = middle, found
        else:
            low, last = middle, found
    hangs = {each: first_size(program, low, each) for each in LIBRARIES}
    hangs = {each: size for each, size in hangs.items() if size <= most_bytes}
    sizes = {each: f"above {format_limit(size - 1)}" for each, size in hangs.items()}
    told = ", ".join(f"{size} with {each}" for each, size in sizes.items())
    if len(set(sizes.values())) == 1:
        told = min(sizes.values())
    assert last.stuck is not None
    hang = replace(last.stuck, message=f"hangs {told}: {last.stuck.message}")
    return best, hang, {each: max(size, least_bytes) for each, size in hangs.items()}


def _check_contents(
    memory: Memory, layouts: Sequence[RankLayout], collective: Collective, *, in_place: bool
) -> Iterator[ProgramFault]:
    """Yield faults of outputs and, if the program is out of place, of inputs that it overwrote."""
    expected = [memory.number(content) for content in contents_of(collective)]
    begins = memory.places.begin.tolist()
    for rank, where in enumerate(layouts):
        for index, chunk in enumerate(where.outputs):
            found = memory.at(begins[rank][1] + index)
            if found != expected[chunk]:
                differs = _describe(memory.contents[found], memory.contents[expected[chunk]])
                text = f"should hold chunk {chunk}, and holds {differs}"
                yield ProgramFault("output", f"output[{index}] of rank {rank} {text}", rank=rank, chunk=chunk)
    for rank, where in enumerate(() if in_place else layouts):
        for index, chunk in enumerate(where.inputs):
            place = begins[rank][0] + index
            if memory.at(place) != memory.at_start[place]:
                text = f"its chunk {chunk}, was overwritten; out of place the input must stay unchanged"
                yield ProgramFault("input", f"input[{index}] of rank {rank}, {text}", rank=rank, chunk=chunk)


def _describe(found: Content, expected: Content) -> str:
    """Describe how the content of a slot differs from the expected content.

    The text names missing and extra contributions if some contribution is right, and otherwise all
    contributions found.
    """
    there, wanted = found.parts(), expected.parts()

    def told(parts: set[tuple[int, Any]]) -> str:
        names = sorted((_name(*each, wanted) for each in parts), key=lambda name: (len(name), name))
        return first_of(names, _MOST_NAMED)

    if not there & wanted:
        return told(there)
    lacking, added = wanted - there, there - wanted
    besides = [f"{word} {told(parts)}" for word, parts in (("without", lacking), ("with", added)) if parts]
    return " ".join(["the sum", *besides])


def _name(rank: int, chunk: Any, wanted: set[tuple[int, Any]]) -> str:
    if isinstance(chunk, Slot):
        return f"the earlier content of {chunk}"
    if isinstance(chunk, tuple):
        return f"{_name(rank, chunk[1], wanted)} counted twice"
    if rank == ANYONE:
        return f"chunk {chunk}"
    return f"the contribution of rank {rank}" + ("" if (rank, chunk) in wanted else f" to chunk {chunk}")
