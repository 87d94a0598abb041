"""Modules for PyTorch: replayed round by round, and run with gloo if PyTorch is installed."""

import json

import pytest

import taccl
from taccl.errors import ExportError
from taccl.formats.msccl.xml import dump_msccl_xml, parse_msccl_xml
from taccl.formats.registry import convert
from taccl.formats.torch.module import dump_torch_module
from taccl.formats.torch.rounds import METHODS, rounds_of
from taccl.problem.collectives import make
from tests.formats.torch.replay import replayed, table_of
from tests.fuzzing import cases
from tests.program.examples import program_of
from tests.pytorch import needs_torch, started

NAMES = tuple(METHODS)
#: {check of tests/formats/torch/ranks.py: collectives to which it applies}.
CHECKS = {
    "sizes": NAMES,
    "even_chunks": ("allreduce",),
    "waited": NAMES,
    "in_place": ("allgather", "reduce-scatter", "alltoall"),
    "types": ("allreduce",),
    "inference": ("allreduce",),
    "reductions": ("allreduce",),
    "out_of_place": ("allreduce",),
    "strided": ("allreduce",),
}
ALL_CHECKS = [(name, check) for check, names in CHECKS.items() for name in names]


def module_of(name, topology, **options):
    return dump_torch_module(program_of(name, topology, **options))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_rounds_compute_the_collective(name):
    """The rounds of a module, with messages in any order, give every rank the collective's results."""
    for topology, chunks, options in (
        ("ring:2", 3, {}), ("ring:5", 1, {"in_place": True}), ("ring:4", 2, {"threadblocks": "relay"}),
    ):  # fmt: skip
        program = program_of(name, topology, chunks_per_rank=chunks, **options)
        replayed(dump_torch_module(program), program.collective)


@pytest.mark.fuzz
def test_rounds_of_many_schedules():
    """Rounds of every baseline, at any root and number of chunks, give the right results, too."""
    for seed in cases("modules for PyTorch", few=3, many=600):
        name, size = NAMES[seed % len(NAMES)], 2 + seed * 7 % 6
        root = seed % size if name in ("broadcast", "reduce", "gather", "scatter") else None
        collective = make(name, size, root=root, chunks_per_rank=1 + seed % 3)
        fabric = taccl.topologies.parse(f"{('ring', 'fully-connected')[seed % 2]}:{size}")
        problem = taccl.make_problem(fabric, collective, size_bytes=1 << 20)
        baselines = [taccl.baselines.best(problem)]
        if seed % 3 == 0 and name not in ("gather", "scatter"):
            baselines.append(taccl.baselines.tree(problem) if name != "alltoall" else baselines[0])
        for schedule in baselines:
            program = taccl.lower(schedule.listable(), in_place=seed % 5 == 0)
            replayed(dump_torch_module(program), program.collective)


@pytest.mark.slow
def test_a_round_has_one_message_for_each_pair():
    """Each of 2 ranks sends its four chunks to the other in one message: 2 messages in 1 round."""
    program = program_of("allgather", "ring:2", chunks_per_rank=4)
    assert replayed(dump_torch_module(program), program.collective).num_messages == 2


def test_rounds_are_as_few_as_the_data_allow():
    """In an allgather on a ring of 5, each chunk travels 2 links in both directions, so 2 rounds suffice."""
    assert rounds_of(program_of("allgather", "ring:5", chunks_per_rank=3)).num_rounds == 2


def test_chunks_that_follow_one_another_need_no_copies():
    """Rank 0 of 2 receives 3 consecutive chunks directly into its output, without a copy."""
    [only] = table_of(module_of("allgather", "ring:2", chunks_per_rank=3))["ROUNDS"][0]
    assert (only.receive, only.stage, only.then) == ({1: (3, 3)}, {}, [])


def test_the_module_keeps_its_own_methods_alone():
    """A module of an allgather has both of PyTorch's names for it, and no code for sums."""
    text = module_of("allgather", "ring:2")
    assert "all_gather_into_tensor = all_gather_single" in text
    assert "collective.all_gather_into_tensor(output, input)" in text
    assert not any(word in text for word in ("def all_reduce", "_COMBINE", "def _check_root", "taccl"))


@pytest.mark.slow
def test_other_collectives_are_refused():
    """PyTorch has no scan, nor a broadcast from two roots; the message lists what it has."""
    for name in ("scan", "multi-root-broadcast"):
        with pytest.raises(ExportError, match=f"PyTorch has no method for {name}; choose allreduce, "):
            dump_torch_module(program_of(name))


def test_a_collective_of_some_ranks_is_refused():
    """An allgather among 2 of 4 ranks is refused, as it is not a collective of the group of 4."""
    part = taccl.collectives.allgather(2).among([0, 1], num_ranks=4)
    problem = taccl.make_problem(taccl.topologies.ring(4), part, size_bytes=1000)
    with pytest.raises(ExportError, match="export one among all ranks"):
        dump_torch_module(taccl.lower(taccl.baselines.best(problem)))


def test_a_program_that_computes_something_else_is_refused():
    """A program in which rank 0 lacks rank 1's contribution is refused."""
    program = program_of("allgather", "ring:2")
    text = dump_msccl_xml(program)
    spoilt = parse_msccl_xml(text.replace('dstbuf="o" dstoff="1"', 'dstbuf="o" dstoff="0"'))
    with pytest.raises(ExportError, match=r"output\[\d\] of rank \d .*; correct the program"):
        dump_torch_module(spoilt)


@pytest.mark.slow
def test_convert_writes_a_module_without_notes_on_sizes(tmp_path):
    """A module serves calls of any length and placement, so notes on sizes are omitted."""
    problem = taccl.make_problem(
        taccl.topologies.ring(2), make("allreduce", 2, chunks_per_rank=3), size_bytes=1000
    )
    taccl.save(taccl.baselines.best(problem), tmp_path / "s.json")
    with pytest.warns(taccl.errors.LossyConversionWarning):
        done = convert(tmp_path / "s.json", tmp_path / "collective.py")
    assert (done.target.name, done.notes) == ("torch", ())
    replayed((tmp_path / "collective.py").read_text(), problem.collective)


def found_by(folder, num_ranks):
    """{case: messages of all ranks} of the cases in a folder."""
    found = {}
    for rank in range(num_ranks):
        for case, complaint in json.loads((folder / f"found-{rank}.json").read_text()).items():
            found[case] = found.get(case, "") + complaint
    return found


@pytest.fixture(scope="module")
def four_ranks(tmp_path_factory):
    """Results of four ranks, in one group of four and in groups of two, from a single start."""
    folder = tmp_path_factory.mktemp("ranks")
    todo = []
    for size, groups in ((4, [[0, 1, 2, 3]]), (2, [[0, 1], [3, 2]])):
        for name in NAMES:
            text = module_of(name, f"ring:{size}", chunks_per_rank=4 // size)
            (folder / f"{name}-{size}.py").write_text(text)
            todo += [
                [f"{name}-{size}", g, check] for g in groups for check in CHECKS if name in CHECKS[check]
            ]
    (folder / "cases.json").write_text(json.dumps(todo))
    started(4, "tests/formats/torch/ranks.py", folder)
    return found_by(folder, 4)


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize(("name", "check"), ALL_CHECKS, ids=[f"{n}-{c}" for n, c in ALL_CHECKS])
def test_ranks_agree_with_the_stock_collective(four_ranks, name, check):
    """On 4 ranks, and in groups of 2, module and stock collective agree bit for bit in every check."""
    for size in (4, 2):
        assert not four_ranks[f"{name}-{size} {check}"]


@needs_torch
@pytest.mark.slow
def test_eight_ranks(tmp_path):
    """Every collective of eight ranks agrees with gloo's: any length, in place or not, and asynchronous.

    Among them is an allreduce on two nodes of four ranks.
    """
    todo = [["both", [*range(8)], "sizes"]]
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(module_of(name, "ring:8"))
        todo += [[name, [*range(8)], check] for check in ("sizes", "waited") if name in CHECKS[check]]
        todo += [
            [name, [*range(8)], check] for check in ("in_place", "out_of_place") if name in CHECKS[check]
        ]
    topology = taccl.topologies.parse("multidim:ring4@100,ring2@10")
    problem = taccl.make_problem(topology, "allreduce", size_bytes=1 << 20)
    schedule = taccl.baselines.hierarchical(problem, cut=False)
    (tmp_path / "both.py").write_text(dump_torch_module(taccl.lower(schedule)))
    (tmp_path / "cases.json").write_text(json.dumps(todo))
    started(8, "tests/formats/torch/ranks.py", tmp_path)
    assert found_by(tmp_path, 8) == {f"{name} {check}": "" for name, _, check in todo}


@needs_torch
@pytest.mark.slow
def test_calls_of_a_group_take_turns(tmp_path):
    """Calls of one group run in program order, whichever module or load they are of, and in each of its groups.

    Ranks 1 and 2 of three groups [0, 1], [1, 2] and [2, 3] have made different numbers of calls.
    """
    for name, options in (("allreduce", {}), ("allreduce-pairs", {"chunks_per_rank": 3})):
        (tmp_path / f"{name}.py").write_text(module_of("allreduce", "ring:2", **options))
    groups = [[0, 1], [1, 2], [2, 3]]
    todo = [["allreduce", group, "chained"] for group in groups]
    todo += [["allreduce", [0, 1], check] for check in ("loaded_twice", "called_back")]
    (tmp_path / "cases.json").write_text(json.dumps(todo))
    started(4, "tests/formats/torch/ranks.py", tmp_path)
    assert found_by(tmp_path, 4) == {f"allreduce {check}": "" for _, _, check in todo}


@needs_torch
@pytest.mark.slow
def test_a_killed_rank_ends_the_others(tmp_path):
    """Rank 1 ends during a call; rank 0 raises an error instead of waiting for it."""
    (tmp_path / "collective.py").write_text(module_of("allreduce", "ring:2"))
    done = started(2, "tests/formats/torch/dying.py", tmp_path, check=False)
    assert [each.returncode for each in done] == [1, 9]
    assert "RuntimeError" in done[0].said
