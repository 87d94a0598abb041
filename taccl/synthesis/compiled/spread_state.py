"""What the compiled kernel of `taccl.synthesis.compiled.greedy_kernel` changes while chunks spread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["State"]


class State(NamedTuple):
    """What changes while chunks spread; all of it is used up.

    Parameters
    ----------
    log_of, log, log_end
        Rank r's chunks in order of arrival are ``log[log_of[r]:log_end[r]]``: its own to begin with; there is
        room for all it is to receive.
    claimed, missing
        Bits of the chunks that a rank has, expects, or is not to receive; how many are left to claim.
    held, num_held
        Bits of the chunks that some rank of a component has or expects, by class and component, and their
        number. An empty first axis switches the rules for slow links off.
    resource_free : (num_resources,)
        When shared resources are free.
    link_free, place, fresh_place, armed, turn, queue : (num_slots,)
        When links are free; the place in the source's log before which all is claimed at the destination,
        and before which all is held in its component; links to look at; where a rank's turn of links is;
        room for the links that a rank asks.
    active, is_active : (num_ranks,)
        Ranks with links to look at.
    arrival_lane, freed_lane, wake_lane
        The lane of every event that a send over a slot causes, -1 for the heap.
    sent_chunk, sent_link, sent_start
        One row for every send, in order of start.
    scalar : (5,) int64
        Active ranks, sends, the finish so far, the state of the random generator, and a sign from outside
        to stop.
    """

    log_of: NDArray[np.int64]
    log: NDArray[Any]
    log_end: NDArray[np.int64]
    claimed: NDArray[np.uint8]
    missing: NDArray[np.int64]
    held: NDArray[np.uint8]
    num_held: NDArray[np.int64]
    resource_free: NDArray[np.int64]
    link_free: NDArray[np.int64]
    place: NDArray[np.int64]
    fresh_place: NDArray[np.int64]
    armed: NDArray[np.bool_]
    turn: NDArray[np.int64]
    queue: NDArray[np.int64]
    active: NDArray[np.int64]
    is_active: NDArray[np.bool_]
    arrival_lane: NDArray[np.int32]
    freed_lane: NDArray[np.int32]
    wake_lane: NDArray[np.int32]
    sent_chunk: NDArray[Any]
    sent_link: NDArray[np.int32]
    sent_start: NDArray[Any]
    scalar: NDArray[np.int64]
