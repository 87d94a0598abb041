"""Draw all pictures of the documentation: ``python docs/make_pictures.py``.

One of them needs a published log, in the folder that the environment variable TACCL_TEST_DATA names.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

import taccl
from taccl.aggregation import simulate_packets
from taccl.plot.style import OKABE_ITO, figure
from taccl.plot.topology import height_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

IMAGES = Path(__file__).parent / "images"


def main() -> None:
    """Write all pictures; the search needs half a minute."""
    topology = taccl.topologies.ndv2(nodes=2)
    collective = taccl.collectives.allgather(topology.num_ranks)
    problem = taccl.load_sketch("ndv2/sk1").apply(topology, collective, size="16MB")
    result = taccl.synthesize(problem, time_limit_s=30)
    table = taccl.compare(problem, backends=["auto", "greedy", "highs", "cpsat"], time_limit_s=10)
    pictures = {
        "gantt": taccl.plot.gantt(result, by="rank", ax=figure(height=4.2)),
        "topology": taccl.plot.topology(topology, result, ax=figure(height=height_of(topology))),
        "bandwidth": taccl.plot.bandwidth(taccl.plot.bandwidths(result, budget_s=300), ax=figure(height=5.2)),
        "comparison": taccl.plot.comparison(table, ax=figure()),
        "progress": taccl.plot.progress(result, ax=figure(height=4.0)),
    }
    ring = taccl.make_problem(taccl.topologies.ring(4), "allgather", size_bytes=4_000_000, chunks_per_rank=1)
    pictures |= {
        "holds": holds(taccl.topologies.dgx2(nodes=2), 0, 16),
        "ring": taccl.plot.gantt(taccl.synthesize(ring), ax=figure(height=3.2)),
    }
    pictures |= measured()
    pictures["dimensions"] = dimensions()
    pictures["slots"] = slots()
    pictures["skew"] = skew()
    for name, ax in pictures.items():
        taccl.plot.save(ax, IMAGES / f"{name}.svg", overwrite=True)


def measured() -> dict[str, Axes]:
    """Pictures of fits: a published log, the log of `real-machines.md`, and a baseline with the latter."""
    published = Path(os.environ["TACCL_TEST_DATA"]) / "nccl-tests" / "p5_x1_allreduce_aws_batch.txt"
    pages = IMAGES.parent / "real-machines.md"
    text = re.search(r'title="allreduce.log"\n(.*?)```', pages.read_text(), re.DOTALL)
    assert text is not None, "the page has a log"
    with TemporaryDirectory() as made:
        log, profile = Path(made) / "allreduce.log", Path(made) / "mine.toml"
        log.write_text(text[1])
        fit = taccl.fit([str(log)], "dgx-h100")
        profile.write_text(fit.to_toml())
        topology = taccl.topologies.dgx_h100(profile=str(profile))
        problem = taccl.make_problem(topology, "allreduce", size_bytes=64_000_000)
        sizes = ["8B", "32KB", "1MB", "8MB", "64MB", "1GB"]
        rates = taccl.plot.bandwidths(
            taccl.baselines.nccl(problem), sizes=sizes, measured=[str(log)], budget_s=300
        )
        beside = taccl.plot.bandwidth(rates)
    return {
        "p5": taccl.plot.measured(taccl.fit([str(published)], "dgx-h100"), ax=figure()),
        "measured": taccl.plot.measured(fit, ax=figure()),
        "beside": beside,
        **diagnoses((IMAGES.parent / "diagnose.md").read_text()),
    }


def diagnoses(page: str) -> dict[str, Axes]:
    """Pictures of the diagnoses of the logs in `diagnose.md`."""
    with TemporaryDirectory() as made:
        found = {}
        for name, topology in (("nvls", None), ("lanes", "dgx-a100"), ("numa", None)):
            text = re.search(rf'title="{name}.log"\n(.*?)```', page, re.DOTALL)
            assert text is not None, "the page has these logs"
            log = Path(made) / f"{name}.log"
            log.write_text(text[1])
            series = taccl.diagnose([str(log)], topology, gains=False).series[0]
            found[f"diagnose-{name}"] = taccl.plot.diagnosis(series, ax=figure(width=7, height=3.6))
    return found


def dimensions() -> Axes:
    """Picture of a fixed order of dimensions (above) and balanced orders (below), 1 GB over 16 x 64 ranks."""
    from matplotlib.figure import Figure

    dims = taccl.dimensions("multidim:switch16@100,switch64@100")
    fixed = taccl.baselines.hierarchical(dims, chunks=64, size="1GB")
    balanced = taccl.synthesize_implicit(
        dims.host, "allreduce", chunk_size=15259, chunks_per_rank=64, backend="dimension-balanced"
    )
    above, below = Figure(figsize=(9.0, 5.2), layout="constrained").subplots(2, sharex=True)
    taccl.plot.dimensions(fixed, ax=above).set_xlabel("")
    drawn: Axes = taccl.plot.dimensions(balanced.schedule, ax=below)
    drawn.set_xlim(0, fixed.finish_us)
    return drawn


def holds(topology: taccl.Topology, src: int, dst: int) -> Axes:
    """Picture of the resources that a send of 1 MB over a link holds, and the intervals of each."""
    (link,) = topology.links_between(src, dst)
    end_us = float(topology.links[link].alpha_us + topology.links[link].beta_us_per_mb)
    ax = figure(height=2.6)
    held = topology.holds_of_link[link]
    for row, hold in enumerate(held):
        took_us = float(hold.alpha_us + hold.beta_us_per_mb)
        starts_us = 0.0 if hold.side == "send" else end_us - took_us
        ax.barh(row, took_us, left=starts_us, color=OKABE_ITO[0])
        ax.annotate(
            f"{took_us:g} us", (starts_us + took_us / 2, row), ha="center", va="center", color="white"
        )
    ax.set_yticks(range(len(held)), [topology.resources[hold.resource].name for hold in held])
    ax.invert_yaxis()
    ax.set_xlabel("time since the start of the send (us)")
    ax.set_title("Resources held by a send of 1 MB between two nodes")
    return ax


def slots() -> Axes:
    """Picture of the rate of in-network reduction over the switch's slots, by schedules and by packets."""
    ax = figure(height=3.4)
    counts = (16, 32, 64, 96, 112, 122, 128, 192, 256, 512)
    adding = []
    for count in counts:
        topology = taccl.topologies.in_network(8, slots=count)
        problem = taccl.make_problem(topology, "allreduce", size_bytes=10**9)
        adding.append(taccl.baselines.in_network(problem).algbw_gb_per_s)
    runs = [simulate_packets(10_000, workers=2, slots=count).goodput_gb_per_s for count in counts]
    ax.plot(
        counts,
        [min(12.5, count * 0.1024) for count in counts],
        color="0.6",
        label="min(line, slots x payload / RTT)",
    )
    ax.plot(counts, adding, "o", color=OKABE_ITO[0], label="schedules")
    ax.plot(counts, runs, "x", color=OKABE_ITO[1], label="packets")
    ax.axvline(122, color="0.8", linestyle=":")
    ax.annotate("122 slots", (122, 2), xytext=(4, 0), textcoords="offset points")
    ax.set_xscale("log", base=2)
    ax.set_xticks(counts[:3] + (128, 256, 512), map(str, counts[:3] + (128, 256, 512)))
    ax.set_xlabel("slots of 1,024 B, with a round trip of 10 us")
    ax.set_ylabel("GB/s")
    ax.legend()
    ax.set_title("Throughput of in-network reduction with ports of 100 Gb/s")
    return ax


def skew() -> Axes:
    """Data that each NIC sends in a skewed exchange: on the sender's own NIC, and as scheduled."""
    topology = taccl.topologies.dgx_h100(nodes=2)
    sizes = taccl.skewed_sizes(topology.num_ranks, "64MB", "zipf:1.2")
    schedule = taccl.AllToAllV(topology).schedule(sizes)
    node = np.array(topology.node_of_rank)
    own = (sizes * (node[:, None] != node)).sum(axis=1)
    scheduled = np.zeros(topology.num_ranks)
    for chunk, link in zip(schedule.chunk.tolist(), schedule.link.tolist(), strict=True):
        if topology.is_internode(link):
            scheduled[topology.links[link].src] += schedule.problem.chunk_bytes[chunk]
    ax = figure(height=3.6)
    place = np.arange(topology.num_ranks)
    ax.bar(place - 0.2, own / 10**6, 0.4, color=OKABE_ITO[0], label="each rank sends by its own NIC")
    ax.bar(place + 0.2, scheduled / 10**6, 0.4, color=OKABE_ITO[1], label="scheduled")
    ax.set(xlabel="NIC, by rank", ylabel="MB sent between nodes", xticks=place)
    ax.set_title(
        f"{topology.name}, Zipf 1.2 over all pairs, 64 MB per rank: {schedule.finish_us:.0f} us", loc="left"
    )
    ax.legend(frameon=False)
    return ax


if __name__ == "__main__":
    main()
