"""Steps, which are workloads with start and end times of all computed tiles and sends; their verification."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

from taccl._internal.units import format_count, format_us
from taccl.analysis.certificates.certificate import is_exact
from taccl.analysis.verification.verify import verify
from taccl.problem.problem import Problem
from taccl.schedule.schedule import Schedule
from taccl.topology.topology import Topology
from taccl.workload.costs import Rates, tile_costs
from taccl.workload.exchange import CollectivePart, parts_of, problem_of
from taccl.workload.workload import Workload


@dataclass(frozen=True, slots=True)
class ComputeTile:
    """One tile of an operation at one rank; it occupies the rank's processor from start to end."""

    operation: str
    tile: int
    rank: int
    start_us: Fraction
    end_us: Fraction


class Made(NamedTuple):
    """Prerequisites for a tile to be available at a rank: computed tiles, and chunks that have arrived there.

    - `tiles`: Indices in `Step.tiles`.
    - `chunks`: Numbers of chunks in the step's problem.
    """

    tiles: frozenset[int] = frozenset()
    chunks: frozenset[int] = frozenset()

    @classmethod
    def of_all(cls, several: Iterable[Made]) -> Made:
        """Union of the prerequisites of several tiles."""
        return cls(*(frozenset[int]().union(*each) for each in zip(*several, strict=True)))


@dataclass(frozen=True, slots=True, repr=False)
class StepVerification:
    """Result of the verification of a step: its violations, one sentence each."""

    violations: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """True if there is no violation."""
        return not self.violations

    def __repr__(self) -> str:
        if self.ok:
            return "StepVerification(ok)"
        listed = "\n  ".join(self.violations[:10])
        return f"StepVerification({format_count(len(self.violations), 'violation')}:\n  {listed})"


@dataclass(frozen=True, repr=False)
class Step:
    """A scheduled workload.

    Parameters
    ----------
    workload : Workload
        The operations that run.
    topology : Topology
        Network of the ranks.
    tiles : tuple of ComputeTile
        Tiles of all computations of nonzero duration.
    schedule : Schedule
        All sends (none if the workload has no collectives); its problem holds release and due dates of
        chunks.
    rates : Rates, optional
        Rates of the processors.
    communication_share : float
        Share of each processor that is reserved for communication while the step runs.
    """

    workload: Workload
    topology: Topology
    tiles: tuple[ComputeTile, ...]
    schedule: Schedule
    rates: Rates | None
    communication_share: float = 0.0

    @cached_property
    def finish(self) -> Fraction:
        """Time at which the last tile or send ends, in microseconds, exact."""
        return max(self.schedule.finish, max((each.end_us for each in self.tiles), default=Fraction(0)))

    @property
    def finish_us(self) -> float:
        """Time at which the last tile or send ends, in microseconds."""
        return float(self.finish)

    @cached_property
    def parts(self) -> tuple[CollectivePart, ...]:
        """Parts of all collectives (pieces of their tiles), each with its chunks."""
        return parts_of(self.workload)

    @cached_property
    def problem(self) -> Problem:
        """Problem of all collectives of the workload, without release and due dates."""
        return problem_of(self.workload, self.topology, self.parts)

    @cached_property
    def chunks(self) -> dict[tuple[str, int], list[int]]:
        """{(collective, tile number): chunks of the tile}."""
        found: dict[tuple[str, int], list[int]] = defaultdict(list)
        for part in self.parts:
            found[part.operation, part.tile] += part.chunks
        return found

    @cached_property
    def made_of(self) -> dict[tuple[str, int, int], Made]:
        """{(operation, tile number, rank): prerequisites for that tile to be available at that rank}.

        A tile of nonzero duration has one prerequisite: itself, computed.
        """
        index = {(each.operation, each.tile, each.rank): i for i, each in enumerate(self.tiles)}
        found = defaultdict[tuple[str, int, int], Made](Made)
        ends = self.problem.collective.chunks
        for (name, tile), reads in self.workload.tiles.items():
            for rank in range(self.workload.num_ranks):
                key = (name, tile, rank)
                if key in index:
                    found[key] = Made(frozenset([index[key]]))
                    continue
                own = Made.of_all(found[*each, rank] for each in reads)
                come = {each for each in self.chunks[name, tile] if rank in ends[each].destinations}
                found[key] = own._replace(chunks=own.chunks | come)
        return found

    @cached_property
    def _costs(self) -> dict[str, Fraction]:
        return tile_costs(self.workload, self.rates, self.communication_share)

    @cached_property
    def bound(self) -> Fraction:
        """Lower bound in us on the finish of any schedule of the step; see `taccl.workload.bound`."""
        from taccl.workload.bound import StepBound  # imported late: ranks that run a step do not need it

        return StepBound(self.workload, self.topology, self._costs).best()

    @property
    def bound_us(self) -> float:
        """Lower bound on the finish of any schedule of the step, in microseconds."""
        return float(self.bound)

    @property
    def gap(self) -> float:
        """Relative gap between the step's finish and its lower bound: (finish - bound) / bound."""
        return float(self.finish / self.bound - 1) if self.bound else 0.0

    def verify(self) -> StepVerification:
        """Check the step against the workload, and report all violations.

        The schedule's problem must match the workload's collectives in topology, chunks and bytes, and may
        not permit more merging. It may differ in release dates, due dates and other clauses. Sends are
        checked by `taccl.verify`. Each tile must last at least its cost, and a rank computes one tile at a
        time. No tile may start, and no chunk may be released, before the tiles that it reads are available.
        """
        return StepVerification(tuple(self._faults()))

    def _faults(self) -> Iterator[str]:
        ranks, share = self.topology.num_ranks, self.communication_share
        if self.workload.num_ranks != ranks:
            yield f"the workload is of {self.workload.num_ranks} ranks, and {self.topology.name} has {ranks}"
            return
        if not 0 <= share < 1:
            yield f"communication_share is {share}; expected a share from 0 to below 1"
            return
        inexact = [each for each in self.tiles if not is_exact(each, ComputeTile)]
        for tile in inexact:
            said = f"found {tile.rank!r}, {tile.start_us!r} and {tile.end_us!r} as its rank, start and end"
            yield f"{_place(tile)}: {said}; expected integers, and fractions for times"
        if inexact:
            return
        wrong_problem = tuple(_differences(self.schedule.problem, self.problem, self.parts))
        yield from wrong_problem
        yield from (str(each) for each in verify(self.schedule).violations)
        yield from self._wrong_tiles()
        if not wrong_problem:
            yield from self._early()

    def _early(self) -> Iterator[str]:
        """Yield messages on tiles that start, or chunks that are released, before their inputs are ready."""
        made, reads = self._made(), self.workload.tiles
        for each in self.tiles:
            for name, tile in reads.get((each.operation, each.tile), ()):
                there_us = made[name, tile, each.rank]
                if there_us > each.start_us:
                    said = f"reads tile {tile} of {name}, which is available at {float(there_us):.6g} us"
                    yield f"{_place(each)}: starts at {float(each.start_us):.6g} us, and {said}"
        release = {(chunk, rank): us for chunk, rank, us in self.schedule.problem.release_us}
        for part in self.parts:
            for chunk in part.chunks:
                for rank in self.schedule.problem.collective.chunks[chunk].origins:
                    for name, tile in reads[part.operation, part.tile]:
                        if made[name, tile, rank] > release.get((chunk, rank), 0):
                            said = f"before tile {tile} of {name} is available"
                            yield f"chunk {chunk} of {part.operation} is released at rank {rank} {said}"

    def _wrong_tiles(self) -> Iterator[str]:
        workload, expected = self.workload, dict[tuple[str, int, int], Fraction]()
        for name, tile in workload.tiles:
            for rank in range(workload.num_ranks) if self._costs[name] else ():
                expected[name, tile, rank] = self._costs[name]
        busy: dict[int, list[ComputeTile]] = defaultdict(list)
        for each in self.tiles:
            cost = expected.pop((each.operation, each.tile, each.rank), Fraction(-1))
            if cost < 0:
                yield f"{_place(each)}: the tile does not exist or is duplicated"
            elif each.start_us < 0:
                yield f"{_place(each)}: starts at {float(each.start_us):.6g} us, before the step starts at 0"
            elif each.end_us - each.start_us < cost:
                took_us = float(each.end_us - each.start_us)
                yield f"{_place(each)}: lasts {took_us:.6g} us; the tile needs {float(cost):.6g} us"
            busy[each.rank].append(each)
        for name, tile, rank in expected:
            yield f"tile {tile} of {name} at rank {rank} is not computed"
        for tiles in busy.values():
            tiles.sort(key=lambda each: each.start_us)
            for one, two in zip(tiles, tiles[1:], strict=False):
                if two.start_us < one.end_us:
                    said = f"tile {one.tile} of {one.operation}"
                    yield f"{_place(two)}: starts while the processor is busy with {said}"

    def _made(self) -> dict[tuple[str, int, int], Fraction]:
        """Time at which each tile of each tensor is available at each rank."""
        come: dict[tuple[int, int], Fraction] = defaultdict(Fraction)
        links = dict(enumerate(self.topology.links))
        for each in self.schedule:
            for rank in links[each.link].dsts if each.link in links else ():
                us = self.schedule.problem.costs.us(each.end_ticks)
                come[each.chunk, rank] = max(come[each.chunk, rank], us)
        made: dict[tuple[str, int, int], Fraction] = defaultdict(Fraction)
        for key, own in self.made_of.items():
            ends = [self.tiles[i].end_us for i in own.tiles]
            made[key] = max([*ends, *(come[chunk, key[2]] for chunk in own.chunks)], default=Fraction(0))
        return made

    def __repr__(self) -> str:
        work = f"{format_count(len(self.tiles), 'tile')} computed"
        sends = format_count(self.schedule.num_sends, "send")
        protocol = f", protocol {self.topology.protocol}" if self.topology.protocol else ""
        where = f"{self.workload.name} on {self.topology.name}{protocol}"
        return f"Step({where}: finish {format_us(self.finish)}, {work}, {sends})"


def _differences(found: Problem, expected: Problem, parts: Iterable[CollectivePart]) -> Iterator[str]:
    """Yield messages on differences between a schedule's problem and the problem that the workload defines.

    Release dates, due dates, and clauses other than merging are not compared.

    - `found`, `expected`: Problem of the schedule, and of the workload.
    - `parts`: Parts of the workload's collectives, in the order of their chunks.
    """
    here, there = found.topology, expected.topology
    for field in ("node_of_rank", "links", "resources", "holds", "alpha_meaning", "cost_model"):
        if getattr(here, field) != getattr(there, field):
            yield f"sends are on topology {here.name}, which differs from {there.name} in {field}"
    one, two = found.collective, expected.collective
    if one.num_chunks != two.num_chunks:
        said = f"sends are of {format_count(one.num_chunks, 'chunk')}"
        yield f"{said}; the workload's collectives have {two.num_chunks}"
        return
    plain = one.combining == two.combining and not one.derivations and one.update_us_per_mb is None
    if not plain:
        yield f"sends are of {one.name}, whose reduction differs from the workload's {two.name}"
    for part in parts:
        for c in part.chunks:
            for role in ("origins", "destinations"):
                ranks, needed = (sorted(getattr(each.chunks[c], role)) for each in (one, two))
                if ranks != needed:
                    yield f"chunk {c} of {part.operation} has {role} {ranks}; expected {needed}"
            if found.chunk_bytes[c] != expected.chunk_bytes[c]:
                size, needed_size = found.chunk_bytes[c], expected.chunk_bytes[c]
                yield f"chunk {c} of {part.operation} has {size} bytes; expected {needed_size}"
    most, limit = found.clauses.max_merge, expected.clauses.max_merge
    free = found.clauses.merging if most > 1 else frozenset[int]()
    if free and (not free <= expected.clauses.merging or most > limit):
        said = f"up to {most} chunks may merge over {format_count(len(free), 'link')}"
        yield f"{said}; expected no more than the workload's own problem allows"


def _place(each: ComputeTile) -> str:
    return f"tile {each.tile} of {each.operation} at rank {each.rank}"
