"""Number of random cases that a fuzz tries: few by default, many with ``TACCL_MANY=1`` in the environment.

Another number is a factor: ``TACCL_MANY=4`` tries four times as many, ``TACCL_MANY=0.1`` a tenth. A fuzz is a
test that goes over `cases`, or a hypothesis test under `fuzzed`. Both count each case that ends;
``TACCL_MANY=1 python -m pytest -m fuzz`` runs the fuzzers alone and prints counts and CPU as a table.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

#: Factor on the many cases of each fuzz; 0 for few cases.
MANY = float(os.environ.get("TACCL_MANY") or 0)

#: Cases tried by this process, by the fuzz's name.
TRIED: Counter[str] = Counter()
#: Of these, cases in which the feature that the fuzz is about changed the outcome, for fuzzes that count them.
MATTERED: Counter[str] = Counter()


def some(few: int, many: int) -> int:
    """Number of cases to try: `few`, or `many` times ``TACCL_MANY``, and `few` at least."""
    return max(few, round(many * MANY)) if MANY else few


def by_turns(*kinds: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Tuples with one value of each kind: all with ``TACCL_MANY=1``, else a third of them, as in a Latin square.

    With three kinds of three or more values, any two values of two kinds then occur together at least once.
    """
    whole = itertools.product(*(list(enumerate(kind)) for kind in kinds))
    return [
        tuple(value for _, value in chosen)
        for chosen in whole
        if MANY or sum(place for place, _ in chosen) % 3 == 0
    ]


def thinned(values: Iterable[Any], every: int = 3) -> list[Any]:
    """Each `every`-th value, or all with ``TACCL_MANY=1``."""
    return list(values)[:: 1 if MANY else every]


def cases(name: str, *, few: int, many: int, first: int = 0) -> Iterator[int]:
    """Yield seeds from `first` on, as many as `some` returns; each counts once its case has ended."""
    for seed in range(first, first + some(few, many)):
        yield seed
        TRIED[name] += 1


def fuzzed(*, few: int, many: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A hypothesis test with `few` or `many` examples, the same every time, each counted when it passes."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        name = test.__name__.removeprefix("test_").replace("_", " ")
        inner = test.hypothesis.inner_test  # type: ignore[attr-defined]

        @functools.wraps(inner)
        def counted(*args: object, **kwargs: object) -> None:
            inner(*args, **kwargs)
            TRIED[name] += 1

        test.hypothesis.inner_test = counted  # type: ignore[attr-defined]
        chosen = settings(
            max_examples=some(few, many),
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        return pytest.mark.fuzz(chosen(test))

    return decorate
