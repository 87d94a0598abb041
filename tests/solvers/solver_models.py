"""Small models with known answers, shared by the solver tests."""

from __future__ import annotations

import numpy as np

from taccl.solvers.model import MilpModel

SOLVERS = ("highs", "scip", "cbc", "gurobi", "cpsat")


def knapsack() -> MilpModel:
    """Maximal value of items of value 60, 100, 120 and weight 1, 2, 3 in a capacity of 5: 100 + 120 = 220,
    minimised as -220."""
    model = MilpModel()
    items = [model.add_variable(0, 1, integer=True, cost=-value) for value in (60, 100, 120)]
    model.add_row(zip((1, 2, 3), items, strict=True), upper=5, tag="capacity")
    return model


def assignment() -> MilpModel:
    """An assignment with costs ((4, 1, 3), (2, 0, 5), (3, 2, 2)); the cheapest one costs 5.

    The six permutations: 4+0+2 = 6, 4+5+2 = 11, 1+2+2 = 5, 1+5+3 = 9, 3+2+2 = 7, 3+0+3 = 6.
    """
    costs = ((4, 1, 3), (2, 0, 5), (3, 2, 2))
    model = MilpModel()
    cell = [[model.add_variable(0, 1, integer=True, cost=cost) for cost in row] for row in costs]
    for index in range(3):
        model.add_row([(1, cell[index][column]) for column in range(3)], 1, 1, tag="one per row")
        model.add_row([(1, cell[row][index]) for row in range(3)], 1, 1, tag="one per column")
    return model


def two_jobs() -> MilpModel:
    """Jobs of 2.5 and 1.5 us on one machine, ordered by big-M rows: the later one ends at 4 us in either
    order."""
    model = MilpModel()
    start = [model.add_variable(0, 10) for _ in range(2)]
    finish = model.add_variable(0, 20, cost=1)
    first = model.add_variable(0, 1, integer=True)
    model.add_row([(1, start[1]), (-1, start[0]), (-100, first)], lower=2.5 - 100, tag="order")
    model.add_row([(1, start[0]), (-1, start[1]), (100, first)], lower=1.5, tag="order")
    model.add_row([(1, finish), (-1, start[0])], lower=2.5, tag="finish")
    model.add_row([(1, finish), (-1, start[1])], lower=1.5, tag="finish")
    return model


def odd_sum() -> MilpModel:
    """2x + 2y = 1 in whole numbers: infeasible, though its relaxation is not."""
    model = MilpModel()
    x, y = model.add_variable(0, 1, integer=True, cost=1), model.add_variable(0, 1, integer=True)
    model.add_row([(2, x), (2, y)], 1, 1, tag="odd")
    return model


def market_split(*, soft: bool, num_rows: int = 5, num_items: int = 40) -> MilpModel:
    """Model that must halve every product's demand exactly: no solver does so in seconds (Cornuejols and
    Dawande 1998).

    If `soft`, a miss costs its size, so that every split is feasible and the optimum stays out of reach.
    """
    random = np.random.default_rng(1)
    model = MilpModel()
    items = [model.add_variable(0, 1, integer=True) for _ in range(num_items)]
    for _ in range(num_rows):
        demand = random.integers(0, 100, num_items)
        terms = [(int(amount), item) for amount, item in zip(demand, items, strict=True)]
        if soft:
            terms += [(1, model.add_variable(0, 10**4, integer=True, cost=1))]
            terms += [(-1, model.add_variable(0, 10**4, integer=True, cost=1))]
        half = int(demand.sum()) // 2
        model.add_row(terms, half, half, tag="half")
    return model
