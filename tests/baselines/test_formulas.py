"""Finishes of merged sums on tori and meshes against their formulas."""

import itertools
from math import prod

import pytest

import taccl
from taccl.baselines import (
    bine,
    bucket,
    buckets,
    dimension_balanced,
    hierarchical,
    one_shot,
    recursive,
    swing,
    tree_mixes,
)
from taccl.topology.fabrics import mesh
from tests.fuzzing import MANY, thinned

#: Bytes: smallest, middle and largest, or more with ``TACCL_MANY``.
SIZES = [16_000, 64_000, 256_000, 10**6, 4 * 10**6, 16 * 10**6] if MANY else [16_000, 10**6, 16 * 10**6]
#: `ALPHA`: latency of a link in us per send.
#: `BETA`: us per byte over a link.
ALPHA, BETA = 0.5, 20e-6


@pytest.fixture(autouse=True)
def _without_hubs(monkeypatch):
    """Leave sums at hubs out, which `bucket` would return where they finish sooner; they have their own tests."""
    monkeypatch.setattr(tree_mixes, "soonest_plan", lambda *_, **__: None)


def steps_of(sizes):
    """Step numbers of recursive halving, counted within each dimension; dimensions alternate.

    Dimensions of 4 and 8 ranks give 0, 0, 1, 1, 2.
    """
    return [
        step for step, _ in sorted((s, k) for k, n in enumerate(sizes) for s in range(n.bit_length() - 1))
    ]


def exchange_us(sizes, num_bytes, hops, parts):
    """Time in us of halving and doubling, or of doubling with whole sums, whichever is faster; `hops(step)`
    is the partner's distance."""
    share, steps = num_bytes * BETA / parts, steps_of(sizes)
    halving = 2 * sum(hops(step) * (ALPHA + share / 2 ** (s + 1)) for s, step in enumerate(steps))
    return min(halving, sum(hops(step) * (ALPHA + share) for step in steps))


def swing_us(sizes, num_bytes):
    """Time in us of Swing on all ports of a torus (De Sensi et al., NSDI 2024); relayed messages pay for
    every hop."""
    return exchange_us(sizes, num_bytes, lambda s: abs(1 - (-2) ** (s + 1)) // 3, 2 * len(sizes))


def recursive_us(sizes, num_bytes):
    """Time in us of halving and doubling, with one part of the data per dimension and partners 1, 2, 4, ...
    links away."""
    return exchange_us(sizes, num_bytes, lambda s: 2**s, len(sizes))


def bucket_us(sizes, num_bytes, *, is_mesh):
    """Time in us of buckets along all dimensions at once.

    On a torus data goes half a ring each way, on a mesh the length of a line both ways.
    """
    steps = sum(size - 1 if is_mesh else size // 2 for size in sizes)
    share = num_bytes * BETA / len(sizes) / (1 if is_mesh else 2)
    return 2 * (steps * ALPHA + share * (1 - 1 / prod(sizes)))


def whole_sums_us(size, num_dims, scattered, num_bytes, *, is_mesh):
    """Time in us of buckets along the first `scattered` of `num_dims` dimensions of equal size, and whole
    sums along the others."""
    steps = size - 1 if is_mesh else size // 2
    share = num_bytes * BETA / num_dims * (2 if is_mesh else 1)
    buckets = sum((size - 1) / size ** (k + 1) for k in range(scattered))
    whole = (num_dims - scattered) * (size - 1) / (2 * size**scattered)
    return (num_dims + scattered) * steps * ALPHA + share * (buckets + whole)


def allreduce(sizes, num_bytes, make=taccl.topologies.torus):
    """The problem of an allreduce with an open number of chunks."""
    return taccl.make_problem(make(*sizes), "allreduce", size_bytes=num_bytes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "make", "num_bytes"),
    [
        *itertools.product([(4, 4)], [taccl.topologies.torus, mesh], SIZES),
        *thinned(itertools.product([(8, 8), (4, 4, 4)], [taccl.topologies.torus, mesh], SIZES), every=15),
    ],
)
def test_bucket_takes_what_its_formula_says(sizes, make, num_bytes):
    """Merged buckets finish at most 5 % later than their formula on tori and meshes, from 16 KB to 16 MB."""
    found = bucket(allreduce(sizes, num_bytes, make))
    assert found.finish_us <= 1.05 * bucket_us(sizes, num_bytes, is_mesh=make is mesh)
    assert taccl.verify(found).ok


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "num_bytes", "scattered"),
    thinned([((4, 4), 256_000, 1), ((8, 8), 64_000, 1), ((8, 8), 256_000, 1), ((4, 4, 4), 10**6, 2)]),
)
@pytest.mark.parametrize("make", [taccl.topologies.torus, mesh] if MANY else [taccl.topologies.torus])
def test_buckets_with_whole_sums_take_what_their_formula_says(sizes, num_bytes, scattered, make):
    """Small sums are scattered along only some dimensions, and finish within 1 % of the formula."""
    found = bucket(allreduce(sizes, num_bytes, make))
    least = whole_sums_us(sizes[0], len(sizes), scattered, num_bytes, is_mesh=make is mesh)
    assert found.finish_us <= 1.01 * least and taccl.verify(found).ok


@pytest.mark.parametrize("name", ["allgather", "reduce-scatter", "allreduce"])
@pytest.mark.parametrize("sizes", [(4, 8), (3, 5), (4, 2, 8)])
def test_unlike_dimensions_of_a_torus_are_loaded_equally(sizes, name):
    """16 MB take at most 8 % longer than their bytes over equally loaded links, and a latency per message.

    Each link has at most one message per hop of the diameter and dimension.
    """
    found = bucket(taccl.make_problem(taccl.topologies.torus(*sizes), name, size_bytes=16 * 10**6))
    phases, ports = 1 + (name == "allreduce"), sum(2 if size > 2 else 1 for size in sizes)
    busy_us = 16 * BETA * 10**6 * (1 - 1 / prod(sizes)) / ports
    messages = len(sizes) * sum(size // 2 for size in sizes)
    assert found.finish_us <= phases * (1.08 * busy_us + messages * ALPHA)
    assert taccl.verify(found).ok


@pytest.mark.parametrize(
    ("make", "sizes", "num_bytes", "share"),
    [
        (taccl.topologies.torus, (4, 8), 64_000, 0.9),
        (taccl.topologies.torus, (4, 8), 10**6, 0.87),
        (mesh, (4, 8), 64_000, 0.92),
        (mesh, (4, 8), 16 * 10**6, 0.92),
        (taccl.topologies.torus, (4, 4, 8), 16 * 10**6, 0.82),
    ],
)
def test_rounds_take_less_time_than_passes_on_unlike_dimensions(make, sizes, num_bytes, share, monkeypatch):
    """In rounds, an allgather takes at most `share` of the time that chunks dimension by dimension take."""
    problem = taccl.make_problem(make(*sizes), "allgather", size_bytes=num_bytes)
    found = bucket(problem)
    monkeypatch.setattr(buckets, "_or_in_rounds", lambda found, *_, **__: found)
    assert found.producer.startswith("bucket (in rounds")
    assert found.finish_us <= share * bucket(problem).finish_us and taccl.verify(found).ok


@pytest.mark.parametrize(("rates", "most"), [((25, 50), 1.03), ((20, 50), 1.03), ((100, 25), 1.2)])
def test_rounds_load_slow_dimensions_less(rates, most):
    """On a torus with unlike bandwidths, data cross the slow dimension first, while they are few copies.

    64 MB take at most `most` times as long as their bytes over the bandwidth of a rank.
    """
    topology = taccl.topologies.torus(4, 4, bandwidth_gb_per_s=rates)
    found = bucket(taccl.make_problem(topology, "allgather", size_bytes=64 * 10**6))
    rank_us = 64_000 * 15 / 16 / (2 * sum(rates))
    assert found.finish_us <= most * rank_us and taccl.verify(found).ok


@pytest.mark.parametrize(
    ("sizes", "num_bytes"), [((4, 4), 10**6), ((8, 8), 64_000), ((4, 4, 4), 16_000), ((2,) * 5, 10**6)]
)
def test_an_alltoall_keeps_all_links_of_a_torus_busy(sizes, num_bytes):
    """A chunk passes a quarter of a dimension's links on average, and all ports share its bytes.

    Latencies of the longest way are added, and those of steps that carry few chunks.
    """
    found = bucket(taccl.make_problem(taccl.topologies.torus(*sizes), "alltoall", size_bytes=num_bytes))
    steps, size = sum(each // 2 for each in sizes), sizes[0]
    ports = 1 if size == 2 else 2
    busy_us = num_bytes * BETA * size / 4 / ports
    assert steps * ALPHA + busy_us <= found.finish_us <= steps * ALPHA + 1.33 * busy_us
    assert taccl.verify(found).ok


@pytest.mark.parametrize(("sizes", "num_bytes"), [((4, 8), 16 * 10**6), ((3, 3), 10**7)])
def test_an_alltoall_keeps_the_middle_links_of_a_mesh_busy(sizes, num_bytes):
    """Half of each rank's bytes pass the middle of the longest line, or somewhat less if its size is odd."""
    found = bucket(taccl.make_problem(mesh(*sizes), "alltoall", size_bytes=num_bytes))
    size = max(sizes)
    busy_us = num_bytes * BETA * (size // 2) * (size - size // 2) / size
    assert busy_us < found.finish_us <= 1.06 * busy_us
    assert taccl.verify(found).ok


@pytest.mark.parametrize(("make", "ports"), [(taccl.topologies.torus, 4), (mesh, 2)])
@pytest.mark.parametrize("name", ["scatter", "gather"])
def test_a_scatter_sends_what_goes_farthest_first(name, make, ports):
    """Chunks for a row or column of 16 x 16 ranks are one message: it waits for others at the root only.

    Of the root's port, a message occupies a latency and the time of its bytes. On its way it needs as many
    latencies as the root is far, while the following messages are sent.
    """
    num_bytes = 10**6
    found = bucket(taccl.make_problem(make(16, 16), name, size_bytes=num_bytes))
    far = 16 if ports == 4 else 30
    port_us = num_bytes * BETA / ports + far / 2 * ALPHA
    assert found.finish_us <= port_us + 1.1 * far / 2 * ALPHA
    assert taccl.verify(found).ok


@pytest.mark.parametrize("make", [taccl.topologies.torus, mesh])
@pytest.mark.parametrize("name", ["alltoall", "scatter", "gather"])
@pytest.mark.parametrize("sizes", [(3, 5), (2, 3, 4)])
def test_chunks_of_two_ranks_pass_unlike_dimensions(sizes, name, make):
    """Chunks from one rank to one rank pass dimensions of even and odd sizes, whole or cut."""
    problem = taccl.make_problem(make(*sizes), name, size_bytes=24_000)
    for cut in (False, True):
        assert taccl.verify(bucket(problem, cut=cut)).ok


@pytest.mark.slow
@pytest.mark.parametrize("make", [taccl.topologies.torus, mesh])
@pytest.mark.parametrize("sizes", [(3, 5), (2, 3, 4)])
def test_whole_sums_of_unlike_dimensions_are_valid(sizes, make):
    """Bucket schedules for 2.4 KB over unequal dimensions are valid, in finer chunks as well as in the
    problem's own."""
    problem = allreduce(sizes, 2_400, make)
    for cut in (False, True):
        assert taccl.verify(bucket(problem, cut=cut)).ok


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "formula", "sizes", "num_bytes"),
    [
        *((swing, swing_us, (4, 4), num_bytes) for num_bytes in SIZES),
        *((bine, swing_us, (4, 4), num_bytes) for num_bytes in SIZES),
        *((recursive, recursive_us, (4, 4), num_bytes) for num_bytes in SIZES),
        *((swing, swing_us, sizes, 10**6) for sizes in ((8, 8), (4, 4, 4))),
        *((swing, swing_us, sizes, 16 * 10**6) for sizes in ((8, 8), (4, 4, 4)) if MANY),
    ],
)
def test_exchanges_take_what_their_formula_says(function, formula, sizes, num_bytes):
    """Merged exchanges with Swing's partners, and halving and doubling, finish within 5 % of their formula on tori."""
    found = function(allreduce(sizes, num_bytes))
    assert found.finish_us <= 1.05 * formula(sizes, num_bytes) and taccl.verify(found).ok


@pytest.mark.slow
@pytest.mark.parametrize("sizes", thinned([(8, 8), (4, 4, 4)]))
def test_whole_sums_of_few_bytes_use_all_ports(sizes):
    """Swing sends whole sums of 16 KB over all ports of 64 ranks, and finishes at most 0.1 % later than its
    formula."""
    found = swing(allreduce(sizes, 16_000))
    assert found.finish_us <= 1.001 * swing_us(sizes, 16_000) and taccl.verify(found).ok


@pytest.mark.slow
@pytest.mark.parametrize("function", [dimension_balanced, hierarchical, one_shot])
def test_remaining_baselines_merge_their_messages(function):
    """With an open number of chunks a baseline with many chunks per message finishes sooner by merging."""
    problem = allreduce((4, 4), 64_000)
    found = function(problem)
    assert found.problem.clauses.merging and taccl.verify(found).ok
    assert found.finish < function(problem, cut=False).finish


def test_a_cut_baseline_is_compared_in_microseconds():
    """Schedules in chunks of different sizes are compared in microseconds, not ticks."""
    problem = allreduce((4, 4), 10**6, mesh)
    assert bucket(problem).finish_us < bucket(problem, cut=False).finish_us


def test_given_chunks_do_not_merge():
    """If the number of chunks is given, `bucket` merges them no further than the problem's clauses say."""
    problem = taccl.make_problem(mesh(4, 4), "allreduce", size_bytes=10**6, chunks_per_rank=1)
    assert bucket(problem).problem.clauses == problem.clauses


def test_bucket_is_for_tori_and_meshes():
    """On other topologies `bucket` says that it needs a torus or a mesh."""
    problem = taccl.make_problem(taccl.topologies.ndv2(), "allreduce", size_bytes=10**6)
    with pytest.raises(taccl.InputError, match="bucket needs a torus or a mesh"):
        bucket(problem)
