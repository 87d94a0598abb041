"""The bound for algorithms that work dimension by dimension: loads, prices and proofs."""

import random
from dataclasses import replace
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest

import taccl
from taccl.analysis.certificates.dimension_bound import balance, bound_along, dimension_bound
from taccl.errors import CollectiveError
from taccl.problem.making import make_problem
from tests.fuzzing import cases


def test_loads_by_hand():
    """Loads of both orders of a 16 x 64 product, as computed by hand.

    The loads of dimensions 1 and 2, in units of 10 us per MB (100 GB/s), are 15/16 and (63/64)/16. In reverse
    order they are (15/16)/64 and 63/64.
    """
    dims = taccl.dimensions("multidim:switch16@100,switch64@100")
    assert dims.loads_us_per_mb((0, 1)) == (Fraction(150, 16), Fraction(630, 1024))
    assert dims.loads_us_per_mb((1, 0)) == (Fraction(150, 1024), Fraction(630, 64))


def test_an_exchange_loads_by_hops():
    """An alltoall along a ring loads its links by hops, in any order of dimensions.

    On a ring of 5 the five parts travel 0, 1, 2, 2 and 1 hops.
    """
    dims = taccl.dimensions("multidim:ring5@100,switch4@100")
    for order in ((0, 1), (1, 0)):
        assert dims.loads_us_per_mb(order, exchange=True) == (Fraction(60, 5), Fraction(30, 4))


def test_the_worked_example():
    """The optimal mix of the two orders of a 16 x 64 product equals the one computed by hand.

    If a share x of the data takes the order (1, 2), both dimensions are busy for equally long: 1.875 x +
    0.029 (1 - x) = 0.123 x + 1.969 (1 - x), so x = 0.525.
    """
    dims = taccl.dimensions("multidim:switch16@100,switch64@100")
    shares, prices = balance(dims, "allreduce")
    assert shares[0, 1] == pytest.approx(0.5255, abs=1e-3) and sum(prices) == 1
    bound = dimension_bound(dims, "allreduce", 10**9)
    assert bound.bound_us == pytest.approx(9990.23, abs=0.1) and bound.gain == pytest.approx(1.877, abs=1e-3)
    assert bound.check() and "1.88 times as long" in bound.limits


@pytest.mark.parametrize(
    ("dims", "ratio"),
    [
        ("switch16@100,switch64@100", 1.88), ("switch16@100,switch8@100,switch8@100", 2.82),
        ("switch4@100,switch8@100,switch8@100,switch4@100", 3.00),
        ("switch16@200,switch8@100,switch8@50", 1.64), ("switch8@100,switch16@25,switch8@12.5", 1.20),
    ],
)  # fmt: skip
def test_what_balancing_gains(dims, ratio):
    """The gain is the finish of a fixed order of dimensions over that of the optimal mix, if only bandwidth
    counts."""
    bound = dimension_bound(taccl.dimensions(f"multidim:{dims}"), "allreduce", 10**9)
    assert round(bound.gain, 2) == ratio


def test_one_dimension_gains_nothing():
    """One dimension has one order and a gain of 1."""
    bound = dimension_bound(taccl.dimensions("multidim:switch4@100"), "allgather", 10**6)
    assert bound.bound_us == 7.5 and bound.gain == 1 and "gains nothing" in bound.limits


def test_a_bound_that_prices_do_not_prove_is_refused():
    """A bound above what its prices prove, prices that do not sum to 1, negative ones and floats are refused."""
    bound = dimension_bound(taccl.dimensions("multidim:switch4@100,switch3@50"), "allreduce", 10**6)
    assert bound.check()
    assert not replace(bound, bound=bound.bound * Fraction(1001, 1000)).check()
    assert not replace(bound, prices=(Fraction(1), Fraction(1))).check()
    assert not replace(bound, prices=(Fraction(3), Fraction(-2))).check()
    assert not replace(bound, prices=(Fraction(1),)).check()
    assert not replace(bound, prices=tuple(map(float, bound.prices))).check()
    assert not replace(bound, bound=float(bound.bound)).check()


def test_the_optimum_is_that_over_every_order():
    """The optimum equals that of a linear program with a column per order of dimensions, solved by another
    solver; the prices prove it."""
    from scipy.optimize import linprog

    for seed in cases("dimension bounds", few=10, many=300):
        rng = random.Random(seed)
        words = [
            f"{rng.choice(('ring', 'switch'))}{rng.randint(2, 9)}@{rng.choice((400, 100, 50, 12.5))}"
            for _ in range(rng.randint(1, 5))
        ]
        dims = taccl.dimensions(f"multidim:{','.join(words)}")
        orders = list(permutations(range(len(dims))))
        loads = np.array([dims.loads_us_per_mb(order) for order in orders], float)
        found = linprog(
            np.append(np.zeros(len(orders)), 1.0),
            A_ub=np.column_stack((loads.T, -np.ones(len(dims)))), b_ub=np.zeros(len(dims)),
            A_eq=np.append(np.ones(len(orders)), 0.0)[None, :], b_eq=[1.0], method="highs-ipm",
        )  # fmt: skip
        bound = dimension_bound(dims, "allgather", 10**6)
        assert bound.check() and bound.bound_us == pytest.approx(found.fun, rel=1e-4), (seed, words)
        assert bound.bound_us <= found.fun * (1 + 1e-9)


def test_many_dimensions_need_no_list_of_orders():
    """The bound of many dimensions is found without a list of their orders.

    A hypercube of 12 dimensions has 479 million orders; by symmetry each dimension goes first for 1/12 of the
    data.
    """
    bound = dimension_bound(taccl.dimensions("hypercube:12"), "allgather", 4096 * 10**6)
    # 4095 MB must enter each rank through 12 links of 50 GB/s.
    assert bound.check() and bound.bound_us == pytest.approx(4095 * 20 / 12, rel=1e-4)


def test_only_whole_collectives_on_products_have_the_bound():
    """A broadcast, process groups, one dimension and topologies that are not products have no bound of
    dimensions."""
    topology = taccl.topologies.parse("torus:3x3")
    assert bound_along(make_problem(topology, "allreduce", size_bytes=10**6)) is not None
    assert bound_along(make_problem(topology, "broadcast", size_bytes=10**6, root=0)) is None
    ring = taccl.topologies.parse("ring:4")
    assert bound_along(make_problem(ring, "allreduce", size_bytes=10**6)) is None
    assert bound_along(make_problem(taccl.topologies.ndv2(1), "allreduce", size_bytes=10**6)) is None
    with pytest.raises(CollectiveError, match="found broadcast"):
        dimension_bound(taccl.dimensions("torus:3x3"), "broadcast", 10)


def test_explain_says_which_dimensions_limit():
    """`explain` names the limiting dimensions and the gain from balancing, besides the bound."""
    topology = taccl.topologies.parse("multidim:switch4@100,switch4@100")
    found = taccl.explain(make_problem(topology, "allreduce", size_bytes=10**6))
    assert "dimension 1 (switch4@100) and dimension 2 (switch4@100) are busy" in repr(found)
    assert found.to_dict()["dimension_bound_us"] == found.dimension_bound.bound_us
