"""The number of chunks per rank, left open or given."""

from dataclasses import replace
from fractions import Fraction

import networkx
import pytest

import taccl
from taccl._internal.deadline import NEVER, Deadline
from taccl.analysis.certificates.scopes import bound_over_all_chunkings, share_bound_over_all_chunkings
from taccl.baselines import ring
from taccl.errors import CollectiveError
from taccl.problem.collectives import COLLECTIVES
from taccl.problem.making import make_problem, merged
from taccl.problem.problem import Clauses
from taccl.synthesis.bounding import no_bound
from taccl.synthesis.checking import continue_from
from taccl.synthesis.improve.improvement import compile_improvement, improve_schedule
from taccl.synthesis.options import Options
from taccl.synthesis.parameters import DEFAULTS
from taccl.synthesis.proposers import compiling
from taccl.synthesis.proposers.finer import cut
from taccl.synthesis.search import Search
from taccl.synthesis.suggesting import chunks, suggest
from tests.arguments import WITHOUT_ARGUMENTS
from tests.effort import AMPLE_S, BRIEF, HASTY, brief_synthesis
from tests.fuzzing import thinned

#: A time limit too short to compile kernels.
SHORT = replace(DEFAULTS, choice=replace(DEFAULTS.choice, cold_s=2 * AMPLE_S))


def _problem(collective="broadcast", size=10**9, **options):
    """A problem on a ring of four, 1 us per hop, on which large data is pipelined in chunks."""
    ring = taccl.topologies.ring(4, alpha_us=1, bandwidth_gb_per_s=100)
    return taccl.make_problem(ring, collective, size_bytes=size, **options)


def test_a_name_and_a_size_leave_the_number_open():
    """A collective's name and a size leave the number of chunks open."""
    assert _problem().chunks_open
    assert _problem().collective.chunks_per_rank == 1


@pytest.mark.parametrize("options", [{"chunks_per_rank": 1}, {"chunks_per_rank": 4}])
def test_a_number_that_is_given_holds(options):
    """A given number of chunks per rank is kept, even if it is one."""
    problem = _problem(**options)
    assert not problem.chunks_open
    assert problem.collective.chunks_per_rank == options["chunks_per_rank"]


def test_a_collective_keeps_its_own_number():
    """A collective object made with a number of chunks keeps it."""
    twice = taccl.collectives.broadcast(4, chunks_per_rank=2)
    assert not _problem(twice).chunks_open
    with pytest.raises(CollectiveError, match="collective object"):
        _problem(twice, chunks_per_rank=2)


@pytest.mark.parametrize("name", WITHOUT_ARGUMENTS)
def test_a_collective_made_without_a_number_leaves_the_number_open(name):
    """A collective object made without a number leaves it open, just like its name."""
    made = COLLECTIVES[name](4)
    by_name, by_object = _problem(name, size=1000), _problem(made, size=1000)
    assert by_object.chunks_open and by_object == by_name
    assert by_object.digest() == by_name.digest()
    cut = _problem(made, size=1000, chunks_per_rank=2)
    assert not cut.chunks_open and cut.collective.chunks_per_rank == 2


def test_groups_leave_the_number_open_together():
    """A collective on some ranks leaves its number of chunks open; groups together do so only if all do."""
    pair, cut = taccl.collectives.allgather(2), taccl.collectives.allgather(2, chunks_per_rank=1)
    some = [pair.among((0, 1), num_ranks=4), pair.among((2, 3), num_ranks=4)]
    assert taccl.collectives.together(some).chunks_open
    assert not taccl.collectives.together([some[0], cut.among((2, 3), num_ranks=4)]).chunks_open
    assert not pair.split(2).chunks_open


def test_a_file_keeps_an_open_number():
    """`to_dict` records that a problem's number of chunks is open, and has no such entry if the number is
    fixed."""
    problem, fixed = _problem(), _problem(chunks_per_rank=1)
    assert taccl.Problem.from_dict(problem.to_dict()).chunks_open
    assert not taccl.Problem.from_dict(fixed.to_dict()).chunks_open
    assert "chunks_open" not in fixed.to_dict()["collective"]
    assert problem.digest() != fixed.digest()


def test_the_collective_of_a_problem_says_whether_its_number_is_open():
    """`chunks_open` is False once a chunk size is given or a number is chosen."""
    made = taccl.collectives.allgather(4)
    assert made.chunks_open
    assert not taccl.make_problem(taccl.topologies.ring(4), made, chunk_bytes=1000).collective.chunks_open
    assert not replace(_problem(made), chunks_open=False).collective.chunks_open


def test_the_chunk_size_of_a_sketch_says_how_much_data_there_is():
    """The chunk size of a sketch gives the total size: one chunk of 1 MB on each of 4 ranks is 4 MB.

    The number of chunks stays open. If the sketch has two chunks per rank, the number is 8, and the total 8 MB.
    """
    ring = taccl.topologies.ring(4)
    sketch = taccl.Sketch.from_dict({"schema": 1, "chunks": {"size": "1MB"}})
    said = taccl.Sketch.from_dict({"schema": 1, "chunks": {"size": "1MB", "per_rank": 2}})
    asked = sketch.apply(ring, "allgather", size="4MB")
    for collective in ("allgather", taccl.collectives.allgather(4)):
        assert sketch.apply(ring, collective).digest() == asked.digest()
        fixed = said.apply(ring, collective)
        assert (fixed.size_bytes, fixed.collective.num_chunks, fixed.chunks_open) == (8_000_000, 8, False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "backend"),
    thinned(
        [("allgather", "auto"), ("allreduce", "auto"), ("alltoall", "greedy"), ("broadcast", "greedy")],
        every=4,
    ),
)
def test_one_question_has_one_answer(name, backend):
    """Synthesis, `compare` and `choose_chunks` all choose the same number of chunks."""
    ring = taccl.topologies.ring(4, alpha_us=1, bandwidth_gb_per_s=100)
    problem = taccl.make_problem(ring, name, size_bytes=8_000_000)
    # Runs of about 0.2 s of CPU find the optimum of each problem.
    parameters = replace(BRIEF, list=replace(BRIEF.list, least_alone_s=0.2))
    result = taccl.synthesize(problem, backend=backend, time_limit_s=AMPLE_S, parameters=parameters)
    count = result.schedule.problem.collective.chunks_per_rank
    options = {"time_limit_s": AMPLE_S, "cache": False, "num_workers": 1}
    table = taccl.compare(problem, backends=[backend], parameters=[parameters], **options)
    found = table.finish_us[0], table.chunks_per_rank[0], table.gap[0]
    assert found == (result.finish_us, count, result.gap)
    assert taccl.choose_chunks(problem, time_limit_s=AMPLE_S).collective.chunks_per_rank == count


def test_a_chunk_size_fixes_the_number_of_chunks():
    """A chunk size fixes the number of chunks and the total size."""
    ring = taccl.topologies.ring(4)
    assert not taccl.make_problem(ring, "allgather", chunk_bytes=1000).chunks_open


def test_a_sketch_leaves_the_number_open_unless_it_gives_one():
    """A sketch leaves the number of chunks open unless it has ``chunks.per_rank``."""
    ring = taccl.topologies.ring(4)
    said = taccl.Sketch.from_dict({"schema": 1, "chunks": {"per_rank": 1}})
    assert taccl.Sketch().apply(ring, "allgather", size="1MB").chunks_open
    assert not said.apply(ring, "allgather", size="1MB").chunks_open
    assert not taccl.Sketch().apply(ring, "allgather", size="1MB", chunks_per_rank=2).chunks_open


@pytest.mark.slow
def test_large_data_is_cut_into_more_chunks_than_small_data():
    """A broadcast of 1 GB is pipelined around the ring in 64 chunks; one of 1 KB is cut into two.

    The two halves of 1 KB travel in opposite directions, over two links of 1.005 us each. More chunks would
    only add latency.
    """
    large = taccl.choose_chunks(_problem(), time_limit_s=AMPLE_S)
    small = taccl.choose_chunks(_problem(size=1000), time_limit_s=AMPLE_S)
    assert large.collective.chunks_per_rank == 64
    assert small.collective.chunks_per_rank == 2
    assert not large.chunks_open
    assert not small.chunks_open


@pytest.mark.slow
def test_sums_are_cut_finer_where_their_phases_overlap(monkeypatch):
    """An allreduce on a mesh gets more chunks than the list scheduler prefers, as its phases can overlap.

    The list scheduler times each phase alone. In more chunks, ruin and recreate finishes at least 5 % earlier
    after equally many iterations. The search continues from the schedule of these iterations.
    """
    compile_improvement()
    problem = taccl.make_problem(taccl.topologies.mesh(3, 4), "allreduce", size_bytes=64_000_000)
    chosen = taccl.choose_chunks(problem, time_limit_s=AMPLE_S)
    monkeypatch.setattr(chunks, "is_compiled", lambda _: False)
    listed = taccl.choose_chunks(problem, time_limit_s=AMPLE_S)
    assert listed.collective.chunks_per_rank < chosen.collective.chunks_per_rank
    starts = [suggest.compiled_schedule(each, Options(), NEVER) for each in (chosen, listed)]
    finer, coarser = (improve_schedule(each, turns=1000)[0] for each in starts)
    assert finer.finish < Fraction(95, 100) * coarser.finish
    search = Search(chosen, Options(), NEVER)
    continue_from(search, search)
    assert search.best.finish == finer.finish


@pytest.mark.slow
def test_sums_of_groups_are_cut_ever_finer_while_that_pays():
    """Large sums of two process groups, which relay for each other, are cut into more than the usual numbers."""
    groups = [taccl.collectives.allreduce(3).among([i, i + 2, i + 4], num_ranks=6) for i in (0, 1)]
    both, topology = taccl.collectives.together(groups), taccl.topologies.fully_connected(6)
    large = taccl.choose_chunks(make_problem(topology, both, size_bytes="256MB"), time_limit_s=AMPLE_S)
    assert large.collective.chunks_per_rank > max(DEFAULTS.suggesting.counts)


@pytest.mark.slow
@pytest.mark.parametrize("name", thinned(["broadcast", "reduce"], every=2))
def test_data_of_one_rank_are_cut_ever_finer_while_that_pays(name):
    """Data of one rank on four H100 nodes are cut into more chunks than the usual numbers, up to a limit."""
    problem = taccl.make_problem(taccl.topologies.dgx_h100(4), name, size_bytes="16MB")
    assert chunks.choose_chunks(problem, time_limit_s=AMPLE_S).collective.chunks_per_rank == 256
    parameters = replace(DEFAULTS, suggesting=replace(DEFAULTS.suggesting, counts_only=1))
    usual = chunks.choose_chunks(problem, time_limit_s=AMPLE_S, parameters=parameters)
    assert usual.collective.chunks_per_rank == 16
    small = taccl.make_problem(taccl.topologies.dgx_h100(4), name, size_bytes="16KB")
    assert chunks.choose_chunks(small, time_limit_s=AMPLE_S).collective.chunks_per_rank <= 16


@pytest.mark.slow
def test_numbers_of_chunks_near_the_best_one_are_tried():
    """A broadcast of 1 MB on a mesh of 5 by 5 is cut into 24 chunks, which lie between 16 and 32.

    Its finish meets the bound of 24 chunks, 25.33 us; that of 16 chunks is 26.25 us, that of 32 is 25.88 us.
    """
    problem = taccl.make_problem(taccl.topologies.mesh(5, 5), "broadcast", size_bytes="1MB")
    assert chunks.choose_chunks(problem, time_limit_s=AMPLE_S).collective.chunks_per_rank == 24


@pytest.mark.slow
def test_numbers_of_chunks_near_the_best_one_are_tried_for_large_alltoalls():
    """Chunks of an alltoall on a generalised Kautz graph fill all links if there are seven per pair.

    The finish is then 0.7 % sooner than in six, eight or 16 chunks. None of these numbers is one for which
    sketches are suggested.
    """
    arcs = [(src, -(4 * src + 1 + number) % 16) for src in range(16) for number in range(4)]
    graph = networkx.DiGraph([(src, dst) for src, dst in arcs if src != dst])
    networkx.set_edge_attributes(graph, 100, "bandwidth_gb_per_s")
    networkx.set_edge_attributes(graph, 1, "alpha_us")
    topology = taccl.topologies.from_networkx(graph, alpha_meaning="pipelined")
    problem = taccl.make_problem(topology, "alltoall", size_bytes="1GB")
    suggesting = replace(DEFAULTS.suggesting, counts=(6, 8, 16), partitions=(1,))
    parameters = replace(DEFAULTS, suggesting=suggesting)
    chosen = chunks.choose_chunks(problem, time_limit_s=AMPLE_S, parameters=parameters)
    assert chosen.collective.chunks_per_rank == 7


@pytest.mark.parametrize("name", ["broadcast", "allreduce"])
def test_one_chunk_need_not_be_among_the_numbers(name):
    """Numbers of chunks given as parameters may leave out one; the best of them is chosen."""
    parameters = taccl.SearchParameters.from_dict({"suggesting": {"counts": (3, 5)}})
    problem = taccl.make_problem(taccl.topologies.ring(4), name, size_bytes="1MB")
    chosen = taccl.choose_chunks(problem, time_limit_s=AMPLE_S, parameters=parameters)
    assert chosen.collective.chunks_per_rank >= 3
    tiny = taccl.make_problem(taccl.topologies.ring(4), name, size_bytes=1)
    assert taccl.choose_chunks(tiny, parameters=parameters).collective.chunks_per_rank == 1


def test_no_number_is_tried_after_one_meets_the_bound(monkeypatch):
    """On a ring of three, an allgather in one chunk per rank meets the bound over all chunkings."""
    problem = taccl.make_problem(taccl.topologies.ring(3), "allgather", size_bytes=3 * 10**6)
    tried, quick = [], chunks.quick_schedule

    def recording(problem, options, until):
        tried.append(problem.collective.chunks_per_rank)
        return quick(problem, options, until)

    monkeypatch.setattr(chunks, "quick_schedule", recording)
    bound_over_all_chunkings(no_bound(problem))
    share_bound_over_all_chunkings(problem.in_its_chunks, problem)
    assert taccl.choose_chunks(problem, time_limit_s=AMPLE_S).collective.chunks_per_rank == 1
    assert tried == [1]


def test_numbers_near_the_chosen_one_are_tried_again_after_the_search():
    """The compiled list scheduler gets all its runs in a number of chunks whose trial was slightly sooner."""
    problem = _problem()
    search = Search(problem.in_its_chunks, Options(), Deadline.after(AMPLE_S), asked=problem)
    search.offer_whole(ring(search.problem, cut=False), producer="ring")
    assert chunks.offer_nearby(search) is None
    trial = suggest.compiled_schedule(cut(search.problem, 4), Options(), NEVER)
    chunks.nearby(search.problem).append(trial)
    better = chunks.offer_nearby(search)
    assert better.best.finish <= trial.finish < search.best.finish
    assert better.best.problem.collective.chunks_per_rank == 4
    assert search.stages[-1].message == "4 chunks per rank"


def test_no_chunk_is_less_than_a_byte():
    """2 B are cut into at most two chunks."""
    ring = taccl.topologies.ring(4, alpha_us=0, bandwidth_gb_per_s=100)
    problem = taccl.make_problem(ring, "broadcast", size_bytes=2)
    assert taccl.choose_chunks(problem, time_limit_s=AMPLE_S).collective.chunks_per_rank == 2


def test_what_is_cut_already_stays_as_it_is():
    """A problem with a given number is returned unchanged."""
    problem = _problem(chunks_per_rank=2)
    assert taccl.choose_chunks(problem) is problem


@pytest.mark.slow
def test_synthesis_chooses_and_notes_a_number():
    """The result has several chunks per rank and finishes before any schedule with one. A note names the
    number."""
    result = brief_synthesis(_problem())
    count = result.schedule.problem.collective.chunks_per_rank
    assert count > 1
    assert any(f"cut into {count} chunks per rank" in note for note in result.notes)
    assert taccl.verify(result.schedule).ok
    assert result.finish_us < taccl.lower_bound(_problem(chunks_per_rank=1)).bound_us


@pytest.mark.slow
def test_a_named_solver_takes_the_number_that_the_portfolio_takes():
    """A named solver uses the portfolio's number of chunks: two for 1 KB, in both directions around the ring."""
    result = brief_synthesis(_problem(size=1000), backend="highs")
    assert result.schedule.problem.collective.chunks_per_rank == 2


@pytest.mark.slow
def test_a_proposal_brings_its_number_of_chunks():
    """A proposal for a size sets the number of chunks of the search."""
    problem = _problem("allgather")
    proposal = taccl.suggest_sketches(problem.topology, "allgather", problem.size_bytes, most=1)[0]
    result = brief_synthesis(problem, sketch=proposal)
    assert result.schedule.problem.collective == proposal.problem.collective


@pytest.mark.slow
def test_the_bound_of_an_open_problem_holds_for_every_number():
    """The bound of an open problem is that of divisible data, valid for every number of chunks."""
    bound = taccl.lower_bound(_problem())
    assert bound.divisible
    for count in (1, 2, 4, 8):
        assert bound.bound <= taccl.baselines.best(_problem(chunks_per_rank=count)).finish


@pytest.mark.slow
def test_clauses_of_a_sketch_hold_for_every_number():
    """Links excluded by a sketch stay excluded for every number; default merging is derived again."""
    machine = taccl.topologies.ndv2(nodes=2)
    sketch = taccl.Sketch.from_dict({"schema": 1, "internode": {"connections": {"0": [1]}}})
    problem = sketch.apply(machine, "allgather", size="1MB")
    chosen = taccl.choose_chunks(problem, time_limit_s=AMPLE_S)
    assert chosen.clauses == problem.clauses


@pytest.mark.slow
def test_a_large_machine_is_cut_as_on_the_command_line():
    """Large data on a large machine are cut into several chunks.

    For 1 GB on two DGX-H100 (16 ranks) the bound is 1875 us, and one chunk takes 2222 us.
    """
    machine = taccl.topologies.dgx_h100(nodes=2, profile="nominal")
    problem = taccl.Sketch().apply(machine, "allgather", size="1GB")
    assert taccl.choose_chunks(problem).collective.chunks_per_rank > 1


@pytest.mark.slow
def test_the_number_of_chunks_does_not_depend_on_the_time_limit():
    """1 GB on two nodes of 8 has the same number of chunks with a minute as with an hour."""
    topology = taccl.topologies.dgx_h100(2)
    problem = taccl.make_problem(topology, "allgather", size_bytes=10**9)
    found = {
        taccl.choose_chunks(problem, time_limit_s=limit_s).collective.chunks_per_rank
        for limit_s in (60, AMPLE_S)
    }
    assert len(found) == 1
    assert found != {1}


@pytest.mark.slow
def test_numbers_are_tried_without_kernels(monkeypatch):
    """Without compiled kernels, 1 GB on a DGX-1 is still cut into six chunks, 6712.5 us."""
    for module in (suggest, compiling):
        monkeypatch.setattr(module, "are_kept", lambda problem: False)
    problem = taccl.make_problem(taccl.topologies.dgx1(), "allgather", size_bytes="1GB")
    options, ample = replace(Options(), parameters=SHORT), Deadline.after(AMPLE_S)
    chosen, _ = chunks.choose_with_sketches(problem, options, ample, give_up=ample, suggests=False)
    assert chosen.collective.chunks_per_rank == 6


@pytest.mark.slow
def test_short_runs_without_kernels_are_named(monkeypatch):
    """Without compiled kernels, no short run compares numbers of chunks, and the reason is stated."""
    monkeypatch.setattr(chunks, "is_compiled", lambda kernel: False)
    problem = taccl.make_problem(taccl.topologies.ring(4), "allreduce", size_bytes="64MB")
    skipped = {}
    chunks.choose_with_sketches(
        problem, Options(), Deadline.after(60), give_up=NEVER, suggests=False, skipped=skipped
    )
    assert skipped == {"ruin and recreate": "its kernels are not compiled"}


def test_untried_numbers_are_noted(monkeypatch):
    """If time ends after two numbers of chunks, a note names the untried ones."""
    tried = []
    quick = chunks.quick_schedule

    def slow(problem, options, until):
        tried.append(problem)
        return None if len(tried) > 2 else quick(problem, options, NEVER)

    monkeypatch.setattr(chunks, "quick_schedule", slow)
    problem = taccl.make_problem(taccl.topologies.ring(4), "allgather", size_bytes="64MB")
    chosen, _ = chunks.choose_with_sketches(problem, Options(), Deadline.after(0), give_up=NEVER)
    assert any("too short to try 3, 4, 6, 8, 16 chunks per rank" in note for note in chosen.notes)


def test_an_untried_number_in_use_is_noted():
    """If no number of chunks was tried, the note names the number in use separately from the untried ones."""
    problem, over = (
        taccl.make_problem(taccl.topologies.ring(4), "allgather", size_bytes="64MB"),
        Deadline.after(0),
    )
    chosen, _ = chunks.choose_with_sketches(problem, Options(), over, give_up=over)
    said = "too short to try 2, 3, 4, 6, 8, 16 chunks per rank, and 1 was used untried"
    assert any(said in note for note in chosen.notes)


@pytest.mark.slow
def test_a_ring_competes_with_chunks():
    """On racks of two behind a narrow core one chunk per rank is chosen, because of the ring baseline.

    The list scheduler is faster with 8 chunks than with 1, but a ring in 1 chunk is faster still.
    """
    topology = taccl.topologies.in_network(6, racks=3, core_oversubscription=4)
    pairs = frozenset(i for i, link in enumerate(topology.links) if len(link.srcs) + len(link.dsts) == 2)
    problem = taccl.make_problem(topology, "allreduce", size_bytes=10**8).with_clauses(links_allowed=pairs)
    assert problem.chunks_open
    chosen = taccl.choose_chunks(problem, time_limit_s=AMPLE_S)
    assert chosen.collective.chunks_per_rank == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("collective", "most_us"), [("allgather", Fraction("1.33")), ("alltoall", Fraction("1.47"))]
)
def test_small_chunks_merge_in_a_node_where_that_is_sooner(collective, most_us):
    """16 KB of data are cut into chunks that are merged on all links of a DGX-2.

    Alpha is 0.3 us and a chunk takes only 0.008 us, so that few merged sends finish early.
    """
    problem = make_problem(taccl.topologies.dgx2(), collective, size_bytes=16_000)
    result = brief_synthesis(problem, parameters=HASTY)
    found = result.schedule.problem
    assert result.finish_us <= most_us
    assert found.clauses.merging == frozenset(range(len(problem.topology.links)))
    assert any("merge" in note and "240 links" in note for note in result.notes)
    apart = make_problem(taccl.topologies.dgx2(), collective, size_bytes=16_000, chunks_per_rank=1)
    assert taccl.choose_chunks(apart) == apart


def test_large_chunks_do_not_merge_in_a_node():
    """Chunks that take longer than their latency are not merged inside a node."""
    problem = make_problem(taccl.topologies.dgx2(), "allgather", size_bytes=16_000_000)
    assert merged(replace(problem, chunks_open=False)) is None


@pytest.mark.slow
def test_clauses_of_a_sketch_say_what_merges():
    """Nothing merges that the sketch's clauses do not allow to merge."""
    problem = make_problem(taccl.topologies.dgx2(), "allgather", size_bytes=16_000, clauses=Clauses())
    assert taccl.choose_chunks(problem).clauses == Clauses()
