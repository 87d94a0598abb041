"""Pictures over message sizes: bandwidth of a schedule, measured points of fits and diagnoses."""

import pytest

import taccl
from taccl import collectives
from taccl.baselines.table import label_of
from taccl.errors import InputError
from taccl.plot import sizes
from tests.effort import brief_synthesis, first_bounds
from tests.explore.degraded import RINGS, SIZES, node_log
from tests.measure.logs import SIZES as FITTED_SIZES
from tests.synthesis.small_problems import full, problem_of, two_nodes


@pytest.fixture(scope="module")
def rates(found):
    return taccl.plot.bandwidths(found, sizes=["4KB", "4MB", "64MB"])


@pytest.fixture
def _few_baselines(monkeypatch):
    """Time two baselines only, for tests of other lines."""
    some = {name: sizes.BASELINES[name] for name in ("ring", "pairwise")}
    monkeypatch.setattr(sizes, "BASELINES", some)


@pytest.mark.slow
@pytest.mark.usefixtures("_few_baselines")
def test_key_is_beside_the_lines(exchange):
    """The legend begins to the right of the axes, so that it covers no curve."""
    ax = taccl.plot.bandwidth(exchange)
    ax.figure.canvas.draw()
    assert ax.get_legend().get_window_extent().x0 >= ax.bbox.x1


@pytest.mark.slow
def test_at_its_own_size_a_schedule_has_its_own_bandwidth(found, rates):
    """At 4 MB, the schedule's own size, the curve has the schedule's bandwidth."""
    assert rates["this schedule"].iloc[1] == pytest.approx(found.schedule.busbw_gb_per_s)


@pytest.mark.slow
@pytest.mark.usefixtures("_few_baselines")
def test_a_log_is_drawn_as_points(found, tmp_path, monkeypatch):
    """A log is drawn as points of bus bandwidth.

    1 MB summed on 4 ranks in 10 us is 100 GB/s of algbw, and is drawn at 150 GB/s of busbw.
    """
    log = tmp_path / "allreduce.log"
    log.write_text("# all_reduce_perf\n 1000000 250000 float sum -1 10.0 100.00 150.00 0\n")
    ax = taccl.plot.bandwidth(found, sizes=["1MB", "4MB"], measured=[str(log)])
    (points,) = (line for line in ax.get_lines() if line.get_label() == "measured")
    assert (list(points.get_xdata()), list(points.get_ydata())) == ([10**6], [pytest.approx(150.0)])
    monkeypatch.setattr("taccl.plot.report._MOST_DRAWN", 0)  # pictures of single sends
    page = taccl.report(found, time_limit_s=0.2, measured=[str(log)])
    assert ">measured</text>" in page


def test_a_log_of_something_else_is_refused(found, tmp_path):
    """A log of eight ranks is refused for a schedule of four."""
    log = tmp_path / "other.log"
    log.write_text("# all_gather_perf\n 1000000 250000 float none -1 10.0 100.00 87.50 0\n")
    said = r"other\.log: found allgather on 8 ranks; expected allreduce on 4 ranks in 2 nodes"
    for draw in (taccl.plot.bandwidth, taccl.report):
        with pytest.raises(InputError, match=said):
            draw(found, measured=[str(log)])


@pytest.mark.slow
def test_no_line_passes_the_bound(rates):
    """Neither the schedule's curve nor a baseline's exceeds the bound."""
    for name in ("this schedule", *rates.attrs["baselines"]):
        assert (rates[name] <= rates["bound"] * (1 + 1e-12)).all()


@pytest.mark.slow
def test_the_sketch_is_left_aside_for_baselines():
    """A sketch that allows only a ring of links restricts the schedule, not the baselines."""
    from taccl.sketch.reachability import check_reachable

    problem = problem_of(full(4), collectives.allgather(4))
    ring = [problem.topology.links_between(r, (r + 1) % 4)[0] for r in range(4)]
    bound = problem.with_clauses(links_allowed=frozenset(ring))
    check_reachable(bound)
    schedule = brief_synthesis(bound, backend="greedy").schedule
    rates = taccl.plot.bandwidths(schedule, sizes=["4MB"])
    # The sketch allows one link into a rank, for 3 chunks of 1 us each, 3 us; without it three links take 1 us.
    aside = rates["bound without the sketch"].iloc[0]
    assert aside == pytest.approx(3 * rates["bound under the sketch"].iloc[0])
    assert rates["best of baselines"].iloc[0] == pytest.approx(aside)
    words = {text.get_text() for text in taccl.plot.bandwidth(rates).get_legend().get_texts()}
    assert {"bound without the sketch", "bound under the sketch"} <= words


@pytest.mark.slow
def test_baselines_are_timed_at_their_best(rates):
    """At the schedule's own size, each baseline's curve is at least as high as the baseline made for that
    size."""
    named = {label_of(name): name for name in taccl.baselines.BASELINES}
    assert rates.attrs["baselines"]
    for called in rates.attrs["baselines"]:
        made = taccl.baselines.baseline(named[called], rates.attrs["problem"], cut=False)
        assert rates[called].iloc[1] >= made.busbw_gb_per_s * (1 - 1e-12)


def test_the_best_baseline_is_the_best_at_each_size(rates):
    """At each size the curve of the best baseline has the highest value of all baselines."""
    for _, row in rates.iterrows():
        assert row["best of baselines"] == max(row[name] for name in rates.attrs["baselines"])


def test_baselines_that_do_not_apply_are_listed():
    """Baselines that do not apply are listed, with the reason.

    Halving-doubling needs a power of two; others need nodes, dimensions, in-network reduction or sums.
    """
    problem = problem_of(full(3), collectives.allgather(3))
    schedule = taccl.baselines.ring(problem)
    rates = taccl.plot.bandwidths(schedule, sizes=["3MB"])
    assert set(rates.attrs["undefined"]) >= {
        "halving-doubling", "hierarchical", "dimension-balanced", "one-shot", "swing", "bine trees",
        "in the network", "at servers",
    }  # fmt: skip
    assert "power of two" in rates.attrs["undefined"]["halving-doubling"]
    label = taccl.plot.bandwidth(rates).get_xlabel()
    assert f"not defined here: {', '.join(rates.attrs['undefined'])}" in label.replace("\n", " ")


def test_without_time_baselines_are_left_out(found):
    """A budget of 0 s omits every baseline, and the table says so."""
    rates = taccl.plot.bandwidths(found, sizes=["4MB"], budget_s=0)
    assert rates.attrs["baselines"] == []
    assert "not timed" in rates.attrs["undefined"]["ring"]
    label = taccl.plot.bandwidth(rates).get_xlabel()
    assert "not timed, as the budget is spent: ring" in label
    assert "not defined" not in label


def test_default_sizes_include_the_schedules_own(found):
    """Default sizes are 1 KiB to 1 GiB, with the schedule's own 4 MB in place of 4 MiB."""
    from taccl.plot.sizes import usual_sizes

    sizes = usual_sizes(4_000_000)
    assert (sizes[0], sizes[-1]) == (1024, 2**30)
    assert 4_000_000 in sizes
    assert 4 * 2**20 not in sizes


@pytest.mark.slow
def test_every_line_has_a_name(rates):
    """The schedule, the bound, each baseline and the best baseline have names in the legend."""
    ax = taccl.plot.bandwidth(rates)
    words = {text.get_text() for text in ax.get_legend().get_texts()}
    assert words == {"this schedule", "bound", "best of baselines", *rates.attrs["baselines"]}
    assert ax.get_ylabel() == "bus bandwidth in GB/s"


def test_unknown_sizes_are_refused():
    """A schedule of the published tool without a chunk size is refused, as it has no size to scale."""
    import dataclasses

    problem = problem_of(two_nodes(), collectives.allgather(4))
    schedule = taccl.baselines.ring(problem)
    unknown = dataclasses.replace(schedule, problem=dataclasses.replace(problem, size_bytes=None))
    with pytest.raises(InputError, match="size is unknown"):
        taccl.plot.bandwidths(unknown)
    with pytest.raises(InputError, match="sizes"):
        taccl.plot.bandwidths(schedule, sizes=[])


def test_the_bound_without_the_sketch_limits_the_sketch_too(monkeypatch):
    """An upper limit on bandwidth without the sketch, 5 GB/s, replaces a weaker one of 9 GB/s that the search
    proved under the sketch."""
    problem = problem_of(full(4), collectives.allgather(4))
    ring = [problem.topology.links_between(r, (r + 1) % 4)[0] for r in range(4)]
    schedule = taccl.synthesize(
        problem.with_clauses(links_allowed=frozenset(ring)), backend="greedy", time_limit_s=1
    ).schedule
    found = {4: 9.0, 12: 5.0}  # by the number of links that are allowed
    monkeypatch.setattr(
        "taccl.plot.sizes._bounds",
        lambda problem, sizes, _limit: (found[len(problem.links_allowed)],) * len(sizes),
    )
    rates = taccl.plot.bandwidths(schedule, sizes=["4MB"])
    bounds = rates[["bound without the sketch", "bound under the sketch"]]
    assert bounds.to_numpy().tolist() == [[5.0, 5.0]]


def test_other_tables_are_no_bandwidths():
    """A table that is not from `bandwidths` is refused."""
    import pandas as pd

    with pytest.raises(InputError, match="found another table"):
        taccl.plot.bandwidth(pd.DataFrame({"bound": [1.0]}))


@pytest.mark.slow
@pytest.mark.usefixtures("_few_baselines")
def test_beside_a_log_stands_the_bound_of_any_protocol(tmp_path, monkeypatch):
    """With a log, the bound of any protocol is drawn, as NCCL uses the faster LL for small sizes."""
    problem = taccl.make_problem(taccl.topologies.dgx_h100(profile="nccl"), "allgather", size_bytes="4MB")
    schedule = taccl.baselines.ring(problem)
    log = tmp_path / "allgather.log"
    log.write_text("# all_gather_perf\n 4096 128 float none -1 16.0 0.26 0.22 0\n")
    with first_bounds():
        rates = taccl.plot.bandwidths(schedule, sizes=["4KB", "4MB"], budget_s=20, measured=[str(log)])
    assert rates["bound, any protocol"].iloc[0] > 1.2 * rates["bound"].iloc[0]
    assert (rates["bound, any protocol"] >= rates["bound"]).all()
    assert "bound, any protocol" not in taccl.plot.bandwidths(schedule, sizes=["4KB"], budget_s=20)
    monkeypatch.setattr("taccl.plot.report._MOST_DRAWN", 0)  # pictures of single sends
    with first_bounds():
        page = taccl.report(schedule, time_limit_s=20, measured=[str(log)])
    assert "bandwidth of the finish" in page
    assert f"busbw {schedule.predicted_busbw_gb_per_s:.4g} GB/s, as measured" in page


@pytest.mark.slow
def test_points_and_curve_of_every_series(line_fit):
    """One series has its points and one curve over all of its sizes; the title has the error."""
    ax = taccl.plot.measured(line_fit)
    points, curve = ax.get_lines()
    assert tuple(points.get_xdata()) == tuple(curve.get_xdata()) == FITTED_SIZES
    assert "median error" in ax.get_title(loc="left")


@pytest.mark.slow
def test_measured_expected_and_bound_are_drawn(tmp_path):
    """One point per size, a curve through the expected times at these sizes, and a line at the bound."""
    (tmp_path / "a.log").write_text(node_log(RINGS))
    (found,) = taccl.diagnose([str(tmp_path / "a.log")], gains=False).series
    expected, measured, bound = taccl.plot.diagnosis(found).lines
    assert len(expected.get_xdata()) == len(measured.get_xdata()) == len(SIZES)
    assert max(measured.get_ydata()) < min(max(expected.get_ydata()), *bound.get_ydata())
