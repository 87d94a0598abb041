"""Allreduces that collect sums at hubs of each ring of a torus."""

import math
from itertools import product

import pytest

import taccl
from taccl.baselines import bucket, hubs
from taccl.baselines.chunking import cut_chunks, merging, without_sketch
from taccl.baselines.hubs import HubPlan, hub_sends, ring_plan, soonest_hub_plan
from taccl.topology.recognise import grid_of

NAMES = ("every rank", "two arcs", "two hubs", "one hub")
#: Latency in us per send, and us per byte, of a link.
ALPHA, BETA = 0.5, 20e-6


def schedule_of(names, sizes, num_bytes):
    """Schedule of a plan on a torus or a ring, in as many chunks as the plan has parts."""
    made = taccl.topologies.torus(*sizes) if len(sizes) > 1 else taccl.topologies.ring(*sizes)
    problem = taccl.make_problem(made, "allreduce", size_bytes=num_bytes)
    plan = HubPlan(names, grid_of(made))
    finer = cut_chunks(without_sketch(problem), plan.num_parts // math.gcd(plan.num_parts, made.num_ranks))
    finer = merging(finer)
    return plan.estimated_us(problem), hub_sends(finer, plan).schedule(finer, producer=str(plan))


@pytest.mark.parametrize(
    ("size", "name", "steps", "sends"),
    [
        (3, "every rank", 1, 6),
        (4, "every rank", 2, 8),
        (5, "every rank", 2, 20),
        (8, "every rank", 4, 32),
        (6, "two arcs", 4, 14),
        (8, "two arcs", 5, 20),
        (4, "two hubs", 3, 6),
        (8, "two hubs", 7, 14),
        (5, "one hub", 4, 8),
        (8, "one hub", 8, 14),
    ],
)
def test_ring_plans_have_few_steps_or_few_sends(size, name, steps, sends):
    """An exact search finds no fewer sends for 4 ranks, for 5 in these steps, nor for 8 in 4 steps."""
    plan = ring_plan(name, size)
    phases = plan.collect, plan.exchange, plan.spread
    assert sum(1 + max((send.step for send in phase), default=-1) for phase in phases) == steps
    assert sum(map(len, phases)) == sends


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", range(3, 13))
def test_ring_plans_are_valid(name, size):
    """A plan on a ring is a valid schedule that takes as long as estimated."""
    estimate, found = schedule_of((name,), (size,), 24_000)
    assert taccl.verify(found).ok
    assert found.finish_us == pytest.approx(estimate, rel=0.02)


@pytest.mark.parametrize("names", [*product(NAMES, repeat=2)])
def test_torus_plans_are_valid(names):
    """Every pair of ring plans makes a valid schedule of a torus, whose rings may be unlike, or pairs."""
    for sizes in ((4, 4), (3, 6), (2, 4)):
        assert taccl.verify(schedule_of(names, sizes, 4_800)[1]).ok


@pytest.mark.slow
def test_three_dimensions_share_the_load():
    """On equal rings every link carries the same bytes in each step, so the estimate is exact."""
    estimate, found = schedule_of(("every rank", "two hubs", "one hub"), (4, 4, 4), 192_000)
    assert taccl.verify(found).ok
    assert found.finish_us == pytest.approx(estimate, rel=0.002)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_bytes", "steps", "sends"),
    [
        (16_000, 8, 512),  # every rank is a hub: 4 steps and 32 sends for each of 16 rings
        (256_000, 10, 160),  # eight ends of edges: 56 to collect, 6 * 8 to exchange, 56 to spread
        (1_000_000, 11, 140),  # four ends of edges: 60 to collect, 5 * 4 to exchange, 60 to spread
    ],
)
def test_larger_sums_have_fewer_hubs(num_bytes, steps, sends):
    """On a torus of 8 x 8 a step takes alpha, and each send of a byte loads one of 256 links."""
    found = bucket(taccl.make_problem(taccl.topologies.torus(8, 8), "allreduce", size_bytes=num_bytes))
    assert found.finish_us == pytest.approx(steps * ALPHA + num_bytes * BETA * sends / 256, rel=0.001)


def test_lines_and_large_tori_have_no_plan():
    """There is no plan for a mesh, nor for more than 256 ranks."""
    for made in (taccl.topologies.mesh(4, 4), taccl.topologies.torus(16, 17)):
        problem = taccl.make_problem(made, "allreduce", size_bytes=1000)
        assert soonest_hub_plan(problem, grid_of(made)) is None


def test_no_plan_has_too_many_transfers(monkeypatch):
    """Up to the limit, other plans are chosen: rings of four collect at hubs in 30 sends or more per chunk."""
    made = taccl.topologies.torus(4, 4)
    problem = taccl.make_problem(made, "allreduce", size_bytes=1000)
    most = soonest_hub_plan(problem, grid_of(made)).num_transfers(problem)
    monkeypatch.setattr(hubs, "_MOST_TRANSFERS", most - 1)
    assert 30 * 16 <= soonest_hub_plan(problem, grid_of(made)).num_transfers(problem) < most
    monkeypatch.setattr(hubs, "_MOST_TRANSFERS", 30 * 16 - 1)
    assert soonest_hub_plan(problem, grid_of(made)) is None
