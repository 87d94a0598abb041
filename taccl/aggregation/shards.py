"""Shards: which server, network card and core keeps each chunk of each layer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from taccl.arguments import checked
from taccl.errors import InputError
from taccl.topology.parts import check_ranks
from taccl.units import format_count, parse_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from taccl.arguments import Count, Size
    from taccl.topology.topology import Topology

__all__ = ["Shards", "place_shards"]

_MOST_CHUNKS = 5_000_000


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Shards:
    """Where each chunk is kept; see `place_shards`.

    Parameters
    ----------
    keys : tuple of str
        The layer of every chunk; chunks of one layer follow one another.
    chunk_bytes, servers, cores : tuple of int
        The size of every chunk, the server that keeps it, and the core there that adds it up.
    cards : tuple of str
        The network card of every chunk, as the topology names it.
    method : str
        How they were placed: ``"LPT"``, the largest chunk first, each to the card that is free soonest.
    card_us : mapping of str to float
        For how long each card is busy with what it gets, once from every worker's share.
    """

    keys: tuple[str, ...]
    chunk_bytes: tuple[int, ...]
    servers: tuple[int, ...]
    cards: tuple[str, ...]
    cores: tuple[int, ...]
    card_us: Mapping[str, float]
    method: str = "LPT"

    @property
    def imbalance(self) -> float:
        """The busiest card's time over the mean of all; 1 is the best."""
        times = self.card_us.values()
        return max(times) * len(times) / sum(times)

    def __repr__(self) -> str:
        layers = format_count(len(set(self.keys)), "layer")
        return (
            f"Shards({format_count(len(self.keys), 'chunk')} of {layers} on "
            f"{format_count(len(self.card_us), 'card')} by {self.method}, imbalance {self.imbalance:.4f})"
        )


@checked
def place_shards(
    layer_bytes: Mapping[str, int] | Sequence[int],
    topology: Topology,
    servers: Sequence[int],
    *,
    chunk: Size | None = "32KB",
    cores: Count = 1,
) -> Shards:
    """Layers cut into chunks, and these spread over servers, their network cards and cores.

    Chunks are placed by size, the largest first, each on the card that is free soonest (LPT): where cards are
    alike, the busiest is busy for no longer than the mean of all and one chunk.

    Parameters
    ----------
    layer_bytes : mapping of str to int, or sequence of int
        Bytes of every layer, by name or in order.
    topology : Topology
        A server's cards are what all links into it, and into it alone, share.
    servers : sequence of int
        Ranks that keep chunks, each once.
    chunk : int or str, optional
        The most bytes of a chunk, e.g. ``"32KB"``; None keeps layers whole.
    cores : int
        Cores of each server that add up, each chunk on one.

    Raises
    ------
    InputError
        If a layer has no bytes, a server is named twice or does not exist, or there would be too many chunks.
    """
    named = layer_bytes.items() if isinstance(layer_bytes, Mapping) else _numbered(layer_bytes)
    most = None if chunk is None else parse_size(chunk, where="chunk")
    check_ranks(servers, topology.num_ranks, where="servers", error=InputError)
    if not servers or len(set(servers)) < len(servers):
        raise InputError(f"found {list(servers)[:16]}; expected servers, each once", where="servers")
    keys, sizes = _cut(named, most)
    queue: list[tuple[Fraction, int]] = []
    of_card = [(server, name, beta) for server in servers for name, beta in _cards(topology, server).items()]
    for i in range(len(of_card)):
        heappush(queue, (Fraction(0), i))
    core_bytes = {server: [(0, core) for core in range(cores)] for server in servers}
    card_of, core_of = [0] * len(sizes), [0] * len(sizes)
    busy: dict[int, Fraction] = {}
    for c in sorted(range(len(sizes)), key=lambda c: -sizes[c]):
        until, i = heappop(queue)
        server, _, beta = of_card[i]
        card_of[c], busy[i] = i, until + beta * sizes[c] / 10**6
        heappush(queue, (busy[i], i))
        taken, core = heappop(core_bytes[server])
        core_of[c] = core
        heappush(core_bytes[server], (taken + sizes[c], core))
    return Shards(
        tuple(keys),
        tuple(sizes),
        tuple(of_card[i][0] for i in card_of),
        tuple(of_card[i][1] for i in card_of),
        tuple(core_of),
        {name: float(busy.get(i, 0)) for i, (_, name, _) in enumerate(of_card)},
    )


def _numbered(layers: Sequence[int]) -> list[tuple[str, int]]:
    return [(f"layer {i}", size) for i, size in enumerate(layers)]


def _cut(layers: Iterable[tuple[str, int]], most: int | None) -> tuple[list[str], list[int]]:
    """The layer and the bytes of every chunk."""
    keys: list[str] = []
    sizes: list[int] = []
    for name, size in layers:
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise InputError(
                f"found {size!r} bytes; expected a whole number of at least 1, or leave the layer out",
                where=f"layer_bytes: {name}",
            )
        whole, rest = divmod(size, most or size)
        if len(keys) + whole >= _MOST_CHUNKS:
            raise InputError(f"found more than {_MOST_CHUNKS} chunks; give larger ones", where="chunk")
        pieces = [most or size] * whole + [rest] * bool(rest)
        keys += [name] * len(pieces)
        sizes += pieces
    if not keys:
        raise InputError("found no layers; expected at least one", where="layer_bytes")
    return keys, sizes


def _cards(topology: Topology, server: int) -> dict[str, Fraction]:
    """The network cards of a rank by name, and how long each takes for a MB."""
    into = set(topology.links_to[server])
    holders: dict[int, set[int]] = defaultdict(set)
    for hold in topology.holds:
        holders[hold.resource].add(hold.link)
    cards = {
        topology.resources[hold.resource].name: hold.beta_us_per_mb
        for hold in topology.holds
        if hold.link in into and len(holders[hold.resource]) > 1 and holders[hold.resource] <= into
    }
    if cards:
        return cards
    fastest = min((topology.links[e].beta_us_per_mb for e in into), default=None)
    if fastest is None:
        raise InputError(
            f"no link leads to rank {server}; expected servers that workers reach", where="servers"
        )
    return {f"rank {server}": fastest}
