"""Placement of chunks on the servers that sum them, and on their NICs and cores; layers of known models."""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from heapq import heapreplace

from taccl._internal.arguments import Count, Number, Size, checked, known_name
from taccl._internal.named_tables import cells_of
from taccl._internal.names import matching, shown
from taccl._internal.reading import read_text
from taccl._internal.units import format_count, format_us, parse_size
from taccl.errors import InputError
from taccl.problem.byte_matrices import BYTES_HEAD, bytes_of
from taccl.problem.collectives import exchange
from taccl.problem.making import make_problem
from taccl.synthesis.result import Result
from taccl.synthesis.synthesize import synthesize
from taccl.topology.parts import check_ranks
from taccl.topology.topology import Hold, Topology

_MOST_CHUNKS = 5_000_000
#: Heads of the column with names, in lower case.
_LAYER_HEAD = re.compile(r"(?:(?:layer|param(?:eter)?|tensor)[ _]?)?name|layer|param(?:eter)?|tensor")


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Shards:
    """Placement of chunks on the NICs and cores of servers; see `place_shards`.

    Parameters
    ----------
    keys : tuple of str
        Layer of every chunk; chunks of one layer are consecutive.
    chunk_bytes, servers, cores : tuple of int
        Size of every chunk, the server that keeps it, and the core there that sums it.
    cards : tuple of str
        NIC of every chunk, by its resource name in the topology. A name of several resources is followed by
        the server's rank.
    method : str
        Placement method: ``"LPT"``, largest chunk first, each on the NIC that finishes it earliest.
    card_us : mapping of str to float
        Busy time in us of each NIC for its chunks of one worker's data.
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
        """Busy time of the busiest NIC divided by the mean; 1 is optimal."""
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
    """Cut layers into chunks, and place these on servers, their NICs and cores.

    Chunks are placed in order of size, the largest first, each on the NIC that finishes it earliest (LPT on
    uniform machines; Gonzalez, Ibarra, Sahni 1977). If NICs are equally fast, the busiest one exceeds the
    mean by at most one chunk.

    Parameters
    ----------
    layer_bytes : mapping of str to int, or sequence of int
        Bytes of every layer, by name or in order.
    topology : Topology
        Topology; a NIC of a server is a resource that several links into the server share, and no others.
    servers : sequence of int
        Ranks that keep chunks, each named once.
    chunk : int or str, optional
        Maximum size of a chunk, e.g. ``"32KB"``; None keeps layers whole.
    cores : int
        Number of cores per server that sum; each chunk is on one core.

    Raises
    ------
    InputError
        If a layer has no bytes, a server is named twice or does not exist, or there would be too many chunks.
    """
    if not isinstance(layer_bytes, Mapping):
        layer_bytes = {f"layer {i}": size for i, size in enumerate(layer_bytes)}
    most = None if chunk is None else parse_size(chunk, where="chunk")
    check_ranks(servers, topology.num_ranks, where="servers", error=InputError)
    if not servers or len(set(servers)) < len(servers):
        raise InputError(f"found {list(servers)[:16]}; expected servers, each once", where="servers")
    keys, sizes = _cut(layer_bytes, most)
    cards = [(server, name, beta) for server in servers for name, beta in _cards(topology, server)]
    names = _told_apart([(name, server) for server, name, _ in cards])
    # Among equally fast NICs, the one that is free first finishes any chunk first.
    free: dict[Fraction, list[tuple[Fraction, int]]] = defaultdict(list)
    for card, (_, _, beta) in enumerate(cards):
        free[beta].append((Fraction(0), card))
    core_bytes = {server: [(0, core) for core in range(cores)] for server in servers}
    placed = [(0, "", 0)] * len(sizes)
    for c in sorted(range(len(sizes)), key=lambda c: -sizes[c]):
        ends = ((queue[0][0] + beta * sizes[c] / 10**6, queue[0][1], beta) for beta, queue in free.items())
        until, card, beta = min(ends)
        heapreplace(free[beta], (until, card))
        server = cards[card][0]
        taken, core = core_bytes[server][0]
        heapreplace(core_bytes[server], (taken + sizes[c], core))
        placed[c] = server, names[card], core
    kept, card_names, core_of = zip(*placed, strict=True)
    busy_until = {card: until for queue in free.values() for until, card in queue}
    card_us = {name: float(busy_until[card]) for card, name in enumerate(names)}
    return Shards(tuple(keys), tuple(sizes), kept, card_names, core_of, card_us)


def _cut(layers: Mapping[str, int], most: int | None) -> tuple[list[str], list[int]]:
    """(layer of every chunk, bytes of every chunk): layers cut into chunks of at most `most` bytes."""
    keys: list[str] = []
    sizes: list[int] = []
    for name, size in layers.items():
        if size < 1:
            raise InputError(
                f"found {size} bytes; expected a whole number of at least 1, or leave the layer out",
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


def _told_apart(cards: Sequence[tuple[str, int]]) -> list[str]:
    """Names of NICs, from (resource name, server) of each; a repeated name gets the server and a number."""
    names: dict[str, None] = {}
    times = Counter(name for name, _ in cards)
    for name, server in cards:
        label = name if times[name] == 1 else f"{name} of rank {server}"
        labels = itertools.chain([label], (f"{label}, {number}" for number in itertools.count(2)))
        names[next(each for each in labels if each not in names)] = None
    return list(names)


def _cards(topology: Topology, server: int) -> list[tuple[str, Fraction]]:
    """(name, time in us per MB) of each NIC of a server; without NICs, of the fastest link to the server."""
    into = set(topology.links_to[server])
    holds: dict[int, list[Hold]] = defaultdict(list)
    for hold in topology.holds:
        holds[hold.resource].append(hold)
    # NICs that share all their links count as one, as fast as the slowest of them.
    slowest: dict[frozenset[int], tuple[Fraction, str]] = {}
    for resource, here in holds.items():
        links = frozenset(hold.link for hold in here)
        if len(links) > 1 and links <= into:
            each = max(hold.beta_us_per_mb for hold in here), topology.resources[resource].name
            slowest[links] = max(slowest.get(links, each), each)
    if slowest:
        return [(name, beta) for beta, name in slowest.values()]
    fastest = min((topology.links[e].beta_us_per_mb for e in into), default=None)
    if fastest is None:
        raise InputError(
            f"no link leads to rank {server}; expected servers that workers reach", where="servers"
        )
    return [(f"rank {server}", fastest)]


@checked
def layer_bytes(model: str) -> dict[str, int]:
    """{layer: bytes of its parameters}, of a known model in float32 or from a file.

    Weights, biases, scales and shifts of known models are separate entries.

    Parameters
    ----------
    model : str
        One of `MODELS`, or the path of a CSV file. Each row has a layer's name and bytes, such as
        ``fc1,64MB``; a first row such as ``index,name,bytes`` names these columns among others.

    Raises
    ------
    InputError
        If the model is unknown, the file cannot be read, or a row is invalid.
    """
    is_known = matching(model, MODELS) is not None
    if not is_known and (model.lower().endswith(".csv") or os.path.isfile(model)):
        return _layers_in(model)
    found = known_name(model, MODELS, "model")
    return {name: 4 * count for name, count in parameters_of(found).items()}


def _layers_in(path: str) -> dict[str, int]:
    """{layer: bytes} of a table with a header that names both columns, or with these two columns alone."""
    rows = [
        (number, cells_of(line))
        for number, line in enumerate(read_text(path).splitlines(), 1)
        if line.strip()
    ]
    head = [cell.lower() for cell in rows[0][1]]
    size = next((place for place, cell in enumerate(head) if BYTES_HEAD.fullmatch(cell)), None)
    layers = [place for place, cell in enumerate(head) if _LAYER_HEAD.fullmatch(cell)]
    layer = next(iter(layers or [place for place in range(len(head)) if place != size]), 0)
    found: dict[str, int] = {}
    for number, cells in rows if size is None else rows[1:]:
        where = f"{path}: line {number}"
        if len(cells) != (2 if size is None else len(head)):
            said = f"found {format_count(len(cells), 'cell')}; expected a layer's name and bytes"
            raise InputError(f"{said}, or a header that names both columns", where=where)
        name = cells[layer]
        if name in found:
            raise InputError(
                f"found layer {shown(repr(name), 80)} again; expected each name once", where=where
            )
        try:
            found[name] = bytes_of(cells[1 if size is None else size])
        except InputError as error:
            raise InputError(error.message, where=where) from None
        if not found[name]:
            raise InputError(f"found 0 bytes of {shown(repr(name), 80)}; leave the row out", where=where)
    if not found:
        raise InputError("found no layers; expected rows with a name and bytes", where=path)
    return found


@checked
def choose_servers(
    topology: Topology,
    size: Size,
    *,
    workers: Sequence[int],
    servers: Sequence[int],
    update_us_per_mb: Number = 0,
) -> Result:
    """Choose where to sum: at the given servers, or at the workers, each for a share of the data.

    The exchange that finishes first is returned. Its `choice` is a text that names the better placement,
    ``central`` (at `servers`) or ``colocated`` (at `workers`), and the finish of both.

    Parameters
    ----------
    topology : Topology
        Topology, such as `taccl.topologies.rack`.
    size : int or str
        Bytes that each worker contributes and receives, e.g. ``"100MB"``; cut into the number of chunks that
        is fastest.
    workers, servers : sequence of int
        Ranks; servers that are not workers contribute nothing.
    update_us_per_mb : number
        As in `taccl.collectives.exchange`.

    Raises
    ------
    InputError
        If a rank does not exist or is named twice in a role, or no link leads to a server.
    """
    found = {}
    for name, keepers in (("central", servers), ("colocated", workers)):
        collective = exchange(
            workers, keepers, num_ranks=topology.num_ranks, update_us_per_mb=update_us_per_mb
        )
        problem = make_problem(topology, collective, size_bytes=parse_size(size))
        found[name] = synthesize(problem)
    told = ", ".join(f"{name} {format_us(each.schedule.finish)}" for name, each in found.items())
    choice = min(found, key=lambda name: found[name].schedule.finish)
    return replace(found[choice], choice=f"{choice} servers, as the faster: {told}")


#: Number of parameters of each network, as published with torchvision; the shapes below add up to it.
MODELS = {
    "alexnet": 61_100_840,
    "resnet-18": 11_689_512,
    "resnet-50": 25_557_032,
    "resnet-152": 60_192_808,
    "vgg-11": 132_863_336,
    "vgg-19": 143_667_240,
}


def parameters_of(model: str) -> dict[str, int]:
    """{layer: number of parameters} of one of `MODELS`, in order.

    References
    ----------
    K. He, X. Zhang, S. Ren and J. Sun, "Deep residual learning for image recognition", CVPR 2016, table 1.
    K. Simonyan and A. Zisserman, "Very deep convolutional networks for large-scale image recognition",
    ICLR 2015, table 1, columns A and E. A. Krizhevsky, "One weird trick for parallelizing convolutional
    neural networks", 2014, for AlexNet as in torchvision.
    """
    found = _NETWORKS[model]()
    assert sum(found.values()) == MODELS[model], "the shapes add up to the published number"
    return found


def _resnet(blocks: Sequence[int], *, widens: int) -> dict[str, int]:
    """{layer: number of parameters} of a residual network with `blocks` blocks in each stage.

    A block has two convolutions if `widens` is 1. Otherwise it has three, and the last one is `widens` times
    as wide as the others.
    """
    numbers = {"conv1": 7 * 7 * 3 * 64, "bn1.scale": 64, "bn1.shift": 64}
    inputs = 64
    for stage, (width, count) in enumerate(zip((64, 128, 256, 512), blocks, strict=True), 1):
        for block in range(count):
            outputs = widens * width
            shapes = {"1": (9, inputs, width), "2": (9, width, width)}
            if widens > 1:
                shapes = {"1": (1, inputs, width), "2": (9, width, width), "3": (1, width, outputs)}
            if inputs != outputs:
                shapes["downsample"] = 1, inputs, outputs
            for name, (size, ins, outs) in shapes.items():
                where = f"layer{stage}.{block}.{name}"
                numbers |= {
                    f"{where}.conv": size * ins * outs,
                    f"{where}.scale": outs,
                    f"{where}.shift": outs,
                }
            inputs = outputs
    return {**numbers, "fc.weight": inputs * 1000, "fc.bias": 1000}


def _vgg(layers: Sequence[int]) -> dict[str, int]:
    shapes, inputs = [], 3
    for stage, (width, count) in enumerate(zip((64, 128, 256, 512, 512), layers, strict=True), 1):
        for layer in range(count):
            shapes.append((f"conv{stage}.{layer}", 9 * inputs, width))
            inputs = width
    return _weighted([*shapes, ("fc1", 7 * 7 * 512, 4096), ("fc2", 4096, 4096), ("fc3", 4096, 1000)])


def _alexnet() -> dict[str, int]:
    sizes = ((11, 3, 64), (5, 64, 192), (3, 192, 384), (3, 384, 256), (3, 256, 256))
    shapes = [(f"conv{layer}", size**2 * ins, outs) for layer, (size, ins, outs) in enumerate(sizes, 1)]
    return _weighted([*shapes, ("fc1", 6 * 6 * 256, 4096), ("fc2", 4096, 4096), ("fc3", 4096, 1000)])


def _weighted(shapes: Iterable[tuple[str, int, int]]) -> dict[str, int]:
    """{``NAME.weight`` or ``NAME.bias``: number of parameters}, from (name, inputs per output, outputs)."""
    return {
        f"{name}.{what}": count
        for name, ins, outs in shapes
        for what, count in (("weight", ins * outs), ("bias", outs))
    }


_NETWORKS: dict[str, Callable[[], dict[str, int]]] = {
    "alexnet": _alexnet,
    "resnet-18": partial(_resnet, (2, 2, 2, 2), widens=1),
    "resnet-50": partial(_resnet, (3, 4, 6, 3), widens=4),
    "resnet-152": partial(_resnet, (3, 8, 36, 3), widens=4),
    "vgg-11": partial(_vgg, (1, 1, 2, 2, 2)),
    "vgg-19": partial(_vgg, (2, 2, 4, 4, 4)),
}
