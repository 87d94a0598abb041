"""Fits recover the parameters behind invented times, and claim no others."""

from dataclasses import replace

import numpy as np
import pytest

import taccl
from taccl.errors import FormatError, InputError
from taccl.formats.nccl.topology import load_nccl_topology
from taccl.measure.estimate import Observed, estimate, lines
from taccl.measure.fit import calibrated
from taccl.measure.model import PARAMETERS, priors, terms_of, times_us
from taccl.measure.predict import costs_of, predicted_us
from taccl.measure.series import BETWEEN_RUNS, Series
from tests.explore.degraded import NVLS, node_log
from tests.measure.logs import HEAD, SIZES, row, table
from tests.measure.logs import time_us as line_us
from tests.nvswitch import server_xml

pytestmark = pytest.mark.usefixtures("_quick_fits")


def found_in(fit):
    """{name: parameter} of a fit."""
    return {each.name: each for each in fit.parameters}


@pytest.mark.slow
def test_a_line_is_found(line_fit):
    """A fit finds the rate of a line of latency and bandwidth.

    20 us and 200 GB/s of algbw on 8 ranks are fitted as 350 GB/s per rank with an error below 1 %.
    """
    assert line_fit.median_error < 0.01
    assert found_in(line_fit)["node_gb_per_s"].value == pytest.approx(350, rel=0.02)
    assert line_fit.predict_us("allreduce", 8, 1, 2**33) == pytest.approx(2**33 / 200e3, rel=0.03)


@pytest.mark.slow
def test_predictions_follow_the_protocol_of_each_size(line_fit):
    """A size that the library sends by LL is predicted by LL, as profiles do; other sizes by the fastest one."""
    (found,) = line_fit.series
    asked = "allreduce", 8, 1
    only_ll = replace(found, series=replace(found.series, size_bytes=(8, 2**30), times_us=(20.0, 9e3)))
    only_ll = replace(only_ll, predicted_us=(20.0, 9e3), protocols=(0, 0))
    by_ll = replace(line_fit, series=(only_ll,), protocols=(0, 2))
    by_any = replace(by_ll, series=(replace(only_ll, protocols=(2, 2)),))
    assert by_ll.predict_us(*asked, 2**30) > 1.8 * by_any.predict_us(*asked, 2**30)
    assert by_ll.predict_us(*asked, 2**31) == by_any.predict_us(*asked, 2**31)


@pytest.mark.slow
def test_logs_of_subsets_share_the_rate_of_a_link(log):
    """Two of 8 fully connected GPUs have one of seven links, so both logs show the rate of all seven."""
    logs = [
        log(
            "\n".join(
                [
                    "# all_reduce_perf",
                    HEAD,
                    *(row(size, line_us(size, gb_per_s=rate), ranks=ranks) for size in SIZES),
                ]
            ),
            name,
        )
        for ranks, rate, name in ((8, 180, "eight.log"), (2, 45, "two.log"))
    ]
    fit = taccl.fit(logs, "mi300x")
    assert found_in(fit)["node_gb_per_s"].value == pytest.approx(315, rel=0.03)
    assert fit.predict_us("allreduce", 2, 1, 2**33) == pytest.approx(2**33 / 45e3, rel=0.03)


@pytest.mark.slow
def test_network_parameters_stay_at_their_priors_for_one_node(line_fit):
    """A log of one node leaves network parameters at their priors, and the fit says so."""
    network = found_in(line_fit)["network_gb_per_s"]
    assert (network.value, network.determined) == (50.0, False)
    assert network.source.startswith("prior, not determined")


@pytest.mark.slow
def test_large_sizes_claim_no_latency(log):
    """From sizes so large that all times grow with size, no latency is fitted."""
    fit = taccl.fit([log(table(sizes=tuple(2**power for power in range(28, 34))))], "dgx-h100")
    determined = {each.name for each in fit.parameters if each.determined}
    assert determined == {"node_gb_per_s"}


@pytest.mark.slow
def test_intervals_hold_their_values(line_fit):
    """Every fitted parameter lies in its confidence interval."""
    for each in line_fit.parameters:
        assert each.low <= each.value <= each.high


@pytest.mark.slow
def test_fits_are_the_same_every_time(line_log, line_fit):
    """The same logs and seed give the same fit."""
    assert taccl.fit([line_log], "dgx-h100").to_dict() == line_fit.to_dict()


@pytest.mark.slow
def test_poor_fits_are_refused_unless_accepted(log):
    """A poor fit is refused unless accepted."""
    rows = []
    for place, power in enumerate(range(10, 20)):
        time = 100.0 if place % 2 else 1000.0
        algbw = 2**power / time / 1000
        rows.append(f"{2**power} 1 float sum -1 {time} {algbw:.4f} {algbw * 1.75:.4f} 0")
    fit = taccl.fit([log("# all_reduce_perf\n" + "\n".join(rows))], "dgx-h100", nodes=1)
    assert fit.median_error > 0.15
    with pytest.raises(InputError, match="found a median error of .*; expected at most 15%"):
        fit.to_toml()
    assert "machine" in fit.to_toml(accept=True)


def test_logs_of_different_machines_are_refused(log):
    """Logs of two kinds of GPU are refused."""
    paths = []
    for gpu in ("NVIDIA A", "AMD B"):
        device = f"#  Rank  0 Group 0 Pid 1 on host0 device  0 [0000:05:00] {gpu}\n"
        paths.append(log(device + table(), f"{gpu}.log"))
    with pytest.raises(FormatError, match="found AMD B, but .* is of NVIDIA A; fit them one at a time"):
        taccl.fit(paths, "dgx-h100")


def test_a_log_of_mixed_gpus_is_refused(log):
    """A log whose ranks have two kinds of GPU is not fitted, as its machine is mixed."""
    names = ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB")
    devices = "".join(
        f"#  Rank  {rank} Group 0 Pid 1 on host0 device  {rank} [0000:05:00] {names[rank % 2]}\n"
        for rank in range(8)
    )
    with pytest.raises(FormatError, match="found mixed GPUs, .*; fit equal GPUs only"):
        taccl.fit([log(devices + table())], "dgx-h100")


def test_more_ranks_than_the_machine_has_are_refused(log):
    """A log of 16 ranks is refused for one node of 8."""
    with pytest.raises(
        InputError, match="found 16 ranks in 2 nodes; expected at most 1 node of 8 ranks; check"
    ):
        taccl.fit([log(table(ranks=16))], "dgx-h100", nodes=1)


def test_fabrics_are_no_machines(log):
    """Fabrics such as a ring cannot be fitted, as they have no profile."""
    with pytest.raises(InputError, match="topology: found 'ring:8'; expected a machine model"):
        taccl.fit([log(table())], "ring:8")


def test_the_model_by_hand():
    """The model's time of LL on a ring of 8 equals the one computed by hand.

    Its terms are launch 1.8 us, base 6.6, 14 hops of 0.6, and 1.75 times the bytes at half of 450 GB/s.
    """
    logs = np.log([each.value for each in priors(450.0, 50.0, "")])
    assert len(logs) == len(PARAMETERS)
    terms = terms_of(Series("allreduce", 8, 1, (8,), (1.0,), ""), 1)
    ll, _, simple = times_us(terms, np.array([0.0, 1e9]), logs).T[0]
    assert ll == pytest.approx(1.8 + 6.6 + 14 * 0.6)
    assert simple == pytest.approx(1.8 + 8.4 + 14 * 3.4)
    further = 7 * 0.3  # all 8 channels are in use
    assert times_us(terms, np.array([1e9]), logs)[0, 0] - ll == pytest.approx(1.75e9 / 225e3 + further)


def test_sums_in_switches_are_an_algorithm_of_their_own():
    """Large sums in switches (NVLS) move each byte once, at a share of the links' rate, here 0.7.

    Small sums under LL take as long as without NVLS.
    """
    logs = np.log([each.value for each in priors(450.0, 50.0, "")])
    asked = Series("allreduce", 8, 1, (8,), (1.0,), "")
    plain, adding = (terms_of(asked, 1, share) for share in (0.0, 0.7))
    small, large = (np.array([size]) for size in (8.0, 8e9))
    assert times_us(adding, small, logs)[0, 0] == times_us(plain, small, logs)[0, 0]
    assert times_us(adding, large, logs)[2, 0] == pytest.approx(8e9 / (450e3 * 0.7), rel=0.01)


@pytest.mark.slow
def test_an_allgather_says_nothing_of_sums_in_switches(log):
    """An allgather's log does not change the prediction that 8 H100 use NVLS for sums."""
    text = table(redop="none", sizes=SIZES[::3]).replace("all_reduce", "all_gather")
    fit = taccl.fit([log(text)], "dgx-h100", collective="allgather")
    assert (fit.nvls_share, fit.costs.nvls) == (0.0, True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::taccl.errors.AssumptionWarning")
@pytest.mark.parametrize(("nvlinks", "sm"), [(18, 90), (12, 80)], ids=["h100", "a100"])
def test_sums_in_switches_of_a_file_are_no_faster_links(log, tmp_path, nvlinks, sm):
    """A log of 8 H100 with NVLS, fitted to a file of H100, gives the links' own rate and a share of it for
    NVLS.

    Fitted to a file of A100, which has no NVLS, it gives links as fast as the times require.
    """
    path = tmp_path / "server.xml"
    path.write_text(server_xml(sm, nvlinks))
    text = "\n".join(line for line in node_log(NVLS).splitlines() if "Rank" not in line)
    fit = taccl.fit([log(text)], load_nccl_topology(path), nodes=1)
    rate = found_in(fit)["node_gb_per_s"].value
    assert fit.nvls_share == pytest.approx(17 / 24 if sm == 90 else 0)
    assert rate == pytest.approx(370.8 if sm == 90 else NVLS, rel=0.08)
    assert any("NVSwitch sums data (NVLS)" in note for note in fit.notes) == (sm == 90)


@pytest.mark.slow
def test_shares_stop_at_their_physical_limit(log):
    """If times grow tenfold within the sizes of LL, its share of the bandwidth stays at a physical limit, and
    a note says so."""
    small = "".join(f"{2**power} 1 float sum -1 {20 + 2**power / 200:.2f}\n" for power in range(3, 14))
    large = "".join(f"{2**power} 1 float sum -1 {70 + 2**power / 2e5:.2f}\n" for power in range(14, 31))
    fit = taccl.fit(
        [log(f"# all_reduce_perf\n# size count type redop root time\n{small}{large}")], "dgx-h100"
    )
    found = found_in(fit)
    assert 0.2 * 0.999 <= found["ll_share"].value <= 0.5
    assert any("its physical limit" in note for note in fit.notes)


@pytest.mark.slow
def test_no_fit_exceeds_the_wire(log):
    """A log that is 100 times faster than NVLink gives a link no more than its wire, 450 GB/s: it is refused,
    and a note names the assumption that fails.
    """
    rows = "".join(f"{2**power} 1 float sum -1 {16 + 2**power / 2e7:.2f}\n" for power in range(20, 34, 3))
    fit = taccl.fit([log(f"# all_reduce_perf -g 8\n# size count type redop root time\n{rows}")], "dgx-h100")
    assert found_in(fit)["node_gb_per_s"].value == pytest.approx(450, rel=1e-3)
    assert any("node_gb_per_s is at its limit of 450" in note for note in fit.notes)
    with pytest.raises(InputError, match="the model does not describe these logs"):
        fit.to_toml()


@pytest.mark.slow
def test_priors_that_times_contradict_are_given_up(tmp_path):
    """A prior that times contradict is replaced by a fitted value: 1.2 us contradict a launch of 1.8 us."""
    path = tmp_path / "osu.txt"
    sizes = "".join(f"{2**power} {1.2 + 2**power / 25e3:.3f}\n" for power in range(1, 24))
    path.write_text(f"# OSU MPI Latency Test v7.1\n# Size Latency (us)\n{sizes}")
    fit = taccl.fit([str(path)], "dgx-h100")
    assert fit.median_error < 0.03
    assert found_in(fit)["launch_us"].value < 1.2


def test_two_sizes_are_no_range():
    """Two sizes with slow times are not taken for a range of sizes with another protocol; four sizes are."""
    sizes = 2.0 ** np.arange(3, 20)
    for odd, is_range in ((1, False), (2, False), (4, True)):
        times = 10 + sizes / 1e5
        times[:odd] *= 10
        assert (len(set(lines(sizes, times).tolist())) > 1) == is_range


def test_what_is_taken_is_about_the_fastest():
    """The protocol that a log's library chose is assumed to be nearly the fastest at each size.

    Here LL is used up to 512 KiB, and the next protocol takes 30 us more.
    """
    terms = terms_of(Series("allreduce", 8, 1, (8,), (1.0,), ""), 1)
    sizes = 2.0 ** np.arange(3, 33)
    truth = np.log([5, 1, 1, 1, 1, 25 / 56, 450, 50, 0.5, 0.9, 1e-6])
    chosen = np.where(sizes < 2**20, 0, 2)
    times = times_us(terms, sizes, truth)[chosen, np.arange(len(sizes))]
    found = estimate([Observed(terms, sizes, times)], priors(450.0, 50.0, ""))
    predicted = times_us(terms, sizes, found.logs)[[0, 2]].min(axis=0)
    assert (predicted / times < 0.9).sum() <= 1


@pytest.mark.slow
@pytest.mark.slow
def test_rings_between_nodes_are_no_trees_over_slower_nics(log):
    """A log of sums on two DGX A100 gives the rate of its NICs, though trees over slower ones take as long.

    NCCL's choice is rings, in which a NIC sends 15/8 of an eighth of the bytes. Trees send 1/0.92 of an
    eighth, for which 14 GB/s suffice.
    """
    costs = costs_of("dgx-a100", network_gb_per_s=26)  # of which large messages reach 0.93
    sizes = tuple(2**power for power in range(26, 34))
    times = predicted_us(costs, "allreduce", 16, 2, np.array(sizes, float))
    rows = [row(size, time, ranks=16) for size, time in zip(sizes, times, strict=True)]
    fit = taccl.fit([log("\n".join(["# all_reduce_perf", HEAD, *rows]))], "dgx-a100", nodes=2)
    rate = found_in(fit)["network_gb_per_s"]
    assert rate.determined
    assert rate.value == pytest.approx(26 * 0.93, rel=0.03)
    assert not found_in(fit)["node_gb_per_s"].determined
    assert fit.predict_us("allreduce", 16, 2, 2**30) == pytest.approx(times[4], rel=0.02)


@pytest.mark.slow
def test_a_log_of_one_node_beside_leaves_rings_between_nodes_rings(log):
    """Logs of sums on one DGX A100 and on two give the rates of NVLinks and NICs.

    The model is less exact on small sizes, where NCCL uses trees, but their errors do not decide on large ones.
    """
    logs = []
    for nodes in (1, 2):
        times = predicted_us(costs_of("dgx-a100"), "allreduce", 8 * nodes, nodes, np.array(SIZES, float))
        rows = [row(size, time, ranks=8 * nodes) for size, time in zip(SIZES, times, strict=True)]
        logs.append(log("\n".join(["# all_reduce_perf", HEAD, *rows]), f"{nodes}.log"))
    found = found_in(taccl.fit(logs, "dgx-a100", nodes=2))
    assert found["node_gb_per_s"].value == pytest.approx(240, rel=0.05)
    assert found["network_gb_per_s"].value == pytest.approx(25 * 0.93, rel=0.03)


@pytest.mark.slow
def test_networks_without_ll_have_large_latencies_and_no_faster_nics(log):
    """A log over TCPX, which allows simple alone, gives the NICs' rate, whatever shape small sizes have.

    These times, nearly those of a published log, fit LL as well, with NICs of 47 GB/s in place of 25.
    """
    times = (1000, 990, 940, 1010, 1060, 1120, 1330, 1940, 3620, 7100)
    rows = [row(2**power, time, ranks=16, redop="none") for power, time in enumerate(times, 20)]
    fit = taccl.fit([log("\n".join(["# all_gather_perf", HEAD, *rows]))], "a3-highgpu-8g", nodes=2)
    assert fit.series[0].protocols == (2,) * len(times)
    assert found_in(fit)["network_gb_per_s"].value < 25


@pytest.mark.slow
def test_large_messages_use_no_slow_protocol(log):
    """The largest messages are simple, not LL128 over faster links, as simple would be faster over these.

    The times are nearly those of a published log of 4 H100: 348 GB/s for each link.
    """
    times = (110, 191, 348, 658, 1270, 2470, 4850, 9540, 18500, 37000)
    rows = [row(2**power, time, ranks=4, redop="none") for power, time in enumerate(times, 25)]
    fit = taccl.fit([log("\n".join(["# all_gather_perf", HEAD, *rows]))], "dgx-h100", nodes=1)
    assert fit.series[0].protocols[-1] == 2
    assert found_in(fit)["node_gb_per_s"].value == pytest.approx(348, rel=0.03)


def test_trays_of_a_rack_are_no_nodes(log):
    """8 ranks on two hosts are two nodes of H100, but two trays of one GB200 rack."""
    devices = "".join(
        f"#  Rank  {r} Group 0 Pid 1 on host{r // 4} device  {r % 4} [0x01] A GPU\n" for r in range(8)
    )
    path = log(f"# Using devices\n{devices}" + table(ranks=8, sizes=SIZES[17:27:3]))
    for machine, nodes in (("dgx-h100", 2), ("gb200-nvl72", 1)):
        (found,) = taccl.fit([path], machine).series
        assert (found.series.num_ranks, found.series.num_nodes) == (8, nodes)


@pytest.mark.slow
def test_bus_bandwidth_alone_is_fitted(log):
    """A table with bus bandwidth alone is fitted: 350 GB/s on a node of 8 ranks."""
    text = "# all_reduce_perf\n| Size | busbw (GB/s) |\n| 1G | 350.0 |\n| 4G | 350.0 |\n| 8G | 350.0 |\n"
    fit = taccl.fit([log(text)], "dgx-h100", nodes=1)
    assert found_in(fit)["node_gb_per_s"].value == pytest.approx(350, rel=0.02)


@pytest.mark.slow
def test_other_collectives_follow_the_calibrated_library(tmp_path):
    """A network twice as slow as its class also affects collectives without a log."""
    slow = replace(costs_of("dgx-a100"), network_latency=2.0)
    sizes = 2.0 ** np.arange(3, 31, 3)
    times = predicted_us(slow, "allreduce", 16, 2, sizes)
    rows = "\n".join(f"{int(size)} 1 float sum -1 {us:.2f}" for size, us in zip(sizes, times, strict=True))
    path = tmp_path / "two.txt"
    path.write_text(f"# all_reduce_perf\n# size count type redop root time\n{rows}\n")
    fit = taccl.fit([str(path)], "dgx-a100", nodes=2)
    asked = "allgather", 16, 2, 8
    assert fit.predict_us(*asked) == pytest.approx(
        predicted_us(slow, *asked[:3], np.array([8.0]))[0], rel=0.1
    )


def test_a_stream_gives_the_rate_of_a_nic():
    """A stream measured by perftest sets the NIC's rate."""
    stream = Series("point-to-point", 2, 2, (1 << 23,), ((1 << 23) / 20e3,), "", streams=True)
    assert calibrated(costs_of("dgx-a100"), [stream]).nic_gb_per_s == pytest.approx(20)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("is_named", "ranks", "without"), [(True, (0, 3), ()), (False, None, (1, 2, 4, 5, 6, 7))]
)
def test_a_fit_counts_the_links_of_the_selected_ranks(log, is_named, ranks, without):
    """GPUs 0 and 3 of a DGX-1 have two of six NVLinks: 44 GB/s between them are 132 of a GPU's links.

    A topology file has the same links as the machine by name.
    """
    lines = [row(size, line_us(size, gb_per_s=44), ranks=2) for size in SIZES[::3]]
    path = log("\n".join(["# all_reduce_perf", HEAD, *lines]))
    on = "dgx1" if is_named else replace(taccl.topologies.parse("dgx1"), machine="")
    fit = taccl.fit([path], on, ranks=ranks, without_ranks=without)
    assert fit.links_shares == {2: pytest.approx(2 / 6)}
    assert found_in(fit)["node_gb_per_s"].value == pytest.approx(132, rel=0.03)


def test_selected_ranks_are_the_same_in_each_node(log):
    """Nodes with different ranks, more ranks in the log than selected, and unknown ranks are refused."""
    path = log(table(ranks=4))
    for ranks, nodes, said in (
        ((0, 1, 8), 2, "different ranks"),
        ((0, 1), 1, "found 4 ranks in 2 nodes; expected at most 1 node of 2 ranks"),
        ((8,), 1, "rank 8 does not exist"),
    ):
        with pytest.raises(InputError, match=said):
            taccl.fit([path], "dgx-a100", nodes=nodes, ranks=ranks)


@pytest.mark.slow
def test_a_fit_to_a_topology_file_names_the_topology(log):
    """A topology without a machine model is named by its own name, also in sources of priors."""
    fit = taccl.fit([log(table(ranks=4))], replace(taccl.topologies.ring(4), machine=""))
    assert fit.machine == "ring:4"
    assert any(each.source == "prior, not determined (ring:4)" for each in fit.parameters)


@pytest.mark.filterwarnings("ignore::taccl.errors.AssumptionWarning")
def test_a_topology_with_fewer_nodes_than_a_log_is_refused(tmp_path, shared_data):
    """A log of two hosts is not fitted on the topology of one server, which has no network; the way out is named."""
    path = tmp_path / "server.xml"
    path.write_text(server_xml(90, 18))
    log = str(shared_data / "nccl-tests/h100_oci_x2_allreduce_large.txt")
    with pytest.raises(
        InputError, match="found 16 ranks; .* has 8 here: .*--set nodes=2` makes a file of more"
    ):
        taccl.fit([log], load_nccl_topology(path))


@pytest.mark.slow
@pytest.mark.parametrize(("sizes", "is_told"), [((2**30,), True), ((2**28, 2**29, 2**30), False)])
def test_too_few_sizes_have_the_interval_of_the_prior(log, sizes, is_told):
    """A single size agrees with itself, which proves no rate: its interval is that of the prior."""
    found = taccl.fit([log(table(sizes=sizes))], "dgx-a100")
    (rate,) = (each for each in found.parameters if each.name == "node_gb_per_s")
    assert rate.determined
    assert ("too few sizes" in rate.source) == is_told
    assert (rate.high / rate.low > 2) == is_told


def test_messages_that_few_channels_limit_are_refused(tmp_path):
    """Among 128 ranks a message between nodes has one channel, whose rate is not that of a NIC."""
    gpus = "".join(
        f"#  Rank {i} Group 0 Pid {i} on n{i // 8} device {i % 8} [0x1] NVIDIA B200\n" for i in range(128)
    )
    rows = "".join(
        f" {2**k} {2**k // 4} float sum -1 {2**k / 14.5e3:.1f} 14.5 14.5 0\n" for k in range(26, 32)
    )
    log = tmp_path / "pairs.log"
    log.write_text(f"# sendrecv_perf\n{gpus}{rows}")
    with pytest.raises(InputError, match="1 channel of about 14 GB/s among 128 ranks.*add a collective"):
        taccl.fit([str(log)], "b200")


def test_a_profile_between_two_runs_is_refused(line_fit):
    """The median of two runs, of which one is far slower, describes none of them."""
    assert not line_fit.complaint
    between = replace(line_fit, notes=(f"a.log: 2 runs differ by 20 times; {BETWEEN_RUNS}",))
    with pytest.raises(InputError, match="describes none of them: keep the log of one"):
        between.to_toml()


@pytest.mark.slow
def test_logs_whose_bandwidths_differ_are_refused(tmp_path):
    """Two logs of one collective are refused as two runs in one log are: their median describes neither."""
    gpus = "".join(
        f"#  Rank {i} Group 0 Pid {i} on n0 device {i} [0x1] NVIDIA H100 80GB HBM3\n" for i in range(8)
    )
    paths = []
    for name, gb_per_s in (("fast", 270), ("slow", 20)):
        paths.append(tmp_path / f"{name}.log")
        rows = "".join(
            f" {2**k} {2**k // 4} float sum -1 {2**k / gb_per_s / 1e3:.1f} {gb_per_s} {1.75 * gb_per_s} 0\n"
            for k in (26, 28)
        )
        paths[-1].write_text(f"# all_reduce_perf\n{gpus}{rows}")
    found = taccl.fit(paths, "dgx-h100")
    assert found.notes[0].startswith(
        f"{paths[0]}, {paths[1]}: runs of allreduce on 8 ranks in 1 node differ by 13.5 "
    )
    with pytest.raises(InputError, match="describes none of them: keep the log of one"):
        found.to_toml()
