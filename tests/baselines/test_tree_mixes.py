"""Allreduces on meshes by mixes of trees."""

import itertools
import time
from types import SimpleNamespace

import numpy as np
import pytest

import taccl
from taccl._internal.deadline import NEVER, Deadline
from taccl.baselines import bucket, tree_mixes
from taccl.baselines.chunking import cut_chunks, merging, without_sketch
from taccl.baselines.hubs import HubPlan, hub_sends
from taccl.baselines.mesh_images import classes_of_links
from taccl.baselines.tree_mixes import soonest_mix, soonest_plan
from taccl.topology.recognise import grid_of


def mix_of(sizes, num_bytes):
    """(mix on a mesh, its schedule)."""
    made = taccl.topologies.mesh(*sizes)
    problem = taccl.make_problem(made, "allreduce", size_bytes=num_bytes)
    mix = soonest_mix(problem, grid_of(made), most_transfers=40_000)
    finer = merging(cut_chunks(without_sketch(problem), mix.parts_per_chunk(problem)))
    found = hub_sends(finer, mix).schedule(finer, producer=str(mix))
    assert found.num_transfers == mix.num_transfers(finer)
    return mix, found


def test_links_of_a_square_mesh_are_in_six_classes():
    """On 4 x 4, links along a border and along an inner line each lead inwards, across the middle, or outwards."""
    made = taccl.topologies.mesh(4, 4)
    table, sizes, axis = classes_of_links(made, grid_of(made))
    assert sizes.tolist() == [8] * 6 and len(axis) == 6
    assert np.count_nonzero(table >= 0) == 48


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "num_bytes", "before_us"),
    [
        # Plans with hubs of each line took 5.74 us, and mixes with two hubs along each dimension 5.54 us.
        ((4, 4), 64_000, 5.45),
        # Trees of any shape by linear programs take 22.41 us, and mixes whose links keep in step 22.57 us.
        ((4, 4), 1_000_000, 22.1),
        # Mixes whose links keep in step take 10.35 us.
        ((8, 8), 64_000, 10.3),
    ],
)
def test_mixes_of_trees_finish_before_other_forms(sizes, num_bytes, before_us):
    """A mix finishes as estimated, and the bucket algorithm takes it or one that is as early."""
    mix, found = mix_of(sizes, num_bytes)
    assert taccl.verify(found).ok
    assert found.finish_us == pytest.approx(mix.finish_us, rel=0.002)
    assert found.finish_us < before_us
    problem = taccl.make_problem(taccl.topologies.mesh(*sizes), "allreduce", size_bytes=num_bytes)
    assert bucket(problem).finish_us < 1.004 * found.finish_us


@pytest.mark.parametrize("sizes", [(4,), (2, 3), (2, 2, 3)])
def test_plans_spread_every_contribution(sizes):
    """Ranks send only what they have; in the end each has all contributions, and none has any twice."""
    mix, _ = mix_of(sizes, 10_000)
    assert_sums_are_whole(mix)


def test_wide_blocks_of_hubs_suit_small_sums():
    """On 4 x 4, 16 KB take 3.96 us with two hubs along each dimension, and 3.57 us at least."""
    mix, found = mix_of((4, 4), 16_000)
    assert taccl.verify(found).ok
    assert found.finish_us == pytest.approx(3.8)
    assert_sums_are_whole(mix)


def assert_sums_are_whole(mix):
    """Each plan of a mix brings all contributions to all ranks."""
    for (step, src, dst, adds), _ in mix.plans:
        has = np.eye(len(adds[0]), dtype=bool)
        for k in np.unique(step):
            before = has.copy()
            for i in np.flatnonzero(step == k):
                assert not (adds[i] & ~before[src[i]]).any()
                replaces = not (has[dst[i]] & ~adds[i]).any()
                assert replaces or not (adds[i] & has[dst[i]]).any()
                has[dst[i]] |= adds[i]
        assert has.all()


def test_messages_at_corners_take_several_steps():
    """With a span of 3, messages at corners begin every third step if they add, and end so if they copy."""
    made = taccl.topologies.mesh(3, 3)
    mixes = tree_mixes._Mixes(made, grid_of(made), 10_000, 1)
    found = mixes._searched(4, 13, 3, 2, NEVER)
    assert found.steps == 15 and mixes.at_ends.tolist() == [True, True, False, False]
    adds, copies = (each[mixes.at_ends].any(axis=0) for each in found.shares.sends)
    assert adds.any() and not (adds & (np.arange(15) % 3 > 0)).any()
    assert copies.any() and not (copies & (np.arange(15) % 3 < 2)).any()
    assert_sums_are_whole(mixes._mix(found))


def test_restarts_keep_the_best(monkeypatch):
    """Links drift apart again with other random numbers, and the best of all drifts is kept."""
    made = taccl.topologies.mesh(2, 3)
    mixes = tree_mixes._Mixes(made, grid_of(made), 1_000_000, 1)
    even = mixes._searched(4, 7, 1, 2, NEVER)
    monkeypatch.setattr(tree_mixes, "_RESTARTS", 0)
    once = mixes._improved(even, [], NEVER)
    monkeypatch.setattr(tree_mixes, "_RESTARTS", 6)
    again = mixes._improved(even, [], NEVER)
    assert [key[-1] for key in mixes._drifted if key[-1] is not None] == [*range(2, 8)]
    assert again.finish_us < once.finish_us
    assert_sums_are_whole(mixes._mix(again))


def test_the_best_drift_of_few_shares_is_repeated_with_more(monkeypatch):
    """Links drift apart in all ways with few shares, then in the best way with all of them."""
    made = taccl.topologies.mesh(2, 3)
    mixes = tree_mixes._Mixes(made, grid_of(made), 320_000, 1)
    even = mixes._searched(32, 6, 1, 2, NEVER)
    monkeypatch.setattr(tree_mixes, "_FEW_WORK", 8**2 * 6)
    few = mixes._few_like(even, [4, 8, 32], NEVER)
    assert (few.number, few.steps, few.span) == (8, even.steps, even.span)
    best, start, _ = mixes._drifted_apart(even, few, NEVER)
    (*tries, last) = (key[1:4] for key in mixes._drifted)
    assert [number for number, _, _ in tries] == [8, 8, 8]
    assert last[0] == 32 and last[1:] in [each[1:] for each in tries]
    assert best.finish_us < even.finish_us and start.number in (8, 32)


@pytest.mark.parametrize(
    "sizes",
    [(3,), (4,), *(pytest.param(each, marks=pytest.mark.slow) for each in ((2, 4), (3, 5), (2, 2, 3)))],
)
@pytest.mark.parametrize("num_bytes", [4_800, 96_000])
def test_mixes_are_valid(sizes, num_bytes):
    """Mixes on lines and on meshes of unlike sizes are valid, and finish no later than estimated."""
    mix, found = mix_of(sizes, num_bytes)
    assert taccl.verify(found).ok
    assert found.finish_us == pytest.approx(mix.finish_us, rel=0.02)  # bytes are rounded


@pytest.mark.slow
def test_mixes_of_large_sums_have_many_steps():
    """On a line of 3, 40 MB need 800 us. With at most 10 steps, plans take 887 us."""
    mix, found = mix_of((3,), 40_000_000)
    assert found.finish_us <= mix.finish_us * 1.0001 < 855


def test_a_deadline_leaves_the_mixes_found_before_it():
    """Without time, coarse shares with few steps are used; a later search finds better ones."""
    made = taccl.topologies.mesh(3, 3)
    problem = taccl.make_problem(made, "allreduce", size_bytes=288_000)
    first = soonest_mix(problem, grid_of(made), Deadline.after(0))
    assert soonest_mix(problem, grid_of(made)).finish_us < first.finish_us


def test_sweeps_sharpen_sooner_if_time_is_short(monkeypatch):
    """Sweeps reach the last sharpness within the time left; a later search with enough time repeats them."""
    made = taccl.topologies.mesh(3)
    problem = taccl.make_problem(made, "allreduce", size_bytes=30_000)
    clock, rules, drifts = itertools.count(time.monotonic(), 10.0), tree_mixes.Rules, []

    def noted(sharp, counts, drifting, *others):
        if drifting:
            drifts.append(sharp)
        return rules(sharp, counts, drifting, *others)

    monkeypatch.setattr(tree_mixes, "Rules", noted)
    with monkeypatch.context() as fast:
        fast.setattr(tree_mixes, "time", SimpleNamespace(monotonic=lambda: next(clock)))
        soonest_mix(problem, grid_of(made), Deadline.after(100))
    hurried = drifts[:]
    soonest_mix(problem, grid_of(made))
    relaxed = drifts[len(hurried) :]
    assert hurried[0] == relaxed[0]
    assert hurried.count(max(hurried)) > relaxed.count(max(relaxed)) > 0


def test_no_mix_without_time_to_compile_its_kernel(monkeypatch):
    """If the kernel is not compiled, a mix is made only if there is time for that."""
    made = taccl.topologies.mesh(3)
    problem = taccl.make_problem(made, "allreduce", size_bytes=3000)
    monkeypatch.setattr(tree_mixes, "is_compiled", lambda kernel: False)
    assert soonest_mix(problem, grid_of(made), Deadline.after(0)) is None
    assert soonest_mix(problem, grid_of(made), Deadline.after(1000)) is not None


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
    problem = taccl.make_problem(made, "allreduce", size_bytes=500_000)
    fine, coarse = (soonest_mix(problem, grid_of(made), most_transfers=most) for most in (10**6, 100))
    assert coarse.num_parts < fine.num_parts and coarse.finish_us > fine.finish_us
    assert 2 * 2 * np.lcm(coarse.num_parts, problem.collective.num_chunks) <= 100
