"""Imports of random servers, compared with capacities in the graphs from which they were generated."""

import random
import re
from collections import defaultdict
from itertools import combinations

import pytest

import taccl
from tests.formats.nccl.drawn_servers import CPUS, LANES, Drawn, Part, capacity, draw
from tests.formats.nccl.servers import load_quietly
from tests.fuzzing import cases

#: Notes by which an import states that its capacity may be lower than the server's.
_SAID = re.compile(r"only, limited by|over PCIe, limited by|PIX joins|hide them")
#: Note of an import that has less capacity than if all ranks used all NICs.
_BY_ANY = re.compile(r"a node sends (\S+) GB/s, .*; (\S+) GB/s are possible")


def _used(topology):
    """{port: local ranks that use it}, according to the import's notes."""
    told = next(note for note in topology.notes if "NIC: local ranks" in note).split("): ", 1)[1]
    users = (part.rsplit(": ", 1) for part in told.split("; "))
    return {port: [*map(int, ranks.split(", "))] for ports, ranks in users for port in ports.split(" + ")}


class _Import:
    """Import of a random server, for comparison with it.

    - `may_lack`: True if the import notes an assumed rate or switch.
    - `may_exceed`: True if it notes that the file hides switches.
    - `is_guess`: True if a rate of PCIe is neither in the file nor given.
    - `has_shares`: True if it notes that ranks divide sends among NICs in fixed shares.
    """

    def __init__(self, server, topology):
        self.server, self.topology, self.size = server, topology, len(server.gpus)
        guessed = any(part.rate is None for _, part in server.parts())
        self.is_guess = guessed and "pcie_gb_per_s" not in server.arguments
        self.may_exceed = any("hide them" in each for each in topology.assumed)
        self.may_lack = any(
            _SAID.search(each) and (self.is_guess or "limited by" not in each) for each in topology.assumed
        )
        self.has_shares = any("fixed shares" in each for each in topology.assumed)

    def compare(self, what, found, counted, *, is_said=False):
        """Compare rates; less or more is accepted if the import notes it. None: no limit is known."""
        if counted is None or found == pytest.approx(counted, rel=1e-6):
            return
        said = f"{what}: {found:g} GB/s imported, {counted:g} counted"
        assert found < counted or self.may_exceed, f"{said}: capacity is invented"
        assert found > counted or self.may_lack or is_said, f"{said}: capacity is lost without a word"

    def check_inside(self):
        """Compare each pair's rate in a node if it sends alone, and that of all PCIe pairs if they send together."""
        ends = {(link.src, link.dst): link for link in self.topology.links}
        within = {pair: link for pair, link in ends.items() if max(pair) < self.size}
        inside = self.server.inside()
        assert within.keys() == inside.keys()
        for pair, rate in inside.items():
            self.compare(f"ranks {pair}", 1000 / float(within[pair].beta_us_per_mb), rate)
        by_pcie = [float(link.beta_us_per_mb) / 1000 for link in within.values() if link.name == "PCIe"]
        busy = defaultdict(float)
        for hold in self.topology.holds:
            link = self.topology.links[hold.link]
            if link.name == "PCIe" and max(link.src, link.dst) < self.size:
                busy[hold.resource] += float(hold.beta_us_per_mb) / 1000
        if by_pcie:
            together = 1 / max(*by_pcie, *busy.values(), 0)
            self.compare("all pairs over PCIe", together, self.server.exchange())

    def check_between(self):
        """Compare the rates at which a node, and each of its ranks alone, can send to another node."""
        topology, used = self.topology, _used(self.topology)
        told = [match.groups() for each in topology.assumed if (match := _BY_ANY.match(each))]
        out = [e for e in topology.internode_links if topology.links[e].src < self.size]
        node = capacity(topology, out)
        counted = self.server.between_nodes(used, range(self.size))
        self.compare("out of a node", node, counted, is_said=self.has_shares or bool(told))
        for rank in range(self.size):
            own = capacity(topology, [e for e in out if topology.links[e].src == rank])
            counted = self.server.between_nodes(used, [rank])
            self.compare(f"rank {rank}", own, counted, is_said=self.has_shares)
        any_port = min(self.server.any_port(), self.server.any_port(into=True))
        for carried, all_nics in told:
            assert float(carried) == pytest.approx(node, rel=1e-3)
            what = "by any NIC, as the import says"
            self.compare(what, float(all_nics), float(f"{any_port:.4g}"), is_said=self.is_guess)
        is_left_out = self.is_guess and any("are unused: others" in each for each in topology.assumed)
        self.compare("by any NIC", node, any_port, is_said=is_left_out or bool(told))


def _check(server, topology):
    assert topology.num_ranks == len(server.gpus) * server.arguments["nodes"]
    imported = _Import(server, topology)
    imported.check_inside()
    if topology.num_nodes > 1:
        imported.check_between()


def _part(name, rate, *ports):
    slot = f'link_speed="16.0 GT/s" link_width="{round(rate / LANES["16.0"])}"'
    return Part(name, rate, slot, ports=list(ports))


def _import(tmp_path, *cpus, **arguments):
    """Checked import of a generated server for two nodes; `cpus` has (GB/s to other CPUs, devices) of each."""
    kind_of = {rate: kind for kind, rate in CPUS.items()}
    server = Drawn([(kind_of[rate], parts) for rate, parts in cpus], arguments={"nodes": 2, **arguments})
    path = tmp_path / "server.xml"
    path.write_text(server.xml(1))
    topology = load_quietly(path, **server.arguments)
    _check(server, topology)
    return topology


def _out(topology):
    return capacity(
        topology, [e for e in topology.internode_links if topology.node_of_rank[topology.links[e].src] == 0]
    )


def test_each_cpu_is_named_for_its_own_rate(tmp_path):
    """The path from Intel to AMD has Intel's rate, the reverse AMD's; each limit names its CPU."""
    cpus = (22, [_part("GPU0", 48)]), (16, [_part("NIC0", 48, ("p", 50))])
    limits = [
        each for each in _import(tmp_path, *cpus).assumed if "reached at" in each and "from a CPU" in each
    ]
    assert len(limits) == 2
    assert any(
        "at 22 GB/s only, limited by 22 GB/s from a CPU to each other CPU (Intel" in each for each in limits
    )
    assert any(
        "at 16 GB/s only, limited by 16 GB/s from a CPU to each other CPU (AMD" in each for each in limits
    )


def test_slowest_limit_of_a_nic_is_reported_once(tmp_path):
    """The lower of two guessed limits between a rank and a NIC of 50 GB/s is reported, with the ranks.

    GPU0 reaches the NIC through its PCIe link of 24 GB/s. GPU1 also crosses from CPU to CPU at 16 GB/s.
    """
    near, far = [_part("GPU0", 48), _part("NIC0", 24, ("p", 50))], [_part("GPU1", 48)]
    assumed = _import(tmp_path, (16, near), (16, far)).assumed
    limits = [each for each in assumed if each.startswith("NICs")]
    assert len(limits) == 2
    assert "at 24 GB/s only, limited by the library's rate" in limits[0]
    assert limits[0].endswith(", for local rank 0")
    assert "at 16 GB/s only, limited by 16 GB/s from a CPU" in limits[1]
    assert limits[1].endswith(", for local rank 1")


def test_cpus_of_different_kinds_are_reported(tmp_path):
    """If two CPUs differ in kind, a note says so, as both directions then have different rates."""
    mixed = (22, [_part("GPU0", 48)]), (16, [_part("NIC0", 48, ("p", 50))])
    alike = (22, [_part("GPU0", 48)]), (22, [_part("NIC0", 48, ("p", 50))])
    assert any("CPUs differ" in each for each in _import(tmp_path, *mixed).assumed)
    assert not any("CPUs differ" in each for each in _import(tmp_path, *alike).assumed)


def test_receives_are_striped_by_the_rates_towards_the_gpu(tmp_path):
    """Receives are divided among NICs by the rates towards the GPU.

    A GPU sends 22 GB/s to each of two NICs, and receives 16 and 22 GB/s from them: 38 together.
    """
    nics = (16, [_part("NIC0", 48, ("p", 50))]), (22, [_part("NIC1", 48, ("q", 50))])
    topology = _import(tmp_path, (22, [_part("GPU0", 48)]), *nics)
    assert _out(topology) == pytest.approx(38)


def test_nics_are_not_divided_where_that_loses_capacity(tmp_path):
    """Two GPUs with PCIe rates of 6 and 24 GB/s share all four NICs of 10 GB/s.

    With two NICs each, the second GPU could send only 20 GB/s.
    """
    nics = [_part(f"NIC{i}", 24, (f"p{i}", 10)) for i in range(4)]
    topology = _import(tmp_path, (22, [_part("GPU0", 6), _part("GPU1", 24), *nics]))
    assert _out(topology) == pytest.approx(30)


def test_capacity_of_nics_that_a_rank_does_not_use_is_reported(tmp_path):
    """A note states the rate of a node if all its NICs could be used by all ranks.

    Here a GPU with a PCIe rate of 6 GB/s uses half of its NIC, and the other GPU does not use that NIC.
    """
    near = [
        (24, [_part(f"GPU{i}", rate), _part(f"NIC{i}", 24, (f"p{i}", 12))]) for i, rate in enumerate((6, 24))
    ]
    told = "a node sends 18 GB/s, through the NICs that its ranks use; 24 GB/s"
    assert any(each.startswith(told) for each in _import(tmp_path, *near).assumed)


@pytest.mark.fuzz
@pytest.mark.parametrize("kind", ["XML", "matrices"])
def test_drawn_servers_keep_their_capacity(tmp_path, kind):
    """Imports of dumps and of `nvidia-smi topo -m` have the server's capacity, or note a loss."""
    for seed in cases(f"servers as {kind}", few=7, many=2000):
        server = draw(random.Random(seed), is_matrix=kind == "matrices")
        path = tmp_path / ("server.txt" if kind == "matrices" else "server.xml")
        text = server.matrix() if kind == "matrices" else server.xml(2 if server.fabric == "xgmi" else 1)
        path.write_text(text)
        try:
            _check(server, load_quietly(path, **server.arguments))
        except Exception as error:
            error.add_note(f"seed {seed}, arguments {server.arguments}")
            raise


def _draw_pairs(rng):
    """(output of p2pBandwidthLatencyTest, {pair: GB/s}, GB/s out of each GPU) for a random server.

    A pair's rate is that of the pair alone; the rate out of a GPU is that of all its pairs together.
    """
    num_gpus, slot = rng.choice((2, 4, 8)), rng.choice((12, 24, 48))
    rates, out = {}, [float(slot)] * num_gpus
    for pair in combinations(range(num_gpus), 2):
        links = rng.choice((0, 0, 1, 2, 4))
        far = pair[0] < num_gpus // 2 <= pair[1]
        rates[pair] = rates[pair[::-1]] = 24.2 * links if links else slot * (0.8 if far else 1)
        for gpu in pair:
            out[gpu] += 24.2 * links
    head = "Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)"
    lines = [head, "   D\\D " + " ".join(f"{gpu:6}" for gpu in range(num_gpus))]
    for a in range(num_gpus):
        lines.append(f"{a:6} " + " ".join(f"{rates.get((a, b), 780.5):6.2f}" for b in range(num_gpus)))
    return "\n".join(lines) + "\n", rates, out


@pytest.mark.fuzz
def test_drawn_matrices_of_pairs_keep_their_rates(tmp_path):
    """A measured matrix of pairs is one node: each pair has its rate, and each GPU at most its total rate."""
    for seed in cases("servers as measured pairs", few=20, many=1000):
        text, rates, out = _draw_pairs(random.Random(seed))
        path = tmp_path / "pairs.txt"
        path.write_text(text)
        topology = load_quietly(path)
        assert topology.num_nodes == 1
        assert any("share a port" in each for each in topology.assumed)
        for link in topology.links:
            assert 1000 / float(link.beta_us_per_mb) == pytest.approx(rates[link.src, link.dst], rel=1e-3)
        for rank, sent in enumerate(out):
            assert capacity(topology, topology.links_from[rank]) <= sent * 1.001


@pytest.mark.fuzz
@pytest.mark.parametrize("collective", ["alltoall", "allgather"])
def test_bounds_of_drawn_servers_know_what_leaves_a_node(tmp_path, collective):
    """On two servers, the lower bound covers the time of the data between them at the rate of the cut.

    A server sends half of its data in an alltoall, and half of the result in an allgather.
    """
    for seed in cases("bounds of servers as XML", few=10, many=300):
        server = draw(random.Random(seed), is_matrix=False)
        is_guess = any(part.rate is None for _, part in server.parts())
        if not server.ports or is_guess or len(server.gpus) > 4:
            continue
        path = tmp_path / "server.xml"
        path.write_text(server.xml(2 if server.fabric == "xgmi" else 1))
        topology, size_bytes = load_quietly(path, **server.arguments), 100_000_000 * len(server.gpus)
        problem = taccl.make_problem(topology, collective, size_bytes=size_bytes)
        senders = len(server.gpus) if collective == "alltoall" else 1
        rate = server.between_nodes(_used(topology), range(len(server.gpus)))
        least_us = size_bytes / 2 * senders / rate / 1000
        assert taccl.lower_bound(problem, budget_s=3600).bound_us >= least_us * (1 - 1e-6), f"seed {seed}"
