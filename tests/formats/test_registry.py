"""The table of formats: recognised by content and ending, read, written and converted."""

import contextlib
import inspect
import json
import warnings
from pkgutil import resolve_name

import pytest

import taccl
from taccl import collectives
from taccl._internal.file_kinds import kind_of_bytes, kinds_in, kinds_of_text
from taccl.errors import ExportError, FormatError, InputError, LossyConversionWarning, TacclError
from taccl.formats import registry as module
from taccl.formats.detection import format_named, format_of_content, format_of_name
from taccl.formats.registry import convert, options_of, read, write
from taccl.formats.table import CONVERSIONS, FORMATS, KINDS, FileFormat
from taccl.problem.making import make_problem
from tests.effort import brief_synthesis, cpu_s, first_schedule
from tests.foreign import OURS, foreign_files

NAMES = [each.name for each in FORMATS]
#: Formats of schedules that are written without any package beyond those that taccl needs.
WRITTEN = [each.name for each in FORMATS if each.dump and each.holds == "schedule" and each.name != "parquet"]


@pytest.fixture
def schedule():
    """Schedule of a ring of 4 ranks, whose 4 chunks take 0.52 us per hop."""
    problem = make_problem(taccl.topologies.ring(4), collectives.allgather(4), size_bytes=4000)
    return taccl.baselines.ring(problem)


@pytest.fixture
def written(name, schedule):
    """A schedule that the format can hold: one with in-network sums for a switch job, else the usual one."""
    if name != "switch-job":
        return schedule
    problem = make_problem(taccl.topologies.in_network(4), "allreduce", size_bytes=40_000)
    return taccl.baselines.in_network(problem)


@pytest.fixture
def saved(tmp_path, schedule):
    """Path of a schedule in taccl's own format, whose file name has another ending."""
    path = tmp_path / "schedule.txt"
    taccl.save(schedule, path)
    return path


@pytest.fixture
def quiet():
    """Suppress warnings of losses, which other tests cover."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LossyConversionWarning)
        yield


def test_functions_of_the_table_are_there():
    """Readers have `path` as first parameter, writers as second or not at all; writers have no `overwrite`."""
    for each in FORMATS:
        assert each.load or each.dump
        if each.load:
            assert next(iter(inspect.signature(resolve_name(each.load)).parameters)) == "path"
        if each.dump:
            names = list(inspect.signature(resolve_name(each.dump)).parameters)
            assert ("path" in names[1:2]) == ("path" in names)
            assert "overwrite" not in names


def test_classes_named_in_the_table_exist():
    """Kinds of formats and conversions name existing classes."""
    assert {each.holds for each in FORMATS if each.dump} <= set(KINDS)
    assert {kind for way in CONVERSIONS for kind in way} <= set(KINDS)
    assert all(callable(resolve_name(name)) for name in (*KINDS.values(), *CONVERSIONS.values()))


ODD_OPTIONS = [
    (each.name, name)
    for each in FORMATS
    for end in filter(None, (each.load, each.dump))
    for name in options_of(resolve_name(end))
]


@pytest.mark.parametrize(("name", "option"), ODD_OPTIONS)
def test_odd_options_are_bad_input(name, option, tmp_path, schedule, quiet):
    """An invalid option, as `--set` may pass it, is refused in one sentence, without a Python error."""
    each = format_named(name)
    folder = next((folder for folder, known in FOLDERS if known == name), None)
    odd = ("0x", -3, object())
    if each.load and option in options_of(resolve_name(each.load)):
        path = tmp_path / "probe.json"
        if folder is not None:
            path = next(iter(foreign_files(f"{folder}/*"))).values[0]
        else:
            taccl.Probe(("a", "b"), [[0, 1], [1, 0]]).save(path)
        for value in odd:
            with contextlib.suppress(TacclError):
                read(path, format=name, **{option: value})
        return
    for number, value in enumerate(odd):
        with contextlib.suppress(TacclError):
            write(schedule, tmp_path / str(number), format=name, **{option: value})


def test_names_are_unique():
    """No two formats share a name, regardless of case and dashes."""
    assert len({name.replace("-", "") for name in NAMES}) == len(NAMES)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("x.json", "taccl-schedule"),
        ("x.trace.json", "perfetto"),
        ("x.Perfetto.JSON", "perfetto"),
        ("dir.csv/x.et", "chakra"),
        ("x.csv", "csv"),
    ],
)
def test_ending_determines_the_format(name, expected):
    """The longest matching ending decides, regardless of case."""
    assert format_of_name(name).name == expected


@pytest.mark.parametrize(
    ("ending", "expected"), [("json", "taccl-topology-json"), ("toml", "taccl-topology")]
)
def test_ending_and_object_determine_the_format(ending, expected, tmp_path):
    """Formats that share an ending differ in the objects that they hold: a topology is written as JSON, too."""
    source, target = OURS / "nvidia-smi" / "square.txt", tmp_path / f"t.{ending}"
    done = convert(source, target, pcie_gb_per_s=12)
    assert done.target.name == expected
    assert taccl.topologies.load(target).links == taccl.topologies.load(source, pcie_gb_per_s=12).links
    (path,) = write(taccl.topologies.load(source), tmp_path / f"u.{ending}")
    assert taccl.load(path).num_ranks == 4


def test_unknown_ending_is_refused():
    """The error for an unknown file ending lists the endings that identify a format."""
    with pytest.raises(InputError, match=r"\.csv.*\.et") as caught:
        format_of_name("x.docx")
    assert caught.value.where == "x.docx"


@pytest.mark.slow
@pytest.mark.parametrize("text", ["<!---->" * 2000, "<!--" * 3000, "GPU" + " " * 9000, "\x1b[" + "0;" * 5000])
def test_telling_a_format_takes_no_time(tmp_path, text):
    """Text that resembles a format is refused in linear time, as other text is, without backtracking."""
    path, other = tmp_path / "file", tmp_path / "other"
    path.write_text(text)
    other.write_text("words " * (len(text) // 6))

    def refused(path):
        with pytest.raises(FormatError):
            format_of_content(path)

    assert cpu_s(lambda: refused(path)) < 100 * cpu_s(lambda: refused(other))


@pytest.mark.parametrize("name", WRITTEN)
def test_every_format_is_written(tmp_path, written, quiet, name):
    """A format given by name is written to any path, and the returned paths exist."""
    paths = write(written, tmp_path / "file", format=name)
    assert paths
    assert all(path.stat().st_size for path in paths)


@pytest.mark.parametrize(
    "name", [*WRITTEN, *(each.name for each in FORMATS if each.dump and each.holds == "program")]
)
def test_every_written_file_is_recognised(tmp_path, written, quiet, name):
    """Each written file has the marks of its format: fields, first lines, or first bytes."""
    row = next(each for each in FORMATS if each.name == name)
    for path in write(written, tmp_path / "file", format=name):
        content = path.read_bytes()
        if row.fields:
            assert kinds_in(json.loads(content))[0] == row.kind_of_file
        elif row.begins:
            assert kinds_of_text(content.decode()) == [row.kind_of_file]
        else:
            assert kind_of_bytes(content) == row.kind_of_file


@pytest.mark.parametrize("name", WRITTEN)
def test_nothing_is_replaced_unasked(tmp_path, written, quiet, name):
    """A second write is refused unless `overwrite` is given, and then writes the same bytes."""
    paths = write(written, tmp_path / "file", format=name)
    before = [path.read_bytes() for path in paths]
    with pytest.raises(InputError, match="exists"):
        write(written, tmp_path / "file", format=name)
    write(written, tmp_path / "file", format=name, overwrite=True)
    assert [path.read_bytes() for path in paths] == before
    assert sorted(tmp_path.iterdir()) == sorted(paths)


@pytest.mark.parametrize("name", [each.name for each in FORMATS if each.load and each.name in WRITTEN])
def test_what_is_written_is_read(tmp_path, schedule, quiet, name):
    """Formats with a reader and a writer keep every transfer and its time."""
    write(schedule, tmp_path / "file", format=name)
    # The published tool stores integer tenths of a unit, so 1.04 us need a unit of 0.1 us.
    options = {"time_unit_us": "0.1"} if name == "upstream-algorithm" else {}
    back = read(tmp_path / "file", **options)
    assert back.finish == schedule.finish
    assert back.num_transfers == schedule.num_transfers


def test_extension_tells_write_the_format(tmp_path, schedule):
    """Without a format argument the file ending decides."""
    write(schedule, tmp_path / "x.csv")
    assert format_of_content(tmp_path / "x.csv").name == "csv"


def test_simulation_is_the_schedule_that_it_makes(tmp_path, schedule):
    """A simulation is written as its schedule; with several tiles it is refused."""
    write(taccl.simulate(schedule, size="8KB"), tmp_path / "x.csv")
    # A send takes 0.5 us, and 0.04 us for 2000 bytes at 20 us per MB.
    assert "0.54" in (tmp_path / "x.csv").read_text()
    with pytest.raises(InputError, match="tile"):
        write(taccl.simulate(schedule, tiles=3), tmp_path / "x.trace.json")


def test_a_result_is_written_as_its_schedule(tmp_path, schedule):
    """Of a result of a search, the schedule is written."""
    result = brief_synthesis(schedule.problem)
    write(result, tmp_path / "x.csv")
    write(result.schedule, tmp_path / "y.csv")
    assert (tmp_path / "x.csv").read_text() == (tmp_path / "y.csv").read_text()


def test_other_things_are_refused(tmp_path, schedule):
    """A problem or topology is refused for a table of transfers, and other objects for any file."""
    with pytest.raises(InputError, match="found 3; expected a schedule or an implicit schedule or a sim"):
        write(3, tmp_path / "x.csv")
    with pytest.raises(InputError, match="found csv, which cannot hold a problem"):
        write(schedule.problem, tmp_path / "x.csv")
    with pytest.raises(
        InputError, match="found csv, which cannot hold a topology; expected one of taccl-topology"
    ):
        write(schedule.problem.topology, tmp_path / "x.csv")


FOLDERS = [
    ("msccl-xml", "msccl-xml"), ("nccl-topo", "nccl-topology"), ("nvidia-smi", "nvidia-smi"),
    ("astra-sim", "astra-sim-network"), ("upstream-taccl/algorithm", "upstream-algorithm"),
    ("pair-matrix", "pair-matrix"), ("slurm", "slurm-topology"),
    ("ibnetdiscover", "ibnetdiscover"),
]  # fmt: skip


def test_every_reader_of_others_has_files_of_ours():
    """Each reader of another tool's format is tested with our own files."""
    assert {name for _, name in FOLDERS} == {
        each.name for each in FORMATS if each.load and not each.name.startswith("taccl-")
    }
    assert all(any((OURS / folder).iterdir()) for folder, _ in FOLDERS)


@pytest.mark.parametrize(("folder", "name"), FOLDERS)
def test_files_of_others_are_distinguished(folder, name):
    """Every file is recognised by content, under any name."""
    files = [each.values[0] for each in foreign_files(f"{folder}/*")]
    assert files
    assert [format_of_content(path).name for path in files] == [name] * len(files)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'<graphs version="1"></graphs>', "found a graph dump of NCCL"),
        ("GPU0 GPU1 CPU Affinity".encode("utf-16"), "found UTF-16 text"),
        (b'schema = 1\nmachine = "dgx2"\n', "found a file in taccl's own format, which takes no nodes"),
    ],
)
def test_arguments_for_a_file_that_takes_none(tmp_path, content, message):
    """A file that is no topology is named as it is without arguments; one of taccl's own takes none."""
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(TacclError, match=message):
        taccl.topologies.load(path, nodes=2, rails=True)


def test_programs_are_lowered_on_the_way(tmp_path, schedule):
    """Options reach both lowering and writer, and the file read back is a program."""
    write(schedule, tmp_path / "x.xml", instances=2, max_bytes=2**20)
    text = (tmp_path / "x.xml").read_text()
    assert 'maxBytes="1048576"' in text
    assert read(tmp_path / "x.xml").num_ranks == 4


@pytest.mark.parametrize(
    ("name", "message"), [("perfeto", "did you mean 'perfetto'"), ("upstream_Algorithm", None)]
)
def test_formats_are_named_as_people_type(name, message):
    """Case and dashes do not matter, and a misspelling gets a suggestion."""
    if message is None:
        assert format_named(name).name == "upstream-algorithm"
    else:
        with pytest.raises(InputError, match=message):
            format_named(name)


def test_unknown_options_are_refused(tmp_path, schedule):
    """The error for an option that the format's writer lacks names it, and lists the writer's options."""
    with pytest.raises(InputError, match=r"no option 'time_unit'.*time_unit_us"):
        write(schedule, tmp_path / "x", format="upstream-algorithm", time_unit=1)
    assert not list(tmp_path.iterdir())


def test_options_reach_the_writer(tmp_path, schedule, quiet):
    """Options of `write` reach the format's writer: here the unit of times, 1/100 us.

    The file states starts in tenths of this unit, so 0.52 us are 520.
    """
    write(schedule, tmp_path / "x", format="upstream-algorithm", time_unit_us="1/100")
    document = json.loads((tmp_path / "x").read_text())
    assert document["steps"][1]["sends"][0][3] == 520


def test_formats_that_are_only_written_are_not_read(tmp_path, schedule):
    """The error for reading a write-only format says so and names an alternative."""
    write(schedule, tmp_path / "x.csv")
    with pytest.raises(InputError, match="found a table of transfers; the format is write-only"):
        read(tmp_path / "x.csv")


def test_convert_there_and_back(tmp_path, saved, schedule):
    """A schedule converted to the published tool's format and back has the same times."""
    with pytest.warns(LossyConversionWarning, match="size of a chunk") as warned:
        there = convert(saved, tmp_path / "there", to="upstream-algorithm")
    assert warned[0].filename == __file__  # and no line of taccl's own
    assert (there.source.name, there.target.name) == ("taccl-schedule", "upstream-algorithm")
    unit = {"time_unit_us": "0.1"}
    convert(tmp_path / "there", tmp_path / "back.json", load_options=unit, chunk_size=1000)
    back = taccl.load(tmp_path / "back.json")
    assert back.finish == schedule.finish
    assert back.problem.size_bytes == 4000


def test_convert_says_what_a_view_leaves_out(tmp_path, saved):
    """A warning says that a table of transfers is not a schedule."""
    with pytest.warns(LossyConversionWarning, match="the collective and the sketch") as warned:
        convert(saved, tmp_path / "x.csv")
    assert warned[0].filename == __file__


@pytest.mark.parametrize(("name", "update"), [("msccl-xml", 0), ("msccl-xml", 2), ("mscclpp", 2)])
def test_files_for_runtimes_lack_updates_by_servers(tmp_path, name, update):
    """A warning says that a runtime does not update the sums of an exchange, if their update takes time."""
    exchange = collectives.exchange(range(2), range(2), chunks_per_server=1, update_us_per_mb=update)
    problem = make_problem(taccl.topologies.fully_connected(2), exchange, chunk_bytes=1024)
    found = taccl.baselines.baseline("servers", problem)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", LossyConversionWarning)
        write(taccl.lower(found), tmp_path / "file", format=name)
    assert [str(each.message).endswith("passed on as they are") for each in caught] == [True] * bool(update)


def test_convert_without_loss_is_silent(tmp_path, saved, schedule):
    """Conversion from taccl's own format to itself gives no warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", LossyConversionWarning)
        convert(saved, tmp_path / "copy.json")
    assert taccl.load(tmp_path / "copy.json") == schedule


@pytest.mark.parametrize(("chunks_per_rank", "notes"), [(6, 1), (4, 0)])
@pytest.mark.parametrize("name", ["msccl-xml", "mscclpp"])
def test_convert_says_that_files_leave_out_powers_of_two(tmp_path, quiet, chunks_per_rank, notes, name):
    """A note says that data whose size is a power of two cannot be cut into 12 chunks; 8 give no note."""
    collective = taccl.collectives.allgather(2, chunks_per_rank=chunks_per_rank)
    problem = taccl.make_problem(taccl.topologies.ring(2), collective, size_bytes=96_000)
    taccl.save(taccl.baselines.best(problem), tmp_path / "s.json")
    found = convert(tmp_path / "s.json", tmp_path / "p", to=name).notes
    assert sum("divide into 12 chunks, so no powers of two" in each for each in found) == notes


def test_convert_refuses_before_it_reads(tmp_path, saved, monkeypatch):
    """An existing target or an unknown option is refused before the file is read."""

    def too_late(*_, **__):
        raise AssertionError("the work began")

    monkeypatch.setattr(module, "read", too_late)
    with pytest.raises(InputError, match="exists"):
        convert(saved, saved, to="csv")
    with pytest.raises(InputError, match="neither taccl-schedule nor csv has an option 'colour'; there"):
        convert(saved, tmp_path / "x.csv", colour="red")
    with pytest.raises(InputError, match="^load_options: neither taccl-schedule nor csv has an option 'x'"):
        convert(saved, tmp_path / "x.csv", load_options={"x": "y"})


def test_an_option_of_the_writer_is_none_of_the_reader(schedule, tmp_path):
    """If a reader is given an option that only the writer has, the error says that the reader lacks it."""
    taccl.save(schedule, tmp_path / "s.json")
    with pytest.raises(InputError, match="taccl-schedule has no option 'split'; there are none"):
        convert(tmp_path / "s.json", tmp_path / "s.xml", load_options={"split": True})
    assert not (tmp_path / "s.xml").exists()


def test_failed_conversion_leaves_nothing(tmp_path, schedule):
    """If a format cannot hold the schedule, no file is written."""
    problem = make_problem(taccl.topologies.ring(4), collectives.scan(4), chunk_bytes=1000)
    scan = first_schedule(problem)
    taccl.save(scan, tmp_path / "scan.json")
    with pytest.raises(ExportError, match="scan"):
        convert(tmp_path / "scan.json", tmp_path / "x", to="upstream-algorithm")
    assert [path.name for path in tmp_path.iterdir()] == ["scan.json"]


def test_format_more_is_an_entry_more(tmp_path, saved, monkeypatch):
    """A new format of a new kind is refused for schedules, and accepted once a conversion is added."""
    entry = FileFormat(
        "finish", "number", "the finish in text", (".finish",), dump=f"{__name__}:_dump_number"
    )
    with with_format(entry):
        with pytest.raises(InputError, match="found finish, which cannot hold a schedule"):
            convert(saved, tmp_path / "x.finish")
        monkeypatch.setitem(module.CONVERSIONS, ("schedule", "number"), f"{__name__}:_number_of")
        convert(saved, tmp_path / "x.finish", digits=1, unit="microseconds")
    assert (tmp_path / "x.finish").read_text() == "1.0 microseconds"


@contextlib.contextmanager
def with_format(entry):
    """The table of formats with one more row."""
    FORMATS.append(entry)
    try:
        yield
    finally:
        FORMATS.remove(entry)


def _number_of(schedule, *, digits=3):
    return round(schedule.finish_us, digits)


def _dump_number(number, *, unit="us"):
    return f"{number} {unit}"


def test_a_table_in_parquet_is_named(tmp_path):
    """A table that taccl wrote in Parquet is no database; the message names the file to give instead."""
    path = tmp_path / "file"
    path.write_bytes(b"PAR1\x00\xff")
    with pytest.raises(InputError, match="found a table in Parquet; .* give the schedule that"):
        read(path)


@pytest.mark.parametrize("name", [each.name for each in FORMATS if each.dump and not each.load])
def test_formats_that_are_only_written_say_so(name, tmp_path):
    """For a file of a write-only format, such as Parquet, the message gives no advice to read it."""
    path = tmp_path / "file"
    path.write_bytes(b"PAR1\x00\xff")
    with pytest.raises(InputError, match=f"{name} .* is write-only"):
        read(path, format=name)


@pytest.mark.slow
def test_a_copy_of_a_schedule_keeps_the_record_of_its_search(tmp_path):
    """A file of a result, converted to taccl's own format, has the same stages, trace, bound and gap."""
    problem = make_problem(taccl.topologies.ring(4), collectives.allgather(4), size_bytes=4000)
    taccl.save(brief_synthesis(problem), tmp_path / "first.json")
    convert(tmp_path / "first.json", tmp_path / "copy.json")
    first, copy = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("first", "copy"))
    assert first["result"]["stages"]
    assert copy["result"] == first["result"]
