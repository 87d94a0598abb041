"""Messages between processes."""

import numpy as np
import pytest

from taccl.solvers.wire import decode, encode


def test_arrays_and_values_round_trip():
    """Arrays keep their type and shape, nested or not; JSON values stay as they are."""
    message = {"a": np.arange(6, dtype=np.int32).reshape(2, 3), "b": [1, 2.5, None, True, {"c": np.zeros(0)}]}
    back = decode(encode(message))
    assert back["a"].dtype == np.int32
    assert np.array_equal(back["a"], message["a"])
    assert back["b"][:4] == [1, 2.5, None, True]
    assert back["b"][4]["c"].shape == (0,)


@pytest.mark.parametrize("value", [object(), {(1, 2): 2}, np.array([object()])])
def test_anything_else_is_refused(value):
    """Objects, and keys that are not text or number, cannot be sent."""
    with pytest.raises(TypeError):
        encode({"value": value})
