"""Schedule files: round trips, and refusal of anything else."""

import json
import os
import warnings
from fractions import Fraction

import numpy as np
import pytest

from taccl import collectives
from taccl.analysis.verification.verify import verify
from taccl.errors import FormatError, InputError, NumericsWarning
from taccl.formats.native import (
    _file_digest,
    dump_schedule,
    dump_text,
    load,
    load_schedule,
    read_document,
    save,
)
from taccl.problem.making import make_problem
from taccl.problem.problem import Clauses, SwitchPolicy
from taccl.schedule.schedule import Schedule, make_schedule
from taccl.topology.builder import TopologyBuilder
from tests.arguments import arguments_for

MB = 10**6


def _schedule(*, alpha_us="0.7", producer="by hand"):
    """Ranks 1 and 2 reduce to rank 0 in 0.7 + 2 us each, over a shared NIC with holds on both sides."""
    topology = TopologyBuilder("fan", [0, 0, 1], profile="nominal", machine="own")
    nic = topology.add_resource("NIC")
    for rank in (1, 2):
        link = topology.add_link(rank, 0, alpha_us=alpha_us, beta_us_per_mb=2, name=f"lane {rank}")
        topology.add_hold(link, nic, alpha_us=0, beta_us_per_mb=1, side="receive")
    topology.add_switch("crossbar", [0, 1, 2], [0, 1])
    clauses = Clauses(
        name="all",
        links_allowed=frozenset({0, 1}),
        carries_to={0: frozenset({0})},
        merging=frozenset({0}),
        max_merge=4,
        symmetry=((0, 2, 1),),
        switch_policies=(SwitchPolicy("crossbar", "free", (0, 1)),),
        routing_slack=Fraction(1, 3),
        where={"merging": "a.toml: merging"},
    )
    collective = collectives.reduce(3)
    problem = make_problem(
        topology.build(notes=["a guess"]), collective, chunk_bytes=MB, clauses=clauses, notes=["padded"]
    )
    tick = problem.costs.ticks_per_us
    duration = problem.costs.duration(0, 1)
    return make_schedule(
        problem,
        chunk=[0, 0],
        link=[0, 1],
        start=[0, tick],
        end=[duration, tick + duration],
        reduce=[True, True],
        producer=producer,
    )


_TEXT = json.dumps(dump_schedule(_schedule()))


def _document():
    """Document of the example, as read from a file."""
    return json.loads(_TEXT)


def _sealed(document):
    """Document with a recomputed digest, as an attacker would write it."""
    return document | {"file_digest": _file_digest(document)}


def _at(document, path):
    *parents, last = path
    for key in parents:
        document = document[key]
    return document, last


def _paths(value, path=()):
    """Paths of every field of a document; in a list, of the first entry."""
    items = value.items() if isinstance(value, dict) else list(enumerate(value))[:1]
    for key, inner in items:
        yield (*path, key)
        if isinstance(inner, (dict, list)):
            yield from _paths(inner, (*path, key))


_PATHS = list(_paths(_document()))
_MISSING = object()
_WRONG = (_MISSING, None, "x", -7, 2.5, [], {}, [[]], True, 10**30, 2**31 - 1)


def test_example_is_valid():
    """The example schedule verifies."""
    assert verify(_schedule()).ok


def test_text_of_a_file_is_the_document():
    """A file's text holds the fields of the document in their order, nested objects and all."""
    extra = {"z": {"b": [{"y": 1, "x": None}], "a": 0.5}, "a": "{"}
    document = dump_schedule(_schedule(), extra=extra)
    read = json.loads(dump_text(_schedule(), extra))
    assert json.dumps(read) == json.dumps(document)
    assert read["file_digest"] == _file_digest(read)


def test_round_trip_keeps_everything(tmp_path):
    """Digest, producer, finish and notes survive a round trip."""
    schedule = _schedule()
    save(schedule, tmp_path / "s.json")
    found = load(tmp_path / "s.json")
    assert found == schedule
    assert found.producer == "by hand"
    assert found.problem == schedule.problem
    assert found.problem.notes == ("padded",)
    assert found.problem.topology.notes == ("a guess",)


def test_saving_what_was_loaded_gives_the_same_bytes(tmp_path):
    """Saving a loaded schedule gives the same bytes."""
    save(_schedule(), tmp_path / "a.json")
    save(load(tmp_path / "a.json"), tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


@pytest.mark.parametrize(
    "name", ["allgather", "allgatherv", "alltoall", "allreduce", "scan", "multi-root-broadcast"]
)
def test_collectives_round_trip_through_json(name):
    """Chunks, roots and derivations survive a round trip; an empty schedule has a digest, too."""
    topology = TopologyBuilder("pair", [0, 1])
    topology.add_link(0, 1, alpha_us=1, beta_us_per_mb=1)
    collective = collectives.make(name, 2, chunks_per_rank=2, **arguments_for(name, 2))
    sizes = [MB * (1 + i) for i in range(collective.num_chunks)]
    problem = make_problem(topology.build(), collective, chunk_bytes=sizes)
    schedule = make_schedule(problem, chunk=[], link=[], start=[], end=[])
    found = load_schedule(json.loads(json.dumps(dump_schedule(schedule))))
    assert found == schedule
    assert found.problem.collective == collective


def test_faulty_schedule_round_trips():
    """A schedule that does not verify, with inconsistent groups, survives a round trip."""
    problem = _schedule().problem
    schedule = make_schedule(
        problem, chunk=[0, 0, 0], link=[0, 1, 1], start=[0, 5, 5], end=[9, 9, 9], group=[5, 3, 5]
    )
    found = load_schedule(dump_schedule(schedule))
    assert found == schedule
    assert not verify(found).ok


def test_rounded_costs_round_trip():
    """A problem with rounded costs has the same tick grid after reading."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericsWarning)
        schedule = _schedule(alpha_us=Fraction(1, 3_000_017))
        assert load_schedule(dump_schedule(schedule)) == schedule


def test_named_contributions_are_saved_as_plain_values():
    """Each send of unreduced contributions names the one rank whose contribution it carries."""
    schedule = _schedule()
    columns = {name: getattr(schedule, name) for name in ("chunk", "link", "start", "end", "group", "reduce")}
    apart = make_schedule(schedule.problem, **columns, contributions=[(1,), (2,)])
    assert load_schedule(dump_schedule(apart)).contributions == [(1,), (2,)]


def test_columns_are_read_only():
    """Columns of a loaded schedule are read-only."""
    with pytest.raises(ValueError, match="read-only"):
        load_schedule(_document()).chunk[0] = 1


def test_how_a_schedule_was_found_is_kept(tmp_path):
    """The caller's `extra` is stored unchanged in the field `result`."""
    extra = {"stages": [{"name": "greedy", "seconds": 0.1}], "bound_us": None}
    save(_schedule(), tmp_path / "s.json", extra=extra)
    document = read_document(tmp_path / "s.json")
    assert document["result"] == extra
    assert load_schedule(document) == _schedule()


@pytest.mark.parametrize("path", _PATHS, ids=lambda p: ".".join(map(str, p)))
@pytest.mark.filterwarnings("ignore::taccl.errors.NumericsWarning")
def test_wrong_or_missing_value_is_refused(path):
    """A document in which any one field is missing, or has another type or value, gives a `FormatError`.

    Under a new digest it gives that or a valid object.
    """
    for wrong in _WRONG:
        document = _document()
        parent, key = _at(document, path)
        if repr(parent[key]) == repr(wrong):
            continue
        if wrong is _MISSING:
            del parent[key]
        else:
            parent[key] = wrong
        with pytest.raises(FormatError, match=r"^s\.json: "):
            load_schedule(document, where="s.json")
        try:
            found = load_schedule(_sealed(document), where="s.json")
        except FormatError as error:
            assert str(error).startswith("s.json: "), wrong
        else:
            repr(found.problem.topology), found.table(), found.finish_us, verify(found)


@pytest.mark.parametrize("path", [(), ("problem",), ("problem", "clauses"), ("transfers",)])
def test_unknown_field_is_refused(path):
    """A document with an unknown field is refused."""
    document = _document()
    parent, key = _at(document, (*path, "surprise"))
    parent[key] = 1
    with pytest.raises(FormatError, match="file_digest"):
        load_schedule(document)


def _without_links(document):
    del document["transfers"]["link"]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (_without_links, r"^s\.json: found inconsistent values: 'link'"),
        (lambda document: document["transfers"]["end"].append(99), "differ in length"),
        (
            lambda document: document["problem"]["topology"]["links"][0].update(dsts=[9]),
            r"^s\.json: .*rank 9 does not exist",
        ),
    ],
    ids=["a missing column", "columns of unequal length", "a problem that cannot be"],
)
def test_a_document_that_makes_no_schedule_is_refused(edit, message):
    """If the content is invalid but the digest right, the message names file and field."""
    document = _document()
    edit(document)
    with pytest.raises(FormatError, match=message):
        load_schedule(_sealed(document), where="s.json")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("transfers", "start", 0), 1),
        (("problem", "topology", "links", 0, "beta_us_per_mb"), "3"),
        (("producer",), "someone else"),
        (("problem", "clauses", "where", "merging"), "b.toml: merging"),
        (("notes", "problem", 0), "not padded"),
        (("result", "gap"), 0.0),
        (("result", "stages", 0, "seconds"), 9),
    ],
    ids=lambda value: str(value),
)
def test_any_edit_is_refused(path, value):
    """Any edit of a saved file is refused, as its digest covers also what `Schedule.digest` omits. The
    message gives a remedy."""
    extra = {"gap": 0.5, "bound_us": 1.0, "stages": [{"seconds": 1}]}
    document = json.loads(json.dumps(dump_schedule(_schedule(), extra=extra)))
    parent, key = _at(document, path)
    parent[key] = value
    with pytest.raises(FormatError, match=r"file_digest: .*was edited after it was saved; save"):
        load_schedule(document)


@pytest.mark.parametrize("reduce", [None, 1, np.array([True, False])], ids=str)
def test_a_bare_schedule_is_saved_without_derived_columns(reduce, monkeypatch, tmp_path):
    """A schedule above the size limit is saved without derived columns. The loaded schedule equals it, and
    lacks them as well.

    The test lowers the limit, so that two copies exceed it.
    """
    monkeypatch.setattr("taccl.schedule.schedule.MANY", 1)
    columns = np.array([0, 0], np.uint16), np.array([0, 1], np.int32), np.array([0, 9], np.int32)
    schedule = Schedule(load_schedule(_document()).problem, *columns, reduce=reduce)
    save(schedule, tmp_path / "bare.json", extra={})
    document = json.loads((tmp_path / "bare.json").read_text())
    assert document["version"] == 3
    assert document["transfers"].keys() == {"chunk", "link", "start", *["reduce"] * (reduce is not None)}
    found = load(tmp_path / "bare.json")
    assert found == schedule
    assert (found.kept.end, found.kept.group) == (None, None)
    assert found.reduce.tolist() == schedule.reduce.tolist()


@pytest.mark.parametrize("version", [1, 4, "2", None, True, 2.0])
def test_other_version_is_refused(version):
    """Schedule files of other versions than 2 and 3 are refused."""
    document = {**_document(), "version": version}
    with pytest.raises(FormatError, match="reads versions 2 and 3"):
        load_schedule(document)


@pytest.mark.parametrize("value", ["tiny", [0.1], {}])
@pytest.mark.parametrize("name", ["gap", "bound_us"])
def test_result_has_numbers(name, value):
    """Fields that `show` prints as numbers must be numbers."""
    with pytest.raises(FormatError, match="bound_us and gap of a result are numbers"):
        load_schedule(_sealed(_document() | {"result": {name: value}}))


def test_layout_of_the_file_does_not_matter(tmp_path):
    """Layout and field order of a file do not matter."""
    save(_schedule(), tmp_path / "s.json", extra={"gap": 0.1 + 0.2, "stages": []})
    document = read_document(tmp_path / "s.json")
    (tmp_path / "t.json").write_text(json.dumps(dict(reversed(document.items())), indent=3))
    assert load(tmp_path / "t.json") == _schedule()


@pytest.mark.parametrize("document", [[], 3, "text", None, {}, {"format": "another"}])
def test_other_documents_are_refused(document):
    """JSON that is not a schedule document is refused as such before its fields are checked."""
    with pytest.raises(FormatError, match="expected the file of a schedule"):
        load_schedule(document)


@pytest.mark.slow
def test_file_cut_short_at_any_byte_is_refused(tmp_path):
    """A file cut at any byte is refused."""
    path = tmp_path / "s.json"
    save(_schedule(), path)
    whole = path.read_bytes()
    for length in range(0, len(whole) - 2, 37):
        path.write_bytes(whole[:length])
        with pytest.raises(FormatError, match=r"s\.json: "):
            load(path)


@pytest.mark.parametrize(
    "content",
    [b"", b" \n", b"\x00\x01\x02", b"\xff\xfe{}", b"\x89PNG\r\n", b"{", b"nul", b'{"format": NaN}',
     b"[" * 100_000, b'{"version": ' + b"9" * 5000 + b"}", b"<xml/>"],
    ids=["empty", "blank", "NUL", "UTF-16", "image", "cut", "word", "NaN", "deep", "long number", "XML"],
)  # fmt: skip
def test_file_that_is_no_schedule_is_refused(tmp_path, content):
    """Empty, binary and broken files are a `FormatError` that names the file."""
    path = tmp_path / "s.json"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=r"s\.json: "):
        load(path)


def test_huge_file_is_refused_at_once(tmp_path):
    """A (sparse) file of more than 1 GB is refused without being read."""
    path = tmp_path / "s.json"
    path.write_bytes(b"{" + b" " * (1 << 20))
    os.truncate(path, 10**9 + 1)
    with pytest.raises(FormatError, match="larger than 1GB"):
        load(path)


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_existing_file_is_replaced_when_asked(tmp_path, overwrite):
    """Without `overwrite` an existing file stays; no draft remains in either case."""
    path = tmp_path / "s.json"
    path.write_text("mine")
    if overwrite:
        save(_schedule(), path, overwrite=True)
        assert load(path) == _schedule()
    else:
        with pytest.raises(InputError, match=r"--overwrite \(overwrite=True\)"):
            save(_schedule(), path)
        assert path.read_text() == "mine"
    assert os.listdir(tmp_path) == ["s.json"]
