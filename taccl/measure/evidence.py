"""Rules for causes of slow collectives, and evidence for these from the rates that they predict."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

from taccl.measure.facts import Facts

#: Max relative difference between the measured share of the expected bandwidth and a cause's share.
MATCHES = 0.05
#: Max credible ratio of measured to expected bandwidth: a NIC's wire rate over the rate that messages reach.
WIRE = 1.08
#: Max share of a node's bandwidth that suggests that GPUs cannot reach each other directly (P2P).
HOST_MEMORY = 0.2
#: Min ratio of times of small messages to usual times that suggests transfers through host memory.
BOUNCED_SMALL = 1.3
#: ``"likely"`` if figures match this cause alone, ``"possible"`` if they do not exclude it.
Grade = Literal["likely", "possible"]
#: Slow part of a series: the rate of large messages, the latency of small ones, or sizes off the curve.
Of = Literal["rate", "latency", "sizes"]
#: (grade, relative distance from the measured share, evidence) of a cause; None if figures exclude it.
Found = tuple[Grade, float, str] | None


class Rule(NamedTuple):
    """A cause of slow collectives, and the function that looks for evidence of it in the figures."""

    name: str
    title: str
    of: Of
    find: Callable[[Facts], Found]
    remedy: str


def matched(share: float, expected: Iterable[tuple[float, str]]) -> Found:
    """Evidence for the expected share nearest to the measured `share`; None unless within `MATCHES`."""
    return nearest((abs(share / each - 1), text) for each, text in expected)


def off_rate(ratio: float) -> float:
    """Relative distance of a measured rate from the expected one; `ratio` is measured over expected.

    If the measured rate is higher, the distance is scaled: the rate of the wire (`WIRE`) is at the distance
    `MATCHES`.
    """
    return 1 - ratio if ratio < 1 else (ratio - 1) * MATCHES / (WIRE - 1)


def nearest(found: Iterable[tuple[float, str]]) -> Found:
    """Evidence with the least relative distance; None unless that is within `MATCHES`."""
    distance, text = min(found, default=(1.0, ""))
    return ("likely", distance, text) if distance <= MATCHES else None
