"""Report of an execution: wrong chunks, waiting steps, and times next to those of MPI's own collective."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import Any

from taccl._internal.arguments import checked
from taccl._internal.names import in_runs, listed, table
from taccl._internal.reading import plain_values
from taccl._internal.units import format_count, format_size, format_us, gb_per_s
from taccl.errors import ExecutionError, VerificationError
from taccl.program.program import StepAddress


@dataclass(frozen=True, slots=True)
class WrongChunk:
    """A slot with wrong content, in a rank's output, or in an input that must not change.

    - `run`: The first run in which it was wrong; 0 is the warm-up.
    """

    rank: int
    buffer: str
    slot: int
    chunk: int
    found: str
    run: int

    def __str__(self) -> str:
        place = f"{self.buffer}[{self.slot}] of rank {self.rank}"
        if self.buffer == "input":
            return f"{place}, its chunk {self.chunk}, was overwritten; out of place it must stay unchanged"
        return f"{place} should hold chunk {self.chunk}: {self.found}"


@dataclass(frozen=True, slots=True)
class Wait:
    """A step that was waiting when the time was up.

    - `step`: The instruction.
    - `reason`: The condition that it waits for.
    """

    address: StepAddress
    step: str
    reason: str

    def __str__(self) -> str:
        return f"{self.address}, {self.step}: waits for {self.reason}"


@dataclass(frozen=True, slots=True)
class Times:
    """Time of each repetition at the slowest rank, in microseconds."""

    each_us: tuple[float, ...]

    @property
    def median_us(self) -> float:
        """The median of the times, in microseconds."""
        return statistics.median(self.each_us)

    @property
    def min_us(self) -> float:
        """The least of the times, in microseconds."""
        return min(self.each_us)


@dataclass(frozen=True, slots=True, repr=False)
class Execution:
    """Outcome of a program that MPI ranks executed.

    Parameters
    ----------
    program, collective : str
        Names; that of the collective is empty if unknown.
    crowded : bool
        True if ranks shared cores, which makes times unreliable.
    size_bytes : int
        The larger of one rank's input and output buffer, rounded up to whole elements in every chunk.
    compared_with : str
        Reference of the outputs, e.g. ``"MPI_Allgather"``; empty if they were not compared.
    tolerance : float
        Max difference of an element; 0 if it must agree bit for bit.
    num_wrong : int
        Number of wrong chunks; `wrong` lists the first of each rank.
    waits : tuple of Wait
        Waiting steps, if the program did not end in time.
    cause : str
        Deadlock that `taccl.interpret` finds as the reason; empty if it finds none.
    idle_s : float
        Seconds before the timeout in which no step ended, if the program did not end in time.
    times, mpi_times : Times, optional
        Times of the program, and of MPI's own collective; None if there are none.
    versions : dict
        Versions of the MPI library and of other packages.
    """

    program: str
    collective: str
    num_ranks: int
    num_hosts: int
    crowded: bool
    size_bytes: int
    dtype: str
    in_place: bool
    busbw_factor: float
    timeout_s: float
    compared_with: str
    tolerance: float
    num_wrong: int
    wrong: tuple[WrongChunk, ...]
    waits: tuple[Wait, ...]
    cause: str
    idle_s: float
    times: Times | None
    mpi_times: Times | None
    versions: dict[str, str]

    @property
    def ok(self) -> bool:
        """True if the program ran to its end without wrong chunks."""
        return not self.waits and not self.num_wrong

    def algbw_gb_per_s(self, times: Times) -> float:
        """Algorithm bandwidth at the median time, in GB/s of 10**9 bytes."""
        return gb_per_s(self.size_bytes, times.median_us) or 0.0

    def busbw_gb_per_s(self, times: Times) -> float:
        """Bus bandwidth at the median time, in GB/s of 10**9 bytes."""
        return self.algbw_gb_per_s(times) * self.busbw_factor

    def raise_if_failed(self) -> None:
        """Raise an error unless the program ended in time, with correct outputs.

        Raises
        ------
        ExecutionError
            If it did not end in time; the message lists the waiting steps.
        VerificationError
            If chunks are wrong; the message lists them with their ranks.
        """
        if self.waits:
            raise ExecutionError(self.failure())
        if self.num_wrong:
            raise VerificationError(self.failure(), violations=self.wrong)

    def failure(self) -> str:
        """Faults in words; empty if there are none."""
        if self.waits:
            return self._waiting()
        if not self.num_wrong:
            return ""
        ranks = format_count(len({each.rank for each in self.wrong}), "rank")
        head = f"{format_count(self.num_wrong, 'chunk')} wrong, at {ranks} of {self.num_ranks}:"
        return "\n".join([head, *listed(self.wrong, total=self.num_wrong)])

    def _waiting(self) -> str:
        ranks = sorted({each.address.rank for each in self.waits})
        if was_moving(self.idle_s, self.timeout_s):
            state = "steps were still running: a longer time limit may suffice"
        else:
            state = f"no step had run for {self.idle_s:.1f} s"
        word = "rank" if len(ranks) == 1 else "ranks"
        head = f"not done after {self.timeout_s:g} s, and {state}; waiting: {word} {in_runs(ranks)} of "
        causes = [f"  {self.cause}"] if self.cause else []
        return "\n".join([f"{head}{self.num_ranks}:", *causes, *listed(self.waits)])

    def text(self) -> str:
        """The report as text for users."""
        place = "in place" if self.in_place else "out of place"
        ranks, machines = format_count(self.num_ranks, "rank"), format_count(self.num_hosts, "machine")
        size = f"{format_size(self.size_bytes)} of {self.dtype}"
        lines = [f"{self.program}, {place}: {ranks} on {machines}, {size}"]
        if self.times is not None and self.ok:
            runs = format_count(len(self.times.each_us) + 1, "run")
            how = f"within {self.tolerance:.2g}" if self.tolerance else "bit for bit"
            if self.compared_with:
                verdict = f"correct: in all {runs} every output agrees {how} with {self.compared_with}"
            else:
                verdict = f"all {runs} finished; outputs are not checked: the collective is unknown"
            lines.append(f"  {verdict}")
        rows: list[tuple[str, ...]] = [("", "median", "fastest", "algbw", "busbw")]
        own = self.compared_with or "MPI's own"
        for name, times in (("the program", self.times), (own, self.mpi_times)):
            if times is not None:
                algbw, busbw = self.algbw_gb_per_s(times), self.busbw_gb_per_s(times)
                fast = (f"{time_us / 1000:.3f} ms" for time_us in (times.median_us, times.min_us))
                rows.append((name, *fast, f"{algbw:.4g} GB/s", f"{busbw:.4g} GB/s"))
        if len(rows) > 1:
            lines.append(table(rows, indent="  "))
        if self.crowded:
            lines.append("  ranks share cores: times are not representative")
        versions = [
            text.replace(" Version:", "") if name == "mpi" else f"{name} {text}"
            for name, text in self.versions.items()
        ]
        lines.append("  " + ", ".join(versions))
        return "\n".join(lines)

    def figures(self) -> dict[str, Any]:
        """The execution as plain values, with rates and a verdict, as ``taccl run --json`` prints them."""
        return {
            "ok": self.ok, **self.to_dict(), "times": self._rates(self.times),
            "mpi_times": self._rates(self.mpi_times), "failure": self.failure(),
        }  # fmt: skip

    def _rates(self, times: Times | None) -> dict[str, Any] | None:
        """Times and rates of the program or of MPI as plain values."""
        if times is None:
            return None
        return {
            "each_us": list(times.each_us), "median_us": times.median_us, "min_us": times.min_us,
            "algbw_gb_per_s": self.algbw_gb_per_s(times), "busbw_gb_per_s": self.busbw_gb_per_s(times),
        }  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """The execution as plain values."""
        return asdict(self)

    @classmethod
    @checked
    def from_dict(cls, data: dict[str, Any]) -> Execution:
        """The execution that `to_dict` wrote."""

        def times(name: str) -> Times | None:
            return None if data[name] is None else Times(tuple(data[name]["each_us"]))

        with plain_values("execution"):
            waits = ({**each, "address": StepAddress(*each["address"])} for each in data["waits"])
            records = {
                "wrong": tuple(WrongChunk(**each) for each in data["wrong"]),
                "waits": tuple(Wait(**each) for each in waits),
                "times": times("times"),
                "mpi_times": times("mpi_times"),
            }
            return cls(**{**data, **records})

    def __repr__(self) -> str:
        what = f"{self.program!r} on {format_count(self.num_ranks, 'rank')}, {format_size(self.size_bytes)}"
        if not self.ok:
            return f"Execution({what}: {self.failure()})"
        compared = f"agrees with {self.compared_with}" if self.compared_with else "outputs not checked"
        took = "" if self.times is None else f", {format_us(self.times.median_us)}"
        beside = "" if self.mpi_times is None else f" (MPI's own {format_us(self.mpi_times.median_us)})"
        return f"Execution({what}: ok, {compared}{took}{beside})"


def was_moving(idle_s: float, timeout_s: float) -> bool:
    """True if steps still ended shortly before the timeout, so that waiting steps prove no deadlock."""
    return idle_s < min(1.0, timeout_s / 4)
