"""What an interpreter says: the kinds of fault, one fault, and all of a program's."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taccl.errors import VerificationError
from taccl.names import listed, shown
from taccl.units import format_count

if TYPE_CHECKING:
    from taccl.program.program import StepAddress

__all__ = ["FAULT_KINDS", "Fault", "Interpretation"]

#: Every kind of fault that `interpret` reports.
FAULT_KINDS = (
    "step",  # a step that no rank can run: a slot past its buffer, a missing peer, an unknown dependency
    "queue",  # two threadblocks at one end of a queue, or more sent than received, or the reverse
    "deadlock",  # steps that wait for each other, or for what never comes
    "race",  # two accesses to one slot, one of them a write, that nothing orders
    "output",  # an output slot without what the collective asks for
    "input",  # a slot of the user's input that the program overwrote, though it is not its output
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a program.

    Parameters
    ----------
    kind : str
        One of `FAULT_KINDS`.
    steps : tuple of StepAddress
        The steps at fault; of a deadlock the cycle, each waiting for the next and the last for the first.
    rank, chunk : int, optional
        Where they apply; None elsewhere.
    """

    kind: str
    message: str
    steps: tuple[StepAddress, ...] = ()
    rank: int | None = None
    chunk: int | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {shown(self.message, 1000)}"


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

    faults: tuple[Fault, ...]
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
