"""Collectives: origins and destinations of chunks, reductions, and sizes."""

import pickle

import pytest

from taccl import collectives
from taccl.errors import CollectiveError
from taccl.problem.chunks import Chunk, Derivation, chunks_of
from taccl.problem.collective import Collective
from tests.arguments import arguments_for


def test_allgather_sends_every_chunk_everywhere():
    """With two chunks per rank chunk c starts at rank c // 2."""
    chunks = collectives.allgather(3, chunks_per_rank=2).chunks
    assert [c.origins for c in chunks] == [(0,), (0,), (1,), (1,), (2,), (2,)]
    assert all(c.destinations == (0, 1, 2) for c in chunks)


def test_a_collective_is_printed_in_one_line():
    """The text has the name and the numbers of ranks and chunks, one chunk in the singular."""
    assert repr(collectives.allgather(4)) == "Collective('allgather', 4 ranks, 4 chunks)"
    assert repr(collectives.broadcast(4)) == "Collective('broadcast', 4 ranks, 1 chunk)"


def test_alltoall_runs_over_sources_then_destinations():
    """Chunk 3 * s + d goes from s to d."""
    assert [(c.origins, c.destinations) for c in collectives.alltoall(3).chunks] == [
        ((s,), (d,)) for s in range(3) for d in range(3)
    ]


def test_broadcast_scatter_and_gather_have_one_root():
    """Chunks of a broadcast and a scatter start at the root, and those of a gather end there."""
    assert collectives.broadcast(3, root=1).chunks == (Chunk((1,), (0, 1, 2)),)
    assert [c.destinations for c in collectives.scatter(3, root=1).chunks] == [(0,), (1,), (2,)]
    assert {c.origins for c in collectives.scatter(3, root=1).chunks} == {(1,)}
    assert [c.origins for c in collectives.gather(3, root=1).chunks] == [(0,), (1,), (2,)]


def test_combining_collectives_start_everywhere():
    """In reducing collectives every rank contributes; only destinations differ."""
    assert collectives.reduce(3, root=2).chunks == (Chunk((0, 1, 2), (2,), 2),)
    assert [c.destinations for c in collectives.reduce_scatter(2).chunks] == [(0,), (1,)]
    assert [(c.destinations, c.root) for c in collectives.allreduce(2).chunks] == [((0, 1), 0), ((0, 1), 1)]


def test_scan_derives_each_prefix_from_the_one_before():
    """Each prefix of a scan is derived from the one before.

    Two pieces on three ranks have the prefixes 0-2 and 3-5.
    """
    scan = collectives.scan(3, chunks_per_rank=2)
    assert scan.derivations == tuple(Derivation(c - 1, c % 3, c) for c in (1, 2, 4, 5))
    assert [c.origins for c in scan.chunks] == [(0,), (), ()] * 2
    assert [c.destinations for c in scan.chunks] == [(0, 1), (1, 2), (2,)] * 2


def test_multi_root_chunks_take_their_roots_in_turn():
    """With two roots, chunk c belongs to roots[c mod 2]."""
    broadcast = collectives.multi_root_broadcast(4, roots=(3, 1), chunks_per_rank=2)
    assert [c.origins for c in broadcast.chunks] == [(3,), (1,), (3,), (1,)]
    scatter = collectives.multi_root_scatter(2, roots=(1, 0))
    assert [(c.origins[0], c.destinations[0]) for c in scatter.chunks] == [(1, 0), (0, 0), (1, 1), (0, 1)]
    gather = collectives.multi_root_gather(2, roots=(1, 0))
    assert [(c.origins[0], c.destinations[0]) for c in gather.chunks] == [(0, 1), (0, 0), (1, 1), (1, 0)]


def test_custom_roots_sums_at_the_first_destination():
    """In a custom collective the root of a sum is its first destination; chunks that are copied have no root."""
    conditions = {"precondition": {0: [1, 0]}, "postcondition": {0: [2, 1]}}
    assert collectives.custom(3, **conditions, combining=True).chunks == (Chunk((0, 1), (1, 2), 1),)
    assert collectives.custom(3, **conditions).chunks == (Chunk((0, 1), (1, 2), None),)


@pytest.mark.parametrize(
    ("name", "size_chunks", "factor"),
    [
        ("allgather", 4, 3 / 4), ("reduce-scatter", 4, 3 / 4), ("alltoall", 4, 3 / 4), ("allreduce", 4, 6 / 4),
        ("broadcast", 1, 1.0), ("reduce", 1, 1.0), ("gather", 4, 3 / 4), ("scatter", 4, 3 / 4), ("scan", 1, 1.0),
    ],
)  # fmt: skip
def test_size_and_bus_bandwidth_are_those_of_nccl_tests(name, size_chunks, factor):
    """On 4 ranks the size (chunks in a rank's larger buffer) and the factor busbw / algbw are those of
    nccl-tests."""
    collective = collectives.make(name, 4)
    assert collective.size_chunks == size_chunks
    assert collective.busbw_factor == pytest.approx(factor)


@pytest.mark.parametrize(
    "build",
    [
        lambda: collectives.allgather(0),
        lambda: collectives.allgather(2, chunks_per_rank=0),
        lambda: collectives.broadcast(2, root=2),
        lambda: collectives.broadcast(2, root=-1),
        lambda: collectives.multi_root_gather(2, roots=()),
        lambda: collectives.multi_root_gather(2, roots=(1, 1)),
        lambda: collectives.make("allgather", 2, root=0),
        lambda: collectives.make("broadcast", 2, roots=[0]),
        lambda: collectives.make("multi-root-broadcast", 2),
        lambda: collectives.make("allgatherv", 2),
        lambda: collectives.custom(2, precondition={0: [0]}, postcondition={1: [0]}),
        lambda: collectives.custom(2, precondition={1: [0]}, postcondition={1: [0]}),
        lambda: collectives.custom(2, precondition={0: [2]}, postcondition={0: [0]}),
        lambda: collectives.custom(2, precondition={0: []}, postcondition={0: [0]}),
        # A sum without destinations has no root.
        lambda: collectives.custom(2, precondition={0: [0, 1]}, postcondition={0: []}, combining=True),
        lambda: Collective("odd", 2, (Chunk((0, 0), (1,)),)),
        lambda: Collective("odd", 2, (Chunk((0,), (1,), 5),), combining=True),
        lambda: Collective("odd", 2, (Chunk((0, 1), (1,)),), combining=True),
        lambda: Collective("odd", 2, (Chunk((0,), (1,)),), derivations=(Derivation(0, 3, 0),)),
        lambda: made_of((Chunk((0,), ()), Chunk((1,), (1,))), Derivation(0, 1, 1)),
        lambda: made_of((Chunk((0,), ()), Chunk((), (1,))), Derivation(0, 1, 1), Derivation(0, 0, 1)),
        lambda: made_of((Chunk((), (0,)), Chunk((), (1,))), Derivation(0, 1, 1), Derivation(1, 0, 0)),
    ],
)
def test_impossible_collectives_are_refused(build):
    """Unknown, repeated or missing ranks, chunks without origin, and options of other collectives are
    refused."""
    with pytest.raises(CollectiveError):
        build()


@pytest.mark.parametrize(
    ("starts", "ends", "message"),
    [
        ({0: [0], 1: [1]}, {0: [1]}, "postcondition: found no chunk 1, .*; name .* the chunk must end"),
        ({0: [0]}, {0: [1], 1: [0]}, "precondition: found no chunk 1, .*; name .* the chunk starts"),
        ({0: [0], 3: [1]}, {0: [1], 3: [0]}, "found chunks up to 3, but no chunk 1; number them from 0"),
    ],
)
def test_missing_chunks_of_conditions_are_named(starts, ends, message):
    """The error for conditions that lack chunks names the condition, the chunks and the remedy."""
    with pytest.raises(CollectiveError, match=message):
        collectives.custom(2, precondition=starts, postcondition=ends)


def test_a_sum_of_one_contribution_is_rooted_where_it_starts():
    """A sum of one contribution gets its origin as root.

    It keeps the given root if only that rank needs the sum, or if a server updates it.
    """
    chunks = (Chunk((0,), (1, 2), 1), Chunk((0,), (1, 2)), Chunk((0,), (1,), 1), Chunk((0, 1), (1, 2), 1))
    assert [c.root for c in Collective("sums", 3, chunks, combining=True).chunks] == [0, 0, 1, 1]
    assert [c.root for c in collectives.exchange([0], [1]).chunks] == [1]


@pytest.mark.parametrize("name", collectives.COLLECTIVES)
def test_a_collective_survives_its_dict(name):
    """A collective survives `to_dict` and `from_dict`; its name may have underscores and capitals."""
    arguments = arguments_for(name, 3)
    collective = collectives.make(name.replace("-", "_").capitalize(), 3, **arguments)
    assert Collective.from_dict(collective.to_dict()) == collective == collectives.make(name, 3, **arguments)


def made_of(chunks, *derivations):
    """A collective of three ranks with derived chunks."""
    return Collective("made", 3, chunks, True, derivations=derivations)


@pytest.mark.parametrize(
    ("chunk", "is_sum", "met"),
    [
        (Chunk((0, 1), (1,)), False, True),
        (Chunk((0,), (0, 1)), False, False),
        (Chunk((0,), ()), False, True),
        (Chunk((1,), (1,), 0), True, True),
        (Chunk((0, 1), (1,), 1), True, False),
        (Chunk((0, 1), (), 1), True, True),
    ],
    ids=str,
)
def test_a_chunk_is_met_where_every_destination_has_it(chunk, is_sum, met):
    """A chunk that all destinations hold at the start needs no send; a sum of several contributions does."""
    assert chunk.is_met(is_sum=is_sum) is met


def test_what_is_made_from_what_is_there_is_met():
    """Chunks that rank 0 derives from its own chunks need no send to rank 0."""
    chunks = (Chunk((0,), (0,)), Chunk((), (0,)), Chunk((), (0,)))
    chain = Collective("c", 1, chunks, True, derivations=(Derivation(1, 0, 2), Derivation(0, 0, 1)))
    assert chain.is_met


def test_a_chunk_comes_to_where_something_needed_is_made_of_it():
    """`ends` includes ranks where a needed chunk is derived: chunk 1 goes to rank 2, and chunk 0 to rank 1."""
    chunks = (Chunk((0,), (0,)), Chunk((), ()), Chunk((), (0,)), Chunk((), ()))
    made = made_of(chunks, Derivation(1, 2, 2), Derivation(0, 1, 1), Derivation(0, 2, 3))
    assert made.ends == ((0, 1), (2,), (0,), ())
    assert made.starts == ((0,), (1,), (2,), (2,))


def test_chunks_made_from_columns_are_those_made_one_by_one():
    """Columns of origins and destinations make equal chunks, which are pickled and hashed as others."""
    origins, destinations = [(0,), (1,), (0, 2)], [(1,), (), (0, 1)]
    made = chunks_of(origins, destinations)
    assert made == tuple(map(Chunk, origins, destinations))
    assert pickle.loads(pickle.dumps(made)) == made
    assert set(made) == set(map(Chunk, origins, destinations))
    assert {each.root for each in made} == {None}


def test_a_collective_in_use_is_shared():
    """Commands make several problems of one collective: it is made once while it is in use."""
    made = collectives.make("alltoall", 5, chunks_per_rank=1)
    assert collectives.make("AllToAll", 5, chunks_per_rank=1) is made
    assert collectives.make("alltoall", 5) is not made
    assert collectives.make("alltoall", 6, chunks_per_rank=1) != made
