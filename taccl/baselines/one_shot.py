"""One-shot sums: every rank gets every contribution and adds them up itself, in one message where it can.

What is sent is named (`Schedule.carries`): a rank keeps what arrives apart, as a runtime with scratch space
does, so that its own contribution may still go out alone once others have come in.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from taccl.arguments import checked
from taccl.baselines.cut import cut_while_it_pays
from taccl.baselines.routes import Routes
from taccl.errors import CollectiveError
from taccl.schedule.timing import exact_times

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from taccl.problem import Problem
    from taccl.schedule.schedule import Schedule

#: More transfers than this are refused: every one is a Python object, and takes its time.
_MOST_TRANSFERS = 1_000_000

#: What goes to a rank in a step: chunks, from, to, and the ranks whose contributions are summed in them.
Move = tuple["Sequence[int]", int, int, "Sequence[int]"]


class NamedSteps:
    """Sums that are passed on step by step, each over a shortest route and to no rank twice.

    - `problem`: Of a collective that sums up.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem, self._routes = problem, Routes(problem)
        self._arrived: set[tuple[int, int, tuple[int, ...]]] = set()
        self._sends: list[tuple[list[int], int, tuple[int, ...]]] = []  # chunks, link, contributions
        self._num_transfers = 0

    def step(self, moves: Iterable[Move]) -> None:
        """Pass sums on, the first hops of all of them first, then the second, and so on."""
        ends = self.problem.topology.links
        routed = [
            (chunks, self._routes.route(src, dst), tuple(sorted(ranks))) for chunks, src, dst, ranks in moves
        ]
        for hop in range(max((len(route) for _, route, _ in routed), default=0)):
            for chunks, route, ranks in routed:
                if hop >= len(route):
                    continue
                new = [c for c in chunks if (c, ends[route[hop]].dst, ranks) not in self._arrived]
                self._arrived.update((c, ends[route[hop]].dst, ranks) for c in new)
                self._num_transfers += len(new)
                self._sends.append((new, route[hop], ranks))
        self._check_size()

    def sum_up(self, sums: Iterable[tuple[Sequence[int], int, Sequence[int]]]) -> None:
        """Bring contributions to ranks by shortest routes, and add those that meet on the way.

        Each sum is of chunks, to a rank, of the contributions of ranks.
        """
        links, used = self.problem.topology.links, Counter[int]()
        sends: list[tuple[float, int, tuple[list[int], int, tuple[int, ...]]]] = []
        for chunks, dst, ranks in sums:
            carried = {rank: {rank} for rank in ranks}
            for far, rank, ways in self._routes.ways_in(dst):
                if rank not in carried:
                    continue
                if not ways:
                    self._routes.route(rank, dst)  # says that there are none
                # Most meet where the first link is the fast one.
                _, _, link = min((ticks, used[link], link) for ticks, link in ways)
                used[link] += len(chunks)
                at, turn = links[link].dst, (links[link].dst - rank) % self.problem.topology.num_ranks
                sends.append((-far, turn, (list(chunks), link, tuple(sorted(carried[rank])))))
                carried[at] = carried.get(at, set()) | carried[rank]
                self._num_transfers += len(chunks)
            self._check_size()
        sends.sort(key=lambda each: each[:2])  # what has far to go first; in turns, where no two have one end
        self._sends += [send for _, _, send in sends]

    def _check_size(self) -> None:
        if self._num_transfers > _MOST_TRANSFERS:
            raise CollectiveError(
                f"{self.problem.title} takes more than {_MOST_TRANSFERS} transfers with every contribution "
                "sent to every rank; use ring, recursive or hierarchical, or synthesize it",
                where="baseline",
            )

    def schedule(self, *, producer: str) -> Schedule:
        """All steps; chunks of one move travel together where the link merges."""
        clauses = self.problem.clauses
        chunk, link, group, carried = [], [], [], []
        num_groups = 0
        for chunks, over, ranks in self._sends:
            most = clauses.max_merge if over in clauses.merging else 1
            for i, c in enumerate(chunks):
                num_groups += i % most == 0
                chunk.append(c)
                link.append(over)
                group.append(num_groups)
                carried.append(ranks)
        return exact_times(
            self.problem, chunk=chunk, link=link, sequence=group, group=group, contributions=carried,
            producer=producer,
        )  # fmt: skip


@checked
def one_shot(problem: Problem, *, cut: bool = True) -> Schedule:
    """A schedule in which ranks send their contributions to all that want the sum, which add them up.

    The sketch is left aside, but for merging.

    Parameters
    ----------
    problem : Problem
        Allreduce, reduce-scatter, reduce, or sums of the user's own.
    cut : bool
        Whether chunks may be cut, so that more of them follow one another.

    Raises
    ------
    CollectiveError
        If the collective adds nothing up, or there would be too many transfers.
    TopologyError
        If no links lead from one rank to another.

    References
    ----------
    The NVIDIA TensorRT-LLM and the MSCCL++ libraries sum small messages so inside a node.
    """
    if not problem.collective.sums_up:
        raise CollectiveError(
            f"one-shot is for sums, and {problem.collective.name} adds nothing up; use pairwise",
            where="baseline",
        )
    return cut_while_it_pays(problem, _sums, cut=cut)


def sums_everywhere(problem: Problem) -> bool:
    """Whether every rank contributes to every chunk and wants its sum."""
    num_ranks, collective = problem.topology.num_ranks, problem.collective
    return collective.sums_up and all(
        len(c.origins) == len(c.destinations) == num_ranks for c in collective.chunks
    )


def _sums(problem: Problem) -> Schedule:
    steps = NamedSteps(problem)
    wanted: dict[tuple[int, tuple[int, ...]], list[int]] = {}  # (destination, contributors) -> chunks
    for c, chunk in enumerate(problem.collective.chunks):
        for dst in chunk.destinations:
            wanted.setdefault((dst, chunk.origins), []).append(c)
    steps.sum_up((chunks, dst, ranks) for (dst, ranks), chunks in wanted.items())
    return steps.schedule(producer="one-shot")
