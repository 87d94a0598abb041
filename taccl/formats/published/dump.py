"""Schedules as algorithm files of the published TACCL tool, which `load_upstream_algorithm` reads back.

Read back, every send has the start and the end that it had. A file that could not promise this is not
written. (The one exception is an allreduce whose halves overlap: readers time it anew, and the warning says
so.) What the file has no place for is left out, with a `LossyConversionWarning` that names it.
"""

from __future__ import annotations

import json
import math
import warnings
from collections import defaultdict
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import numpy as np

from taccl.analysis.verification.verify import verify
from taccl.arguments import checked
from taccl.errors import ExportError, InputError, LossyConversionWarning
from taccl.formats.published.algorithm import shift_of_second_half
from taccl.formats.published.collective import KINDS
from taccl.formats.published.layout import Layout, lay_out
from taccl.formats.published.topology import MACHINES
from taccl.problem import Clauses, Problem
from taccl.schedule.schedule import Schedule
from taccl.units import exact, format_count, format_size

#: The tool's names for our collectives and machines.
_NAMES = {ours: theirs for theirs, (ours, _) in KINDS.items()}
_MACHINES = {ours: theirs for theirs, ours in MACHINES.items()}
#: Readers take no whole numbers beyond this.
_LARGEST = 10**15
#: Of a microsecond: ticks are no finer.
_MOST_DIGITS = 6


@checked
def dump_upstream_algorithm(schedule: Schedule, *, time_unit_us: int | float | str | None = None) -> str:
    """The schedule as the tool's nested objects in JSON, with a warning that says what is lost.

    - `time_unit_us`: Microseconds in the file's unit of time, in tenths of which starts are given. By default
      1 where that is exact, and else a finer unit that is; the warning names it, because the file does not.
    """
    _check(schedule)
    layout = lay_out(schedule)
    problem = schedule.problem
    unit_us = _unit(schedule, layout, time_unit_us)
    lost = [*_always_lost(problem), *layout.lost, *_second_half(schedule)]
    if unit_us != 1:
        lost.append(f"the unit of time: load it with time_unit_us={_decimal(unit_us)}")
    warnings.warn(
        f"an algorithm of the published tool has no place for {'; '.join(lost)}",
        LossyConversionWarning,
        stacklevel=2,
    )
    steps = _steps(schedule, layout, unit_us)
    name, num_ranks, chunks = problem.collective.name, problem.topology.num_ranks, _chunks(problem)
    starts_at, ends_at = _by_rank(chunks, problem, "pre"), _by_rank(chunks, problem, "post")
    document = {
        "sccl_type": "algorithm",
        "name": schedule.producer,
        "instance": {
            "sccl_type": "instance", "steps": len(steps), "extra_rounds": 0,
            "chunks": problem.collective.chunks_per_rank, "pipeline": None, "extra_memory": None,
            "allow_exchange": False,
        },
        "input_map": _addresses(chunks, starts_at),
        "output_map": _addresses(chunks, ends_at),
        "steps": steps,
        "collective": {
            "sccl_type": "collective",
            "name": f"{_NAMES[name]}(n={num_ranks})" if name in _NAMES else name,
            "nodes": num_ranks,
            "chunks": chunks,
            "ranks": [
                {"sccl_type": "rank", "pre": starts_at[rank], "post": ends_at[rank], "id": rank}
                for rank in range(num_ranks)
            ],
            "triggers": {},
        },
        "topology": _topology(problem, layout, unit_us),
    }  # fmt: skip
    return json.dumps(document) + "\n"


def _check(schedule: Schedule) -> None:
    """Raise `ExportError` for a problem that the file has no fields for, or times that are not its costs'."""
    problem = schedule.problem
    collective = problem.collective
    if collective.derivations:
        raise ExportError(
            f"{collective.name}: ranks make chunks from others, for which an algorithm of the published tool "
            "has no field that is read back; write another format"
        )
    if schedule.carries is not None:
        raise ExportError(
            "the schedule keeps partial sums apart, for which an algorithm of the published tool has no "
            "field; write a program, such as MSCCL XML, or taccl's own format"
        )
    if len(set(problem.chunk_bytes)) > 1:
        raise ExportError(
            f"chunks of {format_size(min(problem.chunk_bytes))} and {format_size(max(problem.chunk_bytes))}: "
            "an algorithm of the published tool has one cost for all chunks; write another format"
        )
    if collective.combining and all(len(chunk.origins) == 1 for chunk in collective.chunks):
        raise ExportError(
            f"{collective.name}: every sum has one contribution, which an algorithm of the published tool "
            "cannot tell from a copy; write another format"
        )
    lone = next((c for c, chunk in enumerate(collective.chunks) if not chunk.destinations), None)
    if collective.combining and lone is not None:
        raise ExportError(f"{collective.name}: chunk {lone} ends nowhere; name a destination")
    odd = (each for each in verify(schedule).violations if each.kind in ("index", "interval", "times"))
    for violation in odd:
        raise ExportError(f"{violation}; verify the schedule to see all that is wrong")


def _unit(schedule: Schedule, layout: Layout, wanted: int | float | str | None) -> Fraction:
    """Microseconds in the unit of which starts are whole tenths: 1, 0.1, ... or what it takes."""
    per_us = schedule.problem.costs.ticks_per_us
    ticks = np.unique(schedule.start).tolist()

    def fits(unit_us: Fraction) -> bool:
        tenths = (Fraction(t, per_us) * 10 / unit_us for t in ticks)
        return all(t.denominator == 1 and t <= _LARGEST for t in tenths) and all(
            _is_exact(Fraction(cost, per_us) / unit_us) for cost in layout.costs
        )

    if wanted is not None:
        given = exact(wanted, where="time_unit_us")
        if given == 0 or not fits(given):
            raise InputError(
                f"found {wanted}, of whose tenths some starts or costs are no exact number; leave it out for "
                "a unit that fits",
                where="time_unit_us",
            )
        return given
    decimal = [Fraction(1, 10**digits) for digits in range(_MOST_DIGITS + 1)]
    for unit_us in (*decimal, Fraction(10 * math.gcd(*ticks, *layout.costs), per_us)):
        if unit_us and fits(unit_us):
            return unit_us
    raise ExportError(
        "starts and costs are no exact numbers of any unit that an algorithm of the published tool can have; "
        "give costs with fewer decimals"
    )


def _is_exact(value: Fraction) -> bool:
    return value <= _LARGEST and (value.denominator == 1 or Fraction(str(float(value))) == value)


def _always_lost(problem: Problem) -> Iterable[str]:
    yield f"the size of a chunk ({format_size(problem.chunk_bytes[0])})" if problem.chunk_bytes else "sizes"
    plain = Clauses(max_merge=6, merging=frozenset(problem.topology.internode_links))
    if problem.clauses not in (Clauses(), plain):
        name = f" {problem.clauses.name!r}" if problem.clauses.name else ""
        yield f"the clauses of the sketch{name}"
    rooted = [c for c in problem.collective.chunks if c.root not in (None, *c.destinations[:1])]
    if rooted:
        yield f"at which ranks {format_count(len(rooted), 'sum')} are gathered"


def _second_half(schedule: Schedule) -> Iterable[str]:
    """Copies that a reader takes for a second half that was written too early."""
    if shift_of_second_half(schedule.start, schedule.end, schedule.reduce):
        yield (
            "copies that start before the last reduction ends: readers take them for a half that was written "
            "apart, and time all sends anew, in their order"
        )


def _steps(schedule: Schedule, layout: Layout, unit_us: Fraction) -> list[dict[str, Any]]:
    """A step for every time at which sends start; its rounds are the tenths of a unit until the next."""
    problem = schedule.problem
    links, per_us = problem.topology.links, problem.costs.ticks_per_us
    by_start: dict[int, list[list[Any]]] = defaultdict(list)
    for t in schedule:
        tenths = int(Fraction(t.start_ticks, per_us) * 10 / unit_us)
        entry = [t.chunk, links[t.link].src, links[t.link].dst, tenths, layout.number[t.link]]
        # The sixth entry, which only a combining algorithm has.
        operation = ["rrc" if t.reduce else None] if problem.collective.combining else []
        by_start[tenths].append(entry + operation)
    starts = sorted(by_start)
    finish = math.ceil(schedule.finish * 10 / unit_us)
    return [
        {
            "sccl_type": "step",
            "rounds": until - start,
            "sends": sorted(by_start[start], key=lambda s: (s[1], s[2], s[4], s[0])),
        }
        for start, until in zip(starts, [*starts[1:], finish], strict=True)
    ]


def _chunks(problem: Problem) -> list[dict[str, Any]]:
    """The tool's chunks: of a sum, one for each contribution, all at the sum's address."""
    collective = problem.collective
    return [
        {"sccl_type": "chunk", "pre": list(pre), "post": list(chunk.destinations), "addr": address}
        for address, chunk in enumerate(collective.chunks)
        for pre in ([(rank,) for rank in chunk.origins] if collective.combining else [chunk.origins])
    ]


def _by_rank(chunks: list[dict[str, Any]], problem: Problem, end: str) -> list[list[int]]:
    """Chunks that start (``"pre"``) or must end (``"post"``) at every rank."""
    found: list[list[int]] = [[] for _ in range(problem.topology.num_ranks)]
    for index, chunk in enumerate(chunks):
        for rank in chunk[end]:
            found[rank].append(index)
    return found


def _addresses(chunks: list[dict[str, Any]], by_rank: list[list[int]]) -> dict[str, list[int]]:
    return {
        str(rank): list(dict.fromkeys(chunks[index]["addr"] for index in held))
        for rank, held in enumerate(by_rank)
    }


def _topology(problem: Problem, layout: Layout, unit_us: Fraction) -> dict[str, Any]:
    topology, per_us = problem.topology, problem.costs.ticks_per_us
    ranks = range(layout.size)

    def cost(ticks: int) -> int | float:
        value = Fraction(ticks, per_us) / unit_us
        return int(value) if value.denominator == 1 else float(value)

    name = topology.name.removesuffix(f" x{layout.num_nodes}")
    across = layout.across
    return {
        "sccl_type": "topology",
        "name": f"{_MACHINES.get(topology.machine, 'Custom')}-{name}",
        "copies": layout.num_nodes,
        "ngpus_per_node": layout.size,
        "node_links": [[layout.parallel.get((src, dst), 0) for src in ranks] for dst in ranks],
        "node_invbws": [[cost(layout.inside.get((src, dst), 0)) for src in ranks] for dst in ranks],
        "remote_invbw": cost(across.alpha + across.beta) if across else -1,
        "remote_alpha": cost(across.alpha) if across else -1,
        "remote_beta": cost(across.beta) if across else -1,
        "internode_conn": {str(src): list(dsts) for src, dsts in across.receivers.items()} if across else {},
        "local_switches": [list(switch) for switch in layout.switches],
    }


def _decimal(value: Fraction) -> str:
    return f"{float(value):g}" if Fraction(f"{float(value):g}") == value else f"'{value}'"
