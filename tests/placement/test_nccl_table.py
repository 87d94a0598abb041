"""NCCL's tuning table, judged by a plugin written after the documented rules of NVIDIA's example."""

import shutil
import subprocess
from importlib import import_module
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import taccl
from taccl.errors import InputError
from taccl.placement.nccl_table import nccl_tuner
from taccl.topology.registry import parse
from tests.fuzzing import thinned

COLLECTIVES = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
SIZES = [0, 1, *(size for power in range(3, 36) for size in ((1 << power) - 1, 1 << power))]
#: (nodes, ranks) of communicators: all ranks, over any number of servers, and smaller ones.
COMMUNICATORS = ((1, 8), (2, 8), (8, 8), (1, 2), (3, 6), (8, 64))


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    """Path of the compiled plugin."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler is here to compile the plugin with")
    path = tmp_path_factory.mktemp("tuner") / "tuner"
    source = Path(__file__).with_name("tuner.c")
    subprocess.run([compiler, "-O1", "-Wall", "-Werror", "-o", str(path), str(source)], check=True)
    return path


@pytest.fixture(scope="module")
def hosts():
    """Probe of eight hosts in two racks, from a matrix of latencies."""
    rack = np.arange(8) // 4
    return taccl.Probe(tuple("abcdefgh"), np.where(rack[:, None] == rack, 10.0, 20.0)).topology()


@pytest.fixture(scope="module")
def table(hosts):
    """Tuning table of the hosts."""
    return nccl_tuner(hosts)


def answers(plugin, table, queries):
    """{query: (algorithm, protocol, channels)}; a query is (collective, bytes, nodes, ranks, unavailable)."""
    path = plugin.with_name("table.csv")
    path.write_text(table)
    lines = "".join(f"{c} {size} {nodes} {ranks} 1 0 {gone}\n" for c, size, nodes, ranks, gone in queries)
    done = subprocess.run([plugin, path], input=lines, capture_output=True, text=True, check=True)
    words = [line.split() for line in done.stdout.splitlines()]
    return {
        q: (algorithm, protocol, int(n)) for q, (algorithm, protocol, n) in zip(queries, words, strict=True)
    }


def every(gone=("none",)):
    """Queries for every collective, size, communicator, and unavailable protocol."""
    return [
        (c, size, *comm, none) for c, size, comm, none in product(COLLECTIVES, SIZES, COMMUNICATORS, gone)
    ]


def test_a_rule_without_channels_leaves_one(plugin):
    """The plugin of these tests behaves like NVIDIA's: a rule with -1 channels, and a missing rule, give one
    channel."""
    table = "allreduce,0,1023,ring,ll,-1,-1,-1\n"
    queries = [("allreduce", 8, 1, 8, "none"), ("allreduce", 1024, 1, 8, "none")]
    assert [*answers(plugin, table, queries).values()] == [("ring", "ll", 1), ("none", "none", 1)]


@pytest.mark.slow
def test_every_call_has_a_rule_with_channels(plugin, table):
    """Every collective, size and communicator has a rule, even if a protocol is unavailable."""
    found = answers(
        plugin, table, every(("none", "ll128", "ll", "simple", "ll,ll128", "ll,simple", "ll128,simple"))
    )
    assert min(channels for _, _, channels in found.values()) >= 2
    assert "none" not in {algorithm for algorithm, _, _ in found.values()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "nodes"), thinned([("ndv2", 2), ("dgx-a100", 2), ("mi300x", 1), ("dgx-h100", 1)], every=2)
)
def test_machines_have_a_rule_for_every_call(plugin, machine, nodes):
    """Machines have a rule for every call, whatever protocols their profiles have."""
    topology = taccl.topologies.parse(machine, nodes=nodes)
    found = answers(plugin, nccl_tuner(topology), every(("none", "ll128")))
    assert min(channels for _, _, channels in found.values()) >= 2


def test_a_machine_is_compared_with_its_model_once(monkeypatch):
    """A machine by name is built once more, to see that it is unchanged, and not for each collective."""
    topology, built = taccl.topologies.ndv2(2), []

    def counted(*given, **options):
        built.append(given)
        return parse(*given, **options)

    monkeypatch.setattr(import_module("taccl.baselines.nccl"), "parse", counted)
    nccl_tuner(topology)
    assert built == [("ndv2",)]


def first_rules(topology, num_ranks=None):
    """{(collective, smallest size): (algorithm, protocol)} of the first rule for `num_ranks`, or for all."""
    rules = {}
    for line in nccl_tuner(topology).splitlines():
        if not line.startswith("#"):
            kind, least, _, algorithm, protocol, _, _, ranks = line.split(",")
            if int(ranks) == (num_ranks or topology.num_ranks):
                rules.setdefault((kind, int(least)), (algorithm, protocol))
    return rules


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "of", "ranks", "nodes"),
    [
        ("ndv2", 2, 16, 2), ("dgx-h100", 1, 8, 1), ("dgx-h100", 4, 32, 4),
        ("dgx-h100", 4, 8, 1), ("dgx-h100", 4, 2, 1), ("dgx-h100", 4, 16, 2), ("ndv2", 9, 9, 9),
    ],
)  # fmt: skip
def test_machines_keep_what_nccl_chooses(machine, of, ranks, nodes):
    """On `of` nodes of a machine by name, the first rule is that of `taccl.predict`, which follows NCCL.

    That also holds for smaller communicators, in a node or of whole nodes. A rule of LL at 4 MB instead of
    LL128 takes five times as long on four DGX-H100.
    """
    rules = first_rules(taccl.topologies.parse(machine, nodes=of), ranks)
    kinds = {"allreduce": "allreduce", "reduce-scatter": "reducescatter", "broadcast": "broadcast"}
    nvls = "nvls_tree" if nodes > 1 else "nvls"
    for kind, name in kinds.items():
        for (rule_of, size), rule in rules.items():
            if rule_of == name and size:
                said = taccl.predict(machine, kind, size, ranks=ranks, nodes=nodes)
                assert rule == (nvls if said.algorithm == "nvls" else said.algorithm, said.protocol), size


@pytest.mark.slow
def test_ll_between_hosts_ends_at_its_rate_in_nccl():
    """Between many servers LL reaches 20.4 GB/s, however fast their NICs are.

    On rings of eight hosts of 400 GB/s, LL takes 44 us + 0.086 us per KB, and LL128 70 us + 0.005 us per KB.
    So LL128 is faster from 512 KB on.
    """
    topology = taccl.Probe(tuple("abcdefgh"), np.full((8, 8), 5.0), np.full((8, 8), 400.0)).topology()
    rules = first_rules(topology)
    assert max(size for (_, size), (_, protocol) in rules.items() if protocol == "ll") <= 2**18


#: NCCL 2.30: bytes per thread and threads per channel, by protocol; 256 threads for simple on PCIe alone.
THREADS = {"ll": (8, 512), "ll128": (8, 640), "simple": (64, 256)}


def default_channels(algorithm, protocol, size, ranks):
    """Number of channels that NCCL chooses for a ring or tree: up to 64, each thread with a minimum of bytes."""
    least, threads = THREADS[protocol]
    if (algorithm, protocol) == ("ring", "ll"):
        least *= ranks
    channels = 64
    while channels >= 2 and size < channels * threads * least:
        channels -= 1
    return channels


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["", "dgx-h100"])
def test_no_call_has_fewer_channels_than_without_the_plugin(plugin, table, machine):
    """For all communicators and sizes, the number of channels is at least that of NCCL without the plugin."""
    told = nccl_tuner(taccl.topologies.parse(machine)) if machine else table
    for query, (algorithm, protocol, channels) in answers(plugin, told, every()).items():
        if algorithm in ("ring", "tree"):
            assert channels >= default_channels(algorithm, protocol, query[1], query[3]), query


@pytest.mark.slow
@pytest.mark.parametrize(
    "only", ["ring", "tree", "nvls", "nvls_tree", "collnet_direct", "collnet_chain", "pat"]
)
def test_an_algorithm_that_the_user_forces_has_channels(plugin, table, only):
    """If NCCL_ALGO leaves one algorithm, calls get more than one channel, provided that NCCL supports it."""
    algorithms = ("ring", "tree", "nvls", "nvls_tree", "collnet_direct", "collnet_chain", "pat")
    gone = ",".join(each for each in algorithms if each != only)
    has_it = {
        "ring": COLLECTIVES, "tree": ("allreduce",), "nvls_tree": ("allreduce",), "collnet_chain": ("allreduce",),
        "nvls": COLLECTIVES[2:], "collnet_direct": COLLECTIVES[2:], "pat": COLLECTIVES[2:4],
    }[only]  # fmt: skip
    for query, (algorithm, _, channels) in answers(plugin, table, every((gone,))).items():
        assert (algorithm, channels >= 2) == ((only, True) if query[0] in has_it else ("none", False))


@pytest.mark.slow
@pytest.mark.parametrize("forced", ["none", "ring", "tree,nvls,nvls_tree,collnet_direct,collnet_chain"])
def test_simple_is_not_forced_on_small_messages(plugin, table, forced):
    """Up to 16 KiB rings and trees use LL, even if the user excludes some algorithms."""
    sizes = [size for size in SIZES if size <= 1 << 14]
    queries = [(c, s, *comm, forced) for c, s, comm in product(COLLECTIVES, sizes, COMMUNICATORS)]
    found = answers(plugin, table, queries).values()
    assert {protocol for algorithm, protocol, _ in found if algorithm in ("ring", "tree")} == {"ll"}


@pytest.mark.slow
def test_small_messages_go_by_ll_and_large_ones_by_simple(plugin, table):
    """Each collective of 8 B uses LL; a ring of 1 GiB uses simple with all channels."""
    found = answers(plugin, table, [(c, s, 8, 8, "none") for c in COLLECTIVES for s in (8, 1 << 30)])
    for collective in COLLECTIVES:
        assert found[collective, 8, 8, 8, "none"][1] == "ll"
        assert found[collective, 1 << 30, 8, 8, "none"] == ("ring", "simple", 64)
    assert found["allreduce", 8, 8, 8, "none"][0] == "tree"


@pytest.mark.slow
def test_only_allreduces_go_along_trees(plugin, table):
    """Only allreduces have rules for trees: for other collectives NCCL skips them, and uses one channel."""
    found = answers(plugin, table, every())
    assert {query[0] for query, (algorithm, _, _) in found.items() if algorithm == "tree"} == {"allreduce"}


@pytest.mark.slow
def test_servers_are_not_counted_by_clusters(plugin, table):
    """Answers depend on a communicator's number of ranks, not on the number of servers that NCCL finds."""
    found = answers(
        plugin, table, [(c, s, n, 8, "none") for c in COLLECTIVES for s in SIZES for n in (1, 2, 8)]
    )
    for collective, size in product(COLLECTIVES, SIZES):
        assert len({found[collective, size, nodes, 8, "none"] for nodes in (1, 2, 8)}) == 1


def test_rings_inside_a_server_are_not_simulated_in_rank_order(plugin):
    """NCCL orders rings inside a server itself: on a DGX-1, whose ranks 0 to 7 form a ring with PCIe, rings remain.

    A matrix of its GPUs also counts as one server, not as eight hosts.
    """
    machine = taccl.topologies.dgx1()
    rates = np.full((8, 8), 9.5)
    for link in machine.links:
        rates[link.src, link.dst] = 1000 / float(link.beta_us_per_mb)
    probe = taccl.Probe(tuple(f"GPU {rank}" for rank in range(8)), bandwidth_gb_per_s=rates)
    queries = [("allreduce", 1 << power, 1, 8, "none") for power in range(24, 34)]
    for num_nodes in (None, 8):
        table = nccl_tuner(probe.topology(), num_nodes=num_nodes)
        assert {each[0] for each in answers(plugin, table, queries).values()} == {"ring"}


def test_one_rank_is_refused():
    """A topology of one rank is refused, as it sends nothing."""
    with pytest.raises(InputError, match="found one rank"):
        nccl_tuner(taccl.topologies.TopologyBuilder("one", [0]).build())


@pytest.mark.slow
def test_channels_that_nccl_does_not_limit_are_few(plugin, table):
    """CollNet, and NVLS between servers, use the table's number even if NCCL built fewer channels."""
    names = ("ring", "tree", "nvls", "nvls_tree", "collnet_direct", "collnet_chain", "pat")
    told = nccl_tuner(taccl.topologies.parse("dgx-h100"))
    for text, only in product((table, told), ("nvls", "collnet_direct", "collnet_chain")):
        gone = ",".join(each for each in names if each != only)
        found = answers(plugin, text, [("allreduce", s, n, 8, gone) for s in SIZES for n in (1, 2)])
        for (_, _, nodes, _, _), (algorithm, _, channels) in found.items():
            assert (algorithm, channels) == (only, 64 if (only, nodes) == ("nvls", 1) else 2)


def test_the_table_names_the_variable_that_limits_channels_of_broadcasts(table):
    """The file says to set NCCL_ALLGATHERV_ENABLE=0: broadcasts of NCCL 2.29 do not limit their channels."""
    assert "\n# NCCL 2.29 and later also need NCCL_ALLGATHERV_ENABLE=0" in table


def test_rules_for_amd_have_as_many_channels_as_rccl_builds():
    """RCCL builds up to 112 channels, so a limit of 64 would slow rings, and has trees in 64 of them."""
    text = nccl_tuner(taccl.topologies.parse("mi300x"))
    rules = [line.split(",") for line in text.splitlines() if not line.startswith("#")]
    assert {rule[5] for rule in rules if rule[3] in ("ring", "pat")} == {"112"}
    assert {rule[5] for rule in rules if rule[3] == "tree"} == {"64"}
    assert "ALLGATHERV" not in text
