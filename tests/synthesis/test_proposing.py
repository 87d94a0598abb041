"""Proposers registered by users besides the library's own."""

import time
from dataclasses import replace

import pytest

import taccl
from taccl._internal.deadline import Deadline, OutOfTime
from taccl.errors import FallbackWarning, InputError
from taccl.synthesis import register, unregister
from taccl.synthesis.budget import Turn, run
from taccl.synthesis.options import Options
from taccl.synthesis.proposers.stages import STAGES
from taccl.synthesis.proposers.table import AGGREGATING, FIRST, LAST, PROPOSERS, SECOND, THIRD
from taccl.synthesis.proposing import PLUGINS, OwnProposer, Proposer, registered
from taccl.synthesis.search import Search
from tests.effort import AMPLE_S, brief_synthesis


class Ring:
    """A proposer of the ring, with changes as needed by a test."""

    name = "my ring"

    def __init__(self, change=lambda schedule: schedule, *, fits=True):
        self.change, self.fits, self.asked = change, fits, 0

    def supports(self, problem):
        return self.fits

    def propose(self, search):
        self.asked += 1
        return self.change(replace(taccl.baselines.ring(search.problem, cut=False), problem=search.problem))


class SlowRing(Ring):
    """A `Ring` whose estimated time exceeds that of every search."""

    def estimate_s(self, problem):
        return 1e9


@pytest.fixture
def problem():
    ring = taccl.topologies.ring(6, alpha_us=1, bandwidth_gb_per_s=100)
    return taccl.make_problem(ring, taccl.collectives.alltoall(6, chunks_per_rank=1), size_bytes="6MB")


@pytest.fixture
def allgather():
    ring = taccl.topologies.ring(4, alpha_us=1, bandwidth_gb_per_s=100)
    return taccl.make_problem(ring, taccl.collectives.allgather(4, chunks_per_rank=2), size_bytes="6MB")


@pytest.fixture
def added():
    """Register a proposer for one test."""
    names = []

    def add(proposer):
        register(proposer)
        names.append(proposer.name)
        return proposer

    yield add
    for name in set(names):
        unregister(name)


def row_of(result, name="my ring"):
    return next((stage for stage in result.stages if stage.name == name), None)


@pytest.mark.slow
def test_a_proposal_is_a_row_of_the_stages(allgather, added):
    """A registered proposer is called once, and its finish is recorded as a stage."""
    proposer = added(Ring())
    result = brief_synthesis(allgather)
    assert proposer.asked == 1
    assert row_of(result).status == "done"
    assert row_of(result).finish_us == taccl.baselines.ring(allgather, cut=False).finish_us


@pytest.mark.slow
def test_a_proposal_that_breaks_the_rules_is_dropped(allgather, added):
    """A proposal that fails verification gives a warning and a note, and is never the result."""
    added(Ring(lambda schedule: replace(schedule, start=0 * schedule.start, end=0 * schedule.end + 1)))
    with pytest.warns(FallbackWarning, match="my ring made a schedule that"):
        result = brief_synthesis(allgather)
    assert row_of(result).status == "refused"
    assert taccl.verify(result.schedule).ok
    assert any("my ring" in note for note in result.notes)


@pytest.mark.slow
def test_a_proposal_for_another_problem_is_dropped(allgather, problem, added):
    """A schedule of another problem is refused before it is verified."""
    added(Ring(lambda schedule: taccl.baselines.pairwise(problem)))
    with pytest.warns(FallbackWarning, match="is for another problem"):
        result = brief_synthesis(allgather)
    assert row_of(result).status == "refused"


@pytest.mark.slow
def test_one_that_takes_too_long_is_left_out(allgather, added):
    """A proposer whose estimate exceeds its share of time is skipped, and its stage says so."""
    proposer = added(SlowRing())
    result = brief_synthesis(allgather)
    assert proposer.asked == 0
    assert row_of(result).status == "skipped" and "takes about" in row_of(result).message


@pytest.mark.slow
def test_a_proposer_that_does_not_support_the_problem_is_not_called(allgather, added):
    """A proposer that does not support the problem is not called and has no stage."""
    proposer = added(Ring(fits=False))
    assert row_of(brief_synthesis(allgather)) is None and proposer.asked == 0


@pytest.mark.slow
def test_what_raises_inside_a_proposer_reaches_the_caller(allgather, added):
    """An exception in a user's proposer reaches the caller."""

    def fails(schedule):
        raise RuntimeError("a fault of mine")

    added(Ring(fails))
    with pytest.raises(RuntimeError, match="a fault of mine"):
        brief_synthesis(allgather)


@pytest.mark.parametrize("is_said_verified", [False, True])
def test_an_intermediate_schedule_that_breaks_the_rules_is_dropped(allgather, is_said_verified):
    """A schedule that a proposer offers is verified while the proposer runs, whatever the proposer says."""
    ring = taccl.baselines.ring(allgather, cut=False)
    early = replace(ring, start=0 * ring.start, end=None)

    class Offering(Ring):
        def propose(self, search):
            for schedule in (early, early, ring):
                search.offer_whole(schedule, producer=self.name, verified=is_said_verified)

    search = Search(allgather, Options(), Deadline.after(10))
    with pytest.warns(FallbackWarning, match="my ring made a schedule that") as told:
        run(search, [Turn(Offering(), share=0.5)])
    assert search.best is ring and search.is_verified and len(told) == 1
    assert [stage.status for stage in search.stages] == ["refused", "no-solution"]


@pytest.mark.parametrize("ends", [None, KeyboardInterrupt])
def test_a_proposer_cannot_set_the_incumbent(allgather, ends):
    """A schedule that a proposer makes the incumbent itself is not verified: it is dropped, also after Ctrl-C,
    and so are its other changes of the search."""
    ring = taccl.baselines.ring(allgather, cut=False)

    class Setting(Ring):
        def propose(self, search):
            search.best, search.is_verified = replace(ring, start=0 * ring.start, end=None), True
            search.stages.clear()
            if ends is not None:
                raise ends

    search = Search(allgather, Options(), Deadline.after(10))
    search.offer_whole(ring, producer="ring")
    search.record("baselines", "taccl", "done", time.monotonic())
    with pytest.raises(ends or InputError, match=None if ends else "proposer my ring: it set search.best"):
        run(search, [Turn(Setting(), share=0.5)])
    assert search.best is ring and not search.is_verified
    assert search.stages[0].name == "baselines"


def test_a_refused_schedule_is_reported_at_the_callers_line(allgather, added):
    """The warning about an invalid schedule of a proposer names the file that called taccl."""
    proposer = added(Ring(lambda schedule: replace(schedule, start=0 * schedule.start, end=None)))
    with pytest.warns(FallbackWarning, match="my ring made a schedule that") as told:
        taccl.synthesize(allgather, time_limit_s=AMPLE_S, stop_when=lambda _: proposer.asked)
    assert {each.filename for each in told} == {__file__}


@pytest.mark.parametrize("estimate", [None, "3 s"])
def test_an_estimate_that_is_no_number_is_an_error(allgather, estimate):
    """An estimate that is no number of seconds names the proposer and the value."""

    class Estimating(Ring):
        def estimate_s(self, problem):
            return estimate

    search = Search(allgather, Options(), Deadline.after(10))
    with pytest.raises(InputError, match=f"proposer my ring: estimate_s returned {estimate!r}"):
        run(search, [Turn(Estimating(), share=0.5)])


def test_a_proposer_cannot_replace_the_problem(problem, allgather):
    """Assigning another problem to a search is an error, and changes nothing."""
    search = Search(problem, Options(), Deadline.after(10))
    with pytest.raises(AttributeError, match="the problem of a search is fixed"):
        search.problem = allgather
    assert search.problem is problem


@pytest.mark.parametrize("part", ["", "topology", "collective", "clauses"])
def test_a_proposer_that_changes_the_problem_is_an_error(problem, part):
    """If a proposer changes a field of the problem past its protection, the error names the proposer."""

    class Changing(Ring):
        def propose(self, search):
            changed = getattr(search.problem, part) if part else search.problem
            object.__setattr__(changed, "name" if part else "chunk_bytes", ("other",))

    search = Search(problem, Options(), Deadline.after(10))
    with pytest.raises(InputError, match="proposer my ring: it changed the problem of the search"):
        run(search, [Turn(Changing(), share=0.5)])


def test_a_registered_proposer_that_an_outer_deadline_interrupts_is_a_row(problem):
    """If the deadline of the whole search interrupts a registered proposer, its time is a stage of its own."""

    class Endless(Ring):
        def propose(self, search):
            while True:
                sum(range(100))

    search = Search(problem, Options(), Deadline.after(100))
    with pytest.raises(OutOfTime), Deadline.after(0.1).enforced():
        run(search, [Turn(Endless(), share=0.5)])
    (row,) = search.stages
    assert (row.name, row.status) == ("my ring", "timed-out") and row.seconds >= 0.05


def test_a_registered_proposer_that_is_stopped_at_its_share_has_it_in_its_row(problem):
    """A proposer that does not end is stopped at its share, here 0.1 s, which its stage states."""

    class Endless(Ring):
        def propose(self, search):
            while True:
                sum(range(100))

    search = Search(problem, Options(), Deadline.after(100))
    run(search, [Turn(Endless(), share=0.001)])
    (row,) = search.stages
    assert (row.status, row.message) == ("timed-out", "stopped after 0.1 s, its share of the time")


def test_an_interrupted_registered_proposer_is_a_row(problem):
    """Ctrl-C in a registered proposer reaches the search, and is the status of its stage."""

    class Interrupted(Ring):
        def propose(self, search):
            raise KeyboardInterrupt

    search = Search(problem, Options(), Deadline.after(100))
    with pytest.raises(KeyboardInterrupt):
        run(search, [Turn(Interrupted(), share=0.5)])
    assert [(row.name, row.status) for row in search.stages] == [("my ring", "interrupted")]


@pytest.mark.parametrize(("takes_s", "message"), [(8.0, "ran 3.0 s past its time limit"), (4.0, "")])
def test_a_proposer_that_cannot_be_interrupted_is_named(problem, monkeypatch, takes_s, message):
    """A proposer has half of 10 s; if it returns after 8 s, its stage says by how much it is late."""
    began_s, slept_s = time.monotonic(), [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: began_s + slept_s[0])

    class Sleeper(Ring):
        def propose(self, search):
            slept_s[0] = takes_s

    search = Search(problem, Options(), Deadline.after(10))
    run(search, [Turn(Sleeper(), share=0.5)])
    (stage,) = search.stages
    assert (stage.name, stage.status, stage.message) == ("my ring", "no-solution", message)


@pytest.mark.parametrize(
    "turn",
    [*AGGREGATING, *FIRST, *SECOND, *THIRD, *PROPOSERS, *LAST, *STAGES["auto"], *STAGES["greedy"]],
    ids=lambda turn: turn.proposer.name,
)
def test_the_librarys_own_have_the_protocol_of_users(turn, problem):
    """The library's own proposers implement `Proposer`, as users' do, and `supports` returns a bool."""
    assert isinstance(turn.proposer, Proposer)
    assert turn.proposer.supports(problem) in (True, False)


def test_a_later_proposer_keeps_its_time(problem):
    """An earlier proposer's deadline leaves the time that a later proposer reserves."""
    left_s = {}
    search = Search(problem, Options(), Deadline.after(1000))

    def proposer(name):
        return OwnProposer(name, lambda asked: left_s.update({name: asked.deadline.left_s}))

    run(search, [Turn(proposer("first")), Turn(proposer("last"), reserve_s=lambda _: 400.0)])
    assert left_s["first"] < 601 and left_s["last"] > 990


@pytest.mark.parametrize(("takes_s", "left_s"), [(100.0, 299.0), (400.0, None)])
def test_reserved_time_that_is_not_needed_returns_to_the_steps_left_out(
    problem, monkeypatch, takes_s, left_s
):
    """A step of a phase without time left runs once a later proposer has needed less time than it reserved.

    If that proposer used all of its time, a row names the step.
    """
    now, passed_s = time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now() + passed_s[0])
    search = Search(problem, Options(), Deadline.after(1000))
    search.offer_whole(taccl.baselines.pairwise(problem), producer="pairwise")
    part = search.part(problem, "reduce: ", search.deadline, best=search.best)
    found_s = []

    def takes(seconds):
        return lambda _: passed_s.__setitem__(0, passed_s[0] + seconds)

    def phases(_):
        part.deadline = search.deadline
        steps = (
            OwnProposer("first", takes(601)),
            OwnProposer("last", lambda it: found_s.append(it.deadline.left_s)),
        )
        run(part, [Turn(each) for each in steps])

    run(
        search,
        [
            Turn(OwnProposer("phases", phases)),
            Turn(OwnProposer("improvement", takes(takes_s)), reserve_s=lambda _: 400.0),
        ],
    )
    late = [row.message for row in search.stages if row.status == "skipped"]
    if left_s is None:
        assert not found_s and late == ["no time left for reduce: last"]
    else:
        assert found_s == pytest.approx([left_s], abs=1) and not late


@pytest.mark.slow
def test_a_baseline_that_meets_the_bound_ends_the_search():
    """An allreduce on a ring for which a baseline is optimal: its phases, which take longer, are not searched."""
    problem = taccl.make_problem(taccl.topologies.ring(4), "allreduce", size_bytes="1MB", chunks_per_rank=1)
    result = brief_synthesis(problem)
    assert result.stopped == "bound met"
    assert result.schedule.finish == taccl.baselines.best(problem).finish
    names = [stage.name for stage in result.stages]
    assert "bound" in names and not any("phases" in name or ": " in name for name in names)


def test_a_reason_to_skip_is_a_row(problem):
    """A skipped proposer is not called, and its stage gives the reason."""
    search = Search(problem, Options(), Deadline.after(1000))
    asked = []
    run(search, [Turn(OwnProposer("cold", asked.append), why_not=lambda _: "its kernels are not compiled")])
    (row,) = search.stages
    assert not asked and (row.name, row.status, row.message) == (
        "cold",
        "skipped",
        "its kernels are not compiled",
    )


def test_only_proposers_can_be_registered():
    """An object without the protocol's methods is refused."""
    with pytest.raises(InputError, match="expected an object with a name"):
        register(object())


def test_a_name_is_registered_once(added):
    """A proposer replaces an earlier one of the same name."""
    first, second = Ring(), Ring()
    added(first)
    added(second)
    assert [each for each in registered() if each.name == "my ring"] == [second]


def test_an_unknown_name_cannot_be_taken_out():
    """The error for removing an unknown proposer lists the registered names."""
    with pytest.raises(InputError, match="registered: none"):
        unregister("nobody")


def test_an_entry_point_that_cannot_be_loaded_is_left_out(monkeypatch):
    """A package that raises on import gives a warning, and synthesis continues."""

    class Broken:
        name = "broken"

        def load(self):
            raise ImportError("no module")

    class Fine:
        name = "fine"

        def load(self):
            return Ring

    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [Broken(), Fine()])
    with pytest.warns(FallbackWarning, match="broken could not be loaded"):
        found = PLUGINS.installed()
    assert [each.name for each in found] == ["my ring"]
