"""Check a placement by measurement: run the library's collective in the old and the new order in turn."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from typing import Any

import numpy as np

from taccl._internal.arguments import Count, checked
from taccl._internal.names import shown
from taccl._internal.units import format_us
from taccl.errors import InputError
from taccl.placement.files import LIBRARY_NAMES
from taccl.placement.launchers import slots_by_host
from taccl.placement.tuning import LIBRARIES, collective_call, forced, library_name, slowest_us
from taccl.runtime.environment import joined, launched_by
from taccl.runtime.launch import launched
from taccl.runtime.rank_execution import agreed, broadcast, gathered
from taccl.runtime.worker import serve

#: Timeout in seconds after the last message from the ranks.
_PATIENCE_S = 300.0
#: `_CONFIDENCE`: one-sided confidence of each end of the interval (our choice).
#: `_LEAST`: minimum gain that counts (our choice).
_CONFIDENCE, _LEAST = 0.99, 0.01
_FIELDS = {"order", "hosts", "collective", "algorithm", "size_bytes"}


@dataclass(frozen=True)
class MeasuredGain:
    """Times of a collective in two orders of ranks, measured alternately.

    - `library`: Name of the MPI library.
    - `is_forced`: True if the library was told to run the placement's algorithm.
    - `before_us`, `after_us`: Time of each call at its slowest rank, in the original and in the new order.
      Calls with the same index followed one another.
    """

    library: str
    collective: str
    algorithm: str
    size_bytes: int
    before_us: tuple[float, ...]
    after_us: tuple[float, ...]
    is_forced: bool = False

    @property
    def _ratios(self) -> list[float]:
        return sorted(b / a for b, a in zip(self.before_us, self.after_us, strict=True))

    @property
    def gain(self) -> float:
        """Median speedup of a call by the new order."""
        return float(np.median(self._ratios))

    @property
    def interval(self) -> tuple[float, float]:
        """Confidence interval of the median speedup, 99 % at each end, by order statistics (sign test).

        With too few calls for that confidence it covers all ratios.
        """
        ratios = self._ratios
        count, below = len(ratios), 0
        for place in range(count):
            below += comb(count, place)
            if below > (1 - _CONFIDENCE) * 2**count:
                place = max(place - 1, 0)
                return ratios[place], ratios[count - 1 - place]
        return ratios[0], ratios[-1]

    @property
    def verdict(self) -> str:
        """Verdict on the new order: ``"confirmed"``, ``"within noise"`` or ``"slower"``.

        A gain or a loss counts if the interval excludes 1 and the median differs from 1 by more than 1 %.
        With fewer than seven calls the verdict is ``"within noise"``.
        """
        least, most = self.interval
        if len(self.before_us) < 7:
            return "within noise"
        if least > 1 and self.gain > 1 + _LEAST:
            return "confirmed"
        return "slower" if most < 1 and self.gain < 1 - _LEAST else "within noise"

    def __str__(self) -> str:
        before, after = (format_us(float(np.median(each))) for each in (self.before_us, self.after_us))
        least, most = self.interval
        return (
            f"{self.verdict}: {self.collective} by {self.library} takes {before} in the order given and "
            f"{after} in the new one, median of {len(self.before_us)} calls in turn; {self.gain:.3g} "
            f"times as fast, {least:.3g} to {most:.3g} with {_CONFIDENCE:.0%} confidence at each end"
        )

    def to_dict(self) -> dict[str, Any]:
        """The measurement as plain values."""
        least, most = self.interval
        return {
            "verdict": self.verdict, "gain": self.gain, "least": least, "most": most, "library": self.library,
            "collective": self.collective, "algorithm": self.algorithm, "size_bytes": self.size_bytes,
            "is_forced": self.is_forced, "before_us": list(self.before_us), "after_us": list(self.after_us),
        }  # fmt: skip


@checked
def measure_gain(
    placement: Mapping[str, Any],
    *,
    ranks: Count | None = None,
    repetitions: Count = 20,
    note: Callable[[str], None] = lambda _: None,
) -> MeasuredGain:
    """Run the library's collective in the original and in the new order of ranks, and compare the times.

    The ranks are those that a launcher started on the placement's hosts, in either order; otherwise ranks are
    started here. Two communicators contain the same processes in the two orders. Calls alternate between
    them, so that changing load delays both alike.

    Parameters
    ----------
    placement : mapping
        `Placement.to_dict` plus ``hosts``, the host of every slot. `taccl reorder -o` writes both.
    ranks : int, optional
        Number of ranks to start on this machine, if all hosts are this machine.
    repetitions : int
        Calls in each order.
    note : callable, optional
        Called at rank 0 with a line of text at each stage.

    Raises
    ------
    InputError
        If the placement lacks a field, its collective has no counterpart in MPI, or ranks run on other hosts.
    ExecutionError
        If there is no MPI, or a rank dies.
    """
    if missing := _FIELDS - set(placement):
        said = f"found a placement without {', '.join(sorted(missing))}; write it with `taccl reorder -o`"
        raise InputError(said, where="placement")
    request = {name: placement[name] for name in _FIELDS} | {"repetitions": repetitions}
    if launched_by() is not None:
        with joined() as mpi:
            return MeasuredGain(**_measured(mpi.COMM_WORLD, request))
    if ranks != len(placement["order"]):
        said = f"found {ranks or 'none'}, but the placement is for {len(placement['order'])}; start as many"
        raise InputError(f"{said}, here or by a launcher", where="ranks")
    kind, algorithm = placement["collective"], placement["algorithm"]
    is_known = algorithm in LIBRARY_NAMES.get(kind, {})
    found = launched(
        "taccl.placement.measured_gain", ranks, request, timeout_s=_PATIENCE_S, note=note,
        environment=forced(kind, algorithm) if is_known else {},
    )  # fmt: skip
    return MeasuredGain(**found | {"is_forced": is_known and found["library"] in LIBRARIES})


def slots_of(names: Sequence[str], hosts: Sequence[str]) -> list[int]:
    """Slot of every rank, from the name of its machine; the ranks of a host get its slots in order.

    Host names are compared in full, then without their domain. Raises `InputError` if they do not match.
    """
    if not hosts:
        return list(range(len(names)))
    for short in (False, True):
        here, there = ([n.partition(".")[0] if short else n for n in each] for each in (names, hosts))
        if Counter(here) == Counter(there):
            places = {name: iter(slots) for name, slots in slots_by_host(there).items()}
            return [next(places[name]) for name in here]
    said = f"found ranks on {shown(', '.join(dict.fromkeys(names)), 90)}"
    wanted = shown(", ".join(dict.fromkeys(hosts)), 90)
    raise InputError(f"{said}, but the placement is for {wanted}; start one rank for each slot")


def _measured(comm: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Measure both orders at one rank; return, at all ranks, the time of each call at its slowest rank."""
    from mpi4py import MPI

    names = gathered(comm, MPI.Get_processor_name())
    slot = agreed(comm, lambda: slots_of(names or [], request["hosts"]))[comm.rank]
    places = [0] * comm.size
    for rank, each in enumerate(request["order"]):
        places[each] = rank
    orders = [comm.Split(0, key) for key in (slot, places[slot])]
    calls = [collective_call(each, request["collective"], request["size_bytes"]) for each in orders]
    before, after = slowest_us(comm, calls, request["repetitions"]).T.tolist()
    for each in orders:
        each.Free()
    values = {name: request[name] for name in ("collective", "algorithm", "size_bytes")}
    found: dict[str, Any] = broadcast(
        comm, values | {"library": library_name(), "before_us": before, "after_us": after}
    )
    return found


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1], lambda comm, request, *_: _measured(comm, request())))
