"""Synthesis on fabrics that look the same from every rank: the pattern of one rank, repeated by translations.

allgather
    A tree from one rank to all offsets (ranks relative to it). A free class of links extends the tree from
    the earliest reached offset whose neighbour over this class is not reached yet. On tori, hypercubes and
    similar fabrics this meets the bound.
reduce-scatter
    The same on reversed links, reversed in time.
allreduce
    The reduce-scatter followed by the allgather.
alltoall
    A path for every offset, the same from every rank. It goes along one axis after another, and the first
    axis depends on the offset, so that all links are busy from the start. The longest paths have priority.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taccl._internal.units import format_size
from taccl.analysis.certificates.translation_bound import collective_bound
from taccl.errors import InputError, TopologyError
from taccl.schedule.implicit_schedule import ClassTicks, ImplicitSchedule, Pattern, ticks_of
from taccl.synthesis.kernels.fabric import components
from taccl.synthesis.parameters import DEFAULTS, SearchParameters
from taccl.topology.translations import CyclicProduct, LinkClass, Translations

_PRODUCER = "translation"
_BYTES_PER_ROW = 100  # estimated bytes of memory per row of a pattern
_NO_DEADLINE = 2**62  # ticks beyond any finish
#: `_RESTARTS`: max restarts with random orders.
#: `_RESTART_ROWS`: max product of the number of rows of a pattern and the number of restarts.
_RESTARTS, _RESTART_ROWS = 60, 400_000


def translate(
    translations: Translations,
    collective: str = "allgather",
    *,
    chunk_bytes: int,
    chunks_per_rank: int = 1,
    seed: int = 0,
    parameters: SearchParameters = DEFAULTS,
) -> ImplicitSchedule:
    """The implicit schedule of a collective on a fabric with translations.

    - `chunk_bytes`: Bytes of one chunk.
    - `chunks_per_rank`: Chunks per rank, as for the collective of this name in `taccl.collectives`.
    - `seed`: Seed of restarts, which run if a small fabric misses its bound.

    Raises `InputError` if the collective is not supported, or the pattern would need too much memory;
    `TopologyError` if links do not lead to every rank, or, for an alltoall, do not run along the axes of the
    group.
    """
    empty = Pattern.sorted([], [], [], [], [], [])
    blank = ImplicitSchedule(translations, collective, chunks_per_rank, chunk_bytes, empty, _PRODUCER)
    _check_memory(translations, chunks_per_rank, parameters.symmetric.most_bytes)
    if translations.num_ranks == 1:
        return blank
    if collective == "alltoall":
        pattern = route(translations, blank.ticks, chunks_per_rank, most_hops=parameters.symmetric.most_hops)
        return replace(blank, pattern=pattern)
    bound = collective_bound(
        translations, "allgather", chunks_per_rank=chunks_per_rank, chunk_bytes=chunk_bytes
    )
    goal = int(bound.bound * blank.ticks.ticks_per_us)
    grow = partial(_tree, translations, pieces=chunks_per_rank, goal=goal, seed=seed)
    pattern, summed = empty, 0
    if collective != "allgather":
        classes = translations.reversed()
        ticks = ticks_of(classes, chunk_bytes)
        tree, summed = grow(classes, ticks)
        start = summed - tree.start - ticks.latency[tree.link_class]
        columns = tree.item, tree.dst, tree.src, tree.link_class, start, np.ones(len(start), dtype=bool)
        pattern = Pattern.sorted(*(column[::-1] for column in columns))
    if collective != "reduce-scatter":
        tree, _ = grow(translations.classes, blank.ticks)
        copies = tree._replace(start=tree.start + summed)
        both: Iterable[tuple[Any, Any]] = zip(pattern, copies, strict=True)
        pattern = Pattern.sorted(*map(np.concatenate, both))
    return replace(blank, pattern=pattern)


def memory_needed(translations: Translations, chunks_per_rank: int = 1) -> int:
    """Estimated bytes to grow a tree over all rank offsets: its table of neighbours and its pattern."""
    nodes = translations.num_ranks * chunks_per_rank
    return 4 * translations.num_ranks * len(translations.classes) + _BYTES_PER_ROW * nodes


def _check_memory(translations: Translations, chunks_per_rank: int, most_bytes: int) -> None:
    needed = memory_needed(translations, chunks_per_rank)
    if needed > most_bytes or translations.num_ranks * chunks_per_rank >= 2**31:
        raise InputError(
            f"found {translations.num_ranks} ranks with {len(translations.classes)} links and "
            f"{chunks_per_rank} chunks each, which need {format_size(needed)}; expected at most "
            f"{format_size(most_bytes)}: ask for fewer ranks or chunks",
            where=translations.host.name,
        )


def _tree(
    translations: Translations,
    classes: Sequence[LinkClass],
    ticks: ClassTicks,
    *,
    pieces: int,
    goal: int,
    seed: int,
) -> tuple[Pattern, int]:
    """(pattern, finish in ticks) of the spanning tree over all offsets with the earliest finish.

    Several runs are made, until one finishes by `goal` ticks.
    """
    from taccl.synthesis.kernels.offset_kernel import OffsetTree, make_link_classes, spread_offsets

    num_ranks, num_classes = translations.num_ranks, len(classes)
    places = np.arange(num_ranks, dtype=np.int64)
    steps = np.empty((num_ranks, num_classes), dtype=np.int32)
    for g, each in enumerate(classes):
        steps[:, g] = translations.group.translate(places, each.dst)
    nodes = num_ranks * pieces
    speed = np.unique(ticks.latency, return_inverse=True)[1]
    kinds = [np.empty((num_classes, 0), dtype=np.int32)]
    # Slow links first serve offsets that faster links cannot reach from any offset that has the chunk.
    if speed.any():
        leads_to = steps.T.ravel().astype(np.int64)
        joined = components(np.tile(places, num_classes), leads_to, np.repeat(speed, num_ranks), num_ranks)
        kinds.append(joined[speed].astype(np.int32))
    restarts = min(_RESTARTS, _RESTART_ROWS // nodes)
    runs = [(kind, -1) for kind in kinds]
    runs += [(kinds[noise % len(kinds)], seed + noise) for noise in range(1, restarts + 1)]
    best: OffsetTree | None = None
    for kind, order in runs:
        deadline = _NO_DEADLINE if best is None else best.finish - 1
        found = OffsetTree(*spread_offsets(make_link_classes(ticks), steps, kind, pieces, order, deadline))
        best = found if found.finish >= 0 else best
        if best is found and best.finish <= goal:
            break
    assert best is not None, "a fabric whose ranks all reach each other has a tree"
    node = best.sequence[: nodes - pieces]
    src, dst, is_sum = best.parent[node] % num_ranks, node % num_ranks, np.zeros(len(node), dtype=bool)
    tree = Pattern.sorted(node // num_ranks, src, dst, best.taken[node], best.start[node], is_sum)
    return tree, int(best.finish)


_BYTES_PER_HOP = 150  # estimated bytes of memory per hop


def route(translations: Translations, ticks: ClassTicks, pieces: int, *, most_hops: int) -> Pattern:
    """Pattern of an alltoall: paths of one rank's chunks to all other ranks, with the starts of their hops.

    - `pieces`: Number of chunks that a rank sends to each other rank.
    - `most_hops`: Max hops of all paths together, above which `InputError` is raised; no limit on a fully
      connected fabric.
    """
    from taccl.synthesis.kernels.offset_kernel import make_link_classes, route_offsets

    link_class, path_of = _paths(translations, pieces, most_hops)
    num_items = len(path_of) - 1
    latency = ticks.latency[link_class]
    done = np.concatenate(([0], np.cumsum(latency)))
    item = np.repeat(np.arange(num_items), np.diff(path_of))
    left = done[path_of[item + 1]] - done[:-1]
    start = np.empty(len(link_class), dtype=np.int64)
    route_offsets(make_link_classes(ticks), path_of, link_class, left, start)
    src, dst = _places(translations, link_class, path_of, item)
    return Pattern.sorted(item, src, dst, link_class, start, np.zeros(len(item), dtype=bool))


def _paths(
    translations: Translations, pieces: int, most_hops: int
) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """((num_hops,) link class of each hop, (num_items + 1,) first hop of each chunk of one rank).

    Item ``offset * pieces + i`` is the i-th chunk for the rank at this offset from its sender.
    """
    num_ranks = translations.num_ranks
    number = {each.dst: g for g, each in enumerate(translations.classes)}
    items = np.arange(num_ranks * pieces, dtype=np.int64)
    offset = items // pieces
    if len(number) == num_ranks - 1:
        direct = np.array([number.get(o, 0) for o in range(num_ranks)], dtype=np.int16)
        return direct[offset[offset > 0]], np.concatenate(([0], np.cumsum(offset > 0)))
    upwards, downwards, moduli = _axes(translations, number)
    strides = [int(np.prod(moduli[axis + 1 :], dtype=np.int64)) for axis in range(len(moduli))]
    digits = np.stack([offset // s % m for s, m in zip(strides, moduli, strict=True)], axis=1)
    around = np.array(moduli) - digits
    up, down = np.array(upwards), np.array(downwards)
    # Half way round an axis, the parity of the other digits chooses the direction, so both are used equally.
    others = digits.sum(axis=1, keepdims=True) - digits + (items % pieces)[:, None]
    goes_up = (digits < around) | ((digits == around) & (others % 2 == 0))
    goes_up = (goes_up & (up >= 0)) | (down < 0)
    counts = np.where(goes_up, digits, around) * (digits > 0)
    classes = np.where(goes_up, up, down)
    turn = (digits.sum(axis=1) + items % pieces)[:, None] + np.arange(len(moduli))
    counts = np.take_along_axis(counts, turn % len(moduli), axis=1)
    classes = np.take_along_axis(classes, turn % len(moduli), axis=1)
    total = int(counts.sum())
    if total > most_hops:
        raise InputError(
            f"found {total} hops of one rank's chunks, which need {format_size(_BYTES_PER_HOP * total)}; "
            f"expected at most {most_hops}: ask for fewer ranks",
            where=translations.host.name,
        )
    path_of = np.concatenate(([0], np.cumsum(counts.sum(axis=1))))
    return np.repeat(classes.ravel(), counts.ravel()).astype(np.int16), path_of


def _axes(translations: Translations, number: dict[int, int]) -> tuple[list[int], list[int], tuple[int, ...]]:
    """(class of links one step up, class of links one step down, length) of the axes; -1 for no class."""
    group = translations.group
    moduli = tuple(m for m in group.moduli if m > 1) if isinstance(group, CyclicProduct) else ()
    upwards, downwards = [], []
    stride = translations.num_ranks
    for modulus in moduli:
        stride //= modulus
        upwards.append(number.get(stride, -1))
        downwards.append(number.get((modulus - 1) * stride, -1) if modulus > 2 else -1)
    if not moduli or any(max(pair) < 0 for pair in zip(upwards, downwards, strict=True)):
        raise TopologyError(
            "links do not go along the axes of the translations, as alltoall does; use backend='greedy'",
            where=translations.host.name,
        )
    return upwards, downwards, moduli


def _places(
    translations: Translations,
    link_class: NDArray[np.int16],
    path_of: NDArray[np.int64],
    item: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(sources, destinations) of the hops, as offsets from the origin of the chunk."""
    group = translations.group
    step = np.array([each.dst for each in translations.classes], dtype=np.int64)[link_class]
    if len(translations.classes) == translations.num_ranks - 1:
        return np.zeros(len(step), dtype=np.int64), step
    assert isinstance(group, CyclicProduct)
    dst, stride = np.zeros(len(step), dtype=np.int64), group.order
    for modulus in group.moduli:
        stride //= modulus
        gone = np.concatenate(([0], np.cumsum(step // stride % modulus)))
        dst += (gone[1:] - gone[path_of[item]]) % modulus * stride
    return group.taking(step, dst), dst
