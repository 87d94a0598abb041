"""Sketches that are proposed: made of a plan, with the symmetry that they may have, written with comments."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from taccl._internal.caching import cached
from taccl._internal.deadline import NEVER, Deadline
from taccl._internal.units import format_size, format_us
from taccl.analysis.certificates.certificate import Certificate
from taccl.errors import SketchError
from taccl.problem.problem import Problem
from taccl.schedule.schedule import Schedule
from taccl.sketch.group import symmetry_group
from taccl.sketch.symmetry import check_clauses, chunk_permutation, link_permutation
from taccl.synthesis.suggesting.plans import InternodePlan, Shift, SketchShape
from taccl.synthesis.symmetry.timing_group import timing_group
from taccl.topology.topology import Topology

if TYPE_CHECKING:
    from taccl.sketch.sketch import Sketch

#: For editors.
_SCHEMA_LINE = "#:schema sketch.schema.json"
_WIDTH = 100


@dataclass(frozen=True, slots=True)
class SketchProposal:
    """A sketch that suits a topology, a collective and a size, and what it promises.

    Parameters
    ----------
    sketch : Sketch
    bound : Certificate
        A proven lower bound on the finish of any schedule that obeys the sketch.
    schedule : Schedule
        Quick schedule of the list scheduler, verified.
    why : str
        What speaks for the sketch, as a sentence.
    comments : mapping of str to str
        What `to_toml` writes above tables and fields, by name: ``"symmetry"``, ``"internode.connections"``.
    """

    sketch: Sketch
    bound: Certificate = field(compare=False)
    schedule: Schedule = field(compare=False)
    why: str
    comments: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def finish_us(self) -> float:
        """The finish of that schedule in microseconds."""
        return self.schedule.finish_us

    @property
    def problem(self) -> Problem:
        """The sketch applied to the topology and the collective, cut into its chunks."""
        return self.bound.problem

    @property
    def bound_us(self) -> float:
        """The bound in microseconds."""
        return self.bound.bound_us

    @property
    def limits(self) -> str:
        """Limit of the bound."""
        return self.bound.limits

    def to_toml(self) -> str:
        """The sketch as TOML with comments, to be edited; `taccl.load_sketch` reads it."""
        problem = self.problem
        size = f" of {format_size(problem.size_bytes)}" if problem.size_bytes else ""
        header = [
            f"Suggested for {problem.collective.name}{size} on {problem.topology.name}.",
            f"{self.why[:1].upper()}{self.why[1:]}.",
            f"A first schedule ends after {format_us(self.finish_us)}; none that obeys this sketch ends "
            f"before {format_us(self.bound_us)} ({self.limits}).",
        ]
        lines = [_SCHEMA_LINE, *(line for paragraph in header for line in _wrapped(paragraph))]
        table, left = "", dict(self.comments)
        for line in self.sketch.to_toml().splitlines():
            name = line.partition(" = ")[0]
            if line.startswith("["):
                name = table = line.strip("[]")
            elif table:
                name = f"{table}.{name}"
            # The first of several tables of one name is commented.
            comment = left.pop(name, None) if line else None
            lines += [*_wrapped(comment), line] if comment else [line]
        return "\n".join(lines) + "\n"

    def __repr__(self) -> str:
        return (
            f"SketchProposal({self.sketch.name!r}: finish {format_us(self.finish_us)}, bound "
            f"{format_us(self.bound_us)}; {self.why})"
        )


def _wrapped(paragraph: str) -> list[str]:
    return textwrap.wrap(paragraph, _WIDTH, initial_indent="# ", subsequent_indent="# ")


def make_sketch(
    problem: Problem, shape: SketchShape, plan: InternodePlan, max_merge: int, shifts: Sequence[Shift] = ()
) -> Sketch:
    """The sketch of a plan for a problem's chunks, with merging and symmetry."""
    from taccl.sketch.sketch import Sketch  # and pydantic, in 0.12 s of CPU

    per_rank, sizes = problem.collective.chunks_per_rank, sorted(set(problem.chunk_bytes))
    num_nodes = problem.topology.num_nodes
    merging = "" if max_merge > 1 or num_nodes == 1 else "-unmerged"
    content: dict[str, Any] = {"schema": 1, "name": f"auto-{plan.name}{merging}-{per_rank}"}
    content |= {**_machine(problem.topology), "nodes": num_nodes, "chunks": {"per_rank": per_rank}}
    if len(sizes) == 1:
        content["chunks"]["size"] = sizes[0]
        policy = "max-connections" if shape.is_small(sizes[0]) else "min-connections"
        content["switch"] = [
            {"name": f"switch {i}", "ranks": ranks, "policy": policy}
            for i, ranks in enumerate(shape.switches)
        ]
    if plan.internode:
        content["internode"] = {name: value for name, (value, _) in plan.internode.items()}
    if num_nodes > 1:
        content["merging"] = {"max": max_merge}
    content["symmetry"] = [{"offset": shift.offset, "group": shift.group} for shift in shifts]
    return Sketch.from_dict({key: value for key, value in content.items() if value})


def fitting_shifts(
    problem: Problem, shifts: Sequence[Shift], *, deadline: Deadline = NEVER
) -> tuple[Shift, ...]:
    """Shifts that the clauses and the collective have too, all of which times may have.

    They move every rank (so that together they are no more than there are ranks), and no resource in use
    stays where it is: what ranks do alike they can then do at once. The longest blocks come first.
    """
    found: list[Shift] = []
    for shift in sorted(shifts, key=lambda each: (-each.group, each.offset)):
        deadline.check()
        generators = tuple(each.ranks(problem.topology.num_ranks) for each in (*found, shift))
        if not shift.repeats_one_of(found) and _folds(problem, generators):
            found.append(shift)
    return tuple(found)


def _folds(problem: Problem, permutations: tuple[tuple[int, ...], ...]) -> bool:
    """True if the last of some symmetries is the problem's, and all move every rank and used resource."""
    topology, clauses, ranks = problem.topology, problem.clauses, permutations[-1]
    links, renamed = link_permutation(topology, ranks), problem.with_clauses(symmetry=permutations)
    if links is None or chunk_permutation(problem, ranks) is None:
        return False
    try:
        check_clauses(topology, clauses, ranks, links, label="", where="")
    except SketchError:
        return False
    group = symmetry_group(renamed)
    # Each rank has as many images as there are symmetries, so that none but the identity fixes it.
    moved = (np.bincount(group.ranks)[group.ranks] == group.order).all()
    return bool(moved) and timing_group(renamed).order == group.order


@cached
def _machine(topology: Topology) -> dict[str, str]:
    """Machine and profile, where they alone make the topology again."""
    from taccl.topology.registry import machine_names, parse

    if topology.machine not in machine_names() or topology.cost_model != "physical":
        return {}
    again = parse(topology.machine, nodes=topology.num_nodes, profile=topology.profile or None)
    return {"machine": topology.machine, "profile": topology.profile} if again == topology else {}
