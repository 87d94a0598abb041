"""The interpreter: runs a program, and says whether any rank can hang, race or end up wrong.

It shares nothing with what lowers schedules but where chunks are in the user's buffers (`layout`). An output
is right if exactly the right contributions were added, each once, and nothing that nobody wrote.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from taccl.arguments import checked
from taccl.collective import Collective
from taccl.errors import VerificationError
from taccl.names import first_of, listed
from taccl.program.checks import ProgramFault, check_queues, check_sizes, check_steps
from taccl.program.execution import ANYONE, Content, SlotContents, content_at_start, contents_of, execute
from taccl.program.layout import RankLayout, layouts_of
from taccl.program.program import Program, Slot
from taccl.program.races import find_races
from taccl.units import format_count

#: No more faults than these are listed, and no more parts of a sum in one.
_MOST_FAULTS, _MOST_NAMED = 100, 4


#: Every kind of fault that `interpret` reports.
FAULT_KINDS = (
    "step",  # a step that no rank can run: a slot past its buffer, a missing peer, an unknown dependency
    "queue",  # two threadblocks at one end of a queue, or not as much received, in all or at once, as sent
    "deadlock",  # steps that wait for each other, or for what never comes
    "race",  # two accesses to one slot, one of them a write, that nothing orders
    "output",  # an output slot without what the collective asks for
    "input",  # a slot of the user's input that the program overwrote, though it is not its output
)


@dataclass(frozen=True, slots=True, repr=False)
class Interpretation:
    """What `interpret` found.

    Parameters
    ----------
    num_steps : int
        Steps that were run to their end.
    outputs_checked : bool
        Whether it is known what the outputs must be, and everything ran so that they could be looked at.
    """

    faults: tuple[ProgramFault, ...]
    num_steps: int
    outputs_checked: bool

    @property
    def ok(self) -> bool:
        """Whether the program has no fault."""
        return not self.faults

    def raise_if_failed(self) -> None:
        """Do nothing of a correct program.

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
        verdict = "ok" if self.ok else self._text()
        return f"Interpretation({format_count(self.num_steps, 'step')} run{unchecked}: {verdict})"


@checked
def interpret(program: Program, *, capacity: int | None = None) -> Interpretation:
    """Run a program and judge it.

    Parameters
    ----------
    capacity : int, optional
        Chunks that a queue holds before a send must wait; default: 2 for Simple, 8 for LL and LL128. A
        program that runs with 1 runs with any.
    """
    faults: list[ProgramFault] = []

    def report(found: Iterator[ProgramFault]) -> None:
        faults.extend(islice(found, _MOST_FAULTS - len(faults)))

    collective, layouts = program.collective, layouts_of(program)
    report(check_steps(program))
    report(check_queues(program))
    report(check_sizes(program, layouts))
    if any(fault.kind == "step" or (fault.kind == "queue" and fault.steps) for fault in faults):
        return Interpretation(tuple(faults), 0, outputs_checked=False)
    execution = execute(program, capacity=capacity)
    if execution.stuck is not None:
        faults.append(execution.stuck)
    report(find_races(program, execution))
    if execution.stuck is not None or collective is None:
        return Interpretation(tuple(faults), len(execution.done), outputs_checked=False)
    report(_check_contents(execution.memory, layouts, collective, in_place=program.in_place))
    return Interpretation(tuple(faults), len(execution.done), outputs_checked=True)


def _check_contents(
    memory: Sequence[SlotContents], layouts: Sequence[RankLayout], collective: Collective, *, in_place: bool
) -> Iterator[ProgramFault]:
    """Faults of outputs, and out of place of inputs; in place the whole of the buffer may be used."""
    expected = contents_of(collective)
    for rank, where in enumerate(layouts):
        for index, chunk in enumerate(where.outputs):
            found = memory[rank][Slot("output", index)]
            if found != expected[chunk]:
                text = f"should hold chunk {chunk}, and holds {_describe(found, expected[chunk])}"
                yield ProgramFault("output", f"output[{index}] of rank {rank} {text}", rank=rank, chunk=chunk)
    for rank, where in enumerate(() if in_place else layouts):
        for index, chunk in enumerate(where.inputs):
            if memory[rank][Slot("input", index)] != content_at_start(collective, rank, chunk):
                text = f"its chunk {chunk}, was overwritten; out of place the input belongs to the user"
                yield ProgramFault("input", f"input[{index}] of rank {rank}, {text}", rank=rank, chunk=chunk)


def _describe(found: Content, expected: Content) -> str:
    """What is there: the sum but for what it lacks and has besides, or all that went into it."""
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
        return f"what was in {chunk} before"
    if isinstance(chunk, tuple):
        return f"{_name(rank, chunk[1], wanted)} counted twice"
    if rank == ANYONE:
        return f"chunk {chunk}"
    return f"the contribution of rank {rank}" + ("" if (rank, chunk) in wanted else f" to chunk {chunk}")
