"""The checker of MSCCL++ plans finds faults by their effect under the executor."""

import copy
import json

import pytest

import taccl
from taccl.errors import FormatError, VerificationError
from taccl.formats.mscclpp import executor
from taccl.formats.mscclpp.executor import run_plan
from taccl.formats.mscclpp.plan import build_mscclpp_plan, text_of_plan
from tests.program.examples import program_of


def plan_of(name="allgather", **options):
    """Plan of four ranks on two nodes, or with packets within one node."""
    program = program_of(name, "ring:4", chunks_per_rank=2, **options)
    return build_mscclpp_plan(program, ranks_per_node=4 if options.get("protocol") == "LL" else 2)


def without(plan, name):
    """Plans that each lack one of rank 0's operations of the given name."""
    spoiled = []
    for t, threadblock in enumerate(plan["gpus"][0]["threadblocks"]):
        for s, op in enumerate(threadblock["ops"]):
            if op["name"] == name:
                other = copy.deepcopy(plan)
                del other["gpus"][0]["threadblocks"][t]["ops"][s]
                spoiled.append(other)
    return spoiled


def check_lost(plan, name, kind=None):
    """Check that a plan without any one of rank 0's operations of a name is refused, as a fault of a kind."""
    spoiled = without(plan, name)
    assert spoiled
    for each in spoiled:
        with pytest.raises(VerificationError, match=kind):
            run_plan(each)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("signal", "deadlock"), ("wait", None), ("put", None), ("re", None), ("sem_release", "deadlock"),
        ("sem_acquire", None),
        # Without a nop, threads run ahead of the thread that waits or signals.
        pytest.param("nop", "race", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_lost_operations_are_found(name, kind):
    """Removing any operation of a reduce-scatter gives a deadlock, a wrong result or a race."""
    check_lost(plan_of("reduce-scatter"), name, kind)


def test_a_lost_flush_is_a_race_with_the_user():
    """Without a flush a NIC may still read a buffer that the user overwrites."""
    plan = plan_of("allgather", in_place=True)
    (spoiled, *_) = without(plan, "flush")
    with pytest.raises(VerificationError, match="race.*caller"):
        run_plan(spoiled)


def test_a_flush_without_destination_does_nothing():
    """A flush without destinations has no effect: the executor flushes as many channels as destinations."""
    plan = plan_of("allgather", in_place=True)
    for gpu in plan["gpus"]:
        for threadblock in gpu["threadblocks"]:
            for op in threadblock["ops"]:
                if op["name"] == "flush":
                    del op["dst_buff"]
    with pytest.raises(VerificationError, match="race"):
        run_plan(plan)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["upkt", "repkt", "ppkt", "nop", "sem_acquire"])
def test_lost_operations_of_packets_are_found(name):
    """Removing an operation of a packet plan is found, too."""
    check_lost(plan_of("allreduce", protocol="LL"), name)


@pytest.mark.parametrize(("field", "value"), [("index", 1), ("index", 99), ("size", 2), ("type", "i")])
def test_wrong_places_are_found(field, value):
    """Wrong chunks, indices past the buffer, wrong counts and wrong buffers are found."""
    plan = plan_of("allgather")
    put = next(
        op for tb in plan["gpus"][0]["threadblocks"] for op in tb["ops"]
        if op["name"] == "put" and op["src_buff"][0]["type"] == "o" and op["src_buff"][0]["index"] != 1
    )  # fmt: skip
    put["src_buff"][0][field] = value
    with pytest.raises(VerificationError):
        run_plan(plan)


@pytest.mark.slow
def test_unwritten_scratch_is_no_chunk():
    """Unwritten scratch is not mistaken for a chunk of the rank."""
    plan = build_mscclpp_plan(program_of("allreduce", "fully-connected:2"))
    for gpu in plan["gpus"]:
        gpu["scratch_chunks"] += 8
        for op in (op for tb in gpu["threadblocks"] for op in tb["ops"]):
            for source in op.get("src_buff", ()):
                source["type"] = source["type"].replace("i", "s")
    with pytest.raises(VerificationError, match="output: .* wrong"):
        run_plan(plan, races=False)


def test_signals_of_swapped_channels_are_found():
    """Exchanging two channels in a threadblock's list is found."""
    plan = build_mscclpp_plan(program_of("allgather", "ring:4", chunks_per_rank=2), ranks_per_node=4)
    threadblocks = [tb for tb in plan["gpus"][0]["threadblocks"] if tb["channels"]]
    first, second = (tb["channels"][0] for tb in threadblocks[:2])
    first["channel_ids"], second["channel_ids"] = second["channel_ids"], first["channel_ids"]
    with pytest.raises(VerificationError):
        run_plan(plan)


def test_a_superfluous_signal_is_found():
    """A superfluous signal is found, as it breaks the next call."""
    plan = plan_of("allgather")
    ops = next(tb["ops"] for tb in plan["gpus"][0]["threadblocks"] if tb["ops"][-1]["name"] == "signal")
    ops.append(ops[-1])
    with pytest.raises(VerificationError, match="too many"):
        run_plan(plan)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda plan: plan.pop("gpus"), "expected one for each rank"),
        (lambda plan: plan["gpus"].reverse(), "expected them in order"),
        (lambda plan: plan["gpus"][0].update(input_chunks=0), "at least one each"),
        (
            lambda plan: plan["gpus"][0]["threadblocks"][0]["ops"].append({"name": "gstore"}),
            "found operation 'gstore'",
        ),
        (lambda plan: plan["gpus"][0]["threadblocks"][0]["ops"].extend([{"name": "nop"}] * 65), "at most 64"),
        (lambda plan: plan["gpus"][0]["threadblocks"][0].update(id=7), "found id 7"),
        (lambda plan: plan["gpus"][0]["threadblocks"][0].update(channels=3), "expected an MSCCL"),
        (lambda plan: plan["gpus"].append(3), "expected an MSCCL"),
        (lambda plan: plan["gpus"][0].update(scratch_chunks=10**9), "found 1000000000 chunks in a buffer"),
        (
            lambda plan: plan["gpus"][0].update(semaphores=[{"init_value": 10**9}]),
            "found a semaphore of gpu 0 that begins at 1000000000",
        ),
        (
            lambda plan: plan["gpus"][0]["threadblocks"][0]["ops"][0].update(
                tbg_info={"tb_id": 0, "tbg_size": 0}
            ),
            "found tb_id 0 in a group of 0 threadblocks",
        ),
        (
            lambda plan: plan["gpus"][0]["threadblocks"][0]["ops"].append(
                {"name": "copy", "src_buff": [], "dst_buff": []}
            ),
            "expected an MSCCL",
        ),
    ],
)
def test_what_is_no_plan_is_refused(spoil, words):
    """A damaged plan is refused with a message, not a traceback."""
    plan = plan_of()
    spoil(plan)
    with pytest.raises(FormatError, match=words):
        run_plan(plan)


@pytest.mark.parametrize(
    ("name", "spoil", "words"),
    [
        ("signal", lambda op: op.update(channel_ids=[99]), "memory channel 99; threadblock . has "),
        ("signal", lambda op: op.update(channel_ids=[-1]), "memory channel -1"),
        ("put", lambda op: op["dst_buff"][0].update(buffer_id=9), "remote buffer 9; threadblock . has "),
        (
            "put",
            lambda op: op.pop("src_buff"),
            r"no field 'src_buff' in operation \d+ \(put\) of threadblock",
        ),
    ],
)
def test_a_wrong_index_or_field_of_an_operation_is_named(name, spoil, words):
    """An operation that names a missing channel or buffer, or lacks a field, is named with its place."""
    plan = plan_of("allgather")
    ops = (op for tb in plan["gpus"][0]["threadblocks"] for op in tb["ops"])
    spoil(next(op for op in ops if op["name"] == name))
    with pytest.raises((FormatError, VerificationError), match=words):
        run_plan(plan)


def test_a_waiting_threadblock_is_asked_again_only_once_its_signal_has_come(monkeypatch):
    """In an exchange among 8 ranks, checks of what an operation waits for number at most 1.4 per operation.

    If every pass asked every waiting threadblock, there would be 1.7.
    """
    problem = taccl.make_problem(taccl.topologies.dgx_h100(), "allreduce", size_bytes="2MB")
    plan = build_mscclpp_plan(taccl.lower(taccl.baselines.pairwise(problem, cut=False)))
    asked, awaited = [], executor._PlanRun._awaited
    monkeypatch.setattr(executor._PlanRun, "_awaited", lambda *given: asked.append(1) or awaited(*given))
    assert run_plan(plan)
    operations = sum(len(block["ops"]) for gpu in plan["gpus"] for block in gpu["threadblocks"])
    assert len(asked) <= 1.4 * operations


def test_the_text_of_a_plan_has_a_line_per_gpu():
    """A plan's file holds the plan, with one line for each field and each of four GPUs."""
    plan = plan_of("allgather")
    text = text_of_plan(plan)
    assert json.loads(text) == plan
    assert len(text.splitlines()) == len(plan) - 1 + 4 + 4
