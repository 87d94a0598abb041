"""Allreduces on meshes by mixes of plans that collect sums at hubs of each line."""

import numpy as np
import pytest

import taccl
from taccl._internal.deadline import Deadline
from taccl.baselines import bucket, hub_mixes
from taccl.baselines.hub_mixes import soonest_mix, soonest_plan
from taccl.baselines.hubs import HubPlan, RingSend, hub_sends
from taccl.baselines.line_hubs import Line, classes_of_links, line_plan
from taccl.baselines.mesh_trees import MeshTrees
from taccl.baselines.spread import cut_chunks, merging, without_sketch
from taccl.topology.recognise import grid_of

#: Latency in us per send, and us per byte, of a link.
ALPHA, BETA = 0.5, 20e-6


def mix_of(sizes, num_bytes):
    """(mix on a mesh, its schedule)."""
    made = taccl.topologies.mesh(*sizes)
    problem = taccl.make_problem(made, "allreduce", size_bytes=num_bytes)
    mix = soonest_mix(problem, grid_of(made))
    finer = merging(cut_chunks(without_sketch(problem), mix.parts_per_chunk(problem)))
    found = hub_sends(finer, mix).schedule(finer, producer=str(mix))
    assert found.num_transfers == mix.num_transfers(finer)
    return mix, found


def test_a_line_collects_at_its_hubs():
    """On a line of 4 with hub 1, rank 0 waits for the longer side unless it is early; hubs 1 and 2 swap sums."""
    late, early, two = (line_plan(4, Line(*each)) for each in ((1, 1, False), (1, 1, True), (1, 2, False)))
    assert [(each.step, each.src, each.dst) for each in late.collect] == [(1, 0, 1), (0, 3, 2), (1, 2, 1)]
    assert [(each.step, each.src, each.dst) for each in early.collect] == [(0, 0, 1), (0, 3, 2), (1, 2, 1)]
    assert [(each.step, each.src, each.dst) for each in late.spread] == [(0, 1, 0), (1, 2, 3), (0, 1, 2)]
    assert two.exchange == [RingSend(0, 1, 2, frozenset({0, 1})), RingSend(0, 2, 1, frozenset({2, 3}))]


def test_links_of_a_square_mesh_are_in_six_classes():
    """On 4 x 4, links along a border and along an inner line each lead inwards, across the middle, or outwards."""
    made = taccl.topologies.mesh(4, 4)
    table, sizes, axis = classes_of_links(made, grid_of(made))
    assert sizes.tolist() == [8] * 6 and len(axis) == 6
    assert np.count_nonzero(table >= 0) == 48


def check_the_bucket_algorithm(sizes, num_bytes, finish_us):
    """A mix finishes as estimated, and before other forms of the bucket algorithm."""
    mix, found = mix_of(sizes, num_bytes)
    assert taccl.verify(found).ok
    assert mix.finish_us == pytest.approx(finish_us)
    assert found.finish_us == pytest.approx(finish_us, rel=0.002)
    problem = taccl.make_problem(taccl.topologies.mesh(*sizes), "allreduce", size_bytes=num_bytes)
    assert bucket(problem).finish_us == found.finish_us


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_bytes", "finish_us"),
    [
        # One plan of 7 steps has four images, each with a quarter of the bytes, which share no link in a step.
        (64_000, 7 * ALPHA + 7 / 4 * 64_000 * BETA),
        # Three plans of 9 steps begin one step apart. In each of 11 steps a link carries 1/12 of the bytes.
        (1_000_000, 11 * ALPHA + 11 / 12 * 1_000_000 * BETA),
    ],
)
def test_the_bucket_algorithm_takes_a_mix_if_it_finishes_first(num_bytes, finish_us, monkeypatch):
    """On a mesh of 4 x 4, hubs alone finish as estimated, and before other forms of the algorithm."""
    monkeypatch.setattr(hub_mixes, "_MOST_ROWS_OF_TREES", 0)
    check_the_bucket_algorithm((4, 4), num_bytes, finish_us)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "num_bytes", "num_steps", "share"),
    [
        # Hubs alone take 8.54 us.
        ((3, 3), 288_000, 7, 5 / 6),
        # Hubs alone take 5.74 us.
        pytest.param((4, 4), 64_000, 8, 5 / 4, marks=pytest.mark.slow),
    ],
)
def test_trees_of_any_shape_finish_before_hubs_of_lines(sizes, num_bytes, num_steps, share):
    """Trees need not lead along one dimension after another, so the busiest links of each step carry less."""
    check_the_bucket_algorithm(sizes, num_bytes, num_steps * ALPHA + share * num_bytes * BETA)


@pytest.mark.parametrize("sizes", [(4,), (2, 3), (2, 2, 3)])
def test_tree_plans_spread_every_contribution(sizes):
    """A plan has a send to and from each rank but the root; sums grow until the root has all."""
    made = taccl.topologies.mesh(*sizes)
    dims = grid_of(made)
    table, size, _ = classes_of_links(made, dims)
    trees, num_steps = MeshTrees(dims, table, size), 2 * sum(sizes)
    prices = np.random.default_rng(1).random((2, len(size), num_steps))
    plans = trees.cheapest(prices)
    assert plans
    for plan in plans:
        has = np.eye(dims.num_ranks, dtype=bool)
        for step in range(num_steps):
            now = np.flatnonzero(plan.step == step)
            before = has.copy()
            for i in now:
                assert not (plan.adds[i] & ~before[plan.src[i]]).any()
                has[plan.dst[i]] |= plan.adds[i]
        assert has.all() and len(plan.step) == 2 * (dims.num_ranks - 1)


@pytest.mark.parametrize(
    "sizes",
    [(3,), (4,), (2, 4), *(pytest.param(each, marks=pytest.mark.slow) for each in ((3, 5), (2, 2, 3)))],
)
@pytest.mark.parametrize("num_bytes", [4_800, 480_000])
def test_mixes_are_valid(sizes, num_bytes):
    """Mixes on lines and on meshes of unlike sizes are valid, and finish no later than estimated."""
    mix, found = mix_of(sizes, num_bytes)
    assert taccl.verify(found).ok
    assert found.finish_us <= mix.finish_us * 1.02


@pytest.mark.slow
def test_mixes_of_large_sums_have_many_steps():
    """On a line of 3, 40 MB need 800 us. With at most 10 steps, plans take 887 us."""
    mix, found = mix_of((3,), 40_000_000)
    assert found.finish_us <= mix.finish_us * 1.00001 < 850


@pytest.mark.slow
def test_a_deadline_leaves_the_mixes_found_before_it():
    """Without time for trees, hubs alone are used; a later search finds trees."""
    made = taccl.topologies.mesh(3, 3)
    problem = taccl.make_problem(made, "allreduce", size_bytes=288_000)
    first = soonest_mix(problem, grid_of(made), Deadline.after(0))
    assert soonest_mix(problem, grid_of(made)).finish_us < first.finish_us


def test_no_mix_on_tori_large_meshes_or_for_separate_sends():
    """A torus has one plan of hubs; a mesh has none with separate sends, or with more than 256 ranks."""
    problem = taccl.make_problem(taccl.topologies.torus(4, 4), "allreduce", size_bytes=1000)
    assert isinstance(soonest_plan(problem, grid_of(problem.topology)), HubPlan)
    assert soonest_mix(problem, grid_of(problem.topology)) is None
    for sizes, mixes in (((4, 4), False), ((16, 17), True)):
        made = taccl.topologies.mesh(*sizes)
        problem = taccl.make_problem(made, "allreduce", size_bytes=1000)
        assert soonest_plan(problem, grid_of(made), mixes=mixes) is None


def test_mixes_keep_within_a_number_of_transfers():
    """A mix whose time for building is short has coarser shares, and finishes somewhat later."""
    made = taccl.topologies.mesh(3)
    problem = taccl.make_problem(made, "allreduce", size_bytes=5_000_000)
    fine, coarse = (soonest_mix(problem, grid_of(made), most_transfers=most) for most in (10**6, 100))
    assert coarse.num_parts < fine.num_parts and coarse.finish_us > fine.finish_us
    assert 2 * 2 * np.lcm(coarse.num_parts, problem.collective.num_chunks) <= 100
