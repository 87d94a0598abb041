"""The registration module of plans, run against stand-ins of MSCCL++'s classes, since it needs GPUs."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from taccl.errors import InputError
from taccl.formats.mscclpp.registration import ranks_per_host, registration_snippet


def plan(name, collective="allgather", *, in_place=False, least=0, most=1000, chunks=1):
    """Plan of four ranks with the fields that the registration reads."""
    return {
        "name": name, "collective": collective, "inplace": in_place,
        "gpus": [{"input_chunks": chunks, "output_chunks": chunks}] * 4, "buffer_alignment": 4,
        "min_message_size": least, "max_message_size": most,
    }  # fmt: skip


def request(
    collective, size, inputs, outputs, *, rank=1, world_size=4, dtype="CppDataType.float16", root=None
):
    """A call with the fields that MSCCL++ passes."""
    return SimpleNamespace(
        collective=collective, message_size=size, input_buffer=inputs, output_buffer=outputs, rank=rank,
        world_size=world_size, n_ranks_per_node=4, dtype=dtype,
        hints={} if root is None else {"root": [root]},
    )  # fmt: skip


class Builder:
    """Recorder of the calls of `AlgorithmCollectionBuilder`."""

    def __init__(self):
        Builder.known = self.added = []

    def add_algorithm_builder(self, algorithm):
        self.added.append(algorithm)

    def set_algorithm_selector(self, selector):
        Builder.selector = selector


@pytest.fixture
def module(monkeypatch):
    """Function that runs a snippet in the module's namespace."""
    mscclpp, extension = ModuleType("mscclpp"), ModuleType("mscclpp.ext")

    class Algorithm(SimpleNamespace):
        Constraint = SimpleNamespace

    mscclpp.Algorithm = Algorithm
    mscclpp.ExecutionPlan = lambda path, rank: (path, rank)
    extension.AlgorithmCollectionBuilder = Builder
    monkeypatch.setitem(sys.modules, "mscclpp", mscclpp)
    monkeypatch.setitem(sys.modules, "mscclpp.ext", extension)

    def run(text):
        names = {"__file__": "/plans/taccl_plans.py"}
        exec(compile(text, "taccl_plans.py", "exec"), names)
        return names

    return run


def test_plans_are_registered_from_beside_the_module(module):
    """Each plan is registered for the given local rank and any number of ranks, with the module's selector."""
    names = module(registration_snippet({"/elsewhere/a.json": plan("a")}))
    names["register"](3)
    (algorithm,) = Builder.known
    assert algorithm.execution_plan == ("/plans/a.json", 3)
    assert (algorithm.constraint.world_size, algorithm.constraint.n_ranks_per_node) == (0, 0)
    assert Builder.selector is names["select"]


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        # A call of allgather states one rank's bytes: 100 of 400.
        (request("allgather", 100, 5000, 9000), "small"),
        (request("allgather", 200, 5000, 9000), "large"),
        (request("allgather", 1000, 5000, 9000), None),
        (request("allgather", 100, 9100, 9000), "inside"),
        (request("allgather", 100, 5000, 9000, world_size=8), None),
        (request("allreduce", 100, 5000, 9000), None),
        # A call of reduce-scatter states the input's bytes; rank 1 of four has its output at offset 25.
        (request("reducescatter", 100, 5000, 5025), "sums"),
        (request("reducescatter", 100, 5000, 5000), None),
    ],
)
def test_calls_are_given_the_plan_that_fits(module, call, expected):
    """The selected plan depends on collective, size, world size and placement."""
    text = registration_snippet(
        {
            "1.json": plan("small", most=500),
            "2.json": plan("large", least=501),
            "3.json": plan("inside", in_place=True),
            "4.json": plan("sums", "reducescatter", in_place=True),
        }
    )
    known = {"allgather": {n: n for n in ("small", "large", "inside")}, "reducescatter": {"sums": "sums"}}
    assert module(text)["select"](known, call) == expected


def test_sizes_that_do_not_divide_into_aligned_chunks_are_left_alone(module):
    """Sizes that give no aligned chunks are declined: 3 chunks of 4-byte multiples need multiples of 12."""
    select = module(registration_snippet({"1.json": plan("a", "allreduce", chunks=3)}))["select"]
    known = {"allreduce": {"a": "a"}}
    assert select(known, request("allreduce", 120, 5000, 9000)) == "a"
    assert select(known, request("allreduce", 124, 5000, 9000)) is None


def test_types_that_the_executor_does_not_add_up_are_left_alone(module):
    """Calls with byte elements are declined, as the executor refuses to add them."""
    select = module(registration_snippet({"1.json": plan("a", "allreduce")}))["select"]
    call = request("allreduce", 120, 5000, 9000, dtype="CppDataType.uint8")
    assert select({"allreduce": {"a": "a"}}, call) is None


def test_a_broadcast_gets_the_plan_from_its_own_root(module):
    """A broadcast uses only a plan with its own root, as another root would deliver the wrong data."""
    select = module(registration_snippet({"1.json": plan("a", "broadcast") | {"root": 2}}))["select"]
    known = {"broadcast": {"a": "a"}}
    assert select(known, request("broadcast", 120, 5000, 9000, root=2)) == "a"
    assert select(known, request("broadcast", 120, 5000, 9000, root=0)) is None


def test_an_allreduce_of_pytorch_gets_the_plan_in_place(module):
    """If two plans cover the same sizes, a call with one buffer uses the in-place plan."""
    plans = {"1.json": plan("apart", "allreduce"), "2.json": plan("inside", "allreduce", in_place=True)}
    select = module(registration_snippet(plans))["select"]
    known = {"allreduce": {"apart": "apart", "inside": "inside"}}
    assert select(known, request("allreduce", 120, 9000, 9000)) == "inside"
    assert select(known, request("allreduce", 120, 5000, 9000)) == "apart"


def test_ranks_per_node_can_be_asked_for(module):
    """A plan of two nodes of two does not fit one node of four."""
    select = module(registration_snippet({"1.json": plan("a")}, ranks_per_node=2))["select"]
    assert select({"allgather": {"a": "a"}}, request("allgather", 100, 5000, 9000)) is None


def test_a_node_of_several_hosts_fits_any_number_of_ranks_per_host(module):
    """MSCCL++ counts the ranks of a host: 4 of the 72 that NVLink joins in a rack of GB200."""
    assert ranks_per_host((0,) * 8 + (1,) * 8) == 8
    assert ranks_per_host((0,) * 72 + (1,) * 72) == 0
    text = registration_snippet({"1.json": plan("a")}, ranks_per_node=ranks_per_host((0,) * 72))
    select = module(text)["select"]
    assert select({"allgather": {"a": "a"}}, request("allgather", 100, 5000, 9000)) == "a"


@pytest.mark.parametrize(
    ("plans", "words"),
    [
        ({}, "at least one"),
        ({"a.json": plan("x"), "b.json": plan("x")}, "two plans named 'x'"),
        ({"a.json": {"name": "x"}}, "expected an MSCCL"),
    ],
)
def test_what_cannot_be_registered_is_named(plans, words):
    """No plan, two plans of one name, and a file that is not a plan are refused."""
    with pytest.raises(InputError, match=words):
        registration_snippet(plans)
