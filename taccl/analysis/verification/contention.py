"""Contention: each resource is held by one send at a time; intervals are half open."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from taccl.analysis.verification.columns import Block, Columns
from taccl.analysis.verification.findings import MOST_LISTED, Findings
from taccl.analysis.verification.loops import NEVER, Held, Holds, fitted, list_holds, sweep
from taccl.problem.costs import hold_columns


class Contention:
    """One sweep over the intervals in which sends hold resources, in order of begin, block by block.

    An interval that begins after the next block's first start waits for that block: sends there may hold
    resources earlier. No later send does, as no hold is longer than its send.
    """

    def __init__(self, columns: Columns) -> None:
        self._columns, topology, ticks = columns, columns.topology, columns.ticks
        found = hold_columns(topology)
        order = np.argsort(found.link, kind="stable")
        of_link = np.searchsorted(found.link[order], np.arange(len(topology.links) + 1)).astype(np.int64)
        self._holds = Holds(
            of_link, found.resource[order], found.receives[order], ticks.hold_alpha[order],
            ticks.hold_beta[order], ticks.divisor,
        )  # fmt: skip
        self._most_holds = int(np.diff(of_link).max(initial=0))
        num_resources = len(topology.resources)
        #: Latest end of the intervals of each resource so far, and its send.
        self._until, self._holder = np.full(num_resources, -NEVER), np.full(num_resources, -1)
        self._waiting: tuple[NDArray[np.int64], ...] = (np.zeros(0, np.int64),) * 4
        self._clashes: list[NDArray[np.int64]] = []

    def note(self, block: Block) -> None:
        """Sweep over a block of sends."""
        after = block.first + len(block.chunk)
        next_start = int(self._columns.start[after]) if after < len(self._columns) else NEVER
        count = len(self._waiting[0])
        room = np.empty((4, count + len(block.chunk) * self._most_holds), np.int64)
        held = Held(*room)
        for column, waiting in zip(held, self._waiting, strict=True):
            column[:count] = waiting
        count = fitted(list_holds, self._columns.is_large)(block, self._holds, held, count)
        begin = held.begin[:count]
        order = np.arange(count)
        if (begin[1:] < begin[:-1]).any():
            order = np.argsort(begin, kind="stable")
            begin = begin[order]
        final = int(np.searchsorted(begin, next_start))
        clashes = np.empty((MOST_LISTED + 1, 5), np.int64)
        found = fitted(sweep, self._columns.is_large)(held, order[:final], self._until, self._holder, clashes)
        self._clashes.append(clashes[:found].copy())
        self._waiting = tuple(column[order[final:]] for column in held)

    def report(self, findings: Findings) -> None:
        """Report the sends that begin to hold a resource that another one still holds."""
        columns, us = self._columns, self._columns.ticks.us
        clashes = np.concatenate([np.zeros((0, 5), np.int64), *self._clashes])
        order = np.lexsort((clashes[:, 2], clashes[:, 1], clashes[:, 0]))
        for resource, begin, send, other, until in clashes[order].tolist():
            findings.report(
                "contention",
                f"holds {columns.topology.resources[resource].name} from {us(begin)} us, which chunk "
                f"{columns.chunk[other]} over {findings.link_text(int(columns.link[other]))} holds until "
                f"{us(until)} us",
                send,
            )
