"""The architecture's "How to add" recipes, each carried out here."""

import inspect
import re
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import taccl
from taccl import collectives
from taccl._internal.deadline import Cancellation
from taccl._internal.kernels import _Kernel
from taccl.analysis.certificates import bounds
from taccl.analysis.certificates.certificate import Claim, OfRanks
from taccl.baselines.chunking import cut_while_it_pays, require_no_derivations, run
from taccl.baselines.moves import Moves, routed
from taccl.baselines.table import BASELINES, TABLE, Baseline, label_of
from taccl.cli import main
from taccl.errors import CollectiveError
from taccl.formats.table import FileFormat
from taccl.measure.gpus import machine_by_gpus
from taccl.problem.chunks import Chunk
from taccl.problem.collective import Collective
from taccl.problem.making import make_problem
from taccl.synthesis.improve import improvement
from taccl.synthesis.improve.improvement import improve_schedule
from taccl.synthesis.kernels import (
    improvement_kernel,
    improvement_state,
    recreate_kernel,
    ruin_kernel,
    timing_kernel,
)
from taccl.synthesis.kernels.limits import Limits
from taccl.synthesis.options import Observer
from taccl.synthesis.stopping import StoppingRule, remedy_after
from taccl.topology import machines
from taccl.topology.models import MODELS, Model, NodeShape
from taccl.topology.profiles import PROFILES
from tests.effort import AMPLE_S
from tests.formats.test_registry import with_format
from tests.synthesis.small_problems import MB, full, problem_of, ring

ROOT = Path(__file__).resolve().parents[1]
RECIPES = dict(
    re.findall(
        r"^\*\*((?:A|An) [^*]+?)\.?\*\*(.*?)(?=^\*\*|\Z)",
        (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").partition("## How to add")[2],
        re.MULTILINE | re.DOTALL,
    )
)


@pytest.mark.slow
def test_recipes_use_names_that_exist():
    """Functions, tables and fields named in recipes exist."""
    sources = [
        *(ROOT / "taccl").rglob("*.py"),
        *(ROOT / "tests").rglob("*.py"),
        *(ROOT / "docs").glob("*.py"),
        *(ROOT / "benchmarks").glob("*.py"),
    ]
    words = {word for each in sources for word in re.findall(r"\w+", each.read_text(encoding="utf-8"))}
    named = {name for recipe in RECIPES.values() for name in re.findall(r"`([A-Za-z_]\w+)`", recipe)}
    assert not named - words - {"validate_call"}  # pydantic's


@pytest.mark.parametrize(
    "name",
    [
        "A baseline", "A ruin move", "A stopping rule", "A collective", "A collective with arguments", "A machine",
        "A bound", "A file format",
    ],
)  # fmt: skip
def test_there_is_a_recipe(name):
    """Every recipe carried out below is on the page."""
    assert name in RECIPES


def line(problem, *, cut=True):
    """A schedule in which each chunk passes from rank to rank."""

    def passed_on(some):
        ranks, chunks = some.topology.num_ranks, some.collective.num_chunks
        start = np.array([chunk.origins[0] for chunk in some.collective.chunks])
        step = np.arange(ranks - 1)[:, None]
        src, dst = (start + step) % ranks, (start + step + 1) % ranks
        return routed(some, Moves.of([(step, np.arange(chunks), src, dst, False)]))

    require_no_derivations(problem, baseline="line")
    return cut_while_it_pays(
        problem, lambda some: run(some, passed_on).schedule(some, producer="line"), name="line", cut=cut
    )


def test_a_baseline(monkeypatch):
    """A baseline (function and row) is made by name, competes in `best`, and has its label in plots."""
    row = Baseline(line, "hand to hand", turn=-9)
    monkeypatch.setitem(TABLE, "line", row)
    monkeypatch.setitem(BASELINES, "line", row.make)
    problem = problem_of(ring(3), collectives.allreduce(3))
    found = taccl.baselines.baseline("line", problem)
    taccl.verify(found).raise_if_failed()
    assert taccl.baselines.best(problem, time_limit_s=1e-9).producer == "line"
    assert label_of("line") == "hand to hand"
    with pytest.raises(CollectiveError, match="line does not support scan"):
        line(problem_of(ring(3), collectives.scan(3)))


def test_a_ruin_move(monkeypatch):
    """A new ruin move, which removes the latest send, suffices for a search to complete schedules."""
    source = inspect.getsource(ruin_kernel.ruin._function).replace("@inner\n", "")
    copy, drawn = re.subn(r"kind = draw\(room, _ANY\)", "kind = _ANY", source)  # only the new move
    copy, branched = re.subn(
        r"(?<= {8})if (?=kind < \w+:\n +m = )",
        "if kind == _ANY:\n            m = now.order[now.size[0] - 1]\n        elif ",
        copy,
    )
    assert drawn == branched == 1
    for module in (
        improvement_state,
        timing_kernel,
        ruin_kernel,
        recreate_kernel,
        improvement_kernel,
        improvement,
    ):
        for name, kernel in vars(module).copy().items():
            if isinstance(kernel, _Kernel):  # as Python runs it
                monkeypatch.setattr(module, name, kernel._function)
    scratch = vars(ruin_kernel).copy()
    exec(copy, scratch)  # noqa: S102  our own source
    calls = []
    monkeypatch.setattr(improvement_kernel, "ruin", lambda *given: calls.append(scratch["ruin"](*given)))
    schedule = taccl.baselines.ring(problem_of(full(3), collectives.allgather(3)), cut=False)
    with np.errstate(over="ignore"):  # random numbers are taken modulo 2**64
        better, _ = improve_schedule(schedule, Limits(), turns=6)
    assert calls
    taccl.verify(better).raise_if_failed()
    assert better.finish <= schedule.finish


@pytest.mark.slow
def test_a_stopping_rule():
    """A new stopping rule, a function of the search's state, ends the search, and the result says so."""
    seen = []

    def at_first(state):
        seen.append(state.finish_us)
        return state.finish_us < np.inf

    problem = problem_of(ring(4), collectives.alltoall(4))
    result = taccl.synthesize(problem, stop_when=at_first, time_limit_s=AMPLE_S, sketch="none")
    assert result.stopped == "stopping rule"
    assert len(seen) >= 1


@dataclass(frozen=True)
class Within(StoppingRule):
    """Rule that ends a search once a schedule finishes within `us` microseconds."""

    us: float
    reason = "fast enough"
    remedy = "a smaller time may find some of it"

    def is_met(self, state):
        """True if the best schedule so far is fast enough."""
        return state.finish_us <= self.us


def test_a_named_stopping_rule():
    """A rule with a reason of its own ends a search by its state; `Result.explain` has its remedy."""
    schedule = taccl.baselines.ring(problem_of(ring(4), collectives.allgather(4)))
    for us, why in ((schedule.finish_us / 2, ""), (schedule.finish_us, "fast enough")):
        cancellation = Cancellation()
        Observer(rules=[Within(us)], cancellation=cancellation).incumbent(schedule)
        assert cancellation.why == why
    assert remedy_after("fast enough") == "a smaller time may find some of it"


def paired(num_ranks, *, counts, chunks_per_rank=None):
    """Rank r has ``counts[r]`` chunks for the next rank."""
    chunks = [
        Chunk((r,), ((r + 1) % num_ranks,))
        for r, n in enumerate(counts)
        for _ in range(n * (chunks_per_rank or 1))
    ]
    return Collective(
        "paired",
        num_ranks,
        tuple(chunks),
        chunks_per_rank=chunks_per_rank or 1,
        chunks_open=chunks_per_rank is None,
    )


def test_a_collective_with_arguments(monkeypatch, capsys):
    """A collective in the table gets its arguments from Python and from the command line."""
    monkeypatch.setitem(collectives.COLLECTIVES, "paired", paired)
    problem = make_problem(ring(3), "paired", counts=[2, 0, 1], size_bytes=2 * MB, chunks_per_rank=1)
    assert problem.collective.num_chunks == 3
    words = [
        "bound",
        "--topology",
        "ring:3",
        "--collective",
        "paired",
        "--size",
        "1MB",
        "--chunks-per-rank",
        "1",
    ]
    assert main([*words, "--counts", "2,0,1"]) == 0
    assert capsys.readouterr().out.startswith("paired on ring:3")
    assert main(words) == 2
    assert "--counts: paired needs counts" in capsys.readouterr().err
    assert main([*words, "--counts", "2,0"]) == 2
    assert "--counts: found 2 numbers; expected one for each of 3 ranks" in capsys.readouterr().err


def test_a_machine():
    """A machine in the table is parsed by name, found by its GPUs, and has a profile. Predictions refuse it, as
    no library's costs are known for it."""
    model = Model(
        "Four GPUs on a switch, and a NIC for each.", NodeShape(4, 1), {"nvswitch": (100, "our choice, for a test")},
        (25, "our choice, for a test"), ("Q400",),
    )  # fmt: skip
    machines.add_machine("four", model)
    try:
        topology = taccl.topologies.parse("four", nodes=2)
        assert (topology.num_ranks, topology.profile) == (8, "nominal")
        assert machine_by_gpus(["Example Q400 SXM"]) == "four"
        found = taccl.baselines.ring(make_problem(topology, "allgather", size_bytes=MB))
        taccl.verify(found).raise_if_failed()
        with pytest.raises(taccl.InputError, match="machine: found 'four'; expected one of"):
            taccl.predict("four", "allgather", "1MB")
    finally:
        for table in (MODELS, machines.SHAPES, PROFILES, machines.MACHINES):
            del table["four"]


@dataclass(frozen=True, slots=True)
class OneArrival(OfRanks):
    """Witness: each of the ranks must receive a chunk, over the fastest link."""

    kind = proves = "one arrival"
    any_chunking = False
    ranks: frozenset[int]

    def holds(self, facts, ticks):
        """True if a chunk must enter each rank, and the fastest link needs that time for the smallest chunk."""
        lacks = {
            r
            for chunk in facts.collective.chunks
            for r in chunk.destinations
            if r not in chunk.origins or (facts.sums and len(chunk.origins) > 1)
        }
        return self.ranks <= lacks and ticks <= min(facts.took(e, min(facts.units)) for e in facts.allowed)


def one_arrival(demand, *, in_network):
    """Yield the claim for rank 0, if a chunk must enter it."""
    del in_network
    if not demand.border(frozenset({0}), entering=True):
        return
    costs, unit = demand.problem.costs, int(demand.problem.costs.chunk_units.min())
    ticks = min(int(costs.link_alpha[e] + costs.link_beta[e] * unit) for e in demand.problem.links_allowed)
    yield Claim(ticks, "one arrival", OneArrival(frozenset({0})))


def test_a_bound(monkeypatch):
    """A bound finder and its witness: `lower_bound` uses it and `check` proves it."""
    monkeypatch.setattr(bounds, "WHOLE_CHUNKS", [one_arrival])
    problem = problem_of(full(3), collectives.allgather(3))
    claims = {each.kind: each for each in bounds.claims_of(problem)}
    claim = claims["one arrival"]
    proves = partial(taccl.Certificate, problem, kind=claim.kind, limits=claim.limits, witness=claim.witness)
    us = Fraction(claim.ticks) / problem.costs.ticks_per_us
    assert (proves(bound=us).check(), proves(bound=2 * us).check()) == (True, False)
    assert bounds.lower_bound(problem).kind != "one arrival"
    scattered = problem_of(full(3), collectives.scatter(3))  # no chunk enters its root, rank 0
    assert "one arrival" not in {each.kind for each in bounds.claims_of(scattered)}
    assert not taccl.Certificate(
        scattered, bound=us, kind=claim.kind, limits=claim.limits, witness=claim.witness
    ).check()


def lines_of(schedule):
    """A line for every transfer."""
    return "".join(f"{each.chunk} {each.link}\n" for each in schedule)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "ranks"), [("", 2), ("list of transfers", 3)])
def test_a_file_format(tmp_path, capsys, kind, ranks):
    """A file format in the table is known to `write` and `convert` by name and by file ending. Commands name
    its files where they are not read."""
    mine = FileFormat(
        "lines", "schedule", "a line for every transfer", (".lines",), dump=f"{__name__}:lines_of",
        kind=kind, begins=r"\A\d+ \d+$",
    )  # fmt: skip
    schedule = taccl.baselines.ring(problem_of(ring(ranks), collectives.allgather(ranks)))
    written = tmp_path / "found.lines"
    with with_format(mine):
        taccl.write(schedule, written)
        taccl.save(schedule, tmp_path / "found.json")
        taccl.convert(tmp_path / "found.json", tmp_path / "again.txt", to="lines")
        assert main(["verify", str(written)]) == main(["show", str(written)]) == 2
        said = capsys.readouterr().err.splitlines()
    assert written.read_text() == (tmp_path / "again.txt").read_text() == lines_of(schedule)
    named = f"found a {kind or 'file of format lines'}; "
    assert len(said) == 2 and all(named in line for line in said)
    assert all(
        line.endswith("the format is write-only; give the schedule that it was made of") for line in said
    )
