"""In-network aggregation: sums by switches that reduce, and copies by switches that multicast."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction
from itertools import count

import numpy as np

from taccl._internal.arguments import checked
from taccl._internal.caching import cached
from taccl._internal.units import format_size
from taccl.baselines.chunking import cut_while_it_pays
from taccl.errors import CollectiveError
from taccl.problem.problem import Problem
from taccl.schedule.schedule import Schedule
from taccl.schedule.timing import exact_times
from taccl.topology.in_network import shared_links

#: Chunks are cut while that saves 0.1 % of the time: only the last chunk's multicast overlaps no other work.
_PAYS = Fraction(999, 1000)


@checked
def in_network(problem: Problem, *, cut: bool = True) -> Schedule:
    """Schedule with reductions and multicasts in switches.

    Each sum goes through the switch to one rank. From there, a multicast sends it to all others while the
    next sum is made. The sketch does not apply.

    Parameters
    ----------
    problem, cut
        As in `ring`.

    Raises
    ------
    CollectiveError
        If no switch adds or multicasts what the collective requires, or a packet is larger than a chunk.

    References
    ----------
    A. Sapio et al., "Scaling distributed machine learning with in-network aggregation", NSDI 2021. NVLS
    of the NVIDIA Collective Communications Library.
    """
    return cut_while_it_pays(problem, _by_switches, name="in-network", cut=cut, pays=_PAYS)


def _by_switches(problem: Problem) -> Schedule:
    switches = [switch.reduces for switch in problem.topology.switches if switch.reduces]
    payload = max((each.payload_bytes or 0 for each in switches), default=0)
    sends: list[tuple[int, int, int, bool]] = []  # (position in the sequence, chunk, link, True if it adds)
    turns: dict[int, Iterator[int]] = defaultdict(count)
    for c, size in enumerate(problem.chunk_bytes):
        turn = next(turns[problem.collective.group_of_chunk[c]])  # process groups have separate sequences
        into, out_of = switch_links(problem, c)
        if into is not None and size < payload:
            raise CollectiveError(
                f"found chunks of {format_size(size)} for packets of {format_size(payload)}; give the switch "
                "a smaller payload, or cut the data into fewer chunks",
                where="payload_bytes",
            )
        if into is not None:
            sends.append((2 * turn, c, into, True))
        if out_of is not None:  # the multicast overlaps the next sum
            sends.append((2 * turn + 3, c, out_of, False))
    place, chunk, link, adds = np.array(sends, dtype=np.int64).reshape(-1, 4).T
    return exact_times(problem, chunk=chunk, link=link, sequence=place, reduce=adds, producer="in-network")


def switch_links(problem: Problem, chunk: int) -> tuple[int | None, int | None]:
    """Switch link that adds up a chunk, and switch link that multicasts it; None if the chunk needs none.

    Raises `CollectiveError` if the topology lacks such links.
    """
    data = problem.collective.chunks[chunk]
    found = _links_for(problem, data.origins, data.destinations)
    if found == (None, None) and not data.is_met(is_sum=problem.collective.sums_up):
        raise CollectiveError(
            f"no switch adds and multicasts what chunk {chunk} of {problem.title} needs; expected one that "
            "reduces among just the ranks that contribute",
            where="in-network",
        )
    return found


@cached
def _links_for(
    problem: Problem, origins: tuple[int, ...], destinations: tuple[int, ...]
) -> tuple[int | None, int | None]:
    links, is_sum = problem.topology.links, problem.collective.sums_up and len(origins) > 1
    into: dict[int, int] = {}
    out_of: dict[int, int] = {}
    for e in shared_links(problem.topology):
        if len(links[e].dsts) == 1 and {*origins} - {links[e].dst} == {*links[e].srcs}:
            into[links[e].dst] = e
        if len(links[e].srcs) == 1 and {*destinations} <= {links[e].src, *links[e].dsts}:
            out_of[links[e].src] = e
    wanted = set(destinations)
    for root in sorted(into if is_sum else origins, key=lambda rank: (wanted != {rank}, rank)):
        spreads = wanted != {root}
        if not problem.collective.derivations and (root in out_of and len(wanted) > 1 if spreads else is_sum):
            return into[root] if is_sum else None, out_of[root] if spreads else None
    return None, None
