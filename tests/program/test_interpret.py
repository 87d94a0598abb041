"""The interpreter accepts valid programs and names each kind of fault."""

import random
from dataclasses import replace

import pytest

from taccl.errors import VerificationError
from taccl.problem.collectives import custom
from taccl.program import execution
from taccl.program.interpret import interpret
from taccl.program.program import Program, RankProgram, Slot, Step, StepAddress, Threadblock
from tests.program.examples import edited, kinds, program_of, with_steps


def find(program, operation, *, depends=False):
    """Address of the first step with an operation, and with a dependency if requested."""
    return next(
        address
        for address, step in program.steps()
        if step.operation == operation and (step.depends or not depends)
    )


def step_at(program, address):
    return program.ranks[address.rank].threadblocks[address.threadblock].steps[address.step]


def test_every_dependency_of_an_allgather_is_needed():
    """Removing a send's dependency on its data is a race; both steps are named."""
    program = program_of("allgather", "ring:5")
    waiting = [address for address, step in program.steps() if step.depends]
    assert waiting
    for address in waiting:
        (t, s), *rest = step_at(program, address).depends
        interpretation = interpret(edited(program, *address, depends=tuple(rest)))
        pairs = {frozenset(fault.steps) for fault in interpretation.faults if fault.kind == "race"}
        assert frozenset((StepAddress(address.rank, t, s), address)) in pairs


@pytest.mark.slow
def test_overwriting_too_early_is_a_race():
    """Reusing scratch while a send may still read it is a race."""
    program = program_of("alltoall", "ring:6")
    found = False
    for address, step in program.steps():
        if step.operation == "receive" and step.depends:
            found = True
            assert "race" in kinds(interpret(edited(program, *address, depends=())))
    assert found


def test_an_order_through_another_rank_counts():
    """Two steps of a rank may be ordered by messages through another rank, in place of a dependency.

    If rank 1 answers a message, the answer may overwrite the slot that was sent.
    """
    send, receive = Step("send", Slot("output", 0)), Step("receive", None, Slot("output", 0))
    ranks = (
        RankProgram(0, 1, 0, (Threadblock((send,), send_to=1), Threadblock((receive,), receive_from=1))),
        RankProgram(0, 1, 0, (Threadblock((receive, send), send_to=0, receive_from=0),)),
    )
    assert interpret(Program("answer", ranks)).ok
    reversed_order = Threadblock((send, receive), send_to=0, receive_from=0)
    spoiled = Program("answer", (ranks[0], replace(ranks[1], threadblocks=(reversed_order,))))
    assert kinds(interpret(spoiled)) == {"race"}


def test_the_order_across_ranks_is_evaluated_only_if_needed(monkeypatch):
    """Lowered programs order the accesses of each rank by its own steps, so the order of all steps is not
    evaluated, which takes far longer."""
    asked = []
    monkeypatch.setattr(execution, "unordered", lambda events: asked.append(len(events)) or iter(()))
    for collective in ("allgather", "allreduce", "alltoall"):
        assert interpret(program_of(collective, "ring:4")).ok
    assert not asked


def random_events(draw):
    """Up to 12 events, each after some earlier ones, that read and write up to three places."""
    events, group = [], 0
    for number in range(draw.randint(2, 12)):
        is_same = number > 0 and draw.random() < 0.3
        group += not is_same
        after = {*draw.sample(range(number), min(number, draw.randint(0, 2)))}
        kinds = [[place for place in range(3) if draw.random() < share] for share in (0.3, 0.2)]
        reads, writes = (events[-1].reads, events[-1].writes) if is_same else kinds
        earlier = [(each, place) for each in range(number) for place in events[each].reads]
        received = frozenset(draw.sample(earlier, min(len(earlier), draw.randint(0, 1))))
        events.append(execution.Event(group, after, reads, writes, received))
    return events


def has_race(events):
    """True if two conflicting accesses to a place are unordered, by the closure of the order."""
    before, ended = [], []
    for event in events:
        before.append(event.after.union(*(before[each] for each in event.after)))
        ended.append(event.received.union(*(ended[each] for each in event.after)))
    return any(
        (place in first.writes or place in second.writes)
        and number not in before[later]
        and (place in first.writes or (number, place) not in ended[later])
        for later, second in enumerate(events)
        for number, first in enumerate(events[:later])
        if first.by != second.by
        for place in {*first.reads, *first.writes} & {*second.reads, *second.writes}
    )


def test_races_are_those_of_the_closure():
    """A race is found if and only if the transitive closure of the order leaves a conflicting pair out."""
    verdicts = set()
    for seed in range(300):
        events = random_events(random.Random(seed))
        race = next(execution.unordered(events), None)
        assert (race is not None) == has_race(events), seed
        verdicts.add(race is None)
    assert verdicts == {False, True}


def test_two_threadblocks_that_wait_for_each_other():
    """Two ranks that receive before they send are a deadlock, which is reported from its lowest step on."""
    program = program_of("allgather", "ring:2", in_place=True, threadblocks="per-peer")
    for rank in (0, 1):
        first, second = program.ranks[rank].threadblocks[0].steps
        if first.operation == "send":
            program = with_steps(program, rank, 0, (second, first))
    (fault,) = interpret(program).faults
    assert fault.kind == "deadlock"
    assert fault.steps == (StepAddress(0, 0, 0), StepAddress(1, 0, 0))
    assert (
        "2 steps wait for each other: (rank 0, threadblock 0, step 0) waits for a chunk from rank 1"
        in str(fault)
    )


def test_dependencies_in_a_circle():
    """A dependency cycle between two threadblocks is a deadlock."""
    copy = Step("copy", Slot("input", 0), Slot("output", 0))
    blocks = (
        Threadblock((replace(copy, depends=((1, 0),)),)),
        Threadblock((replace(copy, depends=((0, 0),)),)),
    )
    (fault,) = interpret(Program("circle", (RankProgram(1, 1, 0, blocks),))).faults
    assert (fault.kind, fault.steps) == ("deadlock", (StepAddress(0, 0, 0), StepAddress(0, 1, 0)))


def test_queues_hold_only_so_much():
    """Two ranks send three chunks before they receive: a deadlock under Simple (two slots), not LL (eight)."""
    sends = tuple(Step("send", Slot("input", i)) for i in range(3))
    receives = tuple(Step("receive", None, Slot("output", i)) for i in range(3))
    ranks = tuple(RankProgram(3, 3, 0, (Threadblock(sends + receives, 1 - r, 1 - r),)) for r in (0, 1))
    (fault,) = interpret(Program("full", ranks)).faults
    assert fault.steps == (StepAddress(0, 0, 2), StepAddress(1, 0, 2))
    assert "waits for room" in str(fault)
    assert interpret(Program("full", ranks, protocol="LL")).ok
    assert not interpret(Program("full", ranks, protocol="LL"), capacity=2).ok


def test_a_dropped_send_leaves_its_receiver_waiting():
    """A missing send is reported with both counts and the waiting step."""
    program = program_of("allgather", "ring:3")
    address = find(program, "send")
    steps = program.ranks[address.rank].threadblocks[address.threadblock].steps
    interpretation = interpret(with_steps(program, address.rank, address.threadblock, steps[:-1]))
    assert {"queue", "deadlock"} <= kinds(interpretation)
    assert any("never sent" in fault.message for fault in interpretation.faults)


def test_swapped_receives_are_wrong_output():
    """Two receives with swapped slots are reported with rank, chunk and content."""
    program = program_of("allgather", "ring:2", chunks_per_rank=2, in_place=True)
    address = find(program, "receive")
    first, second = program.ranks[0].threadblocks[address.threadblock].steps[:2]
    spoiled = with_steps(program, 0, address.threadblock, (second, first))
    faults = interpret(spoiled).faults
    assert {(fault.kind, fault.rank, fault.chunk) for fault in faults} == {("output", 0, 2), ("output", 0, 3)}
    assert "should hold chunk 2, and holds chunk 3" in str(faults[0])


def test_wrong_slots_are_wrong_output():
    """A chunk received into a wrong slot is a fault of the output, as the right slot keeps its old data."""
    program = program_of("allgather", "ring:2")
    address = find(program, "receive")
    other = Slot("output", 1 - step_at(program, address).dst.offset)
    assert "output" in kinds(interpret(edited(program, *address, dst=other)))


@pytest.mark.parametrize("change", ["dropped", "doubled"])
def test_reductions_dropped_or_doubled(change):
    """A missing or repeated contribution is named with its rank."""
    program = program_of("reduce", "ring:2")
    address = find(program, "receive-reduce")
    step = step_at(program, address)
    if change == "dropped":
        program = edited(program, *address, operation="receive", src=None)
        words = "the sum without the contribution of rank 0"
    else:
        extra = Step("reduce", Slot("input", 0), step.dst)
        program = with_steps(program, 0, address.threadblock, (step, extra))
        words = "the sum with the contribution of rank 0 counted twice"
    (fault,) = interpret(program).faults
    assert (fault.kind, fault.rank, fault.chunk) == ("output", 0, 0)
    assert words in fault.message


def test_an_overwritten_input_is_named():
    """Out of place, a write to the input is a fault."""
    program = program_of("allgather", "ring:2")
    mine = program.ranks[0]
    extra = Threadblock((Step("copy", Slot("output", 1), Slot("input", 0)),))
    ranks = (replace(mine, threadblocks=(*mine.threadblocks, extra)), program.ranks[1])
    assert "input" in kinds(interpret(replace(program, ranks=ranks)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dst": Slot("output", 9)}, "writes chunks 9 to 9 of output, which holds 2"),
        ({"dst": Slot("heap", 0)}, "buffer 'heap'"),
        ({"dst": None}, "writes nothing"),
        ({"count": 0}, "count of 0"),
        ({"count": 3, "dst": Slot("output", 0)}, "chunks 0 to 2"),
        ({"operation": "put"}, "no such operation"),
        ({"operation": "send", "src": Slot("output", 0)}, "sends to no rank"),
        ({"depends": ((7, 0),)}, "depends on threadblock 7"),
        ({"depends": ((0, 7),)}, "depends on step 7 of threadblock 0"),
    ],
)
def test_steps_that_cannot_run(changes, words):
    """A step that cannot run is named, and nothing is executed."""
    program = program_of("allgather", "ring:2")
    address = find(program, "receive")
    interpretation = interpret(edited(program, *address, **changes))
    assert interpretation.num_steps == 0
    (fault,) = [each for each in interpretation.faults if each.kind == "step"]
    assert (fault.steps, words in fault.message) == ((address,), True)


def test_a_shared_queue_is_refused():
    """Two threadblocks of a rank that send to one peer over one channel are refused."""
    program = program_of("allgather", "ring:2")
    mine = program.ranks[0]
    sender = next(tb for tb in mine.threadblocks if tb.send_to is not None)
    ranks = (replace(mine, threadblocks=(*mine.threadblocks, replace(sender, steps=()))), program.ranks[1])
    (fault,) = interpret(replace(program, ranks=ranks)).faults
    assert fault.kind == "queue"
    assert "all send from rank 0 to rank 1 over channel 0" in fault.message


def test_without_a_collective_outputs_are_not_judged():
    """Without a collective, deadlocks and races are checked, but not outputs."""
    program = replace(program_of("allgather", "ring:2"), collective=None)
    address = find(program, "receive")
    wrong = edited(program, *address, dst=Slot("output", 0))
    interpretation = interpret(wrong)
    assert not interpretation.outputs_checked
    assert kinds(interpretation) == {"race"}


def test_buffers_must_be_large_enough():
    """An output buffer that is too small is refused."""
    program = program_of("broadcast", "ring:2")
    ranks = (replace(program.ranks[0], input_chunks=0, threadblocks=()), program.ranks[1])
    assert "the input of rank 0 holds 0 chunks; expected 1" in str(interpret(replace(program, ranks=ranks)))


def test_failed_programs_raise():
    """`raise_if_failed` gives the number of faults by kind, and lists them."""
    program = program_of("allgather", "ring:2")
    interpret(program).raise_if_failed()
    wrong = edited(program, *find(program, "receive"), dst=Slot("output", 0))
    with pytest.raises(
        VerificationError, match=r"the program has 2 faults \(race 1, output 1\)|output 2"
    ) as caught:
        interpret(wrong).raise_if_failed()
    assert caught.value.violations


def test_all_operations():
    """All operations on a ring of three: rank 1 adds and forwards, rank 2 adds, stores and forwards.

    Each rank contributes to one chunk, and rank 1 ends with the sum that rank 0 forwards.
    """
    one = Slot("input", 0)
    out = Slot("output", 0)
    nop = Step("nop")
    ranks = (
        RankProgram(1, 1, 0, (Threadblock((Step("send", one), Step("receive-send", None, out)), 1, 2),)),
        RankProgram(
            1, 1, 0, (Threadblock((nop, Step("receive-reduce-send", one), Step("receive", None, out)), 2, 0),)
        ),
        RankProgram(1, 1, 0, (Threadblock((Step("receive-reduce-copy-send", one, out),), 0, 1),)),
    )
    sums = custom(3, precondition={0: [0, 1, 2]}, postcondition={0: [0, 1, 2]}, combining=True)
    interpretation = interpret(Program("ring", ranks, sums), capacity=1)
    assert interpretation.ok
    assert interpretation.num_steps == 6
