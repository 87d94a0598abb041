"""Named profiles of machine constants: every alpha and beta, and where it comes from.

`taccl` is what the authors of TACCL published with their code; `nominal` is what data sheets
promise, and what published bounds on bandwidth are stated for. A data sheet promises no latency, so alpha
is 0 in `nominal`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from taccl.errors import TopologyError
from taccl.topology.parts import beta_of_bandwidth, exact_cost

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PROFILES", "Constant", "Profile", "find_profile"]


@dataclass(frozen=True, slots=True)
class Constant:
    """One constant of a machine, in the unit that its name ends in, and where the value comes from."""

    name: str
    value: Fraction
    source: str


@dataclass(frozen=True, slots=True)
class Profile:
    """The constants of one machine under one name, e.g. ``"nominal"``."""

    machine: str
    name: str
    constants: tuple[Constant, ...]

    def __getitem__(self, name: str) -> Fraction:
        """The value of a constant; `KeyError` if there is none of that name."""
        return {constant.name: constant.value for constant in self.constants}[name]

    def replaced(self, values: Mapping[str, int | float | str | Fraction]) -> Profile:
        """The profile with some constants replaced by a person's own.

        Raises
        ------
        TopologyError
            If the profile has no constant of that name, or the value is not a cost.
        """
        known = [constant.name for constant in self.constants]
        for name in values:
            if name not in known:
                raise TopologyError(
                    f"{self.machine} has no constant {name!r}; it has {', '.join(known)}", where="constants"
                )
        constants = []
        for constant in self.constants:
            if constant.name in values:
                value = exact_cost(values[constant.name], where=f"constants: {constant.name}")
                constant = Constant(constant.name, value, "given by the user")
            constants.append(constant)
        return replace(self, constants=tuple(constants))


def find_profile(machine: str, profile: str) -> Profile:
    """The profile of a machine by name.

    Raises
    ------
    TopologyError
        If the machine has no such profile; the known ones are named.
    """
    for each in PROFILES[machine]:
        if each.name == profile:
            return each
    known = ", ".join(each.name for each in PROFILES[machine])
    raise TopologyError(f"found {profile!r}; {machine} has the profiles {known}", where=f"{machine}: profile")


def _rate(name: str, gb_per_s: int | str, source: str) -> Constant:
    return Constant(name, beta_of_bandwidth(gb_per_s), f"{gb_per_s} GB/s each way: {source}")


_NO_ALPHA = "data sheets promise no latency, so none is counted"
# No source is known to us for the time that a message keeps a NIC beyond its bytes; 0 is the optimistic end,
# alpha of the link the pessimistic one, and `constants=` sets anything between.
_NIC_ALPHA = Constant(
    "nic_alpha_us",
    Fraction(0),
    "our choice: alpha is time on the way, during which the NIC serves another rank's message",
)
_V100 = "NVIDIA, Tesla V100 GPU Architecture (2017): NVLink 2.0, 25 GB/s per link and direction, 6 links"
_EDR = "EDR InfiniBand, 100 Gb/s"
_NDV2_FILE = "TACCL's published topo-ndv2-1MB.json"
_DGX2_FILE = "TACCL's published topo-dgx2-1MB.json"


def _nominal_mesh(machine: str, nic_source: str) -> Profile:
    return Profile(
        machine,
        "nominal",
        (
            Constant("nvlink_alpha_us", Fraction(0), _NO_ALPHA),
            _rate("nvlink_beta_us_per_mb", 25, _V100),
            _rate("nvlink_double_beta_us_per_mb", 50, f"two links; {_V100}"),
            Constant("internode_alpha_us", Fraction(0), _NO_ALPHA),
            _rate("internode_beta_us_per_mb", "12.5", nic_source),
            _NIC_ALPHA,
        ),
    )


def _taccl_mesh(machine: str, remark: str = "") -> Profile:
    return Profile(
        machine,
        "taccl",
        (
            Constant("nvlink_alpha_us", Fraction("0.3"), f"{_NDV2_FILE}: alpha{remark}"),
            Constant("nvlink_beta_us_per_mb", Fraction(46), f"{_NDV2_FILE}: node_betas_list[1]{remark}"),
            Constant(
                "nvlink_double_beta_us_per_mb", Fraction(23), f"{_NDV2_FILE}: node_betas_list[0]{remark}"
            ),
            Constant("internode_alpha_us", Fraction("2.6"), f"{_NDV2_FILE}: remote_alpha{remark}"),
            Constant("internode_beta_us_per_mb", Fraction(105), f"{_NDV2_FILE}: remote_beta{remark}"),
            _NIC_ALPHA,
        ),
    )


def _nominal_switch(
    machine: str, *, port_gb_per_s: int, port_source: str, nic_gb_per_s: int | str, nic_source: str
) -> Profile:
    return Profile(
        machine,
        "nominal",
        (
            Constant("nvswitch_alpha_us", Fraction(0), _NO_ALPHA),
            _rate("nvswitch_beta_us_per_mb", port_gb_per_s, port_source),
            Constant("internode_alpha_us", Fraction(0), _NO_ALPHA),
            _rate("internode_beta_us_per_mb", nic_gb_per_s, nic_source),
            _NIC_ALPHA,
        ),
    )


_DGX2_TACCL = Profile(
    "dgx2",
    "taccl",
    (
        Constant("nvswitch_alpha_us", Fraction("0.3"), f"{_DGX2_FILE}: alpha"),
        Constant("nvswitch_beta_us_per_mb", Fraction(8), f"{_DGX2_FILE}: node_betas_list[0]"),
        Constant("internode_alpha_us", Fraction("2.6"), f"{_DGX2_FILE}: remote_alpha"),
        Constant("internode_beta_us_per_mb", Fraction(105), f"{_DGX2_FILE}: remote_beta"),
        _NIC_ALPHA,
    ),
)

PROFILES: Mapping[str, tuple[Profile, ...]] = {
    "ndv2": (
        _taccl_mesh("ndv2"),
        _nominal_mesh("ndv2", f"Microsoft, Azure NDv2-series: one {_EDR}, for the virtual machine"),
    ),
    "dgx1": (
        _taccl_mesh("dgx1", " (NDv2's, which has the same V100, NVLink 2.0 and EDR InfiniBand)"),
        _nominal_mesh("dgx1", f"NVIDIA, DGX-1 With Tesla V100 System Architecture (2017): four {_EDR}"),
    ),
    "dgx2": (
        _DGX2_TACCL,
        _nominal_switch(
            "dgx2",
            port_gb_per_s=150,
            port_source=f"six links; {_V100}",
            nic_gb_per_s="12.5",
            nic_source=f"NVIDIA, DGX-2 data sheet (2018): eight {_EDR}",
        ),
    ),
    "dgx-a100": (
        _nominal_switch(
            "dgx-a100",
            port_gb_per_s=300,
            port_source="NVIDIA, A100 Tensor Core GPU Architecture (2020): NVLink 3, 600 GB/s both ways",
            nic_gb_per_s=25,
            nic_source="NVIDIA, DGX A100 data sheet (2020): eight single-port HDR InfiniBand, 200 Gb/s",
        ),
    ),
    "dgx-h100": (
        _nominal_switch(
            "dgx-h100",
            port_gb_per_s=450,
            port_source="NVIDIA, H100 Tensor Core GPU Architecture (2022): NVLink 4, 900 GB/s both ways",
            nic_gb_per_s=50,
            nic_source="NVIDIA, DGX H100 data sheet (2022): eight single-port NDR InfiniBand, 400 Gb/s",
        ),
    ),
}
"""Profiles of every machine model; the first is the default."""
