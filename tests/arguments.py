"""Arguments with which every named collective can be made."""

from taccl.problem.collectives import COLLECTIVES, argument_names


def arguments_for(name, num_ranks):
    """Arguments without default: the first and last rank as roots, and counts 1, 2, 3, 1, ..."""
    ends = tuple(dict.fromkeys((0, num_ranks - 1)))
    known = {"roots": ends, "counts": tuple(1 + rank % 3 for rank in range(num_ranks))}
    return {each: known[each] for each in argument_names(name) if each in known}


#: Collectives that need only a number of ranks.
WITHOUT_ARGUMENTS = tuple(name for name in COLLECTIVES if not arguments_for(name, 2))
