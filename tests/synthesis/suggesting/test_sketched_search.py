"""Synthesis without a sketch: suggested sketches are tried, reported, and never make the result worse."""

from dataclasses import replace

import pytest

import taccl
from taccl._internal.deadline import NEVER
from taccl.errors import InputError
from taccl.synthesis.bounding import no_bound
from taccl.synthesis.options import Options
from taccl.synthesis.search import Search
from taccl.synthesis.suggesting import sketched_search
from taccl.synthesis.suggesting.sketched_search import is_unguided
from taccl.topology.builder import TopologyBuilder
from tests.effort import AMPLE_S, BRIEF

pytestmark = pytest.mark.slow  # `result` is a search of some seconds


@pytest.fixture(scope="module")
def problem():
    """An allgather on two DGX-A100 without a sketch, whose bound no quick schedule meets."""
    topology = taccl.topologies.dgx_a100(nodes=2)
    return taccl.make_problem(topology, "allgather", size_bytes=1_000_000, chunks_per_rank=1)


@pytest.fixture(scope="module")
def result(problem):
    """Result of the problem's synthesis, with time to spare for suggestions."""
    return taccl.synthesize(problem, time_limit_s=AMPLE_S, parameters=BRIEF)


@pytest.fixture(scope="module")
def proposal():
    """The first sketch for an allgather of 16 MB on two DGX-A100."""
    topology = taccl.topologies.dgx_a100(nodes=2, profile="nominal")
    return taccl.suggest_sketches(topology, "allgather", "16MB", most=1, time_limit_s=AMPLE_S)[0]


@pytest.fixture(scope="module")
def unsketched(proposal):
    """The proposal's problem without its sketch."""
    return taccl.make_problem(proposal.problem.topology, proposal.problem.collective, size_bytes=16_000_000)


def test_the_schedule_is_of_the_problem_that_was_given(problem, result):
    """A schedule found with a suggested sketch is one of the given problem: the sketch only guides the
    search."""
    assert result.schedule.problem == problem
    assert taccl.verify(result.schedule).ok


def test_the_bound_is_of_the_problem_without_the_sketch(problem, result):
    """The bound of a search with a suggested sketch is that of the problem without the sketch."""
    assert result.bound.problem == problem
    assert result.bound_us <= taccl.lower_bound(problem).bound_us
    assert result.bound.check()


def test_the_result_says_which_sketch_and_how_to_do_without(result):
    """A note names the sketch that led to the schedule, and the option that disables suggestions."""
    (note,) = [note for note in result.notes if "suggested sketch" in note]
    assert note.startswith(("suggested sketch auto-", "tried "))
    assert note.endswith("sketch='none' (--no-sketch) disables suggestions")


def test_the_best_of_all_is_kept(result):
    """The result has the earliest finish of all stages, with and without sketches."""
    finishes = [stage.finish_us for stage in result.stages if stage.finish_us is not None]
    assert result.finish_us == min(finishes)


def test_none_tries_no_sketch(problem):
    """With sketch="none" there is no stage with a sketch, and no note about one."""
    without = taccl.synthesize(problem, time_limit_s=AMPLE_S, parameters=BRIEF, sketch="none")
    assert not any("suggested sketch" in note for note in without.notes)
    assert not any(stage.name.startswith(("suggest", "sketch")) for stage in without.stages)


def test_stages_of_the_sketch_are_distinguished(result):
    """Names of stages under a sketch start with "sketch: "."""
    names = [stage.name for stage in result.stages]
    assert "suggest" in names
    assert any(name.startswith("sketch: ") for name in names)


def test_progress_never_gets_worse(result):
    """Over the whole trace the best finish never rises and time never falls."""
    finishes = [m.finish_us for m in result.trace if m.finish_us is not None]
    seconds = [m.seconds for m in result.trace]
    assert finishes == sorted(finishes, reverse=True)
    assert seconds == sorted(seconds)


def test_a_proposal_may_be_given(proposal, unsketched):
    """A given proposal of `suggest_sketches` is used in place of the best one."""
    result = taccl.synthesize(unsketched, time_limit_s=AMPLE_S, parameters=BRIEF, sketch=proposal)
    assert result.finish_us <= proposal.finish_us


def test_a_proposal_whose_schedule_meets_the_bound_ends_the_search(proposal, monkeypatch):
    """Neither first schedules nor a search under the sketch follow; the note names the sketch."""
    for name in ("_offer_first", "_search_part"):
        monkeypatch.setattr(sketched_search, name, None)
    topology, collective = proposal.problem.topology, proposal.problem.collective
    problem = taccl.make_problem(topology, collective, size_bytes=16_000_000)
    search = Search(problem, Options(), NEVER, proposals=[proposal])
    search.bound = replace(no_bound(problem), bound=proposal.schedule.finish)
    sketched_search.search_guided(search)
    assert search.is_met
    assert search.notes[0].startswith(f"suggested sketch {proposal.sketch.name}")


def test_a_proposal_for_other_chunks_is_refused(proposal):
    """A proposal for several chunks per rank is refused for a problem of one."""
    assert proposal.problem.collective.chunks_per_rank > 1
    plain = taccl.make_problem(
        proposal.problem.topology, "allgather", size_bytes=16_000_000, chunks_per_rank=1
    )
    with pytest.raises(InputError, match="sketch: found a proposal for another problem"):
        taccl.synthesize(plain, time_limit_s=AMPLE_S, sketch=proposal)


def test_an_unknown_word_for_the_sketch_is_refused(problem):
    """Only "auto", "none" and proposals are accepted; names of sketches are refused."""
    with pytest.raises(InputError, match="sketch: found 'ndv2/sk1'"):
        taccl.synthesize(problem, time_limit_s=AMPLE_S, sketch="ndv2/sk1")


def test_a_problem_with_a_sketch_is_left_alone():
    """A problem with a sketch of its own gets no suggestions."""
    topology = taccl.topologies.ndv2(nodes=2)
    own = taccl.load_sketch("ndv2/sk1").apply(topology, taccl.collectives.allgather(16))
    assert not is_unguided(own)


def test_a_small_problem_needs_no_sketch():
    """A small problem, four chunks over eight links, is searched without suggestions."""
    ring = taccl.make_problem(taccl.topologies.ring(4), taccl.collectives.allgather(4), chunk_bytes=1000)
    assert not is_unguided(ring)


def test_ctrl_c_while_sketches_are_tried_keeps_the_first_schedule(problem):
    """After Ctrl-C during the trial of sketches, the first schedule is returned."""

    def interrupted(doing, finish_us, bound_us):
        if doing.startswith("sketch "):
            raise KeyboardInterrupt

    result = taccl.synthesize(problem, time_limit_s=AMPLE_S, parameters=BRIEF, progress=interrupted)
    assert result.interrupted
    assert taccl.verify(result.schedule).ok


def test_topologies_that_admit_no_sketch_are_searched_without():
    """Nodes of 9 and 8 ranks admit no sketch; a schedule is still found."""
    builder = TopologyBuilder("uneven", [0] * 9 + [1] * 8)
    for src in range(17):
        for dst in range(17):
            if src != dst:
                builder.add_link(src, dst, alpha_us=1, beta_us_per_mb=1)
    plain = taccl.make_problem(builder.build(), taccl.collectives.allgather(17), chunk_bytes=1000)
    result = taccl.synthesize(plain, time_limit_s=2)
    assert taccl.verify(result.schedule).ok
    assert [stage.status for stage in result.stages if stage.name == "suggest"] in ([], ["no-solution"])


def test_a_proposal_beside_a_sketch_is_refused(proposal):
    """A proposal for a problem that has a sketch already is refused."""
    with pytest.raises(InputError, match="has a sketch already"):
        taccl.synthesize(proposal.problem, time_limit_s=AMPLE_S, sketch=proposal)


def test_a_proposal_guides_the_portfolio_alone(proposal, unsketched):
    """A proposal with a named solver is refused: it guides only the portfolio."""
    with pytest.raises(InputError, match="guides only the portfolio"):
        taccl.synthesize(unsketched, time_limit_s=AMPLE_S, sketch=proposal, backend="highs")
