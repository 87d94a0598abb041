"""Upper bounds on the number of chunk arrivals by a given time, for the evaluation of witnesses.

Ranks that hold data send it on, so arrivals by a time depend on earlier arrivals. A witness states bounds on
these numbers as labels. The labels are checked by induction over time. The first arrival that exceeds a label
would come from senders that still obey the labels, and these senders are shown to be too few.
docs/formulation.md, "Checking", has the proof. `Entries` bounds the number of chunks that have entered sets
of ranks. `Pairs` bounds the number of ranks that such chunks have reached inside.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise

from taccl.analysis.certificates.certificate import Labels
from taccl.analysis.certificates.evaluation.facts import NEVER, Facts
from taccl.analysis.certificates.evaluation.passages import GatePassage, by_place, passages, passages_of
from taccl.schedule.combine import reduce_phase

#: `_MOST_STARTS`: max starting ranks for which shortest paths between ranks also limit numbers of arrivals.
#: `_MOST_NODES`: max nodes for which shortest paths between nodes limit these numbers, if more ranks start.
_MOST_STARTS, _MOST_NODES = 256, 256
#: [(since, more), ...]: from tick `since` on, `more` additional senders may hold data.
Steps = Sequence[tuple[int, int]]


class Fastest:
    """Hypothetical sender that is no slower than any of several senders.

    Its i-th bottleneck resource delivers as many chunks as the best i-th bottleneck resource of these
    senders. A send has at most `most` chunks.
    """

    def __init__(self, senders: Iterable[list[GatePassage]], most: int = 1) -> None:
        limited = [[gate.of_most(most) for gate in mine] for mine in senders]
        num = max((gate.most for mine in limited for gate in mine), default=1)

        def pace(gate: GatePassage) -> tuple[object, ...]:
            """Sort key of a bottleneck resource: ticks for which `num` chunks hold it, then first arrival."""
            return (
                num // gate.most * (gate.alpha + gate.most * gate.beta),
                gate.before + gate.after[0],
                gate.after,
            )

        self._places = by_place(limited, pace)
        self._known: dict[int, int] = {}

    def within(self, ticks: int) -> int:
        """Max chunks of one sender that arrive in the first `ticks` ticks after it gets data."""
        if ticks not in self._known:
            self._known[ticks] = sum(max(gate.between(0, ticks) for gate in some) for some in self._places)
        return self._known[ticks]

    def by(self, ticks: int, awake: Steps) -> int:
        """Max chunks that arrive by tick `ticks`, if senders get data at the times in `awake`."""
        return sum(more * self.within(ticks - since) for since, more in awake if since <= ticks)


def steps(labels: Labels, most: int) -> list[tuple[int, int]]:
    """Convert labels to [(since, more), ...]: from tick `since` on, `more` additional items are possible.

    - `labels`: ((ticks, number), ...): before `ticks`, at most `number` items are possible.
    """
    found, since, before = list[tuple[int, int]](), 0, 0
    for until, number in (*labels, (NEVER, most)):
        number = min(number, most)
        found.append((since, number - before))
        since, before = until, number
    return found


def are_true(labels: Labels, arrived: Callable[[int], int]) -> bool:
    """True if no label (ticks, most) can be exceeded: before `ticks`, at most `most` items can have arrived.

    - `arrived`: Max number of items by a given tick, if all earlier labels hold.
    """
    if any(ticks <= before or most < few for (before, few), (ticks, most) in pairwise(((-1, 0), *labels))):
        return False
    return all(arrived(ticks - 1) <= most for ticks, most in labels)


def reached(
    facts: Facts,
    labels: Labels,
    links: Sequence[int],
    most: int,
    *,
    starts: Collection[int] | None = None,
    backwards: bool = False,
) -> list[int] | None:
    """Earliest ticks at which data of one rank can be at 1, 2, ..., `most` ranks; None if a label is wrong.

    - `labels`: ((ticks, number), ...): before `ticks`, the data can be at `number` ranks at most.
    - `starts`: Ranks from which the data may come, for shortest paths. Default: unknown.
    - `backwards`: True if source and destination of links are exchanged in `facts`.
    """
    if most == 1 and not labels:
        return [0]
    sender, awake = Fastest(passages_of(facts, links, facts.src).values()), steps(labels, most)
    near = None
    if starts is not None and len(starts) <= _MOST_STARTS:
        near = facts.nearest(links, starts, backwards=backwards)
    elif starts is not None and facts.topology.num_nodes <= _MOST_NODES:
        near = facts.nearest_by_node(links, starts, backwards=backwards)

    def arrived(ticks: int) -> int:
        number = 1 + sender.by(ticks, awake)
        return number if near is None else min(number, bisect_right(near, ticks))

    if not are_true(labels, arrived):
        return None
    return [since for since, more in awake for _ in range(more)]


def reached_in_nodes(
    facts: Facts, collected: Labels, spread: Labels, prepare: Callable[[Facts], Facts] = lambda facts: facts
) -> tuple[list[int], list[int]] | None:
    """Earliest ticks for 1, 2, ... contributions of a node at one rank, and for copies at 1, 2, ... ranks.

    Both lists end with the least number in any node that shares a sum; None if a label is wrong.

    - `prepare`: Transform of the facts by which arrivals are counted.
    """
    node = facts.topology.node_of_rank
    adding = wanting = facts.topology.num_ranks
    for data in facts.collective.chunks:
        starts, ends = (Counter(node[r] for r in at) for at in (data.origins, data.destinations))
        shared = starts.keys() & ends.keys()
        if len(shared) > 1:
            adding = min(adding, *(starts[each] for each in shared))
            wanting = min(wanting, *(ends[each] for each in shared))
    reduction = Facts(reduce_phase(facts.problem), divisible=facts.divisible, in_network=False)
    within = [e for e in facts.allowed if not facts.topology.is_internode(e)]
    first = reached(prepare(reduction), collected, within, adding)
    last = reached(prepare(facts), spread, within, wanting)
    return None if first is None or last is None else (first, last)


#: Max ranks for which distances from the ranks at which chunks enter sets are used.
_MOST_RANKS = 4_000
#: Distinct bottleneck resources: {(resource, number of resources equal to it)}.
Passages = frozenset[tuple[GatePassage, int]]


class Entries:
    """Max number of entries by a given time; an entry is the first arrival of a chunk in a set of ranks.

    - `release`: {usable link: earliest tick at which it can carry a chunk}.
    - `num_first`: Number of outside ranks that initially hold some chunk.
    - `num`: Number of entries that are needed, and max chunks per send.
    """

    def __init__(
        self,
        facts: Facts,
        sets: Sequence[frozenset[int]],
        release: Mapping[int, int],
        num_first: int,
        num: int,
    ) -> None:
        self.facts, self.release, self._num_first, self.num = facts, release, num_first, num
        self.set_of = {r: i for i, ranks in enumerate(sets) for r in ranks}
        self.border = self.links(lambda a, b: a != b is not None)
        self._let_in = Counter(passages(facts, self.border, release))
        self._num_sets, self._num_outside = len(sets), facts.topology.num_ranks - len(self.set_of)
        #: `_is_fed`: False if there is one set, and all outside ranks can send into it from the start.
        self._is_fed = len(sets) > 1 or num_first < self._num_outside
        self._awake: Steps = ()
        self._inside: Steps = ()
        self._entered: Steps = ()
        early = self.links(lambda a, b: a is None and b is not None)
        self._through = Counter(passages(facts, early, release)) if self._is_fed else {}
        self._outside = cache(lambda most: self.fastest(early, most))
        onward = self.links(lambda a, b: None is not a != b is not None)
        self._ranks = cache(lambda: self.fastest(onward, num))
        self._sets = cache(lambda most: self.fastest(onward, most, of=self.set_of))
        self.by = cache(self._by)

    def limited_by(self, awake: Labels, inside: Labels, entered: Labels) -> bool:
        """Limit first arrivals by the number of chunk holders; return True if these limits are proven.

        - `awake`, `inside`, `entered`: ((ticks, most), ...): before `ticks`, at most `most` outside ranks,
          ranks of the sets, and sets, respectively, can hold some chunk.
        """
        if not self._is_fed:
            return True
        back = self.links(lambda a, b: a is not None and b is None)
        out_and_in = ((self.facts.took(e, self.facts.units[0]) for e in some) for some in (back, self.border))
        again = sum(min(ticks, default=NEVER) for ticks in out_and_in)
        outside = steps(awake, self._num_outside)
        # Once a chunk can have entered and left a set, all outside ranks count as holding data.
        self._awake = [(min(since, again), more) for since, more in outside]
        self._inside, self._entered = steps(inside, len(self.set_of)), steps(entered, self._num_sets)
        among_outside = self.fastest(self.links(lambda a, b: a is b is None), 1)
        into_sets = self.fastest(self.links(lambda a, b: a is not None and b is not None), 1)
        return (
            are_true(awake, lambda t: self._num_first + among_outside.by(t, outside))
            and are_true(inside, lambda t: self._early(t, 1) + into_sets.by(t, self._inside))
            and are_true(entered, lambda t: self._early(t, 1) + self._sets(1).by(t, self._entered))
        )

    def _by(self, ticks: int) -> int:
        """Max number of chunks that can have entered the sets by `ticks`."""
        let_in = sum(number * gate.between(0, ticks) for gate, number in self._let_in.items())
        if not self._is_fed:
            return let_in
        by_ranks = self._ranks().by(ticks, self._inside)
        onward = min(by_ranks, self._sets(self.num).by(ticks, self._entered))
        return min(let_in, self._early(ticks, self.num) + onward)

    def _early(self, ticks: int, most: int) -> int:
        """Max number of chunks that outside ranks send into the sets by `ticks`; max `most` per send."""
        through = sum(n * gate.of_most(most).between(0, ticks) for gate, n in self._through.items())
        return min(through, self._outside(most).by(ticks, self._awake))

    def links(self, belongs: Callable[[int | None, int | None], bool]) -> list[int]:
        """Usable links for which `belongs` is true of the set indices of source and destination.

        The index is None for a rank outside every set.
        """
        src, dst, set_of = self.facts.src, self.facts.dst, self.set_of
        return [e for e in self.release if belongs(set_of.get(src[e]), set_of.get(dst[e]))]

    def fastest(self, links: list[int], most: int, *, of: Mapping[int, int] | None = None) -> Fastest:
        """Hypothetical sender over these links that is no slower than any rank (or any set of ranks).

        - `of`: {rank: its set}; the ranks of a set then count as one sender. Default: each rank is a sender.
        """
        label = [rank if of is None else of.get(rank, -1) for rank in self.facts.src]
        return Fastest(passages_of(self.facts, links, label).values(), most)


class Pairs:
    """Upper bound on the deliveries of late chunks to ranks, by a given time.

    An entry is the first arrival of a chunk in one of several sets of ranks. Only the last entries in order
    of time count. Each is followed by deliveries of its chunk to ranks of the set: (chunk, rank) pairs.

    - `since`: Tick before which none of the last entries happens.
    - `last`: Number of entries that count.
    """

    def __init__(self, entries: Entries, since: int, last: int) -> None:
        facts, border, set_of = entries.facts, entries.border, entries.set_of
        self._entries, self._since, self._last, self._before = entries, since, last, entries.num - last
        inside = entries.links(lambda a, b: a == b is not None)
        into = passages_of(facts, border, [set_of.get(rank, -1) for rank in facts.dst]).values()
        self._into = {_counted(gate.of_most(last) for gate in gates) for gates in into}
        self._num_entered = min(last, len(into))
        near, direct = (
            passages_of(facts, inside, facts.dst), passages_of(facts, border, facts.dst, entries.release)
        )  # fmt: skip
        to_rank = {r: (_counted(near.get(r, ())), _counted(direct.get(r, ()))) for r in set_of}
        self._alike = cache(lambda ranks: Counter(to_rank[rank] for rank in ranks).items())
        self._sender = entries.fastest(inside, last)
        self._distances = Counter[int]()
        if len(set_of) <= _MOST_RANKS:
            self._distances.update(facts.nearest(inside, {facts.dst[e] for e in border}))
        self._entered = cache(self._entered_by)

    def limited_by(self, labels: Labels) -> bool:
        """True if `labels` and `since` are right for all schedules, by exact evaluation.

        - `labels`: ((ticks, most), ...): before `ticks`, there are at most `most` pairs.
        """
        ranks = frozenset(self._entries.set_of)
        made = steps(labels, len(ranks))  # a rank is one sender, from its first pair on

        def arrived(ticks: int) -> int:
            sent = self._entered(ticks) + self._sender.by(ticks, made)
            near = sum(number * self._entered(ticks - gate) for gate, number in self._distances.items())
            return min(sent, near if self._distances else sent, self.room(ticks, ranks))

        return self._entries.by(self._since - 1) <= self._before and are_true(labels, arrived)

    def _entered_by(self, ticks: int) -> int:
        """Max number of the last entries (first arrivals of chunks in sets) that can happen by `ticks`."""
        if ticks < self._since:
            return 0
        into = max(sum(n * gate.ending(self._since, ticks) for gate, n in gates) for gates in self._into)
        return min(max(0, self._entries.by(ticks) - self._before), self._num_entered * into)

    def room(self, ticks: int, ranks: frozenset[int]) -> int:
        """Max number of arrivals by `ticks` at the given ranks, of the last chunks to enter sets of ranks.

        Sends inside a set start at `since` or later; sends over a border end at `since` or later.
        """
        since, taken = self._since, 0
        for (near, direct), number in self._alike(ranks):
            some = sum(n * gate.between(since, ticks) for gate, n in near)
            some += sum(n * min(gate.ending(since, ticks), gate.between(0, ticks)) for gate, n in direct)
            taken += number * min(self._last, some)
        return taken


def _counted(gates: Iterable[GatePassage]) -> Passages:
    """Distinct bottleneck resources: {(resource, number of resources equal to it)}."""
    return frozenset(Counter(gates).items())
