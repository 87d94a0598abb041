"""Files of servers whose GPUs share an NVSwitch: NCCL's topology XML, and the matrix of ``nvidia-smi topo -m``."""


def server_xml(sm, nvlinks, *, gpus=8, nic_mbit_per_s=400_000, nics_per_gpu=1, gpus_per_nic=1, gen="32.0"):
    """NCCL's XML of GPUs with a compute capability and NVLinks into the switch, and their NICs.

    Each PCIe switch has `gpus_per_nic` GPUs, and `nics_per_gpu` NICs.
    """
    lines = ['<system version="1">', '<cpu numaid="0" affinity="ffff" arch="x86_64" vendor="GenuineIntel">']
    link = f'link_speed="{gen} GT/s PCIe" link_width="16"'
    nvlink = f'<nvlink target="0000:a0:00.0" count="{nvlinks}" tclass="0x068000"/>' if nvlinks else ""
    for first in range(0, gpus, gpus_per_nic):
        lines.append(f'<pci busid="0000:{first:x}0:00.0" class="0x060400" {link}>')
        for place in range(gpus_per_nic):
            gpu = first + place
            lines += [
                f'<pci busid="0000:{first:x}1:{place:02x}.0" class="0x030200" {link}>',
                f'<gpu dev="{gpu}" sm="{sm}" rank="{gpu}" gdr="1">{nvlink}</gpu></pci>',
            ]
        for nic in range(first * nics_per_gpu, (first + 1) * nics_per_gpu):
            lines += [
                f'<pci busid="0000:{first:x}2:{nic - first * nics_per_gpu:02x}.0" class="0x020700" {link}><nic>',
                f'<net name="mlx5_{nic}" dev="{nic}" speed="{nic_mbit_per_s}" port="1" gdr="1"/></nic></pci>',
            ]
        lines.append("</pci>")
    return "\n".join([*lines, "</cpu></system>"])


def matrix(nvlinks, *, gpus=8):
    """Matrix of GPUs with `nvlinks` NVLinks each into the switch, and of a NIC beside each GPU."""
    names = [f"{kind}{place}" for kind in ("GPU", "NIC") for place in range(gpus)]

    def cell(a, b):
        if a == b:
            return "X"
        if a.startswith("GPU") and b.startswith("GPU"):
            return f"NV{nvlinks}"
        return "PXB" if a[3:] == b[3:] else "NODE"

    rows = ["\t".join([a, *(cell(a, b) for b in names), "0-63", "0"]) for a in names]
    return "\n".join(["\t" + "\t".join([*names, "CPU Affinity", "NUMA Affinity"]), *rows]) + "\n"
