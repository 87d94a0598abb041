"""Finishes of baselines, which no change may increase."""

import pytest

import taccl
from taccl.baselines import BASELINES
from taccl.baselines.table import row_of

#: {topology, collective, bytes: {baseline: finish in us with whole chunks, as first measured}}.
KNOWN = {
    ("dgx1", 1, "allreduce", 10**6): {
        "ring": 25.4, "tree": 55.05, "recursive": 48.4, "swing": 49.0, "bine": 49.0, "pairwise": 25.4,
        "one-shot": 101.6, "multiplying": 24.2,
    },
    ("dgx2", 1, "allgather", 10**6): {
        "ring": 12.0, "tree": 46.4, "recursive": 12.0, "swing": 12.0, "bine": 12.0, "pairwise": 12.0,
        "multiplying": 12.0,
    },
    ("ndv2", 2, "allreduce", 10**6): {
        "ring": 202.075, "tree": 200.55, "recursive": 134.525, "swing": 448.925, "bine": 270.325,
        "hierarchical": 134.525, "pairwise": 845.2, "multiplying": 118.8625,
    },
    ("dgx_a100", 2, "reduce", 64 * 10**6): {
        "ring": 4464.466667, "tree": 3917.573333, "recursive": 3384.2, "swing": 3384.2, "bine": 3384.2,
        "hierarchical": 3654.266667, "pairwise": 4444.186667, "one-shot": 4444.186667, "multiplying": 3384.2,
    },
    ("mesh", 3, "alltoall", 10**6): {"pairwise": 26.00016, "multiplying": 26.00016},
    ("torus", 4, "allreduce", 1000): {
        "ring": 8.02016, "tree": 15.0378, "recursive": 3.12096, "swing": 3.64112, "bine": 3.64112,
        "hierarchical": 4.02016, "dimension-balanced": 4.02016, "pairwise": 8.02016, "one-shot": 3.12096,
        "multiplying": 2.04032, "bucket": 2.02016,
    },
    ("star", 6, "broadcast", 10**6): {"ring": 61.5, "tree": 82.0, "pairwise": 102.5, "multiplying": 61.5},
}  # fmt: skip


def test_finishes_of_every_baseline_are_known():
    """Each baseline that searches may propose has a finish here."""
    known = set().union(*KNOWN.values())
    assert [name for name in BASELINES if row_of(name).competes and name not in known] == []


@pytest.mark.slow
@pytest.mark.parametrize("known", KNOWN, ids=lambda known: "-".join(map(str, known)))
def test_baselines_finish_no_later_than_before(known):
    """Each baseline of whole chunks finishes no later than first measured, on machines and fabrics."""
    name, number, collective, size = known
    topology = getattr(taccl.topologies, name)(number, *((4,) if name in ("mesh", "torus") else ()))
    problem = taccl.make_problem(topology, collective, size_bytes=size, chunks_per_rank=1)
    found = {each: BASELINES[each](problem, cut=False).finish_us for each in KNOWN[known]}
    later = {each: us for each, us in found.items() if us > KNOWN[known][each] + 1e-6}
    assert not later
