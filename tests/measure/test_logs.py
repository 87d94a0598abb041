"""Logs as users paste them: prefixes, several runs, missing columns, other tools."""

import json
import textwrap

import pytest

from taccl.errors import FormatError
from taccl.measure import logs
from taccl.measure.logs import read_log
from taccl.measure.series import WRONG
from tests.effort import cpu_s
from tests.measure.logs import HEAD, SIZES, old_table, row, table, time_us


@pytest.fixture
def read(tmp_path):
    """Read a text as a log."""

    def read_text(text, name="a.log", **given):
        (tmp_path / name).write_text(text)
        return read_log(tmp_path / name, **given)

    return read_text


@pytest.mark.parametrize("prefix", [
    "", "0: ", "[1,0]<stdout>:", "node-3: ", "    ", "> ", "2026-01-02T03:04:05.678Z ", "\x1b[32m", "pod/x | ",
])  # fmt: skip
def test_prefixes_are_passed_over(read, prefix):
    """Prefixes of launchers are ignored."""
    (found,) = read(table(prefix=prefix)).series
    assert found.size_bytes == SIZES
    assert found.times_us[0] == pytest.approx(time_us(8), abs=0.01)


@pytest.mark.parametrize("form", [
    '{{"log":"{}\\n","stream":"stdout","time":"2026-01-02T03:04:05Z"}}', '{{"message": "{}"}}', '  "{}\\n",', '"{}",',
])  # fmt: skip
def test_lines_that_a_logger_stores_in_json_are_read(read, form):
    """Lines of JSON, as containers, log services and notebooks store them, are read as the text they hold."""
    text = "#  Rank  0 Group  0 Pid 7 on host0 device  0 [0x00] NVIDIA H100 80GB HBM3\n" + table()
    lines = [line.replace('"', r"\"") for line in text.splitlines()]
    log = read("".join(f"{form.format(line)}\n" for line in lines))
    assert log.series == read(text).series
    assert log.gpus == {"NVIDIA H100 80GB HBM3"}


def test_a_log_within_one_string_is_read(read):
    """A program may write the whole log as one string, in JSON or as Python prints bytes."""
    text = json.dumps({"level": "info", "output": table()})
    for each in (f"starting\n{text}\ndone\n", f"{table().encode()}\n"):
        assert read(each).series[0].times_us == read(table()).series[0].times_us


def test_text_of_web_pages_is_read(read):
    """No-break spaces are spaces, also in names of GPUs and in lines of NCCL_DEBUG=INFO."""
    text = (
        "#  Rank  0 Group  0 Pid 7 on host0 device  0 [0x00] Tesla V100\nn: NCCL INFO Using network Socket\n"
    )
    log = read((text + table()).replace(" ", "\u00a0"))
    assert (log.gpus, log.debug.network) == ({"Tesla V100"}, "sockets")
    assert log.series == read(text + table()).series


def test_sizes_with_underscores_are_read(read):
    """Sizes may have underscores between thousands, as programs in Python print them."""
    text = "# all_reduce_perf\n  size    time   algbw   busbw\n   (B)    (us)  (GB/s)  (GB/s)\n"
    (series,) = read(f"{text}  1_024  10.0  0.10  0.18\n  67_108_864  671.1  100.00  175.00\n").series
    assert (series.size_bytes, series.num_ranks) == ((1024, 2**26), 8)


def test_numbers_of_other_locales_are_read(read):
    """Decimal commas, or commas between thousands, keep each figure whole."""
    row = "  67108864  16777216  float  sum  -1  1234.5  54.36  95.13  0  1234.5  54.36  95.13  0\n"
    plain = read(f"# all_reduce_perf\n{row}").series
    for text in (row.replace(".", ","), row.replace("67108864  16777216", "67,108,864  16,777,216")):
        assert [each.times_us for each in read(f"# all_reduce_perf\n{text}").series] == [(1234.5,)]
        assert read(f"# all_reduce_perf\n{text}").series == plain
    assert read("# all_reduce_perf\n" + ",".join(row.split()) + "\n").series == plain


@pytest.mark.parametrize("width", [60, 73, 91])
@pytest.mark.parametrize("is_cut_in_words", [True, False], ids=["terminal", "mail"])
def test_broken_lines_are_joined(read, width, is_cut_in_words):
    """A terminal or a mail that breaks rows loses no row, and changes no figure."""
    whole = table()
    broken = [
        part.rstrip()
        for line in whole.splitlines()
        for part in (
            [line[at : at + width] for at in range(0, len(line), width)]
            if is_cut_in_words
            else textwrap.wrap(line, width, break_long_words=False)
        )
    ]
    found = read("\n".join(broken))
    assert found.series[0].times_us == read(whole).series[0].times_us
    assert (found.series[0].collective, found.left_out, found.notes) == ("allreduce", (), ())


@pytest.mark.parametrize("below", ["-" * 90, "+-----+-----+", "7", "1.5 2.5"])
def test_lines_below_whole_rows_are_not_joined(read, below):
    """Lines of a table and numbers that another program prints below each row are no part of it."""
    whole = table()
    lines = [f"{line}\n{below}" if "float" in line else line for line in whole.splitlines()]
    found = read("\n".join([*lines, "# done"]))
    assert (found.series, found.left_out, found.notes) == (read(whole).series, (), ())


@pytest.mark.parametrize("end", ["sum  -1", "sum"])
def test_debug_output_within_rows_is_removed(read, end):
    """A row of which NCCL_DEBUG prints its own lines between the parts is read as a whole.

    Old versions of nccl-tests print no root behind the reduction.
    """
    debug = "n1-a:77:78 [1] NCCL INFO AllReduce: opCount 1 count 8388608"
    rows = [f"  {size}  {size // 4}  float  {end}" for size in (8388608, 16777216)]
    figures = ["  83.89  100.00  175.00  0", "  167.8  100.00  175.00  0"]
    parts = [
        f"{row}{debug}\n{debug}\n{each}{debug}\n{debug}\n{each}"
        for row, each in zip(rows, figures, strict=True)
    ]
    found = read("\n".join(["# all_reduce_perf", HEAD, debug, *parts, "# done"]))
    assert (found.series[0].times_us, found.left_out) == ((83.89, 167.8), ())


def test_a_row_in_which_a_test_times_out_is_read(read):
    """The measured half of a row keeps its time if the other half hangs, and a note says that rows are missing."""
    row = "  67108864  16777216  float  sum  -1  400.0  167.77  293.60  0"
    found = read(
        f"# all_reduce_perf\n{HEAD}\n{row}n1-a: Test timeout (1000s) common.cu:555\n .. n1-a pid 7\n"
    )
    assert (found.series[0].times_us, found.left_out) == ((400.0,), ())
    assert any("Test timeout" in note for note in found.notes)


def test_two_rows_on_a_line_are_left_out(read):
    """Two logs side by side are not one row of more figures."""
    row = "  67108864  16777216  float  sum  -1  1234.5  54.36  95.13  0  1234.5  54.36  95.13  0"
    found = read(f"# all_reduce_perf\n{row}\n{row.replace('67108864', '99999999')}  |  {row}\n")
    assert found.series[0].size_bytes == (67108864,)
    assert found.left_out == (
        "line 3: found several rows on one line; write each on a line, or give each log as a file",
    )
    assert not any("wrong" in note for note in found.notes)


def test_bytes_that_are_no_text_are_passed_over(tmp_path):
    """A log with a degree sign in Latin-1, or cut within a character, is read, and a note says so."""
    path = tmp_path / "a.log"
    path.write_bytes(b"45 \xb0C\n" + table().encode() + "✓".encode()[:2])
    found = read_log(path)
    assert found.series[0].size_bytes == SIZES
    assert found.notes == ("the file has bytes that are not UTF-8 text, which are passed over",)


def test_html_of_a_page_is_removed(read):
    """A log keeps its rows and its header if a page adds tags and character references."""
    text = f"[1,0]<stdout>: # all_reduce_perf\n{table()}"
    escaped = text.replace("<", "&lt;").replace(">", "&gt;").replace(" ", "&nbsp;")
    assert read(f"<pre><code>{escaped}</code></pre>").series == read(text).series


@pytest.mark.parametrize("label", ["[0]", "[1,0]<stdout>:"])
def test_labels_within_a_row_are_passed_over(read, label):
    """Labels that a launcher puts before each part of a row are ignored."""
    text = "L # all_reduce_perf\nL  1000000 250000 float sum -1L 10.0 100.00 175.00 0L 20.0 50.00 87.50 0\n"
    for in_place, time in ((False, 10.0), (True, 20.0)):
        assert read(text.replace("L", label), in_place=in_place).series[0].times_us == (time,)


def test_the_gpus_of_a_process_are_read(read):
    """The header states the number of GPUs whose kernels a process launches; it is 0 without a header."""
    head = "# nThread 1 nGpus 8 minBytes 8 maxBytes 64\n"
    assert [read(text + table()).series[0].ranks_per_process for text in (head, "")] == [8, 0]


@pytest.mark.parametrize(("pids", "told"), [((7, 7), (1, 0)), ((7, 8), (1, 1)), (("", ""), (1, 1))])
def test_a_header_that_contradicts_the_list_of_devices_is_doubtful(read, pids, told):
    """A header of one GPU per process is doubtful if several ranks of a host list the same process.

    `told` is the number as stated, and the number for predictions: 0 if doubtful.
    """
    device = "#  Rank  {} Group  0 {} on host0 device  {} [0x00] Tesla V100-SXM2-16GB\n"
    head = "".join(device.format(i, f"Pid {pid}" if pid else "", i) for i, pid in enumerate(pids))
    (series,) = read(f"# nThread 1 nGpus 1 minBytes 8\n{head}{table()}").series
    assert (series.ranks_per_process, series.launched_together) == told
    (series,) = read(f"# nThread 2 nGpus 1 minBytes 8\n{head}{table()}").series
    assert series.launched_together == 1


@pytest.mark.parametrize(("pids", "count"), [((7, 7), 2), ((7, 8), 1), ((1, 1), 0), (("", ""), 0)])
def test_process_numbers_give_the_gpus_per_process(read, pids, count):
    """Without the header, the list of devices tells the GPUs per process, as ranks of a process share its Pid.

    Pid 1 tells nothing, since every container has one.
    """
    device = "#  Rank  {} Group  0 {} on host0 device  {} [0x00] NVIDIA A100-SXM4-80GB\n"
    head = "".join(device.format(i, f"Pid {pid}" if pid else "", i) for i, pid in enumerate(pids))
    assert read(head + table()).series[0].ranks_per_process == count


@pytest.mark.parametrize(
    ("text", "collective", "ranks", "sizes", "times"),
    [
        # Bars between cells, as on web pages, and a cut last row are ignored.
        (
            "# all_reduce_perf\n"
            + "".join(f"| {' | '.join(row(size, time_us(size)).split())} |\n" for size in SIZES)
            + "| 17179869184 | 42949",
            "allreduce",
            8,
            SIZES,
            None,
        ),
        # OSU prints a time per size, without the number of ranks.
        (
            "# OSU MPI Allreduce Latency Test v7.1\n# Size  Avg Latency(us)\n4  5.1\n8  5.2\n",
            "allreduce",
            0,
            (4, 8),
            (5.1, 5.2),
        ),
        # Old versions print neither root nor wrong elements: the consistent interpretation is used.
        (
            "# all_gather_perf\n 1000000 250000 float 10.0 100.00 87.50 10.0 100.00 87.50\n",
            "allgather",
            8,
            (10**6,),
            (10.0,),
        ),
        # busbw / algbw of an allreduce is 2 (n - 1) / n: 1.875 means 16 ranks, even without a device list.
        (table(ranks=16), "allreduce", 16, SIZES, None),
    ],
    ids=["a web page", "OSU", "an old version", "ranks by bandwidths"],
)
def test_tables_are_read(read, text, collective, ranks, sizes, times):
    """Each table gives a series, with ranks if stated."""
    (found,) = read(text).series
    assert (found.collective, found.num_ranks, found.num_nodes) == (collective, ranks, 0)
    assert found.size_bytes == sizes
    assert times is None or found.times_us == times


def test_hosts_are_counted(read):
    """The table of two ranks on two hosts is read as one of two nodes."""
    devices = "".join(f"#  Rank  {r} Group 0 Pid 1 on host{r} device  0 [0000:05:00] A GPU\n" for r in (0, 1))
    log = read(f"# Using devices\n{devices}" + table(ranks=2))
    assert [(each.num_ranks, each.num_nodes) for each in log.series] == [(2, 2)]
    assert log.gpus == {"A GPU"}


def test_runs_of_different_sizes_are_not_reported_as_merged(read):
    """Runs of one size each, as a script makes them, form one series; a second run of a size is noted."""
    runs = [f"# all_reduce_perf nThread 1\n{row(size, 10.0)}\n" for size in (10**6, 10**7)]
    assert read("".join(runs)).notes == ()
    assert len(read("".join([*runs, runs[0]])).notes) == 1


def test_listed_ranks_are_kept_where_bandwidths_are_imprecise(read):
    """The listed 32 ranks are used, although busbw / algbw of 2.14 / 1.10 means 37.

    With 32 ranks, rounding gives the same two figures.
    """
    devices = "".join(f"#  Rank {r:2} Pid 1 on host{r // 8} device {r % 8} [0x1] A GPU\n" for r in range(32))
    text = f"{devices}# all_reduce_perf\n 67108864 16777216 float sum 60819 1.10 2.14 N/A\n"
    assert [(each.num_ranks, each.num_nodes) for each in read(text).series] == [(32, 4)]


def test_times_in_place_are_the_second_ones(read):
    """With `in_place` the in-place times of a row are used."""
    text = table()
    outside, inside = (read(text, in_place=each).series[0].times_us[0] for each in (False, True))
    assert inside == pytest.approx(2 * outside, abs=0.02)


_SUMS = "# all_reduce_perf\n"


def test_times_in_place_stand_in_where_there_are_no_others(read):
    """A row with N/A out of place has its times in place, and a note says so."""
    rows = [f"{8 << p} 2 float sum -1 N/A N/A N/A N/A {20 << p}.0 0.00 0.00 0" for p in range(2)]
    found = read("\n".join(("# all_reduce_perf", *rows)))
    assert found.series[0].times_us == (20, 40)
    assert found.notes == ("times are those in place where the log has no others",)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        # A row of 0 bytes is ignored.
        ("0 0 float none -1 0.25 0.00 0.00 0 0.25 0.00 0.00 0\n" + table(), SIZES),
        # A paste cut after the root column has no time in its last row.
        (table() + "8589934592 2147483648 float sum -1", SIZES),
        # Lines quoted as by a playbook, and remarks after a row, are accepted.
        ("\n".join(f'    "{line}",' for line in table().splitlines()), SIZES),
        (table().replace("\n", "   # slow\n"), SIZES),
        # `8M` is 2**23 bytes, as in -b and -e, unless only 8 million match the bandwidth.
        (f"{_SUMS}8M 2097152 float sum -1 83.89 100.00 175.00 0\n", (2**23,)),
        (f"{_SUMS}8MB 2000000 float sum -1 80.00 100.00 175.00 0\n", (8 * 10**6,)),
    ],
    ids=["nothing is sent", "a cut row", "quoted lines", "remarks", "units", "decimal units"],
)
def test_sizes_of_rows(read, text, sizes):
    """Sizes are read with the units of nccl-tests' options; lines without a complete row are ignored."""
    assert read(text).series[0].size_bytes == sizes


@pytest.mark.parametrize(
    ("text", "times"),
    [
        # An integer time without a root before it is not mistaken for a root.
        (f"{_SUMS} 8000000 2000000 float sum 40 200.00 350.00 0 40 200.00 350.00 0\n", (40.0,)),
        # Several runs of one size, of 10, 30 and 20 us, give their median.
        (
            "".join(f"# all_reduce_perf nThread 1\n{row(10**6, time)}\n" for time in (10.0, 30.0, 20.0)),
            (20.0,),
        ),
    ],
    ids=["no root", "several runs"],
)
def test_times_of_rows(read, text, times):
    """Each size has one time, also if several runs measured it."""
    assert read(text).series[0].times_us == times


@pytest.mark.parametrize("error", ["0e+00", "1e-07", "N/A"])
@pytest.mark.parametrize("latency", [20, 15_000])
@pytest.mark.parametrize("name", ["allreduce", "reduce", "broadcast", "allgather", "reduce-scatter"])
@pytest.mark.parametrize("version", [1, 2])
def test_tables_of_the_first_versions(read, version, name, latency, error):
    """Tables of nccl-tests 1.0 and 2.0 are read, with and without a root, with times in ms and in us.

    Latencies of 15 ms give integer times, and algbw 0.00.
    """
    log = read(old_table(version, name, lambda size: latency + size / 1e5, error=error))
    (series,) = log.series
    assert (series.collective, series.size_bytes) == (name, SIZES[:24])
    expected = [latency + size / 1e5 for size in SIZES[:24]]
    assert series.times_us == pytest.approx(expected, rel=0.006 if version == 1 else 0.0005)
    assert any("in ms" in note for note in log.notes) == (version == 1)
    assert not log.left_out


def test_only_tables_of_the_first_version_are_in_ms(read):
    """The header of a later version ends the tables whose times are in ms; times in place are as exact."""
    text = "".join(old_table(version, "allreduce", lambda _: 40.0) for version in (1, 2))
    log = read(text, in_place=True)
    (series,) = log.series
    assert series.times_us == pytest.approx([40 * 1.03] * 24, rel=0.005)
    assert not log.left_out


#: `_OUT`: cells of a row out of place: 1 MB in 10 us is 100 GB/s, with busbw of 175 GB/s on 8 ranks.
#: `_IN`: cells of the same row in place, where 1 MB takes 20 us.
_OUT, _IN = ("10.0", "100.00", "175.00", "0"), ("20.0", "50.00", "87.50", "0")


@pytest.mark.parametrize(
    ("cells", "after"),
    [
        # nccl-tests with a time stamp, and with the least, the greatest, p99 and spread of iterations.
        ((*_OUT, *_IN), "2026-07-09 12:00:01"),
        ((*_OUT, "9.1", "12.0", "11.9", "3.2", *_IN, "18.1", "22.0", "21.9", "3.3"), ""),
        # rccl-tests with the time of HIP events, and with the algorithm, the protocol and the channels.
        (("10.0", "8.0", *_OUT[1:], "20.0", "18.0", *_IN[1:]), ""),
        ((*_OUT, *_IN), "RING SIMPLE 64"),
        ((*_OUT, *_IN), "TREE LL 4 2026-07-09 12:00:01"),
    ],
    ids=["stamps", "iterations", "HIP events", "algorithms", "both"],
)
def test_more_columns_of_a_row(read, cells, after):
    """Columns that options of nccl-tests and rccl-tests add do not change the times of a row."""
    text = f"# all_reduce_perf\n 1000000 250000 float sum -1 {' '.join(cells)} {after}\n"
    found = [read(text, in_place=each) for each in (False, True)]
    assert [(log.series[0].times_us, log.left_out) for log in found] == [((10.0,), ()), ((20.0,), ())]


def test_times_of_the_cpu_are_not_those_of_the_collective(read):
    """With -C the column of times is CPU time, so times are computed from algbw if it has enough digits."""
    head = HEAD.replace("    time", " cputime")
    rows = ["1000 250 float sum -1 6.0 0.05 0.09 0", f"1000000 250000 float sum -1 6.0 {' '.join(_OUT[1:])}"]
    log = read("\n".join(["# all_reduce_perf", head, *rows]))
    assert (log.series[0].size_bytes, log.series[0].times_us) == ((10**6,), (10.0,))
    assert log.notes == ("times are of the CPU (-C), so they are computed from algbw, at 1 GB/s and more",)


def test_large_numbers_of_wrong_elements_are_reported(read):
    """Numbers of wrong elements of seven digits are printed with an exponent."""
    text = f"# all_reduce_perf\n 1000000 250000 float sum -1 {' '.join(_OUT[:3])} 1.04858e+06\n"
    assert read(text).notes == ("results were wrong at 1 size (#wrong above 0), in bytes: 1000000",)


def test_a_benchmark_without_usable_rows_is_named(read):
    """The error for a benchmark of OSU whose rows are not read names the benchmark."""
    text = "# OSU MPI Non-blocking Allreduce Latency Test v7.2\n# Size Overall(us) Compute(us)\n4 9.1 6.0\n"
    with pytest.raises(
        FormatError, match=r"measurement of 'OSU MPI Non-blocking Allreduce Latency Test v7\.2'"
    ):
        read(text)


def test_tables_of_bandwidths_and_algorithms(read):
    """A column `algo` is not taken for algbw: times are computed from the column of busbw."""
    text = "# all_reduce_perf\nsize\ttype\tbusbw\talgo\n1000000\tfloat\t100.00\tRING\n"
    (found,) = read(text).series
    assert (found.counted, found.times_us) == ("busbw", (10.0,))


def test_rows_that_disagree_are_named_and_left_out(read):
    """A row whose bandwidth (50 GB/s) contradicts 1 MB in 10 us (100) is named and skipped."""
    bad = "1000000 250000 float sum -1 10.0 50.00 87.50 0 10.0 50.00 87.50 0\n"
    log = read(table(sizes=(1024, 2048)) + bad)
    assert log.series[0].size_bytes == (1024, 2048)
    assert len(log.left_out) == 1
    assert log.left_out[0].startswith("line 5: found algbw 50 GB/s; expected 100")


def test_two_per_cent_are_allowed(read):
    """A rounded bandwidth 1.9 % off is accepted, one 3 % off is not."""
    near, far = (f"100000000 1 float sum -1 1000.0 {rate} 175.0 0\n" for rate in ("98.10", "97.00"))
    assert read("# all_reduce_perf\n" + near).series
    with pytest.raises(FormatError, match="line 2: found algbw 97"):
        read("# all_reduce_perf\n" + far)


def test_several_collectives_of_one_file_are_apart(read):
    """If a file has tables of several collectives, headings separate them."""
    other = row(10**6, 10.0, redop="none", factor=0.875)
    log = read(table() + "\n### NCCL All-to-All\n" + other + "\n")
    assert [each.collective for each in log.series] == ["allreduce", "alltoall"]


@pytest.mark.parametrize("time", ["0.00", "-5.0"])
def test_times_must_be_above_0(read, time):
    """A time of 0 or less is an error with file and line."""
    with pytest.raises(FormatError, match=r"a\.log: line 1: found a time of -?[05] us for 8 bytes"):
        read(f"8 2 float sum -1 {time} 0.00 0.00 0 {time} 0.00 0.00 0\n")


def test_texts_without_measurements_are_refused(read):
    """A text without measurements is refused, with the expected formats."""
    with pytest.raises(FormatError, match="found no usable measurement; expected rows of nccl-tests"):
        read("# A page\n\n| 1 | 2 | float |\n8 bytes were sent\n")


def test_files_of_other_kinds_are_refused_before_their_lines_are_read(read, monkeypatch):
    """A schedule, whose single line may be very long, is refused by its fields."""
    monkeypatch.setattr(logs, "rows_without_debug", None)
    with pytest.raises(FormatError, match="found a schedule; expected a log of a benchmark"):
        read(json.dumps({"format": "taccl-schedule", "version": 1, "problem": {}, "transfers": {}}))


def test_unnamed_collectives_are_asked_for(read):
    """A table without a reduction and without a name needs the collective's name."""
    text = row(10**6, 10.0, redop="none", factor=0.875).replace("       0", "     N/A")
    with pytest.raises(FormatError, match="give --collective"):
        read(text)
    assert read(text, collective="alltoall").series[0].collective == "alltoall"
    assert read(text, name="allgather-x2.txt").series[0].collective == "allgather"


def test_perftest_is_a_stream(read):
    """392 Gb/s in a log of perftest are 49 GB/s; sizes with much less bandwidth are dropped."""
    head = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
    (found,) = read(head + " 2 5000 0.2 0.19 11.0\n 8388608 5000 392.1 392.0 0.0058\n").series
    assert (found.streams, found.size_bytes, found.num_nodes) == (True, (8388608,), 2)
    assert found.size_bytes[0] / found.times_us[0] / 1000 == pytest.approx(49.0)


def test_latencies_of_perftest_are_typical_times(read):
    """`ib_write_lat` gives one-way times between two nodes."""
    text = (
        "                    RDMA_Write Latency Test\n"
        " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]\n"
        " 2       1000          1.20           3.00         1.25     \t       1.27\n"
        " 8192    1000          2.50           4.00         2.60     \t       2.61\n"
    )
    (found,) = read(text).series
    assert (found.collective, found.num_ranks, found.streams) == ("point-to-point", 2, False)
    assert found.times_us == (1.25, 2.6)


def test_mscclpp_test_leaves_one_place_empty(read):
    """The header of mscclpp-test has columns for times out of place and in place; its rows have only one
    time.

    Rows are read with or without a check of the result.
    """
    head = (
        "#       size         count     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong\n"
        "#        (B)    (elements)     (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)\n"
    )
    rows = "     1048576        262144    20.00   52.43   91.75       0\n"
    (found,) = read(head + rows, collective="allreduce").series
    assert (found.size_bytes, found.times_us, found.num_ranks) == ((1048576,), (20.0,), 8)


@pytest.mark.parametrize("before", ["> ", "    "])
def test_pasted_tables_with_headers_of_their_own_are_read(read, before):
    """Quote marks and indentation of pasted tables are ignored."""
    text = "# OSU MPI-CUDA Allreduce Latency Test v7.1\n# Size  Avg Latency(us)\n4  5.1\n8  5.2\n"
    (found,) = read("".join(f"{before}{line}\n" for line in text.splitlines())).series
    assert (found.collective, found.times_us) == ("allreduce", (5.1, 5.2))


@pytest.mark.parametrize(("title", "is_noted"), [("Allreduce Latency", True), ("Latency", False)])
def test_collectives_of_an_mpi_library_are_noted(read, title, is_noted):
    """OSU's collectives are those of an MPI library, which models of NCCL do not describe."""
    text = f"# OSU MPI-CUDA {title} Test v7.3\n# Size  Avg Latency(us)\n4  5.1\n8  5.2\n"
    assert any("not NCCL or RCCL" in note for note in read(text).notes) == is_noted


def test_reports_of_runs_are_read(read):
    """Reports of `taccl run --json`, one per line, form a series over sizes."""
    reports = [
        json.dumps({
            "collective": "allgather", "num_ranks": 4, "num_hosts": 1, "size_bytes": size,
            "times": {"median_us": time},
        })
        for size, time in ((1000, 5.0), (2000, 6.0))
    ]  # fmt: skip
    (found,) = read("\n".join(reports)).series
    assert (found.size_bytes, found.times_us, found.num_ranks) == ((1000, 2000), (5.0, 6.0), 4)


@pytest.mark.parametrize("text", [
    "# all_reduce_perf\n" + "9" * 5000 + " 1 float sum -1 1.0 1.0 1.0 0\n",
    "# all_reduce_perf\n8 2 float sum -1 " + "9" * 400 + " 0.00 0.00 0\n",
    '{"a":' * 5000,
    '{"collective": "allreduce", "num_ranks": "x", "size_bytes": 8, "times": {"median_us": 1}}',
    '{"collective": "allreduce", "num_ranks": 2, "size_bytes": 8, "times": {"median_us": 1e999}}',
    '{"collective": "allreduce", "num_ranks": 2, "size_bytes": 8, "times": {"median_us": -1}}',
], ids=["long size", "long time", "deep", "ranks", "infinite", "negative"])  # fmt: skip
def test_hostile_texts_are_refused(read, text):
    """Endless numbers, deep nesting and other reports are refused in one sentence."""
    with pytest.raises(FormatError, match=r"a\.log"):
        read(text)


def _table(head, *rows):
    """Text of a table: the line `head`, and a line for each of `rows`."""
    return "\n".join((head, *rows)) + "\n"


@pytest.mark.parametrize(("head", "rows"), [
    ("| Size | Time (us) | algbw (GB/s) |", ("|---|---|---|", "| 8 MiB | 83.89 | 100.0 |", "| 16 MiB | 125.8 | 133.3 |")),
    ("size,time(us),algbw,busbw", ("8388608,83.89,100.0,175.0", "16777216,125.8,133.3,233.3")),
    ("Size(B)  Latency(ms)", ("8388608  0.08389", "16777216  0.12583")),
    ("message size   bandwidth min   alg bw (Gb/s)", ("8388608  1  800", "16777216  1  1066.4")),
    ("size,time_ms", ("8388608,0.08389", "16777216,0.12583")),
    ("size_mb,latency_s", ("8,8.389e-5", "16,1.2583e-4")),
    ("Size (KiB),time (milliseconds)", ("8192,0.08389", "16384,0.12583")),
    ("| Message size [MB] | Latency [us] |", ("|---:|---:|", "| 8 | 83.89 |", "| 16 | 125.83 |")),
    ("bytes;time_us;algbw (GB/s)", ("8388608;83,89;100,0", "16777216;125,83;133,3")),
    ('"Size (B)","Time (us)"', ('"8,388,608","83.89"', '"16,777,216","125.83"')),
    ("size,time", ("8MiB,0.08389 ms", "16MiB,125.83us")),
    ("size,time_max_us,latency_p99_us,time_std_us,time_p50_us", ("8388608,90,91,1,83.89", "16777216,140,150,2,125.83")),
    ("op\tsize\ttime (us)", ("allreduce\t8388608\t83.89", "allreduce\t16777216\t125.83")),
    ("size,algbw_mb_per_s", ("8388608,99995", "16777216,133332")),
    ("size,algbw_gbps", ("8388608,800", "16777216,1066.7")),
    ("size,algbw (Gib/s)", ("8388608,745.0", "16777216,993.4")),
])  # fmt: skip
def test_tables_with_a_header_of_their_own_are_read(read, head, rows):
    """The header of a table gives each column's meaning and unit."""
    (found,) = read(_table("all_reduce_perf", head, *rows)).series
    assert found.collective == "allreduce"
    assert found.size_bytes == (2**23, 2**24)
    assert found.times_us == pytest.approx((83.89, 125.83), rel=1e-3)


@pytest.mark.parametrize(("algbw", "busbw"), [(500.0, 875.0), (4000.0, 7000.0)])
def test_gbps_beside_times_are_bits_or_bytes(read, algbw, busbw):
    """A table of 2 us for 1 MB is at 500 GB/s, whether its column in Gbps has bytes or bits."""
    found = read(f"size_bytes,time_us,algbw_gbps,busbw_gbps\n1000000,2.0,{algbw},{busbw}\n", "allreduce")
    assert found.series[0].times_us == (2.0,)
    assert found.series[0].num_ranks == 8


def test_an_assumed_unit_is_said(read):
    """A note names the unit of times or rates that no header and no cell names."""
    said = "figures are assumed to be in {}, as the header of their table names no unit"
    for head, cells, unit in (
        ("size,time", "8MiB,80", "us"), ("size,algbw", "8MiB,100", "GB/s"), ("size,time", "8MiB,80 us", ""),
        ("size,time_us", "8MiB,80", ""), ("size,time,algbw", "8388608,83.89,100", ""),
    ):  # fmt: skip
        notes = read(_table("all_reduce_perf", head, cells)).notes
        assert [note for note in notes if "assumed to be in" in note] == [said.format(unit)] * bool(unit)


def test_bus_bandwidth_alone_waits_for_the_ranks(read):
    """350 GB/s of busbw on 8 ranks are 200 GB/s of algbw; without the number of ranks there are no times."""
    (found,) = read("# all_reduce_perf\n| Size | busbw (GB/s) |\n| 1 GiB | 350.0 |\n").series
    assert (found.counted, found.num_ranks) == ("busbw", 0)
    assert found.on(8, 1).times_us[0] == pytest.approx(2**30 / 200e3)


@pytest.mark.parametrize(("redop", "factor", "root", "named", "found"), [
    ("sum", 0.875, -1, "", ("reduce-scatter", 8)),  # no other one reduces, with less busbw than algbw
    ("avg", 1.75, -1, "", ("allreduce", 8)),
    ("none", 0.875, -1, "# all_gather_perf\nhost:7:8 [0] NCCL INFO AllReduce: opCount 0", ("allgather", 8)),
    ("none", 1.0, -1, "# sendrecv_perf", ("point-to-point", 0)),
    ("none", 1.0, 0, "# broadcast_perf", ("broadcast", 0)),
    ("sum", 1.0, 0, "# reduce_perf", ("reduce", 0)),
    ("none", 0.9375, -1, "# alltoall_perf", ("alltoall", 16)),
    ("none", 0.875, -1, "# all_gather_perf\n# gather_perf", ("gather", 8)),
])  # fmt: skip
def test_the_columns_decide_between_names(read, redop, factor, root, named, found):
    """If several names of collectives stand above a table, the last one that fits the table's columns is
    used."""
    text = f"{named}\n{row(2**28, 2000.0, redop=redop, factor=factor)}\n".replace(" -1 ", f" {root} ")
    (series,) = read(text).series
    assert (series.collective, series.num_ranks) == found


@pytest.mark.parametrize("text", [
    row(8, 20.0, redop="none"),
    row(8, 20.0).replace(" -1 ", " 0 "),  # a reduce
    "1000 4 float sum -1 20.0 0.05 0.05 0",  # no whole number of parts
])  # fmt: skip
def test_what_could_be_several_collectives_is_asked_for(read, text):
    """Without a name, small sizes match several collectives, and the error asks for --collective."""
    with pytest.raises(FormatError, match="give --collective"):
        read(text)


@pytest.mark.parametrize("text", [row(8, 20.0), "8 2 float sum 20.0 0.00 0.00 0e+00 20.0 0.00 0.00 0e+00"])
def test_sums_of_all_elements_without_a_root_are_an_allreduce(read, text):
    """A reduce has a root, and a reduce-scatter counts the elements of one rank's part."""
    log = read(text)
    assert [each.collective for each in log.series] == ["allreduce"]
    assert ["no collective is named" in note for note in log.notes] == [True]


@pytest.mark.parametrize(("cells", "found"), [
    ("float sum -1 20.0 0.01 0.00 0", "reduce-scatter"), ("float none -1 20.0 0.01 0.00 0 21.0 0.01 0.00 N/A", "alltoall"),
    ("float none -1 20.0 0.01 0.00 0 21.0 0.01 0.00 0", "allgather"),
])  # fmt: skip
def test_counts_of_one_part_tell_unnamed_collectives_of_small_messages(read, cells, found):
    """128 bytes in parts of 4 floats are those of 8 ranks, in a collective that need not be named."""
    log = read(f"128 4 {cells}")
    assert [(each.collective, each.num_ranks) for each in log.series] == [(found, 8)]
    assert ["no collective is named" in note for note in log.notes] == [True]


@pytest.mark.parametrize(("name", "redop"), [("alltoall", "none"), ("reduce_scatter", "sum")])
def test_counts_of_one_part_give_the_number_of_ranks(read, name, redop):
    """1 KiB in parts of 16 floats has 16 ranks, although busbw is too small to tell."""
    text = "# {}_perf\n{} {} bfloat16 {} -1 50.0 0.02 0.02 0\n"
    for size, count, ranks in ((1024, 32, 16), (1024, 512, 0), (1000, 32, 0)):
        (series,) = read(text.format(name, size, count, redop)).series
        assert (series.collective.replace("-", "_"), series.num_ranks) == (name, ranks)


def test_one_size_on_several_numbers_of_ranks_is_several_runs(read):
    """A table of one size for 1, 2 and 3 nodes of eight, whose first column is the number of nodes."""
    text = "# all_reduce_perf\n nodes        size         count      type   redop     time   algbw   busbw  error\n"
    for nodes, time, rate, bus in (
        (1, 8142.6, 131.87, 230.77),
        (2, 35215, 30.49, 57.17),
        (3, 64782, 16.57, 31.77),
    ):
        text += f"   {nodes}   1073741824     268435456     float     sum   {time}  {rate}  {bus}  2e-07\n"
    found = [(each.num_ranks, each.times_us) for each in read(text).series]
    assert found == [(8, (8142.6,)), (16, (35215.0,)), (24, (64782.0,))]


def test_communicators_state_the_number_of_ranks(read):
    """busbw / algbw leaves 1,800 to 1,880 ranks; a line of NCCL_DEBUG=INFO has the number."""
    text = "# all_reduce_perf\n17179869184 8589934592 bfloat16 sum -1 92222 186.29 372.37 0 91786 187.17 374.14 0\n"
    line = "a:1:2 [0] NCCL INFO comm 0x56 rank 0 nranks {} cudaDev 0 busId 19000 - Destroy COMPLETE\n"
    assert read(text + line.format(1840)).series[0].num_ranks == 1840
    others = read(text + line.format(1840) + line.format(230)).series[0].num_ranks
    assert read(text + line.format(8)).series[0].num_ranks == read(text).series[0].num_ranks == others


@pytest.mark.slow
@pytest.mark.parametrize("prefix", [
    "", "0: ", " 3: ", "[1,0]<stdout>:", "node-3: ", "2026-01-02T03:04:05.678Z ", "[2026-01-02 03:04:05] ", "pod/x | ",
])  # fmt: skip
def test_lines_of_nccl_debug_are_no_rows(read, monkeypatch, prefix):
    """Lines of NCCL_DEBUG between the rows are passed over without a search for rows, whatever their label.

    The patterns of rows would take most of the time of a log with thousands of such lines.
    """
    looked_at, first_look = [], logs.plain
    monkeypatch.setattr(logs, "plain", lambda line: (looked_at.append(line), first_look(line))[1])
    debug = [
        "Channel 00/0 : 7[7] -> 8[0] [send] via NET/IB/0/GDRDMA", "AllReduce: opCount 3 sendbuff 0x7f count 4",
        "Trees [0] 1/-1/-1->0->-1 [1] 3/-1/-1->2->1", "comm 0x55 rank 0 nranks 8 cudaDev 0 - Init COMPLETE",
    ]  # fmt: skip
    text = table(prefix=prefix)
    lines = [f"{prefix}host-1:77:78 [{i % 8}] NCCL INFO {line}" for i, line in enumerate(debug * 5)]
    between = "".join(f"{each}\n" + "".join(f"{line}\n" for line in lines) for each in text.splitlines())
    found, expected = read(between), read(text)
    assert [(each.size_bytes, each.times_us) for each in found.series] == [
        (each.size_bytes, each.times_us) for each in expected.series
    ]
    assert len(looked_at) == 2 * len(text.splitlines())
    assert found.debug.excluded == {"gdr-off"}


@pytest.mark.parametrize(
    "words", ["NCCL INFO comm ", "NCCL INFO ", "NCCL INFO comm nranks ", "[0]     NCCL ", "n: NCCL "]
)
def test_long_lines_of_debug_logs_are_read_in_linear_time(read, words):
    """A line of lines that were joined is judged quickly, also if it lacks the number of ranks."""
    assert cpu_s(lambda: read(f"{table()}{words * 4000}\n")) < 0.4


@pytest.mark.parametrize("count", ["268435456", "2.68e+8"])
def test_counts_in_scientific_notation_are_read(read, count):
    """Pages shorten the count of elements; the row is read all the same."""
    text = (
        f"# all_reduce_perf\n1073741824  {count}  float sum -1 59530.2 18.04 33.82 0 57634.7 18.63 34.93 0\n"
    )
    assert read(text).series[0].times_us == (59530.2,)


@pytest.mark.parametrize(("device", "gpu"), [
    ("#  Rank  {} Group  0 Pid 221599 device  {} [0000:8f:00] NVIDIA B200", "NVIDIA B200"),
    ("#  Rank  {} Group  0 device  {} [0000:8f:00] NVIDIA B200 (node 0)", "NVIDIA B200"),
    ("#  Rank  {} Group  0 Pid  15326 on host0 device  {} Tesla V100-PCIE-16GB", "Tesla V100-PCIE-16GB"),
])  # fmt: skip
def test_lists_of_devices_may_lack_hosts_and_addresses(read, device, gpu):
    """Pages leave out the host or the address of a GPU. Without hosts the number of nodes is unknown."""
    head = "".join(f"{device.format(i, i)}\n" for i in range(8))
    log = read(head + table())
    assert log.gpus == {gpu}
    assert [(each.num_ranks, each.num_nodes) for each in log.series] == [(8, int("host0" in device))]


def test_sentences_with_ranks_and_devices_are_no_list(read):
    """A remark about a rank's device names no GPU."""
    assert not read("Rank 0 device 1 is the slowest\n" + table()).gpus


@pytest.mark.parametrize(("size", "times", "said"), [
    (2**30, (14640, 11892), "1GiB takes 81% of the time in place; judge that, too (--in-place)"),
    (2**30, (14640, 14000), ""), (2**20, (40.0, 20.0), ""),
])  # fmt: skip
def test_faster_times_in_place_are_noted(read, size, times, said):
    """Large messages that are faster in place show that links are not the limit."""
    cells = " ".join(f"{us} {size / us / 1e3:.2f} {size / us / 2e3:.2f} 0" for us in times)
    text = f"# all_gather_perf\n{size} {size // 8} float none -1 {cells}\n"
    assert [note for note in read(text).notes if "of the time" in note] == [said] * bool(said)
    assert not [note for note in read(text, in_place=True).notes if "of the time" in note]


def test_times_of_the_other_place_are_kept(read):
    """Runs that differ in their times in place remain one series, with the median at the largest size."""
    text = ""
    for in_place_us in (80, 90):
        text += "# all_gather_perf\n"
        text += "1048576 131072 float none -1 50.0 20.97 10.49 0 40.0 26.21 13.11 0\n"
        text += f"2097152 262144 float none -1 100.0 20.97 10.49 0 {in_place_us} {2097.152 / in_place_us:.2f} 0 0\n"
    (found,) = read(text).series
    assert (found.size_bytes, found.other_us) == ((2**20, 2**21), 85)


@pytest.mark.parametrize(("title", "collective", "counted"), [
    ("Broadcast", "broadcast", ""), ("Reduce", "reduce", ""), ("Reduce_scatter", "reduce-scatter", ""),
    ("Allgather", "allgather", "part"), ("All-to-All Personalized Exchange", "alltoall", "part"),
])  # fmt: skip
def test_osu_counts_a_ranks_part(read, title, collective, counted):
    """OSU's sizes of allgather and alltoall are those of one rank's part, times the number of ranks."""
    head = f"# OSU MPI-CUDA {title} Latency Test v7.3\n# Datatype: MPI_CHAR.\n# Size       Avg Latency(us)\n"
    (found,) = read(head + "1048576     99.5\n").series
    assert (found.collective, found.counted) == (collective, counted)
    assert found.on(8, 1).size_bytes == (2**20 * (8 if counted else 1),)


@pytest.mark.parametrize("label", [
    "[1,0]<stdout>:", "[default0]:", "2026-03-04 10:11:{:02},9 - INFO - ", "{:4}\t", "{:02}.9Z stdout F ", "a-0 b ",
])  # fmt: skip
@pytest.mark.parametrize(("table", "times"), [
    ("# OSU MPI-CUDA Allreduce Latency Test v7\n# Size  Avg Latency(us)\n4  15.5\n1048576  301.2\n", (15.5, 301.2)),
    ("                RDMA_Write BW Test\n #bytes  #iterations  BW peak[MiB/sec]  BW average[MiB/sec]\n"
     " 1048576  5000  11010.1  2000\n 2097152  5000  11010.1  2000\n", (500, 1000)),
    ("all_reduce on 8 GPUs\nsize time(us) algbw(GB/s) busbw(GB/s)\n1M 40 26.21 45.87\n1G 9999 107.4 187.9\n", (40, 9999)),
])  # fmt: skip
def test_labels_before_tables_are_ignored(read, table, times, label):
    """Labels of launchers and loggers before each line are no cells of a table, whatever its columns."""
    log = read("".join(f"{label.format(i)}{line}\n" for i, line in enumerate(table.splitlines(), 5)))
    (found,) = log.series
    assert found.times_us == pytest.approx(times)
    assert any("not NCCL or RCCL" in note for note in log.notes) == ("OSU" in table)


@pytest.mark.parametrize("name", ["OMB-Py", "OMB Python"])
def test_logs_of_omb_py_count_as_osus(read, name):
    """OMB-Py prints OSU's tables below titles of its own: of one rank's part, or of two ranks."""
    text = f"# {name} MPI {{}} Test\n# Size (B)      Latency (us)\n1024  21.39\n2048  22.4\n"
    log = read(text.format("Allgather Latency"))
    (found,) = log.series
    assert (found.collective, found.counted, found.size_bytes) == ("allgather", "part", (1024, 2048))
    assert any("not NCCL or RCCL" in note for note in log.notes)
    log = read(text.format("Latency"))
    assert [each.title.partition(" ")[0] for each in log.series] == ["point-to-point"]
    assert not log.notes


def test_both_directions_are_halved(read):
    """The bandwidth of a bidirectional test, a sum over both directions, is halved."""
    bits = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
    for text in (
        f"                    RDMA_Write Bidirectional BW Test\n{bits} 8388608 5000 784.1 784.0 0.0058\n",
        "# OSU MPI-CUDA Bi-Directional Bandwidth Test v7.3\n# Size      Bandwidth (MB/s)\n8388608 98000\n",
    ):
        (found,) = read(text).series
        assert found.streams
        assert found.size_bytes[0] / found.times_us[0] / 1000 == pytest.approx(49.0)


def test_wrong_results_are_noted(read):
    """Rows whose count of wrong elements is above 0 are kept, with a note."""
    lines = table(sizes=(8, 1024, 2**20)).splitlines()
    lines[3] = lines[3].replace(" 0 ", " 12 ", 1)
    found = read("\n".join(lines))
    assert found.series[0].size_bytes == (8, 1024, 2**20)
    assert found.notes == ("results were wrong at 1 size (#wrong above 0), in bytes: 1024",)


@pytest.mark.parametrize("rest", ["", "host7:41:52 [0] NCCL INFO Channel 00/02 :    0   1"])
def test_rows_that_other_text_breaks_are_named(read, rest):
    """A row that ends early, or continues with another process's message, is left out by name."""
    lines = table(sizes=(8, 1024, 2**20)).splitlines()
    lines[3] = lines[3][:48] + rest
    found = read("\n".join(lines))
    assert found.series[0].size_bytes == (8, 2**20)
    assert found.left_out == ("line 4: found a row without all figures; write it on one line",)


@pytest.mark.parametrize("kept", [8, 20, 32, 40])
def test_a_last_row_that_is_cut_off_is_named(read, kept):
    """A log that ends within its last row is read, and the row is left out by name."""
    lines = table(sizes=(8, 1024, 2**20)).splitlines()
    at = next(i for i, line in enumerate(lines) if line.split()[:1] == [str(2**20)])
    begin = lines[at].index(str(2**20))
    found = read("\n".join([*lines[:at], lines[at][: begin + kept]]))
    assert found.series[0].size_bytes == (8, 1024)
    assert found.left_out == (f"line {at + 1}: found a row without all figures; save the log whole",)


@pytest.mark.parametrize(
    ("last", "sizes"), [("4096      123.45", (1024, 2048, 4096)), ("4096      12", (1024, 2048))]
)
def test_a_last_row_of_a_table_that_is_cut_off_is_left_out(read, last, sizes):
    """A last row that is shorter than all others of equal length may lack digits of its time."""
    head = "# OSU MPI-CUDA Allreduce Latency Test v7.4\n# Size    Avg Latency(us)\n"
    found = read(f"{head}1024      100.00\n2048      110.00\n{last}")
    assert found.series[0].size_bytes == sizes
    assert len(found.left_out) == 3 - len(sizes)


def test_small_messages_of_a_named_exchange_are_no_allreduce(read):
    """sendrecv_perf is told by its name if bandwidths of small messages do not distinguish collectives."""
    text = "# Collective test starting: sendrecv_perf\n" + table(sizes=(8, 16, 32)).split("\n", 1)[1]
    assert read(text).series[0].collective == "point-to-point"


@pytest.mark.parametrize(("first", "parts"), [(0, 2), (0, 1), (9, 1)])
def test_groups_that_share_links_are_noted(read, first, parts):
    """Several groups of ranks that ran at the same time are noted; the nodes are those of the group of rank 0.

    nccl-tests numbers the ranks of all groups together, and a mask may give the first group any number.
    """
    devices = "".join(
        f"#  Rank {r // parts} Group {first + r % 2} Pid {r} on h{r // 8} device {r % 8} [0x0{r % 8}] X\n"
        for r in range(16)
    )
    found = read(devices + table())
    assert (found.series[0].num_ranks, found.series[0].num_nodes) == (8, 2)
    assert found.notes == ("2 groups of ranks ran at the same time and share links; times are of one group",)


def test_independent_processes_are_noted(read):
    """Two lists of ranks before one table mean two runs; runs of one rank are refused."""
    devices = "".join(
        f"#  Rank {rank} Group 0 Pid {rank} on h{host} device {rank} [0x0{rank}] X\n"
        for host in range(2)
        for rank in range(8)
    )
    found = read(devices + table())
    assert (found.series[0].num_ranks, found.series[0].num_nodes) == (8, 1)
    assert "rank 0 is listed on h0, h1: the runs are independent" in found.notes[0]
    with pytest.raises(FormatError, match=r"found a run of one rank, which sends nothing \(busbw is 0\)"):
        read(table(ranks=1))


@pytest.mark.parametrize(
    ("name", "redop", "factor", "collective"),
    [("nccl_broadcast.log", "none", 1, "broadcast"), ("reduce-8.log", "sum", 1, "reduce"),
     ("x-scatter.txt", "none", 0.875, "scatter")],
)  # fmt: skip
def test_file_names_name_collectives(read, name, redop, factor, collective):
    """A collective in the file's name is used even without `_perf`, if the table's columns fit it."""
    text = "\n".join([HEAD, *(row(size, time_us(size), redop=redop, factor=factor) for size in SIZES)])
    assert read(text, name).series[0].collective == collective


def test_uneven_exchanges_have_their_own_name(read):
    """alltoallv_perf, whose messages differ in size, is not read as an alltoall."""
    text = table(redop="none").replace("all_reduce_perf", "Collective test starting: alltoallv_perf")
    assert read(text).series[0].collective == "alltoallv"


def test_rows_below_a_long_debug_log_are_asked_for_their_collective(read):
    """A log of rccl-tests whose table follows much output of NCCL_DEBUG is not called a debug log."""
    debug = "host:1:2 [0] NCCL INFO Channel 00 : 0[1] -> 1[2] via P2P\n" * 1500
    rows = table(redop="none").split("\n", 1)[1].replace("       0", "     N/A")
    text = "# nThreads: 1 nGpus: 1 nRanks: 1 minBytes: 8\n" + debug + rows
    with pytest.raises(FormatError, match="; give --collective allgather or alltoall$"):
        read(text)


@pytest.mark.parametrize(
    ("setting", "note"),
    [("agg iters: 16", "(-m)"), ("agg iters: 1 graph: 4", "(-G)"), ("agg iters: 1 graph: 0", "")],
)
def test_launches_of_several_operations_are_noted(read, setting, note):
    """Aggregated operations and CUDA graphs, which the header states, are noted."""
    notes = read(f"# nThread 1 nGpus 8 minBytes 8 {setting}\n" + table()).notes
    assert [note] == [note for each in notes if note in each] if note else not notes


def test_merged_runs_are_noted(read):
    """Two runs of one collective are merged into one series, with a note that has their types."""
    text = table(sizes=(8, 2**24)) + table(sizes=(8, 2**24)).replace("float", "half ")
    found = read(text)
    assert len(found.series) == 1
    assert found.notes == (
        "2 runs of allreduce on 8 ranks (types float, half) are merged: a time is the median of its size",
    )


@pytest.mark.parametrize(
    ("scales", "times_us", "said"),
    [
        ((1.0, 1.0), [400.0], "are merged"),
        ((1.0, 1.3, 1.0), [400.0, 520.0], "differ by 1.3 times at 64MiB"),
        ((1.0, 20.0, 1.0), [400.0, 8000.0], "a fit uses the median of a size"),
        ((1.0, 20.0), [400.0, 8000.0], "describes none of them"),
    ],
)
def test_runs_that_differ_stay_apart(read, scales, times_us, said):
    """The median of runs with different bandwidths is the rate of none of them, so each is a series."""
    found = read(
        "# all_reduce_perf\n"
        + "".join(
            f"{size} {size // 4} float sum -1 {us:.2f} {size / us / 1000:.2f} {1.75 * size / us / 1000:.2f} 0\n"
            for scale in scales
            for size, us in ((8, 20.0), (2**26, 400.0 * scale))
        )
    )
    assert [each.times_us[-1] for each in found.series] == times_us
    assert said in found.notes[0]


@pytest.mark.parametrize("line", [
    "node-3: Test NCCL failure common.cu:958 'unhandled system error / '",
    " .. node-3 pid 12: Test failure all_reduce.cu:90", "node-3: Test CUDA failure common.cu:1021 'out of memory'",
])  # fmt: skip
def test_a_run_that_ended_with_an_error_is_noted(read, line):
    """Rows before an error are read, and a note says that others may be missing."""
    (note,) = read(table() + line + "\n").notes
    assert note.startswith("the run ended with an error")
    with pytest.raises(FormatError, match="no usable measurement; the run ended with an error"):
        read("# all_reduce_perf\n" + HEAD + "\n" + line + "\n")


@pytest.mark.parametrize(("head", "rows"), [
    ("# Size  Avg Latency(us)  Validation", "1024  25.0  Pass\n1048576  40.0  Fail"),
    ("| Size | Time (us) | AlgBW (GB/s) | Correctness |", "| 1.0 MiB | 25.0 | 41.9 | FAIL |"),
])  # fmt: skip
def test_failed_checks_of_other_benchmarks_are_noted(read, head, rows):
    """Tables of OSU and MSCCL++ state failed checks of results as words."""
    found = read(f"# OSU MPI-CUDA Allreduce Latency Test v7.4\n{head}\n{rows}\n")
    assert any(note.startswith(WRONG) for note in found.notes)


@pytest.mark.parametrize(("wrong", "name"), [("0", "allgather"), ("N/A", "alltoall")])
def test_checks_of_results_distinguish_allgather_and_alltoall(read, wrong, name):
    """A table without a name is an allgather if results in place are checked, and an alltoall if they are not."""
    text = f"  8388608  262144  float  none  -1  100.0  83.89  73.40  0  100.0  83.89  73.40  {wrong}\n"
    log = read(text)
    assert log.series[0].collective == name
    assert f"as in {name}s" in log.notes[0]
    assert not read(text, collective=name).notes
    with pytest.raises(FormatError, match="without its collective"):
        read(text.replace("73.40  0 ", "73.40  N/A "))


@pytest.mark.parametrize(
    ("redop", "busbw", "name"),
    [
        ("sum", "83.89", "reduce"),
        ("", "83.89", "broadcast"),
        ("none", "83.89", "broadcast"),
        ("none", "73.40", ""),
    ],
)
def test_rows_with_a_root_are_of_a_reduce_or_a_broadcast(read, redop, busbw, name):
    """Tables without a name that state a root: gather and scatter have a busbw below algbw, and are refused."""
    figures = f"100.0  83.89  {busbw}  N/A"
    text = f"  8388608  2097152  float  {redop}  0  {figures}  {figures}\n" * 2
    if not name:
        with pytest.raises(FormatError, match="without its collective; a gather or scatter has no model"):
            read(text)
        return
    log = read(text)
    assert (log.series[0].collective, f"of a {name} " in log.notes[0]) == (name, True)


def test_a_busbw_above_algbw_is_an_allreduces(read):
    """In a table of nccom-test, which names no reduction, busbw is 1.875 times algbw: an allreduce on 16 ranks."""
    head = "size(B)    count(elems)    type    time:avg(us)    algbw(GB/s)    busbw(GB/s)\n"
    (found,) = read(head + "   33554432    8388608    fp32    768    43.69    81.92\n").series
    assert (found.collective, found.num_ranks, found.times_us) == ("allreduce", 16, (768.0,))


@pytest.mark.parametrize(("name", "redop"), [("reduce", "sum"), ("scatter", "none"), ("all_gather", "none")])
def test_a_name_that_the_columns_contradict_is_said(read, name, redop):
    """A busbw of 1.75 times algbw is an allreduce's; a note says so if the log names another collective."""
    rows = "\n".join(
        f"{2**p} {2**p // 4} float {redop} -1 {2**p / 2e5:.2f} 200.00 350.00 0" for p in (26, 28)
    )
    found = read(f"# Collective test starting: {name}_perf\n{rows}\n")
    assert [each.collective for each in found.series] == ["allreduce"]
    (said,) = (note for note in found.notes if "the log names" in note)
    assert f"names {name.replace('_', '')}, but its columns are those of allreduce" in said


@pytest.mark.parametrize("before", ["numCycle, collective, ranks, ", "numCycle,name,", "collective, "])
def test_tables_with_commas_are_read_by_their_header(read, before):
    """In files of rccl-tests, with times in place in rows of their own, columns left of the size are no sizes."""
    cells = [
        "AllReduce" if each.strip() in ("collective", "name") else "8" for each in before.split(",")[:-1]
    ]
    text = f"{before}size, type, redop, inplace, time, algbw, busbw, #wrong\n"
    for size, time in ((8, 16.0), (1 << 30, 6000.0)):
        for in_place in (0, 1):
            rate = size / (time + in_place) / 1000
            figures = [
                size,
                "float",
                "sum",
                in_place,
                time + in_place,
                f"{rate:.2f}",
                f"{1.75 * rate:.2f}",
                0,
            ]
            text += ", ".join(map(str, [*cells, *figures])) + "\n"
    for in_place, times in ((False, (16.0, 6000.0)), (True, (17.0, 6001.0))):
        (found,) = read(text, in_place=in_place).series
        assert (found.collective, found.num_ranks) == ("allreduce", 8)
        assert (found.size_bytes, found.times_us) == ((8, 1 << 30), times)


def test_the_column_of_a_table_names_the_collective(read):
    """A table with commas tells a reduce from a broadcast by its column of collectives."""
    head = "numCycle, collective, size, type, redop, inplace, time, algbw, busbw, #wrong\n"
    (found,) = read(f"{head}0, Broadcast, 1000000, float, none, 0, 10.0, 100.0, 100.0, 0\n").series
    assert found.collective == "broadcast"


def test_a_given_collective_that_contradicts_the_columns_is_refused(tmp_path):
    """A table with the operator `sum` and the bus bandwidth of an allreduce is not read as an allgather."""
    path = tmp_path / "a.log"
    path.write_text(table())
    with pytest.raises(
        FormatError, match="found a table of allreduce, by redop and busbw, but collective='allgather'"
    ):
        read_log(str(path), collective="allgather")
    assert read_log(str(path), collective="allreduce").series[0].collective == "allreduce"


#: Header of nccl-tests that announces 8 bytes to 8 GiB by factors of 2.
ANNOUNCED = "# nThread 1 nGpus 8 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20\n"


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        (SIZES[:-2], "its header announces 2 more sizes (4GiB, 8GiB); the run"),
        ((*SIZES[:20], *SIZES[21:]), "its header announces 1 more size (8MiB); the run"),
    ],
    ids=["the last two", "one between"],
)
def test_sizes_that_a_header_announces_and_no_row_has_are_noted(log, sizes, said):
    """A log that lacks sizes of its header's range is not whole, or the run ended early."""
    (note,) = read_log(log(ANNOUNCED + table(sizes=sizes))).notes
    assert note.startswith(said)


def test_sizes_that_are_rounded_or_repeated_are_not_absent(log):
    """Benchmarks round sizes to equal parts of all ranks; runs under one header complete each other."""
    rounded = tuple(size - size % (7 * 16) for size in SIZES if size > 1000)
    cycles = ANNOUNCED + table(sizes=rounded) + "".join(f"{row(size, 30.0)}\n" for size in SIZES[5:12])
    assert not any("announces" in note for note in read_log(log(cycles)).notes)


@pytest.mark.parametrize("form", ["nccl", "osu"])
def test_rows_that_lack_a_cell_are_named(log, form):
    """A row without its count, or without one of several times, is no measurement, which the log notes."""
    lines = table().splitlines()
    if form == "osu":
        lines = ["# OSU MPI Allreduce Latency Test v7.1", "# Size  Avg Latency(us)  Min Latency(us)"]
        lines += [f"{size}  {20 + size / 200e3:.2f}  19.00" for size in SIZES[:12]]
    cells = lines[9].split()
    lines[9] = " ".join([cells[0], *cells[2:]])
    (said,) = read_log(log("\n".join(lines)), collective="allreduce").left_out
    assert said == "line 10: found a row without all figures; write it on one line"
