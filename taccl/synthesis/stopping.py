"""Reasons why a search ends, for `Result.stopped`, and stopping rules, each with its own reason."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

BOUND_MET, NOTHING_BETTER = "bound met", "nothing better found"
TIME_LIMIT, INTERRUPTED = "time limit", "interrupted"
GAP_MET, STOPPING_RULE = "gap met", "stopping rule"
_LONGER = "a longer search may find some of it"
#: {reason for the end of a search, other than a stopping rule: what may improve the result}.
REMEDIES = {
    BOUND_MET: "another number of chunks may find some of it",
    NOTHING_BETTER: "another sketch or number of chunks may help",
    TIME_LIMIT: "more time may find some of it",
    INTERRUPTED: _LONGER,
}


@dataclass(frozen=True, slots=True)
class SearchState:
    """State of a search, as a stopping rule sees it.

    Parameters
    ----------
    seconds : float
        Seconds since the search began.
    finish_us : float
        Finish of the best schedule so far, in microseconds; infinite before the first.
    bound_us : float
        The highest bound so far, in microseconds; 0 before the first. If a problem leaves the number of
        chunks open, this is the bound for the chosen number.
    asked_bound_us : float
        The highest bound so far over all chunkings, if the problem leaves the number of chunks open;
        otherwise equal to `bound_us`.
    """

    seconds: float
    finish_us: float
    bound_us: float
    asked_bound_us: float = 0.0

    @property
    def gap(self) -> float:
        """(finish - bound) / bound; infinite until both exist."""
        return _gap(self.finish_us, self.bound_us)

    @property
    def asked_gap(self) -> float:
        """Gap that the result would have: (finish - asked bound) / asked bound; infinite until both exist."""
        return _gap(self.finish_us, self.asked_bound_us)


def _gap(finish_us: float, bound_us: float) -> float:
    return (finish_us - bound_us) / bound_us if bound_us > 0 else math.inf


class StoppingRule:
    """Base class of stopping rules. A rule is asked after each incumbent, bound and stage.

    - `reason`: Value of `Result.stopped` if the rule ended the search.
    - `remedy`: Clause that says what may then find a better schedule, for `Result.explain`.
    - `for_asked`: True if the rule judges schedules of the given problem. It is then left out while a
      transformed problem is searched.
    """

    reason: ClassVar[str]
    remedy: ClassVar[str] = _LONGER
    for_asked: ClassVar[bool] = False

    def is_met(self, state: SearchState) -> bool:
        """True if the search should end; it has a schedule by then."""
        raise NotImplementedError


@dataclass(frozen=True)
class UntilGap(StoppingRule):
    """Rule that ends a search once the gap of its result is at most `most`."""

    most: float
    reason = GAP_MET
    remedy = "a smaller requested gap (until_gap, --until-gap) may find some of it"
    for_asked = True

    def is_met(self, state: SearchState) -> bool:
        """True if the gap of the result is small enough."""
        return state.asked_gap <= self.most


@dataclass(frozen=True)
class CallersRule(StoppingRule):
    """Rule that ends a search once the caller's function returns true."""

    judge: Callable[[SearchState], bool]
    reason = STOPPING_RULE

    def is_met(self, state: SearchState) -> bool:
        """True if the caller's function returns true."""
        return bool(self.judge(state))


def stopping_rules(
    *, until_gap: float | None = None, stop_when: Callable[[SearchState], bool] | None = None
) -> tuple[StoppingRule, ...]:
    """Rules for the keywords of `synthesize`; a keyword that is None has no rule."""
    rules: list[StoppingRule] = []
    if until_gap is not None:
        rules.append(UntilGap(until_gap))
    if stop_when is not None:
        rules.append(CallersRule(stop_when))
    return tuple(rules)


def remedies() -> dict[str, str]:
    """{reason why a search ended: clause that names what may find a better schedule}."""
    return REMEDIES | {rule.reason: rule.remedy for rule in StoppingRule.__subclasses__()}


def remedy_after(reason: str) -> str:
    """Clause that names what may find a better schedule, from the reason why the search ended."""
    return remedies().get(reason, _LONGER)
