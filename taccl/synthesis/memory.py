"""Memory of a synthesis by the compiled list schedulers, estimated before it begins.

The estimate uses the problem alone: the number of sends, and the bytes per send in the scheduler, the
verifier, the schedule's columns and its file. A synthesis that exceeds the limit is refused, with suggestions
that fit.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from taccl._internal.address_space import free_space_bytes
from taccl._internal.caching import cached
from taccl._internal.graph_algorithms import shortest_paths
from taccl._internal.units import format_about, format_size
from taccl.errors import InputError
from taccl.problem.costs import hold_columns, link_ends
from taccl.problem.problem import Problem
from taccl.schedule.combine import broadcast_phase, reduce_phase
from taccl.synthesis.kernels.events import MOST_WIDE
from taccl.synthesis.proposers.router import MOST_REROUTED
from taccl.synthesis.proposers.spreading import has_chunk_masks

if TYPE_CHECKING:  # execution of programs imports this module for the free memory only
    from taccl.synthesis.options import Options
    from taccl.topology.topology import Topology

#: Bytes per transfer of a whole schedule while it is written to a file.
_FILE_BYTES = 400
#: `_HOP_BYTES`: bytes per hop of a route in the kernel's orders and queues.
#: `_SENT_BYTES`: bytes per hop in the columns of sends that the kernel fills.
_HOP_BYTES, _SENT_BYTES = 37, 12
#: Number of candidate trees that the router keeps for each distinct set of chunk origins.
_NUM_TREES = 8
#: Bytes per (rank, chunk) pair if paths may be rerouted: current and best paths, and work arrays.
_REROUTED_BYTES = 14
#: Bytes per (rank, chunk) pair if chunks go to some ranks only: best and current trees, and destinations.
_TREE_BYTES = 12
#: `_VERIFIED_ROW_BYTES`: bytes that the verifier, which checks sends in blocks, needs per send of a block.
#: `_HELD_ROW_BYTES`: further bytes per send for each resource that the send holds until its end.
#: `_BLOCK`: number of sends per block.
_VERIFIED_ROW_BYTES, _HELD_ROW_BYTES, _BLOCK = 90, 90, 1 << 18
#: Memory for the lower bound:
#: `_PROOF_BYTES`: bytes of the loaded solver library for linear programs.
#: `_PROOF_LINK_BYTES`: further bytes of the linear program per link of the topology.
#: `_MOST_PROOF_LINKS`: number of links from which the linear program needs no further memory.
_PROOF_BYTES, _PROOF_LINK_BYTES, _MOST_PROOF_LINKS = 60 * 10**6, 30_000, 16_000
#: Share of the free memory that may be used if the caller gives no limit.
_MEMORY_SHARE = 0.8
#: Max origins from which the length of routes is sampled.
_SAMPLED = 32


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Peak memory in bytes of each phase of a synthesis, in addition to the problem itself."""

    num_transfers: int  # estimated number of transfers
    proof: int = 0  # bytes to compute the lower bound; kept until the end
    search: int = 0  # peak of the search, including the columns of sends that exist by then
    verification: int = 0  # peak of the verification, including the columns of sends
    columns: int = 0  # size of the returned schedule's columns
    file: int = 0  # further bytes while the schedule is written to a file

    @property
    def peak(self) -> int:
        """Peak bytes over all phases."""
        return self.proof + max(self.search, self.verification, self.columns + self.file)

    def __str__(self) -> str:
        phases = [(each.name, getattr(self, each.name)) for each in fields(self)[1:]]
        return ", ".join(f"{name} {_about(size)}" for name, size in phases if size)


def memory_need(
    problem: Problem,
    *,
    num_runs: int | None = None,
    spilled: bool = False,
    summary: bool = False,
    to_file: bool = False,
) -> MemoryNeed:
    """Memory that the compiled list scheduler needs for a problem.

    - `num_runs`: Number of runs; None for any number. A single run keeps no best schedule beside its own.
    - `spilled`: True if columns are in files.
    - `summary`: True if totals of the schedule are kept, but no transfers.
    - `to_file`: True if the schedule is written to a file of taccl's own format.
    """
    phases = _phases_of(problem)
    kept = [0 if spilled else phase.columns for phase in phases]
    searches = [phase.search(keeps_best=num_runs != 1, spilled=spilled) for phase in phases]
    combining, columns = problem.collective.combining, sum(kept)
    num_transfers = sum(phase.num_sends for phase in phases)
    if combining:
        # Peaks of a reduction: first search, reversal, second search (reversed schedule kept), concatenation.
        searches = [searches[0], 2 * kept[0] + phases[0].reversal, *(kept[0] + each for each in searches[1:])]
        searches += [2 * columns] if len(phases) > 1 else []
    file = 0
    if not summary and not spilled:
        file = _FILE_BYTES * num_transfers if to_file else 0
    return MemoryNeed(
        num_transfers,
        proof=_PROOF_BYTES + _PROOF_LINK_BYTES * min(len(problem.topology.links), _MOST_PROOF_LINKS),
        search=max(searches),
        verification=columns + phases[0].verification(problem.topology, num_transfers if combining else 0),
        columns=0 if summary else columns,
        file=file,
    )


def check_memory(problem: Problem, options: Options) -> int | None:
    """Max runs of the list scheduler that memory allows: 1, or None for any number.

    The default limit is a share of the free memory. Raises `InputError` if it does not suffice for one run,
    with the need, the limit, and alternatives that fit.
    """
    limit, is_spilled = _limit(options.memory_limit_mb, _MEMORY_SHARE), options.spill_dir is not None
    how = {"spilled": is_spilled, "summary": options.keep == "summary", "to_file": options.to_file}
    needs = {runs: memory_need(problem, num_runs=runs, **how) for runs in (None, 1)}
    for num_runs, need in needs.items():
        if need.peak <= limit:
            return num_runs
    allowed, raised = f"{_about(limit)} allowed", "raise memory_limit_mb= (--memory-limit)"
    if options.memory_limit_mb is None:
        allowed += f", {_MEMORY_SHARE:.0%} of what is free on this machine"
        raised = "set memory_limit_mb= (--memory-limit) to allow more"
    fitting = []
    if _has_implicit(problem):
        fitting.append("taccl.synthesize_implicit needs almost no memory on this fabric")
    others: dict[str, dict[str, bool]] = {
        "keep='summary' (--summary) drops its transfers once they are verified": {"summary": True},
        "spill_dir= (--spill) keeps its columns in files": {"spilled": True, "to_file": False},
    }
    for text, other in others.items():
        if memory_need(problem, num_runs=1, **(how | other)).peak <= limit:
            fitting.append(text)
    raise InputError(
        f"{problem.title} would take {format_about(need.num_transfers)} transfers "
        f"and {_about(need.peak)} ({need}), more than the {allowed}; "
        + "; or ".join([*fitting, raised, "use fewer ranks or chunks"]),
        where="memory_limit_mb",
    )


def check_columns(name: str, num_ranks: int, *, memory_limit_mb: int | None) -> None:
    """Raise `InputError` if the columns of an exchange between all ranks would exceed the memory limit.

    The need is ten bytes for each pair of ranks. The check comes before topology and collective are built,
    since building them is slow for very many ranks.

    - `name`: Topology and collective, for the message.
    """
    limit, num_pairs = _limit(memory_limit_mb, _MEMORY_SHARE), num_ranks * (num_ranks - 1)
    if 10 * num_pairs > limit:
        raise InputError(
            f"{name} needs at least {format_about(num_pairs)} transfers and {_about(10 * num_pairs)}, more "
            f"than the {_about(limit)} allowed; use fewer ranks, spill to files "
            "(--spill), or use a fabric that looks alike from every rank, whose schedules are not listed",
            where="memory_limit_mb",
        )


def _limit(memory_limit_mb: int | None, share: float) -> int:
    return int(share * free_memory_bytes()) if memory_limit_mb is None else memory_limit_mb * 10**6


def free_memory_bytes() -> int:
    """Bytes that this process may still allocate: minimum of machine, control group and address space."""
    space = free_space_bytes()
    known = [] if space is None else [space]
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            known.append(int(line.split()[1]) * 1024)
    if not _lines("/proc/meminfo"):
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
    """Size rounded to three digits, as estimates are no more precise."""
    return format_size(round(num_bytes, 3 - len(str(num_bytes))))


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


@cached
def _phases_of(problem: Problem) -> list[_Phase]:
    """Memory needs of the phases in which a problem is searched, in order."""
    if not problem.collective.combining:
        return [_Phase(problem)]
    spreading = [] if problem.collective.stays_at_roots else [broadcast_phase(problem)]
    return [_Phase(each) for each in (reduce_phase(problem), *spreading)]


class _Phase:
    """Number of sends of one phase, and the memory for them."""

    def __init__(self, problem: Problem) -> None:
        self.num_ranks, self.num_links = problem.topology.num_ranks, len(problem.topology.links)
        begins, ends = problem.collective.origin_sets, problem.collective.destination_sets
        sizes = ends.sizes
        self.num_chunks = len(sizes)
        self.to_one = bool(len(sizes)) and bool((sizes == 1).all())
        self.num_sends = arrivals = int(sizes.sum())
        if self.to_one:
            self.num_trees = len(begins.sets)
            self.num_sends = round(_mean_hops(problem) * self.num_chunks)
        elif (sizes == self.num_ranks).all():
            self.num_sends = max(0, arrivals - int(begins.sizes.sum()))
        self.partial = not self.to_one and arrivals < self.num_ranks * self.num_chunks
        self.masked = has_chunk_masks(problem)
        self._small = 2 if self.num_chunks <= 1 << 16 else 4
        costs = problem.costs
        alike = all((each == each[:1]).all() for each in (costs.link_alpha, costs.link_beta))
        self._even = alike and len(set(problem.chunk_bytes)) < 2

    @property
    def columns(self) -> int:
        """Bytes of the columns of the phase's schedule."""
        return (self._small + 8) * self.num_sends

    @property
    def reversal(self) -> int:
        """Bytes to reverse the phase's schedule in time; fewer if all sends take equally long."""
        return (4 if self._even else 22) * self.num_sends

    def search(self, *, keeps_best: bool, spilled: bool) -> int:
        """Peak bytes of the list scheduler."""
        fixed = 400 * self.num_links + 100 * self.num_chunks
        num_kept = 0 if spilled else 2 if keeps_best else 1
        if self.to_one or self.masked:
            trees = 8 * self.num_chunks if self.masked else 4 * _NUM_TREES * self.num_trees
            hop_bytes = _HOP_BYTES + _SENT_BYTES * num_kept
            pairs = self.num_chunks * self.num_ranks
            rerouted = _REROUTED_BYTES * pairs if self.to_one and pairs <= MOST_REROUTED else 0
            return fixed + trees * self.num_ranks + rerouted + hop_bytes * self.num_sends
        bits = self.num_chunks * self.num_ranks // 8
        log = self._small * (self.num_sends + self.num_chunks)
        columns = self.columns * num_kept
        trees = _TREE_BYTES * self.num_ranks * self.num_chunks if self.partial else 0
        # 64-bit starts are kept beside the columns to which they are narrowed.
        wide = 8 * self.num_sends if self.num_sends <= MOST_WIDE and not spilled else 0
        return fixed + max(trees, bits * (5 if self.partial else 2) + log + columns + wide)

    def verification(self, topology: Topology, num_summed: int) -> int:
        """Peak bytes of the verifier, without the columns that it reads.

        - `num_summed`: Number of sends of a collective with sums; 0 without sums.
        """
        holds = hold_columns(topology)
        late = np.bincount(holds.resource, holds.receives) > 0  # resources that are held until a send ends
        num_held = int(late[holds.resource].sum()) / max(1, self.num_links)
        pairs, entered = self.num_ranks * self.num_chunks, self.num_sends + self.num_chunks
        kept = 12 * entered if pairs > 3 * entered else 4 * pairs
        most_rows = _BLOCK
        if num_summed:  # 5 bytes per send for order and flag; a block has all sends of a chunk
            kept, most_rows = 5 * num_summed, max(_BLOCK, num_summed // self.num_chunks)
        row_bytes = round(_VERIFIED_ROW_BYTES + _HELD_ROW_BYTES * num_held)
        return kept + row_bytes * min(max(num_summed, self.num_sends), most_rows) + 400 * self.num_links


def _mean_hops(problem: Problem) -> float:
    """Mean number of links on the shortest path of a chunk with one destination, over sampled origins."""
    num_ranks, used = problem.topology.num_ranks, np.array(problem.links_allowed, np.int64)
    src, dst = link_ends(problem.topology)
    joined = src[used], dst[used]
    sets = problem.collective.origin_sets, problem.collective.destination_sets
    pairs = np.stack([np.array([ranks[0] for ranks in each.sets])[each.of_chunk] for each in sets], axis=1)
    starts, ends = (np.flatnonzero(np.bincount(each)) for each in pairs.T)
    if len(ends) < len(starts):  # as in a gather: take the paths in reverse
        joined, pairs, starts = joined[::-1], pairs[:, ::-1], ends
    # Origins are drawn at random, as regularly spaced ones could all be at one side of a mesh.
    sample = np.random.default_rng(0).permutation(starts)[:_SAMPLED]
    row = np.full(num_ranks, -1)
    row[sample] = np.arange(len(sample))
    pairs = pairs[row[pairs[:, 0]] >= 0]
    lengths = shortest_paths(num_ranks, *joined, 1, sample)[row[pairs[:, 0]], pairs[:, 1]]
    known = lengths[np.isfinite(lengths)]
    return float(known.mean()) if len(known) else 1.0


def _has_implicit(problem: Problem) -> bool:
    """True if an implicit schedule of the problem certainly exists."""
    from taccl.schedule.implicit_schedule import IMPLICIT_COLLECTIVES
    from taccl.synthesis.symmetry.implicit import has_hamiltonian_ring
    from taccl.topology.named import as_named

    if problem.collective.name not in IMPLICIT_COLLECTIVES:
        return False
    named = as_named(problem.topology)
    return named is not None and (named.kind != "mesh" or has_hamiltonian_ring(named.dims))
