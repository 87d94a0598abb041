"""Queue capacity by message size: deadlocks that occur only above some size."""

import random
from dataclasses import replace

import pytest

import taccl
from taccl.errors import VerificationError
from taccl.program.checks import LIBRARIES, MAX_CHUNKS, NO_LIMIT, chunks_per_message, first_size
from taccl.program.execution import execute
from taccl.program.interpret import interpret
from taccl.program.program import Program, RankProgram, Slot, Step, Threadblock
from tests.fuzzing import cases
from tests.program.examples import exchange

MIB = 2**20


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_three_small_chunks_of_a_step_are_one_message(num_ranks):
    """Three small chunks of a step are one message, so the exchange runs with Simple's two slots.

    The limit for this is a total size of 192 KiB.
    """
    program = replace(exchange(3, num_ranks=num_ranks), sizes_bytes=(6144, 196_608))
    found = interpret(program)
    assert found.ok
    assert found.outputs_checked
    assert found.verdict == "ok for all sizes from 6KiB to 192KiB"


def test_three_large_chunks_of_a_step_are_three_messages():
    """Fewer chunks fit into a message as they grow, until the exchange needs more than two slots.

    Two chunks of up to 1 MiB fit into a message. Above 6 MiB in total, the exchange deadlocks.
    """
    found = interpret(exchange(3))
    assert not found.ok
    assert found.hangs_from == {"NCCL": 6 * MIB + 1, "RCCL": 6 * MIB + 1}
    (fault,) = found.faults
    assert fault.kind == "deadlock"
    assert (
        "hangs above 6MiB: 2 steps wait for each other: (rank 0, threadblock 0, step 0) waits for room"
        in (str(fault))
    )


def test_the_verdict_holds_for_the_sizes_of_the_program():
    """A program is valid if its largest size is the last without a deadlock, and invalid if it is one byte
    more."""
    program = exchange(3)
    assert interpret(replace(program, sizes_bytes=(MIB, 6 * MIB))).ok
    assert not interpret(replace(program, sizes_bytes=(MIB, 6 * MIB + 1))).ok


def test_the_limit_is_named_for_larger_sizes_too():
    """For sizes of 12 MiB alone the fault still names 6 MiB as the limit."""
    found = interpret(replace(exchange(3), sizes_bytes=(12 * MIB, 12 * MIB)))
    assert "hangs above 6MiB" in str(found.faults[0])
    assert set(found.hangs_from.values()) == {12 * MIB}


def test_a_program_that_hangs_at_some_sizes_has_its_outputs_checked():
    """Outputs are checked at a size without a deadlock."""
    found = interpret(exchange(3))
    assert found.outputs_checked
    assert found.num_steps == 4


def test_libraries_hang_above_different_sizes():
    """A program may deadlock above different sizes in NCCL and in RCCL.

    LL holds 8 messages: 9 single-chunk messages deadlock, above 288 KiB in NCCL and 144 KiB in RCCL.
    """
    found = interpret(exchange(9, "LL"))
    assert found.hangs_from == {"NCCL": 18 * 2**14 + 1, "RCCL": 18 * 2**13 + 1}
    assert "hangs above 288KiB with NCCL, above 144KiB with RCCL" in str(found.faults[0])


def test_steps_fill_a_queue_at_every_size():
    """Three steps are three messages at any size: a deadlock at all sizes, without a limit."""
    found = interpret(exchange(1, num_steps=3))
    assert str(found.faults[0]).startswith("deadlock: 2 steps wait for each other")
    assert set(found.hangs_from.values()) == {0}
    assert interpret(exchange(1, num_steps=2)).ok


@pytest.mark.parametrize(
    ("library", "protocol", "chunk_bytes", "expected"),
    [
        ("NCCL", "Simple", 2**21, 1), ("NCCL", "Simple", 2**20, 2), ("NCCL", "Simple", 2**20 + 1, 1),
        ("NCCL", "LL", 2**14, 2), ("RCCL", "LL", 2**14, 1), ("NCCL", "LL128", 288_000, 2),
        ("RCCL", "LL128", 25_088, 2), ("RCCL", "LL128", 25_089, 1), ("NCCL", "Simple", 1, MAX_CHUNKS),
        ("NCCL", "Simple", 2**30, 1),
    ],
)  # fmt: skip
def test_chunks_of_a_message(library, protocol, chunk_bytes, expected):
    """Number of chunks in a message: as many as fit into half the buffer (Simple) or a slot's payload.

    It is at least 1 and at most 71.
    """
    program = exchange(2, protocol)
    assert chunks_per_message(program, 4 * chunk_bytes, library) == expected


def test_broadcast_counts_with_a_single_slot():
    """A broadcast uses a single slot: two chunks of 256 KiB fill 512 KiB."""
    broadcast = taccl.collectives.broadcast(2, chunks_per_rank=4)
    program = Program("b", (RankProgram(4, 4, 0, ()),) * 2, broadcast)
    assert chunks_per_message(program, broadcast.size_chunks * 2**18, "NCCL") == 2


def test_first_size_is_the_smallest():
    """The smallest size at which only a given number of chunks fits is exact: at one byte less, one more
    fits."""
    for library, protocols in LIBRARIES.items():
        for protocol in protocols:
            program = exchange(5, protocol)
            for chunks in (1, 2, 3, 7, 70):
                size = first_size(program, chunks, library)
                assert chunks_per_message(program, size, library) <= chunks
                assert chunks_per_message(program, size - 1, library) > chunks


def random_program(seed):
    """A random program of two or three ranks with sends, receives and fused steps."""
    rng = random.Random(seed)
    num_ranks, size = rng.choice((2, 3)), 8
    steps = {}
    slot = Slot("scratch", 0)
    for _ in range(rng.randint(1, 6)):
        src = rng.randrange(num_ranks)
        path = [(src + i) % num_ranks for i in range(rng.randint(2, num_ranks))]
        count, channel = rng.randint(1, size), rng.randint(0, 1)
        for place, rank in enumerate(path):
            operation = "receive-send" if 0 < place < len(path) - 1 else "receive" if place else "send"
            step = Step(
                operation, slot if operation == "send" else None, slot if operation != "send" else None, count
            )
            own = steps.setdefault((rank, channel), [])
            # Steps mostly in order of messages; sometimes one is moved to the front, which may deadlock.
            own.insert(0 if rng.random() < 0.15 else len(own), step)
    ranks = [
        RankProgram(
            0,
            0,
            size,
            tuple(
                Threadblock(tuple(own), (rank + 1) % num_ranks, (rank - 1) % num_ranks, channel)
                for (at, channel), own in sorted(steps.items())
                if at == rank
            ),
        )
        for rank in range(num_ranks)
    ]
    return Program(f"random-{seed}", tuple(ranks), protocol=rng.choice(("Simple", "LL")))


@pytest.mark.fuzz
def test_more_chunks_a_message_never_hang():
    """A program without a deadlock for some number of chunks per message has none for larger numbers."""
    turned = 0
    for seed in cases("queues by size", few=150, many=5000):
        program = random_program(seed)
        faults = interpret(program).faults
        if any(fault.kind == "queue" and fault.steps for fault in faults):
            continue
        for capacity in (1, 2):
            runs = [execute(program, capacity=capacity, chunks=n).stuck is None for n in range(1, 9)]
            assert runs == sorted(runs), (seed, capacity)
            turned += not runs[0] and runs[-1]
    assert turned


def test_lifting_judges_the_size_that_is_asked_for():
    """A program that deadlocks at large sizes is lifted at a small size and refused at a large one."""
    program = replace(exchange(3), sizes_bytes=(0, NO_LIMIT))
    topology = taccl.topologies.fully_connected(2)
    assert taccl.lift(program, topology=topology, size="6MiB").finish_us > 0
    assert taccl.lift(program, topology=topology, chunk_size="1MiB").finish_us > 0
    with pytest.raises(VerificationError, match="hangs above 6MiB"):
        taccl.lift(program, topology=topology, size="12MiB")
