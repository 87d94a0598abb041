"""JSON of nccl-tests is read as the text that it prints."""

import json

import pytest

from taccl.measure.json_logs import printed
from taccl.measure.logs import log_of_text

SIZES = (8, 2**20, 2**30)


def run(num_ranks=4, *, hosts=2, time="time", **changes):
    """A run as nccl-tests writes it, on ranks that are processes of their own."""
    devices = [
        {
            "rank": rank, "group": 0, "pid": 100 + rank, "hostname": f"host{rank * hosts // num_ranks}",
            "device": rank, "device_hex": "0000:18:00", "device_info": "NVIDIA H100 80GB HBM3",
        }
        for rank in range(num_ranks)
    ]  # fmt: skip
    factor = 2 * (num_ranks - 1) / num_ranks
    rows = []
    for size in SIZES:
        sides = {}
        for side, time_us in (("out_of_place", 20 + size / 1e5), ("in_place", 30 + size / 1e5)):
            algbw = size / time_us / 1000
            sides[side] = {time: time_us, "alg_bw": algbw, "bus_bw": algbw * factor, "nwrong": 0.0}
        row = {"size": size, "count": size // 4, "type": "float", "redop": "sum", "root": "    -1", **sides}
        rows.append({**row, "actual_iterations": 20, "experiment_name": "AllReduce"})
    return {
        "version": 2, "args": ["./build/all_reduce_perf", "-b", "8"], "env": ["HOME=/", "NCCL_P2P_DISABLE=1"],
        "config": {"nthreads": 1, "ngpus": 1, "devices": devices}, "results": rows, **changes,
    }  # fmt: skip


@pytest.mark.parametrize(("in_place", "first_us"), [(False, 20.0), (True, 30.0)])
def test_a_run_is_read_with_its_ranks_and_gpus(in_place, first_us):
    """Collective, ranks, hosts, GPUs, times and settings are those of the JSON."""
    found = log_of_text(json.dumps(run()), "a.json", in_place=in_place)
    (series,) = found.series
    assert series.title == "allreduce on 4 ranks in 2 nodes"
    assert (series.size_bytes, series.ranks_per_process) == (SIZES, 1)
    assert series.times_us[0] == pytest.approx(first_us, abs=0.01)
    assert found.gpus == {"NVIDIA H100 80GB HBM3"}
    assert set(found.debug.causes) == {"p2p-disabled"}
    assert not found.left_out
    assert (found.path, series.source) == ("a.json", "a.json, as text: line 9")


def test_several_runs_in_one_file_are_read():
    """Each run of a file that joins the JSON of several runs is a series."""
    text = json.dumps(run(), indent=2) + "\n" + json.dumps(run(8))
    assert [each.num_ranks for each in log_of_text(text, "a.json").series] == [4, 8]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize(("end", "num_sizes"), [('"in_place"', 3), ('"bus_bw"', 2), ('"average', 3)])
def test_rows_of_a_run_that_was_ended_are_read(indent, end, num_sizes):
    """nccl-tests writes rows one by one: those whose times are whole are read if the file ends early.

    The file ends within the last row before or behind the results out of place, or behind all rows.
    """
    text = json.dumps(run(average_bus_bandwidth={"bandwidth": 1}), indent=indent)
    place = text.rindex('"out_of_place"') if end == '"bus_bw"' else 0
    cut = text[: text.index(end, place) if place else text.rindex(end)]
    found = log_of_text(cut, "a.json")
    assert found.series[0].size_bytes == SIZES[:num_sizes]
    assert "its JSON is cut off, so rows may be missing" in found.notes


def test_runs_in_a_list_are_read():
    """Tools that collect the JSON of several runs put them into a list."""
    text = json.dumps([run(), run(8)])
    assert [each.num_ranks for each in log_of_text(text, "a.json").series] == [4, 8]


def test_times_of_the_cpu_are_noted():
    """With -C the JSON has CPU times, so times follow from bandwidths."""
    assert any("of the CPU" in note for note in log_of_text(json.dumps(run(time="cpu_time")), "a").notes)


@pytest.mark.parametrize("collective", ["all_reduce_perf", "broadcast_perf"])
def test_ranks_of_a_process_are_counted(collective):
    """The JSON lists the first device of each process alone; the others follow from GPUs per process."""
    text = run(16, args=[collective])
    text["config"]["ngpus"], text["config"]["devices"] = 8, text["config"]["devices"][::8]
    (series,) = log_of_text(json.dumps(text), "a.json").series
    assert (series.num_ranks, series.num_nodes, series.ranks_per_process) == (16, 2, 8)


@pytest.mark.parametrize("text", [
    "", "{", "{}", '{"results": 3}', '{"results": [4, {}]}', "8 2 float sum -1", "[", "[3, {}]", '{"algBw": 3}',
])  # fmt: skip
def test_other_text_is_unchanged(text):
    """Text without a run of nccl-tests, or without sizes, times and places of rccl-tests, stays as it is."""
    assert printed(text) == text


@pytest.mark.parametrize(
    "changes", [{"args": None, "config": None, "env": 4}, {"config": {"devices": [1, {}]}}]
)
def test_absent_parts_are_not_needed(changes):
    """Rows alone suffice, since the ranks follow from their bandwidths."""
    (series,) = log_of_text(json.dumps(run(**changes)), "a.json").series
    assert (series.collective, series.num_ranks) == ("allreduce", 4)


def records(name="AllReduce", *, ranks=8, is_old=False):
    """Rows of both places as rccl-tests writes them; before 2025 it wrote one object for each line."""
    factor = {"AllReduce": 2 * (ranks - 1) / ranks, "Broadcast": 1, "Reduce": 1}.get(
        name, (ranks - 1) / ranks
    )
    rows = []
    for size in SIZES:
        for place, start_us in enumerate((20, 30)):
            time_us = start_us + size / 1e5
            algbw = size / time_us / 1000
            redop = "sum" if "Reduce" in name else "none"
            row = {
                "name": name,
                "size": size,
                "type": "float",
                "redop": redop,
                "inPlace": place,
                "time": time_us,
            }
            row |= {"algBw": algbw, "busBw": algbw * factor}
            new = {
                "numCycle": 0,
                "nodes": 1,
                "ranks": ranks,
                "ranksPerNode": ranks,
                "gpusPerRank": 1,
                "wrong": "0",
            }
            rows.append(row | ({"gpus": ranks, "#wrong": "0"} if is_old else new))
    return "\n".join(map(json.dumps, rows)) if is_old else json.dumps(rows, indent=0)


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize(("name", "collective"), [
    ("AllReduce", "allreduce"), ("Broadcast", "broadcast"), ("Reduce", "reduce"), ("AlltoAll", "alltoall"),
    ("AllGather", "allgather"), ("ReduceScatter", "reduce-scatter"),
])  # fmt: skip
@pytest.mark.parametrize(("in_place", "first_us"), [(False, 20.0), (True, 30.0)])
def test_files_of_rccl_tests_are_read(is_old, name, collective, in_place, first_us):
    """JSON that rccl-tests writes (-x) has collective, ranks and the times of both places."""
    (series,) = log_of_text(records(name, is_old=is_old), "a.json", in_place=in_place).series
    assert (series.collective, series.num_ranks, series.size_bytes) == (collective, 8, SIZES)
    assert series.times_us[0] == pytest.approx(first_us, abs=0.01)


@pytest.mark.parametrize(("in_place", "first_us"), [(False, 20.0), (True, 30.0)])
def test_places_of_rccl_tests_may_be_true_or_false(in_place, first_us):
    """The time of one place does not stand for the other if JSON states places as true and false."""
    text = records().replace('"inPlace": 0', '"inPlace": false').replace('"inPlace": 1', '"inPlace": true')
    (series,) = log_of_text(text, "a.json", in_place=in_place).series
    assert series.times_us[0] == pytest.approx(first_us, abs=0.01)


@pytest.mark.parametrize(
    ("name", "ours", "parts"), [("AllReduce", "allreduce", 1), ("AllGather", "allgather", 8)]
)
def test_records_of_the_inspector_are_read(name, ours, parts):
    """A size has the median time of its records; those of gathers state one rank's part.

    Records of other kinds, and of communicators of one rank, are left out."""
    records = [
        {
            "header": {"id": "0x1", "rank": rank, "n_ranks": num_ranks, "nnodes": min(2, num_ranks)},
            "coll_perf": {"coll": coll, "coll_msg_size_bytes": size, "coll_exec_time_us": time_us},
        }
        for coll, num_ranks in ((name, 8), ("SendRecv", 8), (name, 1))
        for size in (2**20, 2**26)
        for rank, time_us in enumerate((size // 10**5, size // 10**5 + 1, size // 10**4))
    ]  # fmt: skip
    log = log_of_text("\n".join(map(json.dumps, records)), "inspector.log")
    (series,) = log.series
    assert (series.collective, series.num_ranks, series.num_nodes) == (ours, 8, 2)
    assert series.size_bytes == (2**20 * parts, 2**26 * parts)
    assert series.times_us == (11, 672)
    assert any("without launches, by NCCL's Inspector" in note for note in log.notes)
