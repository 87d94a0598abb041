"""Disagreements between logs and a machine, each as a sentence."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import chain

from taccl._internal.names import first_of, shown
from taccl._internal.units import format_count
from taccl.measure.gpus import gpu_models, machine_by_gpus
from taccl.measure.machine import COUNTABLE, Machine
from taccl.measure.series import POINT_TO_POINT, Log, Series
from taccl.topology.topology import Topology

#: Min credible time in us of a collective on GPUs; less than the launch of a kernel takes.
_LEAST_US = 3.0
#: `_LEAST_RATE`, `_MOST_RATE`: min and max credible ratio of a fitted rate to the data sheet's rate.
#: The max allows for errors of the fit, as no link exceeds its data sheet.
_LEAST_RATE, _MOST_RATE = 0.2, 1.05
#: Min ratio of a NIC's fitted rate to the data sheet's; NICs in published logs reach 0.53 to 0.97.
#: A NIC that also carries the data of a lost one reaches less than half.
_LEAST_NIC_RATE = 0.5


def without_nvlinks(topology: Topology, gpus: Collection[str]) -> str:
    """Fault of an imported topology that lists no NVLinks, although its GPUs have them; empty if none.

    Clouds provide NCCL with such files, as NCCL finds NVLinks by itself.
    """
    from taccl.topology.models import MODELS

    machine = machine_by_gpus(gpus)
    if topology.machine or machine is None or not MODELS[machine].num_nvlinks:
        return ""
    inside = {link.name for index, link in enumerate(topology.links) if not topology.is_internode(index)}
    if inside != {"PCIe"}:
        return ""
    names = first_of([shown(name, 60) for name in sorted(gpus)], 3)
    return f"found no NVLinks, but the GPUs are {names}; NCCL finds them by itself: give {machine} instead"


def rack_mismatch(topology: Topology, gpus: Collection[str]) -> str:
    """Warning if an import joins nodes by NICs that are usually one NVLink domain (rack); else empty."""
    from taccl.topology.machines import SHAPES

    machine = machine_by_gpus(gpus)
    if topology.machine or topology.num_nodes == 1 or machine is None:
        return ""
    of_rack, size = SHAPES[machine].ranks_per_node, len(topology.ranks_of_node[0])
    if of_rack <= COUNTABLE or size >= of_rack:
        return ""
    said = f"NVLink joins up to {of_rack} GPUs of {machine}, but NICs join the file's nodes of {size}"
    return f"{said}; for trays of one rack, use --topology {machine}"


def wrong_ranks(topology: Topology, num_ranks: int, taking_part: int) -> str:
    """Sentence on a log whose number of ranks differs from that of a topology, with the way out.

    - `taking_part`: Number of ranks of the topology that take part.
    """
    found = f"found {format_count(num_ranks, 'rank')}; {shown(topology.name)} has {taking_part} here"
    said = f"{found}: check --topology, --nodes and --ranks"
    each = len(topology.ranks_of_node[0])
    if topology.machine or num_ranks <= topology.num_ranks or num_ranks % each:
        return said
    way = f"`taccl convert IN OUT --set nodes={num_ranks // each}`"
    return f"{said}; {way} makes a file of more nodes from a server's"


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
    for log in logs:
        if said := other_gpus(log.gpus, machine):
            yield f"{log.path}: {said}"


def other_gpus(gpus: Collection[str], machine: Machine) -> str:
    """Sentence on GPUs that the machine does not have; empty if they agree, or are unknown."""
    from taccl.topology.models import MODELS

    ours = MODELS[machine.name].gpus if machine.name in MODELS else ()
    models = gpu_models(gpus)
    if not models or not ours or models & set(ours):
        return ""
    names = first_of([shown(name, 60) for name in sorted(gpus)], 3)
    return f"found GPUs {names}; {machine.name} has {' or '.join(ours)}; check --topology"


def _of_times(series: Sequence[Series], machine: Machine) -> Iterable[str]:
    for each in series:
        least = min(each.times_us)
        if least < _LEAST_US and each.collective != POINT_TO_POINT:
            said = f"found {each.title} in {least:.3g} us, less than the launch of a GPU kernel"
            yield f"{each.source}: {said}; check that it was measured on {machine.name}, not on CPUs"


def _of_rates(fitted: Iterable[tuple[str, float, float]], machine: Machine) -> Iterable[str]:
    for name, value, sheet in fitted:
        is_nic = name.startswith("network")
        least = _LEAST_NIC_RATE if is_nic else _LEAST_RATE
        if not sheet or least <= value / sheet <= _MOST_RATE:
            continue
        said = f"{name} is fitted as {value:.4g}, {value / sheet:.3g} times its data sheet ({sheet:.4g})"
        remedy = "check --topology, and which NIC or GPU sent the data"
        if is_nic and value < sheet:
            remedy = (
                "a NIC may be lost, slow, or not the model's, or the network oversubscribed; see "
                "`taccl diagnose`"
            )
        yield f"{said} on {machine.name}; {remedy}"
