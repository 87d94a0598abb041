"""Benchmarks of time limits, of the training steps of Themis, and of unseen logs."""

import json
import threading
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest

from benchmarks import scale
from benchmarks.constants import SOURCE_OF, costs_without
from benchmarks.limits import VERBS as MEASURED
from benchmarks.load_clock import LoadClock
from benchmarks.themis import DATA, groups, iteration
from benchmarks.unseen import CASES, PUBLISHED, published, series_of, us_of
from taccl.cli.command import build_parser
from taccl.cli.verbs import VERBS
from taccl.measure.predict import costs_of
from taccl.measure.series import Series


def us(times):
    """Function that returns the time of a collective in us, which is `times[kind]`."""
    return lambda collective, size, group: times[collective]


def test_data_parallel_sums_run_beside_computation():
    """The gradient sum of the last layer is hidden behind computation; that of the first layer
    is not hidden."""
    step = {
        "loop": "data",
        "layers": [["a", 1000, 2000, 3000], ["b", 1000, 2000, 3000]],
        "collectives": [["a", "weight", "allreduce", 1, "all"], ["b", "weight", "allreduce", 1, "all"]],
    }
    clock = iteration(step, us({"allreduce": 4.0}))
    assert clock.computed == 12
    # Forward until 2 us, gradients of b until 5, their sum until 9; gradients of a until 10, sum until 14.
    assert clock.now == 14


def test_model_parallel_sums_block():
    """Sums of a model-parallel group end before the next layer begins.

    The forward pass runs twice, each time with a sum of 4 us. Then the input gradient's sum runs beside the
    weight gradient.
    """
    step = {
        "loop": "transformer",
        "recomputes": True,
        "layers": [["a", 1000, 2000, 3000]],
        "collectives": [["a", "forward", "allreduce", 1, "model"], ["a", "input", "allreduce", 1, "model"]],
    }
    assert iteration(step, us({"allreduce": 4.0})).now == 2 * (1 + 4) + 2 + 4


def test_embeddings_travel_beside_bottom_layers():
    """The forward alltoall ends after the bottom layer; the backward one starts once the top layer is done."""
    step = {
        "loop": "dlrm",
        "last_bottom": "bottom",
        "layers": [["embedding", 1000, 0, 0], ["bottom", 1000, 1000, 1000], ["top", 1000, 1000, 1000]],
        "collectives": [["embedding", "forward", "alltoall", 1, "all"],
                        ["embedding", "input", "alltoall", 1, "all"]],
    }  # fmt: skip
    # Alltoall until 6 us, top layer until 7 and back until 9; alltoall until 14, bottom layer until 11.
    assert iteration(step, us({"alltoall": 5.0})).now == 14


def test_groups_split_a_shared_dimension():
    """A model-parallel group of 128 ranks in 16 x 64 spans the first dimension, and 8 ranks of the second.

    It shares the second dimension with the data-parallel groups.
    """
    found = groups(("switch16@150", "switch64@100"), 128)
    assert found["model"] == ("switch16@150", "switch8@100")
    assert found["data"] == ("switch8@100",)


def test_published_steps_have_their_sizes():
    """The published inputs have six networks of 1,024 ranks; ResNet-50 has 25.5 million gradients of two bytes."""
    assert len(DATA["network"]) == 6
    resnet = DATA["workload"][0]
    assert len(resnet["layers"]) == 54
    assert resnet["collectives"][0][3] == 51_005_824


@pytest.mark.slow
def test_every_verb_with_a_time_limit_is_measured():
    """Each verb whose options have a time limit is in a row of the benchmark, by the option that it has."""
    limits = {}
    for verb in VERBS:
        parsers = next(each for each in build_parser(verb)._actions if isinstance(each.choices, dict))
        if parsers.choices[verb].get_default("time_limit") is not None:
            limits[verb] = "--time-limit"
    assert "diagnose" in limits
    measured = {(command.split()[0], option) for command, option in MEASURED}
    assert set(limits.items()) == measured


TOPOLOGIES = {case.log: case.topology for case in CASES}


@pytest.mark.parametrize("log", SOURCE_OF)
def test_constants_of_own_logs_are_replaced(log):
    """A prediction that may not use a machine's own log has constants of other machines."""
    assert costs_without(TOPOLOGIES[log], log) != costs_of(TOPOLOGIES[log])


def test_a_network_without_its_log_is_of_other_classes():
    """Without its log, EFA of p4d has its plugin's hop latency, 75 us, and medians over the other six networks."""
    found = costs_without("p4de.24xlarge", "a100_p4de.24xlarge_x2_allreduce_aws").network
    assert (found.hop_us, found.start_us, found.efficiency) == (75, 9, 0.93)


def test_further_logs_test_predictions():
    """At least 10 of the further published logs are the source of no constant.

    Each log cites where it was published, has at least one time, all positive, and a unique name.
    """
    logs = tomllib.loads(PUBLISHED.read_text())["log"]
    assert sum("source_of" not in log for log in logs) >= 10
    assert all(log["source"] and log["times_us"] and min(log["times_us"]) > 0 for log in logs)
    assert len({log["name"] for log in logs}) == len(logs)


def _kind(series, costs, topology, log):
    """Row of the page of `diagnose` to which a log belongs."""
    if log.startswith("rtx"):
        return "GeForce"
    if series.num_nodes == 1:
        return "one node or rack"
    if topology == "gb200-nvl72" and series.num_ranks > 8 * series.num_nodes:
        return "two or three racks of GB200"
    is_plain = costs.network.name in ("infiniband", "roce")
    return "several nodes, InfiniBand or RoCE" if is_plain else "several nodes, networks of clouds"


def test_shares_of_healthy_logs_are_current(shared_data):
    """The page of `diagnose` has the range of measured over predicted bandwidth, by kind of machine.

    Shares are those of the largest size of each healthy log. SHARP on 16 nodes of A100 is listed apart.
    """
    page = (Path(__file__).parents[1] / "docs" / "diagnose.md").read_text(encoding="utf-8")
    healthy = [case for case in CASES if not case.outlier]
    found = [
        (each, costs_of(case.topology).under(case.version), case.topology, case.log)
        for case in healthy
        for each in series_of(shared_data / "nccl-tests", case)
    ]
    logs = tomllib.loads(PUBLISHED.read_text())["log"]
    found += [(*published(log), log["topology"], log["name"]) for log in logs if "miss" not in log]
    shares, apart = {}, {}
    for series, costs, topology, log in found:
        if series.size_bytes[-1] >= 64 << 20 and series.collective != "point-to-point":
            share = us_of(costs, series)[-1] / series.times_us[-1]
            kept = apart if "sharp" in log else shares
            kept.setdefault(_kind(series, costs, topology, log), []).append(share)
    for kind, some in shares.items():
        others = apart.get(kind, [])
        (row,) = [line for line in page.splitlines() if line.startswith(f"| {kind}")]
        assert f"| {len(some) + len(others)} | {min(some):.2f} to {max(some):.2f}" in row
        assert all(f", and {each:.2f} on 16 nodes of A100 with SHARP" in row for each in others)
        assert row.endswith(f"| {np.median(np.abs(np.array([*some, *others]) - 1)) * 100:.0f} % |")


@pytest.mark.parametrize(
    ("topology", "ranks", "nodes", "times_us", "said"),
    [
        ("gb200-nvl72", 1440, 20, {2**29: 7108.4, 2**34: 84_625}, "0.32 to 0.62 on 20 racks of GB200"),
        ("p4d.24xlarge", 16, 2, {2**30: 61_556}, "0.42 with NCCL 2.8 on p4d"),
    ],
)
def test_errors_of_unconfirmed_kinds_are_current(topology, ranks, nodes, times_us, said):
    """The page of `diagnose` has the shares of two published allreduces that no prediction confirms.

    Sources: coreweave/nccl-tests, README.md; aws-samples/aws-efa-eks, README.md.
    """
    page = (Path(__file__).parents[1] / "docs" / "diagnose.md").read_text(encoding="utf-8")
    series = Series("allreduce", ranks, nodes, tuple(times_us), tuple(map(float, times_us.values())), "a log")
    shares = np.array(us_of(costs_of(topology), series)) / series.times_us
    assert said.split()[0] == f"{shares.min():.2f}"
    assert "to" not in said.split() or said.split()[2] == f"{shares.max():.2f}"
    assert said in page


@pytest.mark.parametrize("words", [["--stored"], ["--stored", "--all"]])
def test_stored_rows_of_the_scale_benchmark_are_printed_and_stay(words, tmp_path, monkeypatch, capsys):
    """With --stored, the benchmark prints the rows of its results file, and keeps those of its cases."""
    stored = Path(__file__).parents[1] / "benchmarks" / "results" / "scale.json"
    rows = json.loads(stored.read_text())["rows"][:2]
    output = tmp_path / "scale.json"
    output.write_text(json.dumps({"rows": rows}))
    monkeypatch.setattr("sys.argv", ["scale", *words, "--output", str(output)])
    assert scale.main() in (0, 1)
    assert capsys.readouterr().out.count(rows[1]["case"]) == 1
    assert json.loads(output.read_text())["rows"] == rows
    output.write_text(json.dumps({"rows": [rows[0], rows[1] | {"case": "former"}]}))
    monkeypatch.setattr("sys.argv", ["scale", "--stored", "--output", str(output)])
    scale.main()
    assert json.loads(output.read_text())["rows"] == rows[:1]


def test_a_load_clock_follows_the_cpu_time_of_the_process():
    """On a machine on which a second of CPU takes 1000 s, waits of 0.5 s end after 0.5 ms of CPU."""
    clock, condition = LoadClock(1000.0), threading.Condition()
    spent_s = time.process_time()
    assert clock() >= 1000 * spent_s  # CPU time of earlier worker processes counts, too
    ran_ns, waited_ns = clock.run_times()
    assert waited_ns == 999 * ran_ns
    with condition:
        began_s = clock()
        assert not clock.waiting(threading.Condition.wait)(condition, 0.5)
    assert clock() - began_s >= 0.5
