"""Fabrics from ibnetdiscover: hosts, clusters by switches, rates and uplinks by links."""

import itertools
import random

import pytest

import taccl
from taccl.errors import FormatError, InputError
from taccl.placement.infiniband import load_infiniband
from tests.effort import cpu_s

GB_PER_S = {"HDR": 25.0, "NDR": 50.0}


def text_of(links, *, by_port=False):
    """Output of ibnetdiscover for links (switch, switch or host and adapter, speed), in either format."""
    switches = [name for name in dict.fromkeys(e for a, b, _ in links for e in (a, b)) if " " not in name]
    ends = [(a, b, speed) for a, b, speed in links] + [(b, a, s) for a, b, s in links if b in switches]
    guid = {
        name: f"{number:016x}"
        for number, name in enumerate(dict.fromkeys(e for a, b, _ in ends for e in (a, b)), 1)
    }
    lines = []
    for switch in switches:
        if not by_port:
            lines += [
                "",
                "vendid=0x2c9",
                f'Switch\t40 "S-{guid[switch]}"\t\t# "{switch}" enhanced port 0 lid 1 lmc 0',
            ]
        for port, (_, peer, speed) in enumerate((each for each in ends if each[0] == switch), 1):
            kind = "S" if peer in switches else "H"
            if by_port:
                of = {"S": "SW", "H": "CA"}[kind]
                lines.append(
                    f"SW {1:5d} {port:2d} 0x{guid[switch]} 4x {speed} - {of} {2:5d} {1:2d} 0x{guid[peer]} ( '{switch}' - '{peer}' )"
                )
            else:
                lines.append(
                    f'[{port}]\t"{kind}-{guid[peer]}"[1]({guid[peer]}) \t\t# "{peer}" lid 7 4x{speed}'
                )
    return "\n".join(["#", "# Topology file: generated on Mon Jan  1 00:00:00 2024", "#", *lines, ""])


def tree(num_up, *, speed="NDR"):
    """Two leaves of four hosts, and two spines with `num_up` links to each leaf."""
    hosts = [(f"leaf{n // 4}", f"n{n} mlx5_0", speed) for n in range(8)]
    return hosts + [(f"leaf{n}", f"spine{m}", "HDR") for n in (0, 1) for m in (0, 1)] * num_up


def written(tmp_path, links, **form):
    path = tmp_path / "fabric.txt"
    path.write_text(text_of(links, **form))
    return path


@pytest.mark.parametrize("by_port", [False, True])
def test_leaves_are_clusters_with_the_rates_of_links(tmp_path, by_port):
    """Two links of 25 GB/s out of each leaf limit its four hosts of 50 GB/s."""
    path = written(tmp_path, tree(1), by_port=by_port)
    path.write_text("".join(f"> {line}\n" for line in path.read_text().splitlines()))
    probe = load_infiniband(path)
    assert probe.hosts == tuple(f"n{n}" for n in range(8))
    assert probe.clusters == ((0, 0, 0, 0, 1, 1, 1, 1),)
    assert probe.bandwidth_gb_per_s[0, 7] == 50
    assert probe.uplinks == (((0, 1, 2, 3), 50.0), ((4, 5, 6, 7), 50.0))
    assert any("at 50 GB/s, a maximum flow" in each for each in probe.assumed)


def test_missing_switches_are_told(tmp_path):
    """The ports of one end tell a link; a note counts switches without ports of their own."""
    path = written(tmp_path, tree(1))
    whole = load_infiniband(path)
    path.write_text(path.read_text().partition('"spine0" enhanced')[0])
    probe = load_infiniband(path)
    assert (probe.uplinks, probe.clusters) == (whole.uplinks, whole.clusters)
    assert probe.assumed[0].startswith("switches without ports in the file: 2, so hosts")


def test_links_that_do_not_limit_are_no_uplinks(tmp_path):
    """Eight links of 25 GB/s carry all that four hosts of 50 GB/s send, so no uplink is assumed."""
    path = written(tmp_path, tree(4))
    assert load_infiniband(path).uplinks == ()
    with pytest.warns(taccl.errors.AssumptionWarning):
        assert not any("oversubscription" in each for each in taccl.topologies.load(path).assumed)


def test_hosts_of_a_job_share_their_links(tmp_path):
    """Hosts are those of a job, in its order; ranks of a host share the links of its two rails."""
    links = [(f"rail{m}", f"n{n} mlx5_{m}", "NDR") for n in range(4) for m in range(2)]
    links += [(f"rail{m}", "spine", "NDR") for m in range(2)]
    probe = load_infiniband(written(tmp_path, links), hosts=["n2", "n2", "n0"])
    assert probe.hosts == ("n2", "n2", "n0")
    assert probe.bandwidth_gb_per_s[0, 2] == 50  # half of two links
    assert probe.clusters == ((0, 0, 1),)
    assert not probe.uplinks  # all hosts share the switches of both rails
    with pytest.raises(InputError, match="found no host n9 in .*, which has 4 hosts"):
        load_infiniband(tmp_path / "fabric.txt", hosts=["n9", "n0"])


def least_cut(links, inside, outside):
    """GB/s of the least cut between the leaves of two sets of hosts, over all sets of switches."""
    switches = {a for a, _, _ in links} | {b for _, b, _ in links if " " not in b}
    leaf_of = {b.split()[0]: a for a, b, _ in links if " " in b}
    begin, end = ({leaf_of[host] for host in hosts} for hosts in (inside, outside))
    free = sorted(switches - begin - end)
    cuts = []
    for chosen in itertools.product((False, True), repeat=len(free)):
        near = begin | {name for name, is_near in zip(free, chosen, strict=True) if is_near}
        cuts.append(sum(GB_PER_S[s] for a, b, s in links if b in switches and (a in near) != (b in near)))
    return min(cuts)


@pytest.mark.parametrize("seed", range(6))
def test_uplinks_are_least_cuts(tmp_path, seed):
    """The uplink of a leaf carries the least cut between it and the other hosts, by enumeration."""
    draw = random.Random(seed)
    links = [(f"leaf{n % 3}", f"n{n} mlx5_0", "NDR") for n in range(9)]
    links += [
        (f"leaf{n}", f"spine{m}", draw.choice(["HDR", "NDR"]))
        for n in range(3) for m in range(2) for _ in range(draw.randint(1, 2))
    ]  # fmt: skip
    links += [("spine0", "core", "HDR"), ("spine1", "core", "HDR")] * draw.randint(0, 1)
    probe = load_infiniband(written(tmp_path, links))
    (labels,) = probe.clusters
    carried = dict(probe.uplinks)
    for label in range(3):
        ranks = tuple(rank for rank in range(9) if labels[rank] == label)
        cut = least_cut(
            links,
            [probe.hosts[rank] for rank in ranks],
            [h for r, h in enumerate(probe.hosts) if r not in ranks],
        )
        assert carried.get(ranks) == (cut if cut < 150 else None)


def test_switches_in_a_ring_are_joined(tmp_path):
    """Switches without any above them are joined by the links between them."""
    links = [(f"s{n // 2}", f"n{n} mlx5_0", "NDR") for n in range(8)]
    links += [(f"s{n}", f"s{(n + 1) % 4}", "HDR") for n in range(4)]
    probe = load_infiniband(written(tmp_path, links))
    assert probe.clusters == ((0, 0, 1, 1, 2, 2, 3, 3),)
    assert {rate for _, rate in probe.uplinks} == {50.0}
    assert "links between switches of one level join them one level further up" in probe.assumed
    assert not any("parts of the fabric" in each for each in probe.assumed)


def test_adapters_that_are_no_hosts_are_left_out(tmp_path):
    """Adapters of switches that reduce are no hosts; those without a host's name are listed."""
    extra = [
        ("leaf0", "Mellanox Technologies Aggregation Node", "NDR"),
        ("leaf1", "MF0;gateway1:X/U1 port", "NDR"),
    ]
    probe = load_infiniband(written(tmp_path, tree(1) + extra))
    assert len(probe.hosts) == 8
    assert probe.assumed[0].endswith("name no host are left out: MF0;gateway1:X/U1 port")


@pytest.mark.parametrize("piece", ['#"" ', "( 'a' - ", "4x "])
def test_long_lines_take_linear_time(tmp_path, piece):
    """Lines without end, as no fabric has them, are refused quickly."""
    path = tmp_path / "fabric.txt"
    begins = text_of(tree(1)).partition("[1]")[0]
    ports = '[1]\t"H-1"[1] ', "SW 1 1 0x1 4x NDR - CA 1 1 0x2 "
    path.write_text(begins + "".join(f"{port}{piece * 3_000}\n" for port in ports))

    def refused():
        with pytest.raises(FormatError, match="no switch with hosts"):
            load_infiniband(path)

    assert cpu_s(refused) < 0.5


def test_files_without_hosts_or_speeds_are_refused(tmp_path):
    """The message names what is missing, or the line of a link of unknown speed."""
    with pytest.raises(FormatError, match="found no switch with hosts"):
        load_infiniband(written(tmp_path, tree(1)[8:]))
    with pytest.raises(FormatError, match="line 7: found a link of speed FAST; expected one of SDR"):
        load_infiniband(written(tmp_path, tree(1, speed="FAST")))
