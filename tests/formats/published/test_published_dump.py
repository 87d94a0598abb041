"""Algorithms written for the published tool: when read back, every send has its former times."""

import json
import random
import re
import warnings
from collections import Counter
from fractions import Fraction

import pytest

import taccl
from taccl import collectives
from taccl.errors import ExportError, InputError, LossyConversionWarning
from taccl.formats.published.algorithm import load_upstream_algorithm
from taccl.formats.published.dump import dump_upstream_algorithm
from taccl.problem.making import make_problem
from taccl.problem.problem import Clauses
from taccl.schedule.schedule import make_schedule
from taccl.topology.builder import TopologyBuilder
from tests.effort import first_schedule
from tests.foreign import OURS, foreign_files
from tests.fuzzing import some
from tests.synthesis.small_problems import linked


def _transfers(schedule):
    """Counts of (chunk, source, destination, start us, end us, reduce)."""
    us, links = schedule.problem.costs.us, schedule.problem.topology.links
    return Counter(
        (t.chunk, links[t.link].src, links[t.link].dst, us(t.start_ticks), us(t.end_ticks), t.reduce)
        for t in schedule
    )


def _round_trip(schedule, tmp_path):
    """(schedule after writing and reading, text of the one warning)."""
    path = tmp_path / "algorithm.json"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", LossyConversionWarning)
        taccl.write(schedule, path, format="upstream-algorithm", overwrite=True)
    assert len(caught) == 1
    text = str(caught[0].message)
    unit = re.search(r"time_unit_us='?([0-9./e+-]+)", text)
    return load_upstream_algorithm(path, time_unit_us=unit[1] if unit else None), text


def _pair(*, alpha=0, beta=3, **options):
    builder = TopologyBuilder("pair", [0, 0], **options)
    for src, dst in ((0, 1), (1, 0)):
        builder.add_link(src, dst, alpha_us=alpha, beta_us_per_mb=beta)
    return builder.build()


def _exchange(topology=None, *, start=0, **options):
    """Schedule of an exchange of 1 MB chunks between two ranks, in 3 us by default."""
    problem = make_problem(
        topology or _pair(), collectives.allgather(2), chunk_bytes=10**6, clauses=Clauses()
    )
    costs = problem.costs
    begin = int(start * costs.ticks_per_us)
    end = begin + costs.duration(0, 1)
    return make_schedule(problem, chunk=[0, 1], link=[0, 1], start=[begin] * 2, end=[end] * 2, **options)


ALGORITHMS = foreign_files("upstream-taccl/algorithm/*.json")
SOUND = [each for each in ALGORITHMS if "overlapping" not in each.id]


@pytest.mark.parametrize("path", SOUND)
def test_algorithms_come_back(path, tmp_path):
    """Algorithms from the published tool's files are written and read back unchanged.

    Sends, times, merges and topology are compared.
    """
    schedule = load_upstream_algorithm(path)
    back, text = _round_trip(schedule, tmp_path)
    assert _transfers(back) == _transfers(schedule)
    assert back.num_sends == schedule.num_sends
    assert back.problem.topology.name == schedule.problem.topology.name
    assert taccl.verify(back).ok
    assert "resources" not in text


def assert_comes_back_whole(path, tmp_path):
    """Assert that an algorithm without sums is read back unchanged, except for the chunk size."""
    schedule = load_upstream_algorithm(path)
    back, text = _round_trip(schedule, tmp_path)
    assert back == schedule
    assert text == "an algorithm of the published tool cannot hold the size of a chunk (1MB)"


def test_topology_comes_back_whole(tmp_path):
    """A topology of two nodes joined by one link each way is read back unchanged."""
    assert_comes_back_whole(OURS / "upstream-taccl/algorithm/allgather-hub-n2.json", tmp_path)


@pytest.mark.slow
def test_real_topology_comes_back_whole(shared_data, tmp_path):
    """A real topology of two nodes with a switch each is read back unchanged."""
    assert_comes_back_whole(shared_data / "upstream-taccl/algorithm/allgather-dgx2-n2.json", tmp_path)


@pytest.mark.parametrize("path", [each for each in ALGORITHMS if "overlapping" in each.id])
def test_overlapping_algorithm_is_refused(path):
    """A file whose sends would overlap is not written; the message names the first inter-node link."""
    schedule = load_upstream_algorithm(path)
    link = schedule.problem.topology.num_ranks // 2
    with pytest.raises(ExportError, match=rf"contention: .*\(0->{link}\).*; verify the schedule"):
        dump_upstream_algorithm(schedule)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("topology", "collective", "baseline"),
    [
        ("ndv2:2", "allgather", "ring"),
        ("ndv2:2", "allreduce", "hierarchical"),
        ("dgx2:2", "reduce-scatter", "pairwise"),
        ("ndv2:4", "allgather", "pairwise"),
        ("dgx-a100:2:nominal", "alltoall", "pairwise"),
    ],
)
def test_baselines_come_back(topology, collective, baseline, tmp_path):
    """Schedules of physical machines keep every time, and are valid under the tool's cost model."""
    name, nodes, *profile = topology.split(":")
    machine = taccl.topologies.parse(name, nodes=int(nodes), profile=next(iter(profile), None))
    problem = make_problem(machine, collectives.make(collective, machine.num_ranks), chunk_bytes=10**6)
    schedule = taccl.baselines.baseline(baseline, problem)
    back, _ = _round_trip(schedule, tmp_path)
    assert _transfers(back) == _transfers(schedule)
    assert taccl.verify(back).ok
    assert back.problem.collective.name == collective


def _random_problem(seed):
    """A problem of a few equal nodes of a few ranks, with random costs of all links."""
    draw = random.Random(seed)
    nodes, size = draw.randint(1, 3), draw.randint(2, 3)
    ranks = nodes * size
    builder = TopologyBuilder(f"random {seed}", [rank // size for rank in range(ranks)])
    costs = {}
    remote = Fraction(draw.randint(0, 9), draw.choice((1, 3, 10))), draw.randint(1, 20)
    for src in range(ranks):
        for dst in range(ranks):
            if src == dst:
                continue
            inside = src // size == dst // size
            cost = costs.setdefault(
                (src % size, dst % size), (Fraction(draw.randint(0, 3), 4), draw.randint(1, 9))
            )
            alpha, beta = cost if inside else remote
            builder.add_link(src, dst, alpha_us=alpha, beta_us_per_mb=beta)
    name = draw.choice(
        ("allgather", "alltoall", "reduce-scatter", "allreduce", "broadcast", "gather", "reduce")
    )
    collective = collectives.make(name, ranks, chunks_per_rank=draw.randint(1, 2))
    topology = builder.build()
    clauses = Clauses(max_merge=draw.randint(1, 4), merging=frozenset(topology.internode_links))
    return make_problem(topology, collective, chunk_bytes=draw.choice((10**6, 12345)), clauses=clauses)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::taccl.errors.NumericsWarning")
def test_random_schedules_come_back_or_are_refused(tmp_path):
    """A written schedule keeps its times and finishes no later than before; most schedules are written."""
    written = 0
    for seed in range(some(4, 40)):
        problem = _random_problem(seed)
        schedule = first_schedule(problem)
        try:
            back, _ = _round_trip(schedule, tmp_path)
        except ExportError as error:
            assert any(word in str(error) for word in ("cannot hold", "partial sums apart"))
            continue
        assert _transfers(back) == _transfers(schedule), seed
        assert taccl.verify(back).ok, seed
        written += 1
    assert written > some(2, 20)


def test_fields_by_hand():
    """An exchange at cost 3 per send is written as one step of 30 tenths, without inter-node links."""
    with pytest.warns(LossyConversionWarning):
        document = json.loads(dump_upstream_algorithm(_exchange(producer="by hand")))
    assert document["name"] == "by hand"
    assert document["steps"] == [
        {"sccl_type": "step", "rounds": 30, "sends": [[0, 0, 1, 0, 0], [1, 1, 0, 0, 0]]}
    ]
    assert document["input_map"] == {"0": [0], "1": [1]}
    assert document["output_map"] == {"0": [0, 1], "1": [0, 1]}
    assert document["collective"]["name"] == "Allgather(n=2)"
    topology = document["topology"]
    assert topology["node_links"] == [[0, 1], [1, 0]]
    assert topology["node_invbws"] == [[0, 3], [3, 0]]
    assert (topology["copies"], topology["remote_alpha"], topology["internode_conn"]) == (1, -1, {})


def test_sums_are_chunks_of_one_address():
    """A sum of two ranks is two chunks of the tool at one address, and its send is marked as a reduction."""
    problem = make_problem(_pair(), collectives.reduce(2), chunk_bytes=10**6)
    schedule = make_schedule(problem, chunk=[0], link=[1], start=[0], end=[3], reduce=[True])
    with pytest.warns(LossyConversionWarning):
        document = json.loads(dump_upstream_algorithm(schedule))
    found = [(c["pre"], c["post"], c["addr"]) for c in document["collective"]["chunks"]]
    assert found == [([0], [0], 0), ([1], [0], 0)]
    assert document["steps"][0]["sends"] == [[0, 1, 0, 0, 0, "rrc"]]


@pytest.mark.parametrize(
    ("costs", "start", "unit"),
    [({"alpha": Fraction(1, 4)}, Fraction(1, 4), "0.1"), ({"beta": Fraction(10, 3)}, 0, "'100/3'")],
    ids=["a quarter", "no decimal"],
)
def test_unit_is_as_fine_as_starts_need(tmp_path, costs, start, unit):
    """The time unit is fine enough for all starts to be whole tenths of it; it need not be a decimal number.

    A start at 1/4 us is 25 tenths of 0.1 us, but no whole number of tenths of 1 us. A cost of 10/3 us is an
    exact decimal only in units such as 100/3 us.
    """
    schedule = _exchange(_pair(**costs), start=start)
    back, text = _round_trip(schedule, tmp_path)
    assert f"time_unit_us={unit}" in text
    assert _transfers(back) == _transfers(schedule)


def test_unit_that_does_not_fit_is_refused():
    """A given unit is used if starts are integer tenths of it, else refused."""
    schedule = _exchange(_pair(alpha=Fraction(1, 4)), start=Fraction(1, 4))
    with pytest.raises(InputError) as caught:
        dump_upstream_algorithm(schedule, time_unit_us=1)
    assert caught.value.where == "time_unit_us"
    with pytest.warns(LossyConversionWarning, match=r"time_unit_us=0\.25"):
        document = json.loads(dump_upstream_algorithm(schedule, time_unit_us="1/4"))
        assert document["steps"][0]["sends"][0][3] == 10


@pytest.mark.parametrize(
    ("clauses", "alpha", "lost"),
    [
        (Clauses(), 0, "the size of a chunk (1MB)"),
        (Clauses(name="mine", direct_crossing=True), 0, "the clauses of the sketch 'mine'"),
        (Clauses(), 1, "latencies inside nodes"),
    ],
)
def test_what_is_lost_is_named(clauses, alpha, lost):
    """The warning lists the size, the sketch, and latencies if there are any."""
    problem = make_problem(_pair(alpha=alpha), collectives.broadcast(2), chunk_bytes=10**6, clauses=clauses)
    end = problem.costs.duration(0, 1)
    with pytest.warns(LossyConversionWarning) as caught:
        dump_upstream_algorithm(make_schedule(problem, chunk=[0], link=[0], start=[0], end=[end]))
    assert lost in str(caught[0].message)


def test_shared_nics_are_lost():
    """The warning lists a NIC shared by ranks, as the tool divides it among links beforehand."""
    machine = taccl.topologies.ndv2(nodes=2)
    problem = make_problem(machine, collectives.allgather(16), chunk_bytes=10**6)
    with pytest.warns(LossyConversionWarning, match="NIC 0 of node 0 egress"):
        dump_upstream_algorithm(taccl.baselines.ring(problem))


def test_overlapping_halves_are_named(tmp_path):
    """If copies start before the last reduction ends, a warning says that readers of the file re-time them.

    The reduction over 1->0 takes from 0 to 3 us, that over 2->3 from 0 to 9, and a copy starts at 3. Nothing
    can start earlier, so the times are unchanged here.
    """
    builder = TopologyBuilder("four", [0] * 4)
    for src, dst, beta in ((1, 0, 3), (0, 1, 3), (2, 3, 9), (3, 2, 9)):
        builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=beta)
    chunks = (collectives.Chunk((0, 1), (0, 1), 0), collectives.Chunk((2, 3), (2, 3), 2 + 1))
    collective = collectives.Collective("two sums", 4, chunks, combining=True)
    problem = make_problem(builder.build(), collective, chunk_bytes=10**6)
    schedule = make_schedule(
        problem, chunk=[0, 1, 0, 1], link=[0, 2, 1, 3], start=[0, 0, 3, 9], end=[3, 9, 6, 18],
        reduce=[True, True, False, False],
    )  # fmt: skip
    assert taccl.verify(schedule).ok
    back, text = _round_trip(schedule, tmp_path)
    assert "copies that start before the last reduction ends" in text
    assert _transfers(back) == _transfers(schedule)


def test_equal_costs_are_required_only_inside_nodes(tmp_path):
    """Two nodes of one rank with different costs in each direction are written as one node of two."""
    topology = linked("uneven", [0, 1], [(0, 1, 1, 3), (1, 0, 1, 4)])
    problem = make_problem(topology, collectives.allgather(2), chunk_bytes=10**6)
    schedule = make_schedule(problem, chunk=[0, 1], link=[0, 1], start=[0, 0], end=[4, 5])
    back, text = _round_trip(schedule, tmp_path)
    assert "its 2 nodes, which are merged into one" in text
    assert _transfers(back) == _transfers(schedule)


def _merged():
    problem = make_problem(
        _pair(), collectives.broadcast(2, chunks_per_rank=2), chunk_bytes=10**6,
        clauses=Clauses(max_merge=2, merging=frozenset({0})),
    )  # fmt: skip
    return make_schedule(problem, chunk=[0, 1], link=[0, 0], start=[0, 0], end=[6, 6], group=[0, 0])


def _multicast():
    topology = linked("switch", [0, 0, 0], [((0,), (1, 2))], alpha_us=0, beta_us_per_mb=1)
    problem = make_problem(topology, collectives.broadcast(3), chunk_bytes=10**6)
    return make_schedule(problem, chunk=[0], link=[0], start=[0], end=[1])


def _pipelined():
    problem = make_problem(
        _pair(alpha=5, alpha_meaning="pipelined"), collectives.broadcast(2, chunks_per_rank=2),
        chunk_bytes=10**6,
    )  # fmt: skip
    return make_schedule(problem, chunk=[0, 1], link=[0, 0], start=[0, 3], end=[8, 11])


def _uneven_chunks():
    problem = make_problem(_pair(), collectives.allgather(2), chunk_bytes=[10**6, 2 * 10**6])
    return make_schedule(problem, chunk=[0, 1], link=[0, 1], start=[0, 0], end=[3, 6])


def _scan():
    problem = make_problem(_pair(), collectives.scan(2), chunk_bytes=10**6)
    return make_schedule(problem, chunk=[0], link=[0], start=[0], end=[3])


def _wrong_end():
    problem = make_problem(_pair(), collectives.broadcast(2), chunk_bytes=10**6)
    return make_schedule(problem, chunk=[0], link=[0], start=[0], end=[2])


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        (_merged, "takes another time, as only sends between nodes merge"),
        (_multicast, "joins more than two ranks"),
        (_pipelined, "under the tool's model there is contention"),
        (_uneven_chunks, "chunks of 1MB and 2MB"),
        (_scan, "cannot hold derived chunks"),
        (_wrong_end, "verify the schedule"),
    ],
)
def test_what_the_model_lacks_is_refused(schedule, reason):
    """A schedule that would have other times when read back is refused with the reason."""
    with pytest.raises(ExportError, match=reason):
        dump_upstream_algorithm(schedule())


def test_file_is_there_whole_or_not_at_all(tmp_path):
    """An existing file stays unless replacement is allowed, and a refused schedule writes none."""
    path = tmp_path / "algorithm.json"
    with pytest.raises(ExportError):
        taccl.write(_merged(), path, format="upstream-algorithm")
    assert not list(tmp_path.iterdir())
    path.write_text("mine")
    with pytest.raises(InputError, match="exists"):
        taccl.write(_exchange(), path, format="upstream-algorithm")
    assert path.read_text() == "mine"
    with pytest.warns(LossyConversionWarning):
        taccl.write(_exchange(), path, format="upstream-algorithm", overwrite=True)
    assert json.loads(path.read_text())["sccl_type"] == "algorithm"
