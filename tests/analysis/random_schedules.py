"""Thousands of small valid schedules: first schedules of random problems, and their sends in shuffled orders."""

from __future__ import annotations

import random
from functools import cache
from typing import TYPE_CHECKING

from taccl.schedule.timing import exact_times
from tests.effort import first_bounds, first_schedule
from tests.fuzzing import some
from tests.synthesis.small_problems import random_problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taccl.schedule.schedule import Schedule


@cache
def random_schedules() -> tuple[Schedule, ...]:
    """First schedules of random problems with and without reductions. For those without, also schedules of the
    same sends in random orders."""
    with first_bounds():  # which end the same searches sooner
        return tuple(_schedules(range(some(20, 40)), shuffles=some(6, 25)))


def few_schedules() -> tuple[Schedule, ...]:
    """Every eighth of the random schedules."""
    return random_schedules()[::8]


def _schedules(seeds: range, *, shuffles: int) -> Iterator[Schedule]:
    for seed in seeds:
        for combining in (False, True):
            problem = random_problem(seed, combining=combining)
            schedule = first_schedule(problem)
            yield schedule
            for shuffle in range(shuffles if not combining and len(schedule) else 0):
                yield _shuffled(schedule, random.Random(1000 * seed + shuffle))


def _shuffled(schedule: Schedule, rng: random.Random) -> Schedule:
    """A schedule of the same routes and merges, with its sends in a random order that respects their
    dependencies."""
    problem = schedule.problem.with_clauses(own_first=frozenset())
    sends: dict[int, list[int]] = {}
    for transfer, group in enumerate(schedule.group.tolist()):
        sends.setdefault(group, []).append(transfer)
    chunk, link = schedule.chunk.tolist(), schedule.link.tolist()
    held = {(c, rank) for c, data in enumerate(problem.collective.chunks) for rank in data.origins}
    place = [0] * len(schedule)
    for step in range(len(sends)):
        ready = [
            group
            for group, members in sends.items()
            if all((chunk[t], r) in held for t in members for r in problem.topology.links[link[t]].srcs)
        ]
        for transfer in sends.pop(rng.choice(ready)):
            place[transfer] = step
            held.update((chunk[transfer], rank) for rank in problem.topology.links[link[transfer]].dsts)
    return exact_times(problem, chunk=chunk, link=link, sequence=place, group=schedule.group)
