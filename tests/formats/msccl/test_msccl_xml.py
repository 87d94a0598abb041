"""MSCCL XML: foreign files are checked, programs round-trip, limits and rules are named."""

import itertools
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl.errors import ExportError, FormatError, InputError, LossyConversionWarning
from taccl.formats.msccl.xml import dump_msccl_xml, load_msccl_xml, parse_msccl_xml
from taccl.problem.collectives import COLLECTIVES, allgather, allreduce
from taccl.program.interpret import interpret
from taccl.program.lower import lower
from taccl.program.program import Program, RankProgram, Slot, Step, StepAddress, Threadblock
from tests.foreign import OURS, foreign_files
from tests.fuzzing import some
from tests.program.examples import kinds, program_of, schedule_of

WORK = [each for each in foreign_files("msccl-xml/*.xml") if "deadlock" not in each.id]


@pytest.mark.slow
@pytest.mark.parametrize("path", WORK)
def test_files_that_work(path):
    """Valid files run correctly, and so do their rewritten forms."""
    program = load_msccl_xml(path)
    interpretation = interpret(program)
    assert interpretation.ok
    assert interpretation.outputs_checked
    text = dump_msccl_xml(program)
    assert parse_msccl_xml(text).ranks == program.ranks
    assert dump_msccl_xml(parse_msccl_xml(text)) == text


@pytest.mark.parametrize("path", foreign_files("msccl-xml/*deadlock.xml"))
def test_files_that_hang(path):
    """Ranks 0 and 1 both receive from each other before they send: a deadlock."""
    (fault,) = interpret(load_msccl_xml(path)).faults
    assert (fault.kind, fault.steps) == ("deadlock", (StepAddress(0, 0, 0), StepAddress(1, 0, 0)))


@pytest.mark.parametrize("path", foreign_files("reported/allpairs*.xml"))
def test_all_pairs_in_one_step_work(path):
    """All ranks send to each other before they receive, which does not deadlock.

    The three chunks of a step are sent as one message at all sizes of the file.
    """
    assert interpret(load_msccl_xml(path)).verdict == "ok for all sizes from 6KiB to 192KiB"


def test_files_of_a_rooted_collective_are_taken_for_every_root():
    """Files of rooted collectives apply to every root, with a warning."""
    with pytest.warns(LossyConversionWarning, match="take every broadcast for one with root 0"):
        dump_msccl_xml(program_of("broadcast"))


@pytest.mark.slow
def test_files_for_rccl_have_its_names_and_limits():
    """RCCL's files use "reducescatter", 64 steps per threadblock, and no custom collectives."""
    assert 'coll="reducescatter"' in dump_msccl_xml(program_of("reduce_scatter"), runtime="rccl")
    with pytest.raises(ExportError, match="for RCCL holds at most 64 steps per threadblock"):
        dump_msccl_xml(program_of("allgather", chunks_per_rank=60), split=False, runtime="rccl")
    with pytest.raises(ExportError, match="RCCL supports no custom collectives"):
        dump_msccl_xml(program_of("gather"), runtime="rccl")
    with pytest.raises(InputError, match="expected one of msccl, msccl-executor, rccl"):
        dump_msccl_xml(program_of("allgather"), runtime="mscclpp")


def test_names_and_limits_of_rccl_are_read(valid):
    """RCCL calls reduce-scatter ``reducescatter``, and ``maxBytes="0"`` is not a limit there."""
    assert parse_msccl_xml(re.sub('maxBytes="[0-9]+"', 'maxBytes="0"', valid)).sizes_bytes[1] == 2**63 - 1
    text = dump_msccl_xml(program_of("reduce_scatter"))
    renamed = text.replace('coll="reduce_scatter"', 'coll="reducescatter"')
    assert renamed != text
    assert parse_msccl_xml(renamed) == parse_msccl_xml(text)


def _without_a_wait(text, line, depends):
    """Text of a file after removal of the dependency of one waiting step (nop)."""
    assert line + depends in text
    return text.replace(line + depends, line + 'depid="-1" deps="-1"', 1)


@pytest.mark.parametrize(("block", "other"), [(2, 0), (3, 1)])
def test_a_missing_dependency_is_a_race(block, other):
    """Each of the hub's two sends waits for both receives, for one of them through a nop. Without the nop's
    dependency there is a race."""
    text = (OURS / "msccl-xml" / "allgather-3-hub.xml").read_text()
    head, tail = text.split(f'<tb id="{block}"')
    line = '<step s="0" type="nop" srcbuf="i" srcoff="-1" dstbuf="o" dstoff="-1" cnt="0" '
    spoiled = head + f'<tb id="{block}"' + _without_a_wait(tail, line, f'depid="{other}" deps="0"')
    assert "race" in kinds(interpret(parse_msccl_xml(spoiled)))


@pytest.mark.slow
def test_a_missing_dependency_in_a_real_file_is_a_race(shared_data):
    """Removing the dependency of a waiting step (nop) of a real file gives a race."""
    text = (shared_data / "msccl-xml" / "allgather-32-inplace.xml").read_text()
    line = '<step s="4" type="nop" srcbuf="i" srcoff="-1" dstbuf="o" dstoff="-1" cnt="0" '
    spoiled = _without_a_wait(text, line, 'depid="5" deps="1"')
    assert "race" in kinds(interpret(parse_msccl_xml(spoiled)))


def test_fused_steps_are_read_as_they_are_written():
    """In a ring allreduce of three ranks, fused steps are read and written unchanged.

    Each rank has the steps send, receive-reduce-send, receive-reduce-copy-send, receive-copy-send and receive.
    """
    program = load_msccl_xml(OURS / "msccl-xml" / "allreduce-3-ring.xml")
    text = (OURS / "msccl-xml" / "allreduce-3-ring.xml").read_text()
    assert re.findall('type="(.*?)"', text) == ["s", "rrs", "rrcs", "rcs", "r"] * 3
    assert re.findall('type="(.*?)"', dump_msccl_xml(program)) == ["s", "rrs", "rrcs", "rcs", "r"] * 3


def test_the_file_by_hand():
    """Two ranks in place: each sends its part of the output and receives the other's."""
    text = dump_msccl_xml(program_of("allgather", "ring:2", in_place=True), min_bytes=1, max_bytes=4096)
    lines = text.splitlines()
    assert lines[0] == (
        '<algo name="allgather-on-ring-2" proto="Simple" nchannels="1" nchunksperloop="2" ngpus="2" '
        'coll="allgather" inplace="1" outofplace="0" minBytes="1" maxBytes="4096">'
    )
    assert lines[1] == '  <gpu id="0" i_chunks="1" o_chunks="2" s_chunks="0">'
    assert (
        '      <step s="0" type="r" srcbuf="o" srcoff="1" dstbuf="o" dstoff="1" cnt="1" depid="-1" deps="-1" '
        'hasdep="0"/>'
    ) in lines
    assert len(lines) == 2 * 8 + 2


@pytest.mark.parametrize(("name", "in_place"), list(itertools.product(COLLECTIVES, (False, True))))
def test_every_collective_comes_back(name, in_place):
    """A file is read as the program that was written; a collective unknown to the format must be given."""
    program = program_of(name, chunks_per_rank=2, in_place=in_place)
    try:
        text = dump_msccl_xml(program)
    except ExportError as error:
        assert in_place
        assert name not in ("allreduce", "allgather", "reduce", "broadcast", "alltoall", "reduce-scatter")
        assert "lower the schedule out of place" in str(error)
        return
    custom = 'coll="custom"' in text
    again = parse_msccl_xml(text, collective=program.collective if custom else None)
    interpretation = interpret(again)
    assert interpretation.ok
    assert interpretation.outputs_checked
    assert dump_msccl_xml(again) == text


@pytest.mark.slow
@settings(max_examples=some(7, 40), deadline=None)
@given(
    st.sampled_from(["allgather", "alltoall", "allreduce", "reduce-scatter", "broadcast"]),
    st.sampled_from(["ring:3", "ring:4", "fully-connected:4", "mesh:2x3"]),
    st.fixed_dictionaries(
        {
            "in_place": st.booleans(),
            "protocol": st.sampled_from(["Simple", "LL", "LL128"]),
            "channels": st.sampled_from(["single", "round-robin", "by-chunk", "by-peer"]),
            "num_channels": st.integers(1, 3),
            "threadblocks": st.sampled_from(["per-direction", "per-peer"]),
            "instances": st.integers(1, 3),
        }
    ),
)
def test_round_trip(name, topology, options):
    """Every lowered program runs from its file, and is written as the same text again."""
    text = dump_msccl_xml(lower(schedule_of_cached(name, topology), **options))
    again = parse_msccl_xml(text)
    assert interpret(again, capacity=1).ok
    assert dump_msccl_xml(again) == text


_SCHEDULES = {}


def schedule_of_cached(name, topology):
    """Schedule of a collective by name, synthesized once for all examples."""
    if (name, topology) not in _SCHEDULES:
        _SCHEDULES[name, topology] = schedule_of(name, topology)
    return _SCHEDULES[name, topology]


def test_several_dependencies_become_steps_that_wait():
    """A step with two dependencies is preceded by a waiting step for the first."""
    copy = Step("copy", Slot("input", 0), Slot("scratch", 0))
    blocks = (
        Threadblock((copy,)),
        Threadblock((replace(copy, dst=Slot("scratch", 1)),)),
        Threadblock((Step("copy", Slot("scratch", 0), Slot("output", 0), 2, ((0, 0), (1, 0))),)),
    )
    text = dump_msccl_xml(Program("x", (RankProgram(2, 2, 2, blocks),)))
    steps = re.findall(r'type="(\w+)".*depid="(-?\d)" deps="(-?\d)" hasdep="(\d)"', text)
    assert steps == [
        ("cpy", "-1", "-1", "1"), ("cpy", "-1", "-1", "1"), ("nop", "0", "0", "0"), ("cpy", "1", "0", "0"),
    ]  # fmt: skip
    assert interpret(parse_msccl_xml(text)).ok


def many(count, *, wait=None):
    """Program of one rank with `count` threadblocks of one step; the first one waits for threadblock `wait`."""
    copy = Step("copy", Slot("input", 0), Slot("output", 0))
    first = copy if wait is None else replace(copy, depends=((wait, 0),))
    blocks = (Threadblock((first,)), *(Threadblock((copy,)) for _ in range(count - 1)))
    return Program("x", (RankProgram(1, 1, 0, blocks),))


def peers(count):
    """A rank that sends to `count` others over one channel, and their receives."""
    send, receive = Step("send", Slot("input", 0)), Step("receive", None, Slot("output", 0))
    root = RankProgram(1, 1, 0, tuple(Threadblock((send,), send_to=1 + i) for i in range(count)))
    others = (RankProgram(1, 1, 0, (Threadblock((receive,), receive_from=0),)) for _ in range(count))
    return Program("x", (root, *others))


def steps(count, *, chunks=1, blocks=1):
    """Program of one rank with `blocks` threadblocks of `count` copy steps each."""
    copy = Step("copy", Slot("input", 0), Slot("output", 0), chunks)
    return Program("x", (RankProgram(99, 99, 0, (Threadblock((copy,) * count),) * blocks),))


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (many(217), "at most 216 threadblocks per rank, and rank 0 has 217"),
        (many(200, wait=128), "at most 127 as number of a threadblock that a step waits for.*has 128.*per-peer"),
        (steps(257), "at most 256 steps.*has 257.*num_channels=2"),
        (steps(255, blocks=17), "at most 4095 elements.*has 4354"),
        (steps(1, chunks=72), "at most 71 chunks.*has 72.*max_count=71"),
        (peers(32), "at most 31 peers to send to.*has 32.*by-peer"),
        (Program("x", (RankProgram(1, 1, 2**15 + 1, ()),)), "at most 32768 chunks per buffer.*has 32769"),
        (Program("x", (RankProgram(1, 1, 0, ()),) * 1025), "at most 1024 ranks.*has 1025"),
        (replace(many(1), ranks=(RankProgram(1, 1, 0, (Threadblock((), channel=32),)),)), "at most 32 channels"),
    ],
)  # fmt: skip
def test_limits_are_named_with_a_remedy(program, words):
    """Exceeding a limit of the runtime is refused with a remedy."""
    with pytest.raises(ExportError, match=words):
        dump_msccl_xml(program, split=False)


@pytest.mark.parametrize("program", [many(216, wait=127), steps(256), steps(1, chunks=71), peers(31)])
def test_up_to_the_limits_all_is_well(program):
    """A program that exactly reaches a limit of the runtime is written and read."""
    parse_msccl_xml(dump_msccl_xml(program))


def sums(*counts):
    """Program of one rank whose threadblock adds chunks of its input to one chunk of its output."""
    steps = [Step("reduce", Slot("input", i), Slot("output", 0), count) for i, count in enumerate(counts)]
    return Program("x", (RankProgram(99, 99, 0, (Threadblock(tuple(steps)),)),))


@pytest.mark.parametrize(
    ("counts", "announced"),
    [((1,) * 16, []), ((1,) * 40, [15, 31]), ((1, 1, 2, 2, 1), [1, 3])],
)
def test_sums_that_must_not_be_fused_announce_their_end(counts, announced):
    """Runtimes fuse at most 16 sums into a chunk, and add as many chunks in each as in the last one.

    A sum with hasdep is the last one that is fused (``msccl_parser.cc``). A file without it is refused.
    """
    text = dump_msccl_xml(sums(*counts))
    lines = [line for line in text.splitlines() if "<step" in line]
    assert [i for i, line in enumerate(lines) if 'hasdep="1"' in line] == announced
    assert parse_msccl_xml(text).ranks == sums(*counts).ranks
    if announced:
        with pytest.raises(FormatError, match=f"line {announced[-1] + 4}: .*fuses at most 16 sums"):
            parse_msccl_xml('hasdep="0"'.join(text.rsplit('hasdep="1"', 1)))


@pytest.mark.parametrize("name", ["broadcast", "reduce"])
@pytest.mark.parametrize("runtime", ["msccl", "rccl", "msccl-executor"])
def test_simple_broadcasts_stay_inside_nodes(name, runtime):
    """Broadcasts and reductions over a network are written under LL and LL128 only.

    The proxies then move a message in one step (``BROADCAST_CHUNKSTEPS``), but kernels under Simple take four
    (``MSCCL_CHUNKSTEPS``), and wait for steps that no proxy announces.
    """
    program = replace(program_of(name), node_of_rank=(0, 0, 1, 1))
    with pytest.raises(
        ExportError, match=f"hangs in a {name} between nodes under Simple, and needs protocol LL"
    ):
        dump_msccl_xml(program, runtime=runtime)
    for protocol in ("LL", "LL128"):
        assert dump_msccl_xml(replace(program, protocol=protocol), runtime=runtime)
    assert dump_msccl_xml(replace(program, node_of_rank=(0, 0, 0, 0)), runtime=runtime)
    assert dump_msccl_xml(replace(program_of("allreduce"), node_of_rank=(0, 0, 1, 1)), runtime=runtime)


@pytest.mark.slow
def test_more_channels_keep_peers_within_the_limit():
    """The remedy in the message works for 34 peers."""
    schedule = schedule_of("broadcast", "fully-connected:35")
    with pytest.raises(ExportError, match="num_channels=3"):
        dump_msccl_xml(lower(schedule))
    dump_msccl_xml(lower(schedule, channels="by-peer", num_channels=3))


def test_file_is_for_sizes_about_that_of_its_schedule():
    """A file covers half to twice its schedule's size, or sizes up to 128 MiB if that size is unknown."""
    program = program_of("allgather", "ring:2")
    own = program.sizes_bytes
    assert own[1] == 4 * own[0]
    known = replace(program, sizes_bytes=(5 * 10**8, 2 * 10**9))
    assert 'minBytes="500000000" maxBytes="2000000000"' in dump_msccl_xml(known)
    assert parse_msccl_xml(dump_msccl_xml(known)).sizes_bytes == known.sizes_bytes
    assert 'minBytes="0" maxBytes="134217728"' in dump_msccl_xml(replace(program, sizes_bytes=None))
    told = dump_msccl_xml(known, min_bytes="3GB")
    assert 'minBytes="3000000000" maxBytes="3000000000"' in told


def test_sizes_must_be_a_range():
    """A file whose `minBytes` is not below its `maxBytes` is refused."""
    with pytest.raises(InputError, match="min_bytes"):
        dump_msccl_xml(program_of("allgather", "ring:2"), min_bytes=2, max_bytes=1)


@pytest.fixture(scope="module")
def valid():
    """Text of an allgather on a ring of four, with dependencies."""
    return dump_msccl_xml(program_of("allgather", "ring:4"))


SPOILED = [
    ('name="', 'nome="', "has no name"),
    ('proto="Simple"', 'proto="simple"', "proto is 'simple'; expected one of Simple, LL, LL128"),
    ('ngpus="4"', 'ngpus="5"', "4 <gpu> elements with 4 ids; expected 5"),
    ('nchunksperloop="4"', 'nchunksperloop="6"', "expected a multiple of ngpus"),
    ('nchannels="1"', 'nchannels="129"', "from 1 to 128"),
    ('coll="allgather"', 'coll="gather"', "coll is 'gather'"),
    ('inplace="0"', 'inplace="no"', "inplace is 'no'"),
    ('minBytes="[0-9]+"', 'minBytes="999999999"', "expected a range"),
    ('<gpu id="1"', '<gpu id="0"', "4 <gpu> elements with 3 ids"),
    ('o_chunks="4"', 'o_chunks="3"', "o_chunks is 3; expected 4"),
    ('<tb id="1"', '<tb id="7"', "ids \\[0, 2, 3, 4, 7\\]; expected 0 to 4"),
    ('chan="0"', 'chan="1"', "chan is '1'"),
    ('send="1"', 'send="0"', "0, the rank itself"),
    ('send="1"', 'send="9"', "send is '9'"),
    ('send="1"', 'send="-1"', "sends to no rank; expected another one of 0-3"),
    ('send="1"', 'send="3"', "threadblocks ., . of rank 0 all send from rank 0 to rank 3"),
    ('<step s="1"', '<step s="2"', "s is 2; expected 1, its position"),
    ('type="r"', 'type="recv"', "type is 'recv'"),
    ('dstbuf="o"', 'dstbuf="x"', "dstbuf is 'x'"),
    ('cnt="1"', 'cnt="0"', "cnt is '0'"),
    ('cnt="1"', 'cnt="72"', "from 1 to 71"),
    ('cnt="1"', 'cnt="5"', "writes chunks . to . of output, which holds 4"),
    ('hasdep="1"', 'hasdep="0"', 'which lacks hasdep="1"'),
    ('hasdep="1"', 'hasdep="2"', "hasdep is '2'"),
    (r'depid="[0-9]"', 'depid="128"', "depends on threadblock 128; expected 0-4"),
    (r'depid="[0-9]"', 'depid="99"', "depends on threadblock 99; expected 0-4"),
    (r'deps="[0-9]"', 'deps="99"', "depends on step 99 of threadblock .; expected 0-"),
    ('ngpus="4"', 'ngpus="1e9"', "'1e9'; expected a whole number"),
    ("<algo ", "<algorithm><algo ", "not XML"),
    ("<algo ", '<?xml version="1.0"?>\n<algo ', "an XML declaration"),
    ("      <step", "\t<step", "a tab"),
    (' type="r"', '\n type="r"', "a tag that continues"),
    ('type="r"', "type='r'", "single quotes"),
    ("<algo ", "<!DOCTYPE algo><algo ", "a document type"),
    ("<algo ", "<algo " + " ".join(f'a{i}="0"' for i in range(8)) + " ", "18 attributes"),
]


@pytest.mark.parametrize(("old", "new", "words"), SPOILED, ids=[f"{i}" for i in range(len(SPOILED))])
def test_broken_rules_are_named(valid, old, new, words):
    """A broken rule is reported with line, element and expected value."""
    spoiled, count = re.subn(old, lambda _: new, valid, count=1)
    assert count
    with pytest.raises(FormatError, match=words) as caught:
        parse_msccl_xml(spoiled, where="a.xml")
    assert caught.value.where.startswith("a.xml: line ")


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        (r'depid="\d" deps="\d"', 'depid="-1" deps="-1"', "race"),
        (r'type="r"(.*)dstoff="\d"', r'type="r"\1dstoff="0"', "output"),
        (r"\n *<step s=\"0\" type=\"cpy\".*", "", "output"),
    ],
)
def test_faults_that_show_when_run(valid, old, new, kind):
    """Errors of the program in a well-formed file are found by running it."""
    spoiled, count = re.subn(old, new, valid, count=1)
    assert count
    assert kind in kinds(interpret(parse_msccl_xml(spoiled)))


def test_a_wait_must_end_at_a_step_that_waits(valid):
    """Waiting steps (nop) must be followed by a step that waits as well."""
    nop = (
        '<step s="0" type="nop" srcbuf="i" srcoff="-1" dstbuf="o" dstoff="-1" cnt="0" depid="1" deps="0" '
        'hasdep="0"/>'
    )
    text = (
        '<algo name="x" ngpus="1" nchunksperloop="1" nchannels="1" proto="LL" coll="allreduce" inplace="0">'
        '<gpu id="0" i_chunks="1" o_chunks="1" s_chunks="0"><tb id="0" send="-1" recv="-1" chan="0">'
        f'{nop}<step s="1" type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" '
        'hasdep="0"/></tb><tb id="1" send="-1" recv="-1" chan="0">'
        '<step s="0" type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" '
        'hasdep="1"/></tb></gpu></algo>'
    )
    with pytest.raises(FormatError, match="does not wait itself"):
        parse_msccl_xml(text)


def test_comments_and_unknown_elements_are_fine(valid):
    """Comments and unknown elements are ignored, as by the runtime."""
    text = valid.replace("    <tb", '    <!-- a\tb\n ?> --><copy i_off="0" o_off="0"/>\n    <tb', 1)
    assert interpret(parse_msccl_xml(text)).ok


def test_a_custom_file_is_judged_by_what_it_is_said_to_be(valid):
    """A custom file is checked against a given collective; without one, only deadlocks and races are found."""
    text = valid.replace('coll="allgather"', 'coll="custom"').replace('i_chunks="1"', 'i_chunks="4"')
    assert not interpret(parse_msccl_xml(text)).outputs_checked
    assert interpret(parse_msccl_xml(text, collective=allgather(4))).ok
    with pytest.raises(FormatError, match="ngpus is 4; the collective is over 3"):
        parse_msccl_xml(text, collective=allgather(3))


def test_ranks_of_a_custom_file_may_lack_a_buffer():
    """Rank 0 has no output and rank 1 no input: one sends, the other receives."""
    tb = '<tb id="0" send="{}" recv="{}" chan="0"><step s="0" type="{}" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0"'
    gpu = '<gpu id="{}" i_chunks="{}" o_chunks="{}" s_chunks="0">' + tb
    gpu += ' cnt="1" depid="-1" deps="-1" hasdep="0"/></tb></gpu>'
    text = (
        '<algo name="x" ngpus="2" nchunksperloop="1" nchannels="1" proto="LL" coll="custom" inplace="0">'
        f"{gpu.format(0, 1, 0, 1, -1, 's')}{gpu.format(1, 0, 1, -1, 0, 'r')}</algo>"
    )
    program = parse_msccl_xml(text)
    assert [(each.input_chunks, each.output_chunks) for each in program.ranks] == [(1, 0), (0, 1)]
    assert interpret(program).ok
    with pytest.raises(FormatError, match=r"o_chunks is 0; expected 1 of allreduce"):
        parse_msccl_xml(text.replace("custom", "allreduce"))
    with pytest.raises(FormatError, match="output"):
        parse_msccl_xml(text.replace('type="s" srcbuf="i"', 'type="s" srcbuf="o"'))


def test_rccl_has_more_channels():
    """RCCL has up to 128 channels, other runtimes 32."""
    ranks = (RankProgram(1, 1, 0, (Threadblock((), channel=47),)),)
    program = Program("x", ranks, allreduce(1, chunks_per_rank=1))
    text = dump_msccl_xml(program, runtime="rccl")
    assert parse_msccl_xml(text).num_channels == 48
    with pytest.raises(ExportError, match="at most 32 channels"):
        dump_msccl_xml(program, runtime="msccl-executor")


def test_huge_files_are_not_read(tmp_path):
    """A sparse file of 100 MB is refused by its size."""
    path = tmp_path / "huge.xml"
    with path.open("wb") as file:
        file.write(b"<algo>")
        file.seek(10**8)
        file.write(b" ")
    with pytest.raises(FormatError, match="larger than 64MB|binary"):
        load_msccl_xml(path)
