"""Choice among NCCL's protocols for the collectives of a step, which share one."""

from __future__ import annotations

from collections import Counter

from taccl._internal.deadline import Deadline
from taccl.problem.making import make_problem
from taccl.synthesis.problems import asked_topology
from taccl.topology.topology import Topology
from taccl.workload.exchange import collective_of, parts_of, rounded
from taccl.workload.workload import Workload

#: Max number of sizes of collectives that are rated one by one; of more, similar sizes share a rating.
_FEW_SIZES = 4


def topology_of(
    workload: Workload, topology: Topology | str, *, nodes: int | None, profile: str | None,
    protocol: str | None,
) -> Topology:  # fmt: skip
    """Topology of a step, under the given or the fastest protocol.

    Parameters other than `workload` are those of `taccl.make_problem`.
    """
    found, protocol = asked_topology(topology, nodes=nodes, profile=profile, protocol=protocol)
    if protocol != "auto" or len(found.protocols) < 2 or workload.num_ranks != found.num_ranks:
        return found
    return _under_fastest_protocol(workload, found)


def _under_fastest_protocol(workload: Workload, topology: Topology) -> Topology:
    """The topology under the protocol with the least predicted time of all collectives, one after another.

    An operation counts once, with all its data, as its tiles follow one another without new launches. Without
    ratings of all collectives, the topology is returned unchanged.
    """
    from taccl.synthesis.suggesting.protocols import AMPLE_S, Ratings  # imported late, as it loads bounds

    num_bytes, groups = Counter[str](), {}
    for part in parts_of(workload):
        num_bytes[part.operation] += part.chunk_bytes
        groups[part.operation] = part.groups
    alike: Counter[tuple[str, int, tuple[tuple[int, ...], ...], int]] = Counter()
    is_short = len(set(num_bytes.values())) <= _FEW_SIZES
    for name, chunk_bytes in num_bytes.items():
        operation = workload.operation[name]
        size = chunk_bytes if is_short else rounded(chunk_bytes)
        alike[operation.kind, operation.shift, groups[name], size] += 1
    limit, total_us = Deadline.after(AMPLE_S), dict.fromkeys(topology.protocols, 0.0)
    for (kind, shift, some, chunk_bytes), count in alike.items():
        collective = collective_of(kind, shift, some)
        if not collective.is_met:
            problem = make_problem(topology, collective, size_bytes=chunk_bytes * collective.size_chunks)
            rated = Ratings(problem, limit).promised_us
            total_us = {name: us + count * rated[name] for name, us in total_us.items() if name in rated}
    return topology.under(min(total_us, key=total_us.__getitem__)) if total_us else topology
