"""Synthesis on fabrics that look the same from every rank: one place's pattern, repeated by translations.

allgather
    A tree over all offsets: whenever a class of links is free, it takes the earliest arrival whose step
    along it is still wanted. On tori, hypercubes and the like this meets the bound.
reduce-scatter
    The same on reversed links, with time turned round.
allreduce
    One after the other.
alltoall
    A path for every offset; see `taccl.synthesis.symmetric.offset_paths`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from taccl.analysis.certificates.translation_bound import collective_bound
from taccl.errors import InputError
from taccl.schedule.implicit import ImplicitSchedule
from taccl.schedule.pattern import ClassTicks, Pattern, ticks_of
from taccl.synthesis.heuristic.speeds import components
from taccl.synthesis.parameters import DEFAULTS, SearchParameters, SymmetricParameters
from taccl.synthesis.symmetric.offset_paths import route
from taccl.topology.translations import LinkClass, Translations
from taccl.units import format_size

_PRODUCER = "translation"
_BYTES_PER_ROW = 100
_NO_DEADLINE = 2**62


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

    - `chunk_bytes`, `chunks_per_rank`: `chunks_per_rank` is that of the function of the same name as the
      collective.
    - `seed`: Of restarts on small fabrics that miss their bound.

    Raises `InputError` if the collective is another one, or the pattern would need too much memory.
    `TopologyError` if links do not lead to every rank, or of an alltoall do not run along the axes of the
    group.
    """
    empty = Pattern.sorted([], [], [], [], [], [])
    blank = ImplicitSchedule(translations, collective, chunks_per_rank, chunk_bytes, empty, _PRODUCER)
    _check_memory(translations, chunks_per_rank, parameters.symmetric.most_bytes)
    if translations.num_ranks == 1:
        return blank
    if collective == "alltoall":
        pattern = route(translations, blank.ticks, chunks_per_rank, most_hops=parameters.symmetric.most_hops)
    else:
        bound = collective_bound(
            translations, "allgather", chunks_per_rank=chunks_per_rank, chunk_bytes=chunk_bytes
        )
        goal = int(bound.bound * blank.ticks.ticks_per_us)
        parts = []
        grow = partial(
            _tree, translations, pieces=chunks_per_rank, goal=goal, seed=seed, symmetric=parameters.symmetric
        )
        if collective != "allgather":
            tree = grow(translations.reversed(), ticks_of(translations.reversed(), chunk_bytes))
            parts.append(tree.turned_round())
        if collective != "reduce-scatter":
            parts.append(grow(translations.classes, blank.ticks))
        pattern = _one_after_another(parts)
    return ImplicitSchedule(translations, collective, chunks_per_rank, chunk_bytes, pattern, _PRODUCER)


def memory_needed(translations: Translations, chunks_per_rank: int = 1) -> int:
    """Bytes that a tree over all offsets is found in, more or less: steps of every class, and its rows."""
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


# ---- trees


@dataclass(frozen=True, slots=True)
class _Tree:
    """Rows of a tree in order of start, from place to place; `reduce` where they go to the root."""

    item: NDArray[np.int64]
    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    link_class: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    reduce: bool = False

    @property
    def finish(self) -> int:
        return int(self.end.max(initial=0))

    def turned_round(self) -> _Tree:
        """Sums to the root over the links that were reversed."""
        start = (self.finish - self.end)[::-1]
        columns = (self.item, self.dst, self.src, self.link_class)
        item, src, dst, link_class = (column[::-1] for column in columns)
        return _Tree(item, src, dst, link_class, start, (self.finish - self.start)[::-1], True)


def _one_after_another(trees: Sequence[_Tree]) -> Pattern:
    delays = np.cumsum([0, *(tree.finish for tree in trees)])
    parts = (
        (
            tree.item,
            tree.src,
            tree.dst,
            tree.link_class,
            tree.start + delay,
            np.full(len(tree.item), tree.reduce),
        )
        for tree, delay in zip(trees, delays, strict=False)
    )
    return Pattern.sorted(*map(np.concatenate, zip(*parts, strict=True)))


def _tree(
    translations: Translations,
    classes: Sequence[LinkClass],
    ticks: ClassTicks,
    *,
    pieces: int,
    goal: int,
    seed: int,
    symmetric: SymmetricParameters,
) -> _Tree:
    """The tree over all offsets that finishes first, of several runs; one that meets the goal is the last."""
    from taccl.synthesis.symmetric.offset_kernel import make_server, spread_offsets

    num_ranks, num_classes = translations.num_ranks, len(classes)
    places = np.arange(num_ranks, dtype=np.int64)
    steps = np.empty((num_ranks, num_classes), dtype=np.int32)
    for g, each in enumerate(classes):
        steps[:, g] = translations.group.translate(places, each.dst)
    nodes = num_ranks * pieces
    speed = np.unique(ticks.latency, return_inverse=True)[1]
    kinds = [np.empty((num_classes, 0), dtype=np.int32)]
    if speed.any():  # slow classes prefer what faster ones do not reach from where the item is
        src, dst = np.tile(places, num_classes), steps.T.ravel().astype(np.int64)
        joined = components(src, dst, np.repeat(speed, num_ranks), num_ranks)
        kinds.append(joined[speed].astype(np.int32))
    restarts = min(symmetric.restarts, symmetric.restart_rows // nodes)
    runs = [(kind, -1) for kind in kinds]
    runs += [(kinds[noise % len(kinds)], seed + noise) for noise in range(1, restarts + 1)]
    best: _Tree | None = None
    for kind, order in runs:
        deadline = _NO_DEADLINE if best is None else best.finish - 1
        found = spread_offsets(make_server(ticks), steps, kind, pieces, order, deadline)
        if found.finish < 0:
            continue
        node = found.sequence[: nodes - pieces].astype(np.int64)
        source, link_class = found.parent[node].astype(np.int64), found.taken[node].astype(np.int64)
        began = found.start[node]
        ends_at = began + ticks.latency[link_class]
        best = _Tree(node // num_ranks, source % num_ranks, node % num_ranks, link_class, began, ends_at)
        if found.finish <= goal:
            break
    assert best is not None, "a fabric whose ranks all reach each other has a tree"
    return best
