"""Arguments of collectives given by name, in Python and on the command line."""

import pytest

import taccl
from taccl import collectives
from taccl.errors import CollectiveError
from taccl.problem.chunks import Chunk
from taccl.problem.collective import Collective
from taccl.problem.collectives import arguments_of
from tests.arguments import arguments_for

RING = "ring:3"
#: {function: call that takes a collective by name}.
TAKERS = {
    "make_problem": lambda name, **given: taccl.make_problem(taccl.topologies.ring(3), name, size_bytes=30, **given),
    "apply": lambda name, **given: taccl.Sketch.from_dict({"schema": 1}).apply(
        taccl.topologies.ring(3), name, size=30, **given
    ),
    "sweep": lambda name, **given: taccl.sweep(
        RING, name, sizes=[30], backends=["greedy"], chunks_per_rank=[1], cache=False, num_workers=1,
        time_limit_s=0.1, progress=False, **given,
    ),
    "suggest": lambda name, **given: taccl.suggest_sketches(
        taccl.topologies.ring(3), name, "1KB", chunks_per_rank=1, time_limit_s=0.05, **given
    ),
    "check": lambda name, **given: taccl.check_sketch(
        taccl.Sketch.from_dict({"schema": 1}), taccl.topologies.ring(3), name, size="1KB", time_limit_s=0.05, **given
    ),
    "plan": lambda name, **given: taccl.plan(
        RING, name, sizes=[3000], backend="greedy", baselines=False, time_limit_s=1, **given
    ),
}  # fmt: skip
#: (collective, an argument that it accepts).
CASES = [
    ("broadcast", {"root": 2}),
    ("multi-root-gather", {"roots": [2, 0]}),
    ("allgatherv", {"counts": [2, 0, 1]}),
]


@pytest.mark.parametrize("name", collectives.COLLECTIVES)
def test_arguments_are_read_off_a_collective(name):
    """`arguments_of` returns the arguments of `make`, except for several roots."""
    arguments = arguments_for(name, 3) | ({"root": 2} if name in collectives.ROOTED else {})
    made = collectives.make(name, 3, chunks_per_rank=2, **arguments)
    assert arguments_of(made) == {each: value for each, value in arguments.items() if each != "roots"}


def scattered(num_ranks, *, counts, root=0, chunks_per_rank=None):
    """A scatterv: rank r gets ``counts[r]`` chunks of the root's data."""
    pieces = chunks_per_rank or 1
    chunks = [Chunk((root,), (rank,)) for rank, count in enumerate(counts) for _ in range(count * pieces)]
    return Collective("scatterv", num_ranks, tuple(chunks), chunks_per_rank=pieces)


def gathered(num_ranks, *, counts, root=0, chunks_per_rank=None):
    """A gatherv: the root gets ``counts[r]`` chunks of rank r."""
    pieces = chunks_per_rank or 1
    chunks = [Chunk((rank,), (root,)) for rank, count in enumerate(counts) for _ in range(count * pieces)]
    return Collective("gatherv", num_ranks, tuple(chunks), chunks_per_rank=pieces)


@pytest.mark.parametrize(("name", "function"), [("scatterv", scattered), ("gatherv", gathered)])
@pytest.mark.parametrize("counts", [(1, 2, 3), (0, 4, 0)])
def test_counts_are_read_off_either_end(name, function, counts, monkeypatch):
    """`arguments_of` finds counts of the ranks that receive, or that contribute, beside a root."""
    monkeypatch.setitem(collectives.COLLECTIVES, name, function)
    made = collectives.make(name, 3, chunks_per_rank=2, root=2, counts=counts)
    assert arguments_of(made) == {"root": 2, "counts": counts}


@pytest.mark.slow
@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize(("name", "given"), CASES)
def test_all_arguments_are_taken(taker, name, given):
    """Each function that takes a collective by name accepts root, roots and counts."""
    assert (
        len(TAKERS[taker](name, **given)) if taker in ("sweep", "suggest") else TAKERS[taker](name, **given)
    )


@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize(
    ("given", "message"), [({"counts": [1, 1, 1]}, "no counts"), ({"roots": [0]}, "no roots")]
)
def test_an_argument_of_another_collective_is_refused(taker, given, message):
    """An argument that the collective lacks is refused, with the names of both."""
    with pytest.raises(CollectiveError, match=f"allgather has {message}"):
        TAKERS[taker]("allgather", **given)
