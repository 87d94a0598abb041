"""Exchanges on the command line: the bytes of each pair of ranks, from a file or by a skew."""

from __future__ import annotations

from typing import TYPE_CHECKING

import taccl
from taccl._internal.units import format_size, parse_size
from taccl.cli.output import say
from taccl.errors import InputError
from taccl.problem.alltoallv import is_skew, load_sizes, skewed_sizes

if TYPE_CHECKING:
    import argparse

    import numpy as np
    from numpy.typing import NDArray

    from taccl.problem.collective import Collective
    from taccl.topology.topology import Topology

#: Collective whose sizes are those of a matrix, and how a matrix is given.
BY_MATRIX, MATRICES = "alltoallv", "a CSV or .npy file, or a skew such as zipf:0.8 or hot:64"
#: Size if neither a sketch nor an option states one.
USUAL_SIZE = "64MB"


def collective_of(options: argparse.Namespace, topology: Topology) -> Collective | str:
    """The collective by name; that of a matrix in chunks of one size."""
    if options.collective != BY_MATRIX and options.matrix is None:
        name: str = options.collective
        return name
    sizes = sizes_of_pairs(options, topology.num_ranks)
    collective = taccl.alltoallv_collective(sizes)
    busiest = max(sizes.sum(axis=0).max(), sizes.sum(axis=1).max())
    say(
        f"note: {BY_MATRIX} in chunks of one size, {collective.size_chunks} at the busiest rank for "
        f"{format_size(int(busiest))}; each pair is rounded up to whole chunks, and sizes scale all alike"
    )
    return collective


def sizes_of_pairs(options: argparse.Namespace, num_ranks: int) -> NDArray[np.int64]:
    """Matrix of an exchange: from a file, or of a skew, whose mean per rank is the size."""
    if options.collective != BY_MATRIX:
        raise InputError(f"found one of {options.collective}; only {BY_MATRIX} has one", where="--matrix")
    if options.matrix is None:
        raise InputError(f"found none; {BY_MATRIX} takes its sizes from {MATRICES}", where="--matrix")
    if is_skew(options.matrix):
        return skewed_sizes(
            num_ranks, getattr(options, "size", None) or parse_size(USUAL_SIZE), options.matrix
        )
    return load_sizes(options.matrix)
