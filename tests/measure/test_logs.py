"""Logs are read as people paste them: prefixes, several runs, columns that are missing, other tools."""

from __future__ import annotations

import json

import pytest

from taccl.errors import FormatError
from taccl.measure.logs import read_log
from tests.measure.logs import SIZES, row, table, time_us


@pytest.fixture
def read(tmp_path):
    """Read a text as a log, here or under a name of its own."""

    def read_text(text, name="a.log", **given):
        (tmp_path / name).write_text(text)
        return read_log(tmp_path / name, **given)

    return read_text


@pytest.mark.parametrize("prefix", [
    "", "0: ", "[1,0]<stdout>:", "node-3: ", "    ", "> ", "2026-01-02T03:04:05.678Z ", "\x1b[32m", "pod/x | ",
])  # fmt: skip
def test_prefixes_are_passed_over(read, prefix):
    """Whatever a launcher puts before each line, sizes and times are those of the table."""
    (found,) = read(table(prefix=prefix)).series
    assert found.size_bytes == SIZES
    assert found.times_us[0] == pytest.approx(time_us(8), abs=0.01)


def test_tables_of_web_pages_are_read(read):
    """Bars between the cells are those of a page, and a cut row at the end is passed over."""
    rows = (row(size, time_us(size)) for size in SIZES)
    text = "".join(f"| {' | '.join(each.split())} |\n" for each in rows)
    (found,) = read(f"# all_reduce_perf\n{text}| 17179869184 | 42949").series
    assert (found.size_bytes, found.num_ranks) == (SIZES, 8)


def test_ranks_are_told_by_bandwidths(read):
    """busbw / algbw of an allreduce is 2 (n - 1) / n: 1.875 means 16 ranks, though no list of devices says so."""
    (found,) = read(table(ranks=16)).series
    assert (found.collective, found.num_ranks, found.num_nodes) == ("allreduce", 16, 0)


def test_hosts_are_counted(read):
    """Two ranks on two hosts are two nodes."""
    devices = "".join(f"#  Rank  {r} Group 0 Pid 1 on host{r} device  0 [0000:05:00] A GPU\n" for r in (0, 1))
    log = read(f"# Using devices\n{devices}" + table(ranks=2))
    assert [(each.num_ranks, each.num_nodes) for each in log.series] == [(2, 2)]
    assert log.gpus == {"A GPU"}


def test_times_in_place_are_the_second_ones(read):
    """Of a row with both, `in_place` takes the other."""
    text = table()
    outside, inside = (read(text, in_place=each).series[0].times_us[0] for each in (False, True))
    assert inside == pytest.approx(2 * outside, abs=0.02)


def test_rows_without_a_root_or_errors_are_read(read):
    """Old versions print neither a root nor the number of wrong elements: the reading that agrees is taken."""
    text = "# all_gather_perf\n 1000000 250000 float 10.0 100.00 87.50 10.0 100.00 87.50\n"
    (found,) = read(text).series
    assert (found.collective, found.num_ranks, found.times_us) == ("allgather", 8, (10.0,))


def test_whole_times_are_no_roots(read):
    """A time that is a whole number, without a root before it, is not taken for one."""
    text = "# all_reduce_perf\n 8000000 2000000 float sum 40 200.00 350.00 0 40 200.00 350.00 0\n"
    assert read(text).series[0].times_us == (40.0,)


def test_rows_that_disagree_are_named_and_left_out(read):
    """50 GB/s is not 1 MB in 10 us, which is 100: the line is told, and the rest is read."""
    bad = "1000000 250000 float sum -1 10.0 50.00 87.50 0 10.0 50.00 87.50 0\n"
    log = read(table(sizes=(1024, 2048)) + bad)
    assert log.series[0].size_bytes == (1024, 2048)
    assert len(log.left_out) == 1
    assert log.left_out[0].startswith("line 5: found algbw 50 GB/s; expected 100")


def test_two_per_cent_are_allowed(read):
    """A rounded bandwidth that is 1.9 % off stays; one that is 3 % off does not."""
    near, far = (f"100000000 1 float sum -1 1000.0 {rate} 175.0 0\n" for rate in ("98.10", "97.00"))
    assert read("# all_reduce_perf\n" + near).series
    with pytest.raises(FormatError, match="line 2: found algbw 97"):
        read("# all_reduce_perf\n" + far)


def test_several_runs_of_one_size_are_their_median(read):
    """Three runs in a file, of 10, 30 and 20 us, are one series of 20 us."""
    runs = "".join("# all_reduce_perf nThread 1\n" + row(10**6, time) + "\n" for time in (10.0, 30.0, 20.0))
    assert read(runs).series[0].times_us == (20.0,)


def test_several_collectives_of_one_file_are_apart(read):
    """Headings say which table is whose."""
    other = row(10**6, 10.0, redop="none", factor=0.875)
    log = read(table() + "\n### NCCL All-to-All\n" + other + "\n")
    assert [each.collective for each in log.series] == ["allreduce", "alltoall"]


def test_rows_of_nothing_are_passed_over(read):
    """Where 0 bytes are sent, 0.25 us say nothing."""
    nothing = "0 0 float none -1 0.25 0.00 0.00 0 0.25 0.00 0.00 0\n"
    assert read(nothing + table()).series[0].size_bytes == SIZES


@pytest.mark.parametrize("time", ["0.00", "-5.0"])
def test_times_must_be_above_0(read, time):
    """A time of 0 or less is an error with file and line."""
    with pytest.raises(FormatError, match=r"a\.log: line 1: found a time of -?[05] us for 8 bytes"):
        read(f"8 2 float sum -1 {time} 0.00 0.00 0 {time} 0.00 0.00 0\n")


def test_texts_without_measurements_are_refused(read):
    """A file with nothing to read says what would be."""
    with pytest.raises(FormatError, match="found no measurement to use; expected rows of nccl-tests"):
        read("# A page\n\n| 1 | 2 | float |\n8 bytes were sent\n")


def test_unnamed_collectives_are_asked_for(read):
    """A table without reduction could be of several collectives."""
    text = row(10**6, 10.0, redop="none", factor=0.875)
    with pytest.raises(FormatError, match="give --collective"):
        read(text)
    assert read(text, collective="alltoall").series[0].collective == "alltoall"
    assert read(text, name="allgather-x2.txt").series[0].collective == "allgather"


def test_perftest_is_a_stream(read):
    """392 Gb/s are 49 GB/s; sizes that have not come to the bandwidth do not tell it."""
    head = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
    (found,) = read(head + " 2 5000 0.2 0.19 11.0\n 8388608 5000 392.1 392.0 0.0058\n").series
    assert (found.streams, found.size_bytes, found.num_nodes) == (True, (8388608,), 2)
    assert found.size_bytes[0] / found.times_us[0] / 1000 == pytest.approx(49.0)


def test_osu_collectives_are_read(read):
    """OSU prints a time for each size, on ranks that it does not tell."""
    (found,) = read("# OSU MPI Allreduce Latency Test v7.1\n# Size  Avg Latency(us)\n4  5.1\n8  5.2\n").series
    assert (found.collective, found.num_ranks, found.times_us) == ("allreduce", 0, (5.1, 5.2))


def test_reports_of_runs_are_read(read):
    """What `taccl run --json` prints, one on each line, is a series over sizes."""
    reports = [
        json.dumps({
            "collective": "allgather", "num_ranks": 4, "num_hosts": 1, "size_bytes": size,
            "times": {"median_us": time},
        })
        for size, time in ((1000, 5.0), (2000, 6.0))
    ]  # fmt: skip
    (found,) = read("\n".join(reports)).series
    assert (found.size_bytes, found.times_us, found.num_ranks) == ((1000, 2000), (5.0, 6.0), 4)


def test_rows_that_were_cut_off_are_passed_over(read):
    """A paste that ends after the root of a row has no time in it."""
    cut = "8589934592 2147483648 float sum -1"
    assert read(table() + cut).series[0].size_bytes == SIZES


@pytest.mark.parametrize("text", [
    "# all_reduce_perf\n" + "9" * 5000 + " 1 float sum -1 1.0 1.0 1.0 0\n",
    "# all_reduce_perf\n8 2 float sum -1 " + "9" * 400 + " 0.00 0.00 0\n",
    '{"a":' * 5000,
    '{"collective": "allreduce", "num_ranks": "x", "size_bytes": 8, "times": {"median_us": 1}}',
    '{"collective": "allreduce", "num_ranks": 2, "size_bytes": 8, "times": {"median_us": 1e999}}',
    '{"collective": "allreduce", "num_ranks": 2, "size_bytes": 8, "times": {"median_us": -1}}',
], ids=["long size", "long time", "deep", "ranks", "infinite", "negative"])  # fmt: skip
def test_hostile_texts_are_refused(read, text):
    """Numbers without end, objects without bottom, reports of something else: one sentence."""
    with pytest.raises(FormatError, match=r"a\.log"):
        read(text)
