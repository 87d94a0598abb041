"""Schedules over channels agree with the times of NCCL's model."""

from itertools import permutations

import numpy as np
import pytest

import taccl
from taccl.baselines import edge_colouring, nccl, nccl_choices
from taccl.baselines.channel_schedules import channels_of, over_channels, predict
from taccl.baselines.channel_sends import Columns, as_planned_us, first_come_us, in_order_us
from taccl.baselines.edge_colouring import colours_of
from taccl.baselines.lanes import Lanes
from taccl.baselines.nccl import model_gap
from taccl.topology import fabrics, machines
from taccl.topology.links import Hold
from taccl.topology.networks import INSTANCES
from taccl.topology.registry import machine_names, parse
from tests.effort import cpu_s
from tests.foreign import REAL, foreign_files
from tests.fuzzing import MANY, thinned

COLLECTIVES = ("allreduce", "allgather", "reduce-scatter", "broadcast", "alltoall", "reduce")
#: (machine, number of nodes), alternately one node and two; 1, 2, 3 and 4 with TACCL_MANY=1.
#: Cloud instances are included only then, as they have the same servers as machines.
#: Rings on a whole rack are left out, as they have too many transfers for a test.
_NODES = [
    pytest.param(name, nodes, id=f"{name}-x{nodes}")
    for turn, name in enumerate(each for each in machine_names() if MANY or each not in INSTANCES)
    for nodes in ((1, 2, 3, 4) if MANY else (1 + turn % 2,))
    if name != "gb200-nvl72" or (nodes == 1 and MANY)
]


def agrees(problem, within=0.1):
    """True if the schedule for NCCL's choice takes the model's time, within a tenth; asserts that it is
    valid."""
    schedule, chosen = nccl(problem), nccl_choices(problem)[0]
    taccl.verify(schedule).raise_if_failed()
    return schedule.predicted_us == pytest.approx(chosen.time_us, rel=within)


def problem_of(topology, collective, size="256MB"):
    """The problem of a collective of the given size."""
    return taccl.make_problem(topology, collective, size_bytes=size)


@pytest.mark.slow
@pytest.mark.parametrize("size", ("1KB", "32KB", "1MB", "32MB", "256MB", "1GB") if MANY else ("256MB",))
@pytest.mark.parametrize("collective", COLLECTIVES if MANY else ("allreduce",))
@pytest.mark.parametrize(("name", "nodes"), thinned(_NODES, every=5))
def test_the_schedule_takes_what_the_model_says(name, nodes, collective, size):
    """On every machine, alone and in clusters, the schedule takes the model's time at every size."""
    assert agrees(problem_of(parse(name, nodes=nodes), collective, size))


@pytest.mark.slow
@pytest.mark.parametrize("collective", ["allgather", "broadcast"])
def test_an_odd_number_of_nodes_takes_what_the_model_says(collective):
    """On three nodes with rails, rings are as fast as on two or four, and the schedule takes the model's
    time."""
    problem = problem_of(machines.dgx_a100(3), collective, "64MB")
    promised = predict(problem, "ring", problem.topology)
    schedule = over_channels(problem, "ring", problem.topology)
    taccl.verify(schedule).raise_if_failed()
    assert schedule.finish_us == pytest.approx(promised.time_us, rel=0.1)
    even = problem_of(machines.dgx_a100(2), collective, "64MB")
    assert promised.gb_per_s == pytest.approx(predict(even, "ring", even.topology).gb_per_s, rel=0.03)


@pytest.mark.slow
def test_rings_that_wait_for_one_another_take_what_the_model_says():
    """On three H100 nodes, NICs and NVSwitch ports are about equally busy, and a mean hop takes about as long as
    a step: rings wait for one another, which the model counts."""
    problem = problem_of(machines.dgx_h100(3), "allgather", "64MB")
    lanes = Lanes(problem, "ring", channels_of(problem, "ring"))
    mb = problem.size_bytes / 1e6 / problem.topology.num_ranks / len(lanes.hops)
    apart_us = lanes.round_us(mb, problem.topology.num_ranks - 1)[1]
    promised_us = predict(problem, "ring", problem.topology).time_us
    schedule = over_channels(problem, "ring", problem.topology)
    assert schedule.finish_us == pytest.approx(promised_us, rel=0.05)
    assert schedule.finish_us > 1.05 * apart_us


def test_a_late_arrival_leaves_its_port_to_earlier_ones():
    """A send of 10 us holds the port of rank 2 in its last 1 us. A send of 3 us that starts with it does not
    wait."""
    builder = taccl.topologies.TopologyBuilder("late", [0] * 3)
    port = builder.add_resource("into 2")
    for src, alpha_us in ((0, 9), (1, 2)):
        link = builder.add_link(src, 2, alpha_us=alpha_us, beta_us_per_mb=1)
        builder.add_hold(link, port, alpha_us=0, beta_us_per_mb=1, side="receive")
    nothing = np.zeros(2, np.int64)
    columns = Columns(np.arange(2), np.arange(2), nothing, 0.0 * nothing, nothing, nothing, np.arange(2))
    starts, ends = first_come_us(builder.build(), 1.0, columns)
    assert starts.tolist() == [0, 0]
    assert ends.tolist() == [10, 3]


@pytest.mark.parametrize(
    ("algorithm", "collective", "sizes"),
    [("ring", "allgather", (7000, 1000, 3000, 1000)), ("tree", "allreduce", (5000, 1000, 1000, 1000))],
)
def test_chunks_of_unlike_sizes_are_sent_in_some_order(algorithm, collective, sizes):
    """Where receiving ports are faster than links, chunks of unlike sizes would hold them in another order than
    equal ones, and block one another; the schedule has the order of starts instead."""
    builder = taccl.topologies.TopologyBuilder("ports", [0] * 4)
    ports = [builder.add_resource(f"into {rank}") for rank in range(4)]
    for src, dst in permutations(range(4), 2):
        alpha, beta = "0.002", 4 if {src, dst} == {2, 3} else 6
        link = builder.add_link(src, dst, alpha_us=alpha, beta_us_per_mb=beta)
        beta = 4 if dst > 1 else 6
        builder.add_hold(link, ports[dst], alpha_us=alpha, beta_us_per_mb=beta, side="receive")
    problem = taccl.make_problem(builder.build(), collective, chunk_bytes=sizes, chunks_per_rank=1)
    for cut in (True, False):
        schedule = over_channels(problem, algorithm, problem.topology, cut=cut)
        assert taccl.verify(schedule).ok


def test_plans_whose_times_are_not_exact_to_a_tick_are_valid():
    """One byte takes four seconds, and a tick is a femtosecond: floating-point numbers do not tell the ends of
    sums from the starts of their copies."""
    topology = fabrics.fully_connected(6, alpha_us="2.000000001", bandwidth_gb_per_s="2.5e-10")
    problem = taccl.make_problem(topology, "allreduce", size_bytes=3)
    assert taccl.verify(over_channels(problem, "tree", topology, cut=False)).ok


def test_the_port_of_distant_senders_is_searched_quickly():
    """Messages of 0.01 us arrive 100 us later: four times as many take about four times as long, not sixteen."""
    builder = taccl.topologies.TopologyBuilder("distant", [0] * 2, alpha_meaning="pipelined")
    link = builder.add_link(0, 1, alpha_us=100, beta_us_per_mb=1)
    builder.add_hold(link, builder.add_resource("into 1"), alpha_us=0, beta_us_per_mb=1, side="receive")
    topology = builder.build()

    def simulate(count):
        nothing, chunks = np.zeros(count, np.int64), np.arange(count)
        columns = Columns(chunks, nothing, nothing, 0.0 * nothing, nothing, chunks, nothing)
        first_come_us(topology, 0.01, columns)

    assert cpu_s(lambda: simulate(4000)) < 8 * cpu_s(lambda: simulate(1000))


def test_a_plan_orders_holds_and_not_starts():
    """A send on a slow link starts first, and holds the receiving port last, in a prediction as in exact times.

    1 MB from rank 0 takes 4 us and holds the port of rank 2 from 3 to 4 us; 1 MB from rank 1 holds it from 1
    to 2 us.
    """
    builder = taccl.topologies.TopologyBuilder("ports", [0] * 3)
    port = builder.add_resource("into 2")
    for src, beta in enumerate((4, 1)):
        builder.add_hold(
            builder.add_link(src, 2, alpha_us=0, beta_us_per_mb=beta), port, alpha_us=0, beta_us_per_mb=1,
            side="receive",
        )  # fmt: skip
    nothing = np.zeros(2, dtype=np.int64)
    sends = Columns(np.arange(2), np.arange(2), nothing, np.array([0.0, 1.0]), nothing, nothing, nothing)
    topology = builder.build()
    assert as_planned_us(topology, 1.0, sends) == 4
    assert in_order_us(topology, 1.0, sends, np.arange(2)) == 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "nodes", "collective", "size"),
    [
        ("aws-p4d-24xl", 2, "allgather", "1KB"),
        ("azure-ndv4", 3, "allgather", "1MB"),
        ("azure-ndv4", 2, "reduce", "1MB"),
    ],
)
def test_rings_over_shared_pcie_take_what_the_model_says(shared_data, server, nodes, collective, size):
    """On servers whose file lists PCIe alone, rings share ports with slow sends from other nodes."""
    topology = loaded(shared_data / "nccl-topo" / f"{server}-topo.xml", nodes)
    assert agrees(problem_of(topology, collective, size), within=0.05)


@pytest.mark.slow
def test_simulated_steps_of_rings_are_extrapolated(monkeypatch):
    """A prediction that simulates some of the steps is within 10 % of one that simulates all."""
    problem = problem_of(machines.dgx_h100(3), "allgather", "64MB")
    whole_us = predict(problem, "ring", problem.topology).time_us
    monkeypatch.setattr("taccl.baselines.channel_schedules._MOST_REPLAYED", 2500)
    assert predict(problem, "ring", problem.topology).time_us == pytest.approx(whole_us, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ring", "tree"])
@pytest.mark.parametrize(
    ("name", "nodes"), thinned([("dgx1", 2), ("mi300x", 2), ("dgx2", 1), ("dgx-h100", 2)], every=4)
)
def test_rings_and_trees_take_what_the_model_says(name, nodes, algorithm):
    """Schedules of rings and of trees take the model's time, even if NCCL would choose another algorithm."""
    problem = problem_of(parse(name, nodes=nodes), "allreduce")
    promised = predict(problem, algorithm, problem.topology).time_us
    schedule = over_channels(problem, algorithm, problem.topology)
    taccl.verify(schedule).raise_if_failed()
    assert schedule.finish_us == pytest.approx(promised, rel=0.1)


@pytest.mark.slow
@pytest.mark.skipif(not MANY, reason="long; set TACCL_MANY=1 to run it")
def test_rings_whose_hops_are_late_hold_up_no_others():
    """Slow hops of a ring between racks delay no other ring, though twelve rings share each NVLink port."""
    assert agrees(problem_of(parse("gb200-nvl72", nodes=2), "allgather"))


@pytest.mark.slow
@pytest.mark.parametrize("collective", ["allreduce", "allgather", "broadcast"] if MANY else ["allreduce"])
@pytest.mark.parametrize(
    "path", thinned(foreign_files("nvidia-smi/*.txt") + foreign_files("nccl-topo/*.xml"), every=6)
)
def test_imported_servers_take_what_the_model_says(path, collective):
    """The schedule takes the model's time on servers with shared PCIe, partial NVLinks, or both."""
    assert agrees(problem_of(loaded(path), collective))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "nodes", "collective"),
    [("ndv5", 2, "broadcast"), ("ndv5", 2, "allgather"), ("ndv5", 1, "allreduce"), ("ndv2", 2, "allreduce")],
)
def test_hops_that_hold_several_resources_keep_to_a_plan(shared_data, server, nodes, collective):
    """On servers without NVLinks, where a send holds PCIe at both ends and the CPU link, the schedule takes
    the model's time."""
    topology = loaded(shared_data / "nccl-topo" / f"azure-{server}-topo.xml", nodes)
    assert agrees(problem_of(topology, collective, "16MB"))


@pytest.mark.slow
def test_a_slow_link_is_not_passed_by_through_another_node(shared_data):
    """A ring uses CPU links of 22 GB/s, although two hops through NICs of 48 GB/s would be faster."""
    topology = loaded(shared_data / "nccl-topo" / "azure-ndv5-topo.xml", 2)
    problem = problem_of(topology, "allgather")
    assert not Lanes(problem, "ring", channels_of(problem, "ring")).relayed


@pytest.mark.slow
@pytest.mark.parametrize("size", ["64KB", "1MB", "16MB"] if MANY else ["64KB"])
@pytest.mark.parametrize(
    "collective", ["allreduce", "broadcast", "allgather"] if MANY else ["allreduce", "broadcast"]
)
@pytest.mark.parametrize(
    ("name", "nodes"),
    [("dgx1", 1), ("dgx-h100", 1), ("ndv2", 4), ("dgx1", 2), ("dgx2", 2)][: None if MANY else 3],
)
def test_small_messages_take_what_the_model_says(name, nodes, collective, size):
    """For small messages, too, for which filling and draining the pipeline counts, the schedule takes the
    model's time."""
    assert agrees(problem_of(parse(name, nodes=nodes), collective, size))


def test_messages_of_rings_that_share_a_link_start_in_turn():
    """Each link of four ranks is shared by two of six rings, whose sends alternate; the schedule takes the
    model's time."""
    assert agrees(problem_of(fabrics.fully_connected(4), "allgather", size="64KB"))


@pytest.mark.slow
def test_pieces_of_rounded_sizes_keep_the_order_of_their_mean_size():
    """First come, first served is chaotic in the size of pieces: the schedule has the order that its predicted
    time has, though its pieces are rounded to whole bytes."""
    assert agrees(problem_of(parse("gh200", nodes=3), "allreduce", "4MB"), within=0.02)


def test_further_pieces_follow_at_the_rate_of_the_first(monkeypatch):
    """A prediction that simulates the first two of many pieces is within a tenth of one that simulates
    all."""
    problem = problem_of(machines.dgx1(2), "broadcast", size="16MB")
    whole = predict(problem, "ring", problem.topology).time_us
    for limit in ("_MOST_REPLAYED", "_MOST_PIPED"):
        monkeypatch.setattr(f"taccl.baselines.channel_schedules.{limit}", 0)
    assert predict(problem, "ring", problem.topology).time_us == pytest.approx(whole, rel=0.1)


#: (file, number of servers) of servers modelled on public reports, with 1 and 2 alternately.
#: With TACCL_MANY=1 each file has both numbers of servers.
_REPORTED = [
    pytest.param(path, nodes, id=f"{path.stem}-{nodes}")
    for folder in ("", "smi", "xml")
    for turn, path in enumerate(
        sorted((REAL / "reported" / folder).glob("*.txt" if folder != "xml" else "*.xml"))
    )
    for nodes in ((1, 2) if MANY else (1 + turn % 2,))
]


@pytest.mark.slow
@pytest.mark.parametrize(("path", "nodes"), thinned(_REPORTED, every=4))
def test_reported_servers_take_what_the_model_says(path, nodes):
    """Schedules on servers modelled on public reports, alone or, if they have NICs, in pairs, take the
    model's time."""
    assert agrees(problem_of(loaded(path, nodes), "allreduce"))


def loaded(path, nodes=1):
    """The topology in a file; skips the test if the file has none, or a single rank."""
    try:
        topology = taccl.topologies.load(path, **({} if nodes == 1 else {"nodes": nodes}))
    except taccl.errors.InputError as error:
        pytest.skip(f"no such topology: {error}")
    if topology.num_ranks < 2:
        pytest.skip("a single rank sends nothing")
    return topology


def test_the_slowest_hop_of_a_ring_counts():
    """A ring runs at the rate of its slowest link.

    Two pairs of ranks with fast links of 100 GB/s are joined by slow links of 10 GB/s.
    """
    builder = taccl.topologies.TopologyBuilder("pairs", [0] * 4)
    for src in range(4):
        for dst in range(4):
            if src != dst:
                near = src // 2 == dst // 2
                builder.add_link(src, dst, alpha_us=0, beta_us_per_mb=10 if near else 100)
    problem = problem_of(builder.build(), "allgather", size=48_000_000)
    # Each ring crosses between the pairs twice, over two of eight slow links of 80 GB/s in total.
    # So all rings together run at 40 GB/s.
    promised = 48 * 3 / 4 / 40 * 1000
    assert nccl_choices(problem)[0].time_us == pytest.approx(promised, rel=0.05)
    assert nccl(problem).finish_us == pytest.approx(promised, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("collective", [each for each in COLLECTIVES if each != "alltoall"])
def test_relayed_rings_are_valid(collective):
    """On a 3 x 3 mesh, which has no Hamiltonian ring, relayed rings are valid."""
    problem = problem_of(fabrics.mesh(3, 3), collective, size="1MB")
    taccl.verify(over_channels(problem, "ring", problem.topology)).raise_if_failed()


@pytest.mark.parametrize("algorithm", ["ring", "tree"])
def test_chunks_that_may_not_be_cut_are_distributed(algorithm):
    """If chunks may not be cut, the problem's chunks are distributed over the channels."""
    problem = taccl.make_problem(machines.dgx1(), taccl.collectives.allreduce(8), size_bytes=1 << 20)
    schedule = over_channels(problem, algorithm, problem.topology, cut=False)
    taccl.verify(schedule).raise_if_failed()
    assert schedule.problem.collective.num_chunks == problem.collective.num_chunks


def test_a_schedule_that_is_slower_than_its_model_is_no_measure():
    """If a schedule is slower than NCCL's model predicts, `model_gap` warns with both times; else its text is
    empty."""
    problem = problem_of(machines.dgx1(), "allgather", size="1MB")
    schedule, chosen = nccl(problem), nccl_choices(problem)[0]
    assert model_gap(schedule, chosen) == ""
    said = model_gap(schedule, chosen._replace(time_us=chosen.time_us / 2))
    assert "times the modelled time of NCCL's algorithm" in said
    assert "before claiming to beat NCCL" in said


@pytest.mark.parametrize("size", ["1KB", "64KB", "1MB"])
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("machine", [machines.dgx1, machines.dgx2, machines.mi300x])
def test_latencies_of_an_alltoall_agree_with_its_model(machine, nodes, size):
    """Ports are occupied by the alpha of a send to each peer. Latencies inside nodes and between nodes overlap,
    except on a route with relays. The schedule takes the model's time."""
    assert agrees(problem_of(machine(nodes), "alltoall", size), within=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nodes", "collective", "size", "most"), [(3, "broadcast", "16MB", 1.05), (2, "allreduce", "64MB", 1.02)]
)
def test_plans_make_the_first_piece_wait_little(nodes, collective, size, most):
    """On chains and trees that share ports, all pieces together take hardly longer than if the first one never
    waited."""
    problem = problem_of(machines.dgx2(nodes), collective, size)
    algorithm = nccl_choices(problem)[0].algorithm
    lanes = Lanes(problem, algorithm, channels_of(problem, algorithm))
    pieces = lanes.num_pieces
    mb = lanes.mb_of(pieces)
    plan = lanes.plan(mb, pieces)
    least_us = lanes.alone_us(mb) + (pieces - 1) * lanes.busiest_us(mb)
    assert plan.end_us + (pieces - 1) * plan.period_us < most * least_us


@pytest.mark.parametrize("seed", range(3))
def test_edges_are_coloured_with_as_few_colours_as_possible(seed):
    """Edge colouring uses as many colours as the maximum degree, and no two edges at a vertex share one."""
    import random

    generator = random.Random(seed)
    edges = [(generator.randrange(5), 5 + generator.randrange(5)) for _ in range(40)]
    colour_of = colours_of(edges, 10)
    at = {}
    for ends, colour in zip(edges, colour_of, strict=True):
        for end in ends:
            at.setdefault(end, []).append(colour)
    assert all(len(set(colours)) == len(colours) for colours in at.values())
    assert max(colour_of) + 1 == max(len(colours) for colours in at.values())


def test_sends_that_share_no_busiest_resource_have_one_turn(monkeypatch):
    """Edge colouring runs only if two sends hold the same busiest resource at one end."""
    ports = [[Hold(n, n, 1, 1), Hold(n, 9, 1, 1), Hold(n, 4 + n, 1, 1, "receive")] for n in range(3)]
    busy_us = np.array([2.0] * 9 + [1.0])
    assert edge_colouring.turns_of([*ports, ports[0]], busy_us) == [0, 0, 0, 1]
    monkeypatch.setattr(edge_colouring, "colours_of", None)
    assert edge_colouring.turns_of(ports, busy_us) == [0, 0, 0]
