"""Searches from a given schedule or until a gap, `improve`, and `explain` of a result."""

import json
from dataclasses import replace

import pytest

import taccl
from taccl.cli import main
from taccl.errors import InputError
from taccl.synthesis.options import Observer
from taccl.synthesis.result import with_note_on_gap
from taccl.synthesis.stopping import GAP_MET, STOPPING_RULE, UntilGap
from tests.effort import AMPLE_S, BRIEF, HASTY, brief_synthesis


def problem_of(collective="allgather", ranks=4, size="1MB", **given):
    return taccl.make_problem(taccl.topologies.ring(ranks), collective, size_bytes=size, **given)


def greedy(problem, **given):
    """A brief search by the list scheduler alone."""
    return brief_synthesis(problem, backend="greedy", **given)


@pytest.fixture(scope="module")
def ring():
    return taccl.baselines.ring(problem_of(chunks_per_rank=1))


class TestStart:
    @pytest.mark.slow
    def test_the_result_is_no_later(self, ring):
        """An optimal `start` is returned if the search has no time, and its stage says "verified"."""
        best = brief_synthesis(ring.problem).schedule
        found = taccl.synthesize(ring.problem, start=best, backend="greedy", time_limit_s=0.01)
        assert found.finish_us <= best.finish_us
        assert [each.message for each in found.stages if each.name == "start"] == ["verified"]
        assert taccl.verify(found.schedule).ok

    @pytest.mark.slow
    def test_an_open_problem_is_searched_in_the_chunks_of_the_start(self):
        """An open problem is searched in the two chunks per rank of `start`, without a choice."""
        start = taccl.baselines.ring(problem_of(ranks=7, chunks_per_rank=2), cut=False)
        found = greedy(problem_of(ranks=7), start=start)
        chosen = [each.message for each in found.stages if each.name == "chunks"]
        assert chosen == ["2 chunks per rank"]
        assert found.finish_us <= start.finish_us

    @pytest.mark.slow
    def test_a_result_is_a_start_of_its_own_problem(self):
        """A result may be the `start` for its own problem, even if the search allowed more merging."""
        problem = problem_of("allreduce")
        first = brief_synthesis(problem, parameters=HASTY)
        assert greedy(problem, start=first).finish_us <= first.finish_us

    @pytest.mark.slow
    def test_release_dates_hold_for_the_start(self):
        """With release dates the search ignores `start`, and the earlier of both schedules is returned."""
        problem = replace(problem_of(chunks_per_rank=1), release_us=[(0, 0, 5)])
        first = greedy(problem)
        again = greedy(problem, start=first.schedule)
        assert again.finish_us <= first.finish_us and taccl.verify(again.schedule).ok

    @pytest.mark.slow
    def test_switches_that_add_hold_for_the_start(self):
        """If switches can reduce and `start` is cut into other chunks, the earlier of `start` and the
        schedule found is returned."""
        problem = taccl.make_problem(taccl.topologies.in_network(4), "allreduce", size_bytes="64KB")
        start = taccl.baselines.best(problem)
        found = taccl.synthesize(problem, start=start, backend="greedy", time_limit_s=0.1)
        assert found.finish_us <= start.finish_us and taccl.verify(found.schedule).ok

    @pytest.mark.parametrize(
        ("problem", "said"),
        [
            (problem_of("alltoall"), "of another collective, allgather; expected one of alltoall"),
            (problem_of(ranks=5), "of another topology, ring:4; expected one of ring:5"),
            (problem_of(size="2MB"), "of another size, 1MB; expected one of 2MB"),
            (
                problem_of(chunks_per_rank=2),
                "in other chunks, 4; expected one in 8, or leave chunks_per_rank out",
            ),
        ],
    )
    def test_a_schedule_of_another_problem_is_refused(self, ring, problem, said):
        """The error for a schedule of another problem names the difference."""
        with pytest.raises(InputError, match=f"start: found a schedule {said}"):
            taccl.synthesize(problem, start=ring)

    def test_other_costs_under_one_name_are_refused(self, ring):
        """A topology of the same name with another rate is refused."""
        other = taccl.topologies.ring(4, bandwidth_gb_per_s=3)
        problem = taccl.make_problem(replace(other, name="ring:4"), "allgather", size_bytes="1MB")
        with pytest.raises(InputError, match="ring:4 under other costs or another protocol"):
            taccl.synthesize(problem, start=ring)

    def test_an_invalid_schedule_is_refused(self, ring):
        """A `start` without its last send is refused, as the verifier rejects it."""
        rows = {name: column[:-1] for name, column in ring.kept._asdict().items() if column is not None}
        with pytest.raises(InputError, match="that the verifier refuses"):
            taccl.synthesize(ring.problem, start=replace(ring, **rows))


class TestUntilGap:
    def test_only_bounds_over_all_chunkings_count_for_an_open_problem(self, ring):
        """For an open problem only the bound over all chunkings counts for `until_gap`."""
        bound = taccl.lower_bound(ring.problem)
        for is_open, why in ((True, ""), (False, GAP_MET)):
            observer = Observer(rules=[UntilGap(1.0)], is_open=is_open)
            observer.incumbent(ring)
            observer.bound(bound)
            assert observer._cancellation.why == why
        observer = Observer(rules=[UntilGap(1.0)], is_open=True)
        observer.incumbent(ring)
        observer.bound(taccl.lower_bound(ring.problem, divisible=True))
        assert observer._cancellation.why == GAP_MET

    @pytest.mark.slow
    def test_the_result_states_the_gap_that_ended_the_search(self):
        """The first schedule within the gap ends the search, and a note gives the figure."""
        problem = taccl.make_problem(taccl.topologies.dgx1(), "alltoall", size_bytes="8MB")
        found = brief_synthesis(problem, until_gap="400%")
        assert found.stopped == "gap met"
        assert 0 < found.gap <= 4
        assert "stopped at a gap of at most 400%, as requested" in found.notes
        assert "time limit" not in found.choice

    @pytest.mark.slow
    def test_until_gap_does_not_end_a_search_without_release_dates(self):
        """If chunks have release dates, the search that ignores these dates does not stop at `until_gap`; a
        note says so."""
        problem = replace(problem_of(chunks_per_rank=1), release_us=[(0, 0, 5)])
        found = greedy(problem, until_gap="400%")
        assert found.stopped != "gap met"
        assert any("(400%) was ignored" in note for note in found.notes)

    def test_a_gap_that_the_problem_as_asked_does_not_have_is_not_claimed(self, ring):
        """A search that stopped because its gap was met does not claim that if the final result has a larger
        gap."""
        bound = taccl.lower_bound(ring.problem)
        made = brief_synthesis(ring.problem, backend="greedy")
        found = with_note_on_gap(
            replace(made, schedule=ring, bound=bound, stopped=GAP_MET), 0.0, is_judged=True
        )
        late = replace(made, bound=replace(bound, bound=bound.bound / 2), stopped=GAP_MET)
        assert found.gap == 0 and found.stopped == GAP_MET
        assert with_note_on_gap(late, 0.5, is_judged=True).stopped == STOPPING_RULE

    def test_the_command_line_takes_percent(self, tmp_path, capsys):
        """``--until-gap 20000%`` ends with the first schedule; ``--start`` takes a file."""
        path = str(tmp_path / "s.json")
        words = [
            "synthesize",
            "--topology",
            "ring:4",
            "--collective",
            "allgather",
            "--size",
            "1MB",
            "--seed",
            "1",
        ]
        assert main([*words, "--until-gap", "20000%", "--time-limit", "1", "-o", path]) == 0
        assert main([*words, "--start", path, "--until-gap", "20000%", "--time-limit", "1", "--json"]) == 0
        values = json.loads(capsys.readouterr().out.partition("\n{")[2].join(["{", ""]))
        assert values["finish_us"] <= taccl.load(path).finish_us
        assert main([*words, "--until-gap", "-1%"]) == 2
        assert "expected a share such as 0.01 or '1%'" in capsys.readouterr().err
        assert main([*words, "--until-gap", "5"]) == 2
        assert "above 1 with a percent sign" in capsys.readouterr().err


class TestImprove:
    @pytest.mark.slow
    @pytest.mark.parametrize(("collective", "name"), [("allgather", "pairwise"), ("allreduce", "ring")])
    def test_a_baseline_finishes_sooner(self, collective, name):
        """`improve` makes a baseline for other machines finish earlier on a DGX-1, and the result verifies."""
        problem = taccl.make_problem(taccl.topologies.dgx1(), collective, size_bytes="1MB", chunks_per_rank=1)
        start = taccl.baselines.baseline(name, problem, cut=False)
        found = taccl.improve(start, time_limit_s=AMPLE_S, parameters=BRIEF)
        assert found.finish_us < start.finish_us
        assert found.schedule.problem.collective == start.problem.collective
        assert taccl.verify(found.schedule).ok

    def test_an_optimum_stays(self, ring):
        """`improve` returns a schedule that meets the bound at once."""
        best = brief_synthesis(ring.problem, backend="greedy").schedule
        found = taccl.improve(best)
        assert (found.finish_us, found.stopped) == (best.finish_us, "bound met")

    @pytest.mark.slow
    def test_problems_without_such_moves_are_synthesized(self):
        """A scan, whose derived chunks ruin and recreate does not support, is synthesized instead."""
        problem = taccl.make_problem(taccl.topologies.ring(3), "scan", size_bytes="3KB", chunks_per_rank=1)
        start = greedy(problem).schedule
        found = taccl.improve(start, time_limit_s=AMPLE_S, parameters=BRIEF)
        assert found.finish_us <= start.finish_us

    def test_an_invalid_schedule_is_refused(self, ring):
        """The error for an invalid schedule names the argument."""
        rows = {name: column[:-1] for name, column in ring.kept._asdict().items() if column is not None}
        with pytest.raises(InputError, match="schedule: found a schedule that the verifier refuses"):
            taccl.improve(replace(ring, **rows))


class TestExplain:
    def test_three_sentences(self, ring):
        """`explain` returns three lines: limit, remedy and certainty; sends of 250 KB need bandwidth most."""
        made = brief_synthesis(ring.problem, backend="greedy")
        limit, help_, certainty = made.explain().splitlines()
        assert limit.startswith(f"Limit: no schedule finishes before {made.bound_us:g} us")
        assert "no other schedule" in help_ and "bandwidth helps most" in help_
        assert certainty.startswith("Certainty: the schedule is verified, and")

    def test_claims_under_a_sketch_name_it(self, ring):
        """Limit, remedy and certainty hold only under the sketch, if there is one."""
        sketched = replace(ring.problem, clauses=replace(ring.problem.clauses, name="mine"))
        for problem, count in ((ring.problem, 0), (sketched, 3)):
            lines = brief_synthesis(problem, backend="greedy").explain().splitlines()
            assert sum("under this sketch" in line for line in lines) == count

    def test_latency_of_small_messages_is_reported(self):
        """With 8 bytes and 1 us per hop the critical path is 100 % latency."""
        ring = taccl.topologies.ring(4, alpha_us=1, bandwidth_gb_per_s=100)
        problem = taccl.make_problem(ring, "allgather", size_bytes=8, chunks_per_rank=1)
        assert "100% of the critical path is latency" in brief_synthesis(problem, backend="greedy").explain()

    def test_without_a_bound_no_gap_is_claimed(self, ring):
        """Without a bound `explain` claims no gap, and a summary has no critical path."""
        made = brief_synthesis(ring.problem, backend="greedy", keep="summary")
        assert "critical path" not in made.explain()
        unbound = replace(made, bound=replace(made.bound, bound=made.bound.bound * 0))
        limit, help_, certainty = unbound.explain().splitlines()
        assert limit == "Limit: no lower bound is proven."
        assert "possible gain of another schedule is unknown" in help_
        assert "distance from the optimum is unknown" in certainty
