"""The bucket algorithm on tori and meshes: rings along one dimension after another, all dimensions busy."""

from __future__ import annotations

from functools import partial

import numpy as np

from taccl._internal.arguments import checked
from taccl.baselines.hubs import hub_sends
from taccl.baselines.moves import Moves, Row, Sends, routed
from taccl.baselines.spread import (
    cut_chunks,
    cut_while_it_pays,
    fastest,
    fastest_form,
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
from taccl.errors import CollectiveError
from taccl.problem.problem import Problem
from taccl.schedule.schedule import Schedule
from taccl.topology.products import Dimensions
from taccl.topology.recognise import grid_of


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

    Sums of an allreduce may also be collected at hubs (`taccl.baselines.hubs`). On a mesh whose sends merge,
    parts of the chunks follow trees of their own at the same time (`taccl.baselines.tree_mixes`).

    Parameters
    ----------
    problem, cut
        As in `ring`; chunks are cut so that no part is empty.

    Raises
    ------
    CollectiveError
        If a chunk does not concern every rank, as in alltoall, or the topology is neither torus nor mesh.

    References
    ----------
    N. Jain and Y. Sabharwal, "Optimal bucket algorithms for large MPI collectives on torus interconnects",
    ICS 2010. P. Sack and W. Gropp, "Collective algorithms for multiported torus networks", ACM Transactions
    on Parallel Computing 1 (2015).
    """
    require_everywhere(problem, baseline="bucket")
    dims = grid_of(problem.topology)
    if dims is None:
        raise CollectiveError(
            f"bucket needs a torus or a mesh, but found {problem.topology.name}; use ring", where="baseline"
        )

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

    found = cut_while_it_pays(problem, made, name="bucket", cut=cut, parts=2 * len(dims), merges=True)
    mixes = cut and may_merge(problem)
    from taccl.baselines.tree_mixes import TreeMix, soonest_plan  # they load kernels

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
            order = np.argsort(at, kind="stable")
            at, what, up = at[order], what[order], up[order]
    return routed(problem, Moves.of(moves))
