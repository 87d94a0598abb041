"""Arguments with which every collective by name can be made."""

from taccl.problem.collectives import COLLECTIVES, argument_names


def arguments_for(name, num_ranks):
    """Those that a collective has no default for: the first and last rank as roots, and 1, 2, 3, 1, ... chunks."""
    ends = tuple(dict.fromkeys((0, num_ranks - 1)))
    known = {"roots": ends, "counts": tuple(1 + rank % 3 for rank in range(num_ranks))}
    return {each: known[each] for each in argument_names(name) if each in known}


#: Collectives that are made of a number of ranks alone.
WITHOUT_ARGUMENTS = tuple(name for name in COLLECTIVES if not arguments_for(name, 2))
