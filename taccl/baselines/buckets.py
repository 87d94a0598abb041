"""The bucket algorithm on tori and meshes: rings along one dimension after another, all dimensions busy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache, partial
from itertools import combinations_with_replacement, pairwise, product
from math import gcd, prod
from operator import itemgetter

import numpy as np

from taccl._internal.arguments import checked
from taccl._internal.arrays import lexsort, numbered
from taccl.baselines.chunking import (
    MOST_CUT,
    MOST_MERGED,
    are_pairs,
    cut_chunks,
    cut_while_it_pays,
    held_at_start,
    keep_soonest,
    may_merge,
    merging,
    or_whole_sums,
    require_everywhere,
    run,
    sums_everywhere,
    without_sketch,
)
from taccl.baselines.exchanges import MANY_CHUNKS, exchanges
from taccl.baselines.forms import fastest, fastest_form, fastest_in_turn
from taccl.baselines.hubs import hub_sends
from taccl.baselines.moves import Flags, Ints, Moves, Row, Sends, routed
from taccl.errors import CollectiveError
from taccl.problem.problem import Problem
from taccl.schedule.schedule import Schedule
from taccl.topology.products import Dimensions
from taccl.topology.recognise import grid_of

#: `_MOST_STARTS`: max pairs of chunks per rank in `_starts`.
#: `_EVEN`: max ratio of loads of the busiest link at which fewer pairs are preferred.
#: `_MOST_DIMS`: max number of dimensions for which `_starts` tries all sequences (455 of 12 pairs).
#: `_PAYS_IN_ROUNDS`: max ratio of finishes at which more pieces of data are preferred.
#: `_MOST_IN_ROUNDS`: max transfers of the bucket algorithm in rounds (0.6 s of CPU); half as many for sums.
_MOST_STARTS, _EVEN, _MOST_DIMS = 12, 1.01, 4
_PAYS_IN_ROUNDS, _MOST_IN_ROUNDS = Fraction(99, 100), 400_000


@checked
def bucket(problem: Problem, *, cut: bool = True) -> Schedule:
    """Bucket schedule on a torus or a mesh: chunks pass one dimension after another, along rings or lines.

    Chunks are divided into two parts per dimension. Both parts of a dimension pass it first, so that all
    dimensions are in use. Along rings, one of the two parts goes all the way round upwards, the other
    downwards; or both go half way in both directions. Along a line, chunks go in both directions. If sends
    may merge, a rank's chunks over a link in a step are one message. The faster of the two ways round a ring
    is kept, and `producer` names it. Only the merging clauses of the sketch apply.

    On a torus an allreduce of n bytes takes 2 (D s alpha + n beta (p - 1) / (2 D p)). Here p ranks are in D
    equal dimensions of size a; s is a - 1 steps in one direction, and a // 2 in both. On a mesh s is a - 1,
    and the bytes take n beta (p - 1) / (D p).

    For smaller sizes, an allreduce scatters the sums of each part along j dimensions only. Along the others,
    ranks forward whole partial sums in both directions, and no gather follows. Then there are (D + j) s
    steps. On a torus the bytes take n beta (1 - 1 / a**j + (D - j) (a - 1) / (2 a**j)) / D; on a mesh they
    take twice as long.

    If dimensions are unlike, chunks may also pass them in rounds. In each round, a rank sends over each link
    all that has arrived before and goes that way. This is one message, or one for each number of dimensions
    already passed. There are as many rounds as the diameter has hops. The numbers of chunks that start with
    each dimension load the links of all dimensions equally.

    Chunks from one rank to one rank, as of an alltoall or a scatter, take the shorter way round each ring.
    Equally many start with each dimension.

    Sums of an allreduce may also be collected at hubs (`taccl.baselines.hubs`). On a mesh whose sends merge,
    parts of the chunks follow trees of their own at the same time (`taccl.baselines.tree_mixes`).

    Parameters
    ----------
    problem, cut
        As in `ring`; chunks are cut so that no part is empty.

    Raises
    ------
    CollectiveError
        If a chunk concerns neither every rank nor two ranks, or the topology is neither torus nor mesh.

    References
    ----------
    N. Jain and Y. Sabharwal, "Optimal bucket algorithms for large MPI collectives on torus interconnects",
    ICS 2010. P. Sack and W. Gropp, "Collective algorithms for multiported torus networks", ACM Transactions
    on Parallel Computing 1 (2015).
    """
    found, dims = passes(problem, cut=cut)
    mixes = cut and may_merge(problem)
    from taccl.baselines.tree_mixes import soonest_plan  # loads kernels
    from taccl.baselines.tree_plans import TreeMix

    plan = soonest_plan(problem, dims, mixes=mixes) if sums_everywhere(problem) else None
    if plan is None or plan.estimated_us(problem) >= found.finish_us:
        return found
    name, parts = f"bucket (hubs: {plan})", plan.parts_per_chunk(problem)
    if isinstance(plan, TreeMix):  # its shares need exactly this number of parts
        if parts > min(problem.chunk_bytes):
            return found
        finer = merging(cut_chunks(without_sketch(problem), parts))
        mixed = hub_sends(finer, plan).schedule(finer, producer=name)
        return fastest((found, keep_soonest(problem, mixed)))
    return or_whole_sums(found, problem, partial(hub_sends, plan=plan), name=name, fewest=parts, cut=cut)


def passes(problem: Problem, *, cut: bool) -> tuple[Schedule, Dimensions]:
    """(schedule of `bucket` without hubs and trees, dimensions of the topology)."""
    is_exchange = are_pairs(problem) and not (problem.collective.combining or problem.collective.derivations)
    if not is_exchange:
        require_everywhere(problem, baseline="bucket")
    dims = grid_of(problem.topology)
    if dims is None:
        raise CollectiveError(
            f"bucket needs a torus or a mesh, but found {problem.topology.name}; use ring", where="baseline"
        )

    # Many chunks are exchanged in merged messages only, as single ones take longer to time.
    has_many = problem.collective.num_chunks > MANY_CHUNKS
    are_merged = has_many and cut and may_merge(problem)

    def exchanged(finer: Problem) -> Schedule:
        finer = merging(finer) if are_merged else finer
        return fastest_in_turn(finer, exchanges(finer, dims))

    if is_exchange:
        together = merging(problem) if are_merged else problem
        found = cut_while_it_pays(
            together, exchanged, name="bucket", cut=cut, merges=not are_merged, asked=problem
        )
        return found, dims

    def made(problem: Problem) -> Schedule:
        forms = (
            ((1, "one way"), (2, "both ways")) if any(each.kind == "ring" for each in dims) else ((2, ""),)
        )
        return fastest_form(
            problem,
            (
                (
                    f"bucket ({text})" if text else "bucket",
                    run(problem, partial(_fill, dims=dims, directions=directions)),
                )
                for directions, text in forms
            ),
        )

    most = MOST_CUT if sums_everywhere(problem) else MOST_MERGED
    # Two parts per dimension go round rings in opposite directions; elsewhere, one suffices.
    has_rings = any(each.kind == "ring" and size > 2 for each, size in zip(dims, dims.sizes, strict=True))
    parts = len(dims) * (1 + has_rings)
    found = cut_while_it_pays(
        problem, made, name="bucket", cut=cut, parts=parts, merges=True, most_merged=most
    )
    found = _or_in_rounds(found, problem, dims, cut=cut)
    for number in reversed(range(1, len(dims))):
        parts = 2 * len(dims) * max(prod(dims.sizes[k] for k in along) for along in _orders(dims, number))
        found = or_whole_sums(
            found,
            problem,
            partial(_scatter_and_sum, dims=dims, number=number),
            name=f"bucket (scatter along {number} of {len(dims)} dimensions, whole sums along the others)",
            fewest=parts // gcd(parts, problem.topology.num_ranks),
            cut=cut,
        )
    return found, dims


def _orders(dims: Dimensions, number: int) -> list[tuple[int, ...]]:
    """For each part of the chunks, the dimensions along which its sums are scattered, in order.

    Part k starts with dimension k and goes on cyclically, to `number` dimensions in total.
    """
    return [tuple((part + k) % len(dims) for k in range(number)) for part in range(len(dims))]


def _fill(problem: Problem, *, dims: Dimensions, directions: int) -> Sends:
    """Sends of chunks that pass all dimensions in cyclic order; equally many start with each dimension.

    - `directions`: Number of directions that a chunk takes on a ring, 1 or 2.
    """
    holder, chunk, place = held_at_start(problem)
    moves: list[Row] = []
    for part in range(len(dims)):
        here, first = place % len(dims) == part, 0
        at, what, up = holder[here], chunk[here], place[here] // len(dims) % 2 == 0
        for k in (*range(part, len(dims)), *range(part)):
            size, stride, is_ring = dims.sizes[k], dims.strides[k], dims.dims[k].kind == "ring"
            held, digit = [(at, what, up)], at // stride % size
            for way in (1, -1):
                is_longer = up == (way > 0)
                reach = (size - 1 + is_longer) // 2 if directions == 2 else (size - 1) * is_longer
                if not is_ring:
                    reach = size - 1 - digit if way > 0 else digit
                for step in range(int(reach.max(initial=0))):
                    goes = step < reach
                    src, dst = (at + ((digit + way * s) % size - digit) * stride for s in (step, step + 1))
                    moves.append((first + step, what[goes], src[goes], dst[goes], False))
                    held.append((dst[goes], what[goes], up[goes]))
            first += size - 1
            at, what, up = (np.concatenate(each) for each in zip(*held, strict=True))
            order = lexsort((at,))
            at, what, up = at[order], what[order], up[order]
    return routed(problem, Moves.of(moves))


def _or_in_rounds(found: Schedule, problem: Problem, dims: Dimensions, *, cut: bool) -> Schedule:
    """The faster of `found` and the bucket algorithm in rounds; `found` if all dimensions are alike."""
    if not (cut and problem.collective.num_chunks and may_merge(problem)):
        return found
    is_sum = problem.collective.combining and not problem.collective.stays_at_roots
    least = problem.collective.num_chunks * (problem.topology.num_ranks - 1) * (1 + is_sum)
    most = _MOST_IN_ROUNDS // (1 + is_sum)
    starts = _starts(dims, most // (2 * least))
    if not starts or 2 * len(starts) > min(problem.chunk_bytes):
        return found

    def made(finer: Problem) -> Schedule:
        finer = merging(finer)  # for its number of chunks
        forms = (("bucket (in rounds)", False), ("bucket (in rounds, dimensions apart)", True))
        num_pieces = finer.collective.num_chunks // problem.collective.num_chunks // (2 * len(starts))
        rounds = partial(_in_rounds, dims=dims, starts=starts, num_pieces=max(1, num_pieces))
        return fastest_form(
            finer, ((name, run(finer, partial(rounds, apart=apart))) for name, apart in forms)
        )

    rounds = cut_while_it_pays(
        merging(problem),
        made,
        name="bucket in rounds",
        cut=True,
        parts=2 * len(starts),
        pays=_PAYS_IN_ROUNDS,
        most_transfers=most,
        asked=problem,
        most_merged=most,
    )
    return fastest((found, rounds))


def _starts(dims: Dimensions, most: int) -> tuple[int, ...]:
    """First dimension of each pair of a rank's chunks; further pairs repeat the sequence.

    It minimizes the load of the busiest link. A chunk passes all dimensions in cyclic order. After dimensions
    with n ranks in total, a dimension of size a carries n (a - 1) copies of it: half of them in each
    direction along a ring, up to all of them over one link of a line.

    - `most`: Max number of pairs. The result is empty if this is 0, if all dimensions are alike, or if there
      are more than `_MOST_DIMS`.
    """
    if len(set(dims.dims)) == 1 or len(dims) > _MOST_DIMS:
        return ()
    load = np.zeros((len(dims), len(dims)))
    for first in range(len(dims)):
        num_copies = 1
        for k in (*range(first, len(dims)), *range(first)):
            is_ring = dims.dims[k].kind == "ring" and dims.sizes[k] > 2
            ways = 2 if is_ring else 1
            load[first, k] = num_copies * (dims.sizes[k] - 1) * float(dims.dims[k].beta_us_per_mb) / ways
            num_copies *= dims.sizes[k]
    best: tuple[float, tuple[int, ...]] = np.inf, ()
    for number in range(1, min(most, _MOST_STARTS) + 1):
        for ends in combinations_with_replacement(range(number + 1), len(dims) - 1):
            counts = [until - since for since, until in pairwise((0, *ends, number))]
            busiest = float((counts @ load).max()) / number
            if _EVEN * busiest < best[0]:
                best = busiest, tuple(np.repeat(np.arange(len(dims)), counts).tolist())
    return best[1]


def _in_rounds(
    problem: Problem, *, dims: Dimensions, starts: Sequence[int], num_pieces: int, apart: bool
) -> Sends:
    """Sends in rounds: in each, a rank sends on over each link all that has arrived before and goes that way.

    Along rings, one chunk of each pair goes the longer way round upwards, the other one downwards.

    - `starts`: First dimension of each pair of chunks.
    - `num_pieces`: Number of pieces of the data; a round has messages of its own for each.
    - `apart`: True for a message per number of dimensions passed, those that go on along more dimensions
      first. The next round then waits for less data.
    """
    holder, chunk, place = held_at_start(problem)
    first, piece = np.array(starts)[place // 2 % len(starts)], np.zeros(len(chunk), np.int64)
    piece[chunk] = place // (2 * len(starts)) % num_pieces
    moves: list[tuple[Ints, ...]] = []
    for part in range(len(dims)):
        here = first == part
        at, what, up = holder[here], chunk[here], place[here] % 2 == 0
        when = np.zeros(len(at), np.int64)
        for passed, k in enumerate((*range(part, len(dims)), *range(part))):
            size, stride, is_ring = dims.sizes[k], dims.strides[k], dims.dims[k].kind == "ring"
            held, digit = [(at, what, up, when)], at // stride % size
            for way in (1, -1):
                reach = (size - 1 + (up == (way > 0))) // 2
                if not is_ring:
                    reach = size - 1 - digit if way > 0 else digit
                for step in range(int(reach.max(initial=0))):
                    goes = step < reach
                    src, dst = (at + ((digit + way * s) % size - digit) * stride for s in (step, step + 1))
                    order = (when + step) * len(dims) + (passed if apart else 0)
                    order = order * num_pieces + piece[what]
                    moves.append((order[goes], dst[goes], src[goes], what[goes]))
                    held.append((dst[goes], what[goes], up[goes], when[goes] + step + 1))
            at, what, up, when = (np.concatenate(each) for each in zip(*held, strict=True))
    columns = [np.concatenate(each) for each in zip(*moves, strict=True)]
    order, dst, src, what = (each[lexsort(columns[::-1])] for each in columns)
    return routed(problem, Moves.of([(order, what, src, dst, False)]))


def _scatter_and_sum(problem: Problem, dims: Dimensions, number: int) -> Sends:
    """Sends of sums that are scattered along some dimensions, summed whole along the others, then gathered.

    - `number`: Number of dimensions along which the sums of each part are scattered.
    """
    moves: list[Row] = []
    carried: list[tuple[int, Ints]] = [(0, np.zeros(0, np.int64))]
    sums: dict[tuple[int, ...], int] = {}
    chunks = np.arange(problem.collective.num_chunks)
    for part, along in enumerate(_orders(dims, number)):
        for step, chunk, src, dst, number_of_sum in _part_of_sums(
            dims, chunks[chunks % len(dims) == part], along, sums
        ):
            moves.append((step, chunk, src, dst, True))
            carried.append((step, number_of_sum))
    carried.sort(key=itemgetter(0))  # same order as `Moves.of`
    return routed(
        problem, Moves.of(moves), sums=list(sums), carries=np.concatenate([each for _, each in carried])
    )


def _part_of_sums(
    dims: Dimensions, chunk: Ints, along: Sequence[int], sums: dict[tuple[int, ...], int]
) -> Iterator[tuple[int, Ints, Ints, Ints, Ints]]:
    """Yield the moves of one part of the chunks, as (step, chunk, source, destination, index in `sums`).

    - `along`: Dimensions along which sums are scattered, in order; along other dimensions every rank has
      whole sums.
    - `sums`: {ranks whose contributions are added up: index}; new sums are added.
    """
    digits, value = dims.digits(np.arange(dims.num_ranks)), np.arange(len(chunk))
    target = np.zeros((len(dims), len(chunk)), np.int64)
    for k in along:
        target[k], value = value % dims.sizes[k], value // dims.sizes[k]
    is_up, done, first = value % 2 == 0, set[int](), 0

    def reach(k: int, way: int) -> Ints:
        """Number of ranks on one side of each chunk's target; on a ring, half of the other ranks."""
        size, to_end = dims.sizes[k], target[k] if way < 0 else dims.sizes[k] - 1 - target[k]
        found: Ints = (size - 1 + (is_up == (way > 0))) // 2 if dims.dims[k].kind == "ring" else to_end
        return found

    def moved(
        step: int, k: int, way: int, goes: Flags, length: Ints | int
    ) -> tuple[int, Ints, Ints, Ints, Ints]:
        """Columns of a move: ranks send partial sums marked in `goes` to the next rank along dimension k.

        A partial sum holds contributions of `length` consecutive ranks, the last of which is the source.
        """
        src, row = np.nonzero(goes)
        size, stride = dims.sizes[k], dims.strides[k]
        dst = src + ((digits[k][src] + way) % size - digits[k][src]) * stride
        some = np.broadcast_to(length, len(chunk))[row]
        fixed = [j for j in range(len(dims)) if j == k or j not in done]
        base = sum((digits[j][src] * dims.strides[j] for j in fixed), np.zeros_like(src))
        pairs, _, number = numbered(base * (size + 1) + some)
        alike = dims.sizes, dims.strides, frozenset(done - {k}), k, way
        found = [
            sums.setdefault(_ranks_of_sum(*alike, *divmod(pair, size + 1)), len(sums))
            for pair in pairs.tolist()
        ]
        return step, chunk[row], src, dst, np.array(found, np.int64)[number]

    def at(some: Iterable[int]) -> Flags:
        """True if a rank has the digits of a chunk's target in dimensions `some`, (num_ranks, num_chunks)."""
        some = list(some)
        return np.asarray((digits[some][:, :, None] == target[some][:, None, :]).all(axis=0))

    def away(k: int, way: int, hops: int) -> Flags:
        """True if a rank is `hops` hops from a chunk's target in direction `way`, (num_ranks, num_chunks)."""
        there = target[k] + way * hops
        is_far = digits[k][:, None] == (there % dims.sizes[k] if dims.dims[k].kind == "ring" else there)
        return np.asarray(is_far & (hops <= reach(k, way)))

    for place, k in enumerate(along):
        most = _steps(dims, k)
        for way, hops in product((1, -1), range(most, 0, -1)):
            goes = at(along[:place]) & away(k, -way, hops)
            yield moved(first + most - hops, k, way, goes, reach(k, -way) - hops + 1)
        first += most
        done.add(k)
    for k in (k for k in range(len(dims)) if k not in along):
        for way, step in product((1, -1), range(_steps(dims, k))):
            goes = at(along)
            if dims.dims[k].kind == "ring":
                goes &= step < reach(k, way)
            else:  # a sum that starts at an end of the line collects every rank that it passes
                goes &= (digits[k] == (step if way > 0 else dims.sizes[k] - 1 - step))[:, None]
            yield moved(first + step, k, way, goes, step + 1)
        first += _steps(dims, k)
        done.add(k)
    for place, k in reversed([*enumerate(along)]):
        for way, hops in product((1, -1), range(_steps(dims, k))):
            goes = at(along[:place]) & away(k, way, hops) & (hops < reach(k, way))
            yield moved(first + hops, k, way, goes, dims.sizes[k])
        first += _steps(dims, k)


@lru_cache(maxsize=1 << 14)
def _ranks_of_sum(
    sizes: tuple[int, ...],
    strides: tuple[int, ...],
    done: frozenset[int],
    k: int,
    way: int,
    rank: int,
    count: int,
) -> tuple[int, ...]:
    """Ranks of a partial sum: `count` consecutive ones along dimension k up to `rank`, with their images.

    - `done`: Dimensions along which sums are complete; ranks that differ only in these are images.
    - `way`: Direction along dimension k, 1 or -1.
    """
    place = rank // strides[k] % sizes[k]
    found = rank + ((place - way * np.arange(count)) % sizes[k] - place) * strides[k]
    for j in done:
        found = (found[:, None] + strides[j] * np.arange(sizes[j])).ravel()
    return tuple(np.sort(found).tolist())


def _steps(dims: Dimensions, k: int) -> int:
    """Number of steps along a dimension; on a ring half its size, as data go in both directions."""
    return dims.sizes[k] // 2 if dims.dims[k].kind == "ring" else dims.sizes[k] - 1
