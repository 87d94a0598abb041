"""Settings of in-network aggregation jobs, read back by the rules of the programs that use them."""

import configparser
import json

import pytest

import taccl
from taccl.aggregation import largest_scale, switch_job
from taccl.errors import ExportError
from taccl.formats.registry import write
from taccl.problem.collectives import allreduce, together
from taccl.topologies import in_network


def summed(topology, size="10MB", *, name="in-network"):
    """An allreduce schedule by switches or another baseline."""
    return taccl.baselines.baseline(name, taccl.make_problem(topology, "allreduce", size_bytes=size))


def general_section(text):
    """The section ``[general]`` of switchml.cfg, parsed as by p4app-switchML's `config.cc`."""
    types = {
        "rank": int, "num_workers": int, "num_worker_threads": int, "max_outstanding_packets": int,
        "packet_numel": int, "backend": str, "scheduler": str, "prepostprocessor": str,
        "instant_job_completion": bool, "controller_ip": str, "controller_port": int,
    }  # fmt: skip
    parser = configparser.ConfigParser()
    parser.read_string(text)
    assert parser.sections() == ["general"]
    found = {name: types[name](value) for name, value in parser["general"].items()}
    assert 0 <= found["rank"] < found["num_workers"] <= 32
    assert found["max_outstanding_packets"] % found["num_worker_threads"] == 0
    assert found["packet_numel"] in (64, 256)
    assert found["prepostprocessor"] in ("bypass", "cpu_exponent_quantizer")
    assert (found["backend"], found["scheduler"]) in (("dpdk", "fifo"), ("rdma", "fifo"))
    return found


def test_settings_are_those_of_the_switch(tmp_path):
    """A job has workers, slots, bytes and exponents per packet, as JSON and as a worker's configuration."""
    schedule = summed(in_network(8, slots=128, payload_bytes=1024))
    (path,) = write(schedule, tmp_path / "sum.job.json")
    job = json.loads(path.read_text())
    assert (job["format"], job["version"], job["num_workers"]) == ("taccl-switch-job", 1, 8)
    assert (job["workers"], job["slots"], job["packet_bytes"]) == ([*range(8)], 128, 1024)
    assert (job["dtype"], job["scale"], job["block"]) == ("int32", None, 256)
    assert (job["share"], job["finish_us"]) == (1.0, schedule.finish_us)
    assert job["size_bytes"] == sum(schedule.problem.chunk_bytes)
    found = general_section(switch_job(schedule).switchml_config(5, backend="rdma"))
    assert found["max_outstanding_packets"] * found["packet_numel"] * 4 == 128 * 1024
    assert (found["rank"], found["num_workers"]) == (5, 8)


def test_a_bound_on_the_numbers_gives_one_scale():
    """A bound on the numbers gives one scale instead of exponents: the largest without overflow."""
    job = switch_job(summed(in_network(8)), most=2)
    assert (job.scale, job.block) == (largest_scale(2, 8), None)


@pytest.mark.slow
def test_a_job_of_switch_and_ranks_states_the_share_of_the_switch():
    """If some sums are formed by the switch and the others by ranks, the job states the switch's share of the
    bytes."""
    problem = taccl.make_problem(in_network(8, slots=64), "allreduce", size_bytes=10**7)
    schedule = taccl.synthesize(problem, time_limit_s=60).schedule
    job = switch_job(schedule)
    assert 0.5 < job.share < 0.7
    assert job.size_bytes == round(job.share * sum(schedule.problem.chunk_bytes))


def test_a_switch_of_real_numbers_has_no_scale():
    """NVLink SHARP adds float32, and has no scale, slots or packets."""
    schedule = summed(taccl.topologies.dgx_h100(nvls=True), "1GB")
    job = switch_job(schedule)
    assert (job.slots, job.packet_bytes, job.dtype, job.scale, job.block) == (
        None,
        None,
        "float32",
        None,
        None,
    )
    with pytest.raises(ExportError, match="adds float32; leave it out"):
        switch_job(schedule, most=1)
    with pytest.raises(ExportError, match="the prototype adds only int32"):
        job.switchml_config(0)


def test_schedules_without_one_group_of_sums_are_refused():
    """A schedule is refused if the switch sums nothing, or sums for two groups of workers."""
    with pytest.raises(ExportError, match="no sum made by a switch"):
        switch_job(summed(in_network(4), name="ring"))
    groups = [range(4), range(4, 8)]
    both = together([allreduce(4).among(list(each), num_ranks=8) for each in groups])
    problem = taccl.make_problem(in_network(8, groups=groups), both, chunk_bytes=10**6)
    with pytest.raises(ExportError, match="sums for 2 groups of ranks"):
        switch_job(taccl.baselines.in_network(problem, cut=False))


@pytest.mark.parametrize(
    ("options", "rank", "message"),
    [
        ({}, 9, "found rank 9, which is no worker"),
        ({"payload_bytes": 128}, 0, "found packets of 32 numbers; expected 64 or 256"),
        ({"slots": 9000}, 0, "found 9000 slots; expected at most 8192"),
        ({"slots": 18}, 0, "found 18 slots; expected at most 8192, a multiple of 4 threads"),
        ({"workers": 33}, 0, "expected at most 32 workers"),
    ],
)
def test_what_the_prototype_lacks_is_refused(options, rank, message):
    """The error for a setting that the prototype does not support gives its limit."""
    job = switch_job(summed(in_network(**{"workers": 8, **options})))
    with pytest.raises(ExportError, match=message):
        job.switchml_config(rank)
