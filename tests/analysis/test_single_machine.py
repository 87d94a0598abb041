"""The single-machine relaxation: ends of batches by hand, and by enumeration of all sequences."""

import itertools
import random
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest

from taccl.analysis.certificates.borders import SingleMachine, batch_ends, machine_ticks, single_machine
from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.certificates.certificate import BorderJob
from taccl.analysis.certificates.finding.needed_sends import NeededSends
from taccl.analysis.verification.verify import verify
from taccl.schedule.timing import exact_times
from taccl.topology.builder import TopologyBuilder
from tests.analysis.claims import certificates_of, raised
from tests.fuzzing import some
from tests.synthesis.small_problems import custom, linked, problem_of

if TYPE_CHECKING:
    from taccl.analysis.certificates.certificate import Certificate

MB = 10**6


def sequences(queues, most):
    """Every sequence of batches of at most `most` chunks of one queue, as indices into all chunks."""
    offsets = [sum(len(queue) for queue in queues[:q]) for q in range(len(queues))]
    start = tuple(frozenset(range(o, o + len(queue))) for o, queue in zip(offsets, queues, strict=True))

    def extend(left):
        if not any(left):
            yield []
        for q, chunks in enumerate(left):
            for size in range(1, min(most, len(chunks)) + 1):
                for batch in itertools.combinations(sorted(chunks), size):
                    rest = (*left[:q], chunks - set(batch), *left[q + 1 :])
                    for sequence in extend(rest):
                        yield [batch, *sequence]

    yield from extend(start)


def ends_of(sequence, releases, alpha, beta):
    """End of each batch if all start as early as possible."""
    ends, free = [], 0
    for batch in sequence:
        free = max(free, *(releases[c] for c in batch)) + alpha + len(batch) * beta
        ends.append(free)
    return ends


def least_ends(queues, alpha, beta, most):
    """The expected result of `batch_ends`, by enumeration: {size of the last batch: least end}."""
    releases = [release for queue in queues for release in queue]
    least = {}
    for sequence in sequences(queues, most):
        end, last = ends_of(sequence, releases, alpha, beta)[-1], len(sequence[-1])
        least[last] = min(end, least.get(last, end))
    return least


def chain(alpha=2, *, max_merge=2, onward=5):
    """A problem on a chain 0 -> 1 -> 2: `alpha` + 1 us per chunk over the first link, which may merge, then
    `onward` us."""
    topology = linked("chain", [0] * 3, [(0, 1, alpha, 1), (1, 2, 0, onward)])
    return problem_of(topology, custom(3, [([0], [2])]), merging=frozenset({0}), max_merge=max_merge)


def job(release, tail, *, onward=0, link=0):
    """A job of one unit over one link."""
    return BorderJob(frozenset({link}), 1, release, tail, frozenset({(1, onward)}) if onward else frozenset())


def ticks(problem, jobs):
    """The bound in ticks of the jobs on link 0, whose resource has the same number."""
    demand = NeededSends(problem)
    assert set(demand.held[0]) == {0}
    return machine_ticks(problem, {0: demand.held[0][0]}, jobs)[0]


@pytest.mark.parametrize(
    ("releases", "alpha", "most", "ends"),
    [
        # Jobs of one or two links run in order of release: 3 ticks each end at 3, 6 and 12.
        ([[0, 1, 9]], 2, 1, {1: 12}),
        ([[0, 9], [1]], 2, 1, {1: 12}),
        # Each batch pays alpha once: three chunks end at 13, two and then one at 12 + 11, or 11 + 12.
        ([[0, 0, 0]], 10, 3, {3: 13, 1: 23, 2: 23}),
        # A batch starts once its last chunk is released: at 8, or separate sends end at 4 and 12.
        ([[0, 8]], 3, 2, {2: 13, 1: 12}),
        # Batches of at most two take 2 * (10 + 2) ticks, those of at most three 13 + 11 or 11 + 13.
        ([[0, 0, 0, 0]], 10, 2, {2: 24}),
        ([[0, 0, 0, 0]], 10, 3, {1: 24, 2: 24, 3: 24}),
        # Chunks of two links do not merge, so each pays alpha.
        ([[0], [0]], 10, 2, {1: 22}),
        # Ten queues of three chunks, 4 ** 10 states, are relaxed to one of 30: 15 batches of 2 + 2 ticks.
        ([[0] * 3 for _ in range(10)], 2, 2, {2: 60}),
    ],
)
def test_batches_end_as_by_hand(releases, alpha, most, ends):
    """Batches of at most `most` chunks, by the number of chunks in the last one, end when the comments say."""
    assert batch_ends(releases, alpha, 1, most)[0].items() >= ends.items()


def test_ends_agree_with_brute_force():
    """Up to six chunks in up to three queues: the ends equal the best of all sequences."""
    for seed in range(some(20, 60)):
        rng = random.Random(seed)
        queues = [[] for _ in range(rng.randint(1, 3))]
        for _ in range(rng.randint(len(queues), 5 + (seed % 5 == 0))):
            rng.choice(queues).append(rng.randint(0, 12))
        queues = [sorted(queue) for queue in queues if queue]
        alpha, beta, most = rng.randint(0, 6), rng.randint(0, 3), rng.randint(1, 4)
        assert batch_ends(queues, alpha, beta, most)[0] == least_ends(queues, alpha, beta, most), seed


@pytest.mark.parametrize(
    ("problem", "jobs", "least"),
    [
        # Two chunks take 3 ticks each; the one with a tail of 20 ticks needs 3 + 20.
        (chain(max_merge=1), [job(0, 20), job(0, 0)], 23),
        # Both jobs and their shorter tail need 6 + 4, more than the 3 + 6 of one job with its tail.
        (chain(max_merge=1), [job(0, 6), job(0, 4)], 10),
        # The first job starts no earlier than the first release: 7 + 3 + 3.
        (chain(max_merge=1), [job(7, 0), job(8, 0)], 13),
        # Jobs of one link may merge into a batch: 4 ticks for two with alpha 2, and a tail of 3.
        (chain(), [job(0, 3), job(0, 3)], 7),
        # One batch arrives at 12, and its chunks leave in 5 ticks each. Of two batches the second arrives at
        # 22 and leaves by 27.
        (chain(10), [job(0, 5, onward=5), job(0, 5, onward=5)], 22),
    ],
)
def test_releases_batches_and_tails_count(problem, jobs, least):
    """Releases, merging and tails of all jobs, or of some, count as in the comments."""
    assert ticks(problem, jobs) == least


def test_jobs_of_unequal_size_count_by_size():
    """Jobs of different sizes count by size.

    The bound is 4 + 2 + 3 + 6: the release date, alpha once for a batch of two, 3 units at beta 1, and the
    tail.
    """
    jobs = [BorderJob(frozenset({0}), units, 4, 6, frozenset()) for units in (1, 2)]
    assert ticks(chain(), jobs) == 4 + 2 + 3 + 6


@pytest.mark.parametrize(("side", "expected"), [("send", 2 + 2 + 3), ("receive", 3 + 2 + 2)])
def test_a_send_lasts_longer_than_its_hold(side, expected):
    """The bound counts the time of a send before its hold or after it.

    Sends of 3 + 2 ticks hold a port for 2, at their start or at their end.
    """
    builder = TopologyBuilder("port", [0] * 2)
    port = builder.add_resource("port")
    link = builder.add_link(0, 1, alpha_us=3, beta_us_per_mb=2)
    builder.add_hold(link, port, alpha_us=0, beta_us_per_mb=2, side=side)
    problem = problem_of(builder.build(), custom(2, [([0], [1])] * 2))
    held = {link: NeededSends(problem).held[link][port]}
    assert machine_ticks(problem, held, [job(0, 0, link=link)] * 2)[0] == expected


def test_no_sequence_beats_the_bound():
    """Up to four chunks with releases and tails, leaving one by one: no sequence beats the bound."""
    for seed in range(some(20, 60)):
        rng = random.Random(seed)
        onward, most = rng.randint(0, 6), rng.randint(1, 3)
        jobs = []
        for _ in range(rng.randint(1, 4)):
            tail = rng.choice((0, onward, onward + rng.randint(0, 9)))
            jobs.append(job(rng.randint(0, 12), tail, onward=onward if tail else 0))
        alpha = rng.randint(0, 10)
        problem = chain(alpha, max_merge=most)
        best = min(_finish(sequence, jobs, alpha, onward) for sequence in sequences([range(len(jobs))], most))
        bound = ticks(problem, jobs)
        assert bound <= best
        if len({each.tail for each in jobs}) == 1 and not onward:
            assert bound == best


def _finish(sequence, jobs, alpha, onward):
    """Earliest finish of a sequence, by exhaustive search over a second machine.

    Chunks with a tail hold the second machine for `onward` after their arrival, in any order.
    """
    ends = ends_of(sequence, [each.release for each in jobs], alpha, 1)
    arrival = {c: end for batch, end in zip(sequence, ends, strict=True) for c in batch}
    tailed = [c for c, each in enumerate(jobs) if each.tail]
    best = 10**9
    for order in itertools.permutations(tailed):
        free, last = 0, ends[-1]
        for c in order:
            begin = max(free, arrival[c])
            free = begin + onward
            last = max(last, begin + jobs[c].tail)
        best = min(best, last)
    return best


def test_what_leaves_merged_does_not_leave_one_by_one():
    """If the next link merges as well, chunks of a batch leave together.

    Two chunks take 10 + 2 us over each of two links, 24 us, and the bound is no higher.
    """
    builder = TopologyBuilder("merging chain", [0] * 3)
    for src in (0, 1):
        builder.add_link(src, src + 1, alpha_us=10, beta_us_per_mb=1)
    problem = problem_of(builder.build(), custom(3, [([0], [2])] * 2), merging=frozenset({0, 1}), max_merge=2)
    schedule = exact_times(
        problem, chunk=[0, 1, 0, 1], link=[0, 0, 1, 1], starts=[0, 0, 1, 1], group=[0, 0, 1, 1]
    )
    assert verify(schedule).ok
    assert schedule.finish == 24
    assert lower_bound(problem).bound <= 24


def test_holds_at_the_receiving_end_may_come_late():
    """Holds at the receiving end may come late, so chunks of a batch need not leave one by one.

    Two chunks leave rank 1 at 12 us, by sends of 1 and 10 us that hold one ingress for their last 1 us. One
    holds it from 12 to 13 and continues for 9, the other holds it from 21 to 22: both end at 22, though each
    has a tail of 10 and they share the ingress.
    """
    builder = TopologyBuilder("late", [0] * 5)
    ingress = builder.add_resource("ingress")
    builder.add_link(0, 1, alpha_us=10, beta_us_per_mb=1)
    for dst, alpha in ((2, 0), (4, 9)):
        link = builder.add_link(1, dst, alpha_us=alpha, beta_us_per_mb=1)
        builder.add_hold(link, ingress, alpha_us=0, beta_us_per_mb=1, side="receive")
    builder.add_link(2, 3, alpha_us=0, beta_us_per_mb=9)
    problem = problem_of(
        builder.build(), custom(5, [([0], [3]), ([0], [4])]), merging=frozenset({0}), max_merge=2
    )
    schedule = exact_times(
        problem, chunk=[0, 1, 0, 1, 0], link=[0, 0, 1, 2, 3], starts=[0, 0, 1, 2, 3], group=[0, 0, 1, 2, 3]
    )
    assert verify(schedule).ok
    assert schedule.finish == 22
    assert lower_bound(problem).bound <= 22


def two_nics():
    """Single-machine bound of five chunks that leave rank 0 over two links of one port; two of them reach
    rank 0 late."""
    builder = TopologyBuilder("two queues", [0] * 4)
    port = builder.add_resource("port")
    builder.add_link(3, 0, alpha_us=3, beta_us_per_mb=1)
    for dst in (1, 2):
        link = builder.add_link(0, dst, alpha_us=3, beta_us_per_mb=1)
        builder.add_hold(link, port, alpha_us=3, beta_us_per_mb=1)
    chunks = [([0], [1]), ([0], [1]), ([3], [1]), ([0], [2]), ([3], [2])]
    problem = problem_of(builder.build(), custom(4, chunks), merging=frozenset({1, 2}), max_merge=2)
    found: Any = certificates_of(single_machine, problem)
    best: Certificate = max(found, key=lambda each: (each.bound, len(each.witness.ends)))
    return best


def test_the_witness_holds_the_ends_of_each_number_of_batches():
    """The witness has a label for each combination of numbers of jobs from two queues.

    Three chunks go to rank 1 and two to rank 2: 4 x 3 labels.
    """
    bound = two_nics()
    assert isinstance(bound.witness, SingleMachine)
    assert len(bound.witness.ends) == 4 * 3
    assert bound.check()
    assert not raised(bound).check()


def test_an_end_raised_by_a_tick_is_refused():
    """A witness with any of its labels (earliest ends of a number of jobs) one tick later is refused."""
    for place in range(12):
        bound = two_nics()
        witness: Any = bound.witness
        ends = list(witness.ends)
        ends[place] += 1
        assert not replace(bound, witness=replace(witness, ends=tuple(ends))).check()


@pytest.mark.parametrize("number", [0, 1, 11, 13])
def test_a_witness_with_another_number_of_ends_is_refused(number):
    """The witness needs an end for each combination of numbers of jobs from two queues; more or fewer ends
    are refused."""
    bound = two_nics()
    witness: Any = bound.witness
    ends = (*witness.ends, witness.ends[-1])[:number]
    assert not replace(bound, witness=replace(witness, ends=ends)).check()


def test_another_tail_is_refused():
    """A witness whose tail is one tick longer is refused, as no job has this tail."""
    bound = two_nics()
    witness: Any = bound.witness
    assert not replace(bound, witness=replace(witness, tail=witness.tail + 1)).check()


def test_a_bound_of_nothing_needs_no_ends() -> None:
    """A claim of 0 ticks is accepted without labels."""
    bound = two_nics()
    witness: Any = bound.witness
    assert replace(bound, bound=Fraction(0), witness=replace(witness, ends=())).check()
