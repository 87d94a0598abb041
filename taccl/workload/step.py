"""Step: a workload with the time of every tile that is computed and of every send, and its judge."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING

from taccl.analysis.verification.verify import verify
from taccl.units import format_count, format_us
from taccl.workload.bound import step_bound
from taccl.workload.costs import tile_us

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taccl.schedule.schedule import Schedule
    from taccl.topology.topology import Topology
    from taccl.workload.costs import Rates
    from taccl.workload.exchange import Part
    from taccl.workload.operations import Operation
    from taccl.workload.workload import Workload

__all__ = ["ComputeTile", "Step", "StepVerification", "tiles_read"]


@dataclass(frozen=True, slots=True)
class ComputeTile:
    """One tile of an operation at one rank, whose processor it holds from start to end."""

    operation: str
    tile: int
    rank: int
    start_us: Fraction
    end_us: Fraction


@dataclass(frozen=True, slots=True, repr=False)
class StepVerification:
    """What is wrong with a step, one sentence each."""

    violations: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is."""
        return not self.violations

    def __repr__(self) -> str:
        if self.ok:
            return "StepVerification(ok)"
        listed = "\n  ".join(self.violations[:10])
        return f"StepVerification({format_count(len(self.violations), 'violation')}:\n  {listed})"


@dataclass(frozen=True, repr=False)
class Step:
    """A workload with all its times.

    Parameters
    ----------
    workload : Workload
        What runs.
    topology : Topology
        On what.
    tiles : tuple of ComputeTile
        Of all operations that compute and take time.
    schedule : Schedule, optional
        All sends; its problem says when each chunk is released and due. None where nothing is sent.
    parts : tuple of Part
        Which chunks are of which tile of which collective.
    rates : Rates, optional
        Of the processors.
    communication_share : float
        The share of each processor that is set aside for communication while the step runs.
    """

    workload: Workload
    topology: Topology
    tiles: tuple[ComputeTile, ...]
    schedule: Schedule | None
    parts: tuple[Part, ...]
    rates: Rates | None
    communication_share: float = 0.0

    @cached_property
    def finish(self) -> Fraction:
        """When all is done, in microseconds."""
        sent = Fraction(0) if self.schedule is None else self.schedule.finish
        return max(sent, max((each.end_us for each in self.tiles), default=Fraction(0)))

    @property
    def finish_us(self) -> float:
        """When all is done, in microseconds."""
        return float(self.finish)

    @cached_property
    def bound(self) -> Fraction:
        """What no schedule of the step finishes before, in microseconds; see `taccl.workload.bound`."""
        return step_bound(
            self.workload, self.topology, self.rates, communication_share=self.communication_share
        )

    @property
    def bound_us(self) -> float:
        """The bound in microseconds."""
        return float(self.bound)

    @property
    def gap(self) -> float:
        """(finish - bound) / bound."""
        return float(self.finish / self.bound - 1) if self.bound else 0.0

    def verify(self) -> StepVerification:
        """Every rule that the step breaks, worked out from the workload anew.

        Sends are judged by `taccl.verify`, with chunks released and due as the schedule's problem says.
        Beside that tiles take their time, one at a time at a rank; and each tile, and each chunk's release,
        comes after all that it is made of.
        """
        return StepVerification(tuple(self._faults()))

    def _faults(self) -> Iterator[str]:
        workload = self.workload
        if self.schedule is not None:
            yield from (str(each) for each in verify(self.schedule).violations)
        yield from self._wrong_tiles()
        made = self._made()
        for each in self.tiles:
            for name, tile in tiles_read(workload, workload.operation[each.operation], each.tile):
                if made[name, tile, each.rank] > each.start_us:
                    said = (
                        f"reads tile {tile} of {name}, which is there at "
                        f"{float(made[name, tile, each.rank]):.6g} us"
                    )
                    yield f"{_place(each)}: starts at {float(each.start_us):.6g} us, and {said}"
        if self.schedule is None:
            return
        release = {(chunk, rank): us for chunk, rank, us in self.schedule.problem.release_us}
        for part in self.parts:
            operation = workload.operation[part.operation]
            tile = part.tile if part.operation in workload.tiles_of else 0
            for chunk in range(part.first, part.first + part.chunks):
                for rank in self.schedule.problem.collective.chunks[chunk].origins:
                    for name, source in tiles_read(workload, operation, tile):
                        if made[name, source, rank] > release.get((chunk, rank), 0):
                            yield (
                                f"chunk {chunk} of {part.operation} is released at rank {rank} "
                                f"before tile {source} "
                                f"of {name} is there"
                            )

    def _wrong_tiles(self) -> Iterator[str]:
        workload = self.workload
        expected = {}
        for operation in workload.operations:
            cost = tile_us(workload, operation, self.rates, self.communication_share)
            for tile in range(workload.tiles_of.get(operation.name, (1, 0))[0]) if cost else ():
                for rank in range(workload.num_ranks):
                    expected[operation.name, tile, rank] = cost
        busy: dict[int, list[ComputeTile]] = defaultdict(list)
        for each in self.tiles:
            cost = expected.pop((each.operation, each.tile, each.rank), Fraction(-1))
            if cost < 0:
                yield f"{_place(each)}: there is no such tile, or it is there twice"
            elif each.end_us - each.start_us < cost or each.start_us < 0:
                yield (
                    f"{_place(each)}: takes {float(each.end_us - each.start_us):.6g} us of "
                    f"{float(cost):.6g} us"
                )
            busy[each.rank].append(each)
        for name, tile, rank in expected:
            yield f"tile {tile} of {name} at rank {rank} is not computed"
        for tiles in busy.values():
            tiles.sort(key=lambda each: each.start_us)
            for one, two in zip(tiles, tiles[1:], strict=False):
                if two.start_us < one.end_us:
                    yield (
                        f"{_place(two)}: starts while the processor is busy with tile {one.tile} "
                        f"of {one.operation}"
                    )

    def _made(self) -> dict[tuple[str, int, int], Fraction]:
        """When each tile of each tensor is there at each rank."""
        workload = self.workload
        made: dict[tuple[str, int, int], Fraction] = defaultdict(Fraction)
        ends = {(each.operation, each.tile, each.rank): each.end_us for each in self.tiles}
        arrived: dict[tuple[int, int], int] = defaultdict(int)
        if self.schedule is not None:
            links = self.topology.links
            for chunk, link, end in zip(
                self.schedule.chunk.tolist(),
                self.schedule.link.tolist(),
                self.schedule.end.tolist(),
                strict=True,
            ):
                for rank in links[link].dsts:
                    arrived[chunk, rank] = max(arrived[chunk, rank], end)
        parts = defaultdict(list)
        for part in self.parts:
            tile = part.tile if part.operation in workload.tiles_of else 0
            parts[part.operation, tile].append(part)
        for unit in workload.units:
            for tile in range(workload.tiles_of.get(unit[0].name, (1, 0))[0]):
                for operation in unit:
                    read = tiles_read(workload, operation, tile)
                    for rank in range(workload.num_ranks):
                        there = max((made[name, source, rank] for name, source in read), default=Fraction(0))
                        there = max(there, ends.get((operation.name, tile, rank), Fraction(0)))
                        for part in parts[operation.name, tile]:
                            assert self.schedule is not None
                            collective = self.schedule.problem.collective
                            for chunk in range(part.first, part.first + part.chunks):
                                if rank in collective.chunks[chunk].destinations:
                                    there = max(there, self.schedule.problem.costs.us(arrived[chunk, rank]))
                        made[operation.name, tile, rank] = there
        return made

    def __repr__(self) -> str:
        sends = 0 if self.schedule is None else self.schedule.num_sends
        return (
            f"Step({self.workload.name} on {self.topology.name}: finish {format_us(self.finish)}, "
            f"{format_count(len(self.tiles), 'tile')} computed, {format_count(sends, 'send')})"
        )


def tiles_read(workload: Workload, operation: Operation, tile: int) -> list[tuple[str, int]]:
    """The tiles of tensors that a tile of an operation needs; inputs of the step are there anyway."""
    overlap = next((each for each in workload.overlaps if operation.name in each.operations), None)
    found = []
    for name in dict.fromkeys(operation.inputs):
        if name not in workload.operation:
            continue
        if overlap is not None and name in overlap.operations:
            found.append((name, tile))
        else:
            found += [(name, each) for each in range(workload.tiles_of.get(name, (1, 0))[0])]
    return found


def _place(each: ComputeTile) -> str:
    return f"tile {each.tile} of {each.operation} at rank {each.rank}"
