"""Differences between logs and the machine that they are fitted to, as sentences."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain

from taccl._internal.names import first_of, shown
from taccl.measure.machine import Machine
from taccl.measure.series import POINT_TO_POINT, Log, Series

#: GPU models of the machines.
_GPUS = {
    "ndv2": ("V100",), "dgx1": ("V100",), "dgx2": ("V100",), "dgx-a100": ("A100",), "dgx-h100": ("H100",),
    "h200": ("H200",), "b200": ("B200",), "gb200-nvl72": ("GB200",), "mi300x": ("MI300X",),
    "mi355x": ("MI355X",),
}  # fmt: skip
#: Model in the name of a GPU: H100, GB300, MI300X, L40S.
_MODEL = re.compile(r"\b(MI\d{2,3}[A-Z]?|[A-Z]{1,2}\d{1,3}[A-Z]?)\b")
#: Min credible time of a collective on GPUs in us. It lasts at least about 4 us, mostly for the kernel
#: launch.
_LEAST_US = 3.0
#: Min and max credible ratio of a fitted rate to the data sheet's. With in-network reduction, ranks send half
#: as much.
_LEAST_RATE, _MOST_RATE = 0.2, 2.0
#: Min credible ratio for the network, as networks of one machine model differ more.
_LEAST_NETWORK_RATE = 0.05


def mismatches(
    logs: Sequence[Log],
    series: Sequence[Series],
    machine: Machine,
    fitted: Iterable[tuple[str, float, float]],
) -> tuple[str, ...]:
    """Differences between the logs and the machine, one sentence each; empty if they agree.

    - `fitted`: Name, fitted value and data sheet value in GB/s of each rate that the logs determine.
    """
    own = [f"{log.path}: {note}" for log in logs for note in log.notes]
    found = (
        own,
        _of_ranks(logs, series),
        _of_gpus(logs, machine),
        _of_times(series, machine),
        _of_rates(fitted, machine),
    )
    return tuple(dict.fromkeys(chain.from_iterable(found)))


def _of_ranks(logs: Sequence[Log], series: Sequence[Series]) -> Iterable[str]:
    """Notes on assumed numbers of ranks, for logs that do not state theirs."""
    assumed = {each.source: each for each in series}
    for log in logs:
        for each in log.series:
            placed = assumed.get(each.source)
            if not each.num_ranks and placed is not None:
                said = f"the log does not say how many ranks took part; assumed: {placed.title}"
                yield f"{each.source}: {said} (--nodes changes it)"


def _of_gpus(logs: Sequence[Log], machine: Machine) -> Iterable[str]:
    ours = _GPUS.get(machine.name, ())
    for log in logs:
        models = {model[1] for name in log.gpus if (model := _MODEL.search(name))}
        if models and ours and not models & set(ours):
            names = first_of([shown(name, 60) for name in sorted(log.gpus)], 3)
            yield f"{log.path}: found GPUs {names}; {machine.name} has {' or '.join(ours)}; check --topology"


def _of_times(series: Sequence[Series], machine: Machine) -> Iterable[str]:
    for each in series:
        least = min(each.times_us)
        if least < _LEAST_US and each.collective != POINT_TO_POINT:
            said = f"found {each.title} in {least:.3g} us, less than the launch of a GPU kernel"
            yield f"{each.source}: {said}; was it measured on CPUs, and not on {machine.name}?"


def _of_rates(fitted: Iterable[tuple[str, float, float]], machine: Machine) -> Iterable[str]:
    for name, value, sheet in fitted:
        least = _LEAST_NETWORK_RATE if name.startswith("network") else _LEAST_RATE
        if sheet and not least <= value / sheet <= _MOST_RATE:
            said = f"{name} is fitted as {value:.4g}, {value / sheet:.3g} times what {machine.name} has"
            yield f"{said} by its data sheet ({sheet:.4g}); check --topology, and which device sent the data"
