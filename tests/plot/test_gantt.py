"""The Gantt chart shows every send, states what it omits, and is fast for many sends."""

import numpy as np
import pytest

import taccl
from taccl import collectives
from taccl.errors import TopologyError
from taccl.plot.gantt import dimension_use
from taccl.problem.making import make_problem
from taccl.schedule.schedule import make_schedule
from taccl.topologies import multidim, parse
from tests.synthesis.small_problems import full, problem_of


def shapes(ax):
    """Number of bars drawn."""
    return sum(len(each.get_paths()) for each in ax.collections if each.get_gid() in ("copies", "reductions"))


@pytest.mark.parametrize("by", ["link", "resource", "rank"])
def test_every_bar_is_drawn(exchange, by):
    """Three sends, each over a link that holds only its own resource, give three bars in each view."""
    ax = taccl.plot.gantt(exchange, by)
    assert shapes(ax) == 3
    assert ax.get_xlabel() == "time in us"
    assert f"sends by {by}" in ax.get_title(loc="left")


def test_chart_is_drawn_in_given_axes(exchange):
    """The chart is drawn in the given axes, which are returned."""
    from matplotlib.figure import Figure

    ax = Figure().subplots()
    assert taccl.plot.gantt(exchange, ax=ax) is ax


def test_reductions_are_apart(found):
    """An allreduce over 4 ranks has bars of reductions and of copies, and a legend for the hatching."""
    ax = taccl.plot.gantt(found)
    kinds = {each.get_gid(): each.get_hatch() for each in ax.collections}
    assert kinds["copies"] is None
    assert kinds["reductions"]
    assert "reduced on arrival" in [text.get_text() for text in ax.get_legend().get_texts()]


def test_a_result_has_its_bound_drawn(found):
    """The title of the chart has the bound if a result is drawn, and not if a schedule is."""
    assert "bound" in taccl.plot.gantt(found).get_title(loc="left")
    assert "bound" not in taccl.plot.gantt(found.schedule).get_title(loc="left")


def test_omitted_rows_are_stated(exchange):
    """If rows are limited to one of two links, the axis label says so."""
    assert "the 1 busiest of 2 links; 1 bar not shown" in taccl.plot.gantt(exchange, max_rows=1).get_xlabel()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fully-connected:16", "dgx2", "ndv2"])
def test_sixteen_ranks_have_colours_of_their_own(name):
    """Ranks of a node differ in hue, and nodes in shade, so that 16 ranks have clearly different colours.

    The legend has the same colours.
    """
    from matplotlib.colors import to_rgb

    topology = taccl.topologies.parse(name, nodes=2) if name == "ndv2" else taccl.topologies.parse(name)
    problem = taccl.make_problem(topology, collectives.allgather(16), size_bytes=16_000)
    ax = taccl.plot.gantt(taccl.baselines.ring(problem), "rank")
    legend = next(child for child in ax.get_children() if child.__class__.__name__ == "Legend")
    assert [text.get_text() for text in legend.get_texts()] == [str(rank) for rank in range(16)]
    colours = [np.array(to_rgb(patch.get_facecolor())) for patch in legend.get_patches()]
    apart = [np.linalg.norm(a - b) for i, a in enumerate(colours) for b in colours[:i]]
    assert min(apart) > 0.12  # of 16 steps of cividis neighbours are 0.08 apart
    drawn = {
        tuple(colour[:3])
        for each in ax.collections
        if each.get_gid() == "copies"
        for colour in each.get_facecolors()
    }
    assert drawn == {tuple(colour) for colour in colours}


@pytest.mark.slow
def test_both_keys_are_in_the_picture():
    """The legends of merged sends and reductions, and of ranks, are both to the right of the axes."""
    problem = problem_of(full(4), collectives.allreduce(4))
    ax = taccl.plot.gantt(taccl.baselines.ring(problem))
    ax.figure.canvas.draw()
    keys = {child for child in ax.get_children() if child.__class__.__name__ == "Legend"}
    assert len(keys) == 2
    assert all(key.get_window_extent().x1 <= ax.figure.bbox.x1 for key in keys)


@pytest.mark.slow
def test_names_are_no_formulas(exchange):
    """A dollar sign in a name is shown as such, not as a formula."""
    import dataclasses

    topology = dataclasses.replace(exchange.problem.topology, name="$\\frac{$")
    problem = dataclasses.replace(exchange.problem, topology=topology)
    ax = taccl.plot.gantt(dataclasses.replace(exchange, problem=problem))
    assert "$\\frac{$" in taccl.plot.render(ax, "svg").decode()


@pytest.mark.slow
def test_tens_of_thousands_of_transfers_are_one_image():
    """40000 sends over 90 links are drawn for the 48 busiest links, as one image in SVG."""
    problem = problem_of(full(10), collectives.allgather(10))
    count, num_links = 40_000, len(problem.topology.links)
    ticks = problem.costs.ticks_per_us
    start = np.arange(count) // num_links * ticks
    schedule = make_schedule(
        problem,
        chunk=np.arange(count) % 10,
        link=np.arange(count) % num_links,
        start=start,
        end=start + ticks,
    )
    ax = taccl.plot.gantt(schedule)
    content = taccl.plot.render(ax, "svg")
    assert shapes(ax) > 20_000
    assert len(content) < 2_000_000


def test_an_empty_schedule_is_drawn(exchange):
    """A schedule without sends gives a picture without bars."""
    empty = make_schedule(exchange.problem, chunk=[], link=[], start=[], end=[])
    assert shapes(taccl.plot.gantt(empty)) == 0


def test_use_by_hand():
    """The use of each dimension over time is the one computed by hand.

    On 2 x 2 ranks at 1 MB/us: 8 us along dimension 1, 4 us along 2, then in reverse order.
    """
    topology = multidim("switch2@1000,switch2@1000", alpha_us=0)
    problem = make_problem(topology, "allreduce", chunk_bytes=4 * 10**6, chunks_per_rank=1)
    dims, time_us, share = dimension_use(
        taccl.baselines.hierarchical(problem, order=(0, 1), chunks=1), num_bins=6
    )
    assert dims.sizes == (2, 2) and time_us.tolist() == [4, 8, 12, 16, 20, 24]
    assert np.allclose(share, [[1, 1, 0, 0, 1, 1], [0, 0, 1, 1, 0, 0]])


@pytest.mark.parametrize("dims", ["switch4@100,ring3@50", "ring4@100,fully-connected3@50"])
def test_use_is_the_load(dims):
    """For listed and implicit schedules, the busy time of a dimension equals the load on it."""
    topology = parse(f"multidim:{dims}")
    size = 48 * 12 * 10**4
    listed = taccl.baselines.hierarchical(
        make_problem(topology, "allgather", size_bytes=size, chunks_per_rank=4), order=(1, 0), chunks=4
    )
    implicit = taccl.baselines.hierarchical(
        taccl.dimensions(topology.name), order=(1, 0), chunks=4, size=size, collective="allgather"
    )
    for schedule in (listed, implicit):
        found, time_us, share = dimension_use(schedule)
        loads = [float(load) * size / 10**6 for load in found.loads_us_per_mb((1, 0))]
        assert np.allclose(share.mean(axis=1) * time_us[-1], loads, rtol=1e-6)
        assert share.max() <= 1 + 1e-9


def test_a_picture_has_a_row_for_each_dimension():
    """Each row has the dimension's name and utilisation; other topologies are refused."""
    fixed = taccl.baselines.hierarchical(taccl.dimensions("multidim:switch4@100,ring3@50"), chunks=4)
    ax = taccl.plot.dimensions(fixed)
    assert [label.get_text().split("\n")[0] for label in ax.get_yticklabels()] == ["switch4@100", "ring3@50"]
    problem = make_problem(taccl.topologies.ndv2(1), "allgather", size_bytes=10**6)
    with pytest.raises(TopologyError, match="no product"):
        taccl.plot.dimensions(taccl.baselines.ring(problem, cut=False))
