"""The matrix of `nvidia-smi topo -m`: NVLinks, PCIe topology inferred from cells, and NICs."""

import textwrap
from fractions import Fraction

import pytest

import taccl
from taccl.errors import AssumptionWarning, FormatError, InputError, TopologyError
from taccl.formats.nccl.nvidia_smi import load_nvidia_smi
from tests.effort import cpu_s, first_schedule
from tests.foreign import OURS, foreign_files
from tests.formats.nccl.drawn_servers import capacity
from tests.formats.nccl.servers import holders, load_quietly

GEN3 = Fraction(1000, 12)  # us per MB at 12 GB/s


#: Matrix of four GPUs on a square, whose sides have three NVLinks or one.
#: Each pair with three NVLinks also shares a PCIe switch and a NIC.
SQUARE = OURS / "nvidia-smi" / "square.txt"


@pytest.fixture
def dgx1(shared_data):
    """Path of the matrix that nvidia-smi printed on a real DGX-1."""
    return shared_data / "nvidia-smi" / "dgx1.txt"


def _write(tmp_path, *rows, columns, after=""):
    path = tmp_path / "server.txt"
    header = "\t".join(("", *columns, "CPU Affinity", "NUMA Affinity"))
    path.write_text("\n".join((header, *("\t".join(row.split()) for row in rows))) + "\n" + after)
    return path


def _equal(cell, size):
    """Rows of a matrix of GPUs with the same cell for all pairs."""
    return [
        f"GPU{a} " + " ".join("X" if a == b else cell for b in range(size)) + " 0-7 0" for a in range(size)
    ]


def _gpus(size):
    return [f"GPU{rank}" for rank in range(size)]


def _betas(topology):
    return {(link.src, link.dst): link.beta_us_per_mb for link in topology.links}


def test_nvlinks():
    """Links are those of the NV cells, with 25 GB/s per NVLink; SYS pairs have none.

    NV3 cells give 40 / 3 us per MB and NV1 cells 40, for 4 pairs in all.
    """
    betas = _betas(load_nvidia_smi(SQUARE))
    sides = {(0, 1): Fraction(40, 3), (2, 3): Fraction(40, 3), (0, 2): Fraction(40), (1, 3): Fraction(40)}
    assert betas == sides | {(dst, src): beta for (src, dst), beta in sides.items()}


def test_nics_serve_the_ranks_beside_them():
    """NIC right0 serves GPU2 and GPU3, one PCIe switch away, and not the GPUs behind the CPUs."""
    topology = load_nvidia_smi(SQUARE, nodes=2, nic_gb_per_s=10)
    assert holders(topology, "NIC right0 of node 1 egress") == {(s, d) for s in (6, 7) for d in range(4)}
    assert any("left0: 0, 1; right0: 2, 3" in note for note in topology.notes)


def test_pcie_tree():
    """With PCIe enabled, GPU pairs without NVLinks send out of one PCIe switch and into the other."""
    topology = load_nvidia_smi(SQUARE, pcie="always")
    assert len(topology.links) == 8 + 4
    assert _betas(topology)[0, 3] == GEN3
    assert holders(topology, "PCIe out of PCIe switch 0 of node 0") == {(0, 3), (1, 2)}
    assert holders(topology, "PCIe into PCIe switch 0 of node 0") == {(3, 0), (2, 1)}


def test_resource_that_another_implies_is_left_out():
    """A PCIe switch needs no resource of its own if a slower one carries the same sends.

    Both diagonals of the square use the path between the CPUs at 10 GB/s, slower than the switches at 12 GB/s.
    """
    topology = load_nvidia_smi(SQUARE, pcie="always", cpu_gb_per_s=10)
    assert _betas(topology)[0, 3] == 100
    assert holders(topology, "CPU 0 to CPU 1 of node 0") == {(0, 3), (1, 2)}
    assert not any(resource.name.startswith("PCIe out") for resource in topology.resources)


@pytest.mark.slow
@pytest.mark.parametrize("path", foreign_files("nvidia-smi/*.txt"))
def test_allgather_on_every_file_verifies(path):
    """On one and two servers of every file, an allgather schedule verifies."""
    for nodes, pcie in ((1, "always"), (2, "where-needed")):
        topology = load_nvidia_smi(path, nodes=nodes, nic_gb_per_s="12.5", pcie=pcie)
        collective = taccl.collectives.allgather(topology.num_ranks)
        problem = taccl.make_problem(topology, collective, chunk_bytes=10**6)
        assert taccl.verify(first_schedule(problem)).ok


def test_every_assumption_is_reported():
    """Rates and alphas, which the file lacks, are assumptions; a warning counts them and quotes a settable one."""
    with pytest.warns(
        AssumptionWarning, match="7 assumptions, such as 25 GB/s for an NVLink each way "
    ) as caught:
        topology = load_nvidia_smi(SQUARE, nodes=2, nic_gb_per_s=10)
    assert len(topology.assumed) == 7
    assert caught[0].message.assumed == topology.assumed
    parts = (
        "25 GB/s",
        "12 GB/s",
        "unlimited",
        "0.3 us",
        "2.6 us",
        "pcie='always'",
        "the network is non-blocking",
    )
    for part in parts:
        assert sum(part in each for each in topology.assumed) == 1


def test_stated_values_are_no_assumptions():
    """A value that an argument states is not an assumption, even if it equals the default."""
    stated = {
        "nodes": 2, "nic_gb_per_s": 10, "nvlink_gb_per_s": 25, "pcie": "where-needed", "pcie_gb_per_s": 12,
        "cpu_gb_per_s": 10, "intranode_alpha_us": 0.3, "internode_alpha_us": 2.6,
    }  # fmt: skip
    topology = load_nvidia_smi(SQUARE, **stated)
    assert topology.assumed == ("the network is non-blocking, and all nodes are equal",)


def test_dgx1_nvlinks(dgx1):
    """NV1 cells carry 25 GB/s, NV2 cells 50: 40 and 20 us per MB; SYS pairs have no link. 16 pairs in all."""
    betas = _betas(load_nvidia_smi(dgx1))
    assert len(betas) == 32
    assert betas[0, 1] == betas[0, 2] == betas[7, 3] == 40
    assert betas[0, 3] == betas[0, 4] == betas[6, 7] == 20
    assert (0, 5) not in betas


def test_dgx1_is_the_machine_model(dgx1):
    """With TACCL's rates, two servers are the DGX-1 that the package knows: links, alphas, betas, shared NICs."""
    topology = load_nvidia_smi(
        dgx1, nodes=2, nvlink_gb_per_s=Fraction(1000, 46), nic_gb_per_s=Fraction(1000, 105)
    )
    machine = taccl.topologies.dgx1(2)

    def links(each):
        return [(link.src, link.dst, link.alpha_us, link.beta_us_per_mb) for link in each.links]

    def shared(each):
        """Sets of (link, alpha, beta, side) that hold one resource together, without the resource's name."""
        groups = {}
        for hold in each.holds:
            groups.setdefault(hold.resource, set()).add(
                (hold.link, hold.alpha_us, hold.beta_us_per_mb, hold.side)
            )
        return {frozenset(group) for group in groups.values() if len(group) > 1}

    assert links(topology) == links(machine)
    assert shared(topology) == shared(machine)


def test_dgx1_nics_serve_the_ranks_beside_them(dgx1):
    """NIC mlx5_1 serves GPU2 and GPU3, one PCIe switch away, and not the GPUs behind the CPU."""
    topology = load_nvidia_smi(dgx1, nodes=2, nic_gb_per_s=10)
    assert holders(topology, "NIC mlx5_1 of node 1 egress") == {(s, d) for s in (10, 11) for d in range(8)}
    assert any("mlx5_2: 4, 5" in note for note in topology.notes)


def test_dgx1_pcie_tree(dgx1):
    """With PCIe enabled, the 12 SYS pairs use their switches, which two GPUs and a NIC share."""
    topology = load_nvidia_smi(dgx1, pcie="always")
    assert len(topology.links) == 32 + 24
    assert _betas(topology)[0, 5] == GEN3
    # GPU0 has no NVLink to GPU5, 6 and 7; GPU1 has none to GPU4, 6 and 7.
    out = holders(topology, "PCIe out of PCIe switch 0 of node 0")
    assert out == {(0, 5), (0, 6), (0, 7), (1, 4), (1, 6), (1, 7)}


@pytest.mark.parametrize(
    ("size", "cell", "is_switch"),
    [(8, "NV12", True), (4, "NV4", False), (4, "NV6", False), (16, "NV6", True), (2, "NV12", False)],
)
def test_equal_cells_that_no_gpu_could_have_are_nvswitch(tmp_path, size, cell, is_switch):
    """Equal NV cells mean an NVSwitch if a GPU has too few NVLinks for links to every other GPU.

    Read as links between pairs, the cells would give a GPU 84 or 90 NVLinks; no GPU has more than 18.
    """
    topology = load_nvidia_smi(_write(tmp_path, *_equal(cell, size), columns=_gpus(size)))
    assert len(topology.links) == size * (size - 1)
    assert bool(topology.switches) == is_switch
    assert {link.beta_us_per_mb for link in topology.links} == {Fraction(1000, 25 * int(cell[2:]))}
    ports = [resource.name for resource in topology.resources if resource.name.startswith("port out")]
    assert len(ports) == (size if is_switch else 0)


def test_an_argument_states_whether_there_is_nvswitch(tmp_path):
    """Four V100 of a DGX-2 look like GPUs joined in pairs, so an argument states if there is NVSwitch."""
    path = _write(tmp_path, *_equal("NV6", 4), columns=_gpus(4))
    assert load_nvidia_smi(path, nvlink_joins="switch").switches
    path = _write(tmp_path, *_equal("NV12", 4), columns=_gpus(4))
    assert not load_nvidia_smi(path, nvlink_joins="pairs").switches


def test_server_without_nvlink_uses_pcie(tmp_path):
    """Two GPUs are under a switch, two under the CPU's other bridge; sends between them share the uplink."""
    rows = [
        "GPU0 X PIX NODE NODE 0-7",
        "GPU1 PIX X NODE NODE 0-7",
        "GPU2 NODE NODE X PHB 0-7",
        "GPU3 NODE NODE PHB X 0-7",
    ]
    topology = load_nvidia_smi(_write(tmp_path, *rows, columns=_gpus(4)))
    assert set(_betas(topology).values()) == {GEN3}
    assert len(topology.links) == 12
    assert holders(topology, "PCIe out of PCIe switch 0 of node 0") == {
        (s, d) for s in (0, 1) for d in (2, 3)
    }
    assert not any(resource.name.startswith("CPU") for resource in topology.resources)


def test_switches_nest(tmp_path):
    """Switches nest: GPUs joined by PIX share a switch, which is below that of GPUs joined by PXB.

    The fourth GPU is at SYS distance.
    """
    rows = ["GPU0 X PIX PXB SYS", "GPU1 PIX X PXB SYS", "GPU2 PXB PXB X SYS", "GPU3 SYS SYS SYS X"]
    topology = load_nvidia_smi(_write(tmp_path, *rows, columns=_gpus(4)), cpu_gb_per_s=6)
    assert _betas(topology)[0, 3] == Fraction(1000, 6)
    # Sends leave the inner switch (GPU0, GPU1) towards GPU2 and GPU3, and the outer one only towards GPU3.
    assert holders(topology, "PCIe out of PCIe switch 1 of node 0") == {(0, 2), (0, 3), (1, 2), (1, 3)}
    # The outer switch needs no resource: the slower path between the CPUs carries the same sends.
    assert holders(topology, "CPU 0 to CPU 1 of node 0") == {(0, 3), (1, 3), (2, 3)}
    assert not holders(topology, "PCIe out of PCIe switch 0 of node 0")


@pytest.mark.parametrize("escape", ["\x1b", "", "^[", "\\033", "\\u001b", "\N{SYMBOL FOR ESCAPE}"])
def test_colours_legends_and_prompts_are_understood(tmp_path, escape):
    """A matrix with coloured headers, a legend of NICs, spaces for tabs, or a prompt above it is read.

    Forums drop the escape character of a colour, and `cat -v` and logs write it out.
    """
    path = tmp_path / "new.txt"
    path.write_text(
        "$ nvidia-smi topo -m\n"
        f"        {escape}[4mGPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity   GPU NUMA ID{escape}[0m\n"
        "GPU0     X      NV18    PIX     0-47    0               N/A\n"
        "GPU1    NV18     X      SYS     48-95   1               N/A\n"
        "NIC0    PIX     SYS      X\n\nLegend:\n\n  X    = Self\n\nNIC Legend:\n\n  NIC0: mlx5_0\n"
    )
    topology = load_nvidia_smi(path, nodes=2, nic_gb_per_s=10)
    assert _betas(topology)[0, 1] == Fraction(1000, 18 * 25)
    assert len(holders(topology, "NIC mlx5_0 of node 0 egress")) == 4
    assert load_nvidia_smi(path, nodes=2, nic_gb_per_s=10, nics=["mlx5_0"]).links == topology.links


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["GPU0 X NV1", "GPU1 NV2 X"], "NV1 from GPU0 to GPU1 and NV2 back"),
        (["GPU0 X NV1"], "no row of GPU1"),
        (["GPU0 X NV1", "GPU1 NV1"], "1 cells of GPU1; expected 2"),
        (["GPU0 X NV0", "GPU1 NV0 X"], "'NV0' from GPU0 to GPU1; expected"),
        (["GPU0 PIX PIX", "GPU1 PIX X"], "'PIX' from GPU0 to GPU0"),
    ],
)
def test_wrong_matrix_is_named(tmp_path, rows, message):
    """The error for an invalid matrix names file, line and devices."""
    path = _write(tmp_path, *rows, columns=_gpus(2))
    with pytest.raises(FormatError) as caught:
        load_nvidia_smi(path)
    assert message in caught.value.message
    assert f"{path}: line " in caught.value.where


def test_unequal_nvlinks_behind_a_switch_are_refused(tmp_path):
    """A matrix is refused if 20 NVLinks of GPU0 in unequal cells are neither links between pairs nor links
    into one NVSwitch."""
    rows = ["GPU0 X NV12 NV8", "GPU1 NV12 X NV12", "GPU2 NV8 NV12 X"]
    with pytest.raises(FormatError, match="nvlink_joins='pairs'"):
        load_nvidia_smi(_write(tmp_path, *rows, columns=_gpus(3)))


@pytest.mark.parametrize("text", ["hello\n", "GPU0 GPU0 CPU Affinity\n", "GPU0 " * 600 + "\n", "GPU0", "\0"])
def test_other_files_are_refused(tmp_path, text):
    """Text without a matrix is refused in one sentence."""
    path = tmp_path / "other.txt"
    path.write_text(text)
    with pytest.raises(FormatError, match=r"other\.txt"):
        load_nvidia_smi(path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"nodes": 2}, "nic_gb_per_s"),
        ({"nodes": 0, "nic_gb_per_s": 1}, "nodes"),
        ({"nics": ["mlx5_9"]}, "mlx5_9"),
        ({"nvlink_joins": "maybe"}, "nvlink_joins"),
        ({"nvlink_gb_per_s": 0}, "nvlink_gb_per_s"),
        ({"pcie": "never"}, "pcie"),
    ],
)
def test_wrong_argument_is_named(arguments, message):
    """The error for an argument that cannot be used names the argument."""
    with pytest.raises(TopologyError, match=message):
        load_nvidia_smi(SQUARE, **arguments)


@pytest.mark.parametrize("arguments", [{}, {"nic_gb_per_s": 10}, {"nics": ["mlx5_0"]}])
def test_several_nodes_need_nics_in_the_matrix(tmp_path, arguments):
    """A matrix of GPUs alone cannot describe two nodes, whatever else is given."""
    path = _write(tmp_path, "GPU0 X NV12", "GPU1 NV12 X", columns=_gpus(2))
    with pytest.raises(TopologyError, match=r"GPUs alone, and nodes=2 needs NICs; .*\[nics\]"):
        load_nvidia_smi(path, nodes=2, **arguments)


def test_missing_file_is_an_input_error(tmp_path):
    """The error for a missing file names its path."""
    with pytest.raises(InputError, match=r"nothing\.txt"):
        load_nvidia_smi(tmp_path / "nothing.txt")


def test_sentence_that_begins_with_a_gpu_is_no_header(tmp_path):
    """A report that starts with the sentence "GPU0 hangs." and contains a matrix is read like the matrix
    alone."""
    path = _write(tmp_path, *_equal("PIX", 2), columns=_gpus(2))
    with pytest.warns(AssumptionWarning):
        alone = load_nvidia_smi(path)
    path.write_text("GPU0 hangs.\n\n" + path.read_text())
    with pytest.warns(AssumptionWarning):
        assert load_nvidia_smi(path).links == alone.links


def test_second_matrix_of_a_file_is_reported(tmp_path):
    """The first of two hosts' matrices is read, and a warning and a note say so."""
    legend = "\nNIC Legend:\n\n  NIC0: {}\n\n"
    rows = ["GPU0 X PIX 0-7 0", "NIC0 PIX X"]
    path = _write(tmp_path, *rows, columns=["GPU0", "NIC0"], after=legend.format("mlx5_0"))
    path.write_text(path.read_text() + path.read_text().replace("PIX", "SYS").replace("mlx5_0", "mlx5_9"))
    with pytest.warns(AssumptionWarning) as told:
        topology = load_nvidia_smi(path, nodes=2, nic_gb_per_s=12)
    assert "first of the file's 2 matrices, which differ, is used for every" in "".join(
        told[0].message.assumed
    )
    assert any("mlx5_0: 0" in note for note in topology.notes)


def test_rows_of_nics_may_be_left_out(tmp_path):
    """If NICs have columns but no rows, the columns are used, and the topology notes it."""
    rows = ["GPU0 X SYS PIX SYS 0-7 0", "GPU1 SYS X SYS PIX 8-15 1"]
    whole = [*rows, "NIC0 PIX SYS X SYS", "NIC1 SYS PIX SYS X"]
    columns = [*_gpus(2), "NIC0", "NIC1"]
    path = _write(tmp_path, *whole, columns=columns)
    with pytest.warns(AssumptionWarning):
        expected = load_nvidia_smi(path, nodes=2, nic_gb_per_s=10)
    path = _write(tmp_path, *rows, columns=columns)
    with pytest.warns(AssumptionWarning):
        topology = load_nvidia_smi(path, nodes=2, nic_gb_per_s=10)
    assert any("no rows of NIC0, NIC1" in each for each in topology.assumed)
    assert (topology.links, topology.holds) == (expected.links, expected.holds)


def test_switch_of_pix_below_one_of_pxb_is_reported(tmp_path):
    """GPU0 and GPU1, PIX to each other and PXB to GPU2, may have their own switch; a note says so."""
    rows = ["GPU0 X PIX PXB", "GPU1 PIX X PXB", "GPU2 PXB PXB X"]
    told = "PIX joins, below a switch that PXB shows"
    nested = load_nvidia_smi(_write(tmp_path, *rows, columns=_gpus(3)))
    assert any(told in each for each in nested.assumed)
    flat = load_nvidia_smi(_write(tmp_path, *_equal("PIX", 3), columns=_gpus(3)))
    assert not any(told in each for each in flat.assumed)


@pytest.mark.parametrize(
    ("first", "second", "is_told"),
    [("PIX", "PIX", False), ("PXB", "NODE", False), ("PXB", "PXB", True), ("NODE", "NODE", True)],
)
def test_switches_that_cells_of_nvlinks_hide_are_reported(tmp_path, first, second, is_told):
    """If NV cells hide whether two GPUs share a PCIe switch, and a NIC is equally far from both, a note says so."""
    rows = [f"GPU0 X NV12 {first} 0-7 0", f"GPU1 NV12 X {second} 0-7 0", f"NIC0 {first} {second} X"]
    path = _write(tmp_path, *rows, columns=("GPU0", "GPU1", "NIC0"))
    topology = load_nvidia_smi(path, nodes=2, nic_gb_per_s=25)
    assert any("GPU0, GPU1 share no PCIe switches but" in each for each in topology.assumed) == is_told
    assert not any("share no PCIe" in each for each in load_nvidia_smi(path).assumed)


def test_ranks_without_nvlinks_are_named(tmp_path):
    """A GPU without NVLinks in a server with NVSwitch is named, and is not among the ranks of the switch."""
    rows = _equal("NV18", 5)
    rows = [row.replace("NV18", "NODE") if row.startswith("GPU2") else row for row in rows]
    rows = [
        " ".join("NODE" if at == 3 and cell == "NV18" else cell for at, cell in enumerate(row.split()))
        for row in rows
    ]
    with pytest.warns(AssumptionWarning):
        assumed = "".join(load_nvidia_smi(_write(tmp_path, *rows, columns=_gpus(5))).assumed)
    assert "ranks 0-1, 3-4 share an NVSwitch, with 18 NVLinks each" in assumed
    assert "rank 2 has no NVLinks" in assumed


def test_nvlinks_into_a_switch_that_are_down_are_counted(tmp_path):
    """A GPU with 16 of 18 NVLinks up has 16 with every other GPU, which keep 18 among themselves."""
    rows = [
        " ".join(
            "NV16" if cell == "NV18" and 3 in (at, row + 1) else cell for at, cell in enumerate(cells.split())
        )
        for row, cells in enumerate(_equal("NV18", 5))
    ]
    with pytest.warns(AssumptionWarning):
        found = load_nvidia_smi(_write(tmp_path, *rows, columns=_gpus(5)))
    assert any("with 18 NVLinks each, but 16 of rank 2" in each for each in found.assumed)
    rates = {(link.src, link.dst): round(1000 / float(link.beta_us_per_mb)) for link in found.links}
    assert (rates[0, 1], rates[0, 2], rates[2, 0]) == (450, 400, 400)


def test_matrices_without_nvlinks_say_so(tmp_path):
    """A matrix without NVLink cells may be that of `topo -mp`, which the assumptions say."""
    topology = load_nvidia_smi(_write(tmp_path, *_equal("NODE", 2), columns=_gpus(2)))
    assert any("`nvidia-smi topo -mp` omits them" in each for each in topology.assumed)


@pytest.mark.parametrize(
    ("names", "nvlink", "pcie"),
    [
        (["NVIDIA RTX A6000"] * 3, "14.0625", "24"),
        (["NVIDIA RTX A6000", "NVIDIA RTX A6000", "NVIDIA L4"], "14.0625", "24"),
        (["NVIDIA L4"] * 3, "25", "24"),
        (["Unheard of"] * 3, "25", "12"),
    ],
    ids=["named", "mixed", "without NVLinks", "unknown"],
)
def test_names_of_gpus_beside_the_matrix_give_rates(tmp_path, names, nvlink, pcie):
    """Names of the GPUs in the text give the rate of an NVLink and the generation of PCIe, as assumptions.

    Names contradict NVLinks of the matrix if their boards have none, and then give no rate of these.
    """
    listed = "".join(f"GPU {rank}: {name} (UUID: GPU-{rank})\n" for rank, name in enumerate(names))
    rows = ["GPU0 X NV4 SYS 0-7 0", "GPU1 NV4 X SYS 0-7 0", "GPU2 SYS SYS X 8-15 1"]
    path = _write(tmp_path, *rows, columns=_gpus(3), after=f"\n{listed}")
    topology = load_quietly(path)
    assert {float(1000 / link.beta_us_per_mb) for link in topology.links} == {4 * float(nvlink), float(pcie)}
    told = [each for each in topology.assumed if f"{nvlink} GB/s for an NVLink" in each]
    assert ("which the file names" in told[0]) == (nvlink != "25")
    assert any(each.startswith(f"{pcie} GB/s for a PCIe link") for each in topology.assumed)


@pytest.mark.parametrize(("nic", "slot"), [(None, 12), (10, 12), (12.5, 12.5), (20, 24), (25, 25), (50, 50)])
def test_without_names_pcie_carries_the_nic(tmp_path, nic, slot):
    """Whatever the number of nodes, slots are of the oldest generation of PCIe that carries the NIC."""
    rows = ["GPU0 X NODE PIX 0-7 0", "GPU1 NODE X NODE 0-7 0", "NIC0 PIX NODE X"]
    path = _write(tmp_path, *rows, columns=[*_gpus(2), "NIC0"])
    for nodes in (1, 2)[: 1 if nic is None else 2]:
        topology = load_quietly(path, nodes=nodes, nic_gb_per_s=nic)
        inside = [link for link in topology.links if link.name == "PCIe"]
        assert {float(1000 / link.beta_us_per_mb) for link in inside} == {slot}


@pytest.mark.parametrize(("names", "rate"), [("NVIDIA L40S", 31.5), ("", 50)])
def test_a_nic_does_not_lift_the_slot_of_a_named_gpu(tmp_path, names, rate):
    """A NIC of 50 GB/s beside L40S has a faster slot, but the GPUs are on 16 lanes of PCIe 4 (31.5 GB/s)."""
    rows = ["GPU0 X NODE PIX 0-7 0", "GPU1 NODE X NODE 0-7 0", "NIC0 PIX NODE X"]
    listed = "".join(f"GPU {rank}: {names} (UUID: GPU-{rank})\n" for rank in range(2) if names)
    path = _write(tmp_path, *rows, columns=["GPU0", "GPU1", "NIC0"], after=f"\n{listed}")
    topology = load_quietly(path, nodes=2, nic_gb_per_s=50)
    sent = [link for link in topology.links_from[0] if topology.is_internode(link)]
    assert capacity(topology, sent) == pytest.approx(rate)
    said = [each for each in topology.assumed if "reached at 31.5 GB/s only" in each]
    assert len(said) == (rate == 31.5)


def test_pairs_of_unlike_gpus_have_their_own_nvlinks(tmp_path):
    """Two pairs with four NVLinks each: 56.25 GB/s between A6000, 100 GB/s between A100."""
    rows = [
        "GPU0 X NV4 SYS SYS 0-7 0", "GPU1 NV4 X SYS SYS 0-7 0",
        "GPU2 SYS SYS X NV4 8-15 1", "GPU3 SYS SYS NV4 X 8-15 1",
    ]  # fmt: skip
    names = ["NVIDIA RTX A6000"] * 2 + ["NVIDIA A100 80GB PCIe"] * 2
    listed = "".join(f"GPU {rank}: {name} (UUID: GPU-{rank})\n" for rank, name in enumerate(names))
    topology = load_quietly(_write(tmp_path, *rows, columns=_gpus(4), after=f"\n{listed}"))
    rates = {(link.src, link.dst): float(1000 / link.beta_us_per_mb) for link in topology.links}
    assert (rates[0, 1], rates[2, 3], rates[0, 2]) == (56.25, 100, 24)


def test_equal_pairs_are_an_assumption(tmp_path):
    """Three GPUs with NV6 cells may have 6 NVLinks for each pair, or 6 each into an NVSwitch."""
    path = _write(tmp_path, *_equal("NV6", 3), columns=_gpus(3))
    topology = load_nvidia_smi(path)
    assert any(each.startswith("6 NVLinks join each pair of ranks 0-2") for each in topology.assumed)
    chosen = load_nvidia_smi(path, nvlink_joins="pairs")
    assert not any("join each pair" in each for each in chosen.assumed)


def test_a_matrix_without_affinities_is_read_by_every_command(tmp_path):
    """Earlier drivers print no affinities; without its header, the matrix is refused as incomplete."""
    lines = ["\tGPU0\tGPU1", "GPU0\t X \tSOC", "GPU1\tSOC\t X "]
    path = tmp_path / "earlier.txt"
    path.write_text("\n".join(lines) + "\n")
    with pytest.warns(AssumptionWarning):
        assert [link.name for link in taccl.topologies.load(path).links] == ["PCIe", "PCIe"]
    path.write_text("\n".join(lines[1:]) + "\n")
    with pytest.raises(FormatError, match="found no header"):
        taccl.topologies.load(path)


@pytest.mark.parametrize(
    ("numa_id", "nics", "rate"), [("1", "NODE", 100), ("1", "PIX", 100), ("N/A", "NODE", 50)]
)
def test_a_gpu_with_a_numa_id_reaches_its_nics_over_c2c(tmp_path, numa_id, nics, rate):
    """Two NICs of 50 GB/s at the CPU of a GH200 are 100 GB/s, also as two ports of one card.

    A PCIe link of 50 GB/s carries half of that.
    """
    columns = ["GPU0", "NIC0", "NIC1"]
    rows = [[a, *("X" if a == b else "NODE" if "GPU0" in (a, b) else nics for b in columns)] for a in columns]
    rows[0] += ["0-71", "0", "", numa_id]
    head = ["", *columns, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]
    path = tmp_path / "grace.txt"
    path.write_text("".join("\t".join(row) + "\n" for row in (head, *rows)))
    topology = load_quietly(path, nodes=2, nic_gb_per_s=50)
    assert {1000 / link.beta_us_per_mb for link in topology.links} == {rate}
    assert any("NVLink-C2C joins GPU0" in each for each in topology.assumed) == (rate == 100)
    generation = 5 if numa_id == "1" else 3
    assert any(f"16 lanes of PCIe {generation}," in each for each in load_quietly(path).assumed)


@pytest.mark.parametrize(("num_cpus", "rate"), [(2, 900), (4, 450), (1, 450)])
def test_gpus_that_share_a_cpu_over_c2c_have_the_nvlinks_of_gb200(tmp_path, num_cpus, rate):
    """18 NVLinks of GB200 carry 900 GB/s; a GH200 has a CPU of its own, and links of half that rate.

    One affinity of all four GPUs may be that of a container.
    """
    gpus = [f"GPU{i}" for i in range(4)]
    rows = [["", *gpus, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]]
    for i, gpu in enumerate(gpus):
        cpu = i * num_cpus // 4
        cells = ["X" if gpu == other else "NV18" for other in gpus]
        rows.append([gpu, *cells, f"{72 * cpu}-{72 * cpu + 71}", str(cpu), str(8 * i + 4)])
    (tmp_path / "grace.txt").write_text("".join("\t".join(row) + "\n" for row in rows))
    topology = load_quietly(tmp_path / "grace.txt")
    assert {1000 / link.beta_us_per_mb for link in topology.links} == {rate}
    assert any("as of GB200, as several GPUs share" in each for each in topology.assumed) == (rate == 900)


@pytest.mark.parametrize("mixed", [True, False])
def test_lines_of_several_hosts_are_distinguished(tmp_path, mixed):
    """If a launcher marks lines with their host, in any order, only those of the first host are read."""
    first = _write(tmp_path, *_equal("NV12", 4), columns=_gpus(4)).read_text().splitlines()
    second = _write(tmp_path, *_equal("SYS", 4), columns=_gpus(4)).read_text().splitlines()
    lines = [(f"n1: {a}", f"n2: {b}") for a, b in zip(first, second, strict=True)]
    path = tmp_path / "hosts.txt"
    order = (
        [each for pair in lines for each in pair] if mixed else [a for a, _ in lines] + [b for _, b in lines]
    )
    path.write_text("\n".join(order) + "\n")
    topology = load_nvidia_smi(path)
    assert {link.name for link in topology.links} == {"NVSwitch"}
    assert any("first of the file's 2 matrices, which differ, is" in each for each in topology.assumed)
    path.write_text("\n".join(line for a, _ in lines for line in (a, a.replace("n1", "n2"))))
    assert any("first of the file's 2 matrices is used" in each for each in load_nvidia_smi(path).assumed)


def test_one_affinity_of_all_gpus_does_not_contradict_cells(tmp_path):
    """GPUs of one affinity are on two CPUs if cells say so, as in a virtual machine."""
    rows = [
        f"{a} " + " ".join("X" if i == j else "NV18" if max(i, j) < 4 else "NODE" if (i % 5 < 3) == (j % 5 < 3) else "SYS"
        for j in range(6)) + " 0-7 N/A" * (i < 4)
        for i, a in enumerate([*_gpus(4), "NIC0", "NIC1"])
    ]  # fmt: skip
    path = _write(tmp_path, *rows, columns=[*_gpus(4), "NIC0", "NIC1"])
    topology = load_quietly(path, nodes=2, nic_gb_per_s=50)
    assert any("NIC0: 3; NIC1: 0, 1, 2" in note for note in topology.notes)


@pytest.mark.parametrize("line_break", ["\n", "\\n"])
def test_tabs_that_a_program_escaped_are_tabs(tmp_path, line_break):
    """A matrix in which tabs, or tabs and line breaks, are escaped, as in the text of a JSON record, is read."""
    path = _write(tmp_path, *_equal("NV4", 3), columns=_gpus(3))
    plain = load_quietly(path)
    path.write_text(path.read_text().replace("\t", "\\t").replace("\n", line_break))
    assert load_quietly(path).links == plain.links


@pytest.mark.parametrize("begins", ["'", "b'", "output: '"])
def test_a_matrix_may_be_a_string_of_python(tmp_path, begins):
    """A matrix between the quotes of a string or of bytes, as Python prints them, is read."""
    path = _write(tmp_path, *_equal("NV4", 3), columns=_gpus(3))
    plain = load_quietly(path)
    path.write_text(begins + repr(path.read_text())[1:])
    assert load_quietly(path).links == plain.links


def test_no_break_spaces_of_web_pages_are_spaces(tmp_path):
    """Cells and legends of a matrix that was copied from a web page are read."""
    path = _write(
        tmp_path, "GPU0 X PIX 0-7 0", columns=["GPU0", "NIC0"], after="NIC Legend:\n\n  NIC0: mlx5_3\n"
    )
    path.write_text(path.read_text().replace("\t", "\u00a0\u00a0").replace(" ", "\u00a0"))
    topology = load_quietly(path, nodes=2, nic_gb_per_s=50)
    assert any("mlx5_3: 0" in note for note in topology.notes)


def test_nics_that_a_driver_leaves_out_are_told(tmp_path):
    """Drivers print a number of NICs at most, and say so above the matrix."""
    path = _write(tmp_path, "GPU0 X PIX 0-7 0", "NIC0 PIX X", columns=["GPU0", "NIC0"])
    path.write_text(f"76 NICs found in the topology, only displaying 56 in the matrix.\n{path.read_text()}")
    assert any(each.startswith("20 of 76 NICs are not in the matrix") for each in load_quietly(path).assumed)


@pytest.mark.parametrize("cell", ["NODE", "NV12"])
@pytest.mark.parametrize("nics", [0, 2])
@pytest.mark.parametrize("numa", ["0", "0\t\tN/A"])
def test_a_matrix_without_any_separators_is_read(tmp_path, cell, nics, numa):
    """Copies of pages may have lost all tabs; cells have few forms, so that they can be told apart."""
    names = ["GPU0", "GPU1", *[f"NIC{n}" for n in range(nics)]]
    cells = [
        [" X ", cell, "PIX", "SYS"],
        [cell, " X ", "SYS", "PIX"],
        ["PIX", "SYS", " X ", "SYS"],
        ["SYS", "PIX", "SYS", " X "],
    ]
    rows = [
        [name, *row[: 2 + nics], *[f"{32 * n}-{32 * n + 31}", numa] * (n < 2)]
        for n, (name, row) in enumerate(zip(names, cells, strict=False))
    ]
    text = "\n".join(
        "\t".join(row) for row in [["", *names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"], *rows]
    )
    path = tmp_path / "matrix.txt"
    found = []
    for given in (text, text.replace("\t", "")):
        path.write_text(f"{given}\n\nLegend:\n\n  X    = Self\n")
        found.append(load_quietly(path, **({"nodes": 2, "nic_gb_per_s": 25} if nics else {})))
    assert found[1].links == found[0].links
    assert any("without spaces" in each for each in found[1].assumed)


@pytest.mark.parametrize("width", [29, 40, 52])
@pytest.mark.parametrize("is_cut_in_words", [True, False], ids=["terminal", "mail"])
def test_broken_lines_are_joined(tmp_path, width, is_cut_in_words):
    """No column is lost from a matrix whose lines a terminal or a mail broke."""
    lines = SQUARE.read_text().expandtabs(8).splitlines()
    broken = [
        part
        for line in lines
        for part in (
            [line[at : at + width] for at in range(0, len(line), width)]
            if is_cut_in_words
            else textwrap.wrap(line, width, break_long_words=False)
        )
        or [""]
    ]
    path = tmp_path / "square.txt"
    path.write_text("\n".join(broken) + "\n")
    topology, whole = (load_quietly(each, nodes=2, nic_gb_per_s=10) for each in (path, SQUARE))
    assert topology.links == whole.links
    assert topology.holds == whole.holds
    assert any("broken into several" in each for each in topology.assumed)


@pytest.mark.parametrize("end", ["\n", ": "])
def test_a_title_is_no_part_of_the_header(tmp_path, end):
    """Words above the matrix, or before its header, stay apart from the header."""
    path = tmp_path / "square.txt"
    path.write_text(f"GPU topology of node1{end}{SQUARE.read_text()}")
    assert load_quietly(path).links == load_quietly(SQUARE).links


@pytest.mark.parametrize("label", ["", "10:11:0{} "])
@pytest.mark.parametrize("row", ["GPU1 SYS SYS", "NIC1 SYS SYS X", "NIC1 SYS"])
def test_a_row_without_a_column_is_refused(tmp_path, row, label):
    """A header that lacks a column would lose a GPU, or some cells of a NIC."""
    path = _write(tmp_path, "GPU0 X PIX 0-7 0", "NIC0 PIX X", row, columns=["GPU0", "NIC0"])
    lines = path.read_text().splitlines()
    path.write_text("".join(f"{label.format(number)}{line}\n" for number, line in enumerate(lines)))
    with pytest.raises(FormatError, match=f"line 4: found a row of {row[:4]}, which has no column"):
        load_nvidia_smi(path)


@pytest.mark.parametrize("num_columns", [0, 1])
def test_nics_may_have_rows_alone(tmp_path, num_columns):
    """Pages leave out columns of NICs to save width; rows with a cell for each column tell what is near."""
    cells = [["PIX", "SYS"], ["SYS", "PIX"]]
    rows = [
        f"GPU{i} {' X ' if not i else 'NV12'} {'NV12' if not i else ' X '} {' '.join(cells[i][:num_columns])} "
        f"{32 * i}-{32 * i + 31} {i}"
        for i in range(2)
    ]
    own = ["X", "SYS"]
    rows += [f"NIC{i} {cells[0][i]} {cells[1][i]} {' '.join(own[i : i + 1] * num_columns)}" for i in range(2)]
    columns = ["GPU0", "GPU1", *[f"NIC{i}" for i in range(num_columns)]]
    path = _write(tmp_path, *rows, columns=columns, after="NIC0: mlx5_0\nNIC1: mlx5_1\n")
    topology = load_quietly(path, nodes=2, nic_gb_per_s=50)
    lacking = ", ".join(f"NIC{i}" for i in range(num_columns, 2))
    assert f"no columns of {lacking}: which NICs are close to each other is unknown" in topology.assumed
    assert not any("of the legend" in each for each in topology.assumed)
    nics = {each.name for each in topology.resources if each.name.startswith("NIC mlx5")}
    assert nics == {
        f"NIC mlx5_{i} of node {n} {way}" for i in (0, 1) for n in (0, 1) for way in ("egress", "ingress")
    }


def test_names_in_the_legend_without_columns_are_told(tmp_path):
    """A NIC that only the legend lists is an omission of the import."""
    path = _write(
        tmp_path, "GPU0 X PIX 0-7 0", "NIC0 PIX X", columns=["GPU0", "NIC0"], after="NIC0: a\nNIC1: b\n"
    )
    assert "NIC1 of the legend are left out, as they have no column" in load_quietly(path).assumed


def test_columns_of_cpus_are_no_nics(tmp_path):
    """Only devices that are neither GPUs nor CPUs are NICs."""
    path = _write(
        tmp_path, "GPU0 X PIX NODE 0-7 0", "NIC0 PIX X NODE", "CPU0 NODE NODE X",
        columns=["GPU0", "NIC0", "CPU0"],
    )  # fmt: skip
    topology = load_quietly(path, nodes=2, nic_gb_per_s=50)
    assert {link.beta_us_per_mb for link in topology.links} == {20}
    with pytest.raises(TopologyError, match="out of NIC0"):
        load_nvidia_smi(path, nodes=2, nics=["CPU0"], nic_gb_per_s=50)


def test_html_around_a_matrix_is_removed(tmp_path):
    """Tables and character references of web pages are read as the text that a browser shows."""
    rows = [line.split("\t") for line in SQUARE.read_text().split("\n\n")[0].splitlines()]
    table = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    whole = load_quietly(SQUARE)
    for text in (
        f"<table>{table}</table>",
        "<pre><code>" + SQUARE.read_text().replace("\t", "&nbsp;&#32;") + "</code></pre>",
        "".join(f"&gt; {line}\n" for line in SQUARE.read_text().splitlines()),
        f"<html><body><p>Ours:</p><pre>{SQUARE.read_text()}</pre></body></html>",
    ):
        path = tmp_path / "square.txt"
        path.write_text(text)
        assert load_quietly(path).links == whole.links


def test_possible_functions_of_one_card_are_told(tmp_path):
    """Virtual functions of a card look like several cards on one PCIe switch."""
    nics = ["NIC0", "NIC1", "NIC2"]
    rows = [f"{a} NODE " + " ".join("X" if a == b else "PIX" for b in nics) for a in nics]
    path = _write(tmp_path, "GPU0 X NODE NODE NODE 0-7 0", *rows, columns=["GPU0", *nics])
    told = [each for each in load_quietly(path, nodes=2, nic_gb_per_s=12).assumed if "functions" in each]
    assert told == [
        "NIC0, NIC1, NIC2 are cards of their own on one PCIe switch; if they are ports or virtual functions of "
        "one card, name one (nics=)"
    ]
    named = load_quietly(path, nodes=2, nic_gb_per_s=12, nics=["NIC0"])
    assert not any("functions" in each for each in named.assumed)


def test_columns_of_unknown_gpus_are_no_nics(tmp_path):
    """A column whose name begins as that of a GPU is an error, not a NIC."""
    path = _write(tmp_path, "GPU0 X NODE 0-7 0", "GPUx NODE X", columns=["GPU0", "GPUx"])
    with pytest.raises(FormatError, match="found a column 'GPUx'; expected GPU0, GPU1"):
        load_nvidia_smi(path)


def test_semicolons_of_spreadsheets_separate_cells(tmp_path):
    """The separator of a spreadsheet is a comma or a semicolon."""
    path = tmp_path / "square.csv"
    for mark in ",;":
        path.write_text(SQUARE.read_text().split("\n\n")[0].replace("\t", mark))
        assert load_quietly(path).links == load_quietly(SQUARE).links


def test_a_long_line_above_a_matrix_takes_linear_time(tmp_path):
    """A line of many words that are almost those of a header is looked at once."""
    path = tmp_path / "square.txt"
    path.write_text(f"{'GPU ' * 200}!\n{SQUARE.read_text()}")
    assert cpu_s(lambda: load_quietly(path)) < 0.5


def test_a_text_without_rows_of_a_matrix_is_refused(tmp_path):
    """Marks at the start of a text are no pattern."""
    path = tmp_path / "server.txt"
    path.write_text("*** GPU Topology ***\nGPU0 GPU1 CPU Affinity\n")
    with pytest.raises(FormatError, match="found no row of GPU0"):
        taccl.topologies.load(path)
