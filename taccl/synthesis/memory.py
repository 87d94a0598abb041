"""How much memory a synthesis by the compiled list schedulers takes, worked out before it begins.

From the problem alone: how many sends there will be, and what the scheduler, the verifier, the columns of the
schedule and its file take for each. What fits nowhere is refused with what would fit.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from taccl.errors import InputError
from taccl.synthesis.heuristic.guided import is_guided
from taccl.synthesis.heuristic.router import ROUTER
from taccl.synthesis.parameters import DEFAULTS
from taccl.units import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taccl.problem import Problem
    from taccl.topology.topology import Topology

__all__ = ["MemoryNeed", "check_columns", "check_memory", "free_memory_bytes", "memory_need"]

#: Per transfer of a whole schedule, and while it is written to a file.
_EXPANDED_BYTES, _FILE_BYTES = 150, 400
#: Per transfer of a schedule that is mended, and for every hold that it has: objects, and arrays beside them.
_MENDED_BYTES, _MENDED_HOLD_BYTES = 350, 1200
#: Per hop of a way that is chosen first: where the kernel orders and queues it, and in the columns it fills.
_HOP_BYTES, _SENT_BYTES = 37, 12
#: Trees of ways that are kept for every set of origins.
_NUM_TREES = 8
#: Per rank and chunk that goes to some: the best trees so far, those that grow, and who wants the chunk.
_TREE_BYTES = 12
#: Per row of a block that the verifier reads, and for every resource that is held until its end; and rows.
_VERIFIED_ROW_BYTES, _HELD_ROW_BYTES, _BLOCK = 90, 90, 1 << 18
#: Of the proof: its library, and the linear program of a topology.
_PROOF_BYTES, _PROOF_LINK_BYTES, _MOST_PROOF_LINKS = 60 * 10**6, 30_000, 16_000
#: From how many ranks the length of ways is sampled.
_SAMPLED = 32


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes at the peak of every phase, on top of the problem itself.

    Parameters
    ----------
    num_transfers : int
        How many there will be, about.
    proof : int
        Of the lower bound; stays taken.
    search, verification : int
        Of the list scheduler and the verifier, each with the columns found so far.
    columns : int
        Of the schedule that is returned.
    file : int
        While it is made a whole schedule and, where that is asked for, written to a file.
    mending : int
        While an old schedule is mended, if it is.
    """

    num_transfers: int
    proof: int
    search: int
    verification: int
    columns: int
    file: int
    mending: int = 0

    @property
    def peak(self) -> int:
        """The most that is needed at any time."""
        return self.proof + max(self.search, self.verification, self.columns + self.file, self.mending)

    @property
    def peak_mb(self) -> float:
        """The same in MB."""
        return self.peak / 10**6

    def __str__(self) -> str:
        parts = [
            ("proof", self.proof),
            ("search", self.search),
            ("verification", self.verification),
            ("columns", self.columns),
            ("file", self.file),
            ("mending", self.mending),
        ]
        return ", ".join(f"{name} {_about(size)}" for name, size in parts if size)


def memory_need(
    problem: Problem,
    *,
    num_runs: int | None = None,
    spilled: bool = False,
    summary: bool = False,
    to_file: bool = False,
) -> MemoryNeed:
    """What the compiled list scheduler will need of memory for a problem.

    Parameters
    ----------
    num_runs : int, optional
        As of `taccl.synthesis.large.schedule_large`; with one run no best schedule is kept beside it.
    spilled : bool
        Whether columns lie in files.
    summary : bool
        Whether only the figures of the schedule are kept.
    to_file : bool
        Whether the schedule is written to a file of taccl's own format.
    """
    keeps_best = num_runs != 1
    halves = _read_halves(problem)
    kept = [0 if spilled else half.columns for half in halves]
    searches = [half.search(keeps_best=keeps_best, spilled=spilled) for half in halves]
    combining = problem.collective.combining
    columns = sum(kept)
    if combining:
        # The first half is turned round in time, and at last both are put one behind the other.
        searches = [searches[0], 2 * kept[0] + halves[0].turned, *(kept[0] + each for each in searches[1:])]
        searches += [2 * columns] if len(halves) > 1 else []
    num_transfers = sum(half.num_sends for half in halves)
    verification = columns + halves[0].verification(num_transfers if combining else 0)
    file = 0
    if not summary and not spilled:
        file = _EXPANDED_BYTES * num_transfers if num_transfers <= DEFAULTS.large.most_expanded else 0
        file = max(file, _FILE_BYTES * num_transfers if to_file else 0)
    num_links = len(problem.topology.links)
    proof = _PROOF_BYTES + _PROOF_LINK_BYTES * min(num_links, _MOST_PROOF_LINKS)
    return MemoryNeed(num_transfers, proof, max(searches), verification, 0 if summary else columns, file)


def check_memory(
    problem: Problem,
    *,
    memory_limit_mb: int | None = None,
    share: float = DEFAULTS.large.memory_share,
    spilled: bool = False,
    summary: bool = False,
    to_file: bool = False,
    mended: bool = False,
) -> int | None:
    """How many runs of the list scheduler memory is enough for: 1, or (None) as many as one likes.

    Parameters
    ----------
    memory_limit_mb : int, optional
        By default a share of what is free.
    share : float
        Of the memory that is free.
    spilled, summary, to_file
        As of `memory_need`.
    mended : bool
        Whether an old schedule is mended, and nothing searched for.

    Raises
    ------
    InputError
        If it is not enough for one; it says how much is needed, the limit, and what would fit.
    """
    if memory_limit_mb is None:
        limit = int(share * free_memory_bytes())
        allowed = f"{_about(limit)} allowed, {share:.0%} of what is free on this machine"
    else:
        limit = memory_limit_mb * 10**6
        allowed = f"{_about(limit)} allowed"
    if mended:
        need = _mending_need(problem)
        if need.peak > limit:
            raise _too_much(problem, need, allowed, ["taccl.synthesize the new problem, which takes less"])
        return None
    how = {"spilled": spilled, "summary": summary, "to_file": to_file}
    for num_runs in (None, 1):
        if memory_need(problem, num_runs=num_runs, **how).peak <= limit:
            return num_runs
    need = memory_need(problem, num_runs=1, **how)
    others = {
        "keep='summary' (--summary) drops its transfers once they are verified": how | {"summary": True},
        "spill_dir= (--spill) keeps its columns in files": how | {"spilled": True, "to_file": False},
    }
    fitting = [
        text for text, other in others.items() if memory_need(problem, num_runs=1, **other).peak <= limit
    ]
    if _has_implicit(problem):
        fitting.insert(0, "taccl.synthesize_implicit needs next to nothing on this fabric")
    raise _too_much(problem, need, allowed, fitting)


def _too_much(problem: Problem, need: MemoryNeed, allowed: str, fitting: Sequence[str]) -> InputError:
    """The refusal of what needs more memory than is allowed, with what would fit."""
    by_default = "free on this machine" in allowed
    raised = "give memory_limit_mb if you know better" if by_default else "raise memory_limit_mb"
    return InputError(
        f"{problem.title} would take {need.num_transfers:.2g} transfers "
        f"and {_about(need.peak)} ({need}), more than the {allowed}; "
        + "; or ".join([*fitting, raised, "take fewer ranks or chunks"]),
        where="memory_limit_mb",
    )


def _mending_need(problem: Problem) -> MemoryNeed:
    """What `taccl.replan` needs: every transfer is a Python object, in an old schedule and in a new one."""
    topology = problem.topology
    num_transfers = sum(half.num_sends for half in _read_halves(problem))
    holds = len(topology.holds) / max(1, len(topology.links))
    mending = round((_MENDED_BYTES + _MENDED_HOLD_BYTES * holds) * num_transfers)
    return MemoryNeed(num_transfers, 0, 0, 0, 0, 0, mending)


def check_columns(
    name: str,
    num_ranks: int,
    *,
    memory_limit_mb: int | None = None,
    share: float = DEFAULTS.large.memory_share,
) -> None:
    """Refuse what every rank receives from every rank where the bare columns have no room.

    To be called before topology and collective are built, which takes long for very many ranks.

    Parameters
    ----------
    name : str
        Of collective and fabric, for the error.

    Raises
    ------
    InputError
        If a row of ten bytes for every pair of ranks is more than the limit.
    """
    free = share * free_memory_bytes()
    limit = int(free) if memory_limit_mb is None else memory_limit_mb * 10**6
    needed = 10 * num_ranks * (num_ranks - 1)
    if needed > limit:
        raise InputError(
            f"{name} takes {num_ranks * (num_ranks - 1):.2g} transfers at least, which need "
            f"{_about(needed)}, more than the {_about(limit)} allowed; take fewer ranks, spill to "
            "files (--spill), or take a fabric that looks alike from every rank and needs no list of them",
            where="memory_limit_mb",
        )


def free_memory_bytes() -> int:
    """Memory that this process could still take: of the machine, and of the group it is confined to."""
    known = []
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            known.append(int(line.split()[1]) * 1024)
    if not known:
        known.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)
    for most, now in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        limit, used = _lines(most), _lines(now)
        if limit and used and limit[0].isdigit() and used[0].isdigit():
            known.append(max(0, int(limit[0]) - int(used[0])))
    return min(known)


def _about(num_bytes: int) -> str:
    """A size in three digits: predictions are no better."""
    return format_size(round(num_bytes, 3 - len(str(num_bytes))))


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def _read_halves(problem: Problem) -> list[_Half]:
    """What is searched, read once."""
    if "memory of halves" not in problem.memo:
        problem.memo["memory of halves"] = [_Half(problem, *half) for half in _halves(problem)]
    halves: list[_Half] = problem.memo["memory of halves"]
    return halves


def _halves(problem: Problem) -> list[tuple[list[Sequence[int]], list[Sequence[int]]]]:
    """Origins and destinations of every chunk, in each of the halves that are searched."""
    chunks = problem.collective.chunks
    if not problem.collective.combining:
        return [([c.origins for c in chunks], [c.destinations for c in chunks])]
    roots: list[Sequence[int]] = [
        (c.root,) if c.root is not None else c.origins[:1] or c.destinations[:1] for c in chunks
    ]
    halves: list[tuple[list[Sequence[int]], list[Sequence[int]]]] = [(roots, [c.origins for c in chunks])]
    if any(set(c.destinations) != {c.root} for c in chunks):
        halves.append((roots, [c.destinations for c in chunks]))
    return halves


class _Half:
    """The sends of a problem whose chunks spread, and what they take."""

    def __init__(
        self, problem: Problem, origins: list[Sequence[int]], destinations: list[Sequence[int]]
    ) -> None:
        topology = problem.topology
        self.num_ranks, self.num_links = topology.num_ranks, len(topology.links)
        self.num_chunks = len(origins)
        self.to_one = bool(destinations) and all(len(to) == 1 for to in destinations)
        arrivals = sum(map(len, destinations))
        self.num_sends = arrivals
        if self.to_one:
            self.num_trees = len({tuple(each) for each in origins})
            self.num_sends = round(_mean_hops(problem, origins, destinations) * self.num_chunks)
        elif all(len(to) == self.num_ranks for to in destinations):
            self.num_sends = max(0, arrivals - sum(map(len, origins)))
        self.partial = not self.to_one and arrivals < self.num_ranks * self.num_chunks
        self.num_nets = self.num_chunks
        if self.partial:  # of very many chunks those that start and end alike can share a tree
            ends = {(tuple(each), tuple(to)) for each, to in zip(origins, destinations, strict=True)}
            self.num_nets = min(self.num_chunks, len(ends) + ROUTER.most_searches)
        self.guided = is_guided(problem)
        self._small = 2 if self.num_chunks <= 1 << 16 else 4
        self._num_held = _num_held_to_the_end(topology)
        costs = problem.costs
        alike = all(len(np.unique(each)) < 2 for each in (costs.link_alpha, costs.link_beta))
        self._even = alike and len(set(problem.chunk_bytes)) < 2

    @property
    def columns(self) -> int:
        """Bytes of the columns of its schedule."""
        return (self._small + 8) * self.num_sends

    @property
    def turned(self) -> int:
        """Bytes beside the columns while it is turned round in time: an order, unless all take as long."""
        return (4 if self._even else 22) * self.num_sends

    def search(self, *, keeps_best: bool, spilled: bool) -> int:
        """Bytes at the peak of the list scheduler."""
        fabric = 400 * self.num_links + 100 * self.num_chunks
        hop_bytes = _HOP_BYTES + (0 if spilled else _SENT_BYTES * (2 if keeps_best else 1))
        if self.to_one and not self.guided:
            trees = 4 * _NUM_TREES * self.num_trees * self.num_ranks
            return fabric + trees + hop_bytes * self.num_sends
        if self.guided:
            return fabric + 8 * self.num_ranks * self.num_chunks + hop_bytes * self.num_sends
        bits = self.num_chunks * self.num_ranks // 8
        log = self._small * (self.num_sends + self.num_chunks)
        columns = 0 if spilled else self.columns * (2 if keeps_best else 1)
        trees = _TREE_BYTES * self.num_ranks * self.num_nets if self.partial else 0
        return fabric + max(trees, bits * (5 if self.partial else 2) + log + columns)

    def verification(self, num_summed: int) -> int:
        """Bytes at the peak of the verifier, without the columns that it reads; of so many sends of sums."""
        pairs, entered = self.num_ranks * self.num_chunks, self.num_sends + self.num_chunks
        kept = 12 * entered if pairs > 3 * entered else 4 * pairs
        most_rows = _BLOCK
        if num_summed:  # an order by chunk, and whether each sums; of a chunk all rows at once
            kept, most_rows = 5 * num_summed, max(_BLOCK, num_summed // self.num_chunks)
        row_bytes = round(_VERIFIED_ROW_BYTES + _HELD_ROW_BYTES * self._num_held)
        return kept + row_bytes * min(max(num_summed, self.num_sends), most_rows) + 400 * self.num_links


def _num_held_to_the_end(topology: Topology) -> float:
    """Resources per link of those that some link holds until a send ends."""
    late = {hold.resource for hold in topology.holds if hold.side == "receive"}
    return sum(hold.resource in late for hold in topology.holds) / max(1, len(topology.links))


def _mean_hops(problem: Problem, origins: list[Sequence[int]], destinations: list[Sequence[int]]) -> float:
    """Links that a chunk with one destination passes, on the average over some origins."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import dijkstra

    num_ranks, links = problem.topology.num_ranks, problem.topology.links
    used = [links[e] for e in problem.links_allowed]
    joined = csr_array(
        (np.ones(len(used)), ([e.srcs[0] for e in used], [e.dsts[0] for e in used])),
        shape=(num_ranks, num_ranks),
    )
    if problem.collective.combining:  # a reduction is searched backwards
        joined = joined.T.tocsr()
    pairs = np.array([(each[0], to[0]) for each, to in zip(origins, destinations, strict=True)])
    if len(np.unique(pairs[:, 1])) < len(np.unique(pairs[:, 0])):  # as of a gather: the same ways backwards
        joined, pairs = joined.T.tocsr(), pairs[:, ::-1]
    starts = np.unique(pairs[:, 0])
    # At random, as regular steps could all meet one side of a mesh.
    sample = np.random.default_rng(0).permutation(starts)[:_SAMPLED]
    row = np.full(num_ranks, -1)
    row[sample] = np.arange(len(sample))
    pairs = pairs[row[pairs[:, 0]] >= 0]
    lengths = dijkstra(joined, indices=sample, unweighted=True)[row[pairs[:, 0]], pairs[:, 1]]
    known = lengths[np.isfinite(lengths)]
    return float(known.mean()) if len(known) else 1.0


def _has_implicit(problem: Problem) -> bool:
    """Whether there surely is an implicit schedule of the problem."""
    from taccl.schedule.implicit import IMPLICIT_COLLECTIVES
    from taccl.synthesis.symmetric.hamiltonian import has_hamiltonian_ring
    from taccl.topology.named import as_named

    if problem.collective.name not in IMPLICIT_COLLECTIVES:
        return False
    named = as_named(problem.topology)
    return named is not None and (named.kind != "mesh" or has_hamiltonian_ring(named.dims))
