"""Packing of spanning trees within edge capacities, compared with Edmonds' condition."""

from itertools import chain, combinations

import numpy as np
import pytest

from taccl.errors import NoSolutionError
from taccl.synthesis.trees.packing import pack_trees

COMPLETE = np.ones((4, 4), np.int64) - np.eye(4, dtype=np.int64)


def exists(capacity, counts):
    """True if each set of nodes can be entered as often as there are trees with roots outside it."""
    nodes = range(len(capacity))
    sets = chain.from_iterable(combinations(nodes, size) for size in range(1, len(capacity) + 1))
    return all(
        capacity[np.ix_([n for n in nodes if n not in some], list(some))].sum()
        >= sum(counts[n] for n in nodes if n not in some)
        for some in sets
    )


def assert_packed(trees, capacity, counts):
    """Assert that trees span, each root has its count, and edges carry at most their capacity."""
    used, made = np.zeros_like(capacity), np.zeros(len(capacity), np.int64)
    for tree in trees:
        reached = {tree.root}
        for tail, head in tree.edges:
            assert tail in reached and head not in reached
            reached.add(head)
            used[tail, head] += tree.count
        assert len(reached) == len(capacity)
        made[tree.root] += tree.count
    assert made.tolist() == list(counts)
    assert (used <= capacity).all()


@pytest.mark.parametrize("counts", [(3, 0, 0, 0), (1, 1, 1, 1), (0, 2, 0, 1)])
def test_trees_fill_a_complete_graph(counts):
    """Three trees enter each node of a complete graph of four, from one root or several."""
    assert_packed(pack_trees(COMPLETE, counts), COMPLETE, counts)


def test_too_many_trees_are_refused():
    """Four trees cannot enter a node over three edges."""
    with pytest.raises(NoSolutionError):
        pack_trees(COMPLETE, (4, 0, 0, 0))


@pytest.mark.slow
def test_packing_exists_by_edmonds_condition():
    """On random graphs trees are found exactly if Edmonds' condition holds."""
    rng, found = np.random.default_rng(0), 0
    for _ in range(400):
        size = int(rng.integers(2, 6))
        capacity = rng.integers(0, 5, (size, size))
        np.fill_diagonal(capacity, 0)
        counts = rng.integers(0, 3, size)
        if exists(capacity, counts):
            found += 1
            assert_packed(pack_trees(capacity, counts), capacity, counts)
        else:
            with pytest.raises(NoSolutionError):
                pack_trees(capacity, counts)
    assert 50 < found < 350


def test_copies_of_a_tree_are_built_at_once():
    """A thousand equal trees from the end of a line are returned as one tree with count 1000."""
    capacity = np.zeros((3, 3), np.int64)
    capacity[0, 1] = capacity[1, 2] = 1000
    (tree,) = pack_trees(capacity, (1000, 0, 0))
    assert (tree.edges, tree.count) == (((0, 1), (1, 2)), 1000)


def test_short_edges_join_first():
    """Of two possible trees, the one with shorter edges is chosen."""
    capacity = COMPLETE[:3, :3]
    length = np.array([[0.0, 1.0, 5.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
    (tree,) = pack_trees(capacity, (1, 0, 0), length)
    assert tree.edges == ((0, 1), (1, 2))
