"""Settings of an in-network job, in which a switch adds up the ranks' data, derived from a schedule.

Settings of SwitchML's prototype are those of github.com/p4lang/p4app-switchML at commit b5c74a0 (2022):
`client_lib/src/config.cc`, and `p4/configuration.p4` for the limits of the switch.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from taccl._internal.arguments import Count, Number, checked
from taccl.aggregation.fixed_point import largest_scale
from taccl.errors import ExportError
from taccl.schedule.schedule import Schedule
from taccl.topology.in_network import InNetwork

FORMAT, VERSION = "taccl-switch-job", 1
#: Limits of SwitchML's prototype.
#: `_MOST_WORKERS`: max workers of a session.
#: `_MOST_SLOTS`: max slots of a session.
#: `_PACKET_NUMBERS`: possible numbers of values in a packet.
_MOST_WORKERS, _MOST_SLOTS, _PACKET_NUMBERS = 32, 8192, (64, 256)
_NUMBER_BYTES = {"int32": 4, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


@checked
@dataclass(frozen=True, slots=True)
class SwitchJob:
    """Settings of a job in which a switch adds up data; a field is None if the switch has no such setting.

    Parameters
    ----------
    collective, topology : str
        Names of the schedule's collective and topology.
    workers : tuple of int
        Ranks that contribute; a worker's number is its index here.
    slots : int, optional
        Max number of packets of a worker in flight.
    packet_bytes : int, optional
        Bytes of data in a packet.
    dtype : str
        Type of the numbers that the switch adds.
    scale : float, optional
        Fixed-point scale: whole numbers per unit.
    block : int, optional
        Number of values in a block; each block has its own exponent, instead of one scale for all.
    size_bytes : int
        Bytes per worker that the switch adds.
    share : float
        Part of all data that the switch adds, 0 to 1; ranks add the rest.
    finish_us : float
        Finish of the schedule in microseconds.
    """

    collective: str
    topology: str
    workers: tuple[int, ...]
    slots: int | None
    packet_bytes: int | None
    dtype: str
    scale: float | None
    block: int | None
    size_bytes: int
    share: float
    finish_us: float

    @property
    def packet_numbers(self) -> int | None:
        """Number of values in a packet; None if the size of packets is no setting of the switch."""
        return None if self.packet_bytes is None else self.packet_bytes // _NUMBER_BYTES[self.dtype]

    def to_dict(self) -> dict[str, Any]:
        """The job as plain values, as its file has them."""
        named = {"format": FORMAT, "version": VERSION, "num_workers": len(self.workers)}
        return {**named, **asdict(self), "workers": list(self.workers)}

    @checked
    def switchml_config(
        self, rank: int, *, threads: Count = 4, backend: str = "dpdk", controller_ip: str = "127.0.0.1"
    ) -> str:
        """The `switchml.cfg` of a worker of SwitchML's prototype: its section ``[general]``.

        The prototype takes a packet as a block. If the job has one scale, send whole numbers of type int32,
        which the prototype does not change.

        Parameters
        ----------
        rank : int
            The worker, one of `workers`.
        threads : int
            Threads of a worker, among which slots are divided evenly.
        backend : str
            ``"dpdk"`` or ``"rdma"``; add the file's section for this backend yourself.
        controller_ip : str
            Address of the machine that runs the controller.

        Raises
        ------
        ExportError
            If `rank` is no worker, or the prototype does not support the job: its numbers of workers and
            slots, the size of its packets, or the type of its numbers.
        """
        faults = [
            (self.dtype != "int32", f"found {self.dtype}; the prototype adds only int32"),
            (rank not in self.workers, f"found rank {rank}, which is no worker"),
            (len(self.workers) > _MOST_WORKERS, f"expected at most {_MOST_WORKERS} workers"),
            (
                self.packet_numbers not in _PACKET_NUMBERS,
                f"found packets of {self.packet_numbers} numbers; expected 64 or 256",
            ),
            (
                not self.slots or self.slots > _MOST_SLOTS or self.slots % threads != 0,
                f"found {self.slots} slots; expected at most {_MOST_SLOTS}, a multiple of {threads} threads",
            ),
        ]
        for is_fault, message in faults:
            if is_fault:
                raise ExportError(message)
        settings = {
            "rank": self.workers.index(rank), "num_workers": len(self.workers),
            "num_worker_threads": threads, "max_outstanding_packets": self.slots,
            "packet_numel": self.packet_numbers, "backend": backend, "scheduler": "fifo",
            "prepostprocessor": "cpu_exponent_quantizer", "controller_ip": controller_ip,
        }  # fmt: skip
        return "\n".join(["[general]", *(f"{name} = {value}" for name, value in settings.items()), ""])


@checked
def switch_job(schedule: Schedule, *, most: Number | None = None) -> SwitchJob:
    """Settings of the aggregation job that a schedule gives to a switch.

    Parameters
    ----------
    schedule : Schedule
        A schedule in which a switch adds all sums or a share of them, for one group of ranks.
    most : number, optional
        Bound on the absolute values of all ranks' data; all values then have one fixed-point scale. Default:
        each packet is a block with its own exponent (`taccl.aggregation.quantise_blocks`).

    Raises
    ------
    ExportError
        If no switch adds, or switches add for several groups of ranks; or if `most` is given for a switch
        that adds real numbers.
    """
    topology, problem = schedule.problem.topology, schedule.problem
    reduces: dict[int, InNetwork] = {e: s.reduces for s in topology.switches if s.reduces for e in s.links}
    rows = zip(schedule.chunk.tolist(), schedule.link.tolist(), schedule.reduce.tolist(), strict=True)
    adding = {c: e for c, e, adds in rows if adds and e in reduces and len(topology.links[e].srcs) > 1}
    groups = {frozenset((*topology.links[e].srcs, *topology.links[e].dsts)) for e in adding.values()}
    if len(groups) != 1:
        said = "no sum made by a switch" if not groups else f"sums for {len(groups)} groups of ranks"
        raise ExportError(f"found {said}; expected one group, as synthesize(..., in_network='only') finds")
    workers, (first, *_) = tuple(sorted(*groups)), adding.values()
    switch = reduces[first]
    is_whole = switch.dtype == "int32"
    if most is not None and not is_whole:
        raise ExportError(f"found most={most} for a switch that adds {switch.dtype}; leave it out")
    scale = None if most is None else largest_scale(float(most), len(workers))
    payload = switch.payload_bytes
    size = sum(problem.chunk_bytes[c] for c in adding)
    return SwitchJob(
        collective=problem.collective.name,
        topology=topology.name,
        workers=workers,
        slots=switch.slots,
        packet_bytes=payload,
        dtype=switch.dtype,
        scale=scale,
        block=payload // _NUMBER_BYTES["int32"] if is_whole and scale is None and payload else None,
        size_bytes=size,
        share=size / max(1, sum(problem.chunk_bytes)),
        finish_us=schedule.finish_us,
    )


def dump_switch_job(schedule: Schedule, *, most: Number | None = None) -> str:
    """Settings of a schedule's in-network job as JSON text; parameters and errors as in `switch_job`."""
    return json.dumps(switch_job(schedule, most=most).to_dict(), indent=1) + "\n"
