"""Paths of an alltoall on a fabric with translations: one for every offset, the same from every place.

A path goes along the axes one after another, starting with a different axis by offset, so that all links
are busy from the start; what has farthest to go goes first.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from taccl._internal.units import format_size
from taccl.errors import InputError, TopologyError
from taccl.schedule.implicit.pattern import ClassTicks, Pattern
from taccl.topology.regular import CyclicProduct
from taccl.topology.translations import Translations

_BYTES_PER_HOP = 150  # of memory, about, for each hop


def route(translations: Translations, ticks: ClassTicks, pieces: int, *, most_hops: int) -> Pattern:
    """Every offset its own path; paths are columns of hops, one item after another."""
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
    """The class of every hop of every item, and where each item's hops begin."""
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
    # Half way round, which way is as long: the other digits decide, so that both are used as much.
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
    """The class that goes one up, and one down, along every axis of the group; -1 where there is none."""
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
    """The places that every hop goes from and to."""
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
