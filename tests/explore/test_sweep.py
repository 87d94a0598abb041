"""`taccl.sweep`: a row for every combination, also for those that give no valid problem."""

import pytest

import taccl
from tests.effort import BRIEF

TOML = """
schema = 1
name = "tiny"
[chunks]
size = "1MB"
per_rank = 2
"""


def sweep(topology, collective, **options):
    """Run a quick sweep in this process, without a cache."""
    quick = {"num_workers": 1, "cache": False, "time_limit_s": 5, "backends": ["greedy"], "full": True}
    return taccl.sweep(topology, collective, **{**quick, **options})


@pytest.fixture
def tiny():
    """A sketch that gives only sizes."""
    return taccl.Sketch.from_toml(TOML)


@pytest.mark.slow
def test_every_combination_is_a_row(tiny):
    """Rows are ordered by sketches, sizes, chunks per rank, backends and seeds."""
    table = sweep(
        "ring:4",
        "allgather",
        sketches=[tiny, None],
        sizes=["4KB", 8000],
        chunks_per_rank=[1, 2],
        seeds=[0, 1],
    )
    assert len(table) == 16
    assert list(table.sketch) == ["tiny"] * 8 + ["none"] * 8
    assert list(table.size_bytes) == ([4000] * 4 + [8000] * 4) * 2
    assert list(table.chunks_per_rank) == [1, 1, 2, 2] * 4
    assert list(table.seed) == [0, 1] * 8
    assert table.verified.all()


@pytest.mark.slow
def test_size_and_chunks_default_to_those_of_the_sketch(tiny):
    """Without a size the sketch's two chunks of 1 MB per rank are used: 8 MB over four ranks."""
    (row,) = sweep("ring:4", "allgather", sketches=tiny).itertuples()
    assert (row.size_bytes, row.chunks_per_rank, row.status) == (8 * 10**6, 2, "proven for its chunks")


@pytest.mark.slow
def test_finish_grows_with_size():
    """Two hops take 2 x (0.5 + 0.02) us for 4 KB and 2 x (0.5 + 20) us for 4 MB."""
    table = sweep("ring:4", "allgather", sizes=["4KB", "4MB"], chunks_per_rank=[1])
    assert list(table.finish_us) == [1.04, 41.0]


@pytest.mark.slow
def test_a_range_of_sizes_grows_by_ten():
    """Sizes may be the range that the command line accepts."""
    table = sweep("ring:4", "allgather", sizes="1KB:10KB", chunks_per_rank=[1])
    assert table["size_bytes"].tolist() == [1000, 10_000]


def test_a_sketch_of_another_machine_is_a_row(tiny):
    """A sketch for another machine gives a row with the reason, and the others run."""
    wrong, right = sweep("ring:4", "allgather", sketches=["ndv2/sk1", tiny], sizes=["4KB"]).itertuples()
    assert (wrong.status, wrong.sketch, wrong.size_bytes) == ("does not fit", "ndv2-sk1", 4000)
    assert "found 'ndv2', but the topology ring:4" in wrong.error
    assert right.status == "proven for its chunks"


def test_no_size_is_a_row():
    """Without any size the row states that one is needed."""
    (row,) = sweep("ring:4", "allgather").itertuples()
    assert (row.status, "found no size" in row.error) == ("does not fit", True)


@pytest.mark.slow
def test_root(tiny):
    """A broadcast with root 3 takes at most three hops on a ring of six."""
    (row,) = sweep("ring:6", "broadcast", root=3, sizes=["1KB"]).itertuples()
    assert row.status == "proven for its chunks"
    assert "rank 0" in row.bound_limits


def test_a_collective_object_is_swept():
    """A `Collective` object in place of a name is swept unchanged."""
    ring = taccl.topologies.parse("ring:4")
    collective = taccl.collectives.allgather(4, chunks_per_rank=2)
    (row,) = sweep(ring, collective, sizes=["4KB"]).itertuples()
    assert (row.collective, row.chunks_per_rank) == ("allgather", 2)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"sizes": []}, "sizes"), ({"sizes": ["1XB"]}, "sizes"), ({"sketches": []}, "sketches"),
        ({"sketches": [7]}, "sketches"), ({"sketches": ["ndv2/sk9"]}, "did you mean"),
        ({"chunks_per_rank": [0]}, "chunks_per_rank"), ({"backends": ["cbd"]}, "cbc"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_at_all(options, match):
    """Arguments of wrong types are refused before any run begins."""
    with pytest.raises(taccl.InputError, match=match):
        sweep("ring:4", "allgather", **{"sizes": ["4KB"], **options})


def test_unknown_names():
    """Unknown topologies and collectives, and an unknown root, are refused."""
    with pytest.raises(taccl.InputError, match="rong"):
        sweep("rong:4", "allgather", sizes=["4KB"])
    with pytest.raises(taccl.InputError, match="allgthr"):
        sweep("ring:4", "allgthr", sizes=["4KB"])
    with pytest.raises(taccl.InputError, match="rank 9"):
        sweep("ring:4", "broadcast", root=9, sizes=["4KB"])


def test_chunks_per_rank_of_a_collective_object_are_refused():
    """Chunks per rank are refused for a collective with a fixed number."""
    with pytest.raises(taccl.InputError, match="name the collective instead"):
        whole = taccl.collectives.allgather(4, chunks_per_rank=1)
        sweep("ring:4", whole, sizes=["4KB"], chunks_per_rank=[2])
    with pytest.raises(taccl.InputError, match="root"):
        sweep("ring:4", taccl.collectives.allgather(4), sizes=["4KB"], root=0)


@pytest.mark.slow
def test_a_sweep_resumes(cache):
    """Runs of an earlier, smaller sweep are not repeated."""
    sweep("ring:4", "allgather", sizes=["4KB"], cache=cache)
    table = sweep("ring:4", "allgather", sizes=["4KB", "8KB"], cache=cache)
    assert list(table.from_cache) == [True, False]


@pytest.mark.slow
def test_a_reduction_has_a_first_schedule():
    """An allreduce has a first schedule once both of its phases have one."""
    (row,) = sweep("ring:4", "allreduce", sizes=["4MB"], backends=["auto"]).itertuples()
    assert row.verified
    assert 0 < row.first_schedule_s <= row.seconds


@pytest.mark.slow
def test_the_number_of_chunks_is_chosen_if_none_is_given():
    """Open numbers of chunks are chosen: several for a 1 GB broadcast on a ring, at most two for 2 B."""
    options = {"sizes": [2, 10**9], "backends": ["greedy"], "num_workers": 1, "cache": False, "full": True}
    options["parameters"] = [BRIEF]
    chosen = taccl.sweep("ring:4", "broadcast", **options)
    assert chosen.chunks_per_rank[0] <= 2 < chosen.chunks_per_rank[1]
    given = taccl.sweep("ring:4", "broadcast", chunks_per_rank=[1], **options)
    assert list(given.chunks_per_rank) == [1, 1]
    assert chosen.finish_us[1] < given.finish_us[1]


@pytest.mark.slow
def test_compare_gives_all_backends_the_chunks_of_a_synthesis():
    """`compare` gives every backend the same chosen number of chunks."""
    problem = taccl.make_problem(taccl.topologies.ring(4), "broadcast", size_bytes=10**9)
    table = taccl.compare(
        problem, backends=["greedy", "auto"], parameters=[BRIEF], num_workers=1, cache=False, full=True
    )
    assert (table.chunks_per_rank > 1).all()
    greedy, auto = table.finish_us
    assert table.chunks_per_rank.nunique() == 1 or auto < greedy
