"""Topologies of racks of workers, whose switches reduce data or which have parameter servers."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import permutations

from taccl._internal.arguments import Count, Number, checked_as
from taccl.errors import TopologyError
from taccl.topology.builder import TopologyBuilder
from taccl.topology.in_network import InNetwork
from taccl.topology.parts import (
    LinkCost,
    add_aggregation,
    beta_of_bandwidth,
    check_count,
    check_num_links,
    check_ranks,
    exact_cost,
    hold_ends,
    links_among,
)
from taccl.topology.topology import Topology


@checked_as(TopologyError)
def in_network(
    workers: Count = 8,
    *,
    gb_per_s: Number = 12.5,
    slots: Count | None = 512,
    payload_bytes: Count = 1024,
    rtt_us: Number = 10,
    dtype: str = "int32",
    racks: Count = 1,
    core_oversubscription: Number = 1,
    groups: Sequence[Sequence[int]] = (),
) -> Topology:
    """Workers behind a switch that reduces their data and multicasts the sum, or a tree of such switches.

    A rank is a worker, and a node is a rack. Workers can also send to one another through the switch. A send
    has a latency of half `rtt_us`, during which it holds no port. With several racks, each rack's
    switch sends partial sums to a core switch, so that a sum crosses each uplink once.

    Parameters
    ----------
    workers : int
        Number of workers per rack.
    gb_per_s : number
        Rate of a worker's port in each direction, in GB/s (10**9 bytes per second).
    slots, payload_bytes, rtt_us, dtype
        Reductions that each switch supports, as in `taccl.topologies.InNetwork`.
    racks : int
        Number of racks.
    core_oversubscription : number
        Ratio of the total rate of a rack's workers to the rate of its uplink; at least 1.
    groups : sequence of sequences of int
        Process groups, as lists of ranks, for which switches can also reduce; by default they reduce over
        all ranks only. All groups share the slots.

    Raises
    ------
    TopologyError
        If there are fewer than two ranks, or a value is out of its range; the message names it.
    """
    check_count(workers * racks, where="in-network: workers", least=2)
    check_num_links((workers * racks) ** 2, where="in-network: workers")
    name = f"in-network:{workers}" if racks == 1 else f"in-network:{racks}x{workers}"
    nodes = [rack for rack in range(racks) for _ in range(workers)]
    reduces = InNetwork(slots, payload_bytes, dtype, rtt_us)
    for group in groups:
        check_ranks(group, len(nodes), where="groups")
        if len(group) < 3 or len(set(group)) < len(group):
            found = f"found {list(group)[:16]}; expected three ranks or more, each once"
            raise TopologyError(found, where="groups")
    made = _Racks(
        name, nodes, nodes, workers,
        gb_per_s=gb_per_s, rtt_us=rtt_us, core_oversubscription=core_oversubscription,
    )  # fmt: skip
    made.link_pairs()
    return made.built(reduces, groups)


@checked_as(TopologyError)
def rack(
    workers: Count = 8,
    box_nics: Count = 10,
    racks: Count = 1,
    core_oversubscription: Number = 1,
    *,
    gb_per_s: Number = 12.5,
    rtt_us: Number = 10,
    box_gb_per_s: Number | None = None,
) -> Topology:
    """Racks of workers with one parameter server per rack; each worker, and each NIC of a server, is a rank.

    Workers are numbered first, rack by rack, then the servers' NICs. Each worker and each server is a node.
    All ranks of a rack are joined by its switch, and racks by a core, as in `in_network`.

    Parameters
    ----------
    workers : int
        Number of workers per rack.
    box_nics : int
        Number of NICs of each rack's server, each as fast as a worker's NIC.
    racks, core_oversubscription, gb_per_s, rtt_us
        As in `in_network`, with the same errors.
    box_gb_per_s : number, optional
        Rate at which the cores of a server add data, in GB/s (10**9 bytes per second); default: not
        limited.
    """
    check_num_links(((workers + box_nics) * racks) ** 2, where="rack: workers, box_nics, racks")
    name = f"rack: {workers} workers, {box_nics} cards" + (f", {racks} racks" if racks > 1 else "")
    boxes = [box for box in range(racks) for _ in range(box_nics)]
    nodes = [*range(workers * racks), *(workers * racks + box for box in boxes)]
    racks_of = [rack for rack in range(racks) for _ in range(workers)] + boxes
    made = _Racks(
        name, nodes, racks_of, workers,
        gb_per_s=gb_per_s, rtt_us=rtt_us, core_oversubscription=core_oversubscription,
    )  # fmt: skip
    if box_gb_per_s is None:
        made.link_pairs()
    else:
        box_beta = beta_of_bandwidth(box_gb_per_s, where="box_gb_per_s")
        made.link_pairs(sorted(set(nodes[workers * racks :])), box_beta=box_beta)
    return made.built()


class _Racks:
    """Racks under construction: ranks with ports, and uplinks of racks if there are several.

    - `nodes`, `rack_of_rank`: Node and rack of each rank.
    - `workers`: Number of workers per rack, whose rates an uplink divides.
    """

    def __init__(
        self, name: str, nodes: Sequence[int], rack_of_rank: Sequence[int], workers: int, *,
        gb_per_s: Number, rtt_us: Number, core_oversubscription: Number,
    ) -> None:  # fmt: skip
        self.builder = TopologyBuilder(name, nodes, alpha_meaning="pipelined")
        self.nodes, self.rack_of_rank, self.ranks = nodes, rack_of_rank, range(len(nodes))
        beta = beta_of_bandwidth(gb_per_s, where="gb_per_s")
        self.cost = LinkCost(exact_cost(rtt_us, where="rtt_us") / 2, beta)
        oversubscription = exact_cost(core_oversubscription, where="core_oversubscription")
        if oversubscription < 1:
            said = f"found {core_oversubscription}; expected at least 1"
            raise TopologyError(said, where="core_oversubscription")
        self.racks = sorted(set(rack_of_rank))
        add = self.builder.add_resource
        self.port_out = {rank: add(f"port out of {rank}") for rank in self.ranks}
        self.port_in = {rank: add(f"port into {rank}") for rank in self.ranks}
        core = self.racks if len(self.racks) > 1 else []
        self.uplink = {each: add(f"uplink of rack {each}") for each in core}
        self.downlink = {each: add(f"downlink of rack {each}") for each in core}
        self.core_beta = beta * oversubscription / workers
        self.slowest = max(beta, self.core_beta) if core else beta

    def link_pairs(self, boxes: Sequence[int] = (), *, box_beta: Fraction = Fraction(0)) -> None:
        """Link all pairs of ranks.

        - `boxes`: Nodes whose cores add up what they receive, in `box_beta` us per MB.
        """
        cores = {box: self.builder.add_resource(f"cores of box {i}") for i, box in enumerate(boxes)}
        for src, dst in permutations(self.ranks, 2):
            across = self.rack_of_rank[src] != self.rack_of_rank[dst]
            own_cores = cores.get(self.nodes[dst])
            beta = self.slowest if across else self.cost.beta_us_per_mb
            link = self.builder.add_link(
                src, dst, alpha_us=self.cost.alpha_us, name="core" if across else "rack",
                beta_us_per_mb=beta if own_cores is None else max(beta, box_beta),
            )  # fmt: skip
            if own_cores is not None:
                self.builder.add_hold(link, own_cores, alpha_us=0, beta_us_per_mb=box_beta, side="receive")
            port_out, port_in = self.port_out[src], self.port_in[dst]
            hold_ends(self.builder, link, port_out, port_in, beta=self.cost.beta_us_per_mb)

    def built(self, reduces: InNetwork | None = None, groups: Sequence[Sequence[int]] = ()) -> Topology:
        """The topology with its switches.

        - `reduces`: Reductions in switches; None if they reduce nothing.
        - `groups`: Process groups for which switches also reduce.
        """
        builder, several = self.builder, []
        if reduces is not None:
            several = add_aggregation(
                builder, self.port_out, self.port_in, self.cost, reduces=reduces,
                name="switches" if self.uplink else "switch", slowest_us_per_mb=self.slowest, groups=groups,
            )  # fmt: skip
        self._hold_uplinks()
        if not self.uplink:
            builder.add_switch("switch", self.ranks, range(len(builder.links)), reduces=reduces)
            return builder.build()
        for each in self.racks:
            inside = [rank for rank in self.ranks if self.rack_of_rank[rank] == each]
            links = links_among(builder.links, inside)
            if len(inside) > 1:
                builder.add_switch(f"switch of rack {each}", inside, links)
        if reduces is not None:
            builder.add_switch("switches", self.ranks, several, reduces=reduces)
        return builder.build()

    def _hold_uplinks(self) -> None:
        """Add the holds of uplinks and downlinks by links between racks."""
        for index, joint in enumerate(self.builder.links):
            # Data of several ranks of a rack crosses the uplink once if it is summed or multicast.
            out, into = ({self.rack_of_rank[rank] for rank in end} for end in (joint.srcs, joint.dsts))
            for each in (each for each in sorted(out) if into - {each}):
                self.builder.add_hold(index, self.uplink[each], alpha_us=0, beta_us_per_mb=self.core_beta)
            for each in (each for each in sorted(into) if out - {each}):
                down = self.downlink[each]
                self.builder.add_hold(index, down, alpha_us=0, beta_us_per_mb=self.core_beta, side="receive")
