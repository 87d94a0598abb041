"""GPU boards: their names in texts of drivers and tools, and their links."""

import pytest

from taccl.topology.boards import board_of, boards_in, common_board


@pytest.mark.parametrize(
    ("name", "links"),
    [
        ("Tesla P100-SXM2-16GB", (4, 20, 3)),
        ("Tesla P100-PCIE-16GB", (0, 0, 3)),
        ("Tesla V100-SXM3-32GB", (6, 25, 3)),
        ("Tesla V100S-PCIE-32GB", (0, 0, 3)),
        ("Quadro RTX 8000", (2, 25, 3)),
        ("NVIDIA A100-SXM4-80GB", (12, 25, 4)),
        ("NVIDIA RTX A6000", (4, 14.0625, 4)),
        ("NVIDIA GeForce RTX 3090", (4, 14.0625, 4)),
        ("NVIDIA GeForce RTX 3080", (0, 0, 4)),
        ("NVIDIA RTX 2000 Ada Generation", (0, 0, 4)),
        ("NVIDIA L40S", (0, 0, 4)),
        ("NVIDIA H100 NVL", (18, 25, 5)),
        ("NVIDIA GH200 480GB", (18, 25, 5)),
        ("NVIDIA B200", (18, 50, 5)),
        ("NVIDIA GB300", (18, 50, 6)),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", (0, 0, 5)),
        ("AMD Instinct MI210", (3, 50, 4)),
        ("AMD Instinct MI325X VF", (7, 64, 5)),
    ],
)
def test_links_are_those_of_the_data_sheet(name, links):
    """Names of boards give the number of NVLinks or xGMI links, the rate of one, and the generation of PCIe."""
    board = board_of(name)
    assert board[:3] == links
    assert board.fabric == ("xGMI" if name.startswith("AMD") else "NVLink")
    assert board.is_meshed == name.startswith("AMD Instinct MI3")


@pytest.mark.parametrize("name", ["AMD Radeon Graphics", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "8.0"])
def test_other_names_give_no_board(name):
    """An unknown GPU, a part of a GPU and a number are no boards."""
    assert board_of(name) is None


@pytest.mark.parametrize(
    "text",
    [
        "Device: 0, NVIDIA B200, pciBusID: 1b\nDevice: 1, NVIDIA B200, pciBusID: 43\n",
        "Device 0: NVIDIA B200 (00000000:1b:00)\nDevice 1: NVIDIA B200 (00000000:43:00)\n",
        "GPU 0: NVIDIA B200 (UUID: GPU-1)\n  GPU 1: NVIDIA B200 (UUID: GPU-2)\n",
        "GPU 0,1: NVIDIA B200\nGPU 0,1 Compute Capability: 10.0\n",
        "| NVIDIA-SMI 575.57 |\n|   0  NVIDIA B200     On  | 0000 |\n|   1  NVIDIA B200     On  | 0000 |\n",
    ],
    ids=["p2p test", "nvbandwidth", "nvidia-smi -L", "bug report", "nvidia-smi"],
)
def test_names_are_found_in_texts(text):
    """Each usual form of a list of GPUs is read."""
    assert boards_in(text) == {0: "NVIDIA B200", 1: "NVIDIA B200"}


def test_boards_that_differ_have_no_links_in_common():
    """Only boards with equal links count as one."""
    assert common_board(["NVIDIA L40S", "NVIDIA L4"]) == ("NVIDIA L40S", board_of("NVIDIA L4"))
    assert common_board(["NVIDIA L40S", "NVIDIA B200"]) is None
    assert common_board([]) is None
