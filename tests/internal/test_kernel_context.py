"""Named tuples and elements of arrays in kernels mean the same as in Python."""

from typing import NamedTuple

import numpy as np
import pytest

from taccl._internal.kernels import compiled, inner

pytestmark = pytest.mark.slow  # one kernel takes 0.5 s to compile


class Inside(NamedTuple):
    weights: np.ndarray
    flags: np.ndarray


class Outside(NamedTuple):
    inside: Inside
    small: np.ndarray
    rows: np.ndarray
    scale: float
    adds: bool


class Pair(NamedTuple):
    one: int
    other: int


def outside():
    """A named tuple with a contiguous array of each kind, one that is not contiguous, and plain values."""
    inside = Inside(np.arange(12.0).reshape(3, 4), np.array([True, False]))
    return Outside(inside, np.array([200, 3], np.uint8), np.arange(20).reshape(4, 5)[::2, 1:4], 0.5, True)


@inner
def weight(outside, i, j):
    return outside.inside.weights[i, j] * outside.scale


@compiled
def read(outside, i, j):
    rows, flags = outside.rows, outside.inside.flags
    total = weight(outside, i, j) + outside.small[outside.small[1] - 3] + rows[i, j]
    total += rows.shape[0] + outside.inside.weights.size + outside.inside.weights[i].sum()
    return total if flags[0] and not flags[1] and outside.adds else -1.0


@pytest.mark.parametrize("i", [1, -1])
@pytest.mark.parametrize("j", [0, -1, -2])
def test_fields_and_elements_are_read_as_in_python(i, j):
    """Kernels read fields of nested named tuples, and elements of their arrays, also from the end."""
    a = outside()
    weights = a.inside.weights
    expected = weights[i, j] * 0.5 + 200 + a.rows[i, j] + 2 + 12 + weights[i].sum()
    assert read(a, i, j) == expected


@compiled
def write(outside, value):
    outside.inside.weights[-1, 2] = value
    outside.inside.weights[0] = 7
    outside.small[0] += 9
    outside.rows[1, -1] = value
    outside.inside.flags[1] = value > 2
    return outside[0].weights[2, 2]


def test_elements_are_written_as_in_python():
    """Kernels write elements, converted to the array's type."""
    ours, expected = outside(), outside()
    assert write(ours, 3) == write._function(expected, 3) == 3.0
    for one, other in zip((*ours.inside, *ours[1:3]), (*expected.inside, *expected[1:3]), strict=True):
        np.testing.assert_array_equal(one, other)


@compiled
def create(one):
    return Pair(one, one).other


def test_a_kernel_cannot_create_a_named_tuple():
    """A kernel that creates a named tuple is refused; it would be on the stack of a function that returns."""
    with pytest.raises(NotImplementedError, match="kernels get named tuples from Python"):
        create(3)


@compiled
def both(pair):
    one, other = pair
    return one - other + pair[0]


def test_a_named_tuple_is_unpacked_as_in_python():
    """Kernels unpack named tuples, and read their fields by number."""
    assert both(Pair(7, 2)) == 12
