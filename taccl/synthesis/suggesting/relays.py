"""Which ranks talk across nodes, and for whom: plans that keep every NIC busy.

A NIC that several ranks share is saturated by one sender as well as by all of them; what differs is how far
chunks travel inside the node, how many messages pay a latency, and how small the model gets.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from fractions import Fraction

    from taccl.synthesis.suggesting.shape import Shape

__all__ = ["Plan", "relay_plans"]


@dataclass(frozen=True, slots=True)
class Plan:
    """Who talks across nodes.

    Parameters
    ----------
    name : str
        A word for the sketch's name, e.g. ``"relays"``.
    why : str
        What speaks for it, as a sentence.
    internode : mapping
        The fields of ``[internode]``; empty for none.
    comments : mapping of str to str
        What to write beside those fields.
    """

    name: str
    why: str
    internode: Mapping[str, object] = field(default_factory=dict)
    comments: Mapping[str, str] = field(default_factory=dict)


def relay_plans(shape: Shape) -> tuple[Plan, ...]:
    """Plans for a topology, each of them possible on its links; the freest last."""
    if shape.num_nodes == 1:
        return (Plan("one-node", "there is one node, so nobody relays"),)
    return tuple(_plans(shape))


def _plans(shape: Shape) -> Iterator[Plan]:
    local = range(shape.ranks_per_node)
    shared = any(len(group) > 1 for group in shape.egress)
    count = len(shape.egress)
    busy = f"all {count} NICs of a node are in use" if count > 1 else "the NIC of a node is in use"
    if all((r, r) in shape.joined for r in local):
        number = "Local rank i to local rank i of every other node."
        yield Plan(
            "own-chunks",
            "every rank sends its own chunks to the rank with its number, once for each node: "
            f"{busy}, and no chunk crosses twice",
            {"connections": "direct-map", "relays": {r: (r,) for r in local}},
            {"connections": number, "relays": "Nobody relays: a sender carries no chunks but its own."},
        )
        yield Plan(
            "same-number",
            f"every rank sends to the rank with its number, whosever chunk it is: {busy}",
            {"connections": "direct-map"},
            {"connections": number},
        )
    if shared:
        yield from _one_for_each_nic(shape, busy)
    elif len(shape.egress) < shape.ranks_per_node:
        yield from _nearest_sender(shape)
    yield Plan("free", "any rank may send any chunk over any link; the search decides which NICs are used")


def _one_for_each_nic(shape: Shape, busy: str) -> Iterator[Plan]:
    """One sender and one receiver for every NIC, so that a rank's links carry one direction each."""
    groups = [(out, into) for out in shape.egress for into in shape.ingress if out == into]
    if len(groups) != len(shape.egress):
        return
    seen = set()
    for near in (True, False):
        pairs = {}
        for out, into in groups:
            ends = _sender_and_receiver(shape, out, into, near=near)
            if ends is None:
                return
            pairs[ends[0]] = (ends[1], out)
        connections = {sender: (receiver,) for sender, (receiver, _) in pairs.items()}
        if str(connections) in seen:
            continue
        seen.add(str(connections))
        ranks = len(groups[0][0])
        yield Plan(
            "relays" if near else "far-relays",
            f"{ranks} ranks share a NIC: one of them sends for all and another receives, so that neither "
            f"end's links carry both directions, and {busy}",
            {
                "connections": connections,
                "relays": {sender: group for sender, (_, group) in pairs.items()},
            },
            {
                "connections": "Of the ranks that share a NIC one sends, and another receives.",
                "relays": "A sender carries the chunks of all ranks at its NIC off the node.",
            },
        )


def _sender_and_receiver(
    shape: Shape, out: tuple[int, ...], into: tuple[int, ...], *, near: bool
) -> tuple[int, int] | None:
    """The sender that the others reach soonest, and a receiver that is near to it, or far from it."""
    apart = shape.apart_us_per_mb

    def gathers(rank: int) -> Fraction:
        return max(apart[r][rank] for r in out)

    senders = sorted(out, key=lambda rank: (gathers(rank), -rank))
    for sender in senders:
        receivers = [r for r in into if r != sender and (sender, r) in shape.joined]
        if receivers:
            sign = 1 if near else -1
            return sender, min(receivers, key=lambda r: (sign * apart[sender][r], r))
    return None


def _nearest_sender(shape: Shape) -> Iterator[Plan]:
    """Only some ranks are linked across: each of the others has its chunks carried by the nearest."""
    senders = sorted({sender for sender, _ in shape.joined})
    if not senders:
        return
    carried: dict[int, list[int]] = defaultdict(list)
    for rank in range(shape.ranks_per_node):
        reachable = [s for s in senders if shape.apart_us_per_mb[rank][s] >= 0]
        if not reachable:
            return
        nearest = min(
            reachable, key=lambda s: (shape.apart_us_per_mb[rank][s], len(carried[s]), abs(s - rank), s)
        )
        carried[nearest].append(rank)
    connections = {s: tuple(sorted(r for sender, r in shape.joined if sender == s)) for s in senders}
    yield Plan(
        "relays",
        f"not all ranks are linked across nodes ({len(senders)} of {shape.ranks_per_node}): each of these "
        "carries its own chunks and those of the ranks nearest to it",
        {"connections": connections, "relays": {s: tuple(carried[s]) for s in senders if carried[s]}},
        {
            "connections": "The ranks that are linked to other nodes.",
            "relays": "Every rank's chunks leave the node at the sender nearest to it.",
        },
    )
