"""Protocols, launches and predictions on the command line."""

import json
import sys

import pytest

import taccl
from taccl._internal.deadline import OutOfTime

H100 = ("--topology", "dgx-h100", "--collective", "allreduce")


@pytest.fixture
def made(monkeypatch):
    """(name, problem) of the baselines that a command builds, in order."""
    found = []
    make = taccl.baselines.baseline
    monkeypatch.setattr(
        "taccl.baselines.baseline",
        lambda name, problem, **how: (found.append((name, problem)), make(name, problem, **how))[1],
    )
    return found


@pytest.mark.slow
def test_the_protocol_that_promises_least_is_taken_and_reported(run):
    """The protocol with the least predicted time is used: ll for 8 bytes, simple for 1 GB.

    The note says that its times are those of baselines, and not of the schedule below.
    """
    for size, protocol in (("8B", "ll"), ("1GB", "simple")):
        code, out, _ = run("baseline", "ring", *H100, "--size", size)
        assert code == 0
        assert (
            f"note: protocol {protocol} is predicted to be the fastest for {size} (by the fastest baseline in uncut chunks: "
            in out
        )
        assert "us, predicted " in out and " with a launch of " in out


@pytest.mark.slow
def test_baselines_are_made_once_for_all_protocols(run, made):
    """Baselines are built once and re-timed under each protocol, in a fraction of the time."""
    code, out, _ = run("bound", *H100, "--size", "8KB")
    assert (code, "is predicted to be the fastest" in out) == (0, True)
    usual = ["servers", "multiplying", "recursive", "hierarchical", "pairwise"]
    assert [name for name, _ in made] == usual


@pytest.mark.slow
def test_estimates_compare_protocols_if_bounds_would_end_late(run, monkeypatch):
    """At 64 KB the estimates of recursive multiplying select the same protocol as the bounds."""
    monkeypatch.setattr("taccl.synthesis.suggesting.protocols._BOUND_S_PER_LINK", 1e9)
    words = ("--topology", "dgx-h100", "--nodes", "8", "--collective", "allgather", "--size", "64KB")
    code, out, _ = run("baseline", "pairwise", *words)
    assert code == 0
    assert (
        "note: protocol ll is predicted to be the fastest for 64KB (by an estimate of the baseline multiplying: "
        in out
    )


@pytest.mark.slow
def test_estimates_compare_protocols_if_baselines_end_late(run, monkeypatch):
    """If baselines run out of time, protocols are compared by estimates, so the slow default is not used."""

    def late(*_arguments, **_options):
        raise OutOfTime("baselines take longer")

    monkeypatch.setattr("taccl.synthesis.suggesting.protocols._baselines_of", late)
    words = ("--topology", "dgx-h100", "--nodes", "2", "--collective", "reduce-scatter", "--size", "1MB")
    code, out, _ = run("baseline", "pairwise", *words)
    assert code == 0
    assert (
        "note: protocol ll is predicted to be the fastest for 1MB (by an estimate of the baseline multiplying: "
        in out
    )


@pytest.mark.slow
def test_no_estimate_stands_for_an_exchange_of_few_pairs(run, monkeypatch, tmp_path):
    """Estimates assume that all ranks take part: for one pair they would be below the bound."""

    def late(*_arguments, **_options):
        raise OutOfTime("baselines take longer")

    monkeypatch.setattr("taccl.synthesis.suggesting.protocols._baselines_of", late)
    (tmp_path / "pair.csv").write_text("\n".join(["0," * 15 + "64MB", *["0," * 15 + "0"] * 15]))
    words = ("--collective", "alltoallv", "--matrix", str(tmp_path / "pair.csv"))
    code, out, _ = run("baseline", "pairwise", "--topology", "dgx-h100", "--nodes", "2", *words)
    assert (code, "is used without a comparison" in out) == (0, True)


def test_a_comparison_names_protocols_for_which_there_is_no_time(run, monkeypatch):
    """If time ends after two of three estimates, these two are compared, and the note names the third."""
    module = sys.modules["taccl.baselines.multiplying"]
    estimate, left = module.estimated_us, [2]

    def ended(*given):
        if not left[0]:
            raise OutOfTime("ended")
        left[0] -= 1
        return estimate(*given)

    def late(*_arguments, **_options):
        raise OutOfTime("baselines take longer")

    monkeypatch.setattr(module, "estimated_us", ended)
    monkeypatch.setattr("taccl.synthesis.suggesting.protocols._baselines_of", late)
    words = ("--topology", "dgx-h100", "--collective", "allgather", "--size", "64KB")
    code, out, _ = run("baseline", "pairwise", *words)
    assert (code, "note: protocol ll is predicted" in out, "; no time for ll128)" in out) == (0, True, True)


@pytest.mark.slow
def test_protocols_are_compared_by_estimates_on_large_problems(run):
    """Estimates rate the protocols of copies over 40 ranks, for which bounds take longer and predict less."""
    words = ("--topology", "dgx-h100", "--nodes", "5", "--collective", "allgather", "--size", "64KB")
    code, out, _ = run("baseline", "pairwise", *words)
    assert (code, "protocol ll is predicted to be the fastest for 64KB (by an estimate" in out) == (0, True)


@pytest.mark.slow
def test_estimates_of_data_at_one_rank_are_no_less_than_a_bound(run, monkeypatch):
    """All data of a gather enters one rank, for which `ll` needs twice as long as `ll128`."""
    monkeypatch.setattr("taccl.synthesis.suggesting.protocols._TRIED_ARRIVALS", 0)
    words = ("--topology", "h200", "--nodes", "8", "--collective", "gather", "--size", "4MB")
    code, out, _ = run("baseline", "pairwise", *words)
    assert (code, "protocol ll128 is predicted to be the fastest for 4MB (by an estimate" in out) == (0, True)


@pytest.mark.slow
def test_no_protocols_are_compared_if_estimates_would_end_late(run, monkeypatch):
    """If time is too short even for estimates, the machine's default protocol is used, and a note says so."""
    monkeypatch.setattr("taccl.synthesis.suggesting.protocols._BOUND_S_PER_LINK", 1e9)
    words = ("--topology", "dgx-h100", "--nodes", "8", "--collective", "allgather", "--size", "64KB")
    for name in ("_ESTIMATE_S_PER_LINK", "_ESTIMATE_S_PER_ARRIVAL"):
        with monkeypatch.context() as patch:
            patch.setattr(f"taccl.synthesis.suggesting.protocols.{name}", 1e9)
            code, out, _ = run("baseline", "pairwise", *words)
        assert (code, "is used without a comparison, for lack of time" in out) == (0, True)


@pytest.mark.slow
def test_a_protocol_can_be_asked_for(run_json):
    """A protocol may be requested: under simple one step takes 3.4 us, and the launch 10.2 us."""
    code, found = run_json("baseline", "one-shot", *H100, "--size", "8B", "--protocol", "Simple")
    assert (code, found["protocol"], found["launch_us"]) == (0, "simple", 10.2)
    assert found["predicted_us"] == pytest.approx(10.2 + found["finish_us"])


@pytest.mark.slow
def test_show_names_constants_launch_and_protocols(run, line_fit, tmp_path):
    """Each constant is shown with its source, and a constant of a fit with its confidence interval, too."""
    profile = tmp_path / "mine.toml"
    profile.write_text(line_fit.to_toml())
    code, out, _ = run("show", "dgx-h100", "--profile", profile)
    assert code == 0
    for name in ("nvswitch_overhead_us", "launch_us", "simple.node_hop_us", "simple.bandwidth_share"):
        assert name in out
    launch = next(line for line in out.splitlines() if line.strip().startswith("launch_us"))
    assert "(90 %: " in launch
    assert "ll128.node_hop_us" not in out, "the log shows one protocol"
    assert "seen: allreduce on 8 ranks in 1 node: simple from 8B to 8GiB" in out
    out = run("show", "dgx-h100")[1]
    assert "ll128.node_hop_us" in out
    assert "simple (of simple, ll, ll128)" in out


def test_topology_files_of_a_machine_take_a_protocol(run, tmp_path):
    """A topology file of a machine may name a protocol, and an option overrides it."""
    path = tmp_path / "mine.toml"
    path.write_text('schema = 1\nmachine = "dgx-h100"\nprotocol = "ll"\n')
    assert taccl.topologies.load(path) == taccl.topologies.dgx_h100(protocol="ll")
    assert taccl.topologies.load(path, protocol="ll128") == taccl.topologies.dgx_h100(protocol="ll128")
    code, out, _ = run("show", path, "--protocol", "ll128")
    assert (code, "ll128 (of simple, ll, ll128)" in out) == (0, True)


@pytest.mark.slow
def test_a_plan_names_the_protocol_of_each_range(run_json, tmp_path):
    """In a plan of an allgather, the smallest sizes use ll and the largest simple; programs match the ranges."""
    words = ("--collective", "allgather", "--sizes", "1KB,256MB", "--time-limit", "60", "--backend", "greedy")
    code, found = run_json("plan", "dgx-h100", *words, "-o", tmp_path / "plan")
    assert code == 0
    protocols = [each["protocol"] for each in found["ranges"]]
    assert (protocols[0], protocols[-1]) == ("ll", "simple")
    for number, each in enumerate(found["ranges"], 1):
        assert each["predicted_us"] == pytest.approx(each["launch_us"] + each["finish_us"])
        xml = (tmp_path / "plan" / f"range-{number:02}.xml").read_text()
        spelt = {"ll": "LL", "ll128": "LL128", "simple": "Simple"}[each["protocol"]]
        assert f'proto="{spelt}"' in xml
        assert f'minBytes="{each["min_bytes"]}"' in xml
        executed = tmp_path / "plan" / f"range-{number:02}.plan.json"
        if executed.exists():
            assert json.loads(executed.read_text())["protocol"] == spelt


@pytest.mark.slow
def test_a_plan_takes_no_other_protocol_than_asked(run_json):
    """With LL128 requested, every range of the plan uses it."""
    words = ("--collective", "allgather", "--sizes", "1KB,1MB", "--time-limit", "30", "--protocol", "LL128")
    code, found = run_json("plan", "dgx-h100", *words)
    assert (code, {each["protocol"] for each in found["ranges"]}) == (0, {"ll128"})


@pytest.mark.slow
def test_a_protocol_that_is_chosen_has_its_own_default_clauses(run, made):
    """In an allreduce of 256 KB, sends merge under simple, but not under ll, which is chosen."""
    code, out, _ = run("baseline", "pairwise", *H100, "--size", "256KB")
    assert (code, "protocol ll is predicted to be the fastest" in out) == (0, True)
    plain = {
        each: taccl.make_problem(taccl.topologies.dgx_h100().under(each), "allreduce", size_bytes=256_000)
        for each in ("simple", "ll")
    }
    assert plain["simple"].clauses != plain["ll"].clauses
    _, problem = made[-1]
    assert problem.clauses == plain["ll"].clauses and problem.topology.protocol == "ll"


@pytest.mark.slow
def test_a_sweep_chooses_the_protocol_of_each_size(run, run_json):
    """Each size has the protocol of its problem, in Python by name as on the command line; a column names it."""
    words = ("sweep", "t4", "--collective", "allgather", "--sizes", "1KB,1MB", "--backends", "greedy")
    limits = ("--time-limit", "20", "--no-cache", "--workers", "1")
    code, found = run_json(*words, *limits)
    protocols = [each["protocol"] for each in found["rows"]]
    assert (code, protocols) == (0, ["ll", "simple"])
    options = {"backends": ["greedy"], "time_limit_s": 10, "cache": False, "full": True, "num_workers": 1}
    table = taccl.sweep("t4", "allgather", sizes=["1KB", "1MB"], **options)
    assert table["protocol"].to_list() == protocols
    assert table["finish_us"].to_list() == [each["finish_us"] for each in found["rows"]]
    _, out, _ = run(*words, *limits, "--protocol", "ll")
    assert out.startswith("allgather on t4 x1, protocol ll\n")


@pytest.mark.slow
def test_suggested_sketches_are_tried_under_the_protocol_of_the_size(run, tmp_path):
    """Sketches are suggested and checked under the protocol that a synthesis of the size has."""
    words = ("t4", "--collective", "allgather", "--size", "1KB")
    code, out, _ = run("suggest", *words, "--most", "1", "-o", tmp_path / "found")
    assert (code, out.splitlines()[0]) == (0, "allgather on t4 x1, 1KB, protocol ll")
    found = taccl.suggest_sketches("t4", "allgather", "1KB", most=1)[0]
    assert found.problem.topology.protocol == "ll" and found.problem.uncompared_rows() == []
    (sketch,) = (tmp_path / "found").glob("*.toml")
    code, out, _ = run("suggest", *words, "--check", sketch)
    assert (code, "note: protocol ll is predicted to be the fastest for 1KB" in out) == (0, True)
