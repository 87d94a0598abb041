"""Suggested sketches: predicted finishes, explanations, and synthesis with them."""

import pytest

import taccl
from taccl._internal.deadline import OutOfTime
from taccl.errors import CollectiveError, InputError, TopologyError
from taccl.synthesis.suggesting import suggest
from tests.effort import AMPLE_S, PATIENT
from tests.fuzzing import thinned
from tests.synthesis.small_problems import linked


@pytest.fixture(scope="module")
def a100():
    """Three DGX-A100 nodes."""
    return taccl.topologies.dgx_a100(nodes=3, profile="nominal")


@pytest.fixture(scope="module")
def proposals(a100):
    """Sketches for an allgather of 24 MB on three DGX-A100."""
    return taccl.suggest_sketches(a100, "allgather", "24MB", most=4, time_limit_s=AMPLE_S)


@pytest.mark.slow
def test_the_best_is_near_the_physical_bound(a100, proposals):
    """Each NIC must carry 2 MB at 40 us/MB, 80 us; the best sketch's schedule takes little longer."""
    plain = taccl.make_problem(a100, taccl.collectives.allgather(24), size_bytes=24_000_000)
    bound_us = taccl.lower_bound(plain, divisible=True).bound_us
    assert bound_us == pytest.approx(80)
    assert proposals[0].finish_us <= 1.1 * bound_us


@pytest.mark.slow
def test_proposals_are_in_order_of_their_finish(proposals):
    """Suggested sketches are sorted by finish."""
    finishes = [each.finish_us for each in proposals]
    assert finishes == sorted(finishes)
    assert 1 <= len(proposals) <= 4


@pytest.mark.slow
def test_no_proposal_promises_less_than_its_bound(proposals):
    """Each proposal's finish is at least its bound."""
    assert all(each.bound_us <= each.finish_us for each in proposals)


@pytest.mark.slow
def test_every_proposal_survives_being_written(a100, proposals, tmp_path):
    """A proposal written as TOML is read back as the same sketch and makes the same problem."""
    for each in proposals:
        path = tmp_path / f"{each.sketch.name}.toml"
        path.write_text(each.to_toml())
        sketch = taccl.load_sketch(path)
        collective = taccl.collectives.allgather(24, chunks_per_rank=sketch.chunks.per_rank)
        assert sketch.to_dict() == each.sketch.to_dict()
        assert sketch.apply(a100, collective).digest() == each.problem.digest()
        assert sketch.topology() == a100


def test_a_written_proposal_says_why(proposals):
    """The TOML file explains the sketch and each of its tables."""
    text = proposals[0].to_toml()
    assert text.startswith("#:schema sketch.schema.json\n# Suggested for allgather of 24MB on dgx-a100 x3.\n")
    for table in ("[chunks]", "[[symmetry]]", "[[switch]]"):
        above = text.partition(f"\n{table}\n")[0].rpartition("\n")[2]
        assert above.startswith("# ")


def test_the_symmetry_of_a_proposal_holds_for_its_problem(proposals):
    """The best sketch's problem has a symmetry of order 24, over all ranks."""
    from taccl.sketch.group import symmetry_group

    assert symmetry_group(proposals[0].problem).order == 24


def test_a_proposal_shows_its_figures(proposals):
    """The repr of a proposal names its sketch, finish, bound and reason."""
    assert repr(proposals[0]).startswith("SketchProposal('auto-")
    assert "chunk" in repr(proposals[0])


@pytest.mark.parametrize(("size", "policy"), [("2KB", "max-connections"), ("200MB", "min-connections")])
def test_the_policy_of_a_switch_follows_the_size(size, policy):
    """A suggested sketch uses many connections of a switch for small chunks and few for large ones. Here the
    limit is 25 KB."""
    topology = taccl.topologies.dgx_a100(nodes=2, constants={"internode_alpha_us": 1}, profile="nominal")
    (best,) = taccl.suggest_sketches(topology, "allgather", size, chunks_per_rank=1, most=1, time_limit_s=0.1)
    assert best.sketch.switch[0].policy == policy


@pytest.mark.slow
def test_a_collective_keeps_its_chunks(a100):
    """Suggested sketches keep the number of chunks of a given `Collective` object."""
    collective = taccl.collectives.allgather(24, chunks_per_rank=3)
    (best,) = taccl.suggest_sketches(a100, collective, "72MB", most=1, time_limit_s=0.1)
    assert best.problem.collective == collective
    assert best.sketch.chunks.per_rank == 3


@pytest.mark.slow
def test_a_chunk_size_fixes_the_chunks(a100):
    """With a chunk size the number of chunks per rank is fixed by it."""
    (best,) = taccl.suggest_sketches(a100, "allgather", chunk_size="1MB", most=1, time_limit_s=0.1)
    assert set(best.problem.chunk_bytes) == {10**6}
    assert best.problem.size_bytes == 24 * 10**6


@pytest.mark.slow
def test_no_chunk_is_smaller_than_a_byte():
    """24 bytes for 24 ranks stay in one chunk per rank."""
    topology = taccl.topologies.dgx_a100(nodes=3, profile="nominal")
    (best,) = taccl.suggest_sketches(topology, "allgather", 24, most=1, time_limit_s=0.1)
    assert best.problem.collective.chunks_per_rank == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", thinned(["broadcast", "reduce", "scan", "gather", "allreduce", "reduce-scatter"], every=2)
)
def test_every_kind_of_collective_gets_a_sketch(name):
    """Collectives with roots, sums and prefixes get a sketch whose schedule verifies."""
    topology = taccl.topologies.ndv2(nodes=2)
    (best,) = taccl.suggest_sketches(topology, name, "1MB", most=1, time_limit_s=0.5)
    found = taccl.synthesize(best.problem, backend="greedy", time_limit_s=0.5, parameters=PATIENT)
    assert taccl.verify(found.schedule).ok


@pytest.mark.slow
def test_a_fabric_gets_its_symmetry():
    """A torus is one node, so its sketch has no relays, but has the symmetry of all ranks."""
    best = taccl.suggest_sketches(taccl.topologies.torus(4, 4), "allgather", "16KB", most=1)[0]
    assert {(entry.offset, entry.group) for entry in best.sketch.symmetry} == {(1, 4), (4, 16)}
    assert best.sketch.internode is None


@pytest.mark.slow
def test_a_topology_of_ones_own_needs_no_machine():
    """For a modified machine the sketch names no machine."""
    slower = taccl.topologies.dgx_a100(nodes=2, constants={"internode_beta_us_per_mb": 50}, profile="nominal")
    (best,) = taccl.suggest_sketches(slower, "allgather", "16MB", most=1, time_limit_s=0.1)
    assert best.sketch.machine == ""


def test_a_disconnected_topology_is_an_error():
    """A topology without a path from one rank to the other is an error."""
    topology = linked("one way", (0, 0), [(0, 1)], alpha_us=1, beta_us_per_mb=1)
    with pytest.raises(TopologyError, match="one way"):
        taccl.suggest_sketches(topology, "allgather", "1MB")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "give either a size"),
        ({"size": "1MB", "chunk_size": "1KB"}, "not both"),
        ({"size": "much"}, "size: found 'much'"),
        ({"size": 0}, "size: found 0"),
        ({"size": "1MB", "most": 0}, "most: found 0"),
        ({"size": "1MB", "chunks_per_rank": 0}, "chunks_per_rank: found 0"),
        ({"size": "1MB", "time_limit_s": 0}, "time_limit_s: found 0"),
        ({"size": "1MB", "root": 0}, "allgather has no root"),
    ],
)
def test_what_does_not_fit_is_refused(options, said):
    """If a size or a number of chunks gives no valid problem, the error names this size or number."""
    with pytest.raises(InputError, match=said):
        taccl.suggest_sketches(taccl.topologies.ring(4), "allgather", **options)


def test_no_sketch_is_suggested_for_an_exchange_of_nothing():
    """An exchange in which no pair has bytes is refused by name."""
    nothing = taccl.alltoallv_collective([[0, 0], [0, 0]])
    with pytest.raises(InputError, match="found an alltoallv without data"):
        taccl.suggest_sketches(taccl.topologies.ring(2), nothing, size="1MB")


def test_an_unknown_collective_is_refused():
    """An unknown collective is an error that lists the known names."""
    with pytest.raises(CollectiveError, match="allgather"):
        taccl.suggest_sketches(taccl.topologies.ring(4), "allgatherer", "1MB")


def test_a_collective_with_chunks_per_rank_given_twice_is_refused():
    """`chunks_per_rank` is refused for a `Collective` that was made with a number."""
    with pytest.raises(CollectiveError, match="leave it out"):
        ring, whole = taccl.topologies.ring(4), taccl.collectives.allgather(4, chunks_per_rank=1)
        taccl.suggest_sketches(ring, whole, "1MB", chunks_per_rank=2)


@pytest.mark.slow
def test_a_limit_too_short_for_any_candidate_leaves_the_first():
    """A limit too short for any candidate gives the first one, without symmetries."""
    (found,) = taccl.suggest_sketches(taccl.topologies.ndv2(2), "allgather", size="1MB", time_limit_s=1e-3)
    assert found.sketch.symmetry == ()
    assert taccl.verify(found.schedule).ok
    assert 0 < found.bound_us <= found.finish_us


@pytest.mark.slow
def test_nothing_is_compiled_after_the_limit(monkeypatch):
    """After the limit the first candidate is scheduled without compiling kernels."""
    module = "taccl.synthesis.suggesting.suggest"
    monkeypatch.setattr(f"{module}.are_kept", lambda _: False)
    monkeypatch.setattr(f"{module}.schedule_large", lambda *_, **__: pytest.fail("kernels were compiled"))
    found = taccl.suggest_sketches(taccl.topologies.ndv2(2), "allgather", size="1MB", time_limit_s=1e-3)
    assert len(found) == 1


def test_no_further_run_starts_after_the_limit(monkeypatch):
    """After the limit the compiled list scheduler makes one run in whole chunks, and merges no sends."""
    asked = []

    def schedule_large(problem, **options):
        asked.append((problem.collective.chunks_per_rank, options["merges"]))
        raise OutOfTime("stopped")

    monkeypatch.setattr(suggest, "are_kept", lambda _: True)
    monkeypatch.setattr(suggest, "suits", lambda _: True)
    monkeypatch.setattr(suggest, "schedule_large", schedule_large)
    topology = taccl.topologies.ndv2(2)
    assert not taccl.suggest_sketches(topology, "allgather", size="1MB", time_limit_s=1e-6)
    assert set(asked) == {(1, False)}


@pytest.mark.slow
def test_a_candidate_that_is_stopped_is_passed_over(monkeypatch):
    """If the compiled list scheduler is interrupted for one candidate, another is returned."""
    stopped = iter([True])

    def schedule_large(*args, **options):
        if next(stopped, False):
            raise OutOfTime("stopped")
        return compiled(*args, **options)

    compiled = suggest.schedule_large
    monkeypatch.setattr(suggest, "schedule_large", schedule_large)
    monkeypatch.setattr(suggest, "effort", lambda _: 10**12)
    (found,) = taccl.suggest_sketches(
        taccl.topologies.ndv2(2), "allgather", size="1MB", most=1, time_limit_s=AMPLE_S
    )
    assert next(stopped, None) is None
    assert taccl.verify(found.schedule).ok


@pytest.mark.slow
def test_ctrl_c_keeps_the_candidates_so_far(monkeypatch):
    """Ctrl-C in the second trial returns the first candidate, and Ctrl-C in its bound one with another bound."""
    calls, own = [], suggest.quick_schedule

    def interrupted(*args, **_):
        calls.append(args)
        if len(calls) == 1:
            return own(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(suggest, "quick_schedule", interrupted)
    monkeypatch.setattr(suggest, "lower_bound", interrupted)
    topology = taccl.topologies.ndv2(2)
    with pytest.warns(taccl.TacclWarning, match="stopped by Ctrl-C; these are the best sketches so far"):
        (found,) = taccl.suggest_sketches(topology, "allgather", size="1MB", time_limit_s=AMPLE_S)
    assert len(calls) == 3
    assert 0 < found.bound_us <= found.finish_us


def test_ctrl_c_before_the_first_candidate_is_passed_on(monkeypatch):
    """Ctrl-C in the first trial raises `KeyboardInterrupt`, as there is no proposal."""

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(suggest, "quick_schedule", interrupted)
    with pytest.raises(KeyboardInterrupt):
        taccl.suggest_sketches(taccl.topologies.ndv2(2), "allgather", size="1MB", time_limit_s=AMPLE_S)


@pytest.mark.slow
def test_only_partitions_that_are_tried_are_made(monkeypatch):
    """Only chunkings that are tried are constructed, once each: 1 after the time limit, 2 if it lasts."""
    cut = []
    make_problem = suggest.make_problem
    monkeypatch.setattr(
        suggest,
        "make_problem",
        lambda *args, **options: cut.append(options["chunks_per_rank"]) or make_problem(*args, **options),
    )
    taccl.suggest_sketches(taccl.topologies.ndv2(2), "allgather", size="1MB", time_limit_s=1e-3)
    assert cut in ([1], [2, 1])


@pytest.mark.slow
def test_of_sketches_that_differ_in_merging_alone_the_looser_stays():
    """If two sketches differ only in merging and have equal finishes, the one that merges is kept."""
    topology = taccl.topologies.ndv2(nodes=2)
    found = taccl.suggest_sketches(topology, "alltoall", size="1MB", time_limit_s=AMPLE_S)
    plans = [(each.sketch.name.replace("-unmerged", ""), each.finish_us) for each in found]
    assert len(set(plans)) == len(plans)
    assert {"auto-same-number-2", "auto-free-2"} <= {each.sketch.name for each in found}
