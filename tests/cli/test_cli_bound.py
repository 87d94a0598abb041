"""``taccl bound``, ``taccl explain`` and ``taccl simulate``: output and exit codes."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

import taccl
from taccl.analysis.certificates.certificate import Certificate
from taccl.analysis.certificates.scopes import prices
from taccl.cli.verbs import bound
from taccl.synthesis.result import Result, Stages
from tests.cli.words import SKETCH, SMALL

RING = ("--topology", "ring:4", "--size", "4KB")


class TestBound:
    """``taccl bound``."""

    def test_json(self, run_json):
        """The JSON object has the bound, its bottleneck, its witness, and the other bounds for comparison."""
        code, values = run_json("bound", *SMALL)
        # Two hops of 0.5 us + 1000 B / (50 GB/s) each. Divisible data: 1500 B over each of two links, in two sends.
        assert (code, values["bound_us"], values["kind"]) == (0, 1.03, "dissemination")
        assert (values["scope"], values["prices"]["bound"]["bound_us"]) == ("all chunkings", 1.04)
        assert values["bound_limits"]
        assert values["witness"]["kind"] == "byte dissemination"
        assert values["prices"]["without_sketch"]["bound_us"] == 1.04
        assert values["prices"]["divisible"]["bound_us"] == 1.03
        assert values["prices"]["chunks"] == pytest.approx(1 / 103)
        assert (values["in_switches"], values["checked"]) == (None, None)

    def test_links_that_take_too_long_to_list(self, run, run_json):
        """The bound of a fabric by name follows from its dimensions if listing its links exceeds the limit."""
        words = ("bound", "fully-connected:1000", "--collective", "alltoall", "--time-limit", "2", "--size")
        code, out, _ = run(*words, "100MB")
        assert code == 0 and "bound                 2 us over all chunkings" in out
        assert "for 1 chunk per rank  2.5 us" in out and "not listed" in out
        values = run_json(*words, "1MB")[1]
        assert (values["bound_us"], values["scope"], values["kind"]) == (0.5, "all chunkings", "latency")
        values = run_json(*words, "1MB", "--chunks-per-rank", "2")[1]
        assert (values["bound_us"], values["scope"]) == (0.51, "2 chunks per rank")

    def test_options_of_the_collective_count_if_links_take_too_long_to_list(self, run, run_json, monkeypatch):
        """Groups of ranks have a bound of their own, and a root that the collective does not have is refused."""
        words = ("bound", "torus:4x4", "--collective", "allgather", "--size", "1KB")
        known = run_json(*words, "--along", 1)[1]["bound_us"]
        monkeypatch.setattr(bound, "exceeds_limit", lambda *_, **__: True)
        assert run_json(*words, "--along", 1)[1]["bound_us"] == known < run_json(*words)[1]["bound_us"]
        code, _, err = run(*words, "--root", 3)
        assert code == 2 and "allgather has no root" in err

    def test_the_text_needs_no_plain_values(self, run, monkeypatch):
        """Without ``--json`` witnesses are not converted to plain values, which takes long for many ranks."""
        monkeypatch.setattr(Certificate, "to_dict", None)
        assert run("bound", *SMALL)[0] == 0

    def test_text(self, run):
        """The text has the bound, its bandwidths, its bottleneck, and the bound for 1 chunk per rank."""
        code, out, _ = run("bound", *SMALL)
        assert code == 0
        for words in (
            "1.03 us over all chunkings\n",
            "algbw 3.883 GB/s, busbw 2.913 GB/s at most",
            "limited by",
            "kind",
            "for 1 chunk per rank  1.04 us",
        ):
            assert words in out
        assert "in switches" not in out and "the sketch costs" not in out

    @pytest.mark.slow
    def test_the_bound_over_all_chunkings_names_the_sketch(self, run):
        """Under a sketch that forbids links, the bound over all chunkings holds only for its schedules."""
        _, out, _ = run(
            "bound", "ndv2/sk1", "--collective", "allgather", "--size", "1MB", "--time-limit", "2"
        )
        (row,) = (line for line in out.splitlines() if line.startswith("  all chunkings"))
        assert " under this sketch; whole chunks cost" in row

    @pytest.mark.slow
    def test_show_names_the_scope_of_bound_and_gap(self, run, tmp_path):
        """``taccl show`` prints a saved schedule's bound and gap in the same words as the synthesis."""
        file = tmp_path / "found.json"
        _, found, _ = run("synthesize", "ndv2/sk1", "--collective", "allgather", "-o", file)
        _, out, _ = run("show", file)
        assert "bound     917.4 us for 1 chunk per rank\n" in out
        gap = next(line.split(maxsplit=1)[1] for line in found.splitlines() if line.startswith("  gap"))
        assert f"gap       {gap}\n" in out

    @pytest.mark.parametrize("given", [(), ("--chunks-per-rank", "1")], ids=["open", "one chunk"])
    def test_show_has_both_gaps_of_the_baseline(self, run, tmp_path, given):
        """Without a proof, ``taccl show`` has the gaps for the chunks and over all chunkings, as printed at
        first."""
        problem = taccl.make_problem(
            taccl.topologies.dgx1(),
            "allgather",
            size_bytes=10**6,
            **({"chunks_per_rank": 1} if given else {}),
        )
        schedule = taccl.baselines.ring(problem, cut=False)
        bound = taccl.lower_bound(replace(problem, chunks_open=False))
        result = Result(schedule, bound, "greedy", Stages(), 0.1)
        result = result.over_all_chunkings()
        taccl.save(result, tmp_path / "found.json")
        _, out, _ = run("show", tmp_path / "found.json")
        gap = dict(result.facts())["gap"]
        assert "for 1 chunk per rank" in gap and f"  gap       {gap}\n" in out

    def test_a_passed_limit_is_reported(self, run, monkeypatch):
        """If the time limit passes, the best bound so far is shown, with a warning."""
        monkeypatch.setattr(taccl, "prices", lambda problem, time_limit_s: prices(problem))
        code, out, err = run("bound", *SMALL, "--time-limit", "0.000001")
        assert (code, "1.03 us over all chunkings" in out) == (0, True)
        assert "stopped by the time limit; these are the highest bounds so far" in err

    @pytest.mark.slow
    def test_price_of_a_sketch_is_shown(self, run):
        """Under a sketch the output states the sketch's cost."""
        _, out, _ = run("bound", "ndv2/sk1", "--collective", "scatter")
        assert "without sketch  " in out and "; the sketch costs +" in out

    @pytest.mark.slow
    def test_the_price_of_a_sketch_states_its_number_of_chunks(self, run, tmp_path):
        """With an open number of chunks, the bounds for one chunk per rank, with and without the sketch, are adjacent."""
        sketch = tmp_path / "relays.toml"
        sketch.write_text('schema = 1\nmachine = "ndv2"\n[internode]\nconnections = { 0 = [1] }\n')
        _, out, _ = run("bound", sketch, "--collective", "scatter", "--size", "1MB")
        own, without = out.splitlines()[-2:]
        assert own.startswith("  for 1 chunk per rank ") and without.startswith("  without sketch ")
        assert " for 1 chunk per rank; the sketch costs +" in without

    @pytest.mark.slow
    def test_saved_schedule(self, run, run_json, saved):
        """For a schedule file, `taccl bound` bounds its problem, and compares the bound with the schedule."""
        code, values = run_json("bound", saved)
        assert (code, values["bound_us"]) == (0, 1.04)
        assert (values["schedule"]["finish_us"], values["schedule"]["gap"]) == (1.04, 0.0)
        gap = "0.00% (optimal for 1 chunk per rank; 0.97% over all chunkings)"
        assert f"the schedule takes 1.04 us, a gap of {gap}; busiest is " in run("bound", saved)[1]
        assert values["schedule"]["gap_over_all_chunkings"] == pytest.approx(1.04 / 1.03 - 1)
        code, _, err = run("bound", saved, "--size", "1MB")
        assert (code, err) == (2, "taccl: error: --size: a schedule contains it; leave it out\n")

    @pytest.mark.slow
    def test_algorithm_of_the_published_tool(self, run, run_json, saved, tmp_path):
        """The problem of a published tool's algorithm is bounded, too; an option may give its chunk size."""
        path = tmp_path / "algorithm"
        assert run("convert", saved, path, "--to", "upstream-algorithm")[0] == 0
        code, values = run_json("bound", path, "--chunk-size", "1KB", "--time-unit-us", "1/10")
        assert (code, values["size_bytes"]) == (0, 4000)
        assert values["schedule"]["finish_us"] == pytest.approx(1.04)

    @pytest.mark.slow
    def test_price_of_a_sketch(self, run_json, sketch_file):
        """For a sketch that removes a link between nodes, the output states a positive cost."""
        _, values = run_json("bound", sketch_file, "--collective", "allgather")
        assert values["prices"]["sketch"] > 0

    @pytest.mark.parametrize(
        ("collective", "is_shared"), [("allreduce", True), ("reduce", False), ("alltoall", False)]
    )
    def test_sums_in_switches(self, run_json, collective, is_shared):
        """The output has a bound with reductions in switches if, and only if, all ranks need the same sum."""
        _, values = run_json("bound", *RING, "--collective", collective)
        assert (values["in_switches"] is not None) == is_shared

    def test_check(self, run, run_json):
        """With ``--check``, ``taccl bound`` checks the certificate again."""
        code, values = run_json("bound", *SMALL, "--check")
        assert (code, values["checked"]) == (0, True)
        assert "the witness proves the bound" in run("bound", *SMALL, "--check")[1]

    def test_witness_that_proves_nothing(self, run, run_json, monkeypatch):
        """A bound that its witness does not prove is a failed check."""
        monkeypatch.setattr(taccl.Certificate, "check", lambda self: False)
        code, _, err = run("bound", *SMALL, "--check")
        assert (code, err) == (1, "taccl: error: the witness does not prove the bound\n")
        assert run_json("bound", *SMALL, "--check")[1]["checked"] is False


@pytest.mark.slow
class TestExplain:
    """``taccl explain``."""

    def test_feasible(self, run_json, sketch_file):
        """Each clause of a feasible sketch is listed with its cost."""
        code, values = run_json("explain", sketch_file, "--collective", "allgather")
        assert (code, values["feasible"]) == (0, True)
        assert any("internode.connections" in cost["clause"] for cost in values["costs"])

    def test_infeasible(self, run, run_json, tmp_path):
        """For an infeasible sketch the output names the clashing clauses and a remedy, with exit code 1."""
        path = tmp_path / "none.toml"
        path.write_text(SKETCH.replace("{ 0 = [1] }", "{}"))
        code, out, err = run("explain", path, "--collective", "allgather")
        assert (code, err) == (1, "taccl: error: no schedule exists\n")
        assert f"{path}: internode.connections" in out
        assert run_json("explain", path, "--collective", "allgather")[1]["feasible"] is False
        assert run("bound", path, "--collective", "allgather")[0] == 2


class TestSimulate:
    """``taccl simulate``."""

    def test_own_assumptions(self, run_json, saved):
        """Under the topology's own assumptions the simulated finish is the schedule's."""
        code, values = run_json("simulate", saved)
        assert (code, values["finish_us"], values["sizes"][0]["finish_us"]) == (0, 1.04, 1.04)
        # Three chunks enter each rank over two links, so some link carries two chunks, without a pause.
        assert values["sizes"][0]["interval_us"] == pytest.approx(1.04)

    def test_sizes(self, run, run_json, saved):
        """There is one row for each size; alpha and beta are those of the topology."""
        words = ("simulate", saved, "--sizes", "4KB,4MB")
        # Two hops of 0.5 us + 1 MB / (50 GB/s) = 20.5 us.
        assert [row["finish_us"] for row in run_json(*words)[1]["sizes"]] == [1.04, 41.0]
        out = run(*words)[1]
        assert "4MB" in out
        assert "41 us" in out

    def test_options_are_passed_on(self, run_json, saved, monkeypatch):
        """Every option is passed on with its type."""
        from taccl.analysis.simulation import simulate as module

        whole, passed = module.simulate, []

        def spy(schedule, **options):
            passed.append(SimpleNamespace(**options))
            return whole(schedule, **options)

        monkeypatch.setattr(module, "simulate", spy)
        code, values = run_json(
            "simulate", saved, "--alpha", "pipelined", "--tiles", 3, "--jitter", 0.1, "--seed", 7
        )
        assert (code, values["tiles"], values["jitter"], values["seed"]) == (0, 3, 0.1, 7)
        assert (passed[0].alpha, passed[0].tiles, passed[0].jitter, passed[0].seed) == (
            "pipelined",
            3,
            0.1,
            7,
        )

    def test_size_that_is_not_known(self, run, upstream):
        """If a parameter of the called function is at fault, the message names the option that set it."""
        path = min((upstream / "algorithm").rglob("*.json"), key=lambda each: each.stat().st_size)
        code, _, err = run("simulate", path, "--sizes", "1MB")
        assert code == 2
        assert err.startswith("taccl: error: --sizes: ")
        assert run("simulate", path, "--sizes", "1MB", "--chunk-size", "1MB")[0] == 0


@pytest.mark.slow
def test_a_topology_may_stand_where_a_sketch_does(run):
    """``taccl bound torus:4x4`` is ``taccl bound --topology torus:4x4``."""
    rest = ("--collective", "allgather", "--size", "16MB", "--json")
    code, out, _ = run("bound", "torus:4x4", *rest)
    assert code == 0
    assert out == run("bound", "--topology", "torus:4x4", *rest)[1]


@pytest.mark.slow
def test_chunks_that_may_merge_are_bounded_so(run_json):
    """With an open number of chunks, the bound is lower, as small chunks may merge in a node."""
    words = ("dgx2", "--nodes", 1, "--collective", "allgather", "--size", "16KB")
    code, values = run_json("bound", *words)
    assert code == 0
    assert values["prices"]["bound"]["bound_us"] == pytest.approx(1.32)
    assert run_json("bound", *words, "--chunks-per-rank", 1)[1]["bound_us"] > 4


def test_the_bound_beside_a_schedule_is_worked_out_once(run_json, saved, monkeypatch):
    """A schedule's gap refers to the bound shown with it, not to one found with another budget."""
    monkeypatch.setattr(taccl, "lower_bound", None)
    code, values = run_json("bound", saved)
    assert code == 0
    schedule = values["schedule"]
    assert schedule["bound_us"] == values["bound_us"]
    assert schedule["gap"] == pytest.approx(schedule["finish_us"] / values["bound_us"] - 1)
