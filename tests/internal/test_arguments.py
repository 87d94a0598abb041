"""Argument checks of public functions: clear values are accepted, others refused in one sentence."""

from __future__ import annotations

import inspect
import math
import random
import threading
import warnings
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Literal, Unpack

import numpy as np
import pytest

import taccl
from taccl._internal.arguments import checked, kinds_of, quoted, whole_number
from taccl._internal.value_readers import MOST_S
from taccl.cli.options import seconds
from taccl.errors import InputError
from taccl.problem.byte_matrices import load_sizes
from taccl.problem.chunks import Chunk
from taccl.problem.collective import Collective
from taccl.problem.collectives import CollectiveArguments  # noqa: TC001  looked up by its name
from taccl.problem.problem import Clauses
from taccl.topologies import TopologyBuilder, ring
from tests.fuzzing import cases
from tests.measure.logs import table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from os import PathLike

    from taccl._internal.arguments import Bytes, Count, Number, Seconds, Share


@checked
def asked(
    count: Count = 1,
    *numbers: int,
    seconds: Seconds = 1.0,
    share: Share = 0.0,
    kind: Literal["send", "receive"] = "send",
    several: Iterable[int] = (),
    fixed: tuple[int, int] = (0, 0),
    cost: Number = 0,
    size: Bytes | Sequence[Bytes] | None = None,
    path: str | PathLike[str] = "",
) -> dict[str, object]:
    """The arguments of a checked function, as it receives them."""
    return dict(locals())


def test_further_positional_arguments_are_answered_with_keywords():
    """The error for too many positional arguments lists keywords, and does not count ``self``."""
    ring = taccl.topologies.ring(3)
    with pytest.raises(
        TypeError, match=r"takes 2 positional arguments but 3 were given; name the others, e.g. .*size_bytes="
    ):
        taccl.make_problem(ring, "allgather", "1MB")
    with pytest.raises(
        TypeError, match="takes 1 positional argument but 2 were given; name the others, e.g. nodes="
    ):
        taccl.topologies.parse("ndv2", 2)


def test_unknown_names_of_the_facade_get_the_suggestion_of_python():
    """The error for an unknown name has the name and the module, from which Python derives a suggestion."""
    with pytest.raises(AttributeError) as caught:
        taccl.synthesise  # noqa: B018
    assert (caught.value.name, caught.value.obj) == ("synthesise", taccl)
    with pytest.raises(AttributeError, match="write `import taccl.runtime` first"):
        taccl.__getattr__("runtime")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("count", np.int32(3), 3), ("count", 1e6, 10**6), ("count", np.float64(2), 2),
        ("count", Fraction(4, 2), 2), ("seconds", "60s", 60.0), ("seconds", "5min", 300.0), ("seconds", np.float32(2), 2.0),
        ("seconds", 3, 3.0), ("share", "1%", 0.01), ("share", 0, 0.0), ("several", 3, (3,)), ("several", np.array([1, 2]), (1, 2)),
        ("several", (n for n in (1.0, 2)), (1, 2)), ("fixed", [np.int64(1), 2], (1, 2)),
        ("cost", np.float64(0.5), 0.5), ("cost", Fraction(1, 3), Fraction(1, 3)), ("size", "16MB", 16 * 10**6),
        ("size", ["1KB", np.int64(2)], (1000, 2)), ("size", "1111", 1111), ("size", None, None),
        ("path", Path("a"), Path("a")),
    ],
)  # fmt: skip
def test_what_is_plainly_meant(name, value, expected):
    """Integers of any type, sizes and times as text, and single values in place of lists are accepted."""
    given = asked(**{name: value})[name]
    assert given == expected
    assert type(given) is type(expected)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "share",
            "60s",
            "share: found '60s'; expected a share such as 0.01 or '1%'; above 1 with a percent sign",
        ),
        (
            "share",
            -0.5,
            "share: found -0.5; expected a share such as 0.01 or '1%'; above 1 with a percent sign",
        ),
        ("share", 3, "share: found 3; expected a share such as 0.01 or '1%'; above 1 with a percent sign"),
        (
            "share",
            "nan%",
            "share: found 'nan%'; expected a share such as 0.01 or '1%'; above 1 with a percent sign",
        ),
        ("count", 0, "count: found 0; expected a whole number of at least 1"),
        ("count", 1.5, "count: found 1.5; expected a whole number of at least 1"),
        ("count", True, "count: found True; expected a whole number of at least 1"),
        ("count", math.nan, "count: found nan; expected a whole number of at least 1"),
        ("count", 2**70, "count: found 1180591620717411303424; expected less than 2**63"),
        (
            "seconds",
            0,
            "seconds: found 0; expected a positive number of seconds, or a time such as '60s' or '5min'",
        ),
        (
            "seconds",
            "5",
            "seconds: found '5'; expected a positive number of seconds, or a time such as '60s' or '5min'",
        ),
        (
            "seconds",
            "5m",
            "seconds: found '5m'; expected a positive number of seconds, or a time such as '60s' or '5min'",
        ),
        (
            "seconds",
            math.inf,
            "seconds: found inf; expected a positive number of seconds, or a time such as '60s' or '5min'",
        ),
        ("kind", "recieve", "kind: found 'recieve'; expected 'send' or 'receive'; did you mean 'receive'?"),
        ("several", [1, "x"], "several[1]: found 'x'; expected a whole number"),
        ("several", {}, "several: found {}; expected several, each a whole number"),
        ("fixed", (1, 2, 3), "fixed: found (1, 2, 3); expected 2 values in order, each a whole number"),
        ("size", "1.5", "size: found '1.5', which is 1.5 bytes; expected a positive whole number"),
        ("size", -1, "size: found -1; expected a whole number of at least 1"),
        ("path", 3, "path: found 3; expected text or a path"),
        ("cost", [], "cost: found []; expected a finite number"),
    ],
)
def test_what_is_not_meant(name, value, message):
    """The error for an invalid argument names the parameter, the value found and the expected kind."""
    with pytest.raises(InputError) as caught:
        asked(**{name: value})
    assert str(caught.value) == message


def test_further_arguments_are_read_as_well():
    """Arguments after the asterisk are checked under their name."""
    assert asked(1, np.int64(2), 3.0)["numbers"] == (2, 3)
    with pytest.raises(InputError, match="numbers: found 'x'"):
        asked(1, 2, "x")


def test_equal_numbers_are_read_once(monkeypatch):
    """Of many equal sizes, each distinct one is read once; an error names the place of the first."""
    read = []
    monkeypatch.setattr(
        "taccl._internal.value_readers.parse_size", lambda value, *, where: read.append(where) or value
    )
    assert asked(size=[5, 7] * 100)["size"] == (5, 7) * 100
    assert read == ["size[0]", "size[1]"]
    with pytest.raises(InputError, match=r"^size\[2\]: found -1"):
        asked(size=[5, 5, -1, -1])


def test_each_call_reads_its_own_values():
    """Each call is checked by its own values, even if types equal those of an earlier call."""
    assert asked(np.int64(2), kind="send")["count"] == 2
    assert asked(np.int64(3), kind="receive")["count"] == 3
    with pytest.raises(InputError, match="kind"):
        asked(np.int64(3), kind="neither")


def test_an_unknown_argument_is_a_type_error_that_names_the_nearest():
    """An unknown argument is a TypeError that suggests the nearest name."""
    with pytest.raises(TypeError, match="unexpected keyword argument 'secnds'; did you mean 'seconds'"):
        asked(secnds=1)
    with pytest.raises(TypeError, match=r"make_problem\(\) got an .* 'size'; did you mean 'size_bytes'"):
        taccl.make_problem(size="1MB")


def test_keywords_of_a_record_are_read_by_its_fields():
    """Keywords of ``**arguments: Unpack[Record]`` are checked by the record's fields; others are refused."""

    @checked
    def taken(**arguments: Unpack[CollectiveArguments]) -> CollectiveArguments:
        """Return the given arguments."""
        return arguments

    assert taken(root=1.0, counts=np.array([2, 0])) == {"root": 1, "counts": (2, 0)}
    with pytest.raises(InputError, match="root: found -1; expected a whole number of at least 0"):
        taken(root=-1)
    with pytest.raises(TypeError, match="'rots'; did you mean 'root"):
        taken(rots=[1])


@pytest.mark.parametrize("number", [3, np.int64(3), np.uint8(3), 3.0, Decimal(3)])
def test_whole_numbers_of_any_kind(number):
    """A whole number of any integer type, such as numpy's, becomes a Python int."""
    assert type(whole_number(number, "seed", at_least=0)) is int


def test_what_is_found_stays_short_and_on_one_line():
    """Quoted values are short and on one line: long text, several lines, a class, and a taccl object."""
    assert len(quoted("x" * 1000)) <= 60
    assert "\n" not in quoted(np.zeros((3, 3)))
    assert quoted(int) == "the class int"
    assert quoted(ring(4)) == "a topology"


def test_endless_time_limits_are_some_decades():
    """Seconds of any length are accepted, and cut to what clocks and solvers accept."""
    assert asked(seconds=1e300)["seconds"] == MOST_S < threading.TIMEOUT_MAX
    assert seconds("1e300") == seconds("9" * 50 + "s") == MOST_S


@pytest.mark.parametrize("number", [10**400, Fraction(10**400, 3)])
def test_numbers_beyond_floats_are_refused(number):
    """Numbers larger than any float are refused where a finite number is expected."""
    for name in ("seconds", "share"):
        with pytest.raises(InputError, match=f"{name}: found .*; expected a "):
            asked(**{name: number})
    with pytest.raises(InputError, match=r"tflops: found .*; expected a finite number"):
        taccl.workload.Rates(tflops=number)


@pytest.mark.parametrize("name", ["Collective", "Execution", "Probe", "Problem", "Program", "Topology"])
@pytest.mark.parametrize(
    ("data", "message"), [({}, "found no field '.*'; it is required"), (3, "data: found 3; expected ")]
)
def test_plain_values_that_lack_a_field(name, data, message):
    """Objects made from plain values name the first field that is missing."""
    with pytest.raises(InputError, match=message):
        getattr(taccl, name).from_dict(data)


def test_paths_and_communicators_of_another_kind():
    """A number is neither a path of parameters nor a communicator, and a long one stays short in the message."""
    with pytest.raises(InputError, match="path: found 3; expected text or a path"):
        taccl.SearchParameters.load(3)
    with pytest.raises(InputError, match="rank .* does not exist") as caught:
        ring(4).without(ranks=[10**400])
    assert len(str(caught.value)) < 200


@pytest.mark.slow
def test_a_result_stands_for_its_schedule(small):
    """`verify`, `simulate` and `save` accept a result in place of its schedule."""
    assert taccl.verify(small.result).ok
    assert taccl.simulate(small.result).schedule == small.schedule


def test_what_is_another_thing_is_named(small):
    """The error for a sketch in place of a problem names the function that makes a problem."""
    with pytest.raises(InputError, match=r"problem: found a sketch; expected a problem \(.*make_problem"):
        taccl.synthesize(small.sketch)


def test_bytes_as_text_are_one_size(small):
    """``chunk_bytes="1111"`` is one size, not four chunks of 1 B."""
    problem = taccl.make_problem(small.topology, small.collective, chunk_bytes="1111")
    assert problem.chunk_bytes == (1111,) * small.collective.num_chunks


def test_what_numpy_counts_can_be_saved(tmp_path):
    """Numpy numbers in a topology, a collective and sizes are saved as Python's."""
    builder = TopologyBuilder("two", np.array([0, 0]))
    for ends in np.array([[0, 1], [1, 0]]):
        builder.add_link(*ends, alpha_us=np.float64(0.5), beta_us_per_mb=np.int64(2))
    rank = np.array([0, 1])
    collective = taccl.collectives.custom(
        np.int64(2), precondition={rank[0]: rank[:1]}, postcondition={rank[0]: rank[1:]}
    )
    problem = taccl.make_problem(
        builder.build(), collective, chunk_bytes=np.array([1000]), clauses=Clauses(max_merge=np.int64(2))
    )
    result = taccl.synthesize(problem, backend="greedy", seed=np.int64(1))
    taccl.save(result, tmp_path / "two.json")
    assert taccl.load(tmp_path / "two.json") == result.schedule


@pytest.mark.parametrize(
    "clauses",
    [
        {"links_allowed": [99]}, {"own_first": [-1]}, {"merging": [8]}, {"carries_from": {8: [0]}},
        {"carries_to": {-1: [0]}}, {"relays": [4]}, {"symmetry": [(1, 2, 3)]},
    ],
)  # fmt: skip
def test_clauses_name_what_there_is(small, clauses):
    """Clauses with an unknown link, rank or permutation are refused."""
    with pytest.raises(InputError, match=f"clauses.{next(iter(clauses))}"):
        taccl.make_problem(ring(4), taccl.collectives.allgather(4), chunk_bytes=1, clauses=Clauses(**clauses))


def test_chunks_by_hand_have_ranks_of_pythons():
    """Ranks of chunks may be lists of numpy integers; other values are refused."""
    [chunk] = Collective("mine", 2, (Chunk([np.int64(0)], (np.int64(1),), np.int64(1)),), True).chunks
    assert (chunk.origins, chunk.destinations, chunk.root) == ((0,), (1,), 1)
    assert {type(chunk.origins[0]), type(chunk.destinations[0]), type(chunk.root)} == {int}
    with pytest.raises(taccl.CollectiveError, match=r"origins\[0\]: found 'x'; expected a whole number"):
        Collective("mine", 2, (Chunk(("x",), (1,)),))


def test_what_json_cannot_hold(small, tmp_path):
    """Numpy numbers in `extra` are saved, and arbitrary objects refused."""
    taccl.save(small.schedule, tmp_path / "kept.json", extra={"seed": np.int64(3)})
    with pytest.raises(InputError, match="extra: found a value that JSON cannot hold"):
        taccl.save(small.schedule, tmp_path / "odd.json", extra={"seed": object()})


@pytest.mark.parametrize("ask", ["may_carry", "is_internode"])
def test_links_that_do_not_exist(small, ask):
    """Link 99 of a ring of two is refused."""
    with pytest.raises(InputError, match="link: found 99; expected a number from 0 to 1"):
        small.problem.may_carry(99, 0) if ask == "may_carry" else small.topology.is_internode(99)


@pytest.fixture(scope="module")
def small():
    """A ring of two, and one object of each kind on it."""
    topology = ring(2)
    collective = taccl.collectives.allgather(2)
    problem = taccl.make_problem(topology, collective, size_bytes=2000)
    result = taccl.synthesize(problem, backend="greedy", sketch="none")
    return SimpleNamespace(
        topology=topology, collective=collective, problem=problem, result=result, schedule=result.schedule,
        program=taccl.lower(result), sketch=taccl.Sketch.from_dict({"schema": 1}), name="ring:2",
    )  # fmt: skip


#: {public function: default arguments}; ``"@topology"`` stands for the object of that name.
GIVEN: dict[str, dict[str, object]] = {
    **{
        f"collectives.{name}": {"num_ranks": 2, "chunks_per_rank": 1}
        for name in ("allgather", "allreduce", "alltoall", "reduce_scatter", "scan")
    },
    **{
        f"collectives.{name}": {"num_ranks": 2, "root": 0, "chunks_per_rank": 1}
        for name in ("broadcast", "gather", "reduce", "scatter")
    },
    **{
        f"collectives.multi_root_{name}": {"num_ranks": 2, "roots": [0, 1], "chunks_per_rank": 1}
        for name in ("broadcast", "gather", "scatter")
    },
    "collectives.allgatherv": {"num_ranks": 2, "counts": [2, 1], "chunks_per_rank": 1},
    "collectives.custom": {
        "num_ranks": 2, "precondition": {0: [0]}, "postcondition": {0: [1]}, "combining": False, "name": "mine",
    },
    "collectives.make": {
        "name": "allgather", "num_ranks": 2, "root": None, "roots": None, "chunks_per_rank": 1,
    },
    "collectives.together": {"collectives": "@some"},
    "collective.among": {"ranks": [0, 1], "num_ranks": 2},
    "collective.split": {"parts": 2},
    **{f"baselines.{name}": {"problem": "@problem"} for name in ("best", "ring", "pairwise")},
    "baselines.baseline": {"name": "ring", "problem": "@problem"},
    **{f"baselines.{name}": {"problem": "@problem"} for name in ("nccl", "nccl_choices")},
    **{
        f"topologies.{name}": {
            "num_ranks": 3, "bandwidth_gb_per_s": 50, "alpha_us": 1, "alpha_meaning": "occupies",
            "ranks_per_node": 3,
        }
        for name in ("ring", "fully_connected", "star")
    },
    "topologies.hypercube": {
        "dimension": 1, "bandwidth_gb_per_s": 50, "alpha_us": 1, "alpha_meaning": "occupies",
        "ranks_per_node": 1,
    },
    "topologies.ndv2": {"nodes": 1, "profile": "taccl", "alpha_meaning": "occupies", "constants": {}},
    "topologies.dgx_a100": {"nodes": 1, "profile": "nominal", "rails": True, "constants": {}},
    "topologies.multidim": {
        "dims": "ring2@50", "alpha_us": 0.5, "alpha_meaning": "pipelined", "num_ranks": 2, "ranks_per_node": 1,
    },
    "baselines.dimension_balanced": {"problem": "@problem"},
    "dimensions": {"topology": "ring:2"},
    "aggregation.quantise": {"values": [0.5], "scale": 2.0, "ranks": 2, "most": 1.0},
    "aggregation.dequantise": {"sums": [1], "scale": 2.0},
    "aggregation.error_bound": {"ranks": 2, "scale": 2.0},
    "aggregation.largest_scale": {"most": 1.0, "ranks": 2},
    "aggregation.layer_bytes": {"model": "vgg-19"},
    "aggregation.simulate_packets": {
        "packets": 3, "workers": 2, "slots": 2, "payload_bytes": 64, "gb_per_s": 12.5, "rtt_us": 10.0,
        "loss": 0.0, "duplicates": 0.0, "reordering": 0.0, "timeout_us": None, "shadow_copy": True, "seed": 0,
    },
    "collectives.exchange": {
        "workers": 2, "servers": 1, "num_ranks": 3, "chunks_per_server": 1, "roots": None,
        "update_us_per_mb": 0,
    },
    "topologies.in_network": {
        "workers": 3, "gb_per_s": 12.5, "slots": 512, "payload_bytes": 1024, "rtt_us": 10, "dtype": "int32",
        "racks": 1, "core_oversubscription": 1,
    },
    "topologies.rack": {
        "workers": 2, "box_nics": 2, "racks": 1, "core_oversubscription": 1, "gb_per_s": 12.5, "rtt_us": 10,
    },
    "topologies.parse": {"name": "ring:2", "nodes": None, "profile": None},
    "topologies.TopologyBuilder": {
        "name": "mine", "node_of_rank": [0, 0], "alpha_meaning": "occupies", "profile": "", "machine": "",
        "cost_model": "physical",
    },
    "builder.add_link": {"src": 0, "dst": 1, "alpha_us": 1, "beta_us_per_mb": 1, "name": ""},
    "builder.add_hold": {"link": 0, "resource": 0, "alpha_us": 1, "beta_us_per_mb": 1, "side": "send"},
    "builder.add_resource": {"name": "bus"},
    "builder.add_switch": {"name": "switch", "ranks": [0, 1], "links": [0], "reduces": None},
    "topologies.InNetwork": {
        "slots": 8, "payload_bytes": 128, "dtype": "int32", "rtt_us": 10, "efficiency": 1,
    },
    "topology.links_between": {"src": 0, "dst": 1},
    "topology.is_internode": {"link": 0},
    "topology.without": {"links": [0], "ranks": [], "resources": []},
    "topology.degraded": {"links": {0: 0.5}},
    "make_problem": {
        "topology": "@topology", "collective": "allgather", "size_bytes": 2000, "chunks_per_rank": 1,
        "root": None, "roots": None, "clauses": None, "notes": (),
    },
    "Problem": {
        "topology": "@topology", "collective": "@collective", "chunk_bytes": [1, 1], "size_bytes": 2,
        "notes": (),
    },
    "clauses.Clauses": {
        "name": "", "links_allowed": [0], "carries_from": {0: [0]}, "carries_to": {0: [0]},
        "direct_crossing": False, "own_first": [0], "max_merge": 1, "merging": [0], "symmetry": [[1, 0]],
        "switch_policies": [], "link_use": "free", "objective_weight": 0.5, "routing_slack": 0.5, "where": {},
        "relays": [0],
    },
    "alltoallv_problem": {"topology": "@topology", "sizes": [[0, 1], [1, 0]], "chunk_bytes": 1, "clauses": None},
    "AllToAllV": {"topology": "@topology", "chunk_bytes": 1, "num_orders": 1, "seed": 0},
    "alltoallv_collective": {"sizes": [[0, 1], [1, 0]], "chunk_bytes": 1},
    "skewed_sizes": {"num_ranks": 3, "rank_bytes": 10, "skew": "zipf:1", "seed": 0},
    "alltoallv.load_sizes": {"path": "sizes.csv"},
    "alltoallv.schedule": {"sizes": [[0, 1], [1, 0]]},
    "problem.may_carry": {"link": 0, "chunk": 0},
    "problem.holders": {"chunk": 0},
    "verify": {"schedule": "@schedule"},
    "lower_bound": {
        "problem": "@problem", "divisible": False, "in_network": None, "budget_s": 1.0, "limit_s": None,
        "end_s": None, "finish": None,
    },
    "prices": {"problem": "@problem", "schedule": None, "time_limit_s": None},
    "bound.gap": {"finish": 100},
    "simulate": {
        "schedule": "@schedule", "size": None, "alpha": None, "profile": None, "topology": None, "tiles": 1,
        "jitter": 0.0, "seed": 0,
    },
    "schedule.table": {"limit": 1},
    "columns.make_schedule": {
        "problem": "@problem", "chunk": [0], "link": [0], "start": [0], "end": [1], "group": None,
        "reduce": None, "producer": "",
    },
    "initiation_interval": {"schedule": "@schedule"},
    "synthesize": {
        "problem": "@problem", "backend": "greedy", "time_limit_s": 2.0, "idle_share": 0.5, "threads": 1, "seed": 0, "policy": "lp",
        "memory_limit_mb": 1000, "log": False, "progress": None, "sketch": "none", "keep": "schedule",
        "spill_dir": None, "to_file": False, "in_network": "auto",
    },
    "choose_chunks": {"problem": "@problem", "time_limit_s": 2.0, "seed": 0, "progress": None},
    "replan": {
        "old": "@schedule", "problem": "@problem", "ranks": None, "time_limit_s": 0.05, "seed": 0,
        "memory_limit_mb": None,
    },
    "predict": {
        "machine": "dgx-a100", "collective": "allgather", "size": 64, "ranks": 8, "nodes": 1, "runtime": "nccl",
        "network": "roce", "network_gb_per_s": 25, "nvls": True, "ranks_per_process": 1,
    },
    "fit": {
        "logs": ["here.txt"], "topology": "dgx-h100", "nodes": 1, "collective": None, "in_place": False, "seed": 0,
    },
    "diagnose": {
        "logs": ["here.txt"], "topology": "dgx-h100", "nodes": 1, "profile": None, "collective": None,
        "in_place": False, "ranks": None, "without_ranks": (), "gains": False, "time_limit_s": 1,
    },
    "reorder": {
        "topology": "@topology", "collective": "allreduce", "algorithm": "ring", "size": "1KB",
        "time_limit_s": 1.0, "seed": 0, "progress": None,
    },
    "Probe": {
        "hosts": ["a", "b"], "latency_us": [[0, 1], [1, 0]], "bandwidth_gb_per_s": None, "sampled": False,
        "uplinks": [], "latency_spread": None,
    },
    "explain": {"problem": "@problem", "backend": "highs", "time_limit_s": 2.0},
    "check_sketch": {
        "sketch": "@sketch", "topology": "@topology", "collective": "allgather", "chunk_size": "1KB",
        "time_limit_s": 2.0,
    },
    "suggest_sketches": {
        "topology": "@topology", "collective": "allgather", "size": "1KB", "chunks_per_rank": 1, "root": None,
        "roots": None, "most": 1, "time_limit_s": 0.05, "seed": 0, "progress": None,
    },
    "sketch.apply": {
        "topology": "@topology", "collective": "allgather", "chunk_size": "1KB", "chunks_per_rank": 1,
        "root": None, "roots": None, "reachable": True,
    },
    "sketch.with_nodes": {"nodes": 1, "ranks_per_node": 2},
    "sketch.where": {"field": "chunks.size"},
    "load_sketch": {"name_or_path": "ndv2/sk1"},
    "Sketch.from_dict": {"data": {"schema": 1}, "source": ""},
    "Sketch.from_toml": {"text": "schema = 1", "source": ""},
    "Sketch.from_json": {"text": '{"schema": 1}', "source": ""},
    "lower": {
        "schedule": "@schedule", "in_place": False, "protocol": "Simple", "channels": "single",
        "num_channels": 1, "threadblocks": "per-direction", "merged": "split", "max_count": 64,
        "instances": 1, "name": "",
    },
    "interpret": {"program": "@program", "capacity": None},
    "lift": {"program": "@program", "topology": "@topology", "chunk_size": "1KB"},
    "execute": {
        "program": "@program", "size": "1KB", "dtype": "int32", "repetitions": 1, "timeout_s": 1.0, "seed": 0,
    },
    "save": {"thing": "@schedule", "path": "saved.json", "overwrite": True, "extra": None},
    "load": {"path": "here.json"},
    "write": {"schedule": "@schedule", "path": "here.csv", "format": None, "overwrite": True},
    "convert": {
        "source": "here.json", "target": "there.csv", "from_": None, "to": None, "overwrite": True,
        "load_options": None,
    },
    "compare": {
        "problem": "@problem", "backends": ["greedy"], "seeds": [0], "time_limit_s": 1.0, "num_workers": 1,
        "threads": 1, "cache": "@cache", "progress": False,
    },
    "sweep": {
        "topology": "@topology", "collective": "allgather", "sketches": [None], "sizes": ["1KB"],
        "chunks_per_rank": [1], "root": None, "backends": ["greedy"], "seeds": [0], "time_limit_s": 1.0,
        "num_workers": 1, "threads": 1, "cache": "@cache", "progress": False,
    },
    "plan": {
        "topology": "@topology", "collective": "allgather", "sketches": [None], "sizes": "1KB", "root": None,
        "baselines": False, "backend": "greedy", "time_limit_s": 0.5, "threads": 1, "seed": 0, "max_ranges": 1,
        "lowering": None, "progress": None,
    },
    "Cache": {"folder": "cache"},
    "cache.path": {"key": "0" * 64},
    "synthesize_implicit": {
        "fabric": "torus:2x2", "collective": "allgather", "chunk_size": "1KB", "chunks_per_rank": 1,
        "group": None, "seed": 0, "backend": "auto", "policy": "lp",
    },
    "baselines.hierarchical": {
        "problem": "@problem", "cut": False, "chunks": None, "order": None, "collective": "allreduce",
        "size": "1MB",
    },
    "plot.dimensions": {"schedule": "@schedule", "ax": None},
    "plot.gantt": {"schedule": "@schedule", "by": "link", "max_rows": 48, "ax": None},
    "plot.topology": {"topology": "@topology", "schedule": None, "ax": None},
    "plot.bandwidths": {"schedule": "@schedule", "sizes": ["1KB"], "budget_s": 0.2, "measured": []},
    "plot.progress": {"result": "@result", "ax": None},
    "plot.save": {"picture": "@figure", "path": "picture.svg", "overwrite": True},
    "plot.render": {"picture": "@figure", "format": "svg"},
    "Workload": {"name": "w", "num_ranks": 2, "inputs": (), "operations": (), "returned": (), "state": ()},
    "workload.Rates": {"tflops": 1, "gb_per_s": 1},
    "workload.autotransform": {
        "workload": "@layer", "topology": "@pair", "rates": None, "communication_share": 0, "tiles": [2],
        "time_limit_s": 1, "note": len,
    },
    "workload.fuse": {"workload": "@layer", "collective": "sum"},
    "workload.load_workload": {"path": "here.toml"},
    "workload.lower_step": {"step": "@scheduled", "operation": "sum"},
    "workload.overlap": {"workload": "@layer", "operations": ["g", "sum"], "tiles": 2, "axis": 0},
    "workload.reorder": {"workload": "@layer", "collective": "sum"},
    "workload.replay_step": {"step": "@scheduled", "inputs": None, "seed": 0},
    "workload.save_traces": {"step": "@scheduled", "path": "step.et", "overwrite": True},
    "workload.save_workload": {"workload": "@layer", "path": "step.toml", "overwrite": True},
    "workload.schedule_workload": {
        "workload": "@layer", "topology": "@pair", "rates": None, "communication_share": 0,
        "order": "together", "algorithm": "ring",
    },
    "workload.slice_state": {"workload": "@layer"},
    "workload.split": {"workload": "@layer", "operation": "sum", "axis": 0},
    "plot.step": {"step": "@scheduled", "max_ranks": 2, "ax": None},
    "improve": {"schedule": "@schedule", "time_limit_s": 0.05, "until_gap": None, "seed": 0},
    "runtimes.registered": {"role": "run"},
    "runtimes.unregister": {"name": "mine"},
    "runtimes.Launch": {"us": 2.5, "source": "a log", "one_kernel": False, "hops_us": (1.0, 2.0)},
    "runtimes.RunReport": {"text": "", "values": {}, "failure": "", "log": ""},
    **{
        f"{name}.from_dict": {"data": {}}
        for name in ("Collective", "Execution", "Probe", "Problem", "Program", "SearchParameters", "Topology")
    },
    "SearchParameters.load": {"path": "here.toml"},
    "builder.continuing": {"topology": "@topology"},
    "probe": {"comm": None, "ranks": 1},
    "report": {
        "found": "@schedule", "path": "report.html", "overwrite": True, "details": None, "command": "", "time_limit_s": 0.2,
    },
}  # fmt: skip

#: Values that (almost) no parameter accepts.
ODD: tuple[object, ...] = (
    None, "x", "", 1.5, math.nan, math.inf, -1, 0, True, 2**70, 10**400, object(), [], {}, b"", int, [None], ["x"],
    {"x": "x"}, (0, 0, 0), np.int64(2), np.float64(1.5), np.array([1, 2]), np.array("x"), Path("x"),
    "@result", "@sketch", lambda *_: None, Fraction(1, 3), range(3), {0, 1},
)  # fmt: skip

#: Public names that users do not call: types of results, and errors.
RETURNED = (
    "Certificate", "Diagnosis", "Dimensions", "Execution", "Explanation", "Fit", "ImplicitResult",
    "ImplicitSchedule", "Interpretation", "Placement", "Plan", "Prediction", "Prices", "Program", "Replan",
    "Result", "Schedule", "Simulation", "Sketch", "SketchProposal", "SketchReport", "SteadyState", "Verification",
    "workload.Step",
)  # fmt: skip


def public_functions():
    """{name: public function or class}, including namespaces."""
    for name in taccl.__all__:
        found = getattr(taccl, name)
        if inspect.ismodule(found):
            for inner in found.__all__:
                yield f"{name}.{inner}", getattr(found, inner)
        elif callable(found) and not (inspect.isclass(found) and issubclass(found, BaseException)):
            yield name, found


def test_every_public_function_is_checked():
    """Every public function with arguments checks them."""
    unchecked, num_functions = [], 0
    for name, function in public_functions():
        if name in RETURNED or not callable(function) or not inspect.signature(function).parameters:
            continue
        num_functions += 1
        called = function.__init__ if inspect.isclass(function) else function
        if not hasattr(called, "__wrapped__") or not any(kinds_of(called).values()):
            unchecked.append(name)
    assert not unchecked
    assert num_functions > 100


@pytest.mark.fuzz
def test_odd_arguments_are_accepted_or_named(small, tmp_path, monkeypatch):
    """Thousands of wrong arguments are each accepted or refused in a sentence that names the argument."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("taccl.runtime.execute.execute_job", lambda make, note: None)
    for limit in ("_MOST_DRAWN", "_MOST_REPLAYED"):
        monkeypatch.setattr(f"taccl.plot.report.{limit}", 0)
    taccl.save(small.result, "here.json")
    (tmp_path / "here.txt").write_text(table(sizes=(2**20, 2**30)))
    builder = TopologyBuilder("two", [0, 0])
    builder.add_link(0, 1, alpha_us=1, beta_us_per_mb=1)
    pair, layer = ring(2), taccl.Workload("w", 2).input("x", (4,), layout="sliced(0)")
    layer = layer.then("g", "compute", "x", shape=(4, 4), layout="partial", cost_us=1).then(
        "sum", "allreduce", "g"
    )
    taccl.workload.save_workload(layer, "here.toml")
    exchanges = SimpleNamespace(load_sizes=load_sizes, schedule=taccl.AllToAllV(pair).schedule)
    things = vars(small) | {
        "alltoallv": exchanges, "pair": pair, "layer": layer, "scheduled": taccl.workload.schedule_workload(layer, pair),
        "some": [small.collective], "figure": taccl.plot.gantt(small.schedule),
        "builder": builder, "bound": small.result.bound, "cache": taccl.Cache("cache"), "clauses": taccl.problem.clauses, "columns": taccl.schedule.schedule,
    }  # fmt: skip

    def meant(value):
        return things[value[1:]] if isinstance(value, str) and value.startswith("@") else value

    every = [(name, part, odd) for name, given in GIVEN.items() for part in given for odd in ODD]
    random.Random(0).shuffle(every)
    wrong = []
    for seed in cases("odd arguments", few=250, many=len(every)):
        name, part, odd = every[seed % len(every)]
        given = {key: meant(value) for key, value in (GIVEN[name] | {part: odd}).items()}
        owner, _, inner = name.rpartition(".")
        place = (things[owner] if owner in things else getattr(taccl, owner)) if owner else taccl
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fault = misuse(getattr(place, inner), given, part)
        if fault:
            wrong.append(f"{name}({part}={quoted(given[part])}): {fault}")
    assert not wrong, "\n".join(wrong)


def misuse(function, given, part):
    """Text that describes a function's wrong reaction to an odd argument; empty if the reaction is right."""
    try:
        function(**given)
    except taccl.TacclError as error:
        known = (
            *given,
            function.__qualname__.partition(".")[0].lower(),
            "chunk_bytes",
            "parameters",
            "schema",
            "x:",
            "here.txt",
            *([str(given[part])] if isinstance(given[part], (str, Path)) else ()),
        )
        return "" if any(name in str(error) for name in known) else f"does not name it: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
