"""Lowering: moves, threadblocks, and correctness with queues of one chunk."""

import itertools

import pytest

import taccl
from taccl.errors import InputError, LossyConversionWarning
from taccl.formats.msccl.xml import dump_msccl_xml, parse_msccl_xml
from taccl.problem.chunks import Chunk, Derivation
from taccl.problem.collective import Collective
from taccl.problem.collectives import COLLECTIVES, allgather, broadcast, reduce
from taccl.problem.collectives import custom as custom_collective
from taccl.program.interpret import interpret
from taccl.program.lower import lower
from taccl.program.program import Slot, Step
from taccl.sketch.upstream import load_problem
from taccl.topology.builder import TopologyBuilder
from tests.effort import first_schedule
from tests.foreign import OURS
from tests.fuzzing import MANY, thinned
from tests.program.examples import program_of, schedule_of, timed
from tests.synthesis.small_problems import custom, linked, problem_of, ring

OPTIONS = [
    {"in_place": in_place, "threadblocks": threadblocks, "merged": merged, "instances": instances, **channels}
    for in_place, threadblocks, merged, instances, channels in itertools.product(
        (False, True), ("per-direction", "per-peer"), ("split", "pack"), (1, 2),
        ({}, {"channels": "round-robin", "num_channels": 2}),
    )
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["ring:4", "fully-connected:4", "ndv2"])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_every_collective_with_every_option(name, topology):
    """With every lowering option outputs are right, without races or deadlocks, if a queue holds a single
    chunk."""
    schedule = schedule_of(name, topology, chunks_per_rank=2)
    turn = [*COLLECTIVES].index(name) % 3
    for options in OPTIONS if MANY else OPTIONS[turn :: 3 if topology == "ring:4" else 9]:
        interpretation = interpret(lower(schedule, **options), capacity=1)
        assert interpretation.ok, (options, interpretation)
        assert interpretation.outputs_checked


TABLE = [
    ("allgather", "sk1-ndv2-n1", "topo-ndv2-1MB"), ("allgather", "sk1-ndv2-n2", "topo-ndv2-1MB"),
    ("allgather", "sk1-ndv2-n4", "topo-ndv2-1MB"), ("allgather", "sk1-dgx2-n1", "topo-dgx2-1MB"),
    ("allgather", "sk1-dgx2-n2", "topo-dgx2-1MB"), ("allgather", "sk2-dgx2-n2", "topo-dgx2-1KB"),
    ("alltoall", "sk1-ndv2-n2", "topo-ndv2-1MB"), ("alltoall", "sk2-ndv2-n2", "topo-ndv2-1KB"),
    ("alltoall", "sk2-dgx2-n2", "topo-dgx2-1KB"), ("alltoall", "sk1-dgx2-n2", "topo-dgx2-1MB"),
    ("allreduce", "sk1-ndv2-n2", "topo-ndv2-1MB"), ("allreduce", "sk1-dgx2-n2", "topo-dgx2-1MB"),
    ("reduce-scatter", "sk1-ndv2-n2", "topo-ndv2-1MB"),
]  # fmt: skip


OUR_TABLE = [
    ("allgather", "hub-n2", "hub-64KB"), ("alltoall", "hub-rails-n2", "hub-64KB"),
    ("allreduce", "hub-n3", "hub-64KB"), ("reduce-scatter", "three-n1", "three-by-hand"),
]  # fmt: skip


WAYS = ((False, "split"), (True, "pack"))


def assert_runs(folder, collective, sketch, topology, ways=WAYS):
    """Assert that a schedule runs correctly, in place and out of place, also from its MSCCL XML file."""
    problem = load_problem(
        folder / "sketch" / f"{sketch}.json", folder / "topo" / f"{topology}.json", collective=collective
    )
    schedule = first_schedule(problem)
    for in_place, merged in ways:
        program = lower(schedule, in_place=in_place, merged=merged)
        again = parse_msccl_xml(dump_msccl_xml(program))
        assert again.in_place == in_place
        interpret(again, capacity=1).raise_if_failed()


@pytest.mark.slow
@pytest.mark.parametrize(("collective", "sketch", "topology"), OUR_TABLE)
def test_schedules_of_our_files(collective, sketch, topology):
    """Lowered schedules for our files run correctly: on two and three nodes of two ranks, and on one of
    three."""
    assert_runs(OURS / "upstream-taccl", collective, sketch, topology)


@pytest.mark.slow
@pytest.mark.parametrize(("collective", "sketch", "topology"), thinned(TABLE, every=5))
def test_schedules_of_the_main_table(shared_data, collective, sketch, topology):
    """Programs for sketches and topologies of the published TACCL tool run correctly.

    A short run tries one of two sets of lowering options for each case, alternately.
    """
    ways = WAYS if MANY else WAYS[TABLE.index((collective, sketch, topology)) // 5 % 2 :: 2]
    assert_runs(shared_data / "upstream-taccl", collective, sketch, topology, ways)


@pytest.mark.parametrize(
    ("name", "collective"),
    [
        *((name, each) for name in ("ring", "tree", "recursive", "hierarchical")
          for each in ("allgather", "allreduce", "reduce-scatter")),
        ("pairwise", "alltoall"),
    ],
)  # fmt: skip
def test_baselines(name, collective):
    """Lowered baselines run correctly, even where ranks exchange partial sums."""
    topology = taccl.topologies.ndv2(2) if name == "hierarchical" else taccl.topologies.fully_connected(8)
    chunks = taccl.collectives.make(collective, topology.num_ranks)
    problem = taccl.make_problem(topology, chunks, chunk_bytes=1000)
    schedule = taccl.baselines.baseline(name, problem, cut=False)
    for in_place in (False, True):
        interpret(lower(schedule, in_place=in_place), capacity=1).raise_if_failed()


def test_an_allgather_in_place_copies_nothing():
    """In place, a rank's own chunk of an allgather needs no copy."""
    program = program_of("allgather", in_place=True)
    assert (program.num_copies, program.scratch_chunks) == (0, 0)


def test_two_ranks_by_hand():
    """Rank 0 copies its chunk to its output, sends it from its input, and receives rank 1's chunk in slot 1."""
    program = program_of("allgather", "ring:2")
    steps = {step for tb in program.ranks[0].threadblocks for step in tb.steps}
    assert steps == {
        Step("copy", Slot("input", 0), Slot("output", 0)),
        Step("send", Slot("input", 0)),
        Step("receive", None, Slot("output", 1)),
    }
    assert not any(step.depends for _, step in program.steps())


def merged_problem():
    """Four chunks from rank 0 to rank 1, two per send."""
    return problem_of(ring(2), custom(2, [([0], [1])] * 4), merging=frozenset({0}), max_merge=2)


def test_a_merged_send_of_neighbours_is_one_step():
    """A merged send of chunks that are adjacent at both ends is one step."""
    schedule = timed(
        merged_problem(), [(0, 0, 0, 0, False), (0, 1, 0, 0, False), (9, 2, 0, 1, False), (9, 3, 0, 1, False)]
    )
    program = lower(schedule)
    assert [step.count for _, step in program.steps()] == [2, 2, 2, 2]


def test_a_merged_send_of_others_is_split_or_packed():
    """Chunks 0 and 2 are not adjacent: two steps at each end, or one with two copies before and two after."""
    schedule = timed(
        merged_problem(), [(0, 0, 0, 0, False), (0, 2, 0, 0, False), (9, 1, 0, 1, False), (9, 3, 0, 1, False)]
    )
    with pytest.warns(LossyConversionWarning, match="^2 merged sends split into 4, as chunks are"):
        split = lower(schedule)
    packed = lower(schedule, merged="pack")
    assert [note for note in split.notes if note.endswith("merged='pack' packs them")]
    assert packed.notes == ()
    assert (split.num_copies, split.num_steps) == (0, 8)
    assert (packed.num_copies, packed.num_steps) == (8, 12)
    interpret(packed, capacity=1).raise_if_failed()


def test_long_steps_are_cut_evenly():
    """Steps of more chunks than the maximum are cut evenly: at most 3 chunks divide four into two and two."""
    schedule = timed(merged_problem(), [(0, c, 0, 0, False) for c in range(4)])
    assert [step.count for _, step in lower(schedule, max_count=3).steps()] == [2, 2, 2, 2]


def test_two_ranks_that_exchange_sums_keep_what_leaves():
    """In place, a contribution that arrives while the rank sends its own is added in scratch.

    The sum is copied to its place at the end.
    """
    collective = custom_collective(2, precondition={0: [0, 1]}, postcondition={0: [0, 1]}, combining=True)
    problem = taccl.make_problem(taccl.topologies.ring(2), collective, chunk_bytes=1000)
    program = lower(timed(problem, [(0, 0, 0, 0, True), (0, 0, 1, 1, True)]), in_place=True)
    assert (program.scratch_chunks, program.num_copies) == (1, 2)
    interpret(program, capacity=1).raise_if_failed()


def test_a_multicast_goes_to_each():
    """A multicast send becomes one send to each destination."""
    topology = linked("multicast", [0] * 3, [(0, (1, 2))], alpha_us=1, beta_us_per_mb=1)
    schedule = timed(problem_of(topology, broadcast(3)), [(0, 0, 0, 0, False)])
    with pytest.warns(
        LossyConversionWarning, match="1 of 1 sends are multicast or reduced by a switch"
    ) as warned:
        program = lower(schedule, in_place=True)
    assert program.notes == (str(warned[0].message),)
    assert warned[0].filename == __file__
    assert sorted(step.operation for _, step in program.steps()) == ["receive", "receive", "send", "send"]
    interpret(program).raise_if_failed()


@pytest.mark.filterwarnings("ignore::taccl.errors.LossyConversionWarning")
def test_a_reducing_switch_is_added_up_at_its_end():
    """An in-network reduction from two ranks becomes two messages, both added."""
    topology = linked("reducing", [0] * 3, [((0, 1), 2)], alpha_us=1, beta_us_per_mb=1)
    program = lower(timed(problem_of(topology, reduce(3, root=2)), [(0, 0, 0, 0, True)]))
    interpret(program).raise_if_failed()


@pytest.mark.filterwarnings("ignore::taccl.errors.LossyConversionWarning")
def test_a_reducing_switch_whose_sum_is_put_in_place():
    """If rank 2 contributes nothing, rank 0's message is stored, and rank 1's is added."""
    builder = TopologyBuilder("reducing", [0] * 3)
    builder.add_link((0, 1), 2, alpha_us=1, beta_us_per_mb=1)
    collective = custom_collective(3, precondition={0: [0, 1]}, postcondition={0: [2]}, combining=True)
    program = lower(timed(problem_of(builder.build(), collective), [(0, 0, 0, 0, False)]))
    received = [step.operation for _, step in program.steps() if step.operation.startswith("receive")]
    assert sorted(received) == ["receive", "receive-reduce"]
    interpret(program).raise_if_failed()


def test_parallel_links_have_channels_of_their_own():
    """Two links from rank 0 to rank 1 become two channels: the second chunk may arrive first."""
    topology = linked("parallel", [0, 0], [(0, 1, 1, 9), (0, 1, 1, 1)])
    problem = problem_of(topology, custom(2, [([0], [1])] * 2))
    program = lower(timed(problem, [(0, 0, 0, 0, False), (1, 1, 1, 1, False)]))
    assert program.num_channels == 2
    interpret(program).raise_if_failed()


def test_what_already_arrived_is_not_sent_again():
    """A chunk that arrives over both links is received once."""
    topology = linked("parallel", [0, 0], [(0, 1, 1, 9), (0, 1, 1, 1)])
    problem = problem_of(topology, custom(2, [([0], [1])]))
    assert lower(timed(problem, [(0, 0, 0, 0, False), (0, 0, 1, 1, False)])).num_steps == 2


def test_a_process_group_has_buffers_of_its_own():
    """In an allgather among ranks 3 and 1 of four the other ranks have no buffers."""
    topology = taccl.topologies.ring(4)
    collective = allgather(2).among([3, 1], num_ranks=4)
    problem = taccl.make_problem(topology, collective, chunk_bytes=1000)
    program = lower(first_schedule(problem))
    assert [rank.output_chunks for rank in program.ranks] == [0, 2, 0, 2]
    interpret(program, capacity=1).raise_if_failed()


@pytest.mark.parametrize(
    ("policy", "count", "expected"),
    [("single", 3, {0}), ("round-robin", 2, {0, 1}), ("by-chunk", 4, {0, 1, 2, 3}), ("by-peer", 2, {0, 1})],
)
def test_channels_by_name(policy, count, expected):
    """An allgather with two chunks per rank uses the expected channels under each policy."""
    topology = "fully-connected:4" if policy == "by-peer" else "ring:4"
    program = program_of("allgather", topology, chunks_per_rank=2, channels=policy, num_channels=count)
    used = {tb.channel for rank in program.ranks for tb in rank.threadblocks if tb.send_to is not None}
    assert used == expected
    interpret(program, capacity=1).raise_if_failed()


def test_one_threadblock_for_both_directions_halves_their_number():
    """A rank with three peers has six threadblocks, one per peer and direction, or three, one per peer."""
    counts = [
        program_of("allgather", "fully-connected:4", in_place=True, threadblocks=each).max_threadblocks
        for each in ("per-direction", "per-peer")
    ]
    assert counts == [6, 3]


@pytest.mark.parametrize(
    "options",
    [
        {"channels": "any"}, {"threadblocks": "one"}, {"merged": "never"}, {"num_channels": 0},
        {"max_count": 0}, {"instances": 0}, {"protocol": "simple"},
    ],
)  # fmt: skip
def test_unknown_options_are_named(options):
    """The error for an unknown option of `lower` starts with the option's name."""
    with pytest.raises(InputError) as caught:
        program_of("allgather", "ring:2", **options)
    assert caught.value.where == next(iter(options))


def test_chunks_of_several_sizes_are_refused():
    """Chunks of several sizes are refused, as a program has no sizes."""
    problem = problem_of(ring(2), custom(2, [([0], [1])] * 2), chunk_bytes=[1000, 2000])
    with pytest.raises(InputError, match="1000 to 2000 bytes"):
        lower(timed(problem, [(0, 0, 0, 0, False), (9, 1, 0, 1, False)]))


def test_a_schedule_with_holes_is_refused():
    """A schedule in which a chunk never arrives is refused."""
    problem = problem_of(ring(2), allgather(2))
    with pytest.raises(InputError, match="chunk 1 never arrives at rank 0; verify"):
        lower(timed(problem, [(0, 0, 0, 0, False)]))


@pytest.mark.parametrize("origin", [0, 1])
def test_what_is_made_of_what_arrives(origin):
    """Rank 1 derives chunk 1 from arrived chunk 0 and sends it; derivation from an initial chunk is refused."""
    chunks = (Chunk((origin,), ()), Chunk((), (1, 2)))
    problem = problem_of(ring(3), Collective("made", 3, chunks, True, derivations=(Derivation(0, 1, 1),)))
    schedule = first_schedule(problem)
    if origin == 0:
        assert interpret(lower(schedule)).ok
        return
    with pytest.raises(InputError, match="rank 1 derives chunk 1 from chunk 0, its own input"):
        lower(schedule)


def test_what_is_made_of_one_of_two_copies():
    """Ranks 0 and 2 hold copies of chunk 0, which count once in chunk 1 that rank 1 derives."""
    chunks = (Chunk((0, 2), ()), Chunk((), (1, 2)))
    problem = problem_of(ring(3), Collective("made", 3, chunks, True, derivations=(Derivation(0, 1, 1),)))
    assert interpret(lower(first_schedule(problem))).ok
