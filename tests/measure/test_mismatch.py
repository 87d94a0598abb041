"""Logs that contradict the machine that they are fitted to are noted."""

import pytest

import taccl
from taccl.errors import FormatError
from taccl.measure.logs import log_of_text
from taccl.measure.machine import Machine
from taccl.measure.mismatch import mismatches
from taccl.measure.series import Log, Series
from tests.explore.degraded import NIC, network_log
from tests.measure.logs import HEAD, row, table

pytestmark = pytest.mark.usefixtures("_quick_fits")

H100 = Machine("dgx-h100", 8, 1, 450.0, 50.0)


def _devices(*hosts, gpu="NVIDIA H100 80GB HBM3"):
    lines = (
        f"#  Rank {rank:>2} Group  0 Pid  {rank} on {host} device  0 [0x01] {gpu}\n"
        for rank, host in enumerate(hosts)
    )
    return "# Using devices\n" + "".join(lines)


def _notes(text, *, machine=H100, fitted=()):
    log = log_of_text(text, "a.log")
    placed = [each.on(each.num_ranks or 8, each.num_nodes or 1) for each in log.series]
    return mismatches([log], placed, machine, fitted)


def test_logs_of_the_machine_need_no_note():
    """A log of two full nodes of the machine's GPUs gives no note."""
    assert _notes(_devices(*["a"] * 8, *["b"] * 8) + table(ranks=16)) == ()


@pytest.mark.parametrize(
    ("gpu", "found"),
    [
        ("Tesla V100-SXM2-16GB", "found GPUs Tesla V100-SXM2-16GB; dgx-h100 has H100"),
        ("AMD Instinct MI300X", "found GPUs AMD Instinct MI300X; dgx-h100 has H100"),
        ("NVIDIA H200", "found GPUs NVIDIA H200; dgx-h100 has H100"),
        ("NVIDIA H100 NVL", ""),
        ("NVIDIA Graphics Device", ""),
        ("AMD Radeon Graphics", ""),
    ],
)
def test_other_gpus_are_named(gpu, found):
    """If the device list has other GPUs than the machine, a note names them; unknown names are ignored."""
    notes = _notes(_devices(*["a"] * 8, gpu=gpu) + table())
    assert [found in note for note in notes] == ([True] if found else [])


def test_unequal_nodes_are_named():
    """A log of nodes with eight and four ranks gives a note that the nodes differ."""
    notes = _notes(_devices(*["a"] * 8, *["b"] * 4) + table(ranks=12))
    assert notes == ("a.log: the nodes differ, with ranks 8 on a, 4 on b; the model takes nodes to be equal",)


@pytest.mark.parametrize("num_listed", [1, 8, 24])
def test_a_list_of_other_devices_is_noted(num_listed):
    """Bandwidths of 16 ranks below a list of more or fewer devices are a contradiction, which is told."""
    (note,) = _notes(_devices(*["a"] * num_listed) + table(ranks=16))
    assert f"is that of 16 ranks, but the list of devices ends with rank {num_listed - 1}" in note


def test_a_list_that_was_cut_off_is_not_unequal():
    """A device list that lacks rank 0 is incomplete, so its nodes are not reported as unequal."""
    listed = _devices(*["a"] * 8, *["b"] * 8).split("\n")
    assert _notes("\n".join([listed[0], *listed[2:]]) + table(ranks=16)) == ()


@pytest.mark.parametrize(
    ("title", "said"),
    [
        ("# OSU MPI Allreduce Latency Test v7.3", "host memory (OSU without CUDA or ROCm)"),
        ("# OSU MPI-CUDA Allreduce Latency Test v7.3", ""),
        ("# OSU MPI-ROCM Allreduce Latency Test v7.3", ""),
        ("# OSU NCCL Allreduce Latency Test v7.3", ""),
        ("# backend: gloo\n# OSU NCCL Allreduce Latency Test v7.3", "measured by gloo"),
    ],
)
def test_buffers_in_host_memory_are_named(title, said):
    """Host-memory buffers (from OSU's title) and an assumed number of ranks are noted."""
    notes = _notes(f"{title}\n# Size       Avg Latency(us)\n8 24.0\n1048576 33.0\n")
    assert [note for note in notes if "measured" in note] == [note for note in notes if said and said in note]
    assert any(
        "does not say how many ranks took part; assumed: allreduce on 8 ranks" in note for note in notes
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head", "said"),
    [("# backend: gloo\n", "measured by gloo, which runs on CPUs; the model is for GPUs"), ("", "")],
)
def test_times_of_host_memory_are_no_fit(head, said, tmp_path):
    """A fit to a log of gloo, which runs on CPUs, is refused unless accepted; without that header, the same
    times are fitted."""
    path = tmp_path / "a.log"
    path.write_text(
        f"{head}# OSU NCCL Allreduce Latency Test v7.3\n# Size  Avg Latency(us)\n8 24.0\n1048576 33.0\n"
    )
    found = taccl.fit([str(path)], "dgx-h100").complaint
    assert said in found if said else "measured" not in found


def test_reports_of_our_own_runs_are_of_cpus():
    """`taccl run` measures CPU processes, which is noted."""
    text = '{"collective": "allreduce", "size_bytes": 8000, "times": {"median_us": 9.5}, "num_ranks": 4}'
    assert "measured by MPI processes in host memory" in _notes(text)[0]


def test_times_below_a_launch_are_named():
    """1.5 us is less than a kernel launch, which is noted."""
    fast = Series("allreduce", 8, 1, (8, 16), (1.5, 1.6), "a.log: line 3")
    note = "found allreduce on 8 ranks in 1 node in 1.5 us, less than the launch of a GPU kernel"
    assert note in mismatches([Log("a.log", (fast,), frozenset(), ())], [fast], H100, ())[0]
    message = Series("point-to-point", 2, 2, (8, 16), (1.5, 1.6), "a.log: line 3")
    assert mismatches([], [message], H100, ()) == ()


@pytest.mark.parametrize(
    ("name", "value", "sheet", "is_odd"),
    [
        ("node_gb_per_s", 400.0, 450.0, False),
        ("node_gb_per_s", 5.0, 450.0, True),
        ("node_gb_per_s", 1000.0, 450.0, True),
        ("network_gb_per_s", 26.0, 50.0, False),
        ("network_gb_per_s", 24.0, 50.0, True),
        ("network_gb_per_s", 200.0, 50.0, True),
    ],
)
def test_rates_beyond_the_data_sheet_are_named(name, value, sheet, is_odd):
    """Rates above the data sheet's, a node's below a fifth of it, and a NIC's below half of it are noted."""
    assert bool(mismatches([], [], H100, [(name, value, sheet)])) == is_odd


@pytest.mark.slow
def test_a_fit_says_what_does_not_match(tmp_path):
    """Notes on mismatches are in the fit's text and plain values."""
    path = tmp_path / "cpu.log"
    path.write_text("# OSU MPI Allreduce Latency Test v7.3\n# Size       Avg Latency(us)\n"
                    + "".join(f"{4**n} {2 + 4**n / 3000:.2f}\n" for n in range(1, 13)))  # fmt: skip
    found = taccl.fit([str(path)], "dgx-h100")
    assert any("host memory" in note for note in found.notes)
    assert any("less than the launch" in note for note in found.notes)
    assert any("times its data sheet" in note for note in found.notes)
    assert found.to_dict()["notes"] == list(found.notes)


def test_sendrecv_prints_a_sum_and_has_none():
    """A log of sendrecv_perf is recognised by its name, although its rows state a reduction."""
    log = log_of_text(f"# sendrecv_perf\n{HEAD}\n{row(2**20, 40.0, factor=1.0)}\n", "a.log")
    assert [each.collective for each in log.series] == ["point-to-point"]


@pytest.mark.parametrize("time", ["nan", "NaN", "inf"])
def test_times_that_are_no_numbers_are_named_by_line_and_column(time):
    """A non-numeric time is named by line and column."""
    with pytest.raises(
        FormatError, match=f"a.csv: line 3, column 2: found {time}; expected a number above 0"
    ):
        log_of_text(f"# all_reduce\nsize,time (us)\n1MB,{time}\n2MB,71.2\n", "a.csv")


@pytest.mark.slow
@pytest.mark.parametrize("is_lost", [False, True])
def test_a_lost_nic_is_noted(is_lost, tmp_path):
    """If one of eight NICs is lost, another one carries the data of two GPUs, at half of its rate for each.

    All rails carry equal parts, so all have that rate.
    """
    path = tmp_path / "a.log"
    path.write_text(network_log([*[NIC] * 6, *[NIC / 2 if is_lost else NIC] * 2]))
    found = [
        note for note in taccl.fit([path], "dgx-a100").notes if "network_gb_per_s is fitted as 1" in note
    ]
    assert len(found) == is_lost
    assert all("times its data sheet (25) on dgx-a100; a NIC may be lost" in note for note in found)
