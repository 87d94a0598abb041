"""Random changes of a schedule's rows, by which tests judge the verifiers.

A row is a named tuple: a transfer, with or without its end and group, or a row of an implicit schedule's pattern.
A change takes a random generator, the list of rows, which it changes, and their problem or implicit schedule.
"""

from __future__ import annotations

from taccl.problem.problem import Problem


def index_fields(source):
    """{field of a row: number of valid values} for a problem or an implicit schedule."""
    if isinstance(source, Problem):
        return {"chunk": source.collective.num_chunks, "link": len(source.topology.links)}
    shape = source.translations
    places = dict.fromkeys(("src", "dst"), shape.num_ranks)
    return {"item": source.num_items, **places, "link_class": len(shape.classes)}


def replace_one(rng, rows, change):
    """Change fields of a random row; `change` returns {field: value} for the row."""
    i = rng.randrange(len(rows))
    rows[i] = rows[i]._replace(**change(rows[i]))


def later(row, by):
    """The row with all of its times shifted."""
    return row._replace(**{name: getattr(row, name) + by for name in ("start", "end") if name in row._fields})


def drop(rng, rows, source):
    rows.pop(rng.randrange(len(rows)))


def duplicate(rng, rows, source):
    """Repeat a row at its time, soon after it, or long after all others."""
    row, last = rng.choice(rows), max(row.start for row in rows)
    group = {"group": rng.choice((row.group, -1))} if "group" in row._fields else {}
    rows.append(later(row, rng.choice((0, 1, 2, 5, 2 * last + 5)))._replace(**group))


def move(rng, rows, source):
    """Shift a send, with all chunks merged in it."""
    at, by = rng.randrange(len(rows)), rng.choice((-20, -3, -2, -1, -1, 1, 1, 2, 4, 20))
    group = getattr(rows[at], "group", None)
    for i, row in enumerate(rows):
        if i == at or (group is not None and row.group == group):
            rows[i] = later(row, by)


def move_later(rng, rows, source):
    """Shift all rows from a random time on."""
    since, by = rng.choice(rows).start, rng.choice((-1, 1, 3, 50))
    rows[:] = [later(row, by) if row.start >= since else row for row in rows]


def change_index(rng, rows, source):
    """Replace a chunk, link or rank by another one, which occasionally does not exist."""
    name, count = rng.choice(list(index_fields(source).items()))
    value = rng.choice((-1, count)) if rng.random() < 0.1 else rng.randrange(count)
    replace_one(rng, rows, lambda _: {name: value})


def swap_index(rng, rows, source):
    name = rng.choice(list(index_fields(source)))
    a, b = rng.randrange(len(rows)), rng.randrange(len(rows))
    of_a, of_b = getattr(rows[a], name), getattr(rows[b], name)
    rows[a], rows[b] = rows[a]._replace(**{name: of_b}), rows[b]._replace(**{name: of_a})


def swap_times(rng, rows, source):
    a, b = rng.randrange(len(rows)), rng.randrange(len(rows))
    by = rows[b].start - rows[a].start
    rows[a], rows[b] = later(rows[a], by), later(rows[b], -by)


def flip_reduce(rng, rows, source):
    replace_one(rng, rows, lambda row: {"reduce": not row.reduce})


def add(rng, rows, source):
    """Add a random row, with the right duration if rows have ends."""
    start = rng.randrange(max(0, *(row.start for row in rows)) + 8)
    values = {name: rng.randrange(count) for name, count in index_fields(source).items()}
    values |= {"start": start, "reduce": rng.random() < 0.3}
    row = rows[0]._replace(**values)
    if "end" in row._fields:
        units = int(source.costs.chunk_units[row.chunk])
        row = row._replace(end=start + source.costs.duration(row.link, units), group=-1)
    rows.append(row)


#: Changes of rows of any kind.
COMMON = (
    drop, duplicate, move, move_later, change_index, change_index, swap_index, swap_times, flip_reduce, add,
)  # fmt: skip


def shift_start(rng, rows, source):
    replace_one(rng, rows, lambda row: {"start": row.start + rng.choice((-1, 1))})


def shift_end(rng, rows, source):
    replace_one(rng, rows, lambda row: {"end": row.end + rng.choice((-1, 1))})


def split_group(rng, rows, source):
    replace_one(rng, rows, lambda _: {"group": -1})


def join_groups(rng, rows, source):
    replace_one(rng, rows, lambda _: {"group": rng.choice(rows).group})


#: Changes of rows with ends and groups.
LISTED = (*COMMON, shift_start, shift_end, split_group, join_groups)


def redirect(rng, rows, source):
    """Change class and source of a pattern's row, and its destination accordingly."""
    shape = source.translations
    src, link_class = rng.randrange(shape.num_ranks), rng.randrange(len(shape.classes))
    dst = int(shape.group.translate(src, shape.classes[link_class].dst))
    replace_one(rng, rows, lambda _: {"src": src, "dst": dst, "link_class": link_class})


#: Changes of rows of a pattern.
IMPLICIT = (*COMMON, redirect, redirect, move, swap_times)


def mutated(rng, rows, source, changes, numbers=(1, 1, 2, 3)):
    """The rows after a random number of `changes`, one of `numbers`, until no row is left."""
    rows = list(rows)
    for change in rng.choices(changes, k=rng.choice(numbers)):
        if rows:
            change(rng, rows, source)
    return rows
