"""Synthesis on fabrics that look the same from every rank: one place's pattern, repeated by translations.

allgather
    A tree over all offsets: whenever a class of links is free, it takes the earliest arrival whose step
    along it is still wanted. On tori, hypercubes and the like this meets the bound.
reduce-scatter
    The same on reversed links, with time turned round.
allreduce
    One after the other.
alltoall
    A path for every offset; see `taccl.synthesis.symmetry.offset_paths`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from taccl._internal.units import format_size
from taccl.analysis.certificates.translation_bound import collective_bound
from taccl.errors import InputError
from taccl.schedule.implicit.pattern import ClassTicks, Pattern, ticks_of
from taccl.schedule.implicit.schedule import ImplicitSchedule
from taccl.synthesis.kernels.fabric import components
from taccl.synthesis.parameters import DEFAULTS, SearchParameters
from taccl.synthesis.symmetry.offset_paths import route
from taccl.topology.translations import LinkClass, Translations

_PRODUCER = "translation"
_BYTES_PER_ROW = 100  # of memory, about, for each row of a pattern
_NO_DEADLINE = 2**62  # ticks that no run reaches
#: Random orders: how many, and rows of all of them together.
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


def _tree(
    translations: Translations,
    classes: Sequence[LinkClass],
    ticks: ClassTicks,
    *,
    pieces: int,
    goal: int,
    seed: int,
) -> tuple[Pattern, int]:
    """The tree over all offsets that finishes first, and when; a run that meets the goal is the last."""
    from taccl.synthesis.kernels.offset_kernel import OffsetTree, make_link_classes, spread_offsets

    num_ranks, num_classes = translations.num_ranks, len(classes)
    places = np.arange(num_ranks, dtype=np.int64)
    steps = np.empty((num_ranks, num_classes), dtype=np.int32)
    for g, each in enumerate(classes):
        steps[:, g] = translations.group.translate(places, each.dst)
    nodes = num_ranks * pieces
    speed = np.unique(ticks.latency, return_inverse=True)[1]
    kinds = [np.empty((num_classes, 0), dtype=np.int32)]
    if speed.any():  # slow classes prefer what faster ones do not reach from where the item is
        leads_to = steps.T.ravel().astype(np.int64)
        joined = components(np.tile(places, num_classes), leads_to, np.repeat(speed, num_ranks), num_ranks)
        kinds.append(joined[speed].astype(np.int32))
    restarts = min(_RESTARTS, _RESTART_ROWS // nodes)
    runs = [(kind, -1) for kind in kinds]
    runs += [(kinds[noise % len(kinds)], seed + noise) for noise in range(1, restarts + 1)]
    best: OffsetTree | None = None
    for kind, order in runs:
        deadline = _NO_DEADLINE if best is None else best.finish - 1
        found = spread_offsets(make_link_classes(ticks), steps, kind, pieces, order, deadline)
        best = found if found.finish >= 0 else best
        if best is found and best.finish <= goal:
            break
    assert best is not None, "a fabric whose ranks all reach each other has a tree"
    node = best.sequence[: nodes - pieces]
    src, dst, is_sum = best.parent[node] % num_ranks, node % num_ranks, np.zeros(len(node), dtype=bool)
    tree = Pattern.sorted(node // num_ranks, src, dst, best.taken[node], best.start[node], is_sum)
    return tree, int(best.finish)
