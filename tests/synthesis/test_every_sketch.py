"""Every shipped sketch and every file of the published tool gives a verified schedule."""

import pytest

import taccl
from taccl.sketch.upstream import load_problem
from tests.effort import PATIENT
from tests.foreign import OURS
from tests.fuzzing import MANY, by_turns, thinned
from tests.sketch.test_upstream import PAIRS, SIZES, SKETCHES

COLLECTIVES = ("allgather", "alltoall", "allreduce")


def assert_sound(result):
    """Assert that the schedule verifies and finishes no earlier than its bound."""
    taccl.verify(result.schedule).raise_if_failed()
    was_early = any("before a lower bound was proven" in note for note in result.notes)
    assert 0 < result.bound_us <= result.finish_us or (was_early and not result.bound_us)
    assert result.stages


OF_64_RANKS = ("dgx2/sk1-n4", "dgx2/sk2-n4")
# As runs take seconds, each sketch has one collective, except alltoall of 64 ranks; TACCL_MANY=1 runs all.
SHIPPED = [
    (name, collective)
    for i, name in enumerate(taccl.shipped_sketches())
    for j, collective in enumerate(COLLECTIVES)
    if MANY or ((i + j) % len(COLLECTIVES) == 0 and not (name in OF_64_RANKS and collective == "alltoall"))
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "collective"), SHIPPED)
def test_shipped_sketch(name, collective):
    """The portfolio synthesizes a shipped sketch in seconds, on its own machine."""
    sketch = taccl.load_sketch(name)
    topology = sketch.topology()
    chunks = taccl.collectives.make(collective, topology.num_ranks, chunks_per_rank=sketch.chunks.per_rank)
    # The first run of the compiled list scheduler on an alltoall of 64 ranks takes up to 15 s.
    limit_s = 15 if collective == "alltoall" and topology.num_ranks == 64 else 0.1
    result = taccl.synthesize(sketch.apply(topology, chunks), time_limit_s=limit_s, parameters=PATIENT)
    assert_sound(result)
    assert result.schedule.problem.collective == chunks
    assert len(result.schedule.problem.clauses.symmetry) == len(sketch.symmetry)
    assert result.notes == ()


#: Our files by cost model: (cost model, topology, sketch).
OURS_TOGETHER = [
    ("upstream", "hub-n1", "hub-64KB"), ("upstream", "hub-n2", "hub-64KB"), ("upstream", "hub-n3", "hub-64KB"),
    ("upstream", "hub-rails-n2", "hub-64KB"), ("upstream", "three-n1", "three-by-hand"),
    ("upstream", "ndv2-n2", "ndv2-2MB"), ("physical", "ndv2-n1", "ndv2-2MB"), ("physical", "dgx2-n1", "dgx2-4KB"),
]  # fmt: skip


def assert_scheduled(sketch, topology, collective, cost_model):
    """Assert that a sketch file on a topology file is scheduled within 0.1 s."""
    problem = load_problem(sketch, topology, collective=collective, cost_model=cost_model)
    result = taccl.synthesize(problem, backend="greedy", time_limit_s=0.1, parameters=PATIENT)
    assert_sound(result)
    assert result.schedule.problem.topology.cost_model == cost_model


@pytest.mark.slow
@pytest.mark.parametrize(("files", "collective"), by_turns(OURS_TOGETHER, COLLECTIVES))
def test_our_pair(files, collective):
    """Our own files in the published tool's format are scheduled."""
    cost_model, sketch, topology = files
    folder = OURS / "upstream-taccl"
    assert_scheduled(
        folder / "sketch" / f"{sketch}.json", folder / "topo" / f"{topology}.json", collective, cost_model
    )


def test_every_upstream_file_is_here(shared_data):
    """The pairs below include every file of the published tool."""
    folder = shared_data / "upstream-taccl"
    listed = {f"{stem}.json" for pair in PAIRS for stem in pair}
    assert {path.name for kind in ("sketch", "topo") for path in (folder / kind).iterdir()} == listed


# Cost model `physical` uses only machine and size of a topology file: the largest file suffices.
# Other topology files of a machine differ only in costs, so each is tested with some collectives.
CASES = [
    *(
        ("upstream", sketch, f"topo-{m}-{size}", collective)
        for m in SKETCHES
        for i, sketch in enumerate(SKETCHES[m])
        for j, size in enumerate(SIZES[m])
        for k, collective in enumerate(COLLECTIVES)
        if MANY or (i + j + k) % len(COLLECTIVES) == 0
    ),
    *(
        ("physical", *pair, collective)
        for i, pair in enumerate(pair for pair in PAIRS if pair[1].endswith("1MB"))
        for k, collective in enumerate(COLLECTIVES)
        if MANY or (i + k) % len(COLLECTIVES) == 0
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("cost_model", "sketch", "topology", "collective"), thinned(CASES, every=8))
def test_upstream_pair(shared_data, sketch, topology, collective, cost_model):
    """Each published sketch is scheduled on every topology of its machine and for every collective."""
    folder = shared_data / "upstream-taccl"
    assert_scheduled(
        folder / "sketch" / f"{sketch}.json", folder / "topo" / f"{topology}.json", collective, cost_model
    )
