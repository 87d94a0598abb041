"""Times of ordered sends in a single pass and by their precedence graph."""

import numpy as np
import pytest

import taccl
from taccl.baselines import baseline
from taccl.errors import CollectiveError
from taccl.schedule import timing
from taccl.schedule.waits import Events, Waits
from taccl.topology import fabrics, machines

TOPOLOGIES = {"torus": fabrics.torus(2, 4), "star": fabrics.star(4), "ndv2": machines.ndv2()}


@pytest.mark.parametrize(
    "name", ["ring", "tree", "recursive", "hierarchical", "multiplying", "one-shot", "pairwise"]
)
@pytest.mark.parametrize("collective", ["allgather", "reduce-scatter", "allreduce"])
@pytest.mark.parametrize("fabric", TOPOLOGIES)
def test_one_pass_finds_the_times_of_the_precedence_graph(fabric, collective, name, monkeypatch):
    """The single pass finds the times of the precedence graph for copies, sums and named contributions.

    Sends are merged in some cases, and not in others.
    """
    problem = taccl.make_problem(TOPOLOGIES[fabric], collective, size_bytes=1 << 18)
    try:
        fast = baseline(name, problem, cut=False)
    except CollectiveError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(timing, "times_in_order", lambda *_, **__: None)
    assert fast == baseline(name, problem, cut=False)


def test_one_pass_times_the_orders_of_baselines():
    """The single pass handles baselines' orders without the precedence graph."""
    problem = taccl.make_problem(TOPOLOGIES["ndv2"], "allgather", size_bytes=1 << 18)
    made = baseline("ring", problem, cut=False)
    places = np.arange(made.num_transfers)
    times = timing.times_in_order(
        made.problem, chunk=made.chunk, link=made.link, send=made.group, reduce=made.reduce, place=places
    )
    assert times[1].max() == made.finish_ticks


def test_sends_that_precede_their_data_take_the_precedence_graph():
    """A send listed before its chunk arrives waits for the chunk, through the precedence graph."""
    topology = fabrics.ring(3)
    problem = taccl.make_problem(topology, "broadcast", size_bytes=1000)
    ends = {(link.src, link.dst): e for e, link in enumerate(topology.links)}
    order = {"chunk": [0, 0], "link": [ends[1, 2], ends[0, 1]], "sequence": [0, 1]}
    schedule = timing.exact_times(problem, **order)
    taccl.verify(schedule).raise_if_failed()
    assert schedule.link.tolist() == [ends[0, 1], ends[1, 2]]


def test_events_that_share_what_they_wait_for_share_a_node():
    """Many reads of a sum of many arrivals need two waits per event, not one per pair of events.

    Arrivals of sends 0 to 9 end at 1 to 10; reads of sends 10 to 19 start at the last end. Send 20 is read
    after one more arrival, and waits for all of them.
    """
    waits = Waits(np.arange(1, 22))
    sends = np.arange(21)
    place = np.zeros(21, np.int64)
    arrives = np.append(np.arange(10), 15)
    arrivals = Events(arrives, arrives, place[:11])
    reads = Events(sends[10:], sends[10:], place[10:])
    added = []
    waits.add = lambda *columns: (added.append(len(columns[0])), Waits.add(waits, *columns))
    waits.add_each(reads, arrivals, waits.duration[arrivals.send])
    assert sum(added) <= 2 * (len(reads.send) + len(arrivals.send))
    assert waits.starts().tolist() == [0] * 10 + [10] * 6 + [26] * 5
