"""Allgatherv: definition, bounds, bandwidth, formats and runs."""

import random

import numpy as np
import pytest

import taccl
from taccl import collectives
from taccl.analysis.certificates.bounds import lower_bound
from taccl.baselines import BASELINES
from taccl.errors import CollectiveError, ExportError
from taccl.formats.msccl.xml import dump_msccl_xml, parse_msccl_xml
from taccl.formats.mscclpp.plan import build_mscclpp_plan
from taccl.formats.torch.module import dump_torch_module
from taccl.program.interpret import interpret
from tests.effort import brief_synthesis
from tests.fuzzing import cases
from tests.synthesis.brute_force import optimal_ticks
from tests.synthesis.small_problems import MB, full, problem_of, ring


def gathered(schedule, data):
    """Output of every rank from replaying a schedule on arrays, independent of the verifier."""
    collective, links = schedule.problem.collective, schedule.problem.topology.links
    pieces = np.split(np.concatenate(data), collective.num_chunks) if collective.num_chunks else []
    memory = [
        {c: pieces[c] for c, each in enumerate(collective.chunks) if r in each.origins}
        for r in range(len(data))
    ]
    for each in sorted(schedule, key=lambda each: each.end_ticks):
        link = links[each.link]
        memory[link.dsts[0]][each.chunk] = memory[link.srcs[0]][each.chunk]
    return [
        np.concatenate([held[c] for c in range(collective.num_chunks)] or [np.zeros(0)]) for held in memory
    ]


@pytest.mark.slow
def test_every_rank_ends_with_the_data_of_all():
    """Schedules of the search and of baselines equal the concatenation of all data."""
    for seed in cases("allgatherv by its definition", few=6, many=300):
        rng = random.Random(seed)
        num_ranks, pieces = rng.randint(2, 4), rng.randint(1, 2)
        counts = [rng.randint(0, 3) for _ in range(num_ranks)]
        data = [np.array([rng.random() for _ in range(2 * pieces * n)]) for n in counts]
        topology = rng.choice((ring, full))(num_ranks)
        collective = collectives.allgatherv(num_ranks, counts=counts, chunks_per_rank=pieces)
        problem = problem_of(topology, collective)
        found = [brief_synthesis(problem, backend="greedy", sketch="none").schedule]
        for make in BASELINES.values():
            try:
                found.append(make(problem, cut=False))
            except CollectiveError:
                continue
        assert len(found) > 2
        for schedule in found:
            taccl.verify(schedule).raise_if_failed()
            for output in gathered(schedule, data):
                assert np.array_equal(output, np.concatenate(data))


@pytest.mark.slow
def test_no_bound_is_above_the_optimum():
    """On two and three ranks exhaustive search finds nothing below the bound."""
    solved = 0
    for seed in cases("bounds of allgatherv", few=4, many=200):
        rng = random.Random(seed)
        num_ranks = rng.randint(2, 3)
        counts = [rng.randint(0, 2) for _ in range(num_ranks)]
        problem = problem_of(
            rng.choice((ring, full))(num_ranks), collectives.allgatherv(num_ranks, counts=counts)
        )
        bound = lower_bound(problem)
        best = optimal_ticks(problem)
        if best is None:
            continue
        assert bound.bound <= problem.costs.us(best)
        assert bound.check()
        solved += 1
    assert solved > 2


def test_chunks_are_numbered_by_rank():
    """Rank r has counts[r] chunks, each cut into `chunks_per_rank` pieces."""
    collective = collectives.make("allgatherv", 3, counts=np.array([2, 0, 1]), chunks_per_rank=2)
    assert [chunk.origins for chunk in collective.chunks] == [(0,)] * 4 + [(2,)] * 2
    assert {chunk.destinations for chunk in collective.chunks} == {(0, 1, 2)}
    assert collective.size_chunks == 6


def test_equal_counts_make_an_allgather():
    """An allgatherv with equal counts has the chunks and the bandwidth factor of an allgather."""
    uneven, even = collectives.allgatherv(4, counts=[2] * 4), collectives.allgather(4, chunks_per_rank=2)
    assert uneven.chunks == even.chunks
    assert uneven.busbw_factor == even.busbw_factor == 3 / 4


def test_bandwidth_factor_is_what_the_rank_with_least_data_receives():
    """The bandwidth factor is the share of all data received by the rank that contributes least.

    The rank with 1 of 6 chunks receives the other 5: factor 5/6. Groups count their own chunks.
    """
    uneven = collectives.allgatherv(3, counts=[1, 2, 3])
    assert uneven.busbw_factor == uneven.split(2).busbw_factor == pytest.approx(5 / 6)
    groups = [uneven.among(ranks, num_ranks=6) for ranks in ([0, 2, 4], [5, 3, 1])]
    assert collectives.together(groups).busbw_factor == pytest.approx(5 / 6)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        (None, "counts: allgatherv needs counts"),
        ([1, 2], "counts: found 2 numbers; expected one for each of 3 ranks"),
        ([1, -1, 2], r"counts\[1\]: found -1; expected a whole number of at least 0"),
        ([1, 2**40, 2], "expected at most"),
    ],
)
def test_counts_that_do_not_fit_are_refused(counts, message):
    """Counts must be one per rank, at least 0, and not too many in total."""
    with pytest.raises(CollectiveError, match=message):
        collectives.make("allgatherv", 3, counts=counts)


@pytest.fixture(scope="module")
def program():
    """A ring's program for counts of 3, 1 and 0."""
    problem = problem_of(ring(3), collectives.allgatherv(3, counts=[3, 1, 0]))
    return taccl.lower(taccl.baselines.ring(problem, cut=False))


def test_msccl_xml_stores_allgatherv_as_a_custom_algorithm(program):
    """MSCCL XML stores an allgatherv as "custom"; read back with the collective, the program is valid."""
    text = dump_msccl_xml(program)
    assert 'coll="custom"' in text
    assert interpret(parse_msccl_xml(text, collective=program.collective)).outputs_checked


@pytest.mark.parametrize(
    ("dump", "message"),
    [
        (build_mscclpp_plan, "MSCCL\\+\\+ has no ranks without input"),
        (dump_torch_module, "no method for allgatherv"),
    ],
)
def test_formats_without_allgatherv_refuse_it(program, dump, message):
    """MSCCL++ and PyTorch refuse an allgatherv with the reason."""
    with pytest.raises(ExportError, match=message):
        dump(program)


def test_problem_of_bytes():
    """The size is that of all data; a rank contributes its share."""
    problem = taccl.make_problem(ring(3), "allgatherv", counts=[3, 2, 1], size_bytes=6 * MB)
    assert set(problem.chunk_bytes) == {MB}
