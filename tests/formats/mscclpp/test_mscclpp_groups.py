"""Plans whose threadblocks share operations, meet at barriers, repeat operations, or send packets by NICs."""

import copy

import pytest

from taccl.errors import FormatError, VerificationError
from taccl.formats.mscclpp.executor import run_plan
from taccl.formats.mscclpp.slices import finer_plans
from tests.formats.mscclpp.test_mscclpp_operations import BEGIN, END, op, own, plan_of, there


def barrier(size, number=0):
    """Barrier of `size` threadblocks."""
    return {"name": "barrier", "barrier_id": number, "num_threadblocks": size}


def shared(operation, number, size):
    """Share of an operation of a group of `size` threadblocks."""
    return operation | {"tbg_info": {"tb_id": number, "tbg_size": size}}


def grouped(size=3):
    """Allgather in which a group of threadblocks puts a chunk, and the first one signals."""

    def blocks(r):
        put = op("put", [own("o", r)], [there(r)])
        others = [[barrier(size), shared(put, t, size), barrier(size)] for t in range(1, size)]
        return [[*BEGIN, barrier(size), shared(put, 0, size), barrier(size), *END[1:]], *others]

    return plan_of("allgather", blocks, "o", inputs=1)


def pipelined(num_chunks=1):
    """Allgather in which one threadblock puts a chunk unit by unit, and another signals each of them."""

    def repeated(*ops):
        return {
            "name": "pipeline",
            "iter_context": {"unit_size": 64, "num_chunks": num_chunks},
            "ops": [*ops],
        }

    semaphores = {"semaphore_ids": [0]}
    put = op("put", [own("o", 0)], [there(0)])

    def blocks(r):
        put["src_buff"][0]["index"] = put["dst_buff"][0]["index"] = r
        return [
            [
                *BEGIN,
                repeated(copy.deepcopy(put), op("nop"), {"name": "sem_release"} | semaphores, op("nop")),
            ],
            [repeated({"name": "sem_acquire"} | semaphores, op("signal"), op("wait"))],
        ]

    plan = plan_of("allgather", blocks, "o", inputs=1)
    for gpu in plan["gpus"]:
        gpu["semaphores"] = [{"init_value": 0}]
    return plan


def by_nic(name="rppkt"):
    """Allgather in which each rank makes packets of its chunk, which its NIC sends."""
    send = {"name": name, "src_buff": [own("s", 0)], "dst_buff": [there(1)], "channel_ids": [0]}
    blocks = [op("cpkt", [own("o", 0)], [own("s", 0)]), op("nop"), send | {"channel_type": "port"}]
    plan = plan_of("allgather", lambda _: [blocks, []], "s", inputs=1, packed=True)
    for r, gpu in enumerate(plan["gpus"]):
        gpu["threadblocks"][0]["ops"][0]["src_buff"][0]["index"] = r
        gpu["threadblocks"][1]["ops"] = [op("upkt", [own("s", 1)], [own("o", 1 - r)])]
        for kinds in (gpu["channels"][0], gpu["threadblocks"][0]["channels"][0]):
            kinds["channel_type"] = "port"
        gpu["remote_buffers"][0]["access_channel_types"] = ["port"]
        gpu["threadblocks"][0]["remote_buffer_refs"][0]["access_channel_type"] = "port"
    return plan


def ops_of(plan, block=0):
    """Operations of one threadblock of rank 0."""
    return plan["gpus"][0]["threadblocks"][block]["ops"]


def test_groups_share_operations_between_barriers():
    """A group of three puts a chunk in thirds, also if the chunk does not divide evenly."""
    assert run_plan(grouped())
    assert [units for units, _ in finer_plans(grouped())] == [3, 5]
    (_, finer), (_, uneven) = finer_plans(grouped())
    sizes = [
        [tb["ops"][-2]["src_buff"][0]["size"] for tb in p["gpus"][0]["threadblocks"][1:]]
        for p in (finer, uneven)
    ]
    assert sizes == [[1, 1], [2, 1]]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda plan: ops_of(plan, 1).pop(), r"deadlock: .*barrier"),
        (lambda plan: ops_of(plan, 1)[1]["tbg_info"].update(tb_id=2), r"race|output: "),
        (lambda plan: ops_of(plan, 1).pop(1), r"output: 1 chunk of gpu 1 wrong, .* \(with 3 units per chunk\)"),
        (lambda plan: ops_of(plan, 1)[2].update(num_threadblocks=2), "barrier 0 is for . threadblocks here"),
        (lambda plan: [tb["ops"].remove(barrier(3)) for tb in plan["gpus"][0]["threadblocks"]], "race: nothing orders"),
        (lambda plan: [tb["ops"].reverse() for tb in plan["gpus"][0]["threadblocks"][1:]] and ops_of(plan).pop(-3), "race|deadlock"),
    ],
    ids=["absent", "same share", "no share", "other size", "too early", "too late"],
)  # fmt: skip
def test_faults_of_groups_are_found(spoil, words):
    """Missing barriers, missing and equal shares, and barriers of other sizes are faults."""
    plan = grouped()
    spoil(plan)
    with pytest.raises(VerificationError, match=words):
        run_plan(plan)


def test_many_unlike_groups_are_refused():
    """Groups whose sizes have a large common multiple would need too many units."""
    plan = grouped()
    for number, each in enumerate((16, 17)):
        ops_of(plan, number + 1)[1]["tbg_info"]["tbg_size"] = each
    with pytest.raises(FormatError, match=r"groups of 3, 16, 17 threadblocks \(tbg_info\)"):
        run_plan(plan)


def test_pipelines_repeat_their_operations():
    """Each iteration handles one unit; operations are numbered with their place in the pipeline."""
    assert run_plan(pipelined())
    plan = pipelined()
    del ops_of(plan)[3]["ops"][1]  # the nop, up to which all threads have written
    with pytest.raises(VerificationError, match=r"race: .*operation 3\.0 \(put\)"):
        run_plan(plan)
    with pytest.raises(
        VerificationError, match="the pipeline is longer than the chunks of its operation 'put'"
    ):
        run_plan(pipelined(num_chunks=2))


def test_pipelines_that_cannot_be_checked_are_named():
    """Pipelines in pipelines, with shared operations, or with reused scratch are refused."""
    with pytest.raises(FormatError, match="found a pipeline with reuse_resources"):
        run_plan(pipelined() | {"reuse_resources": True})
    plan = pipelined()
    ops_of(plan)[3]["ops"][0]["tbg_info"] = {"tb_id": 0, "tbg_size": 2}
    with pytest.raises(FormatError, match="operation 'put' in a pipeline, which several threadblocks share"):
        run_plan(plan)
    plan = pipelined()
    ops_of(plan)[3]["ops"].append(copy.deepcopy(ops_of(plan)[3]))
    with pytest.raises(FormatError, match="found a pipeline in a pipeline"):
        run_plan(plan)


@pytest.mark.parametrize("name", ["rppkt", "ppkt"])
def test_nics_send_packets(name):
    """A NIC sends packets of its rank; `rppkt` waits for them, and `ppkt` needs a barrier of threads."""
    assert run_plan(by_nic(name))
    plan = by_nic(name)
    del ops_of(plan)[1]
    if name == "rppkt":
        assert run_plan(plan)
    else:
        with pytest.raises(VerificationError, match=r"race: nothing orders .*\(ppkt\).*\(cpkt\)"):
            run_plan(plan)


def test_packets_that_nics_cannot_send_are_named():
    """A NIC sends packets of scratch alone, once they are written; those of other ranks are not checked."""
    plan = by_nic("ppkt")
    ops_of(plan)[2]["src_buff"] = [own("o", 0)]
    with pytest.raises(VerificationError, match="packets come from o; expected s"):
        run_plan(plan)
    plan = by_nic("ppkt")
    ops_of(plan).insert(0, ops_of(plan).pop())
    with pytest.raises(VerificationError, match="packet 0 of gpu 0 may not be written before it is sent"):
        run_plan(plan)
    plan = by_nic("ppkt")
    plan["gpus"][0]["threadblocks"].reverse()
    for number, block in enumerate(plan["gpus"][0]["threadblocks"]):
        block["id"] = number
    ops_of(plan, 1).append(copy.deepcopy(ops_of(plan, 1)[2]) | {"src_buff": [own("s", 1)]})
    with pytest.raises((FormatError, VerificationError), match="packets of another rank|may not be written"):
        run_plan(plan)
