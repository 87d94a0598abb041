"""Programs lifted to schedules: times by hand, published files, round trips and refusals."""

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

import taccl
from taccl.baselines import servers
from taccl.errors import InputError, LossyConversionWarning, VerificationError
from taccl.formats.msccl.xml import load_msccl_xml
from taccl.problem.chunks import Chunk
from taccl.problem.collective import Collective
from taccl.problem.collectives import COLLECTIVES, exchange, make
from taccl.program.lift import lift
from taccl.program.lower import lower
from taccl.program.program import Program, RankProgram, Slot, Step, Threadblock
from taccl.schedule.timing import exact_times
from taccl.topology.builder import TopologyBuilder
from tests.foreign import OURS, foreign_files
from tests.program.examples import schedule_of

#: Links of 50 GB/s, 20 us/MB, and 0.5 us: a chunk of 50 KB takes 1.5 us.
CHUNK = 50_000


def moved(schedule):
    """Counts of (chunk, link, reduce) that a schedule transfers, regardless of time."""
    return Counter((t.chunk, t.link, t.reduce) for t in schedule)


WORK = [each for each in foreign_files("msccl-xml/*.xml") if "deadlock" not in each.id]


@pytest.mark.slow
@pytest.mark.parametrize("path", WORK)
def test_files_of_others_run_on_a_topology(path):
    """Every published file becomes a verified schedule, no faster than the bound."""
    program = load_msccl_xml(path)
    topology = taccl.topologies.fully_connected(program.num_ranks)
    schedule = lift(program, topology=topology, size="3MB")
    assert taccl.verify(schedule).ok
    assert taccl.interpret(lower(schedule)).ok
    assert taccl.lower_bound(schedule.problem).bound <= schedule.finish


@pytest.mark.parametrize(
    ("file", "topology", "size", "finish_us"),
    [
        # All sends at the same time: 250 KB take 0.5 + 5 us.
        ("allgather-4-direct", "fully-connected:4", "1MB", 5.5),
        # Two steps to form the sum and two to distribute it, each 1 MB: 4 * (0.5 + 20) us.
        ("allreduce-3-ring", "ring:3", "3MB", 82.0),
        # 1 MB to the hub, then 3 MB in one send: 0.5 + 20 + 0.5 + 60 us.
        ("allgather-3-hub", "fully-connected:3", "3MB", 81.0),
    ],
)
def test_our_files_take_their_time(file, topology, size, finish_us):
    """Our files take the expected time on links of 50 GB/s (20 us/MB) and 0.5 us."""
    program = load_msccl_xml(OURS / "msccl-xml" / f"{file}.xml")
    schedule = lift(program, topology=taccl.topologies.parse(topology), size=size)
    assert schedule.finish_us == finish_us


@pytest.mark.parametrize(
    ("file", "topology", "finish_us"),
    [
        # All sends at the same time: 250 KB take 0.5 + 5 us.
        ("allgather-4.xml", "fully-connected:4", 5.5),
        # 7 steps down and 7 up, each 125 KB: 14 * (0.5 + 2.5) us.
        ("allreduce-8-ring.xml", "ring:8", 42.0),
    ],
)
def test_published_files_take_their_time(file, topology, finish_us, shared_data):
    """Published files take the expected time for 1 MB in total on the same links."""
    program = load_msccl_xml(shared_data / "msccl-xml" / file)
    schedule = lift(program, topology=taccl.topologies.parse(topology), size="1MB")
    assert schedule.finish_us == finish_us


@pytest.mark.parametrize("path", foreign_files("msccl-xml/*deadlock.xml"))
def test_a_file_that_hangs_has_no_schedule(path):
    """A program with a deadlock is refused with its cycle, as by `interpret`."""
    program = load_msccl_xml(path)
    with pytest.raises(VerificationError, match="wait for each other"):
        lift(program, topology=taccl.topologies.fully_connected(program.num_ranks), size="1MB")


@pytest.mark.slow
@pytest.mark.parametrize("name", COLLECTIVES)
def test_lowered_schedules_return_on_a_ring(name):
    """On a ring lowering and lifting restores transfers and finish."""
    schedule = schedule_of(name)
    again = lift(lower(schedule), topology=schedule.problem.topology, chunk_size=100_000)
    assert (moved(again), again.finish) == (moved(schedule), schedule.finish)


@cache
def hierarchical_of(name):
    """Hierarchical baseline of 1 MiB on two NDv2."""
    problem = taccl.make_problem(taccl.topologies.ndv2(nodes=2), make(name, 16), size_bytes=2**20)
    return taccl.baselines.hierarchical(problem, cut=False)


@pytest.mark.parametrize(
    "options",
    [
        {"in_place": True, "protocol": "LL"}, {"threadblocks": "per-peer"}, {"merged": "pack"},
        {"channels": "round-robin", "num_channels": 2},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("name", ["allgather", "alltoall", "allreduce"])
def test_transfers_return_however_lowered(name, options):
    """Lowering options change times but not transfers, and sends between nodes stay merged."""
    schedule = hierarchical_of(name)
    again = lift(lower(schedule, **options), topology=schedule.problem.topology, size=2**20)
    assert moved(again) == moved(schedule)
    assert taccl.simulate(again).finish <= again.finish


@pytest.mark.parametrize("protocol", ["LL", "Simple"])
def test_links_have_the_costs_of_the_program_protocol(protocol):
    """On a machine with protocols, messages cost what they do under the program's own."""
    machine = taccl.topologies.dgx_h100()
    problem = taccl.make_problem(machine.under(protocol.lower()), make("allgather", 8), size_bytes=10**6)
    schedule = taccl.baselines.pairwise(problem, cut=False)
    lifted = lift(lower(schedule), topology=machine, size="1MB")
    assert (lifted.problem.topology.protocol, lifted.finish) == (protocol.lower(), schedule.finish)


def test_instances_are_smaller_chunks():
    """A program in two instances has twice the chunks per rank, at half the size."""
    schedule = schedule_of("allgather")
    again = lift(lower(schedule, instances=2), topology=schedule.problem.topology, size=400_000)
    assert again.problem.collective.chunks_per_rank == 2
    assert set(again.problem.chunk_bytes) == {50_000}
    assert len(again) == 2 * len(schedule)


def test_several_chunks_in_a_step_are_one_send():
    """Several chunks in one step are one send, which pays alpha once: 0.5 + 10 * 1 us for ten."""
    collective = Collective("moves", 2, (Chunk((0,), (1,)),) * 10)
    sender = RankProgram(10, 0, 0, (Threadblock((Step("send", Slot("input", 0), count=10),), send_to=1),))
    receiver = RankProgram(
        0, 10, 0, (Threadblock((Step("receive", dst=Slot("output", 0), count=10),), receive_from=0),)
    )
    program = Program("merged", (sender, receiver), collective)
    schedule = lift(program, topology=taccl.topologies.fully_connected(2), chunk_size=CHUNK)
    assert (schedule.num_sends, schedule.finish_us) == (1, 10.5)


@pytest.mark.parametrize(("protocol", "finish_us"), [("Simple", 13.5), ("LL", 10.5)])
def test_queues_have_as_much_room_as_the_protocol_says(protocol, finish_us):
    """A send waits for room in its queue, of the size that the protocol has.

    Rank 1 receives nothing from rank 0 before 10.5 us, when rank 2's ten chunks have arrived. Four single
    chunks of rank 0 need 1.5 us each. With room for eight they have arrived by 6 us, and the ten chunks are
    last. With room for two, the third and the fourth go at 10.5 us, until 13.5 us.
    """
    collective = Collective("moves", 3, (Chunk((0,), (1,)),) * 4 + (Chunk((2,), (1,)),) * 10)
    singles = tuple(Step("send", Slot("input", i)) for i in range(4))
    taken = tuple(Step("receive", dst=Slot("output", i), depends=() if i else ((1, 0),)) for i in range(4))
    ten = Step("receive", dst=Slot("output", 4), count=10)
    program = Program(
        "room",
        (
            RankProgram(4, 0, 0, (Threadblock(singles, send_to=1),)),
            RankProgram(0, 14, 0, (Threadblock(taken, receive_from=0), Threadblock((ten,), receive_from=2))),
            RankProgram(10, 0, 0, (Threadblock((Step("send", Slot("input", 0), count=10),), send_to=1),)),
        ),
        collective,
        protocol=protocol,
    )
    schedule = lift(program, topology=taccl.topologies.fully_connected(3), chunk_size=CHUNK)
    assert schedule.finish_us == finish_us


def test_steps_wait_for_their_threadblock():
    """Steps of one threadblock follow each other, those of two threadblocks overlap.

    If one threadblock receives and then sends, the program takes the time of two sends; with two threadblocks
    it takes the time of one.
    """
    collective = make("allgather", 2)

    def rank(own, *blocks):
        copy = Threadblock((Step("copy", Slot("input", 0), Slot("output", own)),))
        return RankProgram(1, 2, 0, (*blocks, copy))

    send, first = Step("send", Slot("input", 0)), Step("receive", dst=Slot("output", 1))
    second = Step("receive", dst=Slot("output", 0))
    apart = rank(0, Threadblock((first,), receive_from=1), Threadblock((send,), send_to=1))
    after = rank(0, Threadblock((first, send), send_to=1, receive_from=1))
    other = rank(1, Threadblock((send,), send_to=0), Threadblock((second,), receive_from=0))
    topology = taccl.topologies.fully_connected(2)
    finishes = [
        lift(Program("order", (mine, other), collective), topology=topology, chunk_size=CHUNK).finish_us
        for mine in (apart, after)
    ]
    assert finishes == [1.5, 3.0]


def test_parallel_links_are_taken_in_turn():
    """Two channels between two ranks use both parallel links at the same time."""
    builder = TopologyBuilder("twins", [0, 0])
    for name in ("a", "b"):
        builder.add_link(0, 1, alpha_us=0.5, beta_us_per_mb=20, name=name)
    collective = Collective("moves", 2, (Chunk((0,), (1,)),) * 2)
    sender = RankProgram(
        2, 0, 0, tuple(Threadblock((Step("send", Slot("input", c)),), send_to=1, channel=c) for c in (0, 1))
    )
    receiver = RankProgram(
        0, 2, 0,
        tuple(Threadblock((Step("receive", dst=Slot("output", c)),), receive_from=0, channel=c) for c in (0, 1)),
    )  # fmt: skip
    schedule = lift(
        Program("twins", (sender, receiver), collective), topology=builder.build(), chunk_size=CHUNK
    )
    assert (schedule.link.tolist(), schedule.finish_us) == ([0, 1], 1.5)


@pytest.mark.parametrize("workers", [[2, 3], [2]])
def test_servers_update_sums_before_they_send_them(workers):
    """A lifted exchange includes the time that servers take to update sums, also those of one worker."""
    topology = taccl.topologies.fully_connected(4)
    collective = exchange(workers, [0, 1], num_ranks=4, update_us_per_mb=100)
    schedule = servers(taccl.make_problem(topology, collective, size_bytes="1MB"), cut=False)
    lifted = lift(lower(schedule), topology=topology, size="1MB")
    assert lifted.finish == schedule.finish > 50


@pytest.mark.parametrize(("size", "link"), [("1KB", 0), ("1MB", 1)])
def test_the_fastest_of_unequal_links_comes_first(size, link):
    """Of two links between two ranks, a program in one channel uses that of less time for its chunks."""
    builder = TopologyBuilder("unequal", [0, 0])
    builder.add_link(0, 1, alpha_us=1, beta_us_per_mb=50, name="short")
    builder.add_link(0, 1, alpha_us=2, beta_us_per_mb=5, name="wide")
    problem = taccl.make_problem(builder.build(), "broadcast", size_bytes=size, chunks_per_rank=1)
    schedule = taccl.baselines.pairwise(problem, cut=False)
    assert schedule.link.tolist() == [link]
    lifted = lift(lower(schedule), topology=problem.topology, size=size)
    assert (lifted.link.tolist(), lifted.finish) == ([link], schedule.finish)


def _unequal(sent_over):
    """Broadcast over two unequal links, of which the second is fast: a chunk over each of `sent_over`."""
    builder = TopologyBuilder("unequal", [0, 0])
    for beta in (30, 10):
        builder.add_link(0, 1, alpha_us=1, beta_us_per_mb=beta)
    problem = taccl.make_problem(
        builder.build(), "broadcast", chunk_bytes=10**6, chunks_per_rank=len(sent_over)
    )
    chunks = [*range(len(sent_over))]
    return exact_times(
        problem, sequence=chunks, chunk=chunks, link=sent_over, group=chunks, reduce=[False] * len(chunks),
        producer="hand",
    )  # fmt: skip


def test_unequal_links_keep_their_chunks():
    """If both links are used, their chunks keep them, though the slow link is used first."""
    schedule = _unequal([0, 1])
    lifted = lift(lower(schedule), topology=schedule.problem.topology, chunk_size="1MB")
    assert (lifted.link.tolist(), lifted.finish_us) == (schedule.link.tolist(), schedule.finish_us)


def test_a_slow_link_that_a_program_cannot_name_is_reported():
    """If only the slow link is used, the program's note says so, and the lifted schedule says what it assumes."""
    schedule = _unequal([0])
    with pytest.warns(LossyConversionWarning, match=r"slower of parallel links.* \(0->1\)"):
        program = lower(schedule)
    lifted = lift(program, topology=schedule.problem.topology, chunk_size="1MB")
    assert lifted.link.tolist() == [1]
    assert "of unequal parallel links the fastest are assumed (0->1)" in lifted.problem.notes[0]


def test_a_missing_link_is_named_by_its_ranks():
    """The error for a missing link names the ranks without it: 0 and 2 on a ring of four."""
    program = lower(schedule_of("alltoall", "fully-connected:4"))
    with pytest.raises(InputError, match=r"from rank 0 to rank 2, but ring:4 has no such link"):
        lift(program, topology=taccl.topologies.ring(4), size="1MB")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topology": "ring:5", "size": "1MB"}, "for 4 ranks, but ring:5 has 5"),
        ({"topology": "ring:4"}, "no size of its own"),
        ({"size": "1MB"}, "a program has no topology"),
        ({"topology": "ring:4", "size": "much"}, "found 'much'"),
    ],
)
def test_what_does_not_fit_is_refused(options, message):
    """Ranks, sizes and topologies that do not fit are refused in one sentence."""
    program = lower(schedule_of("allgather"))
    if "topology" in options:
        options = options | {"topology": taccl.topologies.parse(options["topology"])}
    with pytest.raises(InputError, match=message):
        lift(program, **options)


def test_an_unknown_collective_is_asked_for():
    """A program without a collective is refused, since its chunks are unknown."""
    program = replace(lower(schedule_of("allgather")), collective=None)
    with pytest.raises(InputError, match="collective is unknown"):
        lift(program, topology=taccl.topologies.ring(4), size="1MB")


def test_separate_contributions_are_named():
    """Rank 1 forwards rank 2's contribution and then its own: sends name their contributions."""
    contribution, scratch, total = Slot("input", 0), Slot("scratch", 0), Slot("output", 0)
    program = Program(
        "apart",
        (
            RankProgram(
                1, 1, 0,
                (
                    Threadblock((Step("copy", contribution, total),)),
                    Threadblock(
                        (
                            Step("receive-reduce", total, total, depends=((0, 0),)),
                            Step("receive-reduce", total, total),
                        ),
                        receive_from=1,
                    ),
                ),
            ),
            RankProgram(
                1, 0, 1,
                (
                    Threadblock((Step("receive", dst=scratch),), receive_from=2),
                    Threadblock((Step("send", scratch, depends=((0, 0),)), Step("send", contribution)), send_to=0),
                ),
            ),
            RankProgram(1, 0, 0, (Threadblock((Step("send", contribution),), send_to=1),)),
        ),
        make("reduce", 3, root=0),
    )  # fmt: skip
    assert taccl.interpret(program).ok
    schedule = lift(program, topology=taccl.topologies.fully_connected(3), chunk_size=CHUNK)
    assert sorted(schedule.contributions) == [(1,), (2,), (2,)]
    assert taccl.verify(schedule).ok


def test_whole_sums_travel_with_parts():
    """One send may carry a part of one sum together with another sum that is complete."""
    collective = Collective("sums", 2, (Chunk((0, 1), (1,), 1), Chunk((0,), (1,), 1)), combining=True)
    sender = RankProgram(2, 0, 0, (Threadblock((Step("send", Slot("input", 0), count=2),), send_to=1),))
    steps = (
        Step("receive", dst=Slot("scratch", 0), count=2),
        Step("copy", Slot("scratch", 0), Slot("output", 0), count=2),
        Step("reduce", Slot("input", 0), Slot("output", 0)),
    )
    receiver = RankProgram(1, 2, 2, (Threadblock(steps, receive_from=0),))
    program = Program("mixed", (sender, receiver), collective)
    schedule = lift(program, topology=taccl.topologies.fully_connected(2), chunk_size=CHUNK)
    assert [transfer.reduce for transfer in schedule] == [True, True]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "collective", "size"),
    [("ring", "allgather", "16MB"), ("recursive", "broadcast", "1MB"), ("pairwise", "alltoall", "1MB")],
)
def test_programs_take_as_long_as_baselines(name, collective, size):
    """Behind switches and shared NICs, programs and their schedules end within 10 % of each other."""
    problem = taccl.make_problem(taccl.topologies.dgx2(2), collective, size_bytes=size)
    schedule = taccl.baselines.baseline(name, problem, cut=False)
    lifted = lift(lower(schedule), topology=problem.topology, size=size)
    assert lifted.finish_us == pytest.approx(schedule.finish_us, rel=0.1)


@pytest.mark.parametrize(
    ("given", "where"), [(("pair.xml", "ring:4"), "program"), ((None, "ring:4"), "topology")]
)
def test_names_are_no_programs_and_no_topologies(given, where):
    """A name in place of a program or topology is refused."""
    program, topology = given[0] or lower(schedule_of("allgather")), given[1]
    with pytest.raises(InputError, match=r"expected a (program|topology)") as refused:
        lift(program, topology=topology, size="1MB")
    assert refused.value.where == where
