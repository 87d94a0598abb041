"""Operations that plans of MSCCL++'s own language have, and taccl does not write."""

import copy
import json

import pytest

from taccl.cli import main
from taccl.errors import FormatError, VerificationError
from taccl.formats.mscclpp.executor import needs_flush, run_plan


def own(buffer, index):
    """Chunk of a buffer of the rank itself."""
    return {"type": buffer, "index": index, "size": 1}


def there(index, buffer=0):
    """Chunk of a remote buffer of the threadblock."""
    return {"buffer_id": buffer, "index": index, "size": 1}


def op(name, sources=(), destinations=()):
    """An operation over memory channels: on chunks, or on channel 0."""
    if name == "nop":
        return {"name": name}
    on = {"src_buff": [*sources], "dst_buff": [*destinations]} if sources else {"channel_ids": [0]}
    return {"name": name, "channel_type": "memory"} | on


def plan_of(
    collective, blocks, remote, *, num_ranks=2, inputs=2, outputs=2, scratch=2, packed=False, in_place=True
):
    """Plan in which each rank reaches one buffer of the next one.

    - `blocks`: Function of a rank to the operations of each of its threadblocks.
    """
    gpus = []
    for r in range(num_ranks):
        peer = (r + 1) % num_ranks
        gpus.append({
            "id": r, "input_chunks": inputs, "output_chunks": outputs, "scratch_chunks": scratch,
            "threadblocks": [
                {
                    "id": t, "ops": ops, "channels": [{"channel_type": "memory", "channel_ids": [0]}],
                    "remote_buffer_refs": [{"access_channel_type": "memory", "remote_buffer_ids": [0]}],
                }
                for t, ops in enumerate(copy.deepcopy(blocks(r)))
            ],
            "channels": [{"channel_type": "memory", "connected_to": [peer]}],
            "remote_buffers": [{"rank": peer, "type": remote, "access_channel_types": ["memory"]}],
            "semaphores": [],
        })  # fmt: skip
    return {
        "collective": collective, "protocol": "LL" if packed else "Simple", "inplace": in_place, "gpus": gpus,
        "use_double_scratch_buffer": packed,
    }  # fmt: skip


BEGIN = [op("rlxsignal"), op("rlxwait"), op("nop")]
END = [op("nop"), op("signal"), op("wait")]


def read_reduce_send():
    """Allreduce in which each rank adds one chunk of both and writes it to both."""
    return plan_of(
        "allreduce",
        lambda r: [[*BEGIN, op("rres", [own("i", r), there(r)], [own("i", r), there(r)]), *END]],
        "i",
    )


def reduce_send():
    """Allreduce in which contributions are put into scratch, added there, and sums written to both ranks."""
    plan = plan_of(
        "allreduce",
        lambda r: [
            [
                *BEGIN,
                op("put", [own("i", 1 - r)], [there(0, 1)]), *END, op("nop"),
                op("res", [own("i", r), own("s", 0)], [own("i", r), there(r)]), *END,
            ]
        ],
        "i",
    )  # fmt: skip
    for r, gpu in enumerate(plan["gpus"]):
        gpu["remote_buffers"].append({"rank": 1 - r, "type": "s", "access_channel_types": ["memory"]})
        gpu["threadblocks"][0]["remote_buffer_refs"][0]["remote_buffer_ids"] = [0, 1]
    return plan


def gather():
    """Allgather in which each rank gets the chunk of the other one."""
    return plan_of(
        "allgather",
        lambda r: [[*BEGIN, op("get", [there(1 - r)], [own("o", 1 - r)]), *END]],
        "o", inputs=1,
    )  # fmt: skip


def read_reduce():
    """Reduce-scatter in which each rank reads the other's contribution."""
    return plan_of(
        "reducescatter",
        lambda r: [[*BEGIN, op("rre", [own("i", r), there(r)], [own("o", 0)]), *END]],
        "i", outputs=1, in_place=False,
    )  # fmt: skip


def reduce_send_packets():
    """Allreduce of two threadblocks: one sends a chunk, the other adds, sends the sum, and unpacks one."""
    return plan_of(
        "allreduce",
        lambda r: [
            [op("ppkt", [own("i", 1 - r)], [there(0)])],
            [
                op("respkt", [own("i", r), own("s", 0)], [own("i", r), there(1)]),
                op("upkt", [own("s", 1)], [own("i", 1 - r)]),
            ],
        ],
        "s", packed=True,
    )  # fmt: skip


def reduce_copy_packets(name="recpkt"):
    """Allreduce in which each rank adds both chunks, and keeps the sum as a packet, too."""
    further = [there(2)] if name == "recspkt" else []
    return plan_of(
        "allreduce",
        lambda r: [
            [
                op("ppkt", [own("i", 0)], [there(0)]),
                op("nop"),
                op(name, [own("i", 0), own("s", 0)], [own("i", 0), own("s", 1), *further]), op("nop"),
                op("upkt", [own("s", 2 if further else 1)], [own("i", 0)]),
            ]
        ],
        "s", inputs=1, outputs=1, scratch=3, packed=True,
    )  # fmt: skip


def forward_packets():
    """Broadcast along three ranks, of which the second forwards packets; the first copies one to itself."""

    def blocks(r):
        first = [op("ppkt", [own("i", 0)], [there(0)]), op("cpkt", [own("i", 0)], [own("s", 0)])]
        forward = [op("rppkt", [own("s", 0)], [there(0)])] if r == 1 else []
        return [[*(first if r == 0 else forward), op("nop"), op("upkt", [own("s", 0)], [own("o", 0)])]]

    return plan_of("broadcast", blocks, "s", num_ranks=3, inputs=1, outputs=1, packed=True, in_place=False)


PLANS = {
    "rres": read_reduce_send, "res": reduce_send, "rre": read_reduce, "respkt": reduce_send_packets,
    "get": gather,
    "recpkt": reduce_copy_packets, "recspkt": lambda: reduce_copy_packets("recspkt"), "rppkt": forward_packets,
    "cpkt": forward_packets,
}  # fmt: skip


@pytest.mark.parametrize("name", PLANS)
def test_the_operation_gives_right_results(name):
    """A plan with the operation is right, and wrong or stuck without it."""
    plan = PLANS[name]()
    assert run_plan(plan)
    ops = next(tb["ops"] for gpu in plan["gpus"] for tb in gpu["threadblocks"] if name in str(tb["ops"]))
    ops.remove(next(each for each in ops if each["name"] == name))
    with pytest.raises(VerificationError, match="deadlock|output|written twice"):
        run_plan(plan)


@pytest.mark.parametrize("place", [0, -2])
def test_relaxed_signals_are_no_fences(place):
    """A relaxed signal may replace the first one, before which the rank did nothing, and not the last one."""
    plan = read_reduce_send()
    for gpu in plan["gpus"]:
        ops = gpu["threadblocks"][0]["ops"]
        ops[place]["name"], ops[place + 1]["name"] = (
            ("signal", "wait") if place == 0 else ("rlxsignal", "rlxwait")
        )
    if place == 0:
        assert run_plan(plan)
    else:
        with pytest.raises(VerificationError, match="race"):
            run_plan(plan)


def test_relaxed_signals_order_reads_that_have_ended():
    """A rank may overwrite what another has read and used before its relaxed signal; without `nop`, it may not.

    Each rank adds a chunk of the other to its output, while the other's user waits to reuse its input.
    """
    plan = read_reduce()
    ops = [gpu["threadblocks"][0]["ops"] for gpu in plan["gpus"]]
    for each in ops:
        each[-2]["name"], each[-1]["name"] = "rlxsignal", "rlxwait"
    assert run_plan(plan)
    del ops[0][-3]  # the nop, up to which all threads have read
    with pytest.raises(VerificationError, match=r"race: nothing orders the caller of gpu 1.*\(rre\)"):
        run_plan(plan)


def put_with_signal(name):
    """Broadcast whose root puts its chunk through a NIC, by a put that signals, once the other rank is ready."""
    put = {"name": name, "src_buff": [own("i", 0)], "dst_buff": [there(0)], "channel_ids": [0]}
    blocks = [op("wait"), put, op("copy", [own("i", 0)], [own("o", 0)])], [op("signal"), op("wait")]
    plan = plan_of("broadcast", lambda r: [blocks[r]], "o", inputs=1, outputs=1, in_place=False)
    for gpu in plan["gpus"]:
        for each in gpu["threadblocks"][0]["ops"]:
            each["channel_type"] = "port" if "channel_ids" in each else "memory"
        gpu["channels"][0]["channel_type"] = "port"
        gpu["remote_buffers"][0]["access_channel_types"] = ["port"]
        gpu["threadblocks"][0]["channels"][0]["channel_type"] = "port"
        gpu["threadblocks"][0]["remote_buffer_refs"][0]["access_channel_type"] = "port"
    return plan


def test_a_put_may_signal_and_flush():
    """`pwsf` is a put, a signal after its data, and a flush; without the flush, the NIC may read too late."""
    assert run_plan(put_with_signal("pwsf"))
    assert needs_flush(put_with_signal("pwsf"))
    assert not needs_flush(read_reduce_send())
    with pytest.raises(VerificationError, match=r"race: nothing orders the caller of gpu 0.*\(pws\)"):
        run_plan(put_with_signal("pws"))
    with pytest.raises(VerificationError, match="deadlock.*gpu 1, at operation 1"):
        run_plan(put_with_signal("put"))


def test_a_put_that_signals_has_a_channel_for_each_destination():
    """The executor signals one channel for each destination."""
    plan = put_with_signal("pws")
    plan["gpus"][0]["threadblocks"][0]["ops"][1]["channel_ids"].append(0)
    with pytest.raises(VerificationError, match="2 channels for 1 destinations"):
        run_plan(plan)


def test_a_packet_orders_the_reads_on_which_it_depends_alone():
    """A rank may overwrite a chunk once it receives a packet made of that chunk, and not for another packet."""
    assert run_plan(reduce_send_packets())
    swapped = plan_of(
        "other",
        lambda r: [[op("ppkt", [own("i", 0)], [there(0)])], [op("upkt", [own("s", 0)], [own("i", 0)])]],
        "s", packed=True,
    )  # fmt: skip
    with pytest.raises(VerificationError, match=r"race: nothing orders operation 0 \(upkt\)"):
        run_plan(swapped)
    # Two chunks go out and come back as sums, crosswise: the first packet says nothing of the second read.
    crossed = plan_of(
        "other",
        lambda r: [
            [op("ppkt", [own("i", 0)], [there(0)]), op("ppkt", [own("i", 1)], [there(1)])],
            [op("rppkt", [own("s", 0)], [there(2)]), op("upkt", [own("s", 2)], [own("i", 1)])],
        ],
        "s", scratch=4, packed=True,
    )  # fmt: skip
    with pytest.raises(VerificationError, match=r"race: nothing orders operation 1 \(upkt\)"):
        run_plan(crossed)


@pytest.mark.parametrize(("name", "buffer"), [("put", "i"), ("ppkt", "s")])
def test_sources_of_a_put_are_in_the_first_ones_buffer(name, buffer):
    """The executor looks for every source of a put in the buffer of the first source."""
    plan = plan_of(
        "other", lambda r: [[*BEGIN, op(name, [own("i", 0), own("i", 1)], [there(0), there(1)]), *END]],
        buffer, outputs=4, packed=name == "ppkt", in_place=False,
    )  # fmt: skip
    assert not run_plan(plan, races=False)
    plan["gpus"][1]["threadblocks"][0]["ops"][3]["src_buff"][1] = own("o", 3)
    with pytest.raises(VerificationError, match="chunks 3 to 3 of i of gpu 1, which holds 2"):
        run_plan(plan, races=False)


def test_scratch_has_halves_for_packets_alone():
    """Packets to other ranks need two halves of scratch; the executor puts other data into the first one."""
    plan = reduce_send_packets()
    assert run_plan(plan)
    with pytest.raises(FormatError, match="found packets to another rank without use_double_scratch_buffer"):
        run_plan(plan | {"use_double_scratch_buffer": False})
    assert run_plan(reduce_send())
    with pytest.raises(
        FormatError, match=r"operation . \(put\) .*: found data in scratch other than packets"
    ):
        run_plan(reduce_send() | {"use_double_scratch_buffer": True})


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda op: op.update(reduce_op="min"), "reduction 'min' of rres; expected sum"),
        (lambda op: op.update(channel_type="port"), "operation 'rres' over a port channel, which cannot be"),
        (lambda op: op.update(name="glres"), "found operation 'glres', which cannot be checked here"),
    ],
)
def test_other_operations_are_named(spoil, words):
    """A plan with other sums, with copies of threads over ports, or on NVLS is refused."""
    plan = read_reduce_send()
    spoil(plan["gpus"][0]["threadblocks"][0]["ops"][3])
    with pytest.raises(FormatError, match=words):
        run_plan(plan)


def test_a_get_between_unlike_chunks_is_wrong():
    """The executor takes the index of a get's source for its destination, and the reverse."""
    plan = gather()
    for r, gpu in enumerate(plan["gpus"]):
        gpu["threadblocks"][0]["ops"][3]["dst_buff"][0]["index"] = r
    with pytest.raises(VerificationError, match="race|output: 1 chunk of gpu 0 wrong"):
        run_plan(plan)


def test_a_copy_has_one_source():
    """An operation with more sources than the executor reads is refused."""
    plan = read_reduce_send()
    plan["gpus"][0]["threadblocks"][0]["ops"][3] = op("copy", [own("i", 0), own("i", 1)], [own("i", 0)])
    with pytest.raises(VerificationError, match="2 sources or destinations; expected 1"):
        run_plan(plan)


def test_plans_of_earlier_versions_are_named():
    """A plan with the fields of an earlier MSCCL++ is named as such."""
    with pytest.raises(FormatError, match="plan of an earlier MSCCL"):
        run_plan(
            {
                "gpus": [{"id": 0, "inputChunks": 2}],
                "inplace": True,
                "protocol": "LL",
                "collective": "allreduce",
            }
        )


@pytest.mark.parametrize(
    ("limits", "code", "said"),
    [
        ({"max_message_size": 2**64 - 1}, 0, "in place, for sizes from 0B on"),
        ({"min_message_size": 1024, "max_message_size": 2**20}, 0, "for sizes from 1KiB to 1MiB"),
        ({"max_message_size": "1MB"}, 2, "found sizes from 0 to '1MB'; expected whole numbers of bytes"),
    ],
)
def test_the_sizes_of_a_plan_are_told(tmp_path, capsys, limits, code, said):
    """MSCCL++'s language writes the largest number of 64 bits if a plan has no limit of sizes."""
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(read_reduce_send() | {"name": "mine"} | limits))
    assert main(["verify", str(path)]) == code
    assert said in "".join(capsys.readouterr())


def test_sizes_whose_chunks_exceed_reused_scratch_are_told(tmp_path, capsys):
    """With `reuse_resources` two slots of scratch have 32 MiB each, so messages of two chunks have up to 64 MiB."""
    path = tmp_path / "plan.json"
    said = "messages above 64MiB overwrite others in scratch; set max_message_size"
    for most, is_told in ((2**64 - 1, True), (2**26, False)):
        plan = reduce_send() | {"name": "mine", "reuse_resources": True, "max_message_size": most}
        path.write_text(json.dumps(plan))
        assert main(["verify", str(path)]) == 0
        assert (said in capsys.readouterr().out) == is_told
