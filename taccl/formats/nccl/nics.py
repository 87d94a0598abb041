"""NICs of a server: assignment to local ranks, share of each send per NIC, and total throughput."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from fractions import Fraction
from importlib import import_module
from itertools import combinations, product
from typing import Any, NamedTuple

import numpy as np

from taccl._internal.names import in_runs
from taccl.errors import TopologyError
from taccl.formats.nccl.pcie import PathLimit, PcieServer
from taccl.solvers.highs import minimise
from taccl.topology.topology import Side

_SIDES: tuple[Side, ...] = ("send", "receive")
#: Relative difference of two capacities up to which they count as equal.
_SAME_CAPACITY = 1e-9
#: A local rank, and the direction in which it uses NICs.
_User = tuple[int, Side]
#: Name and beta in us per MB of a rate limit.
_Limit = tuple[str, Fraction]


class Undercut(NamedTuple):
    """Assumed rate that is lower than the joint rate of NICs.

    - `guess`: The assumption.
    - `nics_beta_us_per_mb`: Joint beta of the NICs.
    - `whom`: Local ranks for which it limits the NICs, as the end of a sentence; empty for all that use them.
    """

    guess: str
    beta_us_per_mb: Fraction
    nics_beta_us_per_mb: Fraction
    whom: str = ""


class Nics:
    """NICs of each local rank, and rate limits (such as PCIe links and NICs) of paths to other nodes.

    A rank uses all of its nearest NICs as one NIC whose rate is the sum. It stripes each send over them in
    proportion to the rates at which PCIe reaches them. Ranks with the same nearest NICs divide these NICs if
    the NICs are equally fast, their number permits it, and no capacity is lost. Otherwise each rank uses all.

    - `rails`: True if a rank sends across nodes only to ranks with its own local rank.
    - `of_rank`: NICs of each local rank.
    - `units`: {(local ranks, betas for which their sends and receives hold each NIC): NICs}. NICs with the
      same ranks and betas are one resource, as they are busy together.
    """

    def __init__(self, server: PcieServer, *, rails: bool = False) -> None:
        self._server, self._rails = server, rails
        near = [server.near_nics(gpu) for gpu in server.gpus]
        if () in near:
            said = f"found no NIC on the host of local rank {near.index(())}, but on other hosts of its node"
            raise TopologyError(f"{said}; add one to the file", where=server.name)
        divided = _divided(server, near)
        self._assign(divided)
        if divided != near:
            carried = self.gb_per_s()
            self._assign(near)
            if self.gb_per_s() <= carried * (1 + _SAME_CAPACITY):
                self._assign(divided)

    def _assign(self, of_rank: list[tuple[int, ...]]) -> None:
        server, self.of_rank = self._server, of_rank
        self._shares: dict[Side, list[dict[int, Fraction]]] = {
            side: [server.shares(gpu, nics, side) for gpu, nics in zip(server.gpus, of_rank, strict=True)]
            for side in _SIDES
        }
        users = {
            nic: tuple(rank for rank, nics in enumerate(of_rank) if nic in nics)
            for nic in range(len(server.nics))
        }
        self.unused = [server.nics[nic].name for nic, ranks in users.items() if not ranks]
        self.units: dict[tuple[tuple[int, ...], tuple[Fraction, ...]], list[int]] = defaultdict(list)
        for nic, ranks in users.items():
            if ranks:
                held = (self._port_beta(rank, nic, side) for side in _SIDES for rank in ranks)
                self.units[ranks, tuple(held)].append(nic)

    def _port_beta(self, rank: int, nic: int, side: Side) -> Fraction:
        """Time in us per MB for which a send (or a receive) of a rank holds one of the rank's NICs."""
        return self._shares[side][rank][nic] * self._server.nics[nic].beta_us_per_mb

    def name(self, unit: Sequence[int]) -> str:
        """Joint name of NICs that are used together."""
        return " + ".join(self._server.nics[nic].name for nic in unit)

    def owners(self) -> str:
        """Text that lists the NICs with the local ranks that use them."""
        return "; ".join(
            f"{self.name(unit)}: {', '.join(map(str, ranks))}" for (ranks, _), unit in self.units.items()
        )

    def limits(self, rank: int, side: Side) -> list[PathLimit]:
        """PCIe links from a local rank to its NICs, or back, each with the beta of its share of the bytes."""
        server, gpu, held = self._server, self._server.gpus[rank], dict[str, Fraction]()
        for nic, share in self._shares[side][rank].items():
            at = server.nics[nic].at
            for name, beta, _ in server.limits(gpu, at) if side == "send" else server.limits(at, gpu):
                held[name] = held.get(name, Fraction(0)) + share * beta
        return [(name, beta, side) for name, beta in held.items()]

    def ports(self, rank: int, node: int, side: Side) -> list[PathLimit]:
        """Rate limits of the NICs that a send out of a local rank of a node, or into it, holds."""
        way = "egress" if side == "send" else "ingress"
        return [
            (
                f"NIC{'s' * (len(unit) > 1)} {self.name(unit)} of node {node} {way}",
                self._port_beta(rank, unit[0], side),
                side,
            )
            for (ranks, _), unit in self.units.items()
            if rank in ranks
        ]

    def undercut(self) -> dict[Undercut, list[str]]:
        """Assumed rates below the joint rate of NICs, each with the names of the NICs that it slows.

        If several slow the same NICs for a local rank, only the lowest rate is listed.
        """
        server = self._server
        limits_of: dict[_User, set[_Limit]] = defaultdict(set)
        through: dict[_Limit, set[int]] = defaultdict(set)
        for rank, (gpu, nics) in enumerate(zip(server.gpus, self.of_rank, strict=True)):
            for side, nic in product(_SIDES, nics):
                ends = (gpu, server.nics[nic].at)
                for name, beta, _ in server.limits(*(ends if side == "send" else ends[::-1])):
                    limits_of[rank, side].add((name, beta))
                    through[name, beta].add(nic)
        slowed: dict[str, dict[_User, Undercut]] = defaultdict(dict)
        for (name, beta), used in through.items():
            together = 1 / sum((1 / server.nics[nic].beta_us_per_mb for nic in used), Fraction(0))
            guess = server.guesses.get(name, server.pcie_source if name.startswith("PCIe") else "")
            if guess and beta > together:
                limits = slowed[self.name(sorted(used))]
                for user in (user for user, own in limits_of.items() if (name, beta) in own):
                    if user not in limits or limits[user].beta_us_per_mb < beta:
                        limits[user] = Undercut(guess, beta, together)
        found: dict[tuple[Undercut, bool], dict[str, set[_User]]] = defaultdict(dict)
        for names, limits in slowed.items():
            for limit in dict.fromkeys(limits.values()):
                users = {user for user, own in limits.items() if own == limit}
                found[limit, len(users) == len(limits)][names] = users
        told: dict[Undercut, list[str]] = {}
        for (limit, is_all), of_names in found.items():
            whom = "" if is_all else _of_users(set().union(*of_names.values()))
            told[limit._replace(whom=whom)] = list(of_names)
        return told

    def gb_per_s(self) -> float:
        """Max GB/s that all ranks of one node together can send to another node, by a linear program.

        Raises `TopologyError` if rates differ by more than the solver's precision.
        """
        size = len(self._server.gpus)
        place: dict[tuple[str, Side], int] = {}
        entries = [
            (place.setdefault((name, side), len(place)), rank + size * (side == "receive"), float(beta))
            for side in _SIDES
            for rank in range(size)
            for name, beta, _ in (*self.limits(rank, side), *self.ports(rank, 0, side))
        ]
        slowest = max(beta for *_, beta in entries)  # betas relative to it are numbers of ordinary size
        entries = [(row, column, beta / slowest) for row, column, beta in entries]
        num_sums = size if self._rails else 1
        entries += [
            (len(place) + (rank if self._rails else 0), rank + size * back, -1.0 if back else 1.0)
            for rank in range(size)
            for back in (0, 1)
        ]
        row, column, value = zip(*entries, strict=True)
        cost = -np.repeat((1.0, 0.0), size)
        found = minimise(cost, (row, column, value), [np.ones(len(place)), np.zeros(num_sums)])
        if found is None:
            said = "found rates of NICs and PCIe that differ by a factor of 10^9 or more; correct them"
            raise TopologyError(said, where=self._server.name)
        return -1000 * found.objective / slowest

    def capacity_gb_per_s(self) -> float:
        """Max GB/s between two servers if every rank could use every NIC in any share, by a maximum flow."""
        networkx: Any = import_module("networkx")
        flows = []
        for side in _SIDES:
            graph = networkx.DiGraph()
            for start, end, limit in self._server.tree.edges(data="limit"):
                ends = (start, end) if side == "send" else (end, start)
                graph.add_edge(*ends, **({} if limit[1] is None else {"capacity": 1000 / limit[1]}))
            graph.add_edges_from(("ranks", gpu) for gpu in self._server.gpus)
            for number, nic in enumerate(self._server.nics):
                graph.add_edge(nic.at, ("NIC", number), capacity=1000 / nic.beta_us_per_mb)
                graph.add_edge(("NIC", number), "network")
            flows.append(networkx.maximum_flow_value(graph, "ranks", "network"))
        return float(min(flows))

    def assumptions(self) -> list[str]:
        """Assumptions on shared NICs, unused NICs and lost capacity."""
        assumed = []
        if any(
            self._shares[side][a] != self._shares[side][b]
            for a, b in combinations(range(len(self.of_rank)), 2)
            if set(self.of_rank[a]) & set(self.of_rank[b])
            for side in _SIDES
        ):
            assumed.append("each rank stripes its sends over its NICs in fixed shares")
        users = Counter(self.of_rank)
        together = [rank for rank, nics in enumerate(self.of_rank) if len(nics) > 1 < users[nics]]
        if together:
            assumed.append(
                f"local ranks {in_runs(together)} use their nearest NICs together; NCCL chooses one of them "
                "for each channel, which may load them unevenly"
            )
        if self.unused:
            assumed.append(
                f"NICs {', '.join(self.unused)} are unused: others are closer to every rank and as fast "
                "(nics= chooses)"
            )
        carried, capacity = self.gb_per_s(), self.capacity_gb_per_s()
        if carried < capacity * (1 - _SAME_CAPACITY):
            assumed.append(
                f"a node sends {carried:.4g} GB/s, through the NICs that its ranks use; "
                f"{capacity:.4g} GB/s are possible if every rank uses every NIC"
            )
        return assumed


def _of_users(users: Iterable[_User]) -> str:
    """Local ranks, and the direction if it is the same for all, as the end of a sentence."""
    ranks, sides = {rank for rank, _ in users}, {side for _, side in users}
    way = "" if len(sides) > 1 else f"{sides.pop()}s of "
    return f", for {way}local rank{'s' * (len(ranks) > 1)} {in_runs(ranks)}"


def _divided(server: PcieServer, near: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """NICs of each local rank; ranks with the same, equally fast NICs nearest divide them if possible."""
    chosen = list(near)
    ranks_near: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for rank, nics in enumerate(near):
        ranks_near[nics].append(rank)
    for nics, ranks in ranks_near.items():
        if len({server.nics[nic].beta_us_per_mb for nic in nics}) != 1:
            continue
        for place, rank in enumerate(ranks):
            if len(ranks) % len(nics) == 0:
                chosen[rank] = (nics[place % len(nics)],)
            elif len(nics) % len(ranks) == 0:
                each = len(nics) // len(ranks)
                chosen[rank] = nics[place * each : (place + 1) * each]
    return chosen
