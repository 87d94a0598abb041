"""The problem: sizes, clauses and digest."""

import hashlib
import json
from fractions import Fraction

import pytest

import taccl
from taccl import collectives
from taccl.errors import CollectiveError
from taccl.problem.chunks import Chunk, Derivation
from taccl.problem.collective import Collective
from taccl.problem.making import make_problem
from taccl.problem.problem import Clauses, Problem, SwitchPolicy
from tests.synthesis.small_problems import custom, full, problem_of, ring, two_nodes

MB = 10**6


@pytest.mark.parametrize(
    ("collective", "given", "chunk_bytes", "size_bytes"),
    [
        # The allgather's output on 4 ranks holds 4 chunks of 1 MB.
        (collectives.allgather(4), {"size_bytes": 4 * MB}, (MB,) * 4, 4 * MB),
        # 2 MB per chunk of a reduce-scatter on 4 ranks: an input of 8 MB.
        (collectives.reduce_scatter(4), {"chunk_bytes": 2 * MB}, (2 * MB,) * 4, 8 * MB),
        # Rank 0 ends with 3 + 1 bytes, the others with at most 3.
        (custom(4, [([0], [0, 1]), ([1], [0])]), {"chunk_bytes": [3, 1]}, (3, 1), 4),
    ],
    ids=["a size is divided", "a chunk size gives the size", "the largest buffer counts"],
)
def test_sizes_of_chunks_and_of_all(collective, given, chunk_bytes, size_bytes):
    """Chunk sizes follow from the total size, and the reverse."""
    problem = make_problem(ring(4), collective, **given)
    assert (problem.chunk_bytes, problem.size_bytes, problem.notes) == (chunk_bytes, size_bytes, ())


def test_a_size_that_does_not_divide_is_padded_and_noted():
    """10 bytes in 4 chunks are padded to 3 bytes each, with a note."""
    problem = make_problem(ring(4), collectives.allgather(4), size_bytes=10)
    assert problem.chunk_bytes == (3,) * 4
    assert "padded" in problem.notes[0]


@pytest.mark.parametrize(
    ("ranks", "sizes", "message"),
    [
        (4, {}, "found neither; give a size, or a chunk size"),
        (4, {"chunk_bytes": 1, "size_bytes": 4}, "found both; give a size, or a chunk size"),
        *((4, {"chunk_bytes": size}, None) for size in (0, -1, [MB], [MB] * 3 + [0])),
        *((4, {"size_bytes": size}, None) for size in (0, -5)),
        (3, {"chunk_bytes": 1}, "3 ranks"),
    ],
)
def test_sizes_and_ranks_that_do_not_fit_are_refused(ranks, sizes, message):
    """Sizes must be positive and one per chunk, one kind must be given, and ranks must fit the topology."""
    with pytest.raises(CollectiveError, match=message):
        make_problem(ring(4), collectives.allgather(ranks), **sizes)


def test_by_default_sends_between_nodes_merge_up_to_six():
    """Sends over the links between nodes (4, 5 and 6) merge up to six chunks by default."""
    clauses = make_problem(two_nodes(), collectives.allgather(4), chunk_bytes=MB).clauses
    assert (clauses.merging, clauses.max_merge) == (frozenset({4, 5, 6}), 6)


def test_links_and_relays_admit_chunks():
    """Link 4 is allowed and carries only what starts at rank 1; link 5 is not allowed."""
    problem = problem_of(
        two_nodes(),
        collectives.allgather(4),
        links_allowed=frozenset({0, 1, 2, 3, 4}),
        carries_from={4: frozenset({1})},
    )
    assert [problem.may_carry(4, c) for c in range(4)] == [False, True, False, False]
    assert not problem.may_carry(5, 1)
    assert problem.links_allowed == (0, 1, 2, 3, 4)


def test_reducing_chunks_obey_their_own_relays():
    """In the reduce phase link 6 carries to root 1 only; in the broadcast phase from root 2 only."""
    problem = problem_of(
        two_nodes(),
        collectives.allreduce(4),
        carries_to={6: frozenset({1})},
        carries_from={6: frozenset({2})},
    )
    assert [problem.may_carry(6, c, reducing=True) for c in range(4)] == [False, True, False, False]
    assert [problem.may_carry(6, c) for c in range(4)] == [False, False, True, False]


@pytest.mark.parametrize(
    ("name", "links"), [("broadcast", ()), ("allgather", (0, 1, 2)), ("reduce", (0, 1, 2))]
)
def test_own_chunks_go_first_only_where_a_sender_has_others(name, links):
    """Local-first priority is dropped on links whose sender has only its own chunks, or none.

    For sums it is kept.
    """
    collective = collectives.make(name, 3, chunks_per_rank=2)
    problem = make_problem(
        ring(3), collective, chunk_bytes=1, clauses=Clauses(own_first=frozenset({0, 1, 2}))
    )
    assert problem.own_first == set(links)


def test_direct_crossing_admits_only_direct_paths():
    """With direct crossing node 0's chunk crosses to node 1 and never back, and only if node 1 needs it."""
    problem = problem_of(two_nodes(), custom(4, [([0], [2]), ([0], [1])]), direct_crossing=True)
    assert problem.may_carry(4, 0)
    assert not problem.may_carry(6, 0)
    assert not problem.may_carry(4, 1)
    assert problem.may_carry(0, 1)


def test_direct_crossing_of_a_reduction_leads_to_the_root():
    """With direct crossing a sum rooted at rank 0 is reduced from node 1 to node 0, and copied in reverse."""
    problem = problem_of(two_nodes(), collectives.allreduce(4), direct_crossing=True)
    assert problem.may_carry(6, 0, reducing=True)
    assert not problem.may_carry(4, 0, reducing=True)
    assert problem.may_carry(4, 0)
    assert not problem.may_carry(6, 0)


def rich():
    """A problem with every clause set."""
    clauses = Clauses(
        name="rich",
        links_allowed=frozenset(range(6)),
        carries_from={4: frozenset({0, 1})},
        carries_to={4: frozenset({2})},
        direct_crossing=True,
        own_first=frozenset({4}),
        max_merge=3,
        merging=frozenset({4, 5}),
        symmetry=((1, 0, 3, 2),),
        switch_policies=(SwitchPolicy("switch", "min-connections", (0, 1)),),
        link_use="min-max",
        objective_weight=Fraction(1, 7),
        routing_slack=Fraction(1, 3),
        where={"own_first": "a.toml: internode"},
    )
    return make_problem(two_nodes(), collectives.allgather(4), chunk_bytes=[1, 2, 3, 4], clauses=clauses)


def test_a_problem_survives_its_dict():
    """A problem that `from_dict` reads from `to_dict` is equal and has the same digest."""
    again = Problem.from_dict(rich().to_dict())
    assert again == rich()
    assert again.digest() == rich().digest()


@pytest.mark.parametrize(
    "change",
    [{"max_merge": 2}, {"own_first": frozenset()}, {"routing_slack": Fraction(1, 2)}, {"link_use": "free"}],
)
def test_any_clause_changes_the_digest(change):
    """Any changed clause changes the digest of a problem."""
    assert rich().with_clauses(**change).digest() != rich().digest()


def test_the_digest_is_of_what_to_dict_writes():
    """The digest is that of the JSON of `to_dict`, although equal tuples of ranks are hashed only once."""
    chunks = [Chunk(ranks, (0, 1, 2, 3), root=2) for ranks in [(0, 1), (0, 1), (3,), ()] * 40]
    derivations = tuple(Derivation(0, 1, c) for c, chunk in enumerate(chunks) if not chunk.origins)
    collective = Collective("sums", 4, tuple(chunks), True, derivations=derivations)
    problem = make_problem(ring(4), collective, chunk_bytes=7, clauses=Clauses(where={"relays": "a.toml"}))
    content = problem.to_dict()
    del content["clauses"]["where"]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    assert problem.digest() == hashlib.sha256(text.encode()).hexdigest()


def test_notes_do_not_distinguish_problems():
    """The notes of a problem change neither equality nor digest."""
    one, other = (
        make_problem(full(2), collectives.allgather(2), chunk_bytes=1, notes=notes) for notes in ([], ["a"])
    )
    assert one == other
    assert one.digest() == other.digest()


def test_repr_names_collective_topology_size_and_sketch():
    """The repr of a problem is one line with collective, topology, size and sketch."""
    assert repr(rich()) == "Problem(allgather on two nodes, 10B, sketch 'rich')"


def test_repr_of_a_sketch_and_its_clauses_show_what_is_set():
    """The reprs of a sketch, its clauses and costs are short: fields at their defaults and arrays are left out."""
    sketch = taccl.load_sketch("ndv2/sk1")
    topology = sketch.topology()
    problem = sketch.apply(topology, taccl.collectives.allgather(topology.num_ranks))
    assert repr(sketch.symmetry) == "(Symmetry(offset=8, group=16),)"
    assert "routing" not in repr(sketch)
    assert repr(problem.clauses).startswith("Clauses('ndv2-sk1': links_allowed, ")
    assert repr(problem.costs) == "Costs(192 links, 16 chunks, 10 ticks per us)"
